//! Steps that start an order per item of a list. The record says which items are open before their orders are made.
//! Each look reads all open orders, and no message is counted as an end. So whatever is lost, late or repeated, the
//! next look finds the truth.
//!
//! A look writes when half of the orders that may be open have ended, or an end is a second old. So a long list costs
//! few writes.

use super::child::{self, LOOK_AFTER, reason_of};
use super::{Change, names};
use crate::decision::{Refusal, Turn};
use crate::expression::Mistake;
use crate::history::{Kind, shorten};
use crate::items::{Item, Items};
use crate::json;
use crate::message::{Effect, Wake};
use crate::operator::MAX_INPUT;
use crate::order::{Id, canonical_hash};
use crate::outputs::MAX_BESIDE;
use crate::step::{Direction, Failure, FailureKind, Kids, State};
use crate::task::{Parent, Phase, Task};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::Hash;
use crate::workflow::child::{self as family, Wish};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// How old an end gets before it is written, if few others end meanwhile.
const SAVE_AFTER: SignedDuration = SignedDuration::from_secs(1);
/// How long the instance that recorded an order as open has to make it. Then any look that misses it makes it.
const MADE_WITHIN: SignedDuration = SignedDuration::from_secs(2);
/// Most items that one decision may find unfit; each costs time for its expressions.
const MOST_UNFIT: usize = 500;
/// Most windows of already undone orders that one decision about an undo passes.
const MOST_WINDOWS: usize = 10;
/// Most failures that the output of a step names.
pub const MAX_ERRORS: usize = 500;
/// Longest message of a failure, in bytes.
const MAX_MESSAGE: usize = 200;
/// With at most this many open orders, each end makes a look read all.
const FEW: usize = 10;
/// How many children one message asks to be kept or released.
const ASKED_AT_ONCE: usize = 100;

/// Whether step `index` works on a list.
pub(crate) fn has(task: &Task, index: usize) -> bool {
    items(task, index).is_some()
}

fn items(task: &Task, index: usize) -> Option<&Items> {
    task.steps[index].items()
}

fn key_of(task: &Task, index: usize, item: usize, turn: &Turn<'_>) -> String {
    let made = items(task, index).map_or(0, |items| items.made(item));
    family::key_of_item(&task.id, &turn.workflow.steps[index].name, item, made)
}

fn id_of(task: &Task, index: usize, item: usize, turn: &Turn<'_>) -> Id {
    Id::derive(&task.tenant, &key_of(task, index, item, turn))
}

/// The order of an item, as a look finds it.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    Absent,
    /// Its record exists but cannot be read.
    Unreadable,
    There(Arc<Task>),
}

/// `None` if it has to be read first.
fn seen(task: &Task, index: usize, item: usize, turn: &Turn<'_>) -> Option<Seen> {
    let id = id_of(task, index, item, turn);
    if turn.outputs.is_unreadable(&id) {
        return Some(Seen::Unreadable);
    }
    turn.outputs.order(&id).map(|found| found.map_or(Seen::Absent, Seen::There))
}

fn ask(task: &Task, index: usize, item: usize, wish: Wish, turn: &Turn<'_>) -> Option<Effect> {
    child::ask_for(task, index, key_of(task, index, item, turn), Some(item), wish, turn)
}

/// The items of step `index`, as they were when it began.
fn list(task: &Task, index: usize, turn: &Turn<'_>) -> Result<Arc<Vec<Value>>, Mistake> {
    let Some(each) = turn.workflow.steps[index].each() else { return Ok(Arc::default()) };
    if let Some(known) = items(task, index).and_then(|items| turn.outputs.list(&items.hash)) {
        return Ok(known);
    }
    let items = each.items(&names(task, index, Direction::Do, turn));
    turn.outputs.loss()?;
    let list = Arc::new(items?);
    turn.outputs.know_list(hash_of(&list), Arc::clone(&list));
    Ok(list)
}

fn hash_of(list: &[Value]) -> Hash {
    Hash(canonical_hash(&json!(list)))
}

