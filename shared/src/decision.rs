//! The input and the output of a decision about a task, shared by [`crate::scheduler`], [`crate::operator`] and
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

/// Who decides, when, and by which rules.
#[derive(Clone, Copy, Debug)]
pub struct Turn<'a> {
    /// The definition that the task is pinned to.
    pub workflow: &'a Workflow,
    /// The order's input, if [`Workflow::reads_input`]; else null.
    pub input: &'a Value,
    /// Now (UTC, milliseconds).
    pub now: Timestamp,
    /// The deciding instance; becomes LockedBy of what it claims.
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
        /// The version that the task had, if it sent the hint to itself; else the item that the child was for.
        seen: u64,
        /// 0 if a child sent it. Of a task that has ended, the part of its children that is next.
        part: u32,
        /// The step that it is about; `None` stands for every step, as in messages of earlier versions.
        step: Option<String>,
    },
    /// The order that started this one wants something of it. It may do so again.
    Asked {
        /// Its round.
        round: u32,
        /// What it wants.
        wish: Wish,
    },
    /// An agent answered.
    Reply(Reply),
    /// A message asks to stop the order and undo what was done. It is redelivered until its effects are sent, so unlike
    /// [`What::Cancel`] it owes no notice.
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
        /// The authenticated person who sent it, if that is known; never a text of the sender's choice.
        by: Option<String>,
    },
    /// A service reported the end of work that it had accepted. It may do so again.
    CalledBack {
        /// The step.
        step: String,
        /// Its idempotency key.
        key: String,
        /// What it reported, of at most [`crate::workflow::accept::MAX_CALLBACK`] bytes.
        data: Value,
    },
    /// An agent says that it still works on an attempt. Its sender waits for the answer.
    Beat {
        /// The step.
        step: String,
        /// The attempt.
        attempt: u32,
        /// How far the work is.
        progress: Progress,
    },
    /// The alert that arose at this version is sent.
    AlertSent {
        /// [`crate::task::Alert::version`].
        version: u64,
    },
    /// The strict final notice of the end at this version is sent.
    NoticeSent {
        /// [`Task::turned_at`].
        version: u64,
    },
}

/// How far an agent is with its work, as it says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// How much of it is done, 0 to 100.
    pub percent: Option<u8>,
    /// A sentence, at most [`crate::workflow::beat::MAX_NOTE`] bytes.
    pub note: Option<String>,
}

/// What to do about it.
#[derive(Clone, Debug, PartialEq)]
pub enum Decision {
    /// Replace the previous version with this record, then send.
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
        /// To be sent all the same: an earlier delivery may have died before sending it.
        effects: Vec<Effect>,
    },
}

/// Why an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// Nothing can be claimed at this time.
    NothingReady,
    /// The end of a child, which a look that is on its way will find.
    Expected,
    /// The reply was counted before.
    Repeated,
    /// The reply came at or after `complete_by`, when only the supervisor acts.
    Late,
    /// The reply belongs to an attempt that no longer holds the step.
    Stale,
    /// The message names a step or an attempt that never existed, so it is not ours.
    Foreign,
    /// The heartbeat counts, and its attempt has more than half of its time left.
    Alive,
    /// The operator looked at an older version.
    Moved,
    /// The operator's act does not fit the task's state.
    Refused(Refusal),
    /// The event is not accepted.
    Declined(Declined),
}

