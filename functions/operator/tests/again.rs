//! Goal: an operator runs an order again from a step, learns before what that would mean, and gets a clear sentence where it is not
//! possible. Method: the route over the embedded endpoints.

use crate::common::{World, detail, with};
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::ProcessState;

async fn run_again(world: &World, id: &Id, more: Value) -> (i64, Value) {
    world.act(id, "run-again", with(json!({"from": ["a"]}), more)).await
}

/// The sample order, done: `a` has an undo, and `b` comes after it and has none.
async fn processed(world: &World) -> Id {
    let id = world.submit("k", "acme").await;
    world.wake(&id).await;
    world.done(&id, "a", json!({})).await;
    world.done(&id, "b", json!({})).await;
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
    world.later(60_000);
    id
}

// M7
#[tokio::test]
async fn a_dry_run_says_what_is_undone_and_done_again_and_then_it_is() {
    let world = World::new().await;
    let id = processed(&world).await;
    let version = world.task(&id).await.version;
    let (status, dry) = run_again(&world, &id, json!({"dry_run": true})).await;
    assert_eq!((status, &dry["outcome"]), (200, &json!("not_allowed")));
    assert!(dry["why"].as_str().unwrap().starts_with("step `b`: it may have run and has no undo"), "{dry}");
    let lists = ["again", "undone_first", "stays", "new_keys", "old_keys", "new_orders"].map(|list| dry[list].clone());
    assert_eq!(lists, [json!(["a", "b"]), json!(["a"]), json!(["b"]), json!(["a"]), json!(["b"]), json!([])]);
    let (status, refused) = run_again(&world, &id, json!({})).await;
    assert_eq!((status, &refused["code"], &refused["detail"]), (409, &json!("not_allowed"), &dry["why"]));
    let allowed = json!({"dry_run": true, "without_undo": true});
    assert_eq!(run_again(&world, &id, allowed).await.1["outcome"], "would_apply");
    assert_eq!(world.task(&id).await.version, version, "a dry run changes nothing");

    let wish = json!({"without_undo": true, "if_version": version});
    let (status, told) = run_again(&world, &id, wish.clone()).await;
    assert_eq!((status, &told["outcome"]), (200, &json!("applied")), "{told}");
    assert_eq!(run_again(&world, &id, wish).await.1["outcome"], "repeated");
    let shown = world.get(&format!("/details/{id}")).await;
    assert_eq!((&shown["order"]["state"], &shown["order"]["running_again"]), (&json!("Undoing"), &json!(["a", "b"])));
    world.wake(&id).await;
    world.done(&id, "a", json!({})).await;
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Pending);
    world.wake(&id).await;
    world.done(&id, "a", json!({})).await;
    world.done(&id, "b", json!({})).await;
    let task = world.task(&id).await;
    assert_eq!((task.process_state(), task.steps[0].attempt, task.steps[1].attempt), (ProcessState::Processed, 3, 2));
    let history = world.get(&format!("/details/{id}")).await["history"].clone();
    let events: Vec<_> = history.as_array().unwrap().iter().map(|entry| entry["event"].clone()).collect();
    assert!(events.contains(&json!("run_again_asked")) && events.contains(&json!("run_again")), "{events:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_request_is_said() {
    let world = World::new().await;
    let id = processed(&world).await;
    let none = run_again(&world, &Id::derive("acme", "none"), json!({})).await;
    assert!(none.0 == 404 && detail(&none).1.contains("removed after its retention"), "{none:?}");
    let unknown = run_again(&world, &id, json!({"from": ["z"]})).await;
    assert_eq!(detail(&unknown), (409, "step `z`: the workflow has no step of this name; its steps are: a, b"));
    let moved = run_again(&world, &id, json!({"if_version": 1})).await;
    assert_eq!((moved.0, &moved.1["code"]), (409, &json!("order_moved")));
    let (status, _) = world.post(&format!("/orders/{id}/actions/run-again"), json!({"reason": "r", "by": "a"})).await;
    assert_eq!(status, 400, "no step is named");
}
