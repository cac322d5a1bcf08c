//! Everything in the file, read once at start.

use std::sync::Arc;

use rusqlite::Connection;
use uuid::Uuid;

use super::records::{Content, Event};
use super::writes::Standing;

#[derive(Default)]
pub(crate) struct Loaded {
    pub queues: Vec<LoadedQueue>,
    /// In the order of arrival.
    pub messages: Vec<LoadedMessage>,
    pub buses: Vec<String>,
    /// In order.
    pub events: Vec<Event>,
    /// The last process that used the file did not end cleanly.
    pub after_kill: bool,
}

pub(crate) struct LoadedQueue {
    pub id: i64,
    pub name: String,
    /// JSON object of strings.
    pub attributes: String,
    pub created_ms: i64,
    pub modified_ms: i64,
}

pub(crate) struct LoadedMessage {
    pub content: Arc<Content>,
    pub standing: Standing,
    /// Number of its last consecutive receives that the end of a process cut short.
    pub cut_short: u32,
    pub visible_ms: i64,
}

pub(super) fn everything(on: &Connection, after_kill: bool) -> rusqlite::Result<Loaded> {
    Ok(Loaded {
        after_kill,
        queues: on
            .prepare("SELECT id, name, attributes, created_ms, modified_ms FROM queues")?
            .query_map([], |row| {
                Ok(LoadedQueue {
                    id: row.get(0)?,
                    name: row.get(1)?,
                    attributes: row.get(2)?,
                    created_ms: row.get(3)?,
                    modified_ms: row.get(4)?,
                })
            })?
            .collect::<Result<_, _>>()?,
        messages: messages(on)?,
        buses: on.prepare("SELECT name FROM buses")?.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?,
        events: on
            .prepare("SELECT event FROM events ORDER BY number")?
            .query_map([], |row| json(&row.get::<_, String>(0)?))?
            .collect::<Result<_, _>>()?,
    })
}

fn messages(on: &Connection) -> rusqlite::Result<Vec<LoadedMessage>> {
    on.prepare(
        "SELECT row, queue, id, body, attributes, message_group, trace, sent_ms, visible_ms, \
         receives, first_received_ms, source, coalesce(times, 0) \
         FROM messages LEFT JOIN cut_short USING (row) ORDER BY row",
    )?
    .query_map([], |row| {
        let attributes = match row.get::<_, Option<String>>(4)? {
            Some(text) => json(&text)?,
            None => Default::default(),
        };
        let content = Content::stored(
            row.get(0)?,
            Uuid::from_bytes(row.get(2)?),
            row.get(3)?,
            attributes,
            row.get::<_, Option<String>>(5)?.map(Arc::from),
            row.get(6)?,
            row.get(7)?,
        );
        Ok(LoadedMessage {
            content: Arc::new(content),
            standing: Standing {
                queue: row.get(1)?,
                receives: row.get(9)?,
                first_received_ms: row.get(10)?,
                source: row.get::<_, Option<String>>(11)?.map(Arc::from),
            },
            cut_short: row.get(12)?,
            visible_ms: row.get(8)?,
        })
    })?
    .collect()
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into()))
}
