//! Steps that wait for events of several people, as tables.
//!
//! Method: as in `transitions.rs`. // L3

use crate::language::{bench, file};
use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Declined, Event, Kept, What};
use shared::step::{FailureKind, State};
use shared::workflow::file::{Known, parse};

fn yes(by: &str, key: &str) -> Event {
    said(by, key, json!({"answer": "yes"}))
}

fn said(by: &str, key: &str, data: Value) -> Event {
    Event::Arrived { name: "approved".into(), key: key.into(), data, by: Some(by.into()) }
}

const TWO: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; event = "approved"; people = 2; timeout = "24h"; take = "by != input.by"; failed = "event.answer == 'no'"
c | after = ["b"]; with = { by = "${outputs.b[1].by}" }
"#;
const DAY: i64 = 24 * 3600 * 1000;

fn waiting() -> Bench {
    let mut bench = bench(TWO, json!({"by": "eve"}));
    bench.wake(0).done("a");
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{DAY} c=Pending"), "notice StepCompleted");
    bench
}

#[test]
fn a_step_is_done_once_different_people_said_so() {
    let mut bench = waiting();
    bench.on(&yes("ann", "k1")).is(&format!("Pending a=Processed#1 b=Waiting+{DAY} c=Pending"), "");
    assert_eq!(bench.task.steps[1].output, None);
    bench.on(&yes("bob", "k1")).is("Pending a=Processed#1 b=Processed c=Pending", "wake");
    let both = json!([
        {"by": "ann", "data": {"answer": "yes"}}, {"by": "bob", "data": {"answer": "yes"}}
    ]);
    assert_eq!(bench.task.steps[1].output, Some(both));
    assert!(bench.task.events.iter().all(|event| event.data.is_none() && event.step == Some(1)));
    bench.on(&yes("bob", "k1"));
    assert_eq!(bench.kept, Some(Kept::Repeated));
    bench.on(&yes("carl", "k1")).keeps(Kept::Declined(Declined::Late), "");
    bench.woken();
    assert_eq!(bench.request("c").input, json!({"by": "bob"}));
}

// The key is the person, never a chosen text.
#[test]
fn one_person_counts_once_under_any_key() {
    let mut bench = waiting();
    bench.on(&yes("ann", "k1"));
    let version = bench.task.version;
    bench.on(&yes("ann", "k1")).keeps(Kept::Repeated, "");
    bench.on(&yes("ann", "k2")).keeps(Kept::Repeated, "");
    bench.on(&said("ann", "k2", json!({"answer": "yes, gladly"}))).keeps(Kept::Declined(Declined::SamePerson), "");
    bench.on(&said("ann", "k1", json!({"answer": "yes, gladly"}))).keeps(Kept::Declined(Declined::KeyReused), "");
    bench.on(&yes("eve", "k3")).keeps(Kept::Declined(Declined::NotTaken), "");
    let nobody = Event::Arrived { name: "approved".into(), key: "k4".into(), data: json!({}), by: None };
    bench.on(&nobody).keeps(Kept::Declined(Declined::NoPerson), "");
    assert_eq!(bench.task.version, version);
    // Two people may choose one key.
    bench.on(&yes("bob", "k2")).is("Pending a=Processed#1 b=Processed c=Pending", "wake");
}

// `failed`: one no is enough, also of a person who said yes before.
#[test]
fn one_person_who_says_no_ends_the_wait() {
    for by in ["ann", "bob"] {
        let mut bench = waiting();
        bench.on(&yes("ann", "k1")).on(&said(by, "k2", json!({"answer": "no"})));
        bench.is("Undoing a=Processed#1 b=Failed c=Pending", "wake+11000, notice Failed");
        let reason = format!("`b` failed: the event `approved` by `{by}` says that it failed");
        assert_eq!(bench.task.reason.as_deref(), Some(reason.as_str()));
        bench.on(&yes("carl", "k3")).keeps(Kept::Declined(Declined::Late), "");
    }
    let caught =
        TWO.replace("failed =", "catch = \"error.kind == 'refused'\"; failed =").replace("[\"b\"]", "[\"b?\"]");
    let caught = caught.replace("${outputs.b[1].by}", "${errors.b.answer.answer}");
    let mut bench = bench(&caught, json!({"by": "eve"}));
    bench.wake(0).done("a").on(&said("bob", "k2", json!({"answer": "no"})));
    bench.is("Pending a=Processed#1 b=Caught c=Pending", "wake");
    assert_eq!(bench.task.steps[1].failure.as_ref().unwrap().kind, FailureKind::Refused);
    bench.woken();
    assert_eq!(bench.request("c").input, json!({"by": "no"}));
}

