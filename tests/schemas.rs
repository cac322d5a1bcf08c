//! Goal: docs/schemas describes exactly the messages that are sent. Method: full and minimal messages of every type,
//! written by the types themselves, must fit the schema; they must have exactly the fields that the schema names; and
//! the schema must refuse what the readers refuse. The same for what the system really sends, what earlier versions
//! sent, and the corpus of the fuzz tests.
//!
//! A new field in a type breaks `full` below: add the field there and to the schema.

use crate::support::page::{read, root};
use crate::support::{EXTERNAL, Whole, until};
use boon::{Compiler, SchemaIndex, Schemas};
use serde_json::{Map, Value, json};
use shared::expression::{Expression, Mapping, Template};
use shared::message::{
    AlertEvent, Cancel, Heartbeat, HistoryEntry, Notice, NoticeKind, Outcome, Reply, Request, Strained, ToScheduler,
};
use shared::order::Id;
use shared::retry::Calls;
use shared::step::{Direction, FailureKind};
use shared::task::{Priority, ProcessState};
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::aws::Aws;
use shared::workflow::http::{Body, Http, Status};
use shared::workflow::poll::Look;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use stepwarden_aws::messenger::{AGENT_ALERT, MESSAGE_ALERT, ORDER_ALERT};

fn files(folder: &str) -> Vec<PathBuf> {
    let mut all: Vec<_> = std::fs::read_dir(root().join(folder)).unwrap().map(|file| file.unwrap().path()).collect();
    all.sort();
    all
}

fn schema(name: &str) -> Value {
    serde_json::from_str(&read(format!("docs/schemas/{name}.json"))).unwrap()
}

/// A valid schema, ready for use.
struct Validator(Schemas, SchemaIndex);

impl Validator {
    fn new(schema: &Value) -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.enable_format_assertions();
        let place = format!("https://stepwarden.example/{}", schema["$id"].as_str().unwrap());
        compiler.add_resource(&place, schema.clone()).unwrap();
        // This validates the schema against the schema of schemas.
        let index = compiler.compile(&place, &mut schemas).unwrap_or_else(|e| panic!("{e:#}"));
        Self(schemas, index)
    }

    /// What is wrong with `message`, if anything is.
    fn problem(&self, message: &Value) -> Option<String> {
        self.0.validate(message, self.1).err().map(|e| format!("{e:#}"))
    }
}

fn problem(name: &str, message: &Value) -> Option<String> {
    Validator::new(&schema(name)).problem(message)
}

fn fits(name: &str, message: &Value) {
    if let Some(problem) = problem(name, message) {
        panic!("{name}: {problem}\n{message:#}");
    }
}

/// The schema, changed to refuse fields that it does not name.
fn closed(mut schema: Value) -> Value {
    fn close(value: &mut Value) {
        match value {
            Value::Object(all) => {
                if all.contains_key("properties") && all.get("type") == Some(&json!("object")) {
                    all.entry("additionalProperties").or_insert(json!(false));
                }
                all.values_mut().for_each(close);
            }
            Value::Array(all) => all.iter_mut().for_each(close),
            _ => {}
        }
    }
    close(&mut schema);
    schema
}

fn at() -> Timestamp {
    "2027-01-15T08:00:00.123Z".parse().unwrap()
}

fn id() -> Id {
    Id("ord_2nyhqerkrecszc0v13y8k52pj0".into())
}

