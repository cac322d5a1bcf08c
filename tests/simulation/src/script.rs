//! Scripted remote services: one order of a workflow, without faults, whose calls get the answers that somebody wrote down.
//!
//! It decides nothing about the product: the functions that run in production make all decisions, and the agents' own
//! code writes each call over HTTP and reads its answer.

use crate::Plan;
use crate::history::{Rule, Violation};
use crate::node::Role;
use crate::people;
use crate::retell::Retold;
use crate::world::processes::live_one_each;
use crate::world::{Knock, RunOptions, World, begin, id_of, key_of, lock};
use agent::agents::{Means, http::Http};
use agent::{AgentError, remote};
use serde_json::{Map, Value, json};
use shared::message::Request;
use shared::order::Id;
use shared::step::Direction;
use shared::task::{Parent, Task};
use shared::workflow::http::{Body, Meaning, usual};
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use submit::problem::Problem;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

/// Ending of the name of a step's undo.
pub const UNDO: &str = ".undo";
/// Ending of the name of a step's reminders.
pub const REMIND: &str = ".remind";

/// What the services of one workflow answer, for orders with one input.
pub struct Script {
    /// The input of every order.
    pub input: Value,
    /// By step, or by step and [`UNDO`]: what the calls get, one after another; the last answer repeats. A call without
    /// any gets an empty answer with status 200. A call of an order that a step starts has that step's name and a slash
    /// before its own, unless the step makes this one call for each item; see [`is_of`].
    pub answers: BTreeMap<String, Vec<Scripted>>,
    /// The events that are sent to every order, one after another.
    pub events: Vec<Sending>,
    /// The order that is played again, if there is one. Then its record has the answers.
    pub retold: Option<Retold>,
    http: Http,
}

/// An event that is sent to an order.
#[derive(Clone, Debug, PartialEq)]
pub struct Sending {
    /// How long after the order; `None`: once a step waits for it.
    pub at: Option<Duration>,
    /// Its name.
    pub name: String,
    /// Its idempotency key.
    pub key: String,
    /// Its data, an object.
    pub data: Value,
    /// The authenticated person who sends it.
    pub by: Option<String>,
}

/// One answer of a remote service.
#[derive(Clone, Debug, PartialEq)]
pub struct Scripted {
    /// How long it takes.
    pub takes: Duration,
    /// What it is.
    pub said: Said,
}

/// What a remote service does with a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// It answers. An agent that is no URL understands the status as a URL step does by default.
    Answer {
        /// Status of HTTP.
        status: u16,
        /// Headers of HTTP.
        headers: Vec<(String, String)>,
        /// The body.
        body: Option<Value>,
    },
    /// The agent reports a permanent error.
    Refused(String),
    /// No call reaches it.
    Unavailable,
    /// It never answers.
    Silent,
}

/// A call that was made.
#[derive(Clone, Debug, PartialEq)]
pub struct Sent {
    /// Its order.
    pub order: Id,
    /// Its attempt.
    pub attempt: u32,
    /// The step, or the step and [`UNDO`]. Of an order that a step starts: `lines[2]/pick`, where `lines` is that step and
    /// 2 the position of the item. Of a step that makes a call for each item: `mails[2]`.
    pub name: String,
    /// Over HTTP: `method`, `url`, `headers` and `body`, where `body` is JSON, the fields of a form, or a string. Otherwise
    /// `input`, and `output` for an undo.
    pub what: Value,
}

/// How the order of a script ended.
pub struct Played {
    /// Why it was not accepted.
    pub refused: Option<Problem>,
    /// The order as it was saved each time.
    pub saved: Vec<Arc<Task>>,
    /// The orders that it started, and those that these did, as they were saved last.
    pub started: Vec<Arc<Task>>,
    /// The output of each step in the end, also one that is kept beside the record.
    pub outputs: Vec<Option<Value>>,
    /// Every call, in order.
    pub sent: Vec<Sent>,
    /// The answer to each event that was sent, by position: `accepted`, or the code of a problem.
    pub answered: BTreeMap<usize, String>,
    /// Rules of the product that were broken, with the order that did not end among them.
    pub violations: Vec<Violation>,
}

