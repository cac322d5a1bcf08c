//! The Messenger on SQS and EventBridge: everything that is to be sent, in as few requests as the services allow.

use crate::clients::Clients;
use crate::config::{Config, queue};
use crate::state_store::unavailable;
use crate::telemetry::Chain;
use aws_sdk_eventbridge::types::PutEventsRequestEntry;
use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures::future::join_all;
use serde_json::json;
use shared::message::{Effect, ToScheduler};
use shared::ports::{Error, Messenger};
use shared::time::SignedDuration;

/// Entries in one request, of SQS and of EventBridge.
const BATCH: usize = 10;
/// SQS's limit for one message and for one request, in bytes.
const MAX_BYTES: usize = 1024 * 1024;
/// Longest text of an event's detail; EventBridge takes 1 MiB for a whole request.
const MAX_DETAIL: usize = 64 * 1024;
/// `source` of every event of ours.
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
    sqs: aws_sdk_sqs::Client,
    eventbridge: aws_sdk_eventbridge::Client,
    config: Config,
}

/// A message on its way: which effect it belongs to, and what is sent.
struct Parcel {
    owner: usize,
    url: String,
    body: String,
    delay_s: i32,
    /// Fair queues: one tenant's backlog does not hold up another's.
    group: Option<String>,
}

struct Event {
    owner: usize,
    detail_type: &'static str,
    detail: String,
}

impl SqsMessenger {
    /// Sends to the queues and the bus that `config` names.
    #[must_use]
    pub fn new(clients: &Clients, config: &Config) -> Self {
        Self { sqs: clients.sqs.clone(), eventbridge: clients.eventbridge.clone(), config: config.clone() }
    }

    fn address(&self, owner: usize, effect: &Effect, parcels: &mut Vec<Parcel>, events: &mut Vec<Event>) {
        let mut parcel = |queue: &str, body: String, delay_s: i32, group: Option<String>| {
            parcels.push(Parcel { owner, url: self.config.queue_url(queue), body, delay_s, group });
        };
        match effect {
            Effect::Request(request) => {
                parcel(&self.config.queue_of(request), json_of(request), 0, Some(group_of(&request.tenant)));
            }
            Effect::Wake(wake, delay) => {
                let queue = self.config.queue_of_wake(wake.priority);
                let body = json_of(&ToScheduler::Wake(wake.clone()));
                parcel(&queue, body, whole_seconds(*delay), Some(group_of(&wake.tenant)));
            }
            Effect::Reply(reply) => {
                let body = json_of(&ToScheduler::Reply((**reply).clone()));
                parcel(queue::REPLIES, body, 0, Some(group_of(&reply.tenant)));
            }
            Effect::Notice(notice) => {
                parcel(&queue::notices(&notice.queue), json_of(notice), 0, Some(group_of(&notice.tenant)));
            }
            Effect::Alert(alert) => events.push(Event { owner, detail_type: ORDER_ALERT, detail: json_of(alert) }),
            Effect::Strained(agent) => events.push(Event { owner, detail_type: AGENT_ALERT, detail: json_of(agent) }),
            Effect::SetAside(message) => {
                parcel(queue::SET_ASIDE, json_of(message), 0, None);
                let detail = json!({
                    "queue": message.queue,
                    "message_id": message.message_id,
                    "reason": message.reason,
                    "bytes": message.body.len(),
                    "runbook": "docs/runbook.md#message-set-aside",
                });
                events.push(Event { owner, detail_type: MESSAGE_ALERT, detail: detail.to_string() });
            }
        }
    }

