//! The real adapter over embedded endpoints. It runs on its own thread, and to its caller it answers at once.
//!
//! While the caller's thread waits, the caller's virtual time does not advance. The other thread has its own paused
//! clock, so the SDK's waits between attempts take no time. Nothing here can make two runs of one seed differ.

use crate::world::lock;
use shared::time::SignedDuration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use stepwarden_aws::{Clients, Config, DynamoStore, schema};
use stepwarden_embedded::{Endpoints, Fault, Options};
use tokio::runtime::Runtime;

pub struct RealStore {
    pub(crate) store: DynamoStore,
    runtime: Option<Runtime>,
    /// The number of the next call.
    calls: AtomicU64,
    /// The fault of the next call.
    fault: Arc<Mutex<Option<Fault>>>,
    met: Met,
}

/// What the adapter met at its endpoint, and how often.
type Met = Arc<Mutex<BTreeMap<&'static str, u64>>>;

/// The faults of calls at the endpoint, below the SDK and its retries, and their names in reports.
pub(crate) const FAULTS: [(Fault, &str); 4] = [
    // The SDK retries.
    (Fault::LostAfter, "answer lost"),
    (Fault::TransactionConflict, "conflict"),
    (Fault::Throttle, "throttle"),
    // The due index finds nothing, as if everything had just been written.
    (Fault::Behind, "stale index"),
];

impl RealStore {
    /// An empty store with its own tables.
    ///
    /// # Panics
    /// If the endpoints in memory cannot be opened, which only a broken build does.
    pub fn open(config: &Config) -> Self {
        let (fault, met) = (Arc::<Mutex<Option<Fault>>>::default(), Met::default());
        let (next, meets) = (Arc::clone(&fault), Arc::clone(&met));
        let endpoints = Endpoints::open(&Options::default()).expect("endpoints in memory");
        endpoints.set_fault_hook(Some(Arc::new(move |_| {
            let fault = lock(&next).take()?;
            let (_, name) = FAULTS.into_iter().find(|(one, _)| *one == fault).expect("one that is injected");
            *lock(&meets).entry(name).or_default() += 1;
            Some(fault)
        })));
        let clients = Clients::embedded(endpoints.http_client());
        let store = DynamoStore::new(clients.dynamodb.clone(), config);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let real = Self {
            store,
            runtime: Some(runtime.expect("a runtime of one thread")),
            calls: AtomicU64::new(1),
            fault,
            met,
        };
        real.ask(schema::create_tables(&clients, config)).expect("tables in memory");
        real
    }

    /// Sets the fault of the next call.
    pub fn disturb(&self, fault: Fault) {
        *lock(&self.fault) = Some(fault);
    }

    /// Clears a fault that the last call may not have met.
    pub fn calm(&self) {
        *lock(&self.fault) = None;
    }

    /// What the adapter met so far, by its name in [`FAULTS`].
    pub fn met(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.met).clone()
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
