//! What a person may do to an order, as tables: the record before, the action, the record after and what is sent.
//!
//! Method: as in `transitions.rs`; an action is one more event on the bench. // B9

use crate::support::*;
use serde_json::json;
use shared::decision::{Act, Event, Kept, Refusal, What};
use shared::json::MAX_DEPTH;
use shared::message::{Effect, MAX_DELAY, MAX_OUTPUT, NoticeKind};
use shared::operator::MAX_INPUT;
use shared::step::State;
use shared::task::{Phase, ProcessState};
use shared::trouble::trouble;
use shared::view;

fn seen(what: What, version: u64) -> Event {
    Event::Act(Act { seen: Some(version), ..by_ann(what) })
}

fn resubmit() -> What {
    What::Resubmit { step: None, input: None }
}

fn skip(step: &str) -> What {
    What::Skip { step: Some(step.into()) }
}

fn mark_done(step: &str) -> What {
    What::MarkDone { step: Some(step.into()), output: json!({"by": "hand"}) }
}

fn all_kinds() -> Vec<What> {
    let any = || None;
    vec![
        resubmit(),
        What::Skip { step: any() },
        What::MarkDone { step: any(), output: json!(1) },
        What::RetryNow { step: any() },
        What::Cancel,
        What::Undo,
        What::Pause,
        What::Resume,
    ]
}

/// `a` has failed permanently, `b` is done, and the alert is out.
fn stopped() -> Bench {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.done("b").failed("a").on(&Event::AlertSent { version: 3 });
    bench.is("Error a=Failed#1 b=Processed#1 c=Pending", "");
    bench
}

/// The undo of `a` has failed permanently.
fn undo_failed() -> Bench {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a").at(11_000).wake(2).failed("a").on(&Event::AlertSent { version: 4 });
    bench.is("Error a=UndoFailed#2", "");
    bench
}

fn refuses(bench: &mut Bench, what: What, why: Refusal) {
    let before = bench.task.clone();
    bench.on(&act(what)).keeps(Kept::Refused(why), "");
    assert_eq!(bench.task, before);
}

/// `b` fails before any call, and the undo of `a` fails, too.
fn failed_before_a_call() -> Bench {
    let mut bench = Bench::claimed(
        r#"
        name = "two"
        [[step]]
        name = "a"
        agent = "x"
        after = []
        timeout = "10s"
        undo = { agent = "x", retry = { max = 1 } }
        [[step]]
        name = "b"
        after = ["a"]
        fail = "not today"
        "#,
    );
    bench.done("a").wake(2).at(60_000).wake(3).failed("a");
    bench.is("Error a=UndoFailed#2 b=Failed", "notice AttentionNeeded, alert");
    bench
}

// The list of stopped orders names what a person has to decide about.
#[test]
fn only_the_undo_is_in_trouble_once_it_has_failed() {
    let bench = failed_before_a_call();
    let steps: Vec<_> = trouble(&bench.task, &bench.workflow).into_iter().map(|one| (one.step, one.undo)).collect();
    assert_eq!(steps, [("a".to_owned(), true)]);
}

// B9: a step that failed before its first call has nothing to undo, and so does not hold up the end of the undo.
#[test]
fn a_step_that_never_ran_does_not_hold_up_the_end_of_an_undo() {
    for what in [skip("a"), mark_done("a")] {
        let mut bench = failed_before_a_call();
        bench.on(&act(what)).is("Undone a=Undone#2 b=Failed", "notice Undone");
        assert_eq!(bench.task.reason.as_deref(), Some("`b` failed: not today"));
    }
    let mut bench = failed_before_a_call();
    refuses(&mut bench, What::Resubmit { step: Some("b".into()), input: None }, Refusal::NotFailed);
    bench.on(&act(resubmit())).is("Undoing a=UndoPending#2 b=Failed", "wake");
    assert_eq!(bench.task.reason.as_deref(), Some("`b` failed: not today"));
    let version = bench.task.version;
    bench.wake(version).done("a").is("Undone a=Undone#3 b=Failed", "notice Undone");
}

// An earlier version left such records: whatever wakes them ends them.
#[test]
fn an_undo_with_nothing_left_to_undo_ends() {
    let mut bench = failed_before_a_call();
    bench.on(&act(resubmit()));
    bench.task.steps[0].state = State::Undone;
    bench.task.due = None;
    // A paused agent does not matter.
    bench.withhold("y").on(&act(What::Pause)).on(&act(What::Resume)).is("Undoing a=Undone#2 b=Failed", "wake");
    bench.on(&act(What::Cancel)).keeps(Kept::Repeated, "wake");
    assert!(bench.task.due.is_some());
    let version = bench.task.version;
    bench.wake(version).is("Undone a=Undone#2 b=Failed", "notice Undone");
}

// ---------------------------------------------------------------- resubmit

