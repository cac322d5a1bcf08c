//! A lease store that can be away, silent, or lose answers; clocks that follow tokio's; a place where acts are recorded.

use jiff::{SignedDuration, Timestamp};
use leader::memory::MemoryLeases;
use leader::{Clock, Error, Lease, LeaseStore, Note, Settings};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stepwarden_aws::{Clients, Config, DynamoLeases, schema};
use tokio::time::Instant;

pub const TABLE: &str = "state_table";
pub const LIFE: Duration = Duration::from_secs(10);
pub const SKEW: Duration = Duration::from_secs(1);
pub const POLL: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mood {
    #[default]
    Well,
    /// Every call fails.
    Away,
    /// No call is ever answered, and nothing is done.
    Silent,
    /// Calls are done, and their answers lost.
    Mute,
}

#[derive(Default)]
pub struct Store {
    pub leases: MemoryLeases,
    mood: Mutex<Mood>,
    pub writes: AtomicUsize,
    pub reads: AtomicUsize,
}

impl Store {
    pub fn set(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    fn mood(&self) -> Mood {
        *self.mood.lock().unwrap()
    }

    pub async fn stored(&self) -> Lease {
        self.leases.read("sweep").await.unwrap().unwrap()
    }
}

/// Leases in [`TABLE`], which this creates.
pub async fn leases(clients: &Clients) -> DynamoLeases {
    let needed = ["ORDERS_TABLE", "STATE_TABLE", "QUEUE_PREFIX", "EVENT_BUS"];
    let lookup = |name: &str| needed.contains(&name).then(|| name.to_lowercase());
    let config = Config::from_lookup(lookup).unwrap();
    schema::create(clients, &config, "q-", 30).await.unwrap();
    DynamoLeases::new(clients.dynamodb.clone(), TABLE)
}

fn away() -> Error {
    "the lease store: 503".into()
}

impl LeaseStore for Store {
    async fn read(&self, name: &str) -> Result<Option<Lease>, Error> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        match self.mood() {
            Mood::Well => self.leases.read(name).await,
            Mood::Away | Mood::Mute => Err(away()),
            Mood::Silent => std::future::pending().await,
        }
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        match self.mood() {
            Mood::Well => self.leases.replace(lease, seen).await,
            Mood::Away => Err(away()),
            Mood::Silent => std::future::pending().await,
            Mood::Mute => {
                self.leases.replace(lease, seen).await?;
                Err(away())
            }
        }
    }
}

/// A wall clock that follows tokio's and is `ahead_ms` ahead of the right time.
pub fn clock(ahead_ms: i64) -> Clock {
    let start = Instant::now();
    Arc::new(move || {
        let ms = i64::try_from(start.elapsed().as_millis()).unwrap() + ahead_ms;
        Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_millis(ms)
    })
}

/// Settings of a contender whose wall clock is right; all contenders of a test start at its beginning.
pub fn settings(holder: &str) -> Settings {
    Settings { poll_every: POLL, skew: SKEW, clock: clock(0), ..Settings::new("sweep", holder, LIFE) }
}

/// Settings that keep a list of what happened.
pub fn noted(mut settings: Settings) -> (Settings, Arc<Mutex<Vec<Note>>>) {
    let notes = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&notes);
    settings.on_note = Arc::new(move |note| kept.lock().unwrap().push(note));
    (settings, notes)
}

pub fn secs(s: u64) -> Duration {
    Duration::from_secs(s)
}