/// The inputs of the orders for these items of `list`.
fn inputs(
    task: &Task,
    index: usize,
    list: &[Value],
    wanted: impl Iterator<Item = usize>,
    turn: &Turn<'_>,
) -> Vec<(usize, Result<Value, Mistake>)> {
    let spec = &turn.workflow.steps[index];
    // Made once for all items, because it copies outputs.
    let mut known = Some(names(task, index, Direction::Do, turn));
    let (mut carried, mut edits) = (None, BTreeMap::new());
    let input = |item: usize| {
        let edited = items(task, index).and_then(|items| items.given(item)).map(|(round, beside)| {
            let all = edits.entry(round).or_insert_with(|| turn.outputs.at(beside));
            all.as_ref().and_then(|all| all.get(item.to_string())).cloned()
        });
        let value = match (list.get(item), &edited) {
            (None, _) => return (item, Err(Mistake(format!("the list has no item {item}")))),
            (_, Some(None)) => return (item, Err(Mistake("the input that a person gave it is missing".into()))),
            (_, Some(Some(edited))) => edited,
            (Some(value), None) => value,
        };
        let input = match (&spec.with, spec.call()) {
            (None, Some(call)) => {
                let of_parent =
                    carried.get_or_insert_with(|| names::carried(&names(task, index, Direction::Do, turn), call));
                let mut input = of_parent.clone();
                input.insert("item".into(), value.clone());
                input.insert("index".into(), json!(item));
                Ok(Value::Object(input))
            }
            (None, None) => Ok(value.clone()),
            (Some(_), _) if edited.is_some() => Ok(value.clone()),
            (Some(with), _) => {
                let names = known.take().unwrap_or_default();
                let own = names.with("item", Cow::Owned(value.clone())).with("index", Cow::Owned(json!(item)));
                let input = with.evaluate(&own);
                known = Some(own);
                input
            }
        };
        (item, input.and_then(|input| child::check_input(task, index, &input, turn).map(|()| input)))
    };
    wanted.map(input).collect()
}

/// Whether one action gave items of step `index` these inputs.
pub(crate) fn has_given(task: &Task, index: usize, inputs: &BTreeMap<usize, Value>, turn: &Turn<'_>) -> bool {
    let Some(items) = items(task, index) else { return false };
    let mut of_act = inputs.keys().map(|item| items.given(*item));
    let Some(Some((round, beside))) = of_act.next() else { return false };
    of_act.all(|one| one.is_some_and(|(other, _)| other == round))
        && turn.outputs.at(beside).is_some_and(|given| given == table(inputs))
}

/// Inputs of items as they are kept beside the record.
fn table(inputs: &BTreeMap<usize, Value>) -> Value {
    inputs.iter().map(|(item, input)| (item.to_string(), input.clone())).collect::<serde_json::Map<_, _>>().into()
}

/// The record of step `index`'s children with another input for these failed items, from the next round on.
pub(crate) fn give(
    task: &Task,
    index: usize,
    inputs: &BTreeMap<usize, Value>,
    turn: &Turn<'_>,
) -> Result<Kids, Refusal> {
    let Some(mut kids) = task.steps[index].kids.clone() else { return Err(Refusal::NoFailedItem) };
    let round = kids.round + 1;
    let Some(items) = &mut kids.items else { return Err(Refusal::NoFailedItem) };
    let is_call = turn.workflow.steps[index].call().is_some();
    for (&item, input) in inputs {
        if !items.get(item).has_failed() {
            return Err(Refusal::NoFailedItem);
        }
        let is_bad = !(is_call || input.is_object()) || json::exceeds(input, MAX_INPUT);
        if is_bad || !is_call && child::check_input(task, index, input, turn).is_err() {
            return Err(Refusal::ItemInput);
        }
        // A stopped order would be undone and replaced by another.
        if items.get(item) == Item::Failed
            && let Some(Seen::There(child)) = seen(task, index, item, turn)
            && child::is_final(&child, turn) == Some(true)
        {
            return Err(Refusal::ItemIsFinal);
        }
    }
    let beside = turn.outputs.keep_beside(table(inputs)).ok_or(Refusal::ItemInputs)?;
    items.edit(inputs.keys().copied(), round, beside).ok_or(Refusal::ItemInputs)?;
    Ok(kids)
}

/// The items of step `index` whose orders a look reads: the open ones and, in an undo, the next ones.
fn window(task: &Task, index: usize, turn: &Turn<'_>) -> Vec<usize> {
    let (Some(items), Some(each)) = (items(task, index), turn.workflow.steps[index].each()) else { return Vec::new() };
    let open = items.all(|item| item == Item::Open);
    match (&task.steps[index].state, task.phase) {
        (State::Waiting { .. }, Phase::Forward) => open.collect(),
        (State::UndoPending { .. }, Phase::Undoing) => {
            // Running orders first: they gain more to undo.
            let ended = items.all(|item| matches!(item, Item::Done | Item::Failed | Item::Again)).rev();
            let next: Vec<usize> = open.chain(ended).take(usize::from(each.at_once)).collect();
            match next.is_empty() {
                true => items.all(|item| item == Item::Stuck).collect(),
                false => next,
            }
        }
        _ => Vec::new(),
    }
}

/// Whether the parent may count that this child has ended.
fn counts(task: &Task, index: usize, child: &Task) -> bool {
    let round = task.steps[index].kids_round();
    match task.phase {
        Phase::Undoing => matches!(child.phase, Phase::Undone | Phase::UndoError),
        _ => child::is_ended(child.phase) && child.parent.as_ref().is_some_and(|parent| parent.round == round),
    }
}

