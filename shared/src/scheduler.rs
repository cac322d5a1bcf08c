//! The scheduler's decision: from a recorded task and an event to the next record, and messages to send after its save.
//!
//! It knows no particular workflow. It is pure: time and instance are arguments. Every branch follows three rules. A
//! reply counts only while its attempt holds the step and the time is before `complete_by`. A Wake decides on the
//! current state, whatever version it names. A repeated message re-sends what may not have been sent.

use crate::change::attempt::Miss;
use crate::change::{self, Change};
use crate::decision::{Decision, Declined, Event, Kept, Progress, Turn};
use crate::expression::Mistake;
use crate::json;
use crate::message::{Effect, MAX_ANSWER, MAX_HOPS, NoticeKind, Outcome, Reply};
use crate::operator;
use crate::order::canonical_hash;
use crate::retry::asked_wait;
use crate::step::{Direction, Failure, FailureKind, State};
use crate::task::{Arrival, Phase, Task};
use crate::time::SignedDuration;
use crate::workflow::child::Wish;
use crate::workflow::poll::Found;
use serde_json::Value;

/// Adds the first notice to an action before the first Wake, and to its repetitions: nothing else sends it.
fn first_told(task: &Task, decision: Decision, turn: &Turn<'_>) -> Decision {
    let told = change::first_notice(task, turn.workflow);
    match decision {
        Decision::Save { task, effects } => Decision::Save { task, effects: told.into_iter().chain(effects).collect() },
        // A repeated pause. A repeated end has that notice among its own.
        Decision::Keep { why: Kept::Repeated, effects } if effects.is_empty() => {
            Decision::Keep { why: Kept::Repeated, effects: told.into_iter().collect() }
        }
        kept @ Decision::Keep { .. } => kept,
    }
}

/// The scheduler's decision on one event.
#[must_use]
pub fn schedule(task: &Task, event: &Event, turn: &Turn<'_>) -> Decision {
    match event {
        Event::Wake { seen, hops } => on_wake(task, *seen, *hops, turn),
        Event::Hint { seen, part, step } => change::child::on_hint(task, *seen, *part, step.as_deref(), turn),
        Event::Asked { round, wish } => change::child::on_asked(task, *round, wish, turn),
        Event::Reply(reply) => on_reply(task, reply, turn),
        Event::Cancel { by, reason } => first_told(task, operator::cancel(task, by, reason, turn), turn),
        Event::Arrived { name, key, data, by } => {
            let by = by.clone().filter(|_| turn.workflow.counts_people(name));
            let (name, key, hash) = (name.clone(), key.clone(), canonical_hash(data));
            on_event(task, Arrival { name, key, hash, step: None, data: Some(data.clone()), by }, turn)
        }
        Event::CalledBack { step, key, data } => on_callback(task, step, key, data, turn),
        Event::Beat { step, attempt, progress } => on_beat(task, step, *attempt, progress, turn),
        Event::Act(act) => first_told(task, operator::act(task, act, turn), turn),
        Event::AlertSent { version } => {
            if task.alert.as_ref().is_none_or(|alert| alert.version != *version) {
                return Decision::keep(Kept::Repeated);
            }
            let mut change = Change::keep_books(task, turn);
            change.alert_sent();
            change.save()
        }
        Event::NoticeSent { version } => {
            if !task.notice_owed || task.turned_at != *version {
                return Decision::keep(Kept::Repeated);
            }
            let mut change = Change::keep_books(task, turn);
            change.task.notice_owed = false;
            change.save()
        }
    }
}

