//! One run: processes, queues, remote services, clients and people, from one seed, in virtual time.

use crate::Defect;
use crate::dice::{Allowed, Class, Dice, Draw, Fired};
use crate::history::{History, Rule, Violation, is_by_hand};
use crate::node::{Node, Role, time_at};
use crate::plan::{OrderPlan, Plan};
use crate::port::{Faulty, MOST_LATE, SimulatedAgent, post, way_ms};
use crate::queues::{Queues, wait_ms};
use crate::real::{self, RealStore};
use crate::services::{Answer, Services};
use crate::store::{Memory, Store};
use crate::trace::Trace;
use agent::{Agent, Runtime, breaker};
use aws_lambda_events::event::sqs::SqsEvent;
use futures::StreamExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use shared::engine::{self, Engine};
use shared::message::{Cancel, Request, ToScheduler};
use shared::operator::{Act, Outcome, What};
use shared::order::Id;
use shared::pools::Layout;
use shared::ports::Error;
use shared::queues;
use shared::task::{Priority, ProcessState, Task};
use shared::time::{SignedDuration, Timestamp};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stepwarden_aws::Config;
use stepwarden_aws::batch::Response;
use submit::Submit;
use submit::problem::Problem;
use supervisor::Supervisor;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// Name of the queue that submitters register for notices.
pub const REPLY_QUEUE: &str = "shop";
/// Whose orders they are.
const TENANT: &str = "acme";
/// How long a client waits for an answer: the API's own limit.
const CLIENT_PATIENCE: Duration = Duration::from_secs(30);
/// What a message that nobody can read begins with.
const POISON: &str = "poison";
/// Times a person resubmits one order.
const RESUBMISSIONS: u32 = 2;

/// What a run is told beside its seed.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Which faults may happen.
    pub allowed: Allowed,
    /// Whether its trace is kept.
    pub keeps_trace: bool,
    /// A defect put in on purpose, to see it found.
    pub defect: Option<Defect>,
}

/// How one order went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderRun {
    /// Its number, from 1.
    pub number: usize,
    /// Where it ended; `None` if it was never stored.
    pub state: Option<ProcessState>,
    /// From being stored to its first end, in milliseconds of virtual time; `None` where a person held it up.
    pub took_ms: Option<u64>,
}

/// How one run went.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Its workflow.
    pub workflow: String,
    /// It went over the real adapter.
    pub is_real_store: bool,
    /// The rules it broke; none if all is well.
    pub violations: Vec<Violation>,
    /// The faults that happened, in order.
    pub fired: Vec<Fired>,
    /// The orders.
    pub orders: Vec<OrderRun>,
    /// Over everything that happened.
    pub hash: u64,
    /// What happened, if it was kept.
    pub trace: Vec<String>,
    /// How long it took, in milliseconds of virtual time.
    pub virtual_ms: u64,
    /// Dead letters that were put back after the faults had ended.
    pub redriven: usize,
}

/// Everything in a run that outlives a process.
pub struct World {
    /// When it began.
    pub began: Instant,
    /// What its seed decided.
    pub plan: Plan,
    /// Names of queues.
    pub config: Config,
    /// The queues.
    pub queues: Queues,
    /// The store.
    pub store: Store,
    /// A defect put in on purpose.
    pub defect: Option<Defect>,
    dice: Dice,
    history: Mutex<History>,
    services: Mutex<Services>,
    trace: Mutex<Trace>,
    labels: BTreeMap<Id, String>,
    outages: Mutex<BTreeMap<String, (u64, u64)>>,
    failing_undos: Mutex<BTreeMap<String, u64>>,
    violations: Mutex<Vec<Violation>>,
    poison: Mutex<BTreeSet<String>>,
    doors: Mutex<BTreeMap<String, mpsc::UnboundedSender<Knock>>>,
    busy: AtomicUsize,
}

