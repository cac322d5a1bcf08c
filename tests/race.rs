//! Goal: many schedulers and supervisors on one store do each thing once, and lost answers of the store cost no more
//! than a repetition. Method: engines with separate names and memories over the real adapters, at the same time.

use crate::support::world::{QUEUES, World, event};
use crate::support::{expected, three_noops};
use futures::future::join_all;
use leader::LeaseStore;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::engine::{Handled, Observer};
use shared::message::Request;
use shared::order::Id;
use shared::task::{ProcessState, Task};
use shared::time::SignedDuration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stepwarden_aws::Engine;
use stepwarden_embedded::{Call, Fault, FaultHook, Service};
use tokio::sync::Barrier;

const SCHEDULERS: usize = 16;

/// Every save of every instance: the order, the version on which it was decided, and the version that it wrote.
type Saves = Arc<Mutex<Vec<(Id, u64, u64)>>>;

fn recorder(saves: &Saves) -> Observer {
    let saves = Arc::clone(saves);
    Arc::new(move |save| {
        let before = save.before.map_or(0, |(task, _)| task.version);
        saves.lock().unwrap().push((save.task.id.clone(), before, save.task.version));
    })
}

fn instances(world: &World, saves: &Saves, n: usize) -> Vec<Arc<Engine>> {
    (0..n).map(|k| Arc::new(world.engine(&format!("scheduler-{k}"), 1000, Some(recorder(saves))))).collect()
}

async fn orders(world: &World, n: usize) -> Vec<Id> {
    let mut ids = Vec::new();
    for k in 0..n {
        ids.push(world.accept("trip", &format!("key-{k}"), json!({"total_cents": 100 + k})).await);
    }
    ids
}

/// Checks that each order has one chain of saves up to its last version: each save holds one change or several, and
/// follows the previous save.
fn one_chain_each(saves: &Saves, tasks: &[Task]) {
    let mut chains: BTreeMap<Id, Vec<(u64, u64)>> = BTreeMap::new();
    for (id, before, version) in saves.lock().unwrap().iter() {
        chains.entry(id.clone()).or_default().push((*before, *version));
    }
    for task in tasks {
        let mut chain = chains.remove(&task.id).unwrap_or_default();
        chain.sort_unstable();
        let mut last = 0;
        for (before, version) in chain {
            assert!(
                before == last && version > before,
                "{}: {before} to {version} after {last}: {:#?}",
                task.id,
                task.log
            );
            last = version;
        }
        assert_eq!(last, task.version, "{}: {:#?}", task.id, task.log);
    }
}

async fn processed(world: &World, ids: &[Id]) -> Vec<Task> {
    let tasks = join_all(ids.iter().map(|id| world.task(id))).await;
    for task in &tasks {
        assert_eq!(task.process_state(), ProcessState::Processed, "{:#?}", task.log);
    }
    let report = world.remotes.check(tasks.iter().map(|t| (t.id.0.clone(), expected(t)))).unwrap();
    assert!(report.is_clean(), "{report}");
    tasks
}

fn attempts_are_one(tasks: &[Task]) {
    for task in tasks {
        assert!(task.steps.iter().all(|step| step.attempt == 1), "{} was tried twice: {:#?}", task.id, task.log);
    }
}

