//! Comparing two histories of an order, step by step: steps that run side by side need not take turns as they did.

use super::export::Export;
use serde::Serialize;
use serde_json::Value;
use shared::history::{Entry, KEPT_FROM_THE_START, Kind, MAX_ENTRIES};
use shared::order::Id;
use shared::step::State;
use shared::task::Task;
use shared::time::Timestamp;
use shared::view;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The first entry that two histories do not have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Parting {
    /// The order.
    pub order_id: String,
    /// When (UTC, milliseconds).
    pub at: Timestamp,
    /// What the export says, in words; `None`: its order stands there.
    pub export: Option<String>,
    /// What the replay says; `None`: it does not come that far.
    pub replay: Option<String>,
}

/// What differs in the end.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// What it is about, such as `steps.charge.state`.
    pub what: String,
    /// In the export.
    pub export: Value,
    /// In the replay.
    pub replay: Value,
}

impl Difference {
    pub(super) fn of(what: &str, export: Value, replay: Value) -> Self {
        Self { what: what.to_owned(), export, replay }
    }
}

pub struct Compared {
    pub parting: Option<Parting>,
    pub differences: Vec<Difference>,
    /// Where the replay stands, or where it stood when it had come as far as the export.
    pub stands: Option<Arc<Task>>,
}

/// By step, or `None` for the order: its entries.
type Lanes<'a> = BTreeMap<Option<&'a str>, Vec<&'a Entry>>;

/// Compares the order with its replay, which was saved each time, under the definition that was played.
pub fn compare(
    one: &Export,
    saved: &[Arc<Task>],
    definition: &Workflow,
    beside: &BTreeMap<(Id, Hash), Value>,
) -> Compared {
    let id = one.task.id.to_string();
    let Some(last) = saved.last() else {
        let parting = Parting { order_id: id, at: one.task.created_at, export: Some("received".into()), replay: None };
        return Compared { parting: Some(parting), differences: Vec::new(), stands: None };
    };
    let wanted = lanes(&one.task, &one.definition);
    let is_final = one.task.process_state().is_final();
    let has_come = |task: &&Arc<Task>| {
        let own = lanes(task, definition);
        wanted.iter().all(|(lane, entries)| own.get(lane).map_or(0, Vec::len) >= entries.len())
    };
    let stands = if is_final { last } else { saved.iter().find(has_come).unwrap_or(last) };
    let found = lanes(stands, definition);
    let parting = parting(one, &wanted, (stands, definition, &found), is_final);
    let mut differences = Vec::new();
    let mut differ = |what: &str, export: Value, replay: Value| {
        if export != replay {
            differences.push(Difference::of(what, export, replay));
        }
    };
    let phase = |task: &Task| Value::from(format!("{:?}", task.phase));
    differ("phase", phase(&one.task), phase(stands));
    let output = |task: &Task| task.output.clone().unwrap_or_default();
    differ("output", output(&one.task), output(stands));
    for (index, (step, spec)) in one.task.steps.iter().zip(&one.definition.steps).enumerate() {
        let Some(own) = definition.position(&spec.name) else {
            differ(&format!("steps.{}", spec.name), state_of(&step.state, false), Value::from("not in this file"));
            continue;
        };
        let Some(played) = stands.steps.get(own) else { continue };
        let polls = spec.poll.is_some();
        let path = format!("steps.{}", spec.name);
        differ(&format!("{path}.state"), state_of(&step.state, polls), state_of(&played.state, polls));
        let kept = match &played.beside {
            Some(place) => beside.get(&(stands.id.clone(), place.hash.clone())).cloned(),
            None => played.output.clone(),
        };
        differ(&format!("{path}.output"), one.outputs[index].clone().unwrap_or_default(), kept.unwrap_or_default());
    }
    for (spec, step) in definition.steps.iter().zip(&stands.steps) {
        if one.definition.position(&spec.name).is_none() {
            differ(&format!("steps.{}", spec.name), Value::from("not in the order"), state_of(&step.state, false));
        }
    }
    Compared { parting, differences, stands: Some(Arc::clone(stands)) }
}

/// A look of a step that polls is sent ahead of its time, so it may be with its agent or not.
fn state_of(state: &State, polls: bool) -> Value {
    match state {
        State::Processing { .. } if polls => "Pending".into(),
        state => view::state_name(state).into(),
    }
}

