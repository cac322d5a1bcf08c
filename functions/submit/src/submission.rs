//! Accepting an order: checks it, writes ORDER and TASK in one transaction, then sends a Wake.

use crate::Submit;
use crate::input;
use crate::problem::{self, Problem};
use edge::http;
use edge::whole_number;
use edge::workflows;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::json::{self, Fault};
use shared::message::{Effect, Wake};
use shared::order::{Id, Order, canonical_hash};
use shared::overload::Overload;
use shared::ports::{Created, Error, Messenger, StateStore};
use shared::task::{Priority, Submission as NewTask, Task, shard_of};
use shared::time::SignedDuration;
use shared::workflow::Workflow;
use shared::workflow::file::MAX_NAME;
use std::collections::BTreeSet;
use std::time::Duration;
use stepwarden_aws::metrics;
use stepwarden_aws::telemetry::Chain;
use tokio::time::{Instant, sleep};

/// Largest body of a submission, in bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// Longest idempotency key and reference, in characters.
pub const MAX_TEXT: usize = 200;
/// Longest name of a queue, in characters: SQS's own limit.
const MAX_QUEUE: usize = 80;
/// How long an order by message waits for the load to ease: half of the function's timeout.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How often it checks the load.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a submitter sends.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Name of the workflow; without one it is the only workflow, or `order` if there are several.
    #[serde(default)]
    #[schemars(length(max = MAX_NAME))]
    pub workflow: Option<String>,
    /// Its input.
    pub input: Value,
    /// The submitter's own reference, sent back in every notice.
    #[serde(default)]
    #[schemars(length(max = MAX_TEXT))]
    pub reference: Option<String>,
    /// Registered name of the queue that receives the notices.
    #[serde(default)]
    #[schemars(length(max = MAX_QUEUE))]
    pub reply_queue: Option<String>,
    /// Priority of the order.
    #[serde(default)]
    pub priority: Priority,
    /// The W3C trace context of the request or message; it does not make the submission a different one.
    #[serde(skip)]
    pub traceparent: Option<String>,
}

/// The submission in `body`.
///
/// # Errors
/// Not JSON, too large, or the first invalid field.
pub fn parse(body: &[u8]) -> Result<Submission, Problem> {
    if body.len() > MAX_BODY {
        let detail = format!(
            "the body has {} bytes; the limit is {MAX_BODY}: store large data elsewhere and submit a reference to it",
            body.len()
        );
        return Err(problem::too_large(None, detail));
    }
    let mut parsed: Submission = http::read(body)?;
    if json::is_deep(&parsed.input) {
        return Err(problem::invalid_field("input", Fault::Deep.to_string()));
    }
    whole_number::write(&mut parsed.input);
    Ok(parsed)
}

/// Checks the form of an idempotency key.
///
/// # Errors
/// Missing, too long, or with characters that a header cannot contain.
pub fn check_key(key: Option<&str>) -> Result<&str, Problem> {
    const HOW: &str = "send a header Idempotency-Key with a new value for each order, for example a UUID";
    let key = key
        .map(str::trim)
        .filter(|k| !k.is_empty())
        .ok_or_else(|| problem::missing_idempotency_key("Idempotency-Key", HOW))?;
    if key.len() > MAX_TEXT || !key.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        let detail = format!("it must have at most {MAX_TEXT} printable ASCII characters; {HOW}");
        return Err(problem::invalid_idempotency_key("Idempotency-Key", detail));
    }
    Ok(key)
}

/// A stored order, and what must be announced about it.
#[derive(Debug)]
pub struct News {
    /// The order's id.
    pub id: Id,
    /// To the submitter; sent first.
    notice: Option<Effect>,
    /// To a scheduler, if the task is still as it was created.
    wake: Option<Effect>,
}

impl News {
    fn of(task: &Task, notice: Option<Effect>) -> Self {
        let wake = (task.version == 0).then(|| Effect::Wake(Wake::new(task, task.version, 0), SignedDuration::ZERO));
        Self { id: task.id.clone(), notice, wake }
    }
}

