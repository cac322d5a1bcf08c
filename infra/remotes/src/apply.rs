//! The forward rule: what a key already means goes first, then the fault `permanent`, then the effect.

use rusqlite::{Connection, OptionalExtension, params};
use serde_json::{Value, json};

use crate::answer;
use crate::call::{Call, Decision};

/// What is known of a key, read after the call was counted, so the row exists.
struct Known {
    body_hash: Option<Vec<u8>>,
    outcome: Option<String>,
    answer: Option<String>,
    tombstone: bool,
}

pub(crate) fn decide(
    conn: &Connection,
    call: &Call,
    body_hash: &[u8; 32],
    details: &Value,
    now: i64,
) -> rusqlite::Result<Decision> {
    let known = known(conn, call)?;
    if let Some(known) = &known {
        // An undone key is refused whatever its body: the caller's undo has been promised.
        if known.tombstone {
            return Ok(Decision::WasUndone);
        }
        if let Some(earlier) = &known.body_hash
            && earlier != body_hash
        {
            return Ok(Decision::Reused);
        }
    }
    let outcome = known.as_ref().and_then(|known| known.outcome.as_deref());
    match outcome {
        Some("applied") => {
            count_replay(conn, call)?;
            let answer = known.and_then(|known| known.answer);
            Ok(Decision::Replayed(answer.unwrap_or_default()))
        }
        Some(_declined) => {
            count_replay(conn, call)?;
            Ok(Decision::Declined { replayed: true })
        }
        None if call.key_fails() => {
            record(conn, call, body_hash, "declined", None)?;
            Ok(Decision::Declined { replayed: false })
        }
        None => {
            let reference = append_effect(conn, call, now)?;
            let mut answer = details.clone();
            answer["reference"] = json!(reference);
            let answer = answer.to_string();
            record(conn, call, body_hash, "applied", Some(&answer))?;
            Ok(Decision::Applied(answer))
        }
    }
}

fn known(conn: &Connection, call: &Call) -> rusqlite::Result<Option<Known>> {
    conn.prepare_cached("SELECT body_hash, outcome, answer, tombstone FROM keys WHERE service = ?1 AND key = ?2")?
        .query_row(params![call.service.name(), call.key], |row| {
            Ok(Known { body_hash: row.get(0)?, outcome: row.get(1)?, answer: row.get(2)?, tombstone: row.get(3)? })
        })
        .optional()
}

/// Appends, never looks: whether this is a second effect for the order is for the check to find.
fn append_effect(conn: &Connection, call: &Call, now: i64) -> rusqlite::Result<String> {
    let service = call.service.name();
    let number: i64 =
        conn.prepare_cached("SELECT coalesce(max(seq), 0) + 1 FROM effects")?.query_row([], |row| row.get(0))?;
    let reference = answer::reference(call.service, number);
    conn.prepare_cached(
        "INSERT INTO effects (seq, service, order_id, key, reference, applied_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
    )?
    .execute(params![number, service, call.order_id, call.key, reference, now])?;
    Ok(reference)
}

fn record(
    conn: &Connection,
    call: &Call,
    body_hash: &[u8; 32],
    outcome: &str,
    answer: Option<&str>,
) -> rusqlite::Result<()> {
    // A call that failed before may have named another order; the one decided counts.
    conn.prepare_cached(
        "INSERT INTO keys (service, key, order_id, body_hash, outcome, answer) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
         ON CONFLICT (service, key) DO UPDATE SET
             order_id = excluded.order_id, body_hash = excluded.body_hash,
             outcome = excluded.outcome, answer = excluded.answer",
    )?
    .execute(params![call.service.name(), call.key, call.order_id, body_hash.as_slice(), outcome, answer])?;
    Ok(())
}

fn count_replay(conn: &Connection, call: &Call) -> rusqlite::Result<()> {
    conn.prepare_cached("UPDATE keys SET replays = replays + 1 WHERE service = ?1 AND key = ?2")?
        .execute(params![call.service.name(), call.key])?;
    Ok(())
}
