//! The worker: polls due tasks, claims them by conditional write, runs handlers with a deadline, records results.

use crate::policy::TO_SETTLE;
use crate::queue::{OnHistory, RetryQueue, handler_of};
use crate::strategy::{Handlers, Strategies, Thrown, ThrownThen};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;
use shared::decision::Event;
use shared::engine::Handled;
use shared::message::{AlertEvent, Effect, Outcome, Reply, Request};
use shared::order::Id;
use shared::ports::Error;
use shared::task::moved;
use shared::time::{SignedDuration, Timestamp, until};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

/// An error of a handler.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Handler = Arc<dyn Fn(Job) -> BoxFuture<'static, Result<Answer, BoxError>> + Send + Sync>;

/// Maximum number of pages of the due index per poll, even if their tasks belong to other handlers.
const MAX_PAGES: usize = 20;
/// How long running handlers may still take when the worker is told to stop.
const LAST_JOBS: Duration = Duration::from_secs(5);

/// A handler's answer. An error, a panic and silence until the deadline are exceptions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done.
    Success,
    /// Not done, for this reason; retried as the policy says.
    Failure(String),
}

/// One attempt at one unit of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The unit of work.
    pub id: Id,
    /// What was stored with it.
    pub params: Value,
    /// Number of this attempt, from 1.
    pub attempt: u32,
    /// The same for all attempts, so that the remote service can recognise a repetition.
    pub idempotency_key: String,
    /// The handler is dropped at this time (UTC, milliseconds).
    pub deadline: Timestamp,
}

/// What one poll did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Polled {
    /// Tasks claimed.
    pub claimed: usize,
    /// Attempts of dead workers that had expired.
    pub expired: usize,
    /// Tasks that could not be read or written; they stay due.
    pub failed: usize,
}

/// Runs due tasks.
pub struct RetryWorker {
    queue: RetryQueue,
    handlers: BTreeMap<String, Handler>,
    strategies: Strategies,
    on_history: OnHistory,
}

impl RetryWorker {
    /// A worker without handlers.
    #[must_use]
    pub fn new(queue: &RetryQueue, strategies: Strategies) -> Self {
        let on_history: OnHistory = Arc::new(|_| {});
        Self { queue: queue.clone(), handlers: BTreeMap::new(), strategies, on_history }
    }

    /// Adds `handler` for the tasks of this name.
    #[must_use]
    pub fn on<F, W>(mut self, name: &str, handler: F) -> Self
    where
        F: Fn(Job) -> W + Send + Sync + 'static,
        W: Future<Output = Result<Answer, BoxError>> + Send + 'static,
    {
        self.handlers.insert(name.to_owned(), Arc::new(move |job| handler(job).boxed()));
        self
    }

    /// Calls `told` at least once with every task that goes to history, besides the log's error line. The task is
    /// marked as reported only after `told` returns. If it panics, or the process ends first, it is called again. It
    /// runs on the worker's runtime, so it must not block for long.
    #[must_use]
    pub fn on_history(mut self, told: impl Fn(&AlertEvent) + Send + Sync + 'static) -> Self {
        self.on_history = Arc::new(told);
        self
    }

