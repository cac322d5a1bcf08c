//! The ports of one process, with a network and its faults between it and the rest of the world.
//!
//! Every call goes out on a task of its own, so it arrives even if the process has died since, and its answer comes back
//! later, or never. Before each call the process may be told to die or to stand still.

use crate::Defect;
use crate::dice::Class;
use crate::node::Node;
use crate::queues::wait_ms;
use crate::real::Trouble;
use crate::services::Answer;
use crate::store::Store;
use crate::world::World;
use agent::{Agent, AgentError, Call};
use futures::future::{BoxFuture, join_all};
use serde_json::Value;
use shared::agents::Agents;
use shared::lease::{Lease, LeaseStore};
use shared::message::{Effect, NoticeKind, Request, ToScheduler};
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{Created, DuePage, Error, Messenger, Saved, StateStore};
use shared::queues;
use shared::step::Direction;
use shared::strain::Strain;
use shared::task::Task;
use shared::time::{SignedDuration, Timestamp, until};
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Entries in one request: SQS's most.
const BATCH: usize = 10;
/// The latest arrival of a call after its deadline, in times that its caller had left, beside ten seconds.
pub(crate) const MOST_LATE: u32 = 3;
/// Longest way there or back without a fault, in milliseconds.
const WAY_MS: u64 = 8;

/// The state store, the lease store and the messenger as one process has them.
#[derive(Clone)]
pub struct Faulty {
    world: Arc<World>,
    node: Arc<Node>,
}

/// What happens to a call of the store.
#[derive(Clone, Copy)]
enum Fate {
    Good,
    /// It never arrives.
    Before,
    /// Its answer is lost; if `is_repeated`, the SDK tries the same once more.
    Lost {
        is_repeated: bool,
    },
}

impl Faulty {
    /// The ports of `node`.
    #[must_use]
    pub fn new(world: &Arc<World>, node: &Arc<Node>) -> Self {
        Self { world: Arc::clone(world), node: Arc::clone(node) }
    }

    /// One call of the store. `act` may be done twice, as it is when the SDK repeats a call whose answer was lost.
    async fn ask<T: Send + 'static>(
        &self,
        site: String,
        is_write: bool,
        act: impl Fn(&Store, u64) -> Result<T, Error> + Send + Sync + 'static,
    ) -> Result<T, Error> {
        let world = &self.world;
        self.node.touch(world, &site);
        let (mut out, mut back) = world.ways(&self.node.name, &site);
        if let Some(mut draw) = world.fires(Class::StoreSlow, &site) {
            *if draw.chance(0.5) { &mut out } else { &mut back } += draw.between(200, 4000);
        }
        let mut trouble = None;
        let fate = if world.fires(Class::StoreError, &site).is_some() {
            Fate::Before
        } else if let Some(mut draw) = world.fires(Class::StoreThrottle, &site) {
            // Under the real adapter the SDK rides out one of them.
            trouble = draw.chance(0.5).then_some(Trouble::Throttle);
            if trouble.is_some() && world.plan.is_real_store { Fate::Good } else { Fate::Before }
        } else if let Some(mut draw) = world.fires(Class::StoreLost, &site).filter(|_| is_write) {
            let is_repeated = draw.chance(0.6);
            trouble = is_repeated.then_some(Trouble::LostAfter);
            // Under the real adapter the SDK itself repeats it.
            if is_repeated && world.plan.is_real_store { Fate::Good } else { Fate::Lost { is_repeated } }
        } else if is_write
            && let Some(mut draw) = world.fires(Class::TransactionConflict, &site).filter(|_| may_conflict(&site))
        {
            trouble = draw.chance(0.7).then_some(Trouble::TransactionConflict);
            if trouble.is_some() && world.plan.is_real_store { Fate::Good } else { Fate::Before }
        } else {
            Fate::Good
        };
        let (answer, answered) = oneshot::channel();
        let world = Arc::clone(world);
        let what = site.clone();
        tokio::spawn(async move {
            wait_ms(out).await;
            if let (Store::Real(real), Some(trouble)) = (&world.store, trouble) {
                real.disturb(trouble);
            }
            let act = || act(&world.store, world.now_ms());
            let result = match fate {
                Fate::Good => act(),
                Fate::Before => Err(unavailable(&what, "it did not arrive")),
                Fate::Lost { is_repeated } => {
                    let first = act();
                    wait_ms(40).await;
                    if is_repeated { act() } else { first.and(Err(unavailable(&what, "no answer"))) }
                }
            };
            wait_ms(back).await;
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(unavailable(&site, "the run is over")))
    }
}

