//! The calls of agents, and what happens to them and their answers on the way to a remote service and back.

use crate::dice::Class;
use crate::node::Node;
use crate::people;
use crate::port::{Faulty, direction};
use crate::queues::wait_ms;
use crate::worker;
use crate::world::World;
use agent::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::{Value, json};
use shared::message::{Effect, Request};
use shared::ports::Messenger;
use shared::step::Direction;
use shared::time::{SignedDuration, until};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Latest arrival of a call after its deadline, as a multiple of its caller's time left, plus ten seconds.
pub(crate) const MOST_LATE: u32 = 3;

/// An agent whose remote service is simulated.
pub struct SimulatedAgent {
    name: String,
    world: Arc<World>,
    node: Arc<Node>,
}

impl SimulatedAgent {
    pub fn new(name: &str, world: &Arc<World>, node: &Arc<Node>) -> Self {
        Self { name: name.to_owned(), world: Arc::clone(world), node: Arc::clone(node) }
    }

    async fn call(&self, request: &Request, time_left: Duration) -> Result<Value, AgentError> {
        let world = &self.world;
        let what = format!("{} {} {}", world.label(&request.task_id), request.step, direction(request.direction));
        let site = format!("{} {what}", self.name);
        world.check_input(request);
        self.node.touch(world, &site);
        if request.heartbeat.is_none() && request.reminder.is_none() && world.is_retold() {
            let (world, node, request) = (Arc::clone(world), Arc::clone(&self.node), request.clone());
            tokio::spawn(async move {
                if let Some(reply) = world.hear(&request).await {
                    let _ = Faulty::new(&world, &node).send(vec![Effect::Reply(Box::new(reply))]).await;
                }
            });
            return Err(AgentError::Stopped { why: "its reply is sent as the history has it".into() });
        }
        let refusal = match request.direction {
            Direction::Do => Class::RemotePermanent,
            Direction::Undo => Class::UndoRefused,
        };
        if request.heartbeat.is_some() {
            let refuses = world.fires(refusal, &site).is_some();
            tokio::spawn(worker::work(Arc::clone(world), Arc::clone(&self.node), request.clone(), refuses));
            return Err(AgentError::Stopped { why: "a program has it that outlives this process".into() });
        }
        let (mut out, mut back) = world.ways(&self.node.name, &site);
        let left_ms = u64::try_from(time_left.as_millis()).unwrap_or(u64::MAX / 8);
        // What the service itself does, and what happens to call and answer on their way.
        if let Some(mut draw) = world.fires(Class::RemoteSlow, &site) {
            *if draw.chance(0.5) { &mut out } else { &mut back } += draw.between(left_ms / 10, left_ms);
        }
        let mut is_silent = false;
        if let Some(mut draw) = world.fires(Class::RemoteHang, &site) {
            is_silent = true;
            if draw.chance(0.5) {
                std::future::pending::<()>().await;
            }
        }
        if let Some(mut draw) = world.fires(Class::RemoteLate, &site) {
            let to_go = until(world.time(), request.complete_by);
            let to_go = u64::try_from(to_go.as_millis()).unwrap_or_default();
            out += to_go + draw.between(1, u64::from(MOST_LATE) * left_ms + 10_000);
        }
        if !is_silent && let Some(mut draw) = world.fires(Class::RemoteLateAnswer, &site) {
            back += left_ms + draw.between(1, 3000);
        }
        let mut fails = None;
        if world.is_out(&self.name) {
            fails = Some(None);
        } else if let Some(mut draw) = world.fires(Class::RemoteTransient, &site) {
            fails =
                Some(draw.chance(0.2).then(|| {
                    SignedDuration::from_millis(i64::try_from(draw.between(0, 4000)).expect("a few seconds"))
                }));
        } else if request.direction == Direction::Undo && world.does_undo_fail(&what) {
            fails = Some(None);
        }
        let refuses = fails.is_none() && world.fires(refusal, &site).is_some();
        let is_not_yet = fails.is_none()
            && world.polls(&request.step, request.direction)
            && world.fires(Class::NotYet, &site).is_some();
        let accepted = match fails.is_none() && world.may_accept(request) {
            true => world.fires(Class::Accepted, &site).map(|mut draw| draw.between(1, 20_000)),
            false => None,
        };
        let lies = fails.is_none() && !is_silent && world.fires(Class::RemoteLying, &site).is_some();
        let (answer, answered) = oneshot::channel();
        let (network, request) = (Arc::clone(world), request.clone());
        tokio::spawn(async move {
            wait_ms(out).await;
            let result = match fails {
                Some(retry_after) => Err(unwell(503, "503", retry_after)),
                None => {
                    let answer = match network.plan.script.clone() {
                        None if accepted.is_some() => {
                            let after = Duration::from_millis(accepted.unwrap_or_default());
                            tokio::spawn(people::call_back(Arc::clone(&network), request.clone(), after));
                            Err(AgentError::Accepted { output: json!({ "accepted": true }) })
                        }
                        None if is_not_yet => Err(AgentError::NotYet { why: "nothing yet".into() }),
                        None => network.serve(&request, refuses),
                        Some(script) => match network.serve_by(&script, &request, refuses).await {
                            Some(answer) => answer,
                            None => return std::future::pending().await,
                        },
                    };
                    network.trace(format_args!("remote {what} {}: {answer:?}", request.attempt));
                    match answer {
                        Ok(_) if lies => Err(unwell(500, "500 after it was done", None)),
                        answer => answer,
                    }
                }
            };
            if is_silent {
                return std::future::pending().await;
            }
            wait_ms(back).await;
            let _ = answer.send(result);
        });
        answered.await.unwrap_or(Err(AgentError::unavailable("cut off")))
    }
}

fn unwell(status: u16, error: &str, retry_after: Option<SignedDuration>) -> AgentError {
    AgentError::Transient { error: error.into(), said: None, status: Some(status), retry_after, is_unwell: true }
}

impl Agent for SimulatedAgent {
    fn name(&self) -> &str {
        &self.name
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.call(call.request, call.time_left))
    }
}
