//! `stepwarden doctor`: what is wrong, and what to do about it. It only reads.

mod aws;
mod http;

use crate::args::Doctor;
use crate::local::code;
use crate::show::painted;
use crate::stdout;
use agent::secrets::Secrets;
use anyhow::{Context, Result};
use aws::{Place, at};
use edge::workflows::{Workflows, can_start};
use jiff::{SignedDuration, Timestamp, fmt::rfc2822::DateTimeParser};
use reqwest::header::{DATE, HeaderMap};
use serde::Serialize;
use serde_json::json;
use shared::workflow::USUAL_SKEW;
use shared::workflow::file::Settings;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use stepwarden_aws::config::apart;
use stepwarden_aws::{Clients, Config, ReplyQueues};
use stepwarden_guard::marks;
use stepwarden_local::data_folder::{TOKEN_FILE, is_here};
use stepwarden_local::system::{self, read_workflows};

/// A clock may be off by this much: the `Date` of an answer is in whole seconds, and the answer took time to arrive.
const CLOCK: SignedDuration = SignedDuration::from_secs(2);
/// AWS refuses signatures that are five minutes old.
const CLOCK_WRONG: SignedDuration = SignedDuration::from_secs(60);

const MIB: u64 = 1024 * 1024;
/// With less free space than this, in bytes, the next write of a database may fail.
const FULL: u64 = 8 * MIB;
const NEARLY_FULL: u64 = 256 * MIB;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Ok,
    Warn,
    Fail,
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
struct Check {
    check: String,
    status: Verdict,
    detail: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<String>,
}

fn ok(check: &str, detail: impl Into<String>) -> Check {
    Check { check: check.into(), status: Verdict::Ok, detail: detail.into(), hint: None }
}

fn warn(check: &str, detail: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { check: check.into(), status: Verdict::Warn, detail: detail.into(), hint: Some(hint.into()) }
}

fn fail(check: &str, detail: impl Into<String>, hint: impl Into<String>) -> Check {
    Check { status: Verdict::Fail, ..warn(check, detail, hint) }
}

/// Runs all checks and prints a line for each; exit code 1 if one fails.
///
/// # Errors
/// Only those of printing: a failed check is a line, not an error.
pub async fn run(options: Doctor, folder: Option<&Path>) -> Result<ExitCode> {
    let mut all: Vec<Check> = Vec::new();
    let json = options.at.json;
    let mut add = |checks: Vec<Check>| -> Result<()> {
        if !json {
            checks.iter().try_for_each(print)?;
        }
        all.extend(checks);
        Ok(())
    };
    let emulator = std::env::var("AWS_ENDPOINT_URL").ok().filter(|url| !url.is_empty() && !options.aws);
    add(files(&options, folder, emulator.is_some()).await)?;
    let api = options.at.api_beside(&options.data).await?;
    let url = api.url.clone();
    if options.aws && options.at.url.is_none() && options.at.stack.is_none() {
        let hint = "name the stack with --stack";
        add(vec![warn("API", "not checked: its address is unknown", hint)])?;
    } else {
        add(http::checks(&api).await)?;
    }
    let setup = options.setup;
    let reply_queues = match setup.reply_queues() {
        Ok(reply_queues) => reply_queues,
        Err(error) => {
            add(vec![fail("settings", error.to_string(), "correct --reply-queue")])?;
            ReplyQueues::default()
        }
    };
    let local = || system::local_config(reply_queues, setup.pools, setup.external_agents, 1);
    let place = if options.aws {
        match Config::from_env() {
            Ok(config) => Some(Place { clients: Clients::from_env().await, config, url: None, is_guess: false }),
            Err(error) => {
                let hint = "set the variables that template.yaml sets for the functions; docs/deploy.md lists them";
                add(vec![fail("settings", error.to_string(), hint)])?;
                None
            }
        }
    } else {
        let config = local();
        if let Err(why) = apart(config.pools.clone(), &config.agents) {
            add(vec![fail("settings", why, "correct --pools or AGENT_POOLS")])?;
        }
        match (emulator, after(&url)) {
            (Some(url), _) => {
                Some(Place { clients: Clients::from_env().await, config, url: Some(url), is_guess: false })
            }
            (None, Some(url)) => {
                Some(Place { clients: Clients::unsigned(&url), config, url: Some(url), is_guess: true })
            }
            (None, None) => {
                let hint = "set AWS_ENDPOINT_URL for an emulator, or check a deployment with --aws";
                add(vec![warn("endpoint", "tables and queues were not checked: the API is on another machine", hint)])?;
                None
            }
        }
    };
    if let Some(place) = place {
        add(at(&place).await)?;
    }
    let count = |status| all.iter().filter(|check| check.status == status).count();
    let (warned, failed) = (count(Verdict::Warn), count(Verdict::Fail));
    if json {
        let report = json!({"ok": failed == 0, "warnings": warned, "failures": failed, "checks": all});
        crate::say!("{}", serde_json::to_string_pretty(&report).context("printing the report")?);
    } else {
        crate::say!("{} checks: {warned} warnings, {failed} failures", all.len());
    }
    Ok(code(failed == 0))
}

