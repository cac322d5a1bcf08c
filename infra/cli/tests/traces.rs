//! Goal: an order is one trace to which every part adds its spans, linked along the queues; the trace contains nothing
//! that was submitted, returned or secret; a dead collector costs a bounded time. Method: the real binary, a collector
//! in this test, and `private-` in all private data.

#[path = "common/collector.rs"]
mod collector;
mod common;

use collector::{Collector, Span};
use common::client::{ended, once, texts};
use common::record::call;
use common::{QUICK, TOKEN, Up, folder, http, program};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use stepwarden_aws::traces;

const PATIENCE: Duration = Duration::from_secs(90);
/// The span of the submitter.
const ABOVE: &str = "b7ad6b7169203331";

struct Shop {
    up: Up,
    http: reqwest::Client,
    _dir: tempfile::TempDir,
}

fn trace(n: u32) -> String {
    format!("{n:032x}")
}

fn start(endpoint: &str, calls: &str) -> Shop {
    let order = QUICK.replacen("input = \"order\"\n", "", 1);
    let stop = order.replacen("name = \"order\"", "name = \"stop\"\non_failure = \"error\"", 1);
    let calls = format!(
        "name = \"calls\"\n[[step]]\nname = \"call\"\ntimeout = \"5s\"\nretry = {{ max = 9, backoff = [\"20ms\"] }}\n\
         [step.http]\nurl = \"{calls}/calls\"\nheaders = {{ x-secret = \"{{secret:shop-token}}\" }}\n"
    );
    let wrap = "name = \"wrap\"\n[[step]]\nname = \"wrap\"\nagent = \"gift-wrap\"\ntimeout = \"60s\"\n";
    let dir = folder("quick", &[("order", &order), ("stop", &stop), ("calls", &calls), ("wrap", wrap)]);
    let up = ["up", "--port", "0", "--memory", "--workflows", "quick", "--external-agent", "gift-wrap"];
    let mut command = program(dir.path(), &up);
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_EXPORTER_OTLP_HEADERS", "x-key=private-otlp");
    command.env("OTEL_SERVICE_NAME", "shop").env("STEPWARDEN_SECRET_SHOP_TOKEN", "private-secret");
    Shop { up: Up::of(command), http: http(), _dir: dir }
}

impl Shop {
    async fn post(&self, path: &str, key: &str, traceparent: &str, body: &Value) -> Value {
        let post = self.http.post(format!("{}{path}", self.up.url)).header("idempotency-key", key).json(body);
        let answer = post.header("traceparent", traceparent).header("x-other", "private-header").send().await.unwrap();
        let (status, answer) = (answer.status(), answer.json::<Value>().await.unwrap());
        assert!(status.is_success(), "{status}: {answer}");
        answer
    }

    async fn submit(&self, workflow: &str, n: u32) -> String {
        let input = json!({"total_cents": 5, "note": "private-input", "private-field": ["private-deep"]});
        let body = json!({"workflow": workflow, "reference": "private-reference", "input": input});
        let traceparent = format!("00-{}-{ABOVE}-01", trace(n));
        let answer = self.post("/orders", &format!("private-key-{n}"), &traceparent, &body).await;
        answer["order_id"].as_str().unwrap().to_owned()
    }

    /// The order once `seen` holds.
    async fn once(&self, id: &str, seen: impl Fn(&Value) -> bool) -> Value {
        once(&self.http, &self.up.url, id, PATIENCE, seen).await
    }

    async fn ended(&self, id: &str) -> Value {
        ended(&self.http, &self.up.url, id, PATIENCE).await
    }

    async fn fault(&self, faults: Value) {
        let put = self.http.put(format!("{}/faults", self.up.remotes_url)).json(&json!({"services": faults}));
        put.send().await.unwrap().error_for_status().unwrap();
    }

    async fn queue(&self, name: &str) -> String {
        let name = json!({"QueueName": format!("stepwarden-{name}")});
        let answer = call(&self.http, &self.up.aws_url, "AmazonSQS.GetQueueUrl", &name).await.unwrap();
        answer["QueueUrl"].as_str().unwrap().to_owned()
    }

    /// Sends SIGTERM, and returns how long the program took to end.
    fn stop(&mut self) -> Duration {
        let begin = Instant::now();
        self.up.process.end(rustix::process::Signal::TERM);
        begin.elapsed()
    }
}

