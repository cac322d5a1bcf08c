//! The messages of one queue, and when each may be delivered. Pure: `now_ms` is an argument, and nothing is awaited or
//! stored here.
//!
//! A message is delayed, ready or in flight. No frequent operation reads all messages: due times and ages are ordered
//! sets, and ready messages are in a queue for each group.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::VISIBILITY_MAX_S;
use super::error::Error;
use super::fair::FairOrder;
use super::receipt::Receipt;
use crate::store::{Content, Standing};

/// AWS, "Amazon SQS standard queue quotas".
pub(crate) const IN_FLIGHT_MAX: usize = 120_000;

/// Number of consecutive crashes during which a message was being handled, before it becomes a dead letter: handling
/// the message may be the cause. The number is high, because a person may stop the process with SIGKILL again and
/// again, which is not the message's fault.
pub(crate) const CUT_SHORT_MAX: u32 = 20;

/// Number of removed messages that may stay in the order of delivery whatever the size of the queue.
const GONE_FEW: usize = 1000;

#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub content: Arc<Content>,
    pub receives: u32,
    pub first_received_ms: Option<i64>,
    /// ARN of the queue it was a dead letter of.
    pub source: Option<Arc<str>>,
    /// Number of its last consecutive receives that the end of a process cut short; they do not count in `receives`.
    pub cut_short: u32,
    /// Time of its newest receive.
    received_ms: i64,
    /// The number of the consumer that holds it; see `consumers`.
    holder: Option<u64>,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Delayed { until_ms: i64 },
    Ready,
    InFlight { until_ms: i64 },
}

/// How long a message waits whose consumer ended at this receive of it.
fn pause_ms(receives: u32) -> i64 {
    if receives <= 1 { 0 } else { 500 << (receives - 2).min(10) }
}

impl Entry {
    pub fn new(content: Arc<Content>) -> Self {
        Self {
            content,
            receives: 0,
            first_received_ms: None,
            source: None,
            cut_short: 0,
            received_ms: 0,
            holder: None,
            place: Place::Ready,
        }
    }

    pub fn restored(content: Arc<Content>, standing: Standing, cut_short: u32) -> Self {
        Self {
            receives: standing.receives,
            first_received_ms: standing.first_received_ms,
            source: standing.source,
            cut_short,
            ..Self::new(content)
        }
    }

    /// The receipt of its newest receive.
    pub fn receipt(&self, run: u32, queue: i64) -> Receipt {
        Receipt { run, queue, row: self.content.row, receives: self.receives }
    }

    pub fn standing(&self, queue: i64) -> Standing {
        Standing {
            queue,
            receives: self.receives,
            first_received_ms: self.first_received_ms,
            source: self.source.clone(),
        }
    }
}

/// Numbers of messages by state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub visible: usize,
    pub in_flight: usize,
    pub delayed: usize,
}

#[derive(Debug, Default)]
pub(crate) struct Backlog {
    entries: HashMap<i64, Entry>,
    /// May hold messages that are no longer here.
    ready: FairOrder,
    /// Ready messages that were removed since `ready` last held none of them.
    gone: usize,
    /// Ends of delays and of visibility timeouts, with the row.
    due: BTreeSet<(i64, i64)>,
    in_flight: usize,
    /// Time of sending, with the row.
    ages: BTreeSet<(i64, i64)>,
}

/// What the passing of time has changed, by row.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Advanced {
    /// Messages removed because their retention has ended.
    pub expired: Vec<i64>,
    /// Messages received, not deleted in time, and visible again.
    pub given_back: Vec<i64>,
}

/// What a `take` found.
#[derive(Debug, Default)]
pub(crate) struct Taken {
    pub received: Vec<Entry>,
    /// Messages received too often; no longer in this queue.
    pub dead: Vec<Entry>,
    /// The in-flight limit stopped it.
    pub over_limit: bool,
}

