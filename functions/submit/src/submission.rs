//! Accepting an order: checks it, writes ORDER and TASK in one transaction, then sends a Wake, or the first requests.

use crate::Submit;
use crate::input;
use crate::problem::{self, Problem};
use edge::http;
use edge::whole_number;
use edge::workflows;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use shared::history::shorten;
use shared::json::{self, Fault};
use shared::message::{Effect, Wake};
use shared::order::{Id, MAX_LABEL, MAX_LABELS, Order, canonical_hash, label_fault};
use shared::overload::Overload;
use shared::ports::{Created, Error};
use shared::registry::{self, Meaning, Pointer, Pointers};
use shared::task::{Priority, Submission as NewTask, Task, shard_of};
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::Workflow;
use shared::workflow::child::check_path;
use shared::workflow::file::MAX_NAME;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use stepwarden_aws::BoxFuture;
use stepwarden_aws::metrics;
use stepwarden_aws::telemetry::Chain;
use tokio::time::{Instant, sleep};

/// Largest body of a submission, in bytes.
pub const MAX_BODY: usize = 256 * 1024;
/// Longest idempotency key and reference, in characters.
pub const MAX_TEXT: usize = 200;
/// Longest name of a queue, in characters: SQS's own limit.
const MAX_QUEUE: usize = 80;
/// How long an order by message waits for less load: half of the function's timeout.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// How often it checks the load.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest time from the read of an order's definition to the order. So an order submitted 5 s after a change gets the
/// new definition, however slow the store is.
const FRESH_FOR: SignedDuration = SignedDuration::from_secs(4);

/// What a submitter sends.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Submission {
    /// Name of the workflow; without one it is the deployment's only workflow, or `order` if there are several.
    #[serde(default)]
    #[schemars(length(max = MAX_NAME))]
    pub workflow: Option<String>,
    /// Its input.
    pub input: Value,
    /// The submitter's own reference, sent back in every notice.
    #[serde(default)]
    #[schemars(length(max = MAX_TEXT))]
    pub reference: Option<String>,
    /// Labels by which lists can be filtered. Their sequence does not matter.
    #[serde(default, deserialize_with = "sorted")]
    #[schemars(length(max = MAX_LABELS), inner(length(min = 1, max = MAX_LABEL)))]
    pub labels: Vec<String>,
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

impl Submission {
    /// A hash that is equal for equal submissions.
    fn hash(&self, workflow: &str) -> String {
        let Self { workflow: _, input, reference, labels, reply_queue, priority, traceparent: _ } = self;
        // Without labels, the hash is as in versions before labels.
        canonical_hash(&match labels.as_slice() {
            [] => json!([workflow, input, reference, reply_queue, priority]),
            labels => json!([workflow, input, reference, reply_queue, priority, labels]),
        })
    }
}

fn sorted<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let mut labels = Vec::<String>::deserialize(from)?;
    labels.sort();
    Ok(labels)
}

fn check_labels(labels: &[String]) -> Result<(), Problem> {
    let refuse = |detail: String| Err(problem::invalid_field("labels", detail));
    if labels.len() > MAX_LABELS {
        return refuse(format!("has {} labels; the limit is {MAX_LABELS}", labels.len()));
    }
    if let Some((label, fault)) = labels.iter().find_map(|label| Some((label, label_fault(label)?))) {
        return refuse(format!("label `{}` {fault}", shorten(&label.escape_debug().to_string(), MAX_LABEL)));
    }
    match labels.windows(2).find(|two| two[0] == two[1]) {
        Some(two) => refuse(format!("label `{}` occurs twice; write it once", two[0])),
        None => Ok(()),
    }
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

/// A stored order, and what must be announced about it.
#[derive(Debug)]
pub struct News {
    /// The order's id.
    pub id: Id,
    /// To the submitter; sent first.
    notice: Option<Effect>,
    /// To agents, if the order was stored with its first claims.
    requests: Vec<Effect>,
    /// To a scheduler, unless all `requests` are sent; none if the order needs neither.
    wake: Option<Effect>,
    /// Its steps are claimed.
    is_begun: bool,
}

/// Most orders to remember as sent.
const MAX_SENT: usize = 10_000;

/// Submission stores new orders with their first claims, and sends their requests. Holds the latest orders whose requests
/// this process has sent. A forgotten one costs a repeated request if its submission is repeated, and nothing else.
#[derive(Clone, Debug, Default)]
pub struct Begins(Arc<Mutex<HashSet<Id>>>);

impl Begins {
    fn lock(&self) -> MutexGuard<'_, HashSet<Id>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn have_sent(&self, orders: impl Iterator<Item = Id>) {
        let mut sent = self.lock();
        if sent.len() >= MAX_SENT {
            sent.clear();
        }
        sent.extend(orders);
    }
}

