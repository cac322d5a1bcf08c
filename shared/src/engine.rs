//! Load, decide, save, send: the only code that awaits between reading a task and writing it.
//!
//! The message that triggered the work is the outbox. If the process dies anywhere here, the queue redelivers the
//! message and the decision re-sends what may not have been sent. After a version conflict it decides again on the new
//! state.

mod children;
mod memory;
mod migration;
mod outbox;
mod submission;

use crate::control::Agents;
use crate::decision::{Act, Decision, Event, Kept, Turn};
use crate::erase::{self, Obstacle, Part};
use crate::history::{MAX_TEXT, shorten};
use crate::mend::{self, Unfit};
use crate::message::{AlertEvent, Effect};
use crate::operator::Outcome;
use crate::order::Id;
use crate::outputs::Outputs;
use crate::pools::{self, Pools};
use crate::ports::{Error, Messenger, Saved, StateStore};
use crate::registry::Pointers;
use crate::scheduler::{schedule, schedule_full};
use crate::supervisor::{Verdict, holders, supervise, supervise_full};
use crate::task::Task;
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::{Hash, MAX_STEPS, Workflow};
use futures::future::{BoxFuture, join_all};
use lru::LruCache;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Most rounds of load and decide for one task. A round is lost only if another writer made progress. As many writers
/// may compete as steps are with agents, besides Wakes, people and a supervisor.
const MAX_ROUNDS: usize = 2 * MAX_STEPS;
/// Largest input kept in memory between messages, in bytes of JSON.
const MAX_CACHED_INPUT: usize = 16 * 1024;
/// Most outputs beside records to keep in memory between messages, in bytes of JSON. They are kept as text, because
/// values need up to eighty times as much.
const MAX_CACHED_OUTPUTS: usize = 4 * 1024 * 1024;
/// How many longer inputs, and how many lists, stay in memory. Each may need twenty megabytes.
const MAX_LONG: NonZeroUsize = NonZeroUsize::new(2).expect("it is not zero");
/// How long after its last save an order may name an output that a replica lacks.
const REPLICATED_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// How long a supervisor that sent the Wake of a wait leaves that order unread, at most.
const WOKEN_FOR: SignedDuration = SignedDuration::from_secs(15);
/// How late that Wake may be.
const WAKE_TAKES: SignedDuration = SignedDuration::from_secs(2);
/// Most such orders to remember. A forgotten one gets its Wake twice, which does no harm.
const MAX_WOKEN: usize = 100_000;

/// How long an instance relies on its copy of agents and queues.
pub const AGENTS_FOR: SignedDuration = SignedDuration::from_secs(2);

/// How long an instance relies on its copy of workflow names.
pub const POINTERS_FOR: SignedDuration = SignedDuration::from_secs(2);

/// How long a Wake waits for the notice that must precede it. Then the order continues without it, because a
/// submitter's broken queue must not hold up orders, least of all undos.
pub const NOTICE_FIRST_FOR: SignedDuration = SignedDuration::from_mins(5);

/// How long an unreadable record is left alone between two checks.
pub const ASIDE_FOR: SignedDuration = SignedDuration::from_mins(5);

/// Where the time comes from.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Called after each save of this process.
pub type Observer = Arc<dyn Fn(&Save<'_>) + Send + Sync>;

/// One successful save.
#[derive(Clone, Copy, Debug)]
pub struct Save<'a> {
    /// What was written.
    pub task: &'a Task,
    /// The task that the decision was based on, with its workflow; `None` for a new order.
    pub before: Option<(&'a Task, &'a Workflow)>,
}

