//! What is led, by whom, and with which times.

use jiff::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The wall clock for lease records. It never decides when the work must stop.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// When a contender may take a lease that was not given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeOver {
    /// When it has expired by its record, plus the skew. Fast after a restart, but the clocks of all contenders must
    /// agree within the skew.
    ByWallClock,
    /// When the record has not changed for a full life, plus the skew, on the contender's own monotonic clock, whatever
    /// times it has. Slower by up to a life, but right even if the holder's clock is wrong. All contenders must use the
    /// same life. (The DynamoDB lock client does the same.)
    ByWatching,
}

/// Events of a lease, reported to [`Settings::on_note`] for metrics and alarms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// This contender leads.
    Elected {
        /// Its fencing token.
        token: u64,
    },
    /// The lease was renewed.
    Renewed,
    /// The store could not be reached; the lease, if held, still lives.
    StoreFault,
    /// No contender can lead, as far as this one knows: the store was unavailable for a full life of the lease, or
    /// until the work had to stop. Reported once per outage.
    NoLeader,
    /// The store answers again after [`Note::NoLeader`].
    StoreBack,
    /// This contender no longer leads.
    Ended,
}

/// What is led, by whom, and with which times. [`Settings::new`] has defaults for everything but the first three.
#[derive(Clone)]
pub struct Settings {
    /// Name of the lease: what is led.
    pub name: String,
    /// Name of this contender, for people. Every tenure adds a number, so that no two share a holder.
    pub holder: String,
    /// Life of the lease after each renewal, so also the longest time without a leader.
    pub life: Duration,
    /// From one renewal to the next; default a third of the life.
    pub renew_every: Duration,
    /// How long cancelled work may take to return before it is dropped. The work is cancelled this long before the
    /// lease can end; default a fifth of the life.
    pub wind_down: Duration,
    /// Longest time between a contender's checks for a free lease; each wait is random, from half of it to all of it.
    pub poll_every: Duration,
    /// Largest clock skew between two contenders.
    pub skew: Duration,
    /// How often the work must call [`crate::Leadership::progress`], or it counts as hung; `None`: no watchdog.
    pub progress_within: Option<Duration>,
    /// Longest tenure: after it the work is cancelled and others get a turn; `None`: no limit.
    pub tenure: Option<Duration>,
    /// When a lease that was not given back may be taken.
    pub take_over: TakeOver,
    /// The wall clock.
    pub clock: Clock,
    /// Called with every [`Note`].
    pub on_note: Arc<dyn Fn(Note) + Send + Sync>,
}

impl Settings {
    /// Settings for the lease `name`, contended for by `holder`, with this life.
    #[must_use]
    pub fn new(name: impl Into<String>, holder: impl Into<String>, life: Duration) -> Self {
        Self {
            name: name.into(),
            holder: holder.into(),
            life,
            renew_every: life / 3,
            wind_down: life / 5,
            poll_every: life / 3,
            skew: Duration::from_secs(1).min(life / 2),
            progress_within: None,
            tenure: None,
            take_over: TakeOver::ByWallClock,
            clock: Arc::new(Timestamp::now),
            on_note: Arc::new(|_| {}),
        }
    }

    /// Panics if no renewal would be due before the work must stop: a bug that shows at the first start.
    pub(crate) fn check(&self) {
        assert!(
            self.renew_every + self.wind_down < self.life,
            "lease `{}`: renew_every and wind_down together must be shorter than life",
            self.name
        );
    }

    /// A holder's name that is unique to a tenure, if contenders' names differ.
    pub(crate) fn new_holder(&self) -> String {
        static TENURES: AtomicU64 = AtomicU64::new(0);
        format!("{}#{}", self.holder, TENURES.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn now(&self) -> Timestamp {
        crate::lease::millis((self.clock)())
    }

    pub(crate) fn note(&self, note: Note) {
        (self.on_note)(note);
    }

    /// A random wait between half of `bound` and all of it, so that contenders do not stay in step.
    pub(crate) fn jittered(bound: Duration) -> Duration {
        bound.mul_f64(0.5 + fastrand::f64() / 2.0)
    }
}

pub(crate) fn signed(d: Duration) -> SignedDuration {
    SignedDuration::try_from(d).unwrap_or(SignedDuration::MAX)
}
