//! Jobs: one action on many orders, which the system carries out. This side starts, shows, pauses, resumes and aborts them.

use crate::Operator;
use crate::act::{self, Body, MAX_BY, MAX_REASON, Why, unavailable};
use crate::list::Wanted;
use crate::migrate;
use crate::workflows::MAX_HASH;
use edge::http::idempotency_key;
use edge::problem::{self, Problem};
use edge::query::number;
use edge::whole_number;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::decision::What;
use shared::job::{
    Control, Counts, Item, Job, JobId, MAX_IDS, MAX_OPEN, MAX_ORDERS, MAX_RATE, Note, PAGE, Page, State,
};
use shared::message::MAX_OUTPUT;
use shared::operator::MAX_INPUT;
use shared::order::Id;
use shared::ports::Error;
use shared::time::{SignedDuration, Timestamp, plus};
use shared::workflow::Hash;
use shared::workflow::file::MAX_NAME;
use std::collections::{BTreeMap, HashSet};
use stepwarden_aws::list::MAX_CURSOR;

/// Largest body that starts a job, in bytes: with as many ids as it may name.
pub const MAX_BODY: usize = 256 * 1024;
/// Length of an id, in characters.
const ID: usize = 30;
/// Most orders of a job that selects by a filter and gives no limit.
const LIMIT: u32 = 100;
/// Jobs on a page.
const ROWS: usize = 20;
/// The parameters of the results.
pub const PARAMETERS: [&str; 2] = ["page", "only"];
/// The actions: those on one order, and `migrate`.
pub const ACTS: [&str; 9] =
    ["resubmit", "skip", "mark-done", "retry-now", "cancel", "undo", "pause", "resume", migrate::NAME];

/// A job to start.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "JobStart")]
pub struct Start {
    /// Name of the action, as in the routes.
    #[schemars(extend("enum" = ACTS))]
    pub action: String,
    /// Which orders. With `order_ids`, those of them that match; else at least one condition is needed.
    #[serde(default)]
    pub filter: Wanted,
    /// The orders themselves.
    #[serde(default)]
    #[schemars(length(min = 1, max = MAX_IDS), inner(length(max = ID)))]
    pub order_ids: Option<Vec<String>>,
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// Name of the step that the action is about; without it, the filter's.
    #[schemars(length(max = MAX_NAME))]
    pub step: Option<String>,
    /// For `resubmit`.
    pub input: Option<Value>,
    /// For `mark-done`.
    pub output: Option<Value>,
    /// For `migrate` and `resubmit`: hash of the definition, or `latest`. The filter must name the workflow.
    #[schemars(length(min = 1, max = MAX_HASH))]
    pub to: Option<String>,
    /// Find out what would be done, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// Actions per second.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = MAX_RATE))]
    #[serde(deserialize_with = "whole_number::number")]
    pub rate_per_s: u32,
    /// Maximum number of orders. Without it, 100, or all of `order_ids`.
    #[serde(default, deserialize_with = "whole_number::optional")]
    #[schemars(range(min = 1, max = MAX_ORDERS))]
    pub limit: Option<u32>,
    /// Stop after this many failures.
    #[serde(default = "ten")]
    #[schemars(range(min = 1, max = MAX_ORDERS))]
    #[serde(deserialize_with = "whole_number::number")]
    pub abort_after_failures: u32,
}

fn ten() -> u32 {
    10
}

/// A job as people see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Job")]
pub struct Status {
    /// Its id.
    pub job_id: JobId,
    /// What is done to each order.
    pub action: String,
    /// Its state.
    pub state: State,
    /// Nothing is changed.
    pub dry_run: bool,
    /// Who started it.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Which orders, in words.
    pub orders: String,
    /// Actions per second.
    pub rate_per_s: u32,
    /// It stops after this many failures.
    pub abort_after_failures: u32,
    /// Orders listed so far; all of them once the state is no longer `gathering`.
    pub found: u32,
    /// More orders match than its limit allows.
    pub more: bool,
    /// Pages of results.
    pub pages: u32,
    /// Results so far.
    pub counts: Counts,
    /// When it was started (UTC, milliseconds).
    pub created_at: Timestamp,
    /// When it ended (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<Timestamp>,
    /// When it will act on the last of its orders, at its rate (UTC, milliseconds).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub done_by: Option<Timestamp>,
    /// Why it was aborted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Who paused, resumed and aborted it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
}

