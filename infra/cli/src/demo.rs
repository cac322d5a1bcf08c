//! `stepwarden demo`: many real orders through the whole system, with faults, and a check of every effect at the end.

mod report;

pub use report::{Report, calls};

use crate::args::Demo;
use crate::process;
use crate::say;
use anyhow::{Context, Result, bail};
use edge::workflows::Workflows;
use futures::{StreamExt, stream};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::engine::Save;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{ProcessState, Task};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use stepwarden_embedded::Durability;
use stepwarden_local::system::{Options, System};
use stepwarden_remotes::{Faults, Service, ServiceFaults};
use submit::http::Accepted;

/// The 830 orders of the repository.
const ORDERS: &str = include_str!("../../../tests/data/northwind-orders.jsonl");
/// Concurrent submissions.
const SUBMITTERS: usize = 16;
/// The run gives up when no order has moved for this long.
const STUCK: Duration = Duration::from_secs(120);
/// How often progress is drawn on a terminal, and printed elsewhere.
const DRAW: Duration = Duration::from_millis(100);
const PRINT: Duration = Duration::from_secs(2);
/// The agent that goes down during the run, when, and for how long.
const DOWN_AGENT: &str = "payment";
const DOWN_AFTER: f64 = 0.25;
const DOWN_FOR: Duration = Duration::from_secs(6);

/// The state of every order, kept up to date by the engine's observer.
#[derive(Default)]
struct Board {
    states: HashMap<Id, ProcessState>,
    counts: BTreeMap<&'static str, u64>,
    moved: Option<Instant>,
    is_agent_down: bool,
}

impl Board {
    fn note(&mut self, task: &Task) {
        let state = task.process_state();
        if let Some(before) = self.states.insert(task.id.clone(), state) {
            *self.counts.entry(before.name()).or_default() -= 1;
        }
        *self.counts.entry(state.name()).or_default() += 1;
        self.moved = Some(Instant::now());
    }

    fn count(&self, state: ProcessState) -> u64 {
        self.counts.get(state.name()).copied().unwrap_or_default()
    }

    fn ended(&self) -> u64 {
        ProcessState::ALL.into_iter().filter(|s| s.is_final()).map(|s| self.count(s)).sum()
    }
}

type Shared = Arc<Mutex<Board>>;

