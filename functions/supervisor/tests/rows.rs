//! Goal: rows of the due index that make no progress never starve those that can. Method: the real supervisor over a
//! store in memory with thousands of rows, and over the embedded table with a damaged record; queues and the bus refuse
//! on demand.

use crate::common::{BEGIN, LIFE, order, tables, wake, workflow};
use aws_sdk_dynamodb::types::AttributeValue;
use contract::memory::{Behind, Between, Open};
use jiff::Timestamp;
use shared::engine::{ASIDE_FOR, Engine};
use shared::message::{AlertEvent, Effect};
use shared::order::Id;
use shared::ports::{Error, Messenger, StateStore, async_trait};
use shared::task::{Phase, Task, moved};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stepwarden_aws::DynamoStore;
use stepwarden_aws::redrive::Redriver;
use supervisor::{Settings, Supervisor, Sweep, dead_letters};

/// More rows than one sweep reads of a shard.
const ROWS: usize = 10_050;

/// The task of an order whose notices go to a queue.
fn task(id: &str, now: Timestamp) -> Task {
    Task { reply_queue: Some("gone".into()), ..order(Id(id.into()), 0, now).1 }
}

/// Queues of submitters and a bus that may be unavailable.
#[derive(Default)]
struct Away {
    notices: AtomicBool,
    bus: AtomicBool,
    /// A refusal takes 10 s, as over a dead connection.
    slow: AtomicBool,
    refused: AtomicUsize,
    alerts: Mutex<Vec<AlertEvent>>,
}

#[async_trait]
impl Messenger for Away {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        let send = |effect| {
            let is_away = match &effect {
                Effect::Notice(_) => self.notices.load(Ordering::Relaxed),
                Effect::Alert(_) => self.bus.load(Ordering::Relaxed),
                _ => false,
            };
            if is_away {
                self.refused.fetch_add(1, Ordering::Relaxed);
                return Err(Error::Unavailable { what: "a queue".into(), source: "it does not exist".into() });
            }
            if let Effect::Alert(alert) = effect {
                self.alerts.lock().unwrap().push(*alert);
            }
            Ok(())
        };
        let sent: Vec<_> = effects.into_iter().map(send).collect();
        if self.slow.load(Ordering::Relaxed) && sent.iter().any(Result::is_err) {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        sent
    }
}

fn engine(store: Arc<dyn StateStore>, queues: &Arc<Away>, now: &Arc<AtomicI64>) -> Engine {
    crate::common::engine(store, Arc::clone(queues) as _, "v", now, 0)
}

/// A system whose first rows owe a notice to a missing queue.
struct World<B> {
    store: Arc<Behind<B>>,
    queues: Arc<Away>,
    now: Arc<AtomicI64>,
    engine: Engine,
}

impl<B: Between + Default> World<B> {
    fn new() -> Self {
        let (store, queues) = (Arc::new(Behind::<B>::default()), Arc::new(Away::default()));
        let now = Arc::new(AtomicI64::new(BEGIN));
        let engine = engine(Arc::clone(&store) as _, &queues, &now);
        {
            let mut tables = store.tables();
            tables.workflows.insert(workflow().hash(), workflow());
            for n in 0..ROWS {
                let mut owing = task(&format!("owes_{n:05}"), engine.now());
                (owing.phase, owing.version, owing.turned_at, owing.notice_owed) = (Phase::Processed, 4, 4, true);
                (owing.shard, owing.steps[0].attempt) = (moved(0), 1);
                tables.tasks.insert(owing.id.clone(), owing);
            }
        }
        queues.notices.store(true, Ordering::Relaxed);
        Self { store, queues, now, engine }
    }

    fn pass(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::Relaxed);
    }

    /// An order behind the rows, in their shard, whose attempt has expired without a reply.
    async fn expired(&self) -> Id {
        self.pass(1000);
        let (order, task) = (order(Id("waits".into()), 0, self.engine.now()).0, task("waits", self.engine.now()));
        self.engine.create(&order, &task).await.unwrap();
        wake(&self.engine, std::slice::from_ref(&task.id)).await;
        self.store.tables().tasks.get_mut(&task.id).expect("it was created").shard = moved(0);
        self.pass(3_600_000);
        task.id
    }

    fn supervisor(&self) -> Supervisor<'_, Behind<B>> {
        Supervisor::new(&self.engine, &self.store, Settings::new(1, LIFE))
    }
}

