//! Goal: a function exports its spans before it answers, because Lambda stops it afterwards. A dead collector costs one
//! invocation a bounded time, costs the next ones none, and makes none fail. Method: the real binary, against a Runtime
//! API, an order store and a collector in this process.

#[path = "../../../infra/cli/tests/common/collector.rs"]
mod collector;
#[path = "../../../shared/agent/tests/runtime_api.rs"]
mod runtime_api;

use crate::world::{ONE, World};
use collector::{Collector, Span};
use runtime_api::RuntimeApi;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use stepwarden_aws::config::queue;
use stepwarden_aws::{batch, traces};
use tokio::net::TcpListener;

const PATIENCE: Duration = Duration::from_secs(90);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SETTINGS: [(&str, &str); 5] = [
    ("ORDERS_TABLE", "orders"),
    ("STATE_TABLE", "state"),
    ("EVENT_BUS", "default"),
    ("AGENTS", "fraud,inventory,noop,payment,shipping,http"),
    ("AWS_REGION", "local"),
];

/// Real orders, one JSON object a line.
const ORDERS: &str = include_str!("../../../tests/data/northwind-orders.jsonl");

/// A function as Lambda runs it, one invocation after another.
struct Function {
    process: Child,
    lambda: RuntimeApi,
    world: World,
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

impl Function {
    async fn start(collector: &str) -> Self {
        let world = World::new(ONE).await;
        let (listener, aws) = listen().await;
        let serving = world.endpoints.clone();
        tokio::spawn(async move { serving.serve(listener, std::future::pending()).await });
        let lambda = RuntimeApi::start().await;
        let process = Command::new(env!("CARGO_BIN_EXE_submit"))
            .envs(SETTINGS)
            .env("QUEUE_PREFIX", &world.config.queue_prefix)
            .env("AWS_ENDPOINT_URL", format!("http://{aws}"))
            .envs([("AWS_ACCESS_KEY_ID", "any"), ("AWS_SECRET_ACCESS_KEY", "any")])
            .envs(lambda.environment("shop-submit"))
            .env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", format!("{collector}/v1/traces"))
            .env_remove("OTEL_SERVICE_NAME")
            .spawn()
            .unwrap();
        Self { process, lambda, world }
    }

    /// The senders of the Wakes in the scheduler's queue, from their attributes.
    async fn senders(&self) -> Vec<String> {
        let url = self.world.config.queue_url(queue::SCHEDULER);
        let received = self.world.clients.sqs.receive_message().queue_url(url).max_number_of_messages(10);
        let received = received.message_attribute_names(batch::ATTRIBUTE).send().await.unwrap();
        let sender = |message: &aws_sdk_sqs::types::Message| {
            message.message_attributes()?.get(batch::ATTRIBUTE)?.string_value().map(str::to_owned)
        };
        received.messages().iter().filter_map(sender).collect()
    }

    /// The answer to `event`, and how long it took.
    async fn invoke(&mut self, event: Value) -> (Value, Duration) {
        let begin = Instant::now();
        let answer = self.lambda.invoke(event).await;
        (answer, begin.elapsed())
    }

