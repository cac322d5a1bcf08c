//! Steps that wait, as tables.
//!
//! Method: as in `transitions.rs`.

use crate::language::bench;
use crate::support::*;
use serde_json::json;
use shared::decision::{Act, Event, Kept, Refusal, What};
use shared::step::State;
use shared::task::{LOOK_AHEAD, Task};
use shared::time::plus;
use shared::workflow::wait::MAX_WAIT;

const SHORT: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; wait = "2m"
c | after = ["b"]
"#;

fn act(what: What) -> Event {
    Event::Act(Act { what, by: "ann".into(), reason: "r".into(), seen: None })
}

fn due(bench: &Bench) -> i64 {
    bench.task.due.unwrap().as_millisecond() - at(0).as_millisecond()
}

// L1: exact to a second up to 15 minutes.
#[test]
fn a_short_wait_ends_by_a_delayed_message() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).at(1000).done("a");
    bench.is("Pending a=Processed#1 b=Waiting+120000 c=Pending", "wake+120000, notice StepCompleted");
    // A supervisor looks after it only in case that message is lost.
    assert_eq!(due(&bench), 131_000);
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
    let seen = bench.task.version;
    bench.wake(seen).is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
}

const LONG: &str = r#"
a | after = []
b | after = ["a"]; wait = "30d"
c | after = ["b"]
"#;
const MONTH: i64 = 30 * 24 * 3600 * 1000;

// L1: a wait of a month costs no request until the sweep that looks ahead sends its delayed message.
#[test]
fn a_long_wait_is_brought_by_the_sweep_that_looks_ahead() {
    let mut bench = bench(LONG, json!({}));
    bench.wake(0).done("a");
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{MONTH} c=Pending"), "notice StepCompleted");
    let look = MONTH - i64::try_from(LOOK_AHEAD.as_millis()).unwrap();
    assert_eq!(due(&bench), look);
    bench.at(look + 30_000).supervise().keeps(Kept::NothingReady, "wake+90000");
    assert_eq!(due(&bench), MONTH + 10_000);
    let seen = bench.task.version;
    bench.at(MONTH).wake(seen).is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
}

// L1: a save on the way makes a long wait a short one, which has its message from then on.
#[test]
fn a_wait_that_has_become_short_gets_its_message() {
    let mut bench = bench("a | after = []; timeout = \"10m\"\nb | after = []; wait = \"16m\"", json!({}));
    bench.wake(0).is("Processing a=Processing#1 b=Waiting+960000", "do a#1");
    bench.at(120_000).done("a").is("Pending a=Processed#1 b=Waiting+840000", "wake+840000, notice StepCompleted");
    let seen = bench.task.version;
    bench.at(960_000).wake(seen).is("Processed a=Processed#1 b=Processed", "notice Completed");
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
    let seen = bench.task.version;
    bench.at(90_000).wake(seen).is("Processed a=Processed", "notice Completed");
}

// K4: a time that cannot be is a mistake, which fails the step before anything hangs on it.
#[test]
fn a_wait_for_no_time_fails() {
    for (input, words) in [
        (json!({"days": "soon"}), "`wait`: \"soon\" is no duration"),
        (json!({"days": -1}), "`wait`: -1 is negative"),
        (json!({"days": "400d"}), "`wait`: \"400d\" is more than 366 days away"),
        (json!({}), "`input.days`"),
    ] {
        let mut bench = bench("a | wait = \"${input.days}\"", input);
        bench.wake(0);
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
    let seen = paused.task.version;
    paused.at(200_000).wake(seen).keeps(Kept::NothingReady, "");
    paused.on(&act(What::Resume)).is("Pending a=Processed#1 b=Waiting+-80000 c=Pending", "wake");
    let seen = paused.task.version;
    paused.wake(seen).is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");

    // Nothing to undo: it never ended.
    let mut undone = bench(SHORT, json!({}));
    undone.wake(0).done("a").cancel();
    undone.is("Undoing a=Processed#1 b=Waiting+120000 c=Pending", "wake+11000, notice Failed");
    let seen = undone.task.version;
    undone.at(11_000).wake(seen).is("Undoing a=UndoProcessing#2 b=Pending c=Pending", "undo a#2");
    undone.done("a").is("Undone a=Undone#2 b=Pending c=Pending", "notice Undone");

    let steps = "a | after = []; wait = \"2m\"\nb | after = []; on_failure = \"error\"\nc | after = [\"a\", \"b\"]";
    let mut stopped = bench(steps, json!({}));
    stopped.wake(0).failed("b");
    stopped.is("Error a=Waiting+120000 b=Failed#1 c=Pending", "notice AttentionNeeded, alert");
    let seen = stopped.task.version;
    stopped.at(130_000).wake(seen).keeps(Kept::NothingReady, "");
    stopped.resubmit().is("Pending a=Waiting+-10000 b=Pending#1 c=Pending", "wake");
    let seen = stopped.task.version;
    stopped.wake(seen).is("Processing a=Processed b=Processing#2 c=Pending", "do b#2");
}

#[test]
fn an_order_is_undone_after_a_wait_that_ended() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a").at(120_000).wake(2).failed("c");
    let seen = bench.task.version;
    bench.at(140_000).wake(seen).is("Undoing a=UndoProcessing#2 b=Undone c=Undone#1", "undo a#2");
}

#[test]
fn an_operator_ends_a_wait_by_its_name_only() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a");
    bench.on(&act(What::RetryNow { step: None }));
    assert!(matches!(bench.kept, Some(Kept::Refused(_))));
    bench.on(&act(What::RetryNow { step: Some("b".into()) }));
    bench.is("Pending a=Processed#1 b=Waiting+0 c=Pending", "wake");
    let seen = bench.task.version;
    bench.wake(seen).is("Processing a=Processed#1 b=Processed c=Processing#1", "do c#1");
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

// B9: an act without a name means what has failed, never a wait, so no bulk act ends a month of waiting.
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
    let seen = bench.task.version;
    bench.at(12_000).wake(seen).is("Processing a=Processing#2f1 b=Waiting+18000", "do a#2, wake+18000");
}

// B9: a corrected record may not wait for ever, before its turn, or without a beginning.
#[test]
fn a_mended_record_waits_as_the_system_would() {
    let mut bench = bench(SHORT, json!({}));
    bench.wake(0).done("a");
    let check = |task: &Task| shared::mend::check(task, "acme", &bench.workflow).map_err(|unfit| unfit.at);
    check(&bench.task).unwrap();
    let mut late = bench.task.clone();
    late.steps[1].state = State::Waiting { until: plus(late.updated_at, MAX_WAIT) };
    check(&late).unwrap();
    late.steps[1].state = State::Waiting { until: plus(late.updated_at, MAX_WAIT + secs(1)) };
    assert_eq!(check(&late).unwrap_err(), "st[1].u");
    let mut early = bench.task.clone();
    early.steps[0].state = State::Pending { not_before: None };
    assert_eq!(check(&early).unwrap_err(), "st[1].state");
    let mut timeless = bench.task.clone();
    timeless.steps[1].turn = None;
    assert_eq!(check(&timeless).unwrap_err(), "st[1].t");
}