type Schedule = dyn Fn(&Task, &Event, &Turn<'_>) -> Decision + Send + Sync;
type Supervise = dyn Fn(&Task, u64, &Turn<'_>) -> Verdict + Send + Sync;

/// How decisions are made: by the core, unless a test replaces it by a defective one that must be found.
#[derive(Clone)]
pub struct Core {
    /// Replaces [`schedule`].
    pub schedule: Arc<Schedule>,
    /// Replaces [`supervise`].
    pub supervise: Arc<Supervise>,
}

impl Default for Core {
    fn default() -> Self {
        Self { schedule: Arc::new(schedule), supervise: Arc::new(supervise) }
    }
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core")
    }
}

/// Identity and settings of this instance.
#[derive(Clone)]
pub struct Config {
    /// Name of this instance, unique among all that run; used as LockedBy and in every stamp.
    pub instance: String,
    /// Largest clock skew between two instances.
    pub skew: SignedDuration,
    /// Maximum number of tasks, and of inputs, kept in memory between messages. A cached task saves a read; if it is
    /// stale, the conditional write fails and the task is read after all.
    pub cache: usize,
    /// A new order is refused if messages ahead of it are older than this, or than half of its workflow's shortest
    /// timeout. Zero accepts every order.
    pub overload_age: SignedDuration,
    /// Where the time comes from.
    pub clock: Clock,
    /// Called with every save.
    pub observer: Option<Observer>,
    /// The agents with more than one pool.
    pub pools: pools::Layout,
    /// Whether each priority has its own queues.
    pub classes: bool,
    /// Shards of the due index, for the orders that orders start.
    pub shards: u16,
    /// Where services reach the API of this deployment; empty if they cannot.
    pub public_url: String,
}

/// The result of one event.
#[derive(Clone, Debug, PartialEq)]
pub enum Handled {
    /// A new version was saved.
    Applied(Arc<Task>),
    /// Nothing changed.
    Kept(Kept, Arc<Task>),
    /// There is no such task.
    NoSuchTask,
}

impl Handled {
    fn task(&self) -> Option<&Arc<Task>> {
        match self {
            Self::Applied(task) | Self::Kept(_, task) => Some(task),
            Self::NoSuchTask => None,
        }
    }
}

/// The shell around the core.
///
/// Its ports are trait objects, and its longest methods return boxed futures, so that it is compiled once, here, instead
/// of in every program and test that uses it.
pub struct Engine {
    /// The state store.
    pub store: Arc<dyn StateStore>,
    /// How messages leave.
    pub messenger: Arc<dyn Messenger>,
    config: Config,
    core: Core,
    saves: AtomicU64,
    tasks: Mutex<LruCache<Id, Arc<Task>>>,
    inputs: Mutex<LruCache<Id, Arc<Value>>>,
    /// The latest inputs too long for `inputs`, because a step with a long list reads its order's input often.
    long_inputs: Mutex<LruCache<Id, Arc<Value>>>,
    /// Parents whose children a decision is reading, and whether it was left a hint.
    looks: Mutex<HashMap<Id, bool>>,
    /// The latest lists of steps.
    lists: Mutex<LruCache<Hash, Arc<Vec<Value>>>>,
    /// Outputs beside records.
    outputs: Mutex<LruCache<Hash, Arc<str>>>,
    workflows: Mutex<HashMap<Hash, Arc<Workflow>>>,
    /// Definitions that this instance has stored, with their calls.
    stored: Mutex<HashSet<Hash>>,
    /// The state of agents and queues, and when it was read.
    agents: Mutex<Option<(Timestamp, Arc<Agents>)>>,
    /// Orders with a Wake for a wait that is about to end: the version it was sent for, and until when not to read them
    /// again.
    woken: Mutex<LruCache<Id, (u64, Timestamp)>>,
    /// What each workflow name means, and when it was read.
    pointers: Mutex<Option<(Timestamp, Arc<Pointers>)>>,
    /// Health of the pools; `None` if no agent has several.
    pools: Option<Mutex<Pools>>,
}

/// What a supervisor found in one task.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Attempts that had expired.
    pub expired: usize,
    /// The agents that hold it up.
    pub held_by: Vec<String>,
}

/// An event with its effects, decided and saved but not yet sent.
struct Decided {
    handled: Handled,
    effects: Vec<Effect>,
}

/// Several events of one task, each decided on the result of the previous one.
#[derive(Default)]
struct Fold {
    /// The changes, oldest first, each with the position of its event. The last one is saved.
    changes: Vec<(usize, Box<Task>)>,
    /// For each event, why it changes nothing (`None` if it does), and what to send.
    parts: Vec<(Option<Kept>, Vec<Effect>)>,
}

impl Fold {
    /// The decisions, once `task` is stored.
    fn decided(self, task: &Arc<Task>) -> Vec<Decided> {
        let part = |(why, effects): (Option<Kept>, _)| {
            let task = Arc::clone(task);
            Decided {
                handled: why.map_or(Handled::Applied(Arc::clone(&task)), |why| Handled::Kept(why, task)),
                effects,
            }
        };
        self.parts.into_iter().map(part).collect()
    }
}

