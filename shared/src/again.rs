//! Runs an order, even an ended one, again from an earlier step. That step and all steps after it are first undone and
//! then done once more.
//!
//! Pure. One save records the wish. Then these steps, and no others, are undone; the save that finds nothing left to
//! undo puts them back. Attempt numbers never restart, so no earlier reply counts. Each step done again gets a
//! [round](crate::step::Rounds), which is in the idempotency keys of undone work, callback addresses, forms behind
//! links and ids of children. An event's key stays known for the whole order.

use crate::outputs::{MAX_ALL_BESIDE, MAX_COUNT_BESIDE};
use crate::step::{Direction, State, Step};
use crate::task::{Phase, Task, as_position};
use crate::workflow::{Step as Spec, Workflow};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// How often a step may be done again.
pub const MAX_ROUNDS: u32 = 20;

/// The wish that is recorded until nothing is left to undo.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Again {
    /// The positions of the steps that are done again, ascending.
    #[serde(rename = "s")]
    pub steps: Vec<u16>,
    /// Whether all these steps get new idempotency keys, not only the undone ones.
    #[serde(rename = "nk", default, skip_serializing_if = "std::ops::Not::not")]
    pub new_keys: bool,
}

impl Again {
    /// Whether step `index` is done again.
    #[must_use]
    pub fn has(&self, index: usize) -> bool {
        self.steps.iter().any(|&step| usize::from(step) == index)
    }
}

/// A rule that running again would break. `Display` is the end of a sentence about a step, or a sentence about the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rule {
    /// No step is named.
    #[error("name the step from which to run again")]
    NoStep,
    /// The workflow has no such step.
    #[error("the workflow has no step of this name; its steps are")]
    Unknown,
    /// Its data is gone.
    #[error("the order's data was erased, so nothing of it can be done or undone; submit a new order")]
    Erased,
    /// The order is a child.
    #[error("another order started this one; run that order again from the step that started this one")]
    Child,
    /// It is being undone.
    #[error("the order is being undone; wait until it is undone, and then run it again from its first steps")]
    Undoing,
    /// An undo failed.
    #[error("an undo failed; resubmit the order, or skip that undo or mark it as done, and then run it again")]
    UndoFailed,
    /// A migration waits.
    #[error("a migration of the order is waiting; wait until it is done, or withdraw it")]
    Migrating,
    /// The step to run again from has never begun.
    #[error("it has not begun, so there is nothing to run again")]
    NotBegun,
    /// Another step is under way.
    #[error("it has begun and is not settled; wait for it, or run again from it as well")]
    Open,
    /// Another step is undone.
    #[error("it is undone; run again from it as well")]
    Undone,
    /// A step before has not run.
    #[error("it was passed over, because a step before it did not run; run again from that step")]
    PassedOver,
    /// A list.
    #[error("it started an order for each item of a list, and a list cannot be started again; submit a new order")]
    List,
    /// It has no undo.
    #[error("it may have run and has no undo; allow its effects to stay (`without_undo`), or start from a later step")]
    NoUndo,
    /// Its service would not report again.
    #[error(
        "its service reports back later, and would not report again for a key that it knows; ask for new keys (`new_keys`)"
    )]
    Accepts,
    /// Too often.
    #[error("it was run again 20 times already; submit a new order")]
    Often,
    /// Long outputs of earlier rounds fill the order.
    #[error("the long outputs of this order, with those of earlier rounds, leave no room for more; submit a new order")]
    Full,
}

/// Why an order cannot be run again.
pub type Obstacle = crate::decision::Obstacle<Rule>;

/// What to run again, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wish {
    /// The steps from which to run again, by name.
    pub from: Vec<String>,
    /// Gives all steps that are done again new idempotency keys, not only the undone ones.
    pub new_keys: bool,
    /// Effects without an undo may stay.
    pub without_undo: bool,
}

fn has_begun(step: &Step) -> bool {
    step.is_tried() || !matches!(step.state, State::Pending { .. })
}

/// Whether an undo leaves the step's effects: its call may have been made, and has no undo.
pub(crate) fn keeps_effects(step: &Step, spec: &Spec) -> bool {
    let calls = spec.work(Direction::Do).is_some() && !spec.looks_safely() && !spec.pages;
    calls && step.may_have_run() && spec.undo.is_none()
}

/// Whether the step's effects are still there, and stay.
fn stays(step: &Step, spec: &Spec) -> bool {
    step.state != State::Undone && keeps_effects(step, spec)
}

/// The steps that `wish` means, whether the rules allow it or not.
fn meant(workflow: &Workflow, wish: &Wish) -> Result<Vec<usize>, Obstacle> {
    let steps = || workflow.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(", ");
    let unknown = |name| Obstacle { detail: Some(steps()), ..Obstacle::at(Rule::Unknown, name) };
    let from = wish.from.iter().map(|name| workflow.position(name).ok_or_else(|| unknown(name)));
    let from: Vec<usize> = from.collect::<Result<_, _>>()?;
    if from.is_empty() { Err(Obstacle::whole(Rule::NoStep)) } else { Ok(from) }
}

