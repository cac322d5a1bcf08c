//! The supervisor: sweeps the due index under leases, and requests recovery of overdue orders.
//!
//! All decisions are in [`shared::supervisor`] and [`shared::strain`]. It may only send to the scheduler's queue and
//! put events. It has no permission on agents' queues and knows no remote service.
//!
//! The due index is divided into groups of shards, each led under its own lease, so that several supervisors can work
//! concurrently. **No lease, no sweep**: while the lease store is unavailable nothing is recovered here, and an alarm
//! says so. The leases are in the state table, so a supervisor without them could write nothing anyway. Two leaders at
//! once do no harm: every write is conditional and carries the lease's fencing token, and tasks refuse older tokens.

pub mod ages;
pub mod dead_letters;
pub mod jobs;
mod strain;

use leader::{Hold, Lease, LeaseStore};
use serde::Serialize;
use shared::engine::Engine;
use shared::ports::Error;
use shared::task::{MOVED, Priority, URGENT};
use shared::time::{Timestamp, plus};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;
use stepwarden_aws::telemetry::Chain;
use stepwarden_aws::traces::Span;
use tokio::time::{Instant, sleep_until};

/// Tasks handled concurrently, and the size of a page of the due index.
const PAGE: u32 = 100;
/// Maximum number of pages of each part in a sweep. The next sweep continues from there, so every sweep ends, and none
/// is always busy with the same first rows.
const MAX_PAGES: usize = 100;
/// A sweep of a group begins no page after this, because a slowly refusing queue must not hold up newly due tasks.
const MAX_SWEEP: Duration = Duration::from_secs(30);

/// Where the next sweep continues, in each part of the due index that the last one did not finish.
pub type Places = HashMap<u16, String>;

/// How a supervisor sweeps.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Shards of the due index.
    pub shards: u16,
    /// Groups of shards, each under its own lease: shard `n` belongs to group `n % groups`. All supervisors should have
    /// the same number. If not, two may sweep one shard, which does no harm.
    pub groups: u16,
    /// Maximum number of groups that one supervisor leads at once; other supervisors lead the rest.
    pub lead_at_most: u16,
    /// Life of a lease; it is renewed after half of it.
    pub lease_life: Duration,
    /// Fewest held-up tasks of a sweep that make an agent strained, if they exceed a fifth of it; 0 disables this.
    pub strain_least: u32,
}

impl Settings {
    /// One group, led as a whole.
    #[must_use]
    pub fn new(shards: u16, lease_life: Duration) -> Self {
        Self { shards, groups: 1, lead_at_most: u16::MAX, lease_life, strain_least: shared::strain::LEAST }
    }

    /// The parts of a group: first the moved tasks of all its shards, then tasks that may still wait in the queue of
    /// their class's Wakes. `turn` chooses the first part. Otherwise, if rows with slowly refusing queues cut sweeps
    /// short, the last part would never be reached.
    fn parts_of(self, group: u16, turn: usize) -> Vec<(u16, Option<Priority>)> {
        let own = (group..self.shards).step_by(usize::from(self.groups.max(1)));
        let classes = [(MOVED, None), (URGENT, Some(Priority::High)), (0, Some(Priority::Normal))];
        let of_class = |(bits, class)| own.clone().map(move |shard| (shard | bits, class));
        let mut parts: Vec<_> = classes.into_iter().flat_map(of_class).collect();
        let turn = turn % parts.len().max(1);
        parts.rotate_left(turn);
        parts
    }
}

/// The number of the minute, which varies what comes first.
fn minute(at: Timestamp) -> usize {
    usize::try_from(at.as_second() / 60).unwrap_or_default()
}

/// A part of the due index, and how far a sweep has read it.
struct Part {
    shard: u16,
    /// Class of the first Wakes that its tasks may still wait for.
    class: Option<Priority>,
    until: Timestamp,
    cursor: Option<String>,
    pages: usize,
}

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Sweep {
    /// No group's lease was available: other supervisors hold them, and nothing was done.
    pub stood_by: bool,
    /// Groups swept.
    pub groups: usize,
    /// Tasks found in the due index.
    pub looked_at: usize,
    /// Attempts that had expired.
    pub expired: usize,
    /// Tasks that could not be read or written; they stay due.
    pub failed: usize,
}

impl Sweep {
    fn add(&mut self, other: Self) {
        self.groups += other.groups;
        self.looked_at += other.looked_at;
        self.expired += other.expired;
        self.failed += other.failed;
    }
}

