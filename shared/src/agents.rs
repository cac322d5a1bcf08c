//! Which agents an operator has paused: their steps are not claimed until somebody resumes them.
//!
//! A paused agent still does what was claimed before; nothing new is handed to it. Its steps stay as they are, and waiting
//! counts no failure. The record is one small item of the state store; every instance reads it at most every
//! [`crate::engine::AGENTS_FOR`].

use crate::time::{SignedDuration, Timestamp};
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest wait between two looks at a task that waits for a paused agent: at most this long after the agent was resumed,
/// and one sweep, the task goes on.
pub const MAX_WITHHELD: SignedDuration = SignedDuration::from_secs(60);

/// Who paused an agent, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub since: Timestamp,
}

/// The agents that are paused, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// By name.
    pub paused: BTreeMap<String, Pause>,
}

/// All agents take work.
pub static ALL_RUN: Agents = Agents { paused: BTreeMap::new() };

impl Agents {
    /// Nothing may be handed to the agent called `name`.
    #[must_use]
    pub fn is_paused(&self, name: &str) -> bool {
        self.paused.contains_key(name)
    }
}
