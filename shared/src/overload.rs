//! Overload: whether a new order is refused because messages already wait too long.
//!
//! If messages wait about as long as a step's timeout, attempts expire before they begin, and each of them lengthens
//! the queue. So orders are refused well before that. Schedulers measure how long arriving messages waited, and note it
//! while it exceeds the limit; submit reads the notes. Under normal load nothing is written.

use crate::order::Id;
use crate::time::{SignedDuration, Timestamp};
use crate::workflow::Workflow;
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An older note no longer counts. Long enough for the interval of notes, late reads ([`crate::engine::AGENTS_FOR`])
/// and clock skew. No longer, because orders are refused for this long after the last note.
pub const FRESH: SignedDuration = SignedDuration::from_secs(5);
/// Schedulers write a queue's note at most this often, if they see each other's.
pub const NOTE_EVERY: SignedDuration = SignedDuration::from_secs(1);
/// The lowest limit; a cold start takes this long.
pub const MIN_LIMIT: SignedDuration = SignedDuration::from_secs(1);
/// The usual `OVERLOAD_AGE_MS`.
pub const USUAL: SignedDuration = SignedDuration::from_secs(30);
/// Longest lag of a sweep: every task is recovered within this time, whatever the notes say.
pub const MAX_LAG: SignedDuration = SignedDuration::from_mins(15);
/// Longest wait asked of a caller, in seconds, before the spread.
const MAX_RETRY_AFTER_S: u32 = 60;

/// How long messages of one queue wait, by tenant. In a queue no tenant waits behind another's backlog, so none is
/// refused because of another. More than [`MAX_TENANTS`] share one note, under [`EVERYBODY`].
pub type Waits = BTreeMap<String, Wait>;
/// Most tenants with separate notes.
pub const MAX_TENANTS: usize = 8;
/// Means all tenants; no tenant has this name.
pub const EVERYBODY: &str = "*";

/// The new notes about a queue in which a message of `tenant` waited too long; `known` are the present ones. `None` if
/// that was just noted.
#[must_use]
pub fn noted(known: Option<&Waits>, tenant: &str, wait: Wait) -> Option<Waits> {
    let fresh = known.into_iter().flatten().filter(|(_, known)| known.counts(wait.at));
    let mut waits: Waits = fresh.map(|(name, known)| (name.clone(), *known)).collect();
    let name = if waits.contains_key(EVERYBODY) { EVERYBODY } else { tenant };
    if waits.get(name).is_some_and(|last| last.at.duration_until(wait.at).abs() < NOTE_EVERY) {
        return None;
    }
    waits.insert(name.to_owned(), wait);
    if waits.len() > MAX_TENANTS {
        let longest = waits.values().map(|wait| wait.ms).max().unwrap_or(wait.ms);
        waits = Waits::from([(EVERYBODY.to_owned(), Wait { ms: longest, at: wait.at })]);
    }
    Some(waits)
}

/// How long messages of one queue had waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wait {
    /// From sending to receipt, in milliseconds.
    pub ms: i64,
    /// When they were received (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub at: Timestamp,
}

impl Wait {
    /// Whether it is neither old nor in the future.
    fn counts(&self, now: Timestamp) -> bool {
        self.at.duration_until(now).abs() < FRESH
    }
}

/// Why a new order is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overload {
    /// The queue that is too long, by its name without the prefix.
    pub queue: String,
    /// How long its messages wait.
    pub age: SignedDuration,
}

impl Overload {
    /// When to submit the order `id` again, in seconds: about as long as messages now wait, spread by the id so that
    /// refused orders do not all return at once.
    #[must_use]
    pub fn retry_after_s(&self, id: &Id) -> u32 {
        let least = u32::try_from(self.age.as_secs()).unwrap_or(u32::MAX).saturating_add(1).min(MAX_RETRY_AFTER_S);
        least + id.spread() % (least + 1)
    }
}

/// How long messages may wait before orders of `workflow` are refused: half of its shortest timeout, at most `most`, at
/// least [`MIN_LIMIT`]. `None` if `most` is zero: no order is ever refused.
#[must_use]
pub fn limit(workflow: &Workflow, most: SignedDuration) -> Option<SignedDuration> {
    (most > SignedDuration::ZERO).then(|| (workflow.shortest_timeout() / 2).min(most).max(MIN_LIMIT))
}

/// The overload that refuses another order of `workflow` by `tenant`, if any, from the notes about the queues it passes
/// through ([`passages`](crate::queues::passages)). The longest wait decides; of several pools, the shortest.
#[must_use]
pub fn refuse(
    workflow: &Workflow,
    tenant: &str,
    passages: &[Vec<String>],
    waits: &BTreeMap<String, Waits>,
    most: SignedDuration,
    now: Timestamp,
) -> Option<Overload> {
    let limit = limit(workflow, most)?;
    let over = |queue: &String| {
        let of = [tenant, EVERYBODY].into_iter().filter_map(|name| waits.get(queue)?.get(name));
        let age = of.filter(|wait| wait.counts(now)).map(|wait| SignedDuration::from_millis(wait.ms)).max()?;
        (age > limit).then(|| Overload { queue: queue.clone(), age })
    };
    // One pool within the limit is enough.
    let closed = passages.iter().filter_map(|queues| {
        let all: Option<Vec<Overload>> = queues.iter().map(over).collect();
        all?.into_iter().min_by_key(|overload| overload.age)
    });
    closed.max_by_key(|overload| overload.age)
}

/// How far back from now a sweep leaves out tasks with their first `due`. Their first Wakes wait in a queue that is
/// known to be long, and new Wakes would only lengthen it. `waits` are the notes about that queue; `grace` is the
/// shortest time from submission to a first `due`. Zero if no note counts.
#[must_use]
pub fn sweep_lag(waits: Option<&Waits>, grace: SignedDuration, now: Timestamp) -> SignedDuration {
    let fresh = waits.into_iter().flat_map(Waits::values).filter(|wait| wait.counts(now));
    // Messages sent before the noted one have arrived; tasks of later ones are due one grace after it.
    let behind = fresh.map(|wait| SignedDuration::from_millis(wait.ms).saturating_add(wait.at.duration_until(now)));
    let lag = behind.max().map(|lag| lag.saturating_sub(grace).saturating_add(SignedDuration::from_millis(1)));
    lag.unwrap_or_default().clamp(SignedDuration::ZERO, MAX_LAG)
}
