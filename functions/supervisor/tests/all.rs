//! All tests of this package in one program: each program of its own would be linked with everything below it.

mod common;
mod leases;
mod rows;
