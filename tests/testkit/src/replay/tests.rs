//! Goal: an exported order plays again as it went, and a changed answer shows where. Method: every scenario of `examples/` is
//! played by the real functions, exported, and played again; then one answer is changed at a time.

use super::{Replayed, of_texts};
use crate::{Scenario, file};
use serde_json::{Value, json};
use shared::task::Task;
use shared::time::SignedDuration;
use shared::view;
use shared::workflow::Workflow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use stepwarden_simulation::{Played, play, share_out};

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// What `stepwarden export` prints of an order; the route's own answer is tested with the command line.
fn export(
    task: &Task,
    definition: &Workflow,
    all: &[Arc<Workflow>],
    input: &Value,
    outputs: &[Option<Value>],
) -> Value {
    let mut order = serde_json::to_value(view::status(task, definition, SignedDuration::ZERO)).unwrap();
    for (n, output) in outputs.iter().enumerate() {
        order["steps"][n]["output"] = output.clone().unwrap_or_default();
    }
    let columns = json!({
        "pk": task.id.0, "version": task.version.to_string(),
        "created_at": task.created_at.as_millisecond().to_string(),
        "updated_at": task.updated_at.as_millisecond().to_string(),
    });
    let definitions: Vec<(String, Value)> =
        all.iter().map(|one| (one.name.clone(), serde_json::to_value(&**one).unwrap())).collect();
    json!({
        "format": 1, "order": order, "input": input, "history": view::history(task, definition), "record": task,
        "columns": columns, "definition": definition, "definitions": Value::Object(definitions.into_iter().collect()),
    })
}

/// The exports of a scenario's orders.
fn exports(scenario: &Scenario, played: &Played) -> Vec<Value> {
    let first = played.saved.last().expect("it was accepted");
    let all = &scenario.children;
    let mut exports = vec![export(first, &scenario.workflow, all, &scenario.script.input, &played.outputs)];
    let calls: Vec<&Workflow> =
        all.iter().map(|one| &**one).chain([&*scenario.workflow]).flat_map(Workflow::calls).collect();
    for task in &played.started {
        let is_its = |one: &&Workflow| one.name == task.workflow;
        let definition =
            all.iter().map(|one| &**one).find(is_its).or_else(|| calls.iter().copied().find(is_its)).unwrap();
        let outputs: Vec<_> = task.steps.iter().map(|step| step.output.clone()).collect();
        exports.push(export(task, definition, &[], &json!({}), &outputs));
    }
    exports
}

fn again(exports: &[Value], other: Option<&Path>) -> Result<Replayed, String> {
    let texts: Vec<(String, String)> =
        exports.iter().enumerate().map(|(n, one)| (format!("{n}.json"), one.to_string())).collect();
    Ok(of_texts(&texts, other)?.play())
}

fn files() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for example in std::fs::read_dir(EXAMPLES).unwrap() {
        let folder = example.unwrap().path().join("tests");
        all.extend(std::fs::read_dir(folder).into_iter().flatten().map(|file| file.unwrap().path()));
    }
    all.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    all.sort();
    all
}