/// A task before a decision about it.
enum Known {
    /// As this instance last saw it: good for trying a write, not for deciding to do nothing.
    Remembered(Arc<Task>),
    /// As read from the store, or the read's error.
    Read(Result<Option<Arc<Task>>, Error>),
}

impl Known {
    fn task(&self) -> Option<&Task> {
        match self {
            Self::Remembered(task) => Some(task),
            Self::Read(read) => read.as_ref().ok()?.as_deref(),
        }
    }
}

impl Engine {
    /// An engine over `store` and `messenger`.
    pub fn new(store: Arc<dyn StateStore>, messenger: Arc<dyn Messenger>, config: Config) -> Self {
        let size = NonZeroUsize::new(config.cache).unwrap_or(NonZeroUsize::MIN);
        Self {
            store,
            messenger,
            saves: AtomicU64::new(0),
            tasks: Mutex::new(LruCache::new(size)),
            inputs: Mutex::new(LruCache::new(size)),
            long_inputs: Mutex::new(LruCache::new(MAX_LONG)),
            looks: Mutex::new(HashMap::new()),
            lists: Mutex::new(LruCache::new(MAX_LONG)),
            outputs: Mutex::new(LruCache::unbounded()),
            workflows: Mutex::new(HashMap::new()),
            stored: Mutex::new(HashSet::new()),
            agents: Mutex::new(None),
            woken: Mutex::new(LruCache::unbounded()),
            pointers: Mutex::new(None),
            pools: (!config.pools.is_empty()).then(|| Mutex::new(Pools::new(&config.pools))),
            core: Core::default(),
            config,
        }
    }

    /// This engine, with decisions by `core`.
    #[must_use]
    pub fn deciding_by(self, core: Core) -> Self {
        Self { core, ..self }
    }

    /// Now, in whole milliseconds.
    pub fn now(&self) -> Timestamp {
        crate::time::millis((self.config.clock)())
    }

    /// Largest clock skew between two instances.
    pub fn skew(&self) -> SignedDuration {
        self.config.skew
    }

    /// Where the time comes from.
    pub fn clock(&self) -> Clock {
        Arc::clone(&self.config.clock)
    }

    /// Whether each priority has its own queues.
    pub fn has_classes(&self) -> bool {
        self.config.classes
    }

    /// Name of this instance.
    pub fn instance(&self) -> &str {
        &self.config.instance
    }

