//! How long the oldest orders have waited: the first sign for an operator that work has stopped, whatever the cause.

use futures::future::{join_all, try_join_all};
use shared::engine::Engine;
use shared::ports::{Error, Messenger, StateStore};
use shared::task::{MOVED, ProcessState, Task, URGENT};
use shared::time::Timestamp;
use stepwarden_aws::metrics::{OLDEST_PENDING_AGE, OLDEST_PROCESSING_AGE, OUTBOX_LAG};

/// Orders read in each part of the due index, first due first.
const PAGE: u32 = 10;
/// Owed messages are re-sent by every sweep. If that fails for this time, in seconds, an alarm tells people.
const OWED_S: f64 = 300.0;
/// Orders read in all.
const MOST: usize = 100;

/// Measures how long the oldest orders, and owed messages, have waited. An order keeps its first place in the due index
/// until it is moved, so the first of a part are its oldest; of the moved ones a bounded number is read.
pub async fn measure<S: StateStore, M: Messenger>(engine: &Engine<S, M>, shards: u16) -> Result<(), Error> {
    let parts = [MOVED, URGENT, 0].into_iter().flat_map(|part| (0..shards).map(move |shard| part + shard));
    let pages = try_join_all(parts.map(|part| engine.store.due(part, Timestamp::MAX, PAGE, None))).await?;
    let ranks = 0..PAGE as usize;
    let ids: Vec<_> = ranks.flat_map(|n| pages.iter().filter_map(move |page| page.ids.get(n))).take(MOST).collect();
    let tasks = join_all(ids.into_iter().map(|id| engine.store.load(id))).await;
    // What cannot be read now is left to the next measurement.
    let tasks: Vec<Task> = tasks.into_iter().filter_map(|task| task.ok().flatten()).collect();
    let now = engine.now();
    let age = |since: fn(&Task) -> Option<Timestamp>| {
        tasks.iter().filter_map(since).min().map_or(0.0, |since| since.duration_until(now).as_secs_f64().max(0.0))
    };
    OLDEST_PENDING_AGE
        .set(age(|task| (!has_begun(task) && !task.process_state().is_final()).then_some(task.created_at)));
    OLDEST_PROCESSING_AGE
        .set(age(|task| (has_begun(task) && !task.process_state().is_final()).then_some(task.created_at)));
    let owed = age(|task| (task.alert.is_some() || task.notice_owed).then_some(task.updated_at));
    if owed > OWED_S {
        tracing::error!(owed_s = owed, alarm = "owed", "an alert or a notice has been owed for five minutes");
    }
    OUTBOX_LAG.set(owed);
    Ok(())
}

/// Whether any step of the task was ever sent to an agent.
fn has_begun(task: &Task) -> bool {
    task.process_state() != ProcessState::Pending || task.steps.iter().any(|step| step.attempt > 0)
}
