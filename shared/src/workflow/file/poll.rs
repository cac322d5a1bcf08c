//! The `poll` of a step.

use super::{Problem, RawStep, advice, mapped, span_of};
use crate::time::SignedDuration;
use crate::workflow::poll::{Look, Poll};
use crate::workflow::wait::{MAX_WAIT, Time};
use serde::Deserialize;
use toml::Spanned;

const MIN_EVERY: SignedDuration = SignedDuration::from_secs(1);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawPoll {
    every: Spanned<Time>,
    #[serde(rename = "for")]
    within: Spanned<Time>,
    done: Spanned<String>,
    failed: Option<Spanned<String>>,
}

pub(super) fn build(spanned: &Spanned<RawPoll>, step: &RawStep) -> Result<Poll, Problem> {
    let raw = spanned.get_ref();
    let (every, within) = (raw.every.get_ref().0, raw.within.get_ref().0);
    if !(MIN_EVERY..=MAX_WAIT).contains(&every) {
        let message = format!("`every` of {} is out of range; write a time from 1s to 366d", advice::time(every));
        return Err((raw.every.span(), message));
    }
    if within <= every || within > MAX_WAIT {
        let message =
            format!("`for` of {} is out of range; write a time above `every`, at most 366d", advice::time(within));
        return Err((raw.within.span(), message));
    }
    let others = [
        ("retry", span_of(&step.retry), "looks again at fixed times, whatever the last answer was"),
        ("late", span_of(&step.late), "looks again when an answer is late"),
    ];
    if let Some((key, span, why)) = others.into_iter().find_map(|(key, span, why)| Some((key, span?, why))) {
        return Err((span, format!("a step that polls {why}, so it takes no `{key}`; remove `{key}`")));
    }
    let done = mapped::condition(Some(&raw.done), "done")?.expect("it is given");
    let alert = step.alerts();
    Ok(Poll { every, within, alert, look: Look { done, failed: mapped::condition(raw.failed.as_ref(), "failed")? } })
}
