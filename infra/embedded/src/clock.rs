//! The one clock of the endpoints: wall-clock milliseconds that move with tokio's clock, so that a
//! test under a paused clock sees delays, visibility timeouts and timestamps pass in step.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// How far the wall clock must run ahead of tokio's clock, which stops while a laptop sleeps, before the wall clock is
/// used. Long enough that a busy test under a paused clock never reaches it.
const SUSPENDED_MS: i64 = 60_000;

#[derive(Debug)]
pub(crate) struct Clock {
    started: Instant,
    /// Wall-clock time at `started`. UTC, milliseconds since 1970.
    wall_at_start_ms: AtomicI64,
}

impl Clock {
    pub fn start() -> Self {
        Self { started: Instant::now(), wall_at_start_ms: AtomicI64::new(wall_ms()) }
    }

    /// UTC, milliseconds since 1970. Never runs backwards within a process.
    pub fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX / 2);
        let now = self.wall_at_start_ms.load(Ordering::Relaxed) + elapsed;
        let ahead = wall_ms() - now;
        if ahead <= SUSPENDED_MS {
            return now;
        }
        self.wall_at_start_ms.fetch_max(now + ahead - elapsed, Ordering::Relaxed);
        now + ahead
    }

    /// The instant at which `now_ms()` will reach `at_ms`.
    pub fn instant(&self, at_ms: i64) -> Instant {
        let wait_ms = u64::try_from(at_ms - self.now_ms()).unwrap_or(0);
        Instant::now() + Duration::from_millis(wait_ms)
    }
}

/// DynamoDB's time to live and stream records read the same clock.
impl dynoxide::storage_backend::Clock for Clock {
    fn now_unix_secs(&self) -> u64 {
        u64::try_from(self.now_ms() / 1000).unwrap_or(0)
    }

    fn now_unix_secs_f64(&self) -> f64 {
        self.now_ms() as f64 / 1000.0
    }
}

fn wall_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX / 2)
}
