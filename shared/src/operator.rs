//! What a person may do to an order: pure decisions, each a single conditional write like any transition.
//!
//! An action names the person, the reason and, if the person saw one, the version. If the order has changed since, nothing
//! is done; recording that an alert or a notice was sent is no such change ([`Task::is_as_seen`]). An action claims
//! nothing. It changes the record, and a Wake or the due index continues, so the operator function needs no right on
//! agents' queues. An action that ends an order owes its notice, because no queue redelivers an action.

use crate::again;
use crate::change::{self, Change, child, list};
use crate::decision::{Act, Decision, Kept, Refusal, Turn, What};
use crate::history::{self, Entry, Kind};
use crate::items::MAX_EDITS;
use crate::json::{self, exceeds, length};
use crate::message::{Effect, MAX_OUTPUT, NoticeKind};
use crate::migrate::{self, Migration};
use crate::outputs::is_full;
use crate::scheduler;
use crate::step::{Direction, State, Step};
use crate::task::{Phase, Task};
use crate::workflow::Hash;
use crate::workflow::child::Wish;
use serde_json::Value;
use std::collections::BTreeMap;

/// Most bytes of item names that the history keeps of one action.
const MAX_NAMED: usize = 60;

/// Longest input that an operator may set for one step, in bytes of JSON; the task's record holds it.
pub const MAX_INPUT: usize = 16 * 1024;

/// Longest sum of these inputs over an order's steps, in bytes of JSON. The record has room for it beside the longest
/// outputs of the most steps.
pub const MAX_INPUTS: usize = 64 * 1024;

/// The result of an action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is recorded at this version.
    Applied(u64),
    /// It was done already; effects that may be lost were re-sent.
    Repeated(u64),
    /// The order's state forbids it; nothing was changed.
    NotAllowed {
        /// Why.
        why: Refusal,
    },
    /// The order has another version than the one that the operator saw; nothing was changed.
    Moved {
        /// The current version.
        version: u64,
    },
    /// There is no such order.
    NotFound,
}

pub(crate) fn act(task: &Task, act: &Act, turn: &Turn<'_>) -> Decision {
    if let Some(version) = act.seen.filter(|version| !task.is_as_seen(*version)) {
        // The save may have succeeded although its answer was lost. A person who repeats the action must learn that it is
        // done, not that another was faster (simulation, seeds 5549 and 6189 of workflows/order.toml).
        let is_done = task.was_acted_on(version) && is_last_act(task, act, turn);
        return if is_done {
            scheduler::with(repeated(task, turn), children_of(task, &act.what, turn))
        } else {
            Decision::keep(Kept::Moved)
        };
    }
    // The parent has recorded this end and would not learn of another. A failed child may be undone.
    let is_counted = match task.phase {
        Phase::Error => !matches!(act.what, What::Cancel | What::Undo),
        Phase::Processed => act.what == What::Undo,
        Phase::Forward | Phase::Undoing | Phase::Undone | Phase::UndoError => false,
    };
    if task.parent.is_some() && is_counted {
        return Decision::keep(Kept::Refused(Refusal::Child));
    }
    let decided = match &act.what {
        What::Resubmit { step, input } => resubmit(task, act, step.as_deref(), input.as_ref(), turn),
        What::ResubmitItems { step, inputs } => resubmit_items(task, act, step.as_deref(), inputs, turn),
        What::Skip { step } => by_hand(task, act, step.as_deref(), None, turn),
        What::MarkDone { step, output } => by_hand(task, act, step.as_deref(), Some(output), turn),
        What::RetryNow { step } => retry_now(task, act, step.as_deref(), turn),
        What::Pause => pause(task, act, turn),
        What::Resume => unpause(task, act, turn),
        What::Migrate { to, resubmits } => migrate(task, act, to, *resubmits, turn),
        What::RunAgain(wish) => run_again(task, act, wish, turn),
        What::Cancel | What::Undo => return undone(task, act, turn),
    };
    let children = children_of(task, &act.what, turn);
    match decided {
        Ok(Some(change)) => match change.with(children).save() {
            // The queue may have refused the notice of the turn before the pause, and nothing sends it once the undo
            // begins (simulation, seed 1585 of workflows/order.toml).
            Decision::Save { task, mut effects } if act.what == What::Resume && !task.is_undo_begun() => {
                effects.splice(0..0, change::turn_notices(&task, turn));
                Decision::Save { task, effects }
            }
            decision @ (Decision::Save { .. } | Decision::Keep { .. }) => decision,
        },
        Ok(None) => Decision::Keep { why: Kept::Repeated, effects: children },
        Err(why) => Decision::keep(Kept::Refused(why)),
    }
}

