//! Goal: an order costs no more calls, messages and bytes than it is allowed to. Method: orders delivered one message at a
//! time over the embedded endpoints, which count; and every saved version of a real order, weighed as DynamoDB weighs it.

use crate::support::world::World;
use crate::support::{northwind, recorder, three_noops};
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use shared::task::{ProcessState, Task};
use shared::time::SignedDuration;
use std::time::Duration;
use stepwarden_aws::{Engine, item};
use stepwarden_embedded::Counts;
use supervisor::{Settings, Supervisor};

const ORDERS: u64 = 10;

/// What [`ORDERS`] orders cost after a first one, each delivered message by message to the next of `engines`.
async fn cost(world: &World, name: &str, engines: &[&Engine]) -> Counts {
    let mut before = Counts::default();
    for n in 0..=ORDERS {
        if n == 1 {
            before = world.endpoints.counts();
        }
        let id = world.accept("noops", &format!("{name}-{n}"), json!({"n": n, "text": "x".repeat(200)})).await;
        let mut turn = 0;
        loop {
            let mut scheduled = world.deliver("scheduler", engines[turn % engines.len()]).await;
            scheduled |= world.deliver("replies", engines[turn % engines.len()]).await;
            let acted = world.deliver("agent-noop", engines[0]).await;
            turn += 1;
            if !scheduled && !acted {
                break;
            }
        }
        let task = world.task(&id).await;
        assert_eq!(task.process_state(), ProcessState::Processed);
        assert_eq!(task.version, 4, "a claim, two advances and the end");
    }
    world.endpoints.counts().since(&before)
}

/// Requests to DynamoDB per order, rounded up. The reads of this test are subtracted.
fn calls(counts: &Counts) -> u64 {
    let all = counts.operations.iter().filter(|(name, _)| name.starts_with("DynamoDB"));
    (all.map(|(_, o)| o.requests).sum::<u64>() - ORDERS).div_ceil(ORDERS)
}

fn dynamodb(counts: &Counts, operation: &str) -> u64 {
    counts.requests(&format!("DynamoDB_20120810.{operation}"))
}

fn within_budget(what: &str, counts: &Counts, most: u64) {
    let writes = dynamodb(counts, "PutItem") + dynamodb(counts, "TransactWriteItems");
    println!("{what}: {} DynamoDB calls, {} sends per order", calls(counts), counts.messages_sent / ORDERS);
    assert!(calls(counts) <= most, "{what}: {counts:#?}");
    assert!(counts.messages_sent <= 7 * ORDERS, "{what}: {counts:#?}");
    assert!(writes <= 5 * ORDERS, "{what}: {counts:#?}");
    for other in ["UpdateItem", "DeleteItem", "Query", "Scan", "BatchWriteItem"] {
        assert_eq!(dynamodb(counts, other), 0, "{what}: {counts:#?}");
    }
}

// In virtual time, because an instance also reads the state of the agents every 2 s, and a slow machine must not make
// an order look expensive. J1: at most nine calls and seven messages; five of the calls write to the base tables.
#[tokio::test(start_paused = true)]
async fn a_three_step_order_costs_no_more_calls_and_sends_than_its_budget() {
    let world = World::start(&[three_noops("60s")], None).await;
    let submit = &world.submitting;
    // The five calls that write, and no others.
    within_budget("one process", &cost(&world, "one", &[submit]).await, 5);
    let scheduler = world.engine("scheduler", 1000, None);
    // The task and the input, once.
    within_budget("submit and scheduler apart", &cost(&world, "two", &[&scheduler]).await, 7);
    // Instances that take turns at one order read its task for each of four messages and its input for each of three
    // requests, and nothing else.
    let engines = ["a", "b", "c", "d"].map(|name| world.engine(name, 1000, None));
    let engines: Vec<_> = engines.iter().collect();
    within_budget("four instances in turn", &cost(&world, "four", &engines).await, 12);
}