#[test]
fn early_events_are_kept_one_of_each_person() {
    let mut bench = bench(TWO, json!({"by": "eve"}));
    bench.on(&yes("ann", "k1")).wake(0);
    bench.on(&yes("ann", "k2"));
    assert_eq!(bench.kept, Some(Kept::Repeated));
    // One that changes her mind is told to come back.
    bench.on(&said("ann", "k3", json!({"answer": "no"}))).keeps(Kept::Declined(Declined::Early), "");
    bench.on(&yes("eve", "k1")).keeps(Kept::Declined(Declined::NotTaken), "");
    bench.on(&yes("bob", "k1"));
    assert_eq!(bench.task.kept().count(), 2);
    bench.on(&yes("carl", "k1")).keeps(Kept::Declined(Declined::Early), "");
    bench.done("a").is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1, notice StepCompleted");

    let mut one = self::bench(TWO, json!({"by": "eve"}));
    one.wake(0).on(&yes("ann", "k1")).done("a");
    one.is(&format!("Pending a=Processed#1 b=Waiting+{DAY} c=Pending"), "notice StepCompleted");
    assert_eq!((one.task.kept().count(), one.task.counted(1).count()), (0, 1));

    let mut no = self::bench(TWO, json!({"by": "eve"}));
    no.wake(0).on(&said("ann", "k1", json!({"answer": "no"}))).done("a");
    no.is("Undoing a=Processed#1 b=Failed c=Pending", "wake+11000, notice Failed");
    one.on(&said("ann", "k3", json!({"answer": "no"})));
    one.is("Undoing a=Processed#1 b=Failed c=Pending", "wake+11000, notice Failed");

    // Without a no there is nothing to come back for.
    let mut plain = self::bench(&TWO.replace("; failed = \"event.answer == 'no'\"", ""), json!({"by": "eve"}));
    plain.on(&yes("ann", "k1")).on(&said("ann", "k3", json!({})));
    plain.keeps(Kept::Declined(Declined::SamePerson), "");
}

// Kept events count in the order in which they came: a no before the last yes ends the wait, one after it is for the next step.
#[test]
fn an_early_no_ends_the_wait_unless_the_others_were_there_before() {
    let steps = r#"
a | after = []
b | after = ["a"]; event = "approved"; people = 2; timeout = "24h"; failed = "event.answer == 'no'"; undo = { agent = "x", timeout = "5s" }
c | after = ["b"]; event = "approved"; people = 2; timeout = "24h"; failed = "event.answer == 'no'"
"#;
    let no = || said("carl", "k", json!({"answer": "no"}));
    let mut first = bench(steps, json!({}));
    first.wake(0).on(&no()).on(&yes("ann", "k")).on(&yes("bob", "k")).done("a");
    first.is("Undoing a=Processed#1 b=Failed c=Pending", "wake+11000, notice Failed");
    // Both yeses have their place, and are undone with it.
    assert_eq!(first.task.counted(1).count(), 2);
    let mut last = bench(steps, json!({}));
    last.wake(0).on(&yes("ann", "k")).on(&yes("bob", "k")).on(&no()).done("a");
    assert_eq!((&last.task.steps[1].state, &last.task.steps[2].state), (&State::Processed, &State::Failed));
}

// A second click has another key, so a person has one place for each name, whatever waits for it.
#[test]
fn steps_side_by_side_share_their_people() {
    let steps = r#"
b | after = []; event = "approved"; people = 2; timeout = "24h"
c | after = []; event = "approved"; people = 2; timeout = "24h"
"#;
    let mut bench = bench(steps, json!({}));
    bench.wake(0).on(&yes("ann", "k1")).on(&yes("ann", "k2")).keeps(Kept::Repeated, "");
    bench.on(&yes("bob", "k1"));
    assert_eq!((&bench.task.steps[0].state, bench.task.counted(1).count()), (&State::Processed, 0));
    bench.on(&yes("ann", "k3")).on(&yes("bob", "k3"));
    assert_eq!(bench.task.process_state(), shared::task::ProcessState::Processed);
}

#[test]
fn a_wait_runs_out_although_one_person_said_yes() {
    let mut bench = waiting();
    bench.on(&yes("ann", "k1")).at(DAY + 1000).supervise();
    assert_eq!(bench.task.steps[1].state, State::Failed);
    let error = bench.task.steps[1].error.as_deref();
    assert_eq!(error, Some("1 of 2 people sent the event `approved` within 24h"));
}

