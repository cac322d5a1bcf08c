//! Stepwarden on one machine: what template.yaml deploys, in one process.
//!
//! The same handlers as in Lambda, fed by an HTTP listener, by one pump per queue, and by a clock for the supervisor. The
//! tables, queues and the bus are endpoints embedded in the process, or whatever `AWS_ENDPOINT_URL` names.

pub mod access;
pub mod admission;
pub mod data_folder;
pub mod functions;
pub mod http;
mod predecessor;
pub mod pump;
pub mod queue;
pub mod queue_turns;
pub mod start_error;
pub mod system;
