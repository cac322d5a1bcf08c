//! A circuit breaker: after consecutive failures it holds back calls to a remote service, then lets one probe.

use crate::time::{plus, until};
use jiff::{SignedDuration, Timestamp};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Consecutive failures that open it.
    pub failures: u32,
    /// How long it stays open; doubled after each failed probe, up to `longest`.
    pub open_for: SignedDuration,
    /// Upper bound of the doubling.
    pub longest: SignedDuration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { failures: 10, open_for: SignedDuration::from_secs(2), longest: SignedDuration::from_secs(60) }
    }
}

#[derive(Clone, Copy, Debug)]
enum State {
    Closed {
        failures: u32,
    },
    Open {
        until: Timestamp,
        open_for: SignedDuration,
    },
    /// One call is probing; others wait until `until`, in case it never returns.
    Probing {
        until: Timestamp,
        open_for: SignedDuration,
    },
}

/// Longest text about what opened a breaker, in bytes. With the words around it, it fits a history entry.
const MAX_WHY: usize = 150;

/// Why a call is not made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Time until the next call may be made.
    pub wait: SignedDuration,
    /// What opened the breaker, in words.
    pub why: String,
}

/// What a breaker did, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It opened, or stays open after a failed probe.
    Opened,
    /// It lets one call probe.
    HalfOpened,
    /// It closed: the service answers again.
    Closed,
}

/// The breaker of one remote service in this process.
#[derive(Debug)]
pub struct Breaker {
    agent: String,
    settings: Settings,
    observer: fn(&str, Turn),
    /// With the last failed call's error, for calls that an open breaker holds back.
    state: Mutex<(State, String)>,
}

impl Breaker {
    /// A closed breaker of the agent called `agent`.
    #[must_use]
    pub fn new(agent: &str, settings: Settings) -> Self {
        let state = Mutex::new((State::Closed { failures: 0 }, String::new()));
        Self { agent: agent.to_owned(), settings, observer: |_, _| {}, state }
    }

    /// This breaker, calling `observer` with the agent's name at each turn.
    #[must_use]
    pub fn observed(self, observer: fn(&str, Turn)) -> Self {
        Self { observer, ..self }
    }

    fn state(&self) -> MutexGuard<'_, (State, String)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks to make a call.
    ///
    /// # Errors
    /// The time to wait and what opened it, if it is open or another call probes.
    pub fn enter(&self, now: Timestamp) -> Result<(), Held> {
        let (state, why) = &mut *self.state();
        match *state {
            State::Closed { .. } => Ok(()),
            State::Open { until: end, .. } | State::Probing { until: end, .. } if now < end => {
                Err(Held { wait: until(now, end), why: why.clone() })
            }
            State::Open { open_for, .. } | State::Probing { open_for, .. } => {
                *state = State::Probing { until: plus(now, open_for), open_for };
                (self.observer)(&self.agent, Turn::HalfOpened);
                Ok(())
            }
        }
    }

    /// The remote service answered.
    pub fn succeeded(&self) {
        let before = std::mem::replace(&mut self.state().0, State::Closed { failures: 0 });
        if !matches!(before, State::Closed { .. }) {
            (self.observer)(&self.agent, Turn::Closed);
            tracing::info!(agent = self.agent, "a circuit breaker closed");
        }
    }

    /// It did not answer, or reported that it cannot. Orders of every tenant may show `error`.
    pub fn failed(&self, now: Timestamp, error: &str) {
        let (state, why) = &mut *self.state();
        let was_open = matches!(*state, State::Open { .. });
        *state = match *state {
            State::Closed { failures } if failures + 1 < self.settings.failures => {
                State::Closed { failures: failures + 1 }
            }
            State::Closed { .. } => {
                let open_for = self.settings.open_for;
                State::Open { until: plus(now, open_for), open_for }
            }
            State::Probing { open_for, .. } => {
                let open_for = open_for.checked_mul(2).unwrap_or(self.settings.longest).min(self.settings.longest);
                State::Open { until: plus(now, open_for), open_for }
            }
            // The call began before it opened.
            open @ State::Open { .. } => open,
        };
        if let (State::Open { open_for, .. }, false) = (*state, was_open) {
            *why =
                format!("{} calls in a row failed, the last one: {}", self.settings.failures, shorten(error, MAX_WHY));
            (self.observer)(&self.agent, Turn::Opened);
            tracing::warn!(agent = self.agent, open_ms = open_for.as_millis(), "a circuit breaker opened");
        }
    }

