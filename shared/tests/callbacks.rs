//! Steps whose service accepts the work and reports its end later, as tables.
//!
//! Method: as in `transitions.rs`.

use crate::language::bench;
use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Declined, Event, Kept, What};
use shared::message::Outcome;
use shared::step::State;
use shared::workflow::accept::{address, is_token};

const STEPS: &str = r#"
a | after = []; accept = { within = "1h" }; undo = { agent = "x", with = { id = "${output.id}" } }
b | after = ["a"]
"#;
const HOUR: i64 = 3_600_000;

fn accepted() -> Outcome {
    Outcome::Accepted { output: json!({"id": "j7"}) }
}

fn called(key: &str, data: Value) -> Event {
    Event::CalledBack { step: "a".into(), key: key.into(), data }
}

fn with_secret(steps: &str) -> Bench {
    let mut bench = bench(steps, json!({}));
    bench.task.secret = Some("s".into());
    bench
}

fn begun(steps: &str) -> Bench {
    let mut bench = with_secret(steps);
    bench.wake(0);
    bench
}

// L4: the call ends, its CompleteBy stays where it is, and the step waits.
#[test]
fn accepted_work_waits_for_its_callback() {
    let mut bench = begun(STEPS);
    let own = bench.request("a").callback.clone();
    assert_eq!(own, Some(address("https://orders.example", &bench.task.id, "a", 0, "s")));
    let answer = bench.answer("a", accepted());
    bench.at(1_000).on(&answer).is("Pending a=Waiting+3600000#1 b=Pending", "");
    assert_eq!(
        (bench.task.forward_by, bench.task.steps[0].output.clone()),
        (Some(at(10_000)), Some(json!({"id": "j7"})))
    );
    bench.on(&answer).keeps(Kept::Repeated, "");
    let end = called("k", json!({"id": "j7", "url": "u"}));
    bench.at(60_000).on(&end).is("Pending a=Processed#1 b=Pending", "wake, notice StepCompleted");
    assert_eq!(bench.task.steps[0].output, Some(json!({"id": "j7", "url": "u"})));
    bench.woken().is("Processing a=Processed#1 b=Processing#1", "do b#1");
    // Reported again it changes nothing. Another body under the key, or another key, is refused.
    bench.on(&end).keeps(Kept::Repeated, "");
    bench.on(&called("k", json!({}))).keeps(Kept::Declined(Declined::KeyReused), "");
    bench.on(&called("l", json!({}))).keeps(Kept::Declined(Declined::Late), "");
    bench.on(&called("l", json!({"id": "j7", "url": "u"}))).keeps(Kept::Repeated, "");
}

// "A callback counts once an attempt said accepted": the answer that accepted may be lost.
#[test]
fn a_callback_counts_from_the_first_claim_on() {
    let mut bench = with_secret(STEPS);
    bench.on(&called("k", json!({}))).keeps(Kept::Declined(Declined::Early), "");
    bench
        .wake(0)
        .on(&called("k", json!({"id": 1})))
        .is("Pending a=Processed#1 b=Pending", "wake, notice StepCompleted");
    // While the step is back on its ladder, too.
    let mut bench = begun(STEPS);
    let gone = bench.answer("a", unavailable(None));
    bench
        .on(&gone)
        .on(&called("k", json!({"id": 1})))
        .is("Pending a=Processed#1f1 b=Pending", "wake, notice StepCompleted");
    let late = bench.reply("a", 1, done(json!({"id": 2})));
    bench.on(&late).keeps(Kept::Repeated, "wake");
    assert_eq!(bench.task.steps[0].output, Some(json!({"id": 1})));
}

