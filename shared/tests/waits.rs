//! Steps that wait, as tables.
//!
//! Method: as in `transitions.rs`.

use crate::language::{bench, claimed};
use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Declined, Event, Kept, Refusal, What};
use shared::step::State;
use shared::task::{LOOK_AHEAD, Task};
use shared::time::plus;
use shared::workflow::wait::MAX_WAIT;

const SHORT: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; wait = "2m"
c | after = ["b"]
"#;

// L1: exact to a second up to 15 minutes.
#[test]
fn a_short_wait_ends_by_a_delayed_message() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).at(1000).done("a");
    bench.is("Pending a=Processed#1 b=Waiting+120000 c=Pending", "wake+120000, notice StepCompleted");
    // A supervisor looks after it only in case that message is lost.
    assert_eq!(bench.due(), 131_000);
    let seen = bench.task.version;
    bench.at(100_000).wake(seen).keeps(Kept::NothingReady, "wake+21000");
    bench.at(121_000).wake(seen).is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
    // Repeated, it re-sends what may be lost.
    bench.wake(seen).keeps(Kept::NothingReady, "do c#1");
}

// L1: and without that message a sweep ends it.
#[test]
fn a_wait_whose_message_is_lost_is_found_by_a_sweep() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a").at(130_000).supervise();
    bench.keeps(Kept::NothingReady, "wake");
    bench.woken().is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
}

const LONG: &str = r#"
a | after = []
b | after = ["a"]; wait = "30d"
c | after = ["b"]
"#;
const HOUR: i64 = 3600 * 1000;
const MONTH: i64 = 30 * 24 * HOUR;

// L1: a wait of a month costs no request until the sweep that looks ahead sends its delayed message.
#[test]
fn a_long_wait_is_brought_by_the_sweep_that_looks_ahead() {
    let mut bench = bench(LONG, json!({}));
    bench.wake(0).done("a");
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{MONTH} c=Pending"), "notice StepCompleted");
    let look = MONTH - i64::try_from(LOOK_AHEAD.as_millis()).unwrap();
    assert_eq!(bench.due(), look);
    bench.at(look - 1).supervise().keeps(Kept::NothingReady, "");
    let before = bench.task.clone();
    bench.at(look + 30_000).supervise().keeps(Kept::NothingReady, "wake+90000");
    bench.at(look + 90_000).supervise().keeps(Kept::NothingReady, "wake+30000");
    assert_eq!(bench.task, before, "nothing is written, so it stays due");
    bench.at(MONTH).woken().is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
    assert_eq!(bench.due(), look, "early enough, so its place in the index costs nothing either");
    bench.at(MONTH + 5_000).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.due(), MONTH + 11_000, "the attempt that a sweep finds under way");
}

// L1: the messages of the sweeps that look ahead may be lost, too.
#[test]
fn a_long_wait_without_its_message_is_found_by_a_sweep() {
    let mut bench = bench(LONG, json!({}));
    bench.wake(0).done("a").at(MONTH - 60_000).supervise().keeps(Kept::NothingReady, "wake+60000");
    bench.at(MONTH + 10_000).supervise().keeps(Kept::NothingReady, "wake");
    assert_eq!(bench.due(), MONTH + 10_000 + 900_000, "and then it gives way to what is due behind it");
    bench.woken().is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
}

// A step beside the wait is not forgotten while the sweeps look ahead.
#[test]
fn what_expires_beside_a_wait_that_is_about_to_end_is_found() {
    let mut bench =
        bench("a | after = []; wait = \"1h\"\nb | after = []; wait = \"59m\"\nc | after = [\"b\"]", json!({}));
    bench.wake(0).at(HOUR - 119_000).supervise().keeps(Kept::NothingReady, "wake+59000");
    bench.at(HOUR - 60_000).woken();
    bench.is("Processing a=Waiting+60000 b=Processed c=Processing#1", "do c#1, wake+60000");
    bench.at(HOUR - 49_000).supervise();
    assert_eq!(bench.expired, 1);
}