    /// Polls and runs until cancelled; running handlers then get a few seconds.
    pub async fn run(&self, cancel: &CancellationToken) {
        let (sender, mut effects) = unbounded_channel();
        let seat = self.queue.local.sit(sender, Arc::clone(&self.on_history));
        let mut jobs = JoinSet::new();
        let mut timers = JoinSet::new();
        let mut tick = interval(self.strategies.poll_every);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = cancel.cancelled() => break,
                Some(effect) = effects.recv() => self.act(effect, &mut jobs, &mut timers),
                Some(_) = jobs.join_next() => {}
                Some(woken) = timers.join_next() => if let Ok(id) = woken {
                    self.claim(vec![id]).await;
                },
                _ = tick.tick() => {
                    let free = self.strategies.at_once.saturating_sub(jobs.len());
                    if let Err(error) = self.poll(free).await {
                        tracing::warn!(error = &error as &dyn std::error::Error, "a poll failed; the next one retries");
                    }
                }
            }
        }
        seat.close();
        self.last_jobs(&mut effects, jobs).await;
    }

    async fn last_jobs(&self, effects: &mut UnboundedReceiver<Effect>, mut jobs: JoinSet<()>) {
        let mut no_timers = JoinSet::new();
        while let Some(effect) = effects.recv().await {
            self.act(effect, &mut jobs, &mut no_timers);
        }
        let ended = async { while jobs.join_next().await.is_some() {} };
        if timeout(LAST_JOBS, ended).await.is_err() {
            tracing::warn!("stopped with handlers in progress; their tasks are retried after their timeout");
        }
    }

    /// Takes up to `free` due tasks, and at most the strategy's `per_poll`.
    async fn poll(&self, free: usize) -> Result<Polled, Error> {
        let wanted = free.min(self.strategies.per_poll);
        let owned = self.strategies.shards.owned(self.queue.settings.shards);
        let from = if owned.is_empty() { 0 } else { fastrand::usize(..owned.len()) };
        let mut found = Vec::new();
        for n in 0..owned.len() {
            // Each poll begins at a random shard, so that a long one starves none.
            let shard = owned[(from + n) % owned.len()];
            for part in [moved(shard), shard] {
                self.due_in(part, wanted, &mut found).await?;
            }
        }
        Ok(if found.is_empty() { Polled::default() } else { self.claim(found).await })
    }

    async fn due_in(&self, shard: u16, wanted: usize, found: &mut Vec<Id>) -> Result<(), Error> {
        let now = self.queue.engine.now();
        let mut cursor: Option<String> = None;
        for _ in 0..MAX_PAGES {
            if found.len() >= wanted {
                return Ok(());
            }
            let limit = u32::try_from(self.strategies.per_poll).unwrap_or(u32::MAX);
            let page = self.queue.engine.store.due(shard, now, limit, cursor.as_deref()).await?;
            let mine = page.ids.into_iter().filter(|id| self.runs(id) && !self.strategies.in_hand.has(id));
            found.extend(mine.take(wanted - found.len()));
            cursor = page.next;
            if cursor.is_none() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn runs(&self, id: &Id) -> bool {
        let Some(handler) = handler_of(id).filter(|name| self.handlers.contains_key(*name)) else { return false };
        match &self.strategies.handlers {
            Handlers::Registered => true,
            Handlers::Only(names) => names.iter().any(|name| name == handler),
        }
    }

    /// Claims what it can. Other tasks are with another worker, and are recovered if their time is over.
    async fn claim(&self, ids: Vec<Id>) -> Polled {
        let mut polled = Polled::default();
        // Names the latest version to re-send nothing, because a worker asks only for itself.
        let wake = Event::Wake { seen: u64::MAX, hops: u32::MAX };
        let answers = self.queue.engine.handle(ids.iter().map(|id| (id.clone(), wake.clone())).collect()).await;
        let mut others = Vec::new();
        for (id, answer) in ids.into_iter().zip(answers) {
            match answer {
                Ok(Handled::Applied(_)) => polled.claimed += 1,
                Ok(Handled::Kept(..)) => others.push(id),
                Ok(Handled::NoSuchTask) => {}
                Err(error) => polled.failed += note(&error),
            }
        }
        // No leader is needed: writes are conditional, so several workers count each failure once.
        for answer in self.queue.engine.recover(&others, 0).await {
            match answer {
                Ok(found) => polled.expired += found.expired,
                Err(error) => polled.failed += note(&error),
            }
        }
        polled
    }

    fn act(&self, effect: Effect, jobs: &mut JoinSet<()>, timers: &mut JoinSet<Id>) {
        match effect {
            Effect::Request(request) => {
                let Some(handler) = self.handlers.get(&request.agent).cloned() else { return };
                if !self.strategies.in_hand.take(&request.task_id) {
                    return;
                }
                jobs.spawn(run_job(self.queue.clone(), self.strategies.clone(), handler, *request));
            }
            Effect::Wake(wake, delay) => {
                // Keeps a short wait exact. If this process dies meanwhile, the due index continues the task.
                let delay = Duration::try_from(delay).unwrap_or_default();
                timers.spawn(async move {
                    sleep(delay).await;
                    wake.task_id
                });
            }
            // Alerts never arrive here: `Local` reports them at once.
            Effect::Alert(_)
            | Effect::Notice(_)
            | Effect::Reply(_)
            | Effect::SetAside(_)
            | Effect::Strained(_)
            | Effect::Child(_) => {}
        }
    }
}

fn note(error: &Error) -> usize {
    tracing::warn!(error = error as &dyn std::error::Error, "a due task is left for the next poll");
    1
}

async fn run_job(queue: RetryQueue, strategies: Strategies, handler: Handler, request: Request) {
    let id = request.task_id.clone();
    let outcome = attempt(&queue, &strategies, handler, &request).await;
    strategies.in_hand.put_back(&id);
    let reply = Reply::to(&request, outcome);
    let mut pause = Duration::from_millis(100);
    while queue.engine.now() < request.complete_by {
        let handled = Box::pin(queue.engine.handle(vec![(id.clone(), Event::Reply(reply.clone()))])).await.pop();
        match handled {
            Some(Err(error)) => {
                tracing::warn!(task.id = %id, error = &error as &dyn std::error::Error, "the outcome is not yet written");
            }
            Some(Ok(_)) | None => return,
        }
        sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
    tracing::warn!(task.id = %id, "the outcome could not be written in time; the task runs again");
}

async fn attempt(queue: &RetryQueue, strategies: &Strategies, handler: Handler, request: &Request) -> Outcome {
    let left = (until(queue.engine.now(), request.complete_by) - TO_SETTLE).max(SignedDuration::ZERO);
    let job = Job {
        id: request.task_id.clone(),
        params: request.input.clone(),
        attempt: request.attempt,
        idempotency_key: request.idempotency_key.clone(),
        deadline: shared::time::plus(queue.engine.now(), left),
    };
    // A separate task contains a panic, and a handler that never yields does not hold up others.
    let mut running = JoinSet::new();
    running.spawn(async move { handler(job).await });
    let thrown = match timeout(Duration::try_from(left).unwrap_or_default(), running.join_next()).await {
        Ok(Some(Ok(Ok(Answer::Success)))) => return Outcome::Done { output: Value::Null },
        Ok(Some(Ok(Ok(Answer::Failure(reason))))) => return failure(queue, request, reason).await,
        Ok(Some(Ok(Err(error)))) => Thrown::Error(error.to_string()),
        Ok(Some(Err(ended))) => Thrown::Panic(panic_text(ended)),
        Ok(None) | Err(_) => Thrown::Nothing,
    };
    match (strategies.thrown)(&thrown) {
        ThrownThen::History => Outcome::Failed { error: thrown.to_string() },
        ThrownThen::Retry => failure(queue, request, thrown.to_string()).await,
    }
}

/// A failure of this attempt, with the jittered wait if the policy has one.
async fn failure(queue: &RetryQueue, request: &Request, error: String) -> Outcome {
    let failures = match queue.engine.store.load(&request.task_id).await {
        Ok(Some(task)) => task.failure_count() + 1,
        Ok(None) | Err(_) => 1,
    };
    let wait = queue.policy(&request.agent).when.wait(failures, fastrand::f64());
    let retry_after_ms = wait.and_then(|wait| u64::try_from(wait.as_millis()).ok());
    Outcome::Unavailable { error, retry_after_ms }
}

fn panic_text(ended: tokio::task::JoinError) -> String {
    let Ok(payload) = ended.try_into_panic() else { return "it was aborted".into() };
    match payload.downcast::<String>() {
        Ok(text) => *text,
        Err(payload) => payload.downcast::<&str>().map_or_else(|_| "no message".into(), |text| (*text).to_owned()),
    }
}
