//! One attempt at one step: calls, waits and the deadline.

use crate::breaker::{self, Breaker};
use crate::{Agent, AgentError, Call};
use shared::engine::Clock;
use shared::message::{Outcome, Reply, Request};
use shared::time::{SignedDuration, Timestamp, millis, until};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How the runtime reckons.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How far apart two clocks may be: nothing starts later than this before `complete_by`.
    pub skew: SignedDuration,
    /// The circuit breaker before each remote service.
    pub breaker: breaker::Settings,
}

/// The agents of one process, each behind its breaker.
pub struct Runtime {
    /// By the name of the pool they serve, which is the agent's where it has only one.
    agents: HashMap<String, (Arc<dyn Agent>, Breaker)>,
    settings: Settings,
    clock: Clock,
}

/// An agent with its breaker.
#[derive(Clone, Copy)]
pub struct Guarded<'a> {
    agent: &'a dyn Agent,
    breaker: &'a Breaker,
}

impl Runtime {
    /// A runtime of `agents`.
    #[must_use]
    pub fn new(agents: Vec<Arc<dyn Agent>>, settings: Settings, clock: Clock) -> Self {
        let none = Self { agents: HashMap::new(), settings, clock };
        agents.into_iter().fold(none, |all, agent| all.with_pool(agent.name(), agent))
    }

    /// The same, where requests for the pool called `pool` are done by `agent`, behind a breaker of its own.
    #[must_use]
    pub fn with_pool(mut self, pool: &str, agent: Arc<dyn Agent>) -> Self {
        self.agents.insert(pool.to_owned(), (agent, Breaker::new(self.settings.breaker)));
        self
    }

    /// Who does this request: its pool, or the agent itself where that pool is not known here.
    #[must_use]
    pub fn agent_of(&self, request: &Request) -> Option<Guarded<'_>> {
        let pool = request.pool.as_ref().and_then(|pool| self.agents.get(pool));
        let own = || self.agents.get(&request.agent);
        let (agent, breaker) = pool.filter(|(agent, _)| agent.name() == request.agent).or_else(own)?;
        Some(Guarded { agent: &**agent, breaker })
    }

    /// Breakers that are open now: name of the pool and the time until the next probe.
    #[must_use]
    pub fn open_breakers(&self) -> Vec<(&str, SignedDuration)> {
        let now = self.now();
        self.agents
            .iter()
            .filter_map(|(name, (_, breaker))| breaker.open_for(now).map(|left| (name.as_str(), left)))
            .collect()
    }

    fn now(&self) -> Timestamp {
        millis((self.clock)())
    }

    /// One attempt. `None` is silence: the time ran out, and only the supervisor acts now.
    pub async fn perform(&self, guarded: Guarded<'_>, request: &Request) -> Option<Reply> {
        let outcome = self.attempt(guarded, request).await;
        let (name, attempt) = (&request.step, request.attempt);
        // Not even an error after the deadline: the step may have been given to somebody else.
        let outcome = outcome.filter(|_| self.now() < request.complete_by);
        match &outcome {
            Some(Outcome::Done { .. }) => {
                tracing::debug!(task.id = %request.task_id, step.name = %name, step.attempt = attempt, "did a step");
            }
            Some(Outcome::Failed { error } | Outcome::Unavailable { error, .. } | Outcome::Deferred { error, .. }) => {
                tracing::info!(task.id = %request.task_id, step.name = %name, step.attempt = attempt, "gave a step back: {error}");
            }
            None => {
                tracing::warn!(task.id = %request.task_id, step.name = %name, step.attempt = attempt, "out of time; silent");
            }
        }
        outcome.map(|outcome| Reply::to(request, outcome))
    }

    async fn attempt(&self, Guarded { agent, breaker }: Guarded<'_>, request: &Request) -> Option<Outcome> {
        let mut calls = 0;
        loop {
            let left = self.time_left(request)?;
            if let Err(wait) = breaker.enter(self.now()) {
                let error = format!("the circuit breaker of `{}` is open", agent.name());
                // Spread out, or all that waited come back at the same moment.
                let retry_after_ms = (wait.as_secs_f64() * 1000.0 * (1.0 + fastrand::f64())) as u64 + 1;
                return Some(Outcome::Deferred { error, retry_after_ms });
            }
            calls += 1;
            let call = Call { request, time_left: left };
            let (error, retry_after) = match tokio::time::timeout(left, agent.act(call)).await {
                Ok(Ok(output)) => {
                    breaker.succeeded();
                    return Some(Outcome::Done { output });
                }
                // It answered, so it is well: the breaker guards against silence and overload only.
                Ok(Err(AgentError::Permanent { error })) => {
                    breaker.succeeded();
                    return Some(Outcome::Failed { error });
                }
                Ok(Err(AgentError::Transient { error, retry_after })) => (error, retry_after),
                Err(_) => {
                    breaker.failed(self.now());
                    return None;
                }
            };
            breaker.failed(self.now());
            let jitter = request.calls.wait(calls, fastrand::f64());
            let wait = jitter.max(retry_after.unwrap_or_default());
            let left = self.time_left(request)?;
            if calls >= request.calls.attempts || wait >= SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX)
            {
                let retry_after_ms = retry_after.and_then(|d| u64::try_from(d.as_millis()).ok());
                let calls = if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
                return Some(Outcome::Unavailable { error: format!("{error} ({calls})"), retry_after_ms });
            }
            tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
        }
    }

    /// Time until nothing may start any more; `None` when there is none left.
    fn time_left(&self, request: &Request) -> Option<Duration> {
        let left = until(self.now(), request.complete_by).saturating_sub(self.settings.skew);
        Duration::try_from(left).ok().filter(|d| !d.is_zero())
    }
}