fn request(direction: Direction) -> Request {
    let is_undo = direction == Direction::Undo;
    let http = Http {
        url: Template::literal("https://crm.example/{order_id}"),
        method: "PUT".into(),
        query: BTreeMap::from([("of".into(), Template::literal("all"))]),
        headers: BTreeMap::from([("authorization".into(), Template::literal("{secret:crm}"))]),
        body: Some(Body::Form),
        output: Some("/id".into()),
        keep: Some(Mapping::from_json(&json!({"id": "${answer.id}"})).unwrap()),
        done: vec![Status::Code(409)],
        transient: vec![Status::Class(5)],
        permanent: vec![Status::Class(4)],
    };
    Request {
        task_id: id(),
        step: "charge".into(),
        agent: "http".into(),
        pool: Some("payment-b".into()),
        http: Some(http.clone()),
        call: Some(http.clone()),
        held: Some(http),
        aws: Some(Aws {
            action: "lambda:Invoke".into(),
            function: Some("stock".into()),
            envelope: true,
            keep: Some(Mapping::from_json(&json!({"id": "${answer.id}"})).unwrap()),
            done: vec!["Gone".into()],
            transient: vec!["Busy".into()],
            permanent: vec!["OutOfStock".into()],
        }),
        look: Some(Look {
            done: Expression::condition("answer.state == 'done'").unwrap(),
            failed: Some(Expression::condition("answer.state == 'failed'").unwrap()),
        }),
        callback: Some("https://orders.example/callbacks/ord_1/charge/0af7651916cd43dd8448eb211c80319c".into()),
        accept: Some(Expression::condition("status == 202").unwrap()),
        heartbeat: Some(Heartbeat {
            url: "https://orders.example/heartbeats/ord_1/charge/2/0af7651916cd43dd8448eb211c80319c".into(),
            every_ms: 60_000,
        }),
        delay_ms: 5_000,
        direction,
        attempt: 2,
        reminder: Some(3),
        idempotency_key: "ord_1:charge:do".into(),
        complete_by: at(),
        calls: Calls { attempts: 5, base: SignedDuration::from_millis(100), cap: SignedDuration::from_hours(1) },
        tenant: "acme".into(),
        priority: Priority::High,
        input: json!({"total_cents": 5}),
        outputs: BTreeMap::from([("reserve".into(), json!(1))]),
        output: is_undo.then(|| json!({"id": 7})),
        undoes: is_undo.then(|| "ord_1:charge:do".into()),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
    }
}

fn reply(outcome: Outcome) -> ToScheduler {
    ToScheduler::Reply(Reply {
        queued_ms: Some(5),
        status: Some(409),
        answer: Some(json!({"code": "duplicate"})),
        kind: Some(FailureKind::Mistake),
        unsure: true,
        looked: true,
        uncalled: true,
        ..Reply::to(&request(Direction::Do), outcome)
    })
}

fn value<T: serde::Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap()
}

