//! Goal: bad input from outside is refused with what to do, and changes nothing. Method: one table of requests as API Gateway passes
//! them on, over the real store, at four stages of one order. What else each route refuses is in the tests of that route. // L2, L4, L6

use crate::world::{World, call};
use serde_json::{Value, json};
use shared::decision::Event;
use shared::message::Outcome;
use shared::order::Id;
use shared::task::ProcessState;
use shared::time::SignedDuration;
use shared::workflow::{accept, beat};
use submit::problem::CODES;

/// Steps that wait for an event, one more than an order keeps.
const EVENTS: usize = 17;

fn text() -> String {
    let step = |n: usize| format!("[[step]]\nname = \"s{n}\"\nafter = [\"a\"]\nevent = \"e{n}\"\ntimeout = \"1h\"\n");
    let steps: String = (1..EVENTS).map(step).collect();
    let paid = "after = [\"a\"]\nevent = \"paid\"\ntimeout = \"24h\"\ntake = \"event.cents > 0\"";
    format!(
        r#"
name = "one"
[[step]]
name = "a"
after = []
agent = "x"
timeout = "3d"
heartbeat = "10s"
[[step]]
name = "b"
after = []
agent = "x"
timeout = "10s"
accept = {{ within = "1h" }}
[[step]]
name = "paid"
{paid}
{steps}"#
    )
}

/// A request that is refused: in words, its path, key and body, and the answer's code and a part of its advice.
type Row<'a> = (&'a str, String, &'a str, String, &'a str, &'a str);

async fn check(world: &World, id: &Id, rows: Vec<Row<'_>>) {
    let before = world.task(id).await;
    for (words, path, key, body, code, advice) in rows {
        let (found, answer) = call(world, "POST", &path, key, &body).await;
        println!("| {words} | {found} `{}` | {} |", answer["code"].as_str().unwrap_or_default(), answer["detail"]);
        let (_, status, _) = *CODES.iter().find(|(known, ..)| *known == code).unwrap();
        assert_eq!((found, &answer["code"]), (i64::from(status), &json!(code)), "{words}: {answer}");
        assert!(answer["detail"].as_str().unwrap().contains(advice), "{words}: {answer}");
        assert_eq!(world.task(id).await, before, "{words}: nothing is half taken");
    }
}

