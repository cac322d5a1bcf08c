//! What every implementation of the ports must answer: [`store`], [`lease`] and [`messenger`] are the suites, each a
//! function over the port alone. The adapters for AWS, the simulation's ports and the stores that tests use run through
//! them, and so should one of your own. [`memory`] is a store in memory that keeps the contract.
//!
//! A suite panics if an answer is wrong. It creates its own records and leaves them behind: give it an empty store. It
//! waits by tokio's clock for what may lag (an index, a queue), so under a paused clock it takes no time.

pub mod lease;
pub mod memory;
pub mod messenger;
pub mod store;

use serde_json::json;
use shared::engine::{self, Clock};
use shared::order::{Id, Order};
use shared::pools::Layout;
use shared::task::{Priority, Submission, Task};
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// An index lags, and a queue delivers messages at any time: neither takes longer than this.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Repeats `look` until it returns something.
///
/// # Panics
/// After [`PATIENCE`].
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begin.elapsed() < PATIENCE, "still waiting after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A time of the suites, in milliseconds from their own origin.
///
/// # Panics
/// Beyond the calendar.
pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + ms).expect("within the calendar")
}

/// The workflow of every task here: one step, by the agent `payment`.
pub fn workflow() -> Workflow {
    let text = "name = \"contract\"\n[[step]]\nname = \"pay\"\nagent = \"payment\"\ntimeout = \"5s\"\n";
    parse("contract.toml", text, Known { agents: &["payment"], inputs: &[] }).expect("a valid file")
}

/// An order and its task in this part of the due index. The input contains everything that SQS, DynamoDB or JSON might
/// damage.
pub fn pair(name: &str, shard: u16) -> (Order, Task) {
    let id = Id(format!("ord_{name}"));
    let input = json!({
        "text": "Grüße, 日本, \u{1F69A}, \"quoted\", back\\slash, tab\t, null \u{0}, line\n",
        "empty": {"text": "", "list": [], "object": {}},
        "numbers": [0, -1, 9_007_199_254_740_993_i64, 0.1, 1e300, 5.947_193_185_354_195e-3],
        "nothing": null,
    });
    let order = Order {
        id: id.clone(),
        tenant: "tenant".into(),
        idempotency_key: "key".into(),
        hash: "hash".into(),
        created_at: at(0),
        input,
    };
    let submission =
        Submission { tenant: "tenant".into(), reference: Some("reference".into()), shard, ..submission(id) };
    (order, Task::new(submission, &workflow(), at(0)))
}

/// A minimal submission of the tenant `acme`.
pub fn submission(id: Id) -> Submission {
    let (tenant, priority) = ("acme".into(), Priority::Normal);
    Submission { id, tenant, reference: None, reply_queue: None, priority, shard: 0 }
}

/// An engine that takes every order, whose clocks may be a second apart.
pub fn settings(instance: &str, clock: Clock) -> engine::Config {
    engine::Config {
        instance: instance.into(),
        skew: SignedDuration::from_secs(1),
        cache: 100,
        overload_age: SignedDuration::ZERO,
        clock,
        observer: None,
        pools: Layout::new(),
        classes: false,
        shards: 1,
        public_url: "https://orders.example".into(),
    }
}

/// A clock that is a number of milliseconds.
///
/// # Panics
/// Beyond the calendar.
pub fn clock(now: &Arc<AtomicI64>) -> Clock {
    let now = Arc::clone(now);
    Arc::new(move || Timestamp::from_millisecond(now.load(Ordering::Relaxed)).expect("within the calendar"))
}

/// The task as a later save leaves it.
pub fn next(task: &Task, stamp: &str) -> Task {
    Task { version: task.version + 1, stamp: stamp.into(), updated_at: at(5), ..task.clone() }
}
