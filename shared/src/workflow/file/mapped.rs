//! The parts of a step that expressions fill.

use super::{Doer, Problem, RawStep, aws};
use crate::expression::{Expression, Fault, Mapping, Names, Template};
use crate::time::Timestamp;
use crate::workflow::http::Body;
use crate::workflow::wait::Wait;
use serde_json::Value;
use std::ops::Range;
use toml::Spanned;

/// Keys of a step that TOML would add to the table above them.
const KEYS: [&str; 38] = [
    "agent",
    "http",
    "lambda",
    "aws",
    "workflow",
    "each",
    "at_once",
    "batch",
    "tolerate",
    "value",
    "fail",
    "wait",
    "until",
    "event",
    "take",
    "early",
    "people",
    "failed",
    "link",
    "remind",
    "alert",
    "accept",
    "poll",
    "pages",
    "heartbeat",
    "after",
    "when",
    "with",
    "form",
    "output",
    "catch",
    "timeout",
    "retry",
    "late",
    "calls",
    "on_failure",
    "irreversible",
    "undo",
];

/// Most expressions in one mapping; a long list makes each slow.
const MAX_EXPRESSIONS: usize = 200;

/// The condition in the key `what`.
pub(super) fn condition(raw: Option<&Spanned<String>>, what: &str) -> Result<Option<Expression>, Problem> {
    let Some(raw) = raw else { return Ok(None) };
    if raw.get_ref().starts_with("${") {
        let message = format!("`{what}` is already an expression; write it without `${{` and `}}`");
        return Err((raw.span(), message));
    }
    Expression::condition(raw.get_ref()).map(Some).map_err(|fault| wrong(raw.span(), what, &fault))
}

pub(super) fn template(raw: &Spanned<String>, what: &str) -> Result<Template, Problem> {
    Template::parse(raw.get_ref()).map_err(|fault| wrong(raw.span(), what, &fault))
}

/// How long, or until when, a step waits.
pub(super) fn time(raw: &Spanned<toml::Value>, wait: fn(Mapping) -> Wait) -> Result<Wait, Problem> {
    let key = wait(Mapping::Constant(Value::Null)).key();
    if matches!(raw.get_ref(), toml::Value::Boolean(_) | toml::Value::Array(_) | toml::Value::Table(_)) {
        return Err((raw.span(), format!("`{key}` takes a time; write for example `wait = \"2d\"`")));
    }
    let mapping = mapping(raw, key)?;
    let (is_constant, value) = (mapping.is_constant(), mapping.evaluate(&Names::new()));
    let wait = wait(mapping);
    if is_constant {
        // A fixed time may be far away when the file is read.
        let now = if matches!(wait, Wait::For(_)) { Timestamp::UNIX_EPOCH } else { Timestamp::MAX };
        let end = wait.end_of(&value.unwrap_or_default(), now);
        end.map_err(|why| (raw.span(), format!("`{key}`: {why}")))?;
    }
    Ok(wait)
}

pub(super) fn mapping(raw: &Spanned<toml::Value>, what: &str) -> Result<Mapping, Problem> {
    let value = json(raw.get_ref()).map_err(|words| (raw.span(), format!("`{what}` {words}")))?;
    let text = value.to_string();
    if let Some((name, instead)) =
        [("{order_id}", "${order.id}"), ("{step}", "the step's name"), ("{secret:", "a header")]
            .into_iter()
            .find(|(name, _)| text.contains(name))
    {
        let message = format!("`{what}`: `{name}` is replaced only in a URL or a header; write {instead} instead");
        return Err((raw.span(), message));
    }
    let mapping = Mapping::from_json(&value).map_err(|fault| wrong(raw.span(), what, &fault))?;
    match mapping.expressions() {
        ..=MAX_EXPRESSIONS => Ok(mapping),
        count => {
            let message = format!(
                "`{what}` has {count} expressions, but the limit is {MAX_EXPRESSIONS}; compute a part in a `value` \
                 step before this one"
            );
            Err((raw.span(), message))
        }
    }
}

fn wrong(at: Range<usize>, what: &str, fault: &Fault) -> Problem {
    (at, format!("`{what}`: {fault}"))
}

