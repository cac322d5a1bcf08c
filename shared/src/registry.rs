//! Which definition a workflow's name means, and who set it.
//!
//! Each deployment brings files. An operator may add another definition and activate it. Then the name has a
//! [`Pointer`], which counts until a deployment changes the file that was there when it was set. Orders keep the
//! definition that they were submitted with.

use crate::history::shorten;
use crate::time::{SignedDuration, Timestamp};
use crate::workflow::edge::After;
use crate::workflow::{Hash, Workflow};
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};

/// Most names with a pointer. All pointers are in one item, which every instance of submit reads.
pub const MAX_POINTERS: usize = 200;
/// Longest value in a difference, in bytes.
const MAX_SHOWN: usize = 200;

/// What an operator set for a name. Unknown fields, of newer versions, change nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pointer {
    /// The active definition or, if the name is retired, the last active one.
    pub hash: Hash,
    /// The definition that was active before that one; `None` if there was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Hash>,
    /// Whether the name is retired.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub retired: bool,
    /// The definition that the deployment had under this name when the pointer was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<Hash>,
    /// Counts the changes of this name, from 1.
    pub version: u64,
    /// Name of the person.
    pub by: String,
    /// Since when (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub since: Timestamp,
}

/// The pointers by name; `None` is one that cannot be read.
pub type Pointers = BTreeMap<String, Option<Pointer>>;

/// What a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// The definition of the deployment, or one that an operator activated.
    Active(&'a Hash),
    /// Nothing: an operator retired it.
    Retired(&'a Pointer),
    /// The pointer is unreadable. The name may be retired, so it takes no orders.
    Unreadable,
    /// Nothing: there never was such a name.
    Unknown,
}

/// What a name with this pointer means if the deployment has `deployed` under it.
#[must_use]
pub fn meaning<'a>(pointer: Option<&'a Option<Pointer>>, deployed: Option<&'a Hash>) -> Meaning<'a> {
    match (pointer, deployed) {
        (None, None) => Meaning::Unknown,
        (None, Some(deployed)) => Meaning::Active(deployed),
        (Some(None), _) => Meaning::Unreadable,
        (Some(Some(pointer)), Some(deployed)) if is_overtaken(pointer, Some(deployed)) => Meaning::Active(deployed),
        (Some(Some(pointer)), _) if pointer.retired => Meaning::Retired(pointer),
        (Some(Some(pointer)), _) => Meaning::Active(&pointer.hash),
    }
}

/// Whether the deployment has brought another file since, which then counts. No file, no change.
#[must_use]
pub fn is_overtaken(pointer: &Pointer, deployed: Option<&Hash>) -> bool {
    deployed.is_some() && pointer.over.as_ref() != deployed
}

/// The last active definition under a name, and the one before.
#[must_use]
pub fn last_two<'a>(
    pointer: Option<&'a Option<Pointer>>,
    deployed: Option<&'a Hash>,
) -> (Option<&'a Hash>, Option<&'a Hash>) {
    match pointer.and_then(Option::as_ref) {
        None => (deployed, None),
        Some(pointer) if is_overtaken(pointer, deployed) && deployed != Some(&pointer.hash) => {
            (deployed, Some(&pointer.hash))
        }
        Some(pointer) => (Some(&pointer.hash), pointer.previous.as_ref()),
    }
}

/// The definition that a rollback would activate.
#[must_use]
pub fn back<'a>(pointer: Option<&'a Option<Pointer>>, deployed: Option<&'a Hash>) -> Option<&'a Hash> {
    let (last, before) = last_two(pointer, deployed);
    match meaning(pointer, deployed) {
        Meaning::Active(_) => before,
        Meaning::Retired(_) => last,
        Meaning::Unreadable | Meaning::Unknown => None,
    }
}

/// What an operator does to a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// New orders get this definition.
    Activate(Hash),
    /// New orders get the definition that was active before.
    Rollback,
    /// There are no new orders.
    Retire,
}

/// Why a change is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The name is in that state already.
    #[error("it is already in this state")]
    Same,
    /// Nothing to go back to.
    #[error("no earlier definition was active; activate one by its hash")]
    NoPrevious,
    /// The pointer cannot be read.
    #[error("its record cannot be read, so it takes no orders; activate a definition by its hash")]
    Unreadable,
    /// Nothing to change.
    #[error("there is no workflow of this name")]
    Unknown,
    /// The record has no room.
    #[error("{MAX_POINTERS} names have been registered, which is the maximum; reuse one of them")]
    Full,
}

