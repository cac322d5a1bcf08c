//! Goal: a long load loses nothing; at ten times its capacity the system refuses orders, completes accepted ones, and
//! is back to normal soon after. Method: the real binary on files, in a separate process; this process sends the load
//! over HTTP. Then the record of the run is checked against the rules of every history.
//!
//! `ORDERS=n` makes the long load longer, `SEED=n` draws other faults for it; the overload takes `OVERLOAD=n` seconds,
//! a minute by default.

mod common;

use common::client::{is_final, rest, state};
use common::record::{Checked, Record, depth, keep_saves};
use common::{NORTHWIND, Up, number};
use futures::future::join_all;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// The reference workflow.
const ORDER: &str = include_str!("../../../workflows/order.toml");
/// Orders of the long load in `cargo test`.
const ORDERS: u64 = 100;
/// Seconds of overload: orders are refused only once messages have waited for half of a step's timeout.
const OVERLOAD: u64 = 60;
/// The offered load, as a multiple of the capacity.
const TIMES: f64 = 10.0;
/// For each order that gets 503, more than this number must get 429.
const UNAVAILABLE: usize = 20;
/// Maximum number of connections of the load.
const CONNECTIONS: usize = 512;
/// Concurrent submissions of a load at the system's capacity, and the number of Wakes that may wait meanwhile.
const SUBMITTERS: usize = 32;
const DEPTH: u64 = 64;
/// One order in this number has a queue for its notices.
const TOLD_EVERY: u64 = 10;
/// The load is over when an order takes no longer than this factor times its time without load.
const NORMAL: u32 = 10;
/// Number of consecutive orders that must be this fast.
const IN_A_ROW: u32 = 3;
/// Longest time until the system is back to normal after an overload.
const RECOVERY: Duration = Duration::from_secs(120);
/// If no order ends within this time, something is stuck.
const PATIENCE: Duration = Duration::from_secs(300);

/// The outcome of a submission.
enum Answer {
    Accepted(String),
    /// Status, and when to retry.
    Refused(u16, Duration),
    /// Neither.
    Other(String),
}

/// The system under load, and the clients.
struct Load {
    http: reqwest::Client,
    up: Up,
    record: Record,
    inputs: Vec<&'static str>,
    dir: tempfile::TempDir,
}

