//! Orders that go on under another definition: what is refused and why, when it is done, and what the record is then. All pairs of
//! small graphs are searched by the model, tests/model/migration.rs.
//! The last tests use the engine over a store and queues in memory.

use crate::language::{claimed, file};
use crate::support::*;
use contract::memory::Between;
use jiff::SignedDuration;
use serde_json::json;
use shared::decision::{Act, Decision, Event, Kept, Refusal, What};
use shared::history::Kind;
use shared::message::Effect;
use shared::migrate::{Rule, migrate, moved, plan};
use shared::operator::Outcome;
use shared::order::Id;
use shared::ports::Error;
use shared::step::{Kids, State};
use shared::task::Parent;
use shared::workflow::Workflow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn asked(bench: &mut Bench, to: &Workflow, resubmits: bool) {
    bench.outputs.know_definition(to.hash(), Arc::new(to.clone()));
    let what = What::Migrate { to: to.hash(), resubmits };
    bench.on(&Event::Act(Act { what, by: "ann".into(), reason: "a new file".into(), seen: None }));
}

/// What the engine does before it decides anything about a task that can migrate.
fn migrated(bench: &mut Bench, to: &Workflow) {
    let from = bench.task.migrates_at(SKEW).expect("nothing is with an agent");
    assert!(from <= at(bench.now), "not before {from}");
    let Decision::Save { task, effects } = migrate(&bench.task, to, &bench.turn("s1")) else {
        panic!("it is always saved")
    };
    assert_eq!(task.version, bench.task.version + 1);
    if task.workflow_hash == to.hash() {
        bench.workflow = to.clone();
    }
    (bench.task, bench.effects, bench.kept) = (*task, effects, None);
    assert_eq!(bench.task.migration, None);
    assert_eq!(shared::mend::check(&bench.task, &bench.task.tenant, &bench.workflow), Ok(()));
}

/// Why `bench` cannot go on under the workflow in this text.
fn refused(bench: &mut Bench, text: &str) -> Option<Rule> {
    let to = workflow(text);
    let found = moved(&bench.task, &bench.workflow, &to, at(bench.now)).err();
    asked(bench, &to, false);
    let said = match bench.kept {
        Some(Kept::Refused(Refusal::Migration(rule))) => Some(rule),
        Some(other) => panic!("{other:?}"),
        None => None,
    };
    assert_eq!(said, found.map(|obstacle| obstacle.rule), "the action is refused by the same rule");
    said
}

/// `CHAIN` with its first two steps done, and `c` tried once without success.
fn chain() -> Bench {
    let mut bench = Bench::claimed(CHAIN);
    bench.done("a").done("b");
    bench.answered("c", unavailable(None));
    bench.at(60_000);
    assert!(matches!(bench.task.steps[2].state, State::Pending { .. }), "{}", bench.state());
    bench
}

fn step(name: &str, more: &str) -> String {
    format!("[[step]]\nname = \"{name}\"\nagent = \"x\"\ntimeout = \"10s\"\n{more}\n")
}

const UNDO: &str = "undo = { agent = \"x\" }\n";

fn chain_with(a: &str, b: &str, c: &str, rest: &str) -> String {
    let steps = [step("a", a), step("b", b), step("c", c)].concat();
    format!("name = \"chain\"\n{steps}{rest}")
}

const AFTER_A: &str = "after = [\"a\"]";
const AFTER_B: &str = "after = [\"b\"]\nundo = { agent = \"x\" }";

