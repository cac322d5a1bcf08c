//! `stepwarden demo`: many real orders through the whole system, with faults, and a check of every effect at the end.

use crate::process;
use crate::say;
use crate::system::{Backend, Options, System};
use anyhow::{Context, Result, bail};
use futures::{StreamExt, stream};
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::StatusCode;
use serde_json::{Value, json};
use shared::engine::Save;
use shared::history::Kind;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{ProcessState, Task};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use stepwarden_aws::config::queue;
use stepwarden_embedded::{Counts, Durability};
use stepwarden_remotes::{Expected, Faults, Service, ServiceFaults};
use submit::workflows::Workflows;

/// The 830 orders of the repository.
const ORDERS: &str = include_str!("../../../tests/data/northwind-orders.jsonl");
/// Submissions under way at once.
const SUBMITTERS: usize = 16;
/// The run gives up when no order has moved for this long.
const STUCK: Duration = Duration::from_secs(120);
/// How often the display is drawn on a terminal, and printed elsewhere.
const DRAW: Duration = Duration::from_millis(100);
const PRINT: Duration = Duration::from_secs(2);
/// The agent that goes down on the way, when, and for how long.
const DOWN_AGENT: &str = "payment";
const DOWN_AFTER: f64 = 0.25;
const DOWN_FOR: Duration = Duration::from_secs(6);

/// What `demo` is told on the command line.
pub struct Settings {
    /// A file of orders, one JSON object a line; `None` takes the repository's 830.
    pub file: Option<PathBuf>,
    /// Share of calls to remote services that fail and may be tried again.
    pub transient: f64,
    /// Share of calls that are never answered.
    pub hang: f64,
    /// Share of orders' steps that are refused for good.
    pub permanent: f64,
    /// Seed of the faults.
    pub seed: u64,
    /// The workflows orders are accepted for.
    pub workflows: Workflows,
}

/// Where every order stands, kept up to date by the engine's observer.
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
pub async fn run(settings: Settings) -> Result<bool> {
    let orders = read_orders(&settings)?;
    let board = Shared::default();
    let folder = tempfile::Builder::new().prefix("stepwarden-demo-").tempdir().context("making a fresh directory")?;
    let observer = {
        let board = Arc::clone(&board);
        Arc::new(move |save: &Save<'_>| look(&board, |b| b.note(save.task)))
    };
    let system = System::start(Options {
        backend: Backend::Embedded { data: Some(folder.path().to_owned()), durability: Durability::Full },
        port: 0,
        workflows: settings.workflows.clone(),
        reply_queues: Vec::new(),
        observer: Some(observer),
        cache: 20_000,
        pools: shared::pools::Layout::new(),
        urls: BTreeMap::new(),
        access: Default::default(),
        external_agents: Vec::new(),
    })
    .await?;
    let faults = ServiceFaults {
        transient: settings.transient,
        hang: settings.hang,
        permanent: settings.permanent,
        ..ServiceFaults::default()
    };
    let all = Service::ALL.into_iter().map(|service| (service, faults.clone()));
    let faults = Faults { seed: settings.seed, services: all.collect() };
    system.remotes.set_faults(faults).map_err(|e| anyhow::anyhow!("{e}"))?;
    say!("{}", system.url);
    say!(
        "{} orders: reserve and check fraud side by side, then charge, then ship\n\
         faults: {:.0} % transient, {:.0} % hangs, {:.0} % permanent (seed {}); the {DOWN_AGENT} agent goes down for {} s on the way\n\
         data: {} (fsync before every answer)\n",
        orders.len(),
        settings.transient * 100.0,
        settings.hang * 100.0,
        settings.permanent * 100.0,
        settings.seed,
        DOWN_FOR.as_secs(),
        folder.path().display(),
    );

    let begin = Instant::now();
    let cpu = process::cpu_time();
    let counts = system.endpoints.as_ref().map(stepwarden_embedded::Endpoints::counts).unwrap_or_default();
    let total = orders.len() as u64;
    let watching = tokio::spawn(watch(Arc::clone(&board), total, begin));
    // Side by side: nobody has to be told of the orders still to be submitted once the reader is gone.
    let watched = async { watching.await.context("watching the orders")? };
    let run = async { tokio::try_join!(submit_all(&system, orders), watched) };
    let (ids, took) = tokio::select! {
        ended = run => ended?,
        () = outage(&system, &board, total) => unreachable!("the outage never returns"),
    };
    let counts = system.endpoints.as_ref().map(|e| e.counts().since(&counts)).unwrap_or_default();
    let cpu = cpu.zip(process::cpu_time()).map(|(before, after)| after.saturating_sub(before));
    let tasks = load_all(&system, &ids).await?;
    let is_clean = report(&system, &tasks, took, begin, cpu, &counts)?;
    system.stop().await;
    Ok(took.is_some() && is_clean)
}

fn read_orders(settings: &Settings) -> Result<Vec<Value>> {
    let (name, text) = match &settings.file {
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
        bail!("{name} holds no orders; write one JSON object a line");
    }
    Ok(orders)
}

/// Submits all orders over HTTP, as any client would.
async fn submit_all(system: &System, orders: Vec<Value>) -> Result<Vec<Id>> {
    let http = reqwest::Client::new();
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
            match body["order_id"].as_str() {
                Some(id) if status.is_success() => Ok(Id(id.to_owned())),
                _ => bail!("order {key} (line {}) was refused: {status} {body}", n + 1),
            }
        }
    });
    let answers: Vec<Result<Id>> = stream::iter(requests).buffer_unordered(SUBMITTERS).collect().await;
    answers.into_iter().collect()
}