// D8, B9: only the failed step is reset; the request carries the edited input, and only for that step.
#[test]
fn a_resubmitted_step_gets_the_edited_input_and_its_neighbours_do_not() {
    let mut bench = stopped();
    let what = What::Resubmit { step: Some("a".into()), input: Some(json!({"card": "4242"})) };
    bench.on(&act(what)).is("Pending a=Pending#1 b=Processed#1 c=Pending", "wake");
    bench.wake(5);
    assert_eq!((bench.request("a").input.clone(), bench.request("a").attempt), (json!({"card": "4242"}), 2));
    assert_eq!(bench.request("a").idempotency_key, "ord_1:a:do");
    bench.done("a");
    assert_eq!(bench.request("c").input, json!(null), "the engine puts the order's input here");
    let history = view::history(&bench.task, &bench.workflow);
    let entry = history.iter().find(|e| e.event == "resubmitted").unwrap();
    assert_eq!(entry.detail.as_deref(), Some("ann: ticket 7 (with another input for `a`)"));
}

// D8: the input needs no step's name when only one has failed, and is bounded.
#[test]
fn an_edited_input_names_its_step_when_more_than_one_has_failed() {
    let edited = |input| What::Resubmit { step: None, input: Some(input) };
    let mut bench = stopped();
    refuses(&mut bench, edited(json!([1])), Refusal::BadInput);
    let long = |bytes: usize| edited(json!({"x": "y".repeat(bytes - r#"{"x":""}"#.len())}));
    refuses(&mut bench, long(16_385), Refusal::BadInput);
    let nested = (0..MAX_DEPTH).fold(json!(0), |inner, _| json!([inner]));
    refuses(&mut bench, edited(json!({ "a": nested })), Refusal::BadInput);
    bench.on(&act(long(16_384))).is("Pending a=Pending#1 b=Processed#1 c=Pending", "wake");
    let mut bench = stopped();
    let wrong = What::Resubmit { step: Some("b".into()), input: None };
    refuses(&mut bench, wrong, Refusal::NotFailed);
    bench.on(&act(edited(json!({"n": 2})))).wake(5);
    assert_eq!(bench.request("a").input, json!({"n": 2}));
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.failed("a").failed("b");
    refuses(&mut bench, edited(json!({})), Refusal::Ambiguous);
}

// D8: never possible: a live order resubmitted, twice at once or after another.
#[test]
fn an_order_that_is_live_again_cannot_be_resubmitted() {
    let mut bench = stopped();
    let version = bench.task.version;
    bench.on(&seen(resubmit(), version));
    assert_eq!(bench.kept, None);
    refuses(&mut bench, resubmit(), Refusal::NotStopped);
    bench.on(&seen(resubmit(), version)).keeps(Kept::Repeated, "wake");
    bench.on(&seen(resubmit(), version - 2)).keeps(Kept::Moved, "");
    bench.wake(5);
    refuses(&mut bench, resubmit(), Refusal::NotStopped);
    assert_eq!(bench.attempt("a"), 2, "one claim for one resubmission");
}

// B9: every action, in every phase, on a version that is not the current one.
#[test]
fn no_act_applies_to_a_version_its_operator_did_not_see() {
    let benches: [fn() -> Bench; 4] = [|| Bench::new(ONE), || Bench::claimed(ONE), stopped, undo_failed];
    for make in benches {
        for what in all_kinds() {
            let mut bench = make();
            let before = bench.task.clone();
            for version in [0, before.version + 1, before.version.wrapping_sub(1)] {
                if !before.is_as_seen(version) {
                    bench.on(&seen(what.clone(), version)).keeps(Kept::Moved, "");
                }
            }
            assert_eq!(bench.task, before, "{what:?}");
        }
    }
}

// B9, M5: the action was saved and its answer lost. Repeated at the same version it is done, whatever has happened since
// except another action; another reason, step or output makes it another action.
#[test]
fn a_repeated_act_at_its_version_is_already_done() {
    let output = json!({"by": "hand"});
    let mark = |output| What::MarkDone { step: Some("a".into()), output };
    let mut bench = stopped();
    let version = bench.task.version;
    bench.on(&seen(mark(output.clone()), version));
    bench.on(&seen(mark(output.clone()), version)).keeps(Kept::Repeated, "wake");
    bench.wake(version + 1);
    bench.on(&seen(mark(output.clone()), version)).keeps(Kept::Repeated, "");
    bench.done("c").on(&seen(mark(output.clone()), version)).keeps(Kept::Repeated, "notice Completed");
    let by_another =
        Act { what: mark(output.clone()), by: "bob".into(), reason: "ticket 7".into(), seen: Some(version) };
    let others = [mark(json!(7)), What::MarkDone { step: Some("b".into()), output: output.clone() }, skip("a")];
    for other in others.map(|what| seen(what, version)).into_iter().chain([Event::Act(by_another)]) {
        bench.on(&other).keeps(Kept::Moved, "");
    }
    bench.on(&seen(mark(output), version + 1)).keeps(Kept::Moved, "");

    // An undo left out, and another input.
    let mut bench = undo_failed();
    let version = bench.task.version;
    bench.on(&seen(What::Skip { step: None }, version)).on(&seen(What::Skip { step: None }, version));
    bench.keeps(Kept::Repeated, "notice Undone");
    let edited = |n: u64| What::Resubmit { step: Some("a".into()), input: Some(json!({"n": n})) };
    let mut bench = stopped();
    let version = bench.task.version;
    bench.on(&seen(edited(1), version)).on(&seen(edited(1), version)).keeps(Kept::Repeated, "wake");
    bench.on(&seen(edited(2), version)).keeps(Kept::Moved, "").on(&seen(resubmit(), version)).keeps(Kept::Moved, "");

    // The action before the last is no longer recognised.
    let mut bench = Bench::claimed(ONE);
    let version = bench.task.version;
    bench.on(&seen(What::Pause, version)).on(&seen(What::Pause, version)).keeps(Kept::Repeated, "");
    bench.on(&seen(What::Resume, version + 1)).on(&seen(What::Resume, version + 1)).keeps(Kept::Repeated, "");
    bench.on(&seen(What::Pause, version)).keeps(Kept::Moved, "");

    // A person who looked before the alert was sent acted on the same order, and repeats the same action.
    let mut bench = stopped();
    let version = bench.task.version - 1;
    bench.on(&seen(resubmit(), version)).on(&seen(resubmit(), version)).keeps(Kept::Repeated, "wake");
    bench.on(&seen(resubmit(), version - 1)).keeps(Kept::Moved, "");
    bench.on(&seen(resubmit(), version + 1)).keeps(Kept::Repeated, "wake");
}

/// Something that happens to `bench`, whose step `a` has failed while `b` was running.
fn happens(what: &str, bench: &mut Bench) {
    match what {
        "alert out" => {
            let version = bench.task.alert.as_ref().unwrap().version;
            bench.on(&Event::AlertSent { version });
            assert_eq!(bench.kept, None);
        }
        "notice out" => {
            bench.on(&Event::NoticeSent { version: bench.task.turned_at });
            assert_eq!(bench.kept, None);
        }
        "sweep" => _ = bench.at(2000).supervise(),
        "b done" => _ = bench.done("b"),
        "b ran out" => _ = bench.at(11_000).supervise(),
        "b failed" => _ = bench.failed("b"),
        "b skipped" => _ = bench.on(&act(skip("b"))),
        "resubmitted" => _ = bench.resubmit(),
        "a failed again" => _ = bench.wake(9).failed("a"),
        other => panic!("{other}"),
    }
}

// B9: between a look and an action the system may clear an alert or a notice that it sent, and set another due time. To a
// person that is no change.
#[test]
fn only_what_a_person_would_call_a_change_moves_an_order_on() {
    let table: [(&[&str], bool); 13] = [
        (&[], true),
        (&["alert out"], true),
        (&["notice out"], true),
        (&["alert out", "notice out"], true),
        (&["notice out", "alert out"], true),
        (&["sweep"], true),
        (&["sweep", "alert out"], true),
        (&["b done"], false),
        (&["alert out", "b done"], false),
        (&["b done", "alert out"], false),
        (&["b ran out"], false),
        (&["b failed", "b skipped"], false),
        (&["resubmitted", "a failed again"], false),
    ];
    for (between, is_as_seen) in table {
        let mut bench = Bench::claimed(&format!("strict_notices = true\n{}", on_failure_error(SIDE_BY_SIDE)));
        bench.failed("a");
        let version = bench.task.version;
        between.iter().for_each(|what| happens(what, &mut bench));
        bench.on(&seen(resubmit(), version));
        assert_eq!(bench.kept, (!is_as_seen).then_some(Kept::Moved), "{between:?}");
    }
}

// B9: nor is another look of a poll, or a reminder: an operator needs longer to write a reason.
#[test]
fn a_look_or_a_reminder_is_no_change_to_a_person() {
    let look = "a | timeout = \"10s\"; http = { url = \"https://jobs.example/1\", method = \"GET\" }; poll = { every = \"5s\", for = \"30d\", done = \"answer.ok\" }";
    let mut bench = crate::language::claimed(look, json!({}));
    let version = bench.task.version;
    for n in 1..5 {
        bench.at(n * 5000).answered("a", shared::message::Outcome::NotYet { why: "running".into() });
        assert_eq!((bench.kept, bench.task.version), (None, version + n as u64));
    }
    bench.on(&seen(What::Cancel, version));
    assert_eq!(bench.kept, None);

    let remind = "a | event = \"yes\"; timeout = \"10m\"; remind = { every = \"1m\", agent = \"x\" }\nb | after = []";
    let mut bench = crate::language::claimed(remind, json!({}));
    let version = bench.task.version;
    bench.at(60_000).wake(version);
    assert_eq!(bench.task.version, version + 1);
    // What else happens in the save of a look or a reminder is a change.
    bench.on(&seen(What::Cancel, version));
    assert_eq!(bench.kept, None);
    let mut bench = crate::language::claimed(remind, json!({}));
    let version = bench.task.version;
    bench.done("b").on(&seen(What::Cancel, version));
    assert_eq!(bench.kept, Some(Kept::Moved));
}

// An older program carries along what it does not know, or drops it: neither makes a later version look like an earlier one.
#[test]
fn what_was_noted_of_an_earlier_version_says_nothing_of_this_one() {
    let mut bench = stopped();
    let version = bench.task.version;
    assert!(
        bench.task.is_as_seen(version - 1)
            && !bench.task.is_as_seen(version - 2)
            && !bench.task.is_as_seen(version + 1)
    );
    bench.task.version += 1;
    assert!(bench.task.is_as_seen(version + 1) && !bench.task.is_as_seen(version));
    bench.task.books = None;
    assert!(bench.task.is_as_seen(version + 1) && !bench.task.is_as_seen(version));
}

// ---------------------------------------------------------------- skip, mark done

// B9, D8: the steps after a skipped step continue without its output.
#[test]
fn a_skipped_step_counts_as_done_and_has_no_output() {
    let mut bench = stopped();
    bench.on(&act(skip("a"))).is("Pending a=Skipped#1 b=Processed#1 c=Pending", "wake");
    assert_eq!((bench.task.turned_at, &bench.task.alert, &bench.task.reason), (0, &None, &None));
    bench.wake(5).is("Processing a=Skipped#1 b=Processed#1 c=Processing#1", "do c#1");
    assert_eq!(bench.request("c").outputs.keys().collect::<Vec<_>>(), ["b"]);
    bench.done("c").is("Processed a=Skipped#1 b=Processed#1 c=Processed#1", "notice Completed");
}

// B9, C4: what the person writes down is the step's output, for later steps and for the undo.
#[test]
fn a_step_marked_done_has_the_output_the_person_gave() {
    let mut bench = stopped();
    bench.on(&act(mark_done("a"))).is("Pending a=Processed#1 b=Processed#1 c=Pending", "wake, notice StepCompleted");
    bench.wake(5);
    assert_eq!(bench.request("c").outputs["a"], json!({"by": "hand"}));
    bench.failed("c").on(&act(What::Undo)).at(11_000).wake(8).done("c");
    assert_eq!(bench.request("a").output, Some(json!({"by": "hand"})));
    let mut bench = stopped();
    let long = |bytes: usize| What::MarkDone { step: None, output: json!("x".repeat(bytes - 2)) };
    refuses(&mut bench, long(MAX_OUTPUT + 1), Refusal::LongOutput);
    let deep = (0..=MAX_DEPTH).fold(json!(0), |inner, _| json!([inner]));
    refuses(&mut bench, What::MarkDone { step: None, output: deep }, Refusal::DeepOutput);
    bench.on(&act(long(MAX_OUTPUT))).is("Pending a=Processed#1 b=Processed#1 c=Pending", "wake, notice StepCompleted");
}

// G3: what a skipped step did is unknown, so a later undo covers it.
#[test]
fn a_step_that_was_tried_and_skipped_is_undone_with_the_rest() {
    let mut bench = stopped();
    bench.on(&act(skip("a"))).wake(5).failed("c").on(&act(What::Cancel));
    assert_eq!(bench.task.phase, Phase::Undoing);
    bench.at(11_000).wake(8).done("c");
    assert!(bench.effects().contains("undo a#2"), "{}", bench.effects());
}

// If services keep tombstones, an undo that a person asks for begins with its Wake once no attempt is in progress, from
// any state of the order; until then it says how long it waits, even after that attempt got more time.
#[test]
fn with_tombstones_an_undo_by_hand_waits_for_attempts_under_way_only() {
    let tombstones = |text: &str| format!("tombstones = true\n{text}");
    let mut retried = Bench::claimed(&tombstones(ONE));
    retried.at(1000).answered("a", unavailable(None)).on(&act(What::Cancel));
    let mut stopped = Bench::claimed(&on_failure_error(&tombstones(ONE)));
    stopped.at(1000).failed("a").on(&act(What::Undo));
    let mut ended = Bench::claimed(&tombstones(ONE));
    ended.at(1000).done("a").on(&act(What::Undo));
    let mut held = Bench::claimed(&tombstones(ONE));
    held.at(1000).answered("a", unavailable(None)).on(&act(What::Cancel)).on(&act(What::Pause)).on(&act(What::Resume));
    for (name, mut bench) in [("retried", retried), ("in Error", stopped), ("ended", ended), ("paused", held)] {
        assert_eq!(bench.task.phase, Phase::Undoing, "{name}");
        assert_eq!(view::status(&bench.task, &bench.workflow, SKEW).undo_from, None, "{name}");
        assert!(bench.effects().split(", ").any(|effect| effect == "wake"), "{name}: {}", bench.effects());
        assert_eq!(bench.woken().effects(), "undo a#2", "{name}");
    }

    let text =
        tombstones(ONE).replacen("timeout = \"10s\"", "timeout = \"10s\"\nlate = { extend = \"30s\", times = 1 }", 1);
    let mut bench = Bench::claimed(&text);
    bench.at(11_000).supervise().is("Processing a=Processing#1", "wake");
    bench.on(&act(What::Cancel));
    let from = view::status(&bench.task, &bench.workflow, SKEW).undo_from.expect("an attempt is under way");
    assert!(from > at(30_000), "{from}");
    bench.at(20_000).woken();
    assert!(!bench.effects().contains("undo a"), "{}", bench.effects());
    assert_eq!(bench.done("a").effects(), "notice Failed, wake, notice StepCompleted");
    assert!(bench.woken().effects().contains("undo a#2"), "{}", bench.effects());
}

// D8: with two failed, settling one leaves the order with the person.
#[test]
fn an_order_continues_only_when_no_failed_step_is_left() {
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.failed("a").failed("b");
    refuses(&mut bench, What::Skip { step: None }, Refusal::Ambiguous);
    bench.on(&act(skip("a"))).is("Error a=Skipped#1 b=Failed#1 c=Pending", "");
    assert!(bench.task.alert.is_some(), "the alert is still owed");
    bench.on(&act(mark_done("b"))).is("Pending a=Skipped#1 b=Processed#1 c=Pending", "wake, notice StepCompleted");
    assert_eq!(bench.task.alert, None);
}

// B9: the last step by hand ends the order, and its notice is owed until it is sent: no queue redelivers an action. F3
#[test]
fn an_act_that_ends_an_order_owes_its_notice_until_it_is_out() {
    for (what, step) in [(skip("a"), "Skipped"), (mark_done("a"), "Processed")] {
        let mut bench = Bench::claimed(&on_failure_error(ONE));
        bench.failed("a").on(&Event::AlertSent { version: 2 });
        bench.on(&act(what)).is(&format!("Processed a={step}#1"), "notice Completed");
        assert_eq!(bench.task.process_state(), ProcessState::Processed);
        assert!(bench.task.notice_owed && bench.task.due.is_some());
        bench.at(2000).supervise().keeps(Kept::NothingReady, "notice Completed");
        assert_eq!(bench.notices(), [(NoticeKind::Completed, 4)]);
        bench.on(&Event::NoticeSent { version: 4 });
        assert_eq!((bench.task.notice_owed, bench.task.due), (false, None));
    }
    let mut bench = Bench::new(ONE);
    bench.on(&act(What::Cancel)).is("Undone a=Pending", "notice Received, notice Undone");
    assert!(bench.task.notice_owed);
    // A turn to undo is no end: its message sends the notice again, and the sweep has nothing to look after.
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Cancel)).is("Undoing a=Processing#1", "wake+11000, notice Failed");
    assert!(!bench.task.notice_owed);
    let mut bench = Bench::new(ONE);
    bench.task.reply_queue = None;
    bench.on(&act(What::Cancel)).is("Undone a=Pending", "");
    assert!(!bench.task.notice_owed, "nobody asked for it");
}

// G2, D8: a failed undo can be tried again, left out, or done by hand.
#[test]
fn a_failed_undo_is_retried_skipped_or_marked_done() {
    let mut bench = undo_failed();
    bench.on(&act(resubmit())).is("Undoing a=UndoPending#2", "wake");
    for what in [What::Skip { step: None }, mark_done("a")] {
        let mut bench = undo_failed();
        bench.on(&act(what)).is("Undone a=Undone#2", "notice Undone");
        assert!(bench.task.notice_owed);
    }
    let mut bench = undo_failed();
    refuses(&mut bench, What::Cancel, Refusal::UndoBegun);
    refuses(&mut bench, What::Undo, Refusal::UndoBegun);
}

// B9: a step that waits after a failure can be settled too; an untried one, or one with an agent, cannot.
#[test]
fn only_a_step_that_failed_or_waits_after_a_failure_can_be_settled_by_hand() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    refuses(&mut bench, skip("a"), Refusal::NotFailed);
    refuses(&mut bench, skip("zz"), Refusal::UnknownStep);
    bench.wake(0);
    refuses(&mut bench, skip("a"), Refusal::WithAgent);
    refuses(&mut bench, mark_done("c"), Refusal::NotFailed);
    bench.done("b").at(11_000).supervise().is("Pending a=Pending+1000#1f1 b=Processed#1 c=Pending", "wake+1000");
    bench.on(&act(mark_done("a"))).is("Pending a=Processed#1f1 b=Processed#1 c=Pending", "wake, notice StepCompleted");
    refuses(&mut bench, skip("a"), Refusal::NotFailed);
    let mut bench = Bench::claimed(ONE);
    bench.done("a");
    for what in [skip("a"), mark_done("a")] {
        refuses(&mut bench, what, Refusal::Ended);
    }
}

// B9: an operator sees which effects the undo leaves: those of steps that called a service and have no undo.
#[test]
fn an_undone_step_says_whether_its_effect_stays() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").done("b").done("c").on(&act(What::Undo)).at(11_000).wake(5).done("c").done("a");
    bench.is("Undone a=Undone#2 b=Undone#1 c=Undone#2", "notice Undone");
    let steps = view::status(&bench.task, &bench.workflow, SKEW).steps;
    assert_eq!(steps.iter().map(|step| step.effects_stay).collect::<Vec<_>>(), [false, true, false]);
}