/// What comes to a process from outside of the queues.
enum Knock {
    Submit(String, Value, oneshot::Sender<Result<Id, Problem>>),
    Act(Id, Act, oneshot::Sender<Result<Outcome, Error>>),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    fn new(plan: Plan, options: &RunOptions) -> Self {
        let began = Instant::now();
        let pools = match plan.pools {
            true => Layout::from([("payment".into(), vec!["payment".into(), "payment-b".into()])]),
            false => Layout::new(),
        };
        let config = real::config(plan.shards, plan.classes, pools);
        let store = match plan.is_real_store {
            true => Store::Real(RealStore::open(config.clone())),
            false => Store::Memory(Memory::new(options.defect)),
        };
        Self {
            began,
            queues: Queues::new(began, plan.visibility),
            store,
            config,
            defect: options.defect,
            dice: Dice::new(plan.seed, plan.rates.clone(), options.allowed.clone()),
            history: Mutex::default(),
            services: Mutex::default(),
            trace: Mutex::new(Trace::new(options.keeps_trace)),
            labels: plan.orders.iter().map(|o| (id_of(o), format!("o{}", o.number))).collect(),
            outages: Mutex::default(),
            failing_undos: Mutex::default(),
            violations: Mutex::default(),
            poison: Mutex::default(),
            doors: Mutex::default(),
            busy: AtomicUsize::new(0),
            plan,
        }
    }

    /// Milliseconds since the run began.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    /// The true time.
    #[must_use]
    pub fn time(&self) -> Timestamp {
        time_at(self.began, 0)
    }

    /// A time as seconds since the run began.
    #[must_use]
    pub fn clock_text(&self, at: Timestamp) -> String {
        let ms = time_at(Instant::now(), 0).duration_until(at).as_millis();
        format!("{}.{:03}", ms / 1000, (ms % 1000).abs())
    }

    /// Adds a line to the trace.
    pub fn trace(&self, what: fmt::Arguments<'_>) {
        lock(&self.trace).add(self.now_ms(), what);
    }

    /// Whether this goes wrong here and now.
    pub fn fires(&self, class: Class, site: &str) -> Option<Draw> {
        let fired = self.dice.fires(class, site, self.now_ms());
        if fired.is_some() {
            self.trace(format_args!("!! {class}: {site}"));
        }
        fired
    }

    /// How long the way of a call takes, there and back, in milliseconds.
    #[must_use]
    pub fn ways(&self, node: &str, site: &str) -> (u64, u64) {
        let mut draw = self.dice.draw(&format!("{node} {site}"));
        (way_ms(&mut draw), way_ms(&mut draw))
    }

    /// What an order is called in traces.
    #[must_use]
    pub fn label<'a>(&'a self, id: &'a Id) -> &'a str {
        self.labels.get(id).map_or(id.0.as_str(), String::as_str)
    }

    /// The history so far.
    pub fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    /// A task in one line.
    #[must_use]
    pub fn sketch(&self, task: &Task) -> String {
        let steps = task.steps.iter().zip(&self.plan.workflow.steps).map(|(step, spec)| {
            let state = shared::view::state_name(&step.state);
            let by = step.claim().map(|(_, by)| format!(" by {}", self.clock_text(by))).unwrap_or_default();
            let failures = match step.failures + step.undo_failures {
                0 => String::new(),
                n => format!(" failed {n}"),
            };
            format!("{} {state}/{}{by}{failures}", spec.name, step.attempt)
        });
        let steps: Vec<_> = steps.collect();
        let due = task.due.map_or("never".into(), |due| self.clock_text(due));
        format!("{:?} [{}] due {due}", task.phase, steps.join(", "))
    }

    /// A remote service is asked.
    pub fn serve(&self, request: &Request, refuses: bool) -> Answer {
        lock(&self.services).act(request, refuses, self.defect, &mut self.history().effects)
    }

    /// The service of this agent is down.
    #[must_use]
    pub fn is_out(&self, agent: &str) -> bool {
        let now = self.now_ms();
        lock(&self.outages).get(agent).is_some_and(|(from, until)| (*from..*until).contains(&now))
    }

    /// The undo called so fails at this time.
    #[must_use]
    pub fn does_undo_fail(&self, what: &str) -> bool {
        let now = self.now_ms();
        if let Some(until) = lock(&self.failing_undos).get(what) {
            return now < *until;
        }
        let most = u64::try_from(self.plan.faults_end.as_millis()).unwrap_or(u64::MAX / 2);
        let until =
            self.fires(Class::UndoFails, what).map_or(0, |mut draw| (now + draw.between(500, 20_000)).min(most));
        lock(&self.failing_undos).insert(what.to_owned(), until);
        now < until
    }

