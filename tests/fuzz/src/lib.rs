//! One function for each parser or route that meets input from outside. Each takes any bytes, and panics if they make the
//! code panic, or grant more than they should.
//!
//! `cargo test` runs them over the corpus and seeded mutations of it; `tests/fuzz/run` runs them with libFuzzer.

mod http;
mod messages;
mod records;
mod workflow;

/// A target: its name, and what it does with an input. True if the code under test accepted the input.
pub type Target = (&'static str, fn(&[u8]) -> bool);

/// All of them.
pub const TARGETS: [Target; 7] = [
    ("http", http::request),
    ("submission", http::submission),
    ("to_scheduler", messages::to_scheduler),
    ("request", messages::request),
    ("order_by_message", messages::order),
    ("task_item", records::task),
    ("workflow", workflow::file),
];
