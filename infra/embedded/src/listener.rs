//! The same endpoints over HTTP, for the aws CLI and programs in other languages.

use std::future::Future;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, Method, Response, StatusCode, header};
use axum::response::IntoResponse;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Inner;
use crate::answer::Answer;
use crate::dispatch::{Service, target};

#[derive(Clone)]
struct Door {
    inner: Arc<Inner>,
    /// Only answer to names of this machine: a page in a browser may make a name of its own point
    /// here (DNS rebinding), but cannot make the browser send another Host header.
    loopback_only: bool,
    closing: watch::Receiver<bool>,
}

pub(crate) async fn serve(
    inner: Arc<Inner>,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (close, closing) = watch::channel(false);
    let loopback_only = listener.local_addr()?.ip().is_loopback();
    let door = Door { inner, loopback_only, closing };
    let router = Router::new()
        .fallback(handle)
        .layer(DefaultBodyLimit::max(Service::DynamoDb.body_max_bytes()))
        .with_state(door);
    axum::serve(listener, router)
        .with_graceful_shutdown(async move {
            shutdown.await;
            let _ = close.send(true);
        })
        .await
}

async fn handle(
    State(mut door): State<Door>,
    method: Method,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response<Body> {
    // Without a name, or with one that is no text, it is not meant for this machine.
    let host = text(&headers, header::HOST.as_str()).unwrap_or_default();
    if door.loopback_only && !is_loopback(host) {
        return plain(StatusCode::FORBIDDEN, "this endpoint answers to localhost only\n");
    }
    if method == Method::GET {
        return plain(StatusCode::OK, "healthy: SQS, DynamoDB and EventBridge\n");
    }
    if method != Method::POST {
        return plain(StatusCode::METHOD_NOT_ALLOWED, "POST requests to this endpoint\n");
    }
    let body = match body {
        Ok(body) => body,
        Err(rejected) => return rejected.into_response(),
    };
    let form = text(&headers, header::CONTENT_TYPE.as_str())
        .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if form {
        return plain(
            StatusCode::BAD_REQUEST,
            "this endpoint speaks the AWS JSON protocol, not the query protocol: update the SDK\n",
        );
    }
    let Some((service, operation)) = target(text(&headers, "x-amz-target")) else {
        let kind = "com.amazon.coral.service#UnknownOperationException";
        return respond(Service::DynamoDb, Answer::error(400, kind, ""));
    };
    let endpoint = format!("http://{host}");
    // A long poll would hold up the end for its 20 seconds. It has taken nothing while it waits.
    let may_wait = operation == "ReceiveMessage";
    let closing = async {
        match may_wait {
            true => door.closing.wait_for(|closing| *closing).await.is_ok(),
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        answer = door.inner.dispatch(service, operation, &endpoint, &body) => match answer {
            Ok(answer) => respond(service, answer),
            Err(lost) => broken(lost),
        },
        _ = closing => respond(
            service,
            Answer::error(503, "ServiceUnavailable", "The endpoint is stopping."),
        ),
    }
}

fn respond(service: Service, answer: Answer) -> Response<Body> {
    let mut response = Response::builder().status(answer.status).header(header::CONTENT_TYPE, service.content_type());
    if let Some(code) = answer.query_error {
        response = response.header("x-amzn-query-error", code);
    }
    response
        .body(Body::from(answer.body))
        .unwrap_or_else(|error| plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("{error}\n")))
}

/// A response that breaks off after its headers: the nearest to a lost one from within HTTP.
fn broken(error: impl std::error::Error + Send + Sync + 'static) -> Response<Body> {
    let body = futures::stream::once(async { Err::<Bytes, _>(io::Error::other(error)) });
    Response::new(Body::from_stream(body))
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    (status, text.to_owned()).into_response()
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether `host`, as a `Host` header has it, is a name of this machine.
#[must_use]
pub fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.to_ascii_lowercase().ends_with(".localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
