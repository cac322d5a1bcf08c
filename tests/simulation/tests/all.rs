//! All tests of this package, in one program beside the library: within it they would be compiled and optimised with all of it.

mod contract;
mod defects;
mod dice;
mod history;
mod plan;
