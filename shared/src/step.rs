//! One step of a task: its record and the transitions that need no policy.

use crate::items::Items;
use crate::json::is_default;
use crate::outputs::Beside;
use crate::time::Timestamp;
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Forward work or its compensating transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The step itself.
    Do,
    /// The compensating transaction of the step.
    Undo,
}

/// A step's state. A processing step always has its claimer and its deadline.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "state")]
pub enum State {
    /// Not running. If it was tried, the outcome of the last attempt may be unknown.
    Pending {
        /// Not claimed before this time (UTC, milliseconds).
        #[serde(default, rename = "nb", skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
        not_before: Option<Timestamp>,
    },
    /// Handed to an agent.
    Processing {
        /// The scheduler instance that claimed it.
        #[serde(rename = "by")]
        locked_by: String,
        /// The time by which the agent must have replied (UTC, milliseconds).
        #[serde(rename = "cb", with = "millisecond::required")]
        complete_by: Timestamp,
    },
    /// Its turn came, and it waits for a time, an event, a callback for accepted work, or a child. Outside Forward the
    /// wait is suspended.
    Waiting {
        /// When it ends, or a child's next look (UTC, milliseconds).
        #[serde(rename = "u", with = "millisecond::required")]
        until: Timestamp,
        /// Whether it waits for an event or a callback.
        #[serde(rename = "ev", default, skip_serializing_if = "std::ops::Not::not")]
        event: bool,
    },
    /// Done; the output is recorded.
    Processed,
    /// Failed permanently: a permanent error, or the threshold of failures.
    Failed,
    /// Skipped by an operator; counts as done for the steps after it. If it was tried, its outcome is unknown, and an
    /// undo of the task covers it.
    Skipped,
    /// Not done, because its `when` was false or a step before it did not run. It has nothing to undo.
    PassedOver,
    /// Failed, and the order goes on, because its `catch` was true.
    Caught,
    /// To be undone.
    UndoPending {
        /// Not claimed before this time (UTC, milliseconds).
        #[serde(default, rename = "nb", skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
        not_before: Option<Timestamp>,
    },
    /// Its undo is with an agent.
    UndoProcessing {
        /// The scheduler instance that claimed it.
        #[serde(rename = "by")]
        locked_by: String,
        /// The time by which the agent must have replied (UTC, milliseconds).
        #[serde(rename = "cb", with = "millisecond::required")]
        complete_by: Timestamp,
    },
    /// Undone, or it had nothing to undo.
    Undone,
    /// Its undo failed permanently; a person is alerted.
    UndoFailed,
}

impl Default for State {
    fn default() -> Self {
        Self::Pending { not_before: None }
    }
}

