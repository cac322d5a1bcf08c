//! Goal: an event that is answered with 2xx is stored, counts once, and each refusal says what to do. Method: requests as API
//! Gateway passes them on, over the real store. // L2

use crate::world::{World, call, call_by};
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::ProcessState;
use shared::time::SignedDuration;

const TEXT: &str = r#"
name = "one"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
[[step]]
name = "paid"
after = ["a"]
event = "paid"
timeout = "24h"
take = "event.cents > 0"
[[step]]
name = "sent"
after = ["paid"]
event = "sent"
early = "refuse"
timeout = "30d"
"#;

/// Sends the event of an order, and returns status and code.
async fn send(world: &World, path: &str, key: &str, body: &str) -> (i64, String) {
    let (status, answer) = call(world, "POST", path, key, body).await;
    let word = answer["code"].as_str().or(answer["event"].as_str()).unwrap_or_default();
    if status != 202 {
        assert!(answer["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{answer}");
    }
    (status, word.to_owned())
}

#[tokio::test]
async fn an_event_counts_once_and_a_refused_one_changes_nothing() {
    let world = World::new(TEXT).await;
    let id = world.accept(json!({})).await;
    let paid = format!("/orders/{id}/events/paid");
    let sent = format!("/orders/{id}/events/sent");
    let cents = |n: i64| json!({ "cents": n }).to_string();
    let refused = |status: i64, code: &str| (status, code.to_owned());

    assert_eq!(send(&world, &paid, "k0", &cents(5)).await, (202, "paid".into()), "before the order began");
    assert_eq!(send(&world, &paid, "k0", &cents(5)).await, (202, "paid".into()), "again");
    assert_eq!(send(&world, &sent, "k2", "{}").await, refused(409, "event_early"));
    let version = world.task(&id).await.version;
    assert_eq!(version, 1);

    assert_eq!(send(&world, "/orders/x/events/paid", "k3", "{}").await, refused(404, "no_such_order"));
    let long = |bytes: usize| json!({ "cents": 1, "x": "x".repeat(bytes - r#"{"cents":1,"x":""}"#.len()) }).to_string();
    assert_eq!(send(&world, &paid, "k3", &long(4096)).await, refused(409, "event_early"), "as long as it may be");
    let numbers = format!(r#"{{"cents": [{}]}}"#, vec!["1e15"; 700].join(","));
    assert!(numbers.len() < 4096);
    assert_eq!(send(&world, &paid, "k3", &numbers).await, refused(413, "too_large"), "longer once written out");
    assert_eq!(send(&world, &paid, "k3", "{").await, refused(400, "invalid_json"));
    assert_eq!(send(&world, &paid, "k3", r#"{"a": 1, "a": 2}"#).await, refused(400, "invalid_field"));
    let deep = format!("{{\"x\": {}{}}}", "[".repeat(60), "]".repeat(60));
    assert_eq!(send(&world, &paid, "k3", &deep).await, refused(400, "invalid_field"));
    assert_eq!(send(&world, &paid, &"k".repeat(201), "{}").await, refused(400, "invalid_idempotency_key"));
    let (status, answer) = call(&world, "GET", &paid, "k", "").await;
    assert_eq!((status, &answer["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(world.task(&id).await.version, version, "nothing was written");

    world.wake(&id).await;
    world.done(&id, "a", Value::Null).await;
    let (_, shown) = call(&world, "GET", &format!("/orders/{id}"), "", "").await;
    assert_eq!(shown["events"], json!([{"name": "paid", "key": "k0", "step": "paid", "kept": false}]));
    assert_eq!(shown["steps"][2]["state"], "Waiting");
    // No body means no data.
    assert_eq!(send(&world, &sent, "k5", "").await, (202, "sent".into()));
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
    assert_eq!(send(&world, &sent, "k5", "{}").await, (202, "sent".into()), "its key is known after the end");
}

// M5: docs/limits.md promises it. Ten years are the longest retention.
#[tokio::test]
async fn the_key_of_an_event_is_known_ten_years_after_the_end() {
    let world = World::new("name = \"one\"\n[[step]]\nname = \"paid\"\nevent = \"paid\"\ntimeout = \"24h\"\n").await;
    let id = world.accept(json!({})).await;
    let paid = format!("/orders/{id}/events/paid");
    world.wake(&id).await;
    assert_eq!(send(&world, &paid, "k0", r#"{"cents": 5}"#).await, (202, "paid".into()));
    let ended = world.task(&id).await;
    assert_eq!(ended.process_state(), ProcessState::Processed);
    world.later(SignedDuration::from_hours(3650 * 24));
    assert_eq!(send(&world, &paid, "k0", r#"{"cents": 5}"#).await, (202, "paid".into()), "the same answer");
    assert_eq!(send(&world, &paid, "k0", r#"{"cents": 6}"#).await, (422, "event_key_reused".into()));
    assert_eq!(send(&world, &paid, "k1", r#"{"cents": 5}"#).await, (409, "event_late".into()));
    assert_eq!(world.task(&id).await, ended, "and it counts once");
}

#[tokio::test]
async fn an_event_that_its_step_does_not_take_is_refused_until_one_fits() {
    let world = World::new(TEXT).await;
    let id = world.begin(json!({})).await;
    world.done(&id, "a", Value::Null).await;
    let (paid, version) = (format!("/orders/{id}/events/paid"), world.task(&id).await.version);
    for body in [r#"{"cents": 0}"#, "{}", r#"{"cents": "many"}"#] {
        assert_eq!(send(&world, &paid, "k1", body).await, (422, "event_refused".into()), "{body}");
    }
    assert_eq!(world.task(&id).await.version, version);
    assert_eq!(send(&world, &paid, "k1", r#"{"cents": 1}"#).await, (202, "paid".into()));
}

const APPROVED: &str = r#"
name = "one"
[[step]]
name = "approved"
event = "approved"
people = 2
timeout = "24h"
take = "by != input.by"
failed = "event.answer == 'no'"
"#;

/// Sends the event of a caller, and returns the answer and the person for whom it counts.
async fn say(world: &World, id: &Id, key: &str, body: &str, caller: Value) -> (i64, String) {
    let path = format!("/orders/{id}/events/approved");
    let (status, answer) = call_by(world, ("POST", &path), key, body, caller).await;
    (status, answer["code"].as_str().or(answer["by"].as_str()).unwrap_or_default().to_owned())
}

fn token(sub: &str) -> Value {
    json!({"jwt": {"claims": {"sub": sub, "scope": "stepwarden/orders", "tenant": "default"}}})
}

fn signed(what: &str) -> Value {
    json!({"iam": {"userArn": format!("arn:aws:sts::123456789012:{what}")}})
}

// L3: who sent it is who the token or the signature says, under any key and in any session.
#[tokio::test]
async fn a_step_that_counts_people_counts_who_is_authenticated() {
    let world = World::new(APPROVED).await;
    let id = world.begin(json!({"by": "eve"})).await;
    let yes = r#"{"answer": "yes", "by": "bob"}"#;
    let counts = |by: &str| (202, by.to_owned());
    let refused = |status: i64, code: &str| (status, code.to_owned());

    // Nobody vouches for these: the route is open, the token names nobody, the user chose the name of the federation.
    for nobody in [json!(null), token(" "), signed("federated-user/ann")] {
        assert_eq!(say(&world, &id, "k1", yes, nobody.clone()).await, refused(403, "forbidden"), "{nobody}");
    }
    assert_eq!(say(&world, &id, "k1", yes, token(&"x".repeat(301))).await, refused(403, "forbidden"));
    assert_eq!(say(&world, &id, "k1", yes, token("eve")).await, refused(422, "event_refused"));
    let version = world.task(&id).await.version;

    let desk = "arn:aws:sts::123456789012:assumed-role/desk";
    assert_eq!(say(&world, &id, "k1", yes, signed("assumed-role/desk/ann")).await, counts(desk));
    assert_eq!(say(&world, &id, "k1", yes, signed("assumed-role/desk/ann")).await, counts(desk), "again");
    assert_eq!(say(&world, &id, "k2", yes, signed("assumed-role/desk/bob")).await, counts(desk), "another session");
    let other = r#"{"answer": "yes, gladly"}"#;
    let again = say(&world, &id, "k3", other, signed("assumed-role/desk/carl")).await;
    assert_eq!(again, refused(422, "event_key_reused"));
    assert_eq!(world.task(&id).await.version, version + 1, "one write");
    let (_, shown) = call(&world, "GET", &format!("/orders/{id}"), "", "").await;
    assert_eq!(shown["steps"][0]["missing"], 1);
    assert_eq!(shown["steps"][0]["wait"], "waits for the event `approved` from 2 people");
    let event = json!([{"name": "approved", "key": "k1", "step": "approved", "kept": false, "by": desk}]);
    assert_eq!(shown["events"], event);

    // IAM Identity Center writes its user's name into the session. Two people may choose one key.
    let ann = "assumed-role/AWSReservedSSO_Approver_0123456789abcdef/ann@example.com";
    let user = "arn:aws:sts::123456789012:sso-user/ann@example.com";
    assert_eq!(say(&world, &id, "k1", yes, signed(ann)).await, counts(user));
    let task = world.task(&id).await;
    assert_eq!(task.process_state(), ProcessState::Processed);
    let by = task.steps[0].output.as_ref().unwrap().as_array().unwrap().iter().map(|one| one["by"].clone());
    assert_eq!(by.collect::<Vec<_>>(), [json!(desk), json!(user)]);
    assert_eq!(say(&world, &id, "k9", yes, token("carl")).await, refused(409, "event_late"));
    // The same user by another permission set is the same person.
    let other = "assumed-role/AWSReservedSSO_Admin_89abcdef01234567/ann@example.com";
    for one in [ann, other] {
        assert_eq!(say(&world, &id, "k1", yes, signed(one)).await.0, 202, "its key is known after the end");
    }
}

#[tokio::test]
async fn one_person_who_says_no_ends_the_wait() {
    let world = World::new(APPROVED).await;
    let id = world.begin(json!({"by": "eve"})).await;
    let (yes, no) = (r#"{"answer": "yes"}"#, r#"{"answer": "no", "reason": "too much"}"#);
    assert_eq!(say(&world, &id, "k1", yes, token("ann")).await, (202, "ann".into()));
    assert_eq!(say(&world, &id, "k2", no, token("bob")).await, (202, "bob".into()));
    assert_eq!(say(&world, &id, "k2", no, token("bob")).await, (202, "bob".into()), "again");
    let task = world.task(&id).await;
    assert_eq!(task.process_state(), ProcessState::Undoing);
    assert_eq!(task.reason.as_deref(), Some("`approved` failed: the event `approved` by `bob` says that it failed"));
    assert_eq!(say(&world, &id, "k3", yes, token("carl")).await, (409, "event_late".into()));
}
