//! Steps that poll, as tables.
//!
//! Method: as in `transitions.rs`.

use crate::language::{bench, claimed};
use crate::support::*;
use serde_json::json;
use shared::decision::{Event, Kept, Refusal, What};
use shared::message::{Effect, Outcome, Reply};
use shared::step::State;

/// A look over HTTP changes nothing; `http` is called by the agent of that name.
const LOOKS: &str = r#"
a | after = []; http = { url = "https://jobs.example/1", method = "GET" }; poll = { every = "5s", for = "1m", done = "answer.state == 'FINISHED'", failed = "answer.state == 'ABORTED'" }
b | after = ["a"]
"#;
const ASKS: &str = r#"
a | after = []; poll = { every = "5s", for = "1m", done = "answer.state == 'FINISHED'", failed = "answer.state == 'ABORTED'" }
b | after = ["a"]
"#;

fn not_yet() -> Outcome {
    Outcome::NotYet { why: "answer.state is 'RUNNING'".into() }
}

fn looked(bench: &Bench) -> Event {
    Event::Reply(Reply { looked: true, ..bench.told("a", done(json!({"state": "FINISHED"}))) })
}

fn delay(bench: &Bench) -> u64 {
    bench.request("a").delay_ms
}

// L5: one save and one message a look, no failure, no breaker's turn, no entry in the history.
#[test]
fn a_look_is_claimed_ahead_in_the_save_of_the_last_one() {
    let mut bench = bench(LOOKS, json!({}));
    bench.wake(0).is("Processing a=Processing#1 b=Pending", "do a#1");
    let entries = bench.task.log.len();
    for look in 1..=10 {
        let answer = bench.answer("a", not_yet());
        bench.on(&answer).is(&format!("Processing a=Processing#{} b=Pending", look + 1), &format!("do a#{}", look + 1));
        assert_eq!((delay(&bench), bench.request("a").look.is_some()), (5_000, true));
        // A message that comes again sends the same look, held back for what is left.
        bench.at(bench.now + 2_000).on(&answer).keeps(Kept::Stale, &format!("do a#{}", look + 1));
        assert_eq!(delay(&bench), 3_000);
        bench.at(bench.now + 3_000);
    }
    assert_eq!((bench.task.log.len(), bench.task.forward_by), (entries, None));
    let answer = looked(&bench);
    bench.on(&answer).is("Processing a=Processed#11 b=Processing#1", "do b#1, notice StepCompleted");
    assert_eq!(bench.task.steps[0].error, None);
}

#[test]
fn an_answer_that_was_not_held_against_the_conditions_is_not_done() {
    let mut bench = claimed(LOOKS, json!({}));
    bench.answered("a", done(json!({"state": "RUNNING"}))).is("Processing a=Processing#2 b=Pending", "do a#2");
}

// A call that may change something is claimed when it is due, so that an undo knows of it.
#[test]
fn a_look_that_may_change_something_is_claimed_when_it_is_due() {
    let mut bench = claimed(ASKS, json!({}));
    let answer = bench.answer("a", done(json!({"state": "RUNNING"})));
    bench.at(1_000).on(&answer).is("Pending a=Pending+5000#1 b=Pending", "wake+5000");
    bench.at(6_000).woken().is("Processing a=Processing#2 b=Pending", "do a#2");
    assert_eq!((bench.task.forward_by, delay(&bench)), (Some(at(16_000)), 0));
    // A field that is not there, or is null, is not there yet.
    for answer in [json!({}), json!(null), json!({"state": null}), json!([])] {
        bench.answered("a", done(answer));
        assert!(matches!(bench.task.steps[0].state, State::Pending { not_before: Some(_) }));
        bench.at(bench.now + 5_000).woken();
    }
    bench.answered("a", done(json!({"state": "FINISHED"})));
    bench.is("Processing a=Processed#6 b=Processing#1", "do b#1, notice StepCompleted");
    assert_eq!(bench.task.steps[0].output, Some(json!({"state": "FINISHED"})));
}

#[test]
fn failed_is_asked_first_and_is_a_refusal() {
    let mut bench = claimed(ASKS, json!({}));
    let answer = bench.answer("a", done(json!({"state": "ABORTED"})));
    bench.on(&answer).is("Undoing a=Failed#1 b=Pending", "wake+11000, notice Failed");
    let reason = bench.task.reason.clone().unwrap();
    assert!(reason.contains("`answer.state == 'ABORTED'` is true: answer.state is \"ABORTED\""), "{reason}");
    let caught = "a | after = []; poll = { every = \"5s\", for = \"1m\", done = \"answer.ok\", failed = \"!answer.ok\" }; catch = \"error.kind == 'refused' && error.answer.code == 7\"";
    let mut bench = claimed(caught, json!({}));
    bench.answered("a", done(json!({"ok": false, "code": 7}))).is("Processed a=Caught#1", "notice Completed");
}

