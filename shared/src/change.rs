//! One change of a task: the transitions that scheduler and supervisor share.
//!
//! A [`Change`] starts as the recorded task with the next version and ends as a [`Decision::Save`]. Its callers choose
//! the transition; the code here defines what each one does to the record and what must be sent after it.

mod again;
pub(crate) mod attempt;
pub(crate) mod beat;
mod callback;
pub(crate) mod child;
mod effects;
pub(crate) mod list;
mod migrate;
mod pages;
mod people;
mod remind;

pub(crate) use callback::{called_back, is_callback};
use effects::{Mapped, call, is_withheld, may_remind};
pub(crate) use effects::{
    alert, first_notice, is_past, next_claim, notice, request, tell_before_undo, turn_notices, wake,
};
pub use effects::{history, received};
pub(crate) use migrate::{migrate, stay};

use crate::decision::{Decision, Turn};
use crate::expression::Mistake;
use crate::history::{self, Entry, Kind};
use crate::message::{Effect, MAX_DELAY, MAX_OUTPUT, NoticeKind, Wake};
use crate::names::{self, names};
use crate::retry::Then;
use crate::step::{Direction, Failure, FailureKind, State, Step};
use crate::task::{Alert, Phase, Task, Way, as_position, grace, moved};
use crate::time::{SignedDuration, Timestamp, plus};
use serde_json::Value;

pub(crate) use remind::reminders;

/// A task on its way to the next version.
pub(crate) struct Change<'a> {
    pub(crate) task: Task,
    turn: &'a Turn<'a>,
    requests: Vec<Effect>,
    notice: Option<(NoticeKind, Option<usize>)>,
    wake: bool,
    exact_due: bool,
    extended: bool,
    /// A step began to wait for a time.
    waits: bool,
    /// The order that started this one has to look, although the task has not just ended.
    tells_parent: bool,
    /// At the last save, waits that end by this time could have a Wake.
    reach: Timestamp,
    /// First version that showed a person the same as the one before this change.
    same_since: u64,
    /// What its history said before this change.
    said: (usize, Option<Entry>),
}

/// The number of entries that are changes to a person, and the last one. A reminder is no change.
fn said(log: &[Entry]) -> (usize, Option<Entry>) {
    let counts = |entry: &&Entry| entry.1 != Kind::Reminded;
    (log.iter().filter(counts).count(), log.iter().rev().find(counts).cloned())
}

impl<'a> Change<'a> {
    pub(crate) fn begin(task: &Task, turn: &'a Turn<'a>) -> Self {
        let (same_since, reach) = (task.same_since(), plus(task.updated_at, MAX_DELAY));
        let said = said(&task.log);
        let mut task = task.clone();
        task.version += 1;
        task.updated_at = turn.now.max(task.updated_at);
        task.books = None;
        Self {
            task,
            turn,
            requests: Vec::new(),
            notice: None,
            wake: false,
            exact_due: false,
            extended: false,
            waits: false,
            tells_parent: false,
            reach,
            same_since,
            said,
        }
    }

    /// Begins a change that is only the system's bookkeeping: a person who saw the task before it needs no second look.
    pub(crate) fn keep_books(task: &Task, turn: &'a Turn<'a>) -> Self {
        let mut change = Self::begin(task, turn);
        change.task.books = Some((change.same_since, change.task.version));
        change
    }

    fn log(&mut self, kind: Kind, step: Option<usize>, text: Option<String>) {
        let at = self.task.created_at.duration_until(self.turn.now).as_millis();
        let attempt = step.map_or(0, |i| self.task.steps[i].attempt);
        let step = step.map(as_position);
        let at = i64::try_from(at).unwrap_or(i64::MAX);
        history::push(&mut self.task.log, Entry(at, kind, step, attempt, text));
    }

    pub(crate) fn note_act(&mut self, kind: Kind, step: Option<usize>, by: &str, reason: &str) {
        self.task.acted_at = self.task.version;
        self.task.acted_on = if self.same_since + 1 < self.task.version { self.same_since } else { 0 };
        self.log(kind, step, Some(history::act_text(by, reason)));
    }