fn print(Check { check, status, detail, hint }: &Check) -> Result<()> {
    let status = match status {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let hint = hint.as_ref().map(|hint| format!("\n        do: {hint}")).unwrap_or_default();
    stdout::styled(&format!("{}  {check}: {detail}{hint}\n", painted(status, 4)))
}

/// Where `up` serves its embedded endpoints: at the port after the API's.
fn after(url: &str) -> Option<String> {
    let mut url = is_here(url).then(|| reqwest::Url::parse(url).ok()).flatten()?;
    let port = url.port_or_known_default()?.checked_add(1)?;
    url.set_port(Some(port)).ok()?;
    Some(url.as_str().trim_end_matches('/').to_owned())
}

/// Checks of this machine's files.
async fn files(options: &Doctor, folder: Option<&Path>, has_emulator: bool) -> Vec<Check> {
    let mut checks = vec![ok("program", format!("stepwarden {}", env!("CARGO_PKG_VERSION")))];
    match read_workflows(folder, &options.setup.external_agents, &Settings::unknown()) {
        Ok(workflows) => {
            let names: Vec<&str> = workflows.keys().map(String::as_str).collect();
            checks.push(ok("workflows", names.join(", ")));
            checks.extend(timeouts(&workflows, options.aws));
            let secrets = Secrets::Here { folder: std::env::var_os("STEPWARDEN_SECRETS").map(PathBuf::from) };
            if let (false, Some(missing)) = (options.aws, secrets.missing(workflows.values()).await) {
                checks.push(fail("secrets", missing, "`stepwarden up` will not start without it"));
            }
        }
        Err(error) => {
            checks.push(fail("workflows", format!("{error:#}"), "correct the file; docs/workflows.md lists every key"));
        }
    }
    if !options.aws && !has_emulator {
        checks.push(data(&options.data));
    }
    checks
}

/// Timeouts so short that an agent whose clock differs might never start. A deployment's settings say how far its clocks may
/// differ; elsewhere the usual skew is assumed.
fn timeouts(workflows: &Workflows, is_aws: bool) -> Option<Check> {
    let known = Config::from_env().ok().filter(|_| is_aws).map(|config| config.clock_skew);
    let error = can_start(workflows, known.unwrap_or(USUAL_SKEW)).err()?;
    Some(match known {
        Some(_) => fail("timeouts", error.to_string(), "raise it, or lower ClockSkewMs if the clocks allow that"),
        None => warn("timeouts", format!("on AWS: {error}"), "raise it before you deploy, or lower ClockSkewMs there"),
    })
}

/// The data directory of a local system.
fn data(folder: &Path) -> Check {
    let name = folder.display();
    let unusable = |what: &Path, why: &str| {
        let hint = "correct its owner and mode, restore it from a backup, or choose another one with --data";
        fail("data", format!("{} {why}", what.display()), hint)
    };
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return ok("data", format!("{name} does not exist yet; `stepwarden up` creates it"));
        }
        Err(error) => return unusable(folder, &format!("cannot be read: {error}")),
    };
    let mut found = 0;
    // Files of a running system change while they are read; they were checked when the system started.
    let is_in_use = std::fs::File::open(folder.join("lock")).is_ok_and(|lock| lock.try_lock().is_err());
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.extension().is_some_and(|end| end == "db") {
            found += 1;
            if let Err(why) = database(&path) {
                return unusable(&path, &why);
            }
        }
    }
    let mut damage: Vec<_> = match is_in_use {
        true => Vec::new(),
        false => ["queues.db", "tables.db"].iter().filter_map(|name| damage(&folder.join(name)).err()).collect(),
    };
    if let (false, Err(why)) = (is_in_use, stepwarden_remotes::examine(folder)) {
        damage.push(format!("{} is damaged: {why}", folder.join(stepwarden_remotes::FILE_NAME).display()));
    }
    if !damage.is_empty() {
        let hint = "restore it, with the files beside it, from a backup; or continue with what is left: stepwarden up --accept-loss";
        return fail("data", damage.join("; "), hint);
    }
    if let Some(check) = space(folder) {
        return check;
    }
    let token = folder.join(TOKEN_FILE);
    if std::fs::metadata(&token).is_ok_and(|file| file.permissions().mode() & 0o077 != 0) {
        let hint = format!("chmod 600 {}; or delete the file to get a new token at the next start", token.display());
        return warn("data", format!("others on this machine may read {}", token.display()), hint);
    }
    ok("data", format!("{name} with {found} databases"))
}

