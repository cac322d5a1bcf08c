//! The program `stepwarden`: the command line, its exit codes, and what only a person at a terminal needs. It starts the
//! system of `infra/local`, or speaks to one that runs.

mod api;
pub mod args;
mod bench;
mod bulk;
mod call;
mod changes;
mod client;
mod demo;
mod doctor;
mod explain;
mod local;
mod log;
mod process;
mod programs;
mod project;
mod proxy;
mod reload;
mod replay;
mod scenario;
mod show;
mod signed;
mod simulate;
mod stdout;
mod watch;
mod workflows;

use args::Cli;
use clap::Parser;
use log::Log;
use shared::visible::{escape, is_hidden};
use std::io::Write as _;
use std::process::ExitCode;
use stdout::{READER_GONE, is_reader_gone};
use stepwarden_local::start_error::StartError;

/// Exit code for errors that the caller can correct: a wrong argument, a damaged data directory, a port in use, a token
/// or an id that the API does not know.
const USAGE: u8 = 2;

/// Does what the arguments say.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    // The demo causes faults on purpose, and the functions' log of them would hide the summary.
    let log = Log::start(std::io::stderr());
    let writer = log.clone();
    let level = cli.command.as_ref().map_or("error", args::Command::log_level);
    stepwarden_aws::telemetry::init_to(level, move || writer.clone());
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    let ended = runtime.block_on(local::run(cli.command, cli.workflows.as_deref()));
    log.finish();
    match ended {
        Ok(code) => code,
        Err(error) if is_reader_gone(&error) => ExitCode::from(READER_GONE),
        Err(error) => {
            // `eprintln!` would panic without a reader.
            let _ = writeln!(std::io::stderr(), "stepwarden: {}", visible_lines(&format!("{error:#}")));
            let is_usage = error.downcast_ref::<StartError>().is_some()
                || error.downcast_ref::<shared::workflow::file::Error>().is_some()
                || error.downcast_ref::<client::Error>().is_some_and(client::Error::is_wrong_use);
            if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

/// An error for people, with control characters escaped, because it may quote foreign text. Line breaks stay: errors of
/// workflow files and of arguments have several lines.
fn visible_lines(text: &str) -> std::borrow::Cow<'_, str> {
    escape(text, |c| is_hidden(c) && c != '\n')
}
