//! One call as the service's books see it: counted, perhaps disrupted, then decided.
//!
//! Everything here runs inside the transaction of the database thread. What goes over the wire, and when,
//! is left to `http`.

use std::sync::Arc;

use rusqlite::{Connection, params};
use serde_json::Value;

use crate::Service;
use crate::draw::{self, Direction, Disruption};
use crate::faults::{Faults, ServiceFaults};
use crate::{apply, undo};

/// A well-formed call.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) service: Service,
    /// The `Idempotency-Key` it came with.
    pub(crate) key: String,
    pub(crate) order_id: String,
    pub(crate) action: Action,
    /// The settings when it came in.
    pub(crate) faults: Arc<Faults>,
}

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    Apply {
        body_hash: [u8; 32],
        /// The answer but for its reference.
        details: Value,
    },
    Undo {
        /// The forward key.
        undoes: String,
    },
}

/// What the service says to a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// The effect was applied; the answer's JSON.
    Applied(String),
    /// The effect was taken back.
    Undone,
    /// There was nothing to take back; the key is barred from now on.
    Tombstoned,
    /// The key had this answer (JSON) already.
    Replayed(String),
    /// The key fails for good.
    Declined { replayed: bool },
    /// This undo fails for good.
    UndoFailed,
    /// The key was undone, and is never applied.
    WasUndone,
    /// The key came with another body before.
    Reused,
}

impl Call {
    /// Counts the call with its key and draws what happens to it on its way.
    pub(crate) fn count(&self, conn: &Connection) -> rusqlite::Result<Option<Disruption>> {
        let service = self.service.name();
        let number: i64 = match &self.action {
            Action::Apply { .. } => conn
                .prepare_cached(
                    "INSERT INTO keys (service, key, order_id, calls) VALUES (?1, ?2, ?3, 1)
                     ON CONFLICT (service, key) DO UPDATE SET calls = calls + 1 RETURNING calls",
                )?
                .query_row(params![service, self.key, self.order_id], |row| row.get(0))?,
            Action::Undo { undoes } => conn
                .prepare_cached(
                    "INSERT INTO undos (service, key, order_id, undoes, calls) VALUES (?1, ?2, ?3, ?4, 1)
                     ON CONFLICT (service, key) DO UPDATE SET calls = calls + 1 RETURNING calls",
                )?
                .query_row(params![service, self.key, self.order_id, undoes], |row| row.get(0))?,
        };
        Ok(draw::disruption(&self.settings(), self.as_drawn(), number.unsigned_abs()))
    }

    /// Decides and records. `now`: UTC, Unix milliseconds.
    pub(crate) fn decide(&self, conn: &Connection, now: i64) -> rusqlite::Result<Decision> {
        match &self.action {
            Action::Apply { body_hash, details } => apply::decide(conn, self, body_hash, details, now),
            Action::Undo { undoes } => undo::decide(conn, self, undoes, now),
        }
    }

    /// Whether the settings let this key fail for good.
    pub(crate) fn key_fails(&self) -> bool {
        draw::key_fails(&self.settings(), self.as_drawn())
    }

    pub(crate) fn settings(&self) -> ServiceFaults {
        self.faults.of(self.service)
    }

    fn as_drawn(&self) -> draw::Call<'_> {
        draw::Call {
            seed: self.faults.seed,
            service: self.service,
            direction: match self.action {
                Action::Apply { .. } => Direction::Apply,
                Action::Undo { .. } => Direction::Undo,
            },
            key: &self.key,
        }
    }
}