// M3: the rules about what was attempted, each with the smallest change that breaks it.
#[test]
fn a_definition_that_would_do_harm_is_refused_with_its_rule() {
    let other_agent =
        chain_with(UNDO, AFTER_A, AFTER_B, "").replace("name = \"c\"\nagent = \"x\"", "name = \"c\"\nagent = \"y\"");
    let cases: Vec<(&str, String, Option<Rule>)> = vec![
        ("the last step, not begun, is left out", chain_with(UNDO, AFTER_A, AFTER_B, ""), None),
        ("a timeout", chain_with(UNDO, AFTER_A, AFTER_B, "").replace("10s", "20s"), None),
        (
            "another name",
            chain_with(UNDO, AFTER_A, AFTER_B, "").replace("name = \"chain\"", "name = \"other\""),
            Some(Rule::Workflow),
        ),
        ("a step after", chain_with(UNDO, AFTER_A, AFTER_B, &step("e", "after = [\"c\"]")), None),
        ("a step beside", chain_with(UNDO, AFTER_A, AFTER_B, &step("e", AFTER_A)), None),
        (
            "a settled step is gone",
            format!("name = \"chain\"\n{}{}", step("a", UNDO), step("c", "after = [\"a\"]\nundo = { agent = \"x\" }")),
            Some(Rule::Lost),
        ),
        (
            "a tried step is gone",
            format!("name = \"chain\"\n{}{}", step("a", UNDO), step("b", AFTER_A)),
            Some(Rule::Lost),
        ),
        ("an undo is gone", chain_with("", AFTER_A, AFTER_B, ""), Some(Rule::Undo)),
        ("the undo of a tried step is gone", chain_with(UNDO, AFTER_A, "after = [\"b\"]", ""), Some(Rule::Undo)),
        ("an undo is added", chain_with(UNDO, "after = [\"a\"]\nundo = { agent = \"x\" }", AFTER_B, ""), None),
        (
            "another undo",
            chain_with(UNDO, AFTER_A, AFTER_B, "").replacen("undo = { agent = \"x\" }", "undo = { agent = \"y\" }", 1),
            None,
        ),
        (
            "irreversible",
            chain_with(UNDO, "after = [\"a\"]\nirreversible = true", AFTER_B, ""),
            Some(Rule::Irreversible),
        ),
        (
            "a new step before a settled one",
            chain_with(UNDO, "after = [\"a\", \"e\"]", AFTER_B, &step("e", "")),
            Some(Rule::Before),
        ),
        (
            "a new step before a tried one",
            chain_with(UNDO, AFTER_A, "after = [\"b\", \"e\"]\nundo = { agent = \"x\" }", &step("e", "")),
            Some(Rule::Before),
        ),
        ("side by side", chain_with(UNDO, AFTER_A, "after = [\"a\"]\nundo = { agent = \"x\" }", ""), Some(Rule::Order)),
        ("another agent for a tried step", other_agent, Some(Rule::Call)),
        (
            "a mapping for a tried step",
            chain_with(UNDO, AFTER_A, &format!("{AFTER_B}\nwith = {{ n = 1 }}"), ""),
            Some(Rule::Call),
        ),
        (
            "a settled step only computes",
            chain_with(UNDO, AFTER_A, AFTER_B, "")
                .replace("name = \"b\"\nagent = \"x\"\ntimeout = \"10s\"", "name = \"b\"\nvalue = 1"),
            Some(Rule::Sort),
        ),
        (
            "addresses",
            chain_with(UNDO, AFTER_A, AFTER_B, &step("e", "after = [\"c\"]\naccept = { within = \"1m\" }")),
            Some(Rule::Secret),
        ),
    ];
    for (what, text, rule) in cases {
        assert_eq!(refused(&mut chain(), &text), rule, "{what}");
    }
}

// What an operator needs to know: which step, and what to do.
#[test]
fn an_obstacle_names_the_step_and_what_to_do() {
    let bench = chain();
    let to = workflow(&chain_with("", AFTER_A, AFTER_B, ""));
    let found = moved(&bench.task, &bench.workflow, &to, at(bench.now)).unwrap_err();
    assert_eq!(
        found.to_string(),
        "step `a`: it may have run, but the new definition has no undo for it; keep the undo"
    );
}

#[test]
fn an_order_with_relatives_and_one_that_has_ended_stay() {
    let same = chain_with(UNDO, AFTER_A, AFTER_B, "");
    let mut child = chain();
    child.task.parent =
        Some(Parent { id: Id("ord_0".into()), step: "s".into(), item: None, round: 0, paused: false, released: false });
    let to = workflow(&same);
    let rule = |bench: &Bench| moved(&bench.task, &bench.workflow, &to, at(bench.now)).unwrap_err().rule;
    assert_eq!(rule(&child), Rule::Child);
    let mut parent = chain();
    parent.task.steps[1].kids = Some(Kids::default());
    assert_eq!(rule(&parent), Rule::Children);

    let mut over = Bench::claimed(ONE);
    over.done("a");
    let to = workflow(&ONE.replace("10s", "20s"));
    asked(&mut over, &to, false);
    over.keeps(Kept::Refused(Refusal::Ended), "");
    let mut runs = Bench::claimed(ONE);
    asked(&mut runs, &to, true);
    runs.keeps(Kept::Refused(Refusal::NotStopped), "");
}

// A step that was begun and is then passed over would have nothing to undo.
#[test]
fn a_step_that_was_begun_is_not_passed_over() {
    let text = |edge: &str| {
        let b = format!("after = [\"a{edge}\"]\n{UNDO}");
        format!("name = \"gate\"\n{}{}", step("a", "when = \"input.n == 2\""), step("b", &b))
    };
    let mut bench = Bench::new(&text("?"));
    bench.input = json!({"n": 1});
    bench.wake(0);
    bench.answered("b", unavailable(None)).at(60_000);
    assert_eq!(bench.task.steps[0].state, State::PassedOver);
    assert_eq!(refused(&mut bench, &text("!")), Some(Rule::PassedOver));
    assert_eq!(
        refused(&mut bench, &text("?").replace("input.n == 2", "input.n == 1")),
        None,
        "that is not asked again"
    );
    assert_eq!(refused(&mut bench, &format!("name = \"gate\"\n{}", step("b", UNDO))), Some(Rule::Lost));
}

