//! Reading what `stepwarden export` printed.

use serde::Deserialize;
use serde_json::Value;
use shared::order::Id;
use shared::task::Task;
use shared::time::Timestamp;
use shared::view::Status;
use shared::workflow::Workflow;
use std::collections::{BTreeMap, BTreeSet};

/// Longest file, in bytes: a record with all long outputs, twice, indented, and definitions.
pub const MAX_BYTES: u64 = 32 * 1024 * 1024;
/// The format that is known.
const FORMAT: u64 = 1;
/// The longest time that an order can have taken, in days.
const MOST_DAYS: i64 = 3660;

/// What was exported of one order.
pub struct Export {
    pub file: String,
    pub task: Task,
    pub definition: Workflow,
    /// The definitions of the orders that it may start.
    pub definitions: Vec<Workflow>,
    pub input: Value,
    /// By step, also the long ones.
    pub outputs: Vec<Option<Value>>,
}

#[derive(Deserialize)]
struct Raw {
    order: Status,
    input: Value,
    record: Value,
    columns: BTreeMap<String, String>,
    definition: Value,
    #[serde(default)]
    definitions: BTreeMap<String, Value>,
}

/// Reads one export.
pub fn read(file: &str, text: &str) -> Result<Export, String> {
    let wrong = |why: String| format!("{file}: {why}");
    let no_export = |why: String| wrong(format!("{why}; name a file that `stepwarden export ORDER` printed"));
    let raw: Value = serde_json::from_str(text).map_err(|e| no_export(format!("not JSON: {e}")))?;
    match raw.get("format").map(|format| (format, format.as_u64())) {
        None => return Err(no_export("this is no exported order".into())),
        Some((_, Some(FORMAT))) => {}
        Some((format, _)) => {
            return Err(wrong(format!("its format is {format}, and this version knows {FORMAT}; use a later version")));
        }
    }
    if raw["input"].is_null() && raw["order"]["erased_at"].is_string() {
        return Err(wrong("the order's data was erased, so there is nothing to play again".into()));
    }
    let raw: Raw = serde_json::from_value(raw).map_err(|e| no_export(format!("this is no whole export: {e}")))?;
    if raw.record.is_string() {
        return Err(wrong("the record cannot be read; mend the order first, and export it again".into()));
    }
    let later = |what: &str, e: serde_json::Error| {
        wrong(format!("its {what} cannot be read: {e}; if a later version wrote it, use that version"))
    };
    let record: Task = serde_json::from_value(raw.record).map_err(|e| later("record", e))?;
    let definition: Workflow = serde_json::from_value(raw.definition).map_err(|e| later("definition", e))?;
    let definitions = raw.definitions.into_values().map(serde_json::from_value).collect::<Result<Vec<Workflow>, _>>();
    let definitions = definitions.map_err(|e| later("definitions", e))?;
    let column = |name: &str| {
        raw.columns.get(name).ok_or_else(|| no_export(format!("this is no whole export: it has no column `{name}`")))
    };
    let number = |name: &str| {
        let text = column(name)?;
        text.parse::<i64>().map_err(|_| no_export(format!("its column `{name}` is `{text}`, not a number")))
    };
    let time = |name: &str| {
        let ms = number(name)?;
        Timestamp::from_millisecond(ms).map_err(|_| no_export(format!("its column `{name}` is no time: {ms}")))
    };
    let id = Id::parse(column("pk")?).ok_or_else(|| no_export("its column `pk` is not the id of an order".into()))?;
    let version = u64::try_from(number("version")?).unwrap_or_default();
    let task = Task { id, version, created_at: time("created_at")?, updated_at: time("updated_at")?, ..record };
    if task.is_erased() {
        return Err(wrong("the order's data was erased, so there is nothing to play again".into()));
    }
    let days = task.created_at.duration_until(task.updated_at).as_hours() / 24;
    let most_ms = (MOST_DAYS + 1) * 24 * 3600 * 1000;
    if !(0..=MOST_DAYS).contains(&days) || task.log.iter().any(|entry| !(-most_ms..=most_ms).contains(&entry.0)) {
        return Err(wrong(format!("its times cannot be right: an order takes from 0 to {MOST_DAYS} days")));
    }
    let (steps, own) = (task.steps.len(), definition.steps.len());
    if steps != own || raw.order.steps.len() != own {
        return Err(wrong(format!("its record has {steps} steps, and its definition {own}; export the order again")));
    }
    if !raw.input.is_object() {
        return Err(wrong("it has no input".into()));
    }
    let outputs = raw.order.steps.into_iter().map(|step| step.output).collect();
    Ok(Export { file: file.to_owned(), task, definition, definitions, input: raw.input, outputs })
}

/// The exports with the one at the top first.
pub fn sorted(mut all: Vec<Export>) -> Result<Vec<Export>, String> {
    let ids: BTreeSet<Id> = all.iter().map(|one| one.task.id.clone()).collect();
    if ids.len() < all.len() {
        return Err("two of the files are exports of the same order; name each order once".into());
    }
    let is_top = |one: &Export| one.task.parent.as_ref().is_none_or(|parent| !ids.contains(&parent.id));
    let tops: Vec<usize> = (0..all.len()).filter(|&n| is_top(&all[n])).collect();
    match tops[..] {
        [top] => {
            all.swap(0, top);
            Ok(all)
        }
        [first, second, ..] => {
            let (first, second) = (&all[first], &all[second]);
            Err(format!(
                "{} and {} are orders of which neither started the other; name one order with those that it started",
                first.file, second.file
            ))
        }
        [] => Err("each of these orders says that another one of them started it".into()),
    }
}

/// The definitions of the orders that the first one may start.
pub fn children(all: &[Export]) -> Result<Vec<Workflow>, String> {
    let known = all.iter().flat_map(|one| one.definitions.iter().chain(std::iter::once(&one.definition)));
    let known: Vec<&Workflow> = known.collect();
    let mut found = BTreeMap::<String, Workflow>::new();
    let mut open: Vec<&str> = all[0].definition.children().into_iter().collect();
    while let Some(name) = open.pop() {
        if found.contains_key(name) || all[0].definition.name == name {
            continue;
        }
        let Some(one) = known.iter().find(|one| one.name == name) else {
            return Err(format!(
                "{} has no definition of workflow `{name}`, whose orders it starts; export the order again with this \
                 version, or name the file of its own workflow with those beside it",
                all[0].file
            ));
        };
        found.insert(name.to_owned(), (*one).clone());
        open.extend(one.children());
    }
    Ok(found.into_values().collect())
}

/// What the exports as a whole do not tell.
pub fn note(all: &[Export], notes: &mut Vec<String>) {
    if let Some(parent) = &all[0].task.parent {
        notes.push(format!("order {} started this one; it is played alone", parent.id));
    }
}

/// The name of a call of an order's step, as in a scenario.
pub fn path(one: &Export, all: &[Export], name: &str) -> String {
    let (mut path, mut task) = (name.to_owned(), &one.task);
    // Each has a parent of its own, so this ends.
    for _ in 0..all.len() {
        let Some(link) = &task.parent else { break };
        let Some(above) = all.iter().find(|other| other.task.id == link.id) else { break };
        path = stepwarden_simulation::name_below(link, &task.workflow, &path);
        task = &above.task;
    }
    path
}
