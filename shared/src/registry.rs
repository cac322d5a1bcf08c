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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::file::{Known, parse};
    use Change::{Activate, Retire, Rollback};

    fn hash(text: &str) -> Hash {
        Hash(text.into())
    }

    fn activate(text: &str) -> Change {
        Activate(hash(text))
    }

    fn at(pointers: &Pointers, deployed: Option<&Hash>, what: &Change) -> Result<Pointer, Refused> {
        change(pointers, "w", deployed, what, ("ada".into(), Timestamp::UNIX_EPOCH))
    }

    /// Applies changes in turn over a deployment; what the name means after each.
    fn run(steps: &[(Option<&str>, Change)]) -> Vec<Result<Option<String>, Refused>> {
        let mut pointers = Pointers::new();
        let mut all = Vec::new();
        for (n, (deployed, what)) in steps.iter().enumerate() {
            let deployed = deployed.map(hash);
            let promised = back(pointers.get("w"), deployed.as_ref()).cloned();
            let done = at(&pointers, deployed.as_ref(), what).map(|next| {
                assert!(*what != Rollback || promised.as_ref() == Some(&next.hash), "step {n}: {next:?}");
                pointers.insert("w".into(), Some(next));
                match meaning(pointers.get("w"), deployed.as_ref()) {
                    Meaning::Active(hash) => Some(hash.0.clone()),
                    Meaning::Retired(_) => None,
                    other => panic!("it was just changed: {other:?}"),
                }
            });
            all.push(done);
        }
        all
    }

    fn on(text: &str) -> Result<Option<String>, Refused> {
        Ok(Some(text.to_owned()))
    }

    #[test]
    fn a_rollback_goes_back_to_what_was_active_before() {
        assert_eq!(
            run(&[(Some("a"), activate("b")), (Some("a"), Rollback), (Some("a"), Rollback)]),
            [on("b"), on("a"), on("b")]
        );
        assert_eq!(
            run(&[
                (None, activate("a")),
                (None, Rollback),
                (None, activate("b")),
                (None, Retire),
                (None, Retire),
                (None, Rollback),
                (None, Rollback),
            ]),
            [on("a"), Err(Refused::NoPrevious), on("b"), Ok(None), Err(Refused::Same), on("b"), on("a")]
        );
        assert_eq!(run(&[(None, Retire), (None, Rollback)]), [Err(Refused::Unknown), Err(Refused::Unknown)]);
        assert_eq!(run(&[(Some("a"), activate("a")), (Some("a"), Retire)]), [Err(Refused::Same), Ok(None)]);
        // Activated after retirement: a rollback leads to what was before, not to itself.
        assert_eq!(
            run(&[(Some("a"), activate("b")), (Some("a"), Retire), (Some("a"), activate("b")), (Some("a"), Rollback)]),
            [on("b"), Ok(None), on("b"), on("a")]
        );
    }

    #[test]
    fn a_deployment_with_another_file_supersedes_a_pointer_and_one_with_the_same_file_does_not() {
        let (a, b, c) = (hash("a"), hash("b"), hash("c"));
        let mut pointers = Pointers::new();
        pointers.insert("w".into(), Some(at(&pointers, Some(&a), &activate("b")).unwrap()));
        let meaning = |pointers: &Pointers, deployed: Option<&Hash>| match meaning(pointers.get("w"), deployed) {
            Meaning::Active(hash) => Some(hash.clone()),
            _ => None,
        };
        assert_eq!(meaning(&pointers, Some(&a)), Some(b.clone()));
        assert_eq!(meaning(&pointers, Some(&c)), Some(c.clone()));
        // Without a file in the deployment, the pointer counts.
        assert_eq!(meaning(&pointers, None), Some(b.clone()));
        // After the deployment, a rollback leads to what that overtook.
        let next = at(&pointers, Some(&c), &Rollback).unwrap();
        assert_eq!((&next.hash, next.previous.as_ref(), next.over.as_ref()), (&b, Some(&c), Some(&c)));
        // The deployment brought the active definition: rollbacks do not change.
        assert_eq!(back(pointers.get("w"), Some(&b)), Some(&a));
        // Only a changed file revives a retired name. A rollback leads to what was active before.
        pointers.insert("w".into(), Some(at(&pointers, Some(&a), &Retire).unwrap()));
        assert_eq!(meaning(&pointers, Some(&a)), None);
        assert_eq!(meaning(&pointers, Some(&c)), Some(c.clone()));
        assert_eq!(back(pointers.get("w"), Some(&c)), Some(&b));
    }

    // A name whose pointer cannot be read may be retired. A deployment does not decide that.
    #[test]
    fn an_unreadable_pointer_takes_no_orders_and_gives_way_to_an_activation_only() {
        let pointers = Pointers::from([("w".to_owned(), None)]);
        let a = hash("a");
        assert_eq!(meaning(pointers.get("w"), Some(&a)), Meaning::Unreadable);
        for what in [Rollback, Retire] {
            assert_eq!(at(&pointers, Some(&a), &what), Err(Refused::Unreadable));
        }
        let next = at(&pointers, Some(&a), &activate("a")).unwrap();
        assert_eq!((next.hash, next.retired), (a, false));
    }

    // A newer version may add fields.
    #[test]
    fn unknown_fields_of_a_pointer_change_nothing() {
        let json = r#"{"hash":"a","over":"o","version":3,"by":"ada","since":5,"share":0.5,"later":{"x":1}}"#;
        let pointer: Pointer = serde_json::from_str(json).unwrap();
        assert_eq!((pointer.version, pointer.retired, pointer.over), (3, false, Some(hash("o"))));
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let one = at(&Pointers::new(), None, &activate("a")).unwrap();
        let mut full: Pointers = (0..MAX_POINTERS).map(|n| (format!("n{n}"), Some(one.clone()))).collect();
        assert_eq!(at(&full, None, &activate("a")), Err(Refused::Full));
        full.remove("n0");
        full.insert("w".into(), Some(one));
        assert!(at(&full, None, &activate("b")).is_ok(), "a name that is there may change");
    }

    #[test]
    fn each_difference_is_a_sentence() {
        let known = Known { agents: &["x", "y"], inputs: &[] };
        let old = "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"5s\"\nundo = { agent = \"x\" }\n\
                   [[step]]\nname = \"b\"\nagent = \"x\"\ntimeout = \"5s\"\nafter = [\"a\"]\n\
                   [[step]]\nname = \"c\"\nagent = \"x\"\ntimeout = \"5s\"";
        let new = "name = \"w\"\non_failure = \"error\"\n[[step]]\nname = \"a\"\nagent = \"y\"\ntimeout = \"10s\"\n\
                   [[step]]\nname = \"b\"\nagent = \"x\"\ntimeout = \"5s\"\n\
                   retry = { max = 2, backoff = [\"5m\"] }\n\
                   [[step]]\nname = \"d\"\nagent = \"y\"\ntimeout = \"5s\"\nafter = [\"b\"]";
        let [old, new] = [old, new].map(|text| parse("w.toml", text, known).unwrap());
        assert_eq!(differences(&old, &old), [""; 0]);
        let all = differences(&old, &new);
        for part in [
            "on_failure changes from undo to error",
            "step `c` is removed",
            "step `a`: agent changes from x to y",
            "step `a`: timeout changes from 5s to 10s",
            "step `a`: undo is removed",
            "step `b`: after changes from a to nothing",
            "step `b`: retry.backoff changes from 1m, 5m, 10m, 30m, 1h to 5m",
            "step `d` is added, by agent `y`",
        ] {
            assert!(all.iter().any(|text| text == part), "{part}: {all:#?}");
        }
        let mut turned = old.clone();
        turned.steps.swap(0, 2);
        turned.steps[1].after[0].step = 2;
        assert_eq!(differences(&old, &turned), ["the steps are listed in a different sequence"]);
    }
}
