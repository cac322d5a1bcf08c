//! Pools of an agent: which one gets the next request, and the health of each.
//!
//! A pool is a set of consumers with their own queues. An agent has one pool, named like it, unless the configuration
//! lists several by preference. A request goes to the first healthy pool; after a failure, the search begins with the
//! next pool. The claim records the pool, so that a re-sent request goes to the same one. Two pools are as safe as one,
//! because the idempotency key is the same.
//!
//! Each instance learns health from replies and keeps it only in memory, because correctness never depends on it.
//! Everything here is pure; the engine owns the [`Pools`] and tells them what it saved.

use crate::message::{Outcome, Reply};
use crate::retry::asked_wait;
use crate::step::{Direction, State, Step};
use crate::task::{Priority, Task};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::Workflow;
use std::collections::BTreeMap;

/// Consecutive unsuccessful attempts after which a pool is avoided.
pub const MISSES: u32 = 3;
/// How long it is avoided; doubles after each unsuccessful probe, up to [`LONGEST`].
pub const LEFT_FOR: SignedDuration = SignedDuration::from_secs(10);
/// Bound of the doubling.
pub const LONGEST: SignedDuration = SignedDuration::from_mins(5);
/// Least time between two probes.
pub const SHORTEST: SignedDuration = SignedDuration::from_secs(1);

/// The pools of each agent that has several, the most preferred first.
pub type Layout = BTreeMap<String, Vec<String>>;

/// Health of a pool, as far as this instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// It takes requests.
    Well {
        /// Consecutive unsuccessful attempts.
        misses: u32,
    },
    /// It is avoided for a while.
    Left {
        /// When it may be probed (UTC, milliseconds).
        until: Timestamp,
        /// The wait after the next probe.
        wait: SignedDuration,
    },
    /// One request is out as a probe. Unanswered, another follows.
    Probed {
        /// When it may be probed again (UTC, milliseconds).
        until: Timestamp,
        /// The wait before this probe.
        wait: SignedDuration,
    },
}

/// News of an attempt for its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// It was answered.
    Answered {
        /// How long the request waited in the pool's queue.
        queued: SignedDuration,
        /// How long the attempt had.
        timeout: SignedDuration,
    },
    /// Not tried, because the circuit breaker is open for this long.
    Held(SignedDuration),
    /// It expired in silence, or the agent's own retries were spent.
    Missed,
}

impl Health {
    /// Whether it takes requests, or at least a probe.
    #[must_use]
    pub fn takes(self, now: Timestamp) -> bool {
        self.left_until().is_none_or(|until| until <= now)
    }

    fn left_until(self) -> Option<Timestamp> {
        match self {
            Self::Well { .. } => None,
            Self::Left { until, .. } | Self::Probed { until, .. } => Some(until),
        }
    }

    /// Its health after a request was sent.
    #[must_use]
    pub fn sent(self, now: Timestamp) -> Self {
        match self {
            Self::Left { until, wait } | Self::Probed { until, wait } if until <= now => {
                Self::Probed { until: plus(now, wait), wait }
            }
            Self::Well { .. } | Self::Left { .. } | Self::Probed { .. } => self,
        }
    }

    /// Its health after news of an attempt.
    #[must_use]
    pub fn after(self, news: News, now: Timestamp) -> Self {
        match (self, news) {
            (_, News::Held(wait)) => self.leave(wait, now),
            // It spent half of its timeout in the queue, so later requests expire before they begin.
            (_, News::Answered { queued, timeout }) if queued.as_millis() * 2 >= timeout.as_millis() => {
                self.leave(queued, now)
            }
            // The request may be older than the avoidance, so its answer says nothing.
            (Self::Left { until, .. }, News::Answered { .. }) if now < until => self,
            (Self::Well { .. } | Self::Left { .. } | Self::Probed { .. }, News::Answered { .. }) => {
                Self::Well { misses: 0 }
            }
            (Self::Well { misses }, News::Missed) if misses + 1 < MISSES => Self::Well { misses: misses + 1 },
            (Self::Well { .. }, News::Missed) => self.leave(LEFT_FOR, now),
            (Self::Left { .. }, News::Missed) => self,
            (Self::Probed { wait, .. }, News::Missed) => {
                self.leave(wait.checked_mul(2).unwrap_or(LONGEST).min(LONGEST), now)
            }
        }
    }