/// The record of one step in its task: JSON with short keys, because every write has it. Read as [`Recorded`]. The
/// default is a step that was never tried.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Recorded")]
pub struct Step {
    /// Its state.
    #[serde(flatten)]
    pub state: State,
    /// Number of claims so far, forward and undo in one sequence; never reset. It is the fencing token of replies.
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub attempt: u32,
    /// The pool of its agent that got the current attempt; `None` for the pool named like the agent.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// Failed forward attempts since the last resubmission (the pattern's FailureCount).
    #[serde(rename = "f", default, skip_serializing_if = "is_default")]
    pub failures: u32,
    /// Failed undo attempts since the last resubmission.
    #[serde(rename = "uf", default, skip_serializing_if = "is_default")]
    pub undo_failures: u32,
    /// How often the current attempt was given more time.
    #[serde(rename = "x", default, skip_serializing_if = "is_default")]
    pub extended: u32,
    /// Version of the task at which the current attempt was claimed, or last given more time.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub claimed_at: u64,
    /// Version of the task at which the last attempt was settled by a reply.
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub settled_at: u64,
    /// The agent's output, which is also all that the undo needs.
    #[serde(rename = "o", default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Value>,
    /// Where the output is, if too long for the record.
    #[serde(rename = "ob", default, skip_serializing_if = "Option::is_none")]
    pub beside: Option<Beside>,
    /// Why the last attempt failed, or why the step was passed over.
    #[serde(rename = "e", default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Input that an operator set for this step to replace the order's.
    #[serde(rename = "i", default, skip_serializing_if = "Option::is_none")]
    pub input: Option<Value>,
    /// How it failed, if it has a `catch`, or an undo that needs its output.
    #[serde(rename = "fl", default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// If the undo needs data: an unanswered attempt may have done its work. Then a later refusal does not mean that
    /// nothing was done.
    #[serde(rename = "un", default, skip_serializing_if = "std::ops::Not::not")]
    pub unsure: bool,
    /// For a step that polls: the end of its looks (UTC, milliseconds).
    #[serde(rename = "pu", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub poll_until: Option<Timestamp>,
    /// When its turn came, if it waits or its expressions read `now`, which every attempt must send alike (UTC,
    /// milliseconds).
    #[serde(rename = "t", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub turn: Option<Timestamp>,
    /// The reminders of its wait, if the workflow wants them.
    #[serde(rename = "rm", default, skip_serializing_if = "Option::is_none")]
    pub reminded: Option<Reminded>,
    /// When to alert operators that it waits, if the workflow wants that, until they are (UTC, milliseconds).
    #[serde(rename = "aa", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub alert_at: Option<Timestamp>,
    /// The heartbeats of the attempt that holds it, if the workflow wants them.
    #[serde(rename = "hb", default, skip_serializing_if = "Option::is_none")]
    pub heart: Option<Heart>,
    /// The order that it started, if any. With it the step counts as tried.
    #[serde(rename = "kd", default, skip_serializing_if = "Option::is_none")]
    pub kids: Option<Kids>,
    /// Its rounds, if it was put back to be done again.
    #[serde(rename = "rd", default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<Rounds>,
    /// For a step that collects pages: what it has, from the first page's answer on.
    #[serde(rename = "pg", default, skip_serializing_if = "Option::is_none")]
    pub pages: Option<Pages>,
}

/// The pages that a step has [collected](crate::workflow::pages) so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pages {
    /// How many.
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub taken: u32,
    /// How many items they had.
    #[serde(rename = "i", default, skip_serializing_if = "is_default")]
    pub items: u32,
    /// The bytes of JSON of these items, with the commas between them.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub bytes: u32,
    /// The cursor for the next page. None once the last one is there.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<Value>,
    /// The lists beside the record with the items, in order. Once the step is done, no step reads them; they expire and
    /// are erased with the record.
    #[serde(rename = "l", default, skip_serializing_if = "Vec::is_empty")]
    pub lists: Vec<Beside>,
    /// Later items, not yet long enough for a separate list.
    #[serde(rename = "t", default, skip_serializing_if = "Vec::is_empty")]
    pub tail: Vec<Value>,
}

/// The rounds of a step that is [done again](crate::again).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rounds {
    /// How often it was put back. It is in the address of its callback and in the form behind its link.
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub round: u32,
    /// Attempts in earlier rounds.
    #[serde(rename = "b", default, skip_serializing_if = "is_default")]
    pub before: u32,
    /// The round in which its idempotency keys last changed; 0 if they never did.
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub key: u32,
    /// The long outputs of earlier rounds. No step reads them; they expire and are erased with the record.
    #[serde(rename = "o", default, skip_serializing_if = "Vec::is_empty")]
    pub replaced: Vec<Beside>,
}

/// The order, or orders, that a step started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kids {
    /// How often its failures were tried again. An end counts only if the child knows this round.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub round: u32,
    /// The round in which the present child was made. A child that undid itself is replaced by another.
    #[serde(rename = "m", default, skip_serializing_if = "is_default")]
    pub made: u32,
    /// For a step that starts an order per item of a list: the items' states.
    #[serde(rename = "l", default, skip_serializing_if = "Option::is_none")]
    pub items: Option<Items>,
}

impl Kids {
    /// Tries failures again.
    pub(crate) fn try_again(&mut self) {
        self.round += 1;
        if let Some(items) = &mut self.items {
            items.try_again();
        }
    }
}