// L1: a save on the way makes a long wait a short one, which has its message from then on.
#[test]
fn a_wait_that_has_become_short_gets_its_message() {
    let mut bench = bench("a | after = []; timeout = \"10m\"\nb | after = []; wait = \"16m\"", json!({}));
    bench.wake(0).is("Processing a=Processing#1 b=Waiting+960000", "do a#1");
    bench.at(120_000).done("a").is("Pending a=Processed#1 b=Waiting+840000", "wake+840000, notice StepCompleted");
    bench.at(960_000).woken().is("Processed a=Processed#1 b=Processed", "notice Completed");
}

#[test]
fn a_first_step_that_waits_begins_with_the_first_wake() {
    let mut bench = bench("a | wait = \"${input.days}\"\nb | after = [\"a\"]", json!({"days": "3d"}));
    bench.wake(0).is(&format!("Pending a=Waiting+{} b=Pending", MONTH / 10), "");
    assert_eq!(bench.task.steps[0].turn, Some(at(0)));
}

// Past is at once, and what hangs on it begins in the same save.
#[test]
fn a_time_that_has_passed_is_no_wait() {
    let steps = "a | until = \"${input.on}\"\nb | after = [\"a\"]; wait = 0\nc | after = [\"b\"]";
    let mut bench = bench(steps, json!({"on": "1970-01-05T00:00:00+01:00"}));
    bench.wake(0).is("Processing a=Processed b=Processed c=Processing#1", "do c#1");
}

#[test]
fn an_until_may_be_computed_from_its_turn() {
    let mut bench = bench("a | until = \"${now + 90}\"", json!({}));
    bench.at(500).wake(0).is("Pending a=Waiting+89500", "wake+89500");
    bench.at(90_000).woken().is("Processed a=Processed", "notice Completed");
}

// K4: a time that cannot be is a mistake, which fails the step before anything hangs on it.
#[test]
fn a_wait_for_no_time_fails() {
    for (input, words) in [
        (json!({"days": "soon"}), "`wait`: \"soon\" is not a duration"),
        (json!({"days": -1}), "`wait`: -1 is negative"),
        (json!({"days": "400d"}), "`wait`: \"400d\" is more than 366 days away"),
        (json!({}), "`input.days`"),
    ] {
        let bench = claimed("a | wait = \"${input.days}\"", input);
        assert_eq!(bench.task.steps[0].state, State::Failed);
        let error = bench.task.steps[0].error.as_ref().unwrap();
        assert!(error.contains(words), "{error}");
        assert_eq!(bench.task.steps[0].attempt, 0);
    }
}

// Rule 1: it sleeps in a pause, while the order is undone, and in Error.
#[test]
fn a_wait_counts_only_while_its_order_goes_forward() {
    let mut paused = bench(SHORT, json!({}));
    paused.wake(0).done("a").on(&act(What::Pause));
    paused.at(200_000).woken().keeps(Kept::NothingReady, "");
    paused.on(&act(What::Resume)).is("Pending a=Processed#1 b=Waiting+-80000 c=Pending", "wake");
    paused.woken().is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");

    // Nothing to undo: it never ended.
    let mut undone = bench(SHORT, json!({}));
    undone.wake(0).done("a").cancel();
    undone.is("Undoing a=Processed#1 b=Waiting+120000 c=Pending", "wake+11000, notice Failed");
    undone.at(11_000).woken().is("Undoing a=UndoProcessing#2 b=Pending c=Pending", "undo a#2");
    undone.done("a").is("Undone a=Undone#2 b=Pending c=Pending", "notice Undone");

    let steps = "a | after = []; wait = \"2m\"\nb | after = []; on_failure = \"error\"\nc | after = [\"a\", \"b\"]";
    let mut stopped = bench(steps, json!({}));
    stopped.wake(0).failed("b");
    stopped.is("Error a=Waiting+120000 b=Failed#1 c=Pending", "notice AttentionNeeded, alert");
    stopped.at(130_000).woken().keeps(Kept::NothingReady, "");
    stopped.resubmit().is("Pending a=Waiting+-10000 b=Pending#1 c=Pending", "wake");
    stopped.woken().is("Processing a=Processed b=Processing#2 c=Pending", "do b#2");
}

