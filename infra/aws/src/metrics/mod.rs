//! What this process counts and measures. In Lambda it is written as lines of the embedded metric format ([`flush`]),
//! in the local system as Prometheus text ([`prometheus`]). `docs/telemetry.md` explains each metric.
//!
//! A metric has at most one label, whose values are few: names of workflows and agents, never of orders or tenants.

mod emf;
mod hour;
mod prometheus;
mod saves;

pub use emf::{NAMESPACE, STACK, flush};
pub use hour::{CHARTED, Line, MINUTES, last_hour, minute};
pub use prometheus::prometheus;
pub use saves::observe;

use shared::time::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of values of a label; further ones count as [`OTHER`]. People choose the names, in workflow files.
const MAX_VALUES: usize = 200;
/// Label of all values beyond [`MAX_VALUES`].
const OTHER: &str = "other";
/// Maximum number of times of one metric between two flushes: as many as an EMF line may hold.
const MAX_PENDING: usize = 100;
/// Upper bounds of a histogram's buckets, in seconds: from one sweep of the local system to an hour.
const BUCKETS: [f64; 9] = [0.25, 1.0, 5.0, 15.0, 60.0, 120.0, 300.0, 900.0, 3600.0];

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// How often something happened.
    Counter,
    /// The present value, in seconds.
    Gauge,
    /// The present number.
    Level,
    /// How long something took, in seconds.
    Histogram,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// Its name in CloudWatch, in the namespace `Stepwarden`.
    pub name: &'static str,
    /// Its kind.
    pub kind: Kind,
    /// Its label, beside the stack's name.
    pub label: Option<&'static str>,
    /// Its meaning.
    pub help: &'static str,
}

