//! Steps that repeat a call until an answer says that the work is done.

use super::Step;
use super::aws::Aws;
use super::http::Http;
use crate::expression::{Expression, Mistake, Names};
use crate::message::MAX_DELAY;
use crate::time::SignedDuration;
use serde::{Deserialize, Serialize};

/// How a step polls.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Poll {
    /// From the answer of one look to the next look.
    pub every: SignedDuration,
    /// From the first look to the last possible one.
    #[serde(rename = "for")]
    pub within: SignedDuration,
    /// Whether operators are alerted once half of the time has passed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub alert: bool,
    /// The conditions on an answer.
    #[serde(flatten)]
    pub look: Look,
}

/// The conditions of a step that polls. They read `answer` and, for a URL and AWS, `status` and `header`. A value that
/// the answer lacks makes a condition false.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Look {
    /// The work is done.
    pub done: Expression,
    /// It failed for good. Goes before `done`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<Expression>,
}

/// What one look found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The work is done.
    Done,
    /// It failed for good; why, in words.
    Failed(String),
    /// Neither; why, in words.
    NotYet(String),
}

impl Look {
    /// What an answer with these names means.
    ///
    /// # Errors
    /// A condition has no value, for a reason other than a missing value.
    pub fn judge(&self, names: &Names<'_>) -> Result<Found, Mistake> {
        let no = |key: &str, error: Mistake| Mistake(format!("`{key}` of `poll`: {error}"));
        if let Some(failed) = &self.failed {
            let test = failed.test_of_what_is_there(names).map_err(|error| no("failed", error))?;
            if test.holds {
                return Ok(Found::Failed(test.why));
            }
        }
        let test = self.done.test_of_what_is_there(names).map_err(|error| no("done", error))?;
        Ok(if test.holds { Found::Done } else { Found::NotYet(test.why) })
    }

    /// Both conditions.
    pub fn conditions(&self) -> impl Iterator<Item = &Expression> {
        self.failed.iter().chain([&self.done])
    }
}

impl Step {
    /// Whether it polls with a call that changes nothing, so that the next look can be claimed early, and an undo need
    /// not wait for it.
    #[must_use]
    pub fn looks_safely(&self) -> bool {
        let is_read = |aws: &Aws| {
            let action = aws.action.split_once(':').map_or("", |(_, action)| action);
            ["Get", "Describe", "List"].iter().any(|verb| action.starts_with(verb))
        };
        let is_safe = |http: &Http| http.method == "GET";
        self.undo.is_none()
            && self.poll.as_ref().is_some_and(|poll| poll.every <= MAX_DELAY)
            && (self.http.as_ref().is_some_and(is_safe) || self.aws.as_ref().is_some_and(is_read))
    }
}
