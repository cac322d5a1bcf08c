//! Scenarios in files. Every refusal names file and line, and says what to write instead.

use jiff::SignedDuration;
use serde::Deserialize;
use serde_json::{Map, Value};
use shared::expression::Mapping;
use shared::step::Direction;
use shared::task::{MAX_EVENT, ProcessState};
use shared::workflow::child::Child;
use shared::workflow::file::{Error, Known, parse};
use shared::workflow::wait::Time;
use shared::workflow::{Step, TooShort, USUAL_SKEW, Workflow};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use stepwarden_simulation::{REMIND, Said, Script, Scripted, Sending, UNDO};
use toml::Spanned;

/// Longest time that a scripted answer may take.
const MOST_TAKEN: std::time::Duration = std::time::Duration::from_secs(24 * 3600);

/// One scenario, ready to be played.
#[derive(Debug)]
pub struct Scenario {
    /// What it shows, in the author's words.
    pub name: String,
    /// Its workflow.
    pub workflow: Arc<Workflow>,
    /// The workflows whose orders its own starts, and those start.
    pub children: Vec<Arc<Workflow>>,
    /// Input and answers.
    pub script: Arc<Script>,
    /// What has to happen.
    pub expect: Expect,
}

/// How the order of a scenario has to end.
#[derive(Debug)]
pub struct Expect {
    /// Its state; `None` if it must be refused.
    pub state: Option<ProcessState>,
    /// By [`LISTS`]: exactly these steps, if the author says so.
    pub steps: [Option<Vec<String>>; 5],
    /// The outputs of steps.
    pub outputs: BTreeMap<String, Mapping>,
    /// The parts of what the last call of each name sent.
    pub sent: BTreeMap<String, BTreeMap<String, Mapping>>,
    /// How many calls of each name were made.
    pub calls: BTreeMap<String, usize>,
    /// Name of each event that is sent, and its answer.
    pub events: Vec<(String, String)>,
    /// Part of the reason of an order that failed, or of its refusal.
    pub error: Option<String>,
}

/// The answer to an event that is taken or kept.
const ACCEPTED: &str = "accepted";
/// The answers to an event that is not.
const DECLINED: [&str; 7] =
    ["forbidden", "no_such_event", "event_early", "event_late", "event_refused", "event_key_reused", "too_many_events"];

/// The lists of steps in `expect`.
pub const LISTS: [&str; 5] = ["ran", "passed_over", "caught", "failed", "undone"];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    workflow: Option<Spanned<String>>,
    input: Option<Spanned<toml::Value>>,
    #[serde(default)]
    answers: Entries,
    #[serde(default)]
    scenario: Vec<Spanned<RawScenario>>,
}