/// What a look finds.
#[derive(Default)]
pub(super) struct News {
    /// The steps whose lists are to be written.
    pub(super) now: Vec<usize>,
    /// The steps whose lists have news that can wait for more, and for which no look is on its way.
    pub(super) later: Vec<usize>,
    /// Whether this look is superseded: a later save has arranged another.
    pub(super) is_late: bool,
    /// Whether there is news that the look which the last save arranged will find.
    pub(super) is_expected: bool,
}

/// Which open orders are read because one of them has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    None,
    All,
    /// From the last back to one that runs.
    WhileEnded,
}

/// What is read when the order at `rank` of `open` ones has ended, and a save needs `wanted` ends. Orders that began
/// earlier have usually ended, too. So an order is read about twice before its end is written, not at each end of
/// another.
fn reads(rank: Option<usize>, open: usize, wanted: usize) -> Reads {
    let Some(rank) = rank else { return Reads::None };
    // Few orders end out of turn, so a small surplus lets the first look find enough.
    let first = wanted + wanted.div_ceil(8);
    match rank + 1 {
        _ if open <= FEW => Reads::All,
        _ if open <= wanted => Reads::WhileEnded,
        ended if ended == open => Reads::All,
        ended if ended >= first && (ended - first).is_multiple_of((wanted / 5).max(1)) => Reads::All,
        _ => Reads::None,
    }
}

/// Why lists are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The order of this item has ended, most likely.
    Hint(u64),
    /// A look was arranged when the task had this version.
    Look(u64),
}

/// News of the list of `step`, or of all lists. With many open orders, only some ends make it read other orders.
pub(super) fn news(task: &Task, why: Why, step: Option<usize>, turn: &Turn<'_>) -> News {
    let mut news = News::default();
    let is_turn = |index: &usize| match task.phase {
        Phase::Forward => true,
        Phase::Undoing => task.is_open_to_undo(*index, turn.workflow),
        Phase::Error | Phase::Processed | Phase::Undone | Phase::UndoError => false,
    };
    let runs = task.paused_at.is_none();
    let is_alone = task.steps.iter().filter(|step| step.kids.is_some()).count() == 1;
    for index in step.map_or(0..task.steps.len(), |index| index..index + 1) {
        let Some(items) = items(task, index) else { continue };
        if matches!(why, Why::Look(arranged) if items.looked_at > arranged) {
            news.is_late = true;
            continue;
        }
        if !runs || !is_turn(&index) {
            continue;
        }
        let at_once = turn.workflow.steps[index].each().map_or(1, |each| usize::from(each.at_once));
        let window = window(task, index, turn);
        let (open, wanted) = (window.len(), at_once.min(items.total()).div_ceil(2));
        // All that was looked at was unfit, and there is more.
        let has_more = items.count(|item| matches!(item, Item::ToDo | Item::Again)) > 0
            && matches!(task.steps[index].state, State::Waiting { .. });
        if task.phase == Phase::Forward && window.is_empty() && has_more {
            news.now.push(index);
            continue;
        }
        if let Why::Hint(hint) = why {
            let rank = window.iter().position(|item| *item as u64 == hint);
            let reads = reads(rank, open, wanted);
            let is_expected = task.phase == Phase::Forward && turn.now < plus(items.changed_at, SAVE_AFTER);
            // No other order is further down.
            let is_last = rank.is_some_and(|rank| rank + 1 == open);
            match reads {
                Reads::None if is_expected => {
                    news.is_expected = true;
                    continue;
                }
                // Of two looks at once, which read the same, only one is saved. With several lists, the other may be
                // for another one.
                Reads::All if is_alone && is_expected && open > FEW && !is_last && turn.outputs.leave_to_look() => {
                    news.is_expected = true;
                    continue;
                }
                // It is recorded already.
                Reads::None if rank.is_none() => continue,
                Reads::None => {
                    news.later.push(index);
                    continue;
                }
                Reads::All | Reads::WhileEnded => {}
            }
            let has_ended = |item: &usize| match seen(task, index, *item, turn) {
                Some(Seen::There(child)) => counts(task, index, &child),
                Some(Seen::Absent | Seen::Unreadable) | None => false,
            };
            // In small parts, because most need not be read in most cases.
            let mut parts = window.rchunks(FEW);
            let mut have_ended = || parts.all(|part| part.iter().filter(|item| has_ended(item)).count() == part.len());
            if reads == Reads::WhileEnded && !have_ended() {
                match is_expected {
                    true => news.is_expected = true,
                    false => news.later.push(index),
                }
                continue;
            }
        }
        let (mut ended, mut oldest, mut is_lost): (usize, Option<Timestamp>, bool) = (0, None, false);
        for &item in &window {
            let is_stuck = items.get(item) == Item::Stuck;
            match seen(task, index, item, turn) {
                // The only news of a stuck order is the end of its undo.
                Some(Seen::There(child)) if is_stuck && child.phase != Phase::Undone => {}
                Some(Seen::Absent) if is_stuck => {}
                Some(Seen::There(child)) if counts(task, index, &child) => {
                    ended += 1;
                    oldest = Some(oldest.map_or(child.updated_at, |oldest| oldest.min(child.updated_at)));
                }
                // The instance that should make it, or tell it of a new round, may have died.
                Some(Seen::Absent) => is_lost = true,
                Some(Seen::There(child)) => is_lost |= child::is_ended(child.phase),
                Some(Seen::Unreadable) | None => {}
            }
        }
        // In an order that goes forward, saves for other steps say nothing of this list. In an undo they still count:
        // while another, busy list is undone, lost asks of this one wait for its end or for the sweep.
        let asked_at = if task.phase == Phase::Forward { items.changed_at } else { task.updated_at };
        let is_half = ended > 0 && (ended >= wanted || ended == open);
        let is_old = oldest.is_some_and(|at| plus(at, SAVE_AFTER) <= turn.now);
        if is_half || is_old || is_lost && plus(asked_at, MADE_WITHIN) <= turn.now {
            news.now.push(index);
        } else if ended > 0 || is_lost {
            news.later.push(index);
        }
    }
    news
}