/// The `with` of a step or an undo. `at` is where to report a `form` without it.
pub(super) fn with(
    raw: Option<&Spanned<toml::Value>>,
    form: bool,
    doer: &mut Doer,
    at: Range<usize>,
) -> Result<Option<Mapping>, Problem> {
    let Some(raw) = raw else {
        if form {
            return Err((
                at,
                "`form` says how `with` is sent, but the step has no `with`; add `with = { ... }`".into(),
            ));
        }
        return match &mut doer.aws {
            Some(aws) if aws.function.is_some() => {
                aws.envelope = true;
                Ok(None)
            }
            Some(aws) => {
                let message = format!("`{}` gets its parameters from `with`; add `with = {{ ... }}`", aws.action);
                Err((at, message))
            }
            None => Ok(None),
        };
    };
    let mapping = mapping(raw, "with")?;
    let is_table = raw.get_ref().is_table();
    if !is_table && !raw.get_ref().is_str() {
        return Err((raw.span(), "`with` is neither a table nor a string; write `with = { key = \"value\" }`".into()));
    }
    if let Some(aws) = &doer.aws {
        aws::check_with(aws, &mapping).map_err(|words| (raw.span(), words))?;
    }
    match &mut doer.http {
        Some(http) if matches!(http.method.as_str(), "GET" | "DELETE") => {
            let message = format!("a {} has no body; write `query` in `http` instead of `with`", http.method);
            return Err((raw.span(), message));
        }
        Some(_) if form && !is_table => {
            return Err((raw.span(), "a form is a table; write `with = { key = \"value\" }`".into()));
        }
        Some(http) => http.body = Some(if form { Body::Form } else { Body::Json }),
        None if form => {
            return Err((raw.span(), "only a step with `http` sends a form; remove `form`".into()));
        }
        None => {}
    }
    Ok(Some(mapping))
}

/// The `output` of a step; for a URL it goes to the call, because the whole answer is not sent on.
pub(super) fn output(raw: Option<&Spanned<toml::Value>>, doer: &mut Doer) -> Result<Option<Mapping>, Problem> {
    let Some(raw) = raw else { return Ok(None) };
    let mapping = mapping(raw, "output")?;
    if let Some(aws) = &mut doer.aws {
        aws.keep = Some(mapping);
        return Ok(None);
    }
    let Some(http) = &mut doer.http else { return Ok(Some(mapping)) };
    if http.output.is_some() {
        return Err((raw.span(), "the step has an `output`, and so has its `http`; keep one of the two".into()));
    }
    http.keep = Some(mapping);
    Ok(None)
}

/// Refuses keys below `[step.with]` that were meant for the step. `text` is the whole file.
pub(super) fn check_tables(steps: &[Spanned<RawStep>], text: &str) -> Result<(), Problem> {
    for step in steps.iter().map(Spanned::get_ref) {
        let undo = step.undo.as_ref().and_then(|undo| undo.get_ref().with.as_ref());
        let all = [("with", step.with.as_ref()), ("output", step.output.as_ref()), ("value", step.value.as_ref())];
        for (what, raw) in all.into_iter().chain([("undo.with", undo)]) {
            let Some(raw) = raw else { continue };
            let is_inline = text.get(raw.span()).is_some_and(|written| written.starts_with('{'));
            let Some(table) = raw.get_ref().as_table().filter(|_| !is_inline) else { continue };
            if let Some(key) = table.keys().find(|key| KEYS.contains(&key.as_str())) {
                let message = format!(
                    "`{key}` is a key of a step, but below `[step.{what}]` it is part of that table; write `{what} = \
                     {{ ... }}` within the step instead"
                );
                return Err((raw.span(), message));
            }
        }
    }
    Ok(())
}

/// A TOML value as JSON.
pub(super) fn json(value: &toml::Value) -> Result<Value, String> {
    serde_json::to_value(value).map_err(|e| e.to_string()).and_then(|json| match has_date(value) {
        true => Err("has a date without quotes; write it as a string".into()),
        false => Ok(json),
    })
}

fn has_date(value: &toml::Value) -> bool {
    match value {
        toml::Value::Datetime(_) => true,
        toml::Value::Array(list) => list.iter().any(has_date),
        toml::Value::Table(table) => table.values().any(has_date),
        toml::Value::String(_) | toml::Value::Integer(_) | toml::Value::Float(_) | toml::Value::Boolean(_) => false,
    }
}
