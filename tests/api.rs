//! Goal: whatever a client sends, it gets the right answer, and a refused request leaves nothing behind. Method: the
//! real handler behind the real listener, over the embedded endpoints, whose calls and items are counted.

use crate::support::world::World;
use crate::support::{listen, northwind, three_noops};
use edge::problem::CODES;
use futures::FutureExt;
use futures::future::join_all;
use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use std::sync::Arc;
use stepwarden_embedded::Fault;
use submit::submission::MAX_BODY;

struct Api {
    world: World,
    url: String,
    http: reqwest::Client,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    status: u16,
    media_type: String,
    location: Option<String>,
    retry_after: Option<String>,
    allow: Option<String>,
    body: Value,
}

impl Api {
    async fn start() -> Self {
        let workflows = [include_str!("../workflows/order.toml").to_owned(), three_noops("60s")];
        let world = World::start(&workflows, None).await;
        let submit = Arc::clone(&world.submit);
        let handler: stepwarden_local::admission::Handler = Arc::new(move |event| {
            let submit = Arc::clone(&submit);
            async move { submit::http::handler(&submit, event).await }.boxed()
        });
        let (listener, url) = listen().await;
        let (access, token) = stepwarden_local::access::Access::open(&Default::default()).unwrap();
        tokio::spawn(stepwarden_local::http::serve(listener, handler, Arc::new(access), std::future::pending()));
        Self { world, url, http: crate::support::http(&token) }
    }

    fn post(&self, key: Option<&[u8]>, body: impl Into<reqwest::Body>) -> reqwest::RequestBuilder {
        let request = self.http.post(format!("{}/orders", self.url)).header("content-type", "application/json");
        let request = match key {
            Some(key) => request.header("idempotency-key", header::HeaderValue::from_bytes(key).unwrap()),
            None => request,
        };
        request.body(body)
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let answer = request.send().await.unwrap();
        let head = |name: &str| answer.headers().get(name).map(|v| v.to_str().unwrap().to_owned());
        let (media_type, location, retry_after) = (head("content-type"), head("location"), head("retry-after"));
        let allow = head("allow");
        let status = answer.status().as_u16();
        let text = answer.text().await.unwrap();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Answer { status, media_type: media_type.unwrap_or_default(), location, retry_after, allow, body }
    }

    /// Orders, tasks (a workflow is an item too), and messages.
    async fn kept(&self) -> (usize, usize, u64) {
        let orders = self.world.items("stepwarden-orders").await;
        (orders, self.world.items("stepwarden-state").await, self.world.endpoints.counts().messages_sent)
    }
}

fn submission(input: Value) -> Value {
    json!({"workflow": "order", "input": input})
}

/// The first real order, changed.
fn order(change: impl FnOnce(&mut Value)) -> Value {
    let mut input = northwind(0);
    change(&mut input);
    submission(input)
}

/// The answer is a refusal with `code`, which has one status, and names this field, or none.
fn check(what: &str, answer: &Answer, code: &str, field: &str) {
    let (_, status, _) = *CODES.iter().find(|known| known.0 == code).expect("a code of the API");
    assert_eq!(answer.media_type, "application/problem+json", "{what}: {answer:?}");
    let body = &answer.body;
    let told = (answer.status, body["code"].as_str().unwrap_or_default(), body["field"].as_str().unwrap_or_default());
    assert_eq!(told, (status, code, field), "{what}: {body}");
    assert_eq!(body["status"], status, "{what}");
    assert!(body["type"].as_str().unwrap().ends_with(code), "{what}: {body}");
    assert!(!body["title"].as_str().unwrap().is_empty() && !body["detail"].as_str().unwrap().is_empty(), "{what}");
    assert!(body.to_string().len() < 4096, "{what}: the answer does not repeat what was sent");
}