impl fmt::Debug for Script {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Script").field("input", &self.input).field("answers", &self.answers).finish_non_exhaustive()
    }
}

impl Script {
    /// The script with this input and these answers.
    pub fn new(input: Value, answers: BTreeMap<String, Vec<Scripted>>) -> Self {
        Self { input, answers, events: Vec::new(), retold: None, http: Http::new(&Means::default()) }
    }

    /// The same with these events.
    pub fn sending(self, events: Vec<Sending>) -> Self {
        Self { events, ..self }
    }

    /// The script of an order that is played again.
    pub fn retelling(self, retold: Retold) -> Self {
        Self { retold: Some(retold), ..self }
    }

    /// What is sent for `request`.
    pub(crate) fn written(&self, request: &Request) -> Result<Value, AgentError> {
        let Some(call) = request.over_http() else {
            let mut sent = json!({ "input": request.input });
            if request.direction == Direction::Undo {
                sent["output"] = request.output.clone().unwrap_or_default();
            }
            return Ok(sent);
        };
        let written = self.http.written(request)?;
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers: Map<String, Value> =
            written.headers().iter().map(|(name, value)| (name.to_string(), text(value).into())).collect();
        let mut sent =
            json!({ "method": written.method().as_str(), "url": written.url().as_str(), "headers": headers });
        if let Some(bytes) = written.body().and_then(|body| body.as_bytes()) {
            sent["body"] = match call.body {
                Some(Body::Form) => {
                    let fields = url::form_urlencoded::parse(bytes);
                    Value::Object(fields.map(|(name, value)| (name.into_owned(), json!(value))).collect())
                }
                _ => serde_json::from_slice(bytes).unwrap_or_else(|_| String::from_utf8_lossy(bytes).into()),
            };
        }
        Ok(sent)
    }

    /// The answer to call `number` of its `name`, from 0; `None` for silence.
    pub(crate) async fn answer(
        &self,
        request: &Request,
        name: &str,
        number: usize,
    ) -> Option<Result<Value, AgentError>> {
        // That of one item comes before that of any.
        let own = self.answers.iter().filter(|(wanted, _)| is_of(name, wanted));
        let own = own.max_by_key(|(wanted, _)| wanted.matches('[').count());
        let scripted = own.and_then(|(_, all)| all.get(number).or(all.last()));
        let nothing = Said::Answer { status: 200, headers: Vec::new(), body: None };
        let (takes, said) = scripted.map_or((Duration::ZERO, &nothing), |one| (one.takes, &one.said));
        sleep(takes).await;
        match said {
            Said::Silent => None,
            Said::Refused(error) => Some(Err(AgentError::Permanent { error: error.clone() })),
            Said::Unavailable => Some(Err(AgentError::unavailable("it cannot be reached"))),
            Said::Answer { status, headers, body } => {
                let text = match body {
                    Some(Value::String(text)) if headers.iter().any(|(name, _)| name == "content-type") => text.clone(),
                    Some(body) => body.to_string(),
                    // An agent that is no URL answers with JSON.
                    None if request.over_http().is_none() && usual("POST", *status) == Meaning::Done => "null".into(),
                    None => String::new(),
                };
                let mut answer = http::Response::builder().status(*status);
                if !headers.iter().any(|(name, _)| name == "content-type") {
                    answer = answer.header("content-type", "application/json");
                }
                answer = headers.iter().fold(answer, |answer, (name, value)| answer.header(name, value));
                let answer = answer.body(text).expect("status and headers were checked when the script was read");
                Some(remote::understand(request, answer.into()).await)
            }
        }
    }
}

/// The name by which a script knows the call of `request`.
pub(crate) fn name_of(request: &Request) -> String {
    match request.direction {
        Direction::Do if request.reminder.is_some() => format!("{}{REMIND}", request.step),
        Direction::Do => request.step.clone(),
        Direction::Undo => format!("{}{UNDO}", request.step),
    }
}

