//! A record as it is stored, readable or not, and the write that replaces it with a readable one.

use crate::item::{self, ASIDE, ASIDE_TOLD, Item, n, s};
use crate::state_store::{self, DynamoStore};
use aws_sdk_dynamodb::types::{AttributeValue, Put};
use shared::order::{self, Id};
use shared::outputs;
use shared::ports::Error;
use shared::task::Task;
use std::collections::BTreeMap;

/// The attribute that holds the text of a record.
const TEXT: &str = "task";
/// The attributes that distinguish one save of a record from another.
const SAVE: [&str; 3] = [TEXT, "version", "stamp"];
/// Attributes that sweeps write beside an unreadable record.
const NOTES: [&str; 2] = [ASIDE, ASIDE_TOLD];

/// A record as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Raw {
    item: Item,
}

impl Raw {
    /// The text as stored; empty if the record has no text.
    #[must_use]
    pub fn text(&self) -> &str {
        self.item.get(TEXT).and_then(|value| value.as_s().ok()).map_or("", String::as_str)
    }

    /// The other attributes by name, as text.
    #[must_use]
    pub fn columns(&self) -> BTreeMap<String, String> {
        let columns = self.item.iter().filter(|(name, _)| *name != TEXT && !NOTES.contains(&name.as_str()));
        columns.map(|(name, value)| (name.clone(), plain(value))).collect()
    }

    /// A mark of exactly this save. It changes whenever the record is written, but not with sweeps' notes beside it.
    #[must_use]
    pub fn mark(&self) -> String {
        let parts = SAVE.map(|name| self.item.get(name).map_or_else(String::new, plain));
        order::canonical_hash(&serde_json::json!(parts))[..16].to_owned()
    }

    /// The task in it.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: why it cannot be read.
    pub fn task(&self) -> Result<Task, Error> {
        item::to_task(&self.item)
    }

    /// The task with `text` instead of the stored text.
    ///
    /// # Errors
    /// [`Error::Corrupt`]: why that cannot be read either.
    pub fn with_text(&self, text: &str) -> Result<Task, Error> {
        let mut item = self.item.clone();
        item.insert(TEXT.into(), s(text));
        item::to_task(&item)
    }

    /// Whether it is in the due index, so that its shard is known.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.item.contains_key("due")
    }
}

/// An attribute as text.
fn plain(value: &AttributeValue) -> String {
    match value {
        AttributeValue::S(text) | AttributeValue::N(text) => text.clone(),
        AttributeValue::Bool(is) => is.to_string(),
        AttributeValue::B(bytes) => format!("{} bytes", bytes.as_ref().len()),
        _ => "neither text nor number".into(),
    }
}

impl DynamoStore {
    /// The record of the order called `id` as it is stored (a consistent read).
    ///
    /// # Errors
    /// The table failed.
    pub async fn raw(&self, id: &Id) -> Result<Option<Raw>, Error> {
        let item = self.record(&id.0, &format!("task {id}")).await?;
        Ok(item.map(|item| Raw { item }))
    }

    /// Replaces `raw` with `task`, if `raw` is still stored; false if not.
    ///
    /// # Errors
    /// The table failed; [`Error::TooLarge`].
    pub async fn replace_raw(&self, task: &Task, raw: &Raw) -> Result<bool, Error> {
        let item = item::from_task(task, self.retention)?;
        let mut put = Put::builder()
            .table_name(&self.state_table)
            .set_item(Some(item))
            .expression_attribute_values(":token", n(task.lease_token));
        let mut is_same = vec!["(attribute_not_exists(lease_token) OR lease_token <= :token)".to_owned()];
        for name in SAVE {
            put = put.expression_attribute_names(format!("#{name}"), name);
            is_same.push(match raw.item.get(name) {
                Some(value) => {
                    put = put.expression_attribute_values(format!(":{name}"), value.clone());
                    format!("#{name} = :{name}")
                }
                None => format!("attribute_not_exists(#{name})"),
            });
        }
        let put = state_store::put(put.condition_expression(is_same.join(" AND ")));
        // Its outputs stay, as the record does.
        let outputs = outputs::beside(task).into_iter().filter(|_| raw.item.contains_key("ttl"));
        let outputs = outputs.map(|hash| self.output_expires(&task.id, hash, None));
        self.transact(std::iter::once(put).chain(outputs).collect(), &format!("mending task {}", task.id)).await
    }
}
