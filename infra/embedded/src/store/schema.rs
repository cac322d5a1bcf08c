//! Opens the SQLite file: its tables, its version, and whether it is sound.

use std::path::Path;

use rusqlite::Connection;

use crate::Durability;

/// Frames of the log between checkpoints, 2 MB. Messages do not stay, so a checkpoint has little to write, and room for a longer
/// log would be more.
pub(super) const LOG_FRAMES: u64 = 4_000;

/// `PRAGMA user_version` of the files this build writes.
const VERSION: i64 = 1;

const TABLES: &str = "
    CREATE TABLE queues (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL UNIQUE,
        attributes TEXT NOT NULL,      -- JSON object of strings, as set
        created_ms INTEGER NOT NULL,
        modified_ms INTEGER NOT NULL
    );
    CREATE TABLE messages (
        row INTEGER PRIMARY KEY,       -- order of arrival
        queue INTEGER NOT NULL,
        id BLOB NOT NULL,              -- UUID, 16 bytes
        body TEXT NOT NULL,
        attributes TEXT,               -- JSON, as received; null for none
        message_group TEXT,
        trace TEXT,                    -- AWSTraceHeader
        sent_ms INTEGER NOT NULL,
        visible_ms INTEGER NOT NULL,   -- end of its delay
        receives INTEGER NOT NULL,
        first_received_ms INTEGER,
        source TEXT                    -- ARN of the queue it was a dead letter of
    );
    CREATE TABLE buses (
        name TEXT PRIMARY KEY,
        created_ms INTEGER NOT NULL
    );
    CREATE TABLE events (
        number INTEGER PRIMARY KEY,
        event TEXT NOT NULL            -- JSON of `Event`
    );
";

/// A separate table without a new version, because earlier builds ignore it.
const CUT_SHORT: &str = "
    CREATE TABLE IF NOT EXISTS cut_short (
        row INTEGER PRIMARY KEY,       -- of a message
        times INTEGER NOT NULL         -- receives in a row that the end of a process cut short
    );
";

/// Why a file was not opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("written by a newer version (schema {0}, this one knows {VERSION})")]
    Newer(i64),
    #[error(transparent)]
    Sqlite(#[from] rusqlite::Error),
    #[error("the mark of what it holds cannot be written: {0}")]
    Mark(#[from] std::io::Error),
}

pub(super) fn open(path: &Path, durability: Durability, after_kill: bool) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    let version: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    if version > VERSION {
        return Err(Error::Newer(version));
    }
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "NORMAL",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_FRAMES)?;
    connection.set_prepared_statement_cache_capacity(32);
    if version == 0 {
        connection.execute_batch(&format!("BEGIN; {TABLES} PRAGMA user_version = {VERSION}; COMMIT;"))?;
    }
    connection.execute_batch(CUT_SHORT)?;
    repair_names(&connection)?;
    // A message may have been sent while its queue was being deleted.
    connection.execute("DELETE FROM messages WHERE queue NOT IN (SELECT id FROM queues)", [])?;
    // A clean end is not the fault of the messages in progress.
    connection.execute("DELETE FROM cut_short WHERE ?1 OR row NOT IN (SELECT row FROM messages)", [!after_kill])?;
    Ok(connection)
}

/// SQLite's `quick_check` does not compare a table with its index. If the name of a queue has changed in the table, the
/// index refuses another queue of the old name, so nobody could create it again.
fn repair_names(on: &Connection) -> rusqlite::Result<()> {
    let verdict: String = on.query_row("PRAGMA integrity_check('queues')", [], |row| row.get(0))?;
    if verdict == "ok" {
        return Ok(());
    }
    tracing::error!(
        "queues.db is damaged: the name of a queue is not the one in the index ({verdict}). The queue keeps its messages \
         under the name in the table `queues`"
    );
    // It fails if two queues have the same name now. What does not use the index works even so.
    if let Err(error) = on.execute_batch("REINDEX queues") {
        tracing::error!("the index of queues.db was not repaired: {error}");
    }
    Ok(())
}