/// Checks the trace of an order, and returns its spans.
fn check<'a>(all: &'a [Span], id: &str, n: u32) -> Vec<&'a Span> {
    let own: Vec<_> = all.iter().filter(|span| span.get("task.id") == id && span.trace == trace(n)).collect();
    let submit: Vec<_> = own.iter().filter(|span| span.name == "POST /orders").collect();
    let [submit] = submit.as_slice() else { panic!("one submission of {id}: {own:#?}") };
    assert_eq!((submit.kind, submit.parent.as_str()), (SpanKind::Server, ABOVE));
    assert_eq!(submit.get("http.response.status_code"), "202");
    for span in &own {
        assert_eq!(span.service, "shop");
        match span.kind {
            SpanKind::Server => {}
            SpanKind::Consumer => {
                assert_eq!(span.parent, submit.id, "{span:#?}");
                assert_eq!(span.get("messaging.system"), "aws_sqs");
                assert_eq!(span.name, format!("process {}", span.get("messaging.destination.name")));
                let [(_, sender)] = span.links.as_slice() else { panic!("one sender: {span:#?}") };
                let sender = all.iter().find(|other| other.id == *sender);
                let sender = sender.unwrap_or_else(|| panic!("its sender is exported too: {span:#?}"));
                if span.name.ends_with("-replies") {
                    let step = |span: &Span| (span.get("step.name").to_owned(), span.get("step.attempt").to_owned());
                    assert!(sender.name.contains("-agent-"), "{sender:#?}");
                    assert_eq!(step(span), step(sender), "an agent's reply");
                } else if span.name.contains("-agent-") {
                    assert!(
                        ["-replies", "-scheduler", "/orders"].iter().any(|end| sender.name.ends_with(end)),
                        "{sender:#?}"
                    );
                }
            }
            SpanKind::Client => {
                let above = own.iter().find(|other| other.id == span.parent).expect("an agent's");
                assert!(above.name.contains("-agent-"), "{above:#?}");
                assert_eq!(span.get("step.attempt"), above.get("step.attempt"));
            }
            other => panic!("{other:?}: {span:#?}"),
        }
    }
    own
}

// Telemetry: every part has spans, an order is one trace, and there are links along the queues, and from acts on many
// orders to these orders.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_is_one_trace_and_holds_nothing_of_it() {
    let collector = Collector::start().await;
    let mut shop = start(&collector.url, &collector.url);

    let happy = shop.submit("order", 1).await;
    let happy_order = shop.ended(&happy).await;
    assert_eq!(happy_order["state"], "Processed");
    let calls = shop.submit("calls", 2).await;
    assert_eq!(shop.ended(&calls).await["state"], "Processed");
    shop.fault(json!({"payment": {"hang": 1.0}})).await;
    let slow = shop.submit("order", 3).await;
    shop.once(&slow, |order| order["steps"][2]["attempts"].as_u64() > Some(1)).await;
    shop.fault(json!({"payment": {"permanent": 1.0}})).await;
    shop.ended(&slow).await;
    let stopped = shop.submit("stop", 4).await;
    assert_eq!(shop.ended(&stopped).await["state"], "Error");
    shop.fault(json!({})).await;
    let operator = format!("00-{}-{ABOVE}-01", trace(5));
    let act = json!({"by": "private-person", "reason": "private-reason", "output": {"receipt": "private-output"}});
    shop.post(&format!("/orders/{stopped}/actions/mark-done"), "any", &operator, &act).await;
    shop.once(&stopped, |order| order["state"] == "Processed").await;
    shop.stop();

    let all = collector.spans();
    let own = check(&all, &happy, 1);
    let names: BTreeSet<_> = own.iter().map(|span| span.name.as_str()).collect();
    let agents = ["fraud", "inventory", "payment", "shipping"];
    let mut wanted: BTreeSet<String> = agents.iter().map(|name| format!("call {name}")).collect();
    wanted.extend(["POST /orders", "process stepwarden-replies"].map(str::to_owned));
    wanted.extend(agents.map(|name| format!("process stepwarden-agent-{name}")));
    assert_eq!(names, wanted.iter().map(String::as_str).collect(), "{own:#?}");
    assert!(own.iter().all(|span| !span.is_error), "{own:#?}");
    let call = own.iter().find(|span| span.name == "call payment").unwrap();
    assert_eq!((call.get("http.response.status_code"), call.get("server.address")), ("200", "127.0.0.1"));
    let last = own.iter().find(|span| span.get("state") == "Processed").expect("the reply that ended it");
    assert_eq!((last.get("workflow"), last.get("step.name")), ("order", "ship"));

    // A remote service gets the span of its call.
    let own = check(&all, &calls, 2);
    let call = own.iter().find(|span| span.kind == SpanKind::Client).unwrap();
    let told = &collector.calls()[0];
    assert_eq!(told["traceparent"], format!("00-{}-{}-01", trace(2), call.id));
    assert_eq!(told["x-secret"], "private-secret", "the mark was there to be seen");

    // Silence: the sweep is linked to the order, and what it sent to the sweep.
    let own = check(&all, &slow, 3);
    let kinds: BTreeSet<_> = own.iter().map(|span| span.get("error.type")).collect();
    assert!(kinds.contains("silent"), "{kinds:?}");
    assert!(own.iter().all(|span| span.is_error != span.get("error.type").is_empty()), "{own:#?}");
    let submit = own.iter().find(|span| span.kind == SpanKind::Server).unwrap();
    let sweeps: Vec<_> = all.iter().filter(|span| span.name == "sweep").collect();
    let has_swept = |sweep: &&&Span| sweep.links.contains(&(trace(3), submit.id.clone()));
    let sweep = sweeps.iter().find(has_swept).expect("a sweep that recovered the order");
    assert_eq!((sweep.kind, sweep.parent.as_str()), (SpanKind::Internal, ""));
    let sent = |by: &Span, n: u32| {
        all.iter().any(|span| span.trace == trace(n) && span.links.contains(&(by.trace.clone(), by.id.clone())))
    };
    assert!(sweeps.iter().any(|sweep| sent(sweep, 3)), "{sweeps:#?}");

    // A person's action is in that person's trace.
    let own = check(&all, &stopped, 4);
    let submit = own.iter().find(|span| span.kind == SpanKind::Server).unwrap();
    let act = all.iter().find(|span| span.trace == trace(5)).expect("the action");
    assert_eq!((act.name.as_str(), act.get("act")), ("POST /orders/{order_id}/actions/{action}", "mark-done"));
    assert_eq!((act.parent.as_str(), act.get("task.id")), (ABOVE, stopped.as_str()));
    assert_eq!(act.links, [(trace(4), submit.id.clone())]);
    assert!(sent(act, 4), "{own:#?}");

    // No exported byte contains private data.
    let mut outputs = BTreeSet::new();
    happy_order["steps"].as_array().unwrap().iter().for_each(|step| texts(&step["output"], &mut outputs));
    assert!(outputs.len() >= 4, "orders have outputs of their own: {outputs:?}");
    for (headers, body) in collector.exports() {
        assert_eq!(headers["x-key"], "private-otlp");
        assert_eq!(headers["content-type"], "application/x-protobuf");
        for secret in outputs.iter().map(String::as_str).chain(["private-", TOKEN]) {
            let found = body.windows(secret.len()).any(|bytes| bytes == secret.as_bytes());
            assert!(!found, "an export holds `{secret}`: {:?}", String::from_utf8_lossy(&body));
        }
    }
}

