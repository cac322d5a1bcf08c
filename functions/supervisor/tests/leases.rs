//! Goal: supervisors share the work under leases, cost little when idle, and do no harm without a leader or with two.
//! Method: the real supervisor and store over the embedded endpoints, messages dropped, the wall clock a number.

use crate::common::{BEGIN, Dropped, LIFE, SKEW, order, tables, wake, workflow};
use leader::LeaseStore;
use serde_json::json;
use shared::decision::{Event, Turn};
use shared::engine::Engine;
use shared::message::{Outcome, Reply};
use shared::order::Id;
use shared::ports::{Saved, StateStore};
use shared::supervisor::{Verdict, supervise};
use shared::task::{ProcessState, Task};
use shared::workflow::Workflow;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use stepwarden_aws::DynamoStore;
use stepwarden_embedded::{Endpoints, Fault};
use supervisor::{Settings, Supervisor, handler, lease_name};
use tokio::time::Instant;

struct World {
    endpoints: Endpoints,
    store: DynamoStore,
    now: Arc<AtomicI64>,
    workflow: Workflow,
}

impl World {
    async fn new() -> Self {
        let (endpoints, clients, config) = tables().await;
        let store = DynamoStore::new(clients.dynamodb, &config);
        Self { endpoints, store, now: Arc::new(AtomicI64::new(BEGIN)), workflow: workflow() }
    }

    /// An instance whose wall clock is `ahead_ms` ahead.
    fn instance(&self, name: &str, ahead_ms: i64) -> Engine {
        crate::common::engine(Arc::new(self.store.clone()), Arc::new(Dropped), name, &self.now, ahead_ms)
    }

    fn pass(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::Relaxed);
    }

    /// `n` orders, spread over `shards`, each with its step at an agent that stays silent.
    async fn claimed(&self, n: usize, shards: u16) -> Vec<Id> {
        let door = self.instance("door", 0);
        door.use_workflow(&self.workflow).await.unwrap();
        let mut ids = Vec::new();
        for n in 0..n {
            let id = Id::derive("acme", &n.to_string());
            let (order, task) = order(id.clone(), u16::try_from(n).unwrap() % shards, door.now());
            door.create(&order, &task).await.unwrap();
            ids.push(id);
        }
        wake(&door, &ids).await;
        ids
    }

    async fn task(&self, id: &Id) -> Task {
        self.store.load(id).await.unwrap().unwrap()
    }

    async fn failures(&self, ids: &[Id]) -> Vec<u32> {
        let mut all = Vec::new();
        for id in ids {
            all.push(self.task(id).await.failure_count());
        }
        all
    }
}

// J1, I2: a lease kept between sweeps makes an idle one cost a query for each shard and nothing else.
#[tokio::test]
async fn an_idle_sweep_costs_three_queries_for_each_shard() {
    let world = World::new().await;
    let engine = world.instance("v", 0);
    let mut supervisor = Supervisor::new(&engine, &world.store, Settings::new(2, LIFE));
    supervisor.sweep().await.unwrap();
    let before = world.endpoints.counts();
    for _ in 0..10 {
        assert!(!supervisor.sweep().await.unwrap().stood_by);
    }
    let cost = world.endpoints.counts().since(&before);
    assert_eq!(cost.requests("DynamoDB_20120810.Query"), 60);
    assert_eq!(cost.operations.len(), 1, "{:?}", cost.operations);
    supervisor.release().await;
    assert!(world.store.read(&lease_name(0)).await.unwrap().unwrap().is_free());
}

