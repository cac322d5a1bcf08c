//! Puts steps back, so that they are done again.

use super::Change;
use crate::again::Again;
use crate::history::Kind;
use crate::step::{Kids, Reminded, Rounds, State, Step};
use crate::task::Phase;
use crate::time::plus;
use crate::workflow::child::Wish;

impl Change<'_> {
    /// Records that the steps of `again` are put back once they are undone. If the order is undone already, they are
    /// put back at once.
    pub(crate) fn run_again(&mut self, again: Again) {
        let is_undone = self.task.phase == Phase::Undone;
        self.task.phase = Phase::Undoing;
        self.task.turned_at = 0;
        self.task.alert = None;
        self.task.notice_owed = false;
        self.task.reason = None;
        self.task.output = None;
        if is_undone {
            self.put_back(&again);
        } else {
            self.task.again = Some(again);
            self.wake = true;
        }
    }

    /// Nothing is left to undo: the order has ended, or it goes on from the steps that are done again.
    pub(super) fn end_undo(&mut self) {
        match self.task.again.take() {
            Some(again) => {
                // For children that earlier asks have not reached.
                if self.task.expires {
                    self.requests.extend(super::child::ask_all(&self.task, &Wish::Keep, self.turn));
                }
                self.put_back(&again);
            }
            None => self.end(Phase::Undone, Kind::TaskUndone, crate::message::NoticeKind::Undone),
        }
    }

    fn put_back(&mut self, again: &Again) {
        let (workflow, now) = (self.turn.workflow, self.turn.now);
        for index in again.steps.iter().map(|&step| usize::from(step)).filter(|&i| i < workflow.steps.len()) {
            // Events for the step no longer count. Their keys stay known, so that none counts for the next round.
            for event in self.task.events.iter_mut().filter(|event| event.is_of(index)) {
                (event.step, event.data) = (None, None);
            }
            let old = std::mem::take(&mut self.task.steps[index]);
            let is_untouched = !old.is_tried() && matches!(old.state, State::Pending { .. });
            let mut rounds = old.rounds.unwrap_or_default();
            rounds.replaced.extend(old.beside);
            rounds.replaced.extend(old.pages.into_iter().flat_map(|pages| pages.lists));
            // A service with tombstones refuses an undone key.
            let is_undone = workflow.steps[index].undo.is_some() && old.state == State::Undone;
            if !is_untouched {
                rounds.round += 1;
                rounds.before = old.attempt;
            }
            let has_new_key = (is_undone || again.new_keys) && !is_untouched;
            if has_new_key {
                rounds.key = rounds.round;
            }
            let kids = old.kids.map(|kids| Kids { round: kids.round + 1, made: kids.made + 1, items: None });
            let reminded = old.reminded.map(|old| Reminded { next: None, complete_by: None, ..old });
            self.task.steps[index] = Step {
                attempt: old.attempt,
                claimed_at: old.claimed_at,
                settled_at: old.settled_at,
                unsure: old.unsure && !has_new_key,
                reminded,
                kids,
                rounds: Some(rounds).filter(|rounds| *rounds != Rounds::default()),
                ..Step::default()
            };
        }
        let names = again.steps.iter().filter_map(|&step| Some(workflow.steps.get(usize::from(step))?.name.as_str()));
        let names = names.collect::<Vec<_>>().join(", ");
        self.log(Kind::PutBack, None, Some(names));
        self.task.phase = Phase::Forward;
        self.task.turned_at = 0;
        if self.task.deadline.is_some_and(|deadline| deadline <= now) {
            self.task.deadline = workflow.deadline.map(|time| plus(now, time));
        }
        self.notice = None;
        self.wake = true;
    }
}