#[tokio::test]
async fn each_refusal_says_what_to_do_and_changes_nothing() {
    let world = World::new(&text()).await;
    let id = world.accept(json!({})).await;
    let secret = world.task(&id).await.secret.unwrap();
    let event = |name: &str| format!("/orders/{id}/events/{name}");
    let accept = async |name: &str, key: &str, body: &str| {
        assert_eq!(call(&world, "POST", &event(name), key, body).await.0, 202, "{name}");
    };
    let cents = |n: i64| json!({ "cents": n }).to_string();
    let long = |bytes: usize| json!({ "cents": 1, "x": "x".repeat(bytes - r#"{"cents":1,"x":""}"#.len()) }).to_string();
    let empty = || "{}".to_owned();
    let elsewhere = |path: String| path.replace(&id.0, "ord_00000000000000000000000000");
    let callback = accept::address("", &id, "b", 0, &secret);
    let of_attempt = |attempt: u32| beat::address("", &id, "a", attempt, &secret);

    // Before the steps wait.
    accept("paid", "k0", &cents(5)).await;
    for n in 1..16 {
        accept(&format!("e{n}"), &format!("k{n}"), "{}").await;
    }
    let rows = vec![
        ("an order that is not there", elsewhere(event("paid")), "k", empty(), "no_such_order", "not the id of"),
        ("a name that is not there", event("payed"), "k", empty(), "no_such_event", "its steps wait for `e1`"),
        ("other data under its key", event("paid"), "k0", cents(6), "event_key_reused", "use a new key"),
        ("another name under its key", event("e16"), "k0", cents(5), "event_key_reused", "use a new key"),
        ("a second one that is too early", event("paid"), "k", cents(5), "event_early", "send the event again once"),
        ("the seventeenth that is too early", event("e16"), "k16", empty(), "too_many_events", "send it again once"),
        ("4 KiB + 1", event("paid"), "k", long(4097), "too_large", "send a reference"),
        ("no object", event("paid"), "k", "[1]".into(), "invalid_field", "one JSON object"),
        ("no key", event("paid"), "", empty(), "missing_idempotency_key", "Idempotency-Key"),
        ("a callback before its call", callback.clone(), "", empty(), "event_late", "send the callback again"),
        ("a heartbeat before its attempt", of_attempt(1), "", empty(), "attempt_over", "stop the work"),
    ];
    check(&world, &id, rows).await;

    // Both agents work, and the first attempt of one has failed.
    world.wake(&id).await;
    world.reply(&id, "a", 1, Outcome::Deferred { error: "stopped".into(), retry_after_ms: 0 }).await;
    world.reply(&id, "b", 1, Outcome::Accepted { output: json!({"id": 7}) }).await;
    let another = accept::address("", &id, "b", 0, "another secret");
    let of_another = beat::address("", &id, "a", 1, "another secret");
    let (of_step, of_order) = (callback.replace("/b/", "/a/"), elsewhere(callback.clone()));
    let rows = vec![
        ("a heartbeat of an older attempt", of_attempt(1), "", empty(), "attempt_over", "stop the work"),
        ("a forged heartbeat", of_another, "", empty(), "no_such_heartbeat", "use the address in the request"),
        ("a forged callback", another, "", empty(), "no_such_callback", "with the whole token"),
        ("the address of another step", of_step, "", empty(), "no_such_callback", "with the whole token"),
        ("the address of another order", of_order, "", empty(), "no_such_callback", "with the whole token"),
    ];
    check(&world, &id, rows).await;

    // The steps wait. What was kept is taken.
    world.done(&id, "b", Value::Null).await;
    let version = world.task(&id).await.version;
    world.later(SignedDuration::from_secs(2));
    world.handle(&id, Event::Wake { seen: version, hops: 0 }).await;
    world.reply(&id, "a", 2, Outcome::Done { output: Value::Null }).await;
    let rows = vec![
        ("one whose step has another", event("paid"), "k", cents(5), "event_late", "look at the order"),
        ("a heartbeat after the answer", of_attempt(2), "", empty(), "attempt_over", "stop the work"),
        ("an expired callback", callback.clone(), "", empty(), "event_late", "stop, because"),
    ];
    check(&world, &id, rows).await;

    // The order has ended.
    accept("e16", "k16", "{}").await;
    let task = world.task(&id).await;
    assert_eq!((task.process_state(), task.kept().count()), (ProcessState::Processed, 0));
    let rows = vec![
        ("after the end", event("e16"), "k", empty(), "event_late", "look at the order"),
        ("other data under its key after the end", event("paid"), "k0", cents(6), "event_key_reused", "a new key"),
        ("a name that is not there, after the end", event("payed"), "k", empty(), "no_such_event", "wait for `e1`"),
        ("a callback after the end", callback, "", empty(), "event_late", "stop, because"),
        ("a heartbeat after the end", of_attempt(2), "", empty(), "attempt_over", "stop the work"),
    ];
    check(&world, &id, rows).await;
}

// L5: no caller can be refused, so the order itself says what is wrong with the condition.
#[tokio::test]
async fn a_poll_whose_condition_has_no_value_fails_and_says_so() {
    let text = r#"
name = "one"
on_failure = "error"
[[step]]
name = "job"
agent = "x"
timeout = "10s"
poll = { every = "1m", for = "1h", done = "answer.count > 3" }
"#;
    let world = World::new(text).await;
    let id = world.begin(json!({})).await;
    world.done(&id, "job", json!({"count": "many"})).await;
    let (_, shown) = call(&world, "GET", &format!("/orders/{id}"), "", "").await;
    assert_eq!((&shown["state"], &shown["steps"][0]["state"]), (&json!("Error"), &json!("Failed")), "{shown}");
    let error = shown["steps"][0]["last_error"].as_str().unwrap();
    println!("{error}");
    assert!(error.contains("`done`"), "{error}");
}
