//! An order that is played again: its replies, its events and the actions of people as its record has them.
//!
//! A reply is sent as it was recorded, because the record keeps what was kept of an answer and not the answer itself. Without
//! faults the order has its own id, tenant and time, so that everything that is computed from these is the same.

use crate::Plan;
use crate::history::Violation;
use crate::node::{Node, Role};
use crate::people;
use crate::plan::std_of;
use crate::port::Faulty;
use crate::script::{Script, Sending, Sent};
use crate::world::processes::live_one_each;
use crate::world::{self, Knock, RunOptions, World, lock};
use agent::AgentError;
use serde_json::Value;
use shared::decision::Act;
use shared::message::{Effect, Outcome, Reply, Request, Wake};
use shared::operator;
use shared::order::{Id, Order};
use shared::ports::Messenger;
use shared::step::{Direction, Failure, FailureKind};
use shared::task::{Submission, Task};
use shared::time::{SignedDuration, until};
use shared::workflow::{Hash, Workflow};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// How long an action is repeated that is refused: the order may be behind.
const PATIENCE: Duration = Duration::from_secs(600);

/// What is known of an order that is played again, and of those that it started.
#[derive(Clone, Debug)]
pub struct Retold {
    /// Its record.
    pub first: Box<Task>,
    /// By name, as in [`Script::answers`]: what each attempt got. After the last one, that repeats.
    pub answers: BTreeMap<String, Vec<Heard>>,
    /// The events and actions, in their order.
    pub tellings: Vec<Telling>,
    /// How long it takes, to the last change.
    pub lasts: Duration,
    /// It has not ended, so it is not played to an end either.
    pub is_open: bool,
}

/// The answer to one attempt.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// When it came, from the beginning of the first order.
    pub at: Option<Duration>,
    /// How long it took.
    pub took: Duration,
    /// What it was; `None`: silence.
    pub word: Option<Word>,
}

/// What a reply said.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    /// How the attempt went.
    pub outcome: Outcome,
    /// How it failed.
    pub failure: Option<Failure>,
    /// An earlier call of the attempt may have done its work.
    pub unsure: bool,
}

/// What somebody tells an order.
#[derive(Clone, Debug)]
pub struct Telling {
    /// The order.
    pub order: Id,
    /// When, from the beginning of the first order.
    pub at: Duration,
    /// What.
    pub tell: Tell,
}

/// An event, a callback, or an action.
#[derive(Clone, Debug)]
pub enum Tell {
    /// An event, or a callback under the name of its step.
    Event {
        /// The event.
        event: Sending,
        /// It is not sent before a step waits for it.
        awaited: bool,
    },
    /// What a person did.
    Act(Act),
}

/// How it went.
pub struct Retelling {
    /// The orders as they were saved each time.
    pub saved: BTreeMap<Id, Vec<Arc<Task>>>,
    /// The outputs that are kept beside a record.
    pub beside: BTreeMap<(Id, Hash), Value>,
    /// Every attempt that was made.
    pub sent: Vec<Sent>,
    /// The answer to each telling, by position. It is absent if the telling never reached anyone.
    pub answered: BTreeMap<usize, String>,
    /// Rules of the product that were broken.
    pub violations: Vec<Violation>,
}

/// Plays an order again, in virtual time and without faults.
///
/// # Panics
/// If no runtime of one thread can be started, or the script is of no such order.
#[must_use]
pub fn retell(workflow: &Arc<Workflow>, children: &[Arc<Workflow>], script: &Arc<Script>) -> Retelling {
    let (runtime, world) = world::begin(Plan::calm(workflow, children, script), &RunOptions::default());
    let retold = script.retold.as_ref().expect("an order that is played again");
    runtime.block_on(follow(&world, retold));
    let history = world.history();
    let ids: Vec<Id> = history.orders().map(|task| task.id.clone()).collect();
    let saved: BTreeMap<Id, Vec<Arc<Task>>> =
        ids.into_iter().map(|id| (id.clone(), history.saved(&id).cloned().collect())).collect();
    drop(history);
    let places = saved.values().flatten().flat_map(|task| task.steps.iter().map(|step| (task.id.clone(), step)));
    let places: BTreeSet<(Id, Hash)> =
        places.filter_map(|(id, step)| Some((id, step.beside.as_ref()?.hash.clone()))).collect();
    let beside =
        places.into_iter().filter_map(|(id, hash)| Some(((id.clone(), hash.clone()), world.output(&id, &hash)?)));
    let beside = beside.collect();
    let (sent, answered) = (lock(&world.sent).clone(), lock(&world.answered).clone());
    Retelling { saved, beside, sent, answered, violations: world.violations() }
}