/// Transactions are made on submission only, so only what can meet one of them conflicts.
fn may_conflict(site: &str) -> bool {
    site.starts_with("create") || site.starts_with("save") && site.ends_with("v1")
}

fn unavailable(what: &str, why: &str) -> Error {
    Error::Unavailable { what: what.to_owned(), source: why.to_owned().into() }
}

impl StateStore for Faulty {
    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let site = format!("create {}", self.world.label(&task.id));
        let (world, order, task) = (Arc::clone(&self.world), order.clone(), task.clone());
        self.ask(site.clone(), true, move |store, at_ms| {
            let created = store.create(&order, &task, at_ms)?;
            if created == Created::New {
                world.trace(format_args!("{site}: stored"));
                world.history().stored(&task, None);
            }
            Ok(created)
        })
        .await
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        let (site, id) = (format!("load {}", self.world.label(id)), id.clone());
        self.ask(site, false, move |store, _| store.load(&id)).await
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let site = format!("save {} v{}", self.world.label(&task.id), task.version);
        let (world, task) = (Arc::clone(&self.world), task.clone());
        self.ask(site.clone(), true, move |store, at_ms| {
            let saved = store.save(&task, seen, at_ms)?;
            // Under the real adapter a repeated call answers with the record it wrote itself the first time.
            let is_ours = match &saved {
                Saved::Applied => true,
                Saved::Conflict(Some(current)) => {
                    current.stamp == task.stamp && world.history().last(&task.id).is_some_and(|t| t.stamp != task.stamp)
                }
                Saved::Conflict(None) => false,
            };
            if is_ours {
                world.trace(format_args!("{site}: {} {}", task.stamp, world.sketch(&task)));
                world.history().stored(&task, Some(seen));
            } else {
                world.trace(format_args!("{site}: {} is too late", task.stamp));
            }
            Ok(saved)
        })
        .await
    }

    async fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error> {
        let site = format!("rearm {} v{}", self.world.label(&task.id), task.version);
        let (world, task) = (Arc::clone(&self.world), task.clone());
        self.ask(site.clone(), true, move |store, at_ms| {
            let is_written = store.rearm(&task, due, token, at_ms)?;
            if is_written {
                world.history().written(&task.id, task.version, token);
            }
            let due = due.map_or("never".into(), |due| world.clock_text(due));
            world.trace(format_args!("{site}: due {due}{}", if is_written { "" } else { ", perhaps" }));
            Ok(())
        })
        .await
    }

    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let (site, cursor) = (format!("due {shard}"), cursor.map(str::to_owned));
        let lag_ms = self.world.fires(Class::IndexLag, &site).map_or(0, |mut draw| draw.between(100, 5000));
        self.ask(site, false, move |store, at_ms| store.due(shard, now, limit, cursor.as_deref(), (at_ms, lag_ms)))
            .await
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        let (site, task) = (format!("order {}", self.world.label(&task.id)), task.clone());
        self.ask(site, false, move |store, _| store.order(&task)).await
    }

    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        let workflow = workflow.clone();
        self.ask("put-workflow".into(), true, move |store, _| store.put_workflow(&workflow)).await
    }

    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        let hash = hash.clone();
        self.ask("workflow".into(), false, move |store, _| store.workflow(&hash)).await
    }

    async fn agents(&self) -> Result<Agents, Error> {
        self.ask("agents".into(), false, |store, _| store.agents()).await
    }

    async fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        let (queue, waits, world) = (queue.to_owned(), waits.clone(), Arc::clone(&self.world));
        self.ask(format!("note-wait {queue}"), true, move |store, _| {
            world.trace(format_args!("{queue} is long: {waits:?}"));
            store.note_wait(&queue, &waits)
        })
        .await
    }

    async fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        let (agent, strain, seen) = (agent.to_owned(), strain.clone(), seen.cloned());
        self.ask(format!("strain {agent}"), true, move |store, _| store.save_strain(&agent, &strain, seen.as_ref()))
            .await
    }
}

