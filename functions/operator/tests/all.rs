//! All tests of this package in one program, because each separate program would be linked with all dependencies.

mod again;
mod charts;
mod common;
mod deployment;
mod erase;
mod handlers;
mod jobs;
mod labels;
mod mend;
mod migrate;
mod waits;
mod workflows;