/// What an action asks of the children at once.
fn children_of(task: &Task, what: &What, turn: &Turn<'_>) -> Vec<Effect> {
    match what {
        What::Pause => child::ask_open(task, &Wish::Pause, turn),
        What::Resume => child::ask_open(task, &Wish::Resume, turn),
        // The children's records must outlast the undo.
        What::Undo if matches!(task.phase, Phase::Processed | Phase::Undoing) && task.expires => {
            child::ask_all(task, &Wish::Keep, turn)
        }
        What::RunAgain(_)
            if matches!(task.phase, Phase::Processed | Phase::Undone | Phase::Undoing) && task.expires =>
        {
            child::ask_all(task, &Wish::Keep, turn)
        }
        _ => Vec::new(),
    }
}

/// The action is already done; re-sends effects that may be lost.
pub(crate) fn repeated(task: &Task, turn: &Turn<'_>) -> Decision {
    let wake = change::wake(task, turn, 0).filter(|_| !task.is_undo_begun() || task.owes_no_undo());
    let effects = change::turn_notices(task, turn).into_iter().chain(wake).collect();
    Decision::Keep { why: Kept::Repeated, effects }
}

/// Whether the latest action in the history is this one: same person, same action, same reason.
fn is_last_act(task: &Task, act: &Act, turn: &Turn<'_>) -> bool {
    let Some(Entry(_, kind, index, _, text)) = task.log.iter().rev().find(|entry| entry.1.is_act()) else {
        return false;
    };
    let step = index.and_then(|i| Some((task.steps.get(usize::from(i))?, &turn.workflow.steps[usize::from(i)].name)));
    let is_at = |name: &Option<String>| name.is_none() || name.as_ref() == step.map(|(_, name)| name);
    let mut reason = act.reason.clone();
    let is_same = match &act.what {
        What::Resubmit { step, input: Some(input) } => {
            let given = task.steps.iter().position(|step| step.input.as_ref() == Some(input));
            let name = given.map(|i| &turn.workflow.steps[i].name);
            reason = name.map_or(reason, |name| with_input(&act.reason, name));
            *kind == Kind::Resubmitted && name.is_some() && (step.is_none() || step.as_ref() == name)
        }
        What::Resubmit { step: _, input: None } => *kind == Kind::Resubmitted,
        What::ResubmitItems { step, inputs } => {
            let has = |index: &usize| list::has_given(task, *index, inputs, turn);
            let index = (0..task.steps.len()).find(has);
            let name = index.map(|index| &turn.workflow.steps[index].name);
            reason = name.map_or(reason, |name| with_inputs(&act.reason, name, inputs));
            *kind == Kind::Resubmitted && name.is_some() && (step.is_none() || step.as_ref() == name)
        }
        What::Skip { step } => *kind == Kind::Skipped && is_at(step),
        What::MarkDone { step: name, output } => {
            let kept = |step: &Step| step.is_undo_begun() || step.output.as_ref().unwrap_or(&Value::Null) == output;
            *kind == Kind::MarkedDone && is_at(name) && step.is_some_and(|(step, _)| kept(step))
        }
        What::RetryNow { step } => *kind == Kind::RetriedNow && is_at(step),
        What::Cancel => *kind == Kind::Cancelled,
        What::Undo => *kind == Kind::UndoAsked,
        What::Pause => *kind == Kind::Paused,
        What::Resume => *kind == Kind::Resumed,
        // It was a plain resubmission.
        What::Migrate { to, resubmits: true } if *to == task.workflow_hash && *kind == Kind::Resubmitted => true,
        What::Migrate { to, resubmits } => {
            reason = with_definition(&act.reason, to, *resubmits);
            *kind == Kind::MigrationAsked
        }
        What::RunAgain(wish) => {
            reason = from_where(&act.reason, wish);
            *kind == Kind::RunAgain
        }
    };
    is_same && text.as_deref() == Some(&*history::act_text(&act.by, &reason))
}

