//! All tests of this package in one program: each program of its own would be linked with everything below it.

mod batches;
mod bounds;
mod endings;
mod engine;
mod mend;
mod operator;
mod pools;
mod records;
mod support;
mod transitions;
mod workflow_file;
mod workflow_http;
