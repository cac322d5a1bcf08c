//! Whether an order can move to another definition of its workflow, and its record after the move.
//!
//! The rules are pure: task, old and new definition give the new record, or the first reason why there is none. They
//! apply once no step of the order is with an agent and no request can still start. Until then the wish is only
//! recorded ([`Migration`]), and nothing is claimed.
//!
//! They guarantee that no settled step runs again, that each owed undo can be done in the reverse order of dependence,
//! and that no service gets another call under a key that it knows. Only the call of a tried undo may change, because a
//! person corrects it so.

use crate::decision::{Decision, Turn};
use crate::expression::{Mapping, Reference, Template};
use crate::history::Entry;
use crate::mend::{self, Unfit};
use crate::names::of_step;
use crate::step::{Direction, State};
use crate::task::{Phase, Task, Way};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::wait::Wait;
use crate::workflow::{Hash, Step as Spec, Work, Workflow};
use jiff::fmt::serde::timestamp::millisecond;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeSet;

/// A migration that waits until no step is with an agent and no request can still start.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Migration {
    /// The definition to move to.
    #[serde(rename = "h")]
    pub to: Hash,
    /// Whether failed steps then run again.
    #[serde(rename = "rs", default, skip_serializing_if = "std::ops::Not::not")]
    pub resubmits: bool,
    /// For an order that is being undone: after this no call of an undo starts (UTC, milliseconds). Meanwhile none is
    /// claimed.
    #[serde(rename = "f", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub from: Option<Timestamp>,
}

impl Migration {
    /// The wish that `task` of `workflow` moves to `to`.
    #[must_use]
    pub fn of(task: &Task, workflow: &Workflow, skew: SignedDuration, to: Hash, resubmits: bool) -> Self {
        // A heartbeat leaves `updated_at`, and its sender's clock may be ahead.
        let most = |work: Work<'_>| work.window() + work.heartbeat.map_or(SignedDuration::ZERO, |_| skew);
        let longest = workflow.steps.iter().filter_map(|spec| spec.work(Direction::Undo)).map(most).max();
        // The CompleteBy of an answered undo is not recorded, but until then its request can be redelivered.
        let last = plus(task.updated_at, longest.unwrap_or_default());
        let from = task.is_undo_begun().then(|| task.complete_by().map_or(last, |by| by.max(last)));
        Self { to, resubmits, from }
    }
}

/// A rule that a migration would break. `Display` is the end of a sentence about a step, or a sentence about the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Rule {
    /// The definition has another name.
    #[error("the definition belongs to another workflow than the order")]
    Workflow,
    /// The order is a child.
    #[error("another order started this one and pinned its definition; this order ends under that definition")]
    Child,
    /// The order has children.
    #[error("it has started orders, which rely on the present definition; the order ends under that one")]
    Children,
    /// The definition starts orders with unpinned definitions.
    #[error("it starts orders of a workflow that was not pinned when the order was submitted; submit a new order")]
    Pins,
    /// The definition hands out addresses, but the order has no secret for them.
    #[error(
        "the definition hands out addresses, and the order was submitted without a secret for them; submit a new order"
    )]
    Secret,
    /// A step whose turn has come is gone.
    #[error("its turn has come, but the new definition does not have it; keep the step")]
    Lost,
    /// A step whose turn has come would be of another kind.
    #[error(
        "its turn has come, but in the new definition it is a step of another kind; give the new step another name"
    )]
    Sort,
    /// An undo that may be owed is gone.
    #[error("it may have run, but the new definition has no undo for it; keep the undo")]
    Undo,
    /// A step that may have run would become irreversible.
    #[error("it may have run, and the new definition makes it irreversible; leave that out")]
    Irreversible,
    /// Its call would change under a key in use.
    #[error(
        "it was tried and is not settled, but the new definition would send something else under the same idempotency \
         key; keep the call: once the order is under the new definition, the step can be skipped or marked as done"
    )]
    Call,
    /// It would follow an unsettled step.
    #[error(
        "its turn has come, but the new definition puts before it a step that is not settled; put that step after it"
    )]
    Before,
    /// A step that was begun would be passed over.
    #[error("it was begun, but the new definition would pass it over, because a step before it did not run")]
    PassedOver,
    /// Undos would run in another order.
    #[error(
        "it ran after a step that the new definition no longer puts before it, so both could be undone in the wrong order"
    )]
    Order,
    /// It waits for something else.
    #[error("it waits, but in the new definition it waits for something else; keep what it waits for")]
    Wait,
    /// It has asked for a page.
    #[error(
        "it was tried and is not settled, and only one of the two definitions has `pages` for it; keep that as it is"
    )]
    Pages,
    /// A kept event would be lost.
    #[error(
        "an event is kept for it, but in the new definition another step would take the event, or none would; keep the \
         step, its `take` and its place among the steps that take this event"
    )]
    Kept,
    /// Not only undos differ.
    #[error("the order is being undone, but the new definition changes more than how this step is undone")]
    Undoing,
    /// The record breaks another rule.
    #[error("the order's record does not fit the new definition")]
    Record,
}

