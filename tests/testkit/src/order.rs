//! An order of a test in Rust.

use crate::file::{self, Expect, Family, LISTS, Scenario};
use crate::{Outcome, outcome};
use serde_json::{Map, Value};
use shared::expression::Mapping;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use stepwarden_simulation::{Said, Script, Scripted, Sending};

/// What a service answers to a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(Scripted);

impl Answer {
    /// A status of HTTP with a JSON body. An agent that is no URL understands the status as a URL step does by default.
    #[must_use]
    pub fn status(status: u16, body: Value) -> Self {
        Self::of(Said::Answer { status, headers: Vec::new(), body: Some(body) })
    }

    /// Status 200 with a JSON body.
    #[must_use]
    pub fn ok(body: Value) -> Self {
        Self::status(200, body)
    }

    /// The agent reports a permanent error.
    #[must_use]
    pub fn refused(error: &str) -> Self {
        Self::of(Said::Refused(error.into()))
    }

    /// No call reaches the service.
    #[must_use]
    pub fn unavailable() -> Self {
        Self::of(Said::Unavailable)
    }

    /// The service never answers.
    #[must_use]
    pub fn silent() -> Self {
        Self::of(Said::Silent)
    }

    /// The same with a header.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if let Said::Answer { headers, .. } = &mut self.0.said {
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        self
    }

    /// The same after a time.
    #[must_use]
    pub fn after(self, takes: Duration) -> Self {
        Self(Scripted { takes, ..self.0 })
    }

    fn of(said: Said) -> Self {
        Self(Scripted { takes: Duration::ZERO, said })
    }
}

/// An event that a test sends.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    at: Option<Duration>,
    name: String,
    key: Option<String>,
    data: Value,
    by: Option<String>,
}

impl Event {
    /// An event with its data, an object, which is sent once a step waits for it.
    #[must_use]
    pub fn of(name: &str, data: Value) -> Self {
        Self { at: None, name: name.into(), key: None, data, by: None }
    }

    /// The same, so long after the order.
    #[must_use]
    pub fn at(self, at: Duration) -> Self {
        Self { at: Some(at), ..self }
    }

    /// The same under this idempotency key. Without it each event has its own.
    #[must_use]
    pub fn key(self, key: &str) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// The same from an authenticated person.
    #[must_use]
    pub fn by(self, person: &str) -> Self {
        Self { by: Some(person.into()), ..self }
    }
}

/// An order whose services give scripted answers, and how it has to end. It must end as `Processed` unless the test says otherwise.
#[derive(Clone, Debug)]
#[must_use]
pub struct Order {
    name: String,
    family: Result<Family, String>,
    input: Value,
    answers: BTreeMap<String, Vec<Scripted>>,
    events: Vec<Sending>,
    answered: Vec<(String, String)>,
    state: String,
    lists: [Option<Vec<String>>; 5],
    outputs: BTreeMap<String, Value>,
    sent: BTreeMap<String, Value>,
    calls: BTreeMap<String, usize>,
    error: Option<String>,
}

impl Order {
    /// An order of the workflow in a file, with the input `{}`. A call without a scripted answer gets an empty one with status 200.
    pub fn of(file: impl AsRef<Path>) -> Self {
        Self {
            name: file.as_ref().display().to_string(),
            family: file::startable(file.as_ref()).map_err(|e| e.to_string()),
            input: Value::Object(Map::new()),
            answers: BTreeMap::new(),
            events: Vec::new(),
            answered: Vec::new(),
            state: "Processed".into(),
            lists: Default::default(),
            outputs: BTreeMap::new(),
            sent: BTreeMap::new(),
            calls: BTreeMap::new(),
            error: None,
        }
    }

    /// The same with this input, an object.
    pub fn input(self, input: Value) -> Self {
        Self { input, ..self }
    }

    /// The answers to the calls of a step, one after another; the last one repeats. `charge.undo` names the undo of `charge`, `lines/pick`
    /// the step `pick` of each order that step `lines` starts, and `lines[2]/pick` that of the third item. Of a step that makes a call for
    /// each item, `mails[2]` names that of the third.
    pub fn answers(mut self, step: &str, answers: impl IntoIterator<Item = Answer>) -> Self {
        self.answers.insert(step.into(), answers.into_iter().map(|Answer(one)| one).collect());
        self
    }

    /// An event that is sent to the order, and its answer: `accepted`, or the code of a problem.
    pub fn event(mut self, event: Event, answer: &str) -> Self {
        let Event { at, name, key, data, by } = event;
        let key = key.unwrap_or_else(|| format!("event-{}", self.events.len() + 1));
        self.answered.push((name.clone(), answer.into()));
        self.events.push(Sending { at, name, key, data, by });
        self
    }

    /// The order must end so: `Processed`, `Undone`, `Error`, or `Refused` if its input does not fit.
    pub fn ends(self, state: &str) -> Self {
        Self { state: state.into(), ..self }
    }

