//! Answers of the API as text for people: aligned, with times both as they are and as seen from now, and no control
//! characters, because errors and references come from elsewhere.

use anstyle::{AnsiColor, Style};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use shared::visible::visible;
use std::fmt::Write as _;

/// A cell of a table.
pub struct Cell(String, Style);

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self(text, Style::new())
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

/// The rows below their header, each column as wide as it has to be.
#[must_use]
pub fn table<const N: usize>(header: [&str; N], rows: &[[Cell; N]]) -> String {
    let width =
        |n: usize| rows.iter().map(|row| row[n].0.chars().count()).chain([header[n].len()]).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = String::new();
    let head = header.map(|name| Cell(name.to_owned(), Style::new().bold()));
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (n, Cell(text, style)) in row.iter().enumerate() {
            let pad = if n + 1 == N { 0 } else { widths[n] - text.chars().count() + 2 };
            let _ = write!(line, "{style}{text}{style:#}{:pad$}", "");
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out
}

/// An order's or a step's state in its colour.
#[must_use]
pub fn state(name: String) -> Cell {
    let style = style_of(&name);
    Cell(name, style)
}

fn style_of(state: &str) -> Style {
    match state {
        "Processed" | "applied" | "repeated" | "ok" => AnsiColor::Green.on_default(),
        "Error" | "Failed" | "UndoFailed" | "not_allowed" | "not_found" | "unavailable" | "FAIL" => {
            AnsiColor::Red.on_default()
        }
        "Undoing" | "Undone" | "UndoPending" | "UndoProcessing" | "moved" | "warn" => AnsiColor::Yellow.on_default(),
        _ => Style::new(),
    }
}

/// A state in its colour, at least `width` wide.
#[must_use]
pub fn painted(state: &str, width: usize) -> String {
    let style = style_of(state);
    format!("{style}{state}{style:#}{:1$}", "", width.saturating_sub(state.chars().count()))
}

/// A field as text; nothing if it is absent. Characters that would act on the terminal are shown as their escapes.
#[must_use]
pub fn text(value: &Value, name: &str) -> String {
    match &value[name] {
        Value::Null => String::new(),
        Value::String(text) => visible(text).into_owned(),
        other => visible(&other.to_string()).into_owned(),
    }
}

/// The items of a field.
pub fn items<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

/// The orders that an answer leaves out because their records cannot be read; empty without any.
#[must_use]
pub fn unreadable(answer: &Value) -> String {
    let mut out = String::new();
    for one in items(answer, "unreadable") {
        let _ = writeln!(out, "unreadable: {}  {}", text(one, "order_id"), text(one, "why"));
    }
    out
}

/// A length of time in its largest units: «3 s», «5 min», «2 h 10 min», «4 d».
#[must_use]
pub fn length(time: SignedDuration) -> String {
    let seconds = time.as_secs().abs();
    match (seconds, seconds / 60, seconds / 3600, seconds / 86_400) {
        (0, ..) => format!("{} ms", time.as_millis().abs()),
        (s, 0, ..) => format!("{s} s"),
        (s, min @ 1..10, ..) if s % 60 > 0 => format!("{min} min {} s", s % 60),
        (_, min, 0, _) => format!("{min} min"),
        (_, min, h, 0) if min % 60 > 0 => format!("{h} h {} min", min % 60),
        (_, _, h, 0) => format!("{h} h"),
        (.., d) => format!("{d} d"),
    }
}

/// How far a time is from now: «3 s ago», «in 5 min».
#[must_use]
pub fn from_now(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at) {
        gone if gone.as_millis() >= 0 => format!("{} ago", length(gone)),
        left => format!("in {}", length(left)),
    }
}

/// A field that is a time, to the second: «2026-11-21 09:30:00Z».
#[must_use]
pub fn time(value: &Value, name: &str) -> String {
    value[name].as_str().and_then(|text| text.parse().ok()).map_or_else(|| text(value, name), absolute)
}

