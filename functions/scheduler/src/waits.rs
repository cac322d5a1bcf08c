//! How long a batch's messages had waited. Too long waits are noted for the functions that take orders.

use shared::engine::{Engine, Handled};
use shared::message::ToScheduler;
use shared::overload::MIN_LIMIT;
use shared::queues::{self, REPLIES, SCHEDULER};
use shared::step::Direction;
use shared::task::{Phase, Task};
use shared::time::SignedDuration;
use shared::workflow::Workflow;
use stepwarden_aws::batch::Record;

/// A wait that may be too long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The Wake itself.
    Wake(SignedDuration),
    /// The cancellation itself.
    Cancel(SignedDuration),
    /// The reply itself.
    Reply(SignedDuration),
    /// The request that it answers, in the queue of the agent of this step.
    Request(String, SignedDuration),
}

/// The waits that a message reports. Under normal load there are none.
pub(crate) fn of(message: &ToScheduler, record: &Record) -> Vec<Waited> {
    let own = record.waited.filter(|waited| *waited >= MIN_LIMIT);
    match message {
        // A first Wake is never delayed. A later one may be, and its wait says nothing about the queue.
        ToScheduler::Wake(wake) if wake.seen > 0 || wake.hops > 0 => Vec::new(),
        ToScheduler::Wake(_) => own.map(Waited::Wake).into_iter().collect(),
        ToScheduler::Cancel(_) => own.map(Waited::Cancel).into_iter().collect(),
        ToScheduler::Reply(reply) => {
            let ms = reply.queued_ms.and_then(|ms| i64::try_from(ms).ok()).map(SignedDuration::from_millis);
            let request = ms.filter(|waited| *waited >= MIN_LIMIT).map(|w| Waited::Request(reply.step.clone(), w));
            own.map(Waited::Reply).into_iter().chain(request).collect()
        }
    }
}

/// Notes the waits of messages that were handled. A repeated or late reply may be old for reasons other than load.
pub(crate) async fn note(engine: &Engine, all: Vec<(Handled, Vec<Waited>)>) {
    for (handled, waits) in all {
        let (task, is_applied) = match handled {
            Handled::Applied(task) => (task, true),
            Handled::Kept(_, task) => (task, false),
            Handled::NoSuchTask => continue,
        };
        let Ok(workflow) = engine.workflow(&task.workflow_hash).await else { continue };
        for waited in waits {
            let (queue, age) = match waited {
                Waited::Wake(age) => (queues::of_wakes(task.priority, engine.has_classes()), age),
                Waited::Cancel(age) => (SCHEDULER.to_owned(), age),
                Waited::Reply(age) if is_applied => (REPLIES.to_owned(), age),
                Waited::Request(step, age) if is_applied => match pool(&task, &workflow, &step) {
                    // No agent reports more than the step's timeout, after which it is silent.
                    Some((pool, most)) => {
                        (queues::of_requests(pool, task.priority, engine.has_classes()), age.min(most))
                    }
                    None => continue,
                },
                Waited::Reply(_) | Waited::Request(..) => continue,
            };
            match engine.note_wait(&queue, &task.tenant, age, &workflow).await {
                Ok(true) => {
                    tracing::warn!(queue, age_ms = age.as_millis(), "messages wait too long")
                }
                Ok(false) => {}
                Err(error) => {
                    tracing::warn!(queue, error = &error as &dyn std::error::Error, "a long wait could not be recorded")
                }
            }
        }
    }
}

/// The pool that answered for `step`, and its timeout, for the undo if the task is being undone.
fn pool<'a>(task: &'a Task, workflow: &'a Workflow, step: &str) -> Option<(&'a str, SignedDuration)> {
    let index = workflow.position(step)?;
    let spec = &workflow.steps[index];
    let undo = match task.phase {
        Phase::Forward | Phase::Processed | Phase::Error => None,
        Phase::Undoing | Phase::Undone | Phase::UndoError => spec.work(Direction::Undo),
    };
    let work = undo.or_else(|| spec.work(Direction::Do))?;
    Some((task.steps.get(index)?.pool.as_deref().unwrap_or(work.agent), work.window()))
}
