//! `bulk`: one act on many orders. The API acts for at most 20 s a call, so this calls it until all is done.

use super::api::{api, who};
use super::args::Bulk;
use super::show::{self, items, painted, text};
use crate::stdout;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::process::ExitCode;

/// Orders of one call in a dry run: the API's most.
const MOST: u64 = 1000;

/// Acts, and prints a line for each order.
///
/// # Errors
/// No answer, or a refusal: with the cursor to go on from, if something was done before.
pub async fn run(wanted: Bulk) -> Result<ExitCode> {
    let api = api(&wanted.at)?;
    let body = json!({
        "action": wanted.action, "filter": filter(&wanted)?, "by": who(wanted.by.clone()), "reason": wanted.reason,
        "input": wanted.input, "output": wanted.output, "dry_run": wanted.dry_run, "rate_per_s": wanted.rate,
    });
    // Some two seconds' worth a call, so that a person sees it move.
    let chunk = if wanted.dry_run { MOST } else { wanted.rate * 2 };
    // On standard error, and on terminals only.
    let style = ProgressStyle::with_template("{bar:40} {pos} of at most {len}  {msg}").expect("a valid template");
    let bar = ProgressBar::new(wanted.limit).with_style(style);
    let (mut good, mut failed, mut aborted) = (0, 0, false);
    let mut results: Vec<Value> = Vec::new();
    // By id: a call that ends within a page names those of that page, and so does the next one.
    let mut unreadable: BTreeMap<String, Value> = BTreeMap::new();
    let mut cursor = wanted.cursor.clone();
    loop {
        let mut body = body.clone();
        body["limit"] = json!(chunk.min(wanted.limit - good - failed));
        body["abort_after_failures"] = json!(wanted.abort_after - failed);
        body["cursor"] = json!(cursor);
        body.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        let report = match api.post("/bulk", &body).await {
            Ok(report) => report,
            Err(error) => {
                bar.finish_and_clear();
                let Some(cursor) = cursor.filter(|_| good + failed > 0) else { bail!(error) };
                return Err(error).with_context(|| {
                    format!("{good} accepted, {failed} failed so far; continue with --cursor {cursor}")
                });
            }
        };
        good += report["good"].as_u64().unwrap_or_default();
        failed += report["failed"].as_u64().unwrap_or_default();
        aborted |= report["aborted"] == true;
        bar.set_position(good + failed);
        bar.set_message(format!("{failed} failed"));
        if !wanted.at.json {
            bar.suspend(|| items(&report, "results").try_for_each(line))?;
        }
        results.extend(items(&report, "results").cloned());
        unreadable.extend(items(&report, "unreadable").map(|one| (text(one, "order_id"), one.clone())));
        let next = report["next"].as_str().map(str::to_owned);
        // A call that did nothing and came no further would do so for ever.
        let stands = next == cursor && items(&report, "results").next().is_none();
        cursor = next;
        if cursor.is_none() || aborted || stands || good + failed >= wanted.limit {
            break;
        }
    }
    bar.finish_and_clear();
    let unreadable: Vec<Value> = unreadable.into_values().collect();
    if wanted.at.json {
        let mut report = json!({
            "dry_run": wanted.dry_run, "good": good, "failed": failed, "aborted": aborted, "results": results,
            "unreadable": unreadable,
        });
        if let Some(cursor) = cursor {
            report["next"] = json!(cursor);
        }
        crate::say!("{}", serde_json::to_string_pretty(&report).context("printing the report")?);
    } else {
        let end = if aborted { "; stopped after too many failures" } else { "" };
        if wanted.dry_run {
            crate::say!("{good} would be accepted, {failed} would fail{end}; nothing was changed");
        } else {
            crate::say!("{good} accepted, {failed} failed{end}");
        }
        stdout::styled(&show::unreadable(&json!({ "unreadable": unreadable })))?;
        if let Some(cursor) = cursor {
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

fn line(result: &Value) -> Result<()> {
    let outcome = painted(&text(result, "outcome"), 11);
    let line = format!("{}  {outcome}  {}", text(result, "order_id"), text(result, "why"));
    stdout::styled(&format!("{}\n", line.trim_end()))
}
