//! Goal: callers that sign see the orders of their own tenant only, whatever they call their session. Method: events as API
//! Gateway sends them for routes with IAM.

use crate::world::{ONE, World, call_by};
use serde_json::json;

#[tokio::test]
async fn a_role_submits_and_looks_up_the_orders_of_its_tenant() {
    let mut world = World::new(ONE).await;
    world.submit.scopes.role_tenants =
        r#"{"shop-acme": "acme", "shop-globex": "globex", "desk": "*"}"#.parse().unwrap();
    let order = r#"{"workflow": "one", "input": {"tenant": "globex"}}"#;
    let call = async |method: &str, path: &str, session: &str| {
        let arn = format!("arn:aws:sts::123456789012:assumed-role/{session}");
        call_by(&world, (method, path), "k1", order, json!({"iam": {"userArn": arn}})).await
    };
    let (status, accepted) = call("POST", "/orders", "shop-acme/shop-globex").await;
    assert_eq!(status, 202, "{accepted}");
    let path = accepted["status_url"].as_str().unwrap();
    // The same key of another tenant is another order.
    let (_, other) = call("POST", "/orders", "shop-globex/a").await;
    assert_ne!(other["order_id"], accepted["order_id"]);
    for (session, expected) in
        [("shop-acme/b", 200), ("shop-globex/acme", 404), ("desk/ann", 200), ("other/shop-acme", 403)]
    {
        assert_eq!(call("GET", path, session).await.0, expected, "{session}");
        assert_eq!(call("GET", &format!("{path}/history"), session).await.0, expected, "{session}");
    }
    // To look up an order is no right to send it events; the workflow has none.
    let events = format!("{path}/events/paid");
    for (session, code) in [
        ("shop-acme/b", "no_such_event"),
        ("shop-globex/acme", "no_such_order"),
        ("desk/ann", "forbidden"),
        ("other/shop-acme", "forbidden"),
    ] {
        let (_, answer) = call("POST", &events, session).await;
        assert_eq!(answer["code"], code, "{session}");
    }
    for session in ["desk/ann", "other/shop-acme"] {
        assert_eq!(call("POST", "/orders", session).await.0, 403, "{session}");
    }
}
