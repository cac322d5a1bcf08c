//! SQS: standard queues, in memory for dispatch and in the store for keeping.
//!
//! Decides which message is delivered when; `store` keeps the messages and `dispatch` handles HTTP. Limits are AWS's,
//! except: no FIFO queues, no limit on how often `PurgeQueue` is called.
//!
//! The list of operations is frozen: [`OPERATIONS`] holds what somebody in this repository calls (the functions, the
//! command line, the tests, and the tour's `aws sqs list-queues`). Every other operation of SQS gets
//! UnsupportedOperation. Add an operation together with its first caller.

mod admin;
mod attributes;
mod backlog;
pub(crate) mod consumers;
mod error;
mod fair;
mod message;
mod move_task;
mod queue;
mod receipt;
mod receive;
mod send;
mod settle;
mod wire;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use serde::de::DeserializeOwned;
use uuid::Uuid;

pub(crate) use backlog::IN_FLIGHT_MAX;
pub(crate) use error::Error;
pub(crate) use message::MESSAGE_MAX_BYTES;
pub use queue::QueueStat;

use crate::answer::Answer;
use crate::clock::Clock;
use crate::counts::Counters;
use crate::dispatch::Caller;
use crate::store::{Lazy, Loaded, Store};
use backlog::Entry;
use consumers::Consumers;
use queue::Queue;

/// AWS, "ReceiveMessage". Seconds.
pub(crate) const WAIT_MAX_S: i64 = 20;
/// AWS, "SendMessage". Seconds.
pub(crate) const DELAY_MAX_S: i64 = 900;
/// AWS, "ChangeMessageVisibility": 12 hours. Seconds.
pub(crate) const VISIBILITY_MAX_S: i64 = 43_200;
/// AWS, "Amazon SQS message quotas": entries of a batch, messages of a receive.
pub(crate) const BATCH_MAX: usize = 10;

/// Milliseconds after a crash during which each receive is stored before its messages are delivered, because one of the
/// messages may be the cause. At other times this is left out, because it costs a commit for each receive.
const CAREFUL_MS: i64 = 600_000;

/// All operations that `call` knows; see above.
pub(crate) const OPERATIONS: [&str; 15] = [
    "SendMessage",
    "SendMessageBatch",
    "ReceiveMessage",
    "DeleteMessage",
    "DeleteMessageBatch",
    "ChangeMessageVisibility",
    "ChangeMessageVisibilityBatch",
    "CreateQueue",
    "DeleteQueue",
    "PurgeQueue",
    "GetQueueUrl",
    "ListQueues",
    "GetQueueAttributes",
    "SetQueueAttributes",
    "StartMessageMoveTask",
];

/// The account and region of every queue. AWS SDKs do not check them.
const ARN_PREFIX: &str = "arn:aws:sqs:us-east-1:000000000000:";
const ACCOUNT: &str = "000000000000";

pub(crate) struct Sqs {
    queues: Arc<RwLock<BTreeMap<String, Arc<Queue>>>>,
    /// Held from the look at a queue until its change is stored, even if the caller stops waiting.
    changes: Arc<tokio::sync::Mutex<()>>,
    store: Store,
    clock: Arc<Clock>,
    counters: Arc<Counters>,
    next_row: AtomicI64,
    next_queue: AtomicI64,
    /// See `Receipt::run`.
    run: u32,
    /// The queues whose messages are being moved away.
    move_tasks: Mutex<BTreeSet<i64>>,
    /// See `CAREFUL_MS`.
    careful_until_ms: i64,
    consumers: Consumers,
}

impl Sqs {
    pub fn new(store: Store, loaded: &mut Loaded, clock: Arc<Clock>, counters: Arc<Counters>) -> Self {
        let queues = loaded.queues.drain(..).map(|queue| (queue.id, Arc::new(Queue::restored(queue))));
        let by_id: BTreeMap<_, _> = queues.collect();
        let now_ms = clock.now_ms();
        for message in loaded.messages.drain(..) {
            // The message's queue was deleted at the same moment, so the message is dropped.
            let Some(queue) = by_id.get(&message.standing.queue) else {
                continue;
            };
            let mut content = message.content;
            // The clock may have been set back since. Then a message must not be hidden until the clock has caught up.
            let delay_ms = message.visible_ms.saturating_sub(content.sent_ms).clamp(0, DELAY_MAX_S * 1000);
            content.sent_ms = content.sent_ms.min(now_ms);
            let entry = Entry::restored(Arc::new(content), message.standing, message.cut_short);
            queue.lock().backlog.push(entry, message.visible_ms.min(now_ms + delay_ms), now_ms);
        }
        let last_queue = by_id.keys().last().copied().unwrap_or(0);
        let by_name = by_id.into_values().map(|queue| (queue.name.clone(), queue)).collect();
        Self {
            next_queue: AtomicI64::new(last_queue + 1),
            queues: Arc::new(RwLock::new(by_name)),
            changes: Arc::default(),
            store,
            clock,
            counters,
            next_row: AtomicI64::new(loaded.last_row + 1),
            run: Uuid::new_v4().as_fields().0,
            move_tasks: Mutex::default(),
            careful_until_ms: if loaded.after_kill { now_ms + CAREFUL_MS } else { 0 },
            consumers: Consumers::default(),
        }
    }

