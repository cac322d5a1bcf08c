//! The world of one run: queues, remote services and what happened, from one seed, in virtual time.

pub(crate) mod processes;
pub(crate) mod run;

use crate::Defect;
use crate::dice::{Allowed, Class, Dice, Draw};
use crate::endpoint::Mishap;
use crate::history::{History, Rule, Violation};
use crate::node::{Node, time_at};
use crate::people;
use crate::plan::{OrderPlan, Plan};
use crate::port::{BUS, Faulty};
use crate::queues::Queues;
use crate::real::{self, RealStore};
use crate::script::{self, Script, Sending, Sent};
use crate::services::{self, Services};
use crate::store::{Memory, Store, call};
use crate::trace::Trace;
use agent::AgentError;
use serde_json::{Value, json};
use shared::control::Pause;
use shared::decision::{Act, Progress};
use shared::engine::{self, Core, Engine, Save};
use shared::expression::Names;
use shared::history::Kind;
use shared::message::Request;
use shared::operator::Outcome;
use shared::order::Id;
use shared::pools::Layout;
use shared::ports::{Error, StateStore};
use shared::queues;
use shared::registry::{Pointer, Pointers};
use shared::step::{Direction, State};
use shared::task::{Parent, Phase, ProcessState, Task};
use shared::time::Timestamp;
use shared::workflow::poll::Found;
use shared::workflow::{Hash, Workflow};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stepwarden_aws::{Config, schema};
use submit::heartbeats::Alive;
use submit::problem::Problem;
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

/// Name of the queue that submitters register for notices.
pub const REPLY_QUEUE: &str = "shop";
const TENANT: &str = "acme";

/// Longest trip there or back without a fault, in milliseconds.
const WAY_MS: u64 = 8;

/// How long after a change orders may still get the definition before, in milliseconds.
const FOLLOWED_MS: u64 = 5000;

/// The options of a run beside its seed.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Which faults may happen.
    pub allowed: Allowed,
    /// Whether its trace is kept.
    pub keeps_trace: bool,
    /// A defect put into the world on purpose.
    pub defect: Option<Defect>,
    /// The functions that decide: the core, or the core with a defect.
    pub core: Core,
}

/// Everything in a run that outlives a process.
pub struct World {
    pub began: Instant,
    pub plan: Plan,
    pub config: Config,
    pub queues: Queues,
    pub store: Store,
    pub defect: Option<Defect>,
    core: Core,
    pub(crate) dice: Dice,
    history: Mutex<History>,
    pub(crate) services: Mutex<Services>,
    trace: Mutex<Trace>,
    labels: BTreeMap<Id, String>,
    outages: Mutex<BTreeMap<String, (u64, u64)>>,
    failing_undos: Mutex<BTreeMap<String, u64>>,
    /// The first mapped input that was sent under each idempotency key in each round of its step.
    bodies: Mutex<BTreeMap<(String, u32), Value>>,
    violations: Mutex<Vec<Violation>>,
    /// Unreadable bodies, which are set aside.
    pub(crate) poison: Mutex<BTreeSet<String>>,
    doors: Mutex<BTreeMap<String, mpsc::UnboundedSender<Knock>>>,
    acts: Mutex<BTreeMap<&'static str, u64>>,
    /// Every scripted call so far, in order.
    pub(crate) sent: Mutex<Vec<Sent>>,
    /// The answers to the events of a script, by position: `accepted`, or the code of a problem.
    pub(crate) answered: Mutex<BTreeMap<usize, String>>,
    /// The requests of a run without faults.
    requests: Mutex<BTreeSet<String>>,
    met: Mutex<BTreeMap<&'static str, u64>>,
    /// The definitions that the workflow's name stands for at times: that of the deployment, then those that people put. They have
    /// other hashes and the same steps. A hash is made once, because a run looks for a definition at each save.
    pub(crate) definitions: Vec<(Hash, Arc<Workflow>)>,
    /// Which of them was active, from which time on (milliseconds from the beginning of the run); `None`: the name was retired.
    active: Mutex<Vec<(u64, Option<Hash>)>>,
    /// What a process read first, for a defect.
    stale: Mutex<BTreeMap<String, Pointers>>,
    busy: AtomicUsize,
}

/// The beginning of the name under which the callback of a step is sent.
pub const CALLBACK: &str = "callback:";

