//! The ports of one process, with a network and its faults between it and the rest of the world.
//!
//! Every call runs in its own task, so it arrives even if the process has died since, and its answer returns later or
//! never. Before each call a fault may be drawn for the process: a crash or a freeze.

use crate::Defect;
use crate::dice::Class;
use crate::endpoint::Sender;
use crate::node::Node;
use crate::queues::wait_ms;
use crate::store::{PAGE, Store, call};
use crate::world::World;
use futures::future::join_all;
use leader::{Lease, LeaseStore};
use serde_json::{Value, json};
use shared::control::{Agents, Pause};
use shared::message::{AlertEvent, Effect, Notice, NoticeKind, Outcome};
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{Created, DuePage, Error, Messenger, Saved, StateStore, async_trait};
use shared::registry::Pointers;
use shared::step::Direction;
use shared::strain::Strain;
use shared::task::Task;
use shared::time::Timestamp;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_aws::messenger::{self, Outgoing};
use stepwarden_embedded::Fault;
use tokio::sync::oneshot;

/// Maximum number of entries in one request of SQS.
const BATCH: usize = 10;
/// The queue that stands for the event bus.
pub(crate) const BUS: &str = "bus";

/// The state store, the lease store and the messenger as one process has them.
#[derive(Clone)]
pub struct Faulty {
    world: Arc<World>,
    node: Arc<Node>,
    /// The real messenger, if the run uses it.
    sender: Option<Sender>,
}

/// What happens to a call of the store.
#[derive(Clone, Copy)]
enum Fate {
    Good,
    /// It never arrives.
    Before,
    /// Its answer is lost; if `is_repeated`, the SDK retries once.
    Lost {
        is_repeated: bool,
    },
}

impl Faulty {
    pub fn new(world: &Arc<World>, node: &Arc<Node>) -> Self {
        let sender = world.plan.is_real_messenger.then(|| Sender::new(world, node));
        Self { world: Arc::clone(world), node: Arc::clone(node), sender }
    }

    /// One call of the store. Only faults that can affect it are drawn. `act` may run twice, as when the SDK repeats a
    /// call whose answer was lost.
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
            // Under the real adapter, the SDK's retry absorbs one of them.
            trouble = draw.chance(0.5).then_some(Fault::Throttle);
            if trouble.is_some() && world.plan.is_real_store { Fate::Good } else { Fate::Before }
        } else if is_write && let Some(mut draw) = world.fires(Class::StoreLost, &site) {
            let is_repeated = draw.chance(0.6);
            trouble = is_repeated.then_some(Fault::LostAfter);
            // Under the real adapter, the SDK itself retries.
            if is_repeated && world.plan.is_real_store { Fate::Good } else { Fate::Lost { is_repeated } }
        } else if may_conflict(&site)
            && let Some(mut draw) = world.fires(Class::TransactionConflict, &site)
        {
            trouble = draw.chance(0.7).then_some(Fault::TransactionConflict);
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
            if let Store::Real(real) = &world.store {
                real.calm();
            }
            wait_ms(back).await;
            let _ = answer.send(result);
        });
        answered.await.unwrap_or_else(|_| Err(unavailable(&site, "the run is over")))
    }

    /// One call for many records, at the site of the first: the request may fail as a whole, or DynamoDB may leave some
    /// out because their partition is at its limit.
    async fn ask_all<T: Send + 'static>(
        &self,
        sites: &[String],
        act: impl Fn(&Store) -> Vec<Result<T, Error>> + Send + Sync + 'static,
    ) -> Vec<Result<T, Error>> {
        let Some(first) = sites.first() else { return Vec::new() };
        let answers = match self.ask(first.clone(), false, move |store, _| Ok(act(store))).await {
            Ok(answers) => answers,
            Err(error) => return sites.iter().map(|site| Err(unavailable(site, &error.to_string()))).collect(),
        };
        let left_over = |(n, site): (usize, &String)| n > 0 && self.world.fires(Class::StoreThrottle, site).is_some();
        let left_over = sites.iter().enumerate().map(left_over);
        let each = answers.into_iter().zip(sites).zip(left_over);
        each.map(|((answer, site), is_left)| if is_left { Err(unavailable(site, "left over")) } else { answer })
            .collect()
    }
}

/// Only submission uses transactions, so only what can collide with one conflicts.
fn may_conflict(site: &str) -> bool {
    site.starts_with("create") || site.starts_with("save") && site.ends_with("v1")
}

