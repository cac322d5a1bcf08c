//! Goal: an order has the labels that were submitted, each one leads to it, and an order without labels costs what it always
//! did. Method: submissions over HTTP and by message into embedded tables, which are read whole.

use crate::world::{ONE, World, call};
use serde_json::{Value, json};
use shared::order::Id;
use std::collections::BTreeMap;
use submit::queue;

async fn post(world: &World, key: &str, labels: Value) -> (i64, Value) {
    let body = json!({"workflow": "one", "input": {}, "labels": labels}).to_string();
    call(world, "POST", "/orders", key, &body).await
}

/// The items of the order table, as text.
async fn items(world: &World) -> Vec<String> {
    let items = world.items("orders").await.into_iter();
    items.map(|item| format!("{:?}", item.into_iter().collect::<BTreeMap<_, _>>())).collect()
}

// M4
#[tokio::test]
async fn an_order_has_the_labels_that_were_submitted() {
    let world = World::new(ONE).await;
    let (status, answer) = post(&world, "k", json!(["vip", "campaign-7"])).await;
    assert_eq!(status, 202, "{answer}");
    let id = Id(answer["order_id"].as_str().unwrap().to_owned());
    assert_eq!(world.task(&id).await.labels, ["campaign-7", "vip"]);
    let (_, shown) = call(&world, "GET", &format!("/orders/{id}"), "", "").await;
    assert_eq!(shown["labels"], json!(["campaign-7", "vip"]));
    let all = items(&world).await;
    assert_eq!(all.len(), 3, "the order and one item for each label: {all:?}");
    // The same in another sequence is the same submission; other labels are another one.
    assert_eq!(post(&world, "k", json!(["campaign-7", "vip"])).await.0, 202);
    for other in [json!([]), json!(["vip"]), json!(["vip", "campaign-8"])] {
        assert_eq!(post(&world, "k", other.clone()).await.1["code"], "idempotency_key_reused", "{other}");
    }
    assert_eq!(items(&world).await.len(), 3);
}

// M4: an order without labels is written as it was before there were labels.
#[tokio::test]
async fn an_order_without_labels_is_as_it_was() {
    let world = World::new(ONE).await;
    let id = world.accept(json!({})).await;
    let all = items(&world).await;
    assert!(all.len() == 1 && !all[0].contains("label"), "{all:?}");
    let task = serde_json::to_value(world.task(&id).await).unwrap();
    assert!(task.get("lb").is_none(), "{task}");
    // The hash of a submission that was stored by a version before labels.
    let hash = shared::order::canonical_hash(&json!(["one", {}, null, null, "normal"]));
    assert!(all[0].contains(&hash), "{all:?}");
}

// M4
#[tokio::test]
async fn labels_that_cannot_be_kept_are_refused_in_words() {
    let world = World::new(ONE).await;
    let long = "x".repeat(65);
    let nine: Vec<String> = (0..9).map(|n| format!("l{n}")).collect();
    for (labels, words) in [
        (json!(nine), "has 9 labels; the limit is 8"),
        (json!([long]), "has 65 bytes; the limit is 64"),
        (json!(["ü".repeat(33)]), "has 66 bytes"),
        (json!(["a", ""]), "must not be empty"),
        (json!(["a\u{7}"]), "must not contain control characters"),
        (json!([" a"]), "must not begin or end with white space"),
        (json!(["a", "b", "a"]), "label `a` occurs twice"),
        (json!("a"), "must be an array"),
        (json!([1]), "must be a string"),
    ] {
        let (status, answer) = post(&world, "k", labels).await;
        assert_eq!(status, 400, "{answer}");
        let text = answer.to_string();
        assert!(text.contains(words) && text.contains("labels"), "{words}: {text}");
    }
    assert!(items(&world).await.is_empty());
    assert_eq!(post(&world, "k", json!(nine[..8])).await.0, 202, "eight are enough");
}

// M4
#[tokio::test]
async fn an_order_by_message_may_have_labels() {
    let message = json!({"idempotency_key": "k", "workflow": "one", "input": {}, "labels": ["b", "a"]}).to_string();
    let (_, submission) = queue::parse(&message).unwrap();
    assert_eq!(submission.labels, ["a", "b"]);
    let world = World::new(ONE).await;
    let news = world.submit.accept_by_message("acme", "k", submission).await.unwrap();
    assert_eq!(world.task(&news.id).await.labels, ["a", "b"]);
}
