//! The decisions of scheduler and supervisor as tables: a record and an event give the next record and its effects.
//!
//! Method: a [`Bench`] holds one task; every line of a test is one event with the state and the effects it must lead to.

use crate::support::*;
use serde_json::json;
use shared::control::Agents;
use shared::decision::{Event, Kept, Refusal, What};
use shared::message::{Effect, MAX_DELAY, MAX_HOPS, NoticeKind};
use shared::step::Direction;
use shared::strain::Strain;
use shared::task::{ProcessState, Task, grace};

// ---------------------------------------------------------------- the way forward

// C1, C2: a new order.
#[test]
fn a_new_task_is_pending_unlocked_and_without_failures() {
    let bench = Bench::new(SIDE_BY_SIDE);
    let task = &bench.task;
    assert_eq!(task.process_state(), ProcessState::Pending);
    assert_eq!((task.locked_by(), task.complete_by(), task.failure_count(), task.version), (None, None, 0, 0));
    assert_eq!(task.due, Some(at(10_000)), "the shortest timeout after its creation");
}

// C5: what else a record holds, from its creation and after a failure, and through its JSON.
#[test]
fn a_task_keeps_its_times_shard_tenant_priority_failures_and_last_error() {
    let mut bench = Bench::claimed(ONE);
    bench.answered("a", unavailable(Some(7000)));
    let task = &bench.task;
    assert_eq!((task.created_at, task.updated_at, task.shard), (at(0), at(bench.now), 0));
    assert_eq!((task.tenant.as_str(), task.priority), ("acme", shared::task::Priority::Normal));
    let step = &task.steps[0];
    assert_eq!((step.attempt, step.failures, step.error.is_some()), (1, 1, true));
    assert_eq!(task.next_claim(&bench.workflow, at(bench.now), SKEW), Some(at(bench.now + 7000)), "not before");
    let json = serde_json::to_string(task).unwrap();
    let read: Task = serde_json::from_str(&json).unwrap();
    assert_eq!((read.steps, read.tenant, read.priority), (task.steps.clone(), task.tenant.clone(), task.priority));
}

// D1, B2, A3: what does not depend on anything is claimed in one write.
#[test]
fn a_wake_claims_all_ready_steps_in_one_write() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    bench.wake(0).is("Processing a=Processing#1 b=Processing#1 c=Pending", "do a#1, do b#1");
    assert_eq!(bench.task.version, 1);
    assert_eq!(bench.task.locked_by(), Some("s1"));
    assert_eq!(bench.task.complete_by(), Some(at(10_000)));
}

// D2, A3, F1: the whole happy life of an order.
#[test]
fn steps_run_in_their_order_and_the_last_one_ends_the_task() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").is("Processing a=Processed#1 b=Processing#1 c=Pending", "notice StepCompleted");
    bench.done("b").is("Processing a=Processed#1 b=Processed#1 c=Processing#1", "do c#1, notice StepCompleted");
    bench.done("c").is("Processed a=Processed#1 b=Processed#1 c=Processed#1", "notice Completed");
    assert_eq!((bench.task.locked_by(), bench.task.complete_by(), bench.task.due), (None, None, None));
}

// J1, rule 3 of the protocol: one index insert and one delete.
#[test]
fn a_prompt_order_changes_due_exactly_once() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    bench.at(100).wake(0).at(2000).done("a").at(4000).done("b").at(9000).done("c");
    assert_eq!(bench.dues, [Some(10_000), None]);
}

// E1, B5, C4: what a request tells an agent.
#[test]
fn a_request_carries_all_that_the_agent_needs_and_its_key_never_holds_the_attempt() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    let first = bench.request("a").idempotency_key.clone();
    bench.at(11_000).supervise().at(12_000).wake(0);
    assert_eq!(bench.request("a").attempt, 2);
    assert_eq!(bench.request("a").idempotency_key, first);
    assert_eq!(bench.request("a").complete_by, at(22_000));
    bench.done("a").done("b");
    let request = bench.request("c").clone();
    assert_eq!(request.outputs, [("a".into(), json!({"of": "a"})), ("b".into(), json!({"of": "b"}))].into());
    assert_eq!((request.undoes, request.output), (None, None));
    bench.done("c").cancel().keeps(Kept::Refused(Refusal::Ended), "");
}

