//! What an instance keeps in memory between messages: tasks, inputs, definitions, and the state of agents and queues.

use super::{
    AGENTS_FOR, Engine, Known, MAX_CACHED_INPUT, MAX_CACHED_OUTPUTS, MAX_WOKEN, POINTERS_FOR, REPLICATED_AFTER, Save,
    WAKE_TAKES, WOKEN_FOR, lock, unanswered,
};
use crate::control::Agents;
use crate::decision::Turn;
use crate::json;
use crate::order::Id;
use crate::outputs::Outputs;
use crate::overload::{self, Overload, Wait};
use crate::ports::Error;
use crate::queues;
use crate::registry::Pointers;
use crate::task::{Priority, Task, grace};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::{Hash, Workflow};
use futures::future::join_all;
use serde_json::Value;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Most orders that a decision reads at once.
const READ_AT_ONCE: usize = 500;

impl Engine {
    /// The state of agents and queues, read at most [`AGENTS_FOR`] ago. If it cannot be read, the last known state.
    pub async fn agents(&self) -> Arc<Agents> {
        self.known_agents().await.unwrap_or_default()
    }

    /// [`Self::agents`], or the error if they were never read, so that pauses are unknown.
    pub(super) async fn known_agents(&self) -> Result<Arc<Agents>, Error> {
        let now = self.now();
        let known = lock(&self.agents).clone();
        if let Some((read, agents)) = &known
            && read.duration_until(now).abs() < AGENTS_FOR
        {
            return Ok(Arc::clone(agents));
        }
        let agents = match (self.store.agents().await, known) {
            (Ok(agents), _) => Arc::new(agents),
            (Err(_), Some((_, agents))) => agents,
            (Err(error), None) => return Err(error),
        };
        *lock(&self.agents) = Some((now, Arc::clone(&agents)));
        Ok(agents)
    }

    /// Whether a sweep need not read this order, because this instance has just sent the Wake of its wait.
    pub(super) fn rests(&self, id: &Id) -> bool {
        let now = self.now();
        lock(&self.woken).peek(id).is_some_and(|(_, until)| now < *until)
    }

    /// Notes that the Wake of `task`'s wait is sent. True if this instance sent it before. An order that only waits
    /// then rests until the wait ends, but not for long, because an event may begin another step.
    pub(super) fn has_woken(&self, task: &Task, turn: &Turn<'_>) -> bool {
        let soon = plus(turn.now, WOKEN_FOR);
        // The Wake may be late.
        let until = match task.next_claim(turn.workflow, turn.now, turn.skew) {
            _ if !task.only_waits(turn.workflow) => turn.now,
            Some(end) if end <= soon => plus(end, WAKE_TAKES),
            Some(_) | None => soon,
        };
        let until = task.next_deadline(turn.skew).map_or(until, |by| by.min(until));
        let mut woken = lock(&self.woken);
        let before = woken.put(task.id.clone(), (task.version, until));
        if woken.len() > MAX_WOKEN {
            woken.pop_lru();
        }
        before.is_some_and(|(version, _)| version == task.version)
    }

    /// Forgets the state of agents and queues, which has just been changed.
    pub fn forget_agents(&self) {
        *lock(&self.agents) = None;
    }

    /// The registered names of workflows, read at most [`POINTERS_FOR`] ago, and when that read began. Older ones never
    /// count, even if a new read fails, because an order must not get a replaced definition.
    ///
    /// # Errors
    /// The store's.
    pub async fn pointers(&self) -> Result<(Timestamp, Arc<Pointers>), Error> {
        let (now, known) = (self.now(), lock(&self.pointers).clone());
        match known {
            Some((read, pointers)) if read.duration_until(now).abs() < POINTERS_FOR => Ok((read, pointers)),
            _ => self.pointers_now().await,
        }
    }

    /// The same, read now.
    ///
    /// # Errors
    /// The store's.
    pub async fn pointers_now(&self) -> Result<(Timestamp, Arc<Pointers>), Error> {
        let now = self.now();
        let pointers = Arc::new(self.store.pointers().await?);
        *lock(&self.pointers) = Some((now, Arc::clone(&pointers)));
        Ok((now, pointers))
    }