    /// A message was set aside.
    pub fn set_aside(&self, body: &str, reason: &str) {
        if !lock(&self.poison).contains(body) {
            self.wrong(Rule::NoneAside, None, format!("a message was set aside: {reason}: {body}"));
        }
    }

    fn wrong(&self, rule: Rule, order: Option<Id>, words: String) {
        lock(&self.violations).push(Violation { rule, order, words });
    }

    /// An engine of this process in its present life.
    fn engine(self: &Arc<Self>, node: &Arc<Node>) -> Engine<Faulty, Faulty> {
        let observed = Arc::clone(self);
        let config = engine::Config {
            instance: node.instance(),
            skew: self.plan.skew,
            cache: self.plan.cache,
            overload_age: self.config.overload_age,
            clock: node.clock(self),
            observer: Some(Arc::new(move |task: &Task| observed.history().observed(task))),
            pools: self.config.pools.clone(),
            classes: self.config.priority_classes,
        };
        let port = Faulty::new(self, node);
        Engine::new(port.clone(), port, config)
    }

    /// A door that others knock at, for one life of a process.
    fn door(&self, node: &Node) -> mpsc::UnboundedReceiver<Knock> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.doors).insert(node.name.clone(), sender);
        receiver
    }

    fn knock(&self, node: &str, knock: Knock) {
        // Nobody there: whoever knocks sees that nobody answers.
        if let Some(door) = lock(&self.doors).get(node) {
            let _ = door.send(knock);
        }
    }
}

/// The id under which an order will be stored.
fn id_of(order: &OrderPlan) -> Id {
    Id::derive(TENANT, &key_of(order))
}

fn key_of(order: &OrderPlan) -> String {
    format!("key-{}", order.number)
}

/// Something that keeps the run from its end until it is dropped.
struct Busy<'a>(&'a World);

impl<'a> Busy<'a> {
    fn new(world: &'a World) -> Self {
        world.busy.fetch_add(1, Ordering::Relaxed);
        Self(world)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A process through all its lives.
async fn live(world: Arc<World>, node: Arc<Node>) {
    loop {
        node.begin(&world);
        let body: BoxFuture<'_, ()> = match node.role {
            Role::Submit => Box::pin(take_orders(&world, &node)),
            Role::Scheduler => Box::pin(schedule(&world, &node)),
            Role::Agent => Box::pin(act(&world, &node)),
            Role::Supervisor => Box::pin(supervise(&world, &node)),
            Role::Operator => Box::pin(operate(&world, &node)),
        };
        node.live(&world, body).await;
        lock(&world.doors).remove(&node.name);
        let mut draw = world.dice.draw(&format!("{} is started again", node.name));
        wait_ms(draw.between(50, 3000)).await;
    }
}

/// What an event source mapping does: one batch after another.
async fn pump<'a>(
    world: &'a World,
    node: &'a Node,
    queue: &'a str,
    handler: impl Fn(SqsEvent) -> BoxFuture<'a, Response>,
) {
    loop {
        let messages = world.queues.receive(queue).await;
        let site = format!("handle {}", messages[0].label);
        node.touch(world, &site);
        let (out, back) = world.ways(&node.name, &site);
        wait_ms(out).await;
        if world.defect == Some(Defect::DeletesFirst) {
            messages.iter().for_each(|m| world.queues.delete(queue, m.receipt));
        }
        let all = messages.iter().map(|m| m.label.as_str()).collect::<Vec<_>>().join(", ");
        world.trace(format_args!("{} handles {all}", node.instance()));
        let response = handler(world.queues.event(queue, &messages)).await;
        wait_ms(back).await;
        for message in &messages {
            let failed = response.batch_item_failures.iter().any(|f| f.item_identifier == message.id.to_string());
            if !failed && world.fires(Class::DeleteLost, &message.label).is_none() {
                world.queues.delete(queue, message.receipt);
            }
        }
    }
}

