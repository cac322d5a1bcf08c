//! Prometheus's text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use super::{ALL, BUCKETS, Kind, Metric, Registry, registry};
use std::fmt::Write;

/// All metrics with their present values.
#[must_use]
pub fn prometheus() -> String {
    text(&registry())
}

fn text(registry: &Registry) -> String {
    let mut text = String::new();
    for metric in ALL {
        let (name, help) = (name(metric), metric.help);
        let kind = match metric.kind {
            Kind::Counter => "counter",
            Kind::Gauge | Kind::Level => "gauge",
            Kind::Histogram => "histogram",
        };
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for ((_, value), series) in registry.iter().filter(|((of, _), _)| *of == metric.name) {
            let own = metric.label.map(|label| format!("{label}=\"{}\"", escape(value))).unwrap_or_default();
            if metric.kind == Kind::Histogram {
                for (bound, count) in BUCKETS.iter().zip(series.buckets) {
                    let _ = writeln!(text, "{name}_bucket{{{own},le=\"{bound}\"}} {count}");
                }
                let (sum, count) = (series.value, series.count);
                let _ = writeln!(text, "{name}_bucket{{{own},le=\"+Inf\"}} {count}");
                let _ = writeln!(text, "{name}_sum{{{own}}} {sum}\n{name}_count{{{own}}} {count}");
            } else {
                let own = if own.is_empty() { own } else { format!("{{{own}}}") };
                let _ = writeln!(text, "{name}{own} {}", series.value);
            }
        }
    }
    text
}

/// Prometheus's naming: a prefix, and the unit or `total` at the end. A [`Kind::Level`] has no unit.
fn name(metric: &Metric) -> String {
    let end = match metric.kind {
        Kind::Counter => "_total",
        Kind::Gauge | Kind::Histogram => "_seconds",
        Kind::Level => "",
    };
    format!("stepwarden_{}{end}", metric.name)
}

fn escape(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::super::{OUTBOX_LAG, RECOVERY_LAG, STEP_FAILURES, WAITING_ORDERS};
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut registry = Registry::new();
        STEP_FAILURES.record(&mut registry, "a\"b", 1.0);
        OUTBOX_LAG.record(&mut registry, "", 2.5);
        WAITING_ORDERS.record(&mut registry, "", 3.0);
        RECOVERY_LAG.record(&mut registry, "payment", 2.0);
        let text = text(&registry);
        for line in [
            "# TYPE stepwarden_step_failures_total counter",
            r#"stepwarden_step_failures_total{agent="a\"b"} 1"#,
            "stepwarden_outbox_lag_seconds 2.5",
            "# TYPE stepwarden_waiting_orders gauge",
            "stepwarden_waiting_orders 3",
            r#"stepwarden_recovery_lag_seconds_bucket{agent="payment",le="1"} 0"#,
            r#"stepwarden_recovery_lag_seconds_bucket{agent="payment",le="5"} 1"#,
            r#"stepwarden_recovery_lag_seconds_bucket{agent="payment",le="+Inf"} 1"#,
            r#"stepwarden_recovery_lag_seconds_sum{agent="payment"} 2"#,
            r#"stepwarden_recovery_lag_seconds_count{agent="payment"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "no line {line} in\n{text}");
        }
    }
}
