#![doc = include_str!("../README.md")]
//!
//! ## How
//!
//! [`run_while_leader`] waits for the lease, runs the work, renews the lease while the work makes progress, cancels the
//! work before the lease can end, and gives the lease back when the work has returned. [`Hold`] is the same lease for
//! work that comes in ticks: held between them, renewed at half its life.
//!
//! It decides nothing about the work. Work under a lease must be safe with no leader and with two, because clocks drift
//! and processes pause. So let every write carry [`Leadership::token`], and refuse an older one.
//!
//! Leases are kept in any [`LeaseStore`]: a register that is read and conditionally replaced. `stepwarden-aws` has one
//! on DynamoDB; [`memory::MemoryLeases`] is one in this process.

mod hold;
mod lease;
pub mod memory;
mod run;
mod settings;
mod wait;

pub use hold::Hold;
pub use lease::{Error, Lease, LeaseStore};
pub use run::{Cause, Ended, Leadership, run_while_leader};
pub use settings::{Clock, Note, Settings, TakeOver};
pub use tokio_util::sync::CancellationToken;