async fn take_orders(world: &Arc<World>, node: &Arc<Node>) {
    let submit = Submit {
        engine: Arc::new(world.engine(node)),
        workflows: [(world.plan.workflow.name.clone(), (*world.plan.workflow).clone())].into(),
        reply_queues: world.config.reply_queues.clone(),
        shards: world.plan.shards,
        queue_tenant: TENANT.into(),
    };
    let mut door = world.door(node);
    let over_http = async {
        let mut under_way = FuturesUnordered::new();
        loop {
            let knock = tokio::select! {
                biased;
                Some(()) = under_way.next(), if !under_way.is_empty() => continue,
                Some(knock) = door.recv() => knock,
            };
            if let Knock::Submit(key, body, answer) = knock {
                let submit = &submit;
                under_way.push(async move {
                    let accepted = match submit::submission::parse(body.to_string().as_bytes()) {
                        Ok(submission) => submit.accept(TENANT, &key, submission).await,
                        Err(problem) => Err(problem),
                    };
                    let _ = answer.send(accepted);
                });
            }
        }
    };
    let by_message = pump(world, node, queues::SUBMISSIONS, |event| Box::pin(submit::queue_handler(&submit, event)));
    let ((), ()) = futures::future::join(over_http, by_message).await;
}

async fn schedule(world: &Arc<World>, node: &Arc<Node>) {
    let engine = world.engine(node);
    let mut names = world.config.scheduler_queues();
    names.push(queues::REPLIES.into());
    let pumps =
        names.iter().map(|queue| pump(world, node, queue, |event| Box::pin(scheduler::handler(&engine, event))));
    join_all(pumps).await;
}

async fn act(world: &Arc<World>, node: &Arc<Node>) {
    let used = world.plan.workflow.agents();
    let own = agent::agents::NAMES.iter().copied().filter(|name| used.contains(name));
    let names = own.chain(used.iter().copied().filter(|name| !agent::agents::NAMES.contains(name)));
    let agents: Vec<Arc<dyn Agent>> =
        names.map(|name| Arc::new(SimulatedAgent::new(name, world, node)) as Arc<dyn Agent>).collect();
    let settings = agent::Settings { skew: world.plan.skew, breaker: breaker::Settings::default() };
    let mut pools = Vec::new();
    let mut runtime = Runtime::new(agents.clone(), settings, node.clock(world));
    for own in &agents {
        for pool in world.config.pools_of(own.name()) {
            if pool != own.name() {
                runtime = runtime.with_pool(pool, Arc::clone(own));
            }
            pools.push(pool.to_owned());
        }
    }
    let messenger = Faulty::new(world, node);
    let names: Vec<String> = pools.iter().flat_map(|pool| world.config.pool_queues(pool)).collect();
    let pumps = names
        .iter()
        .flat_map(|queue| [queue; 2])
        .map(|queue| pump(world, node, queue, |event| Box::pin(agent::handler(&runtime, &messenger, event))));
    join_all(pumps).await;
}

async fn supervise(world: &Arc<World>, node: &Arc<Node>) {
    if world.defect == Some(Defect::NoSweep) {
        return std::future::pending().await;
    }
    let engine = world.engine(node);
    let plan = &world.plan;
    let settings =
        supervisor::Settings { groups: plan.groups, ..supervisor::Settings::new(plan.shards, plan.lease_life) };
    let mut supervisor = Supervisor::new(&engine, settings);
    loop {
        let mut draw = world.dice.draw(&format!("{} waits", node.name));
        sleep(plan.sweep_every.mul_f64(draw.between(70, 130) as f64 / 100.0)).await;
        let swept = match plan.patrols {
            true => supervisor.patrol(plan.sweep_every, Instant::now() + plan.sweep_every * 3).await,
            false => supervisor.sweep().await,
        };
        match swept {
            Ok(swept) if swept.looked_at > 0 => world.trace(format_args!(
                "{} swept {}: {} expired, {} failed",
                node.instance(),
                swept.looked_at,
                swept.expired,
                swept.failed
            )),
            Ok(_) => {}
            Err(error) => world.trace(format_args!("{} could not sweep: {error}", node.instance())),
        }
        if plan.patrols {
            supervisor = Supervisor::new(&engine, settings);
        }
    }
}

async fn operate(world: &Arc<World>, node: &Arc<Node>) {
    let engine = world.engine(node);
    let mut door = world.door(node);
    while let Some(knock) = door.recv().await {
        if let Knock::Act(id, act, answer) = knock {
            let done = engine.act(vec![(id, act)]).await.pop().expect("one outcome for one act");
            let _ = answer.send(done);
        }
    }
}

