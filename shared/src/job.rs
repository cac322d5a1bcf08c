//! One action on many orders as a job. The system carries it out at a bounded rate, even if the client or the working
//! process dies.
//!
//! Pure, like every decision: each function returns the next record, which the store writes under the version of the
//! one before. First the job *gathers*: it lists the matching orders, page by page, so later ones do not count. Then it
//! *runs*, a chunk at a time. Before its first action a chunk is recorded, with the versions at which its orders were
//! read, and each action names its version. So repeating a chunk after a crash changes nothing twice: an order that was
//! acted on has another version, and its history names the job.

use crate::decision::{Act, What};
use crate::filter::Filter;
use crate::history::shorten;
use crate::order::Id;
use crate::task::{KEPT_WHEN_FULL, Task};
use crate::time::{SignedDuration, Timestamp, plus};
use crate::workflow::Hash;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Most orders of a job that selects by a filter.
pub const MAX_ORDERS: u32 = 100_000;
/// Most orders of a job that names them.
pub const MAX_IDS: usize = 5_000;
/// Most acts a second.
pub const MAX_RATE: u32 = 100;
/// Most orders of a page of a job, and of a chunk.
pub const PAGE: usize = 100;
/// Most jobs under way. Those that are paused do not count.
pub const MAX_OPEN: usize = 20;
/// After this time an open job ends by itself.
pub const MAX_AGE: SignedDuration = SignedDuration::from_hours(30 * 24);
/// How long a job and its results are kept after its start.
pub const KEPT: SignedDuration = SignedDuration::from_hours(120 * 24);
/// Longest text of a result, in bytes.
pub const MAX_WHY: usize = 200;
/// Most notes of people's actions on a job.
const MAX_NOTES: usize = 20;

/// Identity of a job: `job_` and 26 characters of Crockford's base 32, derived from its idempotency key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("pattern" = "^job_[0-9a-hjkmnp-tv-z]{26}$"))]
pub struct JobId(pub String);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl JobId {
    /// The id of the job started under this key.
    #[must_use]
    pub fn derive(key: &str) -> Self {
        let Id(order) = Id::derive("jobs", key);
        Self(order.replacen("ord_", "job_", 1))
    }

    /// `text` as an id, if it has the form of one.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        Id::parse(&format!("ord_{}", text.strip_prefix("job_")?)).map(|_| Self(text.to_owned()))
    }
}

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It is listing its orders.
    Gathering,
    /// It is acting on its orders.
    Running,
    /// A person has paused it.
    Paused,
    /// It is being aborted, and is finding out what was done.
    Aborting,
    /// All its orders have a result.
    Done,
    /// It ended before that.
    Aborted,
}

impl State {
    /// Nothing more happens.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Done | Self::Aborted)
    }
}

/// An order of a chunk that is to be acted on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Intent(
    /// Its place on the page.
    pub u16,
    /// The version at which it was read.
    pub u64,
);

/// The orders to act on next, or on which a process that died may have acted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// Number of orders from the job's place on the page on. Those without an intent have a result.
    pub len: u16,
    /// Those to act on.
    pub intents: Vec<Intent>,
    /// When their versions were read (UTC, milliseconds).
    pub at: Timestamp,
}

/// How many orders have which kind of result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Counts {
    /// The action was accepted, or would be.
    pub good: u32,
    /// The action failed. Only these count for `abort_after_failures`.
    pub failed: u32,
    /// Left alone: they no longer match, are gone, or cannot be read.
    pub left_alone: u32,
}

impl Counts {
    /// Orders with a result.
    #[must_use]
    pub fn all(self) -> u32 {
        self.good + self.failed + self.left_alone
    }
}

/// What a person did with a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JobNote")]
pub struct Note {
    /// When (UTC, milliseconds).
    pub at: Timestamp,
    /// What.
    pub what: Control,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// What a person can do with a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Control {
    /// Begin no more actions until it is resumed.
    Pause,
    /// Go on.
    Resume,
    /// End it.
    Abort,
}

