#![doc = include_str!("../README.md")]

mod expect;
pub mod file;
mod order;
pub mod replay;
#[cfg(test)]
mod tests;

// So that a test can play the example, which names the crate as others do.
#[cfg(test)]
extern crate self as stepwarden_testkit;

pub use file::{Scenario, workflow};
pub use order::{Answer, Event, Order};
pub use shared::workflow::file::Error;

use serde::Serialize;
use shared::message::HistoryEntry;
use shared::view;
use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::thread;
use stepwarden_simulation::{Settings, play, simulate};

/// The result of one scenario.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// Its file; empty without one.
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

impl fmt::Display for Outcome {
    /// What was not as expected, and what happened.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.state)?;
        for failure in &self.failures {
            write!(f, "\n  {failure}")?;
        }
        if !self.without_answer.is_empty() {
            let names = self.without_answer.join("`, `");
            write!(f, "\n  `{names}` has no answer, so it got an empty one with status 200")?;
        }
        for HistoryEntry { at, event, step, detail, .. } in &self.history {
            write!(f, "\n    {at} {event}")?;
            for more in [step.as_deref(), detail.as_deref()].into_iter().flatten() {
                write!(f, " {more}")?;
            }
        }
        Ok(())
    }
}

/// What the simulation runs: one workflow with its script. `command` repeats a run, with the option `--seed`.
#[must_use]
pub fn settings(scenario: &Scenario, command: String) -> Settings {
    Settings {
        workflows: vec![Arc::clone(&scenario.workflow)],
        children: scenario.children.clone(),
        command,
        script: Some(Arc::clone(&scenario.script)),
        ..Settings::default()
    }
}

/// Plays every scenario of a file, and those that end as expected also under faults.
///
/// # Errors
/// The first fault in the file.
pub fn play_file(file: &Path, seeds: u64) -> Result<Vec<Outcome>, Error> {
    let command = format!("stepwarden test {}", file.display());
    let all = file::read(file, None)?;
    Ok(all.iter().map(|scenario| outcome(&file.display().to_string(), scenario, &command, 0..seeds)).collect())
}

/// Plays a scenario, and if it ends as expected, the same order with each of the seeds under faults. `command` repeats such a run, with
/// the option `--seed`.
#[must_use]
pub fn outcome(file: &str, scenario: &Scenario, command: &str, seeds: Range<u64>) -> Outcome {
    let played = play(&scenario.workflow, &scenario.children, &scenario.script);
    let mut failures = expect::differences(scenario, &played);
    let count = seeds.end.saturating_sub(seeds.start);
    // An order that is refused meets no fault.
    let count = if failures.is_empty() && played.refused.is_none() { count } else { 0 };
    if count > 0 {
        let settings = settings(scenario, command.to_owned());
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let report = simulate(&settings, seeds.start, count, threads, |_| {});
        if let Some(failure) = report.failures.first() {
            let broken = failure.violations.first().map(ToString::to_string).unwrap_or_default();
            let again = format!("{command} --seed {}", failure.seed);
            failures
                .push(format!("under faults, {} of {count} seeds broke a rule: {broken}; see {again}", report.failed));
        }
    }
    let last = played.saved.last();
    Outcome {
        file: file.to_owned(),
        name: scenario.name.clone(),
        workflow: scenario.workflow.name.clone(),
        state: last.map_or("Refused", |task| task.process_state().name()),
        without_answer: expect::unscripted(scenario, &played),
        history: last.map(|task| view::history(task, &scenario.workflow)).unwrap_or_default(),
        failures,
        seeds: count,
    }
}
