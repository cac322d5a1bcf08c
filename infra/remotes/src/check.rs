//! The check of a run: what the services hold against what the orders ended as.
//!
//! It reads the effects, not the keys' own notes: two effects are two rows whatever key they came with.

use std::collections::HashMap;
use std::fmt;

use rusqlite::Connection;
use serde::{Deserialize, Serialize};

use crate::Service;
use crate::ledger;

/// What an order should have left behind. JSON: `{"applied": ["inventory"]}`, `"undone"`, `"any"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// Exactly one standing effect at each of these services, and none that stands at another undoable one.
    Applied(Vec<Service>),
    /// No standing effect at an undoable service.
    Undone,
    /// Whatever; but nothing applied twice.
    Any,
}

/// What is wrong with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An expected effect was never applied, or was taken back.
    Missing,
    /// One service applied an effect twice or more, whatever was undone since.
    Doubled,
    /// An effect stands though the order was undone.
    LeftAfterUndo,
    /// An effect stands at a service the order should not have reached.
    Unexpected,
    /// The ledger knows an order that was not expected.
    UnknownOrder,
}

/// One thing wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The order.
    pub order_id: String,
    /// What is wrong with it.
    pub kind: Kind,
    /// The same in words.
    pub words: String,
}

/// Violations listed in a report at most; all are counted.
pub const LISTED_MAX: usize = 1_000;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Orders checked.
    pub orders: u64,
    /// Effects read.
    pub effects: u64,
    /// Everything wrong, counted.
    pub violation_count: u64,
    /// The first [`LISTED_MAX`] of them.
    pub violations: Vec<Violation>,
}

impl Report {
    /// Nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.violation_count == 0
    }

    fn add(&mut self, order_id: &str, kind: Kind, words: String) {
        self.violation_count += 1;
        if self.violations.len() < LISTED_MAX {
            self.violations.push(Violation { order_id: order_id.to_owned(), kind, words });
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (orders, effects) = (self.orders, self.effects);
        write!(f, "{orders} orders, {effects} effects: ")?;
        if self.is_clean() {
            return f.write_str("as expected");
        }
        write!(f, "{} violations", self.violation_count)?;
        for violation in &self.violations {
            write!(f, "\n- {}", violation.words)?;
        }
        let unlisted = self.violation_count - self.violations.len() as u64;
        if unlisted > 0 {
            write!(f, "\n- and {unlisted} more")?;
        }
        Ok(())
    }
}

/// Applications and those still standing, by [`Service::ALL`].
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    applied: [u32; 4],
    standing: [u32; 4],
    is_expected: bool,
}

/// Every order the services know, with its effects.
#[derive(Debug, Default)]
pub(crate) struct Tallies(HashMap<String, Tally>);

/// Rows read in one turn of the database thread, so that calls get theirs in between.
pub(crate) const READ_MAX: i64 = 5_000;

impl Tallies {
    pub(crate) fn add_effect(&mut self, effect: &Effect) {
        let tally = self.0.entry(effect.order_id.clone()).or_default();
        tally.applied[effect.service.index()] += 1;
        tally.standing[effect.service.index()] += u32::from(effect.stands);
    }

    pub(crate) fn add_order(&mut self, order_id: String) {
        self.0.entry(order_id).or_default();
    }

    /// Compares. Orders are reported as they come, unknown ones last, by name.
    pub(crate) fn compare(mut self, expected: impl Iterator<Item = (String, Expected)>) -> Report {
        let mut report = Report::default();
        for tally in self.0.values() {
            report.effects += tally.applied.iter().map(|&n| u64::from(n)).sum::<u64>();
        }
        for (order_id, expected) in expected {
            report.orders += 1;
            let tally = match self.0.get_mut(&order_id) {
                Some(tally) => {
                    tally.is_expected = true;
                    *tally
                }
                None => Tally::default(),
            };
            check_order(&mut report, &order_id, &expected, &tally);
        }
        let mut unknown: Vec<_> = self.0.iter().filter(|(_, t)| !t.is_expected).collect();
        unknown.sort_by_key(|(order_id, _)| *order_id);
        for (order_id, tally) in unknown {
            let standing: u32 = tally.standing.iter().sum();
            let words = format!(
                "order `{order_id}` is in the ledger with {standing} standing effects, but was not expected at all"
            );
            report.add(order_id, Kind::UnknownOrder, words);
            check_order(&mut report, order_id, &Expected::Any, tally);
        }
        report
    }
}

fn check_order(report: &mut Report, order_id: &str, expected: &Expected, tally: &Tally) {
    for service in Service::ALL {
        let applied = tally.applied[service.index()];
        let standing = tally.standing[service.index()];
        if applied > 1 {
            let words = format!(
                "order `{order_id}`: `{service}` applied its effect {applied} times, {standing} still standing"
            );
            report.add(order_id, Kind::Doubled, words);
        }
        match expected {
            Expected::Applied(services) if services.contains(&service) => {
                if standing == 0 {
                    let why = if applied == 0 { "never applied" } else { "undone" };
                    let words = format!("order `{order_id}`: the effect of `{service}` is missing, it was {why}");
                    report.add(order_id, Kind::Missing, words);
                }
            }
            Expected::Applied(_) => {
                if standing > 0 && service.is_undoable() {
                    let words = format!("order `{order_id}`: an effect of `{service}` stands, but none was expected");
                    report.add(order_id, Kind::Unexpected, words);
                }
            }
            Expected::Undone => {
                if standing > 0 && service.is_undoable() {
                    let words = format!("order `{order_id}` is undone, but an effect of `{service}` is left");
                    report.add(order_id, Kind::LeftAfterUndo, words);
                }
            }
            Expected::Any => {}
        }
    }
}

/// One row of the effects.
#[derive(Debug)]
pub(crate) struct Effect {
    pub(crate) seq: i64,
    pub(crate) order_id: String,
    service: Service,
    stands: bool,
}

/// The next effects after `seq`, at most [`READ_MAX`].
pub(crate) fn effects_after(conn: &Connection, seq: i64) -> rusqlite::Result<Vec<Effect>> {
    conn.prepare_cached(
        "SELECT seq, order_id, service, undone_at IS NULL FROM effects WHERE seq > ?1 ORDER BY seq LIMIT ?2",
    )?
    .query_map([seq, READ_MAX], |row| {
        Ok(Effect { seq: row.get(0)?, order_id: row.get(1)?, service: ledger::service(row, 2)?, stands: row.get(3)? })
    })?
    .collect()
}

/// The next orders that a key names, after the key's `seq`.
pub(crate) fn orders_after(conn: &Connection, seq: i64) -> rusqlite::Result<Vec<(i64, String)>> {
    conn.prepare_cached("SELECT seq, order_id FROM keys WHERE seq > ?1 ORDER BY seq LIMIT ?2")?
        .query_map([seq, READ_MAX], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}
