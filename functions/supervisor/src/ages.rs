//! How long the oldest orders have waited: an operator's first sign that work has stopped, whatever the cause.

use futures::future::{join_all, try_join_all};
use shared::engine::Engine;
use shared::message::MAX_DELAY;
use shared::ports::Error;
use shared::step::{State, Step};
use shared::task::{MOVED, ProcessState, Task, URGENT};
use shared::time::{Timestamp, plus};
use stepwarden_aws::DynamoStore;
use stepwarden_aws::metrics::{OLDEST_PENDING_AGE, OLDEST_PROCESSING_AGE, OLDEST_WAIT_AGE, OUTBOX_LAG, WAITING_ORDERS};

/// Orders read in each part of the due index, first due first.
const PAGE: u32 = 10;
/// Every sweep re-sends owed messages. If that fails for this time, in seconds, an alarm is raised.
const OWED_S: f64 = 300.0;
/// Orders read in all.
const MOST: usize = 100;
/// Most orders counted in which a step waits. In each shard, reading as many keys takes some 13 units of DynamoDB.
const MAX_WAITING: usize = 1000;
/// How many of them to read, to learn since when they wait.
const WAITING_READ: usize = 25;

/// The ages, in seconds; 0 if there is no such order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ages {
    /// Since the oldest order that has not begun was accepted.
    pub pending: f64,
    /// Since the oldest order in progress was accepted.
    pub processing: f64,
    /// Since the oldest alert or notice is owed.
    pub owed: f64,
}

/// Measures how long the oldest orders, and owed messages, have waited. An order keeps its first place in the due index
/// until it is moved, so the first of a part are its oldest. Of the moved ones a bounded number is read. Orders due
/// later than [`MAX_DELAY`] from now are not read, because most of them only wait, and there may be a million.
///
/// # Errors
/// The due index failed.
pub async fn measure(engine: &Engine, shards: u16) -> Result<Ages, Error> {
    let parts = [MOVED, URGENT, 0].into_iter().flat_map(|part| (0..shards).map(move |shard| part + shard));
    let until = plus(engine.now(), MAX_DELAY);
    let pages = try_join_all(parts.map(|part| engine.store.due(part, until, PAGE, None))).await?;
    let ranks = 0..PAGE as usize;
    let ids: Vec<_> = ranks.flat_map(|n| pages.iter().filter_map(move |page| page.ids.get(n))).take(MOST).collect();
    let tasks = join_all(ids.into_iter().map(|id| engine.store.load(id))).await;
    // The next measurement may read those that fail now.
    let tasks: Vec<Task> = tasks.into_iter().filter_map(|task| task.ok().flatten()).collect();
    let mut working = Vec::with_capacity(tasks.len());
    for task in tasks.iter().filter(|task| !task.process_state().is_final()) {
        // An order that only waits need not make progress.
        let waits = engine.workflow(&task.workflow_hash).await.is_ok_and(|workflow| task.only_waits(&workflow));
        if !waits {
            working.push(task);
        }
    }
    let now = engine.now();
    let age = |since: &mut dyn Iterator<Item = Timestamp>| {
        since.min().map_or(0.0, |since| since.duration_until(now).as_secs_f64().max(0.0))
    };
    let of = |begun: bool| working.iter().filter(move |task| has_begun(task) == begun).map(|task| task.created_at);
    let (pending, processing) = (age(&mut of(false)), age(&mut of(true)));
    OLDEST_PENDING_AGE.set(pending);
    OLDEST_PROCESSING_AGE.set(processing);
    let owes = |task: &&Task| task.alert.is_some() || task.notice_owed;
    let owed = age(&mut tasks.iter().filter(owes).map(|task| task.updated_at));
    if owed > OWED_S {
        tracing::error!(owed_s = owed, alarm = "owed", "an alert or a notice has been owed for five minutes");
    }
    OUTBOX_LAG.set(owed);
    Ok(Ages { pending, processing, owed })
}

/// Orders that wait as planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Waits {
    /// Orders in which a step waits, at most [`MAX_WAITING`].
    pub orders: u32,
    /// How long the longest wait has lasted, in seconds; 0 if none waits.
    pub oldest: f64,
}

/// Counts the orders in which a step waits, and measures how long the oldest wait has lasted. The index lists the
/// oldest change first. Several are read, because a reminder, or another step, may have changed an order later.
///
/// # Errors
/// The index or the table failed.
pub async fn waits(store: &DynamoStore, now: Timestamp) -> Result<Waits, Error> {
    let (found, _) = store.waiting(MAX_WAITING, None).await?;
    let ids: Vec<_> = found.iter().take(WAITING_READ).map(|one| one.id.clone()).collect();
    let read = store.tasks(&ids).await?;
    let tasks = read.into_iter().filter_map(Result::ok).filter(Task::is_waiting);
    let since = tasks.flat_map(|task| task.steps).filter(|step| matches!(step.state, State::Waiting { .. }));
    let oldest = since.filter_map(|step| step.turn).min();
    let oldest = oldest.map_or(0.0, |since| since.duration_until(now).as_secs_f64().max(0.0));
    let orders = u32::try_from(found.len()).unwrap_or(u32::MAX);
    WAITING_ORDERS.set(f64::from(orders));
    OLDEST_WAIT_AGE.set(oldest);
    Ok(Waits { orders, oldest })
}

/// Whether any step of the task was ever sent to an agent, or any wait has begun.
fn has_begun(task: &Task) -> bool {
    let is_begun = |step: &Step| step.attempt > 0 || !matches!(step.state, State::Pending { .. });
    task.process_state() != ProcessState::Pending || task.steps.iter().any(is_begun)
}
