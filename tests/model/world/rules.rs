//! The rules that no save may break, whichever process made it.

use super::{Flow, KEYS, NO, State, World, now};
use crate::common::SKEW;
use jiff::SignedDuration;
use shared::message::{Notice, NoticeKind};
use shared::step::{self, Direction};
use shared::task::{Arrival, Phase, Task, Way};
use shared::workflow::Workflow;
use std::collections::BTreeSet;

impl World {
    /// The rules that no save may break, whichever process made it.
    pub(super) fn broken_by(&self, old: &Task, new: &Task) -> Option<&'static str> {
        let fits = match (old.phase, new.phase) {
            (Phase::Forward, Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Error | Phase::Undone) => true,
            (Phase::Undoing, Phase::Undoing | Phase::Undone | Phase::UndoError) => true,
            (Phase::Error, Phase::Error | Phase::Forward | Phase::Undoing) => true,
            (Phase::UndoError, Phase::UndoError | Phase::Undoing) => true,
            // By a person's hand.
            (Phase::Error | Phase::Processed, Phase::Processed) => true,
            (Phase::Processed, Phase::Undoing) | (Phase::UndoError | Phase::Undone, Phase::Undone) => true,
            (
                Phase::Forward | Phase::Undoing | Phase::Error | Phase::UndoError | Phase::Processed | Phase::Undone,
                _,
            ) => false,
        };
        if !fits {
            return Some("I5: no turn back from undo, no way out of an end");
        }
        // A person decides about a failed undo. Without one, no action would apply, and the order would never end.
        if new.phase == Phase::UndoError && !new.steps.iter().any(|step| step.state == step::State::UndoFailed) {
            return Some("an undo stops only where an undo has failed");
        }
        let looks_same = (old.phase, unbeaten(old, &self.workflow)) == (new.phase, unbeaten(new, &self.workflow));
        if new.is_as_seen(old.version) && !looks_same {
            return Some("an action counts on the order that its operator saw, and on no other");
        }
        let is_look = looks_same && old.steps != new.steps && old.events == new.events && new.acted_at != new.version;
        if is_look && !new.is_as_seen(old.version) {
            return Some("a heartbeat, a look and a reminder are no change to who looked before");
        }
        for (i, (was, is)) in old.steps.iter().zip(&new.steps).enumerate() {
            if is.attempt < was.attempt || is.attempt > was.attempt + 1 {
                return Some("I1: attempts rise one by one and are never reset");
            }
            let claimed = is.attempt == was.attempt + 1;
            let extended = is.extended == was.extended + 1 && is.attempt == was.attempt;
            if extended && (is.claim().is_none() || self.workflow.steps[i].late.is_none_or(|l| is.extended > l.times)) {
                return Some("only a running attempt is given more time, and not for ever");
            }
            if (claimed || extended) != (is.claim().is_some() && is.claimed_at == new.version) {
                return Some("I1: every claim is a new attempt");
            }
            if claimed && is.claim().map(|c| c.0) == Some(Direction::Do) && new.way(i, &self.workflow) != Way::Go {
                return Some("a step starts only when all it depends on are done");
            }
            let retry = &self.workflow.steps[i].retry;
            let most = retry.max + retry.long.map_or(0, |long| long.times);
            if claimed && is.claim().map(|c| c.0) == Some(Direction::Do) && was.failures >= most {
                return Some("I3: once the attempts are spent, no other starts unless a person asks");
            }
            if claimed && old.paused_at.is_some() {
                return Some("nothing starts in a pause");
            }
            if claimed && !self.agents.paused.is_empty() {
                return Some("a paused agent gets nothing new");
            }
            let spec = &self.workflow.steps[i];
            if let (true, Some(poll), Some(until)) = (claimed, &spec.poll, was.poll_until) {
                if is.poll_until != Some(until) && is.claim().is_some_and(|(of, _)| of == Direction::Do) {
                    return Some("a poll keeps its time");
                }
                if spec.looks_safely() && new.forward_by != old.forward_by {
                    return Some("an undo does not wait for a look that changes nothing");
                }
                // One that was already due may come late.
                let from = is.claim().map(|(_, by)| by - spec.timeout);
                if is.state != step::State::Processed && from.is_some_and(|from| from >= until && from > now()) {
                    return Some("no look is claimed ahead for a time after the poll");
                }
                if spec.looks_safely() && was.claim().is_some() && from.is_some_and(|from| from < now() + poll.every) {
                    return Some("a look comes a while after the last one");
                }
            }
            if was.state == step::State::Failed
                && matches!(is.state, step::State::Pending { .. })
                && is.poll_until.is_some()
            {
                return Some("a resubmitted poll is given its time again");
            }
            let is_reported = old.events.iter().any(|event| event.step.map(usize::from) == Some(i));
            if was.state == step::State::Failed
                && matches!(is.state, step::State::Pending { .. })
                && is_reported
                && self.workflow.steps[i].accept.is_some()
            {
                return Some("work whose end was reported is not asked for again");
            }
            let is_out = is.error.as_ref().is_some_and(|error| error.starts_with("not done within"));
            if spec.poll.is_some() && is.state == step::State::Failed && is_out && was.state != is.state {
                let every = spec.poll.as_ref().map_or(SignedDuration::ZERO, |poll| poll.every);
                if was.poll_until.is_none_or(|until| now() + every < until) {
                    return Some("a poll is given its time");
                }
            }
            if spec.poll.is_some() && is.failures > 0 {
                return Some("a look is no failure");
            }
            if let (Some(was), Some(is)) = (was.claim(), is.claim())
                && old.steps[i].heart.is_some()
                && !claimed
            {
                if is.1 < was.1 {
                    return Some("a heartbeat takes no time away");
                }
                if old.steps[i].heart.as_ref().is_none_or(|heart| is.1 > heart.until) {
                    return Some("heartbeats give no more than the timeout");
                }
            }
            if claimed && old.is_over(now(), SKEW) {
                return Some("nothing starts after the deadline");
            }
            if is.state == step::State::PassedOver && is.attempt > 0 {
                return Some("what was tried is not passed over");
            }
            let begins = !matches!(was.state, step::State::Waiting { .. });
            let waits_again = old.phase == Phase::Forward && old.paused_at.is_none() || is.attempt > 0;
            if matches!(is.state, step::State::Waiting { .. })
                && begins
                && (new.way(i, &self.workflow) != Way::Go || !waits_again)
            {
                return Some("a wait begins when the turn of its step comes, on the way forward, and not in a pause");
            }
            if let step::State::Waiting { until, event: false } = was.state {
                match is.state {
                    step::State::Waiting { until: later, .. } if later != until => {
                        return Some("the end of a wait stays");
                    }
                    step::State::Processed if until > now() => return Some("a wait ends when its time comes"),
                    step::State::Processed if old.phase != Phase::Forward || old.paused_at.is_some() => {
                        return Some("a wait sleeps while its order does not go forward");
                    }
                    _ => {}
                }
            }
            if let step::State::Waiting { until, event: true } = was.state {
                let by_hand = new.acted_at == new.version;
                let of_step = |task: &Task| task.events.iter().filter(|event| event.step == Some(i as u16)).count();
                let people: BTreeSet<&str> = new
                    .events
                    .iter()
                    .filter(|event| event.step == Some(i as u16) && event.key != KEYS[usize::from(NO)].0)
                    .map(|event| self.sender(event))
                    .collect();
                let is_taken = people.len()
                    >= self.workflow.steps[i]
                        .wait
                        .as_ref()
                        .map_or(1, |wait| usize::from(wait.event().and_then(|event| event.people).unwrap_or(1)));
                match is.state {
                    step::State::Failed | step::State::Caught if of_step(new) > of_step(old) => {}
                    step::State::Waiting { until: later, .. }
                        if later != until
                            && (old.phase != Phase::Error && old.paused_at.is_none() || until > now()) =>
                    {
                        return Some("a wait for an event keeps its time");
                    }
                    // The reply of the attempt that accepted may end it, too.
                    step::State::Processed if !by_hand && !is_taken && is.settled_at != new.version => {
                        return Some("a wait ends with its event");
                    }
                    step::State::Failed | step::State::Caught
                        if old.phase != Phase::Forward || old.paused_at.is_some() || until + SKEW > now() =>
                    {
                        return Some("a wait runs out on the way forward, past its time, and not in a pause");
                    }
                    _ => {}
                }
            }
            if let step::State::Waiting { until, event: true } = is.state {
                if old.phase == Phase::Error && new.phase == Phase::Forward && until <= now() {
                    return Some("a resubmitted order is given time for its event");
                }
                if new.phase == Phase::Forward && new.kept().next().is_some() {
                    return Some("no step waits for an event that is kept for it");
                }
            }
            let is_final = matches!(was.state, step::State::PassedOver | step::State::Caught);
            if is_final && is.state != was.state && !is.is_undo_begun() {
                return Some("a step that is settled is never decided again");
            }
            let ran = self.bounds.flow == Flow::Branch && new.steps[0].state == step::State::Processed;
            if claimed && i == 1 && ran && old.phase == Phase::Forward {
                return Some("a step whose condition is false starts nothing");
            }
            if old.is_undo_begun() && was.state != is.state && !is.is_undo_begun() {
                return Some("once the undo has begun, nothing is done any more");
            }
            if was.is_undo_begun() && !is.is_undo_begun() {
                return Some("I5: what is to be undone is never done again");
            }
            if is.failures > was.failures + 1 || is.undo_failures > was.undo_failures + 1 {
                return Some("I3: one attempt fails once");
            }
            let failed = is.failures + is.undo_failures > was.failures + was.undo_failures;
            if matches!(is.state, step::State::Waiting { .. })
                && begins
                && is.attempt > 0
                && new.forward_by != old.forward_by
            {
                return Some("accepted work leaves the time until which the call may act");
            }
            let missed = self.workflow.steps[i].accept.is_some()
                && matches!(was.state, step::State::Waiting { until, .. } if until + SKEW <= now());
            let counts = old.phase == Phase::Forward && old.paused_at.is_none();
            if matches!(was.state, step::State::Waiting { event: true, .. })
                && is.failures > was.failures
                && !(missed && counts)
            {
                return Some("a callback is missed on the way forward, past its time, and not in a pause");
            }
            if failed && was.claim().is_none() && !missed {
                return Some("I3: only a running attempt can fail");
            }
        }
        self.reminders_broken_by(old, new).or_else(|| self.events_broken_by(old, new))
    }

    /// The rules of reminders: they are counted, and change nothing else.
    fn reminders_broken_by(&self, old: &Task, new: &Task) -> Option<&'static str> {
        let is_told = |(was, is): (&step::Step, &step::Step)| was.alert_at.is_some() && is.alert_at.is_none();
        if new.phase == Phase::Forward
            && new.alert.as_ref().is_some_and(|alert| alert.version == new.version)
            && !old.steps.iter().zip(&new.steps).any(is_told)
        {
            return Some("operators are told of a wait once");
        }
        for (was, is) in old.steps.iter().zip(&new.steps) {
            let waits = |step: &step::Step| step.asks_until().is_some();
            let alerts =
                new.phase == Phase::Forward && new.alert.as_ref().is_some_and(|alert| alert.version == new.version);
            let told = waits(was) && waits(is) && was.alert_at.is_some() && is.alert_at.is_none();
            if told && !alerts {
                return Some("operators are told of a wait that is half over");
            }
            if told && (old.paused_at.is_some() || was.alert_at.is_some_and(|at| at + SKEW > now())) {
                return Some("a wait is half over past half of its time, and not in a pause");
            }
            if waits(was) && waits(is) && was.alert_at.is_none() && is.alert_at.is_some() {
                return Some("operators are told of a wait once");
            }
            let Some(counted) = &is.reminded else { continue };
            let sent = was.reminded.as_ref().map_or(0, |reminded| reminded.sent);
            if counted.sent < sent || counted.sent > sent + 1 || counted.sent > counted.last {
                return Some("reminders are counted one by one, up to the last");
            }
            let is_same = waits(was) && was.asks_until() == is.asks_until() && counted.sent == sent;
            let (then, since) = (was.reminded.as_ref().map(|r| (r.next, r.last)), (counted.next, counted.last));
            if is_same && then != Some(since) {
                return Some("one wait has its reminders at fixed times");
            }
            if counted.sent == sent + 1 {
                if old.phase != Phase::Forward || old.paused_at.is_some() || was.acts_at().is_none_or(|at| at > now()) {
                    return Some("a reminder is sent when it is due, on the way forward, and not in a pause");
                }
                let claims = new.steps.iter().any(|step| step.claimed_at == new.version);
                if !claims && new.forward_by != old.forward_by {
                    return Some("no undo waits for a reminder");
                }
            }
            let next = is.acts_at().filter(|at| *at > now() && new.phase == Phase::Forward && new.paused_at.is_none());
            let latest = next.map(|at| at + shared::task::grace(&self.workflow));
            if latest.is_some_and(|latest| !new.is_over(now(), SKEW) && new.due.is_none_or(|due| due > latest)) {
                return Some("a reminder brings its order into the due index");
            }
        }
        None
    }

    pub(super) fn reminder_broken_by(
        &self,
        task: &Task,
        step: usize,
        request: &shared::message::Request,
    ) -> Option<&'static str> {
        let number = task.steps[step].reminded.as_ref().map(|reminded| reminded.sent);
        let key = format!("{}:{}:remind:{}", task.id, request.step, number.unwrap_or_default());
        if number != request.reminder || request.idempotency_key != key || request.attempt != 0 {
            return Some("a reminder is counted before it is sent, under a key of its own");
        }
        let waits = task.steps[step].asks_until().is_some();
        (!waits || task.phase != Phase::Forward).then_some("a reminder is of a step that waits")
    }

    /// The rules of what was answered with success.
    fn events_broken_by(&self, old: &Task, new: &Task) -> Option<&'static str> {
        let stays = |(was, is): (&Arrival, &Arrival)| {
            (&was.name, &was.key, &was.hash) == (&is.name, &is.key, &is.hash)
                && was.step.is_none_or(|step| is.step == Some(step))
                && (was.data.is_some() || is.data.is_none())
        };
        let drops = |(was, is): (&Arrival, &Arrival)| was.data.is_some() && is.data.is_none() && is.step.is_none();
        let is_dropped = old.events.iter().zip(&new.events).any(drops);
        if is_dropped && new.to_come("e", &self.workflow).next().is_some() && !new.is_undo_begun() {
            return Some("an event is dropped only once no step can take it");
        }
        if new.events.len() < old.events.len() || !old.events.iter().zip(&new.events).all(stays) {
            return Some("an event that was accepted is never forgotten");
        }
        let taken = new.events.iter().filter(|event| event.data.is_some() || event.by.is_none());
        let taken: Vec<_> = taken.filter_map(|event| Some((event.step?, self.sender(event)))).collect();
        if taken.iter().collect::<BTreeSet<_>>().len() < taken.len() {
            return Some("a step takes one event, or one of each person");
        }
        let may_keep = matches!(new.phase, Phase::Forward | Phase::Error);
        let places = |index| new.places(index, &self.workflow);
        if may_keep && new.kept().count() > new.to_come("e", &self.workflow).map(places).sum() {
            return Some("an event is kept only for a step that is still to come");
        }
        let is_open = |step: &u16| {
            let state = &new.steps[usize::from(*step)].state;
            matches!(state, step::State::Waiting { .. } | step::State::Pending { .. } | step::State::Failed)
        };
        let forgets = |(was, is): (&Arrival, &Arrival)| {
            was.step.is_some_and(|step| is_open(&step)) && was.data.is_some() && is.data.is_none()
        };
        if old.events.iter().zip(&new.events).any(forgets) {
            return Some("a person's event counts until its step is settled");
        }
        None
    }

    /// Who sent an event, whatever the record says: of two people with one key, the record's word is taken.
    pub(super) fn sender<'a>(&self, event: &'a Arrival) -> &'a str {
        let mut of_key = KEYS.iter().filter(|(key, _)| *key == event.key);
        match (self.bounds.flow, of_key.next(), of_key.next(), &event.by) {
            (Flow::People, Some((_, person)), None, _) => person,
            (Flow::People, _, _, Some(by)) => by,
            _ => "",
        }
    }
}

