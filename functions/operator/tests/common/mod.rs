//! The operator routes over embedded endpoints, for tests: tables, queues and bus in memory, a clock that is a number, and orders that
//! the engine's own events drive.

pub mod aws;

use aws_sdk_dynamodb::types::AttributeValue;
use operator::Operator;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::engine::Handled;
use shared::message::{Outcome, Reply};
use shared::order::{Id, Order};
use shared::task::{ProcessState, Submission, Task, shard_of};
use shared::time::Timestamp;
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use stepwarden_aws::{Clients, Config, engine, item, schema};
use stepwarden_embedded::{Call, Endpoints, Fault, Options};

pub const WORKFLOW: &str = r#"
name = "sample"
on_failure = "error"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
retry = { max = 2, backoff = ["5m"] }
undo = { agent = "x" }
[[step]]
name = "b"
agent = "y"
after = ["a"]
timeout = "10s"
"#;

/// The workflow in `text`.
pub fn parsed(text: &str) -> Workflow {
    parse("w.toml", text, Known { agents: &["x", "y"], inputs: &[] }).unwrap()
}

/// The sample workflow with another timeout of its last step.
pub fn with_timeout(seconds: u32) -> String {
    WORKFLOW.replace("after = [\"a\"]\ntimeout = \"10s\"", &format!("after = [\"a\"]\ntimeout = \"{seconds}s\""))
}

/// `body` with the fields of `more`.
pub fn with(mut body: Value, more: Value) -> Value {
    body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    body
}

/// A request as API Gateway sends it.
pub fn request(method: &str, path: &str, body: Value) -> Value {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let mut event = json!({
        "version": "2.0",
        "routeKey": "$default",
        "rawPath": path,
        "rawQueryString": query,
        "headers": {"content-type": "application/json"},
        "requestContext": {"http": {"method": method, "path": path}},
        "isBase64Encoded": false,
    });
    if !body.is_null() {
        event["body"] = Value::String(body.to_string());
    }
    event
}

/// What API Gateway knows of a caller with a token.
pub fn token(subject: &str, scope: &str) -> Value {
    json!({"jwt": {"claims": {"sub": subject, "tenant": "acme", "scope": scope}, "scopes": null}})
}

/// Status and detail of a refusal.
pub fn detail(answer: &(i64, Value)) -> (i64, &str) {
    (answer.0, answer.1["detail"].as_str().unwrap_or_else(|| panic!("{answer:?}")))
}

/// Ids in a list that answers with `order_id`, in its order.
pub fn names(all: &Value) -> Vec<String> {
    all.as_array().into_iter().flatten().map(|one| one["order_id"].as_str().unwrap().to_owned()).collect()
}

/// The same, sorted.
pub fn ids(all: &Value) -> Vec<String> {
    let mut ids = names(all);
    ids.sort();
    ids
}

pub fn sorted<const N: usize>(ids: [&Id; N]) -> Vec<String> {
    let mut ids = ids.map(|id| id.0.clone()).to_vec();
    ids.sort();
    ids
}

/// 21 November 2026, 09:00 UTC.
pub const START: i64 = 1_795_251_600_000;

pub struct World {
    pub operator: Operator,
    pub clients: Clients,
    pub config: Config,
    pub endpoints: Endpoints,
    pub workflow: Workflow,
    pub now: Arc<AtomicI64>,
}

impl World {
    pub async fn new() -> Self {
        let endpoints = Endpoints::open(&Options::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let settings = [
            ("ORDERS_TABLE", "orders"),
            ("STATE_TABLE", "state"),
            ("QUEUE_PREFIX", "to be made"),
            ("EVENT_BUS", "default"),
            ("REPLY_QUEUES", "shop=*"),
            ("AGENTS", "x,y"),
            ("ORDER_BUCKETS", "3"),
        ];
        let lookup = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut config = Config::from_lookup(lookup).unwrap();
        config.queue_prefix = schema::create(&clients, &config, "test-", 30).await.unwrap();
        let now = Arc::new(AtomicI64::new(START));
        let engine = Arc::new(engine(&config, &clients, contract::clock(&now)));
        let workflow = parsed(WORKFLOW);
        engine.use_workflow(&workflow).await.unwrap();
        let operator = Operator::new(engine, &clients, &config, vec!["supervisor".into()]);
        Self { operator, clients, config, endpoints, workflow, now }
    }

    pub fn now(&self) -> Timestamp {
        self.operator.engine.now()
    }

    pub fn later(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::Relaxed);
    }