/// The record of a job. Its columns are `version` and those of the indexes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Its id.
    #[serde(skip)]
    pub id: JobId,
    /// Number of changes so far.
    #[serde(skip)]
    pub version: u64,
    /// Hash of the request: the same key with another request is refused.
    pub asked: Hash,
    /// What is done to each order.
    pub what: What,
    /// The action's name, as in the routes.
    pub action: String,
    /// Which orders: checked when they are listed and again before each action.
    pub filter: Filter,
    /// The orders were named; the filter may drop some.
    #[serde(default)]
    pub is_named: bool,
    /// Who.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Actions per second.
    pub rate: u32,
    /// It aborts after so many failures.
    pub abort_after: u32,
    /// Most orders.
    pub limit: u32,
    /// Nothing is changed; each result says what would be done.
    #[serde(default)]
    pub dry_run: bool,
    /// When it was started (UTC, milliseconds).
    pub created_at: Timestamp,
    /// All orders are listed.
    #[serde(default)]
    pub gathered: bool,
    /// The list's next place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    /// Pages of orders.
    #[serde(default)]
    pub pages: u32,
    /// Orders on them.
    #[serde(default)]
    pub found: u32,
    /// More orders match than `limit`.
    #[serde(default)]
    pub more: bool,
    /// The page whose orders come next.
    #[serde(default)]
    pub page: u32,
    /// The first order of that page without a result.
    #[serde(default)]
    pub offset: u16,
    /// The orders in progress.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunk: Option<Chunk>,
    /// Results so far.
    #[serde(default)]
    pub counts: Counts,
    /// Since when it is paused (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused_at: Option<Timestamp>,
    /// Why it ends early.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub abort: Option<String>,
    /// When it ended (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// Who paused, resumed and aborted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// The result for one order, or the place for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "JobResult")]
pub struct Item {
    /// The order.
    pub order_id: Id,
    /// What became of it; absent until the job reaches the order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The order's version after the action.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// Why it was not done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// What became of one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(rename = "JobOutcome")]
pub enum Outcome {
    /// The action is recorded.
    Applied,
    /// It was already so.
    Repeated,
    /// A dry run: it would be recorded.
    WouldApply,
    /// The order's state forbids it.
    NotAllowed,
    /// The order changes too fast, or changed while the process died; it was not acted on again.
    Moved,
    /// The store or a queue failed; the action may have been recorded.
    Unavailable,
    /// The order no longer matches the filter.
    LeftAlone,
    /// There is no such order.
    NotFound,
    /// Its record cannot be read.
    Unreadable,
}

impl Outcome {
    /// Whether the order is as the person wants it.
    #[must_use]
    pub fn is_good(self) -> bool {
        matches!(self, Self::Applied | Self::Repeated | Self::WouldApply)
    }
}

impl Item {
    /// An order to come.
    #[must_use]
    pub fn new(order_id: Id) -> Self {
        Self { order_id, outcome: None, version: None, why: None }
    }

    /// Its result.
    #[must_use]
    pub fn with(&self, outcome: Outcome, version: Option<u64>, why: Option<String>) -> Self {
        let why = why.map(|why| shorten(&why, MAX_WHY));
        Self { order_id: self.order_id.clone(), outcome: Some(outcome), version, why }
    }
}

/// A page of a job's orders.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Page(pub Vec<Item>);

/// Why a job cannot be paused, resumed or aborted. `Display` is a sentence for the operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// It has ended.
    #[error("the job has ended")]
    Ended,
    /// It is being aborted.
    #[error("the job is being aborted")]
    Aborting,
    /// It is not paused.
    #[error("the job is not paused")]
    NotPaused,
}

impl Job {
    /// Its state.
    #[must_use]
    pub fn state(&self) -> State {
        match () {
            () if self.ended_at.is_some() && self.abort.is_some() => State::Aborted,
            () if self.ended_at.is_some() => State::Done,
            () if self.abort.is_some() => State::Aborting,
            () if self.paused_at.is_some() => State::Paused,
            () if !self.gathered => State::Gathering,
            () => State::Running,
        }
    }

    /// Whether a supervisor has something to do.
    #[must_use]
    pub fn is_due(&self) -> bool {
        !self.state().is_final() && self.state() != State::Paused
    }

    fn next(&self) -> Self {
        Self { version: self.version + 1, ..self.clone() }
    }

    /// The action on an order that was read at version `seen`. The history of the order names the job.
    #[must_use]
    pub fn act(&self, seen: u64) -> Act {
        Act { what: self.what.clone(), by: self.actor(), reason: self.reason.clone(), seen: Some(seen) }
    }

    fn actor(&self) -> String {
        format!("{}, {}", self.by, self.id)
    }

    /// Whether the history of `task` has an action of this job.
    #[must_use]
    pub fn has_acted_on(&self, task: &Task) -> bool {
        let start = format!("{}:", self.actor());
        task.log.iter().any(|entry| entry.1.is_act() && entry.4.as_ref().is_some_and(|text| text.starts_with(&start)))
    }

    /// Whether the history of `task` still has everything since `at`, so that an action missing from it was not done.
    #[must_use]
    pub fn knows_all_since(task: &Task, at: Timestamp) -> bool {
        // The first entry that can have been dropped.
        task.log.get(KEPT_WHEN_FULL).is_none_or(|entry| entry.at(task.created_at) < at)
    }

