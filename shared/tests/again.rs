//! Orders that are run again from an earlier step: what is refused and why, what is undone first, and what of the round before
//! counts for the next: nothing. Every small graph is searched by the model, tests/model/again.rs.

use crate::language::{bench, claimed};
use crate::support::*;
use serde_json::json;
use shared::again::{Plan, Rule, Wish, plan};
use shared::decision::{Act, Declined, Event, Kept, Refusal, What};
use shared::history::Kind;
use shared::items::Item;
use shared::message::{Effect, Outcome};
use shared::order::Id;
use shared::step::{Direction, Kids, State};
use shared::task::{Parent, Phase, ProcessState};

fn wish(from: &[&str]) -> Wish {
    Wish { from: from.iter().map(|name| (*name).to_owned()).collect(), new_keys: false, without_undo: true }
}

fn asked(wish: Wish) -> Event {
    act(What::RunAgain(wish))
}

fn refused(bench: &mut Bench, wish: Wish) -> Rule {
    bench.on(&asked(wish));
    match bench.kept {
        Some(Kept::Refused(Refusal::Again(rule))) => rule,
        other => panic!("{other:?}: {}", bench.state()),
    }
}

/// `CHAIN`, done, a minute later.
fn chain() -> Bench {
    let mut bench = Bench::claimed(CHAIN);
    bench.done("a").done("b").done("c").done("d").at(60_000);
    assert_eq!(bench.task.process_state(), ProcessState::Processed);
    bench
}

fn keys(bench: &Bench, step: &str) -> (String, Option<String>) {
    let request = bench.request(step);
    (request.idempotency_key.clone(), request.undoes.clone())
}

// M7: what is done again is undone first, in its order, and gets new keys; what stays is not touched.
#[test]
fn an_ended_order_runs_again_from_a_step() {
    let mut bench = chain();
    bench.on(&asked(wish(&["b"]))).is("Undoing a=Processed#1 b=Processed#1 c=Processed#1 d=Processed#1", "wake");
    assert!(bench.task.due.is_some() && !bench.task.notice_owed && bench.task.output.is_none());
    bench.woken().is("Undoing a=Processed#1 b=Undone#1 c=UndoProcessing#2 d=Undone#1", "undo c#2");
    assert_eq!(keys(&bench, "c"), ("ord_1:c:undo".into(), Some("ord_1:c:do".into())));
    bench.done("c").is("Pending a=Processed#1 b=Pending#1 c=Pending#2 d=Pending#1", "wake");
    assert_eq!(bench.task.steps[0].output, Some(json!({"of": "a"})));
    bench.woken().is("Processing a=Processed#1 b=Processing#2 c=Pending#2 d=Pending#1", "do b#2");
    // It has no undo, so its service knows the key and answers as before.
    assert_eq!(keys(&bench, "b").0, "ord_1:b:do");
    bench.done("b");
    assert_eq!(keys(&bench, "c").0, "ord_1:c:do:1");
    bench.done("c").done("d");
    assert_eq!(bench.state(), "Processed a=Processed#1 b=Processed#2 c=Processed#3 d=Processed#2");
    assert!(bench.notices().iter().any(|(kind, _)| format!("{kind:?}") == "Completed"));
    // A third round, and its undo has the key of what it undoes.
    bench.at(200_000).on(&asked(wish(&["c"])));
    bench.woken().is("Undoing a=Processed#1 b=Processed#2 c=UndoProcessing#4 d=Undone#2", "undo c#4");
    assert_eq!(keys(&bench, "c"), ("ord_1:c:undo:1".into(), Some("ord_1:c:do:1".into())));
    bench.done("c");
    bench.woken();
    assert_eq!(keys(&bench, "c").0, "ord_1:c:do:2");
}

// M7: late messages of the round before.
#[test]
fn no_reply_of_an_earlier_round_counts() {
    let mut bench = chain();
    bench.on(&asked(wish(&["c"])));
    bench.woken().done("c");
    let before = bench.state();
    for attempt in [1, 2] {
        let late = bench.reply("c", attempt, done(json!("old")));
        bench.on(&late);
        assert!(matches!(bench.kept, Some(Kept::Stale | Kept::Repeated)), "{attempt}: {:?}", bench.kept);
        assert_eq!(bench.state(), before, "{attempt}");
    }
    bench.woken();
    for attempt in [1, 2] {
        let late = bench.reply("c", attempt, done(json!("old")));
        bench.on(&late);
        assert!(bench.kept.is_some() && bench.state().contains("c=Processing#3"), "{}", bench.state());
    }
}