#[test]
fn an_order_is_undone_after_a_wait_that_ended() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a").at(120_000).wake(2).failed("c");
    bench.at(140_000).woken().is("Undoing a=UndoProcessing#2 b=Undone c=Undone#1", "undo a#2");
}

#[test]
fn an_operator_ends_a_wait_by_its_name_only() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a");
    bench.on(&act(What::RetryNow { step: None }));
    assert!(matches!(bench.kept, Some(Kept::Refused(_))));
    bench.on(&act(What::RetryNow { step: Some("b".into()) }));
    bench.is("Pending a=Processed#1 b=Waiting+0 c=Pending", "wake");
    bench.woken().is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
}

#[test]
fn an_operator_skips_a_wait() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a").on(&act(What::Skip { step: Some("b".into()) }));
    bench.is("Pending a=Processed#1 b=Skipped c=Pending", "wake");
    let mut last = self::bench("a | wait = \"1h\"", json!({}));
    last.wake(0).on(&act(What::Skip { step: Some("a".into()) })).is("Processed a=Skipped", "notice Completed");
    assert!(last.task.notice_owed);
}

// B9: an action without a name means what has failed, never a wait, so no bulk action ends a month of waiting.
#[test]
fn an_act_means_a_wait_only_by_its_name() {
    let steps = "a | after = []; wait = \"30d\"\nb | after = []; on_failure = \"error\"";
    let skip = |step: Option<&str>| What::Skip { step: step.map(str::to_owned) };
    let done = |step: Option<&str>| What::MarkDone { step: step.map(str::to_owned), output: json!({"n": 1}) };
    let refused = |why| Some(Kept::Refused(why));
    for what in [skip(None), done(None)] {
        let mut bench = bench(steps, json!({}));
        bench.wake(0).on(&act(what.clone()));
        assert_eq!(bench.kept, refused(Refusal::UnnamedWait), "{what:?}: nothing but a wait is open to it");
        bench.failed("b").on(&act(what.clone()));
        assert!(matches!(bench.task.steps[0].state, State::Waiting { .. }), "{what:?}");
        assert!(matches!(bench.task.steps[1].state, State::Skipped | State::Processed), "{what:?}");
    }
    let mut bench = bench(steps, json!({}));
    bench.wake(0).on(&act(done(Some("a"))));
    assert_eq!(bench.kept, refused(Refusal::WaitsForTime));
    bench.on(&act(skip(Some("a"))));
    assert_eq!(bench.task.steps[0].state, State::Skipped);
}

// A sibling that expires moves the look, and the message of the wait goes out again.
#[test]
fn a_wait_beside_a_late_step_keeps_its_end() {
    let mut bench = bench("a | after = []\nb | after = []; wait = \"30s\"", json!({}));
    bench.wake(0).is("Processing a=Processing#1 b=Waiting+30000", "do a#1, wake+30000");
    bench.at(11_000).supervise().is("Pending a=Pending+1000#1f1 b=Waiting+19000", "wake+1000");
    bench.at(12_000).woken().is("Processing a=Processing#2f1 b=Waiting+18000", "do a#2, wake+18000");
}

// B9: a corrected record may not wait for ever, before its turn, or without a beginning.
#[test]
fn a_mended_record_waits_as_the_system_would() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a");
    let check = |task: &Task| shared::mend::check(task, "acme", &bench.workflow).map_err(|unfit| unfit.at);
    check(&bench.task).unwrap();
    let mut late = bench.task.clone();
    late.steps[1].state = State::Waiting { until: plus(late.updated_at, MAX_WAIT), event: false };
    check(&late).unwrap();
    late.steps[1].state = State::Waiting { until: plus(late.updated_at, MAX_WAIT + secs(1)), event: false };
    assert_eq!(check(&late).unwrap_err(), "st[1].u");
    let mut early = bench.task.clone();
    early.steps[0].state = State::Pending { not_before: None };
    assert_eq!(check(&early).unwrap_err(), "st[1].state");
    let mut timeless = bench.task.clone();
    timeless.steps[1].turn = None;
    assert_eq!(check(&timeless).unwrap_err(), "st[1].t");
}

