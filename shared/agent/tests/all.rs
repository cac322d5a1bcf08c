//! Tests of the crate, as one program.

mod contract;
mod program;
mod runtime_api;
#[path = "../examples/stock.rs"]
mod stock;
