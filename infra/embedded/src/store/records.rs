//! The stored records of messages and events.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

pub(crate) type Attributes = BTreeMap<String, Attribute>;

/// One message attribute, in the JSON of requests and answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct Attribute {
    /// `String`, `Number` or `Binary`, with an optional `.label`.
    #[serde(default)]
    pub data_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub string_value: Option<String>,
    /// Base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binary_value: Option<String>,
}

/// A message as sent; never changes.
#[derive(Debug, Clone)]
pub(crate) struct Content {
    /// Order of arrival in the whole store, and the key there.
    pub row: i64,
    pub id: Uuid,
    pub body: String,
    /// Hexadecimal.
    pub body_md5: String,
    pub attributes: Attributes,
    pub group: Option<Arc<str>>,
    pub trace: Option<String>,
    /// UTC, milliseconds.
    pub sent_ms: i64,
}

impl Content {
    /// `body` and `attributes` have been checked.
    pub fn stored(
        row: i64,
        id: Uuid,
        body: String,
        attributes: Attributes,
        group: Option<Arc<str>>,
        trace: Option<String>,
        sent_ms: i64,
    ) -> Self {
        let body_md5 = format!("{:x}", md5::compute(&body));
        Self { row, id, body, body_md5, attributes, group, trace, sent_ms }
    }

    /// JSON for the store; `None` for no attributes.
    pub fn attributes_json(&self) -> Option<String> {
        if self.attributes.is_empty() {
            return None;
        }
        Some(serde_json::to_string(&self.attributes).expect("attributes have string keys only"))
    }
}

/// One event, as put.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// Rises with each event over all buses, in the order they become visible; the cursor of
    /// [`Events::page`](crate::Events::page).
    pub number: u64,
    /// The id that PutEvents returned.
    pub id: String,
    /// Name, not ARN.
    pub bus: String,
    /// As given by the client, or when it was put. UTC, milliseconds since 1970.
    pub time_ms: i64,
    /// The sender, as it names itself.
    pub source: String,
    /// The kind of event, which says what `detail` contains.
    pub detail_type: String,
    /// A JSON object.
    pub detail: String,
    /// ARNs of what the event is about.
    #[serde(default)]
    pub resources: Vec<String>,
    /// `TraceHeader` of the entry: an X-Ray trace header.
    #[serde(default)]
    pub trace_header: Option<String>,
}

impl Event {
    /// Of the texts that its sender gave.
    pub(crate) fn bytes(&self) -> usize {
        let resources: usize = self.resources.iter().map(String::len).sum();
        let trace_header = self.trace_header.as_deref().map_or(0, str::len);
        self.source.len() + self.detail_type.len() + self.detail.len() + resources + trace_header
    }
}
