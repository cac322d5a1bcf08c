//! Steps that collect pages, as tables, and with instances that remember nothing.
//!
//! Method: as in `transitions.rs` and `outputs.rs`.

use crate::language::{bench, claimed, file};
use crate::outputs::World;
use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Kept, Refusal, What};
use shared::erase::{Part, erase};
use shared::message::Outcome;
use shared::migrate::{Rule, moved};
use shared::outputs::{MAX_BESIDE, beside};
use shared::ports::Error;
use shared::step::{FailureKind, State, Step};
use shared::task::Phase;
use shared::workflow::Workflow;
use shared::workflow::pages::{MAX_CURSOR, MAX_PAGES};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

const PAGES: &str = r#"
a | after = []; with = { shop = "s", cursor = "${page.?cursor}", n = "${page.number}" }; pages = { items = "${answer.rows}", next = "${answer.?next}" }; on_failure = "error"; retry = { max = 2, backoff = ["1s"], then = "error" }
b | after = ["a"]; with = { all = "${outputs.a}" }
"#;

fn page(rows: impl Into<Value>, next: impl Into<Value>) -> Outcome {
    done(json!({ "rows": rows.into(), "next": next.into(), "other": "left out" }))
}

fn take(bench: &mut Bench, rows: impl Into<Value>, next: impl Into<Value>) {
    bench.answered("a", page(rows, next));
}

fn step(bench: &Bench) -> &Step {
    &bench.task.steps[0]
}

fn so_far(bench: &Bench) -> (u32, u32) {
    step(bench).pages.as_ref().map_or((0, 0), |pages| (pages.taken, pages.items))
}

fn asked(bench: &Bench) -> (String, Value) {
    let request = bench.request("a");
    (request.idempotency_key.clone(), request.input["cursor"].clone())
}

// M2: one save and one message for each page, which asks for the next one under a key of its own.
#[test]
fn each_page_is_asked_for_with_the_cursor_of_the_one_before() {
    let mut bench = bench(PAGES, json!({}));
    bench.wake(0).is("Processing a=Processing#1 b=Pending", "do a#1");
    assert_eq!(bench.request("a").input, json!({"shop": "s", "n": 1}), "the first page has no cursor");
    assert_eq!(asked(&bench).0, "ord_1:a:do:page-1");
    let entries = bench.task.log.len();
    take(&mut bench, json!([1, 2]), "c1");
    bench.is("Processing a=Processing#2 b=Pending", "do a#2");
    assert_eq!((asked(&bench), so_far(&bench)), (("ord_1:a:do:page-2".into(), json!("c1")), (1, 2)));
    assert_eq!(step(&bench).output, None, "part of a list is no output");
    // A page without items has a next one all the same, and a cursor may be anything.
    take(&mut bench, json!([]), json!({"key": 7}));
    assert_eq!(asked(&bench), ("ord_1:a:do:page-3".into(), json!({"key": 7})));
    assert_eq!(bench.task.log.len(), entries, "pages leave no entries in the history");
    take(&mut bench, json!([{"x": 3}]), json!(null));
    bench.is("Processing a=Processed#3 b=Processing#1", "do b#1, notice StepCompleted");
    assert_eq!((so_far(&bench), step(&bench).output.clone()), ((3, 3), Some(json!([1, 2, {"x": 3}]))));
    assert_eq!(bench.request("b").input, json!({"all": [1, 2, {"x": 3}]}));
}

#[test]
fn a_list_may_be_one_page_or_empty() {
    for (answer, list) in [(json!({"rows": [1]}), json!([1])), (json!({"rows": [], "next": ""}), json!([]))] {
        let mut bench = claimed(PAGES, json!({}));
        bench.answered("a", done(answer)).is("Processing a=Processed#1 b=Processing#1", "do b#1, notice StepCompleted");
        assert_eq!(step(&bench).output, Some(list));
    }
}