// M7
#[test]
fn new_keys_are_for_all_where_they_are_asked_for() {
    let mut bench = chain();
    bench.on(&asked(Wish { new_keys: true, ..wish(&["b"]) }));
    bench.woken().done("c");
    bench.woken();
    assert_eq!(keys(&bench, "b").0, "ord_1:b:do:1");
}

#[test]
fn what_stays_has_to_be_allowed() {
    let mut bench = chain();
    let strict = Wish { without_undo: false, ..wish(&["c"]) };
    assert_eq!(refused(&mut bench, strict.clone()), Rule::NoUndo);
    let found = plan(&bench.task, &bench.workflow, &strict);
    let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let expected = Plan {
        again: names(&["c", "d"]),
        undone_first: names(&["c"]),
        stays: names(&["d"]),
        new_keys: names(&["c"]),
        old_keys: names(&["d"]),
        new_orders: Vec::new(),
    };
    assert_eq!(found, expected);
    let found = plan(&bench.task, &bench.workflow, &wish(&["a"]));
    assert_eq!(found.undone_first, names(&["c", "a"]), "what came later is undone first");
}

#[test]
fn what_cannot_be_run_again_is_refused_with_its_rule() {
    let mut bench = chain();
    assert_eq!(refused(&mut bench, wish(&[])), Rule::NoStep);
    assert_eq!(refused(&mut bench, wish(&["z"])), Rule::Unknown);
    bench.task.steps[1].kids =
        Some(Kids { items: Some(shared::items::Items::new(2, bench.workflow.hash(), at(0))), ..Kids::default() });
    assert_eq!(shared::again::check(&bench.task, &bench.workflow, &wish(&["a"])).unwrap_err().rule, Rule::List);
    assert!(shared::again::check(&bench.task, &bench.workflow, &wish(&["c"])).is_ok(), "before what is done again");
    bench.task.steps[1].kids = None;
    let parent =
        Parent { id: Id("ord_0".into()), step: "s".into(), item: None, round: 0, paused: false, released: false };
    bench.task.parent = Some(parent);
    assert_eq!(refused(&mut bench, wish(&["a"])), Rule::Child);
    bench.task.parent = None;
    let erased = shared::erase::erase(&bench.task, shared::erase::Part::Last, "ann", "r", at(60_000)).unwrap().unwrap();
    bench.task = erased;
    assert_eq!(refused(&mut bench, wish(&["a"])), Rule::Erased);

    let mut open = Bench::claimed(CHAIN);
    open.done("a");
    assert_eq!(refused(&mut open, wish(&["c"])), Rule::Open, "`b` is with its agent");
    assert_eq!(refused(&mut open, wish(&["b", "d"])), Rule::NotBegun);
    let mut beside = Bench::claimed(SIDE_BY_SIDE);
    beside.done("a");
    assert_eq!(refused(&mut beside, wish(&["a"])), Rule::Open, "`b` is with its agent");
    beside.on(&asked(wish(&["a", "b"]))).is("Undoing a=Processed#1 b=Processing#1 c=Pending", "wake+11000");
    assert_eq!(refused_by(&mut beside, wish(&["a"])), Refusal::RunsAgain);
    beside.cancel().is("Undoing a=Processed#1 b=Processing#1 c=Pending", "wake+11000, notice Failed");
    assert_eq!(beside.task.again, None);
    assert_eq!(refused(&mut beside, wish(&["a"])), Rule::Undoing);

    let mut undone = Bench::claimed(CHAIN);
    undone.done("a").done("b").cancel().at(60_000);
    undone.woken().done("c").done("a");
    assert_eq!(undone.state(), "Undone a=Undone#2 b=Undone#1 c=Undone#2 d=Pending");
    assert_eq!(refused(&mut undone, wish(&["b"])), Rule::Undone, "what it reads is taken back");
    undone.on(&asked(wish(&["a"]))).is("Pending a=Pending#2 b=Pending#1 c=Pending#2 d=Pending", "wake");
    undone.woken().is("Processing a=Processing#3 b=Pending#1 c=Pending#2 d=Pending", "do a#3");
    assert_eq!(keys(&undone, "a").0, "ord_1:a:do:1", "its service refuses the key of what was undone");
}