/// The decision if the record has no room for what [`schedule`] decided, as `why` says: the task stops in Error with an
/// alert. `None` for events whose sender waits for an answer: it is told that the event does not fit.
#[must_use]
pub fn schedule_full(task: &Task, event: &Event, turn: &Turn<'_>, why: &str) -> Option<Decision> {
    let settled = match event {
        Event::Act(_) | Event::Arrived { .. } | Event::CalledBack { .. } | Event::Beat { .. } => return None,
        Event::AlertSent { .. }
        | Event::NoticeSent { .. }
        | Event::Wake { .. }
        | Event::Hint { .. }
        | Event::Asked { .. }
        | Event::Cancel { .. } => None,
        Event::Reply(reply) => turn.workflow.position(&reply.step).and_then(|index| {
            let (direction, _) = task.holds(index, reply.attempt)?;
            Some((index, direction))
        }),
    };
    match schedule(task, event, turn) {
        // For a stopped task, a late report of an undo loses nothing.
        Decision::Save { .. } => {
            let mut change = Change::begin(task, turn);
            change.stop_full(settled, &format!("the order's record is full: {why}"));
            Some(change.save())
        }
        kept @ Decision::Keep { .. } => Some(kept),
    }
}

/// One write records the event and advances the order, so that the sender may send the next event. The record decides,
/// not a clock: an event counts until a save has ended its time.
///
/// If the order has not begun, the event is only kept. Otherwise its Wake could begin the order before the notice of
/// receipt is out, and nothing would send that (simulation, seed 115).
fn on_event(task: &Task, event: Arrival, turn: &Turn<'_>) -> Decision {
    // Two people may choose the same key.
    if let Some(known) =
        task.events.iter().find(|known| known.key == event.key && known.by == event.by && !change::is_callback(known))
    {
        return match known.name == event.name && known.hash == event.hash {
            true => repeated(task, turn),
            false => Decision::keep(Kept::Declined(Declined::KeyReused)),
        };
    }
    if !turn.workflow.events().contains(event.name.as_str()) {
        return Decision::keep(Kept::Declined(Declined::Unknown));
    }
    if event.by.is_none() && turn.workflow.counts_people(&event.name) {
        return Decision::keep(Kept::Declined(Declined::NoPerson));
    }
    let mut change = Change::begin(task, turn);
    let runs_on = task.has_begun();
    if runs_on {
        change.run_on();
    }
    let arrived = match change.task.phase {
        Phase::Forward | Phase::Error => change.arrive(event),
        // Waiting steps will be put back.
        Phase::Undoing | Phase::UndoError if change.task.again.is_some() => Err(Declined::RunsAgain),
        Phase::Undoing | Phase::Processed | Phase::Undone | Phase::UndoError => Err(Declined::Late),
    };
    match arrived {
        Ok(true) => {}
        Ok(false) => return repeated(task, turn),
        Err(why) => return Decision::keep(Kept::Declined(why)),
    }
    if runs_on && change.task.phase == Phase::Forward {
        change.run_on();
        change.wake_if_waiting();
        // The present due time was for the wait, which has ended.
        change.use_up_due();
    }
    change.save()
}

/// The event is recorded already; re-sends effects that may be lost. Not before the order begins, which has its own
/// Wake, and not after its end: that notice is owed, and anybody with the address could repeat it.
fn repeated(task: &Task, turn: &Turn<'_>) -> Decision {
    let has_ended = matches!(task.phase, Phase::Processed | Phase::Undone);
    if task.has_begun() && !has_ended { operator::repeated(task, turn) } else { Decision::keep(Kept::Repeated) }
}

/// Like an event, but addressed to the step, and valid for any attempt of the step.
fn on_callback(task: &Task, step: &str, key: &str, data: &Value, turn: &Turn<'_>) -> Decision {
    let found = turn.workflow.position(step).filter(|&index| turn.workflow.steps[index].accept.is_some());
    let Some(index) = found else { return Decision::keep(Kept::Declined(Declined::Unknown)) };
    let hash = canonical_hash(data);
    if let Some(known) = change::called_back(task, index) {
        return match (known.hash == hash, known.key == key) {
            (true, _) => operator::repeated(task, turn),
            (false, true) => Decision::keep(Kept::Declined(Declined::KeyReused)),
            (false, false) => Decision::keep(Kept::Declined(Declined::Late)),
        };
    }
    let mut change = Change::begin(task, turn);
    let counts = match task.phase {
        Phase::Forward | Phase::Error => true,
        Phase::Undoing => !task.is_undo_begun(),
        Phase::Processed | Phase::Undone | Phase::UndoError => false,
    };
    let called = if counts { change.call_back(index, key, &hash, data) } else { Err(Declined::Late) };
    if let Err(why) = called {
        return Decision::keep(Kept::Declined(why));
    }
    if change.task.phase == Phase::Forward {
        change.tell(NoticeKind::StepCompleted, Some(index));
        change.run_on();
        change.wake_if_waiting();
    }
    // At an older due time, a sweep would find a task that has just changed, and not re-send lost effects.
    change.use_up_due();
    change.save()
}