/// Every type with every field that it has, and with as few as it can have.
fn full() -> Vec<(&'static str, Vec<Value>)> {
    let small = Request {
        pool: None,
        http: None,
        call: None,
        held: None,
        aws: None,
        traceparent: None,
        outputs: BTreeMap::new(),
        priority: Priority::Low,
        agent: "payment".into(),
        ..request(Direction::Do)
    };
    let error = || "why".to_owned();
    let entry = HistoryEntry {
        at: at(),
        event: "step_failed".into(),
        step: Some("charge".into()),
        attempt: Some(1),
        detail: Some(error()),
    };
    let notice = Notice {
        queue: "shop".into(),
        kind: NoticeKind::Failed,
        order_id: id(),
        tenant: "acme".into(),
        workflow: "order".into(),
        reference: Some("A-1".into()),
        seq: 7,
        at: at(),
        state: ProcessState::Undoing,
        step: Some("charge".into()),
        reason: Some(error()),
        undo_from: Some(at()),
        traceparent: request(Direction::Do).traceparent,
        history: vec![entry.clone(), HistoryEntry { step: None, attempt: None, detail: None, ..entry }],
    };
    let alert = AlertEvent {
        order_id: id(),
        workflow: "order".into(),
        tenant: "acme".into(),
        step: Some("charge".into()),
        attempts: 3,
        reason: error(),
        last_error: Some(error()),
        version: 9,
        resubmit: "stepwarden resubmit".into(),
        runbook: "docs/runbook.md#order-in-error".into(),
    };
    let strained = Strained {
        agent: "payment".into(),
        since: at(),
        held: 10,
        looked_at: 20,
        stretch: 2,
        pause: "stepwarden pause-agent".into(),
        resume: "stepwarden resume-agent".into(),
        runbook: "docs/runbook.md#agent-strained".into(),
    };
    let submission = json!({"workflow": "gift", "input": {}, "reference": "A-1", "labels": ["vip"], "reply_queue": "shop", "priority": "low"});
    let mut message = submission.clone();
    message["idempotency_key"] = json!("key");
    message["traceparent"] = json!("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
    let nothing = json!({"workflow": "gift", "input": {}, "reference": null, "reply_queue": null});
    vec![
        ("request", vec![value(&request(Direction::Do)), value(&request(Direction::Undo)), value(&small)]),
        (
            "reply",
            vec![
                value(&reply(Outcome::Done { output: json!({"id": 7}) })),
                value(&reply(Outcome::Failed { error: error() })),
                value(&reply(Outcome::Unavailable { error: error(), retry_after_ms: Some(5) })),
                value(&reply(Outcome::Unavailable { error: error(), retry_after_ms: None })),
                value(&reply(Outcome::Accepted { output: json!({"id": 7}) })),
                value(&reply(Outcome::NotYet { why: error() })),
                value(&reply(Outcome::Deferred { error: error(), retry_after_ms: 5 })),
            ],
        ),
        ("cancel", vec![value(&ToScheduler::Cancel(Cancel { task_id: id(), by: "somebody".into(), reason: error() }))]),
        ("submission", vec![submission, nothing]),
        ("submission-message", vec![message]),
        (
            "event-message",
            vec![json!({"event": "paid", "order_id": id(), "idempotency_key": "key", "data": {"cents": 5}})],
        ),
        (
            "notice",
            vec![
                value(&notice),
                value(&Notice {
                    reference: None,
                    step: None,
                    reason: None,
                    undo_from: None,
                    traceparent: None,
                    history: vec![],
                    ..notice
                }),
            ],
        ),
        ("alert-order", vec![value(&alert), value(&AlertEvent { step: None, last_error: None, ..alert })]),
        ("alert-agent", vec![value(&strained)]),
        (
            "alert-message",
            vec![
                json!({"queue": "replies", "message_id": "m", "reason": "r", "bytes": 5, "runbook": "docs/runbook.md#x"}),
            ],
        ),
    ]
}

/// Whether the program reads such a message; `None` for messages that it only writes.
fn is_read(name: &str, message: &Value) -> Option<bool> {
    let text = message.to_string();
    match name {
        "request" => Some(serde_json::from_value::<Request>(message.clone()).is_ok()),
        "reply" => Some(matches!(serde_json::from_value(message.clone()), Ok(ToScheduler::Reply(_)))),
        "cancel" => Some(matches!(serde_json::from_value(message.clone()), Ok(ToScheduler::Cancel(_)))),
        "submission" => Some(submit::submission::parse(text.as_bytes()).is_ok()),
        "submission-message" => Some(submit::queue::parse(&text).is_ok()),
        "event-message" => Some(submit::queue::parse_event(&text).is_ok()),
        _ => None,
    }
}

#[test]
fn every_schema_is_one_and_has_messages_here() {
    let mut there: Vec<_> =
        files("docs/schemas").iter().map(|f| f.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    there.sort();
    let mut here: Vec<_> = full().iter().map(|(name, _)| (*name).to_owned()).collect();
    here.sort();
    assert_eq!(there, here);
    for name in there {
        let schema = schema(&name);
        Validator::new(&schema);
        assert_eq!(
            (&schema["$id"], &schema["$schema"]),
            (&json!(format!("{name}.json")), &json!("https://json-schema.org/draft/2020-12/schema"))
        );
        let page = read("docs/agents.md");
        assert!(page.contains(&format!("schemas/{name}.json")), "docs/agents.md does not link {name}");
    }
}

/// Texts that may have any length, of which only the beginning is kept.
const ANY_LENGTH: [&str; 4] =
    ["reply/properties/error", "reply/properties/why", "cancel/properties/by", "cancel/properties/reason"];

// Every text has a pattern or a maximum length, so that readers can allocate for it.
#[test]
fn every_text_is_bounded() {
    fn walk(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(all) => {
                let is_text =
                    |t: &Value| t == "string" || t.as_array().is_some_and(|all| all.contains(&json!("string")));
                let bounds = ["maxLength", "enum", "const", "format", "pattern"];
                if all.get("type").is_some_and(is_text) && !bounds.iter().any(|bound| all.contains_key(*bound)) {
                    found.push(at.to_owned());
                }
                all.iter().for_each(|(name, one)| walk(one, &format!("{at}/{name}"), found));
            }
            Value::Array(all) => all.iter().for_each(|one| walk(one, at, found)),
            _ => {}
        }
    }
    let mut found = Vec::new();
    for (name, _) in full() {
        walk(&schema(name), name, &mut found);
    }
    assert_eq!(found, ANY_LENGTH);
}

#[test]
fn types_and_schemas_name_the_same_fields() {
    for (name, messages) in full() {
        let schema = schema(name);
        let strict = Validator::new(&closed(schema.clone()));
        for message in &messages {
            if let Some(problem) = strict.problem(message) {
                panic!("{name}: {problem}: add the field to docs/schemas/{name}.json\n{message:#}");
            }
        }
        let named: BTreeSet<_> = schema["properties"].as_object().unwrap().keys().collect();
        let written: BTreeSet<_> = messages.iter().flat_map(|m| m.as_object().unwrap().keys()).collect();
        assert_eq!(named, written, "{name}: docs/schemas/{name}.json names what no message holds");
    }
}

// The schema refuses a missing field, or one of another type, exactly where the reader refuses it.
#[test]
fn schemas_refuse_what_readers_refuse() {
    let mut refused = 0;
    for (name, messages) in full() {
        let required: BTreeSet<String> = serde_json::from_value(schema(name)["required"].clone()).unwrap();
        for message in &messages {
            let fields: Map<String, Value> = message.as_object().unwrap().clone();
            for field in fields.keys() {
                let mut less = message.clone();
                less.as_object_mut().unwrap().remove(field);
                let is_good = problem(name, &less).is_none();
                assert!(!is_good || !required.contains(field));
                // The schema requires what the system always writes, even if a reader accepts a message without it.
                if let Some(is_read) = is_read(name, &less).filter(|_| name != "request") {
                    assert_eq!(is_good, is_read, "{name} without `{field}`");
                }
                let mut other = message.clone();
                other[field] = json!([[]]);
                let is_any = match (name, field.as_str()) {
                    ("submission" | "submission-message", "input") => false,
                    // An order is not refused for a malformed trace context.
                    (_, "input" | "output" | "answer") | ("submission-message", "traceparent") => true,
                    _ => false,
                };
                let is_good = problem(name, &other).is_none();
                assert_eq!(is_good, is_any, "{name}: `{field}` is [[]]");
                // The workflow decides about an input, and also checks that it is an object.
                if let Some(is_read) = is_read(name, &other).filter(|_| field != "input") {
                    assert_eq!(is_read, is_any, "{name}: `{field}` is [[]]");
                }
                refused += usize::from(!is_good);
            }
            let mut more = message.clone();
            more["of_a_later_version"] = json!(1);
            let is_closed = name.starts_with("submission") || name == "event-message";
            assert_eq!(problem(name, &more).is_none(), !is_closed, "{name}");
            if let Some(is_read) = is_read(name, &more) {
                assert_eq!(is_read, !is_closed, "{name}");
            }
        }
    }
    assert!(refused > 50, "{refused}");
    let wrong = [
        ("reply", json!({"outcome": "wrapped"})),
        ("reply", json!({"type": "answer"})),
        ("reply", json!({"attempt": 0})),
        ("request", json!({"complete_by": "soon"})),
        ("request", json!({"direction": "forward"})),
        ("request", json!({"direction": "undo"})),
        ("notice", json!({"kind": "done"})),
        ("notice", json!({"state": "processed"})),
        ("submission", json!({"priority": "urgent"})),
        ("submission-message", json!({"idempotency_key": ""})),
        ("event-message", json!({"idempotency_key": ""})),
        ("event-message", json!({"order_id": "x"})),
    ];
    let full = full();
    for (name, change) in wrong {
        let mut message = full.iter().find(|(n, _)| *n == name).unwrap().1[0].clone();
        message.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        assert!(problem(name, &message).is_some(), "{name}: {change}");
    }
}

// What `stepwarden-agent` and the engine both know is the same.
#[test]
fn an_agent_reads_a_request_whole_and_has_the_limits_of_the_engine() {
    assert_eq!(stepwarden_agent::attempt::MAX_OUTPUT, shared::outputs::MAX_BESIDE);
    assert_eq!(stepwarden_agent::attempt::MAX_DEPTH, shared::json::MAX_DEPTH);
    let mut sent = value(&request(Direction::Undo));
    for not_for_agents in ["http", "call", "held", "aws", "look", "accept", "pool", "delay_ms", "reminder"] {
        sent.as_object_mut().unwrap().remove(not_for_agents).unwrap();
    }
    let read: stepwarden_agent::message::Request = serde_json::from_value(sent.clone()).unwrap();
    assert_eq!(value(&read), sent);
}

#[test]
fn what_earlier_versions_sent_and_the_corpus_fit() {
    let mut seen = BTreeMap::<&str, usize>::new();
    let mut check = |name: &'static str, message: &Value| {
        fits(name, message);
        *seen.entry(name).or_default() += 1;
    };
    for version in ["first", "second"] {
        for file in files(&format!("tests/data/recorded/{version}")) {
            let message = || serde_json::from_str::<Value>(&read(&file)).unwrap();
            match file.file_stem().unwrap().to_str().unwrap().split('-').next().unwrap() {
                "request" => check("request", &message()),
                "reply" => check("reply", &message()),
                "notice" => check("notice", &message()),
                _ => {}
            }
        }
    }
    for (folder, name) in [
        ("request", "request"),
        ("to_scheduler", "reply"),
        ("submission", "submission"),
        ("order_by_message", "submission-message"),
    ] {
        for file in files(&format!("tests/fuzz/corpus/{folder}")) {
            let Ok(message) = serde_json::from_str::<Value>(&read(&file)) else { continue };
            match message["type"].as_str() {
                Some("wake") => {}
                Some("cancel") => check("cancel", &message),
                _ if is_read(name, &message) == Some(true) => check(name, &message),
                _ => {}
            }
        }
    }
    for name in ["request", "reply", "notice", "cancel", "submission", "submission-message"] {
        assert!(seen.contains_key(name), "no {name} among them: {seen:?}");
    }
}

