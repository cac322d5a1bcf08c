//! One action on one order.

use crate::Operator;
use edge::problem::{self, Problem};
use edge::whole_number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::decision::{Act, What};
use shared::items::{MAX_EDITED, MAX_ITEMS};
use shared::operator::Outcome;
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::Task;
use shared::workflow::file::MAX_NAME;
use std::borrow::Cow;
use std::collections::BTreeMap;
use stepwarden_aws::telemetry::Chain;

/// Longest name, in bytes. With the reason it fits a history entry.
pub const MAX_BY: usize = 100;
/// Longest name from a token or an identity that is kept whole, in bytes; fits a role's ARN with session.
const MAX_CALLER: usize = 180;
/// Longest reason, in bytes.
pub const MAX_REASON: usize = 180;

/// The body of an action.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Act")]
pub struct Body {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// Name of the step; needed only if the action could apply to several.
    #[schemars(length(max = MAX_NAME))]
    pub step: Option<String>,
    /// For `resubmit`: input that replaces the order's input for that step.
    pub input: Option<Value>,
    /// For `resubmit`: inputs of failed items of a list, each by its number, which counts from 0. With `workflow`, it is the whole
    /// input of the item's order; if the step makes a call, it takes the place of the item.
    pub items: Option<BTreeMap<String, Value>>,
    /// For `mark-done`: what the agent would have returned.
    pub output: Option<Value>,
    /// The version that the person saw: the action is refused if the order has changed since. Versions in which the system only
    /// recorded that it sent an alert or a notice do not count.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub if_version: Option<u64>,
}

impl Operator {
    /// Says which steps the order has instead of `step`.
    pub(crate) async fn no_such_step(&self, id: &Id, step: &str) -> Problem {
        let steps = async {
            let task = self.engine.store.load(id).await.ok()??;
            let workflow = self.engine.workflow(&task.workflow_hash).await.ok()?;
            Some(workflow.steps.iter().map(|step| step.name.as_str()).collect::<Vec<_>>().join(", "))
        };
        let steps = steps.await.map_or_else(String::new, |steps| format!("; its steps are {steps}"));
        problem::invalid_field("step", format!("`{step}` is not a step of this order's workflow{steps}"))
    }
}

/// The names of the actions, as in the routes.
pub const NAMES: [&str; 8] = ["resubmit", "skip", "mark-done", "retry-now", "cancel", "undo", "pause", "resume"];

/// Whether the action called `name` takes a step.
#[must_use]
pub fn takes_step(name: &str) -> bool {
    matches!(name, "resubmit" | "skip" | "mark-done" | "retry-now")
}

/// The action called `name` with the fields of `body`; `None` for another name.
///
/// # Errors
/// A field that this action does not take.
pub fn what(name: &str, body: &Body) -> Option<Result<What, Problem>> {
    let step = || body.step.clone();
    let what = match name {
        "resubmit" => match &body.items {
            None => What::Resubmit { step: step(), input: body.input.clone() },
            Some(_) if body.input.is_some() => {
                let detail = "is for a step, and `items` is for items of its list; leave one of the two out";
                return Some(Err(problem::invalid_field("input", detail)));
            }
            Some(items) => match numbered(items) {
                Ok(inputs) => What::ResubmitItems { step: step(), inputs },
                Err(problem) => return Some(Err(problem)),
            },
        },
        "skip" => What::Skip { step: step() },
        "mark-done" => What::MarkDone { step: step(), output: body.output.clone().unwrap_or_default() },
        "retry-now" => What::RetryNow { step: step() },
        "cancel" => What::Cancel,
        "undo" => What::Undo,
        "pause" => What::Pause,
        "resume" => What::Resume,
        _ => return None,
    };
    let stray = [
        ("step", body.step.is_some() && !takes_step(name)),
        ("input", body.input.is_some() && name != "resubmit"),
        ("items", body.items.is_some() && name != "resubmit"),
        ("output", body.output.is_some() && name != "mark-done"),
    ];
    let stray = stray.into_iter().find(|(_, is_stray)| *is_stray);
    Some(match stray {
        Some((field, _)) => {
            Err(problem::invalid_field(field, format!("`{name}` does not take `{field}`; leave it out")))
        }
        None => Ok(what),
    })
}

