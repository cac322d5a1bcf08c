//! Goal: the check of a history finds each kind of violation. Method: histories that are each wrong in one way.

use jiff::{SignedDuration, Timestamp};
use shared::history::{Entry, Kind};
use shared::message::Effect;
use shared::order::Id;
use shared::step::State;
use shared::task::{Phase, Task};
use shared::workflow::Workflow;
use std::sync::Arc;
use stepwarden_simulation::history::{History, Rule};

fn workflow() -> Arc<Workflow> {
    Arc::clone(&stepwarden_simulation::workflows()[1])
}

fn task() -> Task {
    Task::new(contract::submission(Id::derive("a", "b")), &workflow(), Timestamp::UNIX_EPOCH)
}

fn rules(history: &History) -> Vec<Rule> {
    history.check(|_| Some(workflow())).into_iter().map(|v| v.rule).collect()
}

// The check can fail: each of these histories is wrong in one way.
#[test]
fn a_gap_a_fork_and_a_writer_that_read_something_else_are_found() {
    let first = task();
    let next = |version, stamp: &str| Task { version, stamp: stamp.into(), ..task() };
    let mut good = History::default();
    good.stored(&first, None);
    good.stored(&next(1, "a"), Some(0));
    good.observed(&next(1, "a"));
    assert_eq!(rules(&good), []);
    let mut gap = good.clone();
    gap.stored(&next(3, "a"), Some(2));
    assert_eq!(rules(&gap), [Rule::OneChain]);
    let mut several = good.clone();
    several.stored(&next(3, "a"), Some(1));
    assert_eq!(rules(&several), [], "two changes in one save");
    let mut fork = good.clone();
    fork.stored(&next(1, "b"), Some(0));
    assert_eq!(rules(&fork), [Rule::OneChain]);
    let mut blind = good.clone();
    blind.stored(&next(2, "b"), Some(0));
    assert_eq!(rules(&blind), [Rule::OneChain]);
    let mut overruled = good.clone();
    overruled.written(&first.id, 1, 2);
    overruled.stored(&Task { lease_token: 1, ..next(2, "b") }, Some(1));
    assert_eq!(rules(&overruled), [Rule::OnlyRises]);
    let mut belief = good;
    belief.observed(&next(1, "b"));
    assert_eq!(rules(&belief), [Rule::Observed]);
}

#[test]
fn doubled_missing_and_left_effects_are_found() {
    let id = task().id;
    let mut processed = task();
    processed.phase = Phase::Processed;
    processed.steps.iter_mut().for_each(|s| s.state = State::Processed);
    let mut history = History::default();
    history.stored(&processed, None);
    history.effects.applied(&id, "left", "k1");
    history.effects.applied(&id, "join", "k2");
    history.effects.applied(&id, "right", "k3");
    assert_eq!(rules(&history), []);
    let mut twice = history.clone();
    twice.effects.applied(&id, "left", "k4");
    assert_eq!(rules(&twice), [Rule::AppliedOnce, Rule::Processed]);
    let mut missing = history.clone();
    missing.effects.undone(&id, "join", "k2");
    assert_eq!(rules(&missing), [Rule::Processed]);
    let mut undone = History::new(SignedDuration::ZERO);
    undone.effects = history.effects;
    undone.stored(&Task { phase: Phase::Undone, ..task() }, None);
    assert_eq!(rules(&undone), [Rule::Undone, Rule::Undone, Rule::Undone]);
}

// The effects that a person chose to leave may remain, and no others.
#[test]
fn an_effect_whose_undo_a_person_left_out_may_stand() {
    let id = task().id;
    let mut stopped = Task { phase: Phase::UndoError, ..task() };
    stopped.steps[2].state = State::UndoFailed;
    let mut skipped = Task { version: 1, acted_at: 1, phase: Phase::Undone, ..task() };
    skipped.steps[2].state = State::Undone;
    skipped.log.push(Entry(0, Kind::Skipped, Some(2), 0, None));
    let mut history = History::default();
    history.stored(&stopped, None);
    history.stored(&skipped, Some(0));
    history.effects.applied(&id, "join", "k2");
    assert_eq!(rules(&history), []);
    history.effects.applied(&id, "left", "k1");
    assert_eq!(rules(&history), [Rule::Undone]);
    let mut by_itself = History::new(SignedDuration::ZERO);
    by_itself.effects = history.effects;
    by_itself.stored(&stopped, None);
    by_itself.stored(&Task { acted_at: 0, ..skipped }, Some(0));
    assert_eq!(rules(&by_itself), [Rule::Undone, Rule::Undone]);
}