type Entries = BTreeMap<Spanned<String>, Spanned<toml::Value>>;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    name: Spanned<String>,
    workflow: Option<Spanned<String>>,
    input: Option<Spanned<toml::Value>>,
    #[serde(default)]
    answers: Entries,
    #[serde(default)]
    events: Vec<Spanned<RawEvent>>,
    expect: Option<RawExpect>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEvent {
    name: Spanned<String>,
    at: Option<Time>,
    data: Option<Spanned<toml::Value>>,
    key: Option<String>,
    by: Option<String>,
    answer: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawExpect {
    state: Spanned<String>,
    ran: Option<Vec<Spanned<String>>>,
    passed_over: Option<Vec<Spanned<String>>>,
    caught: Option<Vec<Spanned<String>>>,
    failed: Option<Vec<Spanned<String>>>,
    undone: Option<Vec<Spanned<String>>>,
    #[serde(default)]
    outputs: Entries,
    #[serde(default)]
    sent: Entries,
    #[serde(default)]
    calls: BTreeMap<Spanned<String>, usize>,
    error: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAnswer {
    status: Option<u16>,
    answer: Option<toml::Value>,
    headers: Option<BTreeMap<String, String>>,
    refused: Option<String>,
    #[serde(default)]
    unavailable: bool,
    #[serde(default)]
    silent: bool,
    takes: Option<SignedDuration>,
    times: Option<usize>,
}

/// What is wrong, and where in the file.
pub(crate) type Problem = (Range<usize>, String);

/// The scenarios of a file. `folder` is where the workflows are, if the caller says so.
///
/// # Errors
/// The first fault, in this file or in a workflow that it tests.
pub fn read(file: &Path, folder: Option<&Path>) -> Result<Vec<Scenario>, Error> {
    let text = text_of(file)?;
    let fail = |(at, message): Problem| Error {
        file: file.display().to_string(),
        line: 1 + text.as_bytes()[..at.start.min(text.len())].iter().filter(|&&b| b == b'\n').count(),
        message,
    };
    let raw: RawFile = toml::from_str(&text).map_err(|e| {
        let message = e.message().replace('\n', "; ");
        let hint = match message.contains("extend value") || message.contains("duplicate key") {
            true => format!("; write the answer of an undo under a name in quotes, such as \"charge{UNDO}\""),
            false => String::new(),
        };
        fail((e.span().unwrap_or(0..0), message + &hint))
    })?;
    if raw.scenario.is_empty() {
        return Err(fail((0..0, "the file has no scenario; add a [[scenario]] with `name` and `expect`".into())));
    }
    let mut workflows = BTreeMap::new();
    let mut all: Vec<Scenario> = Vec::new();
    for spanned in &raw.scenario {
        let one = spanned.get_ref();
        let Some(named) = one.workflow.as_ref().or(raw.workflow.as_ref()) else {
            let message = "the scenario has no workflow; add `workflow = \"NAME\"`, here or at the top of the file";
            return Err(fail((one.name.span(), message.into())));
        };
        let path = find(file, folder, named).map_err(fail)?;
        let family = match workflows.get(&path) {
            Some(known) => Family::clone(known),
            None => {
                let read = startable(&path)?;
                workflows.insert(path, read.clone());
                read
            }
        };
        if all.iter().any(|other| other.name == *one.name.get_ref()) {
            let message = format!("a scenario named `{}` already exists; give each a unique name", one.name.get_ref());
            return Err(fail((one.name.span(), message)));
        }
        all.push(build(file, &raw, one, family).map_err(fail)?);
    }
    Ok(all)
}

fn text_of(file: &Path) -> Result<String, Error> {
    let unreadable = |e| Error { file: file.display().to_string(), line: 0, message: format!("cannot be read: {e}") };
    std::fs::read_to_string(file).map_err(unreadable)
}

/// The workflow file that a scenario means by a name or a path.
fn find(file: &Path, folder: Option<&Path>, named: &Spanned<String>) -> Result<PathBuf, Problem> {
    let name = named.get_ref();
    let beside = file.parent().unwrap_or(Path::new(""));
    if name.ends_with(".toml") {
        return Ok(beside.join(name));
    }
    let folder = match folder {
        Some(folder) => folder.to_owned(),
        None => match (beside.file_name(), beside.parent()) {
            (Some(_), Some(above)) => above.join("workflows"),
            _ => beside.join("../workflows"),
        },
    };
    let at = |message: String| (named.span(), message);
    let entries =
        std::fs::read_dir(&folder).map_err(|e| at(format!("the folder {} cannot be read: {e}", folder.display())))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "toml"));
    paths.sort();
    let mut names = Vec::new();
    for path in paths {
        let table = std::fs::read_to_string(&path).ok().and_then(|text| text.parse::<toml::Table>().ok());
        match table.as_ref().and_then(|table| table.get("name")).and_then(toml::Value::as_str) {
            Some(own) if own == name => return Ok(path),
            Some(own) => names.push(format!("`{own}`")),
            None => {}
        }
    }
    let known = if names.is_empty() { "no workflow".into() } else { names.join(", ") };
    Err(at(format!("there is no workflow `{name}`; {} has {known}", folder.display())))
}

