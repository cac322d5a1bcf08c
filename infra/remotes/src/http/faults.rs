//! Reading and setting the faults.

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use serde::de::DeserializeOwned;

use super::Shared;
use super::problem::Problem;
use crate::faults::{BadFaults, Faults, ServiceFaults};
use crate::service::{Service, UnknownService};

pub(super) async fn read(State(shared): State<Shared>) -> Json<Faults> {
    Json(shared.remotes.faults())
}

pub(super) async fn replace(
    State(shared): State<Shared>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Faults>, Problem> {
    let example = r#"{"seed": 1, "services": {"payment": {"transient": 0.1}}}"#;
    shared.remotes.set_faults(parse(&body?, example)?)?;
    Ok(Json(shared.remotes.faults()))
}

pub(super) async fn replace_service(
    State(shared): State<Shared>,
    Path(name): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ServiceFaults>, Problem> {
    let service: Service = name.parse().map_err(|err: UnknownService| Problem::bad_request(err.to_string()))?;
    let faults: ServiceFaults = parse(&body?, r#"{"transient": 0.1}"#)?;
    shared.remotes.set_service_faults(service, faults.clone())?;
    Ok(Json(faults))
}

/// The messages of serde name the unknown field or service and list the known ones.
pub(super) fn parse<T: DeserializeOwned>(body: &[u8], example: &str) -> Result<T, Problem> {
    serde_json::from_slice(body).map_err(|err| Problem::bad_request(format!("{err}; write for instance {example}")))
}

impl From<BadFaults> for Problem {
    fn from(bad: BadFaults) -> Self {
        Self::bad_request(bad.to_string())
    }
}