/// Arranges a look at the list of step `index` for when the latest end is old enough to write.
pub(super) fn look_again(task: &Task, index: usize, turn: &Turn<'_>) -> Effect {
    Effect::Wake(Wake::look(task, 1, Some(&turn.workflow.steps[index].name)), SAVE_AFTER)
}

/// Makes open orders of step `index` that are missing because the instance that recorded them died.
pub(super) fn begun(task: &Task, index: usize, turn: &Turn<'_>) -> Vec<Effect> {
    let absent = |item: &usize| seen(task, index, *item, turn) == Some(Seen::Absent);
    let lost: Vec<usize> = window(task, index, turn).into_iter().filter(absent).collect();
    if lost.is_empty() {
        return Vec::new();
    }
    let Ok(list) = list(task, index, turn) else { return Vec::new() };
    let begin = |(item, input): (usize, Result<Value, Mistake>)| ask(task, index, item, Wish::Begin(input.ok()?), turn);
    inputs(task, index, &list, lost.into_iter(), turn).into_iter().filter_map(begin).collect()
}

/// Asks every order of step `index` that may still be open for `wish`.
pub(super) fn ask_open(task: &Task, index: usize, wish: &Wish, turn: &Turn<'_>) -> Vec<Effect> {
    let is_open = |item: &usize| items(task, index).is_some_and(|items| items.get(*item) != Item::Stuck);
    let open = match (task.phase, items(task, index)) {
        // Its undo is not decided yet, or does not wait for them.
        (Phase::Undoing | Phase::Forward, Some(items)) if !task.steps[index].is_undo_begun() => {
            items.all(|item| item == Item::Open).collect()
        }
        _ => window(task, index, turn),
    };
    let open = open.into_iter().filter(is_open);
    open.filter_map(|item| ask(task, index, item, wish.clone(), turn)).collect()
}

/// Asks every order that these items of step `index` may ever have had for `wish`.
pub(super) fn ask_all(task: &Task, index: usize, range: Range<usize>, wish: &Wish, turn: &Turn<'_>) -> Vec<Effect> {
    let Some(items) = items(task, index) else { return Vec::new() };
    let name = &turn.workflow.steps[index].name;
    let begun = items.all(Item::is_begun).filter(|item| range.contains(item));
    // Which orders of earlier rounds exist is not known.
    let all = begun.flat_map(|item| (0..=items.made(item)).map(move |made| (item, made)));
    let ask = |(item, made): (usize, u32)| {
        let key = family::key_of_item(&task.id, name, item, made);
        child::ask_for(task, index, key, Some(item), wish.clone(), turn)
    };
    all.filter_map(ask).collect()
}

/// The part of the lists' orders that a task's hint to itself with this number means.
pub(super) fn part_of_asks(part: u32) -> Option<u32> {
    part.checked_sub(1).filter(|part| *part > 0)
}

/// Asks one part of all lists' orders for `wish`; a hint brings the next part.
pub(super) fn ask_part(task: &Task, part: u32, wish: &Wish, turn: &Turn<'_>) -> Vec<Effect> {
    let first = part as usize * ASKED_AT_ONCE;
    let range = first..first + ASKED_AT_ONCE;
    let steps = 0..task.steps.len();
    let mut effects: Vec<Effect> =
        steps.clone().flat_map(|index| ask_all(task, index, range.clone(), wish, turn)).collect();
    if steps.into_iter().any(|index| items(task, index).is_some_and(|items| items.total() > range.end)) {
        effects.push(Effect::Wake(Wake::look(task, part + 2, None), SignedDuration::ZERO));
    }
    effects
}

