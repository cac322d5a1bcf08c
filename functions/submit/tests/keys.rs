//! Goal: one idempotency key makes one order forever, even after DynamoDB has removed the order's record. Method: the
//! real store over embedded tables; time to live is imitated by deleting the items that have one.

use crate::world::{Item, ONE, World};
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::json;
use shared::decision::{Act, What};
use shared::erase::Part;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::ProcessState;
use shared::time::SignedDuration;
use shared::workflow::Hash;
use submit::problem::Problem;

fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// A world that keeps the records of ended orders for so long; 0 is forever.
async fn keeping(retention: i64) -> World {
    let mut world = World::new(ONE).await;
    world.restart(|config| config.retention = days(retention));
    world
}

async fn accept(world: &World, n: u32) -> Result<Id, Problem> {
    world.order("default", "key-1", json!({"workflow": "one", "input": {"n": n}})).await
}

/// Brings the order to Processed.
async fn process(world: &World, id: &Id) {
    world.wake(id).await;
    world.done(id, "a", json!(null)).await;
    assert_eq!(world.task(id).await.process_state(), ProcessState::Processed);
}

/// [`keeping`], with an order that is Processed.
async fn processed(retention: i64) -> (World, Id) {
    let world = keeping(retention).await;
    let id = accept(&world, 1).await.unwrap();
    process(&world, &id).await;
    (world, id)
}

/// The item of the order's record.
async fn record(world: &World, id: &Id) -> Item {
    world.items("state").await.into_iter().find(|item| item["pk"].as_s() == Ok(&id.0)).unwrap()
}

async fn put(world: &World, item: Item) {
    world.clients.dynamodb.put_item().table_name("state").set_item(Some(item)).send().await.unwrap();
}

/// When the item is removed, in seconds.
fn ttl(item: &Item) -> Option<i64> {
    item.get("ttl").map(|ttl| ttl.as_n().unwrap().parse().unwrap())
}

/// Removes items with a time to live, as DynamoDB does, and returns their number.
async fn expire(world: &World) -> usize {
    let mut gone = 0;
    for item in world.items("state").await.into_iter().filter(|item| ttl(item).is_some()) {
        let delete = world.clients.dynamodb.delete_item().table_name("state").key("pk", item["pk"].clone());
        delete.send().await.unwrap();
        gone += 1;
    }
    gone
}

// The record is removed, but the key stays: there is no second order under the first one's id, whose keys the services
// already know.
#[tokio::test]
async fn a_key_outlives_the_record_of_its_order() {
    let world = keeping(90).await;
    let id = accept(&world, 1).await.unwrap();
    assert_eq!(accept(&world, 1).await.unwrap(), id, "while it is open");
    process(&world, &id).await;
    assert_eq!(accept(&world, 1).await.unwrap(), id, "once it has ended");
    assert_eq!(expire(&world).await, 1);
    assert_eq!(world.submit.engine.store.load(&id).await.unwrap(), None);
    for n in [1, 2] {
        let problem = accept(&world, n).await.unwrap_err();
        assert_eq!((problem.status, problem.code), (409, "idempotency_key_spent"));
        let detail = problem.detail;
        assert!(detail.contains(&id.0) && detail.contains("new key"), "{detail}");
    }
    assert_eq!(world.items("orders").await.len(), 1, "one order");
}

// M5: docs/limits.md promises both numbers.
#[tokio::test]
async fn the_key_of_an_order_protects_forever_and_its_answer_for_the_retention() {
    let (mut world, id) = processed(90).await;
    let ended = world.task(&id).await.updated_at;
    let expires = ttl(&record(&world, &id).await);
    assert_eq!(expires, Some((ended + days(90)).as_second()), "its answer is kept that long");
    let items = world.items("state").await;
    assert_eq!(items.iter().filter(|item| ttl(item).is_some()).count(), 1, "nothing else expires");
    let used = items.iter().find(|item| item["pk"].as_s() == Ok(&format!("used#{id}"))).unwrap();
    assert_eq!(ttl(used), None);
    assert_eq!(accept(&world, 1).await.unwrap(), id);
    assert_eq!(expire(&world).await, 1);
    assert_eq!(accept(&world, 1).await.unwrap_err().code, "idempotency_key_spent");
    assert_eq!(expire(&world).await, 0, "what protects it now never expires");
    world.restart(|config| config.retention = days(1));
    assert_eq!(accept(&world, 1).await.unwrap_err().code, "idempotency_key_spent");
}