    /// It was not called after all. A probe that never began gives its turn to the next call.
    pub fn withdrawn(&self, now: Timestamp) {
        let (state, _) = &mut *self.state();
        if let State::Probing { open_for, .. } = *state {
            *state = State::Open { until: now, open_for };
        }
    }

    /// How long it stays open, if it is open.
    #[must_use]
    pub fn open_for(&self, now: Timestamp) -> Option<SignedDuration> {
        match self.state().0 {
            State::Closed { .. } => None,
            State::Open { until: end, .. } | State::Probing { until: end, .. } => Some(until(now, end)),
        }
    }
}

/// `text`, cut to at most `max` bytes.
fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    format!("{}...", &text[..text.floor_char_boundary(max.saturating_sub(3))])
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

    fn held(breaker: &Breaker, now: Timestamp) -> Option<SignedDuration> {
        breaker.enter(now).err().map(|held| held.wait)
    }

    // E4: a call that is held back learns what opened it; an earlier call that fails later does not change that.
    #[test]
    fn an_open_breaker_says_what_opened_it() {
        let breaker = Breaker::new("payment", Settings { failures: 2, open_for: secs(2), longest: secs(9) });
        breaker.failed(at(0), "500");
        breaker.failed(at(0), "503 Service Unavailable");
        breaker.failed(at(0), "of a call that began before");
        let held = breaker.enter(at(1)).unwrap_err();
        assert_eq!(held.why, "2 calls in a row failed, the last one: 503 Service Unavailable");
        assert_eq!(breaker.enter(at(2)), Ok(()), "the probe");
        breaker.failed(at(2), &"x".repeat(1000));
        let held = breaker.enter(at(3)).unwrap_err();
        assert!(held.why.ends_with("xxx...") && held.why.len() < MAX_WHY + 50, "{}", held.why);
    }

    // E4: opens after failures in a row, lets one probe through, doubles, closes on success.
    #[test]
    fn a_breaker_opens_probes_and_closes() {
        let breaker = Breaker::new("payment", Settings { failures: 3, open_for: secs(2), longest: secs(3) });
        breaker.failed(at(0), "503");
        breaker.failed(at(0), "503");
        breaker.succeeded();
        for _ in 0..3 {
            assert_eq!(breaker.enter(at(0)), Ok(()));
            breaker.failed(at(0), "503");
        }
        assert_eq!(held(&breaker, at(1)), Some(secs(1)));
        assert_eq!(breaker.open_for(at(1)), Some(secs(1)));
        assert_eq!(breaker.enter(at(2)), Ok(()), "the probe");
        assert_eq!(held(&breaker, at(2)), Some(secs(2)), "only one probe at a time");
        breaker.failed(at(2), "503");
        assert_eq!(held(&breaker, at(4)), Some(secs(1)), "twice as long, at most three seconds");
        assert_eq!(breaker.enter(at(5)), Ok(()));
        breaker.succeeded();
        assert_eq!(breaker.enter(at(5)), Ok(()));
        assert_eq!(breaker.open_for(at(5)), None);
    }

    // E4: a call that was not made counts neither way, and takes no other call's turn.
    #[test]
    fn a_call_that_was_not_made_changes_nothing() {
        let breaker = Breaker::new("payment", Settings { failures: 2, open_for: secs(2), longest: secs(9) });
        breaker.failed(at(0), "503");
        for _ in 0..3 {
            breaker.withdrawn(at(0));
        }
        assert_eq!(breaker.enter(at(0)), Ok(()), "it is no failure");
        breaker.failed(at(0), "503");
        assert_eq!(held(&breaker, at(1)), Some(secs(1)), "nor is it an answer");
        breaker.withdrawn(at(1));
        assert_eq!(held(&breaker, at(1)), Some(secs(1)));
        assert_eq!(breaker.enter(at(2)), Ok(()), "the probe");
        breaker.withdrawn(at(2));
        assert_eq!(breaker.enter(at(2)), Ok(()), "the next one probes");
        assert_eq!(held(&breaker, at(2)), Some(secs(2)));
        breaker.failed(at(2), "503");
        assert_eq!(held(&breaker, at(5)), Some(secs(1)), "doubled, as after any probe");
    }

    // E4: a probe that never returns does not keep the breaker open forever.
    #[test]
    fn a_lost_probe_is_followed_by_another() {
        let breaker = Breaker::new("payment", Settings { failures: 1, open_for: secs(2), longest: secs(9) });
        breaker.failed(at(0), "503");
        assert_eq!(breaker.enter(at(2)), Ok(()));
        assert_eq!(breaker.enter(at(4)), Ok(()));
    }
}
