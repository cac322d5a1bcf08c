//! The agents. A new one is a file here, and a line in [`all`].

mod fraud;
mod inventory;
mod noop;
mod payment;
mod shipping;

use crate::Agent;
use crate::remote::{Remote, client};
use std::sync::Arc;

/// Every agent, calling its remote service below the URL that `url` gives for its name.
#[must_use]
pub fn all(url: impl Fn(&str) -> String) -> Vec<Arc<dyn Agent>> {
    let http = client();
    let remote = |name: &str| Remote::new(http.clone(), &url(name));
    vec![
        Arc::new(inventory::Inventory(remote("inventory"))),
        Arc::new(fraud::Fraud(remote("fraud"))),
        Arc::new(payment::Payment(remote("payment"))),
        Arc::new(shipping::Shipping(remote("shipping"))),
        Arc::new(noop::Noop),
    ]
}

/// Names of all agents: what a workflow may use.
pub const NAMES: [&str; 5] = ["inventory", "fraud", "payment", "shipping", "noop"];

#[cfg(test)]
mod tests {
    use super::*;

    // A5: several named agents live in one function.
    #[test]
    fn every_agent_is_listed_by_its_name() {
        let names: Vec<_> = all(|_| String::new()).iter().map(|agent| agent.name()).collect();
        assert_eq!(names, NAMES);
    }
}