/// A page of jobs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Jobs {
    /// Newest first.
    pub jobs: Vec<Status>,
    /// Jobs whose records cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<JobId>,
    /// For `cursor`; absent at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A page of a job's results.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "JobResults")]
pub struct Results {
    /// One for each order, in the sequence in which the job acts. Those without an outcome have not been acted on yet.
    pub results: Vec<Item>,
    /// For `page`; absent at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u32>,
}

impl Operator {
    /// Starts a job, or finds the one that was started under this key.
    ///
    /// # Errors
    /// An invalid field, too many jobs, or the store failed.
    pub async fn start_job(&self, key: Option<&str>, start: &Start, subject: Option<&str>) -> Result<Status, Problem> {
        let (by, reason) = act::who_and_why(subject, start.by.as_deref(), start.reason.as_deref())?;
        let id = JobId::derive(idempotency_key(key, "job")?);
        let asked = content(start, &by, &reason);
        if let Some(known) = self.engine.store.job(&id).await.map_err(|e| unavailable(&e))? {
            return self.recognised(&known, &asked);
        }
        number("rate_per_s", &start.rate_per_s.to_string(), 1, MAX_RATE as usize)?;
        number("abort_after_failures", &start.abort_after_failures.to_string(), 1, MAX_ORDERS as usize)?;
        let mut filter = start.filter.filter()?;
        let ids = start.order_ids.as_deref().map(parsed).transpose()?;
        if ids.is_none() && start.filter.is_everything() {
            return Err(problem::invalid_field("filter", "matches every order; add a condition"));
        }
        let found = u32::try_from(ids.as_ref().map_or(0, Vec::len)).unwrap_or(u32::MAX);
        let limit = start.limit.unwrap_or(if ids.is_some() { found } else { LIMIT });
        number("limit", &limit.to_string(), 1, MAX_ORDERS as usize)?;
        if found > limit {
            let detail = format!("has {found} ids, and `limit` is {limit}: raise `limit`, or leave it out");
            return Err(problem::invalid_field("order_ids", detail));
        }
        check_value("input", start.input.as_ref(), MAX_INPUT)?;
        check_value("output", start.output.as_ref(), MAX_OUTPUT)?;
        let what = self.what(start).await?;
        self.check_room().await?;
        let now = self.engine.now();
        if ids.is_none() {
            // Orders submitted from now on do not count.
            let end = plus(now, SignedDuration::from_millis(1));
            filter.to = Some(filter.to.unwrap_or(end).min(end));
        }
        let items: Vec<Item> = ids.iter().flatten().cloned().map(Item::new).collect();
        let pages: Vec<Page> = items.chunks(PAGE).map(|page| Page(page.to_vec())).collect();
        let job = Job {
            id,
            version: 1,
            asked: asked.clone(),
            what,
            action: start.action.clone(),
            filter,
            is_named: ids.is_some(),
            by,
            reason,
            rate: start.rate_per_s,
            abort_after: start.abort_after_failures,
            limit,
            dry_run: start.dry_run,
            created_at: now,
            gathered: ids.is_some(),
            cursor: None,
            pages: u32::try_from(pages.len()).unwrap_or(u32::MAX),
            found,
            more: false,
            page: 0,
            offset: 0,
            chunk: None,
            counts: Counts::default(),
            paused_at: None,
            abort: None,
            ended_at: None,
            notes: Vec::new(),
        };
        tracing::info!(job = %job.id, operator = %job.by, "asked to {} many orders", job.action);
        // If another request under the same key was faster, its job counts.
        self.engine.store.create_job(&job, &pages).await.map_err(|e| unavailable(&e))?;
        self.recognised(&self.read_job(&job.id.0).await?, &asked)
    }

    /// The job started under a key, if the request was the same.
    fn recognised(&self, job: &Job, asked: &Hash) -> Result<Status, Problem> {
        if job.asked == *asked {
            return Ok(self.status(job));
        }
        let detail = format!("job {} was started under this key with different content; use a new key", job.id);
        Err(problem::idempotency_key_reused("Idempotency-Key", detail))
    }

    /// Paused jobs do not count, because they have nothing to do.
    async fn check_room(&self) -> Result<(), Problem> {
        let open = self.engine.store.open_jobs(MAX_OPEN).await.map_err(|e| unavailable(&e))?;
        if open.len() >= MAX_OPEN {
            let detail = format!("{MAX_OPEN} jobs have not ended; wait until one has ended, or pause or abort one");
            return Err(problem::not_possible(None, detail));
        }
        Ok(())
    }