fn refused_by(bench: &mut Bench, wish: Wish) -> Refusal {
    bench.on(&asked(wish));
    match bench.kept {
        Some(Kept::Refused(why)) => why,
        other => panic!("{other:?}: {}", bench.state()),
    }
}

// M7: a person in front of an order in Error may go further back than the step that failed.
#[test]
fn an_order_in_error_runs_again_from_an_earlier_step() {
    let mut bench = Bench::claimed(&on_failure_error(CHAIN));
    bench.done("a").done("b").failed("c").at(60_000);
    assert_eq!(bench.task.process_state(), ProcessState::Error);
    bench.on(&asked(wish(&["b"])));
    bench.woken().is("Undoing a=Processed#1 b=Undone#1 c=UndoProcessing#2 d=Pending", "undo c#2");
    bench.done("c").is("Pending a=Processed#1 b=Pending#1 c=Pending#2 d=Pending", "wake");
    assert_eq!((bench.task.alert.clone(), bench.task.reason.clone()), (None, None));
    assert_eq!(bench.task.steps[3].rounds, None, "it never began");
}

// M7: the undo of what is replaced fails, and is a person's as any other. Then the rest goes on.
#[test]
fn an_undo_that_fails_stops_the_order_and_can_be_finished() {
    let mut bench = chain();
    bench.on(&asked(wish(&["c"])));
    bench.woken().failed("c");
    assert_eq!((bench.task.phase, bench.task.again.is_some()), (Phase::UndoError, true));
    assert_eq!(refused_by(&mut bench, wish(&["a"])), Refusal::RunsAgain);
    let mut skipped = Bench { task: bench.task.clone(), ..Bench::new(CHAIN) };
    skipped.at(60_000);
    let skip = What::Skip { step: Some("c".into()) };
    skipped.on(&act(skip));
    assert_eq!(skipped.state(), "Pending a=Processed#1 b=Processed#1 c=Pending#2 d=Pending#1");
    bench.resubmit();
    bench.woken().done("c");
    assert_eq!(bench.state(), "Pending a=Processed#1 b=Processed#1 c=Pending#3 d=Pending#1");
}

// M7: an undo that cannot be done must not hold the order in its round.
#[test]
fn an_undo_that_failed_can_be_given_up_for_an_undo_of_the_whole_order() {
    for event in [act(What::Undo), Event::Cancel { by: "ann".into(), reason: "given up".into() }] {
        let mut bench = chain();
        bench.on(&asked(wish(&["c"])));
        bench.woken().failed("c");
        assert_eq!(bench.task.phase, Phase::UndoError);
        bench.on(&event);
        assert_eq!((bench.task.phase, &bench.task.again, &bench.task.alert), (Phase::Undoing, &None, &None));
        assert_eq!(bench.state(), "Undoing a=UndoPending#1 b=Undone#1 c=UndoPending#2 d=Undone#1");
        bench.woken().done("c");
        bench.woken().done("a");
        assert_eq!(bench.state(), "Undone a=Undone#2 b=Undone#1 c=Undone#3 d=Undone#1");
    }

    // Without such a round the undo can only be finished, as before.
    let mut bench = Bench::claimed(CHAIN);
    bench.done("a").cancel().at(60_000);
    bench.woken().failed("a");
    assert_eq!(bench.task.phase, Phase::UndoError);
    bench.cancel().keeps(Kept::Refused(Refusal::UndoBegun), "");
}

const FAMILY: &str = r#"
line | workflow = "child"
lines | after = ["line"]; each = "${input.lines}"; workflow = "child"
pay | after = ["lines"]; undo = { agent = "x" }
"#;