/// I6: a re-sent notice keeps its number, and a new one has a number above all before it.
pub(super) fn check_number(state: &mut State, notice: &Notice) {
    // Number 0, and only before the first claim.
    if notice.kind == NoticeKind::Received {
        return;
    }
    let last = state.notices.last_key_value().map(|(seq, _)| *seq);
    match state.notices.insert(notice.seq, notice.kind) {
        Some(kind) if kind != notice.kind => state.broken = Some("I6: one number, one notice"),
        None if last.is_some_and(|last| last > notice.seq) => {
            state.broken = Some("I6: a new notice has a number above all before it");
        }
        Some(_) | None => {}
    }
}

/// The steps as a person sees them: a heartbeat, another look of a poll and a reminder are no change.
fn unbeaten(task: &Task, workflow: &Workflow) -> Vec<step::Step> {
    let mut steps = task.steps.clone();
    for (step, spec) in steps.iter_mut().zip(&workflow.steps) {
        (step.reminded, step.alert_at) = (None, None);
        let looks = matches!(step.state, step::State::Processing { .. } | step::State::Pending { .. });
        if task.phase == Phase::Forward && spec.poll.is_some() && step.poll_until.is_some() && looks {
            step.state = step::State::Pending { not_before: None };
            (step.attempt, step.claimed_at, step.settled_at, step.error) = (0, 0, 0, None);
        }
        if step.heart.take().is_none() {
            continue;
        }
        if let step::State::Processing { complete_by, .. } | step::State::UndoProcessing { complete_by, .. } =
            &mut step.state
        {
            *complete_by = now();
        }
    }
    steps
}
