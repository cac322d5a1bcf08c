//! The meaning of a key, and what a service decides about a call with it.
//!
//! Forward: what the key already means takes precedence, then the fault `permanent`, then the effect. Undo: takes the
//! effect back if there is one, and bars the forward key forever in both cases.

use std::io;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::Service;
use crate::draw::{self, Direction, Disruption, text_number};
use crate::faults::{Faults, ServiceFaults};
use crate::file::Ledger;

/// What is known about one idempotency key, forward or undo.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) service: Service,
    pub(crate) direction: Direction,
    pub(crate) key: String,
    pub(crate) order_id: String,
    /// A number derived from the body of the call that was decided.
    body: u64,
    done: Option<Done>,
    /// One per application. Nothing checks before adding one: a double effect must show, not fail.
    pub(crate) effects: Vec<Effect>,
    tombstone: bool,
    calls: u64,
    replays: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Done {
    /// The answer.
    Answered(Value),
    Declined,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Effect {
    /// From 1, over all services.
    pub(crate) number: u64,
    applied_at: Timestamp,
    pub(crate) undone_at: Option<Timestamp>,
}

/// One effect of a key; or the key alone if it has none (`applied_at` null), because it was declined, undone before it
/// was applied, or met by faults only. A key applied twice would have two entries.
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
    /// Whether the key fails permanently.
    pub declined: bool,
    /// Forward calls with the key, faulty ones included, except during an outage.
    pub calls: u64,
    /// Forward calls that got the answer of an earlier one.
    pub replays: u64,
    /// The service's reference for the effect, `inv-000123`.
    pub reference: Option<String>,
}

impl Row {
    fn new(service: Service, direction: Direction, key: &str, order_id: &str) -> Self {
        let (key, order_id) = (key.to_owned(), order_id.to_owned());
        let (effects, tombstone) = (Vec::new(), false);
        Self { service, direction, key, order_id, body: 0, done: None, effects, tombstone, calls: 0, replays: 0 }
    }

    pub(crate) fn is_forward(&self) -> bool {
        self.direction == Direction::Apply
    }

    pub(crate) fn entries(self) -> Vec<Entry> {
        let entry = |effect: Option<&Effect>| Entry {
            service: self.service,
            order_id: self.order_id.clone(),
            key: self.key.clone(),
            applied_at: effect.map(|effect| effect.applied_at),
            undone_at: effect.and_then(|effect| effect.undone_at),
            tombstone: self.tombstone,
            declined: matches!(self.done, Some(Done::Declined)),
            calls: self.calls,
            replays: self.replays,
            reference: effect.map(|effect| reference(self.service, effect.number)),
        };
        if self.effects.is_empty() { vec![entry(None)] } else { self.effects.iter().map(|e| entry(Some(e))).collect() }
    }
}

/// A well-formed call.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) service: Service,
    pub(crate) key: String,
    pub(crate) order_id: String,
    pub(crate) action: Action,
    /// The settings when it arrived.
    pub(crate) faults: Arc<Faults>,
}

#[derive(Debug)]
pub(crate) enum Action {
    Apply {
        input: Value,
        /// The answer without its reference.
        details: Value,
    },
    Undo {
        undoes: String,
    },
}

/// A service's decision about a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Decision {
    /// The effect was applied; the answer.
    Applied(Value),
    /// The effect was taken back.
    Undone,
    /// There was nothing to take back; the key is barred from now on.
    Tombstoned,
    /// The key already had this answer.
    Replayed(Value),
    /// The key fails permanently.
    Declined { replayed: bool },
    /// This undo fails permanently.
    UndoFailed,
    /// The key was undone, and is never applied.
    WasUndone,
    /// The key was sent before with another body.
    Reused,
}

impl Call {
    pub(crate) fn settings(&self) -> ServiceFaults {
        self.faults.of(self.service)
    }

    /// Counts the call with its key, draws what happens on its way, and decides it unless it comes later or never.
    pub(crate) fn begin(&self, ledger: &mut Ledger) -> io::Result<(Option<Disruption>, Option<Decision>)> {
        let mut row = self.row(ledger)?;
        row.calls += 1;
        let disruption = draw::disruption(self, row.calls);
        if disruption.is_none_or(Disruption::is_carried_out_at_once) {
            return Ok((disruption, Some(self.decide(ledger, row)?)));
        }
        ledger.put(&[row])?;
        Ok((disruption, None))
    }

    /// Decides a slow call that has arrived.
    pub(crate) fn finish(&self, ledger: &mut Ledger) -> io::Result<Decision> {
        let row = self.row(ledger)?;
        self.decide(ledger, row)
    }

    fn row(&self, ledger: &Ledger) -> io::Result<Row> {
        let known = ledger.get(self.service, self.direction(), &self.key)?;
        Ok(known.unwrap_or_else(|| Row::new(self.service, self.direction(), &self.key, &self.order_id)))
    }

    fn decide(&self, ledger: &mut Ledger, mut row: Row) -> io::Result<Decision> {
        match &self.action {
            Action::Apply { input, details } => {
                let decision = self.apply(&mut row, input, details, ledger.effects() + 1);
                ledger.put(&[row])?;
                Ok(decision)
            }
            Action::Undo { undoes } => {
                let known = ledger.get(self.service, Direction::Apply, undoes)?;
                let forward = known.unwrap_or_else(|| Row::new(self.service, Direction::Apply, undoes, &self.order_id));
                let (decision, barred) = self.undo(&mut row, forward, undoes);
                ledger.put(&barred.into_iter().chain([row]).collect::<Vec<_>>())?;
                Ok(decision)
            }
        }
    }

