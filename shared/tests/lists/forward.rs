//! Each item has an order. What comes back is put together, and what failed is reported, caught, or tried again.

use super::{CHILD, PARENT, family_of, good, lines, silent, stopping, tolerating, without};
use crate::support::*;
use serde_json::{Value, json};
use shared::decision::{Event, What};
use shared::items::{Item, MAX_ITEMS};
use shared::operator;
use shared::ports::StateStore;
use shared::step::State;
use shared::task::{Phase, Task};
use shared::workflow::child;

// M1
#[tokio::test]
async fn each_item_has_an_order_and_its_output_comes_back_in_its_place() {
    let mut family = family_of(PARENT, CHILD, lines(7)).await;
    family.after(3).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
    assert_eq!(own.output, Some(json!({"done": 7, "failed": 0})));
    let items: Value = (0..7).map(|n| json!({"box": n})).collect();
    assert_eq!(family.report(), json!({"total": 7, "done": 7, "failed": 0, "errors": [], "items": items}));
    assert_eq!(family.most_open, 3);
    assert_eq!((family.count("do pick"), family.count("do mail")), (7, 1));
    let child = family.child_of(4, 0).unwrap();
    let link = child.parent.clone().unwrap();
    assert_eq!((link.item, link.step.as_str()), (Some(4), "lines"));
    assert_eq!(family.store.order(&child).await.unwrap().unwrap().input, json!({"sku": "s4", "n": 4}));
    assert!(own.due.is_none());
}

// M2
#[tokio::test]
async fn an_empty_list_is_done_at_once() {
    let mut family = family_of(PARENT, CHILD, json!([])).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert_eq!(family.report(), json!({"total": 0, "done": 0, "failed": 0, "errors": [], "items": []}));
    // pay, then the list with mail, and the end.
    assert_eq!(family.parent().version, 3);
    family.act(What::Undo).await;
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

#[tokio::test]
async fn many_unfit_items_do_not_wait_for_a_look() {
    let mut family = family_of(&tolerating("100%"), CHILD, json!(vec![json!({}); 1200])).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.items().count(Item::has_failed));
    assert_eq!(family.items().count(Item::has_failed), 1200);
}

#[tokio::test]
async fn a_list_that_cannot_be_read_keeps_the_one_beside_it_from_beginning() {
    let other = "[[step]]\nname = \"wrong\"\nafter = [\"pay\"]\neach = \"${input.lines[0]}\"\nworkflow = \"child\"\n";
    let (head, tail) = PARENT.split_at(PARENT.find("[[step]]\nname = \"lines\"").unwrap());
    let mut family = family_of(&format!("{head}{other}{tail}"), CHILD, lines(5)).await;
    family.after(3).await;
    assert_eq!(family.parent().phase, Phase::Undoing, "{:?}", family.parent().reason);
    assert_eq!(family.store.tables().tasks.len(), 1);
}

// M2
#[tokio::test]
async fn what_is_tolerated_is_reported() {
    let mut family = family_of(&tolerating("20%"), CHILD, lines(10)).await;
    family.answers = without(&[2, 7]);
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    let report = family.report();
    assert_eq!((&report["done"], &report["failed"]), (&json!(8), &json!(2)));
    let errors = report["errors"].as_array().unwrap();
    assert_eq!((&errors[0]["index"], &errors[1]["index"]), (&json!(2), &json!(7)));
    assert_eq!(errors[0]["order_id"], json!(Family::id(2, 0)));
    assert!(errors[0]["message"].as_str().unwrap().contains("`pick` failed"));
    assert_eq!((&report["items"][1], &report["items"][2]), (&json!({"box": 1}), &Value::Null));

    let mut family = family_of(&tolerating("19.99%"), CHILD, lines(10)).await;
    family.answers = without(&[2, 7]);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.parent().reason.unwrap().contains("2 of 10 orders failed, and 1 are tolerated"));
}

#[tokio::test]
async fn an_item_whose_input_is_unfit_fails_alone() {
    let mut bad = lines(10);
    bad[3] = json!({"colour": "red"});
    bad[5] = json!({"sku": 5});
    let mut family = family_of(&tolerating("20%"), CHILD, bad.clone()).await;
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    let errors = &family.report()["errors"];
    assert!(errors[0]["message"].as_str().unwrap().contains("sku"), "{errors}");
    assert!(errors[1]["message"].as_str().unwrap().contains("the input of `child` is refused: `/sku`"), "{errors}");
    assert_eq!((errors[0].get("order_id"), family.phases().len()), (None, 8));

    let mut family = family_of(PARENT, CHILD, bad).await;
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.phases().values().all(|phase| *phase == Phase::Undone));
}

#[tokio::test]
async fn a_caught_failure_waits_for_those_that_are_open() {
    let catches = PARENT.replace("at_once = 3", "at_once = 3\ncatch = \"error.kind == 'children'\"");
    let catches =
        catches.replace("output = { done = \"${outputs.lines.done}\", failed = \"${outputs.lines.failed}\" }\n", "");
    let catches = catches.replace("[\"lines\"]", "[\"lines?\"]").replace("${outputs.lines}", "${errors.lines.message}");
    let mut family = family_of(&catches, CHILD, lines(9)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(0) => failed(),
        Some(_) => silent(request),
        None => good(request),
    });
    family.after(5).await;
    let open = |family: &Family| {
        let is_open = |phase: &&Phase| matches!(phase, Phase::Forward | Phase::Undoing);
        family.phases().values().filter(is_open).count()
    };
    assert!(open(&family) > 0);
    for second in 0..120 {
        family.after(1).await;
        match &family.parent().steps[1].state {
            State::Waiting { .. } => assert!(second < 119, "it waits for ever"),
            _ => break,
        }
    }
    assert_eq!(open(&family), 0, "{:?}", family.phases());
    family.after(5).await;
    assert_eq!((family.parent().phase, &family.parent().steps[1].state), (Phase::Processed, &State::Caught));
    assert!(family.phases().values().all(|phase| *phase != Phase::Forward), "{:?}", family.phases());
}

