//! Shared by all queue consumers: read each record, set aside unreadable ones, and name the records to redeliver
//! (`ReportBatchItemFailures`).

use crate::telemetry::Chain;
/// The answer that tells the event source which records to redeliver.
pub use aws_lambda_events::event::sqs::SqsBatchResponse as Response;
use serde::de::DeserializeOwned;
use shared::message::{Effect, SetAside};
use shared::ports::Messenger;
use shared::time::SignedDuration;
use std::collections::HashMap;

/// Longest body kept with a message set aside, in bytes of JSON. It leaves room for the reason below SQS's limit.
const MAX_BODY: usize = 900 * 1024;
/// Longest reason, in bytes, because a parser quotes the unexpected, perhaps a whole message.
const MAX_REASON: usize = 1000;

/// The attribute of a message that holds the `traceparent` of the span that sent it.
pub const ATTRIBUTE: &str = "traceparent";

/// The parts of an `SqsEvent` record that handlers need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its id in the queue.
    pub message_id: String,
    /// Name of the queue it came from, after the last `:` of its ARN.
    pub queue: String,
    /// The message.
    pub body: String,
    /// From sending to receipt, delay included; unknown for a redelivered message.
    pub waited: Option<SignedDuration>,
    /// An earlier delivery may have handled it.
    pub is_redelivered: bool,
    /// The `traceparent` of the span that sent it, if spans are created.
    pub sender: Option<String>,
}

/// The attribute with the number of deliveries, this one included.
const RECEIVES: &str = "ApproximateReceiveCount";

/// The records of an event.
#[must_use]
pub fn records(event: aws_lambda_events::event::sqs::SqsEvent) -> Vec<Record> {
    event
        .records
        .into_iter()
        .map(|record| Record {
            message_id: record.message_id.unwrap_or_default(),
            queue: record
                .event_source_arn
                .as_deref()
                .and_then(|arn| arn.rsplit(':').next())
                .unwrap_or_default()
                .to_owned(),
            waited: waited(&record.attributes),
            is_redelivered: record.attributes.get(RECEIVES).is_some_and(|receives| receives != "1"),
            sender: record.message_attributes.get(ATTRIBUTE).and_then(|value| value.string_value.clone()),
            body: record.body.unwrap_or_default(),
        })
        .collect()
}

/// By the queue's own clock. A redelivered message tells how long the queue was before, not now.
fn waited(attributes: &HashMap<String, String>) -> Option<SignedDuration> {
    let number = |name: &str| attributes.get(name)?.parse::<i64>().ok();
    if number(RECEIVES)? != 1 {
        return None;
    }
    let waited_ms = number("ApproximateFirstReceiveTimestamp")?.checked_sub(number("SentTimestamp")?)?;
    Some(SignedDuration::from_millis(waited_ms.max(0)))
}

/// The message in a record.
///
/// # Errors
/// The parser's words, if it is none.
pub fn parse<T: DeserializeOwned>(record: &Record) -> Result<T, String> {
    shared::json::read_own(&record.body).map_err(|e| format!("not a message that this queue accepts: {e}"))
}

/// How many first bytes of `text` fit into `max` bytes once they are escaped in JSON.
fn escaped_prefix(text: &str, max: usize) -> usize {
    let mut escaped = 0;
    let over = text.bytes().position(|byte| {
        escaped += match byte {
            b'"' | b'\\' | b'\n' | b'\r' | b'\t' => 2,
            0..0x20 => 6,
            // The first of three bytes of U+FFFE and U+FFFF, which are escaped as six.
            0xef => 4,
            _ => 1,
        };
        escaped > max
    });
    over.unwrap_or(text.len())
}

/// Sets messages aside, each with its reason, and alerts. A message that cannot be set aside now is redelivered.
pub async fn set_aside(messenger: &dyn Messenger, messages: Vec<(Record, String)>, response: &mut Response) {
    if messages.is_empty() {
        return;
    }
    let ids: Vec<String> = messages.iter().map(|(record, _)| record.message_id.clone()).collect();
    let effects = messages.into_iter().map(|(record, reason)| {
        // Not the reason, which may quote the message.
        tracing::error!(queue = %record.queue, message.id = %record.message_id, bytes = record.body.len(), "set a message aside; the reason is stored with it");
        let kept = escaped_prefix(&record.body, MAX_BODY);
        Effect::SetAside(Box::new(SetAside {
            queue: record.queue,
            message_id: record.message_id,
            reason: shared::history::shorten(&reason, MAX_REASON),
            body: shared::history::shorten(&record.body, kept),
            is_cut: kept < record.body.len(),
        }))
    });
    for (id, sent) in ids.iter().zip(messenger.send(effects.collect()).await) {
        if let Err(error) = sent {
            tracing::warn!(message.id = %id, error = %Chain(&error), "could not set a message aside; it will be redelivered");
            response.add_failure(id);
        }
    }
}
