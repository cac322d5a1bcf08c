//! `watch` and `submit --wait`: follow an order until it ends.

use crate::client::{Api, Error};
use crate::show::{self, name_width, painted, step, undo_wait};
use crate::stdout;
use anyhow::{Result, bail};
use indicatif::ProgressBar;
use jiff::Timestamp;
use serde::Deserialize;
use shared::task::ProcessState;
use shared::view::Status;
use std::collections::HashMap;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Exit codes of an order that did not end Processed.
const UNDONE: u8 = 3;
const IN_ERROR: u8 = 4;
const STILL_OPEN: u8 = 5;
/// The API's longest long poll, in seconds.
const WAIT_S: u64 = 20;
/// Pause before the next request to a system that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

/// Prints a line for each change, or with `json` the whole order on one line, until the order ends or `timeout` is
/// over.
///
/// # Errors
/// No answer or a refusal at the beginning; later errors that may pass are tolerated until the timeout.
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
                let state = ProcessState::deserialize(&order["state"]);
                bar.set_message(format!("{id} {}", state.as_ref().map_or("", |state| state.name())));
                bar.suspend(|| match show::read(&order).filter(|_| !json) {
                    Some(known) => tell(&known, &mut seen),
                    None => {
                        crate::say!("{order}");
                        Ok(())
                    }
                })?;
                match state {
                    Ok(ProcessState::Processed) => return Ok(ExitCode::SUCCESS),
                    Ok(ProcessState::Undone) => return Ok(UNDONE.into()),
                    // A resubmission that waits for a migration takes it out of Error.
                    Ok(ProcessState::Error) if order["migrating_to"].is_null() => return Ok(IN_ERROR.into()),
                    Ok(
                        ProcessState::Pending | ProcessState::Processing | ProcessState::Undoing | ProcessState::Error,
                    )
                    | Err(_) => {}
                }
            }
            Ok(None) => {}
            Err(error) if known.is_some() && error.is_passing() && Instant::now() < until => {
                bar.set_message(format!("{id}: {error}"));
                sleep(pause(&error).min(until.saturating_duration_since(Instant::now()))).await;
                // One more request after the timeout: the order may have ended in the meantime.
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
        Error::NoAnswer { .. } | Error::Token { .. } | Error::Aws { .. } | Error::Name(_) | Error::File(_) => AGAIN,
    }
}

/// When something happened: the time of day, with the date before it if that was another day.
fn clock(at: Timestamp, now: Timestamp) -> String {
    let [day, today] = [at, now].map(|time| time.strftime("%Y-%m-%d").to_string());
    let time = at.strftime("%H:%M:%S");
    if day == today { time.to_string() } else { format!("{day} {time}") }
}

/// Lines for what differs from `seen`, each with the time at which it happened.
fn tell(order: &Status, seen: &mut HashMap<String, String>) -> Result<()> {
    let now = Timestamp::now();
    let mut is_new = |name: &str, line: String| seen.insert(name.to_owned(), line.clone()).as_ref() != Some(&line);
    let width = name_width(order).max(5);
    for one in &order.steps {
        // A step that has not begun is not news. The times in the line change by themselves, so they are not compared.
        let key = format!("{} {} {:?} {:?}", one.state, one.attempts, one.last_error, one.next_attempt_at);
        if key.starts_with("Pending 0 ") || !is_new(&format!("step {}", one.name), key) {
            continue;
        }
        let at = clock(one.changed_at.unwrap_or(now), now);
        stdout::styled(&format!("{at}  {:<width$}  {}\n", one.name, step(one, now)))?;
    }
    let at = clock(order.updated_at, now);
    if is_new("undo", format!("{:?}", order.undo_from))
        && let Some(wait) = undo_wait(order, now)
    {
        stdout::styled(&format!("{at}  {:<width$}  {wait}\n", "undo"))?;
    }
    let reason = order.reason.as_deref().unwrap_or_default();
    let paused = if order.paused_at.is_some() { " (paused)" } else { "" };
    // An order in progress alternates between the two; its steps tell more.
    let kind = if order.state == ProcessState::Pending { ProcessState::Processing } else { order.state };
    if is_new("order", format!("{kind:?}{paused}{reason}")) {
        let line = format!("{at}  {:<width$}  {}{paused}  {reason}", "order", painted(order.state.name(), 0));
        stdout::styled(&format!("{}\n", line.trim_end()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    // A person who begins to watch late sees when things happened, not when they were noticed.
    #[test]
    fn a_line_has_the_time_of_what_happened() {
        let now = "2026-11-21T12:00:00Z".parse().unwrap();
        let at = |text: &str| clock(text.parse().unwrap(), now);
        assert_eq!(at("2026-11-21T09:30:07.500Z"), "09:30:07");
        assert_eq!(at("2026-11-20T23:59:59Z"), "2026-11-20 23:59:59");
    }
}
