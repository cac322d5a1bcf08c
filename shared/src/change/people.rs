//! Events for waiting steps: what a step takes, keeps and refuses, and how it counts people.
//!
//! A step with `people` has one place per authenticated person, never per key: the sender chooses the key. The data of
//! each event stays in the record until the last person's event comes, because `take` and `output` read it, and because
//! an undo needs it.

use super::Change;
use crate::decision::Declined;
use crate::expression::{Expression, Reference};
use crate::history::Kind;
use crate::json;
use crate::message::MAX_ANSWER;
use crate::names::names;
use crate::step::{Direction, Failure, FailureKind, State};
use crate::task::{Alert, Arrival, MAX_KEPT, Phase, Task, as_position};
use crate::time::plus;
use serde_json::{Value, json};
use std::borrow::Cow;

/// What an event means for the step that takes it.
enum Meaning {
    /// The last one; this is the step's output.
    Done(Value),
    /// More people have to send one.
    Counts,
    /// The step fails.
    Fails,
}

/// The event of this name by this person, while it is kept or counts for a step that still waits or will. One person
/// has one place per name, whatever steps wait for it, because a second click, with another key, must not count for
/// another step.
pub(crate) fn place_of<'a>(task: &'a Task, name: &str, by: Option<&str>) -> Option<&'a Arrival> {
    let is_open = |step: u16| {
        let state = task.steps.get(usize::from(step)).map(|step| &step.state);
        matches!(state, Some(State::Waiting { .. } | State::Pending { .. } | State::Failed))
    };
    let mut events = task.events.iter().filter(|event| event.data.is_some() && event.step.is_none_or(is_open));
    events.find(|event| by.is_some() && event.name == name && event.by.as_deref() == by)
}

/// Events as expressions see them.
fn list<'a>(events: impl Iterator<Item = &'a Arrival>) -> Value {
    events.map(|event| json!({ "by": event.by, "data": event.data })).collect()
}

/// Whether the present undo covers step `index`.
fn is_undone(task: &Task, index: usize) -> bool {
    task.again.as_ref().is_none_or(|again| again.has(index))
}

