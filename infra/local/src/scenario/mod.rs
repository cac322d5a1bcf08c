//! `stepwarden test`: orders with scripted answers, in virtual time, and how they have to end.
//!
//! [`file`] reads scenarios, [`expect`] compares; the simulation plays them over the functions that run in production.

mod expect;
mod file;
#[cfg(test)]
mod tests;

use crate::cli::args::Test;
use crate::cli::show;
use crate::simulate::{one, quoted};
use crate::start_error::StartError;
use crate::stdout;
use anyhow::Result;
use file::Scenario;
pub(crate) use file::workflow;
use serde::Serialize;
use shared::message::HistoryEntry;
use shared::view;
use shared::visible::visible;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use stepwarden_simulation::{RunOptions, Settings, play, run, simulate};

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

/// The result of one scenario.
#[derive(Debug, Serialize)]
pub struct Outcome {
    /// Its file.
    pub file: String,
    /// Its name.
    pub name: String,
    /// Its workflow.
    pub workflow: String,
    /// How the order ended; `Refused` if it was not accepted.
    pub state: &'static str,
    /// What was not as expected, a sentence each.
    pub failures: Vec<String>,
    /// Steps that were called, but for which the scenario has no answer.
    pub without_answer: Vec<String>,
    /// Seeds that were played under faults.
    pub seeds: u64,
    /// What happened to the order.
    pub history: Vec<HistoryEntry>,
}

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
            is_clean &= one(&run(seed, &settings(file, scenario), &options_of_run), options.json)?;
        }
        return Ok(is_clean);
    }
    let mut last = None;
    let outcomes: Vec<Outcome> = all.iter().map(|(file, scenario)| outcome(file, scenario, options.faults)).collect();
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
    crate::say!("{count}, {failed} failed; {seeds} seeds under faults");
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

/// The same seeds with the same script.
fn settings(file: &Path, scenario: &Scenario) -> Settings {
    let (file, name) = (quoted(&file.display().to_string()), quoted(&scenario.name));
    Settings {
        workflows: vec![Arc::clone(&scenario.workflow)],
        real_every: 0,
        command: format!("stepwarden test {file} --only {name}"),
        script: Some(Arc::clone(&scenario.script)),
    }
}

/// Plays every scenario of a file as [`main`] does.
///
/// # Errors
/// The first fault in the file.
pub fn play_file(file: &Path, seeds: u64) -> Result<Vec<Outcome>, shared::workflow::file::Error> {
    Ok(file::read(file, None)?.iter().map(|scenario| outcome(file, scenario, seeds)).collect())
}

fn outcome(file: &Path, scenario: &Scenario, seeds: u64) -> Outcome {
    let played = play(&scenario.workflow, &scenario.script);
    let mut failures = expect::differences(scenario, &played);
    // An order that is refused meets no fault.
    let seeds = if failures.is_empty() && played.refused.is_none() { seeds } else { 0 };
    if seeds > 0 {
        let settings = settings(file, scenario);
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let report = simulate(&settings, 0, seeds, threads, |_| {});
        if let Some(failure) = report.failures.first() {
            let broken = failure.violations.first().map(ToString::to_string).unwrap_or_default();
            let again = format!("{} --seed {}", settings.command, failure.seed);
            failures
                .push(format!("under faults, {} of {seeds} seeds broke a rule: {broken}; see {again}", report.failed));
        }
    }
    let last = played.saved.last();
    Outcome {
        file: file.display().to_string(),
        name: scenario.name.clone(),
        workflow: scenario.workflow.name.clone(),
        state: last.map_or("Refused", |task| task.process_state().name()),
        without_answer: expect::unscripted(scenario, &played),
        history: last.map(|task| view::history(task, &scenario.workflow)).unwrap_or_default(),
        failures,
        seeds,
    }
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
        let _ =
            writeln!(out, "        `{names}` has no answer in the scenario, so it got an empty one with status 200");
    }
    let history: Vec<HistoryEntry> = outcome
        .history
        .iter()
        .map(|entry| HistoryEntry {
            detail: entry.detail.as_ref().map(|detail| visible(detail).into_owned()),
            ..entry.clone()
        })
        .collect();
    for line in show::events(&history).lines() {
        let _ = writeln!(out, "        {line}");
    }
    out
}