// D1, B7: of sixteen concurrent schedulers exactly one claims; the others see its claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_sixteen_schedulers_exactly_one_claims() {
    let world = World::with_trip().await;
    let saves = Saves::default();
    let engines = instances(&world, &saves, SCHEDULERS);
    for id in orders(&world, 8).await {
        let start = Arc::new(Barrier::new(SCHEDULERS));
        let claims = engines.iter().map(|engine| {
            let (engine, start, id) = (Arc::clone(engine), Arc::clone(&start), id.clone());
            tokio::spawn(async move {
                // All have read the task before any of them claims.
                engine.handle(vec![(id.clone(), Event::AlertSent { version: 9 })]).await.remove(0).unwrap();
                start.wait().await;
                engine.handle(vec![(id, Event::Wake { seen: 0, hops: 0 })]).await.remove(0).unwrap()
            })
        });
        let answers: Vec<Handled> = join_all(claims).await.into_iter().map(Result::unwrap).collect();
        let won: Vec<_> = answers.iter().filter(|a| matches!(a, Handled::Applied(_))).collect();
        assert_eq!(won.len(), 1, "{answers:#?}");
        let task = world.task(&id).await;
        assert_eq!(task.version, 1);
        let winner = task.locked_by().unwrap().to_owned();
        assert!(task.steps.iter().filter_map(|s| s.locked_by()).all(|by| by == winner), "one winner for both steps");
    }
    // The losers may have sent the requests again, but always the stored ones.
    let mut seen: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for queue in ["agent-inventory", "agent-fraud"] {
        loop {
            let messages = world.receive(queue).await;
            if messages.is_empty() {
                break;
            }
            for (_, _, body) in messages {
                let request: Request = serde_json::from_str(&body).unwrap();
                let told = (request.attempt, request.complete_by.to_string());
                assert_eq!(seen.entry(request.idempotency_key).or_insert_with(|| told.clone()), &told);
            }
        }
    }
    assert_eq!(seen.len(), 16, "two steps of eight orders");
}

// B7, D1, D2, E5: every message is delivered to three of sixteen schedulers at once, and counts once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn messages_delivered_to_three_schedulers_at_once_count_once() {
    let world = World::with_trip().await;
    let saves = Saves::default();
    let engines = instances(&world, &saves, SCHEDULERS);
    let ids = orders(&world, 12).await;
    let mut turn = 0;
    loop {
        let mut is_moving = false;
        for queue in QUEUES {
            let messages = world.receive(queue).await;
            if messages.is_empty() {
                continue;
            }
            is_moving = true;
            let bodies: Vec<_> = messages.iter().map(|(id, _, body)| (id.as_str(), body.as_str())).collect();
            let copies = if ["scheduler", "replies"].contains(&queue) { 3 } else { 1 };
            let handled = (0..copies).map(|k| {
                let engine = &engines[(turn + k * 5) % SCHEDULERS];
                world.handle(queue, engine, event(queue, &bodies))
            });
            for response in join_all(handled).await {
                assert_eq!(response.batch_item_failures, []);
            }
            turn += 1;
            for (_, receipt, _) in &messages {
                let delete = world.clients.sqs.delete_message().queue_url(world.url(queue));
                delete.receipt_handle(receipt).send().await.unwrap();
            }
        }
        if !is_moving {
            break;
        }
    }
    let tasks = processed(&world, &ids).await;
    attempts_are_one(&tasks);
    one_chain_each(&saves, &tasks);
}

// D4, I1, I3 of the protocol: supervisors at the same time count each expired attempt once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_supervisors_count_each_expiry_once() {
    let world = World::with_trip().await;
    let saves = Saves::default();
    let engines = instances(&world, &saves, 8);
    let ids = orders(&world, 10).await;
    while world.deliver("scheduler", &engines[0]).await {}
    world.pass(SignedDuration::from_secs(120));
    let settings = supervisor::Settings::new(1, Duration::from_secs(60));
    let sweeps = engines.iter().map(|engine| {
        let engine = Arc::clone(engine);
        tokio::spawn(async move { supervisor::handler(&engine, &*engine.store, settings).await.unwrap() })
    });
    let sweeps: Vec<_> = join_all(sweeps).await.into_iter().map(Result::unwrap).collect();
    assert_eq!(sweeps.iter().map(|sweep| sweep.expired).sum::<usize>(), 20, "two steps of ten orders: {sweeps:?}");
    assert!(sweeps.iter().any(|sweep| !sweep.stood_by), "{sweeps:?}");
    let tasks = join_all(ids.iter().map(|id| world.task(id))).await;
    for task in &tasks {
        assert_eq!(task.failure_count(), 2, "{:#?}", task.log);
    }
    one_chain_each(&saves, &tasks);
}