/// Why an order cannot move to a definition.
pub type Obstacle = crate::decision::Obstacle<Rule>;

/// Whether the turn of step `index` has come, so that the new definition must have it.
fn has_come(task: &Task, index: usize) -> bool {
    let step = &task.steps[index];
    let has_event = || task.events.iter().any(|event| event.is_of(index));
    match step.state {
        // A step whose expression failed before the first attempt did nothing.
        State::Pending { .. } | State::Failed => step.attempt > 0 || has_event(),
        State::Processing { .. }
        | State::Waiting { .. }
        | State::Processed
        | State::Skipped
        | State::PassedOver
        | State::Caught
        | State::UndoPending { .. }
        | State::UndoProcessing { .. }
        | State::Undone
        | State::UndoFailed => true,
    }
}

/// Whether step `index` may have done something for its undo to take back. Each event of a person counts, whatever
/// becomes of the step.
fn has_effect(task: &Task, index: usize) -> bool {
    task.steps[index].may_have_run() || task.counted(index).next().is_some()
}

/// The kind of a step.
fn sort(spec: &Spec) -> &'static str {
    match &spec.wait {
        Some(wait) => wait.key(),
        None if spec.child.is_some() => "child",
        None if spec.value.is_some() => "value",
        None if spec.fail.is_some() => "fail",
        None => "call",
    }
}

/// The record of `task` under the definition `new`, at `now`; `old` is its present one. A step with an agent counts as tried
/// and not settled.
///
/// # Errors
/// The first rule that would be broken.
pub fn moved(task: &Task, old: &Workflow, new: &Workflow, now: Timestamp) -> Result<Task, Obstacle> {
    of_whole(task, new)?;
    let mut next = task.clone();
    next.workflow_hash = new.hash();
    next.retention = new.retention;
    let steps = new.steps.iter().map(|spec| old.position(&spec.name).map(|index| task.steps[index].clone()));
    next.steps = steps.map(Option::unwrap_or_default).collect();
    for step in &mut next.steps {
        match step.state {
            State::Processing { .. } => step.state = State::Pending { not_before: None },
            State::UndoProcessing { .. } => step.state = State::UndoPending { not_before: None },
            _ => {}
        }
        step.heart = None;
    }
    if matches!(task.phase, Phase::Undoing | Phase::UndoError) {
        only_undos_differ(old, new)?;
    } else {
        for (index, spec) in old.steps.iter().enumerate().filter(|(index, _)| has_come(task, *index)) {
            let after = new.position(&spec.name).ok_or_else(|| Obstacle::at(Rule::Lost, &spec.name))?;
            of_step_that_came(task, old, index, &next, new, after)?;
        }
        kept_events(task, old, &next, new)?;
    }
    // The old definition may not have needed to note that an unanswered attempt may have done its work.
    for (step, spec) in next.steps.iter_mut().zip(&new.steps) {
        // As in the decision about its undo, the step's own input goes.
        if step.is_undo_begun() && spec.undo.as_ref().is_some_and(|undo| undo.with.is_some()) {
            step.input = None;
        }
        let was_noted = old.position(&spec.name).is_some_and(|index| old.steps[index].undo_is_mapped());
        step.unsure |= step.attempt > 0 && spec.undo_is_mapped() && !was_noted;
    }
    rename(&mut next, old, new);
    if old.deadline != new.deadline {
        let first = new.deadline.map(|time| plus(task.created_at, time));
        next.deadline = first.map(|by| if by > now { by } else { plus(now, new.deadline.unwrap_or_default()) });
    }
    next.migration = None;
    mend::check(&next, &task.tenant, new).map_err(|Unfit { at, why }| Obstacle {
        detail: Some(format!("`{at}` {why}")),
        ..Obstacle::whole(Rule::Record)
    })?;
    Ok(next)
}

