//! The HTTP API of orders, behind API Gateway (payload format 2.0).

use crate::Submit;
use crate::callbacks;
use crate::events;
use crate::heartbeats;
use crate::links;
use crate::problem::{self, Problem};
use crate::submission;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::auth;
use edge::http::{answer, body, check_media_type, idempotency_key, is_known, json_answer, refuse, traced, traceparent};
use edge::query;
use edge::roles::Seen;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::json;
use shared::message::HistoryEntry;
use shared::order::Id;
use shared::ports::Error;
use shared::task::Task;
use shared::view::Status;
use shared::workflow::Workflow;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_aws::BoxFuture;
use stepwarden_aws::traces;
use tokio::time::{Instant, sleep};

/// The OpenAPI document of the whole API.
pub const OPENAPI: &str = include_str!("../../../docs/openapi.json");
/// Longest `?wait=` that is accepted, in seconds: well below API Gateway's 30 s.
pub const MAX_WAIT_S: usize = 20;
/// First and longest pause between two checks of a long poll. It grows by half each time: a wait of 20 s costs 17
/// reads.
const LOOK: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// The answer to an accepted order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Accepted {
    /// The order.
    pub order_id: Id,
    /// Path of the order's status, also in the header `Location`.
    pub status_url: String,
}

/// What happened to an order: at most its first 20 and its last 180 entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct History {
    /// The order.
    pub order_id: Id,
    /// What happened, oldest first.
    pub history: Vec<HistoryEntry>,
}

/// Answers one request.
pub fn handler(submit: &Submit, event: ApiGatewayV2httpRequest) -> BoxFuture<'_, ApiGatewayV2httpResponse> {
    handler_within(submit, event, Duration::from_secs(MAX_WAIT_S as u64))
}

/// Answers one request. A long poll ends after `longest` even if the caller wants more, because on Lambda each waiting
/// call occupies an instance. Compiled here for all that run it.
pub fn handler_within(
    submit: &Submit,
    event: ApiGatewayV2httpRequest,
    longest: Duration,
) -> BoxFuture<'_, ApiGatewayV2httpResponse> {
    Box::pin(async move {
        let answer = route(submit, &event, longest).await.unwrap_or_else(|problem| refuse(&problem));
        traced(answer, traceparent(&event))
    })
}

async fn route(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    longest: Duration,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    let path = event.raw_path.as_deref().unwrap_or("/");
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let method = event.request_context.http.method.as_str();
    let no_route =
        || problem::no_such_route(None, format!("{method} {path} is not a route; POST /orders submits an order"));
    match (method, parts.as_slice()) {
        ("POST", ["orders"]) => post_order(submit, event).await,
        ("GET", ["orders", id]) => get_order(submit, event, id, longest).await,
        ("GET", ["orders", id, "history"]) => {
            auth::check(event, &submit.scopes.orders)?;
            query::read(event, &[])?;
            let (task, workflow) = find(submit, event, id).await?;
            let history = shared::view::history(&task, &workflow);
            Ok(json_answer(200, &History { order_id: task.id, history }, &[]))
        }
        ("POST", ["orders", id, "events", name]) => events::post(submit, event, id, name).await,
        ("POST", ["callbacks", id, step, token]) => callbacks::post(submit, event, (*id, *step, *token)).await,
        ("GET", ["links", id, step, token]) => Ok(links::page(submit, event, (*id, *step, *token)).await),
        ("POST", ["links", id, step, token]) => Ok(links::page(submit, event, (*id, *step, *token)).await),
        ("POST", ["heartbeats", id, step, attempt, token]) => {
            heartbeats::post(submit, event, (*id, *step, *attempt, *token)).await
        }
        ("GET", ["openapi.json"]) => Ok(answer(200, "application/json", Some(OPENAPI.to_owned()), &[])),
        ("GET", ["problems", code]) => {
            let page = problem::page(code).ok_or_else(no_route)?;
            Ok(answer(200, "text/markdown; charset=utf-8", Some(page), &[]))
        }
        // The operator function answers GET; API Gateway never routes it here.
        (_, ["orders"] | ["links", _, _, _]) => Err(problem::wrong_method("GET, POST")),
        (_, ["orders", _, "events", _] | ["callbacks", _, _, _] | ["heartbeats", _, _, _, _]) => {
            Err(problem::wrong_method("POST"))
        }
        (_, ["orders", _] | ["orders", _, "history"] | ["openapi.json"] | ["problems", _]) => {
            Err(problem::wrong_method("GET"))
        }
        _ => Err(no_route()),
    }
}

async fn post_order(submit: &Submit, event: &ApiGatewayV2httpRequest) -> Result<ApiGatewayV2httpResponse, Problem> {
    let span = traces::Span::request("POST", "/orders", traceparent(event).as_deref()).logged("submit");
    let answer = span.around(Box::pin(accept(submit, event, &span))).await;
    match &answer {
        Ok(_) => span.answered(202, None),
        Err(problem) => span.answered(problem.status, Some(problem.code)),
    }
    answer
}

