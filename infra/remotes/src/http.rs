//! The services over HTTP: routes, bounds and shutdown.

mod calls;
mod faults;
mod ledger;
mod problem;

use std::future::Future;
use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::{Method, Response, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use stepwarden_guard::host;
use stepwarden_guard::listener::{self, Limits, Refusal, Settings};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Remotes;
use problem::Problem;

/// Bytes of a request body at most.
pub const BODY_MAX: usize = 512 * 1024;

/// Characters of an `Idempotency-Key` at most.
pub const KEY_MAX: usize = 200;

/// Bytes of an order id at most.
pub const ORDER_ID_MAX: usize = 200;

/// How long calls under way may take to end once a shutdown began.
const GRACE: Duration = Duration::from_secs(1);

/// What every handler needs.
#[derive(Clone)]
struct Shared {
    remotes: Remotes,
    closing: watch::Receiver<bool>,
}

impl Shared {
    /// Waits; false when a shutdown began before the time was over.
    async fn pause(&self, time: Duration) -> bool {
        let mut closing = self.closing.clone();
        tokio::select! {
            () = tokio::time::sleep(time) => true,
            _ = closing.wait_for(|closing| *closing) => false,
        }
    }
}

pub(crate) async fn serve(
    remotes: Remotes,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (close, closing) = watch::channel(false);
    let settings = Settings { most_body: BODY_MAX, grace: GRACE, refuse, limits: Limits::default() };
    let shutdown = async move {
        shutdown.await;
        close.send_replace(true);
    };
    listener::serve(listener, router(Shared { remotes, closing }), settings, shutdown).await
}

fn refuse(refusal: Refusal) -> Response<Body> {
    let code = match refusal {
        Refusal::Host(host::Wrong::Misdirected) => "misdirected",
        Refusal::Host(host::Wrong::Malformed(_)) => "bad_request",
        Refusal::MalformedBody | Refusal::SlowBody => "unreadable_body",
        Refusal::TooLarge(_) => "too_large",
    };
    Problem::new(refusal.status(), code, refusal.detail()).into_response()
}

/// A page in a browser may send a form, or text without a type, to any address, and ask nobody. JSON it may not, unless this
/// listener allowed it, which it never does.
async fn only_json(request: Request, next: Next) -> Response<Body> {
    let media_type =
        request.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_json = media_type == "application/json" || media_type.ends_with("+json");
    if is_json || !matches!(*request.method(), Method::POST | Method::PUT) {
        return next.run(request).await;
    }
    let detail = "send the header `Content-Type: application/json`";
    Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", detail).into_response()
}

fn router(shared: Shared) -> Router {
    Router::new()
        .route("/health", get(health))
        .route("/counts", get(ledger::counts))
        .route("/ledger", get(ledger::page))
        .route("/ledger/orders/{order_id}", get(ledger::of_order))
        .route("/check", post(ledger::check))
        .route("/faults", get(faults::read).put(faults::replace))
        .route("/faults/{service}", put(faults::replace_service))
        .route("/{service}/apply", post(calls::apply))
        .route("/{service}/undo", post(calls::undo))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(only_json))
        // The listener counts.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

async fn health() -> Json<Value> {
    Json(json!({"status": "ok"}))
}

async fn no_route() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no_route",
        "nothing is here; write POST /NAME/apply, POST /NAME/undo, GET /ledger, GET /ledger/orders/{order_id}, \
         POST /check, GET /faults, PUT /faults, PUT /faults/NAME, GET /counts or GET /health",
    )
}

async fn no_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "no_method",
        "use POST to apply, undo and check, GET for the ledger, counts and health, GET or PUT for faults",
    )
}
