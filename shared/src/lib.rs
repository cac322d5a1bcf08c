//! The pure core of Stepwarden, the *Scheduler Agent Supervisor* pattern.
//!
//! It decides; it never acts. [`scheduler::schedule`] and [`supervisor::supervise`] turn a recorded [`task::Task`] and
//! an event into a new record and the effects to send. They read no clock, draw no random number and await nothing, so
//! a table, a model checker and a simulation can run them exhaustively. [`engine::Engine`] is the only shell around
//! them: load, decide, save under a version condition, send.
//!
//! Words (the pattern's own): a *task* is one run of a *workflow*, a named list of *steps*; an *agent* does one step at
//! one remote service; `complete_by` is the time after which only the *supervisor* touches a step.

pub mod again;
mod change;
pub mod control;
pub mod decision;
pub mod engine;
pub mod erase;
pub mod expression;
pub mod filter;
pub mod history;
pub mod items;
pub mod job;
pub mod json;
pub mod mend;
pub mod message;
pub mod migrate;
pub mod names;
pub mod operator;
pub mod order;
pub mod outputs;
pub mod overload;
pub mod pools;
pub mod ports;
pub mod queues;
pub mod registry;
pub mod retry;
pub mod scheduler;
pub mod schema;
pub mod step;
pub mod strain;
pub mod supervisor;
pub mod task;
pub mod time;
pub mod trace;
pub mod trouble;
pub mod view;
pub mod visible;
pub mod workflow;
