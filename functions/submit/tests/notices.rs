//! The first notice, «received», over the embedded endpoints: it is not lost, whatever fails between store and queue. // F1, F3
//!
//! Method: tables and queues in memory; a hook at the endpoint lets chosen sends fail.

use crate::world::{ONE, World};
use serde_json::json;
use shared::order::Id;
use shared::time::SignedDuration;
use stepwarden_aws::config::queue;

async fn accept(world: &World) -> Id {
    let body = json!({"workflow": "one", "input": {"n": 1}, "reply_queue": "shop", "reference": "r-1"});
    world.order("default", "key-1", body).await.unwrap()
}

async fn sweep(world: &World) {
    let engine = &world.submit.engine;
    let due = engine.store.due(0, engine.now(), 10, None).await.unwrap();
    for answer in engine.recover(&due.ids, 1).await {
        answer.unwrap();
    }
}

// F1, C3: id, reference, number and history.
#[tokio::test]
async fn an_accepted_order_is_announced_to_its_submitter_and_to_a_scheduler() {
    let world = World::begins(ONE).await;
    let id = accept(&world).await;
    let notices = world.drain(&queue::notices("shop")).await;
    assert_eq!(notices.len(), 1);
    let notice = &notices[0];
    assert_eq!((&notice["kind"], &notice["order_id"], &notice["seq"]), (&json!("received"), &json!(id), &json!(0)));
    assert_eq!((&notice["reference"], &notice["history"][0]["event"]), (&json!("r-1"), &json!("received")));
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
}

// F3: if the notice cannot be sent, the order waits, and the sweep sends the notice and the Wake.
#[tokio::test]
async fn a_first_notice_that_cannot_be_sent_is_sent_by_a_sweep_before_the_order_begins() {
    let world = World::begins(ONE).await;
    world.cut("test-");
    accept(&world).await;
    world.mend();
    assert!(world.drain(queue::SCHEDULER).await.is_empty(), "no Wake ahead of its notice");
    world.later(SignedDuration::from_secs(10));
    sweep(&world).await;
    let notices = world.drain(&queue::notices("shop")).await;
    assert_eq!((notices.len(), &notices[0]["kind"], &notices[0]["seq"]), (1, &json!("received"), &json!(0)));
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
}

// F3, B1: a submitter that got no answer repeats the submission, and gets the notice again.
#[tokio::test]
async fn a_repeated_submission_sends_the_first_notice_again() {
    let world = World::begins(ONE).await;
    world.cut("test-");
    let first = accept(&world).await;
    world.mend();
    assert_eq!(accept(&world).await, first);
    assert_eq!(world.drain(&queue::notices("shop")).await.len(), 1);
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
}

// D10: a scheduler began it, and sees to its requests.
#[tokio::test]
async fn a_repeated_submission_repeats_no_request_of_an_order_with_a_notice() {
    let world = World::begins(ONE).await;
    let id = accept(&world).await;
    world.drain(queue::SCHEDULER).await;
    world.wake(&id).await;
    assert_eq!(world.drain("agent-x").await.len(), 1);
    assert_eq!(accept(&world).await, id);
    assert!(world.drain(queue::SCHEDULER).await.is_empty());
}
