//! Reply queues: the registered names that submissions may give for their notices, and the tenants that may use each.

use shared::order::DEFAULT_TENANT;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Longest name of a reply queue. SQS takes 80 characters, prefix and `notices-` included.
const MAX_NAME: usize = 40;

/// The tenants whose orders may name a queue, or [`EVERYONE`].
type Owners = BTreeSet<String>;

/// Stands for every tenant.
const EVERYONE: &str = "*";

fn include(owners: &Owners, tenant: &str) -> bool {
    owners.contains(EVERYONE) || owners.contains(tenant)
}

/// The reply queues of a system, by name.
///
/// As text: `NAME=TENANT,TENANT;NAME=*`. `*` means every tenant. A name alone belongs to the tenant `default`, which
/// orders without a caller's tenant have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyQueues(BTreeMap<String, Owners>);

impl ReplyQueues {
    /// Whether orders of `tenant` may name this queue.
    #[must_use]
    pub fn allow(&self, name: &str, tenant: &str) -> bool {
        self.0.get(name).is_some_and(|owners| include(owners, tenant))
    }

    /// The names of all queues.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The names of the queues that orders of `tenant` may name.
    pub fn names_of<'a>(&'a self, tenant: &'a str) -> impl Iterator<Item = &'a String> {
        self.0.iter().filter(move |(_, owners)| include(owners, tenant)).map(|(name, _)| name)
    }

    /// These queues and those of `other`.
    ///
    /// # Errors
    /// In words, the name of a queue that is in both.
    pub fn with(mut self, other: Self) -> Result<Self, String> {
        for (name, owners) in other.0 {
            self.insert(name, owners)?;
        }
        Ok(self)
    }

    fn insert(&mut self, name: String, owners: Owners) -> Result<(), String> {
        if self.0.contains_key(&name) {
            return Err(format!("reply queue `{name}` is named twice; list all its tenants in one place"));
        }
        self.0.insert(name, owners);
        Ok(())
    }
}

fn owners(text: &str, name: &str) -> Result<Owners, String> {
    let tenants: Vec<&str> = text.split(',').map(str::trim).collect();
    match tenants.iter().find(|tenant| tenant.is_empty() || **tenant == EVERYONE && tenants.len() > 1) {
        Some(&EVERYONE) => Err(format!(
            "reply queue `{name}` has `*` among its tenants; to allow every tenant, write `{name}=*` alone"
        )),
        Some(_) => Err(format!("reply queue `{name}` has an empty tenant name; write {name}=TENANT,TENANT")),
        None => Ok(tenants.into_iter().map(str::to_owned).collect()),
    }
}

impl FromStr for ReplyQueues {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Self::default();
        for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, owners) = match part.split_once('=') {
                Some((name, owners)) => (name.trim(), self::owners(owners, name.trim())?),
                None => (part, BTreeSet::from([DEFAULT_TENANT.to_owned()])),
            };
            let is_good = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(is_good) {
                return Err(format!(
                    "`{name}` cannot name a reply queue; write 1 to {MAX_NAME} letters, digits, `-` or `_`, then its \
                     tenants, and `;` between queues: NAME=TENANT,TENANT;NAME=*"
                ));
            }
            all.insert(name.to_owned(), owners)?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Only the orders of its tenants may name a queue.
    #[test]
    fn a_queue_belongs_to_the_tenants_it_is_configured_for() {
        let queues: ReplyQueues = "default; acme=acme ;both=acme, beta;all=*".parse().unwrap();
        let table = [("default", "default"), ("acme", "acme"), ("acme", "both"), ("beta", "both")];
        for tenant in ["default", "acme", "beta", "*", ""] {
            for name in ["default", "acme", "both"] {
                assert_eq!(queues.allow(name, tenant), table.contains(&(tenant, name)), "{tenant} {name}");
            }
            assert!(queues.allow("all", tenant) && !queues.allow("none", tenant));
        }
        assert_eq!(queues.names_of("beta").collect::<Vec<_>>(), ["all", "both"]);
        assert_eq!(queues.names().collect::<Vec<_>>(), ["acme", "all", "both", "default"]);
        assert_eq!("".parse(), Ok(ReplyQueues::default()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, word) in [
            ("a,b", "`;` between queues"),
            ("=acme", "cannot name"),
            ("a b=acme", "cannot name"),
            ("a=", "an empty tenant name"),
            ("a=acme,", "an empty tenant name"),
            ("a=acme,*", "`a=*` alone"),
            ("a=x;a=y", "named twice"),
        ] {
            let why = text.parse::<ReplyQueues>().unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        let [one, same]: [ReplyQueues; 2] = ["a=x", "a"].map(|text| text.parse().unwrap());
        assert!(one.with(same).unwrap_err().contains("named twice"));
    }
}