// `left` and `right` run concurrently, and `join` follows both; the clocks may be a second apart.
#[test]
fn an_undo_too_early_and_an_undo_in_the_wrong_order_are_found() {
    let at = |ms: i64| Timestamp::from_millisecond(ms).expect("a time of the calendar");
    let claim = |by| State::Processing { locked_by: "s".into(), complete_by: at(by) };
    let next = |task: &Task, now: i64, states: [State; 3]| {
        let mut next = Task { version: task.version + 1, updated_at: at(now), ..task.clone() };
        for (step, state) in next.steps.iter_mut().zip(states) {
            step.attempt += u32::from(matches!(state, State::Processing { .. } | State::UndoProcessing { .. }));
            step.state = state;
        }
        next
    };
    let waits = || State::UndoPending { not_before: None };
    let undo = || State::UndoProcessing { locked_by: "s".into(), complete_by: at(99_000) };
    let history = |begins_at: i64, order: [[State; 3]; 2]| {
        let first = task();
        let claimed = next(&first, 0, [claim(3000), claim(5000), State::Pending { not_before: None }]);
        // `right` gets more time, and `left` is claimed again with an earlier deadline.
        let extended = next(&claimed, 100, [claim(3100), claim(9000), State::Pending { not_before: None }]);
        let again = next(&extended, 200, [claim(3200), State::Processed, claim(4000)]);
        let mut history = History::new(SignedDuration::from_secs(1));
        history.stored(&first, None);
        let mut turned = Task { phase: Phase::Undoing, ..again.clone() };
        let mut seen = 0;
        for task in [&claimed, &extended, &again] {
            history.stored(task, Some(seen));
            seen = task.version;
        }
        for states in order {
            turned = next(&turned, begins_at, states);
            history.stored(&turned, Some(seen));
            seen = turned.version;
        }
        history
    };
    let good = || [[waits(), waits(), undo()], [undo(), undo(), State::Undone]];
    let found = |history: &History| {
        let mut found = rules(history);
        found.dedup();
        found
    };
    assert_eq!(found(&history(10_000, good())), []);
    for early in [4000, 5000, 6000, 9999] {
        assert_eq!(found(&history(early, good())), [Rule::UndoOrder], "at {early}");
    }
    assert_eq!(found(&history(10_000, [[undo(), waits(), undo()], [undo(), waits(), undo()]])), [Rule::UndoOrder]);

    // By what the services did, whatever the records say.
    let id = task().id;
    let mut history = history(10_000, good());
    history.effects.applied(&id, "left", "k1");
    history.effects.applied(&id, "join", "k2");
    let mut wrong = history.clone();
    history.effects.undone(&id, "join", "k2");
    history.effects.undone(&id, "left", "k1");
    assert_eq!(rules(&history), []);
    wrong.effects.undone(&id, "left", "k1");
    wrong.effects.undone(&id, "join", "k2");
    assert_eq!(rules(&wrong), [Rule::UndoOrder]);
}

#[test]
fn an_error_without_an_alert_and_an_end_without_a_notice_are_found() {
    let stopped = Task { phase: Phase::Error, reply_queue: Some("q".into()), ..task() };
    let mut history = History::default();
    history.stored(&stopped, None);
    assert_eq!(rules(&history), [Rule::Alert, Rule::Notice, Rule::Notice]);
}

#[test]
fn a_notice_of_what_was_never_saved_is_found() {
    let mut history = History::default();
    let told = Task { reply_queue: Some("q".into()), ..task() };
    history.stored(&told, None);
    let Some(Effect::Notice(mut notice)) = shared::view::received(&told, &workflow()) else { unreachable!() };
    history.notice(&notice);
    assert_eq!(rules(&history), []);
    notice.seq = 1;
    history.notice(&notice);
    assert_eq!(rules(&history), [Rule::Observed]);
}
