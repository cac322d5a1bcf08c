//! The TASK record: everything the system knows about one order's progress. It is the truth; messages are only hints.

use crate::again::Again;
use crate::history;
use crate::json::is_default;
use crate::message::MAX_DELAY;
use crate::migrate::Migration;
use crate::order::Id;
use crate::step::{Direction, State, Step};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::edge::{After, Edge};
use crate::workflow::{Hash, Workflow};
use jiff::fmt::serde::timestamp::millisecond;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The phase of a whole task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Phase {
    /// Its steps are being done.
    #[default]
    Forward,
    /// What was or may have been done is being undone.
    Undoing,
    /// All steps are done.
    Processed,
    /// Everything that was or may have been done is undone.
    Undone,
    /// It stopped and waits for an operator.
    Error,
    /// An undo failed permanently; it stopped and waits for an operator.
    UndoError,
}

/// The pattern's ProcessState, computed from phase and steps. A column of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProcessState {
    /// Open, and no step is with an agent.
    Pending,
    /// Open, and at least one step is with an agent.
    Processing,
    /// All steps are done.
    Processed,
    /// Being undone.
    Undoing,
    /// Undone.
    Undone,
    /// Stopped; an operator is alerted.
    Error,
}

impl ProcessState {
    /// All states, in the sequence of lists and summaries.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Processing, Self::Processed, Self::Undoing, Self::Undone, Self::Error];

    /// The name used in records, messages and the API.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "Pending",
            Self::Processing => "Processing",
            Self::Processed => "Processed",
            Self::Undoing => "Undoing",
            Self::Undone => "Undone",
            Self::Error => "Error",
        }
    }

    /// Nothing more happens unless a person acts.
    #[must_use]
    pub fn is_final(self) -> bool {
        match self {
            Self::Processed | Self::Undone | Self::Error => true,
            Self::Pending | Self::Processing | Self::Undoing => false,
        }
    }
}

/// Priority of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Priority {
    /// Handled last.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Handled first.
    High,
}

/// An operator alert that is owed until it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alert {
    /// The task's version when it arose. Sending it clears it only if no later one has replaced it.
    #[serde(rename = "v")]
    pub version: u64,
    /// The step that failed, by position.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u16>,
    /// What failed and why, in words.
    #[serde(rename = "r")]
    pub reason: String,
}

/// Most events that an order keeps for steps to come.
pub const MAX_KEPT: usize = 16;
/// Longest data of an event, in bytes of JSON.
pub const MAX_EVENT: usize = 4096;

/// An event that was accepted. Its key stays for the whole order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Arrival {
    /// Its name.
    #[serde(rename = "n")]
    pub name: String,
    /// Its idempotency key.
    #[serde(rename = "k")]
    pub key: String,
    /// Hash of its data.
    #[serde(rename = "h")]
    pub hash: String,
    /// The step that took it, by position.
    #[serde(rename = "s", default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u16>,
    /// Its data, an object, while it is kept for a later step or counts for a step that waits for more people. Without
    /// data and step it is unused.
    #[serde(rename = "d", default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
    /// The authenticated person who sent it, if a step that waits for its name counts people.
    #[serde(rename = "b", default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
}

impl Arrival {
    /// Whether step `index` took it, or counts it.
    #[must_use]
    pub fn is_of(&self, index: usize) -> bool {
        self.step.map(usize::from) == Some(index)
    }

    /// Whether it is kept for a step to come.
    #[must_use]
    pub fn is_kept(&self) -> bool {
        self.data.is_some() && self.step.is_none()
    }
}

/// The position of a step as a record has it.
pub(crate) fn as_position(index: usize) -> u16 {
    u16::try_from(index).expect("at most MAX_STEPS steps")
}

