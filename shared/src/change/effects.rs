//! What a task sends, computed from its record alone: requests with their idempotency keys, Wakes, notices and alerts.

use crate::decision::{Decision, Turn};
use crate::expression::Mistake;
use crate::history::Kind;
use crate::message::{AlertEvent, Effect, HistoryEntry, MAX_DELAY, Notice, NoticeKind, Request, Wake};
use crate::names::names;
use crate::outputs::MAX_IN_REQUEST;
use crate::step::Direction;
use crate::task::{Phase, Priority, Task, Way};
use crate::time::{SignedDuration, Timestamp, plus, until};
use crate::workflow::accept::address;
use crate::workflow::http::Http;
use crate::workflow::{Work, Workflow};
use serde_json::{Value, json};
use std::borrow::Cow;

/// The call and the input of a step's next request, each `None` if the workflow file does not map it.
pub(super) type Mapped = (Option<Http>, Option<Value>);

/// What the request of step `index` in this direction contains, the same for every attempt.
pub(super) fn call(task: &Task, index: usize, direction: Direction, turn: &Turn<'_>) -> Result<Mapped, Mistake> {
    let spec = &turn.workflow.steps[index];
    if direction == Direction::Do && spec.accept.as_ref().is_some_and(|accept| accept.when.is_some()) {
        callback(task, index, direction, turn).ok_or_else(no_address)?;
    }
    match spec.work(direction) {
        Some(work) => call_of(task, index, work, direction, task.steps[index].input.as_ref(), turn),
        None => Ok((None, None)),
    }
}

/// [`call`] for this work. An `input` that an operator set replaces what the file maps.
pub(super) fn call_of(
    task: &Task,
    index: usize,
    work: Work<'_>,
    direction: Direction,
    input: Option<&Value>,
    turn: &Turn<'_>,
) -> Result<Mapped, Mistake> {
    let step = &task.steps[index];
    long(task, index, direction, turn).for_each(|i| drop(turn.outputs.of(&task.steps[i])));
    turn.outputs.loss()?;
    let bytes: usize =
        long(task, index, direction, turn).filter_map(|i| Some(task.steps[i].beside.as_ref()?.bytes)).sum();
    if bytes > MAX_IN_REQUEST {
        return Err(Mistake(format!(
            "the outputs before this step have {bytes} bytes together, but a request takes at most {MAX_IN_REQUEST}; \
             write a `with` that names what the step needs"
        )));
    }
    // Fail before the step is done, not when its undo is due.
    if turn.workflow.steps[index].has_heartbeat() && turn.public_url.is_empty() {
        return Err(no_address());
    }
    // Most workflows map nothing.
    if work.is_constant() && work.with.is_none() && work.http.is_none_or(|http| http.query.is_empty()) {
        return Ok((work.http.cloned(), input.cloned()));
    }
    let mut names = names(task, index, direction, turn);
    if direction == Direction::Undo
        && (step.beside.is_none() || work.reads("output"))
        && let Some(output) = turn.outputs.of(step)
    {
        names = names.with("output", Cow::Owned(output));
    }
    if direction == Direction::Do && work.reads("callback") {
        let address = callback(task, index, direction, turn).ok_or_else(no_address)?;
        names = names.with("callback", Cow::Owned(Value::String(address)));
    }
    if direction == Direction::Do && work.reads("links") {
        let links = turn.workflow.links(task, turn.public_url).ok_or_else(no_address)?;
        names = names.with("links", Cow::Owned(links));
    }
    if direction == Direction::Do && work.reads("page") {
        let cursor = step.pages.as_ref().and_then(|pages| pages.cursor.as_ref());
        let mut page = json!({ "number": step.page() });
        if let Some(cursor) = cursor {
            page["cursor"] = cursor.clone();
        }
        names = names.with("page", Cow::Owned(page));
    }
    let http = work.http.map(|http| http.resolved(&names)).transpose()?;
    let input = match (input, work.with) {
        (Some(input), _) => Some(input.clone()),
        (None, Some(with)) => match with.evaluate(&names)? {
            Value::Null => return Err(Mistake("`with` is null, so there is nothing to send".into())),
            value => Some(value),
        },
        (None, None) => None,
    };
    turn.outputs.loss()?;
    Ok((http, input))
}