// M7, K6: a person runs an order again whose records were about to be removed, and the process dies before it has told those of its
// children that a later undo needs.
#[test]
fn the_orders_that_it_started_outlast_it() {
    let mut bench = bench(FAMILY, json!({}));
    let child = workflow(CHAIN).hash();
    bench.task.pins.insert("child".into(), child.clone());
    let mut items = shared::items::Items::new(250, child, at(0));
    (0..250).for_each(|item| items.set(item, Item::Done));
    bench.task.steps[0].kids = Some(Kids::default());
    bench.task.steps[1].kids = Some(Kids { items: Some(items), ..Kids::default() });
    for step in &mut bench.task.steps {
        (step.attempt, step.state) = (1, State::Processed);
    }
    (bench.task.phase, bench.task.expires, bench.task.due) = (Phase::Processed, true, None);
    bench.on(&asked(wish(&["pay"])));
    let kept = |bench: &Bench| {
        let kept = bench.effects().split(", ").map(str::to_owned).collect::<Vec<_>>();
        ["line", "lines"].map(|step| kept.iter().filter(|one| **one == format!("keep order of {step}")).count())
    };
    assert_eq!(kept(&bench), [1, 250]);
    // All that is lost. Another Wake asks again, and with it one part of the list after the other.
    let late = bench.task.version;
    bench.woken();
    assert_eq!(kept(&bench), [1, 100]);
    for (part, count) in [(2, 100), (3, 50)] {
        assert!(bench.effects.iter().any(|one| matches!(one, Effect::Wake(wake, _) if wake.hint && wake.hops == part)));
        bench.on(&Event::Hint { seen: late, part, step: None });
        assert_eq!(kept(&bench), [0, count]);
    }
    assert!(!bench.effects().contains("wake"), "{}", bench.effects());
    // And so does the save that puts the steps back.
    bench.done("pay");
    assert_eq!((bench.task.phase, kept(&bench)), (Phase::Forward, [1, 250]));
    bench.woken();
    assert_eq!(kept(&bench), [0, 0]);
}

// M7: a cancel in the middle takes everything back, also what was not to be done again.
#[test]
fn a_cancel_while_it_is_taken_back_undoes_the_whole_order() {
    let mut bench = chain();
    bench.on(&asked(wish(&["c"])));
    bench.woken().is("Undoing a=Processed#1 b=Processed#1 c=UndoProcessing#2 d=Undone#1", "undo c#2");
    bench.cancel();
    assert_eq!(bench.task.again, None);
    bench.done("c");
    bench.woken();
    bench.done("a");
    assert_eq!(bench.state(), "Undone a=Undone#2 b=Undone#1 c=Undone#2 d=Undone#1");
}

#[test]
fn a_repeated_act_is_already_done_and_a_pause_holds_it() {
    let mut bench = chain();
    let seen = Some(bench.task.version);
    let again = Event::Act(Act { seen, ..by_ann(What::RunAgain(wish(&["c"]))) });
    bench.on(&again);
    bench.on(&again).keeps(Kept::Repeated, "wake");
    bench.on(&act(What::Pause));
    bench.woken().keeps(Kept::NothingReady, "");
    bench.on(&act(What::Resume));
    bench.woken();
    assert_eq!(bench.effects(), "undo c#2");
    let texts: Vec<_> =
        bench.task.log.iter().filter(|entry| entry.1 == Kind::RunAgain).map(|entry| entry.4.clone()).collect();
    assert_eq!(texts, [Some("ann: ticket 7 (again from c)".to_owned())]);
}

const APPROVED: &str = r#"
approve | event = "approved"; people = 2; timeout = "1h"
pay | after = ["approve"]; undo = { agent = "x" }
"#;

fn approval(key: &str, by: &str) -> Event {
    Event::Arrived { name: "approved".into(), key: key.into(), data: json!({}), by: Some(by.into()) }
}

// M7: an approval of the round before, delivered again, approves nothing in the next.
#[test]
fn an_old_approval_does_not_settle_the_new_round() {
    let mut bench = claimed(APPROVED, json!({}));
    bench.on(&approval("1", "ann")).on(&approval("2", "bob"));
    bench.woken().done("pay").at(60_000);
    bench.on(&asked(wish(&["approve"])));
    bench.woken().done("pay");
    bench.woken();
    assert!(bench.state().contains("approve=Waiting"), "{}", bench.state());
    for (key, by) in [("1", "ann"), ("2", "bob")] {
        bench.on(&approval(key, by));
        assert_eq!(bench.kept, Some(Kept::Repeated), "{key}");
    }
    assert!(bench.state().contains("approve=Waiting"), "{}", bench.state());
    bench.on(&approval("3", "ann"));
    assert!(bench.state().contains("approve=Waiting"), "one of two: {}", bench.state());
    bench.on(&approval("4", "ann"));
    assert!(bench.state().contains("approve=Waiting"), "the same person: {}", bench.state());
    bench.on(&approval("5", "bob"));
    assert!(bench.state().contains("approve=Processed"), "{}", bench.state());
}

