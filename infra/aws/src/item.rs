//! A task as a DynamoDB item, and back.
//!
//! The pattern's columns are separate attributes, so that a person, a condition and an index can use them. The rest is
//! one JSON string, `task`, which costs fewer bytes and less work than a tree of typed attributes.

use aws_sdk_dynamodb::types::AttributeValue;
use shared::json;
use shared::order::{Id, Order};
use shared::ports::Error;
use shared::task::{MAX_SHARDS, Task};
use shared::time::{SignedDuration, Timestamp, plus};
use shared::workflow::Hash;
use std::collections::{BTreeMap, HashMap};

/// An item as the SDK has it.
pub type Item = HashMap<String, AttributeValue>;

pub(crate) fn s(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

pub(crate) fn n(number: impl ToString) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Value of `attention` for tasks in Error.
pub const ATTENTION_ERROR: &str = "Error";
/// Value of `attention` for tasks that an operator paused: they are in no other index.
pub const ATTENTION_PAUSED: &str = "Paused";
/// Start of the value of `attention` for tasks in which a step waits; a shard of the due index follows. One value would
/// be one partition, too slow for the writes of a system in which every order waits.
pub const ATTENTION_WAITING: &str = "Waiting#";
/// Value of `attention` for unreadable records that were not yet listed as waiting for a person.
pub const ATTENTION_UNREADABLE: &str = "Unreadable";
/// Key of the item that exists once a retention was ever set. From then on each submission writes a [`used_id`].
pub const KEEPS_IDS: &str = "control#used-ids";
/// Attribute of an unreadable record: why. The next save, which writes the whole item, removes this and the one below.
pub const ASIDE: &str = "aside";
/// Attribute of such a record: whether an operator was alerted.
pub const ASIDE_TOLD: &str = "aside_told";

/// How long to keep the record of `task` after it ended well (zero: forever), by its workflow or else the `deployment`.
#[must_use]
pub fn kept_for(task: &Task, deployment: SignedDuration) -> SignedDuration {
    task.retention.map_or(deployment, |days| SignedDuration::from_hours(24 * i64::from(days)))
}

/// The TASK item. `ttl` is set once the task has ended well, owes nothing, and its id is [kept](used_id) elsewhere.
///
/// # Errors
/// [`Error::TooLarge`] beyond [`Task::most_bytes`].
pub fn from_task(task: &Task, retention: SignedDuration) -> Result<Item, Error> {
    let json = serde_json::to_string(task).expect("a task has only string keys");
    if json.len() > task.most_bytes() {
        let what = format!("the record of order {}", task.id);
        return Err(Error::TooLarge { what, bytes: json.len(), limit: task.most_bytes() });
    }
    let (state, retention) = (task.process_state(), kept_for(task, retention));
    let mut item = Item::from([
        ("pk".into(), s(&task.id.0)),
        ("version".into(), n(task.version)),
        ("stamp".into(), s(&task.stamp)),
        ("process_state".into(), s(state.name())),
        ("failure_count".into(), n(task.failure_count())),
        ("created_at".into(), n(task.created_at.as_millisecond())),
        ("updated_at".into(), n(task.updated_at.as_millisecond())),
        ("task".into(), s(json)),
    ]);
    let mut put = |name: &str, value: Option<AttributeValue>| value.map(|v| item.insert(name.into(), v));
    put("locked_by", task.locked_by().map(s));
    put("complete_by", task.complete_by().map(|t| n(t.as_millisecond())));
    put("lease_token", (task.lease_token > 0).then(|| n(task.lease_token)));
    if let Some(due) = task.due {
        put("shard", Some(s(shard(task.shard))));
        put("due", Some(n(due.as_millisecond())));
    } else if task.expires
        && !retention.is_zero()
        && state.is_final()
        && state != shared::task::ProcessState::Error
        && task.parent.as_ref().is_none_or(|parent| parent.released)
    {
        put("ttl", Some(n(plus(task.updated_at, retention).as_second())));
    }
    // A sparse index: an order that never waits or has trouble is not written to it.
    if state == shared::task::ProcessState::Error {
        put("attention", Some(s(ATTENTION_ERROR)));
    } else if task.paused_at.is_some() {
        put("attention", Some(s(ATTENTION_PAUSED)));
    } else if task.is_waiting() {
        put("attention", Some(s(waiting(task.shard))));
    }
    Ok(item)
}

/// The item that keeps the id of a task whose own item expires. Without it the same idempotency key would make a second
/// order with the first one's id and its keys at the services. It never expires.
#[must_use]
pub fn used_id(task: &Task) -> Item {
    Item::from([("pk".into(), s(used_key(&task.id))), ("created_at".into(), n(task.created_at.as_millisecond()))])
}

/// The key of that item.
#[must_use]
pub fn used_key(id: &Id) -> String {
    format!("used#{id}")
}

/// The partition of the order table with the children of the order `id`.
#[must_use]
pub fn children_of(id: &Id) -> String {
    format!("children#{id}")
}

/// The partition of the order table with this label's orders, for the bucket `bucket`.
#[must_use]
pub fn labelled(bucket: u32, label: &str) -> String {
    format!("label#{bucket:03}#{label}")
}

/// Attribute with an order's labels, as JSON. Needed once its record has expired.
pub const LABELS: &str = "labels";

/// An item per label of an order, so that lists find it by label. Orders without labels, and children, have none.
#[must_use]
pub fn labels_of(task: &Task, buckets: u16) -> Vec<Item> {
    let bucket = task.id.spread() % u32::from(buckets.max(1));
    let (_, sort) = order_key(&task.id, task.created_at, buckets);
    let item = |label: &String| {
        Item::from([
            ("bucket".into(), s(labelled(bucket, label))),
            ("sort".into(), s(&sort)),
            ("tenant".into(), s(&task.tenant)),
        ])
    };
    task.labels.iter().map(item).collect()
}

/// The key of an output beside the record of the order `id`.
#[must_use]
pub fn output_key(id: &Id, hash: &Hash) -> String {
    format!("output#{id}#{hash}")
}

/// The key of a part of the due index.
#[must_use]
pub fn shard(number: u16) -> String {
    format!("{number:03}")
}

/// The value of `attention` for a task in this part of the due index in which a step waits.
#[must_use]
pub fn waiting(part: u16) -> String {
    format!("{ATTENTION_WAITING}{}", shard(part % MAX_SHARDS))
}

/// The attributes that [`from_task`] writes, and those of a record that was set aside. Writing a whole item would lose
/// others.
const COLUMNS: [&str; 17] = [
    "pk",
    "version",
    "stamp",
    "process_state",
    "failure_count",
    "created_at",
    "updated_at",
    "task",
    "locked_by",
    "complete_by",
    "lease_token",
    "shard",
    "due",
    "ttl",
    "attention",
    ASIDE,
    ASIDE_TOLD,
];

/// The TASK in an item.
///
/// # Errors
/// [`Error::Corrupt`] if [`from_task`] did not write it, or if it contains something that this version does not know.
pub fn to_task(item: &Item) -> Result<Task, Error> {
    let id = Id(text(item, "pk", "task")?.to_owned());
    let what = format!("task {id}");
    let record = text(item, "task", &what)?;
    let mut task: Task =
        json::read_own(record).map_err(|e| corrupt(&what, json::why_unread(&e, "attribute `task`")))?;
    // Replication of the first kind adds attributes that AWS maintains itself.
    if let Some(name) = item.keys().find(|name| !COLUMNS.contains(&name.as_str()) && !name.starts_with("aws:")) {
        return Err(corrupt(&what, format!("{}: unknown attribute `{name}`", json::NEWER)));
    }
    task.id = id;
    read_columns(&mut task, item, &what).map_err(|error| match error {
        Error::Corrupt { what, why } => corrupt(&what, format!("{}: {why}", json::DAMAGED)),
        error @ (Error::Unavailable { .. } | Error::TooLarge { .. }) => error,
    })?;
    Ok(task)
}

fn read_columns(task: &mut Task, item: &Item, what: &str) -> Result<(), Error> {
    task.version = number(item, "version", what)?;
    task.stamp = text(item, "stamp", what)?.to_owned();
    task.created_at = time(item, "created_at", what)?;
    task.updated_at = time(item, "updated_at", what)?;
    task.lease_token = if item.contains_key("lease_token") { number(item, "lease_token", what)? } else { 0 };
    if item.contains_key("due") {
        task.due = Some(time(item, "due", what)?);
        task.shard =
            text(item, "shard", what)?.parse().map_err(|e| corrupt(what, format!("attribute `shard`: {e}")))?;
    }
    Ok(())
}

/// Partition of the order table: month and bucket. So listing orders by time needs no index.
#[must_use]
pub fn order_key(id: &Id, created_at: Timestamp, buckets: u16) -> (String, String) {
    let bucket = id.spread() % u32::from(buckets.max(1));
    (bucket_name(created_at, bucket), format!("{:013}#{id}", created_at.as_millisecond()))
}

/// A key of the order table, from [`order_key`] or [`order_key_of`].
pub(crate) fn key_in_orders((bucket, sort): (String, String)) -> Item {
    Item::from([("bucket".into(), s(bucket)), ("sort".into(), s(sort))])
}

/// [`order_key`] for the order of `task`. Children of an order are in one partition, not among submitted orders.
#[must_use]
pub fn order_key_of(task: &Task, buckets: u16) -> (String, String) {
    let (bucket, sort) = order_key(&task.id, task.created_at, buckets);
    (task.parent.as_ref().map_or(bucket, |parent| children_of(&parent.id)), sort)
}

pub(crate) fn bucket_name(at: Timestamp, bucket: u32) -> String {
    let date = at.to_zoned(jiff::tz::TimeZone::UTC);
    format!("{:04}-{:02}#{bucket:03}", date.year(), date.month())
}

/// The ORDER item.
///
/// # Errors
/// [`Error::TooLarge`] beyond DynamoDB's 400 KB.
pub fn from_order(order: &Order, buckets: u16) -> Result<Item, Error> {
    const LIMIT: usize = 390 * 1024;
    let input = serde_json::to_string(&order.input).expect("JSON has only string keys");
    if input.len() > LIMIT {
        return Err(Error::TooLarge { what: format!("order {}", order.id), bytes: input.len(), limit: LIMIT });
    }
    let (bucket, sort) = order_key(&order.id, order.created_at, buckets);
    Ok(Item::from([
        ("bucket".into(), s(bucket)),
        ("sort".into(), s(sort)),
        ("id".into(), s(&order.id.0)),
        ("tenant".into(), s(&order.tenant)),
        ("idempotency_key".into(), s(&order.idempotency_key)),
        ("hash".into(), s(&order.hash)),
        ("created_at".into(), n(order.created_at.as_millisecond())),
        ("input".into(), s(input)),
    ]))
}

/// The ORDER in an item.
///
/// # Errors
/// [`Error::Corrupt`] if it is not one that [`from_order`] wrote.
pub fn to_order(item: &Item) -> Result<Order, Error> {
    let id = Id(text(item, "id", "order")?.to_owned());
    let what = format!("order {id}");
    Ok(Order {
        tenant: text(item, "tenant", &what)?.to_owned(),
        idempotency_key: text(item, "idempotency_key", &what)?.to_owned(),
        hash: text(item, "hash", &what)?.to_owned(),
        created_at: time(item, "created_at", &what)?,
        input: json::read_own(text(item, "input", &what)?)
            .map_err(|e| corrupt(&what, format!("attribute `input`: {e}")))?,
        id,
    })
}

pub(crate) fn corrupt(what: &str, why: String) -> Error {
    Error::Corrupt { what: what.to_owned(), why }
}

pub(crate) fn text<'a>(item: &'a Item, name: &str, what: &str) -> Result<&'a str, Error> {
    match item.get(name) {
        Some(AttributeValue::S(text)) => Ok(text),
        Some(_) => Err(corrupt(what, format!("attribute `{name}` is not a string"))),
        None => Err(corrupt(what, format!("attribute `{name}` is missing"))),
    }
}

