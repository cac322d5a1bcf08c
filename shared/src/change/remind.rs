//! Reminders: requests to an agent that are no attempts. Their count is saved before they are sent, each has its own
//! key, and no reply to one counts. So no agent can hold up or end a wait by them.

use super::Change;
use super::effects::{call_of, request_for};
use crate::decision::Turn;
use crate::history::{self, Kind};
use crate::message::{Effect, Request};
use crate::step::{Direction, Reminded, Step};
use crate::task::{Phase, Task};
use crate::time::{Timestamp, plus};
use crate::workflow::remind::REMINDER_TIMEOUT;

impl Change<'_> {
    /// Sets reminders for step `index`, which waits for somebody from `from` to `until`. The first is due after the
    /// interval, the alert at half-time.
    pub(super) fn begin_to_ask(&mut self, index: usize, from: Timestamp, until: Timestamp) {
        let spec = &self.turn.workflow.steps[index];
        let step = &mut self.task.steps[index];
        step.alert_at = spec.alerts().then(|| plus(from, from.duration_until(until) / 2));
        self.waits |= spec.alerts() || spec.remind.is_some();
        let Some(remind) = &spec.remind else { return };
        // A later wait continues the numbers, because they are in the keys.
        let sent = step.reminded.as_ref().map_or(0, |reminded| reminded.sent);
        step.reminded = Some(Reminded {
            sent,
            last: sent.saturating_add(remind.times),
            next: Some(plus(from, remind.every)),
            sent_at: 0,
            complete_by: None,
        });
    }

    /// Counts and sends the next reminder of step `index`.
    pub(super) fn remind(&mut self, index: usize) {
        let Some(remind) = &self.turn.workflow.steps[index].remind else { return };
        let (now, version) = (self.turn.now, self.task.version);
        let Some(reminded) = &mut self.task.steps[index].reminded else { return };
        reminded.sent += 1;
        reminded.sent_at = version;
        reminded.complete_by = Some(plus(now, REMINDER_TIMEOUT));
        reminded.next = (reminded.sent < reminded.last).then(|| plus(now, remind.every));
        let (sent, last) = (reminded.sent, reminded.last);
        let text = match request(&self.task, index, self.turn) {
            Ok(Some(request)) => {
                self.requests.push(Effect::Request(Box::new(request)));
                format!("{sent} of {last}")
            }
            Ok(None) => return,
            Err(mistake) => format!("{sent} of {last} was not sent: {mistake}"),
        };
        // Reminders in a row share an entry of the history.
        let is_same = |entry: &history::Entry| entry.1 == Kind::Reminded && entry.2.map(usize::from) == Some(index);
        if self.task.log.last().is_some_and(is_same) {
            self.task.log.pop();
        }
        self.log(Kind::Reminded, Some(index), Some(text));
        self.waits = true;
    }
}

/// Each step's latest reminder that may not have been sent, as counted.
pub(crate) fn reminders(task: &Task, turn: &Turn<'_>, may_be_lost: impl Fn(u64) -> bool) -> Vec<Effect> {
    let is_open = |step: &Step| {
        task.phase == Phase::Forward
            && step.asks_until().is_some()
            && step.reminded.as_ref().is_some_and(|reminded| {
                may_be_lost(reminded.sent_at) && reminded.complete_by.is_some_and(|by| turn.now < by)
            })
    };
    let open = task.steps.iter().enumerate().filter(|(_, step)| is_open(step));
    open.filter_map(|(index, _)| Some(Effect::Request(Box::new(request(task, index, turn).ok()??)))).collect()
}

/// The latest reminder of step `index`.
fn request(task: &Task, index: usize, turn: &Turn<'_>) -> Result<Option<Request>, crate::expression::Mistake> {
    let spec = &turn.workflow.steps[index];
    let (Some(work), Some(reminded)) = (spec.reminder(), &task.steps[index].reminded) else { return Ok(None) };
    let Some(complete_by) = reminded.complete_by else { return Ok(None) };
    let call = call_of(task, index, work, Direction::Do, None, turn)?;
    let request = request_for(task, index, turn, (work, Direction::Do, complete_by), call);
    Ok(Some(Request {
        pool: None,
        // The service's answer means nothing to the step.
        look: None,
        callback: None,
        accept: None,
        delay_ms: 0,
        attempt: 0,
        idempotency_key: format!("{}:{}:remind:{}", task.id, spec.name, reminded.sent),
        reminder: Some(reminded.sent),
        ..request
    }))
}
