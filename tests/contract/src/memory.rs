//! A store in memory, for tests and for programs of one process.

use leader::{Lease, LeaseStore};
use shared::control::{Agents, Pause};
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{Created, DuePage, Error, Saved, StateStore, async_trait};
use shared::strain::Strain;
use shared::task::{ProcessState, Task, moved};
use shared::time::Timestamp;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is stored.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// The orders.
    pub orders: BTreeMap<Id, Order>,
    /// The tasks.
    pub tasks: BTreeMap<Id, Task>,
    /// The texts of outputs beside records.
    pub outputs: BTreeMap<(Id, Hash), String>,
    /// The definitions.
    pub workflows: BTreeMap<Hash, Workflow>,
    /// The leases.
    pub leases: BTreeMap<String, Lease>,
    /// The state of agents and queues.
    pub agents: Agents,
}

/// What is between a store and its users: a network that takes time and fails, or a list of the calls.
pub trait Between: Send + Sync {
    /// A call of the method with this name, about these orders. If it returns an error, the call fails and nothing is
    /// done.
    fn call(&self, _method: &'static str, _orders: &[&Id]) -> impl Future<Output = Result<(), Error>> + Send {
        async { Ok(()) }
    }

    /// A page of the due index is read, with at most this many rows.
    fn page(&self, _limit: u32) {}

    /// One of several records that are read together; an error is the answer for this record.
    fn each(&self, _order: &Id) -> Result<(), Error> {
        Ok(())
    }

    /// The answer of a save whose outcome was `saved`.
    fn saved(&self, _task: &Task, saved: Saved) -> Result<Saved, Error> {
        Ok(saved)
    }
}

/// Why a call for many records has no single error.
const ONE_BY_ONE: &str = "records that are read together are refused one by one";

/// Nothing is between: each call is done at once.
#[derive(Debug, Default)]
pub struct Open;

impl Between for Open {}

/// A store that answers at once and keeps nothing beyond its own life.
pub type MemoryStore = Behind<Open>;

/// A store in memory behind something else.
#[derive(Debug, Default)]
pub struct Behind<B> {
    tables: Mutex<Tables>,
    between: B,
}

impl<B> Deref for Behind<B> {
    type Target = B;

    fn deref(&self) -> &B {
        &self.between
    }
}

impl<B> Behind<B> {
    /// Locks the stored records until the guard is dropped.
    pub fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The task as it is stored.
    ///
    /// # Panics
    /// If there is no such record.
    pub fn get(&self, id: &str) -> Task {
        self.tables().tasks[&Id(id.into())].clone()
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

/// Length of the record of `task`, in bytes of JSON.
pub fn bytes(task: &Task) -> usize {
    serde_json::to_string(task).expect("a task has only string keys").len()
}

/// A page of an index. A full page has a cursor even if nothing follows, as with DynamoDB.
pub fn page(mut rows: Vec<(Timestamp, Id)>, limit: u32, cursor: Option<&str>) -> DuePage {
    let key = |(at, id): &(Timestamp, Id)| format!("{:020}/{id}", at.as_millisecond());
    rows.sort();
    rows.retain(|row| cursor.is_none_or(|cursor| key(row).as_str() > cursor));
    rows.truncate(limit as usize);
    let next = rows.last().filter(|_| rows.len() == limit as usize).map(key);
    DuePage { ids: rows.into_iter().map(|(_, id)| id).collect(), next }
}

fn holds(stored: &Task, seen: u64, token: u64) -> bool {
    stored.version == seen && stored.lease_token <= token
}

#[async_trait]
impl<B: Between> StateStore for Behind<B> {
    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        self.call("create", &[&task.id]).await?;
        let mut tables = self.tables();
        if tables.tasks.contains_key(&task.id) {
            return Ok(Created::Exists);
        }
        tables.orders.insert(order.id.clone(), order.clone());
        tables.tasks.insert(task.id.clone(), task.clone());
        Ok(Created::New)
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        self.call("load", &[id]).await?;
        Ok(self.tables().tasks.get(id).cloned())
    }

    async fn load_all(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        self.call("load_all", &ids.iter().collect::<Vec<_>>()).await.expect(ONE_BY_ONE);
        let tables = self.tables();
        ids.iter().map(|id| self.each(id).map(|()| tables.tasks.get(id).cloned())).collect()
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        self.call("save", &[&task.id]).await?;
        let bytes = bytes(task);
        if bytes > task.most_bytes() {
            let (what, limit) = (format!("the record of order {}", task.id), task.most_bytes());
            return Err(Error::TooLarge { what, bytes, limit });
        }
        let mut tables = self.tables();
        let saved = match tables.tasks.get(&task.id) {
            Some(stored) if holds(stored, seen, task.lease_token) => {
                tables.tasks.insert(task.id.clone(), task.clone());
                Saved::Applied
            }
            other => Saved::Conflict(other.cloned().map(Box::new)),
        };
        drop(tables);
        self.saved(task, saved)
    }

    async fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error> {
        self.call("rearm", &[&task.id]).await?;
        let mut tables = self.tables();
        if let Some(stored) = tables.tasks.get_mut(&task.id).filter(|stored| holds(stored, task.version, token)) {
            (stored.due, stored.shard, stored.lease_token) = (due, moved(stored.shard), token);
        }
        Ok(())
    }

    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        self.call("due", &[]).await?;
        self.between.page(limit);
        let tables = self.tables();
        let of_shard = tables.tasks.values().filter(|task| task.shard == shard);
        let rows = of_shard.filter_map(|t| t.due.filter(|due| *due <= now).map(|due| (due, t.id.clone())));
        Ok(page(rows.collect(), limit, cursor))
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        self.call("order", &[&task.id]).await?;
        Ok(self.tables().orders.get(&task.id).cloned())
    }

    async fn orders(&self, tasks: &[&Task]) -> Vec<Result<Option<Order>, Error>> {
        self.call("orders", &tasks.iter().map(|task| &task.id).collect::<Vec<_>>()).await.expect(ONE_BY_ONE);
        let tables = self.tables();
        tasks.iter().map(|task| self.each(&task.id).map(|()| tables.orders.get(&task.id).cloned())).collect()
    }

    async fn put_output(&self, id: &Id, hash: &Hash, text: &str) -> Result<(), Error> {
        self.call("put_output", &[id]).await?;
        self.tables().outputs.insert((id.clone(), hash.clone()), text.to_owned());
        Ok(())
    }

    async fn outputs(&self, id: &Id, hashes: &[Hash]) -> Vec<Result<Option<String>, Error>> {
        if let Err(error) = self.call("outputs", &[id]).await {
            return hashes.iter().map(|_| Err(error.again())).collect();
        }
        let tables = self.tables();
        let of = |hash: &Hash| tables.outputs.get(&(id.clone(), hash.clone()));
        hashes.iter().map(|hash| Ok(of(hash).cloned())).collect()
    }

    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        self.tables().workflows.insert(workflow.hash(), workflow.clone());
        Ok(())
    }

    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        self.call("workflow", &[]).await?;
        Ok(self.tables().workflows.get(hash).cloned())
    }

    async fn agents(&self) -> Result<Agents, Error> {
        self.call("agents", &[]).await?;
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

    async fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let tables = self.tables();
        let stopped = tables.tasks.values().filter(|task| task.process_state() == ProcessState::Error);
        Ok(page(stopped.map(|task| (task.updated_at, task.id.clone())).collect(), limit, cursor))
    }
}

impl<B: Between> LeaseStore for Behind<B> {
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
