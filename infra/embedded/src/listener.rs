//! The same endpoints over HTTP, for the aws CLI and programs in other languages.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use axum::response::IntoResponse;
use futures::StreamExt;
use futures::future::BoxFuture;
use stepwarden_guard::listener::{self, Limits, Refusal, Settings};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Inner;
use crate::answer::Answer;
use crate::dispatch::Caller;
use crate::fault::Call;
use crate::service::{Service, target};
use crate::sqs::consumers::{self, Refused};

/// How long calls in progress may take after a shutdown has begun.
const GRACE: Duration = Duration::from_secs(7);

#[derive(Clone)]
struct Door {
    inner: Arc<Inner>,
    closing: watch::Receiver<bool>,
}

/// Boxed here, so that no caller compiles the server again.
pub(crate) fn serve(
    inner: Arc<Inner>,
    listener: TcpListener,
    shutdown: BoxFuture<'static, ()>,
) -> BoxFuture<'static, io::Result<()>> {
    let (close, closing) = watch::channel(false);
    let router = Router::new().fallback(handle).with_state(Door { inner, closing });
    let most_body = Service::DynamoDb.body_max_bytes();
    let settings = Settings { most_body, grace: GRACE, refuse, limits: Limits::default() };
    let shutdown = async move {
        shutdown.await;
        let _ = close.send(true);
    };
    Box::pin(listener::serve(listener, router, settings, shutdown))
}

fn refuse(refusal: Refusal) -> Response<Body> {
    match refusal {
        Refusal::TooLarge(_) => {
            respond(Service::DynamoDb, Answer::error(413, "RequestEntityTooLarge", "The request is too large."))
        }
        Refusal::Host(_) | Refusal::MalformedBody | Refusal::SlowBody => {
            plain(refusal.status(), &format!("{}\n", refusal.detail()))
        }
    }
}

async fn handle(State(mut door): State<Door>, request: Request) -> Response<Body> {
    let (request, body) = request.into_parts();
    if request.method == Method::GET {
        if let Some(name) = request.uri.path().strip_prefix("/consumers/") {
            return consumer(door, name);
        }
        return plain(StatusCode::OK, "healthy: SQS, DynamoDB and EventBridge\n");
    }
    if request.method != Method::POST {
        let mut refused = plain(StatusCode::METHOD_NOT_ALLOWED, "POST requests to this endpoint\n");
        refused.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD, POST"));
        return refused;
    }
    let headers = &request.headers;
    let form = text(headers, header::CONTENT_TYPE.as_str())
        .is_some_and(|kind| kind.starts_with("application/x-www-form-urlencoded"));
    if form {
        return plain(
            StatusCode::BAD_REQUEST,
            "this endpoint speaks the AWS JSON protocol, not the query protocol: update the SDK\n",
        );
    }
    let Some((service, operation)) = target(text(headers, "x-amz-target")) else {
        let kind = "com.amazon.coral.service#UnknownOperationException";
        return respond(Service::DynamoDb, Answer::error(400, kind, ""));
    };
    // Read only now, because the body of a refused request is not read.
    let Ok(body) = to_bytes(body, usize::MAX).await else {
        return plain(StatusCode::BAD_REQUEST, "the body cannot be read\n");
    };
    let endpoint = format!("http://{}", text(headers, header::HOST.as_str()).unwrap_or_default());
    let caller = Caller { endpoint: &endpoint, consumer: text(headers, consumers::HEADER) };
    tokio::select! {
        biased;
        answer = door.inner.dispatch(Call { service, operation, body: &body }, caller) => match answer {
            Ok(answer) => respond(service, answer),
            Err(lost) => broken(lost),
        },
        // A long poll would hold up the shutdown for its 20 seconds. While it waits it has taken no message.
        _ = door.closing.wait_for(|closing| *closing), if operation == "ReceiveMessage" => respond(
            service,
            Answer::error(503, "ServiceUnavailable", "The endpoint is stopping."),
        ),
    }
}

/// Answers for as long as the consumer lives: the answer is dropped when its connection ends.
fn consumer(mut door: Door, name: &str) -> Response<Body> {
    let connection = match door.inner.sqs.connect(name) {
        Ok(connection) => connection,
        Err(Refused::Name) => return plain(StatusCode::BAD_REQUEST, &format!("{}\n", Refused::Name)),
        Err(Refused::Taken) => return plain(StatusCode::CONFLICT, &format!("{}\n", Refused::Taken)),
    };
    let until_closing = async move {
        let _connection = connection;
        let _ = door.closing.wait_for(|closing| *closing).await;
        Ok::<_, io::Error>(Bytes::from_static(b"closing\n"))
    };
    let connected = futures::stream::once(async { Ok(Bytes::from_static(b"connected\n")) });
    let body = Body::from_stream(connected.chain(futures::stream::once(until_closing)));
    let mut response = Response::new(body);
    response.headers_mut().insert(consumers::HEADER, HeaderValue::from_static("connected"));
    response
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

/// A response that breaks off after its headers, which is as close to a lost answer as HTTP allows.
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
