//! Goal: an event that was answered survives `kill -9` and counts once, whether it came before its step waited or after.
//! Method: the real binary on real files; clients send events over HTTP and repeat each until it is accepted, while the process is
//! killed at random moments and restarted on the same data. Then every order is read over HTTP and compared with what was sent.
//!
//! `EVENTS=n` sets their number, `KILLS=n` that of the kills, and `SEED=n` repeats the moments of the kills. A long run takes the
//! binary of `cargo build --release -p stepwarden` by `STEPWARDEN=target/release/stepwarden`.

mod common;

use common::client::{ended, insist};
use common::{Up, folder, free_ports, number};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Events in `cargo test`.
const EVENTS: u64 = 5_000;
/// Kills in `cargo test`.
const KILLS: u64 = 10;
/// Steps of an order, each of which waits for an event of its own name. An order keeps at most 16 events.
const STEPS: u64 = 10;
/// Clients, each with one order at a time, so that the load adapts to the machine.
const CLIENTS: usize = 24;
/// One answer in this number is taken for lost: the client sends the event again.
const LOST_EVERY: u64 = 11;
/// Something is accepted, and an order ends, within this time on any machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The events of an order in the order in which they are sent: each with an odd number comes before its step waits.
fn sent() -> impl Iterator<Item = u64> {
    (0..STEPS).filter(|step| step % 2 == 1).chain((0..STEPS).filter(|step| step % 2 == 0))
}

fn workflow() -> String {
    let step = |n: u64| {
        let after = if n == 0 { "[]".to_owned() } else { format!("[\"s{}\"]", n - 1) };
        format!("[[step]]\nname = \"s{n}\"\nafter = {after}\nevent = \"e{n}\"\ntimeout = \"7d\"\n")
    };
    format!("name = \"asks\"\n{}", (0..STEPS).map(step).collect::<String>())
}

/// A client of the system, which may be down.
struct Client {
    http: reqwest::Client,
    url: String,
    /// Requests that were sent again.
    again: AtomicU64,
    /// Events whose first answer said 202.
    accepted: AtomicU64,
}

impl Client {
    /// Repeats a request until it is accepted, and once more if `is_lost`.
    async fn post(&self, path: &str, key: &str, body: &Value, is_lost: bool) -> Value {
        let mut last = Value::Null;
        for _ in 0..1 + u8::from(is_lost) {
            let post = || self.http.post(format!("{}{path}", self.url)).header("idempotency-key", key).json(body);
            let (answer, again) = insist(202, PATIENCE, post).await;
            self.again.fetch_add(again, Ordering::Relaxed);
            last = answer;
        }
        last
    }

    /// Submits order `n` and sends all its events. The order's id.
    async fn order(&self, n: u64) -> String {
        let order =
            self.post("/orders", &format!("order-{n}"), &json!({"workflow": "asks", "input": {"n": n}}), false).await;
        let id = order["order_id"].as_str().expect("an id").to_owned();
        for step in sent() {
            let number = n * STEPS + step;
            let is_lost = number.is_multiple_of(LOST_EVERY);
            let path = format!("/orders/{id}/events/e{step}");
            self.post(&path, &format!("k{number}"), &json!({"number": number}), is_lost).await;
            self.accepted.fetch_add(1, Ordering::Relaxed);
        }
        id
    }
}

/// What is wrong with order `n`: each of its events is taken by its own step, and once.
fn faults(n: u64, order: &Value) -> Option<String> {
    let taken = order["events"].as_array().into_iter().flatten();
    let taken: Vec<_> = taken.map(|event| (event["key"].as_str(), event["step"].as_str())).collect();
    let keys: Vec<_> = (0..STEPS).map(|step| (format!("k{}", n * STEPS + step), format!("s{step}"))).collect();
    let mut wanted: Vec<_> = keys.iter().map(|(key, step)| (Some(key.as_str()), Some(step.as_str()))).collect();
    let mut found = taken.clone();
    found.sort_unstable();
    wanted.sort_unstable();
    let outputs: Vec<_> = order["steps"].as_array().into_iter().flatten().map(|step| step["output"].clone()).collect();
    let data: Vec<_> = (0..STEPS).map(|step| json!({"number": n * STEPS + step})).collect();
    (order["state"] != "Processed" || found != wanted || outputs != data).then(|| format!("order {n}: {order}"))
}

// A1, A4: no event that was answered is lost, and none is taken twice, whatever moment the process is killed at.
#[tokio::test(flavor = "multi_thread")]
async fn answered_events_survive_kills_and_count_once() {
    let seed = number("SEED", u64::from(std::process::id()));
    let (events, kills) = (number("EVENTS", EVENTS), number("KILLS", KILLS));
    let orders = events.div_ceil(STEPS).max(1);
    println!("SEED={seed} EVENTS={events} KILLS={kills}");
    let dir = folder("asks", &[("asks", &workflow())]);
    let port = free_ports(1);
    let start = || Up::start_killable(dir.path(), port, "asks", &[]);
    let mut up = start();
    let (http, url) = (common::http(), up.url.clone());
    let client = Arc::new(Client { http, url, again: AtomicU64::new(0), accepted: AtomicU64::new(0) });
    let (begin, mut random) = (Instant::now(), fastrand::Rng::with_seed(seed));

    let all = Arc::clone(&client);
    let one = move |n| {
        let client = Arc::clone(&all);
        async move { (n, tokio::spawn(async move { client.order(n).await }).await.expect("a client")) }
    };
    let sends = stream::iter(0..orders).map(one).buffer_unordered(CLIENTS).collect::<BTreeMap<_, _>>();
    let sends = tokio::spawn(sends);
    for kill in 0..kills {
        // Somewhere in the next part of the events.
        let at = (kill * events + random.u64(0..events)) / kills;
        while client.accepted.load(Ordering::Relaxed) < at && !sends.is_finished() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        up.kill();
        up = start();
        // A long run says how far it is.
        if (kill + 1) % kills.div_ceil(10) == 0 {
            let accepted = client.accepted.load(Ordering::Relaxed);
            println!("{accepted} events, {} kills, {:.1?}", kill + 1, begin.elapsed());
        }
    }
    let ids = sends.await.expect("all clients");
    let sent_in = begin.elapsed();

    let look = |(n, id): (u64, String)| {
        let client = &client;
        async move { faults(n, &ended(&client.http, &client.url, &id, PATIENCE).await) }
    };
    let bad: Vec<String> =
        stream::iter(ids).map(look).buffer_unordered(CLIENTS).filter_map(|bad| async { bad }).collect().await;
    assert!(bad.is_empty(), "{} of {orders} orders; the first: {}; SEED={seed}", bad.len(), bad[0]);
    let (accepted, again) = (client.accepted.load(Ordering::Relaxed), client.again.load(Ordering::Relaxed));
    assert_eq!(accepted, orders * STEPS);
    println!(
        "{accepted} events, {kills} kills, {again} requests sent again, {sent_in:.1?} to send: 0 lost, 0 taken twice"
    );
}
