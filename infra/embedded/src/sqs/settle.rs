//! DeleteMessage and ChangeMessageVisibility, alone and in batches.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::error::Error;
use super::queue::Queue;
use super::receipt::Receipt;
use super::wire::{Batch, BatchEntry, BatchOutcome, ChangeVisibility, Delete, EntryId, FailedEntry, Single, bounded};
use super::{Sqs, VISIBILITY_MAX_S, parse};
use crate::answer::Answer;
use crate::store::Lazy;

impl Sqs {
    pub(super) fn delete(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: Single<Delete> = parse(body)?;
        let queue = self.queue(&request.queue_url)?;
        self.delete_one(&queue, &request.what)?;
        Ok(Answer::empty())
    }

    pub(super) fn delete_batch(&self, body: &[u8]) -> Result<Answer, Error> {
        self.each(body, |queue, what| self.delete_one(queue, what))
    }

    pub(super) fn change_visibility(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: Single<ChangeVisibility> = parse(body)?;
        let queue = self.queue(&request.queue_url)?;
        self.change_one(&queue, &request.what)?;
        Ok(Answer::empty())
    }

    pub(super) fn change_visibility_batch(&self, body: &[u8]) -> Result<Answer, Error> {
        self.each(body, |queue, what| self.change_one(queue, what))
    }

    /// A batch of which each entry succeeds or fails by itself.
    fn each<T: DeserializeOwned>(
        &self,
        body: &[u8],
        settle: impl Fn(&Arc<Queue>, &T) -> Result<(), Error>,
    ) -> Result<Answer, Error> {
        let batch: Batch<T> = parse(body)?;
        let queue = self.queue(&batch.queue_url)?;
        batch.check()?;
        let mut outcome = BatchOutcome { successful: Vec::new(), failed: Vec::new() };
        for BatchEntry { id, what } in batch.entries {
            match settle(&queue, &what) {
                Ok(()) => outcome.successful.push(EntryId { id }),
                Err(error) => outcome.failed.push(FailedEntry::new(id, error)),
            }
        }
        Ok(Answer::ok(&outcome))
    }

    fn change_one(&self, queue: &Arc<Queue>, request: &ChangeVisibility) -> Result<(), Error> {
        let receipt = receipt(queue, &request.receipt_handle)?;
        let timeout_s = request.visibility_timeout.ok_or_else(|| Error::missing("VisibilityTimeout"))?;
        bounded("VisibilityTimeout", timeout_s, 0, VISIBILITY_MAX_S)?;
        let now_ms = self.clock.now_ms();
        // A timeout that has ended must not be prolonged.
        self.advance(queue, &mut queue.lock(), now_ms);
        if receipt.run != self.run {
            return Err(Error::not_in_flight());
        }
        queue.change_visibility(receipt, timeout_s, now_ms)?;
        if timeout_s == 0 {
            self.store_standing(queue, &queue.lock(), &[receipt.row]);
        }
        Ok(())
    }

    fn delete_one(&self, queue: &Arc<Queue>, request: &Delete) -> Result<(), Error> {
        let receipt = receipt(queue, &request.receipt_handle)?;
        if receipt.run == self.run && queue.lock().backlog.delete(receipt) {
            self.counters.count(|counts| counts.messages_deleted += 1);
            self.store.write_later([(receipt.row, Lazy::Delete)]);
        }
        Ok(())
    }
}

fn receipt(queue: &Queue, handle: &str) -> Result<Receipt, Error> {
    if handle.is_empty() {
        return Err(Error::missing("ReceiptHandle"));
    }
    let receipt = Receipt::parse(handle)?;
    if receipt.queue == queue.id { Ok(receipt) } else { Err(Error::receipt_of_other_queue()) }
}
