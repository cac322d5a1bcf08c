//! Goal: an order that is stored with its first claims loses nothing that its Wake would bring. Method: sends that fail.

use crate::world::World;
use serde_json::{Value, json};
use shared::control::Pause;
use shared::decision::Event;
use shared::message::{Outcome, Reply};
use shared::order::Id;
use shared::step::State;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stepwarden_aws::config::queue;
use stepwarden_aws::{Clients, Config, DynamoStore, engine};
use stepwarden_embedded::{Call, Fault};
use submit::submission;

const ONE: &str = "name = \"one\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";

async fn begins(text: &str) -> World {
    let mut world = World::new(text).await;
    world.submit.begins = Some(Default::default());
    world
}

/// The messages of a queue, which are then hidden.
async fn drain(world: &World, name: &str) -> Vec<Value> {
    let sqs = Clients::embedded(world.endpoints.http_client()).sqs;
    let request = sqs.receive_message().queue_url(world.config.queue_url(name)).max_number_of_messages(10);
    let messages = request.wait_time_seconds(0).send().await.unwrap().messages.unwrap_or_default();
    messages.iter().map(|message| serde_json::from_str(message.body().unwrap()).unwrap()).collect()
}

/// Sends to a queue whose URL contains `name` fail.
fn cut(world: &World, name: &'static str) {
    world.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
        let is_hit = call.operation.starts_with("SendMessage") && String::from_utf8_lossy(call.body).contains(name);
        is_hit.then_some(Fault::InternalError)
    })));
}

// B1: one transaction, and no Wake.
#[tokio::test]
async fn an_order_is_stored_with_its_first_claims_and_sends_their_requests() {
    let world = begins(ONE).await;
    let id = world.accept(json!({"n": 1})).await;
    let task = world.task(&id).await;
    assert_eq!((task.version, task.steps[0].attempt, task.steps[0].claimed_at), (1, 1, 1));
    let requests = drain(&world, "agent-x").await;
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0]["attempt"], &requests[0]["input"]), (&json!(1), &json!({"n": 1})));
    assert!(drain(&world, queue::SCHEDULER).await.is_empty());
    let reply = Reply::new(id.clone(), "a", 1, Outcome::Done { output: json!({}) });
    world.handle(&id, Event::Reply(reply)).await;
    assert_eq!(world.task(&id).await.steps[0].state, State::Processed);
}

// D10: a caller that only asks again gets the same answer, and no request is repeated.
#[tokio::test]
async fn a_repeated_submission_repeats_no_request() {
    let world = begins(ONE).await;
    let id = world.accept(json!({})).await;
    assert_eq!(world.accept(json!({})).await, id);
    assert!(drain(&world, queue::SCHEDULER).await.is_empty());
}

// A4, D10: if neither the request nor a Wake can be sent, the caller is told to repeat the submission. That brings the
// request, under the same attempt; once the step is done, it brings nothing.
#[tokio::test]
async fn a_repeated_submission_brings_a_lost_request() {
    let world = begins(ONE).await;
    let order = || submission::parse(json!({"workflow": "one", "input": {}}).to_string().as_bytes()).unwrap();
    cut(&world, "test-");
    for _ in 0..2 {
        let problem = world.submit.accept("default", "key-1", order()).await.unwrap_err();
        assert_eq!((problem.status, problem.retry_after_s), (503, Some(2)), "{problem:?}");
    }
    world.endpoints.set_fault_hook(None);
    let id = world.accept(json!({})).await;
    assert!(drain(&world, "agent-x").await.is_empty());
    woken(&world, &id).await;
    world.accept(json!({})).await;
    assert!(drain(&world, queue::SCHEDULER).await.is_empty());
}

