//! The summary of a demo run, for people and for programs.

use crate::bench::latency::quantile;
use anyhow::{Context, Result};
use serde::Serialize;
use shared::history::Kind;
use shared::task::{ProcessState, Task};
use std::collections::BTreeMap;
use std::time::Duration;
use stepwarden_aws::config::queue;
use stepwarden_embedded::Counts;
use stepwarden_local::system::System;
use stepwarden_remotes::{Expected, Service};

/// The summary.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Every order ended, and every check holds.
    pub ok: bool,
    orders: usize,
    seconds: f64,
    orders_per_second: f64,
    /// Orders by state.
    states: BTreeMap<&'static str, usize>,
    p50_ms: f64,
    p99_ms: f64,
    /// Of steps and undos.
    attempts: usize,
    expired: usize,
    given_back: usize,
    deferred: usize,
    undone_steps: usize,
    undone_orders: usize,
    alerts: u64,
    dynamodb_calls_per_order: f64,
    sqs_calls_per_order: f64,
    messages_per_order: f64,
    /// Absent if the operating system does not measure it.
    #[serde(skip_serializing_if = "Option::is_none")]
    cpu_ms_per_order: Option<f64>,
    checks: Vec<Check>,
}

#[derive(Clone, Debug, Serialize)]
struct Check {
    ok: bool,
    check: String,
    /// What is wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Report {
    /// The summary of `tasks`; looks up every effect in the ledgers.
    pub fn new(
        system: &System,
        tasks: &[Task],
        took: Duration,
        cpu: Option<Duration>,
        counts: &Counts,
    ) -> Result<Self> {
        let orders = tasks.len() as f64;
        let in_state = |state: ProcessState| tasks.iter().filter(|t| t.process_state() == state).count();
        let events = |kind: Kind| tasks.iter().flat_map(|t| &t.log).filter(|e| e.1 == kind).count();
        let mut latencies: Vec<f64> =
            tasks.iter().map(|t| t.created_at.duration_until(t.updated_at).as_secs_f64() * 1000.0).collect();
        latencies.sort_by(f64::total_cmp);
        let states = ProcessState::ALL.into_iter().map(|state| (state.name(), in_state(state)));
        let checks = checks(system, tasks, counts)?;
        Ok(Self {
            ok: checks.iter().all(|check| check.ok),
            orders: tasks.len(),
            seconds: took.as_secs_f64(),
            orders_per_second: orders / took.as_secs_f64(),
            states: states.collect(),
            p50_ms: quantile(&latencies, 0.50),
            p99_ms: quantile(&latencies, 0.99),
            attempts: events(Kind::Claimed) + events(Kind::UndoClaimed),
            expired: events(Kind::Expired),
            given_back: events(Kind::Unavailable),
            deferred: events(Kind::Deferred),
            undone_steps: events(Kind::Undone),
            undone_orders: events(Kind::TaskUndoing),
            alerts: counts.events_put,
            dynamodb_calls_per_order: calls(counts, "DynamoDB") as f64 / orders,
            sqs_calls_per_order: calls(counts, "AmazonSQS") as f64 / orders,
            messages_per_order: counts.messages_sent as f64 / orders,
            cpu_ms_per_order: cpu.map(|cpu| cpu.as_secs_f64() * 1000.0 / orders),
            checks,
        })
    }

    /// Prints it for people.
    pub fn print(&self) -> Result<()> {
        crate::say!("\n{} orders in {:.1} s: {:.0} orders/s", self.orders, self.seconds, self.orders_per_second);
        for state in ProcessState::ALL {
            let count = self.states.get(state.name()).copied().unwrap_or_default();
            if count > 0 || state.is_final() {
                crate::say!("  {:<12}{count:>6}", state.name());
            }
        }
        crate::say!("  latency     p50 {:.0} ms, p99 {:.0} ms", self.p50_ms, self.p99_ms);
        crate::say!("  attempts    {} of steps and undos", self.attempts);
        crate::say!(
            "  requeues    {} past CompleteBy without an answer, {} given back early, {} held back by a breaker",
            self.expired,
            self.given_back,
            self.deferred
        );
        crate::say!("  undos       {} steps of {} orders", self.undone_steps, self.undone_orders);
        crate::say!("  alerts      {} to the operator", self.alerts);
        crate::say!(
            "  API calls   {:.1} DynamoDB, {:.1} SQS, {:.1} messages sent per order",
            self.dynamodb_calls_per_order,
            self.sqs_calls_per_order,
            self.messages_per_order
        );
        if let Some(cpu) = self.cpu_ms_per_order {
            crate::say!("  CPU         {cpu:.1} ms per order, including remote services and submitters");
        }
        crate::say!("checks");
        for Check { ok, check, detail } in &self.checks {
            crate::say!("  {} {check}", if *ok { "ok  " } else { "FAIL" });
            if let Some(detail) = detail {
                crate::say!("{detail}");
            }
        }
        Ok(())
    }
}

fn checks(system: &System, tasks: &[Task], counts: &Counts) -> Result<Vec<Check>> {
    let check = |ok: bool, check: String| Check { ok, check, detail: None };
    let open = tasks.iter().filter(|t| !t.process_state().is_final()).count();
    let expected = tasks.iter().map(|task| {
        let expected = match task.process_state() {
            ProcessState::Processed => Expected::Applied(Service::ALL.to_vec()),
            ProcessState::Undone => Expected::Undone,
            ProcessState::Pending | ProcessState::Processing | ProcessState::Undoing | ProcessState::Error => {
                Expected::Any
            }
        };
        (task.id.0.clone(), expected)
    });
    let ledgers = system.remotes.check(expected.collect::<Vec<_>>()).context("checking the ledgers")?;
    let effects = format!(
        "the ledgers of the remote services: {} effects, each applied once, or applied and undone",
        ledgers.effects
    );
    let alerted = tasks.iter().filter(|t| t.process_state() == ProcessState::Error).count() as u64;
    let kept = system.endpoints.as_ref().map(stepwarden_embedded::Endpoints::queue_stats).unwrap_or_default();
    let aside: usize = kept
        .iter()
        .filter(|q| q.name.ends_with("-dead") || q.name.ends_with(queue::SET_ASIDE))
        .map(|q| q.visible + q.in_flight)
        .sum();
    Ok(vec![
        check(open == 0, format!("every order ended: {open} are still open")),
        Check { detail: (!ledgers.is_clean()).then(|| ledgers.to_string()), ..check(ledgers.is_clean(), effects) },
        check(counts.events_put >= alerted, format!("an alert for each of the {alerted} orders in Error")),
        check(aside == 0, format!("no message is a dead letter or set aside: {aside} are")),
    ])
}

/// Requests to one service.
pub fn calls(counts: &Counts, service: &str) -> u64 {
    counts.operations.iter().filter(|(name, _)| name.starts_with(service)).map(|(_, o)| o.requests).sum()
}
