//! What all listeners and all files of the local system have in common.
//!
//! [`listener`] serves the API, the AWS endpoints and the remote services: who is let in, how long a caller may take, and how
//! many there may be, is said there once. [`folder`] makes files that nobody else may read, and [`marks`] tells whether a
//! database still holds what it held.

pub mod folder;
pub mod host;
pub mod listener;
pub mod marks;
