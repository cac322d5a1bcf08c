//! Steps that are orders of their own.

use super::each::Each;
use super::{Hash, Step, Workflow};
use crate::order::Id;
use crate::task::Parent;
use crate::time::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Most orders of which each is a child of the one before it, with the submitted one.
pub const MAX_DEPTH: usize = 3;

/// The order that a step starts, and whose end it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Child {
    /// The name of its workflow. The definition is the one that the name stands for when the first order of all is submitted.
    pub workflow: String,
    /// The list, if it starts one for each item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub each: Option<Each>,
    /// That definition, if the step of the list is a single call: no file has it, and it is named `WORKFLOW.STEP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<Box<Workflow>>,
}

impl Child {
    /// The definition of its orders, in a family whose names stand for `pins`. `None` if its name was not pinned, which no submission leaves out.
    #[must_use]
    pub fn definition(&self, pins: &BTreeMap<String, Hash>) -> Option<Hash> {
        self.call.as_ref().map(|call| call.hash()).or_else(|| pins.get(&self.workflow).cloned())
    }
}

/// The id of the order that step `step` of the order `parent` started in its round `made`. No submitter can choose the key that it is
/// derived from: a key that arrives with an order has no control characters.
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

/// The id of that order.
#[must_use]
pub fn id_of_item(tenant: &str, parent: &Id, step: &str, item: usize, made: u32) -> Id {
    Id::derive(tenant, &key_of_item(parent, step, item, made))
}

/// What the tokens in the addresses of the order `id` are made of, if its parent's are made of `secret`.
#[must_use]
pub fn secret(secret: &str, id: &Id) -> String {
    let digest = Sha256::digest(format!("{secret}:{id}"));
    digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// Why orders of a workflow cannot start others. `Display` is a sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nested {
    /// A workflow would start itself.
    #[error("orders of `{0}` would start themselves for ever ({1}); start another workflow")]
    Circle(String, String),
    /// More than [`MAX_DEPTH`].
    #[error("`{0}` would be the fourth level ({1}), and orders have at most {MAX_DEPTH}; join two of these workflows")]
    Deep(String, String),
}

/// Whether a workflow called `name` may be started by the last of `path`, the names from the submitted order's on.
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
    /// The names of the workflows whose orders its steps start, each once. Those of its [calls](Self::calls) are not among them.
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

    /// The definitions of the orders that make a call for each item of a list. They are part of this one.
    pub fn calls(&self) -> impl Iterator<Item = &Self> {
        self.steps.iter().filter_map(|step| step.child.as_ref()?.call.as_deref())
    }

    /// All steps that call something: its own, and those that do so for each item of a list.
    pub(super) fn all_steps(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().chain(self.calls().flat_map(|call| &call.steps))
    }
}

impl Step {
    /// The call that it makes for each item of its list, if that is what it does.
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
    /// That nothing of it is left. One that is not there is written as Undone, so that a late instance makes none.
    Undo,
    /// That what failed is tried again, in the round of its [`Parent`].
    Resubmit,
    /// That it claims nothing more.
    Pause,
    /// That a pause of the parent's ends.
    Resume,
    /// That its record may be removed, because its parent has ended.
    Release,
    /// That its record stays after all, because its parent is undone after its end.
    Keep,
}

/// From a parent to one of its children, once the parent's record says so. It may come late, twice or never.
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
    /// What the tokens in its addresses are made of.
    pub secret: Option<String>,
    /// How many days its record is kept: as many as its parent's.
    pub retention: Option<u16>,
}
