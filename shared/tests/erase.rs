//! What is left of an order that is erased, and what keeps an order from being erased. // M5

use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Kept, Refusal, What};
use shared::erase::{Obstacle, Part, check, erase};
use shared::history::{Entry, Kind};
use shared::mend;
use shared::message::Outcome;
use shared::order::Id;
use shared::outputs::Beside;
use shared::step::{Failure, FailureKind, Heart};
use shared::task::{Alert, Arrival, Parent, Phase, Task};
use shared::time::Timestamp;
use shared::view;
use shared::workflow::Hash;

/// What must not be found afterwards.
const PRIVATE: &str = "jane@example.org";

/// The task with [`PRIVATE`] wherever a text can come from outside.
fn full(mut task: Task) -> Task {
    let text = || PRIVATE.to_owned();
    task.reference = Some(text());
    task.traceparent = Some(text());
    task.reason = Some(text());
    task.secret = Some(text());
    task.output = Some(json!({ "to": PRIVATE }));
    task.alert = Some(Alert { version: task.version, step: Some(0), reason: text() });
    let data = Some(json!({ "by": PRIVATE }));
    task.events = vec![Arrival { name: text(), key: text(), hash: text(), step: Some(0), data, by: Some(text()) }];
    for step in &mut task.steps {
        step.output = Some(json!([PRIVATE]));
        step.beside = Some(Beside { hash: Hash(text()), bytes: 1 });
        step.error = Some(text());
        step.input = Some(json!({ "mail": PRIVATE }));
        step.failure = Some(Failure { kind: FailureKind::Refused, status: 409, answer: json!(PRIVATE) });
        step.heart = Some(Heart { until: at(0), at: None, percent: Some(1), note: Some(text()) });
    }
    for entry in &mut task.log {
        entry.4 = Some(text());
    }
    task
}

fn processed() -> Bench {
    let mut bench = Bench::claimed(SIDE_BY_SIDE);
    bench.done("a").done("b").done("c");
    assert_eq!(bench.task.phase, Phase::Processed);
    bench
}

fn whole(task: &Task, now: Timestamp) -> Task {
    erase(task, Part::Last, "ann", "request 17", now).unwrap().expect("it was not erased before")
}

fn json_of(task: &Task) -> String {
    serde_json::to_string(task).unwrap()
}

#[test]
fn ids_states_attempts_and_times_are_left_and_no_text_from_outside() {
    let bench = processed();
    let task = full(bench.task.clone());
    assert!(json_of(&task).matches(PRIVATE).count() > 20);
    let erased = whole(&task, at(60_000));
    assert!(!json_of(&erased).contains(PRIVATE), "{}", json_of(&erased));

    assert_eq!((erased.version, erased.updated_at), (task.version + 1, at(60_000)));
    let columns = |task: &Task| (task.id.clone(), task.tenant.clone(), task.created_at, task.phase, task.due);
    assert_eq!(columns(&erased), columns(&task));
    let steps = |task: &Task| {
        let of = |s: &shared::step::Step| (s.state.clone(), s.attempt, s.failures, s.claimed_at, s.settled_at);
        task.steps.iter().map(of).collect::<Vec<_>>()
    };
    assert_eq!(steps(&erased), steps(&task));
    let events = |log: &[Entry]| log.iter().map(|e| (e.0, e.1, e.2, e.3)).collect::<Vec<_>>();
    let (last, before) = erased.log.split_last().unwrap();
    assert_eq!(events(before), events(&task.log));
    assert_eq!(*last, Entry(60_000, Kind::Erased, None, 0, Some("ann: request 17".into())));

    // What is left is a record like any other.
    assert_eq!(mend::check(&erased, "acme", &bench.workflow), Ok(()));
    let status = view::status(&erased, &bench.workflow, SKEW);
    assert_eq!((status.erased_at, status.steps[0].output.clone()), (Some(at(60_000)), None));
    let said = view::history(&erased, &bench.workflow);
    assert_eq!(
        said.last().map(|entry| (&*entry.event, entry.detail.as_deref())),
        Some(("erased", Some("ann: request 17")))
    );
}

