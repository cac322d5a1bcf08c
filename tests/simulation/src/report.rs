//! Many seeds at once, and their results.

use crate::dice::{Allowed, Class};
use crate::endpoint::Mishap;
use crate::history::Violation;
use crate::people::ACTS;
use crate::real::FAULTS;
use crate::world::run::{OrderRun, Run};
use crate::world::{RunOptions, lock};
use crate::{Settings, Small, run, shrink};
use serde::Serialize;
use shared::task::ProcessState;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// Maximum number of failing seeds listed in a report; all are counted.
const LISTED: usize = 20;
/// The number of runs with a fault, and of runs without it, that are needed to say what the fault costs.
const ENOUGH: usize = 10;
/// Runs without faults that measure how long an order normally takes.
const CALM_RUNS: u64 = 5;

/// A seed that broke a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The workflow of its orders.
    pub workflow: String,
    /// What it broke.
    pub violations: Vec<Violation>,
}

/// Recovery times, in milliseconds of virtual time beyond what an order normally takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recovery {
    /// Half of the orders took no longer.
    pub p50_ms: u64,
    /// 99 of 100 orders took no longer.
    pub p99_ms: u64,
    /// The longest.
    pub max_ms: u64,
}

/// What one class of faults did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Harm {
    /// The class.
    pub class: Class,
    /// How often it happened.
    pub times: u64,
    /// In how many runs.
    pub runs: usize,
    /// How much longer an order took in runs with it than without, on average; `None` if there are too few of either.
    pub added_ms: Option<i64>,
}

/// The results of many seeds.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The first seed.
    pub first: u64,
    /// Seeds played.
    pub runs: usize,
    /// How many of these used the real store.
    pub real_runs: usize,
    /// How many of these used the real messenger.
    pub messenger_runs: usize,
    /// Seeds that broke a rule.
    pub failed: usize,
    /// The first ones, at most [`LISTED`].
    pub failures: Vec<Failure>,
    /// Number of orders by final state; `lost` counts those that were never stored.
    pub orders: BTreeMap<&'static str, usize>,
    /// How long recovery took.
    pub recovery: Recovery,
    /// By workflow: how long an order takes without faults, in milliseconds.
    pub calm_ms: BTreeMap<String, u64>,
    /// The workflows whose orders are not processed even without faults, and why.
    pub unprocessed: BTreeMap<String, String>,
    /// All classes, the costliest first.
    pub harm: Vec<Harm>,
    /// What people did that changed something, and how often.
    pub acts: BTreeMap<&'static str, u64>,
    /// What the real adapters met at their endpoints, and how often.
    pub met: BTreeMap<&'static str, u64>,
    /// Dead letters moved back after the end of the faults.
    pub redriven: usize,
    /// Virtual time played, in seconds.
    pub virtual_s: u64,
    /// Real time it took, in milliseconds.
    pub took_ms: u64,
    /// The first failing seed, with as few faults as break the same rule.
    #[serde(skip)]
    pub smallest: Option<Small>,
}

impl Report {
    /// Every order ended well, and no rule was broken.
    pub fn is_clean(&self) -> bool {
        self.failed == 0
    }
}

/// Does `work` with each number below `count`, on `threads` threads.
pub fn share_out(count: u64, threads: usize, work: impl Fn(u64) + Sync) {
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                let take = || Some(next.fetch_add(1, Ordering::Relaxed)).filter(|n| *n < count);
                while let Some(n) = take() {
                    work(n);
                }
            });
        }
    });
}

/// Plays seeds `from..from + count` on `threads` threads, and reports to `progress` how many are done.
#[must_use]
pub fn simulate(settings: &Settings, from: u64, count: u64, threads: usize, progress: impl Fn(u64) + Sync) -> Report {
    let begin = Instant::now();
    let (done, runs) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    share_out(count, threads, |n| {
        let run = run(from + n, settings, &RunOptions::default());
        lock(&runs).push(run);
        progress(done.fetch_add(1, Ordering::Relaxed) + 1);
    });
    let mut runs = runs.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    runs.sort_by_key(|run| run.seed);
    let mut report = summary(&runs, calm(settings));
    report.took_ms = u64::try_from(begin.elapsed().as_millis()).unwrap_or(u64::MAX);
    report.smallest = runs
        .iter()
        .find(|run| !run.violations.is_empty())
        .and_then(|run| shrink(run, settings, &RunOptions::default()));
    report
}