impl Backlog {
    /// Adds a message, visible from `visible_ms`.
    pub fn push(&mut self, mut entry: Entry, visible_ms: i64, now_ms: i64) {
        let row = entry.content.row;
        self.ages.insert((entry.content.sent_ms, row));
        if visible_ms > now_ms {
            entry.place = Place::Delayed { until_ms: visible_ms };
            self.due.insert((visible_ms, row));
        } else {
            entry.place = Place::Ready;
            self.ready.push(&entry.content.group, row);
        }
        self.entries.insert(row, entry);
    }

    /// Makes due messages visible, and removes messages whose `retention_s` has ended.
    #[must_use]
    pub fn advance(&mut self, now_ms: i64, retention_s: i64) -> Advanced {
        let mut advanced = Advanced::default();
        while let Some(&(until_ms, row)) = self.due.first()
            && until_ms <= now_ms
        {
            self.due.pop_first();
            if self.make_ready(row) {
                advanced.given_back.push(row);
            }
        }
        while let Some(&(sent_ms, row)) = self.ages.first()
            && sent_ms.saturating_add(retention_s * 1000) <= now_ms
        {
            self.remove(row);
            advanced.expired.push(row);
        }
        advanced
    }

    /// The stored state of a message in this queue.
    pub fn standing(&self, row: i64, queue: i64) -> Option<Standing> {
        Some(self.entries.get(&row)?.standing(queue))
    }

    /// Whether it had been received.
    fn make_ready(&mut self, row: i64) -> bool {
        let entry = self.entries.get_mut(&row).expect("what is due is in the queue");
        let group = &entry.content.group;
        let was_received = match entry.place {
            Place::Delayed { .. } => {
                self.ready.push(group, row);
                false
            }
            Place::InFlight { .. } => {
                self.in_flight -= 1;
                // The process has survived the handling of the message.
                entry.cut_short = 0;
                self.ready.push_again(group, row);
                true
            }
            Place::Ready => unreachable!("what is ready is not due"),
        };
        entry.place = Place::Ready;
        was_received
    }

    /// Delivers up to `max` messages to `holder`, invisible until `until_ms`. Messages that were already received `receives_max`
    /// times, or were being handled during [`CUT_SHORT_MAX`] crashes, are removed instead. Call `advance` first.
    pub fn take(
        &mut self,
        max: usize,
        until_ms: i64,
        now_ms: i64,
        receives_max: Option<u32>,
        holder: Option<u64>,
    ) -> Taken {
        let mut taken = Taken::default();
        while taken.received.len() < max {
            if self.in_flight >= IN_FLIGHT_MAX {
                taken.over_limit = true;
                break;
            }
            let Some(row) = self.ready.pop() else { break };
            // Deleted since it became ready?
            let Some(entry) = self.entries.get_mut(&row) else {
                continue;
            };
            if receives_max.is_some_and(|most| entry.receives >= most || entry.cut_short >= CUT_SHORT_MAX) {
                taken.dead.extend(self.remove(row));
                continue;
            }
            entry.receives = entry.receives.saturating_add(1);
            entry.first_received_ms.get_or_insert(now_ms);
            entry.received_ms = now_ms;
            entry.holder = holder;
            entry.place = Place::InFlight { until_ms };
            taken.received.push(entry.clone());
            self.due.insert((until_ms, row));
            self.in_flight += 1;
        }
        taken
    }

    /// Makes messages visible whose consumer is gone, and returns them. One that was received before waits for
    /// [`pause_ms`], but no longer than it would have: it may be what ends its consumers.
    pub fn give_back(&mut self, holder: u64, now_ms: i64) -> Vec<i64> {
        let is_held = |row: &i64| {
            let entry = self.entries.get(row)?;
            let is_held = matches!(entry.place, Place::InFlight { .. }) && entry.holder == Some(holder);
            is_held.then_some((*row, entry.receives))
        };
        let held: Vec<_> = self.due.iter().filter_map(|(until_ms, row)| Some((*until_ms, is_held(row)?))).collect();
        for &(until_ms, (row, receives)) in &held {
            self.hide((until_ms, row), until_ms.min(now_ms + pause_ms(receives)), now_ms);
        }
        held.into_iter().map(|(_, (row, _))| row).collect()
    }