fn event(name: &str, key: &str, data: Value) -> Event {
    Event::Arrived { name: name.into(), key: key.into(), data, by: None }
}

const PAID: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; event = "paid"; timeout = "24h"; output = { sum = "${event.sum}" }; undo = { agent = "x", timeout = "5s", with = { sum = "${output.sum}" } }
c | after = ["b"]; with = { sum = "${outputs.b.sum}" }
"#;
const DAY: i64 = 24 * 3600 * 1000;

// L2: one write records it and runs on; the Wake claims.
#[test]
fn an_event_settles_the_step_that_waits_for_it() {
    let mut bench = bench(PAID, json!({}));
    bench.wake(0).done("a");
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{DAY} c=Pending"), "notice StepCompleted");
    assert_eq!(bench.due(), DAY + 1000);
    bench.at(5000).on(&event("paid", "k1", json!({"sum": 5, "by": "ann"})));
    bench.is("Pending a=Processed#1 b=Processed c=Pending", "wake");
    assert_eq!(bench.task.steps[1].output, Some(json!({"sum": 5})));
    assert_eq!(bench.due(), 10_000);
    bench.woken().is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
    assert_eq!(bench.request("c").input, json!({"sum": 5}));
}

// L2: a known key gets the same answer, for the whole order; the same key with another body is refused.
#[test]
fn a_repeated_event_is_taken_once() {
    let mut bench = bench(PAID, json!({}));
    bench.wake(0).done("a").on(&event("paid", "k1", json!({"sum": 5})));
    let version = bench.task.version;
    bench.on(&event("paid", "k1", json!({"sum": 5}))).keeps(Kept::Repeated, "wake");
    bench.on(&event("paid", "k1", json!({"sum": 6}))).keeps(Kept::Declined(Declined::KeyReused), "");
    bench.on(&event("paid", "k2", json!({"sum": 5}))).keeps(Kept::Declined(Declined::Late), "");
    bench.on(&event("payed", "k3", json!({"sum": 5}))).keeps(Kept::Declined(Declined::Unknown), "");
    assert_eq!(bench.task.version, version);
    bench.wake(version).done("c").on(&event("paid", "k1", json!({"sum": 5})));
    assert_eq!(bench.kept, Some(Kept::Repeated));
    bench.on(&event("paid", "k4", json!({"sum": 5}))).keeps(Kept::Declined(Declined::Late), "");
}

// Rule 2: kept while steps of its name to come outnumber the events kept for it.
#[test]
fn an_early_event_is_kept_for_its_step() {
    let mut bench = bench(PAID, json!({}));
    bench.wake(0).on(&event("paid", "k1", json!({"sum": 5})));
    bench.is("Processing a=Processing#1 b=Pending c=Pending", "");
    bench.on(&event("paid", "k2", json!({"sum": 6}))).keeps(Kept::Declined(Declined::Early), "");
    bench.done("a");
    bench.is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1, notice StepCompleted");
    bench.on(&event("paid", "k1", json!({"sum": 5}))).keeps(Kept::Repeated, "");

    let refusing = PAID.replace("event = \"paid\"", "event = \"paid\"; early = \"refuse\"");
    let mut bench = self::bench(&refusing, json!({}));
    bench.wake(0).on(&event("paid", "k1", json!({"sum": 5}))).keeps(Kept::Declined(Declined::Early), "");
}

