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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pools::Layout;
    use crate::queues::passages;
    use crate::task::Priority;
    use crate::workflow::file::{Known, parse};

    fn workflow(timeouts: [&str; 2]) -> Workflow {
        let step = |name: &str, agent: &str, timeout: &str| {
            format!("[[step]]\nname = \"{name}\"\nagent = \"{agent}\"\ntimeout = \"{timeout}\"\n")
        };
        let text = format!("name = \"w\"\n{}{}", step("a", "x", timeouts[0]), step("b", "y", timeouts[1]));
        parse("w.toml", &text, Known { agents: &["x", "y", "z"], inputs: &[] }).unwrap()
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millisecond(1_000_000_000 + ms).unwrap()
    }

    fn ms(ms: i64) -> SignedDuration {
        SignedDuration::from_millis(ms)
    }

    fn waits(all: &[(&str, i64)]) -> BTreeMap<String, Waits> {
        let of = |ms: i64| Waits::from([("t".to_owned(), Wait { ms, at: at(0) })]);
        all.iter().map(|(queue, ms)| ((*queue).to_owned(), of(*ms))).collect()
    }

    const MOST: SignedDuration = SignedDuration::from_secs(30);

    // J1: half of the shortest timeout, within bounds.
    #[test]
    fn the_limit_is_half_of_the_shortest_timeout_within_bounds() {
        assert_eq!(limit(&workflow(["5s", "60s"]), MOST), Some(ms(2500)));
        assert_eq!(limit(&workflow(["2h", "1h"]), MOST), Some(MOST));
        assert_eq!(limit(&workflow(["100ms", "60s"]), MOST), Some(MIN_LIMIT));
        assert_eq!(limit(&workflow(["100ms", "60s"]), ms(200)), Some(MIN_LIMIT));
        assert_eq!(limit(&workflow(["5s", "60s"]), SignedDuration::ZERO), None);
    }

    // J1: the boundary is exact, other agents' queues do not matter, an old note no longer counts.
    #[test]
    fn an_order_is_refused_above_the_limit_in_a_queue_it_passes_and_not_at_it() {
        let w = workflow(["5s", "60s"]);
        let through = passages(&w, Priority::Normal, &Layout::new(), false);
        let refuse = |waits: &BTreeMap<String, Waits>, most, now| super::refuse(&w, "t", &through, waits, most, now);
        let queue = |waits: &[(&str, i64)]| refuse(&self::waits(waits), MOST, at(0)).map(|o| (o.queue, o.age));
        assert_eq!(queue(&[]), None);
        for name in ["scheduler", "replies", "agent-x", "agent-y"] {
            assert_eq!(queue(&[(name, 2500)]), None);
            assert_eq!(queue(&[(name, 2501)]), Some((name.into(), ms(2501))));
        }
        assert_eq!(queue(&[("agent-z", 100_000), ("submissions", 100_000)]), None);
        assert_eq!(queue(&[("agent-x", 3000), ("replies", 9000), ("scheduler", 4000)]).unwrap().0, "replies");
        let old = waits(&[("scheduler", 9000)]);
        for (now, is_refused) in [(-4999, true), (0, true), (4999, true), (5000, false), (-5000, false)] {
            assert_eq!(refuse(&old, MOST, at(now)).is_some(), is_refused, "{now}");
        }
        assert_eq!(refuse(&old, SignedDuration::ZERO, at(0)), None, "switched off");
    }

    // J1, J2, J3: an order is refused for the queues of its own class, and for an agent once all its pools are over.
    #[test]
    fn an_order_is_refused_for_its_own_class_and_when_no_pool_is_left() {
        let w = workflow(["5s", "60s"]);
        let pools = Layout::from([("x".into(), vec!["x".into(), "x-b".into()])]);
        let queue = |priority, of: &[(&str, i64)]| {
            let through = passages(&w, priority, &pools, true);
            refuse(&w, "t", &through, &waits(of), MOST, at(0)).map(|overload| overload.queue)
        };
        assert_eq!(queue(Priority::High, &[("scheduler", 9000), ("agent-y", 9000), ("agent-y-low", 9000)]), None);
        assert_eq!(queue(Priority::High, &[("scheduler-high", 9000)]).as_deref(), Some("scheduler-high"));
        assert_eq!(queue(Priority::Low, &[("scheduler", 9000)]).as_deref(), Some("scheduler"));
        assert_eq!(queue(Priority::Low, &[("agent-y-low", 9000)]).as_deref(), Some("agent-y-low"));
        assert_eq!(queue(Priority::Normal, &[("agent-x", 9000)]), None);
        let both = [("agent-x", 9000), ("agent-x-b", 4000)];
        assert_eq!(queue(Priority::Normal, &both).as_deref(), Some("agent-x-b"));
    }

    // J2: each tenant is refused for its own backlog; beyond a number of tenants all are.
    #[test]
    fn a_tenant_is_refused_for_its_own_backlog_only() {
        let w = workflow(["5s", "60s"]);
        let through = passages(&w, Priority::Normal, &Layout::new(), false);
        let refused = |waits: &Waits, tenant: &str, now: i64| {
            let all = BTreeMap::from([("scheduler".to_owned(), waits.clone())]);
            refuse(&w, tenant, &through, &all, MOST, at(now)).is_some()
        };
        let wait = |ms, now| Wait { ms, at: at(now) };
        let mut known = noted(None, "a", wait(9000, 0)).unwrap();
        assert!(refused(&known, "a", 0) && !refused(&known, "b", 0));
        assert_eq!(noted(Some(&known), "a", wait(9500, 999)), None, "just noted");
        assert!(noted(Some(&known), "a", wait(9500, 1000)).is_some());
        known = noted(Some(&known), "b", wait(4000, 999)).unwrap();
        assert!(refused(&known, "a", 1000) && refused(&known, "b", 1000));
        known = noted(Some(&known), "b", wait(4000, 5001)).unwrap();
        assert!(!refused(&known, "a", 5001), "its note is old");
        for n in 0..MAX_TENANTS {
            known = noted(Some(&known), &format!("t{n}"), wait(3000, 5002)).unwrap();
        }
        assert_eq!(known, Waits::from([(EVERYBODY.to_owned(), wait(4000, 5002))]));
        assert!(refused(&known, "a", 5003));
        assert_eq!(noted(Some(&known), "new", wait(3000, 5003)), None);
        assert_eq!(noted(Some(&known), "new", wait(3000, 11_000)).unwrap().keys().collect::<Vec<_>>(), ["new"]);
    }

    // J1, D3: what waits in a long queue is left to it, for as long as the note about it counts.
    #[test]
    fn a_sweep_keeps_back_as_far_as_messages_wait() {
        let noted = waits(&[("q", 40_000), ("long", 3_600_000)]);
        let lag = |queue, grace, now| sweep_lag(noted.get(queue), ms(grace), at(now));
        assert_eq!(lag("q", 0, 0), ms(40_001));
        assert_eq!(lag("q", 0, 4999), ms(45_000), "what came before the message that waited is through");
        assert_eq!(lag("q", 0, -1000), ms(39_001), "a clock may be behind");
        assert_eq!(lag("q", 0, 5000), SignedDuration::ZERO, "old");
        assert_eq!(lag("q", 30_000, 0), ms(10_001), "nothing is due before its grace");
        assert_eq!(lag("q", 60_000, 0), SignedDuration::ZERO);
        assert_eq!(lag("long", 0, 0), MAX_LAG);
        assert_eq!(lag("none", 0, 0), SignedDuration::ZERO);
    }

    // A4: a caller learns when to come back, and not all learn the same.
    #[test]
    fn callers_are_spread_over_as_long_again_as_work_waits() {
        let seconds = |ms: i64| {
            let overload = Overload { queue: "scheduler".into(), age: SignedDuration::from_millis(ms) };
            (0..500).map(move |n| overload.retry_after_s(&Id::derive("t", &n.to_string()))).collect::<Vec<_>>()
        };
        for (ms, least, most) in [(1001, 2, 4), (9000, 10, 20), (3_600_000, 60, 120)] {
            let all = seconds(ms);
            assert_eq!((all.iter().min().copied(), all.iter().max().copied()), (Some(least), Some(most)), "{ms}");
        }
    }
}
