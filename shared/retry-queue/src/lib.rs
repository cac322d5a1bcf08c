//! A retry queue: one call stores a unit of work, which is retried until it is done or needs a person.
//!
//! It is the core of Stepwarden with a smaller interface. A unit of work is a task of one step, whose workflow is made
//! in code from the handler's [`Policy`] and pinned by hash like any other. Every change is one conditional write, so
//! of many workers exactly one runs each attempt, and CompleteBy reveals a dead worker. Workers poll: no queue, no
//! leader.
//!
//! *Live tasks and history* are the two sparse indexes of one table, over records of one shape. A live task has a due
//! time and is in the due index. Success takes it out, and the store deletes it after its retention, if it has one. A
//! task whose retries are spent, or whose handler threw, moves in the same write from the due index to the index of
//! what waits for people: it is never in both or in neither. [`RetryQueue::history`] lists those;
//! [`RetryQueue::resubmit`] makes one live again.
//!
//! Give the queue its own tables: the due index of orders belongs to the order system's supervisor.

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