/// The order that started this one, for one of its steps.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// The order.
    #[serde(rename = "id")]
    pub id: Id,
    /// Its step, by name.
    #[serde(rename = "s")]
    pub step: String,
    /// If the step has a list, the position of the child's item.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// The latest round that the child knows of.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub round: u32,
    /// Paused because the parent was.
    #[serde(rename = "z", default, skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
    /// The parent has ended, so the child may expire.
    #[serde(rename = "x", default, skip_serializing_if = "std::ops::Not::not")]
    pub released: bool,
}

/// What the steps before a step mean for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One of them is unsettled.
    Wait,
    /// It is passed over: this one of them did not run.
    PassOver(usize),
    /// Its turn has come.
    Go,
}

/// The record of one task. Its JSON is the item's `task` attribute; the skipped fields are separate columns.
///
/// Unknown fields are refused here, in steps and in alerts, because a save would drop them. So a new field needs two
/// releases: the first reads it, the second writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The order's id. Column `pk`.
    #[serde(skip)]
    pub id: Id,
    /// Number of changes so far; every save names the version it read. Column `version`.
    #[serde(skip)]
    pub version: u64,
    /// Mark of the save that wrote this version, unique per attempt to save. Column `stamp`.
    #[serde(skip)]
    pub stamp: String,
    /// Shard of the due index, with [`URGENT`] and [`MOVED`]. While `due` is set, column `shard` has it and prevails.
    #[serde(rename = "sh", default, skip_serializing_if = "is_default")]
    pub shard: u16,
    /// When a supervisor must look at it, perhaps too early but never late (UTC, milliseconds). Column `due`, present
    /// while the task is open or owes something.
    #[serde(skip)]
    pub due: Option<Timestamp>,
    /// Fencing token of the last supervisor that wrote it. Column `lease_token`.
    #[serde(skip)]
    pub lease_token: u64,
    /// When it was accepted (UTC, milliseconds). Column `created_at`.
    #[serde(skip)]
    pub created_at: Timestamp,
    /// When it last changed (UTC, milliseconds). Column `updated_at`.
    #[serde(skip)]
    pub updated_at: Timestamp,
    /// The workflow's name, for people.
    #[serde(rename = "wf")]
    pub workflow: String,
    /// The definition that this task is pinned to, whatever is deployed later.
    #[serde(rename = "wh")]
    pub workflow_hash: Hash,
    /// Its state.
    #[serde(rename = "ph")]
    pub phase: Phase,
    /// Version of its last turn to undo, a stop or an end, and number of that turn's notice; 0 before any turn and
    /// after a resubmission.
    #[serde(rename = "end", default, skip_serializing_if = "is_default")]
    pub turned_at: u64,
    /// One record per step, in the workflow's order.
    #[serde(rename = "st")]
    pub steps: Vec<Step>,
    /// Tenant that owns the order.
    #[serde(rename = "tn")]
    pub tenant: String,
    /// The submitter's own reference.
    #[serde(rename = "ref", default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// The submitter's labels, sorted. Its children have none.
    #[serde(rename = "lb", default, skip_serializing_if = "Vec::is_empty")]
    pub labels: Vec<String>,
    /// Registered name of the submitter's response queue.
    #[serde(rename = "rq", default, skip_serializing_if = "Option::is_none")]
    pub reply_queue: Option<String>,
    /// Priority of the order.
    #[serde(rename = "pr", default, skip_serializing_if = "is_default")]
    pub priority: Priority,
    /// The W3C trace context it was submitted with, `traceparent`.
    #[serde(rename = "tp", default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The latest `complete_by` of any forward attempt: no forward call starts after it (UTC, milliseconds).
    #[serde(rename = "fb", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub forward_by: Option<Timestamp>,
    /// When its steps must be done; if it still goes forward then, a supervisor ends it (UTC, milliseconds).
    #[serde(rename = "dl", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub deadline: Option<Timestamp>,
    /// When an operator paused it; only an open task can be paused (UTC, milliseconds).
    #[serde(rename = "pz", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub paused_at: Option<Timestamp>,
    /// Version of the last action of a person, 0 if there was none; used to recognise a repeated action.
    #[serde(rename = "act", default, skip_serializing_if = "is_default")]
    pub acted_at: u64,
    /// First version that showed that action's operator the same; 0 if it is the one before the action.
    #[serde(rename = "acon", default, skip_serializing_if = "is_default")]
    pub acted_on: u64,
    /// Why the task failed, was cancelled, or stopped.
    #[serde(rename = "why", default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// An operator alert that has not gone out yet.
    #[serde(rename = "al", default, skip_serializing_if = "Option::is_none")]
    pub alert: Option<Alert>,
    /// The notice of a stop or an end is still owed.
    #[serde(rename = "no", default, skip_serializing_if = "std::ops::Not::not")]
    pub notice_owed: bool,
    /// The record is removed some time after the task ends well, and a separate record keeps its id. Otherwise it
    /// stays, to prevent a second order under the same idempotency key.
    #[serde(rename = "xp", default, skip_serializing_if = "std::ops::Not::not")]
    pub expires: bool,
    /// Days until then, if the workflow of the order at the top says so; else the deployment's.
    #[serde(rename = "rt", default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<u16>,
    /// First and last version of a period of mere bookkeeping ([`Task::is_as_seen`]). Valid while the last is the
    /// current version.
    #[serde(rename = "bk", default, skip_serializing_if = "Option::is_none")]
    pub books: Option<(u64, u64)>,
    /// The secret behind tokens in addresses that a step hands out.
    #[serde(rename = "sc", default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// The events that it accepted, oldest first.
    #[serde(rename = "ev", default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<Arrival>,
    /// The order that started it, if one did.
    #[serde(rename = "pa", default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The definitions of its possible children and of theirs, by name. They are pinned when the order at the top is
    /// submitted.
    #[serde(rename = "df", default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<String, Hash>,
    /// A migration that an operator wants. Nothing is claimed until it is done.
    #[serde(rename = "mg", default, skip_serializing_if = "Option::is_none")]
    pub migration: Option<Migration>,
    /// The steps that are put back once they are undone. Until then only they are undone.
    #[serde(rename = "ag", default, skip_serializing_if = "Option::is_none")]
    pub again: Option<Again>,
    /// Its output, if it is done and its workflow has one.
    #[serde(rename = "out", default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// What happened.
    #[serde(rename = "log")]
    pub log: Vec<history::Entry>,
}

