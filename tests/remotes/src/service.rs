//! The four services, and which of them have effects that an undo can take back.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::faults::Mistake;

/// One remote service. In JSON and in URLs its name in lower case: `inventory`, `fraud`, `payment`, `shipping`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Service {
    /// Reserves stock; the undo releases it.
    Inventory,
    /// Scores an order. A check leaves nothing behind, so an undo only writes the tombstone.
    Fraud,
    /// Charges a card; the undo refunds it.
    Payment,
    /// Books a parcel; the undo cancels it.
    Shipping,
}

impl Service {
    /// Every service, in the order of the reference workflow.
    pub const ALL: [Service; 4] = [Service::Inventory, Service::Fraud, Service::Payment, Service::Shipping];

    /// The name in URLs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Service::Inventory => "inventory",
            Service::Fraud => "fraud",
            Service::Payment => "payment",
            Service::Shipping => "shipping",
        }
    }

    /// Whether an undo has something to take back.
    pub fn is_undoable(self) -> bool {
        self != Service::Fraud
    }

    /// Its place in [`Service::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Service {
    type Err = Mistake;

    fn from_str(name: &str) -> Result<Self, Mistake> {
        Self::ALL.into_iter().find(|service| service.name() == name).ok_or_else(|| {
            Mistake(format!("no service is named `{name}`; write `inventory`, `fraud`, `payment` or `shipping`"))
        })
    }
}
