//! Goal: of an order that is erased no table has anything that somebody wrote into it, and nothing that is still needed is erased. Method:
//! the route over the embedded endpoints; both tables are read whole.

use crate::common::{World, detail, parsed, token};
use serde_json::{Value, json};
use shared::decision::Event;
use shared::erase::Part;
use shared::message::Outcome;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{Phase, ProcessState, Task};
use shared::time::SignedDuration;
use shared::workflow::{Workflow, child};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stepwarden_aws::item;
use stepwarden_embedded::{Call, Fault};
use tokio::sync::Notify;
use tokio::time::timeout;

/// What must be in no table afterwards.
const PRIVATE: &str = "jane@example.org";

const PARENT: &str = r#"
name = "parent"
output = "${outputs.line}"
[[step]]
name = "line"
workflow = "child"
with = { to = "${input.to}" }
"#;

const CHILD: &str = r#"
name = "child"
output = { box = "${outputs.pick}" }
[[step]]
name = "pick"
agent = "x"
timeout = "10s"
undo = { agent = "x" }
"#;

/// Submits an order with private data in every field that a submitter fills.
async fn submit(world: &World, workflow: &Workflow, key: &str, pins: &[&Workflow]) -> Id {
    let (mut order, mut task) = world.order(workflow, &format!("{key} of {PRIVATE}"), "acme");
    order.input = json!({ "to": PRIVATE });
    order.hash = shared::order::canonical_hash(&order.input);
    for one in pins {
        world.operator.engine.use_workflow(one).await.unwrap();
        task.pins.insert(one.name.clone(), one.hash());
    }
    world.operator.engine.use_workflow(workflow).await.unwrap();
    world.operator.engine.create(&order, &task).await.unwrap();
    order.id
}

/// An order of the sample workflow that is Processed; the output of `a` is beside its record.
async fn processed(world: &World, key: &str) -> Id {
    let id = submit(world, &world.workflow, key, &[]).await;
    world.wake(&id).await;
    world.done(&id, "a", json!({ "to": PRIVATE.repeat(400) })).await;
    world.done(&id, "b", json!({ "to": PRIVATE })).await;
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
    id
}

/// A parent and its child, both Processed.
async fn family(world: &World, key: &str) -> (Id, Id) {
    let [parent, child] = [PARENT, CHILD].map(parsed);
    let id = submit(world, &parent, key, &[&child]).await;
    world.wake(&id).await;
    let below = child::id("acme", &id, "line", 0);
    world.wake(&below).await;
    world.done(&below, "pick", json!({ "to": PRIVATE })).await;
    world.event(&id, Event::Hint { seen: 0, part: 0, step: None }).await;
    for one in [&id, &below] {
        assert_eq!(world.task(one).await.process_state(), ProcessState::Processed);
    }
    (id, below)
}

async fn erase(world: &World, id: &Id, by: &str) -> (i64, Value) {
    world.post(&format!("/orders/{id}/erasure"), json!({"by": by, "reason": "request 17"})).await
}

/// What the tables have of private data, an item each.
async fn found(world: &World) -> Vec<String> {
    let mut found = Vec::new();
    for table in [&world.config.orders_table, &world.config.state_table] {
        let items = world.clients.dynamodb.scan().table_name(table).send().await.unwrap().items.unwrap_or_default();
        let all = items.into_iter().map(|item| format!("{:?}", item.into_iter().collect::<BTreeMap<_, _>>()));
        found.extend(all.filter(|text| text.contains(PRIVATE) || text.contains("output#")));
    }
    found
}