/// The agent of an attempt still works. It relies on the CompleteBy in the answer, so that is the stored one.
fn on_beat(task: &Task, step: &str, attempt: u32, progress: &Progress, turn: &Turn<'_>) -> Decision {
    let Some(index) = turn.workflow.position(step).filter(|&i| (1..=task.steps[i].attempt).contains(&attempt)) else {
        return Decision::keep(Kept::Foreign);
    };
    let Some((direction, complete_by)) = task.holds(index, attempt) else { return Decision::keep(Kept::Stale) };
    let Some(every) = turn.workflow.steps[index].work(direction).and_then(|work| work.heartbeat) else {
        return Decision::keep(Kept::Foreign);
    };
    if turn.now >= complete_by {
        return Decision::keep(Kept::Late);
    }
    // An undo waits for agents that still work forward, so they must stop.
    if direction == Direction::Do && !matches!(task.phase, Phase::Forward | Phase::Error) {
        return Decision::keep(Kept::Stale);
    }
    if change::beat::is_fresh(&task.steps[index], every, complete_by, turn.now) {
        return Decision::keep(Kept::Alive);
    }
    let mut change = Change::keep_books(task, turn);
    change.beat(index, direction, every, progress);
    // Frequent heartbeats must not make entries of lists, owed notices or lost Wakes seem new.
    change.task.updated_at = task.updated_at;
    change.save()
}

pub(crate) fn on_wake(task: &Task, seen: u64, hops: u32, turn: &Turn<'_>) -> Decision {
    // An earlier delivery of this Wake may have saved claims and died before sending their requests. These are re-sent
    // with the stored attempt and deadline.
    let mut again = requests(task, turn, |step| step.claimed_at > seen);
    let untold = if task.turned_at > seen { change::turn_notices(task, turn) } else { Vec::new() };
    // Only a Wake that knows of the turn begins the undo, because it goes out after the notice of the turn. If an
    // older, late Wake began it, the undo could end before that notice is out, and no message would send it
    // (simulation, seed 21279 of workflows/order.toml). Children are told at once: running on while the parent waits,
    // they would have more to undo.
    if task.phase == Phase::Undoing && !task.is_undo_begun() && task.again.is_none() {
        again.extend(change::child::ask_open(task, &Wish::Undo, turn));
    }
    // A child may have been made during the pause.
    if task.paused_at.is_some() {
        again.extend(change::child::ask_open(task, &Wish::Pause, turn));
    }
    again.extend(change::child::release(task, turn));
    if task.turned_at > seen && hops == 0 {
        again.extend(change::child::release_lists(task, 0, turn));
    }
    // The action's own asks may be lost, and the children's records must outlast the undo.
    if hops == 0 {
        again.extend(change::child::keep_again(task, turn));
    }
    // Once it can, the engine migrates the task before asking for decisions.
    let is_too_early =
        task.migration.is_some() || !untold.is_empty() && task.phase == Phase::Undoing && !task.is_undo_begun();
    again.extend(untold);
    if is_too_early || change::next_claim(task, turn).is_none_or(|from| from > turn.now) {
        if hops < MAX_HOPS {
            again.extend(change::wake(task, turn, hops + 1));
        }
        again.extend(change::reminders(task, turn, |sent_at| sent_at > seen));
        return Decision::Keep { why: Kept::NothingReady, effects: again };
    }
    let mut change = Change::begin(task, turn);
    change.advance();
    change.wake_if_waiting();
    // Each step's latest, unless a later one goes out now (model).
    again.extend(change::reminders(&change.task, turn, |sent_at| (seen + 1..change.task.version).contains(&sent_at)));
    with(change.save(), again)
}

