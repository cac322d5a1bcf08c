//! One attempt at one step: calls, waits and the deadline.

use crate::AgentError;
use crate::breaker::{Breaker, Held};
use crate::message::{Answer, Calls, Direction, Kind, Outcome};
use crate::time::until;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;
use tokio::time::error::Elapsed;

/// Longest output of a step, in bytes of JSON.
pub const MAX_OUTPUT: usize = 256 * 1024;
/// How many levels deep an output may be nested.
pub const MAX_DEPTH: usize = 50;

/// When an attempt ends. Each answered heartbeat moves it, for all copies.
#[derive(Clone, Debug)]
pub struct Deadline(Arc<AtomicI64>);

impl Deadline {
    /// The time (UTC, milliseconds).
    #[must_use]
    pub fn get(&self) -> Timestamp {
        Timestamp::from_millisecond(self.0.load(Ordering::Relaxed)).unwrap_or(Timestamp::MIN)
    }

    pub(crate) fn set(&self, time: Timestamp) {
        self.0.store(time.as_millisecond(), Ordering::Relaxed);
    }
}

impl From<Timestamp> for Deadline {
    fn from(time: Timestamp) -> Self {
        Self(Arc::new(AtomicI64::new(time.as_millisecond())))
    }
}

/// One attempt, as a request asks for it.
pub struct Attempt<'a> {
    /// The step itself or its undo.
    pub direction: Direction,
    /// After this time there is no reply (UTC).
    pub complete_by: Deadline,
    /// How far apart two clocks may be: no call starts within this time before `complete_by`, and calls end by then.
    pub skew: SignedDuration,
    /// How calls are repeated.
    pub calls: Calls,
    /// Where the time comes from.
    pub clock: &'a (dyn Fn() -> Timestamp + Send + Sync),
    /// The breaker before the remote service.
    pub breaker: &'a Breaker,
    /// Names the service, or the agent, in words about the breaker.
    pub remote: &'a str,
}