impl Change<'_> {
    fn items_of(&mut self, index: usize) -> Option<&mut Items> {
        self.task.steps[index].kids.as_mut()?.items.as_mut()
    }

    fn set_item(&mut self, index: usize, item: usize, state: Item) {
        let now = self.turn.now;
        if let Some(items) = self.items_of(index) {
            items.set(item, state);
            items.changed_at = now;
        }
    }

    fn ask_item(&mut self, index: usize, item: usize, wish: Wish) {
        let asked = ask(&self.task, index, item, wish, self.turn);
        self.requests.extend(asked);
    }

    /// Begins the list of step `index`.
    pub(super) fn begin_list(&mut self, index: usize) {
        let list = match list(&self.task, index, self.turn) {
            Ok(list) => list,
            Err(mistake) => return self.mistaken(index, Direction::Do, &mistake),
        };
        let (version, now) = (self.task.version, self.turn.now);
        let step = &mut self.task.steps[index];
        step.attempt += 1;
        step.claimed_at = version;
        step.error = None;
        step.kids = Some(Kids { items: Some(Items::new(list.len(), hash_of(&list), now)), ..Kids::default() });
        step.state = State::Waiting { until: plus(now, LOOK_AFTER), event: false };
        self.waits = true;
        self.log(Kind::Waiting, Some(index), Some(format!("for {} orders", list.len())));
        self.open_items(index, &list);
        self.list_goes_on(index, None);
    }

    /// Looks at the list of step `index`, forward or undoing.
    pub(super) fn look_at_or_unwind(&mut self, index: usize) {
        match self.task.phase {
            Phase::Forward => self.look_at_list(index),
            Phase::Undoing => self.unwind_list(index),
            Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => {}
        }
    }

    /// Reads all open orders, records those that have ended, and opens the next.
    pub(super) fn look_at_list(&mut self, index: usize) {
        let Some(items) = items(&self.task, index).cloned() else { return };
        let round = self.task.steps[index].kids_round();
        let window = window(&self.task, index, self.turn);
        let found: Vec<(usize, Option<Seen>)> =
            window.iter().map(|&item| (item, seen(&self.task, index, item, self.turn))).collect();
        let is_lost = |seen: &Option<Seen>| match seen {
            Some(Seen::Absent) => true,
            Some(Seen::There(child)) => child.phase == Phase::Undone,
            Some(Seen::Unreadable) | None => false,
        };
        let reads = items.count(|item| matches!(item, Item::ToDo | Item::Again)) > 0
            || found.iter().any(|(_, seen)| is_lost(seen));
        let list = match reads.then(|| list(&self.task, index, self.turn)).transpose() {
            Ok(list) if list.is_some() && self.turn.outputs.list(&items.hash).is_none() => {
                let mistake =
                    Mistake("`each` now gives a different list from the one it gave when the step began".into());
                return self.mistaken(index, Direction::Do, &mistake);
            }
            Ok(list) => list.unwrap_or_default(),
            Err(mistake) => return self.mistaken(index, Direction::Do, &mistake),
        };
        let (mut why, before) = (None, self.requests.len());
        for (item, seen) in found {
            let Some(seen) = seen else { continue };
            why = why.or(self.look_at_item(index, item, &seen, round, &list));
        }
        let (asks, now) = (self.requests.len() > before, self.turn.now);
        if let Some(items) = self.items_of(index).filter(|_| asks) {
            items.changed_at = now;
        }
        self.open_items(index, &list);
        self.list_goes_on(index, why);
    }

    /// Records what became of the open order of `item`. Returns why, if it failed.
    fn look_at_item(&mut self, index: usize, item: usize, seen: &Seen, round: u32, list: &[Value]) -> Option<String> {
        let child = match seen {
            Seen::Unreadable => return None,
            Seen::Absent => {
                self.make_item(index, item, list);
                return None;
            }
            Seen::There(child) => child,
        };
        let Some(parent) = child.parent.as_ref().filter(|parent| parent.id == self.task.id) else {
            self.set_item(index, item, Item::Refused);
            return Some(format!("order {} exists already, but this order did not start it", child.id));
        };
        let edited = self::items(&self.task, index).and_then(|items| items.edited(item));
        if child.phase != Phase::Undone && edited.is_some_and(|from| parent.round < from) {
            return self.replace_item(index, item, child, parent);
        }
        match child.phase {
            Phase::Undone if parent.round < round => {
                if let Some(items) = self.items_of(index) {
                    items.make(item, round);
                }
                self.make_item(index, item, list);
            }
            _ if parent.round < round => {
                self.ask_item(index, item, Wish::Resubmit);
            }
            Phase::Processed => {
                let bytes = child.output.as_ref().map_or(0, json::length);
                if let Some(items) = self.items_of(index) {
                    items.bytes += bytes;
                }
                self.set_item(index, item, Item::Done);
            }
            Phase::Undone | Phase::Error | Phase::UndoError => {
                self.set_item(index, item, Item::Failed);
                return Some(reason_of(child));
            }
            Phase::Forward | Phase::Undoing => self.resume_item(index, item, child, parent),
        }
        None
    }

    /// Undoes the order of `item`, whose input was replaced, before another order is made. Returns why, if that cannot
    /// be.
    fn replace_item(&mut self, index: usize, item: usize, child: &Arc<Task>, parent: &Parent) -> Option<String> {
        let is_final = child::is_final(child, self.turn)?;
        if is_final || child.phase == Phase::UndoError {
            self.set_item(index, item, Item::Failed);
            return Some(match is_final {
                true => format!("order {} has done what cannot be undone, so its item keeps its input", child.id),
                false => reason_of(child),
            });
        }
        self.ask_item(index, item, Wish::Undo);
        self.resume_item(index, item, child, parent);
        None
    }

    fn resume_item(&mut self, index: usize, item: usize, child: &Arc<Task>, parent: &Parent) {
        if child.paused_at.is_some() && parent.paused {
            self.ask_item(index, item, Wish::Resume);
        }
    }

    /// Asks for the order of `item`, whose record says that it is open.
    fn make_item(&mut self, index: usize, item: usize, list: &[Value]) {
        self.task.steps[index].claimed_at = self.task.version;
        let input = inputs(&self.task, index, list, std::iter::once(item), self.turn).pop();
        match input.map(|(_, input)| input) {
            Some(Ok(input)) => {
                self.ask_item(index, item, Wish::Begin(input));
            }
            Some(Err(_)) | None => self.set_item(index, item, Item::Refused),
        }
    }

    /// Opens as many items as may be open. An item with an unfit input fails, and the others go on.
    fn open_items(&mut self, index: usize, list: &[Value]) {
        let (Some(items), Some(each)) = (items(&self.task, index), self.turn.workflow.steps[index].each()) else {
            return;
        };
        let mut free = usize::from(each.at_once).saturating_sub(items.count(|item| item == Item::Open));
        let mut may_fail = (each.tolerated(items.total()) + 1).saturating_sub(items.count(Item::has_failed));
        let mut unfit = 0;
        while free > 0 && may_fail > 0 && unfit < MOST_UNFIT {
            let Some(items) = self::items(&self.task, index) else { return };
            let next: Vec<usize> = items.all(|item| matches!(item, Item::ToDo | Item::Again)).take(free).collect();
            let new = next.iter().copied().filter(|item| items.get(*item) == Item::ToDo);
            let inputs = inputs(&self.task, index, list, new, self.turn);
            let again: Vec<usize> = next.iter().copied().filter(|item| items.get(*item) == Item::Again).collect();
            if next.is_empty() {
                return;
            }
            for item in again {
                free -= 1;
                self.set_item(index, item, Item::Open);
                let round = self.task.steps[index].kids_round();
                if let Some(seen) = seen(&self.task, index, item, self.turn) {
                    self.look_at_item(index, item, &seen, round, list);
                }
            }
            for (item, input) in inputs {
                if may_fail == 0 {
                    break;
                }
                match input {
                    Ok(input) => {
                        free -= 1;
                        self.task.steps[index].claimed_at = self.task.version;
                        self.set_item(index, item, Item::Open);
                        self.ask_item(index, item, Wish::Begin(input));
                    }
                    Err(_) => {
                        (may_fail, unfit) = (may_fail - 1, unfit + 1);
                        self.set_item(index, item, Item::Refused);
                    }
                }
            }
        }
    }

    /// Arranges a look; earlier ones on their way do nothing.
    fn arrange_look(&mut self, index: usize, delay: SignedDuration) {
        let version = self.task.version;
        if let Some(items) = self.items_of(index) {
            items.looked_at = version;
        }
        let name = &self.turn.workflow.steps[index].name;
        self.requests.push(Effect::Wake(Wake::look(&self.task, 1, Some(name)), delay));
    }

    /// Ends the step, fails it, or waits for open orders.
    fn list_goes_on(&mut self, index: usize, why: Option<String>) {
        let (Some(items), Some(each)) = (items(&self.task, index), self.turn.workflow.steps[index].each()) else {
            return;
        };
        let (total, failed) = (items.total(), items.count(Item::has_failed));
        let open = items.count(|item| item == Item::Open);
        let to_do = items.count(|item| matches!(item, Item::ToDo | Item::Again));
        let (tolerated, is_caught) = (each.tolerated(total), self.turn.workflow.steps[index].catch.is_some());
        // No look follows a caught failure, so it waits for the open orders.
        if failed > tolerated && (open == 0 || !is_caught) {
            let why = why.unwrap_or_else(|| self.first_failure(index));
            let most = if tolerated == 0 { String::new() } else { format!(", and {tolerated} are tolerated") };
            let error = format!("{failed} of {total} orders failed{most}: {why}");
            return self.fail(index, Direction::Do, &error, Failure::of(FailureKind::Children));
        }
        if open == 0 && to_do == 0 {
            let result = self.result(index);
            return self.complete_with(index, result);
        }
        let changed_at = items.changed_at;
        if open == 0 && failed <= tolerated {
            // All that was looked at was unfit, and there is more.
            self.arrange_look(index, SignedDuration::ZERO);
        } else {
            self.arrange_look(index, SAVE_AFTER);
        }
        let next = plus(self.turn.now, self.patience(changed_at));
        if let State::Waiting { until, .. } = &mut self.task.steps[index].state
            && *until < plus(self.turn.now, LOOK_AFTER / 2)
        {
            *until = next;
        }
    }

    /// Why the first failed item failed.
    fn first_failure(&self, index: usize) -> String {
        let mut failed = items(&self.task, index).into_iter().flat_map(|items| items.all(Item::has_failed));
        failed.next().map_or_else(String::new, |item| match seen(&self.task, index, item, self.turn) {
            Some(Seen::There(child)) => reason_of(&child),
            _ => message(&self.task, index, item, &mut None, self.turn),
        })
    }

    /// What the step returns: counts, which items failed and why, and what the orders returned, if that is not too long.
    fn result(&self, index: usize) -> Value {
        let Some(items) = items(&self.task, index) else { return Value::Null };
        let output = self.turn.workflow.steps[index].output.as_ref();
        let wants =
            |field: &str| output.is_none_or(|output| output.references().iter().any(|one| one.covers("answer", field)));
        let mut result = json!({
            "total": items.total(),
            "done": items.count(|item| item == Item::Done),
            "failed": items.count(Item::has_failed),
        });
        if wants("errors") {
            let mut list = None;
            let failed = items.all(Item::has_failed).take(MAX_ERRORS);
            let error = |item: usize| {
                let message = shorten(&message(&self.task, index, item, &mut list, self.turn), MAX_MESSAGE);
                let mut error = json!({"index": item, "message": message});
                if items.get(item) == Item::Failed {
                    error["order_id"] = json!(id_of(&self.task, index, item, self.turn));
                }
                error
            };
            result["errors"] = failed.map(error).collect();
        }
        // Each item takes its output, or null, and a comma.
        if wants("items") && items.bytes + 5 * items.total() <= MAX_BESIDE {
            let output = |item: usize| match items.get(item) {
                Item::Done if items.bytes > 0 => match seen(&self.task, index, item, self.turn) {
                    Some(Seen::There(child)) => child.output.clone().unwrap_or_default(),
                    Some(Seen::Absent | Seen::Unreadable) | None => Value::Null,
                },
                _ => Value::Null,
            };
            let all: Value = (0..items.total()).map(output).collect();
            result["items"] = all;
        }
        // Failures are more important than the orders' outputs.
        if json::length(&result) > MAX_BESIDE
            && let Some(result) = result.as_object_mut()
        {
            result.remove("items");
        }
        result
    }

    /// Looks which orders of the list are undone; asks the next ones.
    pub(super) fn unwind_list(&mut self, index: usize) {
        let turned = self.task.log.iter().rev().find(|entry| entry.1 == Kind::TaskUndoing);
        let since = turned.map_or(self.turn.now, |entry| entry.at(self.task.created_at));
        let changed_at = items(&self.task, index).map_or(self.turn.now, |items| items.changed_at);
        let is_overdue = since.max(changed_at).duration_until(self.turn.now) > child::GONE_AFTER;
        for round in 1.. {
            let next = window(&self.task, index, self.turn);
            if next.is_empty() {
                return self.complete(index, Direction::Undo);
            }
            let mut found = Vec::new();
            for &item in &next {
                // Once it is read, this is decided again.
                let Some(seen) = seen(&self.task, index, item, self.turn) else { continue };
                found.push((item, seen));
            }
            if found.len() < next.len() {
                return;
            }
            let (mut is_new, mut asks) = (false, Vec::new());
            let (mut is_final, mut paused) = (false, None);
            for (item, seen) in found {
                let is_known = items(&self.task, index).is_some_and(|items| items.get(item) == Item::Stuck);
                match &seen {
                    Seen::There(child) if child.phase == Phase::Undone => {
                        is_new = true;
                        self.set_item(index, item, Item::Undone);
                    }
                    Seen::There(child) => {
                        let Some(cannot) = child::is_final(child, self.turn) else { return };
                        is_final |= cannot;
                        // Its other steps must not run.
                        if cannot && child.phase == Phase::Forward && child.paused_at.is_none() {
                            self.ask_item(index, item, Wish::Pause);
                        }
                        // A person has to decide, and it must not hold up the others.
                        if (cannot || child.phase == Phase::UndoError) && !is_known {
                            is_new = true;
                            self.set_item(index, item, Item::Stuck);
                        } else if !cannot && child.phase != Phase::UndoError {
                            asks.push(item);
                            if let Some(parent) = &child.parent {
                                self.resume_item(index, item, child, parent);
                                let by_person = child.paused_at.is_some() && !parent.paused;
                                paused = paused
                                    .or_else(|| by_person.then(|| format!("order {}, which is paused", child.id)));
                            }
                        }
                    }
                    Seen::Unreadable if !is_known => {
                        is_new = true;
                        self.set_item(index, item, Item::Stuck);
                    }
                    Seen::Unreadable => {}
                    // An order that was never made is put as Undone within a look or two; an expired one cannot be.
                    Seen::Absent if is_overdue => {
                        is_final = true;
                        is_new |= !is_known;
                        self.set_item(index, item, Item::Stuck);
                    }
                    Seen::Absent => asks.push(item),
                }
            }
            if is_new && round < MOST_WINDOWS {
                continue;
            }
            let asked: Vec<Effect> =
                asks.iter().filter_map(|&item| ask(&self.task, index, item, Wish::Undo, self.turn)).collect();
            let is_stuck = asked.is_empty();
            self.requests.extend(asked);
            if is_stuck && is_final {
                let count = items(&self.task, index).map_or(0, |items| items.count(|item| item == Item::Stuck));
                let error = format!("{count} orders of the list have done what cannot be undone, or are gone");
                return self.fail(index, Direction::Undo, &error, Failure::of(FailureKind::Children));
            }
            // `get` shows what needs a person.
            let stuck =
                items(&self.task, index).into_iter().flat_map(|items| items.all(|item| item == Item::Stuck)).next();
            let stuck = stuck.map(|item| {
                format!(
                    "order {}, which has stopped, is gone or cannot be undone",
                    id_of(&self.task, index, item, self.turn)
                )
            });
            self.task.steps[index].error = paused.or(stuck).map(|order| format!("waits for {order}"));
            let delay = if is_new { SignedDuration::ZERO } else { SAVE_AFTER };
            if is_new || !is_stuck {
                self.arrange_look(index, delay);
            }
            break;
        }
        let next = plus(self.turn.now, self.patience(changed_at));
        match &mut self.task.steps[index].state {
            State::UndoPending { not_before: Some(from) } if *from >= plus(self.turn.now, LOOK_AFTER / 2) => {}
            State::UndoPending { not_before } => {
                *not_before = Some(next);
                self.wake = true;
            }
            _ => {}
        }
    }
}