    /// The spans that fit `wanted`, once there are `count`. The first export makes a connection, and the pause after a slow one
    /// leaves the next spans to a later invocation.
    async fn exported(&mut self, collector: &Collector, count: usize, wanted: impl Fn(&Span) -> bool) -> Vec<Span> {
        let begin = Instant::now();
        loop {
            let spans: Vec<_> = collector.spans().into_iter().filter(&wanted).collect();
            if spans.len() >= count {
                return spans;
            }
            assert!(begin.elapsed() < PATIENCE, "{spans:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            self.invoke(json!({"Records": []})).await;
        }
    }

    /// Submits an order over HTTP.
    async fn order(&mut self, key: &str) -> Duration {
        let order: Value = serde_json::from_str(ORDERS.lines().next().unwrap()).unwrap();
        let (answer, took) = self
            .invoke(json!({
                "version": "2.0",
                "rawPath": "/orders",
                "rawQueryString": "",
                "headers": {"content-type": "application/json", "idempotency-key": key,
                            "traceparent": format!("00-{TRACE}-b7ad6b7169203331-01")},
                "requestContext": {"http": {"method": "POST", "path": "/orders"},
                                   "authorizer": {"iam": {"accountId": "111122223333"}}},
                "body": json!({"workflow": "order", "input": order}).to_string(),
                "isBase64Encoded": false,
            }))
            .await;
        assert_eq!(answer["statusCode"], 202, "{answer}");
        took
    }
}

// Telemetry: exported before the answer, for requests and for messages.
#[tokio::test(flavor = "multi_thread")]
async fn spans_are_exported_before_the_answer() {
    let collector = Collector::start().await;
    let mut submit = Function::start(&collector.url).await;
    submit.order("one").await;
    let spans = collector.spans();
    let [span] = spans.as_slice() else { panic!("one span: {spans:#?}") };
    assert_eq!((span.name.as_str(), span.service.as_str()), ("POST /orders", "shop-submit"));
    assert_eq!((span.trace.as_str(), span.parent.as_str()), (TRACE, "b7ad6b7169203331"));

    let record = |key: &str, body: Value| {
        json!({"Records": [{"messageId": key, "body": body.to_string(), "attributes": {}, "messageAttributes": {},
                            "eventSource": "aws:sqs", "eventSourceARN": "arn:aws:sqs:local:000000000000:shop-submissions"}]})
    };
    let (answer, _) =
        submit.invoke(record("bad", json!({"idempotency_key": "two", "workflow": "none", "input": {}}))).await;
    assert_eq!(answer["batchItemFailures"], json!([]));
    let span = submit.exported(&collector, 1, |span| span.name == "process shop-submissions").await.remove(0);
    assert_eq!((span.get("messaging.message.id"), span.get("error.type")), ("bad", "unknown_workflow"));
    assert!(span.is_error && span.parent.is_empty());

    // Wakes of one batch are sent in one request, and each names the span of its own order.
    let real: Value = serde_json::from_str(ORDERS.lines().next().unwrap()).unwrap();
    let mut batch = json!({"Records": []});
    for key in ["three", "four"] {
        let one = record(key, json!({"idempotency_key": key, "workflow": "order", "input": real}));
        batch["Records"].as_array_mut().unwrap().push(one["Records"][0].clone());
    }
    submit.senders().await;
    let (answer, _) = submit.invoke(batch).await;
    assert_eq!(answer["batchItemFailures"], json!([]));
    let is_good = |span: &Span| ["three", "four"].contains(&span.get("messaging.message.id"));
    let spans = submit.exported(&collector, 2, is_good).await;
    let spans: BTreeSet<_> = spans.into_iter().map(|s| format!("00-{}-{}-01", s.trace, s.id)).collect();
    assert_eq!(spans.len(), 2);
    assert_eq!(submit.senders().await.into_iter().collect::<BTreeSet<_>>(), spans);

    // The span is a child of the span that the body names, or else of the message's sender, and is linked to the sender
    // if that is another span.
    let traceparent = |n: u32| format!("00-{n:032x}-b7ad6b7169203331-01");
    for (key, body, sender, links) in [("five", None, 7, 0), ("six", Some(8), 7, 1), ("seven", Some(7), 7, 0)] {
        let mut order = json!({"idempotency_key": key, "workflow": "order", "input": real});
        if let Some(body) = body {
            order["traceparent"] = traceparent(body).into();
        }
        let mut event = record(key, order);
        event["Records"][0]["messageAttributes"] = json!({batch::ATTRIBUTE: {
            "stringValue": traceparent(sender), "dataType": "String", "stringListValues": [], "binaryListValues": [],
        }});
        let (answer, _) = submit.invoke(event).await;
        assert_eq!(answer["batchItemFailures"], json!([]));
        let of = |span: &Span| span.get("messaging.message.id") == key;
        let span = submit.exported(&collector, 1, of).await.remove(0);
        assert_eq!(span.trace, format!("{:032x}", body.unwrap_or(sender)), "{key}");
        assert_eq!((span.parent.as_str(), span.links.len()), ("b7ad6b7169203331", links), "{key}");
    }
}

// Telemetry: a dead collector makes no invocation fail, delays one by a bounded time, and the next ones not at all.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_costs_one_bounded_wait() {
    let (dead, address) = listen().await;
    let mut submit = Function::start(&format!("http://{address}")).await;
    let first = submit.order("one").await;
    let tried = tokio::time::timeout(PATIENCE, dead.accept()).await.expect("it was tried").unwrap();
    println!("the first answer beside a dead collector took {first:?}");
    assert!(first >= traces::PATIENCE, "it waited: {first:?}");
    // Room for a cold start on a slow machine.
    assert!(first < traces::PATIENCE + Duration::from_secs(10), "{first:?}");
    let begin = Instant::now();
    for n in 0..5 {
        submit.order(&format!("more-{n}")).await;
    }
    println!("five more took {:?}", begin.elapsed());
    assert!(begin.elapsed() < 5 * traces::PATIENCE, "none of them waited: {:?}", begin.elapsed());
    assert!(begin.elapsed() < traces::HOLD_OFF, "within that time nothing is sent");
    drop(tried);
}
