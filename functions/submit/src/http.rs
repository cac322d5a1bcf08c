//! The HTTP API, as API Gateway hands it over (payload format 2.0).

use crate::Submit;
use crate::problem::{self, Problem};
use crate::submission;
use aws_lambda_events::encodings::Body;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use serde::Serialize;
use serde_json::{Value, json};
use shared::order::Id;
use shared::ports::{Messenger, StateStore};
use shared::task::Task;
use shared::workflow::Workflow;
use std::sync::Arc;

/// Whose order it is where no authoriser says so.
pub const DEFAULT_TENANT: &str = "default";

/// Answers one request.
pub async fn handler<S: StateStore, M: Messenger>(
    submit: &Submit<S, M>,
    event: ApiGatewayV2httpRequest,
) -> ApiGatewayV2httpResponse {
    match route(submit, &event).await {
        Ok(answer) => answer,
        Err(problem) => refuse(&problem),
    }
}

async fn route<S: StateStore, M: Messenger>(
    submit: &Submit<S, M>,
    event: &ApiGatewayV2httpRequest,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    let path = event.raw_path.as_deref().unwrap_or("/");
    let parts: Vec<&str> = path.split('/').filter(|p| !p.is_empty()).collect();
    let method = event.request_context.http.method.as_str();
    match (method, parts.as_slice()) {
        ("POST", ["orders"]) => post_order(submit, event).await,
        ("GET", ["orders", id]) => {
            let (task, workflow) = find(submit, id).await?;
            let etag = format!("\"{}\"", task.version);
            if header(event, "if-none-match").is_some_and(|tag| tag == etag) {
                return Ok(answer(304, "", None, &[("etag", &etag)]));
            }
            Ok(json_answer(200, &shared::view::status(&task, &workflow), &[("etag", &etag)]))
        }
        ("GET", ["orders", id, "history"]) => {
            let (task, workflow) = find(submit, id).await?;
            let history = json!({"order_id": task.id, "history": shared::view::history(&task, &workflow)});
            Ok(json_answer(200, &history, &[]))
        }
        (_, ["orders"]) => Err(problem::method_not_allowed(None, "this route takes POST")),
        (_, ["orders", _] | ["orders", _, "history"]) => Err(problem::method_not_allowed(None, "this route takes GET")),
        _ => {
            Err(problem::no_such_route(None, format!("{method} {path} is not a route; POST /orders submits an order")))
        }
    }
}

async fn post_order<S: StateStore, M: Messenger>(
    submit: &Submit<S, M>,
    event: &ApiGatewayV2httpRequest,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    let media_type = header(event, "content-type").unwrap_or("application/json");
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type != "application/json" && !media_type.ends_with("+json") {
        let detail = format!("`{media_type}` is not taken; send Content-Type: application/json");
        return Err(problem::unsupported_media_type("Content-Type", detail));
    }
    let body = body(event)?;
    // The body first: who sends none learns that before learning about keys.
    let submission = submission::parse(&body)?;
    // What is no text is a key that cannot be used, not a missing one.
    let key = event.headers.get("idempotency-key").map(|value| String::from_utf8_lossy(value.as_bytes()));
    let key = submission::check_key(key.as_deref())?;
    let id = submit.accept(tenant(event), key, submission).await?;
    let location = format!("/orders/{id}");
    let accepted = json!({"order_id": id, "status_url": location});
    Ok(json_answer(202, &accepted, &[("location", &location)]))
}

async fn find<S: StateStore, M: Messenger>(submit: &Submit<S, M>, id: &str) -> Result<(Task, Arc<Workflow>), Problem> {
    let none = || problem::no_such_order("order_id", format!("`{id}` is not the id of an order that is kept here"));
    let id = Id::parse(id).ok_or_else(none)?;
    let task = submit.engine.store.load(&id).await.map_err(|e| submission::unavailable(&e))?.ok_or_else(none)?;
    let workflow = submit.engine.workflow(&task.workflow_hash).await.map_err(|e| submission::unavailable(&e))?;
    Ok((task, workflow))
}

fn body(event: &ApiGatewayV2httpRequest) -> Result<Vec<u8>, Problem> {
    let text = event.body.as_deref().unwrap_or_default();
    if !event.is_base64_encoded {
        return Ok(text.as_bytes().to_vec());
    }
    // Decoding by way of the event's own type keeps one decoder in the program.
    serde_json::from_value::<aws_lambda_events::encodings::Base64Data>(Value::String(text.to_owned()))
        .map(|data| data.0)
        .map_err(|_| problem::invalid_json(None, "the body is marked as base64 and is not"))
}

/// From the token that the authoriser checked, never from the body.
fn tenant(event: &ApiGatewayV2httpRequest) -> &str {
    let claims = event.request_context.authorizer.as_ref().and_then(|a| a.jwt.as_ref()).map(|jwt| &jwt.claims);
    claims.and_then(|c| c.get("tenant")).map_or(DEFAULT_TENANT, String::as_str)
}

fn header<'a>(event: &'a ApiGatewayV2httpRequest, name: &str) -> Option<&'a str> {
    event.headers.get(name).and_then(|value| value.to_str().ok())
}

fn json_answer(status: i64, body: &impl Serialize, headers: &[(&'static str, &str)]) -> ApiGatewayV2httpResponse {
    let body = serde_json::to_string(body).expect("answers have only string keys");
    answer(status, "application/json", Some(body), headers)
}

fn refuse(problem: &Problem) -> ApiGatewayV2httpResponse {
    let body = serde_json::to_string(problem).expect("a problem has only string keys");
    let mut answer = answer(i64::from(problem.status), "application/problem+json", Some(body), &[]);
    if let Some(seconds) = problem.retry_after_s {
        answer.headers.insert("retry-after", seconds.into());
    }
    answer
}

fn answer(
    status: i64,
    content_type: &'static str,
    body: Option<String>,
    headers: &[(&'static str, &str)],
) -> ApiGatewayV2httpResponse {
    let mut answer = ApiGatewayV2httpResponse::default();
    answer.status_code = status;
    if body.is_some() {
        answer.headers.insert("content-type", content_type.parse().expect("a constant"));
    }
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            answer.headers.insert(*name, value);
        }
    }
    answer.body = body.map(Body::Text);
    answer
}