// The replies of a batch share a request to SQS: the cost sheet relies on it.
#[tokio::test(start_paused = true)]
async fn replies_that_are_ready_together_leave_in_one_request() {
    let world = World::start(&[three_noops("60s")], None).await;
    for n in 0..ORDERS {
        world.accept("noops", &format!("together-{n}"), json!({"n": n})).await;
    }
    let engine = &world.submitting;
    assert!(world.deliver("scheduler", engine).await);
    let before = world.endpoints.counts();
    assert!(world.deliver("agent-noop", engine).await);
    let counts = world.endpoints.counts().since(&before);
    assert_eq!((counts.messages_sent, counts.requests("AmazonSQS.SendMessageBatch")), (ORDERS, 1), "{counts:#?}");
}

// An instance reads the records that it does not have in memory once for a batch, not once for each message; a sweep
// does the same.
#[tokio::test(start_paused = true)]
async fn a_batch_of_unknown_orders_is_read_in_two_requests() {
    let world = World::start(&[three_noops("60s")], None).await;
    for n in 0..ORDERS {
        world.accept("noops", &format!("unknown-{n}"), json!({"n": n})).await;
    }
    let scheduler = world.engine("scheduler", 1000, None);
    let before = world.endpoints.counts();
    assert!(world.deliver("scheduler", &scheduler).await);
    let counts = world.endpoints.counts().since(&before);
    assert_eq!(dynamodb(&counts, "PutItem"), ORDERS, "all in one batch");
    assert_eq!(dynamodb(&counts, "BatchGetItem"), 2, "the tasks, and the inputs their requests need");
    assert_eq!(dynamodb(&counts, "GetItem"), 2, "how the agents stand, and the workflow");

    world.pass(SignedDuration::from_mins(5));
    let supervisor = world.engine("supervisor", 1000, None);
    let before = world.endpoints.counts();
    let swept = Supervisor::new(&supervisor, &*supervisor.store, Settings::new(1, Duration::from_secs(20)))
        .sweep()
        .await
        .unwrap();
    let counts = world.endpoints.counts().since(&before);
    assert_eq!(swept.expired as u64, ORDERS, "{swept:?}");
    assert_eq!(dynamodb(&counts, "BatchGetItem"), 1, "{counts:#?}");
}

/// AWS, "DynamoDB item sizes and formats": names and strings in UTF-8 bytes; a number one byte for each two significant
/// digits and one more.
fn weight(name: &str, value: &AttributeValue) -> usize {
    name.len()
        + match value {
            AttributeValue::S(text) => text.len(),
            AttributeValue::N(digits) => digits.trim_matches('0').len().div_ceil(2) + 1,
            other => panic!("a task has strings and numbers only: {other:?}"),
        }
}

// C1, C4: a real order's task stays under 1 KB through its life, so that each of its writes is one unit.
#[tokio::test(flavor = "multi_thread")]
async fn the_task_of_a_real_order_stays_under_one_kilobyte() {
    let (saved, observer) = recorder();
    let world = World::start(&[include_str!("../workflows/order.toml").to_owned()], Some(observer)).await;
    for n in 0..20 {
        let input = northwind(n);
        let body = json!({"reference": input["order_ref"], "reply_queue": "shop", "input": input});
        world.try_accept(shared::order::DEFAULT_TENANT, &format!("demo-{n}"), &body).await.unwrap();
    }
    world.settle(&world.submitting).await;
    let saved = saved.lock().unwrap();
    assert_eq!(saved.iter().filter(|task| task.process_state() == ProcessState::Processed).count(), 20);
    let weigh = |task: &Task| -> usize {
        let item = item::from_task(task, world.config.retention).unwrap();
        item.iter().map(|(name, value)| weight(name, value)).sum()
    };
    let heaviest = saved.iter().max_by_key(|task| weigh(task)).unwrap();
    let item = item::from_task(heaviest, world.config.retention).unwrap();
    let mut parts: Vec<_> = item.iter().map(|(name, value)| (weight(name, value), name, value)).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.0));
    println!("heaviest version: {} bytes (version {})", weigh(heaviest), heaviest.version);
    let json: Value = serde_json::to_value(heaviest).unwrap();
    for (name, value) in json.as_object().unwrap() {
        println!("  {name}: {} bytes", value.to_string().len());
    }
    assert!(weigh(heaviest) <= 1024, "{} bytes at version {}: {parts:#?}", weigh(heaviest), heaviest.version);
}