// B9: so can an undo that waits after a failure; one that only waits its turn cannot.
#[test]
fn an_undo_is_settled_by_hand_only_after_an_attempt_of_its_own() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").done("b").done("c").on(&act(What::Undo)).at(11_000).wake(5);
    bench.is("Undoing a=UndoPending#1 b=Undone#1 c=UndoProcessing#2", "undo c#2");
    refuses(&mut bench, skip("a"), Refusal::NotFailed);
    bench.at(22_000).supervise();
    bench.is("Undoing a=UndoPending#1 b=Undone#1 c=UndoPending+2000#2uf1", "wake+2000");
    refuses(&mut bench, skip("a"), Refusal::NotFailed);
    bench.on(&act(skip("c"))).is("Undoing a=UndoPending#1 b=Undone#1 c=Undone#2uf1", "wake");
}

// E2: the old attempt's reply does not come back for a step that a person settled.
#[test]
fn a_reply_for_a_step_settled_by_hand_changes_nothing() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    let late = bench.answer("a", done(json!("late")));
    bench.done("b").at(11_000).supervise().on(&act(skip("a"))).wake(4);
    let before = bench.task.clone();
    bench.on(&late);
    assert!(bench.kept.is_some());
    assert_eq!(bench.task, before);
}

// ---------------------------------------------------------------- retry now

