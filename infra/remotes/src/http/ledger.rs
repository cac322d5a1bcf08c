//! Reading the ledger and the counts, and checking them.

use std::collections::BTreeMap;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};

use super::Shared;
use super::faults::parse;
use super::problem::Problem;
use crate::check::{Expected, Report};
use crate::counts::Counts;
use crate::ledger::{self, Entry, PAGE_DEFAULT, PAGE_MAX, Page};
use crate::service::{Service, UnknownService};

/// All as text: an empty parameter is one left out.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct Wanted {
    service: String,
    cursor: String,
    limit: String,
}

pub(super) async fn page(
    State(shared): State<Shared>,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Page>, Problem> {
    let Query(wanted) = wanted.map_err(|err| Problem::bad_request(err.body_text()))?;
    let service: Option<Service> = given(&wanted.service)
        .map(str::parse)
        .transpose()
        .map_err(|err: UnknownService| Problem::bad_request(err.to_string()))?;
    let cursor: i64 = match given(&wanted.cursor) {
        Some(text) => {
            text.parse().map_err(|_| Problem::bad_request("`cursor` must be the `next_cursor` of an earlier page"))?
        }
        None => 0,
    };
    let limit = match given(&wanted.limit).map(str::parse) {
        None => PAGE_DEFAULT,
        Some(Ok(limit)) if (1..=PAGE_MAX).contains(&limit) => limit,
        Some(_) => {
            return Err(Problem::bad_request(format!("`limit` must be a number from 1 to {PAGE_MAX}")));
        }
    };
    let page = (shared.remotes.0.db).run(move |conn| ledger::page(conn, service, cursor, limit)).await?;
    Ok(Json(page))
}

fn given(text: &str) -> Option<&str> {
    Some(text).filter(|text| !text.is_empty())
}

/// JSON: `{"entries": [Entry]}`, empty for an unknown order.
#[derive(Debug, Serialize)]
pub(super) struct OrderLedger {
    entries: Vec<Entry>,
}

pub(super) async fn of_order(
    State(shared): State<Shared>,
    Path(order_id): Path<String>,
) -> Result<Json<OrderLedger>, Problem> {
    let entries = (shared.remotes.0.db).run(move |conn| ledger::of_order(conn, &order_id)).await?;
    Ok(Json(OrderLedger { entries }))
}

pub(super) async fn counts(State(shared): State<Shared>) -> Json<Counts> {
    Json(shared.remotes.counts())
}

/// [`Remotes::check`](crate::Remotes::check) for whoever runs the system elsewhere: order ids with what each should have
/// left.
pub(super) async fn check(
    State(shared): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Report>, Problem> {
    let example = r#"{"ord_1": {"applied": ["inventory"]}, "ord_2": "undone", "ord_3": "any"}"#;
    let expected: BTreeMap<String, Expected> = parse(&body?, example)?;
    let checked = tokio::task::spawn_blocking(move || shared.remotes.check(expected)).await;
    Ok(Json(checked.expect("a check does not panic")?))
}