// The definitions of children are pinned when an order is submitted.
#[test]
fn an_order_gets_no_children_that_it_has_not_pinned() {
    let child = "[[step]]\nname = \"line\"\nafter = [\"c\"]\nworkflow = \"child\"\nwith = { n = 1 }\n";
    let text = chain_with(UNDO, AFTER_A, AFTER_B, child);
    assert_eq!(refused(&mut chain(), &text), Some(Rule::Pins));
    let mut pinned = chain();
    pinned.task.pins.insert("child".into(), workflow(ONE).hash());
    assert_eq!(refused(&mut pinned, &text), None);
}

// Recorded at once, done once nothing is with an agent and no request can start; nothing is claimed until then.
#[test]
fn a_step_with_an_agent_ends_first_and_nothing_else_begins() {
    let mut bench = Bench::claimed(CHAIN);
    let to = workflow(&chain_with(UNDO, AFTER_A, AFTER_B, &step("e", "after = [\"c\"]")));
    asked(&mut bench, &to, false);
    bench.is("Processing a=Processing#1 b=Pending c=Pending d=Pending", "");
    assert_eq!(bench.task.migrates_at(SKEW), None);
    bench
        .at(1000)
        .done("a")
        .is("Pending a=Processed#1 b=Pending c=Pending d=Pending", "wake+10000, notice StepCompleted");
    // The first attempt's request can start until then.
    assert_eq!(bench.task.migrates_at(SKEW), Some(at(11_000)));
    bench.woken().keeps(Kept::NothingReady, "wake+10000");
    bench.supervise().keeps(Kept::NothingReady, "");
    // If the engine cannot move it, because the definition cannot be read, a Wake changes nothing.
    bench.at(11_000).wake(50).keeps(Kept::NothingReady, "wake");
    migrated(&mut bench, &to);
    bench.is("Pending a=Processed#1 b=Pending c=Pending e=Pending", "wake");
    bench.woken().is("Processing a=Processed#1 b=Processing#1 c=Pending e=Pending", "do b#1");
}

// An order whose last step ends meanwhile has more steps by then, or none.
#[test]
fn an_order_does_not_end_before_its_migration() {
    for (more, ends) in [(step("e", AFTER_A), false), (String::new(), true)] {
        let mut bench = Bench::claimed(ONE);
        let to = workflow(&format!("name = \"one\"\n{}{more}", step("a", UNDO)));
        asked(&mut bench, &to, false);
        bench.at(1000).done("a");
        assert_eq!(bench.state(), "Pending a=Processed#1");
        bench.at(60_000);
        migrated(&mut bench, &to);
        match ends {
            true => bench.is("Processed a=Processed#1", "notice Completed"),
            false => bench.is("Pending a=Processed#1 e=Pending", "wake"),
        };
    }
}

#[test]
fn a_later_wish_replaces_one_that_waits_and_the_own_hash_withdraws_it() {
    let (one, two) = (workflow(&CHAIN.replace("10s", "20s")), workflow(&CHAIN.replace("10s", "30s")));
    let mut bench = Bench::claimed(CHAIN);
    asked(&mut bench, &one, false);
    asked(&mut bench, &one, false);
    assert_eq!(bench.kept, Some(Kept::Repeated));
    asked(&mut bench, &two, false);
    assert_eq!(bench.task.migration.as_ref().unwrap().to, two.hash());
    let own = bench.workflow.clone();
    asked(&mut bench, &own, false);
    assert_eq!(bench.task.migration, None);
    bench
        .at(1000)
        .done("a")
        .is("Processing a=Processed#1 b=Processing#1 c=Pending d=Pending", "do b#1, notice StepCompleted");
}

// Nothing moves the order afterwards.
#[test]
fn a_resubmission_under_the_present_definition_withdraws_the_wish_for_another() {
    let late = on_failure_error(&file(&PAID.replace("1h", "1s")));
    let mut bench = Bench::claimed(&late);
    bench.done("a").at(5000).supervise();
    let own = bench.workflow.clone();
    asked(&mut bench, &workflow(&late.replace("10s", "20s")), true);
    assert!(bench.task.migration.is_some());
    asked(&mut bench, &own, true);
    assert_eq!((bench.task.migration.clone(), bench.task.process_state().name()), (None, "Pending"));
}

