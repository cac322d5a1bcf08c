//! The adapters: tasks in DynamoDB, messages over SQS, alerts to EventBridge, all on the AWS SDK.
//!
//! There is one of each. Configuration points them to AWS itself, to an emulator by `AWS_ENDPOINT_URL`, or to the
//! endpoints embedded in the local binary.

pub mod batch;
mod batch_get;
pub mod clients;
pub mod config;
pub mod control;
pub mod erase;
pub mod item;
pub mod jobs;
pub mod lease_store;
pub mod list;
pub mod messenger;
pub mod metrics;
pub mod raw;
pub mod redrive;
pub mod registry;
pub mod reply_queues;
pub mod schema;
mod sdk_error;
pub mod sent;
pub mod state_store;
pub mod telemetry;
pub mod traces;
pub mod web;

use std::ops::Deref;
use std::sync::Arc;

pub use clients::Clients;
pub use config::Config;
/// For functions that are compiled once, where they are written; every crate that awaits an `async fn` compiles its
/// body again.
pub use futures::future::BoxFuture;
pub use lease_store::DynamoLeases;
pub use messenger::SqsMessenger;
pub use reply_queues::ReplyQueues;
pub use state_store::DynamoStore;

/// The engine as it runs on AWS and on every endpoint that speaks its protocols, with its store, which keeps more than
/// the engine asks for.
#[derive(Clone)]
pub struct Engine {
    /// The engine.
    pub engine: Arc<shared::engine::Engine>,
    /// Its state store.
    pub store: Arc<DynamoStore>,
}

impl Deref for Engine {
    type Target = shared::engine::Engine;

    fn deref(&self) -> &Self::Target {
        &self.engine
    }
}

/// The engine of one process, which logs and counts its saves.
#[must_use]
pub fn engine(config: &Config, clients: &Clients, clock: shared::engine::Clock) -> Engine {
    observed_engine(config, clients, clock, None)
}

/// An engine of one process with an observer that is called with every save.
#[must_use]
pub fn observed_engine(
    config: &Config,
    clients: &Clients,
    clock: shared::engine::Clock,
    observer: Option<shared::engine::Observer>,
) -> Engine {
    let store = Arc::new(DynamoStore::new(clients.dynamodb.clone(), config));
    let messenger = Arc::new(SqsMessenger::new(clients, config));
    let instance = config.instance.clone();
    let observer: shared::engine::Observer = Arc::new(move |save| {
        metrics::observe(save, &instance);
        if let Some(observer) = &observer {
            observer(save);
        }
    });
    let config = shared::engine::Config {
        instance: config.instance.clone(),
        skew: config.clock_skew,
        cache: config.cache,
        overload_age: config.overload_age,
        clock,
        observer: Some(observer),
        pools: config.pools.clone(),
        classes: config.priority_classes,
        shards: config.shards,
        public_url: config.public_url.clone(),
    };
    let engine = Arc::new(shared::engine::Engine::new(Arc::clone(&store) as _, messenger, config));
    Engine { engine, store }
}

/// The system's clock.
#[must_use]
pub fn wall_clock() -> shared::engine::Clock {
    Arc::new(jiff::Timestamp::now)
}
