//! How a parent learns what became of the orders of its list: hints and looks, what they cost, and what is lost on the way.

use super::{CHILD, PARENT, family_of, good, lines, silent, stopping, tolerating, without};
use crate::support::*;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::items::Item;
use shared::message::{Effect, NoticeKind, Reply};
use shared::order::Id;
use shared::task::Phase;
use shared::workflow::child;
use std::sync::atomic::Ordering;

// With many open orders most ends are looked at a second later.
#[tokio::test]
async fn another_step_does_not_hold_up_the_look_at_a_list() {
    let side = "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"600s\"\n";
    let text = PARENT.replace("at_once = 3", "at_once = 20") + side;
    let mut family = family_of(&text, &CHILD.replace("10s", "600s"), lines(25)).await;
    family.answers = Box::new(|request| match (request.step.as_str(), request.input["n"].as_u64()) {
        ("side", _) | ("pick", Some(1)) => later(),
        _ => good(request),
    });
    family.after(5).await;
    assert_eq!(family.items().count(|item| item == Item::Open), 1);
    for (id, step) in [(Family::id(1, 0), "pick"), (parent(), "side")] {
        let reply = Reply::new(id.clone(), step, 1, done(json!({"box": 1})));
        let tenant = family.parent().tenant;
        family.handle(&id, Event::Reply(Reply { tenant, ..reply })).await;
        family.play().await;
    }
    family.after(3).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent());
}

// The end of one of many is left to the look of a second later, which a save of another step must not end.
#[tokio::test]
async fn the_look_at_many_open_orders_comes_whatever_another_step_saves() {
    let side = "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"600s\"\n";
    let text = PARENT.replace("at_once = 3", "at_once = 40") + side;
    let mut family = family_of(&text, &CHILD.replace("10s", "600s"), lines(40)).await;
    family.answers = Box::new(|request| match request.step.as_str() {
        "side" => later(),
        _ => silent(request),
    });
    family.play().await;
    let reply = family.held(1);
    family.handle(&Family::id(1, 0), Event::Reply(reply)).await;
    let reply = Reply::new(parent(), "side", 1, done(json!(null)));
    family.handle(&parent(), Event::Reply(reply)).await;
    family.after(2).await;
    assert_eq!(family.items().get(1), Item::Done);
}

#[tokio::test]
async fn every_lost_message_is_made_up_for() {
    let mut family = family_of(PARENT, CHILD, lines(9)).await;
    family.loses_hints = true;
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Forward);
    for _ in 0..12 {
        family.open.clear();
        family.after(60).await;
    }
    assert_eq!(family.parent().phase, Phase::Processed);
    assert_eq!(family.count("do pick"), 9);
}

// The parent's record is saved, and the instance that was to make the children dies.
#[tokio::test]
async fn children_that_were_not_made_are_made_later() {
    let mut family = family_of(PARENT, CHILD, lines(9)).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    assert!(family.phases().is_empty());
    family.store.creates_none.store(false, Ordering::Relaxed);
    let seen = family.parent().version - 1;
    family.handle(&parent(), Event::Wake { seen, hops: 0 }).await;
    assert_eq!(family.phases().len(), 3);
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed);

    let mut family = family_of(PARENT, CHILD, lines(9)).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed, "its own hint finds that they are not there");
}

#[tokio::test]
async fn an_unreadable_child_holds_up_no_other() {
    let mut family = family_of(PARENT, CHILD, lines(6)).await;
    *family.store.unreadable.lock().unwrap() = Some(Family::id(1, 0));
    family.after(5).await;
    let done = family.items().count(|item| item == Item::Done);
    assert_eq!((family.parent().phase, done), (Phase::Forward, 5));
    *family.store.unreadable.lock().unwrap() = None;
    family.after(200).await;
    assert_eq!(family.parent().phase, Phase::Processed);
}

