//! A store in memory, for tests and for programs of one process.

use leader::{Lease, LeaseStore};
use shared::control::{Agents, Pause};
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{AttentionIndex, Created, DuePage, Error, Saved, StateStore};
use shared::strain::Strain;
use shared::task::{ProcessState, Task, moved};
use shared::time::Timestamp;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is stored.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The orders.
    pub orders: BTreeMap<Id, Order>,
    /// The tasks.
    pub tasks: BTreeMap<Id, Task>,
    /// The definitions.
    pub workflows: BTreeMap<Hash, Workflow>,
    /// The leases.
    pub leases: BTreeMap<String, Lease>,
    /// How agents and queues stand.
    pub agents: Agents,
}

/// A store that answers at once and keeps nothing beyond its own life.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Tables>);

impl MemoryStore {
    /// All of it, until the guard is dropped.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Pauses an agent, or resumes it.
    pub fn set_agent(&self, name: &str, pause: Option<&Pause>) {
        let paused = &mut self.tables().agents.paused;
        match pause {
            Some(pause) => drop(paused.insert(name.to_owned(), pause.clone())),
            None => drop(paused.remove(name)),
        }
    }
}

/// A page of what is in an index under its key there.
fn page(mut rows: Vec<(Timestamp, Id)>, limit: u32, cursor: Option<&str>) -> DuePage {
    let key = |(at, id): &(Timestamp, Id)| format!("{:020}/{id}", at.as_millisecond());
    rows.sort();
    rows.retain(|row| cursor.is_none_or(|cursor| key(row).as_str() > cursor));
    let is_more = rows.len() > limit as usize;
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| is_more).map(key);
    DuePage { ids: rows.into_iter().map(|(_, id)| id).collect(), next }
}

fn holds(stored: &Task, seen: u64, token: u64) -> bool {
    stored.version == seen && stored.lease_token <= token
}

impl StateStore for MemoryStore {
    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let mut tables = self.tables();
        if tables.tasks.contains_key(&task.id) {
            return Ok(Created::Exists);
        }
        tables.orders.insert(order.id.clone(), order.clone());
        tables.tasks.insert(task.id.clone(), task.clone());
        Ok(Created::New)
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        Ok(self.tables().tasks.get(id).cloned())
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let bytes = serde_json::to_string(task).expect("a task has only string keys").len();
        if bytes > task.most_bytes() {
            let (what, limit) = (format!("the record of order {}", task.id), task.most_bytes());
            return Err(Error::TooLarge { what, bytes, limit });
        }
        let mut tables = self.tables();
        match tables.tasks.get(&task.id) {
            Some(stored) if holds(stored, seen, task.lease_token) => {
                tables.tasks.insert(task.id.clone(), task.clone());
                Ok(Saved::Applied)
            }
            other => Ok(Saved::Conflict(other.cloned().map(Box::new))),
        }
    }

    async fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error> {
        let mut tables = self.tables();
        if let Some(stored) = tables.tasks.get_mut(&task.id).filter(|stored| holds(stored, task.version, token)) {
            (stored.due, stored.shard, stored.lease_token) = (due, moved(stored.shard), token);
        }
        Ok(())
    }

    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let tables = self.tables();
        let of_shard = tables.tasks.values().filter(|task| task.shard == shard);
        let rows = of_shard.filter_map(|t| t.due.filter(|due| *due <= now).map(|due| (due, t.id.clone())));
        Ok(page(rows.collect(), limit, cursor))
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        Ok(self.tables().orders.get(&task.id).cloned())
    }

    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        self.tables().workflows.insert(workflow.hash(), workflow.clone());
        Ok(())
    }

    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        Ok(self.tables().workflows.get(hash).cloned())
    }

    async fn agents(&self) -> Result<Agents, Error> {
        Ok(self.tables().agents.clone())
    }

    async fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        self.tables().agents.waits.insert(queue.to_owned(), waits.clone());
        Ok(())
    }

    async fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        let strained = &mut self.tables().agents.strained;
        let is_seen = strained.get(agent) == seen;
        if is_seen {
            strained.insert(agent.to_owned(), strain.clone());
        }
        Ok(is_seen)
    }
}

impl AttentionIndex for MemoryStore {
    async fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let tables = self.tables();
        let stopped = tables.tasks.values().filter(|task| task.process_state() == ProcessState::Error);
        Ok(page(stopped.map(|task| (task.updated_at, task.id.clone())).collect(), limit, cursor))
    }
}

impl LeaseStore for MemoryStore {
    async fn read(&self, name: &str) -> Result<Option<Lease>, leader::Error> {
        Ok(self.tables().leases.get(name).cloned())
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, leader::Error> {
        let leases = &mut self.tables().leases;
        let is_seen = leases.get(&lease.name) == seen;
        if is_seen {
            leases.insert(lease.name.clone(), lease.clone());
        }
        Ok(is_seen)
    }
}
