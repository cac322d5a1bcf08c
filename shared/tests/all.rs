//! All tests of this package in one program, because each separate program would be linked with all dependencies.

mod batches;
mod beats;
mod bounds;
mod callbacks;
mod children;
mod endings;
mod engine;
mod expression;
mod language;
mod links;
mod mend;
mod mistakes;
mod operator;
mod outputs;
mod people;
mod polls;
mod pools;
mod records;
mod remind;
mod schema;
mod support;
mod transitions;
mod waits;
mod workflow_aws;
mod workflow_file;
mod workflow_http;