// Only the wish held up the end, so nothing else would bring it.
#[test]
fn a_withdrawn_wish_lets_the_order_end() {
    let withdraw = |bench: &mut Bench, resubmits| {
        let own = bench.workflow.clone();
        asked(bench, &own, resubmits);
    };
    let mut bench = Bench::claimed(ONE);
    asked(&mut bench, &workflow(&ONE.replace("10s", "20s")), false);
    bench.at(1000).done("a");
    withdraw(&mut bench, false);
    bench.is("Processed a=Processed#1", "notice Completed");

    let guarded = format!("tombstones = true\n{ONE}");
    let mut bench = Bench::claimed(&guarded);
    bench.done("a").on(&act(What::Undo));
    bench.at(1000).wake(50);
    assert_eq!(bench.state(), "Undoing a=UndoProcessing#2");
    asked(&mut bench, &workflow(&guarded.replace("10s", "20s")), false);
    bench.done("a");
    withdraw(&mut bench, false);
    bench.is("Undone a=Undone#2", "notice Undone");

    // Its service reported the end of the work while the order was in Error.
    let late = on_failure_error(&file(&PAID.replace("1h", "1s")));
    let mut bench = Bench::claimed(&late);
    bench.done("a").at(5000).supervise();
    assert_eq!(bench.state(), "Error pay=Failed a=Processed#1");
    asked(&mut bench, &workflow(&late.replace("10s", "20s")), true);
    bench.on(&act(What::Skip { step: None }));
    let before = bench.state();
    withdraw(&mut bench, false);
    assert!(
        matches!(bench.task.phase, shared::task::Phase::Processed) || bench.task.due.is_some(),
        "{before}: {}",
        bench.state()
    );
}

// The submitter learns of the turn before the undo begins, also if a migration lets it begin.
#[test]
fn a_migration_before_the_undo_sends_the_notice_of_the_turn() {
    let mut bench = chain();
    bench.cancel();
    let to = workflow(&CHAIN.replacen("undo = { agent = \"x\" }", "undo = { agent = \"y\" }", 1));
    asked(&mut bench, &to, false);
    migrated(&mut bench, &to);
    let effects = bench.effects();
    assert!(effects.find("notice Failed").is_some_and(|notice| Some(notice) < effects.find("wake")), "{effects}");
}

const PAID: &str = r#"
pay | event = "paid"; timeout = "1h"
a | after = []
"#;

// An event settles its step at once; what comes next is decided under the other definition, and so is the end.
#[test]
fn an_event_lets_nothing_begin_or_end_before_the_migration() {
    let value = "v | after = [\"pay\"]; value = 1";
    for (more, left) in [(value, " v=Pending"), ("", "")] {
        let text = file(&format!("{PAID}{more}"));
        let mut bench = Bench::claimed(&text);
        asked(&mut bench, &workflow(&text.replace("1h", "2h")), false);
        bench.at(1000).done("a").at(2000);
        bench.on(&Event::Arrived { name: "paid".into(), key: "k".into(), data: json!({}), by: None });
        assert_eq!(bench.state(), format!("Pending pay=Processed a=Processed#1{left}"));
    }
}

// The same for an undo: its end belongs to the other definition.
#[test]
fn an_undo_does_not_end_before_the_migration() {
    let mut bench = Bench::claimed(ONE);
    bench.done("a").on(&act(What::Undo));
    bench.at(60_000).wake(50);
    assert_eq!(bench.state(), "Undoing a=UndoProcessing#2");
    let to = workflow(&ONE.replace("10s", "20s"));
    asked(&mut bench, &to, false);
    bench.done("a");
    assert_eq!(bench.state(), "Undoing a=Undone#2");
    bench.at(120_000);
    migrated(&mut bench, &to);
    assert_eq!(bench.state(), "Undone a=Undone#2");
}

// A person who cancels does not wait for the migration.
#[test]
fn an_undo_drops_the_wish() {
    let mut bench = Bench::claimed(CHAIN);
    asked(&mut bench, &workflow(&CHAIN.replace("10s", "20s")), false);
    bench.cancel();
    assert_eq!(bench.task.migration, None);
    let text = bench.task.log.iter().find(|entry| entry.1 == Kind::NotMigrated).unwrap().4.clone().unwrap();
    assert!(text.ends_with("the order is being undone"), "{text}");
}

