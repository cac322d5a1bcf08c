//! DeleteMessage and ChangeMessageVisibility, alone and in batches.

use super::error::Error;
use super::queue::Queue;
use super::receipt::Receipt;
use super::wire::{Batch, BatchOutcome, EntryId, FailedEntry, Received, bounded};
use super::{Sqs, VISIBILITY_MAX_S, parse};
use crate::answer::Answer;
use crate::store::Lazy;

/// What is done about one received message.
pub(super) type Settle = fn(&Sqs, &Queue, &Received) -> Result<(), Error>;

impl Sqs {
    pub(super) fn one(&self, body: &[u8], settle: Settle) -> Result<Answer, Error> {
        let request: Received = parse(body)?;
        let queue = self.queue(&request.queue_url)?;
        settle(self, &queue, &request)?;
        Ok(Answer::empty())
    }

    /// A batch of which each entry succeeds or fails by itself.
    pub(super) fn each(&self, body: &[u8], settle: Settle) -> Result<Answer, Error> {
        let batch: Batch<Received> = parse(body)?;
        let queue = self.queue(&batch.queue_url)?;
        batch.check(|entry| &entry.id)?;
        let mut outcome = BatchOutcome { successful: Vec::new(), failed: Vec::new() };
        for entry in batch.entries {
            match settle(self, &queue, &entry) {
                Ok(()) => outcome.successful.push(EntryId { id: entry.id }),
                Err(error) => outcome.failed.push(FailedEntry::new(entry.id, error)),
            }
        }
        Ok(Answer::ok(&outcome))
    }

    pub(super) fn change_visibility(&self, queue: &Queue, request: &Received) -> Result<(), Error> {
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

    pub(super) fn delete(&self, queue: &Queue, request: &Received) -> Result<(), Error> {
        let receipt = receipt(queue, &request.receipt_handle)?;
        if receipt.run == self.run && queue.lock().backlog.delete(receipt) {
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
