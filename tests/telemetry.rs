//! Goal: every metric of docs/telemetry.md is emitted, and every metric that is emitted is in it. Method: the whole
//! system in memory, with faults until each metric has been counted; then `GET /metrics` is compared with the page.

use crate::support::{Whole, trip, until};
use serde_json::{Value, json};
use shared::task::ProcessState;
use std::collections::{BTreeMap, BTreeSet};
use stepwarden_aws::metrics::{ALL, Kind};
use stepwarden_remotes::{Service, ServiceFaults};

/// Position of the step that payment does.
const CHARGE: usize = 2;

/// Names of samples and their values, of all labels together.
async fn scrape(whole: &Whole) -> BTreeMap<String, f64> {
    let answer = whole.http.get(format!("{}/metrics", whole.system.url)).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    let mut samples = BTreeMap::new();
    for line in answer.text().await.unwrap().lines().filter(|line| !line.starts_with('#')) {
        let (name, value) = line.rsplit_once(' ').unwrap();
        *samples.entry(name.split('{').next().unwrap().to_owned()).or_default() += value.parse::<f64>().unwrap();
    }
    samples
}

/// The name of a metric's sample; for a histogram, of its count.
fn sample(name: &str, kind: Kind) -> String {
    match kind {
        Kind::Counter => format!("stepwarden_{name}_total"),
        Kind::Gauge => format!("stepwarden_{name}_seconds"),
        Kind::Level => format!("stepwarden_{name}"),
        Kind::Histogram => format!("stepwarden_{name}_seconds_count"),
    }
}

// Metrics: each is emitted by the running system.
#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_emitted() {
    let stop = trip("stop", "300ms", 200, "on_failure = \"error\"");
    let ask = "name = \"ask\"\n[[step]]\nname = \"ask\"\nevent = \"yes\"\ntimeout = \"1h\"\n\
               remind = { every = \"1s\", agent = \"payment\" }\n";
    let whole = Whole::start(&[trip("trip", "300ms", 200, ""), stop, ask.to_owned()]).await;
    let faults = |faults| whole.fault(Service::Payment, faults);
    faults(ServiceFaults { permanent: 1.0, ..Default::default() });
    let undone = whole.submit("undone", &json!({"workflow": "trip", "input": {"total_cents": 1}})).await;
    whole.ends(&undone, ProcessState::Undone).await;
    let stopped = whole.submit("stop", &json!({"workflow": "stop", "input": {"total_cents": 1}})).await;
    whole.ends(&stopped, ProcessState::Error).await;
    let seen = async |name: &str| scrape(&whole).await.get(name).is_some_and(|value| *value > 0.0);
    let _ = whole.submit("ask", &json!({"workflow": "ask", "input": {}})).await;
    until("a reminder failed", async || seen("stepwarden_reminders_failed_total").await.then_some(())).await;
    // Silence, until the breaker opens; then the service recovers, and a probe closes the breaker.
    faults(ServiceFaults { hang: 1.0, ..Default::default() });
    let open = whole.submit("slow", &json!({"workflow": "trip", "input": {"total_cents": 2}})).await;
    until("orders have an age", async || seen("stepwarden_oldest_processing_age_seconds").await.then_some(())).await;
    until("a breaker is open", async || seen("stepwarden_breaker_opened_total").await.then_some(())).await;
    faults(ServiceFaults::default());
    let task = whole.ends(&open, ProcessState::Processed).await;
    assert!(task.steps[CHARGE].attempt > 1, "it was tried again: {task:#?}");
    let reply = json!({"type": "reply", "task_id": open, "step": "charge",
                       "attempt": 1, "outcome": "done", "output": {}});
    whole.send("replies", &reply.to_string()).await;
    // Another system, whose callers have a rate limit; metrics are counted for the whole process.
    let bounded = Whole::start_with(&[trip("trip", "1s", 3, "")], |options| options.access.rate = 1).await;
    until("an order is refused", async || {
        let post = bounded.http.post(format!("{}/orders", bounded.system.url)).header("idempotency-key", "one");
        let answer = post.json(&json!({"workflow": "trip", "input": {"total_cents": 3}})).send().await.unwrap();
        (answer.status() == 429).then_some(())
    })
    .await;
    // Its workflow has no such event.
    let url = format!("{}/orders/{open}/events/paid", whole.system.url);
    let sent = whole.http.post(url).header("idempotency-key", "one").json(&json!({})).send().await.unwrap();
    assert_eq!(sent.status(), 404);
    until("every metric", async || {
        let samples = scrape(&whole).await;
        let missing: Vec<_> = ALL.iter().filter(|m| !samples.contains_key(&sample(m.name, m.kind))).collect();
        missing.is_empty().then_some(())
    })
    .await;
}

// Metrics: the page lists exactly the metrics of the code.
#[test]
fn the_page_lists_the_metrics_that_there_are() {
    let page = include_str!("../docs/telemetry.md");
    let listed: BTreeSet<Vec<&str>> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"))
        .map(|row| row.split(" | ").map(|cell| cell.trim_matches('`')).collect())
        .filter(|row: &Vec<&str>| row.len() == 5)
        .collect();
    let unit = |kind| if matches!(kind, Kind::Counter | Kind::Level) { "count" } else { "seconds" };
    let there: BTreeSet<Vec<&str>> =
        ALL.iter().map(|m| vec![m.name, kind(m.kind), unit(m.kind), m.label.unwrap_or("none"), m.help]).collect();
    assert_eq!(listed, there);
}

fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Counter => "counter",
        Kind::Gauge | Kind::Level => "gauge",
        Kind::Histogram => "histogram",
    }
}

// Metrics are for operators: the same token as their routes.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_for_operators() {
    let whole = Whole::start(&[trip("trip", "1s", 3, "")]).await;
    let url = format!("{}/metrics", whole.system.url);
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 401);
    let answer = whole.http.post(&url).send().await.unwrap();
    assert_eq!(answer.status(), 405);
    let body: Value = answer.json().await.unwrap();
    assert_eq!(body["code"], "method_not_allowed", "{body}");
}
