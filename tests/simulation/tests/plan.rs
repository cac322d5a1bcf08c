//! Goal: a seed always makes the same plan, and the workflows of plans are valid and use every rule.

use jiff::SignedDuration;
use shared::workflow::USUAL_SKEW;
use shared::workflow::Workflow;
use std::sync::Arc;
use stepwarden_simulation::{ADAPTER_EVERY, Plan, workflows};

#[test]
fn the_workflows_are_valid_and_use_every_rule() {
    let all = workflows();
    assert!(all.iter().any(|w| w.strict_notices));
    assert!(all.iter().any(|w| w.tombstones));
    assert!(all.iter().any(|w| w.steps.iter().any(|s| s.irreversible)));
    assert!(all.iter().any(|w| w.steps.iter().any(|s| s.late.is_some())));
    assert!(all.iter().any(|w| w.steps.iter().any(|s| s.retry.long.is_some())));
    assert!(all.iter().any(|w| w.steps.iter().any(|s| s.wait.is_some())));
    assert!(all.iter().any(|w| w.steps.iter().any(|s| s.pages)));
}

// A skew that shrinks to fit would hide that no agent on AWS would ever start a step.
#[test]
fn the_skew_is_drawn_whatever_the_timeouts_are() {
    let mut short = Workflow::clone(&workflows()[0]);
    short.steps[0].timeout = SignedDuration::from_millis(100);
    let short = [Arc::new(short)];
    let longest = (0..100).map(|seed| Plan::new(seed, &short, &[], 0).skew).max();
    assert_eq!(longest, Some(USUAL_SKEW));
    for workflow in workflows() {
        assert_eq!(workflow.can_start(USUAL_SKEW), Ok(()));
    }
}

#[test]
fn a_seed_always_decides_the_same() {
    for seed in 0..50 {
        let plan = || format!("{:?}", Plan::new(seed, &workflows(), &[], ADAPTER_EVERY));
        assert_eq!(plan(), plan());
    }
}
