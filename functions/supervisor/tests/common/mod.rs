//! Shared by these tests: an order with one step, engines whose clock is a number, and the embedded tables.

use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use shared::decision::Event;
use shared::engine::{self, Engine};
use shared::message::Effect;
use shared::order::{Id, Order};
use shared::ports::{Error, Messenger, StateStore};
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

/// A messenger that drops all messages: only the record counts.
pub struct Dropped;

impl Messenger for Dropped {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        effects.iter().map(|_| Ok(())).collect()
    }
}

pub async fn wake<S: StateStore, M: Messenger>(engine: &Engine<S, M>, ids: &[Id]) {
    let wakes = ids.iter().map(|id| (id.clone(), Event::Wake { seen: 0, hops: 0 })).collect();
    engine.handle(wakes).await.into_iter().for_each(|handled| drop(handled.unwrap()));
}

pub async fn tables() -> (Endpoints, Clients, Config) {
    let endpoints = Endpoints::open(&Default::default()).unwrap();
    let clients = Clients::embedded(endpoints.http_client());
    let needed = ["ORDERS_TABLE", "STATE_TABLE", "QUEUE_PREFIX", "EVENT_BUS"];
    let lookup = |name: &str| needed.contains(&name).then(|| name.to_lowercase());
    let config = Config::from_lookup(lookup).unwrap();
    schema::create(&clients, &config, &config.queue_prefix, 30).await.unwrap();
    (endpoints, clients, config)
}