/// A resubmission's reason as the history records it.
fn with_input(reason: &str, step: &str) -> String {
    format!("{reason} (with another input for `{step}`)")
}

/// The same, for items of a list.
fn with_inputs(reason: &str, step: &str, inputs: &BTreeMap<usize, Value>) -> String {
    let items: Vec<String> = inputs.keys().map(usize::to_string).collect();
    let what = if items.len() == 1 { "item" } else { "items" };
    let all = history::shorten(&items.join(", "), MAX_NAMED);
    format!("{reason} (with another input for {what} {all} of `{step}`)")
}

/// A migration's reason as the history records it.
fn with_definition(reason: &str, to: &Hash, resubmits: bool) -> String {
    format!("{reason} ({} to {to})", if resubmits { "resubmit and migrate" } else { "migrate" })
}

/// The reason for running again as the history records it.
fn from_where(reason: &str, wish: &again::Wish) -> String {
    let keys = if wish.new_keys { ", with new keys" } else { "" };
    format!("{reason} (again from {}{keys})", wish.from.join(", "))
}

/// A change to save, or `None` if it is done already.
type Decided<'a> = Result<Option<Change<'a>>, Refusal>;

fn resubmit<'a>(task: &Task, act: &Act, step: Option<&str>, input: Option<&Value>, turn: &'a Turn<'a>) -> Decided<'a> {
    match task.phase {
        Phase::Error | Phase::UndoError => {}
        Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Undone => return Err(Refusal::NotStopped),
    }
    let target = match (step, input) {
        (None, None) => None,
        (Some(_), _) | (None, Some(_)) => Some(only(task, step, turn, |i| {
            let may_be_meant = step.is_some() || task.failed().next().is_none();
            let has_failed = task.failed().any(|failed| failed == i);
            has_failed || may_be_meant && input.is_some_and(|input| can_be_shortened(task, i, input))
        })?),
    };
    if input.is_some_and(|input| !input.is_object() || exceeds(input, MAX_INPUT)) {
        return Err(Refusal::BadInput);
    }
    if let (Some(target), Some(input)) = (target, input) {
        let kept = |(n, step): (usize, &crate::step::Step)| step.input.as_ref().filter(|_| n != target).map(length);
        let others: usize = task.steps.iter().enumerate().filter_map(kept).sum();
        // A shorter input than the present one is always accepted, as the only way out of a full record.
        let own = task.steps[target].input.as_ref().map_or(0, length);
        if length(input) > own && others + length(input) > MAX_INPUTS {
            return Err(Refusal::LongInputs);
        }
    }
    if target.is_some_and(|index| task.steps[index].kids.is_some()) && input.is_some() {
        return Err(Refusal::ChildInput);
    }
    if target.is_some_and(|index| turn.workflow.steps[index].pages) && input.is_some() {
        return Err(Refusal::PagesInput);
    }
    let mut change = Change::begin(task, turn);
    let mut reason = act.reason.clone();
    if let (Some(index), Some(input)) = (target, input) {
        change.task.steps[index].input = Some(input.clone());
        reason = with_input(&reason, &turn.workflow.steps[index].name);
    }
    change.resubmit(&act.by, &reason);
    Ok(Some(change))
}

