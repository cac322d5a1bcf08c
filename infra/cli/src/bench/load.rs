//! Orders for a system in this process, and when each of them ended.

use super::latency::Latency;
use super::lock;
use super::report::{Rate, Throughput, over_time};
use crate::args::Bench;
use crate::demo::calls;
use crate::process;
use anyhow::{Context, Result};
use edge::problem::Problem;
use futures::{StreamExt, stream};
use serde_json::json;
use shared::engine::Observer;
use shared::order::Id;
use shared::task::ProcessState;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stepwarden_local::system::System;
use submit::Submit;
use submit::submission::{Submission, parse};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;

/// How often a long run reports its progress.
const SAY_EVERY: Duration = Duration::from_secs(5);
/// The run gives up if an order has not ended after this time, or if no order has changed for this long.
pub(super) const STUCK: Duration = Duration::from_secs(90);
/// Refused for now.
const TOO_MANY: u16 = 429;

/// When orders ended, as the engine's observer reports.
#[derive(Default)]
pub struct Board {
    pub(super) ended: AtomicU64,
    saves: AtomicU64,
    changed: Notify,
    waiting: Mutex<HashMap<Id, oneshot::Sender<Instant>>>,
    /// The ends of all orders, if a caller needs them: in a long run this list would grow without bound.
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

/// Submits orders to a system.
#[derive(Clone)]
pub struct Load {
    pub submit: Arc<Submit>,
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

    /// One run at a fixed rate. `name` must be unique among runs.
    pub async fn at_rate(&self, name: &str, rate: u32, lasting: Duration) -> Result<Rate> {
        let begin = Instant::now();
        let mut latencies = Vec::new();
        let refused = self.offer(name, rate, lasting, &mut latencies).await?;
        Ok(Rate {
            offered_per_second: rate,
            seconds: lasting.as_secs_f64(),
            orders: latencies.len() as u64,
            refused,
            orders_per_second: latencies.len() as f64 / begin.elapsed().as_secs_f64().max(lasting.as_secs_f64()),
            latency: Latency::of(latencies),
        })
    }

    /// Submits orders on schedule, however far behind the system is, and adds to `latencies` the milliseconds from the
    /// scheduled submission of each to its end. Since time counts from the schedule, a system that delays submissions
    /// looks as slow as it is. Returns when all have ended, with the number of those that were refused for overload.
    pub async fn offer(&self, name: &str, rate: u32, lasting: Duration, latencies: &mut Vec<f64>) -> Result<u64> {
        let orders = (lasting.as_secs_f64() * f64::from(rate)).round() as u32;
        let begin = Instant::now();
        let mut under_way: JoinSet<Result<Option<f64>>> = JoinSet::new();
        let ended_before = latencies.len();
        for n in 0..orders {
            let due = begin + Duration::from_secs_f64(f64::from(n) / f64::from(rate));
            tokio::time::sleep_until(due.into()).await;
            let (load, key) = (self.clone(), format!("{name}-{n}"));
            under_way.spawn(async move { load.until_its_end(&key, n.into(), due).await });
            while let Some(latency) = under_way.try_join_next() {
                latencies.extend(latency??);
            }
        }
        while let Some(latency) = under_way.join_next().await {
            latencies.extend(latency??);
        }
        Ok(u64::from(orders) - (latencies.len() - ended_before) as u64)
    }

    /// Milliseconds from `begin` to the order's end; `None` if it was refused for overload.
    async fn until_its_end(&self, key: &str, n: u64, begin: Instant) -> Result<Option<f64>> {
        let id = Id::derive(shared::order::DEFAULT_TENANT, key);
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
        Ok(Some(ended.context("the observer has stopped")?.duration_since(begin).as_secs_f64() * 1000.0))
    }