impl Attempt<'_> {
    /// Makes calls until one is answered, the calls are spent or the time is over. `call` gets the time that its answer
    /// may take, and is dropped when that is over. `None` means no reply, not even an error: after `complete_by`
    /// another instance may have the step.
    pub async fn run<F>(&self, call: impl FnMut(Duration) -> F) -> Option<Answer>
    where
        F: Future<Output = Result<Value, AgentError>>,
    {
        let answer = self.answer(call).await;
        answer.filter(|_| self.now() < self.complete_by.get())
    }

    async fn answer<F>(&self, mut call: impl FnMut(Duration) -> F) -> Option<Answer>
    where
        F: Future<Output = Result<Value, AgentError>>,
    {
        let (mut calls, mut unsure, mut last) = (0, false, None);
        loop {
            let left = self.time_left()?;
            if let Err(Held { wait, why }) = self.breaker.enter(self.now()) {
                let error = format!("the circuit breaker of `{}` is open: {why}", self.remote);
                // Spread, so that requests held back do not all return at once.
                let wait = Duration::from_secs_f64(wait.as_secs_f64().max(0.0) * (1.0 + fastrand::f64()));
                let retry_after_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX).saturating_add(1);
                if calls == 0 {
                    return Some(Outcome::Deferred { error, retry_after_ms }.into());
                }
                // Others may have opened it; this one has calls left.
                if wait < left && SignedDuration::try_from(wait).is_ok_and(|wait| wait <= self.calls.cap) {
                    tokio::time::sleep(wait).await;
                    continue;
                }
                // This attempt's calls may have acted, and a failed probe is a failure: else a service that stays down
                // would never use up the attempts.
                let outcome = Outcome::Unavailable { error, retry_after_ms: Some(retry_after_ms) };
                return Some(Answer { status: last, ..outcome.into() });
            }
            calls += 1;
            let Ok(answer) = self.in_time(left, call(left)).await else {
                self.breaker.failed(self.now(), "no answer in time");
                return None;
            };
            match &answer {
                Err(AgentError::Transient { error, is_unwell: true, .. }) => self.breaker.failed(self.now(), error),
                Err(AgentError::Stopped { .. } | AgentError::NotCalled { .. }) => self.breaker.withdrawn(self.now()),
                // It answered, so it is healthy. The breaker guards only against silence and overload.
                Ok(_) | Err(_) => self.breaker.succeeded(),
            }
            let (error, said, status, retry_after) = match answer {
                Ok(output) => return Some(self.done(output)),
                Err(AgentError::Permanent { error }) => {
                    return Some(Answer { unsure, ..Outcome::Failed { error }.into() });
                }
                Err(AgentError::Refused { error, status, answer }) => {
                    return Some(Answer { status: Some(status), answer, unsure, ..Outcome::Failed { error }.into() });
                }
                Err(AgentError::Unusable { error }) => return Some(unusable(error)),
                Err(AgentError::Accepted { output }) => {
                    return Some(match self.done(output) {
                        Answer { outcome: Outcome::Done { output }, .. } => Outcome::Accepted { output }.into(),
                        unusable => unusable,
                    });
                }
                Err(AgentError::Stopped { .. }) => return None,
                Err(AgentError::NotYet { why }) => return Some(Outcome::NotYet { why }.into()),
                // A repeated call would lack the same thing.
                Err(AgentError::NotCalled { error, is_permanent: true }) => {
                    return Some(Answer { unsure, uncalled: true, ..Outcome::Failed { error }.into() });
                }
                Err(AgentError::NotCalled { error, is_permanent: false }) => {
                    return Some(Outcome::Unavailable { error, retry_after_ms: None }.into());
                }
                Err(AgentError::Transient { error, said, status, retry_after, is_unwell: _ }) => {
                    (error, said, status, retry_after)
                }
            };
            (unsure, last) = (true, status);
            let error = said.map_or_else(|| error.clone(), |said| format!("{error}: {said}"));
            let jitter = self.calls.wait(calls, fastrand::f64());
            let wait = jitter.max(retry_after.unwrap_or_default());
            let left = self.time_left()?;
            if calls >= self.calls.attempts || wait >= SignedDuration::try_from(left).unwrap_or(SignedDuration::MAX) {
                let retry_after_ms = retry_after.and_then(|d| u64::try_from(d.as_millis()).ok());
                let calls = if calls == 1 { "1 call".to_owned() } else { format!("{calls} calls") };
                let error = format!("{error} ({calls})");
                return Some(Answer { status, ..Outcome::Unavailable { error, retry_after_ms }.into() });
            }
            tokio::time::sleep(Duration::try_from(wait).unwrap_or_default()).await;
        }
    }

    /// The answer of `call`, unless the time is over: after `left`, or later if heartbeats move the end.
    async fn in_time<F: Future>(&self, mut left: Duration, call: F) -> Result<F::Output, Elapsed> {
        let mut call = pin!(call);
        loop {
            match tokio::time::timeout(left, call.as_mut()).await {
                Ok(answer) => return Ok(answer),
                Err(over) => left = self.time_left().ok_or(over)?,
            }
        }
    }

    fn done(&self, output: Value) -> Answer {
        match self.direction {
            // An undo's output is not kept.
            Direction::Undo => Outcome::Done { output: Value::Null }.into(),
            // The scheduler could not read a reply that is nested this deep.
            Direction::Do if is_deep(&output, MAX_DEPTH) => {
                unusable(format!("the agent's output is nested more than {MAX_DEPTH} levels deep"))
            }
            Direction::Do => match serde_json::to_string(&output).map_or(usize::MAX, |json| json.len()) {
                // Its reply might be too long for a message.
                bytes if bytes > MAX_OUTPUT => unusable(format!(
                    "the agent's output has {bytes} bytes; the limit is {MAX_OUTPUT}: return a reference to it instead"
                )),
                _ => Outcome::Done { output }.into(),
            },
        }
    }

    fn now(&self) -> Timestamp {
        (self.clock)()
    }

    /// Time during which calls may start; `None` if it is over.
    fn time_left(&self) -> Option<Duration> {
        let left = until(self.now(), self.complete_by.get()).saturating_sub(self.skew);
        Duration::try_from(left).ok().filter(|d| !d.is_zero())
    }
}

fn unusable(error: String) -> Answer {
    Answer { kind: Some(Kind::Mistake), ..Outcome::Failed { error }.into() }
}

fn is_deep(value: &Value, left: usize) -> bool {
    match value {
        Value::Array(all) => left == 0 || all.iter().any(|one| is_deep(one, left - 1)),
        Value::Object(all) => left == 0 || all.values().any(|one| is_deep(one, left - 1)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