// A3: outputs of steps further up travel too, each visited once, however many paths lead to it.
#[test]
fn a_request_for_the_end_of_a_wide_workflow_is_made_in_no_time() {
    let mut text = String::from("name = \"wide\"\n");
    for layer in 0..25 {
        for side in ["l", "r"] {
            text += &format!("[[step]]\nname = \"{side}{layer}\"\nagent = \"x\"\ntimeout = \"10s\"\n");
            if layer > 0 {
                text += &format!("after = [\"l{0}\", \"r{0}\"]\n", layer - 1);
            }
        }
    }
    let mut bench = Bench::claimed(&text);
    let begin = std::time::Instant::now();
    for layer in 0..25 {
        for side in ["l", "r"] {
            // No outputs: nothing marks a step as visited but a list of its own.
            let output = if layer == 0 { json!(side) } else { json!(null) };
            bench.answered(&format!("{side}{layer}"), done(output));
            if layer == 23 && side == "r" {
                assert_eq!(bench.request("l24").outputs.len(), 2);
            }
        }
        assert!(begin.elapsed().as_secs() < 5, "layer {layer}");
    }
    assert_eq!(bench.task.process_state(), ProcessState::Processed);
}

// E1: outputs of all steps before, and of no other.
#[test]
fn a_request_holds_the_outputs_of_the_steps_it_depends_on_and_of_no_other() {
    let text = format!(
        "{ONE}[[step]]\nname=\"b\"\nagent=\"x\"\ntimeout=\"10s\"\nafter=[\"a\"]\n[[step]]\nname=\"c\"\nagent=\"x\"\ntimeout=\"10s\"\nafter=[\"b\"]\n[[step]]\nname=\"z\"\nagent=\"x\"\ntimeout=\"10s\"\n"
    );
    let mut bench = Bench::claimed(&text);
    bench.done("z").done("a").done("b");
    let outputs = &bench.request("c").outputs;
    assert_eq!(outputs.keys().collect::<Vec<_>>(), ["a", "b"]);
}

// ---------------------------------------------------------------- replies that do not count

// E2, D3, I4 of the protocol.
#[test]
fn a_late_reply_changes_nothing() {
    let mut bench = Bench::claimed(ONE);
    bench.at(9_999);
    let mut in_time = Bench::claimed(ONE);
    in_time.at(9_999).done("a").is("Processed a=Processed#1", "notice Completed");
    bench.at(10_000).done("a").keeps(Kept::Late, "");
    bench.at(50_000).failed("a").keeps(Kept::Late, "").is("Processing a=Processing#1", "");
}

// E2, I4 of the protocol.
#[test]
fn a_reply_of_an_older_attempt_changes_nothing() {
    let mut bench = Bench::claimed(ONE);
    let old = bench.answer("a", done(json!(1)));
    bench.at(11_000).supervise();
    bench.on(&old);
    assert!(bench.kept.is_some(), "the attempt ran out, though no newer one began");
    bench.at(12_000).wake(0).is("Processing a=Processing#2f1", "do a#2");
    bench.on(&old).keeps(Kept::Stale, "").is("Processing a=Processing#2f1", "");
}

// E6: nothing is done for a message that is not ours.
#[test]
fn a_foreign_reply_changes_nothing() {
    let mut bench = Bench::claimed(ONE);
    for event in [bench.reply("a", 0, failed()), bench.reply("a", 2, failed()), bench.reply("zz", 1, failed())] {
        bench.on(&event).keeps(Kept::Foreign, "");
    }
}

// I3 of the protocol.
#[test]
fn a_repeated_reply_is_recorded_once() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    let reply = bench.answer("a", done(json!(1)));
    bench.on(&reply);
    let version = bench.task.version;
    let other = bench.answer("a", failed());
    bench.on(&reply).keeps(Kept::Repeated, "notice StepCompleted");
    bench.on(&other).keeps(Kept::Repeated, "notice StepCompleted");
    assert_eq!(bench.task.version, version);
}

// ---------------------------------------------------------------- what may not have gone out is sent again

// Wording 1: "a Wake whose version is already passed does nothing". D9.
#[test]
fn a_wake_delivered_again_sends_the_requests_that_may_be_lost() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    let by = bench.request("b").complete_by;
    bench.at(3000).done("a").wake(0).keeps(Kept::NothingReady, "do b#1");
    assert_eq!(bench.request("b").complete_by, by, "the stored deadline, never a new one");
    bench.wake(1).keeps(Kept::NothingReady, "");
    bench.at(10_000).wake(0).keeps(Kept::NothingReady, "");
}

