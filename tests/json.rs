//! Goal: JSON from outside does what its sender means, or is refused with a reason: no character stops a message, no
//! depth makes a record unreadable, and no key and no digit is lost silently. Method: the whole system in one process,
//! with a service and an agent of this test that give hostile answers.

use crate::support::{EXTERNAL, Whole, listen, until};
use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::Message;
use axum::body::Bytes;
use axum::extract::Path;
use reqwest::header::CONTENT_TYPE;
use serde_json::{Value, json};
use shared::json::MAX_DEPTH;
use shared::order::Id;
use shared::task::{ProcessState, Task};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use stepwarden_aws::messenger::MESSAGE_ALERT;
use stepwarden_embedded::Event;

/// One of each kind of character that JSON, XML or a terminal treats apart. Below U+0020 SQS accepts only tab, line
/// feed and carriage return; it accepts neither U+FFFE nor U+FFFF.
const NASTY: &str = "a\0\u{1}\u{8}\t\n\u{b}\u{c}\r\u{e}\u{1f}\"\\\u{7f}\u{85}\u{d7ff}\u{e000}\u{fdd0}\u{fffd}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}b";

/// `[[..[0]..]]`: this many arrays around a number.
fn nested(depth: usize) -> String {
    "[".repeat(depth) + "0" + &"]".repeat(depth)
}

/// A remote service whose answers are set by the last part of the path, and which keeps the requests.
#[derive(Clone, Default)]
struct Service {
    answers: Arc<Mutex<HashMap<String, (u16, String)>>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
    url: String,
}

impl Service {
    async fn start() -> Self {
        let (listener, url) = listen().await;
        let service = Self { url, ..Self::default() };
        let served = service.clone();
        let handler = move |Path(name): Path<String>, body: Bytes| async move {
            served.asked.lock().unwrap().push((name.clone(), serde_json::from_slice(&body).unwrap_or_default()));
            let (status, body) = served.answers.lock().unwrap().get(&name).cloned().unwrap_or((200, "null".into()));
            (axum::http::StatusCode::from_u16(status).unwrap(), [(CONTENT_TYPE, "application/json")], body)
        };
        let router = axum::Router::new().route("/{name}", axum::routing::post(handler));
        tokio::spawn(async move { axum::serve(listener, router).await });
        service
    }

    fn answer(&self, name: &str, status: u16, body: &str) {
        self.answers.lock().unwrap().insert(name.to_owned(), (status, body.to_owned()));
    }

    /// The last request to `name`.
    fn asked(&self, name: &str) -> Value {
        let asked = self.asked.lock().unwrap();
        asked.iter().rev().find(|(to, _)| to == name).unwrap_or_else(|| panic!("`{name}` was not asked")).1.clone()
    }

    /// Two steps at this service, one after the other; if one fails, the order stops in Error.
    fn workflow(&self) -> String {
        let step = |name: &str, more: &str| {
            format!(
                "[[step]]\nname = \"{name}\"\nhttp = \"{url}/{name}\"\ntimeout = \"5s\"\n{more}\n\
                 retry = {{ max = 3, backoff = [\"20ms\"] }}\nundo = {{ http = \"{url}/un-{name}\" }}\n",
                url = self.url
            )
        };
        let (first, second) = (step("first", ""), step("second", "after = [\"first\"]"));
        format!("name = \"odd\"\non_failure = \"error\"\n{first}{second}")
    }
}

/// The API's answer to an unchanged body: status and problem.
async fn post(whole: &Whole, path: &str, body: &str) -> (u16, Value) {
    let request = whole.http.post(format!("{}{path}", whole.system.url)).header("idempotency-key", "key");
    let answer = request.header(CONTENT_TYPE, "application/json").body(body.to_owned()).send().await.unwrap();
    (answer.status().as_u16(), answer.json().await.unwrap())
}

async fn act(whole: &Whole, id: &Id, name: &str, more: &str) -> (u16, Value) {
    post(whole, &format!("/orders/{id}/actions/{name}"), &format!("{{\"by\": \"ann\", \"reason\": \"r\"{more}}}")).await
}

/// The same action on all orders in Error.
async fn act_on_many(whole: &Whole, name: &str, more: &str) -> (u16, Value) {
    let filter = r#"{"state": "Error", "workflow": "odd"}"#;
    let job = format!("{{\"action\": \"{name}\", \"filter\": {filter}, \"by\": \"ann\", \"reason\": \"r\"{more}}}");
    post(whole, "/jobs", &job).await
}

