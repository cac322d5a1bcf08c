//! Goal: a message that can never be handled is set aside with its reason and an alert, its neighbours are handled, and
//! nothing loops. Method: corrupt, foreign and oversized messages for the real handlers, alone and in batches.

use crate::support::world::{World, event};
use crate::support::{Whole, trip, until};
use serde_json::{Value, json};
use shared::message::{Effect, SetAside};
use shared::order::Id;
use shared::ports::Messenger;
use shared::task::ProcessState;
use stepwarden_embedded::Fault;

const FOREIGN: &str = "ord_0123456789abcdefghjkmnpqrs";

fn wake(id: &str) -> String {
    json!({"type": "wake", "task_id": id, "seen": 0}).to_string()
}

/// The messages of a batch that come again after it was handled.
async fn again(world: &World, queue: &str, batch: &[(&str, &str)]) -> Vec<String> {
    let response = world.handle(queue, &world.submitting, event(queue, batch)).await;
    response.batch_item_failures.into_iter().map(|failure| failure.item_identifier).collect()
}

/// What has been set aside: queue, reason, body.
async fn set_aside(world: &World) -> Vec<SetAside> {
    let mut all = Vec::new();
    loop {
        let messages = world.receive("set-aside").await;
        if messages.is_empty() {
            return all;
        }
        all.extend(messages.iter().map(|(_, _, body)| serde_json::from_str::<SetAside>(body).unwrap()));
    }
}

// E6, F2: on every queue of a running system; other orders end as usual.
#[tokio::test(flavor = "multi_thread")]
async fn corrupt_and_foreign_messages_on_every_queue_are_set_aside_and_alerted() {
    let whole = Whole::start(&[trip("trip", "5s", 10, "")]).await;
    let corrupt = ["{", "\"text\"", "null", "[]", "{}", "{\"type\": \"nonsense\"}"];
    let foreign = [
        ("scheduler", wake(FOREIGN)),
        ("scheduler", json!({"type": "cancel", "task_id": FOREIGN, "by": "x", "reason": "y"}).to_string()),
        ("scheduler", json!({"type": "reply", "task_id": FOREIGN, "step": "s", "attempt": 1}).to_string()),
        ("replies", json!({"type": "reply", "task_id": FOREIGN, "step": "s", "attempt": 1}).to_string()),
        ("replies", wake(FOREIGN)),
        ("agent-payment", wake(FOREIGN)),
        ("submissions", wake(FOREIGN)),
    ];
    let queues = crate::support::world::QUEUES;
    let all: Vec<(&str, String)> = queues
        .iter()
        .flat_map(|queue| corrupt.iter().map(|body| (*queue, (*body).to_owned())))
        .chain(foreign)
        .collect();
    for (queue, body) in &all {
        whole.send(queue, body).await;
    }
    let ids = whole.submit_many("trip", 5).await;
    let tasks = whole.ended(&ids).await;
    assert!(tasks.iter().all(|task| task.process_state() == ProcessState::Processed));
    until("all set aside", async || (whole.set_aside() == all.len()).then_some(())).await;
    for queue in queues {
        until(&format!("{queue} is empty"), async || (whole.queued(queue) == 0).then_some(())).await;
        // The classes of a queue share one dead-letter queue.
        let of = queue.trim_end_matches("-high").trim_end_matches("-low");
        assert_eq!(whole.queued(&format!("{of}-dead")), 0, "set aside, not given up by the platform");
    }
    let events = whole.events();
    assert_eq!(events.len(), all.len());
    for event in events {
        assert_eq!(event.detail_type, "Message set aside");
        let detail: Value = serde_json::from_str(&event.detail).unwrap();
        assert!(!detail["reason"].as_str().unwrap().is_empty(), "{detail}");
        assert!(queues.iter().any(|queue| detail["queue"].as_str().unwrap().ends_with(queue)), "{detail}");
    }
}

