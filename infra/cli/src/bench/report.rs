//! What was measured, for programs and for people.

use super::latency::Latency;
use super::lists::Lists;
use super::open::Open;
use super::recovery::Recovery;
use crate::say;
use anyhow::Result;
use serde::Serialize;
use std::collections::BTreeMap;
use stepwarden_embedded::Durability;

/// Number of parts into which a rate over time is divided.
const BINS: usize = 60;

/// What was measured. A part that was left out has no fields.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Version of Stepwarden.
    pub version: &'static str,
    /// When it began. UTC, whole seconds.
    pub date: String,
    /// Processors of the machine.
    pub cpus: usize,
    /// Name of the processors' model.
    pub cpu_model: String,
    /// Whether the compiler optimised this program.
    pub optimised: bool,
    /// What an answered write survives.
    pub durability: &'static str,
    /// Many orders at once.
    #[serde(flatten)]
    pub throughput: Option<Throughput>,
    /// From submission to the end, one order at a time.
    #[serde(flatten)]
    pub single: Option<Latency>,
    /// Resident memory before the first order, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_memory_bytes: Option<u64>,
    /// Peak of resident memory up to the end of the throughput run, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// A list beside the same orders one by one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lists: Option<Lists>,
    /// Runs at fixed rates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rates: Vec<Rate>,
    /// Many open orders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub open: Option<Open>,
    /// What kills cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recovery: Option<Recovery>,
    /// One long run at a fixed rate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steady: Option<Steady>,
}

/// Many orders at once.
#[derive(Debug, Serialize)]
pub struct Throughput {
    /// Orders ended per second.
    pub orders_per_second: f64,
    /// The same in the first and in the last tenth of the orders: equal if a backlog costs nothing.
    pub orders_per_second_first_tenth: f64,
    /// See above.
    pub orders_per_second_last_tenth: f64,
    /// How many.
    pub orders: u64,
    /// Maximum number of orders in flight; `None` with a backlog.
    pub in_flight: Option<usize>,
    /// Orders submitted before the first of them was scheduled; the next as many followed when these had ended.
    pub backlog: Option<u64>,
    /// User and system time of the whole process per order.
    pub cpu_ms_per_order: Option<f64>,
    /// Requests to the DynamoDB endpoint per order; the supervisor's sweeps included.
    pub dynamodb_calls_per_order: f64,
    /// Messages sent per order.
    pub sends_per_order: f64,
    /// Requests to the SQS endpoint per order: sends, receives and deletes, in batches.
    pub sqs_calls_per_order: f64,
    /// Requests per order by operation, as in `DynamoDB_20120810.UpdateItem`.
    pub requests_per_order: BTreeMap<String, f64>,
    /// Number of fsyncs per order.
    pub fsyncs_per_order: f64,
    /// Orders ended per second in equal parts of the scheduling, each with the middle of its part in seconds.
    pub ended_over_time: Vec<(f64, f64)>,
}

/// One long run at a fixed rate.
#[derive(Debug, Serialize)]
pub struct Steady {
    /// Scheduled submissions per second.
    pub offered_per_second: u32,
    /// For so long.
    pub seconds: f64,
    /// Orders that were taken, and ended.
    pub orders: u64,
    /// Orders refused for overload.
    pub refused: u64,
    /// From the scheduled submission to the end.
    pub latency: Latency,
    /// Mean of resident memory in each quarter of the run, in bytes. Caches fill in the first quarter.
    pub memory_quarters_bytes: [u64; 4],
    /// What an order that has ended leaves in the files, in bytes. They are kept forever.
    pub file_bytes_per_order: f64,
    /// Samples during the run.
    pub samples: Vec<Sample>,
}

/// One sample.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Sample {
    /// Seconds since the beginning.
    pub at_s: f64,
    /// Resident memory, in bytes.
    pub memory_bytes: u64,
    /// Databases, in bytes.
    pub database_bytes: u64,
    /// Their write-ahead logs, in bytes.
    pub log_bytes: u64,
}