// I6, B7: no supervisor is a bottleneck: each leads some groups, and together they recover all orders.
#[tokio::test]
async fn several_supervisors_work_at_once_each_on_its_groups() {
    let world = World::new().await;
    let ids = world.claimed(16, 4).await;
    world.pass(12_000);
    let settings = Settings { groups: 2, lead_at_most: 1, ..Settings::new(4, LIFE) };
    let (a, b) = (world.instance("v1", 0), world.instance("v2", 0));
    let (mut a, mut b) = (Supervisor::new(&a, &world.store, settings), Supervisor::new(&b, &world.store, settings));
    let (by_a, by_b) = tokio::join!(a.sweep(), b.sweep());
    let (by_a, by_b) = (by_a.unwrap(), by_b.unwrap());
    assert_eq!((by_a.groups, by_b.groups), (1, 1));
    assert_eq!((by_a.expired, by_b.expired), (8, 8));
    assert_eq!(world.failures(&ids).await, [1; 16]);
    // If one dies, the other takes its lease, which is released here, within its bound.
    a.release().await;
    let c = world.instance("v3", 0);
    let mut c = Supervisor::new(&c, &world.store, settings);
    assert_eq!(c.sweep().await.unwrap().groups, 1);
    assert_eq!(b.sweep().await.unwrap().groups, 1);
    let d = world.instance("v4", 0);
    assert!(handler(&d, &world.store, settings).await.unwrap().stood_by);
}

// I6, B7: a single supervisor that leads only some groups at a time serves all of them in turn.
#[tokio::test]
async fn a_lone_supervisor_that_leads_one_group_comes_to_each_in_turn() {
    let world = World::new().await;
    let ids = world.claimed(16, 4).await;
    world.pass(12_000);
    let settings = Settings { groups: 2, lead_at_most: 1, ..Settings::new(4, LIFE) };
    let engine = world.instance("v", 0);
    assert_eq!(handler(&engine, &world.store, settings).await.unwrap().expired, 8);
    world.pass(60_000);
    assert_eq!(handler(&engine, &world.store, settings).await.unwrap().expired, 8);
    assert_eq!(world.failures(&ids).await, [1; 16]);
}

// B7: a supervisor that is killed at its deadline would keep its lease until the lease expires. So it stops before,
// after at least one page.
#[tokio::test]
async fn a_sweep_that_is_out_of_time_stops_after_a_page_and_gives_its_lease_back() {
    let world = World::new().await;
    world.claimed(8, 4).await;
    world.pass(12_000);
    let engine = world.instance("v", 0);
    let mut late = Supervisor::new(&engine, &world.store, Settings::new(4, LIFE));
    late.stop_at = Some(Instant::now());
    let before = world.endpoints.counts();
    let swept = late.patrol(Duration::ZERO, Instant::now()).await.unwrap();
    assert_eq!(world.endpoints.counts().since(&before).requests("DynamoDB_20120810.Query"), 1);
    assert_eq!((swept.groups, swept.stood_by), (1, false));
    assert!(world.store.read(&lease_name(0)).await.unwrap().unwrap().is_free());
    assert_eq!(handler(&engine, &world.store, Settings::new(4, LIFE)).await.unwrap().expired, 8);
}

// I5: without a lease there is no sweep. Nothing is lost: due orders are recovered when the store is back.
#[tokio::test]
async fn with_the_lease_store_away_nobody_sweeps_and_nothing_is_lost() {
    let world = World::new().await;
    let ids = world.claimed(3, 1).await;
    world.pass(12_000);
    let engine = world.instance("v", 0);
    world.endpoints.set_fault_hook(Some(Arc::new(|call| {
        let is_lease = String::from_utf8_lossy(call.body).contains("lease#");
        is_lease.then_some(Fault::InternalError)
    })));
    let before = world.endpoints.counts();
    handler(&engine, &world.store, Settings::new(1, LIFE)).await.unwrap_err();
    assert_eq!(world.endpoints.counts().since(&before).requests("DynamoDB_20120810.Query"), 0);
    assert_eq!(world.failures(&ids).await, [0; 3]);
    world.endpoints.set_fault_hook(None);
    assert_eq!(handler(&engine, &world.store, Settings::new(1, LIFE)).await.unwrap().expired, 3);
}

