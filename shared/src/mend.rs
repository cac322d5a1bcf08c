//! Mending an unreadable record: a person replaces it with a readable text.
//!
//! The decision is pure, like every action. The text is taken as true, because nothing else is known. A text is refused if
//! the order could not continue from it, or if no version would have written it.

use crate::change::{self, Change};
use crate::decision::{Decision, Turn};
use crate::history::{Entry, Kind, MAX_ENTRIES, MAX_TEXT, act_text};
use crate::json::{self, exceeds, length};
use crate::message::{Effect, MAX_ANSWER, MAX_DELAY, MAX_OUTPUT};
use crate::operator::{MAX_INPUT, MAX_INPUTS};
use crate::outputs::MAX_BESIDE;
use crate::step::{Direction, State, Step};
use crate::task::{MAX_EVENT, MAX_KEPT, Phase, Task, Way};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::beat::MAX_NOTE;
use crate::workflow::pages::{MAX_CURSOR, MAX_TAIL};
use crate::workflow::wait::MAX_WAIT;
use crate::workflow::{Step as Spec, Work, Workflow};
use serde_json::Value;

/// Why a text is refused as a record. `Display` is a sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Unfit {
    /// Where in the text, such as `st[0].o`.
    pub at: String,
    /// What is wrong there.
    pub why: &'static str,
}

/// The save that replaces the record with `task`, and what to send after it. `task` is the person's text with the
/// columns of the stored record; `tenant` is the tenant that submitted the order.
///
/// # Errors
/// The first reason why the order cannot continue.
pub fn mend(
    task: &Task,
    tenant: &str,
    by: &str,
    reason: &str,
    turn: &Turn<'_>,
) -> Result<(Box<Task>, Vec<Effect>), Unfit> {
    check(task, tenant, turn.workflow)?;
    let mut change = Change::begin(task, turn);
    // A text cannot say whether the id is also kept elsewhere. A record that stays keeps its key anyway.
    change.task.expires = false;
    change.task.forward_by = forward_by(task, turn);
    forget_older_attempts(&mut change.task, task.version);
    // The previous version would refuse an entry of a new kind, and the order would be stuck again after a rollback.
    change.note_act(Kind::Resumed, None, by, &note(reason));
    let phase = change.task.phase;
    // A Wake from this save would start work before the notice that must precede it: that of the turn to undo, or the
    // order's first. The sweep sends both in sequence.
    let owes_notice = change::first_notice(task, turn.workflow).is_some()
        || phase == Phase::Undoing && !task.is_undo_begun() && task.reply_queue.is_some();
    if !owes_notice {
        change.wake_if_waiting();
    }
    if phase == Phase::Forward || change.task.is_undo_begun() {
        change.finish();
    }
    if change.task.phase != phase {
        change.owe_final_notice();
    }
    match change.save() {
        Decision::Save { task, effects } => Ok((task, effects)),
        Decision::Keep { .. } => unreachable!("a change is saved"),
    }
}

/// The latest time at which a forward request may start; no undo begins before. The text may lack this time or be
/// older, so this is the earlier of two bounds: an attempt ends within its timeout from its claim, and within its
/// window from any save. The second matters to heartbeats, which leave `updated_at`, and whose timeout may be days.
fn forward_by(task: &Task, turn: &Turn<'_>) -> Option<Timestamp> {
    let is_tried = task.steps.iter().any(|step| step.attempt > 0);
    let by_claim = plus(task.updated_at, longest_attempt(turn.workflow, |work| work.timeout));
    let by_save = plus(turn.now, turn.skew + longest_attempt(turn.workflow, |work| work.window()));
    is_tried.then(|| by_claim.min(by_save))
}

/// Whether a step waits for an event; `None` if it does not wait.
fn waits_for_event(step: &Spec) -> Option<bool> {
    let wait = step.wait.as_ref().map(|wait| wait.event().is_some());
    wait.or(step.accept.as_ref().map(|_| true)).or(step.child.as_ref().map(|_| false))
}