/// A client: submits until it has an answer, always under the same key.
async fn submit_order(world: Arc<World>, order: OrderPlan) {
    let _busy = Busy::new(&world);
    sleep(order.at).await;
    let label = format!("o{}", order.number);
    let mut body = json!({
        "workflow": world.plan.workflow.name,
        "input": input(&world.plan, order.number),
        "reference": label,
        "priority": order.priority,
    });
    if order.has_queue {
        body["reply_queue"] = json!(REPLY_QUEUE);
    }
    if order.by_message {
        body["idempotency_key"] = json!(key_of(&order));
        let mut delays = vec![Duration::from_millis(1)];
        if let Some(mut draw) = world.fires(Class::Duplicate, &format!("submission {label}")) {
            delays.push(Duration::from_millis(draw.between(1, 20_000)));
        }
        world.queues.send(queues::SUBMISSIONS, &body.to_string(), &format!("submission {label}"), &delays);
        return;
    }
    for attempt in 0.. {
        let (answer, answered) = oneshot::channel();
        let submits = [Role::Submit.name(), "-", &(attempt % 2).to_string()].concat();
        let (out, back) = world.ways("client", &label);
        wait_ms(out).await;
        world.knock(&submits, Knock::Submit(key_of(&order), body.clone(), answer));
        let answer = timeout(CLIENT_PATIENCE, answered).await;
        wait_ms(back).await;
        match answer {
            Ok(Ok(Ok(id))) => {
                world.trace(format_args!("client of {label}: accepted"));
                if world.history().last(&id).is_none() {
                    world.wrong(Rule::Accepted, Some(id), "it was accepted and is not stored".into());
                }
                return;
            }
            Ok(Ok(Err(problem))) if problem.status == 429 || problem.status >= 500 => {
                world.trace(format_args!("client of {label}: {} {}", problem.status, problem.code));
                let wait = problem.retry_after_s.map_or(1, u64::from);
                sleep(Duration::from_secs(wait.min(60))).await;
            }
            Ok(Ok(Err(problem))) => {
                world.wrong(
                    Rule::Accepted,
                    Some(id_of(&order)),
                    format!("refused: {} {}", problem.code, problem.detail),
                );
                return;
            }
            Ok(Err(_)) | Err(_) => {
                world.trace(format_args!("client of {label}: no answer"));
                sleep(Duration::from_secs(1)).await;
            }
        }
    }
}

/// An input that every built-in check takes.
fn input(plan: &Plan, number: usize) -> Value {
    if plan.workflow.input.as_deref() != Some("order") {
        return json!({ "total_cents": 100 * number });
    }
    json!({
        "order_ref": format!("S-{number}"),
        "placed_at": "2026-01-01T00:00:00Z",
        "customer": { "id": "C1", "company": null, "contact": null, "phone": null },
        "ship_to": {
            "name": "A. Reader", "address": "1 Main Street", "city": "Reims", "region": null, "postal_code": null,
            "country": "France"
        },
        "currency": "EUR",
        "lines": [{
            "sku": "A-1", "product": "Cheese", "quantity": 2, "unit_price_cents": 500, "discount_percent": 0,
            "amount_cents": 1000
        }],
        "freight_cents": 0,
        "total_cents": 1000
    })
}

/// Asks the operator function until it answers; what came of it.
async fn ask(world: &World, id: &Id, what: What) -> Outcome {
    let label = world.label(id).to_owned();
    loop {
        let (answer, answered) = oneshot::channel();
        let act = Act { what: what.clone(), by: "somebody".into(), reason: "a test".into(), seen: None };
        world.knock("operator-0", Knock::Act(id.clone(), act, answer));
        let outcome = timeout(CLIENT_PATIENCE, answered).await;
        world.trace(format_args!("somebody asks for {what:?} of {label}: {outcome:?}"));
        match outcome {
            Ok(Ok(Ok(outcome))) if outcome != Outcome::NotFound => return outcome,
            _ => sleep(Duration::from_secs(1)).await,
        }
    }
}

