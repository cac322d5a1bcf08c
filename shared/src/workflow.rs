//! Workflows: steps, their sequence, agents, timeouts and retries, and how to undo them.
//!
//! A workflow is data. A task names the definition it was submitted under by the hash of its content, so that a new
//! deployment never changes a running task. [`file`] reads one from TOML and says exactly what is wrong with it.

pub mod accept;
pub mod aws;
pub mod beat;
pub mod child;
pub mod each;
pub mod edge;
pub mod file;
pub mod hosts;
pub mod http;
pub mod link;
pub mod pages;
pub mod poll;
pub mod remind;
pub mod wait;

use crate::expression::{Expression, Mapping, Reference, Template};
use crate::json::{DAMAGED, NEWER, why_unread};
use crate::retry::{Calls, Ladder, Late, Then};
use crate::schema;
use crate::step::{Direction, FailureKind, State};
use crate::task::MAX_GRACE;
use crate::time::SignedDuration;
use accept::Accept;
use aws::Aws;
use child::Child;
use each::Each;
use edge::After;
use http::Http;
use poll::Poll;
use remind::Remind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::fmt;
use wait::{Awaited, Wait};

/// Most steps in one workflow, so that a task's record stays far below DynamoDB's 400 KB.
pub const MAX_STEPS: usize = 50;

/// How far apart the clocks of a deployment on AWS may be, unless `CLOCK_SKEW_MS` says otherwise.
pub const USUAL_SKEW: SignedDuration = SignedDuration::from_secs(1);

/// A step whose agent might never start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "workflow `{workflow}`: {what} has a timeout of {} ms, and clocks may be {} ms apart: its agent might never \
     start. The timeout must be more than {} ms",
    timeout.as_millis(), skew.as_millis(), 2 * skew.as_millis()
)]
pub struct TooShort {
    workflow: String,
    what: String,
    timeout: SignedDuration,
    skew: SignedDuration,
}

/// Identity of a definition: the first 24 hexadecimal digits of the SHA-256 of its canonical JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hash(pub String);

impl Hash {
    /// The identity of the definition with this canonical JSON.
    #[must_use]
    pub fn of(json: &[u8]) -> Self {
        Self(Sha256::digest(json).iter().take(12).map(|b| format!("{b:02x}")).collect())
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A validated workflow. Its JSON is the WORKFLOW record and, hashed, the workflow's identity.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Workflow {
    /// The name submitters use.
    pub name: String,
    /// The built-in check that an input must pass; without one, any JSON object is accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub input: Option<String>,
    /// The file's own check of the input, instead of a built-in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<schema::Input>,
    /// What follows a permanent error of a forward step, unless the step says otherwise.
    pub on_failure: Then,
    /// Whether the final notice keeps its row in the due index until it is out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_notices: bool,
    /// Every service remembers the keys it has undone (tombstones), so that a forward call that arrives after its undo
    /// does nothing. The undo then waits only for attempts in progress.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tombstones: bool,
    /// How long an order may take; if it still goes forward then, it fails.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<SignedDuration>,
    /// Days to keep an order's record after it ended well, instead of the deployment's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<u16>,
    /// Values that expressions read as `config`.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub config: Map<String, Value>,
    /// The output of a completed order, for its submitter or its parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Mapping>,
    /// Its orders each make one call for an item of a list. Their input is `item`, `index`, and what the call reads of
    /// their parent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub of_item: bool,
    /// At least one, in the order of the file; `after` holds positions in this list.
    pub steps: Vec<Step>,
}

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// Unique in its workflow.
    pub name: String,
    /// The agent that does it; empty for a step that calls nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub agent: String,
    /// The call, if that agent is [`http::AGENT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// The signed call, if that agent makes one instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Aws>,
    /// The child that it starts, if any; it then calls nothing itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub child: Option<Child>,
    /// The steps that must be settled first, and their edges.
    pub after: Vec<After>,
    /// Whether the step runs, decided once when its turn comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub when: Option<Expression>,
    /// What the agent gets instead of the order's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Mapping>,
    /// What is kept of the answer; for a URL [`Http::keep`], for AWS [`Aws::keep`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Mapping>,
    /// Failures after which the order goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catch: Option<Expression>,
    /// The output of a step that only computes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<Mapping>,
    /// The reason to fail the order when this step's turn comes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fail: Option<Template>,
    /// What the step waits for, if it is a wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Who is reminded while it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remind: Option<Remind>,
    /// If its service only accepts the work, and reports its end later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accept: Option<Accept>,
    /// How its call is repeated until an answer says that the work is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub poll: Option<Poll>,
    /// Each answer to its call is a page of a list, and its call is repeated until there is no next page.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pages: bool,
    /// The interval of its agent's heartbeats. Each sets `complete_by` two intervals ahead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<SignedDuration>,
    /// From the claim to `complete_by`; with heartbeats to the latest `complete_by`.
    pub timeout: SignedDuration,
    /// The supervisor's policy.
    pub retry: Ladder,
    /// More time for a late attempt, before the policy above counts a failure. Forward work only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
    /// The agent's policy within one attempt.
    pub calls: Calls,
    /// What follows a permanent error.
    pub on_failure: Then,
    /// Once it may have run, a failure needs a person instead of an undo.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub irreversible: bool,
    /// The compensating transaction, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Undo>,
}

