//! Queues, poison messages and leases.

use crate::{Operator, act};
use edge::problem::{self, Problem};
use edge::query::number;
use edge::whole_number;
use futures::{StreamExt, stream};
use leader::LeaseStore;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::history::shorten;
use shared::ports::Error;
use shared::time::Timestamp;
use stepwarden_aws::config::queue;
use stepwarden_aws::redrive::{Counts, MAX_MOVED, MAX_RATE, Moved, Wish};
use stepwarden_aws::schema::consumed;
use stepwarden_aws::telemetry::Chain;

/// Messages moved by default.
const LIMIT: usize = 100;
/// Queues, or parts of the due index, whose counts one request reads concurrently.
pub(crate) const AT_ONCE: usize = 8;
/// Longest reason why a queue's message counts are unknown, in bytes.
const MAX_WHY: usize = 300;

/// A queue as an operator sees it. All numbers are SQS's own, which are approximate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Queue")]
pub struct QueueRow {
    /// Its name, as in `POST /queues/{name}/redrive`.
    pub name: String,
    /// Messages that are waiting, in flight or delayed. Absent if SQS did not report them.
    #[serde(flatten)]
    pub counts: Option<Counts>,
    /// Messages that were received too often. Absent if the queue has no dead letters, if the queue of the normal class counts
    /// them, and if SQS did not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
    /// Why SQS did not report: the queue is missing, may not be read, or SQS is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl QueueRow {
    /// Messages that a redrive can move back; `None` if another queue counts them or SQS did not report them.
    #[must_use]
    pub fn to_redrive(&self) -> Option<u64> {
        if self.name == queue::SET_ASIDE { self.counts.map(|counts| counts.waiting) } else { self.dead_letters }
    }
}

/// The body of a redrive.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Redrive {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = act::MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = act::MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// Maximum number of messages to move.
    #[schemars(range(min = 1, max = MAX_MOVED))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub limit: Option<usize>,
    /// Move all messages of a dead-letter queue with an SQS task that keeps running after the call.
    #[serde(default)]
    pub all: bool,
    /// Messages that the task moves per second.
    #[schemars(range(min = 1, max = MAX_RATE))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub rate_per_s: Option<i32>,
    /// Move nothing; show the first messages.
    #[serde(default)]
    pub dry_run: bool,
}

/// A lease as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeaseRow {
    /// Name of the lease.
    pub name: String,
    /// The instance that leads, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Fencing token; rises with every change of holder.
    pub token: u64,
    /// Until when (UTC, milliseconds).
    pub expires: Timestamp,
}

/// All queues that something consumes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Queues {
    /// In the order in which they are configured.
    pub queues: Vec<QueueRow>,
}

/// All leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Leases {
    /// One for each group of shards that ever had a leader.
    pub leases: Vec<LeaseRow>,
}

impl Operator {
    /// Moves poison messages back to the queue called `name`.
    ///
    /// # Errors
    /// There is no such queue, a number is out of range, or SQS failed.
    pub async fn redrive(&self, name: &str, wish: &Redrive, by: &str, reason: &str) -> Result<Moved, Problem> {
        let known = self.redriver.queues();
        if !known.iter().any(|queue| queue == name) {
            return Err(problem::no_such_queue(None, format!("`{name}` is not one of {}", known.join(", "))));
        }
        let limit = wish.limit.unwrap_or(LIMIT);
        number("limit", &limit.to_string(), 1, MAX_MOVED)?;
        let rate_per_s = wish.rate_per_s.unwrap_or(50);
        number("rate_per_s", &rate_per_s.to_string(), 1, MAX_RATE as usize)?;
        if wish.all && name == queue::SET_ASIDE {
            return Err(problem::invalid_field(
                "all",
                "works for dead letters only; use `limit` to move messages set aside",
            ));
        }
        tracing::info!(queue = name, operator = by, "moving messages back: {reason}");
        let wish = Wish { limit: (!wish.all).then_some(limit), rate_per_s, dry_run: wish.dry_run };
        self.redriver.redrive(name, wish).await.map_err(|e| act::unavailable(&e))
    }

    /// All queues: those that functions consume, notices, and messages set aside. If SQS does not report one, the
    /// others are still shown.
    pub async fn queues(&self) -> Vec<QueueRow> {
        // The classes of a queue share its dead letters.
        let mut all: Vec<_> = consumed(&self.config).into_iter().map(|q| (q.name == q.of, q.name)).collect();
        all.extend(self.config.reply_queues.names().map(|name| (false, queue::notices(name))));
        all.push((false, queue::SET_ASIDE.to_owned()));
        let one = |(has_dead, name): (bool, String)| async move {
            let (counts, why) = known(self.redriver.counts(&name).await);
            let (dead_letters, why_dead) = match has_dead {
                true => known(self.redriver.waiting(&queue::dead(&name)).await),
                false => (None, None),
            };
            QueueRow { name, counts, dead_letters, why: why.or(why_dead) }
        };
        stream::iter(all).map(one).buffered(AT_ONCE).collect().await
    }

    /// All leases that were ever taken.
    pub async fn leases(&self) -> Result<Vec<LeaseRow>, Problem> {
        let now = self.engine.now();
        let mut rows = Vec::new();
        for name in &self.leases {
            let lease = self.engine.store.read(name).await.map_err(|e| act::unavailable(&e.into()))?;
            rows.extend(lease.map(|lease| LeaseRow {
                name: lease.name,
                holder: Some(lease.holder).filter(|holder| !holder.is_empty() && now < lease.expires),
                token: lease.token,
                expires: lease.expires,
            }));
        }
        Ok(rows)
    }
}

/// What SQS reported, or why it did not.
pub(crate) fn known<T>(answer: Result<T, Error>) -> (Option<T>, Option<String>) {
    match answer {
        Ok(count) => (Some(count), None),
        Err(error) => {
            tracing::warn!(error = %Chain(&error), "a queue's message counts are unknown");
            (None, Some(shorten(&Chain(&error).to_string(), MAX_WHY)))
        }
    }
}