// M5
#[tokio::test]
async fn nothing_of_an_erased_order_is_left_in_a_table() {
    let world = World::new().await;
    let id = processed(&world, "k").await;
    assert_eq!(found(&world).await.len(), 3, "its order, its record and an output beside it");
    let before = world.task(&id).await;
    world.later(60_000);
    let answer = erase(&world, &id, "ann").await;
    let expected = json!({"order_id": id, "erased_at": world.now().to_string(), "detail": "ann: request 17"});
    assert_eq!(answer, (200, expected.clone()));
    assert_eq!(found(&world).await, Vec::<String>::new());
    let after = world.task(&id).await;
    assert_eq!((after.version, after.phase, after.created_at), (before.version + 1, before.phase, before.created_at));

    // Again, later and by somebody else: the same answer, and no write.
    world.later(60_000);
    assert_eq!(erase(&world, &id, "bob").await, (200, expected));
    assert_eq!(world.task(&id).await, after);
    let shown = world.get(&format!("/details/{id}")).await;
    assert_eq!((&shown["input"], &shown["order"]["reference"]), (&Value::Null, &Value::Null));
    assert_eq!(shown["order"]["erased_at"], answer.1["erased_at"]);
    let last = shown["history"].as_array().unwrap().last().unwrap();
    assert_eq!((&last["event"], &last["detail"]), (&json!("erased"), &json!("ann: request 17")));
    let undo = world.act(&id, "undo", Value::Null).await;
    assert_eq!(
        detail(&undo),
        (409, "the order's data was erased, so nothing of it can be undone; undo it by hand at the services")
    );
    // An instance that still knows its input remembers it no longer.
    let order = world.operator.engine.store.order(&after).await.unwrap().unwrap();
    assert_eq!((order.input, &*order.hash, &*order.idempotency_key), (Value::Null, "", ""));
}

#[tokio::test]
async fn what_is_still_needed_is_not_erased_and_the_answer_says_why() {
    let world = World::new().await;
    let open = submit(&world, &world.workflow, "open", &[]).await;
    let stopped = submit(&world, &world.workflow, "stopped", &[]).await;
    world.wake(&stopped).await;
    world.reply(&stopped, "a", Outcome::Failed { error: "no such card".into() }).await;
    let undoing = submit(&world, &world.workflow, "undoing", &[]).await;
    world.wake(&undoing).await;
    world.act(&undoing, "cancel", Value::Null).await;
    let (parent, below) = family(&world, "family").await;
    for (id, words) in [
        (&open, "the order has not ended; wait for its end, or cancel it"),
        (&stopped, "the order is in Error and waits for a person; resubmit, skip, mark done or undo it first"),
        (&undoing, "the order is being undone, which needs its data; wait until it is undone"),
        (
            &below,
            &*format!(
                "the order belongs to order {parent}, which started it; erase the order at the top, and this one is \
                 erased with it"
            ),
        ),
    ] {
        assert_eq!(detail(&erase(&world, id, "ann").await), (409, words));
    }
    // Its child failed, and its parent has survived that.
    let mut task = world.task(&below).await;
    task.phase = Phase::Error;
    let item = item::from_task(&task, SignedDuration::ZERO).unwrap();
    let put = world.clients.dynamodb.put_item().table_name(&world.config.state_table).set_item(Some(item));
    put.send().await.unwrap();
    let all = found(&world).await;
    let answer = erase(&world, &parent, "ann").await;
    let (status, text) = detail(&answer);
    assert!(
        status == 409 && text.starts_with(&format!("order {below}, which it started: the order is in Error")),
        "{text}"
    );
    assert!(found(&world).await == all, "nothing was erased");

    for id in ["x", "ord_00000000000000000000000000"] {
        assert_eq!(world.post(&format!("/orders/{id}/erasure"), json!({"by": "ann", "reason": "r"})).await.0, 404);
    }
    for body in [json!({"by": "ann"}), json!({"reason": "r"}), json!({"by": "ann", "reason": "r", "x": 1}), json!([])] {
        assert_eq!(world.post(&format!("/orders/{open}/erasure"), body).await.0, 400);
    }
    assert_eq!(world.call("GET", &format!("/orders/{open}/erasure"), Value::Null).await.0, 405);
    // Operators may act on orders. To erase them takes a right of another kind.
    let path = format!("/orders/{open}/erasure");
    let (status, refused) =
        world.call_as(token("ann", "stepwarden/operator"), "POST", &path, json!({"reason": "r"})).await;
    assert_eq!(status, 403);
    assert!(refused["detail"].as_str().unwrap().contains("stepwarden/erase"), "{refused}");
}