fn resubmit_items<'a>(
    task: &Task,
    act: &Act,
    step: Option<&str>,
    inputs: &BTreeMap<usize, Value>,
    turn: &'a Turn<'a>,
) -> Decided<'a> {
    if task.phase != Phase::Error {
        return Err(Refusal::NotStopped);
    }
    let index = only(task, step, turn, |i| task.steps[i].state == State::Failed && list::has(task, i))?;
    let kids = list::give(task, index, inputs, turn)?;
    let mut change = Change::begin(task, turn);
    change.task.steps[index].kids = Some(kids);
    let edits: usize = change.task.steps.iter().filter_map(Step::items).map(|items| items.inputs.len()).sum();
    if edits > MAX_EDITS || is_full(&change.task) {
        return Err(Refusal::ItemInputs);
    }
    change.resubmit(&act.by, &with_inputs(&act.reason, &turn.workflow.steps[index].name, inputs));
    Ok(Some(change))
}

/// Whether `input` shortens that which an operator gave to step `index`. Needed if a full record stopped the order.
fn can_be_shortened(task: &Task, index: usize, input: &Value) -> bool {
    let step = &task.steps[index];
    step.claim().is_none() && step.input.as_ref().is_some_and(|own| length(input) < length(own))
}

/// Skips a step (`output` is `None`), or records it as done by hand.
fn by_hand<'a>(task: &Task, act: &Act, step: Option<&str>, output: Option<&Value>, turn: &'a Turn<'a>) -> Decided<'a> {
    if output.is_some_and(|output| length(output) > MAX_OUTPUT) {
        return Err(Refusal::LongOutput);
    }
    if output.is_some_and(json::is_deep) {
        return Err(Refusal::DeepOutput);
    }
    if matches!(task.phase, Phase::Processed | Phase::Undone) {
        return Err(Refusal::Ended);
    }
    // A wait is part of the work, so only an action that names it means it.
    let is_wait = |index: usize| {
        let polls = task.steps[index].poll_until.is_some() && task.phase == Phase::Forward;
        polls || matches!(task.steps[index].state, State::Waiting { .. })
    };
    let is_meant = |index| left_to_a_person(task, index, turn).is_some() && (step.is_some() || !is_wait(index));
    let waits = || (0..task.steps.len()).any(|index| left_to_a_person(task, index, turn).is_some());
    let index = only(task, step, turn, is_meant).map_err(|why| match why {
        Refusal::NotFailed if step.is_none() && waits() => Refusal::UnnamedWait,
        why => why,
    })?;
    if output.is_some() && matches!(task.steps[index].state, State::Waiting { event: false, .. }) {
        return Err(Refusal::WaitsForTime);
    }
    let direction = left_to_a_person(task, index, turn).expect("only such a step is picked");
    let mut change = Change::begin(task, turn);
    let kind = if output.is_some() { Kind::MarkedDone } else { Kind::Skipped };
    let step = &mut change.task.steps[index];
    match (direction, output) {
        (Direction::Do, None) => step.state = State::Skipped,
        (Direction::Do, Some(output)) => {
            step.state = State::Processed;
            step.output = Some(output.clone()).filter(|o| !o.is_null());
            step.beside = None;
            step.error = None;
            step.failure = None;
        }
        (Direction::Undo, None | Some(_)) => step.state = State::Undone,
    }
    change.note_act(kind, Some(index), &act.by, &act.reason);
    if direction == Direction::Do && output.is_some() {
        change.tell(NoticeKind::StepCompleted, Some(index));
    }
    change.go_on_if_nothing_failed(index);
    change.finish();
    change.owe_final_notice();
    Ok(Some(change))
}