impl LeaseStore for Faulty {
    async fn read(&self, name: &str) -> Result<Option<Lease>, Error> {
        let name = name.to_owned();
        self.ask(format!("read-lease {name}"), false, move |store, _| store.read_lease(&name)).await
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        let (lease, seen, world) = (lease.clone(), seen.cloned(), Arc::clone(&self.world));
        let name = self.node.instance();
        self.ask(format!("replace-lease {}", lease.name), true, move |store, _| {
            let is_replaced = store.replace_lease(&lease, seen.as_ref())?;
            if is_replaced && seen.as_ref().is_none_or(|seen| seen.token != lease.token) {
                world.trace(format_args!("{name} leads {} under token {}", lease.name, lease.token));
            }
            Ok(is_replaced)
        })
        .await
    }
}

/// A message on its way.
struct Parcel {
    owner: usize,
    label: String,
    body: String,
    delay: Duration,
    effect: Effect,
}

impl Messenger for Faulty {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        let mut results: Vec<Result<(), Error>> = effects.iter().map(|_| Ok(())).collect();
        let mut by_queue: BTreeMap<String, Vec<Parcel>> = BTreeMap::new();
        for (owner, effect) in effects.into_iter().enumerate() {
            let (queue, parcel) = self.address(owner, effect);
            by_queue.entry(queue).or_default().push(parcel);
        }
        let mut requests = Vec::new();
        for (queue, mut parcels) in by_queue {
            while !parcels.is_empty() {
                let rest = parcels.split_off(parcels.len().min(BATCH));
                requests.push(self.send_batch(queue.clone(), std::mem::replace(&mut parcels, rest)));
            }
        }
        for (owner, error) in join_all(requests).await.into_iter().flatten() {
            results[owner] = Err(error);
        }
        results
    }
}

impl Faulty {
    /// Where an effect goes, by the same names as on SQS.
    fn address(&self, owner: usize, effect: Effect) -> (String, Parcel) {
        let (world, config) = (&self.world, &self.world.config);
        let (queue, label, body, delay) = match &effect {
            Effect::Request(request) => {
                let label = format!(
                    "request {} {} {} {}",
                    world.label(&request.task_id),
                    request.step,
                    direction(request.direction),
                    request.attempt
                );
                (config.queue_of(request), label, json_of(request), SignedDuration::ZERO)
            }
            Effect::Wake(wake, delay) => {
                let label = format!("wake {} v{}", world.label(&wake.task_id), wake.seen);
                (config.queue_of_wake(wake.priority), label, json_of(&ToScheduler::Wake(wake.clone())), *delay)
            }
            Effect::Reply(reply) => {
                let label = format!("reply {} {} {}", world.label(&reply.task_id), reply.step, reply.attempt);
                (queues::REPLIES.into(), label, json_of(&ToScheduler::Reply((**reply).clone())), SignedDuration::ZERO)
            }
            Effect::Notice(notice) => {
                let label = format!("notice {} {} {:?}", world.label(&notice.order_id), notice.seq, notice.kind);
                (queues::notices(&notice.queue), label, String::new(), SignedDuration::ZERO)
            }
            Effect::Alert(alert) => {
                let label = format!("alert {} v{}", world.label(&alert.order_id), alert.version);
                ("bus".into(), label, String::new(), SignedDuration::ZERO)
            }
            Effect::Strained(strained) => {
                ("bus".into(), format!("strained {}", strained.agent), String::new(), SignedDuration::ZERO)
            }
            Effect::SetAside(aside) => (
                queues::SET_ASIDE.into(),
                format!("set-aside from {}", aside.queue),
                String::new(),
                SignedDuration::ZERO,
            ),
        };
        // SQS delays whole seconds, and never less than asked for.
        let ms = u64::try_from(delay.as_millis()).unwrap_or_default();
        let delay = Duration::from_secs(ms.div_ceil(1000));
        (queue, Parcel { owner, label, body, delay, effect })
    }