// At most 2N/at_once saves, and a record of less than 16 KB.
#[tokio::test]
async fn a_long_list_costs_its_order_few_writes_and_little_room() {
    for (total, at_once) in [(10, 10), (1000, 10), (10_000, 100)] {
        let text = tolerating("100%").replace("at_once = 3", &format!("at_once = {at_once}"));
        // Without what would be kept beside the record.
        let text = text.replace(
            "workflow = \"child\"",
            "workflow = \"child\"\noutput = { done = \"${answer.done}\", failed = \"${answer.failed}\" }",
        );
        let numbers: Value = (0..total).collect();
        let text = text.replace("${item.sku}", "s");
        let mut family = family_of(&text, CHILD, numbers).await;
        family.answers = Box::new(|request| match request.input["n"].as_u64() {
            Some(n) if n % 33 == 5 => failed(),
            _ => good(request),
        });
        let mut most = 0;
        for _ in 0..600 {
            family.after(1).await;
            most = most.max(serde_json::to_string(&family.parent()).unwrap().len());
            if family.parent().phase != Phase::Forward {
                break;
            }
        }
        let own = family.parent();
        assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
        let seconds = family.now.load(Ordering::Relaxed) / 1000;
        println!("{total} items, {at_once} at once: {} saves in {seconds} s, at most {most} bytes", own.version);
        assert!(own.version <= 2 * total / at_once + u64::try_from(seconds).unwrap() + 5, "{}", own.version);
        assert!(most < 16 * 1024, "{most} bytes");
    }
}

/// A list of many open orders, without what would be kept beside the record.
fn wide(at_once: usize) -> String {
    let output = "workflow = \"child\"\noutput = { done = \"${answer.done}\", failed = \"${answer.failed}\" }";
    PARENT.replace("at_once = 3", &format!("at_once = {at_once}")).replace("workflow = \"child\"", output)
}

// Not each end is a reason to read all the orders that are open, nor to read the parent's record.
#[tokio::test]
async fn an_item_costs_a_few_reads_and_one_hint() {
    let mut family = family_of(&wide(50), CHILD, lines(1000)).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    let [together, alone] = family.store.read.each_ref().map(|count| count.load(Ordering::Relaxed));
    let (saves, looks) = (family.parent().version, family.looks);
    println!("{together} reads together, {alone} alone, {saves} saves, {looks} looks");
    assert!(together <= 2500, "{together}");
    assert!(alone <= 100, "{alone}");
    assert!(saves <= 2 * 1000 / 50 + 5, "{saves}");
    assert!(looks as u64 <= saves + 5, "{looks}");
}

// Of two hints at once both would read all that is open, and only one of them could write what it finds. If that one finds too little, it
// looks again, because the other's order may have ended meanwhile.
#[tokio::test]
async fn of_two_hints_at_once_one_reads_what_is_open() {
    for (ended, looks) in [(0, 2), (60, 1)] {
        let mut family = family_of(&wide(100), &CHILD.replace("10s", "600s"), lines(100)).await;
        family.answers = Box::new(silent);
        family.play().await;
        for item in 0..ended {
            let ends = vec![(Family::id(item, 0), Event::Reply(family.held(item)))];
            assert!(family.engine.handle(ends).await[0].is_ok());
        }
        let before = family.store.read[0].load(Ordering::Relaxed);
        let hint = |seen| family.engine.handle(vec![(parent(), Event::Hint { seen, part: 0, step: None })]);
        let (one, other) = tokio::join!(hint(56), hint(66));
        assert!(one[0].is_ok() && other[0].is_ok());
        // The parent's record is read, too.
        let read = family.store.read[0].load(Ordering::Relaxed) - before;
        assert_eq!(read / 100, looks, "{ended} have ended: {read}");
    }
}

// Neither is the first of those that are open, nor the last, and nothing else ends.
#[tokio::test]
async fn an_end_that_is_no_reason_to_read_is_written_within_two_seconds() {
    let mut family = family_of(&wide(50), CHILD, lines(100)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(3) | None => good(request),
        Some(_) => silent(request),
    });
    // The look that the beginning arranged has come and gone.
    family.play().await;
    let reply = family.held(4);
    family.after(5).await;
    assert_eq!(family.items().get(3), Item::Done);
    assert_eq!(family.items().get(4), Item::Open);
    family.handle(&Family::id(4, 0), Event::Reply(reply)).await;
    family.after(2).await;
    assert_eq!(family.items().get(4), Item::Done);
}