    async fn what(&self, start: &Start) -> Result<What, Problem> {
        let filter = &start.filter;
        let step = start.step.clone().or_else(|| filter.step.clone()).filter(|_| act::takes_step(&start.action));
        let Some(to) = &start.to else {
            if start.action == migrate::NAME {
                return Err(problem::invalid_field("to", "is required: the hash of a definition, or `latest`"));
            }
            let (input, output) = (start.input.clone(), start.output.clone());
            let body = Body { step, input, output, ..Body::default() };
            let unknown = || Err(problem::invalid_field("action", format!("must be one of {}", ACTS.join(", "))));
            return act::what(&start.action, &body).unwrap_or_else(unknown);
        };
        let resubmits = match start.action.as_str() {
            "resubmit" => true,
            migrate::NAME => false,
            other => return Err(problem::invalid_field("to", format!("`{other}` does not take `to`; leave it out"))),
        };
        for (field, is_given) in
            [("step", start.step.is_some()), ("input", start.input.is_some()), ("output", start.output.is_some())]
        {
            if is_given {
                return Err(problem::invalid_field(
                    field,
                    format!("cannot be combined with `to`; leave out `{field}`"),
                ));
            }
        }
        let Some(workflow) = &filter.workflow else {
            return Err(problem::invalid_field(
                "filter",
                "must name the workflow, because `to` is one of its definitions",
            ));
        };
        Ok(What::Migrate { to: self.definition_of(workflow, to).await?, resubmits })
    }

    /// The job called `id`.
    ///
    /// # Errors
    /// There is no such job, or the store failed.
    pub async fn job(&self, id: &str) -> Result<Status, Problem> {
        Ok(self.status(&self.read_job(id).await?))
    }

    async fn read_job(&self, id: &str) -> Result<Job, Problem> {
        let none =
            || problem::no_such_job("job_id", format!("`{id}` is not the id of a known job; GET /jobs lists jobs"));
        let id = JobId::parse(id).ok_or_else(none)?;
        self.engine.store.job(&id).await.map_err(|e| unavailable(&e))?.ok_or_else(none)
    }

    /// A page of jobs, the newest first.
    ///
    /// # Errors
    /// An invalid cursor, or the store failed.
    pub async fn jobs(&self, query: &BTreeMap<String, String>) -> Result<Jobs, Problem> {
        let cursor = query.get("cursor").map(String::as_str);
        if cursor.is_some_and(|cursor| cursor.len() > MAX_CURSOR) {
            return Err(problem::invalid_field("cursor", "is not a cursor of a list of jobs; leave it out"));
        }
        let (ids, next) = self.engine.store.jobs(ROWS, cursor).await.map_err(|e| unavailable(&e))?;
        let (mut jobs, mut unreadable) = (Vec::new(), Vec::new());
        for id in ids {
            match self.engine.store.job(&id).await {
                Ok(job) => jobs.extend(job.map(|job| self.status(&job))),
                Err(Error::Corrupt { .. }) => unreadable.push(id),
                Err(error) => return Err(unavailable(&error)),
            }
        }
        Ok(Jobs { jobs, unreadable, next })
    }

    /// A page of its results, or only those of the orders that were not acted on.
    ///
    /// # Errors
    /// There is no such job, an invalid parameter, or the store failed.
    pub async fn job_results(&self, id: &str, query: &BTreeMap<String, String>) -> Result<Results, Problem> {
        let job = self.read_job(id).await?;
        let page = query.get("page").map_or(Ok(0), |text| number("page", text, 0, MAX_ORDERS as usize))?;
        let page = u32::try_from(page).unwrap_or(u32::MAX);
        let is_failed_only = match query.get("only").map(String::as_str) {
            None => false,
            Some("failed") => true,
            Some(_) => return Err(problem::invalid_field("only", "must be `failed`, or left out")),
        };
        let read = self.engine.store.page(&job.id, page).await.map_err(|e| unavailable(&e))?;
        let mut results = read.unwrap_or_default().0;
        results.retain(|item| !is_failed_only || item.outcome.is_some_and(|outcome| !outcome.is_good()));
        Ok(Results { results, next: Some(page + 1).filter(|next| *next < job.pages) })
    }

