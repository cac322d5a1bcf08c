//! How an order ends other than well, and who is notified, as tables: undo, cancel, resubmit, alerts and notices.
//!
//! Method: as in `transitions.rs`.

use crate::support::*;
use serde_json::json;
use shared::decision::{Event, Kept, Refusal, What};
use shared::json::MAX_DEPTH;
use shared::message::{Effect, MAX_OUTPUT, NoticeKind, Outcome};
use shared::outputs::MAX_BESIDE;
use shared::step::{Direction, State};
use shared::supervisor::{Verdict, supervise_full};
use shared::task::{Phase, Priority, Task};

// ---------------------------------------------------------------- undo

// G1, J2: an undo does not wait among low-priority work.
#[test]
fn the_undo_of_a_patient_order_is_not_patient() {
    let mut bench = Bench::new(ONE);
    bench.task.priority = Priority::Low;
    let asked = |bench: &Bench| {
        let requests = bench.effects.iter().filter_map(|e| if let Effect::Request(r) = e { Some(r) } else { None });
        requests.map(|r| (r.direction, r.priority)).collect::<Vec<_>>()
    };
    assert_eq!(asked(bench.wake(0)), [(Direction::Do, Priority::Low)]);
    // The attempt may have been made: it is undone once its time has passed.
    bench.cancel();
    bench.now = 11_000;
    assert_eq!(asked(bench.woken()), [(Direction::Undo, Priority::Normal)]);
}

// G1, I5 of the protocol.
#[test]
fn undos_run_in_reverse_order_also_across_steps_without_undo() {
    let mut bench = Bench::claimed(CHAIN);
    bench.done("a").done("b").done("c").failed("d");
    bench.at(11_000).wake(5).is("Undoing a=UndoPending#1 b=Undone#1 c=UndoProcessing#2 d=Undone#1", "undo c#2");
    bench.done("c").is("Undoing a=UndoProcessing#2 b=Undone#1 c=Undone#2 d=Undone#1", "undo a#2");
    bench.done("a").is("Undone a=Undone#2 b=Undone#1 c=Undone#2 d=Undone#1", "notice Undone");
}

// G1: undos that do not depend on one another run concurrently.
#[test]
fn independent_undos_run_side_by_side() {
    let text = SIDE_BY_SIDE.replacen(
        "retry = { max = 3, backoff = [\"1s\", \"5s\"] }\n[[step]]\nname = \"c\"",
        "undo = { agent = \"x\" }\n[[step]]\nname = \"c\"",
        1,
    );
    let mut bench = Bench::claimed(&text);
    bench.done("a").done("b").failed("c").at(11_000).wake(4);
    bench.is("Undoing a=UndoPending#1 b=UndoPending#1 c=UndoProcessing#2", "undo c#2");
    bench.done("c").is("Undoing a=UndoProcessing#2 b=UndoProcessing#2 c=Undone#2", "undo a#2, undo b#2");
}

// The rule on undo: not before the LATEST CompleteBy of any request plus the skew, even if all have answered.
#[test]
fn undo_waits_for_the_latest_complete_by_ever_handed_out() {
    let mut bench = Bench::claimed(&CHAIN.replacen("timeout = \"10s\"", "timeout = \"60s\"", 1));
    bench.at(1000).done("a").done("b").failed("c");
    bench.is("Undoing a=Processed#1 b=Processed#1 c=Failed#1 d=Pending", "wake+60000, notice Failed");
    bench.at(60_999).wake(4).keeps(Kept::NothingReady, "wake+1");
    bench.at(61_000).wake(4).is("Undoing a=UndoPending#1 b=Undone#1 c=UndoProcessing#2 d=Pending", "undo c#2");
}

// An undo that waits says until when: in the notice of the turn, even if re-sent, and in the order's status.
#[test]
fn an_undo_that_waits_says_until_when() {
    let mut bench = Bench::claimed(ONE);
    let told = |bench: &Bench| {
        let status = shared::view::status(&bench.task, &bench.workflow, SKEW).undo_from;
        let notices = bench.effects.iter().filter_map(|effect| match effect {
            Effect::Notice(notice) => Some(notice.undo_from),
            _ => None,
        });
        (status, notices.collect::<Vec<_>>())
    };
    assert_eq!(told(bench.at(1000)), (None, vec![]));
    assert_eq!(told(bench.failed("a")), (Some(at(11_000)), vec![Some(at(11_000))]));
    let reply = bench.reply("a", 1, failed());
    assert_eq!(told(bench.on(&reply)), (Some(at(11_000)), vec![Some(at(11_000))]));
    assert_eq!(told(bench.at(11_000).wake(2)), (None, vec![]));
    assert_eq!(told(bench.done("a")), (None, vec![None]), "it is over");
}