    /// Records that it listed these orders; the list goes on at `next`. Returns the page to store, if any.
    #[must_use]
    pub fn gather(&self, ids: Vec<Id>, next: Option<String>) -> (Self, Option<Page>) {
        let room = usize::try_from(self.limit - self.found).unwrap_or(usize::MAX);
        let more = ids.len() > room || ids.len() == room && next.is_some();
        let items: Vec<Item> = ids.into_iter().take(room).map(Item::new).collect();
        let found = self.found + u32::try_from(items.len()).unwrap_or(u32::MAX);
        let pages = self.pages + u32::from(!items.is_empty());
        let gathered = next.is_none() || more;
        let job = Self { found, pages, gathered, more, cursor: next.filter(|_| !gathered), ..self.next() };
        (job, Some(Page(items)).filter(|page| !page.0.is_empty()))
    }

    /// Records that it will act on these orders of its page.
    #[must_use]
    pub fn begin(&self, chunk: Chunk) -> Self {
        Self { chunk: Some(chunk), ..self.next() }
    }

    /// Records the results that `page` has, from its `offset` on.
    #[must_use]
    pub fn settle(&self, page: &Page, now: Timestamp) -> Self {
        let mut job = Self { chunk: None, ..self.next() };
        let len = self.chunk.as_ref().map_or(0, |chunk| chunk.len);
        let mut is_cut_short = false;
        for item in page.0.iter().skip(usize::from(self.offset)).take(usize::from(len)) {
            match item.outcome {
                Some(Outcome::Applied | Outcome::Repeated | Outcome::WouldApply) => job.counts.good += 1,
                Some(Outcome::NotAllowed | Outcome::Moved | Outcome::Unavailable) => job.counts.failed += 1,
                Some(Outcome::LeftAlone | Outcome::NotFound | Outcome::Unreadable) => job.counts.left_alone += 1,
                None => is_cut_short = true,
            }
        }
        // Only a job that ends leaves an order of a chunk without a result, and needs no place.
        if !is_cut_short {
            job.offset += len;
        }
        if usize::from(job.offset) >= page.0.len() {
            (job.page, job.offset) = (job.page + 1, 0);
        }
        if job.counts.failed >= job.abort_after && !job.dry_run && job.abort.is_none() {
            job.abort = Some(format!("{} actions failed", job.counts.failed));
        }
        job.ended(now)
    }

    /// Ends it if nothing is left to do.
    #[must_use]
    fn ended(mut self, now: Timestamp) -> Self {
        let is_over = self.gathered && self.page >= self.pages;
        if self.chunk.is_none() && (self.abort.is_some() || is_over) {
            self.ended_at = Some(now);
            if is_over {
                // All its orders have a result, so nothing was cut short.
                self.abort = None;
            }
        }
        self
    }

    /// With nothing in progress, ends it if it is being aborted, has no orders, or is too old.
    #[must_use]
    pub fn end(&self, now: Timestamp) -> Option<Self> {
        let mut job = self.next();
        if job.abort.is_none() && plus(job.created_at, MAX_AGE) <= now {
            job.abort = Some("it is older than 30 days".into());
        }
        Some(job.ended(now)).filter(|job| job.ended_at.is_some() || job.abort != self.abort)
    }

    /// Ends it early: what is in progress is given up, and its end says why.
    #[must_use]
    pub fn give_up(&self, why: &str, now: Timestamp) -> Self {
        let abort = self.abort.clone().unwrap_or_else(|| shorten(why, MAX_WHY));
        Self { chunk: None, abort: Some(abort), ended_at: Some(now), ..self.next() }
    }

    /// Pauses, resumes or aborts it. `None` if that is its state already.
    ///
    /// # Errors
    /// Its state forbids it.
    pub fn control(&self, what: Control, by: &str, reason: &str, now: Timestamp) -> Result<Option<Self>, Obstacle> {
        let state = self.state();
        let mut job = self.next();
        match (what, state) {
            (Control::Abort, State::Aborting) | (Control::Pause, State::Paused) => return Ok(None),
            (_, State::Done | State::Aborted) => return Err(Obstacle::Ended),
            (_, State::Aborting) => return Err(Obstacle::Aborting),
            (Control::Pause, State::Gathering | State::Running) => job.paused_at = Some(now),
            (Control::Resume, State::Paused) => job.paused_at = None,
            (Control::Resume, State::Gathering | State::Running) => return Err(Obstacle::NotPaused),
            (Control::Abort, State::Gathering | State::Running | State::Paused) => {
                job.paused_at = None;
                job.abort = Some(shorten(&format!("{by}: {reason}"), MAX_WHY));
            }
        }
        if job.notes.len() == MAX_NOTES {
            job.notes.remove(0);
        }
        job.notes.push(Note { at: now, what, by: by.to_owned(), reason: reason.to_owned() });
        Ok(Some(job))
    }
}
