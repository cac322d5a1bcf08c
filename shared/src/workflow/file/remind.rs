//! The `remind` of a step that waits.

use super::{Around, Problem, RawRemind, Time, advice, list, mapped, retry, who_does};
use crate::retry::Calls;
use crate::time::SignedDuration;
use crate::workflow::http::IDEMPOTENCY_KEY;
use crate::workflow::remind::Remind;
use toml::Spanned;

/// Usual reminders of a wait.
const TIMES: u32 = 10;
const MAX_TIMES: u32 = 100;
const MIN_EVERY: SignedDuration = SignedDuration::from_secs(1);

/// The reminders of a step that waits for at most `timeout`.
pub(super) fn build(
    spanned: &Spanned<RawRemind>,
    timeout: SignedDuration,
    calls: Calls,
    around: Around<'_>,
) -> Result<Remind, Problem> {
    let raw = spanned.get_ref();
    let Time(every) = *raw.every.get_ref();
    if every < MIN_EVERY {
        let message = format!("`every` of {} is too short for reminders; write 1s or more", advice::time(every));
        return Err((raw.every.span(), message));
    }
    if every >= timeout {
        let message = format!(
            "the first reminder would come after {every:#}, and the step waits for at most {timeout:#}; write a shorter \
             `every`"
        );
        return Err((raw.every.span(), message));
    }
    let times = raw.times.as_ref().map_or(TIMES, |times| *times.get_ref());
    if !(1..=MAX_TIMES).contains(&times) {
        let at = raw.times.as_ref().map_or_else(|| spanned.span(), Spanned::span);
        return Err((at, format!("`times` of `remind` cannot be {times}; write 1 to {MAX_TIMES}")));
    }
    let Some(mut doer) = who_does(&raw.agent, &raw.http, &raw.lambda, &raw.aws, None, around)? else {
        let message = format!(
            "`remind` does not say who reminds; add `agent = \"NAME\"` with one of {}, or `http = \"URL\"`",
            list(around.known.agents)
        );
        return Err((spanned.span(), message));
    };
    if doer.http.as_ref().is_some_and(|http| http.headers.contains_key(IDEMPOTENCY_KEY)) {
        let message = format!("every reminder gets its own {IDEMPOTENCY_KEY}; remove that header");
        return Err((spanned.span(), message));
    }
    let with = mapped::with(raw.with.as_ref(), raw.form, &mut doer, spanned.span())?;
    let calls = retry::calls(raw.calls.as_ref(), calls)?;
    Ok(Remind { every, times, agent: doer.agent, http: doer.http, aws: doer.aws, with, calls })
}