/// The direction in which step `index` has failed, or waits after an unsuccessful attempt.
fn left_to_a_person(task: &Task, index: usize, turn: &Turn<'_>) -> Option<Direction> {
    let step = &task.steps[index];
    match (task.phase, &step.state) {
        (Phase::Error, State::Failed) => Some(Direction::Do),
        (Phase::Error | Phase::Forward, State::Pending { .. }) if step.is_tried() => Some(Direction::Do),
        // Its child goes on by itself.
        (Phase::Error | Phase::Forward, State::Waiting { .. }) if step.kids.is_none() => Some(Direction::Do),
        // This look was claimed early, and changes nothing.
        (Phase::Error | Phase::Forward, State::Processing { .. }) if turn.workflow.steps[index].looks_safely() => {
            Some(Direction::Do)
        }
        (Phase::UndoError, State::UndoFailed) => Some(Direction::Undo),
        (Phase::UndoError | Phase::Undoing, State::UndoPending { .. }) if step.undo_failures > 0 => {
            Some(Direction::Undo)
        }
        _ => None,
    }
}

fn retry_now<'a>(task: &Task, act: &Act, step: Option<&str>, turn: &'a Turn<'a>) -> Decided<'a> {
    match task.phase {
        Phase::Forward | Phase::Undoing => {}
        Phase::Error | Phase::UndoError => return Err(Refusal::Stopped),
        Phase::Processed | Phase::Undone => return Err(Refusal::Ended),
    }
    if task.paused_at.is_some() {
        return Err(Refusal::Paused);
    }
    let waits: Vec<usize> = task
        .waiting(turn.workflow)
        .filter(|(_, from)| from.is_some_and(|from| from > turn.now))
        .map(|(index, _)| index)
        .collect();
    let chosen = match step {
        // Only waits after failures: a workflow's own wait is part of its work.
        None => waits.into_iter().filter(|&i| !matches!(task.steps[i].state, State::Waiting { .. })).collect(),
        Some(name) => {
            let index = turn.workflow.position(name).ok_or(Refusal::UnknownStep)?;
            if matches!(task.steps[index].state, State::Waiting { event: true, .. }) {
                return Err(Refusal::WaitsForEvent);
            }
            if !waits.contains(&index) {
                return Err(Refusal::NothingWaits);
            }
            vec![index]
        }
    };
    if chosen.is_empty() {
        return Err(Refusal::NothingWaits);
    }
    let mut change = Change::begin(task, turn);
    for index in chosen {
        match &mut change.task.steps[index].state {
            State::Pending { not_before } | State::UndoPending { not_before } => *not_before = None,
            State::Waiting { until, .. } => *until = turn.now,
            state => unreachable!("{state:?} does not wait"),
        }
        change.note_act(Kind::RetriedNow, Some(index), &act.by, &act.reason);
    }
    change.wake_if_waiting();
    Ok(Some(change))
}

fn pause<'a>(task: &Task, act: &Act, turn: &'a Turn<'a>) -> Decided<'a> {
    match task.phase {
        // The task itself is paused now, so the end of the parent's pause leaves it.
        Phase::Forward | Phase::Undoing if task.parent.as_ref().is_some_and(|parent| parent.paused) => {
            let mut change = Change::begin(task, turn);
            change.task.parent.as_mut().expect("it has one").paused = false;
            change.note_act(Kind::Paused, None, &act.by, &act.reason);
            return Ok(Some(change));
        }
        Phase::Forward | Phase::Undoing if task.paused_at.is_some() => return Ok(None),
        Phase::Forward | Phase::Undoing => {}
        Phase::Error | Phase::UndoError => return Err(Refusal::Stopped),
        Phase::Processed | Phase::Undone => return Err(Refusal::Ended),
    }
    let mut change = Change::begin(task, turn);
    change.task.paused_at = Some(turn.now);
    change.note_act(Kind::Paused, None, &act.by, &act.reason);
    Ok(Some(change))
}

