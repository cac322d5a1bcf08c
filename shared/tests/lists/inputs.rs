//! An item that failed gets another input.

use super::{CHILD, family_of, give, good, lines, stopping};
use crate::support::*;
use serde_json::json;
use shared::decision::{Act, What};
use shared::items::Item;
use shared::message::{Effect, Request};
use shared::operator;
use shared::ports::StateStore;
use shared::task::{Phase, Task};
use std::sync::atomic::Ordering;

// An order that undid itself is made anew, one that stopped is undone first, and an item that never had one gets its first.
#[tokio::test]
async fn a_failed_item_gets_another_input() {
    for (child, item, made) in [(CHILD.to_owned(), 1, 1), (on_failure_error(CHILD), 1, 1), (CHILD.to_owned(), 0, 0)] {
        let (mut unfit, bad) = (lines(3), item == 1);
        if !bad {
            unfit[0]["sku"] = json!(5);
        }
        let mut family = family_of(&stopping(), &child, unfit).await;
        family.answers =
            Box::new(move |request| if bad && request.input["sku"] == "s1" { failed() } else { good(request) });
        family.after(30).await;
        assert_eq!(family.parent().phase, Phase::Error, "{:?}", family.parent().reason);
        let input = json!({"sku": "other", "n": 70});
        for (wrong, why) in [
            (give(&[(2, input.clone())]), "no such item of the list has failed"),
            (give(&[(99, input.clone())]), "no such item of the list has failed"),
            (give(&[(item, json!({"sku": 5}))]), "is refused by the `[input]`"),
            (give(&[(item, json!(["a"]))]), "is refused by the `[input]`"),
            (give(&[(item, json!({"sku": "x".repeat(17_000)}))]), "is refused by the `[input]`"),
        ] {
            match family.act(wrong).await {
                operator::Outcome::NotAllowed { why: found } => assert!(found.to_string().contains(why), "{found}"),
                other => panic!("{other:?}"),
            }
        }
        let seen = family.parent().version;
        let act = |seen| Act { what: give(&[(item, input.clone())]), by: "ann".into(), reason: "typo".into(), seen };
        let done = family.engine.act(vec![(parent(), act(Some(seen)))]).await.remove(0).unwrap();
        assert!(matches!(done, operator::Outcome::Applied(_)), "{done:?}");
        let again = family.engine.act(vec![(parent(), act(Some(seen)))]).await.remove(0).unwrap();
        assert!(matches!(again, operator::Outcome::Repeated(_)), "{again:?}");
        family.take();
        family.answers =
            Box::new(move |request| if bad && request.input["sku"] == "s1" { failed() } else { good(request) });
        // The instance that knows it dies.
        family.restart();
        family.after(90).await;
        let own = family.parent();
        assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
        let child = family.child_of(item, made).unwrap();
        assert_eq!(family.store.order(&child).await.unwrap().unwrap().input, input);
        assert_eq!(family.report()["items"][item], json!({"box": 70}));
        if made == 1 {
            assert_eq!(family.child_of(item, 0).unwrap().phase, Phase::Undone);
        }
        let said = own.log.iter().find_map(|entry| entry.4.as_ref().filter(|text| text.contains("another input")));
        assert!(
            said.unwrap().contains(&format!("ann: typo (with another input for item {item} of `lines`)")),
            "{said:?}"
        );
        // An undo of the parent reaches the new order.
        family.act(What::Undo).await;
        family.after(60).await;
        assert_eq!((family.parent().phase, family.child_of(item, made).unwrap().phase), (Phase::Undone, Phase::Undone));
    }
}

#[tokio::test]
async fn what_cannot_be_undone_keeps_its_input() {
    let child = format!(
        "{}\n[[step]]\nname = \"final\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\nirreversible = true\nwith = {{ n = \"${{input.n}}\" }}\nretry = {{ max = 1, backoff = [] }}\n",
        on_failure_error(CHILD)
    );
    let mut family = family_of(&stopping(), &child, lines(3)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(1) if request.step == "final" => failed(),
        _ => good(request),
    });
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Error);
    let outcome = family.act(give(&[(1, json!({"sku": "y", "n": 8}))])).await;
    let operator::Outcome::NotAllowed { why } = outcome else { panic!("{outcome:?}") };
    assert!(why.to_string().contains("has done what cannot be undone"), "{why}");
}

// Whatever is lost, an item whose input was edited ends with one order, of the new input, or with nothing.
#[tokio::test]
async fn whatever_is_lost_an_edited_item_has_the_effects_of_one_input() {
    for seed in seeds(60) {
        let mut dice = Dice(seed);
        let child = if seed % 2 == 0 { CHILD.to_owned() } else { on_failure_error(CHILD) };
        // What was done before the failure has to be undone.
        let child = format!(
            "{child}\n[[step]]\nname = \"send\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\nretry = {{ max = 1, backoff = [] }}\nundo = {{ agent = \"x\" }}\n"
        );
        let mut family = family_of(&stopping(), &child, lines(4)).await;
        let good = |request: &Request| done(json!({"box": request.input["sku"]}));
        family.answers = Box::new(move |request| match request.input["sku"].as_str() {
            Some("s1" | "s2") if request.step == "send" => failed(),
            _ => good(request),
        });
        for round in 0..80 {
            if family.parent().phase == Phase::Error {
                let wrong: Vec<usize> = family.items().all(Item::has_failed).collect();
                let inputs: Vec<_> = wrong.iter().map(|&n| (n, json!({"sku": format!("new{n}"), "n": n}))).collect();
                family.act(give(&inputs)).await;
            }
            if round == 60 && dice.below(3) == 0 {
                family.act(What::Undo).await;
            }
            family.take();
            // A message is lost, and the instance with what it knew.
            if dice.below(3) == 0 {
                let place = dice.below(8);
                if family.open.get(place).is_some_and(|(_, effect)| matches!(effect, Effect::Wake(..))) {
                    family.open.remove(place);
                }
                family.restart();
            }
            family.store.creates_none.store(dice.below(4) == 0, Ordering::Relaxed);
            family.after(1 + dice.below(20) as i64).await;
        }
        family.store.creates_none.store(false, Ordering::Relaxed);
        family.after(1900).await;
        let own = family.parent();
        assert!(matches!(own.phase, Phase::Processed | Phase::Undone), "seed {seed}: {:?} {:?}", own.phase, own.reason);
        for item in 0..4 {
            let orders: Vec<Task> = (0..3).filter_map(|made| family.child_of(item, made)).collect();
            let standing: Vec<&Task> = orders.iter().filter(|task| task.phase != Phase::Undone).collect();
            assert_eq!(standing.len(), usize::from(own.phase == Phase::Processed), "seed {seed}, item {item}");
            for task in standing {
                let sku = family.store.order(task).await.unwrap().unwrap().input["sku"].clone();
                let wanted = if item == 1 || item == 2 { format!("new{item}") } else { format!("s{item}") };
                assert_eq!(sku, json!(wanted), "seed {seed}, item {item}");
            }
        }
    }
}
