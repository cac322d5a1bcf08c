//! Submit: takes orders over HTTP and, the same, from the submission queue; and answers how they stand.

pub mod http;
pub mod input;
pub mod queue;
pub mod submission;
pub mod workflows;

use shared::engine::Engine;
use std::sync::Arc;

pub use edge::problem;

pub use queue::handler as queue_handler;

/// What submission needs.
pub struct Submit<S, M> {
    /// The engine over store and queues.
    pub engine: Arc<Engine<S, M>>,
    /// The workflows orders are accepted for.
    pub workflows: workflows::Workflows,
    /// Registered reply queues, and whose orders may name them.
    pub reply_queues: stepwarden_aws::ReplyQueues,
    /// Parts of the due index.
    pub shards: u16,
    /// What the routes ask of a token.
    pub scopes: edge::auth::Scopes,
    /// Whose orders come by message: the submission queue carries no token.
    pub queue_tenant: String,
}