async fn accept(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    span: &traces::Span,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    auth::check(event, &submit.scopes.orders)?;
    query::read(event, &[])?;
    check_media_type(event)?;
    let body = body(event)?;
    // The body first, so that a caller without one learns of that before keys.
    let mut submission = submission::parse(&body)?;
    submission.traceparent = span.traceparent().or_else(|| traceparent(event));
    // A value that is not text is an invalid key, not a missing one.
    let key = event.headers.get("idempotency-key").map(|value| String::from_utf8_lossy(value.as_bytes()));
    let key = idempotency_key(key.as_deref(), "order")?;
    let tenant = submit.scopes.submits(event)?;
    span.order(&Id::derive(tenant, key), submission.traceparent.as_deref());
    let order_id = submit.accept(tenant, key, submission).await?;
    let status_url = format!("/orders/{order_id}");
    let accepted = Accepted { order_id, status_url };
    Ok(json_answer(202, &accepted, &[("location", &accepted.status_url)]))
}

/// The state of an order. With `?wait=`, answers when it has ended, has another version than the caller knows, or the
/// time (at most `longest`) ends.
async fn get_order(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    id: &str,
    longest: Duration,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    auth::check(event, &submit.scopes.orders)?;
    let query = query::read(event, &["wait", "output"])?;
    let wait = query.get("wait").map_or(Ok(0), |text| query::number("wait", text, 0, MAX_WAIT_S))?;
    let until = Instant::now() + Duration::from_secs(wait as u64).min(longest);
    let has_known = event.headers.contains_key("if-none-match");
    let [mut pause, longest_pause] = LOOK;
    loop {
        let (task, workflow) = find(submit, event, id).await?;
        let etag = format!("\"{}\"", task.version);
        let is_known = is_known(event, &etag);
        let left = until.saturating_duration_since(Instant::now());
        let is_over = task.process_state().is_final() && task.migration.is_none();
        if left.is_zero() || is_over || (has_known && !is_known) {
            let headers = [("etag", etag.as_str())];
            if is_known {
                return Ok(answer(304, "", None, &headers));
            }
            let mut status = shared::view::status(&task, &workflow, submit.engine.skew());
            if let Some(step) = query.get("output") {
                fill(submit, &task, &mut status, step).await?;
            }
            return Ok(json_answer(200, &status, &headers));
        }
        sleep(pause.min(left)).await;
        pause = (pause * 3 / 2).min(longest_pause);
    }
}

/// Adds to `status` the output of the step called `name`, if it is beside the record.
async fn fill(submit: &Submit, task: &Task, status: &mut Status, name: &str) -> Result<(), Problem> {
    let Some(index) = status.steps.iter().position(|step| step.name == name) else {
        let names: Vec<_> = status.steps.iter().map(|step| step.name.as_str()).collect();
        return Err(problem::invalid_field("output", format!("must be a step of the order: {}", names.join(", "))));
    };
    let Some(beside) = &task.steps[index].beside else { return Ok(()) };
    let read = submit.engine.store.outputs(&task.id, std::slice::from_ref(&beside.hash)).await.pop();
    let corrupt = || Error::Corrupt {
        what: format!("the output of `{name}`"),
        why: format!("{}: its text is missing from the state table, or was changed", json::DAMAGED),
    };
    let text = read.unwrap_or(Ok(None)).and_then(|text| text.ok_or_else(corrupt));
    let text = text.map_err(|e| submission::unavailable(&e))?;
    let value = json::read_own(&text).map_err(|_| submission::unavailable(&corrupt()))?;
    status.steps[index].output = Some(value);
    Ok(())
}

pub(crate) fn no_such_order(id: &str) -> Problem {
    problem::no_such_order("order_id", format!("`{id}` is not the id of a known order"))
}

pub(crate) async fn find(
    submit: &Submit,
    event: &ApiGatewayV2httpRequest,
    id: &str,
) -> Result<(Task, Arc<Workflow>), Problem> {
    let none = || no_such_order(id);
    let id = Id::parse(id).ok_or_else(none)?;
    let task = submit.engine.store.load(&id).await.map_err(|e| submission::unavailable(&e))?;
    // Another tenant's order counts as absent, except for operators, who list and act on the orders of all tenants.
    let seen = submit.scopes.sees(event)?;
    let may_see = |task: &Task| seen == Seen::All || seen == Seen::Of(&task.tenant);
    let task = task.filter(may_see).ok_or_else(none)?;
    let workflow = submit.engine.workflow(&task.workflow_hash).await.map_err(|e| submission::unavailable(&e))?;
    Ok((task, workflow))
}
