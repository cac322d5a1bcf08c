//! What all instances go by beside the tasks: which agents an operator has paused, which ones supervisors found strained,
//! and which queues are too long.
//!
//! A paused agent still does what was claimed before; nothing new is handed to it. Its steps stay as they are, and waiting
//! counts no failure. The record is one small item of the state store; every instance reads it at most every
//! [`crate::engine::AGENTS_FOR`].

use crate::overload::Waits;
use crate::strain::Strain;
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
    /// Name of the person.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub since: Timestamp,
}

/// How agents and queues stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// The agents that are paused, by name.
    pub paused: BTreeMap<String, Pause>,
    /// The agents that are or were strained, by name: [`Strain::is_on`] tells.
    pub strained: BTreeMap<String, Strain>,
    /// The latest notes about queues whose messages waited too long, by the queue's name after the prefix.
    pub waits: BTreeMap<String, Waits>,
}

/// All agents take work.
pub static ALL_RUN: Agents = Agents { paused: BTreeMap::new(), strained: BTreeMap::new(), waits: BTreeMap::new() };

impl Agents {
    /// Nothing may be handed to the agent called `name`.
    #[must_use]
    pub fn is_paused(&self, name: &str) -> bool {
        self.paused.contains_key(name)
    }

    /// A back-off of `wait` for the agent called `name`: longer while it is strained.
    #[must_use]
    pub fn back_off(&self, name: &str, wait: SignedDuration, now: Timestamp) -> SignedDuration {
        self.strained.get(name).map_or(wait, |strain| strain.stretch(wait, now))
    }
}
