//! Goal: a key means one thing forever. Method: real HTTP on a loopback port, services in memory.

use crate::common::{input, send, serve};
use reqwest::{Method, StatusCode};
use serde_json::json;
use stepwarden_remotes::{BODY_MAX, Expected, KEY_MAX, Service};

#[tokio::test]
async fn each_service_applies_once_and_answers_in_its_own_way() {
    let served = serve(None).await;
    for (service, field) in
        [("inventory", "lines"), ("fraud", "score"), ("payment", "amount_cents"), ("shipping", "tracking")]
    {
        let key = format!("o-1:{service}");
        let first = served.apply(service, &key, "o-1").await;
        assert_eq!(first.status, StatusCode::OK);
        assert!(!first.replayed && first.body["reference"].is_string(), "{first:?}");
        assert!(!first.body[field].is_null(), "{first:?}");
        let again = served.apply(service, &key, "o-1").await;
        assert!(again.replayed);
        assert_eq!((again.status, &again.body), (first.status, &first.body));
        let entries = served.remotes.order_ledger("o-1").unwrap();
        let of_service: Vec<_> = entries.iter().filter(|e| e.service.name() == service).collect();
        let [entry] = of_service[..] else { panic!("{entries:?}") };
        assert_eq!((entry.calls, entry.replays, entry.tombstone), (2, 1, false));
        assert_eq!(entry.reference.as_deref(), first.body["reference"].as_str());
        assert!(entry.applied_at.is_some() && entry.undone_at.is_none());
    }
    let inventory = served.apply("inventory", "o-1:inventory", "o-1").await;
    assert_eq!(inventory.body["lines"], 2);
    let payment = served.apply("payment", "o-1:payment", "o-1").await;
    assert_eq!(payment.body["amount_cents"], 4250);
    let all = Expected::Applied(Service::ALL.to_vec());
    let report = served.remotes.check([("o-1".to_owned(), all)]).unwrap();
    assert!(report.is_clean() && report.effects == 4, "{report}");
    served.stop().await;
}

