//! One attempt at one step: calls, waits and the deadline.

use crate::breaker::{self, Breaker, Held};
use crate::{Agent, AgentError, Call};
use lru::LruCache;
use serde_json::Value;
use shared::engine::Clock;
use shared::json;
use shared::message::{Outcome, Reply, Request};
use shared::outputs::{self, MAX_BESIDE};
use shared::step::{Direction, FailureKind};
use shared::time::{SignedDuration, Timestamp, millis, until};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stepwarden_aws::{metrics, traces};

/// Maximum number of breakers kept for agents that call more than one remote service: those called last.
const MAX_REMOTES: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Settings of the runtime.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How far apart two clocks may be: nothing starts within this time before `complete_by`.
    pub skew: SignedDuration,
    /// The circuit breaker before each remote service.
    pub breaker: breaker::Settings,
}

/// The agents of one process, each behind its breaker.
pub struct Runtime {
    /// By the name of the pool they serve; an agent's only pool is named like the agent.
    agents: HashMap<String, (Arc<dyn Agent>, Arc<Breaker>)>,
    /// Breakers of agents that call more than one remote service, by the name from [`Agent::remote`].
    remotes: Mutex<LruCache<String, Arc<Breaker>>>,
    settings: Settings,
    clock: Clock,
}

/// An agent with the breaker of the remote service that a request is for.
#[derive(Clone)]
pub struct Guarded<'a> {
    agent: &'a dyn Agent,
    breaker: Arc<Breaker>,
    remote: Option<String>,
}

impl Runtime {
    /// A runtime of `agents`.
    #[must_use]
    pub fn new(agents: Vec<Arc<dyn Agent>>, settings: Settings, clock: Clock) -> Self {
        let remotes = Mutex::new(LruCache::new(MAX_REMOTES));
        let none = Self { agents: HashMap::new(), remotes, settings, clock };
        agents.into_iter().fold(none, |all, agent| {
            let name = agent.name().to_owned();
            all.with_pool(&name, agent)
        })
    }

    /// The same runtime, with `agent` behind its own breaker for requests to the pool called `pool`.
    #[must_use]
    pub fn with_pool(mut self, pool: &str, agent: Arc<dyn Agent>) -> Self {
        let breaker = Arc::new(Breaker::new(agent.name(), self.settings.breaker));
        self.agents.insert(pool.to_owned(), (agent, breaker));
        self
    }

