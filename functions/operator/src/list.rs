//! Lists of orders, one line each.

use crate::{Operator, act, query};
use edge::auth::MAX_TENANT;
use edge::problem::{self, Problem};
use edge::query::number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::history::shorten;
use shared::order::Id;
use shared::ports::Error;
use shared::step::{Direction, State};
use shared::task::{Phase, ProcessState, Task};
use shared::time::Timestamp;
use shared::workflow::Workflow;
use shared::workflow::file::MAX_NAME;
use std::collections::BTreeMap;
use std::sync::Arc;
use stepwarden_aws::DynamoStore;
use stepwarden_aws::list::{self as store, Filter, MAX_PAGE};

/// Longest tenant and reference, in characters: no order has longer ones.
pub const MAX_TEXT: usize = MAX_TENANT;
/// Longest reason why a record cannot be read, in bytes.
const MAX_WHY: usize = 300;
/// Orders on a page by default.
const PAGE: usize = 50;
/// The parameters of `GET /orders`.
pub const PARAMETERS: [&str; 10] =
    ["state", "workflow", "tenant", "parent", "reference", "from", "to", "cursor", "limit", "step"];

/// One order in a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "OrderRow")]
pub struct Row {
    /// The order.
    pub order_id: Id,
    /// Its workflow's name.
    pub workflow: String,
    /// Its state.
    pub state: ProcessState,
    /// Since when an operator has paused it (UTC, milliseconds).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// Why it failed, was cancelled, or stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tenant that owns the order.
    pub tenant: String,
    /// The submitter's own reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// For `if_version`.
    pub version: u64,
    /// The pattern's FailureCount.
    pub failure_count: u32,
    /// When it was accepted (UTC, milliseconds).
    pub created_at: Timestamp,
    /// When it last changed (UTC, milliseconds).
    pub updated_at: Timestamp,
    /// Steps that failed or wait for another attempt.
    pub trouble: Vec<Trouble>,
    /// Steps that wait, of an order that goes forward.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits: Vec<Wait>,
}

/// A step that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// Its name.
    pub step: String,
    /// What it waits for, as its workflow says it.
    pub wait: String,
    /// Since when (UTC, milliseconds).
    pub since: Timestamp,
    /// Until when (UTC, milliseconds).
    pub until: Timestamp,
}

/// A failing step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Trouble {
    /// Its name.
    pub step: String,
    /// The agent that failed.
    pub agent: String,
    /// Whether it is its undo.
    pub undo: bool,
    /// The last error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// An open circuit breaker deferred the last attempt. This is not a failure; `error` says what opened the breaker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Orders")]
pub struct Rows {
    /// Newest first; with `state=Waiting` the order that changed longest ago first. A page may be empty and still have a
    /// next one.
    pub orders: Vec<Row>,
    /// Orders that may belong on the page but whose records cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// For `cursor`; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// An order that is left out because its record cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Unreadable {
    /// The order.
    pub order_id: Id,
    /// What is wrong with its record.
    pub why: String,
}

impl From<store::Unreadable> for Unreadable {
    fn from(store::Unreadable { id, why }: store::Unreadable) -> Self {
        Self { order_id: id, why: shorten(&why, MAX_WHY) }
    }
}

/// Selects orders.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Filter")]
pub struct Wanted {
    /// A state's name, `Paused`, or `Waiting`: a step waits, for a minute or longer.
    #[schemars(extend("enum" = query::state_names()))]
    pub state: Option<String>,
    /// Workflow.
    #[schemars(length(max = MAX_NAME))]
    pub workflow: Option<String>,
    /// Tenant.
    #[schemars(length(max = MAX_TEXT))]
    pub tenant: Option<String>,
    /// Id of an order: only the orders that it started. Lists without it leave them out, except those that wait for a person.
    #[schemars(length(max = MAX_TEXT))]
    pub parent: Option<String>,
    /// Prefix of the submitter's reference.
    #[schemars(length(max = MAX_TEXT))]
    pub reference: Option<String>,
    /// Agent of a step that is failing or has failed; with `state` `Waiting` it matches nothing.
    #[schemars(length(max = MAX_NAME))]
    pub agent: Option<String>,
    /// Name of a step that is failing or has failed; with `state` `Waiting` of a step that waits.
    #[schemars(length(max = MAX_NAME))]
    pub step: Option<String>,
    /// Accepted at or after (UTC).
    pub from: Option<Timestamp>,
    /// Accepted before (UTC).
    pub to: Option<Timestamp>,
}