/// The entries that a replay has as well, whatever takes its time.
fn lanes<'a>(task: &'a Task, workflow: &'a Workflow) -> Lanes<'a> {
    let mut all = Lanes::new();
    for entry in &task.log {
        let spec = entry.2.and_then(|step| workflow.steps.get(usize::from(step)));
        let is_look = spec.is_some_and(|spec| spec.poll.is_some());
        let counts = match entry.1 {
            Kind::AlertSent
            | Kind::Extended
            | Kind::Reminded
            | Kind::MigrationAsked
            | Kind::Migrated
            | Kind::NotMigrated
            | Kind::Erasing
            | Kind::Erased => false,
            Kind::Deferred | Kind::Unavailable | Kind::Expired => !is_look,
            _ => true,
        };
        if counts {
            all.entry(spec.map(|spec| spec.name.as_str())).or_default().push(entry);
        }
    }
    all
}

fn parting(
    one: &Export,
    wanted: &Lanes<'_>,
    (stands, definition, found): (&Task, &Workflow, &Lanes<'_>),
    is_final: bool,
) -> Option<Parting> {
    let part = |entry: &Entry, export: Option<&Entry>, replay: Option<&Entry>| Parting {
        order_id: one.task.id.to_string(),
        at: entry.at(one.task.created_at),
        export: export.map(|entry| words(entry, &one.task, &one.definition)),
        replay: replay.map(|entry| words(entry, stands, definition)),
    };
    // A long history has lost its middle.
    let most = if one.task.log.len() >= MAX_ENTRIES { KEPT_FROM_THE_START } else { usize::MAX };
    let begin: Vec<&Entry> = one.task.log.iter().take(most).collect();
    let is_kept = |entry: &&Entry| begin.iter().any(|kept| std::ptr::eq(*kept, *entry));
    // What happens to a step comes before what follows from it.
    let mut first: Option<((i64, bool), Parting)> = None;
    let mut keep = |at: (i64, bool), parting: Parting| {
        if first.as_ref().is_none_or(|(known, _)| at < *known) {
            first = Some((at, parting));
        }
    };
    for (lane, entries) in wanted {
        let own = found.get(lane).map(Vec::as_slice).unwrap_or_default();
        let kept = entries.iter().filter(|entry| is_kept(entry));
        for (number, entry) in kept.enumerate() {
            let other = own.get(number).copied();
            if !other.is_some_and(|other| is_same(entry, other)) {
                keep((entry.0, lane.is_none()), part(entry, Some(entry), other));
                break;
            }
        }
    }
    if is_final && most == usize::MAX {
        for (lane, own) in found {
            let count = wanted.get(lane).map_or(0, Vec::len);
            if let Some(more) = own.get(count) {
                keep((more.0, lane.is_none()), part(more, None, Some(more)));
            }
        }
    }
    first.map(|(_, parting)| parting)
}

/// Texts count where they say what happened; elsewhere they say who, or until when.
fn is_same(one: &Entry, other: &Entry) -> bool {
    let is_told = matches!(
        one.1,
        Kind::Failed
            | Kind::Caught
            | Kind::Unavailable
            | Kind::UndoFailed
            | Kind::PassedOver
            | Kind::TaskUndoing
            | Kind::TaskError
    );
    let text = |entry: &Entry| entry.4.as_deref().map(without_times);
    (one.1, one.3) == (other.1, other.3) && (!is_told || text(one) == text(other))
}

/// The text with a mark in place of each time: an attempt expires when a supervisor looks.
fn without_times(text: &str) -> String {
    text.split(' ')
        .map(|word| {
            let bare = word.trim_matches(|c: char| !c.is_ascii_alphanumeric());
            if bare.parse::<Timestamp>().is_ok() { word.replace(bare, "TIME") } else { word.to_owned() }
        })
        .collect::<Vec<_>>()
        .join(" ")
}

/// An entry as the history of an order shows it.
fn words(entry: &Entry, task: &Task, workflow: &Workflow) -> String {
    let alone = Task { log: vec![entry.clone()], ..task.clone() };
    let all = view::history(&alone, workflow);
    let Some(shown) = all.last() else { return String::new() };
    let mut words = shown.event.clone();
    let more = [shown.step.clone(), shown.attempt.map(|n| format!("attempt {n}")), shown.detail.clone()];
    for more in more.into_iter().flatten() {
        words.push(' ');
        words.push_str(&more);
    }
    words
}