    /// Who does this request: its pool, or the agent itself if that pool is unknown here.
    #[must_use]
    pub fn agent_of(&self, request: &Request) -> Option<Guarded<'_>> {
        let pool = request.pool.as_ref().and_then(|pool| self.agents.get(pool));
        let own = || self.agents.get(&request.agent);
        let (agent, breaker) = pool.filter(|(agent, _)| agent.name() == request.agent).or_else(own)?;
        let remote = agent.remote(request);
        let breaker = match &remote {
            None => breaker,
            Some(name) => {
                let new = || Arc::new(Breaker::new(agent.name(), self.settings.breaker));
                &Arc::clone(self.remotes().get_or_insert_ref(name, new))
            }
        };
        Some(Guarded { agent: &**agent, breaker: Arc::clone(breaker), remote })
    }

    fn remotes(&self) -> MutexGuard<'_, LruCache<String, Arc<Breaker>>> {
        self.remotes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Breakers that are open now: name of the pool or of the remote service, and the time until the next probe.
    #[must_use]
    pub fn open_breakers(&self) -> Vec<(String, SignedDuration)> {
        let now = self.now();
        let pools = self.agents.iter().map(|(name, (_, breaker))| (name.clone(), Arc::clone(breaker)));
        let remotes: Vec<_> =
            self.remotes().iter().map(|(name, breaker)| (name.clone(), Arc::clone(breaker))).collect();
        pools.chain(remotes).filter_map(|(name, breaker)| Some((name, breaker.open_for(now)?))).collect()
    }

    fn now(&self) -> Timestamp {
        millis((self.clock)())
    }

    /// One attempt. `None` is silence: the time ran out, and now only the supervisor acts.
    pub async fn perform(&self, guarded: Guarded<'_>, request: &Request) -> Option<Reply> {
        let reply = self.attempt(&guarded, request).await;
        // Not even an error after the deadline: another agent may have the step by now.
        let reply = reply.filter(|_| self.now() < request.complete_by);
        match reply.as_ref().map(|reply| &reply.outcome) {
            Some(Outcome::Done { .. }) => tracing::debug!("did a step"),
            // The reason is in the order's history: the words of a remote service may quote what it was sent.
            Some(Outcome::Garbled { .. } | Outcome::Failed { .. }) => {
                tracing::info!(agent = request.agent, "a step failed permanently")
            }
            Some(Outcome::Unavailable { .. }) => tracing::info!(agent = request.agent, "gave a step back: unavailable"),
            Some(Outcome::Deferred { .. }) => tracing::info!(agent = request.agent, "gave a step back: breaker open"),
            None => {
                metrics::SILENT_ATTEMPTS.add(&request.agent);
                tracing::warn!(agent = request.agent, "past CompleteBy; no reply sent");
            }
        }
        reply
    }

    async fn attempt(&self, Guarded { agent, breaker, remote }: &Guarded<'_>, request: &Request) -> Option<Reply> {
        let reply = |outcome| Reply::to(request, outcome);
        let (mut calls, mut unsure, mut last) = (0, false, None);
        loop {
            let left = self.time_left(request)?;
            if let Err(Held { wait, why }) = breaker.enter(self.now()) {
                let name = remote.as_deref().unwrap_or(agent.name());
                let error = format!("the circuit breaker of `{name}` is open: {why}");
                // Spread out, so that requests held back do not all return at once.
                let wait = Duration::from_secs_f64(wait.as_secs_f64().max(0.0) * (1.0 + fastrand::f64()));
                let retry_after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
                if calls == 0 {
                    return Some(reply(Outcome::Deferred { error, retry_after_ms }));
                }
                // Others may have opened it: this attempt has calls left.
                if wait < left && SignedDuration::try_from(wait).is_ok_and(|wait| wait <= request.calls.cap) {
                    tokio::time::sleep(wait).await;
                    continue;
                }
                // What this attempt called may have acted, and a failed probe is a failure: otherwise a service that
                // stays down would never use up the attempts.
                let outcome = Outcome::Unavailable { error, retry_after_ms: Some(retry_after_ms) };
                return Some(Reply { status: last, ..reply(outcome) });
            }
            calls += 1;
            let call = Call { request, time_left: left };
            let span = traces::Span::call(request);
            let answer = tokio::time::timeout(left, span.around(agent.act(call))).await;
            match &answer {
                Ok(Ok(_)) => {}
                Ok(Err(AgentError::Permanent { .. } | AgentError::Refused { .. })) => span.fail("permanent"),
                Ok(Err(AgentError::Unusable { .. })) => span.fail("unusable"),
                Ok(Err(AgentError::NotCalled { .. })) => span.fail("not_called"),
                Ok(Err(AgentError::Transient { .. })) => span.fail("transient"),
                Err(_) => span.fail("timeout"),
            }
            drop(span);
            let unusable = |error| Reply { kind: Some(FailureKind::Mistake), ..reply(Outcome::Failed { error }) };
            let (error, said, status, retry_after) = match answer {
                Ok(Ok(output)) => {
                    breaker.succeeded();
                    return Some(match request.direction {
                        // An undo's output is not kept.
                        Direction::Undo => reply(Outcome::Done { output: Value::Null }),
                        // The scheduler could not read a reply that is nested this deep.
                        Direction::Do if json::is_deep(&output) => {
                            unusable(format!("the agent's output {}", json::Fault::Deep))
                        }
                        Direction::Do => match serde_json::to_string(&output).map_or(usize::MAX, |json| json.len()) {
                            // Its reply might be longer than a message can be.
                            bytes if bytes > MAX_BESIDE => unusable(outputs::too_long("the agent's output", bytes)),
                            _ => reply(Outcome::Done { output }),
                        },
                    });
                }
                // It answered, so it is healthy: the breaker guards only against silence and overload.
                Ok(Err(AgentError::Permanent { error })) => {
                    breaker.succeeded();
                    return Some(Reply { unsure, ..reply(Outcome::Failed { error }) });
                }
                Ok(Err(AgentError::Refused { error, status, answer })) => {
                    breaker.succeeded();
                    return Some(Reply { status: Some(status), answer, unsure, ..reply(Outcome::Failed { error }) });
                }
                Ok(Err(AgentError::Unusable { error })) => {
                    breaker.succeeded();
                    return Some(unusable(error));
                }
                // Another call in this attempt would lack the same.
                Ok(Err(AgentError::NotCalled { error, is_permanent })) => {
                    breaker.withdrawn(self.now());
                    return Some(if is_permanent {
                        Reply { unsure, ..reply(Outcome::Failed { error }) }
                    } else {
                        reply(Outcome::Unavailable { error, retry_after_ms: None })
                    });
                }
                Ok(Err(AgentError::Transient { error, said, status, retry_after })) => {
                    (error, said, status, retry_after)
                }
                Err(_) => {
                    breaker.failed(self.now(), "no answer in time");
                    return None;
                }
            };
            breaker.failed(self.now(), &error);
            (unsure, last) = (true, status);
            let error = said.map_or_else(|| error.clone(), |said| format!("{error}: {said}"));
            let jitter = request.calls.wait(calls, fastrand::f64());
            let wait = jitter.max(retry_after.unwrap_or_default());
            let left = self.time_left(request)?;
            if calls >= request.calls.attempts || wait >= SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX)
            {
                let retry_after_ms = retry_after.and_then(|d| u64::try_from(d.as_millis()).ok());
                let calls = if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
                let error = format!("{error} ({calls})");
                return Some(Reply { status, ..reply(Outcome::Unavailable { error, retry_after_ms }) });
            }
            tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
        }
    }

    /// Time until nothing may start any more; `None` if none is left.
    fn time_left(&self, request: &Request) -> Option<Duration> {
        let left = until(self.now(), request.complete_by).saturating_sub(self.settings.skew);
        Duration::try_from(left).ok().filter(|d| !d.is_zero())
    }
}