// I5, D4: two leaders at once, because the clock of one is an hour ahead: every failure counts once, the older leader's
// writes are refused, and every order ends well.
#[tokio::test]
async fn two_leaders_at_once_do_no_harm() {
    let world = World::new().await;
    let ids = world.claimed(40, 1).await;
    let (right, ahead) = (world.instance("right", 0), world.instance("ahead", 3_600_000));
    let settings = Settings::new(1, LIFE);
    let (mut first, mut second) =
        (Supervisor::new(&right, &world.store, settings), Supervisor::new(&ahead, &world.store, settings));
    assert_eq!(first.sweep().await.unwrap().expired, 0);
    world.pass(12_000);
    let (a, b) = tokio::join!(first.sweep(), second.sweep());
    let (a, b) = (a.unwrap(), b.unwrap());
    assert_eq!(world.store.read(&lease_name(0)).await.unwrap().unwrap().token, 2, "the lease changed hands");
    assert_eq!(a.groups, 1, "the first one still believes that it leads");
    assert_eq!(a.expired + b.expired, 40, "{a:?} {b:?}");
    assert_eq!(world.failures(&ids).await, [1; 40]);

    // The same order under both tokens, the older token last: only the token differs, because the version is the same.
    // The time is past the waits that the clock an hour ahead has written.
    world.pass(3_700_000);
    let scheduler = world.instance("s", 0);
    wake(&scheduler, &ids).await;
    world.pass(12_000);
    let task = world.task(&ids[0]).await;
    let turn = Turn {
        workflow: &world.workflow,
        input: &serde_json::Value::Null,
        now: right.now(),
        instance: "right",
        skew: SKEW,
        agents: &shared::control::Agents::default(),
        pools: &shared::pools::ONE_EACH,
        outputs: &shared::outputs::NONE,
        public_url: "https://orders.example",
    };
    world.store.rearm(&task, task.due, 2).await.unwrap();
    let unaware = Task { lease_token: 1, ..task.clone() };
    let Verdict::Recover { task: next, .. } = supervise(&unaware, 1, &turn) else { panic!("{task:?}") };
    let refused = world.store.save(&next, task.version).await.unwrap();
    assert!(matches!(refused, Saved::Conflict(Some(current)) if current.version == task.version));
    assert_eq!(world.failures(&ids[..1]).await, [1]);
    assert_eq!(right.recover(&ids[..1], 1).await.remove(0).unwrap().expired, 0);
    assert_eq!(second.sweep().await.unwrap().expired, 40);
    assert_eq!(world.failures(&ids).await, [2; 40]);

    world.pass(3_700_000);
    wake(&scheduler, &ids).await;
    for id in &ids {
        let attempt = world.task(id).await.steps[0].attempt;
        let outcome = Outcome::Done { output: json!(null) };
        let reply = Reply::new(id.clone(), "a", attempt, outcome);
        scheduler.handle(vec![(id.clone(), Event::Reply(reply))]).await.remove(0).unwrap();
        assert_eq!(world.task(id).await.process_state(), ProcessState::Processed);
    }
}

// J1: several sweeps a minute within one invocation; the leases are released before it ends.
#[tokio::test]
async fn one_invocation_sweeps_until_shortly_before_its_end() {
    let world = World::new().await;
    let engine = world.instance("v", 0);
    let before = world.endpoints.counts();
    let begun = Instant::now();
    let until = begun + Duration::from_millis(500);
    Supervisor::new(&engine, &world.store, Settings::new(1, LIFE))
        .patrol(Duration::from_millis(100), until)
        .await
        .unwrap();
    let queries = world.endpoints.counts().since(&before).requests("DynamoDB_20120810.Query");
    assert!((2..=5).contains(&(queries / 3)), "{queries}");
    assert!(world.store.read(&lease_name(0)).await.unwrap().unwrap().is_free());
}
