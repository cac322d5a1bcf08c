//! Goal: a workflow of `examples/` calls five public APIs as their references say, with no program between. Method: the real
//! program, and stand-ins on loopback that refuse whatever differs from the published formats in path, header or body, and
//! answer as the services do. (developers.hubspot.com, docs.stripe.com, docs.easypost.com, postmarkapp.com/developer,
//! api.slack.com/messaging/webhooks)

mod common;

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use common::client::{ended, submit};
use common::{Up, folder, http, program};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SALE: &str = include_str!("../../../examples/apis/sale.toml");
const PATIENCE: Duration = Duration::from_secs(60);

/// Every request: method and path, idempotency key, and what is wrong with it.
type Log = Arc<Mutex<Vec<(String, String, Option<String>)>>>;

fn json_of(body: &[u8], headers: &HeaderMap) -> Result<Value, String> {
    has(headers, "content-type", "application/json")?;
    serde_json::from_slice(body).map_err(|e| e.to_string())
}

fn form_of(body: &[u8], headers: &HeaderMap) -> Result<BTreeMap<String, String>, String> {
    has(headers, "content-type", "application/x-www-form-urlencoded")?;
    Ok(url::form_urlencoded::parse(body).into_owned().collect())
}

fn has(headers: &HeaderMap, name: &str, value: &str) -> Result<(), String> {
    match headers.get(name) {
        Some(found) if found == value => Ok(()),
        other => Err(format!("header {name}: {other:?}")),
    }
}

/// An error with what was sent, unless it is right.
fn check(is_right: bool, sent: impl Debug) -> Result<(), String> {
    if is_right { Ok(()) } else { Err(format!("{sent:?}")) }
}

/// What a service answers; an error is a request that the service's reference does not allow.
fn service(method: &Method, uri: &Uri, headers: &HeaderMap, body: &[u8]) -> Result<Response, String> {
    let answer = |status: u16, body: Value| (StatusCode::from_u16(status).unwrap(), axum::Json(body)).into_response();
    let path = uri.path();
    match (method.as_str(), path) {
        ("POST", "/hubspot/crm/v3/objects/contacts") => {
            has(headers, "authorization", "Bearer hub")?;
            let body = json_of(body, headers)?;
            let email = body["properties"]["email"].as_str().ok_or("no email")?;
            if email.starts_with("known") {
                let error = json!({"status": "error", "message": "Contact already exists. Existing ID: 77", "category": "CONFLICT"});
                return Ok(answer(409, error));
            }
            Ok(answer(201, json!({"id": "512", "properties": body["properties"], "archived": false})))
        }
        ("GET", path) if path.starts_with("/hubspot/crm/v3/objects/contacts/") => {
            has(headers, "authorization", "Bearer hub")?;
            check(uri.query() == Some("idProperty=email") && body.is_empty(), uri)?;
            check(path.ends_with("/known%2B1%40example.com"), uri)?;
            Ok(answer(200, json!({"id": "77", "properties": {}})))
        }
        ("POST", "/stripe/v1/payment_intents") => {
            has(headers, "authorization", "Bearer sk_test_1")?;
            let form = form_of(body, headers)?;
            let get = |name: &str| form.get(name).cloned().ok_or_else(|| format!("no {name}: {form:?}"));
            get("amount")?.parse::<u32>().map_err(|e| e.to_string())?;
            check(!get("metadata[order]")?.is_empty(), &form)?;
            get("metadata[contact]")?;
            for (name, value) in [
                ("currency", "usd"),
                ("confirm", "true"),
                ("automatic_payment_methods[enabled]", "true"),
                ("automatic_payment_methods[allow_redirects]", "never"),
            ] {
                check(get(name)? == value, &form)?;
            }
            if get("payment_method")? == "pm_card_chargeDeclined" {
                // Longer than what `error.answer` keeps, as Stripe's are: the status decides.
                let intent = json!({"id": "pi_2", "object": "payment_intent", "status": "requires_payment_method", "description": "x".repeat(1500)});
                let error = json!({"error": {"code": "card_declined", "decline_code": "generic_decline", "type": "card_error",
                                             "message": "Your card was declined.", "payment_intent": intent}});
                return Ok(answer(402, error));
            }
            Ok(answer(200, json!({"id": "pi_1", "object": "payment_intent", "status": "succeeded"})))
        }
        ("POST", "/stripe/v1/refunds") => {
            has(headers, "authorization", "Bearer sk_test_1")?;
            let form = form_of(body, headers)?;
            check(form == BTreeMap::from([("payment_intent".to_owned(), "pi_1".to_owned())]), &form)?;
            Ok(answer(200, json!({"id": "re_1", "object": "refund", "status": "succeeded"})))
        }
        ("POST", "/easypost/v2/shipments") => {
            has(headers, "authorization", "Basic RVo6")?;
            let body = json_of(body, headers)?;
            let shipment = &body["shipment"];
            check(shipment["to_address"].is_object() && shipment["parcel"]["weight"].is_number(), &body)?;
            check(!shipment["reference"].is_null(), &body)?;
            if shipment["to_address"]["country"] == "XX" {
                return Ok(answer(
                    422,
                    json!({"error": {"code": "ADDRESS.COUNTRY.INVALID", "message": "no such country", "errors": []}}),
                ));
            }
            let rates = json!([{"id": "rate_1", "service": "Express", "rate": "30.00"}, {"id": "rate_2", "service": "Priority", "rate": "7.90"}]);
            Ok(answer(201, json!({"id": "shp_1", "object": "Shipment", "rates": rates})))
        }
        ("POST", "/easypost/v2/shipments/shp_1/buy") => {
            has(headers, "authorization", "Basic RVo6")?;
            let body = json_of(body, headers)?;
            check(body == json!({"rate": {"id": "rate_2"}}), &body)?;
            Ok(answer(200, json!({"id": "shp_1", "tracking_code": "9400", "postage_label": {}})))
        }
        ("POST", "/postmark/email") => {
            has(headers, "x-postmark-server-token", "pm")?;
            has(headers, "accept", "application/json")?;
            let body = json_of(body, headers)?;
            let fields = ["From", "To", "Subject", "TextBody", "MessageStream"];
            check(fields.iter().all(|field| body[*field].is_string()), &body)?;
            Ok(answer(200, json!({"To": body["To"], "MessageID": "m-1", "ErrorCode": 0, "Message": "OK"})))
        }
        ("POST", "/slack/services/T0/B0/x") => {
            let body = json_of(body, headers)?;
            check(body["text"].is_string(), &body)?;
            Ok("ok".into_response())
        }
        _ => Err(format!("{method} {uri}")),
    }
}