/// The heartbeats of an attempt.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Heart {
    /// The end of the attempt's whole time, which no heartbeat exceeds (UTC, milliseconds).
    #[serde(rename = "u", with = "millisecond::required")]
    pub until: Timestamp,
    /// When the latest recorded one came (UTC, milliseconds).
    #[serde(rename = "at", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub at: Option<Timestamp>,
    /// How much of the work was done by then, in percent.
    #[serde(rename = "p", default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// What the agent reported, at most [`MAX_NOTE`](crate::workflow::beat::MAX_NOTE) bytes.
    #[serde(rename = "n", default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// The reminders of a step that waits.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reminded {
    /// How many were sent for this order. It never falls, because it is part of their keys.
    #[serde(rename = "n", default, skip_serializing_if = "is_default")]
    pub sent: u32,
    /// The last number of this wait.
    #[serde(rename = "l")]
    pub last: u32,
    /// When the next one is due, if any (UTC, milliseconds).
    #[serde(rename = "x", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub next: Option<Timestamp>,
    /// Version of the task at which the latest one was counted.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub sent_at: u64,
    /// Until when the agent may send it (UTC, milliseconds).
    #[serde(rename = "cb", default, skip_serializing_if = "Option::is_none", with = "millisecond::optional")]
    pub complete_by: Option<Timestamp>,
}

/// How a step failed, as `catch` and later steps see it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failure {
    /// What kind of failure it was.
    #[serde(rename = "k")]
    pub kind: FailureKind,
    /// The status of the answer, 0 if there was none.
    #[serde(rename = "s", default, skip_serializing_if = "is_default")]
    pub status: u16,
    /// The body of the answer, if it was JSON of at most [`crate::message::MAX_ANSWER`] bytes.
    #[serde(rename = "a", default, skip_serializing_if = "Value::is_null")]
    pub answer: Value,
}

impl Failure {
    /// A failure without an answer.
    #[must_use]
    pub fn of(kind: FailureKind) -> Self {
        Self { kind, status: 0, answer: Value::Null }
    }
}

/// The kinds of failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FailureKind {
    /// A permanent answer: the service did nothing.
    Refused,
    /// The retry ladder ended: whether the service did anything is unknown.
    Spent,
    /// It waited too long.
    Timeout,
    /// The order that it started failed.
    Children,
    /// An expression has no value. It is never caught.
    Mistake,
}

impl FailureKind {
    /// Kinds that `catch` and later conditions see.
    pub const CAUGHT: [Self; 4] = [Self::Refused, Self::Spent, Self::Timeout, Self::Children];

    /// The name used in expressions.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Spent => "spent",
            Self::Timeout => "timeout",
            Self::Children => "children",
            Self::Mistake => "mistake",
        }
    }
}

/// A step as read. Unknown fields are refused, because the next save would drop them; `flatten` cannot refuse.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recorded {
    state: Name,
    #[serde(rename = "nb", default, with = "millisecond::optional")]
    not_before: Option<Timestamp>,
    #[serde(rename = "by")]
    locked_by: Option<String>,
    #[serde(rename = "cb", default, with = "millisecond::optional")]
    complete_by: Option<Timestamp>,
    #[serde(rename = "u", default, with = "millisecond::optional")]
    until: Option<Timestamp>,
    #[serde(rename = "ev", default)]
    event: bool,
    #[serde(rename = "a", default)]
    attempt: u32,
    #[serde(rename = "p")]
    pool: Option<String>,
    #[serde(rename = "f", default)]
    failures: u32,
    #[serde(rename = "uf", default)]
    undo_failures: u32,
    #[serde(rename = "x", default)]
    extended: u32,
    #[serde(rename = "c", default)]
    claimed_at: u64,
    #[serde(rename = "s", default)]
    settled_at: u64,
    #[serde(rename = "o")]
    output: Option<Value>,
    #[serde(rename = "ob")]
    beside: Option<Beside>,
    #[serde(rename = "e")]
    error: Option<String>,
    #[serde(rename = "i")]
    input: Option<Value>,
    #[serde(rename = "fl")]
    failure: Option<Failure>,
    #[serde(rename = "un", default)]
    unsure: bool,
    #[serde(rename = "pu", default, with = "millisecond::optional")]
    poll_until: Option<Timestamp>,
    #[serde(rename = "t", default, with = "millisecond::optional")]
    turn: Option<Timestamp>,
    #[serde(rename = "rm")]
    reminded: Option<Reminded>,
    #[serde(rename = "aa", default, with = "millisecond::optional")]
    alert_at: Option<Timestamp>,
    #[serde(rename = "hb")]
    heart: Option<Heart>,
    #[serde(rename = "kd")]
    kids: Option<Kids>,
    #[serde(rename = "rd")]
    rounds: Option<Rounds>,
    #[serde(rename = "pg")]
    pages: Option<Pages>,
}