pub use stepwarden_aws::config::lease_name;

/// A supervisor that keeps its leases between sweeps, so that a sweep that finds nothing costs three queries per shard.
pub struct Supervisor<'a, L> {
    engine: &'a Engine,
    leases: &'a L,
    settings: Settings,
    holds: Vec<Hold>,
    /// How many tasks of the present sweep each agent holds up.
    held: BTreeMap<String, u32>,
    /// Alerts to operators about agents.
    alerts: strain::Alerts,
    /// The group that sweeps begin with; differs, so that supervisors do not contend for the same one.
    first: usize,
    /// Begins no page of the due index after this; the rest is left to the next sweep. For a function that is killed at
    /// its deadline. It would keep its leases for the rest of their life, and no other could sweep.
    pub stop_at: Option<Instant>,
    /// Where the next sweep continues, by this supervisor or by the next one of this process.
    pub places: Places,
}

impl<'a, L: LeaseStore> Supervisor<'a, L> {
    /// A supervisor that leads nothing yet.
    #[must_use]
    pub fn new(engine: &'a Engine, leases: &'a L, settings: Settings) -> Self {
        let groups = settings.groups.clamp(1, settings.shards.max(1));
        let settings = Settings { groups, ..settings };
        let skew = Duration::try_from(engine.skew()).unwrap_or_default();
        let hold = |group| {
            let leads = leader::Settings::new(lease_name(group), engine.instance(), settings.lease_life);
            Hold::new(leader::Settings { skew, clock: engine.clock(), ..leads })
        };
        let holds = (0..groups).map(hold).collect();
        let first = engine.instance().bytes().fold(0usize, |h, b| h.wrapping_mul(31).wrapping_add(usize::from(b)));
        // By the minute, too, so that a lone supervisor that leads only some groups still reaches each.
        let first = first.wrapping_add(minute(engine.now())) % usize::from(groups);
        let (held, alerts) = (BTreeMap::new(), strain::Alerts::default());
        Self { engine, leases, settings, holds, held, alerts, first, stop_at: None, places: Places::new() }
    }

    /// One sweep over all groups this supervisor leads or comes to lead.
    ///
    /// # Errors
    /// The lease store or the due index failed: nothing leads that group for now. The other groups are still swept, and
    /// the next sweep tries again.
    pub async fn sweep(&mut self) -> Result<Sweep, Error> {
        let groups = self.holds.len();
        let (mut total, mut problem) = (Sweep::default(), None);
        self.held.clear();
        // Groups already led come first, because only the rest of `lead_at_most` may be contended for.
        let mut order: Vec<usize> = (0..groups).map(|n| (self.first + n) % groups).collect();
        order.sort_by_key(|&group| !self.holds[group].is_live());
        for group in order {
            if total.groups >= usize::from(self.settings.lead_at_most) || total.groups > 0 && self.is_time_up() {
                break;
            }
            match self.sweep_group(group).await {
                Ok(swept) => total.add(swept),
                Err(error) => problem = Some(error),
            }
        }
        let Sweep { looked_at, expired, failed, .. } = total;
        tracing::debug!(looked_at, expired, failed, "swept the due index");
        total.stood_by = total.groups == 0;
        // If a group failed, a partial sweep would count as a whole one.
        if !total.stood_by && problem.is_none() && self.settings.strain_least > 0 {
            let looked_at = u32::try_from(total.looked_at).unwrap_or(u32::MAX);
            self.alerts.follow(self.engine, &self.held, looked_at, self.settings.strain_least).await;
        }
        problem.map_or(Ok(total), Err)
    }