/// A workflow with those whose orders its own starts.
#[derive(Clone, Debug)]
pub(crate) struct Family {
    pub own: Arc<Workflow>,
    pub children: Vec<Arc<Workflow>>,
}

/// The workflow in a file with those beside it that it needs, if agents can start every step.
pub(crate) fn startable(path: &Path) -> Result<Family, Error> {
    let read = |path: &Path| {
        let read = workflow(path)?;
        let short = |e: TooShort| Error { file: path.display().to_string(), line: 1, message: e.to_string() };
        read.can_start(USUAL_SKEW).map_err(short)?;
        Ok(read)
    };
    let (own, children) = edge::workflows::family(path, read)?;
    Ok(Family { own: Arc::new(own), children: children.into_values().map(Arc::new).collect() })
}

/// The workflow in a file. Its agents may have any names: a script answers for them.
///
/// # Errors
/// The first fault in the file, or that it cannot be read.
pub fn workflow(path: &Path) -> Result<Workflow, Error> {
    let text = text_of(path)?;
    let table: toml::Table = text.parse().unwrap_or_default();
    let steps = table.get("step").and_then(toml::Value::as_array).into_iter().flatten();
    let agents = steps.flat_map(|step| {
        ["undo", "remind"].map(|key| step.get(key)?.get("agent")).into_iter().chain([step.get("agent")])
    });
    let mut agents: Vec<&str> = agents.flatten().filter_map(toml::Value::as_str).collect();
    agents.extend(agent::agents::NAMES);
    let file = path.display().to_string();
    parse(&file, &text, Known { agents: &agents, inputs: &edge::workflows::INPUT_CHECKS })
}

fn build(file: &Path, whole: &RawFile, raw: &RawScenario, family: Family) -> Result<Scenario, Problem> {
    let Some(expect) = &raw.expect else {
        let message = "the scenario expects nothing; add [scenario.expect] with at least `state`";
        return Err((raw.name.span(), message.into()));
    };
    let mut input = Map::new();
    for part in [&whole.input, &raw.input].into_iter().flatten() {
        input.extend(table(file, part)?);
    }
    let mut answers = BTreeMap::new();
    for (name, value) in whole.answers.iter().chain(&raw.answers) {
        // `charge.undo = {...}` without quotes.
        let only = value.get_ref().as_table().filter(|table| table.len() == 1);
        let inner =
            only.and_then(|table| [UNDO, REMIND].into_iter().find_map(|end| Some((end, table.get(&end[1..])?))));
        let (name, value) = match inner {
            Some((end, inner)) => (format!("{}{end}", name.get_ref()), Spanned::new(value.span(), inner.clone())),
            None => (name.get_ref().clone(), value.clone()),
        };
        called(&family, &name, value.span())?;
        answers.insert(name, scripted(&value)?);
    }
    let input = Value::Object(input);
    if let (Some(fault), false) = (fault(&family.own, &input), expect.state.get_ref() == REFUSED) {
        return Err((raw.input.as_ref().map_or_else(|| raw.name.span(), Spanned::span), fault));
    }
    let expect = expectation(expect, &family)?;
    let (events, answered) = events(&raw.events, &family.own)?;
    Ok(Scenario {
        name: raw.name.get_ref().clone(),
        expect: Expect { events: answered, ..expect },
        script: Arc::new(Script::new(input, answers).sending(events)),
        workflow: family.own,
        children: family.children,
    })
}

/// Why the workflow refuses an input, if it does.
pub(crate) fn fault(workflow: &Workflow, input: &Value) -> Option<String> {
    let faults = workflow.schema.as_ref().map(|schema| schema.schema().faults(input)).unwrap_or_default();
    let fault = faults.first()?;
    Some(format!("`input{}` {}, so the workflow refuses this input", fault.at, fault.message))
}

