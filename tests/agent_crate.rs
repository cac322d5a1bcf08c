//! Goal: what `stepwarden-agent` and the engine both know is the same. Method: compare.

use serde_json::json;
use shared::message::Request;

#[test]
fn limits_are_those_of_the_engine() {
    assert_eq!(stepwarden_agent::attempt::MAX_OUTPUT, shared::outputs::MAX_BESIDE);
    assert_eq!(stepwarden_agent::attempt::MAX_DEPTH, shared::json::MAX_DEPTH);
}

#[test]
fn a_request_of_the_engine_is_read_whole() {
    let request: Request = serde_json::from_value(json!({
        "task_id": "ord_1", "step": "a", "agent": "x", "direction": "undo", "attempt": 3, "idempotency_key": "ord_1:a:undo",
        "complete_by": "2027-01-15T08:00:00.123Z", "calls": {"attempts": 4, "base": "PT0.1S", "cap": "PT2S"},
        "tenant": "acme", "priority": "high", "input": {"b": 1}, "outputs": {"c": [2]}, "output": "d", "undoes": "ord_1:a:do",
        "callback": "https://orders.example/callbacks/ord_1/a/0af7651916cd43dd8448eb211c80319c",
        "heartbeat": {"url": "https://orders.example/heartbeats/ord_1/a/3/0af7651916cd43dd8448eb211c80319c", "every_ms": 60000},
        "traceparent": "00-00000000000000000000000000000001-0000000000000001-01",
    }))
    .unwrap();
    let sent = serde_json::to_value(&request).unwrap();
    let read: stepwarden_agent::message::Request = serde_json::from_value(sent.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), sent);
}