impl Submit {
    /// Accepts an order, or recognises one that was accepted before. Returns the order's id. Compiled here for all that
    /// run it.
    ///
    /// # Errors
    /// A problem. Then nothing was written, except possibly behind `unavailable`; repeat the request to find out.
    pub fn accept<'a>(
        &'a self,
        tenant: &'a str,
        key: &'a str,
        submission: Submission,
    ) -> BoxFuture<'a, Result<Id, Problem>> {
        Box::pin(self.accept_now(tenant, key, submission))
    }

    async fn accept_now(&self, tenant: &str, key: &str, submission: Submission) -> Result<Id, Problem> {
        let news = match self.judge(tenant, key, &submission).await? {
            Judged::Known(news) => *news,
            Judged::Valid(workflow, read) => {
                // A caller that lost the answer to an accepted order gets it, whatever the load.
                if let Some(overload) = self.engine.overload(&workflow, tenant, submission.priority).await {
                    let id = Id::derive(tenant, key);
                    if self.engine.store.load(&id).await.map_err(|e| unavailable(&e))?.is_none() {
                        let age_ms = overload.age.as_millis();
                        metrics::ORDERS_REFUSED.add("overload");
                        tracing::warn!(
                            queue = overload.queue,
                            age_ms,
                            alarm = "overload",
                            "refused an order: overload"
                        );
                        return Err(overloaded(&overload, &id));
                    }
                }
                self.store((&workflow, read), tenant, key, submission).await?
            }
        };
        let id = news.id.clone();
        if !self.announce(vec![news]).await.is_empty() {
            let detail = "the order is stored, but its first requests could not be sent; repeat the same request";
            return Err(problem::unavailable(None, detail).retry_after(2));
        }
        Ok(id)
    }

    /// [`Self::accept`] for an order by message. No caller repeats it, and too many failures would set it aside. So it
    /// waits for less load, up to [`PATIENCE`], while its queue waits behind it, and is then accepted. The result must
    /// still be [announced](Self::announce), with those of the whole batch.
    ///
    /// # Errors
    /// As above, but never for overload.
    pub async fn accept_by_message(&self, tenant: &str, key: &str, submission: Submission) -> Result<News, Problem> {
        let patience = Instant::now() + PATIENCE;
        loop {
            // Each time, because the name's meaning may have changed during the wait.
            let (workflow, read) = match self.judge(tenant, key, &submission).await? {
                Judged::Known(news) => return Ok(*news),
                Judged::Valid(workflow, read) => (workflow, read),
            };
            let is_late = Instant::now() >= patience;
            if is_late || self.engine.overload(&workflow, tenant, submission.priority).await.is_none() {
                return self.store((&workflow, read), tenant, key, submission).await;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    /// The definition for a submission, or the order that the same submission made before. A caller that lost the
    /// answer can repeat it, whatever has become of the workflow.
    async fn judge(&self, tenant: &str, key: &str, submission: &Submission) -> Result<Judged<'_>, Problem> {
        let (mut read, known) = self.engine.pointers().await.map_err(|e| unavailable(&e))?;
        let mut judged = self.valid(&known, tenant, submission).await;
        if judged.is_err() {
            // A very recent activation counts, because a refused message is set aside for good.
            let (again, now) = self.engine.pointers_now().await.map_err(|e| unavailable(&e))?;
            if now != known {
                (read, judged) = (again, self.valid(&now, tenant, submission).await);
            }
        }
        match judged {
            Ok(workflow) => Ok(Judged::Valid(workflow, read)),
            Err(refused) => {
                self.repeated(tenant, key, submission).await?.map(|news| Judged::Known(Box::new(news))).ok_or(refused)
            }
        }
    }

    /// The definition for a submission, if it is valid.
    async fn valid(&self, pointers: &Pointers, tenant: &str, submission: &Submission) -> Result<Tree<'_>, Problem> {
        let workflow = self.find(pointers, submission.workflow.as_deref()).await?;
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
        check_labels(&submission.labels)?;
        input::check(&workflow, &submission.input)?;
        self.with_children(pointers, workflow).await
    }

    /// The definition with those of all descendants. What each name means is decided once, for all of them.
    async fn with_children<'a>(&'a self, pointers: &Pointers, root: Found<'a>) -> Result<Tree<'a>, Problem> {
        let mut below = BTreeMap::new();
        let mut open: Vec<Vec<String>> = root.children().iter().map(|c| vec![root.name.clone(), (*c).into()]).collect();
        while let Some(path) = open.pop() {
            let (name, before) = path.split_last().expect("it ends with the name");
            let before: Vec<&str> = before.iter().map(String::as_str).collect();
            let no = |why: String| {
                let detail = format!(
                    "workflow `{}` takes no orders, because its orders start orders of `{name}`, and {why}; an operator must \
                     activate another definition; then repeat the same request with the same key",
                    root.name
                );
                problem::unavailable(None, detail).retry_after(30)
            };
            check_path(&before, name).map_err(|nested| no(nested.to_string()))?;
            let found = match self.find(pointers, Some(name)).await {
                Ok(found) => found,
                Err(problem) if problem.status >= 500 => return Err(problem),
                Err(_) => return Err(no("no active workflow has this name".into())),
            };
            if found.input.is_some() {
                return Err(no("that workflow has a built-in input check, so no other workflow can start it".into()));
            }
            let names: Vec<&str> = path.iter().map(String::as_str).collect();
            found
                .calls()
                .try_for_each(|call| check_path(&names, &call.name))
                .map_err(|nested| no(nested.to_string()))?;
            let next = found.children().into_iter().map(|c| path.iter().cloned().chain([c.into()]).collect());
            open.extend(next.collect::<Vec<Vec<String>>>());
            below.insert(name.clone(), found);
        }
        Ok(Tree { root, below })
    }

    /// The definition of `name`, or of the default name.
    async fn find(&self, pointers: &Pointers, name: Option<&str>) -> Result<Found<'_>, Problem> {
        let Some(name) = name.or_else(|| workflows::default_name(&self.workflows, pointers)) else {
            let detail = format!("there are several workflows; name one of {}", self.active(pointers));
            return Err(problem::unknown_workflow("workflow", detail));
        };
        let (pointer, deployed) = (pointers.get(name), self.workflows.get(name));
        if let (None, Some(workflow)) = (pointer, deployed) {
            return Ok(Found::Deployed(workflow));
        }
        let own = deployed.map(Workflow::hash);
        let hash = match registry::meaning(pointer, own.as_ref()) {
            Meaning::Active(hash) => hash,
            Meaning::Unreadable => return Err(broken(name, "its record")),
            Meaning::Retired(Pointer { by, since, .. }) => {
                let detail =
                    format!("`{name}` was retired by {by} at {since:.0}; active are {}", self.active(pointers));
                return Err(problem::unknown_workflow("workflow", detail));
            }
            Meaning::Unknown => {
                let detail = format!("`{}` is not one of {}", shorten(name, MAX_NAME), self.active(pointers));
                return Err(problem::unknown_workflow("workflow", detail));
            }
        };
        match deployed {
            Some(workflow) if own.as_ref() == Some(hash) => Ok(Found::Deployed(workflow)),
            _ => self.engine.workflow(hash).await.map(Found::Registered).map_err(|error| match error {
                Error::Corrupt { .. } => {
                    tracing::error!(error = %Chain(&error), "the active definition of `{name}` cannot be read");
                    broken(name, &format!("its definition {hash}"))
                }
                Error::Unavailable { .. } | Error::TooLarge { .. } => unavailable(&error),
            }),
        }
    }

    /// The names that take orders.
    fn active(&self, pointers: &Pointers) -> String {
        let all: BTreeSet<&String> = self.workflows.keys().chain(pointers.keys()).collect();
        let hash = |name: &String| self.workflows.get(name).map(Workflow::hash);
        let is_active =
            |name: &&String| matches!(registry::meaning(pointers.get(*name), hash(name).as_ref()), Meaning::Active(_));
        names(all.into_iter().filter(is_active))
    }

    /// Stores the order of a valid submission, or recognises one that was stored before. `read`: when the workflow was
    /// active.
    async fn store(
        &self,
        (workflow, read): (&Tree<'_>, Timestamp),
        tenant: &str,
        key: &str,
        submission: Submission,
    ) -> Result<News, Problem> {
        let id = Id::derive(tenant, key);
        let hash = submission.hash(&workflow.name);
        let unnamed = submission.workflow.is_none().then(|| submission.clone());
        let now = self.engine.now();
        if read.duration_until(now).abs() > FRESH_FOR {
            let detail = "the store answers so slowly that the workflow may have changed in the meantime; submit again";
            return Err(problem::unavailable(None, detail).retry_after(2));
        }
        let Submission { workflow: _, input, reference, labels, reply_queue, priority, traceparent } = submission;
        let new = NewTask {
            id: id.clone(),
            tenant: tenant.to_owned(),
            reference,
            reply_queue,
            priority,
            shard: shard_of(&id, self.shards, self.engine.has_classes() && priority == Priority::High),
        };
        let secret = workflow.all().any(Workflow::hands_out_addresses).then(stepwarden_aws::config::secret);
        let pins = workflow.below.iter().map(|(name, found)| (name.clone(), found.hash())).collect();
        let task = Task { traceparent, labels, secret, pins, ..Task::new(new, workflow, now) };
        let order =
            Order { id, tenant: tenant.to_owned(), idempotency_key: key.to_owned(), hash, created_at: now, input };
        for workflow in workflow.all() {
            self.engine.use_workflow(workflow).await.map_err(|e| unavailable(&e))?;
        }
        let notice = shared::view::received(&task, workflow);
        // Once it has begun, nothing would send a notice of receipt that was lost.
        let created = match self.begins.is_some() && notice.is_none() {
            true => self.engine.begin(&order, &task, workflow).await,
            false => self.engine.create(&order, &task).await.map(|created| (created, Vec::new())),
        };
        if let (Created::New, requests) = created.map_err(|e| unavailable(&e))? {
            return Ok(News { is_begun: !requests.is_empty(), requests, ..self.news(&task, notice) });
        }
        // The key was used before, by this submission or another one.
        let stored = self.engine.store.load(&order.id).await.map_err(|e| unavailable(&e))?;
        let Some(stored) = stored else {
            // Neither the first answer, because no record is left, nor a second order, because services would take its
            // calls for the first one's.
            let detail = format!(
                "order {} used this key, has ended, and its record was removed; use a new key for a new order",
                order.id
            );
            return Err(problem::idempotency_key_spent("Idempotency-Key", detail));
        };
        if stored.is_erased() {
            let detail =
                format!("order {} used this key, and its data was erased; use a new key for a new order", order.id);
            return Err(problem::idempotency_key_spent("Idempotency-Key", detail));
        }
        // A submission without a name is the same even if the default name has changed.
        let hash = unnamed.map_or(order.hash, |submission| submission.hash(&stored.workflow));
        self.recognise(&stored, &hash).await?.ok_or_else(|| {
            let detail =
                format!("order {} was submitted under this key with different content; use a new key", order.id);
            problem::idempotency_key_reused("Idempotency-Key", detail)
        })
    }

    /// The order that this submission made before, if it did.
    async fn repeated(&self, tenant: &str, key: &str, submission: &Submission) -> Result<Option<News>, Problem> {
        let stored = self.engine.store.load(&Id::derive(tenant, key)).await.map_err(|e| unavailable(&e))?;
        let Some(stored) = stored else { return Ok(None) };
        let hash = submission.hash(submission.workflow.as_ref().unwrap_or(&stored.workflow));
        self.recognise(&stored, &hash).await
    }

    /// What to announce of a stored order with this content hash.
    async fn recognise(&self, task: &Task, hash: &str) -> Result<Option<News>, Problem> {
        let stored = self.engine.store.order(task).await.map_err(|e| unavailable(&e))?;
        let Some(stored) = stored else {
            let (what, why) = (format!("order {}", task.id), "it is missing from the order table".into());
            return Err(unavailable(&Error::Corrupt { what, why }));
        };
        if stored.hash != hash {
            return Ok(None);
        }
        // The process that first accepted it may have died before the notice or the Wake.
        match self.engine.workflow(&task.workflow_hash).await {
            Ok(workflow) => {
                let notice = shared::view::received(task, &workflow).filter(|_| !task.process_state().is_final());
                Ok(Some(self.news(task, notice)))
            }
            // The order is stored. No process can handle it now; the sweep will, once the definition is readable.
            Err(Error::Corrupt { .. }) => {
                let is_begun = task.has_begun();
                Ok(Some(News { id: task.id.clone(), notice: None, requests: Vec::new(), wake: None, is_begun }))
            }
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// What to announce of a stored order, without requests. If it has begun, its requests may never have been sent: by a
    /// process that died, or because a call was not answered. A caller that only repeats its submission repeats none.
    fn news(&self, task: &Task, notice: Option<Effect>) -> News {
        let is_begun = task.has_begun();
        let is_unsent = || {
            // With a notice of receipt, it was a scheduler that began it.
            let begins = self.begins.as_ref().filter(|_| notice.is_none());
            begins.is_some_and(|begins| !begins.lock().contains(&task.id))
        };
        let seen = task.first_wake().filter(|_| !is_begun || is_unsent());
        let wake = seen.map(|seen| Effect::Wake(Wake::new(task, seen, 0), SignedDuration::ZERO));
        News { id: task.id.clone(), notice, requests: Vec::new(), wake, is_begun }
    }

    /// Sends the notices, requests and Wakes of stored orders, in as few calls as possible. Notices go first. If one
    /// cannot be sent, its order gets no Wake either, and waits until the sweep sends both. If a request cannot be sent,
    /// a scheduler gets a Wake, and sends the order's requests. Returns the positions of the orders for which that failed
    /// as well: their submission must be repeated. The due index makes up for anything else that is lost.
    pub async fn announce(&self, news: Vec<News>) -> BTreeSet<usize> {
        let begun = news.iter().enumerate().filter(|(_, news)| news.is_begun && news.wake.is_some());
        let begun: BTreeMap<usize, Id> = begun.map(|(n, news)| (n, news.id.clone())).collect();
        let (mut notices, mut first, mut instead) = (Vec::new(), Vec::new(), Vec::new());
        for (n, News { notice, requests, wake, .. }) in news.into_iter().enumerate() {
            notices.extend(notice.map(|notice| (n, notice)));
            let wakes = if requests.is_empty() { &mut first } else { &mut instead };
            wakes.extend(wake.map(|wake| (n, wake)));
            first.extend(requests.into_iter().map(|request| (n, request)));
        }
        let held = self.send(notices).await;
        first.retain(|(n, _)| !held.contains(n));
        let mut failed = self.send(first).await;
        instead.retain(|(n, _)| failed.contains(n));
        let tried: BTreeSet<usize> = instead.iter().map(|(n, _)| *n).collect();
        let in_vain = self.send(instead).await;
        failed.retain(|n| begun.contains_key(n) && (!tried.contains(n) || in_vain.contains(n)));
        if let Some(begins) = &self.begins {
            begins.have_sent(begun.into_iter().filter(|(n, _)| !failed.contains(n)).map(|(_, id)| id));
        }
        failed
    }

    /// Sends effects, each with the position of its order. Returns the positions of those that were not sent.
    async fn send(&self, effects: Vec<(usize, Effect)>) -> BTreeSet<usize> {
        if effects.is_empty() {
            return BTreeSet::new();
        }
        let (owners, effects): (Vec<_>, Vec<_>) = effects.into_iter().unzip();
        let sent = self.engine.messenger.send(effects).await;
        for error in sent.iter().filter_map(|sent| sent.as_ref().err()) {
            tracing::warn!(error = %Chain(error), "an accepted order waits for the supervisor");
        }
        owners.into_iter().zip(sent).filter(|(_, sent)| sent.is_err()).map(|(owner, _)| owner).collect()
    }
}

/// An acceptable submission, or the order that it made before.
enum Judged<'a> {
    /// With the time at which the read behind it began.
    Valid(Tree<'a>, Timestamp),
    Known(Box<News>),
}

/// The definition of a submission: one of the deployment, or one that an operator activated.
enum Found<'a> {
    Deployed(&'a Workflow),
    Registered(Arc<Workflow>),
}

impl Deref for Found<'_> {
    type Target = Workflow;

    fn deref(&self) -> &Workflow {
        match self {
            Self::Deployed(workflow) => workflow,
            Self::Registered(workflow) => workflow,
        }
    }
}

/// The definition of a submission, and those of possible descendants, by name.
struct Tree<'a> {
    root: Found<'a>,
    below: BTreeMap<String, Found<'a>>,
}

impl Tree<'_> {
    fn all(&self) -> impl Iterator<Item = &Workflow> {
        std::iter::once(&*self.root).chain(self.below.values().map(|found| &**found))
    }
}

impl Deref for Tree<'_> {
    type Target = Workflow;

    fn deref(&self) -> &Workflow {
        &self.root
    }
}

/// A workflow takes no orders until an operator mends it. The submission has no fault, so it may be repeated, and a
/// message is redelivered.
fn broken(name: &str, what: &str) -> Problem {
    let detail = format!(
        "workflow `{name}` takes no orders, because {what} cannot be read; an operator must put and activate a \
         definition; then repeat the same request with the same key"
    );
    problem::unavailable(None, detail).retry_after(30)
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