/// Why an event is not accepted. `Display` is a sentence for its sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Declined {
    /// The workflow has no such event.
    #[error("no step of the order's workflow waits for an event of this name; send one that `get` shows")]
    Unknown,
    /// The key belongs to an event with other data or another name.
    #[error("another event of this order was sent under this key; use a new key for each event")]
    KeyReused,
    /// Its step counts people, and nobody knows who sent it.
    #[error(
        "the step counts people, and the request does not say whose event it is; sign it, or send a token with a `sub`"
    )]
    NoPerson,
    /// The person's event counts already, and had other data.
    #[error(
        "the order has an event of this name by the same person with other data; each person counts once, so somebody else has to send this one"
    )]
    SamePerson,
    /// Its step does not wait yet, and does not take events that come before, or one is kept for it already.
    #[error("its step does not wait yet, and nothing more is kept for it; send it again once the step waits")]
    Early,
    /// Steps are being undone so that they can run again. Then they wait for it anew.
    #[error("the order is being undone so that steps can run again; send it again once that has finished")]
    RunsAgain,
    /// No step waits for it any more.
    #[error(
        "no step waits for it any more: another event was taken, its time is over, or the order has ended; look at the order"
    )]
    Late,
    /// As many events as an order keeps.
    #[error("the order already keeps 16 events for later steps, the maximum; send it again once a step has taken one")]
    Full,
    /// The step's `take` is false for it.
    #[error("the condition `take` of the waiting step is false for this event; send an event for which it is true")]
    NotTaken,
    /// The step's `take`, `failed` or `output` has no value for it.
    #[error("`take`, `failed` or `output` of the step has no value for this event; send the fields that they read")]
    Unfit,
    /// What the step keeps of it is longer or deeper than the order has room for.
    #[error("the order has no room for the output that the step makes of this; send a reference to the data instead")]
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
        /// The failed step that gets `input`; in a full record, where none has failed, a step with its own input.
        step: Option<String>,
        /// Replaces the order's input for that step only.
        input: Option<Value>,
    },
    /// The same, where failed items of a list get another input: what takes the place of the input of an item's order, or of the item itself if the
    /// step makes a call.
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
    /// End the wait of one step, or of all that wait.
    RetryNow {
        /// The step's name.
        step: Option<String>,
    },
    /// Stop an order that has not ended, and undo what was done.
    Cancel,
    /// The same, even for an order that is Processed.
    Undo,
    /// Claim nothing more until resumed.
    Pause,
    /// End the pause.
    Resume,
    /// Go on under the definition with this hash, once no step is with an agent. The present hash withdraws that wish.
    Migrate {
        /// The definition.
        to: Hash,
        /// Then try again what failed, as [`What::Resubmit`] does.
        resubmits: bool,
    },
    /// Do steps again, and all that come after them.
    RunAgain(again::Wish),
}

/// Why an act is refused. `Display` is a sentence for the operator.
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
    #[error("the act could apply to more than one step; name one")]
    Ambiguous,
    /// The step did not fail.
    #[error("no such step has failed or is waiting after a failure")]
    NotFailed,
    /// Only waits could be meant, and the act names none.
    #[error("no step has failed or is waiting after a failure; to skip the wait of a step, name the step")]
    UnnamedWait,
    /// A step that waits for a time has no output that a person could give.
    #[error("the step waits for a time, so there is no output to record; skip it, or end its wait with retry-now")]
    WaitsForTime,
    /// A step that waits for an event ends by it, or by hand.
    #[error("the step waits for an event or a callback; send the event, or skip the step or mark it as done")]
    WaitsForEvent,
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
    /// What its undo needs is gone.
    #[error("the order's data was erased, so nothing of it can be undone; undo it by hand at the services")]
    Erased,
    /// Its parent has counted how it ended.
    #[error(
        "another order started this one and has already recorded its end; act on the order at the top, which `stepwarden get` shows"
    )]
    Child,
    /// The order that a step started has its input.
    #[error(
        "the step started an order, which keeps its input; resubmit without an input, or undo; only failed items of a list take a new input"
    )]
    ChildInput,
    /// Its input has the cursor, which differs by page.
    #[error(
        "the step collects pages, and its input has the cursor of the next one; resubmit without an input, or run the order again from this \
         step"
    )]
    PagesInput,
    /// The list has no such item, or the item has not failed.
    #[error("the list has no such item that has failed; `get` with `--items failed` shows those that have")]
    NoFailedItem,
    /// Its present order would have to be undone first.
    #[error(
        "the order of an item has done what cannot be undone, so the item keeps its input; resubmit it without one"
    )]
    ItemIsFinal,
    /// The input of an item does not pass the check of the workflow that gets it.
    #[error(
        "the input of an item is refused by the `[input]` of its workflow, or is not an object of at most 16384 bytes"
    )]
    ItemInput,
    /// More items have another input than fit.
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
    /// Its definition cannot be had.
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