    pub async fn submit(&self, key: &str, tenant: &str) -> Id {
        self.submit_to(&self.workflow, key, tenant).await
    }

    pub async fn submit_to(&self, workflow: &Workflow, key: &str, tenant: &str) -> Id {
        let (order, task) = self.order(workflow, key, tenant);
        self.operator.engine.create(&order, &task).await.unwrap();
        order.id
    }

    /// An order that is not submitted yet.
    pub fn order(&self, workflow: &Workflow, key: &str, tenant: &str) -> (Order, Task) {
        let id = Id::derive(tenant, key);
        let submission = Submission {
            tenant: tenant.into(),
            reference: Some(key.into()),
            reply_queue: Some("shop".into()),
            shard: shard_of(&id, self.config.shards, false),
            ..contract::submission(id.clone())
        };
        let task = Task::new(submission, workflow, self.now());
        let order = Order {
            id,
            tenant: tenant.into(),
            idempotency_key: key.into(),
            hash: String::new(),
            created_at: self.now(),
            input: json!({"n": 1}),
        };
        (order, task)
    }

    pub async fn event(&self, id: &Id, event: Event) -> Handled {
        self.operator.engine.handle(vec![(id.clone(), event)]).await.pop().unwrap().unwrap()
    }

    pub async fn wake(&self, id: &Id) {
        self.event(id, Event::Wake { seen: 0, hops: 0 }).await;
    }

    pub async fn reply(&self, id: &Id, step: &str, outcome: Outcome) {
        let task = self.task(id).await;
        let workflow = self.operator.engine.workflow(&task.workflow_hash).await.unwrap();
        let attempt = task.steps[workflow.position(step).unwrap()].attempt;
        let reply = Reply::new(id.clone(), step, attempt, outcome);
        self.event(id, Event::Reply(reply)).await;
    }

    pub async fn done(&self, id: &Id, step: &str, output: Value) {
        self.reply(id, step, Outcome::Done { output }).await;
    }

    /// An order whose step `a` failed permanently.
    pub async fn in_error(&self, key: &str, tenant: &str) -> Id {
        let id = self.submit(key, tenant).await;
        self.wake(&id).await;
        self.reply(&id, "a", Outcome::Failed { error: "no such card".into() }).await;
        assert_eq!(self.task(&id).await.process_state(), ProcessState::Error);
        id
    }

    pub async fn task(&self, id: &Id) -> Task {
        use shared::ports::StateStore;
        self.operator.engine.store.load(id).await.unwrap().unwrap()
    }

    /// Replaces the order's record with a text that is no record, and leaves its columns.
    pub async fn damage(&self, id: &Id) {
        self.write(id, "task", Some(AttributeValue::S(id.0.clone()))).await;
    }

    /// Takes the record of an order away, as its time to live does. Its id stays.
    pub async fn expire(&self, id: &Id) {
        let (table, used) = (&self.config.state_table, item::used_id(&self.task(id).await));
        self.clients.dynamodb.put_item().table_name(table).set_item(Some(used)).send().await.unwrap();
        self.take_away(id).await;
    }