// A queue may refuse the notice of the turn, and the undo may end before the message that turned the task is
// redelivered. So what ends the wait sends that notice too, under its number. Found by the simulation, seed 131.
#[test]
fn what_ends_the_wait_for_an_undo_sends_the_notice_of_the_turn() {
    let mut bench = Bench::claimed(&with_tombstones(ONE));
    bench.at(1000).cancel().is("Undoing a=Processing#1", "wake+10000, notice Failed");
    bench.at(11_000).supervise().is("Undoing a=Pending#1f1", "notice Failed, wake");
    assert_eq!(bench.notices(), [(NoticeKind::Failed, 2)]);
    bench.wake(3).is("Undoing a=UndoProcessing#2f1", "undo a#2");
    let mut bench = Bench::claimed(&with_tombstones(ONE));
    bench.at(1000).cancel().done("a").is("Undoing a=Processed#1", "notice Failed, wake, notice StepCompleted");
    assert_eq!(bench.notices(), [(NoticeKind::Failed, 2), (NoticeKind::StepCompleted, 3)]);
    // With a wait only a Wake that goes out after the notice begins the undo, or the sweep, which sends both.
    let mut bench = Bench::claimed(ONE);
    bench.at(1000).cancel().at(11_000).supervise().is("Undoing a=Pending#1f1", "");
    bench.at(60_000).supervise().keeps(Kept::NothingReady, "notice Failed, wake");
}

// A late Wake from before the turn could begin an undo that ends before the notice of the turn is out. So it sends that
// notice, and a Wake that knows of it. Found by the simulation, seed 21279 of workflows/order.toml.
#[test]
fn a_wake_that_does_not_know_of_the_turn_begins_no_undo() {
    let mut bench = Bench::claimed(ONE);
    bench.at(1000).cancel().at(11_000).wake(1).keeps(Kept::NothingReady, "notice Failed, wake");
    assert_eq!(bench.notices(), [(NoticeKind::Failed, 2)]);
    bench.wake(2).is("Undoing a=UndoProcessing#2", "undo a#2");
    // Without a queue for notices there is no notice to wait for.
    let mut bench = Bench::claimed(ONE);
    bench.task.reply_queue = None;
    bench.at(1000).cancel().at(11_000).wake(1).is("Undoing a=UndoProcessing#2", "undo a#2");
}

fn with_tombstones(text: &str) -> String {
    format!("tombstones = true\n{text}")
}

/// Two concurrent steps, both with an undo.
fn both_undone() -> String {
    let step = |name: &str| {
        format!("[[step]]\nname = \"{name}\"\nagent = \"x\"\ntimeout = \"10s\"\nundo = {{ agent = \"x\" }}\n")
    };
    with_tombstones(&format!("name = \"both\"\n{}{}", step("a"), step("b")))
}

// If services keep tombstones, an answered request is harmless: the undo begins with the Wake of the turn.
#[test]
fn with_tombstones_an_undo_does_not_wait_for_what_was_answered() {
    let mut bench = Bench::claimed(&with_tombstones(&CHAIN.replacen("timeout = \"10s\"", "timeout = \"60s\"", 1)));
    bench.at(1000).done("a").done("b").failed("c");
    bench.is("Undoing a=Processed#1 b=Processed#1 c=Failed#1 d=Pending", "wake, notice Failed");
    bench.wake(4).is("Undoing a=UndoPending#1 b=Undone#1 c=UndoProcessing#2 d=Pending", "undo c#2");
}

// It waits for attempts in progress: then their outcome is known, and their undo carries what they returned.
#[test]
fn with_tombstones_an_undo_begins_with_the_last_answer() {
    let mut bench = Bench::claimed(&both_undone());
    bench.at(1000).failed("b").is("Undoing a=Processing#1 b=Failed#1", "wake+10000, notice Failed");
    bench.wake(2).keeps(Kept::NothingReady, "wake+10000");
    bench.done("a").is("Undoing a=Processed#1 b=Failed#1", "notice Failed, wake, notice StepCompleted");
    // The process died before it sent them: the reply is redelivered.
    let reply = bench.reply("a", 1, done(json!({"of": "a"})));
    bench.on(&reply).keeps(Kept::Repeated, "notice Failed, notice StepCompleted, wake");
    bench.wake(3).is("Undoing a=UndoProcessing#2 b=UndoProcessing#2", "undo a#2, undo b#2");
    assert_eq!(bench.request("a").output, Some(json!({"of": "a"})));
    // A silent attempt is waited for until its CompleteBy, as usual.
    let mut bench = Bench::claimed(&both_undone());
    bench.at(1000).failed("b").at(11_000).supervise().is("Undoing a=Pending#1f1 b=Failed#1", "notice Failed, wake");
    bench.wake(3).is("Undoing a=UndoProcessing#2f1 b=UndoProcessing#2", "undo a#2, undo b#2");
    // Nothing begins while a person holds the order.
    let mut bench = Bench::claimed(&both_undone());
    bench.at(1000).failed("b").task.paused_at = Some(at(1000));
    bench.done("a").is("Undoing a=Processed#1 b=Failed#1", "notice StepCompleted");
}