/// The pointer of `name` after `change`. Its version follows the last one, if readable.
///
/// # Errors
/// See [`Refused`].
pub fn change(
    pointers: &Pointers,
    name: &str,
    deployed: Option<&Hash>,
    change: &Change,
    by: (String, Timestamp),
) -> Result<Pointer, Refused> {
    let pointer = pointers.get(name);
    if pointer.is_none() && pointers.len() >= MAX_POINTERS {
        return Err(Refused::Full);
    }
    let now = meaning(pointer, deployed);
    let (last, before) = last_two(pointer, deployed);
    let next = match (change, &now) {
        (Change::Activate(hash), Meaning::Active(now)) if hash == *now => return Err(Refused::Same),
        (Change::Activate(hash), _) => hash,
        (_, Meaning::Unknown) => return Err(Refused::Unknown),
        (_, Meaning::Unreadable) => return Err(Refused::Unreadable),
        (Change::Retire, Meaning::Retired(_)) => return Err(Refused::Same),
        (Change::Retire, Meaning::Active(now)) => now,
        (Change::Rollback, _) => back(pointer, deployed).ok_or(Refused::NoPrevious)?,
    };
    Ok(Pointer {
        hash: next.clone(),
        previous: if last == Some(next) { before } else { last }.cloned(),
        retired: *change == Change::Retire,
        over: deployed.cloned(),
        version: pointer.and_then(Option::as_ref).map_or(0, |pointer| pointer.version) + 1,
        by: by.0,
        since: by.1,
    })
}

/// A sentence for each difference in `new`; none if both are equal.
#[must_use]
pub fn differences(old: &Workflow, new: &Workflow) -> Vec<String> {
    let mut all = Vec::new();
    let ((old_own, old_steps), (new_own, new_steps)) = (fields(old), fields(new));
    compare("", &old_own, &new_own, &mut all);
    for (name, _) in old_steps.iter().filter(|(name, _)| !new_steps.contains_key(*name)) {
        all.push(format!("step `{name}` is removed"));
    }
    for (name, new) in &new_steps {
        let Some(old) = old_steps.get(name) else {
            let agent = new["agent"].as_str().map(|agent| format!(", by agent `{agent}`"));
            all.push(format!("step `{name}` is added{}", agent.unwrap_or_default()));
            continue;
        };
        let first = all.len();
        compare("", old, new, &mut all);
        for what in &mut all[first..] {
            *what = format!("step `{name}`: {what}");
        }
    }
    if all.is_empty() && old != new {
        all.push("the steps are listed in a different sequence".into());
    }
    all
}

/// A definition's own fields and those of its steps, which name the steps that they come after.
fn fields(workflow: &Workflow) -> (Value, BTreeMap<&str, Value>) {
    let json = |text: Result<Value, _>| text.expect("a workflow has only string keys");
    let mut own = json(serde_json::to_value(workflow));
    own.as_object_mut().expect("an object").remove("steps");
    let step = |step: &'_ crate::workflow::Step| {
        let mut all = json(serde_json::to_value(step));
        let name = |after: &After| format!("{}{}", workflow.steps[after.step].name, after.edge);
        let after: BTreeSet<String> = step.after.iter().map(name).collect();
        all["after"] = after.into_iter().collect();
        all
    };
    (own, workflow.steps.iter().map(|one| (one.name.as_str(), step(one))).collect())
}

/// Adds a clause for each field that differs. Compares all fields, so a new field of definitions is included.
fn compare(path: &str, old: &Value, new: &Value, all: &mut Vec<String>) {
    if old == new {
        return;
    }
    let (Value::Object(before), Value::Object(after)) = (old, new) else {
        all.push(match (old, new) {
            (Value::Null, _) => format!("{path} is now {}", shown(new)),
            (_, Value::Null) => format!("{path} is removed"),
            _ => format!("{path} changes from {} to {}", shown(old), shown(new)),
        });
        return;
    };
    let of = |fields: &Map<String, Value>, name: &str| fields.get(name).cloned().unwrap_or_default();
    for name in before.keys().chain(after.keys()).collect::<BTreeSet<_>>() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        compare(&path, &of(before, name), &of(after, name), all);
    }
}

/// A value as people write it: a duration as `10s`.
fn shown(value: &Value) -> String {
    let text = match value {
        Value::String(text) => text.parse().map_or_else(|_| text.clone(), |time: SignedDuration| format!("{time:#}")),
        Value::Array(all) if all.is_empty() => "nothing".into(),
        Value::Array(all) => all.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::Object(_) | Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    };
    shorten(&text, MAX_SHOWN)
}