// M2: whatever is repeated or late, each page is there once.
#[test]
fn a_repeated_or_late_answer_counts_once() {
    let mut bench = claimed(PAGES, json!({}));
    let first = bench.answer("a", page(json!([1]), "c1"));
    bench.on(&first);
    let request = asked(&bench);
    // The save was made, and what it sends may be lost.
    bench.on(&first).keeps(Kept::Stale, "do a#2");
    assert_eq!(asked(&bench), request);
    // The second page gets no answer, and is asked for again under its key.
    bench.at(20_000).supervise();
    assert_eq!(so_far(&bench), (1, 1));
    let lost = bench.reply("a", 2, page(json!([2]), "c2"));
    bench.at(21_000).woken().is("Processing a=Processing#3f1 b=Pending", "do a#3");
    assert_eq!(asked(&bench), request);
    for late in [&first, &lost] {
        bench.on(late);
        assert_eq!((bench.kept, so_far(&bench)), (Some(Kept::Stale), (1, 1)));
    }
    take(&mut bench, json!([2]), "c2");
    bench.is("Processing a=Processing#4 b=Pending", "do a#4");
    for late in [&first, &lost] {
        bench.on(late);
        assert_eq!((bench.kept, so_far(&bench)), (Some(Kept::Stale), (2, 2)));
    }
    take(&mut bench, json!([3]), json!(null));
    assert_eq!(step(&bench).output, Some(json!([1, 2, 3])));
}

// M2: the ladder is that of each page, and what failed goes on with the page that failed.
#[test]
fn a_failed_page_keeps_those_before_it() {
    let mut bench = claimed(PAGES, json!({}));
    for n in 1..=5 {
        // Each page may fail once.
        bench.answered("a", unavailable(None));
        assert_eq!(step(&bench).failures, 1);
        bench.at(bench.now + 1_000).woken();
        take(&mut bench, json!([n]), format!("c{n}"));
        assert_eq!(step(&bench).failures, 0);
    }
    let attempt = bench.attempt("a");
    bench.failed("a").is(&format!("Error a=Failed#{attempt} b=Pending"), "notice AttentionNeeded, alert");
    assert_eq!((so_far(&bench), step(&bench).output.clone()), ((5, 5), None));
    let other = act(What::Resubmit { step: Some("a".into()), input: Some(json!({"shop": "t"})) });
    bench.on(&other);
    assert_eq!(bench.kept, Some(Kept::Refused(Refusal::PagesInput)));
    bench.resubmit();
    bench.woken();
    assert_eq!(asked(&bench), ("ord_1:a:do:page-6".into(), json!("c5")));
    take(&mut bench, json!([6]), json!(null));
    assert_eq!(step(&bench).output, Some(json!([1, 2, 3, 4, 5, 6])));
}

// M2: what is no page fails the step with a reason, and is never caught.
#[test]
fn what_is_no_page_fails_the_step() {
    let long = "x".repeat(MAX_CURSOR);
    let cases = [
        (json!({"rows": [2], "next": "c1"}), "is the cursor with which this page was requested"),
        (json!({"rows": {"x": 1}}), "`items` of `pages` is not a list"),
        (json!({"rows": null}), "`items` of `pages` is null"),
        (json!({"next": "c2"}), "answer.rows"),
        (json!({"rows": [], "next": long}), "the limit for a cursor is 1024"),
        (json!({"rows": vec![0; 10_001], "next": "c2"}), "10002 items so far; the limit is 10000"),
        (json!({"rows": ["x".repeat(MAX_BESIDE - 5)]}), "the result has more than 256 KiB"),
    ];
    for (answer, why) in cases {
        let alone = PAGES.lines().nth(1).unwrap();
        let steps = alone.replace("on_failure", "catch = \"true\"; on_failure");
        let mut bench = claimed(&steps, json!({}));
        take(&mut bench, json!([1]), "c1");
        bench.answered("a", done(answer));
        assert_eq!((&step(&bench).state, so_far(&bench)), (&State::Failed, (1, 1)), "{why}");
        assert_eq!(step(&bench).failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Mistake));
        let reason = bench.task.reason.clone().unwrap();
        assert!(reason.contains(why), "{reason}");
    }
}

#[test]
fn a_list_that_becomes_too_long_fails_the_step() {
    let mut bench = claimed(PAGES, json!({}));
    take(&mut bench, vec!["x".repeat(200_000)], "c1");
    take(&mut bench, vec!["x".repeat(62_137)], "c2");
    assert_eq!(so_far(&bench), (2, 2), "{:?}", bench.task.reason);
    take(&mut bench, json!([1]), json!(null));
    assert_eq!((&step(&bench).state, so_far(&bench)), (&State::Failed, (2, 2)));
    let reason = bench.task.reason.clone().unwrap();
    assert!(reason.contains("262146 bytes so far; the limit is 262144"), "{reason}");
}

