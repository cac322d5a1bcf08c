//! Exhaustive search of the core: every order of messages, losses, doublings, crashes between sends, expiries, two
//! leaders, undo, cancel and resubmission, within bounds.
//!
//! `cargo test -p stepwarden-tests` runs the quick bounds; `MODEL=full` the large ones. // J5

#[path = "model/defects.rs"]
mod defects;
#[path = "model/world.rs"]
mod world;

use defects::Defect;
use stateright::{Checker, Expectation, HasDiscoveries, Model};
use std::time::Instant;
use world::{Bounds, World};

const QUICK: Bounds = Bounds {
    crashes: 1,
    failed: 1,
    unavailable: 0,
    deferred: 0,
    cancels: 0,
    resubmits: 0,
    max: 1,
    undo_max: 1,
    then: "undo",
    strict: false,
    timeouts: (1, 1),
    leaders: 1,
    b_has_undo: false,
    with_c: true,
};

/// Checks all properties; answers the number of states.
fn check(name: &str, bounds: Bounds) -> usize {
    let begin = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let checker = World::new(bounds, None).checker().threads(threads).spawn_bfs().join();
    let count = checker.unique_state_count();
    println!("{name}: {count} states, depth {}, {:.1} s", checker.max_depth(), begin.elapsed().as_secs_f64());
    let mut wrong = String::new();
    for (property, path) in checker.discoveries() {
        let good = checker.model().property(property).expectation == Expectation::Sometimes;
        if !good {
            wrong += &format!("\n{name}: {property}\n{}", trace(path));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    checker.assert_properties();
    count
}

fn trace(path: stateright::Path<world::State, world::Action>) -> String {
    let mut text = String::new();
    for (state, action) in path.into_vec() {
        let steps: Vec<_> = state.task.steps.iter().map(|s| format!("{:?}#{}", s.state, s.attempt)).collect();
        text += &format!("    v{} {:?} {steps:?}", state.task.version, state.task.phase);
        if let Some(rule) = state.broken {
            text += &format!(" BROKEN: {rule}");
        }
        if let Some(action) = action {
            text += &format!("\n  {action:?}\n");
        }
    }
    text
}

#[test]
fn probe() {
    check("quick", QUICK);
}
