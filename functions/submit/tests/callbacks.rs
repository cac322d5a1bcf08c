//! Goal: a callback that is answered with 2xx is stored and counts once, only who has the address can send one, and each
//! refusal says what to do. Method: requests as API Gateway passes them on, over the real store. // L4

use crate::world::{World, call};
use serde_json::{Value, json};
use shared::decision::Event;
use shared::message::Outcome;
use shared::step::State;
use shared::task::ProcessState;
use shared::workflow::accept::{MAX_CALLBACK, address};

const TEXT: &str = r#"
name = "one"
[[step]]
name = "a"
after = []
agent = "x"
timeout = "10s"
accept = { within = "7d" }
output = { url = "${first(event.url, answer.url)}", id = "${first(answer.id, 0)}" }
[[step]]
name = "b"
after = ["a"]
agent = "x"
timeout = "10s"
"#;

#[tokio::test]
async fn a_callback_counts_once_and_only_at_its_address() {
    let world = World::new(TEXT).await;
    let id = world.accept(json!({})).await;
    let secret = world.task(&id).await.secret.unwrap();
    let own = address("", &id, "a", 0, &secret);
    let send = async |path: &str, body: &str| {
        let (status, answer) = call(&world, "POST", path, "", body).await;
        assert!(status == 202 || answer["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{answer}");
        (status, answer["code"].as_str().unwrap_or_default().to_owned())
    };
    let refused = |status: i64, code: &str| (status, code.to_owned());
    let body = r#"{"url": "https://cdn.example/1", "state": "finished"}"#;

    world.wake(&id).await;
    world.reply(&id, "a", 1, Outcome::Accepted { output: json!({"id": 7}) }).await;
    let waiting = world.task(&id).await;
    assert!(matches!(waiting.steps[0].state, State::Waiting { event: true, .. }));

    // A forged address. Those of other secrets, steps and orders are in refused.rs.
    let last = if own.ends_with('0') { "1" } else { "0" };
    let forged = [format!("{}{last}", &own[..own.len() - 1]), own[..own.len() - 1].to_owned(), own.replace(&id.0, "x")];
    for path in forged {
        assert_eq!(send(&path, body).await, refused(404, "no_such_callback"), "{path}");
    }
    assert_eq!(send(&own, "{").await, refused(400, "invalid_json"));
    assert_eq!(send(&own, "[1]").await, refused(400, "invalid_field"));
    let long = json!({ "url": "x".repeat(MAX_CALLBACK - r#"{"url":""}"#.len() + 1) }).to_string();
    assert_eq!(send(&own, &long).await, refused(413, "too_large"));
    assert_eq!(send(&own, r#"{"state": "finished"}"#).await, refused(422, "event_refused"), "`output` reads more");
    let (status, answer) = call(&world, "GET", &own, "", "").await;
    assert_eq!((status, &answer["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(world.task(&id).await.version, waiting.version, "nothing was written");

    assert_eq!(send(&own, body).await, (202, String::new()));
    assert_eq!(send(&own, body).await, (202, String::new()), "again");
    assert_eq!(send(&own, r#"{"url": "https://cdn.example/2"}"#).await, refused(409, "event_late"));
    let task = world.task(&id).await;
    assert_eq!(task.steps[0].output, Some(json!({"url": "https://cdn.example/1", "id": 7})));
    world.handle(&id, Event::Wake { seen: task.version, hops: 0 }).await;
    world.done(&id, "b", Value::Null).await;
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
    assert_eq!(send(&own, body).await, (202, String::new()), "its answer is known after the end");
}
