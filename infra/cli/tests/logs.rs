//! Goal: the log says which order, step, attempt, instance and trace, and nothing that was submitted, returned or kept
//! secret. Method: the real binary with the log of its own crates at `trace` and in the format of Lambda; orders that
//! end in every way, and wrong submissions and messages, each with its own marks in all private data.

mod common;

use common::client::{ended, texts};
use common::record::call;
use common::{QUICK, TOKEN, Up, folder, http, program};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(90);
const TRACE_ID: &str = "0af7651916cd43dd8448eb211c80319c";
/// Bytes of all lines about an order without faults, as docs/prices.toml counts them.
const MOST_BYTES: usize = 600;
/// All of this repository's crates that run in the process.
const OWN: [&str; 11] = [
    "agent",
    "operator",
    "scheduler",
    "stepwarden",
    "stepwarden_aws",
    "stepwarden_embedded",
    "leader",
    "stepwarden_remotes",
    "shared",
    "submit",
    "supervisor",
];
/// Calls a URL without a listener, with a secret.
const CALLS: &str = r#"
name = "calls"
on_failure = "error"
[[step]]
name = "call"
timeout = "5s"
retry = { max = 1, backoff = ["20ms"] }
[step.http]
url = "http://localhost:9/{order_id}"
headers = { authorization = "Bearer {secret:shop-token}" }
"#;

struct Shop {
    up: Up,
    http: reqwest::Client,
    dir: tempfile::TempDir,
}

impl Shop {
    fn start() -> Self {
        let quick = QUICK.replacen("input = \"order\"\n", "", 1);
        let stop = quick.replacen("name = \"order\"", "name = \"stop\"\non_failure = \"error\"", 1);
        let dir = folder("quick", &[("order", &quick), ("stop", &stop), ("calls", CALLS)]);
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = program(dir.path(), &["up", "--port", "0", "--memory", "--workflows", "quick"]);
        command.env("RUST_LOG", OWN.map(|name| format!("{name}=trace")).join(",")).env("AWS_LAMBDA_RUNTIME_API", "any");
        command.env("STEPWARDEN_SECRET_SHOP_TOKEN", "mark-secret").stderr(log);
        Self { up: Up::of(command), http: http(), dir }
    }

