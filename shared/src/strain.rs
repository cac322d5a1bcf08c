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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: i64) -> Timestamp {
        Timestamp::from_second(s).unwrap()
    }

    fn secs(s: i64) -> SignedDuration {
        SignedDuration::from_secs(s)
    }

    fn strain(last: i64, stretch: u32) -> Strain {
        Strain { since: at(0), last: at(last), stretch, held: 10, looked_at: 20, alert_owed: false }
    }

    // J1: the boundary is exact: a fifth is not strained, more than a fifth is; and there is a least number.
    #[test]
    fn more_than_a_fifth_is_strained_and_a_fifth_is_not() {
        let table = [
            (10, 50, false),
            (10, 49, true),
            (11, 50, true),
            (9, 9, false),
            (10, 10, true),
            (200, 1000, false),
            (201, 1000, true),
            (0, 0, false),
            (u32::MAX, u32::MAX, true),
        ];
        for (held, looked_at, expected) in table {
            assert_eq!(is_strained(held, looked_at, LEAST), expected, "{held} of {looked_at}");
        }
        assert!(is_strained(3, 10, 3) && !is_strained(2, 9, 3), "the least number is a setting");
    }

    // J1: doubled with each strained window, bounded; sweeps within a window are one.
    #[test]
    fn the_stretch_doubles_by_the_window_up_to_its_bound() {
        let first = next(None, 12, 30, at(0)).unwrap();
        assert_eq!((first.stretch, first.since, first.alert_owed), (2, at(0), true));
        let sent = Strain { alert_owed: false, ..first };
        assert_eq!(next(Some(&sent), 25, 30, at(29)), None, "the same window");
        let mut known = sent;
        for (now, stretch) in [(30, 4), (60, 8), (90, 8), (400, 8)] {
            known = next(Some(&known), 25, 31, at(now)).unwrap();
            assert_eq!((known.stretch, known.since, known.last), (stretch, at(0), at(now)));
            assert_eq!((known.held, known.looked_at, known.alert_owed), (25, 31, false), "told once");
        }
    }

    // F2: one alert for an episode; the next episode begins after a quiet time, with a separate alert.
    #[test]
    fn an_episode_ends_after_a_quiet_time() {
        let known = strain(100, 8);
        assert!(known.is_on(at(699)) && !known.is_on(at(700)));
        let within = next(Some(&known), 10, 10, at(699)).unwrap();
        assert_eq!((within.since, within.stretch, within.alert_owed), (at(0), 8, false));
        let after = next(Some(&known), 10, 10, at(700)).unwrap();
        assert_eq!((after.since, after.stretch, after.alert_owed), (at(700), 2, true));
    }

    // F3: while the alert is owed it is one episode, however long the bus is away.
    #[test]
    fn an_episode_with_an_alert_owed_does_not_end() {
        let owed = Strain { alert_owed: true, ..strain(100, 8) };
        let later = next(Some(&owed), 10, 10, at(5000)).unwrap();
        assert_eq!((later.since, later.stretch, later.alert_owed), (at(0), 2, true));
    }

    // J1: a back-off is multiplied, up to a bound; one that is longer by itself is left alone.
    #[test]
    fn back_offs_are_stretched_up_to_a_bound_and_only_during_the_episode() {
        let table = [
            (secs(0), 8, secs(0)),
            (secs(1), 2, secs(2)),
            (secs(15), 8, secs(120)),
            (secs(60), 8, MAX_WAIT),
            (secs(600), 2, secs(600)),
            (SignedDuration::MAX, 8, SignedDuration::MAX),
        ];
        for (wait, stretch, expected) in table {
            assert_eq!(strain(0, stretch).stretch(wait, at(1)), expected, "{wait} x {stretch}");
            assert_eq!(strain(0, stretch).stretch(wait, at(600)), wait, "the episode is over");
        }
    }
}
