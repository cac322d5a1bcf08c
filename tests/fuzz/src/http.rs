//! The HTTP API: the routes of submission and of operators, over tables and queues in memory.

use aws_lambda_events::encodings::Body;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use operator::Operator;
use serde_json::{Value, json};
use std::cell::OnceCell;
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, SqsMessenger, engine, schema, wall_clock};
use stepwarden_embedded::{Endpoints, Options};
use submit::Submit;

const AGENTS: [&str; 4] = ["inventory", "fraud", "payment", "shipping"];

struct World {
    runtime: tokio::runtime::Runtime,
    endpoints: Endpoints,
    submit: Submit<stepwarden_aws::DynamoStore, SqsMessenger>,
    operator: Operator,
}

thread_local! {
    static WORLD: OnceCell<World> = const { OnceCell::new() };
}

impl World {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let endpoints = Endpoints::open(&Options::default()).expect("endpoints in memory");
        let clients = Clients::embedded(endpoints.http_client());
        let lookup = |name: &str| match name {
            "AGENTS" => Some(AGENTS.join(",")),
            "REPLY_QUEUES" => Some("shop".to_owned()),
            "ORDERS_TABLE" | "STATE_TABLE" | "QUEUE_PREFIX" | "EVENT_BUS" => Some(name.to_ascii_lowercase()),
            _ => None,
        };
        let mut config = Config::from_lookup(lookup).expect("a whole configuration");
        let (engine, workflows) = runtime.block_on(async {
            config.queue_prefix = schema::create(&clients, &config, "fuzz-", 30).await.expect("tables and queues");
            let engine = Arc::new(engine(&config, &clients, wall_clock()));
            let workflows = submit::workflows::built_in(&AGENTS).expect("the shipped workflows");
            for workflow in workflows.values() {
                engine.use_workflow(workflow).await.expect("a table to keep it in");
            }
            (engine, workflows)
        });
        let submit = Submit {
            engine: Arc::clone(&engine),
            workflows,
            reply_queues: config.reply_queues.clone(),
            shards: config.shards,
            scopes: Default::default(),
            queue_tenant: "default".into(),
        };
        let operator = Operator::new(engine, &clients, &config, vec!["supervisor-0".into()]);
        Self { runtime, endpoints, submit, operator }
    }

    /// Everything that a refused request may not add to.
    fn written(&self) -> [u64; 3] {
        let counts = self.endpoints.counts();
        [counts.items_written, counts.messages_sent, counts.events_put]
    }

    fn answer(&self, event: ApiGatewayV2httpRequest) -> ApiGatewayV2httpResponse {
        self.runtime.block_on(async {
            if operator::http::takes(&event) {
                Box::pin(operator::http::handler(&self.operator, event)).await
            } else {
                Box::pin(submit::http::handler(&self.submit, event)).await
            }
        })
    }
}

/// A request written as `METHOD PATH?QUERY`, lines of `name: value`, an empty line, and the body.
fn event(text: &str) -> Option<ApiGatewayV2httpRequest> {
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let headers: serde_json::Map<String, Value> = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_ascii_lowercase(), Value::from(value.trim())))
        .collect();
    let event = json!({
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": query,
        "headers": headers,
        "requestContext": {"http": {"method": method, "path": path}},
        "body": body,
        "isBase64Encoded": false,
    });
    // What API Gateway would not pass on, such as a header that is none.
    serde_json::from_value(event).ok()
}

/// It is answered, never with a fault of ours; a refusal says what is wrong in a code that is listed, and wrote nothing.
pub fn request(bytes: &[u8]) -> bool {
    let Some(event) = event(&String::from_utf8_lossy(bytes)) else { return false };
    WORLD.with(|world| {
        let world = world.get_or_init(World::new);
        let before = world.written();
        let answer = world.answer(event);
        let status = answer.status_code;
        assert!((200..500).contains(&status), "{status} {:?} to {}", answer.body, String::from_utf8_lossy(bytes));
        if status < 400 {
            return true;
        }
        assert_eq!(world.written(), before, "{status} and written: {:?}", answer.body);
        let Some(Body::Text(text)) = answer.body else { panic!("a refusal without words") };
        let problem: Value = serde_json::from_str(&text).expect("problem details are JSON");
        let listed = |&(code, of, _): &(&str, u16, &str)| problem["code"] == code && i64::from(of) == status;
        assert!(stepwarden_aws::problem::CODES.iter().any(listed), "{text}");
        assert!(problem["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{text}");
        false
    })
}

/// The body of a submission: an order that is accepted is one that can be charged.
pub fn submission(bytes: &[u8]) -> bool {
    let submission = match submit::submission::parse(bytes) {
        Ok(submission) => submission,
        Err(problem) => {
            assert!((400..500).contains(&problem.status) && !problem.detail.is_empty(), "{problem:?}");
            return false;
        }
    };
    if submit::input::check(Some("order"), &submission.input).is_err() {
        return false;
    }
    let number = |value: &Value| i128::from(value.as_i64().expect("a whole number"));
    let lines = submission.input["lines"].as_array().expect("lines");
    assert!(!lines.is_empty() && lines.iter().all(|line| number(&line["quantity"]) >= 1));
    let amounts: i128 = lines.iter().map(|line| number(&line["amount_cents"])).sum();
    assert!(lines.iter().all(|line| number(&line["amount_cents"]) >= 0));
    assert_eq!(amounts + number(&submission.input["freight_cents"]), number(&submission.input["total_cents"]));
    true
}