// What the running system sends: requests, replies, notices and alerts, each as it is read from its queue or bus.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_system_sends_fits() {
    let workflow = format!(
        "name = \"gift\"\non_failure = \"error\"\n[[step]]\nname = \"pick\"\nagent = \"noop\"\ntimeout = \"30s\"\n\
         [[step]]\nname = \"wrap\"\nagent = \"{EXTERNAL}\"\nafter = [\"pick\"]\ntimeout = \"30s\"\n"
    );
    let whole = Whole::start(&[workflow]).await;
    let body = json!({"workflow": "gift", "input": {"paper": "red"}, "reply_queue": "shop", "reference": "A-1"});
    fits("submission", &body);
    let id = whole.submit("one", &body).await;
    let request = whole.take(&format!("agent-{EXTERNAL}"), 1).await.remove(0);
    fits("request", &request);
    let reply = json!({
        "type": "reply", "task_id": id, "step": "wrap", "attempt": 1, "outcome": "failed", "error": "no paper",
    });
    fits("reply", &reply);
    for body in [reply.to_string(), "wrapped!".into()] {
        whole.send("replies", &body).await;
    }
    whole.task_once(&id, "in Error and told", |t| t.process_state() == ProcessState::Error && t.alert.is_none()).await;
    until("a message is set aside", async || (whole.set_aside() == 1).then_some(())).await;
    for notice in whole.take("notices-shop", 3).await {
        fits("notice", &notice);
    }
    let alerts = until("both alerts", async || Some(whole.events()).filter(|events| events.len() >= 2)).await;
    for event in alerts {
        let name = match event.detail_type.as_str() {
            ORDER_ALERT => "alert-order",
            AGENT_ALERT => "alert-agent",
            MESSAGE_ALERT => "alert-message",
            other => panic!("no schema for {other}"),
        };
        fits(name, &serde_json::from_str(&event.detail).unwrap());
    }
    // A reply of one of the system's own agents, before it is read.
    whole.system.pause_agent("replies", true);
    whole.submit("two", &body).await;
    for reply in whole.take("replies", 1).await {
        fits("reply", &reply);
    }
}
