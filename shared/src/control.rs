//! What all instances share beside the tasks: the agents that an operator has paused, the agents that supervisors found
//! strained, and the queues that are too long.
//!
//! A paused agent finishes what was claimed before, but gets nothing new. Its steps stay as they are, and waiting
//! counts no failure. The record is one small item of the state store; every instance reads it at most every
//! [`crate::engine::AGENTS_FOR`].

use crate::overload::Waits;
use crate::strain::Strain;
use crate::time::{SignedDuration, Timestamp};
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Longest interval between two checks of a task that waits for a paused agent. Once the agent is resumed, the task
/// continues within this time plus one sweep.
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

/// The state of agents and queues.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Agents {
    /// The agents that are paused, by name.
    pub paused: BTreeMap<String, Pause>,
    /// The agents that are or were strained, by name; see [`Strain::is_on`].
    pub strained: BTreeMap<String, Strain>,
    /// The latest notes about queues whose messages waited too long, by queue name without the prefix.
    pub waits: BTreeMap<String, Waits>,
}

/// All agents take work, and no queue is too long.
pub static ALL_RUN: Agents = Agents { paused: BTreeMap::new(), strained: BTreeMap::new(), waits: BTreeMap::new() };

impl Agents {
    /// Whether the agent called `name` gets no new requests.
    #[must_use]
    pub fn is_paused(&self, name: &str) -> bool {
        self.paused.contains_key(name)
    }

    /// A back-off of `wait` for the agent called `name`, stretched while it is strained.
    #[must_use]
    pub fn back_off(&self, name: &str, wait: SignedDuration, now: Timestamp) -> SignedDuration {
        self.strained.get(name).map_or(wait, |strain| strain.stretch(wait, now))
    }
}