/// A submitter's choices, besides the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    /// The order's id.
    pub id: Id,
    /// Tenant that owns the order.
    pub tenant: String,
    /// The submitter's own reference.
    pub reference: Option<String>,
    /// Registered name of the submitter's response queue.
    pub reply_queue: Option<String>,
    /// Priority of the order.
    pub priority: Priority,
    /// Shard of the due index.
    pub shard: u16,
}

/// Most shards.
pub const MAX_SHARDS: u16 = 256;
/// Added to the shard of a task whose Wakes have their own queue, because notes are about one queue.
pub const URGENT: u16 = MAX_SHARDS;
/// Added instead of [`URGENT`] once `due` has changed, because the task has begun or a supervisor has looked after it.
/// So it no longer waits for its first Wake.
pub const MOVED: u16 = 2 * MAX_SHARDS;

/// The shard of a task in `shard` once its `due` has changed.
#[must_use]
pub fn moved(shard: u16) -> u16 {
    MOVED + shard % MAX_SHARDS
}

/// The shard of a new task, out of `shards` (1 to 256); `is_urgent` if its Wakes have their own queue.
#[must_use]
pub fn shard_of(id: &Id, shards: u16, is_urgent: bool) -> u16 {
    let shard = u16::try_from(id.spread() % u32::from(shards.clamp(1, MAX_SHARDS))).expect("a remainder of a u16");
    if is_urgent { URGENT + shard } else { shard }
}