fn numbered(items: &BTreeMap<String, Value>) -> Result<BTreeMap<usize, Value>, Problem> {
    let number = |(item, input): (&String, &Value)| match item.parse::<usize>() {
        Ok(number) if number < MAX_ITEMS && number.to_string() == *item => Ok((number, input.clone())),
        _ => {
            let item = shared::history::shorten(item, MAX_NAME);
            Err(problem::invalid_field(
                "items",
                format!("`{item}` is not the number of an item, from 0 to {}", MAX_ITEMS - 1),
            ))
        }
    };
    match items.len() {
        1..=MAX_EDITED => items.iter().map(number).collect(),
        count => Err(problem::invalid_field("items", format!("has {count} items; write 1 to {MAX_EDITED}"))),
    }
}

/// Who and why, checked. A known caller takes precedence over the body's name.
///
/// # Errors
/// A field that is missing or too long.
pub fn who_and_why(subject: Option<&str>, by: Option<&str>, reason: Option<&str>) -> Result<(String, String), Problem> {
    let text = |field: &'static str, text: Option<&str>, most: usize| {
        let text = text.map(str::trim).filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| problem::invalid_field(field, "is required; it is kept in the history"))?;
        if text.len() > most {
            return Err(problem::invalid_field(field, format!("must have at most {most} bytes")));
        }
        Ok(text.to_owned())
    };
    let told = if by.is_some() || subject.is_none() { text("by", by, MAX_BY)? } else { String::new() };
    let by = subject.map_or(told, |subject| shared::history::shorten(subject, MAX_CALLER));
    Ok((by, text("reason", reason, MAX_REASON)?))
}

/// The answer to an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ActDone")]
pub struct Done {
    /// The order.
    pub order_id: Id,
    /// `applied`, or `repeated` if it was already done.
    #[schemars(extend("enum" = ["applied", "repeated"]))]
    pub outcome: Cow<'static, str>,
    /// The order's version now, also the ETag.
    pub version: u64,
}

/// Name and reason only.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WhoAndWhy")]
pub struct Why {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
}

impl Operator {
    /// The task of the order called `id`.
    ///
    /// # Errors
    /// There is no such order, or the store failed.
    pub(crate) async fn known(&self, id: &str) -> Result<Task, Problem> {
        let task = match Id::parse(id) {
            Some(id) => self.engine.store.load(&id).await.map_err(|e| unavailable(&e))?,
            None => None,
        };
        task.ok_or_else(|| no_such_order(id))
    }

    /// Does one action.
    pub async fn act(&self, id: Id, act: Act) -> Result<Outcome, Error> {
        tracing::info!(task.id = %id, operator = %act.by, "asked to {}", verb(&act.what));
        let mut all = self.engine.act(vec![(id, act)]).await;
        all.pop().expect("one answer for one action")
    }
}

pub(crate) fn no_such_order(id: &str) -> Problem {
    problem::no_such_order("order_id", format!("`{id}` is not the id of a known order"))
}

fn verb(what: &What) -> &'static str {
    match what {
        What::Resubmit { .. } | What::ResubmitItems { .. } => "resubmit",
        What::Skip { .. } => "skip a step",
        What::MarkDone { .. } => "mark a step done",
        What::RetryNow { .. } => "retry now",
        What::Cancel => "cancel",
        What::Undo => "undo",
        What::Pause => "pause",
        What::Resume => "resume",
        What::Migrate { .. } => "migrate",
        What::RunAgain(_) => "run again",
    }
}

/// The store's or a queue's error as a problem.
#[must_use]
pub fn unavailable(error: &Error) -> Problem {
    tracing::error!(error = %Chain(error), "the store or a queue failed");
    match error {
        Error::TooLarge { bytes, limit, .. } => {
            problem::too_large(None, format!("the order would need {bytes} bytes; the limit is {limit}"))
        }
        Error::Corrupt { what, why } if what == "the cursor" => problem::invalid_field("cursor", why.clone()),
        Error::Corrupt { .. } => problem::unreadable(None, error.to_string()),
        Error::Unavailable { .. } => {
            let detail = "the store or a queue did not answer; the request may or may not have been applied, so check before repeating it";
            problem::unavailable(None, detail).retry_after(2)
        }
    }
}