fn unavailable(what: &str, why: &str) -> Error {
    Error::Unavailable { what: what.to_owned(), source: why.to_owned().into() }
}

#[async_trait]
impl StateStore for Faulty {
    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let site = format!("create {}", self.world.label(&task.id));
        let (world, order, task) = (Arc::clone(&self.world), order.clone(), task.clone());
        self.ask(site.clone(), true, move |store, at_ms| {
            let created = store.create(&order, &task, at_ms)?;
            if created == Created::New {
                world.trace(format_args!("{site}: stored"));
                world.history().stored(&task, None);
                world.check_definition(&task);
            }
            Ok(created)
        })
        .await
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        let (site, id) = (format!("load {}", self.world.label(id)), id.clone());
        self.ask(site, false, move |store, _| call!(store, load(&id))).await
    }

    async fn load_all(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        let sites: Vec<_> = ids.iter().map(|id| format!("load {}", self.world.label(id))).collect();
        let asked = ids.to_vec();
        self.ask_all(&sites, move |store| call!(store, load_all(&asked))).await
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let site = format!("save {} v{}", self.world.label(&task.id), task.version);
        let (world, task) = (Arc::clone(&self.world), task.clone());
        self.ask(site.clone(), true, move |store, at_ms| {
            let saved = store.save(&task, seen, at_ms)?;
            // Under the real adapter, a repeated call finds the record that it wrote itself the first time.
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
        self.ask(site, false, move |store, at_ms| {
            if let Store::Real(real) = store
                && lag_ms > 0
            {
                real.disturb(Fault::Behind);
            }
            store.due(shard, now, limit, cursor.as_deref(), (at_ms, lag_ms))
        })
        .await
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        let (site, task) = (format!("order {}", self.world.label(&task.id)), task.clone());
        self.ask(site, false, move |store, _| call!(store, order(&task))).await
    }

    async fn orders(&self, tasks: &[&Task]) -> Vec<Result<Option<Order>, Error>> {
        let sites: Vec<_> = tasks.iter().map(|task| format!("order {}", self.world.label(&task.id))).collect();
        let asked: Vec<Task> = tasks.iter().map(|task| (*task).clone()).collect();
        self.ask_all(&sites, move |store| call!(store, orders(&asked.iter().collect::<Vec<_>>()))).await
    }

    async fn put_output(&self, id: &Id, hash: &Hash, text: &str) -> Result<(), Error> {
        let site = format!("put-output {} {hash}", self.world.label(id));
        let (id, hash, text) = (id.clone(), hash.clone(), text.to_owned());
        self.ask(site, true, move |store, _| call!(store, put_output(&id, &hash, &text))).await
    }

    async fn outputs(&self, id: &Id, hashes: &[Hash]) -> Vec<Result<Option<String>, Error>> {
        let sites: Vec<_> = hashes.iter().map(|hash| format!("output {} {hash}", self.world.label(id))).collect();
        let (id, hashes) = (id.clone(), hashes.to_vec());
        self.ask_all(&sites, move |store| call!(store, outputs(&id, &hashes))).await
    }

    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        let workflow = workflow.clone();
        self.ask("put-workflow".into(), true, move |store, _| call!(store, put_workflow(&workflow))).await
    }

    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        let hash = hash.clone();
        self.ask("workflow".into(), false, move |store, _| call!(store, workflow(&hash))).await
    }

    async fn agents(&self) -> Result<Agents, Error> {
        self.ask("agents".into(), false, |store, _| call!(store, agents())).await
    }

    async fn pointers(&self) -> Result<Pointers, Error> {
        let read = self.ask("pointers".into(), false, |store, _| store.pointers()).await?;
        Ok(self.world.perhaps_stale(&self.node.name, read))
    }

    async fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        let (queue, waits, world) = (queue.to_owned(), waits.clone(), Arc::clone(&self.world));
        self.ask(format!("note-wait {queue}"), true, move |store, _| {
            world.trace(format_args!("{queue} is long: {waits:?}"));
            call!(store, note_wait(&queue, &waits))
        })
        .await
    }

    async fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        let (agent, strain, seen) = (agent.to_owned(), strain.clone(), seen.cloned());
        self.ask(format!("strain {agent}"), true, move |store, _| {
            call!(store, save_strain(&agent, &strain, seen.as_ref()))
        })
        .await
    }

    async fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let cursor = cursor.map(str::to_owned);
        self.ask("attention".into(), false, move |store, _| call!(store, attention(limit.min(PAGE), cursor.as_deref())))
            .await
    }
}

