//! How long one attempt may take, when to retry, and when to stop: a task's policy, pinned when it is stored.

use serde_json::json;
use shared::retry::{Calls, Ladder, Then};
use shared::time::SignedDuration;
use shared::workflow::Workflow;

pub(crate) const STEP: &str = "run";
/// Time left after a handler's deadline to record the result.
pub(crate) const TO_SETTLE: SignedDuration = SignedDuration::from_secs(10);

/// When to retry after a failure.
#[derive(Clone, Debug, PartialEq)]
pub enum When {
    /// After these waits, then stop.
    Intervals(Vec<SignedDuration>),
    /// After waits that double, with equal jitter: between half of `base * 2^n` and all of it, at most `cap`.
    Exponential {
        /// Upper bound of the first wait.
        base: SignedDuration,
        /// Upper bound of any wait.
        cap: SignedDuration,
        /// How many retries.
        retries: u32,
    },
}

impl Default for When {
    fn default() -> Self {
        Self::Intervals([1, 5, 10, 30, 60].map(SignedDuration::from_mins).to_vec())
    }
}

impl When {
    fn bound(base: SignedDuration, cap: SignedDuration, failures: u32) -> SignedDuration {
        (1..failures.min(32)).fold(base, |wait, _| wait.checked_mul(2).unwrap_or(cap).min(cap)).min(cap)
    }

    /// The retry ladder of the pinned workflow, with the shortest waits.
    fn ladder(&self) -> Ladder {
        let backoff: Vec<_> = match self {
            Self::Intervals(waits) => waits.clone(),
            Self::Exponential { base, cap, retries } => {
                (1..=(*retries).min(1000)).map(|n| Self::bound(*base, *cap, n) / 2).collect()
            }
        };
        let max = u32::try_from(backoff.len()).unwrap_or(u32::MAX).saturating_add(1);
        Ladder { max, backoff, long: None, then: Then::Error }
    }

    /// The jittered wait after failure number `failures`, if the policy has one; `unit` is random in `0.0..1.0`.
    pub(crate) fn wait(&self, failures: u32, unit: f64) -> Option<SignedDuration> {
        match self {
            Self::Intervals(_) => None,
            Self::Exponential { base, cap, .. } => {
                Some(Self::bound(*base, *cap, failures).mul_f64(0.5 + unit.clamp(0.0, 1.0) / 2.0))
            }
        }
    }
}

/// The policy that a handler's tasks are pinned to.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// How long one attempt may take.
    pub deadline: SignedDuration,
    /// When to retry.
    pub when: When,
}

impl Default for Policy {
    fn default() -> Self {
        Self { deadline: SignedDuration::from_mins(5), when: When::default() }
    }
}

impl Policy {
    /// The workflow, of one step, of `handler`'s tasks, read as a store reads it: what it does not have is left out.
    pub(crate) fn workflow(&self, handler: &str) -> Workflow {
        let step = json!({
            "name": STEP, "agent": handler, "after": [], "timeout": self.deadline + TO_SETTLE,
            "retry": self.when.ladder(), "on_failure": Then::Error,
            "calls": Calls { attempts: 1, base: SignedDuration::ZERO, cap: SignedDuration::ZERO },
        });
        let workflow = json!({"name": handler, "on_failure": Then::Error, "steps": [step]});
        serde_json::from_value(workflow).expect("a workflow of one step")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::retry::Rung;

    // H4: 1, 5, 10, 30, 60 minutes, then stop.
    #[test]
    fn the_default_ladder_has_five_rungs_and_ends() {
        let ladder = When::default().ladder();
        let waits: Vec<_> = (1..=5).map(|n| ladder.after(n)).collect();
        assert_eq!(waits, [1, 5, 10, 30, 60].map(|m| Rung::Retry(SignedDuration::from_mins(m))));
        assert_eq!(ladder.after(6), Rung::Exhausted(Then::Error));
    }

    // H4: exponential with jitter.
    #[test]
    fn exponential_waits_lie_between_half_the_bound_and_all_of_it() {
        let secs = SignedDuration::from_secs;
        let when = When::Exponential { base: secs(2), cap: secs(10), retries: 4 };
        let ladder = when.ladder();
        for (n, bound) in [(1, 2), (2, 4), (3, 8), (4, 10)] {
            assert_eq!(ladder.after(n), Rung::Retry(secs(bound) / 2));
            assert_eq!(when.wait(n, 0.0), Some(secs(bound) / 2));
            assert_eq!(when.wait(n, 1.0), Some(secs(bound)));
        }
        assert_eq!(ladder.after(5), Rung::Exhausted(Then::Error));
    }
}
