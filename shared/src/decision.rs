//! Input and output of a decision about a task, shared by [`crate::scheduler`], [`crate::operator`] and
//! [`crate::change`], so that none of them needs another's types.

use crate::again;
use crate::control::Agents;
use crate::message::{Effect, Reply};
use crate::migrate::Rule;
use crate::outputs::Outputs;
use crate::pools::Pools;
use crate::task::Task;
use crate::time::{SignedDuration, Timestamp};
use crate::workflow::child::Wish;
use crate::workflow::{Hash, Workflow};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Who decides, when, and on what.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The definition that the task is pinned to.
    pub workflow: &'a Workflow,
    /// The order's input, if [`Workflow::reads_input`]; else null.
    pub input: &'a Value,
    /// Now (UTC, milliseconds).
    pub now: Timestamp,
    /// The deciding instance, LockedBy of the steps it claims.
    pub instance: &'a str,
    /// Largest clock skew between two instances.
    pub skew: SignedDuration,
    /// Which agents are paused: their steps are not claimed.
    pub agents: &'a Agents,
    /// The agents' pools and their health.
    pub pools: &'a Pools,
    /// What is known of outputs beside the record.
    pub outputs: &'a Outputs,
    /// Where services reach the API of this deployment; empty if they cannot.
    pub public_url: &'a str,
}

/// What happened to a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A Wake asks a scheduler to look at the task.
    Wake {
        /// The version its sender knew.
        seen: u64,
        /// How often the Wake has re-sent itself.
        hops: u32,
    },
    /// A child of the task has ended, most likely.
    Hint {
        /// The task's version, if it sent the hint to itself; else the child's item.
        seen: u64,
        /// 0 if a child sent it. For an ended task, the next part of its children.
        part: u32,
        /// The step concerned. `None`, as in messages of earlier versions, means every step.
        step: Option<String>,
    },
    /// The parent wants something of this order. It may ask again.
    Asked {
        /// Its round.
        round: u32,
        /// What it wants.
        wish: Wish,
    },
    /// An agent answered.
    Reply(Reply),
    /// A message asks to stop the order and undo what was done. It is redelivered until its effects are sent, so unlike
    /// [`What::Cancel`] it owes nothing.
    Cancel {
        /// Who asked.
        by: String,
        /// Why.
        reason: String,
    },
    /// An operator acts on the order.
    Act(Act),
    /// An event came from outside. Nothing redelivers it.
    Arrived {
        /// Its name.
        name: String,
        /// Its idempotency key.
        key: String,
        /// Its data, an object of at most [`crate::task::MAX_EVENT`] bytes.
        data: Value,
        /// The authenticated person who sent it, if known; never a text chosen by the sender.
        by: Option<String>,
    },
    /// A service reported the end of accepted work. It may report again.
    CalledBack {
        /// The step.
        step: String,
        /// Its idempotency key.
        key: String,
        /// What it reported, of at most [`crate::workflow::accept::MAX_CALLBACK`] bytes.
        data: Value,
    },
    /// An agent reports that it still works on an attempt, and waits for the answer.
    Beat {
        /// The step.
        step: String,
        /// The attempt.
        attempt: u32,
        /// How far the work is.
        progress: Progress,
    },
    /// The alert of this version was sent.
    AlertSent {
        /// [`crate::task::Alert::version`].
        version: u64,
    },
    /// The notice of the end or stop at this version was sent.
    NoticeSent {
        /// [`Task::turned_at`].
        version: u64,
    },
}

/// How far the work is, as reported by the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How much of it is done, 0 to 100.
    pub percent: Option<u8>,
    /// A sentence, at most [`crate::workflow::beat::MAX_NOTE`] bytes.
    pub note: Option<String>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Replace the previous version with this record, then send.
    Save {
        /// The next record.
        task: Box<Task>,
        /// To be sent after the save.
        effects: Vec<Effect>,
    },
    /// Change nothing.
    Keep {
        /// Why.
        why: Kept,
        /// To be sent anyway: an earlier delivery may have died before sending.
        effects: Vec<Effect>,
    },
}

impl Decision {
    /// Changes and sends nothing.
    pub(crate) fn keep(why: Kept) -> Self {
        Self::Keep { why, effects: Vec::new() }
    }
}

/// Why an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// Nothing can be claimed at this time.
    NothingReady,
    /// A look that is on its way will find the child's end.
    Expected,
    /// The reply was counted before.
    Repeated,
    /// The reply came at or after `complete_by`, when only the supervisor acts.
    Late,
    /// The reply belongs to an attempt that no longer holds the step.
    Stale,
    /// The message names a step or an attempt that never existed.
    Foreign,
    /// The heartbeat counts, but needs no write yet.
    Alive,
    /// The operator looked at an older version.
    Moved,
    /// The operator's action does not fit the task's state.
    Refused(Refusal),
    /// The event is not accepted.
    Declined(Declined),
}

