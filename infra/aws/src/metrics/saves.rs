//! What every save reports: log lines about an order as a whole, counts of orders and steps, and links from spans to
//! orders. A successful save counts once, however often its message is delivered.

use super::{
    ORDERS_ACCEPTED, ORDERS_IN_ERROR, ORDERS_PROCESSED, ORDERS_UNDONE, RECOVERY_LAG, STEP_ATTEMPTS, STEP_FAILURES,
};
use crate::telemetry::trace_id;
use crate::traces;
use shared::engine::Save;
use shared::step::{State, Step};
use shared::task::{ProcessState, Task};
use shared::workflow::Workflow;

/// Logs and counts what `save`, by the process called `instance`, changed.
pub fn observe(save: &Save<'_>, instance: &str) {
    let Save { task, before } = *save;
    let trace_id = trace_id(task.traceparent.as_deref());
    traces::acted_on(task.traceparent.as_deref());
    let Some((before, workflow)) = before else {
        // Put as Undone, so that it can never run.
        if task.process_state().is_final() {
            return;
        }
        ORDERS_ACCEPTED.add(&task.workflow);
        tracing::info!(task.id = %task.id, workflow = %task.workflow, instance, trace_id, "accepted");
        return;
    };
    steps(before, task, workflow, instance, trace_id);
    let state = task.process_state();
    if state == before.process_state() {
        return;
    }
    let ended = match state {
        ProcessState::Pending | ProcessState::Processing | ProcessState::Undoing => return,
        ProcessState::Processed => &ORDERS_PROCESSED,
        ProcessState::Undone => &ORDERS_UNDONE,
        ProcessState::Error => &ORDERS_IN_ERROR,
    };
    ended.add(&task.workflow);
    let state = state.name();
    // The reason is only in the order's history, because a remote service may quote what it was sent.
    match state {
        "Error" => {
            tracing::error!(task.id = %task.id, workflow = %task.workflow, instance, trace_id, "stopped in Error")
        }
        _ => tracing::info!(task.id = %task.id, workflow = %task.workflow, instance, trace_id, state, "ended"),
    }
}

fn steps(before: &Task, task: &Task, workflow: &Workflow, instance: &str, trace_id: Option<&str>) {
    for ((old, new), spec) in before.steps.iter().zip(&task.steps).zip(&workflow.steps) {
        let agent = |step: &Step| step.claim().and_then(|(direction, _)| spec.work(direction)).map_or("", |w| w.agent);
        // A step that is an order has no agent.
        if new.attempt > old.attempt && new.kids.is_none() {
            STEP_ATTEMPTS.add(agent(new));
        }
        let is_missed = new.failures > old.failures || new.undo_failures > old.undo_failures;
        let has_failed = |step: &Step| matches!(step.state, State::Failed | State::UndoFailed);
        let Some((_, complete_by)) = old.claim() else { continue };
        if is_missed || (has_failed(new) && !has_failed(old)) {
            STEP_FAILURES.add(agent(old));
        }
        // A reply that settles an attempt records the version of its change; silence records none.
        if is_missed && new.settled_at <= before.version {
            let lag = complete_by.duration_until(task.updated_at);
            RECOVERY_LAG.took(agent(old), lag.as_secs_f64());
            tracing::warn!(
                task.id = %task.id, step.name = %spec.name, step.attempt = old.attempt, instance, trace_id,
                lag_ms = lag.as_millis(), "an attempt ran out of time"
            );
        }
    }
}