    /// The overload that would refuse another order of `workflow` by `tenant`, if any.
    pub async fn overload(&self, workflow: &Workflow, tenant: &str, priority: Priority) -> Option<Overload> {
        if self.config.overload_age.is_zero() {
            return None;
        }
        let agents = self.agents().await;
        if agents.waits.is_empty() {
            return None;
        }
        let passages = queues::passages(workflow, priority, &self.config.pools, self.config.classes);
        overload::refuse(workflow, tenant, &passages, &agents.waits, self.config.overload_age, self.now())
    }

    /// How far back a sweep leaves out tasks that wait for their first Wake, because the queue of Wakes is long.
    pub async fn sweep_lag(&self, priority: Priority) -> SignedDuration {
        let queue = queues::of_wakes(priority, self.config.classes);
        let grace = lock(&self.workflows).values().map(|workflow| grace(workflow)).min().unwrap_or_default();
        overload::sweep_lag(self.agents().await.waits.get(&queue), grace, self.now())
    }

    /// Notes that a message about an order of `workflow` by `tenant` waited for `age` in `queue`. False, without a
    /// note, if that is within the limit or was noted already.
    ///
    /// # Errors
    /// The store failed. The next message that waited too long is noted instead.
    pub async fn note_wait(
        &self,
        queue: &str,
        tenant: &str,
        age: SignedDuration,
        workflow: &Workflow,
    ) -> Result<bool, Error> {
        // Sweeps use the notes even if no orders are refused.
        let most = if self.config.overload_age.is_zero() { overload::USUAL } else { self.config.overload_age };
        if overload::limit(workflow, most).is_none_or(|limit| age <= limit) {
            return Ok(false);
        }
        let wait = Wait { ms: i64::try_from(age.as_millis()).unwrap_or(i64::MAX), at: self.now() };
        let known = self.agents().await;
        let Some(waits) = overload::noted(known.waits.get(queue), tenant, wait) else { return Ok(false) };
        let mut agents = (*known).clone();
        agents.waits.insert(queue.to_owned(), waits.clone());
        if let Some((_, known)) = &mut *lock(&self.agents) {
            *known = Arc::new(agents);
        }
        self.store.note_wait(queue, &waits).await.map(|()| true)
    }

    /// The definition with this hash, from memory if it was read before.
    ///
    /// # Errors
    /// The store failed; [`Error::Corrupt`] if the definition is missing, which cannot happen to a submitted task.
    pub async fn workflow(&self, hash: &Hash) -> Result<Arc<Workflow>, Error> {
        if let Some(workflow) = lock(&self.workflows).get(hash) {
            return Ok(Arc::clone(workflow));
        }
        let found = self.store.workflow(hash).await?;
        let workflow = Arc::new(found.ok_or_else(|| Error::Corrupt {
            what: format!("workflow {hash}"),
            why: "its definition is missing from the state table".into(),
        })?);
        lock(&self.workflows).insert(hash.clone(), Arc::clone(&workflow));
        Ok(workflow)
    }

    /// Stores `workflow` and the calls that are part of it, once per instance.
    pub async fn use_workflow(&self, workflow: &Workflow) -> Result<Hash, Error> {
        let hash = workflow.hash();
        // A definition that was read may lack its calls.
        if !lock(&self.stored).contains(&hash) {
            for call in workflow.calls() {
                self.store.put_workflow(call).await?;
            }
            self.store.put_workflow(workflow).await?;
            lock(&self.workflows).insert(hash.clone(), Arc::new(workflow.clone()));
            lock(&self.stored).insert(hash.clone());
        }
        Ok(hash)
    }

    /// The tasks with these ids: from memory, and all others from the store at once.
    pub(super) async fn know(&self, ids: &[&Id]) -> Vec<Known> {
        let remembered: Vec<Option<Arc<Task>>> = {
            let mut tasks = lock(&self.tasks);
            ids.iter().map(|id| tasks.get(*id).cloned()).collect()
        };
        let missing = ids.iter().zip(&remembered).filter(|(_, task)| task.is_none());
        let missing: Vec<Id> = missing.map(|(id, _)| (*id).clone()).collect();
        let read = self.read(&missing).await;
        // Read once for all, like workflows, but not while the store is down: each try prolongs the outage.
        if read.iter().any(Result::is_ok) {
            let _ = self.known_agents().await;
        }
        let mut read = read.into_iter().map(|read| read.map(|task| task.map(Arc::new)));
        let mut read = || read.next().expect("`read` has one for each that is missing");
        remembered.into_iter().map(|task| task.map_or_else(|| Known::Read(read()), Known::Remembered)).collect()
    }