// The main use: the file was wrong, the order is in Error, the corrected file lets it go on.
#[test]
fn an_order_in_error_goes_on_under_a_corrected_file() {
    let text = |field: &str| {
        let with = format!("{AFTER_A}\nwith = {{ n = \"${{outputs.a.{field}}}\" }}");
        format!("on_failure = \"error\"\n{}", chain_with(UNDO, &with, AFTER_B, ""))
    };
    let mut bench = Bench::claimed(&text("off"));
    bench.done("a").at(60_000);
    assert_eq!(bench.state(), "Error a=Processed#1 b=Failed c=Pending");
    let to = workflow(&text("of"));
    let wrong = workflow(&text("off").replace("20s", "10s").replace("c\"", "cc\""));
    assert_eq!(
        plan(&bench.task, &bench.workflow, &wrong).doubts,
        ["`b` reads `outputs.a.off`, which `a` did not return"]
    );
    let output = workflow(&format!("output = {{ n = \"${{outputs.a.off}}\" }}\n{}", text("of")));
    assert_eq!(
        plan(&bench.task, &bench.workflow, &output).doubts,
        ["`output` reads `outputs.a.off`, which `a` did not return"]
    );
    assert_eq!(plan(&bench.task, &bench.workflow, &to).doubts, Vec::<String>::new());
    asked(&mut bench, &to, true);
    bench.is("Error a=Processed#1 b=Failed c=Pending", "wake");
    assert!(bench.task.due.is_some_and(|due| due <= at(bench.now) + SignedDuration::from_mins(1)));
    migrated(&mut bench, &to);
    bench.is("Pending a=Processed#1 b=Pending c=Pending", "wake");
    bench.woken();
    assert_eq!(bench.request("b").input, json!({"n": "a"}));
    // By its hash alone it would stay in Error.
    let mut stays = Bench::claimed(&text("off"));
    stays.done("a").at(60_000);
    asked(&mut stays, &to, false);
    migrated(&mut stays, &to);
    assert_eq!(stays.state(), "Error a=Processed#1 b=Failed c=Pending");
    stays.resubmit();
    assert_eq!(stays.state(), "Pending a=Processed#1 b=Pending c=Pending");
}

// What was allowed when it was asked for may be forbidden by then.
#[test]
fn a_rule_that_is_broken_later_ends_the_wish() {
    let mut bench = Bench::claimed(CHAIN);
    let to = workflow(&CHAIN.replace("name = \"b\"\nagent = \"x\"", "name = \"b\"\nagent = \"y\""));
    asked(&mut bench, &to, false);
    bench.done("a");
    // Somebody mended the record, say: the step was tried after all.
    bench.task.steps[1].attempt = 1;
    bench.at(60_000);
    migrated(&mut bench, &to);
    bench.is("Pending a=Processed#1 b=Pending#1 c=Pending d=Pending", "wake");
    assert!(bench.task.log.last().unwrap().4.as_ref().unwrap().contains("step `b`: it was tried"));
    bench.woken().is("Processing a=Processed#1 b=Processing#2 c=Pending d=Pending", "do b#2");
}

#[test]
fn while_an_order_is_undone_only_its_undos_change() {
    let undone = || {
        let mut bench = chain();
        bench.cancel().at(120_000).wake(50);
        bench.answered("c", failed());
        assert_eq!(bench.state(), "Error a=UndoPending#1 b=Undone#1 c=UndoFailed#2f1 d=Pending");
        bench
    };
    let with = |c: &str, d: &str| {
        chain_with(UNDO, AFTER_A, &format!("after = [\"b\"]\nundo = {{ agent = \"{c}\" }}"), &step("d", d))
    };
    assert_eq!(refused(&mut undone(), &with("x", "after = [\"b\"]")), Some(Rule::Undoing), "another order");
    assert_eq!(refused(&mut undone(), &chain_with(UNDO, AFTER_A, AFTER_B, "")), Some(Rule::Undoing), "a step less");
    assert_eq!(
        refused(&mut undone(), &(with("x", "after = [\"c\"]") + &step("e", ""))),
        Some(Rule::Undoing),
        "a step more"
    );
    // Before the undo is decided, its record would not show what is missing.
    let mut early = chain();
    early.cancel();
    let without = with("x", "after = [\"c\"]").replacen(UNDO, "", 1);
    assert_eq!(refused(&mut early, &without), Some(Rule::Undoing), "an undo less");
    let mut bench = undone();
    let to = workflow(&with("y", "after = [\"c\"]"));
    let plan = plan(&bench.task, &bench.workflow, &to);
    assert_eq!((plan.undone_differently, plan.again), (vec!["c".to_owned()], vec!["c".to_owned()]));
    asked(&mut bench, &to, true);
    // The request of the failed undo can start until its CompleteBy, 10 s after it was claimed, and it is another call.
    assert_eq!(bench.task.migrates_at(SKEW), Some(at(131_000)));
    bench.at(131_000);
    migrated(&mut bench, &to);
    bench.woken();
    assert_eq!(bench.request("c").agent, "y");
}

const EVENTS: &str = r#"
pay | event = "paid"; timeout = "1h"; undo = { agent = "x", timeout = "10s" }
a | after = []
sign | after = ["a"]; event = "signed"; timeout = "1h"; undo = { agent = "x", timeout = "10s" }
"#;