// B1, B10: bad submissions are refused with a stable code and the field, and nothing is written or sent.
#[tokio::test(flavor = "multi_thread")]
async fn a_bad_submission_is_refused_and_leaves_nothing() {
    let api = Api::start().await;
    let before = api.world.endpoints.counts();
    let good = order(|_| {});
    let deep = format!("{{\"input\": {}", "[".repeat(5000));
    let with = |name: &str, value: Value| {
        let mut body = good.clone();
        body[name] = value;
        body.to_string()
    };
    let input = |change: fn(&mut Value)| order(change).to_string();
    let long = "x".repeat(100_000);
    // What is posted, the code of the refusal, and the field that it names.
    let bodies: Vec<(String, &str, &str)> = vec![
        (String::new(), "invalid_json", ""),
        ("{".into(), "invalid_json", ""),
        ("order=1".into(), "invalid_json", ""),
        (format!("{good}{good}"), "invalid_json", ""),
        (deep, "invalid_field", "input"),
        ("[]".into(), "invalid_field", "body"),
        (json!(["noops", {}]).to_string(), "invalid_field", "body"),
        ("\"order\"".into(), "invalid_field", "body"),
        (json!({"workflow": "order"}).to_string(), "invalid_field", "body"),
        (with("workflow", json!(5)), "invalid_field", "workflow"),
        (with("surprise", json!(1)), "invalid_field", "surprise"),
        (with("priority", json!("urgent")), "invalid_field", "priority"),
        (with("reference", json!(1)), "invalid_field", "reference"),
        (with("reference", json!("r".repeat(201))), "invalid_field", "reference"),
        (with("workflow", json!("nope")), "unknown_workflow", "workflow"),
        (with("workflow", json!(long)), "unknown_workflow", "workflow"),
        (with("reply_queue", json!("nope")), "unknown_reply_queue", "reply_queue"),
        (with("reply_queue", json!(api.world.url("scheduler"))), "unknown_reply_queue", "reply_queue"),
        (with("reply_queue", json!(long)), "unknown_reply_queue", "reply_queue"),
        (with("input", json!("x")), "invalid_field", "input"),
        (with("input", json!([])), "invalid_field", "input"),
        (input(|i| i["lines"] = json!([])), "invalid_input", "input.lines"),
        (input(|i| drop(i.as_object_mut().unwrap().remove("lines"))), "invalid_field", "input"),
        (input(|i| i["vat"] = json!(1)), "invalid_field", "input.vat"),
        (input(|i| i["lines"][0]["quantity"] = json!(-1)), "invalid_input", "input.lines[0].quantity"),
        (input(|i| i["lines"][1]["quantity"] = json!(0)), "invalid_input", "input.lines[1].quantity"),
        (input(|i| i["lines"][0]["quantity"] = json!(1.5)), "invalid_field", "input.lines[0].quantity"),
        (input(|i| i["lines"][0]["quantity"] = json!("2")), "invalid_field", "input.lines[0].quantity"),
        (input(|i| i["lines"][0]["quantity"] = json!(i64::MAX)), "invalid_input", "input.lines[0].quantity"),
        (input(|i| i["lines"][0]["amount_cents"] = json!(1)), "invalid_input", "input.lines[0].amount_cents"),
        (
            input(|i| {
                let sum = json!({"unit_price_cents": 0, "discount_percent": 0, "amount_cents": -1, "quantity": 1, "sku": "x"});
                i["lines"] = json!([sum]);
                i["freight_cents"] = json!(0);
                i["total_cents"] = json!(-1);
            }),
            "invalid_input",
            "input.lines[0].amount_cents",
        ),
        (input(|i| i["total_cents"] = json!(1)), "invalid_input", "input.total_cents"),
        (input(|i| i["freight_cents"] = json!(-1)), "invalid_input", "input.freight_cents"),
        (input(|i| i["placed_at"] = json!("1996-02-31T00:00:00Z")), "invalid_field", "input.placed_at"),
        (input(|i| i["currency"] = json!("usd")), "invalid_input", "input.currency"),
        (input(|i| i["customer"]["id"] = json!("")), "invalid_input", "input.customer.id"),
        (input(|i| i["customer"] = json!(["A", "B", "C", "D"])), "invalid_field", "input.customer"),
        (input(|i| i["lines"][0] = json!(["NW-011", "Queso", 12, 1400, 0, 16800])), "invalid_field", "input.lines[0]"),
    ];
    for (body, code, field) in bodies {
        let what: String = body.chars().take(200).collect();
        let answer = api.send(api.post(Some(b"a-key"), body)).await;
        check(&what, &answer, code, field);
    }
    let answer = api.send(api.post(Some(b"a-key"), with(&long, json!(1)))).await;
    assert_eq!((answer.status, &answer.body["code"]), (400, &json!("invalid_field")));
    assert!(answer.body.to_string().len() < 4096, "the answer does not repeat a field's endless name");

    let keys: [(&str, Option<&[u8]>, &str); 6] = [
        ("no key", None, "missing_idempotency_key"),
        ("empty key", Some(b""), "missing_idempotency_key"),
        ("blank key", Some(b"   "), "missing_idempotency_key"),
        ("long key", Some(&[b'k'; 201]), "invalid_idempotency_key"),
        ("tab in key", Some(b"a\tb"), "invalid_idempotency_key"),
        ("key not ASCII", Some("schlüssel".as_bytes()), "invalid_idempotency_key"),
    ];
    for (what, key, code) in keys {
        let answer = api.send(api.post(key, good.to_string())).await;
        check(what, &answer, code, "Idempotency-Key");
    }

    for bytes in [MAX_BODY + 1, 4 * MAX_BODY + 1000] {
        let body = submission(json!({"text": "x".repeat(bytes)})).to_string();
        check("too large", &api.send(api.post(Some(b"k"), body)).await, "too_large", "");
    }
    let answer = api.send(api.post(Some(b"k"), b"{\"input\": \"\xff\"}".to_vec())).await;
    check("not UTF-8", &answer, "invalid_json", "");
    for media_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp"] {
        let request = api.http.post(format!("{}/orders", api.url)).header("content-type", media_type);
        let answer = api.send(request.header("idempotency-key", "k").body(good.to_string())).await;
        check(media_type, &answer, "unsupported_media_type", "Content-Type");
    }

    // What names stand for is read every two seconds.
    let calls = api.world.endpoints.counts().since(&before).operations;
    assert!(calls.keys().all(|call| call.ends_with(".GetItem")), "a refusal costs no other call: {calls:?}");
    assert_eq!(api.kept().await, (0, 0, 0));
}