// D9, rule 2 of the protocol: a reply is the outbox of what its save claimed.
#[test]
fn a_reply_delivered_again_sends_the_requests_of_its_own_save_only() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    let (a, b) = (bench.answer("a", done(json!(1))), bench.answer("b", done(json!(1))));
    bench.on(&a).on(&b);
    bench.on(&b).keeps(Kept::Repeated, "do c#1, notice StepCompleted");
    bench.on(&a).keeps(Kept::Repeated, "");
    bench.done("c").on(&b).keeps(Kept::Repeated, "");
}

// Wording 7: "re-send means requests". F1, F3, I6 of the protocol.
#[test]
fn a_last_reply_delivered_again_sends_the_final_notice_again() {
    let mut bench = Bench::claimed(ONE);
    let reply = bench.answer("a", done(json!(1)));
    bench.on(&reply).is("Processed a=Processed#1", "notice Completed");
    let first = bench.notices();
    bench.on(&reply).keeps(Kept::Repeated, "notice Completed");
    assert_eq!(bench.notices(), first);
}

// F2, F3: the same for the alert.
#[test]
fn a_fatal_reply_delivered_again_sends_notice_and_alert_again_until_the_alert_is_out() {
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    let reply = bench.answer("a", failed());
    bench.on(&reply).is("Error a=Failed#1", "notice AttentionNeeded, alert");
    bench.on(&reply).keeps(Kept::Repeated, "notice AttentionNeeded, alert");
    bench.on(&Event::AlertSent { version: 2 }).on(&reply).keeps(Kept::Repeated, "notice AttentionNeeded");
}

// F1, F3: the notice that an order failed and is being undone.
#[test]
fn a_reply_that_turned_the_task_to_undo_sends_wake_and_notice_again() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    let reply = bench.answer("a", failed());
    bench.on(&reply).is("Undoing a=Failed#1 b=Processing#1 c=Pending", "wake+11000, notice Failed");
    let first = bench.notices();
    bench.on(&reply).keeps(Kept::Repeated, "notice Failed, wake+11000");
    assert_eq!(bench.notices(), first);
    bench.done("b").on(&reply).keeps(Kept::Repeated, "notice Failed, wake+11000");
    assert_eq!(bench.notices(), first);
}

// D9, F3: cancel is a message too, and the outbox of its effects.
#[test]
fn a_cancel_delivered_again_sends_its_wake_or_its_notice_again() {
    let mut bench = Bench::claimed(ONE);
    bench.cancel().is("Undoing a=Processing#1", "wake+11000, notice Failed");
    bench.cancel().keeps(Kept::Repeated, "notice Failed, wake+11000");
    let mut bench = Bench::new(ONE);
    bench.cancel().is("Undone a=Pending", "notice Received, notice Undone");
    bench.cancel().keeps(Kept::Repeated, "notice Received, notice Undone");
}

// D9: a wait of nothing claims the same step in the save that settles it; the reply is then of an older attempt.
#[test]
fn a_reply_that_claimed_its_own_step_anew_sends_that_request_again() {
    let mut bench = Bench::claimed(&ONE.replace("backoff = [\"1s\"]", "backoff = [\"0s\"]"));
    let reply = bench.answer("a", unavailable(None));
    bench.on(&reply).is("Processing a=Processing#2f1", "do a#2");
    bench.on(&reply).keeps(Kept::Stale, "do a#2");
    bench.done("a").on(&reply);
    assert_eq!(bench.effects().matches("do ").count(), 0);
}

// D9: the Wake of a reply that gave the step back.
#[test]
fn a_reply_that_gave_its_step_back_sends_the_wake_again() {
    let mut bench = Bench::claimed(ONE);
    let reply = bench.answer("a", unavailable(None));
    bench.on(&reply).is("Pending a=Pending+1000#1f1", "wake+1000");
    bench.at(400).on(&reply).keeps(Kept::Repeated, "wake+600");
}

