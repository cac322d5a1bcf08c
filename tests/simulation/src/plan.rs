//! What one seed simulates: the workflow, the orders, the processes, and the rate of each class of fault.

use crate::dice::{Class, Draw};
use crate::node::EPOCH_S;
use crate::script::Script;
use serde_json::Value;
use shared::control::MAX_WITHHELD;
use shared::expression::Names;
use shared::message::MAX_DELAY;
use shared::order::Id;
use shared::retry::Ladder;
use shared::step::Direction;
use shared::task::{Priority, grace};
use shared::time::{SignedDuration, Timestamp, plus};
use shared::workflow::file::{Known, parse};
use shared::workflow::wait::MAX_WAIT;
use shared::workflow::{Hash, Step, Work, Workflow};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// How far apart clocks may be, in milliseconds: on one machine, and up to the usual skew on AWS. Never reduced for a
/// workflow with short timeouts: such a workflow would not run there.
const SKEWS_MS: [i64; 3] = [50, 400, 1000];
/// Runs with the real messenger per run with the real store: the messenger needs no tables and no thread.
const MESSENGERS: u64 = 5;
/// Maximum number of orders of a run.
pub const MOST_ORDERS: usize = 6;
/// The longest wait of a breaker between two probes, with jitter.
const LONGEST_BREAK: Duration = Duration::from_secs(120);
/// An upper limit of every other delay: redeliveries, retries of clients, restarts.
const SLACK: Duration = Duration::from_secs(240);

const TEXTS: [(&str, &str); 20] = [
    ("order.toml", include_str!("../../../workflows/order.toml")),
    ("diamond.toml", include_str!("workflows/diamond.toml")),
    ("person.toml", include_str!("workflows/person.toml")),
    ("strict.toml", include_str!("workflows/strict.toml")),
    ("late.toml", include_str!("workflows/late.toml")),
    ("irreversible.toml", include_str!("workflows/irreversible.toml")),
    ("chain.toml", include_str!("workflows/chain.toml")),
    ("boxes.toml", include_str!("workflows/boxes.toml")),
    ("branch.toml", include_str!("workflows/branch.toml")),
    ("callbacks.toml", include_str!("workflows/callbacks.toml")),
    ("events.toml", include_str!("workflows/events.toml")),
    ("heartbeats.toml", include_str!("workflows/heartbeats.toml")),
    ("people.toml", include_str!("workflows/people.toml")),
    ("pages.toml", include_str!("workflows/pages.toml")),
    ("parcel.toml", include_str!("workflows/parcel.toml")),
    ("parcel-by-hand.toml", include_str!("workflows/parcel-by-hand.toml")),
    ("polls.toml", include_str!("workflows/polls.toml")),
    ("shipments.toml", include_str!("workflows/shipments.toml")),
    ("shipments-by-hand.toml", include_str!("workflows/shipments-by-hand.toml")),
    ("waits.toml", include_str!("workflows/waits.toml")),
];

/// The workflows that are simulated by default: together they use every rule of a workflow file.
///
/// # Panics
/// If one of them is invalid; a test checks that none is.
pub fn workflows() -> Vec<Arc<Workflow>> {
    let known = Known { agents: &agent::agents::NAMES, inputs: &edge::workflows::INPUT_CHECKS };
    TEXTS.iter().map(|(name, text)| Arc::new(parse(name, text, known).expect("a valid file"))).collect()
}

/// One order of a run.
#[derive(Clone, Debug)]
pub struct OrderPlan {
    /// Its number, from 1.
    pub number: usize,
    /// When its client first submits it.
    pub at: Duration,
    /// It is submitted by message.
    pub by_message: bool,
    /// Its id, if that does not follow from its idempotency key.
    pub id: Option<Id>,
    /// How urgent it is.
    pub priority: Priority,
    /// Whether its submitter has a queue for notices.
    pub has_queue: bool,
}