// B9: during back-off, also a wait no message can last.
#[test]
fn retry_now_ends_the_wait_and_counts_nothing() {
    let text = ONE.replace("max = 2, ", "max = 1, long = { every = \"4h\", times = 2 }, ");
    let mut bench = Bench::claimed(&text);
    refuses(&mut bench, What::RetryNow { step: None }, Refusal::NothingWaits);
    bench.at(11_000).supervise().is("Pending a=Pending+14400000#1f1", "");
    refuses(&mut bench, What::RetryNow { step: Some("zz".into()) }, Refusal::UnknownStep);
    let waited = 11_000 + 4 * 3_600_000;
    let mut over = Bench::claimed(&text);
    over.at(11_000).supervise().at(waited);
    refuses(&mut over, What::RetryNow { step: None }, Refusal::NothingWaits);
    bench.at(60_000).on(&act(What::RetryNow { step: Some("a".into()) })).is("Pending a=Pending#1f1", "wake");
    assert!(bench.task.due.unwrap() <= at(70_000), "its Wake may be lost");
    refuses(&mut bench, What::RetryNow { step: None }, Refusal::NothingWaits);
    bench.wake(3).is("Processing a=Processing#2f1", "do a#2");
}

// The undo waits for the agents to be silent; no person can shorten that.
#[test]
fn retry_now_does_not_shorten_the_wait_before_an_undo() {
    let mut bench = Bench::claimed(ONE);
    bench.failed("a");
    refuses(&mut bench, What::RetryNow { step: None }, Refusal::NothingWaits);
    bench.at(10_999).wake(2).keeps(Kept::NothingReady, "wake+1");
    bench.at(11_000).wake(2).at(22_000).supervise().is("Undoing a=UndoPending+1000#2uf1", "wake+1000");
    bench.on(&act(What::RetryNow { step: None })).is("Undoing a=UndoPending#2uf1", "wake");
    for bench in [&mut stopped(), &mut undo_failed()] {
        refuses(bench, What::RetryNow { step: None }, Refusal::Stopped);
    }
}

