//! Goal: whatever goes wrong, every accepted order ends well, nothing is done twice, and no notice or alert is missing.
//! Method: the simulation of `tests/simulation`, over a few workflows that together use every rule; and the same with
//! deliberate defects, each of which must be found.
//!
//! `SEED=n cargo test -p stepwarden-tests --test simulation` replays one seed and prints its trace. `MADE=1000..2000` plays
//! the generated workflows with these numbers.

mod made;

use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::thread;
use stepwarden_simulation::{
    ADAPTER_EVERY, Allowed, Class, Defect, RunOptions, Settings, run, share_out, shrink, simulate, workflows,
};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How many failing runs are made small until one needs few faults.
const TRIES: usize = 5;

/// Number of seeds in `cargo test`; `stepwarden simulate` runs any number.
const SEEDS: u64 = 1000;
/// Numbers of the generated workflows that `cargo test` plays.
const MADE: Range<u64> = 0..200;
/// How often each of them is played.
const PLAYS: u64 = 2;
/// A defect must be found within this number of seeds.
const WITHIN: u64 = 1500;

fn settings(real_every: u64) -> Settings {
    let command = format!("stepwarden simulate --adapter-every {real_every}");
    Settings { workflows: workflows(), real_every, command, ..Settings::default() }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(2, usize::from)
}

#[test]
fn whatever_goes_wrong_every_order_ends_well() {
    if let Some(seed) = std::env::var_os("SEED") {
        let options = RunOptions { keeps_trace: true, ..RunOptions::default() };
        let number = seed.to_str().and_then(|text| text.parse().ok());
        let number = number.unwrap_or_else(|| panic!("SEED={}: write a whole number", seed.display()));
        let run = run(number, &settings(ADAPTER_EVERY), &options);
        println!("{}", run.trace.join("\n"));
        assert_eq!(run.violations, []);
        return;
    }
    let report = simulate(&settings(ADAPTER_EVERY), 0, SEEDS, threads(), |_| {});
    println!("{report}");
    assert!(report.is_clean(), "{report}");
    assert_eq!(report.unprocessed, [].into(), "the runs would say little");
    assert!(report.real_runs >= 10 && report.messenger_runs >= 100);
    for (fault, times) in &report.met {
        assert!(*times > 0, "the adapters never met: {fault}");
    }
    for harm in &report.harm {
        assert!(harm.times > 0, "{} never happened", harm.class);
    }
    for (act, times) in &report.acts {
        assert!(*times > 0, "nobody managed to {act}");
    }
    for state in ["Processed", "Undone", "Error"] {
        assert!(report.orders[state] > 0, "{state}");
    }
}

// A step may fail before its first call. Then the order stops or is undone, its undo may fail as well, and people may
// take the step as done, skip the undo, or run the order again. The report says that these orders get no further.
#[test]
fn steps_that_fail_before_any_call_end_well_and_are_reported() {
    let call = "agent = \"payment\"\ntimeout = \"5s\"\n";
    let first = format!("[[step]]\nname = \"hotel\"\nafter = []\nundo = {{ agent = \"payment\" }}\n{call}");
    let stop = "[[step]]\nname = \"stop\"\nafter = [\"hotel\"]\nfail = \"not today\"\n";
    let price = "[[step]]\nname = \"price\"\nafter = [\"hotel\"]\nvalue = \"${input.nights * 3}\"\n";
    let flows = [
        ("fails", format!("name = \"fails\"\n{first}{stop}"), "`stop` failed: not today"),
        (
            "computes",
            format!(
                "name = \"computes\"\non_failure = \"error\"\n{first}{price}[[step]]\nname = \"pay\"\nafter = [\"price\"]\n{call}"
            ),
            "`price` failed: `input.nights * 3`",
        ),
    ];
    for (name, text, reason) in flows {
        let known = Known { agents: &["payment"], inputs: &[] };
        let workflow: Workflow = parse("flow.toml", &text, known).unwrap();
        let settings = Settings { workflows: vec![Arc::new(workflow)], ..settings(ADAPTER_EVERY) };
        let report = simulate(&settings, 0, 200, threads(), |_| {});
        assert!(report.is_clean(), "{report}");
        let said = report.unprocessed.get(name).map(String::as_str).unwrap_or_default();
        assert!(said.starts_with(reason), "{said:?}");
        assert!(report.to_string().contains("warning: even without faults, no order of"), "{report}");
    }
}

