//! How long an attempt at a step may take, and how it is repeated: `timeout`, `retry`, `late` and `calls`.

use super::{Problem, RawCalls, RawRetry, advice, beat};
use crate::retry::{Calls, Ladder, Late, Then};
use crate::time::SignedDuration;
use crate::workflow::wait::Time;
use toml::Spanned;

pub(super) const MAX_TIMEOUT: SignedDuration = SignedDuration::from_hours(12);
const MIN_TIMEOUT: SignedDuration = SignedDuration::from_millis(50);
const MAX_WAIT: SignedDuration = SignedDuration::from_hours(24 * 30);
const MAX_ATTEMPTS: u32 = 1000;

pub(super) const DEFAULT_CALLS: Calls =
    Calls { attempts: 5, base: SignedDuration::from_millis(100), cap: SignedDuration::from_secs(5) };

/// The back-off of a step that sets none: 1, 5, 10, 30 and 60 minutes, as in the retry queue.
fn default_backoff() -> Vec<SignedDuration> {
    [1, 5, 10, 30, 60].map(SignedDuration::from_mins).to_vec()
}

/// SQS can hide a message for 12 hours. With heartbeats no request is kept so long.
pub(super) fn check_timeout(timeout: &Spanned<Time>, has_heartbeat: bool) -> Result<(), Problem> {
    let Time(time) = timeout.get_ref();
    let (most, words) = match has_heartbeat {
        true => (beat::MAX_TIMEOUT, "30d"),
        false => (MAX_TIMEOUT, "12h, or add a `heartbeat`"),
    };
    if (MIN_TIMEOUT..=most).contains(time) {
        return Ok(());
    }
    Err((
        timeout.span(),
        format!("the timeout {} is out of range; write one from 50ms to {words}", advice::time(*time)),
    ))
}

pub(super) fn ladder(raw: Option<&Spanned<RawRetry>>, then: Then) -> Result<Ladder, Problem> {
    // One more than intervals.
    let usual = |backoff: &[_]| u32::try_from(backoff.len()).unwrap_or(MAX_ATTEMPTS).saturating_add(1);
    let Some(spanned) = raw else {
        let backoff = default_backoff();
        return Ok(Ladder { max: usual(&backoff), backoff, long: None, then });
    };
    let raw = spanned.get_ref();
    let backoff = raw.backoff.clone().unwrap_or_else(default_backoff);
    let max = raw.max.unwrap_or_else(|| usual(&backoff));
    let long_times = raw.long.map_or(0, |l| l.times);
    if max == 0 || max.saturating_add(long_times) > MAX_ATTEMPTS {
        return Err((
            spanned.span(),
            format!("{max} attempts and {long_times} long ones are out of range; write 1 to {MAX_ATTEMPTS} in all"),
        ));
    }
    for wait in backoff.iter().chain(raw.long.as_ref().map(|l| &l.every)) {
        if !(SignedDuration::ZERO..=MAX_WAIT).contains(wait) {
            return Err((
                spanned.span(),
                format!("the wait {} is out of range; write one from 0s to 720h", advice::time(*wait)),
            ));
        }
    }
    if max > 1 && backoff.is_empty() {
        return Err((
            spanned.span(),
            "`backoff` is empty; write at least one wait, for example [\"1m\", \"5m\"]".into(),
        ));
    }
    Ok(Ladder { max, backoff, long: raw.long, then: raw.then.unwrap_or(then) })
}

pub(super) fn late(raw: Option<&Spanned<Late>>) -> Result<Option<Late>, Problem> {
    let Some(spanned) = raw else { return Ok(None) };
    let late = *spanned.get_ref();
    if (MIN_TIMEOUT..=MAX_TIMEOUT).contains(&late.extend) && (1..=MAX_ATTEMPTS).contains(&late.times) {
        return Ok(Some(late));
    }
    let message = format!(
        "`late` needs extend from 50ms to 12h and times from 1 to {MAX_ATTEMPTS}; for example {{ extend = \"30s\", times = 2 }}"
    );
    Err((spanned.span(), message))
}

pub(super) fn calls(raw: Option<&Spanned<RawCalls>>, default: Calls) -> Result<Calls, Problem> {
    let Some(spanned) = raw else { return Ok(default) };
    let raw = spanned.get_ref();
    let calls = Calls {
        attempts: raw.attempts.unwrap_or(default.attempts),
        base: raw.base.unwrap_or(default.base),
        cap: raw.cap.unwrap_or(default.cap),
    };
    let good = (1..=100).contains(&calls.attempts)
        && calls.base > SignedDuration::ZERO
        && calls.base <= calls.cap
        && calls.cap <= SignedDuration::from_mins(15);
    if good {
        return Ok(calls);
    }
    Err((spanned.span(), "`calls` needs attempts from 1 to 100 and 0s < base <= cap <= 15m; for example { attempts = 5, base = \"100ms\", cap = \"5s\" }".into()))
}
