//! Reading a workflow from TOML. Every refusal names file and line, and says what to write instead.

mod accept;
mod advice;
mod aws;
mod beat;
mod check;
mod each;
mod http;
mod link;
mod mapped;
mod own;
mod pages;
mod poll;
mod remind;
mod retry;

use super::aws::Aws;
use super::edge::{After, Edge};
use super::hosts::Hosts;
use super::http::{AGENT as HTTP, Http};
use super::wait::Time;
use super::{MAX_STEPS, Step, Undo, Workflow};
use crate::expression::Kind;
use crate::retry::{Calls, Ladder, Late, Long, Then};
use crate::schema::Input;
use crate::time::SignedDuration;
use accept::RawAccept;
use aws::RawAws;
use http::RawHttp;
use link::RawLink;
use pages::RawPages;
use poll::RawPoll;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;

/// Why a workflow file was refused. `Display` is one line: `FILE:LINE: what is wrong; what to write instead`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {message}", colon(*line))]
pub struct Error {
    /// As given to [`parse`].
    pub file: String,
    /// Counted from 1; 0 if the fault is in no line of the file.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub message: String,
}

fn colon(line: usize) -> String {
    if line == 0 { String::new() } else { format!(":{line}") }
}

/// Names that the configuration knows; a workflow may use no others.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Agents that some function or program serves.
    pub agents: &'a [&'a str],
    /// Built-in input checks.
    pub inputs: &'a [&'a str],
}

/// What a deployment adds to the files that it reads.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// By name of workflow: values that replace those in its `config`.
    pub config: BTreeMap<String, Map<String, Value>>,
    /// Hosts that may come with an order.
    pub hosts: Hosts,
}

impl Settings {
    /// For an unknown deployment, which may allow any host.
    #[must_use]
    pub fn unknown() -> Self {
        Self { config: BTreeMap::new(), hosts: Hosts::any() }
    }
}

/// Longest name of a workflow, a step or an agent, in characters.
pub const MAX_NAME: usize = 40;
const MIN_DEADLINE: SignedDuration = SignedDuration::from_secs(1);
/// The longest retention, in days, as for `RetentionDays`.
const MAX_RETENTION: u16 = 3650;
const MAX_DEADLINE: SignedDuration = SignedDuration::from_hours(24 * 366);
/// Longest definition, in bytes of JSON. It is one item of DynamoDB, whose limit is 400 KB.
const MAX_DEFINITION: usize = 350_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkflow {
    name: Spanned<String>,
    input: Option<Spanned<toml::Value>>,
    #[serde(default = "undo")]
    on_failure: Then,
    late: Option<Spanned<Late>>,
    #[serde(default)]
    default: RawDefault,
    #[serde(default)]
    config: Option<Spanned<toml::Table>>,
    #[serde(default)]
    strict_notices: bool,
    #[serde(default)]
    tombstones: bool,
    deadline: Option<Spanned<SignedDuration>>,
    retention: Option<Spanned<String>>,
    output: Option<Spanned<toml::Value>>,
    #[serde(default)]
    step: Vec<Spanned<RawStep>>,
}

fn undo() -> Then {
    Then::Undo
}