// A step without an undo gets no tombstone: if it failed, its request may still be carried out, so the wait stays.
#[test]
fn with_tombstones_a_failed_step_without_an_undo_is_waited_for() {
    let mut bench = Bench::claimed(&with_tombstones(SIDE_BY_SIDE));
    bench.at(1000).failed("b").done("a").is("Undoing a=Processed#1 b=Failed#1 c=Pending", "notice StepCompleted");
    bench.at(10_999).wake(2).keeps(Kept::NothingReady, "wake+1");
    bench.at(11_000).wake(2).is("Undoing a=UndoProcessing#2 b=Undone#1 c=Pending", "undo a#2");
}

// I2 under clock skew: one instance begins the undo as soon as it may, and another one whose clock lags takes the last
// reply. It must end the task: nothing else would, because nothing is due any more. Found by the simulation, seed 91.
#[test]
fn an_undo_that_has_begun_ends_even_on_a_clock_that_is_behind() {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").at(11_000).wake(2).is("Undoing a=UndoProcessing#2", "undo a#2");
    bench.now = 10_500;
    bench.done("a").is("Undone a=Undone#2", "notice Undone");
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").done("b").failed("c").at(11_000).wake(4);
    bench.is("Undoing a=UndoPending#1 b=Undone#1 c=UndoProcessing#2", "undo c#2");
    bench.now = 10_500;
    bench.done("c").is("Undoing a=UndoProcessing#2 b=Undone#1 c=Undone#2", "undo a#2");
}

// G3: an unknown outcome is undone; the request has no output to show that.
#[test]
fn a_step_whose_outcome_is_unknown_is_undone_too() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.failed("b").at(11_000).supervise();
    bench.is("Undoing a=Pending#1f1 b=Failed#1 c=Pending", "");
    bench.wake(2).is("Undoing a=UndoProcessing#2f1 b=Undone#1 c=Pending", "undo a#2");
    assert_eq!(bench.request("a").output, None);
    // Also if the Wake came before the supervisor.
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.failed("b").at(11_000).wake(2).is("Undoing a=UndoProcessing#2 b=Undone#1 c=Pending", "undo a#2");
}

// Wording 3: "expire makes it Pending". G1.
#[test]
fn an_expired_undo_goes_back_to_undo() {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").at(11_000).wake(2).at(22_000).supervise();
    bench.is("Undoing a=UndoPending+1000#2uf1", "wake+1000");
    bench.at(23_000).wake(4).is("Undoing a=UndoProcessing#3uf1", "undo a#3");
}

// G2: an undo may fail, at its own threshold or at once; never in silence.
#[test]
fn an_undo_that_fails_for_good_stops_with_an_alert() {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").at(11_000).wake(2).failed("a").is("Error a=UndoFailed#2", "notice AttentionNeeded, alert");
    assert_eq!(bench.task.phase, Phase::UndoError);
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("b").failed("a").at(11_000).wake(3).at(22_000).supervise().at(24_000).wake(5).at(35_000).supervise();
    bench.is("Error a=UndoFailed#3uf2 b=Undone#1 c=Pending", "notice AttentionNeeded, alert");
}

// G2: a reader of the order learns which step it was, and whether it failed at once or at its threshold.
#[test]
fn the_reason_of_a_stop_names_the_step() {
    let reason = |bench: &Bench| bench.task.reason.clone().unwrap();
    let mut bench = Bench::claimed(ONE);
    bench.failed("a");
    assert_eq!(reason(&bench), "`a` failed: no such card");
    bench.at(11_000).wake(2).failed("a");
    assert_eq!(reason(&bench), "the undo of `a` failed: no such card");
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("b").failed("a").at(11_000).wake(3).at(22_000).supervise().at(24_000).wake(5).at(35_000).supervise();
    assert!(reason(&bench).starts_with("the undo of `a` failed: "), "{}", reason(&bench));
}

// G2, D8: a resubmission continues in the direction that failed.
#[test]
fn a_failed_undo_is_resubmitted_as_an_undo_with_its_count_at_nothing() {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").at(11_000).wake(2).failed("a").resubmit().is("Undoing a=UndoPending#2", "wake");
    bench.wake(5).is("Undoing a=UndoProcessing#3", "undo a#3").done("a").is("Undone a=Undone#3", "notice Undone");
}

