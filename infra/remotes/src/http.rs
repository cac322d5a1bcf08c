//! The services over HTTP: routes, bounds and shutdown.

mod calls;
mod connection;
mod faults;
mod ledger;
mod problem;

use std::future::{Future, IntoFuture};
use std::io;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::Remotes;
use connection::{Cut, CuttableListener};
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
    let (close, mut closing) = watch::channel(false);
    let app = router(Shared { remotes, closing: closing.clone() });
    let app = app.into_make_service_with_connect_info::<Cut>();
    let server = axum::serve(CuttableListener(listener), app).with_graceful_shutdown(async move {
        shutdown.await;
        close.send_replace(true);
    });
    let out_of_time = async {
        let _ = closing.wait_for(|closing| *closing).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = server.into_future() => ended,
        () = out_of_time => Ok(()),
    }
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
        .layer(DefaultBodyLimit::max(BODY_MAX))
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
