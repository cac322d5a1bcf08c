//! `stepwarden simulate`: a workflow under faults, in virtual time.

use crate::system::StartError;
use anyhow::Result;
use serde_json::json;
use shared::workflow::file::{Error, Known, parse};
use shared::workflow::{USUAL_SKEW, Workflow};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use stepwarden_simulation::{ADAPTER_EVERY, Run, RunOptions, Settings, run, simulate, workflows};

/// Most seeds of one report: each run is kept until its end.
pub const MOST_SEEDS: u64 = 1_000_000;
/// The highest seed to begin with: the last of the seeds after it is still a number of 64 bits.
pub const LAST_FIRST: u64 = u64::MAX - MOST_SEEDS;

/// What is to be simulated.
pub struct Options {
    /// A workflow file; `None` takes those that the project itself is tested with.
    pub file: Option<PathBuf>,
    /// Agents that it may name beside those of the project.
    pub external_agents: Vec<String>,
    /// How many seeds, at most [`MOST_SEEDS`].
    pub seeds: u64,
    /// The first of them, at most [`LAST_FIRST`].
    pub first: u64,
    /// Only this one, with its trace.
    pub seed: Option<u64>,
    /// One run in so many goes over the DynamoDB adapter; 0: none.
    pub real_every: u64,
    /// Print one JSON object.
    pub json: bool,
}

/// Plays the seeds and prints what they came to; true if every order ended well.
///
/// # Errors
/// A workflow file that cannot be read or is wrong.
pub fn main(options: &Options) -> Result<bool> {
    let workflows = match &options.file {
        Some(file) => {
            let unreadable =
                |e| Error { file: file.display().to_string(), line: 1, message: format!("cannot be read: {e}") };
            let text = std::fs::read_to_string(file).map_err(unreadable)?;
            let external = options.external_agents.iter().map(String::as_str);
            let agents: Vec<&str> = agent::agents::NAMES.into_iter().chain(external).collect();
            let known = Known { agents: &agents, inputs: &submit::input::NAMES };
            let workflow: Workflow = parse(&file.display().to_string(), &text, known)?;
            workflow.can_start(USUAL_SKEW).map_err(|error| {
                StartError::Data(format!("{error}: raise it; clocks in the simulation differ as much as on AWS"))
            })?;
            vec![Arc::new(workflow)]
        }
        None => workflows(),
    };
    let settings = Settings { workflows, real_every: options.real_every, command: command(options) };
    if let Some(seed) = options.seed {
        return one(&run(seed, &settings, &RunOptions { keeps_trace: true, ..RunOptions::default() }), options.json);
    }
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let bar = if options.json {
        indicatif::ProgressBar::hidden()
    } else {
        indicatif::ProgressBar::new(options.seeds).with_message("seeds")
    };
    let report = simulate(&settings, options.first, options.seeds, threads, |done| bar.set_position(done));
    bar.finish_and_clear();
    if options.json {
        crate::say!("{}", serde_json::to_string(&report)?);
    } else {
        crate::say!("{report}");
    }
    Ok(report.is_clean())
}

/// The command that plays a seed in the same way, without the seed: with another workflow or another share of runs over the
/// adapter a seed is another run.
fn command(options: &Options) -> String {
    let mut words = vec!["stepwarden".to_owned(), "simulate".to_owned()];
    words.extend(options.file.iter().map(|file| quoted(&file.display().to_string())));
    words.extend(options.external_agents.iter().map(|agent| format!("--external-agent {}", quoted(agent))));
    if options.real_every != ADAPTER_EVERY {
        words.push(format!("--adapter-every {}", options.real_every));
    }
    words.join(" ")
}

/// `word` as a shell takes it for one.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn one(run: &Run, json: bool) -> Result<bool> {
    if json {
        let value = json!({
            "seed": run.seed, "workflow": run.workflow, "violations": run.violations, "faults": run.fired,
            "trace": run.trace,
        });
        crate::say!("{value}");
    } else {
        for line in &run.trace {
            crate::say!("{line}");
        }
        for violation in &run.violations {
            crate::say!("=> {violation}");
        }
        if run.violations.is_empty() {
            crate::say!("ok: seed {} of `{}`, {} faults, no rule broken", run.seed, run.workflow, run.fired.len());
        }
    }
    Ok(run.violations.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        let real_every = ADAPTER_EVERY;
        Options { file: None, external_agents: Vec::new(), seeds: 1000, first: 0, seed: None, real_every, json: false }
    }

    // What is left out of the command would make the seed another run.
    #[test]
    fn a_seed_is_played_again_with_the_same_file_and_flags() {
        assert_eq!(command(&options()), "stepwarden simulate");
        let all = Options {
            file: Some("my flows/gift's.toml".into()),
            external_agents: vec!["gift-wrap".into(), "post".into()],
            real_every: 0,
            ..options()
        };
        assert_eq!(
            command(&all),
            "stepwarden simulate 'my flows/gift'\\''s.toml' --external-agent gift-wrap --external-agent post --adapter-every 0"
        );
    }
}