/// Longest time from submission until a supervisor looks at a task whose first Wake was lost.
pub const MAX_GRACE: SignedDuration = SignedDuration::from_secs(60);

/// How long before the end of a long wait a sweep sends its delayed Wake. Longer than sweeps may be late.
pub const LOOK_AHEAD: SignedDuration = SignedDuration::from_mins(2);

/// Shorter waits are not listed, because they are over before anybody looks, and listing costs writes.
pub const LISTED_WAIT: SignedDuration = SignedDuration::from_mins(1);

/// How long the instance that saved an owed alert or notice has to send it. A supervisor that sent it earlier would
/// probably send it twice.
pub const OWED_GRACE: SignedDuration = SignedDuration::from_secs(2);

/// Longest wait between tries to send an owed message. It grows with the time it has been owed, so that rows whose
/// queue is gone for good cost little and hold up nothing. When the bus is back, alerts may wait this long.
pub const MAX_OWED_WAIT: SignedDuration = SignedDuration::from_mins(5);

/// Longest record of a task, in bytes of JSON. DynamoDB's limit for an item is 400 KiB; the columns take some of it.
pub const MAX_RECORD: usize = 390 * 1024;
/// How much longer the record of a task in Error may be, so that a task at the limit can stop with an alert.
pub const ERROR_RECORD: usize = 8 * 1024;
/// Space left free when the history is shortened, so that not every save has to shorten it.
const SPARE_RECORD: usize = 8 * 1024;
/// History entries that stay, however little room there is.
pub(crate) const KEPT_WHEN_FULL: usize = 10;

impl Task {
    /// A new task: Pending, no LockedBy, FailureCount 0, version 0.
    #[must_use]
    pub fn new(submission: Submission, workflow: &Workflow, now: Timestamp) -> Self {
        Self {
            id: submission.id,
            shard: submission.shard,
            due: Some(plus(now, workflow.deadline.map_or(grace(workflow), |time| time.min(grace(workflow))))),
            deadline: workflow.deadline.map(|time| plus(now, time)),
            created_at: now,
            updated_at: now,
            workflow: workflow.name.clone(),
            workflow_hash: workflow.hash(),
            steps: vec![Step::default(); workflow.steps.len()],
            tenant: submission.tenant,
            reference: submission.reference,
            reply_queue: submission.reply_queue,
            priority: submission.priority,
            retention: workflow.retention,
            ..Self::default()
        }
    }

    /// Whether a person who looked at version `seen` saw the order as it is now. Bookkeeping, such as clearing an alert
    /// that was sent, makes a version but no change for a person. A re-arm makes no version.
    #[must_use]
    pub fn is_as_seen(&self, seen: u64) -> bool {
        (self.same_since()..=self.version).contains(&seen)
    }

    /// The first version that showed the order as it is now.
    pub(crate) fn same_since(&self) -> u64 {
        self.books.filter(|(_, last)| *last == self.version).map_or(self.version, |(first, _)| first)
    }

    /// Whether the last action was on the order as version `seen` showed it.
    pub(crate) fn was_acted_on(&self, seen: u64) -> bool {
        let since = if self.acted_on == 0 { self.acted_at.saturating_sub(1) } else { self.acted_on };
        (since..self.acted_at).contains(&seen)
    }

    /// The latest entry about step `index`, if the history still has one.
    #[must_use]
    pub fn last_entry(&self, index: usize) -> Option<&history::Entry> {
        self.log.iter().rev().find(|entry| entry.2.is_some_and(|step| usize::from(step) == index))
    }

    /// Whether step `index` waits because its agent's circuit breaker was open when it was last tried.
    #[must_use]
    pub fn is_held_back(&self, index: usize) -> bool {
        let waits = matches!(
            self.steps[index].state,
            State::Pending { not_before: Some(_) } | State::UndoPending { not_before: Some(_) }
        );
        waits && self.last_entry(index).is_some_and(|entry| entry.1 == history::Kind::Deferred)
    }

