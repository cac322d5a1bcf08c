//! Reminders of a step that waits for somebody.

use super::aws::Aws;
use super::http::Http;
use super::wait::Wait;
use super::{Step, Work};
use crate::expression::Mapping;
use crate::retry::Calls;
use crate::time::SignedDuration;
use serde::{Deserialize, Serialize};

/// How long an agent has for a reminder.
pub const REMINDER_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);

/// Who reminds, how often, and with what.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Remind {
    /// From the beginning of the wait to the first reminder, and between reminders.
    pub every: SignedDuration,
    /// Most reminders of one wait.
    pub times: u32,
    /// The agent that reminds.
    pub agent: String,
    /// The call, if that agent is [`super::http::AGENT`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<Http>,
    /// The signed call, if that agent makes one instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aws: Option<Aws>,
    /// What the agent gets instead of the order's input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub with: Option<Mapping>,
    /// The agent's policy within one reminder.
    pub calls: Calls,
}

impl Step {
    /// Whether operators are alerted once half of its time to wait for somebody has passed.
    #[must_use]
    pub fn alerts(&self) -> bool {
        self.event().is_some_and(|event| event.alert)
            || self.accept.as_ref().is_some_and(|accept| accept.alert)
            || self.poll.as_ref().is_some_and(|poll| poll.alert)
    }

    /// How long it waits for somebody: for an event, a callback, or work that it polls.
    #[must_use]
    pub fn asks_for(&self) -> SignedDuration {
        let accepted = self.accept.as_ref().map(|accept| accept.within);
        accepted.or(self.poll.as_ref().map(|poll| poll.within)).unwrap_or(self.timeout)
    }

    /// What it waits for, in words.
    #[must_use]
    pub fn asks(&self) -> Option<String> {
        let accepted = self.accept.as_ref().map(|_| "waits for its callback".to_owned());
        let polls = self.poll.as_ref().map(|_| "polls".to_owned());
        self.wait.as_ref().map(Wait::words).or(accepted).or(polls)
    }

    /// An agent's work to remind somebody of this step.
    #[must_use]
    pub fn reminder(&self) -> Option<Work<'_>> {
        self.remind.as_ref().map(|remind| Work {
            agent: &remind.agent,
            http: remind.http.as_ref(),
            aws: remind.aws.as_ref(),
            with: remind.with.as_ref(),
            heartbeat: None,
            timeout: REMINDER_TIMEOUT,
            // A reminder is sent once.
            retry: &self.retry,
            calls: remind.calls,
        })
    }
}
