//! Goal: a label finds its orders and no others, page by page, and leaves with an order that is erased. Method: the routes over the
//! embedded endpoints.

use crate::common::{World, ids, sorted};
use serde_json::{Value, json};
use shared::message::Outcome;
use shared::order::Id;
use shared::task::Task;
use std::collections::BTreeSet;

async fn labelled(world: &World, key: &str, tenant: &str, labels: &[&str]) -> Id {
    let (order, task) = world.order(&world.workflow, key, tenant);
    let labels = labels.iter().map(|label| (*label).to_owned()).collect();
    world.operator.engine.create(&order, &Task { labels, ..task }).await.unwrap();
    world.later(1);
    order.id
}

async fn found(world: &World, query: &str) -> Vec<String> {
    ids(&world.get(&format!("/orders?{query}")).await["orders"])
}

// M4
#[tokio::test]
async fn a_label_finds_its_orders_and_no_others() {
    let world = World::new().await;
    let one = labelled(&world, "1", "acme", &["vip"]).await;
    let two = labelled(&world, "2", "globex", &["vip", "campaign-7"]).await;
    labelled(&world, "3", "acme", &[]).await;
    labelled(&world, "4", "acme", &["vip2", "007#vip"]).await;
    assert_eq!(found(&world, "label=vip").await, sorted([&one, &two]));
    assert_eq!(found(&world, "label=vip&tenant=acme").await, std::slice::from_ref(&one.0));
    assert_eq!(found(&world, "label=campaign-7").await, std::slice::from_ref(&two.0));
    assert_eq!(found(&world, "label=campaign").await, Vec::<String>::new());
    let row = world.get("/orders?label=campaign-7").await["orders"][0].clone();
    assert_eq!(row["labels"], json!(["vip", "campaign-7"]));
    // With a state the sparse index of what waits serves.
    world.wake(&one).await;
    world.reply(&one, "a", Outcome::Failed { error: "no".into() }).await;
    assert_eq!(found(&world, "label=vip&state=Error").await, std::slice::from_ref(&one.0));
    assert_eq!(found(&world, "label=vip2&state=Error").await, Vec::<String>::new());
    assert_eq!(found(&world, "label=vip&state=Pending").await, std::slice::from_ref(&two.0));
    let path = format!("/orders?label={}", "x".repeat(65));
    let (status, answer) = world.call("GET", &path, Value::Null).await;
    assert!(status == 400 && answer.to_string().contains("has 65 bytes; the limit is 64"), "{answer}");
}

// M4: months apart and over several partitions, each order is on exactly one page, the newest first.
#[tokio::test]
async fn pages_of_a_label_have_each_order_once() {
    let world = World::new().await;
    let mut all = BTreeSet::new();
    for n in 0..25 {
        let id = labelled(&world, &format!("k{n}"), "acme", if n % 5 == 4 { &["other"] } else { &["vip"] }).await;
        if n % 5 != 4 {
            all.insert(id.0);
        }
        world.later(5 * 24 * 3_600_000);
    }
    let (mut seen, mut last) = (BTreeSet::new(), None);
    for page in world.pages("label=vip&limit=3").await {
        for row in page["orders"].as_array().unwrap() {
            let at = row["created_at"].as_str().unwrap().to_owned();
            assert!(last.is_none_or(|last: String| at < last), "newest first");
            last = Some(at);
            assert!(seen.insert(row["order_id"].as_str().unwrap().to_owned()), "twice: {row}");
        }
    }
    assert_eq!(seen, all);
}

// M4, M5: a label may name a person.
#[tokio::test]
async fn labels_leave_with_what_is_erased() {
    for is_gone in [false, true] {
        let world = World::new().await;
        let id = labelled(&world, "k", "acme", &["jane@example.org", "b"]).await;
        let other = labelled(&world, "l", "acme", &["jane@example.org"]).await;
        world.wake(&id).await;
        world.done(&id, "a", json!(1)).await;
        world.done(&id, "b", json!(1)).await;
        if is_gone {
            world.expire(&id).await;
        }
        let body = json!({"by": "ann", "reason": "request 17"});
        let (status, answer) = world.post(&format!("/orders/{id}/erasure"), body).await;
        assert_eq!(status, 200, "{answer}");
        let items = world.clients.dynamodb.scan().table_name(&world.config.orders_table).send().await.unwrap();
        let left: Vec<String> = items.items().iter().map(|item| format!("{item:?}")).collect();
        let of_person: Vec<&String> = left.iter().filter(|text| text.contains("jane@")).collect();
        assert!(of_person.iter().all(|text| text.contains(&other.0)) && of_person.len() == 2, "{of_person:?}");
        assert_eq!(left.len(), 3, "the order, and the other one with its label: {left:?}");
        assert_eq!(found(&world, "label=jane@example.org").await, [other.0]);
    }
}