/// Outputs that no record can keep as they are.
fn unkeepable() -> [(Outcome, &'static str); 3] {
    let deep = (0..=MAX_DEPTH).fold(json!(0), |inner, _| json!([inner]));
    let garbled = Outcome::Garbled { error: "`a` is there twice".into() };
    [(done(json!("x".repeat(MAX_BESIDE + 1))), "return a reference"), (done(deep), "nested"), (garbled, "twice")]
}

// An undo's output is not kept, so no answer can make it fail.
#[test]
fn an_undo_with_an_output_that_cannot_be_kept_is_done_all_the_same() {
    for (outcome, _) in unkeepable() {
        let mut bench = Bench::claimed(ONE);
        bench.failed("a").at(11_000).wake(2);
        bench.answered("a", outcome).is("Undone a=Undone#2", "notice Undone");
    }
}

// The record holds all outputs: one that it cannot keep is refused with the reason, and undone like any failure.
#[test]
fn a_step_with_an_output_that_cannot_be_kept_fails_and_says_why() {
    for (outcome, why) in unkeepable() {
        let mut bench = Bench::claimed(ONE);
        bench.answered("a", outcome).is("Undoing a=Failed#1", "wake+11000, notice Failed");
        assert!(bench.task.reason.as_ref().unwrap().contains(why), "{:?}", bench.task.reason);
    }
    let deepest = (0..MAX_DEPTH).fold(json!(0), |inner, _| json!([inner]));
    for output in [json!("x".repeat(MAX_OUTPUT - 2)), deepest] {
        let mut bench = Bench::claimed(ONE);
        bench.answered("a", done(output)).is("Processed a=Processed#1", "notice Completed");
        // What was saved can be read, by any parser.
        let record = serde_json::to_string(&bench.task).unwrap();
        assert_eq!(serde_json::from_str::<Task>(&record).unwrap().steps, bench.task.steps);
    }
}

// An irreversible step that may have run asks for a person.
#[test]
fn an_irreversible_step_that_may_have_run_stops_the_task_instead_of_an_undo() {
    let text = CHAIN.replacen("after = [\"a\"]", "after = [\"a\"]\nirreversible = true", 1);
    let mut bench = Bench::claimed(&text);
    let mut early = Bench::claimed(&text);
    early.failed("a").is("Undoing a=Failed#1 b=Pending c=Pending d=Pending", "wake+11000, notice Failed");
    bench.done("a").cancel();
    assert_eq!(bench.kept, Some(Kept::Refused(Refusal::Irreversible)), "b is with its agent");
    bench
        .done("b")
        .failed("c")
        .is("Error a=Processed#1 b=Processed#1 c=Failed#1 d=Pending", "notice AttentionNeeded, alert");
    assert!(bench.task.reason.as_ref().unwrap().contains("`b` cannot be undone"), "{:?}", bench.task.reason);
    bench.cancel().keeps(Kept::Refused(Refusal::Irreversible), "");
}

// F1: the turn to undo is past once a person resubmitted the undo; its notice does not go out again without a number.
#[test]
fn a_reply_redelivered_after_its_undo_was_resubmitted_sends_nothing() {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").at(11_000).wake(2);
    let reply = bench.answer("a", failed());
    bench.on(&reply).is("Error a=UndoFailed#2", "notice AttentionNeeded, alert");
    bench.resubmit().is("Undoing a=UndoPending#2", "wake");
    bench.on(&reply).keeps(Kept::Repeated, "wake");
}

// ---------------------------------------------------------------- cancel, in each phase

// G4.
#[test]
fn cancelling_an_order_that_has_not_begun_ends_it_at_once() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    bench.cancel().is("Undone a=Pending b=Pending c=Pending", "notice Received, notice Undone");
    assert_eq!(bench.task.due, None);
    bench.wake(0);
    assert_eq!(bench.kept, Some(Kept::NothingReady));
}

// G4: running, waiting, in Error, undoing, ended.
#[test]
fn cancel_in_each_phase() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.at(2000).cancel().is("Undoing a=Processing#1 b=Processing#1 c=Pending", "wake+9000, notice Failed");
    bench.at(11_000).wake(2).cancel().keeps(Kept::Repeated, "notice Failed");

    let mut bench = Bench::claimed(ONE);
    bench
        .at(11_000)
        .supervise()
        .cancel()
        .is("Undoing a=Pending#1f1".replace("Pending", "Pending+1000").as_str(), "wake, notice Failed");
    bench.wake(3).is("Undoing a=UndoProcessing#2f1", "undo a#2");

    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.failed("a").cancel().is("Undoing a=Failed#1", "wake+11000, notice Failed");
    assert_eq!(bench.task.alert, None);
    bench.on(&Event::AlertSent { version: 2 }).keeps(Kept::Repeated, "");
    bench.at(11_000).wake(3).failed("a").is("Error a=UndoFailed#2", "notice AttentionNeeded, alert");
    bench.cancel().keeps(Kept::Refused(Refusal::UndoBegun), "");

    let mut bench = Bench::claimed(ONE);
    bench.done("a").cancel().keeps(Kept::Refused(Refusal::Ended), "");
}

// ---------------------------------------------------------------- resubmit, in each phase

// D8, wording 5: all failed steps, the due row, and the numbers of attempts, which continue.
#[test]
fn resubmit_resets_every_failed_step_and_keeps_the_attempts() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    let late = bench.answer("a", done(json!("old")));
    bench.failed("a").failed("b").is("Error a=Failed#1 b=Failed#1 c=Pending", "");
    bench.on(&Event::AlertSent { version: 2 });
    assert_eq!(bench.task.due, None);
    bench.at(1000).resubmit().is("Pending a=Pending#1 b=Pending#1 c=Pending", "wake");
    assert_eq!(bench.task.due, Some(at(11_000)), "its Wake may be lost");
    bench.wake(5).is("Processing a=Processing#2 b=Processing#2 c=Pending", "do a#2, do b#2");
    bench.on(&late);
    assert_eq!(bench.kept, Some(Kept::Stale));
    assert!(bench.task.log.len() >= 5, "earlier attempts stay in the history: {:?}", bench.task.log);
}

