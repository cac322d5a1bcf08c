//! Formats answers of the API for people: aligned, with times both absolute and relative to now. Control characters are
//! escaped, because errors and references are foreign text.

use anstyle::{AnsiColor, Style};
use jiff::{SignedDuration, Timestamp};
use operator::list::Unreadable;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::message::HistoryEntry;
use shared::view::{ItemsStatus, ProgressStatus, Status, StepStatus};
use shared::visible::visible;
use std::fmt::{Display, Write as _};

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

/// The rows below their header, each column as wide as its widest cell.
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

/// The same for a page of a list: `none` if it has no rows, and `more` between it and how to see the next page.
pub fn page<const N: usize>(
    none: &str,
    header: [&str; N],
    rows: &[[Cell; N]],
    more: &str,
    next: Option<impl Display>,
) -> String {
    let mut out = match (rows, &next) {
        ([], None) => format!("{none}\n"),
        // A filter may fit no order of a page.
        ([], Some(_)) => "none on this page\n".to_owned(),
        _ => table(header, rows),
    };
    out += more;
    if let Some(cursor) = next {
        let _ = writeln!(out, "more: --cursor {cursor}");
    }
    out
}

/// An order's or a step's state in its colour.
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
pub fn painted(state: &str, width: usize) -> String {
    let style = style_of(state);
    format!("{style}{state}{style:#}{:1$}", "", width.saturating_sub(state.chars().count()))
}

/// `answer` as the type that the API sends, with each hidden character escaped, so that no foreign text controls the
/// terminal. `None` if another version of the system answers something else.
pub fn read<T: DeserializeOwned>(answer: &Value) -> Option<T> {
    T::deserialize(visible_texts(answer)).ok()
}