// F1, F3: a person may act before the order has begun. Nothing looks at version 0 again, so its notice is sent with the action
// and with each repetition of it (simulation, seed 115).
#[test]
fn an_act_before_the_first_wake_tells_that_the_order_was_received() {
    let received = |bench: &Bench| {
        bench.effects.iter().any(|e| matches!(e, Effect::Notice(n) if n.kind == NoticeKind::Received && n.seq == 0))
    };
    let mut bench = Bench::new(ONE);
    assert!(received(bench.on(&act(What::Pause))));
    bench.on(&act(What::Pause)).keeps(Kept::Repeated, "notice Received");
    assert!(received(bench.on(&act(What::Resume))));
    assert!(received(bench.at(bench.due() + 1000).supervise()), "{}", bench.effects());
    bench.wake(0);
    assert!(!received(bench.on(&act(What::Pause))), "it has begun");

    // An end that owes its notice owes the first one too.
    let mut bench = Bench::new(ONE);
    bench.on(&act(What::Pause)).on(&act(What::Cancel)).is("Undone a=Pending", "notice Received, notice Undone");
    bench.on(&act(What::Cancel)).keeps(Kept::Repeated, "notice Received, notice Undone");
    bench.at(60_000).supervise();
    assert_eq!(bench.effects(), "notice Received, notice Undone");
}

// F1, F3: a supervisor has no trigger that is delivered again; its next look sends what may have died with it.
#[test]
fn a_supervisor_that_wakes_a_task_to_undo_sends_the_notice_too() {
    let mut bench = Bench::claimed(&ONE.replace("max = 2, ", "max = 1, "));
    bench.at(11_000).supervise().is("Undoing a=Failed#1f1", "wake, notice Failed");
    let first = bench.notices();
    bench.at(21_000).supervise().keeps(Kept::NothingReady, "notice Failed, wake");
    assert_eq!(bench.notices(), first);
}

// Rule 2 of the protocol.
#[test]
fn an_early_wake_resends_itself_a_bounded_number_of_times() {
    let mut bench = Bench::claimed(ONE);
    bench.at(11_000).supervise().is("Pending a=Pending+1000#1f1", "wake+1000");
    bench.on(&Event::Wake { seen: 2, hops: 7 }).keeps(Kept::NothingReady, "wake+1000");
    assert!(matches!(&bench.effects[..], [Effect::Wake(w, _)] if w.hops == 8 && w.seen == 2));
    bench.on(&Event::Wake { seen: 2, hops: MAX_HOPS }).keeps(Kept::NothingReady, "");
    bench.at(12_000).on(&Event::Wake { seen: 2, hops: MAX_HOPS }).is("Processing a=Processing#2f1", "do a#2");
}

// ---------------------------------------------------------------- failures

// D7, G1, A2: a permanent error burns no retries.
#[test]
fn a_permanent_error_turns_the_task_to_undo_by_policy() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("b").failed("a").is("Undoing a=Failed#1 b=Processed#1 c=Pending", "wake+11000, notice Failed");
    assert_eq!(bench.task.failure_count(), 0);
}

// D7, F2.
#[test]
fn a_permanent_error_stops_the_task_with_an_alert_by_policy() {
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.failed("a").is("Error a=Failed#1", "notice AttentionNeeded, alert");
    let Some(Effect::Alert(alert)) = bench.effects.last() else { panic!() };
    assert_eq!((alert.step.as_deref(), alert.last_error.as_deref()), (Some("a"), Some("no such card")));
    assert!(alert.reason.contains("no such card") && alert.resubmit.contains("ord_1"), "{alert:?}");
    assert_eq!(alert.version, bench.task.version);
}

// A2: the agent's own retries are spent; that is a failure known early, and the remote's wish is kept.
#[test]
fn an_unavailable_reply_counts_as_a_failure_and_waits_as_long_as_the_remote_asks() {
    for (wish, wait) in [(None, 1000), (Some(200), 1000), (Some(7000), 7000), (Some(u64::MAX), 24 * 3600 * 1000)] {
        let mut bench = Bench::claimed(ONE);
        let event = bench.answer("a", unavailable(wish));
        let wake = if wait <= 900_000 { format!("wake+{wait}") } else { String::new() };
        bench.on(&event).is(&format!("Pending a=Pending+{wait}#1f1"), &wake);
    }
    let mut bench = Bench::claimed(ONE);
    bench.answered("a", unavailable(None)).at(1000).wake(2);
    bench.answered("a", unavailable(None)).is("Undoing a=Failed#2f2", "wake+11000, notice Failed");
}