impl Wanted {
    /// Whether it matches every order.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        let texts = [&self.state, &self.workflow, &self.tenant, &self.parent, &self.reference, &self.agent, &self.step];
        texts.iter().all(|text| text.is_none()) && self.from.is_none() && self.to.is_none()
    }

    /// The part of it that the store applies.
    ///
    /// # Errors
    /// There is no such state, or a text is too long to match anything.
    pub fn filter(&self) -> Result<Filter, Problem> {
        for (name, text, most) in [
            ("workflow", &self.workflow, MAX_NAME),
            ("tenant", &self.tenant, MAX_TEXT),
            ("reference", &self.reference, MAX_TEXT),
            ("agent", &self.agent, MAX_NAME),
            ("step", &self.step, MAX_NAME),
        ] {
            if text.as_ref().is_some_and(|text| text.chars().count() > most) {
                return Err(problem::invalid_field(name, format!("must have at most {most} characters")));
            }
        }
        let not_an_id = || problem::invalid_field("parent", "is not the id of an order");
        let parent = self.parent.as_deref().map(|id| Id::parse(id).ok_or_else(not_an_id)).transpose()?;
        let of_state = self.state.as_deref().map_or_else(|| Ok(Filter::default()), query::state)?;
        let (workflow, tenant, reference) = (self.workflow.clone(), self.tenant.clone(), self.reference.clone());
        Ok(Filter { workflow, tenant, parent, reference, from: self.from, to: self.to, ..of_state })
    }

    /// Whether a failing step matches, or of orders that wait a step that waits.
    #[must_use]
    pub fn fits(&self, task: &Task, workflow: &Workflow) -> bool {
        if self.step.is_none() && self.agent.is_none() {
            return true;
        }
        if self.state.as_deref().is_some_and(|state| state.eq_ignore_ascii_case("waiting")) {
            let is_meant = |one: &Wait| self.step.as_ref().is_some_and(|step| one.step == *step);
            return self.agent.is_none() && waits(task, workflow).iter().any(is_meant);
        }
        trouble(task, workflow).iter().any(|one| {
            self.step.as_ref().is_none_or(|step| one.step == *step)
                && self.agent.as_ref().is_none_or(|agent| one.agent == *agent)
        })
    }
}

/// Refuses a cursor that no page of `filter` can have returned.
pub(crate) fn check_cursor(filter: &Filter, cursor: Option<&str>) -> Result<(), Problem> {
    if cursor.is_none_or(|cursor| DynamoStore::is_cursor(filter, cursor)) {
        return Ok(());
    }
    let detail = "does not come from a page with the same filter; leave it out to begin at the first page";
    Err(problem::invalid_field("cursor", detail))
}

/// The steps of `task` that failed, or wait after an unsuccessful attempt. A step that an open breaker holds back has
/// not failed, but holds its order up all the same.
#[must_use]
pub fn trouble(task: &Task, workflow: &Workflow) -> Vec<Trouble> {
    failures(task, workflow, false)
}

/// The same, with the steps whose next attempt is in progress: a service that hangs usually keeps its orders there.
pub(crate) fn failures(task: &Task, workflow: &Workflow, under_way: bool) -> Vec<Trouble> {
    let one = |(index, (step, spec)): (usize, (&shared::step::Step, &shared::workflow::Step))| {
        let is_held_back = |until: Option<Timestamp>| until.is_some() && step.error.is_some();
        let direction = match step.state {
            State::Failed => Direction::Do,
            // A step that polls waits for its next look.
            State::Pending { .. } if step.poll_until.is_some() => return None,
            State::Pending { not_before } if step.failures > 0 || is_held_back(not_before) => Direction::Do,
            State::Processing { .. } if under_way && step.failures > 0 => Direction::Do,
            State::UndoFailed => Direction::Undo,
            State::UndoPending { not_before } if step.undo_failures > 0 || is_held_back(not_before) => Direction::Undo,
            State::UndoProcessing { .. } if under_way && step.undo_failures > 0 => Direction::Undo,
            State::Pending { .. }
            | State::Processing { .. }
            | State::Waiting { .. }
            | State::Processed
            | State::Skipped
            | State::PassedOver
            | State::Caught
            | State::UndoPending { .. }
            | State::UndoProcessing { .. }
            | State::Undone => return None,
        };
        let agent = spec.work(direction)?.agent.to_owned();
        let undo = direction == Direction::Undo;
        let held_back = task.is_held_back(index);
        Some(Trouble { step: spec.name.clone(), agent, undo, error: step.error.clone(), held_back })
    };
    task.steps.iter().zip(&workflow.steps).enumerate().filter_map(one).collect()
}

