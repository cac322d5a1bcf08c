//! Submit as a Lambda function: behind API Gateway, and on the submission queue.

use edge::auth::Scopes;
use edge::workflows;
use lambda_runtime::{Error, LambdaEvent, run, service_fn};
use serde_json::Value;
use std::time::Duration;
use stepwarden_aws::config::number;
use stepwarden_aws::{Clients, Config, engine, metrics, telemetry, traces, wall_clock};
use submit::{Submit, http, queue_handler};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    telemetry::init();
    let config = Config::from_env()?;
    traces::init(&config.instance);
    // At most `http::MAX_WAIT_S`. Times the route's rate, it is the number of instances that callers can occupy.
    let longest_s: u64 = number(|name: &str| std::env::var(name).ok(), "LONGEST_WAIT_S", 5, 0, 20)?;
    let longest = Duration::from_secs(longest_s);
    let agents: Vec<&str> = config.agents.iter().map(String::as_str).collect();
    let workflows = workflows::deployed(&agents, &config.files)?;
    workflows::can_start(&workflows, config.clock_skew)
        .map_err(|e| format!("{e}: raise it, or lower ClockSkewMs if the clocks allow that"))?;
    let submit = Submit {
        engine: engine(&config, &Clients::from_env().await, wall_clock()).engine,
        workflows,
        reply_queues: config.reply_queues.clone(),
        shards: config.shards,
        scopes: Scopes::from_lookup(|name| std::env::var(name).ok())?,
        queue_tenant: std::env::var("QUEUE_TENANT").unwrap_or_else(|_| shared::order::DEFAULT_TENANT.into()),
        begins: None,
    };
    let (submit, stack) = (&submit, config.stack());
    run(service_fn(move |event: LambdaEvent<Value>| async move {
        let deadline = event.context.deadline();
        let response = if event.payload.get("Records").is_some() {
            serde_json::to_value(queue_handler(submit, serde_json::from_value(event.payload)?).await)?
        } else {
            serde_json::to_value(http::handler_within(submit, serde_json::from_value(event.payload)?, longest).await)?
        };
        metrics::flush(stack);
        traces::flush_before(deadline).await;
        Ok::<_, Error>(response)
    }))
    .await
}