impl<S: StateStore, M: Messenger> Submit<S, M> {
    /// Accepts an order, or recognises one that was accepted before. Returns the order's id.
    ///
    /// # Errors
    /// A problem. Then nothing was written, except possibly behind `unavailable`; repeat the request to find out.
    pub async fn accept(&self, tenant: &str, key: &str, submission: Submission) -> Result<Id, Problem> {
        let (workflow, order, task) = self.check(tenant, key, submission)?;
        // A caller that lost the answer to an accepted order gets it again, whatever the load.
        if let Some(overload) = self.engine.overload(workflow, tenant, task.priority).await
            && self.engine.store.load(&order.id).await.map_err(|e| unavailable(&e))?.is_none()
        {
            let age_ms = overload.age.as_millis();
            metrics::ORDERS_REFUSED.add("overload");
            tracing::warn!(queue = overload.queue, age_ms, alarm = "overload", "refused an order: overload");
            return Err(overloaded(&overload, &order.id));
        }
        let news = self.store(workflow, order, task).await?;
        let id = news.id.clone();
        self.announce(vec![news]).await;
        Ok(id)
    }

    /// The same for an order by message. No caller repeats it, and it is set aside if it fails too often.
    /// So it waits for the load to ease, up to [`PATIENCE`], while the rest of its queue waits behind it, and is then
    /// accepted. The result must still be [announced](Self::announce), with those of the whole batch.
    ///
    /// # Errors
    /// As above, but never for overload.
    pub async fn accept_by_message(&self, tenant: &str, key: &str, submission: Submission) -> Result<News, Problem> {
        if let Ok(workflow) = self.workflow(submission.workflow.as_deref()) {
            let patience = Instant::now() + PATIENCE;
            while Instant::now() < patience
                && self.engine.overload(workflow, tenant, submission.priority).await.is_some()
            {
                sleep(LOOK_EVERY).await;
            }
        }
        // Only now: an order's times begin when it is stored.
        let (workflow, order, task) = self.check(tenant, key, submission)?;
        self.store(workflow, order, task).await
    }

    /// The workflow called `name`; without a name the only one, or `order` if there are several.
    fn workflow(&self, name: Option<&str>) -> Result<&Workflow, Problem> {
        workflows::pick(&self.workflows, name).ok_or_else(|| {
            let all = names(self.workflows.keys());
            let detail = match name {
                Some(name) => format!("`{name}` is not one of {all}"),
                None => format!("there are several workflows; name one of {all}"),
            };
            problem::unknown_workflow("workflow", detail)
        })
    }

    /// What to store for a submission, if it is valid.
    fn check(&self, tenant: &str, key: &str, submission: Submission) -> Result<(&Workflow, Order, Task), Problem> {
        let workflow = self.workflow(submission.workflow.as_deref())?;
        if let Some(queue) = &submission.reply_queue
            && !self.reply_queues.allow(queue, tenant)
        {
            let detail = format!(
                "tenant `{tenant}` has no reply queue `{queue}`, but {}; an operator assigns queues to tenants in \
                 REPLY_QUEUES, for example {queue}={tenant}",
                names(self.reply_queues.names_of(tenant))
            );
            return Err(problem::unknown_reply_queue("reply_queue", detail));
        }
        if submission.reference.as_ref().is_some_and(|r| r.chars().count() > MAX_TEXT) {
            return Err(problem::invalid_field("reference", format!("must have at most {MAX_TEXT} characters")));
        }
        input::check(workflow.input.as_deref(), &submission.input)?;

        let id = Id::derive(tenant, key);
        let hash = canonical_hash(&json!([
            workflow.name,
            submission.input,
            submission.reference,
            submission.reply_queue,
            submission.priority
        ]));
        let now = self.engine.now();
        let new = NewTask {
            id: id.clone(),
            tenant: tenant.to_owned(),
            reference: submission.reference,
            reply_queue: submission.reply_queue,
            priority: submission.priority,
            shard: shard_of(&id, self.shards, self.engine.has_classes() && submission.priority == Priority::High),
        };
        let task = Task { traceparent: submission.traceparent, ..Task::new(new, workflow, now) };
        let order = Order {
            id,
            tenant: tenant.to_owned(),
            idempotency_key: key.to_owned(),
            hash,
            created_at: now,
            input: submission.input,
        };
        Ok((workflow, order, task))
    }

    async fn store(&self, workflow: &Workflow, order: Order, task: Task) -> Result<News, Problem> {
        self.engine.use_workflow(workflow).await.map_err(|e| unavailable(&e))?;
        match self.engine.create(&order, &task).await.map_err(|e| unavailable(&e))? {
            Created::New => Ok(News::of(&task, shared::view::received(&task, workflow))),
            Created::Exists => self.recognise(&order).await,
        }
    }

