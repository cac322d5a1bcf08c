//! The messages: to the scheduler's queue, to agents' queues, to the submitter's queue and to the event bus. All are
//! JSON.

use crate::expression::Expression;
use crate::history::{MAX_TEXT, shorten};
use crate::json::is_default;
use crate::order::Id;
use crate::retry::Calls;
use crate::step::{Direction, FailureKind};
use crate::task::{Priority, ProcessState, Task};
use crate::time::{SignedDuration, Timestamp};
use crate::workflow::aws::Aws;
use crate::workflow::child::ToChild;
use crate::workflow::http::Http;
use crate::workflow::poll::Look;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Longest delay of an SQS message; the supervisor's sweep handles longer waits.
pub const MAX_DELAY: SignedDuration = SignedDuration::from_secs(900);
/// Maximum number of times a Wake re-sends itself before the sweep takes over. This bounds any loop of messages.
pub const MAX_HOPS: u32 = 100;
/// Longest output in a task's record, in bytes of JSON. Keep large results elsewhere, and return a reference to them.
pub const MAX_OUTPUT: usize = 4096;
/// Longest body of a refusal that `catch` and later steps see, in bytes of JSON. The task's record keeps it.
pub const MAX_ANSWER: usize = 1024;

/// A message on one of the scheduler's queues; replies have their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ToScheduler {
    /// Look at this task.
    Wake(Wake),
    /// An agent's answer.
    Reply(Reply),
    /// Undo what was done and stop.
    Cancel(Cancel),
}

impl ToScheduler {
    /// The task it is about.
    #[must_use]
    pub fn task_id(&self) -> &Id {
        match self {
            Self::Wake(wake) => &wake.task_id,
            Self::Reply(reply) => &reply.task_id,
            Self::Cancel(cancel) => &cancel.task_id,
        }
    }
}

/// Asks a scheduler to look at a task. It decides nothing by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wake {
    /// The task.
    pub task_id: Id,
    /// The version its sender knew. Requests of later claims may not have been sent.
    pub seen: u64,
    /// How often it has re-sent itself.
    #[serde(default)]
    pub hops: u32,
    /// The W3C trace context of the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// A child of the task has ended. No effects before it may be missing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hint: bool,
    /// The step that the hint is about. `None`, as in messages of earlier versions, means every step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The order's tenant, for the message group.
    #[serde(skip)]
    pub tenant: String,
    /// The order's priority, for the choice of the queue.
    #[serde(skip)]
    pub priority: Priority,
}

impl Wake {
    /// A Wake for `task`, whose sender knows it up to version `seen`.
    #[must_use]
    pub fn new(task: &Task, seen: u64, hops: u32) -> Self {
        Self {
            task_id: task.id.clone(),
            seen,
            hops,
            traceparent: task.traceparent.clone(),
            hint: false,
            step: None,
            tenant: task.tenant.clone(),
            priority: task.priority,
        }
    }

    /// Tells `parent` that its child `task` has ended. Names the child's item, if any, instead of a version.
    #[must_use]
    pub fn hint(task: &Task, parent: &Id) -> Self {
        let item = task.parent.as_ref().and_then(|parent| parent.item).unwrap_or(0);
        let step = task.parent.as_ref().map(|parent| parent.step.clone());
        Self { task_id: parent.clone(), hint: true, step, ..Self::new(task, item.into(), 0) }
    }

    /// Makes `task` look again at the list of `step`. For an ended task, `part` of its children is next.
    #[must_use]
    pub fn look(task: &Task, part: u32, step: Option<&str>) -> Self {
        Self { hint: true, step: step.map(str::to_owned), ..Self::new(task, task.version, part) }
    }

    /// Whether it continues a release.
    pub(crate) fn is_release(&self) -> bool {
        self.hint && self.hops > 1
    }
}

