//! Steps that are orders of their own. The truth is read from the child; the message that it has ended is only a hint.
//! The parent records the child before it can exist, so an undo reaches it, whoever creates it and however late.

use super::{Change, list};
use crate::decision::{Decision, Event, Kept, Turn};
use crate::expression::Mistake;
use crate::history::Kind;
use crate::items::Item;
use crate::message::Effect;
use crate::names::names;
use crate::operator;
use crate::order::Id;
use crate::scheduler::on_wake;
use crate::step::{Direction, Failure, FailureKind, Kids, State, Step};
use crate::task::{Parent, Phase, Task};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::child::{self, ToChild, Wish};
use serde_json::Value;
use std::sync::Arc;

/// Without a hint, the shortest and the longest time between two looks at a child.
pub(super) const LOOK_AFTER: SignedDuration = SignedDuration::from_mins(1);
const LOOK_AT_LEAST_EVERY: SignedDuration = SignedDuration::from_mins(15);
/// A child still absent this long after its parent turned to undo cannot be put as Undone, because its id is used.
pub(super) const GONE_AFTER: SignedDuration = SignedDuration::from_hours(1);

/// The id of the present child of step `index`, or of the one that it would start.
pub(crate) fn id_of(task: &Task, index: usize, turn: &Turn<'_>) -> Id {
    let made = task.steps[index].kids.as_ref().map_or(0, |kids| kids.made);
    child::id(&task.tenant, &task.id, &turn.workflow.steps[index].name, made)
}

/// Asks the child of step `index` for `wish`. `None` if its definition was not pinned; every submission pins it.
fn ask(task: &Task, index: usize, wish: Wish, turn: &Turn<'_>) -> Option<Effect> {
    let made = task.steps[index].kids.as_ref().map_or(0, |kids| kids.made);
    ask_of(task, index, made, wish, turn)
}

fn ask_of(task: &Task, index: usize, made: u32, wish: Wish, turn: &Turn<'_>) -> Option<Effect> {
    ask_for(task, index, child::key(&task.id, &turn.workflow.steps[index].name, made), None, wish, turn)
}

/// Asks the child with this idempotency key, for `item` of a list if given.
pub(super) fn ask_for(
    task: &Task,
    index: usize,
    key: String,
    item: Option<usize>,
    wish: Wish,
    turn: &Turn<'_>,
) -> Option<Effect> {
    let spec = &turn.workflow.steps[index];
    let workflow = spec.child.as_ref()?.definition(&task.pins)?;
    let round = task.steps[index].kids_round();
    let (id, item) = (Id::derive(&task.tenant, &key), item.and_then(|item| u32::try_from(item).ok()));
    let parent = Parent { id: task.id.clone(), step: spec.name.clone(), item, round, paused: false, released: false };
    Some(Effect::Child(Box::new(ToChild {
        wish,
        at: turn.now,
        parent,
        key,
        workflow,
        pins: task.pins.clone(),
        tenant: task.tenant.clone(),
        reference: task.reference.clone(),
        priority: task.priority,
        traceparent: task.traceparent.clone(),
        secret: task.secret.as_ref().map(|secret| child::secret(secret, &id)),
        retention: task.retention,
        id,
    })))
}

/// The input of the order that step `index` starts, the same on every call.
pub(super) fn input(task: &Task, index: usize, turn: &Turn<'_>) -> Result<Value, Mistake> {
    let (spec, step) = (&turn.workflow.steps[index], &task.steps[index]);
    let input = match (&step.input, &spec.with) {
        (Some(input), _) => input.clone(),
        (None, Some(with)) => with.evaluate(&names(task, index, Direction::Do, turn))?,
        (None, None) => turn.input.clone(),
    };
    check_input(task, index, &input, turn)?;
    Ok(input)
}

/// What is wrong with the input of an order that step `index` starts.
pub(super) fn check_input(task: &Task, index: usize, input: &Value, turn: &Turn<'_>) -> Result<(), Mistake> {
    let spec = &turn.workflow.steps[index];
    turn.outputs.loss()?;
    if !input.is_object() && !turn.outputs.is_short() {
        return Err(Mistake("the input of the order that it starts must be an object; write `with = { ... }`".into()));
    }
    if spec.call().is_some() {
        return Ok(());
    }
    let name = spec.child.as_ref().map_or("", |child| &child.workflow);
    let Some(pinned) = task.pins.get(name) else {
        return Err(Mistake(format!("the definition of `{name}` was not there when the order was submitted")));
    };
    let schema = turn.outputs.definition(pinned).and_then(|workflow| workflow.schema.clone());
    match schema.map(|schema| schema.schema().faults(input)).unwrap_or_default().first() {
        Some(fault) => Err(Mistake(format!("the input of `{name}` is refused: `{}` {}", fault.at, fault.message))),
        None => Ok(()),
    }
}