/// Begins the order, tells it what it was told, and waits until it stands where it stood, or until it cannot any more.
async fn follow(world: &Arc<World>, retold: &Retold) {
    live_one_each(world, &[Role::Submit, Role::Scheduler, Role::Agent, Role::Supervisor, Role::Operator]).await;
    let begun = Instant::now();
    begin(world, retold).await;
    let mut all = BTreeMap::<Id, Vec<(usize, Telling)>>::new();
    for (number, telling) in retold.tellings.iter().enumerate() {
        all.entry(telling.order.clone()).or_default().push((number, telling.clone()));
    }
    let tellers: Vec<JoinHandle<()>> =
        all.into_values().map(|own| tokio::spawn(tell(Arc::clone(world), begun, own))).collect();
    let plan = &world.plan;
    let after = if retold.is_open { plan.sweep_every * 4 + Duration::from_secs(5) } else { plan.rest_within() };
    let deadline = begun + retold.lasts + after;
    while Instant::now() < deadline {
        sleep(plan.look_every()).await;
        let is_told = tellers.iter().all(JoinHandle::is_finished);
        if is_told && world.open(&retold.first.id, |_| false).is_none() && world.open_child().is_none() {
            // An alert may still be on its way.
            return sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Stores the order under its own id, as its submission did.
async fn begin(world: &Arc<World>, retold: &Retold) {
    let (plan, first) = (&world.plan, &retold.first);
    let node = Arc::new(Node::new(Role::Submit, 1));
    let engine = world.engine(&node);
    for workflow in std::iter::once(&plan.workflow).chain(&plan.children) {
        let _ = engine.use_workflow(workflow).await;
    }
    let new = Submission {
        id: first.id.clone(),
        tenant: first.tenant.clone(),
        reference: first.reference.clone(),
        reply_queue: None,
        priority: first.priority,
        shard: 0,
    };
    let is_needed = std::iter::once(&plan.workflow).chain(&plan.children).any(|one| one.hands_out_addresses());
    let task = Task {
        labels: first.labels.clone(),
        traceparent: first.traceparent.clone(),
        secret: is_needed.then(|| first.secret.clone().unwrap_or_else(|| "0".repeat(32))),
        pins: plan.children.iter().filter(|one| !one.of_item).map(|one| (one.name.clone(), one.hash())).collect(),
        ..Task::new(new, &plan.workflow, first.created_at)
    };
    let order = Order {
        id: first.id.clone(),
        tenant: first.tenant.clone(),
        idempotency_key: String::new(),
        hash: String::new(),
        created_at: first.created_at,
        input: plan.script.as_ref().map(|script| script.input.clone()).unwrap_or_default(),
    };
    if engine.create(&order, &task).await.is_ok() {
        let wake = Effect::Wake(Wake::new(&task, task.version, 0), SignedDuration::ZERO);
        let _ = Faulty::new(world, &node).send(vec![wake]).await;
    }
}

/// Tells one order what it was told, one after another.
async fn tell(world: Arc<World>, begun: Instant, all: Vec<(usize, Telling)>) {
    let look = Duration::from_millis(100).max(world.plan.sweep_every / 20);
    for (number, Telling { order, at, tell }) in all {
        sleep((begun + at).saturating_duration_since(Instant::now())).await;
        let answer = match tell {
            Tell::Event { event, awaited } => {
                if awaited && !people::is_waited_for(&world, &order, &event.name, look).await {
                    return;
                }
                let answer = people::send_event(&world, &order, &event).await;
                answer.map_or_else(|problem| problem.code.to_owned(), |()| "accepted".to_owned())
            }
            Tell::Act(act) => ask(&world, &order, &act, look).await,
        };
        lock(&world.answered).insert(number, answer);
    }
}

/// Asks for an action until it is done, or for some time.
async fn ask(world: &World, order: &Id, act: &Act, look: Duration) -> String {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let all = people::operate(world, |answer| Knock::Act(vec![(order.clone(), act.clone())], answer)).await;
        match all.into_iter().next() {
            Some(Ok(operator::Outcome::Applied(_) | operator::Outcome::Repeated(_))) => return "accepted".into(),
            Some(Ok(operator::Outcome::NotAllowed { why })) if Instant::now() > deadline => return why.to_string(),
            _ if Instant::now() > deadline => return "there was no such order".into(),
            _ => sleep(look).await,
        }
    }
}

impl World {
    /// Whether this run plays an order again.
    pub(crate) fn is_retold(&self) -> bool {
        self.plan.script.as_ref().is_some_and(|script| script.retold.is_some())
    }

    /// The reply to `request` as it was recorded, once its time has come. `None` if none was recorded.
    pub(crate) async fn hear(&self, request: &Request) -> Option<Reply> {
        let retold = self.plan.script.as_ref()?.retold.as_ref()?;
        let is_calm = self.plan.rates.is_empty();
        let name = self.path_of(request);
        let number = {
            let mut sent = lock(&self.sent);
            let (order, attempt) = (request.task_id.clone(), request.attempt);
            let others = sent.iter().filter(|one| one.order == order && one.name == name && one.attempt < attempt);
            let number = others.map(|one| one.attempt).collect::<BTreeSet<u32>>().len();
            sent.push(Sent { order, attempt, name: name.clone(), what: request.input.clone() });
            number
        };
        let of_any =
            Heard { at: None, took: Duration::ZERO, word: Some(Word::of(Outcome::Done { output: Value::Null })) };
        let heard = retold.answers.get(&name).and_then(|all| all.get(number).or(all.last())).unwrap_or(&of_any);
        let left = std_of(until(self.time(), request.complete_by));
        // At its own time, so that it keeps its place among events and actions.
        let begun_for = self.began.elapsed().saturating_sub(Duration::from_millis(1));
        let own = heard.at.filter(|_| is_calm).map(|at| at.saturating_sub(begun_for));
        let wait = own.filter(|wait| *wait < left || request.heartbeat.is_some()).unwrap_or(heard.took);
        sleep(wait).await;
        let word = heard.word.clone()?;
        let mut services = lock(&self.services);
        let known = services.known(request, false);
        if known.is_none() && !matches!(word.outcome, Outcome::NotYet { .. }) {
            services.settle(request, &word.result(), &mut self.history().effects);
        }
        drop(services);
        let word = match known.filter(|_| !is_calm && !matches!(word.outcome, Outcome::Accepted { .. })) {
            Some(known) => Word::from(known),
            None => word,
        };
        Some(word.reply(request))
    }
}

impl Word {
    /// An outcome, and nothing else.
    pub fn of(outcome: Outcome) -> Self {
        Self { outcome, failure: None, unsure: false }
    }

    /// What a service did that answered this.
    fn result(&self) -> Result<Value, AgentError> {
        let failure = self.failure.clone().unwrap_or_else(|| Failure::of(FailureKind::Refused));
        match &self.outcome {
            Outcome::Done { output } | Outcome::Accepted { output } => Ok(output.clone()),
            Outcome::Failed { error } | Outcome::Garbled { error } if failure.kind == FailureKind::Mistake => {
                Err(AgentError::Unusable { error: error.clone() })
            }
            Outcome::Failed { error } | Outcome::Garbled { error } => {
                let answer = Some(failure.answer).filter(|answer| !answer.is_null());
                Err(AgentError::Refused { error: error.clone(), status: failure.status, answer })
            }
            Outcome::Unavailable { error, .. } | Outcome::Deferred { error, .. } | Outcome::NotYet { why: error } => {
                Err(AgentError::unavailable(error))
            }
        }
    }

    fn reply(self, request: &Request) -> Reply {
        let Self { outcome, failure, unsure } = self;
        let failure = failure.unwrap_or_else(|| Failure::of(FailureKind::Refused));
        Reply {
            status: Some(failure.status).filter(|status| *status > 0),
            answer: Some(failure.answer).filter(|answer| !answer.is_null()),
            kind: Some(failure.kind).filter(|kind| *kind == FailureKind::Mistake),
            unsure: unsure && request.direction == Direction::Do,
            looked: true,
            ..Reply::to(request, outcome)
        }
    }
}

impl From<Result<Value, AgentError>> for Word {
    /// What a service answers that knows the key.
    fn from(known: Result<Value, AgentError>) -> Self {
        let failed = |error, failure| Self { failure: Some(failure), ..Self::of(Outcome::Failed { error }) };
        match known {
            Ok(output) => Self::of(Outcome::Done { output }),
            Err(AgentError::Refused { error, status, answer }) => failed(
                error,
                Failure { status, answer: answer.unwrap_or_default(), ..Failure::of(FailureKind::Refused) },
            ),
            Err(AgentError::Unusable { error }) => failed(error, Failure::of(FailureKind::Mistake)),
            Err(error) => failed(error.to_string(), Failure::of(FailureKind::Refused)),
        }
    }
}
