//! Everything in the file, read once at start.
//!
//! SQLite does not notice a bit that flips within a row. A row that cannot be read is left out, stays in the file, and
//! is named in the log: the rest is sound.

use std::sync::Arc;

use rusqlite::{Connection, Row};
use uuid::Uuid;

use super::records::{Content, Event};
use super::writes::Standing;

#[derive(Default)]
pub(crate) struct Loaded {
    pub queues: Vec<LoadedQueue>,
    /// In the order of arrival.
    pub messages: Vec<LoadedMessage>,
    /// The newest row of a message, which may be one that cannot be read.
    pub last_row: i64,
    pub buses: Vec<String>,
    /// In order.
    pub events: Vec<Event>,
    /// The newest number of an event, which may be one that cannot be read.
    pub last_event: u64,
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
    pub content: Content,
    pub standing: Standing,
    /// Number of its last consecutive receives that the end of a process cut short.
    pub cut_short: u32,
    pub visible_ms: i64,
}

pub(super) fn everything(on: &Connection, after_kill: bool) -> rusqlite::Result<Loaded> {
    let number = |sql: &str| on.query_row(sql, [], |row| row.get(0));
    Ok(Loaded {
        after_kill,
        // Messages need their queue, so no queue is left out.
        queues: rows(on, "queues", "SELECT id, name, attributes, created_ms, modified_ms FROM queues", |row| {
            Ok(LoadedQueue {
                id: row.get(0)?,
                name: text(row, 1),
                attributes: text(row, 2),
                created_ms: row.get(3).unwrap_or_default(),
                modified_ms: row.get(4).unwrap_or_default(),
            })
        })?,
        messages: messages(on)?,
        last_row: number("SELECT coalesce(max(row), 0) FROM messages")?,
        buses: rows(on, "buses", "SELECT rowid, name FROM buses", |row| row.get(1))?,
        events: rows(on, "events", "SELECT number, event FROM events ORDER BY number", |row| {
            // The events are in the order of their keys, and are forgotten by them.
            Ok(Event { number: row.get(0)?, ..json(&row.get::<_, String>(1)?)? })
        })?,
        last_event: u64::try_from(number("SELECT coalesce(max(number), 0) FROM events")?).unwrap_or_default(),
    })
}

/// The rows of a query that can be read. The first column is the number of the row.
fn rows<T>(
    on: &Connection,
    table: &str,
    sql: &str,
    read: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    let mut statement = on.prepare(sql)?;
    let mut found = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = found.next()? {
        match read(row) {
            Ok(record) => all.push(record),
            Err(error) => {
                let number: i64 = row.get(0)?;
                tracing::error!(
                    "queues.db is damaged: row {number} of its table `{table}` cannot be read ({error}). It is left out \
                     and stays in the file; the rest is used"
                );
            }
        }
    }
    Ok(all)
}

/// A text of which the damaged characters are replaced.
fn text(row: &Row<'_>, column: usize) -> String {
    let bytes = row.get_ref(column).ok().and_then(|value| value.as_bytes().ok()).unwrap_or_default();
    String::from_utf8_lossy(bytes).into_owned()
}

fn messages(on: &Connection) -> rusqlite::Result<Vec<LoadedMessage>> {
    let sql = "SELECT row, queue, id, body, attributes, message_group, trace, sent_ms, visible_ms, \
               receives, first_received_ms, source, coalesce(times, 0) \
               FROM messages LEFT JOIN cut_short USING (row) ORDER BY row";
    rows(on, "messages", sql, |row| {
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
            content,
            standing: Standing {
                queue: row.get(1)?,
                receives: row.get(9)?,
                first_received_ms: row.get(10)?,
                source: row.get::<_, Option<String>>(11)?.map(Arc::from),
            },
            cut_short: row.get(12)?,
            visible_ms: row.get(8)?,
        })
    })
}

fn json<T: serde::de::DeserializeOwned>(text: &str) -> rusqlite::Result<T> {
    serde_json::from_str(text)
        .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Text, error.into()))
}
