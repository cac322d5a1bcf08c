//! `bulk`: one act on many orders. The API acts for at most 20 s per call, so this calls it until all orders are done.

use super::args::Bulk;
use super::show::{self, painted};
use crate::stdout;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use operator::act::Answer;
use operator::bulk::Report;
use operator::list::Unreadable;
use serde::Deserialize;
use serde_json::{Value, json};
use shared::order::Id;
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Orders of one call in a dry run: the API's maximum.
const MOST: u64 = 1000;

/// Acts, and prints a line for each order.
///
/// # Errors
/// No answer, or a refusal. If something was done before, the error contains the cursor to continue with.
pub async fn run(wanted: Bulk) -> Result<ExitCode> {
    let api = wanted.at.api().await?;
    let body = wanted.by.body(json!({
        "action": wanted.action, "filter": filter(&wanted)?, "input": wanted.input, "output": wanted.output,
        "dry_run": wanted.dry_run, "rate_per_s": wanted.rate,
    }));
    // About two seconds of work for each call, so that a person sees progress.
    let chunk = if wanted.dry_run { MOST } else { wanted.rate * 2 };
    // On standard error, and on terminals only.
    let style = ProgressStyle::with_template("{bar:40} {pos} of at most {len}  {msg}").expect("a valid template");
    let bar = ProgressBar::new(wanted.limit).with_style(style);
    let mut total = Report { dry_run: wanted.dry_run, next: wanted.cursor.clone(), ..Report::default() };
    // By id: if a call ends within a page, both this call and the next one name the unreadable orders of that page.
    let mut unreadable: BTreeMap<Id, Unreadable> = BTreeMap::new();
    loop {
        let mut body = body.clone();
        let (good, failed) = (total.good as u64, total.failed as u64);
        body["limit"] = json!(chunk.min(wanted.limit - good - failed));
        body["abort_after_failures"] = json!(wanted.abort_after - failed);
        if let Some(cursor) = &total.next {
            body["cursor"] = json!(cursor);
        }
        let answer = match api.post("/bulk", &body).await {
            Ok(answer) => answer,
            Err(error) => {
                bar.finish_and_clear();
                let Some(cursor) = total.next.filter(|_| good + failed > 0) else { bail!(error) };
                return Err(error).with_context(|| {
                    format!("{good} accepted, {failed} failed so far; continue with --cursor {cursor}")
                });
            }
        };
        // Programs get the texts as they came.
        let report = if wanted.at.json { Report::deserialize(&answer).ok() } else { show::read(&answer) };
        let report: Report = report.with_context(|| {
            format!("{good} accepted before another version of the system answered {answer}; continue with its cursor")
        })?;
        let is_standing = report.next == total.next && report.results.is_empty();
        total.good += report.good;
        total.failed += report.failed;
        total.aborted |= report.aborted;
        total.next = report.next;
        bar.set_position((total.good + total.failed) as u64);
        bar.set_message(format!("{} failed", total.failed));
        if !wanted.at.json {
            bar.suspend(|| report.results.iter().try_for_each(line))?;
        }
        total.results.extend(report.results);
        unreadable.extend(report.unreadable.into_iter().map(|one| (one.order_id.clone(), one)));
        // A call that did nothing and made no progress would be repeated forever.
        let is_over = total.next.is_none() || total.aborted || is_standing;
        if is_over || total.results.len() as u64 >= wanted.limit {
            break;
        }
    }
    bar.finish_and_clear();
    total.unreadable = unreadable.into_values().collect();
    let Report { good, failed, aborted, .. } = total;
    if wanted.at.json {
        let mut report = serde_json::to_value(&total).context("writing the report")?;
        report["unreadable"] = json!(total.unreadable);
        crate::say!("{}", serde_json::to_string_pretty(&report).context("printing the report")?);
    } else {
        let end = if aborted { "; stopped after too many failures" } else { "" };
        if wanted.dry_run {
            crate::say!("{good} would be accepted, {failed} would fail{end}; nothing was changed");
        } else {
            crate::say!("{good} accepted, {failed} failed{end}");
        }
        stdout::styled(&show::unreadable(&total.unreadable))?;
        if let Some(cursor) = total.next {
            crate::say!("more: --cursor {cursor}");
        }
    }
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn filter(wanted: &Bulk) -> Result<Value> {
    let mut filter = serde_json::to_value(&wanted.filter).context("writing the filter")?;
    if let Some(agent) = &wanted.agent {
        filter["agent"] = json!(agent);
    }
    Ok(filter)
}

fn line(Answer { order_id, outcome, why, .. }: &Answer) -> Result<()> {
    let line = format!("{order_id}  {}  {}", painted(outcome, 11), why.as_deref().unwrap_or_default());
    stdout::styled(&format!("{}\n", line.trim_end()))
}
