//! Goal: requests go to the first healthy pool, whatever happens to the pools, and what is learned about them is right.
//! Method: tables of health and news, and of pools and failures; then whole attempts of tasks on the bench.

use crate::support::{Bench, act, at, done, secs};
use jiff::SignedDuration;
use serde_json::json;
use shared::decision::{Event, What};
use shared::message::{Outcome, Reply};
use shared::pools::{Health, LEFT_FOR, LONGEST, Layout, MISSES, News, Pools, SHORTEST};
use shared::task::Priority;

/// One step that may fail often, with an undo.
fn patient() -> Bench {
    crate::language::bench("a | retry = { max = 9, backoff = [\"1s\"] }; undo = { agent = \"x\" }", json!({}))
}

fn ms(ms: i64) -> SignedDuration {
    SignedDuration::from_millis(ms)
}

fn well(misses: u32) -> Health {
    Health::Well { misses }
}

fn left(until: i64, wait: SignedDuration) -> Health {
    Health::Left { until: at(until), wait }
}

fn probed(until: i64, wait: SignedDuration) -> Health {
    Health::Probed { until: at(until), wait }
}

fn answered(queued: i64) -> News {
    News::Answered { queued: ms(queued), timeout: secs(10) }
}

// J3: what an attempt says of its pool, at every boundary.
#[test]
fn health_follows_the_news() {
    let held = |s| News::Held(secs(s));
    let table = [
        // The breaker's own time, to the millisecond.
        (well(0), held(7), 0, left(7_000, secs(7))),
        (well(2), held(0), 0, left(0, SHORTEST)),
        (left(5_000, secs(5)), held(7), 1_000, left(8_000, secs(7))),
        // A shorter word does not shorten a longer one.
        (left(9_000, secs(9)), held(1), 1_000, left(9_000, SHORTEST)),
        (probed(5_000, secs(5)), held(7), 1_000, left(8_000, secs(7))),
        // Half of the attempt's time in the queue is too long.
        (well(2), answered(4_999), 0, well(0)),
        (well(2), answered(5_000), 0, left(5_000, secs(5))),
        (probed(5_000, secs(5)), answered(6_000), 1_000, left(7_000, secs(6))),
        // Once it is left, an answer counts from the time of the next probe on.
        (left(5_000, secs(5)), answered(0), 4_999, left(5_000, secs(5))),
        (left(5_000, secs(5)), answered(0), 5_000, well(0)),
        (probed(5_000, secs(5)), answered(0), 1_000, well(0)),
        // Misses in a row.
        (well(0), News::Missed, 0, well(1)),
        (well(MISSES - 2), News::Missed, 0, well(MISSES - 1)),
        (well(MISSES - 1), News::Missed, 0, left(10_000, LEFT_FOR)),
        (left(5_000, secs(5)), News::Missed, 1_000, left(5_000, secs(5))),
        // Each unsuccessful probe doubles the wait, up to a bound.
        (probed(5_000, secs(5)), News::Missed, 5_000, left(15_000, secs(10))),
        (probed(0, secs(200)), News::Missed, 0, left(300_000, LONGEST)),
    ];
    for (before, news, now, after) in table {
        assert_eq!(before.after(news, at(now)), after, "{before:?} {news:?} at {now}");
    }
}

// J3: a pool that was left gets one request when its time has come, and no other before the next wait is over.
#[test]
fn a_pool_that_was_left_is_probed_by_single_requests() {
    let table = [
        (well(1), 0, true, well(1)),
        (left(5_000, secs(2)), 4_999, false, left(5_000, secs(2))),
        (left(5_000, secs(2)), 5_000, true, probed(7_000, secs(2))),
        (probed(7_000, secs(2)), 6_999, false, probed(7_000, secs(2))),
        (probed(7_000, secs(2)), 7_000, true, probed(9_000, secs(2))),
    ];
    for (before, now, takes, after) in table {
        assert_eq!((before.takes(at(now)), before.sent(at(now))), (takes, after), "{before:?} at {now}");
    }
}

fn layout() -> Layout {
    Layout::from([("x".into(), vec!["x".into(), "x-b".into(), "x-c".into()])])
}

/// A bench whose agent has three pools; `held` are avoided for this many seconds.
fn bench(held: [i64; 3]) -> Bench {
    let mut bench = patient();
    bench.pools = Pools::new(&layout());
    for (n, pool) in ["x", "x-b", "x-c"].into_iter().enumerate().filter(|(n, _)| held[*n] > 0) {
        bench.pools = hold(bench.pools, pool, held[n], u32::try_from(n).unwrap());
    }
    bench
}

