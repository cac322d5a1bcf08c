//! `apply` and `undo` over HTTP: reads the call, has it decided, and answers it as its fault demands.

use std::time::Duration;

use axum::Json;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use stepwarden_guard::listener::Cut;

use super::{KEY_MAX, Problem, Read, Shared};
use crate::Remotes;
use crate::counts::Fault;
use crate::faults::{DELAY_MAX_MS, Mistake};
use crate::rules::{self, Action, Call, Decision};
use crate::service::Service;

/// Maximum number of bytes of an order id.
const ORDER_ID_MAX: usize = 200;

/// How much later than the deadline a late answer comes: more than the rounding of clocks and timers.
const LATE_BY: Duration = Duration::from_millis(50);

#[derive(Deserialize)]
struct ApplyBody {
    order_id: String,
    input: Value,
}

#[derive(Deserialize)]
struct UndoBody {
    order_id: String,
    undoes: String,
}

pub(super) async fn apply(
    State(shared): State<Shared>,
    Extension(cut): Extension<Cut>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Read,
) -> Result<Response, Problem> {
    let head = Head::read(&name, &headers)?;
    let ApplyBody { order_id, input } = parse(&body?, r#"{"order_id": "…", "input": {…}}"#)?;
    let details = rules::details(head.service, &order_id, &input).map_err(Problem::bad_request)?;
    carry(shared, cut, head, order_id, Action::Apply { input, details }).await
}

pub(super) async fn undo(
    State(shared): State<Shared>,
    Extension(cut): Extension<Cut>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Read,
) -> Result<Response, Problem> {
    let head = Head::read(&name, &headers)?;
    let example = r#"{"order_id": "…", "undoes": "<forward key>", "output": {…}|null}"#;
    let UndoBody { order_id, undoes } = parse(&body?, example)?;
    check_key("`undoes`", &undoes)?;
    carry(shared, cut, head, order_id, Action::Undo { undoes }).await
}

/// The contents of path and headers.
struct Head {
    service: Service,
    key: String,
    complete_by: Option<Timestamp>,
}

impl Head {
    fn read(name: &str, headers: &HeaderMap) -> Result<Self, Problem> {
        let service = name.parse().map_err(|Mistake(why)| Problem::new(StatusCode::NOT_FOUND, "no_service", why))?;
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or(""));
        let key = text("idempotency-key")
            .ok_or_else(|| Problem::bad_request("write an `Idempotency-Key` header, the same for every attempt"))?;
        check_key("the `Idempotency-Key` header", key)?;
        let complete_by = text("complete-by").map(str::parse).transpose();
        let complete_by = complete_by.map_err(|_| {
            Problem::bad_request("write `Complete-By` as an RFC 3339 UTC time, 2026-01-31T12:00:00.000Z")
        })?;
        Ok(Self { service, key: key.to_owned(), complete_by })
    }
}

fn check_key(what: &str, key: &str) -> Result<(), Problem> {
    // A header that is not visible ASCII reads as empty.
    if (1..=KEY_MAX).contains(&key.chars().count()) {
        return Ok(());
    }
    Err(Problem::bad_request(format!("{what} must be 1 to {KEY_MAX} characters of visible ASCII")))
}

fn parse<T: DeserializeOwned>(body: &[u8], example: &str) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|err| Problem::bad_request(format!("the body is not {example}: {err}")))
}

