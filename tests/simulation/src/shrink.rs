//! Shrinks a failing run: the same seed with as few faults as still break the same rule (ddmin).

use crate::dice::{Allowed, Fired};
use crate::history::Rule;
use crate::{Run, RunOptions, Settings, run};
use std::collections::BTreeSet;
use std::sync::Arc;

const MOST_RUNS: usize = 600;

/// A failing seed with few of its faults.
#[derive(Clone, Debug)]
pub struct Small {
    /// The run with only these faults, with its trace.
    pub run: Run,
    /// Runs that were tried.
    pub tried: usize,
    /// The command that repeats the whole run, without its seed.
    pub command: String,
}

struct Search<'a> {
    seed: u64,
    settings: &'a Settings,
    /// The options of the run that failed, except for the faults.
    options: &'a RunOptions,
    rule: Rule,
    tried: usize,
}

impl Search<'_> {
    fn play(&self, faults: &[Fired], keeps_trace: bool) -> Run {
        let keys: BTreeSet<String> = faults.iter().map(Fired::key).collect();
        let options = RunOptions { allowed: Allowed::Only(Arc::new(keys)), keeps_trace, ..self.options.clone() };
        run(self.seed, self.settings, &options)
    }

    fn fails(&mut self, faults: &[Fired]) -> bool {
        self.tried += 1;
        self.play(faults, false).violations.iter().any(|v| v.rule == self.rule)
    }
}

/// The smallest set found of the faults of `failed` that breaks the first rule it broke; `None` if it broke none.
#[must_use]
pub fn shrink(failed: &Run, settings: &Settings, options: &RunOptions) -> Option<Small> {
    let rule = failed.violations.first()?.rule;
    let mut search = Search { seed: failed.seed, settings, options, rule, tried: 0 };
    let mut faults = failed.fired.clone();
    let mut parts = 2;
    while faults.len() > 1 && search.tried < MOST_RUNS {
        let size = faults.len().div_ceil(parts);
        let chunks: Vec<Vec<Fired>> = faults.chunks(size).map(<[Fired]>::to_vec).collect();
        let rest = |n: usize| chunks.iter().enumerate().filter(|(m, _)| *m != n).flat_map(|(_, c)| c.clone()).collect();
        if let Some(chunk) = chunks.iter().find(|chunk| search.fails(chunk)) {
            faults.clone_from(chunk);
            parts = 2;
        } else if let Some(fewer) = (0..chunks.len()).map(rest).find(|fewer: &Vec<Fired>| search.fails(fewer)) {
            faults = fewer;
            parts = (parts - 1).max(2);
        } else if size == 1 {
            break;
        } else {
            parts = (parts * 2).min(faults.len());
        }
    }
    if faults.len() == 1 && search.fails(&[]) {
        faults.clear();
    }
    Some(Small { run: search.play(&faults, true), tried: search.tried, command: settings.command.clone() })
}
