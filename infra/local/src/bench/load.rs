//! Orders for a system in this process, and when each of them ended.

use super::report::{Latency, Rate, Throughput};
use super::{Settings, System};
use crate::demo::calls;
use crate::process;
use anyhow::{Context, Result};
use futures::{StreamExt, stream};
use serde_json::json;
use shared::engine::Observer;
use shared::order::Id;
use shared::task::ProcessState;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use stepwarden_aws::problem::Problem;
use stepwarden_aws::{DynamoStore, SqsMessenger};
use submit::Submit;
use submit::submission::{Submission, parse};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

/// How often a long run says how far it is.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// The run gives up on an order that has not ended by then, and on all when none has moved for so long.
const STUCK: Duration = Duration::from_secs(90);
/// Refused for now.
const TOO_MANY: u16 = 429;

/// When orders ended, as the engine's observer tells.
#[derive(Default)]
pub struct Board {
    ended: AtomicU64,
    saves: AtomicU64,
    changed: Notify,
    waiting: Mutex<HashMap<Id, oneshot::Sender<Instant>>>,
    /// Of all orders, where somebody asks for it: in a long run this would be what grows.
    ends: Mutex<Option<Vec<Instant>>>,
}

impl Board {
    pub fn observer(self: &Arc<Self>) -> Observer {
        let board = Arc::clone(self);
        Arc::new(move |save| {
            board.saves.fetch_add(1, Ordering::Relaxed);
            if save.task.process_state() == ProcessState::Processed {
                let now = Instant::now();
                board.ended.fetch_add(1, Ordering::Relaxed);
                if let Some(ends) = &mut *lock(&board.ends) {
                    ends.push(now);
                }
                if let Some(waiting) = lock(&board.waiting).remove(&save.task.id) {
                    let _ = waiting.send(now);
                }
                board.changed.notify_waiters();
            }
        })
    }
}

/// What submits.
#[derive(Clone)]
pub struct Load {
    pub submit: Arc<Submit<DynamoStore, SqsMessenger>>,
    pub board: Arc<Board>,
}

impl Load {
    /// Milliseconds from submission to the end, each order after the one before it.
    pub async fn one_at_a_time(&self, orders: u64) -> Result<Vec<f64>> {
        let mut latencies = Vec::new();
        for n in 0..orders {
            let latency = self.until_its_end(&format!("single-{n}"), n, Instant::now()).await?;
            latencies.push(latency.context("an order was refused on an idle system")?);
        }
        Ok(latencies)
    }

    /// One run at a fixed rate.
    pub async fn at_rate(&self, rate: u32, lasting: Duration) -> Result<Rate> {
        let begin = Instant::now();
        let (mut latencies, mut refused) = (Vec::new(), 0);
        let name = format!("rate-{rate}");
        self.offer(&name, rate, lasting, |latency| match latency {
            Some(latency) => latencies.push(latency),
            None => refused += 1,
        })
        .await?;
        Ok(Rate {
            offered_per_second: rate,
            seconds: lasting.as_secs_f64(),
            orders: latencies.len() as u64,
            refused,
            orders_per_second: latencies.len() as f64 / begin.elapsed().as_secs_f64().max(lasting.as_secs_f64()),
            latency: Latency::of(latencies),
        })
    }

    /// Submits orders on schedule whatever becomes of those before them, and tells `ended` of each: the milliseconds from
    /// when it was to be submitted to its end, so that a system that holds up submissions looks as slow as it is; `None` if
    /// it was refused for overload. Returns when all have ended.
    pub async fn offer(
        &self,
        name: &str,
        rate: u32,
        lasting: Duration,
        mut ended: impl FnMut(Option<f64>),
    ) -> Result<()> {
        let orders = (lasting.as_secs_f64() * f64::from(rate)).round() as u32;
        let begin = Instant::now();
        let mut under_way: JoinSet<Result<Option<f64>>> = JoinSet::new();
        for n in 0..orders {
            let due = begin + Duration::from_secs_f64(f64::from(n) / f64::from(rate));
            tokio::time::sleep_until(due.into()).await;
            let (load, key) = (self.clone(), format!("{name}-{n}"));
            under_way.spawn(async move { load.until_its_end(&key, n.into(), due).await });
            while let Some(latency) = under_way.try_join_next() {
                ended(latency??);
            }
        }
        while let Some(latency) = under_way.join_next().await {
            ended(latency??);
        }
        Ok(())
    }

    /// Milliseconds from `begin` to the order's end; `None` if it was refused for overload.
    async fn until_its_end(&self, key: &str, n: u64, begin: Instant) -> Result<Option<f64>> {
        let id = Id::derive(submit::http::DEFAULT_TENANT, key);
        let (sender, ended) = oneshot::channel();
        lock(&self.board.waiting).insert(id.clone(), sender);
        match self.submit(key, n).await {
            Ok(_) => {}
            Err(problem) if problem.status == TOO_MANY => {
                lock(&self.board.waiting).remove(&id);
                return Ok(None);
            }
            Err(problem) => anyhow::bail!("order {key} was refused: {}", problem.detail),
        }
        let ended = tokio::time::timeout(STUCK, ended).await;
        let ended = ended.with_context(|| format!("order {key} did not end within {} s", STUCK.as_secs()))?;
        Ok(Some(ended.context("the observer is gone")?.duration_since(begin).as_secs_f64() * 1000.0))
    }

