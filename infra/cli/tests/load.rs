//! Goal: a long load loses nothing. Method: the real binary on files, in a separate process; this process sends the load
//! over HTTP. Then the record of the run is checked against the rules of every history. `tests/overload.rs` has more
//! load than the system can handle, in virtual time.
//!
//! `ORDERS=n` makes the load longer, and `SEED=n` draws other faults for it.

mod common;

use common::client::rest;
use common::record::{Checked, Record, depth, keep_saves};
use common::{NORTHWIND, Up, folder, number};
use futures::future::join_all;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The reference workflow.
const ORDER: &str = include_str!("../../../workflows/order.toml");
/// Orders of the long load in `cargo test`.
const ORDERS: u64 = 100;
/// Maximum number of connections of the load.
const CONNECTIONS: usize = 512;
/// Concurrent submissions at the system's capacity, and the number of Wakes that may wait meanwhile.
const SUBMITTERS: usize = 32;
const DEPTH: u64 = 64;
/// One order in this number has a queue for its notices.
const TOLD_EVERY: u64 = 10;
/// If no order ends within this time, something is stuck.
const PATIENCE: Duration = Duration::from_secs(300);

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
        let dir = folder("workflows", &[("order", ORDER)]);
        let http = common::client().timeout(PATIENCE).pool_max_idle_per_host(CONNECTIONS).build().unwrap();
        let durability = if is_quick { "process" } else { "power" };
        let up =
            Up::start(dir.path(), &["--port", "0", "--data", "data", "--durability", durability, "--rate-limit", "0"]);
        keep_saves(&dir.path().join("data"));
        let record = Record::create(dir.path().join("record.db"));
        Self { http, up, record, inputs: NORTHWIND.lines().collect(), dir }
    }

    /// Submits order `n`. If it is refused for now: the status, and when to retry.
    async fn submit(&self, key: &str, n: u64) -> Option<(u16, Duration)> {
        let input = self.inputs[usize::try_from(n).unwrap() % self.inputs.len()];
        let queue = if n.is_multiple_of(TOLD_EVERY) { r#","reply_queue":"default""# } else { "" };
        let body = format!(r#"{{"workflow":"order","input":{input}{queue}}}"#);
        let post = self.http.post(format!("{}/orders", self.up.url)).header("idempotency-key", key);
        let post = post.header("content-type", "application/json").body(body);
        let answer = post.send().await.unwrap_or_else(|error| panic!("{key}: {error:?}"));
        let status = answer.status().as_u16();
        let again = answer.headers().get("retry-after").and_then(|s| s.to_str().ok()?.parse().ok()).filter(|s| *s > 0);
        let body = answer.text().await.unwrap_or_default();
        match (status, again) {
            (202, _) => {
                let answer: Value = serde_json::from_str(&body).unwrap();
                self.record.accepted(answer["order_id"].as_str().unwrap());
                None
            }
            (429 | 503, Some(seconds)) => Some((status, Duration::from_secs(seconds))),
            _ => panic!("{key}: {status} {body}"),
        }
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
                    let Some((status, after)) = self.submit(&key, n).await else { break };
                    last = format!("the last answer was {status}, come back after {after:?}");
                    check(&last);
                    tokio::time::sleep(after).await;
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
            "{}, {} attempts expired; memory of the system at most {memory:?} MB, of this program {:?} MB; checked in {:.1} s",
            checked.words(),
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
    let seconds = begin.elapsed().as_secs_f64();
    println!("{orders} orders in {seconds:.1} s, {:.0} a second", orders as f64 / seconds);
    let checked = load.end().await;
    checked.assert_clean(&format!("SEED={seed}"));
    assert_eq!(checked.spans.len() as u64, orders);
}
