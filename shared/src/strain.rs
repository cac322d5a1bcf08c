//! Strain: one agent holds up a large part of a sweep. Then its back-off is stretched, and operators get one alert.
//!
//! A sweep sees only failures, never successes. So strain does not measure load, and no order is refused for it. It
//! makes a failing agent be called less often, so that its orders' retry ladders last longer.

use crate::message::Strained;
use crate::time::{SignedDuration, Timestamp, plus};
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};

/// An agent is strained if it holds up more than one in so many tasks of a sweep.
const PART: u32 = 5;
/// Default of the fewest held-up tasks that make an agent strained. Among fewer, a fifth may be chance.
pub const LEAST: u32 = 10;
/// The stretch rises, and the record changes, at most this often. Sweeps within one window count as one.
pub const WINDOW: SignedDuration = SignedDuration::from_secs(30);
/// The episode ends when no sweep has found the agent strained for this long. Longer than [`MAX_WAIT`] and a usual
/// timeout, so that waiting steps fail again before the same trouble counts as new.
pub const QUIET: SignedDuration = SignedDuration::from_mins(10);
/// Largest factor of a back-off.
pub const MAX_STRETCH: u32 = 8;
/// No back-off is stretched beyond this; a longer one stays as it is.
pub const MAX_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// An agent in trouble, from the first strained sweep on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strain {
    /// When the episode began (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub since: Timestamp,
    /// The last sweep that found the agent strained, to within [`WINDOW`] (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub last: Timestamp,
    /// Factor for back-off.
    pub stretch: u32,
    /// Tasks of that sweep that the agent held up.
    pub held: u32,
    /// All tasks of that sweep.
    pub looked_at: u32,
    /// The operator's alert has not gone out yet.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert_owed: bool,
}

impl Strain {
    /// Whether the episode continues.
    #[must_use]
    pub fn is_on(&self, now: Timestamp) -> bool {
        now < plus(self.last, QUIET)
    }

    /// `wait`, stretched during the episode.
    #[must_use]
    pub fn stretch(&self, wait: SignedDuration, now: Timestamp) -> SignedDuration {
        if !self.is_on(now) {
            return wait;
        }
        let stretched = wait.checked_mul(i32::try_from(self.stretch).unwrap_or(1)).unwrap_or(MAX_WAIT);
        wait.max(stretched.min(MAX_WAIT))
    }

    /// The alert for the operator.
    #[must_use]
    pub fn event(&self, agent: &str) -> Strained {
        let command = |verb: &str| format!("stepwarden {verb}-agent {agent} --by NAME --reason TEXT");
        Strained {
            agent: agent.to_owned(),
            since: self.since,
            held: self.held,
            looked_at: self.looked_at,
            stretch: self.stretch,
            pause: command("pause"),
            resume: command("resume"),
            runbook: "docs/runbook.md#agent-strained".into(),
        }
    }
}

/// Whether `held` of `looked_at` tasks make an agent strained: more than a fifth, and at least `least`.
#[must_use]
pub fn is_strained(held: u32, looked_at: u32, least: u32) -> bool {
    held >= least && u64::from(held) * u64::from(PART) > u64::from(looked_at)
}

/// What to record about an agent that a sweep found strained; `None` if the `known` record is enough.
#[must_use]
pub fn next(known: Option<&Strain>, held: u32, looked_at: u32, now: Timestamp) -> Option<Strain> {
    // An unsent alert also covers later trouble.
    let Some(known) = known.filter(|known| known.is_on(now) || known.alert_owed) else {
        return Some(Strain { since: now, last: now, stretch: 2, held, looked_at, alert_owed: true });
    };
    let is_new_window = plus(known.last, WINDOW) <= now;
    let stretch = if known.is_on(now) { known.stretch.saturating_mul(2).min(MAX_STRETCH) } else { 2 };
    is_new_window.then(|| Strain { last: now, stretch, held, looked_at, ..known.clone() })
}
