//! The ledger: what every service did for every key, to be read and paged.

use jiff::Timestamp;
use rusqlite::types::Type;
use rusqlite::{Connection, Row, params};
use serde::Serialize;

use crate::Service;

/// Keys in a page unless asked otherwise.
pub const PAGE_DEFAULT: u32 = 100;

/// Keys in a page at most: about 300 KB of JSON.
pub const PAGE_MAX: u32 = 1_000;

/// One effect of a key; or the key alone when it has none (`applied_at` null): declined, undone before it was
/// applied, or met by faults only. A key applied twice would have two entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// The service.
    pub service: Service,
    /// The order the key belongs to.
    pub order_id: String,
    /// The forward idempotency key.
    pub key: String,
    /// When the effect was applied. UTC, milliseconds.
    pub applied_at: Option<Timestamp>,
    /// When the effect was taken back. UTC, milliseconds.
    pub undone_at: Option<Timestamp>,
    /// Whether the key is barred from being applied (again).
    pub tombstone: bool,
    /// Whether the key fails for good.
    pub declined: bool,
    /// Forward calls with the key, faulty ones included, except during an outage.
    pub calls: u64,
    /// Forward calls that were given the answer of an earlier one.
    pub replays: u64,
    /// The service's reference for the effect, `inv-000123`.
    pub reference: Option<String>,
}

/// Some entries, oldest key first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Page {
    /// At most `limit` keys' entries.
    pub entries: Vec<Entry>,
    /// What to ask with for the next page; null: nothing more so far.
    pub next_cursor: Option<String>,
}

const COLUMNS: &str = "SELECT k.seq, k.service, k.order_id, k.key, e.applied_at, e.undone_at, k.tombstone,
    k.outcome IS 'declined', k.calls, k.replays, e.reference
    FROM keys k LEFT JOIN effects e ON e.key = k.key AND e.service = k.service";

/// The entries of up to `limit` keys after `cursor`.
pub(crate) fn page(conn: &Connection, service: Option<Service>, cursor: i64, limit: u32) -> rusqlite::Result<Page> {
    let sql = format!(
        "{COLUMNS} WHERE k.seq IN (SELECT seq FROM keys WHERE seq > ?1
             AND (?2 IS NULL OR service = ?2) ORDER BY seq LIMIT ?3)
         ORDER BY k.seq, e.seq"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement
        .query_map(params![cursor, service.map(Service::name), limit], |row| Ok((row.get(0)?, entry(row)?)))?
        .collect::<rusqlite::Result<Vec<(i64, Entry)>>>()?;
    let last = rows.last().map(|(seq, _)| *seq);
    let more = match last {
        Some(last) => conn
            .prepare_cached("SELECT 1 FROM keys WHERE seq > ?1 AND (?2 IS NULL OR service = ?2)")?
            .exists(params![last, service.map(Service::name)])?,
        None => false,
    };
    Ok(Page {
        entries: rows.into_iter().map(|(_, entry)| entry).collect(),
        next_cursor: last.filter(|_| more).map(|seq| seq.to_string()),
    })
}

/// The entries of one order, oldest key first.
pub(crate) fn of_order(conn: &Connection, order_id: &str) -> rusqlite::Result<Vec<Entry>> {
    let sql = format!("{COLUMNS} WHERE k.order_id = ?1 ORDER BY k.seq, e.seq");
    conn.prepare_cached(&sql)?.query_map([order_id], entry)?.collect()
}

fn entry(row: &Row<'_>) -> rusqlite::Result<Entry> {
    Ok(Entry {
        service: service(row, 1)?,
        order_id: row.get(2)?,
        key: row.get(3)?,
        applied_at: timestamp(row, 4)?,
        undone_at: timestamp(row, 5)?,
        tombstone: row.get(6)?,
        declined: row.get(7)?,
        calls: row.get::<_, i64>(8)?.unsigned_abs(),
        replays: row.get::<_, i64>(9)?.unsigned_abs(),
        reference: row.get(10)?,
    })
}

pub(crate) fn service(row: &Row<'_>, column: usize) -> rusqlite::Result<Service> {
    let name: String = row.get(column)?;
    name.parse().map_err(|err| rusqlite::Error::FromSqlConversionFailure(column, Type::Text, Box::new(err)))
}

fn timestamp(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    let at: Option<i64> = row.get(column)?;
    at.map(|at| {
        Timestamp::from_millisecond(at)
            .map_err(|err| rusqlite::Error::FromSqlConversionFailure(column, Type::Integer, Box::new(err)))
    })
    .transpose()
}
