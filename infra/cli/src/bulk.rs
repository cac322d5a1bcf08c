//! `bulk` starts a job of the system and follows it; `jobs` shows jobs, and pauses, resumes and aborts them. The job goes
//! on whatever becomes of this process.

use crate::api::{ask, new_key, print, read};
use crate::args::{At, Bulk, JobVerb, JobWhy, Jobs};
use crate::client::{Api, segment};
use crate::local::code;
use crate::show::{self, Cell, painted, when};
use crate::stdout;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::Timestamp;
use operator::jobs::{Jobs as Rows, Results, Status};
use reqwest::Method;
use serde::Serialize;
use serde_json::{Value, json};
use shared::job::{Item, State};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How often a job is asked for.
const EVERY: Duration = Duration::from_millis(500);
/// How long a system may give no answer while a job is followed.
const SILENCE: Duration = Duration::from_secs(60);

/// Starts a job, and follows it unless it is to be left alone.
///
/// # Errors
/// No answer, or a refusal.
pub async fn run(wanted: Bulk) -> Result<ExitCode> {
    let api = wanted.at.api().await?;
    let ids = wanted.ids.as_deref().map(ids).transpose()?;
    let body = wanted.by.body(json!({
        "action": wanted.action, "filter": filter(&wanted)?, "order_ids": ids, "input": wanted.input,
        "output": wanted.output, "to": wanted.to_definition, "dry_run": wanted.dry_run, "rate_per_s": wanted.rate,
        "limit": wanted.limit, "abort_after_failures": wanted.abort_after,
    }));
    let key = wanted.key.clone().unwrap_or_else(new_key);
    let request = api.request(Method::POST, "/jobs").header("idempotency-key", key).json(&body);
    let answer = api.ask(request).await?.body;
    if wanted.detach {
        print(&wanted.at, &answer, |job: Status| format!("{}\n", job.job_id))?;
        return Ok(ExitCode::SUCCESS);
    }
    let job: Status = show::read(&answer).context("the answer contains no job to follow")?;
    follow(&api, &wanted.at, &job.job_id.0).await
}

