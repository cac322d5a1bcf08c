//! A run from its beginning to its rest, and what came of it.

use super::processes::live;
use super::{REPLY_QUEUE, RunOptions, World, begin, id_of, lock};
use crate::calls::MOST_LATE;
use crate::dice::{Class, Fired};
use crate::history::{History, Rule, Violation};
use crate::node::{Node, Role};
use crate::people;
use crate::plan::{OrderPlan, Plan};
use crate::port::BUS;
use crate::store::Store;
use shared::order::Id;
use shared::queues;
use shared::task::{ProcessState, Task};
use shared::time::SignedDuration;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The result of one order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderRun {
    /// Its number, from 1.
    pub number: usize,
    /// Its final state; `None` if it was never stored.
    pub state: Option<ProcessState>,
    /// From being stored to its first end, in milliseconds of virtual time; `None` if a person held it up.
    pub took_ms: Option<u64>,
    /// Why it is in that state, if its record says so.
    pub reason: Option<String>,
}

/// The result of one run.
#[derive(Clone, Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Its workflow.
    pub workflow: String,
    /// Whether it used the real store.
    pub is_real_store: bool,
    /// Whether it used the real messenger.
    pub is_real_messenger: bool,
    /// The rules it broke.
    pub violations: Vec<Violation>,
    /// The faults that happened, in order.
    pub fired: Vec<Fired>,
    /// The orders.
    pub orders: Vec<OrderRun>,
    /// Hash over everything that happened.
    pub hash: u64,
    /// What happened, if it was kept.
    pub trace: Vec<String>,
    /// How long it took, in milliseconds of virtual time.
    pub virtual_ms: u64,
    /// Dead letters that were moved back after the end of the faults.
    pub redriven: usize,
    /// What people did that changed something, and how often.
    pub acts: BTreeMap<&'static str, u64>,
    /// What the real adapters met at their endpoints, and how often.
    pub met: BTreeMap<&'static str, u64>,
}

/// Why a run is not at rest yet: an order, and its state.
fn unrest(world: &World, orders: &[(OrderPlan, Arc<AtomicUsize>)]) -> Option<(Option<Id>, String)> {
    for (order, resubmissions) in orders {
        let id = id_of(order);
        let is_mended = |state| resubmissions.load(Ordering::Relaxed) > 0 && state == ProcessState::Error;
        if let Some(why) = world.open(&id, is_mended) {
            return Some((Some(id), why));
        }
    }
    if let Some((id, why)) = world.open_child() {
        return Some((Some(id), why));
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

pub(crate) fn run(plan: Plan, options: &RunOptions) -> Run {
    let (runtime, world) = begin(plan, options);
    let (orders, redriven) = runtime.block_on(play(&world));
    let virtual_ms = runtime.block_on(async { world.now_ms() });
    // All tasks end here, and everything that holds the world with them.
    drop(runtime);
    let world = Arc::into_inner(world).expect("nothing else holds it");
    let history = world.history.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut violations = world.violations.into_inner().unwrap_or_else(PoisonError::into_inner);
    let workflow = Arc::clone(&world.plan.workflow);
    let known: BTreeMap<_, _> = world.definitions.into_iter().collect();
    violations.extend(history.check(|wanted| known.get(wanted).cloned()));
    let orders = orders.iter().map(|order| order_run(order, &history)).collect();
    let trace = world.trace.into_inner().unwrap_or_else(PoisonError::into_inner);
    Run {
        seed: world.plan.seed,
        workflow: workflow.name.clone(),
        is_real_store: world.plan.is_real_store,
        is_real_messenger: world.plan.is_real_messenger,
        violations,
        fired: world.dice.fired(),
        orders,
        hash: trace.hash,
        trace: trace.lines.unwrap_or_default(),
        virtual_ms,
        redriven,
        acts: world.acts.into_inner().unwrap_or_else(PoisonError::into_inner),
        met: {
            let mut met = world.met.into_inner().unwrap_or_else(PoisonError::into_inner);
            if let Store::Real(real) = &world.store {
                met.extend(real.met());
            }
            met
        },
    }
}

fn order_run(order: &OrderPlan, history: &History) -> OrderRun {
    let id = id_of(order);
    let end = history.first_end(&id);
    let by_hand = |task: &&Arc<Task>| task.log.iter().any(|entry| entry.1.is_act());
    let took_ms = end.filter(|task| !by_hand(task)).map(|task| {
        let took: SignedDuration = task.created_at.duration_until(task.updated_at);
        u64::try_from(took.as_millis()).unwrap_or_default()
    });
    let last = history.last(&id);
    let (state, reason) = (last.map(|task| task.process_state()), last.and_then(|task| task.reason.clone()));
    OrderRun { number: order.number, state, took_ms, reason }
}

/// The run itself: the orders that took part, and how many dead letters were moved back.
async fn play(world: &Arc<World>) -> (Vec<OrderPlan>, usize) {
    let plan = &world.plan;
    let last = plan.faults_end_ms();
    for agent in plan.agents() {
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
        let left = Arc::new(AtomicUsize::new(people::MENDED));
        tokio::spawn(people::submit_order(Arc::clone(world), order.clone()));
        tokio::spawn(people::meddle(Arc::clone(world), order.clone()));
        tokio::spawn(people::send_events(Arc::clone(world), order.clone()));
        tokio::spawn(people::mend(Arc::clone(world), order.clone(), Arc::clone(&left)));
        orders.push((order.clone(), left));
    }
    tokio::spawn(people::poison(Arc::clone(world)));
    tokio::spawn(people::act_in_bulk(Arc::clone(world), orders.iter().map(|(order, _)| id_of(order)).collect()));
    tokio::spawn(people::change_workflow(Arc::clone(world)));
    tokio::spawn(people::mend_children(Arc::clone(world)));
    for agent in plan.agents() {
        tokio::spawn(people::pause_agent(Arc::clone(world), agent.to_owned()));
    }
    for queue in [queues::notices(REPLY_QUEUE), queues::SET_ASIDE.to_owned(), BUS.to_owned()] {
        tokio::spawn(people::read(Arc::clone(world), queue));
    }
    sleep(plan.faults_end).await;
    world.dice.stop();
    world.trace(format_args!("-- nothing goes wrong from here on"));
    let deadline = Instant::now() + plan.rest_within();
    let mut redriven = 0;
    for look in 0u64.. {
        sleep(Duration::from_millis(500).max(plan.sweep_every / 10)).await;
        if processes.iter().any(tokio::task::JoinHandle::is_finished) {
            world.wrong(Rule::Ends, None, "a process panicked".into());
            break;
        }
        let Some((order, why)) = unrest(world, &orders) else { break };
        if Instant::now() > deadline {
            world.wrong(Rule::Ends, order, format!("no rest within {:?}: {why}", plan.rest_within()));
            break;
        }
        // An operator moves dead letters back once the trouble is over.
        if look % 60 == 0 {
            redriven += world.queues.redrive();
        }
    }
    // A call may still reach a remote service after the end.
    sleep(plan.longest_timeout * (MOST_LATE + 1) + Duration::from_secs(15)).await;
    world.check_attention();
    world.trace(format_args!("-- the end"));
    (orders.into_iter().map(|(order, _)| order).collect(), redriven)
}
