//! How long a step waits for its next attempt: the retry ladder.

use crate::time::SignedDuration;
use serde::{Deserialize, Serialize};

/// What happens to a step whose failures reached `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Then {
    /// Undo the whole task.
    Undo,
    /// Stop the task in Error and alert an operator.
    Error,
}

/// Attempts at long intervals after the threshold, for faults that last hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Long {
    /// Wait before each attempt.
    pub every: SignedDuration,
    /// How many.
    pub times: u32,
}

/// More time for a late attempt before it counts as failed, for services that are slow rather than down.
///
/// The attempt stays the same, so a reply between the old and the new `complete_by` counts. The agent knows only the
/// old one and is silent after it. So the scheduler re-sends the request with the same attempt, the same idempotency
/// key and the new `complete_by`, and the service answers with the work done meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Late {
    /// How much more time, from when the supervisor finds it late.
    pub extend: SignedDuration,
    /// How often, per attempt.
    pub times: u32,
}

/// The supervisor's policy for one step in one direction: fine-grained retries, then a decision.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ladder {
    /// Attempts before the threshold: `failures < max` retries, `failures >= max` does not.
    pub max: u32,
    /// Wait after the first, second, ... failure; the last one repeats.
    pub backoff: Vec<SignedDuration>,
    /// Attempts at long intervals after the threshold.
    pub long: Option<Long>,
    /// What follows when all attempts are spent.
    pub then: Then,
}

/// The ladder's answer to a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// Try again after this wait.
    Retry(SignedDuration),
    /// All attempts are spent.
    Exhausted(Then),
}

impl Ladder {
    /// The answer after the `failures`-th failure (1 is the first).
    #[must_use]
    pub fn after(&self, failures: u32) -> Rung {
        if failures < self.max {
            let index = (failures.max(1) - 1) as usize;
            let wait = self.backoff.get(index).or(self.backoff.last());
            return Rung::Retry(wait.copied().unwrap_or(SignedDuration::ZERO));
        }
        match self.long {
            Some(long) if failures - self.max < long.times => Rung::Retry(long.every),
            Some(_) | None => Rung::Exhausted(self.then),
        }
    }
}

/// How an agent repeats its calls within one attempt. The agent computes the waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calls {
    /// Calls in one attempt, the first included.
    pub attempts: u32,
    /// Upper bound of the wait before the second call; it doubles with each further call.
    pub base: SignedDuration,
    /// Upper bound of any wait.
    pub cap: SignedDuration,
}

/// The longest wait that an agent may ask for: one day.
const MAX_WISH_MS: u64 = 24 * 3600 * 1000;

/// The wait that an agent asks for, within bounds.
pub(crate) fn asked_wait(ms: u64) -> SignedDuration {
    SignedDuration::from_millis(i64::try_from(ms.min(MAX_WISH_MS)).expect("a day in milliseconds"))
}
