//! Records of the state table.

use aws_sdk_dynamodb::types::AttributeValue;
use jiff::SignedDuration;
use stepwarden_aws::item::{from_task, to_task};

/// The JSON of a stored task is refused as corrupt, or is a record that is written as it was read.
pub fn task(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let number = |n: i64| AttributeValue::N(n.to_string());
    let item = std::collections::HashMap::from([
        ("pk".to_owned(), AttributeValue::S("ord_1".into())),
        ("version".to_owned(), number(3)),
        ("stamp".to_owned(), AttributeValue::S("i:1".into())),
        ("created_at".to_owned(), number(1_795_251_600_000)),
        ("updated_at".to_owned(), number(1_795_251_601_000)),
        ("task".to_owned(), AttributeValue::S(text.into())),
    ]);
    let Ok(task) = to_task(&item) else { return false };
    let Ok(written) = from_task(&task, SignedDuration::from_hours(24)) else { return false };
    assert_eq!(to_task(&written).expect("as it was written"), task);
    true
}
