//! Goal: an order that is stored with its first claims loses nothing that its Wake would bring. Method: sends that fail.

use crate::world::World;
use serde_json::{Value, json};
use shared::control::Pause;
use shared::decision::Event;
use shared::message::{Outcome, Reply};
use shared::step::State;
use std::sync::Arc;
use stepwarden_aws::Clients;
use stepwarden_aws::config::queue;
use stepwarden_embedded::{Call, Fault};

const ONE: &str = "name = \"one\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";

async fn begins(text: &str) -> World {
    let mut world = World::new(text).await;
    world.submit.begins = true;
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

// B1, C1: one transaction, and no Wake.
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

// C5: the caller that got no answer repeats its submission, which brings the request again; once the step is done, nothing.
#[tokio::test]
async fn a_repeated_submission_brings_a_lost_request() {
    let world = begins(ONE).await;
    cut(&world, "test-");
    let id = world.accept(json!({})).await;
    world.endpoints.set_fault_hook(None);
    assert!(drain(&world, "agent-x").await.is_empty() && drain(&world, queue::SCHEDULER).await.is_empty());
    assert_eq!(world.accept(json!({})).await, id);
    let wakes = drain(&world, queue::SCHEDULER).await;
    assert_eq!(wakes.len(), 1);
    world.handle(&id, Event::Wake { seen: wakes[0]["seen"].as_u64().unwrap(), hops: 0 }).await;
    let requests = drain(&world, "agent-x").await;
    assert_eq!((requests.len(), &requests[0]["attempt"]), (1, &json!(1)), "the same attempt");
    let reply = Reply::new(id.clone(), "a", 1, Outcome::Done { output: json!({}) });
    world.handle(&id, Event::Reply(reply)).await;
    world.accept(json!({})).await;
    assert!(drain(&world, queue::SCHEDULER).await.is_empty());
}

// C5: what submission cannot send, a scheduler sends.
#[tokio::test]
async fn a_request_that_cannot_be_sent_is_left_to_a_scheduler() {
    let world = begins(ONE).await;
    cut(&world, "agent-x");
    world.accept(json!({})).await;
    let wakes = drain(&world, queue::SCHEDULER).await;
    assert_eq!((wakes.len(), &wakes[0]["seen"]), (1, &json!(0)));
}

// D9, B6: what begins with anything but requests is left to a scheduler.
#[tokio::test]
async fn an_order_that_waits_or_whose_agent_is_paused_begins_with_a_wake() {
    let waits = "name = \"one\"\n[[step]]\nname = \"a\"\nwait = \"1m\"\n";
    let both = format!("{ONE}[[step]]\nname = \"b\"\nafter = []\nwait = \"1m\"\n");
    for (text, is_paused) in [(waits, false), (both.as_str(), false), (ONE, true)] {
        let world = begins(text).await;
        if is_paused {
            let pause = Pause { by: "ann".into(), since: world.submit.engine.now(), reason: "r".into() };
            world.submit.engine.store.set_agent("x", Some(&pause)).await.unwrap();
        }
        let id = world.accept(json!({})).await;
        assert_eq!(world.task(&id).await.version, 0, "{text}");
        assert!(drain(&world, "agent-x").await.is_empty());
        assert_eq!(drain(&world, queue::SCHEDULER).await.len(), 1);
    }
}
