//! CloudWatch's embedded metric format: a line of JSON in the log that becomes metrics.
//! <https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/CloudWatch_Embedded_Metric_Format_Specification.html>

use super::{Kind, Registry, registry};
use serde_json::{Map, Value, json};
use shared::time::Timestamp;
use std::collections::BTreeMap;
use std::io::Write;

/// The namespace of all metrics.
pub const NAMESPACE: &str = "Stepwarden";
/// The dimension that all metrics have: the stack they come from.
pub const STACK: &str = "stack";

/// A metric's name, its kind, and the values to report.
type Told = (&'static str, Kind, Vec<f64>);

/// Writes what was counted since the last flush, if anything, to standard output, at the end of an invocation.
pub fn flush(stack: &str) {
    let lines = lines(&mut registry(), stack, Timestamp::now());
    if !lines.is_empty() {
        // Without a reader of it, nobody misses a metric.
        let _ = std::io::stdout().lock().write_all(lines.as_bytes());
    }
}

/// One line, or one per value of a label, because in a line each dimension has one value.
fn lines(registry: &mut Registry, stack: &str, now: Timestamp) -> String {
    // By label, then by its value: the metrics that have values to report.
    let mut told: BTreeMap<Option<&str>, BTreeMap<String, Vec<Told>>> = BTreeMap::new();
    for ((name, value), series) in registry.iter_mut() {
        let pending = std::mem::take(&mut series.pending);
        if !pending.is_empty() {
            let of_label = told.entry(series.metric.label).or_default();
            of_label.entry(value.clone()).or_default().push((name, series.metric.kind, pending));
        }
    }
    let mut lines: Vec<(Vec<Value>, Map<String, Value>)> = Vec::new();
    for (label, values) in told {
        for (n, (value, metrics)) in values.into_iter().enumerate() {
            if lines.len() == n {
                lines.push((Vec::new(), Map::from_iter([(STACK.to_owned(), json!(stack))])));
            }
            let (directives, line) = &mut lines[n];
            let dimensions: Vec<&str> = [STACK].into_iter().chain(label).collect();
            let unit = |kind| match kind {
                Kind::Counter | Kind::Level => "Count",
                Kind::Gauge | Kind::Histogram => "Seconds",
            };
            let names: Vec<_> =
                metrics.iter().map(|(name, kind, _)| json!({"Name": name, "Unit": unit(*kind)})).collect();
            directives.push(json!({"Namespace": NAMESPACE, "Dimensions": [dimensions], "Metrics": names}));
            if let Some(label) = label {
                line.insert(label.to_owned(), json!(value));
            }
            for (name, kind, pending) in metrics {
                let is_list = kind == Kind::Histogram;
                line.insert(name.to_owned(), if is_list { json!(pending) } else { json!(pending[0]) });
            }
        }
    }
    lines.into_iter().fold(String::new(), |text, (directives, mut line)| {
        line.insert("_aws".into(), json!({"Timestamp": now.as_millisecond(), "CloudWatchMetrics": directives}));
        text + &Value::Object(line).to_string() + "\n"
    })
}

#[cfg(test)]
mod tests {
    use super::super::{OLDEST_PENDING_AGE, ORDERS_ACCEPTED, ORDERS_PROCESSED, RECOVERY_LAG, STEP_ATTEMPTS};
    use super::*;

    fn parsed(registry: &mut Registry) -> Vec<Value> {
        let lines = lines(registry, "shop", Timestamp::from_second(9).unwrap());
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn an_invocation_is_one_line_and_nothing_new_is_none() {
        let mut registry = Registry::new();
        assert!(parsed(&mut registry).is_empty());
        ORDERS_ACCEPTED.record(&mut registry, "order", 1.0);
        ORDERS_ACCEPTED.record(&mut registry, "order", 1.0);
        ORDERS_PROCESSED.record(&mut registry, "order", 1.0);
        STEP_ATTEMPTS.record(&mut registry, "payment", 1.0);
        OLDEST_PENDING_AGE.record(&mut registry, "", 7.5);
        RECOVERY_LAG.record(&mut registry, "payment", 0.5);
        RECOVERY_LAG.record(&mut registry, "payment", 2.0);
        let directive = |dimensions: &[&str], metrics: &[(&str, &str)]| {
            let metrics: Vec<_> = metrics.iter().map(|(name, unit)| json!({"Name": name, "Unit": unit})).collect();
            json!({"Namespace": "Stepwarden", "Dimensions": [dimensions], "Metrics": metrics})
        };
        let line = json!({
            "_aws": {"Timestamp": 9000, "CloudWatchMetrics": [
                directive(&["stack"], &[("oldest_pending_age", "Seconds")]),
                directive(&["stack", "agent"], &[("recovery_lag", "Seconds"), ("step_attempts", "Count")]),
                directive(&["stack", "workflow"], &[("orders_accepted", "Count"), ("orders_processed", "Count")]),
            ]},
            "stack": "shop", "agent": "payment", "workflow": "order", "oldest_pending_age": 7.5,
            "recovery_lag": [0.5, 2.0], "step_attempts": 1.0, "orders_accepted": 2.0, "orders_processed": 1.0,
        });
        assert_eq!(parsed(&mut registry), [line]);
        OLDEST_PENDING_AGE.record(&mut registry, "", 7.5);
        assert!(parsed(&mut registry).is_empty(), "it stands as it stood");
        for agent in ["payment", "fraud"] {
            STEP_ATTEMPTS.record(&mut registry, agent, 1.0);
        }
        let lines = parsed(&mut registry);
        let agents: Vec<_> = lines.iter().map(|line| (&line["agent"], &line["step_attempts"])).collect();
        assert_eq!(agents, [(&json!("fraud"), &json!(1.0)), (&json!("payment"), &json!(1.0))]);
    }
}