    /// Sends this as well.
    pub(crate) fn with(mut self, effects: Vec<Effect>) -> Self {
        self.requests.extend(effects);
        self
    }

    /// Asks for a notice to the submitter.
    pub(crate) fn tell(&mut self, kind: NoticeKind, step: Option<usize>) {
        self.notice = Some((kind, step));
    }

    /// Claims every step that can be claimed now, and ends the task if nothing is left to do.
    pub(crate) fn advance(&mut self) {
        if self.task.migration.is_some() {
            return;
        }
        match self.task.phase {
            Phase::Forward => {
                if !self.task.is_over(self.turn.now, self.turn.skew) {
                    self.take_turns(Direction::Do, true);
                }
                // If an expression turned it to undo, a later save decides the undo.
                if self.task.phase == Phase::Forward {
                    self.finish();
                }
            }
            Phase::Undoing => {
                // Once another instance has begun the undo, a lagging clock here must not hold it up. Otherwise the
                // reply to the last undo would not end the task, and no due time would bring it back (simulation, seed
                // 91). Any reply that counts is too early to begin the undo, also during a pause.
                let from = self.task.undo_from(self.turn.workflow, self.turn.skew);
                let is_early = from.is_some_and(|from| self.turn.now < from);
                if is_early && !self.task.is_undo_begun() {
                    return;
                }
                self.decide_undo();
                self.take_turns(Direction::Undo, true);
                // If nothing was ever done, the undo ends before it begins.
                if !self.task.steps.iter().any(Step::owes_undo) {
                    self.end_undo();
                }
            }
            Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => {}
        }
    }

    /// Ends the task if nothing is left to do, or to undo once the undo has begun. Claims nothing.
    pub(crate) fn finish(&mut self) {
        // The other definition may have more steps.
        if self.task.migration.is_some() {
            return;
        }
        let steps = &self.task.steps;
        match self.task.phase {
            Phase::Forward if steps.iter().all(Step::is_settled) => match self.returned() {
                Ok(output) => {
                    self.task.output = output;
                    self.end(Phase::Processed, Kind::TaskProcessed, NoticeKind::Completed);
                }
                Err(mistake) => {
                    let reason = format!("the `output` of the order: {mistake}");
                    self.fail_whole(None, self.turn.workflow.on_failure, reason);
                }
            },
            Phase::Undoing if !steps.iter().any(Step::owes_undo) => self.end_undo(),
            Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => {}
        }
    }

    /// What a completed order returns.
    fn returned(&self) -> Result<Option<Value>, Mistake> {
        if self.turn.workflow.of_item {
            // Once its call is made, the order must not fail, so an output too long for the record is left out. The
            // step's `output` can shorten it.
            return Ok(self.task.steps.first().and_then(|step| step.output.clone()));
        }
        let Some(output) = &self.turn.workflow.output else { return Ok(None) };
        let value = output.evaluate(&names::of_whole(&self.task, output, self.turn));
        self.turn.outputs.loss()?;
        let value = value?;
        let bytes = crate::json::length(&value);
        if bytes > MAX_OUTPUT || crate::json::is_deep(&value) {
            return Err(Mistake(format!(
                "it has {bytes} bytes; the limits are {MAX_OUTPUT} bytes and 50 levels of nesting: return a reference \
                 instead"
            )));
        }
        Ok(Some(value).filter(|value| !value.is_null()))
    }

    /// Advances each step that needs no agent, and ends the task if nothing is left to do. Claims nothing.
    pub(crate) fn run_on(&mut self) {
        if self.task.phase == Phase::Forward && !self.task.is_over(self.turn.now, self.turn.skew) {
            self.take_turns(Direction::Do, false);
        }
        self.finish_forward();
    }

    /// Ends the task if nothing is left to do. No queue would redeliver this, so the notice is owed.
    pub(crate) fn finish_forward(&mut self) {
        if self.task.phase == Phase::Forward {
            self.finish();
            self.owe_final_notice();
        }
    }

