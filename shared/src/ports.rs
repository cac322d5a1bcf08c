//! The core's ports: the state store and the messenger.
//!
//! An implementation carries the attribute `#[async_trait]`, which makes its methods return boxed futures: an engine then
//! is the same code over every store.
//!
//! One adapter implements them on AWS, and fakes for model and simulation. One contract suite checks that all behave
//! the same.

use crate::control::Agents;
use crate::message::Effect;
use crate::order::{Id, Order};
use crate::overload::Waits;
use crate::registry::Pointers;
use crate::strain::Strain;
use crate::task::Task;
use crate::time::Timestamp;
use crate::workflow::{Hash, Workflow};
pub use async_trait::async_trait;
use futures::future::join_all;

/// The source of an error, kept for the log.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a store or a queue failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It did not answer, answered late, or throttled. A write may or may not have been applied; retry.
    #[error("{what} is unavailable")]
    Unavailable {
        /// What is unavailable.
        what: String,
        /// The cause.
        #[source]
        source: Source,
    },
    /// This program does not write such content: a bug, or another writer. Retrying is useless.
    #[error("{what} cannot be read: {why}")]
    Corrupt {
        /// Which record or message.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// It is larger than the service accepts. Retrying is useless.
    #[error("{what} is too large: {bytes} bytes, at most {limit}")]
    TooLarge {
        /// Which record or message.
        what: String,
        /// Its size in bytes.
        bytes: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

impl From<Source> for Error {
    /// Unboxes one of these errors. Any other error, such as a lease store's, counts as an outage.
    fn from(source: Source) -> Self {
        match source.downcast() {
            Ok(error) => *error,
            Err(source) => Self::Unavailable { what: "a lease".into(), source },
        }
    }
}

impl Error {
    /// A copy for another caller. The chain of sources becomes text.
    #[must_use]
    pub fn again(&self) -> Self {
        match self {
            Self::Unavailable { what, source } => {
                let mut words = source.to_string();
                let mut cause = source.source();
                while let Some(error) = cause {
                    words = format!("{words}: {error}");
                    cause = error.source();
                }
                Self::Unavailable { what: what.clone(), source: words.into() }
            }
            Self::Corrupt { what, why } => Self::Corrupt { what: what.clone(), why: why.clone() },
            Self::TooLarge { what, bytes, limit } => {
                Self::TooLarge { what: what.clone(), bytes: *bytes, limit: *limit }
            }
        }
    }
}

/// The answer to a conditional write.
#[derive(Clone, Debug, PartialEq)]
pub enum Saved {
    /// It is written.
    Applied,
    /// Another version is stored, or none: the current record.
    Conflict(Option<Box<Task>>),
}

/// The answer to a submission's transaction.
#[derive(Clone, Debug, PartialEq)]
pub enum Created {
    /// Order and task are written.
    New,
    /// The id already exists; nothing is written.
    Exists,
}

/// One page of the due index.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DuePage {
    /// Candidates, most overdue first. The index lags; the conditional write decides.
    pub ids: Vec<Id>,
    /// Where the next page begins, if there is one.
    pub next: Option<String>,
}

/// The store of orders, tasks and workflows.
#[async_trait]
pub trait StateStore: Send + Sync {
    /// Whether `task` must be created with [`Task::expires`]: records of tasks that ended well expire, or ever did, or
    /// do so from this task on because its workflow says so.
    async fn expires(&self, _task: &Task, _now: Timestamp) -> Result<bool, Error> {
        Ok(false)
    }
    /// Writes both records or neither. For a task that expires, its id stays used forever: it is [`Created::Exists`]
    /// even when its record is gone. After a crash the due index continues the order.
    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error>;
    /// The task as the last applied write left it (a consistent read).
    async fn load(&self, id: &Id) -> Result<Option<Task>, Error>;
    /// [`StateStore::load`] for many, in few requests. One answer per id, in order. An unreadable record fails alone; a
    /// failed request fails all its records.
    async fn load_all(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        join_all(ids.iter().map(|id| self.load(id))).await
    }
    /// Replaces version `seen` with `task`, if `seen` is still stored and no newer supervisor wrote it. The task's
    /// version is higher by its number of changes. A crash afterwards loses only messages, which the trigger's
    /// redelivery or the supervisor re-sends.
    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error>;
    /// Waits for a random time before the next try at a task whose saves lost this many races, so that fewer writers
    /// collide again. A first try, or a store for one process, does not wait.
    async fn yield_to_others(&self, _lost: usize) {}
    /// Writes only `due`, the [`moved`](crate::task::moved) shard and the supervisor's token, if the version is still
    /// the task's. A lost race is not an error: the winner has set `due` as well.
    async fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error>;
    /// Sets `due` of an unreadable record and notes `why` with it, so that lists show that it waits for a person.
    /// `is_told` notes that an operator was alerted; returns true if that was already noted. The next save of the task
    /// removes the note. Does nothing if there is no such record, or it is not in the due index. A store whose records
    /// are always readable need not do anything.
    async fn set_aside(&self, _id: &Id, _why: &str, _due: Timestamp, _is_told: bool) -> Result<bool, Error> {
        Ok(false)
    }
    /// Up to `limit` tasks of `shard` with `due <= now`, from `cursor` on.
    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error>;
    /// The tasks that stopped and wait for a person: up to `limit` ids, longest waiting first, from `cursor` on. The index
    /// lags; records are the truth.
    async fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error>;
    /// The order of a task. It never changes, so any replica that has it may answer.
    async fn order(&self, task: &Task) -> Result<Option<Order>, Error>;
    /// [`StateStore::order`] for many.
    async fn orders(&self, tasks: &[&Task]) -> Vec<Result<Option<Order>, Error>> {
        join_all(tasks.iter().map(|task| self.order(task))).await
    }
    /// Stores an output's text beside the record of the order `id`; storing it again changes nothing. It stays as long
    /// as that record.
    async fn put_output(&self, id: &Id, hash: &Hash, text: &str) -> Result<(), Error>;
    /// The texts of these outputs of the order `id`. One answer per hash, in order; `None` also for a damaged one. They
    /// never change, so any replica that has them may answer.
    async fn outputs(&self, id: &Id, hashes: &[Hash]) -> Vec<Result<Option<String>, Error>>;
    /// Stores a definition under its hash; storing it again changes nothing.
    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error>;
    /// The definition with this hash.
    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error>;
    /// The state of agents and queues. A store for a single program has none, and ignores the two writes below.
    async fn agents(&self) -> Result<Agents, Error> {
        Ok(Agents::default())
    }
    /// What operators registered under workflow names. A store for a single program has none.
    async fn pointers(&self) -> Result<Pointers, Error> {
        Ok(Pointers::default())
    }
    /// Replaces the note of how long messages of `queue` wait.
    async fn note_wait(&self, _queue: &str, _waits: &Waits) -> Result<(), Error> {
        Ok(())
    }
    /// Replaces the strain `seen` of the agent `agent` with `strain`, if `seen` (`None`: nothing) is still stored. If
    /// not, returns false: another supervisor was faster.
    async fn save_strain(&self, _agent: &str, _strain: &Strain, _seen: Option<&Strain>) -> Result<bool, Error> {
        Ok(false)
    }
}

/// Sends messages.
#[async_trait]
pub trait Messenger: Send + Sync {
    /// Sends all of them, in as few requests as the services allow. One answer per effect, in order; each fails alone.
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>>;
}
