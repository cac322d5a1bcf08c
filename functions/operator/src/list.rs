//! Lists of orders, one line each.

use crate::{Operator, act, query};
use edge::auth::MAX_TENANT;
use edge::problem::{self, Problem};
use edge::query::number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::history::{Entry, Kind, shorten};
use shared::order::{Id, MAX_LABEL, label_fault};
use shared::ports::Error;
use shared::task::{ProcessState, Task};
use shared::time::Timestamp;
use shared::trouble::waits;
pub use shared::trouble::{Trouble, Wait, trouble};
use shared::workflow::Workflow;
use shared::workflow::file::MAX_NAME;
use std::collections::BTreeMap;
use std::sync::Arc;
use stepwarden_aws::DynamoStore;
use stepwarden_aws::list::{self as store, Filter, MAX_PAGE};

/// Longest tenant and reference of an order, in characters.
pub const MAX_TEXT: usize = MAX_TENANT;
/// Longest name of an order's workflow, in characters. That of a list's call is `WORKFLOW.STEP`.
pub const MAX_WORKFLOW: usize = 2 * MAX_NAME + 1;
/// Longest reason why a record cannot be read, in bytes.
const MAX_WHY: usize = 300;
/// Longest error of a filter, in characters: as long as errors are kept.
const MAX_ERROR: usize = shared::history::MAX_TEXT;
/// Orders on a page by default.
const PAGE: usize = 50;
/// The parameters of `GET /orders`.
pub const PARAMETERS: [&str; 12] =
    ["state", "workflow", "tenant", "parent", "label", "reference", "from", "to", "cursor", "limit", "step", "error"];

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
    /// When an operator paused it, while it is paused (UTC, milliseconds).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// Why it failed, was cancelled, or stopped; or else, while it is paused, who paused it and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Tenant that owns the order.
    pub tenant: String,
    /// The submitter's own reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The submitter's labels, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "Filter")]
pub struct Wanted {
    /// A state's name, `Paused`, or `Waiting` (a step waits, for a minute or longer in all).
    #[schemars(extend("enum" = query::state_names()))]
    pub state: Option<String>,
    /// Workflow.
    #[schemars(length(min = 1, max = MAX_WORKFLOW))]
    pub workflow: Option<String>,
    /// Tenant.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    pub tenant: Option<String>,
    /// Id of an order: only the orders that it started. Lists without it leave them out, except lists of the states `Error`,
    /// `Paused` and `Waiting`.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    pub parent: Option<String>,
    /// One of the order's labels. Orders that an order started have none.
    #[schemars(length(min = 1, max = MAX_LABEL))]
    pub label: Option<String>,
    /// Prefix of the submitter's reference.
    #[schemars(length(min = 1, max = MAX_TEXT))]
    pub reference: Option<String>,
    /// Agent of a step that is failing or has failed; with `state` `Waiting` it matches nothing.
    #[schemars(length(min = 1, max = MAX_NAME))]
    pub agent: Option<String>,
    /// Name of a step that is failing or has failed or, with `state` `Waiting`, of a step that waits.
    #[schemars(length(min = 1, max = MAX_NAME))]
    pub step: Option<String>,
    /// An error of such a step. Errors that differ only in numbers and ids count as one, as in the overview. An empty
    /// text means a step without a recorded error.
    #[schemars(length(max = MAX_ERROR))]
    pub error: Option<String>,
    /// Accepted at or after this time (UTC).
    pub from: Option<Timestamp>,
    /// Accepted before this time (UTC).
    pub to: Option<Timestamp>,
}

impl Wanted {
    /// Whether it matches every order.
    #[must_use]
    pub fn is_everything(&self) -> bool {
        *self == Self::default()
    }

