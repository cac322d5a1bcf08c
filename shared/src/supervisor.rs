//! The supervisor's decision: checks one recorded task and requests recovery if a step's time has passed.
//!
//! It knows no business operation and sends nothing to agents. It only counts the failure, resets the step (or turns
//! the task to undo, or stops it with an alert), and wakes a scheduler.

use crate::change::attempt::Miss;
use crate::change::{self, Change, is_past};
use crate::control::MAX_WITHHELD;
use crate::decision::{Decision, Kept, Turn};
use crate::message::Effect;
use crate::retry::{Late, Rung};
use crate::step::{Direction, Failure, FailureKind, State, Step};
use crate::task::{LOOK_AHEAD, MAX_OWED_WAIT, OWED_GRACE, Phase, Task, grace};
use crate::time::{SignedDuration, Timestamp, plus};

/// The error of an attempt that expired.
const LATE: &str = "no answer in time";

/// What a supervisor does about one task.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Replace the previous version with this record, then send.
    Recover {
        /// The next record.
        task: Box<Task>,
        /// To be sent once it is saved.
        effects: Vec<Effect>,
        /// How many attempts expired.
        expired: usize,
    },
    /// Write only `due`, if it differs from the recorded one; the version stays. Then send.
    Rearm {
        /// The new due time; `None` takes the task out of the index.
        due: Option<Timestamp>,
        /// To be sent: a Wake that seems lost, an alert or a notice that is still owed.
        effects: Vec<Effect>,
    },
    /// Leave it alone.
    Leave(Kept),
}

/// Longest interval between two checks of a task that waits only for a scheduler.
const MAX_REARM: SignedDuration = SignedDuration::from_mins(15);

/// The verdict on one task. `token` is the fencing token of the supervisor's lease.
#[must_use]
pub fn supervise(task: &Task, token: u64, turn: &Turn<'_>) -> Verdict {
    if token < task.lease_token {
        return Verdict::Leave(Kept::Stale);
    }
    let expired: Vec<_> = (task.steps.iter().enumerate())
        .filter_map(|(i, step)| step.claim().map(|(direction, by)| (i, direction, by)))
        // A pause suspends a task's deadlines.
        .filter(|(_, _, by)| task.paused_at.is_none() && change::is_past(*by, turn))
        .collect();
    let is_over = task.is_over(turn.now, turn.skew);
    let counts = task.phase == Phase::Forward && task.paused_at.is_none() && !is_over;
    let is_late = |step: &Step| matches!(step.state, State::Waiting { until, event: true } if is_past(until, turn));
    let waited: Vec<usize> = (0..task.steps.len()).filter(|&i| counts && is_late(&task.steps[i])).collect();
    let is_half = |step: &Step| step.asks_until().and(step.alert_at).is_some_and(|at| is_past(at, turn));
    // One alert is owed at a time.
    let half = (0..task.steps.len()).find(|&i| counts && task.alert.is_none() && is_half(&task.steps[i]));
    if expired.is_empty() && waited.is_empty() && half.is_none() && !is_over {
        return look_again(task, turn);
    }
    let mut change = Change::begin(task, turn);
    change.task.lease_token = token;
    change.use_up_due();
    let mut missed = 0;
    for &(index, direction, _) in &expired {
        match more_time(&change, index, direction, turn).filter(|_| !is_over) {
            Some(late) => change.extend(index, late),
            None => {
                missed += 1;
                let failure = Failure::of(FailureKind::Spent);
                let has_heartbeat = task.steps[index].heart.is_some();
                let error = if has_heartbeat { "no heartbeat and no answer in time" } else { LATE };
                change.miss(index, direction, Miss::Expired, error, failure);
            }
        }
    }
    let has_waited = !waited.is_empty();
    for index in waited {
        // Only a Forward task's waits run.
        if change.task.phase != Phase::Forward {
            continue;
        }
        match &turn.workflow.steps[index].accept {
            // Like any late attempt: whether the service did the work is unknown.
            Some(accept) => {
                missed += 1;
                let error = format!("no callback within {:#}", accept.within);
                change.miss(index, Direction::Do, Miss::Expired, &error, Failure::of(FailureKind::Timeout));
            }
            None => change.time_out(index),
        }
    }
    if has_waited {
        change.run_on();
    }
    if let Some(index) = half.filter(|_| change.task.phase == Phase::Forward) {
        change.alert_wait(index);
    }
    // The last step's failure may have been caught. A scheduler does everything else that follows.
    change.finish_forward();
    if is_over {
        change.pass_deadline();
    }
    match change::tell_before_undo(task, change.save(), turn) {
        Decision::Save { task: next, mut effects } => {
            // If the order is late before it began, the notice of receipt comes first (simulation).
            effects.splice(0..0, change::first_notice(task, turn.workflow).filter(|_| is_over));
            Verdict::Recover { task: next, effects, expired: missed }
        }
        Decision::Keep { why, .. } => Verdict::Leave(why),
    }
}