/// The longest `time` of an attempt in either direction, or of an extension for a late one.
fn longest_attempt(workflow: &Workflow, time: fn(Work<'_>) -> SignedDuration) -> SignedDuration {
    let works = |step: &&Spec| step.wait.is_none();
    let of = |step: &Spec, direction| step.work(direction).map_or(SignedDuration::ZERO, time);
    let forward = workflow.steps.iter().filter(works).map(|step| {
        let extend = step.late.map_or(SignedDuration::ZERO, |late| late.extend);
        of(step, Direction::Do).max(extend)
    });
    let undo = workflow.steps.iter().map(|step| of(step, Direction::Undo));
    forward.chain(undo).max().unwrap_or_default()
}

/// The text may be older than the record it replaces and count fewer attempts. A reply to an attempt that it lacks must
/// not count for the next one, so attempts rise to the version, their upper bound.
fn forget_older_attempts(task: &mut Task, version: u64) {
    let most = u32::try_from(version).unwrap_or(u32::MAX);
    for step in task.steps.iter_mut().filter(|step| step.attempt > 0 && step.claim().is_none()) {
        step.attempt = most.max(step.attempt);
    }
}

/// Whether the last action on `task` was this mending, so that a repeated request is already done.
#[must_use]
pub fn is_mended(task: &Task, by: &str, reason: &str) -> bool {
    let last = task.log.iter().rev().find(|entry| entry.1.is_act());
    last.is_some_and(|Entry(_, kind, .., text)| {
        *kind == Kind::Resumed && text.as_deref() == Some(&*act_text(by, &note(reason)))
    })
}

fn note(reason: &str) -> String {
    format!("the record was mended: {reason}")
}

/// Checks what this program relies on in every task it reads, and ensures in every one it writes.
///
/// # Errors
/// The first violation.
pub fn check(task: &Task, tenant: &str, workflow: &Workflow) -> Result<(), Unfit> {
    let is_open = matches!(task.phase, Phase::Forward | Phase::Undoing);
    let count = task.steps.len();
    let versions = [
        ("end", task.turned_at),
        ("act", task.acted_at),
        ("acon", task.acted_on),
        ("al.v", task.alert.as_ref().map_or(0, |alert| alert.version)),
        ("bk", task.books.map_or(0, |(first, last)| first.max(last))),
    ];
    let takes = |step: usize| {
        workflow.steps.get(step).is_some_and(|spec| spec.accept.is_some() || waits_for_event(spec) == Some(true))
    };
    let people = |step: usize| workflow.steps.get(step).and_then(|spec| spec.event()?.people);
    let counts = |step: u16| people(usize::from(step)).is_some();
    let most = |index: usize| people(index).map_or(usize::MAX, usize::from);
    let data = || task.events.iter().filter_map(|event| event.data.as_ref());
    let is_unfit = |data: &Value| !data.is_object() || exceeds(data, MAX_EVENT);
    let later = versions.into_iter().map(|(at, version)| (version > task.version, at, LATER));
    let whole = [
        (task.tenant != tenant, "tn", "is not the tenant that submitted the order"),
        (task.workflow != workflow.name, "wf", "is not the name of the workflow whose definition `wh` names"),
        (count != workflow.steps.len(), "st", "does not have one step for each step of the definition that `wh` names"),
        (
            workflow.children().iter().any(|name| !task.pins.contains_key(*name)),
            "df",
            "must name the definition of each workflow whose orders it may start",
        ),
        (
            task.output.as_ref().is_some_and(|output| exceeds(output, MAX_OUTPUT)),
            "out",
            "is longer than 4096 bytes, or nested more than 50 levels deep",
        ),
        (
            task.deadline.is_some() != workflow.deadline.is_some(),
            "dl",
            "must be there if the definition has a deadline, and only then",
        ),
        (
            task.migration.is_some() && matches!(task.phase, Phase::Processed | Phase::Undone),
            "mg",
            "is for an order that has not ended",
        ),
        (task.paused_at.is_some() && !is_open, "pz", "is for an order that is open: `ph` is Forward or Undoing"),
        (
            task.alert.as_ref().and_then(|alert| alert.step).is_some_and(|step| usize::from(step) >= count),
            "al.s",
            "is not the position of a step",
        ),
        (task.alert.as_ref().is_some_and(|alert| alert.reason.len() > MAX_TEXT), "al.r", LONG),
        (task.reason.as_ref().is_some_and(|text| text.len() > MAX_TEXT), "why", LONG),
        (task.log.len() > MAX_ENTRIES, "log", "has more than 200 entries"),
        (task.log.iter().any(|entry| entry.4.as_ref().is_some_and(|text| text.len() > MAX_TEXT)), "log", LONG),
        (
            task.log.iter().any(|entry| entry.2.is_some_and(|step| usize::from(step) >= count)),
            "log",
            "has an entry for the position of a step that does not exist",
        ),
        (
            task.steps.iter().filter_map(|step| step.input.as_ref()).map(length).sum::<usize>() > MAX_INPUTS,
            "st",
            "has inputs `i` that are longer than 65536 bytes together",
        ),
        (
            task.events.iter().filter_map(|event| event.step).any(|step| !takes(usize::from(step))),
            "ev.s",
            "is not the position of a step that waits for an event or a callback",
        ),
        (task.kept().count() > MAX_KEPT, "ev", "keeps more than 16 events for steps to come"),
        (data().any(is_unfit), "ev.d", "must be a JSON object of at most 4096 bytes, nested at most 50 levels deep"),
        (
            task.events.iter().any(|event| event.data.is_some() && event.step.is_some_and(|step| !counts(step))),
            "ev.d",
            "is left with an event that a step took, and only a step that counts people has it: remove it",
        ),
        (
            task.events.iter().any(|event| event.by.is_some() != workflow.counts_people(&event.name)),
            "ev.b",
            "must name the person if a step that waits for the event counts people, and only then",
        ),
        (
            (0..task.steps.len()).any(|index| task.counted(index).count() > most(index)),
            "ev.s",
            "gives a step more events than the number of people that it counts",
        ),
    ];
    for (is_wrong, at, why) in whole.into_iter().chain(later) {
        if is_wrong {
            return Err(Unfit { at: at.to_owned(), why });
        }
    }
    for (index, (step, spec)) in task.steps.iter().zip(&workflow.steps).enumerate() {
        // A look may be claimed early.
        let ahead = spec.poll.as_ref().filter(|_| spec.looks_safely()).map_or(SignedDuration::ZERO, |_| MAX_DELAY);
        let wrong =
            unfit(step, task, spec, plus(task.updated_at, longest_attempt(workflow, |work| work.timeout) + ahead));
        let wrong = wrong.or_else(|| unfit_wait(step, task, task.way(index, workflow)));
        if let Some((at, why)) = wrong {
            return Err(Unfit { at: format!("st[{index}].{at}"), why });
        }
    }
    Ok(())
}

const LATER: &str = "is a version later than that of the record";
const LONG: &str = "has a string of more than 300 bytes";

/// What is wrong with a waiting step, for which its predecessors mean `way`.
fn unfit_wait(step: &Step, task: &Task, way: Way) -> Option<(&'static str, &'static str)> {
    let State::Waiting { until, .. } = step.state else { return None };
    let rules = [
        (
            way != Way::Go && !task.is_undo_begun(),
            "state",
            "is Waiting, but the steps before it do not let it begin: set it to Pending",
        ),
        (until > plus(task.updated_at, MAX_WAIT), "u", "is more than 366 days after the record's last change"),
        (step.turn.is_none(), "t", "is missing: it says since when the step waits, in milliseconds since 1970"),
    ];
    rules.into_iter().find(|(is_wrong, ..)| *is_wrong).map(|(_, at, why)| (at, why))
}

fn unfit(step: &Step, task: &Task, spec: &Spec, latest: Timestamp) -> Option<(&'static str, &'static str)> {
    let has_undo = spec.undo.is_some();
    let is_forward = matches!(task.phase, Phase::Forward | Phase::Error | Phase::Processed);
    let longest = spec.undo.as_ref().map_or(spec.timeout, |undo| undo.timeout.max(spec.timeout));
    let whole = plus(task.updated_at, longest);
    let owes_undo = step.owes_undo();
    let is_left_out = task.again.is_none() && task.is_undo_begun() && step.may_have_run() && !step.is_undo_begun();
    let rules = [
        (step.is_undo_begun() && is_forward, "state", "belongs to an undo, but `ph` says that no undo has begun"),
        (
            is_left_out && matches!(task.phase, Phase::Undoing | Phase::UndoError),
            "state",
            "is left out of the undo that has begun: set it to UndoPending, or to Undone",
        ),
        (
            owes_undo && !has_undo && step.kids.is_none(),
            "state",
            "belongs to an undo, but the definition has no undo for this step",
        ),
        (
            step.state == State::Failed && task.phase == Phase::Forward,
            "state",
            "is Failed, so nothing would continue: set `ph` to Error, or the step to Pending",
        ),
        (
            step.state == State::UndoFailed && task.phase == Phase::Undoing,
            "state",
            "is UndoFailed, so nothing would continue: set `ph` to UndoError, or the step to UndoPending",
        ),
        (
            !step.is_settled() && task.phase == Phase::Processed,
            "state",
            "is not done, but `ph` says that all steps are",
        ),
        (
            task.phase == Phase::Undone && step.may_have_run() && step.state != State::Undone,
            "state",
            "is not undone, but `ph` says that everything that was done is undone",
        ),
        (
            matches!(step.state, State::Processing { .. }) && spec.agent.is_empty(),
            "state",
            "is Processing, but the step calls nothing: set it to Pending",
        ),
        (
            matches!(step.state, State::Waiting { event, .. } if waits_for_event(spec) != Some(event)),
            "state",
            "is Waiting, but not as its definition says: set it to Pending",
        ),
        (
            step.state == State::PassedOver && step.is_tried(),
            "state",
            "is PassedOver, but the step was attempted: set it to Skipped",
        ),
        (
            step.failure.as_ref().is_some_and(|failure| exceeds(&failure.answer, MAX_ANSWER)),
            "fl.a",
            "is longer than 1024 bytes, or nested more than 50 levels deep; leave it out",
        ),
        (step.claim().is_some() && step.attempt == 0, "a", "counts no attempt, but the step is with an agent"),
        (u64::from(step.attempt) > task.version, "a", "counts more attempts than the record has versions"),
        (step.claim().is_some_and(|(_, by)| by > latest), "cb", "is later than any attempt of this record can end"),
        (step.heart.is_some() && !spec.has_heartbeat(), "hb", "is for a step with a heartbeat: leave it out"),
        (
            step.heart.is_some() && step.claim().is_none(),
            "hb",
            "belongs to an attempt, but no agent has the step: leave it out",
        ),
        (
            step.heart.as_ref().is_some_and(|heart| heart.note.as_ref().is_some_and(|note| note.len() > MAX_NOTE)),
            "hb.n",
            "has more than 200 bytes",
        ),
        (
            step.heart.as_ref().is_some_and(|heart| heart.until > whole),
            "hb.u",
            "is later than any attempt of this record can end",
        ),
        (step.kids.is_some() && spec.child.is_none(), "kd", "is for a step that starts an order: leave it out"),
        (
            step.kids.is_none() && spec.child.is_some() && step.may_have_run(),
            "kd",
            "is missing: the step was tried, so it may have started an order; write {}, or {\"m\": N} if the history names a later order than \
             the first",
        ),
        (step.poll_until.is_some() && spec.poll.is_none(), "pu", "is for a step that polls: leave it out"),
        (
            step.pages.is_some() && !spec.pages && !step.is_settled() && is_forward,
            "pg",
            "is for a step that collects pages: leave it out",
        ),
        (
            step.pages
                .as_ref()
                .is_some_and(|pages| pages.cursor.as_ref().is_some_and(|cursor| length(cursor) > MAX_CURSOR)),
            "pg.c",
            "is a cursor of more than 1024 bytes",
        ),
        (
            step.pages.as_ref().is_some_and(|pages| pages.cursor.is_none() && pages.taken > 0)
                && !step.is_settled()
                && is_forward,
            "pg.c",
            "is missing: without a cursor the next page would be the first one again; leave `pg` out to collect all pages anew",
        ),
        (
            step.pages.as_ref().is_some_and(|pages| {
                let bytes = pages.tail.iter().map(|item| length(item) + 1).sum::<usize>();
                bytes > MAX_TAIL + 1 || pages.tail.iter().any(json::is_deep)
            }),
            "pg.t",
            "is longer than 8192 bytes, or nested more than 50 levels deep",
        ),
        (
            step.poll_until.is_some_and(|until| until > plus(task.updated_at, MAX_WAIT)),
            "pu",
            "is more than 366 days after the record's last change",
        ),
        (step.claimed_at > task.version, "c", LATER),
        (step.settled_at > task.version, "s", LATER),
        (step.alert_at.is_some() && !spec.alerts(), "aa", "is for a step whose definition has `alert`"),
        (
            step.reminded.is_some() && spec.remind.is_none(),
            "rm",
            "belongs to reminders, but the definition has none for this step",
        ),
        (step.reminded.as_ref().is_some_and(|reminded| reminded.sent_at > task.version), "rm.c", LATER),
        (
            step.reminded.as_ref().is_some_and(|reminded| reminded.sent > reminded.last),
            "rm.n",
            "counts more reminders than the step sends",
        ),
        (step.error.as_ref().is_some_and(|text| text.len() > MAX_TEXT), "e", LONG),
        (
            step.output.as_ref().is_some_and(|output| length(output) > MAX_OUTPUT),
            "o",
            "is longer than 4096 bytes; replace it with a reference",
        ),
        (step.output.is_some() && step.beside.is_some(), "ob", "is for a step without an output in the record, `o`"),
        (
            step.beside.as_ref().is_some_and(|beside| beside.bytes > MAX_BESIDE),
            "ob",
            "names an output of more than 262144 bytes",
        ),
        (step.output.as_ref().is_some_and(json::is_deep), "o", "is nested more than 50 levels deep"),
        (
            step.input.as_ref().is_some_and(|input| !input.is_object() || exceeds(input, MAX_INPUT)),
            "i",
            "must be a JSON object of at most 16384 bytes, nested at most 50 levels deep",
        ),
    ];
    rules.into_iter().find(|(is_wrong, ..)| *is_wrong).map(|(_, at, why)| (at, why))
}