// ---------------------------------------------------------------- cancel and undo

// G4, B9: cancel stops what has not ended; undo also takes back what is done.
#[test]
fn a_processed_order_can_be_undone_but_not_cancelled() {
    let mut bench = Bench::claimed(ONE);
    bench.done("a");
    refuses(&mut bench, What::Cancel, Refusal::Ended);
    bench.on(&act(What::Undo)).is("Undoing a=Processed#1", "wake+11000, notice Failed");
    assert_eq!(bench.task.reason.as_deref(), Some("undone by ann: ticket 7"));
    assert!(bench.task.due.is_some());
    bench.on(&act(What::Undo)).keeps(Kept::Repeated, "notice Failed, wake+11000");
    bench.at(11_000).wake(3).done("a").is("Undone a=Undone#2", "notice Undone");
    bench.on(&act(What::Undo)).keeps(Kept::Repeated, "notice Undone");
}

#[test]
fn an_irreversible_step_that_may_have_run_is_not_undone_by_an_operator_either() {
    let text = ONE.replace("undo = { agent = \"x\" }\n", "irreversible = true\n");
    let mut bench = Bench::claimed(&text);
    refuses(&mut bench, What::Cancel, Refusal::Irreversible);
    bench.done("a");
    refuses(&mut bench, What::Undo, Refusal::Irreversible);
}

