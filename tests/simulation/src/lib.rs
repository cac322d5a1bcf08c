//! The simulation: Stepwarden's real handlers and engine under faults, in virtual time, everything drawn from one seed.
//!
//! [`run`] plays one seed: orders of a workflow go through submit, scheduler, agents and supervisors, each a process that
//! can die or stand still at any await, over a store, queues and remote services that do what such things do on a bad day.
//! Then nothing goes wrong any more, the world has to come to rest, and the [`history`] of the run is checked.
//!
//! It decides nothing of the product: all decisions are made by the code that runs in production. What is simulated is the
//! world around it. Store and messenger are in memory; in a share of the runs the store is the real adapter over
//! embedded endpoints, and in a larger share the messenger is the real one over an endpoint that answers its HTTP requests.

mod calls;
#[cfg(test)]
mod contract;
mod dice;
mod endpoint;
pub mod history;
mod node;
mod people;
mod plan;
mod port;
mod queues;
mod real;
mod report;
mod services;
mod shrink;
mod store;
mod trace;
mod world;

pub use dice::{Allowed, Class, Fired};
pub use endpoint::Mishap;
pub use plan::{Plan, workflows};
pub use real::Trouble;
pub use report::{Failure, Harm, Recovery, Report, broken, simulate};
pub use shrink::{Small, shrink};
pub use world::{OrderRun, Run, RunOptions};

use shared::workflow::Workflow;
use std::sync::Arc;

/// A defect put into the world on purpose, to see that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The store writes whatever version is there.
    IgnoresVersion,
    /// The store lets an older leader write after a newer one.
    IgnoresToken,
    /// Every attempt at a step comes with an idempotency key of its own.
    FreshKeys,
    /// The remote services forget an undo that came before what it undoes.
    NoTombstones,
    /// Notices of an end are taken and never arrive.
    DropsFinalNotice,
    /// Alerts are taken and never arrive.
    DropsAlerts,
    /// No supervisor sweeps.
    NoSweep,
    /// No supervisor finds the tasks that have begun.
    NoMovedSweep,
    /// Messages are deleted before they are handled.
    DeletesFirst,
    /// The answers of SQS and EventBridge do not say what was refused; the real messenger reads them.
    HidesRefusals,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::IgnoresVersion,
        Self::IgnoresToken,
        Self::FreshKeys,
        Self::NoTombstones,
        Self::DropsFinalNotice,
        Self::DropsAlerts,
        Self::NoSweep,
        Self::NoMovedSweep,
        Self::DeletesFirst,
        Self::HidesRefusals,
    ];
}

/// One run in so many goes over the real store, and five times as many over the real messenger, unless somebody says otherwise: a
/// seed does the same wherever it is played.
pub const ADAPTER_EVERY: u64 = 20;

/// Which workflows, over which store.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Each seed takes one of them.
    pub workflows: Vec<Arc<Workflow>>,
    /// One run in so many goes over the real store, and five times as many over the real messenger; 0: none.
    pub real_every: u64,
    /// The command that plays seeds with these settings, without `--seed`: a report says how a seed is played again.
    pub command: String,
}

/// Plays one seed.
#[must_use]
pub fn run(seed: u64, settings: &Settings, options: &RunOptions) -> Run {
    world::run(Plan::new(seed, &settings.workflows, settings.real_every), options)
}
