//! Goal: no tenant waits behind another tenant's backlog. Method: thousands of one tenant's orders in all queues, then
//! one order of another tenant, delivered batch by batch; and orders of each class, counted in the queues in which they
//! wait.

use crate::support::world::World;
use crate::support::{Whole, three_noops, trip, until};
use serde_json::{Value, json};
use shared::message::{Effect, Outcome, Reply, Request, Wake};
use shared::order::Id;
use shared::ports::{Messenger, StateStore};
use shared::task::ProcessState;
use shared::time::SignedDuration;

async fn accept(world: &World, tenant: &str, key: &str) -> Id {
    world.try_accept(tenant, key, &json!({"workflow": "noops", "reply_queue": "shop", "input": {}})).await.unwrap()
}

// J2: one tenant's backlog of thousands, in every queue, does not hold up another tenant's single order.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenants_backlog_does_not_hold_up_the_order_of_another() {
    const BACKLOG: usize = 2500;
    let world = World::start(&[three_noops("3600s")], None).await;
    let engine = &world.submitting;
    let task = world.task(&accept(&world, "large", "one").await).await;
    let workflow = engine.workflow(&task.workflow_hash).await.unwrap();
    world.deliver("scheduler", engine).await;
    let request: Request = serde_json::from_str(&world.receive("agent-noop").await[0].2).unwrap();
    // Many copies of one message are as good a backlog as many orders.
    let backlog = [
        shared::view::received(&task, &workflow).unwrap(),
        Effect::Wake(Wake::new(&task, task.version, 0), SignedDuration::ZERO),
        Effect::Reply(Box::new(Reply::to(&request, Outcome::Done { output: Value::Null }))),
        Effect::Request(Box::new(request)),
    ];
    for effect in backlog {
        for sent in world.messenger.send(vec![effect; BACKLOG]).await {
            sent.unwrap();
        }
    }
    let queues = ["scheduler", "agent-noop", "replies", "notices-shop"];
    let waiting = |queue: &&str| crate::support::queued(&world.endpoints, queue);
    assert!(queues.iter().map(waiting).all(|n| n >= BACKLOG));

    let id = accept(&world, "small", "one").await;
    // A Wake, then three times a request and its reply, each in the first batch that is taken after it was sent.
    let mut batches = 0;
    while world.task(&id).await.process_state() != ProcessState::Processed {
        for queue in &queues[..3] {
            world.deliver(queue, engine).await;
        }
        batches += 1;
        assert!(batches <= 7, "{:#?}", world.task(&id).await.log);
    }
    assert!(queues.iter().map(waiting).all(|n| n > BACKLOG - 100), "the backlog is still there");
    // Its notices are the first ones too: received, two steps, and the end.
    let own = world.receive("notices-shop").await.iter().filter(|(_, _, body)| body.contains(&id.0)).count();
    assert_eq!(own, 4);
}

// J2: urgent orders wait in separate queues from the first Wake on; low-priority orders wait in separate queues of
// agents.
#[tokio::test(flavor = "multi_thread")]
async fn each_class_waits_in_a_queue_of_its_own() {
    let whole = Whole::start_with(&[trip("trip", "60s", 5, "")], |options| options.begins = false).await;
    for consumer in ["scheduler", "inventory"] {
        whole.system.pause_agent(consumer, true);
    }
    let mut ids = Vec::new();
    for priority in ["high", "normal", "low", "low"] {
        let body = json!({"workflow": "trip", "priority": priority, "input": {"total_cents": 1}});
        ids.push(whole.submit(&format!("{priority}-{}", ids.len()), &body).await);
    }
    assert_eq!(["scheduler-high", "scheduler"].map(|q| whole.queued(q)), [1, 3]);
    whole.system.pause_agent("scheduler", false);
    let queues = ["agent-inventory-high", "agent-inventory", "agent-inventory-low"];
    until("requests in three queues", async || (queues.map(|q| whole.queued(q)) == [1, 1, 2]).then_some(())).await;
    let agents = whole.get("/agents").await;
    let inventory = agents["agents"].as_array().unwrap().iter().find(|a| a["name"] == "inventory").unwrap().clone();
    let wanted = json!([
        {"name": "agent-inventory-high", "waiting": 1},
        {"name": "agent-inventory", "waiting": 1},
        {"name": "agent-inventory-low", "waiting": 2},
    ]);
    assert_eq!(inventory["pools"][0]["queues"], wanted, "{agents}");
    assert_eq!((&inventory["waiting"], &inventory["dead"]), (&json!(4), &json!(0)));
    whole.system.pause_agent("inventory", false);
    whole.all_end(&ids, ProcessState::Processed).await;
}

// J2, D10: without priority classes everything goes through the normal queues, and an urgent order ends as well.
#[tokio::test(flavor = "multi_thread")]
async fn without_classes_there_is_one_queue() {
    let world = World::start(&[three_noops("60s")], None).await;
    let config = stepwarden_aws::Config { priority_classes: false, ..world.config.clone() };
    let engine = stepwarden_aws::engine(&config, &world.clients, stepwarden_aws::wall_clock());
    let body = json!({"workflow": "noops", "priority": "high", "input": {}});
    let id = world.try_accept("acme", "one", &body).await.unwrap();
    assert_eq!(crate::support::queued(&world.endpoints, "scheduler-high"), 1);
    // The Wake that submit sent is read by a scheduler with priority classes; from then on there are none.
    world.deliver("scheduler-high", &engine).await;
    assert_eq!(["agent-noop-high", "agent-noop"].map(|q| crate::support::queued(&world.endpoints, q)), [0, 1]);
    world.settle(&engine).await;
    assert_eq!(world.submitting.store.load(&id).await.unwrap().unwrap().process_state(), ProcessState::Processed);
}