/// The rules about the order as a whole.
fn of_whole(task: &Task, new: &Workflow) -> Result<(), Obstacle> {
    let rules = [
        (new.name != task.workflow, Rule::Workflow),
        (task.parent.is_some(), Rule::Child),
        (task.steps.iter().any(|step| step.kids.is_some()), Rule::Children),
        (new.children().iter().any(|name| !task.pins.contains_key(*name)), Rule::Pins),
        (new.hands_out_addresses() && task.secret.is_none(), Rule::Secret),
    ];
    rules.into_iter().find(|(is_broken, _)| *is_broken).map_or(Ok(()), |(_, rule)| Err(Obstacle::whole(rule)))
}

/// The rules about a step whose turn has come: `index` by the definition `old` of `task`, `after` by `new` of `next`.
fn of_step_that_came(
    task: &Task,
    old: &Workflow,
    index: usize,
    next: &Task,
    new: &Workflow,
    after: usize,
) -> Result<(), Obstacle> {
    let (was, will, step) = (&old.steps[index], &new.steps[after], &task.steps[index]);
    // Rules do not apply to it.
    if step.state == State::PassedOver {
        return Ok(());
    }
    let may_have_run = has_effect(task, index);
    let is_open = !step.is_settled();
    // A step that was put back with a new key may send something else.
    let has_new_key = step.rounds.as_ref().is_some_and(|rounds| rounds.key == rounds.round) && !step.is_tried();
    let is_tried = is_open && step.attempt > 0 && !has_new_key;
    let waits = matches!(step.state, State::Waiting { .. });
    let ran_before = |earlier: usize| has_effect(task, earlier);
    let is_before = |name: &str| new.before(after).iter().any(|&i| new.steps[i].name == name);
    let reordered = || old.before(index).into_iter().any(|i| ran_before(i) && !is_before(&old.steps[i].name));
    let rules = [
        (sort(was) != sort(will), Rule::Sort),
        (may_have_run && was.undo.is_some() && will.undo.is_none(), Rule::Undo),
        (may_have_run && will.irreversible && !was.irreversible, Rule::Irreversible),
        (new.before(after).iter().any(|&i| !next.steps[i].is_settled()), Rule::Before),
        (is_open && next.way(after, new) != Way::Go, Rule::PassedOver),
        (may_have_run && reordered(), Rule::Order),
        (is_tried && !sends_the_same((old, index), (new, after)), Rule::Call),
        ((waits || is_tried) && !waits_for_the_same(was, will), Rule::Wait),
        (is_tried && was.pages != will.pages, Rule::Pages),
    ];
    rules.into_iter().find(|(is_broken, _)| *is_broken).map_or(Ok(()), |(_, rule)| Err(Obstacle::at(rule, &was.name)))
}

/// Whether an attempt at the step sends the same under both definitions.
fn sends_the_same((old, index): (&Workflow, usize), (new, after): (&Workflow, usize)) -> bool {
    let (was, will) = (&old.steps[index], &new.steps[after]);
    let (Some(before), Some(now)) = (was.work(Direction::Do), will.work(Direction::Do)) else {
        return was.agent == will.agent;
    };
    // How an answer is read and kept may change.
    let http = |work: &Work<'_>| {
        work.http
            .map(|http| (http.url.clone(), http.method.clone(), http.query.clone(), http.headers.clone(), http.body))
    };
    let aws = |work: &Work<'_>| work.aws.map(|aws| (aws.action.clone(), aws.function.clone(), aws.envelope));
    let is_same = before.agent == now.agent
        && http(&before) == http(&now)
        && aws(&before) == aws(&now)
        && before.with == now.with;
    let sends_all = |work: &Work<'_>| {
        let reads_all = |one: &Reference| one.path.len() == 1 && ["outputs", "ran", "errors"].contains(&&*one.path[0]);
        // Other agents always get the outputs.
        work.http.is_none() && work.aws.is_none() || work.sends_envelope() || work.references().any(reads_all)
    };
    let names = |workflow: &Workflow, index| -> BTreeSet<String> {
        workflow.before(index).into_iter().map(|i| workflow.steps[i].name.clone()).collect()
    };
    is_same
        && (!before.reads("config") || old.config == new.config)
        && (!sends_all(&before) || names(old, index) == names(new, after))
}

