//! Hosts that an order's data may name.

use std::str::FromStr;

/// Longest name of a host, in bytes (RFC 1035).
const MAX_HOST: usize = 253;
const MAX_LABEL: usize = 63;

/// A deployment's allow-list: names such as `hooks.example.com`, and `*.example.com` for all names below one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosts(Vec<String>);

impl Hosts {
    /// Every name.
    #[must_use]
    pub fn any() -> Self {
        Self(vec!["*".into()])
    }

    /// Whether no host is allowed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a call may go to `host`, as a parsed URL has it: in lower case, without a port. Addresses are refused.
    #[must_use]
    pub fn allows(&self, host: &str) -> bool {
        is_name(host)
            && self.0.iter().any(|entry| match entry.strip_prefix('*') {
                Some(below) => host.len() > below.len() && host.ends_with(below),
                None => host == entry,
            })
    }
}

impl FromStr for Hosts {
    type Err = String;

    /// Reads names separated by commas.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut all = Vec::new();
        for entry in text.split(',').map(str::trim).filter(|entry| !entry.is_empty()) {
            let name = entry.strip_prefix("*.").unwrap_or(entry);
            // `*.com` would allow nearly all.
            let is_wide = name != entry && !name.contains('.');
            if is_wide || !is_name(name) || name.contains(|c: char| c.is_ascii_uppercase()) {
                return Err(format!(
                    "`{}` is not the name of a host; write it in lower case without a port, such as \
                     `hooks.example.com`, or `*.example.com` for all hosts below it",
                    entry.escape_debug()
                ));
            }
            all.push(entry.to_owned());
        }
        all.sort();
        all.dedup();
        Ok(Self(all))
    }
}

/// Whether every part of `text` fits in a host's name. Other alphabets' letters do not, because they come encoded.
#[must_use]
pub fn is_part(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_good = |c: char| c.is_ascii_alphanumeric() || c == '-';
        (1..=MAX_LABEL).contains(&label.len())
            && label.chars().all(is_good)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    text.len() <= MAX_HOST && text.split('.').all(is_label)
}

/// Whether `text` is a host's name and no address. A name whose last part begins with a digit may be read as one.
fn is_name(text: &str) -> bool {
    is_part(text) && text.rsplit('.').next().is_some_and(|last| last.starts_with(|c: char| c.is_ascii_alphabetic()))
}