    /// Handles many events. Different tasks are decided and saved concurrently; the events of one task become one save,
    /// in order. Then all effects go out in as few requests as possible. One answer per event, in order; one task's
    /// failure does not affect another.
    pub fn handle(&self, events: Vec<(Id, Event)>) -> BoxFuture<'_, Vec<Result<Handled, Error>>> {
        Box::pin(async move {
            let decided = self.decide_all(&events).await;
            self.send_all(decided).await
        })
    }

    /// Applies operators' actions concurrently. One outcome per action, in order.
    ///
    /// # Errors
    /// The store or a queue failed. The action may or may not be recorded; repeat it to find out. The sweep sends what was
    /// not sent.
    pub async fn act(&self, acts: Vec<(Id, Act)>) -> Vec<Result<Outcome, Error>> {
        let events = acts.into_iter().map(|(id, act)| (id, Event::Act(act))).collect();
        self.handle(events).await.into_iter().map(|answer| answer.map(outcome)).collect()
    }

    /// What [`Engine::act`] would answer for this `task`. Nothing is saved or sent.
    pub async fn preview(&self, task: &Task, act: &Act) -> Result<Outcome, Error> {
        let (workflow, agents) = (self.workflow(&task.workflow_hash).await?, self.agents().await);
        let outputs = Outputs::default();
        let turn = self.turn(&workflow, &Value::Null, &agents, &outputs);
        let event = Event::Act(act.clone());
        let mut decision = schedule(task, &event, &turn);
        while self.know_outputs(task, &outputs).await? {
            decision = schedule(task, &event, &turn);
        }
        Ok(outcome(match decision {
            Decision::Save { task, .. } => Handled::Applied(Arc::from(task)),
            Decision::Keep { why, .. } => Handled::Kept(why, Arc::new(task.clone())),
        }))
    }

    /// For each `wanted` item of the list of `task`'s step `index`: its order, if any, and why it failed or is stuck,
    /// if so.
    ///
    /// # Errors
    /// The store's.
    pub async fn items(
        &self,
        task: &Task,
        index: usize,
        wanted: &[usize],
    ) -> Result<Vec<(Option<Id>, Option<String>)>, Error> {
        let (workflow, agents) = (self.workflow(&task.workflow_hash).await?, self.agents().await);
        let (input, outputs) = (self.input(task, &workflow).await?, Outputs::default());
        let turn = self.turn(&workflow, &input, &agents, &outputs);
        let mut shown = crate::change::list::shown(task, index, wanted, &turn);
        while self.know_outputs(task, &outputs).await? {
            shown = crate::change::list::shown(task, index, wanted, &turn);
        }
        Ok(shown)
    }

    /// What [`mend::mend`] makes of `task`, ready to replace an unreadable record. Nothing is saved or sent.
    pub async fn mended(
        &self,
        task: &Task,
        tenant: &str,
        by: &str,
        reason: &str,
    ) -> Result<Result<(Box<Task>, Vec<Effect>), Unfit>, Error> {
        let (workflow, agents) = (self.workflow(&task.workflow_hash).await?, self.agents().await);
        let outputs = Outputs::default();
        let turn = self.turn(&workflow, &Value::Null, &agents, &outputs);
        let mended = mend::mend(task, tenant, by, reason, &turn);
        Ok(mended.map(|(mut task, effects)| {
            task.stamp = self.stamp();
            (task, effects)
        }))
    }

    /// What [`erase::erase`] makes of `task`, ready to replace it; `None` if it is erased already. Clears this
    /// instance's caches of the order. Nothing is saved or sent.
    pub fn erased(&self, task: &Task, part: Part, by: &str, reason: &str) -> Result<Option<Task>, Obstacle> {
        let next = erase::erase(task, part, by, reason, self.now())?;
        lock(&self.tasks).pop(&task.id);
        lock(&self.inputs).pop(&task.id);
        lock(&self.long_inputs).pop(&task.id);
        lock(&self.lists).clear();
        let mut outputs = lock(&self.outputs);
        crate::outputs::beside(task).into_iter().for_each(|hash| drop(outputs.pop(hash)));
        Ok(next.map(|next| Task { stamp: self.stamp(), ..next }))
    }

    /// Recovers overdue tasks for a supervisor with this fencing `token`; 0 without a leader. One answer per task, in
    /// order.
    pub fn recover<'a>(&'a self, ids: &'a [Id], token: u64) -> BoxFuture<'a, Vec<Result<Found, Error>>> {
        Box::pin(self.recover_due(ids, token))
    }

    async fn recover_due(&self, ids: &[Id], token: u64) -> Vec<Result<Found, Error>> {
        if ids.is_empty() {
            return Vec::new();
        }
        // Read once for all, because each of a hundred tasks would otherwise read it.
        let agents = self.agents().await;
        let rests: Vec<bool> = ids.iter().map(|id| self.rests(id)).collect();
        let others: Vec<Id> = ids.iter().zip(&rests).filter(|(_, rests)| !**rests).map(|(id, _)| id.clone()).collect();
        let mut found = self.recover_all(&others, token, &agents).await.into_iter();
        let one = |rests| if rests { Ok(Found::default()) } else { found.next().expect("one answer for each other") };
        rests.into_iter().map(one).collect()
    }

    async fn recover_all(&self, ids: &[Id], token: u64, agents: &Agents) -> Vec<Result<Found, Error>> {
        let read = self.read(ids).await;
        self.know_inputs(read.iter().flatten().flatten()).await;
        let judge = |(id, read)| Box::pin(self.judge(id, read, token, agents));
        let verdicts = join_all(ids.iter().zip(read).map(judge)).await;
        let unreadable = ids.iter().zip(&verdicts).filter_map(|(id, verdict)| match verdict {
            // Shortened: a parser quotes unreadable text, and the record has no room for that twice.
            Err(error @ Error::Corrupt { .. }) => Some((id, shorten(&error.to_string(), MAX_TEXT))),
            Ok(_) | Err(Error::Unavailable { .. } | Error::TooLarge { .. }) => None,
        });
        self.set_aside(unreadable.collect()).await;
        let (mut found, mut decided) = (Vec::new(), Vec::new());
        for verdict in verdicts {
            match verdict {
                Ok((one, event)) => {
                    found.push(one);
                    decided.push(Ok(event));
                }
                Err(error) => {
                    found.push(Found::default());
                    decided.push(Err(error));
                }
            }
        }
        let sent = self.send_all(decided).await;
        for (id, _) in ids.iter().zip(&sent).filter(|(_, sent)| sent.is_err()) {
            lock(&self.woken).pop(id);
        }
        sent.into_iter().zip(found).map(|(sent, found)| sent.map(|_| found)).collect()
    }

    /// Defers unreadable records, so that they hold up nothing that is due behind them, and alerts an operator once for
    /// each. They stay in the due index, because another version of this program may read them. Failures here are
    /// retried when the record is due.
    async fn set_aside(&self, unreadable: Vec<(&Id, String)>) {
        if unreadable.is_empty() {
            return;
        }
        let due = plus(self.now(), ASIDE_FOR);
        let told = join_all(unreadable.iter().map(|one| self.store.set_aside(one.0, &one.1, due, false))).await;
        let untold: Vec<_> = unreadable
            .into_iter()
            .zip(told)
            .filter(|(_, told)| matches!(told, Ok(false)))
            .map(|(one, _)| one)
            .collect();
        if untold.is_empty() {
            return;
        }
        let alerts = untold.iter().map(|(id, why)| Effect::Alert(Box::new(AlertEvent::unreadable(id, why)))).collect();
        let sent = self.messenger.send(alerts).await;
        let sent = untold.iter().zip(sent).filter(|(_, sent)| sent.is_ok());
        join_all(sent.map(|((id, why), _)| self.store.set_aside(id, why, due, true))).await;
    }

    async fn decide_all(&self, events: &[(Id, Event)]) -> Vec<Result<Decided, Error>> {
        let mut groups: Vec<(&Id, Vec<usize>)> = Vec::new();
        let mut group_of = HashMap::new();
        for (n, (id, _)) in events.iter().enumerate() {
            let group = *group_of.entry(id).or_insert_with(|| {
                groups.push((id, Vec::new()));
                groups.len() - 1
            });
            groups[group].1.push(n);
        }
        let known = self.know(&groups.iter().map(|(id, _)| *id).collect::<Vec<_>>()).await;
        let takes_turns = groups.iter().map(|(_, own)| own.iter().any(|n| takes_turns(&events[*n].1)));
        self.know_inputs(known.iter().zip(takes_turns).filter(|(_, takes)| *takes).filter_map(|(one, _)| one.task()))
            .await;
        let of_each: Vec<Vec<&Event>> =
            groups.iter().map(|(_, own)| own.iter().map(|n| &events[*n].1).collect()).collect();
        let each = groups.iter().zip(&of_each).zip(known);
        // Boxed, because each nesting of the store's deep futures adds to the compiler's depth limit.
        let decided = join_all(each.map(|(((id, _), own), known)| Box::pin(self.decide(id, own, known)))).await;
        let mut answers: Vec<_> = events.iter().map(|_| None).collect();
        for ((_, own), decided) in groups.into_iter().zip(decided) {
            own.into_iter().zip(decided).for_each(|(n, one)| answers[n] = Some(one));
        }
        answers.into_iter().map(|answer| answer.expect("each event is in one group")).collect()
    }

    /// Decides the events of one task in order and saves them in one write. If the record has no room for all, each is
    /// saved separately, and an event that still does not fit stops the task. One answer per event, in order.
    async fn decide(&self, id: &Id, events: &[&Event], known: Known) -> Vec<Result<Decided, Error>> {
        let error = match (self.decide_at_once(id, events, known, None).await, events) {
            (Ok(decided), _) => return decided.into_iter().map(Ok).collect(),
            (Err(error @ Error::TooLarge { .. }), [event]) => {
                let read = self.read(std::slice::from_ref(id)).await.pop().expect("one answer for one id");
                let known = Known::Read(read.map(|task| task.map(Arc::new)));
                let full = self.decide_at_once(id, &[event], known, Some(&error.to_string())).await;
                return vec![full.and_then(|decided| decided.into_iter().next().ok_or(error))];
            }
            (Err(Error::TooLarge { .. }), _) => {
                let mut answers = Vec::new();
                for event in events {
                    let read = self.read(std::slice::from_ref(id)).await.pop().expect("one answer for one id");
                    let known = Known::Read(read.map(|task| task.map(Arc::new)));
                    answers.extend(Box::pin(self.decide(id, &[event], known)).await);
                }
                return answers;
            }
            (Err(error), _) => error,
        };
        let others: Vec<_> = events.iter().skip(1).map(|_| Err(error.again())).collect();
        std::iter::once(Err(error)).chain(others).collect()
    }

    /// Decides all `events` in one save; empty if one is refused because the record is `full`.
    async fn decide_at_once(
        &self,
        id: &Id,
        events: &[&Event],
        known: Known,
        full: Option<&str>,
    ) -> Result<Vec<Decided>, Error> {
        let no_such_task =
            || events.iter().map(|_| Decided { handled: Handled::NoSuchTask, effects: Vec::new() }).collect();
        let mut is_fresh = matches!(known, Known::Read(_));
        let mut known = match known {
            Known::Remembered(task) => Some(task),
            Known::Read(task) => match task? {
                Some(task) => Some(task),
                None => return Ok(no_such_task()),
            },
        };
        let agents = self.known_agents().await?;
        let mut migrated = Vec::new();
        for round in 0..MAX_ROUNDS {
            self.store.yield_to_others(round).await;
            let task = match known.take() {
                Some(task) => task,
                None => match self.store.load(id).await? {
                    Some(task) => {
                        is_fresh = true;
                        Arc::new(task)
                    }
                    None => return Ok(no_such_task()),
                },
            };
            if let Some((saved, effects)) = Box::pin(self.migrate(&task, &agents)).await? {
                migrated.extend(effects);
                is_fresh = saved.is_some();
                known = saved;
                continue;
            }
            let workflow = self.workflow(&task.workflow_hash).await?;
            let may_end = workflow.output.is_some() && events.iter().any(|event| !matches!(event, Event::Hint { .. }));
            let mut needs = may_end || events.iter().any(|event| takes_turns(event));
            let outputs = self.outputs_with_lists();
            outputs.know_look(lock(&self.looks).contains_key(id));
            let mut look = None;
            let fold = loop {
                let input = match needs {
                    true => self.input(&task, &workflow).await?,
                    false => Arc::default(),
                };
                let turn = self.turn(&workflow, &input, &agents, &outputs);
                let mut fold = self.fold(&task, events, &turn, full);
                if outputs.wants_orders() {
                    look = look.or_else(|| Look::begin(&self.looks, id));
                }
                while self.know_outputs(&task, &outputs).await? {
                    fold = self.fold(&task, events, &turn, full);
                }
                if needs || !outputs.wants_input() {
                    break fold;
                }
                needs = true;
            };
            self.remember_lists(&outputs);
            if outputs.is_left()
                && let Some(is_left) = lock(&self.looks).get_mut(id)
            {
                *is_left = true;
            }
            let Some(mut fold) = fold else { return Ok(Vec::new()) };
            let Some((last, next)) = fold.changes.pop() else {
                // Its order may have ended after the read.
                if look.is_some_and(Look::has_left_hint) {
                    known = Some(task);
                    continue;
                }
                // Never decide to do nothing on a cached task, except for a hint left to a look, which reads the task
                // then.
                let is_left_to_a_look = fold.parts.iter().all(|(why, _)| *why == Some(Kept::Expected));
                if !is_fresh && !is_left_to_a_look {
                    lock(&self.tasks).pop(id);
                    continue;
                }
                self.remember(Arc::clone(&task));
                return Ok(with(fold.decided(&task), migrated));
            };
            self.put_outputs(&next, &outputs).await?;
            match self.try_save(next, &task, &workflow).await? {
                Ok(saved) => {
                    if let Some(pools) = &self.pools {
                        let mut pools = lock(pools);
                        let mut before: &Task = &task;
                        let earlier = fold.changes.iter().map(|(event, after)| (*event, &**after));
                        for (event, after) in earlier.chain([(last, &*saved)]) {
                            let reply = if let Event::Reply(reply) = events[event] { Some(reply) } else { None };
                            pools.learn(reply, before, after, &workflow, self.now());
                            before = after;
                        }
                    }
                    // The Wake and the sweep repair a failure here.
                    if let Ok(Some((_, effects))) = Box::pin(self.migrate(&saved, &agents)).await {
                        migrated.extend(effects);
                    }
                    return Ok(with(fold.decided(&saved), migrated));
                }
                Err(current) => {
                    is_fresh = current.is_some();
                    known = current;
                }
            }
        }
        Err(contended(id))
    }

    /// The core's decisions on `events`, each on the result of the previous one. One save of several changes equals one
    /// save each without other writers in between. Every change has its own version, so re-send rules and notice
    /// numbers hold for each. `None` if one is refused because the record is `full`.
    fn fold(&self, task: &Task, events: &[&Event], turn: &Turn<'_>, full: Option<&str>) -> Option<Fold> {
        let mut fold = Fold::default();
        for (n, event) in events.iter().enumerate() {
            let seen = fold.changes.last().map_or(task, |(_, task)| task);
            let decision = match full {
                None => self.schedule(seen, event, turn),
                Some(why) => schedule_full(seen, event, turn, why)?,
            };
            match decision {
                Decision::Save { task: next, effects } => {
                    fold.changes.push((n, next));
                    fold.parts.push((None, effects));
                }
                Decision::Keep { why, effects } => fold.parts.push((Some(why), effects)),
            }
        }
        Some(fold)
    }

    /// The core's decision, with this instance's knowledge of the pools.
    fn schedule(&self, task: &Task, event: &Event, turn: &Turn<'_>) -> Decision {
        let Some(pools) = &self.pools else {
            return (self.core.schedule)(task, event, turn);
        };
        let mut pools = lock(pools);
        let decision = (self.core.schedule)(task, event, &Turn { pools: &pools, ..*turn });
        // A decision that lacks an output is made again.
        if let Decision::Save { task: next, .. } = &decision
            && !turn.outputs.is_short()
        {
            pools.sent(task, next, turn.workflow, turn.now);
        }
        decision
    }

    async fn judge(
        &self,
        id: &Id,
        read: Result<Option<Task>, Error>,
        token: u64,
        agents: &Agents,
    ) -> Result<(Found, Decided), Error> {
        let mut known = read?.map(Arc::new);
        let mut full: Option<String> = None;
        let mut migrated = Vec::new();
        for round in 0..MAX_ROUNDS {
            self.store.yield_to_others(round).await;
            // A task that has just vanished has outlived its retention.
            let Some(task) = known.take() else {
                return Ok((Found::default(), Decided { handled: Handled::NoSuchTask, effects: migrated }));
            };
            if let Some((saved, effects)) = Box::pin(self.migrate(&task, agents)).await? {
                migrated.extend(effects);
                known = match saved {
                    Some(saved) => Some(saved),
                    None => self.store.load(id).await?.map(Arc::new),
                };
                continue;
            }
            let workflow = self.workflow(&task.workflow_hash).await?;
            let input = self.input(&task, &workflow).await?;
            let outputs = Outputs::default();
            let turn = self.turn(&workflow, &input, agents, &outputs);
            let held_by = holders(&task, &turn).into_iter().map(str::to_owned).collect();
            let found = Found { expired: 0, held_by };
            let judge = || match &full {
                None => (self.core.supervise)(&task, token, &turn),
                Some(why) => supervise_full(&task, token, &turn, why),
            };
            let mut verdict = judge();
            while self.know_outputs(&task, &outputs).await? {
                verdict = judge();
            }
            match verdict {
                Verdict::Recover { task: next, effects, expired } => {
                    self.put_outputs(&next, &outputs).await?;
                    match self.try_save(next, &task, &workflow).await {
                        Ok(Ok(saved)) => {
                            let found = Found { expired, ..found };
                            migrated.extend(effects);
                            let effects = migrated;
                            return Ok((found, Decided { handled: Handled::Applied(saved), effects }));
                        }
                        Ok(Err(current)) => known = current,
                        Err(error @ Error::TooLarge { .. }) if full.is_none() => {
                            full = Some(error.to_string());
                            known = Some(task);
                        }
                        Err(error) => return Err(error),
                    }
                }
                Verdict::Rearm { due, mut effects } => {
                    if due != task.due {
                        self.store.rearm(&task, due, token).await?;
                    } else if self.has_woken(&task, &turn) {
                        effects.clear();
                    }
                    migrated.extend(effects);
                    let handled = Handled::Kept(Kept::NothingReady, task);
                    return Ok((found, Decided { handled, effects: migrated }));
                }
                Verdict::Leave(why) => {
                    return Ok((found, Decided { handled: Handled::Kept(why, task), effects: migrated }));
                }
            }
        }
        Err(contended(id))
    }

    /// `Ok` with the saved record, or `Err` with the record stored instead.
    async fn try_save(
        &self,
        mut next: Box<Task>,
        seen: &Task,
        workflow: &Workflow,
    ) -> Result<Result<Arc<Task>, Option<Arc<Task>>>, Error> {
        next.stamp = self.stamp();
        let mut saved = self.store.save(&next, seen.version).await;
        if let Err(Error::TooLarge { bytes, .. }) = &saved
            && next.make_room(*bytes)
        {
            saved = self.store.save(&next, seen.version).await;
        }
        let next = Arc::<Task>::from(next);
        match saved {
            Ok(Saved::Applied) => {
                self.saved(&next, Some((seen, workflow)));
                Ok(Ok(next))
            }
            // The save succeeded, but its answer was lost and the client retried: the stored record is ours.
            Ok(Saved::Conflict(Some(current))) if current.version == next.version && current.stamp == next.stamp => {
                self.saved(&next, Some((seen, workflow)));
                Ok(Ok(next))
            }
            Ok(Saved::Conflict(current)) => {
                lock(&self.tasks).pop(&next.id);
                Ok(Err(current.map(Arc::from)))
            }
            Err(error) => {
                lock(&self.tasks).pop(&next.id);
                Err(error)
            }
        }
    }

    fn turn<'a>(
        &'a self,
        workflow: &'a Workflow,
        input: &'a Value,
        agents: &'a Agents,
        outputs: &'a Outputs,
    ) -> Turn<'a> {
        let (instance, skew) = (self.config.instance.as_str(), self.config.skew);
        let public_url = &self.config.public_url;
        Turn { workflow, input, now: self.now(), instance, skew, agents, pools: &pools::ONE_EACH, outputs, public_url }
    }

    fn stamp(&self) -> String {
        format!("{}/{}", self.config.instance, self.saves.fetch_add(1, Ordering::Relaxed))
    }
}