    /// The part of it that the store applies.
    ///
    /// # Errors
    /// There is no such state, or a text is too long to match, or empty, as when a script lacks a variable.
    pub fn filter(&self) -> Result<Filter, Problem> {
        for (name, text, most) in [
            ("workflow", &self.workflow, MAX_WORKFLOW),
            ("tenant", &self.tenant, MAX_TEXT),
            ("reference", &self.reference, MAX_TEXT),
            ("agent", &self.agent, MAX_NAME),
            ("step", &self.step, MAX_NAME),
            ("error", &self.error, MAX_ERROR),
        ] {
            match text.as_ref().map_or(1, |text| text.chars().count()) {
                0 if name != "error" => {
                    return Err(problem::invalid_field(name, "must not be empty; leave it out to match any"));
                }
                count if count > most => {
                    return Err(problem::invalid_field(name, format!("must have at most {most} characters")));
                }
                _ => {}
            }
        }
        if let Some(fault) = self.label.as_deref().and_then(label_fault) {
            return Err(problem::invalid_field("label", fault));
        }
        let not_an_id = || problem::invalid_field("parent", "is not the id of an order");
        let parent = self.parent.as_deref().map(|id| Id::parse(id).ok_or_else(not_an_id)).transpose()?;
        let of_state = self.state.as_deref().map_or_else(|| Ok(Filter::default()), query::state)?;
        let Self { state: _, workflow, tenant, parent: _, label, reference, agent, step, error, from, to } =
            self.clone();
        Ok(Filter { workflow, tenant, parent, label, reference, from, to, agent, step, error, ..of_state })
    }
}

/// Refuses a cursor that no page of `filter` can have returned.
pub(crate) fn check_cursor(filter: &Filter, cursor: Option<&str>) -> Result<(), Problem> {
    if cursor.is_none_or(|cursor| DynamoStore::is_cursor(filter, cursor)) {
        return Ok(());
    }
    let detail = "is not from a page with the same filter; leave it out to begin at the first page";
    Err(problem::invalid_field("cursor", detail))
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
            label: text("label"),
            reference: text("reference"),
            agent: None,
            step: text("step"),
            error: text("error"),
            from: time("from")?,
            to: time("to")?,
        };
        let limit = query.get("limit").map_or(Ok(PAGE), |text| number("limit", text, 1, MAX_PAGE))?;
        let cursor = query.get("cursor").map(String::as_str);
        let (now, filter) = (self.engine.now(), wanted.filter()?);
        check_cursor(&filter, cursor)?;
        let page = self.engine.store.list(&filter, now, limit, cursor).await.map_err(|e| act::unavailable(&e))?;
        let next = page.next.clone();
        let (known, unreadable) = self.with_workflows(each(page)).await.map_err(|e| act::unavailable(&e))?;
        let fitting = known.iter().filter(|(task, workflow)| filter.fits_steps(task, workflow));
        let orders = fitting.map(|(task, workflow)| row(task, workflow)).collect();
        Ok(Rows { orders, unreadable, next })
    }

    /// The tasks with their definitions, and what cannot be read: a record or its definition.
    pub(crate) async fn with_workflows(
        &self,
        read: impl IntoIterator<Item = Result<Task, store::Unreadable>>,
    ) -> Result<(Vec<(Task, Arc<Workflow>)>, Vec<Unreadable>), Error> {
        let (mut known, mut unreadable) = (Vec::new(), Vec::new());
        for one in read {
            match one {
                Ok(task) => match self.engine.workflow(&task.workflow_hash).await {
                    Ok(workflow) => known.push((task, workflow)),
                    Err(error) => unreadable.push(store::Unreadable::of(&task.id, error)?.into()),
                },
                Err(damaged) => unreadable.push(damaged.into()),
            }
        }
        Ok((known, unreadable))
    }
}

/// The records of a page, the unreadable ones first.
pub(crate) fn each(page: store::Page) -> impl Iterator<Item = Result<Task, store::Unreadable>> {
    page.unreadable.into_iter().map(Err).chain(page.tasks.into_iter().map(Ok))
}

/// Who paused the order, and why, while it is paused.
fn pause(task: &Task) -> Option<String> {
    task.paused_at?;
    let Entry(.., text) = task.log.iter().rev().find(|Entry(_, kind, ..)| *kind == Kind::Paused)?;
    Some(format!("paused by {}", text.as_deref()?))
}

pub(crate) fn row(task: &Task, workflow: &Workflow) -> Row {
    Row {
        order_id: task.id.clone(),
        workflow: task.workflow.clone(),
        state: task.process_state(),
        paused_at: task.paused_at,
        reason: task.reason.clone().or_else(|| pause(task)),
        tenant: task.tenant.clone(),
        reference: task.reference.clone(),
        labels: task.labels.clone(),
        version: task.version,
        failure_count: task.failure_count(),
        created_at: task.created_at,
        updated_at: task.updated_at,
        trouble: trouble(task, workflow),
        waits: waits(task, workflow),
    }
}
