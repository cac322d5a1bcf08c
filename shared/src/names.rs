//! What the expressions of a step can read of an order.

use crate::decision::Turn;
use crate::expression::{Mapping, Names};
use crate::step::{Direction, Failure, State};
use crate::task::Task;
use crate::workflow::Step;
use serde_json::{Map, Value, json};
use std::borrow::Cow;

/// The name of a step in an expression.
#[must_use]
pub fn of_step(name: &str) -> String {
    name.replace('-', "_")
}

/// What the expressions of step `index` read in `direction`, except names of one moment such as `error`. Only steps
/// before it are included; a file that reads others is refused.
pub(crate) fn names<'a>(task: &'a Task, index: usize, direction: Direction, turn: &Turn<'a>) -> Names<'a> {
    let (spec, before) = (&turn.workflow.steps[index], turn.workflow.before(index));
    let reads = |root: &str| spec.reads(root);
    let mut names = of(task, &before, &reads, &|name| spec.reads_output(name, direction), turn);
    if let Some(turn) = task.steps[index].turn {
        names = names.with("now", Cow::Owned(json!(turn.as_second())));
    }
    names
}

/// What the workflow's `output` reads, once all steps are settled.
pub(crate) fn of_whole<'a>(task: &'a Task, output: &Mapping, turn: &Turn<'a>) -> Names<'a> {
    let references = output.references();
    let reads = |root: &str| references.iter().any(|one| one.path[0] == root);
    let reads_output = |name: &str| references.iter().any(|one| one.covers("outputs", name));
    of(task, &(0..task.steps.len()).collect::<Vec<_>>(), &reads, &reads_output, turn)
}

/// What is known of an order and its steps `before`.
fn of<'a>(
    task: &'a Task,
    before: &[usize],
    reads: &dyn Fn(&str) -> bool,
    reads_output: &dyn Fn(&str) -> bool,
    turn: &Turn<'a>,
) -> Names<'a> {
    let of_all = |root: &str, value: &dyn Fn(usize) -> Option<Value>| {
        let wanted = before.iter().filter(|_| reads(root));
        let all = wanted.filter_map(|&i| Some((of_step(&turn.workflow.steps[i].name), value(i)?)));
        Value::Object(all.collect::<Map<_, _>>())
    };
    // Outputs beside the record are read only if named.
    let output = |i: usize| match &task.steps[i].beside {
        Some(_) if !reads_output(&of_step(&turn.workflow.steps[i].name)) => None,
        _ => turn.outputs.of(&task.steps[i]),
    };
    let mut names = Names::new()
        .with("input", Cow::Borrowed(turn.input))
        .with("order", Cow::Owned(order(task)))
        .with("outputs", Cow::Owned(of_all("outputs", &|i| output(i))))
        .with("ran", Cow::Owned(of_all("ran", &|i| Some(json!(task.steps[i].state == State::Processed)))))
        .with(
            "errors",
            Cow::Owned(of_all("errors", &|i| {
                let step = &task.steps[i];
                let caught = step.failure.as_ref().filter(|_| step.state == State::Caught);
                let text = step.error.as_deref().unwrap_or_default();
                Some(caught.map_or_else(no_error, |failure| error(failure, text)))
            })),
        );
    if reads("config") {
        names = names.with("config", Cow::Owned(Value::Object(turn.workflow.config.clone())));
    }
    if turn.workflow.of_item {
        for root in OF_ITEM {
            names = names.with(root, turn.input.get(root).map_or(Cow::Owned(Value::Null), Cow::Borrowed));
        }
    }
    names
}

/// The names under which an item's order, which makes a call, reads its input: those of the step with the list.
const OF_ITEM: [&str; 4] = ["item", "index", "input", "outputs"];

/// What `call`, made per item of a list, reads of the order that has the list and these `names`. Only what it names,
/// because every item's order gets a copy.
pub(crate) fn carried(names: &Names<'_>, call: &Step) -> Map<String, Value> {
    let mut all = Value::Object(Map::new());
    for path in call.works().flat_map(|work| work.references().map(|one| &one.path).collect::<Vec<_>>()) {
        if let Some(value) = names.get(&path[0]).filter(|_| ["input", "outputs"].contains(&path[0].as_str())) {
            let inside =
                all.as_object_mut().map(|all| all.entry(path[0].clone()).or_insert_with(|| Value::Object(Map::new())));
            inside.into_iter().for_each(|inside| carry(inside, value, &path[1..]));
        }
    }
    match all {
        Value::Object(all) => all,
        _ => Map::new(),
    }
}

/// Copies the value of `from` at `path`, or where that path ends.
fn carry(into: &mut Value, from: &Value, path: &[String]) {
    match (path, from) {
        ([name, rest @ ..], Value::Object(fields)) => {
            if let (Some(value), Value::Object(into)) = (fields.get(name), into) {
                carry(into.entry(name.clone()).or_insert_with(|| Value::Object(Map::new())), value, rest);
            }
        }
        (_, from) => *into = from.clone(),
    }
}

/// An order as expressions see it.
pub(crate) fn order(task: &Task) -> Value {
    let mut order = json!({ "id": task.id, "tenant": task.tenant, "created_at": task.created_at.to_string() });
    if let Some(reference) = &task.reference {
        order["reference"] = json!(reference);
    }
    if let Some(parent) = &task.parent {
        order["parent"] = json!(parent.id);
    }
    order
}

/// A failure as expressions see it.
pub(crate) fn error(failure: &Failure, text: &str) -> Value {
    json!({"kind": failure.kind.name(), "status": failure.status, "message": text, "answer": failure.answer})
}

fn no_error() -> Value {
    json!({"kind": "", "status": 0, "message": "", "answer": null})
}
