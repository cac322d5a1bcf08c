//! Runs an order again from an earlier step, or says in a dry run what that would mean.

use crate::Operator;
use crate::act::{self, MAX_BY, MAX_REASON, unavailable};
use edge::problem::{self, Problem};
use edge::whole_number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::again::{self, Plan, Wish};
use shared::decision::{Act, Refusal, What};
use shared::operator::Outcome;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{Phase, Task};
use shared::time::Timestamp;
use shared::workflow::MAX_STEPS;
use shared::workflow::file::MAX_NAME;
use std::borrow::Cow;

/// The action's name, as in its route. Not in [`act::NAMES`], which need only the order.
pub const NAME: &str = "run-again";

/// From which steps an order is run again.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunAgain {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// Names of steps. They and all steps that come after them are done again.
    #[schemars(length(min = 1, max = MAX_STEPS), inner(length(max = MAX_NAME)))]
    pub from: Vec<String>,
    /// All of them get new idempotency keys. Otherwise only those do that were undone: a service that knows the key of
    /// another one answers as before and does nothing.
    #[serde(default)]
    pub new_keys: bool,
    /// What may have run and has no undo may stay as it is.
    #[serde(default)]
    pub without_undo: bool,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The version that the person saw, as in every action.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub if_version: Option<u64>,
}

/// The possible outcomes.
pub const OUTCOMES: [&str; 4] = ["applied", "repeated", "would_apply", "not_allowed"];

/// What running again did, or would do. Lists name steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "RunAgainResult")]
pub struct Report {
    /// The order.
    pub order_id: Id,
    /// `applied`, or `repeated` if it was already asked for. In a dry run `would_apply` or `not_allowed`.
    #[schemars(extend("enum" = OUTCOMES))]
    pub outcome: Cow<'static, str>,
    /// The order's version now.
    pub version: u64,
    /// Why it is not allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Until this time an earlier request can start, so the undo waits (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// What it means for the order's steps.
    #[serde(flatten)]
    pub plan: Plan,
}

impl Operator {
    /// Runs an order again, or reports what that would mean.
    ///
    /// # Errors
    /// No such order, a rule forbids it, the order has changed, or the store failed.
    pub async fn run_again(&self, id: &str, wish: &RunAgain, subject: Option<&str>) -> Result<Report, Problem> {
        let (by, reason) = act::who_and_why(subject, wish.by.as_deref(), wish.reason.as_deref())?;
        let none = || {
            let detail =
                format!("`{id}` is not the id of a known order, or its record was removed after its retention");
            problem::no_such_order("order_id", detail)
        };
        let id = Id::parse(id).ok_or_else(none)?;
        let task = self.engine.store.load(&id).await.map_err(|e| unavailable(&e))?.ok_or_else(none)?;
        let workflow = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
        let RunAgain { from, new_keys, without_undo, dry_run, if_version, .. } = wish;
        let steps = Wish { from: from.clone(), new_keys: *new_keys, without_undo: *without_undo };
        let (plan, obstacle) = (again::plan(&task, &workflow, &steps), again::check(&task, &workflow, &steps).err());
        let act = Act { what: What::RunAgain(steps), by, reason, seen: *if_version };
        let outcome = match dry_run {
            true => self.engine.preview(&task, &act).await,
            false => self.act(id.clone(), act).await,
        };
        let report = |outcome: &'static str, version| report(&task, outcome, version, plan);
        match outcome.map_err(|e| unavailable(&e))? {
            Outcome::NotAllowed { why } => {
                let why = match (&why, obstacle) {
                    (Refusal::Again(_), Some(obstacle)) => obstacle.to_string(),
                    _ => why.to_string(),
                };
                match dry_run {
                    true => Ok(Report { why: Some(why), ..report("not_allowed", task.version) }),
                    false => Err(problem::not_allowed(None, why)),
                }
            }
            Outcome::Moved { version } => {
                let detail = format!("the order is now at version {version}; read it again and decide anew");
                Err(problem::order_moved("if_version", detail))
            }
            Outcome::NotFound => Err(none()),
            Outcome::Repeated(version) => Ok(report("repeated", version)),
            Outcome::Applied(_) if *dry_run => {
                let turned = Task { phase: Phase::Undoing, ..task.clone() };
                let from = turned.undo_from(&workflow, self.engine.skew()).filter(|_| task.phase != Phase::Undone);
                let waits_until = from.filter(|from| *from > self.engine.now());
                Ok(Report { waits_until, ..report("would_apply", task.version) })
            }
            Outcome::Applied(version) => Ok(report("applied", version)),
        }
    }
}

fn report(task: &Task, outcome: &'static str, version: u64, plan: Plan) -> Report {
    Report { order_id: task.id.clone(), outcome: outcome.into(), version, why: None, waits_until: None, plan }
}
