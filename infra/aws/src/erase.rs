//! Erases an order: its record, its input and its outputs beside the record, all or nothing.

use crate::item::{self, Item, n, s};
use crate::sdk_error::unavailable;
use crate::sent::Sent;
use crate::state_store::{DynamoStore, delete, each_once, update};
use aws_sdk_dynamodb::operation::query::QueryInput;
use aws_sdk_dynamodb::types::{Delete, TransactWriteItem, Update};
use shared::order::Id;
use shared::outputs;
use shared::ports::Error;
use shared::task::Task;
use shared::time::Timestamp;
use shared::workflow::Hash;

/// Attributes of an order, also without a record: by whom and why it was erased, and when.
const ERASED: &str = "erased";
const ERASED_AT: &str = "erased_at";

/// An order in the order table, even if its record has expired.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The order.
    pub id: Id,
    /// When, by whom and why it was erased with its children.
    pub erased: Option<(Timestamp, String)>,
    key: Item,
    /// The keys of its labels' items.
    labels: Vec<Item>,
}

impl Kept {
    fn of(item: &Item) -> Result<Self, Error> {
        let id = Id(item::text(item, "id", "an order")?.to_owned());
        let what = format!("order {id}");
        let erased = match item.contains_key(ERASED) {
            true => Some((item::time(item, ERASED_AT, &what)?, item::text(item, ERASED, &what)?.to_owned())),
            false => None,
        };
        let (bucket, sort) = (item::text(item, "bucket", &what)?, item::text(item, "sort", &what)?);
        let key = |bucket: String| item::key_in_orders((bucket, sort.to_owned()));
        let labels: Vec<String> = match item.contains_key(item::LABELS) {
            true => serde_json::from_str(item::text(item, item::LABELS, &what)?)
                .map_err(|e| item::corrupt(&what, format!("attribute `{}`: {e}", item::LABELS)))?,
            false => Vec::new(),
        };
        // The partition's number is from when the order was accepted.
        let number = bucket.split_once('#').and_then(|(_, number)| number.parse().ok()).unwrap_or_default();
        let labels = labels.iter().map(|label| key(item::labelled(number, label))).collect();
        Ok(Self { erased, key: key(bucket.to_owned()), labels, id })
    }
}

impl DynamoStore {
    /// The order called `id`, with its record `task` unless that has expired. `None` if there was none, or if only its
    /// parent's id leads to it.
    ///
    /// # Errors
    /// A table failed.
    pub async fn kept(&self, id: &Id, task: Option<&Task>) -> Result<Option<Kept>, Error> {
        let what = format!("order {id}");
        let created_at = match task {
            Some(task) => task.created_at,
            None => match self.record(&item::used_key(id), &what).await? {
                Some(used) => item::time(&used, "created_at", &what)?,
                None => return Ok(None),
            },
        };
        let key = |buckets: u16| match task {
            Some(task) => item::order_key_of(task, buckets),
            None => item::order_key(id, created_at, buckets),
        };
        // There may have been fewer buckets.
        let keys = each_once((1..=self.order_buckets).rev().map(|buckets| item::key_in_orders(key(buckets))));
        let from = crate::batch_get::Source::consistent(&self.orders_table);
        let items: Result<Vec<_>, Error> = self.get_all(from, &keys, |_| what.clone()).await.into_iter().collect();
        items?.iter().flatten().next().map(Kept::of).transpose()
    }

    /// The children of the order called `id`, from the order table.
    ///
    /// # Errors
    /// The table failed.
    pub async fn kept_children(&self, id: &Id) -> Result<Vec<Kept>, Error> {
        let what = format!("the orders that {id} started");
        let (mut found, mut start) = (Vec::new(), None);
        loop {
            let query = QueryInput::builder().table_name(&self.orders_table).consistent_read(true);
            let query = query
                .key_condition_expression("#bucket = :bucket")
                .expression_attribute_names("#bucket", "bucket")
                .expression_attribute_values(":bucket", s(item::children_of(id)))
                .set_exclusive_start_key(start);
            let answer = query.sent(&self.client).await.map_err(|e| unavailable(&what, e))?;
            for item in answer.items() {
                found.push(Kept::of(item)?);
            }
            start = answer.last_evaluated_key.filter(|key| !key.is_empty());
            if start.is_none() {
                return Ok(found);
            }
        }
    }

    /// Replaces the record `seen` with `next`, from [`shared::erase`], and removes the order's input, key and content
    /// hash, and the outputs beside the record. All or nothing; false if `seen` is no longer stored. With `note` the
    /// order says that it and all its children are erased.
    ///
    /// # Errors
    /// The tables failed.
    pub async fn erase(
        &self,
        next: &Task,
        seen: &Task,
        kept: Option<&Kept>,
        note: Option<(Timestamp, &str)>,
    ) -> Result<bool, Error> {
        let put = self.put_as_seen(item::from_task(next, self.retention)?, seen.version, next.lease_token);
        let order = kept.into_iter().flat_map(|kept| self.erasing(kept, note));
        let without = |hash: &Hash| {
            delete(Delete::builder().table_name(&self.state_table).key("pk", s(item::output_key(&next.id, hash))))
        };
        let outputs = outputs::beside(seen).into_iter().map(without);
        let all = std::iter::once(put).chain(order).chain(outputs).collect();
        self.transact(all, &format!("erasing order {}", next.id)).await
    }

    /// Erases an order whose record and outputs have expired.
    ///
    /// # Errors
    /// The table failed.
    pub async fn erase_kept(&self, kept: &Kept, note: Option<(Timestamp, &str)>) -> Result<(), Error> {
        self.transact(self.erasing(kept, note), &format!("erasing order {}", kept.id)).await.map(drop)
    }

    /// Earlier versions can read the rest: an order with the input `null`.
    fn erasing(&self, kept: &Kept, note: Option<(Timestamp, &str)>) -> Vec<TransactWriteItem> {
        let mut order = Update::builder().table_name(&self.orders_table).set_key(Some(kept.key.clone()));
        let mut set = "SET #input = :null, #hash = :none, #key = :none".to_owned();
        for (name, attribute) in [("#input", "input"), ("#hash", "hash"), ("#key", "idempotency_key")] {
            order = order.expression_attribute_names(name, attribute);
        }
        order = order.expression_attribute_values(":null", s("null")).expression_attribute_values(":none", s(""));
        if let Some((at, text)) = note {
            set += ", #erased = if_not_exists(#erased, :erased), #at = if_not_exists(#at, :at)";
            order = order
                .expression_attribute_names("#erased", ERASED)
                .expression_attribute_names("#at", ERASED_AT)
                .expression_attribute_values(":erased", s(text))
                .expression_attribute_values(":at", n(at.as_millisecond()));
        }
        if !kept.labels.is_empty() {
            set += " REMOVE #labels";
            order = order.expression_attribute_names("#labels", item::LABELS);
        }
        let without = |key: &Item| delete(Delete::builder().table_name(&self.orders_table).set_key(Some(key.clone())));
        let order = update(order.update_expression(set));
        std::iter::once(order).chain(kept.labels.iter().map(without)).collect()
    }
}