#[tokio::test]
async fn a_key_with_another_body_is_refused() {
    let served = serve(None).await;
    served.apply("inventory", "k", "o-1").await;
    let other_order = served.apply("inventory", "k", "o-2").await;
    let other_input = served.keyed("/inventory/apply", "k").json(&json!({"order_id": "o-1", "input": {"lines": []}}));
    for answer in [other_order, send(other_input).await] {
        assert_eq!(answer.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(answer.code(), "key_reused");
    }
    // The order of members is no difference.
    let reordered = served
        .keyed("/inventory/apply", "k")
        .header("content-type", "application/json")
        .body(format!(r#"{{"input": {{"total_cents": 4250, "lines": {}}}, "order_id": "o-1"}}"#, input()["lines"]));
    assert!(send(reordered).await.replayed);
}

#[tokio::test]
async fn calls_at_the_same_time_with_one_key_apply_once() {
    let served = serve(None).await;
    let calls = (0..20).map(|_| tokio::spawn(send(served.apply_request("payment", "k", "o-1"))));
    let mut bodies = Vec::new();
    let mut fresh = 0;
    for call in calls.collect::<Vec<_>>() {
        let answer = call.await.unwrap();
        fresh += u32::from(!answer.replayed);
        bodies.push(answer.body);
    }
    assert_eq!(fresh, 1);
    assert!(bodies.iter().all(|body| *body == bodies[0]));
    assert_eq!(served.remotes.order_ledger("o-1").unwrap().len(), 1);
}

#[tokio::test]
async fn an_undo_takes_the_effect_back_once_and_bars_the_key() {
    let served = serve(None).await;
    served.apply("payment", "k", "o-1").await;
    let undone = served.undo("payment", "k:undo", "o-1", "k").await;
    assert_eq!((undone.status, undone.replayed), (StatusCode::OK, false));
    assert_eq!(undone.body, json!({"undone": true}));
    let again = served.undo("payment", "k:undo", "o-1", "k").await;
    assert_eq!((again.replayed, &again.body), (true, &undone.body));
    let second_undo = served.undo("payment", "k:undo-2", "o-1", "k").await;
    assert_eq!(second_undo.body, json!({"undone": false}));
    let late = served.apply("payment", "k", "o-1").await;
    assert_eq!((late.status, late.code()), (StatusCode::CONFLICT, "undone"));
    let [entry] = &served.remotes.order_ledger("o-1").unwrap()[..] else { panic!() };
    assert!(entry.tombstone && entry.applied_at.is_some() && entry.undone_at.is_some());
    let report = served.remotes.check([("o-1".to_owned(), Expected::Undone)]).unwrap();
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn an_undo_before_its_forward_call_leaves_a_tombstone() {
    let served = serve(None).await;
    let undone = served.undo("shipping", "k:undo", "o-1", "k").await;
    assert_eq!(undone.body, json!({"undone": false}));
    assert_eq!(served.apply("shipping", "k", "o-1").await.code(), "undone");
    let [entry] = &served.remotes.order_ledger("o-1").unwrap()[..] else { panic!() };
    assert!(entry.tombstone && entry.applied_at.is_none() && entry.reference.is_none());
    let counts = served.remotes.counts();
    let shipping = &counts[&Service::Shipping];
    assert_eq!((shipping.tombstones, shipping.refused_undone, shipping.applied), (1, 1, 0));
}

#[tokio::test]
async fn a_fraud_check_has_nothing_to_take_back() {
    let served = serve(None).await;
    served.apply("fraud", "k", "o-1").await;
    let undone = served.undo("fraud", "k:undo", "o-1", "k").await;
    assert_eq!(undone.body, json!({"undone": false}));
    assert_eq!(served.apply("fraud", "k", "o-1").await.code(), "undone");
    let report = served.remotes.check([("o-1".to_owned(), Expected::Undone)]).unwrap();
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn an_undo_key_or_forward_key_of_another_order_is_refused() {
    let served = serve(None).await;
    served.apply("payment", "k", "o-1").await;
    let stranger = served.undo("payment", "u", "o-2", "k").await;
    assert_eq!((stranger.status.as_u16(), stranger.code()), (422, "key_reused"));
    served.undo("payment", "u", "o-1", "k").await;
    let reused = served.undo("payment", "u", "o-1", "k2").await;
    assert_eq!(reused.code(), "key_reused");
}

#[tokio::test]
async fn malformed_calls_are_refused_in_words() {
    let served = serve(None).await;
    let body = json!({"order_id": "o-1", "input": {}});
    let keyed = |path: &str, key: &str| served.keyed(path, key);
    let longest = "k".repeat(KEY_MAX);
    assert_eq!(served.apply("fraud", &longest, "o-1").await.status, StatusCode::OK);
    let too_long = "k".repeat(KEY_MAX + 1);
    let big = json!({"order_id": "o-1", "input": "x".repeat(BODY_MAX)});
    let table = [
        (served.request(Method::POST, "/fraud/apply").json(&body), 400, "Idempotency-Key"),
        (keyed("/fraud/apply", &too_long).json(&body), 400, "1 to 200"),
        (keyed("/fraud/apply", "k").header("content-type", "application/json").body("{"), 400, "order_id"),
        (keyed("/fraud/apply", "k").body(body.to_string()), 415, "application/json"),
        (
            keyed("/fraud/apply", "k").header("content-type", "text/plain").body(body.to_string()),
            415,
            "application/json",
        ),
        (served.request(Method::GET, "/health").header("host", "evil.example"), 421, "localhost"),
        (keyed("/fraud/apply", "k").json(&json!({"order_id": "o"})), 400, "input"),
        (keyed("/fraud/apply", "k").json(&json!({"order_id": "", "input": 1})), 400, "order_id"),
        (keyed("/payment/apply", "k").json(&body), 400, "total_cents"),
        (keyed("/fraud/apply", "k").header("Complete-By", "soon").json(&body), 400, "RFC 3339"),
        (keyed("/fraud/undo", "k").json(&json!({"order_id": "o"})), 400, "undoes"),
        (keyed("/fraud/undo", "k").json(&json!({"order_id": "o", "undoes": ""})), 400, "undoes"),
        (keyed("/fraud/apply", "k").json(&big), 413, "524288"),
        (keyed("/bank/apply", "k").json(&body), 404, "inventory"),
        (served.request(Method::GET, "/nowhere"), 404, "/ledger"),
        (served.request(Method::DELETE, "/faults"), 405, "PUT"),
    ];
    for (request, status, says) in table {
        let answer = send(request).await;
        assert_eq!(answer.status.as_u16(), status, "{answer:?}");
        assert!(answer.detail().contains(says), "{answer:?}");
    }
    assert_eq!(served.get("/health").await.body, json!({"status": "ok"}));
}