// R: after its answer the next step waits already, so its event may follow at once.
#[test]
fn an_event_runs_on() {
    let steps = "a | event = \"one\"; timeout = \"1h\"\nb | after = [\"a\"]; event = \"two\"; timeout = \"1h\"; early = \"refuse\"";
    let mut bench = bench(steps, json!({}));
    bench.wake(0).on(&event("one", "k1", json!({}))).is("Pending a=Processed b=Waiting+3600000", "");
    bench.on(&event("two", "k2", json!({}))).is("Processed a=Processed b=Processed", "notice Completed");
    // Nothing redelivers what an event does.
    assert!(bench.task.notice_owed);
}

// The first Wake goes out after the notice that the order was received, so an event before it sends none.
#[test]
fn an_event_of_an_order_that_has_not_begun_is_kept() {
    let mut bench = bench("a | event = \"one\"; timeout = \"1h\"\nb | after = [\"a\"]", json!({}));
    bench.on(&event("one", "k1", json!({}))).is("Pending a=Pending b=Pending", "");
    bench.on(&event("one", "k1", json!({}))).keeps(Kept::Repeated, "");
    bench.wake(0).is("Processing a=Processed b=Processing#1", "do b#1");
}

// Rule 3: judged by the record. Its lateness is a failure that `catch` can take.
#[test]
fn an_event_that_does_not_come_is_a_failure() {
    let mut bench = bench(PAID, json!({}));
    bench.wake(0).done("a").at(DAY + 999).supervise();
    assert_eq!(bench.kept, Some(Kept::NothingReady));
    // The clock says that it is late, and the record does not.
    let mut late = self::bench(PAID, json!({}));
    late.wake(0).done("a").at(DAY + 5000).on(&event("paid", "k1", json!({"sum": 5})));
    late.is("Pending a=Processed#1 b=Processed c=Pending", "wake");

    bench.at(DAY + 1000).supervise();
    bench.is("Undoing a=Processed#1 b=Failed c=Pending", "wake, notice Failed");
    assert_eq!(bench.task.reason.as_deref(), Some("`b` failed: no event `paid` within 24h"));
    bench.on(&event("paid", "k1", json!({"sum": 5}))).keeps(Kept::Declined(Declined::Late), "");
    // Rule 7: there is nothing to undo of what did not come.
    bench.woken().is("Undoing a=UndoProcessing#2 b=Failed c=Pending", "undo a#2");

    let caught = "a | event = \"yes\"; timeout = \"1h\"; catch = \"error.kind == 'timeout'\"\nb | after = [\"a?\"]; when = \"ran.a\"";
    let mut bench = self::bench(caught, json!({}));
    bench.wake(0).at(3_601_000).supervise();
    bench.is("Processed a=Caught b=PassedOver", "notice Completed");
    assert!(bench.task.notice_owed);
}

// Rule 7: an event that was taken or kept gets its step's undo.
#[test]
fn an_event_is_undone_whether_taken_or_kept() {
    let mut taken = bench(PAID, json!({}));
    taken.wake(0).done("a").on(&event("paid", "k1", json!({"sum": 5}))).cancel();
    taken.at(11_000).woken();
    taken.is("Undoing a=UndoPending#1 b=UndoProcessing#1 c=Pending", "undo b#1");
    assert_eq!(taken.request("b").input, json!({"sum": 5}));

    let mut kept = bench(PAID, json!({}));
    kept.wake(0).on(&event("paid", "k1", json!({"sum": 7}))).failed("a");
    kept.at(11_000).woken().is("Undoing a=UndoPending#1 b=UndoProcessing#1 c=Pending", "undo b#1");
    assert_eq!(kept.request("b").input, json!({"sum": 7}));
}

// An action claims nothing, not even the undo of an event in an order that called nothing yet.
#[test]
fn a_cancel_after_an_event_leaves_the_undo_to_a_scheduler() {
    let steps = "a | event = \"paid\"; timeout = \"1h\"; undo = { agent = \"x\", timeout = \"5s\" }\nb | after = [\"a\"]; wait = \"1h\"";
    let mut bench = bench(steps, json!({}));
    bench.wake(0).on(&event("paid", "k1", json!({}))).on(&act(What::Cancel));
    bench.is("Undoing a=Processed b=Waiting+3600000", "wake, notice Failed");
    bench.woken().is("Undoing a=UndoProcessing#1 b=Pending", "undo a#1");
}