/// Shows jobs, or changes one.
///
/// # Errors
/// No answer, or a refusal.
pub async fn jobs(Jobs { verb, cursor, at }: Jobs) -> Result<ExitCode> {
    let control = async |name: &str, JobWhy { id, by, at }: JobWhy| -> Result<ExitCode> {
        let path = format!("/jobs/{}/{name}", segment(&id)?);
        let answer = at.api().await?.post(&path, &by.body(Value::Null)).await?;
        print(&at, &answer, status)?;
        Ok(ExitCode::SUCCESS)
    };
    match verb {
        None => {
            let api = at.api().await?;
            let answer = api.ask(api.request(Method::GET, "/jobs").query(&[("cursor", cursor)])).await?.body;
            print(&at, &answer, list)?;
        }
        Some(JobVerb::Show { id, at }) => {
            ask(&at, &format!("/jobs/{}", segment(&id)?), status).await?;
        }
        Some(JobVerb::Follow { id, at }) => return follow(&at.api().await?, &at, segment(&id)?).await,
        Some(JobVerb::Results { id, failed, at }) => {
            let results = results(&at.api().await?, segment(&id)?, failed).await?;
            if at.json {
                crate::say!("{}", serde_json::to_string_pretty(&results).context("printing the results")?);
            } else {
                results.iter().try_for_each(line)?;
            }
        }
        Some(JobVerb::Pause(why)) => return control("pause", why).await,
        Some(JobVerb::Resume(why)) => return control("resume", why).await,
        Some(JobVerb::Abort(why)) => return control("abort", why).await,
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows the progress of a job until it has ended or somebody has paused it, then its results.
async fn follow(api: &Api, at: &At, id: &str) -> Result<ExitCode> {
    // On standard error, and on terminals only.
    let style = ProgressStyle::with_template("{bar:40} {pos} of {len}  {msg}").expect("a valid template");
    let bar = ProgressBar::new(0).with_style(style);
    let mut heard = Instant::now();
    let answer = loop {
        match api.read(&format!("/jobs/{id}")).await {
            Ok(answer) => {
                heard = Instant::now();
                let Some(job) = show::read::<Status>(&answer) else { break answer };
                bar.set_length(job.found.into());
                bar.set_position(job.counts.all().into());
                bar.set_message(format!("{}, {} failed", word(job.state), job.counts.failed));
                if job.state.is_final() || job.state == State::Paused {
                    break answer;
                }
            }
            Err(error) if error.is_passing() && heard.elapsed() < SILENCE => {}
            Err(error) => {
                bar.finish_and_clear();
                return Err(error).with_context(|| {
                    format!("job {id} continues without this command: stepwarden jobs show {id} says how far it is")
                });
            }
        }
        tokio::time::sleep(EVERY).await;
    };
    bar.finish_and_clear();
    let results = results(api, id, false).await?;
    let Some(job) = show::read::<Status>(&answer) else { bail!("another version of the system answered: {answer}") };
    if at.json {
        let mut all = answer;
        all["results"] = json!(results);
        crate::say!("{}", serde_json::to_string_pretty(&all).context("printing the job")?);
    } else {
        results.iter().filter(|item| item.outcome.is_some()).try_for_each(line)?;
        crate::say!("{}", sum(&job));
    }
    Ok(code(job.state == State::Done && job.counts.failed == 0))
}

fn sum(job: &Status) -> String {
    let counts = job.counts;
    let mut text = if job.dry_run {
        format!("{} would be accepted, {} would fail", counts.good, counts.failed)
    } else {
        format!("{} accepted, {} failed", counts.good, counts.failed)
    };
    if counts.left_alone > 0 {
        let _ = write!(text, ", {} left alone", counts.left_alone);
    }
    match (&job.why, job.state) {
        (Some(why), _) => drop(write!(text, "; stopped: {why}")),
        (None, State::Paused) => drop(write!(text, "; paused, resume it with: stepwarden jobs resume {}", job.job_id)),
        (None, _) if job.dry_run => text.push_str("; nothing was changed"),
        (None, _) => {}
    }
    if job.more {
        text.push_str("\nmore orders match: raise --limit");
    }
    text
}

async fn results(api: &Api, id: &str, failed: bool) -> Result<Vec<Item>> {
    let (mut all, mut page) = (Vec::new(), 0);
    loop {
        let only = if failed { "&only=failed" } else { "" };
        let answer = api.read(&format!("/jobs/{id}/results?page={page}{only}")).await?;
        let read: Results = serde_json::from_value(answer).context("reading the results")?;
        all.extend(read.results);
        match read.next {
            Some(next) => page = next,
            None => return Ok(all),
        }
    }
}

fn line(item: &Item) -> Result<()> {
    let outcome = item.outcome.map_or_else(|| "pending".into(), word);
    let line = format!("{}  {}  {}", item.order_id, painted(&outcome, 11), item.why.as_deref().unwrap_or_default());
    stdout::styled(&format!("{}\n", line.trim_end()))
}

fn list(Rows { jobs, unreadable, next }: Rows) -> String {
    let now = Timestamp::now();
    let row = |job: &Status| -> [Cell; 6] {
        [
            when(job.created_at, now).into(),
            job.job_id.0.as_str().into(),
            word(job.state).into(),
            format!("{} {}", job.action, job.orders).into(),
            format!("{} of {}", job.counts.all(), job.found).into(),
            job.counts.failed.to_string().into(),
        ]
    };
    let rows: Vec<_> = jobs.iter().map(row).collect();
    let unreadable: String = unreadable.iter().map(|id| format!("unreadable {id}\n")).collect();
    let header = ["started", "job", "state", "action and orders", "done", "failed"];
    show::page("no jobs found", header, &rows, &unreadable, next)
}

/// A state or an outcome, as the API writes it.
fn word(of: impl Serialize) -> String {
    serde_json::to_value(of).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

fn status(job: Status) -> String {
    let now = Timestamp::now();
    let mut out = format!("{}  {}  {}\n", job.job_id, job.action, word(job.state));
    let lines = [
        ("orders", Some(job.orders.clone())),
        ("started", Some(format!("{} by {}: {}", when(job.created_at, now), job.by, job.reason))),
        ("rate", Some(format!("{} per second; stops after {} failures", job.rate_per_s, job.abort_after_failures))),
        ("progress", Some(format!("{} of {}", job.counts.all(), job.found))),
        ("result", Some(sum(&job))),
        ("ends about", job.done_by.map(|at| when(at, now))),
        ("ended", job.ended_at.map(|at| when(at, now))),
    ];
    out += &show::fields(lines);
    for note in &job.notes {
        let what = word(note.what);
        let _ = writeln!(out, "  {what:<10} {} by {}: {}", when(note.at, now), note.by, note.reason);
    }
    out
}

fn filter(wanted: &Bulk) -> Result<Value> {
    let mut filter = serde_json::to_value(&wanted.filter).context("writing the filter")?;
    for (name, text) in [("agent", &wanted.agent), ("error", &wanted.error)] {
        if let Some(text) = text {
            filter[name] = json!(text);
        }
    }
    Ok(filter)
}

/// The ids in a file, one a line, or on standard input for `-`.
fn ids(path: &Path) -> Result<Vec<String>> {
    let text = read(path).with_context(|| match path.to_str() {
        Some("-") => "reading standard input".to_owned(),
        _ => format!("reading {}", path.display()),
    })?;
    Ok(text.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect())
}
