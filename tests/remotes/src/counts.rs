//! What each service was asked since it was opened, and which faults it showed. In memory only.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::Service;

/// A fault that a service showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// `transient` or `undo_transient`, answered 503: nothing is carried out.
    Unavailable,
    /// `transient` or `undo_transient`, answered 429 with `Retry-After: 1`: nothing is carried out.
    Throttled,
    /// `slow`: the call is carried out after a delay.
    Slow,
    /// `hang`: nothing is carried out, and there is no answer.
    Hang,
    /// `lost_answer`: the call is carried out; then the connection is cut, or there is no answer.
    LostAnswer,
    /// `after_deadline`: the call is carried out, and answered after the deadline.
    AfterDeadline,
    /// `permanent`: each answer "declined", including repeated ones.
    Permanent,
    /// `undo_fails`: each answer "undo failed".
    UndoFails,
    /// `outage`.
    Outage,
}

/// The counts of every service.
pub type Counts = BTreeMap<Service, ServiceCounts>;

/// The counts of one service since it was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceCounts {
    /// Well-formed forward calls, faulty ones included.
    pub calls: u64,
    /// Effects applied.
    pub applied: u64,
    /// Effects taken back.
    pub undone: u64,
    /// Tombstones written where nothing had been applied.
    pub tombstones: u64,
    /// Calls whose key already had its answer, forward and undo.
    pub replays: u64,
    /// Forward calls refused because their key was undone.
    pub refused_undone: u64,
    /// Faults shown, by kind.
    pub faults: BTreeMap<Fault, u64>,
}

/// The counters behind [`Counts`].
#[derive(Debug, Default)]
pub(crate) struct Counters(Mutex<Counts>);

impl Counters {
    pub(crate) fn add(&self, service: Service, change: impl FnOnce(&mut ServiceCounts)) {
        change(self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(service).or_default());
    }

    pub(crate) fn add_fault(&self, service: Service, fault: Fault) {
        self.add(service, |counts| *counts.faults.entry(fault).or_default() += 1);
    }

    pub(crate) fn read(&self) -> Counts {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Service::ALL.into_iter().for_each(|service| {
            all.entry(service).or_default();
        });
        all
    }
}
