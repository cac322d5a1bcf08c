//! The `heartbeat` of a step or an undo.

use super::{Problem, RawStep, advice, span_of};
use crate::time::SignedDuration;
use crate::workflow::beat::window;
use crate::workflow::wait::Time;
use toml::Spanned;

/// Longest timeout of an attempt with heartbeats.
pub(super) const MAX_TIMEOUT: SignedDuration = SignedDuration::from_hours(24 * 30);
const MIN_EVERY: SignedDuration = SignedDuration::from_secs(1);
const MAX_EVERY: SignedDuration = SignedDuration::from_hours(1);

pub(super) fn build(
    every: &Spanned<Time>,
    step: &RawStep,
    is_call: bool,
    timeout: SignedDuration,
) -> Result<SignedDuration, Problem> {
    let others = [
        ("late", span_of(&step.late), "gets more time through its heartbeats"),
        ("poll", span_of(&step.poll), "has one long attempt"),
    ];
    if let Some((key, span, why)) = others.into_iter().find_map(|(key, span, why)| Some((key, span?, why))) {
        return Err((span, format!("a step with a `heartbeat` {why}, so it takes no `{key}`; remove one of the two")));
    }
    checked(every, is_call, timeout)
}

/// The heartbeat interval of a user's own agent with this timeout.
pub(super) fn checked(
    every: &Spanned<Time>,
    is_call: bool,
    timeout: SignedDuration,
) -> Result<SignedDuration, Problem> {
    let Time(time) = *every.get_ref();
    if is_call {
        let message = "a call to a URL or to AWS sends no heartbeats; use your own agent, or `accept` or `poll`";
        return Err((every.span(), message.into()));
    }
    if !(MIN_EVERY..=MAX_EVERY).contains(&time) {
        return Err((
            every.span(),
            format!("a heartbeat of {} is out of range; write one from 1s to 1h", advice::time(time)),
        ));
    }
    if window(time) >= timeout {
        let message = format!(
            "two heartbeats of {time:#} take the whole timeout of {timeout:#}; write a shorter heartbeat, or remove it"
        );
        return Err((every.span(), message));
    }
    Ok(time)
}
