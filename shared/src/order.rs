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
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
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
