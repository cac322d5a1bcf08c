//! Works on [jobs](shared::job): lists their orders, acts on them at their rate, and records the results.
//!
//! It has a separate lease, so that sweeps and jobs do not hold each other up. The lease only saves work. A job's
//! record is written under its version, and each action names its order's version, so two workers do nothing twice.

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{StreamExt, stream};
use leader::Hold;
use shared::job::{Chunk, Intent, Item, Job, JobId, MAX_OPEN, Outcome, PAGE, Page, State};
use shared::operator;
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::Task;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use stepwarden_aws::Engine;
use stepwarden_aws::list::MAX_PAGE;
use stepwarden_aws::telemetry::Chain;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

pub use stepwarden_aws::config::JOB_LEASE as LEASE;
/// How often a worker looks for jobs that were started or resumed.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// A worker begins no chunk that would take longer than this beyond its time.
const CHUNK: Duration = Duration::from_secs(1);
/// Actions of a job in progress at once.
const AT_ONCE: usize = 16;
/// How much lost time a job makes up for. A slow store must not cause a burst at a service.
const CATCH_UP: Duration = Duration::from_millis(250);
/// Tries of an action on an order that changes meanwhile, or whose store or queue fails.
const TRIES: usize = 5;
/// Most pages of the index that are read for one page of a job.
const READS: usize = 10;
/// How often to read a job again that a person changes meanwhile.
const ROUNDS: usize = 10;

/// Works on jobs while it holds the lease.
pub struct Worker<'a> {
    engine: &'a Engine,
    hold: Mutex<Hold>,
}

/// When the next act of a job may begin.
struct Pace {
    every: Duration,
    next: Instant,
}

impl Pace {
    fn new(job: &Job) -> Self {
        let every = if job.dry_run { Duration::ZERO } else { Duration::from_secs(1) / job.rate.max(1) };
        Self { every, next: Instant::now() }
    }

    fn take(&mut self) -> Instant {
        let earliest = Instant::now().checked_sub(CATCH_UP).unwrap_or(self.next);
        let at = self.next.max(earliest);
        self.next = at + self.every;
        at
    }
}

impl<'a> Worker<'a> {
    /// A worker that does nothing yet.
    #[must_use]
    pub fn new(engine: &'a Engine, lease_life: Duration) -> Self {
        let skew = Duration::try_from(engine.skew()).unwrap_or_default();
        let leads = leader::Settings::new(LEASE, engine.instance(), lease_life);
        Self { engine, hold: Mutex::new(Hold::new(leader::Settings { skew, clock: engine.clock(), ..leads })) }
    }

    /// A worker under a lease that no other one takes, for a test of what happens with two.
    #[doc(hidden)]
    #[must_use]
    pub fn without_lease(engine: &'a Engine) -> Self {
        let leads = leader::Settings::new("jobs-of-a-test", engine.instance(), Duration::from_secs(60));
        Self { engine, hold: Mutex::new(Hold::new(leader::Settings { clock: engine.clock(), ..leads })) }
    }

