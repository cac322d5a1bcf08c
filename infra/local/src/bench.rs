//! `stepwarden bench`: throughput and latency of three-step orders of agents that do nothing, on this machine.

use crate::demo::calls;
use crate::process;
use crate::system::{Backend, Options, System};
use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use serde::Serialize;
use serde_json::json;
use shared::engine::Observer;
use shared::order::Id;
use shared::task::ProcessState;
use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use stepwarden_embedded::Durability;
use submit::submission::{Submission, parse};
use submit::workflows::Workflows;
use tokio::sync::{Notify, oneshot};

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

/// How often a long run says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);

/// What `bench` is told on the command line.
pub struct Settings {
    /// Orders in the throughput run.
    pub orders: u64,
    /// Orders one at a time.
    pub single: u64,
    /// Orders submitted and not ended at most, in the throughput run.
    pub in_flight: usize,
    /// Submit all orders before the first one is scheduled.
    pub backlog: bool,
    /// What an answered write survives; `None` keeps everything in memory.
    pub durability: Option<Durability>,
    /// Where the data goes; `None` takes a fresh directory.
    pub data: Option<PathBuf>,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Orders ended per second, in the throughput run.
    pub orders_per_second: f64,
    /// The same in the first and in the last tenth of the orders: equal if a backlog costs nothing.
    pub orders_per_second_first_tenth: f64,
    /// See above.
    pub orders_per_second_last_tenth: f64,
    /// Orders in the throughput run.
    pub orders: u64,
    /// Submitted and not ended at most.
    pub in_flight: usize,
    /// Whether all orders were submitted before the first was scheduled.
    pub backlog: bool,
    /// From submission to the end, one order at a time: median.
    pub p50_ms: f64,
    /// The same: 99th percentile.
    pub p99_ms: f64,
    /// User and system time of the whole process per order, in the throughput run.
    pub cpu_ms_per_order: Option<f64>,
    /// Requests to the DynamoDB endpoint per order, in the throughput run; the supervisor's sweeps included.
    pub dynamodb_calls_per_order: f64,
    /// Messages sent per order.
    pub sends_per_order: f64,
    /// Requests to the SQS endpoint per order: sends, receives and deletes, in batches.
    pub sqs_calls_per_order: f64,
    /// Times the disk was made to keep what was written, per order.
    pub fsyncs_per_order: f64,
    /// What an answered write survives.
    pub durability: &'static str,
    /// Resident memory before the first order, in bytes.
    pub idle_memory_bytes: Option<u64>,
    /// Peak of resident memory, in bytes.
    pub peak_memory_bytes: Option<u64>,
    /// Processors of the machine.
    pub cpus: usize,
    /// What the processors call themselves.
    pub cpu_model: String,
}

#[derive(Default)]
struct Board {
    ended: AtomicU64,
    saves: AtomicU64,
    changed: Notify,
    waiting: Mutex<HashMap<Id, oneshot::Sender<()>>>,
    ends: Mutex<Vec<Instant>>,
}

/// Runs the benchmark.
///
/// # Errors
/// The system does not start, or an order is refused or does not end.
pub async fn run(settings: Settings) -> Result<Report> {
    let board = Arc::new(Board::default());
    let observer: Observer = {
        let board = Arc::clone(&board);
        Arc::new(move |save| {
            board.saves.fetch_add(1, Ordering::Relaxed);
            if save.task.process_state() == ProcessState::Processed {
                board.ended.fetch_add(1, Ordering::Relaxed);
                lock(&board.ends).push(Instant::now());
                if let Some(waiting) = lock(&board.waiting).remove(&save.task.id) {
                    let _ = waiting.send(());
                }
                board.changed.notify_waiters();
            }
        })
    };
    let folder = tempfile::Builder::new().prefix("stepwarden-bench-").tempdir().context("making a fresh directory")?;
    let data = settings.data.clone().unwrap_or_else(|| folder.path().to_owned());
    let known = shared::workflow::file::Known { agents: &agent::agents::NAMES, inputs: &[] };
    let workflow = shared::workflow::file::parse("bench", WORKFLOW, known)?;
    let system = System::start(Options {
        backend: Backend::Embedded {
            data: settings.durability.map(|_| data),
            durability: settings.durability.unwrap_or_default(),
        },
        port: 0,
        workflows: Workflows::from([(workflow.name.clone(), workflow)]),
        reply_queues: Vec::new(),
        observer: Some(observer),
        cache: 20_000,
        pools: shared::pools::Layout::new(),
        urls: BTreeMap::new(),
        access: Default::default(),
        external_agents: Vec::new(),
    })
    .await?;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let idle = process::memory().map(|(now, _)| now);

    let single = one_at_a_time(&system, &board, settings.single).await?;
    lock(&board.ends).clear();
    board.ended.store(0, Ordering::Relaxed);
    let endpoints = system.endpoints.as_ref().context("the benchmark runs on the embedded endpoints")?;
    let (counts, cpu) = (endpoints.counts(), process::cpu_time());
    let scheduling = throughput(&system, &board, &settings).await?;
    let counts = endpoints.counts().since(&counts);
    let cpu = cpu.zip(process::cpu_time()).map(|(before, after)| after.saturating_sub(before));
    let orders = settings.orders as f64;
    let ends = std::mem::take(&mut *lock(&board.ends));
    let tenth = (ends.len() / 10).max(1);
    let rate = |from: Instant, to: Instant, n: usize| n as f64 / to.duration_since(from).as_secs_f64().max(1e-9);
    let last = *ends.last().context("no order ended")?;
    let report = Report {
        orders_per_second: rate(scheduling, last, ends.len()),
        orders_per_second_first_tenth: rate(scheduling, ends[tenth - 1], tenth),
        orders_per_second_last_tenth: rate(ends[ends.len() - tenth], last, tenth),
        orders: settings.orders,
        in_flight: settings.in_flight,
        backlog: settings.backlog,
        p50_ms: quantile(&single, 0.50),
        p99_ms: quantile(&single, 0.99),
        cpu_ms_per_order: cpu.map(|c| c.as_secs_f64() * 1000.0 / orders),
        dynamodb_calls_per_order: calls(&counts, "DynamoDB") as f64 / orders,
        sends_per_order: counts.messages_sent as f64 / orders,
        sqs_calls_per_order: calls(&counts, "AmazonSQS") as f64 / orders,
        fsyncs_per_order: counts.syncs as f64 / orders,
        durability: match settings.durability {
            Some(Durability::Full) => "fsync before every answer: survives a power failure",
            Some(Durability::Process) => "written before every answer: survives kill -9, not a power failure",
            None => "memory only",
        },
        idle_memory_bytes: idle,
        peak_memory_bytes: process::memory().map(|(_, peak)| peak),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        cpu_model: cpu_model(),
    };
    system.stop().await;
    Ok(report)
}