fn look<T>(board: &Shared, at: impl FnOnce(&mut Board) -> T) -> T {
    at(&mut board.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs the demo; true if every order ended and every effect is as it should be.
///
/// # Errors
/// The system does not start, or an order is refused.
pub async fn run(demo: &Demo, workflows: Workflows) -> Result<bool> {
    let orders = read_orders(demo.file.as_deref())?;
    let board = Shared::default();
    let folder =
        tempfile::Builder::new().prefix("stepwarden-demo-").tempdir().context("creating a temporary directory")?;
    let observer = {
        let board = Arc::clone(&board);
        Arc::new(move |save: &Save<'_>| look(&board, |b| b.note(save.task)))
    };
    let options = Options::embedded(Some(folder.path().to_owned()), Durability::Full, workflows);
    let system = System::start(Options { observer: Some(observer), ..options }).await?;
    let faults = ServiceFaults {
        transient: demo.transient,
        hang: demo.hang,
        permanent: demo.permanent,
        ..ServiceFaults::default()
    };
    let all = Service::ALL.into_iter().map(|service| (service, faults.clone()));
    let faults = Faults { seed: demo.seed, services: all.collect() };
    system.remotes.set_faults(faults).map_err(|e| anyhow::anyhow!("{e}"))?;
    if !demo.json {
        say!("{}", system.url);
        say!(
            "{} orders: reserve and check fraud in parallel, then charge, then ship\n\
         faults: {:.0} % transient, {:.0} % hangs, {:.0} % permanent (seed {}); the {DOWN_AGENT} agent is down for {} s\n\
         data: {} (fsync before every answer)\n",
            orders.len(),
            demo.transient * 100.0,
            demo.hang * 100.0,
            demo.permanent * 100.0,
            demo.seed,
            DOWN_FOR.as_secs(),
            folder.path().display(),
        );
    }

    let begin = Instant::now();
    let cpu = process::cpu_time();
    let counts = system.endpoints.as_ref().map(stepwarden_embedded::Endpoints::counts).unwrap_or_default();
    let total = orders.len() as u64;
    let watching = tokio::spawn(watch(Arc::clone(&board), total, begin, demo.json));
    // Submitting and watching run concurrently, so that the rest is not submitted if the reader of the output goes.
    let watched = async { watching.await.context("watching the orders")? };
    let run = async { tokio::try_join!(submit_all(&system, orders), watched) };
    let (ids, took) = tokio::select! {
        ended = run => ended?,
        () = outage(&system, &board, total) => unreachable!("the outage never returns"),
    };
    let counts = system.endpoints.as_ref().map(|e| e.counts().since(&counts)).unwrap_or_default();
    let cpu = cpu.zip(process::cpu_time()).map(|(before, after)| after.saturating_sub(before));
    let tasks = load_all(&system, &ids).await?;
    let report = Report::new(&system, &tasks, took.unwrap_or_else(|| begin.elapsed()), cpu, &counts)?;
    if demo.json {
        say!("{}", serde_json::to_string_pretty(&report).context("printing the report")?);
    } else {
        report.print()?;
    }
    system.stop().await;
    Ok(took.is_some() && report.ok)
}

fn read_orders(file: Option<&Path>) -> Result<Vec<Value>> {
    let (name, text) = match file {
        None => ("the built-in orders".to_owned(), ORDERS.to_owned()),
        Some(path) => {
            let name = path.display().to_string();
            (name.clone(), std::fs::read_to_string(path).with_context(|| format!("reading {name}"))?)
        }
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let orders: Result<Vec<Value>> = lines
        .map(|(n, line)| serde_json::from_str(line).with_context(|| format!("{name}:{}: not a JSON object", n + 1)))
        .collect();
    let orders = orders?;
    if orders.is_empty() {
        bail!("{name} holds no orders; write one JSON object per line");
    }
    Ok(orders)
}

/// Submits all orders over HTTP, as any client would.
async fn submit_all(system: &System, orders: Vec<Value>) -> Result<Vec<Id>> {
    let http = crate::call::http().build().context("making the HTTP client")?;
    let url = format!("{}/orders", system.url);
    let requests = orders.into_iter().enumerate().map(|(n, order)| {
        let key = order["order_ref"].as_str().map_or_else(|| format!("demo-{n}"), str::to_owned);
        let request = http.post(&url).bearer_auth(&system.token).header("idempotency-key", format!("demo-{n}-{key}"));
        let request = request.json(&json!({"workflow": "order", "reference": key, "input": order}));
        async move {
            let answer = loop {
                let request = request.try_clone().context("a body of JSON can be sent again")?;
                let answer = request.send().await.with_context(|| format!("submitting order {key}"))?;
                let again = answer.headers().get("retry-after").and_then(|s| s.to_str().ok()?.parse().ok());
                match again.filter(|_| answer.status() == StatusCode::TOO_MANY_REQUESTS) {
                    Some(seconds) => tokio::time::sleep(Duration::from_secs(seconds)).await,
                    None => break answer,
                }
            };
            let status = answer.status();
            let body: Value = answer.json().await.with_context(|| format!("reading the answer for order {key}"))?;
            match Accepted::deserialize(&body) {
                Ok(accepted) if status.is_success() => Ok(accepted.order_id),
                _ => bail!("order {key} (line {}) was refused: {status} {body}", n + 1),
            }
        }
    });
    let answers: Vec<Result<Id>> = stream::iter(requests).buffer_unordered(SUBMITTERS).collect().await;
    answers.into_iter().collect()
}

/// Stops an agent for a while once a part of the orders has ended. Never returns.
async fn outage(system: &System, board: &Shared, total: u64) {
    let wanted = (total as f64 * DOWN_AFTER) as u64;
    while look(board, |b| b.ended()) < wanted.max(1) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    look(board, |b| b.is_agent_down = true);
    system.pause_agent(DOWN_AGENT, true);
    tokio::time::sleep(DOWN_FOR).await;
    system.pause_agent(DOWN_AGENT, false);
    look(board, |b| b.is_agent_down = false);
    std::future::pending().await
}

/// Shows the states until all orders have ended. Returns the time that took, or `None` if no order moves for too long.
async fn watch(board: Shared, total: u64, begin: Instant, is_quiet: bool) -> Result<Option<Duration>> {
    let is_terminal = !is_quiet && std::io::stdout().is_terminal();
    let bars = MultiProgress::with_draw_target(if is_terminal {
        ProgressDrawTarget::stdout()
    } else {
        ProgressDrawTarget::hidden()
    });
    let style = ProgressStyle::with_template("{prefix:>11} {bar:40} {pos:>6}").expect("a valid template");
    let lines: Vec<(ProcessState, ProgressBar)> = ProcessState::ALL
        .into_iter()
        .map(|state| {
            let bar = bars.add(ProgressBar::new(total).with_style(style.clone()));
            bar.set_prefix(state.name());
            (state, bar)
        })
        .collect();
    let mut printed = Instant::now();
    loop {
        let (counts, ended, moved, down) = look(&board, |b| {
            let counts: Vec<u64> = ProcessState::ALL.into_iter().map(|s| b.count(s)).collect();
            (counts, b.ended(), b.moved, b.is_agent_down)
        });
        for ((_, bar), count) in lines.iter().zip(&counts) {
            bar.set_position(*count);
        }
        let is_over = ended == total;
        if !is_terminal && !is_quiet && (printed.elapsed() >= PRINT || is_over) {
            printed = Instant::now();
            let mut line = format!("{:>5.1} s ", begin.elapsed().as_secs_f64());
            for (state, count) in ProcessState::ALL.into_iter().zip(&counts) {
                let _ = write!(line, "  {} {count}", state.name());
            }
            line.push_str(if down { "  (payment agent down)" } else { "" });
            say!("{line}");
        }
        if is_over || moved.is_some_and(|at| at.elapsed() > STUCK) {
            for (_, bar) in &lines {
                bar.abandon();
            }
            return Ok(is_over.then(|| begin.elapsed()));
        }
        tokio::time::sleep(DRAW).await;
    }
}

async fn load_all(system: &System, ids: &[Id]) -> Result<Vec<Task>> {
    let loads = ids.iter().map(|id| async move {
        let task = system.engine.store.load(id).await.with_context(|| format!("loading order {id}"))?;
        task.with_context(|| format!("accepted order {id} has disappeared"))
    });
    let tasks: Vec<Result<Task>> = stream::iter(loads).buffer_unordered(SUBMITTERS).collect().await;
    tasks.into_iter().collect()
}
