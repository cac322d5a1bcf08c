//! Erasing what an order says about people. What accounting needs stays: ids, states, attempts and times.
//!
//! Pure, like every action. It needs no definition, so an order can be erased whatever has become of its workflow. The
//! store writes the resulting record together with the order's input and its outputs beside the record.

use crate::history::{self, Entry, Kind, act_text};
use crate::order::Id;
use crate::step::{Pages, Step};
use crate::task::{Phase, Task};
use crate::time::Timestamp;

/// Why an order cannot be erased. `Display` is a sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// Its steps may need the data.
    #[error("the order has not ended; wait for its end, or cancel it")]
    Open,
    /// Its undos need the data.
    #[error("the order is being undone, which needs its data; wait until it is undone")]
    Undoing,
    /// The person who decides its end needs the data.
    #[error("the order is in Error and waits for a person; resubmit, skip, mark done or undo it first")]
    Stopped,
    /// Its parent's undo would need it.
    #[error(
        "the order belongs to order {0}, which started it; erase the order at the top, and this one is erased with it"
    )]
    Child(Id),
}

/// Which part of an erasure this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The order at the top, before its children. From then on its undo is refused.
    First,
    /// The order at the top, once its children are erased.
    Last,
    /// A child.
    Below,
}

/// Text of an alert that is still owed.
const ERASED: &str = "the order's data was erased";

/// The record without personal data, or `None` if this part was done before.
///
/// # Errors
/// Something still needs the data.
pub fn erase(task: &Task, part: Part, by: &str, reason: &str, now: Timestamp) -> Result<Option<Task>, Obstacle> {
    check(task, part)?;
    if task.erased().is_some() || part == Part::First && task.is_erased() {
        return Ok(None);
    }
    let mut task = bare(task);
    task.version += 1;
    task.updated_at = now.max(task.updated_at);
    task.books = None;
    (task.acted_at, task.acted_on) = (task.version, 0);
    let at = i64::try_from(task.created_at.duration_until(now).as_millis()).unwrap_or(i64::MAX);
    let kind = if part == Part::First { Kind::Erasing } else { Kind::Erased };
    history::push(&mut task.log, Entry(at, kind, None, 0, Some(act_text(by, reason))));
    Ok(Some(task))
}

/// Checks that nothing needs the data.
///
/// # Errors
/// What needs it.
pub fn check(task: &Task, part: Part) -> Result<(), Obstacle> {
    match (&task.parent, task.phase) {
        (Some(parent), _) if part != Part::Below => Err(Obstacle::Child(parent.id.clone())),
        (_, Phase::Processed | Phase::Undone) => Ok(()),
        (_, Phase::Forward) => Err(Obstacle::Open),
        (_, Phase::Undoing) => Err(Obstacle::Undoing),
        (_, Phase::Error | Phase::UndoError) => Err(Obstacle::Stopped),
    }
}

impl Task {
    /// When, by whom and why it was erased with its children.
    #[must_use]
    pub fn erased(&self) -> Option<&Entry> {
        self.log.iter().find(|entry| entry.1 == Kind::Erased)
    }

    /// Whether its own data is erased.
    #[must_use]
    pub fn is_erased(&self) -> bool {
        self.log.iter().any(|entry| matches!(entry.1, Kind::Erasing | Kind::Erased))
    }
}

/// Names every field, so that a new one must be considered.
fn bare(task: &Task) -> Task {
    let mut bare = task.clone();
    let Task {
        id: _,
        version: _,
        stamp: _,
        shard: _,
        due: _,
        lease_token: _,
        created_at: _,
        updated_at: _,
        workflow: _,
        workflow_hash: _,
        phase: _,
        turned_at: _,
        steps,
        tenant: _,
        reference,
        labels,
        reply_queue: _,
        priority: _,
        traceparent,
        forward_by: _,
        deadline: _,
        paused_at: _,
        acted_at: _,
        acted_on: _,
        reason,
        alert,
        notice_owed: _,
        expires: _,
        retention: _,
        books: _,
        secret,
        events,
        parent: _,
        pins: _,
        migration: _,
        again: _,
        output,
        log,
    } = &mut bare;
    steps.iter_mut().for_each(strip);
    // Without the secret, addresses already handed out become invalid.
    (*reference, *traceparent, *reason, *secret, *output) = Default::default();
    labels.clear();
    events.clear();
    if let Some(alert) = alert {
        alert.reason = ERASED.into();
    }
    for Entry(_, kind, _, _, text) in log {
        *text = text.take().filter(|_| matches!(kind, Kind::Erasing | Kind::Erased));
    }
    bare
}

/// Names every field, so that a new one must be considered.
fn strip(step: &mut Step) {
    let Step {
        state: _,
        attempt: _,
        pool: _,
        failures: _,
        undo_failures: _,
        extended: _,
        claimed_at: _,
        settled_at: _,
        output,
        beside,
        error,
        input,
        failure,
        unsure: _,
        poll_until: _,
        turn: _,
        reminded: _,
        alert_at: _,
        heart,
        kids,
        rounds,
        pages,
    } = step;
    (*output, *beside, *error, *input, *failure, *heart) = Default::default();
    if let Some(items) = kids.as_mut().and_then(|kids| kids.items.as_mut()) {
        items.inputs.clear();
    }
    // The outputs of earlier rounds are erased with the others.
    if let Some(rounds) = rounds {
        rounds.replaced.clear();
    }
    if let Some(pages) = pages {
        *pages = Pages { taken: pages.taken, items: pages.items, ..Pages::default() };
    }
}
