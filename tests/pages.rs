//! Tests that check the repository's pages and files against the code. `telemetry` is among them because the registry
//! of metrics belongs to the process: no other test here may count anything.

mod documents;
mod failure_modes;
mod packages;
mod requirements;
mod strings;
#[allow(dead_code, reason = "only a part of it is used here")]
mod support;
mod telemetry;