/// Makes children that may be missing because the instance that recorded them died. A task that is paused or no longer
/// goes forward makes none; the look after a resume does.
pub(crate) fn begun(task: &Task, turn: &Turn<'_>, may_be_lost: impl Fn(&Step) -> bool) -> Vec<Effect> {
    let goes_on = task.phase == Phase::Forward && task.paused_at.is_none();
    let waits = |step: &Step| step.kids.is_some() && matches!(step.state, State::Waiting { .. }) && may_be_lost(step);
    let lost = (0..task.steps.len()).filter(|&index| goes_on && waits(&task.steps[index]));
    let (lists, ones): (Vec<usize>, Vec<usize>) = lost.partition(|&index| list::has(task, index));
    let lost = lists.into_iter().flat_map(|index| list::begun(task, index, turn));
    let one = |index| ask(task, index, Wish::Begin(input(task, index, turn).ok()?), turn);
    ones.into_iter().filter_map(one).chain(lost).collect()
}

/// Whether the step waits for the end of a child, or of its undo.
fn awaits(step: &Step) -> bool {
    step.kids.is_some() && matches!(step.state, State::Waiting { .. } | State::UndoPending { .. })
}

/// Whether a child of `step` may still be open. A list that failed, or that a person settled, may have left some open.
fn is_open(step: &Step) -> bool {
    awaits(step)
        || step.items().is_some_and(|items| !step.is_undo_begun() && items.count(|item| item == Item::Open) > 0)
}

pub(super) fn any_open(task: &Task) -> bool {
    task.steps.iter().any(is_open)
}

/// Asks every child that may still be open for `wish`.
pub(crate) fn ask_open(task: &Task, wish: &Wish, turn: &Turn<'_>) -> Vec<Effect> {
    let open = (0..task.steps.len()).filter(|&index| is_open(&task.steps[index]));
    let asks = |index| match list::has(task, index) {
        true => list::ask_open(task, index, wish, turn),
        false => ask(task, index, wish.clone(), turn).into_iter().collect(),
    };
    open.flat_map(asks).collect()
}

/// Asks every child that may ever have existed for `wish`.
pub(crate) fn ask_all(task: &Task, wish: &Wish, turn: &Turn<'_>) -> Vec<Effect> {
    let lists = (0..task.steps.len()).flat_map(|index| list::ask_all(task, index, 0..usize::MAX, wish, turn));
    ask_ones(task, wish, turn).into_iter().chain(lists).collect()
}

/// [`ask_all`] without lists.
fn ask_ones(task: &Task, wish: &Wish, turn: &Turn<'_>) -> Vec<Effect> {
    let ones = (0..task.steps.len()).filter(|&index| !list::has(task, index));
    let kids = ones.filter_map(|index| Some((index, task.steps[index].kids.as_ref()?.made)));
    let all = kids.flat_map(|(index, made)| (0..=made).map(move |made| (index, made)));
    all.filter_map(|(index, made)| ask_of(task, index, made, wish.clone(), turn)).collect()
}

/// Releases the children once their parent's record may expire: it has ended, and no undo of an order above, which
/// would need them, can come.
pub(crate) fn release(task: &Task, turn: &Turn<'_>) -> Vec<Effect> {
    if is_gone(task) { ask_ones(task, &Wish::Release, turn) } else { Vec::new() }
}

/// [`release`] for lists, part by part.
pub(crate) fn release_lists(task: &Task, part: u32, turn: &Turn<'_>) -> Vec<Effect> {
    if is_gone(task) { list::ask_part(task, part, &Wish::Release, turn) } else { Vec::new() }
}

/// Keeps the children of an ended order that runs again, so that they outlast it. Children of lists follow part by
/// part.
pub(crate) fn keep_again(task: &Task, turn: &Turn<'_>) -> Vec<Effect> {
    let mut asks = keep_lists(task, 0, turn);
    if is_revived(task) {
        asks.extend(ask_ones(task, &Wish::Keep, turn));
    }
    asks
}

fn keep_lists(task: &Task, part: u32, turn: &Turn<'_>) -> Vec<Effect> {
    if is_revived(task) { list::ask_part(task, part, &Wish::Keep, turn) } else { Vec::new() }
}

