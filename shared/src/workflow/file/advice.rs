//! What to write instead of what the TOML parser refuses. Its own words name Rust types and no key.

use crate::time::SignedDuration;
use jiff::fmt::friendly::{Direction, SpanPrinter};
use toml::de::Error;

/// Keys of the whole file that authors look for below a step.
const OF_FILE: [&str; 6] = ["config", "deadline", "default", "retention", "strict_notices", "tombstones"];

const STEPS: &str = "the steps are a list; write [[step]] with two brackets, once for each step";

/// What is wrong in `text`, and what to write instead.
pub(super) fn on(error: &Error, text: &str) -> String {
    let at = error.span().unwrap_or(0..0);
    let (written, before) = (text.get(at.clone()).unwrap_or_default(), text.get(..at.start).unwrap_or_default());
    let message = error.message().replace('\n', "; ");
    if let Some(words) = of_key(&message, written, text, at.start) {
        return words;
    }
    // The first part quotes the file, and so may hold any words.
    let found = message.strip_prefix("invalid type").or(message.strip_prefix("invalid value"));
    let expected = found.and_then(|found| Some(found.rsplit_once(", expected ")?.1));
    if expected.unwrap_or(&message).contains("duration") {
        return of_duration(written);
    }
    let Some(expected) = expected else { return message };
    // A table is as long as its lines.
    let written = if written.is_empty() || written.contains('\n') { "this" } else { written };
    let key = key_before(before);
    let is_text = written.starts_with(['"', '\'']);
    match expected {
        "a sequence" if is_text => format!("{written} must be a list; write [{written}]"),
        "a sequence" if is_step_header(text, at.start) => STEPS.to_owned(),
        "a sequence" => format!("{}{written} must be a list, in brackets", named(key)),
        "a string" if written != "this" && !written.contains(['"', '\'', '[', '{']) => {
            format!("{written} must be a string; write \"{written}\"")
        }
        "a string" => format!("{}{written} must be a string, in quotes", named(key)),
        "a boolean" => format!("{}{written} must be true or false, without quotes", named(key)),
        "u16" => whole(written, key, u16::MAX.into()),
        "u32" => whole(written, key, u32::MAX),
        _ if expected == "a map" || expected.starts_with("struct ") => {
            let example =
                key.and_then(example).map(|table| format!("; for example {} = {table}", key.unwrap_or_default()));
            format!("{}{written} must be a table{}", named(key), example.unwrap_or_default())
        }
        _ => message,
    }
}

fn whole(written: &str, key: Option<&str>, most: u32) -> String {
    format!("{}{written} must be a whole number from 0 to {most}, without quotes", named(key))
}

/// A fault in the keys of a table, or in one of a few words.
fn of_key(message: &str, written: &str, text: &str, at: usize) -> Option<String> {
    let name = || message.split('`').nth(1).unwrap_or_default();
    if message == "duplicate key" && is_step_header(text, at) {
        return Some(STEPS.to_owned());
    }
    if message == "duplicate key" {
        return Some(format!("`{}` is given twice; keep one of them", written.trim()));
    }
    if message.starts_with("missing field") {
        return Some(format!("`{}` is missing; add it", name()));
    }
    if let Some((_, known)) = message.strip_prefix("unknown variant ").and_then(|words| words.split_once(", expected "))
    {
        return Some(format!("`{}` cannot be used here; write {known}", name()));
    }
    let (_, known) = message.strip_prefix("unknown field ")?.split_once(", expected ")?;
    let is_below = text.get(..at)?.lines().any(|line| line.trim_start().starts_with("[[step"));
    if OF_FILE.contains(&name()) && is_below {
        return Some(format!("`{}` belongs to the workflow; move it above the first [[step]]", name()));
    }
    Some(format!("`{}` is not a key here; write {known}", name()))
}

/// Whether the line at `at` begins a step with one bracket, or with two after such a line.
fn is_step_header(text: &str, at: usize) -> bool {
    let begin = text.get(..at).and_then(|before| before.rfind('\n')).map_or(0, |end| end + 1);
    let line = text.get(begin..).unwrap_or_default().trim_start();
    ["[step]", "[[step]]"].iter().any(|header| line.starts_with(header))
}

/// The key whose value begins where `before` ends.
fn key_before(before: &str) -> Option<&str> {
    let line = &before[before.rfind(['\n', '{', ',']).map_or(0, |at| at + 1)..];
    Some(line.trim_end().strip_suffix('=')?.trim())
}

fn named(key: Option<&str>) -> String {
    key.map_or_else(String::new, |key| format!("`{key}`: "))
}

/// A table as it may be written for `key`.
fn example(key: &str) -> Option<&'static str> {
    Some(match key {
        "accept" => r#"{ within = "2h" }"#,
        "calls" => r#"{ attempts = 5, base = "100ms", cap = "5s" }"#,
        "config" | "default" => return None,
        "late" => r#"{ extend = "30s", times = 2 }"#,
        "long" => r#"{ every = "1h", times = 5 }"#,
        "poll" => r#"{ every = "30s", for = "1h", done = "answer.status == 'done'" }"#,
        "remind" => r#"{ every = "24h", agent = "NAME" }"#,
        "retry" => r#"{ max = 3, backoff = ["1s", "10s"] }"#,
        "undo" => r#"{ agent = "NAME" }"#,
        _ => return None,
    })
}

/// `duration` as its author may have written it: `-5s`, not `5s ago`.
pub(super) fn time(duration: SignedDuration) -> String {
    SpanPrinter::new().direction(Direction::Sign).duration_to_string(&duration)
}

fn of_duration(written: &str) -> String {
    let text = written.trim_matches(['"', '\'']);
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let hours = match unit.trim() {
        "d" | "day" | "days" => 24,
        "w" | "wk" | "wks" | "week" | "weeks" => 7 * 24,
        _ => 0,
    };
    match number.parse::<u64>().ok().filter(|n| *n <= 1_000_000) {
        Some(n) if unit.is_empty() => {
            format!("{written} is a duration without a unit; write for example \"{n}s\", \"{n}m\" or \"{n}h\"")
        }
        Some(n) if hours > 0 => {
            format!("{written} is a duration in days or weeks, whose length varies; write \"{}h\"", n * hours)
        }
        _ => format!("{written} is not a duration; write one with a unit, for example \"30s\", \"5m\" or \"1h\""),
    }
}