// ---------------------------------------------------------------- pause and resume

// B9: a paused order claims nothing, records what comes, and leaves the due index.
#[test]
fn a_paused_order_claims_nothing_and_records_replies() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.at(1000).on(&act(What::Pause)).is("Processing a=Processing#1 b=Processing#1 c=Pending", "");
    assert_eq!((bench.task.paused_at, bench.task.due), (Some(at(1000)), None));
    bench.on(&act(What::Pause)).keeps(Kept::Repeated, "");
    bench.done("a").done("b").is("Pending a=Processed#1 b=Processed#1 c=Pending", "notice StepCompleted");
    bench.wake(4).keeps(Kept::NothingReady, "");
    bench.at(900_000).supervise().keeps(Kept::NothingReady, "");
    bench.on(&act(What::Resume)).is("Pending a=Processed#1 b=Processed#1 c=Pending", "wake");
    assert!(bench.task.due.is_some(), "its Wake may be lost");
    bench.wake(5).is("Processing a=Processed#1 b=Processed#1 c=Processing#1", "do c#1");
    refuses(&mut bench, What::Resume, Refusal::NotPaused);
}

// B9, D4: deadlines do not burn during a pause: what passed goes back without a failure, as soon as its agent is silent.
#[test]
fn an_attempt_that_ran_out_during_a_pause_counts_no_failure() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("b").at(9000).on(&act(What::Pause));
    bench.at(60_000).supervise().keeps(Kept::NothingReady, "");
    assert_eq!((bench.expired, bench.task.failure_count()), (0, 0));
    bench.on(&act(What::Resume)).is("Pending a=Pending#1 b=Processed#1 c=Pending", "wake");
    bench.wake(4).is("Processing a=Processing#2 b=Processed#1 c=Pending", "do a#2");

    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).at(10_400).on(&act(What::Resume)).is("Pending a=Pending+600#1", "wake+600");

    // At its deadline an attempt has run out, and at that plus the skew its agent is silent.
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).at(10_000).on(&act(What::Resume)).is("Pending a=Pending+1000#1", "wake+1000");
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).at(11_000).on(&act(What::Resume)).is("Pending a=Pending#1", "wake");

    // In time is in time: the agent knows no other deadline.
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).at(9_999).on(&act(What::Resume)).is("Processing a=Processing#1", "");
    bench.done("a").is("Processed a=Processed#1", "notice Completed");
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).at(10_000).done("a").keeps(Kept::Late, "");
}

