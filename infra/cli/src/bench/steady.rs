//! One long run at a fixed rate: does memory stay constant, and do files grow only with the orders?

use super::latency::Latency;
use super::load::Load;
use super::report::{Sample, Steady};
use crate::{process, say};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Samples of memory and files in a whole run.
const SAMPLES: u32 = 120;
/// Least time between two samples.
const LEAST: Duration = Duration::from_millis(100);

/// Offers `rate` orders per second for the time `lasting`. `data` is where the files are.
///
/// # Errors
/// An order is refused or does not end, or this operating system does not report memory use.
pub async fn run(load: &Load, rate: u32, lasting: Duration, data: Option<&Path>) -> Result<Steady> {
    // Allocated and written in full at the beginning; otherwise this list would be what grows.
    let mut latencies = vec![1.0; (lasting.as_secs_f64() * f64::from(rate)) as usize + 1];
    latencies.clear();
    let sampling = tokio::spawn(sample(lasting, data.map(Path::to_owned)));
    let refused = load.offer("steady", rate, lasting, &mut latencies).await?;
    let samples = sampling.await??;
    let orders = latencies.len() as u64;
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    Ok(Steady {
        offered_per_second: rate,
        seconds: lasting.as_secs_f64(),
        orders,
        refused,
        latency: Latency::of(latencies),
        memory_quarters_bytes: quarters(&samples),
        file_bytes_per_order: last.database_bytes.saturating_sub(first.database_bytes) as f64
            / (orders as f64).max(1.0),
        samples,
    })
}

async fn sample(lasting: Duration, data: Option<PathBuf>) -> Result<Vec<Sample>> {
    let every = (lasting / SAMPLES).max(LEAST);
    let begin = Instant::now();
    let mut samples = Vec::with_capacity(SAMPLES as usize + 1);
    loop {
        let at = begin.elapsed();
        let memory_bytes = process::memory().context("this operating system does not report memory use")?.0;
        let (database_bytes, log_bytes) = data.as_deref().map_or((0, 0), sizes);
        samples.push(Sample { at_s: at.as_secs_f64(), memory_bytes, database_bytes, log_bytes });
        if at >= lasting {
            return Ok(samples);
        }
        tokio::time::sleep(every.min(lasting - at)).await;
    }
}

/// Bytes of the databases in `folder`, and of their write-ahead logs.
pub(super) fn sizes(folder: &Path) -> (u64, u64) {
    let size = |name: &str| std::fs::metadata(folder.join(name)).map_or(0, |file| file.len());
    let of = |suffix: &str| {
        ["tables.db", "queues.db", stepwarden_remotes::FILE_NAME]
            .map(|name| size(&format!("{name}{suffix}")))
            .iter()
            .sum()
    };
    (of(""), of("-wal"))
}

/// Means of the quarters; the last sample belongs to the last quarter.
fn quarters(samples: &[Sample]) -> [u64; 4] {
    let end = samples.last().map_or(0.0, |sample| sample.at_s).max(f64::MIN_POSITIVE);
    let (mut sums, mut counts) = ([0; 4], [0; 4]);
    for sample in samples {
        let quarter = ((sample.at_s / end * 4.0) as usize).min(3);
        sums[quarter] += sample.memory_bytes;
        counts[quarter] += 1;
    }
    std::array::from_fn(|n| sums[n] / counts[n].max(1))
}

impl Steady {
    /// Writes the result to standard output, for people.
    pub fn say(&self) -> Result<()> {
        let Self { orders, seconds, refused, latency, memory_quarters_bytes, .. } = self;
        say!("steady              {orders} orders in {seconds:.0} s, {refused} refused, {latency}");
        say!(
            "  memory            {} MB, means of the quarters",
            memory_quarters_bytes.map(|b| (b >> 20).to_string()).join(", ")
        );
        let log = self.samples.iter().map(|sample| sample.log_bytes).max().unwrap_or_default();
        say!(
            "  files             {:.0} bytes per order, write-ahead logs {} MB at most",
            self.file_bytes_per_order,
            log >> 20
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quarter_is_the_mean_of_its_samples() {
        let at = |at_s: f64, memory_bytes| Sample { at_s, memory_bytes, database_bytes: 0, log_bytes: 0 };
        let samples = [at(0.0, 10), at(1.0, 20), at(2.0, 30), at(4.0, 40), at(6.0, 50), at(7.0, 60), at(8.0, 100)];
        assert_eq!(quarters(&samples), [15, 30, 40, 70]);
    }
}