    /// The undo had begun with some steps, and now covers all.
    pub(crate) fn undo_the_rest(&mut self) {
        for step in self.task.steps.iter_mut().filter(|step| step.state == State::UndoFailed) {
            (step.state, step.undo_failures) = (State::UndoPending { not_before: None }, 0);
        }
        self.settle_by_events();
        self.decide_undo();
    }

    /// Decides to undo each step that may have run. An undo is left out if it needs something of a step that was
    /// refused and so did nothing.
    fn decide_undo(&mut self) {
        if !self.task.is_undo_begun() {
            self.settle_by_events();
        }
        let again = self.task.again.as_ref();
        for (index, (step, spec)) in self.task.steps.iter_mut().zip(&self.turn.workflow.steps).enumerate() {
            if again.is_some_and(|again| !again.has(index)) {
                continue;
            }
            if matches!(step.state, State::Waiting { .. }) {
                step.state = State::Pending { not_before: None };
            }
            if step.is_undo_begun() || !step.may_have_run() {
                continue;
            }
            let has_undo = spec.undo.is_some() && !spec.leaves_nothing(step) || step.kids.is_some();
            step.state = if has_undo { State::UndoPending { not_before: None } } else { State::Undone };
            // A person set it for the step only.
            if spec.undo.as_ref().is_some_and(|undo| undo.with.is_some()) {
                step.input = None;
            }
        }
    }

    /// Advances each step whose turn has come, and then those that become ready. All are decided before one is claimed,
    /// so an order that fails on the way starts nothing new.
    ///
    /// Without `claims`, steps that need an agent are left to a scheduler.
    fn take_turns(&mut self, direction: Direction, claims: bool) {
        let (now, phase) = (self.turn.now, self.task.phase);
        let (mut chosen, mut calls): (Vec<usize>, Vec<(usize, Mapped)>) = (Vec::new(), Vec::new());
        let (mut children, mut lists): (Vec<(usize, Value)>, Vec<usize>) = Default::default();
        // Each iteration settles or chooses the ready steps.
        loop {
            let waiting = self.task.waiting(self.turn.workflow);
            let ready = waiting.filter(|(_, from)| from.is_none_or(|t| t <= now)).map(|(index, _)| index);
            let is_new = |index: &usize| !chosen.contains(index);
            let ready: Vec<_> =
                ready.filter(|index| is_new(index) && !is_withheld(&self.task, *index, direction, self.turn)).collect();
            if ready.is_empty() {
                break;
            }
            for index in ready {
                let step = &self.task.steps[index];
                let is_wait = direction == Direction::Do && matches!(step.state, State::Waiting { .. });
                if step.kids.is_some() && (is_wait || direction == Direction::Undo) {
                    chosen.push(index);
                    // Only a scheduler reads and makes other orders. If a step before this one has just stopped or turned
                    // the task, the orders are looked at once it goes on.
                    match (direction, list::has(&self.task, index)) {
                        _ if !claims || self.task.phase != phase => {}
                        (Direction::Do, true) => self.look_at_list(index),
                        (Direction::Do, false) => self.look(index),
                        (Direction::Undo, true) => self.unwind_list(index),
                        (Direction::Undo, false) => self.unwind(index),
                    }
                    continue;
                }
                if is_wait {
                    self.computed(index, None);
                    continue;
                }
                if direction == Direction::Do && !self.is_to_be_claimed(index) {
                    continue;
                }
                chosen.push(index);
                if !claims {
                    continue;
                }
                if direction == Direction::Do && self.turn.workflow.steps[index].each().is_some() {
                    lists.push(index);
                    continue;
                }
                if direction == Direction::Do && self.turn.workflow.steps[index].child.is_some() {
                    match child::input(&self.task, index, self.turn) {
                        Ok(input) => children.push((index, input)),
                        Err(mistake) => self.mistaken(index, direction, &mistake),
                    }
                    continue;
                }
                match call(&self.task, index, direction, self.turn) {
                    Ok(call) => calls.push((index, call)),
                    Err(mistake) => self.mistaken(index, direction, &mistake),
                }
            }
            if self.task.phase != phase {
                return;
            }
        }
        let mut goes_on = false;
        for index in lists {
            self.begin_list(index);
            if self.task.phase != phase {
                return;
            }
            goes_on |= self.task.steps[index].is_settled();
        }
        for (index, call) in calls {
            self.claim(now, index, direction, call);
        }
        for (index, input) in children {
            self.begin_child(index, input);
        }
        // An empty list is done at once.
        if goes_on && self.task.phase == phase {
            self.take_turns(direction, claims);
        }
        let is_due = |(index, at): &(usize, Timestamp)| claims && *at <= now && may_remind(*index, self.turn);
        let reminders: Vec<_> = self.task.reminders().filter(is_due).collect();
        reminders.into_iter().for_each(|(index, _)| self.remind(index));
    }