#[tokio::test]
async fn the_orders_that_an_order_started_are_erased_with_it() {
    let world = World::new().await;
    let (parent, below) = family(&world, "k").await;
    assert_eq!(found(&world).await.len(), 4);
    assert_eq!(erase(&world, &parent, "ann").await.0, 200);
    assert_eq!(found(&world).await, Vec::<String>::new());
    let log = |task: &Task| task.log.iter().filter_map(|entry| entry.4.clone()).collect::<Vec<_>>();
    assert_eq!(log(&world.task(&parent).await), ["ann: request 17", "ann: request 17"], "begun and done");
    assert_eq!(log(&world.task(&below).await), ["ann: request 17"]);
}

// The process dies after the first write. The order does not say that it is erased, nothing can open it again, and the repeated
// request does the rest.
#[tokio::test]
async fn an_erasure_that_was_cut_short_is_finished_by_the_next_request() {
    let world = World::new().await;
    let (parent, below) = family(&world, "k").await;
    let store = &world.operator.engine.store;
    let task = world.task(&parent).await;
    let kept = store.kept(&parent, Some(&task)).await.unwrap();
    let next = world.operator.engine.erased(&task, Part::First, "ann", "request 17").unwrap().unwrap();
    assert!(store.erase(&next, &task, kept.as_ref(), None).await.unwrap());
    assert!(!store.erase(&next, &task, kept.as_ref(), None).await.unwrap(), "the record has changed since");
    let shown = world.get(&format!("/details/{parent}")).await["order"].clone();
    assert_eq!(shown.get("erased_at"), None);
    assert_eq!(world.act(&parent, "undo", Value::Null).await.0, 409);
    assert_eq!(found(&world).await.len(), 2, "of the child");
    let (status, answer) = erase(&world, &parent, "bob").await;
    assert_eq!((status, &answer["detail"]), (200, &json!("bob: request 17")));
    assert_eq!(found(&world).await, Vec::<String>::new());
    assert!(world.task(&below).await.erased().is_some());
}

// The order is run again between the list of what it started and the first write. Nothing below it is erased by that list.
#[tokio::test(start_paused = true)]
async fn an_order_that_is_run_again_meanwhile_is_not_erased() {
    let world = World::new().await;
    let (parent, _) = family(&world, "k").await;
    let (begins, is_over) = (Arc::new(Notify::new()), Arc::new(AtomicBool::new(false)));
    let (reached, waits) = (Arc::clone(&begins), Arc::clone(&is_over));
    world.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
        let is_early = call.operation == "TransactWriteItems" && !waits.load(Ordering::Relaxed);
        is_early.then(|| {
            reached.notify_one();
            Fault::Throttle
        })
    })));
    let again = async {
        begins.notified().await;
        let answer = world.act(&parent, "run-again", json!({"from": ["line"]})).await;
        is_over.store(true, Ordering::Relaxed);
        answer
    };
    let both = async { tokio::join!(erase(&world, &parent, "bob"), again) };
    let (erased, again) = timeout(Duration::from_secs(60), both).await.expect("the first write is reached");
    world.endpoints.set_fault_hook(None);
    assert_eq!(again.1["outcome"], "applied", "{again:?}");
    assert_eq!(erased.0, 409, "{erased:?}");
    assert_eq!(found(&world).await.len(), 4);
}

// The retention removes records. The inputs stay in the order table.
#[tokio::test]
async fn an_order_whose_record_has_expired_is_erased() {
    let world = World::new().await;
    let (parent, below) = family(&world, "k").await;
    world.expire(&parent).await;
    world.expire(&below).await;
    assert_eq!(found(&world).await.len(), 2);
    assert_eq!(erase(&world, &below, "ann").await.0, 404, "only its parent leads to it");
    let answer = erase(&world, &parent, "ann").await;
    assert_eq!((answer.0, &answer.1["detail"]), (200, &json!("ann: request 17")));
    assert_eq!(found(&world).await, Vec::<String>::new());
    world.later(60_000);
    assert_eq!(erase(&world, &parent, "bob").await, answer);
}