// `take` refuses with 422 and changes nothing.
#[test]
fn an_event_that_a_step_does_not_take_changes_nothing() {
    let steps = "a | event = \"yes\"; timeout = \"1h\"\nb | after = [\"a\"]; event = \"yes\"; timeout = \"1h\"; take = \"event.by != outputs.a.by\"";
    let mut bench = bench(steps, json!({}));
    bench.wake(0).on(&event("yes", "k1", json!({"by": "ann"})));
    let version = bench.task.version;
    bench.on(&event("yes", "k2", json!({"by": "ann"}))).keeps(Kept::Declined(Declined::NotTaken), "");
    bench.on(&event("yes", "k3", json!({}))).keeps(Kept::Declined(Declined::Unfit), "");
    assert_eq!(bench.task.version, version);
    bench.on(&event("yes", "k4", json!({"by": "bob"}))).is("Processed a=Processed b=Processed", "notice Completed");
}

// A step that refuses early events does not get one that was kept for another step.
#[test]
fn an_event_is_kept_only_for_a_step_that_takes_early_ones() {
    let steps = "a |\nb | after = [\"a\"]; event = \"yes\"; timeout = \"1h\"; early = \"refuse\"\n\
                 c | after = [\"b\"]; event = \"yes\"; timeout = \"1h\"";
    let mut bench = bench(steps, json!({}));
    bench.wake(0).on(&event("yes", "k1", json!({}))).done("a");
    bench.is("Pending a=Processed#1 b=Waiting+3600000 c=Pending", "notice StepCompleted");
    bench.on(&event("yes", "k2", json!({}))).is("Processed a=Processed#1 b=Processed c=Processed", "notice Completed");
}

// What its step will never take does not hold the place of what it will.
#[test]
fn an_early_event_is_refused_if_no_step_can_take_it() {
    let steps = "a |\nb | after = [\"a\"]; event = \"paid\"; timeout = \"1h\"; take = \"event.ok\"";
    let mut known = bench(steps, json!({}));
    known.wake(0).on(&event("paid", "k1", json!({"ok": false}))).keeps(Kept::Declined(Declined::NotTaken), "");
    known.on(&event("paid", "k2", json!({}))).keeps(Kept::Declined(Declined::Unfit), "");
    known.on(&event("paid", "k3", json!({"ok": true}))).done("a");
    known.is("Processed a=Processed#1 b=Processed", "notice Completed");
    // What it reads of a step before is not known yet, so such an event may turn out to be unused.
    let mut open = bench(&steps.replace("event.ok", "event.ok == outputs.a.ok"), json!({}));
    open.wake(0).on(&event("paid", "k1", json!({"ok": 1})));
    let reply = open.reply("a", 1, done(json!({"ok": 2})));
    open.on(&reply);
    open.is("Pending a=Processed#1 b=Waiting+3600000", "notice StepCompleted");
    assert!(open.task.kept().next().is_none() && open.task.events[0].step.is_none());
    open.on(&event("paid", "k2", json!({"ok": 2}))).is("Processed a=Processed#1 b=Processed", "notice Completed");
}

// A step that waits for an event ends by it or by hand, and a pause does not use up its time.
#[test]
fn people_end_a_wait_for_an_event_by_hand() {
    let mut bench = bench(PAID, json!({}));
    bench.wake(0).done("a").on(&act(What::Pause)).at(2 * DAY).on(&act(What::Resume));
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{DAY} c=Pending"), "");
    bench.supervise();
    bench.on(&act(What::RetryNow { step: Some("b".into()) })).keeps(Kept::Refused(Refusal::WaitsForEvent), "");
    bench.on(&act(What::MarkDone { step: Some("b".into()), output: json!({"sum": 1}) }));
    bench.is("Pending a=Processed#1 b=Processed c=Pending", "wake, notice StepCompleted");
}

