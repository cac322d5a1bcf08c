//! The last hour of the metrics that the console charts, minute by minute.

use super::{
    BREAKER_OPENED, Kind, Metric, OLDEST_PENDING_AGE, OLDEST_PROCESSING_AGE, OLDEST_WAIT_AGE, ORDERS_ACCEPTED,
    ORDERS_IN_ERROR, ORDERS_PROCESSED, ORDERS_UNDONE, Registry, STEP_FAILURES, registry,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::time::Timestamp;
use std::collections::{BTreeMap, VecDeque};

/// Points of a line, one a minute.
pub const MINUTES: usize = 60;

/// The charted metrics. For those with the label `workflow` the chart shows the sum.
pub static CHARTED: [&Metric; 9] = [
    &ORDERS_ACCEPTED,
    &ORDERS_PROCESSED,
    &ORDERS_UNDONE,
    &ORDERS_IN_ERROR,
    &STEP_FAILURES,
    &BREAKER_OPENED,
    &OLDEST_PENDING_AGE,
    &OLDEST_PROCESSING_AGE,
    &OLDEST_WAIT_AGE,
];

/// One line of a chart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "ChartLine")]
pub struct Line {
    /// The metric.
    pub metric: String,
    /// The agent, if the metric is counted for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// One value a minute, the oldest first: how often it happened, or an age in seconds. Absent before the first known age.
    pub points: Vec<Option<f64>>,
}

impl Metric {
    /// Whether its chart has a line for each value of the label.
    #[must_use]
    pub fn is_charted_by_agent(&self) -> bool {
        self.label == Some("agent")
    }

    /// A line from values by minute, up to `until`. A minute without a count is zero; an age stays until the next.
    #[must_use]
    pub fn line(&self, agent: Option<String>, until: i64, values: &BTreeMap<i64, f64>) -> Line {
        let from = until + 1 - MINUTES as i64;
        let mut last = match self.kind {
            Kind::Counter | Kind::Histogram => None,
            Kind::Gauge | Kind::Level => values.range(..from).next_back().map(|(_, value)| *value),
        };
        let point = |minute| match (self.kind, values.get(&minute)) {
            (Kind::Counter | Kind::Histogram, value) => Some(value.copied().unwrap_or_default()),
            (Kind::Gauge | Kind::Level, value) => {
                last = value.copied().or(last);
                last
            }
        };
        Line { metric: self.name.to_owned(), agent, points: (from..=until).map(point).collect() }
    }
}

/// What one series recorded in each of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Minutes(VecDeque<(i64, f64)>);

impl Minutes {
    pub(super) fn record(&mut self, minute: i64, kind: Kind, number: f64) {
        match self.0.back_mut() {
            // If the clock was set back, the value counts for the latest minute.
            Some((last, value)) if *last >= minute => {
                *value = if kind == Kind::Counter { *value + number } else { number }
            }
            _ => self.0.push_back((minute, number)),
        }
        if self.0.len() > MINUTES {
            self.0.pop_front();
        }
    }
}

/// Minutes since 1970 at `now`.
#[must_use]
pub fn minute(now: Timestamp) -> i64 {
    now.as_second().div_euclid(60)
}

/// What this process recorded in the hour before `now`.
#[must_use]
pub fn last_hour(now: Timestamp) -> Vec<Line> {
    lines(&registry(), minute(now))
}

fn lines(registry: &Registry, until: i64) -> Vec<Line> {
    let of = |metric: &'static Metric| {
        let mut all: BTreeMap<Option<String>, BTreeMap<i64, f64>> = BTreeMap::new();
        if !metric.is_charted_by_agent() {
            all.entry(None).or_default();
        }
        for ((_, value), series) in registry.iter().filter(|((name, _), _)| *name == metric.name) {
            let values = all.entry(metric.is_charted_by_agent().then(|| value.clone())).or_default();
            for (minute, number) in &series.minutes.0 {
                *values.entry(*minute).or_default() += number;
            }
        }
        all.into_iter().map(move |(agent, values)| metric.line(agent, until, &values))
    };
    CHARTED.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found<'a>(lines: &'a [Line], metric: &Metric, agent: Option<&str>) -> &'a [Option<f64>] {
        let line = lines.iter().find(|line| line.metric == metric.name && line.agent.as_deref() == agent);
        &line.expect("charted").points
    }

    #[test]
    fn counts_are_summed_by_minute_and_ages_stay_until_another_is_told() {
        let mut registry = Registry::new();
        for (minute, workflow) in [(40, "order"), (40, "trip"), (40, "order"), (99, "order")] {
            ORDERS_PROCESSED.record_at(&mut registry, workflow, 1.0, minute);
        }
        STEP_FAILURES.record_at(&mut registry, "payment", 1.0, 98);
        STEP_FAILURES.record_at(&mut registry, "fraud", 1.0, 99);
        OLDEST_PENDING_AGE.record_at(&mut registry, "", 7.0, 20);
        OLDEST_PENDING_AGE.record_at(&mut registry, "", 90.0, 97);
        OLDEST_WAIT_AGE.record_at(&mut registry, "", 5.0, 98);
        let lines = lines(&registry, 99);
        assert!(lines.iter().all(|line| line.points.len() == MINUTES));
        let processed = found(&lines, &ORDERS_PROCESSED, None);
        assert_eq!((processed[0], processed[1], processed[59]), (Some(3.0), Some(0.0), Some(1.0)));
        assert_eq!(found(&lines, &ORDERS_UNDONE, None), [Some(0.0); MINUTES]);
        assert_eq!(found(&lines, &STEP_FAILURES, Some("payment"))[57..], [Some(0.0), Some(1.0), Some(0.0)]);
        assert_eq!(found(&lines, &STEP_FAILURES, Some("fraud"))[59], Some(1.0));
        let pending = found(&lines, &OLDEST_PENDING_AGE, None);
        assert_eq!((pending[0], pending[56], pending[57], pending[59]), (Some(7.0), Some(7.0), Some(90.0), Some(90.0)));
        assert_eq!(found(&lines, &OLDEST_WAIT_AGE, None)[57..], [None, Some(5.0), Some(5.0)]);
        assert_eq!(found(&lines, &OLDEST_PROCESSING_AGE, None), [None; MINUTES]);
    }

    #[test]
    fn a_series_keeps_an_hour_and_a_clock_set_back_loses_nothing() {
        let mut minutes = Minutes::default();
        for minute in 0..200 {
            minutes.record(minute, Kind::Counter, 1.0);
        }
        minutes.record(100, Kind::Counter, 1.0);
        assert_eq!(minutes.0.len(), MINUTES);
        assert_eq!(minutes.0.back(), Some(&(199, 2.0)));
    }
}