// E6: the same in one batch, with the reason and the body.
#[tokio::test(flavor = "multi_thread")]
async fn a_poison_record_never_fails_its_neighbours() {
    let world = World::with_trip().await;
    let a = world.accept("trip", "a", json!({"total_cents": 1})).await;
    let b = world.accept("trip", "b", json!({"total_cents": 1})).await;
    let future = json!({"type": "reply", "task_id": a, "step": "charge", "attempt": 7, "outcome": "done"}).to_string();
    let no_step = json!({"type": "reply", "task_id": a, "step": "nope", "attempt": 1, "outcome": "done"}).to_string();
    let (good_a, good_b, foreign) = (wake(&a.0), wake(&b.0), wake(FOREIGN));
    let batch =
        [("1", good_a.as_str()), ("2", "{"), ("3", &foreign), ("4", &future), ("5", &no_step), ("6", good_b.as_str())];
    assert!(again(&world, "scheduler", &batch).await.is_empty());
    assert_eq!((world.task(&a).await.version, world.task(&b).await.version), (1, 1));
    let mut aside = set_aside(&world).await;
    aside.sort_by(|x, y| x.message_id.cmp(&y.message_id));
    let ids: Vec<_> = aside.iter().map(|m| m.message_id.as_str()).collect();
    assert_eq!(ids, ["2", "3", "4", "5"]);
    assert_eq!(aside[0].body, "{");
    assert!(aside.iter().all(|m| m.queue == "stepwarden-scheduler" && !m.reason.is_empty()), "{aside:?}");
    assert!(aside[1].reason.contains("no such task"), "{aside:?}");

    let request = world.receive("agent-fraud").await.remove(0).2;
    let elsewhere = request.replace("\"agent\":\"fraud\"", "\"agent\":\"unknown\"");
    let batch = [("1", "{}"), ("2", request.as_str()), ("3", elsewhere.as_str())];
    assert!(again(&world, "agent-fraud", &batch).await.is_empty());
    assert_eq!(set_aside(&world).await.len(), 2);
    let replies = world.receive("replies").await;
    assert!(replies.iter().any(|(_, _, body)| body.contains("\"done\"")), "{replies:?}");
}

// E6, B6: agents may send to the queue of replies, and only replies count there.
#[tokio::test(flavor = "multi_thread")]
async fn only_replies_count_on_the_queue_of_replies() {
    let world = World::with_trip().await;
    let id = world.accept("trip", "a", json!({"total_cents": 1})).await;
    let cancel = json!({"type": "cancel", "task_id": id, "by": "agent", "reason": "none of its business"}).to_string();
    let wake = wake(&id.0);
    assert!(again(&world, "replies", &[("1", &wake), ("2", &cancel)]).await.is_empty());
    assert_eq!(world.task(&id).await.version, 0);
    let aside = set_aside(&world).await;
    assert!(aside.len() == 2 && aside.iter().all(|m| m.reason.contains("only replies")), "{aside:?}");
}

// E6: if the store fails for one record, only that record fails, and it is handled when it is redelivered.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_fails_for_one_record_fails_only_that_record() {
    let world = World::with_trip().await;
    let mut ids: Vec<Id> = Vec::new();
    for key in ["a", "b", "c"] {
        ids.push(world.accept("trip", key, json!({"total_cents": 1})).await);
    }
    let bodies: Vec<_> = ids.iter().map(|id| wake(&id.0)).collect();
    let batch: Vec<_> = ids.iter().zip(&bodies).map(|(id, body)| (id.0.as_str(), body.as_str())).collect();
    let unlucky = ids[1].0.clone();
    world.faults("PutItem", move |_, body| body.contains(&unlucky).then_some(Fault::InternalError));
    assert_eq!(again(&world, "scheduler", &batch).await, [ids[1].0.as_str()]);
    world.no_faults();
    let versions = [world.task(&ids[0]).await, world.task(&ids[1]).await, world.task(&ids[2]).await].map(|t| t.version);
    assert_eq!(versions, [1, 0, 1]);
    assert!(again(&world, "scheduler", &batch[1..2]).await.is_empty());
    assert_eq!(world.task(&ids[1]).await.version, 1);
    assert_eq!(set_aside(&world).await.len(), 0, "a store that fails is no poison");
}