/// A request by a person or a program to stop an order and undo it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cancel {
    /// The task.
    pub task_id: Id,
    /// Who asked.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A request to an agent. It carries everything the agent needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// The task, which is the order's id.
    pub task_id: Id,
    /// Name of the step.
    pub step: String,
    /// Name of the agent asked.
    pub agent: String,
    /// The pool of that agent it goes to; `None` for the pool named like the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// The call to make, for the agent called `http`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Replaces `http` if the call maps a body or an output. An earlier agent, which would send another body under the
    /// same key, finds no `http` and gives the request back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Http>,
    /// Replaces `http` if the host came with the order. An earlier agent, which does not check it against the
    /// deployment's list, must not make the call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Http>,
    /// The signed call to make, instead of one over HTTP. An earlier version of the agent finds no call and gives the
    /// request back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Aws>,
    /// If a step polls over HTTP or in AWS: the conditions on the answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub look: Option<Look>,
    /// If the service may report later: the address for its report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub callback: Option<String>,
    /// Which answers to such a call over HTTP or to AWS only accept the work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<Expression>,
    /// If the agent sends heartbeats: where to, and how often.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Heartbeat>,
    /// How long the message is held back, in milliseconds, at most [`MAX_DELAY`].
    #[serde(default, skip_serializing_if = "is_default")]
    pub delay_ms: u64,
    /// The step itself or its undo.
    pub direction: Direction,
    /// Number of this attempt; the reply must carry it back.
    pub attempt: u32,
    /// For a reminder of a waiting step: its number in the order. It is no attempt, so `attempt` is 0 and a reply does
    /// not count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reminder: Option<u32>,
    /// Sent to the remote service with every call; the same for all attempts at this step in this direction.
    pub idempotency_key: String,
    /// After this time the agent stops and stays silent (UTC, milliseconds).
    pub complete_by: Timestamp,
    /// How the agent repeats calls within this attempt.
    pub calls: Calls,
    /// Tenant that owns the order.
    pub tenant: String,
    /// Priority of the order.
    #[serde(default)]
    pub priority: Priority,
    /// The order's input, or the input that an operator set for this step.
    #[serde(default)]
    pub input: Value,
    /// Outputs of the steps this one depends on, directly or indirectly, by step name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub outputs: BTreeMap<String, Value>,
    /// For an undo: the output of the step to undo; null if its outcome is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// For an undo: the idempotency key under which the step was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undoes: Option<String>,
    /// The W3C trace context that the order was submitted with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The heartbeats of an attempt. Each is a POST whose answer has the new `complete_by`, or says that the agent has to
/// stop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Their address. Who knows it can keep the attempt alive.
    pub url: String,
    /// The interval, in milliseconds.
    pub every_ms: u64,
}

impl Request {
    /// The call over HTTP to make, if it is one.
    #[must_use]
    pub fn over_http(&self) -> Option<&Http> {
        self.held.as_ref().or(self.call.as_ref()).or(self.http.as_ref())
    }
}

/// An agent's answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The task, as in the request.
    pub task_id: Id,
    /// Name of the step, as in the request.
    pub step: String,
    /// The attempt, as in the request.
    pub attempt: u32,
    /// The order's tenant, for the message group.
    #[serde(skip)]
    pub tenant: String,
    /// How long the request waited in the agent's queue, in milliseconds, if long enough to matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queued_ms: Option<u64>,
    /// The trace context, as in the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// If the attempt failed: the status of the service's answer, such as 409, for the step's `catch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// If the attempt failed: the body of the service's answer, if JSON of at most [`MAX_ANSWER`] bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Value>,
    /// `mistake` if the service did its work, but the attempt failed because the answer was unusable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<FailureKind>,
    /// For a refusal: after an earlier call of the attempt it is unknown what the service did.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// The agent checked the answer by [`Request::look`] or [`Request::accept`]. An earlier version knows neither, so
    /// its `Done` counts as not yet, or as accepted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub looked: bool,
    /// For a failure: the agent found it before any call, so the service refused nothing and no `catch` sees it. An
    /// earlier scheduler takes it for a refusal.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub uncalled: bool,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

impl Reply {
    /// An answer of an attempt, with nothing but its outcome.
    #[must_use]
    pub fn new(task_id: Id, step: &str, attempt: u32, outcome: Outcome) -> Self {
        let (tenant, queued_ms, traceparent) = Default::default();
        let (status, answer, kind, unsure, looked, uncalled) = Default::default();
        let step = step.into();
        Self {
            task_id,
            step,
            attempt,
            tenant,
            queued_ms,
            traceparent,
            status,
            answer,
            kind,
            unsure,
            looked,
            uncalled,
            outcome,
        }
    }

    /// The answer to `request`.
    #[must_use]
    pub fn to(request: &Request, outcome: Outcome) -> Self {
        Self {
            tenant: request.tenant.clone(),
            traceparent: request.traceparent.clone(),
            ..Self::new(request.task_id.clone(), &request.step, request.attempt, outcome)
        }
    }
}

/// How an attempt went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// Done, or undone.
    Done {
        /// What the next steps and the undo need to know; at most [`MAX_OUTPUT`] bytes of JSON, nested at most
        /// [`MAX_DEPTH`](crate::json::MAX_DEPTH) levels deep.
        #[serde(default)]
        output: Value,
    },
    /// Done, but [`crate::json::check`] refuses the output, because it could not be stored as sent. No message has this
    /// outcome; the reader of a reply sets it.
    #[serde(skip)]
    Garbled {
        /// What is wrong with the output.
        error: String,
    },
    /// It can never succeed: retrying is useless.
    Failed {
        /// Why, in words.
        error: String,
    },
    /// The agent's own retries are spent before `complete_by`. The same failure as silence, but known earlier.
    Unavailable {
        /// Why, in words.
        error: String,
        /// The wait that the remote service asked for (`Retry-After`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        retry_after_ms: Option<u64>,
    },
    /// The service accepted the work and reports its end later.
    Accepted {
        /// What the undo needs to know until then; as [`Outcome::Done::output`].
        #[serde(default)]
        output: Value,
    },
    /// For a step that polls: the work is neither done nor failed.
    NotYet {
        /// What the answer said, in words.
        why: String,
    },
    /// Not tried, because the circuit breaker of the remote service is open: no failure is counted.
    Deferred {
        /// Why, in words.
        error: String,
        /// How long to wait, in milliseconds.
        retry_after_ms: u64,
    },
}

