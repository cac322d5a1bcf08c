//! Comparing how an order ended with what its scenario expects.

use super::file::{Expect, LISTS, Scenario};
use serde_json::{Value, json};
use shared::expression::{Mapping, Names, same};
use shared::history::{Kind, shorten};
use shared::step::State;
use shared::task::Task;
use shared::workflow::Workflow;
use std::borrow::Cow;
use std::sync::Arc;
use stepwarden_simulation::{Played, UNDO, is_of};

/// Longest value that is shown, in bytes.
const MAX_SHOWN: usize = 1000;

/// What differs, a sentence each.
pub fn differences(scenario: &Scenario, played: &Played) -> Vec<String> {
    let mut found: Vec<String> =
        played.violations.iter().map(|broken| format!("a rule of the system was broken: {broken}")).collect();
    let Expect { state, steps, outputs, sent, calls, events, error } = &scenario.expect;
    let (last, workflow) = (played.saved.last(), &scenario.workflow);
    let reason = match (&played.refused, last) {
        (Some(problem), _) => Some(problem.detail.clone()),
        (None, last) => last.and_then(|task| task.reason.clone()),
    };
    let ended = last.map_or("Refused", |task| task.process_state().name());
    let wanted = state.map_or("Refused", |state| state.name());
    if ended != wanted {
        let why = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        found.push(format!("state: expected {wanted}, but it is {ended}{why}"));
    }
    if let Some(part) = error.as_ref().filter(|part| !reason.as_deref().unwrap_or_default().contains(*part)) {
        let said = reason.map_or_else(|| "the order gives no reason".into(), |reason| format!("it is `{reason}`"));
        found.push(format!("error: expected one with `{part}`, but {said}"));
    }
    for ((name, wanted), of) in LISTS.into_iter().zip(steps).zip(lists(workflow, played)) {
        let Some(wanted) = wanted else { continue };
        let is_missing = |step: &&String| !of.contains(&step.as_str());
        let missing: Vec<&str> = wanted.iter().filter(is_missing).map(String::as_str).collect();
        let more: Vec<&str> = of.iter().copied().filter(|step| !wanted.iter().any(|wanted| wanted == step)).collect();
        if !missing.is_empty() {
            found.push(format!("{name}: `{}` is missing", missing.join("`, `")));
        }
        if !more.is_empty() {
            found.push(format!("{name}: `{}` is not expected", more.join("`, `")));
        }
    }
    let order = order(scenario, played);
    for (step, mapping) in outputs {
        let index = workflow.position(step).expect("its name was checked");
        let has = played.outputs.get(index).and_then(Option::as_ref);
        compare(&format!("outputs.{step}"), mapping, has, &order, &mut found);
    }
    for (name, parts) in sent {
        let Some(call) = played.sent.iter().rev().find(|call| is_of(&call.name, name)) else {
            found.push(format!("sent.{name}: it was not called"));
            continue;
        };
        for (part, mapping) in parts {
            let path = format!("sent.{name}.{part}");
            match mapping {
                Mapping::Table(headers) if part == "headers" => {
                    for (header, mapping) in headers {
                        let has = call.what["headers"].get(header);
                        compare(&format!("{path}.{header}"), mapping, has, &order, &mut found);
                    }
                }
                mapping => compare(&path, mapping, call.what.get(part), &order, &mut found),
            }
        }
    }
    for (number, (name, wanted)) in events.iter().enumerate() {
        match played.answered.get(&number) {
            None => found.push(format!("events: `{name}` was not sent, because no step waited for it; add `at`")),
            Some(answer) if answer != wanted => {
                found.push(format!("events: `{name}`: expected {wanted}, but the answer is {answer}"));
            }
            Some(_) => {}
        }
    }
    for (name, wanted) in calls {
        let has = played.sent.iter().filter(|call| is_of(&call.name, name)).count();
        if has != *wanted {
            found.push(format!("calls.{name}: expected {wanted}, but it is {has}"));
        }
    }
    found
}

