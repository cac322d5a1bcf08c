//! What a workflow's name means after activations, rollbacks, retirements and deployments.

use Change::{Activate, Retire, Rollback};
use shared::registry::*;
use shared::time::Timestamp;
use shared::workflow::Hash;
use shared::workflow::file::{Known, parse};

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