/// The compensating transaction of a step.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Undo {
    /// The agent that does it.
    pub agent: String,
    /// The call, if that agent is [`http::AGENT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// The signed call, if that agent makes one instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Aws>,
    /// What the agent gets instead of the order's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Mapping>,
    /// How often its agent says that it still works, as [`Step::heartbeat`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<SignedDuration>,
    /// From the claim to `complete_by`.
    pub timeout: SignedDuration,
    /// The supervisor's policy; at its end the task stops in Error, whatever `then` says.
    pub retry: Ladder,
    /// The agent's policy within one attempt.
    pub calls: Calls,
}

/// The path of the first field of `before` that `after` lacks.
fn lost(before: &Value, after: &Value) -> Option<String> {
    let deeper = |name: &str, before, after| {
        lost(before, after).map(|rest| format!("{name}.{rest}").trim_end_matches('.').to_owned())
    };
    match (before, after) {
        (Value::Object(before), Value::Object(after)) => {
            before.iter().find_map(|(name, value)| match after.get(name) {
                Some(kept) => deeper(name, value, kept),
                None => Some(name.clone()),
            })
        }
        (Value::Array(before), Value::Array(after)) => {
            before.iter().zip(after).enumerate().find_map(|(n, (value, kept))| deeper(&n.to_string(), value, kept))
        }
        _ => None,
    }
}

/// Positions of all `steps` that step `index` depends on, directly or indirectly, ascending.
fn before(steps: &[Step], index: usize) -> Vec<usize> {
    let ahead = |step: usize| steps[step].after.iter().map(|after| after.step);
    reach(ahead(index), ahead).into_iter().collect()
}

/// The positions `from`, and all that `ahead` leads to from them.
fn reach<I: Iterator<Item = usize>>(from: impl Iterator<Item = usize>, ahead: impl Fn(usize) -> I) -> BTreeSet<usize> {
    let (mut all, mut left) = (BTreeSet::new(), from.collect::<Vec<_>>());
    while let Some(step) = left.pop() {
        if all.insert(step) {
            left.extend(ahead(step));
        }
    }
    all
}