    /// Calls of `operation`, or of those whose names begin so, meet `fault`, this many times.
    pub fn fail(&self, operation: &'static str, fault: Fault, times: usize) {
        let left = AtomicUsize::new(times);
        self.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
            let is_hit = call.operation.starts_with(operation)
                && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
            is_hit.then_some(fault)
        })));
    }

    pub async fn call(&self, method: &str, path: &str, body: Value) -> (i64, Value) {
        self.answered(request(method, path, body)).await
    }

    /// As a caller whom API Gateway knows.
    pub async fn call_as(&self, authorizer: Value, method: &str, path: &str, body: Value) -> (i64, Value) {
        let mut event = request(method, path, body);
        event["requestContext"]["authorizer"] = authorizer;
        self.answered(event).await
    }

    /// Status and body of the answer.
    pub async fn answered(&self, event: Value) -> (i64, Value) {
        let answer = self.answer(event).await;
        let body = answer["body"].as_str().map_or(Value::Null, |body| serde_json::from_str(body).unwrap());
        (answer["statusCode"].as_i64().unwrap(), body)
    }

    /// The answer as API Gateway gets it.
    pub async fn answer(&self, event: Value) -> Value {
        let event = serde_json::from_value(event).unwrap();
        assert!(operator::http::takes(&event), "{event:?}");
        serde_json::to_value(operator::http::handler(&self.operator, event).await).unwrap()
    }

    pub async fn get(&self, path: &str) -> Value {
        let (status, body) = self.call("GET", path, Value::Null).await;
        assert_eq!(status, 200, "{body}");
        body
    }

    pub async fn post(&self, path: &str, body: Value) -> (i64, Value) {
        self.call("POST", path, body).await
    }

    pub async fn act(&self, id: &Id, name: &str, more: Value) -> (i64, Value) {
        let body = with(json!({"by": "ann", "reason": "ticket 7"}), more);
        self.post(&format!("/orders/{id}/actions/{name}"), body).await
    }

    /// Keeps a definition, and returns its hash.
    pub async fn put(&self, toml: &str) -> String {
        let (status, body) = self.post("/workflows", json!({"by": "ada", "reason": "x", "toml": toml})).await;
        assert_eq!(status, 200, "{body}");
        body["hash"].as_str().unwrap().to_owned()
    }

    /// The pages of a list of orders.
    pub async fn pages(&self, query: &str) -> Vec<Value> {
        let (mut pages, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get(&format!("/orders?{query}{cursor}")).await;
            let next = page["next"].as_str().map(|next| next.bytes().map(|b| format!("%{b:02x}")).collect::<String>());
            pages.push(page);
            assert!(pages.len() < 200, "it ends");
            let Some(next) = next else { return pages };
            cursor = format!("&cursor={next}");
        }
    }

    /// Bodies of the messages in a queue, which are deleted.
    pub async fn drain(&self, name: &str) -> Vec<Value> {
        let url = self.config.queue_url(name);
        let mut all = Vec::new();
        loop {
            let request = self.clients.sqs.receive_message().queue_url(&url).max_number_of_messages(10);
            let messages = request.wait_time_seconds(0).send().await.unwrap().messages.unwrap_or_default();
            if messages.is_empty() {
                return all;
            }
            for message in messages {
                all.push(serde_json::from_str(message.body().unwrap()).unwrap_or(json!(message.body())));
                let delete = self.clients.sqs.delete_message().queue_url(&url);
                delete.set_receipt_handle(message.receipt_handle).send().await.unwrap();
            }
        }
    }

    pub async fn send(&self, name: &str, body: &str) {
        let url = self.config.queue_url(name);
        self.clients.sqs.send_message().queue_url(url).message_body(body).send().await.unwrap();
    }

    /// An item of the state table as it is stored.
    pub async fn stored(&self, pk: impl ToString) -> item::Item {
        let get = self.clients.dynamodb.get_item().table_name(&self.config.state_table);
        get.key("pk", AttributeValue::S(pk.to_string())).send().await.unwrap().item.unwrap()
    }

    /// Writes `value` as an attribute of such an item, or removes the attribute.
    pub async fn write(&self, pk: impl ToString, name: &str, value: Option<AttributeValue>) {
        let update = self.clients.dynamodb.update_item().table_name(&self.config.state_table);
        let update = update.key("pk", AttributeValue::S(pk.to_string())).expression_attribute_names("#name", name);
        let update = match value {
            Some(value) => update.update_expression("SET #name = :value").expression_attribute_values(":value", value),
            None => update.update_expression("REMOVE #name"),
        };
        update.send().await.unwrap();
    }

    /// Takes such an item away.
    pub async fn take_away(&self, pk: impl ToString) {
        let delete = self.clients.dynamodb.delete_item().table_name(&self.config.state_table);
        delete.key("pk", AttributeValue::S(pk.to_string())).send().await.unwrap();
    }
}
