//! Goal: an order that is stored with its first claims loses nothing that its Wake would bring. Method: sends that fail.

use crate::world::{ONE, World};
use serde_json::json;
use shared::control::Pause;
use shared::order::Id;
use shared::step::State;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use stepwarden_aws::config::queue;
use stepwarden_embedded::{Call, Fault};

// B1, D10: one transaction, and no Wake. A caller that only asks again gets the same answer, and no request is repeated.
#[tokio::test]
async fn an_order_is_stored_with_its_first_claims_and_sends_their_requests() {
    let world = World::begins(ONE).await;
    let id = world.accept(json!({"n": 1})).await;
    let task = world.task(&id).await;
    assert_eq!((task.version, task.steps[0].attempt, task.steps[0].claimed_at), (1, 1, 1));
    let requests = world.drain("agent-x").await;
    assert_eq!(requests.len(), 1);
    assert_eq!((&requests[0]["attempt"], &requests[0]["input"]), (&json!(1), &json!({"n": 1})));
    assert!(world.drain(queue::SCHEDULER).await.is_empty());
    assert_eq!(world.accept(json!({"n": 1})).await, id);
    assert!(world.drain(queue::SCHEDULER).await.is_empty());
    world.done(&id, "a", json!({})).await;
    assert_eq!(world.task(&id).await.steps[0].state, State::Processed);
}

// A4, D10: if neither the request nor a Wake can be sent, the caller is told to repeat the submission. That brings the
// request, under the same attempt; once the step is done, it brings nothing.
#[tokio::test]
async fn a_repeated_submission_brings_a_lost_request() {
    let world = World::begins(ONE).await;
    let order = || world.order("default", "key-1", json!({"workflow": "one", "input": {}}));
    world.cut("test-");
    for _ in 0..2 {
        let problem = order().await.unwrap_err();
        assert_eq!((problem.status, problem.retry_after_s), (503, Some(2)), "{problem:?}");
    }
    world.mend();
    let id = world.accept(json!({})).await;
    assert!(world.drain("agent-x").await.is_empty());
    woken(&world, &id).await;
    world.accept(json!({})).await;
    assert!(world.drain(queue::SCHEDULER).await.is_empty());
}

// A4: a submission by message is redelivered for that, and no other one.
#[tokio::test]
async fn a_message_whose_request_is_lost_is_redelivered() {
    let world = World::begins(ONE).await;
    let record = |key: &str| {
        let body = json!({"idempotency_key": key, "workflow": "one", "input": {}}).to_string();
        json!({"messageId": key, "body": body, "attributes": {}, "messageAttributes": {}, "eventSource": "aws:sqs"})
    };
    world.order("acme", "sent", json!({"workflow": "one", "input": {}})).await.unwrap();
    world.cut("test-");
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
    let mut world = World::begins(ONE).await;
    let id = world.accept(json!({})).await;
    world.drain("agent-x").await;
    world.restart(|config| config.instance = "another".into());
    world.submit.begins = Some(Default::default());
    assert_eq!(world.accept(json!({})).await, id);
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
    // Once is enough.
    assert_eq!(world.accept(json!({})).await, id);
    assert!(world.drain(queue::SCHEDULER).await.is_empty());
}

// A4: the store may have stored an order without an answer.
#[tokio::test]
async fn an_order_whose_store_did_not_answer_gets_its_requests_when_it_is_repeated() {
    let world = World::begins(ONE).await;
    let is_first = AtomicBool::new(true);
    world.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
        let is_hit = call.operation == "TransactWriteItems" && is_first.swap(false, Ordering::Relaxed);
        is_hit.then_some(Fault::LostAfter)
    })));
    let first = world.order("default", "key-1", json!({"workflow": "one", "input": {}})).await;
    let id = world.accept(json!({})).await;
    // The client of the endpoints may have repeated the call itself.
    let sent = world.drain("agent-x").await.len() + world.drain(queue::SCHEDULER).await.len();
    assert_eq!(sent, 1, "{first:?}");
    assert_eq!(world.task(&id).await.version, 1);
}

/// A Wake for an order that has begun, and what it sends.
async fn woken(world: &World, id: &Id) {
    let wakes = world.drain(queue::SCHEDULER).await;
    assert_eq!((wakes.len(), &wakes[0]["seen"]), (1, &json!(0)));
    world.wake(id).await;
    let requests = world.drain("agent-x").await;
    assert_eq!((requests.len(), &requests[0]["attempt"]), (1, &json!(1)), "the same attempt");
    world.done(id, "a", json!({})).await;
    assert_eq!(world.task(id).await.steps[0].state, State::Processed);
}

// D10: what submission cannot send, a scheduler sends.
#[tokio::test]
async fn a_request_that_cannot_be_sent_is_left_to_a_scheduler() {
    let world = World::begins(ONE).await;
    world.cut("agent-x");
    let id = world.accept(json!({})).await;
    world.mend();
    woken(&world, &id).await;
}

// D9: what begins with anything but requests is left to a scheduler.
#[tokio::test]
async fn an_order_that_waits_or_whose_agent_is_paused_begins_with_a_wake() {
    let waits = "name = \"one\"\n[[step]]\nname = \"a\"\nwait = \"1m\"\n";
    let both = format!("{ONE}[[step]]\nname = \"b\"\nafter = []\nwait = \"1m\"\n");
    for (text, is_paused) in [(waits, false), (both.as_str(), false), (ONE, true)] {
        let world = World::begins(text).await;
        if is_paused {
            let pause = Pause { by: "ann".into(), since: world.submit.engine.now(), reason: "r".into() };
            world.store.set_agent("x", Some(&pause)).await.unwrap();
        }
        let id = world.accept(json!({})).await;
        assert_eq!(world.task(&id).await.version, 0, "{text}");
        assert!(world.drain("agent-x").await.is_empty());
        assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
    }
}