/// Checks that a step of the workflow takes an event, or that the event is meant to be refused, and that there is such an answer.
pub(crate) fn known(workflow: &Workflow, name: &str, answer: &str) -> Result<(), String> {
    if answer != ACCEPTED && !DECLINED.contains(&answer) {
        let all = DECLINED.join("`, `");
        return Err(format!("an event is not answered with `{answer}`; write `{ACCEPTED}`, `{all}`"));
    }
    let known = workflow.events();
    if known.contains(name) || answer == "no_such_event" {
        return Ok(());
    }
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    let known = if known.is_empty() { "no event".into() } else { known.join(", ") };
    Err(format!("no step of workflow `{}` waits for `{name}`; its steps wait for {known}", workflow.name))
}

/// Checks the data of an event.
pub(crate) fn data(data: &Value) -> Result<(), String> {
    match data.is_object() && data.to_string().len() <= MAX_EVENT {
        true => Ok(()),
        false => Err(format!("the data of an event is a table of at most {MAX_EVENT} bytes of JSON")),
    }
}

/// The name of each event that is sent, and the answer that is expected.
type Answered = Vec<(String, String)>;

/// The events that are sent to the order.
fn events(raw: &[Spanned<RawEvent>], workflow: &Workflow) -> Result<(Vec<Sending>, Answered), Problem> {
    let (mut all, mut answers) = (Vec::new(), Vec::new());
    for (number, spanned) in raw.iter().enumerate() {
        let event = spanned.get_ref();
        let name = event.name.get_ref();
        let answer = event.answer.as_ref().map_or(ACCEPTED, |answer| answer.get_ref());
        known(workflow, name, answer).map_err(|message| {
            let is_answer = answer != ACCEPTED && !DECLINED.contains(&answer);
            let at = event.answer.as_ref().filter(|_| is_answer).map_or_else(|| event.name.span(), Spanned::span);
            (at, message)
        })?;
        let data = event.data.as_ref().map_or_else(|| Value::Object(Map::new()), |data| json(data.get_ref()));
        self::data(&data)
            .map_err(|message| (event.data.as_ref().map_or_else(|| spanned.span(), Spanned::span), message))?;
        let at = event.at.as_ref().map(|Time(at)| std::time::Duration::try_from(*at).unwrap_or_default());
        let key = event.key.clone().unwrap_or_else(|| format!("event-{}", number + 1));
        all.push(Sending { at, name: name.clone(), key, data, by: event.by.clone() });
        answers.push((name.clone(), answer.to_owned()));
    }
    Ok((all, answers))
}

/// An input: a table, or the path of a JSON file.
fn table(file: &Path, raw: &Spanned<toml::Value>) -> Result<Map<String, Value>, Problem> {
    let wrong = |message: String| (raw.span(), message);
    let value = match raw.get_ref() {
        toml::Value::String(path) => {
            let path = file.parent().unwrap_or(Path::new("")).join(path);
            let text = std::fs::read_to_string(&path)
                .map_err(|e| wrong(format!("the input {} cannot be read: {e}", path.display())))?;
            serde_json::from_str(&text).map_err(|e| wrong(format!("the input {} is not JSON: {e}", path.display())))?
        }
        value => json(value),
    };
    match value {
        Value::Object(table) => Ok(table),
        _ => Err(wrong("an input is a table, or the path of a JSON file with an object".into())),
    }
}

fn json(value: &toml::Value) -> Value {
    match value {
        toml::Value::String(text) => text.clone().into(),
        toml::Value::Integer(number) => (*number).into(),
        toml::Value::Float(number) => (*number).into(),
        toml::Value::Boolean(is) => (*is).into(),
        toml::Value::Datetime(date) => date.to_string().into(),
        toml::Value::Array(list) => list.iter().map(json).collect(),
        toml::Value::Table(table) => table.iter().map(|(key, value)| (key.clone(), json(value))).collect(),
    }
}

/// The step called `name` of the workflow.
pub(crate) fn step<'a>(workflow: &'a Workflow, name: &str, at: Range<usize>) -> Result<&'a Step, Problem> {
    workflow.position(name).map(|index| &workflow.steps[index]).ok_or_else(|| {
        let names = workflow.steps.iter().map(|step| format!("`{}`", step.name)).collect::<Vec<_>>().join(", ");
        (at, format!("workflow `{}` has no step `{name}`; write one of {names}", workflow.name))
    })
}

