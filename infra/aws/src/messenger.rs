//! The Messenger on SQS and EventBridge: sends everything in as few requests as the services allow.

use crate::batch::ATTRIBUTE;
use crate::clients::Clients;
use crate::config::{Config, queue};
use crate::sdk_error::unavailable;
use crate::sent::{Caller, Sent};
use crate::telemetry::Chain;
use crate::traces;
use aws_sdk_eventbridge::operation::put_events::PutEventsInput;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use aws_sdk_sqs::operation::send_message_batch::SendMessageBatchInput;
use aws_sdk_sqs::types::{MessageAttributeValue, SendMessageBatchRequestEntry};
use futures::future::join_all;
use serde_json::json;
use shared::json;
use shared::message::{Effect, ToScheduler};
use shared::ports::{Error, Messenger, async_trait};
use shared::time::SignedDuration;
use std::collections::HashMap;

/// Maximum number of entries in one request of SQS or EventBridge.
const BATCH: usize = 10;
/// SQS's limit for one message and for one request, in bytes.
const MAX_BYTES: usize = 1024 * 1024;
/// Bytes of that limit for the sender's attribute: its name, its type and 55 characters.
const SENDER_BYTES: usize = 11 + 6 + 55;
/// Longest text of an event's detail.
const MAX_DETAIL: usize = 64 * 1024;
/// Maximum number of bytes of events in one request. EventBridge's reference says "less than 256 KB"; the newest page
/// of its quotas says 1 MB.
const MAX_EVENTS: usize = 256_000;
/// Bytes of an event besides its texts: its time.
const TIME_BYTES: usize = 14;
/// `source` of all our events.
pub const EVENT_SOURCE: &str = "stepwarden";
/// `detail-type` of an operator alert.
pub const ORDER_ALERT: &str = "Order needs attention";
/// `detail-type` of the alert about an agent in trouble.
pub const AGENT_ALERT: &str = "Agent is strained";
/// `detail-type` of the alert about a message that cannot be handled.
pub const MESSAGE_ALERT: &str = "Message set aside";

/// Sends to the queues under one prefix and to one bus.
#[derive(Clone, Debug)]
pub struct SqsMessenger {
    sqs: Caller<aws_sdk_sqs::Client>,
    eventbridge: Caller<aws_sdk_eventbridge::Client>,
    config: Config,
}

/// A message for a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The queue's name without the prefix.
    pub queue: String,
    /// The message.
    pub body: String,
    /// Delay until it is visible, in seconds.
    pub delay_s: i32,
    /// For fair queues: no tenant's backlog holds up another's.
    pub group: Option<String>,
    /// The `traceparent` of the span that sends it, if spans are created.
    pub sender: Option<String>,
}

/// An event for the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its `detail-type`.
    pub detail_type: &'static str,
    /// Its detail, JSON.
    pub detail: String,
}

/// An effect as a message, an event, or both.
///
/// # Errors
/// [`Error::TooLarge`] beyond what SQS or EventBridge accepts.
pub fn address(effect: &Effect, config: &Config) -> Result<(Option<Outgoing>, Option<Event>), Error> {
    let message = |queue: String, body: String, tenant: Option<&str>| match body.len() {
        bytes if bytes > MAX_BYTES => {
            Err(Error::TooLarge { what: format!("message to {queue}"), bytes, limit: MAX_BYTES })
        }
        bytes => {
            // An attribute only for traces must not make a message too long.
            let sender = traces::sender(effect).filter(|_| bytes + SENDER_BYTES <= MAX_BYTES);
            Ok(Outgoing { queue, body, delay_s: 0, group: tenant.map(group_of), sender })
        }
    };
    let event = |detail_type: &'static str, detail: String| match detail.len() {
        bytes if bytes > MAX_DETAIL => {
            Err(Error::TooLarge { what: format!("event `{detail_type}`"), bytes, limit: MAX_DETAIL })
        }
        _ => Ok(Event { detail_type, detail }),
    };
    let (message, event) = match effect {
        Effect::Request(request) => {
            let delay_s = i32::try_from(request.delay_ms.div_ceil(1000)).unwrap_or(i32::MAX);
            let sent = message(config.queue_of(request), json::write(request), Some(&request.tenant))?;
            (Some(Outgoing { delay_s, ..sent }), None)
        }
        Effect::Wake(wake, delay) => {
            let body = json::write(&ToScheduler::Wake(wake.clone()));
            let wake = message(config.queue_of_wake(wake.priority), body, Some(&wake.tenant))?;
            (Some(Outgoing { delay_s: whole_seconds(*delay), ..wake }), None)
        }
        Effect::Reply(reply) => {
            let body = json::write(&ToScheduler::Reply((**reply).clone()));
            (Some(message(queue::REPLIES.into(), body, Some(&reply.tenant))?), None)
        }
        Effect::Notice(notice) => {
            (Some(message(queue::notices(&notice.queue), json::write(notice), Some(&notice.tenant))?), None)
        }
        Effect::Alert(alert) => (None, Some(event(ORDER_ALERT, json::write(alert))?)),
        Effect::Strained(agent) => (None, Some(event(AGENT_ALERT, json::write(agent))?)),
        // The engine writes it to the state store.
        Effect::Child(_) => (None, None),
        Effect::SetAside(aside) => {
            let detail = json!({
                "queue": aside.queue,
                "message_id": aside.message_id,
                "reason": aside.reason,
                "bytes": aside.body.len(),
                "runbook": "docs/runbook.md#message-set-aside",
            });
            let event = event(MESSAGE_ALERT, json::write(&detail))?;
            (Some(message(queue::SET_ASIDE.into(), json::write(aside), None)?), Some(event))
        }
    };
    Ok((message, event))
}