    /// Removes up to `max` ready messages.
    pub fn take_out(&mut self, max: usize) -> Vec<Entry> {
        let mut out = Vec::new();
        while out.len() < max {
            let Some(row) = self.ready.pop() else { break };
            out.extend(self.remove(row));
        }
        out
    }

    /// Deletes a message. False if the receipt is not the newest one of a message in this queue: as in AWS, deleting by
    /// a stale receipt succeeds and changes nothing.
    pub fn delete(&mut self, receipt: Receipt) -> bool {
        self.held(receipt).is_some() && self.remove(receipt.row).is_some()
    }

    /// Sets the end of a message's visibility timeout. The errors are SQS's: the receipt is stale, the message is not in
    /// flight, or it would be for too long.
    pub fn change_visibility(&mut self, receipt: Receipt, until_ms: i64, now_ms: i64) -> Result<(), Error> {
        let Some(&Entry { place: Place::InFlight { until_ms: before }, received_ms, .. }) = self.held(receipt) else {
            return Err(Error::not_in_flight());
        };
        if until_ms > received_ms + VISIBILITY_MAX_S * 1000 {
            return Err(Error::hidden_too_long());
        }
        self.hide((before, receipt.row), until_ms, now_ms);
        Ok(())
    }

    /// Changes when a message that is in flight is due.
    fn hide(&mut self, due: (i64, i64), until_ms: i64, now_ms: i64) {
        let (_, row) = due;
        self.due.remove(&due);
        if until_ms <= now_ms {
            self.make_ready(row);
        } else if let Some(entry) = self.entries.get_mut(&row) {
            entry.place = Place::InFlight { until_ms };
            self.due.insert((until_ms, row));
        }
    }

    /// The message that this receipt is the newest one of.
    fn held(&self, receipt: Receipt) -> Option<&Entry> {
        self.entries.get(&receipt.row).filter(|entry| entry.receives == receipt.receives)
    }

    fn remove(&mut self, row: i64) -> Option<Entry> {
        let entry = self.entries.remove(&row)?;
        self.ages.remove(&(entry.content.sent_ms, row));
        match entry.place {
            Place::Ready => {
                self.gone += 1;
                // This looks at all ready messages, so it waits until as many are gone.
                if self.gone > self.entries.len().max(GONE_FEW) {
                    self.ready.retain(|row| self.entries.contains_key(row));
                    self.gone = 0;
                }
            }
            Place::Delayed { until_ms } => {
                self.due.remove(&(until_ms, row));
            }
            Place::InFlight { until_ms } => {
                self.due.remove(&(until_ms, row));
                self.in_flight -= 1;
            }
        }
        Some(entry)
    }

    /// All messages.
    pub fn rows(&self) -> Vec<i64> {
        self.entries.keys().copied().collect()
    }

    /// Removes those of these messages that are still there.
    pub fn forget(&mut self, rows: &[i64]) {
        for row in rows {
            self.remove(*row);
        }
    }

    /// When the next delay or visibility timeout ends.
    pub fn next_due_ms(&self) -> Option<i64> {
        self.due.first().map(|(until_ms, _)| *until_ms)
    }

    /// When the oldest message was sent.
    pub fn oldest_sent_ms(&self) -> Option<i64> {
        self.ages.first().map(|(sent_ms, _)| *sent_ms)
    }

