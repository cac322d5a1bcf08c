//! The agents of one process: chooses agent and breaker for a request, and makes the attempt's reply.

use crate::{Agent, AgentError, Call};
use lru::LruCache;
use shared::engine::Clock;
use shared::message::{Outcome, Reply, Request};
use shared::retry;
use shared::step::{Direction, FailureKind};
use shared::time::{SignedDuration, Timestamp, millis};
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use stepwarden_agent::attempt::Attempt;
use stepwarden_agent::breaker::{self, Breaker, Turn};
use stepwarden_agent::message;
use stepwarden_aws::{metrics, traces};

/// Maximum number of breakers kept for agents that call several remote services; the latest stay.
const MAX_REMOTES: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Settings of the runtime.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How far apart two clocks may be. Nothing starts within this time before `complete_by`.
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
        let breaker = Arc::new(Breaker::new(agent.name(), self.settings.breaker).observed(count));
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
                let new = || Arc::new(Breaker::new(agent.name(), self.settings.breaker).observed(count));
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

    /// One attempt. `None`: the time ran out, so no reply; only the supervisor acts now.
    pub async fn perform(&self, guarded: Guarded<'_>, request: &Request) -> Option<Reply> {
        let reply = self.attempt(&guarded, request).await;
        if request.reminder.is_some() {
            // The order awaits no reminder, and no reply counts.
            if !matches!(reply, Some(Reply { outcome: Outcome::Done { .. } | Outcome::Garbled { .. }, .. })) {
                metrics::REMINDERS_FAILED.add(&request.agent);
                tracing::warn!(agent = request.agent, "a reminder was not sent");
            }
            return None;
        }
        match reply.as_ref().map(|reply| &reply.outcome) {
            Some(Outcome::Done { .. }) => tracing::debug!("did a step"),
            Some(Outcome::Accepted { .. }) => tracing::debug!("the service accepted a step"),
            Some(Outcome::NotYet { .. }) => tracing::debug!("looked: not done yet"),
            // The reason is only in the order's history, because a remote service may quote what it was sent.
            Some(Outcome::Garbled { .. } | Outcome::Failed { .. }) => {
                tracing::info!(agent = request.agent, "a step failed permanently")
            }
            Some(Outcome::Unavailable { .. }) => {
                tracing::info!(agent = request.agent, "returned a step: its service is unavailable")
            }
            Some(Outcome::Deferred { .. }) => {
                tracing::info!(agent = request.agent, "returned a step untried: its circuit breaker is open")
            }
            None => {
                metrics::SILENT_ATTEMPTS.add(&request.agent);
                tracing::warn!(agent = request.agent, "past CompleteBy; no reply sent");
            }
        }
        reply
    }

    async fn attempt(&self, Guarded { agent, breaker, remote }: &Guarded<'_>, request: &Request) -> Option<Reply> {
        let Request { complete_by, calls: retry::Calls { attempts, base, cap }, .. } = *request;
        let clock = move || millis((self.clock)());
        let attempt = Attempt {
            direction: match request.direction {
                Direction::Do => message::Direction::Do,
                Direction::Undo => message::Direction::Undo,
            },
            complete_by: complete_by.into(),
            skew: self.settings.skew,
            calls: message::Calls { attempts, base, cap },
            clock: &clock,
            breaker,
            remote: remote.as_deref().unwrap_or(agent.name()),
        };
        let answer = attempt.run(|time_left| async move {
            let span = traces::Span::call(request);
            let mut silence = Silence(Some(&span));
            let answer = span.around(agent.act(Call { request, time_left })).await;
            silence.0 = None;
            match &answer {
                Ok(_) | Err(AgentError::NotYet { .. } | AgentError::Accepted { .. } | AgentError::Stopped { .. }) => {}
                Err(AgentError::Permanent { .. } | AgentError::Refused { .. }) => span.fail("permanent"),
                Err(AgentError::Unusable { .. }) => span.fail("unusable"),
                Err(AgentError::NotCalled { .. }) => span.fail("not_called"),
                Err(AgentError::Transient { .. }) => span.fail("transient"),
            }
            answer
        });
        let message::Answer { outcome, status, answer, kind, unsure, uncalled } = answer.await?;
        let kind = kind.map(|message::Kind::Mistake| FailureKind::Mistake);
        let outcome = match outcome {
            message::Outcome::Done { output } => Outcome::Done { output },
            message::Outcome::Accepted { output } => Outcome::Accepted { output },
            message::Outcome::NotYet { why } => Outcome::NotYet { why },
            message::Outcome::Failed { error } => Outcome::Failed { error },
            message::Outcome::Unavailable { error, retry_after_ms } => Outcome::Unavailable { error, retry_after_ms },
            message::Outcome::Deferred { error, retry_after_ms } => Outcome::Deferred { error, retry_after_ms },
        };
        let is_read = request.look.is_some() || request.accept.is_some();
        let looked = is_read && matches!(outcome, Outcome::Done { .. });
        Some(Reply { status, answer, kind, unsure, looked, uncalled, ..Reply::to(request, outcome) })
    }
}

/// The span of a call without an answer. If it is dropped, time ran out.
struct Silence<'a>(Option<&'a traces::Span>);

impl Drop for Silence<'_> {
    fn drop(&mut self) {
        if let Some(span) = self.0 {
            span.fail("timeout");
        }
    }
}

/// Counts the turns of a breaker.
fn count(agent: &str, turn: Turn) {
    match turn {
        Turn::Opened => metrics::BREAKER_OPENED.add(agent),
        Turn::HalfOpened => metrics::BREAKER_HALF_OPENED.add(agent),
        Turn::Closed => metrics::BREAKER_CLOSED.add(agent),
    }
}