/// What people do to one order.
async fn meddle(world: Arc<World>, order: OrderPlan) {
    let _busy = Busy::new(&world);
    let (id, label) = (id_of(&order), format!("o{}", order.number));
    let most = u64::try_from(world.plan.faults_end.as_millis()).unwrap_or(u64::MAX / 2);
    let mut acts = Vec::new();
    for class in [Class::Cancel, Class::UndoAsked, Class::RetryNow, Class::PauseOrder] {
        if let Some(mut draw) = world.fires(class, &label) {
            acts.push((draw.between(0, most), class, draw));
        }
    }
    acts.sort_by_key(|(at, class, _)| (*at, *class));
    for (at, class, mut draw) in acts {
        wait_ms(at.saturating_sub(world.now_ms())).await;
        match class {
            Class::Cancel if draw.chance(0.5) => {
                let cancel = Cancel { task_id: id.clone(), by: "somebody".into(), reason: "a test".into() };
                let body = serde_json::to_string(&ToScheduler::Cancel(cancel)).expect("plain text");
                // A cancellation of what is not stored yet would be set aside.
                if world.history().last(&id).is_some() {
                    post(&world, queues::SCHEDULER, &format!("cancel {label}"), &body, Duration::ZERO);
                }
            }
            Class::Cancel => {
                ask(&world, &id, What::Cancel).await;
            }
            Class::UndoAsked => {
                ask(&world, &id, What::Undo).await;
            }
            Class::RetryNow => {
                ask(&world, &id, What::RetryNow { step: None }).await;
            }
            _ => {
                if matches!(ask(&world, &id, What::Pause).await, Outcome::Applied(_) | Outcome::Repeated(_)) {
                    wait_ms(draw.between(100, 15_000)).await;
                    ask(&world, &id, What::Resume).await;
                }
            }
        }
    }
}

