//! Stepwarden on one machine: what template.yaml deploys, in one process.
//!
//! The same handlers as in Lambda, fed by an HTTP listener, by one pump per queue, and by a clock for the supervisor. The
//! tables, queues and the bus are endpoints embedded in the process, or whatever `AWS_ENDPOINT_URL` names.

pub mod access;
pub mod admission;
mod bench;
mod call;
mod changes;
pub mod cli;
mod client;
mod data_folder;
mod demo;
mod doctor;
pub mod functions;
pub mod http;
mod log;
mod predecessor;
mod process;
mod programs;
mod project;
mod proxy;
pub mod pump;
pub mod queue_turns;
mod reload;
mod replay;
pub mod scenario;
mod signed;
mod simulate;
mod start_error;
mod stdout;
pub mod system;