// D8: a sibling that still runs continues.
#[test]
fn resubmit_leaves_a_running_sibling_alone() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.failed("a").is("Error a=Failed#1 b=Processing#1 c=Pending", "notice AttentionNeeded, alert");
    bench.resubmit().is("Processing a=Pending#1 b=Processing#1 c=Pending", "wake");
    bench
        .wake(3)
        .done("a")
        .done("b")
        .is("Processing a=Processed#2 b=Processed#1 c=Processing#1", "do c#1, notice StepCompleted");
}

// D8: in other states it is not allowed, and an operator who saw an older version learns that.
#[test]
fn resubmit_is_only_for_a_stopped_task_as_the_operator_saw_it() {
    for bench in [&mut Bench::new(ONE), &mut Bench::claimed(ONE)] {
        bench.resubmit().keeps(Kept::Refused(Refusal::NotStopped), "");
    }
    let mut bench = Bench::claimed(ONE);
    bench.done("a").resubmit().keeps(Kept::Refused(Refusal::NotStopped), "");
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").resubmit().keeps(Kept::Refused(Refusal::NotStopped), "");
    bench.at(11_000).wake(2).done("a").resubmit().keeps(Kept::Refused(Refusal::NotStopped), "");
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.failed("a");
    let act = |seen| resubmitted("bob", "", Some(seen));
    bench.on(&act(1)).keeps(Kept::Moved, "").on(&act(2)).is("Pending a=Pending#1", "wake");
}

// D6, D8: a resubmitted step gets the whole ladder again.
#[test]
fn a_resubmitted_step_has_all_its_attempts_again() {
    let mut bench = Bench::claimed(&ONE.replace("max = 2, ", "max = 2, then = \"error\", "));
    bench.at(11_000).supervise().at(12_000).wake(2).at(23_000).supervise();
    bench.is("Error a=Failed#2f2", "notice AttentionNeeded, alert").resubmit().wake(5);
    bench.at(34_000).supervise().is("Pending a=Pending+1000#3f1", "wake+1000");
}

// B5, M5: docs/limits.md promises services one key, and says how long the default attempts go on under it.
#[test]
fn the_default_attempts_share_one_key_for_106_minutes() {
    let mut bench = Bench::claimed(&ONE.replace("retry = { max = 2, backoff = [\"1s\"] }\n", ""));
    let mut begun = Vec::new();
    while bench.task.phase == Phase::Forward {
        assert_eq!(bench.request("a").idempotency_key, "ord_1:a:do");
        begun.push(bench.now / 60_000);
        bench.answered("a", unavailable(None));
        if let State::Pending { not_before: Some(from) } = bench.task.steps[0].state {
            bench.at(ms(from)).woken();
        }
    }
    assert_eq!(begun, [0, 1, 6, 16, 46, 106], "minutes after the first");
}

// ---------------------------------------------------------------- alerts and notices

// Wording 6: "alert delivered clears the alert" without the version.
#[test]
fn an_older_alert_delivered_does_not_erase_a_newer_one() {
    let text = SIDE_BY_SIDE.replacen(
        "retry = { max = 3, backoff = [\"1s\", \"5s\"] }\n[[step]]\nname = \"c\"",
        "undo = { agent = \"x\" }\n[[step]]\nname = \"c\"",
        1,
    );
    let mut bench = Bench::claimed(&text);
    bench.done("a").done("b").failed("c").at(11_000).wake(4).done("c");
    bench.failed("a");
    let first = bench.task.alert.as_ref().unwrap().version;
    bench.failed("b").is("Error a=UndoFailed#2 b=UndoFailed#2 c=Undone#2", "notice AttentionNeeded, alert");
    bench.on(&Event::AlertSent { version: first }).keeps(Kept::Repeated, "");
    let second = bench.task.alert.as_ref().unwrap().version;
    assert!(second > first && bench.task.due.is_some());
    bench.on(&Event::AlertSent { version: second });
    assert_eq!((&bench.task.alert, bench.task.due), (&None, None));
}

// G2, F2: the alert names the step, its attempts, its last error and the page of the runbook.
#[test]
fn an_alert_says_what_failed_and_where_to_read_on() {
    let alert = |bench: &Bench| {
        let find = |e: &Effect| if let Effect::Alert(alert) = e { Some(alert.clone()) } else { None };
        bench.effects.iter().find_map(find).unwrap()
    };
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    let forward = alert(bench.failed("a"));
    assert_eq!((forward.step.as_deref(), forward.attempts, forward.version), (Some("a"), 1, 2));
    assert_eq!(
        (forward.last_error.as_deref(), forward.reason.as_str()),
        (Some("no such card"), "`a` failed: no such card")
    );
    assert_eq!(forward.runbook, "docs/runbook.md#order-in-error");
    let mut bench = Bench::claimed(ONE);
    let undo = alert(bench.failed("a").at(11_000).wake(2).failed("a"));
    assert_eq!((undo.attempts, undo.runbook.as_str()), (2, "docs/runbook.md#undo-failed"));
}