    /// Step `index` gets its turn: true if an agent must do it. Otherwise it is passed over, computed, failed or waits.
    fn is_to_be_claimed(&mut self, index: usize) -> bool {
        let spec = &self.turn.workflow.steps[index];
        if let Way::PassOver(before) = self.task.way(index, self.turn.workflow) {
            self.pass_over(index, format!("`{}` did not run", self.step_name(before)));
            return false;
        }
        // When the wait began; but a time that expressions read is set once.
        let waits = spec.wait.is_some() || spec.child.is_some();
        let turn = &mut self.task.steps[index].turn;
        if spec.reads("now") && turn.is_none() || waits && !spec.reads("now") {
            *turn = Some(self.turn.now);
        }
        let names = names(&self.task, index, Direction::Do, self.turn);
        let test = match &spec.when {
            Some(when) if !self.task.steps[index].is_tried() => when.test(&names).map(Some),
            Some(_) | None => Ok(None),
        };
        let value = spec.value.as_ref().map(|value| value.evaluate(&names));
        let reason = spec.fail.as_ref().map(|reason| reason.text_of(&names));
        let until = spec.wait.as_ref().map(|wait| wait.end(&names, self.turn.now, spec.timeout));
        drop(names);
        if let Err(mistake) = self.turn.outputs.loss() {
            self.mistaken(index, Direction::Do, &mistake);
            return false;
        }
        match (test, value, reason) {
            (Err(mistake), ..) => self.mistaken(index, Direction::Do, &mistake),
            // A `fail` step whose condition is false: go on.
            (Ok(Some(test)), _, Some(_)) if !test.holds => self.computed(index, Some(test.why)),
            (Ok(Some(test)), ..) if !test.holds => self.pass_over(index, test.why),
            (Ok(_), Some(Ok(value)), _) => match self.keep(index, value, "the value") {
                Ok(()) => self.computed(index, None),
                Err(mistake) => self.mistaken(index, Direction::Do, &mistake),
            },
            (Ok(_), None, Some(Ok(reason))) => {
                self.fail(index, Direction::Do, &reason, Failure::of(FailureKind::Refused));
            }
            (Ok(_), Some(Err(mistake)), _) | (Ok(_), None, Some(Err(mistake))) => {
                self.mistaken(index, Direction::Do, &mistake);
            }
            (Ok(_), None, None) => match until {
                None => return true,
                Some(Ok(until)) if until <= self.turn.now => self.computed(index, Some("its time has passed".into())),
                Some(Ok(until)) => {
                    let event = spec.event();
                    self.task.steps[index].state = State::Waiting { until, event: event.is_some() };
                    self.log(Kind::Waiting, Some(index), Some(format!("until {until}")));
                    self.waits = true;
                    self.begin_to_ask(index, self.turn.now, until);
                    if let Some(event) = event
                        && !event.refuse_early
                    {
                        self.take_kept(index, &event.name);
                    }
                }
                Some(Err(mistake)) => self.mistaken(index, Direction::Do, &mistake),
            },
        }
        false
    }

