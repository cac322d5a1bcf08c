//! The ORDER record: what was submitted, as it was submitted. Written once, in the transaction that writes the task.

use crate::time::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fmt;

/// Tenant of orders submitted without a token, by callers authorised by IAM or without authorisation.
pub const DEFAULT_TENANT: &str = "default";

/// Most labels of an order.
pub const MAX_LABELS: usize = 8;
/// Longest label, in bytes.
pub const MAX_LABEL: usize = 64;

/// What is wrong with `label`, in words to follow its name.
#[must_use]
pub fn label_fault(label: &str) -> Option<String> {
    match label {
        "" => Some("must not be empty".into()),
        _ if label.len() > MAX_LABEL => Some(format!("has {} bytes; the limit is {MAX_LABEL}", label.len())),
        _ if label.trim() != label => Some("must not begin or end with white space".into()),
        _ if label.contains(char::is_control) => Some("must not contain control characters".into()),
        _ => None,
    }
}

/// Identity of an order and of its task: `ord_` and 26 characters of Crockford's base 32.
///
/// It is derived from tenant and idempotency key, so that one key can only ever make one order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("pattern" = "^ord_[0-9a-hjkmnp-tv-z]{26}$"))]
pub struct Id(pub String);

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

impl Id {
    /// The id of the order that `tenant` submits under `idempotency_key`: 130 bits of SHA-256.
    #[must_use]
    pub fn derive(tenant: &str, idempotency_key: &str) -> Self {
        let mut hasher = Sha256::new();
        // The length separates ("ab", "c") from ("a", "bc").
        hasher.update((tenant.len() as u64).to_be_bytes());
        hasher.update(tenant.as_bytes());
        hasher.update(idempotency_key.as_bytes());
        let digest = hasher.finalize();
        let digit = |place: usize| {
            let bit = 5 * place;
            let pair = u16::from_be_bytes([digest[bit / 8], digest[bit / 8 + 1]]);
            char::from(ALPHABET[usize::from(pair >> (11 - bit % 8)) % ALPHABET.len()])
        };
        let text = "ord_".chars().chain((0..26).map(digit)).collect();
        Self(text)
    }

    /// `text` as an id, if it has the form of one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("ord_")?;
        let good = digits.len() == 26 && digits.bytes().all(|b| ALPHABET.contains(&b));
        good.then(|| Self(text.to_owned()))
    }

    /// A number spread evenly over ids, for shards and buckets.
    #[must_use]
    pub fn spread(&self) -> u32 {
        self.0.bytes().fold(0x811c_9dc5, |h: u32, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193))
    }
}

/// What was submitted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Order {
    /// Its identity, and its task's.
    pub id: Id,
    /// Tenant that owns the order.
    pub tenant: String,
    /// The submitter's key: the same key with the same submission gets the same answer.
    pub idempotency_key: String,
    /// SHA-256 of the submission in canonical JSON, hexadecimal; tells a repetition from a conflicting use of the key.
    pub hash: String,
    /// When it was accepted (UTC, milliseconds).
    pub created_at: Timestamp,
    /// The input of the workflow, as submitted.
    pub input: Value,
}

/// SHA-256 over JSON with sorted keys, hexadecimal: equal for submissions that mean the same.
#[must_use]
pub fn canonical_hash(value: &Value) -> String {
    fn feed(value: &Value, hasher: &mut Sha256) {
        match value {
            Value::Object(map) => {
                let mut keys: Vec<_> = map.keys().collect();
                keys.sort();
                hasher.update(b"{");
                for key in keys {
                    hasher.update(Value::String(key.clone()).to_string());
                    hasher.update(b":");
                    feed(&map[key], hasher);
                    hasher.update(b",");
                }
                hasher.update(b"}");
            }
            Value::Array(items) => {
                hasher.update(b"[");
                for item in items {
                    feed(item, hasher);
                    hasher.update(b",");
                }
                hasher.update(b"]");
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => hasher.update(value.to_string()),
        }
    }
    let mut hasher = Sha256::new();
    feed(value, &mut hasher);
    hasher.finalize().iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // B5, I7 of the protocol: one key, one order.
    #[test]
    fn ids_are_stable_and_keep_tenant_and_key_apart() {
        let id = Id::derive("acme", "key-1");
        assert_eq!(id, Id::derive("acme", "key-1"));
        assert_ne!(id, Id::derive("acm", "ekey-1"));
        assert_ne!(id, Id::derive("acme", "key-2"));
        // These never change: after an update, a repeated submission must find its order, and a task its shard.
        // Computed independently.
        assert_eq!((id.0.as_str(), id.spread()), ("ord_2yff5de98qadmqmk7wc74n46jg", 2879778880));
        assert_eq!(Id::parse(&id.0), Some(id));
        for bad in ["", "ord_", "ord_short", "ord_0123456789abcdefghjkmnpqril", "x"] {
            assert_eq!(Id::parse(bad), None, "{bad}");
        }
    }

    // M4: what a label may be.
    #[test]
    fn a_label_is_short_and_visible() {
        for good in ["a", "campaign-7", "größer", "a b", "x=y#z", &"x".repeat(MAX_LABEL)] {
            assert_eq!(label_fault(good), None, "{good}");
        }
        let long = "x".repeat(MAX_LABEL + 1);
        for (bad, words) in [
            ("", "empty"),
            (long.as_str(), "has 65 bytes; the limit is 64"),
            (&"ö".repeat(33), "has 66 bytes"),
            (" a", "white space"),
            ("a\u{a0}", "white space"),
            ("a\nb", "control"),
            ("a\u{85}b", "control"),
        ] {
            assert!(label_fault(bad).is_some_and(|why| why.contains(words)), "{bad:?}");
        }
    }

    #[test]
    fn canonical_hash_ignores_the_order_of_keys_only() {
        assert_eq!(canonical_hash(&json!({"a": 1, "b": [1, 2]})), canonical_hash(&json!({"b": [1, 2], "a": 1})));
        assert_ne!(canonical_hash(&json!([1, 2])), canonical_hash(&json!([2, 1])));
        assert_ne!(canonical_hash(&json!({"a": 1})), canonical_hash(&json!({"a": "1"})));
    }
}
