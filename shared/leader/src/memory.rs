//! Leases in this process, for tests and for programs of one process.

use crate::lease::{Error, Lease, LeaseStore};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// A lease store in memory.
#[derive(Debug, Default)]
pub struct MemoryLeases {
    leases: Mutex<HashMap<String, Lease>>,
}

impl LeaseStore for MemoryLeases {
    async fn read(&self, name: &str) -> Result<Option<Lease>, Error> {
        Ok(self.leases.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned())
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        let mut leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner);
        if leases.get(&lease.name) != seen {
            return Ok(false);
        }
        leases.insert(lease.name.clone(), lease.clone());
        Ok(true)
    }
}