    async fn submit(&self, key: &str, n: u64) -> Result<Id, Problem> {
        let body = json!({"workflow": "bench", "input": {"number": n, "text": "x".repeat(200)}});
        let submission: Submission = parse(body.to_string().as_bytes())?;
        self.submit.accept(submit::http::DEFAULT_TENANT, key, submission).await
    }
}

/// Many orders at once.
pub async fn throughput(system: &System, load: &Load, settings: &Settings) -> Result<Throughput> {
    let board = &load.board;
    *lock(&board.ends) = Some(Vec::new());
    board.ended.store(0, Ordering::Relaxed);
    let endpoints = system.endpoints.as_ref().context("the benchmark runs on the embedded endpoints")?;
    let (counts, cpu) = (endpoints.counts(), process::cpu_time());
    let begin = work_off(system, load, settings).await?;
    let counts = endpoints.counts().since(&counts);
    let cpu = cpu.zip(process::cpu_time()).map(|(before, after)| after.saturating_sub(before));
    let orders = settings.orders as f64;
    let ends = lock(&board.ends).take().unwrap_or_default();
    let tenth = (ends.len() / 10).max(1);
    let rate = |from: Instant, to: Instant, n: usize| n as f64 / to.duration_since(from).as_secs_f64().max(1e-9);
    let last = *ends.last().context("no order ended")?;
    Ok(Throughput {
        orders_per_second: rate(begin, last, ends.len()),
        orders_per_second_first_tenth: rate(begin, ends[tenth - 1], tenth),
        orders_per_second_last_tenth: rate(ends[ends.len() - tenth], last, tenth),
        orders: settings.orders,
        in_flight: settings.in_flight,
        backlog: settings.backlog,
        cpu_ms_per_order: cpu.map(|c| c.as_secs_f64() * 1000.0 / orders),
        dynamodb_calls_per_order: calls(&counts, "DynamoDB") as f64 / orders,
        sends_per_order: counts.messages_sent as f64 / orders,
        sqs_calls_per_order: calls(&counts, "AmazonSQS") as f64 / orders,
        requests_per_order: counts
            .operations
            .iter()
            .map(|(operation, count)| (operation.clone(), count.requests as f64 / orders))
            .collect(),
        fsyncs_per_order: counts.syncs as f64 / orders,
        ends_s: ends.iter().map(|end| end.duration_since(begin).as_secs_f64()).collect(),
    })
}

/// Answers when the scheduler began: with a backlog, after the last submission.
async fn work_off(system: &System, load: &Load, settings: &Settings) -> Result<Instant> {
    let board = &load.board;
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
            let key = format!("many-{n}");
            load.submit(&key, n).await.map_err(|p| anyhow::anyhow!("order {key} was refused: {}", p.detail))
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
            moved.elapsed() < STUCK,
            "{ended} of {} orders ended, then nothing moved for {} s",
            settings.orders,
            STUCK.as_secs()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use stepwarden_aws::config::queue;

    async fn system() -> (System, Load) {
        let settings = Settings {
            parts: Vec::new(),
            orders: 1,
            single: 1,
            in_flight: 1,
            backlog: false,
            rates: Vec::new(),
            rate_for: STUCK,
            kills: 1,
            steady: None,
            durability: None,
            data: None,
        };
        let board = Arc::new(Board::default());
        let system = super::super::start(&settings, None, &board).await.unwrap();
        let submit = Arc::clone(&system.submit);
        (system, Load { submit, board })
    }

    // Issue 7, point 1: the rate is kept up while nothing ends.
    #[tokio::test]
    async fn orders_are_submitted_on_schedule_while_none_ends() {
        let (system, load) = system().await;
        system.pause_agent(queue::SCHEDULER, true);
        let mut latencies = Vec::new();
        let all_are_submitted = async {
            while lock(&load.board.waiting).len() < 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            system.pause_agent(queue::SCHEDULER, false);
        };
        let offered = load.offer("paused", 20, Duration::from_secs(1), |latency| latencies.extend(latency));
        let both = async { tokio::join!(offered, all_are_submitted) };
        let (offered, ()) =
            tokio::time::timeout(STUCK, both).await.expect("no order is submitted before another one ends");
        offered.unwrap();
        assert_eq!(latencies.len(), 20);
        // The first one has waited for the last one, which was due 950 ms later.
        assert!(latencies.iter().any(|latency| *latency >= 950.0), "{latencies:?}");
        system.stop().await;
    }

    // The same: an order that could not be submitted in time has waited all the same.
    #[tokio::test]
    async fn time_counts_from_the_schedule() {
        let (system, load) = system().await;
        let mut latencies = Vec::new();
        let stalled = async { std::thread::sleep(Duration::from_millis(500)) };
        let offered = load.offer("stalled", 20, Duration::from_secs(1), |latency| latencies.extend(latency));
        let (offered, ()) = tokio::join!(offered, stalled);
        offered.unwrap();
        // Those that were due at 50, 100, ... 400 ms.
        let late = latencies.iter().filter(|latency| **latency >= 100.0).count();
        assert!(late >= 8, "{latencies:?}");
        system.stop().await;
    }
}
