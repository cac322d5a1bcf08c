//! Goal: callers that sign see the orders of their own tenant only, whatever they call their session. Method: events as API
//! Gateway sends them for routes with IAM.

use crate::keys::World;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use serde_json::{Value, json};
use submit::http::handler;

fn event(method: &str, path: &str, session: &str, body: &str) -> ApiGatewayV2httpRequest {
    let arn = format!("arn:aws:sts::000000000000:assumed-role/{session}");
    let context = json!({
        "http": {"method": method, "path": path}, "accountId": "000000000000", "authorizer": {"iam": {"userArn": arn}},
    });
    let headers = json!({"content-type": "application/json", "idempotency-key": "k1"});
    serde_json::from_value(json!({"rawPath": path, "headers": headers, "requestContext": context, "body": body}))
        .unwrap()
}

fn body(answer: ApiGatewayV2httpResponse) -> (i64, Value) {
    let Some(aws_lambda_events::encodings::Body::Text(text)) = answer.body else { panic!("no body") };
    (answer.status_code, serde_json::from_str(&text).unwrap())
}

#[tokio::test]
async fn a_role_submits_and_looks_up_the_orders_of_its_tenant() {
    let mut world = World::new("0").await;
    world.submit.scopes.role_tenants =
        r#"{"shop-acme": "acme", "shop-globex": "globex", "desk": "*"}"#.parse().unwrap();
    let order = r#"{"workflow": "one", "input": {"tenant": "globex"}}"#;
    let call = async |method: &str, path: &str, session: &str| {
        body(handler(&world.submit, event(method, path, session, order)).await)
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