/// Whether the disk is full, or nearly so.
fn space(folder: &Path) -> Option<Check> {
    let disk = rustix::fs::statvfs(folder).ok()?;
    little(folder, disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn little(folder: &Path, free: u64) -> Option<Check> {
    let what = format!("the disk of {} has {} MiB left", folder.display(), free / MIB);
    let hint = "free disk space; nothing that was accepted is lost";
    match free {
        ..FULL => Some(fail("data", format!("{what}, so no order can be accepted or continued"), hint)),
        FULL..NEARLY_FULL => Some(warn("data", what, hint)),
        NEARLY_FULL.. => None,
    }
}

/// Looks for damage in a database that is not in use. SQLite gets a copy, because it would merge the log into the file.
fn damage(path: &Path) -> Result<(), String> {
    let damaged = |why: marks::Unsound| format!("{} is damaged: {why}", path.display());
    marks::examine(path).map_err(damaged)?;
    if path.metadata().map_or(0, |found| found.len()) > marks::READ_MAX_BYTES {
        return Ok(());
    }
    let looked = || -> std::io::Result<Result<(), marks::Unsound>> {
        let folder = tempfile::tempdir()?;
        let copy = folder.path().join("copy.db");
        for end in ["", "-wal"] {
            let mut from = path.as_os_str().to_owned();
            from.push(end);
            match std::fs::copy(from, folder.path().join(format!("copy.db{end}"))) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(if copy.metadata().is_ok_and(|copy| copy.len() > 0) { marks::quick_check(&copy) } else { Ok(()) })
    };
    match looked() {
        Ok(verdict) => verdict.map_err(damaged),
        Err(error) => Err(format!("{} cannot be copied for inspection: {error}", path.display())),
    }
}

/// Whether a file can be written, and begins as SQLite's files do.
fn database(path: &Path) -> Result<(), String> {
    const BEGIN: &[u8] = b"SQLite format 3\0";
    // Opening a file for writing does not change it.
    let open = std::fs::OpenOptions::new().read(true).append(true).open(path);
    let mut begin = Vec::new();
    open.and_then(|file| file.take(BEGIN.len() as u64).read_to_end(&mut begin))
        .map_err(|error| format!("cannot be used: {error}"))?;
    if begin.is_empty() || begin == BEGIN { Ok(()) } else { Err("is damaged: it is not an SQLite database".into()) }
}

/// Compares the clock of the sender of `headers` with this machine's; `None` without a `Date`.
fn clock(of: &str, headers: &HeaderMap, now: Timestamp) -> Option<Check> {
    let date = headers.get(DATE)?.to_str().ok()?;
    let theirs = DateTimeParser::new().parse_timestamp(date).ok()?;
    let apart = theirs.duration_since(now);
    let detail = format!("differs by {} s from {of}", apart.as_secs());
    let hint = "synchronise the clocks with NTP: deadlines and signatures are compared across machines";
    Some(match apart.abs() {
        apart if apart <= CLOCK => ok("clock", format!("matches {of}")),
        apart if apart <= CLOCK_WRONG => warn("clock", detail, hint),
        _ => fail("clock", detail, hint),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_off_is_told() {
        let headers = [(DATE, "Sat, 21 Nov 2026 12:00:00 GMT".parse().unwrap())].into_iter().collect();
        let table = [
            ("2026-11-21T12:00:00.9Z", Verdict::Ok),
            ("2026-11-21T11:59:58Z", Verdict::Ok),
            ("2026-11-21T12:00:03Z", Verdict::Warn),
            ("2026-11-21T11:00:00Z", Verdict::Fail),
        ];
        for (now, verdict) in table {
            assert_eq!(clock("x", &headers, now.parse().unwrap()).unwrap().status, verdict, "{now}");
        }
        assert!(clock("x", &HeaderMap::new(), Timestamp::UNIX_EPOCH).is_none());
    }

    #[test]
    fn a_disk_without_space_is_told() {
        let told = |free| little(Path::new("data"), free).map(|check| (check.status, check.detail));
        assert_eq!(told(NEARLY_FULL), None);
        assert_eq!(told(NEARLY_FULL - 1), Some((Verdict::Warn, "the disk of data has 255 MiB left".into())));
        let full = "the disk of data has 0 MiB left, so no order can be accepted or continued";
        assert_eq!(told(4096), Some((Verdict::Fail, full.into())));
    }

    #[test]
    fn the_endpoints_are_at_the_port_after_the_api() {
        assert_eq!(after("http://127.0.0.1:8080/").as_deref(), Some("http://127.0.0.1:8081"));
        assert_eq!(after("https://api.example"), None);
        assert_eq!(after("http://localhost:65535"), None);
    }
}