/// The same pools after a task whose step failed `failures` times was held back in `pool` for `s` seconds.
fn hold(pools: Pools, pool: &str, s: i64, failures: u32) -> Pools {
    let mut one = patient();
    one.pools = pools;
    one.task.steps[0].failures = failures;
    one.wake(0);
    assert_eq!(one.request("a").pool.as_deref().unwrap_or("x"), pool);
    let deferred = Outcome::Deferred { error: "open".into(), retry_after_ms: u64::try_from(s).unwrap() * 1000 };
    one.answered("a", deferred);
    one.pools
}

// J3: the first pool that is well, from the one that the failures lead to; with none that is well the least bad.
#[test]
fn a_request_goes_to_the_first_pool_that_is_well() {
    let table = [
        ([0, 0, 0], 0, 0, "x"),
        ([0, 0, 0], 1, 0, "x-b"),
        ([0, 0, 0], 2, 0, "x-c"),
        ([0, 0, 0], 3, 0, "x"),
        ([5, 0, 0], 0, 4_999, "x-b"),
        ([5, 0, 0], 0, 5_000, "x"),
        ([5, 9, 0], 0, 0, "x-c"),
        ([0, 0, 5], 2, 0, "x"),
        ([0, 5, 0], 1, 0, "x-c"),
        ([9, 5, 7], 0, 0, "x-b"),
        ([9, 5, 7], 2, 0, "x-b"),
        ([7, 7, 7], 0, 0, "x"),
        ([7, 7, 7], 2, 0, "x-c"),
    ];
    for (held, failures, now, pool) in table {
        assert_eq!(bench(held).pools.route("x", failures, at(now)), pool, "{held:?} {failures} at {now}");
    }
    let pools = bench([9, 0, 0]).pools;
    assert_eq!(pools.route("y", 5, at(0)), "y", "an agent with one pool");
    assert!(pools.is_known("x", "x-c") && !pools.is_known("x", "y") && pools.is_known("y", "y"));
}

// J3, D4: after silence the next attempt begins with the next pool, and each of them is recorded with the claim.
#[test]
fn after_silence_the_next_attempt_goes_to_the_next_pool() {
    let mut bench = bench([0; 3]);
    for (attempt, pool) in [(1, "x"), (2, "x-b"), (3, "x-c"), (4, "x")] {
        bench.woken();
        let request = bench.request("a").clone();
        assert_eq!((request.attempt, request.pool.as_deref().unwrap_or("x")), (attempt, pool));
        assert_eq!((request.agent.as_str(), request.idempotency_key.as_str()), ("x", "ord_1:a:do"));
        assert_eq!(bench.task.steps[0].pool.as_deref().unwrap_or("x"), pool);
        bench.at(bench.now + 11_000).supervise();
        bench.now += 1_000;
    }
    let history = shared::view::history(&bench.task, &bench.workflow);
    let told: Vec<_> = history.iter().filter(|e| e.event == "step_started").map(|e| e.detail.as_deref()).collect();
    assert_eq!(told, [None, Some("in pool `x-b`"), Some("in pool `x-c`"), None]);
}

// J3, D9: a request that is sent again goes the way of the first one, whatever was learned since.
#[test]
fn a_repeated_request_goes_to_the_pool_it_was_claimed_for() {
    let mut bench = bench([5, 0, 0]);
    bench.now = 1_000;
    bench.wake(0);
    assert_eq!(bench.request("a").pool.as_deref(), Some("x-b"));
    bench.now = 6_000;
    bench.wake(0);
    assert_eq!(bench.request("a").pool.as_deref(), Some("x-b"));
}

/// Lets one attempt of a new task run out in silence and claims the next one; where the first one went.
fn miss(bench: &mut Bench) -> String {
    let mut one = patient();
    (one.now, one.pools) = (bench.now, std::mem::take(&mut bench.pools));
    one.wake(0);
    let pool = one.request("a").pool.clone().unwrap_or("x".into());
    one.at(one.now + 11_000).supervise();
    one.at(one.now + 1_000).woken();
    assert_ne!(one.request("a").pool.as_deref().unwrap_or("x"), pool);
    bench.pools = one.pools;
    pool
}

