//! The way out for an order whose record cannot be read: a person puts a text in its place that can, and the order goes on.
//!
//! The decision is pure like any other act's. What the text says of the order is taken as true, because nothing else says it;
//! refused is what would leave the order without a way on, or what no version of this program would have written.

use crate::change::Change;
use crate::decision::{Decision, Turn};
use crate::history::{Entry, Kind, MAX_ENTRIES, MAX_TEXT, act_text};
use crate::json;
use crate::message::{Effect, MAX_OUTPUT};
use crate::operator::{MAX_INPUT, MAX_INPUTS, length};
use crate::step::{Direction, State, Step};
use crate::task::{Phase, Task};
use crate::time::{Timestamp, plus};
use crate::workflow::Workflow;

/// Why a text is not taken as a record. `Display` is a sentence for the person.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unfit {
    /// Where in the text, such as `st[0].o`.
    pub at: String,
    /// What is wrong there.
    pub why: &'static str,
}

/// The save that puts `task` in the place of its record, and what is to be sent after it. `task` is the person's text with the
/// columns of the record as it is stored, `tenant` whose order was submitted.
///
/// # Errors
/// What the order could not go on with.
pub fn mend(
    task: &Task,
    tenant: &str,
    by: &str,
    reason: &str,
    turn: &Turn<'_>,
) -> Result<(Box<Task>, Vec<Effect>), Unfit> {
    check(task, tenant, turn.workflow)?;
    let mut change = Change::begin(task, turn);
    // Whether its id is kept elsewhere is not for a text to say: a record that stays keeps its key in any case.
    change.task.expires = false;
    change.task.forward_by = forward_by(task, turn.workflow);
    // An entry of its own would be refused by the version before this one, and the order would stand still again after a roll-back.
    change.note_act(Kind::Resumed, None, by, &note(reason));
    change.wake_if_waiting();
    let phase = change.task.phase;
    if phase == Phase::Forward || change.task.is_undo_begun() {
        change.finish();
    }
    if change.task.phase != phase {
        change.owe_final_notice();
    }
    match change.save() {
        Decision::Save { task, effects } => Ok((task, effects)),
        Decision::Keep { .. } => unreachable!("a change is saved"),
    }
}

/// Until when a forward request may start: an undo must not begin before. Where the text has lost it, the latest there can be, as the
/// last save handed out no later one.
fn forward_by(task: &Task, workflow: &Workflow) -> Option<Timestamp> {
    let claims = task.steps.iter().filter_map(Step::claim).filter(|(direction, _)| *direction == Direction::Do);
    let known = claims.map(|(_, by)| by).chain(task.forward_by).max();
    let is_tried = task.steps.iter().any(|step| step.attempt > 0);
    let longest =
        workflow.steps.iter().map(|step| step.late.map_or(step.timeout, |late| late.extend.max(step.timeout)));
    known.or_else(|| longest.max().filter(|_| is_tried).map(|longest| plus(task.updated_at, longest)))
}

/// Whether the last act on `task` was that this person mended it for this reason: asked again, it is done.
#[must_use]
pub fn is_mended(task: &Task, by: &str, reason: &str) -> bool {
    let last = task.log.iter().rev().find(|entry| entry.1.is_act());
    last.is_some_and(|Entry(_, kind, .., text)| {
        *kind == Kind::Resumed && text.as_deref() == Some(&*act_text(by, &note(reason)))
    })
}

fn note(reason: &str) -> String {
    format!("the record was mended: {reason}")
}