/// What becomes of a workflow's orders without faults.
struct Calm {
    took_ms: u64,
    /// Why none is processed.
    unprocessed: Option<String>,
}

fn calm(settings: &Settings) -> BTreeMap<String, Calm> {
    let one = |workflow| {
        let settings = Settings {
            workflows: vec![workflow],
            children: [&settings.children[..], &settings.workflows].concat(),
            script: settings.script.clone(),
            ..Settings::default()
        };
        let options = RunOptions { allowed: Allowed::none(), ..RunOptions::default() };
        let runs = (0..CALM_RUNS).map(|seed| run(seed, &settings, &options));
        let orders: Vec<OrderRun> = runs.filter_map(|run| run.orders.into_iter().next()).collect();
        let is_processed = orders.iter().any(|order| order.state == Some(ProcessState::Processed));
        let reason = || orders.iter().find_map(|order| order.reason.clone());
        Calm {
            took_ms: orders.iter().filter_map(|order| order.took_ms).max().unwrap_or_default(),
            unprocessed: (!is_processed).then(|| reason().unwrap_or_else(|| "no reason is recorded".to_owned())),
        }
    };
    settings.workflows.iter().map(|workflow| (workflow.name.clone(), one(workflow.clone()))).collect()
}

fn summary(runs: &[Run], calm: BTreeMap<String, Calm>) -> Report {
    let calm_ms: BTreeMap<_, _> = calm.iter().map(|(name, calm)| (name.clone(), calm.took_ms)).collect();
    let extra = |run: &Run, took: u64| took.saturating_sub(calm_ms.get(&run.workflow).copied().unwrap_or_default());
    let mut orders = BTreeMap::new();
    let mut all = Vec::new();
    let mut means = Vec::new();
    for run in runs {
        for order in &run.orders {
            *orders.entry(order.state.map_or("lost", ProcessState::name)).or_default() += 1;
        }
        let own: Vec<u64> = run.orders.iter().filter_map(|o| o.took_ms).map(|took| extra(run, took)).collect();
        means.push((!own.is_empty()).then(|| own.iter().sum::<u64>() as f64 / own.len() as f64));
        all.extend(own);
    }
    all.sort_unstable();
    let at = |share: f64| all.get(((all.len().saturating_sub(1)) as f64 * share) as usize).copied().unwrap_or_default();
    let failed: Vec<&Run> = runs.iter().filter(|run| !run.violations.is_empty()).collect();
    let mut acts: BTreeMap<&'static str, u64> = ACTS.map(|name| (name, 0)).into();
    for (name, times) in runs.iter().flat_map(|run| &run.acts) {
        *acts.entry(name).or_default() += times;
    }
    let names = FAULTS.map(|(_, name)| name).into_iter().chain(Mishap::ALL.map(Mishap::name));
    let mut met: BTreeMap<&'static str, u64> = names.map(|name| (name, 0)).collect();
    for (name, times) in runs.iter().flat_map(|run| &run.met) {
        *met.entry(name).or_default() += times;
    }
    let mut harm: Vec<Harm> = Class::ALL.iter().map(|class| harm_of(*class, runs, &means)).collect();
    harm.sort_by_key(|h| std::cmp::Reverse(h.added_ms.filter(|_| !h.class.is_act()).unwrap_or(i64::MIN)));
    Report {
        first: runs.first().map_or(0, |run| run.seed),
        runs: runs.len(),
        real_runs: runs.iter().filter(|run| run.is_real_store).count(),
        messenger_runs: runs.iter().filter(|run| run.is_real_messenger).count(),
        failed: failed.len(),
        failures: failed
            .iter()
            .take(LISTED)
            .map(|run| Failure { seed: run.seed, workflow: run.workflow.clone(), violations: run.violations.clone() })
            .collect(),
        orders,
        recovery: Recovery { p50_ms: at(0.5), p99_ms: at(0.99), max_ms: at(1.0) },
        harm,
        acts,
        met,
        redriven: runs.iter().map(|run| run.redriven).sum(),
        virtual_s: runs.iter().map(|run| run.virtual_ms).sum::<u64>() / 1000,
        took_ms: 0,
        smallest: None,
        calm_ms,
        unprocessed: calm.into_iter().filter_map(|(name, calm)| Some((name, calm.unprocessed?))).collect(),
    }
}

