//! A retry queue: one unit of work stored with one call, retried until it is done or a person has to look at it.
//!
//! It is the core of Stepwarden with a smaller face. A unit of work is a task of one step, its workflow made in code from the
//! handler's [`Policy`] and pinned by hash like any other; every change is one conditional write, so of many workers exactly
//! one runs each attempt, and a worker that dies is found by CompleteBy. No queue and no leader is needed: workers poll.
//!
//! *Live tasks and history* are the two sparse indexes of one table, over records of one shape. A live task has a due time
//! and is in the due index. Success takes it out, and the store forgets it after its retention, if it has one. A task whose retries are
//! spent, or whose handler threw, leaves the due index for the index of what waits for people, in the same write: there is
//! no moment at which it is in both or in neither. [`RetryQueue::history`] lists those, [`RetryQueue::again`] makes one live
//! again.
//!
//! Give the queue tables of its own: the due index of orders belongs to the order system's supervisor.

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
