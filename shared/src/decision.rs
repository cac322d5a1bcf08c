//! What goes into a decision about a task, and what comes out of it: shared by [`crate::scheduler`], [`crate::operator`] and
//! [`crate::change`], so that none of them needs another's types.

use crate::control::Agents;
use crate::message::{Effect, Reply};
use crate::pools::Pools;
use crate::task::Task;
use crate::time::{SignedDuration, Timestamp};
use crate::workflow::Workflow;
use serde_json::Value;

/// Who decides, when, and by which rules.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The definition the task is pinned to.
    pub workflow: &'a Workflow,
    /// Now (UTC, milliseconds).
    pub now: Timestamp,
    /// The deciding instance; becomes LockedBy of what it claims.
    pub instance: &'a str,
    /// How far apart the clocks of two instances may be.
    pub skew: SignedDuration,
    /// Which agents are paused: their steps are not claimed.
    pub agents: &'a Agents,
    /// The agents' pools, and how they do.
    pub pools: &'a Pools,
}

/// What happened to a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Somebody thinks there is something to do.
    Wake {
        /// The version its sender knew.
        seen: u64,
        /// How often the Wake has re-sent itself.
        hops: u32,
    },
    /// An agent answered.
    Reply(Reply),
    /// Undo what was done and stop, asked for by a message. It is delivered again until its effects are out, so unlike
    /// [`What::Cancel`] it owes no notice.
    Cancel {
        /// Who asked.
        by: String,
        /// Why.
        reason: String,
    },
    /// An operator does something to it.
    Act(Act),
    /// The alert that arose at this version is out.
    AlertSent {
        /// [`crate::task::Alert::version`].
        version: u64,
    },
    /// The strict final notice of the end at this version is out.
    NoticeSent {
        /// [`Task::turned_at`].
        version: u64,
    },
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Save this record in place of the version before it, then send.
    Save {
        /// The next record.
        task: Box<Task>,
        /// To be sent once it is saved.
        effects: Vec<Effect>,
    },
    /// Change nothing.
    Keep {
        /// Why.
        why: Kept,
        /// To be sent all the same: an earlier delivery may have died before it did.
        effects: Vec<Effect>,
    },
}

/// Why an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// Nothing can be claimed at this time.
    NothingReady,
    /// The reply was counted before.
    Repeated,
    /// The reply came at or after `complete_by`: only the supervisor acts now.
    Late,
    /// The reply belongs to an attempt that no longer holds the step.
    Stale,
    /// The message names a step or an attempt that never was: it is not ours.
    Foreign,
    /// The operator looked at an older version.
    Moved,
    /// The operator's act does not fit the task's state.
    Refused(Refusal),
}

/// What a person does to one order.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// What.
    pub what: What,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The version they looked at.
    pub seen: Option<u64>,
}

/// The kinds of act. A step may be left out where only one comes into question.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// Go on from the failed steps, in the direction that failed; every failed step gets its whole ladder again.
    Resubmit {
        /// The failed step that gets `input`. Where none has failed, because the record was full, one that has an input of its own.
        step: Option<String>,
        /// In place of the order's input, for that step only.
        input: Option<Value>,
    },
    /// Leave a failed step, or a failed undo, out.
    Skip {
        /// Which.
        step: Option<String>,
    },
    /// A failed step, or a failed undo, was done by hand.
    MarkDone {
        /// Which.
        step: Option<String>,
        /// What the agent would have returned.
        output: Value,
    },
    /// End the wait of a step, or of all that wait.
    RetryNow {
        /// Which.
        step: Option<String>,
    },
    /// Stop an order that has not ended, and undo what was done.
    Cancel,
    /// The same, also for an order that is Processed.
    Undo,
    /// Claim nothing more until resumed.
    Pause,
    /// End the pause.
    Resume,
}

/// Why an act does not fit. `Display` is a sentence for the person.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Resubmission of an order that is not in Error.
    #[error("the order is not in Error, so there is nothing to resubmit")]
    NotStopped,
    /// The order has ended.
    #[error("the order has ended")]
    Ended,
    /// The order waits for a person already.
    #[error("the order is in Error; resubmit, skip, mark done, or undo")]
    Stopped,
    /// Its undo has begun.
    #[error("the undo has begun; it can only be brought to its end")]
    UndoBegun,
    /// A step that may have run cannot be undone.
    #[error("a step that may have run is irreversible; resubmit, skip or mark done instead")]
    Irreversible,
    /// The workflow has no such step.
    #[error("the workflow has no step of this name")]
    UnknownStep,
    /// More than one step comes into question.
    #[error("more than one step comes into question; name one")]
    Ambiguous,
    /// The step did not fail.
    #[error("no such step has failed or waits after a failure")]
    NotFailed,
    /// The step is with an agent.
    #[error("the step is with an agent; wait for its reply or its CompleteBy")]
    WithAgent,
    /// Nothing waits for a time.
    #[error("nothing waits for its next attempt")]
    NothingWaits,
    /// The order is paused.
    #[error("the order is paused; resume it first")]
    Paused,
    /// The order is not paused.
    #[error("the order is not paused")]
    NotPaused,
    /// The output is longer than [`MAX_OUTPUT`].
    #[error("the output is longer than 4096 bytes; give a reference to it")]
    LongOutput,
    /// The output is nested deeper than [`json::MAX_DEPTH`].
    #[error("the output is nested too deep: at most 50 levels of arrays and objects are taken")]
    DeepOutput,
    /// The input is longer than [`MAX_INPUT`], nested deeper than [`json::MAX_DEPTH`], or no object.
    #[error("the input must be a JSON object of at most 16384 bytes, nested at most 50 levels deep")]
    BadInput,
    /// The inputs put in place of the order's are longer than [`MAX_INPUTS`] together.
    #[error(
        "the inputs of this order's steps would be longer than 65536 bytes together; give a reference in place of one"
    )]
    LongInputs,
}