// E4: while a breaker is open, work waits and no failure is counted.
#[test]
fn a_deferred_reply_counts_no_failure_however_often_it_comes() {
    let mut bench = Bench::claimed(ONE);
    for n in 1..20 {
        bench.answered("a", deferred(3000)).is(&format!("Pending a=Pending+3000#{n}"), "wake+3000");
        let next = n + 1;
        bench.at(bench.now + 3000).woken().is(&format!("Processing a=Processing#{next}"), &format!("do a#{next}"));
    }
}

// E4, E6: no failure is counted for it, so a wait of nothing would be a loop without an end.
#[test]
fn a_deferred_reply_waits_for_a_second_at_least() {
    for (wish, wait) in [(0, 1000), (999, 1000), (1001, 1001)] {
        let mut bench = Bench::claimed(ONE);
        bench.answered("a", deferred(wish)).is(&format!("Pending a=Pending+{wait}#1"), &format!("wake+{wait}"));
    }
}

fn strained(since: i64, stretch: u32) -> Strain {
    Strain { since: at(since), last: at(since), stretch, held: 10, looked_at: 20, alert_owed: false }
}

// J1: an agent's strain lengthens a step's wait, whichever process counts the failure, but not the remote's own wish.
#[test]
fn the_back_off_of_a_strained_agent_is_stretched() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.agents.strained.insert("x".into(), strained(0, 4));
    bench.done("b").at(11_000).supervise().is("Pending a=Pending+4000#1f1 b=Processed#1 c=Pending", "wake+4000");
    for (wish, wait) in [(None, 4000), (Some(3000), 4000), (Some(7000), 7000)] {
        let mut bench = Bench::claimed(ONE);
        bench.agents.strained.insert("x".into(), strained(0, 4));
        bench.answered("a", unavailable(wish)).is(&format!("Pending a=Pending+{wait}#1f1"), &format!("wake+{wait}"));
    }
    // An open breaker is no failure, and another agent's trouble or an episode that is over does not count.
    let mut bench = Bench::claimed(ONE);
    bench.agents.strained.insert("x".into(), strained(0, 4));
    bench.answered("a", deferred(3000)).is("Pending a=Pending+3000#1", "wake+3000");
    for (agent, since) in [("y", 0), ("x", -600_000)] {
        let mut bench = Bench::claimed(ONE);
        bench.agents.strained.insert(agent.into(), strained(since, 4));
        bench.at(11_000).supervise().is("Pending a=Pending+1000#1f1", "wake+1000");
    }
}

// G1, J1: undos too.
#[test]
fn the_back_off_of_an_undo_is_stretched() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").failed("b").at(11_000).wake(4);
    bench.agents.strained.insert("x".into(), strained(0, 4));
    bench.at(22_000).supervise().is("Undoing a=UndoPending+8000#2uf1 b=Undone#1 c=Pending", "wake+8000");
}

fn holders(bench: &Bench) -> Vec<&str> {
    shared::supervisor::holders(&bench.task, &bench.turn("v1"))
}

// J1: an agent holds a task up from the moment its time has run out until the next attempt, in both directions.
#[test]
fn a_task_is_held_up_by_the_agents_it_waits_for_after_a_failure() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    assert!(holders(&bench).is_empty(), "what waits for a scheduler waits for no agent");
    bench.wake(0).at(10_999);
    assert!(holders(&bench).is_empty(), "in time, by any clock");
    bench.at(11_000);
    assert_eq!(holders(&bench), ["x"], "each agent once");
    bench.supervise();
    assert_eq!(holders(&bench), ["x"], "it waits for the next attempt");
    bench.withhold("x");
    assert!(holders(&bench).is_empty(), "somebody knows");
    bench.agents = Agents::default();
    bench.at(12_000).wake(2);
    assert!(holders(&bench).is_empty(), "the next attempt is under way");
    bench.done("a").failed("b");
    assert!(holders(&bench).is_empty());
    bench.at(23_000).wake(5).at(33_999);
    assert!(holders(&bench).is_empty(), "the undo is in time");
    bench.at(34_000);
    assert_eq!(bench.state(), "Undoing a=UndoProcessing#3f1 b=Undone#2f1 c=Pending");
    assert_eq!(holders(&bench), ["x"]);
    bench.supervise();
    assert_eq!(holders(&bench), ["x"]);
    let mut bench = Bench::claimed(&on_failure_error(SIDE_BY_SIDE));
    bench.failed("a").at(20_000);
    assert!(holders(&bench).is_empty(), "an order in Error waits for a person");
}

