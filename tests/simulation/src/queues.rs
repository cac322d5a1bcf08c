//! Queues like SQS's: at-least-once delivery in no order, a visibility timeout, delays, and a dead-letter queue after a
//! number of receives. They decide nothing; [`crate::port`] decides what goes wrong.

use aws_lambda_events::event::sqs::SqsEvent;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stepwarden_aws::schema::MAX_RECEIVES;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

/// Maximum number of messages in a batch of SQS.
const BATCH: usize = 10;
/// Longest wait of one receive at an empty queue.
const LONG_POLL: Duration = Duration::from_secs(3600);

/// A copy of a message.
#[derive(Clone, Debug)]
pub struct Message {
    /// Its id in the queue; a message delivered twice has one id.
    pub id: u64,
    copy: u64,
    pub body: String,
    pub label: String,
    sent: Instant,
    visible: Instant,
    receives: u32,
    first_received: Option<Instant>,
}

#[derive(Debug, Default)]
struct Queue {
    messages: Vec<Message>,
    dead: Vec<Message>,
    arrival: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    queues: BTreeMap<String, Queue>,
    next: u64,
}

#[derive(Debug)]
pub struct Queues {
    names: BTreeSet<String>,
    state: Mutex<State>,
    began: Instant,
    visibility: Duration,
}

impl Queues {
    pub fn new(names: BTreeSet<String>, began: Instant, visibility: Duration) -> Self {
        Self { names, state: Mutex::default(), began, visibility }
    }

    pub fn exists(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    fn with<T>(&self, name: &str, act: impl FnOnce(&mut Queue, &mut u64) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let State { queues, next } = &mut *state;
        if !queues.contains_key(name) {
            queues.insert(name.to_owned(), Queue::default());
        }
        act(queues.get_mut(name).expect("it is there now"), next)
    }

    /// Takes a message, with a copy that becomes visible after each of these delays; without any it is never delivered.
    pub fn send(&self, name: &str, body: &str, label: &str, delays: &[Duration]) {
        let now = Instant::now();
        self.with(name, |queue, next| {
            *next += 1;
            let id = *next;
            for delay in delays {
                *next += 1;
                queue.messages.push(Message {
                    id,
                    copy: *next,
                    body: body.to_owned(),
                    label: label.to_owned(),
                    sent: now,
                    visible: now + *delay,
                    receives: 0,
                    first_received: None,
                });
            }
            queue.arrival.notify_waiters();
        });
    }

    /// Up to ten messages, once there are any. They stay invisible for the visibility timeout.
    pub async fn receive(&self, name: &str) -> Vec<Message> {
        loop {
            let arrival = self.with(name, |queue, _| Arc::clone(&queue.arrival));
            let arrival = arrival.notified();
            tokio::pin!(arrival);
            arrival.as_mut().enable();
            let (messages, next) = self.take(name);
            if !messages.is_empty() {
                return messages;
            }
            let next = next.unwrap_or_else(|| Instant::now() + LONG_POLL);
            let _ = timeout_at(next, arrival).await;
        }
    }

    /// What is visible now, and when more will be.
    fn take(&self, name: &str) -> (Vec<Message>, Option<Instant>) {
        let now = Instant::now();
        let visibility = self.visibility;
        self.with(name, |queue, _| {
            queue.messages.sort_by_key(|m| (m.visible, m.copy));
            let mut taken = Vec::new();
            let mut n = 0;
            while n < queue.messages.len() && taken.len() < BATCH && queue.messages[n].visible <= now {
                if queue.messages[n].receives >= MAX_RECEIVES {
                    let dead = queue.messages.remove(n);
                    queue.dead.push(dead);
                    continue;
                }
                let message = &mut queue.messages[n];
                message.receives += 1;
                message.visible = now + visibility;
                message.first_received.get_or_insert(now);
                taken.push(message.clone());
                n += 1;
            }
            (taken, queue.messages.iter().map(|m| m.visible).filter(|v| *v > now).min())
        })
    }

    /// Deletes a message that was received; if it was received again since, nothing is deleted.
    pub fn delete(&self, name: &str, received: &Message) {
        let is_it = |m: &Message| (m.copy, m.receives) == (received.copy, received.receives);
        self.with(name, |queue, _| queue.messages.retain(|m| !is_it(m)));
    }

    /// Moves dead letters back, as an operator does once the trouble is over; returns their number.
    pub fn redrive(&self) -> usize {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut count = 0;
        for queue in state.queues.values_mut() {
            for mut message in std::mem::take(&mut queue.dead) {
                count += 1;
                message.receives = 0;
                message.first_received = None;
                message.visible = Instant::now();
                queue.messages.push(message);
            }
            queue.arrival.notify_waiters();
        }
        count
    }

    /// Number of messages that wait or are in progress, and of dead letters.
    pub fn left(&self) -> (usize, usize) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let queues = || state.queues.values();
        (queues().map(|q| q.messages.len()).sum(), queues().map(|q| q.dead.len()).sum())
    }

    pub fn dead(&self) -> Vec<String> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let all = state.queues.iter().flat_map(|(name, q)| q.dead.iter().map(move |m| format!("{name}: {}", m.label)));
        all.collect()
    }

    /// The batch as Lambda receives it.
    pub fn event(&self, name: &str, messages: &[Message]) -> SqsEvent {
        // Any epoch will do: only differences matter.
        let ms = |at: Instant| (at - self.began).as_millis().to_string();
        let records: Vec<_> = messages
            .iter()
            .map(|message| {
                json!({
                    "messageId": message.id.to_string(),
                    "receiptHandle": format!("{}-{}", message.copy, message.receives),
                    "body": message.body,
                    "attributes": {
                        "ApproximateReceiveCount": message.receives.to_string(),
                        "ApproximateFirstReceiveTimestamp": ms(message.first_received.expect("it was received")),
                        "SentTimestamp": ms(message.sent),
                    },
                    "messageAttributes": {},
                    "eventSource": "aws:sqs",
                    "eventSourceARN": format!("arn:aws:sqs:local:000000000000:{name}"),
                    "awsRegion": "local",
                })
            })
            .collect();
        serde_json::from_value(json!({ "Records": records })).expect("an SqsEvent")
    }
}

pub(crate) async fn wait_ms(ms: u64) {
    sleep_until(Instant::now() + Duration::from_millis(ms)).await;
}