// B10: other routes, methods and ids are refused in the same form.
#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_route_method_or_id_is_refused() {
    let api = Api::start().await;
    let good_form = "ord_0123456789abcdefghjkmnpqrs";
    let long = format!("/orders/{}", "x".repeat(5000));
    let shouted = good_form.to_uppercase().replace("ORD_", "/orders/ord_");
    let table = [
        (Method::GET, "/", "no_such_route", ""),
        (Method::POST, "/order", "no_such_route", ""),
        (Method::GET, "/orders/a/b", "no_such_route", ""),
        (Method::GET, "/orders/a/history/b", "no_such_route", ""),
        (Method::PUT, "/orders", "method_not_allowed", ""),
        (Method::DELETE, &format!("/orders/{good_form}"), "method_not_allowed", ""),
        (Method::POST, &format!("/orders/{good_form}/history"), "method_not_allowed", ""),
        (Method::GET, "/orders/1", "no_such_order", "order_id"),
        (Method::GET, "/orders/ord_%00", "no_such_order", "order_id"),
        (Method::GET, "/orders/lease%23supervisor", "no_such_order", "order_id"),
        (Method::GET, &long, "no_such_order", "order_id"),
        (Method::GET, &shouted, "no_such_order", "order_id"),
        (Method::GET, "/orders/..", "no_such_route", ""),
    ];
    let before = api.world.endpoints.counts();
    for (method, path, code, field) in table {
        let answer = api.send(api.http.request(method.clone(), format!("{}{path}", api.url))).await;
        check(&format!("{method} {path}"), &answer, code, field);
        let allow = match (code, path) {
            ("method_not_allowed", "/orders") => Some("GET, POST"),
            ("method_not_allowed", _) => Some("GET"),
            (_, _) => None,
        };
        assert_eq!(answer.allow.as_deref(), allow, "{method} {path}");
    }
    assert!(api.world.endpoints.counts().since(&before).operations.is_empty(), "the form of an id costs no call");
    for path in [format!("/orders/{good_form}"), format!("/orders/{good_form}/history")] {
        let answer = api.send(api.http.get(format!("{}{path}", api.url))).await;
        check(&path, &answer, "no_such_order", "order_id");
    }
}