    /// One request to one queue: the errors, each with its owner.
    async fn send_batch(&self, queue: String, mut parcels: Vec<Parcel>) -> Vec<(usize, Error)> {
        let world = &self.world;
        let site = format!("send {} to {queue}", parcels[0].label);
        self.node.touch(world, &site);
        let owners: Vec<usize> = parcels.iter().map(|p| p.owner).collect();
        let all = |why: &str| owners.iter().map(|owner| (*owner, unavailable(&queue, why))).collect::<Vec<_>>();
        let (out, back) = world.ways(&self.node.name, &site);
        let mut errors = Vec::new();
        let (mut is_lost, mut is_before) = (false, false);
        if world.fires(Class::SendError, &site).is_some() {
            is_before = true;
            for parcel in &parcels {
                if let Effect::Notice(notice) = &parcel.effect {
                    world.history().notice_refused(notice);
                }
            }
            errors = all("it did not arrive");
        } else if world.fires(Class::SendLost, &site).is_some() {
            is_lost = true;
            errors = all("no answer");
        }
        if errors.is_empty() {
            parcels.retain(|parcel| {
                let is_refused = world.fires(Class::PartialBatch, &format!("{} to {queue}", parcel.label)).is_some();
                if is_refused {
                    if let Effect::Notice(notice) = &parcel.effect {
                        world.history().notice_refused(notice);
                    }
                    errors.push((parcel.owner, unavailable(&queue, "refused")));
                }
                !is_refused
            });
        }
        let (answer, answered) = oneshot::channel();
        let (network, to) = (Arc::clone(world), queue.clone());
        tokio::spawn(async move {
            wait_ms(out).await;
            if !is_before {
                for parcel in &parcels {
                    arrive(&network, &to, parcel);
                }
            }
            wait_ms(back).await;
            let _ = answer.send(());
        });
        let is_answered = answered.await.is_ok();
        if is_answered || is_lost { errors } else { all("the run is over") }
    }
}

/// A message reaches its queue, or what stands for it.
fn arrive(world: &World, queue: &str, parcel: &Parcel) {
    match &parcel.effect {
        Effect::Notice(notice) => {
            let is_end = matches!(notice.kind, NoticeKind::Completed | NoticeKind::Undone);
            if world.defect == Some(Defect::DropsFinalNotice) && is_end {
                return;
            }
            world.trace(format_args!("{} {}", parcel.label, notice.state.name()));
            world.history().notice(notice);
        }
        Effect::Alert(alert) => {
            if world.defect == Some(Defect::DropsAlerts) {
                return;
            }
            world.trace(format_args!("{}: {}", parcel.label, alert.reason));
            world.history().alert(alert);
        }
        Effect::Strained(_) => world.trace(format_args!("{}", parcel.label)),
        Effect::SetAside(aside) => {
            world.trace(format_args!("{}: {}", parcel.label, aside.reason));
            world.set_aside(&aside.body, &aside.reason);
        }
        Effect::Request(_) | Effect::Wake(..) | Effect::Reply(_) => {
            post(world, queue, &parcel.label, &parcel.body, parcel.delay);
        }
    }
}

/// Puts a message into a queue, with all that happens to messages.
pub(crate) fn post(world: &World, queue: &str, label: &str, body: &str, delay: Duration) {
    if world.fires(Class::LostMessage, label).is_some() {
        world.queues.send(queue, body, label, &[]);
        return;
    }
    let ms = Duration::from_millis;
    let mut delay = delay + ms(1);
    if let Some(mut draw) = world.fires(Class::Reorder, label) {
        delay += ms(draw.between(20, 2000));
    }
    if let Some(mut draw) = world.fires(Class::Delay, label) {
        let most = 3 * u64::try_from(world.plan.longest_timeout.as_millis()).unwrap_or(u64::MAX / 8);
        delay += ms(draw.between(1000, most.max(2000)));
    }
    let mut delays = vec![delay];
    if let Some(mut draw) = world.fires(Class::Duplicate, label) {
        for _ in 0..draw.between(1, 3) {
            delays.push(delay + ms(draw.between(0, 15_000)));
        }
    }
    world.queues.send(queue, body, label, &delays);
}

