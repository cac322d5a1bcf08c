//! How long orders took.

use serde::Serialize;

/// How long orders took, in milliseconds.
#[derive(Debug, Default, Serialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// The slowest.
    pub max_ms: f64,
}

impl Latency {
    /// The latency of orders that took these milliseconds, in any order; all zero without any.
    pub fn of(mut latencies: Vec<f64>) -> Self {
        latencies.sort_by(f64::total_cmp);
        Self {
            p50_ms: quantile(&latencies, 0.50),
            p90_ms: quantile(&latencies, 0.90),
            p99_ms: quantile(&latencies, 0.99),
            max_ms: quantile(&latencies, 1.0),
        }
    }
}

impl std::fmt::Display for Latency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { p50_ms, p90_ms, p99_ms, max_ms } = self;
        write!(f, "p50 {p50_ms:.1} ms, p90 {p90_ms:.1} ms, p99 {p99_ms:.1} ms, at most {max_ms:.1} ms")
    }
}

/// The quantile `q` of sorted values; 0 without any.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let index = ((sorted.len() as f64 * q) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).copied().unwrap_or_default()
}