fn is_revived(task: &Task) -> bool {
    task.expires && task.again.is_some()
}

fn is_gone(task: &Task) -> bool {
    let is_released = task.parent.as_ref().is_none_or(|parent| parent.released);
    task.expires && is_released && matches!(task.phase, Phase::Processed | Phase::Undone)
}

/// Whether `child` did something irreversible. `None` if its definition has to be read first.
pub(super) fn is_final(child: &Task, turn: &Turn<'_>) -> Option<bool> {
    if !matches!(child.phase, Phase::Forward | Phase::Error | Phase::Processed) {
        return Some(false);
    }
    let workflow = turn.outputs.definition(&child.workflow_hash)?;
    Some(child.steps.iter().zip(&workflow.steps).any(|(step, spec)| spec.irreversible && step.may_have_run()))
}

/// Why a child failed.
pub(super) fn reason_of(child: &Task) -> String {
    let how = if child.phase == Phase::Undone { "was undone" } else { "stopped" };
    format!("order {} {how}: {}", child.id, child.reason.as_deref().unwrap_or("without a reason"))
}

/// Whether a task in this phase does nothing more by itself.
pub(super) fn is_ended(phase: Phase) -> bool {
    match phase {
        Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => true,
        Phase::Forward | Phase::Undoing => false,
    }
}

/// A child of `step` may have ended. Most hints are right; without news, nothing is written.
pub(crate) fn on_hint(task: &Task, seen: u64, part: u32, step: Option<&str>, turn: &Turn<'_>) -> Decision {
    let keep = |effects| Decision::Keep { why: Kept::NothingReady, effects };
    let runs = task.paused_at.is_none();
    let is_news = |index: &usize| {
        let step = &task.steps[*index];
        let Some(kids) = step.kids.as_ref().filter(|kids| runs && kids.items.is_none()) else { return false };
        let is_undoing = match (task.phase, &step.state) {
            (Phase::Forward, State::Waiting { .. }) => false,
            (Phase::Undoing, State::UndoPending { .. }) => true,
            _ => return false,
        };
        let Some(Some(child)) = turn.outputs.order(&id_of(task, *index, turn)) else { return false };
        match is_undoing {
            true => child.phase == Phase::Undone,
            false => is_ended(child.phase) && child.parent.as_ref().is_some_and(|parent| parent.round == kids.round),
        }
    };
    let step = step.and_then(|name| turn.workflow.position(name));
    let is_meant = |index: &usize| step.is_none_or(|step| step == *index);
    let news: Vec<usize> = (0..task.steps.len()).filter(is_meant).filter(is_news).collect();
    if let Some(part) = list::part_of_asks(part) {
        return keep(release_lists(task, part, turn).into_iter().chain(keep_lists(task, part, turn)).collect());
    }
    let why = if part == 0 { list::Why::Hint(seen) } else { list::Why::Look(seen) };
    let lists = list::news(task, why, step, turn);
    if news.is_empty() && lists.now.is_empty() {
        let has_open_list = (0..task.steps.len()).any(|index| list::has(task, index) && awaits(&task.steps[index]));
        return match has_open_list || lists.is_late {
            true if lists.is_expected && lists.later.is_empty() => Decision::keep(Kept::Expected),
            true => keep(lists.later.into_iter().map(|index| list::look_again(task, index, turn)).collect()),
            // An earlier delivery of this hint may have saved what it found, and died before it sent what follows.
            false => on_wake(task, task.version.saturating_sub(1), 1, turn),
        };
    }
    // The sweep ends it.
    if news.is_empty() && task.is_over(turn.now, turn.skew) {
        return Decision::keep(Kept::NothingReady);
    }
    if turn.input.is_null() && turn.workflow.reads_input() {
        turn.outputs.want_input();
        return Decision::keep(Kept::NothingReady);
    }
    let mut change = Change::begin(task, turn);
    let is_single = !news.is_empty();
    for index in news {
        match &mut change.task.steps[index].state {
            State::Waiting { until, .. } => *until = turn.now,
            State::UndoPending { not_before } => *not_before = None,
            _ => {}
        }
    }
    if !change.task.is_over(turn.now, turn.skew) {
        for index in lists.now {
            // Once a list has stopped or turned the task, the others are looked at on its new way.
            if change.task.phase == task.phase {
                change.look_at_or_unwind(index);
            }
        }
    }
    // The notice of a turn to undo goes out before the undo begins (simulation, seed 304).
    if change.task.phase == task.phase {
        change.advance();
    }
    // A list that goes on has sent a hint to itself.
    if is_single || change.task.steps.iter().zip(&task.steps).any(|(new, old)| awaits(old) && !awaits(new)) {
        change.wake_if_waiting();
    }
    change.save()
}