    async fn submit(&self, key: &str, n: u64) -> Result<Id, Problem> {
        let body = json!({"workflow": "bench", "input": {"number": n, "text": "x".repeat(200)}});
        let submission: Submission = parse(body.to_string().as_bytes())?;
        self.submit.accept(shared::order::DEFAULT_TENANT, key, submission).await
    }
}

/// Many orders at once.
pub async fn throughput(system: &System, load: &Load, bench: &Bench) -> Result<Throughput> {
    let board = &load.board;
    *lock(&board.ends) = Some(Vec::new());
    board.ended.store(0, Ordering::Relaxed);
    let endpoints = system.endpoints.as_ref().context("the benchmark runs on the embedded endpoints")?;
    let (counts, cpu) = (endpoints.counts(), process::cpu_time());
    let begins = work_off(system, load, bench).await?;
    let counts = endpoints.counts().since(&counts);
    let cpu = cpu.zip(process::cpu_time()).map(|(before, after)| after.saturating_sub(before));
    let orders = bench.orders as f64;
    let ends = lock(&board.ends).take().unwrap_or_default();
    let ends_s = scheduling_seconds(&begins, &ends);
    let tenth = (ends_s.len() / 10).max(1);
    let rate = |from_s: f64, to_s: f64, n: usize| n as f64 / (to_s - from_s).max(1e-9);
    let last_s = *ends_s.last().context("no order ended")?;
    Ok(Throughput {
        orders_per_second: rate(0.0, last_s, ends_s.len()),
        orders_per_second_first_tenth: rate(0.0, ends_s[tenth - 1], tenth),
        orders_per_second_last_tenth: rate(ends_s[ends_s.len() - tenth], last_s, tenth),
        orders: bench.orders,
        in_flight: bench.backlog.is_none().then_some(bench.in_flight),
        backlog: bench.backlog(),
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
        ended_over_time: over_time(&ends_s),
    })
}

/// When each order ended, in seconds of scheduling: with a backlog the clock stops while orders are submitted.
fn scheduling_seconds(begins: &[Instant], ends: &[Instant]) -> Vec<f64> {
    let mut seconds = Vec::with_capacity(ends.len());
    let mut before_s = 0.0;
    for (n, begin) in begins.iter().enumerate() {
        let next = begins.get(n + 1);
        let of_this = ends[seconds.len()..].iter().take_while(|end| next.is_none_or(|next| *end < next));
        seconds.extend(of_this.map(|end| before_s + end.duration_since(*begin).as_secs_f64()));
        before_s = seconds.last().copied().unwrap_or(before_s);
    }
    seconds
}

/// Returns when the scheduler began: with a backlog, after the last submission of each part.
async fn work_off(system: &System, load: &Load, bench: &Bench) -> Result<Vec<Instant>> {
    let orders = bench.orders;
    let run = Run { load, orders, begin: Instant::now(), said_s: AtomicU64::new(0), submitted: AtomicU64::new(0) };
    let Some(backlog) = bench.backlog() else {
        run.submit(0..orders, bench.in_flight as u64).await?;
        run.wait_for(orders).await?;
        return Ok(vec![run.begin]);
    };
    let mut begins = Vec::new();
    let mut submitted = 0;
    while submitted < orders {
        let until = submitted.saturating_add(backlog).min(orders);
        system.pause_agent(stepwarden_aws::config::queue::SCHEDULER, true);
        run.submit(submitted..until, u64::MAX).await?;
        begins.push(Instant::now());
        system.pause_agent(stepwarden_aws::config::queue::SCHEDULER, false);
        run.wait_for(until).await?;
        submitted = until;
    }
    Ok(begins)
}

/// The throughput run and its progress.
struct Run<'a> {
    load: &'a Load,
    orders: u64,
    begin: Instant,
    said_s: AtomicU64,
    submitted: AtomicU64,
}

