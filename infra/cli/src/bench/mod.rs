//! `stepwarden bench`: throughput, latency, lists, open orders, recovery and memory on this machine. Each order has three steps, one
//! after another, by agents that do nothing; an order of a list has one, and so has an open order once its event has come.

pub mod agent;
mod child;
pub mod latency;
mod lists;
mod load;
mod open;
mod recovery;
mod report;
mod steady;

use crate::args::{Bench, Part};
use crate::process;
use anyhow::{Context, Result};
use edge::workflows::Workflows;
use latency::Latency;
use load::{Board, Load};
use report::Report;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stepwarden_local::system::{Options, System};

/// Three steps, one after another, by an agent that does nothing, or by one that calls `service`.
fn workflow(service: Option<&str>) -> String {
    let call = service.map_or_else(
        || r#"agent = "noop""#.to_owned(),
        |url| format!("http = {{ url = {}, method = \"POST\" }}", serde_json::Value::from(url)),
    );
    let step = |name, after| format!("[[step]]\nname = \"{name}\"\nafter = [{after}]\n{call}\ntimeout = \"60s\"\n");
    ["name = \"bench\"\n".to_owned(), step("first", ""), step("second", "\"first\""), step("third", "\"second\"")]
        .concat()
}

/// What a list starts for each item: its name and its file.
const WORKFLOW_OF_ITEM: (&str, &str) = (
    "bench-item",
    r#"
name = "bench-item"
[[step]]
name = "work"
agent = "noop"
timeout = "60s"
"#,
);

const WORKFLOW_OF_LIST: (&str, &str) = (
    "bench-list",
    r#"
name = "bench-list"
[[step]]
name = "items"
each = "${input.items}"
workflow = "bench-item"
with = { n = "${item}" }
at_once = 100
"#,
);

/// Runs the benchmark.
///
/// # Errors
/// The system does not start, or an order is refused or does not end.
pub async fn run(bench: &Bench) -> Result<Report> {
    let mut report = Report::begin(bench.durability());
    let wants = |part| bench.duration.is_none() && bench.only.contains(&part);
    if bench.duration.is_some() || bench.only.iter().any(|part| !part.kills()) {
        let folder =
            tempfile::Builder::new().prefix("stepwarden-bench-").tempdir().context("creating a temporary directory")?;
        let data = bench.durability().map(|_| bench.data.clone().unwrap_or_else(|| folder.path().to_owned()));
        let board = Arc::new(Board::default());
        let system = start(bench, data.clone(), &board).await?;
        let load = Load { submit: system.submit(), board };
        // By then the work that starting left behind is done.
        tokio::time::sleep(Duration::from_millis(500)).await;
        report.idle_memory_bytes = process::memory().map(|(now, _)| now);
        if wants(Part::Single) {
            report.single = Some(Latency::of(load.one_at_a_time(bench.single).await?));
        }
        if wants(Part::Throughput) {
            report.throughput = Some(load::throughput(&system, &load, bench).await?);
        }
        report.peak_memory_bytes = process::memory().map(|(_, peak)| peak);
        if wants(Part::Lists) {
            report.lists = Some(lists::run(&system, &load.board, bench.items).await?);
        }
        if wants(Part::Rates) {
            if bench.backlog.is_some() {
                // Until then the overload guard would refuse the next orders, because the last ones waited long.
                tokio::time::sleep(shared::overload::FRESH.unsigned_abs()).await;
            }
            for (n, &rate) in bench.rates.iter().enumerate() {
                report.rates.push(load.at_rate(&format!("rate-{n}"), rate, bench.rate_for).await?);
            }
        }
        if let Some(lasting) = bench.duration {
            report.steady = Some(steady::run(&load, bench.rate, lasting, data.as_deref()).await?);
            report.peak_memory_bytes = process::memory().map(|(_, peak)| peak);
        }
        system.stop().await;
    }
    // Nothing in memory survives a kill.
    if let Some(durability) = bench.durability() {
        if wants(Part::Open) {
            let data = bench.data.clone().unwrap_or_else(std::env::temp_dir);
            report.open = Some(open::run(bench.open, durability, &data).await?);
        }
        if wants(Part::Recovery) {
            report.recovery = Some(recovery::run(bench.kills, durability).await?);
        }
    }
    Ok(report)
}

async fn start(bench: &Bench, data: Option<PathBuf>, board: &Arc<Board>) -> Result<System> {
    let known = shared::workflow::file::Known { agents: &::agent::agents::NAMES, inputs: &[] };
    let whole = workflow(bench.service.as_deref());
    let files = [("bench", whole.as_str()), WORKFLOW_OF_ITEM, WORKFLOW_OF_LIST];
    let parse = |(name, text)| Ok((String::from(name), shared::workflow::file::parse(name, text, known)?));
    let workflows: Workflows = files.into_iter().map(parse).collect::<Result<_>>()?;
    let options = Options::embedded(data, bench.durability().unwrap_or_default(), workflows);
    // The orders of a backlog must not have begun.
    let begins = bench.backlog().is_none();
    System::start(Options { observer: Some(board.observer()), begins, ..options }).await
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