// Wording 2: "a claim needs the task unlocked".
#[test]
fn a_step_that_waits_is_retried_while_its_sibling_runs() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.answered("a", unavailable(None)).is("Processing a=Pending+1000#1f1 b=Processing#1 c=Pending", "wake+1000");
    bench.at(1000).wake(2).is("Processing a=Processing#2f1 b=Processing#1 c=Pending", "do a#2");
}

// D4, D10.
#[test]
fn an_expired_step_goes_back_and_its_failure_is_counted_once() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("b").at(10_999).supervise().keeps(Kept::NothingReady, "");
    bench.at(11_000).supervise().is("Pending a=Pending+1000#1f1 b=Processed#1 c=Pending", "wake+1000");
    assert_eq!(bench.expired, 1);
    bench.supervise().keeps(Kept::NothingReady, "").at(11_999).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.task.failure_count(), 1);
}

// D10: waiting is no failure, however long it takes.
#[test]
fn a_task_that_only_waits_counts_no_failure_and_its_wake_is_resent() {
    let mut bench = Bench::new(ONE);
    for round in 1..50 {
        let due = bench.task.due.unwrap();
        bench.now = ms(due).max(bench.now);
        bench.supervise().is("Pending a=Pending", "notice Received, wake");
        assert!(bench.task.due.unwrap() > at(bench.now), "round {round}");
        assert!(bench.task.due.unwrap() <= at(bench.now + 900_000), "at most a quarter of an hour between looks");
    }
    assert_eq!((bench.task.failure_count(), bench.task.version), (0, 0));
}

fn late(text: &str) -> String {
    text.replacen("timeout = \"10s\"", "timeout = \"10s\"\nlate = { extend = \"30s\", times = 2 }", 1)
}

// D5: the same attempt gets more time and its request goes out again; no failure is counted until that is spent.
#[test]
fn a_late_attempt_gets_more_time_and_stays_the_same_attempt() {
    let mut bench = Bench::claimed(&late(ONE));
    bench.at(11_000).supervise().is("Processing a=Processing#1", "wake");
    assert_eq!((bench.expired, bench.task.due), (0, Some(at(42_000))));
    let Some(Effect::Wake(wake, _)) = bench.effects.first() else { panic!() };
    let seen = wake.seen;
    bench.wake(seen).keeps(Kept::NothingReady, "do a#1");
    let request = bench.request("a").clone();
    assert_eq!((request.complete_by, request.idempotency_key.as_str()), (at(41_000), "ord_1:a:do"));
    bench.at(42_000).supervise().is("Processing a=Processing#1", "wake");
    bench.at(73_000).supervise().is("Pending a=Pending+1000#1f1", "wake+1000");
    assert_eq!(bench.expired, 1);
    let history = shared::view::history(&bench.task, &bench.workflow);
    assert_eq!(history.iter().filter(|e| e.event == "step_extended" && e.step.as_deref() == Some("a")).count(), 2);
    bench.at(74_000).wake(4).at(85_000).supervise().is("Processing a=Processing#2f1", "wake");
}

// D5, E2: a reply after the old deadline and before the new one counts; after the new one it does not.
#[test]
fn a_reply_within_the_extension_counts_and_after_it_does_not() {
    let mut bench = Bench::claimed(&late(ONE));
    let slow = bench.answer("a", done(json!(1)));
    bench.at(10_500).on(&slow).keeps(Kept::Late, "");
    bench.at(11_000).supervise().at(40_999).on(&slow).is("Processed a=Processed#1", "notice Completed");
    let mut bench = Bench::claimed(&late(ONE));
    bench.at(11_000).supervise().at(41_000).on(&slow).keeps(Kept::Late, "");
}

// D5: an undo waits for the longer deadline too, and a task that turns back gives no attempt more time.
#[test]
fn an_undo_waits_for_the_extended_deadline() {
    let mut bench = Bench::claimed(&late(ONE));
    bench.at(11_000).supervise().cancel().is("Undoing a=Processing#1", "wake+31000, notice Failed");
    bench.at(42_000).supervise().is("Undoing a=Pending#1f1", "");
}