// The workflows of this repository combine only keys that somebody thought of combining.
#[test]
fn generated_workflows_end_well() {
    let wanted = std::env::var("MADE").ok().map(|text| {
        let ends = text.split_once("..").and_then(|(from, to)| Some(from.parse().ok()?..to.parse().ok()?));
        ends.unwrap_or_else(|| panic!("MADE={text}: write two numbers, such as 1000..2000"))
    });
    let numbers = wanted.unwrap_or(MADE);
    let (refused, failed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let known = Known { agents: &agent::agents::NAMES, inputs: &[] };
    share_out(numbers.end - numbers.start, threads(), |n| {
        let number = numbers.start + n;
        let text = made::workflow(number);
        let workflow: Workflow = match parse("made.toml", &text, known) {
            Ok(workflow) => workflow,
            Err(error) => return refused.lock().unwrap().push(error.to_string()),
        };
        let settings = Settings { workflows: vec![Arc::new(workflow)], ..settings(ADAPTER_EVERY) };
        for seed in number * PLAYS..(number + 1) * PLAYS {
            let run = run(seed, &settings, &RunOptions::default());
            if !run.violations.is_empty() {
                let small = shrink(&run, &settings, &RunOptions::default()).expect("it failed");
                println!("{text}\n{small}\nto repeat it: MADE={number}..{}", number + 1);
                failed.lock().unwrap().push((number, run.violations));
            }
        }
    });
    let refused = refused.into_inner().unwrap();
    assert!(refused.len() as u64 * 5 <= numbers.end - numbers.start, "{refused:#?}");
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "of the workflows {numbers:?}: {failed:#?}");
}

// A fault that is counted and blamed for lost time had an effect: only a write loses its answer, only transactions with
// a common item conflict, and only an index lags.
#[test]
fn a_fault_that_can_do_nothing_does_not_happen() {
    let settings = settings(10);
    let mut seen = [0; 3];
    for seed in 0..60 {
        let run = run(seed, &settings, &RunOptions::default());
        for fault in &run.fired {
            let (n, is_good) = match fault.class {
                Class::StoreLost => {
                    let reads = ["load", "due", "order", "workflow", "agents", "attention", "read-lease"];
                    (0, !reads.contains(&fault.site.split([' ', '#']).next().unwrap_or_default()))
                }
                Class::TransactionConflict => (1, ["create ", "save "].iter().any(|what| fault.site.starts_with(what))),
                Class::IndexLag => (2, fault.site.starts_with("due ")),
                _ => continue,
            };
            assert!(is_good, "seed {seed}: {fault:?}");
            seen[n] += 1;
        }
    }
    assert!(seen.iter().all(|times| *times > 0), "{seen:?}");
}

// A replay and a shrunk run are useful only if a seed always does the same.
#[test]
fn a_seed_does_the_same_every_time() {
    let settings = settings(ADAPTER_EVERY);
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
        // L1: waits end within a second, also one that is too long for a delayed message.
        let waits = if run.workflow == "waits" { 963_000 } else { 0 };
        // L6: two long steps, one after another, each at its first attempt.
        let works = if run.workflow == "heartbeats" { 20_000 } else { 0 };
        for order in run.orders {
            let took = order.took_ms.unwrap_or_default();
            assert!((waits..waits + works + 1000).contains(&took), "seed {seed}: {order:?}");
        }
    }
}

// The check can fail: each of these defects is found, and few faults are enough to show it.
#[test]
fn every_defect_put_in_on_purpose_is_found() {
    let find = |defect: Defect| {
        // The messenger in memory reads no answers.
        let settings = settings(if defect == Defect::HidesRefusals { 5 } else { 0 });
        let options = RunOptions { defect: Some(defect), ..RunOptions::default() };
        let found = (0..WITHIN).map(|seed| run(seed, &settings, &options)).filter(|run| !run.violations.is_empty());
        // The first one may end where no single fault can be left out, although others need fewer.
        let mut fewest = usize::MAX;
        for found in found.take(TRIES) {
            let small = shrink(&found, &settings, &options).expect("it failed");
            let (before, after) = (found.fired.len(), small.run.fired.len());
            println!("{defect:?}: seed {}, {}", found.seed, small.run.violations[0]);
            println!("  {before} faults, {after} of them needed, found by {} runs", small.tried);
            let again = format!("{} --seed {}", settings.command, found.seed);
            assert!(small.to_string().ends_with(&again), "{small}");
            fewest = fewest.min(after);
            if fewest <= 10 {
                return;
            }
        }
        assert!(fewest < usize::MAX, "{defect:?} was not found within {WITHIN} seeds");
        panic!("{defect:?}: {fewest} faults");
    };
    share_out(Defect::ALL.len() as u64, threads(), |n| find(Defect::ALL[n as usize]));
}
