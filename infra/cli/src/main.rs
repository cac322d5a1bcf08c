//! The binary.

use std::process::ExitCode;

/// A tenth less time for an order than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    stepwarden::main()
}
