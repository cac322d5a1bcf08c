//! The undo rule: take the effect back if there is one, and bar the forward key for ever either way.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::json;

use crate::call::{Call, Decision};

pub(crate) fn decide(conn: &Connection, call: &Call, undoes: &str, now: i64) -> rusqlite::Result<Decision> {
    let service = call.service.name();
    let known = conn
        .prepare_cached("SELECT order_id, undoes, undone FROM undos WHERE service = ?1 AND key = ?2")?
        .query_row(params![service, call.key], |row| {
            let order_id: String = row.get(0)?;
            let undoes: String = row.get(1)?;
            let undone: Option<bool> = row.get(2)?;
            Ok((order_id, undoes, undone))
        })
        .optional()?;
    if let Some((order_id, earlier, Some(undone))) = known {
        // The output is not compared: an undo may know it only on a later attempt.
        if (order_id.as_str(), earlier.as_str()) != (call.order_id.as_str(), undoes) {
            return Ok(Decision::Reused);
        }
        conn.prepare_cached("UPDATE undos SET replays = replays + 1 WHERE service = ?1 AND key = ?2")?
            .execute(params![service, call.key])?;
        return Ok(Decision::Replayed(answer(undone)));
    }
    if belongs_to_another_order(conn, call, undoes)? {
        return Ok(Decision::Reused);
    }
    if call.key_fails() {
        return Ok(Decision::UndoFailed);
    }
    let undone = call.service.is_undoable() && take_back(conn, call, undoes, now)?;
    write_tombstone(conn, call, undoes, undone.then_some(now))?;
    conn.prepare_cached(
        "INSERT INTO undos (service, key, order_id, undoes, undone) VALUES (?1, ?2, ?3, ?4, ?5)
         ON CONFLICT (service, key) DO UPDATE SET
             order_id = excluded.order_id, undoes = excluded.undoes, undone = excluded.undone",
    )?
    .execute(params![service, call.key, call.order_id, undoes, undone])?;
    Ok(if undone { Decision::Undone } else { Decision::Tombstoned })
}

/// The body of the answer, `{"undone": true|false}`: whether this undo took something back.
pub(crate) fn answer(undone: bool) -> String {
    json!({"undone": undone}).to_string()
}

fn belongs_to_another_order(conn: &Connection, call: &Call, undoes: &str) -> rusqlite::Result<bool> {
    conn.prepare_cached(
        "SELECT 1 FROM keys WHERE service = ?1 AND key = ?2 AND outcome IS NOT NULL AND order_id <> ?3",
    )?
    .exists(params![call.service.name(), undoes, call.order_id])
}

fn take_back(conn: &Connection, call: &Call, undoes: &str, now: i64) -> rusqlite::Result<bool> {
    // One effect, the earliest: were a key ever applied twice, the second stays for the check to find.
    let taken = conn
        .prepare_cached(
            "UPDATE effects SET undone_at = ?3 WHERE seq = (
                 SELECT min(seq) FROM effects WHERE service = ?1 AND key = ?2 AND undone_at IS NULL)",
        )?
        .execute(params![call.service.name(), undoes, now])?;
    Ok(taken > 0)
}

fn write_tombstone(conn: &Connection, call: &Call, undoes: &str, undone_at: Option<i64>) -> rusqlite::Result<()> {
    conn.prepare_cached(
        "INSERT INTO keys (service, key, order_id, undone_at, tombstone) VALUES (?1, ?2, ?3, ?4, 1)
         ON CONFLICT (service, key) DO UPDATE SET
             undone_at = coalesce(undone_at, excluded.undone_at), tombstone = 1",
    )?
    .execute(params![call.service.name(), undoes, call.order_id, undone_at])?;
    Ok(())
}
