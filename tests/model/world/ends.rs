//! Every state comes to its end: what is lost is made good, and the sweep alone is enough.

use super::{Hand, MAX_DRAIN, Msg, Owed, State, World, now};
use crate::common::SKEW;
use jiff::Timestamp;
use serde_json::json;
use shared::decision::{Decision, Event, Kept};
use shared::message::{Effect, Outcome, Reply};
use shared::step::{self, Direction};
use shared::supervisor::Verdict;
use shared::task::{Phase, Task};
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

impl World {
    /// Whether a lost send still matters.
    pub(super) fn is_still_owed(&self, task: &Task, trigger: Option<Msg>, owed: Owed) -> bool {
        match owed {
            Owed::Reminder { step, number } => {
                let step = &task.steps[step];
                let waits = task.phase == Phase::Forward && step.asks_until().is_some();
                let is_last = |reminded: &&step::Reminded| {
                    reminded.sent == number && reminded.complete_by.is_some_and(|by| now() < by)
                };
                waits && step.reminded.as_ref().filter(is_last).is_some()
            }
            // An agent that sends heartbeats has it.
            Owed::Request { step, attempt } => {
                let is_at_work = task.steps[step].heart.as_ref().is_some_and(|heart| heart.at.is_some());
                !is_at_work && task.holds(step, attempt).is_some_and(|(_, by)| now() < by)
            }
            Owed::Notice { seq } => task.turned_at == seq,
            Owed::Alert { version } => task.alert.as_ref().is_some_and(|a| a.version == version),
            // A resumption sends one.
            Owed::Wake if task.paused_at.is_some() => false,
            Owed::Wake => match trigger {
                // The Wake was for the step that this reply gave back, or for the undo that it led to.
                Some(Msg::Reply { step, attempt, .. }) => {
                    let step = &task.steps[step];
                    let waits = step.attempt == attempt
                        && matches!(
                            step.state,
                            step::State::Pending { not_before: Some(_) }
                                | step::State::UndoPending { not_before: Some(_) }
                        );
                    match task.phase {
                        // Or for the wait that it began.
                        Phase::Forward => {
                            let is_begun = step.attempt == attempt && task.waits_until(Timestamp::MAX);
                            waits || is_begun && !task.is_over(now(), SKEW)
                        }
                        Phase::Undoing => !task.is_undo_begun() || waits,
                        Phase::Processed | Phase::Undone | Phase::Error | Phase::UndoError => false,
                    }
                }
                Some(Msg::Cancel) => task.phase == Phase::Undoing && !task.is_undo_begun(),
                Some(Msg::Wake { .. }) => task.next_claim(&self.workflow, now(), SKEW).is_some(),
                Some(Msg::Request { .. } | Msg::AlertSent { .. } | Msg::NoticeSent { .. }) => false,
                // Left to the sweep, which drains every state.
                None => false,
            },
        }
    }

    /// Everything lost in a crash is sent when its trigger is redelivered, or by the next sweep.
    pub fn is_made_good(&self, state: &State) -> bool {
        state.owed.iter().all(|(trigger, owed)| match trigger {
            Some(msg) => match self.decide(&state.task, *msg) {
                Some(Decision::Save { effects, .. }) => {
                    *owed == Owed::Wake
                        || effects.iter().any(|e| self.owed(e) == Some(*owed))
                        || state.task.alert.is_some()
                }
                Some(Decision::Keep { effects, .. }) => {
                    effects.iter().any(|e| self.owed(e) == Some(*owed))
                        || matches!(owed, Owed::Alert { .. }) && state.task.due.is_some()
                }
                None => false,
            },
            // Nothing checks a paused task until a person resumes it.
            None if state.task.paused_at.is_some() => {
                let resumed = self.act(&state.task, Hand::Resume, now());
                resumed.is_some_and(|(_, effects)| effects.iter().any(|e| self.owed(e) == Some(*owed)))
            }
            None => {
                let due = state.task.due.map_or(now(), |due| due.max(now()));
                match self.supervise(&state.task, state.token.max(1), due) {
                    Verdict::Recover { .. } => true,
                    Verdict::Rearm { effects, .. } => {
                        effects.iter().any(|e| self.owed(e) == Some(*owed)) || state.task.is_undo_begun()
                    }
                    Verdict::Leave(_) => state.task.is_undo_begun(),
                }
            }
        })
    }

