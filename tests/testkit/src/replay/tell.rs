//! What an export has of the answers, the events and the actions.

use super::export::{Export, path};
use serde_json::{Map, Value};
use shared::again::Wish;
use shared::decision::{Act, What};
use shared::history::{Entry, Kind, MAX_ENTRIES};
use shared::message::Outcome;
use shared::order::Id;
use shared::step::{Direction, State};
use shared::workflow::Step as Spec;
use shared::workflow::wait::Wait;
use std::collections::BTreeMap;
use std::time::Duration;
use stepwarden_simulation::{CALLBACK, Heard, Sending, Tell, Telling, UNDO, Word};

#[derive(Default)]
pub struct Told {
    pub answers: BTreeMap<String, Vec<Heard>>,
    pub tellings: Vec<Telling>,
}

/// Adds what one order was told, in times from the beginning of the first.
pub fn tell(one: &Export, all: &[Export], told: &mut Told, notes: &mut Vec<String>) {
    let offset = all[0].task.created_at.duration_until(one.task.created_at).as_millis();
    let time = |ms: i64| {
        let ms = i128::from(ms) + offset;
        Duration::from_millis(u64::try_from(ms).unwrap_or_default())
    };
    let path = |name: &str| path(one, all, name);
    if one.task.log.len() >= MAX_ENTRIES {
        notes.push(format!(
            "the history of {} has lost entries: it keeps {MAX_ENTRIES}; only its beginning is compared",
            one.task.id
        ));
    }
    for (index, spec) in one.definition.steps.iter().enumerate() {
        if let (Some(child), Some(_)) = (&spec.child, &one.task.steps[index].kids) {
            let is_here = |other: &Export| {
                other.task.parent.as_ref().is_some_and(|link| link.id == one.task.id && link.step == spec.name)
            };
            let (count, list) = (all.iter().filter(|other| is_here(other)).count(), child.each.is_some());
            if count == 0 || list {
                let which = if count == 0 { "no order" } else { "not every order" };
                let name = path(&spec.name);
                notes.push(format!(
                    "`{name}` started orders of `{}`, and {which} of them may be among the files: a call of theirs \
                     without an answer gets an empty one. Export them, and name each with --replay",
                    child.workflow
                ));
            }
        }
        if !spec.agent.is_empty() {
            answers(one, (index, spec), &path(&spec.name), &time, told, notes);
        }
    }
    events(one, &time, told, notes);
    acts(one, &time, told, notes);
}

/// What happened to one attempt.
struct Attempt<'a> {
    direction: Direction,
    begun: Option<i64>,
    end: Option<&'a Entry>,
}