async fn stopped(whole: &Whole, id: &Id, step: usize) -> Task {
    // With its alert sent, which is one more version.
    let has_failed = |task: &Task| {
        task.process_state() == ProcessState::Error && task.steps[step].error.is_some() && task.due.is_none()
    };
    whole.task_once(id, "stopped", has_failed).await
}

/// Every route that shows `id`, or the orders beside it, still answers.
async fn all_is_readable(whole: &Whole, id: &Id) {
    for path in [format!("/orders/{id}"), format!("/orders/{id}/history"), format!("/details/{id}")] {
        let answer = whole.http.get(format!("{}{path}", whole.system.url)).send().await.unwrap();
        let (status, text) = (answer.status(), answer.text().await.unwrap());
        // A client whose parser has the same limit as ours could not read what an earlier version nested too deep.
        assert!(status == 200 && shared::json::read_own::<Value>(&text).is_ok(), "{path}: {status} {text}");
    }
    let orders = whole.get("/orders").await;
    assert!(orders["orders"].as_array().is_some_and(|all| !all.is_empty()), "{orders}");
    assert!(whole.get("/overview").await["waiting"]["count"].is_u64());
}

/// Sends `body` to the queue of submissions, and waits for the reason why it was set aside.
async fn set_aside(whole: &Whole, body: &str) -> String {
    let before = whole.events().len();
    whole.send("submissions", body).await;
    let is_aside = |event: &Arc<Event>| event.detail_type == MESSAGE_ALERT;
    let event = until("it is set aside", async || whole.events().into_iter().skip(before).find(is_aside)).await;
    let detail: Value = serde_json::from_str(&event.detail).unwrap();
    detail["reason"].as_str().unwrap().to_owned()
}

// What is accepted can be sent: no character of an order, an answer, an action or an error stops a message to SQS.
#[tokio::test(flavor = "multi_thread")]
async fn every_character_travels_through_every_message() {
    let service = Service::start().await;
    let whole = Whole::start(&[service.workflow()]).await;
    service.answer("first", 200, &json!({ NASTY: NASTY }).to_string());
    service.answer("second", 400, &json!({ "detail": NASTY }).to_string());
    let body = json!({"workflow": "odd", "input": { NASTY: NASTY }, "reference": NASTY, "reply_queue": "shop"});
    let id = whole.submit("a", &body).await;
    let task = stopped(&whole, &id, 1).await;
    assert_eq!(task.steps[0].output, Some(json!({ NASTY: NASTY })));
    assert_eq!(service.asked("second")["outputs"]["first"], json!({ NASTY: NASTY }));
    // White space and control characters are left out of an error.
    let kept = "\u{fffd}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}b";
    assert!(task.steps[1].error.as_deref().unwrap().contains(kept), "{:?}", task.steps[1].error);
    until("the alert", async || whole.events().iter().any(|event| event.detail.contains("reason")).then_some(())).await;

    let more = json!({"by": NASTY, "reason": NASTY, "input": { "again": NASTY }}).to_string();
    assert_eq!(post(&whole, &format!("/orders/{id}/actions/resubmit"), &more).await.0, 200);
    let again =
        |task: &Task| task.process_state() == ProcessState::Error && task.version > 5 && task.steps[1].attempt > 1;
    whole.task_once(&id, "failed again", again).await;
    assert_eq!(service.asked("second")["input"], json!({ "again": NASTY }));
    let more = json!({"by": NASTY, "reason": NASTY, "output": { "by hand": NASTY }}).to_string();
    assert_eq!(post(&whole, &format!("/orders/{id}/actions/mark-done"), &more).await.0, 200);
    whole.ends(&id, ProcessState::Processed).await;
    let more = json!({"by": NASTY, "reason": NASTY}).to_string();
    assert_eq!(post(&whole, &format!("/orders/{id}/actions/undo"), &more).await.0, 200);
    whole.ends(&id, ProcessState::Undone).await;
    assert_eq!(service.asked("un-first")["output"], json!({ NASTY: NASTY }));
    assert_eq!(service.asked("un-second")["output"], json!({ "by hand": NASTY }));
    assert_eq!(whole.set_aside(), 0);
    assert!(whole.queued("notices-shop") >= 4, "received, completed, failed, undone");
}