/// The names of [`State`].
#[derive(Clone, Copy, Deserialize)]
enum Name {
    Pending,
    Processing,
    Waiting,
    Processed,
    Failed,
    Skipped,
    PassedOver,
    Caught,
    UndoPending,
    UndoProcessing,
    Undone,
    UndoFailed,
}

impl TryFrom<Recorded> for Step {
    type Error = &'static str;

    fn try_from(read: Recorded) -> Result<Self, &'static str> {
        let state = match (read.state, read.not_before, read.locked_by, read.complete_by) {
            (Name::Waiting, None, None, None) => match read.until {
                Some(until) => State::Waiting { until, event: read.event },
                None => return Err("a step that is Waiting has no `u`"),
            },
            _ if read.until.is_some() || read.event => return Err("only a step that is Waiting has `u` or `ev`"),
            (Name::Pending, not_before, None, None) => State::Pending { not_before },
            (Name::UndoPending, not_before, None, None) => State::UndoPending { not_before },
            (Name::Processing, None, Some(locked_by), Some(complete_by)) => {
                State::Processing { locked_by, complete_by }
            }
            (Name::UndoProcessing, None, Some(locked_by), Some(complete_by)) => {
                State::UndoProcessing { locked_by, complete_by }
            }
            (Name::Processed, None, None, None) => State::Processed,
            (Name::Failed, None, None, None) => State::Failed,
            (Name::Skipped, None, None, None) => State::Skipped,
            (Name::PassedOver, None, None, None) => State::PassedOver,
            (Name::Caught, None, None, None) => State::Caught,
            (Name::Undone, None, None, None) => State::Undone,
            (Name::UndoFailed, None, None, None) => State::UndoFailed,
            _ => return Err("`nb`, `by` and `cb` of a step do not fit its state"),
        };
        Ok(Self {
            state,
            attempt: read.attempt,
            pool: read.pool,
            failures: read.failures,
            undo_failures: read.undo_failures,
            extended: read.extended,
            claimed_at: read.claimed_at,
            settled_at: read.settled_at,
            output: read.output,
            beside: read.beside,
            error: read.error,
            input: read.input,
            failure: read.failure,
            unsure: read.unsure,
            poll_until: read.poll_until,
            turn: read.turn,
            reminded: read.reminded,
            alert_at: read.alert_at,
            heart: read.heart,
            kids: read.kids,
            rounds: read.rounds,
            pages: read.pages,
        })
    }
}

impl Step {
    /// The states of its list's items, if it starts an order for each of them and has begun to.
    #[must_use]
    pub fn items(&self) -> Option<&Items> {
        self.kids.as_ref()?.items.as_ref()
    }

    /// The latest round of its children, 0 before any.
    pub(crate) fn kids_round(&self) -> u32 {
        self.kids.as_ref().map_or(0, |kids| kids.round)
    }

    /// The number of the page that it requests, if it collects pages, from 1.
    #[must_use]
    pub fn page(&self) -> u32 {
        self.pages.as_ref().map_or(1, |pages| pages.taken + 1)
    }

    /// How often it was put back to be done again.
    #[must_use]
    pub fn rounds(&self) -> u32 {
        self.rounds.as_ref().map_or(0, |rounds| rounds.round)
    }