fn answers(
    one: &Export,
    (index, spec): (usize, &Spec),
    name: &str,
    time: &dyn Fn(i64) -> Duration,
    told: &mut Told,
    notes: &mut Vec<String>,
) {
    let step = &one.task.steps[index];
    let mut attempts = BTreeMap::<u32, Attempt<'_>>::new();
    let own = || one.task.log.iter().filter(|entry| entry.2.map(usize::from) == Some(index) && entry.3 > 0);
    for entry in own() {
        match entry.1 {
            Kind::Claimed | Kind::UndoClaimed => {
                let direction = if entry.1 == Kind::Claimed { Direction::Do } else { Direction::Undo };
                attempts.insert(entry.3, Attempt { direction, begun: Some(entry.0), end: None });
            }
            Kind::Completed
            | Kind::Failed
            | Kind::Caught
            | Kind::Unavailable
            | Kind::Deferred
            | Kind::Expired
            | Kind::Waiting
            | Kind::Undone
            | Kind::UndoFailed => {
                // The wait of a poll begins with its claim.
                if entry.1 == Kind::Waiting && spec.accept.is_none() {
                    continue;
                }
                let is_event = entry.4.as_deref().is_some_and(|text| text.starts_with("callback,"));
                let is_look = spec.poll.is_some();
                let attempt = match attempts.get_mut(&entry.3) {
                    Some(attempt) => attempt,
                    // A look that was claimed ahead has no entry of its own.
                    None if is_look => {
                        attempts.entry(entry.3).or_insert(Attempt { direction: Direction::Do, begun: None, end: None })
                    }
                    None => continue,
                };
                if !is_event {
                    attempt.end.get_or_insert(entry);
                }
            }
            _ => {}
        }
    }
    let has_output = matches!(
        step.state,
        State::Processed | State::UndoPending { .. } | State::UndoProcessing { .. } | State::Undone | State::UndoFailed
    );
    let is_done = |attempt: &Attempt<'_>| attempt.end.is_some_and(|end| end.1 == Kind::Completed);
    let last_done = attempts.iter().filter(|(_, attempt)| is_done(attempt)).map(|(n, _)| *n).max();
    let last_end = attempts.iter().filter(|(_, attempt)| attempt.end.is_some()).map(|(n, _)| *n).max();
    let kept = one.outputs[index].clone().unwrap_or_default();
    let mut direction = Direction::Do;
    let (mut lost, mut guessed) = (0, false);
    // A record that was made by hand may count to any number.
    for number in 1..=step.attempt.min(100_000) {
        let attempt = attempts.get(&number);
        direction = attempt.map_or(direction, |attempt| attempt.direction);
        let is_look = spec.poll.is_some() && direction == Direction::Do;
        let failure = step.failure.clone().filter(|_| Some(number) == last_end && direction == Direction::Do);
        let outcome = match attempt.map(|attempt| attempt.end) {
            // A claim, and nothing after it: the answer has not come.
            Some(None) if !is_look => None,
            _ if is_look && number == step.attempt && matches!(step.state, State::Processing { .. }) => None,
            None | Some(None) if is_look => {
                Some(Outcome::NotYet { why: step.error.clone().unwrap_or_else(|| "not yet".into()) })
            }
            None | Some(None) => {
                lost += 1;
                Some(Outcome::Unavailable {
                    error: "the history does not keep this answer".into(),
                    retry_after_ms: None,
                })
            }
            Some(Some(Entry(_, kind, _, _, text))) => {
                let error = || text.clone().unwrap_or_else(|| step.error.clone().unwrap_or_default());
                match kind {
                    Kind::Completed => {
                        guessed |= !has_output || Some(number) != last_done;
                        Some(Outcome::Done { output: kept.clone() })
                    }
                    Kind::Waiting => {
                        guessed |= !matches!(step.state, State::Waiting { .. });
                        Some(Outcome::Accepted { output: kept.clone() })
                    }
                    Kind::Failed | Kind::Caught | Kind::UndoFailed => Some(Outcome::Failed { error: error() }),
                    Kind::Unavailable => Some(Outcome::Unavailable { error: error(), retry_after_ms: None }),
                    Kind::Deferred if is_look => Some(Outcome::NotYet { why: error() }),
                    Kind::Deferred => {
                        let end = attempt.and_then(|attempt| attempt.end).map_or(0, |end| end.0);
                        let next = attempts.get(&(number + 1)).and_then(|next| next.begun);
                        let wait = next.map_or(0, |next| next.saturating_sub(end));
                        Some(Outcome::Deferred {
                            error: error(),
                            retry_after_ms: u64::try_from(wait).unwrap_or_default(),
                        })
                    }
                    Kind::Undone => Some(Outcome::Done { output: Value::Null }),
                    _ => None,
                }
            }
        };
        let end = attempt.and_then(|attempt| attempt.end).map(|end| end.0);
        let took =
            end.zip(attempt.and_then(|attempt| attempt.begun)).map_or(0, |(end, begun)| end.saturating_sub(begun));
        let heard = Heard {
            at: end.map(time),
            took: Duration::from_millis(u64::try_from(took).unwrap_or_default()),
            word: outcome.map(|outcome| Word { outcome, failure, unsure: step.unsure }),
        };
        let name = if direction == Direction::Do { name.to_owned() } else { format!("{name}{UNDO}") };
        told.answers.entry(name).or_default().push(heard);
    }
    if lost > 0 {
        notes.push(format!(
            "`{name}`: the history does not keep {lost} of its {} attempts; each counts as unavailable",
            step.attempt
        ));
    }
    if guessed {
        notes.push(format!(
            "`{name}`: what it returned in an earlier attempt was replaced; what it returned last stands in its place"
        ));
    }
}

