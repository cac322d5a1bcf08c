//! Moves an order to another definition of its workflow, or says in a dry run what that would mean.

use crate::Operator;
use crate::act::{self, MAX_BY, MAX_REASON, unavailable};
use crate::workflows::MAX_HASH;
use edge::problem::{self, Problem};
use edge::whole_number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::decision::{Act, Refusal, What};
use shared::history::Kind;
use shared::migrate::{Migration, Plan};
use shared::operator::Outcome;
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::{Phase, Task};
use shared::time::Timestamp;
use shared::workflow::Hash;
use std::borrow::Cow;

/// The action's name, as in its route. Not in [`act::NAMES`], which need only the order.
pub const NAME: &str = "migrate";
/// In place of a hash: the definition that new orders of the workflow get.
pub const LATEST: &str = "latest";

/// The definition under which an order is to go on.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Migrate {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// Hash of the definition, or `latest` for the one that new orders of the workflow get. The order's own hash withdraws
    /// a migration that has not been done yet.
    #[schemars(length(min = 1, max = MAX_HASH))]
    pub to: String,
    /// Then retry what failed, as `resubmit` does. Only for an order in Error.
    #[serde(default)]
    pub resubmit: bool,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// The version that the person saw, as in every action.
    #[schemars(range(max = 9_007_199_254_740_991_u64))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub if_version: Option<u64>,
}

/// The possible outcomes.
pub const OUTCOMES: [&str; 6] = ["applied", "waits", "repeated", "would_apply", "would_wait", "not_allowed"];

/// What a migration did, or would do. Lists name steps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Migration")]
pub struct Report {
    /// The order.
    pub order_id: Id,
    /// `applied`; `waits` if it is recorded and done once no step is with an agent and no request can start any more;
    /// `repeated` if it was so already. In a dry run `would_apply`, `would_wait` or `not_allowed`.
    #[schemars(extend("enum" = OUTCOMES))]
    pub outcome: Cow<'static, str>,
    /// The order's version now.
    pub version: u64,
    /// Hash of the definition that the order had.
    pub from: String,
    /// Hash of the definition that it gets.
    pub to: String,
    /// Why it is not allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Until this time a request of an earlier attempt can start, so the migration waits (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_until: Option<Timestamp>,
    /// What it means for the order's steps.
    #[serde(flatten)]
    pub plan: Plan,
}

impl Operator {
    /// Moves an order to another definition now, records the move for later, or reports what it would mean.
    ///
    /// # Errors
    /// No such order or definition, a rule forbids it, the order has changed, or the store failed.
    pub async fn migrate(&self, id: &str, wish: &Migrate, subject: Option<&str>) -> Result<Report, Problem> {
        let (by, reason) = act::who_and_why(subject, wish.by.as_deref(), wish.reason.as_deref())?;
        let task = self.known(id).await?;
        let to = self.target(&task, &wish.to).await?;
        let (mut plan, obstacle) = self.engine.plan(&task, &to).await.map_err(|e| unavailable(&e))?;
        plan.doubts.extend(self.doubt_of_input(&task, &to).await.map_err(|e| unavailable(&e))?);
        let what = What::Migrate { to: to.clone(), resubmits: wish.resubmit };
        let act = Act { what, by, reason, seen: wish.if_version };
        let outcome = match wish.dry_run {
            true => self.engine.preview(&task, &act).await,
            false => self.act(task.id.clone(), act).await,
        };
        let is_repeated = match outcome.map_err(|e| unavailable(&e))? {
            Outcome::NotAllowed { why } => {
                let why = match (&why, obstacle) {
                    (Refusal::Migration(_), Some(obstacle)) => obstacle.to_string(),
                    _ => why.to_string(),
                };
                return match wish.dry_run {
                    true => Ok(Report { why: Some(why), ..report(&task, &to, "not_allowed", None, plan) }),
                    false => Err(problem::not_allowed(None, why)),
                };
            }
            Outcome::Moved { version } => {
                let detail = format!("the order is now at version {version}; read it again and decide anew");
                return Err(problem::order_moved("if_version", detail));
            }
            Outcome::NotFound => return Err(act::no_such_order(id)),
            Outcome::Repeated(_) => true,
            Outcome::Applied(_) => false,
        };
        if wish.dry_run && is_repeated {
            return Ok(report(&task, &to, "repeated", None, plan));
        }
        if wish.dry_run {
            let old = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
            let skew = self.engine.skew();
            let wanted = Task { migration: Some(Migration::of(&task, &old, skew, to.clone(), false)), ..task.clone() };
            let from = wanted.migrates_at(skew);
            let waits = task.workflow_hash != to && from.is_none_or(|from| from > self.engine.now());
            let from = from.filter(|_| waits);
            return Ok(report(&task, &to, if waits { "would_wait" } else { "would_apply" }, from, plan));
        }
        let now = self.known(id).await?;
        let is_waiting = now.migration.as_ref().is_some_and(|migration| migration.to == to);
        // For example, the order may have been cancelled since the action.
        if !is_waiting && now.workflow_hash != to {
            let said =
                now.log.iter().rev().find(|entry| entry.1 == Kind::NotMigrated).and_then(|entry| entry.4.as_deref());
            let why = said.unwrap_or("another migration was asked for");
            return Err(problem::order_moved(
                None,
                format!("the order was not migrated: {why}; read it again and decide anew"),
            ));
        }
        let from = now.migrates_at(self.engine.skew()).filter(|_| is_waiting);
        let outcome = match is_waiting {
            _ if is_repeated => "repeated",
            true => "waits",
            false => "applied",
        };
        Ok(Report { version: now.version, ..report(&task, &to, outcome, from, plan) })
    }

