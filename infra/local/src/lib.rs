//! Stepwarden on one machine: what template.yaml deploys, in one process.
//!
//! The same handlers as in Lambda, fed by an HTTP listener, by one pump per queue, and by a clock for the supervisor. The
//! tables, queues and the bus are endpoints embedded in the process, or whatever `AWS_ENDPOINT_URL` names.

pub mod access;
pub mod admission;
pub mod bench;
pub mod cli;
pub mod client;
pub mod demo;
pub mod doctor;
pub mod http;
pub mod log;
mod predecessor;
pub mod process;
pub mod pump;
pub mod queue_turns;
pub mod simulate;
pub mod stdout;
pub mod system;
