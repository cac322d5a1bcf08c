//! A task's history, kept inside its record.
//!
//! An entry is a short JSON array, because every write of the task carries the whole history: `[milliseconds since
//! creation, kind, step position or null, attempt, text or null]`.

use crate::time::{SignedDuration, Timestamp, plus};
use serde::{Deserialize, Serialize};

/// Maximum number of entries kept. Beyond it, the oldest after the first [`KEPT_FROM_THE_START`] goes.
pub const MAX_ENTRIES: usize = 200;
/// First entries, which always stay.
pub const KEPT_FROM_THE_START: usize = 20;
/// Longest text of an entry, in bytes.
pub const MAX_TEXT: usize = 300;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// A scheduler claimed a step.
    #[serde(rename = "c")]
    Claimed,
    /// A step was completed.
    #[serde(rename = "p")]
    Completed,
    /// An agent reported a permanent error.
    #[serde(rename = "f")]
    Failed,
    /// An agent gave the step back after its own retries: a failure is counted.
    #[serde(rename = "u")]
    Unavailable,
    /// An agent gave the step back without trying, because its circuit breaker is open: no failure is counted.
    #[serde(rename = "d")]
    Deferred,
    /// The step's `complete_by` passed without a reply.
    #[serde(rename = "x")]
    Expired,
    /// A late attempt was given more time.
    #[serde(rename = "l")]
    Extended,
    /// A step was passed over.
    #[serde(rename = "o")]
    PassedOver,
    /// A step's turn came, and it waits.
    #[serde(rename = "w")]
    Waiting,
    /// Somebody was reminded of a step that waits.
    #[serde(rename = "wr")]
    Reminded,
    /// An event came before its step waited, and is kept.
    #[serde(rename = "ek")]
    EventKept,
    /// A step that waits for several people got one more event.
    #[serde(rename = "ec")]
    EventCounted,
    /// No step will take a kept event.
    #[serde(rename = "eu")]
    EventUnused,
    /// A step failed, and the order goes on.
    #[serde(rename = "k")]
    Caught,
    /// A scheduler claimed the undo of a step.
    #[serde(rename = "cu")]
    UndoClaimed,
    /// A step was undone.
    #[serde(rename = "pu")]
    Undone,
    /// An agent reported a permanent error of an undo.
    #[serde(rename = "fu")]
    UndoFailed,
    /// The task turned to undo.
    #[serde(rename = "U")]
    TaskUndoing,
    /// All steps are done.
    #[serde(rename = "P")]
    TaskProcessed,
    /// Everything that was or may have been done is undone.
    #[serde(rename = "R")]
    TaskUndone,
    /// The task stopped and waits for a person.
    #[serde(rename = "E")]
    TaskError,
    /// The operator alert went out.
    #[serde(rename = "A")]
    AlertSent,
    /// Somebody cancelled the task.
    #[serde(rename = "oc")]
    Cancelled,
    /// An operator resubmitted the task.
    #[serde(rename = "or")]
    Resubmitted,
    /// An operator left a step, or its undo, out.
    #[serde(rename = "os")]
    Skipped,
    /// An operator did a step, or its undo, by hand.
    #[serde(rename = "om")]
    MarkedDone,
    /// An operator ended the wait of a step.
    #[serde(rename = "on")]
    RetriedNow,
    /// An operator asked for the undo.
    #[serde(rename = "ou")]
    UndoAsked,
    /// An operator paused the task.
    #[serde(rename = "op")]
    Paused,
    /// An operator resumed the task.
    #[serde(rename = "og")]
    Resumed,
    /// The task's personal data was erased, before that of its children.
    #[serde(rename = "ob")]
    Erasing,
    /// The personal data of the task and its children was erased.
    #[serde(rename = "oe")]
    Erased,
    /// An operator asked to move the task to another definition, or withdrew that.
    #[serde(rename = "ow")]
    MigrationAsked,
    /// It moved to another definition.
    #[serde(rename = "M")]
    Migrated,
    /// It kept its definition, although an operator wanted another one.
    #[serde(rename = "N")]
    NotMigrated,
    /// An operator asked to run steps again.
    #[serde(rename = "oa")]
    RunAgain,
    /// Steps were put back, to be done again.
    #[serde(rename = "B")]
    PutBack,
}

impl Kind {
    /// Whether it is an action of a person.
    #[must_use]
    pub fn is_act(self) -> bool {
        match self {
            Self::Cancelled
            | Self::Resubmitted
            | Self::Skipped
            | Self::MarkedDone
            | Self::RetriedNow
            | Self::UndoAsked
            | Self::Paused
            | Self::Resumed
            | Self::MigrationAsked
            | Self::RunAgain
            | Self::Erasing
            | Self::Erased => true,
            Self::Claimed
            | Self::Completed
            | Self::Failed
            | Self::Unavailable
            | Self::Deferred
            | Self::Expired
            | Self::Extended
            | Self::PassedOver
            | Self::Waiting
            | Self::Reminded
            | Self::EventKept
            | Self::EventCounted
            | Self::EventUnused
            | Self::Caught
            | Self::UndoClaimed
            | Self::Undone
            | Self::UndoFailed
            | Self::TaskUndoing
            | Self::TaskProcessed
            | Self::TaskUndone
            | Self::TaskError
            | Self::AlertSent
            | Self::Migrated
            | Self::NotMigrated
            | Self::PutBack => false,
        }
    }
}

/// By whom and why, as an entry's text.
#[must_use]
pub fn act_text(by: &str, reason: &str) -> String {
    shorten(&format!("{by}: {reason}"), MAX_TEXT)
}

/// One entry, with the fields listed at the head of this file.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Entry(pub i64, pub Kind, pub Option<u16>, pub u32, pub Option<String>);

impl Entry {
    /// When it happened (UTC, milliseconds), in a task created at `created_at`.
    #[must_use]
    pub fn at(&self, created_at: Timestamp) -> Timestamp {
        plus(created_at, SignedDuration::from_millis(self.0))
    }
}

/// `text` cut to at most `max` bytes at a character boundary, with `...` at the end if cut.
#[must_use]
pub fn shorten(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let mut end = max.saturating_sub(3);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

/// Adds `entry` to `log` within its bounds.
pub fn push(log: &mut Vec<Entry>, mut entry: Entry) {
    entry.4 = entry.4.map(|text| shorten(&text, MAX_TEXT));
    if log.len() >= MAX_ENTRIES {
        log.remove(KEPT_FROM_THE_START);
    }
    log.push(entry);
}