// A record that was saved can be read: everything that is nested deeper than limits.md says is refused wherever it
// enters.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_nested_too_deep_is_refused_at_every_door() {
    let service = Service::start().await;
    let whole = Whole::start(&[service.workflow()]).await;
    let order = |depth: usize| format!("{{\"workflow\": \"odd\", \"input\": {{\"a\": {}}}}}", nested(depth));
    for depth in [MAX_DEPTH, 124, 126, 5000] {
        let (status, problem) = post(&whole, "/orders", &order(depth)).await;
        let told = (&problem["code"], problem["detail"].as_str().unwrap_or_default().contains("nested"));
        assert_eq!((status, told), (400, (&json!("invalid_field"), true)), "{depth}: {problem}");
        let by_message = order(depth).replacen('{', "{\"idempotency_key\": \"k\", ", 1);
        let reason = set_aside(&whole, &by_message).await;
        assert!(reason.contains("nested"), "{depth}: {reason}");
    }
    // The deepest permitted nesting passes everywhere: a record, a request, the service, an answer, the next step, an
    // undo.
    service.answer("first", 200, &nested(MAX_DEPTH));
    let body = serde_json::from_str(&order(MAX_DEPTH - 1)).unwrap();
    let id = whole.submit("deepest", &body).await;
    whole.ends(&id, ProcessState::Processed).await;
    assert_eq!(service.asked("second")["outputs"]["first"].to_string(), nested(MAX_DEPTH));
    all_is_readable(&whole, &id).await;
    assert_eq!(act(&whole, &id, "undo", "").await.0, 200);
    // The answer to an undo is not stored, so it may be anything.
    service.answer("un-second", 200, &nested(500));
    whole.ends(&id, ProcessState::Undone).await;

    for depth in [MAX_DEPTH + 1, 125, 126, 127, 5000] {
        service.answer("first", 200, &nested(depth));
        let id = whole.submit(&format!("a-{depth}"), &json!({"workflow": "odd", "input": {}})).await;
        let task = stopped(&whole, &id, 0).await;
        assert!(task.steps[0].error.as_deref().unwrap().contains("nested"), "{:?}", task.steps[0].error);
        all_is_readable(&whole, &id).await;
        for (name, more) in [
            ("mark-done", format!(", \"output\": {}", nested(depth))),
            ("resubmit", format!(", \"input\": {{\"a\": {}}}", nested(depth))),
        ] {
            let (status, problem) = act(&whole, &id, name, &more).await;
            assert!((400..410).contains(&status) && problem.to_string().contains("nested"), "{name}: {problem}");
            let (_, answer) = act_on_many(&whole, name, &more).await;
            assert!(answer.to_string().contains("nested"), "{name}: {answer}");
        }
        assert_eq!(whole.task(&id).await.version, task.version, "nothing was changed");
        all_is_readable(&whole, &id).await;
        let more = format!(", \"output\": {}", nested(MAX_DEPTH));
        assert_eq!(act(&whole, &id, "mark-done", &more).await.0, 200);
        all_is_readable(&whole, &id).await;
    }
}