/// The parts of what the calls of this name send.
pub(crate) fn parts(family: &Family, name: &str, at: Range<usize>) -> Result<&'static [&'static str], Problem> {
    let (spec, direction) = called(family, name, at)?;
    let work = if name.ends_with(REMIND) { spec.reminder() } else { spec.work(direction) };
    Ok(match direction {
        _ if work.is_some_and(|work| work.http.is_some()) => &["method", "url", "headers", "body"],
        Direction::Do => &["input"],
        Direction::Undo => &["input", "output"],
    })
}

/// The workflow of the order whose step a name ends with, and the name of that step: `lines/pick` and `lines[2]/pick` lead to `pick` of the
/// orders that step `lines` starts.
fn led<'a, 'n>(family: &'a Family, name: &'n str, at: &Range<usize>) -> Result<(&'a Workflow, &'n str), Problem> {
    let (mut workflow, mut rest) = (&*family.own, name);
    while let Some((first, more)) = rest.split_once('/') {
        let (step, own) = one_of(workflow, first, &format!("/{more}"), at)?;
        let wrong = |message: String| (at.clone(), message);
        let Some(child) = step.child.as_ref().filter(|child| child.call.is_none()) else {
            let what = if step.child.is_some() { "makes a call for each item" } else { "starts no order" };
            return Err(wrong(format!("step `{own}` {what}; write `{own}` alone")));
        };
        let below = below(family, child);
        workflow = below.ok_or_else(|| wrong(format!("there is no workflow `{}`", child.workflow)))?;
        rest = more;
    }
    Ok((workflow, rest))
}

/// The step that `name` means, and its name without the position of an item. `rest` is what comes after it.
fn one_of<'a, 'n>(
    workflow: &'a Workflow,
    name: &'n str,
    rest: &str,
    at: &Range<usize>,
) -> Result<(&'a Step, &'n str), Problem> {
    let (own, item) = match name.strip_suffix(']').and_then(|name| name.split_once('[')) {
        Some((own, item)) => (own, Some(item)),
        None => (name, None),
    };
    let step = step(workflow, own, at.clone())?;
    match item {
        Some(_) if step.each().is_none() => {
            Err((at.clone(), format!("step `{own}` has no `each`; write `{own}{rest}`")))
        }
        Some(item) if item.parse::<u32>().is_err() => {
            let message = format!("`{item}` is no position in a list; write `{own}[0]{rest}` for the first item");
            Err((at.clone(), message))
        }
        _ => Ok((step, own)),
    }
}

/// The definition of the orders that a step starts.
fn below<'a>(family: &'a Family, child: &Child) -> Option<&'a Workflow> {
    family.children.iter().map(|one| &**one).find(|one| one.name == child.workflow)
}

/// The step whose calls, or whose undo's calls, have this name.
pub(crate) fn called<'a>(family: &'a Family, name: &str, at: Range<usize>) -> Result<(&'a Step, Direction), Problem> {
    let (workflow, own) = led(family, name, &at)?;
    // The call that is made for each item.
    let call = |step: &'a Step| {
        let call = step.child.as_ref().and_then(|child| child.call.as_ref()?.steps.first());
        call.unwrap_or(step)
    };
    if let Some(own) = own.strip_suffix(REMIND) {
        let (step, own) = one_of(workflow, own, REMIND, &at)?;
        return match call(step) {
            step if step.remind.is_some() => Ok((step, Direction::Do)),
            _ => Err((at, format!("step `{own}` has no `remind`; remove `{name}`"))),
        };
    }
    let (own, direction) = match own.strip_suffix(UNDO) {
        Some(own) => (own, Direction::Undo),
        None => (own, Direction::Do),
    };
    let rest = if direction == Direction::Undo { UNDO } else { "" };
    let (step, own) = one_of(workflow, own, rest, &at)?;
    let step = call(step);
    if let Some(child) = &step.child {
        let below = below(family, child);
        let first = below.and_then(|below| below.steps.first()).map_or("STEP", |step| &step.name);
        return Err((at, format!("step `{own}` starts orders; name a step of theirs, such as `{own}/{first}`")));
    }
    match (step.work(direction), direction) {
        (Some(_), _) => Ok((step, direction)),
        (None, Direction::Do) => Err((at, format!("step `{own}` calls nothing; remove `{name}`"))),
        (None, Direction::Undo) => Err((at, format!("step `{own}` has no `undo`; remove `{name}`"))),
    }
}