// A4, J1: under overload an order is refused with the time to retry after, and nothing is written or sent.
#[tokio::test(flavor = "multi_thread")]
async fn under_overload_an_order_is_refused_with_a_time_to_come_back() {
    let api = Api::start().await;
    let store = &api.world.submitting.store;
    let wait = shared::overload::Wait { ms: 40_000, at: api.world.now() };
    let waits = [(shared::order::DEFAULT_TENANT.to_owned(), wait)].into();
    shared::ports::StateStore::note_wait(&**store, "agent-payment", &waits).await.unwrap();
    let before = api.kept().await;
    let answer = api.send(api.post(Some(b"k"), order(|_| {}).to_string())).await;
    check("overload", &answer, "overloaded", "");
    let seconds = answer.body["retry_after_s"].as_u64().unwrap();
    assert_eq!(answer.retry_after, Some(seconds.to_string()));
    assert!(
        (41..=82).contains(&seconds) && answer.body["detail"].as_str().unwrap().contains("agent-payment"),
        "{answer:?}"
    );
    assert_eq!(api.kept().await, before);
    // Orders that do not need the long queue are accepted.
    let noops = json!({"workflow": "noops", "input": {}}).to_string();
    assert_eq!(api.send(api.post(Some(b"k"), noops)).await.status, 202);
}

// The largest permitted body is accepted, by the store as well.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_of_exactly_the_limit_is_accepted() {
    let api = Api::start().await;
    let around = json!({"workflow": "noops", "input": {"text": ""}}).to_string().len();
    let body = json!({"workflow": "noops", "input": {"text": "x".repeat(MAX_BODY - around)}}).to_string();
    assert_eq!(body.len(), MAX_BODY);
    let answer = api.send(api.post(Some(b"large"), body)).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    // The order also ends: the input is sent in a separate message to each agent.
    api.world.settle(&api.world.submitting).await;
    let id = shared::order::Id(answer.body["order_id"].as_str().unwrap().into());
    assert_eq!(api.world.task(&id).await.process_state(), shared::task::ProcessState::Processed);
}

// B1, I7 of the protocol: the same key and the same submission are one order and one answer, at once or again.
#[tokio::test(flavor = "multi_thread")]
async fn the_same_submission_under_the_same_key_is_one_order() {
    let api = Api::start().await;
    let body = order(|_| {}).to_string();
    let first = api.send(api.post(Some(b"one"), body.clone())).await;
    assert_eq!(first.status, StatusCode::ACCEPTED.as_u16(), "{first:?}");
    assert_eq!(first.location.as_deref(), first.body["status_url"].as_str());
    assert_eq!(api.send(api.post(Some(b"one"), body.clone())).await, first);
    // Some languages write whole numbers as floats.
    let floats = order(|i| i["freight_cents"] = json!(i["freight_cents"].as_f64().unwrap())).to_string();
    assert_ne!(floats, body);
    assert_eq!(api.send(api.post(Some(b"one"), floats)).await, first);
    // The same JSON with its keys in another order and more space means the same.
    let reordered = format!("{{ \"input\": {}, \"workflow\": \"order\" }}", northwind(0));
    assert_eq!(api.send(api.post(Some(b"one"), reordered)).await, first);
    api.world.settle(&api.world.submitting).await;
    assert_eq!(api.send(api.post(Some(b"one"), body)).await, first, "after its end too");

    let body = order(|i| i["order_ref"] = json!("sixteen")).to_string();
    let answers = join_all((0..16).map(|_| api.send(api.post(Some(b"many"), body.clone())))).await;
    assert!(answers.iter().all(|answer| answer.status == 202 && *answer == answers[0]), "{answers:?}");
    let (orders, states, _) = api.kept().await;
    assert_eq!((orders, states), (2, 3), "two orders; two tasks and a workflow");
    api.world.settle(&api.world.submitting).await;
    let id = shared::order::Id(answers[0].body["order_id"].as_str().unwrap().into());
    let task = api.world.task(&id).await;
    assert!(task.steps.iter().all(|step| step.attempt == 1 && step.is_settled()), "{task:#?}");
}