    /// Pauses, resumes or aborts the job called `id`.
    ///
    /// # Errors
    /// There is no such job, its state forbids it, or the store failed.
    pub async fn control_job(
        &self,
        id: &str,
        what: Control,
        why: &Why,
        subject: Option<&str>,
    ) -> Result<Status, Problem> {
        let (by, reason) = act::who_and_why(subject, why.by.as_deref(), why.reason.as_deref())?;
        // Its worker may write it twice a second.
        for _ in 0..20 {
            let job = self.read_job(id).await?;
            let resumes = what == Control::Resume && job.state() == State::Paused;
            if resumes {
                self.check_room().await?;
            }
            let next = job.control(what, &by, &reason, self.engine.now());
            let Some(next) = next.map_err(|why| problem::not_allowed(None, why.to_string()))? else {
                return Ok(self.status(&job));
            };
            if self.engine.store.save_job(&next, job.version, None).await.map_err(|e| unavailable(&e))? {
                return Ok(self.status(&next));
            }
        }
        Err(unavailable(&Error::Unavailable { what: format!("job {id}"), source: "too many writers at once".into() }))
    }

    fn status(&self, job: &Job) -> Status {
        let to_come = job.found - job.counts.all();
        let seconds = i64::from(to_come.div_ceil(job.rate.max(1)));
        let is_running = job.state() == State::Running && !job.dry_run;
        Status {
            job_id: job.id.clone(),
            action: job.action.clone(),
            state: job.state(),
            dry_run: job.dry_run,
            by: job.by.clone(),
            reason: job.reason.clone(),
            orders: words(job),
            rate_per_s: job.rate,
            abort_after_failures: job.abort_after,
            found: job.found,
            more: job.more,
            pages: job.pages,
            counts: job.counts,
            created_at: job.created_at,
            ended_at: job.ended_at,
            done_by: is_running.then(|| plus(self.engine.now(), SignedDuration::from_secs(seconds))),
            why: job.abort.clone(),
            notes: job.notes.clone(),
        }
    }
}

/// Which orders, as `stepwarden bulk` writes it.
fn words(job: &Job) -> String {
    let filter = &job.filter;
    let state = match filter.state {
        _ if filter.paused => Some("Paused".to_owned()),
        _ if filter.waiting => Some("Waiting".to_owned()),
        state => state.map(|state| state.name().to_owned()),
    };
    let all = [
        ("state", state),
        ("workflow", filter.workflow.clone()),
        ("tenant", filter.tenant.clone()),
        ("parent", filter.parent.as_ref().map(Id::to_string)),
        ("label", filter.label.clone()),
        ("reference", filter.reference.clone()),
        ("step", filter.step.clone()),
        ("agent", filter.agent.clone()),
        ("error", filter.error.clone()),
        ("from", filter.from.map(|at| at.to_string())),
        ("to", filter.to.map(|at| at.to_string())),
    ];
    let named = job.is_named.then(|| format!("{} named orders", job.found));
    let conditions = all.into_iter().filter_map(|(name, text)| text.map(|text| format!("{name} {text}")));
    named.into_iter().chain(conditions).collect::<Vec<_>>().join(", ")
}

fn parsed(ids: &[String]) -> Result<Vec<Id>, Problem> {
    if ids.is_empty() || ids.len() > MAX_IDS {
        let detail = format!("has {} ids; a job takes 1 to {MAX_IDS}: start several jobs, or use a filter", ids.len());
        return Err(problem::invalid_field("order_ids", detail));
    }
    let mut seen = HashSet::new();
    let mut all = Vec::with_capacity(ids.len());
    for (n, text) in ids.iter().enumerate() {
        let detail =
            || format!("id {} is `{}`, which is not the id of an order", n + 1, shared::history::shorten(text, 60));
        let id = Id::parse(text).ok_or_else(|| problem::invalid_field("order_ids", detail()))?;
        if seen.insert(text) {
            all.push(id);
        }
    }
    Ok(all)
}

/// A hash of the request, to tell another request under the same key from it.
fn content(start: &Start, by: &str, reason: &str) -> Hash {
    let start = Start { by: Some(by.to_owned()), reason: Some(reason.to_owned()), ..start.clone() };
    Hash::of(serde_json::to_string(&start).unwrap_or_default().as_bytes())
}

fn check_value(field: &'static str, value: Option<&Value>, most: usize) -> Result<(), Problem> {
    let Some(value) = value else { return Ok(()) };
    let bytes = value.to_string().len();
    if bytes > most {
        return Err(problem::invalid_field(field, format!("has {bytes} bytes as JSON; the limit is {most}")));
    }
    if shared::json::is_deep(value) {
        return Err(problem::invalid_field(field, "is nested too deeply"));
    }
    Ok(())
}
