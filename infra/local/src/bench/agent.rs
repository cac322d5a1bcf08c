//! The agent of the recovery runs, in a separate process that can be killed: each step takes a while, and is reported
//! on standard output when it begins.

use crate::pump::{self, Source, UnderWay, Work};
use crate::queue_turns::Gate;
use crate::system::{NAME_PREFIX, agent_handler, local_config};
use agent::{Agent, AgentError, Call, Runtime, breaker};
use anyhow::{Context, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::order::Id;
use shared::pools::Layout;
use shared::time::Timestamp;
use std::io::Write;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_aws::config::queue;
use stepwarden_aws::{Clients, SqsMessenger, wall_clock};
use tokio::sync::watch;

/// Name by which the workflow of the recovery runs knows it.
pub const NAME: &str = "worker";
/// How long a step takes.
pub const WORK: Duration = Duration::from_millis(100);
/// Concurrent batches.
const CONCURRENCY: usize = 64;

/// An attempt at a step that begins; a line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Begun {
    /// The order.
    pub order: Id,
    /// The step.
    pub step: String,
    /// Which attempt.
    pub attempt: u32,
    /// The attempt's CompleteBy.
    pub complete_by: Timestamp,
    /// When it began.
    pub at: Timestamp,
}

struct Worker;

impl Agent for Worker {
    fn name(&self) -> &str {
        NAME
    }

    fn act<'a>(&'a self, Call { request, .. }: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        let begun = Begun {
            order: request.task_id.clone(),
            step: request.step.clone(),
            attempt: request.attempt,
            complete_by: request.complete_by,
            at: Timestamp::now(),
        };
        let line = serde_json::to_string(&begun).expect("it has string keys only");
        async move {
            // The parent may be gone; then this process is about to be killed too.
            let _ = writeln!(std::io::stdout(), "{line}");
            tokio::time::sleep(WORK).await;
            Ok(Value::Null)
        }
        .boxed()
    }
}

/// Serves until it is killed, at the endpoints at `url`.
pub async fn serve(url: &str) -> Result<()> {
    let clients = Clients::unsigned(url);
    let mut config = local_config(stepwarden_aws::ReplyQueues::default(), Layout::new(), vec![NAME.to_owned()], 1);
    let own = queue::agent(NAME);
    let found = clients.sqs.get_queue_url().queue_name(format!("{NAME_PREFIX}{own}")).send().await;
    let source =
        found.with_context(|| format!("looking for the agent's queue at {url}"))?.queue_url.unwrap_or_default();
    config.queue_prefix = source.strip_suffix(&own).context("the queue has an unexpected name")?.to_owned();
    let settings = agent::Settings { skew: config.clock_skew, breaker: breaker::Settings::default() };
    let runtime = Arc::new(Runtime::new(vec![Arc::new(Worker)], settings, wall_clock()));
    let act = agent_handler(&runtime, &Arc::new(SqsMessenger::new(&clients, &config)));
    let work = Work::Begun(UnderWay::default());
    let source = Source { sqs: clients.sqs, url: source, gate: Gate::new(CONCURRENCY, 1), class: 0, work };
    let (_pause, paused) = watch::channel(false);
    let (_stop, stopped) = watch::channel(false);
    pump::run(source, act, paused, stopped).await;
    Ok(())
}
