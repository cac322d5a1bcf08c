//! A task as people and programs outside see it: names instead of positions, words instead of codes.

pub use crate::change::{history, received};

use crate::again;
use crate::items::{Item, Items};
use crate::order::Id;
use crate::step::State;
use crate::task::{Arrival, Phase, Priority, ProcessState, Task};
use crate::time::{SignedDuration, Timestamp};
use crate::workflow::Workflow;
use crate::workflow::child;
use crate::workflow::edge::Edge;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::borrow::Cow;

/// The status of an order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Order")]
pub struct Status {
    /// The order.
    pub order_id: Id,
    /// Its workflow's name.
    pub workflow: String,
    /// Hash of the workflow definition that it runs.
    pub workflow_hash: String,
    /// Its state.
    pub state: ProcessState,
    /// Why it failed, was cancelled, or stopped.
    pub reason: Option<String>,
    /// The order fails if it is not done by this time, while it goes forward; a pause suspends it (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// When an operator paused it, while it is paused (UTC, milliseconds).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// Hash of the definition to which an operator has asked to migrate it, until that is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrating_to: Option<String>,
    /// Names of the steps that are done again once what they did is undone.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub running_again: Vec<String>,
    /// When its personal data was erased (UTC, milliseconds), with that of the orders that it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub erased_at: Option<Timestamp>,
    /// The submitter's own reference.
    pub reference: Option<String>,
    /// The submitter's labels, sorted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Tenant that owns the order.
    pub tenant: String,
    /// Priority of the order.
    pub priority: Priority,
    /// The W3C trace context it was submitted with.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Number of changes so far; the ETag.
    pub version: u64,
    /// When it was accepted (UTC, milliseconds).
    pub created_at: Timestamp,
    /// When it last changed (UTC, milliseconds).
    pub updated_at: Timestamp,
    /// The pattern's LockedBy.
    pub locked_by: Option<String>,
    /// The pattern's CompleteBy (UTC, milliseconds).
    pub complete_by: Option<Timestamp>,
    /// The pattern's FailureCount.
    pub failure_count: u32,
    /// An operator alert is owed and not yet sent.
    pub alert_owed: bool,
    /// While the undo waits: until this time an earlier request may still be delivered, again or for the
    /// first time, and its effect would survive an undo that ran before it (UTC, milliseconds). `null` once the undo has begun.
    pub undo_from: Option<Timestamp>,
    /// What it returned, if it is done and its workflow has an `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// The order that started it, if one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<ParentStatus>,
    /// The steps, in the workflow's order.
    pub steps: Vec<StepStatus>,
    /// The events that it accepted, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<EventStatus>,
}

/// The order that started another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Parent")]
pub struct ParentStatus {
    /// The order.
    pub order_id: Id,
    /// Its step.
    pub step: String,
    /// The item of that step's list that this one is for, counted from 0, if the step has a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
}

/// How many items of a step's list are in each state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Items")]
pub struct ItemsStatus {
    /// All of them. With `batch`, an item is what one order gets.
    pub total: usize,
    /// Their orders are still to be started, or to be tried again.
    pub to_do: usize,
    /// Their orders are running.
    pub open: usize,
    /// Their orders are done.
    pub done: usize,
    /// Their orders failed, or no order could be started with their input.
    pub failed: usize,
    /// Nothing is left of their orders.
    pub undone: usize,
    /// A person has to decide about the undo of their orders.
    pub stuck: usize,
}

fn items_status(items: &Items) -> ItemsStatus {
    ItemsStatus {
        total: items.total(),
        to_do: items.count(|item| matches!(item, Item::ToDo | Item::Again)),
        open: items.count(|item| item == Item::Open),
        done: items.count(|item| item == Item::Done),
        failed: items.count(Item::has_failed),
        undone: items.count(|item| item == Item::Undone),
        stuck: items.count(|item| item == Item::Stuck),
    }
}

