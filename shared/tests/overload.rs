//! When new orders are refused, for which queue, and for how long, as tables.

use crate::support::{self, at};
use shared::order::Id;
use shared::overload::*;
use shared::pools::Layout;
use shared::queues::passages;
use shared::task::Priority;
use shared::time::SignedDuration;
use shared::workflow::Workflow;
use std::collections::BTreeMap;

fn workflow(timeouts: [&str; 2]) -> Workflow {
    let step = |name: &str, agent: &str, timeout: &str| {
        format!("[[step]]\nname = \"{name}\"\nagent = \"{agent}\"\ntimeout = \"{timeout}\"\n")
    };
    support::workflow(&format!("name = \"w\"\n{}{}", step("a", "x", timeouts[0]), step("b", "y", timeouts[1])))
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
    let refuse =
        |waits: &BTreeMap<String, Waits>, most, now| shared::overload::refuse(&w, "t", &through, waits, most, now);
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
