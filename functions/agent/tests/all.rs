//! All tests of this package in one program, because each separate program would be linked with all dependencies.

mod aws;
mod http;
mod server;