/// Records the definition that the order is to move to. The engine moves it once it can, usually at once.
fn migrate<'a>(task: &Task, act: &Act, to: &Hash, resubmits: bool, turn: &'a Turn<'a>) -> Decided<'a> {
    if task.again.is_some() {
        return Err(Refusal::RunsAgain);
    }
    match task.phase {
        Phase::Forward | Phase::Undoing if resubmits => return Err(Refusal::NotStopped),
        Phase::Forward | Phase::Undoing | Phase::Error | Phase::UndoError => {}
        Phase::Processed | Phase::Undone => return Err(Refusal::Ended),
    }
    let is_there = *to == task.workflow_hash;
    if is_there && resubmits {
        return resubmit(&Task { migration: None, ..task.clone() }, act, None, None, turn);
    }
    let what = |migration: &Migration| (migration.to.clone(), migration.resubmits);
    let wanted = (!is_there).then(|| Migration::of(task, turn.workflow, turn.skew, to.clone(), resubmits));
    if task.migration.as_ref().map(what) == wanted.as_ref().map(what) {
        return Ok(None);
    }
    if !is_there {
        let new = turn.outputs.definition(to).ok_or(Refusal::NoDefinition)?;
        migrate::moved(task, turn.workflow, &new, turn.now).map_err(|why| Refusal::Migration(why.rule))?;
    }
    let mut change = Change::begin(task, turn);
    change.task.migration = wanted;
    change.note_act(Kind::MigrationAsked, None, &act.by, &with_definition(&act.reason, to, resubmits));
    change.wake_if_waiting();
    if is_there {
        change.end_what_is_done();
    }
    Ok(Some(change))
}

/// Turns the task to undo the steps to be done again.
fn run_again<'a>(task: &Task, act: &Act, wish: &again::Wish, turn: &'a Turn<'a>) -> Decided<'a> {
    // The answer to this action may have been lost.
    if task.again.is_some() {
        return if is_last_act(task, act, turn) { Ok(None) } else { Err(Refusal::RunsAgain) };
    }
    let again = again::check(task, turn.workflow, wish).map_err(|why| Refusal::Again(why.rule))?;
    // The notice of the end that this revokes may not be out.
    let untold = if task.notice_owed { change::turn_notices(task, turn) } else { Vec::new() };
    let mut change = Change::begin(task, turn).with(untold);
    change.note_act(Kind::RunAgain, None, &act.by, &from_where(&act.reason, wish));
    change.run_again(again);
    Ok(Some(change))
}

fn unpause<'a>(task: &Task, act: &Act, turn: &'a Turn<'a>) -> Decided<'a> {
    if task.paused_at.is_none() {
        return Err(Refusal::NotPaused);
    }
    let mut change = Change::begin(task, turn);
    change.note_act(Kind::Resumed, None, &act.by, &act.reason);
    change.unpause();
    Ok(Some(change))
}

/// Turns the task to undo, or returns the decision that refuses it.
fn undo<'a>(task: &Task, act: &Act, turn: &'a Turn<'a>) -> Result<Change<'a>, Box<Decision>> {
    let refuse = |why| Err(Box::new(Decision::keep(Kept::Refused(why))));
    let (kind, word) = match act.what {
        What::Undo => (Kind::UndoAsked, "undone"),
        _ => (Kind::Cancelled, "cancelled"),
    };
    match task.phase {
        // A task stops in `Error` before its undo has begun, and then in `UndoError`.
        Phase::Forward | Phase::Error => {}
        Phase::Processed if kind == Kind::UndoAsked && task.is_erased() => return refuse(Refusal::Erased),
        Phase::Processed if kind == Kind::UndoAsked => {}
        // Steps that were to run again are undone with all others, and a failed undo is tried again.
        Phase::Undoing | Phase::UndoError if task.again.is_some() => {}
        // A repeated action: the first one's Wake and notice may be lost.
        Phase::Undoing | Phase::Undone => return Err(Box::new(repeated(task, turn))),
        Phase::Processed => return refuse(Refusal::Ended),
        Phase::UndoError => return refuse(Refusal::UndoBegun),
    }
    let mut change = Change::begin(task, turn);
    if change.irreversible().is_some() {
        return refuse(Refusal::Irreversible);
    }
    change.note_act(kind, None, &act.by, &act.reason);
    change = change.with(if task.phase == Phase::Processed { children_of(task, &act.what, turn) } else { Vec::new() });
    change.end_pause();
    change.turn_to_undo(format!("{word} by {}: {}", act.by, act.reason));
    if task.again.is_some() && task.is_undo_begun() {
        change.undo_the_rest();
    }
    // Nothing was sent, so nothing need be awaited. An action claims nothing, not even an undo.
    if change.task.forward_by.is_none() && change.has_nothing_to_undo() {
        change.advance();
    }
    Ok(change)
}