    pub fn sizes(&self) -> Sizes {
        Sizes {
            visible: self.entries.len() - self.due.len(),
            in_flight: self.in_flight,
            delayed: self.due.len() - self.in_flight,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn push(backlog: &mut Backlog, rows: std::ops::Range<i64>) {
        for row in rows {
            let content = Content::stored(row, uuid::Uuid::nil(), "x".into(), Default::default(), None, None, 0);
            backlog.push(Entry::new(Arc::new(content)), 0, 0);
        }
    }

    #[test]
    fn no_more_than_the_limit_are_in_flight() {
        let mut backlog = Backlog::default();
        let most = i64::try_from(IN_FLIGHT_MAX).unwrap();
        push(&mut backlog, 0..most + 10);
        let taken = backlog.take(IN_FLIGHT_MAX + 10, 30_000, 0, None, None);
        assert_eq!((taken.received.len(), taken.over_limit), (IN_FLIGHT_MAX, true));
        assert_eq!(backlog.sizes(), Sizes { visible: 10, in_flight: IN_FLIGHT_MAX, delayed: 0 });
        assert!(backlog.delete(taken.received[0].receipt(0, 0)));
        assert_eq!(backlog.take(10, 30_000, 0, None, None).received.len(), 1);
    }

    /// Not a measurement: an operation that read every message would take minutes here.
    #[test]
    fn large_backlog_is_worked_off_without_looking_at_all_of_it() {
        let mut backlog = Backlog::default();
        push(&mut backlog, 0..100_000);
        let started = std::time::Instant::now();
        let mut now_ms = 0;
        let mut deleted = 0;
        while deleted < 100_000 {
            now_ms += 1;
            assert!(backlog.advance(now_ms, 1_000_000).expired.is_empty());
            for (n, entry) in backlog.take(10, now_ms + 5, now_ms, None, None).received.iter().enumerate() {
                // Every other message is received again later.
                if entry.receives > 1 || n % 2 == 0 {
                    deleted += usize::from(backlog.delete(entry.receipt(0, 0)));
                }
            }
        }
        assert_eq!(backlog.sizes(), Sizes::default());
        assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
    }

    // It may be what ends them. It is never hidden longer than without their end being seen.
    #[test]
    fn a_message_that_ends_its_consumers_waits_longer_each_time() {
        let mut backlog = Backlog::default();
        push(&mut backlog, 0..1);
        let (mut now_ms, mut waits) = (0, Vec::new());
        for holder in 1..=5 {
            assert_eq!(backlog.take(1, now_ms + 30_000, now_ms, None, Some(holder)).received.len(), 1);
            assert!(backlog.give_back(holder + 1, now_ms).is_empty());
            assert_eq!(backlog.give_back(holder, now_ms), [0]);
            waits.push(backlog.next_due_ms().map_or(0, |due_ms| due_ms - now_ms));
            now_ms += waits[waits.len() - 1];
            let _ = backlog.advance(now_ms, 1_000_000);
        }
        assert_eq!(waits, [0, 500, 1000, 2000, 4000]);
        assert_eq!(backlog.take(1, now_ms + 100, now_ms, None, Some(6)).received.len(), 1);
        assert_eq!((backlog.give_back(6, now_ms), backlog.next_due_ms()), (vec![0], Some(now_ms + 100)));
        assert_eq!(backlog.sizes(), Sizes { visible: 0, in_flight: 1, delayed: 0 });
    }

    // Some queues have no receiver, such as those of dead letters. What is purged or expires there is never popped.
    #[test]
    fn removed_messages_leave_nothing_behind() {
        let mut backlog = Backlog::default();
        for round in 0..100 {
            let rows = round * 1000..(round + 1) * 1000;
            push(&mut backlog, rows.clone());
            backlog.forget(&rows.skip(1).collect::<Vec<_>>());
            assert!(backlog.ready.len() <= 3000, "{} in round {round}", backlog.ready.len());
        }
        let left: Vec<_> =
            backlog.take(200, 10, 0, None, None).received.iter().map(|entry| entry.content.row).collect();
        assert_eq!(left, (0..100).map(|round| round * 1000).collect::<Vec<_>>());
    }

    #[test]
    fn stale_receipt_changes_nothing() {
        let mut backlog = Backlog::default();
        push(&mut backlog, 0..1);
        let first = backlog.take(1, 10, 0, None, None).received.remove(0);
        assert_eq!(backlog.advance(10, 1000), Advanced { expired: vec![], given_back: vec![0] });
        let second = backlog.take(1, 20, 10, None, None).received.remove(0);
        assert!(!backlog.delete(first.receipt(0, 0)));
        assert!(backlog.change_visibility(first.receipt(0, 0), 100, 10).is_err());
        assert!(backlog.change_visibility(second.receipt(0, 0), 100, 10).is_ok());
        assert_eq!(backlog.next_due_ms(), Some(100));
        assert!(backlog.delete(second.receipt(0, 0)));
        assert_eq!((backlog.next_due_ms(), backlog.oldest_sent_ms()), (None, None));
    }
}