/// Defaults for steps.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDefault {
    timeout: Option<Spanned<Time>>,
    retry: Option<Spanned<RawRetry>>,
    late: Option<Spanned<Late>>,
    calls: Option<Spanned<RawCalls>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawStep {
    name: Spanned<String>,
    agent: Option<Spanned<String>>,
    http: Option<Spanned<RawHttp>>,
    lambda: Option<Spanned<RawAws>>,
    aws: Option<Spanned<RawAws>>,
    workflow: Option<Spanned<String>>,
    each: Option<Spanned<toml::Value>>,
    at_once: Option<Spanned<u32>>,
    batch: Option<Spanned<u32>>,
    tolerate: Option<Spanned<String>>,
    value: Option<Spanned<toml::Value>>,
    fail: Option<Spanned<String>>,
    wait: Option<Spanned<toml::Value>>,
    until: Option<Spanned<toml::Value>>,
    event: Option<Spanned<String>>,
    take: Option<Spanned<String>>,
    early: Option<Spanned<String>>,
    people: Option<Spanned<u32>>,
    failed: Option<Spanned<String>>,
    link: Option<Spanned<RawLink>>,
    remind: Option<Spanned<RawRemind>>,
    alert: Option<Spanned<bool>>,
    accept: Option<Spanned<RawAccept>>,
    poll: Option<Spanned<RawPoll>>,
    pages: Option<Spanned<RawPages>>,
    heartbeat: Option<Spanned<Time>>,
    after: Option<Vec<Spanned<String>>>,
    when: Option<Spanned<String>>,
    with: Option<Spanned<toml::Value>>,
    #[serde(default)]
    form: bool,
    output: Option<Spanned<toml::Value>>,
    catch: Option<Spanned<String>>,
    timeout: Option<Spanned<Time>>,
    retry: Option<Spanned<RawRetry>>,
    late: Option<Spanned<Late>>,
    calls: Option<Spanned<RawCalls>>,
    on_failure: Option<Then>,
    #[serde(default)]
    irreversible: bool,
    undo: Option<Spanned<RawUndo>>,
}