/// Names of steps that were called without a scripted answer.
pub fn unscripted(scenario: &Scenario, played: &Played) -> Vec<String> {
    let mut names: Vec<String> = played.sent.iter().map(|call| call.name.clone()).collect();
    let has_answer = |name: &str| scenario.script.answers.keys().any(|wanted| is_of(name, wanted));
    names.retain(|name| !name.ends_with(UNDO) && !has_answer(name));
    names.sort();
    names.dedup();
    names
}

/// The steps of each list, in the workflow's order.
fn lists<'a>(workflow: &'a Workflow, played: &Played) -> [Vec<&'a str>; 5] {
    let saved = &played.saved;
    let names = |is: &dyn Fn(usize) -> bool| {
        let all = workflow.steps.iter().enumerate();
        all.filter(|(index, _)| is(*index)).map(|(_, step)| step.name.as_str()).collect()
    };
    let ever = |index: usize, is: fn(&State) -> bool| saved.iter().any(|task| is(&task.steps[index].state));
    // What a step started is undone in the save that finds that it failed.
    let has_failed_list = |index: usize| {
        let logged = |task: &Arc<Task>| {
            task.log.iter().any(|entry| entry.1 == Kind::Failed && entry.2.map(usize::from) == Some(index))
        };
        workflow.steps[index].child.is_some()
            && saved.last().is_some_and(logged)
            && !ever(index, |state| *state == State::Caught)
    };
    let own = |index: usize, is: fn(&State) -> bool| saved.last().is_some_and(|task| is(&task.steps[index].state));
    [
        names(&|index| workflow.steps[index].fail.is_none() && ever(index, |state| *state == State::Processed)),
        names(&|index| ever(index, |state| *state == State::PassedOver)),
        names(&|index| ever(index, |state| *state == State::Caught)),
        names(&|index| ever(index, |state| *state == State::Failed) || has_failed_list(index)),
        names(&|index| {
            // A step that had nothing to undo ends in the same state.
            let name = &workflow.steps[index].name;
            let is_own = |call: &str| match call.strip_suffix(UNDO).and_then(|call| call.strip_prefix(name.as_str())) {
                Some(rest) => rest.is_empty() || rest.starts_with(['[', '/']),
                None => false,
            };
            own(index, |state| *state == State::Undone) && played.sent.iter().any(|call| is_own(&call.name))
        }),
    ]
}

/// What expected values can read.
fn order<'a>(scenario: &'a Scenario, played: &Played) -> Names<'a> {
    let outputs = scenario.workflow.steps.iter().zip(&played.outputs);
    let outputs = outputs.filter_map(|(spec, output)| Some((shared::names::of_step(&spec.name), output.clone()?)));
    let order = played.saved.last().map(|task| {
        json!({ "id": task.id, "tenant": task.tenant, "created_at": task.created_at, "reference": task.reference })
    });
    Names::new()
        .with("input", Cow::Borrowed(&scenario.script.input))
        .with("config", Cow::Owned(Value::Object(scenario.workflow.config.clone())))
        .with("outputs", Cow::Owned(Value::Object(outputs.collect())))
        .with("order", Cow::Owned(order.unwrap_or_default()))
}

fn compare(path: &str, wanted: &Mapping, has: Option<&Value>, order: &Names<'_>, found: &mut Vec<String>) {
    match (wanted.evaluate(order), has) {
        (Err(mistake), _) => found.push(format!("{path}: {mistake}")),
        (Ok(wanted), Some(has)) if same(&wanted, has) => {}
        (Ok(wanted), Some(has)) => found.push(format!("{path}: expected {}, but it is {}", cut(&wanted), cut(has))),
        (Ok(wanted), None) => found.push(format!("{path}: expected {}, but it is not there", cut(&wanted))),
    }
}

fn cut(value: &Value) -> String {
    shorten(&value.to_string(), MAX_SHOWN)
}