impl Workflow {
    /// The definition in `json`, which was stored under `hash`.
    ///
    /// # Errors
    /// Not the JSON of a definition, or it has something that this version does not know, or has changed since it was
    /// stored. A task must not run under a part of its definition.
    pub fn recorded(json: &str, hash: &Hash) -> Result<Self, String> {
        let workflow: Self = serde_json::from_str(json).map_err(|e| match Hash::of(json.as_bytes()) == *hash {
            // Unchanged since it was stored, so a later version wrote it, perhaps with a function that is new.
            true => format!("{NEWER}: the definition: {e}"),
            false => why_unread(&e, "the definition"),
        })?;
        // Reading ignores unknown fields, so only comparing the text, not the hash, shows them.
        if workflow.hash() == *hash && serde_json::to_string(&workflow).is_ok_and(|text| text == json) {
            return Ok(workflow);
        }
        let after = serde_json::to_value(&workflow).expect("a workflow has only string keys");
        Err(match serde_json::from_str(json).ok().and_then(|before| lost(&before, &after)) {
            Some(field) => format!("{NEWER}: the definition: unknown field `{field}`"),
            None => format!("{DAMAGED}: the definition: its content does not have this hash"),
        })
    }

    /// The identity of this definition.
    #[must_use]
    pub fn hash(&self) -> Hash {
        Hash::of(&serde_json::to_vec(self).expect("a workflow has only string keys"))
    }

    /// Whether its orders hand out addresses, of callbacks, links or heartbeats.
    #[must_use]
    pub fn hands_out_addresses(&self) -> bool {
        self.all_steps().any(|step| step.accept.is_some() || step.link().is_some() || step.has_heartbeat())
    }

    /// The names of the events that its steps wait for.
    #[must_use]
    pub fn events(&self) -> BTreeSet<&str> {
        self.steps.iter().filter_map(|step| Some(step.event()?.name.as_str())).collect()
    }

    /// Whether a step that waits for the event called `name` counts people.
    #[must_use]
    pub fn counts_people(&self, name: &str) -> bool {
        let mut events = self.steps.iter().filter_map(Step::event);
        events.any(|event| event.name == name && event.people.is_some())
    }

    /// The shortest time from a claim to its first CompleteBy, of any step, forward or undo. No deadline is nearer.
    #[must_use]
    pub fn shortest_timeout(&self) -> SignedDuration {
        let of = |direction| self.steps.iter().filter_map(move |step| step.work(direction)).map(|work| work.window());
        of(Direction::Do).chain(of(Direction::Undo)).min().unwrap_or(MAX_GRACE)
    }

    /// Checks that every step can start if clocks are at most `skew` apart. An agent starts nothing within `skew` of
    /// CompleteBy, and its clock may also be `skew` ahead of the scheduler's.
    ///
    /// # Errors
    /// The first step, or undo, whose timeout is too short.
    pub fn can_start(&self, skew: SignedDuration) -> Result<(), TooShort> {
        let mut all = self.all_steps().flat_map(|step| {
            let what = |direction, work: &Work<'_>| {
                let what = match direction {
                    Direction::Do => format!("step `{}`", step.name),
                    Direction::Undo => format!("the undo of step `{}`", step.name),
                };
                if work.heartbeat.is_some() { format!("{what} without a heartbeat") } else { what }
            };
            let work =
                [Direction::Do, Direction::Undo].map(|of| step.work(of).map(|work| (what(of, &work), work.window())));
            work.into_iter().flatten()
        });
        match all.find(|&(_, timeout)| timeout <= skew + skew) {
            Some((what, timeout)) => Err(TooShort { workflow: self.name.clone(), what, timeout, skew }),
            None => Ok(()),
        }
    }

    /// All calls over HTTP, each with the name of its step.
    pub fn calls_over_http(&self) -> impl Iterator<Item = (&str, &Http)> {
        self.all_steps().flat_map(|step| step.works().filter_map(move |work| Some((step.name.as_str(), work.http?))))
    }

    /// Whether the host of a call comes with the order.
    #[must_use]
    pub fn maps_host(&self) -> bool {
        self.calls_over_http().any(|(_, http)| http.maps_host())
    }

    /// All signed calls, each with the name of its step.
    pub fn calls_of_aws(&self) -> impl Iterator<Item = (&str, &Aws)> {
        self.all_steps().flat_map(|step| step.works().filter_map(move |work| Some((step.name.as_str(), work.aws?))))
    }

    /// Position of the step called `name`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.steps.iter().position(|s| s.name == name)
    }

    /// Positions of all steps that directly wait for step `index`.
    pub fn dependents(&self, index: usize) -> impl Iterator<Item = usize> {
        self.steps.iter().enumerate().filter(move |(_, s)| s.after.iter().any(|a| a.step == index)).map(|(i, _)| i)
    }

    /// The positions `from`, and those of all steps that depend on them, directly or indirectly.
    #[must_use]
    pub fn with_dependents(&self, from: &[usize]) -> BTreeSet<usize> {
        reach(from.iter().copied(), |step| self.dependents(step))
    }

    /// Positions of all steps that step `index` depends on, directly or indirectly, in the workflow's order.
    #[must_use]
    pub fn before(&self, index: usize) -> Vec<usize> {
        before(&self.steps, index)
    }

    /// Whether a decision about an order needs its input.
    #[must_use]
    pub fn reads_input(&self) -> bool {
        if self.of_item {
            return true;
        }
        let asked = self.steps.iter().filter_map(|step| step.link()?.0.ask.as_ref()).flat_map(Template::references);
        let output = self.output.iter().flat_map(Mapping::references);
        reads(asked.chain(output), "input") || self.steps.iter().any(|step| step.reads("input"))
    }

    /// All agents named, each once, in order of first use.
    #[must_use]
    pub fn agents(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for work in self.all_steps().flat_map(Step::works) {
            if !names.contains(&work.agent) {
                names.push(work.agent);
            }
        }
        names
    }
}