#[test]
fn an_order_whose_data_is_still_needed_is_refused_in_a_sentence() {
    let open = Bench::claimed(ONE);
    let mut paused = Bench::claimed(ONE);
    paused.on(&act(What::Pause));
    let mut undoing = Bench::claimed(ONE);
    undoing.cancel();
    let mut stopped = Bench::claimed(&on_failure_error(ONE));
    stopped.failed("a");
    let mut undo_failed = Bench::claimed(ONE);
    undo_failed.failed("a").at(11_000).wake(2).failed("a");
    assert_eq!(undo_failed.task.phase, Phase::UndoError);
    let mut child = processed();
    let parent = Id("ord_2".into());
    let step = "line".into();
    child.task.parent = Some(Parent { id: parent.clone(), step, item: None, round: 0, paused: false, released: false });
    let all = [
        (&open, Obstacle::Open, "has not ended"),
        (&paused, Obstacle::Open, "has not ended"),
        (&undoing, Obstacle::Undoing, "is being undone"),
        (&stopped, Obstacle::Stopped, "waits for a person"),
        (&undo_failed, Obstacle::Stopped, "waits for a person"),
        (&child, Obstacle::Child(parent), "belongs to order ord_2"),
    ];
    for (bench, why, words) in all {
        for part in [Part::First, Part::Last] {
            assert_eq!(erase(&bench.task, part, "ann", "r", at(60_000)), Err(why.clone()));
        }
        assert!(why.to_string().contains(words), "{why}");
    }
    assert_eq!(check(&child.task, Part::Below), Ok(()));
    assert_eq!(check(&stopped.task, Part::Below), Err(Obstacle::Stopped), "nor as a child");
    let mut undone = Bench::claimed(ONE);
    undone.failed("a").at(11_000).wake(2).done("a");
    assert_eq!((undone.task.phase, check(&undone.task, Part::Last)), (Phase::Undone, Ok(())));
}

#[test]
fn each_part_is_done_once() {
    let task = full(processed().task);
    let first = erase(&task, Part::First, "ann", "request 17", at(60_000)).unwrap().unwrap();
    assert!(!json_of(&first).contains(PRIVATE));
    assert_eq!((first.is_erased(), first.erased()), (true, None), "the orders below are still to come");
    assert_eq!(erase(&first, Part::First, "bob", "again", at(61_000)), Ok(None));
    let last = erase(&first, Part::Last, "bob", "again", at(62_000)).unwrap().unwrap();
    let said: Vec<_> = last.log.iter().rev().take(2).map(|entry| (entry.1, entry.4.as_deref())).collect();
    assert_eq!(said, [(Kind::Erased, Some("bob: again")), (Kind::Erasing, Some("ann: request 17"))]);
    for part in [Part::First, Part::Last, Part::Below] {
        assert_eq!(erase(&last, part, "eve", "once more", at(63_000)), Ok(None));
    }
}

// Its undo would send nothing that a service could use. What an old message asks changes nothing either.
#[test]
fn an_erased_order_is_not_opened_again() {
    let mut bench = processed();
    for part in [Part::First, Part::Last] {
        bench.task = erase(&bench.task, part, "ann", "r", at(60_000)).unwrap().unwrap();
        let before = bench.task.clone();
        bench.at(60_000).on(&act(What::Undo)).keeps(Kept::Refused(Refusal::Erased), "");
        bench.on(&act(What::Cancel)).keeps(Kept::Refused(Refusal::Ended), "");
        let late = bench.reply("c", 1, Outcome::Done { output: json!(PRIVATE) });
        bench.on(&late);
        assert!(bench.kept.is_some());
        assert_eq!(bench.task, before);
    }
}

// A notice is made of the record when it is sent, so one that is owed has nothing to tell but the end.
#[test]
fn what_is_still_owed_is_sent_without_the_data() {
    let mut bench = Bench::claimed(&on_failure_error(ONE));
    bench.failed("a");
    bench.on(&act(What::MarkDone { step: None, output: Value::Null }));
    assert!(bench.task.notice_owed);
    bench.task = whole(&full(bench.task.clone()), at(1_000));
    bench.at(120_000).supervise();
    assert_eq!(bench.effects(), "notice Completed, alert");
    assert!(!format!("{:?}", bench.effects).contains(PRIVATE), "{:?}", bench.effects);
}