// M6
#[test]
fn every_example_plays_again_as_it_went() {
    let mut all = Vec::new();
    for file in files() {
        // Weeks of waiting take half a minute each.
        let is_long = ["approvals", "waits"].iter().any(|name| file.components().any(|part| part.as_os_str() == *name));
        let most = if is_long { 1 } else { usize::MAX };
        all.extend(file::read(&file, None).unwrap().into_iter().take(most));
    }
    let (count, wrong) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    share_out(all.len() as u64, threads, |n| {
        let scenario = &all[n as usize];
        let played = play(&scenario.workflow, &scenario.children, &scenario.script);
        if played.refused.is_some() {
            return;
        }
        count.fetch_add(1, Ordering::Relaxed);
        let exports = exports(scenario, &played);
        if scenario.workflow.steps.iter().any(|step| step.pages) {
            let error = again(&exports, None).unwrap_err();
            assert!(error.contains("collects pages; the history does not have them one by one"), "{error}");
            return;
        }
        let replayed = again(&exports, None).unwrap();
        if !replayed.same || !replayed.broken.is_empty() {
            wrong.lock().unwrap().push(format!("{}: {replayed:#?}", scenario.name));
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count.into_inner() > 20);
}

/// A scenario of an example, exported.
fn example(name: &str) -> (Vec<Value>, PathBuf) {
    let file = Path::new(EXAMPLES).join("branches/tests/customer.toml");
    let all = file::read(&file, None).unwrap();
    let scenario = all.iter().find(|one| one.name.contains(name)).unwrap();
    let played = play(&scenario.workflow, &scenario.children, &scenario.script);
    (exports(scenario, &played), Path::new(EXAMPLES).join("branches/workflows/customer.toml"))
}

// M6: what the services said is turned into something else, one entry at a time.
#[test]
fn a_changed_answer_shows_where_the_histories_part() {
    let mut changed = 0;
    for name in ["who exists", "cannot be sent"] {
        let (exports, _) = example(name);
        let log = exports[0]["record"]["log"].as_array().unwrap().clone();
        for (n, entry) in log.iter().enumerate() {
            let other = match entry[1].as_str().unwrap() {
                "p" => json!([entry[0], "f", entry[2], entry[3], "the card is declined"]),
                "f" | "k" => json!([entry[0], "p", entry[2], entry[3], null]),
                "u" => json!([entry[0], "f", entry[2], entry[3], "the card is declined"]),
                _ => continue,
            };
            let mut exports = exports.clone();
            exports[0]["record"]["log"][n] = other;
            let replayed = again(&exports, None).unwrap();
            assert!(!replayed.same, "{name}, entry {n}: {entry}");
            let parting = replayed.parts_at.unwrap_or_else(|| panic!("{name}, entry {n}: {entry}"));
            assert!(parting.export.is_some() || parting.replay.is_some());
            changed += 1;
        }
        // An output that is not the one with which the order went on.
        let mut exports = exports.clone();
        exports[0]["record"]["ph"] = json!("Error");
        let replayed = again(&exports, None).unwrap();
        let phase = replayed.differences.iter().find(|one| one.what == "phase").unwrap();
        assert_eq!(phase.export, "Error");
    }
    assert_eq!(changed, 5);
}

// M6: a corrected file meets the same input and the same answers.
#[test]
fn another_definition_is_tried_with_the_same_answers() {
    let (exports, file) = example("cannot be sent");
    let same = again(&exports, Some(&file)).unwrap();
    assert!(same.same && !same.other_definition, "{same:#?}");
    let dir = tempfile::tempdir().unwrap();
    let text = std::fs::read_to_string(&file).unwrap();
    let other = dir.path().join("customer.toml");
    let step = text.find("name = \"greet\"").unwrap();
    let (before, after) = text.split_at(step);
    std::fs::write(
        &other,
        format!("{before}{}", after.replacen("name = \"greet\"", "name = \"greet\"\ncatch = \"true\"", 1)),
    )
    .unwrap();
    let tried = again(&exports, Some(&other)).unwrap();
    assert!(tried.other_definition && tried.notes[0].contains("another one"), "{tried:#?}");
    assert_eq!((tried.exported_state, tried.state.as_str()), ("Undone", "Processed"), "{tried:#?}");
    let parting = tried.parts_at.unwrap();
    assert!(parting.replay.unwrap().contains("failure_caught greet"));
    // Its name is another one.
    std::fs::write(&other, text.replacen("name = \"customer\"", "name = \"client\"", 1)).unwrap();
    assert!(
        again(&exports, Some(&other)).unwrap_err().contains("is workflow `client`, and the order is one of `customer`")
    );
}

#[test]
fn what_is_no_export_is_refused_with_what_to_do() {
    let (exports, _) = example("who exists");
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut one = exports[0].clone();
        change(&mut one);
        again(&[one], None).map(|_| ()).unwrap_err()
    };
    type Case<'a> = (&'a str, &'a dyn Fn(&mut Value));
    let cases: [Case<'_>; 10] = [
        ("this is no exported order; name a file that `stepwarden export ORDER` printed", &|one| *one = json!({})),
        ("this is no exported order", &|one| *one = json!([1, 2])),
        ("its format is 2, and this version knows 1", &|one| one["format"] = json!(2)),
        ("the record cannot be read", &|one| one["record"] = json!("{")),
        ("if a later version wrote it", &|one| one["record"]["new"] = json!(1)),
        ("is not the id of an order", &|one| one["columns"]["pk"] = json!("x")),
        ("its times cannot be right", &|one| one["columns"]["updated_at"] = json!("99999999999999")),
        ("its times cannot be right", &|one| one["record"]["log"][0][0] = json!(i64::MAX)),
        ("its record has", &|one| drop(one["record"]["st"].as_array_mut().unwrap().pop())),
        ("was erased", &|one| {
            one["record"]["log"].as_array_mut().unwrap().push(json!([1, "oe", null, 0, "ann: request 17"]));
        }),
    ];
    for (words, change) in cases {
        let error = refused(change);
        assert!(error.contains(words) && error.starts_with("0.json: "), "{words}: {error}");
    }
    let twice = again(&[exports[0].clone(), exports[0].clone()], None).unwrap_err();
    assert!(twice.contains("exports of the same order"), "{twice}");
    let mut other = exports[0].clone();
    other["columns"]["pk"] = json!("ord_00000000000000000000000000");
    let error = again(&[exports[0].clone(), other], None).unwrap_err();
    assert!(error.contains("neither started the other"), "{error}");
}

// Hostile files: whatever is in them, they are refused or played to an end.
#[test]
fn a_damaged_export_is_refused_or_played() {
    let seed = std::env::var("SEED").ok().map_or(1, |seed| seed.parse().expect("SEED is a number"));
    println!("SEED={seed}");
    let mut draw = stepwarden_simulation::parts::Draw::of(seed, "damaged exports");
    let (exports, _) = example("cannot be sent");
    let values =
        [json!(null), json!(-1), json!(4_000_000_000_u64), json!("x"), json!([]), json!({}), json!(true), json!(1e300)];
    let (mut refused, mut played) = (0, 0);
    for _ in 0..150 {
        let mut one = exports[0].clone();
        for _ in 0..draw.between(1, 2) {
            damage(&mut one, &values, &mut draw);
        }
        match again(&[one], None) {
            Err(error) => {
                assert!(error.starts_with("0.json: "), "{error}");
                refused += 1;
            }
            Ok(_) => played += 1,
        }
    }
    assert!(refused > 10 && played > 10, "{refused} refused, {played} played");
}

/// Replaces something in `value`.
fn damage(value: &mut Value, values: &[Value], draw: &mut stepwarden_simulation::parts::Draw) {
    let deeper = draw.chance(0.85);
    match value {
        Value::Object(table) if deeper && !table.is_empty() => {
            let keys: Vec<String> = table.keys().cloned().collect();
            damage(&mut table[draw.pick(&keys).as_str()], values, draw);
        }
        Value::Array(list) if deeper && !list.is_empty() => {
            let n = usize::try_from(draw.between(0, list.len() as u64 - 1)).unwrap();
            damage(&mut list[n], values, draw);
        }
        other => *other = draw.pick(values).clone(),
    }
}