// M7: what comes while the order is undone for the next round has to wait, because the step that takes it is put back.
#[test]
fn an_event_while_it_is_taken_back_is_to_be_sent_again() {
    let mut bench = claimed(APPROVED, json!({}));
    bench.on(&approval("1", "ann")).on(&approval("2", "bob"));
    bench.woken().done("pay").at(60_000);
    bench.on(&asked(wish(&["approve"])));
    bench.on(&approval("3", "ann")).keeps(Kept::Declined(Declined::RunsAgain), "");
    bench.woken().failed("pay");
    assert_eq!(bench.task.phase, Phase::UndoError);
    bench.on(&approval("3", "ann")).keeps(Kept::Declined(Declined::RunsAgain), "");
    bench.resubmit();
    bench.woken().done("pay");
    bench.on(&approval("3", "ann")).on(&approval("4", "bob"));
    bench.woken();
    assert!(bench.state().contains("approve=Processed"), "{}", bench.state());

    // Of an order that is undone for good nothing waits for it.
    bench.cancel();
    bench.on(&approval("5", "carl")).keeps(Kept::Declined(Declined::Late), "");
}

// M7: the address of a callback is of one round, and without a new key its service would not report again.
#[test]
fn a_callback_reports_to_the_address_of_its_round() {
    let mut bench = bench("a | accept = { within = \"1h\" }", json!({}));
    bench.task.secret = Some("s".into());
    bench.wake(0);
    let first = bench.request("a").callback.clone().unwrap();
    bench.answered("a", Outcome::Accepted { output: json!({}) });
    let called = |key: &str| Event::CalledBack { step: "a".into(), key: key.into(), data: json!({"key": key}) };
    bench.on(&called("k")).at(60_000);
    assert_eq!(bench.task.process_state(), ProcessState::Processed);
    assert_eq!(refused(&mut bench, wish(&["a"])), Rule::Accepts);
    bench.on(&asked(Wish { new_keys: true, ..wish(&["a"]) }));
    bench.woken();
    // Before it is handed out again nothing can be reported about it.
    bench.on(&called("l")).keeps(Kept::Declined(Declined::Early), "");
    bench.woken();
    let second = bench.request("a").callback.clone().unwrap();
    assert_ne!(first, second);
    let token = |url: &str| url.rsplit('/').next().unwrap().to_owned();
    let is = |url: &str, round| {
        shared::workflow::accept::is_token(&token(url), "s", &shared::workflow::accept::scope("a", round))
    };
    assert!(is(&first, 0) && is(&second, 1) && !is(&first, 1) && !is(&second, 0));
    bench.on(&called("m"));
    assert_eq!(bench.task.process_state(), ProcessState::Processed);
}

// K6: long outputs of the round before stay named, so that they expire and are erased with the record.
#[test]
fn a_long_output_that_was_replaced_goes_with_the_record() {
    let mut bench = Bench::claimed(CHAIN);
    bench.answered("a", done(json!("x".repeat(5000)))).done("b").done("c").done("d").at(60_000);
    let old = bench.task.steps[0].beside.clone().unwrap();
    bench.on(&asked(wish(&["a"])));
    bench.woken().done("c").done("a");
    assert_eq!(bench.task.steps[0].beside, None);
    assert!(shared::outputs::beside(&bench.task).contains(&old.hash));
    bench.task.steps[0].rounds.as_mut().unwrap().round = 20;
    bench.woken().done("a").done("b").done("c").done("d").at(200_000);
    assert_eq!(refused(&mut bench, wish(&["a"])), Rule::Often);
}

// M7, K3: whether a step is done is asked again in each round.
#[test]
fn a_condition_is_asked_again() {
    let steps =
        "price | after = []\npay | after = [\"price\"]; when = \"outputs.price.cents > 0\"; undo = { agent = \"x\" }";
    let mut bench = claimed(steps, json!({}));
    bench.answered("price", done(json!({"cents": 0}))).at(60_000);
    assert_eq!(bench.state(), "Processed price=Processed#1 pay=PassedOver");
    bench.on(&asked(wish(&["price"])));
    bench.woken();
    bench.woken();
    bench.answered("price", done(json!({"cents": 5})));
    bench.is("Processing price=Processed#2 pay=Processing#1", "do pay#1, notice StepCompleted");
    let failed = bench.failed("pay").at(200_000);
    assert_eq!(failed.task.phase, Phase::Undoing);
    let wait = bench.task.undo_from(&bench.workflow, SKEW);
    assert!(wait.is_some());
    bench.woken();
    assert_eq!(bench.request("pay").direction, Direction::Undo);
    assert!(matches!(bench.task.steps[0].state, State::Undone));
}