/// The parent is being undone, so this order is undone, if it is not Undone already.
pub(crate) fn undo_for_parent(task: &Task, by: &str, turn: &Turn<'_>) -> Decision {
    let act = Act { what: What::Undo, by: by.to_owned(), reason: "that order is being undone".into(), seen: None };
    undone(task, &act, turn)
}

/// [`undo`] by an action, which owes the notice of an end.
fn undone(task: &Task, act: &Act, turn: &Turn<'_>) -> Decision {
    undo(task, act, turn).map_or_else(
        |kept| *kept,
        |mut change| {
            change.owe_final_notice();
            change.save()
        },
    )
}

/// The parent is paused, or its pause ends. A pause by a person stays.
pub(crate) fn pause_for_parent(task: &Task, by: &str, is_pause: bool, turn: &Turn<'_>) -> Decision {
    let (what, wish) = if is_pause { (What::Pause, Wish::Pause) } else { (What::Resume, Wish::Resume) };
    let children = child::ask_open(task, &wish, turn);
    let is_paused = task.paused_at.is_some();
    let is_ours = task.parent.as_ref().is_some_and(|parent| parent.paused);
    if is_paused && !is_pause && !is_ours {
        return Decision::keep(Kept::Repeated);
    }
    if is_paused == is_pause {
        return Decision::Keep { why: Kept::Repeated, effects: children };
    }
    let reason = if is_pause { "that order is paused" } else { "that order is resumed" };
    let act = Act { what, by: by.to_owned(), reason: reason.into(), seen: None };
    let decided = if is_pause { pause(task, &act, turn) } else { unpause(task, &act, turn) };
    match decided {
        Ok(Some(mut change)) => {
            if let Some(parent) = &mut change.task.parent {
                parent.paused = is_pause;
            }
            change.with(children).save()
        }
        Ok(None) => Decision::keep(Kept::Repeated),
        Err(why) => Decision::keep(Kept::Refused(why)),
    }
}

/// A cancellation by message. It is redelivered until its effects are sent, so it owes no notice.
pub(crate) fn cancel(task: &Task, by: &str, reason: &str, turn: &Turn<'_>) -> Decision {
    let act = Act { what: What::Cancel, by: by.to_owned(), reason: reason.to_owned(), seen: None };
    undo(task, &act, turn).map_or_else(|kept| *kept, Change::save)
}

/// The step called `name`, or the only one that `fits`.
fn only(task: &Task, name: Option<&str>, turn: &Turn<'_>, fits: impl Fn(usize) -> bool) -> Result<usize, Refusal> {
    if let Some(name) = name {
        let index = turn.workflow.position(name).ok_or(Refusal::UnknownStep)?;
        return match task.steps[index].claim() {
            _ if fits(index) => Ok(index),
            Some(_) => Err(Refusal::WithAgent),
            None => Err(Refusal::NotFailed),
        };
    }
    let mut all = (0..task.steps.len()).filter(|&i| fits(i));
    match (all.next(), all.next()) {
        (Some(index), None) => Ok(index),
        (Some(_), Some(_)) => Err(Refusal::Ambiguous),
        (None, _) => Err(Refusal::NotFailed),
    }
}
