//! The agents. A new one takes a line in [`all`], and a file here if it does more than call its remote service.

mod fraud;
pub mod http;
mod noop;
mod plain;

use crate::Agent;
use crate::aws::Aws;
use crate::remote::{Remote, client};
use crate::secrets::Secrets;
use shared::pools::Layout;
use shared::workflow::hosts::Hosts;
use std::sync::Arc;

/// What calls from workflow files need.
#[derive(Clone, Default)]
pub struct Means {
    /// Where secrets are.
    pub secrets: Arc<Secrets>,
    /// How AWS is called.
    pub aws: Arc<Aws>,
    /// Hosts that may come with an order.
    pub hosts: Hosts,
}

/// Every agent, calling its remote service below the URL that `url` gives for its name. `means` are for calls from
/// workflow files.
#[must_use]
pub fn all(url: impl Fn(&str) -> String, means: &Means) -> Vec<Arc<dyn Agent>> {
    let http = client();
    let remote = |name: &str| Remote::new(http.clone(), &url(name));
    let plain = |name: &'static str| Arc::new(plain::Plain { name, remote: remote(name) });
    vec![
        plain("inventory"),
        Arc::new(fraud::Fraud(remote("fraud"))),
        plain("payment"),
        plain("shipping"),
        Arc::new(noop::Noop),
        Arc::new(http::Http::new(means)),
    ]
}

/// For each pool in `layout` that is not named like its agent: the pool's name, and an agent that calls its remote
/// service below the URL that `url` gives for agent and pool.
#[must_use]
pub fn in_pools(layout: &Layout, url: impl Fn(&str, &str) -> String, means: &Means) -> Vec<(String, Arc<dyn Agent>)> {
    let pools = layout.iter().flat_map(|(agent, pools)| pools.iter().map(move |pool| (agent, pool)));
    let more = pools.filter(|(agent, pool)| agent != pool);
    more.filter_map(|(agent, pool)| {
        let called = all(|_| url(agent, pool), means).into_iter().find(|one| one.name() == agent)?;
        Some((pool.clone(), called))
    })
    .collect()
}

/// Names of all agents: what a workflow may use.
pub const NAMES: [&str; 6] = ["inventory", "fraud", "payment", "shipping", "noop", "http"];

#[cfg(test)]
mod tests {
    use super::*;

    // A5: several named agents live in one function.
    #[test]
    fn every_agent_is_listed_by_its_name() {
        let all = all(|_| String::new(), &Means::default());
        let names: Vec<_> = all.iter().map(|agent| agent.name()).collect();
        assert_eq!(names, NAMES);
        assert!(NAMES.contains(&shared::workflow::http::AGENT));
    }

    // J3: each further pool of an agent is that agent once more.
    #[test]
    fn every_further_pool_has_an_agent_of_its_own() {
        let layout = Layout::from([
            ("payment".into(), vec!["payment".into(), "payment-b".into()]),
            ("nobody".into(), vec!["x".into()]),
        ]);
        let pools = in_pools(&layout, |_, _| String::new(), &Means::default());
        let names: Vec<_> = pools.iter().map(|(pool, agent)| (pool.as_str(), agent.name())).collect();
        assert_eq!(names, [("payment-b", "payment")]);
    }
}
