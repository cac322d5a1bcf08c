//! Reminders of steps that wait, as tables.
//!
//! Method: as in `transitions.rs`. // L3

use crate::language::{bench, claimed, file};
use crate::support::*;
use serde_json::json;
use shared::decision::{Event, Kept, What};
use shared::message::{Outcome, Reply};
use shared::step::State;
use shared::task::Task;
use shared::workflow::file::{Known, parse};

const APPROVAL: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; event = "approved"; timeout = "24h"; remind = { every = "8h", times = 2, agent = "y", with = { to = "${input.to}", since = "${now}" } }
c | after = ["b"]
"#;
const HOUR: i64 = 3600 * 1000;

fn waiting() -> Bench {
    let mut bench = bench(APPROVAL, json!({"to": "ann"}));
    bench.wake(0).done("a");
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{} c=Pending", 24 * HOUR), "notice StepCompleted");
    bench
}

fn event() -> Event {
    Event::Arrived { name: "approved".into(), key: "k".into(), data: json!({}), by: None }
}

/// Brings the order to `hours` after its beginning as the system would: a sweep that looks ahead, and its Wake.
fn later(bench: &mut Bench, hours: i64) {
    bench.at(hours * HOUR - 60_000).supervise();
    bench.at(hours * HOUR).woken();
}

fn reminded(task: &Task) -> (u32, Option<u64>) {
    let reminded = task.steps[1].reminded.as_ref().unwrap();
    (reminded.sent, reminded.next.map(|next| ms(next) as u64))
}

// Rule 10: counted before it is sent, under a key of its own; no attempt, and no deadline moves.
#[test]
fn a_reminder_is_a_request_that_changes_nothing_else() {
    let mut bench = waiting();
    let before = bench.task.clone();
    // A sweep looks ahead, as after every long wait.
    assert_eq!(bench.due(), 8 * HOUR - 120_000);
    later(&mut bench, 8);
    let request = bench.request("b");
    assert_eq!((request.agent.as_str(), request.attempt, request.reminder), ("y", 0, Some(1)));
    assert_eq!(request.idempotency_key, format!("{}:b:remind:1", bench.task.id));
    assert_eq!(request.complete_by, at(8 * HOUR + 60_000));
    assert_eq!(request.input, json!({"to": "ann", "since": before.steps[1].turn.unwrap().as_second()}));
    assert_eq!(reminded(&bench.task), (1, Some(16 * HOUR as u64)));
    assert_eq!((bench.task.steps[1].attempt, bench.task.forward_by), (0, before.forward_by));
    assert_eq!(bench.task.steps[1].state, before.steps[1].state);
    assert_eq!(bench.due(), 16 * HOUR - 120_000);
    // No reply counts, of whatever kind.
    for outcome in [Outcome::Done { output: json!({}) }, Outcome::Failed { error: "no such address".into() }] {
        let reply = Reply::new(bench.task.id.clone(), "b", 0, outcome);
        bench.on(&Event::Reply(reply)).keeps(Kept::Repeated, "");
    }
    later(&mut bench, 16);
    assert_eq!(bench.request("b").reminder, Some(2));
    assert_eq!(reminded(&bench.task), (2, None));
    // The last one: from now on only the deadline of the event is due.
    assert_eq!(bench.due(), 24 * HOUR + 1000);
    let log: Vec<_> = bench.task.log.iter().filter_map(|entry| entry.4.clone()).collect();
    assert_eq!(log.last().unwrap(), "2 of 2", "one entry for all reminders");
    bench.on(&event()).is("Pending a=Processed#1 b=Processed c=Pending", "wake");
}