/// Resubmits one order whenever it is in Error, a few times.
async fn resubmit(world: Arc<World>, order: OrderPlan, left: Arc<AtomicUsize>) {
    let (id, label) = (id_of(&order), format!("o{}", order.number));
    let Some(mut draw) = world.fires(Class::Resubmit, &label) else {
        left.store(0, Ordering::Relaxed);
        return;
    };
    while left.load(Ordering::Relaxed) > 0 {
        wait_ms(draw.between(200, 3000)).await;
        let is_in_error = world.history().last(&id).is_some_and(|t| t.process_state() == ProcessState::Error);
        if is_in_error {
            let _busy = Busy::new(&world);
            ask(&world, &id, What::Resubmit { step: None, input: None }).await;
            left.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Messages that nobody can read.
async fn poison(world: Arc<World>) {
    let mut all = vec![queues::SUBMISSIONS.to_owned(), queues::SCHEDULER.to_owned(), queues::REPLIES.to_owned()];
    all.extend(world.plan.workflow.agents().iter().map(|agent| queues::of_requests(agent, Priority::Normal, false)));
    for queue in all {
        if let Some(mut draw) = world.fires(Class::Poison, &queue) {
            let body = format!("{POISON} for {queue}");
            lock(&world.poison).insert(body.clone());
            let delay = Duration::from_millis(draw.between(0, 10_000));
            world.queues.send(&queue, &body, &body, &[delay]);
        }
    }
}

/// Why a run is not at rest yet: an order, and what about it.
fn unrest(world: &World, orders: &[(OrderPlan, Arc<AtomicUsize>)]) -> Option<(Option<Id>, String)> {
    for (order, resubmissions) in orders {
        let id = id_of(order);
        let task = match world.store.load(&id) {
            Ok(Some(task)) => task,
            Ok(None) => return Some((Some(id), "it is not stored".into())),
            Err(error) => return Some((Some(id), error.to_string())),
        };
        let is_left = resubmissions.load(Ordering::Relaxed) == 0 || task.process_state() != ProcessState::Error;
        if !task.process_state().is_final() || task.due.is_some() || !is_left {
            return Some((Some(id), format!("version {}: {}", task.version, world.sketch(&task))));
        }
    }
    match world.busy.load(Ordering::Relaxed) {
        0 => {}
        n => return Some((None, format!("{n} clients have no answer"))),
    }
    match world.queues.left() {
        (0, 0) => None,
        (waiting, dead) => Some((None, format!("{waiting} messages wait, {dead} are dead: {:?}", world.queues.dead()))),
    }
}

/// Runs one seed.
pub(crate) fn run(plan: Plan, options: &RunOptions) -> Run {
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread");
    let world = runtime.block_on(async { Arc::new(World::new(plan, options)) });
    let (orders, redriven) = runtime.block_on(play(&world));
    let virtual_ms = runtime.block_on(async { world.now_ms() });
    // All tasks end here, and with them all that hold the world.
    drop(runtime);
    let world = Arc::into_inner(world).expect("nothing else holds it");
    let history = world.history.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut violations = world.violations.into_inner().unwrap_or_else(PoisonError::into_inner);
    let workflow = Arc::clone(&world.plan.workflow);
    let hash = workflow.hash();
    violations.extend(history.check(|wanted| (*wanted == hash).then(|| Arc::clone(&workflow))));
    let orders = orders.iter().map(|order| order_run(order, &history)).collect();
    let trace = world.trace.into_inner().unwrap_or_else(PoisonError::into_inner);
    Run {
        seed: world.plan.seed,
        workflow: workflow.name.clone(),
        is_real_store: world.plan.is_real_store,
        violations,
        fired: world.dice.fired(),
        orders,
        hash: trace.hash(),
        trace: trace.into_lines(),
        virtual_ms,
        redriven,
    }
}

fn order_run(order: &OrderPlan, history: &History) -> OrderRun {
    let id = id_of(order);
    let end = history.first_end(&id);
    let by_hand = |task: &&Arc<Task>| task.log.iter().any(|entry| is_by_hand(entry.1));
    let took_ms = end.filter(|task| !by_hand(task)).map(|task| {
        let took: SignedDuration = task.created_at.duration_until(task.updated_at);
        u64::try_from(took.as_millis()).unwrap_or_default()
    });
    OrderRun { number: order.number, state: history.last(&id).map(|task| task.process_state()), took_ms }
}

/// The run itself: the orders that took part, and how many dead letters were put back.
async fn play(world: &Arc<World>) -> (Vec<OrderPlan>, usize) {
    let plan = &world.plan;
    let last = u64::try_from(plan.faults_end.as_millis()).unwrap_or(u64::MAX / 2);
    for agent in plan.workflow.agents() {
        if let Some(mut draw) = world.fires(Class::RemoteOutage, agent) {
            let from = draw.between(0, last);
            let until = draw.between(from, last);
            lock(&world.outages).insert(agent.to_owned(), (from, until));
        }
    }
    let mut processes = Vec::new();
    let roles = [(Role::Submit, 2), (Role::Scheduler, 2), (Role::Agent, 2), (Role::Supervisor, 2), (Role::Operator, 1)];
    for (role, count) in roles {
        for number in 0..count {
            processes.push(tokio::spawn(live(Arc::clone(world), Arc::new(Node::new(role, number)))));
        }
    }
    let mut orders = Vec::new();
    for order in &plan.orders {
        if order.number > 1 && world.fires(Class::MoreOrders, &order.number.to_string()).is_none() {
            continue;
        }
        let left = Arc::new(AtomicUsize::new(RESUBMISSIONS as usize));
        tokio::spawn(submit_order(Arc::clone(world), order.clone()));
        tokio::spawn(meddle(Arc::clone(world), order.clone()));
        tokio::spawn(resubmit(Arc::clone(world), order.clone(), Arc::clone(&left)));
        orders.push((order.clone(), left));
    }
    tokio::spawn(poison(Arc::clone(world)));
    sleep(plan.faults_end).await;
    world.dice.stop();
    world.trace(format_args!("-- nothing goes wrong from here on"));
    let deadline = Instant::now() + plan.rest_within();
    let mut redriven = 0;
    for look in 0u64.. {
        sleep(Duration::from_millis(500)).await;
        if processes.iter().any(tokio::task::JoinHandle::is_finished) {
            world.wrong(Rule::Ends, None, "a process panicked".into());
            break;
        }
        let Some((order, why)) = unrest(world, &orders) else { break };
        if Instant::now() > deadline {
            world.wrong(Rule::Ends, order, format!("no rest within {:?}: {why}", plan.rest_within()));
            break;
        }
        // An operator puts dead letters back once the trouble is over.
        if look % 60 == 0 {
            redriven += world.queues.redrive();
        }
    }
    // What is still on its way to a remote service may come after the end.
    sleep(plan.longest_timeout * (MOST_LATE + 1) + Duration::from_secs(15)).await;
    world.trace(format_args!("-- the end"));
    (orders.into_iter().map(|(order, _)| order).collect(), redriven)
}