// I1, I2: while one supervisor holds the lease, the others stand by and touch nothing; then one of them takes over.
#[tokio::test(flavor = "multi_thread")]
async fn a_supervisor_without_the_lease_stands_by() {
    let world = World::with_trip().await;
    let engine = world.engine("second", 1000, None);
    let id = orders(&world, 1).await.remove(0);
    world.deliver("scheduler", &engine).await;
    world.pass(SignedDuration::from_secs(120));
    let life = SignedDuration::from_secs(60);
    let settings = supervisor::Settings::new(1, Duration::from_secs(60));
    let lease = engine
        .store
        .acquire(&supervisor::lease_name(0), "first", world.now(), life, SignedDuration::ZERO)
        .await
        .unwrap()
        .unwrap();
    let before = world.task(&id).await;
    let sweep = supervisor::handler(&engine, &*engine.store, settings).await.unwrap();
    assert!(sweep.stood_by && sweep.looked_at == 0, "{sweep:?}");
    assert_eq!(world.task(&id).await, before);
    engine.store.release(&lease).await.unwrap();
    let sweep = supervisor::handler(&engine, &*engine.store, settings).await.unwrap();
    assert_eq!((sweep.stood_by, sweep.expired), (false, 2));
    assert!(world.task(&id).await.lease_token > lease.token, "the token rises with the holder");
}

// The protocol's second idea: the answer to every single write is lost once, and each is recognised as our own.
#[tokio::test(flavor = "multi_thread")]
async fn writes_whose_answers_were_lost_are_recognised_as_our_own() {
    // One step after another: with two replies at once, the second may be saved over the first before the first asks again.
    let world = World::start(&[three_noops("60s").replace("noops", "trip")], None).await;
    let saves = Saves::default();
    let engine = world.engine("scheduler", 1000, Some(recorder(&saves)));
    world.accept("trip", "first", json!({})).await;
    world.settle(&engine).await;
    let before = world.endpoints.counts();
    // The definition is stored already: each TransactWriteItems loses its answer once, then is answered.
    world.faults("TransactWriteItems", |n, _| (n % 2 == 0).then_some(Fault::LostAfter));
    let ids = orders(&world, 6).await;
    assert_eq!(world.items("stepwarden-orders").await, 7);
    world.no_faults();
    // All saves are of tasks: the first call loses its answer, and its repetition fails its own condition.
    let lost: Arc<Mutex<BTreeMap<String, u64>>> = Arc::default();
    let told = Arc::clone(&lost);
    world.faults("PutItem", move |_, body| {
        let mut lost = told.lock().unwrap();
        let times = lost.entry(body.to_owned()).or_default();
        *times += 1;
        (*times == 1).then_some(Fault::LostAfter)
    });
    world.settle(&engine).await;
    world.no_faults();
    assert!(lost.lock().unwrap().values().all(|&times| times == 2), "each write is sent twice");
    let tasks = join_all(ids.iter().map(|id| world.task(id))).await;
    assert!(tasks.iter().all(|task| task.process_state() == ProcessState::Processed));
    attempts_are_one(&tasks);
    one_chain_each(&saves, &tasks);
    // A Wake, three requests and three replies for each order.
    let sent = world.endpoints.counts().since(&before).messages_sent;
    assert_eq!(sent, 6 * 7, "nothing was sent twice");
}