// M5: an erased order is not done a second time, and nothing is left that would tell whether it is the same submission.
#[tokio::test]
async fn the_key_of_an_erased_order_stays_used() {
    let (world, id) = processed(90).await;
    let store = &world.store;
    let task = store.load(&id).await.unwrap().unwrap();
    let kept = store.kept(&id, Some(&task)).await.unwrap();
    let next = world.submit.engine.erased(&task, Part::Last, "ann", "r").unwrap().unwrap();
    assert!(store.erase(&next, &task, kept.as_ref(), None).await.unwrap());
    for n in [1, 2] {
        let problem = accept(&world, n).await.unwrap_err();
        assert_eq!((problem.status, problem.code), (409, "idempotency_key_spent"));
        let detail = problem.detail;
        assert!(detail.contains(&id.0) && detail.contains("erased"), "{detail}");
    }
    assert_eq!(expire(&world).await, 1, "its record expires as before");
    assert_eq!(accept(&world, 1).await.unwrap_err().code, "idempotency_key_spent");
}

// Time to live may be days late: until then the order is found as before.
#[tokio::test]
async fn a_record_whose_time_is_over_and_that_is_still_there_is_found() {
    let (mut world, id) = processed(90).await;
    let mut item = record(&world, &id).await;
    assert!(item.insert("ttl".into(), AttributeValue::N("1".into())).is_some());
    put(&world, item).await;
    world.restart(|_| {});
    assert_eq!(accept(&world, 1).await.unwrap(), id);
    assert_eq!(accept(&world, 2).await.unwrap_err().code, "idempotency_key_reused");
}

// After the retention is set back to 0, nothing more is removed; keys of removed orders stay used, also at new
// instances.
#[tokio::test]
async fn a_retention_that_is_taken_back_frees_no_key() {
    let (mut world, _) = processed(90).await;
    assert_eq!(expire(&world).await, 1);
    world.restart(|config| config.retention = days(0));
    for n in [1, 2] {
        assert_eq!(accept(&world, n).await.unwrap_err().code, "idempotency_key_spent");
    }
    assert_eq!(world.items("orders").await.len(), 1, "one order");
    // Without a retention no new order expires.
    let second = world.order("default", "key-2", json!({"workflow": "one", "input": {}})).await.unwrap();
    process(&world, &second).await;
    assert_eq!(expire(&world).await, 0);
}

// The order's item is missing, as after a restore of one table alone, so it is unknown whether the submission is the
// same.
#[tokio::test]
async fn a_record_without_its_order_is_no_other_order() {
    let world = keeping(0).await;
    let id = accept(&world, 1).await.unwrap();
    let item = world.items("orders").await.remove(0);
    let delete = world.clients.dynamodb.delete_item().table_name("orders");
    delete.key("bucket", item["bucket"].clone()).key("sort", item["sort"].clone()).send().await.unwrap();
    assert_eq!(accept(&world, 1).await.unwrap_err().code, "unreadable", "{id}");
    assert!(world.items("orders").await.is_empty());
}

// Without a retention nothing is removed, nothing more is written, and the key finds its order forever.
#[tokio::test]
async fn without_a_retention_the_record_itself_keeps_the_key() {
    let (world, id) = processed(0).await;
    assert_eq!(expire(&world).await, 0);
    assert_eq!(accept(&world, 1).await.unwrap(), id);
    assert_eq!(accept(&world, 2).await.unwrap_err().code, "idempotency_key_reused");
    assert!(world.items("state").await.iter().all(|item| !item["pk"].as_s().unwrap().starts_with("used#")));
}

// `ORDER_BUCKETS` may be raised while orders are open: orders and inputs are found in their old partitions.
#[tokio::test]
async fn more_partitions_of_the_order_table_lose_no_order() {
    let mut world = keeping(0).await;
    let id = accept(&world, 1).await.unwrap();
    let task = world.task(&id).await;
    for buckets in [1, 5, 64, 256] {
        world.restart(|config| config.order_buckets = buckets);
        let order = world.submit.engine.store.order(&task).await.unwrap();
        assert_eq!(order.map(|order| order.input), Some(json!({"n": 1})), "{buckets}");
        assert_eq!(accept(&world, 1).await, Ok(id.clone()), "{buckets}");
    }
}

/// Goes on with another workflow, whose orders are kept for 30 days.
fn with_short(world: &mut World, deployment: i64) {
    world.restart(|config| config.retention = days(deployment));
    world.deploy("short", &ONE.replace("name = \"one\"", "name = \"short\"\nretention = \"30d\""));
}

async fn accept_short(world: &World) -> Id {
    world.order("default", "key-0", json!({"workflow": "short", "input": {}})).await.unwrap()
}

// M5: the file wins over the deployment, in both directions, and only for its own orders. Their keys stay used.
#[tokio::test]
async fn a_workflow_says_how_long_its_orders_are_kept() {
    for deployment in [0, 1, 90] {
        let mut world = keeping(0).await;
        with_short(&mut world, deployment);
        let id = accept_short(&world).await;
        process(&world, &id).await;
        let other = accept(&world, 1).await.unwrap();
        process(&world, &other).await;
        let ended = world.task(&id).await.updated_at;
        assert_eq!(ttl(&record(&world, &id).await), Some((ended + days(30)).as_second()), "{deployment}");
        assert_eq!(ttl(&record(&world, &other).await).is_some(), deployment != 0, "{deployment}");
        expire(&world).await;
        // The key is used again, for an order of a workflow that says nothing.
        let again = world.order("default", "key-0", json!({"workflow": "one", "input": {}})).await;
        assert_eq!(again.unwrap_err().code, "idempotency_key_spent", "{deployment}");
    }
}

