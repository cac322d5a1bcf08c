//! Registered workflows: one item, `control#workflows`, with a pointer per name; a record of each change; and with a
//! definition that a person stored, its text and origin.

use crate::batch_get::Source;
use crate::control::json;
use crate::item::{Item, corrupt, s, text};
use crate::sdk_error::unavailable;
use crate::sent::Sent;
use crate::state_store::{DynamoStore, put, update};
use aws_sdk_dynamodb::operation::put_item::PutItemInput;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsInput;
use aws_sdk_dynamodb::types::{AttributeValue, Put, Update};
use jiff::fmt::serde::timestamp::millisecond;
use serde::{Deserialize, Serialize};
use shared::ports::{Error, StateStore};
use shared::registry::Pointer;
use shared::time::Timestamp;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;

/// The item with all pointers.
pub const KEY: &str = "control#workflows";
/// Prefix of names, so that none clashes with an attribute.
const NAME: &str = "workflow#";
/// Attempts at a change that collides with changes of other names.
const ATTEMPTS: u64 = 5;

/// A pointer as it is stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    /// The attribute. A change compares it as it was read, so unknown fields in it do not matter.
    raw: AttributeValue,
    /// The pointer; `None` if unreadable.
    pub pointer: Option<Pointer>,
}

/// One change of what a name stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Its meaning from then on.
    #[serde(flatten)]
    pub pointer: Pointer,
    /// Why.
    pub reason: String,
}

/// Who put a definition, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Name of the person.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub since: Timestamp,
}

/// What the last deployment of a folder brought under a name. Deploying the same definition changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Brought {
    /// The definition. Absent if the first deployment with one was taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash: Option<Hash>,
    /// The stack with the folder.
    pub stack: String,
    /// ARN of the newest version of the layer that brought one, taken back or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// How to take it back; absent once it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undo: Option<Undo>,
    /// When (UTC, milliseconds).
    #[serde(with = "millisecond::required")]
    pub since: Timestamp,
}

/// What a deployment replaced under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undo {
    /// The definition of the deployment before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub brought: Option<Hash>,
    /// Whether it made the folder's stack.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub created: bool,
    /// The change of the pointer; absent if the definition was active already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change: Option<Replaced>,
}

/// A name's meaning before a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replaced {
    /// Number of the change.
    pub version: u64,
    /// Whether the name took orders before.
    pub active: bool,
    /// The last definition that was active before; `None` for a new name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<Hash>,
    /// The one that was active before that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub previous: Option<Hash>,
}

/// A stored definition.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// What orders run.
    pub workflow: Workflow,
    /// The text as stored; `None` if only a deployment brought it.
    pub toml: Option<String>,
    /// Who stored it last; or `None`.
    pub origin: Option<Origin>,
}

fn entry_key(name: &str, version: u64) -> String {
    format!("registry#{name}#{version}")
}

fn brought_key(name: &str) -> String {
    format!("brought#{name}")
}

fn definition_key(hash: &Hash) -> String {
    format!("workflow#{hash}")
}

impl DynamoStore {
    /// All pointers, by a consistent read.
    ///
    /// # Errors
    /// The table's.
    pub async fn stored_pointers(&self) -> Result<BTreeMap<String, Stored>, Error> {
        let item = self.record(KEY, KEY).await?.unwrap_or_default();
        let stored = item.into_iter().filter_map(|(attribute, raw)| {
            let name = attribute.strip_prefix(NAME)?.to_owned();
            let read = match &raw {
                AttributeValue::S(json) => serde_json::from_str(json).map_err(|e| e.to_string()),
                _ => Err("it is not a string".into()),
            };
            if let Err(error) = &read {
                tracing::error!(workflow = name, error, "its pointer in {KEY} cannot be read, so it takes no orders");
            }
            Some((name, Stored { raw, pointer: read.ok() }))
        });
        Ok(stored.collect())
    }

    /// The number of the last change of `name`. If its pointer is unreadable or gone, the number before a free one.
    ///
    /// # Errors
    /// The table's.
    pub async fn last_change(&self, name: &str, stored: Option<&Stored>) -> Result<u64, Error> {
        if let Some(pointer) = stored.and_then(|stored| stored.pointer.as_ref()) {
            return Ok(pointer.version);
        }
        let mut free = 1;
        // A change after such a gap takes a free power of two and counts on, so nothing is beyond the first free one.
        while self.record(&entry_key(name, free), "the history of a workflow").await?.is_some() {
            free *= 2;
        }
        Ok(free - 1)
    }

    /// What the last deployment of a folder brought under `name`. An unreadable one counts as none.
    ///
    /// # Errors
    /// The table's.
    pub async fn brought(&self, name: &str) -> Result<Option<Brought>, Error> {
        let what = format!("what was deployed as workflow `{name}`");
        let item = self.record(&brought_key(name), &what).await?;
        Ok(item.and_then(|item| serde_json::from_str(text(&item, "brought", &what).ok()?).ok()))
    }

    /// Records what a deployment of a folder brought under `name`, which means it already.
    ///
    /// # Errors
    /// The table's.
    pub async fn keep_brought(&self, name: &str, brought: &Brought) -> Result<(), Error> {
        let put = PutItemInput::builder().table_name(&self.state_table).item("pk", s(brought_key(name)));
        let put = put.item("brought", json(brought));
        put.sent(&self.client)
            .await
            .map(drop)
            .map_err(|e| unavailable(&format!("what was deployed as workflow `{name}`"), e))
    }