// The message that is redelivered sends again what was counted, and nothing more.
#[test]
fn a_lost_reminder_is_sent_again_under_its_key() {
    let mut bench = waiting();
    bench.at(8 * HOUR - 60_000).supervise();
    let seen = bench.task.version;
    bench.at(8 * HOUR).wake(seen);
    let first = bench.request("b").clone();
    bench.at(8 * HOUR + 30_000).wake(seen);
    assert_eq!(bench.kept, Some(Kept::NothingReady));
    assert_eq!(*bench.request("b"), first);
    bench.at(8 * HOUR + 60_000).wake(seen).keeps(Kept::NothingReady, "");
}

#[test]
fn short_intervals_have_their_messages() {
    let steps = r#"b | event = "approved"; timeout = "10m"; remind = { every = "4m", agent = "y" }"#;
    let mut bench = bench(steps, json!({}));
    bench.wake(0).is("Pending b=Waiting+600000", "wake+240000");
    bench.at(240_000).woken().is("Pending b=Waiting+360000", "remind b#1, wake+240000");
    bench.at(480_000).woken();
    // The third would come after the timeout.
    bench.is("Pending b=Waiting+120000", "remind b#2");
}

// Rule 1: it sleeps in a pause, in Error and in an undo.
#[test]
fn reminders_sleep_while_the_order_does_not_go_forward() {
    let mut paused = waiting();
    paused.on(&act(What::Pause)).at(20 * HOUR).wake(1).keeps(Kept::NothingReady, "");
    paused.on(&act(What::Resume));
    // One, and not one for each interval.
    paused.woken();
    assert_eq!(reminded(&paused.task), (1, Some(28 * HOUR as u64)));

    let mut cancelled = waiting();
    cancelled.cancel();
    cancelled.at(8 * HOUR).woken();
    cancelled.is("Undoing a=UndoProcessing#2 b=Pending c=Pending", "undo a#2");
}

// An action claims nothing, and neither does an event: the Wake brings the reminder.
#[test]
fn only_a_message_that_comes_again_reminds() {
    let steps = r#"
b | after = []; event = "approved"; timeout = "24h"; remind = { every = "8h", agent = "y" }
c | after = []; event = "paid"; timeout = "24h"
"#;
    let mut bench = claimed(steps, json!({}));
    let paid = Event::Arrived { name: "paid".into(), key: "k".into(), data: json!({}), by: None };
    bench.at(8 * HOUR).on(&paid);
    bench.is(&format!("Pending b=Waiting+{} c=Processed", 16 * HOUR), "wake");
    bench.woken();
    assert_eq!(bench.request("b").reminder, Some(1));
}

// A mistake in `with` ends nothing.
#[test]
fn a_reminder_without_a_value_is_counted_and_not_sent() {
    let mut bench = bench(APPROVAL, json!({}));
    bench.wake(0).done("a");
    later(&mut bench, 8);
    assert_eq!(reminded(&bench.task).0, 1);
    let text = bench.task.log.last().unwrap().4.as_deref().unwrap();
    assert!(text.starts_with("1 of 2 was not sent: `input.to`"), "{text}");
    assert!(matches!(bench.task.steps[1].state, State::Waiting { .. }));
}

// A resubmitted step is waited for, and reminded of, anew. Its numbers go on, because they are part of the keys.
#[test]
fn a_resubmitted_wait_has_all_its_reminders_again() {
    let steps = APPROVAL.replace("timeout =", "on_failure = \"error\"; timeout =");
    let mut bench = bench(&steps, json!({"to": "ann"}));
    bench.wake(0).done("a");
    later(&mut bench, 8);
    bench.at(24 * HOUR + 1000).supervise();
    assert_eq!(bench.task.steps[1].state, State::Failed);
    bench.on(&act(What::Resubmit { step: None, input: None }));
    bench.woken();
    let next = bench.task.steps[1].reminded.as_ref().unwrap().clone();
    assert_eq!((next.sent, next.last), (1, 3));
    bench.at(33 * HOUR).woken();
    assert_eq!(bench.request("b").idempotency_key, format!("{}:b:remind:2", bench.task.id));
}