// A step that waits keeps its event, and an event that is kept keeps its step and its undo.
#[test]
fn waits_and_kept_events_stay() {
    let bench = || {
        let mut bench = claimed(EVENTS, json!({}));
        bench.on(&Event::Arrived { name: "signed".into(), key: "k".into(), data: json!({}), by: None });
        assert_eq!(bench.task.kept().count(), 1);
        bench
    };
    let sign = EVENTS.find("sign |").unwrap();
    let first = "first | after = [\"a\"]; event = \"signed\"; timeout = \"1h\"\n";
    let changes: [(&str, String, Option<Rule>); 9] = [
        (
            "another step takes the kept event first",
            EVENTS[..sign].to_owned() + first + &EVENTS[sign..],
            Some(Rule::Kept),
        ),
        ("another step could take it later", EVENTS.to_owned() + first, None),
        (
            "it takes other events",
            EVENTS[..sign].to_owned()
                + &EVENTS[sign..].replace("timeout = \"1h\"", "timeout = \"1h\"; take = \"event.ok == true\""),
            Some(Rule::Kept),
        ),
        ("more time", EVENTS.replace("1h", "2h"), None),
        ("another event", EVENTS.replace("\"paid\"", "\"settled\""), Some(Rule::Wait)),
        (
            "a timer",
            EVENTS.replace(
                "event = \"paid\"; timeout = \"1h\"; undo = { agent = \"x\", timeout = \"10s\" }",
                "wait = \"1h\"",
            ),
            Some(Rule::Sort),
        ),
        ("the step of the kept event is gone", EVENTS[..sign].to_owned(), Some(Rule::Kept)),
        (
            "its undo is gone",
            EVENTS[..sign].to_owned() + &EVENTS[sign..].replace("; undo = { agent = \"x\", timeout = \"10s\" }", ""),
            Some(Rule::Undo),
        ),
        ("it waits for another event", EVENTS.replace("\"signed\"", "\"approved\""), Some(Rule::Kept)),
    ];
    for (what, text, rule) in changes {
        assert_eq!(refused(&mut bench(), &file(&text)), rule, "{what}");
    }
    // The deadline of a wait that has begun stays.
    let mut bench = bench();
    let until = bench.task.steps[0].asks_until();
    let to = workflow(&file(&EVENTS.replace("1h", "2h")));
    asked(&mut bench, &to, false);
    bench.done("a").at(60_000);
    migrated(&mut bench, &to);
    assert_eq!(bench.task.steps[0].asks_until(), until);
    bench.woken();
    assert_eq!(bench.task.steps[2].state, State::Processed, "{}", bench.state());
}

// The event of one person counts, whatever becomes of the step.
#[test]
fn a_step_that_counts_people_keeps_its_undo() {
    let pay = "event = \"paid\"; timeout = \"1h\"; undo = { agent = \"x\", timeout = \"10s\" }";
    let text = |more: &str| file(&EVENTS.replacen(pay, more, 1));
    let two = pay.replace("timeout = \"1h\"", "timeout = \"1h\"; people = 2");
    let bench = |events: usize| {
        let mut bench = Bench::claimed(&text(&two));
        for by in ["ann", "bob"].into_iter().take(events) {
            bench.on(&Event::Arrived { name: "paid".into(), key: by.into(), data: json!({}), by: Some(by.into()) });
        }
        bench
    };
    let without = text(&two[..two.find("; undo").unwrap()]);
    for end in [false, true] {
        let ended = |events| {
            let mut bench = bench(events);
            if end {
                bench.done("a").at(2 * 3_600_000).supervise();
            }
            bench
        };
        assert_eq!(refused(&mut ended(1), &without), Some(if end { Rule::Undoing } else { Rule::Undo }), "{end}");
    }
    assert_eq!(refused(&mut bench(0), &without), None);
}

// Positions change: everything that names a step by its position follows it.
#[test]
fn the_record_names_the_same_steps_afterwards() {
    let mut bench = chain();
    let spelled = |bench: &Bench| -> Vec<(String, Option<String>)> {
        let name = |step: Option<u16>| step.map(|step| bench.workflow.steps[usize::from(step)].name.clone());
        bench.task.log.iter().map(|entry| (format!("{:?}", entry.1), name(entry.2))).collect()
    };
    let before = spelled(&bench);
    let steps = [step("c", AFTER_B), step("e", "after = [\"c\"]"), step("b", AFTER_A), step("a", UNDO)].concat();
    let to = workflow(&format!("name = \"chain\"\n{steps}"));
    asked(&mut bench, &to, false);
    migrated(&mut bench, &to);
    assert_eq!(spelled(&bench)[..before.len()], before);
    assert_eq!(bench.state(), "Pending c=Pending+0#1f1 e=Pending b=Processed#1 a=Processed#1");
    bench.woken().is("Processing c=Processing#2f1 e=Pending b=Processed#1 a=Processed#1", "do c#2");
}

// The definition before had no mapped undo, so it was not noted that an attempt without an answer may have done its work.
#[test]
fn an_attempt_without_an_answer_stays_unsure_under_a_mapped_undo() {
    let mut bench = chain();
    let to = workflow(&chain_with(
        UNDO,
        AFTER_A,
        "after = [\"b\"]\nundo = { agent = \"x\", with = { n = \"${outputs.a.of}\" } }",
        "",
    ));
    asked(&mut bench, &to, false);
    migrated(&mut bench, &to);
    bench.woken().failed("c");
    bench.at(120_000).wake(50);
    assert_eq!(bench.request("c").direction, shared::step::Direction::Undo, "{}", bench.state());
}