// J3: misses in a row mark a pool; a probe that is answered brings it back.
#[test]
fn silence_in_a_row_marks_a_pool_until_a_probe_is_answered() {
    let mut bench = bench([0; 3]);
    bench.pools = Pools::new(&Layout::from([("x".into(), vec!["x".into(), "x-b".into()])]));
    for _ in 1..MISSES {
        assert_eq!(miss(&mut bench), "x");
    }
    bench.wake(0);
    assert_eq!(bench.request("a").pool, None);
    bench.done("a");
    assert_eq!(bench.pools.health("x", "x"), Some(well(0)), "an answer in between");
    for _ in 0..MISSES {
        assert_eq!(miss(&mut bench), "x");
    }
    // Noticed with the next claim, 12 s after the first one.
    let until = bench.now + 12_000 + 10_000;
    assert_eq!(bench.pools.health("x", "x"), Some(left(until, LEFT_FOR)));
    for (now, pool) in [(until - 1, Some("x-b")), (until, None), (until + 1, Some("x-b"))] {
        let mut one = patient();
        (one.now, one.pools) = (now, bench.pools.clone());
        one.wake(0);
        assert_eq!(one.request("a").pool.as_deref(), pool, "at {now}");
        bench.pools = one.pools.clone();
        if now == until + 1 {
            assert_eq!(one.pools.health("x", "x"), Some(probed(until + 10_000, LEFT_FOR)));
        }
    }
    let mut probe = patient();
    (probe.now, probe.pools) = (until + 10_000, bench.pools.clone());
    probe.wake(0).done("a");
    assert_eq!(probe.pools.health("x", "x"), Some(well(0)));
}

// J3: an agent whose own retries are spent counts as a miss; one that answers, whatever it says, is well.
#[test]
fn spent_retries_count_as_a_miss_and_a_refusal_as_an_answer() {
    let mut bench = bench([0; 3]);
    bench.wake(0);
    let unavailable = Outcome::Unavailable { error: "503".into(), retry_after_ms: None };
    bench.answered("a", unavailable);
    assert_eq!(bench.pools.health("x", "x"), Some(well(1)));
    bench.now += 1_000;
    bench.wake(0);
    assert_eq!(bench.request("a").pool.as_deref(), Some("x-b"));
    // It was settled by a reply: the claim after it counts nothing.
    assert_eq!(bench.pools.health("x", "x"), Some(well(1)));
    bench.failed("a");
    assert_eq!(bench.pools.health("x", "x-b"), Some(well(0)));
}

fn queued(bench: &Bench, queued_ms: u64) -> Event {
    Event::Reply(Reply { queued_ms: Some(queued_ms), ..bench.told("a", done(json!(null))) })
}

// J3: a pool whose queue is too old is left for as long as the request waited, but not for what may wait.
#[test]
fn an_old_queue_sends_the_next_requests_elsewhere() {
    for (priority, queued_ms, after) in [
        (Priority::Normal, 4_999, well(0)),
        (Priority::Normal, 5_000, left(5_000, secs(5))),
        (Priority::High, 5_000, left(5_000, secs(5))),
        (Priority::Low, 9_999, well(0)),
    ] {
        let mut bench = bench([0; 3]);
        bench.task.priority = priority;
        bench.wake(0);
        bench.on(&queued(&bench, queued_ms));
        assert_eq!(bench.pools.health("x", "x"), Some(after), "{priority:?} {queued_ms}");
    }
}

// J3, G1: an undo begins with the first pool again, and climbs by its own failures.
#[test]
fn an_undo_goes_by_its_own_failures() {
    let mut bench = bench([0; 3]);
    bench.wake(0);
    bench.at(11_000).supervise().at(12_000).wake(0);
    assert_eq!(bench.request("a").pool.as_deref(), Some("x-b"));
    bench.cancel();
    bench.at(24_000).supervise().woken();
    assert_eq!(bench.request("a").direction, shared::step::Direction::Undo);
    assert_eq!(bench.request("a").pool, None);
}

// J3: late, repeated and foreign replies teach nothing.
#[test]
fn only_replies_that_count_teach() {
    let mut bench = bench([0; 3]);
    bench.wake(0);
    let deferred = |bench: &Bench, attempt| {
        bench.reply("a", attempt, Outcome::Deferred { error: "open".into(), retry_after_ms: 60_000 })
    };
    let foreign = deferred(&bench, 2);
    bench.on(&foreign);
    assert_eq!(bench.pools.health("x", "x"), Some(well(0)));
    bench.now = 10_000;
    let late = deferred(&bench, 1);
    bench.on(&late);
    assert_eq!(bench.pools.health("x", "x"), Some(well(0)));
    bench.now = 9_999;
    bench.on(&late);
    let known = bench.pools.health("x", "x");
    assert_eq!(known, Some(left(69_999, secs(60))));
    bench.now = 10_000;
    bench.on(&late);
    assert_eq!(bench.pools.health("x", "x"), known);
}

// J3: only a claim sends a request; another save of the same task is no probe.
#[test]
fn a_step_that_was_claimed_before_does_not_count_as_a_probe_again() {
    let mut bench = bench([0; 3]);
    bench.wake(0);
    bench.pools = hold(Pools::new(&layout()), "x", 5, 0);
    bench.at(6_000).on(&act(What::Pause));
    assert!(bench.kept.is_none());
    assert_eq!(bench.pools.health("x", "x"), Some(left(5_000, secs(5))));
}
