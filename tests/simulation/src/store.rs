//! Where tasks are kept in a run: in this process's memory, or by the real adapter over embedded endpoints. Both answer
//! at once; [`crate::port`] simulates the network.

use crate::Defect;
use crate::real::RealStore;
use leader::Lease;
use shared::control::{Agents, Pause};
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{Created, DuePage, Error, Saved};
use shared::strain::Strain;
use shared::task::{MOVED, ProcessState, Task, moved};
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use stepwarden_aws::item;

/// Most rows in a page of the due index: few, so that there are several pages.
const PAGE: usize = 3;

pub enum Store {
    Memory(Memory),
    Real(RealStore),
}

#[derive(Default)]
pub struct Memory {
    state: Mutex<State>,
    defect: Option<Defect>,
}

/// A row of the due index: shard and time, if there is one.
type Row = Option<(u16, Timestamp)>;

#[derive(Default)]
struct State {
    orders: BTreeMap<Id, Order>,
    tasks: BTreeMap<Id, Task>,
    workflows: BTreeMap<Hash, Workflow>,
    leases: BTreeMap<String, Lease>,
    agents: Agents,
    /// What the due index said about each task, and since when (milliseconds from the beginning of the run).
    index: BTreeMap<Id, Vec<(u64, Row)>>,
}

impl State {
    fn put(&mut self, task: Task, at_ms: u64) {
        self.note(&task, at_ms);
        self.tasks.insert(task.id.clone(), task);
    }

    fn note(&mut self, task: &Task, at_ms: u64) {
        let row = task.due.map(|due| (task.shard, due));
        let rows = self.index.entry(task.id.clone()).or_default();
        if rows.last().map(|(_, row)| *row) != Some(row) {
            rows.push((at_ms, row));
        }
    }
}

impl Memory {
    #[must_use]
    pub fn new(defect: Option<Defect>) -> Self {
        Self { state: Mutex::default(), defect }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holds(&self, stored: &Task, seen: u64, token: u64) -> bool {
        let version = self.defect == Some(Defect::IgnoresVersion) || stored.version == seen;
        let lease = self.defect == Some(Defect::IgnoresToken) || stored.lease_token <= token;
        version && lease
    }
}

/// A page of what is in an index.
fn page(mut all: Vec<(Timestamp, &Id)>, limit: u32, cursor: Option<&str>) -> DuePage {
    all.sort();
    let most = PAGE.min(limit as usize);
    let key = |(at, id): &(Timestamp, &Id)| format!("{:020}/{id}", at.as_millisecond());
    let rest = all.iter().filter(|row| cursor.is_none_or(|cursor| key(row).as_str() > cursor));
    let page: Vec<_> = rest.take(most).collect();
    let next = (page.len() == most).then(|| page.last().map(|row| key(row))).flatten();
    DuePage { ids: page.iter().map(|(_, id)| (*id).clone()).collect(), next }
}

/// One method for each of [`shared::ports::StateStore`] and [`leader::LeaseStore`], with the run's time in milliseconds
/// where an index needs it.
impl Store {
    pub(crate) fn create(&self, order: &Order, task: &Task, at_ms: u64) -> Result<Created, Error> {
        match self {
            Self::Memory(memory) => {
                // Refuses what DynamoDB would refuse.
                item::from_order(order, 1)?;
                item::from_task(task, SignedDuration::ZERO)?;
                let mut state = memory.state();
                if state.tasks.contains_key(&task.id) {
                    return Ok(Created::Exists);
                }
                state.orders.insert(order.id.clone(), order.clone());
                state.put(task.clone(), at_ms);
                Ok(Created::New)
            }
            Self::Real(real) => real.create(order, task),
        }
    }