// F1: a notice tells the whole history; what no step did has no attempt.
#[test]
fn the_history_in_a_notice_gives_each_event_of_a_step_its_attempt() {
    let mut bench = Bench::claimed(ONE);
    bench.at(500).cancel().at(11_000).wake(2).done("a");
    let Some(Effect::Notice(notice)) = bench.effects.first() else { panic!("{}", bench.effects()) };
    let entries: Vec<_> = notice.history.iter().map(|e| (e.event.as_str(), e.step.as_deref(), e.attempt)).collect();
    let expected = [
        ("received", None, None),
        ("step_started", Some("a"), Some(1)),
        ("cancelled", None, None),
        ("undoing", None, None),
        ("undo_started", Some("a"), Some(2)),
        ("step_undone", Some("a"), Some(2)),
        ("undone", None, None),
    ];
    assert_eq!(entries, expected);
}

// F2, F3, D10: an alert that did not go out is sent by the next sweep, with the notice that may have been lost with it.
#[test]
fn an_alert_stays_due_until_it_is_out() {
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.at(3000).failed("a");
    assert_eq!(bench.task.due, Some(at(5000)));
    // The longer it is owed, the longer it makes way for what is due behind it.
    for (now, due) in [(5000, 7000), (7000, 11_000), (11_000, 19_000), (19_000, 35_000), (900_000, 1_200_000)] {
        bench.at(now).supervise().keeps(Kept::NothingReady, "notice AttentionNeeded, alert");
        assert_eq!(bench.task.due, Some(at(due)), "at {now}");
    }
    bench.on(&Event::AlertSent { version: 2 }).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.task.due, None);
}

// F2: the instance that saved it is sending it; a sweep in between would send it a second time.
#[test]
fn an_alert_just_saved_is_left_to_whoever_saved_it() {
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.at(9_000).failed("a").at(10_999).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.task.due, Some(at(11_000)));
    bench.supervise().keeps(Kept::NothingReady, "");
    bench.at(11_000).supervise().keeps(Kept::NothingReady, "notice AttentionNeeded, alert");
}

// F2, F3: found by the model. An alert that went out without its notice must not hide that the notice is lost.
#[test]
fn an_owed_alert_never_goes_out_without_its_notice() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.failed("a").is("Error a=Failed#1 b=Processing#1 c=Pending", "notice AttentionNeeded, alert");
    bench.done("b").is("Error a=Failed#1 b=Processed#1 c=Pending", "notice StepCompleted");
    bench.at(2000).supervise().keeps(Kept::NothingReady, "notice AttentionNeeded, alert");
}

// F3: an alert that cannot be sent must not hide the deadline of a sibling.
#[test]
fn an_alert_that_makes_way_leaves_the_deadline_of_a_running_sibling() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.at(1000).failed("a");
    for (now, due) in [(3000, 5000), (5000, 9000), (9000, 11_000)] {
        bench.at(now).supervise().keeps(Kept::NothingReady, "notice AttentionNeeded, alert");
        assert_eq!(bench.task.due, Some(at(due)), "at {now}");
    }
}

// F3: with a sibling still running the task stays in the index after its alert is out.
#[test]
fn an_alert_that_is_out_leaves_the_deadline_of_a_running_sibling_in_the_index() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.at(3000).failed("a").on(&Event::AlertSent { version: 2 });
    assert!(bench.task.due.is_some_and(|t| t <= at(11_000)));
    bench.at(11_000).supervise().is("Error a=Failed#1 b=Pending#1f1 c=Pending", "");
    assert_eq!(bench.task.due, None);
    bench.resubmit().wake(6).is("Processing a=Processing#2 b=Processing#2 c=Pending", "do a#2, do b#2");
}

/// `a` stops the order; `b` runs beside it and has one attempt, and `more`.
fn beside(more: &str) -> Bench {
    let text = format!(
        r#"
        name = "beside"
        on_failure = "error"
        [[step]]
        name = "a"
        agent = "x"
        after = []
        timeout = "10s"
        [[step]]
        name = "b"
        agent = "x"
        after = []
        timeout = "10s"
        retry = {{ max = 1 }}
        {more}
        "#
    );
    let mut bench = Bench::claimed(&text);
    bench.failed("a").at(11_000);
    bench
}

// D6: found by generated workflows. An attempt that ends while the order is in Error counts as any other. If it was
// the last one, a person has to decide about its step, too: going on must not mean another attempt.
#[test]
fn attempts_that_are_spent_in_error_stay_spent() {
    let skip = |step: &str| act(What::Skip { step: Some(step.into()) });
    let mut bench = beside("");
    bench.supervise().is("Error a=Failed#1 b=Failed#1f1", "");
    assert!(bench.task.reason.as_ref().unwrap().starts_with("`a` failed: "), "{:?}", bench.task.reason);
    bench.on(&skip("a")).is("Error a=Skipped#1 b=Failed#1f1", "");
    assert!(bench.task.reason.as_ref().unwrap().starts_with("`b` failed: "), "{:?}", bench.task.reason);
    bench.resubmit().wake(6).is("Processing a=Skipped#1 b=Processing#2", "do b#2");
    // An agent that gives up has no attempt left either.
    let mut bench = beside("");
    bench.now = 9_000;
    let gone = bench.answer("b", unavailable(None));
    bench.on(&gone).is("Error a=Failed#1 b=Failed#1f1", "");
    // A full record does not give another one.
    let bench = beside("");
    let Verdict::Recover { task, .. } = supervise_full(&bench.task, 1, &bench.turn("v1"), "too long") else { panic!() };
    assert_eq!((&task.steps[1].state, task.steps[1].failures), (&State::Failed, 1));
}