// M2: a service whose cursors go in circles does not keep an order for ever.
#[test]
fn pages_are_bounded() {
    let mut bench = claimed(PAGES, json!({}));
    for n in 0..MAX_PAGES {
        assert_ne!(step(&bench).state, State::Failed, "{n}");
        take(&mut bench, json!([]), format!("c{}", n % 2));
    }
    assert_eq!((&step(&bench).state, so_far(&bench).0), (&State::Failed, MAX_PAGES - 1));
    assert!(bench.task.reason.clone().unwrap().contains("more than 1000 pages"));
}

// M2: the record stays below 16 KB, and few lists are beside it; the longest list is done.
#[test]
fn the_record_stays_small_whatever_pages_there_are() {
    for (length, each) in [(10, 15), (400, 20), (1, 2_000), (1, 8_190), (1, 9_000), (250, 20), (1, 300)] {
        let mut bench = claimed(PAGES, json!({}));
        let (mut all, mut bytes, mut largest) = (Vec::new(), 2, 0);
        for n in 0.. {
            let items: Vec<Value> = (0..length).map(|i| json!(format!("{:0each$}", n * length + i))).collect();
            bytes += items.len() * (each + 3);
            let is_last =
                bytes + items.len() * (each + 3) > MAX_BESIDE || all.len() + 2 * length > 10_000 || n + 1 == 999;
            all.extend(items.clone());
            let next = if is_last { json!(null) } else { json!(format!("c{n}")) };
            take(&mut bench, items, next);
            largest = largest.max(serde_json::to_string(&bench.task).unwrap().len());
            if is_last {
                break;
            }
        }
        assert_eq!(step(&bench).state, State::Processed, "{:?}", bench.task.reason);
        assert!(largest < 16 * 1024, "{length} of {each} bytes: {largest} bytes");
        let lists = beside(&bench.task).len();
        println!("pages of {length} of {each} bytes: record {largest}, {lists} beside it, {} pages", so_far(&bench).0);
        assert!(lists <= 33, "{lists}");
        assert!(step(&bench).pages.as_ref().unwrap().tail.is_empty());
        assert_eq!(bench.request("b").input["all"], Value::Array(all));
    }
}

// M2, K6: lists of pages are of the order as long as its record, and are erased with it.
#[test]
fn lists_of_pages_are_erased_and_run_again_with_the_order() {
    let mut bench = bench(&PAGES.replace("b | after = [\"a\"]; with = { all = \"${outputs.a}\" }\n", ""), json!({}));
    bench.wake(0);
    take(&mut bench, vec!["x".repeat(9_000)], "c1");
    take(&mut bench, vec!["y".repeat(9_000)], "personal");
    take(&mut bench, json!([3]), json!(null));
    assert_eq!((bench.task.phase, beside(&bench.task).len()), (Phase::Processed, 3));
    let erased = erase(&bench.task, Part::Last, "ann", "r", at(1)).unwrap().unwrap();
    let text = serde_json::to_string(&erased).unwrap();
    assert!(beside(&erased).is_empty() && !text.contains("personal"), "{text}");
    // Another round begins with the first page, and what it replaces stays named.
    let wish = shared::again::Wish { from: vec!["a".into()], ..Default::default() };
    bench.on(&act(What::RunAgain(wish)));
    for _ in 0..2 {
        bench.at(bench.now + 11_000).woken();
    }
    assert_eq!((asked(&bench), so_far(&bench)), (("ord_1:a:do:page-1".into(), json!(null)), (0, 0)));
    assert_eq!(beside(&bench.task).len(), 3);
    let late = bench.reply("a", 3, page(json!([7]), json!(null)));
    bench.on(&late);
    assert_eq!(so_far(&bench), (0, 0));
    take(&mut bench, json!([8]), json!(null));
    assert_eq!((bench.task.phase, step(&bench).output.clone()), (Phase::Processed, Some(json!([8]))));
}