/// Takes an agent down for a while once a part of the orders has ended. Never returns.
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

/// Shows the states until all orders have ended: the time it took, or `None` when nothing moves any more.
async fn watch(board: Shared, total: u64, begin: Instant) -> Result<Option<Duration>> {
    let is_terminal = std::io::stdout().is_terminal();
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
        if !is_terminal && (printed.elapsed() >= PRINT || is_over) {
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
        task.with_context(|| format!("accepted order {id} is gone"))
    });
    let tasks: Vec<Result<Task>> = stream::iter(loads).buffer_unordered(SUBMITTERS).collect().await;
    tasks.into_iter().collect()
}

/// Prints the summary; true if all checks hold.
fn report(
    system: &System,
    tasks: &[Task],
    took: Option<Duration>,
    begin: Instant,
    cpu: Option<Duration>,
    counts: &Counts,
) -> Result<bool> {
    let orders = tasks.len() as f64;
    let seconds = took.unwrap_or_else(|| begin.elapsed()).as_secs_f64();
    let in_state = |state: ProcessState| tasks.iter().filter(|t| t.process_state() == state).count();
    let events = |kind: Kind| tasks.iter().flat_map(|t| &t.log).filter(|e| e.1 == kind).count();
    say!("\n{} orders in {seconds:.1} s: {:.0} orders/s", tasks.len(), orders / seconds);
    for state in ProcessState::ALL {
        let count = in_state(state);
        if count > 0 || state.is_final() {
            say!("  {:<12}{count:>6}", state.name());
        }
    }
    let mut latencies: Vec<f64> =
        tasks.iter().map(|t| t.created_at.duration_until(t.updated_at).as_secs_f64() * 1000.0).collect();
    latencies.sort_by(f64::total_cmp);
    let at = |q: f64| latencies.get(((latencies.len() as f64 * q) as usize).min(latencies.len().saturating_sub(1)));
    say!("  latency     p50 {:.0} ms, p99 {:.0} ms", at(0.50).unwrap_or(&0.0), at(0.99).unwrap_or(&0.0));
    say!("  attempts    {} of steps and undos", events(Kind::Claimed) + events(Kind::UndoClaimed));
    say!(
        "  requeues    {} after silence past CompleteBy, {} given back early, {} held back by a breaker",
        events(Kind::Expired),
        events(Kind::Unavailable),
        events(Kind::Deferred)
    );
    say!("  undos       {} steps of {} orders", events(Kind::Undone), events(Kind::TaskUndoing));
    say!("  alerts      {} to the operator", counts.events_put);
    let dynamodb: u64 = calls(counts, "DynamoDB");
    let sqs: u64 = calls(counts, "AmazonSQS");
    say!(
        "  API calls   {:.1} DynamoDB, {:.1} SQS, {:.1} messages sent per order",
        dynamodb as f64 / orders,
        sqs as f64 / orders,
        counts.messages_sent as f64 / orders
    );
    if let Some(cpu) = cpu {
        say!(
            "  CPU         {:.1} ms per order, remote services and submitters included",
            cpu.as_secs_f64() * 1000.0 / orders
        );
    }

    let mut is_clean = true;
    let mut check = |good: bool, text: &str| -> Result<()> {
        say!("  {} {text}", if good { "ok  " } else { "FAIL" });
        is_clean &= good;
        Ok(())
    };
    say!("checks");
    let open = tasks.iter().filter(|t| !t.process_state().is_final()).count();
    check(open == 0, &format!("every order ended: {open} are still open"))?;
    let expected = tasks.iter().map(|task| {
        let expected = match task.process_state() {
            ProcessState::Processed => Expected::Applied(Service::ALL.to_vec()),
            ProcessState::Undone => Expected::Undone,
            ProcessState::Pending | ProcessState::Processing | ProcessState::Undoing | ProcessState::Error => {
                Expected::Any
            }
        };
        (task.id.0.clone(), expected)
    });
    let ledgers = system.remotes.check(expected.collect::<Vec<_>>()).context("checking the ledgers")?;
    check(
        ledgers.is_clean(),
        &format!(
            "the ledgers of the remote services: {} effects, each applied once, or applied and undone",
            ledgers.effects
        ),
    )?;
    if !ledgers.is_clean() {
        say!("{ledgers}");
    }
    let alerted = in_state(ProcessState::Error) as u64;
    check(counts.events_put >= alerted, &format!("an alert for each of the {alerted} orders in Error"))?;
    let kept = system.endpoints.as_ref().map(stepwarden_embedded::Endpoints::queue_stats).unwrap_or_default();
    let aside: usize = kept
        .iter()
        .filter(|q| q.name.ends_with("-dead") || q.name.ends_with(queue::SET_ASIDE))
        .map(|q| q.visible + q.in_flight)
        .sum();
    check(aside == 0, &format!("no message was set aside: {aside} are"))?;
    Ok(is_clean)
}

/// Requests to one service.
#[must_use]
pub fn calls(counts: &Counts, service: &str) -> u64 {
    counts.operations.iter().filter(|(name, _)| name.starts_with(service)).map(|(_, o)| o.requests).sum()
}
