//! What a step does on its own, without an agent: it computes, fails, waits or starts another order.

use super::{MAX_DEADLINE, MIN_DEADLINE, Problem, RawStep, advice, check_name, each, link, mapped, only, span_of};
use crate::expression::{Mapping, Template};
use crate::time::SignedDuration;
use crate::workflow::child::Child;
use crate::workflow::each::Each;
use crate::workflow::wait::{Awaited, MAX_PEOPLE, Wait};
use toml::Spanned;

/// A step that calls nothing: it computes, fails, waits or starts another order.
#[derive(Default)]
pub(super) struct Own {
    pub(super) value: Option<Mapping>,
    pub(super) fail: Option<Template>,
    pub(super) wait: Option<Wait>,
    pub(super) child: Option<Child>,
    /// The list of a step that makes a call per item.
    pub(super) each: Option<Each>,
}

/// The `value`, `fail`, `workflow`, `wait`, `until` or `event` of a step, which has none of an agent's keys.
pub(super) fn own(raw: &RawStep) -> Result<Own, Problem> {
    let keys = [
        ("value", span_of(&raw.value)),
        ("fail", span_of(&raw.fail)),
        ("wait", span_of(&raw.wait)),
        ("until", span_of(&raw.until)),
        ("event", span_of(&raw.event)),
        ("workflow", span_of(&raw.workflow)),
    ];
    let texts = [("take", raw.take.as_ref()), ("early", raw.early.as_ref()), ("failed", raw.failed.as_ref())];
    let people = raw.people.as_ref().map(|people| ("people", people.span()));
    let link = raw.link.as_ref().map(|link| ("link", link.span()));
    let remind = raw.remind.as_ref().map(|remind| ("remind", remind.span()));
    let alert = raw.alert.as_ref().map(|alert| ("alert", alert.span()));
    let of_event = texts.into_iter().find_map(|(key, raw)| Some((key, raw?.span()))).or(people).or(link);
    if let (None, Some((key, span))) = (&raw.event, of_event) {
        return Err((
            span,
            format!("`{key}` is for a step that waits for an event; add `event = \"NAME\"`, or remove it"),
        ));
    }
    let asks = raw.event.is_some() || raw.accept.is_some() || raw.poll.is_some();
    if let (false, Some((key, span))) = (asks, remind.or(alert)) {
        let message = format!("`{key}` is for a step that waits for an event, or has `accept` or `poll`; remove it");
        return Err((span, message));
    }
    let each = each::build(raw)?;
    let Some((kind, span)) = only(keys)? else { return Ok(Own { each, ..Own::default() }) };
    if each.is_some() && kind != "workflow" {
        let message = format!(
            "a step with `{kind}` takes no `each`; write `workflow`, `agent`, `http`, `lambda` or `aws` for each item, \
             or remove `each`"
        );
        return Err((span, message));
    }
    let others = [
        ("agent", span_of(&raw.agent)),
        ("http", span_of(&raw.http)),
        ("lambda", span_of(&raw.lambda)),
        ("aws", span_of(&raw.aws)),
        ("with", span_of(&raw.with)),
        ("output", span_of(&raw.output)),
        ("catch", span_of(&raw.catch)),
        ("undo", span_of(&raw.undo)),
        ("timeout", span_of(&raw.timeout)),
        ("retry", span_of(&raw.retry)),
        ("calls", span_of(&raw.calls)),
        ("late", span_of(&raw.late)),
        ("accept", span_of(&raw.accept)),
        ("poll", span_of(&raw.poll)),
        ("pages", span_of(&raw.pages)),
        ("heartbeat", span_of(&raw.heartbeat)),
        ("irreversible", raw.irreversible.then(|| raw.name.span())),
    ];
    let may_have = |name: &str| match kind {
        "event" => matches!(name, "output" | "catch" | "undo" | "timeout"),
        "workflow" => matches!(name, "with" | "output" | "catch"),
        _ => false,
    };
    let mut others = others.into_iter().filter(|(name, _)| !may_have(name));
    if let Some((other, span)) = others.find_map(|(name, span)| span.map(|span| (name, span))) {
        let what = if kind == "workflow" { "starts an order" } else { "calls nothing" };
        let message = format!("a step with `{kind}` {what}, so it takes no `{other}`; remove `{other}`");
        return Err((span, message));
    }
    let child = raw.workflow.as_ref().map(|name| child(name, each)).transpose()?;
    let wait = raw.wait.as_ref().map(|time| mapped::time(time, Wait::For)).transpose()?;
    let until = raw.until.as_ref().map(|time| mapped::time(time, Wait::Until)).transpose()?;
    Ok(Own {
        each: None,
        value: raw.value.as_ref().map(|value| mapped::mapping(value, "value")).transpose()?,
        fail: raw.fail.as_ref().map(|text| mapped::template(text, "fail")).transpose()?,
        wait: wait.or(until).or(raw.event.as_ref().map(|name| event(name, raw)).transpose()?),
        child,
    })
}

/// The order that a step starts. Whether that workflow exists is checked with all files.
fn child(name: &Spanned<String>, each: Option<Each>) -> Result<Child, Problem> {
    check_name("workflow", name)?;
    Ok(Child { workflow: name.get_ref().clone(), each, call: None })
}

/// The event that a step waits for.
fn event(name: &Spanned<String>, raw: &RawStep) -> Result<Wait, Problem> {
    check_name("event", name)?;
    let refuse_early = match raw.early.as_ref().map(|early| (early.get_ref().as_str(), early.span())) {
        None | Some(("keep", _)) => false,
        Some(("refuse", _)) => true,
        Some((other, span)) => {
            return Err((
                span,
                format!("`early` cannot be `{other}`; write \"refuse\", or leave it out to keep early events"),
            ));
        }
    };
    let take = mapped::condition(raw.take.as_ref(), "take")?;
    let failed = mapped::condition(raw.failed.as_ref(), "failed")?;
    let people = raw.people.as_ref().map(people).transpose()?;
    let alert = raw.alerts();
    let link = raw.link.as_ref().map(|link| link::build(link, raw)).transpose()?;
    Ok(Wait::Event(Awaited { name: name.get_ref().clone(), take, refuse_early, people, alert, failed, link }))
}

/// How many people must send a step's event.
fn people(raw: &Spanned<u32>) -> Result<u8, Problem> {
    let number = *raw.get_ref();
    u8::try_from(number)
        .ok()
        .filter(|people| (1..=MAX_PEOPLE).contains(people))
        .ok_or_else(|| (raw.span(), format!("`people` cannot be {number}; write a number from 1 to {MAX_PEOPLE}")))
}

/// How long a step waits for an event.
pub(super) fn event_timeout(raw: &RawStep) -> Result<SignedDuration, Problem> {
    let name = raw.name.get_ref();
    match raw.timeout.as_ref().map(|timeout| (timeout.get_ref().0, timeout.span())) {
        None => {
            Err((raw.name.span(), format!("step `{name}` would wait forever; add, for example, `timeout = \"24h\"`")))
        }
        Some((timeout, _)) if (MIN_DEADLINE..=MAX_DEADLINE).contains(&timeout) => Ok(timeout),
        Some((timeout, span)) => {
            Err((span, format!("the timeout {} is out of range; write one from 1s to 366d", advice::time(timeout))))
        }
    }
}