// D5, D6: what a workflow says about late attempts and failures holds for a step beside the one that stopped the order.
#[test]
fn late_and_catch_apply_in_error() {
    beside("late = { extend = \"30s\", times = 1 }").supervise().is("Error a=Failed#1 b=Processing#1", "wake");
    beside("catch = \"error.kind == 'spent'\"").supervise().is("Error a=Failed#1 b=Caught#1f1", "");
    // One without a value catches nothing, and says so.
    let mut bench = beside("catch = \"error.answer.code == 'x'\"");
    bench.supervise().is("Error a=Failed#1 b=Failed#1f1", "");
    assert!(bench.task.steps[1].error.as_ref().unwrap().contains("error.answer"), "{:?}", bench.task.steps[1].error);
}

// F1, F3: a strict final notice keeps the task due until it is out; all three ends.
#[test]
fn a_strict_notice_stays_due_until_it_is_out() {
    let strict = |text: &str| format!("strict_notices = true\n{text}");
    let mut bench = Bench::claimed(&strict(ONE));
    bench.at(2000).done("a").is("Processed a=Processed#1", "notice Completed");
    bench.at(9000).supervise().keeps(Kept::NothingReady, "notice Completed");
    assert_eq!(bench.notices(), [(NoticeKind::Completed, 2)]);
    bench.on(&Event::NoticeSent { version: 1 }).keeps(Kept::Repeated, "");
    bench.on(&Event::NoticeSent { version: 2 });
    assert_eq!((bench.task.notice_owed, bench.task.due), (false, None));

    let mut bench = Bench::new(&strict(ONE));
    bench.cancel();
    assert!(bench.task.notice_owed);

    // The alert alone does not prove that the submitter got its notice.
    let mut bench = Bench::claimed(&strict(&on_failure_error(ONE)));
    bench.failed("a").on(&Event::AlertSent { version: 2 }).at(2000).supervise();
    bench.keeps(Kept::NothingReady, "notice AttentionNeeded");
    let mut resubmitted = Bench::claimed(&strict(&on_failure_error(ONE)));
    resubmitted.failed("a").resubmit();
    assert!(!resubmitted.task.notice_owed, "the end it was owed for is past");
    bench.cancel();
    assert!(!bench.task.notice_owed, "the end it was owed for is past");
}

// F1: a submitter without a queue is owed nothing.
#[test]
fn without_a_reply_queue_there_are_no_notices() {
    let mut bench = Bench::new(&format!("strict_notices = true\n{ONE}"));
    bench.task.reply_queue = None;
    bench.wake(0).done("a").is("Processed a=Processed#1", "");
    assert_eq!(bench.task.due, None);
}

// F1, I6 of the protocol: along any life the sequence numbers of different notices rise.
#[test]
fn the_sequence_of_notices_rises_and_a_repetition_has_its_first_number() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    let fatal = bench.answer("a", failed());
    let mut seen: Vec<(NoticeKind, u64)> = Vec::new();
    bench.on(&fatal);
    seen.extend(bench.notices());
    bench.done("b");
    seen.extend(bench.notices());
    bench.on(&fatal);
    assert_eq!(bench.notices(), [seen[0]], "a repetition is the same notice");
    bench.resubmit().wake(4);
    bench.done("a");
    seen.extend(bench.notices());
    bench.done("c");
    seen.extend(bench.notices());
    assert!(seen.windows(2).all(|w| w[0].1 < w[1].1), "{seen:?}");
    assert_eq!(seen.last().unwrap().0, NoticeKind::Completed);
}

// ---------------------------------------------------------------- the order's deadline

/// A second after the start, the agent of step a says that its service wants ten minutes.
fn waits_long(bench: &mut Bench) -> &mut Bench {
    bench.at(1000).answered("a", unavailable(Some(600_000)))
}

/// The same workflow, which has 30 seconds in all.
fn in_30_seconds(text: &str) -> String {
    format!("deadline = \"30s\"\n{}", text.replace("agent = \"x\"\ntimeout", "agent = \"x\"\nafter = []\ntimeout"))
}

// K8. Every save keeps it due, so the sweep finds it whatever the order waits for.
#[test]
fn an_order_past_its_deadline_is_undone() {
    let mut bench = Bench::claimed(&in_30_seconds(ONE));
    waits_long(&mut bench).is("Pending a=Pending+600000#1f1", "wake+600000");
    assert_eq!(bench.task.due, Some(at(10_000)), "a due time that is early enough stays");
    bench.at(10_000).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.task.due, Some(at(31_000)), "the deadline and the skew");
    bench.at(30_999).supervise().keeps(Kept::NothingReady, "");
    bench.at(31_000).supervise().is("Undoing a=Pending+570000#1f1", "wake, notice Failed");
    assert_eq!(bench.task.reason.as_deref(), Some("the order's deadline of 30s passed"));
    bench.woken().is("Undoing a=UndoProcessing#2f1", "undo a#2");
    // The undo has no deadline but its own.
    bench.at(90_000).supervise().is("Undoing a=UndoPending+1000#2f1uf1", "wake+1000");
}

