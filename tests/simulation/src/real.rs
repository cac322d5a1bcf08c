//! The real adapter over embedded endpoints, on its own thread, called as if it answered at once.
//!
//! The caller's thread waits, and with it the caller's virtual time. This thread has its own paused clock, so the SDK's
//! waits between attempts take no time. Nothing here can make two runs of one seed differ.

use futures::future::BoxFuture;
use leader::{Lease, LeaseStore};
use shared::control::{Agents, Pause};
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{AttentionIndex, Created, DuePage, Error, Saved, StateStore};
use shared::strain::Strain;
use shared::task::Task;
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread;
use stepwarden_aws::{Clients, Config, DynamoStore, schema};
use stepwarden_embedded::{Endpoints, Fault, Options};

type Job = Box<dyn FnOnce(Arc<DynamoStore>) -> BoxFuture<'static, ()> + Send>;

pub struct RealStore {
    jobs: mpsc::Sender<Job>,
    trouble: Arc<AtomicU8>,
    met: Met,
}

/// What the adapter met at its endpoint, and how often.
type Met = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// What the endpoint does to the next call, below the SDK and its retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Done, and the connection breaks before the answer: the SDK retries.
    LostAfter = 1,
    /// Another transaction holds the item.
    TransactionConflict = 2,
    /// Not done: throttled.
    Throttle = 3,
    /// The due index finds nothing, as if everything had just been written.
    StaleIndex = 4,
}

impl Trouble {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::LostAfter, Self::TransactionConflict, Self::Throttle, Self::StaleIndex];

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::LostAfter => "answer lost",
            Self::TransactionConflict => "conflict",
            Self::Throttle => "throttle",
            Self::StaleIndex => "stale index",
        }
    }

    fn fault(self) -> Fault {
        match self {
            Self::LostAfter => Fault::LostAfter,
            Self::TransactionConflict => Fault::TransactionConflict,
            Self::Throttle => Fault::Throttle,
            Self::StaleIndex => Fault::Behind,
        }
    }
}

impl RealStore {
    /// An empty store with its own tables.
    ///
    /// # Panics
    /// If the endpoints in memory cannot be opened, which only a broken build does.
    #[must_use]
    pub fn open(config: Config) -> Self {
        let (jobs, todo) = mpsc::channel::<Job>();
        let trouble = Arc::new(AtomicU8::new(0));
        let met = Met::default();
        let (next, meets) = (Arc::clone(&trouble), Arc::clone(&met));
        thread::spawn(move || {
            // The SDK draws the waits between its attempts from here.
            fastrand::seed(1);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
            let runtime = runtime.expect("a runtime of one thread");
            let store = runtime.block_on(async {
                let endpoints = Endpoints::open(&Options::default()).expect("endpoints in memory");
                endpoints.set_fault_hook(Some(Arc::new(move |_| {
                    let next = next.swap(0, Ordering::SeqCst);
                    let trouble = Trouble::ALL.into_iter().find(|trouble| *trouble as u8 == next)?;
                    *meets.lock().unwrap_or_else(PoisonError::into_inner).entry(trouble.name()).or_default() += 1;
                    Some(trouble.fault())
                })));
                let clients = Clients::embedded(endpoints.http_client());
                schema::create_tables(&clients, &config).await.expect("tables in memory");
                Arc::new(DynamoStore::new(clients.dynamodb.clone(), &config))
            });
            while let Ok(job) = todo.recv() {
                runtime.block_on(job(Arc::clone(&store)));
            }
        });
        Self { jobs, trouble, met }
    }

    /// Disturbs the next call.
    pub fn disturb(&self, trouble: Trouble) {
        self.trouble.store(trouble as u8, Ordering::SeqCst);
    }

    /// Clears a disturbance that the last call may not have met.
    pub fn calm(&self) {
        self.trouble.store(0, Ordering::SeqCst);
    }

    /// What the adapter met so far, by [`Trouble::name`].
    #[must_use]
    pub fn met(&self) -> BTreeMap<&'static str, u64> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn ask<T: Send + 'static>(
        &self,
        call: impl FnOnce(Arc<DynamoStore>) -> BoxFuture<'static, Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = mpsc::channel();
        let job: Job = Box::new(move |store| {
            let call = call(store);
            Box::pin(async move {
                let _ = answer.send(call.await);
            })
        });
        self.jobs.send(job).expect("its thread lives as long as the store");
        answered.recv().expect("every job is answered")
    }

