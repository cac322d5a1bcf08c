//! Goal: whatever goes wrong, every accepted order ends well, and nothing is done twice or untold. Method: the simulation
//! of `infra/simulation`, over a few workflows that use every rule between them; and the same with defects put into the
//! world on purpose, each of which has to be found.
//!
//! `SEED=n cargo test -p stepwarden-tests --test simulation` replays one seed and prints its trace.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use stepwarden_simulation::{Allowed, Class, Defect, RunOptions, Settings, run, shrink, simulate, workflows};

/// Seeds of the quick share; `stepwarden simulate` plays as many as one likes.
const SEEDS: u64 = 1000;
/// One run in so many goes over the real DynamoDB adapter.
const REAL_EVERY: u64 = 50;
/// A defect has to be found within so many seeds.
const WITHIN: u64 = 1500;

fn settings(real_every: u64) -> Settings {
    Settings { workflows: workflows(), real_every }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

#[test]
fn whatever_goes_wrong_every_order_ends_well() {
    if let Ok(seed) = std::env::var("SEED") {
        let options = RunOptions { keeps_trace: true, ..RunOptions::default() };
        let run = run(seed.parse().expect("SEED is a number"), &settings(REAL_EVERY), &options);
        println!("{}", run.trace.join("\n"));
        assert_eq!(run.violations, []);
        return;
    }
    let report = simulate(&settings(REAL_EVERY), 0, SEEDS, threads(), |_| {});
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert!(report.real_runs >= 10);
    assert_eq!(report.missed(), Vec::<Class>::new(), "every class of faults is hit");
    for (act, times) in &report.acts {
        assert!(*times > 0, "nobody managed to {act}");
    }
    for state in ["Processed", "Undone", "Error"] {
        assert!(report.orders[state] > 0, "{state}");
    }
}

// A replay, and a shrunk run, are worth nothing if a seed does not always do the same.
#[test]
fn a_seed_does_the_same_every_time() {
    let settings = settings(20);
    for seed in 0..60 {
        let play = || run(seed, &settings, &RunOptions::default());
        let (first, second) = (play(), play());
        assert_eq!((first.hash, first.fired), (second.hash, second.fired), "seed {seed}");
    }
}

#[test]
fn without_faults_every_order_is_processed_at_once() {
    let settings = settings(7);
    for seed in 0..40 {
        let run = run(seed, &settings, &RunOptions { allowed: Allowed::none(), ..RunOptions::default() });
        assert_eq!(run.violations, []);
        assert_eq!(run.orders.len(), 1);
        for order in run.orders {
            assert!(order.took_ms.is_some_and(|ms| ms < 1000), "seed {seed}: {order:?}");
        }
    }
}

// The check can fail: each of these is found, and few faults are enough to show it.
#[test]
fn every_defect_put_in_on_purpose_is_found() {
    let settings = settings(0);
    let find = |defect: Defect| {
        let options = RunOptions { defect: Some(defect), ..RunOptions::default() };
        let found = (0..WITHIN).map(|seed| run(seed, &settings, &options)).find(|run| !run.violations.is_empty());
        let found = found.unwrap_or_else(|| panic!("{defect:?} was not found within {WITHIN} seeds"));
        let small = shrink(&found, &settings, Some(defect)).expect("it failed");
        let (before, after) = (found.fired.len(), small.run.fired.len());
        println!("{defect:?}: seed {}, {}", found.seed, small.run.violations[0]);
        println!("  {before} faults, {after} of them needed, found by {} runs", small.tried);
        assert!(after <= 10, "{defect:?}: {after} faults");
    };
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..threads() {
            scope.spawn(|| {
                while let Some(defect) = Defect::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    find(*defect);
                }
            });
        }
    });
}