    async fn post(&self, key: &str, body: &Value) -> (u16, Value) {
        let post = self.http.post(format!("{}/orders", self.up.url)).header("idempotency-key", key).json(body);
        let post = post.header("traceparent", format!("00-{TRACE_ID}-b7ad6b7169203331-01"));
        let answer = post.header("x-other", "mark-header").header("cookie", "mark-cookie").send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// An order with marks, and how it ended.
    async fn order(&self, workflow: &str, key: &str) -> (String, Value) {
        let input = json!({"total_cents": 5, "note": "mark-input", "mark-field": ["mark-deep"]});
        let body =
            json!({"workflow": workflow, "reference": "mark-reference", "reply_queue": "default", "input": input});
        let (status, answer) = self.post(key, &body).await;
        assert_eq!(status, 202, "{answer}");
        let id = answer["order_id"].as_str().unwrap().to_owned();
        let order = ended(&self.http, &self.up.url, &id, PATIENCE).await;
        (id, order)
    }

    async fn send(&self, queue: &str, body: &Value) {
        let url = format!("{}/000000000000/stepwarden-{queue}", self.up.aws_url);
        let message = json!({"QueueUrl": url, "MessageBody": body.to_string()});
        call(&self.http, &self.up.aws_url, "AmazonSQS.SendMessage", &message).await.unwrap();
    }
}

// Logs: no payloads, tokens or secrets; two short lines for an order without faults.
#[tokio::test]
async fn the_log_names_orders_and_holds_nothing_of_theirs() {
    let mut shop = Shop::start();
    let log = shop.dir.path().join("log");
    let mut happy = Vec::new();
    let mut outputs = BTreeSet::new();
    for n in 0..5 {
        let (id, order) = shop.order("order", &format!("mark-key-{n}")).await;
        assert_eq!(order["state"], "Processed");
        order["steps"].as_array().unwrap().iter().for_each(|step| texts(&step["output"], &mut outputs));
        happy.push(id);
    }
    assert!(outputs.len() >= 5, "orders have outputs of their own: {outputs:?}");
    let (called, order) = shop.order("calls", "mark-key-calls").await;
    assert_eq!(order["state"], "Error", "{order}");
    let faults = json!({"services": {"payment": {"permanent": 1.0}}});
    let put = shop.http.put(format!("{}/faults", shop.up.remotes_url)).json(&faults);
    put.send().await.unwrap().error_for_status().unwrap();
    let (undone, order) = shop.order("order", "mark-key-undone").await;
    assert_eq!(order["state"], "Undone");
    let (stopped, order) = shop.order("stop", "mark-key-stopped").await;
    assert_eq!(order["state"], "Error");

    // Wrong requests, with marks where a parser would quote them.
    for body in [
        json!({"workflow": 5, "input": "mark-input"}),
        json!({"workflow": "mark-workflow", "input": {}}),
        json!({"workflow": "order", "priority": "mark-priority", "input": {}}),
        json!({"workflow": "order", "input": {}, "mark-field": "mark-deep"}),
    ] {
        assert!([400, 422].contains(&shop.post("mark-key-bad", &body).await.0), "{body}");
    }
    let poison = [
        ("submissions", json!({"idempotency_key": "mark-key-m", "workflow": "order", "priority": "mark-priority"})),
        ("scheduler", json!({"type": "mark-kind", "task_id": "mark-id"})),
        ("replies", json!({"type": "reply", "task_id": called, "step": "call", "attempt": "mark-attempt"})),
        ("agent-payment", json!({"task_id": undone, "agent": "payment", "direction": "mark-direction"})),
    ];
    for (queue, body) in &poison {
        shop.send(queue, body).await;
    }
    let begin = Instant::now();
    let read = || std::fs::read_to_string(&log).unwrap();
    while read().matches("set a message aside").count() < poison.len() {
        assert!(begin.elapsed() < PATIENCE, "not all were set aside:\n{}", read());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    shop.up.kill();
    let all = read();

    for secret in outputs.iter().map(String::as_str).chain(["mark-", TOKEN, "b7ad6b7169203331"]) {
        let found: Vec<_> = all.lines().filter(|line| line.contains(secret)).collect();
        assert!(found.is_empty(), "the log holds `{secret}`: {found:#?}");
    }
    let read = |line| serde_json::from_str::<Value>(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    let lines: Vec<Value> = all.lines().map(read).collect();
    let level = |line: &Value| line["level"].as_str().unwrap().to_owned();
    for id in &happy {
        let about =
            |line: &&Value| line.to_string().contains(id.as_str()) && !["DEBUG", "TRACE"].contains(&&*level(line));
        let told: Vec<_> = lines.iter().filter(about).collect();
        let messages: Vec<_> = told.iter().map(|line| line["message"].as_str().unwrap()).collect();
        assert_eq!(messages, ["accepted", "ended"], "{told:#?}");
        for line in &told {
            assert_eq!((&line["task.id"], &line["trace_id"]), (&json!(id), &json!(TRACE_ID)), "{line}");
            assert!(line["instance"].as_str().is_some_and(|name| !name.is_empty()), "{line}");
        }
        let bytes: usize = all.lines().filter(|line| about(&&read(line))).map(|line| line.len() + 1).sum();
        println!("{bytes} bytes for an order that goes well");
        assert!(bytes <= MOST_BYTES, "{bytes} bytes: {told:#?}");
    }
    for id in [&called, &stopped] {
        let is_told = |line: &Value| line["task.id"] == **id && level(line) == "ERROR";
        assert!(lines.iter().any(is_told), "an operator is told of {id}");
    }
    let step = lines.iter().find(|line| line["span"]["step.name"] == "charge" && line["span"]["task.id"] == *stopped);
    let span = &step.expect("the log names steps")["span"];
    assert_eq!((&span["step.attempt"], &span["trace_id"]), (&json!(1), &json!(TRACE_ID)), "{span}");
}