async fn answer(State(log): State<Log>, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Response {
    let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned()).unwrap_or_default();
    let result = service(&method, &uri, &headers, &body);
    let wrong = result.as_ref().err().cloned();
    log.lock().unwrap().push((format!("{method} {}", uri.path()), key, wrong));
    result.unwrap_or_else(|wrong| (StatusCode::BAD_REQUEST, wrong).into_response())
}

// K1, K4: a sale, a contact that exists, a declined card, and an address that makes the payment go back.
#[tokio::test(flavor = "multi_thread")]
async fn a_sale_calls_five_public_apis_as_they_are() {
    let log = Log::default();
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().fallback(answer).with_state(Arc::clone(&log));
    tokio::spawn(async move { axum::serve(listener, router).await });
    // An undo waits for the timeouts of what it undoes.
    let dir = folder("flows", &[("sale", &SALE.replace("timeout = \"30s\"", "timeout = \"3s\""))]);
    let places = [("hubspot", "/hubspot"), ("stripe", "/stripe"), ("easypost", "/easypost"), ("postmark", "/postmark")];
    let places = places.into_iter().chain([("slack", "/slack/services/T0/B0/x")]);
    let settings: Vec<String> = places.map(|(name, path)| format!("sale.{name}={url}{path}")).collect();
    let mut args = vec!["up", "--memory", "--port", "0", "--workflows", "flows"];
    args.extend(settings.iter().flat_map(|setting| ["--config", setting]));
    let mut command = program(dir.path(), &args);
    for (name, value) in
        [("HUBSPOT_TOKEN", "hub"), ("STRIPE_KEY", "sk_test_1"), ("POSTMARK_TOKEN", "pm"), ("EASYPOST_BASIC", "RVo6")]
    {
        command.env(format!("STEPWARDEN_SECRET_{name}"), value);
    }
    let up = Up::of(command);
    let run = async |email: &str, card: &str, country: &str| {
        let input = json!({
            "email": email, "first_name": "Ada", "last_name": "L", "total_cents": 2599, "payment_method": card,
            "ounces": 12.5, "address": {"zip": "90210", "country": country},
        });
        let id = submit(&http(), &up.url, email, &json!({"workflow": "sale", "input": input})).await;
        let order = ended(&http(), &up.url, &id, PATIENCE).await;
        let calls: Vec<_> = log.lock().unwrap().drain(..).collect();
        let wrong: Vec<_> = calls.iter().filter(|call| call.2.is_some()).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
        let mut named: Vec<String> =
            calls.iter().map(|(what, key, _)| format!("{what} {}", key.replace(&id, "ID"))).collect();
        named.sort();
        named.dedup();
        let states = order["steps"].as_array().unwrap().iter();
        let states: Vec<_> =
            states.map(|step| format!("{} {}", step["name"], step["state"]).replace('"', "")).collect();
        (order["state"].as_str().unwrap().to_owned(), named, states, order)
    };
    let (state, calls, states, order) = run("ada@example.com", "pm_card_visa", "US").await;
    assert_eq!((state.as_str(), calls.len()), ("Processed", 6), "{calls:#?} {order:#}");
    assert!(calls.contains(&"POST /stripe/v1/payment_intents ID:pay:do".to_owned()), "{calls:#?}");
    assert_eq!(states[1], "known PassedOver");
    let (state, calls, states, _) = run("known+1@example.com", "pm_card_visa", "US").await;
    assert_eq!(
        (state.as_str(), calls.len(), states[0].as_str(), states[1].as_str()),
        ("Processed", 7, "contact Caught", "known Processed")
    );
    let (state, calls, states, _) = run("bob@example.com", "pm_card_chargeDeclined", "US").await;
    assert_eq!(
        (state.as_str(), states[2].as_str(), states[3].as_str()),
        ("Processed", "pay Caught", "declined Processed")
    );
    assert_eq!(calls.len(), 3, "no shipment: {calls:#?}");
    let (state, calls, _, order) = run("eve@example.com", "pm_card_visa", "XX").await;
    assert_eq!(state, "Undone", "{order:#}");
    assert!(calls.contains(&"POST /stripe/v1/refunds ID:pay:undo".to_owned()), "{calls:#?}");
}
