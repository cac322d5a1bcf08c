//! Goal: an event by message counts like one over HTTP; what can never be accepted is set aside with the reason, and changes
//! nothing. Method: batches as Lambda passes them on, over the real store and queues. // L2

use crate::world::World;
use serde_json::{Value, json};
use shared::decision::{Act, Event, What};
use shared::message::Outcome;
use shared::order::Id;
use shared::task::ProcessState;
use std::collections::BTreeMap;
use submit::queue_handler;

const TEXT: &str = r#"
name = "one"
[[step]]
name = "paid"
event = "paid"
timeout = "24h"
take = "event.cents > 0"
[[step]]
name = "approved"
after = ["paid"]
event = "approved"
people = 1
timeout = "24h"
"#;

/// Delivers a batch: each message with how often it was received. Returns the ids of those to deliver again.
async fn deliver(world: &World, messages: &[(&str, u32, Value)]) -> Vec<String> {
    let record = |(id, receives, body): &(&str, u32, Value)| {
        json!({"messageId": id, "body": body.to_string(), "eventSourceARN": "arn:aws:sqs:x:1:submissions",
            "attributes": {"ApproximateReceiveCount": receives.to_string()}, "messageAttributes": {}})
    };
    let event = json!({"Records": messages.iter().map(record).collect::<Vec<_>>()});
    let response = queue_handler(&world.submit, serde_json::from_value(event).unwrap()).await;
    response.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
}

/// Why messages were set aside since the last call, by their ids.
async fn set_aside(world: &World) -> BTreeMap<String, String> {
    let all = world.drain("set-aside").await.into_iter().map(|body| {
        let text = |name: &str| body[name].as_str().unwrap_or_else(|| panic!("{name}: {body}")).to_owned();
        (text("message_id"), text("reason"))
    });
    all.collect()
}

fn paid(id: &Id, key: &str, data: Value) -> Value {
    json!({"event": "paid", "order_id": id, "idempotency_key": key, "data": data})
}

/// The id of the order that [`order`] submits.
fn id() -> Id {
    Id::derive("acme", "order-1")
}

fn order() -> Value {
    json!({"workflow": "one", "idempotency_key": "order-1", "input": {"event": "of the order's own"}})
}

#[tokio::test]
async fn an_event_counts_once_and_may_come_with_its_order() {
    let world = World::new(TEXT).await;
    let event = paid(&id(), "k1", json!({"cents": 5}));
    // In one batch the order comes first; an order that may still come is waited for once.
    assert_eq!(deliver(&world, &[("a", 1, event.clone())]).await, ["a"]);
    assert!(deliver(&world, &[("a", 2, event.clone()), ("b", 1, order()), ("c", 1, event)]).await.is_empty());
    let task = world.task(&id()).await;
    assert_eq!(task.kept().map(|kept| (kept.key.as_str(), kept.by.as_ref())).collect::<Vec<_>>(), [("k1", None)]);
    assert!(set_aside(&world).await.is_empty());
    world.wake(&id()).await;
    assert_eq!(world.task(&id()).await.steps[0].output, Some(json!({"cents": 5})));
}