/// Why an event is not accepted. `Display` is a sentence for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Declined {
    /// The workflow has no such event.
    #[error("no step of the order's workflow waits for an event of this name; send one of the events that `get` shows")]
    Unknown,
    /// The key belongs to an event with other data or another name.
    #[error("another event of this order was sent under this key; use a new key for each event")]
    KeyReused,
    /// Its step counts people, and its sender is unknown.
    #[error(
        "the step counts people, and the request does not say whose event it is; sign it, or send a token with a `sub`"
    )]
    NoPerson,
    /// This person's event counts already, with other data.
    #[error(
        "the same person has already sent an event of this name with other data; each person counts once, so somebody \
         else has to send this one"
    )]
    SamePerson,
    /// Its step does not wait yet, and refuses early events or has as many as it takes.
    #[error(
        "the step does not wait for the event yet, and no more events are kept for it; send the event again once \
         the step waits"
    )]
    Early,
    /// Its steps are being undone to run again, and will wait anew.
    #[error("the order is being undone so that steps can run again; send it again once that has finished")]
    RunsAgain,
    /// No step waits for it any more.
    #[error(
        "no step waits for this event any more: another event was taken, the step's time is over, or the order has \
         ended; look at the order"
    )]
    Late,
    /// As many events as an order keeps.
    #[error("the order already keeps 16 events for later steps, the maximum; send it again once a step has taken one")]
    Full,
    /// The step's `take` is false for it.
    #[error("the condition `take` of the waiting step is false for this event; send an event for which it is true")]
    NotTaken,
    /// The `take`, `failed` or `output` of its step has no value.
    #[error("`take`, `failed` or `output` of the step has no value for this event; send the fields that they read")]
    Unfit,
    /// What its step would keep of it is too long or too deep for the order.
    #[error(
        "the order has no room for the output that the step would make from this event; send a reference to the \
         data instead"
    )]
    TooLong,
}

/// What a person does to one order.
#[derive(Clone, Debug, PartialEq)]
pub struct Act {
    /// What to do.
    pub what: What,
    /// The operator's name.
    pub by: String,
    /// Why.
    pub reason: String,
    /// The version that the operator saw, if any.
    pub seen: Option<u64>,
}

/// The kinds of act. A step's name may be omitted if only one step qualifies; a step that waits for a time has to be
/// named.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum What {
    /// Continue from the failed steps, in the direction that failed. Every step gets its whole retry ladder again.
    Resubmit {
        /// The failed step that gets `input`. In a full record without failed steps: a step with its own input.
        step: Option<String>,
        /// Replaces the order's input for that step only.
        input: Option<Value>,
    },
    /// [`What::Resubmit`] with other inputs for failed items of a list. Each replaces the input of the item's order, or
    /// the item itself if the step makes a call.
    ResubmitItems {
        /// The failed step with the list.
        step: Option<String>,
        /// By item.
        inputs: BTreeMap<usize, Value>,
    },
    /// Skip a failed step, or a failed undo.
    Skip {
        /// The step's name.
        step: Option<String>,
    },
    /// Record a failed step, or a failed undo, as done by hand.
    MarkDone {
        /// The step's name.
        step: Option<String>,
        /// What the agent would have returned.
        output: Value,
    },
    /// End the wait of one step, or all waits.
    RetryNow {
        /// The step's name.
        step: Option<String>,
    },
    /// Stop an order that has not ended, and undo what was done.
    Cancel,
    /// [`What::Cancel`], even if it is Processed.
    Undo,
    /// Claim nothing more until resumed.
    Pause,
    /// End the pause.
    Resume,
    /// Move to the definition with this hash, once no step is with an agent. The present hash withdraws such a wish.
    Migrate {
        /// The definition.
        to: Hash,
        /// Then retry failed steps, like [`What::Resubmit`].
        resubmits: bool,
    },
    /// Do these steps, and all after them, again.
    RunAgain(again::Wish),
}

/// Why an order cannot move to another definition, or run again. `Display` is a sentence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle<R> {
    /// The rule that it breaks.
    pub rule: R,
    /// The step's name, if one step breaks it.
    pub step: Option<String>,
    /// More about it, if any.
    pub detail: Option<String>,
}

impl<R> Obstacle<R> {
    pub(crate) fn whole(rule: R) -> Self {
        Self { rule, step: None, detail: None }
    }

    pub(crate) fn at(rule: R, step: &str) -> Self {
        Self { step: Some(step.to_owned()), ..Self::whole(rule) }
    }
}