/// What reaches a process other than from queues.
pub(crate) enum Knock {
    Submit(String, Value, oneshot::Sender<Result<Id, Problem>>),
    Act(Vec<(Id, Act)>, oneshot::Sender<Vec<Result<Outcome, Error>>>),
    /// An event of an order, and its answer.
    Event(Id, Sending, oneshot::Sender<Result<(), Problem>>),
    /// A heartbeat of an attempt at a step of an order, and its answer.
    Beat(Id, String, u32, Progress, oneshot::Sender<Result<Alive, Problem>>),
    SetAgent(String, Option<Pause>, oneshot::Sender<Result<(), Error>>),
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The world of one run, and the runtime in virtual time that it runs in.
pub(crate) fn begin(plan: Plan, options: &RunOptions) -> (Runtime, Arc<World>) {
    fastrand::seed(plan.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime of one thread");
    let world = runtime.block_on(async { Arc::new(World::new(plan, options)) });
    (runtime, world)
}

impl World {
    /// The world of one run, before anything has happened.
    pub fn new(plan: Plan, options: &RunOptions) -> Self {
        let began = Instant::now();
        let pools = match plan.pools {
            true => Layout::from([("payment".into(), vec!["payment".into(), "payment-b".into()])]),
            false => Layout::new(),
        };
        let mut config = real::config(plan.shards, plan.classes, pools);
        // External agents are served here as well.
        let external = plan.agents().into_iter().filter(|name| !agent::agents::NAMES.contains(name));
        config.agents.extend(external.map(str::to_owned));
        let store = match plan.is_real_store {
            true => Store::Real(RealStore::open(&config)),
            false => Store::Memory(Memory::new(options.defect)),
        };
        Self {
            began,
            queues: Queues::new(queue_names(&config), began, plan.visibility),
            store,
            config,
            defect: options.defect,
            core: options.core.clone(),
            dice: Dice::new(plan.seed, plan.rates.clone(), options.allowed.clone()),
            history: Mutex::new(History::new(plan.skew)),
            services: Mutex::default(),
            trace: Mutex::new(Trace::new(options.keeps_trace)),
            labels: plan.orders.iter().map(|o| (id_of(o), format!("o{}", o.number))).collect(),
            outages: Mutex::default(),
            failing_undos: Mutex::default(),
            bodies: Mutex::default(),
            violations: Mutex::default(),
            poison: Mutex::default(),
            doors: Mutex::default(),
            acts: Mutex::default(),
            sent: Mutex::default(),
            answered: Mutex::default(),
            requests: Mutex::default(),
            met: Mutex::default(),
            active: Mutex::new(vec![(0, Some(plan.workflow.hash()))]),
            definitions: definitions(&plan.workflow)
                .into_iter()
                .chain(plan.children.iter().cloned())
                .map(|one| (one.hash(), one))
                .collect(),
            stale: Mutex::default(),
            busy: AtomicUsize::new(0),
            plan,
        }
    }

    /// Milliseconds since the run began.
    pub fn now_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    pub fn time(&self) -> Timestamp {
        time_at(self.plan.epoch, self.began, 0)
    }

    /// A time as seconds since the run began.
    pub fn clock_text(&self, at: Timestamp) -> String {
        let ms = self.plan.epoch.duration_until(at).as_millis();
        format!("{}.{:03}", ms / 1000, (ms % 1000).abs())
    }

    pub fn trace(&self, what: fmt::Arguments<'_>) {
        lock(&self.trace).add(self.now_ms(), what);
    }

    pub fn fires(&self, class: Class, site: &str) -> Option<Draw> {
        let fired = self.dice.fires(class, site, self.now_ms());
        if fired.is_some() {
            self.trace(format_args!("!! {class}: {site}"));
        }
        fired
    }

    /// How long a call's trip takes, there and back, in milliseconds.
    pub fn ways(&self, node: &str, site: &str) -> (u64, u64) {
        let mut draw = self.dice.draw(&format!("{node} {site}"));
        (draw.between(1, WAY_MS), draw.between(1, WAY_MS))
    }

    pub fn label<'a>(&'a self, id: &'a Id) -> &'a str {
        self.labels.get(id).map_or(id.0.as_str(), String::as_str)
    }

    /// The definition of an order.
    pub(crate) fn definition(&self, task: &Task) -> Arc<Workflow> {
        let own = self.known(&task.workflow_hash);
        Arc::clone(own.unwrap_or(&self.plan.workflow))
    }

    /// The definition with this hash.
    pub(crate) fn known(&self, hash: &Hash) -> Option<&Arc<Workflow>> {
        self.definitions.iter().find(|(its, _)| its == hash).map(|(_, one)| one)
    }

    /// The definitions that the workflow's name may stand for, with their hashes.
    pub(crate) fn own_definitions(&self) -> Vec<&(Hash, Arc<Workflow>)> {
        self.definitions.iter().filter(|(_, one)| one.name == self.plan.workflow.name).collect()
    }

    /// The step that a request is about: no step of a child has the name of one of its parent's.
    fn spec(&self, step: &str) -> Option<&shared::workflow::Step> {
        let all = std::iter::once(&self.plan.workflow).chain(&self.plan.children);
        all.flat_map(|workflow| &workflow.steps).find(|spec| spec.name == step)
    }

    pub fn history(&self) -> MutexGuard<'_, History> {
        lock(&self.history)
    }

    pub fn sketch(&self, task: &Task) -> String {
        let workflow = self.definition(task);
        let steps = task.steps.iter().zip(&workflow.steps).map(|(step, spec)| {
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

    pub fn serve(&self, request: &Request, refuses: bool) -> Result<Value, AgentError> {
        lock(&self.services).act(request, refuses, self.defect, &mut self.history().effects)
    }

    /// The same by a script. `None`: the service stays silent.
    pub async fn serve_by(
        &self,
        script: &Script,
        request: &Request,
        refuses: bool,
    ) -> Option<Result<Value, AgentError>> {
        let known = lock(&self.services).known(request, refuses);
        if known.is_some() {
            return known;
        }
        let (name, number) = {
            let mut sent = lock(&self.sent);
            let what = match script.written(request) {
                Ok(what) => what,
                Err(error) => return Some(Err(error)),
            };
            let (order, attempt) = (request.task_id.clone(), request.attempt);
            let one = Sent { order, attempt, name: self.path_of(request), what };
            let number = sent.iter().filter(|other| other.order == one.order && other.name == one.name).count();
            let name = one.name.clone();
            sent.push(one);
            (name, number)
        };
        let answer = script.answer(request, &name, number).await?;
        let mut services = lock(&self.services);
        // Another call under the same key may have been answered since.
        let known = services.known(request, false);
        Some(known.unwrap_or_else(|| {
            if self.is_not_yet(request, &answer) {
                return answer;
            }
            services.settle(request, &answer, &mut self.history().effects);
            answer
        }))
    }

    /// The name by which a script knows the call of `request`, behind the steps that started its order.
    pub(crate) fn path_of(&self, request: &Request) -> String {
        let (history, mut path) = (self.history(), script::name_of(request));
        let mut order = history.last(&request.task_id);
        while let Some((below, link)) = order.and_then(|order| Some((order, order.parent.as_ref()?))) {
            path = script::name_below(link, &below.workflow, &path);
            order = history.last(&link.id);
        }
        path
    }

    /// Whether the service of a step may report its end later.
    pub(crate) fn may_accept(&self, request: &Request) -> bool {
        let spec = self.spec(&request.step);
        // A reminder has no end to report.
        request.direction == Direction::Do
            && request.reminder.is_none()
            && self.plan.script.is_none()
            && spec.is_some_and(|spec| spec.accept.is_some())
    }

    /// Whether a step polls in this direction.
    pub(crate) fn polls(&self, step: &str, direction: Direction) -> bool {
        let spec = self.spec(step);
        direction == Direction::Do && spec.is_some_and(|spec| spec.poll.is_some())
    }

    /// Whether the answer to a look says that the work is not done yet. The next look gets another answer.
    fn is_not_yet(&self, request: &Request, answer: &Result<Value, AgentError>) -> bool {
        let spec = self.spec(&request.step);
        let poll = spec.and_then(|spec| spec.poll.as_ref()).filter(|_| request.direction == Direction::Do);
        match (answer, poll) {
            (Err(AgentError::NotYet { .. }), _) => true,
            (Ok(answer), Some(poll)) if request.look.is_none() => {
                let names = Names::new().with("answer", Cow::Borrowed(answer));
                matches!(poll.look.judge(&names), Ok(Found::NotYet(_)))
            }
            _ => false,
        }
    }

    /// Whether a request without faults was sent before. The system sends one again if it might be lost, and the second
    /// delivery would take an answer that was meant for the next attempt.
    pub(crate) fn is_sent_again(&self, queue: &str, body: &str) -> bool {
        self.plan.rates.is_empty()
            && queue.starts_with(&queues::agent(""))
            && !lock(&self.requests).insert(without_delay(body))
    }

    /// An output that is kept beside the record of its order.
    pub(crate) fn output(&self, id: &Id, hash: &Hash) -> Option<Value> {
        let text = call!(&self.store, outputs(id, std::slice::from_ref(hash))).pop()?.ok()??;
        serde_json::from_str(&text).ok()
    }

    /// Whether the service of this agent is down.
    pub fn is_out(&self, agent: &str) -> bool {
        let now = self.now_ms();
        lock(&self.outages).get(agent).is_some_and(|(from, until)| (*from..*until).contains(&now))
    }

    /// Whether the undo called `what` fails now.
    pub fn does_undo_fail(&self, what: &str) -> bool {
        let now = self.now_ms();
        if let Some(until) = lock(&self.failing_undos).get(what) {
            return now < *until;
        }
        let ends = |mut draw: Draw| (now + draw.between(500, 20_000)).min(self.plan.faults_end_ms());
        let until = self.fires(Class::UndoFails, what).map_or(0, ends);
        lock(&self.failing_undos).insert(what.to_owned(), until);
        now < until
    }

    pub fn check_input(&self, request: &Request) {
        let history = self.history();
        let Some(task) = history.last(&request.task_id) else { return };
        let workflow = self.definition(task);
        let index = workflow.position(&request.step).expect("a step of this workflow");
        let step = &task.steps[index];
        // Earlier attempts were sent with the input of their time.
        if task.holds(index, request.attempt).is_none() {
            return;
        }
        let order = self.plan.orders.iter().find(|order| id_of(order) == request.task_id);
        let work = workflow.steps[index].work(request.direction).expect("what is requested is work");
        let wanted = match (&step.input, work.with) {
            (Some(input), _) => input.clone(),
            // A service refuses another body under the same key. An order that runs again may have other data for a step that
            // keeps its key, because the person who asked for it allowed that.
            (None, Some(_)) => {
                let may_change = ["outputs", "ran", "errors", "now", "callback"].iter().any(|root| work.reads(root));
                let round = step.rounds.as_ref().filter(|_| may_change).map_or(0, |rounds| rounds.round);
                let (key, sent) = ((request.idempotency_key.clone(), round), request.input.clone());
                lock(&self.bodies).entry(key).or_insert(sent).clone()
            }
            (None, None) => match (order, &task.parent) {
                (Some(order), _) => people::input(&self.plan, order.number),
                // What its parent's step gave it is checked by the tests of lists.
                (None, Some(_)) => match call!(&self.store, order(task)) {
                    Ok(Some(order)) if workflow.of_item => order.input["item"].clone(),
                    Ok(Some(order)) => order.input,
                    Ok(None) | Err(_) => unreachable!("it was stored with its task"),
                },
                (None, None) => unreachable!("an order of this run"),
            },
        };
        // What is collected page by page is what the service hands out, each page once. A person may have done the step by hand, or skipped it.
        let wanted = match (services::page_of(&request.idempotency_key), request.input.get("collected")) {
            _ if !self.plan.is_of_pages() => wanted,
            (Some(number), _) => services::asked(&request.task_id, number),
            (None, Some(_)) if !has_been_done_by_hand(task) => {
                json!({ "collected": services::collected(&request.task_id) })
            }
            (None, _) => wanted,
        };
        if request.input != wanted {
            let words = format!("`{}` was given {} instead of {wanted}", request.step, request.input);
            drop(history);
            self.wrong(Rule::Input, Some(request.task_id.clone()), words);
        }
    }

    /// Records what the workflow's name stands for from now on. Each change follows the one before it.
    pub(crate) fn activated(&self, next: &Pointer) {
        let mut active = lock(&self.active);
        if usize::try_from(next.version) != Ok(active.len()) {
            let words = format!("change {} of its workflow follows change {}", next.version, active.len() - 1);
            self.wrong(Rule::OneChain, None, words);
        }
        active.push((self.now_ms(), (!next.retired).then(|| next.hash.clone())));
    }

    /// Whether the name is retired.
    pub(crate) fn is_retired(&self) -> bool {
        lock(&self.active).last().is_some_and(|(_, hash)| hash.is_none())
    }

    /// Whether the name stood for this at any time between two times, in milliseconds.
    fn was_active(&self, hash: Option<&Hash>, from: u64, to: u64) -> bool {
        let active = lock(&self.active);
        let ends = active.iter().skip(1).map(|(at, _)| *at).chain([u64::MAX]);
        active.iter().zip(ends).any(|((begin, own), end)| own.as_ref() == hash && *begin <= to && end >= from)
    }

    /// Whether the name was retired a moment ago, so that an order may be refused.
    pub(crate) fn was_retired(&self) -> bool {
        let now = self.now_ms();
        self.was_active(None, now.saturating_sub(60_000), now)
    }

    /// A new order has a definition that was active when it was accepted, or at most [`FOLLOWED_MS`] before.
    pub(crate) fn check_definition(&self, task: &Task) {
        // A child has the one that was pinned with its parent.
        if let Some(link) = &task.parent {
            // Or it is part of its parent's definition, because it makes a call for an item.
            let calls = self.plan.children.iter().filter(|child| child.of_item).map(|call| call.hash());
            let calls: Vec<Hash> = calls.collect();
            let is_pinned =
                |parent: &Arc<Task>| parent.pins.values().chain(&calls).any(|hash| *hash == task.workflow_hash);
            if !self.history().last(&link.id).is_some_and(is_pinned) {
                let words = format!("its parent does not pin {}", task.workflow_hash);
                self.wrong(Rule::Definition, Some(task.id.clone()), words);
            }
            return;
        }
        let skew = u64::try_from(self.plan.skew.as_millis()).unwrap_or_default();
        let at = u64::try_from(task.created_at.as_millisecond() - self.plan.epoch.as_millisecond()).unwrap_or_default();
        if !self.was_active(Some(&task.workflow_hash), at.saturating_sub(FOLLOWED_MS + skew), at + skew) {
            let words =
                format!("it was accepted at {at} ms under {}, which was not active any more", task.workflow_hash);
            self.wrong(Rule::Definition, Some(task.id.clone()), words);
        }
    }

    /// What a process read, or with a defect what it read first.
    pub(crate) fn perhaps_stale(&self, node: &str, read: Pointers) -> Pointers {
        match self.defect {
            Some(Defect::StalePointers) => lock(&self.stale).entry(node.to_owned()).or_insert(read).clone(),
            _ => read,
        }
    }

    pub fn by_hand(&self, id: &Id, step: &str, direction: Direction, round: u32) -> Option<Value> {
        self.trace(format_args!("somebody does {step} of {} by hand: {direction:?}", self.label(id)));
        lock(&self.services).by_hand(id, step, (direction, round), &mut self.history().effects)
    }

    /// Counts an action of a person that changed something.
    pub(crate) fn count_act(&self, name: &'static str) {
        *lock(&self.acts).entry(name).or_default() += 1;
    }

    /// Counts what the messenger met.
    pub(crate) fn count_met(&self, mishap: Mishap) {
        *lock(&self.met).entry(mishap.name()).or_default() += 1;
    }

    /// Every order that stopped must be listed among those that wait for a person, and no other.
    fn check_attention(&self) {
        let (mut found, mut cursor) = (BTreeSet::new(), None);
        loop {
            match call!(&self.store, attention(2, cursor.as_deref())) {
                Ok(page) => {
                    found.extend(page.ids);
                    cursor = page.next;
                }
                Err(error) => {
                    return self.wrong(
                        Rule::Alert,
                        None,
                        format!("the list of orders that wait for a person failed: {error}"),
                    );
                }
            }
            if cursor.is_none() {
                break;
            }
        }
        let history = self.history();
        let stopped = history.orders().filter(|task| task.process_state() == ProcessState::Error);
        let stopped: BTreeSet<Id> = stopped.map(|task| task.id.clone()).collect();
        drop(history);
        for id in stopped.symmetric_difference(&found) {
            self.wrong(
                Rule::Alert,
                Some(id.clone()),
                "it stopped and is not listed as waiting for a person, or the reverse".into(),
            );
        }
    }

    pub fn set_aside(&self, body: &str, reason: &str) {
        if !lock(&self.poison).contains(body) {
            self.wrong(Rule::NoneAside, None, format!("a message was set aside: {reason}: {body}"));
        }
    }

    /// Why an order has not ended, or still owes a message; people continue an ended one if it `is_mended`.
    pub(crate) fn open(&self, id: &Id, is_mended: impl Fn(ProcessState) -> bool) -> Option<String> {
        let task = match call!(&self.store, load(id)) {
            Ok(Some(task)) => task,
            Ok(None) => return Some("it is not stored".into()),
            Err(error) => return Some(error.to_string()),
        };
        let state = task.process_state();
        let is_open = !state.is_final() || task.due.is_some() || is_mended(state);
        is_open.then(|| format!("version {}: {}", task.version, self.sketch(&task)))
    }

    /// The same of the orders that others started. A parent in Error leaves its children as they are. If its undo stopped at
    /// something irreversible, it has paused those that still run, for a person to decide.
    pub(crate) fn open_child(&self) -> Option<(Id, String)> {
        let children: Vec<Id> = {
            let history = self.history();
            let is_left = |task: &Task, link: &Parent| {
                let Some(parent) = history.last(&link.id) else { return false };
                let step = self.definition(parent).position(&link.step).map(|step| &parent.steps[step].state);
                let has_stopped = matches!(step, Some(State::UndoFailed | State::Undone))
                    || parent.phase == Phase::UndoError && matches!(step, Some(State::UndoPending { .. }));
                task.phase == Phase::Forward && link.paused && has_stopped
            };
            let is_open = |task: &&Arc<Task>| task.parent.as_ref().is_some_and(|link| !is_left(task, link));
            history.orders().filter(is_open).map(|task| task.id.clone()).collect()
        };
        children.into_iter().find_map(|id| self.open(&id, |_| false).map(|why| (id, why)))
    }

    /// The rules broken so far, except for those of the history.
    pub fn violations(&self) -> Vec<Violation> {
        lock(&self.violations).clone()
    }

    pub(crate) fn wrong(&self, rule: Rule, order: Option<Id>, words: String) {
        lock(&self.violations).push(Violation { rule, order, words });
    }

    pub(crate) fn engine(self: &Arc<Self>, node: &Arc<Node>) -> Engine {
        let observed = Arc::clone(self);
        let config = engine::Config {
            instance: node.instance(),
            skew: self.plan.skew,
            cache: self.plan.cache,
            overload_age: self.config.overload_age,
            clock: node.clock(self),
            observer: Some(Arc::new(move |save: &Save<'_>| observed.history().observed(save.task))),
            pools: self.config.pools.clone(),
            classes: self.config.priority_classes,
            shards: self.config.shards,
            public_url: self.config.public_url.clone(),
        };
        let port = Arc::new(Faulty::new(self, node));
        Engine::new(Arc::clone(&port) as _, port, config).deciding_by(self.core.clone())
    }

    /// The channel through which calls reach a process in one of its lives.
    fn door(&self, node: &Node) -> mpsc::UnboundedReceiver<Knock> {
        let (sender, receiver) = mpsc::unbounded_channel();
        lock(&self.doors).insert(node.name.clone(), sender);
        receiver
    }

    pub(crate) fn knock(&self, node: &str, knock: Knock) {
        // If the process is dead, the caller gets no answer.
        if let Some(door) = lock(&self.doors).get(node) {
            let _ = door.send(knock);
        }
    }
}

/// The definition of the deployment, and others with the same steps.
fn definitions(deployed: &Arc<Workflow>) -> Vec<Arc<Workflow>> {
    let mut all = vec![Arc::clone(deployed)];
    all.extend((1..4).map(|number| {
        let mut other = (**deployed).clone();
        other.config.insert("put".into(), number.into());
        Arc::new(other)
    }));
    all
}

/// All queues of a system: those that functions consume, and those that others read.
fn queue_names(config: &Config) -> BTreeSet<String> {
    let consumed = schema::consumed(config).into_iter().map(|queue| queue.name);
    let notices = config.reply_queues.names().map(queues::notices);
    consumed.chain(notices).chain([queues::SET_ASIDE.to_owned(), BUS.to_owned()]).collect()
}

/// The id under which an order will be stored.
pub(crate) fn id_of(order: &OrderPlan) -> Id {
    order.id.clone().unwrap_or_else(|| Id::derive(TENANT, &key_of(order)))
}

pub(crate) fn key_of(order: &OrderPlan) -> String {
    format!("key-{}", order.number)
}

/// Keeps the run from ending until it is dropped.
pub(crate) struct Busy<'a>(&'a World);

impl<'a> Busy<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        world.busy.fetch_add(1, Ordering::Relaxed);
        Self(world)
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A request that is sent again is held back for what is left.
fn without_delay(body: &str) -> String {
    match serde_json::from_str::<Value>(body) {
        Ok(Value::Object(mut request)) => {
            request.remove("delay_ms");
            Value::Object(request).to_string()
        }
        _ => body.to_owned(),
    }
}

/// Whether a person did a step of `task`, or skipped one.
fn has_been_done_by_hand(task: &Task) -> bool {
    task.log.iter().any(|entry| matches!(entry.1, Kind::MarkedDone | Kind::Skipped))
}