fn no_address() -> Mistake {
    Mistake("this deployment has no public address; set PublicUrl, or PUBLIC_URL of the scheduler".into())
}

/// Where the service of step `index` may report its end, if it may.
fn callback(task: &Task, index: usize, direction: Direction, turn: &Turn<'_>) -> Option<String> {
    let spec = turn.workflow.steps.get(index).filter(|_| direction == Direction::Do && !turn.public_url.is_empty())?;
    spec.accept.as_ref()?;
    Some(address(turn.public_url, &task.id, &spec.name, task.steps[index].rounds(), task.secret.as_deref()?))
}

/// The request for step `index` as claimed now. The engine adds the order's input where the file maps none. `None`: no
/// claim.
pub(crate) fn request(task: &Task, index: usize, turn: &Turn<'_>) -> Option<Effect> {
    let (direction, _) = task.steps[index].claim()?;
    // Has a value, as at the claim, because nothing that it reads changes.
    let call = call(task, index, direction, turn).ok()?;
    request_of(task, index, turn, call)
}

/// The steps whose outputs beside the record the request of step `index` contains: those before it, or its own if it is
/// to be undone. None if the step maps what it sends.
fn long(task: &Task, index: usize, direction: Direction, turn: &Turn<'_>) -> impl Iterator<Item = usize> {
    let sends_all = turn.workflow.steps[index].work(direction).is_some_and(|work| work.sends_envelope());
    let all = match direction {
        _ if !sends_all || task.steps.iter().all(|step| step.beside.is_none()) => Vec::new(),
        Direction::Do => turn.workflow.before(index),
        Direction::Undo => vec![index],
    };
    all.into_iter().filter(|&i| task.steps[i].beside.is_some())
}

pub(super) fn request_of(task: &Task, index: usize, turn: &Turn<'_>, call: Mapped) -> Option<Effect> {
    let (direction, complete_by) = task.steps[index].claim()?;
    let work = turn.workflow.steps[index].work(direction)?;
    Some(Effect::Request(Box::new(request_for(task, index, turn, (work, direction, complete_by), call))))
}