/// An event that an order accepted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Event")]
pub struct EventStatus {
    /// Its name.
    pub name: String,
    /// Its idempotency key.
    pub key: String,
    /// The step that took it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Whether it is kept for a step that does not wait yet. An event that no step took and that is not kept is unused: its step was
    /// skipped, passed over or undone.
    pub kept: bool,
    /// The person who sent it, if a step that waits for it counts people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

/// The status of one step.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Step")]
pub struct StepStatus {
    /// Its name.
    pub name: String,
    /// Its agent's name; empty for a step that calls nothing.
    pub agent: String,
    /// Names of the steps it waits for.
    pub after: Vec<String>,
    /// The same with the marks of the edges, if one has a mark: `!` only if that step ran, `?` in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub edges: Vec<String>,
    /// The condition under which it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<String>,
    /// The failures that the order survives.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch: Option<String>,
    /// The workflow of the order that it starts, if it is such a step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// That order, once it is started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Id>,
    /// The states of its list's items, if it starts an order for each of them and has begun to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub items: Option<ItemsStatus>,
    /// Its state.
    #[schemars(extend("enum" = STATE_NAMES))]
    pub state: Cow<'static, str>,
    /// Whether it counts as undone although it has no undo, so that any effect of its call stays.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub effects_stay: bool,
    /// Claims so far, forward and undo.
    pub attempts: u32,
    /// Failed forward attempts since the last resubmission.
    pub failures: u32,
    /// Failed undo attempts since the last resubmission.
    pub undo_failures: u32,
    /// Instance that holds it.
    pub locked_by: Option<String>,
    /// Deadline of the current attempt (UTC, milliseconds).
    pub complete_by: Option<Timestamp>,
    /// The next attempt starts at this time or later (UTC, milliseconds).
    pub next_attempt_at: Option<Timestamp>,
    /// What it waits for, in the words of its workflow, if it is a step that waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<String>,
    /// The name of the event that it waits for, if it is a step that waits for one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
    /// When its wait began (UTC, milliseconds), while the order goes forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_since: Option<Timestamp>,
    /// Until when (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_until: Option<Timestamp>,
    /// How many reminders of it were sent, if the step has any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reminders: Option<u32>,
    /// When the next one is sent (UTC, milliseconds), while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_reminder_at: Option<Timestamp>,
    /// How many people still have to send the event that it waits for, if it counts people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<usize>,
    /// For a step that polls: the time until which it looks again (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub polls_until: Option<Timestamp>,
    /// For a step that polls: what the last poll returned, while the step is not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_look: Option<String>,
    /// For a step that collects pages: what it has collected so far, from the first page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<PagesStatus>,
    /// For a step whose agent sends heartbeats: how far the work is, while the agent works.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressStatus>,
    /// Why the last attempt failed.
    pub last_error: Option<String>,
    /// For a step that was passed over: why, with the values that its condition read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed_over: Option<String>,
    /// An open circuit breaker deferred the last attempt. This is not a failure; `last_error` says what opened the breaker.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_back: bool,
    /// When it last changed (UTC, milliseconds), if ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed_at: Option<Timestamp>,
    /// What the agent returned. `null` for an output of more than 4,096 bytes, unless the request asks for it.
    pub output: Option<Value>,
    /// The length of such an output, in bytes of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_bytes: Option<usize>,
}

/// The pages of a list that a step has collected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Pages")]
pub struct PagesStatus {
    /// How many pages.
    pub taken: u32,
    /// How many items they had.
    pub items: u32,
}

/// How far an agent is with its work.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Progress")]
pub struct ProgressStatus {
    /// When it said so (UTC, milliseconds). `null` before the first heartbeat that was recorded.
    pub at: Option<Timestamp>,
    /// How much of the work is done, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// What the agent says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// When the attempt ends even with heartbeats (UTC, milliseconds).
    pub until: Timestamp,
}

/// The status of `task` with the definition `workflow`, if clocks are up to `skew` apart.
#[must_use]
pub fn status(task: &Task, workflow: &Workflow, skew: SignedDuration) -> Status {
    Status {
        order_id: task.id.clone(),
        workflow: task.workflow.clone(),
        workflow_hash: task.workflow_hash.to_string(),
        state: task.process_state(),
        reason: task.reason.clone(),
        deadline: task.deadline.filter(|_| task.phase == Phase::Forward),
        paused_at: task.paused_at,
        migrating_to: task.migration.as_ref().map(|migration| migration.to.to_string()),
        running_again: running_again(task, workflow),
        erased_at: task.erased().map(|entry| entry.at(task.created_at)),
        reference: task.reference.clone(),
        labels: task.labels.clone(),
        tenant: task.tenant.clone(),
        priority: task.priority,
        traceparent: task.traceparent.clone(),
        version: task.version,
        created_at: task.created_at,
        updated_at: task.updated_at,
        locked_by: task.locked_by().map(str::to_owned),
        complete_by: task.complete_by(),
        failure_count: task.failure_count(),
        alert_owed: task.alert.is_some(),
        undo_from: task.waits_to_undo(workflow, skew),
        output: task.output.clone(),
        parent: task.parent.as_ref().map(|parent| ParentStatus {
            order_id: parent.id.clone(),
            step: parent.step.clone(),
            item: parent.item,
        }),
        steps: (0..task.steps.len()).map(|index| step_status(task, index, workflow)).collect(),
        events: task.events.iter().map(|event| event_status(event, workflow)).collect(),
    }
}

fn running_again(task: &Task, workflow: &Workflow) -> Vec<String> {
    let steps = task.again.iter().flat_map(|again| &again.steps);
    steps.filter_map(|&step| Some(workflow.steps.get(usize::from(step))?.name.clone())).collect()
}

fn event_status(event: &Arrival, workflow: &Workflow) -> EventStatus {
    EventStatus {
        name: event.name.clone(),
        key: event.key.clone(),
        step: event.step.and_then(|step| Some(workflow.steps.get(usize::from(step))?.name.clone())),
        kept: event.is_kept(),
        by: event.by.clone(),
    }
}

fn step_status(task: &Task, index: usize, workflow: &Workflow) -> StepStatus {
    let (step, spec) = (&task.steps[index], &workflow.steps[index]);
    let edges = spec.after.iter();
    let is_passed_over = step.state == State::PassedOver;
    let waits_until = match step.state {
        // A wait for a child has no end.
        State::Waiting { until, .. } if task.phase == Phase::Forward && step.kids.is_none() => Some(until),
        _ => None,
    };
    let polls = spec.poll.is_some() && matches!(step.state, State::Pending { .. } | State::Processing { .. });
    StepStatus {
        name: spec.name.clone(),
        agent: spec.agent.clone(),
        after: spec.after.iter().map(|after| workflow.steps[after.step].name.clone()).collect(),
        edges: match spec.after.iter().any(|after| after.edge != Edge::Plain) {
            true => edges.map(|after| format!("{}{}", workflow.steps[after.step].name, after.edge)).collect(),
            false => Vec::new(),
        },
        when: spec.when.as_ref().map(|when| when.text().to_owned()),
        catch: spec.catch.as_ref().map(|catch| catch.text().to_owned()),
        workflow: spec.child.as_ref().map(|child| child.workflow.clone()),
        child: step
            .kids
            .as_ref()
            .filter(|kids| kids.items.is_none())
            .map(|kids| child::id(&task.tenant, &task.id, &spec.name, kids.made)),
        items: step.items().map(items_status),
        state: state_name(&step.state).into(),
        effects_stay: step.state == State::Undone && again::keeps_effects(step, spec),
        attempts: step.attempt,
        failures: step.failures,
        undo_failures: step.undo_failures,
        locked_by: step.locked_by().map(str::to_owned),
        complete_by: step.claim().map(|(_, by)| by),
        next_attempt_at: match step.state {
            State::UndoPending { .. } if step.kids.is_some() => None,
            State::Pending { not_before } | State::UndoPending { not_before } => not_before,
            State::Processing { .. }
            | State::Waiting { .. }
            | State::Processed
            | State::Failed
            | State::Skipped
            | State::PassedOver
            | State::Caught
            | State::UndoProcessing { .. }
            | State::Undone
            | State::UndoFailed => None,
        },
        event: spec.event().map(|event| event.name.clone()),
        wait: spec.asks().filter(|_| spec.poll.is_none()),
        waiting_since: step.turn.filter(|_| waits_until.is_some()),
        waiting_until: waits_until,
        reminders: step.reminded.as_ref().map(|reminded| reminded.sent),
        next_reminder_at: step.reminds_at().filter(|_| task.phase == Phase::Forward),
        missing: waits_until.and(spec.event().and_then(|event| event.people)).map(|_| task.places(index, workflow)),
        polls_until: step.poll_until.filter(|_| polls),
        last_look: step.error.clone().filter(|_| polls),
        pages: step.pages.as_ref().map(|pages| PagesStatus { taken: pages.taken, items: pages.items }),
        progress: step.heart.as_ref().map(|heart| ProgressStatus {
            at: heart.at,
            percent: heart.percent,
            note: heart.note.clone(),
            until: heart.until,
        }),
        last_error: step.error.clone().filter(|_| !is_passed_over && !polls),
        passed_over: step.error.clone().filter(|_| is_passed_over),
        held_back: task.is_held_back(index),
        changed_at: task.last_entry(index).map(|entry| entry.at(task.created_at)),
        output: step.output.clone(),
        output_bytes: step.beside.as_ref().map(|beside| beside.bytes),
    }
}

/// The names of all states of a step.
pub const STATE_NAMES: [&str; 12] = [
    "Pending",
    "Processing",
    "Waiting",
    "Processed",
    "Failed",
    "Skipped",
    "PassedOver",
    "Caught",
    "UndoPending",
    "UndoProcessing",
    "Undone",
    "UndoFailed",
];

/// The name of a step's state, as in the record.
#[must_use]
pub fn state_name(state: &State) -> &'static str {
    match state {
        State::Pending { .. } => "Pending",
        State::Processing { .. } => "Processing",
        State::Waiting { .. } => "Waiting",
        State::Processed => "Processed",
        State::Failed => "Failed",
        State::Skipped => "Skipped",
        State::PassedOver => "PassedOver",
        State::Caught => "Caught",
        State::UndoPending { .. } => "UndoPending",
        State::UndoProcessing { .. } => "UndoProcessing",
        State::Undone => "Undone",
        State::UndoFailed => "UndoFailed",
    }
}