pub(crate) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Do => "do",
        Direction::Undo => "undo",
    }
}

fn json_of<T: serde::Serialize>(message: &T) -> String {
    serde_json::to_string(message).expect("messages have only string keys")
}

/// An agent whose remote service is simulated.
pub struct SimulatedAgent {
    name: String,
    world: Arc<World>,
    node: Arc<Node>,
}

impl SimulatedAgent {
    /// The agent called `name` in a process.
    #[must_use]
    pub fn new(name: &str, world: &Arc<World>, node: &Arc<Node>) -> Self {
        Self { name: name.to_owned(), world: Arc::clone(world), node: Arc::clone(node) }
    }

    async fn call(&self, request: &Request, time_left: Duration) -> Result<Value, AgentError> {
        let world = &self.world;
        let what = format!("{} {} {}", world.label(&request.task_id), request.step, direction(request.direction));
        let site = format!("{} {what}", self.name);
        self.node.touch(world, &site);
        let (mut out, mut back) = world.ways(&self.node.name, &site);
        let left_ms = u64::try_from(time_left.as_millis()).unwrap_or(u64::MAX / 8);
        // What the service itself does, and what becomes of call and answer on their way.
        if let Some(mut draw) = world.fires(Class::RemoteSlow, &site) {
            *if draw.chance(0.5) { &mut out } else { &mut back } += draw.between(left_ms / 10, left_ms);
        }
        let mut is_silent = false;
        if let Some(mut draw) = world.fires(Class::RemoteHang, &site) {
            is_silent = true;
            if draw.chance(0.5) {
                std::future::pending::<()>().await;
            }
        }
        if let Some(mut draw) = world.fires(Class::RemoteLate, &site) {
            let to_go = until(world.time(), request.complete_by);
            let to_go = u64::try_from(to_go.as_millis()).unwrap_or_default();
            out += to_go + draw.between(1, u64::from(MOST_LATE) * left_ms + 10_000);
        }
        if let Some(mut draw) = world.fires(Class::RemoteLateAnswer, &site) {
            back += left_ms + draw.between(1, 3000);
        }
        let mut fails = None;
        if world.is_out(&self.name) {
            fails = Some(None);
        } else if let Some(mut draw) = world.fires(Class::RemoteTransient, &site) {
            fails =
                Some(draw.chance(0.2).then(|| {
                    SignedDuration::from_millis(i64::try_from(draw.between(0, 4000)).expect("a few seconds"))
                }));
        } else if request.direction == Direction::Undo && world.does_undo_fail(&what) {
            fails = Some(None);
        }
        let class = match request.direction {
            Direction::Do => Class::RemotePermanent,
            Direction::Undo => Class::UndoRefused,
        };
        let refuses = fails.is_none() && world.fires(class, &site).is_some();
        let lies = world.fires(Class::RemoteLying, &site).is_some();
        let (answer, answered) = oneshot::channel();
        let (network, request) = (Arc::clone(world), request.clone());
        tokio::spawn(async move {
            wait_ms(out).await;
            let result = match fails {
                Some(retry_after) => Err(AgentError::Transient { error: "503".into(), retry_after }),
                None => {
                    let answer = network.serve(&request, refuses);
                    network.trace(format_args!("remote {what} {}: {answer:?}", request.attempt));
                    match answer {
                        _ if lies => {
                            Err(AgentError::Transient { error: "500 after it was done".into(), retry_after: None })
                        }
                        Answer::Done(output) => Ok(output),
                        Answer::Refused(error) => Err(AgentError::Permanent { error }),
                    }
                }
            };
            if is_silent {
                return std::future::pending().await;
            }
            wait_ms(back).await;
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(AgentError::Transient { error: "cut off".into(), retry_after: None }))
    }
}

impl Agent for SimulatedAgent {
    fn name(&self) -> &str {
        &self.name
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.call(call.request, call.time_left))
    }
}

/// How long a way takes without a fault, in milliseconds.
pub(crate) fn way_ms(draw: &mut crate::dice::Draw) -> u64 {
    draw.between(1, WAY_MS)
}
