//! Shared by all listeners and data files of the local system.
//!
//! [`listener`] serves the API, the AWS endpoints and the remote services, with one set of limits on hosts, time and
//! number of connections. [`folder`] creates files that only their owner can read, and [`marks`] checks that a
//! database is unchanged since it was closed.

pub mod folder;
pub mod host;
pub mod listener;
pub mod marks;