impl Load {
    /// Starts the system with the reference workflow, as users do, or without waiting for a disk that other processes
    /// use.
    async fn start(is_quick: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("workflows")).unwrap();
        std::fs::write(dir.path().join("workflows/order.toml"), ORDER).unwrap();
        let http = common::client().timeout(PATIENCE).pool_max_idle_per_host(CONNECTIONS).build().unwrap();
        let durability = if is_quick { "process" } else { "power" };
        let up =
            Up::start(dir.path(), &["--port", "0", "--data", "data", "--durability", durability, "--rate-limit", "0"]);
        keep_saves(&dir.path().join("data"));
        let record = Record::create(dir.path().join("record.db"));
        Self { http, up, record, inputs: NORTHWIND.lines().collect(), dir }
    }

    fn url(&self) -> String {
        format!("{}/orders", self.up.url)
    }

    async fn submit(&self, key: &str, n: u64) -> Answer {
        let input = self.inputs[usize::try_from(n).unwrap() % self.inputs.len()];
        let queue = if n.is_multiple_of(TOLD_EVERY) { r#","reply_queue":"default""# } else { "" };
        let body = format!(r#"{{"workflow":"order","input":{input}{queue}}}"#);
        let post = self.http.post(self.url()).header("idempotency-key", key).header("content-type", "application/json");
        let answer = match post.body(body).send().await {
            Ok(answer) => answer,
            Err(error) => return Answer::Other(format!("{error:?}")),
        };
        let status = answer.status().as_u16();
        let again = answer.headers().get("retry-after").and_then(|s| s.to_str().ok()?.parse().ok()).filter(|s| *s > 0);
        let body = answer.text().await.unwrap_or_default();
        match (status, again) {
            (202, _) => {
                let answer: Value = serde_json::from_str(&body).unwrap();
                let id = answer["order_id"].as_str().unwrap();
                self.record.accepted(id);
                Answer::Accepted(id.to_owned())
            }
            (429 | 503, Some(seconds)) => Answer::Refused(status, Duration::from_secs(seconds)),
            _ => Answer::Other(format!("{status} {body}")),
        }
    }

    /// Submits one order and waits for its end; `None` if it was refused.
    async fn one(&self, key: &str) -> Option<Duration> {
        let begin = Instant::now();
        let id = match self.submit(key, 1).await {
            Answer::Accepted(id) => id,
            Answer::Refused(..) => return None,
            Answer::Other(what) => panic!("{key}: {what}"),
        };
        while !state(&self.http, &self.url(), &id).await.is_some_and(|state| is_final(&state)) {
            assert!(begin.elapsed() < PATIENCE, "{id} does not end");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Some(begin.elapsed())
    }

    /// Submits orders as fast as they are done, without a backlog. A refused submission is repeated after
    /// `Retry-After`.
    async fn steady(&self, name: &str, orders: u64) {
        let (next, submitting, is_behind) = (AtomicUsize::new(0), AtomicBool::new(true), AtomicBool::new(false));
        let submitter = async || {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed) as u64;
                if n >= orders {
                    return;
                }
                let key = format!("{name}-{n}");
                let (begin, mut last) = (Instant::now(), "not submitted yet".to_owned());
                let check = |last: &str| assert!(begin.elapsed() < PATIENCE, "{key} waits for {PATIENCE:?}: {last}");
                loop {
                    while is_behind.load(Ordering::Relaxed) {
                        check(&format!("more than {DEPTH} Wakes are in the queue; {last}"));
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    match self.submit(&key, n).await {
                        Answer::Accepted(_) => break,
                        Answer::Refused(status, after) => {
                            last = format!("the last answer was {status}, come back after {after:?}");
                            check(&last);
                            tokio::time::sleep(after).await;
                        }
                        Answer::Other(what) => panic!("{key}: {what}"),
                    }
                }
            }
        };
        let watch = async {
            while submitting.load(Ordering::Relaxed) {
                self.record.take_notices(&self.http, &self.up.aws_url).await.unwrap();
                let depth = depth(&self.http, &self.up.aws_url, "stepwarden-scheduler").await.unwrap();
                is_behind.store(depth > DEPTH, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let submit = async {
            join_all((0..SUBMITTERS).map(|_| submitter())).await;
            submitting.store(false, Ordering::Relaxed);
        };
        tokio::join!(submit, watch);
    }

    /// Waits until everything has ended, and checks the record of the run.
    async fn end(mut self) -> Checked {
        assert_eq!(rest(&self.http, &self.up, &self.record, PATIENCE).await, 0, "messages were given up");
        self.record.take_ledger(&self.http, &self.up.remotes_url).await;
        let memory = peak_memory_mb(self.up.process.0.id());
        self.up.kill();
        let begin = Instant::now();
        self.record.take_files(&self.dir.path().join("data"));
        let checked = self.record.check();
        println!(
            "{} orders {:?}, {} saves, {} effects, {} notices, {} alerts, {} attempts expired; memory of the system at \
             most {memory:?} MB, of this program {:?} MB; checked in {:.1} s",
            checked.spans.len(),
            checked.states,
            checked.saves,
            checked.effects,
            checked.notices,
            checked.alerts,
            checked.expired,
            peak_memory_mb(std::process::id()),
            begin.elapsed().as_secs_f64()
        );
        checked
    }
}

/// As measured by Linux.
fn peak_memory_mb(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? / 1024)
}

// A4, D9, D10, J1: nothing is lost, everything ends, each effect once, while the remote services fail now and then.
#[tokio::test(flavor = "multi_thread")]
async fn every_order_of_a_long_load_ends() {
    let (orders, seed) = (number("ORDERS", ORDERS), number("SEED", 1));
    let load = Load::start(orders == ORDERS).await;
    let one = json!({"transient": 0.02, "permanent": 0.01, "lost_answer": 0.01});
    let faults = json!({"seed": seed, "services": {"inventory": one, "payment": one, "shipping": one}});
    let put = load.http.put(format!("{}/faults", load.up.remotes_url)).json(&faults);
    put.send().await.unwrap().error_for_status().unwrap();
    let begin = Instant::now();
    load.steady("long", orders).await;
    println!("{orders} orders in {:.1} s, {:.0} a second", begin.elapsed().as_secs_f64(), rate(orders, begin));
    let checked = load.end().await;
    checked.assert_clean(&format!("SEED={seed}"));
    assert_eq!(checked.spans.len() as u64, orders);
}

fn rate(orders: u64, begin: Instant) -> f64 {
    orders as f64 / begin.elapsed().as_secs_f64()
}

/// The answers to the overload.
#[derive(Debug, Default)]
struct Answers {
    accepted: AtomicUsize,
    refused: AtomicUsize,
    /// The store did not answer in time, which may happen on a slow machine.
    unavailable: AtomicUsize,
    /// All connections were busy.
    unsent: AtomicUsize,
    other: Mutex<Vec<String>>,
}

impl Answers {
    /// Checks that at least half of `offered` was really sent: a submission without a free connection was no load.
    /// Refused orders must have got 429, not 503.
    fn check(&self, offered: f64) {
        let count = |of: &AtomicUsize| of.load(Ordering::Relaxed);
        let (refused, unavailable) = (count(&self.refused), count(&self.unavailable));
        let answered = count(&self.accepted) + refused + unavailable;
        assert!(answered as f64 >= offered / 2.0, "only {answered} of {offered:.0} orders were offered: {self:?}");
        assert!(refused > 0, "nobody was refused: {self:?}");
        assert!(unavailable * UNAVAILABLE < refused, "{unavailable} times unavailable, {refused} refused: {self:?}");
    }
}

// The check can fail.
#[test]
fn an_overload_that_was_not_offered_or_broke_the_store_is_seen() {
    let answers = |accepted: usize, refused: usize, unavailable: usize| Answers {
        accepted: accepted.into(),
        refused: refused.into(),
        unavailable: unavailable.into(),
        ..Answers::default()
    };
    let is_good = |answers: Answers| std::panic::catch_unwind(move || answers.check(1000.0)).is_ok();
    assert!(is_good(answers(100, 400, 19)));
    assert!(!is_good(answers(50, 400, 19)), "too few");
    assert!(!is_good(answers(100, 400, 20)), "too often unavailable");
    assert!(!is_good(answers(1000, 0, 0)), "nobody was refused");
}

/// Offers `a_second` orders per second, whatever the answers.
async fn offer(load: &Arc<Load>, a_second: f64, during: Duration) -> Arc<Answers> {
    let (answers, connections) = (Arc::new(Answers::default()), Arc::new(Semaphore::new(CONNECTIONS)));
    let begin = Instant::now();
    let mut tick = tokio::time::interval(Duration::from_millis(5));
    let mut offered = 0;
    while begin.elapsed() < during {
        tick.tick().await;
        let due = (begin.elapsed().as_secs_f64() * a_second) as u64;
        for n in offered..due {
            let Ok(connection) = Arc::clone(&connections).try_acquire_owned() else {
                answers.unsent.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            let (load, answers) = (Arc::clone(load), Arc::clone(&answers));
            tokio::spawn(async move {
                match load.submit(&format!("much-{n}"), n).await {
                    Answer::Accepted(_) => drop(answers.accepted.fetch_add(1, Ordering::Relaxed)),
                    Answer::Refused(429, _) => drop(answers.refused.fetch_add(1, Ordering::Relaxed)),
                    Answer::Refused(..) => drop(answers.unavailable.fetch_add(1, Ordering::Relaxed)),
                    Answer::Other(what) => answers.other.lock().unwrap().push(what),
                }
                drop(load);
                drop(connection);
            });
        }
        offered = due;
    }
    let all = u32::try_from(CONNECTIONS).unwrap();
    let answered = tokio::time::timeout(PATIENCE, connections.acquire_many(all)).await;
    drop(answered.expect("all are answered").expect("nobody closes it"));
    answers
}

// J1, A4: at ten times the capacity orders are refused with a time to retry after; no accepted order is given up
// because of the load; soon after it the system is back to normal.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "wants a release build and a machine of its own; tests/overload.rs has it in virtual time"]
async fn ten_times_the_capacity_is_refused_and_costs_no_order() {
    let during = Duration::from_secs(number("OVERLOAD", OVERLOAD));
    let load = Arc::new(Load::start(false).await);
    let mut alone = Vec::new();
    for n in 0..20 {
        alone.extend(load.one(&format!("alone-{n}")).await);
    }
    alone.sort_unstable();
    let p50 = alone[alone.len() / 2];
    // As many orders as there is time for. A tenth is sent first, to find this number.
    let mut capacity = 10.0;
    for (name, share) in [("few", 10.0), ("enough", 2.0)] {
        let orders = (capacity * during.as_secs_f64() / share) as u64;
        let begin = Instant::now();
        load.steady(name, orders).await;
        rest(&load.http, &load.up, &load.record, PATIENCE).await;
        capacity = rate(orders, begin);
    }
    println!("without load p50 {p50:.1?}, capacity {capacity:.0} orders a second");
    let answers = offer(&load, capacity * TIMES, during).await;
    let begin = Instant::now();
    println!("{:.0} a second for {during:?}: {answers:?}", capacity * TIMES);
    assert!(answers.other.lock().unwrap().is_empty(), "neither accepted nor refused");
    answers.check(capacity * TIMES * during.as_secs_f64());
    let (mut normal, mut n) = (0, 0);
    while normal < IN_A_ROW {
        n += 1;
        let took = load.one(&format!("probe-{n}")).await;
        normal = if took.is_some_and(|took| took <= p50 * NORMAL) { normal + 1 } else { 0 };
        assert!(begin.elapsed() < RECOVERY, "it is not back to normal: {took:?}, {p50:?} without load");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    println!("back to normal {:.1?} after the load, at the {n}th order", begin.elapsed());
    let load = Arc::into_inner(load).expect("all have answered");
    let checked = load.end().await;
    checked.assert_clean("no faults");
    assert_eq!(checked.states.keys().copied().collect::<Vec<_>>(), ["Processed"], "{:?}", checked.reasons);
    // Accepted orders make progress: hardly any attempt expires.
    let (expired, orders) = (checked.expired, checked.spans.len());
    assert!(expired * 10 < orders, "{expired} attempts of {orders} orders ran out of time");
}