    pub(crate) fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let (order, task) = (order.clone(), task.clone());
        self.ask(|store| Box::pin(async move { store.create(&order, &task).await }))
    }

    pub(crate) fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        let id = id.clone();
        self.ask(|store| Box::pin(async move { store.load(&id).await }))
    }

    pub(crate) fn load_all(&self, ids: &[Id]) -> Result<Vec<Result<Option<Task>, Error>>, Error> {
        let ids = ids.to_vec();
        self.ask(|store| Box::pin(async move { Ok(store.load_all(&ids).await) }))
    }

    pub(crate) fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let task = task.clone();
        self.ask(move |store| Box::pin(async move { store.save(&task, seen).await }))
    }

    pub(crate) fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error> {
        let task = task.clone();
        self.ask(move |store| Box::pin(async move { store.rearm(&task, due, token).await }))
    }

    pub(crate) fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let cursor = cursor.map(str::to_owned);
        self.ask(move |store| Box::pin(async move { store.due(shard, now, limit, cursor.as_deref()).await }))
    }

    pub(crate) fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        let task = task.clone();
        self.ask(|store| Box::pin(async move { store.order(&task).await }))
    }

    pub(crate) fn orders(&self, tasks: &[Task]) -> Result<Vec<Result<Option<Order>, Error>>, Error> {
        let tasks = tasks.to_vec();
        self.ask(|store| Box::pin(async move { Ok(store.orders(&tasks.iter().collect::<Vec<_>>()).await) }))
    }

    pub(crate) fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        let workflow = workflow.clone();
        self.ask(|store| Box::pin(async move { store.put_workflow(&workflow).await }))
    }

    pub(crate) fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        let hash = hash.clone();
        self.ask(|store| Box::pin(async move { store.workflow(&hash).await }))
    }

    pub(crate) fn agents(&self) -> Result<Agents, Error> {
        self.ask(|store| Box::pin(async move { store.agents().await }))
    }

    pub(crate) fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let cursor = cursor.map(str::to_owned);
        self.ask(move |store| Box::pin(async move { store.attention(limit, cursor.as_deref()).await }))
    }

    pub(crate) fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        let (name, pause) = (name.to_owned(), pause.cloned());
        self.ask(|store| Box::pin(async move { store.set_agent(&name, pause.as_ref()).await }))
    }

    pub(crate) fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        let (queue, waits) = (queue.to_owned(), waits.clone());
        self.ask(move |store| Box::pin(async move { store.note_wait(&queue, &waits).await }))
    }

    pub(crate) fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        let (agent, strain, seen) = (agent.to_owned(), strain.clone(), seen.cloned());
        self.ask(|store| Box::pin(async move { store.save_strain(&agent, &strain, seen.as_ref()).await }))
    }

    pub(crate) fn read_lease(&self, name: &str) -> Result<Option<Lease>, Error> {
        let name = name.to_owned();
        self.ask(|store| Box::pin(async move { Ok(store.read(&name).await?) }))
    }

    pub(crate) fn replace_lease(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        let (lease, seen) = (lease.clone(), seen.cloned());
        self.ask(|store| Box::pin(async move { Ok(store.replace(&lease, seen.as_ref()).await?) }))
    }
}

/// The configuration of one run: only names, nothing that exists outside it.
#[must_use]
pub fn config(shards: u16, classes: bool, pools: shared::pools::Layout) -> Config {
    Config {
        orders_table: "orders".into(),
        state_table: "state".into(),
        queue_prefix: String::new(),
        event_bus: "bus".into(),
        reply_queues: format!("{}=*", crate::world::REPLY_QUEUE).parse().expect("a name and every tenant"),
        agents: agent::agents::NAMES.map(str::to_owned).to_vec(),
        external_agents: Vec::new(),
        pools,
        priority_classes: classes,
        shards,
        order_buckets: 1,
        clock_skew: SignedDuration::ZERO,
        // Zero keeps everything: these endpoints delete by the wall clock, which may be ahead of a run's.
        retention: SignedDuration::ZERO,
        cache: 1000,
        overload_age: shared::overload::USUAL,
        instance: "simulation".into(),
    }
}
