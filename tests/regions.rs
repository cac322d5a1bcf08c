//! Goal: a Region that has only a replica of the tables takes over, and ends every order that it knows. Method: two
//! systems with separate endpoints and the same remote services. The items of the first system are copied into the
//! second as they were a while before the first one is lost, because replication lags. Queues are not copied: messages
//! are hints.

use crate::support::expected;
use crate::support::world::{QUEUES, World};
use serde_json::json;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{ProcessState, Task};
use shared::time::SignedDuration;
use std::time::Duration;
use supervisor::Settings;

/// Copies the current items into the other Region's tables.
async fn replicate(from: &World, to: &World) {
    for table in [&from.config.orders_table, &from.config.state_table] {
        let answer = from.clients.dynamodb.scan().table_name(table).send().await.unwrap();
        assert!(answer.last_evaluated_key.is_none(), "one page of {table}");
        for item in answer.items.unwrap_or_default() {
            to.clients.dynamodb.put_item().table_name(table).set_item(Some(item)).send().await.unwrap();
        }
    }
}

async fn sweep(world: &World) {
    let settings = Settings::new(world.config.shards, Duration::from_secs(60));
    let sweep = supervisor::handler(&world.submitting, &world.submitting.store, settings).await.unwrap();
    assert!(!sweep.stood_by && sweep.failed == 0, "{sweep:?}");
}

/// One batch of each queue.
async fn deliver_once(world: &World) {
    for queue in QUEUES {
        world.deliver(queue, &world.submitting).await;
    }
}

// J4: one Region is active. Steps whose saves were not replicated are done again under the same keys and count once.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_takes_over_from_its_replica() {
    let (first, mut second) = (World::with_trip().await, World::with_trip().await);
    let mut known: Vec<Id> = Vec::new();
    // Orders at every stage: each wave is one round ahead of the next one.
    for wave in 0..8 {
        for n in 0..2 {
            known.push(first.accept("trip", &format!("{wave}-{n}"), json!({"total_cents": 100 + wave})).await);
        }
        deliver_once(&first).await;
    }
    sweep(&first).await;
    replicate(&first, &second).await;
    // The last moments of the first Region, which the replica never sees.
    let lost = first.accept("trip", "lost", json!({"total_cents": 1})).await;
    for _ in 0..2 {
        deliver_once(&first).await;
    }
    let mut ahead = 0;
    for id in &known {
        ahead += usize::from(first.task(id).await.version > second.task(id).await.version);
    }
    assert!(ahead > 0, "nothing was under way when the first Region was lost");

    let later = SignedDuration::from_mins(10);
    first.pass(later);
    second.pass(later);
    // Agents of the second Region call the same remote services.
    second.runtime = first.runtime;
    assert_eq!(second.submitting.store.load(&lost).await.unwrap(), None);
    let again = second.accept("trip", "lost", json!({"total_cents": 1})).await;
    assert_eq!(again, lost, "whoever submits it again under its key gets the same order");
    known.push(again);

    let mut tasks: Vec<Task> = Vec::new();
    // An expired step waits for its back-off before it is retried.
    for _ in 0..10 {
        sweep(&second).await;
        second.settle(&second.submitting).await;
        second.pass(SignedDuration::from_mins(2));
        tasks.clear();
        for id in &known {
            tasks.push(second.task(id).await);
        }
        if tasks.iter().all(|task| task.process_state() == ProcessState::Processed) {
            break;
        }
    }
    for task in &tasks {
        assert_eq!(task.process_state(), ProcessState::Processed, "{:#?}", task.log);
    }
    let report = first.remotes.check(tasks.iter().map(|task| (task.id.0.clone(), expected(task)))).unwrap();
    assert!(report.is_clean(), "{report}");
}
