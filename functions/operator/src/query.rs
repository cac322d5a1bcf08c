//! Parameters of lists only.

use edge::problem::{Problem, invalid_field};
use shared::task::ProcessState;
use shared::time::Timestamp;

/// A state by its name, in any case; `paused` counts as one here.
pub(crate) fn state(text: &str) -> Result<(Option<ProcessState>, bool), Problem> {
    if text.eq_ignore_ascii_case("paused") {
        return Ok((None, true));
    }
    let found = ProcessState::ALL.into_iter().find(|state| state.name().eq_ignore_ascii_case(text));
    found
        .map(|state| (Some(state), false))
        .ok_or_else(|| invalid_field("state", format!("must be one of {}", state_names().join(", "))))
}

/// The names that [`state`] accepts, as answers spell them.
pub fn state_names() -> Vec<&'static str> {
    ProcessState::ALL.iter().map(|state| state.name()).chain(["Paused"]).collect()
}

pub(crate) fn time(name: &'static str, text: &str) -> Result<Timestamp, Problem> {
    text.parse().map_err(|_| invalid_field(name, "must be a time like 2026-11-21T09:30:00Z"))
}