/// The events and callbacks, in the order in which they came.
fn events(one: &Export, time: &dyn Fn(i64) -> Duration, told: &mut Told, notes: &mut Vec<String>) {
    let task = &one.task;
    let mut used = vec![false; task.events.len()];
    let mut send = |n: usize, at: Duration, awaited: bool, notes: &mut Vec<String>| {
        let event = &task.events[n];
        let index = event.step.map(usize::from).filter(|&index| index < task.steps.len());
        let data = match (&event.data, index) {
            (Some(data), _) => data.clone(),
            (None, Some(index)) => said(one, index, n, notes),
            (None, None) => {
                notes.push(format!("the export does not have what the event `{}` said; it says nothing", event.name));
                Value::Object(Map::new())
            }
        };
        let (name, key, by) = (event.name.clone(), event.key.clone(), event.by.clone());
        let event = Sending { at: Some(at), name, key, data, by };
        told.tellings.push(Telling { order: task.id.clone(), at, tell: Tell::Event { event, awaited } });
    };
    for Entry(at, kind, step, _, text) in &task.log {
        let text = text.as_deref().unwrap_or_default();
        let is_its = |n: usize| !used[n] && task.events[n].step == *step && step.is_some();
        let found = match kind {
            Kind::EventKept => (0..used.len()).find(|&n| {
                let (name, key) = (&task.events[n].name, &task.events[n].key);
                !used[n] && text == format!("event `{name}`, key `{key}`")
            }),
            Kind::EventCounted => (0..used.len()).find(|&n| is_its(n)),
            Kind::Completed if text.starts_with("event `") => (0..used.len()).find(|&n| is_its(n)),
            Kind::Failed | Kind::Caught if text.starts_with("the event `") => (0..used.len()).find(|&n| is_its(n)),
            Kind::Completed if text.starts_with("callback,") => {
                (0..used.len()).find(|&n| is_its(n) && task.events[n].name.starts_with(CALLBACK))
            }
            _ => None,
        };
        let Some(n) = found else { continue };
        used[n] = true;
        let was_waiting = |entry: &Entry| entry.1 == Kind::Waiting && entry.2 == *step && entry.0 <= *at;
        let awaited = match kind {
            Kind::EventKept => false,
            Kind::Completed if text.starts_with("callback,") => task.log.iter().any(was_waiting),
            _ => true,
        };
        send(n, time(*at), awaited, notes);
    }
    for n in (0..used.len()).filter(|&n| !used[n]).collect::<Vec<_>>() {
        let event = &task.events[n];
        notes.push(format!(
            "the history does not say when the event `{}` came; it is sent once a step waits for it",
            event.name
        ));
        send(n, Duration::ZERO, true, notes);
    }
}

/// What event number `n`, which step `index` took, said.
fn said(one: &Export, index: usize, n: usize, notes: &mut Vec<String>) -> Value {
    let (spec, step, event) = (&one.definition.steps[index], &one.task.steps[index], &one.task.events[n]);
    let kept = one.outputs[index].clone();
    if event.name.starts_with(CALLBACK) {
        return kept.unwrap_or_default();
    }
    let nothing = Value::Object(Map::new());
    if step.output.is_none() && step.beside.is_none() {
        // It said that the step failed.
        let answer = step.failure.as_ref().map(|failure| failure.answer.clone()).filter(Value::is_object);
        return answer.unwrap_or_else(|| {
            notes.push(format!("`{}`: the export does not have what the event `{}` said", spec.name, event.name));
            nothing
        });
    }
    let people = match &spec.wait {
        Some(Wait::Event(event)) => event.people.is_some(),
        _ => false,
    };
    // With an `output` the step is played with what was kept.
    let data = match (spec.output.is_some(), people) {
        (true, _) => None,
        (false, false) => kept,
        (false, true) => {
            let is_its = |one: &&Value| one["by"] == event.by.clone().map(Value::from).unwrap_or_default();
            kept.as_ref()
                .and_then(Value::as_array)
                .and_then(|all| all.iter().find(is_its))
                .map(|one| one["data"].clone())
        }
    };
    data.filter(Value::is_object).unwrap_or(nothing)
}