// What is collected waits while nothing may go forward, and ends with the order.
#[test]
fn a_pause_holds_the_next_page_back_and_a_cancel_ends_the_list() {
    let mut bench = bench(PAGES, json!({}));
    bench.wake(0).on(&act(What::Pause));
    take(&mut bench, json!([1]), "c1");
    bench.is("Pending a=Pending#1 b=Pending", "");
    assert_eq!(so_far(&bench), (1, 1));
    bench.at(100_000).on(&act(What::Resume)).is("Pending a=Pending#1 b=Pending", "wake");
    bench.woken().is("Processing a=Processing#2 b=Pending", "do a#2");
    // An agent that is paused gets no page either.
    bench.withhold("x");
    take(&mut bench, json!([2]), "c2");
    bench.is("Pending a=Pending#2 b=Pending", "");
    bench.agents.paused.clear();
    bench.woken().is("Processing a=Processing#3 b=Pending", "do a#3").cancel();
    take(&mut bench, json!([3]), "c3");
    assert_eq!(bench.task.phase, Phase::Undoing);
    bench.at(120_000).woken().is("Undone a=Undone#3 b=Pending", "notice Undone");
}

#[test]
fn a_step_that_collects_can_be_skipped_or_marked_as_done() {
    for (what, output) in [
        (What::Skip { step: Some("a".into()) }, None),
        (What::MarkDone { step: Some("a".into()), output: json!([9]) }, Some(json!([9]))),
    ] {
        let mut bench = claimed(&PAGES.replace("${outputs.a}", "x"), json!({}));
        take(&mut bench, json!([1]), "c1");
        bench.failed("a").on(&act(what));
        assert!(step(&bench).is_settled(), "{}", bench.state());
        assert_eq!(step(&bench).output, output, "part of a list is no output");
    }
}

#[test]
fn a_definition_without_pages_takes_no_order_that_collects() {
    let old: Workflow = workflow(&file(PAGES));
    let without = workflow(&file(
        &PAGES
            .replace("; pages = { items = \"${answer.rows}\", next = \"${answer.?next}\" }", "")
            .replace("${page.?cursor}", "c")
            .replace("${page.number}", "1"),
    ));
    let same_call = workflow(&file(&PAGES.replace("${answer.rows}", "${answer.lines}")));
    let mut bench = bench(PAGES, json!({}));
    assert!(moved(&bench.task, &old, &without, at(0)).is_ok(), "its turn has not come");
    bench.wake(0);
    take(&mut bench, json!([1]), "c1");
    let why = moved(&bench.task, &old, &without, at(0)).unwrap_err();
    assert!(matches!(why.rule, Rule::Call | Rule::Pages), "{why}");
    // What is kept of an answer may change.
    assert_eq!(moved(&bench.task, &old, &same_call, at(0)).unwrap().steps[0].pages, step(&bench).pages);
    take(&mut bench, json!([2]), json!(null));
    assert!(moved(&bench.task, &old, &without, at(0)).is_ok(), "it is settled");
}

// An answer over HTTP is read where it comes, so the reply has the page alone.
#[test]
fn a_url_is_asked_with_a_cursor_in_its_query() {
    let steps = r#"a | after = []; http = { url = "https://shop.example/rows", method = "GET", query = { after = "${page.?cursor}", limit = "100" } }; pages = { items = "${answer.rows.map(r, r.id)}", next = "${answer.?next}" }"#;
    let mut bench = claimed(steps, json!({}));
    let url = |bench: &Bench| bench.request("a").over_http().unwrap().url.text().to_owned();
    assert_eq!(url(&bench), "https://shop.example/rows?limit=100");
    bench.answered("a", done(json!({"items": [1, 2], "next": "a b"})));
    assert_eq!(url(&bench), "https://shop.example/rows?after=a%20b&limit=100");
    bench.answered("a", done(json!({"items": [3]}))).is("Processed a=Processed#2", "notice Completed");
    assert_eq!(step(&bench).output, Some(json!([1, 2, 3])));
}

/// A page of one item, which is a list beside the record.
fn long_page(step: &str, n: usize, next: Option<&str>) -> Outcome {
    page(json!([row(step, n)]), json!(next))
}

fn row(step: &str, n: usize) -> String {
    format!("{step}{n:08190}")
}