/// One answer, or several in a list.
fn scripted(raw: &Spanned<toml::Value>) -> Result<Vec<Scripted>, Problem> {
    let all = match raw.get_ref() {
        toml::Value::Array(all) => all.as_slice(),
        one => std::slice::from_ref(one),
    };
    let mut answers = Vec::new();
    for one in all {
        let (answer, times) = answer(one).map_err(|message| (raw.span(), message))?;
        answers.extend(std::iter::repeat_n(answer, times));
    }
    match answers.is_empty() {
        true => Err((raw.span(), "the list of answers is empty; write at least one, such as { status = 200 }".into())),
        false => Ok(answers),
    }
}

fn answer(raw: &toml::Value) -> Result<(Scripted, usize), String> {
    let raw: RawAnswer = raw.clone().try_into().map_err(|e: toml::de::Error| {
        let message = e.message().replace('\n', "; ");
        match message.contains("`output`") {
            true => "write `answer`, which is what the service answers; the step's `output` is taken from it".into(),
            false => format!("{message}; write for example {{ status = 200, answer = {{ id = \"r1\" }} }}"),
        }
    })?;
    let takes = raw.takes.unwrap_or_default();
    let takes = std::time::Duration::try_from(takes).unwrap_or(std::time::Duration::MAX);
    let times = raw.times.unwrap_or(1);
    if !(1..=1000).contains(&times) {
        return Err("`times` is out of range; write 1 to 1000".into());
    }
    let kinds = [raw.refused.is_some(), raw.unavailable, raw.silent];
    let is_answer = raw.status.is_some() || raw.answer.is_some() || raw.headers.is_some();
    if kinds.iter().filter(|is| **is).count() + usize::from(is_answer) > 1 {
        return Err("keep one of `refused`, `unavailable`, `silent`, and an answer with `status` or `answer`".into());
    }
    let said = match raw.refused {
        Some(error) => Said::Refused(error),
        None if raw.unavailable => Said::Unavailable,
        None if raw.silent => Said::Silent,
        None => {
            let status = raw.status.unwrap_or(200);
            let headers = raw.headers.unwrap_or_default().into_iter().map(|(n, v)| (n.to_ascii_lowercase(), v));
            let headers: Vec<(String, String)> = headers.collect();
            Said::Answer { status, headers, body: raw.answer.as_ref().map(json) }
        }
    };
    let scripted = Scripted { takes, said };
    possible(&scripted)?;
    Ok((scripted, times))
}

/// Checks that a service can answer so.
pub(crate) fn possible(scripted: &Scripted) -> Result<(), String> {
    if scripted.takes > MOST_TAKEN {
        return Err("`takes` is out of range; write a time from 0s to 24h".into());
    }
    let Said::Answer { status, headers, .. } = &scripted.said else { return Ok(()) };
    if !(200..=599).contains(status) {
        return Err(format!("an answer cannot have the status {status}; write one from 200 to 599"));
    }
    let is_good = |(name, value): &(String, String)| {
        http::HeaderName::try_from(name.as_str()).is_ok() && http::HeaderValue::try_from(value.as_str()).is_ok()
    };
    match headers.iter().find(|header| !is_good(header)) {
        Some((name, _)) => {
            Err(format!("`{name}` is not an HTTP header; write a name, and a value without line breaks"))
        }
        None => Ok(()),
    }
}

