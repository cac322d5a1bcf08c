//! `stepwarden simulate`: a workflow under faults, in virtual time.

use crate::args::Simulate;
use anyhow::Result;
use edge::workflows::family;
use serde_json::json;
use shared::workflow::file::{Error, Known, parse};
use shared::workflow::{USUAL_SKEW, Workflow};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use stepwarden_simulation::{ADAPTER_EVERY, Run, RunOptions, Settings, run, simulate, workflows};

/// Seeds that are run unless somebody says otherwise.
const SEEDS: u64 = 1000;

/// Runs the seeds and prints the report; true if every order ended well.
pub fn main(options: &Simulate) -> Result<bool> {
    if !options.replay.is_empty() {
        return crate::replay::main(options);
    }
    let (workflows, children) = match &options.file {
        Some(file) => {
            let external = options.external_agents.iter().map(String::as_str);
            let agents: Vec<&str> = agent::agents::NAMES.into_iter().chain(external).collect();
            let known = Known { agents: &agents, inputs: &edge::workflows::INPUT_CHECKS };
            let (own, children) = family(file, |file| read(file, known))?;
            (vec![Arc::new(own)], children.into_values().map(Arc::new).collect())
        }
        None => (workflows(), Vec::new()),
    };
    let settings =
        Settings { workflows, children, real_every: options.adapter_every, command: command(options), script: None };
    if let Some(seed) = options.seed {
        return one(&run(seed, &settings, &RunOptions { keeps_trace: true, ..RunOptions::default() }), options.json);
    }
    let seeds = options.seeds.unwrap_or(SEEDS);
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let bar = if options.json {
        indicatif::ProgressBar::hidden()
    } else {
        indicatif::ProgressBar::new(seeds).with_message("seeds")
    };
    let report = simulate(&settings, options.first, seeds, threads, |done| bar.set_position(done));
    bar.finish_and_clear();
    if options.json {
        crate::say!("{}", serde_json::to_string(&report)?);
    } else {
        crate::say!("{report}");
    }
    Ok(report.is_clean())
}

fn read(file: &Path, known: Known<'_>) -> Result<Workflow, Error> {
    let wrong = |message: String| Error { file: file.display().to_string(), line: 0, message };
    let text = std::fs::read_to_string(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    let mut workflow: Workflow = parse(&file.display().to_string(), &text, known)?;
    workflow
        .can_start(USUAL_SKEW)
        .map_err(|error| wrong(format!("{error}: raise it; clocks in the simulation differ as much as on AWS")))?;
    // Its inputs are made up.
    workflow.schema = None;
    Ok(workflow)
}

/// The command that repeats a seed, without the seed itself. With another workflow or another share of runs over the
/// adapter, the same seed would be a different run.
pub(crate) fn command(options: &Simulate) -> String {
    let mut words = vec!["stepwarden".to_owned(), "simulate".to_owned()];
    words.extend(options.file.iter().map(|file| quoted(&file.display().to_string())));
    words.extend(options.replay.iter().map(|file| format!("--replay {}", quoted(&file.display().to_string()))));
    // An order that is played again has agents of any names.
    let own = options.external_agents.iter().filter(|_| options.replay.is_empty());
    words.extend(own.map(|agent| format!("--external-agent {}", quoted(agent))));
    if options.adapter_every != ADAPTER_EVERY {
        words.push(format!("--adapter-every {}", options.adapter_every));
    }
    words.join(" ")
}

/// `word`, quoted so that a shell reads it as one word.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._/+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

pub(crate) fn one(run: &Run, json: bool) -> Result<bool> {
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
    use crate::args::{Cli, Command};

    fn options(words: &[&str]) -> Simulate {
        match <Cli as clap::Parser>::parse_from([&["stepwarden", "simulate"], words].concat()).command {
            Some(Command::Simulate(options)) => options,
            _ => unreachable!("it was asked for"),
        }
    }

    // An option that the command left out would make the seed a different run.
    #[test]
    fn a_seed_is_played_again_with_the_same_file_and_flags() {
        assert_eq!(command(&options(&[])), "stepwarden simulate");
        let all = "--external-agent gift-wrap --external-agent post --adapter-every 0";
        let mut words: Vec<&str> = all.split(' ').collect();
        words.extend(["my flows/gift's.toml", "--json", "--first", "7"]);
        assert_eq!(command(&options(&words)), format!("stepwarden simulate 'my flows/gift'\\''s.toml' {all}"));
    }
}