    /// Restarts the time of each event wait or poll that ran out while the task was stopped or paused.
    fn renew_waits(&mut self) {
        let now = self.turn.now;
        for (step, spec) in self.task.steps.iter_mut().zip(&self.turn.workflow.steps) {
            if let State::Waiting { until, event: true } = &mut step.state
                && self.task.phase == Phase::Forward
                && *until <= now
            {
                let time = spec.asks_for();
                *until = plus(now, time);
                step.alert_at = step.alert_at.map(|_| plus(now, time / 2));
            }
            if step.poll_until.is_some_and(|until| until <= now) {
                step.poll_until = None;
            }
        }
    }

    /// Whether an undo would have nothing to take back.
    pub(crate) fn has_nothing_to_undo(&self) -> bool {
        let mut steps = self.task.steps.iter().zip(&self.turn.workflow.steps);
        self.task.events.iter().all(|event| event.data.is_none())
            && !steps.any(|(step, spec)| (spec.undo.is_some() || step.kids.is_some()) && step.may_have_run())
    }

    fn pass_over(&mut self, index: usize, why: String) {
        let step = &mut self.task.steps[index];
        step.state = State::PassedOver;
        // The history may drop its entry.
        step.error = Some(history::shorten(&why, history::MAX_TEXT));
        self.log(Kind::PassedOver, Some(index), Some(why));
    }

    /// A step without an agent is done: computed, or its wait has ended.
    fn computed(&mut self, index: usize, why: Option<String>) {
        self.task.steps[index].state = State::Processed;
        self.log(Kind::Completed, Some(index), why);
    }

    /// An expression has no value for this order, so the step fails before anything is called.
    pub(crate) fn mistaken(&mut self, index: usize, direction: Direction, mistake: &Mistake) {
        self.fail(index, direction, &mistake.to_string(), Failure::of(FailureKind::Mistake));
    }

