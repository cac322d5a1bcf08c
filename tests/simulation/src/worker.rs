//! A program that works on a step for long, and sends heartbeats meanwhile. It outlives the process that took its request.

use crate::dice::Class;
use crate::node::Node;
use crate::people::ask_submit;
use crate::plan::MOST_BEATS;
use crate::port::{Faulty, direction};
use crate::queues::wait_ms;
use crate::world::{Busy, Knock, World};
use agent::AgentError;
use serde_json::Value;
use shared::decision::Progress;
use shared::message::{Effect, Outcome, Reply, Request};
use shared::ports::Messenger;
use shared::time::{SignedDuration, plus, until};
use std::sync::Arc;
use std::time::Duration;
use submit::heartbeats::Alive;
use submit::problem::Problem;
use tokio::time::sleep;

/// How long it waits for the answer to a heartbeat.
const PATIENCE: Duration = Duration::from_secs(2);

/// Does what `request` asks, for as long as its heartbeats are answered.
pub(crate) async fn work(world: Arc<World>, node: Arc<Node>, request: Request, refuses: bool) {
    let _busy = Busy::new(&world);
    let label = format!("worker {} {} {}", world.label(&request.task_id), request.step, request.attempt);
    let Some(told) = request.heartbeat.clone() else { return };
    // The clock of its machine.
    let off = world.time().duration_until(node.clock(&world)());
    let now = || plus(world.time(), off);
    let every = Duration::from_millis(told.every_ms);
    let skew = SignedDuration::try_from(world.plan.skew_std()).unwrap_or_default();
    let dies =
        world.fires(Class::RemoteHang, &label).map(|mut draw| draw.between(0, u64::from(MOST_BEATS) * told.every_ms));
    // In time, if its heartbeats are answered.
    let takes = world.dice.draw(&label).between(0, u64::from(MOST_BEATS - 1) * told.every_ms);
    let mut job = Box::pin(async {
        let reply = |result| Reply::to(&request, of(result));
        match world.plan.script.clone() {
            Some(_) if world.is_retold() => world.hear(&request).await,
            Some(script) => world.serve_by(&script, &request, refuses).await.map(reply),
            None => {
                wait_ms(takes).await;
                Some(reply(world.serve(&request, refuses)))
            }
        }
    });
    let mut end = Box::pin(async move {
        match dies {
            Some(after) => wait_ms(after).await,
            None => std::future::pending().await,
        }
    });
    let mut complete_by = request.complete_by;
    let mut sent = 0;
    let reply = loop {
        let left = Duration::try_from(until(now(), plus(complete_by, -skew))).unwrap_or_default();
        tokio::select! {
            biased;
            () = &mut end => return world.trace(format_args!("{label} dies")),
            () = sleep(left) => return world.trace(format_args!("{label} stops at its CompleteBy")),
            done = &mut job => match done {
                Some(reply) => break reply,
                None => return world.trace(format_args!("{label} stays silent")),
            },
            answer = beat(&world, &label, &request, sent, every) => {
                sent += 1;
                match answer {
                    Some(Ok(alive)) => complete_by = alive.complete_by,
                    Some(Err(problem)) if matches!(problem.status, 404 | 409) => {
                        return world.trace(format_args!("{label} is told to stop: {}", problem.code));
                    }
                    Some(Err(_)) | None => world.trace(format_args!("{label}: no answer")),
                }
            }
        }
    };
    world.trace(format_args!("{label} {}: {:?}", direction(request.direction), reply.outcome));
    if now() < complete_by {
        let _ = Faulty::new(&world, &node).send(vec![Effect::Reply(Box::new(reply))]).await;
    }
}

/// Sends a heartbeat after `every`. `None`: there is no answer.
async fn beat(
    world: &World,
    label: &str,
    request: &Request,
    number: u64,
    every: Duration,
) -> Option<Result<Alive, Problem>> {
    sleep(every).await;
    let progress = Progress { percent: Some((number % 100) as u8), note: None };
    let (id, step) = (request.task_id.clone(), request.step.clone());
    let knock = |answer| Knock::Beat(id, step, request.attempt, progress, answer);
    let answer = ask_submit(world, &format!("{label} beat {number}"), number, PATIENCE, knock).await?;
    let until = answer.as_ref().map(|alive| alive.complete_by.as_millisecond());
    world.trace(format_args!("{label} heartbeat {number}: {until:?}"));
    Some(answer)
}

fn of(result: Result<Value, AgentError>) -> Outcome {
    match result {
        Ok(output) => Outcome::Done { output },
        Err(AgentError::Accepted { output }) => Outcome::Accepted { output },
        Err(AgentError::Transient { error, .. }) => Outcome::Unavailable { error, retry_after_ms: None },
        Err(error) => Outcome::Failed { error: error.to_string() },
    }
}