// The ladder counts neither silence nor 503 of a look; only `for` ends them.
#[test]
fn looks_without_an_answer_end_with_the_time_of_the_poll() {
    for steps in [LOOKS, ASKS] {
        let mut bench = claimed(steps, json!({}));
        let mut looks = 1;
        while bench.task.steps[0].state != State::Failed {
            match looks % 3 {
                0 => {
                    bench.answered("a", unavailable(None));
                }
                1 => {
                    let answer = bench.answer("a", deferred(2_000));
                    bench.on(&answer);
                }
                _ => {
                    let by = ms(bench.task.complete_by().unwrap());
                    bench.at(by + 1_000).supervise();
                    assert_eq!(bench.expired, 1);
                }
            }
            assert_eq!((bench.task.steps[0].failures, bench.task.log.len() <= 3), (0, true), "{}", bench.state());
            if let State::Pending { not_before: Some(from) } = bench.task.steps[0].state {
                bench.at(ms(from)).woken();
            } else if let State::Processing { .. } = bench.task.steps[0].state {
                let wait = i64::try_from(delay(&bench)).unwrap();
                bench.at(bench.now + wait);
            }
            looks += 1;
            assert!(looks < 30, "{}", bench.state());
        }
        assert!(bench.now < 72_000, "{}", bench.now);
        assert_eq!(bench.task.process_state().name(), "Undoing");
        let reason = bench.task.reason.clone().unwrap();
        assert!(reason.contains("not done within 1m"), "{reason}");
    }
    let caught = "a | after = []; poll = { every = \"5s\", for = \"6s\", done = \"answer.ok\" }; catch = \"error.kind == 'timeout'\"";
    let mut bench = claimed(caught, json!({}));
    bench.at(2_000).answered("a", done(json!({}))).is("Processed a=Caught#1", "notice Completed");
}

#[test]
fn a_condition_without_a_value_is_a_mistake_that_is_never_caught() {
    let steps =
        "a | after = []; poll = { every = \"5s\", for = \"1m\", done = \"answer.count > 3\" }; catch = \"true\"";
    let mut bench = claimed(steps, json!({}));
    bench.answered("a", done(json!({"count": "many"})));
    assert_eq!(bench.task.steps[0].state, State::Failed);
    let reason = bench.task.reason.clone().unwrap();
    assert!(reason.contains("`done` of `poll`: `answer.count > 3`"), "{reason}");
}

#[test]
fn an_agent_may_say_not_yet_only_of_a_step_that_polls() {
    let mut bench = claimed("a | after = []", json!({}));
    bench.answered("a", not_yet());
    assert_eq!(bench.task.steps[0].state, State::Failed);
    let mut bench = claimed(ASKS, json!({}));
    bench.answered("a", not_yet()).is("Pending a=Pending+5000#1 b=Pending", "wake+5000");
    assert_eq!(bench.task.steps[0].error.as_deref(), Some("answer.state is 'RUNNING'"));
}

// A look changes nothing, so an undo does not wait for it, and its answer changes nothing afterwards.
#[test]
fn a_cancel_does_not_wait_for_a_look() {
    let steps =
        format!("z | after = []; undo = {{ agent = \"x\" }}{}", LOOKS.replace("a | after = []", "a | after = [\"z\"]"));
    let mut bench = bench(&steps, json!({}));
    bench.wake(0).at(2_000).done("z");
    bench.at(11_500).answered("a", not_yet()).cancel();
    bench.is("Undoing z=Processed#1 a=Processing#2 b=Pending", "wake, notice Failed");
    let seen = bench.task.version;
    let late = looked(&bench);
    bench.wake(seen).is("Undoing z=UndoProcessing#2 a=Undone#2 b=Pending", "undo z#2");
    bench.on(&late).keeps(Kept::Repeated, "notice Failed");
}

#[test]
fn a_pause_holds_looks_back_and_a_resumption_gives_the_poll_its_time_again() {
    let mut bench = bench(LOOKS, json!({}));
    bench.wake(0).on(&act(What::Pause));
    bench.answered("a", not_yet()).is("Pending a=Pending+5000#1 b=Pending", "");
    bench.at(100_000).on(&act(What::Resume)).is("Pending a=Pending+-95000#1 b=Pending", "wake");
    bench.woken().is("Processing a=Processing#2 b=Pending", "do a#2");
    assert_eq!(bench.task.steps[0].poll_until, Some(at(160_000)));
    // An agent that is paused gets no look either.
    bench.withhold("http");
    bench.answered("a", not_yet()).is("Pending a=Pending+5000#2 b=Pending", "");
}

#[test]
fn a_resubmitted_poll_gets_its_time_again() {
    let steps = "a | after = []; poll = { every = \"5s\", for = \"6s\", done = \"answer.ok\" }; on_failure = \"error\"";
    let mut bench = claimed(steps, json!({}));
    bench.at(2_000).answered("a", done(json!({}))).is("Error a=Failed#1", "notice AttentionNeeded, alert");
    bench.at(60_000).resubmit();
    bench.woken();
    assert_eq!(bench.task.steps[0].poll_until, Some(at(66_000)));
    bench.answered("a", done(json!({"ok": true}))).is("Processed a=Processed#2", "notice Completed");
}

// Most of the time a step that polls has a look ahead of it, and a person need not wait for that.
#[test]
fn a_step_that_polls_can_be_skipped_by_its_name() {
    let mut bench = claimed(LOOKS, json!({}));
    bench.answered("a", not_yet()).on(&act(What::Skip { step: None }));
    assert_eq!(bench.kept, Some(Kept::Refused(Refusal::UnnamedWait)));
    bench.on(&act(What::Skip { step: Some("a".into()) })).is("Pending a=Skipped#2 b=Pending", "wake");
    let late = looked(&bench);
    bench.on(&late).keeps(Kept::Repeated, "wake");
}

// A wait that a service asks for, or an open breaker, moves the next look.
#[test]
fn the_next_look_keeps_to_what_the_service_asks_for() {
    let mut bench = claimed(LOOKS, json!({}));
    bench.answered("a", unavailable(Some(20_000)));
    assert_eq!(delay(&bench), 20_000);
    assert!(!bench.effects.iter().any(|effect| matches!(effect, Effect::Wake(..))));
    // It ends no poll: the last look is made before its time is over.
    bench.answered("a", unavailable(Some(3_600_000)));
    assert_eq!((delay(&bench), bench.task.steps[0].state == State::Failed), (59_999, false));
    assert_eq!(bench.task.steps[0].failure, None);
}