/// The kinds of notice a submitter gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    /// The order is stored.
    Received,
    /// A step is done.
    StepCompleted,
    /// All steps are done.
    Completed,
    /// A step failed permanently, or somebody cancelled: the undo follows.
    Failed,
    /// Everything is undone.
    Undone,
    /// The order stopped and waits for an operator.
    AttentionNeeded,
}

/// A notice to the submitter's own queue, delivered at least once. `seq` rises with every change.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// Registered name of the queue it goes to.
    #[serde(skip)]
    pub queue: String,
    /// What happened.
    pub kind: NoticeKind,
    /// The order.
    pub order_id: Id,
    /// The order's tenant; empty in a notice from a version that did not send it.
    #[serde(default)]
    pub tenant: String,
    /// The workflow's name; empty in a notice from a version that did not send it.
    #[serde(default)]
    pub workflow: String,
    /// The submitter's own reference.
    pub reference: Option<String>,
    /// Sequence number: the version of the task.
    pub seq: u64,
    /// When it happened (UTC, milliseconds).
    pub at: Timestamp,
    /// The order's state after it.
    pub state: ProcessState,
    /// The step it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<String>,
    /// Why, if something failed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// While the undo waits: until this time an earlier request may still start (UTC, milliseconds).
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub undo_from: Option<Timestamp>,
    /// The W3C trace context that the order was submitted with.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub traceparent: Option<String>,
    /// What happened so far, oldest first.
    pub history: Vec<HistoryEntry>,
}

/// An entry of a task's history, spelled out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HistoryEntry {
    /// When (UTC, milliseconds).
    pub at: Timestamp,
    /// The event.
    pub event: String,
    /// Name of the step, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub step: Option<String>,
    /// Number of the attempt, if any.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub attempt: Option<u32>,
    /// Error, reason or name of the person, if there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub detail: Option<String>,
}

/// An operator alert: the detail of an event on the bus.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlertEvent {
    /// The order.
    pub order_id: Id,
    /// The workflow's name.
    pub workflow: String,
    /// Tenant that owns the order.
    pub tenant: String,
    /// The step that failed.
    pub step: Option<String>,
    /// Attempts at that step so far.
    pub attempts: u32,
    /// Why it stopped.
    pub reason: String,
    /// The last error of that step.
    pub last_error: Option<String>,
    /// Version of the task the alert is about.
    pub version: u64,
    /// The command that resubmits the order from the failed step.
    pub resubmit: String,
    /// Where the runbook for this alert is.
    pub runbook: String,
}

impl AlertEvent {
    /// The alert about an order whose record cannot be read. Only the order's id is known.
    #[must_use]
    pub fn unreadable(id: &Id, why: &str) -> Self {
        Self {
            order_id: id.clone(),
            workflow: String::new(),
            tenant: String::new(),
            step: None,
            attempts: 0,
            reason: format!("this order cannot move on: {}", shorten(why, MAX_TEXT)),
            last_error: None,
            version: 0,
            // Once readable, the order continues by itself; until then this leads to the one action that helps.
            resubmit: format!("stepwarden get {id} --raw"),
            runbook: "docs/runbook.md#record-unreadable".into(),
        }
    }
}

/// An operator alert about an agent in trouble: the detail of an event on the bus.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Strained {
    /// The agent.
    pub agent: String,
    /// Since when (UTC, milliseconds).
    pub since: Timestamp,
    /// How many orders of a sweep it held up.
    pub held: u32,
    /// How many orders that sweep looked at.
    pub looked_at: u32,
    /// What its back-offs are multiplied by.
    pub stretch: u32,
    /// The command that pauses the agent.
    pub pause: String,
    /// The command that resumes it.
    pub resume: String,
    /// Where the runbook for this alert is.
    pub runbook: String,
}

/// A message that cannot be handled, kept for a person with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetAside {
    /// Name of the queue it came from.
    pub queue: String,
    /// Its id in that queue.
    pub message_id: String,
    /// Why it cannot be handled.
    pub reason: String,
    /// Its body; unchanged, unless `is_cut`.
    pub body: String,
    /// The body was too long to be kept whole.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cut: bool,
}

/// Something to send after a save.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// To an agent's queue.
    Request(Box<Request>),
    /// To the scheduler's queue, after a delay of at most [`MAX_DELAY`].
    Wake(Wake, SignedDuration),
    /// To the submitter's queue.
    Notice(Box<Notice>),
    /// To the event bus.
    Alert(Box<AlertEvent>),
    /// From an agent to the scheduler's queue of replies.
    Reply(Box<Reply>),
    /// From a handler to the queue of messages set aside, and an alert about it to the event bus.
    SetAside(Box<SetAside>),
    /// From a supervisor to the event bus.
    Strained(Box<Strained>),
    /// To another order, in the state store. No message: the engine does it.
    Child(Box<ToChild>),
}