    /// The key was used before: by the same submission, or by another one?
    async fn recognise(&self, order: &Order) -> Result<News, Problem> {
        let task = self.engine.store.load(&order.id).await.map_err(|e| unavailable(&e))?;
        let Some(task) = task else {
            // Neither the first answer, because no record is left, nor a second order, because the services would take
            // its calls for the first one's.
            let detail = format!(
                "order {} used this key, has ended, and its record was removed; use a new key for a new order",
                order.id
            );
            return Err(problem::idempotency_key_spent("Idempotency-Key", detail));
        };
        let stored = self.engine.store.order(&task).await.map_err(|e| unavailable(&e))?;
        let Some(stored) = stored else {
            let (what, why) = (format!("order {}", order.id), "it is missing from the order table".into());
            return Err(unavailable(&Error::Corrupt { what, why }));
        };
        if stored.hash != order.hash {
            let detail =
                format!("order {} was submitted under this key with different content; use a new key", order.id);
            return Err(problem::idempotency_key_reused("Idempotency-Key", detail));
        }
        // The process that first accepted it may have died before the notice or the Wake.
        let workflow = self.engine.workflow(&task.workflow_hash).await.map_err(|e| unavailable(&e))?;
        let notice = shared::view::received(&task, &workflow).filter(|_| !task.process_state().is_final());
        Ok(News::of(&task, notice))
    }

    /// Sends what is due once orders are stored, in as few requests as possible. The orders are safe already: the due
    /// index makes up for a lost Wake. Notices go first. If one cannot be sent, its order gets no Wake either, so that
    /// it stays as it is until the sweep sends both.
    pub async fn announce(&self, news: Vec<News>) {
        let (notices, wakes): (Vec<_>, Vec<_>) = news.into_iter().map(|news| (news.notice, news.wake)).unzip();
        let (owners, notices): (Vec<_>, Vec<_>) =
            notices.into_iter().enumerate().filter_map(|(n, notice)| Some((n, notice?))).unzip();
        let sent = self.send(notices).await;
        let held: BTreeSet<usize> = owners.into_iter().zip(sent).filter(|(_, sent)| !sent).map(|(n, _)| n).collect();
        let free = wakes.into_iter().enumerate().filter(|(n, _)| !held.contains(n));
        self.send(free.filter_map(|(_, wake)| wake).collect()).await;
    }

    /// Whether each of them was sent.
    async fn send(&self, effects: Vec<Effect>) -> Vec<bool> {
        if effects.is_empty() {
            return Vec::new();
        }
        let sent = self.engine.messenger.send(effects).await;
        for error in sent.iter().filter_map(|sent| sent.as_ref().err()) {
            tracing::warn!(error = %Chain(error), "an accepted order waits for the supervisor");
        }
        sent.iter().map(Result::is_ok).collect()
    }
}

/// The store's error as a problem.
pub fn unavailable(error: &Error) -> Problem {
    tracing::error!(error = %Chain(error), "the state store failed");
    match error {
        Error::TooLarge { bytes, limit, .. } => {
            problem::too_large(None, format!("the order needs {bytes} bytes; the limit is {limit}"))
        }
        // The log and the operator routes say what is wrong with the record.
        Error::Corrupt { .. } => {
            problem::unreadable(None, "the order exists, but its record cannot be read; an operator must look into it")
        }
        Error::Unavailable { .. } => {
            problem::unavailable(None, "the order store did not answer; repeat the same request with the same key")
                .retry_after(2)
        }
    }
}

fn overloaded(overload: &Overload, id: &Id) -> Problem {
    let seconds = overload.retry_after_s(id);
    let detail = format!(
        "messages in queue `{}` wait {} ms; nothing was written, so repeat the same request with the same key in \
         {seconds} s",
        overload.queue,
        overload.age.as_millis()
    );
    problem::overloaded(None, detail).retry_after(seconds)
}

fn names<'a>(all: impl Iterator<Item = &'a String>) -> String {
    let all: Vec<String> = all.map(|n| format!("`{n}`")).collect();
    if all.is_empty() { "(none configured)".into() } else { all.join(", ") }
}