impl Faulty {
    pub async fn set_agent(&self, name: &str, pause: Option<&Pause>) -> Result<(), Error> {
        let (name, pause, world) = (name.to_owned(), pause.cloned(), Arc::clone(&self.world));
        self.ask(format!("set-agent {name}"), true, move |store, _| {
            world.trace(format_args!("{name} is {}", if pause.is_some() { "paused" } else { "resumed" }));
            store.set_agent(&name, pause.as_ref())
        })
        .await
    }
}

impl LeaseStore for Faulty {
    async fn read(&self, name: &str) -> Result<Option<Lease>, leader::Error> {
        let name = name.to_owned();
        Ok(self.ask(format!("read-lease {name}"), false, move |store, _| Ok(call!(store, read(&name))?)).await?)
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, leader::Error> {
        let (lease, seen, world) = (lease.clone(), seen.cloned(), Arc::clone(&self.world));
        let name = self.node.instance();
        let answer = self.ask(format!("replace-lease {}", lease.name), true, move |store, _| {
            let is_replaced = call!(store, replace(&lease, seen.as_ref()))?;
            if is_replaced && seen.as_ref().is_none_or(|seen| seen.token != lease.token) {
                world.trace(format_args!("{name} leads {} under token {}", lease.name, lease.token));
            }
            Ok(is_replaced)
        });
        Ok(answer.await?)
    }
}

/// A message on its way; it belongs to effect number `owner` of its request.
#[derive(Clone)]
pub(crate) struct Parcel {
    pub(crate) owner: usize,
    pub(crate) label: String,
    pub(crate) body: String,
    pub(crate) delay: Duration,
    pub(crate) group: Option<String>,
    /// The notice in it, if it is one.
    notice: Option<Box<Notice>>,
}

#[async_trait]
impl Messenger for Faulty {
    async fn send(&self, mut effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        self.say_what_is_done(&mut effects);
        let mut results: Vec<Result<(), Error>> = Vec::with_capacity(effects.len());
        let mut by_queue: BTreeMap<String, Vec<Parcel>> = BTreeMap::new();
        for (owner, effect) in effects.iter().enumerate() {
            results.push(messenger::address(effect, &self.world.config).map(|(message, event)| {
                let label = self.label(effect);
                let notice = match effect {
                    Effect::Notice(notice) => Some(notice.clone()),
                    _ => None,
                };
                if let Some(event) = event {
                    let body = json!({ "detail-type": event.detail_type, "detail": event.detail }).to_string();
                    let (label, delay) = (label.clone(), Duration::ZERO);
                    let parcel = Parcel { owner, label, body, delay, group: None, notice: None };
                    by_queue.entry(BUS.into()).or_default().push(parcel);
                }
                if let Some(Outgoing { queue, body, delay_s, group, .. }) = message {
                    let delay = Duration::from_secs(u64::from(delay_s.unsigned_abs()));
                    by_queue.entry(queue).or_default().push(Parcel { owner, label, body, delay, group, notice });
                }
            }));
        }
        if let Some(sender) = &self.sender {
            return sender.send(effects, by_queue).await;
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
    /// Without a script no answer meets the condition of a step that polls an agent of one's own, so its work counts as
    /// done once it was done.
    fn say_what_is_done(&self, effects: &mut [Effect]) {
        let world = &self.world;
        for effect in effects {
            if let Effect::Reply(reply) = effect
                && world.plan.script.is_none()
                && world.polls(&reply.step, Direction::Do)
            {
                reply.looked |= matches!(reply.outcome, Outcome::Done { .. });
            }
        }
    }

    /// The name of an effect in traces, and as a place of faults.
    fn label(&self, effect: &Effect) -> String {
        let world = &self.world;
        match effect {
            Effect::Request(request) => format!(
                "request {} {} {} {}",
                world.label(&request.task_id),
                request.step,
                direction(request.direction),
                request.attempt
            ),
            Effect::Wake(wake, _) => format!("wake {} v{}", world.label(&wake.task_id), wake.seen),
            Effect::Reply(reply) => format!("reply {} {} {}", world.label(&reply.task_id), reply.step, reply.attempt),
            Effect::Notice(notice) => {
                format!("notice {} {} {:?}", world.label(&notice.order_id), notice.seq, notice.kind)
            }
            Effect::Alert(alert) => format!("alert {} v{}", world.label(&alert.order_id), alert.version),
            Effect::Strained(strained) => format!("strained {}", strained.agent),
            Effect::SetAside(aside) => format!("set-aside from {}", aside.queue),
            Effect::Child(ask) => unreachable!("the engine itself asks {ask:?}"),
        }
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
        let is_there = world.queues.exists(&queue);
        if !is_there || world.fires(Class::SendError, &site).is_some() {
            is_before = true;
            parcels.iter().for_each(|parcel| refuse(world, parcel));
            errors = all(if is_there { "it did not arrive" } else { "there is no such queue" });
        } else if world.fires(Class::SendLost, &site).is_some() {
            is_lost = true;
            errors = all("no answer");
        }
        if errors.is_empty() {
            parcels.retain(|parcel| {
                let is_refused = is_refused(world, &queue, parcel);
                if is_refused {
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

/// Whether the queue refuses this message out of a request.
pub(crate) fn is_refused(world: &World, queue: &str, parcel: &Parcel) -> bool {
    let is_refused = world.fires(Route::of(queue).refused, &format!("{} to {queue}", parcel.label)).is_some();
    if is_refused {
        refuse(world, parcel);
    }
    is_refused
}

pub(crate) fn refuse(world: &World, parcel: &Parcel) {
    if let Some(notice) = &parcel.notice {
        world.history().notice_refused(notice);
    }
}

pub(crate) fn arrive(world: &World, queue: &str, parcel: &Parcel) {
    let is_end = |notice: &Notice| matches!(notice.kind, NoticeKind::Completed | NoticeKind::Undone);
    let is_dropped = match world.defect {
        Some(Defect::DropsFinalNotice) => parcel.notice.as_deref().is_some_and(is_end),
        Some(Defect::DropsAlerts) => queue == BUS,
        _ => false,
    };
    if is_dropped {
        return;
    }
    if world.is_sent_again(queue, &parcel.body) {
        return;
    }
    let is_lost = post(world, queue, &parcel.label, &parcel.body, parcel.delay);
    if is_lost && let Some(notice) = &parcel.notice {
        world.history().notice(notice);
    }
    if is_lost && let Some(alert) = alert_in(&parcel.body).filter(|_| queue == BUS) {
        world.history().alert(&alert);
    }
}

/// The alert in a message of the bus.
pub(crate) fn alert_in(body: &str) -> Option<AlertEvent> {
    let event: Value = serde_json::from_str(body).ok()?;
    let is_alert = event["detail-type"] == messenger::ORDER_ALERT;
    serde_json::from_str(event["detail"].as_str().filter(|_| is_alert)?).ok()
}

/// The classes of faults on the way into a queue: each kind of queue has its own.
struct Route {
    refused: Class,
    lost: Class,
    late: Class,
    doubled: Class,
}

impl Route {
    fn of(queue: &str) -> Self {
        let (refused, lost, late, doubled) = match queue {
            // The event bus, with alerts.
            BUS => (Class::AlertRefused, Class::AlertLost, Class::AlertLate, Class::AlertDoubled),
            // A submitter, with notices.
            _ if queue.starts_with("notices-") => {
                (Class::NoticeRefused, Class::NoticeLost, Class::NoticeLate, Class::NoticeDoubled)
            }
            // One of our own processes.
            _ => (Class::PartialBatch, Class::LostMessage, Class::Delay, Class::Duplicate),
        };
        Self { refused, lost, late, doubled }
    }
}

/// Puts a message into a queue, with all faults of messages; returns whether it was lost there.
pub(crate) fn post(world: &World, queue: &str, label: &str, body: &str, delay: Duration) -> bool {
    let route = Route::of(queue);
    if world.fires(route.lost, label).is_some() {
        world.queues.send(queue, body, label, &[]);
        return true;
    }
    let ms = Duration::from_millis;
    let mut delay = delay + ms(1);
    if let Some(mut draw) = world.fires(Class::Reorder, label) {
        delay += ms(draw.between(20, 2000));
    }
    if let Some(mut draw) = world.fires(route.late, label) {
        let most = 3 * u64::try_from(world.plan.longest_timeout.as_millis()).unwrap_or(u64::MAX / 8);
        delay += ms(draw.between(1000, most.max(2000)));
    }
    let mut delays = vec![delay];
    if let Some(mut draw) = world.fires(route.doubled, label) {
        for _ in 0..draw.between(1, 3) {
            delays.push(delay + ms(draw.between(0, 15_000)));
        }
    }
    world.queues.send(queue, body, label, &delays);
    false
}

pub(crate) fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Do => "do",
        Direction::Undo => "undo",
    }
}