    fn leave(self, wait: SignedDuration, now: Timestamp) -> Self {
        let until = self.left_until().max(Some(plus(now, wait))).expect("there is one");
        Self::Left { until, wait: wait.clamp(SHORTEST, LONGEST) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Pool {
    name: String,
    health: Health,
}

/// All pools, and their health as this instance knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pools {
    agents: BTreeMap<String, Vec<Pool>>,
}

/// Every agent has one pool.
pub static ONE_EACH: Pools = Pools { agents: BTreeMap::new() };

impl Pools {
    /// All pools of `layout`, well.
    #[must_use]
    pub fn new(layout: &Layout) -> Self {
        let well = |name: &String| Pool { name: name.clone(), health: Health::Well { misses: 0 } };
        let pools = |names: &Vec<String>| names.iter().map(well).collect();
        let several = layout.iter().filter(|(_, names)| !names.is_empty());
        Self { agents: several.map(|(agent, names)| (agent.clone(), pools(names))).collect() }
    }

    /// The pool that the next request for `agent` goes to, for a step that has failed `failures` times.
    #[must_use]
    pub fn route<'a>(&'a self, agent: &'a str, failures: u32, now: Timestamp) -> &'a str {
        let Some(pools) = self.agents.get(agent) else { return agent };
        let first = usize::try_from(failures).unwrap_or_default() % pools.len();
        let (before, from) = pools.split_at(first);
        let in_order = || from.iter().chain(before);
        let healthy = in_order().find(|pool| pool.health.takes(now));
        // No pool is well: take the one that may be probed first.
        let chosen = healthy.or_else(|| in_order().min_by_key(|pool| pool.health.left_until()));
        chosen.map_or(agent, |pool| pool.name.as_str())
    }

    /// Health of the pool called `pool`.
    #[must_use]
    pub fn health(&self, agent: &str, pool: &str) -> Option<Health> {
        self.agents.get(agent)?.iter().find(|one| one.name == pool).map(|one| one.health)
    }

    /// Whether `agent` has a pool called `pool`.
    #[must_use]
    pub fn is_known(&self, agent: &str, pool: &str) -> bool {
        self.agents.get(agent).map_or(agent == pool, |pools| pools.iter().any(|one| one.name == pool))
    }

    fn change(&mut self, agent: &str, pool: &str, next: impl FnOnce(Health) -> Health) {
        let known = self.agents.get_mut(agent).and_then(|pools| pools.iter_mut().find(|one| one.name == pool));
        if let Some(pool) = known {
            pool.health = next(pool.health);
        }
    }

    /// Records the claims between two versions of a task. Call it with the decision, so that of many concurrent
    /// decisions only one probes.
    pub fn sent(&mut self, before: &Task, after: &Task, workflow: &Workflow, now: Timestamp) {
        if self.agents.is_empty() {
            return;
        }
        for (_, next, agent) in claims(before, after, workflow) {
            self.change(agent, pool_of(next, agent), |health| health.sent(now));
        }
    }

    /// Learns from a saved change of a task, and from the reply that caused it, if any.
    pub fn learn(&mut self, reply: Option<&Reply>, before: &Task, after: &Task, workflow: &Workflow, now: Timestamp) {
        if self.agents.is_empty() {
            return;
        }
        if let Some(reply) = reply
            && let Some(index) = workflow.position(&reply.step)
            && let Some((direction, _)) = before.holds(index, reply.attempt)
            && let Some(work) = workflow.steps[index].work(direction)
        {
            // Low-priority requests may wait long in a healthy pool.
            let queued = if before.priority == Priority::Low { 0 } else { reply.queued_ms.unwrap_or_default() };
            let news = match &reply.outcome {
                Outcome::Done { .. }
                | Outcome::Accepted { .. }
                | Outcome::NotYet { .. }
                | Outcome::Garbled { .. }
                | Outcome::Failed { .. } => News::Answered { queued: asked_wait(queued), timeout: work.window() },
                Outcome::Unavailable { .. } => News::Missed,
                Outcome::Deferred { retry_after_ms, .. } => News::Held(asked_wait(*retry_after_ms)),
            };
            let pool = pool_of(&before.steps[index], work.agent);
            self.change(work.agent, pool, |health| health.after(news, now));
        }
        // Besides the supervisor, only the instance that claims the next attempt learns of an expiry. Each attempt is
        // claimed once, so each expiry counts once.
        for (last, _, agent) in claims(before, after, workflow) {
            if ran_out(last) {
                self.change(agent, pool_of(last, agent), |health| health.after(News::Missed, now));
            }
        }
    }
}

/// Steps claimed between two versions, as before, after and agent.
fn claims<'a>(
    before: &'a Task,
    after: &'a Task,
    workflow: &'a Workflow,
) -> impl Iterator<Item = (&'a Step, &'a Step, &'a str)> {
    let steps = before.steps.iter().zip(&after.steps).zip(&workflow.steps);
    steps.filter(|((last, next), _)| last.attempt < next.attempt).filter_map(|((last, next), spec)| {
        let (direction, _) = next.claim()?;
        Some((last, next, spec.work(direction)?.agent))
    })
}

/// Whether the last attempt, in the step's present direction, ended without a reply.
fn ran_out(step: &Step) -> bool {
    let failures = match step.state {
        State::Pending { .. } => step.failures,
        State::UndoPending { .. } => step.undo_failures,
        State::Processing { .. }
        | State::Waiting { .. }
        | State::Processed
        | State::Failed
        | State::Skipped
        | State::PassedOver
        | State::Caught
        | State::UndoProcessing { .. }
        | State::Undone
        | State::UndoFailed => 0,
    };
    failures > 0 && step.settled_at <= step.claimed_at
}

fn pool_of<'a>(step: &'a Step, agent: &'a str) -> &'a str {
    step.pool.as_deref().unwrap_or(agent)
}

/// The pool for a claim of `step`, as recorded: `None` for the pool named like the agent.
pub(crate) fn choose(pools: &Pools, agent: &str, step: &Step, direction: Direction, now: Timestamp) -> Option<String> {
    let failures = match direction {
        Direction::Do => step.failures,
        Direction::Undo => step.undo_failures,
    };
    let pool = pools.route(agent, failures, now);
    (pool != agent).then(|| pool.to_owned())
}
