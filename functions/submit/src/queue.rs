//! Orders, and events for them, by message: the same as over HTTP, with the idempotency key in the message.

use crate::Submit;
use crate::events;
use crate::http::no_such_order;
use crate::problem::Problem;
use crate::submission::{self, News, Submission};
use aws_lambda_events::event::sqs::SqsEvent;
use edge::http::{self, idempotency_key};
use futures::future::join_all;
use serde::Deserialize;
use serde_json::{Map, Value};
use shared::order::Id;
use stepwarden_aws::BoxFuture;
use stepwarden_aws::batch::{self, Record, Response};
use stepwarden_aws::traces::{self, Senders, Span};

/// A message on the submission queue: a submission and its key.
#[derive(Deserialize)]
struct Message {
    idempotency_key: Option<String>,
    traceparent: Option<Value>,
    #[serde(flatten)]
    submission: Map<String, Value>,
}

/// An event on the submission queue. The field `event` tells it from a submission.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventMessage {
    /// The event's name.
    pub event: String,
    /// The order.
    pub order_id: String,
    /// Its key; sent again under it, the event counts once.
    pub idempotency_key: String,
    /// Its data.
    #[serde(default)]
    pub data: Map<String, Value>,
}

/// Handles one batch. An unacceptable message is set aside with the reason; a temporary failure is redelivered.
pub fn handler(submit: &Submit, event: SqsEvent) -> BoxFuture<'_, Response> {
    Box::pin(async move {
        let mut response = Response::default();
        let (mut aside, mut news, mut ids, mut senders) = (Vec::new(), Vec::new(), Vec::new(), Senders::new());
        let (events, records): (Vec<_>, Vec<_>) = batch::records(event).into_iter().partition(is_event);
        // Read once for all. If it fails, each asks again.
        let _ = submit.engine.pointers().await;
        let answers = join_all(records.iter().map(|record| Box::pin(accept(submit, record)))).await;
        for (record, answer) in records.into_iter().zip(answers) {
            match answer {
                Ok((accepted, traceparent)) => {
                    senders.extend(traceparent.map(|traceparent| (accepted.id.clone(), None, traceparent)));
                    news.push(accepted);
                    ids.push(record.message_id.clone());
                }
                // Only an outage is worth a redelivery; a damaged record stays damaged.
                Err(problem) if problem.code == "unavailable" => response.add_failure(&record.message_id),
                Err(problem) => aside.push((record, why(&problem))),
            }
        }
        for n in traces::sending(senders, submit.announce(news)).await {
            response.add_failure(&ids[n]);
        }
        // After the orders, which they may be for; one by one, because events of one order would race.
        for record in events {
            match deliver(submit, &record.body).await {
                Ok(()) => {}
                Err(problem) if problem.code == "unavailable" || is_soon(&problem) => {
                    response.add_failure(&record.message_id)
                }
                // Its order may be in this queue and come later.
                Err(problem) if problem.code == "no_such_order" && !record.is_redelivered => {
                    response.add_failure(&record.message_id);
                }
                Err(problem) => aside.push((record, why(&problem))),
            }
        }
        batch::set_aside(&*submit.engine.messenger, aside, &mut response).await;
        response
    })
}

fn why(problem: &Problem) -> String {
    let field = problem.field.as_ref().map(|field| format!("{field}: ")).unwrap_or_default();
    format!("{}: {field}{}", problem.code, problem.detail)
}

/// Whether an event only has to wait until the steps that run again are undone.
fn is_soon(problem: &Problem) -> bool {
    problem.code == "event_early" && problem.retry_after_s.is_some()
}

fn is_event(record: &Record) -> bool {
    let has_event = |message: Map<String, Value>| message.contains_key("event");
    record.body.contains("\"event\"") && serde_json::from_str(&record.body).is_ok_and(has_event)
}

/// Gives an order of this queue's tenant the event in a message. It has no known person.
async fn deliver(submit: &Submit, body: &str) -> Result<(), Problem> {
    let EventMessage { event, order_id, idempotency_key, data } = parse_event(body)?;
    let none = || no_such_order(&order_id);
    let id = Id::parse(&order_id).ok_or_else(none)?;
    let task = submit.engine.store.load(&id).await.map_err(|e| submission::unavailable(&e))?.ok_or_else(none)?;
    if task.tenant != submit.queue_tenant {
        return Err(none());
    }
    submit.deliver(&id, &event, &idempotency_key, Value::Object(data), None).await.map(|_| ())
}

/// The event in the body of a message.
///
/// # Errors
/// Not a JSON object, an invalid key, or the first invalid field.
pub fn parse_event(body: &str) -> Result<EventMessage, Problem> {
    let mut message: EventMessage = http::read(body.as_bytes())?;
    idempotency_key(Some(&message.idempotency_key), "event")?;
    message.data = events::checked(message.data)?;
    Ok(message)
}

/// Accepts an order; what to announce, and the sender.
async fn accept(submit: &Submit, record: &Record) -> Result<(News, Option<String>), Problem> {
    let parsed = parse(&record.body);
    let sent = parsed.as_ref().ok().and_then(|(_, submission)| submission.traceparent.as_deref());
    let span = Span::submission(record, sent);
    let accepted = async {
        let (key, mut submission) = parsed?;
        let sender = || record.sender.as_deref().and_then(shared::trace::traceparent);
        submission.traceparent = span.traceparent().or(submission.traceparent).or_else(sender);
        span.order(&Id::derive(&submit.queue_tenant, &key), submission.traceparent.as_deref());
        submit.accept_by_message(&submit.queue_tenant, &key, submission).await
    };
    match span.around(accepted).await {
        Ok(news) => Ok((news, span.traceparent())),
        Err(problem) => {
            span.fail(problem.code);
            Err(problem)
        }
    }
}

/// The idempotency key and the submission in the body of a message.
///
/// # Errors
/// Not a JSON object, no key, or the first invalid field.
pub fn parse(body: &str) -> Result<(String, Submission), Problem> {
    let message: Message = http::read(body.as_bytes())?;
    let key = idempotency_key(message.idempotency_key.as_deref(), "order")?.to_owned();
    let mut submission: Submission = submission::parse(Value::Object(message.submission).to_string().as_bytes())?;
    submission.traceparent = message.traceparent.as_ref().and_then(Value::as_str).and_then(shared::trace::traceparent);
    Ok((key, submission))
}