/// What this program relies on wherever it reads a task: whatever it writes has it.
///
/// # Errors
/// The first place that is not so.
pub fn check(task: &Task, tenant: &str, workflow: &Workflow) -> Result<(), Unfit> {
    let is_open = matches!(task.phase, Phase::Forward | Phase::Undoing);
    let count = task.steps.len();
    let versions = [
        ("end", task.turned_at),
        ("act", task.acted_at),
        ("acon", task.acted_on),
        ("al.v", task.alert.as_ref().map_or(0, |alert| alert.version)),
        ("bk", task.books.map_or(0, |(first, last)| first.max(last))),
    ];
    let later = versions.into_iter().map(|(at, version)| (version > task.version, at, LATER));
    let whole = [
        (task.tenant != tenant, "tn", "is not the tenant that submitted the order"),
        (task.workflow != workflow.name, "wf", "is not the name of the workflow whose definition `wh` names"),
        (count != workflow.steps.len(), "st", "has not one step for each step of the definition that `wh` names"),
        (task.paused_at.is_some() && !is_open, "pz", "is for an order that is open: `ph` is Forward or Undoing"),
        (
            task.alert.as_ref().and_then(|alert| alert.step).is_some_and(|step| usize::from(step) >= count),
            "al.s",
            "is not the position of a step",
        ),
        (task.reason.as_ref().is_some_and(|text| text.len() > MAX_TEXT), "why", LONG),
        (task.log.len() > MAX_ENTRIES, "log", "has more than 200 entries"),
        (task.log.iter().any(|entry| entry.4.as_ref().is_some_and(|text| text.len() > MAX_TEXT)), "log", LONG),
        (
            task.log.iter().any(|entry| entry.2.is_some_and(|step| usize::from(step) >= count)),
            "log",
            "has an entry with the position of a step that is not there",
        ),
        (
            task.steps.iter().filter_map(|step| step.input.as_ref()).map(length).sum::<usize>() > MAX_INPUTS,
            "st",
            "has inputs `i` that are longer than 65536 bytes together",
        ),
    ];
    for (is_wrong, at, why) in whole.into_iter().chain(later) {
        if is_wrong {
            return Err(Unfit { at: at.to_owned(), why });
        }
    }
    for (index, (step, spec)) in task.steps.iter().zip(&workflow.steps).enumerate() {
        let wrong = unfit(step, task, spec.undo.is_some());
        if let Some((at, why)) = wrong {
            return Err(Unfit { at: format!("st[{index}].{at}"), why });
        }
    }
    Ok(())
}

const LATER: &str = "is a version after that of the record";
const LONG: &str = "has a text of more than 300 bytes";

/// Which field of a step is wrong, and why.
fn unfit(step: &Step, task: &Task, has_undo: bool) -> Option<(&'static str, &'static str)> {
    let is_forward = matches!(task.phase, Phase::Forward | Phase::Error | Phase::Processed);
    let owes_undo = step.owes_undo();
    let rules = [
        (step.is_undo_begun() && is_forward, "state", "is one of an undo, and `ph` says that none has begun"),
        (owes_undo && !has_undo, "state", "is one of an undo, and the definition has none for this step"),
        (
            step.state == State::Failed && task.phase == Phase::Forward,
            "state",
            "is Failed, and nothing would go on: set `ph` to Error, or the step to Pending",
        ),
        (
            step.state == State::UndoFailed && task.phase == Phase::Undoing,
            "state",
            "is UndoFailed, and nothing would go on: set `ph` to UndoError, or the step to UndoPending",
        ),
        (!step.is_done() && task.phase == Phase::Processed, "state", "is not done, and `ph` says that all steps are"),
        (
            task.phase == Phase::Undone && step.may_have_run() && step.state != State::Undone,
            "state",
            "is not undone, and `ph` says that all that was done is",
        ),
        (step.claim().is_some() && step.attempt == 0, "a", "counts no attempt, and the step is with an agent"),
        (step.claimed_at > task.version, "c", LATER),
        (step.settled_at > task.version, "s", LATER),
        (step.error.as_ref().is_some_and(|text| text.len() > MAX_TEXT), "e", LONG),
        (
            step.output.as_ref().is_some_and(|output| length(output) > MAX_OUTPUT),
            "o",
            "is longer than 4096 bytes; put a reference in its place",
        ),
        (step.output.as_ref().is_some_and(json::is_deep), "o", "is nested more than 50 levels deep"),
        (
            step.input
                .as_ref()
                .is_some_and(|input| !input.is_object() || json::is_deep(input) || length(input) > MAX_INPUT),
            "i",
            "must be a JSON object of at most 16384 bytes, nested at most 50 levels deep",
        ),
    ];
    rules.into_iter().find(|(is_wrong, ..)| *is_wrong).map(|(_, at, why)| (at, why))
}