/// A message, and which effect it belongs to.
struct Parcel {
    owner: usize,
    message: Outgoing,
}

impl SqsMessenger {
    /// A messenger for the queues and the bus that `config` names.
    #[must_use]
    pub fn new(clients: &Clients, config: &Config) -> Self {
        Self { sqs: clients.sqs.clone(), eventbridge: clients.eventbridge.clone(), config: config.clone() }
    }

    async fn send_batch(&self, batch: &[Parcel]) -> Vec<(usize, Result<(), Error>)> {
        let url = &self.config.queue_url(&batch[0].message.queue);
        let entries = batch.iter().enumerate().map(|(n, Parcel { message, .. })| {
            SendMessageBatchRequestEntry::builder()
                .id(n.to_string())
                .message_body(&message.body)
                .set_delay_seconds((message.delay_s > 0).then_some(message.delay_s))
                .set_message_group_id(message.group.clone())
                .set_message_attributes(message.sender.as_deref().map(attributes))
                .build()
                .expect("id and body are set")
        });
        let answer =
            SendMessageBatchInput::builder().queue_url(url).set_entries(Some(entries.collect())).sent(&self.sqs).await;
        match answer {
            Ok(answer) => {
                let failed = |n: usize| answer.failed().iter().find(|f| f.id() == n.to_string());
                let result = |n: usize| match failed(n) {
                    None => Ok(()),
                    Some(f) => Err(refused(url, &format!("{}: {}", f.code(), f.message().unwrap_or_default()))),
                };
                batch.iter().enumerate().map(|(n, parcel)| (parcel.owner, result(n))).collect()
            }
            Err(error) => {
                let error = Chain(&unavailable(url, error)).to_string();
                batch.iter().map(|parcel| (parcel.owner, Err(refused(url, &error)))).collect()
            }
        }
    }

    async fn put_events(&self, batch: &[(usize, Event)]) -> Vec<(usize, Result<(), Error>)> {
        let bus = &self.config.event_bus;
        let entries = batch.iter().map(|(_, event)| {
            PutEventsRequestEntry::builder()
                .event_bus_name(bus)
                .source(EVENT_SOURCE)
                .detail_type(event.detail_type)
                .detail(&event.detail)
                .build()
        });
        match PutEventsInput::builder().set_entries(Some(entries.collect())).sent(&self.eventbridge).await {
            Ok(answer) => {
                let result = |n: usize| match answer.entries().get(n).and_then(|e| e.error_code()) {
                    None => Ok(()),
                    Some(code) => Err(refused(bus, code)),
                };
                batch.iter().enumerate().map(|(n, (owner, _))| (*owner, result(n))).collect()
            }
            Err(error) => {
                let error = Chain(&unavailable(bus, error)).to_string();
                batch.iter().map(|(owner, _)| (*owner, Err(refused(bus, &error)))).collect()
            }
        }
    }
}

#[async_trait]
impl Messenger for SqsMessenger {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        let (mut parcels, mut events) = (Vec::new(), Vec::new());
        let mut results: Vec<Result<(), Error>> = Vec::with_capacity(effects.len());
        for (owner, effect) in effects.iter().enumerate() {
            results.push(address(effect, &self.config).map(|(message, event)| {
                parcels.extend(message.map(|message| Parcel { owner, message }));
                events.extend(event.map(|event| (owner, event)));
            }));
        }
        let batches = into_batches(parcels);
        let sends = join_all(batches.iter().map(|batch| self.send_batch(batch)));
        let requests = into_requests(events);
        let puts = join_all(requests.iter().map(|batch| self.put_events(batch)));
        let (sent, put) = futures::future::join(sends, puts).await;
        for (owner, result) in sent.into_iter().chain(put).flatten() {
            if result.is_err() {
                results[owner] = result;
            }
        }
        results
    }
}

fn attributes(sender: &str) -> HashMap<String, MessageAttributeValue> {
    let value = MessageAttributeValue::builder().data_type("String").string_value(sender);
    HashMap::from([(ATTRIBUTE.to_owned(), value.build().expect("its type is set"))])
}

