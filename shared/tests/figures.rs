//! Figures that the documentation promises, in virtual time. `-- --nocapture` prints them.
//!
//! Method: as in `transitions.rs`, with sweeps a minute apart that begin at any second of it, and queues that deliver within the second.

use crate::language::{bench, claimed};
use crate::support::*;
use serde_json::json;
use shared::decision::{Event, Kept, Progress};
use shared::message::{Effect, Outcome};
use shared::step::State;

const SECOND: i64 = 1000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// Sweeps from `from` on, a minute apart, until one counts an expired attempt; when that is.
fn found(bench: &mut Bench, from: i64) -> i64 {
    for now in (from..).step_by(usize::try_from(MINUTE).unwrap()) {
        if bench.at(now).supervise().expired == 1 {
            return now;
        }
    }
    unreachable!("the sweeps do not end")
}

// L6: the worker of a step that may take twelve hours dies. Two heartbeats and a sweep later its step is tried again.
#[test]
fn a_dead_worker_of_a_long_step_is_found_within_two_heartbeats_and_a_sweep() {
    let (heartbeat, mut latest) = (10 * MINUTE, 0);
    for offset in (0..60).map(|n| n * SECOND) {
        let mut bench = bench("a | timeout = \"12h\"; heartbeat = \"10m\"", json!({}));
        bench.task.secret = Some("s".into());
        bench.wake(0);
        // As the agents in Rust and Python do.
        for n in 1..=36 {
            bench.at(n * heartbeat / 2).on(&Event::Beat {
                step: "a".into(),
                attempt: 1,
                progress: Progress::default(),
            });
        }
        let died = bench.now;
        latest = latest.max(found(&mut bench, died + offset) - died);
        assert!(matches!(bench.task.steps[0].state, State::Pending { .. }));
    }
    println!("found at most {} s after its last heartbeat, which are {} s apart", latest / SECOND, heartbeat / SECOND);
    assert!(latest <= 2 * heartbeat + MINUTE + SECOND, "{latest}");
}

// L4: a cancel does not wait for the seven days of the service that accepted the work, only for the call that it may not have begun.
#[test]
fn the_undo_of_accepted_work_begins_within_the_complete_by_of_its_call() {
    let steps = "a | timeout = \"60s\"; accept = { within = \"7d\" }; undo = { agent = \"x\" }";
    let mut longest = 0;
    for cancelled in [3 * SECOND, 30 * SECOND, MINUTE, 2 * DAY, 7 * DAY - SECOND] {
        let mut bench = bench(steps, json!({}));
        bench.task.secret = Some("s".into());
        bench.wake(0);
        bench.at(2 * SECOND).answered("a", Outcome::Accepted { output: json!({"id": "j7"}) }).at(cancelled).cancel();
        let delay = bench.effects.iter().find_map(|effect| match effect {
            Effect::Wake(_, delay) => i64::try_from(delay.as_millis()).ok(),
            _ => None,
        });
        bench.at(cancelled + delay.unwrap()).woken();
        assert!(matches!(bench.task.steps[0].state, State::UndoProcessing { .. }), "{:?}", bench.task.steps[0].state);
        println!("cancelled {} s after the call, undone {} s later", cancelled / SECOND, delay.unwrap() / SECOND);
        longest = longest.max(delay.unwrap());
        assert!(bench.now <= (MINUTE + SECOND).max(cancelled), "the call's CompleteBy and the skew");
    }
    assert!(longest <= MINUTE);
}

// L1: sweeps, their delayed messages and the whole seconds of a queue: a wait of any length ends within a second of its time.
#[test]
fn a_wait_of_any_length_ends_within_a_second() {
    let mut latest = 0;
    for (words, wait) in [
        ("3s", 3 * SECOND),
        ("2m", 2 * MINUTE),
        ("15m", 15 * MINUTE),
        ("15m 1s", 15 * MINUTE + SECOND),
        ("16m", 16 * MINUTE),
        ("17m", 17 * MINUTE),
        ("6h", 6 * HOUR),
        ("30d", 30 * DAY),
    ] {
        let mut worst = 0;
        for offset in (0..60).map(|n| n * SECOND + 7 * n) {
            let mut bench = claimed(&format!("a | wait = \"{words}\"\nb | after = [\"a\"]"), json!({}));
            let mut messages: Vec<(i64, u64, u32)> = Vec::new();
            let mut sweeps =
                (offset..).step_by(usize::try_from(MINUTE).unwrap()).skip_while(|at| *at < wait - 20 * MINUTE);
            let mut sweep = sweeps.next().unwrap();
            while matches!(bench.task.steps[0].state, State::Waiting { .. }) {
                for effect in &bench.effects {
                    if let Effect::Wake(wake, delay) = effect {
                        let seconds = i64::try_from(delay.as_millis()).unwrap().div_euclid(SECOND)
                            + i64::from(delay.as_millis() % 1000 > 0);
                        messages.push((bench.now + seconds * SECOND, wake.seen, wake.hops));
                    }
                }
                messages.sort_unstable();
                match messages.first().copied().filter(|(at, ..)| *at <= sweep) {
                    Some((at, seen, hops)) => {
                        messages.remove(0);
                        bench.at(at.max(bench.now)).on(&Event::Wake { seen, hops });
                    }
                    None => {
                        let is_due = bench.task.due.is_some_and(|due| due <= at(sweep));
                        bench.at(sweep.max(bench.now));
                        match is_due {
                            true => _ = bench.supervise(),
                            false => bench.effects.clear(),
                        }
                        sweep = sweeps.next().unwrap();
                    }
                }
            }
            assert!(bench.now >= wait, "never too early");
            worst = worst.max(bench.now - wait);
        }
        println!("a wait of {words}: at most {worst} ms late");
        latest = latest.max(worst);
    }
    assert!(latest <= SECOND, "{latest} ms");
}

// C1: the same with the look-ahead's message lost each time: within a sweep and the grace of its Wake.
#[test]
fn a_wait_whose_messages_are_lost_ends_within_a_sweep() {
    for offset in (0..60).map(|n| n * SECOND) {
        let mut bench = claimed("a | wait = \"6h\"\nb | after = [\"a\"]", json!({}));
        let mut now = 6 * HOUR - 5 * MINUTE + offset;
        loop {
            bench.at(now).supervise();
            if bench.effects.iter().any(|effect| matches!(effect, Effect::Wake(_, delay) if delay.is_zero())) {
                break;
            }
            assert_eq!(bench.kept, Some(Kept::NothingReady));
            now += MINUTE;
        }
        assert!(now <= 6 * HOUR + MINUTE, "{now}");
    }
}