/// What a scenario expects of an input that does not fit.
const REFUSED: &str = "Refused";

/// The state in which an order has to end; `None` if it must be refused.
pub(crate) fn state(written: &str) -> Result<Option<ProcessState>, String> {
    let ends = [ProcessState::Processed, ProcessState::Undone, ProcessState::Error];
    let state = ends.into_iter().find(|state| state.name() == written);
    match state.is_none() && written != REFUSED {
        true => Err(format!(
            "an order does not end as `{written}`; write `Processed`, `Undone`, `Error`, or `{REFUSED}` if its input \
             does not fit"
        )),
        false => Ok(state),
    }
}

/// Checks that a step can be in a list of `expect`.
pub(crate) fn listed(workflow: &Workflow, list: &str, name: &str) -> Result<(), String> {
    let spec = step(workflow, name, 0..0).map_err(|(_, why)| why)?;
    let never = match list {
        "ran" if spec.fail.is_some() => "a `fail` step never runs; it fails, or the order continues",
        "caught" if spec.catch.is_none() => "has no `catch`, so its failure is never caught",
        "undone" if spec.undo.is_none() && spec.child.is_none() => "has no `undo`, so it is never undone",
        _ => return Ok(()),
    };
    Err(format!("step `{}`: {never}; remove it from `{list}`", spec.name))
}

fn expectation(raw: &RawExpect, family: &Family) -> Result<Expect, Problem> {
    let workflow = &*family.own;
    let state = state(raw.state.get_ref()).map_err(|message| (raw.state.span(), message))?;
    let lists = [&raw.ran, &raw.passed_over, &raw.caught, &raw.failed, &raw.undone];
    let mut steps: [Option<Vec<String>>; 5] = Default::default();
    for ((of, list), name) in steps.iter_mut().zip(lists).zip(LISTS) {
        let Some(list) = list else { continue };
        for entry in list {
            listed(workflow, name, entry.get_ref()).map_err(|message| (entry.span(), message))?;
        }
        *of = Some(list.iter().map(|entry| entry.get_ref().clone()).collect());
    }
    let mapping = |value: &toml::Value, at: Range<usize>| {
        Mapping::from_json(&json(value)).map_err(|fault| (at, fault.to_string()))
    };
    let mut outputs = BTreeMap::new();
    for (name, value) in &raw.outputs {
        step(workflow, name.get_ref(), name.span())?;
        outputs.insert(name.get_ref().clone(), mapping(value.get_ref(), value.span())?);
    }
    let mut sent = BTreeMap::new();
    for (name, value) in &raw.sent {
        let keys = parts(family, name.get_ref(), name.span())?;
        let is_url = keys.contains(&"url");
        let mut parts = BTreeMap::new();
        for (key, part) in value.get_ref().as_table().into_iter().flatten() {
            if !keys.contains(&key.as_str()) {
                let kind = if is_url { "a URL" } else { "an agent" };
                let mut message = format!("`{key}` is not sent to {kind}; write ");
                let _ = write!(message, "`{}`", keys.join("`, `"));
                return Err((value.span(), message));
            }
            // Names of headers are written in lower case where they are compared.
            let part = match (key.as_str(), part) {
                ("headers", toml::Value::Table(table)) => {
                    toml::Value::Table(table.iter().map(|(n, v)| (n.to_ascii_lowercase(), v.clone())).collect())
                }
                _ => part.clone(),
            };
            parts.insert(key.clone(), mapping(&part, value.span())?);
        }
        if parts.is_empty() {
            return Err((value.span(), format!("write a table with `{}`", keys.join("`, `"))));
        }
        sent.insert(name.get_ref().clone(), parts);
    }
    let mut calls = BTreeMap::new();
    for (name, count) in &raw.calls {
        called(family, name.get_ref(), name.span())?;
        calls.insert(name.get_ref().clone(), *count);
    }
    Ok(Expect { state, steps, outputs, sent, calls, events: Vec::new(), error: raw.error.clone() })
}
