//! Fitting a definition to what an export has: what was kept of an answer stands in place of the answer.

use super::export::Export;
use serde_json::Value;
use shared::expression::{Mapping, Template};
use shared::history::Kind;
use shared::workflow::wait::Wait;
use shared::workflow::{Step, Workflow};

/// The definition as it is played.
pub fn fitted(mut workflow: Workflow, exports: &[Export], notes: &mut Vec<String>) -> Workflow {
    let own: Vec<&Export> = exports.iter().filter(|one| one.task.workflow == workflow.name).collect();
    for step in &mut workflow.steps {
        if let Some(call) = step.child.as_mut().and_then(|child| child.call.as_mut()) {
            **call = fitted((**call).clone(), exports, notes);
        }
        let before = own.first().and_then(|one| {
            let index = one.definition.position(&step.name)?;
            Some((&one.definition.steps[index], one, index))
        });
        if let Some((before, one, index)) = before {
            fit(step, before, (one, index), own.len() == 1, notes);
        }
    }
    workflow
}

fn fit(step: &mut Step, before: &Step, (one, index): (&Export, usize), is_only: bool, notes: &mut Vec<String>) {
    let name = step.name.clone();
    if step.agent.is_empty() {
        let Some(Wait::Event(event)) = &mut step.wait else { return };
        // What an event said is kept only as what the step kept of it.
        if before.output.is_none() || before.wait.is_none() || !has_taken(one, index) {
            return;
        }
        let kept = one.outputs[index].clone().unwrap_or_default();
        match is_only {
            true => {
                step.output = Some(literal(&kept));
                (event.take, event.failed) = (None, None);
                notes.push(format!(
                    "`{name}`: the export has what was kept of the event `{}`, not what it said; the conditions on it are \
                     not asked",
                    event.name
                ));
            }
            false => notes.push(format!("`{name}`: the exports do not have what the events `{}` said", event.name)),
        }
        return;
    }
    let keeps = |step: &Step| {
        let of_url = step.http.as_ref().map(|http| (http.keep.clone(), http.output.clone()));
        (step.output.clone(), of_url, step.aws.as_ref().map(|aws| aws.keep.clone()))
    };
    if keeps(step) != keeps(before) {
        notes.push(format!(
            "`{name}`: the file keeps something else of an answer, but the export has only what was kept; later steps read that"
        ));
    }
    step.output = None;
    if let Some(http) = step.http.as_mut().filter(|_| step.accept.is_some()) {
        http.keep = None;
    }
    if let Some(aws) = step.aws.as_mut().filter(|_| step.accept.is_some()) {
        aws.keep = None;
    }
}

/// Whether a step took an event.
fn has_taken(one: &Export, index: usize) -> bool {
    one.task.log.iter().any(|entry| entry.1 == Kind::Completed && entry.2.map(usize::from) == Some(index))
}

/// A mapping that is this value.
fn literal(value: &Value) -> Mapping {
    match value {
        Value::String(text) => Mapping::Text(Template::literal(text)),
        Value::Array(list) => Mapping::List(list.iter().map(literal).collect()),
        Value::Object(table) => {
            Mapping::Table(table.iter().map(|(key, value)| (key.clone(), literal(value))).collect())
        }
        other => Mapping::Constant(other.clone()),
    }
}