fn visible_texts(value: &Value) -> Value {
    match value {
        Value::String(text) => visible(text).into(),
        Value::Array(items) => items.iter().map(visible_texts).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (visible(name).into_owned(), visible_texts(value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

/// A line for each order that an answer leaves out because its record cannot be read.
pub fn unreadable(all: &[Unreadable]) -> String {
    all.iter().map(|one| format!("unreadable: {}  {}\n", one.order_id, one.why)).collect()
}

/// A length of time in its largest units: «3 s», «5 min», «2 h 10 min», «4 d».
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

/// A time relative to now: «3 s ago», «in 5 min».
pub fn from_now(at: Timestamp, now: Timestamp) -> String {
    match now.duration_since(at) {
        gone if gone.as_millis() >= 0 => format!("{} ago", length(gone)),
        left => format!("in {}", length(left)),
    }
}

/// A time to the second: «2026-11-21 09:30:00Z».
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%SZ").to_string()
}

/// A time, absolute and relative to now.
pub fn when(at: Timestamp, now: Timestamp) -> String {
    format!("{} ({})", time(at), from_now(at, now))
}

/// The state of an order and of its steps.
pub fn order(order: &Status, now: Timestamp) -> String {
    let mut out = format!("{}  {}  {}\n", order.order_id, order.workflow, painted(order.state.name(), 0));
    let lines = [
        (
            "part of",
            order.parent.as_ref().map(|parent| {
                let item = parent.item.map_or_else(String::new, |item| format!(", item {item}"));
                format!("{}, step {}{item}", parent.order_id, parent.step)
            }),
        ),
        ("reason", order.reason.clone()),
        ("reference", order.reference.clone()),
        ("labels", Some(labels(&order.labels))),
        ("created", Some(when(order.created_at, now))),
        ("changed", Some(when(order.updated_at, now))),
        ("deadline", order.deadline.map(|at| when(at, now))),
        ("paused", order.paused_at.map(|at| when(at, now))),
        ("erased", order.erased_at.map(|at| when(at, now))),
        ("undo", undo_wait(order, now)),
        ("output", order.output.as_ref().map(Value::to_string)),
    ];
    out += &fields(lines);
    let width = name_width(order);
    for step in &order.steps {
        let _ = writeln!(out, "  {:<width$}  {}", step.name, self::step(step, now));
    }
    for event in &order.events {
        let what = match (&event.step, event.kept) {
            (Some(step), _) => format!("taken by `{step}`"),
            (None, true) => "kept for a step that does not wait yet".into(),
            (None, false) => "unused".into(),
        };
        let by = event.by.as_ref().map_or(String::new(), |by| format!(" by `{by}`"));
        let _ = writeln!(out, "  event `{}`{by}, key `{}`: {what}", event.name, event.key);
    }
    out
}

/// A line for each field that has a text.
pub fn fields(all: impl IntoIterator<Item = (&'static str, Option<String>)>) -> String {
    let told = all.into_iter().filter_map(|(label, text)| Some((label, text.filter(|text| !text.is_empty())?)));
    told.map(|(label, text)| format!("  {label:<10} {text}\n")).collect()
}

/// Labels as people read them.
pub fn labels(labels: &[String]) -> String {
    labels.iter().map(|label| format!("[{label}]")).collect::<Vec<_>>().join(" ")
}

/// Characters of the longest name of a step.
pub fn name_width(order: &Status) -> usize {
    order.steps.iter().map(|step| step.name.chars().count()).max().unwrap_or_default()
}

/// How long an order's undo waits, and why; `None` if it does not wait.
pub fn undo_wait(order: &Status, now: Timestamp) -> Option<String> {
    let until = when(order.undo_from?, now);
    Some(format!("begins {until}: until then an earlier request may still take effect"))
}

/// How many items of a list stand where.
fn items(items: &ItemsStatus) -> String {
    let all = [
        ("done", items.done),
        ("open", items.open),
        ("to do", items.to_do),
        ("failed", items.failed),
        ("undone", items.undone),
        ("stuck", items.stuck),
    ];
    let some = all.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}"));
    format!("of {} items {}", items.total, some.collect::<Vec<_>>().join(", "))
}

/// The state of a step, without its name.
pub fn step(step: &StepStatus, now: Timestamp) -> String {
    let calls = !step.agent.is_empty() && step.passed_over.is_none();
    let time = |label, at: Option<Timestamp>| at.map(|at| format!("{label} {}", when(at, now)));
    let error = step.last_error.as_ref().filter(|error| !error.is_empty()).map(|error| format!("last error: {error}"));
    let notes = [
        calls.then(|| format!("attempts {}", step.attempts)),
        step.effects_stay.then(|| "no undo, so any effect stays".to_owned()),
        time("complete by", step.complete_by),
        time("next attempt", step.next_attempt_at),
        step.wait.clone().filter(|_| step.waiting_until.is_some()),
        step.child.as_ref().map(|child| format!("order {child}")),
        step.items.as_ref().map(items),
        step.missing.map(|missing| format!("people still missing: {missing}")),
        step.reminders.filter(|sent| *sent > 0).map(|sent| format!("reminders {sent}")),
        time("next reminder", step.next_reminder_at),
        time("since", step.waiting_since),
        time("until", step.waiting_until),
        time("polls until", step.polls_until),
        step.last_look.as_ref().map(|look| format!("last poll: {look}")),
        step.pages.as_ref().map(|pages| format!("{} on {}", many(pages.items, "item"), many(pages.taken, "page"))),
        step.progress.as_ref().and_then(|progress| far(progress, now)),
        error,
        step.passed_over.clone(),
    ];
    let notes: Vec<String> = notes.into_iter().flatten().collect();
    format!("{}  {}", painted(&step.state, 14), notes.join(", ")).trim_end().to_owned()
}

/// `1 page`, `2 pages`.
fn many(count: u32, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// How far an agent is with its work, and when it said so.
fn far(progress: &ProgressStatus, now: Timestamp) -> Option<String> {
    let at = when(progress.at?, now);
    let said = [progress.percent.map(|percent| format!("{percent} %")), progress.note.clone()];
    let said: Vec<String> = said.into_iter().flatten().collect();
    Some(if said.is_empty() { format!("heartbeat {at}") } else { format!("{} ({at})", said.join(", ")) })
}

/// What happened to an order, each entry with the time since the first one.
pub fn history(entries: &[HistoryEntry]) -> String {
    let row = |entry: &HistoryEntry| {
        let [since, event, step, attempt, detail] = event(entry, entries[0].at);
        [entry.at.strftime("%Y-%m-%d %H:%M:%S%.3fZ").to_string(), since, event, step, attempt, detail].map(Cell::from)
    };
    let rows: Vec<_> = entries.iter().map(row).collect();
    table(["at", "since", "event", "step", "try", "detail"], &rows)
}

/// The same without the time of day, each line behind `indent`. These entries come from a run on this machine, so
/// [`read`] has not escaped them.
pub fn events(entries: &[HistoryEntry], indent: &str) -> String {
    let row = |entry: &HistoryEntry| event(entry, entries[0].at).map(|text| Cell::from(&*visible(&text)));
    let rows: Vec<_> = entries.iter().map(row).collect();
    let all = table(["since", "event", "step", "try", "detail"], &rows);
    all.lines().map(|line| format!("{indent}{line}\n")).collect()
}

fn event(entry: &HistoryEntry, first: Timestamp) -> [String; 5] {
    let HistoryEntry { at, event, step, attempt, detail } = entry;
    [
        format!("+{:.1} s", at.duration_since(first).as_secs_f64()),
        event.clone(),
        step.clone().unwrap_or_default(),
        attempt.map(|n| format!("#{n}")).unwrap_or_default(),
        detail.clone().unwrap_or_default(),
    ]
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
    }

    /// An order as the API sends it, with some fields replaced.
    fn answer(changes: Value) -> Value {
        let mut order = json!({
            "order_id": "o", "workflow": "w", "workflow_hash": "", "state": "Error", "tenant": "t", "priority": "normal",
            "version": 1, "created_at": "2026-11-21T12:00:00Z", "updated_at": "2026-11-21T12:00:00Z",
            "failure_count": 0, "alert_owed": false, "steps": [],
        });
        order.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        order
    }

    // Text of remote services and submitters must not move the cursor, or set the title of a terminal.
    #[test]
    fn control_characters_do_not_reach_the_terminal() {
        let order = answer(json!({"reason": "a\u{1b}]0;x\u{7}b\nc\u{202e}d"}));
        let shown = super::order(&read(&order).unwrap(), Timestamp::UNIX_EPOCH);
        let plain = anstream::adapter::strip_str(&shown).to_string();
        assert!(plain.contains(r"a\u001b]0;x\u0007b\nc\u202ed"), "{plain:?}");
        assert!(!plain.contains(|c: char| c != '\n' && shared::visible::is_hidden(c)), "{plain:?}");
    }

    // An undo that waits says how long, and why.
    #[test]
    fn an_undo_that_waits_says_until_when_and_why() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().unwrap();
        let mut order = read(&answer(json!({"state": "Undoing", "undo_from": "2026-11-21T12:00:31Z"}))).unwrap();
        let shown = anstream::adapter::strip_str(&super::order(&order, now)).to_string();
        let line =
            "undo       begins 2026-11-21 12:00:31Z (in 31 s): until then an earlier request may still take effect";
        assert!(shown.contains(line), "{shown}");
        order.undo_from = None;
        assert!(!super::order(&order, now).contains("begins"));
    }

    // Another version of the system may leave fields out, and its steps may be in other states. An answer that cannot
    // be formatted is printed as it came.
    #[test]
    fn other_versions_are_shown_as_far_as_they_are_known() {
        let step = json!({"name": "a", "agent": "x", "after": [], "state": "Postponed", "attempts": 1, "failures": 0,
            "undo_failures": 0, "more": {}});
        let order: Status = read(&answer(json!({"steps": [step]}))).unwrap();
        let shown = anstream::adapter::strip_str(&super::order(&order, order.created_at)).to_string();
        assert!(shown.contains("a  Postponed       attempts 1\n"), "{shown}");
        assert_eq!(read::<Status>(&answer(json!({"state": "Postponed"}))), None);
        assert_eq!(read::<Status>(&json!({"order_id": "o"})), None);
    }

    #[test]
    fn a_step_says_what_it_has_collected() {
        for (pages, line) in [
            (json!({"taken": 1, "items": 1}), "attempts 2, 1 item on 1 page\n"),
            (json!({"taken": 3, "items": 1200}), "attempts 2, 1200 items on 3 pages\n"),
            (Value::Null, "attempts 2\n"),
        ] {
            let step = json!({"name": "a", "agent": "x", "after": [], "state": "Processing", "attempts": 2, "failures": 0,
                "undo_failures": 0, "pages": pages});
            let order: Status = read(&answer(json!({"steps": [step]}))).unwrap();
            let shown = anstream::adapter::strip_str(&super::order(&order, order.created_at)).to_string();
            assert!(shown.contains(line), "{shown}");
        }
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [[Cell::from("a"), "bb".into()], ["äöü".into(), "c".into()]];
        let plain = anstream::adapter::strip_str(&table(["x", "y"], &rows)).to_string();
        assert_eq!(plain, "x    y\na    bb\näöü  c\n");
    }
}