/// The request for this work of step `index`, to be done by `complete_by`.
pub(super) fn request_for(
    task: &Task,
    index: usize,
    turn: &Turn<'_>,
    (work, direction, complete_by): (Work<'_>, Direction, Timestamp),
    (http, input): Mapped,
) -> Request {
    let workflow = turn.workflow;
    let (spec, step) = (&workflow.steps[index], &task.steps[index]);
    let key = |direction: &str| match step.rounds.as_ref().map_or(0, |rounds| rounds.key) {
        0 => format!("{}:{}:{direction}", task.id, spec.name),
        round => format!("{}:{}:{direction}:{round}", task.id, spec.name),
    };
    let long: Vec<usize> = long(task, index, direction, turn).collect();
    let output = |i: usize| match &task.steps[i].beside {
        Some(_) if !long.contains(&i) => None,
        _ => turn.outputs.of(&task.steps[i]),
    };
    let (idempotency_key, undone, undoes) = match direction {
        // Each page has its own key.
        Direction::Do if spec.pages => (format!("{}:page-{}", key("do"), step.page()), None, None),
        Direction::Do => (key("do"), None, None),
        Direction::Undo => (key("undo"), output(index), Some(key("do"))),
    };
    let before = workflow.before(index).into_iter();
    let outputs = before.filter_map(|i| Some((workflow.steps[i].name.clone(), output(i)?)));
    let safely = (direction == Direction::Do).then_some(spec).filter(|spec| spec.looks_safely());
    // A look that was claimed early is also held back when it is re-sent.
    let delay = safely.map_or(SignedDuration::ZERO, |_| until(turn.now, plus(complete_by, -work.timeout)));
    let by_agent = work.http.is_some() || work.aws.is_some();
    let look = spec.poll.as_ref().filter(|_| direction == Direction::Do && by_agent).map(|poll| poll.look.clone());
    let (http, call, held) = match http {
        Some(http) if work.http.is_some_and(Http::maps_host) => (None, None, Some(http)),
        Some(http) if http.body.is_some() || http.keep.is_some() => (None, Some(http), None),
        http => (http, None, None),
    };
    Request {
        task_id: task.id.clone(),
        step: spec.name.clone(),
        agent: work.agent.to_owned(),
        pool: step.pool.clone(),
        http,
        call,
        held,
        aws: work.aws.cloned(),
        look,
        callback: callback(task, index, direction, turn),
        accept: spec.accept.as_ref().filter(|_| direction == Direction::Do).and_then(|accept| accept.when.clone()),
        heartbeat: super::beat::heartbeat(task, index, work, turn),
        delay_ms: u64::try_from(delay.as_millis()).unwrap_or_default(),
        direction,
        attempt: step.attempt,
        reminder: None,
        idempotency_key,
        complete_by,
        calls: work.calls,
        tenant: task.tenant.clone(),
        priority: urgency(task.priority, direction),
        // The agent sees only the item, not the rest of the input.
        input: input.or_else(|| turn.input.get("item").filter(|_| workflow.of_item).cloned()).unwrap_or_default(),
        outputs: outputs.collect(),
        output: undone,
        undoes,
        traceparent: task.traceparent.clone(),
    }
}

/// Whether step `index` waits because its agent in this direction is paused. A step that is passed over needs no agent.
pub(super) fn is_withheld(task: &Task, index: usize, direction: Direction, turn: &Turn<'_>) -> bool {
    let is_paused = turn.workflow.steps[index].work(direction).is_some_and(|work| turn.agents.is_paused(work.agent));
    is_paused && (direction == Direction::Undo || task.way(index, turn.workflow) == Way::Go)
}

/// Whether the reminders' agent for step `index` gets work.
pub(super) fn may_remind(index: usize, turn: &Turn<'_>) -> bool {
    turn.workflow.steps[index].reminder().is_none_or(|work| !turn.agents.is_paused(work.agent))
}

/// An undo never has low priority, because others would overtake it until its attempts expired and it failed.
fn urgency(priority: Priority, direction: Direction) -> Priority {
    match (priority, direction) {
        (Priority::Low, Direction::Undo) => Priority::Normal,
        (Priority::High | Priority::Normal | Priority::Low, Direction::Do | Direction::Undo) => priority,
    }
}

/// The next time when a wait ends, or a step whose agent is not paused can be claimed; `None` if nothing waits.
pub(crate) fn next_claim(task: &Task, turn: &Turn<'_>) -> Option<Timestamp> {
    if task.is_over(turn.now, turn.skew) {
        return None;
    }
    let is_whole = task.migration.is_some() || task.owes_no_undo();
    if turn.agents.paused.is_empty() || is_whole {
        return task.next_claim(turn.workflow, turn.now, turn.skew);
    }
    let direction = if task.phase == Phase::Undoing { Direction::Undo } else { Direction::Do };
    let open = task.waiting(turn.workflow).filter(|(i, _)| !is_withheld(task, *i, direction, turn));
    let reminders = task.reminders().filter(|(i, _)| may_remind(*i, turn)).map(|(_, at)| at);
    open.map(|(_, from)| from.unwrap_or(turn.now)).chain(reminders).min()
}

/// A Wake for [`next_claim`], if that is within the longest delay of a message. A step that waits for a paused agent
/// gets none: the sweep looks after it.
pub(crate) fn wake(task: &Task, turn: &Turn<'_>, hops: u32) -> Option<Effect> {
    let at = next_claim(task, turn)?;
    let delay = until(turn.now, at);
    (delay <= MAX_DELAY).then(|| Effect::Wake(Wake::new(task, task.version, hops), delay))
}

/// The notice of the latest event, for a submitter that has a queue.
pub(crate) fn notice(task: &Task, turn: &Turn<'_>, kind: NoticeKind, step: Option<usize>) -> Option<Effect> {
    notice_of(task, task.version, turn.workflow, kind, step).map(|notice| with_wait(notice, task, turn))
}

/// Adds until when the undo waits, if it does.
fn with_wait(mut notice: Box<Notice>, task: &Task, turn: &Turn<'_>) -> Effect {
    notice.undo_from = task.waits_to_undo(turn.workflow, turn.skew);
    Effect::Notice(notice)
}

/// The notice that `task` was received, for a submitter that has a queue. Its number is always 0.
#[must_use]
pub fn received(task: &Task, workflow: &Workflow) -> Option<Effect> {
    notice_of(task, 0, workflow, NoticeKind::Received, None).map(Effect::Notice)
}

/// [`received`] for an order that has not begun. Its instance may have died before sending the notice, or the queue
/// refused it. Once the order has begun, nothing sends it.
pub(crate) fn first_notice(task: &Task, workflow: &Workflow) -> Option<Effect> {
    received(task, workflow).filter(|_| !task.has_begun())
}

fn notice_of(task: &Task, seq: u64, workflow: &Workflow, kind: NoticeKind, step: Option<usize>) -> Option<Box<Notice>> {
    let queue = task.reply_queue.clone()?;
    Some(Box::new(Notice {
        queue,
        kind,
        order_id: task.id.clone(),
        tenant: task.tenant.clone(),
        workflow: task.workflow.clone(),
        reference: task.reference.clone(),
        seq,
        at: task.updated_at,
        state: task.process_state(),
        step: step.map(|i| workflow.steps[i].name.clone()),
        reason: task.reason.clone(),
        undo_from: None,
        traceparent: task.traceparent.clone(),
        history: history(task, workflow),
    }))
}

/// Re-sends, under its number, the notice of the task's last turn (to undo or to an end). If the order never began, the
/// first notice precedes it: a queue refused both, and nothing sent the first again (simulation, seed 115).
pub(crate) fn turn_notices(task: &Task, turn: &Turn<'_>) -> Vec<Effect> {
    let (kind, step) = match task.phase {
        Phase::Processed => (NoticeKind::Completed, None),
        Phase::Undone => (NoticeKind::Undone, None),
        Phase::Error | Phase::UndoError => {
            (NoticeKind::AttentionNeeded, task.alert.as_ref().and_then(|a| a.step).map(usize::from))
        }
        Phase::Undoing if task.turned_at > 0 => (NoticeKind::Failed, None),
        Phase::Forward | Phase::Undoing => return Vec::new(),
    };
    let last = notice_of(task, task.turned_at, turn.workflow, kind, step).map(|notice| with_wait(notice, task, turn));
    first_notice(task, turn.workflow).into_iter().chain(last).collect()
}

/// Adds the notice of the turn to undo before a Wake that may begin that undo. A queue may have refused the notice, and
/// once the task is Undone, the message that turned it no longer sends it (simulation, seed 131).
pub(crate) fn tell_before_undo(task: &Task, mut decision: Decision, turn: &Turn<'_>) -> Decision {
    if let Decision::Save { effects, .. } = &mut decision
        && task.phase == Phase::Undoing
        && !task.is_undo_begun()
        && let Some(place) = effects.iter().position(|effect| matches!(effect, Effect::Wake(..)))
    {
        effects.splice(place..place, turn_notices(task, turn));
    }
    decision
}

/// The alert that a task owes, if any.
pub(crate) fn alert(task: &Task, turn: &Turn<'_>) -> Option<Effect> {
    let alert = task.alert.as_ref()?;
    let index = alert.step.map(usize::from);
    let step = index.map(|i| &task.steps[i]);
    // An alert during Forward is about a wait.
    let (runbook, resubmit) = match task.phase {
        Phase::Forward => ("who-waits-for-what", format!("stepwarden get {}", task.id)),
        Phase::UndoError => ("undo-failed", format!("stepwarden resubmit {} --by NAME --reason TEXT", task.id)),
        // A person acts on the order at the top, not on a child.
        _ => {
            let above = task.parent.as_ref().map_or(&task.id, |parent| &parent.id);
            ("order-in-error", format!("stepwarden resubmit {above} --by NAME --reason TEXT"))
        }
    };
    Some(Effect::Alert(Box::new(AlertEvent {
        order_id: task.id.clone(),
        workflow: task.workflow.clone(),
        tenant: task.tenant.clone(),
        step: index.map(|i| turn.workflow.steps[i].name.clone()),
        attempts: step.map_or(0, |s| s.attempt),
        reason: alert.reason.clone(),
        last_error: step.and_then(|s| s.error.clone()),
        version: alert.version,
        resubmit,
        runbook: format!("docs/runbook.md#{runbook}"),
    })))
}

/// The history of `task`, oldest first, with names instead of positions.
#[must_use]
pub fn history(task: &Task, workflow: &Workflow) -> Vec<HistoryEntry> {
    let mut all =
        vec![HistoryEntry { at: task.created_at, event: "received".into(), step: None, attempt: None, detail: None }];
    all.extend(task.log.iter().map(|entry| HistoryEntry {
        at: entry.at(task.created_at),
        event: event_name(entry.1).into(),
        step: entry.2.and_then(|i| workflow.steps.get(usize::from(i))).map(|s| s.name.clone()),
        attempt: Some(entry.3).filter(|&a| a > 0),
        detail: entry.4.clone(),
    }));
    all
}

fn event_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Claimed => "step_started",
        Kind::Completed => "step_completed",
        Kind::Failed => "step_failed",
        Kind::Unavailable => "step_unavailable",
        Kind::Deferred => "step_deferred",
        Kind::Expired => "step_expired",
        Kind::Extended => "step_extended",
        Kind::PassedOver => "step_passed_over",
        Kind::Waiting => "step_waiting",
        Kind::Reminded => "step_reminded",
        Kind::EventKept => "event_kept",
        Kind::EventCounted => "event_counted",
        Kind::EventUnused => "event_unused",
        Kind::Caught => "failure_caught",
        Kind::UndoClaimed => "undo_started",
        Kind::Undone => "step_undone",
        Kind::UndoFailed => "undo_failed",
        Kind::TaskUndoing => "undoing",
        Kind::TaskProcessed => "processed",
        Kind::TaskUndone => "undone",
        Kind::TaskError => "error",
        Kind::AlertSent => "operator_alerted",
        Kind::Cancelled => "cancelled",
        Kind::Resubmitted => "resubmitted",
        Kind::Skipped => "skipped",
        Kind::MarkedDone => "marked_done",
        Kind::RetriedNow => "retried_now",
        Kind::UndoAsked => "undo_asked",
        Kind::Paused => "paused",
        Kind::Resumed => "resumed",
        Kind::Erasing => "erasing",
        Kind::Erased => "erased",
        Kind::MigrationAsked => "migration_asked",
        Kind::Migrated => "migrated",
        Kind::NotMigrated => "not_migrated",
        Kind::RunAgain => "run_again_asked",
        Kind::PutBack => "run_again",
    }
}

/// Whether a supervisor, which allows for clock skew, may act on this deadline.
pub(crate) fn is_past(complete_by: Timestamp, turn: &Turn<'_>) -> bool {
    plus(complete_by, turn.skew) <= turn.now
}