    /// A sentence: what the definition `to` refuses in the input.
    async fn doubt_of_input(&self, task: &Task, to: &Hash) -> Result<Option<String>, Error> {
        let definition = self.engine.workflow(to).await?;
        let goes = matches!(task.phase, Phase::Forward | Phase::Error);
        let Some(schema) = definition.schema.as_ref().filter(|_| goes && *to != task.workflow_hash) else {
            return Ok(None);
        };
        let Some(order) = self.engine.store.order(task).await? else { return Ok(None) };
        let faults = schema.schema().faults(&order.input);
        Ok(faults
            .first()
            .map(|fault| format!("the order's input does not fit the new `[input]`: `{}` {}", fault.at, fault.message)))
    }

    /// The hash that `to` means for an order; its definition is stored and can run here.
    async fn target(&self, task: &Task, to: &str) -> Result<Hash, Problem> {
        let hash = self.meant(&task.workflow, to).await?;
        // An order that stays does not change, so its definition need not fit.
        if hash == task.workflow_hash { Ok(hash) } else { self.runnable(&task.workflow, hash).await }
    }

    /// The same for the workflow called `name`.
    pub(crate) async fn definition_of(&self, name: &str, to: &str) -> Result<Hash, Problem> {
        let hash = self.meant(name, to).await?;
        self.runnable(name, hash).await
    }

    async fn meant(&self, name: &str, to: &str) -> Result<Hash, Problem> {
        match to {
            LATEST => self.seen().await?.row(name).and_then(|row| row.hash).ok_or_else(|| {
                let detail = format!("workflow `{name}` takes no orders, so it has no latest definition; write a hash");
                problem::invalid_field("to", detail)
            }),
            hash => Ok(Hash(hash.to_owned())),
        }
    }

    async fn runnable(&self, name: &str, hash: Hash) -> Result<Hash, Problem> {
        let found = self.kept_or_deployed(name, &hash).await.map_err(|problem| match problem.code {
            "no_such_workflow" => problem::invalid_field("to", problem.detail),
            _ => problem,
        })?;
        let fits = self.fits(&found.workflow);
        fits.map_err(|why| problem::not_possible(None, format!("definition {hash} cannot run here: {why}")))?;
        self.engine.use_workflow(&found.workflow).await.map_err(|e| unavailable(&e))
    }
}

fn report(task: &Task, to: &Hash, outcome: &'static str, waits_until: Option<Timestamp>, plan: Plan) -> Report {
    Report {
        order_id: task.id.clone(),
        outcome: outcome.into(),
        version: task.version,
        from: task.workflow_hash.to_string(),
        to: to.to_string(),
        why: None,
        waits_until,
        plan,
    }
}