// A4: a submission by message is redelivered for that, and no other one.
#[tokio::test]
async fn a_message_whose_request_is_lost_is_redelivered() {
    let world = begins(ONE).await;
    let record = |key: &str| {
        let body = json!({"idempotency_key": key, "workflow": "one", "input": {}}).to_string();
        json!({"messageId": key, "body": body, "attributes": {}, "messageAttributes": {}, "eventSource": "aws:sqs"})
    };
    world
        .submit
        .accept("acme", "sent", submission::parse(br#"{"workflow": "one", "input": {}}"#).unwrap())
        .await
        .unwrap();
    cut(&world, "test-");
    // Even if it comes twice.
    for _ in 0..2 {
        let records = [record("sent"), record("lost"), record("lost")];
        let event = serde_json::from_value(json!({"Records": records})).unwrap();
        let response = submit::queue_handler(&world.submit, event).await;
        let failed: BTreeSet<_> = response.batch_item_failures.iter().map(|one| one.item_identifier.as_str()).collect();
        assert_eq!(failed, ["lost"].into());
    }
}

// A4: a process that dies after the save cannot say what it sent. Another one has a scheduler send it again.
#[tokio::test]
async fn the_requests_of_a_process_that_died_are_sent_again() {
    let mut world = begins(ONE).await;
    let id = world.accept(json!({})).await;
    drain(&world, "agent-x").await;
    let config = Config { instance: "another".into(), ..world.config.clone() };
    let clients = Clients::embedded(world.endpoints.http_client());
    world.submit.engine = engine(&config, &clients, Arc::new(jiff::Timestamp::now)).engine;
    world.submit.begins = Some(Default::default());
    assert_eq!(world.accept(json!({})).await, id);
    assert_eq!(drain(&world, queue::SCHEDULER).await.len(), 1);
    // Once is enough.
    assert_eq!(world.accept(json!({})).await, id);
    assert!(drain(&world, queue::SCHEDULER).await.is_empty());
}

// A4: the store may have stored an order without an answer.
#[tokio::test]
async fn an_order_whose_store_did_not_answer_gets_its_requests_when_it_is_repeated() {
    let world = begins(ONE).await;
    let is_first = AtomicBool::new(true);
    world.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
        let is_hit = call.operation == "TransactWriteItems" && is_first.swap(false, Ordering::Relaxed);
        is_hit.then_some(Fault::LostAfter)
    })));
    let order = || submission::parse(json!({"workflow": "one", "input": {}}).to_string().as_bytes()).unwrap();
    let first = world.submit.accept("default", "key-1", order()).await;
    let id = world.accept(json!({})).await;
    // The client of the endpoints may have repeated the call itself.
    let sent = drain(&world, "agent-x").await.len() + drain(&world, queue::SCHEDULER).await.len();
    assert_eq!(sent, 1, "{first:?}");
    assert_eq!(world.task(&id).await.version, 1);
}

/// A Wake for an order that has begun, and what it sends.
async fn woken(world: &World, id: &Id) {
    let wakes = drain(world, queue::SCHEDULER).await;
    assert_eq!((wakes.len(), &wakes[0]["seen"]), (1, &json!(0)));
    world.handle(id, Event::Wake { seen: 0, hops: 0 }).await;
    let requests = drain(world, "agent-x").await;
    assert_eq!((requests.len(), &requests[0]["attempt"]), (1, &json!(1)), "the same attempt");
    let reply = Reply::new(id.clone(), "a", 1, Outcome::Done { output: json!({}) });
    world.handle(id, Event::Reply(reply)).await;
    assert_eq!(world.task(id).await.steps[0].state, State::Processed);
}

// D10: what submission cannot send, a scheduler sends.
#[tokio::test]
async fn a_request_that_cannot_be_sent_is_left_to_a_scheduler() {
    let world = begins(ONE).await;
    cut(&world, "agent-x");
    let id = world.accept(json!({})).await;
    world.endpoints.set_fault_hook(None);
    woken(&world, &id).await;
}

// D9: what begins with anything but requests is left to a scheduler.
#[tokio::test]
async fn an_order_that_waits_or_whose_agent_is_paused_begins_with_a_wake() {
    let waits = "name = \"one\"\n[[step]]\nname = \"a\"\nwait = \"1m\"\n";
    let both = format!("{ONE}[[step]]\nname = \"b\"\nafter = []\nwait = \"1m\"\n");
    for (text, is_paused) in [(waits, false), (both.as_str(), false), (ONE, true)] {
        let world = begins(text).await;
        if is_paused {
            let pause = Pause { by: "ann".into(), since: world.submit.engine.now(), reason: "r".into() };
            let clients = Clients::embedded(world.endpoints.http_client());
            DynamoStore::new(clients.dynamodb, &world.config).set_agent("x", Some(&pause)).await.unwrap();
        }
        let id = world.accept(json!({})).await;
        assert_eq!(world.task(&id).await.version, 0, "{text}");
        assert!(drain(&world, "agent-x").await.is_empty());
        assert_eq!(drain(&world, queue::SCHEDULER).await.len(), 1);
    }
}
