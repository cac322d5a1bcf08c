//! Work that a service accepted, and the callback that reports its end.

use super::Change;
use crate::decision::Declined;
use crate::expression::Mistake;
use crate::history::Kind;
use crate::names::names;
use crate::step::{Direction, State};
use crate::task::{Arrival, Phase, Task, as_position};
use crate::time::plus;
use crate::workflow::accept::Accept;
use serde_json::Value;
use std::borrow::Cow;

/// The name under which a step's callback is recorded. No event has such a name.
fn name_of(step: &str) -> String {
    format!("callback:{step}")
}

/// The callback that step `index` took, if one came.
pub(crate) fn called_back(task: &Task, index: usize) -> Option<&Arrival> {
    task.events.iter().find(|event| event.is_of(index) && is_callback(event))
}

/// Whether this is a callback, not an event sent by name.
pub(crate) fn is_callback(event: &Arrival) -> bool {
    event.name.starts_with("callback:")
}

impl Change<'_> {
    /// The service accepted the work of step `index` and reports its end later. `forward_by` stays at the call's own
    /// CompleteBy, so that a cancellation never waits for the callback.
    ///
    /// # Errors
    /// The answer cannot be kept for undo.
    pub(crate) fn accept(&mut self, index: usize, accept: &Accept, answer: Value) -> Result<(), Mistake> {
        self.keep(index, answer, "the accepting answer")?;
        let until = plus(self.turn.now, accept.within);
        let step = &mut self.task.steps[index];
        step.settled_at = self.task.version;
        step.error = None;
        step.state = State::Waiting { until, event: true };
        // Since when it waits; but what its expressions read stays.
        if step.turn.is_none() || !self.turn.workflow.steps[index].reads("now") {
            step.turn = Some(self.turn.now);
        }
        self.begin_to_ask(index, self.turn.now, until);
        self.log(Kind::Waiting, Some(index), Some(format!("accepted; its callback may come until {until}")));
        self.waits = true;
        Ok(())
    }

    /// Records the callback of step `index`. It counts from the first claim on: the accepting answer may be lost.
    pub(crate) fn call_back(&mut self, index: usize, key: &str, hash: &str, data: &Value) -> Result<(), Declined> {
        let step = &self.task.steps[index];
        let is_open = match (self.task.phase, &step.state) {
            (_, State::Waiting { .. }) => true,
            (Phase::Forward | Phase::Undoing | Phase::Error, State::Pending { .. } | State::Processing { .. }) => {
                step.is_tried()
            }
            // A resubmission takes it instead of a claim, and an undo must know of it.
            (Phase::Error | Phase::Undoing, State::Failed) | (Phase::Undoing, State::Caught) => step.is_tried(),
            _ => false,
        };
        if !is_open {
            return Err(if !step.is_tried() { Declined::Early } else { Declined::Late });
        }
        let spec = &self.turn.workflow.steps[index];
        let kept = match spec.output.as_ref().or(spec.kept()) {
            None => Ok(data.clone()),
            Some(output) => {
                let answer = self.turn.outputs.of(step).unwrap_or_default();
                let names = names(&self.task, index, Direction::Do, self.turn)
                    .with("answer", Cow::Owned(answer))
                    .with("event", Cow::Borrowed(data));
                output.evaluate(&names)
            }
        };
        if self.turn.outputs.loss().is_err() {
            return Err(Declined::Unfit);
        }
        let kept = kept.map_err(|_| Declined::Unfit)?;
        self.keep(index, kept, "the output").map_err(|_| Declined::TooLong)?;
        let name = name_of(&spec.name);
        let text = format!("callback, key `{key}`");
        self.task.events.push(Arrival {
            name,
            key: key.into(),
            hash: hash.into(),
            step: Some(as_position(index)),
            data: None,
            by: None,
        });
        let step = &mut self.task.steps[index];
        // The refused work was done after all, so its undo is owed.
        step.failure = None;
        if !matches!(step.state, State::Failed | State::Caught) {
            step.state = State::Processed;
            step.error = None;
        }
        self.log(Kind::Completed, Some(index), Some(text));
        Ok(())
    }
}