#[test]
fn a_new_deadline_counts_from_the_beginning_unless_it_has_passed() {
    let with = |time: &str| format!("deadline = \"{time}\"\n{CHAIN}");
    let mut bench = Bench::claimed(&with("1h"));
    bench.done("a").at(60_000);
    let of = |bench: &Bench, text: &str| {
        moved(&bench.task, &bench.workflow, &workflow(text), at(bench.now)).unwrap().deadline
    };
    assert_eq!(of(&bench, &with("1h").replace("10s", "11s")), bench.task.deadline);
    assert_eq!(of(&bench, &with("2h")), Some(at(7_200_000)));
    assert_eq!(of(&bench, &with("30s")), Some(at(90_000)));
    assert_eq!(of(&bench, CHAIN), None);
}

const POLL: &str = r#"
a | http = { url = "https://x.example/", method = "GET" }; poll = { every = "1m", for = "1h", done = "answer.ok" }
"#;

// The next look of a poll is claimed in the save of the last one, so a migration would wait for the end of the poll.
#[test]
fn a_poll_pauses_for_a_migration() {
    let mut bench = claimed(POLL, json!({}));
    let to = workflow(&file(&POLL.replace("1h", "2h")));
    asked(&mut bench, &to, false);
    bench.answered("a", shared::message::Outcome::NotYet { why: "it runs".into() });
    assert!(bench.task.steps[0].claim().is_none(), "{}", bench.state());
    migrated(&mut bench, &to);
    assert_eq!(bench.task.workflow_hash, to.hash());
    bench.at(60_000).wake(50);
    assert_eq!(bench.effects().split(',').next(), Some("do a#2"));
}

// A record that waits for its migration can be written and read, and is due.
#[test]
fn a_paused_order_migrates_too() {
    let mut bench = chain();
    bench.on(&act(What::Pause));
    let to = workflow(&CHAIN.replace("10s", "20s"));
    asked(&mut bench, &to, false);
    assert!(bench.task.due.is_some());
    let read: shared::task::Task = serde_json::from_value(serde_json::to_value(&bench.task).unwrap()).unwrap();
    assert_eq!(read.migration, bench.task.migration);
    migrated(&mut bench, &to);
    assert!(bench.task.paused_at.is_some());
    bench.on(&act(What::Resume));
    assert_eq!(bench.effects(), "wake");
}

/// Refuses the save with this number, as if the instance had died before it.
#[derive(Default)]
struct Dies(AtomicUsize);

impl Between for Dies {
    async fn call(&self, method: &'static str, _: &[&Id]) -> Result<(), Error> {
        let is_left = || self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        match method == "save" && is_left() == Ok(1) {
            true => Err(away("the store")),
            false => Ok(()),
        }
    }
}

type World = crate::support::World<Dies>;

impl World {
    /// An order of `CHAIN` whose first step is with an agent, and another definition.
    async fn begun(other: &Workflow) -> Self {
        let world = Self::new(CHAIN, 1).await;
        world.engine.use_workflow(other).await.unwrap();
        world.on(Event::Wake { seen: 0, hops: 0 }).await.unwrap();
        world
    }

    async fn done_a(&self) {
        self.on(self.reply("a", done(json!({})))).await.unwrap();
    }

    async fn migrate(&self, to: &Workflow) -> Outcome {
        let what = What::Migrate { to: to.hash(), resubmits: false };
        self.engine.act(vec![(self.task().id, by_ann(what))]).await.pop().unwrap().unwrap()
    }

    /// What was sent, with the agents.
    fn told(&self) -> Vec<String> {
        let words = |effect: Effect| match effect {
            Effect::Request(request) => format!("{} {}", request.agent, request.step),
            other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
        };
        self.queues.take().into_iter().map(words).collect()
    }
}

/// `CHAIN` whose second step another agent does, with a fifth step.
fn next() -> Workflow {
    let text = CHAIN.replace("name = \"b\"\nagent = \"x\"", "name = \"b\"\nagent = \"y\"");
    workflow(&(text + &step("e", "after = [\"d\"]")))
}

// The Wake that comes once the migration is possible finds the order under its old definition, and goes on under the new one.
#[tokio::test]
async fn the_wake_that_comes_first_moves_the_order_and_goes_on() {
    let to = next();
    let world = World::begun(&to).await;
    assert!(matches!(world.migrate(&to).await, Outcome::Applied(_)));
    world.pass(1000);
    world.done_a().await;
    world.told();
    world.pass(20_000);
    world.on(Event::Wake { seen: world.task().version, hops: 0 }).await.unwrap();
    let task = world.task();
    assert_eq!((task.workflow_hash.clone(), task.steps.len(), task.migration), (to.hash(), 5, None));
    assert_eq!(world.told()[..2], ["Wake", "y b"]);
}

