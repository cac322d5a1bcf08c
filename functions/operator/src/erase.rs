//! Erases an order's personal data, with its children's.
//!
//! Each order is one write. The order at the top comes first, so that no undo can need erased data below it, and it
//! says that it is erased only once nothing is left. The list of its descendants is valid only if the order at the top
//! has not changed, because until its first write it could be run again and start others. A repeated request continues.

use crate::Operator;
use crate::act::{self, Why, unavailable};
use edge::problem::{self, Problem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::erase::{Part, check};
use shared::history::{Entry, act_text};
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::Task;
use shared::time::Timestamp;
use std::time::{Duration, Instant};
use stepwarden_aws::erase::Kept;

/// How long one request works on an order's children.
pub const MAX_TIME: Duration = Duration::from_secs(20);
/// How often to read a record again that another writer changed.
const ROUNDS: usize = 10;

/// An order without personal data. A repeated request gets the same answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Erased {
    /// The order.
    pub order_id: Id,
    /// When it was erased (UTC, milliseconds).
    pub erased_at: Timestamp,
    /// By whom and why.
    pub detail: String,
}

/// Who erases, and why.
struct Wish {
    by: String,
    reason: String,
}

impl Operator {
    /// Erases the order called `id`, whether its record is still there or has expired.
    ///
    /// # Errors
    /// There is no such order, something still needs its data, or the store failed.
    pub async fn erase(&self, id: &str, why: &Why, subject: Option<&str>) -> Result<Erased, Problem> {
        let (by, reason) = act::who_and_why(subject, why.by.as_deref(), why.reason.as_deref())?;
        let none = || act::no_such_order(id);
        let id = Id::parse(id).ok_or_else(none)?;
        tracing::info!(task.id = %id, operator = %by, "asked to erase the order");
        let (started, wish) = (Instant::now(), Wish { by, reason });
        let store = &self.engine.store;
        for _ in 0..ROUNDS {
            let task = store.load(&id).await.map_err(|e| unavailable(&e))?;
            let top = store.kept(&id, task.as_ref()).await.map_err(|e| unavailable(&e))?;
            if task.is_none() && top.is_none() {
                return Err(none());
            }
            if let Some(done) = done(&id, task.as_ref(), top.as_ref()) {
                return Ok(done);
            }
            if let Some(task) = &task {
                check(task, Part::First).map_err(|why| problem::not_allowed(None, why.to_string()))?;
            }
            let below = self.below(&id, started).await?;
            for kept in &below {
                let child = store.load(&kept.id).await.map_err(|e| unavailable(&e))?;
                if let Some(Err(why)) = child.map(|child| check(&child, Part::Below)) {
                    return Err(problem::not_allowed(None, format!("order {}, which it started: {why}", kept.id)));
                }
            }
            let first = if below.is_empty() { Part::Last } else { Part::First };
            if !self.erase_top(task.as_ref(), top.as_ref(), first, &wish).await? {
                continue;
            }
            for (n, kept) in below.iter().enumerate() {
                self.erase_below(kept, &wish).await?;
                in_time(started, || format!("{} of {} orders that it started are erased", n + 1, below.len()))?;
            }
            if !below.is_empty() {
                let task = store.load(&id).await.map_err(|e| unavailable(&e))?;
                self.erase_top(task.as_ref(), top.as_ref(), Part::Last, &wish).await?;
            }
        }
        Err(contended(&id))
    }

    /// The children of the order called `id`, their children, and so on.
    async fn below(&self, id: &Id, started: Instant) -> Result<Vec<Kept>, Problem> {
        let store = &self.engine.store;
        let mut found = store.kept_children(id).await.map_err(|e| unavailable(&e))?;
        let mut next = 0;
        while let Some(kept) = found.get(next) {
            let below = store.kept_children(&kept.id).await.map_err(|e| unavailable(&e))?;
            found.extend(below);
            next += 1;
            in_time(started, || format!("it started more than {next} orders"))?;
        }
        Ok(found)
    }

    /// Erases a part of the order at the top. `task`: its record, unless expired. False if it has changed since it was
    /// read.
    async fn erase_top(
        &self,
        task: Option<&Task>,
        kept: Option<&Kept>,
        part: Part,
        wish: &Wish,
    ) -> Result<bool, Problem> {
        match (task, kept) {
            (Some(task), _) => self.erase_record(task, kept, part, wish).await,
            // An order with an expired record is never opened again, so it needs no first part.
            (None, Some(kept)) if part != Part::First => self.erase_kept(kept, wish).await.map(|()| true),
            (None, _) => Ok(true),
        }
    }

    async fn erase_below(&self, kept: &Kept, wish: &Wish) -> Result<(), Problem> {
        for _ in 0..ROUNDS {
            match self.engine.store.load(&kept.id).await.map_err(|e| unavailable(&e))? {
                None => return self.erase_kept(kept, wish).await,
                Some(task) if self.erase_record(&task, Some(kept), Part::Below, wish).await? => return Ok(()),
                Some(_) => {}
            }
        }
        Err(contended(&kept.id))
    }

    /// False if the record has changed meanwhile.
    async fn erase_record(&self, task: &Task, kept: Option<&Kept>, part: Part, wish: &Wish) -> Result<bool, Problem> {
        let next = self.engine.erased(task, part, &wish.by, &wish.reason);
        let next = next.map_err(|why| problem::not_allowed(None, why.to_string()))?;
        let Some(next) = next else { return Ok(true) };
        let note = next.erased().map(|entry| (entry.at(next.created_at), entry.4.as_deref().unwrap_or_default()));
        self.engine.store.erase(&next, task, kept, note).await.map_err(|e| unavailable(&e))
    }

    async fn erase_kept(&self, kept: &Kept, wish: &Wish) -> Result<(), Problem> {
        let text = act_text(&wish.by, &wish.reason);
        let note = Some((self.engine.now(), text.as_str()));
        self.engine.store.erase_kept(kept, note).await.map_err(|e| unavailable(&e))
    }
}

/// The answer for an order that is erased with its children.
fn done(id: &Id, task: Option<&Task>, kept: Option<&Kept>) -> Option<Erased> {
    let (erased_at, detail) = match task {
        Some(task) => {
            let entry: &Entry = task.erased()?;
            (entry.at(task.created_at), entry.4.clone().unwrap_or_default())
        }
        None => kept?.erased.clone()?,
    };
    Some(Erased { order_id: id.clone(), erased_at, detail })
}

fn in_time(started: Instant, so_far: impl FnOnce() -> String) -> Result<(), Problem> {
    if started.elapsed() < MAX_TIME {
        return Ok(());
    }
    let detail = format!("{} after {} s; repeat the request to continue", so_far(), MAX_TIME.as_secs());
    Err(problem::unavailable(None, detail).retry_after(1))
}

fn contended(id: &Id) -> Problem {
    unavailable(&Error::Unavailable { what: format!("order {id}"), source: "too many writers at once".into() })
}
