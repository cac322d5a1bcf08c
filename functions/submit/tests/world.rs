//! Submit over embedded tables and queues, called as API Gateway calls it.

use jiff::Timestamp;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::engine::Clock;
use shared::order::Id;
use shared::task::Task;
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, engine, schema};
use stepwarden_embedded::{Endpoints, Options};
use submit::{Submit, http, submission};

pub struct World {
    pub submit: Submit,
    pub endpoints: Endpoints,
    pub config: Config,
}

impl World {
    /// A system with this workflow, which is called `one` and whose only agent is `x`.
    pub async fn new(text: &str) -> Self {
        Self::with_clock(text, Arc::new(Timestamp::now)).await
    }

    /// The same by this clock.
    pub async fn with_clock(text: &str, clock: Clock) -> Self {
        let endpoints = Endpoints::open(&Options::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let settings = [
            ("ORDERS_TABLE", "orders"),
            ("STATE_TABLE", "state"),
            ("QUEUE_PREFIX", "to be made"),
            ("EVENT_BUS", "default"),
            ("AGENTS", "x"),
            ("SHARDS", "1"),
            ("PUBLIC_URL", "https://orders.example"),
        ];
        let lookup = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut config = Config::from_lookup(lookup).unwrap();
        config.queue_prefix = schema::create(&clients, &config, "test-", 30).await.unwrap();
        let workflow = parse("one.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap();
        let submit = Submit {
            engine: engine(&config, &clients, clock).engine,
            workflows: [("one".to_owned(), workflow)].into(),
            reply_queues: Default::default(),
            shards: 1,
            scopes: Default::default(),
            queue_tenant: "acme".into(),
            begins: None,
        };
        Self { submit, endpoints, config }
    }

    pub async fn accept(&self, input: Value) -> Id {
        let body = json!({"workflow": "one", "input": input}).to_string();
        let submission = submission::parse(body.as_bytes()).unwrap();
        self.submit.accept("default", "key-1", submission).await.unwrap()
    }

    pub async fn task(&self, id: &Id) -> Task {
        self.submit.engine.store.load(id).await.unwrap().unwrap()
    }

    pub async fn handle(&self, id: &Id, event: Event) {
        self.submit.engine.handle(vec![(id.clone(), event)]).await.pop().unwrap().unwrap();
    }
}

/// A call without a token; no key is sent for an empty one.
pub async fn call(submit: &Submit, method: &str, path: &str, key: &str, body: &str) -> (i64, Value) {
    call_by(submit, (method, path), key, body, Value::Null).await
}

/// A call with what the authoriser says of the caller.
pub async fn call_by(
    submit: &Submit,
    (method, path): (&str, &str),
    key: &str,
    body: &str,
    authorizer: Value,
) -> (i64, Value) {
    let mut headers = json!({"content-type": "application/json"});
    if !key.is_empty() {
        headers["idempotency-key"] = json!(key);
    }
    let event = json!({"rawPath": path, "headers": headers, "body": body, "isBase64Encoded": false,
        "requestContext": {"http": {"method": method, "path": path}, "authorizer": authorizer}});
    let answer = http::handler(submit, serde_json::from_value(event).unwrap()).await;
    let text = match &answer.body {
        Some(body) => serde_json::to_value(body).unwrap().as_str().unwrap_or_default().to_owned(),
        None => String::new(),
    };
    (answer.status_code, serde_json::from_str(&text).unwrap_or_default())
}
