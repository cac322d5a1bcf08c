//! The order in which visible messages are delivered: the message groups take turns, and within a group the oldest goes
//! first.
//!
//! AWS, "Amazon SQS fair queues": a group id on a standard queue keeps one tenant's backlog from
//! delaying the others. Messages without a group share one turn.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

type Group = Option<Arc<str>>;

/// Rows of visible messages. May hold rows that have been deleted since: the caller skips them, and drops them in time.
#[derive(Debug, Default)]
pub(crate) struct FairOrder {
    rows: HashMap<Group, VecDeque<i64>>,
    /// Groups that have rows, the next one first; each group occurs once.
    turns: VecDeque<Group>,
}

impl FairOrder {
    /// Adds a message that became visible for the first time.
    pub fn push(&mut self, group: &Group, row: i64) {
        self.rows_of(group).push_back(row);
    }

    /// Adds a message that was delivered before. It is next within its group, so that the work of a dead consumer does
    /// not wait behind a backlog.
    pub fn push_again(&mut self, group: &Group, row: i64) {
        self.rows_of(group).push_front(row);
    }

    fn rows_of(&mut self, group: &Group) -> &mut VecDeque<i64> {
        if !self.rows.contains_key(group) {
            self.turns.push_back(group.clone());
        }
        self.rows.entry(group.clone()).or_default()
    }

    pub fn pop(&mut self) -> Option<i64> {
        let group = self.turns.pop_front()?;
        let rows = self.rows.get_mut(&group).expect("a group with a turn has rows");
        let row = rows.pop_front();
        if rows.is_empty() {
            self.rows.remove(&group);
        } else {
            self.turns.push_back(group);
        }
        row
    }

    /// Drops the rows that are not to be kept.
    pub fn retain(&mut self, is_kept: impl Fn(&i64) -> bool) {
        self.rows.retain(|_, rows| {
            rows.retain(&is_kept);
            !rows.is_empty()
        });
        self.turns.retain(|group| self.rows.contains_key(group));
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.rows.values().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_take_turns_whatever_their_backlog() {
        let (a, b) = (Some(Arc::from("a")), Some(Arc::from("b")));
        let mut order = FairOrder::default();
        for row in 0..100 {
            order.push(&a, row);
        }
        order.push(&b, 100);
        order.push(&None, 101);
        order.push(&b, 102);
        let first: Vec<_> = std::iter::from_fn(|| order.pop()).take(6).collect();
        assert_eq!(first, [0, 100, 101, 1, 102, 2]);
        order.push_again(&a, 1);
        assert_eq!(order.pop(), Some(1));
        assert_eq!(std::iter::from_fn(|| order.pop()).count(), 97);
    }

    #[test]
    fn a_group_that_keeps_no_row_loses_its_turn_and_no_other_does() {
        let groups = [None, Some(Arc::from("a")), Some(Arc::from("b"))];
        let mut order = FairOrder::default();
        for (row, group) in groups.iter().cycle().take(9).enumerate() {
            order.push(group, row as i64);
        }
        order.retain(|row| row % 3 != 1 && *row > 2);
        order.push(&groups[1], 9);
        assert_eq!(std::iter::from_fn(|| order.pop()).collect::<Vec<_>>(), [3, 5, 9, 6, 8]);
    }
}
