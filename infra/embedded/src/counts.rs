//! Counts of calls, for tests that bound the work of a task, and for the operator.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// The counts since the endpoints were opened. [`Counts::since`] subtracts earlier counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// By the value of `x-amz-target`, as in `DynamoDB_20120810.PutItem` or `AmazonSQS.SendMessageBatch`. Operations
    /// that were never called are absent; operations that the endpoints do not know are under `unknown`.
    pub operations: BTreeMap<String, OperationCounts>,
    /// SQS messages accepted, alone or in batches.
    pub messages_sent: u64,
    /// DynamoDB items requested by key, or read by Query and Scan.
    pub items_read: u64,
    /// DynamoDB items put, updated, deleted or checked, in requests that succeeded.
    pub items_written: u64,
    /// EventBridge events accepted.
    pub events_put: u64,
    /// Number of fsyncs before an answer. Those around checkpoints are SQLite's and are not counted.
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

    /// The counts after `earlier`.
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
            items_read: self.items_read.saturating_sub(earlier.items_read),
            items_written: self.items_written.saturating_sub(earlier.items_written),
            events_put: self.events_put.saturating_sub(earlier.events_put),
            syncs: self.syncs.saturating_sub(earlier.syncs),
        }
    }
}

/// The running counts.
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Counts>);

impl Counters {
    pub fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Counts a request that begins. `target` must be one of a closed set, because each value is kept.
    pub fn request(&self, target: &str) {
        self.operation(target, |counts| counts.requests += 1);
    }

    pub fn error(&self, target: &str) {
        self.operation(target, |counts| counts.errors += 1);
    }

    fn operation(&self, target: &str, add: impl FnOnce(&mut OperationCounts)) {
        self.count(|counts| match counts.operations.get_mut(target) {
            Some(known) => add(known),
            None => add(counts.operations.entry(target.to_owned()).or_default()),
        });
    }

    pub fn snapshot(&self) -> Counts {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
