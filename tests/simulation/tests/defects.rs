//! Goal: the history finds defects of the core that the remote services forgive, because they remember an undo that
//! came first. Method: the model's seeded defects in the decisions of every process of a run.

// The model has more of them than are tried here.
#[allow(dead_code)]
#[path = "../../../tests/model/defects.rs"]
mod model;

use model::Defect;
use shared::engine::Core;
use std::sync::Arc;
use stepwarden_simulation::history::Rule;
use stepwarden_simulation::{RunOptions, Settings, run, shrink, workflows};

/// A defect must be found within this number of seeds.
const WITHIN: u64 = 600;

#[test]
fn an_undo_too_early_or_in_the_wrong_order_is_found() {
    let settings = Settings { workflows: workflows(), ..Settings::default() };
    for defect in [
        Defect::ForwardByIsTheLast,
        Defect::ExtensionLeavesForwardBy,
        Defect::UndoWaitsForDirectDependents,
        Defect::UndoDoesNotWait,
    ] {
        let core = Core {
            schedule: Arc::new(move |task, event, turn| model::schedule(Some(defect), task, event, turn)),
            supervise: Arc::new(move |task, token, turn| model::supervise(Some(defect), task, token, turn)),
        };
        let options = RunOptions { core, ..RunOptions::default() };
        let found = (0..WITHIN).map(|seed| run(seed, &settings, &options)).find(|run| !run.violations.is_empty());
        let found = found.unwrap_or_else(|| panic!("{defect:?} was not found within {WITHIN} seeds"));
        assert_eq!(found.violations[0].rule, Rule::UndoOrder, "{defect:?}: {}", found.violations[0]);
        let small = shrink(&found, &settings, &options).expect("it failed");
        println!("{defect:?}: seed {}, {}", found.seed, small.run.violations[0]);
        assert!(small.run.fired.len() <= 20, "{defect:?}: {} faults", small.run.fired.len());
    }
}