async fn carry(shared: Shared, cut: Cut, head: Head, order_id: String, action: Action) -> Result<Response, Problem> {
    if !(1..=ORDER_ID_MAX).contains(&order_id.len()) {
        return Err(Problem::bad_request(format!("`order_id` must be 1 to {ORDER_ID_MAX} bytes")));
    }
    let remotes = &shared.remotes;
    let call = Call { service: head.service, key: head.key, order_id, action, faults: remotes.current_faults() };
    let counters = &remotes.0.counters;
    if let Action::Apply { .. } = call.action {
        counters.add(call.service, |counts| counts.calls += 1);
    }
    let settings = call.settings();
    if settings.outage {
        counters.add_fault(call.service, Fault::Outage);
        return Err(Problem::unavailable("the service is out of order"));
    }
    let (disruption, decision) = call.begin(&mut remotes.ledger())?;
    if let Some(disruption) = disruption {
        counters.add_fault(call.service, disruption.fault);
    }
    if let Some(decision) = &decision {
        count(remotes, call.service, decision);
    }
    let slow = Duration::from_millis(settings.slow_ms);
    match (disruption.map(|disruption| disruption.fault), decision) {
        (Some(Fault::Throttled), _) => {
            let detail = "too many calls; try again after `Retry-After` seconds";
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, "throttled", detail);
            Ok(([(header::RETRY_AFTER, "1")], problem).into_response())
        }
        (Some(Fault::Unavailable), _) => Err(Problem::unavailable("the service is busy")),
        (Some(Fault::LostAnswer), _) if disruption.is_some_and(|disruption| disruption.is_cut) => Ok(cut_off(&cut)),
        (Some(Fault::LostAnswer | Fault::Hang), _) => {
            shared.pause(Duration::from_millis(DELAY_MAX_MS)).await;
            Ok(cut_off(&cut))
        }
        (Some(Fault::AfterDeadline), Some(decision)) => {
            let wait = head.complete_by.map_or(slow, until_late);
            // A shutdown must not turn it into an answer in time.
            if shared.pause(wait).await { Ok(answer_to(decision)) } else { Ok(cut_off(&cut)) }
        }
        (_, Some(decision)) => Ok(answer_to(decision)),
        (_, None) => finish_slowly(&shared, &cut, call, slow).await,
    }
}

/// A slow call is one that arrives late: it is carried out even if its client is gone by then.
async fn finish_slowly(shared: &Shared, cut: &Cut, call: Call, slow: Duration) -> Result<Response, Problem> {
    let late = shared.clone();
    let carried_out = tokio::spawn(async move {
        if !late.pause(slow).await {
            return None;
        }
        let decision = call.finish(&mut late.remotes.ledger());
        decision.iter().for_each(|decision| count(&late.remotes, call.service, decision));
        Some(decision)
    });
    match carried_out.await {
        Ok(Some(decision)) => Ok(answer_to(decision?)),
        Ok(None) | Err(_) => Ok(cut_off(cut)),
    }
}

fn count(remotes: &Remotes, service: Service, decision: &Decision) {
    remotes.0.counters.add(service, |counts| match decision {
        Decision::Applied(_) => counts.applied += 1,
        Decision::Undone => counts.undone += 1,
        Decision::Tombstoned => counts.tombstones += 1,
        Decision::Replayed(_) => counts.replays += 1,
        Decision::Declined { replayed } => {
            counts.replays += u64::from(*replayed);
            *counts.faults.entry(Fault::Permanent).or_default() += 1;
        }
        Decision::UndoFailed => *counts.faults.entry(Fault::UndoFails).or_default() += 1,
        Decision::WasUndone => counts.refused_undone += 1,
        Decision::Reused => {}
    });
}

fn answer_to(decision: Decision) -> Response {
    let replayed = [("idempotency-replayed", "true")];
    let unprocessable = |code, detail| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, code, detail);
    let declined = || unprocessable("declined", "declined; no attempt with this key will succeed");
    match decision {
        Decision::Applied(body) => Json(body).into_response(),
        Decision::Undone => Json(rules::undo_answer(true)).into_response(),
        Decision::Tombstoned => Json(rules::undo_answer(false)).into_response(),
        Decision::Replayed(body) => (replayed, Json(body)).into_response(),
        Decision::Declined { replayed: false } => declined().into_response(),
        Decision::Declined { replayed: true } => (replayed, declined()).into_response(),
        Decision::UndoFailed => {
            unprocessable("undo_failed", "cannot be undone; a person must put this right").into_response()
        }
        Decision::WasUndone => {
            Problem::new(StatusCode::CONFLICT, "undone", "this key was undone and will never be applied again")
                .into_response()
        }
        Decision::Reused => unprocessable(
            "key_reused",
            "this key was used with a different body; use a separate key for each piece of work",
        )
        .into_response(),
    }
}

/// The response is never written: the connection ends instead.
fn cut_off(cut: &Cut) -> Response {
    cut.cut();
    StatusCode::SERVICE_UNAVAILABLE.into_response()
}

fn until_late(complete_by: Timestamp) -> Duration {
    let left = Duration::try_from(complete_by.duration_since(Timestamp::now())).unwrap_or(Duration::ZERO);
    left.min(Duration::from_millis(DELAY_MAX_MS)) + LATE_BY
}