    /// With all messages lost, the sweep alone brings the task to its end; `serves`: agents answer its requests.
    fn drains(&self, state: &State, serves: bool) -> bool {
        let mut task = (*state.task).clone();
        let mut applied = state.applied.clone();
        let mut time = now();
        let mut rounds = 0;
        loop {
            if task.paused_at.is_some() {
                // Nothing more happens until a person resumes it.
                let Some((next, _)) = self.act(&task, Hand::Resume, time) else { return false };
                task = *next;
            }
            let at_end = task.process_state().is_final();
            let Some(due) = task.due else {
                let clean = task.alert.is_none() && !task.notice_owed;
                return at_end && clean && self.is_consistent(&task, &applied, state.left, serves);
            };
            rounds += 1;
            if rounds > MAX_DRAIN {
                return false;
            }
            time = time.max(due);
            let mut effects = match self.supervise(&task, state.token.max(1), time) {
                Verdict::Recover { task: next, effects, .. } => {
                    task = *next;
                    effects
                }
                Verdict::Rearm { due, effects } => {
                    task.due = due;
                    effects
                }
                // The task is due but makes no progress: sweeps would find it forever.
                Verdict::Leave(Kept::NothingReady) if due > time => Vec::new(),
                Verdict::Leave(_) => return false,
            };
            let mut steps = 0;
            while let Some(effect) = effects.pop() {
                steps += 1;
                if steps > MAX_DRAIN {
                    return false;
                }
                let event = match effect {
                    Effect::Wake(wake, delay) => {
                        time += delay;
                        Event::Wake { seen: wake.seen, hops: 0 }
                    }
                    Effect::Request(r) if serves && r.reminder.is_none() => {
                        let step = self.workflow.position(&r.step).unwrap();
                        applied[step] = r.direction == Direction::Do;
                        let outcome = Outcome::Done { output: json!({"ok": true}) };
                        Event::Reply(Reply { looked: r.look.is_some(), ..Reply::to(&r, outcome) })
                    }
                    Effect::Alert(a) => Event::AlertSent { version: a.version },
                    Effect::Notice(_) if task.notice_owed => Event::NoticeSent { version: task.turned_at },
                    Effect::Request(_)
                    | Effect::Notice(_)
                    | Effect::Reply(_)
                    | Effect::SetAside(_)
                    | Effect::Strained(_)
                    | Effect::Child(_) => continue,
                };
                match self.schedule(&task, &event, time) {
                    Decision::Save { task: next, effects: more } => {
                        task = *next;
                        effects.extend(more);
                    }
                    Decision::Keep { effects: more, .. } => effects.extend(more),
                }
            }
        }
    }

    /// Whether the remote service's effects fit the task's end.
    pub(super) fn is_consistent(&self, task: &Task, applied: &[bool], left: u8, serves: bool) -> bool {
        let mut steps = applied.iter().zip(&task.steps).zip(&self.workflow.steps).enumerate();
        match task.phase {
            Phase::Processed => steps.all(|(_, ((&a, step), spec))| match step.state {
                step::State::Skipped | step::State::Caught => true,
                step::State::PassedOver => !a,
                _ => a || spec.agent.is_empty(),
            }),
            Phase::Undone => steps.all(|(n, ((&a, _), spec))| !a || spec.undo.is_none() || left & (1 << n) != 0),
            Phase::Error | Phase::UndoError => true,
            Phase::Forward | Phase::Undoing => !serves,
        }
    }

    pub(super) fn drains_both_ways(&self, state: &State) -> bool {
        let mut hasher = DefaultHasher::new();
        (&state.task, &state.applied, state.token, state.left).hash(&mut hasher);
        let key = hasher.finish();
        if self.drained.lock().unwrap().contains(&key) {
            return true;
        }
        let good = self.drains(state, false) && self.drains(state, true);
        if good {
            self.drained.lock().unwrap().insert(key);
        }
        good
    }
}
