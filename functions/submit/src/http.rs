//! The HTTP API, as API Gateway hands it over (payload format 2.0).

use crate::Submit;
use crate::problem::{self, Problem};
use crate::submission;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use serde_json::json;
use shared::order::Id;
use shared::ports::{Messenger, StateStore};
use shared::task::Task;
use shared::workflow::Workflow;
use std::sync::Arc;
use stepwarden_aws::http::{answer, body, check_media_type, claim, header, json_answer, refuse};

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
            let (task, workflow) = find(submit, tenant(event), id).await?;
            let etag = format!("\"{}\"", task.version);
            if header(event, "if-none-match").is_some_and(|tag| tag == etag) {
                return Ok(answer(304, "", None, &[("etag", &etag)]));
            }
            Ok(json_answer(200, &shared::view::status(&task, &workflow), &[("etag", &etag)]))
        }
        ("GET", ["orders", id, "history"]) => {
            let (task, workflow) = find(submit, tenant(event), id).await?;
            let history = json!({"order_id": task.id, "history": shared::view::history(&task, &workflow)});
            Ok(json_answer(200, &history, &[]))
        }
        // The operator function answers GET, and is never behind this one.
        (_, ["orders"]) => Err(problem::wrong_method("GET, POST")),
        (_, ["orders", _] | ["orders", _, "history"]) => Err(problem::wrong_method("GET")),
        _ => {
            Err(problem::no_such_route(None, format!("{method} {path} is not a route; POST /orders submits an order")))
        }
    }
}

async fn post_order<S: StateStore, M: Messenger>(
    submit: &Submit<S, M>,
    event: &ApiGatewayV2httpRequest,
) -> Result<ApiGatewayV2httpResponse, Problem> {
    check_media_type(event)?;
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

async fn find<S: StateStore, M: Messenger>(
    submit: &Submit<S, M>,
    tenant: &str,
    id: &str,
) -> Result<(Task, Arc<Workflow>), Problem> {
    let none = || problem::no_such_order("order_id", format!("`{id}` is not the id of an order that is kept here"));
    let id = Id::parse(id).ok_or_else(none)?;
    let task = submit.engine.store.load(&id).await.map_err(|e| submission::unavailable(&e))?;
    // Somebody else's order is as good as none.
    let task = task.filter(|task| task.tenant == tenant).ok_or_else(none)?;
    let workflow = submit.engine.workflow(&task.workflow_hash).await.map_err(|e| submission::unavailable(&e))?;
    Ok((task, workflow))
}

/// From the token that the authoriser checked, never from the body.
fn tenant(event: &ApiGatewayV2httpRequest) -> &str {
    claim(event, "tenant").unwrap_or(DEFAULT_TENANT)
}