    fn apply(&self, row: &mut Row, input: &Value, details: &Value, number: u64) -> Decision {
        let body = body_number(&[json!(self.order_id), input.clone()]);
        // An undone key is refused whatever its body: its undo was promised to the caller.
        if row.tombstone {
            return Decision::WasUndone;
        }
        match &row.done {
            Some(_) if row.body != body => return Decision::Reused,
            Some(Done::Answered(answer)) => {
                row.replays += 1;
                return Decision::Replayed(answer.clone());
            }
            Some(Done::Declined) => {
                row.replays += 1;
                return Decision::Declined { replayed: true };
            }
            None => {}
        }
        // A call that failed before may have named another order; the call that is decided counts.
        (row.order_id, row.body) = (self.order_id.clone(), body);
        if draw::key_fails(self) {
            row.done = Some(Done::Declined);
            return Decision::Declined { replayed: false };
        }
        let mut answer = details.clone();
        answer["reference"] = json!(reference(self.service, number));
        row.effects.push(Effect { number, applied_at: now(), undone_at: None });
        row.done = Some(Done::Answered(answer.clone()));
        Decision::Applied(answer)
    }

    /// Returns the forward key's row too, if it changed.
    fn undo(&self, row: &mut Row, mut forward: Row, undoes: &str) -> (Decision, Option<Row>) {
        // The output is not compared: an undo may know it only on a later attempt.
        let body = body_number(&[json!(self.order_id), json!(undoes)]);
        match &row.done {
            Some(_) if row.body != body => return (Decision::Reused, None),
            Some(Done::Answered(answer)) => return (Decision::Replayed(answer.clone()), None),
            _ if forward.done.is_some() && forward.order_id != self.order_id => return (Decision::Reused, None),
            _ if draw::key_fails(self) => return (Decision::UndoFailed, None),
            _ => {}
        }
        forward.tombstone = true;
        // One effect, the earliest: if a key were ever applied twice, the check must find the second.
        let standing = forward.effects.iter_mut().find(|effect| effect.undone_at.is_none());
        let taken = standing.filter(|_| self.service.is_undoable());
        let decision = if taken.is_some() { Decision::Undone } else { Decision::Tombstoned };
        if let Some(effect) = taken {
            effect.undone_at = Some(now());
        }
        (row.order_id, row.body) = (self.order_id.clone(), body);
        row.done = Some(Done::Answered(undo_answer(decision == Decision::Undone)));
        (decision, Some(forward))
    }

    pub(crate) fn direction(&self) -> Direction {
        match self.action {
            Action::Apply { .. } => Direction::Apply,
            Action::Undo { .. } => Direction::Undo,
        }
    }
}

/// `{"undone": true|false}`: whether this undo took something back.
pub(crate) fn undo_answer(undone: bool) -> Value {
    json!({"undone": undone})
}

/// The answer of each service without its `reference`, which is known once the effect is recorded.
///
/// - `inventory`: `lines`, the number of `input.lines` or `input.items`, 0 without either
/// - `fraud`: `approved`, always true (a refusal is the fault `permanent`), and `score`, 0 to 99, the order's own
/// - `payment`: `amount_cents`, from `input.total_cents`
/// - `shipping`: `tracking`, the order's own
///
/// Errors, saying what to write, if a payment's `total_cents` is not a whole number of 0 or more.
pub(crate) fn details(service: Service, order_id: &str, input: &Value) -> Result<Value, &'static str> {
    Ok(match service {
        Service::Inventory => {
            let lines = input.get("lines").or_else(|| input.get("items"));
            json!({"lines": lines.and_then(Value::as_array).map_or(0, Vec::len)})
        }
        Service::Fraud => json!({"approved": true, "score": text_number(order_id) % 100}),
        Service::Payment => {
            let cents = input.get("total_cents").and_then(Value::as_u64);
            let bad = "write `input.total_cents`, the amount to charge as a whole number of cents";
            json!({"amount_cents": cents.ok_or(bad)?})
        }
        Service::Shipping => json!({"tracking": format!("SW{:012}", text_number(order_id) % 1_000_000_000_000)}),
    })
}

fn reference(service: Service, number: u64) -> String {
    let prefix = match service {
        Service::Inventory => "inv",
        Service::Fraud => "chk",
        Service::Payment => "chg",
        Service::Shipping => "shp",
    };
    format!("{prefix}-{number:06}")
}

/// A number derived from a call's contents, which reveals a key that is reused for something else. The order of object
/// members does not matter, so a client may keep its input in any map.
fn body_number(parts: &[Value]) -> u64 {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Array(items) => items.iter().map(sorted).collect(),
            Value::Object(members) => {
                // serde_json keeps insertion order if any crate of the build asks for it.
                let mut members: Vec<_> = members.iter().map(|(name, of)| (name.clone(), sorted(of))).collect();
                members.sort_by(|(one, _), (other, _)| one.cmp(other));
                Value::Object(members.into_iter().collect())
            }
            plain => plain.clone(),
        }
    }
    text_number(&parts.iter().map(sorted).collect::<Value>().to_string())
}

fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
}
