//! Shared by these tests: an order with one step, engines whose clock is a number, and the embedded tables.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use shared::engine::{self, Engine};
use shared::order::{Id, Order};
use shared::ports::{Messenger, StateStore};
use shared::task::{Submission, Task};
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::time::Duration;
use stepwarden_aws::{Clients, Config, schema};
use stepwarden_embedded::Endpoints;

pub const SKEW: SignedDuration = SignedDuration::from_secs(1);
pub const LIFE: Duration = Duration::from_secs(60);
pub const BEGIN: i64 = 1_800_000_000_000;
const ONE: &str = r#"
name = "one"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
retry = { max = 3, backoff = ["1s"] }
"#;

pub fn workflow() -> Workflow {
    parse("one.toml", ONE, Known { agents: &["x"], inputs: &[] }).unwrap()
}

/// An order and its task.
pub fn order(id: Id, shard: u16, now: Timestamp) -> (Order, Task) {
    let order = Order {
        idempotency_key: id.0.clone(),
        id: id.clone(),
        tenant: "acme".into(),
        hash: String::new(),
        created_at: now,
        input: json!({}),
    };
    (order, Task::new(Submission { shard, ..contract::submission(id) }, &workflow(), now))
}

/// An instance whose wall clock is `ahead_ms` ahead of `now`.
pub fn engine(
    store: Arc<dyn StateStore>,
    queues: Arc<dyn Messenger>,
    name: &str,
    now: &Arc<AtomicI64>,
    ahead_ms: i64,
) -> Engine {
    let clock = contract::clock(now);
    let ahead = SignedDuration::from_millis(ahead_ms);
    let config = engine::Config { cache: 1, ..contract::settings(name, Arc::new(move || clock() + ahead)) };
    Engine::new(store, queues, config)
}

pub async fn tables() -> (Endpoints, Clients, Config) {
    let endpoints = Endpoints::open(&Default::default()).unwrap();
    let clients = Clients::embedded(endpoints.http_client());
    let names =
        [("ORDERS_TABLE", "orders"), ("STATE_TABLE", "state"), ("QUEUE_PREFIX", "q-"), ("EVENT_BUS", "default")];
    let lookup = |name: &str| names.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let config = Config::from_lookup(lookup).unwrap();
    schema::create(&clients, &config, "q-", 30).await.unwrap();
    (endpoints, clients, config)
}