    /// Sets the pointer of `name` to `next` if `seen` is still stored (`None`: no pointer), with a record of the change
    /// and of what a deployment `brought`. Otherwise false: someone else was faster.
    ///
    /// # Errors
    /// The table's.
    pub async fn set_pointer(
        &self,
        name: &str,
        next: &Pointer,
        seen: Option<&Stored>,
        reason: &str,
        brought: Option<&Brought>,
    ) -> Result<bool, Error> {
        let what = format!("workflow `{name}`");
        let pointer = Update::builder()
            .table_name(&self.state_table)
            .key("pk", s(KEY))
            .update_expression("SET #pointer = :next")
            .expression_attribute_names("#pointer", format!("{NAME}{name}"))
            .expression_attribute_values(":next", json(next));
        let pointer = match seen {
            None => pointer.condition_expression("attribute_not_exists(#pointer)"),
            Some(seen) => {
                pointer.condition_expression("#pointer = :seen").expression_attribute_values(":seen", seen.raw.clone())
            }
        };
        let entry = Entry { pointer: next.clone(), reason: reason.to_owned() };
        let record = |key: String| Put::builder().table_name(&self.state_table).item("pk", s(key));
        let mut items = vec![update(pointer), put(record(entry_key(name, next.version)).item("entry", json(&entry)))];
        items.extend(brought.map(|brought| put(record(brought_key(name)).item("brought", json(brought)))));
        for attempt in 1.. {
            let request = TransactWriteItemsInput::builder().set_transact_items(Some(items.clone()));
            let Err(error) = request.sent(&self.client).await else { return Ok(true) };
            if !error.as_service_error().is_some_and(|e| e.is_transaction_canceled_exception()) {
                return Err(unavailable(&what, error));
            }
            // The cause is the condition, or a simultaneous change of another name. Not our own write with a lost
            // answer: the SDK retries with the same token.
            if self.stored_pointers().await?.get(name) != seen {
                return Ok(false);
            }
            if attempt == ATTEMPTS {
                return Err(unavailable(&what, error));
            }
            tokio::time::sleep(std::time::Duration::from_millis(fastrand::u64(20..60) * attempt)).await;
        }
        unreachable!("the loop returns at its last attempt")
    }

    /// Up to `limit` changes of `name`, newest first, from `version` down. Missing and unreadable ones are left out.
    ///
    /// # Errors
    /// The table's.
    pub async fn pointer_history(&self, name: &str, version: u64, limit: u64) -> Result<Vec<Entry>, Error> {
        let versions: Vec<u64> = (version.saturating_sub(limit) + 1..=version).rev().collect();
        let key = |version: &u64| Item::from([("pk".into(), s(entry_key(name, *version)))]);
        let keys: Vec<Item> = versions.iter().map(key).collect();
        let what = |n: usize| format!("change {} of workflow `{name}`", versions[n]);
        let read = self.get_all(Source::consistent(&self.state_table), &keys, what).await;
        let mut entries = Vec::with_capacity(read.len());
        for (n, item) in read.into_iter().enumerate() {
            let Some(item) = item? else { continue };
            let read = text(&item, "entry", &what(n)).map_err(|e| e.to_string());
            match read.and_then(|json| serde_json::from_str(json).map_err(|e| e.to_string())) {
                Ok(entry) => entries.push(entry),
                Err(error) => tracing::warn!(error, "{} cannot be read", what(n)),
            }
        }
        Ok(entries)
    }

    /// Stores a definition with its text and its origin, after the calls that are part of it. Replaces whatever is
    /// under its hash, which is the same definition or damaged.
    ///
    /// # Errors
    /// The table's.
    pub async fn keep_definition(&self, workflow: &Workflow, toml: &str, origin: &Origin) -> Result<(), Error> {
        for call in workflow.calls() {
            self.put_workflow(call).await?;
        }
        let hash = workflow.hash();
        let put = PutItemInput::builder().table_name(&self.state_table).item("pk", s(definition_key(&hash)));
        let put = put.item("name", s(&workflow.name)).item("workflow", json(workflow));
        let put = put.item("toml", s(toml)).item("origin", json(origin));
        put.sent(&self.client).await.map(drop).map_err(|e| unavailable(&format!("workflow {hash}"), e))
    }

    /// The definition with this hash, and where it comes from.
    ///
    /// # Errors
    /// The table's; [`Error::Corrupt`] if the definition cannot be read.
    pub async fn definition(&self, hash: &Hash) -> Result<Option<Definition>, Error> {
        let what = format!("workflow {hash}");
        let Some(item) = self.record(&definition_key(hash), &what).await? else { return Ok(None) };
        let recorded = Workflow::recorded(text(&item, "workflow", &what)?, hash).map_err(|why| corrupt(&what, why))?;
        let kept = |name: &str| text(&item, name, &what).ok();
        Ok(Some(Definition {
            workflow: recorded,
            toml: kept("toml").map(str::to_owned),
            origin: kept("origin").and_then(|json| serde_json::from_str(json).ok()),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // A version without rollbacks wrote the first; a later one may add fields.
    #[test]
    fn what_was_brought_is_read_whoever_wrote_it() {
        let old: Brought = serde_json::from_str(r#"{"hash":"a","stack":"s","since":5}"#).unwrap();
        assert_eq!((old.hash, old.layer, old.undo), (Some(Hash("a".into())), None, None));
        let later =
            r#"{"stack":"s","layer":"l:3","undo":{"change":{"version":2,"active":true,"x":1},"x":1},"since":5,"x":1}"#;
        let later: Brought = serde_json::from_str(later).unwrap();
        let undo = later.undo.unwrap();
        assert_eq!((later.hash, undo.created, undo.change.unwrap().last), (None, false, None));
    }
}
