//! Goal: an operator moves an order to another definition, learns before what that would mean, and gets a clear sentence where it is not
//! possible. Method: the route over the embedded endpoints.

use crate::common::{WORKFLOW, World, detail, with};
use serde_json::{Value, json};
use shared::decision::Event;
use shared::order::Id;
use shared::task::ProcessState;

async fn world() -> World {
    let mut world = World::new().await;
    world.operator.deployed = Ok([("sample".to_owned(), world.workflow.clone())].into());
    world
}

async fn migrate(world: &World, id: &Id, to: &str, more: Value) -> (i64, Value) {
    world.act(id, "migrate", with(json!({"to": to}), more)).await
}

/// The sample workflow, with a step `c` and without `b`.
fn other() -> String {
    WORKFLOW.replace("name = \"b\"", "name = \"c\"")
}

// M3
#[tokio::test]
async fn an_order_is_moved_and_a_dry_run_says_what_that_means() {
    let world = world().await;
    let id = world.in_error("k", "acme").await;
    world.later(20_000);
    let (a, b) = (world.workflow.hash().0, world.put(&other()).await);
    let (status, dry) = migrate(&world, &id, &b, json!({"dry_run": true})).await;
    assert_eq!((status, &dry["outcome"], &dry["from"], &dry["to"]), (200, &json!("would_apply"), &json!(a), &json!(b)));
    let lists = |body: &Value| {
        ["again", "left_out", "added", "changed", "undone_differently", "doubts"].map(|list| body[list].clone())
    };
    let expected = [json!(["a"]), json!(["b"]), json!(["c"]), json!([]), json!([]), json!([])];
    assert_eq!(lists(&dry), expected);
    let before = world.task(&id).await;
    assert_eq!((before.version, before.workflow_hash.0.as_str()), (dry["version"].as_u64().unwrap(), a.as_str()));

    let (status, done) = migrate(&world, &id, &b, json!({"resubmit": true, "if_version": before.version})).await;
    assert_eq!((status, &done["outcome"]), (200, &json!("applied")), "{done}");
    assert_eq!(lists(&done), expected);
    let task = world.task(&id).await;
    assert_eq!((task.workflow_hash.0.as_str(), task.process_state()), (b.as_str(), ProcessState::Pending));
    assert_eq!(done["version"], task.version);
    // The answer was lost, and the person repeats the action.
    let again = migrate(&world, &id, &b, json!({"resubmit": true, "if_version": before.version})).await;
    assert_eq!(again.1["outcome"], "repeated", "{again:?}");
    let history = world.get(&format!("/details/{id}")).await["history"].clone();
    let said: Vec<_> = history.as_array().unwrap().iter().rev().take(2).map(|entry| entry["event"].clone()).collect();
    assert_eq!(said, ["migrated", "migration_asked"]);
    world.wake(&id).await;
    assert_eq!(world.task(&id).await.steps[0].attempt, 2);
}

#[tokio::test]
async fn a_step_with_an_agent_is_waited_for() {
    let world = world().await;
    let id = world.submit("k", "acme").await;
    world.wake(&id).await;
    let b = world.put(&other()).await;
    assert_eq!(migrate(&world, &id, &b, json!({"dry_run": true})).await.1["outcome"], "would_wait");
    let (_, waits) = migrate(&world, &id, &b, json!({})).await;
    assert_eq!((&waits["outcome"], waits.get("waits_until")), (&json!("waits"), None));
    assert_eq!(migrate(&world, &id, &b, json!({})).await.1["outcome"], "repeated");
    assert_eq!(world.get(&format!("/details/{id}")).await["order"]["migrating_to"], b);
    world.done(&id, "a", json!({})).await;
    // The first request could still be delivered.
    let (_, dry) = migrate(&world, &id, &world.workflow.hash().0, json!({"dry_run": true})).await;
    assert_eq!(dry["outcome"], "would_apply", "withdrawing needs no wait");
    assert_eq!(world.task(&id).await.workflow_hash, world.workflow.hash());
    world.later(12_000);
    world.wake(&id).await;
    let task = world.task(&id).await;
    assert_eq!((task.workflow_hash.0.as_str(), task.migration), (b.as_str(), None));
    assert_eq!((task.steps.len(), task.steps[1].attempt), (2, 1), "the same Wake goes on under the new definition");
}

