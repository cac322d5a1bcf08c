//! Goal: a heartbeat is answered with the time that is stored, only who has the request can send one, and each refusal
//! says what to do. Method: requests as API Gateway passes them on, over the real store. // L6

use crate::world::{World, call};
use serde_json::{Value, json};
use shared::time::SignedDuration;
use shared::workflow::beat::address;

const TEXT: &str = r#"
name = "one"
[[step]]
name = "a"
agent = "x"
timeout = "3d"
heartbeat = "10s"
"#;

#[tokio::test]
async fn a_heartbeat_counts_only_for_its_attempt() {
    let world = World::new(TEXT).await;
    let id = world.accept(json!({})).await;
    let secret = world.task(&id).await.secret.unwrap();
    let own = address("", &id, "a", 1, &secret);
    let send = async |path: &str, body: &str| {
        let (status, answer) = call(&world, "POST", path, "", body).await;
        assert!(status == 200 || answer["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{answer}");
        let code = answer["code"].as_str().unwrap_or_default().to_owned();
        (status, if status == 200 { answer["complete_by"].as_str().unwrap().to_owned() } else { code })
    };
    let refused = |status: i64, code: &str| (status, code.to_owned());
    let until = async || {
        let by = world.task(&id).await.steps[0].claim().unwrap().1;
        (200, serde_json::to_value(by).unwrap().as_str().unwrap().to_owned())
    };

    world.wake(&id).await;
    assert_eq!(send(&own, "").await, until().await);
    let first = world.task(&id).await;
    assert_eq!(send(&own, "").await, until().await);
    assert_eq!(world.task(&id).await.version, first.version, "most of the time is left");

    // A forged address: another token, step, attempt or order. That of another secret is in refused.rs.
    let token = own.rsplit('/').next().unwrap().to_owned();
    let last = if own.ends_with('0') { "1" } else { "0" };
    let forged = [
        own.replace("/a/1/", "/b/1/"),
        own.replace("/a/1/", "/a/2/"),
        own.replace("/a/1/", "/a/+1/"),
        own.replace("/a/1/", "/a/x/"),
        format!("{}{last}", &own[..own.len() - 1]),
        own.replace(&token, ""),
        own.replace(&id.0, "ord_00000000000000000000000000"),
        own.replace(&id.0, "x"),
    ];
    for path in forged {
        let (status, code) = send(&path, "{}").await;
        assert!(matches!((status, code.as_str()), (404, "no_such_heartbeat" | "no_such_route")), "{path}: {code}");
    }
    for (body, code) in [
        ("{", "invalid_json"),
        ("[1]", "invalid_field"),
        (r#"{"percent": 101}"#, "invalid_field"),
        (r#"{"percent": -1}"#, "invalid_field"),
        (r#"{"percent": "40"}"#, "invalid_field"),
        (r#"{"percent": 1.5}"#, "invalid_field"),
        (r#"{"note": 4}"#, "invalid_field"),
        (r#"{"progress": 4}"#, "invalid_field"),
    ] {
        assert_eq!(send(&own, body).await, refused(400, code), "{body}");
    }
    let long = json!({ "note": "x".repeat(201) }).to_string();
    assert_eq!(send(&own, &long).await, refused(400, "invalid_field"));
    assert_eq!(send(&own, &json!({ "note": "x".repeat(1100) }).to_string()).await, refused(413, "too_large"));
    let (status, answer) = call(&world, "GET", &own, "", "").await;
    assert_eq!((status, &answer["code"]), (405, &json!("method_not_allowed")));
    assert_eq!(world.task(&id).await.version, first.version, "nothing was written");

    // Later it is saved again, and shown.
    world.later(SignedDuration::from_secs(12));
    assert_eq!(send(&own, r#"{"percent": 40, "note": "4 of 10 files"}"#).await, until().await);
    let (_, order) = call(&world, "GET", &format!("/orders/{id}"), "", "").await;
    let progress = &order["steps"][0]["progress"];
    assert_eq!((&progress["percent"], &progress["note"]), (&json!(40), &json!("4 of 10 files")));
    world.later(SignedDuration::from_secs(20));
    assert_eq!(send(&own, "{}").await, refused(409, "attempt_over"), "at CompleteBy");

    // The next attempt has an address of its own, and a reply ends it.
    world.done(&id, "a", Value::Null).await;
    assert!(world.task(&id).await.steps[0].claim().is_some(), "the reply came too late");
    assert_eq!(send(&address("", &id, "a", 2, &secret), "").await, refused(409, "attempt_over"), "not begun");
}
