//! Tests of the crate, as one program.

mod contract;
mod program;
#[path = "../examples/stock.rs"]
mod stock;
