//! Requests as read from the body, and the parts of answers that several operations share.
//! Names and shapes are those of the AWS JSON protocol.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::Error;
use crate::store::Attributes;

/// A request about a queue, which a new one names and every other one gives by its URL.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct OfQueue {
    #[serde(default)]
    pub queue_name: String,
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub attributes: BTreeMap<String, String>,
    #[serde(default)]
    pub attribute_names: Vec<String>,
}

/// A message to send, alone with the queue's URL, or as an entry of a batch with an id.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendBody {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub message_body: String,
    pub delay_seconds: Option<i64>,
    #[serde(default)]
    pub message_attributes: Option<Attributes>,
    #[serde(default)]
    pub message_system_attributes: Option<Attributes>,
    pub message_group_id: Option<String>,
    pub message_deduplication_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Batch<T> {
    #[serde(default)]
    pub queue_url: String,
    #[serde(default = "Vec::new")]
    pub entries: Vec<T>,
}

impl<T> Batch<T> {
    /// AWS's checks of a batch as a whole, apart from its size.
    pub fn check(&self, id: fn(&T) -> &String) -> Result<(), Error> {
        if self.entries.is_empty() {
            return Err(Error::batch_empty());
        }
        if self.entries.len() > super::BATCH_MAX {
            return Err(Error::batch_too_large(self.entries.len()));
        }
        let mut seen = BTreeSet::new();
        for id in self.entries.iter().map(id) {
            let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
            if !(1..=80).contains(&id.len()) || !id.bytes().all(allowed) {
                return Err(Error::batch_id());
            }
            if !seen.insert(id) {
                return Err(Error::batch_id_repeated(id));
            }
        }
        Ok(())
    }
}

/// The outcome of a batch: each entry is in one of the two lists.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct BatchOutcome<T> {
    pub successful: Vec<T>,
    pub failed: Vec<FailedEntry>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct FailedEntry {
    pub id: String,
    pub sender_fault: bool,
    pub code: &'static str,
    pub message: String,
}

impl FailedEntry {
    pub fn new(id: String, error: Error) -> Self {
        Self { id, sender_fault: error.is_sender_fault(), code: error.code, message: error.message }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct EntryId {
    pub id: String,
}

/// A received message to delete, or to hide for another time: alone with the queue's URL, or as an entry of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Received {
    #[serde(default)]
    pub id: String,
    #[serde(default)]
    pub queue_url: String,
    #[serde(default)]
    pub receipt_handle: String,
    pub visibility_timeout: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Receive {
    #[serde(default)]
    pub queue_url: String,
    /// The older name of the next field.
    #[serde(default)]
    pub attribute_names: Vec<String>,
    #[serde(default)]
    pub message_system_attribute_names: Vec<String>,
    #[serde(default)]
    pub message_attribute_names: Vec<String>,
    pub max_number_of_messages: Option<i64>,
    pub visibility_timeout: Option<i64>,
    pub wait_time_seconds: Option<i64>,
}

/// `value`, or an error that names the parameter and its bounds.
pub(crate) fn bounded(name: &str, value: i64, min: i64, max: i64) -> Result<i64, Error> {
    if (min..=max).contains(&value) {
        return Ok(value);
    }
    Err(Error::parameter(name, format!("{value} is not within {min} and {max}")))
}