#[test]
fn an_event_counts_in_a_pause_and_in_error() {
    let mut bench = bench(PAID, json!({}));
    bench.wake(0).done("a").on(&act(What::Pause)).at(2 * DAY).supervise();
    bench.on(&event("paid", "k1", json!({"sum": 5})));
    bench.is("Pending a=Processed#1 b=Processed c=Pending", "");
    let steps = "a | after = []; event = \"yes\"; timeout = \"1h\"\nb | after = []; on_failure = \"error\"";
    let mut stopped = self::bench(steps, json!({}));
    stopped.wake(0).failed("b").on(&event("yes", "k1", json!({})));
    stopped.is("Error a=Processed b=Failed#1", "");
    // A wait whose time passed in Error gets it again.
    let mut stopped = self::bench(steps, json!({}));
    stopped.wake(0).failed("b").at(3_700_000).resubmit();
    stopped.is("Pending a=Waiting+3600000 b=Pending#1", "wake");
}

// Kept, it would be thrown away when its step begins to wait, and its sender was answered with success.
#[test]
fn an_early_event_without_what_its_step_reads_is_refused_as_a_late_one_would_be() {
    for (keys, bad, good) in [
        ("output = { id = \"${event.id}\" }", json!({}), json!({"id": 1})),
        ("failed = \"event.answer == 'no'\"", json!({}), json!({"answer": "yes"})),
        // A no has no output.
        ("failed = \"event.no\"; output = { id = \"${event.id}\" }", json!({"no": false}), json!({"no": true})),
    ] {
        let steps = format!("a |\nb | after = [\"a\"]; event = \"paid\"; timeout = \"1h\"; {keys}");
        let mut early = bench(&steps, json!({}));
        early.wake(0).on(&event("paid", "k1", bad.clone())).keeps(Kept::Declined(Declined::Unfit), "");
        early.on(&event("paid", "k2", good)).done("a");
        assert!(early.task.events[0].step.is_some(), "{keys}");
        let mut late = bench(&steps, json!({}));
        late.wake(0).done("a").on(&event("paid", "k1", bad)).keeps(Kept::Declined(Declined::Unfit), "");
    }
    // What reads more than the event is known once the step waits.
    let steps = "a |\nb | after = [\"a\"]; event = \"paid\"; timeout = \"1h\"; take = \"outputs.a.ok\"";
    let mut kept = bench(steps, json!({}));
    kept.wake(0).on(&event("paid", "k1", json!({})));
    assert_eq!((kept.kept, kept.task.events.len()), (None, 1));
}

// What is listed by age is as old as the present wait.
#[test]
fn a_resubmitted_wait_waits_since_then() {
    let steps = "a | on_failure = \"error\"; event = \"paid\"; timeout = \"1h\"";
    let mut first = bench(steps, json!({}));
    first.wake(0).at(3_601_000).supervise();
    first.at(180_000_000).on(&act(What::Resubmit { step: None, input: None }));
    first.woken();
    assert_eq!(first.task.steps[0].turn, Some(at(180_000_000)));
    // What its expressions read is decided once.
    let mut reads = bench(&format!("{steps}; take = \"event.at > now\""), json!({}));
    reads.wake(0).at(3_601_000).supervise();
    reads.at(180_000_000).on(&act(What::Resubmit { step: None, input: None }));
    reads.woken();
    assert_eq!(reads.task.steps[0].turn, Some(at(0)));
}

// Whoever has the address of an event could otherwise have the last notice sent again and again.
#[test]
fn a_known_event_sends_nothing_once_the_order_has_ended() {
    let mut bench = bench("a | event = \"paid\"; timeout = \"1h\"", json!({}));
    bench.wake(0).on(&event("paid", "k1", json!({}))).is("Processed a=Processed", "notice Completed");
    bench.on(&event("paid", "k1", json!({}))).keeps(Kept::Repeated, "");
}