impl RawStep {
    fn alerts(&self) -> bool {
        self.alert.as_ref().is_some_and(|alert| *alert.get_ref())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawUndo {
    agent: Option<Spanned<String>>,
    http: Option<Spanned<RawHttp>>,
    lambda: Option<Spanned<RawAws>>,
    aws: Option<Spanned<RawAws>>,
    with: Option<Spanned<toml::Value>>,
    #[serde(default)]
    form: bool,
    heartbeat: Option<Spanned<Time>>,
    timeout: Option<Spanned<Time>>,
    retry: Option<Spanned<RawRetry>>,
    calls: Option<Spanned<RawCalls>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRemind {
    every: Spanned<Time>,
    times: Option<Spanned<u32>>,
    agent: Option<Spanned<String>>,
    http: Option<Spanned<RawHttp>>,
    lambda: Option<Spanned<RawAws>>,
    aws: Option<Spanned<RawAws>>,
    with: Option<Spanned<toml::Value>>,
    #[serde(default)]
    form: bool,
    calls: Option<Spanned<RawCalls>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRetry {
    max: Option<u32>,
    backoff: Option<Vec<SignedDuration>>,
    long: Option<Long>,
    then: Option<Then>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCalls {
    attempts: Option<u32>,
    base: Option<SignedDuration>,
    cap: Option<SignedDuration>,
}

/// Where an error is, as a byte range of the text.
type At = Range<usize>;
type Problem = (At, String);

/// Where a key's value is, if the key is given.
fn span_of<T>(raw: &Option<Spanned<T>>) -> Option<At> {
    raw.as_ref().map(Spanned::span)
}

/// The workflow in `text`, for any deployment. Errors name `file`.
///
/// # Errors
/// The first fault, with its line and what to write instead.
pub fn parse(file: &str, text: &str, known: Known<'_>) -> Result<Workflow, Error> {
    parse_for(file, text, known, &Settings::unknown())
}

/// [`parse`], for a deployment's settings.
///
/// # Errors
/// The first fault, with its line and what to write instead.
pub fn parse_for(file: &str, text: &str, known: Known<'_>, settings: &Settings) -> Result<Workflow, Error> {
    let fail = |at: At, message: String| Error {
        file: file.to_owned(),
        line: 1 + text.as_bytes()[..at.start.min(text.len())].iter().filter(|&&b| b == b'\n').count(),
        message,
    };
    let raw: RawWorkflow = toml::from_str(text).map_err(|e| fail(e.span().unwrap_or(0..0), advice::on(&e, text)))?;
    check_config(raw.config.as_ref(), text)
        .and_then(|()| mapped::check_tables(&raw.step, text))
        .and_then(|()| build(&raw, known, settings))
        .map_err(|(at, message)| fail(at, message))
}

/// The workflow's name, even in a faulty file.
#[must_use]
pub fn name_of(text: &str) -> Option<String> {
    let table: toml::Table = text.parse().ok()?;
    table.get("name")?.as_str().map(str::to_owned)
}

fn build(raw: &RawWorkflow, known: Known<'_>, settings: &Settings) -> Result<Workflow, Problem> {
    check_name("workflow", &raw.name)?;
    let (input, schema) = input(raw.input.as_ref(), known)?;
    if raw.step.is_empty() {
        return Err((
            raw.name.span(),
            "the workflow has no steps; add at least one [[step]] with name, agent and timeout".into(),
        ));
    }
    if raw.step.len() > MAX_STEPS {
        let message = format!("{} steps are too many; the limit is {MAX_STEPS}, so split the workflow", raw.step.len());
        return Err((raw.step[MAX_STEPS].span(), message));
    }
    let config =
        mapped::json(&toml::Value::Table(raw.config.as_ref().map(|raw| raw.get_ref().clone()).unwrap_or_default()));
    let config = config.map_err(|words| (raw.name.span(), format!("`config` {words}")))?;
    let Value::Object(mut config) = config else { unreachable!("a table becomes an object") };
    for (name, value) in settings.config.get(raw.name.get_ref()).into_iter().flatten() {
        replace(&mut config, name, value).map_err(|words| (raw.name.span(), words))?;
    }
    let names: Vec<&str> = raw.step.iter().map(|s| s.get_ref().name.get_ref().as_str()).collect();
    let mut steps = Vec::with_capacity(names.len());
    for (index, step) in raw.step.iter().enumerate() {
        let name = &step.get_ref().name;
        check_name("step", name)?;
        if names[..index].contains(&name.get_ref().as_str()) {
            return Err((
                name.span(),
                format!("a step named `{}` already exists; give each step a unique name", name.get_ref()),
            ));
        }
        steps.push(build_step(step, index, &names, raw, Around { known, config: &config, hosts: &settings.hosts })?);
    }
    if let Some(cycle) = find_cycle(&steps) {
        let path = cycle.iter().map(|&i| names[i]).collect::<Vec<_>>().join(" -> ");
        let message = format!("the steps wait for each other in a cycle ({path}); remove one of these `after` entries");
        let mut after = raw.step[cycle[0]].get_ref().after.iter().flatten();
        let entry = after.find(|a| Edge::split(a.get_ref()).0 == names[cycle[1]]);
        return Err((entry.expect("a circle is made of `after` entries").span(), message));
    }
    let output = raw.output.as_ref().map(|output| mapped::mapping(output, "output")).transpose()?;
    let whole = output.as_ref().zip(span_of(&raw.output));
    check::check(&raw.step, &steps, &config, schema.as_ref().map(Input::schema), raw.deadline.is_some(), whole)?;
    let workflow = Workflow {
        name: raw.name.get_ref().clone(),
        input,
        schema,
        on_failure: raw.on_failure,
        strict_notices: raw.strict_notices,
        tombstones: raw.tombstones,
        deadline: raw.deadline.as_ref().map(deadline).transpose()?,
        retention: raw.retention.as_ref().map(retention).transpose()?,
        config,
        output,
        of_item: false,
        steps,
    };
    let bytes = crate::json::length(&workflow);
    if bytes > MAX_DEFINITION {
        let message = format!(
            "the definition has {bytes} bytes, but the limit is {MAX_DEFINITION}; write shorter texts, or split the \
             workflow"
        );
        return Err((raw.name.span(), message));
    }
    Ok(workflow)
}

fn build_step(
    spanned: &Spanned<RawStep>,
    index: usize,
    names: &[&str],
    workflow: &RawWorkflow,
    around: Around<'_>,
) -> Result<Step, Problem> {
    let on_failure = workflow.on_failure;
    let raw = spanned.get_ref();
    let name = raw.name.get_ref();
    let own::Own { value, fail, wait, child, each } = own::own(raw)?;
    let mut doer = Doer::default();
    if value.is_none() && fail.is_none() && wait.is_none() && child.is_none() {
        let Some(found) = who_does(&raw.agent, &raw.http, &raw.lambda, &raw.aws, None, around)? else {
            return Err((
                raw.name.span(),
                format!(
                    "step `{name}` has no agent; add `agent = \"NAME\"` with one of {}, or `http = \"URL\"`",
                    list(around.known.agents)
                ),
            ));
        };
        doer = found;
    }
    let with = mapped::with(raw.with.as_ref(), raw.form, &mut doer, raw.name.span())?;
    let output = match &raw.pages {
        Some(pages) => pages::build(pages, raw, &mut doer)?,
        None => mapped::output(raw.output.as_ref(), &mut doer)?,
    };
    let Doer { agent, http, aws } = doer;
    let fallback = &workflow.default;
    let is_work = !agent.is_empty();
    let timeout = match raw.timeout.as_ref().or(fallback.timeout.as_ref()) {
        _ if raw.event.is_some() => own::event_timeout(raw)?,
        Some(timeout) if is_work => {
            retry::check_timeout(timeout, raw.heartbeat.is_some())?;
            timeout.get_ref().0
        }
        None if is_work => {
            let message = format!("step `{name}` has no timeout; add, for example, `timeout = \"30s\"`");
            return Err((raw.name.span(), message));
        }
        Some(_) | None => SignedDuration::ZERO,
    };
    // The step decides for the whole list what failed items mean.
    let at_end = if each.is_some() { Then::Undo } else { on_failure };
    let retry = retry::ladder(raw.retry.as_ref().or(fallback.retry.as_ref()), at_end)?;
    let late = raw.late.as_ref().or(fallback.late.as_ref()).or(workflow.late.as_ref());
    let accept = raw.accept.as_ref().map(|accept| accept::build(accept, raw, http.is_some() || aws.is_some()));
    let accept = accept.transpose()?;
    let poll = raw.poll.as_ref().map(|poll| poll::build(poll, raw)).transpose()?;
    let asks_for = accept.as_ref().map(|accept| accept.within).or(poll.as_ref().map(|poll| poll.within));
    let is_call = http.is_some() || aws.is_some();
    let heartbeat = raw.heartbeat.as_ref().map(|every| beat::build(every, raw, is_call, timeout)).transpose()?;
    let late = late.filter(|_| is_work && poll.is_none() && heartbeat.is_none());
    // Long work does not start over within one attempt.
    let usual =
        if raw.heartbeat.is_some() { Calls { attempts: 1, ..retry::DEFAULT_CALLS } } else { retry::DEFAULT_CALLS };
    let calls = retry::calls(raw.calls.as_ref().or(fallback.calls.as_ref()), usual)?;
    let remind = raw.remind.as_ref().map(|raw| remind::build(raw, asks_for.unwrap_or(timeout), calls, around));
    let remind = remind.transpose()?;
    let undo = match &raw.undo {
        None => None,
        Some(spanned) => {
            let undo = spanned.get_ref();
            let found = who_does(&undo.agent, &undo.http, &undo.lambda, &undo.aws, http.as_ref(), around)?;
            let Some(mut doer) = found else {
                let likely = match &aws {
                    _ if http.is_some() => "http = \"URL\"".to_owned(),
                    Some(aws) if aws.function.is_some() => "lambda = \"FUNCTION\"".to_owned(),
                    Some(_) => "aws = \"SERVICE:ACTION\"".to_owned(),
                    None => format!("agent = \"{agent}\""),
                };
                let message = format!("the undo of step `{name}` has no agent; write `undo = {{ {likely} }}`");
                return Err((spanned.span(), message));
            };
            let with = mapped::with(undo.with.as_ref(), undo.form, &mut doer, spanned.span())?;
            let retry = match &undo.retry {
                None => Ladder { then: Then::Error, ..retry.clone() },
                Some(own) => {
                    if own.get_ref().then == Some(Then::Undo) {
                        return Err((
                            own.span(),
                            "an undo cannot be undone; write `then = \"error\"` or leave `then` out".into(),
                        ));
                    }
                    retry::ladder(Some(own), Then::Error)?
                }
            };
            let timeout = match undo.timeout.as_ref().or(fallback.timeout.as_ref().filter(|_| raw.event.is_some())) {
                Some(own) => {
                    retry::check_timeout(own, undo.heartbeat.is_some())?;
                    own.get_ref().0
                }
                // Its step may wait for months.
                None if raw.event.is_some() => {
                    let message =
                        format!("the undo of step `{name}` has no timeout; add, for example, `timeout = \"30s\"`");
                    return Err((spanned.span(), message));
                }
                None if timeout > retry::MAX_TIMEOUT && undo.heartbeat.is_none() => {
                    let message = format!(
                        "the undo of step `{name}` has no heartbeat, so it takes at most 12h; add, for example, \
                         `timeout = \"1h\"` or `heartbeat = \"1m\"`"
                    );
                    return Err((spanned.span(), message));
                }
                None => timeout,
            };
            let is_call = doer.http.is_some() || doer.aws.is_some();
            Some(Undo {
                agent: doer.agent,
                http: doer.http,
                aws: doer.aws,
                with,
                heartbeat: undo.heartbeat.as_ref().map(|every| beat::checked(every, is_call, timeout)).transpose()?,
                timeout,
                retry,
                calls: retry::calls(undo.calls.as_ref(), calls)?,
            })
        }
    };
    if raw.irreversible && undo.is_some() {
        return Err((raw.name.span(), format!("step `{name}` is irreversible and has an undo; keep one of the two")));
    }
    let step = Step {
        name: name.clone(),
        agent,
        http,
        aws,
        child,
        after: after(raw, index, names)?,
        when: mapped::condition(raw.when.as_ref(), "when")?,
        with,
        output,
        catch: mapped::condition(raw.catch.as_ref(), "catch")?,
        value,
        fail,
        wait,
        remind,
        accept,
        poll,
        pages: raw.pages.is_some(),
        heartbeat,
        timeout,
        retry,
        late: retry::late(late)?,
        calls,
        on_failure: raw.on_failure.unwrap_or(on_failure),
        irreversible: raw.irreversible,
        undo,
    };
    Ok(match each {
        Some(each) => each::of_call(each, step, workflow, around.config),
        None => step,
    })
}

/// The name of a built-in check, or the file's own.
fn input(raw: Option<&Spanned<toml::Value>>, known: Known<'_>) -> Result<(Option<String>, Option<Input>), Problem> {
    let Some(raw) = raw else { return Ok((None, None)) };
    let fail = |message: String| Err((raw.span(), message));
    let table = match raw.get_ref() {
        toml::Value::Table(table) => table,
        toml::Value::String(name) if known.inputs.contains(&name.as_str()) => return Ok((Some(name.clone()), None)),
        other => {
            let (given, checks) = (other.as_str().map_or_else(|| other.to_string(), str::to_owned), list(known.inputs));
            return fail(format!(
                "unknown input check `{given}`; write one of {checks}, or a JSON Schema in `[input]`, or leave the line out"
            ));
        }
    };
    // No other key of a workflow is a keyword of schemas.
    if table.contains_key("default") {
        return fail(
            "`default` is a key of the workflow, but here it is part of `input`; write it above `[input]`".into(),
        );
    }
    let json = mapped::json(raw.get_ref()).map_err(|words| (raw.span(), format!("`input` {words}")))?;
    match Input::new(json) {
        Ok(input) => Ok((None, Some(input))),
        Err(words) => fail(format!("`input` is not a schema: {words}")),
    }
}

/// Refuses keys under `[config]` that were meant for the workflow. `text` is the whole file.
fn check_config(config: Option<&Spanned<toml::Table>>, text: &str) -> Result<(), Problem> {
    const KEYS: [&str; 11] = [
        "name",
        "input",
        "on_failure",
        "late",
        "default",
        "strict_notices",
        "tombstones",
        "deadline",
        "retention",
        "output",
        "step",
    ];
    let Some(config) = config.filter(|raw| !text.get(raw.span()).is_some_and(|written| written.starts_with('{')))
    else {
        return Ok(());
    };
    match config.get_ref().keys().find(|key| KEYS.contains(&key.as_str())) {
        Some(key) => Err((
            config.span(),
            format!("`{key}` is a key of the workflow, but here it is part of `config`; write it above `[config]`"),
        )),
        None => Ok(()),
    }
}

fn deadline(raw: &Spanned<SignedDuration>) -> Result<SignedDuration, Problem> {
    let deadline = *raw.get_ref();
    if (MIN_DEADLINE..=MAX_DEADLINE).contains(&deadline) {
        return Ok(deadline);
    }
    Err((raw.span(), format!("a deadline of {} is out of range; write one from 1s to 8784h", advice::time(deadline))))
}

/// Whole days, because DynamoDB may remove a record days late, so a finer unit would mislead.
fn retention(raw: &Spanned<String>) -> Result<u16, Problem> {
    let text = raw.get_ref();
    let days = text.strip_suffix('d').and_then(|days| days.parse().ok());
    days.filter(|days| (1..=MAX_RETENTION).contains(days)).ok_or_else(|| {
        (
            raw.span(),
            format!(
                "a retention of `{text}` is not a number of days from 1d to {MAX_RETENTION}d; write for example \"30d\""
            ),
        )
    })
}

/// A step's edges, one per step before it.
fn after(raw: &RawStep, index: usize, names: &[&str]) -> Result<Vec<After>, Problem> {
    let name = raw.name.get_ref();
    let mut all: Vec<After> = Vec::new();
    for entry in raw.after.iter().flatten() {
        let (other, edge) = Edge::split(entry.get_ref());
        let Some(step) = names.iter().position(|n| *n == other) else {
            let others: Vec<&str> = names.iter().copied().filter(|n| n != name).collect();
            let instead = match others.as_slice() {
                [] => "it is the only step, so leave `after` out".to_owned(),
                others => format!("write one of {}", list(others)),
            };
            return Err((entry.span(), format!("step `{name}` waits for `{other}`, which does not exist; {instead}")));
        };
        if step == index {
            return Err((entry.span(), format!("step `{name}` waits for itself; remove `{name}` from its `after`")));
        }
        match all.iter().find(|after| after.step == step) {
            None => all.push(After { step, edge }),
            Some(after) if after.edge == edge => {}
            Some(_) => {
                let message = format!("step `{name}` names `{other}` twice with different marks; keep one of the two");
                return Err((entry.span(), message));
            }
        }
    }
    all.sort_unstable_by_key(|after| after.step);
    Ok(all)
}

fn check_name(what: &str, name: &Spanned<String>) -> Result<(), Problem> {
    let text = name.get_ref();
    let good = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.len() <= MAX_NAME
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_');
    if good {
        return Ok(());
    }
    let message = format!(
        "`{text}` cannot name a {what}; write a lower-case letter, then letters, digits, `-` or `_`, at most {MAX_NAME} in all"
    );
    Err((name.span(), message))
}

/// Replaces a value of the file's `config` by the deployment's.
fn replace(config: &mut Map<String, Value>, name: &str, value: &Value) -> Result<(), String> {
    let names: Vec<&str> = config.keys().map(String::as_str).collect();
    let known = match names.as_slice() {
        [] => "it has none".to_owned(),
        names => format!("it has {}", list(names)),
    };
    let Some(own) = config.get_mut(name) else {
        return Err(format!("the deployment sets `{name}`, which is not in the workflow's `config`: {known}"));
    };
    let (kind, given) = (Kind::name_of(own), Kind::name_of(value));
    if kind != given {
        return Err(format!(
            "the deployment sets `config.{name}` to {given}, but in the file it is {kind}; set it to {kind}"
        ));
    }
    *own = value.clone();
    Ok(())
}

/// The context for reading a file's steps.
#[derive(Clone, Copy)]
struct Around<'a> {
    known: Known<'a>,
    config: &'a Map<String, Value>,
    hosts: &'a Hosts,
}

/// Who does a step or an undo: the named agent, or the agent for URLs and AWS, with its call.
#[derive(Default)]
struct Doer {
    agent: String,
    http: Option<Http>,
    aws: Option<Aws>,
}

/// Who does a step, an undo or a reminder that may have one of these keys; `None` if it has none. For an undo, `of` is
/// the step's call.
fn who_does(
    agent: &Option<Spanned<String>>,
    http: &Option<Spanned<RawHttp>>,
    lambda: &Option<Spanned<RawAws>>,
    aws: &Option<Spanned<RawAws>>,
    of: Option<&Http>,
    around: Around<'_>,
) -> Result<Option<Doer>, Problem> {
    let keys = [("agent", span_of(agent)), ("http", span_of(http)), ("lambda", span_of(lambda)), ("aws", span_of(aws))];
    let Some((key, span)) = only(keys)? else { return Ok(None) };
    if let Some(agent) = agent {
        check_agent(agent, around.known)?;
        return Ok(Some(Doer { agent: agent.get_ref().clone(), ..Doer::default() }));
    }
    let agents = around.known.agents;
    if !agents.contains(&HTTP) {
        let what = if key == "http" { "URLs" } else { "AWS" };
        return Err((
            span,
            format!("nothing here calls {what}; write `agent = \"NAME\"` with one of {}", list(agents)),
        ));
    }
    let lambda = lambda.as_ref().map(|raw| aws::lambda(raw, around.config));
    let aws = lambda.or_else(|| aws.as_ref().map(aws::action)).transpose()?;
    let http = http.as_ref().map(|raw| http::build(raw, of, around)).transpose()?;
    Ok(Some(Doer { agent: HTTP.to_owned(), http, aws }))
}

/// The only one of these keys that is given, if any is.
fn only<const N: usize>(keys: [(&'static str, Option<At>); N]) -> Result<Option<(&'static str, At)>, Problem> {
    let mut given = keys.into_iter().filter_map(|(key, span)| Some((key, span?)));
    match (given.next(), given.next()) {
        (Some((key, span)), Some((other, _))) => {
            Err((span, format!("the step has both `{key}` and `{other}`; keep one of the two")))
        }
        (first, _) => Ok(first),
    }
}

fn check_agent(agent: &Spanned<String>, known: Known<'_>) -> Result<(), Problem> {
    if agent.get_ref() == HTTP {
        return Err((agent.span(), "write `http = \"URL\"` instead of `agent = \"http\"`".into()));
    }
    if known.agents.contains(&agent.get_ref().as_str()) {
        return Ok(());
    }
    let message = format!(
        "unknown agent `{}`; write one of {}, or register your own (docs/agents.md)",
        agent.get_ref(),
        list(known.agents)
    );
    Err((agent.span(), message))
}

/// The positions along one cycle of `after` entries, if there is one.
fn find_cycle(steps: &[Step]) -> Option<Vec<usize>> {
    // Remove steps without remaining predecessors as long as there are any. The rest contains a cycle.
    let mut left: Vec<usize> = (0..steps.len()).collect();
    loop {
        let before = left.len();
        let still = left.clone();
        left.retain(|&i| steps[i].after.iter().any(|a| still.contains(&a.step)));
        if left.is_empty() {
            return None;
        }
        if left.len() == before {
            break;
        }
    }
    let mut path = vec![left[0]];
    loop {
        let last = path[path.len() - 1];
        let next = steps[last].after.iter().map(|a| a.step).find(|a| left.contains(a))?;
        if let Some(start) = path.iter().position(|&i| i == next) {
            path.drain(..start);
            path.push(next);
            return Some(path);
        }
        path.push(next);
    }
}

fn list(names: &[&str]) -> String {
    if names.is_empty() {
        return "(none configured)".into();
    }
    names.iter().map(|n| format!("`{n}`")).collect::<Vec<_>>().join(", ")
}
