//! The `accept` of a step.

use super::{Problem, RawStep, advice, mapped};
use crate::expression::Expression;
use crate::time::SignedDuration;
use crate::workflow::accept::{Accept, USUAL};
use crate::workflow::wait::{MAX_WAIT, Time};
use serde::Deserialize;
use toml::Spanned;

const MIN_WITHIN: SignedDuration = SignedDuration::from_secs(1);
const USUAL_WITHIN: SignedDuration = SignedDuration::from_hours(7 * 24);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAccept {
    within: Option<Spanned<Time>>,
    when: Option<Spanned<String>>,
}

/// `is_read`: the answer is read here, not by the user's own agent.
pub(super) fn build(spanned: &Spanned<RawAccept>, step: &RawStep, is_read: bool) -> Result<Accept, Problem> {
    let raw = spanned.get_ref();
    let within = raw.within.as_ref().map_or(USUAL_WITHIN, |within| within.get_ref().0);
    if !(MIN_WITHIN..=MAX_WAIT).contains(&within) {
        let span = raw.within.as_ref().map_or_else(|| spanned.span(), Spanned::span);
        return Err((
            span,
            format!("`within` of {} is out of range; write a time from 1s to 366d", advice::time(within)),
        ));
    }
    if let Some(poll) = &step.poll {
        let message = "the step has both `accept` and `poll`; poll in a step after this one, or remove one of the two";
        return Err((poll.span(), message.into()));
    }
    let when = match &raw.when {
        Some(when) if !is_read => {
            let message =
                "your own agent reports with the outcome `accepted` that it only accepted the work; remove `when`";
            return Err((when.span(), message.into()));
        }
        None if !is_read => None,
        None if step.http.is_none() => {
            let message = "a call to AWS always answers 200; say in `when` which answers only accept the work, for example `when = \"true\"`";
            return Err((spanned.span(), message.into()));
        }
        None => Some(Expression::condition(USUAL).expect("it is valid")),
        when => mapped::condition(when.as_ref(), "when")?,
    };
    Ok(Accept { within, when, alert: step.alerts() })
}
