//! A retry queue: one call stores a unit of work, which is retried until it is done or needs a person.
//!
//! It is the core of Stepwarden with a smaller interface. A unit of work is a task of one step. Code makes its workflow
//! from the handler's [`Policy`], and a hash pins it as usual. Every change is one conditional write, so of many
//! workers exactly one runs each attempt, and CompleteBy reveals a dead worker. Workers poll: no queue, no leader.
//!
//! *Live tasks and history* are two sparse indexes of one table, over records of one shape. A live task has a due time
//! and is in the due index. Success takes it out, and the store deletes it after its retention, if any. If retries are
//! spent, or the handler threw, one write moves the task from the due index to the index of tasks that wait for people.
//! So it is never in both or in neither. [`RetryQueue::history`] lists those; [`RetryQueue::resubmit`] makes one live
//! again.
//!
//! Give the queue separate tables: the order system's supervisor owns orders' due index.

mod policy;
mod queue;
mod strategy;
mod worker;

pub use policy::{Policy, When};
pub use queue::{Enqueued, Entry, RetryQueue, Settings};
pub use shared::order::Id;
pub use shared::ports::Error;
pub use strategy::{Handlers, InHand, Shards, Strategies, Thrown, ThrownThen};
pub use tokio_util::sync::CancellationToken;
pub use worker::{Answer, BoxError, Job, Polled, RetryWorker};
