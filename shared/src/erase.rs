//! Erasing what an order says about people. What accounting needs stays: ids, states, attempts and times.
//!
//! Pure, like every act. It needs no definition, so an order can be erased whatever has become of its workflow. The
//! store writes the resulting record together with the order's input and its outputs beside the record.

use crate::history::{self, Entry, Kind, act_text};
use crate::order::Id;
use crate::step::{Kids, Pages, Rounds, Step};
use crate::task::{Alert, Phase, Task};
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
    let Task {
        id,
        version,
        stamp,
        shard,
        due,
        lease_token,
        created_at,
        updated_at,
        workflow,
        workflow_hash,
        phase,
        turned_at,
        steps,
        tenant,
        reference: _,
        labels: _,
        reply_queue,
        priority,
        traceparent: _,
        forward_by,
        deadline,
        paused_at,
        acted_at,
        acted_on,
        reason: _,
        alert,
        notice_owed,
        expires,
        retention,
        books,
        // Addresses already handed out become invalid.
        secret: _,
        events: _,
        parent,
        pins,
        migration,
        again,
        output: _,
        log,
    } = task.clone();
    let alert = alert.map(|Alert { version, step, reason: _ }| Alert { version, step, reason: ERASED.into() });
    let has_who_and_why = |kind: Kind| matches!(kind, Kind::Erasing | Kind::Erased);
    let entry = |Entry(at, kind, step, attempt, text)| {
        Entry(at, kind, step, attempt, text.filter(|_: &String| has_who_and_why(kind)))
    };
    Task {
        id,
        version,
        stamp,
        shard,
        due,
        lease_token,
        created_at,
        updated_at,
        workflow,
        workflow_hash,
        phase,
        turned_at,
        steps: steps.into_iter().map(bare_step).collect(),
        tenant,
        reference: None,
        labels: Vec::new(),
        reply_queue,
        priority,
        traceparent: None,
        forward_by,
        deadline,
        paused_at,
        acted_at,
        acted_on,
        reason: None,
        alert,
        notice_owed,
        expires,
        retention,
        books,
        secret: None,
        events: Vec::new(),
        parent,
        pins,
        migration,
        again,
        output: None,
        log: log.into_iter().map(entry).collect(),
    }
}

fn bare_step(step: Step) -> Step {
    let Step {
        state,
        attempt,
        pool,
        failures,
        undo_failures,
        extended,
        claimed_at,
        settled_at,
        output: _,
        beside: _,
        error: _,
        input: _,
        failure: _,
        unsure,
        poll_until,
        turn,
        reminded,
        alert_at,
        heart: _,
        kids,
        rounds,
        pages,
    } = step;
    Step {
        state,
        attempt,
        pool,
        failures,
        undo_failures,
        extended,
        claimed_at,
        settled_at,
        output: None,
        beside: None,
        error: None,
        input: None,
        failure: None,
        unsure,
        poll_until,
        turn,
        reminded,
        alert_at,
        heart: None,
        kids: kids.map(bare_kids),
        // The outputs of earlier rounds are erased with the others.
        rounds: rounds.map(|rounds| Rounds { replaced: Vec::new(), ..rounds }),
        pages: pages.map(|Pages { taken, items, .. }| Pages { taken, items, ..Pages::default() }),
    }
}

fn bare_kids(mut kids: Kids) -> Kids {
    if let Some(items) = &mut kids.items {
        items.inputs.clear();
    }
    kids
}
