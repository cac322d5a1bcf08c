//! `watch`, and `submit --wait`: an order as it goes, until it ends.

use super::show::{items, painted, step, text, undo_wait};
use crate::client::{Api, Error};
use crate::stdout;
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde_json::Value;
use std::collections::HashMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Exit codes of an order that did not end Processed.
const UNDONE: u8 = 3;
const IN_ERROR: u8 = 4;
const STILL_OPEN: u8 = 5;
/// Longest wait that the API grants, in seconds.
const WAIT_S: u64 = 20;
/// How soon a system that does not answer is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// Prints a line for each change, or with `json` the order as one line each time, until it ends or `timeout` is over.
///
/// # Errors
/// No answer or a refusal at the beginning; later ones that pass are borne until the time is over.
pub async fn run(api: &Api, id: &str, timeout: Duration, json: bool) -> Result<ExitCode> {
    let until = Instant::now() + timeout;
    let (mut known, mut seen): (Option<String>, HashMap<String, String>) = Default::default();
    // On standard error, and on terminals only.
    let bar = ProgressBar::new_spinner();
    bar.enable_steady_tick(Duration::from_millis(200));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let wait_s = if known.is_some() { left.as_secs().clamp(1, WAIT_S) } else { 0 };
        match api.order(id, known.as_deref(), wait_s).await {
            Ok(Some((order, etag))) => {
                known = Some(etag);
                let state = text(&order, "state");
                bar.set_message(format!("{id} {state}"));
                bar.suspend(|| if json { print(&order) } else { tell(&order, &mut seen) })?;
                match state.as_str() {
                    "Processed" => return Ok(ExitCode::SUCCESS),
                    "Undone" => return Ok(UNDONE.into()),
                    "Error" => return Ok(IN_ERROR.into()),
                    _ => {}
                }
            }
            Ok(None) => {}
            Err(error) if known.is_some() && error.is_passing() && Instant::now() < until => {
                bar.set_message(format!("{id}: {error}"));
                sleep(pause(&error).min(until.saturating_duration_since(Instant::now()))).await;
                // Asked once more when the time is over: whether the order is open, nobody knows.
                continue;
            }
            Err(error) => bail!(error),
        }
        if Instant::now() >= until {
            bar.finish_and_clear();
            let _ = writeln!(
                std::io::stderr(),
                "stepwarden: {id} is still open after {} s; it continues in the background",
                timeout.as_secs()
            );
            return Ok(STILL_OPEN.into());
        }
    }
}

fn pause(error: &Error) -> Duration {
    match error {
        Error::Refused(refusal) => refusal.body["retry_after_s"].as_u64().map_or(AGAIN, Duration::from_secs),
        Error::NoAnswer { .. } | Error::Token { .. } | Error::Name(_) | Error::File(_) => AGAIN,
    }
}

fn print(order: &Value) -> Result<()> {
    crate::say!("{order}");
    Ok(())
}

/// When something happened: the time of day, with the date before it if that was another day.
fn clock(value: &Value, name: &str, now: Timestamp) -> String {
    let at: Timestamp = value[name].as_str().and_then(|text| text.parse().ok()).unwrap_or(now);
    let [day, today] = [at, now].map(|time| time.strftime("%Y-%m-%d").to_string());
    let time = at.strftime("%H:%M:%S");
    if day == today { time.to_string() } else { format!("{day} {time}") }
}

/// Lines for what differs from `seen`, each with the time at which it happened.
fn tell(order: &Value, seen: &mut HashMap<String, String>) -> Result<()> {
    let now = Timestamp::now();
    let mut is_new = |name: String, line: String| {
        let before = seen.insert(name, line.clone());
        (before.as_ref() != Some(&line)).then_some(line)
    };
    let width = items(order, "steps").map(|s| text(s, "name").chars().count()).max().unwrap_or_default().max(5);
    for one in items(order, "steps") {
        let name = text(one, "name");
        // What nobody has begun is no news. The times in the line move on by themselves, so they are not compared.
        let key: String = ["state", "attempts", "last_error", "next_attempt_at"].map(|n| text(one, n)).join(" ");
        if key.starts_with("Pending 0 ") || is_new(format!("step {name}"), key).is_none() {
            continue;
        }
        let at = clock(one, "changed_at", now);
        stdout::styled(&format!("{at}  {name:<width$}  {}\n", step(one, now)))?;
    }
    let state = text(order, "state");
    let reason = text(order, "reason");
    let paused = if order["paused_at"].is_string() { " (paused)" } else { "" };
    // An order that goes on is both by turns; its steps tell.
    let kind = if state == "Pending" { "Processing" } else { &state };
    let wait = text(order, "undo_from");
    if is_new("undo".into(), wait).is_some()
        && let Some(wait) = undo_wait(order, now)
    {
        let at = clock(order, "updated_at", now);
        stdout::styled(&format!("{at}  {:<width$}  {wait}\n", "undo"))?;
    }
    if is_new("order".into(), format!("{kind}{paused}{reason}")).is_some() {
        let at = clock(order, "updated_at", now);
        let line = format!("{at}  {:<width$}  {}{paused}  {reason}", "order", painted(&state, 0));
        stdout::styled(&format!("{}\n", line.trim_end()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    // Whoever begins to watch late sees when things happened, not when they looked.
    #[test]
    fn a_line_has_the_time_of_what_happened() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let at = |text: Option<&str>| clock(&json!({"at": text}), "at", now);
        assert_eq!(at(Some("2026-11-21T09:30:07.500Z")), "09:30:07");
        assert_eq!(at(Some("2026-11-20T23:59:59Z")), "2026-11-20 23:59:59");
        assert_eq!(at(None), "12:00:00", "an older system does not say");
    }
}