impl Step {
    /// The event that it waits for, if any.
    #[must_use]
    pub fn event(&self) -> Option<&Awaited> {
        self.wait.as_ref().and_then(Wait::event)
    }

    /// Its list, if it starts an order for each item of one.
    #[must_use]
    pub fn each(&self) -> Option<&Each> {
        self.child.as_ref().and_then(|child| child.each.as_ref())
    }

    /// Agent, timeout, ladder and call policy in one direction; `None` for a step that calls nothing, and for a missing
    /// undo.
    #[must_use]
    pub fn work(&self, direction: Direction) -> Option<Work<'_>> {
        match direction {
            Direction::Do if self.agent.is_empty() => None,
            Direction::Do => Some(Work {
                agent: &self.agent,
                http: self.http.as_ref(),
                aws: self.aws.as_ref(),
                with: self.with.as_ref(),
                heartbeat: self.heartbeat,
                timeout: self.timeout,
                retry: &self.retry,
                calls: self.calls,
            }),
            Direction::Undo => self.undo.as_ref().map(|u| Work {
                agent: &u.agent,
                http: u.http.as_ref(),
                aws: u.aws.as_ref(),
                with: u.with.as_ref(),
                heartbeat: u.heartbeat,
                timeout: u.timeout,
                retry: &u.retry,
                calls: u.calls,
            }),
        }
    }

    /// All its work: forward, undo and reminders, as far as it has them.
    pub(crate) fn works(&self) -> impl Iterator<Item = Work<'_>> {
        [self.work(Direction::Do), self.work(Direction::Undo), self.reminder()].into_iter().flatten()
    }

    /// What the agent for URLs and AWS keeps of an answer, if the file says so.
    #[must_use]
    pub fn kept(&self) -> Option<&Mapping> {
        let of_url = self.http.as_ref().and_then(|http| http.keep.as_ref());
        of_url.or_else(|| self.aws.as_ref().and_then(|aws| aws.keep.as_ref()))
    }

    /// What decisions about this step read on their own, not in its calls.
    fn own_references(&self) -> impl Iterator<Item = &Reference> {
        let conditions = [&self.when, &self.catch].into_iter().flatten().flat_map(Expression::references);
        let with = self.with.iter().filter(|_| self.child.is_some());
        let values = self.value.iter().chain(with).chain(self.each().map(|each| &each.list));
        let fail = self.fail.iter().flat_map(Template::references);
        let wait = self.wait.iter().flat_map(Wait::references);
        conditions.chain(values.flat_map(Mapping::references)).chain(fail).chain(wait)
    }

    /// Whether a decision about this step reads the name `root`. What is kept of an answer needs no order.
    #[must_use]
    pub fn reads(&self, root: &str) -> bool {
        let gets_input = self.with.is_none() && self.child.as_ref().is_some_and(|child| child.each.is_none());
        gets_input && root == "input"
            || reads(self.own_references(), root)
            || self.call().is_some_and(|call| call.reads(root))
            || self.works().any(|work| work.reads(root))
    }

    /// Whether a decision about this step in `direction` reads the output of the step called `name` in expressions.
    #[must_use]
    pub fn reads_output(&self, name: &str, direction: Direction) -> bool {
        let is_named = |one: &Reference| one.covers("outputs", name);
        let of_call = |direction| self.call().is_some_and(|call| call.reads_output(name, direction));
        let own = direction == Direction::Do
            && (self.own_references().any(is_named) || [Direction::Do, Direction::Undo].into_iter().any(of_call));
        let reminder = self.reminder().filter(|_| direction == Direction::Do);
        own || self.work(direction).into_iter().chain(reminder).any(|work| work.references().any(is_named))
    }

    /// Whether the undo needs data of the order, so that a refused step leaves nothing to undo. Headers do not count,
    /// because they may be the step's.
    #[must_use]
    pub fn undo_is_mapped(&self) -> bool {
        let maps = |http: &Http| !http.url.is_constant() || !http.query.values().all(Template::is_constant);
        self.undo.as_ref().is_some_and(|undo| {
            undo.http.as_ref().is_some_and(maps) || !undo.with.as_ref().is_none_or(Mapping::is_constant)
        })
    }

    /// Whether `step`, this step's record, has nothing to undo: it was surely refused, and the undo needs data.
    #[must_use]
    pub fn leaves_nothing(&self, step: &crate::step::Step) -> bool {
        let is_refused = matches!(step.state, State::Failed | State::Caught | State::Skipped)
            && step.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Refused);
        is_refused && !step.unsure && self.undo_is_mapped()
    }
}

