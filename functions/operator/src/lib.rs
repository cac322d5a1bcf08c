//! The operator function: what a person does to orders, agents and queues over HTTP, and the lists that show them.
//!
//! All decisions about an order are in [`shared::operator`]. This crate connects HTTP events to the engine, for one
//! order or many. API, command line and console use the same code. It has no right on agents' queues.

pub mod act;
pub mod again;
pub mod agents;
#[cfg(feature = "deployment")]
mod aws;
pub mod charts;
pub mod console;
pub mod deployment;
pub mod details;
pub mod erase;
pub mod http;
pub mod items;
pub mod jobs;
pub mod list;
pub mod mend;
pub mod migrate;
pub mod overview;
mod query;
pub mod queues;
pub mod workflows;

pub use query::state_names;

use edge::auth::Scopes;
use edge::workflows::Workflows;
use std::sync::Arc;
use stepwarden_aws::redrive::Redriver;
use stepwarden_aws::{Clients, Config, Engine};

/// What the operator function needs.
pub struct Operator {
    /// The engine over store and queues.
    pub engine: Arc<Engine>,
    /// Moves poison messages.
    pub redriver: Redriver,
    /// The agents, pools and queues of the system.
    pub config: Config,
    /// The workflows that the deployment has, or why they cannot be used.
    pub deployed: Result<Workflows, String>,
    /// Names of the leases to show.
    pub leases: Vec<String>,
    /// What the routes require of a token.
    pub scopes: Scopes,
    /// Where the charts come from.
    pub charts: charts::Source,
}

impl Operator {
    /// An operator of the system that `config` names.
    #[must_use]
    pub fn new(engine: Arc<Engine>, clients: &Clients, config: &Config, leases: Vec<String>) -> Self {
        Self {
            engine,
            redriver: Redriver::new(clients, config),
            config: config.clone(),
            deployed: Ok(Workflows::new()),
            leases,
            scopes: Scopes::default(),
            charts: charts::Source::Process,
        }
    }
}
