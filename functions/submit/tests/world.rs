//! Submit over embedded tables and queues, called as API Gateway calls it, with a clock that is a number.

use aws_lambda_events::http::HeaderMap;
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::message::{Outcome, Reply};
use shared::order::Id;
use shared::task::Task;
use shared::time::SignedDuration;
use shared::workflow::file::{Known, parse};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use stepwarden_aws::{Clients, Config, DynamoStore, engine, schema};
use stepwarden_embedded::{Call, Endpoints, Fault, FaultHook, Options};
use submit::problem::Problem;
use submit::{Submit, http, submission};

/// A workflow of one step.
pub const ONE: &str = "name = \"one\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";

pub type Item = HashMap<String, AttributeValue>;

pub struct World {
    pub submit: Submit,
    pub store: Arc<DynamoStore>,
    pub clients: Clients,
    pub endpoints: Endpoints,
    pub config: Config,
    pub now: Arc<AtomicI64>,
}

impl World {
    /// A system with this workflow, which is called `one` and whose only agent is `x`.
    pub async fn new(text: &str) -> Self {
        let endpoints = Endpoints::open(&Options::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let settings = [
            ("ORDERS_TABLE", "orders"),
            ("STATE_TABLE", "state"),
            ("QUEUE_PREFIX", "to be made"),
            ("EVENT_BUS", "default"),
            ("REPLY_QUEUES", "shop=default"),
            ("AGENTS", "x"),
            ("SHARDS", "1"),
            ("ORDER_BUCKETS", "1"),
            ("PUBLIC_URL", "https://orders.example"),
        ];
        let lookup = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut config = Config::from_lookup(lookup).unwrap();
        config.queue_prefix = schema::create(&clients, &config, "test-", 30).await.unwrap();
        let now = Arc::new(AtomicI64::new(1_795_251_600_000));
        let engine = engine(&config, &clients, contract::clock(&now));
        let submit = Submit {
            engine: engine.engine,
            workflows: Default::default(),
            reply_queues: config.reply_queues.clone(),
            shards: 1,
            scopes: Default::default(),
            queue_tenant: "acme".into(),
            begins: None,
        };
        let mut world = Self { submit, store: engine.store, clients, endpoints, config, now };
        world.deploy("one", text);
        world
    }

    /// The same, and submission stores orders with their first claims.
    pub async fn begins(text: &str) -> Self {
        let mut world = Self::new(text).await;
        world.submit.begins = Some(Default::default());
        world
    }

    /// Adds a workflow.
    pub fn deploy(&mut self, name: &str, text: &str) {
        let workflow = parse(&format!("{name}.toml"), text, Known { agents: &["x"], inputs: &[] }).unwrap();
        self.submit.workflows.insert(name.to_owned(), workflow);
    }

    /// Goes on as another instance, with a changed configuration.
    pub fn restart(&mut self, change: impl FnOnce(&mut Config)) {
        change(&mut self.config);
        let engine = engine(&self.config, &self.clients, contract::clock(&self.now));
        (self.submit.engine, self.store) = (engine.engine, engine.store);
    }

    pub fn later(&self, time: SignedDuration) {
        self.now.fetch_add(i64::try_from(time.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Submits an order of the workflow `one`.
    pub async fn accept(&self, input: Value) -> Id {
        self.order("default", "key-1", json!({"workflow": "one", "input": input})).await.unwrap()
    }

    /// The same, and the order begins.
    pub async fn begin(&self, input: Value) -> Id {
        let id = self.accept(input).await;
        self.wake(&id).await;
        id
    }

    pub async fn order(&self, tenant: &str, key: &str, body: Value) -> Result<Id, Problem> {
        let submission = submission::parse(body.to_string().as_bytes()).unwrap();
        self.submit.accept(tenant, key, submission).await
    }

    pub async fn task(&self, id: &Id) -> Task {
        self.submit.engine.store.load(id).await.unwrap().unwrap()
    }

    pub async fn handle(&self, id: &Id, event: Event) {
        self.submit.engine.handle(vec![(id.clone(), event)]).await.pop().unwrap().unwrap();
    }

    /// The first Wake of an order.
    pub async fn wake(&self, id: &Id) {
        self.handle(id, Event::Wake { seen: 0, hops: 0 }).await;
    }

    pub async fn reply(&self, id: &Id, step: &str, attempt: u32, outcome: Outcome) {
        self.handle(id, Event::Reply(Reply::new(id.clone(), step, attempt, outcome))).await;
    }

    /// The step is done, and its output is this.
    pub async fn done(&self, id: &Id, step: &str, output: Value) {
        self.reply(id, step, 1, Outcome::Done { output }).await;
    }

    /// The messages of a queue, which are then hidden.
    pub async fn drain(&self, queue: &str) -> Vec<Value> {
        let url = self.config.queue_url(queue);
        let mut all = Vec::new();
        loop {
            let receive = self.clients.sqs.receive_message().queue_url(&url).max_number_of_messages(10);
            let messages = receive.wait_time_seconds(0).send().await.unwrap().messages.unwrap_or_default();
            if messages.is_empty() {
                return all;
            }
            all.extend(messages.iter().map(|message| serde_json::from_str(message.body().unwrap()).unwrap()));
        }
    }

    /// The items of a table.
    pub async fn items(&self, table: &str) -> Vec<Item> {
        self.clients.dynamodb.scan().table_name(table).send().await.unwrap().items.unwrap_or_default()
    }

    /// Sends to queues whose URL contains `name` fail; all URLs contain `test-`.
    pub fn cut(&self, name: &'static str) {
        let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
            let is_hit = call.operation.starts_with("SendMessage") && String::from_utf8_lossy(call.body).contains(name);
            is_hit.then_some(Fault::InternalError)
        });
        self.endpoints.set_fault_hook(Some(hook));
    }

    /// No call fails any more.
    pub fn mend(&self) {
        self.endpoints.set_fault_hook(None);
    }
}

/// A call without a token; no key is sent for an empty one.
pub async fn call(world: &World, method: &str, path: &str, key: &str, body: &str) -> (i64, Value) {
    call_by(world, (method, path), key, body, Value::Null).await
}

/// A call with what the authoriser says of the caller.
pub async fn call_by(
    world: &World,
    (method, path): (&str, &str),
    key: &str,
    body: &str,
    authorizer: Value,
) -> (i64, Value) {
    let mut headers = json!({"content-type": "application/json"});
    if !key.is_empty() {
        headers["idempotency-key"] = json!(key);
    }
    let context = json!({"accountId": "123456789012", "authorizer": authorizer});
    let event = json!({"headers": headers, "body": body, "requestContext": context});
    let (status, _, text) = answer(world, (method, path), event).await;
    (status, serde_json::from_str(&text).unwrap_or_default())
}

/// The answer to an event of API Gateway for this route: status, headers and body.
pub async fn answer(world: &World, (method, path): (&str, &str), mut event: Value) -> (i64, HeaderMap, String) {
    event["rawPath"] = json!(path);
    event["requestContext"]["http"] = json!({"method": method, "path": path});
    let answer = http::handler(&world.submit, serde_json::from_value(event).unwrap()).await;
    let text = answer.body.map(|body| serde_json::to_value(body).unwrap());
    let text = text.and_then(|text| text.as_str().map(str::to_owned)).unwrap_or_default();
    (answer.status_code, answer.headers, text)
}