/// Everything a seed decides before its run begins.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// What the clocks show when the run begins.
    pub epoch: Timestamp,
    /// The workflow of all orders.
    pub workflow: Arc<Workflow>,
    /// The orders; all but the first can be left out.
    pub orders: Vec<OrderPlan>,
    /// How often each class of fault happens.
    pub rates: BTreeMap<Class, f64>,
    /// When the faults end.
    pub faults_end: Duration,
    /// How far apart two clocks may be.
    pub skew: SignedDuration,
    /// Shards of the due index.
    pub shards: u16,
    /// Groups of shards, each with a lease.
    pub groups: u16,
    /// Whether each priority has its own queues.
    pub classes: bool,
    /// The payment agent has two pools.
    pub pools: bool,
    /// Orders are stored with their first claims.
    pub begins: bool,
    /// Tasks that each process keeps in memory.
    pub cache: usize,
    /// Life of a supervisor's lease.
    pub lease_life: Duration,
    /// How often a supervisor sweeps.
    pub sweep_every: Duration,
    /// Supervisors give their leases back after a few sweeps and start again, like a function on a schedule.
    pub patrols: bool,
    /// The visibility timeout of messages.
    pub visibility: Duration,
    /// The longest timeout of a step.
    pub longest_timeout: Duration,
    /// The store is the real adapter over embedded endpoints.
    pub is_real_store: bool,
    /// The messenger is the real adapter over [`crate::endpoint`].
    pub is_real_messenger: bool,
    /// The definitions of the orders that its orders start.
    pub children: Vec<Arc<Workflow>>,
    /// The input of all orders and what the services answer, if somebody wrote it down.
    pub script: Option<Arc<Script>>,
}