    /// Reads these ids from the store, one answer per id, in order. It caches their workflows, so that a batch at a
    /// cold start does not read a workflow once per message. A failed read of a workflow is retried, and its error
    /// reported, where it is needed.
    pub(super) async fn read(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        if ids.is_empty() {
            return Vec::new();
        }
        let mut read = Box::pin(self.store.load_all(ids)).await;
        // Even a faulty store must leave no message unanswered.
        read.resize_with(ids.len(), || Err(unanswered()));
        // Sorted, so that a seed of the simulation always does the same.
        let hashes: BTreeSet<&Hash> = read.iter().flatten().flatten().map(|task| &task.workflow_hash).collect();
        let _ = join_all(hashes.into_iter().map(|hash| self.workflow(hash))).await;
        read
    }

    pub(super) fn saved(&self, task: &Arc<Task>, before: Option<(&Task, &Workflow)>) {
        self.remember(Arc::clone(task));
        if let Some(observer) = &self.config.observer {
            observer(&Save { task, before });
        }
    }

    pub(super) fn remember(&self, task: Arc<Task>) {
        if task.process_state().is_final() {
            lock(&self.tasks).pop(&task.id);
            lock(&self.inputs).pop(&task.id);
            lock(&self.long_inputs).pop(&task.id);
        } else {
            let mut tasks = lock(&self.tasks);
            // Keep the newer one: another batch of this process may have saved it meanwhile.
            if tasks.peek(&task.id).is_none_or(|known| known.version <= task.version) {
                tasks.put(task.id.clone(), task);
            }
        }
    }

    pub(super) fn remember_input(&self, id: &Id, input: &Arc<Value>) {
        if serde_json::to_string(&**input).is_ok_and(|json| json.len() <= MAX_CACHED_INPUT) {
            lock(&self.inputs).put(id.clone(), Arc::clone(input));
        } else {
            lock(&self.long_inputs).put(id.clone(), Arc::clone(input));
        }
    }

    /// What a decision knows before it reads anything.
    pub(super) fn outputs_with_lists(&self) -> Outputs {
        let outputs = Outputs::default();
        lock(&self.lists).iter().for_each(|(hash, list)| outputs.know_list(hash.clone(), Arc::clone(list)));
        outputs
    }

    pub(super) fn remember_lists(&self, outputs: &Outputs) {
        let mut lists = lock(&self.lists);
        for (hash, list) in outputs.lists() {
            if !lists.contains(&hash) {
                lists.put(hash, list);
            }
        }
    }

    /// The order's input for a decision; null if its workflow does not need it.
    pub async fn input(&self, task: &Task, workflow: &Workflow) -> Result<Arc<Value>, Error> {
        if !workflow.reads_input() {
            return Ok(Arc::new(Value::Null));
        }
        let mut found = self.inputs_of(std::iter::once(task)).await;
        found.remove(&task.id).unwrap_or_else(|| Err(unanswered()))
    }

    /// Reads the inputs that decisions about these tasks need and memory lacks, all at once. A failed read is retried,
    /// and its error reported, where the input is needed.
    pub(super) async fn know_inputs(&self, tasks: impl Iterator<Item = &Task>) {
        let tasks: Vec<&Task> = {
            let workflows = lock(&self.workflows);
            let reads = |task: &&Task| workflows.get(&task.workflow_hash).is_some_and(|known| known.reads_input());
            tasks.filter(reads).collect()
        };
        let _ = self.inputs_of(tasks.into_iter()).await;
    }

