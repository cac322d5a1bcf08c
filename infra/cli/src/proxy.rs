//! `stepwarden console`: the console of a deployment on this machine. Requests are passed on with what the command line
//! would send: a signature, or a token.
//!
//! Whatever page a browser shows may send requests to this machine. So each request needs the random token of the link, and
//! the listener refuses other names of this machine than its loopback ones.

use crate::client::{Api, Raw};
use anyhow::{Context, Result};
use aws_lambda_events::encodings::Body;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use edge::http::refuse;
use edge::problem;
use futures::FutureExt;
use std::sync::Arc;
use stepwarden_local::access::{self, Access};
use stepwarden_local::http;
use stepwarden_local::system::url_of;
use tokio::net::TcpListener;

/// Headers that are passed on: the browser's cookies, and the token of the link, are not.
const ASKED: [&str; 5] = ["accept", "content-type", "idempotency-key", "if-none-match", "traceparent"];
const ANSWERED: [&str; 8] = [
    "allow",
    "cache-control",
    "content-security-policy",
    "content-type",
    "etag",
    "location",
    "referrer-policy",
    "retry-after",
];

/// Serves the console of `api` until `shutdown` is ready. The first line that it tells is the link.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    api: Api,
    tell: fn(&str),
    shutdown: impl Future<Output = ()> + Send,
) -> Result<()> {
    let (access, token) = Access::open(&access::Options::default())?;
    tell(&format!("{}/console#token={token}", url_of(&listener)?));
    tell(&format!("  shows {}. Anyone with this link can act there as you. Stop with Ctrl-C.", api.url));
    let api = Arc::new(api);
    let handler = Arc::new(move |event| {
        let api = Arc::clone(&api);
        async move { pass_on(&api, event).await }.boxed()
    });
    http::serve(listener, handler, Arc::new(access), shutdown).await.context("serving the console")
}

async fn pass_on(api: &Api, event: ApiGatewayV2httpRequest) -> ApiGatewayV2httpResponse {
    let query = event.raw_query_string.as_ref().map(|query| format!("?{query}")).unwrap_or_default();
    let path = event.raw_path.as_deref().unwrap_or("/");
    let mut request = api.request(event.request_context.http.method.clone(), &format!("{path}{query}"));
    for name in ASKED {
        if let Some(value) = event.headers.get(name) {
            request = request.header(name, value);
        }
    }
    if let Some(body) = event.body {
        request = request.body(body);
    }
    match api.send(request).await {
        Ok(Raw { status, headers, text }) => {
            let mut answer = ApiGatewayV2httpResponse::default();
            answer.status_code = i64::from(status.as_u16());
            for name in ANSWERED {
                if let Some(value) = headers.get(name) {
                    answer.headers.insert(name, value.clone());
                }
            }
            answer.body = (!text.is_empty()).then_some(Body::Text(text));
            answer
        }
        Err(error) if error.is_passing() => refuse(&problem::unavailable(None, error.to_string())),
        Err(error) => refuse(&problem::forbidden(None, error.to_string())),
    }
}