/// Whether the end of a step's wait, or of its accepted work, is reported as before.
fn waits_for_the_same(was: &Spec, will: &Spec) -> bool {
    let event = |spec: &Spec| spec.event().map(|event| (event.name.clone(), event.people));
    event(was) == event(will)
        && was.accept.is_some() == will.accept.is_some()
        && was.poll.is_some() == will.poll.is_some()
        && was.link().is_some() == will.link().is_some()
}

/// Each kept event must still have its step, with its undo. No other step may now come first in the file and take it.
fn kept_events(task: &Task, old: &Workflow, next: &Task, new: &Workflow) -> Result<(), Obstacle> {
    for event in task.kept() {
        let mut still = next.to_come(&event.name, new);
        for index in task.to_come(&event.name, old) {
            let was = &old.steps[index];
            let will = still
                .next()
                .filter(|&i| new.steps[i].name == was.name)
                .ok_or_else(|| Obstacle::at(Rule::Kept, &was.name))?;
            let (before, after) = (was.event(), new.steps[will].event());
            if before.map(|event| &event.take) != after.map(|event| &event.take) {
                return Err(Obstacle::at(Rule::Kept, &was.name));
            }
            if was.undo.is_some() && new.steps[will].undo.is_none() {
                return Err(Obstacle::at(Rule::Undo, &was.name));
            }
        }
    }
    Ok(())
}

/// While an order is undone, only undos may change, not the steps and their sequence.
fn only_undos_differ(old: &Workflow, new: &Workflow) -> Result<(), Obstacle> {
    let after = |workflow: &Workflow, spec: &Spec| -> BTreeSet<String> {
        spec.after.iter().map(|after| format!("{}{}", workflow.steps[after.step].name, after.edge)).collect()
    };
    for spec in old.steps.iter().chain(&new.steps) {
        let both = old.position(&spec.name).zip(new.position(&spec.name));
        let is_same = both.is_some_and(|(was, will)| {
            let (was, will) = (&old.steps[was], &new.steps[will]);
            after(old, was) == after(new, will)
                && was.undo.is_some() == will.undo.is_some()
                && sort(was) == sort(will)
                && waits_for_the_same(was, will)
        });
        if !is_same {
            return Err(Obstacle::at(Rule::Undoing, &spec.name));
        }
    }
    Ok(())
}

/// Updates positions of steps throughout the record.
fn rename(next: &mut Task, old: &Workflow, new: &Workflow) {
    let place = |index: u16| {
        let name = &old.steps.get(usize::from(index))?.name;
        new.position(name).map(crate::task::as_position)
    };
    for Entry(_, _, step, _, text) in &mut next.log {
        let Some(index) = *step else { continue };
        *step = place(index);
        if step.is_none() {
            let name = old.steps.get(usize::from(index)).map_or("", |spec| &spec.name);
            let rest = text.as_ref().map(|text| format!(": {text}")).unwrap_or_default();
            *text = Some(crate::history::shorten(&format!("step `{name}`{rest}"), crate::history::MAX_TEXT));
        }
    }
    for event in &mut next.events {
        event.step = event.step.and_then(place);
    }
    if let Some(alert) = &mut next.alert {
        alert.step = alert.step.and_then(place);
    }
}

/// What a migration would mean for an order's steps, as lists of names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Tried and not settled: they are tried again.
    pub again: Vec<String>,
    /// Not begun, and not in the new definition.
    pub left_out: Vec<String>,
    /// They may have run, and an undo of the order would undo them differently from before.
    pub undone_differently: Vec<String>,
    /// Only in the new definition.
    pub added: Vec<String>,
    /// Not begun, and done differently from before.
    pub changed: Vec<String>,
    /// Values that later steps read from settled steps that did not return them, one sentence each.
    pub doubts: Vec<String>,
}

