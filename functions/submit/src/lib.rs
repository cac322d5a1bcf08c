//! Submit: accepts orders, over HTTP and from the submission queue alike, and reports their state.

pub mod callbacks;
mod data;
pub mod events;
pub mod heartbeats;
pub mod http;
pub mod input;
pub mod links;
pub mod queue;
pub mod submission;

use edge::workflows::Workflows;
use shared::engine::Engine;
use std::sync::Arc;

pub use edge::problem;

pub use queue::handler as queue_handler;

/// What submission needs.
pub struct Submit {
    /// The engine over store and queues.
    pub engine: Arc<Engine>,
    /// The deployment's workflows. Operators may have registered others.
    pub workflows: Workflows,
    /// Registered reply queues, and the tenants whose orders may name them.
    pub reply_queues: stepwarden_aws::ReplyQueues,
    /// Shards of the due index.
    pub shards: u16,
    /// What the routes require of a token.
    pub scopes: edge::auth::Scopes,
    /// Tenant of orders by message, because messages carry no token.
    pub queue_tenant: String,
    /// If a new order is stored with its first claims, and this process sends their requests. If not, its first message is
    /// a Wake.
    pub begins: Option<submission::Begins>,
}