impl Run<'_> {
    /// Submits these orders, with at most `in_flight` that have not ended.
    async fn submit(&self, which: Range<u64>, in_flight: u64) -> Result<()> {
        let Load { board, .. } = self.load;
        let submits = which.map(|n| async move {
            let place = self.submitted.fetch_add(1, Ordering::Relaxed);
            let begin = Instant::now();
            while place.saturating_sub(board.ended.load(Ordering::Relaxed)) >= in_flight {
                anyhow::ensure!(begin.elapsed() < STUCK, "no order ended for {} s", STUCK.as_secs());
                // The timeout covers a notification that came between the check and the wait.
                let _ = tokio::time::timeout(Duration::from_millis(5), board.changed.notified()).await;
            }
            let key = format!("many-{n}");
            loop {
                match self.load.submit(&key, n).await {
                    Ok(id) => return Ok(id),
                    // Messages waited long at the end of a large backlog, so the overload guard refuses the next
                    // backlog for some seconds.
                    Err(problem) if problem.status == TOO_MANY && begin.elapsed() < STUCK => {
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Err(problem) => anyhow::bail!("order {key} was refused: {}", problem.detail),
                }
            }
        });
        let mut answers = stream::iter(submits).buffer_unordered(32);
        while let Some(answer) = answers.next().await {
            answer?;
            self.say();
        }
        Ok(())
    }

    /// Returns when `ends` orders have ended.
    async fn wait_for(&self, ends: u64) -> Result<()> {
        let Load { board, .. } = self.load;
        let mut before = 0;
        let mut moved = Instant::now();
        loop {
            let ended = board.ended.load(Ordering::Relaxed);
            if ended >= ends {
                return Ok(());
            }
            self.say();
            let saves = board.saves.load(Ordering::Relaxed);
            if saves > before {
                (before, moved) = (saves, Instant::now());
            }
            anyhow::ensure!(
                moved.elapsed() < STUCK,
                "{ended} of {} orders ended, then nothing moved for {} s",
                self.orders,
                STUCK.as_secs()
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Reports the progress of a long run every few seconds.
    fn say(&self) {
        let now_s = self.begin.elapsed().as_secs();
        if now_s < self.said_s.load(Ordering::Relaxed) + SAY_EVERY.as_secs() {
            return;
        }
        self.said_s.store(now_s, Ordering::Relaxed);
        let submitted = self.submitted.load(Ordering::Relaxed).min(self.orders);
        let ended = self.load.board.ended.load(Ordering::Relaxed);
        eprintln!("{now_s:>4} s: {submitted} of {} orders submitted, {ended} ended", self.orders);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};

    fn bench(words: &[&str]) -> Bench {
        match <Cli as clap::Parser>::parse_from([&["stepwarden", "bench", "--memory"], words].concat()).command {
            Some(Command::Bench(bench)) => bench,
            _ => unreachable!("it was asked for"),
        }
    }

    async fn system(args: &[&str]) -> (System, Load) {
        let board = Arc::new(Board::default());
        let system = super::super::start(&bench(args), None, &board).await.unwrap();
        let submit = system.submit();
        (system, Load { submit, board })
    }

    // Issue 7, point 2: rates with one backlog and with many can be compared, because the time between two backlogs
    // does not count.
    #[test]
    fn the_clock_of_a_backlog_stands_while_the_next_one_is_submitted() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let ms = |begins: &[Instant], ends: &[Instant]| -> Vec<u64> {
            scheduling_seconds(begins, ends).iter().map(|s| (s * 1000.0).round() as u64).collect()
        };
        let ends = [at(10), at(20), at(1010), at(1030), at(5005)];
        assert_eq!(ms(&[at(0), at(1000), at(5000)], &ends), [10, 20, 30, 50, 55]);
        assert_eq!(ms(&[at(0)], &ends), [10, 20, 1010, 1030, 5005]);
        assert!(ms(&[at(0)], &[]).is_empty());
    }

    // Issue 7, point 2: a backlog is complete before its first order moves, and is worked off before the next one
    // begins.
    #[tokio::test]
    async fn one_backlog_is_worked_off_before_the_next_is_submitted() {
        // Enough orders that the first one could end while the last ones are submitted.
        let args = ["--orders", "250", "--backlog", "100"];
        let (system, load) = system(&args).await;
        *lock(&load.board.ends) = Some(Vec::new());
        let bench = bench(&args);
        let begins = tokio::time::timeout(STUCK, work_off(&system, &load, &bench)).await.unwrap().unwrap();
        let ends = lock(&load.board.ends).take().unwrap();
        let ended_before: Vec<usize> = begins.iter().map(|b| ends.iter().filter(|end| *end < b).count()).collect();
        assert_eq!((ended_before, ends.len()), (vec![0, 100, 200], 250));
        system.stop().await;
    }

    // Issue 7, point 1: orders are submitted at the rate even while none ends.
    #[tokio::test]
    async fn orders_are_submitted_on_schedule_while_none_ends() {
        let (system, load) = system(&[]).await;
        system.pause_agent("noop", true);
        let mut latencies = Vec::new();
        let all_are_submitted = async {
            while lock(&load.board.waiting).len() < 20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            system.pause_agent("noop", false);
        };
        let offered = load.offer("paused", 20, Duration::from_secs(1), &mut latencies);
        let both = async { tokio::join!(offered, all_are_submitted) };
        let (offered, ()) =
            tokio::time::timeout(STUCK, both).await.expect("no order is submitted before another one ends");
        offered.unwrap();
        assert_eq!(latencies.len(), 20);
        // The first one has waited for the last one, which was due 950 ms later.
        assert!(latencies.iter().any(|latency| *latency >= 950.0), "{latencies:?}");
        system.stop().await;
    }

    // Issue 7, point 1: an order that could not be submitted on schedule counts as waiting from the scheduled time.
    #[tokio::test]
    async fn time_counts_from_the_schedule() {
        let (system, load) = system(&[]).await;
        let mut latencies = Vec::new();
        let stalled = async { std::thread::sleep(Duration::from_millis(500)) };
        let offered = load.offer("stalled", 20, Duration::from_secs(1), &mut latencies);
        let (offered, ()) = tokio::join!(offered, stalled);
        offered.unwrap();
        // The orders that were due at 50, 100, ... 400 ms.
        let late = latencies.iter().filter(|latency| **latency >= 100.0).count();
        assert!(late >= 8, "{latencies:?}");
        system.stop().await;
    }
}
