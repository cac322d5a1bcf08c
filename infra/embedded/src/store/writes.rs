//! The writes and their SQL.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, Transaction, params};

use super::records::{Content, Event};

/// A write whose answer waits for the commit.
pub(crate) enum Write {
    /// Rows of messages that are about to be delivered. Each has the number of its receives that were cut short,
    /// counting this one in case the process ends now. A lazy write to the message takes this back.
    Begun(Vec<(i64, u32)>),
    Messages {
        queue: i64,
        messages: Vec<NewMessage>,
    },
    Queue {
        id: i64,
        name: String,
        attributes: String,
        created_ms: i64,
    },
    QueueAttributes {
        id: i64,
        attributes: String,
        modified_ms: i64,
    },
    /// Deletes these messages of a queue, and none that is being sent meanwhile.
    Purge {
        queue: i64,
        rows: Arc<[i64]>,
    },
    DeleteQueue {
        id: i64,
    },
    Bus {
        name: String,
        created_ms: i64,
    },
    /// Stores the events and forgets those numbered below `keep_from`.
    Events {
        events: Vec<Arc<Event>>,
        keep_from: u64,
    },
}

pub(crate) struct NewMessage {
    pub content: Arc<Content>,
    /// End of the message's delay. UTC, milliseconds.
    pub visible_ms: i64,
}

/// A write that no caller waits for.
pub(crate) enum Lazy {
    Delete,
    Update(Standing),
}

/// What changes about a message after it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Standing {
    pub queue: i64,
    pub receives: u32,
    pub first_received_ms: Option<i64>,
    /// ARN of the queue it was a dead letter of.
    pub source: Option<Arc<str>>,
}

pub(super) fn commit<'a>(
    connection: &mut Connection,
    awaited: impl Iterator<Item = &'a Write>,
    lazy: &HashMap<i64, Lazy>,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    // Written first: a purge must find the messages in the queue to which they were moved.
    for (row, write) in lazy {
        apply_lazy(&transaction, *row, write)?;
    }
    for write in awaited {
        apply(&transaction, write, lazy)?;
    }
    transaction.commit()
}

fn apply(on: &Transaction<'_>, write: &Write, lazy: &HashMap<i64, Lazy>) -> rusqlite::Result<()> {
    match write {
        Write::Messages { queue, messages } => {
            for message in messages {
                // Receivers did not wait for this commit.
                match lazy.get(&message.content.row) {
                    Some(Lazy::Delete) => {}
                    Some(update) => {
                        insert(on, *queue, message)?;
                        apply_lazy(on, message.content.row, update)?;
                    }
                    None => insert(on, *queue, message)?,
                }
            }
            return Ok(());
        }
        Write::Begun(rows) => {
            for (row, times) in rows {
                on.prepare_cached("INSERT OR REPLACE INTO cut_short VALUES (?1, ?2)")?.execute(params![row, times])?;
            }
            return Ok(());
        }
        Write::Queue { id, name, attributes, created_ms } => on
            .prepare_cached("INSERT INTO queues VALUES (?1, ?2, ?3, ?4, ?4)")?
            .execute(params![id, name, attributes, created_ms])?,
        Write::QueueAttributes { id, attributes, modified_ms } => on
            .prepare_cached("UPDATE queues SET attributes = ?2, modified_ms = ?3 WHERE id = ?1")?
            .execute(params![id, attributes, modified_ms])?,
        Write::Purge { queue, rows } => {
            // A message that has become a dead letter since is not in this queue.
            let mut delete = on.prepare_cached("DELETE FROM messages WHERE row = ?1 AND queue = ?2")?;
            for row in rows.iter() {
                delete.execute(params![row, queue])?;
            }
            return Ok(());
        }
        Write::DeleteQueue { id } => {
            on.prepare_cached("DELETE FROM messages WHERE queue = ?1")?.execute([id])?;
            on.prepare_cached("DELETE FROM queues WHERE id = ?1")?.execute([id])?
        }
        Write::Bus { name, created_ms } => {
            on.prepare_cached("INSERT OR IGNORE INTO buses VALUES (?1, ?2)")?.execute(params![name, created_ms])?
        }
        Write::Events { events, keep_from } => {
            for event in events {
                let json = serde_json::to_string(&**event).expect("events have string keys only");
                on.prepare_cached("INSERT OR REPLACE INTO events VALUES (?1, ?2)")?
                    .execute(params![event.number, json])?;
            }
            on.prepare_cached("DELETE FROM events WHERE number < ?1")?.execute([keep_from])?
        }
    };
    Ok(())
}

fn insert(on: &Transaction<'_>, queue: i64, message: &NewMessage) -> rusqlite::Result<()> {
    let NewMessage { content, visible_ms } = message;
    on.prepare_cached("INSERT INTO messages VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, 0, NULL, NULL)")?.execute(
        params![
            content.row,
            queue,
            content.id.as_bytes(),
            content.body,
            content.attributes_json(),
            content.group,
            content.trace,
            content.sent_ms,
            visible_ms,
        ],
    )?;
    Ok(())
}

fn apply_lazy(on: &Transaction<'_>, row: i64, write: &Lazy) -> rusqlite::Result<()> {
    // In either case the receive ended before the process.
    on.prepare_cached("DELETE FROM cut_short WHERE row = ?1")?.execute([row])?;
    match write {
        Lazy::Delete => {
            on.prepare_cached("DELETE FROM messages WHERE row = ?1")?.execute([row])?;
        }
        Lazy::Update(standing) => {
            on.prepare_cached(
                "UPDATE messages SET queue = ?2, receives = ?3, first_received_ms = ?4, \
                 source = ?5 WHERE row = ?1",
            )?
            .execute(params![
                row,
                standing.queue,
                standing.receives,
                standing.first_received_ms,
                standing.source,
            ])?;
        }
    }
    Ok(())
}
