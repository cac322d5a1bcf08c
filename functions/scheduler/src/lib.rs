//! The scheduler: takes Wakes, cancellations and replies from its queues; advances a task by one conditional write.
//!
//! All decisions are in [`shared::scheduler`]; this crate connects an `SqsEvent` to the engine.

mod waits;

use aws_lambda_events::event::sqs::SqsEvent;
use serde::Deserialize;
use shared::decision::{Event, Kept};
use shared::engine::{Engine, Handled};
use shared::json::{self, Fault};
use shared::message::{Outcome, Reply, ToScheduler};
use shared::order::Id;
use shared::ports::Error;
use stepwarden_aws::BoxFuture;
use stepwarden_aws::batch::{self, Record, Response};
use stepwarden_aws::config::queue;
use stepwarden_aws::metrics;
use stepwarden_aws::telemetry::Chain;
use stepwarden_aws::traces::{self, Span};

/// DynamoDB's limit for a partition key, in bytes.
const MAX_ID: usize = 2048;

/// Handles one batch. Only the records that fail are redelivered. Compiled here for all that run it.
pub fn handler(engine: &Engine, event: SqsEvent) -> BoxFuture<'_, Response> {
    Box::pin(async move {
        let mut response = Response::default();
        let (mut aside, mut records, mut events, mut senders) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for record in batch::records(event) {
            match parse(&record) {
                // The store always refuses such a key, with an error like an outage.
                Ok(message) if !(1..=MAX_ID).contains(&message.task_id().0.len()) => {
                    Span::unreadable(&record);
                    aside.push((record, format!("its task_id must have 1 to {MAX_ID} bytes")));
                }
                // Agents may send to this queue, but only replies.
                Ok(ToScheduler::Wake(_) | ToScheduler::Cancel(_)) if record.queue.ends_with(queue::REPLIES) => {
                    Span::unreadable(&record);
                    aside.push((record, "this queue takes only replies".into()));
                }
                Ok(message) => {
                    let waited = waits::of(&message, &record);
                    let span = span(&record, &message);
                    senders.extend(span.traceparent().map(|sender| (message.task_id().clone(), None, sender)));
                    records.push((record, waited, span));
                    events.push((message.task_id().clone(), to_event(message)));
                }
                Err(reason) => {
                    Span::unreadable(&record);
                    aside.push((record, reason));
                }
            }
        }
        let answers = traces::sending(senders, engine.handle(events)).await;
        let mut long = Vec::new();
        for ((record, waited, span), answer) in records.into_iter().zip(answers) {
            if let Ok(Handled::Applied(task) | Handled::Kept(_, task)) = &answer {
                span.belongs_to(task.traceparent.as_deref());
                span.set_text("workflow", &task.workflow);
                span.set("state", task.process_state().name());
            }
            let _within = span.enter();
            if let (Ok(handled), false) = (&answer, waited.is_empty()) {
                long.push((handled.clone(), waited));
            }
            match answer {
                Ok(Handled::Applied(task)) => {
                    tracing::debug!(version = task.version, state = task.process_state().name(), "moved a task on");
                }
                Ok(Handled::Kept(Kept::Foreign, task)) => {
                    span.fail("foreign");
                    aside.push((record, format!("task {} has no such step or attempt", task.id)));
                }
                Ok(Handled::Kept(why, task)) => {
                    if matches!(why, Kept::Late | Kept::Stale) {
                        metrics::LATE_REPLIES.add(&task.workflow);
                    }
                    tracing::debug!(version = task.version, ?why, "left a task unchanged");
                }
                Ok(Handled::NoSuchTask) => {
                    span.fail("no_such_task");
                    aside.push((record, "there is no such task".into()));
                }
                Err(error @ Error::Corrupt { .. }) => {
                    span.fail("corrupt");
                    aside.push((record, error.to_string()));
                }
                Err(error @ (Error::Unavailable { .. } | Error::TooLarge { .. })) => {
                    span.fail("unavailable");
                    tracing::warn!(message.id = %record.message_id, error = %Chain(&error), "a message will be redelivered");
                    response.add_failure(&record.message_id);
                }
            }
        }
        batch::set_aside(&*engine.messenger, aside, &mut response).await;
        waits::note(engine, long).await;
        response
    })
}

/// The message in a record. A reply's output is foreign JSON; if it cannot be stored as sent, the step is not done.
fn parse(record: &Record) -> Result<ToScheduler, String> {
    let mut message = match json::read_own(&record.body) {
        Ok(message) => message,
        Err(error) => return envelope(&record.body, &error).map_or_else(|| batch::parse(record), Ok),
    };
    if let ToScheduler::Reply(reply) = &mut message
        && (matches!(reply.outcome, Outcome::Done { .. }) || reply.answer.is_some())
        && let Err(refused) = json::check(record.body.as_bytes())
        // The core judges depth itself; this check knows only the parser's own limit.
        && refused.fault != Fault::Deep
    {
        reply.answer = None;
        if let Outcome::Done { .. } = reply.outcome {
            reply.outcome = Outcome::Garbled { error: refused.to_string() };
        }
    }
    Ok(message)
}

/// The part of a reply that must be readable. The rest is ignored, as long as it is JSON.
#[derive(Deserialize)]
struct Envelope {
    r#type: Type,
    task_id: Id,
    step: String,
    attempt: u32,
    outcome: Said,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Type {
    Reply,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Said {
    Done,
    Failed,
    Unavailable,
    Deferred,
}

/// The reply in `body`, which is not readable as a whole. If its step, attempt and outcome are, the step reports the
/// fault. If it were set aside, the step would wait for its deadline and then repeat ended work.
fn envelope(body: &str, error: &serde_json::Error) -> Option<ToScheduler> {
    let Envelope { r#type: Type::Reply, task_id, step, attempt, outcome } = serde_json::from_str(body).ok()?;
    // For a fault inside a value, this names the place or explains it better.
    let why = json::check(body.as_bytes()).err().map_or_else(|| error.to_string(), |refused| refused.to_string());
    let why = format!("{why}; docs/agents.md says what a reply may contain");
    let unread = format!("the agent's reply contains an unreadable error: {why}");
    let outcome = match outcome {
        Said::Done => Outcome::Garbled { error: why },
        Said::Failed => Outcome::Failed { error: unread },
        Said::Unavailable | Said::Deferred => Outcome::Unavailable { error: unread, retry_after_ms: None },
    };
    Some(ToScheduler::Reply(Reply::new(task_id, &step, attempt, outcome)))
}

fn span(record: &Record, message: &ToScheduler) -> Span {
    let span = |what, order: &Option<String>| Span::message(what, record, message.task_id(), order.as_deref());
    match message {
        ToScheduler::Wake(wake) => span("wake", &wake.traceparent),
        ToScheduler::Reply(reply) => {
            let span = span("reply", &reply.traceparent);
            span.step(&reply.step, reply.attempt);
            span
        }
        ToScheduler::Cancel(_) => span("cancel", &None),
    }
}

fn to_event(message: ToScheduler) -> Event {
    match message {
        ToScheduler::Wake(wake) => Event::from(&wake),
        ToScheduler::Reply(reply) => Event::Reply(reply),
        ToScheduler::Cancel(cancel) => Event::Cancel { by: cancel.by, reason: cancel.reason },
    }
}