macro_rules! metrics {
    ($($id:ident $name:literal $kind:ident $label:expr, $help:literal;)*) => {
        $(#[doc = $help] pub static $id: Metric = Metric { name: $name, kind: Kind::$kind, label: $label, help: $help };)*
        /// All metrics, as docs/telemetry.md lists them.
        pub static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    ORDERS_ACCEPTED "orders_accepted" Counter Some("workflow"), "Orders accepted.";
    ORDERS_REFUSED "orders_refused" Counter Some("cause"), "Orders answered with 429: `overload` or `rate_limited`.";
    EVENTS_REFUSED "events_refused" Counter Some("workflow"), "Events that were refused, for example because no step of their order waits for them.";
    REMINDERS_FAILED "reminders_failed" Counter Some("agent"), "Reminders of waiting steps that the agent could not send.";
    ORDERS_PROCESSED "orders_processed" Counter Some("workflow"), "Orders that ended Processed.";
    ORDERS_UNDONE "orders_undone" Counter Some("workflow"), "Orders that ended Undone.";
    ORDERS_IN_ERROR "orders_in_error" Counter Some("workflow"), "Orders that stopped in Error.";
    STEP_ATTEMPTS "step_attempts" Counter Some("agent"), "Attempts given to an agent, undos included.";
    STEP_FAILURES "step_failures" Counter Some("agent"), "Attempts that failed or ran out of time, undos included.";
    RECOVERY_LAG "recovery_lag" Histogram Some("agent"), "Time from CompleteBy to the save that ended the attempt.";
    LATE_REPLIES "late_replies" Counter Some("workflow"), "Replies that arrived after their attempt had been given up.";
    SILENT_ATTEMPTS "silent_attempts" Counter Some("agent"), "Attempts that an agent did not answer because CompleteBy had passed.";
    BREAKER_OPENED "breaker_opened" Counter Some("agent"), "Circuit breakers that opened.";
    BREAKER_HALF_OPENED "breaker_half_opened" Counter Some("agent"), "Circuit breakers that let one trial call through.";
    BREAKER_CLOSED "breaker_closed" Counter Some("agent"), "Circuit breakers that closed again.";
    OLDEST_PENDING_AGE "oldest_pending_age" Gauge None, "Time since the oldest order that has not begun was accepted.";
    OLDEST_PROCESSING_AGE "oldest_processing_age" Gauge None, "Time since the oldest order in progress was accepted.";
    OUTBOX_LAG "outbox_lag" Gauge None, "Age of the oldest owed alert or notice.";
    WAITING_ORDERS "waiting_orders" Level None, "Orders in which a step waits, up to 1000.";
    OLDEST_WAIT_AGE "oldest_wait_age" Gauge None, "Time since the turn of the step that has waited longest.";
}

/// A metric under one value of its label.
#[derive(Debug)]
struct Series {
    metric: &'static Metric,
    /// The counter or the gauge, or the sum of all times.
    value: f64,
    /// For a histogram: how many values were at most each of [`BUCKETS`], and how many in all.
    buckets: [u64; BUCKETS.len()],
    count: u64,
    /// What the next flush reports: the sum, the latest value, or the times since the last one.
    pending: Vec<f64>,
    /// What it recorded in the last hour.
    minutes: hour::Minutes,
}

type Registry = BTreeMap<(&'static str, String), Series>;

static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new());

fn registry() -> MutexGuard<'static, Registry> {
    REGISTRY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Metric {
    /// Counts one.
    pub fn add(&'static self, value: &str) {
        debug_assert_eq!(self.kind, Kind::Counter);
        self.record(&mut registry(), value, 1.0);
    }

    /// Sets the present value, in seconds, or the present number.
    pub fn set(&'static self, value: f64) {
        debug_assert!(matches!(self.kind, Kind::Gauge | Kind::Level));
        self.record(&mut registry(), "", value);
    }

    /// Records one that took this many seconds.
    pub fn took(&'static self, value: &str, seconds: f64) {
        debug_assert_eq!(self.kind, Kind::Histogram);
        self.record(&mut registry(), value, seconds.max(0.0));
    }

    fn record(&'static self, registry: &mut Registry, value: &str, number: f64) {
        self.record_at(registry, value, number, minute(Timestamp::now()));
    }

    fn record_at(&'static self, registry: &mut Registry, value: &str, number: f64, minute: i64) {
        let mut key = (self.name, value.to_owned());
        let is_new = !registry.contains_key(&key);
        if is_new && registry.keys().filter(|(name, _)| *name == self.name).count() >= MAX_VALUES {
            OTHER.clone_into(&mut key.1);
        }
        let new = || Series {
            metric: self,
            value: 0.0,
            buckets: [0; BUCKETS.len()],
            count: 0,
            pending: Vec::new(),
            minutes: hour::Minutes::default(),
        };
        let series = registry.entry(key).or_insert_with(new);
        if CHARTED.iter().any(|metric| metric.name == self.name) {
            series.minutes.record(minute, self.kind, number);
        }
        match self.kind {
            Kind::Counter => {
                series.value += number;
                let told = series.pending.pop().unwrap_or_default();
                series.pending.push(told + number);
            }
            // An unchanged value is not reported again, nor is a first value of zero.
            Kind::Gauge | Kind::Level if series.value == number => {}
            Kind::Gauge | Kind::Level => {
                series.value = number;
                series.pending = vec![number];
            }
            Kind::Histogram => {
                series.value += number;
                series.count += 1;
                for (count, bound) in series.buckets.iter_mut().zip(BUCKETS) {
                    *count += u64::from(number <= bound);
                }
                if series.pending.len() < MAX_PENDING {
                    series.pending.push(number);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_has_a_bounded_number_of_values() {
        let mut registry = Registry::new();
        for n in 0..MAX_VALUES + 5 {
            STEP_ATTEMPTS.record(&mut registry, &format!("agent-{n}"), 1.0);
        }
        assert_eq!(registry.len(), MAX_VALUES + 1);
        assert_eq!(registry[&("step_attempts", OTHER.to_owned())].value, 5.0);
    }
}