/// The decision that reads the children of an order's lists; one at a time.
struct Look<'a>(&'a Mutex<HashMap<Id, bool>>, Id);

impl<'a> Look<'a> {
    fn begin(looks: &'a Mutex<HashMap<Id, bool>>, id: &Id) -> Option<Self> {
        let mut open = lock(looks);
        if open.contains_key(id) {
            return None;
        }
        open.insert(id.clone(), false);
        Some(Self(looks, id.clone()))
    }

    /// Ends it. Returns whether a hint was left to it.
    #[allow(clippy::needless_pass_by_value, reason = "it ends")]
    fn has_left_hint(self) -> bool {
        lock(self.0).get(&self.1).is_some_and(|is_left| *is_left)
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        lock(self.0).remove(&self.1);
    }
}

/// Puts the migration's effects first.
fn with(mut decided: Vec<Decided>, migrated: Vec<Effect>) -> Vec<Decided> {
    if let Some(first) = decided.first_mut() {
        first.effects.splice(0..0, migrated);
    }
    decided
}

/// Whether a decision on this event may evaluate expressions; acts and bookkeeping do not.
fn takes_turns(event: &Event) -> bool {
    match event {
        Event::Wake { .. } | Event::Reply(_) | Event::Arrived { .. } | Event::CalledBack { .. } => true,
        // Most hints change nothing, and one that does asks for the input.
        Event::Hint { .. }
        | Event::Cancel { .. }
        | Event::Asked { .. }
        | Event::Act(_)
        | Event::Beat { .. }
        | Event::AlertSent { .. }
        | Event::NoticeSent { .. } => false,
    }
}

fn outcome(handled: Handled) -> Outcome {
    match handled {
        Handled::Applied(task) => Outcome::Applied(task.version),
        Handled::Kept(Kept::Refused(why), _) => Outcome::NotAllowed { why },
        Handled::Kept(Kept::Moved, task) => Outcome::Moved { version: task.version },
        Handled::Kept(_, task) => Outcome::Repeated(task.version),
        Handled::NoSuchTask => Outcome::NotFound,
    }
}

fn contended(id: &Id) -> Error {
    Error::Unavailable { what: format!("task {id}"), source: "too many writers at once".into() }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn unanswered() -> Error {
    Error::Unavailable { what: "the store".into(), source: "it did not answer".into() }
}
