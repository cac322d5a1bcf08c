//! The services over HTTP: routes, bounds and shutdown. How calls are answered is in [`calls`].

mod calls;

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{Method, Response, StatusCode, header};
use axum::middleware::{Next, from_fn};
use axum::response::IntoResponse;
use axum::routing::{get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use stepwarden_guard::host;
use stepwarden_guard::listener::{self, Limits, Refusal, Settings};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::check::{Expected, Report};
use crate::faults::{Faults, Mistake, ServiceFaults};
use crate::service::Service;
use crate::{Entry, Remotes};

/// Maximum number of bytes of a request body.
pub const BODY_MAX: usize = 512 * 1024;

/// Maximum number of characters of an `Idempotency-Key`.
pub const KEY_MAX: usize = 200;

/// Keys in a page of the ledger by default, and at most: about 300 KB of JSON.
const PAGE_DEFAULT: usize = 100;
const PAGE_MAX: usize = 1_000;

/// How long running calls may take to end after a shutdown began.
const GRACE: Duration = Duration::from_secs(1);

/// What every handler needs.
#[derive(Clone)]
struct Shared {
    remotes: Remotes,
    closing: watch::Receiver<bool>,
}

type Read = Result<Bytes, BytesRejection>;

impl Shared {
    /// Waits; false if a shutdown began before the time was over.
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

/// A page in a browser may send a form, or text without a type, to any address without permission. JSON needs the
/// permission of this listener, which never grants it.
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
        .route("/health", get(async || Json(json!({"status": "ok"}))))
        .route("/ledger", get(ledger))
        .route("/ledger/orders/{order_id}", get(order_ledger))
        .route("/check", post(check))
        .route("/faults", get(read_faults).put(replace_faults))
        .route("/faults/{service}", put(replace_service_faults))
        .route("/{service}/apply", post(calls::apply))
        .route("/{service}/undo", post(calls::undo))
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn(only_json))
        // The listener enforces the limit.
        .layer(DefaultBodyLimit::disable())
        .with_state(shared)
}

/// All are text: an empty parameter counts as absent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Wanted {
    service: String,
    cursor: String,
    limit: String,
}

/// JSON: `{"entries": [Entry], "next_cursor": "…"|null}`, the entries of up to `limit` keys, oldest key first.
async fn ledger(
    State(shared): State<Shared>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    let Query(wanted) = wanted.map_err(|err| Problem::bad_request(err.body_text()))?;
    let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let service: Option<Service> = given(&wanted.service).map(|name| name.parse()).transpose()?;
    let cursor = given(&wanted.cursor).map_or(Ok(0), |text| text.parse());
    let cursor = cursor.map_err(|_| Problem::bad_request("`cursor` must be the `next_cursor` of an earlier page"))?;
    let limit = match given(&wanted.limit).map(|limit| limit.parse()) {
        None => PAGE_DEFAULT,
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
        Some(_) => return Err(Problem::bad_request(format!("`limit` must be a number from 1 to {PAGE_MAX}"))),
    };
    let is_wanted = |row: &crate::rules::Row| row.is_forward() && service.is_none_or(|service| row.service == service);
    let mut rows = shared.remotes.ledger().rows(is_wanted, cursor, limit + 1)?;
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let next_cursor = rows.last().filter(|_| has_more).map(|(number, _)| number.to_string());
    let entries: Vec<Entry> = rows.into_iter().flat_map(|(_, row)| row.entries()).collect();
    Ok(Json(json!({"entries": entries, "next_cursor": next_cursor})))
}

/// JSON: `{"entries": [Entry]}`, empty for an unknown order.
async fn order_ledger(State(shared): State<Shared>, Path(order_id): Path<String>) -> Result<Json<Value>, Problem> {
    Ok(Json(json!({"entries": shared.remotes.order_ledger(&order_id)?})))
}

/// [`Remotes::check`] for systems that run elsewhere: order ids with what each should have left.
async fn check(State(shared): State<Shared>, body: Read) -> Result<Json<Report>, Problem> {
    let example = r#"{"ord_1": {"applied": ["inventory"]}, "ord_2": "undone", "ord_3": "any"}"#;
    let expected: BTreeMap<String, Expected> = parse(&body?, example)?;
    let checked = tokio::task::spawn_blocking(move || shared.remotes.check(expected)).await;
    Ok(Json(checked.expect("a check does not panic")?))
}

async fn read_faults(State(shared): State<Shared>) -> Json<Faults> {
    Json(shared.remotes.faults())
}

async fn replace_faults(State(shared): State<Shared>, body: Read) -> Result<Json<Faults>, Problem> {
    let example = r#"{"seed": 1, "services": {"payment": {"transient": 0.1}}}"#;
    shared.remotes.set_faults(parse(&body?, example)?)?;
    Ok(Json(shared.remotes.faults()))
}

async fn replace_service_faults(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    body: Read,
) -> Result<Json<ServiceFaults>, Problem> {
    let service: Service = name.parse()?;
    let faults: ServiceFaults = parse(&body?, r#"{"transient": 0.1}"#)?;
    shared.remotes.set_service_faults(service, faults.clone())?;
    Ok(Json(faults))
}

/// serde's messages name the unknown field or service and list the known ones.
fn parse<T: DeserializeOwned>(body: &[u8], example: &str) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|err| Problem::bad_request(format!("{err}; write for example {example}")))
}

async fn no_route() -> Problem {
    Problem::new(
        StatusCode::NOT_FOUND,
        "no_route",
        "there is nothing at this path; use POST /NAME/apply, POST /NAME/undo, GET /ledger, GET \
         /ledger/orders/{order_id}, POST /check, GET /faults, PUT /faults, PUT /faults/NAME or GET /health",
    )
}

async fn no_method() -> Problem {
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        "no_method",
        "use POST to apply, undo and check, GET for the ledger and health, GET or PUT for faults",
    )
}

/// A refusal, as RFC 9457 problem details. JSON:
/// `{"type": "about:blank", "title": "Conflict", "status": 409, "code": "undone", "detail": "…"}`.
#[derive(Debug)]
struct Problem {
    status: StatusCode,
    /// The code for programs.
    code: &'static str,
    /// The text for people: what is wrong and what to write instead.
    detail: String,
}

impl Problem {
    fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into() }
    }

    fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    fn unavailable(why: impl std::fmt::Display) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", format!("{why}; try again later"))
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response<Body> {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        (self.status, [(header::CONTENT_TYPE, "application/problem+json")], body.to_string()).into_response()
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        // The listener knows the reason, and answers instead.
        Self::new(rejection.status(), "unreadable_body", rejection.body_text())
    }
}

impl From<Mistake> for Problem {
    fn from(mistake: Mistake) -> Self {
        Self::bad_request(mistake.0)
    }
}

impl From<io::Error> for Problem {
    fn from(err: io::Error) -> Self {
        tracing::error!("the ledger of the sample services could not be used: {err}");
        Self::unavailable("the ledger could not be used")
    }
}