fn reads<'a>(references: impl IntoIterator<Item = &'a Reference>, root: &str) -> bool {
    references.into_iter().any(|reference| reference.path[0] == root)
}

/// The work of a step in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The agent that does it.
    pub agent: &'a str,
    /// The call, if that agent is [`http::AGENT`].
    pub http: Option<&'a Http>,
    /// The signed call, if that agent makes one instead.
    pub aws: Option<&'a Aws>,
    /// What it gets instead of the order's input.
    pub with: Option<&'a Mapping>,
    /// The interval of the agent's heartbeats.
    pub heartbeat: Option<SignedDuration>,
    /// From the claim to `complete_by`; with heartbeats to the latest `complete_by`.
    pub timeout: SignedDuration,
    /// The supervisor's policy.
    pub retry: &'a Ladder,
    /// The agent's policy within one attempt.
    pub calls: Calls,
}

impl<'a> Work<'a> {
    pub(crate) fn references(&self) -> impl Iterator<Item = &'a Reference> {
        let call = self.http.into_iter().flat_map(Http::templates).flat_map(Template::references);
        call.chain(self.with.into_iter().flat_map(Mapping::references))
    }

    /// Whether it reads the name `root`.
    #[must_use]
    pub fn reads(&self, root: &str) -> bool {
        reads(self.references(), root)
    }

    /// Whether it sends the usual envelope, with all outputs: nothing mapped, and a method with a body.
    #[must_use]
    pub fn sends_envelope(&self) -> bool {
        let has_body = |http: &Http| !matches!(http.method.as_str(), "GET" | "DELETE");
        self.with.is_none() && self.http.is_none_or(has_body)
    }

    /// Whether no part of it depends on the order.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.with.is_none_or(Mapping::is_constant)
            && self.http.is_none_or(|http| http.templates().all(Template::is_constant))
    }
}