// Telemetry: the reply of an external agent that leaves out the trace is linked to the order.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_without_its_trace_is_linked_to_the_order() {
    let collector = Collector::start().await;
    let mut shop = start(&collector.url, &collector.url);
    let mut ids = Vec::new();
    for (n, is_told) in [(1, true), (2, false)] {
        let id = shop.submit("wrap", n).await;
        let receive = json!({"QueueUrl": shop.queue("agent-gift-wrap").await, "WaitTimeSeconds": 20});
        let received = call(&shop.http, &shop.up.aws_url, "AmazonSQS.ReceiveMessage", &receive).await.unwrap();
        let request: Value = serde_json::from_str(received["Messages"][0]["Body"].as_str().unwrap()).unwrap();
        let mut reply = json!({"type": "reply", "task_id": id, "step": "wrap", "attempt": request["attempt"],
                               "outcome": "done"});
        if is_told {
            reply["traceparent"] = request["traceparent"].clone();
        }
        let send = json!({"QueueUrl": shop.queue("replies").await, "MessageBody": reply.to_string(),
                          "MessageGroupId": "tenant"});
        call(&shop.http, &shop.up.aws_url, "AmazonSQS.SendMessage", &send).await.unwrap();
        assert_eq!(shop.ended(&id).await["state"], "Processed");
        ids.push(id);
    }
    shop.stop();
    let all = collector.spans();
    let of = |id: &str, name: &str| {
        let found = all.iter().find(|span| span.get("task.id") == id && span.name.ends_with(name));
        found.unwrap_or_else(|| panic!("{name} of {id}: {all:#?}"))
    };
    let (told, silent) = (of(&ids[0], "-replies"), of(&ids[1], "-replies"));
    assert_eq!((told.trace.as_str(), told.links.len()), (trace(1).as_str(), 0));
    assert!(silent.trace != trace(2) && silent.parent.is_empty(), "{silent:#?}");
    assert_eq!(silent.links, [(trace(2), of(&ids[1], "POST /orders").id.clone())]);
}

// Telemetry: a collector that accepts connections and never answers holds up no order, and delays the end of `up` by a
// bounded time.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_collector_holds_up_no_order() {
    let dead = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut shop = start(&format!("http://{}", dead.local_addr().unwrap()), "http://localhost:9");
    let id = shop.submit("order", 1).await;
    // This order has ended before an export, and others end during one.
    assert_eq!(shop.ended(&id).await["state"], "Processed");
    let held = tokio::time::timeout(PATIENCE, dead.accept()).await.expect("it is tried").unwrap();
    let begin = Instant::now();
    let id = shop.submit("order", 2).await;
    assert_eq!(shop.ended(&id).await["state"], "Processed");
    println!("an order beside a dead collector took {:?}", begin.elapsed());
    let took = shop.stop();
    println!("the end beside a dead collector took {took:?}");
    // Once for the export in progress, once for the last one, and room for a slow machine.
    assert!(took < 2 * traces::PATIENCE + Duration::from_secs(8), "{took:?}");
    drop(held);
}