fn harm_of(class: Class, runs: &[Run], means: &[Option<f64>]) -> Harm {
    let count = |run: &Run| run.fired.iter().filter(|fired| fired.class == class).count();
    let (mut with, mut without, mut times, mut hit) = (Vec::new(), Vec::new(), 0, 0);
    for (run, mean) in runs.iter().zip(means) {
        let own = count(run);
        times += own as u64;
        hit += usize::from(own > 0);
        if let Some(mean) = mean {
            if own > 0 { with.push(*mean) } else { without.push(*mean) }
        }
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let is_enough = with.len() >= ENOUGH && without.len() >= ENOUGH;
    Harm { class, times, runs: hit, added_ms: is_enough.then(|| (mean(&with) - mean(&without)) as i64) }
}

fn seconds(ms: u64) -> String {
    format!("{:.1} s", ms as f64 / 1000.0)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total: usize = self.orders.values().sum();
        let rate = self.runs as u64 * 60_000 / self.took_ms.max(1);
        writeln!(
            f,
            "{} seeds from {} ({} with the DynamoDB adapter, {} with the SQS adapter), {total} orders, {} h of virtual time, {} seeds per minute",
            self.runs,
            self.first,
            self.real_runs,
            self.messenger_runs,
            self.virtual_s / 3600,
            rate
        )?;
        for (state, count) in &self.orders {
            writeln!(f, "  {state:<14} {count}")?;
        }
        let Recovery { p50_ms, p99_ms, max_ms } = self.recovery;
        writeln!(
            f,
            "recovery time, beyond that of an order without faults: p50 {}, p99 {}, max {}",
            seconds(p50_ms),
            seconds(p99_ms),
            seconds(max_ms)
        )?;
        if let Some(Harm { class, added_ms: Some(added @ 1..), .. }) = self.harm.first() {
            let added = seconds(added.unsigned_abs());
            writeln!(f, "costliest fault: {class}; orders took {added} longer in runs with it than without")?;
        }
        writeln!(f, "faults and actions")?;
        for harm in &self.harm {
            let added = harm.added_ms.map_or_else(String::new, |ms| format!("{:+.1} s", ms as f64 / 1000.0));
            writeln!(f, "  {:<22} {:>8} times in {:>6} runs  {added:>9}", harm.class.name(), harm.times, harm.runs)?;
        }
        let acts: Vec<String> = self.acts.iter().map(|(name, times)| format!("{name} {times}")).collect();
        writeln!(f, "actions that changed something: {}", acts.join(", "))?;
        if self.messenger_runs > 0 {
            let met: Vec<String> = self.met.iter().map(|(name, times)| format!("{name} {times}")).collect();
            writeln!(f, "faults that the adapters met: {}", met.join(", "))?;
        }
        for (workflow, reason) in &self.unprocessed {
            writeln!(
                f,
                "warning: even without faults, no order of `{workflow}` is processed: {reason}\n  `simulate` makes up \
                 inputs and answers. To run this workflow with your own under the same faults, write a scenario for \
                 `stepwarden test`."
            )?;
        }
        if self.is_clean() {
            return write!(
                f,
                "ok: every order was processed, undone, or stopped in Error with an alert; no rule was broken"
            );
        }
        writeln!(f, "FAILED: {} seeds broke a rule", self.failed)?;
        for failure in &self.failures {
            let first = failure.violations.first().map(ToString::to_string).unwrap_or_default();
            writeln!(f, "  seed {} ({}): {first}", failure.seed, failure.workflow)?;
        }
        if let Some(small) = &self.smallest {
            write!(f, "{small}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Small {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seed, count, tried) = (self.run.seed, self.run.fired.len(), self.tried);
        writeln!(f, "seed {seed} with only the {count} faults needed to fail (found in {tried} runs):")?;
        for line in &self.run.trace {
            writeln!(f, "  {line}")?;
        }
        for violation in &self.run.violations {
            writeln!(f, "  => {violation}")?;
        }
        write!(f, "to repeat the whole run: {} --seed {seed}", self.command)
    }
}