// D6: the boundary is exact.
#[test]
fn at_the_threshold_the_task_is_undone_and_one_failure_before_it_is_not() {
    let mut bench = Bench::claimed(&SIDE_BY_SIDE.replace("b\"\nagent", "b2\"\nagent").replace("\"b\"", "\"b2\""));
    bench.done("b2").at(11_000).supervise().at(12_000).wake(3);
    bench.at(23_000).supervise().is("Pending a=Pending+5000#2f2 b2=Processed#1 c=Pending", "wake+5000");
    bench.at(28_000).wake(5);
    bench.at(39_000).supervise().is("Undoing a=Failed#3f3 b2=Processed#1 c=Pending", "wake, notice Failed");
}

// D6: the other two policies at the threshold.
#[test]
fn at_the_threshold_the_policy_may_be_error_or_a_bounded_long_back_off() {
    let mut bench = Bench::claimed(&ONE.replace("max = 2, ", "max = 1, then = \"error\", "));
    bench.at(11_000).supervise().is("Error a=Failed#1f1", "notice AttentionNeeded, alert");
    let long = "max = 1, long = { every = \"1h\", times = 2 }, then = \"error\", ";
    let mut bench = Bench::claimed(&ONE.replace("max = 2, ", long));
    for n in 1..=2 {
        // Longer than a message can wait: the sweep brings it on.
        let now = bench.now + 11_000;
        bench.at(now).supervise().is(&format!("Pending a=Pending+3600000#{n}f{n}"), "");
        assert_eq!(bench.task.due, Some(at(bench.now + 3_600_000)));
        let now = bench.now + 3_600_000;
        bench.at(now).supervise().is(&format!("Pending a=Pending+0#{n}f{n}"), "wake");
        bench.woken();
    }
    let now = bench.now + 11_000;
    bench.at(now).supervise().is("Error a=Failed#3f3", "notice AttentionNeeded, alert");
}

// A1: a failure while siblings run stops everything new at once; what the siblings did is recorded.
#[test]
fn after_a_failure_nothing_new_starts_and_siblings_in_time_are_recorded() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.failed("b").is("Undoing a=Processing#1 b=Failed#1 c=Pending", "wake+11000, notice Failed");
    bench.at(5000).done("a").is("Undoing a=Processed#1 b=Failed#1 c=Pending", "notice StepCompleted");
    bench.at(10_999).wake(2).keeps(Kept::NothingReady, "wake+1");
    bench.at(11_000).wake(2).is("Undoing a=UndoProcessing#2 b=Undone#1 c=Pending", "undo a#2");
    assert_eq!(bench.request("a").output, Some(json!({"of": "a"})));
    assert_eq!(bench.request("a").undoes.as_deref(), Some("ord_1:a:do"));
    bench.done("a").is("Undone a=Undone#2 b=Undone#1 c=Pending", "notice Undone");
    assert_eq!(bench.task.due, None);
}

// Wording 4: "advance looks only at the step".
#[test]
fn a_last_reply_after_a_cancel_does_not_process_the_order() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").done("b").cancel().done("c");
    bench.is("Undoing a=Processed#1 b=Processed#1 c=Processed#1", "notice StepCompleted");
}

// ---------------------------------------------------------------- supervisors

// I8 of the protocol, I5: an older leader decides nothing.
#[test]
fn a_supervisor_with_an_older_token_leaves_the_task_alone() {
    let mut bench = Bench::claimed(ONE);
    bench.at(11_000).supervise_as(7);
    assert_eq!(bench.task.lease_token, 7);
    bench.at(12_000).wake(2).at(30_000).supervise_as(6).keeps(Kept::Stale, "");
    bench.supervise_as(7);
    assert_eq!(bench.expired, 1);
}

// A scheduler's save keeps the token: it must not open the door to an older supervisor.
#[test]
fn a_scheduler_keeps_the_token_of_the_last_supervisor() {
    let mut bench = Bench::claimed(ONE);
    bench.at(11_000).supervise_as(7).at(12_000).wake(2).cancel();
    assert_eq!(bench.task.lease_token, 7);
}

// D10: a sweep that comes before a claim's Wake may have arrived leaves it to the Wake.
#[test]
fn a_supervisor_does_not_hurry_what_its_wake_will_claim() {
    let mut bench = Bench::claimed(ONE);
    let event = bench.at(9_000).answer("a", unavailable(None));
    bench.on(&event).is("Pending a=Pending+1000#1f1", "wake+1000");
    assert_eq!(bench.task.due, Some(at(10_000)), "early enough, and not worth two index writes");
    bench.at(10_000).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.task.due, Some(at(19_000)), "ten seconds of grace");
    bench.at(19_000).supervise().keeps(Kept::NothingReady, "wake");
}