/// The verdict if the record has no room for what [`supervise`] decided, as `why` says: the task stops with an alert.
#[must_use]
pub fn supervise_full(task: &Task, token: u64, turn: &Turn<'_>, why: &str) -> Verdict {
    let mut change = Change::begin(task, turn);
    change.task.lease_token = token;
    change.use_up_due();
    for (step, spec) in change.task.steps.iter_mut().zip(&turn.workflow.steps) {
        match step.claim() {
            Some((Direction::Do, by)) if change::is_past(by, turn) && spec.poll.is_none() => {
                step.failures += 1;
                step.unsure |= spec.undo_is_mapped();
                let is_spent = matches!(spec.retry.after(step.failures), Rung::Exhausted(_));
                let has_failed = is_spent && matches!(task.phase, Phase::Forward | Phase::Error);
                step.state = if has_failed { State::Failed } else { State::Pending { not_before: None } };
                step.error = Some(LATE.to_owned());
            }
            Some((Direction::Do, by)) if change::is_past(by, turn) => step.state = State::Pending { not_before: None },
            Some((Direction::Undo, by)) if change::is_past(by, turn) => {
                step.state = State::UndoPending { not_before: None };
            }
            Some(_) | None => {}
        }
    }
    change.stop_full(None, &format!("the order's record is full: {why}"));
    match change.save() {
        Decision::Save { task, effects } => Verdict::Recover { task, effects, expired: 0 },
        Decision::Keep { why, .. } => Verdict::Leave(why),
    }
}

/// The policy that gives a late attempt more time, if any. Undos and attempts during an undo get none; another step that
/// stopped the task in Error changes nothing.
fn more_time(change: &Change<'_>, index: usize, direction: Direction, turn: &Turn<'_>) -> Option<Late> {
    let late = turn.workflow.steps[index].late?;
    let is_forward = direction == Direction::Do && matches!(change.task.phase, Phase::Forward | Phase::Error);
    (is_forward && change.task.steps[index].extended < late.times).then_some(late)
}

fn rearm(task: &Task, due: Option<Timestamp>, effects: Vec<Effect>) -> Verdict {
    match task.due == due && effects.is_empty() {
        true => Verdict::Leave(Kept::NothingReady),
        false => Verdict::Rearm { due, effects },
    }
}

