//! The agent runtime: takes requests from its queues, lets an agent call its remote service, and replies.
//!
//! An agent wraps the calls to one remote service. The runtime treats all agents alike: nothing starts past
//! `complete_by`, calls are repeated with full jitter, a circuit breaker guards each remote service, the idempotency
//! key is stable, and a late attempt stays silent.

pub mod agents;
pub mod aws;
mod mask;
mod part;
pub mod remote;
mod runtime;
pub mod secrets;

pub use runtime::{Runtime, Settings};
pub use stepwarden_agent::{AgentError, breaker};

use aws_lambda_events::event::sqs::SqsEvent;
use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use serde_json::Value;
use shared::message::{Effect, Outcome, Reply, Request};
use shared::overload::MIN_LIMIT;
use shared::ports::Messenger;
use shared::time::SignedDuration;
use std::time::Duration;
use stepwarden_aws::batch::{self, Record, Response};
use stepwarden_aws::telemetry::Chain;
use stepwarden_aws::traces;

/// How long a finished reply waits for others to share a request to SQS.
const LINGER: Duration = Duration::from_millis(3);
/// Replies sent at a time.
const BATCH: usize = 10;

/// One call to make.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    /// The request, with the idempotency key to pass on.
    pub request: &'a Request,
    /// Time until the answer would be too late.
    pub time_left: Duration,
}

/// An agent: calls to one remote service.
pub trait Agent: Send + Sync {
    /// Name by which workflows know it.
    fn name(&self) -> &str;
    /// The remote service of this request, if the agent calls several, each behind its own breaker.
    fn remote(&self, _: &Request) -> Option<String> {
        None
    }
    /// Makes one call, forward or undo as the request says. Returns what later steps and the undo need to know, at most
    /// [`MAX_OUTPUT`](shared::message::MAX_OUTPUT) bytes of JSON.
    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>>;
}

/// Handles one batch of requests concurrently. Replies leave as they come, so that a slow remote service holds up no
/// other. A record is redelivered if its reply was not sent. Compiled here for all that run it.
pub fn handler<'a>(runtime: &'a Runtime, messenger: &'a dyn Messenger, event: SqsEvent) -> BoxFuture<'a, Response> {
    Box::pin(perform_all(runtime, messenger, event))
}

async fn perform_all(runtime: &Runtime, messenger: &dyn Messenger, event: SqsEvent) -> Response {
    let mut response = Response::default();
    let mut aside = Vec::new();
    let mut work = FuturesUnordered::new();
    for record in batch::records(event) {
        let request = match batch::parse::<Request>(&record) {
            Ok(request) => request,
            Err(reason) => {
                traces::Span::unreadable(&record);
                aside.push((record, reason));
                continue;
            }
        };
        let span = traces::Span::message("request", &record, &request.task_id, request.traceparent.as_deref());
        span.step(&request.step, request.attempt);
        span.set_text("agent", &request.agent);
        if let Some(agent) = runtime.agent_of(&request) {
            work.push(async move {
                let mut reply = span.around(runtime.perform(agent, &request)).await;
                // An earlier delivery may have done what the service refuses now.
                if let Some(Reply { outcome: Outcome::Failed { .. } | Outcome::Deferred { .. }, unsure, .. }) =
                    &mut reply
                {
                    *unsure |= record.is_redelivered;
                }
                span.replied(reply.as_ref());
                let delay = SignedDuration::from_millis(i64::try_from(request.delay_ms).unwrap_or_default());
                (reply, record, delay, span)
            });
        } else {
            span.fail("no_such_agent");
            let reason = format!("there is no agent `{}` here", request.agent);
            aside.push((record, reason));
        }
    }
    batch::set_aside(messenger, aside, &mut response).await;
    while let Some(first) = work.next().await {
        let mut ready = vec![first];
        let linger = tokio::time::sleep(LINGER);
        tokio::pin!(linger);
        while ready.len() < BATCH && !work.is_empty() {
            tokio::select! {
                biased;
                Some(next) = work.next() => ready.push(next),
                () = &mut linger => break,
            }
        }
        reply(messenger, ready, &mut response).await;
    }
    response
}

/// A reply, the record it answers, and how long that was deliberately held back.
type Done = (Option<Reply>, Record, SignedDuration, traces::Span);

async fn reply(messenger: &dyn Messenger, ready: Vec<Done>, response: &mut Response) {
    let mut senders = Vec::new();
    let (effects, from): (Vec<_>, Vec<_>) = ready
        .into_iter()
        .filter_map(|(reply, record, delay, span)| {
            let reply = Reply { queued_ms: record.waited.and_then(|waited| queued_ms(waited - delay)), ..reply? };
            senders.extend(span.traceparent().map(|span| (reply.task_id.clone(), Some(reply.step.clone()), span)));
            Some((Effect::Reply(Box::new(reply)), (record.message_id, span)))
        })
        .unzip();
    if effects.is_empty() {
        return;
    }
    let sent = traces::sending(senders, messenger.send(effects)).await;
    for ((id, span), sent) in from.iter().zip(sent) {
        if let Err(error) = sent {
            span.fail("unavailable");
            tracing::warn!(message.id = %id, error = %Chain(&error), "a reply was not sent; its request will be redelivered");
            response.add_failure(id);
        }
    }
}

/// How long the request waited, for the reply; `None` below the lowest limit at which orders are refused.
fn queued_ms(waited: SignedDuration) -> Option<u64> {
    u64::try_from(waited.as_millis()).ok().filter(|_| waited >= MIN_LIMIT)
}