    async fn sweep_group(&mut self, group: usize) -> Result<Sweep, Error> {
        let mut sweep = Sweep::default();
        let Some(mut lease) = self.holds[group].lead(self.leases).await? else { return Ok(sweep) };
        sweep.groups = 1;
        // Tasks that become due during the sweep are left to the next, or a task due again at once would never end it.
        let (until, began) = (self.engine.now(), Instant::now());
        let group_number = u16::try_from(group).expect("as many groups as shards at most");
        // Divided, or a supervisor that leads a single group would reach each always at the same minutes.
        let turn = minute(until) / self.holds.len().max(1);
        let parts = self.settings.parts_of(group_number, turn);
        let places = &mut self.places;
        let part = |(shard, class)| Part { shard, class, until, cursor: places.remove(&shard), pages: 0 };
        let mut parts: VecDeque<Part> = parts.into_iter().map(part).collect();
        // One page of each in turn, so that no shard waits behind another's backlog if the sweep is cut short.
        while let Some(mut part) = parts.pop_front() {
            if self.sweep_page(&mut part, &lease, &mut sweep).await? {
                parts.push_back(part);
            } else {
                self.places.extend(part.cursor.map(|cursor| (part.shard, cursor)));
            }
            match self.holds[group].lead(self.leases).await? {
                Some(still) if still.token == lease.token => lease = still,
                Some(_) | None => break,
            }
            let is_long = self.stop_at.is_none() && began.elapsed() >= MAX_SWEEP;
            if is_long || self.is_time_up() {
                break;
            }
        }
        self.places.extend(parts.into_iter().filter_map(|part| part.cursor.map(|cursor| (part.shard, cursor))));
        Ok(sweep)
    }

    /// Handles the next page of a part; returns whether the part has another one for this sweep.
    async fn sweep_page(&mut self, part: &mut Part, lease: &Lease, sweep: &mut Sweep) -> Result<bool, Error> {
        let store = &self.engine.store;
        let mut page = store.due(part.shard, part.until, PAGE, part.cursor.as_deref()).await?;
        if part.pages == 0
            && !page.ids.is_empty()
            && let Some(class) = part.class
        {
            // Only now: while nothing is due the queues' length does not matter.
            let lag = self.engine.sweep_lag(class).await;
            if !lag.is_zero() {
                part.until = plus(part.until, -lag);
                page = store.due(part.shard, part.until, PAGE, part.cursor.as_deref()).await?;
            }
        }
        sweep.looked_at += page.ids.len();
        // Most sweeps find nothing, and a span for each would hide all others.
        let span = if page.ids.is_empty() { Span::none() } else { Span::own("sweep") };
        span.set("shard", i64::from(part.shard));
        span.set("looked_at", page.ids.len() as i64);
        let failed_before = sweep.failed;
        for answer in span.around(self.engine.recover(&page.ids, lease.token)).await {
            match answer {
                Ok(found) => {
                    sweep.expired += found.expired;
                    for agent in found.held_by {
                        *self.held.entry(agent).or_default() += 1;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "a due task is left for the next sweep");
                    sweep.failed += 1;
                }
            }
        }
        if sweep.failed > failed_before {
            span.fail("unavailable");
        }
        part.cursor = page.next;
        part.pages += 1;
        Ok(part.cursor.is_some() && part.pages < MAX_PAGES)
    }

    fn is_time_up(&self) -> bool {
        self.stop_at.is_some_and(|stop_at| stop_at <= Instant::now())
    }

    /// Gives all leases back. If that fails, they expire.
    pub async fn release(&mut self) {
        for hold in &mut self.holds {
            if let Err(error) = hold.release(self.leases).await {
                tracing::warn!(error = %Chain(error.as_ref()), "a lease could not be released");
            }
        }
    }

    /// Sweeps every `every` until `until`, at least once, then gives the leases back: many sweeps in one invocation of
    /// a function that is started at most once a minute, and frozen between invocations.
    ///
    /// # Errors
    /// The last sweep failed. An earlier failure is logged, and the next sweep tries again.
    pub async fn patrol(&mut self, every: Duration, until: Instant) -> Result<Sweep, Error> {
        let mut total = Sweep::default();
        let mut next = Instant::now();
        let last = loop {
            let swept = self.sweep().await;
            next = (next + every).max(Instant::now());
            let is_last = every.is_zero() || next >= until;
            match swept {
                Ok(swept) => total.add(swept),
                Err(error) if is_last => break Err(error),
                // One alarm line for the operator; what is due stays due.
                Err(error) => {
                    tracing::error!(error = %Chain(&error), alarm = "no_sweep", "a sweep failed");
                }
            }
            if is_last {
                break Ok(());
            }
            sleep_until(next).await;
        };
        self.release().await;
        total.stood_by = total.groups == 0;
        last.map(|()| total)
    }
}

/// One invocation: sweeps everything that can be led, then gives the leases back.
///
/// # Errors
/// The lease store or the due index failed. Nothing leads for now, and the next sweep tries again.
pub async fn handler(engine: &Engine, leases: &impl LeaseStore, settings: Settings) -> Result<Sweep, Error> {
    Supervisor::new(engine, leases, settings).patrol(Duration::ZERO, Instant::now()).await
}