// The trap: a write that conflicts with a transaction on its item is retried, not given up and not decided again.
#[tokio::test(flavor = "multi_thread")]
async fn writes_that_meet_a_transaction_are_tried_again() {
    let world = World::with_trip().await;
    orders(&world, 1).await;
    for operation in ["PutItem", "TransactWriteItems"] {
        let tries: Mutex<BTreeMap<String, u64>> = Mutex::default();
        world.faults(operation, move |_, body| {
            // The SDK gives each transaction a separate token, so the order in it is used as the key.
            let body: Value = serde_json::from_str(body).unwrap();
            let key = if body["TransactItems"].is_null() { &body } else { &body["TransactItems"] };
            let mut tries = tries.lock().unwrap();
            let times = tries.entry(key.to_string()).or_default();
            *times += 1;
            (*times <= 2).then_some(Fault::TransactionConflict)
        });
        let ids = orders(&world, if operation == "PutItem" { 3 } else { 6 }).await;
        world.settle(&world.submitting).await;
        world.no_faults();
        attempts_are_one(&processed(&world, &ids).await);
    }
}

// A4, D9, D10, I2 of the protocol: one call in eight to store and queues fails in some way, and every order ends
// correctly.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn orders_end_right_over_a_store_and_queues_that_fail_at_random() {
    let seed: u64 = std::env::var("SEED").map_or(20_261, |seed| seed.parse().expect("SEED is a whole number"));
    println!("SEED={seed}");
    let world = World::with_trip().await;
    let saves = Saves::default();
    let engines = instances(&world, &saves, 3);
    let ids = orders(&world, 8).await;
    let calls = AtomicU64::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
        let mut z = calls.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::SeqCst);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let is_write = matches!(call.operation, "PutItem" | "UpdateItem");
        match z % 40 {
            0 => Some(Fault::Throttle),
            1 => Some(Fault::InternalError),
            2 => Some(Fault::LostBefore),
            3 => Some(Fault::LostAfter),
            4 if is_write && call.service == Service::DynamoDb => Some(Fault::TransactionConflict),
            _ => None,
        }
    });
    world.endpoints.set_fault_hook(Some(hook));
    let settings = supervisor::Settings::new(1, Duration::from_secs(5));
    for round in 0.. {
        assert!(round < 50, "no end after {round} rounds, SEED={seed}");
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for (n, queue) in QUEUES.iter().enumerate() {
                let engine = &engines[(round + n) % engines.len()];
                // A receive may fail as well.
                let delivered =
                    tokio::time::timeout(std::time::Duration::from_secs(30), try_deliver(&world, queue, engine));
                is_moving |= delivered.await.unwrap();
            }
        }
        let mut open = 0;
        for id in &ids {
            let task = loop {
                if let Ok(Some(task)) = shared::ports::StateStore::load(&*engines[0].store, id).await {
                    break task;
                }
            };
            open += usize::from(!task.process_state().is_final());
        }
        if open == 0 {
            break;
        }
        world.pass(SignedDuration::from_secs(61));
        let _ = supervisor::handler(&engines[round % engines.len()], &*engines[round % engines.len()].store, settings)
            .await;
    }
    world.no_faults();
    let tasks = processed(&world, &ids).await;
    for task in &tasks {
        let mut own: Vec<u64> =
            saves.lock().unwrap().iter().filter(|(id, ..)| *id == task.id).map(|(.., version)| *version).collect();
        own.sort_unstable();
        own.dedup();
        // A write whose answers were all lost is known to no instance; no version is known to two instances.
        assert_eq!(own.len(), saves.lock().unwrap().iter().filter(|(id, ..)| *id == task.id).count(), "SEED={seed}");
    }
}

/// As [`World::deliver`], over a queue whose receive may fail.
async fn try_deliver(world: &World, queue: &str, engine: &Engine) -> bool {
    let receive = world.clients.sqs.receive_message().queue_url(world.url(queue)).max_number_of_messages(10);
    let Ok(answer) = receive.wait_time_seconds(0).visibility_timeout(1).send().await else { return true };
    let messages = answer.messages.unwrap_or_default();
    if messages.is_empty() {
        return crate::support::queued(&world.endpoints, queue) > 0 && {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
            true
        };
    }
    world.deliver_all(queue, engine, &messages).await;
    true
}