/// Parcels for the same queue together, at most ten and at most 1 MiB at a time.
fn into_batches(mut parcels: Vec<Parcel>) -> Vec<Vec<Parcel>> {
    parcels.sort_by(|a, b| a.message.queue.cmp(&b.message.queue));
    let bytes =
        |Parcel { message, .. }: &Parcel| message.body.len() + message.sender.as_ref().map_or(0, |_| SENDER_BYTES);
    chunks(parcels, MAX_BYTES, bytes, |one, other| one.message.queue == other.message.queue)
}

/// Events in order, at most ten and less than 256 KB at a time.
fn into_requests(events: Vec<(usize, Event)>) -> Vec<Vec<(usize, Event)>> {
    let bytes =
        |(_, event): &(usize, Event)| TIME_BYTES + EVENT_SOURCE.len() + event.detail_type.len() + event.detail.len();
    chunks(events, MAX_EVENTS, bytes, |_, _| true)
}

/// `all` in order, in chunks of at most [`BATCH`] items and `most` bytes that may be `together`.
fn chunks<T>(all: Vec<T>, most: usize, bytes: impl Fn(&T) -> usize, together: impl Fn(&T, &T) -> bool) -> Vec<Vec<T>> {
    let mut chunks: Vec<Vec<T>> = Vec::new();
    let mut used = 0;
    for one in all {
        let own = bytes(&one);
        let fits = |chunk: &&mut Vec<T>| chunk.len() < BATCH && used + own <= most && together(&chunk[0], &one);
        match chunks.last_mut().filter(fits) {
            Some(chunk) => {
                used += own;
                chunk.push(one);
            }
            None => {
                used = own;
                chunks.push(vec![one]);
            }
        }
    }
    chunks
}

/// SQS accepts up to 128 letters, digits and marks as a group; a tenant's name may contain others.
fn group_of(tenant: &str) -> String {
    let good = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let group: String = tenant.chars().take(128).map(good).collect();
    if group.is_empty() { "_".into() } else { group }
}

/// SQS delays whole seconds, so waits are rounded up.
fn whole_seconds(delay: SignedDuration) -> i32 {
    let seconds = delay.as_secs() + i64::from(delay.subsec_nanos() > 0);
    i32::try_from(seconds.clamp(0, 900)).expect("at most 900")
}

fn refused(what: &str, why: &str) -> Error {
    Error::Unavailable { what: what.to_owned(), source: why.to_owned().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(queue: &str, bytes: usize) -> Parcel {
        let message = Outgoing { queue: queue.into(), body: "x".repeat(bytes), delay_s: 0, group: None, sender: None };
        Parcel { owner: 0, message }
    }

    #[test]
    fn batches_hold_one_queue_ten_entries_and_one_mebibyte() {
        let mut parcels: Vec<_> = (0..23).map(|_| parcel("a", 10)).collect();
        parcels.extend([parcel("b", 600_000), parcel("b", 600_000), parcel("b", 10)]);
        let sizes: Vec<_> = into_batches(parcels).iter().map(Vec::len).collect();
        assert_eq!(sizes, [10, 10, 3, 1, 2]);
    }

    // A request beyond the limit is refused with every alert in it.
    #[test]
    fn events_go_ten_and_256_kilobytes_at_a_time() {
        let event = |bytes| Event { detail_type: ORDER_ALERT, detail: "x".repeat(bytes) };
        let sizes = |details: &[usize]| -> Vec<usize> {
            let requests = into_requests(details.iter().map(|bytes| event(*bytes)).enumerate().collect());
            let owners: Vec<usize> = requests.iter().flatten().map(|(owner, _)| *owner).collect();
            assert_eq!(owners, (0..details.len()).collect::<Vec<_>>(), "each once, in order");
            for request in &requests {
                assert!(request.iter().map(|(_, e)| e.detail.len()).sum::<usize>() < 256_000);
            }
            requests.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&[10; 23]), [10, 10, 3]);
        assert_eq!(sizes(&[MAX_DETAIL; 10]), [3, 3, 3, 1]);
        // With everything besides the detail, they have 262,144 bytes; the limit is lower.
        let most = 64 * 1024 - TIME_BYTES - EVENT_SOURCE.len() - ORDER_ALERT.len();
        assert_eq!(sizes(&[most; 4]), [3, 1]);
    }

    #[test]
    fn a_delay_is_rounded_up_to_whole_seconds() {
        assert_eq!(whole_seconds(SignedDuration::ZERO), 0);
        assert_eq!(whole_seconds(SignedDuration::from_millis(1)), 1);
        assert_eq!(whole_seconds(SignedDuration::from_secs(2000)), 900);
    }

    // J2: a tenant's name is a valid message group.
    #[test]
    fn a_group_has_only_what_sqs_takes() {
        assert_eq!(group_of("Müller & Co"), "M_ller___Co");
        assert_eq!(group_of(""), "_");
        assert_eq!(group_of(&"x".repeat(300)).len(), 128);
    }
}