    /// Runs one operation. The caller's endpoint is the beginning of queue URLs.
    pub async fn call(self: &Arc<Self>, operation: &str, caller: Caller<'_>, body: &[u8]) -> Answer {
        let Caller { endpoint, consumer } = caller;
        let outcome = match operation {
            "SendMessage" => self.send(body).await,
            "SendMessageBatch" => self.send_batch(body).await,
            "ReceiveMessage" => self.receive(consumer, body).await,
            "DeleteMessage" => self.one(body, Self::delete),
            "DeleteMessageBatch" => self.each(body, Self::delete),
            "ChangeMessageVisibility" => self.one(body, Self::change_visibility),
            "ChangeMessageVisibilityBatch" => self.each(body, Self::change_visibility),
            "CreateQueue" => self.create_queue(endpoint, body).await,
            "DeleteQueue" => self.delete_queue(body).await,
            "PurgeQueue" => self.purge_queue(body).await,
            "GetQueueUrl" => self.queue_url(endpoint, body),
            "ListQueues" => self.list_queues(endpoint, body),
            "GetQueueAttributes" => self.queue_attributes(body),
            "SetQueueAttributes" => self.set_queue_attributes(body).await,
            "StartMessageMoveTask" => self.start_move_task(body),
            other => Err(Error::not_offered(other)),
        };
        outcome.unwrap_or_else(Error::into_answer)
    }

    /// The queue that a URL names in its last path segment. A bare name is accepted too.
    fn queue(&self, url: &str) -> Result<Arc<Queue>, Error> {
        if url.is_empty() {
            return Err(Error::missing("QueueUrl"));
        }
        self.named(url.rsplit('/').next().unwrap_or_default()).ok_or_else(Error::no_queue)
    }

    fn named(&self, name: &str) -> Option<Arc<Queue>> {
        self.queues.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// Found by its last part: account and region of an ARN are not checked.
    fn by_arn(&self, arn: &str) -> Option<Arc<Queue>> {
        self.named(arn.strip_prefix("arn:aws:sqs:")?.rsplit(':').next()?)
    }

    /// All queues, in the order of names.
    fn all(&self) -> Vec<Arc<Queue>> {
        let queues = self.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.values().cloned().collect()
    }

    fn new_row(&self) -> i64 {
        self.next_row.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes due messages in `queue` visible, and removes those whose retention has ended.
    ///
    /// A receive is stored when it has ended without a deletion. A receive that the end of this process cuts short does
    /// not count: on AWS the queue would not have stopped, and kills must not turn healthy messages into dead letters.
    /// See `CUT_SHORT_MAX`.
    fn advance(&self, queue: &Queue, state: &mut queue::State, now_ms: i64) {
        let advanced = state.backlog.advance(now_ms, state.attributes.retention_s);
        self.store_standing(queue, state, &advanced.given_back);
        if !advanced.expired.is_empty() {
            self.store.write_later(advanced.expired.into_iter().map(|row| (row, Lazy::Delete)));
        }
    }

    fn store_standing(&self, queue: &Queue, state: &queue::State, rows: &[i64]) {
        let standing = |row: &i64| Some((*row, Lazy::Update(state.backlog.standing(*row, queue.id)?)));
        if !rows.is_empty() {
            self.store.write_later(rows.iter().filter_map(standing));
        }
    }

    pub fn stats(&self) -> Vec<QueueStat> {
        let now_ms = self.clock.now_ms();
        let stat = |queue: Arc<Queue>| {
            let mut state = queue.lock();
            self.advance(&queue, &mut state, now_ms);
            QueueStat::new(&queue.name, &state, now_ms)
        };
        self.all().into_iter().map(stat).collect()
    }
}

/// Reads a request body; empty counts as `{}`.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Error::malformed(&error))
}
