//! The HTTP API: the routes of submission and of operators, over tables and queues in memory.

use aws_lambda_events::encodings::Body;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::auth::Scopes;
use operator::Operator;
use serde_json::{Value, json};
use shared::order::DEFAULT_TENANT;
use shared::order::Id;
use std::cell::OnceCell;
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, engine, schema, wall_clock};
use stepwarden_embedded::{Endpoints, Options};
use submit::Submit;

const AGENTS: [&str; 4] = ["inventory", "fraud", "payment", "shipping"];

/// The order of tenant `acme` that exists from the beginning.
const ACME_ORDER: &str = "ord_pzj2916ksgd269zzft9h6cndvv";

struct World {
    runtime: tokio::runtime::Runtime,
    endpoints: Endpoints,
    submit: Submit,
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
            "REPLY_QUEUES" => Some("shop=*".to_owned()),
            "ORDERS_TABLE" | "STATE_TABLE" | "QUEUE_PREFIX" | "EVENT_BUS" => Some(name.to_ascii_lowercase()),
            _ => None,
        };
        let mut config = Config::from_lookup(lookup).expect("a whole configuration");
        let (engine, workflows) = runtime.block_on(async {
            config.queue_prefix = schema::create(&clients, &config, "fuzz-", 30).await.expect("tables and queues");
            let engine = Arc::new(engine(&config, &clients, wall_clock()));
            let workflows = edge::workflows::built_in(&AGENTS, &Default::default()).expect("the shipped workflows");
            for workflow in workflows.values() {
                engine.use_workflow(workflow).await.expect("a table to keep it in");
            }
            (engine, workflows)
        });
        let submit = Submit {
            engine: Arc::clone(&engine.engine),
            workflows,
            reply_queues: config.reply_queues.clone(),
            shards: config.shards,
            scopes: Default::default(),
            queue_tenant: "default".into(),
            begins: None,
        };
        let operator = Operator::new(engine, &clients, &config, vec!["supervisor-0".into()]);
        let world = Self { runtime, endpoints, submit, operator };
        world.order_of_acme();
        world
    }

    /// Creates the order that exists from the beginning: `ACME_ORDER`.
    fn order_of_acme(&self) {
        let corpus = include_str!("../corpus/http/submit");
        let text = corpus.replace("idempotency-key: k-1", "idempotency-key: acme-1");
        let caller = Caller { has_token: true, may_order: true, tenant: Some("acme"), ..Caller::default() };
        let answer = self.answer(event(&caller, &text).expect("a request of the corpus"));
        let Some(Body::Text(body)) = answer.body else { panic!("{answer:?}") };
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!(body["order_id"], ACME_ORDER, "the corpus asks for this one");
    }

    /// Checks that `event`, which succeeded, was allowed. A call without a token was authorised by IAM.
    fn check_allowed(&self, caller: &Caller<'_>, event: &ApiGatewayV2httpRequest) {
        let path = event.raw_path.as_deref().unwrap_or("/");
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let is_operators = operator::http::takes(event) && parts[0] != "console";
        if is_operators {
            assert!(!caller.has_token || caller.is_operator, "{path} without the scope of operators");
        }
        if is_operators || parts.first() != Some(&"orders") {
            return;
        }
        assert!(!caller.has_token || caller.may_order, "{path} without the scope of submitters");
        if let Some(id) = parts.get(1).filter(|_| !caller.is_operator) {
            let id = Id::parse(id).expect("it was found");
            let task =
                self.runtime.block_on(self.submit.engine.store.load(&id)).expect("a table").expect("it is there");
            let own = if caller.has_token { caller.tenant } else { Some(DEFAULT_TENANT) };
            assert_eq!(Some(task.tenant.as_str()), own, "{path} is somebody else's");
        }
    }

    /// The counts that a refused request must not change.
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

/// The caller: the first line, if it is `AS` with the token's scopes and tenant. Without it the call has no token.
#[derive(Default)]
struct Caller<'a> {
    has_token: bool,
    is_operator: bool,
    may_order: bool,
    tenant: Option<&'a str>,
}

impl<'a> Caller<'a> {
    /// The caller, and the request below that line.
    fn of(text: &'a str) -> (Self, &'a str) {
        let Some((words, rest)) = text.strip_prefix("AS ").and_then(|text| text.split_once('\n')) else {
            return (Self::default(), text);
        };
        let mut caller = Self { has_token: true, ..Self::default() };
        for word in words.split(' ').filter(|word| !word.is_empty()) {
            match word {
                "operator" => caller.is_operator = true,
                "submit" => caller.may_order = true,
                tenant => caller.tenant = Some(tenant),
            }
        }
        (caller, rest)
    }

    /// The claims as API Gateway's authoriser passes them.
    fn authorizer(&self) -> Value {
        if !self.has_token {
            return Value::Null;
        }
        let Scopes { orders, operator, workflows, tenant_claim, .. } = Scopes::default();
        let scopes = [(self.may_order, orders), (self.is_operator, operator), (self.is_operator, workflows)];
        let scopes: Vec<String> = scopes.into_iter().filter_map(|(has, scope)| has.then_some(scope)).collect();
        let mut claims = serde_json::Map::from_iter([("scope".to_owned(), Value::from(scopes.join(" ")))]);
        claims.extend(self.tenant.map(|tenant| (tenant_claim, Value::from(tenant))));
        json!({"jwt": {"claims": claims, "scopes": null}})
    }
}

/// A request written as `METHOD PATH?QUERY`, lines of `name: value`, an empty line, and the body; of `caller`.
fn event(caller: &Caller<'_>, text: &str) -> Option<ApiGatewayV2httpRequest> {
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
        "requestContext": {"http": {"method": method, "path": path}, "authorizer": caller.authorizer()},
        "body": body,
        "isBase64Encoded": false,
    });
    // What API Gateway would not pass on, such as an invalid header.
    serde_json::from_value(event).ok()
}

/// The request is answered, and never with a fault of the server. A refusal has a listed code and wrote nothing. A
/// request that the token does not allow is refused.
pub fn request(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let (caller, text) = Caller::of(&text);
    let Some(event) = event(&caller, text) else { return false };
    WORLD.with(|world| {
        let world = world.get_or_init(World::new);
        let before = world.written();
        let answer = world.answer(event.clone());
        let status = answer.status_code;
        assert!((200..500).contains(&status), "{status} {:?} to {}", answer.body, String::from_utf8_lossy(bytes));
        if status < 400 {
            world.check_allowed(&caller, &event);
            return true;
        }
        assert_eq!(world.written(), before, "{status} and written: {:?}", answer.body);
        let Some(Body::Text(text)) = answer.body else { panic!("a refusal without words") };
        let problem: Value = serde_json::from_str(&text).expect("problem details are JSON");
        let listed = |&(code, of, _): &(&str, u16, &str)| problem["code"] == code && i64::from(of) == status;
        assert!(edge::problem::CODES.iter().any(listed), "{text}");
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
    if submit::input::check_order(&submission.input).is_err() {
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