#[tokio::test]
async fn what_is_not_possible_is_said_in_a_sentence() {
    let world = world().await;
    let id = world.in_error("k", "acme").await;
    world.later(20_000);
    let lost = world.put(&WORKFLOW.replace("undo = { agent = \"x\" }\n", "")).await;
    let stranger = world.put(&WORKFLOW.replace("name = \"sample\"", "name = \"other\"")).await;
    let answer = migrate(&world, &id, &lost, json!({})).await;
    assert_eq!(
        detail(&answer),
        (409, "step `a`: it may have run, but the new definition has no undo for it; keep the undo")
    );
    let (status, dry) = migrate(&world, &id, &lost, json!({"dry_run": true})).await;
    assert_eq!((status, &dry["outcome"]), (200, &json!("not_allowed")));
    assert!(dry["why"].as_str().unwrap().starts_with("step `a`: it may have run"), "{dry}");
    for hash in ["0123456789abcdef01234567", "no hash", &stranger] {
        let answer = migrate(&world, &id, hash, json!({})).await;
        let (status, text) = detail(&answer);
        assert_eq!(status, 400, "{answer:?}");
        assert!(text.contains(&format!("workflow `sample` has no definition `{hash}`")), "{text}");
    }
    let answer = migrate(&world, &id, "latest", json!({})).await;
    assert_eq!((answer.0, &answer.1["outcome"]), (200, &json!("repeated")), "it has the latest");
    let (_, done) = migrate(&world, &id, "latest", json!({"resubmit": true})).await;
    assert_eq!(done["outcome"], "applied", "which is a plain resubmission");
    let answer = migrate(&world, &id, &world.put(&other()).await, json!({"resubmit": true})).await;
    assert_eq!(detail(&answer), (409, "the order is not in Error, so there is nothing to resubmit"));

    let stale = migrate(&world, &id, "latest", json!({"if_version": 1})).await;
    assert_eq!(stale.0, 409, "{stale:?}");
    let none = Id("ord_00000000000000000000000000".into());
    assert_eq!(migrate(&world, &none, "latest", json!({})).await.0, 404);
    assert_eq!(migrate(&world, &id, "", json!({})).await.0, 400);

    world.post(&format!("/orders/{id}/actions/undo"), json!({"by": "ann", "reason": "r"})).await;
    world.later(20_000);
    world.event(&id, Event::Wake { seen: world.task(&id).await.version, hops: 0 }).await;
    world.done(&id, "a", json!({})).await;
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Undone);
    let answer = migrate(&world, &id, &lost, json!({})).await;
    assert_eq!(detail(&answer), (409, "the order has ended"));
}

// Of two operators the later one decides; the own hash takes the wish back.
#[tokio::test]
async fn a_later_migration_replaces_one_that_waits() {
    let world = world().await;
    let id = world.submit("k", "acme").await;
    world.wake(&id).await;
    let one = world.put(&other()).await;
    let two = world.put(&other().replace("max = 2", "max = 3")).await;
    for to in [&one, &two] {
        assert_eq!(migrate(&world, &id, to, json!({})).await.1["outcome"], "waits");
    }
    assert_eq!(world.task(&id).await.migration.unwrap().to.0, two);
    let (_, withdrawn) = migrate(&world, &id, "latest", json!({})).await;
    assert_eq!(withdrawn["outcome"], "applied");
    let task = world.task(&id).await;
    assert_eq!((task.migration, task.workflow_hash), (None, world.workflow.hash()));
}

// A definition of an agent that the deployment no longer has would leave the order without an answer.
#[tokio::test]
async fn a_definition_that_cannot_run_here_is_refused() {
    let mut world = world().await;
    let id = world.in_error("k", "acme").await;
    let b = world.put(&other()).await;
    world.operator.config.agents.retain(|agent| agent == "x");
    let answer = migrate(&world, &id, &b, json!({})).await;
    let (status, text) = detail(&answer);
    assert!(status == 409 && text.contains("there is no agent `y`"), "{answer:?}");
    assert_eq!(world.task(&id).await.workflow_hash, world.workflow.hash());
}