/// What is in the table and what the record names: the two must not differ.
fn stored(world: &World) -> (usize, usize) {
    let task = world.task();
    let (named, tables) = (beside(&task), world.store.tables());
    assert_eq!(tables.outputs.keys().map(|(_, hash)| hash).collect::<BTreeSet<_>>(), named);
    let lists = task.steps.iter().filter_map(|step| step.pages.as_ref()).map(|pages| pages.lists.len()).sum();
    (named.len(), lists)
}

// M2: an instance that remembers nothing takes each page without a read, and the last one with one read of all lists before it.
#[tokio::test]
async fn a_list_of_many_pages_needs_no_memory_of_them() {
    let mut world = World::begun(&file(PAGES)).await;
    for n in 1..=31 {
        world.restart();
        let answer = world.reply("a", long_page("a", n, Some(&format!("c{n}"))));
        world.on(answer.clone()).await.unwrap();
        // Delivered again, to another instance.
        world.restart();
        world.on(answer).await.unwrap();
        assert_eq!((world.counts(), stored(&world)), ((n, 0), (n, n)));
        assert_eq!(world.request("a").input, json!({"shop": "s", "cursor": format!("c{n}"), "n": n + 1}));
    }
    // The instance dies: when it is to read, when it is to write the whole list, and when it is to send.
    let last = world.reply("a", page(json!(["end"]), json!(null)));
    let whole: Vec<Value> = (1..=31).map(|n| json!(row("a", n))).chain([json!("end")]).collect();
    world.restart();
    let held = std::mem::take(&mut world.store.tables().outputs);
    assert!(matches!(world.on(last.clone()).await, Err(Error::Unavailable { .. })), "a replica may be late");
    world.store.tables().outputs = held;
    world.restart();
    world.store.refuses.store(1, Ordering::Relaxed);
    assert!(world.on(last.clone()).await.is_err());
    assert_eq!((world.counts(), stored(&world)), ((31, 2), (31, 31)), "nothing of it is saved");
    world.restart();
    world.on(last.clone()).await.unwrap();
    assert_eq!((world.counts(), stored(&world)), ((32, 3), (32, 31)));
    assert_eq!(world.task().steps[0].state, State::Processed);
    assert_eq!(world.request("b").input["all"], Value::Array(whole.clone()));
    world.restart();
    world.on(last).await.unwrap();
    assert_eq!((world.request("b").input["all"].clone(), stored(&world)), (Value::Array(whole), (32, 31)));
}

// M2: a part of the list that is gone for good is never left out of it.
#[tokio::test]
async fn a_list_without_one_of_its_pages_is_no_list() {
    let mut world = World::begun(&file(&PAGES.replacen("a |", "a | timeout = \"10m\";", 1))).await;
    for n in 1..=3 {
        world.on(world.reply("a", long_page("a", n, Some(&format!("c{n}"))))).await.unwrap();
    }
    let second = world.task().steps[0].pages.as_ref().unwrap().lists[1].hash.clone();
    world.store.tables().outputs.retain(|(_, hash), _| *hash != second);
    world.restart();
    // No replica is as late as that.
    world.at(400_000);
    world.on(world.reply("a", page(json!(["end"]), json!(null)))).await.unwrap();
    let task = world.task();
    assert_eq!((&task.steps[0].state, task.phase), (&State::Failed, Phase::Error));
    assert!(task.reason.as_ref().unwrap().contains("missing from the state table"), "{:?}", task.reason);
    let pages = task.steps[0].pages.as_ref().unwrap();
    assert_eq!((pages.taken, pages.items, pages.lists.len()), (3, 3, 3));
    assert!(task.steps[0].output.is_none() && task.steps[0].beside.is_none());
}

/// Steps that collect, one after another, and one that needs none of them.
fn collectors(count: usize) -> String {
    let one = |n: usize| {
        let after = if n == 0 { String::new() } else { format!("\"s{}\"", n - 1) };
        PAGES.lines().nth(1).unwrap().replacen('a', &format!("s{n}"), 1).replace("[]", &format!("[{after}]")) + "\n"
    };
    file(&(0..count).map(one).collect::<String>())
}

