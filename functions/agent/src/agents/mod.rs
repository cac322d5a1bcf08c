//! The agents. A new one is a file here, and a line in [`all`].

mod fraud;
mod inventory;
mod noop;
mod payment;
mod shipping;

use crate::Agent;
use crate::remote::{Remote, client};
use shared::pools::Layout;
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

/// An agent for each pool in `layout` that is not called as its agent: the pool's name, and the agent, calling its remote
/// service below the URL that `url` gives for agent and pool.
#[must_use]
pub fn in_pools(layout: &Layout, url: impl Fn(&str, &str) -> String) -> Vec<(String, Arc<dyn Agent>)> {
    let pools = layout.iter().flat_map(|(agent, pools)| pools.iter().map(move |pool| (agent, pool)));
    let more = pools.filter(|(agent, pool)| agent != pool);
    more.filter_map(|(agent, pool)| {
        let called = all(|_| url(agent, pool)).into_iter().find(|one| one.name() == agent)?;
        Some((pool.clone(), called))
    })
    .collect()
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

    // J3: each further pool of an agent is that agent once more.
    #[test]
    fn every_further_pool_has_an_agent_of_its_own() {
        let layout = Layout::from([
            ("payment".into(), vec!["payment".into(), "payment-b".into()]),
            ("nobody".into(), vec!["x".into()]),
        ]);
        let pools = in_pools(&layout, |_, _| String::new());
        let names: Vec<_> = pools.iter().map(|(pool, agent)| (pool.as_str(), agent.name())).collect();
        assert_eq!(names, [("payment-b", "payment")]);
    }
}