// Wording 8 of the protocol: back in the index, an order is as cheap as one that was never paused.
#[test]
fn a_resumed_order_has_a_due_that_its_next_steps_need_not_change() {
    let mut bench = Bench::claimed(&CHAIN.replacen("timeout = \"10s\"", "timeout = \"60s\"", 1));
    bench.at(1000).on(&act(What::Pause)).at(2000).on(&act(What::Resume)).at(3000).done("a").at(4000).done("b");
    assert_eq!(bench.dues, [Some(10_000), None, Some(12_000)]);
}

// B9: the last reply ends a paused order; a failure is recorded, and its undo waits for the resumption.
#[test]
fn the_end_and_the_failure_of_a_paused_order_are_recorded() {
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).done("a").is("Processed a=Processed#1", "notice Completed");
    assert_eq!(bench.task.paused_at, None);

    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause)).failed("a").is("Undoing a=Failed#1", "notice Failed");
    bench.at(60_000).wake(3).keeps(Kept::NothingReady, "").supervise().keeps(Kept::NothingReady, "");
    // The notice of the turn may have been refused before the pause; once the undo has begun, nothing sends it.
    bench.on(&act(What::Resume)).is("Undoing a=Failed#1", "notice Failed, wake");
    bench.wake(4).is("Undoing a=UndoProcessing#2", "undo a#2");
    bench.on(&act(What::Pause)).at(90_000).supervise().keeps(Kept::NothingReady, "");
    bench.on(&act(What::Resume)).is("Undoing a=UndoPending#2", "wake");

    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.on(&act(What::Pause)).failed("a").is("Error a=Failed#1", "notice AttentionNeeded, alert");
    assert_eq!(bench.task.paused_at, None);
}

// B9, G4: cancelling a paused order ends the pause.
#[test]
fn a_paused_order_can_be_cancelled_and_not_hurried() {
    let mut bench = Bench::claimed(ONE);
    bench.on(&act(What::Pause));
    refuses(&mut bench, What::RetryNow { step: None }, Refusal::Paused);
    bench.on(&act(What::Cancel)).is("Undoing a=Processing#1", "wake+11000, notice Failed");
    assert_eq!(bench.task.paused_at, None);
    for bench in [&mut stopped(), &mut undo_failed()] {
        refuses(bench, What::Pause, Refusal::Stopped);
        refuses(bench, What::Resume, Refusal::NotPaused);
    }
}

// B9, G1: skipping one failed undo does not end the order while another one is owed.
#[test]
fn an_order_with_another_undo_left_continues_after_one_was_skipped() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").done("b").done("c").on(&act(What::Undo)).at(11_000);
    bench.woken().failed("c").on(&act(skip("c")));
    bench.is("Undoing a=UndoPending#1 b=Undone#1 c=Undone#2", "wake");
}

// B9: who, why and when, in the order's history.
#[test]
fn every_act_is_recorded_with_who_why_and_when() {
    let mut bench = Bench::claimed(ONE);
    bench.at(500).on(&act(What::Pause)).at(600).on(&act(What::Resume)).at(700).on(&act(What::Cancel));
    let mut stopped = stopped();
    stopped.on(&act(skip("a")));
    let mut entries = view::history(&bench.task, &bench.workflow);
    entries.extend(view::history(&stopped.task, &stopped.workflow));
    for (event, at_ms) in [("paused", 500), ("resumed", 600), ("cancelled", 700), ("skipped", 0)] {
        let entry = entries.iter().find(|e| e.event == event).unwrap();
        assert_eq!((entry.at, entry.detail.as_deref()), (at(at_ms), Some("ann: ticket 7")), "{event}");
    }
    assert_eq!(entries.last().unwrap().step.as_deref(), Some("a"));
}

// ---------------------------------------------------------------- agents

// B9, E4: nothing is handed to a paused agent, no failure is counted, and neither Wakes nor sweeps spin.
#[test]
fn a_step_of_a_paused_agent_waits_without_failures_and_without_wakes() {
    let mut bench = Bench::new(ONE);
    bench.withhold("x").wake(0).keeps(Kept::NothingReady, "");
    for _ in 0..100 {
        let due = bench.task.due.unwrap();
        bench.now = ms(due);
        bench.supervise().keeps(Kept::NothingReady, "");
        let next = bench.task.due.unwrap();
        assert!(next > at(bench.now) && next <= at(bench.now + 60_000), "{next}");
    }
    assert_eq!((bench.task.failure_count(), bench.task.version), (0, 0));
    bench.agents.paused.clear();
    let due = bench.task.due.unwrap();
    bench.now = ms(due);
    bench
        .supervise()
        .is("Pending a=Pending", "notice Received, wake")
        .wake(0)
        .is("Processing a=Processing#1", "do a#1");
}

