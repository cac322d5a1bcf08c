//! A pause reaches the orders of a list, and so does its end.

use super::{CHILD, PARENT, family_of, give, good, lines, silent, stopping, without};
use crate::support::*;
use serde_json::json;
use shared::decision::What;
use shared::items::Item;
use shared::task::Phase;
use std::sync::Arc;
use std::sync::atomic::Ordering;

#[tokio::test]
async fn a_pause_goes_down_and_ends_with_the_parents() {
    let mut family = family_of(PARENT, CHILD, lines(9)).await;
    family.answers = Box::new(silent);
    family.play().await;
    family.act(What::Pause).await;
    let paused = |family: &Family| (0..3).filter(|item| family.child_of(*item, 0).unwrap().paused_at.is_some()).count();
    assert_eq!(paused(&family), 3);
    family.after(120).await;
    assert_eq!((paused(&family), family.phases().len()), (3, 3));
    family.answers = Box::new(good);
    family.act(What::Resume).await;
    assert_eq!(paused(&family), 0);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent());
}

// The instance that makes an order stands still for an hour, and the parent is paused meanwhile.
#[tokio::test]
async fn an_order_that_is_made_late_is_paused_with_its_parent() {
    let mut family = family_of(PARENT, CHILD, lines(1)).await;
    let (store, now) = (Arc::clone(&family.store), Arc::clone(&family.now));
    let stall = move || {
        now.fetch_add(3_600_000, Ordering::Relaxed);
        let mut tables = store.tables();
        let own = tables.tasks.get_mut(&parent()).unwrap();
        assert_eq!(own.steps[1].kids.as_ref().unwrap().items.as_ref().unwrap().get(0), Item::Open);
        (own.paused_at, own.version) = (Some(at(3_600)), own.version + 1);
    };
    *family.store.stall.lock().unwrap() = Some(Box::new(stall));
    family.play().await;
    let child = family.child_of(0, 0).unwrap();
    assert!(child.paused_at.is_some() && child.parent.unwrap().paused);
    assert_eq!(family.count("do pick"), 0);
}

/// The pause of the parent has ended, and no message said so to its children.
fn unpaused_alone(family: &mut Family) {
    let due = family.engine.now();
    family.change(&parent(), |own| (own.paused_at, own.due, own.version) = (None, Some(due), own.version + 1));
}

// The message that ends a pause may be lost. What a person has paused stays so.
#[tokio::test]
async fn a_look_resumes_what_the_parents_pause_left() {
    for undo in [false, true] {
        let mut family = family_of(PARENT, CHILD, lines(2)).await;
        family.answers = Box::new(silent);
        family.play().await;
        if undo {
            family.act(What::Cancel).await;
            family.play().await;
        }
        family.act(What::Pause).await;
        for what in [What::Resume, What::Pause] {
            drop(family.engine.act(vec![(Family::id(1, 0), by_ann(what))]).await);
        }
        let paused = |family: &Family| [0, 1].map(|item| family.child_of(item, 0).unwrap().paused_at.is_some());
        family.answers = Box::new(good);
        unpaused_alone(&mut family);
        assert_eq!(paused(&family), [true, true]);
        family.after(120).await;
        assert_eq!(paused(&family), [false, true], "{undo}");
        let own = family.parent();
        let (phase, item) = if undo { (Phase::Undoing, Item::Undone) } else { (Phase::Forward, Item::Done) };
        assert_eq!((own.phase, family.items().get(0)), (phase, item));
        let waits = format!("waits for order {}, which is paused", Family::id(1, 0));
        assert_eq!(own.steps[1].error, undo.then_some(waits));
    }
}

// An order whose item has another input is undone first, and a pause may come in between.
#[tokio::test]
async fn a_look_resumes_an_order_that_another_is_to_replace() {
    let mut family = family_of(&stopping(), &on_failure_error(CHILD), lines(1)).await;
    family.answers = without(&[0]);
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Error);
    (family.answers, family.undoes_nothing) = (Box::new(good), true);
    family.act(give(&[(0, json!({"sku": "other", "n": 7}))])).await;
    family.after(10).await;
    assert_eq!(family.child_of(0, 0).unwrap().phase, Phase::Undoing);
    family.act(What::Pause).await;
    assert!(family.child_of(0, 0).unwrap().paused_at.is_some());
    family.undoes_nothing = false;
    unpaused_alone(&mut family);
    family.after(200).await;
    assert_eq!((family.parent().phase, family.phases()[&(0, 0)]), (Phase::Processed, Phase::Undone));
}