// M2: with too many values beside the record, they could not expire together with it. The page that makes them too many is not taken, and
// leaves nothing in the table.
#[tokio::test]
async fn pages_that_would_be_too_many_values_are_refused_and_leave_nothing() {
    let mut world = World::begun(&collectors(3)).await;
    let mut refused = None;
    'all: for s in 0..3 {
        let step = format!("s{s}");
        for n in 1..=32 {
            world.restart();
            let outcome = match n {
                32 => page(json!(["end"]), json!(null)),
                _ => long_page(&step, n, Some(&format!("c{n}"))),
            };
            world.on(world.reply(&step, outcome)).await.unwrap();
            if world.task().phase != Phase::Forward {
                refused = Some((s, n));
                break 'all;
            }
        }
    }
    // Two whole lists of 32 values each, 25 pages, and a place for the list that they are a part of.
    assert_eq!((refused, stored(&world)), (Some((2, 26)), (89, 31 + 31 + 25)));
    let task = world.task();
    assert_eq!((&task.steps[2].state, task.phase), (&State::Failed, Phase::Error));
    assert!(task.reason.as_ref().unwrap().contains("keeps at most 90"), "{:?}", task.reason);
    let pages = task.steps[2].pages.as_ref().unwrap();
    assert_eq!((pages.taken, pages.cursor.clone()), (25, Some(json!("c25"))));
    // With less of each item it goes on where it was.
    world.on(act(What::Resubmit { step: None, input: None })).await.unwrap();
    world.wake().await;
    assert_eq!(world.request("s2").idempotency_key, "ord_1:s2:do:page-26");
    world.on(world.reply("s2", page(json!(["end"]), json!(null)))).await.unwrap();
    assert_eq!((world.task().phase, stored(&world)), (Phase::Processed, (90, 31 + 31 + 25)));
}

// M2: neither may they be too long together.
#[tokio::test]
async fn pages_that_would_be_too_long_together_are_refused_and_leave_nothing() {
    let mut world = World::begun(&collectors(7)).await;
    for s in 0..6 {
        let step = format!("s{s}");
        for next in [json!("c1"), json!(null)] {
            world.restart();
            let half = format!("{step}{next}{}", "x".repeat(131_060));
            world.on(world.reply(&step, page(json!([&half[half.len() - 131_066..]]), next))).await.unwrap();
        }
        assert_eq!(world.task().steps[s].state, State::Processed, "{:?}", world.task().reason);
    }
    assert_eq!(stored(&world), (18, 12));
    world.restart();
    world.on(world.reply("s6", page(json!([1]), json!("c1")))).await.unwrap();
    assert_eq!(world.task().phase, Phase::Forward, "a short page is in the record");
    world.restart();
    world.on(world.reply("s6", long_page("s6", 2, Some("c2")))).await.unwrap();
    let task = world.task();
    assert_eq!((&task.steps[6].state, task.phase, stored(&world)), (&State::Failed, Phase::Error, (18, 12)));
    assert!(task.reason.as_ref().unwrap().contains("3145728 bytes together"), "{:?}", task.reason);
    let pages = task.steps[6].pages.as_ref().unwrap();
    assert_eq!((pages.taken, pages.tail.clone(), pages.cursor.clone()), (1, vec![json!(1)], Some(json!("c1"))));
}

// M2: many steps that collect at the same time may fill the record. The page that has no room is not taken, and a person decides.
#[tokio::test]
async fn a_page_for_which_the_record_has_no_room_stops_the_order() {
    let alone = PAGES.lines().nth(1).unwrap();
    let steps: String = (0..50).map(|n| alone.replacen('a', &format!("s{n}"), 1) + "\n").collect();
    let mut world = World::begun(&file(&steps)).await;
    let full = |n: usize| page(json!([format!("{n:08100}")]), json!(format!("{n:01000}")));
    let mut taken = 0;
    for n in 0..50 {
        world.restart();
        world.on(world.reply(&format!("s{n}"), full(n))).await.unwrap();
        if world.task().phase != Phase::Forward {
            break;
        }
        taken += 1;
    }
    let task = world.task();
    assert_eq!((taken, task.phase, &task.steps[taken].state), (43, Phase::Error, &State::Failed));
    assert!(task.reason.as_ref().unwrap().contains("the order's record is full"), "{:?}", task.reason);
    assert!(task.steps[taken].pages.is_none() && task.steps[..taken].iter().all(|step| step.pages.is_some()));
    assert!(serde_json::to_string(&task).unwrap().len() <= task.most_bytes());
    assert_eq!(stored(&world), (0, 0));
}
