//! An exported order, played again in virtual time: whether it comes to stand where it stands, or where it parts.
//!
//! The record of an order keeps what was kept of each answer, when it came, and what people did. What it does not keep is said
//! in a sentence each, with what stands in its place.

mod compare;
mod export;
mod fit;
mod tell;

pub use compare::{Difference, Parting};
pub use export::MAX_BYTES;

use export::Export;
use serde::Serialize;
use serde_json::Value;
use shared::message::HistoryEntry;
use shared::view;
use shared::workflow::Workflow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use stepwarden_simulation::{Retold, Script, is_of, retell};

/// Exported orders that can be played again: one, with those that it started.
pub struct Replay {
    exports: Vec<Export>,
    workflow: Arc<Workflow>,
    children: Vec<Arc<Workflow>>,
    script: Arc<Script>,
    notes: Vec<String>,
    is_other: bool,
}

/// How it went.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Replayed {
    /// The order.
    pub order_id: String,
    /// Its workflow.
    pub workflow: String,
    /// Whether another definition was played than the order's own.
    pub other_definition: bool,
    /// Where the order stands.
    pub exported_state: &'static str,
    /// Where it came to stand; `Refused` if its input does not fit.
    pub state: String,
    /// Whether it is the same: state, steps, outputs, and all that led to them.
    pub same: bool,
    /// The first entry of a history that the replay does not repeat.
    pub parts_at: Option<Parting>,
    /// What differs in the end.
    pub differences: Vec<Difference>,
    /// What the export does not tell, and what stands in its place.
    pub notes: Vec<String>,
    /// Rules of the product that were broken.
    pub broken: Vec<String>,
    /// What happened in the replay.
    pub history: Vec<HistoryEntry>,
}

/// Reads exported orders. `other` is the file of another definition to play.
///
/// # Errors
/// A file is no export, cannot be played, or does not belong to the others; what to do about it.
pub fn read(files: &[PathBuf], other: Option<&Path>) -> Result<Replay, String> {
    let mut texts = Vec::new();
    for file in files {
        let wrong = |why: String| format!("{}: {why}", file.display());
        let bytes = std::fs::metadata(file).map_err(|e| wrong(format!("cannot be read: {e}")))?.len();
        if bytes > MAX_BYTES {
            let most = MAX_BYTES / 1024 / 1024;
            return Err(wrong(format!("it has {bytes} bytes; the file of an exported order has at most {most} MiB")));
        }
        let text = std::fs::read_to_string(file).map_err(|e| wrong(format!("cannot be read: {e}")))?;
        texts.push((file.display().to_string(), text));
    }
    of_texts(&texts, other)
}

/// The same for texts, each with the name of its file.
///
/// # Errors
/// As above.
pub fn of_texts(texts: &[(String, String)], other: Option<&Path>) -> Result<Replay, String> {
    let all = texts.iter().map(|(file, text)| export::read(file, text)).collect::<Result<Vec<_>, _>>()?;
    let exports = export::sorted(all)?;
    let mut notes = Vec::new();
    let root = &exports[0];
    for one in &exports {
        if let Some(step) = one.definition.steps.iter().find(|step| step.pages) {
            return Err(format!(
                "{}: step `{}` collects pages; the history does not have them one by one, so the order cannot be replayed",
                one.file, step.name
            ));
        }
    }
    if let Some(parent) = root.task.parent.as_ref().filter(|_| root.definition.of_item) {
        return Err(format!(
            "{}: the order makes one call for an item of a list; name the export of order {}, which has the list, as well",
            root.file, parent.id
        ));
    }
    let (own, children) = match other {
        None => (root.definition.clone(), export::children(&exports)?),
        Some(path) => {
            let family = crate::file::startable(path).map_err(|e| e.to_string())?;
            if family.own.name != root.task.workflow {
                let (file, name, own) = (path.display(), &family.own.name, &root.task.workflow);
                return Err(format!("{file} is workflow `{name}`, and the order is one of `{own}`"));
            }
            ((*family.own).clone(), family.children.iter().map(|one| (**one).clone()).collect())
        }
    };
    let is_other = own.hash() != root.task.workflow_hash;
    if is_other {
        let (hash, ran) = (own.hash(), &root.task.workflow_hash);
        let whose = if other.is_some() { "this file" } else { "the definition in the export" };
        notes.push(format!("the order runs definition {ran}; {whose} is {hash}, another one"));
    }
    export::note(&exports, &mut notes);
    let workflow = Arc::new(fit::fitted(own, &exports, &mut notes));
    let children: Vec<Arc<Workflow>> =
        children.into_iter().map(|one| Arc::new(fit::fitted(one, &exports, &mut notes))).collect();
    let mut told = tell::Told::default();
    for one in &exports {
        tell::tell(one, &exports, &mut told, &mut notes);
    }
    told.tellings.sort_by_key(|telling| telling.at);
    let last = exports.iter().map(|one| one.task.updated_at).max().unwrap_or(root.task.updated_at);
    let lasts = Duration::try_from(root.task.created_at.duration_until(last)).unwrap_or_default();
    let events = tell::of_first(&told.tellings, &root.task.id);
    let retold = Retold {
        first: Box::new(root.task.clone()),
        answers: told.answers,
        tellings: told.tellings,
        lasts,
        is_open: !root.task.process_state().is_final(),
    };
    let script = Script::new(root.input.clone(), BTreeMap::new()).sending(events).retelling(retold);
    Ok(Replay { workflow, children, script: Arc::new(script), notes, is_other, exports })
}