// F1, F3: 10,050 rows that owed an unsendable notice were at the head of the index. An expired order behind them was
// not reached in twenty sweeps, nor ever, after 210,050 refused sends.
#[tokio::test]
async fn rows_that_owe_what_cannot_be_sent_do_not_starve_an_expired_order() {
    let world = World::<Open>::new();
    let id = world.expired().await;
    let mut supervisor = world.supervisor();
    let mut expired = 0;
    for _ in 0..20 {
        expired += supervisor.sweep().await.unwrap().expired;
        world.pass(250);
    }
    assert_eq!(expired, 1, "in twenty sweeps");
    assert_eq!(world.store.tables().tasks[&id].failure_count(), 1);
    let refused = world.queues.refused.load(Ordering::Relaxed);
    assert_eq!(refused, ROWS, "each was tried once in the time of twenty sweeps");
    // Nothing is lost: once the queue exists, each notice is sent.
    world.queues.notices.store(false, Ordering::Relaxed);
    for _ in 0..3 {
        world.pass(300_000);
        supervisor.sweep().await.unwrap();
    }
    assert!(world.store.tables().tasks.values().all(|task| !task.notice_owed));
}

// A newly started function begins at the head of the index. Rows that were tried move behind those that are due by
// then, so it reaches the orders behind them all the same: with 100 x 100 rows in the second sweep; with one page in
// each sweep, from each of three shards in turn, after 3 x 101 sweeps.
#[tokio::test]
async fn independent_supervisors_reach_an_expired_order_behind_many_rows() {
    for (is_cut_short, most) in [(false, 2), (true, 3 * (ROWS / 100 + 1))] {
        let world = World::<Open>::new();
        world.expired().await;
        let mut sweeps = 0;
        loop {
            let mut supervisor = world.supervisor();
            supervisor.stop_at = is_cut_short.then(tokio::time::Instant::now);
            let swept = supervisor.sweep().await.unwrap();
            supervisor.release().await;
            sweeps += 1;
            if swept.expired > 0 {
                break;
            }
            assert!(sweeps < most, "not in {most} sweeps");
            world.pass(60_000);
        }
    }
}

// If a queue is slow to refuse, a sweep ends after a few pages. Each sweep begins with another shard; otherwise orders
// whose first Wake was lost would wait forever behind those that owe a notice.
#[tokio::test(start_paused = true)]
async fn rows_whose_queue_is_slow_to_refuse_do_not_starve_another_part() {
    const SHARDS: u16 = 4;
    for groups in [1, 2] {
        let World { store, queues, now, engine } = World::<Open>::new();
        let forgotten = Id("forgotten".into());
        {
            let mut tables = store.tables();
            for (task, shard) in tables.tasks.values_mut().zip((0..SHARDS).cycle()) {
                task.shard = moved(shard);
            }
            let task = Task { reply_queue: None, ..task(&forgotten.0, engine.now()) };
            tables.tasks.insert(forgotten.clone(), task);
        }
        queues.slow.store(true, Ordering::Relaxed);
        let due = store.tables().tasks[&forgotten].due;
        let mut sweeps = 0;
        while store.tables().tasks[&forgotten].due == due {
            now.fetch_add(60_000, Ordering::Relaxed);
            let settings = Settings { groups, lead_at_most: 1, ..Settings::new(SHARDS, LIFE) };
            let mut supervisor = Supervisor::new(&engine, &*store, settings);
            supervisor.sweep().await.unwrap();
            supervisor.release().await;
            sweeps += 1;
            assert!(sweeps <= 3 * SHARDS, "not in a minute for each of {} parts", 3 * SHARDS);
        }
    }
}

/// No row can be moved, as with a partition at its limit.
#[derive(Default)]
struct Stuck {
    looks: AtomicUsize,
}

impl Between for Stuck {
    async fn call(&self, method: &'static str, orders: &[&Id]) -> Result<(), Error> {
        if method != "rearm" {
            return Ok(());
        }
        self.looks.fetch_add(1, Ordering::Relaxed);
        Err(Error::Unavailable { what: format!("task {}", orders[0]), source: "throttled".into() })
    }
}

// If even moving a row fails, the next sweep continues where the last one ended, in this process or in another.
#[tokio::test]
async fn a_sweep_continues_where_the_previous_one_was_cut_short() {
    for is_new_each_time in [false, true] {
        let world = World::<Stuck>::new();
        let id = world.expired().await;
        let mut expired = 0;
        let mut supervisor = world.supervisor();
        for _ in 0..2 {
            expired += supervisor.sweep().await.unwrap().expired;
            if is_new_each_time {
                supervisor.release().await;
                let places = supervisor.places;
                supervisor = world.supervisor();
                supervisor.places = places;
            }
        }
        assert_eq!((expired, world.store.tables().tasks[&id].failure_count()), (1, 1), "in two sweeps");
        assert!(world.store.looks.load(Ordering::Relaxed) <= ROWS, "no row twice");
    }
}