impl Plan {
    /// The plan of `seed`, over one of `workflows`, whose orders start those of `children` or of each other. The store is
    /// the real adapter in one run of `real_every` (0: never), and the messenger in [`MESSENGERS`] times as many.
    pub fn new(seed: u64, workflows: &[Arc<Workflow>], children: &[Arc<Workflow>], real_every: u64) -> Self {
        let mut draw = Draw::of(seed, "plan");
        let workflow = Arc::clone(draw.pick(workflows));
        let children = below(&workflow, &[children, workflows].concat());
        let is_real_store = real_every > 0 && seed.is_multiple_of(real_every);
        let is_real_messenger = real_every > 0 && seed.is_multiple_of(real_every.div_ceil(MESSENGERS));
        let both = |step: &'_ Step| {
            let of = |direction| step.work(direction).map(takes);
            [of(Direction::Do), of(Direction::Undo)].into_iter().flatten()
        };
        let all = || std::iter::once(&workflow).chain(&children).flat_map(|workflow| &workflow.steps);
        let longest_timeout = std_of(all().flat_map(both).max().unwrap_or_default());
        let works = all().filter(|step| step.wait.is_none());
        let whole: Duration = works.filter_map(|step| step.work(Direction::Do)).map(|work| std_of(takes(work))).sum();
        let busy = whole.max(Duration::from_secs(2));
        let most = if is_real_store { 2 } else { MOST_ORDERS };
        let orders = (1..=most).map(|number| OrderPlan {
            number,
            id: None,
            at: if number == 1 { Duration::ZERO } else { busy.mul_f64(draw.between(0, 100) as f64 / 100.0) },
            by_message: draw.chance(0.2),
            priority: *draw.pick(&[Priority::High, Priority::Normal, Priority::Normal, Priority::Low]),
            has_queue: draw.chance(0.75),
        });
        let orders = orders.collect();
        // Some seeds are nearly quiet and some are wild. Most runs lack most classes, so that rare faults sometimes
        // meet without frequent ones in their way.
        let (share, scale) = (*draw.pick(&[0.15, 0.3, 0.5, 0.8]), *draw.pick(&[0.3, 1.0, 1.0, 2.5]));
        let rates = Class::ALL.iter().filter_map(|&class| {
            let mut own = Draw::of(seed, class.name());
            let scale = if class.is_act() || class == Class::ClockSkew { 1.0 } else { scale };
            let rate = (class.usual_rate() * scale * own.between(30, 170) as f64 / 100.0).min(0.9);
            (class == Class::MoreOrders || own.chance(share)).then_some((class, rate))
        });
        let rates = rates.collect();
        let skew = SignedDuration::from_millis(*draw.pick(&SKEWS_MS));
        let shards = if is_real_store { 1 } else { *draw.pick(&[1, 1, 2, 3]) };
        let lease_s = draw.between(3, 12);
        Self {
            seed,
            epoch: epoch(None),
            orders,
            rates,
            faults_end: busy.mul_f64(draw.between(50, 500) as f64 / 100.0) + Duration::from_secs(1),
            skew,
            shards,
            groups: u16::try_from(draw.between(1, u64::from(shards))).expect("a few"),
            classes: draw.chance(0.5),
            pools: draw.chance(0.25),
            begins: Draw::of(seed, "begins").chance(0.5),
            cache: *draw.pick(&[1, 3, 1000]),
            lease_life: Duration::from_secs(lease_s),
            sweep_every: Duration::from_millis(draw.between(500, 4000)) + std_of(workflow.shortest_timeout()) / 20,
            patrols: draw.chance(0.3),
            visibility: Duration::from_secs(draw.between(10, 40)) + longest_timeout * 2,
            longest_timeout,
            is_real_store,
            is_real_messenger,
            script: None,
            children,
            workflow,
        }
    }

    /// The same for orders of `script`. Weeks of waiting would be millions of short sweeps.
    pub fn scripted(self, script: Option<Arc<Script>>) -> Self {
        let sweep_every = self.sweep_every + longest_wait(&self.workflow, script.as_deref()) / 2000;
        Self { sweep_every, epoch: epoch(script.as_deref()), script, ..self }
    }

    /// A plan of one order without any fault.
    pub fn calm(workflow: &Arc<Workflow>, children: &[Arc<Workflow>], script: &Arc<Script>) -> Self {
        let plan = Self::new(0, std::slice::from_ref(workflow), children, 0);
        let all = std::iter::once(workflow).chain(&plan.children);
        let ladders = all
            .flat_map(|workflow| &workflow.steps)
            .flat_map(|step| [Some(&step.retry), step.undo.as_ref().map(|undo| &undo.retry)].into_iter().flatten());
        let waits = ladders.flat_map(|ladder| ladder.backoff.iter().copied().chain(ladder.long.map(|long| long.every)));
        let longest = std_of(waits.max().unwrap_or_default());
        Self {
            orders: vec![OrderPlan {
                number: 1,
                id: script.retold.as_ref().map(|retold| retold.first.id.clone()),
                at: Duration::ZERO,
                by_message: false,
                priority: Priority::Normal,
                has_queue: false,
            }],
            rates: BTreeMap::new(),
            faults_end: Duration::ZERO,
            skew: SignedDuration::from_millis(SKEWS_MS[0]),
            shards: 1,
            groups: 1,
            classes: false,
            pools: false,
            begins: false,
            cache: 1000,
            lease_life: Duration::from_secs(60),
            // Days of waiting would be millions of short sweeps.
            sweep_every: (Duration::from_millis(200) + longest / 500)
                .max(longest_wait(workflow, Some(script)) / 5000)
                .max(script.retold.as_ref().map(|retold| retold.lasts / 20_000).unwrap_or_default()),
            patrols: false,
            epoch: epoch(Some(script)),
            script: Some(Arc::clone(script)),
            ..plan
        }
    }

    /// The agents of all its orders.
    pub fn agents(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for agent in std::iter::once(&self.workflow).chain(&self.children).flat_map(|workflow| workflow.agents()) {
            if !all.contains(&agent) {
                all.push(agent);
            }
        }
        all
    }

    /// Whether its workflow is the one of ours that collects pages: only of it the world knows what each request has to be.
    pub(crate) fn is_of_pages(&self) -> bool {
        static OURS: LazyLock<Option<Hash>> = LazyLock::new(|| {
            workflows().iter().find(|workflow| workflow.name == "pages").map(|workflow| workflow.hash())
        });
        self.script.is_none() && OURS.as_ref() == Some(&self.workflow.hash())
    }

    /// The skew, as a [`Duration`].
    pub fn skew_std(&self) -> Duration {
        std_of(self.skew)
    }

    /// When the faults end, in milliseconds: no person starts an action later.
    pub(crate) fn faults_end_ms(&self) -> u64 {
        u64::try_from(self.faults_end.as_millis()).unwrap_or(u64::MAX / 2)
    }

    /// How often to look whether an order without faults has ended.
    pub(crate) fn look_every(&self) -> Duration {
        std_of(self.workflow.shortest_timeout()).min(self.sweep_every).max(self.sweep_every / 10)
    }

    /// How long after the end of the faults everything must have come to rest: each step through the rest of its ladder
    /// and of its undo's, one after another, with all that is between them.
    pub fn rest_within(&self) -> Duration {
        let margin = self.skew_std() + self.sweep_every * 2 + self.lease_life * 2;
        let ladder = |timeout: SignedDuration, retry: &Ladder| {
            // After the end of the faults an attempt in progress may still fail, and a wait that has begun still ends.
            let longest = retry.backoff.iter().copied().chain(retry.long.map(|l| l.every)).max().unwrap_or_default();
            (std_of(timeout) + std_of(longest) + margin) * 2
        };
        let wait = |step: &Step| match &step.wait {
            None => Duration::ZERO,
            Some(_) => {
                margin + wait_of(step, &self.workflow, self.script.as_deref()).unwrap_or_else(|| std_of(MAX_WAIT))
            }
        };
        let all = std::iter::once(&self.workflow).chain(&self.children).flat_map(|workflow| &workflow.steps);
        let steps = all.map(|step| {
            let late = step.late.map_or(Duration::ZERO, |late| (std_of(late.extend) + margin) * late.times);
            let of = |direction| step.work(direction).map(|work| ladder(takes(work), work.retry));
            let own = of(Direction::Do).unwrap_or_else(|| ladder(step.timeout, &step.retry));
            // Each way may end with a look that no hint brings.
            let looks = if step.child.is_some() { (margin + std_of(MAX_DELAY)) * 4 } else { Duration::ZERO };
            own + of(Direction::Undo).unwrap_or_default() + late + wait(step) + looks
        });
        let grace = std_of(grace(&self.workflow));
        let age = self.faults_end.min(std_of(MAX_DELAY));
        // A supervisor waits as long again as a task has already waited for a scheduler; a task that waits for a paused
        // agent it checks once a minute.
        std_of(MAX_WITHHELD) + steps.sum::<Duration>() + (grace + age) * 2 + self.visibility * 6 + LONGEST_BREAK + SLACK
    }
}