impl Replay {
    /// Plays the order once.
    #[must_use]
    pub fn play(&self) -> Replayed {
        let root = &self.exports[0];
        let mut replayed = Replayed {
            order_id: root.task.id.to_string(),
            workflow: root.task.workflow.clone(),
            other_definition: self.is_other,
            exported_state: root.task.process_state().name(),
            state: "Refused".into(),
            notes: self.notes.clone(),
            ..Replayed::default()
        };
        if let Some(fault) = crate::file::fault(&self.workflow, &self.script.input) {
            replayed.differences.push(Difference::of("input", Value::from("accepted"), Value::from(fault)));
            return replayed;
        }
        let played = retell(&self.workflow, &self.children, &self.script);
        replayed.broken = played.violations.iter().map(ToString::to_string).collect();
        for one in &self.exports {
            let saved = played.saved.get(&one.task.id).map(Vec::as_slice).unwrap_or_default();
            let definition = self.definition(&one.task.workflow);
            let found = compare::compare(one, saved, definition, &played.beside);
            if replayed
                .parts_at
                .as_ref()
                .is_none_or(|parting| found.parting.as_ref().is_some_and(|p| p.at < parting.at))
            {
                replayed.parts_at = found.parting.or(replayed.parts_at.take());
            }
            replayed.differences.extend(found.differences);
            if one.task.id == root.task.id {
                let stands = found.stands.as_ref();
                replayed.state = stands.map_or("Refused", |task| task.process_state().name()).to_owned();
                replayed.history = stands.map(|task| view::history(task, &self.workflow)).unwrap_or_default();
            }
        }
        let retold = self.script.retold.as_ref().expect("it is one");
        let mut calls = BTreeMap::<String, BTreeSet<u32>>::new();
        for sent in played.sent.iter().filter(|sent| !sent.name.ends_with(stepwarden_simulation::REMIND)) {
            calls.entry(sent.name.clone()).or_default().insert(sent.attempt);
        }
        for (name, attempts) in calls {
            let known = retold.answers.iter().find(|(wanted, _)| is_of(&name, wanted)).map(|(_, all)| all.len());
            match known {
                None => replayed.notes.push(format!("`{name}` has no answer in the export, so it got an empty one")),
                Some(known) if known < attempts.len() => replayed.notes.push(format!(
                    "`{name}` was called {} times and has {known} answers in the export, so the last one was repeated",
                    attempts.len()
                )),
                Some(_) => {}
            }
        }
        for (number, telling) in retold.tellings.iter().enumerate() {
            match played.answered.get(&number).map(String::as_str) {
                Some("accepted") => {}
                Some(code) => replayed.notes.push(format!("{} was refused: {code}", tell::words(telling))),
                None => replayed.notes.push(format!("the replay did not come to {}", tell::words(telling))),
            }
        }
        replayed.same = replayed.parts_at.is_none() && replayed.differences.is_empty();
        replayed
    }

    /// The definition that orders of this workflow were played with.
    fn definition(&self, name: &str) -> &Workflow {
        let all = std::iter::once(&self.workflow).chain(&self.children).map(|one| &**one);
        all.clone()
            .chain(all.flat_map(|one| one.steps.iter().filter_map(|step| step.child.as_ref()?.call.as_deref())))
            .find(|one| one.name == name)
            .unwrap_or(&self.workflow)
    }
}

#[cfg(test)]
mod tests;