    /// Works on all jobs until none has anything to do, another worker holds the lease, or the time is `until`. Jobs
    /// run side by side, so that one with a low rate holds none up.
    ///
    /// # Errors
    /// The store failed before a job could be found.
    pub fn work(&self, until: Option<Instant>) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(self.work_now(until))
    }

    async fn work_now(&self, until: Option<Instant>) -> Result<(), Error> {
        let mut running: FuturesUnordered<BoxFuture<'_, Option<JobId>>> = FuturesUnordered::new();
        let mut known: HashSet<JobId> = HashSet::new();
        let mut look_at = Instant::now();
        loop {
            if !is_over(until) && Instant::now() >= look_at {
                look_at = Instant::now() + LOOK_EVERY;
                let open = match self.engine.store.open_jobs(MAX_OPEN).await {
                    Ok(open) => open,
                    Err(error) if running.is_empty() => return Err(error),
                    Err(_) => Vec::new(),
                };
                // Another worker has them.
                if running.is_empty() && !open.is_empty() && !self.leads().await? {
                    return Ok(());
                }
                for id in open {
                    if known.insert(id.clone()) {
                        running.push(Box::pin(self.tried(id, until)));
                    }
                }
                if running.is_empty() {
                    return Ok(());
                }
            }
            if running.is_empty() && is_over(until) {
                return Ok(());
            }
            tokio::select! {
                Some(ended) = running.next() => known.retain(|id| Some(id) != ended.as_ref()),
                () = sleep_until(look_at), if !is_over(until) => {}
                // The time has run out since it was checked above, and nothing runs.
                else => {}
            }
        }
    }

    /// Works on one job for as long as it can. Returns the job, unless another try is useless for now.
    async fn tried(&self, id: JobId, until: Option<Instant>) -> Option<JobId> {
        match self.run(&id, until).await {
            Ok(()) => Some(id),
            Err(error) => {
                tracing::warn!(job = %id, error = %Chain(&error), "a job could not continue");
                let is_damaged = matches!(error, Error::Corrupt { .. });
                if !is_damaged {
                    sleep(LOOK_EVERY).await;
                }
                Some(id).filter(|_| !is_damaged)
            }
        }
    }

    /// Gives the lease back. If that fails, it expires.
    pub async fn release(&self) {
        if let Err(error) = self.hold.lock().await.release(&*self.engine.store).await {
            tracing::warn!(error = %Chain(error.as_ref()), "a lease could not be released");
        }
    }

    async fn leads(&self) -> Result<bool, Error> {
        Ok(self.hold.lock().await.lead(&*self.engine.store).await?.is_some())
    }

    async fn run(&self, id: &JobId, until: Option<Instant>) -> Result<(), Error> {
        let mut pace: Option<Pace> = None;
        while !is_over(until) && self.leads().await? {
            let Some(job) = self.engine.store.job(id).await? else { return Ok(()) };
            let pace = pace.get_or_insert_with(|| Pace::new(&job));
            match job.state() {
                State::Paused | State::Done | State::Aborted => return Ok(()),
                State::Aborting | State::Gathering | State::Running => {}
            }
            self.step(job, pace, until).await?;
        }
        Ok(())
    }

    /// The next page of its list, or its next chunk. A lost race is no error: the next step begins with what was
    /// written.
    async fn step(&self, job: Job, pace: &mut Pace, until: Option<Instant>) -> Result<(), Error> {
        let (store, now) = (&self.engine.store, self.engine.now());
        if job.chunk.is_none()
            && let Some(ended) = job.end(now)
        {
            store.save_job(&ended, job.version, None).await?;
            return Ok(());
        }
        if job.chunk.is_none() && !job.gathered {
            let mut cursor = job.cursor.clone();
            let mut ids: Vec<Id> = Vec::new();
            // Each page costs a save, and each chunk two, so if few orders match, several reads fill a page.
            for _ in 0..READS {
                let page = store.list(&job.filter, now, MAX_PAGE, cursor.as_deref()).await?;
                ids.extend(page.unreadable.into_iter().map(|one| one.id));
                for task in page.tasks {
                    if self.fits(&job, &task).await? {
                        ids.push(task.id);
                    }
                }
                cursor = page.next;
                if cursor.is_none() || ids.len() >= PAGE || is_over(until) {
                    break;
                }
            }
            let (next, found) = job.gather(ids, cursor);
            store.save_job(&next, job.version, found.as_ref().map(|page| (job.pages, page))).await?;
            return Ok(());
        }
        let mut page = match store.page(&job.id, job.page).await {
            Ok(Some(page)) => page,
            unreadable @ (Ok(None) | Err(Error::Corrupt { .. })) => {
                tracing::warn!(job = %job.id, page = job.page, ?unreadable, "a page of a job cannot be read");
                let why =
                    format!("page {} of its orders cannot be read; actions on them may have been recorded", job.page);
                store.save_job(&job.give_up(&why, now), job.version, None).await?;
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let job = match job.chunk {
            Some(_) => job,
            None => match self.prepare(&job, &mut page).await? {
                Some(job) => job,
                None => return Ok(()),
            },
        };
        if !self.act(&job, &mut page, pace, until).await {
            // Time is up. The chunk stays recorded, and the next worker finds out which of its acts were done.
            return Ok(());
        }
        let mut latest = job.clone();
        for _ in 0..ROUNDS {
            let next = latest.settle(&page, self.engine.now());
            if store.save_job(&next, latest.version, Some((job.page, &page))).await? {
                return Ok(());
            }
            // A person paused or aborted it meanwhile, or another worker continued it.
            match store.job(&job.id).await? {
                Some(now) if (now.page, now.offset, &now.chunk) == (job.page, job.offset, &job.chunk) => latest = now,
                _ => return Ok(()),
            }
        }
        Ok(())
    }

    /// Records the next chunk; `None` if another writer was faster.
    async fn prepare(&self, job: &Job, page: &mut Page) -> Result<Option<Job>, Error> {
        let from = usize::from(job.offset);
        let most = if job.dry_run { PAGE } else { job.rate as usize };
        let to = page.0.len().min(from + most.clamp(1, PAGE));
        let ids: Vec<Id> = page.0[from..to].iter().map(|item| item.order_id.clone()).collect();
        let at = self.engine.now();
        let mut intents = Vec::new();
        for (n, read) in (from..).zip(self.engine.store.load_all(&ids).await) {
            match self.judge(job, &page.0[n], read).await? {
                Judged::Act(task) => intents.push(Intent(u16::try_from(n).unwrap_or(u16::MAX), task.version)),
                Judged::Known(item) => page.0[n] = item,
            }
        }
        let next = job.begin(Chunk { len: u16::try_from(to - from).unwrap_or(u16::MAX), intents, at });
        let is_saved = self.engine.store.save_job(&next, job.version, Some((job.page, page))).await?;
        Ok(is_saved.then_some(next))
    }

    /// Whether an order is to be acted on.
    async fn judge(&self, job: &Job, item: &Item, read: Result<Option<Task>, Error>) -> Result<Judged, Error> {
        let known = |outcome, version, why| Ok(Judged::Known(item.with(outcome, version, why)));
        let task = match read {
            Ok(Some(task)) => task,
            Ok(None) => return known(Outcome::NotFound, None, None),
            Err(error @ Error::Corrupt { .. }) => return known(Outcome::Unreadable, None, Some(error.to_string())),
            Err(error) => return Err(error),
        };
        // It was listed twice, because it changed meanwhile.
        if job.has_acted_on(&task) {
            return known(Outcome::Repeated, Some(task.version), None);
        }
        match self.fits(job, &task).await {
            Ok(true) => Ok(Judged::Act(Box::new(task))),
            Ok(false) => known(Outcome::LeftAlone, None, Some("the order no longer matches the filter".into())),
            Err(error @ Error::Corrupt { .. }) => known(Outcome::Unreadable, None, Some(error.to_string())),
            Err(error) => Err(error),
        }
    }

    async fn fits(&self, job: &Job, task: &Task) -> Result<bool, Error> {
        if !job.filter.fits(task) {
            return Ok(false);
        }
        match self.engine.workflow(&task.workflow_hash).await {
            Ok(workflow) => Ok(job.filter.fits_steps(task, &workflow)),
            // Its result comes with its turn.
            Err(Error::Corrupt { .. }) => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Acts on the orders of its chunk and notes the results. During an abort it begins nothing and only finds out what
    /// was done. Returns whether every order that needs a result has one, which fails if time runs out.
    async fn act(&self, job: &Job, page: &mut Page, pace: &mut Pace, until: Option<Instant>) -> bool {
        let Some(chunk) = &job.chunk else { return true };
        let most = if job.dry_run { usize::MAX } else { (job.abort_after.saturating_sub(job.counts.failed)) as usize };
        let mut failed = 0;
        let (is_enough, is_late) = (AtomicBool::new(false), AtomicBool::new(false));
        let (is_enough, is_late) = (&is_enough, &is_late);
        let mut acts: Vec<BoxFuture<'_, (u16, Option<Item>)>> = Vec::with_capacity(chunk.intents.len());
        for &Intent(n, seen) in &chunk.intents {
            let item = page.0[usize::from(n)].clone();
            let at = if job.abort.is_some() { Instant::now() } else { pace.take() };
            acts.push(Box::pin(async move {
                if !is_enough.load(Ordering::Relaxed) {
                    sleep_until(at).await;
                }
                // Finish begun acts, so that none is without a result.
                if is_enough.load(Ordering::Relaxed) {
                    return (n, None);
                }
                let result = match has_passed(until) {
                    true => None,
                    false => self.one(job, chunk, seen, &item, until).await,
                };
                // During an abort, no result means not done.
                if result.is_none() && job.abort.is_none() {
                    is_late.store(true, Ordering::Relaxed);
                }
                (n, result)
            }));
        }
        let mut results = stream::iter(acts).buffer_unordered(AT_ONCE);
        while let Some((n, item)) = results.next().await {
            let Some(item) = item else { continue };
            failed +=
                usize::from(matches!(item.outcome, Some(Outcome::NotAllowed | Outcome::Moved | Outcome::Unavailable)));
            page.0[usize::from(n)] = item;
            is_enough.store(failed >= most, Ordering::Relaxed);
        }
        !is_late.load(Ordering::Relaxed)
    }

    /// `None`: the job is being aborted and it was not done, or time ran out before that is known.
    async fn one(&self, job: &Job, chunk: &Chunk, seen: u64, item: &Item, until: Option<Instant>) -> Option<Item> {
        let mut act = job.act(seen);
        for tried in 1.. {
            let is_last = tried == TRIES;
            if job.abort.is_some() || job.dry_run {
                let task = match self.engine.store.load(&item.order_id).await {
                    Ok(Some(task)) => task,
                    Ok(None) => return Some(item.with(Outcome::NotFound, None, None)),
                    Err(error) => return Some(failure(item, &error)),
                };
                if !job.dry_run {
                    let is_done = job.has_acted_on(&task);
                    return is_done.then(|| item.with(Outcome::Applied, Some(task.version), None));
                }
                let outcome = self.engine.preview(&task, &act).await;
                return Some(match outcome {
                    Ok(operator::Outcome::Applied(_)) => item.with(Outcome::WouldApply, None, None),
                    Ok(outcome) => told(item, outcome),
                    Err(error) => failure(item, &error),
                });
            }
            let answer = self.engine.act(vec![(item.order_id.clone(), act.clone())]).await.pop().expect("one answer");
            match answer {
                Ok(operator::Outcome::Moved { .. }) if !is_last => {
                    let read = self.engine.store.load(&item.order_id).await;
                    let is_known = read.as_ref().is_ok_and(|task| {
                        task.as_ref().is_some_and(|task| job.has_acted_on(task) || Job::knows_all_since(task, chunk.at))
                    });
                    match self.judge(job, item, read).await {
                        Ok(Judged::Act(task)) if is_known => act.seen = Some(task.version),
                        // Its history may no longer show this action.
                        Ok(Judged::Act(_)) => return Some(told(item, operator::Outcome::Moved { version: seen })),
                        Ok(Judged::Known(item)) => return Some(item),
                        Err(error) => return Some(failure(&item.clone(), &error)),
                    }
                }
                Ok(outcome) => return Some(told(item, outcome)),
                Err(Error::Unavailable { .. }) if has_passed(until) => return None,
                Err(Error::Unavailable { .. }) if !is_last => {
                    sleep(Duration::from_millis(100 << tried.min(4))).await;
                }
                Err(error) => return Some(failure(item, &error)),
            }
        }
        unreachable!("the loop returns at its last try")
    }
}

enum Judged {
    Act(Box<Task>),
    Known(Item),
}

fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() + CHUNK >= until)
}

fn has_passed(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

fn told(item: &Item, outcome: operator::Outcome) -> Item {
    match outcome {
        operator::Outcome::Applied(version) => item.with(Outcome::Applied, Some(version), None),
        operator::Outcome::Repeated(version) => item.with(Outcome::Repeated, Some(version), None),
        operator::Outcome::NotAllowed { why } => item.with(Outcome::NotAllowed, None, Some(why.to_string())),
        operator::Outcome::Moved { version } => {
            let why = "the order changed while the action was tried; look at it before you repeat the action";
            item.with(Outcome::Moved, Some(version), Some(why.into()))
        }
        operator::Outcome::NotFound => item.with(Outcome::NotFound, None, None),
    }
}

fn failure(item: &Item, error: &Error) -> Item {
    match error {
        Error::Corrupt { .. } => item.with(Outcome::Unreadable, None, Some(error.to_string())),
        Error::TooLarge { .. } => item.with(Outcome::NotAllowed, None, Some(error.to_string())),
        Error::Unavailable { .. } => {
            let why = format!("{error}; the action may have been recorded");
            item.with(Outcome::Unavailable, None, Some(why))
        }
    }
}