    /// The pattern's ProcessState.
    #[must_use]
    pub fn process_state(&self) -> ProcessState {
        match self.phase {
            Phase::Forward if self.steps.iter().any(|s| s.claim().is_some()) => ProcessState::Processing,
            Phase::Forward => ProcessState::Pending,
            Phase::Undoing => ProcessState::Undoing,
            Phase::Processed => ProcessState::Processed,
            Phase::Undone => ProcessState::Undone,
            Phase::Error | Phase::UndoError => ProcessState::Error,
        }
    }

    /// The pattern's LockedBy: the latest claimer among the steps with an agent; `None` without such a step.
    #[must_use]
    pub fn locked_by(&self) -> Option<&str> {
        self.steps.iter().filter(|s| s.claim().is_some()).max_by_key(|s| s.claimed_at).and_then(Step::locked_by)
    }

    /// The pattern's CompleteBy: the earliest deadline of a step with an agent.
    #[must_use]
    pub fn complete_by(&self) -> Option<Timestamp> {
        self.steps.iter().filter_map(|s| s.claim().map(|(_, by)| by)).min()
    }

    /// The pattern's FailureCount: the failures of all steps, forward and undo.
    #[must_use]
    pub fn failure_count(&self) -> u32 {
        self.steps.iter().map(|s| s.failures.saturating_add(s.undo_failures)).fold(0, u32::saturating_add)
    }

    /// When the undo may begin; `None` means at once. Until then a forward request may still start, even one
    /// redelivered after its step has answered. If services keep tombstones, such a request does nothing, so the undo
    /// waits only for open attempts.
    #[must_use]
    pub fn undo_from(&self, workflow: &Workflow, skew: SignedDuration) -> Option<Timestamp> {
        // A step without an undo gets no tombstone, so late requests are harmless only if it is done or untried.
        let is_settled = |step: &Step| step.state == State::Processed || !step.may_have_run();
        let mut steps = self.steps.iter().zip(&workflow.steps);
        let is_guarded = workflow.tombstones
            && steps.all(|(step, spec)| {
                spec.undo.is_some() && !spec.leaves_nothing(step) || step.claim().is_some() || is_settled(step)
            });
        let acts = self.steps.iter().zip(&workflow.steps).filter(|(_, spec)| !spec.looks_safely());
        let under_way = acts.filter_map(|(step, _)| step.claim()).filter(|(direction, _)| *direction == Direction::Do);
        let by = if is_guarded { under_way.map(|(_, by)| by).max() } else { self.forward_by };
        by.map(|by| plus(by, skew))
    }

    /// Until when the undo of this task waits, if it does.
    #[must_use]
    pub fn waits_to_undo(&self, workflow: &Workflow, skew: SignedDuration) -> Option<Timestamp> {
        let waits = self.phase == Phase::Undoing && self.paused_at.is_none() && !self.is_undo_begun();
        self.undo_from(workflow, skew).filter(|_| waits)
    }

    /// Whether the undo has been decided per step; from then on forward replies mean nothing.
    #[must_use]
    pub fn is_undo_begun(&self) -> bool {
        self.steps.iter().any(Step::is_undo_begun)
    }

    /// Whether the task is being undone and no step owes an undo: it is not decided yet, or all are done.
    #[must_use]
    pub fn owes_no_undo(&self) -> bool {
        self.phase == Phase::Undoing && !self.steps.iter().any(Step::owes_undo)
    }

    /// The positions of the steps that failed in the direction in which the task goes. A task that is being undone may
    /// have steps that failed before their first call. They have nothing to undo, so they do not count.
    pub fn failed(&self) -> impl Iterator<Item = usize> {
        let state = match self.phase {
            Phase::Forward | Phase::Error => Some(State::Failed),
            Phase::Undoing | Phase::UndoError => Some(State::UndoFailed),
            Phase::Processed | Phase::Undone => None,
        };
        let steps = self.steps.iter().enumerate();
        steps.filter(move |(_, step)| Some(&step.state) == state.as_ref()).map(|(index, _)| index)
    }

