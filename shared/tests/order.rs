//! Ids, labels and hashes of orders.

use serde_json::json;
use shared::order::*;

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