// Whichever ends last, it is not left to the look of a second later.
#[tokio::test]
async fn the_last_order_of_a_long_list_ends_it_at_once() {
    for last in [0, 17, 40, 49] {
        let mut family = family_of(&wide(50), CHILD, lines(50)).await;
        family.answers = Box::new(move |request| match request.input["n"].as_u64() {
            Some(n) if n == last || n > 30 => silent(request),
            _ => good(request),
        });
        family.play().await;
        assert_eq!(family.items().count(|item| item == Item::Open), if last > 30 { 19 } else { 20 });
        for item in (31..50).filter(|item| *item != last as usize).chain([last as usize]) {
            assert_eq!(family.parent().phase, Phase::Forward);
            let reply = family.held(item);
            family.handle(&Family::id(item, 0), Event::Reply(reply)).await;
            family.play().await;
        }
        assert_eq!(family.parent().phase, Phase::Processed, "{last}");
    }
}

/// Two lists side by side, of many open orders.
fn two_lists() -> String {
    let wide = wide(40);
    let (lines, mail) =
        (wide.find("[[step]]\nname = \"lines\"").unwrap(), wide.find("[[step]]\nname = \"mail\"").unwrap());
    let more = wide[lines..mail].replace("\"lines\"", "\"more\"");
    format!("{}{more}{}", &wide[..mail], wide[mail..].replace("[\"lines\"]", "[\"lines\", \"more\"]"))
}

fn id_of_more(item: usize) -> Id {
    Id::derive("acme", &child::key_of_item(&parent(), "more", item, 0))
}

// A hint of an earlier version names an item, and not its list.
#[tokio::test]
async fn an_end_in_one_list_is_not_taken_for_one_in_another() {
    for (first, names_no_step) in [("lines", false), ("more", false), ("lines", true), ("more", true)] {
        let mut family = family_of(&two_lists(), &CHILD.replace("10s", "600s"), lines(40)).await;
        (family.answers, family.names_no_step) = (Box::new(silent), names_no_step);
        family.after(5).await;
        let states = |family: &Family| {
            let own = family.parent();
            [1, 2].map(|step| own.steps[step].kids.as_ref().unwrap().items.as_ref().unwrap().get(4))
        };
        assert_eq!(states(&family), [Item::Open; 2]);
        let mut ends = [("lines", Family::id(4, 0)), ("more", id_of_more(4))];
        ends.sort_by_key(|(list, _)| *list != first);
        for (n, (list, id)) in ends.into_iter().enumerate() {
            let reply = Reply::new(id.clone(), "pick", 1, done(json!({"box": 4})));
            family.handle(&id, Event::Reply(reply)).await;
            family.after(3).await;
            let is = |this: &str| if n == 1 || this == list { Item::Done } else { Item::Open };
            assert_eq!(states(&family), [is("lines"), is("more")], "{first}");
        }
    }
}

// A busy list arranges a look with each of its saves. If that made the looks at the other list late, none would ever find its ends.
#[tokio::test]
async fn a_busy_list_does_not_hide_the_ends_of_a_quiet_one() {
    for names_no_step in [false, true] {
        let mut family = family_of(&two_lists(), &CHILD.replace("10s", "600s"), lines(1000)).await;
        (family.answers, family.names_no_step) = (Box::new(silent), names_no_step);
        family.play().await;
        let before = family.store.read[0].load(Ordering::Relaxed);
        for tick in 0..50_u64 {
            // The first end is left to the look that the beginning of the list arranged; for the second, a look is arranged.
            if let Some(item) = [(0, 4), (30, 7)].iter().find_map(|(at, item)| (*at == tick).then_some(*item)) {
                let id = id_of_more(item);
                family.handle(&id, Event::Reply(Reply::new(id.clone(), "pick", 1, done(json!({"box": item}))))).await;
            }
            for item in (tick as usize * 20..).take(20) {
                let reply = family.held(item);
                family.handle(&Family::id(item, 0), Event::Reply(reply)).await;
            }
            family.now.fetch_add(100, Ordering::Relaxed);
            family.play().await;
            let own = family.parent();
            let [busy, quiet] = [1, 2].map(|step| own.steps[step].kids.as_ref().unwrap().items.as_ref().unwrap());
            assert!(busy.count(|item| item == Item::Done) + 20 >= tick as usize * 20, "{tick}");
            // A look at all lists, as messages of an earlier version ask for it, may find it sooner.
            for (item, found) in [(4, 9), (7, 40)] {
                let is_done = quiet.get(item) == Item::Done;
                assert!(is_done == (tick >= found) || is_done && names_no_step, "{item} at {tick}, {names_no_step}");
            }
        }
        let (saves, looks) = (family.parent().version, family.looks);
        let read = family.store.read[0].load(Ordering::Relaxed) - before;
        println!("{saves} saves, {looks} looks, {read} reads");
        // A late look reads nothing.
        assert!(names_no_step || looks as u64 <= saves + 5, "{looks} looks, {saves} saves");
        assert!(names_no_step || read as u64 <= 40 * (saves + 5), "{read} reads, {saves} saves");
    }
}

