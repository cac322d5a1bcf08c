//! Storing work, and listing failed tasks.

use crate::policy::Policy;
use serde_json::Value;
use shared::decision::{Act, Event, What};
use shared::engine::{self, Clock, Engine, Handled};
use shared::message::{AlertEvent, Effect};
use shared::order::{Id, Order, canonical_hash};
use shared::ports::{Created, Error, Messenger, StateStore, async_trait};
use shared::step::State;
use shared::task::{Priority, Submission, Task};
use shared::time::{SignedDuration, Timestamp};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::mpsc::UnboundedSender;

/// Longest name of a handler.
const MAX_HANDLER: usize = 64;

/// A queue's settings, the same for all programs that use it.
#[derive(Clone)]
pub struct Settings {
    /// Shards of the due index.
    pub shards: u16,
    /// Largest clock skew between two instances.
    pub skew: SignedDuration,
    /// Policy of the handlers that `policies` does not name.
    pub policy: Policy,
    /// Policies by handler.
    pub policies: BTreeMap<String, Policy>,
    /// Tenant of the work, for people.
    pub tenant: String,
    /// Where the time comes from.
    pub clock: Clock,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            shards: 4,
            skew: SignedDuration::from_secs(1),
            policy: Policy::default(),
            policies: BTreeMap::new(),
            tenant: "retry".into(),
            clock: Arc::new(Timestamp::now),
        }
    }
}

/// One unit of work.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// The handler that does it: 1 to 64 of `A-Z a-z 0-9 _ . -`.
    pub handler: String,
    /// The handler's input.
    pub params: Value,
    /// Entries with the same handler and key are stored once; `None`: always new.
    pub key: Option<String>,
    /// Not run before this time; `None`: at once.
    pub not_before: Option<Timestamp>,
    /// Shard of the due index; `None`: spread evenly.
    pub shard: Option<u16>,
    /// Its priority, for people.
    pub priority: Priority,
}

/// The result of storing an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Enqueued {
    /// It is stored.
    New(Id),
    /// It was already stored under the same key.
    Known(Id),
}

/// Called with every task that goes to history.
pub(crate) type OnHistory = Arc<dyn Fn(&AlertEvent) + Send + Sync>;

/// One running worker of this process.
struct Seat {
    id: u64,
    /// Where it receives requests; `None` once it was told to stop.
    effects: Option<UnboundedSender<Effect>>,
    on_history: OnHistory,
}

/// Passes the engine's effects to this process's workers, the latest first.
#[derive(Clone, Default)]
pub(crate) struct Local(Arc<Mutex<Vec<Seat>>>);

impl Local {
    /// Registers a worker until the returned value is dropped.
    pub(crate) fn sit(&self, effects: UnboundedSender<Effect>, on_history: OnHistory) -> Sitting {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let id = seats.last().map_or(0, |seat| seat.id + 1);
        seats.push(Seat { id, effects: Some(effects), on_history });
        Sitting { id, local: self.clone() }
    }

    fn on_history(&self) -> Option<OnHistory> {
        let seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seats.last().map(|seat| Arc::clone(&seat.on_history))
    }

    fn effects(&self) -> Option<UnboundedSender<Effect>> {
        let seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seats.iter().rev().find_map(|seat| seat.effects.clone())
    }

    fn send_one(&self, effect: Effect) -> Result<(), Error> {
        match effect {
            // The engine clears the alert when this returns, so it returns only after the callback.
            Effect::Alert(alert) => match self.on_history() {
                Some(on_history) => tell(&*on_history, &alert),
                None => Err(untold(&alert, "no worker runs in this process")),
            },
            Effect::Request(_)
            | Effect::Wake(..)
            | Effect::Notice(_)
            | Effect::Reply(_)
            | Effect::SetAside(_)
            | Effect::Strained(_)
            | Effect::Child(_) => {
                // If no worker runs here, or it has just ended, another finds the task by the due index.
                if let Some(worker) = self.effects() {
                    let _ = worker.send(effect);
                }
                Ok(())
            }
        }
    }
}

fn tell(on_history: &(dyn Fn(&AlertEvent) + Send + Sync), alert: &AlertEvent) -> Result<(), Error> {
    tracing::error!(
        task.id = %alert.order_id,
        alarm = "retry_history",
        "`{}` was given up and moved to history: {}",
        alert.workflow,
        alert.reason
    );
    catch_unwind(AssertUnwindSafe(|| on_history(alert))).map_err(|_| untold(alert, "`on_history` panicked"))
}

/// The alert stays owed, and the next poll of any worker sends it again.
fn untold(alert: &AlertEvent, why: &'static str) -> Error {
    Error::Unavailable { what: format!("`on_history` for {}", alert.order_id), source: why.into() }
}

/// A worker's registration.
pub(crate) struct Sitting {
    id: u64,
    local: Local,
}

impl Sitting {
    /// Accepts no more requests, but still reports tasks that go to history.
    pub(crate) fn close(&self) {
        let mut seats = self.local.0.lock().unwrap_or_else(PoisonError::into_inner);
        for seat in seats.iter_mut().filter(|seat| seat.id == self.id) {
            seat.effects = None;
        }
    }
}

impl Drop for Sitting {
    fn drop(&mut self) {
        self.local.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|seat| seat.id != self.id);
    }
}

#[async_trait]
impl Messenger for Local {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        effects.into_iter().map(|effect| self.send_one(effect)).collect()
    }
}

/// A retry queue over any state store.
#[derive(Clone)]
pub struct RetryQueue {
    pub(crate) engine: Arc<Engine>,
    pub(crate) local: Local,
    pub(crate) settings: Arc<Settings>,
}