// K8. A step under way is treated as after any failure of another, and what is done counts.
#[test]
fn a_deadline_does_not_undo_what_an_agent_still_does() {
    let text = in_30_seconds(ONE).replace("timeout = \"10s\"", "timeout = \"60s\"");
    let mut bench = Bench::claimed(&text);
    bench.at(31_000).supervise().is("Undoing a=Processing#1", "wake+30000, notice Failed");
    bench.at(40_000).done("a").at(61_000).wake(3).is("Undoing a=UndoProcessing#2", "undo a#2");
    // Done before a supervisor looked: the first write counts.
    let mut bench = Bench::claimed(&text);
    bench.at(45_000).done("a").is("Processed a=Processed#1", "notice Completed");
    bench.supervise().keeps(Kept::NothingReady, "");
    // An attempt that a workflow would give more time gets none after the deadline.
    let late = text.replace("60s", "29s").replace("retry", "late = { extend = \"20s\", times = 3 }\nretry");
    let mut bench = Bench::claimed(&late);
    bench.at(31_000).supervise().is("Undoing a=Pending+1000#1f1", "wake, notice Failed");
}

// K8: `on_failure`, and a step that cannot be undone.
#[test]
fn a_late_order_may_stop_for_a_person() {
    let mut bench = Bench::claimed(&on_failure_error(&in_30_seconds(ONE)));
    waits_long(&mut bench).at(31_000).supervise();
    bench.is("Error a=Pending+570000#1f1", "notice AttentionNeeded, alert");
    // Resubmitted, it has the whole time again.
    bench.at(40_000).resubmit().is("Pending a=Pending+1000#1", "wake+1000");
    assert_eq!(bench.task.deadline, Some(at(70_000)));
    bench.at(70_999).supervise().keeps(Kept::NothingReady, "wake");
    bench.at(71_000).supervise().is("Error a=Pending+-30000#1", "notice AttentionNeeded, alert");
    let text = in_30_seconds(ONE).replace("undo = { agent = \"x\" }", "irreversible = true");
    let mut bench = Bench::claimed(&text);
    waits_long(&mut bench).at(31_000).supervise();
    bench.is("Error a=Pending+570000#1f1", "notice AttentionNeeded, alert");
    let reason = bench.task.reason.clone().unwrap();
    assert!(reason.contains("deadline of 30s") && reason.contains("`a` cannot be undone"), "{reason}");
}

// K8: a pause suspends the deadline and does not move it.
#[test]
fn a_paused_order_is_not_late() {
    let mut bench = Bench::claimed(&in_30_seconds(ONE));
    waits_long(&mut bench).on(&act(What::Pause));
    assert_eq!(bench.task.due, None);
    bench.at(90_000).supervise().keeps(Kept::NothingReady, "");
    // Its Wake comes before the sweep, and starts nothing.
    bench.on(&act(What::Resume)).at(91_000).wake(0).keeps(Kept::NothingReady, "");
    bench.supervise().is("Undoing a=Pending+510000#1f1", "wake, notice Failed");
}

// K8. The notice that it was received may be lost with its Wake, and comes before the notice that it failed.
#[test]
fn an_order_that_is_late_before_it_began_is_told_of_from_the_start() {
    let mut bench = Bench::new(&in_30_seconds(ONE));
    bench.at(31_000).supervise().is("Undoing a=Pending", "notice Received, wake, notice Failed");
    bench.woken().is("Undone a=Pending", "notice Undone");
}

// K8. After the deadline no event starts a step, even before the sweep. A reply still counts.
#[test]
fn nothing_starts_after_the_deadline() {
    let text = in_30_seconds(CHAIN).replace("timeout = \"10s\"", "timeout = \"60s\"");
    let mut bench = Bench::claimed(&text);
    bench
        .at(30_999)
        .done("a")
        .is("Processing a=Processed#1 b=Processing#1 c=Pending d=Pending", "do b#1, notice StepCompleted");
    bench.at(31_000).done("b").is("Pending a=Processed#1 b=Processed#1 c=Pending d=Pending", "notice StepCompleted");
    bench.wake(2).keeps(Kept::NothingReady, "");
    bench.supervise();
    assert_eq!(bench.task.phase, Phase::Undoing);
}

// K8: an order whose first Wake is lost is found by its deadline, if that is nearer than the usual first look.
#[test]
fn the_first_look_is_no_later_than_the_deadline() {
    let bench = |deadline: &str| Bench::new(&in_30_seconds(ONE).replace("30s", deadline));
    assert_eq!([bench("5s"), bench("30s")].map(|bench| bench.task.due), [Some(at(5_000)), Some(at(10_000))]);
}
