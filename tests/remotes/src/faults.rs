//! The faults a service is configured to show, and which settings are refused.
//!
//! Settings live in memory: a restarted process has no faults until its owner sets them again.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Service;

/// The longest delay that can be configured, and the longest time a call hangs. By then every client has given up.
pub const DELAY_MAX_MS: u64 = 120_000;

/// The settings of all services.
///
/// JSON: `{"seed": 7, "services": {"payment": {"transient": 0.1, "permanent": 0.02}}}`.
/// A service or a rate left out has no faults; an unknown name is refused.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// What every choice is derived from: the same seed, keys and rates give the same faults.
    pub seed: u64,
    /// The settings of each service.
    pub services: BTreeMap<Service, ServiceFaults>,
}

/// The settings of one service: shares of calls, each 0 to 1.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceFaults {
    /// Forward calls answered 503, a quarter of them 429 with `Retry-After: 1`. Nothing is applied.
    pub transient: f64,
    /// Calls carried out only after `slow_ms`, even if the client has given up by then.
    pub slow: f64,
    /// The delay of a slow call, milliseconds, at most [`DELAY_MAX_MS`].
    pub slow_ms: u64,
    /// Calls never answered; nothing is applied. The connection is cut after [`DELAY_MAX_MS`].
    pub hang: f64,
    /// Calls carried out whose answer is lost: half have the connection cut, half hang.
    pub lost_answer: f64,
    /// Calls carried out at once, answered only after their `Complete-By`
    /// (without that header: after `slow_ms`; never later than [`DELAY_MAX_MS`]).
    pub after_deadline: f64,
    /// Idempotency keys (not calls) that are declined with 422. A declined key stays declined.
    pub permanent: f64,
    /// Undo keys (not calls) that fail with 422, as long as these settings and the seed stay.
    pub undo_fails: f64,
    /// Like `transient`, for undo calls.
    pub undo_transient: f64,
    /// Every call is answered 503, and is not counted as a call with its key.
    pub outage: bool,
}

impl Default for ServiceFaults {
    fn default() -> Self {
        Self {
            transient: 0.0,
            slow: 0.0,
            slow_ms: 250,
            hang: 0.0,
            lost_answer: 0.0,
            after_deadline: 0.0,
            permanent: 0.0,
            undo_fails: 0.0,
            undo_transient: 0.0,
            outage: false,
        }
    }
}

/// Settings or a name that were refused; the text says what to write instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Mistake(pub String);

impl Faults {
    /// The settings of one service; no faults if it is not listed.
    pub fn of(&self, service: Service) -> ServiceFaults {
        self.services.get(&service).cloned().unwrap_or_default()
    }

    /// Errors if a service's settings are refused; see [`ServiceFaults::validate`].
    pub fn validate(&self) -> Result<(), Mistake> {
        self.services.iter().try_for_each(|(&service, faults)| faults.validate(service))
    }

    /// The same settings with every service listed, as `GET /faults` shows them.
    pub(crate) fn complete(&self) -> Self {
        Self {
            seed: self.seed,
            services: Service::ALL.into_iter().map(|service| (service, self.of(service))).collect(),
        }
    }
}

/// Sums of decimal fractions such as 0.7 + 0.2 + 0.1 may exceed 1 by a rounding error.
const ROUNDING: f64 = 1e-9;

impl ServiceFaults {
    /// Errors if a rate is outside 0 to 1, if the rates that can meet one call add up to more than 1, or if `slow_ms`
    /// exceeds [`DELAY_MAX_MS`].
    pub fn validate(&self, service: Service) -> Result<(), Mistake> {
        for (name, rate) in self.rates() {
            if !(0.0..=1.0).contains(&rate) {
                return Err(Mistake(format!(
                    "`{service}.{name}` is {rate}; write a share of calls from 0 to 1, such as 0.05"
                )));
            }
        }
        if self.slow_ms > DELAY_MAX_MS {
            return Err(Mistake(format!(
                "`{service}.slow_ms` is {}; write at most {DELAY_MAX_MS} milliseconds",
                self.slow_ms
            )));
        }
        let either = self.slow + self.hang + self.lost_answer + self.after_deadline;
        let both_ways = "`slow`, `hang`, `lost_answer`, `after_deadline`";
        let sums = [
            ("transient`, `permanent", self.transient + self.permanent),
            ("undo_transient`, `undo_fails", self.undo_transient + self.undo_fails),
        ];
        for (own, sum) in sums {
            let sum = either + sum;
            if sum > 1.0 + ROUNDING {
                return Err(Mistake(format!(
                    "the rates `{own}`, {both_ways} of `{service}` add up to {sum:.3}; \
                     lower them until they add up to at most 1"
                )));
            }
        }
        Ok(())
    }

    fn rates(&self) -> [(&'static str, f64); 8] {
        [
            ("transient", self.transient),
            ("slow", self.slow),
            ("hang", self.hang),
            ("lost_answer", self.lost_answer),
            ("after_deadline", self.after_deadline),
            ("permanent", self.permanent),
            ("undo_fails", self.undo_fails),
            ("undo_transient", self.undo_transient),
        ]
    }
}
