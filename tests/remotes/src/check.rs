//! The check of a run: the effects that the services hold against how the orders ended.
//!
//! It counts effects, not what their keys note: two effects are two, whatever keys they came with.

use std::collections::HashMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Service;
use crate::rules::Row;

/// What an order should have left behind. JSON: `{"applied": ["inventory"]}`, `"undone"`, `"any"`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// Exactly one standing effect at each of these services, and none that stands at another undoable one.
    Applied(Vec<Service>),
    /// No standing effect at an undoable service.
    Undone,
    /// Anything, as long as nothing was applied twice.
    Any,
}

/// What is wrong with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// An expected effect was never applied, or was taken back.
    Missing,
    /// One service applied an effect more than once, whatever was undone since.
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

/// Maximum number of violations listed in a report; all are counted.
const LISTED_MAX: usize = 1_000;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Orders checked.
    pub orders: u64,
    /// Effects read.
    pub effects: u64,
    /// Number of violations.
    pub violation_count: u64,
    /// The first 1,000 of them.
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

/// Effects applied and effects still standing, in the order of [`Service::ALL`].
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    applied: [u32; 4],
    standing: [u32; 4],
    is_expected: bool,
}

/// Every order in the ledger, with its effects.
#[derive(Debug, Default)]
pub(crate) struct Tallies(HashMap<String, Tally>);

/// Rows read at a time, so that calls get their turn in between.
pub(crate) const READ_MAX: usize = 5_000;

impl Tallies {
    pub(crate) fn add(&mut self, row: &Row) {
        let tally = self.0.entry(row.order_id.clone()).or_default();
        for effect in &row.effects {
            tally.applied[row.service.index()] += 1;
            tally.standing[row.service.index()] += u32::from(effect.undone_at.is_none());
        }
    }

    /// Compares effects with expectations. Orders are reported as they come; unknown ones come last, by name.
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
                "order `{order_id}` is in the ledger with {standing} effects left, but was not expected at all"
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
        let mut add = |kind, words: String| report.add(order_id, kind, words);
        if applied > 1 {
            let words = format!("applied its effect {applied} times, {standing} are left");
            add(Kind::Doubled, format!("order `{order_id}`: `{service}` {words}"));
        }
        match expected {
            Expected::Applied(services) if services.contains(&service) => {
                if standing == 0 {
                    let why = if applied == 0 { "never applied" } else { "undone" };
                    let words = format!("order `{order_id}`: the effect of `{service}` is missing: it was {why}");
                    add(Kind::Missing, words);
                }
            }
            Expected::Applied(_) if standing > 0 && service.is_undoable() => {
                let words = format!("order `{order_id}`: an effect of `{service}` is left, but none was expected");
                add(Kind::Unexpected, words);
            }
            Expected::Undone if standing > 0 && service.is_undoable() => {
                let words = format!("order `{order_id}` is undone, but an effect of `{service}` is left");
                add(Kind::LeftAfterUndo, words);
            }
            Expected::Applied(_) | Expected::Undone | Expected::Any => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Remotes;
    use serde_json::json;

    // The services cannot do this, so the test writes the row into their ledger itself.
    #[test]
    fn a_double_effect_with_one_key_is_found() {
        let remotes = Remotes::open(None).unwrap();
        let effect = json!({"number": 1, "applied_at": "2026-01-31T12:00:00Z", "undone_at": null});
        let undone = json!({"number": 2, "applied_at": "2026-01-31T12:00:00Z", "undone_at": "2026-01-31T12:00:01Z"});
        let row = json!({"service": "inventory", "direction": "Apply", "key": "k", "order_id": "o-1", "body": 1,
            "done": "Declined", "effects": [effect, undone], "tombstone": false, "calls": 2, "replays": 0});
        remotes.ledger().put(&[serde_json::from_value(row).unwrap()]).unwrap();
        assert_eq!(remotes.order_ledger("o-1").unwrap().len(), 2);
        let kinds = |expected| {
            let report = remotes.check([("o-1".to_owned(), expected)]).unwrap();
            report.violations.into_iter().map(|violation| violation.kind).collect::<Vec<_>>()
        };
        assert_eq!(kinds(Expected::Applied(vec![Service::Inventory])), [Kind::Doubled]);
        assert_eq!(kinds(Expected::Undone), [Kind::Doubled, Kind::LeftAfterUndo]);
    }
}
