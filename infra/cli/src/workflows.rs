//! `workflows`: definitions of a running system, and files checked without one.

use crate::api::{ask, print, read};
use crate::args::At;
use crate::args::workflows::{Activate, Change, Check, Diff, Explain, How, Put, Show, Workflows};
use crate::client::{Error, segment};
use crate::project;
use crate::scenario;
use crate::show::{self, Cell, table, when};
use crate::stdout;
use crate::{explain, visible_lines};
use anyhow::{Context, Result};
use edge::workflows::{INPUT_CHECKS, MAX_FILE};
use jiff::Timestamp;
use operator::workflows::{All, ChangeRow, Definition, Details, Done, MAX_TOML, Row, Source, State};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use shared::registry::differences;
use shared::visible::visible;
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

/// Runs it.
pub async fn run(command: Workflows) -> Result<ExitCode> {
    match command {
        Workflows::List(at) => ask(&at, "/workflows", list).await?,
        Workflows::Show(Show { name, hash: None, at }) => {
            ask(&at, &format!("/workflows/{}", segment(&name)?), details).await?;
        }
        Workflows::Show(Show { name, hash: Some(hash), at }) => {
            let path = format!("/workflows/{}/{}", segment(&name)?, segment(&hash)?);
            let answer = at.api().await?.read(&path).await?;
            definition(&at, &answer)?;
        }
        Workflows::Check(files) => return check(&files),
        Workflows::Explain(wanted) => explain(&wanted).await?,
        Workflows::Diff(Diff { file, at }) => diff(&file, &at).await?,
        Workflows::Put(wanted) => put(wanted).await?,
        Workflows::Activate(Activate { name, hash, how }) => change(&name, "activate", Some(hash), how).await?,
        Workflows::Rollback(Change { name, how }) => change(&name, "rollback", None, how).await?,
        Workflows::Retire(Change { name, how }) => change(&name, "retire", None, how).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Every file is checked, so that one run names all that is wrong.
fn check(Check { files, agents }: &Check) -> Result<ExitCode> {
    let agents = project::with_own(agents)?;
    let agents: Vec<&str> = agent::agents::NAMES.iter().copied().chain(agents.iter().map(String::as_str)).collect();
    let known = Known { agents: &agents, inputs: &INPUT_CHECKS };
    let mut code = ExitCode::SUCCESS;
    for file in files {
        let checked = text(file, MAX_FILE).map_err(anyhow::Error::from).and_then(|text| {
            let workflow = parse(&file.display().to_string(), &text, known)?;
            workflow.can_start(shared::workflow::USUAL_SKEW)?;
            Ok((workflow, text.len()))
        });
        match checked {
            Ok((workflow, bytes)) => {
                let Workflow { name, steps, .. } = &workflow;
                let count = if steps.len() == 1 { "1 step".into() } else { format!("{} steps", steps.len()) };
                crate::say!("{}: workflow {name}, {count}, {}", file.display(), workflow.hash());
                if bytes > MAX_TOML {
                    crate::say!("warning: it has {bytes} bytes; `stepwarden workflows put` takes at most {MAX_TOML}");
                }
            }
            Err(error) => {
                code = ExitCode::from(2);
                crate::say!("{}", visible(&format!("{error:#}")));
            }
        }
    }
    Ok(code)
}

async fn explain(Explain { workflow, mermaid, at }: &Explain) -> Result<()> {
    let found = match workflow.ends_with(".toml") {
        true => scenario::workflow(Path::new(workflow))?,
        false => {
            let (api, name) = (at.api().await?, segment(workflow)?);
            let row: Row = known(&api.read(&format!("/workflows/{name}")).await?)?;
            let Some(hash) = row.hash else {
                let why = format!(
                    "the system takes no orders for `{workflow}`; `stepwarden workflows show` shows its changes"
                );
                return Err(Error::File(why).into());
            };
            let answer = api.read(&format!("/workflows/{name}/{hash}")).await?;
            serde_json::from_value(answer["definition"].clone()).context(OTHER_VERSION)?
        }
    };
    let text = if *mermaid { explain::mermaid(&found) } else { explain::words(&found) };
    if at.json {
        print(at, &json!({ "text": text }), |_: Value| String::new())
    } else {
        stdout::styled(&visible_lines(&text))
    }
}

/// The text of a workflow file of at most `most` bytes.
fn text(file: &Path, most: usize) -> Result<String, Error> {
    let wrong = |why: String| Error::File(format!("{}: {why}", file.display()));
    let text = read(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
    if text.len() > most {
        return Err(wrong(format!("has {} bytes; the limit is {most}", text.len())));
    }
    Ok(text)
}

/// Compares here, so that reading is all it needs: with the agents that the system has, and the definition that is active there.
async fn diff(file: &Path, at: &At) -> Result<()> {
    let (api, text) = (at.api().await?, text(file, MAX_TOML)?);
    let all = api.read("/workflows").await?;
    let All { workflows, agents } = known(&all)?;
    let agents: Vec<&str> = agents.iter().map(String::as_str).collect();
    let known_here = Known { agents: &agents, inputs: &INPUT_CHECKS };
    let new = parse(&file.display().to_string(), &text, known_here).map_err(|e| Error::File(e.to_string()))?;
    let row = workflows.into_iter().find(|row| row.name == new.name);
    let (active, differences) = match row.as_ref().and_then(|row| row.hash.clone()) {
        None => (None, Vec::new()),
        Some(hash) => {
            let answer = api.read(&format!("/workflows/{}/{hash}", segment(&new.name)?)).await?;
            let old: Workflow = serde_json::from_value(answer["definition"].clone()).context(OTHER_VERSION)?;
            (Some(hash), differences(&old, &new))
        }
    };
    let answer = json!({"name": new.name, "hash": new.hash(), "active": active, "differences": differences});
    print(at, &answer, |_: Value| {
        let mut out = format!("{} {}\n", new.name, new.hash());
        for difference in &differences {
            let _ = writeln!(out, "  {}", visible(difference));
        }
        out += match (&row, &active) {
            (None, _) => "a new workflow\n",
            (_, None) => "the system takes no orders for this workflow now\n",
            (_, Some(active)) if *active == new.hash() => "the same definition is active\n",
            (_, Some(_)) => "",
        };
        out
    })
}

const OTHER_VERSION: &str =
    "the system and this program have different versions; use the program of the system's version";

fn known<T: DeserializeOwned>(answer: &Value) -> Result<T> {
    show::read(answer).context(OTHER_VERSION)
}

async fn put(Put { file, activate, by, at }: Put) -> Result<()> {
    let (api, text) = (at.api().await?, text(&file, MAX_TOML)?);
    let mut answer =
        api.post("/workflows", &by.body(json!({"toml": text, "file": file.display().to_string()}))).await?;
    let done: Done = known(&answer)?;
    if !at.json {
        let mut out = format!("{} {}\n", done.name, done.hash);
        for difference in &done.differences {
            let _ = writeln!(out, "  {difference}");
        }
        for warning in &done.warnings {
            let _ = writeln!(out, "warning: {warning}");
        }
        let Done { name, hash, active, .. } = &done;
        if active.as_ref() == Some(hash) {
            out += "new orders already get this definition\n";
        } else if !activate {
            let _ = writeln!(out, "stored; to activate it: stepwarden workflows activate {name} {hash} --reason TEXT");
        }
        stdout::styled(&out)?;
    }
    if activate && done.active.as_ref() != Some(&done.hash) {
        // With the number that the differences belong to.
        let body = by.body(json!({"hash": done.hash, "if_version": done.version}));
        answer["workflow"] = api.post(&format!("/workflows/{}/activate", segment(&done.name)?), &body).await?;
        if !at.json {
            let from = done.active.map_or_else(|| "no definition".into(), |hash| hash.0);
            stdout::styled(&changed(&known(&answer["workflow"])?, &from))?;
        }
    }
    if at.json { print(&at, &answer, |_: Value| String::new()) } else { Ok(()) }
}

async fn change(name: &str, verb: &str, hash: Option<String>, How { if_version, by, at }: How) -> Result<()> {
    let (api, path) = (at.api().await?, format!("/workflows/{}", segment(name)?));
    let before: Option<Row> = match api.read(&path).await {
        Ok(answer) => Some(known(&answer)?),
        Err(Error::Refused(refusal)) if refusal.body["code"] == "no_such_workflow" => None,
        Err(error) => return Err(error.into()),
    };
    let if_version = if_version.unwrap_or_else(|| before.as_ref().map_or(0, |row| row.version));
    let body = by.body(json!({"hash": hash, "if_version": if_version}));
    let answer = api.post(&format!("{path}/{verb}"), &body).await?;
    let from = before.as_ref().map_or_else(|| "no definition".into(), now);
    print(&at, &answer, |row: Row| changed(&row, &from))
}

/// What new orders of a workflow get.
fn now(row: &Row) -> String {
    match (row.state, &row.hash) {
        (State::Active, Some(hash)) => hash.0.clone(),
        (State::Active | State::Unreadable, _) => "unreadable".into(),
        (State::Retired, _) => "retired".into(),
    }
}

fn changed(row: &Row, from: &str) -> String {
    format!("{}: from {from} to {}; takes effect for new orders within 5 s\n", row.name, now(row))
}

fn list(All { workflows, .. }: All) -> String {
    let time = Timestamp::now();
    let row = |row: Row| {
        let (by, since) = match (&row.source, &row.last_change) {
            (Source::Operator, Some(change)) => (change.by.clone(), when(change.since, time)),
            (Source::Operator, None) => ("somebody".into(), String::new()),
            (Source::Deployment, _) => ("deployment".into(), String::new()),
        };
        [row.name.clone(), now(&row), by, since].map(Cell::from)
    };
    table(["workflow", "new orders get", "by", "since"], &workflows.into_iter().map(row).collect::<Vec<_>>())
}

fn details(Details { row, history, next }: Details) -> String {
    let time = Timestamp::now();
    let mut out = format!("{}: {}\n", row.name, now(&row));
    if let Some(previous) = &row.previous {
        let _ = writeln!(out, "a rollback would activate {previous}");
    }
    if let Some(deployed) = &row.deployed {
        let _ = writeln!(out, "the deployment contains {deployed}");
    }
    let line = |change: ChangeRow| {
        let what = change.hash.map_or_else(|| "retired".into(), |hash| hash.0);
        let reason = change.reason.unwrap_or_default();
        [change.version.to_string(), what, change.by, when(change.since, time), reason].map(Cell::from)
    };
    let rows: Vec<_> = history.into_iter().map(line).collect();
    if !rows.is_empty() {
        out += &table(["change", "new orders get", "by", "since", "reason"], &rows);
    }
    if next.is_some() {
        out += "older changes are kept; the API shows them\n";
    }
    out
}

/// The text as it was put, or what orders run, for a file.
fn definition(at: &At, answer: &Value) -> Result<()> {
    let known: Option<Definition> = (!at.json).then(|| serde_json::from_value(answer.clone()).ok()).flatten();
    match known {
        Some(Definition { toml: Some(toml), .. }) => crate::say!("{}", toml.trim_end()),
        Some(Definition { definition, .. }) => {
            crate::say!("{}", serde_json::to_string_pretty(&definition).context("printing the definition")?);
        }
        None => print(at, answer, |_: Definition| String::new())?,
    }
    Ok(())
}
