//! Goal: the ages of orders tell of work that has stopped, not of work that waits as its workflow says. Method: the
//! measurement over the embedded tables, with orders that wait, and others beside them.

use crate::common::{BEGIN, Dropped, engine, order, tables, wake, workflow};
use shared::order::Id;
use shared::task::{Submission, Task};
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use stepwarden_aws::DynamoStore;
use supervisor::ages::{Ages, Waits, measure, waits};

#[tokio::test]
async fn an_order_that_only_waits_is_not_late() {
    let (_endpoints, clients, config) = tables().await;
    let now = Arc::new(AtomicI64::new(BEGIN));
    let store = Arc::new(DynamoStore::new(clients.dynamodb.clone(), &config));
    let engine = engine(Arc::clone(&store) as _, Arc::new(Dropped), "a", &now, 0);
    assert_eq!(waits(&store, engine.now()).await.unwrap(), Waits { orders: 0, oldest: 0.0 });
    let none = Ages { pending: 0.0, processing: 0.0, owed: 0.0 };
    // The first step waits; in the second workflow another one, which no scheduler has looked at, comes beside it.
    let text = |time: &str| {
        format!(
            "name = \"w\"\n[[step]]\nname = \"a\"\nwait = \"{time}\"\n[[step]]\nname = \"b\"\nafter = [\"a\"]\nagent = \"x\"\ntimeout = \"10s\"\n"
        )
    };
    for time in ["5m", "30d"] {
        let waits = parse("w.toml", &text(time), Known { agents: &["x"], inputs: &[] }).unwrap();
        engine.use_workflow(&waits).await.unwrap();
        let (order, _) = order(Id(format!("waits {time}")), 0, engine.now());
        let task = Task::new(Submission { shard: 0, ..contract::submission(order.id.clone()) }, &waits, engine.now());
        engine.create(&order, &task).await.unwrap();
        wake(&engine, &[order.id]).await;
    }
    now.fetch_add(200_000, Ordering::Relaxed);
    assert_eq!(measure(&engine, config.shards).await.unwrap(), none);
    assert_eq!(waits(&store, engine.now()).await.unwrap(), Waits { orders: 2, oldest: 200.0 });
    engine.use_workflow(&workflow()).await.unwrap();
    let (pending, task) = order(Id("pending".into()), 1, engine.now());
    engine.create(&pending, &task).await.unwrap();
    now.fetch_add(60_000, Ordering::Relaxed);
    assert_eq!(measure(&engine, config.shards).await.unwrap(), Ages { pending: 60.0, ..none });
    wake(&engine, &[pending.id]).await;
    now.fetch_add(1000, Ordering::Relaxed);
    assert_eq!(measure(&engine, config.shards).await.unwrap(), Ages { processing: 61.0, ..none });
    // What comes after the wait is late like any other step.
    now.fetch_add(600_000, Ordering::Relaxed);
    wake(&engine, &[Id("waits 5m".into())]).await;
    assert_eq!(measure(&engine, config.shards).await.unwrap(), Ages { processing: 861.0, ..none });
    assert_eq!(waits(&store, engine.now()).await.unwrap(), Waits { orders: 1, oldest: 861.0 });
}