// A record that cannot be read holds up nothing behind it, causes one alert with its id, stays in the index at long
// intervals, and continues by itself once it can be read.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_put_off_with_an_alert_that_names_it() {
    let (_endpoints, clients, config) = tables().await;
    let (queues, now) = (Arc::new(Away::default()), Arc::new(AtomicI64::new(BEGIN)));
    let store = Arc::new(DynamoStore::new(clients.dynamodb.clone(), &config));
    let engine = engine(Arc::clone(&store) as _, &queues, &now);
    engine.use_workflow(&workflow()).await.unwrap();
    for name in ["damaged", "healthy"] {
        let (order, task) = (order(Id(name.into()), 0, engine.now()).0, task(name, engine.now()));
        engine.create(&order, &task).await.unwrap();
        wake(&engine, &[task.id]).await;
    }
    let damaged = Id("damaged".into());
    let write = async |json: String| {
        let update = clients
            .dynamodb
            .update_item()
            .table_name(&config.state_table)
            .key("pk", AttributeValue::S("damaged".into()));
        let update = update.update_expression("SET #task = :json").expression_attribute_names("#task", "task");
        update.expression_attribute_values(":json", AttributeValue::S(json)).send().await.unwrap();
    };
    let item = async || {
        let get =
            clients.dynamodb.get_item().table_name(&config.state_table).key("pk", AttributeValue::S("damaged".into()));
        get.send().await.unwrap().item.unwrap()
    };
    let good = match &item().await["task"] {
        AttributeValue::S(json) => json.clone(),
        other => panic!("{other:?}"),
    };
    write(format!("{}{}", "[".repeat(200), "]".repeat(200))).await;
    let due_shards = Settings::new(config.shards, LIFE);
    let sweep = async |after: i64| -> Sweep {
        now.fetch_add(after, Ordering::Relaxed);
        let mut supervisor = Supervisor::new(&engine, &*store, due_shards);
        let swept = supervisor.sweep().await.unwrap();
        supervisor.release().await;
        swept
    };
    let alerts = || queues.alerts.lock().unwrap().clone();

    queues.bus.store(true, Ordering::Relaxed);
    let swept = sweep(12_000).await;
    assert_eq!((swept.looked_at, swept.expired, swept.failed), (2, 1, 1), "its neighbour goes on");
    assert!(matches!(&item().await["aside"], AttributeValue::S(why) if why.contains("damaged")));
    for _ in 0..10 {
        assert_eq!(sweep(1).await.looked_at, 0, "it is not at the head of the index");
    }
    queues.bus.store(false, Ordering::Relaxed);
    let pause = i64::try_from(ASIDE_FOR.as_millis()).unwrap();
    sweep(pause).await;
    sweep(pause).await;
    let alerts = alerts();
    assert_eq!(alerts.len(), 1, "once, as soon as the bus takes it: {alerts:?}");
    assert_eq!(alerts[0].order_id, damaged);
    assert!(alerts[0].reason.contains("cannot be read"), "{alerts:?}");
    assert!(alerts[0].runbook.contains("record-unreadable"));

    write(good).await;
    assert_eq!(sweep(pause).await.expired, 1, "it can be read again, and goes on");
    assert_eq!(engine.store.load(&damaged).await.unwrap().unwrap().failure_count(), 1);
    let item = item().await;
    assert!(!item.contains_key("aside") && !item.contains_key("attention"), "{item:?}");
}

// Only queues with dead letters are reported, and an unreadable queue hides no other: an agent may have no stack yet.
#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_tells_of_dead_letters() {
    let (_endpoints, clients, mut config) = tables().await;
    let redriver = Redriver::new(&clients, &config);
    assert_eq!(dead_letters::queues(&redriver), ["set-aside", "replies-dead", "submissions-dead", "scheduler-dead"]);
    config.agents.push("gone".into());
    let redriver = Redriver::new(&clients, &config);
    assert!(dead_letters::queues(&redriver).contains(&"agent-gone-dead".to_owned()));
    assert_eq!(dead_letters::tell(&redriver).await, []);
    for queue in ["replies-dead", "replies-dead", "set-aside"] {
        clients.sqs.send_message().queue_url(config.queue_url(queue)).message_body("x").send().await.unwrap();
    }
    let told = [("set-aside".to_owned(), 1), ("replies-dead".to_owned(), 2)];
    assert_eq!(dead_letters::tell(&redriver).await, told);
}