async fn one_at_a_time(system: &System, board: &Board, orders: u64) -> Result<Vec<f64>> {
    let mut latencies = Vec::new();
    for n in 0..orders {
        let key = format!("single-{n}");
        let (sender, ended) = oneshot::channel();
        lock(&board.waiting).insert(Id::derive(submit::http::DEFAULT_TENANT, &key), sender);
        let begin = Instant::now();
        submit_one(system, &key, n).await?;
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        ended.with_context(|| format!("order {key} did not end within 60 s"))?.context("the observer is gone")?;
        latencies.push(begin.elapsed().as_secs_f64() * 1000.0);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

/// Answers when the scheduler began: with a backlog, after the last submission.
async fn throughput(system: &System, board: &Board, settings: &Settings) -> Result<Instant> {
    let begin = Instant::now();
    if settings.backlog {
        system.pause_agent(stepwarden_aws::config::queue::SCHEDULER, true);
    }
    let submitted = AtomicU64::new(0);
    let limit = if settings.backlog { u64::MAX } else { settings.in_flight as u64 };
    let submits = (0..settings.orders).map(|n| {
        let submitted = &submitted;
        async move {
            let place = submitted.fetch_add(1, Ordering::Relaxed);
            while place.saturating_sub(board.ended.load(Ordering::Relaxed)) >= limit {
                // The timeout covers a notification that came between the check and the wait.
                let _ = tokio::time::timeout(Duration::from_millis(5), board.changed.notified()).await;
            }
            submit_one(system, &format!("many-{n}"), n).await
        }
    });
    let mut answers = stream::iter(submits).buffer_unordered(32);
    let mut said = begin;
    let mut say = |ended: u64| {
        if said.elapsed() >= SAY_EVERY {
            said = Instant::now();
            let accepted = submitted.load(Ordering::Relaxed).min(settings.orders);
            eprintln!(
                "{:>4} s: {accepted} of {} orders submitted, {ended} ended",
                begin.elapsed().as_secs(),
                settings.orders
            );
        }
    };
    while let Some(answer) = answers.next().await {
        answer?;
        say(board.ended.load(Ordering::Relaxed));
    }
    system.pause_agent(stepwarden_aws::config::queue::SCHEDULER, false);
    let scheduling = if settings.backlog { Instant::now() } else { begin };
    let mut before = 0;
    let mut moved = Instant::now();
    loop {
        let ended = board.ended.load(Ordering::Relaxed);
        if ended >= settings.orders {
            return Ok(scheduling);
        }
        say(ended);
        let saves = board.saves.load(Ordering::Relaxed);
        if saves > before {
            (before, moved) = (saves, Instant::now());
        }
        anyhow::ensure!(
            moved.elapsed() < Duration::from_secs(90),
            "{ended} of {} orders ended, then nothing moved for 90 s",
            settings.orders
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn submit_one(system: &System, key: &str, n: u64) -> Result<Id> {
    let body = json!({"workflow": "bench", "input": {"number": n, "text": "x".repeat(200)}});
    let submission: Submission = parse(body.to_string().as_bytes()).map_err(|p| anyhow::anyhow!("{}", p.detail))?;
    let id = system.submit.accept(submit::http::DEFAULT_TENANT, key, submission).await;
    id.map_err(|p| anyhow::anyhow!("order {key} was refused: {}", p.detail))
}

fn quantile(sorted: &[f64], q: f64) -> f64 {
    let index = ((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    line.trim_start_matches([' ', '\t', ':']).to_owned()
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