impl Operator {
    /// The page that the query asks for.
    ///
    /// # Errors
    /// An invalid parameter, or the store failed.
    pub async fn list(&self, query: &BTreeMap<String, String>) -> Result<Rows, Problem> {
        let text = |name: &str| query.get(name).cloned();
        let time = |name: &'static str| query.get(name).map(|text| query::time(name, text)).transpose();
        let wanted = Wanted {
            state: text("state"),
            workflow: text("workflow"),
            tenant: text("tenant"),
            parent: text("parent"),
            reference: text("reference"),
            agent: None,
            step: text("step"),
            from: time("from")?,
            to: time("to")?,
        };
        let limit = query.get("limit").map_or(Ok(PAGE), |text| number("limit", text, 1, MAX_PAGE))?;
        let cursor = query.get("cursor").map(String::as_str);
        let (now, filter) = (self.engine.now(), wanted.filter()?);
        check_cursor(&filter, cursor)?;
        let page = self.engine.store.list(&filter, now, limit, cursor).await.map_err(|e| act::unavailable(&e))?;
        let (known, damaged) = self.with_workflows(page.tasks).await.map_err(|e| act::unavailable(&e))?;
        let fitting = known.iter().filter(|(task, workflow)| wanted.fits(task, workflow));
        let orders = fitting.map(|(task, workflow)| row(task, workflow)).collect();
        let unreadable = page.unreadable.into_iter().map(Unreadable::from).chain(damaged).collect();
        Ok(Rows { orders, unreadable, next: page.next })
    }

    /// The tasks with their definitions, and those whose definitions cannot be read.
    pub(crate) async fn with_workflows(
        &self,
        tasks: Vec<Task>,
    ) -> Result<(Vec<(Task, Arc<Workflow>)>, Vec<Unreadable>), Error> {
        let (mut known, mut damaged) = (Vec::with_capacity(tasks.len()), Vec::new());
        for task in tasks {
            match self.engine.workflow(&task.workflow_hash).await {
                Ok(workflow) => known.push((task, workflow)),
                Err(error) => damaged.push(store::Unreadable::of(&task.id, error)?.into()),
            }
        }
        Ok((known, damaged))
    }
}

pub(crate) fn row(task: &Task, workflow: &Workflow) -> Row {
    Row {
        order_id: task.id.clone(),
        workflow: task.workflow.clone(),
        state: task.process_state(),
        paused_at: task.paused_at,
        reason: task.reason.clone(),
        tenant: task.tenant.clone(),
        reference: task.reference.clone(),
        version: task.version,
        failure_count: task.failure_count(),
        created_at: task.created_at,
        updated_at: task.updated_at,
        trouble: trouble(task, workflow),
        waits: waits(task, workflow),
    }
}

/// The steps of `task` that wait, while it goes forward.
pub(crate) fn waits(task: &Task, workflow: &Workflow) -> Vec<Wait> {
    let one = |(step, spec): (&shared::step::Step, &shared::workflow::Step)| {
        let State::Waiting { until, .. } = step.state else { return None };
        let wait = spec.asks().unwrap_or_default();
        Some(Wait { step: spec.name.clone(), wait, since: step.turn.unwrap_or(task.updated_at), until })
    };
    let steps = task.steps.iter().zip(&workflow.steps).filter(|_| task.phase == Phase::Forward);
    steps.filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::history::{Entry, Kind};
    use shared::order;
    use shared::task::{Priority, Submission};
    use shared::workflow::file::{Known, parse};

    // E4: an open breaker counts no failure, but a person sees what it holds back among what is being retried.
    #[test]
    fn a_step_that_was_held_back_is_in_trouble() {
        let text =
            "name = \"one\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\nundo = { agent = \"x\" }\n";
        let workflow = parse("one.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap();
        let submission = Submission {
            id: order::Id("ord_1".into()),
            tenant: "acme".into(),
            reference: None,
            reply_queue: None,
            priority: Priority::Normal,
            shard: 0,
        };
        let mut task = Task::new(submission, &workflow, "2026-01-01T00:00:00Z".parse().unwrap());
        assert!(trouble(&task, &workflow).is_empty(), "nobody has tried it");
        task.steps[0].error = Some("the circuit breaker of `x` is open".into());
        task.steps[0].state = State::UndoPending { not_before: None };
        assert!(trouble(&task, &workflow).is_empty(), "the error is that of the way forward");
        let not_before = Some(task.created_at);
        for (state, undo) in [(State::Pending { not_before }, false), (State::UndoPending { not_before }, true)] {
            task.steps[0].state = state;
            let found = trouble(&task, &workflow);
            assert_eq!(found.iter().map(|one| (one.step.as_str(), one.undo)).collect::<Vec<_>>(), [("a", undo)]);
            assert!(!found[0].held_back, "nothing says that it was put off");
            task.log.push(Entry(1, Kind::Deferred, Some(0), 1, None));
            assert!(trouble(&task, &workflow)[0].held_back);
            task.log.push(Entry(2, Kind::RetriedNow, Some(0), 1, None));
            assert!(!trouble(&task, &workflow)[0].held_back, "a person ended the wait");
        }
    }
}
