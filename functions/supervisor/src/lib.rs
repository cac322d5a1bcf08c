//! The supervisor: sweeps the due index under a lease, and requests recovery of what is overdue.
//!
//! All decisions are in [`shared::supervisor`]. It may send to the scheduler's queue, put events, and nothing else: it has
//! no right on agents' queues and knows no remote service.

use serde::Serialize;
use shared::engine::Engine;
use shared::lease::{Lease, LeaseStore};
use shared::ports::{Error, Messenger, StateStore};
use shared::time::SignedDuration;

/// Tasks looked at side by side, and the size of a page of the due index.
const PAGE: u32 = 100;
/// Most pages per shard and sweep; the rest is left to the next sweep, so that one sweep always ends.
const MAX_PAGES: usize = 100;
/// Name of the lease.
pub const LEASE: &str = "supervisor";

/// How a supervisor sweeps.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Parts of the due index.
    pub shards: u16,
    /// Life of the lease; renewed after every page.
    pub lease_life: SignedDuration,
}

/// What a sweep found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// Another supervisor holds the lease: nothing was done.
    pub stood_by: bool,
    /// Tasks in the due index.
    pub looked_at: usize,
    /// Attempts that had expired.
    pub expired: usize,
    /// Tasks that could not be read or written; they stay due.
    pub failed: usize,
}

/// One sweep over all shards, if this instance holds or gets the lease.
///
/// # Errors
/// The lease store's or the due index's: then nothing leads for now, and the next sweep tries again.
pub async fn handler<S: StateStore + LeaseStore, M: Messenger>(
    engine: &Engine<S, M>,
    settings: Settings,
) -> Result<Sweep, Error> {
    let Some(mut lease) = acquire(engine, settings).await? else {
        return Ok(Sweep { stood_by: true, ..Sweep::default() });
    };
    let mut sweep = Sweep::default();
    for shard in 0..settings.shards {
        match sweep_shard(engine, settings, shard, lease, &mut sweep).await? {
            Some(still) => lease = still,
            None => return Ok(sweep),
        }
    }
    if sweep.looked_at > 0 {
        tracing::info!(
            looked_at = sweep.looked_at,
            expired = sweep.expired,
            failed = sweep.failed,
            "swept the due index"
        );
    }
    engine.store.release(&lease).await?;
    Ok(sweep)
}

/// Sweeps one shard; `None` when the lease was lost on the way.
async fn sweep_shard<S: StateStore + LeaseStore, M: Messenger>(
    engine: &Engine<S, M>,
    settings: Settings,
    shard: u16,
    mut lease: Lease,
    sweep: &mut Sweep,
) -> Result<Option<Lease>, Error> {
    let mut cursor: Option<String> = None;
    // What is due after the sweep began is the next sweep's: otherwise a task due again at once would be met for ever.
    let now = engine.now();
    for _ in 0..MAX_PAGES {
        let page = engine.store.due(shard, now, PAGE, cursor.as_deref()).await?;
        sweep.looked_at += page.ids.len();
        for answer in engine.recover(&page.ids, &lease).await {
            match answer {
                Ok(expired) => sweep.expired += expired,
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a due task stays for the next sweep");
                    sweep.failed += 1;
                }
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            break;
        }
        match acquire(engine, settings).await? {
            Some(renewed) if renewed.token == lease.token => lease = renewed,
            Some(_) | None => return Ok(None),
        }
    }
    Ok(Some(lease))
}

async fn acquire<S: StateStore + LeaseStore, M: Messenger>(
    engine: &Engine<S, M>,
    settings: Settings,
) -> Result<Option<Lease>, Error> {
    engine.store.acquire(LEASE, engine.instance(), engine.now(), settings.lease_life, engine.skew()).await
}