impl<R: fmt::Display> fmt::Display for Obstacle<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(step) = &self.step {
            write!(f, "step `{step}`: ")?;
        }
        write!(f, "{}", self.rule)?;
        self.detail.as_ref().map_or(Ok(()), |detail| write!(f, ": {detail}"))
    }
}

/// Why an action is refused. `Display` is a sentence for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// Resubmission of an order that is not in Error.
    #[error("the order is not in Error, so there is nothing to resubmit")]
    NotStopped,
    /// The order has ended.
    #[error("the order has ended")]
    Ended,
    /// The order already waits for a person.
    #[error("the order is in Error; resubmit, skip, mark done, or undo")]
    Stopped,
    /// Its undo has begun.
    #[error("the undo has begun and can only be finished")]
    UndoBegun,
    /// A step that may have run cannot be undone.
    #[error("a step that may have run is irreversible; resubmit, skip or mark done instead")]
    Irreversible,
    /// The workflow has no such step.
    #[error("the workflow has no step of this name")]
    UnknownStep,
    /// More than one step qualifies.
    #[error("the action could apply to more than one step; name one")]
    Ambiguous,
    /// The step did not fail.
    #[error("no such step has failed or is waiting after a failure")]
    NotFailed,
    /// Only waits qualify, and a wait must be named.
    #[error("no step has failed or is waiting after a failure; to skip the wait of a step, name the step")]
    UnnamedWait,
    /// A step that waits for a time has no output that a person could give.
    #[error("the step waits for a time, so there is no output to record; skip it, or end its wait with retry-now")]
    WaitsForTime,
    /// Only an event, or a person, can end this wait.
    #[error("the step waits for an event or a callback; send the event, or skip the step or mark it as done")]
    WaitsForEvent,
    /// The step is with an agent.
    #[error("the step is with an agent; wait for its reply or its CompleteBy")]
    WithAgent,
    /// Nothing waits for a time.
    #[error("no step waits for its next attempt; to end another wait, name its step")]
    NothingWaits,
    /// The order is paused.
    #[error("the order is paused; resume it first")]
    Paused,
    /// The order is not paused.
    #[error("the order is not paused")]
    NotPaused,
    /// What its undo needs is gone.
    #[error("the order's data was erased, so nothing of it can be undone; undo it by hand at the services")]
    Erased,
    /// Its parent has recorded its end.
    #[error(
        "another order started this one and has already recorded its end; act on the order at the top, which `stepwarden get` shows"
    )]
    Child,
    /// The step's child keeps its input.
    #[error(
        "the step started an order, which keeps its input; resubmit without an input, or undo; only failed items of a list take a new input"
    )]
    ChildInput,
    /// Its input has a cursor that differs per page.
    #[error(
        "the step collects pages, and its input has the cursor of the next one; resubmit without an input, or run the order again from this \
         step"
    )]
    PagesInput,
    /// The list has no such item, or the item has not failed.
    #[error("no such item of the list has failed; `get` with `--items failed` shows those that have")]
    NoFailedItem,
    /// An item's present order cannot be undone.
    #[error(
        "the order of an item has done what cannot be undone, so the item keeps its input; resubmit it without one"
    )]
    ItemIsFinal,
    /// The input of an item does not pass the check of the workflow that gets it.
    #[error(
        "the input of an item is refused by the `[input]` of its workflow, or is not an object of at most 16384 bytes"
    )]
    ItemInput,
    /// Too many items, or too long inputs.
    #[error(
        "a list takes new inputs for at most 100 items, in at most 20 resubmissions of 262144 bytes each; submit new orders for the other items"
    )]
    ItemInputs,
    /// The output is longer than [`MAX_OUTPUT`].
    #[error("the output is longer than 4096 bytes; give a reference to it")]
    LongOutput,
    /// The output is nested deeper than [`json::MAX_DEPTH`].
    #[error("the output is nested too deep: the limit is 50 levels of arrays and objects")]
    DeepOutput,
    /// The input is longer than [`MAX_INPUT`], nested deeper than [`json::MAX_DEPTH`], or no object.
    #[error("the input must be a JSON object of at most 16384 bytes, nested at most 50 levels deep")]
    BadInput,
    /// Its definition is missing.
    #[error("there is no definition with this hash")]
    NoDefinition,
    /// It cannot go on under that definition.
    #[error("the order cannot continue under that definition, because of a step or of the order itself: {0}")]
    Migration(Rule),
    /// It cannot be run again.
    #[error("the order cannot be run again as asked, because of a step or of the order itself: {0}")]
    Again(again::Rule),
    /// It is about to be run again.
    #[error("the order is being undone so that steps can run again; wait until that has finished")]
    RunsAgain,
    /// All inputs that operators set for an order's steps are longer than [`MAX_INPUTS`] together.
    #[error("the inputs of this order's steps would be longer than 65536 bytes together; replace one with a reference")]
    LongInputs,
}