/// The definitions of the orders that those of `workflow` may start, out of `all` or of the files here.
fn below(workflow: &Workflow, all: &[Arc<Workflow>]) -> Vec<Arc<Workflow>> {
    let mut found: Vec<Arc<Workflow>> = Vec::new();
    let mut open: Vec<String> = workflow.children().into_iter().map(str::to_owned).collect();
    while let Some(name) = open.pop() {
        let own = workflows().into_iter().filter(|one| one.name == name);
        let Some(child) = all.iter().find(|one| one.name == name).cloned().or_else(|| own.into_iter().next()) else {
            continue;
        };
        if found.iter().any(|one| one.name == child.name) {
            continue;
        }
        open.extend(child.children().into_iter().map(str::to_owned));
        found.push(child);
    }
    // Those that make a call for an item are part of a definition.
    let calls: Vec<_> =
        found.iter().map(|child| &**child).chain([workflow]).flat_map(Workflow::calls).cloned().collect();
    found.extend(calls.into_iter().map(Arc::new));
    found
}

/// How many heartbeats the long work of a simulated agent takes at most.
pub(crate) const MOST_BEATS: u32 = 6;

/// How long an attempt takes at most: long work need not take days to be simulated.
fn takes(work: Work<'_>) -> SignedDuration {
    work.heartbeat.map_or(work.timeout, |every| (every * MOST_BEATS.cast_signed()).min(work.timeout))
}

/// What the clocks show when a run begins: an order that is played again is accepted at its own time, a millisecond later.
fn epoch(script: Option<&Script>) -> Timestamp {
    match script.and_then(|script| script.retold.as_ref()) {
        Some(retold) => plus(retold.first.created_at, SignedDuration::from_millis(-1)),
        None => Timestamp::from_second(EPOCH_S).expect("a time of the calendar"),
    }
}

/// How long a step waits, or `None` if only an order's data says it.
fn wait_of(step: &Step, workflow: &Workflow, script: Option<&Script>) -> Option<Duration> {
    let Some(wait) = &step.wait else { return Some(Duration::ZERO) };
    let now = epoch(script);
    let mut names = Names::new().with("now", Cow::Owned(now.as_second().into()));
    names = names.with("config", Cow::Owned(Value::Object(workflow.config.clone())));
    if let Some(script) = script {
        names = names.with("input", Cow::Borrowed(&script.input));
    }
    wait.end(&names, now, step.timeout).ok().map(|end| std_of(now.duration_until(end)))
}

/// The longest wait of a step; a month stands for one that is not known.
fn longest_wait(workflow: &Workflow, script: Option<&Script>) -> Duration {
    const MONTH: Duration = Duration::from_secs(30 * 24 * 3600);
    workflow.steps.iter().map(|step| wait_of(step, workflow, script).unwrap_or(MONTH)).max().unwrap_or_default()
}

/// `d`, which is not negative.
pub(crate) fn std_of(d: SignedDuration) -> Duration {
    Duration::try_from(d).unwrap_or_default()
}
