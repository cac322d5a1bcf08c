//! One attempt at a step, from claim to end: the step is done and its output kept, it fails for good, gets more time,
//! or another attempt follows.

use super::effects::{Mapped, call, is_withheld, request_of};
use super::{Change, beat};
use crate::expression::{Mistake, Names};
use crate::history::{self, Kind};
use crate::message::{MAX_DELAY, NoticeKind};
use crate::names::{self, names};
use crate::outputs::{MAX_ALL_BESIDE, Place, bytes_beside};
use crate::pools;
use crate::retry::{Late, Rung};
use crate::step::{Direction, Failure, FailureKind, State};
use crate::task::Phase;
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::poll::{Found, Poll};
use serde_json::Value;
use std::borrow::Cow;

/// Why an attempt did not succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Miss {
    /// No reply by `complete_by`.
    Expired,
    /// The agent gave up early; the service may have named a wait.
    Unavailable(Option<SignedDuration>),
    /// The agent did not try. This counts no failure.
    Deferred(SignedDuration),
    /// A step that polls is not done yet. Counts no failure.
    NotYet,
}

impl Change<'_> {
    /// Claims a step and holds its request until `from`.
    pub(super) fn claim(&mut self, from: Timestamp, index: usize, direction: Direction, call: Mapped) {
        let spec = &self.turn.workflow.steps[index];
        let work = spec.work(direction).expect("only a step with an undo is to be undone");
        let complete_by = plus(from, work.window());
        let poll = spec.poll.as_ref().filter(|_| direction == Direction::Do);
        let locked_by = self.turn.instance.to_owned();
        let step = &mut self.task.steps[index];
        step.pool = pools::choose(self.turn.pools, work.agent, step, direction, self.turn.now);
        let pool = step.pool.as_ref().map(|pool| format!("in pool `{pool}`"));
        step.attempt += 1;
        step.claimed_at = self.task.version;
        step.extended = 0;
        step.heart = beat::heart(work, from);
        let is_first = step.poll_until.is_none();
        step.poll_until = step.poll_until.or(poll.map(|poll| plus(from, poll.within)));
        match direction {
            Direction::Do => {
                step.state = State::Processing { locked_by, complete_by };
                if !spec.looks_safely() {
                    self.task.forward_by = self.task.forward_by.max(Some(complete_by));
                }
                // A page after the first is logged only when it is retried.
                let step = &self.task.steps[index];
                let is_next_page = spec.pages && step.page() > 1 && step.failures == 0;
                if (poll.is_none() || is_first) && !is_next_page {
                    self.log(Kind::Claimed, Some(index), pool);
                }
                if let Some(poll) = poll.filter(|_| is_first) {
                    self.begin_to_ask(index, from, plus(from, poll.within));
                }
            }
            Direction::Undo => {
                step.state = State::UndoProcessing { locked_by, complete_by };
                self.log(Kind::UndoClaimed, Some(index), pool);
            }
        }
        self.requests.extend(request_of(&self.task, index, self.turn, call));
    }

    /// The attempt at step `index` is done. Its output is [kept](Change::keep) already.
    pub(crate) fn complete(&mut self, index: usize, direction: Direction) {
        let step = &mut self.task.steps[index];
        step.settled_at = self.task.version;
        step.error = None;
        step.failure = None;
        match direction {
            Direction::Do => {
                step.state = State::Processed;
                self.log(Kind::Completed, Some(index), None);
                self.notice = Some((NoticeKind::StepCompleted, Some(index)));
            }
            Direction::Undo => {
                step.state = State::Undone;
                self.log(Kind::Undone, Some(index), None);
            }
        }
    }

    /// What `answer` means to step `index`, if it polls. `looked`: the agent has judged an answer from HTTP or AWS.
    ///
    /// # Errors
    /// A condition of the poll has no value for this answer.
    pub(crate) fn judge(&self, index: usize, answer: &Value, looked: bool) -> Result<Found, Mistake> {
        let spec = &self.turn.workflow.steps[index];
        match &spec.poll {
            Some(_) if looked => Ok(Found::Done),
            Some(_) if spec.http.is_some() || spec.aws.is_some() => {
                Ok(Found::NotYet("an earlier version of the agent made the call".into()))
            }
            Some(poll) => poll.look.judge(&Names::new().with("answer", Cow::Borrowed(answer))),
            None => Ok(Found::Done),
        }
    }

    /// Whether an old agent called for step `index`, which cannot tell an answer that only accepts.
    pub(crate) fn only_accepts(&self, index: usize, looked: bool) -> bool {
        let spec = &self.turn.workflow.steps[index];
        let is_open = self.task.steps[index].claim().is_some_and(|(direction, _)| direction == Direction::Do);
        is_open && !looked && spec.accept.as_ref().is_some_and(|accept| accept.when.is_some())
    }

    /// A look of step `index` found the work neither done nor failed.
    pub(crate) fn not_yet(&mut self, index: usize, why: &str) {
        self.miss(index, Direction::Do, Miss::NotYet, why, Failure::of(FailureKind::Spent));
    }

    /// Keeps the part of an answer that the workflow wants.
    ///
    /// # Errors
    /// Its `output` has no value for this answer, or a too long or deep one.
    fn keep_of(&mut self, index: usize, answer: Value) -> Result<(), Mistake> {
        match &self.turn.workflow.steps[index].output {
            None => self.keep(index, answer, "the agent's output"),
            Some(output) => {
                let names = names(&self.task, index, Direction::Do, self.turn).with("answer", Cow::Owned(answer));
                let value = output.evaluate(&names);
                drop(names);
                self.keep(index, value?, "the output")
            }
        }
    }

    /// [`Change::keep_of`] the answer that completes the step. If it cannot be kept, the step fails.
    pub(crate) fn complete_with(&mut self, index: usize, answer: Value) {
        match self.keep_of(index, answer) {
            Ok(()) => self.complete(index, Direction::Do),
            Err(mistake) => self.mistaken(index, Direction::Do, &mistake),
        }
    }

    /// Keeps `value` as the output of step `index`, beside the record if it is long. Errors call it `what`.
    pub(super) fn keep(&mut self, index: usize, value: Value, what: &str) -> Result<(), Mistake> {
        let place = self.turn.outputs.place(value, what).map_err(Mistake)?;
        let step = &mut self.task.steps[index];
        (step.output, step.beside) = match place {
            Place::Record(value) => (Some(value).filter(|value| !value.is_null()), None),
            Place::Beside(beside) => (None, Some(beside)),
        };
        let all = bytes_beside(&self.task);
        if all > MAX_ALL_BESIDE {
            self.task.steps[index].beside = None;
            let limit = format!("the limit for the long outputs of an order is {MAX_ALL_BESIDE} bytes together");
            return Err(Mistake(format!("{what} makes {all} bytes; {limit}: return a reference to it instead")));
        }
        Ok(())
    }

    /// The step can never succeed, or an expression has no value.
    pub(crate) fn fail(&mut self, index: usize, direction: Direction, error: &str, failure: Failure) {
        self.fail_as(index, direction, error, failure, true);
    }

    /// The agent found that no call can be made. Like a refusal it leaves nothing to undo, but the service never answered,
    /// so no `catch` passes over it.
    pub(crate) fn fail_uncalled(&mut self, index: usize, direction: Direction, error: &str) {
        self.fail_as(index, direction, error, Failure::of(FailureKind::Refused), false);
    }

    fn fail_as(&mut self, index: usize, direction: Direction, error: &str, failure: Failure, answered: bool) {
        let version = self.task.version;
        let step = &mut self.task.steps[index];
        step.settled_at = version;
        step.error = Some(history::shorten(error, history::MAX_TEXT));
        match direction {
            Direction::Do => {
                let error = match self.is_caught(index, failure, error, answered) {
                    Ok(true) => return,
                    Ok(false) => error.to_owned(),
                    // The `catch` has no value, so the failure stands.
                    Err(mistake) => format!("{error}; {mistake}"),
                };
                let step = &mut self.task.steps[index];
                step.state = State::Failed;
                step.error = Some(history::shorten(&error, history::MAX_TEXT));
                self.log(Kind::Failed, Some(index), Some(error.clone()));
                if self.task.phase == Phase::Forward {
                    self.give_up(index, self.turn.workflow.steps[index].on_failure, &error);
                }
            }
            Direction::Undo => {
                step.state = State::UndoFailed;
                self.log(Kind::UndoFailed, Some(index), Some(error.to_owned()));
                let reason = format!("the undo of `{}` failed: {error}", self.step_name(index));
                self.stop(Phase::UndoError, Some(index), &reason);
            }
        }
    }

    /// Whether the `catch` of step `index` lets the order go on after this failure. It sees none if the service was never
    /// asked.
    fn is_caught(&mut self, index: usize, failure: Failure, error: &str, answered: bool) -> Result<bool, Mistake> {
        let spec = &self.turn.workflow.steps[index];
        let is_asked = spec.catch.is_some() || spec.undo_is_mapped();
        self.task.steps[index].failure = is_asked.then(|| failure.clone());
        let Some(catch) = spec.catch.as_ref().filter(|_| answered && failure.kind != FailureKind::Mistake) else {
            return Ok(false);
        };
        // An order that is being undone does not go on.
        if matches!(self.task.phase, Phase::Undoing | Phase::UndoError) {
            return Ok(false);
        }
        let names =
            names(&self.task, index, Direction::Do, self.turn).with("error", Cow::Owned(names::error(&failure, error)));
        let test = catch.test(&names);
        self.turn.outputs.loss()?;
        let test = test?;
        if test.holds {
            self.task.steps[index].state = State::Caught;
            self.log(Kind::Caught, Some(index), Some(error.to_owned()));
            self.wake = true;
        }
        Ok(test.holds)
    }

    /// Gives the late attempt that holds step `index` more time. A Wake that names the previous version makes a
    /// scheduler re-send its request with the new `complete_by`.
    pub(crate) fn extend(&mut self, index: usize, late: Late) {
        let until = plus(self.turn.now, late.extend);
        let step = &mut self.task.steps[index];
        if let State::Processing { complete_by, .. } = &mut step.state {
            *complete_by = until;
        }
        step.extended += 1;
        step.claimed_at = self.task.version;
        self.task.forward_by = self.task.forward_by.max(Some(until));
        self.log(Kind::Extended, Some(index), None);
        self.extended = true;
    }

    /// An attempt ended without success: the next one follows on the retry ladder, or attempts are spent.
    pub(crate) fn miss(&mut self, index: usize, direction: Direction, miss: Miss, error: &str, failure: Failure) {
        let now = self.turn.now;
        let version = self.task.version;
        let kind = match miss {
            Miss::Expired => Kind::Expired,
            Miss::Unavailable(_) => Kind::Unavailable,
            Miss::Deferred(_) | Miss::NotYet => Kind::Deferred,
        };
        // Only a record that was mended by hand can lack the work of a claim.
        let Some(work) = self.turn.workflow.steps[index].work(direction) else { return };
        let phase = self.task.phase;
        let poll = self.turn.workflow.steps[index].poll.as_ref().filter(|_| direction == Direction::Do);
        let may_have_acted = direction == Direction::Do && !matches!(miss, Miss::Deferred(_));
        let is_asked = self.turn.workflow.steps[index].undo_is_mapped();
        let step = &mut self.task.steps[index];
        step.unsure |= may_have_acted && is_asked;
        step.error = Some(history::shorten(error, history::MAX_TEXT));
        if miss != Miss::Expired {
            step.settled_at = version;
        }
        if let Some(poll) = poll.filter(|_| phase == Phase::Forward) {
            self.look_again(index, miss, poll, error);
            return;
        }
        let step = &mut self.task.steps[index];
        let failures = match direction {
            Direction::Do => &mut step.failures,
            Direction::Undo => &mut step.undo_failures,
        };
        let rung = match miss {
            Miss::Deferred(wait) => Rung::Retry(wait),
            // A poll has no ladder, and the order is not Forward.
            _ if poll.is_some() => Rung::Retry(SignedDuration::ZERO),
            Miss::NotYet => Rung::Retry(SignedDuration::ZERO),
            Miss::Expired | Miss::Unavailable(_) => {
                *failures += 1;
                match work.retry.after(*failures) {
                    Rung::Retry(wait) => {
                        let wait = self.turn.agents.back_off(work.agent, wait, now);
                        Rung::Retry(if let Miss::Unavailable(Some(wish)) = miss { wait.max(wish) } else { wait })
                    }
                    Rung::Exhausted(then) => Rung::Exhausted(then),
                }
            }
        };
        let attempts = *failures;
        // A poll's looks are not logged.
        if poll.is_none() {
            self.log(kind, Some(index), Some(error.to_owned()));
        }
        let step = &mut self.task.steps[index];
        match (direction, rung) {
            // A sibling of a failed step: nothing new starts. In an undo, the outcome of its last attempt stays unknown.
            (Direction::Do, Rung::Retry(_)) if phase != Phase::Forward => self.let_rest(index),
            (Direction::Do, Rung::Exhausted(_)) if !matches!(phase, Phase::Forward | Phase::Error) => {
                self.let_rest(index);
            }
            (Direction::Do, Rung::Retry(wait)) => {
                step.state = State::Pending { not_before: Some(plus(now, wait)) };
                self.wake = true;
            }
            (Direction::Do, Rung::Exhausted(then)) => {
                step.state = State::Failed;
                let mut whole = format!("{error} ({attempts} failed attempts)");
                match self.is_caught(index, failure, error, true) {
                    Ok(true) => return,
                    Ok(false) => {}
                    // The `catch` has no value, so the failure stands.
                    Err(mistake) => {
                        whole = format!("{whole}; {mistake}");
                        self.task.steps[index].error = Some(history::shorten(&whole, history::MAX_TEXT));
                    }
                }
                // An order that has stopped before waits for a person, who has to decide about this step, too.
                if phase == Phase::Forward {
                    self.give_up(index, then, &whole);
                }
            }
            (Direction::Undo, Rung::Retry(wait)) => {
                step.state = State::UndoPending { not_before: Some(plus(now, wait)) };
                self.wake = true;
            }
            (Direction::Undo, Rung::Exhausted(_)) => {
                step.state = State::UndoFailed;
                let name = self.step_name(index);
                let reason = format!("the undo of `{name}` failed: {error} ({attempts} failed attempts)");
                self.stop(Phase::UndoError, Some(index), &reason);
            }
        }
    }

    /// The attempt of step `index` is over, and no other starts until the order goes on.
    fn let_rest(&mut self, index: usize) {
        self.task.steps[index].state = State::Pending { not_before: None };
        // The undo may have waited only for this attempt.
        self.wake |= self.task.phase == Phase::Undoing && self.turn.workflow.tombstones;
    }

    /// After a look of step `index` that found nothing or did not succeed, arranges the next, until the poll's time is
    /// over. If a look changes nothing and this one was answered, this save claims the next, which spares a save and a
    /// Wake.
    fn look_again(&mut self, index: usize, miss: Miss, poll: &Poll, error: &str) {
        let now = self.turn.now;
        let wish = match miss {
            Miss::Unavailable(wish) => wish.unwrap_or_default(),
            Miss::Deferred(wait) => wait,
            Miss::Expired | Miss::NotYet => SignedDuration::ZERO,
        };
        let (mut from, every) = (plus(now, poll.every.max(wish)), plus(now, poll.every));
        if let Some(until) = self.task.steps[index].poll_until {
            // A longer wait must not end the poll.
            from = from.min(plus(until, -SignedDuration::from_millis(1)));
        }
        if self.task.steps[index].poll_until.is_some_and(|until| every >= until) {
            let error = format!("not done within {:#}: {error}", poll.within);
            self.fail(index, Direction::Do, &error, Failure::of(FailureKind::Timeout));
            return;
        }
        self.task.steps[index].state = State::Pending { not_before: Some(from) };
        let is_held = self.task.paused_at.is_some()
            || self.task.migration.is_some()
            || is_withheld(&self.task, index, Direction::Do, self.turn)
            || self.task.is_over(now, self.turn.skew);
        let is_near = plus(now, MAX_DELAY) >= from;
        if miss == Miss::Expired || !self.turn.workflow.steps[index].looks_safely() || is_held || !is_near {
            self.wake = true;
            return;
        }
        match call(&self.task, index, Direction::Do, self.turn) {
            Ok(call) => self.claim(from, index, Direction::Do, call),
            Err(mistake) => self.mistaken(index, Direction::Do, &mistake),
        }
    }
}
