//! One act on many orders: by filter, at a bounded rate, with a result for each, and an end when too many fail.
//!
//! Each order is acted on at the version at which it was listed, so one that has changed since is left alone; an alert
//! that the system sent since is no change. A call ends after [`MAX_TIME`] at the latest, with a cursor to continue.

use crate::Operator;
use crate::act::{self, Answer, Body};
use crate::list::{Unreadable, Wanted, check_cursor};
use edge::problem::{self, Problem};
use edge::query::number;
use edge::whole_number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::decision::Act;
use shared::operator::Outcome;
use std::time::Duration;
use stepwarden_aws::list::{MAX_CURSOR, MAX_PAGE};
use stepwarden_aws::traces;
use tokio::time::Instant;

/// Most orders of one call.
pub const MAX_ORDERS: usize = 1000;
/// Most acts a second.
pub const MAX_RATE: u32 = 100;
/// Longest time of one call: well below API Gateway's 30 s.
pub const MAX_TIME: Duration = Duration::from_secs(20);
/// Most pages read in one call, so that a filter that finds little ends too.
const MAX_PAGES: usize = 20;

fn default_limit() -> usize {
    100
}

fn default_rate() -> u32 {
    10
}

fn default_abort() -> usize {
    10
}

/// The request.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Bulk {
    /// Name of the act, as in the routes.
    #[schemars(extend("enum" = act::NAMES))]
    pub action: String,
    /// Which orders.
    pub filter: Wanted,
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = act::MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = act::MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// For `resubmit`.
    pub input: Option<Value>,
    /// For `mark-done`.
    pub output: Option<Value>,
    /// Report what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Acts per second.
    #[serde(default = "default_rate")]
    #[schemars(range(min = 1, max = MAX_RATE))]
    #[serde(deserialize_with = "whole_number::number")]
    pub rate_per_s: u32,
    /// Maximum number of orders to act on.
    #[serde(default = "default_limit")]
    #[schemars(range(min = 1, max = MAX_ORDERS))]
    #[serde(deserialize_with = "whole_number::number")]
    pub limit: usize,
    /// Stop after this many failures.
    #[serde(default = "default_abort")]
    #[schemars(range(min = 1, max = MAX_ORDERS))]
    #[serde(deserialize_with = "whole_number::number")]
    pub abort_after_failures: usize,
    /// Cursor from an earlier call.
    #[schemars(length(max = MAX_CURSOR))]
    pub cursor: Option<String>,
}

/// What was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BulkReport")]
pub struct Report {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Orders for which the act was accepted.
    pub good: usize,
    /// Orders for which the act failed.
    pub failed: usize,
    /// It stopped after too many failures.
    pub aborted: bool,
    /// One for each order, in the order of the list.
    pub results: Vec<Answer>,
    /// Orders left alone because their records cannot be read. They do not count as failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Cursor to continue with, if there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Report {
    /// Adds those that are not listed yet: after a call that ends within a page, the next one begins with that page.
    fn name(&mut self, unreadable: impl Iterator<Item = Unreadable>) {
        for one in unreadable {
            if self.unreadable.iter().all(|named| named.order_id != one.order_id) {
                self.unreadable.push(one);
            }
        }
    }
}

impl Operator {
    /// Acts, or reports what it would do.
    ///
    /// # Errors
    /// An invalid field, or the store failed before anything was done. Later errors are results.
    pub async fn bulk(&self, bulk: &Bulk, subject: Option<&str>) -> Result<Report, Problem> {
        let (by, reason) = act::who_and_why(subject, bulk.by.as_deref(), bulk.reason.as_deref())?;
        let body = Body {
            step: bulk.filter.step.clone().filter(|_| act::takes_step(&bulk.action)),
            input: bulk.input.clone(),
            output: bulk.output.clone(),
            ..Body::default()
        };
        let what = act::what(&bulk.action, &body).unwrap_or_else(|| {
            Err(problem::invalid_field("action", format!("must be one of {}", act::NAMES.join(", "))))
        })?;
        traces::set("act", bulk.action.clone());
        if bulk.filter.is_everything() {
            return Err(problem::invalid_field("filter", "matches every order; add a condition"));
        }
        number("limit", &bulk.limit.to_string(), 1, MAX_ORDERS)?;
        number("rate_per_s", &bulk.rate_per_s.to_string(), 1, MAX_RATE as usize)?;
        number("abort_after_failures", &bulk.abort_after_failures.to_string(), 1, MAX_ORDERS)?;
        let filter = bulk.filter.filter()?;
        check_cursor(&filter, bulk.cursor.as_deref())?;
        let mut pace = tokio::time::interval(Duration::from_secs(1) / bulk.rate_per_s);
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = Instant::now() + MAX_TIME;
        let mut report = Report { dry_run: bulk.dry_run, next: bulk.cursor.clone(), ..Report::default() };
        for _ in 0..MAX_PAGES {
            let page = self.engine.store.list(&filter, self.engine.now(), MAX_PAGE, report.next.as_deref()).await;
            let page = match page {
                Ok(page) => page,
                Err(error) if report.results.is_empty() => return Err(act::unavailable(&error)),
                // What was done matters more to the person than the error; the cursor says where to continue.
                Err(_) => return Ok(report),
            };
            let (known, damaged) = match self.with_workflows(page.tasks).await {
                Ok(known) => known,
                Err(error) if report.results.is_empty() => return Err(act::unavailable(&error)),
                Err(_) => return Ok(report),
            };
            report.name(page.unreadable.into_iter().map(Unreadable::from).chain(damaged));
            for (task, workflow) in &known {
                if filter.fits_steps(task, workflow) {
                    if report.results.len() == bulk.limit || report.aborted || Instant::now() >= end {
                        return Ok(report);
                    }
                    let one =
                        Act { what: what.clone(), by: by.clone(), reason: reason.clone(), seen: Some(task.version) };
                    let answer = if bulk.dry_run {
                        previewed(task.id.clone(), self.engine.preview(task, &one).await)
                    } else {
                        pace.tick().await;
                        Answer::new(task.id.clone(), self.act(task.id.clone(), one).await)
                    };
                    if answer.is_good() {
                        report.good += 1
                    } else {
                        report.failed += 1
                    }
                    report.results.push(answer);
                    report.aborted = report.failed >= bulk.abort_after_failures;
                }
                report.next = Some(self.engine.store.cursor_after(&filter, task));
            }
            report.next = page.next;
            if report.next.is_none() || report.aborted {
                return Ok(report);
            }
        }
        Ok(report)
    }
}

fn previewed(id: shared::order::Id, outcome: Result<Outcome, shared::ports::Error>) -> Answer {
    let answer = Answer::new(id, outcome);
    match &*answer.outcome {
        // The version it would get is not its version.
        "applied" => Answer { outcome: "would_apply".into(), version: None, ..answer },
        _ => answer,
    }
}