    /// Whether it was handed out since it was last put back.
    #[must_use]
    pub fn is_tried(&self) -> bool {
        self.attempt > self.rounds.as_ref().map_or(0, |rounds| rounds.before)
    }

    /// Whether nothing more happens to it forward. Whether it lets a later step run depends on the edge.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        matches!(self.state, State::Processed | State::Skipped | State::PassedOver | State::Caught)
    }

    /// Until when it waits for somebody else, if it does: for an event, for a callback, or for work that it polls.
    #[must_use]
    pub fn asks_until(&self) -> Option<Timestamp> {
        match self.state {
            State::Waiting { until, event: true } => Some(until),
            State::Pending { .. } | State::Processing { .. } => self.poll_until,
            State::Waiting { event: false, .. }
            | State::Processed
            | State::Failed
            | State::Skipped
            | State::PassedOver
            | State::Caught
            | State::UndoPending { .. }
            | State::UndoProcessing { .. }
            | State::Undone
            | State::UndoFailed => None,
        }
    }

    /// When its next reminder is due, if one is.
    #[must_use]
    pub fn reminds_at(&self) -> Option<Timestamp> {
        let until = self.asks_until()?;
        self.reminded.as_ref().and_then(|reminded| reminded.next).filter(|next| *next < until)
    }

    /// When a scheduler must act on its wait, because a timer ends or a reminder is due.
    #[must_use]
    pub fn acts_at(&self) -> Option<Timestamp> {
        match self.state {
            State::Waiting { until, event: false } => Some(until),
            _ => self.reminds_at(),
        }
    }

    /// Direction and deadline of the claim that holds this step, if any.
    #[must_use]
    pub fn claim(&self) -> Option<(Direction, Timestamp)> {
        self.holder().map(|(direction, complete_by, _)| (direction, complete_by))
    }

    /// The instance that holds it, if any.
    #[must_use]
    pub fn locked_by(&self) -> Option<&str> {
        self.holder().map(|(.., locked_by)| locked_by)
    }

    fn holder(&self) -> Option<(Direction, Timestamp, &str)> {
        match &self.state {
            State::Processing { locked_by, complete_by } => Some((Direction::Do, *complete_by, locked_by)),
            State::UndoProcessing { locked_by, complete_by } => Some((Direction::Undo, *complete_by, locked_by)),
            State::Pending { .. }
            | State::Waiting { .. }
            | State::Processed
            | State::Failed
            | State::Skipped
            | State::PassedOver
            | State::Caught
            | State::UndoPending { .. }
            | State::Undone
            | State::UndoFailed => None,
        }
    }

    /// Whether the undo of this step has been decided, or is over.
    #[must_use]
    pub fn is_undo_begun(&self) -> bool {
        match self.state {
            State::UndoPending { .. } | State::UndoProcessing { .. } | State::Undone | State::UndoFailed => true,
            State::Pending { .. }
            | State::Processing { .. }
            | State::Waiting { .. }
            | State::Processed
            | State::Failed
            | State::Skipped
            | State::PassedOver
            | State::Caught => false,
        }
    }

    /// Whether an undo of this step is owed, in progress, or failed.
    #[must_use]
    pub fn owes_undo(&self) -> bool {
        self.is_undo_begun() && self.state != State::Undone
    }

    /// Whether the forward work may have reached the remote service: a request was sent at least once.
    #[must_use]
    pub fn may_have_run(&self) -> bool {
        match self.state {
            // Without an attempt it cannot have run: a step may only compute, its expression may fail first, or its
            // event may not come and the failure be caught. After an attempt, a step waits only for accepted work.
            State::Pending { .. } | State::Waiting { .. } | State::Skipped | State::Failed | State::Caught => {
                self.is_tried()
            }
            State::PassedOver => false,
            State::Processing { .. }
            | State::Processed
            | State::UndoPending { .. }
            | State::UndoProcessing { .. }
            | State::Undone
            | State::UndoFailed => true,
        }
    }
}