// What a parser would silently change is refused: a duplicate key, and a whole number beyond 64 bits.
#[tokio::test(flavor = "multi_thread")]
async fn keys_and_digits_are_kept_or_refused_at_every_door() {
    let service = Service::start().await;
    let external = format!(
        "name = \"gift\"\non_failure = \"error\"\n[[step]]\nname = \"wrap\"\nagent = \"{EXTERNAL}\"\ntimeout = \"60s\"\n"
    );
    let whole = Whole::start(&[service.workflow(), external]).await;
    let wrong = [
        (r#"{"a": {"b": 1, "b": 2}}"#, "a.b"),
        (r#"{"a": {"b": 1, "\u0062": 1}}"#, "a.b"),
        (r#"{"a": [18446744073709551616]}"#, "18446744073709551616"),
        (r#"{"a": [1e300, "99999999999999999999", -9223372036854775809]}"#, "-9223372036854775809"),
        (r#"{"a": {"b": 1e400}}"#, "beyond what a double holds"),
        // serde_json reads this as the number in the text; beside another key it writes something that it cannot read
        // again.
        (r#"{"a": {"$serde_json::private::RawValue": "18446744073709551616"}}"#, "$serde_json::private::RawValue"),
        (r#"{"a": {"b": 1, "$serde_json::private::RawValue": "x"}}"#, "$serde_json::private::RawValue"),
    ];
    for (input, named) in wrong {
        let order = format!("{{\"workflow\": \"odd\", \"input\": {input}}}");
        let (status, problem) = post(&whole, "/orders", &order).await;
        assert_eq!((status, &problem["code"]), (400, &json!("invalid_field")), "{problem}");
        assert!(problem.to_string().contains(named), "{problem}");
        assert!(problem["field"].as_str().unwrap().starts_with("input.a"), "{problem}");
        let reason = set_aside(&whole, &order.replacen('{', "{\"idempotency_key\": \"k\", ", 1)).await;
        assert!(reason.contains(named), "{reason}");

        service.answer("first", 200, input);
        let id = whole.submit(input, &json!({"workflow": "odd", "input": {}})).await;
        let task = stopped(&whole, &id, 0).await;
        assert!(task.steps[0].error.as_deref().unwrap().contains(named), "{:?}", task.steps[0].error);
        for (name, field) in [("mark-done", "output"), ("resubmit", "input")] {
            let more = format!(", \"{field}\": {input}");
            let (status, problem) = act(&whole, &id, name, &more).await;
            assert_eq!((status, problem.to_string().contains(named)), (400, true), "{problem}");
            let (status, problem) = act_on_many(&whole, name, &more).await;
            assert_eq!((status, problem.to_string().contains(named)), (400, true), "{problem}");
        }
        assert_eq!(whole.task(&id).await.version, task.version);

        // An external agent.
        let id = whole.submit(&format!("gift {input}"), &json!({"workflow": "gift", "input": {}})).await;
        reply(&whole, &id, input).await;
        let task = stopped(&whole, &id, 0).await;
        assert!(task.steps[0].error.as_deref().unwrap().contains(named), "{:?}", task.steps[0].error);
    }
    // The same at the top level, among the fields.
    let (status, problem) = post(&whole, "/orders", r#"{"workflow": "odd", "input": {}, "input": {"a": 1}}"#).await;
    assert_eq!(
        (status, &problem["code"], &problem["field"]),
        (400, &json!("invalid_field"), &json!("input")),
        "{problem}"
    );
    let by_message = r#"{"idempotency_key": "k", "workflow": "odd", "input": {}, "input": {"a": 1}}"#;
    assert!(set_aside(&whole, by_message).await.contains("input: occurs twice"));
    // A number that fits into 64 bits is kept to the last digit.
    let edge = json!({"a": [u64::MAX, i64::MIN, 9_007_199_254_740_993_u64, 1e300]});
    service.answer("first", 200, &edge.to_string());
    let id = whole.submit("edge", &json!({"workflow": "odd", "input": edge})).await;
    let task = whole.ended(&[id]).await.remove(0);
    assert_eq!((&task.steps[0].output, &service.asked("first")["input"]), (&Some(edge.clone()), &edge));
}

// Whatever an external agent reports about an attempt, the step accepts the outcome and names what cannot be read. The
// reply is not set aside: otherwise the step would wait for its deadline and be done again.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_that_cannot_be_read_settles_its_step() {
    let workflow = format!(
        "name = \"gift\"\non_failure = \"error\"\ntombstones = true\n[[step]]\nname = \"wrap\"\nagent = \"{EXTERNAL}\"\ntimeout = \"1h\"\n\
         retry = {{ max = 1 }}\nundo = {{ agent = \"{EXTERNAL}\" }}\n"
    );
    let whole = Whole::start(&[workflow]).await;
    let deep = format!("\"outcome\": \"done\", \"output\": {}", nested(5000));
    for (said, named) in [
        (r#""outcome": "done", "output": "\udce9""#, "surrogate"),
        (r#""outcome": "done", "output": {"a": 1e400}"#, "`output.a` is a number beyond"),
        (r#""outcome": "done", "output": {"a": 1}, "output": {"a": 1}"#, "`output` occurs twice"),
        (deep.as_str(), "`output` is nested too deep"),
        (r#""outcome": "failed", "error": "no file \udce9""#, "surrogate"),
        (r#""outcome": "failed""#, "missing field `error`"),
        (r#""outcome": "unavailable", "error": "later", "retry_after_ms": 1.5"#, "1.5"),
    ] {
        let key = format!("{named} {}", said.len());
        let id = whole.submit(&key, &json!({"workflow": "gift", "input": {}})).await;
        answer(&whole, &id, said).await;
        let task = stopped(&whole, &id, 0).await;
        let error = task.steps[0].error.as_deref().unwrap();
        assert!(error.contains(named) && error.contains("docs/agents.md"), "{error}");
        // Nothing of an undo's answer is stored, so its unreadable parts do not matter.
        if said.contains("done") {
            assert_eq!(act(&whole, &id, "undo", "").await.0, 200);
            answer(&whole, &id, said).await;
            whole.ends(&id, ProcessState::Undone).await;
        }
    }
    assert_eq!(whole.set_aside(), 0);
}

/// Receives the request of this order from the queue of the external agent, and replies `done` with this output.
async fn reply(whole: &Whole, id: &Id, output: &str) {
    answer(whole, id, &format!("\"outcome\": \"done\", \"output\": {output}")).await;
}

/// Receives the request and replies with other fields.
async fn answer(whole: &Whole, id: &Id, said: &str) {
    let queue = format!("agent-{EXTERNAL}");
    let is_of_order = |message: &Message| message.body().unwrap().contains(&id.0);
    let message = until("a request", async || whole.receive(&queue).await.into_iter().find(is_of_order)).await;
    let request: Value = serde_json::from_str(message.body().unwrap()).unwrap();
    let reply = format!(
        "{{\"type\": \"reply\", \"task_id\": {}, \"step\": {}, \"attempt\": {}, {said}}}",
        request["task_id"], request["step"], request["attempt"]
    );
    whole.send("replies", &reply).await;
    whole.delete(&queue, message).await;
}

/// Replaces the order's record with `record`, and leaves its columns.
async fn overwrite(whole: &Whole, id: &Id, record: &str) {
    let update = whole.clients.dynamodb.update_item().table_name(&whole.config().state_table);
    let update = update.key("pk", AttributeValue::S(id.0.clone())).update_expression("SET #task = :task");
    let update = update.expression_attribute_names("#task", "task");
    update.expression_attribute_values(":task", AttributeValue::S(record.into())).send().await.unwrap();
}

// A damaged record has a separate error, for that order and for no other.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_is_not_an_outage() {
    let service = Service::start().await;
    let whole = Whole::start(&[service.workflow()]).await;
    let order = r#"{"workflow": "odd", "input": {"n": 1}}"#;
    assert_eq!(post(&whole, "/orders", order).await.0, 202);
    let id = Id::derive(shared::order::DEFAULT_TENANT, "key");
    let other = whole.submit("other", &json!({"workflow": "odd", "input": {}})).await;
    whole.ended(&[id.clone(), other.clone()]).await;
    overwrite(&whole, &id, "{").await;
    for path in [
        format!("/orders/{id}"),
        format!("/orders/{id}/history"),
        format!("/orders/{id}?wait=5"),
        format!("/details/{id}"),
    ] {
        let problem = whole.get(&path).await;
        assert_eq!((&problem["status"], &problem["code"]), (&json!(500), &json!("unreadable")), "{path}: {problem}");
    }
    // Submitted again, over HTTP and by message, it is neither a second order nor an outage after which to retry.
    let (status, problem) = post(&whole, "/orders", order).await;
    assert_eq!((status, &problem["code"]), (500, &json!("unreadable")), "{problem}");
    let reason = set_aside(&whole, &order.replacen('{', "{\"idempotency_key\": \"key\", ", 1)).await;
    assert!(reason.contains("unreadable"), "{reason}");
    all_is_readable(&whole, &other).await;
    assert_eq!(whole.get("/orders").await["unreadable"][0]["order_id"], id.0);
}

// Earlier versions accepted what they could not read again: what one of them wrote is read, and its order continues.
#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_an_earlier_version_nested_too_deep_is_read() {
    let service = Service::start().await;
    let whole = Whole::start(&[service.workflow()]).await;
    service.answer("second", 400, "null");
    let id = whole.submit("old", &json!({"workflow": "odd", "input": {}})).await;
    let mut task = stopped(&whole, &id, 1).await;
    task.steps[0].output = serde_json::from_str(&nested(126)).ok();
    let record = serde_json::to_string(&task).unwrap();
    assert!(serde_json::from_str::<Task>(&record).is_err(), "the parser alone does not");
    overwrite(&whole, &id, &record).await;
    all_is_readable(&whole, &id).await;
    service.answer("second", 200, "null");
    assert_eq!(act(&whole, &id, "resubmit", "").await.0, 200);
    whole.ends(&id, ProcessState::Processed).await;
    assert_eq!(
        service.asked("second")["outputs"]["first"].to_string(),
        "null",
        "the service of this test reads 127 levels"
    );
    assert_eq!(whole.set_aside(), 0);
}
