#![doc = include_str!("../README.md")]

mod agent;
pub mod attempt;
pub mod breaker;
mod error;
mod heart;
pub mod message;
#[cfg(feature = "queues")]
mod serve;
mod time;

pub use agent::{Agent, Call, Undo, Unreadable};
pub use error::AgentError;
#[cfg(feature = "queues")]
pub use serve::{ServeError, serve};
