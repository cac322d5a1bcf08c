//! Requests and replies, as in Stepwarden's `docs/schemas`.

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The step itself, or its undo.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// Do the step.
    Do,
    /// Undo it.
    Undo,
}

/// How an agent repeats its calls within one attempt: exponential back-off with full jitter, never past `complete_by`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calls {
    /// Calls in one attempt, the first included.
    pub attempts: u32,
    /// Upper bound of the wait before the second call; it doubles with each further call.
    pub base: SignedDuration,
    /// Upper bound of any wait.
    pub cap: SignedDuration,
}

impl Calls {
    /// The wait before call number `call + 1`, after `call` calls (1 is the first):
    /// `unit * min(cap, base * 2^(call-1))`, where `unit` is a random number in `0.0..1.0` that the caller draws ("full
    /// jitter": Brooker, "Exponential Backoff And Jitter", AWS, 2015).
    #[must_use]
    pub fn wait(&self, call: u32, unit: f64) -> SignedDuration {
        let bound =
            (1..call.min(32)).fold(self.base, |d, _| d.checked_mul(2).unwrap_or(self.cap).min(self.cap)).min(self.cap);
        bound.mul_f64(unit.clamp(0.0, 1.0))
    }
}

/// Where, and how often, an agent reports that it works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The address: a POST is answered with the new `complete_by`, or with 404 or 409 once the attempt is over.
    pub url: String,
    /// The longest interval, in milliseconds.
    pub every_ms: u64,
}

/// A message in an agent's queue. Fields that a later version adds are ignored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The order.
    pub task_id: String,
    /// Name of the step.
    pub step: String,
    /// Name of the agent asked.
    pub agent: String,
    /// The step itself or its undo.
    pub direction: Direction,
    /// Number of this attempt.
    pub attempt: u32,
    /// The key to pass to the service with every call; the same for all attempts at this step in this direction.
    pub idempotency_key: String,
    /// After this time there is no reply (UTC, milliseconds).
    pub complete_by: Timestamp,
    /// How calls are repeated within this attempt.
    pub calls: Calls,
    /// Tenant that owns the order.
    pub tenant: String,
    /// Priority of the order: `high`, `normal` or `low`.
    #[serde(default)]
    pub priority: String,
    /// For a step with `accept`: where the service reports the end of its work.
    #[serde(default)]
    pub callback: Option<String>,
    /// For a step with `heartbeat`: where to send heartbeats.
    #[serde(default)]
    pub heartbeat: Option<Heartbeat>,
    /// The order's input, or what the step's `with` makes of it.
    #[serde(default)]
    pub input: Value,
    /// Outputs of the steps before this one, by step name.
    #[serde(default)]
    pub outputs: BTreeMap<String, Value>,
    /// For an undo: the output of the step to undo, if it is known.
    #[serde(default)]
    pub output: Option<Value>,
    /// For an undo: the idempotency key under which the step was done.
    #[serde(default)]
    pub undoes: Option<String>,
    /// The W3C trace context of the order.
    #[serde(default)]
    pub traceparent: Option<String>,
}

/// An answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename = "reply")]
pub struct Reply {
    /// The order, as in the request.
    pub task_id: String,
    /// Name of the step, as in the request.
    pub step: String,
    /// The attempt, as in the request.
    pub attempt: u32,
    /// The trace context, as in the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// How it went.
    #[serde(flatten)]
    pub answer: Answer,
}

impl Reply {
    /// The answer to `request`.
    #[must_use]
    pub fn to(request: &Request, answer: Answer) -> Self {
        let Request { task_id, step, attempt, traceparent, .. } = request.clone();
        Self { task_id, step, attempt, traceparent, answer }
    }
}

/// How an attempt went, with what the step's `catch` may read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// For a failed attempt: the status of the service's answer, such as 409.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// For a failed attempt: the body of the service's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// Set if the attempt failed but the service did its work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<Kind>,
    /// For a refusal: after an earlier call of the attempt it is unknown what the service did.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// For a failure: it was found before any call, so no `catch` sees it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub uncalled: bool,
}

impl From<Outcome> for Answer {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, status: None, answer: None, kind: None, unsure: false, uncalled: false }
    }
}

/// The kind of a failure that is not simply a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The service did its work, but its answer is unusable.
    Mistake,
}

/// How an attempt went.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Done, or undone.
    Done {
        /// What later steps and the undo need to know.
        output: Value,
    },
    /// The service accepted the work and reports its end later.
    Accepted {
        /// What the undo needs to know until then.
        output: Value,
    },
    /// The step polls, and the service's work is neither done nor failed.
    NotYet {
        /// What the service said, in words.
        why: String,
    },
    /// It can never succeed.
    Failed {
        /// Why, in words.
        error: String,
    },
    /// The agent's own retries are spent, well before `complete_by`.
    Unavailable {
        /// Why, in words.
        error: String,
        /// The wait that the remote service asked for, in milliseconds.
        #[serde(skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// Not tried, because the circuit breaker is open: no failure is counted.
    Deferred {
        /// Why, in words.
        error: String,
        /// How long to wait, in milliseconds.
        retry_after_ms: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    // E3: exponential, full jitter, capped.
    #[test]
    fn waits_double_up_to_the_cap_and_scale_with_the_random_unit() {
        let secs = SignedDuration::from_secs;
        let calls = Calls { attempts: 9, base: secs(1), cap: secs(5) };
        let bounds: Vec<_> = (1..6).map(|n| calls.wait(n, 1.0)).collect();
        assert_eq!(bounds, [secs(1), secs(2), secs(4), secs(5), secs(5)]);
        assert_eq!(calls.wait(2, 0.25), SignedDuration::from_millis(500));
        assert_eq!(calls.wait(u32::MAX, 1.0), secs(5));
        assert_eq!(calls.wait(3, 0.0), SignedDuration::ZERO);
    }
}