fn on_reply(task: &Task, reply: &Reply, turn: &Turn<'_>) -> Decision {
    let Some(index) = turn.workflow.position(&reply.step) else {
        return Decision::keep(Kept::Foreign);
    };
    let step = &task.steps[index];
    // A reminder is no attempt, so a reply to it neither counts nor is set aside.
    if reply.attempt == 0 && turn.workflow.steps[index].remind.is_some() {
        return Decision::keep(Kept::Repeated);
    }
    if reply.attempt == 0 || reply.attempt > step.attempt {
        return Decision::keep(Kept::Foreign);
    }
    // An agent that accepted may end the work by a reply of that attempt.
    let accepted = match (&reply.outcome, &step.state) {
        (Outcome::Done { .. }, State::Waiting { until, .. }) if step.attempt == reply.attempt => {
            Some((Direction::Do, *until))
        }
        _ => None,
    };
    let Some((direction, complete_by)) = task.holds(index, reply.attempt).or(accepted) else {
        return on_settled_reply(task, index, reply.attempt, turn);
    };
    if turn.now >= complete_by {
        return Decision::keep(Kept::Late);
    }
    let mut change = Change::begin(task, turn);
    change.task.steps[index].unsure |=
        reply.unsure && direction == Direction::Do && turn.workflow.steps[index].undo_is_mapped();
    match &reply.outcome {
        // An undo's output is not kept, so its form does not matter.
        Outcome::Done { .. } | Outcome::Garbled { .. } if direction == Direction::Undo => {
            change.complete(index, direction);
        }
        // The service did its work, so no `catch` may pass over this failure.
        Outcome::Accepted { output } => {
            let accept = turn.workflow.steps[index].accept.as_ref().filter(|_| direction == Direction::Do);
            let accepted = match accept {
                Some(accept) => change.accept(index, accept, output.clone()),
                None => Err(Mistake("the agent says `accepted`, but the step has no `accept`".into())),
            };
            if let Err(mistake) = accepted {
                change.mistaken(index, direction, &mistake);
            }
        }
        Outcome::Done { output } if change.only_accepts(index, reply.looked) => {
            let accept = turn.workflow.steps[index].accept.as_ref().expect("it may only accept");
            if let Err(mistake) = change.accept(index, accept, output.clone()) {
                change.mistaken(index, direction, &mistake);
            }
        }
        Outcome::Done { output } => match change.judge(index, output, reply.looked) {
            Ok(Found::Done) if turn.workflow.steps[index].pages => {
                if let Err(mistake) = change.take_page(index, output.clone()) {
                    change.mistaken(index, direction, &mistake);
                }
            }
            Ok(Found::Done) => change.complete_with(index, output.clone()),
            Ok(Found::NotYet(why)) => change.not_yet(index, &why),
            Ok(Found::Failed(why)) => {
                let failure = failure_of(FailureKind::Refused, 0, Some(output));
                change.fail(index, direction, &why, failure);
            }
            Err(mistake) => change.mistaken(index, direction, &mistake),
        },
        Outcome::NotYet { why } if direction == Direction::Do && turn.workflow.steps[index].poll.is_some() => {
            change.not_yet(index, why);
        }
        Outcome::NotYet { .. } => {
            let mistake = Mistake("the agent says `not_yet`, but the step does not poll".into());
            change.mistaken(index, direction, &mistake);
        }
        Outcome::Garbled { error } => {
            let mistake = Mistake(format!("the agent's output cannot be stored: {error}"));
            change.mistaken(index, direction, &mistake);
        }
        Outcome::Failed { error } if reply.uncalled => change.fail_uncalled(index, direction, error),
        Outcome::Failed { error } => change.fail(index, direction, error, failure(reply, FailureKind::Refused)),
        Outcome::Unavailable { error, retry_after_ms } => {
            let miss = Miss::Unavailable(retry_after_ms.map(asked_wait));
            change.miss(index, direction, miss, error, failure(reply, FailureKind::Spent));
        }
        Outcome::Deferred { error, retry_after_ms } => {
            let miss = Miss::Deferred(asked_wait(*retry_after_ms).max(MIN_DEFERRAL));
            change.miss(index, direction, miss, error, Failure::of(FailureKind::Spent));
        }
    }
    let in_its_direction = match (direction, change.task.phase) {
        (Direction::Do, Phase::Forward) | (Direction::Undo, Phase::Undoing) => true,
        (Direction::Do | Direction::Undo, _) => false,
    };
    if in_its_direction {
        change.advance();
    } else if direction == Direction::Do && turn.workflow.tombstones && task.paused_at.is_none() {
        // With tombstones the undo waits only for open attempts, and this may have been the last.
        let from = change.task.undo_from(turn.workflow, turn.skew);
        if from.is_none_or(|from| from <= turn.now) {
            change.wake_if_waiting();
        }
    }
    change::tell_before_undo(task, change.save(), turn)
}

