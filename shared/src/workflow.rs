//! Workflows: what steps there are, in what order, by which agents, how long, how often, and how to undo them.
//!
//! A workflow is data. A task names the definition it was submitted under by the hash of its content, so that a new
//! deployment never changes a running task. [`file`] reads one from TOML and says exactly what is wrong with it.

pub mod file;
pub mod http;

use crate::json::{DAMAGED, NEWER, why_unread};
use crate::retry::{Calls, Ladder, Late, Then};
use crate::step::Direction;
use crate::time::SignedDuration;
use http::Http;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt;

/// Most steps in one workflow: a task with the records of its steps must stay far below DynamoDB's 400 KB.
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
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Hash(pub String);

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
    /// What a permanent error of a forward step leads to, unless the step says otherwise.
    pub on_failure: Then,
    /// Whether the final notice keeps its row in the due index until it is out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub strict_notices: bool,
    /// Every service remembers the keys it has undone (tombstones), so that a forward call that arrives after its undo
    /// does nothing. The undo then waits only for attempts in progress.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tombstones: bool,
    /// At least one, in the order of the file; `after` holds positions in this list.
    pub steps: Vec<Step>,
}

/// One step of a workflow.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Step {
    /// Unique in its workflow.
    pub name: String,
    /// The agent that does it.
    pub agent: String,
    /// The call, if that agent is [`http::AGENT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// Positions of the steps that must be done first.
    pub after: Vec<usize>,
    /// From the claim to `complete_by`.
    pub timeout: SignedDuration,
    /// The supervisor's policy.
    pub retry: Ladder,
    /// More time for a late attempt, before the policy above counts a failure. Forward work only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
    /// The agent's policy within one attempt.
    pub calls: Calls,
    /// What a permanent error leads to.
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
    /// From the claim to `complete_by`.
    pub timeout: SignedDuration,
    /// The supervisor's policy; at its end the task stops in Error, whatever `then` says.
    pub retry: Ladder,
    /// The agent's policy within one attempt.
    pub calls: Calls,
}

/// The first field of `before` that is not in `after`, as a path.
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

impl Workflow {
    /// The definition in `json`, which was stored under `hash`.
    ///
    /// # Errors
    /// Not the JSON of a definition, or it contains something that this version does not know or that was not there
    /// when it was stored: a task must not run under less than it was submitted with.
    pub fn recorded(json: &str, hash: &Hash) -> Result<Self, String> {
        let workflow: Self = serde_json::from_str(json).map_err(|e| why_unread(&e, "the definition"))?;
        // Reading ignores unknown fields, so the hash of what was read does not show them; comparing the text does.
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
        let json = serde_json::to_vec(self).expect("a workflow has only string keys");
        let digest = Sha256::digest(&json);
        Hash(digest.iter().take(12).map(|b| format!("{b:02x}")).collect())
    }

    /// The shortest timeout of any step, forward or undo: no deadline lies nearer than this after a claim.
    #[must_use]
    pub fn shortest_timeout(&self) -> SignedDuration {
        let undo = self.steps.iter().filter_map(|s| s.undo.as_ref().map(|u| u.timeout));
        self.steps.iter().map(|s| s.timeout).chain(undo).min().unwrap_or(SignedDuration::ZERO)
    }

    /// Checks that every step can start if clocks are at most `skew` apart. An agent starts nothing within `skew` of
    /// CompleteBy, and its clock may be ahead of the scheduler's by as much again.
    ///
    /// # Errors
    /// The first step, or undo, whose timeout is too short.
    pub fn can_start(&self, skew: SignedDuration) -> Result<(), TooShort> {
        let mut all = self.steps.iter().flat_map(|step| {
            let undo = step.undo.iter().map(|undo| (format!("the undo of step `{}`", step.name), undo.timeout));
            std::iter::once((format!("step `{}`", step.name), step.timeout)).chain(undo)
        });
        match all.find(|&(_, timeout)| timeout <= skew + skew) {
            Some((what, timeout)) => Err(TooShort { workflow: self.name.clone(), what, timeout, skew }),
            None => Ok(()),
        }
    }

    /// All calls over HTTP, each with the name of its step.
    pub fn calls_over_http(&self) -> impl Iterator<Item = (&str, &Http)> {
        self.steps.iter().flat_map(|step| {
            let undo = step.undo.as_ref().and_then(|undo| undo.http.as_ref());
            step.http.iter().chain(undo).map(|http| (step.name.as_str(), http))
        })
    }

    /// Position of the step called `name`.
    #[must_use]
    pub fn position(&self, name: &str) -> Option<usize> {
        self.steps.iter().position(|s| s.name == name)
    }

    /// Positions of all steps that directly wait for step `index`.
    pub fn dependents(&self, index: usize) -> impl Iterator<Item = usize> {
        self.steps.iter().enumerate().filter(move |(_, s)| s.after.contains(&index)).map(|(i, _)| i)
    }

    /// All agents named, each once, in order of first use.
    #[must_use]
    pub fn agents(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for step in &self.steps {
            for agent in std::iter::once(&step.agent).chain(step.undo.as_ref().map(|u| &u.agent)) {
                if !names.contains(&agent.as_str()) {
                    names.push(agent);
                }
            }
        }
        names
    }
}

impl Step {
    /// Agent, timeout, ladder and call policy in one direction; `None` for the undo of a step that has none.
    #[must_use]
    pub fn work(&self, direction: Direction) -> Option<Work<'_>> {
        match direction {
            Direction::Do => Some(Work {
                agent: &self.agent,
                http: self.http.as_ref(),
                timeout: self.timeout,
                retry: &self.retry,
                calls: self.calls,
            }),
            Direction::Undo => self.undo.as_ref().map(|u| Work {
                agent: &u.agent,
                http: u.http.as_ref(),
                timeout: u.timeout,
                retry: &u.retry,
                calls: u.calls,
            }),
        }
    }
}

/// The work of a step in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Work<'a> {
    /// The agent that does it.
    pub agent: &'a str,
    /// The call, if that agent is [`http::AGENT`].
    pub http: Option<&'a Http>,
    /// From the claim to `complete_by`.
    pub timeout: SignedDuration,
    /// The supervisor's policy.
    pub retry: &'a Ladder,
    /// The agent's policy within one attempt.
    pub calls: Calls,
}