// B1, I7 of the protocol: a key never stands for two orders.
#[tokio::test(flavor = "multi_thread")]
async fn another_submission_under_the_same_key_is_refused() {
    let api = Api::start().await;
    assert_eq!(api.send(api.post(Some(b"key"), order(|_| {}).to_string())).await.status, 202);
    let noops = json!({"workflow": "noops", "input": {}});
    assert_eq!(api.send(api.post(Some(b"noops"), noops.to_string())).await.status, 202, "its definition is stored");
    let before = api.kept().await;
    let mut other_reference = order(|_| {});
    other_reference["reference"] = json!("r");
    let mut other_priority = order(|_| {});
    other_priority["priority"] = json!("high");
    let others = [order(|i| i["order_ref"] = json!("other")), noops, other_reference, other_priority];
    for other in others {
        let answer = api.send(api.post(Some(b"key"), other.to_string())).await;
        check("another order", &answer, "idempotency_key_reused", "Idempotency-Key");
    }
    let (orders, states, _) = api.kept().await;
    assert_eq!((orders, states), (before.0, before.1));
    // Two different orders under one new key at once: one of them wins.
    let bodies: Vec<_> = (0..8).map(|n| order(|i| i["order_ref"] = json!(format!("{n}"))).to_string()).collect();
    let answers = join_all(bodies.iter().map(|body| api.send(api.post(Some(b"race"), body.clone())))).await;
    let accepted = answers.iter().filter(|a| a.status == 202).count();
    let refused = answers.iter().filter(|a| a.status == 422).count();
    assert_eq!((accepted, refused), (1, 7), "{answers:?}");
    assert_eq!(api.kept().await.0, before.0 + 1);
}

// A4, B1: while the store is unavailable the client is told to repeat the request, and repeating it makes one order.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_is_away_is_answered_with_try_again() {
    let api = Api::start().await;
    let body = order(|_| {}).to_string();
    assert_eq!(api.send(api.post(Some(b"first"), body.clone())).await.status, 202, "the workflow is stored");
    api.world.faults("TransactWriteItems", |_, _| Some(Fault::LostAfter));
    let answer = api.send(api.post(Some(b"again"), body.clone())).await;
    check("store away", &answer, "unavailable", "");
    assert!(answer.retry_after.is_some(), "{answer:?}");
    api.world.no_faults();
    let answer = api.send(api.post(Some(b"again"), body)).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    assert_eq!(api.kept().await.0, 2);
}

// The reader of a queue sees the notices of every order that names it. So only orders of its tenants may name it, over
// HTTP and by message, and other tenants do not learn that it exists.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_queue_is_for_the_orders_of_its_tenants() {
    let api = Api::start().await;
    let submission = |queue: &str| {
        let body = json!({"workflow": "noops", "reply_queue": queue, "input": {}}).to_string();
        submit::submission::parse(body.as_bytes()).unwrap()
    };
    let submit = &api.world.submit;
    for (n, problem) in [
        submit.accept("beta", "one", submission("acme")).await.unwrap_err(),
        submit.accept_by_message("beta", "two", submission("acme")).await.unwrap_err(),
    ]
    .iter()
    .enumerate()
    {
        assert_eq!((problem.code, problem.status), ("unknown_reply_queue", 422), "{n}");
        assert!(problem.detail.contains("tenant `beta` has no reply queue `acme`, but `shop`;"), "{}", problem.detail);
    }
    let body = json!({"workflow": "noops", "reply_queue": "acme", "input": {}}).to_string();
    let answer = api.send(api.post(Some(b"three"), body)).await;
    check("a queue of acme's", &answer, "unknown_reply_queue", "reply_queue");
    let missing = api
        .send(api.post(Some(b"four"), json!({"workflow": "noops", "reply_queue": "none", "input": {}}).to_string()))
        .await;
    let told = |answer: &Answer, name: &str| answer.body["detail"].as_str().unwrap().replace(name, "NAME");
    assert_eq!(told(&answer, "acme"), told(&missing, "none"), "nobody learns that it exists");
    assert_eq!((api.kept().await.0, crate::support::queued(&api.world.endpoints, "notices-acme")), (0, 0));
    let id = submit.accept("acme", "one", submission("acme")).await.unwrap();
    let notices = api.world.receive("notices-acme").await;
    let notice: Value = serde_json::from_str(&notices[0].2).unwrap();
    assert_eq!(notice["order_id"], json!(id));
    assert_eq!((&notice["tenant"], &notice["workflow"]), (&json!("acme"), &json!("noops")), "whose it is, and of what");
}

