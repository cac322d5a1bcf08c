//! Logs: JSON lines in Lambda, text for people elsewhere; the level comes from `RUST_LOG`, or is `info`.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// Starts logging for this process, to standard error. A second call changes nothing.
pub fn init() {
    init_at("info");
}

/// The same, with another level where `RUST_LOG` says nothing.
pub fn init_at(level: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_target(false);
    let started = if std::env::var_os("AWS_LAMBDA_RUNTIME_API").is_some() {
        builder.json().flatten_event(true).with_current_span(true).with_ansi(false).try_init()
    } else {
        builder.with_ansi(std::io::stderr().is_terminal()).try_init()
    };
    drop(started);
}