// The answer that accepted the work is lost, the attempts are used up while the order is in Error, and then the end of the
// work is reported: once a person has settled the other step, nothing is left to decide.
#[test]
fn a_callback_counts_for_a_step_that_has_failed_in_error() {
    let steps = STEPS.replacen("accept", "retry = { max = 1 }; accept", 1) + "z | after = []; on_failure = \"error\"\n";
    let mut bench = begun(&steps);
    bench.failed("z").at(11_000).supervise().is("Error a=Failed#1f1 b=Pending z=Failed#1", "");
    bench.on(&called("k", json!({"id": 1}))).is("Error a=Failed#1f1 b=Pending z=Failed#1", "");
    bench.on(&act(What::Skip { step: Some("z".into()) }));
    bench.is("Pending a=Processed#1f1 b=Pending z=Skipped#1", "wake");
}

#[test]
fn an_agent_may_end_what_it_accepted_by_a_reply() {
    let mut bench = begun(STEPS);
    bench.answered("a", accepted()).at(60_000).done("a");
    bench.is("Processing a=Processed#1 b=Processing#1", "do b#1, notice StepCompleted");
    // A redelivered request may be refused, which says nothing about the work that was accepted.
    let mut bench = begun(STEPS);
    bench.answered("a", accepted()).failed("a").keeps(Kept::Repeated, "");
}

// A missed callback is a late attempt: the ladder, with the same key.
#[test]
fn a_callback_that_does_not_come_is_a_late_attempt() {
    let mut bench = begun(STEPS);
    bench.answered("a", accepted()).at(HOUR + 1_000).supervise();
    bench.is("Pending a=Pending+1000#1f1 b=Pending", "wake+1000");
    assert_eq!((bench.expired, bench.task.steps[0].error.as_deref()), (1, Some("no callback within 1h")));
    bench.at(HOUR + 2_000).woken();
    assert_eq!(bench.request("a").idempotency_key, "ord_1:a:do");
    bench.answered("a", accepted()).at(2 * HOUR + 4_000).supervise();
    bench.is("Undoing a=Failed#2f2 b=Pending", "wake, notice Failed");
    // Late, but before the undo is decided: what the undo needs.
    bench.on(&called("k", json!({"id": "j8"})));
    bench.woken();
    assert_eq!(bench.request("a").input, json!({"id": "j8"}));
}

// A cancel never waits for the long deadline of accepted work, and the undo knows what was accepted.
#[test]
fn a_cancel_of_accepted_work_begins_its_undo_at_the_calls_own_complete_by() {
    let mut bench = begun(&STEPS.replace("1h", "7d"));
    bench.answered("a", accepted()).at(2_000).cancel();
    bench.is("Undoing a=Waiting+604798000#1 b=Pending", "wake+9000, notice Failed");
    bench.at(11_000).woken().is("Undoing a=UndoProcessing#2 b=Pending", "undo a#2");
    assert_eq!(bench.request("a").input, json!({"id": "j7"}));
    bench.on(&called("k", json!({}))).keeps(Kept::Declined(Declined::Late), "");
}

// "In Error a callback is refused": the resubmission would ask a service that replays its 202.
#[test]
fn in_error_a_callback_is_kept_for_the_resubmission() {
    let steps = format!("on | after = []; value = {{ x = 1 }}{STEPS}");
    let mut bench = with_secret(&steps.replace("accept =", "on_failure = \"error\"; accept ="));
    bench.wake(0);
    bench.answered("a", failed());
    assert_eq!(bench.task.process_state().name(), "Error");
    bench.on(&called("k", json!({"id": "j9"}))).is("Error on=Processed a=Failed#1 b=Pending", "");
    bench.on(&called("k", json!({"id": "j9"})));
    assert_eq!(bench.kept, Some(Kept::Repeated));
    bench.resubmit().is("Pending on=Processed a=Processed#1 b=Pending", "wake");
    assert_eq!(bench.task.steps[1].output, Some(json!({"id": "j9"})));
}