/// An event as API Gateway hands it over.
fn get(path: &str, query: &str, headers: Value) -> aws_lambda_events::event::apigw::ApiGatewayV2httpRequest {
    let http = json!({"method": "GET", "path": path});
    let event = json!({"rawPath": path, "rawQueryString": query, "headers": headers, "requestContext": {"http": http}});
    serde_json::from_value(event).unwrap()
}

// B9: a long poll answers after a change, or when its time is over, and reads the store at growing intervals.
#[tokio::test(start_paused = true)]
async fn a_long_poll_waits_for_a_change_and_no_longer_than_asked() {
    let world = World::start(&[three_noops("60s")], None).await;
    let id = world.accept("noops", "key", json!({})).await;
    let path = format!("/orders/{id}");
    let poll = async |query: &str, tag: Option<&str>| {
        let headers = tag.map_or(json!({}), |tag| json!({"if-none-match": tag}));
        let begin = tokio::time::Instant::now();
        let answer = submit::http::handler(&world.submit, get(&path, query, headers)).await;
        (answer.status_code, begin.elapsed().as_millis())
    };
    for (query, tag, status, ms) in [
        ("", None, 200, 0),
        ("wait=0", None, 200, 0),
        ("wait=", Some("\"0\""), 304, 0),
        ("", Some("W/\"0\", \"9\""), 304, 0),
        ("wait=20", Some("\"9\""), 200, 0),
        ("wait=3", None, 200, 3000),
        ("wait=20", Some("\"0\""), 304, 20_000),
        ("wait=21", None, 400, 0),
        ("wait=-1", None, 400, 0),
        ("wait=soon", None, 400, 0),
        ("wait=1&wait=1", None, 400, 0),
        ("weight=1", None, 400, 0),
    ] {
        assert_eq!(poll(query, tag).await, (status, ms), "{query} {tag:?}");
    }
    let reads = |since: &stepwarden_embedded::Counts| -> u64 {
        let counts = world.endpoints.counts().since(since);
        counts.operations.iter().filter(|(name, _)| name.contains("GetItem")).map(|(_, n)| n.requests).sum()
    };
    let before = world.endpoints.counts();
    assert_eq!(poll("wait=20", None).await.0, 200);
    assert!((10..=18).contains(&reads(&before)), "{} reads in 20 s", reads(&before));

    // The order changes during a poll: a poll that named the version is answered after the change, every poll after the
    // end.
    let (changed, ended, ()) = tokio::join!(poll("wait=20", Some("\"0\"")), poll("wait=20", None), async {
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        world.deliver("scheduler", &world.submitting).await;
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        world.settle(&world.submitting).await;
    });
    assert!(changed.0 == 200 && (5000..=7000).contains(&changed.1), "{changed:?}");
    assert!(ended.0 == 200 && (10_000..=12_000).contains(&ended.1), "{ended:?}");
    let etag = format!("\"{}\"", world.task(&id).await.version);
    assert_eq!(poll("wait=20", None).await, (200, 0), "it has ended");
    assert_eq!(poll("wait=20", Some(&etag)).await, (304, 0), "nothing more will come");
}

// Each waiting poll occupies an instance of a function. A deployment bounds the wait, and answers a longer poll
// earlier.
#[tokio::test(start_paused = true)]
async fn a_deployment_answers_a_long_poll_earlier_than_asked() {
    let world = World::start(&[three_noops("60s")], None).await;
    let id = world.accept("noops", "key", json!({})).await;
    for (longest, query, status, ms) in
        [(5, "wait=20", 200, 5000), (5, "wait=3", 200, 3000), (0, "wait=20", 200, 0), (5, "wait=21", 400, 0)]
    {
        let begin = tokio::time::Instant::now();
        let longest = std::time::Duration::from_secs(longest);
        let event = get(&format!("/orders/{id}"), query, json!({}));
        let answer = submit::http::handler_within(&world.submit, event, longest).await;
        assert_eq!((answer.status_code, begin.elapsed().as_millis()), (status, ms), "{query}, at most {longest:?}");
    }
}