    pub(crate) fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.state().tasks.get(id).cloned()),
            Self::Real(real) => real.load(id),
        }
    }

    pub(crate) fn load_all(&self, ids: &[Id]) -> Result<Vec<Result<Option<Task>, Error>>, Error> {
        match self {
            Self::Memory(_) => Ok(ids.iter().map(|id| self.load(id)).collect()),
            Self::Real(real) => real.load_all(ids),
        }
    }

    pub(crate) fn save(&self, task: &Task, seen: u64, at_ms: u64) -> Result<Saved, Error> {
        match self {
            Self::Memory(memory) => {
                item::from_task(task, SignedDuration::ZERO)?;
                let mut state = memory.state();
                match state.tasks.get(&task.id) {
                    Some(stored) if memory.holds(stored, seen, task.lease_token) => {
                        state.put(task.clone(), at_ms);
                        Ok(Saved::Applied)
                    }
                    other => Ok(Saved::Conflict(other.cloned().map(Box::new))),
                }
            }
            Self::Real(real) => real.save(task, seen),
        }
    }

    /// True if it is certain to be written.
    pub(crate) fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64, at_ms: u64) -> Result<bool, Error> {
        match self {
            Self::Memory(memory) => {
                let mut state = memory.state();
                let stored = state.tasks.get(&task.id).filter(|stored| memory.holds(stored, task.version, token));
                let Some(stored) = stored else { return Ok(false) };
                let shard = if due.is_some() { moved(task.shard) } else { stored.shard };
                let next = Task { due, shard, lease_token: token, ..stored.clone() };
                state.put(next, at_ms);
                Ok(true)
            }
            Self::Real(real) => real.rearm(task, due, token).map(|()| false),
        }
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
            Self::Memory(memory) => {
                if memory.defect == Some(Defect::NoMovedSweep) && shard >= MOVED {
                    return Ok(DuePage::default());
                }
                let state = memory.state();
                let as_of = at_ms.saturating_sub(lag_ms);
                let row = |rows: &Vec<(u64, Row)>| {
                    rows.iter().rev().find(|(from, _)| *from <= as_of).and_then(|(_, row)| *row)
                };
                let all = (state.index.iter())
                    .filter_map(|(id, rows)| row(rows).map(|row| (id, row)))
                    .filter(|(_, (own, due))| *own == shard && *due <= now)
                    .map(|(id, (_, due))| (due, id));
                Ok(page(all.collect(), limit, cursor))
            }
            Self::Real(real) => real.due(shard, now, limit, cursor),
        }
    }

    pub(crate) fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.state().orders.get(&task.id).cloned()),
            Self::Real(real) => real.order(task),
        }
    }

    pub(crate) fn orders(&self, tasks: &[Task]) -> Result<Vec<Result<Option<Order>, Error>>, Error> {
        match self {
            Self::Memory(_) => Ok(tasks.iter().map(|task| self.order(task)).collect()),
            Self::Real(real) => real.orders(tasks),
        }
    }

    pub(crate) fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => {
                memory.state().workflows.insert(workflow.hash(), workflow.clone());
                Ok(())
            }
            Self::Real(real) => real.put_workflow(workflow),
        }
    }

    pub(crate) fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.state().workflows.get(hash).cloned()),
            Self::Real(real) => real.workflow(hash),
        }
    }

    pub(crate) fn agents(&self) -> Result<Agents, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.state().agents.clone()),
            Self::Real(real) => real.agents(),
        }
    }

    /// The orders that wait for a person.
    pub(crate) fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        match self {
            Self::Memory(memory) => {
                let state = memory.state();
                let stopped = state.tasks.values().filter(|task| task.process_state() == ProcessState::Error);
                Ok(page(stopped.map(|task| (task.updated_at, &task.id)).collect(), limit, cursor))
            }
            Self::Real(real) => real.attention(limit, cursor),
        }
    }

    pub(crate) fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => {
                let paused = &mut memory.state().agents.paused;
                match pause {
                    Some(pause) => drop(paused.insert(name.to_owned(), pause.clone())),
                    None => drop(paused.remove(name)),
                }
                Ok(())
            }
            Self::Real(real) => real.set_agent(name, pause),
        }
    }

    pub(crate) fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        match self {
            Self::Memory(memory) => {
                memory.state().agents.waits.insert(queue.to_owned(), waits.clone());
                Ok(())
            }
            Self::Real(real) => real.note_wait(queue, waits),
        }
    }

    pub(crate) fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        match self {
            Self::Memory(memory) => {
                let strained = &mut memory.state().agents.strained;
                let is_seen = strained.get(agent) == seen;
                if is_seen {
                    strained.insert(agent.to_owned(), strain.clone());
                }
                Ok(is_seen)
            }
            Self::Real(real) => real.save_strain(agent, strain, seen),
        }
    }

    pub(crate) fn read_lease(&self, name: &str) -> Result<Option<Lease>, Error> {
        match self {
            Self::Memory(memory) => Ok(memory.state().leases.get(name).cloned()),
            Self::Real(real) => real.read_lease(name),
        }
    }

    pub(crate) fn replace_lease(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        match self {
            Self::Memory(memory) => {
                let leases = &mut memory.state().leases;
                let is_seen = leases.get(&lease.name) == seen;
                if is_seen {
                    leases.insert(lease.name.clone(), lease.clone());
                }
                Ok(is_seen)
            }
            Self::Real(real) => real.replace_lease(lease, seen),
        }
    }
}
