//! Steps that start orders.

use super::accept::token;
use super::each::Each;
use super::{Hash, Step, Workflow};
use crate::order::Id;
use crate::task::Parent;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Most levels of orders, the submitted one included.
pub const MAX_DEPTH: usize = 3;

/// The order that a step starts and waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Child {
    /// Its workflow's name. The name's definition is pinned when the order at the top is submitted.
    pub workflow: String,
    /// The list, if it starts one per item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<Each>,
    /// If the step with the list makes a call: its own definition, named `WORKFLOW.STEP`, which no file has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Box<Workflow>>,
}

impl Child {
    /// The definition of its orders, in a family with these `pins`. `None` if its name was not pinned, which every
    /// submission does.
    #[must_use]
    pub fn definition(&self, pins: &BTreeMap<String, Hash>) -> Option<Hash> {
        self.call.as_ref().map(|call| call.hash()).or_else(|| pins.get(&self.workflow).cloned())
    }
}

/// The id of the order that step `step` of the order `parent` started in its round `made`. No submitter can choose its
/// key, because submitted keys have no control characters.
#[must_use]
pub fn id(tenant: &str, parent: &Id, step: &str, made: u32) -> Id {
    Id::derive(tenant, &key(parent, step, made))
}

/// The idempotency key of that order.
#[must_use]
pub fn key(parent: &Id, step: &str, made: u32) -> String {
    format!("\u{1}{parent}\u{1}{step}\u{1}{made}")
}

/// The idempotency key of the order that step `step` of the order `parent` started for item `item`.
#[must_use]
pub fn key_of_item(parent: &Id, step: &str, item: usize, made: u32) -> String {
    format!("{}\u{1}{item}", key(parent, step, made))
}

/// The secret for the addresses of the order `id` whose parent has this `secret`.
#[must_use]
pub fn secret(secret: &str, id: &Id) -> String {
    token(secret, &id.0)
}

/// Why orders of a workflow cannot start others. `Display` is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nested {
    /// A workflow would start itself.
    #[error("orders of `{0}` would start themselves forever ({1}); start another workflow")]
    Circle(String, String),
    /// More than [`MAX_DEPTH`].
    #[error(
        "`{0}` would be the fourth level ({1}), but orders have at most {MAX_DEPTH} levels; join two of these \
         workflows"
    )]
    Deep(String, String),
}

/// Checks that the last of `path`, names of workflows from the submitted order's on, may start `name`.
///
/// # Errors
/// It may not.
pub fn check_path(path: &[&str], name: &str) -> Result<(), Nested> {
    let words = || path.iter().chain([&name]).copied().collect::<Vec<_>>().join(" -> ");
    if path.contains(&name) {
        return Err(Nested::Circle(name.to_owned(), words()));
    }
    if path.len() >= MAX_DEPTH {
        return Err(Nested::Deep(name.to_owned(), words()));
    }
    Ok(())
}

impl Workflow {
    /// The names of the workflows whose orders its steps start, each once, without those of its [calls](Self::calls).
    #[must_use]
    pub fn children(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for child in self.steps.iter().filter_map(|step| step.child.as_ref()).filter(|child| child.call.is_none()) {
            if !names.contains(&child.workflow.as_str()) {
                names.push(&child.workflow);
            }
        }
        names
    }

    /// The definitions, part of this one, of orders that make a call per item of a list.
    pub fn calls(&self) -> impl Iterator<Item = &Self> {
        self.steps.iter().filter_map(|step| step.child.as_ref()?.call.as_deref())
    }

    /// All steps that may call something: its own, and those of its calls per item.
    pub(super) fn all_steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().chain(self.calls().flat_map(|call| &call.steps))
    }
}

impl Step {
    /// The call that it makes per item of its list, if any.
    #[must_use]
    pub fn call(&self) -> Option<&Self> {
        self.child.as_ref()?.call.as_ref()?.steps.first()
    }
}

/// What a parent wants of a child.
#[derive(Clone, Debug, PartialEq)]
pub enum Wish {
    /// That it is there, with this input.
    Begin(serde_json::Value),
    /// That it is undone. An absent one is written as Undone, so that a late instance makes none.
    Undo,
    /// That its failures are retried, in the round of its [`Parent`].
    Resubmit,
    /// That it claims nothing more.
    Pause,
    /// That the parent's pause ends.
    Resume,
    /// That its record may be removed, because its parent has ended.
    Release,
    /// That its record stays after all, because its parent, once ended, is undone.
    Keep,
}

/// A wish from a parent to a child, sent after the parent's save. It may come late, twice or never.
#[derive(Clone, Debug, PartialEq)]
pub struct ToChild {
    /// The child.
    pub id: Id,
    /// What is wanted.
    pub wish: Wish,
    /// When its parent decided that (UTC, milliseconds).
    pub at: Timestamp,
    /// Its parent, with the present round.
    pub parent: Parent,
    /// Its idempotency key.
    pub key: String,
    /// Its definition.
    pub workflow: Hash,
    /// The definitions of the orders that it may start.
    pub pins: BTreeMap<String, Hash>,
    /// Tenant of both.
    pub tenant: String,
    /// The submitter's reference.
    pub reference: Option<String>,
    /// Priority of both.
    pub priority: crate::task::Priority,
    /// The trace context of both.
    pub traceparent: Option<String>,
    /// The secret for its addresses.
    pub secret: Option<String>,
    /// How many days its record is kept: as many as its parent's.
    pub retention: Option<u16>,
}