// A token that names no tenant is refused: otherwise all such tokens would share their orders.
#[tokio::test]
async fn a_token_without_a_tenant_is_refused() {
    let world = World::start(&[three_noops("60s")], None).await;
    let ask = async |path: &str, claims: Value| {
        let is_post = path == "/orders";
        let http = json!({"method": if is_post { "POST" } else { "GET" }, "path": path});
        let event = json!({
            "rawPath": path,
            "headers": {"content-type": "application/json", "idempotency-key": "key"},
            "requestContext": {"http": http, "authorizer": {"jwt": {"claims": claims}}},
            "body": is_post.then(|| json!({"workflow": "noops", "input": {}}).to_string()),
            "isBase64Encoded": false,
        });
        let answer = submit::http::handler(&world.submit, serde_json::from_value(event).unwrap()).await;
        let answer = serde_json::to_value(answer).unwrap();
        let body: Value = serde_json::from_str(answer["body"].as_str().unwrap()).unwrap();
        (answer["statusCode"].as_i64().unwrap(), body)
    };
    let scope = "stepwarden/orders";
    let (status, body) = ask("/orders", json!({"scope": scope, "tenant": "acme"})).await;
    assert_eq!(status, 202, "{body}");
    let path = body["status_url"].as_str().unwrap();
    assert_eq!(ask(path, json!({"scope": scope, "tenant": "acme"})).await.1["tenant"], "acme");
    for claims in [json!({"scope": scope}), json!({"scope": scope, "tenant": ""})] {
        for path in ["/orders", path, &format!("{path}/history")] {
            let (status, body) = ask(path, claims.clone()).await;
            assert_eq!((status, &body["code"]), (403, &json!("forbidden")), "{path} {claims}: {body}");
            assert!(body["detail"].as_str().unwrap().contains("claim `tenant`"), "{body}");
        }
    }
    // An operator looks up the orders of all tenants, and needs none of its own for that.
    let operator = json!({"scope": format!("{scope} stepwarden/operator")});
    assert_eq!(ask(path, operator).await.0, 200);
}

// Point 1: the trace of a request is kept with its order, goes with every message about it, and comes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_trace_goes_with_the_order() {
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let api = Api::start().await;
    let body = json!({"workflow": "noops", "reply_queue": "shop", "input": {}}).to_string();
    let post = |key: &'static [u8], trace: &str| api.post(Some(key), body.clone()).header("traceparent", trace);
    let answer = post(b"traced", TRACE).send().await.unwrap();
    assert_eq!(answer.headers()["traceparent"], TRACE);
    let id = answer.json::<Value>().await.unwrap()["order_id"].as_str().unwrap().to_owned();
    // The same order under another trace is the same order.
    assert_eq!(post(b"traced", &TRACE.replace("-b7", "-c8")).send().await.unwrap().status(), 202);
    let engine = &api.world.submitting;
    api.world.deliver("scheduler", engine).await;
    let request: Value = serde_json::from_str(&api.world.receive("agent-noop").await[0].2).unwrap();
    assert_eq!(request["traceparent"], TRACE);
    let request: shared::message::Request = serde_json::from_value(request).unwrap();
    let reply = shared::message::Reply::to(&request, shared::message::Outcome::Done { output: json!(1) });
    assert_eq!(serde_json::to_value(&reply).unwrap()["traceparent"], TRACE);
    let notice: Value = serde_json::from_str(&api.world.receive("notices-shop").await[0].2).unwrap();
    assert_eq!(notice["traceparent"], TRACE);
    let status = api.send(api.http.get(format!("{}/orders/{id}", api.url))).await;
    assert_eq!(status.body["traceparent"], TRACE);

    // By message too; a malformed trace context is ignored.
    for (key, trace) in [("m", json!(TRACE)), ("n", json!(5))] {
        let body = json!({"idempotency_key": key, "traceparent": trace, "workflow": "noops", "input": {}});
        api.world.send("submissions", &body.to_string()).await;
    }
    assert!(api.world.deliver("submissions", engine).await);
    let task = async |key: &str| api.world.task(&shared::order::Id::derive("default", key)).await;
    assert_eq!(task("m").await.traceparent.as_deref(), Some(TRACE));
    assert_eq!(task("n").await.traceparent, None);
    let answer = post(b"untraced", "00-0").send().await.unwrap();
    assert_eq!((answer.status().as_u16(), answer.headers().get("traceparent")), (202, None));
    assert_eq!(task("untraced").await.traceparent, None);
}