    async fn send_batch(&self, url: &str, batch: &[Parcel]) -> Vec<(usize, Result<(), Error>)> {
        let entries = batch.iter().enumerate().map(|(n, parcel)| {
            SendMessageBatchRequestEntry::builder()
                .id(n.to_string())
                .message_body(&parcel.body)
                .set_delay_seconds((parcel.delay_s > 0).then_some(parcel.delay_s))
                .set_message_group_id(parcel.group.clone())
                .build()
                .expect("id and body are set")
        });
        let answer = self.sqs.send_message_batch().queue_url(url).set_entries(Some(entries.collect())).send().await;
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

    async fn put_events(&self, batch: &[Event]) -> Vec<(usize, Result<(), Error>)> {
        let bus = &self.config.event_bus;
        let entries = batch.iter().map(|event| {
            PutEventsRequestEntry::builder()
                .event_bus_name(bus)
                .source(EVENT_SOURCE)
                .detail_type(event.detail_type)
                .detail(&event.detail)
                .build()
        });
        match self.eventbridge.put_events().set_entries(Some(entries.collect())).send().await {
            Ok(answer) => {
                let result = |n: usize| match answer.entries().get(n).and_then(|e| e.error_code()) {
                    None => Ok(()),
                    Some(code) => Err(refused(bus, code)),
                };
                batch.iter().enumerate().map(|(n, event)| (event.owner, result(n))).collect()
            }
            Err(error) => {
                let error = Chain(&unavailable(bus, error)).to_string();
                batch.iter().map(|event| (event.owner, Err(refused(bus, &error)))).collect()
            }
        }
    }
}

impl Messenger for SqsMessenger {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        let (mut parcels, mut events) = (Vec::new(), Vec::new());
        for (owner, effect) in effects.iter().enumerate() {
            self.address(owner, effect, &mut parcels, &mut events);
        }
        let mut results: Vec<Result<(), Error>> = effects.iter().map(|_| Ok(())).collect();
        for large in parcels.extract_if(.., |p| p.body.len() > MAX_BYTES) {
            let what = format!("message to {}", large.url);
            results[large.owner] = Err(Error::TooLarge { what, bytes: large.body.len(), limit: MAX_BYTES });
        }
        for large in events.extract_if(.., |e| e.detail.len() > MAX_DETAIL) {
            let what = format!("event `{}`", large.detail_type);
            results[large.owner] = Err(Error::TooLarge { what, bytes: large.detail.len(), limit: MAX_DETAIL });
        }
        let batches = into_batches(parcels);
        let sends = join_all(batches.iter().map(|batch| self.send_batch(&batch[0].url, batch)));
        let puts = join_all(events.chunks(BATCH).map(|batch| self.put_events(batch)));
        let (sent, put) = futures::future::join(sends, puts).await;
        for (owner, result) in sent.into_iter().chain(put).flatten() {
            if result.is_err() {
                results[owner] = result;
            }
        }
        results
    }
}

/// Parcels for the same queue together, at most ten and at most 1 MiB at a time.
fn into_batches(mut parcels: Vec<Parcel>) -> Vec<Vec<Parcel>> {
    parcels.sort_by(|a, b| a.url.cmp(&b.url));
    let mut batches: Vec<Vec<Parcel>> = Vec::new();
    let mut bytes = 0;
    for parcel in parcels {
        let fits = batches
            .last()
            .is_some_and(|b| b.len() < BATCH && b[0].url == parcel.url && bytes + parcel.body.len() <= MAX_BYTES);
        if fits {
            bytes += parcel.body.len();
            batches.last_mut().expect("there is one").push(parcel);
        } else {
            bytes = parcel.body.len();
            batches.push(vec![parcel]);
        }
    }
    batches
}

/// SQS takes up to 128 letters, digits and marks as a group; a tenant's name may hold others.
fn group_of(tenant: &str) -> String {
    let good = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let group: String = tenant.chars().take(128).map(good).collect();
    if group.is_empty() { "_".into() } else { group }
}

/// SQS delays whole seconds; a wait is never shortened.
fn whole_seconds(delay: SignedDuration) -> i32 {
    let seconds = delay.as_secs() + i64::from(delay.subsec_nanos() > 0);
    i32::try_from(seconds.clamp(0, 900)).expect("at most 900")
}

fn json_of<T: serde::Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("messages have only string keys")
}

fn refused(what: &str, why: &str) -> Error {
    Error::Unavailable { what: what.to_owned(), source: why.to_owned().into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel(url: &str, bytes: usize) -> Parcel {
        Parcel { owner: 0, url: url.into(), body: "x".repeat(bytes), delay_s: 0, group: None }
    }

    #[test]
    fn batches_hold_one_queue_ten_entries_and_one_mebibyte() {
        let mut parcels: Vec<_> = (0..23).map(|_| parcel("a", 10)).collect();
        parcels.extend([parcel("b", 600_000), parcel("b", 600_000), parcel("b", 10)]);
        let sizes: Vec<_> = into_batches(parcels).iter().map(Vec::len).collect();
        assert_eq!(sizes, [10, 10, 3, 1, 2]);
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
