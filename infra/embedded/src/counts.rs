//! How often what was called: for tests that bound the work of a task, and for the operator.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// What has been counted since the endpoints were opened. Subtract an earlier one with
/// [`Counts::since`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the value of `x-amz-target`, as in `DynamoDB_20120810.PutItem` or
    /// `AmazonSQS.SendMessageBatch`. Operations never called are absent; operations the endpoints
    /// do not know are under `unknown`.
    pub operations: BTreeMap<String, OperationCounts>,
    /// SQS messages accepted, alone or in batches.
    pub messages_sent: u64,
    /// SQS messages handed out, redeliveries included.
    pub messages_received: u64,
    /// SQS messages deleted by a valid receipt.
    pub messages_deleted: u64,
    /// DynamoDB items asked for by key, or looked at by Query and Scan.
    pub items_read: u64,
    /// DynamoDB items put, updated, deleted or checked, in requests that succeeded.
    pub items_written: u64,
    /// EventBridge events accepted.
    pub events_put: u64,
    /// Times the disk was made to keep what is written before an answer. Those around checkpoints are SQLite's own.
    pub syncs: u64,
}

/// Requests of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OperationCounts {
    /// All requests, answered or not.
    pub requests: u64,
    /// Requests answered with an error, injected ones and lost answers included.
    pub errors: u64,
}

impl Counts {
    /// Requests of one operation, such as `AmazonSQS.ReceiveMessage`.
    pub fn requests(&self, operation: &str) -> u64 {
        self.operations.get(operation).map_or(0, |counts| counts.requests)
    }

    /// What was counted after `earlier`.
    pub fn since(&self, earlier: &Self) -> Self {
        let mut operations = self.operations.clone();
        for (name, before) in &earlier.operations {
            if let Some(now) = operations.get_mut(name) {
                now.requests = now.requests.saturating_sub(before.requests);
                now.errors = now.errors.saturating_sub(before.errors);
            }
        }
        operations.retain(|_, counts| counts.requests > 0 || counts.errors > 0);
        Self {
            operations,
            messages_sent: self.messages_sent.saturating_sub(earlier.messages_sent),
            messages_received: self.messages_received.saturating_sub(earlier.messages_received),
            messages_deleted: self.messages_deleted.saturating_sub(earlier.messages_deleted),
            items_read: self.items_read.saturating_sub(earlier.items_read),
            items_written: self.items_written.saturating_sub(earlier.items_written),
            events_put: self.events_put.saturating_sub(earlier.events_put),
            syncs: self.syncs.saturating_sub(earlier.syncs),
        }
    }
}

/// The running counts.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    operations: Mutex<BTreeMap<String, OperationCounts>>,
    messages_sent: AtomicU64,
    messages_received: AtomicU64,
    messages_deleted: AtomicU64,
    items_read: AtomicU64,
    items_written: AtomicU64,
    events_put: AtomicU64,
    syncs: AtomicU64,
}

impl Counters {
    /// A request that begins. `target` must be one of a closed set: each is kept.
    pub fn request(&self, target: &str) {
        self.operation(target, |counts| counts.requests += 1);
    }

    pub fn error(&self, target: &str) {
        self.operation(target, |counts| counts.errors += 1);
    }

    fn operation(&self, target: &str, count: impl FnOnce(&mut OperationCounts)) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        match operations.get_mut(target) {
            Some(counts) => count(counts),
            None => count(operations.entry(target.to_owned()).or_default()),
        }
    }

    pub fn sent(&self, messages: usize) {
        add(&self.messages_sent, messages);
    }

    pub fn received(&self, messages: usize) {
        add(&self.messages_received, messages);
    }

    pub fn deleted(&self) {
        add(&self.messages_deleted, 1);
    }

    pub fn read(&self, items: usize) {
        add(&self.items_read, items);
    }

    pub fn written(&self, items: usize) {
        add(&self.items_written, items);
    }

    pub fn put(&self, events: usize) {
        add(&self.events_put, events);
    }

    pub fn synced(&self) {
        add(&self.syncs, 1);
    }

    pub fn snapshot(&self) -> Counts {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            operations: self.operations.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            messages_sent: of(&self.messages_sent),
            messages_received: of(&self.messages_received),
            messages_deleted: of(&self.messages_deleted),
            items_read: of(&self.items_read),
            items_written: of(&self.items_written),
            events_put: of(&self.events_put),
            syncs: of(&self.syncs),
        }
    }
}

fn add(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}
