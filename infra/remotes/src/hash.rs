//! A hash of what a call says, so that a key used again for something else is noticed.

use serde_json::Value;
use sha2::{Digest, Sha256};

/// SHA-256 over the order id and the input. The order of object members does not enter, so a client may
/// keep its input in any map.
pub(crate) fn body_hash(order_id: &str, input: &Value) -> [u8; 32] {
    let mut hasher = Sha256::new();
    text(&mut hasher, order_id);
    value(&mut hasher, input);
    hasher.finalize().into()
}

/// Every kind starts with its own letter and a length, so that no two values give the same bytes.
fn value(hasher: &mut Sha256, of: &Value) {
    match of {
        Value::Null => hasher.update(b"0"),
        Value::Bool(true) => hasher.update(b"t"),
        Value::Bool(false) => hasher.update(b"f"),
        Value::Number(number) => {
            hasher.update(b"n");
            text(hasher, &number.to_string());
        }
        Value::String(string) => {
            hasher.update(b"s");
            text(hasher, string);
        }
        Value::Array(items) => {
            hasher.update(b"a");
            hasher.update((items.len() as u64).to_le_bytes());
            items.iter().for_each(|item| value(hasher, item));
        }
        Value::Object(members) => {
            hasher.update(b"o");
            hasher.update((members.len() as u64).to_le_bytes());
            // serde_json keeps insertion order when any crate of the build asks it to.
            let mut sorted: Vec<_> = members.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            for (name, member) in sorted {
                text(hasher, name);
                value(hasher, member);
            }
        }
    }
}

fn text(hasher: &mut Sha256, of: &str) {
    hasher.update((of.len() as u64).to_le_bytes());
    hasher.update(of.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn different_bodies_have_different_hashes() {
        let bodies = [
            ("a", json!({})),
            ("b", json!({})),
            ("a", json!([])),
            ("a", json!(null)),
            ("a", json!({"x": 1})),
            ("a", json!({"x": "1"})),
            ("a", json!({"x": [1, 2]})),
            ("a", json!({"x": [12]})),
            ("a", json!({"x": {"y": 1}, "z": 2})),
            ("a", json!({"x": {"y": 1, "z": 2}})),
        ];
        let hashes: std::collections::HashSet<_> =
            bodies.iter().map(|(order, input)| body_hash(order, input)).collect();
        assert_eq!(hashes.len(), bodies.len());
    }
}