/// The parent's `wish` for this order: one write, or none if it is fulfilled already.
pub(crate) fn on_asked(task: &Task, round: u32, wish: &Wish, turn: &Turn<'_>) -> Decision {
    let Some(parent) = &task.parent else { return Decision::keep(Kept::Foreign) };
    let by = format!("order {}", parent.id);
    match wish {
        Wish::Begin(_) => Decision::keep(Kept::Repeated),
        Wish::Undo => operator::undo_for_parent(task, &by, turn),
        Wish::Resubmit => {
            // Another order replaces one that undid itself or is about to.
            if parent.round >= round || matches!(task.phase, Phase::Undone | Phase::Undoing) {
                return operator::repeated(task, turn);
            }
            let mut change = Change::begin(task, turn);
            if let Some(parent) = &mut change.task.parent {
                parent.round = round;
            }
            match task.phase {
                Phase::Error | Phase::UndoError => change.resubmit(&by, "its step is resubmitted"),
                // Its parent waits for an end in the new round.
                Phase::Processed => change.tells_parent = true,
                Phase::Forward | Phase::Undoing | Phase::Undone => {}
            }
            change.save()
        }
        Wish::Pause | Wish::Resume => operator::pause_for_parent(task, &by, wish == &Wish::Pause, turn),
        Wish::Release | Wish::Keep => {
            let released = wish == &Wish::Release;
            let below = |task: &Task| match released {
                true => release(task, turn).into_iter().chain(release_lists(task, 0, turn)).collect(),
                false => ask_all(task, wish, turn),
            };
            if parent.released == released {
                return Decision::Keep { why: Kept::Repeated, effects: below(task) };
            }
            let mut change = Change::keep_books(task, turn);
            if let Some(parent) = &mut change.task.parent {
                parent.released = released;
            }
            let below = below(&change.task);
            change.with(below).save()
        }
    }
}