// E4: 59 looks wrote 59 times where one step waited for a paused agent and another one for its next attempt.
#[test]
fn a_step_that_waits_for_a_paused_agent_beside_one_that_waits_for_time_is_not_looked_at_on_each_sweep() {
    const TWO: &str = "name = \"two\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n\
        retry = { max = 3, backoff = [\"1m\"] }\n[[step]]\nname = \"b\"\nagent = \"y\"\ntimeout = \"10s\"\n";
    let mut bench = Bench::new(TWO);
    bench.withhold("y").wake(0).is("Processing a=Processing#1 b=Pending", "do a#1");
    bench.answered("a", unavailable(None)).is("Pending a=Pending+60000#1f1 b=Pending", "wake+60000");
    let mut writes = 0;
    for now in 1..60 {
        let before = bench.at(now * 1000).task.due;
        if before.is_some_and(|due| due <= at(now * 1000)) {
            bench.supervise();
            writes += usize::from(bench.task.due != before);
        }
    }
    assert!(writes <= 4, "{writes} writes in 59 looks");
    assert!(bench.task.due.is_some_and(|due| due <= at(60_000)), "and it is looked at when the wait is over");
}

// The sum over all steps has a bound, so that no number of resubmissions makes a record that cannot be written.
#[test]
fn the_inputs_of_resubmissions_are_bounded_together() {
    let step = |n: usize| format!("[[step]]\nname = \"s{n}\"\nagent = \"x\"\ntimeout = \"10s\"\n");
    let text = format!("name = \"wide\"\non_failure = \"error\"\n{}", (0..6).map(step).collect::<String>());
    let mut bench = Bench::claimed(&text);
    let long = json!({ "x": "x".repeat(MAX_INPUT - 8) });
    let edited = |n: usize| What::Resubmit { step: Some(format!("s{n}")), input: Some(long.clone()) };
    for n in 0..4 {
        bench.failed(&format!("s{n}"));
        bench.on(&act(edited(n))).wake(0);
        assert_eq!(bench.task.steps[n].input.as_ref(), Some(&long));
    }
    bench.failed("s4");
    refuses(&mut bench, edited(4), Refusal::LongInputs);
    bench.on(&act(resubmit())).wake(0).failed("s0");
    // There is room for it if it replaces an earlier one.
    bench.on(&act(edited(0)));
    assert_eq!((bench.kept, bench.task.process_state()), (None, ProcessState::Processing));
}

// B9: what is with the agent already is answered and recorded; only new claims are withheld.
#[test]
fn a_reply_of_a_paused_agent_counts_and_its_next_step_waits() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.withhold("x");
    bench.done("a").done("b").is("Pending a=Processed#1 b=Processed#1 c=Pending", "notice StepCompleted");
    assert!(bench.task.due.is_some_and(|due| due <= at(10_000)));
    bench.agents.paused.clear();
    bench.wake(3).is("Processing a=Processed#1 b=Processed#1 c=Processing#1", "do c#1");
}

// B9: a step and its undo may be with two agents; only the one that is paused counts.
#[test]
fn an_undo_waits_for_its_own_agent_and_not_for_that_of_its_step() {
    let by_y = |text: &str| text.replace("undo = { agent = \"x\"", "undo = { agent = \"y\"");
    let text = by_y(SIDE_BY_SIDE);
    let mut bench = Bench::claimed(&text);
    bench.done("a").done("b").done("c").on(&act(What::Undo)).at(11_000).wake(5);
    bench.is("Undoing a=UndoPending#1 b=Undone#1 c=UndoProcessing#2", "undo c#2");
    bench.withhold("x");
    bench.done("c").is("Undoing a=UndoProcessing#2 b=Undone#1 c=Undone#2", "undo a#2");
    bench.at(22_000).supervise().is("Undoing a=UndoPending+2000#2uf1 b=Undone#1 c=Undone#2", "wake+2000");

    let mut bench = Bench::claimed(&text);
    bench.done("a").done("b").done("c").on(&act(What::Undo)).at(11_000).wake(5);
    bench.withhold("y").done("c").is("Undoing a=UndoPending#1 b=Undone#1 c=Undone#2", "");
}

// B9: only the steps of the paused agent wait, in both directions.
#[test]
fn steps_of_other_agents_continue_and_undos_wait_too() {
    let mut bench = Bench::claimed(ONE);
    bench.withhold("x");
    bench.failed("a").is("Undoing a=Failed#1", "wake+11000, notice Failed");
    bench.at(11_000).wake(2).is("Undoing a=UndoPending#1", "");
    bench.agents.paused.clear();
    bench.withhold("another").wake(3).is("Undoing a=UndoProcessing#2", "undo a#2");
    assert!(bench.effects.iter().all(|e| !matches!(e, Effect::Wake(_, d) if *d > MAX_DELAY)));
}