// Nothing tells the parent of it, whichever way an order failed.
#[tokio::test]
async fn a_lost_hint_of_a_failure_is_made_up_for() {
    for child in [CHILD.to_owned(), on_failure_error(CHILD)] {
        let mut family = family_of(&stopping(), &child, lines(2)).await;
        family.answers = without(&[1]);
        family.loses_hints = true;
        family.after(30).await;
        assert_eq!(family.parent().phase, Phase::Forward);
        assert_ne!(family.child_of(1, 0).unwrap().phase, Phase::Forward);
        family.after(60).await;
        let own = family.parent();
        assert_eq!((own.phase, family.items().get(1)), (Phase::Error, Item::Failed));
        assert!(own.reason.unwrap().contains("1 of 2 orders failed: order ord_"));
    }
}

// The queue of the submitter refuses the notice of a turn to undo that a child brought. The undo waits for it, also while another list is open.
#[tokio::test]
async fn the_notice_that_an_order_fails_with_its_list_is_not_lost() {
    for (text, by_sweep) in [(PARENT.to_owned(), false), (two_lists(), true)] {
        let mut family = family_of(&text, &on_failure_error(&CHILD.replace("10s", "600s")), lines(2)).await;
        family.change(&parent(), |own| own.reply_queue = Some("acme".into()));
        family.answers = Box::new(silent);
        family.after(3).await;
        family.told.clear();
        family.queues.fail(|effect| matches!(effect, Effect::Notice(_)));
        let id = Family::id(1, 0);
        family.handle(&id, Event::Reply(Reply::new(id.clone(), "pick", 1, failed()))).await;
        family.play().await;
        assert_eq!((family.parent().phase, family.told.len()), (Phase::Undoing, 0));
        // The hint is delivered a second time.
        let hint = Event::Hint { seen: 1, part: 0, step: None };
        let again = family.engine.handle(vec![(parent(), hint.clone())]).await.remove(0);
        assert_eq!(again.is_ok(), by_sweep);
        family.queues.recover();
        family.handle(&parent(), hint).await;
        family.play().await;
        assert_eq!(family.told.is_empty(), by_sweep);
        family.after(1300).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert_eq!(family.told.first(), Some(&NoticeKind::Failed));
        assert_eq!(family.told.last(), Some(&NoticeKind::Undone));
    }
}

// What is left of the list must not begin, and the sweep alone says that the order is too late.
#[tokio::test]
async fn a_hint_after_the_deadline_of_an_order_begins_and_ends_nothing() {
    for total in [1, 3] {
        let text = format!("deadline = \"60s\"\n{}", PARENT.replace("at_once = 3", "at_once = 1").trim_start());
        let mut family = family_of(&text, &CHILD.replace("10s", "600s"), lines(total)).await;
        family.answers = Box::new(silent);
        family.play().await;
        let reply = family.held(0);
        family.now.store(100_000, Ordering::Relaxed);
        let before = family.parent();
        family.handle(&Family::id(0, 0), Event::Reply(reply)).await;
        family.play().await;
        family.handle(&parent(), Event::Hint { seen: before.version, part: 1, step: None }).await;
        family.play().await;
        let own = family.parent();
        assert_eq!((own.version, own.phase, family.phases().len()), (before.version, Phase::Forward, 1));
        family.after(700).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert_eq!((family.phases().len(), family.count("do mail")), (1, 0));
        assert!(family.count("undo pick 0") > 0);
    }
}