#[tokio::test]
async fn an_instance_learns_of_the_first_retention_of_a_workflow() {
    let mut world = keeping(0).await;
    let store = world.submit.engine.store.clone();
    let none = world.task(&accept(&world, 1).await.unwrap()).await;
    assert!(!none.expires, "nothing is ever removed");
    with_short(&mut world, 0);
    accept_short(&world).await;
    let later = |minutes: i64| world.submit.engine.now() + SignedDuration::from_mins(minutes);
    assert!(!store.expires(&none, later(30)).await.unwrap(), "as it learnt before");
    assert!(store.expires(&none, later(61)).await.unwrap());
}

// Only a record whose key is kept separately expires: the parameter may be set, and set back, while orders are open.
#[tokio::test]
async fn a_retention_that_is_set_later_spares_orders_from_before() {
    let mut world = keeping(0).await;
    let id = accept(&world, 1).await.unwrap();
    world.restart(|config| config.retention = days(1));
    process(&world, &id).await;
    assert_eq!(expire(&world).await, 0);
    assert_eq!(accept(&world, 1).await.unwrap(), id);
}

// After a rollback, an older version does not know the mark for this, and drops it with its next save.
#[tokio::test]
async fn a_mark_that_an_older_version_dropped_costs_no_key() {
    let mut world = keeping(90).await;
    let id = accept(&world, 1).await.unwrap();
    let mut item = record(&world, &id).await;
    item.insert("task".into(), AttributeValue::S(item["task"].as_s().unwrap().replace("\"xp\":true,", "")));
    put(&world, item.clone()).await;
    // This version again: without the mark the record stays.
    world.restart(|_| {});
    process(&world, &id).await;
    assert_eq!(expire(&world).await, 0);
    assert_eq!(accept(&world, 1).await.unwrap(), id);
    // The older version let the record expire: the key stays used all the same.
    item.insert("ttl".into(), AttributeValue::N("1".into()));
    put(&world, item).await;
    assert_eq!(expire(&world).await, 1);
    assert_eq!(accept(&world, 1).await.unwrap_err().code, "idempotency_key_spent");
}

// K6: outputs beside the record go with it, and stay while an order is open, also one that is opened again.
#[tokio::test]
async fn long_outputs_are_removed_with_their_record() {
    let world = keeping(90).await;
    let id = accept(&world, 1).await.unwrap();
    let output = json!("x".repeat(5000));
    let ttls = async || {
        let mut items = world.items("state").await;
        items.retain(|item| item["pk"].as_s().is_ok_and(|pk| pk == &id.0 || pk.starts_with("output#")));
        assert_eq!(items.len(), 2);
        items.iter().map(ttl).collect::<Vec<_>>()
    };
    world.wake(&id).await;
    world.done(&id, "a", output.clone()).await;
    let ended = ttls().await;
    assert!(ended[0].is_some() && ended[0] == ended[1], "{ended:?}");
    // An instance that remembers the order as it was decides the last reply once more: the expiry stays.
    let hash = Hash::of(output.to_string().as_bytes());
    world.submit.engine.store.put_output(&id, &hash, &output.to_string()).await.unwrap();
    assert_eq!(ttls().await, ended);
    let as_ended = world.items("state").await;
    let undo = Act { what: What::Undo, by: "ann".into(), reason: "r".into(), seen: None };
    world.submit.engine.act(vec![(id.clone(), undo)]).await.remove(0).unwrap();
    assert_eq!(ttls().await, [None, None], "the undo may need it");
    // The same for a record that a person mends: it stays, and so do its outputs.
    for item in as_ended {
        put(&world, item).await;
    }
    assert_eq!(ttls().await, ended);
    let store = &world.store;
    let raw = store.raw(&id).await.unwrap().unwrap();
    let mut mended = raw.task().unwrap();
    (mended.version, mended.expires) = (mended.version + 1, false);
    assert!(store.replace_raw(&mended, &raw).await.unwrap());
    assert_eq!(ttls().await, [None, None]);
    let task = world.task(&id).await;
    let hash = task.steps[0].beside.clone().unwrap().hash;
    let read = world.submit.engine.store.outputs(&id, std::slice::from_ref(&hash)).await.remove(0);
    assert_eq!(read.unwrap(), Some(output.to_string()));
    // A damaged one is refused.
    let text = |text: String| AttributeValue::S(text);
    let damaged = [("pk".into(), text(format!("output#{id}#{hash}"))), ("output".into(), text("1".into()))];
    put(&world, damaged.into()).await;
    let read = world.submit.engine.store.outputs(&id, &[hash]).await.remove(0);
    assert_eq!(read.unwrap(), None);
}
