//! Parameters of lists.

use edge::problem::{Problem, invalid_field};
use shared::task::ProcessState;
use shared::time::Timestamp;
use stepwarden_aws::list::Filter;

/// The orders in a state by its name, in any case; `waiting` and `paused` count as states here.
pub(crate) fn state(text: &str) -> Result<Filter, Problem> {
    let found = ProcessState::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(text));
    match text.to_ascii_lowercase().as_str() {
        "waiting" => Ok(Filter { waiting: true, ..Filter::default() }),
        "paused" => Ok(Filter { paused: true, ..Filter::default() }),
        _ if found.is_some() => Ok(Filter { state: found, ..Filter::default() }),
        _ => Err(invalid_field("state", format!("must be one of {}", state_names().join(", ")))),
    }
}

/// The names that [`state`] accepts, as answers spell them.
pub fn state_names() -> Vec<&'static str> {
    ProcessState::ALL.iter().map(|state| state.name()).chain(["Waiting", "Paused"]).collect()
}

pub(crate) fn time(name: &'static str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|_| invalid_field(name, "must be a time like 2026-11-21T09:30:00Z"))
}