fn look_again(task: &Task, turn: &Turn<'_>) -> Verdict {
    let mut effects: Vec<Effect> = Vec::new();
    let expiry = task.next_deadline(turn.skew);
    if task.alert.is_some() || task.notice_owed {
        // The instance that saved it is probably sending it now.
        if let Some(from) = task.wanted_due(turn.workflow, turn.skew).filter(|&from| from > turn.now) {
            return rearm(task, Some(from), effects);
        }
        // An instance that died before sending the alert did not send the notice either.
        effects.extend(change::turn_notices(task, turn));
        effects.extend(change::alert(task, turn));
        // An alert about a wait must not hold up Wakes, or steps would wait until the bus is back.
        if task.phase == Phase::Forward {
            effects.extend(change::wake(task, turn, 0).filter(|_| change::next_claim(task, turn).is_some()));
        }
        // It stays due until the engine clears it after the send. Meanwhile other due tasks go first, the longer the
        // longer it has been owed.
        let wait = task.updated_at.duration_until(turn.now).clamp(OWED_GRACE, MAX_OWED_WAIT);
        return Verdict::Rearm {
            due: Some(expiry.map_or(plus(turn.now, wait), |by| by.min(plus(turn.now, wait)))),
            effects,
        };
    }
    let Some(wanted) = task.wanted_due(turn.workflow, turn.skew) else {
        return rearm(task, None, effects);
    };
    let next = change::next_claim(task, turn);
    let age = task.updated_at.duration_until(turn.now);
    if wanted > turn.now || next.is_none_or(|from| from > turn.now) {
        let due = if wanted > turn.now {
            wanted
        } else if let Some(from) = next.filter(|_| task.waits_until(plus(turn.now, LOOK_AHEAD)))
            && from <= plus(turn.now, LOOK_AHEAD)
        {
            // A delayed Wake ends the wait, and nothing is written. The order stays due, so the next sweeps find it,
            // and anything else in it, again.
            effects.extend(change::wake(task, turn, 0));
            task.due.map_or(wanted, |due| due.min(wanted))
        } else {
            // A step that could be claimed at once waits for a paused agent, so there is nothing to send or count.
            // Sweeps must not check it each time either, whatever else in the task waits.
            let look = plus(turn.now, age.clamp(grace(turn.workflow), MAX_WITHHELD));
            [next, expiry].into_iter().flatten().fold(look, Timestamp::min)
        };
        return rearm(task, Some(due), effects);
    }
    // A step could be claimed, but no scheduler did: its Wake is lost or the queue is long. The older the task, the
    // longer the next wait, so that Wakes do not lengthen a backlog. The notice of a turn to undo may have been lost
    // with the supervisor that turned it.
    if !task.is_undo_begun() {
        effects.extend(change::turn_notices(task, turn));
    }
    // The instance that stored it died before the first Wake, or could not send the notice that precedes it.
    if task.phase == Phase::Forward {
        effects.extend(change::first_notice(task, turn.workflow));
    }
    effects.extend(change::wake(task, turn, 0));
    let patience = age.clamp(grace(turn.workflow), MAX_REARM);
    let due = plus(turn.now, patience);
    let due = [task.complete_by(), expiry].into_iter().flatten().fold(due, Timestamp::min);
    Verdict::Rearm { due: Some(due), effects }
}

/// The agents that hold `task` up: an attempt has expired, or the task waits after a failed one. Paused agents are left
/// out, because an operator knows of them.
#[must_use]
pub fn holders<'a>(task: &Task, turn: &Turn<'a>) -> Vec<&'a str> {
    let mut names = Vec::new();
    if task.paused_at.is_some() || task.process_state().is_final() {
        return names;
    }
    for (step, spec) in task.steps.iter().zip(&turn.workflow.steps) {
        let undo = spec.undo.as_ref().map(|undo| undo.agent.as_str());
        let agent = match &step.state {
            State::Processing { complete_by, .. } if is_past(*complete_by, turn) => Some(spec.agent.as_str()),
            State::UndoProcessing { complete_by, .. } if is_past(*complete_by, turn) => undo,
            // A step that polls waits for its next look.
            State::Pending { not_before: Some(_) } if spec.poll.is_none() => Some(spec.agent.as_str()),
            State::UndoPending { not_before: Some(_) } => undo,
            State::Pending { .. }
            | State::UndoPending { not_before: None }
            | State::Processing { .. }
            | State::Waiting { .. }
            | State::UndoProcessing { .. }
            | State::Processed
            | State::Failed
            | State::Skipped
            | State::PassedOver
            | State::Caught
            | State::Undone
            | State::UndoFailed => None,
        };
        names.extend(agent.filter(|name| !turn.agents.is_paused(name) && !names.contains(name)));
    }
    names
}