// What was refused, and was done all the same, is undone: the service said so with success.
#[test]
fn a_callback_after_a_refusal_owes_the_undo() {
    let mut bench = with_secret(&STEPS.replace("accept =", "on_failure = \"error\"; accept ="));
    bench.wake(0).failed("a").on(&called("k", json!({"id": "j9"}))).at(11_000).cancel();
    bench.woken().is("Undoing a=UndoProcessing#2 b=Pending", "undo a#2");
    assert_eq!(bench.request("a").input, json!({"id": "j9"}));
    // While the order is being undone, too.
    let mut bench = with_secret(STEPS);
    bench.wake(0).failed("a").on(&called("k", json!({"id": "j9"}))).is("Undoing a=Failed#1 b=Pending", "");
    bench.at(11_000).woken().is("Undoing a=UndoProcessing#2 b=Pending", "undo a#2");
}

#[test]
fn in_a_pause_the_callback_counts_and_its_time_sleeps() {
    let mut bench = begun(STEPS);
    bench.answered("a", accepted()).on(&act(What::Pause)).at(2 * HOUR).on(&act(What::Resume));
    bench.is("Pending a=Waiting+3600000#1 b=Pending", "");
    bench.on(&act(What::Pause)).on(&called("k", json!({"id": 1})));
    bench.is("Pending a=Processed#1 b=Pending", "notice StepCompleted");
}

// An agent that does not know `accept` calls what was accepted done.
#[test]
fn an_answer_that_was_not_held_against_accept_is_accepted() {
    let steps =
        "a | after = []; http = { url = \"https://jobs.example/1\" }; with = { to = \"${callback}\" }; accept = { }";
    let mut bench = begun(steps);
    assert!(bench.request("a").input["to"].as_str().unwrap().starts_with("https://orders.example/callbacks/ord_1/a/"));
    assert_eq!(bench.request("a").accept.as_ref().unwrap().text(), "status == 202");
    bench.answered("a", done(json!({"id": 1})));
    assert!(matches!(bench.task.steps[0].state, State::Waiting { event: true, .. }));
}

#[test]
fn what_the_callback_says_is_mapped() {
    let steps = "a | after = []; accept = { within = \"1h\" }; output = { id = \"${first(answer.id, event.id)}\", url = \"${first(event.url, answer.url)}\" }";
    let mut bench = begun(steps);
    bench.answered("a", accepted());
    bench.on(&called("k", json!({}))).keeps(Kept::Declined(Declined::Unfit), "");
    bench.on(&called("k", json!({"url": "u"}))).is("Processed a=Processed#1", "notice Completed");
    assert_eq!(bench.task.steps[0].output, Some(json!({"id": "j7", "url": "u"})));
}

#[test]
fn a_deployment_without_an_address_fails_the_step_that_hands_one_out() {
    let mut bench = bench("a | after = []; with = { to = \"${callback}\" }; accept = { within = \"1h\" }", json!({}));
    bench.wake(0);
    assert_eq!(bench.task.steps[0].state, State::Failed);
    assert!(bench.task.reason.clone().unwrap().contains("set PublicUrl"));
}

#[test]
fn a_token_fits_one_step_of_one_order() {
    let id = bench(STEPS, json!({})).task.id;
    let url = address("https://orders.example/", &id, "a", 0, "secret");
    let token = url.rsplit('/').next().unwrap();
    assert_eq!(url, format!("https://orders.example/callbacks/{id}/a/{token}"));
    assert!(is_token(token, "secret", "a"));
    for (token, secret, step) in [
        (token, "secret", "b"),
        (token, "other", "a"),
        (&token[1..], "secret", "a"),
        ("", "secret", "a"),
        (token, "", "a"),
    ] {
        assert!(!is_token(token, secret, step));
    }
}

// Other fields would not help the service.
#[test]
fn a_callback_that_is_too_long_for_the_order_says_so() {
    let mut bench = begun(STEPS);
    bench.answered("a", accepted());
    let long = json!({"id": "x".repeat(shared::outputs::MAX_BESIDE)});
    bench.on(&called("k", long)).keeps(Kept::Declined(Declined::TooLong), "");
    bench.on(&called("k", json!({"id": "short"}))).is("Pending a=Processed#1 b=Pending", "wake, notice StepCompleted");
}
