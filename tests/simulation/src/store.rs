//! Where tasks are kept in a run: in this process's memory, or by the real adapter over embedded endpoints. Both answer
//! at once; [`crate::port`] simulates the network.

use crate::Defect;
use crate::real::RealStore;
use contract::memory::{MemoryStore, page};
use futures::FutureExt;
use shared::control::Pause;
use shared::order::{Id, Order};
use shared::ports::{Created, DuePage, Error, Saved, StateStore};
use shared::registry::{Pointer, Pointers};
use shared::task::{MOVED, Task};
use shared::time::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use stepwarden_aws::item;

/// Maximum number of rows in a page of an index: a small number, so that runs read more than one page.
pub(crate) const PAGE: u32 = 3;

pub enum Store {
    Memory(Memory),
    Real(RealStore),
}

/// Calls a method of the ports of the store in use.
macro_rules! call {
    ($store:expr, $method:ident($($argument:expr),*)) => {
        match $store {
            $crate::store::Store::Memory(memory) => $crate::store::at_once(memory.tables.$method($($argument),*)),
            $crate::store::Store::Real(real) => real.ask(real.store.$method($($argument),*)),
        }
    };
}
pub(crate) use call;

pub(crate) fn at_once<T>(answer: impl Future<Output = T>) -> T {
    answer.now_or_never().expect("a store in memory waits for nothing")
}

/// A row of the due index: shard and time, if there is one.
type Row = Option<(u16, Timestamp)>;

/// The store in memory.
pub struct Memory {
    pub(crate) tables: MemoryStore,
    /// What the due index said of each task, from which time on (milliseconds from the beginning of the run).
    index: Mutex<BTreeMap<Id, Vec<(u64, Row)>>>,
    pointers: Mutex<Pointers>,
    defect: Option<Defect>,
}

impl Memory {
    pub fn new(defect: Option<Defect>) -> Self {
        Self { tables: MemoryStore::default(), index: Mutex::default(), pointers: Mutex::default(), defect }
    }

    /// The version that a write has to name, after a defect made the rest of its condition true.
    fn condition(&self, id: &Id, seen: u64, token: u64) -> u64 {
        let mut tables = self.tables.tables();
        let Some(stored) = tables.tasks.get_mut(id) else { return seen };
        if self.defect == Some(Defect::IgnoresToken) {
            stored.lease_token = stored.lease_token.min(token);
        }
        if self.defect == Some(Defect::IgnoresVersion) { stored.version } else { seen }
    }

    /// Updates the index to what is stored now.
    fn note(&self, id: &Id, at_ms: u64) {
        let tables = self.tables.tables();
        let row = tables.tasks.get(id).and_then(|task| Some((task.shard, task.due?)));
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = index.entry(id.clone()).or_default();
        if rows.last().map(|(_, row)| *row) != Some(row) {
            rows.push((at_ms, row));
        }
    }

    /// What the index said at `as_of`.
    fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>, as_of: u64) -> DuePage {
        if self.defect == Some(Defect::NoMovedSweep) && shard >= MOVED {
            return DuePage::default();
        }
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |rows: &[(u64, Row)]| rows.iter().rev().find(|(from, _)| *from <= as_of).and_then(|(_, row)| *row);
        let rows = index.iter().filter_map(|(id, rows)| Some((row(rows)?, id)));
        let due = rows.filter(|((own, due), _)| *own == shard && *due <= now).map(|((_, due), id)| (due, id.clone()));
        page(due.collect(), limit.min(PAGE), cursor)
    }
}

/// The calls that need more than the ports' arguments, such as the time of the run in milliseconds.
impl Store {
    pub(crate) fn create(&self, order: &Order, task: &Task, at_ms: u64) -> Result<Created, Error> {
        if let Self::Memory(_) = self {
            // What DynamoDB would refuse is refused.
            item::from_order(order, 1)?;
            item::from_task(task, SignedDuration::ZERO)?;
        }
        let created = call!(self, create(order, task));
        self.note(task, at_ms);
        created
    }

    pub(crate) fn save(&self, task: &Task, seen: u64, at_ms: u64) -> Result<Saved, Error> {
        let seen = match self {
            Self::Memory(memory) => memory.condition(&task.id, seen, task.lease_token),
            Self::Real(_) => seen,
        };
        let saved = call!(self, save(task, seen));
        self.note(task, at_ms);
        saved
    }

    /// True if the save is certain to be written.
    pub(crate) fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64, at_ms: u64) -> Result<bool, Error> {
        let Self::Memory(memory) = self else {
            return call!(self, rearm(task, due, token)).map(|()| false);
        };
        let seen = memory.condition(&task.id, task.version, token);
        let is_held = |stored: &Task| stored.version == seen && stored.lease_token <= token;
        let is_written = memory.tables.tables().tasks.get(&task.id).is_some_and(is_held);
        at_once(memory.tables.rearm(&Task { version: seen, ..task.clone() }, due, token))?;
        self.note(task, at_ms);
        Ok(is_written)
    }

    /// What the index said `lag_ms` ago.
    pub(crate) fn due(
        &self,
        shard: u16,
        now: Timestamp,
        limit: u32,
        cursor: Option<&str>,
        (at_ms, lag_ms): (u64, u64),
    ) -> Result<DuePage, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.due(shard, now, limit, cursor, at_ms.saturating_sub(lag_ms))),
            Self::Real(real) => real.ask(real.store.due(shard, now, limit, cursor)),
        }
    }

    pub(crate) fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => {
                memory.tables.set_agent(name, pause);
                Ok(())
            }
            Self::Real(real) => real.ask(real.store.set_agent(name, pause)),
        }
    }

    /// What the names of workflows stand for.
    pub(crate) fn pointers(&self) -> Result<Pointers, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.pointers.lock().unwrap_or_else(PoisonError::into_inner).clone()),
            Self::Real(real) => real.ask(real.store.pointers()),
        }
    }

    /// Makes a name stand for what `next` says if it still stands for what `seen` says; false if not.
    pub(crate) fn set_pointer(&self, name: &str, next: &Pointer, seen: Option<&Pointer>) -> Result<bool, Error> {
        match self {
            Self::Memory(memory) => {
                let mut pointers = memory.pointers.lock().unwrap_or_else(PoisonError::into_inner);
                let is_seen = pointers.get(name).and_then(Option::as_ref) == seen;
                if is_seen {
                    pointers.insert(name.to_owned(), Some(next.clone()));
                }
                Ok(is_seen)
            }
            Self::Real(real) => real.ask(async {
                let stored = real.store.stored_pointers().await?;
                let stored = stored.get(name);
                if stored.and_then(|stored| stored.pointer.as_ref()) != seen {
                    return Ok(false);
                }
                real.store.set_pointer(name, next, stored, "a test", None).await
            }),
        }
    }

    fn note(&self, task: &Task, at_ms: u64) {
        if let Self::Memory(memory) = self {
            memory.note(&task.id, at_ms);
        }
    }
}