#[tokio::test]
async fn what_no_order_takes_is_set_aside_with_the_reason() {
    let world = World::new(TEXT).await;
    assert!(deliver(&world, &[("o", 1, order())]).await.is_empty());
    // An order of another tenant.
    let other = world.accept(json!({})).await;
    world.wake(&id()).await;
    let version = world.task(&id()).await.version;
    let of = |change: Value| {
        let mut message = paid(&id(), "k", json!({"cents": 1}));
        message.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        message
    };
    let table = [
        ("no such event", of(json!({"event": "payed"})), "no_such_event: event: no step of the workflow"),
        ("other tenant", paid(&other, "k", json!({})), "no_such_order: order_id: `ord_"),
        ("no order", of(json!({"order_id": "x"})), "no_such_order: order_id: `x` is not the id"),
        ("not taken", of(json!({"data": {"cents": 0}})), "event_refused: body: the condition `take`"),
        ("unfit", of(json!({"data": {}})), "event_refused: body: `take`, `failed` or `output`"),
        ("nobody", of(json!({"event": "approved"})), "forbidden: the step counts people"),
        ("no key", of(json!({"idempotency_key": ""})), "missing_idempotency_key"),
        ("long key", of(json!({"idempotency_key": "k".repeat(201)})), "invalid_idempotency_key"),
        ("data", of(json!({"data": [1]})), "invalid_field: data: "),
        ("long", of(json!({"data": {"x": "x".repeat(4096)}})), "too_large: the event has 4104 bytes"),
        ("stray field", of(json!({"input": {}})), "invalid_field: input: unknown field"),
    ];
    let batch: Vec<_> = table.iter().map(|(name, message, _)| (*name, 2, message.clone())).collect();
    let failed = deliver(&world, &batch).await;
    assert!(failed.is_empty(), "{failed:?}");
    let aside = set_aside(&world).await;
    for (name, _, reason) in &table {
        let why = aside.get(*name).unwrap_or_else(|| panic!("`{name}` was not set aside: {aside:?}"));
        assert!(why.starts_with(reason), "{name}: {why}");
    }
    assert_eq!((aside.len(), world.task(&id()).await.version), (table.len(), version), "nothing was written");

    // What is good in a batch counts, whatever is beside it; after that the event is late.
    let good = paid(&id(), "k1", json!({"cents": 7}));
    assert!(deliver(&world, &[("bad", 1, of(json!({"event": 7}))), ("good", 1, good.clone())]).await.is_empty());
    assert!(
        deliver(&world, &[("again", 1, good), ("late", 1, paid(&id(), "k2", json!({"cents": 7})))]).await.is_empty()
    );
    let aside = set_aside(&world).await;
    assert_eq!(aside.keys().collect::<Vec<_>>(), ["bad", "late"]);
    assert!(aside["late"].starts_with("event_late: no step waits for this event any more"), "{aside:?}");
    assert_eq!(world.task(&id()).await.steps[0].output, Some(json!({"cents": 7})));
    assert_ne!(world.task(&id()).await.process_state(), ProcessState::Processed);
}

/// Ships what is paid.
const SHIPS: &str = r#"
name = "one"
tombstones = true
[[step]]
name = "paid"
event = "paid"
timeout = "24h"
[[step]]
name = "ship"
after = ["paid"]
agent = "x"
timeout = "10s"
undo = { agent = "x" }
"#;

// M7: the step that takes it is put back once the undo is done, which may be in a moment.
#[tokio::test]
async fn an_event_while_steps_are_undone_to_run_again_is_delivered_again() {
    let world = World::new(SHIPS).await;
    assert!(deliver(&world, &[("o", 1, order()), ("a", 1, paid(&id(), "k1", json!({})))]).await.is_empty());
    world.wake(&id()).await;
    let wish = shared::again::Wish { from: vec!["paid".into()], new_keys: false, without_undo: false };
    let act = Act { what: What::RunAgain(wish), by: "ann".into(), reason: "r".into(), seen: None };
    world.handle(&id(), Event::Act(act)).await;
    let new = || paid(&id(), "k2", json!({"cents": 5}));
    assert_eq!(deliver(&world, &[("b", 4, new())]).await, ["b"]);
    assert!(set_aside(&world).await.is_empty());
    let problem = world.submit.deliver(&id(), "paid", "k2", json!({}), None).await.unwrap_err();
    assert_eq!((problem.code, problem.status, problem.retry_after_s), ("event_early", 409, Some(30)));

    for attempt in [1, 2] {
        world.reply(&id(), "ship", attempt, Outcome::Done { output: json!({}) }).await;
        world.handle(&id(), Event::Wake { seen: world.task(&id()).await.version, hops: 0 }).await;
    }
    let task = world.task(&id()).await;
    assert_eq!(task.again, None, "{task:#?}");
    assert!(deliver(&world, &[("b", 5, new())]).await.is_empty());
    assert_eq!(world.task(&id()).await.steps[0].output, Some(json!({"cents": 5})));
}