/// What a migration of `task` from `old` to `new` would mean, even if a rule forbids it.
#[must_use]
pub fn plan(task: &Task, old: &Workflow, new: &Workflow) -> Plan {
    let mut plan = Plan::default();
    let is_undoing = matches!(task.phase, Phase::Undoing | Phase::UndoError);
    for (index, spec) in old.steps.iter().enumerate() {
        let Some(after) = new.position(&spec.name) else {
            if !has_come(task, index) {
                plan.left_out.push(spec.name.clone());
            }
            continue;
        };
        let (step, will) = (&task.steps[index], &new.steps[after]);
        let is_again = match step.state {
            State::Pending { .. } | State::Failed => step.is_tried() && !is_undoing,
            State::UndoPending { .. } => step.undo_failures > 0,
            State::UndoFailed => true,
            _ => false,
        };
        if is_again {
            plan.again.push(spec.name.clone());
        }
        let has_other_config = |of: &[&Reference]| {
            old.config != new.config && of.iter().any(|one| one.path.first().is_some_and(|name| name == "config"))
        };
        let is_owed = has_effect(task, index) && step.state != State::Undone;
        if is_owed && (spec.undo != will.undo || will.undo.is_some() && has_other_config(&of_undo(will))) {
            plan.undone_differently.push(spec.name.clone());
        }
        let is_changed = || Spec { after: Vec::new(), ..spec.clone() } != Spec { after: Vec::new(), ..will.clone() };
        if !has_come(task, index) && (is_changed() || has_other_config(&of_do(will))) {
            plan.changed.push(spec.name.clone());
        }
    }
    let is_new = |spec: &&Spec| old.position(&spec.name).is_none();
    plan.added = new.steps.iter().filter(is_new).map(|spec| spec.name.clone()).collect();
    plan.doubts = doubts(task, old, new);
    plan
}

/// What the step reads on the way forward.
fn of_do(spec: &Spec) -> Vec<&Reference> {
    let mut read: Vec<&Reference> = Vec::new();
    read.extend(spec.when.iter().flat_map(|when| when.references()));
    read.extend(spec.catch.iter().flat_map(|catch| catch.references()));
    read.extend(spec.value.iter().chain(&spec.with).chain(&spec.output).flat_map(Mapping::references));
    read.extend(spec.fail.iter().flat_map(Template::references));
    read.extend(spec.wait.iter().flat_map(Wait::references));
    read.extend(spec.work(Direction::Do).iter().flat_map(|work| work.references()));
    read
}

/// What its undo reads.
fn of_undo(spec: &Spec) -> Vec<&Reference> {
    spec.work(Direction::Undo).iter().flat_map(|work| work.references()).collect()
}

/// A sentence for each value that later steps, or the order's output, read but a settled step did not return. Outputs
/// beside the record are not checked.
fn doubts(task: &Task, old: &Workflow, new: &Workflow) -> Vec<String> {
    let step_of = |spec: &Spec| old.position(&spec.name).map(|index| &task.steps[index]);
    let mut all: Vec<String> = Vec::new();
    let goes = !matches!(task.phase, Phase::Undoing | Phase::UndoError);
    let of_order = new.output.iter().filter(|_| goes).flat_map(Mapping::references).collect();
    let mut readers: Vec<(Option<&Spec>, Vec<&Reference>)> = vec![(None, of_order)];
    for spec in &new.steps {
        let own = step_of(spec);
        if goes && own.is_none_or(|step| !step.is_settled()) {
            readers.push((Some(spec), of_do(spec)));
        }
        if own.is_some_and(|step| step.may_have_run() && step.state != State::Undone) {
            readers.push((Some(spec), of_undo(spec)));
        }
        if own.is_some_and(|step| step.input.is_some() && !step.is_settled()) {
            all.push(format!("`{}` has an input from an operator, which replaces its `with`", spec.name));
        }
    }
    for (reader, read) in readers {
        for one in read.into_iter().filter(|one| !one.guarded) {
            let path: Vec<&str> = one.path.iter().map(String::as_str).collect();
            let (from, rest) = match path.as_slice() {
                ["outputs", name, rest @ ..] => (new.steps.iter().find(|spec| of_step(&spec.name) == *name), rest),
                ["output", rest @ ..] => (reader, rest),
                _ => continue,
            };
            let Some((from, step)) = from.and_then(|from| Some((from, step_of(from)?))) else { continue };
            let is_there = |output: &Value| rest.iter().try_fold(output, |value, name| value.get(*name)).is_some();
            if !step.is_settled() || step.beside.is_some() || step.output.as_ref().is_some_and(is_there) {
                continue;
            }
            let reader = reader.map_or("output", |spec| &spec.name);
            let text = format!("`{reader}` reads `{}`, which `{}` did not return", path.join("."), from.name);
            if !all.contains(&text) {
                all.push(text);
            }
        }
    }
    all
}

/// The save, with its effects, that moves `task` to the definition `new` that it [waits for](Task::migration), or ends
/// the wait because a rule forbids the move. `turn` is that of the present definition, with the input that `new` reads.
/// For a task that [can migrate](Task::migrates_at) now.
#[must_use]
pub fn migrate(task: &Task, new: &Workflow, turn: &Turn<'_>) -> Decision {
    crate::change::migrate(task, new, turn)
}
