//! `stepwarden test`: orders with scripted answers, in virtual time, and how they have to end.
//!
//! The testkit reads, plays and compares them; here they are chosen and printed.

use crate::args::Test;
use crate::show;
use crate::simulate::{one, quoted};
use crate::stdout;
use anyhow::Result;
use shared::visible::visible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use stepwarden_local::start_error::StartError;
use stepwarden_simulation::{RunOptions, run};
pub(crate) use stepwarden_testkit::workflow;
use stepwarden_testkit::{Outcome, Scenario, file, outcome, settings};

/// What to write, for somebody who has no scenario yet.
const HOW: &str = "write one, for example tests/order.toml:\n\n\
    [[scenario]]\n\
    name = \"a declined card undoes the reservation\"\n\
    workflow = \"order\"\n\
    input = { amount = 5 }\n\
    [scenario.answers]\n\
    reserve = { answer = { id = \"r1\" } }\n\
    charge = { status = 402, answer = { code = \"declined\" } }\n\
    [scenario.expect]\n\
    state = \"Undone\"\n\
    undone = [\"reserve\"]\n\n\
    docs/workflows.md describes all keys";

/// Plays the scenarios and prints their results; true if all went as expected.
///
/// # Errors
/// A bad file, or one that is missing.
pub fn main(options: &Test, folder: Option<&Path>) -> Result<bool> {
    let mut all = Vec::new();
    for file in files(&options.paths)? {
        for scenario in file::read(&file, folder)? {
            if options.only.as_ref().is_none_or(|part| scenario.name.contains(part)) {
                all.push((file.clone(), scenario));
            }
        }
    }
    if all.is_empty() {
        let only = options.only.as_deref().unwrap_or_default();
        return Err(StartError::Data(format!("no scenario has a name that contains `{only}`")).into());
    }
    if let Some(seed) = options.seed {
        let mut is_clean = true;
        for (file, scenario) in &all {
            let options_of_run = RunOptions { keeps_trace: true, ..RunOptions::default() };
            is_clean &= one(&run(seed, &settings(scenario, command(file, scenario)), &options_of_run), options.json)?;
        }
        return Ok(is_clean);
    }
    let mut last = None;
    let played = |(file, scenario): &(PathBuf, Scenario)| {
        outcome(&file.display().to_string(), scenario, &command(file, scenario), 0..options.faults)
    };
    let outcomes: Vec<Outcome> = all.iter().map(played).collect();
    let failed = outcomes.iter().filter(|outcome| !outcome.failures.is_empty()).count();
    if options.json {
        crate::say!("{}", serde_json::json!({ "scenarios": outcomes, "failed": failed }));
        return Ok(failed == 0);
    }
    for outcome in &outcomes {
        if last != Some(&outcome.file) {
            crate::say!("{}", outcome.file);
            last = Some(&outcome.file);
        }
        stdout::styled(&report(outcome))?;
    }
    let seeds: u64 = outcomes.iter().map(|outcome| outcome.seeds).sum();
    let count = if outcomes.len() == 1 { "1 scenario".into() } else { format!("{} scenarios", outcomes.len()) };
    crate::say!("{count}, {failed} failed; {seeds} runs under faults");
    Ok(failed == 0)
}

/// The files of these paths, without those of folders in folders.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let usual = [PathBuf::from("tests")];
    let mut files = Vec::new();
    for path in if paths.is_empty() { &usual } else { paths } {
        if !path.is_dir() && !paths.is_empty() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path).into_iter().flatten();
        let mut own: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        own.retain(|path| path.extension().is_some_and(|e| e == "toml"));
        own.sort();
        if own.is_empty() {
            let path = path.display();
            return Err(StartError::Data(format!("there are no scenarios in the folder {path}; {HOW}")).into());
        }
        files.extend(own);
    }
    Ok(files)
}

/// What repeats a run of a scenario.
fn command(file: &Path, scenario: &Scenario) -> String {
    let (file, name) = (quoted(&file.display().to_string()), quoted(&scenario.name));
    format!("stepwarden test {file} --only {name}")
}

fn report(outcome: &Outcome) -> String {
    let word = if outcome.failures.is_empty() { "ok" } else { "FAIL" };
    let mut out = format!("  {}{}\n", show::painted(word, 6), visible(&outcome.name));
    for failure in &outcome.failures {
        let _ = writeln!(out, "        {}", visible(failure));
    }
    if outcome.failures.is_empty() {
        return out;
    }
    if !outcome.without_answer.is_empty() {
        let names = outcome.without_answer.join("`, `");
        let _ = writeln!(out, "        no answer in the scenario for `{names}`: used an empty answer with status 200");
    }
    out + &show::events(&outcome.history, "        ")
}