// E6: a message about an item that can never be read as a task is set aside, not retried until it is a dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_about_an_unknown_task_is_set_aside() {
    let world = World::with_trip().await;
    let id = world.accept("trip", "a", json!({"total_cents": 1})).await;
    let definition = format!("workflow#{}", world.task(&id).await.workflow_hash);
    let bodies = [definition.as_str(), "", &"x".repeat(4000), "lease#nobody"].map(wake);
    let batch: Vec<_> = bodies.iter().map(|body| ("m", body.as_str())).collect();
    assert!(again(&world, "scheduler", &batch).await.is_empty());
    let aside = set_aside(&world).await;
    assert_eq!(aside.len(), bodies.len());
    assert!(aside.iter().all(|message| !message.reason.is_empty()), "{aside:?}");
}

// E6: the same for submissions by message.
#[tokio::test(flavor = "multi_thread")]
async fn a_submission_that_the_store_fails_is_redelivered_and_its_neighbours_are_accepted() {
    let world = World::with_trip().await;
    let body = |key: &str| json!({"idempotency_key": key, "workflow": "trip", "input": {"k": key}}).to_string();
    let (a, b) = (body("a"), body("b"));
    let unlucky = Id::derive(shared::order::DEFAULT_TENANT, "b").0;
    world.faults("TransactWriteItems", move |_, body| body.contains(&unlucky).then_some(Fault::Throttle));
    assert_eq!(again(&world, "submissions", &[("a", &a), ("b", &b)]).await, ["b"]);
    world.no_faults();
    assert_eq!(world.items("stepwarden-orders").await, 1);
    assert!(again(&world, "submissions", &[("b", &b)]).await.is_empty());
    assert_eq!(world.items("stepwarden-orders").await, 2);
}

// E6: a message that cannot be set aside now is redelivered, alone.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_cannot_be_set_aside_is_redelivered() {
    let world = World::with_trip().await;
    let id = world.accept("trip", "a", json!({"total_cents": 1})).await;
    let good = wake(&id.0);
    world.faults("SendMessageBatch", |_, body| body.contains("set-aside").then_some(Fault::InternalError));
    assert_eq!(again(&world, "scheduler", &[("good", &good), ("bad", "{")]).await, ["bad"]);
    world.no_faults();
    assert_eq!(world.task(&id).await.version, 1);
}

// E6: a message can be set aside whatever its size and content; otherwise it would be redelivered until it is a dead
// letter.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_any_size_and_content_is_set_aside() {
    let world = World::with_trip().await;
    let most = 1024 * 1024;
    let bodies = [
        "\"".repeat(most),
        "\u{1}".repeat(most),
        "é".repeat(most / 2),
        format!("{{\"type\": \"{}\"}}", "x".repeat(most - 20)),
        format!("{{\"type\": \"wake\", \"task_id\": \"{}\", \"seen\": 0}}", "x".repeat(4000)),
        format!("{{\"idempotency_key\": \"k\", \"workflow\": \"{}\", \"input\": {{}}}}", "w".repeat(200_000)),
    ];
    let mut count = 0;
    for queue in ["scheduler", "submissions", "agent-payment"] {
        for (n, body) in bodies.iter().enumerate() {
            assert!(again(&world, queue, &[("m", body)]).await.is_empty(), "message {n} on {queue}");
            count += 1;
        }
    }
    let aside = set_aside(&world).await;
    assert_eq!(aside.len(), count);
    assert!(aside.iter().all(|m| m.reason.len() <= 2000 && !m.body.is_empty()));
    assert_eq!(world.endpoints.events().page(0, 1000).len(), count);
    // Directly, too: the adapter accepts what the handlers create.
    let message =
        SetAside { queue: "q".into(), message_id: "m".into(), reason: "r".into(), body: "b".into(), is_cut: false };
    assert!(world.messenger.send(vec![Effect::SetAside(Box::new(message))]).await[0].is_ok());
}