    /// The inputs of these orders: from memory, and all others from the store at once.
    pub(super) async fn inputs_of<'a>(
        &self,
        tasks: impl Iterator<Item = &'a Task>,
    ) -> HashMap<Id, Result<Arc<Value>, Error>> {
        let mut inputs = HashMap::new();
        let mut missing: Vec<&Task> = Vec::new();
        for task in tasks {
            let short = lock(&self.inputs).get(&task.id).cloned();
            if let Some(input) = short.or_else(|| lock(&self.long_inputs).get(&task.id).cloned()) {
                inputs.insert(task.id.clone(), Ok(input));
            } else if missing.iter().all(|other| other.id != task.id) {
                missing.push(task);
            }
        }
        if missing.is_empty() {
            return inputs;
        }
        let orders = Box::pin(self.store.orders(&missing)).await;
        for (task, order) in missing.into_iter().zip(orders) {
            let input = order.and_then(|order| match order {
                Some(order) => Ok(Arc::new(order.input)),
                None => Err(Error::Corrupt {
                    what: format!("order {}", task.id),
                    why: "its input is missing from the order table".into(),
                }),
            });
            if let Ok(input) = &input {
                self.remember_input(&task.id, input);
            }
            inputs.insert(task.id.clone(), input);
        }
        inputs
    }

    /// Reads the outputs beside the record, and the other orders, that a decision about `task` lacked. True if it
    /// lacked any, so that it must be made again.
    pub(super) async fn know_outputs(&self, task: &Task, outputs: &Outputs) -> Result<bool, Error> {
        let read_orders = self.know_orders(outputs).await?;
        Ok(self.know_long_outputs(task, outputs).await? || read_orders)
    }

    /// Consistently reads the other orders that a decision lacked, and their definitions.
    async fn know_orders(&self, outputs: &Outputs) -> Result<bool, Error> {
        let (ids, hashes) = outputs.take_missing_orders();
        let is_short = !ids.is_empty() || !hashes.is_empty();
        for ids in ids.chunks(READ_AT_ONCE) {
            let mut read = Box::pin(self.store.load_all(ids)).await;
            read.resize_with(ids.len(), || Err(unanswered()));
            for (id, read) in ids.iter().zip(read) {
                match read {
                    // It must not hold up the rest of the task.
                    Err(Error::Corrupt { .. }) => outputs.know_unreadable(id.clone()),
                    read => {
                        // Dropped, because no decision needs it and thousands may be read.
                        let order = read?.map(|task| Arc::new(Task { log: Vec::new(), ..task }));
                        outputs.know_order(id.clone(), order);
                    }
                }
            }
        }
        for hash in hashes {
            let workflow = self.workflow(&hash).await?;
            outputs.know_definition(hash, workflow);
        }
        Ok(is_short)
    }

    async fn know_long_outputs(&self, task: &Task, outputs: &Outputs) -> Result<bool, Error> {
        let missing: Vec<Hash> = outputs.take_missing().into_iter().collect();
        let known: Vec<Option<Arc<str>>> = {
            let mut cache = lock(&self.outputs);
            missing.iter().map(|hash| cache.get(hash).cloned()).collect()
        };
        let unread: Vec<Hash> =
            missing.iter().zip(&known).filter(|(_, text)| text.is_none()).map(|(hash, _)| hash.clone()).collect();
        for (hash, text) in missing.iter().zip(known).filter_map(|(hash, text)| Some((hash, text?))) {
            self.know_output(outputs, hash, &text)?;
        }
        if unread.is_empty() {
            return Ok(!missing.is_empty());
        }
        let mut read = Box::pin(self.store.outputs(&task.id, &unread)).await;
        read.resize_with(unread.len(), || Err(unanswered()));
        for (hash, read) in unread.into_iter().zip(read) {
            match read? {
                Some(text) => {
                    let text = Arc::from(text);
                    self.know_output(outputs, &hash, &text)?;
                    self.remember_output(hash, text);
                }
                None if task.updated_at.duration_until(self.now()) < REPLICATED_AFTER => {
                    return Err(Error::Unavailable {
                        what: format!("output {hash} of task {}", task.id),
                        source: "it is not in the state table yet".into(),
                    });
                }
                None => outputs.lose(hash),
            }
        }
        Ok(true)
    }

    fn know_output(&self, outputs: &Outputs, hash: &Hash, text: &str) -> Result<(), Error> {
        let corrupt = |e: serde_json::Error| Error::Corrupt { what: format!("output {hash}"), why: e.to_string() };
        let value = json::read_own(text).map_err(corrupt)?;
        outputs.know(hash.clone(), Arc::new(value));
        Ok(())
    }

    fn remember_output(&self, hash: Hash, text: Arc<str>) {
        let mut cache = lock(&self.outputs);
        cache.put(hash, text);
        while cache.iter().map(|(_, text)| text.len()).sum::<usize>() > MAX_CACHED_OUTPUTS {
            cache.pop_lru();
        }
    }

    /// Writes the new outputs that `task` names, before it is saved.
    pub(super) async fn put_outputs(&self, task: &Task, outputs: &Outputs) -> Result<(), Error> {
        let new = outputs.new_of(task);
        let put = join_all(new.iter().map(|(hash, text)| self.store.put_output(&task.id, hash, text))).await;
        put.into_iter().collect::<Result<(), Error>>()?;
        new.into_iter().for_each(|(hash, text)| self.remember_output(hash, Arc::from(text)));
        Ok(())
    }
}