/// A run at a fixed rate. An order's time counts from its scheduled submission.
#[derive(Debug, Serialize)]
pub struct Rate {
    /// Scheduled submissions per second.
    pub offered_per_second: u32,
    /// For so long.
    pub seconds: f64,
    /// Orders that were taken, and ended.
    pub orders: u64,
    /// Orders refused for overload.
    pub refused: u64,
    /// Orders ended per second, until the last one ended.
    pub orders_per_second: f64,
    /// How long they took.
    #[serde(flatten)]
    pub latency: Latency,
}

impl Report {
    /// A report of this machine, with nothing measured yet.
    pub fn begin(durability: Option<Durability>) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            date: jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            cpu_model: cpu_model(),
            optimised: !cfg!(debug_assertions),
            durability: match durability {
                Some(Durability::Full) => "fsync before every answer: survives a power failure",
                Some(Durability::Process) => "written before every answer: survives kill -9, not a power failure",
                None => "memory only",
            },
            ..Self::default()
        }
    }

    /// Writes it to standard output, for people.
    pub fn say(&self) -> Result<()> {
        say!("machine             {} x {}", self.cpus, self.cpu_model);
        if !self.optimised {
            say!("program             not optimised: for real figures, build it with `cargo build --release`");
        }
        say!("durability          {}", self.durability);
        if let Some(run) = &self.throughput {
            let Throughput { orders_per_second, orders, .. } = run;
            let at_once = match run.backlog {
                None => format!("{} in flight", run.in_flight.unwrap_or_default()),
                Some(n) if n >= *orders => "all submitted first".to_owned(),
                Some(n) => format!("{n} at a time, submitted first"),
            };
            say!("throughput          {orders_per_second:.0} orders/s ({orders} orders, {at_once})");
            say!(
                "  first, last tenth {:.0}, {:.0} orders/s",
                run.orders_per_second_first_tenth,
                run.orders_per_second_last_tenth
            );
            say!(
                "per order           {:.1} DynamoDB calls, {:.1} messages, {:.1} SQS requests, {:.1} fsyncs",
                run.dynamodb_calls_per_order,
                run.sends_per_order,
                run.sqs_calls_per_order,
                run.fsyncs_per_order
            );
            if let Some(cpu) = run.cpu_ms_per_order {
                say!("CPU                 {cpu:.2} ms per order");
            }
        }
        if let Some(single) = &self.single {
            say!("one at a time       {single}");
        }
        if let Some(lists) = &self.lists {
            lists.say()?;
        }
        for rate in &self.rates {
            let Rate { offered_per_second, orders_per_second, refused, .. } = rate;
            let refused = if *refused > 0 { format!(", {refused} refused") } else { String::new() };
            say!(
                "{:<19} {}, {orders_per_second:.0} orders/s{refused}",
                format!("at {offered_per_second} orders/s"),
                rate.latency
            );
        }
        if let (Some(idle), Some(peak)) = (self.idle_memory_bytes, self.peak_memory_bytes) {
            say!("memory              {} MB idle, {} MB at most", idle >> 20, peak >> 20);
        }
        if let Some(open) = &self.open {
            open.say()?;
        }
        if let Some(recovery) = &self.recovery {
            recovery.say()?;
        }
        if let Some(steady) = &self.steady {
            steady.say()?;
        }
        Ok(())
    }
}

/// Ends per second, in equal parts of the time until the last end.
pub fn over_time(ends_s: &[f64]) -> Vec<(f64, f64)> {
    let width = ends_s.last().copied().unwrap_or_default().max(1e-3) / BINS as f64;
    let mut bins = [0_u32; BINS];
    for end in ends_s {
        bins[((end / width) as usize).min(BINS - 1)] += 1;
    }
    bins.iter().enumerate().map(|(n, count)| ((n as f64 + 0.5) * width, f64::from(*count) / width)).collect()
}

fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    line.trim_start_matches([' ', '\t', ':']).to_owned()
}
