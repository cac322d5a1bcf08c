//! Everything about one order of any tenant, for an operator who decides about it. Its route is not below `/orders`,
//! because a policy for applications allows `GET /orders/*`.

use crate::{Operator, act};
use edge::problem::Problem;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::decision::Act;
use shared::message::HistoryEntry;
use shared::operator::Outcome;
use shared::ports::{Error, StateStore};
use shared::task::Task;
use shared::view::{self, Status};
use shared::workflow::Workflow;
use std::borrow::Cow;

/// An order in full.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Details {
    /// As the submitter sees it.
    pub order: Status,
    /// What happened, oldest first.
    pub history: Vec<HistoryEntry>,
    /// The input as submitted; `null` if the order table no longer has it.
    pub input: Value,
    /// Each step as the workflow defines it, in workflow order.
    pub plan: Vec<Planned>,
    /// Every action, and whether it is possible now.
    pub acts: Vec<Fitting>,
}

/// The limits of a step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Planned {
    /// Its name.
    pub step: String,
    /// From the claim to CompleteBy, in milliseconds.
    pub timeout_ms: i128,
    /// Failures after which it is given up.
    pub max_failures: u32,
    /// The same for its undo, if it has one, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub undo_timeout_ms: Option<i128>,
    /// Once this step may have run, the order cannot be undone.
    pub irreversible: bool,
    /// Input from an operator that replaces the order's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
}

/// Whether an action is possible, by a dry run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Fitting {
    /// Its name, as in the routes.
    pub act: Cow<'static, str>,
    /// It would be applied.
    pub fits: bool,
    /// Why it was not done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Steps that it could apply to, if it takes a step.
    pub steps: Vec<String>,
}

impl Operator {
    /// The order called `id`.
    ///
    /// # Errors
    /// The order does not exist, or the store failed.
    pub async fn details(&self, id: &str) -> Result<Details, Problem> {
        let task = self.known(id).await?;
        self.of_task(&task).await.map_err(|e| act::unavailable(&e))
    }

    async fn of_task(&self, task: &Task) -> Result<Details, Error> {
        let workflow = self.engine.workflow(&task.workflow_hash).await?;
        let input = self.engine.store.order(task).await?.map_or(Value::Null, |order| order.input);
        let mut acts = Vec::with_capacity(act::NAMES.len());
        for name in act::NAMES {
            acts.push(self.fitting(task, &workflow, name).await?);
        }
        Ok(Details {
            order: view::status(task, &workflow, self.engine.skew()),
            history: view::history(task, &workflow),
            input,
            plan: plan(task, &workflow),
            acts,
        })
    }

    async fn fitting(&self, task: &Task, workflow: &Workflow, name: &'static str) -> Result<Fitting, Error> {
        let dry_run = |step: Option<&str>| {
            let body = act::Body { step: step.map(str::to_owned), ..act::Body::default() };
            let what = act::what(name, &body).expect("a known action").expect("only a step, if it takes one");
            Act { what, by: "a dry run".into(), reason: "a dry run".into(), seen: None }
        };
        let outcome = self.engine.preview(task, &dry_run(None)).await?;
        let mut steps = Vec::new();
        for spec in workflow.steps.iter().filter(|_| act::takes_step(name)) {
            if matches!(self.engine.preview(task, &dry_run(Some(&spec.name))).await?, Outcome::Applied(_)) {
                steps.push(spec.name.clone());
            }
        }
        let fits = matches!(outcome, Outcome::Applied(_)) || !steps.is_empty();
        let why = match outcome {
            _ if fits => None,
            Outcome::NotAllowed { why } => Some(why.to_string()),
            Outcome::Repeated(_) => Some("already done".into()),
            Outcome::Applied(_) | Outcome::Moved { .. } | Outcome::NotFound => None,
        };
        Ok(Fitting { act: name.into(), fits, why, steps })
    }
}

fn plan(task: &Task, workflow: &Workflow) -> Vec<Planned> {
    let one = |(step, spec): (&shared::step::Step, &shared::workflow::Step)| Planned {
        step: spec.name.clone(),
        timeout_ms: spec.timeout.as_millis(),
        max_failures: spec.retry.max + spec.retry.long.as_ref().map_or(0, |long| long.times),
        undo_timeout_ms: spec.undo.as_ref().map(|undo| undo.timeout.as_millis()),
        irreversible: spec.irreversible,
        input: step.input.clone(),
    };
    task.steps.iter().zip(&workflow.steps).map(one).collect()
}