impl Change<'_> {
    /// The turn of step `index` has come: the save records its child, which is made only afterwards.
    pub(super) fn begin_child(&mut self, index: usize, input: Value) {
        let version = self.task.version;
        let step = &mut self.task.steps[index];
        step.attempt += 1;
        step.claimed_at = version;
        step.error = None;
        step.kids.get_or_insert_with(Kids::default);
        let id = id_of(&self.task, index, self.turn);
        self.log(Kind::Waiting, Some(index), Some(format!("for order {id}")));
        self.ask_child(index, Wish::Begin(input));
        self.look_later(index);
    }

    fn ask_child(&mut self, index: usize, wish: Wish) {
        let asked = ask(&self.task, index, wish, self.turn);
        self.requests.extend(asked);
    }

    /// The next look at the child of step `index`, if no hint comes before.
    fn look_later(&mut self, index: usize) {
        let since = self.task.steps[index].turn.unwrap_or(self.turn.now);
        let until = plus(self.turn.now, self.patience(since));
        self.task.steps[index].state = State::Waiting { until, event: false };
        self.waits = true;
    }

    /// Grows with the time since `since`.
    pub(super) fn patience(&self, since: Timestamp) -> SignedDuration {
        since.duration_until(self.turn.now).clamp(LOOK_AFTER, LOOK_AT_LEAST_EVERY)
    }

    /// Makes the next Wake look at children that may have ended while nobody looked.
    pub(super) fn look_soon(&mut self) {
        let now = self.turn.now;
        for step in self.task.steps.iter_mut().filter(|step| step.kids.is_some()) {
            match &mut step.state {
                State::Waiting { until, .. } => *until = now.min(*until),
                State::UndoPending { not_before } => *not_before = None,
                _ => {}
            }
        }
    }

    /// The child's record is unreadable, which holds up only step `index`.
    fn look_past(&mut self, index: usize, child: &Id) {
        self.task.steps[index].error = Some(format!("order {child} cannot be read; `stepwarden mend` shows why"));
    }

    /// Looks at the child that step `index` waits for.
    pub(super) fn look(&mut self, index: usize) {
        let id = id_of(&self.task, index, self.turn);
        if self.turn.outputs.is_unreadable(&id) {
            self.look_past(index, &id);
            return self.look_later(index);
        }
        // Once it is read, this is decided again.
        let Some(found) = self.turn.outputs.order(&id) else { return };
        let Some(child) = found else { return self.begin_again(index) };
        self.task.steps[index].error = None;
        let Some(parent) = child.parent.as_ref().filter(|parent| parent.id == self.task.id) else {
            let mistake = Mistake(format!("order {} exists already, but this order did not start it", child.id));
            return self.mistaken(index, Direction::Do, &mistake);
        };
        let round = self.task.steps[index].kids_round();
        match child.phase {
            Phase::Undone if parent.round < round => {
                if let Some(kids) = &mut self.task.steps[index].kids {
                    kids.made = round;
                }
                self.task.steps[index].claimed_at = self.task.version;
                self.begin_again(index);
            }
            _ if parent.round < round => {
                self.ask_child(index, Wish::Resubmit);
                self.look_later(index);
            }
            Phase::Processed => {
                let output = child.output.clone().unwrap_or_default();
                self.complete_with(index, output);
            }
            Phase::Undone | Phase::Error | Phase::UndoError => {
                self.fail(index, Direction::Do, &reason_of(&child), Failure::of(FailureKind::Children));
            }
            Phase::Forward | Phase::Undoing => {
                self.resume_child(index, &child, parent);
                self.look_later(index);
            }
        }
    }

    /// Makes an absent child, because its maker has died or is late.
    fn begin_again(&mut self, index: usize) {
        match input(&self.task, index, self.turn) {
            Ok(input) => {
                self.ask_child(index, Wish::Begin(input));
                self.look_later(index);
            }
            Err(mistake) => self.mistaken(index, Direction::Do, &mistake),
        }
    }

    fn resume_child(&mut self, index: usize, child: &Arc<Task>, parent: &Parent) {
        if child.paused_at.is_some() && parent.paused {
            self.ask_child(index, Wish::Resume);
        }
    }

    /// Looks whether the child of step `index` is undone; if not, asks for it.
    pub(super) fn unwind(&mut self, index: usize) {
        let id = id_of(&self.task, index, self.turn);
        let turned = self.task.log.iter().rev().find(|entry| entry.1 == Kind::TaskUndoing);
        let since = turned.map_or(self.turn.now, |entry| entry.at(self.task.created_at));
        if self.turn.outputs.is_unreadable(&id) {
            self.look_past(index, &id);
            return self.unwind_later(index, since);
        }
        let Some(found) = self.turn.outputs.order(&id) else { return };
        let was_asked = matches!(self.task.steps[index].state, State::UndoPending { not_before: Some(_) });
        self.task.steps[index].error = None;
        match &found {
            Some(child) if child.phase == Phase::Undone => return self.complete(index, Direction::Undo),
            Some(child) => {
                let Some(is_final) = is_final(child, self.turn) else { return };
                if is_final {
                    // Its remaining work waits for the person, too.
                    let runs = child.phase == Phase::Forward;
                    if runs {
                        self.ask_child(index, Wish::Pause);
                    }
                    let so = if runs { "; the rest of it is paused" } else { "" };
                    let error = format!("order {id} has done what cannot be undone{so}");
                    return self.fail(index, Direction::Undo, &error, Failure::of(FailureKind::Children));
                }
                if let Some(parent) = &child.parent {
                    self.resume_child(index, child, parent);
                }
                let stands = match (child.phase, child.paused_at) {
                    (Phase::UndoError, _) => Some("has stopped"),
                    (_, Some(_)) if !child.parent.as_ref().is_some_and(|parent| parent.paused) => Some("is paused"),
                    _ => None,
                };
                self.task.steps[index].error = stands.map(|how| format!("waits for order {id}, which {how}"));
            }
            // A child that was never made is put as Undone within a look or two. One whose record has expired cannot be.
            None if was_asked && since.duration_until(self.turn.now) > GONE_AFTER => {
                let error = format!("order {id} is gone, so what it did is not undone");
                return self.fail(index, Direction::Undo, &error, Failure::of(FailureKind::Children));
            }
            None => {}
        }
        self.ask_child(index, Wish::Undo);
        self.unwind_later(index, since);
    }

    fn unwind_later(&mut self, index: usize, since: Timestamp) {
        let not_before = Some(plus(self.turn.now, self.patience(since)));
        self.task.steps[index].state = State::UndoPending { not_before };
        self.wake = true;
    }
}

impl From<&crate::message::Wake> for Event {
    fn from(wake: &crate::message::Wake) -> Self {
        if wake.hint {
            Self::Hint { seen: wake.seen, part: wake.hops, step: wake.step.clone() }
        } else {
            Self::Wake { seen: wake.seen, hops: wake.hops }
        }
    }
}
