//! Heartbeats of an attempt: they move its CompleteBy and report progress.

use super::Change;
use crate::decision::{Progress, Turn};
use crate::history::shorten;
use crate::message::Heartbeat;
use crate::step::{Direction, Heart, State, Step};
use crate::task::Task;
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::Work;
use crate::workflow::beat::{MAX_NOTE, address, window};

/// The heartbeats of an attempt that begins at `from`, if the workflow asks for them.
pub(super) fn heart(work: Work<'_>, from: Timestamp) -> Option<Heart> {
    work.heartbeat?;
    Some(Heart { until: plus(from, work.timeout), at: None, percent: None, note: None })
}

/// Whether a heartbeat needs no write: the agent learns the stored CompleteBy, which is all that it may rely on. The
/// first one is always written, as proof that the request arrived. A later one needs no write in the first quarter of
/// the time, or if no more time can be given. Of two that are `every` apart, the second always comes in time.
pub(crate) fn is_fresh(step: &Step, every: SignedDuration, complete_by: Timestamp, now: Timestamp) -> bool {
    let Some(heart) = step.heart.as_ref().filter(|heart| heart.at.is_some()) else { return false };
    complete_by >= heart.until || now.duration_until(complete_by) > window(every) * 3 / 4
}

/// What a request says about heartbeats. `None` if the workflow asks for none or the deployment has no address.
pub(super) fn heartbeat(task: &Task, index: usize, work: Work<'_>, turn: &Turn<'_>) -> Option<Heartbeat> {
    let every = work.heartbeat.filter(|_| !turn.public_url.is_empty())?;
    let (name, step) = (&turn.workflow.steps[index].name, &task.steps[index]);
    let url = address(turn.public_url, &task.id, name, step.attempt, task.secret.as_deref()?);
    Some(Heartbeat { url, every_ms: u64::try_from(every.as_millis()).unwrap_or_default() })
}

impl Change<'_> {
    /// The agent of step `index` still works, so CompleteBy moves, but never back and never beyond the attempt's end.
    /// `claimed_at` stays: the answer tells the agent, so no request is re-sent.
    pub(crate) fn beat(&mut self, index: usize, direction: Direction, every: SignedDuration, progress: &Progress) {
        let now = self.turn.now;
        let step = &mut self.task.steps[index];
        let Some(heart) = &mut step.heart else { return };
        heart.at = Some(now);
        heart.percent = progress.percent.or(heart.percent);
        heart.note = progress.note.as_deref().map(|note| shorten(note, MAX_NOTE)).or(heart.note.take());
        let next = plus(now, window(every)).min(heart.until);
        let (State::Processing { complete_by, .. } | State::UndoProcessing { complete_by, .. }) = &mut step.state
        else {
            return;
        };
        *complete_by = next.max(*complete_by);
        let by = *complete_by;
        if direction == Direction::Do {
            // An undo must wait for the new deadline.
            self.task.forward_by = self.task.forward_by.max(Some(by));
        }
    }
}
