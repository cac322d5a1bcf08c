//! One worker instance's choices: handlers, shards, number of tasks, what it skips, what an exception causes.

use shared::order::Id;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Which handlers' tasks this instance runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Handlers {
    /// All that are registered here.
    #[default]
    Registered,
    /// Only these, if registered here.
    Only(Vec<String>),
}

/// Which shards this instance owns. Two owners of one do no harm, because claims are conditional writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Shards {
    /// All of them.
    #[default]
    All,
    /// An even share: every `hosts`-th shard, from number `host` (0 is the first) on.
    Even {
        /// Number of this host.
        host: u16,
        /// How many hosts there are.
        hosts: u16,
    },
    /// A share in proportion to this host's weight; the list is the same, in the same order, on all hosts.
    Weighted {
        /// Name of this host in the list.
        host: String,
        /// All hosts with their weights.
        weights: Vec<(String, u32)>,
    },
    /// These, fixed for this host.
    Fixed(Vec<u16>),
}

impl Shards {
    /// The shards owned, out of `0..shards`.
    #[must_use]
    pub fn owned(&self, shards: u16) -> Vec<u16> {
        match self {
            Self::All => (0..shards).collect(),
            Self::Even { host, hosts } => (*host..shards).step_by(usize::from(*hosts).max(1)).collect(),
            Self::Weighted { host, weights } => {
                let total: u64 = weights.iter().map(|(_, weight)| u64::from(*weight)).sum();
                // Weights and shards divide one line; the host at the middle of a shard's part owns it.
                let owner = |shard: u16| {
                    let place = (2 * u64::from(shard) + 1) * total;
                    let mut end = 0;
                    weights.iter().find(|(_, weight)| {
                        end += u64::from(*weight);
                        place < 2 * u64::from(shards) * end
                    })
                };
                (0..shards).filter(|&shard| owner(shard).is_some_and(|(name, _)| name == host)).collect()
            }
            Self::Fixed(own) => own.iter().copied().filter(|shard| *shard < shards).collect(),
        }
    }
}

/// The tasks in progress at this instance, which it must skip although the due query finds them.
pub trait InHand: Send + Sync {
    /// Marks it as in progress; `false` if it already was.
    fn take(&self, id: &Id) -> bool;
    /// Whether it is in progress here.
    fn has(&self, id: &Id) -> bool;
    /// Marks it as not in progress.
    fn put_back(&self, id: &Id);
}

#[derive(Debug, Default)]
pub(crate) struct InMemory(Mutex<HashSet<Id>>);

impl InHand for InMemory {
    fn take(&self, id: &Id) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone())
    }
    fn has(&self, id: &Id) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(id)
    }
    fn put_back(&self, id: &Id) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// How a handler ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thrown {
    /// It returned an error.
    Error(String),
    /// It panicked.
    Panic(String),
    /// It returned nothing by its deadline.
    Nothing,
}

impl std::fmt::Display for Thrown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error(text) => write!(f, "the handler failed: {text}"),
            Self::Panic(text) => write!(f, "the handler panicked: {text}"),
            Self::Nothing => f.write_str("the handler returned nothing by its deadline"),
        }
    }
}

/// What an exception leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThrownThen {
    /// Straight to history, for a person.
    History,
    /// A failure like any other.
    Retry,
}

/// All replaceable choices, with defaults.
#[derive(Clone)]
pub struct Strategies {
    /// Which handlers' tasks this instance runs. Default: all registered here.
    pub handlers: Handlers,
    /// Which shards it owns. Default: all.
    pub shards: Shards,
    /// Maximum number of tasks taken from one poll. Default 1000.
    pub per_poll: usize,
    /// Maximum number of handlers running here at once. Default 64.
    pub at_once: usize,
    /// Time from one poll to the next. Default one second.
    pub poll_every: Duration,
    /// The tasks in progress here. Default: a set in memory.
    pub in_hand: Arc<dyn InHand>,
    /// What follows an exception. Default: straight to history.
    pub thrown: Arc<dyn Fn(&Thrown) -> ThrownThen + Send + Sync>,
}

impl Default for Strategies {
    fn default() -> Self {
        Self {
            handlers: Handlers::default(),
            shards: Shards::default(),
            per_poll: 1000,
            at_once: 64,
            poll_every: Duration::from_secs(1),
            in_hand: Arc::new(InMemory::default()),
            thrown: Arc::new(|_| ThrownThen::History),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // H4: even, weighted, fixed by host; together all hosts own every shard exactly once.
    #[test]
    fn shards_are_shared_out_evenly_by_weight_or_as_fixed() {
        assert_eq!(Shards::All.owned(3), [0, 1, 2]);
        assert_eq!(Shards::Even { host: 1, hosts: 3 }.owned(8), [1, 4, 7]);
        assert_eq!(Shards::Fixed(vec![5, 1, 9]).owned(6), [5, 1]);
        let weights =
            vec![("big".to_owned(), 5), ("small".to_owned(), 2), ("idle".to_owned(), 0), ("tiny".to_owned(), 1)];
        let owned = |host: &str| Shards::Weighted { host: host.into(), weights: weights.clone() }.owned(16);
        assert_eq!((owned("big").len(), owned("small").len(), owned("tiny").len()), (10, 4, 2));
        assert!(owned("idle").is_empty() && owned("stranger").is_empty());
        let mut all = [owned("big"), owned("small"), owned("tiny")].concat();
        all.sort_unstable();
        assert_eq!(all, (0..16).collect::<Vec<_>>());
    }
}