    fn step_name(&self, index: usize) -> &'a str {
        &self.turn.workflow.steps[index].name
    }

    /// A forward step failed permanently: undo the task, or stop it and alert an operator.
    fn give_up(&mut self, index: usize, then: Then, error: &str) {
        self.fail_whole(Some(index), then, format!("`{}` failed: {error}", self.step_name(index)));
    }

    fn fail_whole(&mut self, index: Option<usize>, then: Then, reason: String) {
        match then {
            Then::Undo => match self.irreversible() {
                None => self.turn_to_undo(reason),
                Some(step) => {
                    let reason = format!("{reason}; `{step}` cannot be undone, so a person must decide");
                    self.stop(Phase::Error, index, &reason);
                }
            },
            Then::Error => self.stop(Phase::Error, index, &reason),
        }
    }

    /// The order's deadline passed: undo the task, or stop it and alert an operator.
    pub(crate) fn pass_deadline(&mut self) {
        let (workflow, Phase::Forward) = (self.turn.workflow, self.task.phase) else { return };
        let reason = format!("the order's deadline of {:#} passed", workflow.deadline.unwrap_or_default());
        self.fail_whole(None, workflow.on_failure, reason);
    }

    /// A step that may have run and cannot be undone.
    pub(crate) fn irreversible(&self) -> Option<&'a str> {
        let specs = &self.turn.workflow.steps;
        self.task
            .steps
            .iter()
            .zip(specs)
            .find(|(s, spec)| spec.irreversible && s.may_have_run())
            .map(|(_, spec)| spec.name.as_str())
    }

    /// Begins the undo of everything; nothing starts forward.
    pub(crate) fn turn_to_undo(&mut self, reason: String) {
        self.drop_migration("the order is being undone");
        self.task.again = None;
        self.task.phase = Phase::Undoing;
        self.task.turned_at = self.task.version;
        self.task.alert = None;
        self.task.notice_owed = false;
        self.log(Kind::TaskUndoing, None, Some(reason.clone()));
        self.task.reason = Some(history::shorten(&reason, history::MAX_TEXT));
        self.notice = Some((NoticeKind::Failed, None));
        self.wake = true;
    }

    /// Stops the task for a person to decide, because its record has no room for this change. A step that was just
    /// answered fails, and the output is lost.
    pub(crate) fn stop_full(&mut self, settled: Option<(usize, Direction)>, why: &str) {
        if let Some((index, direction)) = settled {
            let (state, kind) = match direction {
                Direction::Do => (State::Failed, Kind::Failed),
                Direction::Undo => (State::UndoFailed, Kind::UndoFailed),
            };
            let step = &mut self.task.steps[index];
            step.settled_at = self.task.version;
            step.error = Some(history::shorten(why, history::MAX_TEXT));
            step.state = state;
            self.log(kind, Some(index), None);
        }
        let index = settled.map(|(index, _)| index);
        match self.task.phase {
            Phase::Forward => self.stop(Phase::Error, index, why),
            Phase::Undoing => self.stop(Phase::UndoError, index, why),
            // It stopped or ended before: no new alert.
            Phase::Error | Phase::UndoError | Phase::Processed | Phase::Undone => {}
        }
    }

    /// Ends every pause of the task, also one by its parent.
    pub(crate) fn end_pause(&mut self) {
        self.task.paused_at = None;
        if let Some(parent) = &mut self.task.parent {
            parent.paused = false;
        }
    }

    /// Stops the task in an error phase and owes an alert.
    fn stop(&mut self, phase: Phase, index: Option<usize>, reason: &str) {
        let reason = history::shorten(reason, history::MAX_TEXT);
        self.rest(phase);
        self.task.alert =
            Some(Alert { version: self.task.version, step: index.map(as_position), reason: reason.clone() });
        self.log(Kind::TaskError, index, Some(reason.clone()));
        self.task.reason = Some(reason);
        self.notice = Some((NoticeKind::AttentionNeeded, index));
    }

    fn end(&mut self, phase: Phase, kind: Kind, notice: NoticeKind) {
        self.rest(phase);
        // An alert about a wait is useless after the end.
        self.task.alert = None;
        self.log(kind, None, None);
        self.notice = Some((notice, None));
    }

    /// From now on nothing happens unless a person acts.
    fn rest(&mut self, phase: Phase) {
        self.task.phase = phase;
        // A resubmission means that the task shall run, so the pause ends here.
        self.end_pause();
        self.task.turned_at = self.task.version;
        self.task.notice_owed = self.turn.workflow.strict_notices && self.task.reply_queue.is_some();
        self.wake = false;
    }

    /// Continues a stopped task in the direction that failed, with every failed step reset.
    pub(crate) fn resubmit(&mut self, by: &str, reason: &str) {
        self.restart();
        self.note_act(Kind::Resubmitted, None, by, reason);
        // An event or a callback may have settled the last step during Error: a Wake would find nothing to claim.
        self.end_what_is_done();
    }

    /// [`Change::resubmit`] without history entry and end.
    fn restart(&mut self) {
        self.take_callbacks();
        let is_undo = self.task.phase == Phase::UndoError;
        for step in &mut self.task.steps {
            if is_undo && !step.is_undo_begun() {
                continue;
            }
            // Items that failed after the task stopped are tried again, too.
            if let (State::Failed | State::Waiting { .. }, Some(kids)) = (&step.state, &mut step.kids) {
                kids.try_again();
            }
            match step.state {
                State::Failed if step.kids.is_some() => {
                    step.state = State::Waiting { until: self.turn.now, event: false };
                    step.error = None;
                    step.failure = None;
                }
                State::Failed => {
                    step.state = State::Pending { not_before: None };
                    step.failure = None;
                    step.poll_until = None;
                }
                State::UndoFailed => step.state = State::UndoPending { not_before: None },
                State::Pending { .. }
                | State::Processing { .. }
                | State::Waiting { .. }
                | State::Processed
                | State::Skipped
                | State::PassedOver
                | State::Caught
                | State::UndoPending { .. }
                | State::UndoProcessing { .. }
                | State::Undone => {}
            }
            step.failures = 0;
            step.undo_failures = 0;
        }
        self.go_on();
    }

    /// In Error, completes the failed steps whose callbacks came.
    fn take_callbacks(&mut self) {
        for index in 0..self.task.steps.len() {
            let has_failed = self.task.phase == Phase::Error && self.task.steps[index].state == State::Failed;
            if has_failed && called_back(&self.task, index).is_some() {
                let step = &mut self.task.steps[index];
                step.state = State::Processed;
                step.error = None;
                step.failure = None;
            }
        }
    }

    /// Restarts a stopped task in the direction that failed.
    fn go_on(&mut self) {
        self.task.phase = match self.task.phase {
            Phase::Error => Phase::Forward,
            Phase::UndoError => Phase::Undoing,
            other @ (Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Undone) => other,
        };
        self.task.turned_at = 0;
        self.task.alert = None;
        self.task.notice_owed = false;
        self.task.reason = self.why_undone();
        // A late order gets its whole time again, because it would fail at once. So does a wait that is over.
        let now = self.turn.now;
        self.renew_waits();
        self.look_soon();
        if self.task.phase == Phase::Forward && self.task.deadline.is_some_and(|deadline| deadline <= now) {
            self.task.deadline = self.turn.workflow.deadline.map(|time| plus(now, time));
            // Otherwise old back-offs would use up the new time.
            for step in &mut self.task.steps {
                if let State::Pending { not_before } = &mut step.state {
                    *not_before = not_before.map(|from| from.min(plus(now, self.turn.skew)));
                }
            }
        }
        self.wake = true;
    }

    /// Why the task is being undone, if it is: the failed undo has replaced the reason.
    fn why_undone(&self) -> Option<String> {
        let is_undone = self.task.phase == Phase::Undoing && self.task.again.is_none();
        let turn = self.task.log.iter().rev().find(|Entry(_, kind, ..)| *kind == Kind::TaskUndoing && is_undone);
        turn.and_then(|Entry(.., text)| text.as_deref()).map(|text| history::shorten(text, history::MAX_TEXT))
    }

    /// After an operator settled step `settled`: restarts a stopped task once no failed step is left. If the task had
    /// stopped because of `settled`, the reason is now that of such a step.
    pub(crate) fn go_on_if_nothing_failed(&mut self, settled: usize) {
        self.take_callbacks();
        let failed = self.task.failed().next();
        match (self.task.phase, failed) {
            (Phase::Error | Phase::UndoError, None) => self.go_on(),
            (Phase::Error | Phase::UndoError, Some(index)) => {
                let undo = if self.task.phase == Phase::UndoError { "the undo of " } else { "" };
                let failed = |index| format!("{undo}`{}` failed", self.step_name(index));
                if self.task.reason.as_ref().is_some_and(|reason| reason.starts_with(&failed(settled))) {
                    let error = self.task.steps[index].error.as_deref().unwrap_or("for an unknown reason");
                    let reason = format!("{}: {error}", failed(index));
                    self.task.reason = Some(history::shorten(&reason, history::MAX_TEXT));
                }
            }
            (Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Undone, _) => self.wake = true,
        }
    }

    /// If the task has ended, keeps the final notice due until it is sent, because no queue redelivers an action.
    pub(crate) fn owe_final_notice(&mut self) {
        if matches!(self.task.phase, Phase::Processed | Phase::Undone) {
            self.task.notice_owed = self.task.reply_queue.is_some();
        }
    }

    /// Ends the pause. An attempt that expired meanwhile is taken back without a failure.
    pub(crate) fn unpause(&mut self) {
        self.end_pause();
        self.renew_waits();
        self.look_soon();
        for index in 0..self.task.steps.len() {
            let Some((direction, by)) = self.task.steps[index].claim() else { continue };
            if self.turn.now < by {
                continue;
            }
            // As after any expiry, only after the skew is the agent surely silent.
            let not_before = Some(plus(by, self.turn.skew)).filter(|&t| t > self.turn.now);
            self.task.steps[index].unsure |=
                direction == Direction::Do && self.turn.workflow.steps[index].undo_is_mapped();
            self.task.steps[index].state = match direction {
                Direction::Do => State::Pending { not_before },
                Direction::Undo => State::UndoPending { not_before },
            };
            self.log(Kind::Expired, Some(index), Some("no answer before or during the pause; not counted".into()));
        }
        self.wake = true;
    }

    pub(crate) fn alert_sent(&mut self) {
        self.task.alert = None;
        self.log(Kind::AlertSent, None, None);
    }

    /// Asks for a Wake if part of this task waits for a time.
    pub(crate) fn wake_if_waiting(&mut self) {
        self.wake = true;
    }

    /// Sets `due` to the wanted time even if the present one is early enough: a supervisor has just used it up.
    pub(crate) fn use_up_due(&mut self) {
        self.exact_due = true;
    }

    /// Finishes the change: settles `due`, and returns what to send after the save.
    pub(crate) fn save(mut self) -> Decision {
        self.release_unused();
        // Only a look of a poll, or a reminder. With one every few seconds, an action would never meet the version its
        // operator saw.
        if self.task.phase == Phase::Forward && self.said == said(&self.task.log) {
            self.task.books = Some((self.same_since, self.task.version));
        }
        let Self { mut task, turn, requests: mut effects, notice, wake, exact_due, extended, waits, reach, .. } = self;
        let tells_parent = self.tells_parent;
        // Only a claimed step has heartbeats.
        task.steps.iter_mut().filter(|step| step.claim().is_none()).for_each(|step| step.heart = None);
        // A step that waits changes when a supervisor must look, most often to a later time.
        let exact_due = exact_due || waits;
        // What the migration waits for may just have ended.
        let wake = wake || task.migrates_at(turn.skew).is_some();
        // The Wake of a short wait. A late look may also need one for a wait that has become short.
        let wake = wake || exact_due && task.waits_until(plus(turn.now, MAX_DELAY));
        // A long wait that is short from this save on has no Wake yet.
        let shrank = |until: Timestamp| until > reach && until <= plus(task.updated_at, MAX_DELAY);
        let wake = wake
            || task.phase == Phase::Forward
                && task.paused_at.is_none()
                && task.steps.iter().filter_map(Step::acts_at).any(shrank);
        let wanted = task.wanted_due(turn.workflow, turn.skew);
        let before = task.due;
        task.due = match (task.due, wanted) {
            // Lazy: a due time that is early enough stays, because changing it costs two index writes.
            (Some(due), Some(wanted)) if due <= wanted && !exact_due => Some(due),
            (_, Some(wanted)) if exact_due => Some(wanted),
            (_, Some(wanted)) => Some(wanted.min(plus(turn.now, grace(turn.workflow)))),
            (_, None) => None,
        };
        if task.due != before {
            task.shard = moved(task.shard);
        }
        if extended {
            effects.push(Effect::Wake(Wake::new(&task, task.version - 1, 0), SignedDuration::ZERO));
        }
        // The Wake of a turn to undo is delayed until open attempts end. With open children, an immediate Wake tells
        // them first; its receiver sends the delayed one.
        let has_turned = task.turned_at == task.version && task.phase == Phase::Undoing;
        if has_turned && child::any_open(&task) {
            effects.push(Effect::Wake(Wake::new(&task, task.version, 0), SignedDuration::ZERO));
        } else if wake {
            effects.extend(self::wake(&task, turn, 0));
        }
        let has_ended = task.turned_at == task.version && task.process_state().is_final();
        if let Some(parent) = task.parent.as_ref().filter(|_| has_ended || tells_parent) {
            effects.push(Effect::Wake(Wake::hint(&task, &parent.id), SignedDuration::ZERO));
        }
        if has_ended {
            effects.extend(child::release(&task, turn));
            effects.extend(child::release_lists(&task, 0, turn));
        }
        if let Some((kind, step)) = notice {
            effects.extend(self::notice(&task, turn, kind, step));
        }
        // The sweep sends an older alert, with the notice that may have been lost with it.
        if task.alert.as_ref().is_some_and(|alert| alert.version == task.version) {
            effects.extend(alert(&task, turn));
        }
        Decision::Save { task: Box::new(task), effects }
    }
}