impl Change<'_> {
    /// Alerts operators that step `index` has waited for half of its time.
    pub(crate) fn alert_wait(&mut self, index: usize) {
        let (spec, step) = (&self.turn.workflow.steps[index], &mut self.task.steps[index]);
        let (Some(_), Some(until)) = (step.alert_at.take(), step.asks_until()) else { return };
        let time = spec.asks_for();
        let since = plus(until, -time);
        let words = spec.asks().unwrap_or_default();
        let reason = format!("`{}` {words} since {since}; half of the allowed {time:#} has passed", spec.name);
        let step = Some(as_position(index));
        let reason = crate::history::shorten(&reason, crate::history::MAX_TEXT);
        self.task.alert = Some(Alert { version: self.task.version, step, reason });
    }

    /// When step `index` begins to wait, gives it the kept events that it takes, up to the last one needed.
    pub(super) fn take_kept(&mut self, index: usize, name: &str) {
        let kept = |event: &(usize, &Arrival)| event.1.name == name && event.1.is_kept();
        let all: Vec<usize> = self.task.events.iter().enumerate().filter(kept).map(|(n, _)| n).collect();
        let counts_people = self.turn.workflow.steps[index].event().is_some_and(|event| event.people.is_some());
        let mut fails = None;
        for n in all {
            if !matches!(self.task.steps[index].state, State::Waiting { .. }) {
                return;
            }
            let event = self.task.events[n].clone();
            match self.meaning(index, &event) {
                // The failure goes last, so the other events can be undone (model).
                Ok(Meaning::Fails) if counts_people => fails = fails.or(Some(n)),
                // A no before the last yes fails the step, as if it had been waiting then.
                Ok(Meaning::Done(_)) if fails.is_some() => {
                    self.give(index, n, Meaning::Counts);
                    break;
                }
                Ok(meaning) => self.give(index, n, meaning),
                Err(_) => {}
            }
        }
        if let (Some(n), State::Waiting { .. }) = (fails, &self.task.steps[index].state) {
            self.give(index, n, Meaning::Fails);
        }
    }

    /// What an event with data means for step `index`.
    fn meaning(&mut self, index: usize, event: &Arrival) -> Result<Meaning, Declined> {
        let spec = &self.turn.workflow.steps[index];
        let Some(awaited) = self.turn.workflow.steps[index].event() else { return Err(Declined::Late) };
        let data = event.data.clone().unwrap_or_default();
        let mut names = names(&self.task, index, Direction::Do, self.turn).with("event", Cow::Owned(data.clone()));
        let before: Vec<&Arrival> = self.task.counted(index).collect();
        if awaited.people.is_some() {
            names = names.with("by", Cow::Owned(json!(event.by)));
            names = names.with("events", Cow::Owned(list(before.iter().copied())));
        }
        let holds = |condition: &Option<_>, none: bool| {
            condition.as_ref().map_or(Ok(none), |c: &Expression| c.test(&names).map(|test| test.holds))
        };
        let (takes, fails) = (holds(&awaited.take, true), holds(&awaited.failed, false));
        if self.turn.outputs.loss().is_err() {
            return Err(Declined::Unfit);
        }
        match (takes, fails) {
            (Ok(false), _) => return Err(Declined::NotTaken),
            (Err(_), _) | (_, Err(_)) => return Err(Declined::Unfit),
            (Ok(true), Ok(true)) => return Ok(Meaning::Fails),
            (Ok(true), Ok(false)) => {}
        }
        let (names, data) = match awaited.people {
            None => (names, data),
            Some(_) if before.iter().any(|other| other.by == event.by) => return Err(Declined::SamePerson),
            Some(people) if before.len() + 1 < usize::from(people) => return Ok(Meaning::Counts),
            Some(_) => {
                let all = list(before.into_iter().chain([event]));
                (names.with("events", Cow::Owned(all.clone())), all)
            }
        };
        let output = spec.output.as_ref().map_or(Ok(data), |output| output.evaluate(&names));
        drop(names);
        let output = output.map_err(|_| Declined::Unfit)?;
        self.turn.outputs.loss().map_err(|_| Declined::Unfit)?;
        // Only a trial: `give` keeps it once the event is recorded.
        let before = (self.task.steps[index].output.clone(), self.task.steps[index].beside.clone());
        let fits = self.keep(index, output.clone(), "the output");
        (self.task.steps[index].output, self.task.steps[index].beside) = before;
        fits.map(|()| Meaning::Done(output)).map_err(|_| Declined::TooLong)
    }

    /// Gives step `index` event number `n`, with this meaning.
    fn give(&mut self, index: usize, n: usize, meaning: Meaning) {
        let position = Some(as_position(index));
        match meaning {
            Meaning::Done(output) => {
                self.keep(index, output, "the output").expect("it was kept before");
                self.taken(index, n);
            }
            Meaning::Counts => {
                let event = &mut self.task.events[n];
                event.step = position;
                let (name, by) = (event.name.clone(), event.by.clone().unwrap_or_default());
                let people = self.turn.workflow.steps[index].event().and_then(|event| event.people).unwrap_or_default();
                let text = format!("event `{name}` by `{by}`: {} of {people} people", self.task.counted(index).count());
                self.log(Kind::EventCounted, Some(index), Some(text));
            }
            Meaning::Fails => {
                let event = &mut self.task.events[n];
                event.step = position;
                let data = event.data.take().unwrap_or_default();
                let by = event.by.as_ref().map_or(String::new(), |by| format!(" by `{by}`"));
                let error = format!("the event `{}`{by} says that it failed", event.name);
                let answer = if json::exceeds(&data, MAX_ANSWER) { Value::Null } else { data };
                self.fail(index, Direction::Do, &error, Failure { answer, ..Failure::of(FailureKind::Refused) });
            }
        }
    }

    /// Completes step `index` with event number `n`, the last that it needs.
    pub(super) fn taken(&mut self, index: usize, n: usize) {
        self.task.events[n].step = Some(as_position(index));
        let event = &self.task.events[n];
        let by: Vec<String> =
            self.task.counted(index).filter_map(|event| Some(format!("`{}`", event.by.as_ref()?))).collect();
        let text = match by.is_empty() {
            true => format!("event `{}`, key `{}`", event.name, event.key),
            false => format!("event `{}` by {}", event.name, by.join(", ")),
        };
        for event in self.task.events.iter_mut().filter(|event| event.is_of(index)) {
            event.data = None;
        }
        let step = &mut self.task.steps[index];
        step.state = State::Processed;
        step.error = None;
        step.failure = None;
        self.log(Kind::Completed, Some(index), Some(text));
    }

    /// Records an event for a step that waits for it or will. False if the same event by this person is recorded
    /// already.
    pub(crate) fn arrive(&mut self, arrival: Arrival) -> Result<bool, Declined> {
        let workflow = self.turn.workflow;
        let name = arrival.name.as_str();
        let is_for = |index: usize| workflow.steps[index].event().is_some_and(|event| event.name == name);
        let place = place_of(&self.task, name, arrival.by.as_deref()).map(|event| event.hash == arrival.hash);
        if place == Some(true) {
            return Ok(false);
        }
        let waits = |index: &usize| {
            matches!(self.task.steps[*index].state, State::Waiting { event: true, .. }) && is_for(*index)
        };
        let waiting: Vec<usize> = (0..workflow.steps.len()).filter(waits).collect();
        let mut declined = None;
        for index in waiting {
            match self.meaning(index, &arrival) {
                Ok(Meaning::Counts | Meaning::Done(_)) if place.is_some() => return Err(Declined::SamePerson),
                Ok(meaning) => {
                    self.task.events.push(arrival);
                    self.give(index, self.task.events.len() - 1, meaning);
                    return Ok(true);
                }
                Err(why) => declined = declined.or(Some(why)),
            }
        }
        // A no by somebody whose yes is kept can count later.
        let may_fail = |index: usize| workflow.steps[index].event().is_some_and(|event| event.failed.is_some());
        let is_early = self.task.to_come(name, workflow).any(may_fail);
        let again = if is_early { Declined::Early } else { Declined::SamePerson };
        if let Some(declined) = declined.or(place.map(|_| again)) {
            return Err(declined);
        }
        // Keep only as many as steps take: senders see success.
        let to_come: usize = self.task.to_come(name, workflow).map(|index| self.task.places(index, workflow)).sum();
        if to_come <= self.task.kept().filter(|event| event.name == name).count() {
            let is_open = |index: usize| is_for(index) && matches!(self.task.steps[index].state, State::Pending { .. });
            let is_early = (0..workflow.steps.len()).any(is_open);
            return Err(if is_early { Declined::Early } else { Declined::Late });
        }
        // Only kept events count against the limit, not those that a step has already.
        if self.task.kept().count() >= MAX_KEPT {
            return Err(Declined::Full);
        }
        // An event that no step will ever take would hold another's place, and its sender would never know.
        let refusals = self.task.to_come(name, workflow).map(|index| self.never_takes(index, &arrival));
        if let Some(Some(declined)) = refusals.reduce(|first, next| first.and_then(|first| next.map(|_| first))) {
            return Err(declined);
        }
        let text = format!("event `{name}`, key `{}`", arrival.key);
        self.task.events.push(arrival);
        self.log(Kind::EventKept, None, Some(text));
        Ok(true)
    }

    /// Why step `index` refuses this event whatever earlier steps do, judged by expressions that do not read them.
    fn never_takes(&self, index: usize, event: &Arrival) -> Option<Declined> {
        let awaited = self.turn.workflow.steps[index].event()?;
        let is_known = |one: &Reference| matches!(one.path[0].as_str(), "event" | "by" | "input" | "config" | "order");
        let names = names(&self.task, index, Direction::Do, self.turn)
            .with("event", Cow::Owned(event.data.clone().unwrap_or_default()))
            .with("by", Cow::Owned(json!(event.by)));
        let test = |condition: &Option<Expression>| {
            let condition = condition.as_ref().filter(|one| one.references().iter().all(is_known))?;
            Some(condition.test(&names).map(|test| test.holds))
        };
        let output = self.turn.workflow.steps[index].output.as_ref();
        let output = output.filter(|output| output.references().into_iter().all(is_known));
        match (test(&awaited.take), test(&awaited.failed)) {
            (Some(Ok(false)), _) => Some(Declined::NotTaken),
            (Some(Err(_)), _) | (_, Some(Err(_))) => Some(Declined::Unfit),
            // It has no output.
            (_, Some(Ok(true))) => None,
            (_, None) if awaited.failed.is_some() => None,
            _ => output.is_some_and(|output| output.evaluate(&names).is_err()).then_some(Declined::Unfit),
        }
    }

    /// Before the undo is decided, counts each step with recorded or kept events as done, so that everything answered
    /// with success is undone.
    pub(super) fn settle_by_events(&mut self) {
        let workflow = self.turn.workflow;
        for n in 0..self.task.events.len() {
            let event = &self.task.events[n];
            if !event.is_kept() {
                continue;
            }
            let Some(index) = self.task.to_come(&event.name, workflow).next() else { continue };
            if !is_undone(&self.task, index) {
                continue;
            }
            self.task.events[n].step = Some(as_position(index));
            if workflow.steps[index].event().is_some_and(|event| event.people.is_none()) {
                self.settle_by_event(index, n, "event", self.task.events[n].data.clone().unwrap_or_default());
            }
        }
        for index in (0..workflow.steps.len()).filter(|&index| is_undone(&self.task, index)).collect::<Vec<_>>() {
            let is_open = self.task.steps[index].state != State::Processed;
            let is_last = |event: &Arrival| event.is_of(index) && event.data.is_some() && is_open;
            let last = self.task.events.iter().rposition(is_last);
            if let Some(last) = last {
                let all = list(self.task.counted(index));
                self.settle_by_event(index, last, "events", all);
            }
        }
    }

    /// Counts step `index` as done by event `n` and those before it; `root` names `data` in expressions.
    fn settle_by_event(&mut self, index: usize, n: usize, root: &'static str, data: Value) {
        let names = names(&self.task, index, Direction::Do, self.turn).with(root, Cow::Owned(data.clone()));
        let output = self.turn.workflow.steps[index].output.as_ref().map(|output| output.evaluate(&names));
        drop(names);
        let output = output.and_then(Result::ok).unwrap_or_else(|| data.clone());
        if self.keep(index, output, "the output").is_err() {
            self.task.steps[index].output = Some(data);
        }
        self.taken(index, n);
    }

    /// Drops kept events that no step will take, and says so in the history.
    pub(super) fn release_unused(&mut self) {
        // Only some steps are being undone; putting them back drops their events.
        if self.task.again.is_some() {
            return;
        }
        let is_over = matches!(self.task.phase, Phase::Undone | Phase::UndoError) || self.task.is_undo_begun();
        for n in 0..self.task.events.len() {
            let event = &self.task.events[n];
            let is_needed = !is_over && self.task.to_come(&event.name, self.turn.workflow).next().is_some();
            if let Some(step) = event.step.map(usize::from) {
                // A step that a person marked as done needs no more people.
                if is_over || self.task.steps[step].state == State::Processed {
                    self.task.events[n].data = None;
                }
                continue;
            }
            // Before an undo is decided, the event may still be undone with its step.
            if event.data.is_none() || is_needed || self.task.phase == Phase::Undoing && !is_over {
                continue;
            }
            let text = format!("event `{}`, key `{}`", event.name, event.key);
            self.task.events[n].data = None;
            self.log(Kind::EventUnused, None, Some(text));
        }
    }

    /// No event came for step `index` in time, or not of as many people as it needs.
    pub(crate) fn time_out(&mut self, index: usize) {
        let spec = &self.turn.workflow.steps[index];
        let awaited = self.turn.workflow.steps[index].event();
        let name = awaited.map_or("", |event| &event.name);
        let within = format!("within {:#}", spec.timeout);
        let error = match (awaited.and_then(|event| event.people), self.task.counted(index).count()) {
            (Some(people @ 2..), counted) => format!("{counted} of {people} people sent the event `{name}` {within}"),
            _ => format!("no event `{name}` {within}"),
        };
        self.fail(index, Direction::Do, &error, Failure::of(FailureKind::Timeout));
    }
}