pub(crate) fn number<T: std::str::FromStr>(item: &Item, name: &str, what: &str) -> Result<T, Error> {
    match item.get(name) {
        Some(AttributeValue::N(text)) => {
            text.parse().map_err(|_| corrupt(what, format!("attribute `{name}` is not a whole number: {text}")))
        }
        Some(_) => Err(corrupt(what, format!("attribute `{name}` is not a number"))),
        None => Err(corrupt(what, format!("attribute `{name}` is missing"))),
    }
}

pub(crate) fn time(item: &Item, name: &str, what: &str) -> Result<Timestamp, Error> {
    let ms = number(item, name, what)?;
    Timestamp::from_millisecond(ms).map_err(|e| corrupt(what, format!("attribute `{name}`: {e}")))
}

/// A key as the text of a cursor.
pub(crate) fn to_cursor(key: &Item) -> String {
    let plain: BTreeMap<&str, (&str, &str)> = key
        .iter()
        .filter_map(|(name, value)| match value {
            AttributeValue::S(text) => Some((name.as_str(), ("S", text.as_str()))),
            AttributeValue::N(text) => Some((name.as_str(), ("N", text.as_str()))),
            _ => None,
        })
        .collect();
    serde_json::to_string(&plain).expect("strings only")
}

/// The key in the text `cursor`.
pub(crate) fn from_cursor(cursor: &str, what: &str) -> Result<Item, Error> {
    let plain: BTreeMap<String, (String, String)> =
        serde_json::from_str(cursor).map_err(|e| corrupt(what, format!("cursor: {e}")))?;
    Ok(plain.into_iter().map(|(name, (kind, text))| (name, if kind == "N" { n(text) } else { s(text) })).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::task::{MOVED, Phase, Priority, Submission, moved, shard_of};
    use shared::workflow::file::{Known, parse};

    fn task(key: &str, shard: u16) -> Task {
        let text = "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"noop\"\ntimeout = \"5s\"";
        let workflow = parse("w.toml", text, Known { agents: &["noop"], inputs: &[] }).unwrap();
        let submission = Submission {
            id: Id::derive("t", key),
            tenant: "t".into(),
            reference: None,
            reply_queue: None,
            priority: Priority::High,
            shard,
        };
        Task::new(submission, &workflow, Timestamp::UNIX_EPOCH)
    }

    fn bytes(item: &Item, key: &str) -> Option<usize> {
        item.get(key).map(|value| match value {
            AttributeValue::S(text) => text.len(),
            AttributeValue::N(text) => text.len(),
            other => panic!("{key}: {other:?}"),
        })
    }

    // AWS refuses an empty string as a key, also of an index; an emulator may not.
    #[test]
    fn no_key_is_empty_and_none_is_too_long() {
        for phase in [Phase::Forward, Phase::Undoing, Phase::Processed, Phase::Undone, Phase::Error, Phase::UndoError] {
            for shard in [0, shard_of(&Id::derive("t", "k"), MAX_SHARDS, true), moved(MAX_SHARDS - 1), MOVED] {
                for due in [None, Some(Timestamp::UNIX_EPOCH)] {
                    let task = Task { phase, due, paused_at: due, ..task("k", shard) };
                    let item = from_task(&task, SignedDuration::from_hours(1)).unwrap();
                    for key in ["pk", "updated_at"] {
                        assert!((1..=1024).contains(&bytes(&item, key).unwrap()), "{key}: {item:?}");
                    }
                    for key in ["shard", "due", "attention"] {
                        assert!(bytes(&item, key).is_none_or(|n| (1..=1024).contains(&n)), "{key}: {item:?}");
                    }
                    assert_eq!(item.contains_key("shard"), item.contains_key("due"), "an index needs both: {item:?}");
                }
            }
        }
        for at in [Timestamp::UNIX_EPOCH, Timestamp::MAX] {
            let (bucket, sort) = order_key(&Id::derive("", ""), at, MAX_SHARDS);
            assert!((1..=2048).contains(&bucket.len()) && (1..=1024).contains(&sort.len()), "{bucket} {sort}");
        }
    }

    // DynamoDB expects seconds. Milliseconds would be some fifty thousand years ahead, so nothing would expire.
    #[test]
    fn time_to_live_is_in_seconds() {
        let ended = Timestamp::from_second(1_800_000_000).unwrap();
        let hour = SignedDuration::from_hours(1);
        let task = |phase, due| Task { phase, due, updated_at: ended, expires: true, ..task("k", 0) };
        let item = |phase, due| from_task(&task(phase, due), hour).unwrap();
        assert_eq!(item(Phase::Processed, None).get("ttl"), Some(&n(1_800_003_600)));
        assert_eq!(item(Phase::Undone, None).get("ttl"), Some(&n(1_800_003_600)));
        // An item stays if it alone protects its idempotency key, and so does everything without a retention.
        let keeps_key = Task { expires: false, ..task(Phase::Processed, None) };
        assert_eq!(from_task(&keeps_key, hour).unwrap().get("ttl"), None);
        assert_eq!(from_task(&task(Phase::Processed, None), SignedDuration::ZERO).unwrap().get("ttl"), None);
        // A task that is open, owes something or waits for a person is kept.
        assert_eq!(item(Phase::Processed, Some(ended)).get("ttl"), None);
        assert_eq!(item(Phase::Error, None).get("ttl"), None);
        assert_eq!(item(Phase::Forward, None).get("ttl"), None);
    }
}
