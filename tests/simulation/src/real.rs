//! The real adapter over embedded endpoints. It runs on its own thread, and to its caller it answers at once.
//!
//! While the caller's thread waits, the caller's virtual time does not advance. The other thread has its own paused
//! clock, so the SDK's waits between attempts take no time. Nothing here can make two runs of one seed differ.

use shared::time::SignedDuration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use stepwarden_aws::{Clients, Config, DynamoStore, schema};
use stepwarden_embedded::{Endpoints, Fault, Options};
use tokio::runtime::Runtime;

pub struct RealStore {
    pub(crate) store: DynamoStore,
    runtime: Option<Runtime>,
    /// The number of the next call.
    calls: AtomicU64,
    trouble: Arc<AtomicU8>,
    met: Met,
}

/// What the adapter met at its endpoint, and how often.
type Met = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// The fault of the next call at the endpoint, below the SDK and its retries.
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
    pub fn open(config: &Config) -> Self {
        let trouble = Arc::new(AtomicU8::new(0));
        let met = Met::default();
        let (next, meets) = (Arc::clone(&trouble), Arc::clone(&met));
        let endpoints = Endpoints::open(&Options::default()).expect("endpoints in memory");
        endpoints.set_fault_hook(Some(Arc::new(move |_| {
            let next = next.swap(0, Ordering::SeqCst);
            let trouble = Trouble::ALL.into_iter().find(|trouble| *trouble as u8 == next)?;
            *meets.lock().unwrap_or_else(PoisonError::into_inner).entry(trouble.name()).or_default() += 1;
            Some(trouble.fault())
        })));
        let clients = Clients::embedded(endpoints.http_client());
        let store = DynamoStore::new(clients.dynamodb.clone(), config);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let real = Self {
            store,
            runtime: Some(runtime.expect("a runtime of one thread")),
            calls: AtomicU64::new(1),
            trouble,
            met,
        };
        real.ask(schema::create_tables(&clients, config)).expect("tables in memory");
        real
    }

    /// Sets the fault of the next call.
    pub fn disturb(&self, trouble: Trouble) {
        self.trouble.store(trouble as u8, Ordering::SeqCst);
    }

    /// Clears a fault that the last call may not have met.
    pub fn calm(&self) {
        self.trouble.store(0, Ordering::SeqCst);
    }

    /// What the adapter met so far, by [`Trouble::name`].
    #[must_use]
    pub fn met(&self) -> BTreeMap<&'static str, u64> {
        self.met.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the adapter answers.
    pub(crate) fn ask<T: Send>(&self, call: impl Future<Output = T> + Send) -> T {
        let runtime = self.runtime.as_ref().expect("it is there until the store is dropped");
        thread::scope(|scope| {
            let answer = scope.spawn(|| {
                // The SDK draws from here the waits between its attempts, and tokens that no two calls may share.
                fastrand::seed(self.calls.fetch_add(1, Ordering::Relaxed));
                runtime.block_on(call)
            });
            answer.join().expect("the adapter does not panic")
        })
    }
}

impl Drop for RealStore {
    fn drop(&mut self) {
        // A run ends within a separate runtime, which may not wait for another one.
        self.runtime.take().expect("it is dropped once").shutdown_background();
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
        public_url: "https://orders.example".into(),
        shards,
        order_buckets: 1,
        clock_skew: SignedDuration::ZERO,
        // Zero keeps everything: these endpoints delete by the wall clock, which may be ahead of a run's.
        retention: SignedDuration::ZERO,
        cache: 1000,
        overload_age: shared::overload::USUAL,
        files: Default::default(),
        instance: "simulation".into(),
    }
}