impl RetryQueue {
    /// The queue in `store`.
    #[must_use]
    pub fn new(store: Arc<dyn StateStore>, settings: Settings) -> Self {
        let local = Local::default();
        let config = engine::Config {
            instance: format!("retry-{:016x}", fastrand::u64(..)),
            skew: settings.skew,
            cache: 1000,
            overload_age: SignedDuration::ZERO,
            clock: Arc::clone(&settings.clock),
            observer: None,
            pools: shared::pools::Layout::new(),
            classes: false,
            shards: 1,
            public_url: String::new(),
        };
        let engine = Arc::new(Engine::new(store, Arc::new(local.clone()), config));
        Self { engine, local, settings: Arc::new(settings) }
    }

    /// Stores one unit of work, to be run at once and retried until it is done.
    ///
    /// # Errors
    /// The store failed. The work may or may not be stored; with a key ([`Entry::key`]) it can safely be stored again.
    ///
    /// # Panics
    /// If the handler's name is invalid.
    pub async fn enqueue(&self, handler: &str, params: Value) -> Result<Id, Error> {
        let entry = Entry { handler: handler.to_owned(), params, ..Entry::default() };
        match self.enqueue_entry(entry).await? {
            Enqueued::New(id) | Enqueued::Known(id) => Ok(id),
        }
    }

    /// Stores an entry with all its settings.
    ///
    /// # Panics
    /// If the handler's name is invalid.
    pub async fn enqueue_entry(&self, entry: Entry) -> Result<Enqueued, Error> {
        let Entry { handler, params, key, not_before, shard, priority } = entry;
        assert!(is_handler(&handler), "`{handler}` is not a handler name: use 1 to 64 of A-Z a-z 0-9 _ . -");
        let workflow = self.policy(&handler).workflow(&handler);
        self.engine.use_workflow(&workflow).await?;
        let is_keyed = key.is_some();
        let key = key.unwrap_or_else(|| format!("{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..)));
        let now = self.engine.now();
        let id = id(&handler, &self.settings.tenant, &key);
        let shard = shard.unwrap_or_else(|| {
            u16::try_from(id.spread() % u32::from(self.settings.shards.max(1))).expect("less than a u16")
        });
        let tenant = self.settings.tenant.clone();
        let submission =
            Submission { id: id.clone(), tenant: tenant.clone(), reference: None, reply_queue: None, priority, shard };
        let mut task = Task::new(submission, &workflow, now);
        // No Wake is sent; a worker finds the task by the due index.
        let not_before = not_before.map(shared::time::millis);
        task.steps[0].state = State::Pending { not_before };
        task.due = Some(not_before.unwrap_or(now).max(now));
        let hash = canonical_hash(&params);
        let order = Order { id: id.clone(), tenant, idempotency_key: key, hash, created_at: now, input: params };
        Ok(match self.engine.create(&order, &task).await? {
            Created::Exists if is_keyed => Enqueued::Known(id),
            // A new key that exists: this write's answer was lost, and the client retried.
            Created::New | Created::Exists => Enqueued::New(id),
        })
    }

    /// The record of one unit of work, live or in history.
    pub async fn get(&self, id: &Id) -> Result<Option<Task>, Error> {
        self.engine.store.load(id).await
    }

    /// Makes a task in history live again, with all its retries. `false` if it is not in history, or has changed since
    /// `seen`.
    pub async fn resubmit(&self, seen: &Task, by: &str, reason: &str) -> Result<bool, Error> {
        let what = What::Resubmit { step: None, input: None };
        let event = Event::Act(Act { what, by: by.to_owned(), reason: reason.to_owned(), seen: Some(seen.version) });
        let handled = self.engine.handle(vec![(seen.id.clone(), event)]).await.pop();
        match handled.expect("one answer for one event")? {
            Handled::Applied(task) => {
                self.engine.store.rearm(&task, Some(self.engine.now()), task.lease_token).await?;
                Ok(true)
            }
            Handled::Kept(..) | Handled::NoSuchTask => Ok(false),
        }
    }

    pub(crate) fn policy(&self, handler: &str) -> &Policy {
        self.settings.policies.get(handler).unwrap_or(&self.settings.policy)
    }

    /// Up to `limit` tasks of the history, longest there first, and the cursor of the next page.
    pub async fn history(&self, limit: u32, cursor: Option<&str>) -> Result<(Vec<Task>, Option<String>), Error> {
        let page = self.engine.store.attention(limit, cursor).await?;
        let mut tasks = Vec::new();
        for id in page.ids.iter().filter(|id| handler_of(id).is_some()) {
            // The index lags, so leave out live tasks.
            let task = self.engine.store.load(id).await?;
            tasks.extend(task.filter(|t| t.process_state() == shared::task::ProcessState::Error));
        }
        Ok((tasks, page.next))
    }
}

/// `retry:HANDLER:` and the digits of the derived id, so that the key alone names the handler.
fn id(handler: &str, tenant: &str, key: &str) -> Id {
    let derived = Id::derive(tenant, &format!("{handler}\n{key}"));
    Id(format!("retry:{handler}:{}", derived.0.trim_start_matches("ord_")))
}

/// The handler named in an id, if the id belongs to a retry queue.
pub(crate) fn handler_of(id: &Id) -> Option<&str> {
    id.0.strip_prefix("retry:")?.split_once(':').map(|(handler, _)| handler)
}

fn is_handler(name: &str) -> bool {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    !name.is_empty() && name.len() <= MAX_HANDLER && name.bytes().all(is_good)
}
