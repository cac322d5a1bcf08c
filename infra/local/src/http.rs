//! The HTTP listener: turns a request into the event API Gateway would make of it, and the handler's answer back.

use aws_lambda_events::encodings::Body as LambdaBody;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use futures::future::BoxFuture;
use std::sync::Arc;
use submit::problem;

/// A function behind the API.
pub type Handler = Arc<dyn Fn(ApiGatewayV2httpRequest) -> BoxFuture<'static, ApiGatewayV2httpResponse> + Send + Sync>;

/// Largest body read, in bytes: enough for the handler to see that a submission is too large, and to say by how much.
const MAX_READ: usize = 1024 * 1024;

/// The router that hands every request to `handler`.
pub fn router(handler: Handler) -> Router {
    Router::new().fallback(forward).with_state(handler)
}

async fn forward(State(handler): State<Handler>, request: Request) -> Response {
    match to_event(request).await {
        Ok(event) => from_answer(handler(event).await),
        Err(problem) => {
            let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::BAD_REQUEST);
            (status, [(header::CONTENT_TYPE, "application/problem+json")], Json(*problem)).into_response()
        }
    }
}

async fn to_event(request: Request) -> Result<ApiGatewayV2httpRequest, Box<problem::Problem>> {
    let (parts, body) = request.into_parts();
    let bytes = to_bytes(body, MAX_READ).await.map_err(|_| {
        let most = submit::submission::MAX_BODY;
        Box::new(problem::too_large(None, format!("the body has more than {MAX_READ} bytes, at most {most} are taken")))
    })?;
    let text = String::from_utf8(bytes.to_vec())
        .map_err(|_| Box::new(problem::invalid_json(None, "the body is not UTF-8; send JSON")))?;
    let mut event = ApiGatewayV2httpRequest::default();
    event.version = Some("2.0".into());
    event.raw_path = Some(parts.uri.path().to_owned());
    event.raw_query_string = parts.uri.query().map(str::to_owned);
    event.request_context.http.method = parts.method;
    event.request_context.http.path = event.raw_path.clone();
    event.headers = parts.headers;
    event.body = Some(text).filter(|t| !t.is_empty());
    Ok(event)
}

fn from_answer(answer: ApiGatewayV2httpResponse) -> Response {
    let status = u16::try_from(answer.status_code).ok().and_then(|s| StatusCode::from_u16(s).ok());
    let body = match answer.body {
        Some(LambdaBody::Text(text)) => Body::from(text),
        Some(LambdaBody::Binary(bytes)) => Body::from(bytes),
        Some(_) | None => Body::empty(),
    };
    let mut response = (status.unwrap_or(StatusCode::BAD_GATEWAY), body).into_response();
    for (name, value) in &answer.headers {
        response.headers_mut().insert(name, value.clone());
    }
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    response
}
