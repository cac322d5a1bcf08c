//! One queue: its attributes, its backlog, and the receivers that wait.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::attributes::QueueAttributes;
use super::backlog::{Backlog, Entry};
use super::error::Error;
use super::{ARN_PREFIX, receipt::Receipt};
use crate::store::LoadedQueue;

pub(crate) struct Queue {
    /// In the store.
    pub id: i64,
    pub name: String,
    pub arn: Arc<str>,
    pub created_ms: i64,
    /// Wakes one waiting receiver: a message became visible, or will become visible sooner than known. A receiver that
    /// stops waiting wakes the next one, so that one receiver always waits for the right time.
    pub changed: Notify,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub attributes: QueueAttributes,
    pub modified_ms: i64,
    pub backlog: Backlog,
    /// What was set cannot be read in the file; the next CreateQueue sets it.
    pub attributes_lost: bool,
    /// Set by DeleteQueue, while receivers may still wait.
    pub deleted: bool,
}

impl Queue {
    pub fn new(id: i64, name: String, attributes: QueueAttributes, created_ms: i64) -> Self {
        let state = State {
            attributes,
            modified_ms: created_ms,
            backlog: Backlog::default(),
            attributes_lost: false,
            deleted: false,
        };
        Self {
            id,
            arn: format!("{ARN_PREFIX}{name}").into(),
            name,
            created_ms,
            changed: Notify::new(),
            state: Mutex::new(state),
        }
    }

    pub fn restored(stored: LoadedQueue) -> Self {
        let LoadedQueue { id, name, created_ms, modified_ms, attributes } = stored;
        let set = serde_json::from_str(&attributes).map_err(|error| Error::malformed(&error));
        let (attributes, attributes_lost) = match set.and_then(QueueAttributes::parse) {
            Ok(attributes) => (attributes, false),
            Err(error) => {
                tracing::error!(
                    "queues.db is damaged: the attributes of the queue {name} cannot be read ({error}). Its messages \
                     are kept, and the next CreateQueue sets the attributes"
                );
                (QueueAttributes::unknown(), true)
            }
        };
        let queue = Self::new(id, name, attributes, created_ms);
        let mut state = queue.lock();
        (state.modified_ms, state.attributes_lost) = (modified_ms, attributes_lost);
        drop(state);
        queue
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds messages with the times from which they are visible, and wakes receivers. False if the queue is deleted:
    /// then nothing is added.
    pub fn push(&self, entries: impl IntoIterator<Item = (Entry, i64)>, now_ms: i64) -> bool {
        let mut added = 0;
        let mut state = self.lock();
        if state.deleted {
            return false;
        }
        for (entry, visible_ms) in entries {
            state.backlog.push(entry, visible_ms, now_ms);
            added += 1;
        }
        drop(state);
        for _ in 0..added {
            self.changed.notify_one();
        }
        true
    }

    /// See `Backlog::change_visibility`.
    pub fn change_visibility(&self, receipt: Receipt, timeout_s: i64, now_ms: i64) -> Result<(), Error> {
        self.lock().backlog.change_visibility(receipt, now_ms + timeout_s * 1000, now_ms)?;
        self.changed.notify_one();
        Ok(())
    }
}

/// The state of one queue at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueStat {
    /// Name, not URL.
    pub name: String,
    /// Messages that a receive would get.
    pub visible: usize,
    /// Received and not deleted, within their visibility timeout.
    pub in_flight: usize,
    /// Sent with a delay that has not ended.
    pub delayed: usize,
    /// Time since the oldest message, in any of these states, was sent. `None` in an empty queue.
    pub oldest_age: Option<Duration>,
}

impl QueueStat {
    pub(super) fn new(name: &str, state: &State, now_ms: i64) -> Self {
        let sizes = state.backlog.sizes();
        let age = |sent_ms| Duration::from_millis(u64::try_from(now_ms - sent_ms).unwrap_or(0));
        Self {
            name: name.into(),
            visible: sizes.visible,
            in_flight: sizes.in_flight,
            delayed: sizes.delayed,
            oldest_age: state.backlog.oldest_sent_ms().map(age),
        }
    }
}