/// The shortest wait after a deferred attempt. It counts no failure, so only this slows a loop of request and reply. A
/// delayed message cannot arrive sooner.
const MIN_DEFERRAL: SignedDuration = SignedDuration::from_secs(1);

/// How the attempt failed, with the answer, if any.
fn failure(reply: &Reply, kind: FailureKind) -> Failure {
    let kind = reply.kind.filter(|kind| *kind == FailureKind::Mistake).unwrap_or(kind);
    failure_of(kind, reply.status.unwrap_or_default(), reply.answer.as_ref())
}

fn failure_of(kind: FailureKind, status: u16, answer: Option<&Value>) -> Failure {
    let answer = answer.filter(|answer| !json::exceeds(answer, MAX_ANSWER));
    Failure { kind, status, answer: answer.cloned().unwrap_or_default() }
}

/// The save that settled this attempt succeeded, but its effects may be lost.
fn on_settled_reply(task: &Task, index: usize, attempt: u32, turn: &Turn<'_>) -> Decision {
    let step = &task.steps[index];
    let settled_at = step.settled_at;
    let is_latest = attempt == step.attempt;
    // Without a wait, the save that settled an attempt also claimed the next.
    let mut effects = match is_latest || attempt + 1 == step.attempt {
        true => requests(task, turn, |step| step.claimed_at == settled_at),
        false => Vec::new(),
    };
    if is_latest {
        effects.extend(change::reminders(task, turn, |sent_at| sent_at == settled_at));
    }
    // During the undo the record does not tell which reply turned the task.
    if task.turned_at == settled_at || task.phase == Phase::Undoing {
        effects.extend(change::turn_notices(task, turn));
    }
    if !is_latest {
        return Decision::Keep { why: Kept::Stale, effects };
    }
    if task.turned_at == settled_at {
        effects.extend(change::alert(task, turn));
    } else if step.state == State::Processed && settled_at == task.version {
        effects.extend(change::notice(task, turn, crate::message::NoticeKind::StepCompleted, Some(index)));
    }
    match task.phase {
        Phase::Undoing | Phase::Forward => effects.extend(change::wake(task, turn, 0)),
        Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => {}
    }
    Decision::Keep { why: Kept::Repeated, effects }
}

/// Re-sends the requests, as claimed, of steps that are still with an agent and that `may_be_lost` selects. Not after a
/// heartbeat: a second agent would do the same long work.
fn requests(task: &Task, turn: &Turn<'_>, may_be_lost: impl Fn(&crate::step::Step) -> bool) -> Vec<Effect> {
    let running = task.steps.iter().enumerate().filter(|(_, s)| s.claim().is_some_and(|(_, by)| turn.now < by));
    let is_at_work = |step: &crate::step::Step| step.heart.as_ref().is_some_and(|heart| heart.at.is_some());
    running
        .filter(|(_, s)| may_be_lost(s) && !is_at_work(s))
        .filter_map(|(i, _)| change::request(task, i, turn))
        .chain(change::child::begun(task, turn, &may_be_lost))
        .collect()
}

pub(crate) fn with(mut decision: Decision, more: Vec<Effect>) -> Decision {
    let (Decision::Save { effects, .. } | Decision::Keep { effects, .. }) = &mut decision;
    effects.extend(more);
    decision
}
