//! `stepwarden bench`: throughput, latency, recovery and memory on this machine, of orders of three steps one after another by
//! agents that do nothing.

pub mod agent;
mod load;
mod recovery;
mod report;
mod steady;

pub use recovery::{Kills, Recovery};
pub use report::{Latency, Rate, Report, Throughput};
pub use steady::{Sample, Steady};

use crate::process;
use crate::system::{Backend, Options, System};
use anyhow::{Context, Result};
use load::{Board, Load};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_aws::ReplyQueues;
use stepwarden_embedded::Durability;
use submit::workflows::Workflows;

/// Three steps one after another, done at once.
const WORKFLOW: &str = r#"
name = "bench"
[[step]]
name = "first"
agent = "noop"
timeout = "60s"
[[step]]
name = "second"
agent = "noop"
after = ["first"]
timeout = "60s"
[[step]]
name = "third"
agent = "noop"
after = ["second"]
timeout = "60s"
"#;

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Latency of one order at a time
    Single,
    /// Orders a second, with many in flight
    Throughput,
    /// Latency at fixed rates
    Rates,
    /// What kill -9 of an agent, of the scheduler, and of everything costs
    Recovery,
}

/// What `bench` is told on the command line.
pub struct Settings {
    /// What to measure, unless it is a steady run.
    pub parts: Vec<Part>,
    /// Orders in the throughput run.
    pub orders: u64,
    /// Orders one at a time.
    pub single: u64,
    /// Orders submitted and not ended at most, in the throughput run.
    pub in_flight: usize,
    /// Submit so many orders before the first of them is scheduled, and the next so many when all of them have ended.
    pub backlog: Option<u64>,
    /// Orders a second, each rate in a run of its own.
    pub rates: Vec<u32>,
    /// How long each of these runs lasts.
    pub rate_for: Duration,
    /// How often an agent, the scheduler and everything are killed.
    pub kills: u32,
    /// One long run at a fixed rate in place of all parts: orders a second, and how long.
    pub steady: Option<(u32, Duration)>,
    /// What an answered write survives; `None` keeps everything in memory.
    pub durability: Option<Durability>,
    /// Where the data goes; `None` takes a fresh directory.
    pub data: Option<PathBuf>,
}

impl Settings {
    /// Whether these make sense together.
    ///
    /// # Errors
    /// What does not, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.durability.is_none() && self.parts == [Part::Recovery] && self.steady.is_none() {
            return Err("nothing to recover: with --memory nothing survives a kill");
        }
        if self.backlog.is_some() && !self.parts.contains(&Part::Throughput) {
            return Err("--backlog needs the throughput run, which --only excludes");
        }
        if self.data.as_deref().is_some_and(|dir| dir.join("tables.db").exists()) {
            return Err(
                "the directory in --data already holds a system's data, and its orders would be counted; choose \
                        another directory, or leave --data out",
            );
        }
        Ok(())
    }
}

/// Runs the benchmark.
///
/// # Errors
/// The system does not start, or an order is refused or does not end.
pub async fn run(settings: &Settings) -> Result<Report> {
    let mut report = Report::begin(settings.durability);
    let wants = |part| settings.steady.is_none() && settings.parts.contains(&part);
    if settings.steady.is_some() || settings.parts.iter().any(|part| *part != Part::Recovery) {
        let folder =
            tempfile::Builder::new().prefix("stepwarden-bench-").tempdir().context("creating a temporary directory")?;
        let data = settings.durability.map(|_| settings.data.clone().unwrap_or_else(|| folder.path().to_owned()));
        let board = Arc::new(Board::default());
        let system = start(settings, data.clone(), &board).await?;
        let load = Load { submit: Arc::clone(&system.submit), board };
        // What starting left to do is done by then.
        tokio::time::sleep(Duration::from_millis(500)).await;
        report.idle_memory_bytes = process::memory().map(|(now, _)| now);
        if wants(Part::Single) {
            report.single = Some(Latency::of(load.one_at_a_time(settings.single).await?));
        }
        if wants(Part::Throughput) {
            report.throughput = Some(load::throughput(&system, &load, settings).await?);
        }
        report.peak_memory_bytes = process::memory().map(|(_, peak)| peak);
        if wants(Part::Rates) {
            if settings.backlog.is_some() {
                // Until then that its last orders waited long is held against the next ones.
                tokio::time::sleep(shared::overload::FRESH.unsigned_abs()).await;
            }
            for (n, &rate) in settings.rates.iter().enumerate() {
                report.rates.push(load.at_rate(&format!("rate-{n}"), rate, settings.rate_for).await?);
            }
        }
        if let Some((rate, lasting)) = settings.steady {
            report.steady = Some(steady::run(&load, rate, lasting, data.as_deref()).await?);
            report.peak_memory_bytes = process::memory().map(|(_, peak)| peak);
        }
        system.stop().await;
    }
    // Nothing in memory survives a kill.
    if wants(Part::Recovery)
        && let Some(durability) = settings.durability
    {
        report.recovery = Some(recovery::run(settings.kills, durability).await?);
    }
    Ok(report)
}

async fn start(settings: &Settings, data: Option<PathBuf>, board: &Arc<Board>) -> Result<System> {
    let known = shared::workflow::file::Known { agents: &agent_names(), inputs: &[] };
    let workflow = shared::workflow::file::parse("bench", WORKFLOW, known)?;
    System::start(Options {
        backend: Backend::Embedded { data, durability: settings.durability.unwrap_or_default() },
        port: 0,
        workflows: Workflows::from([(workflow.name.clone(), workflow)]),
        reply_queues: ReplyQueues::default(),
        observer: Some(board.observer()),
        cache: 20_000,
        pools: shared::pools::Layout::new(),
        urls: BTreeMap::new(),
        access: Default::default(),
        external_agents: Vec::new(),
    })
    .await
}

fn agent_names() -> [&'static str; 6] {
    ::agent::agents::NAMES
}