/// What fulfilling `wish` for `task` would record.
///
/// # Errors
/// The first rule that would be broken.
pub fn check(task: &Task, workflow: &Workflow, wish: &Wish) -> Result<Again, Obstacle> {
    let rules = [
        (task.is_erased(), Rule::Erased),
        (task.parent.is_some(), Rule::Child),
        (task.phase == Phase::Undoing, Rule::Undoing),
        (task.phase == Phase::UndoError, Rule::UndoFailed),
        (task.migration.is_some(), Rule::Migrating),
    ];
    if let Some((_, rule)) = rules.into_iter().find(|(is_broken, _)| *is_broken) {
        return Err(Obstacle::whole(rule));
    }
    let from = meant(workflow, wish)?;
    let all = workflow.with_dependents(&from);
    let new_rules = |index: usize| {
        let (step, spec) = (&task.steps[index], &workflow.steps[index]);
        let is_in = all.contains(&index);
        let is_from = from.contains(&index);
        let has_list = step.items().is_some();
        let passed_over = step.state == State::PassedOver && spec.after.iter().any(|after| !all.contains(&after.step));
        let rules = [
            (is_from && !has_begun(step), Rule::NotBegun),
            (is_from && passed_over && !ran_before(task, workflow, index, &all), Rule::PassedOver),
            (!is_in && has_begun(step) && !step.is_settled() && step.state != State::Undone, Rule::Open),
            (!is_in && step.state == State::Undone, Rule::Undone),
            (is_in && has_list, Rule::List),
            (is_in && step.rounds() >= MAX_ROUNDS, Rule::Often),
            (is_in && !wish.without_undo && stays(step, spec), Rule::NoUndo),
            (is_in && !wish.new_keys && spec.accept.is_some() && stays(step, spec), Rule::Accepts),
        ];
        rules.into_iter().find(|(is_broken, _)| *is_broken).map(|(_, rule)| rule)
    };
    let broken = (0..task.steps.len()).find_map(|index| Some((index, new_rules(index)?)));
    if let Some((index, rule)) = broken {
        return Err(Obstacle::at(rule, &workflow.steps[index].name));
    }
    let replaced = all.iter().filter(|&&index| task.steps[index].beside.is_some()).count();
    if crate::outputs::ever_beside(task) + replaced > MAX_COUNT_BESIDE
        || crate::outputs::bytes_beside(task) > MAX_ALL_BESIDE / 2
    {
        return Err(Obstacle::whole(Rule::Full));
    }
    Ok(Again { steps: all.into_iter().map(as_position).collect(), new_keys: wish.new_keys })
}

/// Whether the step's turn would come again: no step that stays as it is would pass it over.
fn ran_before(task: &Task, workflow: &Workflow, index: usize, all: &BTreeSet<usize>) -> bool {
    let after = &workflow.steps[index].after;
    after.iter().all(|after| {
        let state = &task.steps[after.step].state;
        all.contains(&after.step)
            || after.edge == crate::workflow::edge::Edge::Always
            || matches!(state, State::Processed | State::Skipped)
    })
}

/// What running again would mean for an order's steps, as lists of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// All steps that are done again.
    pub again: Vec<String>,
    /// Those that are undone before, in that order.
    pub undone_first: Vec<String>,
    /// Those that may have run and have no undo: what they did stays.
    pub stays: Vec<String>,
    /// Those that get a new idempotency key.
    pub new_keys: Vec<String>,
    /// Those that keep their key: a service that knows it answers as before and does nothing.
    pub old_keys: Vec<String>,
    /// Those whose order is undone, and that start another one.
    pub new_orders: Vec<String>,
}

/// What fulfilling `wish` for `task` would mean, even if a rule forbids it.
#[must_use]
pub fn plan(task: &Task, workflow: &Workflow, wish: &Wish) -> Plan {
    let Ok(from) = meant(workflow, wish) else { return Plan::default() };
    let all = workflow.with_dependents(&from);
    let name = |index: usize| workflow.steps[index].name.clone();
    let is_owed = |index: &usize| {
        let (step, spec) = (&task.steps[*index], &workflow.steps[*index]);
        let has_undo = spec.undo.is_some() && !spec.leaves_nothing(step) || step.kids.is_some();
        step.may_have_run() && step.state != State::Undone && has_undo
    };
    let mut owed: Vec<usize> = all.iter().copied().filter(is_owed).collect();
    // A step is undone before those that it comes after.
    owed.sort_by_key(|&index| std::cmp::Reverse((workflow.before(index).len(), index)));
    let calls: Vec<usize> = all
        .iter()
        .copied()
        .filter(|&i| workflow.steps[i].work(Direction::Do).is_some() && task.steps[i].attempt > 0)
        .collect();
    let is_new =
        |index: &usize| wish.new_keys || workflow.steps[*index].undo.is_some() && task.steps[*index].may_have_run();
    let names = |all: &mut dyn Iterator<Item = usize>| all.map(name).collect::<Vec<_>>();
    Plan {
        again: names(&mut all.iter().copied()),
        undone_first: names(&mut owed.into_iter()),
        stays: names(&mut all.iter().copied().filter(|&i| stays(&task.steps[i], &workflow.steps[i]))),
        new_keys: names(&mut calls.iter().copied().filter(is_new)),
        old_keys: names(&mut calls.iter().copied().filter(|index| !is_new(index))),
        new_orders: names(&mut all.iter().copied().filter(|&i| task.steps[i].kids.is_some())),
    }
}