    /// What the steps before step `index` mean for it.
    #[must_use]
    pub fn way(&self, index: usize, workflow: &Workflow) -> Way {
        let after = &workflow.steps[index].after;
        if !after.iter().all(|after| self.steps[after.step].is_settled()) {
            return Way::Wait;
        }
        let goes = |after: &After| match (&self.steps[after.step].state, after.edge) {
            (State::Processed | State::Skipped, _) | (_, Edge::Always) => true,
            (_, Edge::Plain | Edge::IfRan) => false,
        };
        after.iter().find(|after| !goes(after)).map_or(Way::Go, |after| Way::PassOver(after.step))
    }

    /// Whether no step that depends on step `index`, directly or indirectly, still owes an undo.
    #[must_use]
    pub fn is_open_to_undo(&self, index: usize, workflow: &Workflow) -> bool {
        workflow.with_dependents(&[index]).into_iter().all(|next| next == index || !self.steps[next].owes_undo())
    }

    /// Steps that wait only for time: position, and when they can be claimed or their wait ends (`None`: at once).
    /// Empty while paused or before a migration.
    pub fn waiting<'a>(&'a self, workflow: &'a Workflow) -> impl Iterator<Item = (usize, Option<Timestamp>)> + 'a {
        let runs = self.paused_at.is_none() && self.migration.is_none();
        self.steps.iter().enumerate().filter(move |_| runs).filter_map(move |(i, step)| {
            match (self.phase, &step.state) {
                (Phase::Forward, State::Pending { not_before }) if self.way(i, workflow) != Way::Wait => {
                    Some((i, *not_before))
                }
                (Phase::Forward, State::Waiting { until, event: false }) => Some((i, Some(*until))),
                (Phase::Undoing, State::UndoPending { not_before }) if self.is_open_to_undo(i, workflow) => {
                    Some((i, *not_before))
                }
                _ => None,
            }
        })
    }

