//! All tests of this package in one program, because each separate program would be linked with all dependencies.

mod corpus;
mod round_trips;

/// The whole number in an environment variable.
fn env(name: &str, default: u64) -> u64 {
    let Some(text) = std::env::var_os(name) else { return default };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{name}={}: write a whole number", text.display()))
}