fn absolute(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// The same as seen from now; nothing if it is absent.
#[must_use]
pub fn age(value: &Value, name: &str, now: Timestamp) -> String {
    value[name].as_str().and_then(|text| text.parse().ok()).map_or_else(String::new, |at| from_now(at, now))
}

/// Both.
#[must_use]
pub fn when(value: &Value, name: &str, now: Timestamp) -> String {
    match (time(value, name), age(value, name, now)) {
        (time, age) if age.is_empty() => time,
        (time, age) => format!("{time} ({age})"),
    }
}

/// How an order stands.
#[must_use]
pub fn order(order: &Value, now: Timestamp) -> String {
    let mut out =
        format!("{}  {}  {}\n", text(order, "order_id"), text(order, "workflow"), painted(&text(order, "state"), 0));
    for name in ["reason", "reference"] {
        let value = text(order, name);
        if !value.is_empty() {
            let _ = writeln!(out, "  {name:<10} {value}");
        }
    }
    for (label, name) in [("created", "created_at"), ("changed", "updated_at"), ("paused", "paused_at")] {
        let value = when(order, name, now);
        if !value.is_empty() {
            let _ = writeln!(out, "  {label:<10} {value}");
        }
    }
    if let Some(wait) = undo_wait(order, now) {
        let _ = writeln!(out, "  {:<10} {wait}", "undo");
    }
    let width = items(order, "steps").map(|step| text(step, "name").chars().count()).max().unwrap_or_default();
    for step in items(order, "steps") {
        let _ = writeln!(out, "  {:<width$}  {}", text(step, "name"), self::step(step, now));
    }
    out
}

/// Until when an order's undo waits and why, while it does.
#[must_use]
pub fn undo_wait(order: &Value, now: Timestamp) -> Option<String> {
    let until = when(order, "undo_from", now);
    let why = "until then an earlier request may still take effect";
    (!until.is_empty()).then(|| format!("begins {until}: {why}"))
}

/// How a step stands, without its name.
#[must_use]
pub fn step(step: &Value, now: Timestamp) -> String {
    let mut out = format!("{}  attempts {}", painted(&text(step, "state"), 14), text(step, "attempts"));
    for (label, name) in [("complete by", "complete_by"), ("next attempt", "next_attempt_at")] {
        let value = when(step, name, now);
        if !value.is_empty() {
            let _ = write!(out, ", {label} {value}");
        }
    }
    let error = text(step, "last_error");
    if !error.is_empty() {
        let _ = write!(out, ", last error: {error}");
    }
    out
}

/// What happened to an order, each entry with the time since the first one.
#[must_use]
pub fn history(answer: &Value) -> String {
    let at = |entry: &Value| entry["at"].as_str().and_then(|text| text.parse::<Timestamp>().ok());
    let first = items(answer, "history").find_map(at);
    let row = |entry: &Value| {
        let since = first.zip(at(entry)).map(|(first, at)| at.duration_since(first).as_secs_f64());
        let attempt = entry["attempt"].as_u64().map(|n| format!("#{n}")).unwrap_or_default();
        let time = at(entry).map_or_else(|| text(entry, "at"), |at| at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string());
        [
            time.into(),
            since.map(|s| format!("+{s:.1} s")).unwrap_or_default().into(),
            text(entry, "event").into(),
            text(entry, "step").into(),
            attempt.into(),
            text(entry, "detail").into(),
        ]
    };
    let rows: Vec<[Cell; 6]> = items(answer, "history").map(row).collect();
    table(["at", "since", "event", "step", "try", "detail"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_told_as_people_tell_them() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let table = [
            ("2026-11-21T12:00:00Z", "0 ms ago"),
            ("2026-11-21T11:59:59.4Z", "600 ms ago"),
            ("2026-11-21T11:59:01Z", "59 s ago"),
            ("2026-11-21T11:58:55Z", "1 min 5 s ago"),
            ("2026-11-21T11:47:01Z", "12 min ago"),
            ("2026-11-21T12:05:00Z", "in 5 min"),
            ("2026-11-21T09:50:00Z", "2 h 10 min ago"),
            ("2026-11-19T11:00:00Z", "2 d ago"),
        ];
        for (at, words) in table {
            assert_eq!(from_now(at.parse().unwrap(), now), words, "{at}");
        }
        assert_eq!(when(&json!({"at": null}), "at", now), "");
    }

    // Text of remote services and submitters must not move the cursor, or set the title of a terminal.
    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let order = json!({"order_id": "o", "state": "Error", "reason": "a\u{1b}]0;x\u{7}b\nc\u{202e}d", "steps": []});
        let shown = super::order(&order, Timestamp::UNIX_EPOCH);
        let plain = anstream::adapter::strip_str(&shown).to_string();
        assert!(plain.contains(r"a\u001b]0;x\u0007b\nc\u202ed"), "{plain:?}");
        assert!(!plain.contains(|c: char| c != '\n' && shared::visible::is_hidden(c)), "{plain:?}");
    }

    // An undo that waits says until when, and why.
    #[test]
    fn an_undo_that_waits_says_until_when_and_why() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let order = json!({"order_id": "o", "state": "Undoing", "undo_from": "2026-11-21T12:00:31Z", "steps": []});
        let shown = anstream::adapter::strip_str(&super::order(&order, now)).to_string();
        let line =
            "undo       begins 2026-11-21 12:00:31Z (in 31 s): until then an earlier request may still take effect";
        assert!(shown.contains(line), "{shown}");
        let order = json!({"order_id": "o", "state": "Undoing", "undo_from": null, "steps": []});
        assert!(!super::order(&order, now).contains("begins"));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [[Cell::from("a"), "bb".into()], ["äöü".into(), "c".into()]];
        let plain = anstream::adapter::strip_str(&table(["x", "y"], &rows)).to_string();
        assert_eq!(plain, "x    y\na    bb\näöü  c\n");
    }
}