    /// Steps with a reminder to come: position, and when it is due.
    pub fn reminders(&self) -> impl Iterator<Item = (usize, Timestamp)> + '_ {
        let runs = self.phase == Phase::Forward && self.paused_at.is_none() && self.migration.is_none();
        self.steps.iter().enumerate().filter(move |_| runs).filter_map(|(i, step)| Some((i, step.reminds_at()?)))
    }

    /// When it can move to the definition that an operator wants: no step is with an agent, and no request can still
    /// start. `None` if nobody wants that or a step is with an agent.
    #[must_use]
    pub fn migrates_at(&self, skew: SignedDuration) -> Option<Timestamp> {
        let is_free = self.steps.iter().all(|step| step.claim().is_none());
        let migration = self.migration.as_ref().filter(|_| is_free)?;
        Some(self.forward_by.max(migration.from).map_or(self.updated_at, |by| plus(by, skew)))
    }

    /// Whether a step waits long enough to be listed for people, while the task goes forward.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let is_listed = |step: &Step| match step.state {
            // Its child may be listed itself.
            State::Waiting { until, .. } if step.kids.is_none() => {
                step.turn.is_none_or(|turn| turn.duration_until(until) >= LISTED_WAIT)
            }
            _ => false,
        };
        self.phase == Phase::Forward && self.paused_at.is_none() && self.steps.iter().any(is_listed)
    }

    /// Whether only the end of a wait can continue it: nothing can be claimed, and nothing is with an agent.
    #[must_use]
    pub fn only_waits(&self, workflow: &Workflow) -> bool {
        let is_waiting = |step: &Step| matches!(step.state, State::Waiting { .. });
        let has_work = |(index, step): (usize, &Step)| match step.state {
            State::Pending { .. } => self.way(index, workflow) != Way::Wait,
            _ => step.claim().is_some(),
        };
        let goes = self.phase == Phase::Forward && self.paused_at.is_none();
        goes && self.steps.iter().any(is_waiting) && !self.steps.iter().enumerate().any(has_work)
    }

    /// The positions of steps that are still to wait for an event called `name` and accept an early one.
    pub fn to_come<'a>(&'a self, name: &'a str, workflow: &'a Workflow) -> impl Iterator<Item = usize> + 'a {
        let steps = self.steps.iter().zip(&workflow.steps).enumerate();
        let open = steps.filter(move |(_, (step, spec))| {
            matches!(step.state, State::Pending { .. })
                && spec.event().is_some_and(|e| e.name == name && !e.refuse_early)
        });
        open.map(|(index, _)| index).filter(move |index| self.places(*index, workflow) > 0)
    }

    /// How many more events step `index` takes: one, or one per person that it still needs.
    #[must_use]
    pub fn places(&self, index: usize, workflow: &Workflow) -> usize {
        let Some(event) = workflow.steps[index].event() else { return 0 };
        match event.people {
            Some(people) => usize::from(people).saturating_sub(self.counted(index).count()),
            None => usize::from(!self.events.iter().any(|event| event.is_of(index))),
        }
    }

    /// The events of different people that step `index` has while it waits for more of them, oldest first.
    pub fn counted(&self, index: usize) -> impl Iterator<Item = &Arrival> {
        self.events.iter().filter(move |event| event.is_of(index) && event.data.is_some())
    }

    /// Whether any step's turn has come.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.steps
            .iter()
            .any(|step| step.attempt > 0 || step.rounds.is_some() || !matches!(step.state, State::Pending { .. }))
    }

    /// The version that the order's first Wake names, when a submission is repeated: before the first claims, whose
    /// requests may be lost. `None` once they have been answered or have expired.
    #[must_use]
    pub fn first_wake(&self) -> Option<u64> {
        let is_first = |step: &Step| step.claim().is_some() && step.claimed_at == 1;
        match self.has_begun() {
            true => self.steps.iter().any(is_first).then_some(0),
            false => Some(self.version),
        }
    }

    /// The events that are kept for later steps.
    pub fn kept(&self) -> impl Iterator<Item = &Arrival> {
        self.events.iter().filter(|event| event.is_kept())
    }

    /// Whether a wait for a time ends, or a reminder is due, at `time` or earlier.
    #[must_use]
    pub fn waits_until(&self, time: Timestamp) -> bool {
        let is_short = |step: &Step| step.acts_at().is_some_and(|at| at <= time);
        self.phase == Phase::Forward && self.paused_at.is_none() && self.steps.iter().any(is_short)
    }

    /// The next time at which a step can be claimed or its wait ends; `None` if nothing waits. A time at or before `now`
    /// means at once.
    #[must_use]
    pub fn next_claim(&self, workflow: &Workflow, now: Timestamp, skew: SignedDuration) -> Option<Timestamp> {
        // The other definition decides what comes next.
        if self.migration.is_some() {
            return self.migrates_at(skew);
        }
        if self.paused_at.is_some() {
            return None;
        }
        if self.owes_no_undo() {
            return Some(self.undo_from(workflow, skew).unwrap_or(now));
        }
        let reminders = self.reminders().map(|(_, at)| at);
        self.waiting(workflow).map(|(_, from)| from.unwrap_or(now)).chain(reminders).min()
    }

    /// The earliest time when a supervisor has something to do here; `None` if never.
    #[must_use]
    pub fn wanted_due(&self, workflow: &Workflow, skew: SignedDuration) -> Option<Timestamp> {
        let owed = (self.alert.is_some() || self.notice_owed).then(|| plus(self.updated_at, OWED_GRACE));
        let expiry = self.next_deadline(skew);
        // The Wake for an immediate claim is on its way: look only in case it is lost.
        let in_case = |t: Timestamp| t.max(plus(self.updated_at, grace(workflow)));
        let next = match self.phase {
            _ if self.migration.is_some() => self.migrates_at(skew).map(in_case),
            Phase::Undoing if self.owes_no_undo() => self.next_claim(workflow, self.updated_at, skew).map(in_case),
            Phase::Forward | Phase::Undoing => {
                let ahead = |at: Timestamp| match at > plus(self.updated_at, MAX_DELAY) {
                    // A short wait has its Wake. The sweep that looks ahead sends that of a long one.
                    true => plus(at, -LOOK_AHEAD),
                    false => plus(at, grace(workflow)),
                };
                let look = |(index, from): (usize, Option<Timestamp>)| match (&self.steps[index].state, from) {
                    (State::Waiting { .. }, Some(at)) => ahead(at),
                    _ => in_case(from.unwrap_or(self.updated_at)),
                };
                self.waiting(workflow).map(look).chain(self.reminders().map(|(_, at)| ahead(at))).min()
            }
            Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => None,
        };
        [owed, expiry, next].into_iter().flatten().min()
    }

    /// Whether the order's deadline has passed on every clock. Then nothing starts until a supervisor ends the order.
    #[must_use]
    pub fn is_over(&self, now: Timestamp, skew: SignedDuration) -> bool {
        let counts = self.phase == Phase::Forward && self.paused_at.is_none();
        self.deadline.is_some_and(|deadline| counts && plus(deadline, skew) <= now)
    }

    /// When a supervisor, whose clock may be `skew` ahead, acts on the first deadline: of an attempt, of a wait for an
    /// event or its alert, or of the order. `None` while paused, which suspends all deadlines.
    #[must_use]
    pub fn next_deadline(&self, skew: SignedDuration) -> Option<Timestamp> {
        let is_forward = self.phase == Phase::Forward;
        let forward = self.steps.iter().filter(|_| is_forward);
        let events = forward.flat_map(|step| {
            let until = step.asks_until().filter(|_| matches!(step.state, State::Waiting { .. }));
            // One alert is owed at a time.
            let alert = step.alert_at.filter(|_| self.alert.is_none() && step.asks_until().is_some());
            [until, alert].into_iter().flatten()
        });
        let own = self.deadline.filter(|_| is_forward);
        let first = own.into_iter().chain(self.complete_by()).chain(events).min();
        first.filter(|_| self.paused_at.is_none()).map(|by| plus(by, skew))
    }

    /// Longest record of this task, in bytes of JSON.
    #[must_use]
    pub fn most_bytes(&self) -> usize {
        match self.phase {
            Phase::Error | Phase::UndoError => MAX_RECORD + ERROR_RECORD,
            Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Undone => MAX_RECORD,
        }
    }

    /// Drops entries from the middle of the history until the record, now `bytes` long, fits with some room to spare.
    /// True if it fits. Everything else that grows is bounded and leaves room for a short history.
    pub fn make_room(&mut self, mut bytes: usize) -> bool {
        let most = self.most_bytes();
        while bytes > most - SPARE_RECORD && self.log.len() > KEPT_WHEN_FULL {
            let entry = self.log.remove(self.log.len() / 2);
            bytes -= serde_json::to_string(&entry).map_or(0, |json| json.len() + 1);
        }
        bytes <= most
    }

    /// Direction and deadline of the claim that holds step `index`, if that claim is number `attempt`.
    #[must_use]
    pub fn holds(&self, index: usize, attempt: u32) -> Option<(Direction, Timestamp)> {
        let step = self.steps.get(index)?;
        step.claim().filter(|_| step.attempt == attempt)
    }
}

/// How long a Wake may take before a supervisor looks after the task. At most the shortest timeout, so that no later
/// claim of a task without faults needs an earlier `due`. So such a task costs one index insert and one delete.
#[must_use]
pub fn grace(workflow: &Workflow) -> SignedDuration {
    workflow.shortest_timeout().min(MAX_GRACE)
}