// An action on an order with nothing under way: it is moved at once, before the answer.
#[tokio::test]
async fn an_order_with_nothing_under_way_is_moved_at_once() {
    let to = next();
    let world = World::begun(&to).await;
    world.on(act(What::Pause)).await.unwrap();
    world.done_a().await;
    world.pass(60_000);
    world.told();
    assert!(matches!(world.migrate(&to).await, Outcome::Applied(_)));
    let task = world.task();
    assert_eq!((task.workflow_hash, task.paused_at.is_some()), (to.hash(), true));
}

#[tokio::test]
async fn a_migration_whose_instance_died_is_done_by_the_next_sweep() {
    let to = next();
    let world = World::begun(&to).await;
    world.on(act(What::Pause)).await.unwrap();
    world.done_a().await;
    world.pass(60_000);
    world.store.0.store(2, Ordering::Relaxed);
    assert!(matches!(world.migrate(&to).await, Outcome::Applied(_)));
    let task = world.task();
    assert_eq!((&task.workflow_hash, task.migration.is_some()), (&workflow(CHAIN).hash(), true), "it waits");
    world.pass(60_000);
    assert!(task.due.is_some_and(|due| due <= at(world.now.load(Ordering::Relaxed))), "the sweep finds it");
    world.engine.recover(std::slice::from_ref(&task.id), 1).await.pop().unwrap().unwrap();
    assert_eq!((world.task().workflow_hash, world.task().migration), (to.hash(), None));
}

// Two instances fulfil the wish at once: one save counts.
#[tokio::test]
async fn of_two_instances_one_moves_the_order() {
    let to = next();
    let world = World::begun(&to).await;
    world.migrate(&to).await;
    world.done_a().await;
    world.pass(60_000);
    let other = world.instance("s2");
    let wake = || vec![(Id("ord_1".into()), Event::Wake { seen: 0, hops: 0 })];
    let (one, two) = futures::future::join(world.engine.handle(wake()), other.handle(wake())).await;
    assert!(one[0].is_ok() && two[0].is_ok());
    let task = world.task();
    let moves = task.log.iter().filter(|entry| entry.1 == Kind::Migrated).count();
    assert_eq!((moves, task.steps[1].attempt), (1, 1));
}

// A newer version wrote the definition, or it is damaged: the order must not stand still for that.
#[tokio::test]
async fn a_definition_that_cannot_be_read_ends_the_wish() {
    let to = next();
    let world = World::begun(&to).await;
    world.migrate(&to).await;
    world.done_a().await;
    world.pass(60_000);
    world.store.tables().workflows.remove(&to.hash());
    let other = world.instance("s2");
    world.told();
    other.handle(vec![(Id("ord_1".into()), Event::Wake { seen: 0, hops: 0 })]).await.pop().unwrap().unwrap();
    let task = world.task();
    assert_eq!((task.workflow_hash, task.migration), (workflow(CHAIN).hash(), None));
    let why = task.log.iter().find(|entry| entry.1 == Kind::NotMigrated).unwrap().4.clone().unwrap();
    assert!(why.contains("the definition cannot be read"), "{why}");
    assert_eq!(world.told(), ["Wake", "x b"]);
}

// The new definition has more steps than the record has room for: the order goes on under its own, and says why.
#[tokio::test]
async fn a_record_without_room_for_the_definition_ends_the_wish() {
    let more: String = (0..45).map(|n| step(&format!("e{n}"), "after = [\"d\"]")).collect();
    let to = workflow(&(CHAIN.to_owned() + &more));
    let world = World::begun(&to).await;
    world.migrate(&to).await;
    world.done_a().await;
    world.pass(60_000);
    {
        let mut tables = world.store.tables();
        let task = tables.tasks.get_mut(&Id("ord_1".into())).unwrap();
        while task.log.len() < 14 {
            let last = task.log.last().unwrap().clone();
            task.log.push(shared::history::Entry(last.0, Kind::AlertSent, None, 0, Some("x".repeat(90))));
        }
        let bytes = serde_json::to_string(task).unwrap().len();
        task.reference = Some("r".repeat(shared::task::MAX_RECORD - bytes - 100));
    }
    let other = world.instance("s2");
    other.handle(vec![(Id("ord_1".into()), Event::Wake { seen: 0, hops: 0 })]).await.pop().unwrap().unwrap();
    let task = world.task();
    assert_eq!((task.workflow_hash, task.migration, task.steps.len()), (workflow(CHAIN).hash(), None, 4));
    let why = task.log.iter().find(|entry| entry.1 == Kind::NotMigrated).unwrap().4.clone().unwrap();
    assert!(why.contains("the limit is"), "{why}");
}