/// What people did.
fn acts(one: &Export, time: &dyn Fn(i64) -> Duration, told: &mut Told, notes: &mut Vec<String>) {
    let (task, mut is_paused) = (&one.task, false);
    let names: Vec<&str> = one.definition.steps.iter().map(|step| step.name.as_str()).collect();
    for Entry(at, kind, index, _, text) in task.log.iter().filter(|entry| entry.1.is_act()) {
        let (by, said) = text.as_deref().unwrap_or_default().split_once(": ").unwrap_or_default();
        // What its parent did follows by itself.
        if task.parent.is_some() && by.starts_with("order ord_") {
            continue;
        }
        let step = index.and_then(|index| names.get(usize::from(index))).map(|name| (*name).to_owned());
        // The record adds to a reason what the action was about.
        let (mut reason, about) = match said.rsplit_once(" (") {
            Some((reason, about)) => (reason, about.strip_suffix(')').unwrap_or_default()),
            None => (said, ""),
        };
        let what = match kind {
            Kind::Cancelled => What::Cancel,
            Kind::UndoAsked => What::Undo,
            Kind::Paused => What::Pause,
            Kind::Resumed if !is_paused => {
                notes.push("the record was mended by hand, which is left out".into());
                continue;
            }
            Kind::Resumed => What::Resume,
            Kind::Skipped => What::Skip { step },
            Kind::RetriedNow => What::RetryNow { step },
            Kind::MarkedDone => {
                let output = index.and_then(|index| one.outputs.get(usize::from(index)).cloned().flatten());
                What::MarkDone { step, output: output.unwrap_or_default() }
            }
            Kind::Resubmitted => {
                let edited = about.strip_prefix("with another input for `").and_then(|name| name.strip_suffix('`'));
                if about.starts_with("with another input for item") {
                    notes.push(
                        "the export does not have the other inputs of items; they are tried with their own".into(),
                    );
                }
                let edited = edited.and_then(|name| names.iter().position(|own| *own == name));
                match edited.map(|index| (names[index].to_owned(), task.steps[index].input.clone())) {
                    Some((name, input @ Some(_))) => What::Resubmit { step: Some(name), input },
                    _ => What::Resubmit { step: None, input: None },
                }
            }
            Kind::RunAgain => {
                let about = about.strip_prefix("again from ").unwrap_or_default();
                let (from, new_keys) = match about.strip_suffix(", with new keys") {
                    Some(from) => (from, true),
                    None => (about, false),
                };
                let from: Vec<String> = from.split(", ").map(str::to_owned).collect();
                if from.iter().any(|name| !names.contains(&name.as_str())) {
                    notes.push("the history does not say from which steps the order was run again".into());
                    continue;
                }
                What::RunAgain(Wish { from, new_keys, without_undo: true })
            }
            Kind::MigrationAsked => {
                notes.push(
                    "the order was migrated; it is played under its last definition from the beginning, and the \
                     histories may part before"
                        .into(),
                );
                continue;
            }
            _ => continue,
        };
        is_paused = match kind {
            Kind::Paused => true,
            Kind::Resumed => false,
            _ => is_paused,
        };
        let adds = matches!(&what, What::Resubmit { input: Some(_), .. } | What::RunAgain(_));
        if !adds {
            reason = said;
        }
        let act = Act { what, by: by.to_owned(), reason: reason.to_owned(), seen: None };
        told.tellings.push(Telling { order: task.id.clone(), at: time(*at), tell: Tell::Act(act) });
    }
}

/// The events and callbacks of the first order, as they are sent under faults.
pub fn of_first(all: &[Telling], id: &Id) -> Vec<Sending> {
    let own = all.iter().filter(|telling| telling.order == *id);
    let event = |telling: &Telling| match &telling.tell {
        Tell::Event { event, awaited: true } => Some(Sending { at: None, ..event.clone() }),
        Tell::Event { event, awaited: false } => Some(event.clone()),
        Tell::Act(_) => None,
    };
    own.filter_map(event).collect()
}

/// A telling in words.
pub fn words(telling: &Telling) -> String {
    match &telling.tell {
        Tell::Event { event, .. } => match event.name.strip_prefix(CALLBACK) {
            Some(step) => format!("the callback of `{step}`"),
            None => format!("the event `{}`", event.name),
        },
        Tell::Act(act) => {
            let what = match &act.what {
                What::Resubmit { .. } | What::ResubmitItems { .. } => "resubmit",
                What::Skip { .. } => "skip",
                What::MarkDone { .. } => "mark-done",
                What::RetryNow { .. } => "retry-now",
                What::Cancel => "cancel",
                What::Undo => "undo",
                What::Pause => "pause",
                What::Resume => "resume",
                What::Migrate { .. } => "migrate",
                What::RunAgain(_) => "run-again",
            };
            format!("`{what}` by {}", act.by)
        }
    }
}