#[tokio::test]
async fn a_resubmission_takes_the_failed_items_only() {
    // Those that stopped go on, and those that undid themselves have another order.
    for (child_text, made) in [(on_failure_error(CHILD), 0), (CHILD.to_owned(), 1)] {
        let mut family = family_of(&on_failure_error(&tolerating("50%")), &child_text, lines(4)).await;
        family.answers = without(&[0, 1, 2]);
        family.after(60).await;
        assert_eq!(family.parent().phase, Phase::Error);
        let before = family.count("do pick 3");
        family.answers = Box::new(good);
        assert!(matches!(family.resubmit().await, operator::Outcome::Applied(_)));
        family.after(60).await;
        assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
        for item in 0..3 {
            let child = family.child_of(item, made).unwrap_or_else(|| panic!("{item} {made}: {:?}", family.phases()));
            assert_eq!((child.phase, child.parent.unwrap().round), (Phase::Processed, 1));
        }
        assert_eq!(family.count("do pick 3"), 1.max(before), "what was done is not done again");
        assert_eq!(family.report()["done"], json!(4));
        // All that ever began is covered by an undo.
        family.act(What::Undo).await;
        family.after(120).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert!(family.phases().values().all(|phase| *phase == Phase::Undone), "{:?}", family.phases());
    }
}

// A late instance asks again for a round that has come and failed.
#[tokio::test]
async fn an_order_is_asked_once_for_each_round() {
    let mut family = family_of(&on_failure_error(PARENT), &on_failure_error(CHILD), lines(1)).await;
    family.answers = without(&[0]);
    family.after(30).await;
    family.resubmit().await;
    family.after(30).await;
    let child = family.child_of(0, 0).unwrap();
    assert_eq!((child.phase, child.parent.as_ref().unwrap().round), (Phase::Error, 1));
    let asked = Event::Asked { round: 1, wish: child::Wish::Resubmit };
    family.handle(&child.id, asked).await;
    assert_eq!(family.child_of(0, 0).unwrap().version, child.version);
}

#[tokio::test]
async fn an_order_of_somebody_else_is_not_taken_for_an_items() {
    let mut family = family_of(PARENT, CHILD, lines(2)).await;
    let other =
        Task { phase: Phase::Processed, ..Task::new(submission(&Family::id(1, 0).0, false), &workflow(CHILD), at(0)) };
    family.store.tables().tasks.insert(other.id.clone(), other);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert_eq!(family.items().get(1), Item::Refused);
    assert!(family.parent().reason.unwrap().contains("this order did not start it"));
}

#[tokio::test]
async fn what_is_no_list_or_too_long_fails_the_step() {
    for (list, why) in [
        (json!("a"), "`each` is a string, but has to be a list".to_owned()),
        ((0..=MAX_ITEMS).collect(), format!("`each` has {} items, but the limit is {MAX_ITEMS}", MAX_ITEMS + 1)),
    ] {
        let mut family = family_of(PARENT, CHILD, list).await;
        family.after(30).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert!(family.parent().reason.unwrap().contains(&why), "{why}");
        assert!(family.phases().is_empty());
    }
}

#[tokio::test]
async fn a_batch_is_one_order() {
    let batches = PARENT.replace("${item.sku}", "${item.map(x, x.sku).join(',')}");
    let batches = batches.replace("at_once = 3", "at_once = 3\nbatch = 4");
    let mut family = family_of(&batches, CHILD, lines(10)).await;
    family.after(3).await;
    assert_eq!((family.parent().phase, family.phases().len()), (Phase::Processed, 3), "{:?}", family.parent().reason);
    let child = family.child_of(2, 0).unwrap();
    assert_eq!(family.store.order(&child).await.unwrap().unwrap().input["sku"], json!("s8,s9"));
}

// Whatever was wrong with it may be right by then.
#[tokio::test]
async fn a_refused_item_is_tried_again_by_a_resubmission_alone() {
    let mut family = family_of(&stopping().replace("0%", "50%"), CHILD, lines(2)).await;
    let other =
        Task { phase: Phase::Processed, ..Task::new(submission(&Family::id(1, 0).0, false), &workflow(CHILD), at(0)) };
    family.store.tables().tasks.insert(other.id.clone(), other.clone());
    family.answers = without(&[0]);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Error);
    assert_eq!([0, 1].map(|item| family.items().get(item)), [Item::Failed, Item::Refused]);
    family.store.tables().tasks.remove(&other.id);
    family.after(60).await;
    assert_eq!((family.items().get(1), family.child_of(1, 0)), (Item::Refused, None));
    family.answers = Box::new(good);
    family.resubmit().await;
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    assert_eq!((family.report()["done"].clone(), family.child_of(1, 0).unwrap().phase), (json!(2), Phase::Processed));
}
