//! The HTTP listener: turns a request into the event that API Gateway would send, checks access, and turns the
//! handler's answer into a response.

use crate::access::Access;
use crate::admission::Handler;
use aws_lambda_events::encodings::Body as LambdaBody;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use edge::http::refuse;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_guard::host;
use stepwarden_guard::listener::{self, Limits, Refusal, Settings};
use submit::problem::{self, Problem};
use tokio::net::TcpListener;

/// Largest body that is read, in bytes: enough for the handler to say how large a submission is that exceeds the limit.
const MAX_READ: usize = 1024 * 1024;
/// How long requests in progress may take after shutdown has begun.
const GRACE: Duration = Duration::from_secs(7);

/// Serves `handler` to callers that `access` admits, until `shutdown` is ready.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    handler: Handler,
    access: Arc<Access>,
    shutdown: impl Future<Output = ()> + Send,
) -> std::io::Result<()> {
    let settings = Settings { most_body: MAX_READ, grace: GRACE, refuse: refused, limits: Limits::default() };
    let router = Router::new().fallback(forward).with_state((handler, access));
    listener::serve(listener, router, settings, shutdown).await
}

fn refused(refusal: Refusal) -> Response {
    let detail = refusal.detail();
    let problem = match refusal {
        Refusal::Host(host::Wrong::Misdirected) => problem::misdirected("Host", detail),
        Refusal::Host(host::Wrong::Malformed(_)) => problem::invalid_field("Host", detail),
        Refusal::TooLarge(_) => {
            let most = submit::submission::MAX_BODY;
            problem::too_large(None, format!("the body has more than {MAX_READ} bytes; the limit is {most}"))
        }
        Refusal::MalformedBody | Refusal::SlowBody => problem::invalid_json(None, detail),
    };
    let mut answer = from_answer(refuse(&problem));
    *answer.status_mut() = refusal.status();
    answer
}

async fn forward(State((handler, access)): State<(Handler, Arc<Access>)>, request: Request) -> Response {
    from_answer(match to_event(&access, request).await {
        Ok(event) => handler(event).await,
        Err(problem) => refuse(&problem),
    })
}

async fn to_event(access: &Access, request: Request) -> Result<ApiGatewayV2httpRequest, Problem> {
    let (parts, body) = request.into_parts();
    let mut event = ApiGatewayV2httpRequest::default();
    event.version = Some("2.0".into());
    event.raw_path = Some(parts.uri.path().to_owned());
    event.raw_query_string = parts.uri.query().map(str::to_owned);
    event.request_context.http.method = parts.method;
    event.request_context.http.path = event.raw_path.clone();
    event.headers = parts.headers;
    // Before a byte of the body is kept.
    access.admit(&mut event)?;
    // The listener replaces this answer, because it knows the reason.
    let unreadable = |_| problem::invalid_json(None, "the body cannot be read");
    let bytes = to_bytes(body, usize::MAX).await.map_err(unreadable)?;
    let text = String::from_utf8(bytes.to_vec())
        .map_err(|_| problem::invalid_json(None, "the body is not UTF-8; send JSON"))?;
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
    let mut response = (status.unwrap_or(StatusCode::BAD_GATEWAY), answer.headers, body).into_response();
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