#[test]
fn a_mistake_in_a_file_says_what_to_write() {
    let read = |steps: &str| parse("w.toml", &file(steps), Known { agents: &["x", "http"], inputs: &[] });
    let event = r#"b | after = []; event = "approved"; timeout = "24h"; "#;
    for (remind, words) in [
        (r#"{ every = "24h", agent = "x" }"#, "the step waits for at most 24h; write a shorter `every`"),
        (r#"{ every = "10ms", agent = "x" }"#, "`every` of 10ms is too short for reminders; write 1s or more"),
        (r#"{ every = "1h", times = 0, agent = "x" }"#, "`times` of `remind` cannot be 0; write 1 to 100"),
        (r#"{ every = "1h", times = 101, agent = "x" }"#, "cannot be 101; write 1 to 100"),
        (r#"{ every = "1h" }"#, "`remind` does not say who reminds; add `agent = \"NAME\"`"),
        (r#"{ every = "1h", agent = "z" }"#, "unknown agent `z`"),
        (r#"{ every = "1h", agent = "x", with = { x = "${outputs.z.x}" } }"#, "`remind` of step `b`: `outputs.z.x`"),
        (
            r#"{ every = "1h", http = { url = "https://mail.example/", headers = { idempotency-key = "{order_id}-k" } } }"#,
            "every reminder gets its own idempotency-key; remove that header",
        ),
    ] {
        let error = read(&format!("{event}remind = {remind}")).unwrap_err().to_string();
        assert!(error.contains(words), "{remind}: {error}");
    }
    let error = read(r#"b | after = []; wait = "2h"; remind = { every = "1h", agent = "x" }"#).unwrap_err().to_string();
    assert!(error.contains("`remind` is for a step that waits for an event, or has `accept` or `poll`"), "{error}");
    let poll = r#"b | after = []; poll = { every = "5s", for = "1m", done = "answer.ok" }; remind = "#;
    for (remind, words) in [
        (r#"{ every = "1m", agent = "x" }"#, "the step waits for at most 1m; write a shorter `every`"),
        (r#"{ every = "20s", agent = "x", with = { at = "${callback}" } }"#, "`callback`"),
    ] {
        let error = read(&format!("{poll}{remind}")).unwrap_err().to_string();
        assert!(error.contains(words), "{remind}: {error}");
    }
}

const RENDER: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; accept = { within = "24h" }; remind = { every = "8h", times = 2, agent = "y", with = { at = "${callback}" } }; alert = true
"#;

// A service that accepted the work and does not report: the same reminders and the same alert.
#[test]
fn a_service_that_reports_later_is_reminded() {
    let mut bench = bench(RENDER, json!({}));
    bench.task.secret = Some("s".into());
    bench.wake(0).done("a");
    let call = bench.request("b").clone();
    assert_eq!((bench.task.steps[1].reminded.clone(), bench.task.steps[1].alert_at), (None, None));
    bench.at(1000).answered("b", Outcome::Accepted { output: json!({}) });
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{}#1", 24 * HOUR), "");
    bench.at(8 * HOUR).supervise();
    let (seen, forward_by) = (bench.task.version, bench.task.forward_by);
    bench.at(8 * HOUR + 1000).wake(seen);
    let request = bench.request("b");
    assert_eq!((request.reminder, request.attempt, &request.accept, &request.callback), (Some(1), 0, &None, &None));
    assert_eq!(request.input, json!({"at": call.callback}));
    assert_eq!(bench.task.forward_by, forward_by);
    bench.at(12 * HOUR + 2000).supervise();
    assert_eq!(bench.effects(), "alert");
    let reason = &bench.task.alert.as_ref().unwrap().reason;
    assert_eq!(*reason, format!("`b` waits for its callback since {}; half of the allowed 24h has passed", at(1000)));
    let version = bench.task.version;
    bench.on(&Event::AlertSent { version });
    // The next attempt has all of its reminders, and its own alert.
    bench.at(24 * HOUR + 2000).supervise();
    assert!(matches!(bench.task.steps[1].state, State::Pending { .. }));
    assert_eq!(bench.task.steps[1].reminds_at(), None);
    bench.at(24 * HOUR + 3000).woken();
    bench.answered("b", Outcome::Accepted { output: json!({}) });
    assert_eq!(reminded(&bench.task), (1, Some(32 * HOUR as u64 + 3000)));
    assert_eq!(bench.task.steps[1].alert_at, Some(at(36 * HOUR + 3000)));
}

const JOB: &str = r#"
b | after = []; timeout = "10s"; http = { url = "https://jobs.example/1", method = "GET" }; poll = { every = "5m", for = "1h", done = "answer.ok" }; remind = { every = "12m", times = 3, agent = "y" }; alert = true
"#;
const MINUTE: i64 = 60_000;

// Neither a look nor a reminder moves the other, and the alert comes once half of the time has passed.
#[test]
fn work_that_is_polled_is_reminded_of() {
    for steps in [JOB.to_owned(), JOB.replace(r#"http = { url = "https://jobs.example/1", method = "GET" }; "#, "")] {
        let mut bench = bench(&steps, json!({}));
        let reminder = |bench: &Bench| bench.task.steps[0].reminded.clone().unwrap();
        bench.wake(0).is("Processing b=Processing#1", "do b#1, wake+720000");
        let first = bench.task.version;
        for minute in [0, 5, 10] {
            bench.at(minute * MINUTE);
            if matches!(bench.task.steps[0].state, State::Pending { .. }) {
                bench.woken();
            }
            bench.answered("b", Outcome::NotYet { why: "running".into() });
            assert_eq!((reminder(&bench).sent, reminder(&bench).next), (0, Some(at(12 * MINUTE))));
        }
        let before = bench.task.steps[0].clone();
        bench.at(12 * MINUTE).wake(first);
        assert!(bench.effects().contains("remind b#1"), "{}", bench.effects());
        assert_eq!((reminder(&bench).sent, reminder(&bench).next), (1, Some(at(24 * MINUTE))));
        let now = &bench.task.steps[0];
        assert_eq!((&now.state, now.attempt, now.poll_until), (&before.state, before.attempt, before.poll_until));
        // Its wake, or the sweep after it, brings the next one.
        assert!(bench.due() <= 24 * MINUTE + 10_000, "{}", bench.due());
        bench.at(30 * MINUTE + 1000).supervise();
        let reason = bench.task.alert.as_ref().map(|alert| alert.reason.clone());
        assert_eq!(reason, Some(format!("`b` polls since {}; half of the allowed 1h has passed", at(0))));
        bench.on(&act(What::Pause));
        assert_eq!(bench.task.reminders().count(), 0);
    }
}

// A poll that has ended reminds nobody.
#[test]
fn a_poll_that_is_done_reminds_nobody() {
    let mut bench = claimed(JOB, json!({}));
    let seen = bench.task.version;
    let looked = Event::Reply(Reply { looked: true, ..bench.told("b", done(json!({"ok": true}))) });
    bench.on(&looked).is("Processed b=Processed#1", "notice Completed");
    bench.at(12 * MINUTE).wake(seen).keeps(Kept::NothingReady, "notice Completed");
    bench.at(31 * MINUTE).supervise();
    assert!(bench.task.alert.is_none());
}

const ALARM: &str = r#"
a | after = []; undo = { agent = "x" }
b | after = ["a"]; event = "approved"; timeout = "24h"; alert = true
c | after = ["a"]; retry = { max = 9, backoff = ["1h"] }
"#;

// L7: once half of its time has passed, once, by the way of every alert.
#[test]
fn operators_are_told_of_a_wait_that_is_half_over() {
    let mut bench = bench(ALARM, json!({}));
    bench.wake(0).done("a").done("c").at(11_000).supervise();
    assert_eq!(bench.due(), 12 * HOUR + 1000);
    bench.at(12 * HOUR).supervise().keeps(Kept::NothingReady, "");
    bench.at(12 * HOUR + 1000).supervise();
    bench.is(&format!("Pending a=Processed#1 b=Waiting+{} c=Processed#1", 12 * HOUR - 1000), "alert");
    let Some(shared::message::Effect::Alert(alert)) = bench.effects.first() else { panic!("an alert") };
    let since = bench.task.steps[1].turn.unwrap();
    let reason = format!("`b` waits for the event `approved` since {since}; half of the allowed 24h has passed");
    assert_eq!((alert.reason.as_str(), alert.step.as_deref()), (reason.as_str(), Some("b")));
    assert_eq!(alert.resubmit, format!("stepwarden get {}", bench.task.id));
    assert_eq!(alert.runbook, "docs/runbook.md#who-waits-for-what");
    let version = bench.task.version;
    bench.on(&Event::AlertSent { version });
    assert!(bench.task.alert.is_none());
    bench.at(13 * HOUR).supervise();
    assert_eq!(bench.due(), 24 * HOUR + 1000);
    bench.at(24 * HOUR + 1000).supervise();
    assert_eq!(bench.task.steps[1].state, State::Failed);
}

// What else the order has to do goes on although the bus is down.
#[test]
fn an_alert_that_is_owed_holds_up_nothing() {
    let mut bench = bench(ALARM, json!({}));
    bench.wake(0).done("a").at(12 * HOUR + 1000).supervise();
    assert!(bench.task.alert.is_some());
    let owed = bench.task.clone();
    assert!(matches!(owed.steps[2].state, State::Pending { .. }), "its attempt expired");
    bench.at(13 * HOUR + 10_000).supervise();
    assert_eq!(bench.effects(), "alert, wake");
}

// A pause suspends it, and an order that has ended owes none.
#[test]
fn no_alert_is_sent_of_a_wait_that_sleeps_or_has_ended() {
    let mut paused = bench(ALARM, json!({}));
    paused.wake(0).done("a").done("c").on(&act(What::Pause)).at(20 * HOUR).supervise();
    assert!(paused.task.alert.is_none());
    paused.on(&act(What::Resume)).at(20 * HOUR + 5000).supervise();
    assert!(paused.task.alert.is_some());
    paused.on(&event());
    assert_eq!(paused.task.process_state(), shared::task::ProcessState::Processed);
    assert!(paused.task.alert.is_none());
}

// It was for the step's own agent, and could hold what the one that reminds must not see.
#[test]
fn the_input_that_an_operator_gave_a_step_is_none_of_its_reminders() {
    let steps = RENDER.replace("accept =", "on_failure = \"error\"; with = { n = 1 }; accept =");
    let mut bench = bench(&steps, json!({}));
    bench.task.secret = Some("s".into());
    bench.wake(0).done("a").failed("b");
    bench.on(&act(What::Resubmit { step: None, input: Some(json!({"n": 2})) }));
    bench.woken();
    let call = bench.request("b").clone();
    assert_eq!(call.input, json!({"n": 2}));
    bench.answered("b", Outcome::Accepted { output: json!({}) });
    bench.at(8 * HOUR).supervise();
    bench.at(8 * HOUR + 1000).woken();
    assert_eq!(bench.request("b").input, json!({"at": call.callback}));
}

// A paused agent that reminds must not make each sweep read every order that waits.
#[test]
fn a_reminder_whose_agent_is_paused_gives_way_to_what_is_due() {
    let mut bench = waiting();
    bench.at(8 * HOUR - 60_000).supervise();
    bench.withhold("y");
    bench.at(8 * HOUR + 60_000).supervise();
    assert!(bench.due() > bench.now, "{} {}", bench.due(), bench.now);
    assert_eq!(bench.effects(), "");
    // Its wait still ends in time.
    assert!(bench.due() <= 24 * HOUR + 1000);
}