/// The name of the call `name` of an order that another one, `parent`, started. The order of a call for each item has nothing but that call.
pub fn name_below(parent: &Parent, workflow: &str, name: &str) -> String {
    let (step, item) = (&parent.step, parent.item.map(|item| format!("[{item}]")).unwrap_or_default());
    match name.strip_prefix(step.as_str()) {
        // No file names its workflow so.
        Some(rest) if workflow.contains('.') => format!("{step}{item}{rest}"),
        _ => format!("{step}{item}/{name}"),
    }
}

/// Whether the call `name` is meant by `wanted`: `lines/pick` means that of each item, and `lines[2]/pick` that of one.
pub fn is_of(name: &str, wanted: &str) -> bool {
    let (own, all): (Vec<&str>, Vec<&str>) = (name.split('/').collect(), wanted.split('/').collect());
    let of_each = |own: &str| {
        let (step, rest) = own.split_once('[')?;
        Some(format!("{step}{}", rest.split_once(']')?.1))
    };
    let is_same = |(own, wanted): (&&str, &&str)| own == wanted || of_each(own).is_some_and(|own| own == *wanted);
    own.len() == all.len() && own.iter().zip(&all).all(is_same)
}

/// Plays one order of `workflow` by `script`, in virtual time and without faults, until it ends.
///
/// # Panics
/// If no runtime of one thread can be started.
#[must_use]
pub fn play(workflow: &Arc<Workflow>, children: &[Arc<Workflow>], script: &Arc<Script>) -> Played {
    let (runtime, world) = begin(Plan::calm(workflow, children, script), &RunOptions::default());
    let refused = runtime.block_on(follow(&world));
    let id = id_of(&world.plan.orders[0]);
    let known = |wanted: &Hash| world.known(wanted).cloned();
    let history = world.history();
    let mut violations = world.violations();
    if refused.is_none() && violations.is_empty() {
        violations.extend(history.check(known));
    }
    let saved: Vec<Arc<Task>> = history.saved(&id).cloned().collect();
    let started = history.orders().filter(|task| task.id != id).cloned().collect();
    drop(history);
    let steps = saved.last().map(|task| task.steps.as_slice()).unwrap_or_default();
    let outputs = steps.iter().map(|step| match &step.beside {
        Some(beside) => world.output(&id, &beside.hash),
        None => step.output.clone(),
    });
    let outputs = outputs.collect();
    let (sent, answered) = (lock(&world.sent).clone(), lock(&world.answered).clone());
    Played { refused, saved, started, outputs, sent, answered, violations }
}

/// Submits the order and waits for its end.
async fn follow(world: &Arc<World>) -> Option<Problem> {
    live_one_each(world, &[Role::Submit, Role::Scheduler, Role::Agent, Role::Supervisor]).await;
    let order = &world.plan.orders[0];
    let (answer, answered) = oneshot::channel();
    let body = json!({ "workflow": world.plan.workflow.name, "input": world.plan.script.as_ref().map(|s| &s.input) });
    world.knock("submit-0", Knock::Submit(key_of(order), body, answer));
    if let Ok(Err(problem)) = answered.await {
        return Some(problem);
    }
    let events = tokio::spawn(people::send_events(Arc::clone(world), order.clone()));
    let deadline = Instant::now() + world.plan.rest_within();
    let every = world.plan.look_every();
    loop {
        sleep(every).await;
        let Some(why) = world.open(&id_of(order), |_| false) else {
            // Orders that it started may go on when it has failed.
            while world.open_child().is_some() && Instant::now() <= deadline {
                sleep(every).await;
            }
            // An event after the end is part of the script.
            let _ = tokio::time::timeout(world.plan.rest_within(), events).await;
            // An alert may still be on its way.
            sleep(Duration::from_secs(1)).await;
            return None;
        };
        if Instant::now() > deadline {
            world.wrong(Rule::Ends, Some(id_of(order)), format!("no end within {:?}: {why}", world.plan.rest_within()));
            return None;
        }
    }
}
