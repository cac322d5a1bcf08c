//! The simulation: Stepwarden's real handlers and engine under faults, in virtual time, everything drawn from one seed.
//!
//! [`run`] plays one seed: orders of a workflow go through submit, scheduler, agents and supervisors. Each is a process
//! that can crash or freeze at any await, over a store, queues and remote services that behave as on a bad day. Then
//! all faults end, the world must come to rest, and the [`history`] of the run is checked.
//!
//! It decides nothing about the product: the code that runs in production makes all decisions, and only the world
//! around it is simulated. Store and messenger are in memory. In a share of the runs the store is the real adapter over
//! embedded endpoints, and in a larger share the messenger is, over an endpoint that answers its HTTP requests.

mod calls;
mod dice;
mod endpoint;
pub mod history;
#[allow(missing_docs, reason = "public for `parts` only")]
mod node;
mod people;
mod plan;
#[allow(missing_docs, reason = "public for `parts` only")]
mod port;
#[allow(missing_docs, reason = "public for `parts` only")]
mod queues;
mod real;
mod report;
mod retell;
mod script;
mod services;
mod shrink;
mod store;
mod trace;
mod worker;
#[allow(missing_docs, reason = "public for `parts` only")]
mod world;

pub use dice::{Allowed, Class, Fired};
pub use plan::{Plan, workflows};
pub use report::{Failure, Harm, Recovery, Report, share_out, simulate};
pub use retell::{Heard, Retelling, Retold, Tell, Telling, Word, retell};
pub use script::{Played, REMIND, Said, Script, Scripted, Sending, Sent, UNDO, is_of, name_below, play};
pub use shrink::{Small, shrink};
pub use world::run::{OrderRun, Run};
pub use world::{CALLBACK, RunOptions};

/// What a run is made of, for the tests of this package.
pub mod parts {
    pub use crate::dice::{Dice, Draw};
    pub use crate::node::{Node, Role};
    pub use crate::port::Faulty;
    pub use crate::queues::Message;
    pub use crate::world::{REPLY_QUEUE, World};
}

use shared::workflow::Workflow;
use std::sync::Arc;

/// A defect put into the world on purpose, to test that the simulation finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The store writes without checking the version.
    IgnoresVersion,
    /// The store lets an older leader write after a newer one.
    IgnoresToken,
    /// Every attempt at a step has its own idempotency key.
    FreshKeys,
    /// The remote services forget an undo that arrived before its step.
    NoTombstones,
    /// Notices of an end are taken but never arrive.
    DropsFinalNotice,
    /// Alerts are taken but never arrive.
    DropsAlerts,
    /// No supervisor sweeps.
    NoSweep,
    /// No supervisor finds tasks that have begun.
    NoMovedSweep,
    /// Messages are deleted before they are handled.
    DeletesFirst,
    /// A process reads only once what the names of workflows stand for.
    StalePointers,
    /// The answers of SQS and EventBridge hide what was refused; only the real messenger reads them.
    HidesRefusals,
}

impl Defect {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::IgnoresVersion,
        Self::IgnoresToken,
        Self::FreshKeys,
        Self::NoTombstones,
        Self::DropsFinalNotice,
        Self::DropsAlerts,
        Self::NoSweep,
        Self::NoMovedSweep,
        Self::DeletesFirst,
        Self::StalePointers,
        Self::HidesRefusals,
    ];
}

/// By default one run in this many uses the real store, and five times as many the real messenger. It does not depend
/// on the machine, so a seed plays the same everywhere.
pub const ADAPTER_EVERY: u64 = 20;

/// Which workflows, over which store.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Each seed takes one of them.
    pub workflows: Vec<Arc<Workflow>>,
    /// The definitions of the orders that those of these workflows start, as far as they are not among them.
    pub children: Vec<Arc<Workflow>>,
    /// One run in this many uses the real store, and five times as many the real messenger; 0: none.
    pub real_every: u64,
    /// The command that plays seeds with these settings, without `--seed`: a report says how to repeat a seed.
    pub command: String,
    /// The input of all orders and what the services answer, if somebody wrote it down.
    pub script: Option<Arc<Script>>,
}

/// Plays one seed.
#[must_use]
pub fn run(seed: u64, settings: &Settings, options: &RunOptions) -> Run {
    let plan = Plan::new(seed, &settings.workflows, &settings.children, settings.real_every);
    world::run::run(plan.scripted(settings.script.clone()), options)
}