// Rule 7: what one person sent is undone, whether the step failed, was skipped or still waits.
#[test]
fn the_event_of_one_person_is_undone() {
    let steps = r#"
a | after = []
b | after = ["a"]; event = "approved"; people = 2; timeout = "24h"; failed = "event.answer == 'no'"; output = { second = "${events[1].by}" }; undo = { agent = "x", timeout = "5s", with = { all = "${output}" } }
"#;
    let ends: [&dyn Fn(&mut Bench); 4] = [
        &|bench| {
            bench.cancel();
        },
        &|bench| {
            bench.at(DAY + 1000).supervise();
        },
        &|bench| {
            bench.on(&said("bob", "k2", json!({"answer": "no"})));
        },
        &|bench| {
            bench.on(&act(What::Skip { step: Some("b".into()) })).on(&act(What::Undo));
        },
    ];
    for end in ends {
        let mut bench = bench(steps, json!({}));
        bench.wake(0).done("a").on(&yes("ann", "k1"));
        end(&mut bench);
        bench.at(DAY + 20_000).woken();
        // Its `output` needs the second, who is missing.
        let all = json!({"all": [{"by": "ann", "data": {"answer": "yes"}}]});
        assert_eq!(bench.request("b").input, all);
        assert!(bench.task.events.iter().all(|event| event.data.is_none()));
    }
    let mut early = bench(steps, json!({}));
    early.wake(0).on(&yes("ann", "k1")).on(&yes("bob", "k1")).failed("a");
    early.at(20_000).woken();
    assert_eq!(early.request("b").input, json!({"all": {"second": "bob"}}));

    // With nothing received there is nothing to undo.
    let mut none = bench(steps, json!({}));
    none.wake(0).done("a").on(&said("bob", "k2", json!({"answer": "no"})));
    none.at(20_000).woken();
    assert_eq!(none.task.process_state(), shared::task::ProcessState::Undone);
    assert_eq!(none.task.steps[1].state, State::Failed);
}

// In Error an event counts, and a resubmission of the step that ran out does not forget who said yes.
#[test]
fn a_resubmitted_wait_knows_who_said_yes() {
    let steps = TWO.replace("failed =", "on_failure = \"error\"; failed =");
    let mut bench = bench(&steps, json!({"by": "eve"}));
    bench.wake(0).done("a").on(&yes("ann", "k1")).at(DAY + 1000).supervise();
    assert_eq!(bench.task.process_state(), shared::task::ProcessState::Error);
    bench.on(&yes("ann", "k2"));
    assert_eq!(bench.kept, Some(Kept::Repeated));
    bench.on(&act(What::Resubmit { step: None, input: None }));
    bench.woken();
    assert!(matches!(bench.task.steps[1].state, State::Waiting { .. }));
    bench.on(&yes("ann", "k3"));
    assert_eq!(bench.kept, Some(Kept::Repeated));
    bench.on(&yes("bob", "k1")).is("Pending a=Processed#1 b=Processed c=Pending", "wake");
}

// `take` sees who said yes before.
#[test]
fn a_step_sees_who_was_before() {
    let steps =
        r#"b | event = "approved"; people = 3; timeout = "24h"; take = "!events.exists(e, e.data.team == event.team)""#;
    let mut bench = bench(steps, json!({}));
    let of = |by: &str, team: &str| said(by, "k", json!({"team": team}));
    bench.wake(0).on(&of("ann", "red"));
    bench.on(&of("bob", "red")).keeps(Kept::Declined(Declined::NotTaken), "");
    bench.on(&of("carl", "blue")).on(&of("dora", "green"));
    assert_eq!(bench.task.process_state(), shared::task::ProcessState::Processed);
}

#[test]
fn a_mistake_in_a_file_says_what_to_write() {
    let read = |steps: &str| parse("w.toml", &file(steps), Known { agents: &["x"], inputs: &[] });
    let event = r#"b | after = []; event = "approved"; timeout = "24h"; "#;
    for (keys, words) in [
        ("people = 0", "`people` cannot be 0; write a number from 1 to 10"),
        ("people = 11", "`people` cannot be 11; write a number from 1 to 10"),
        ("take = \"by != 'x'\"", "`by` cannot be read here"),
        ("failed = \"size(events) > 0\"", "`events` cannot be read here"),
        ("people = 2; output = { x = \"${event.x}\" }", "`event.x` cannot be read here; what can be read is `events`"),
        ("failed = \"${event.no}\"", "`failed` is already an expression"),
    ] {
        let error = read(&format!("{event}{keys}")).unwrap_err().to_string();
        assert!(error.contains(words), "{keys}: {error}");
    }
    for key in ["people = 2", "failed = \"event.no\""] {
        let error = read(&format!("b | after = []; {key}")).unwrap_err().to_string();
        assert!(
            error.contains("is for a step that waits for an event; add `event = \"NAME\"`, or remove it"),
            "{error}"
        );
    }
}
