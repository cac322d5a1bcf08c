//! What is wrong with an order, or what it waits for: which steps, and which errors are of one kind.

use crate::step::{Direction, State, Step};
use crate::task::{Phase, Task};
use crate::time::Timestamp;
use crate::workflow::{self, Workflow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A step that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// Its name.
    pub step: String,
    /// What it waits for, in the words of its workflow.
    pub wait: String,
    /// Since when (UTC, milliseconds).
    pub since: Timestamp,
    /// Until when (UTC, milliseconds).
    pub until: Timestamp,
}

/// A failing step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trouble {
    /// Its name.
    pub step: String,
    /// The agent that failed; empty if the step has none, such as one that starts orders.
    pub agent: String,
    /// Whether it is its undo.
    pub undo: bool,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// An open circuit breaker deferred the last attempt. This is not a failure; `error` says what opened the breaker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
}

/// The steps of `task` that failed, or wait after an unsuccessful attempt. Steps held back by an open breaker have not
/// failed, but hold up their order, so they count.
#[must_use]
pub fn trouble(task: &Task, workflow: &Workflow) -> Vec<Trouble> {
    failures(task, workflow, false)
}

/// [`trouble`], with steps whose next attempt is in progress, where a hanging service usually keeps orders.
#[must_use]
pub fn failures(task: &Task, workflow: &Workflow, under_way: bool) -> Vec<Trouble> {
    let is_undo = task.is_undo_begun();
    let one = |(index, (step, spec)): (usize, (&Step, &workflow::Step))| {
        let is_held_back = |until: Option<Timestamp>| until.is_some() && step.error.is_some();
        let direction = match step.state {
            // It failed before its first call. By now the undo is what a person looks for.
            State::Failed if is_undo => return None,
            State::Failed => Direction::Do,
            // A step that polls waits for its next look.
            State::Pending { .. } if step.poll_until.is_some() => return None,
            State::Pending { not_before } if step.failures > 0 || is_held_back(not_before) => Direction::Do,
            State::Processing { .. } if under_way && step.failures > 0 => Direction::Do,
            State::UndoFailed => Direction::Undo,
            State::UndoPending { not_before } if step.undo_failures > 0 || is_held_back(not_before) => Direction::Undo,
            State::UndoProcessing { .. } if under_way && step.undo_failures > 0 => Direction::Undo,
            State::Pending { .. }
            | State::Processing { .. }
            | State::Waiting { .. }
            | State::Processed
            | State::Skipped
            | State::PassedOver
            | State::Caught
            | State::UndoPending { .. }
            | State::UndoProcessing { .. }
            | State::Undone => return None,
        };
        let agent = spec.work(direction).map_or_else(String::new, |work| work.agent.to_owned());
        let undo = direction == Direction::Undo;
        let held_back = task.is_held_back(index);
        Some(Trouble { step: spec.name.clone(), agent, undo, error: step.error.clone(), held_back })
    };
    task.steps.iter().zip(&workflow.steps).enumerate().filter_map(one).collect()
}

/// The steps of `task` that wait, while it goes forward.
#[must_use]
pub fn waits(task: &Task, workflow: &Workflow) -> Vec<Wait> {
    let one = |(step, spec): (&Step, &workflow::Step)| {
        let State::Waiting { until, .. } = step.state else { return None };
        let wait = spec.asks().unwrap_or_default();
        Some(Wait { step: spec.name.clone(), wait, since: step.turn.unwrap_or(task.updated_at), until })
    };
    let steps = task.steps.iter().zip(&workflow.steps).filter(|_| task.phase == Phase::Forward);
    steps.filter_map(one).collect()
}

/// An error without the parts that identify one order, because to a person two errors that differ only in a number or
/// an id are the same. Words of up to three characters stay, because an HTTP status says what is wrong. A number of
/// calls in parentheses at the end is dropped.
#[must_use]
pub fn kind(error: &str) -> String {
    let error = error.strip_suffix(')').and_then(|text| text.rsplit_once(" (")).map_or(error, |(text, _)| text);
    let is_name = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let mut kind = String::new();
    let mut rest = error;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_name(c) != is_name(first)).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        let names_one = is_name(first) && part.chars().count() > 3 && part.contains(|c: char| c.is_ascii_digit());
        kind.push_str(if names_one { "#" } else { part });
        rest = after;
    }
    kind
}