/// Why `item` failed. The list is `read` if need be.
fn message(task: &Task, index: usize, item: usize, read: &mut Option<Arc<Vec<Value>>>, turn: &Turn<'_>) -> String {
    if items(task, index).is_some_and(|items| items.get(item) == Item::Refused) {
        let list = read.get_or_insert_with(|| list(task, index, turn).unwrap_or_default());
        let input = inputs(task, index, list, std::iter::once(item), turn).pop();
        return match input {
            Some((_, Err(mistake))) => mistake.to_string(),
            Some((_, Ok(_))) | None => "its order cannot start, because another order has its id".into(),
        };
    }
    match seen(task, index, item, turn) {
        Some(Seen::There(child)) => child.reason.clone().unwrap_or_else(|| "no reason is recorded".into()),
        Some(Seen::Absent | Seen::Unreadable) | None => "the record of its order cannot be read".into(),
    }
}

/// For each of these items of step `index`: its order, if any, and why it failed or is stuck, if so.
pub(crate) fn shown(task: &Task, index: usize, wanted: &[usize], turn: &Turn<'_>) -> Vec<(Option<Id>, Option<String>)> {
    let mut list = None;
    let mut one = |&item: &usize| {
        let state = items(task, index).map_or(Item::ToDo, |items| items.get(item));
        let is_wrong = state.has_failed() || state == Item::Stuck;
        let why = is_wrong.then(|| message(task, index, item, &mut list, turn));
        (state.is_begun().then(|| id_of(task, index, item, turn)), why)
    };
    wanted.iter().map(&mut one).collect()
}