    /// Exactly these steps must have run.
    pub fn ran<'a>(self, steps: impl IntoIterator<Item = &'a str>) -> Self {
        self.list("ran", steps)
    }

    /// Exactly these steps must have been passed over.
    pub fn passed_over<'a>(self, steps: impl IntoIterator<Item = &'a str>) -> Self {
        self.list("passed_over", steps)
    }

    /// The failures of exactly these steps must have been caught.
    pub fn caught<'a>(self, steps: impl IntoIterator<Item = &'a str>) -> Self {
        self.list("caught", steps)
    }

    /// Exactly these steps must have failed.
    pub fn failed<'a>(self, steps: impl IntoIterator<Item = &'a str>) -> Self {
        self.list("failed", steps)
    }

    /// Exactly these steps must have been undone.
    pub fn undone<'a>(self, steps: impl IntoIterator<Item = &'a str>) -> Self {
        self.list("undone", steps)
    }

    /// The output that a step must have in the end. Its texts may contain `${...}` over `input`, `config`, `outputs` and `order`.
    pub fn output(mut self, step: &str, output: Value) -> Self {
        self.outputs.insert(step.into(), output);
        self
    }

    /// Parts of what the last call of a step must have sent: `method`, `url`, `headers` and `body` of a URL, else `input`, and for an
    /// undo `output`. Texts may contain `${...}` as in [`output`](Self::output).
    pub fn sent(mut self, step: &str, parts: Value) -> Self {
        self.sent.insert(step.into(), parts);
        self
    }

    /// How many calls of a step must have been made.
    pub fn calls(mut self, step: &str, calls: usize) -> Self {
        self.calls.insert(step.into(), calls);
        self
    }

    /// The reason of the order's failure or refusal must contain this.
    pub fn error(self, part: &str) -> Self {
        Self { error: Some(part.into()), ..self }
    }

    fn list<'a>(mut self, name: &str, steps: impl IntoIterator<Item = &'a str>) -> Self {
        let index = LISTS.iter().position(|list| *list == name).expect("a list of the table");
        self.lists[index] = Some(steps.into_iter().map(str::to_owned).collect());
        self
    }

    /// Plays the order, and if it ends as expected, again with each of `seeds` under faults.
    ///
    /// # Errors
    /// The workflow's file is wrong, or the test names a step that the workflow lacks, and what to write instead.
    pub fn play(&self, seeds: Range<u64>) -> Result<Outcome, String> {
        let scenario = self.scenario()?;
        Ok(outcome("", &scenario, "play with this seed alone:", seeds))
    }

    /// The same, for a test.
    ///
    /// # Panics
    /// Something is not as expected: what, and the order's history.
    #[track_caller]
    pub fn check(&self, seeds: Range<u64>) {
        match self.play(seeds) {
            Ok(outcome) => assert!(outcome.failures.is_empty(), "{outcome}"),
            Err(why) => panic!("{}: {why}", self.name),
        }
    }

    fn scenario(&self) -> Result<Scenario, String> {
        let family = self.family.clone()?;
        let workflow = Arc::clone(&family.own);
        let told = |(_, why): file::Problem| why;
        let mapping = |value: &Value| Mapping::from_json(value).map_err(|fault| fault.to_string());
        let state = file::state(&self.state)?;
        if let (Some(fault), Some(_)) = (file::fault(&workflow, &self.input), state) {
            return Err(fault);
        }
        for (name, answers) in &self.answers {
            file::called(&family, name, 0..0).map_err(told)?;
            if answers.is_empty() {
                return Err(format!("the list of answers of `{name}` is empty; write at least one"));
            }
            answers.iter().try_for_each(file::possible)?;
        }
        for (event, (_, answer)) in self.events.iter().zip(&self.answered) {
            file::known(&workflow, &event.name, answer)?;
            file::data(&event.data)?;
        }
        for (name, steps) in LISTS.iter().zip(&self.lists) {
            for step in steps.iter().flatten() {
                file::listed(&workflow, name, step)?;
            }
        }
        let outputs = self.outputs.iter().map(|(name, value)| {
            file::step(&workflow, name, 0..0).map_err(told)?;
            Ok((name.clone(), mapping(value)?))
        });
        let sent = self.sent.iter().map(|(name, parts)| {
            let keys = file::parts(&family, name, 0..0).map_err(told)?;
            let parts = parts.as_object().into_iter().flatten().map(|(key, part)| {
                let known = keys.contains(&key.as_str());
                let why = || format!("`{key}` is not sent by `{name}`; write `{}`", keys.join("`, `"));
                Ok((key.clone(), known.then(|| mapping(part)).ok_or_else(why)??))
            });
            Ok((name.clone(), parts.collect::<Result<BTreeMap<_, _>, String>>()?))
        });
        for name in self.calls.keys() {
            file::called(&family, name, 0..0).map_err(told)?;
        }
        Ok(Scenario {
            name: self.name.clone(),
            expect: Expect {
                state,
                steps: self.lists.clone(),
                outputs: outputs.collect::<Result<_, String>>()?,
                sent: sent.collect::<Result<_, String>>()?,
                calls: self.calls.clone(),
                events: self.answered.clone(),
                error: self.error.clone(),
            },
            script: Arc::new(Script::new(self.input.clone(), self.answers.clone()).sending(self.events.clone())),
            workflow,
            children: family.children,
        })
    }
}