// Two expired steps: each counted, one save.
#[test]
fn all_expired_steps_are_counted_in_one_save() {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.at(11_000).supervise().is("Pending a=Pending+1000#1f1 b=Pending+1000#1f1 c=Pending", "wake+1000");
    assert_eq!(bench.expired, 2);
}

// Wording 8 and rule 3 of the protocol: never too late. A long first step does not hide the expiry of a short one.
#[test]
fn due_is_never_later_than_the_first_deadline_it_has_to_catch() {
    let text = CHAIN.replacen("timeout = \"10s\"", "timeout = \"60s\"", 1);
    let mut bench = Bench::claimed(&text);
    assert!(bench.task.due.unwrap() <= at(10_000));
    bench.at(10_000).supervise().keeps(Kept::NothingReady, "");
    assert_eq!(bench.task.due, Some(at(61_000)), "found early, it is set to the earliest open deadline");
    bench.at(20_000).done("a");
    assert!(bench.task.due.unwrap() <= at(31_000), "the second step's deadline is nearer: {:?}", bench.task.due);
    assert_due_is_never_late(&bench.task, &bench);
}

fn assert_due_is_never_late(task: &Task, bench: &Bench) {
    if let Some(wanted) = task.wanted_due(&bench.workflow, SKEW) {
        assert!(task.due.unwrap() <= wanted, "{:?} is later than {wanted}", task.due);
    }
}

// Wording 8: one slow step costs few index writes.
#[test]
fn a_slow_step_costs_few_index_writes() {
    let mut bench = Bench::claimed(&ONE.replace("timeout = \"10s\"", "timeout = \"12h\""));
    for minute in 1..300 {
        bench.at(minute * 60_000);
        if bench.task.due.unwrap() <= at(bench.now) {
            bench.supervise();
        }
    }
    bench.done("a");
    assert_eq!(bench.dues.len(), 3, "{:?}", bench.dues);
}

// D10: every Wake lost, every request lost: the sweep alone brings an order to an end.
#[test]
fn the_sweep_alone_brings_an_order_to_an_end() {
    for text in [SIDE_BY_SIDE.to_owned(), on_failure_error(SIDE_BY_SIDE), CHAIN.into()] {
        let mut bench = Bench::new(&text);
        let mut rounds = 0;
        while let Some(due) = bench.task.due.filter(|_| !bench.task.process_state().is_final()) {
            rounds += 1;
            assert!(rounds < 1000, "{}", bench.state());
            bench.now = ms(due).max(bench.now);
            bench.supervise();
            // Only a Wake that the supervisor itself sends arrives, and what it claims is lost again.
            if bench.effects.iter().any(|e| matches!(e, Effect::Wake(_, d) if d.is_zero())) {
                bench.woken();
            }
        }
        assert!(bench.task.process_state().is_final());
    }
}

// A delay is never longer than a message can have.
#[test]
fn a_wake_is_never_longer_than_a_message_can_wait() {
    for wait in ["899s", "900s", "901s", "2h"] {
        let mut bench = Bench::claimed(&ONE.replace("[\"1s\"]", &format!("[\"{wait}\"]")));
        bench.at(11_000).supervise();
        let expected = if wait == "899s" || wait == "900s" { 1 } else { 0 };
        assert_eq!(bench.effects.len(), expected, "{wait}");
        assert!(bench.effects.iter().all(|e| matches!(e, Effect::Wake(_, d) if *d <= MAX_DELAY)));
    }
}

// C1: the pattern's columns come from the steps.
#[test]
fn the_columns_of_the_task_are_computed_from_its_steps() {
    let mut bench = Bench::new(SIDE_BY_SIDE);
    bench.wake(0);
    bench.answered("a", unavailable(None)).at(1000);
    bench.instance = "s2";
    bench.wake(2);
    assert_eq!(bench.task.locked_by(), Some("s2"), "the latest claimer");
    assert_eq!(bench.task.complete_by(), Some(at(10_000)), "the earliest deadline");
    assert_eq!(bench.task.failure_count(), 1);
    assert_eq!(bench.task.holds(0, 2), Some((Direction::Do, at(11_000))));
    assert_eq!((bench.task.holds(0, 1), bench.task.holds(9, 1)), (None, None));
    assert!(grace(&bench.workflow) <= bench.workflow.shortest_timeout());
}
