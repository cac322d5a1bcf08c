//! Workflow files that a stack brings: the answer to CloudFormation's custom resource.
//!
//! A file is stored and activated if its definition differs from the one that the last deployment brought under its
//! name. So an operator's rollback lasts until the file changes, and a repeated request changes nothing. Nothing is
//! ever removed.
//!
//! The files come as a version of a Lambda layer. `sam deploy` packages a folder for it, and its ARN changes with its
//! content, so CloudFormation asks for an update when a file has changed. Lambda never reuses a layer's version
//! numbers. So an update to a lower number is a rollback, which restores what each name meant before the failed
//! deployment. An old file that is deployed again has a higher number.

#[cfg(feature = "deployment")]
pub mod layer;

use crate::Operator;
use crate::act::{MAX_REASON, unavailable};
use crate::workflows::{Row, Source, State};
use edge::problem::Problem;
use serde::{Deserialize, Serialize};
use shared::history::shorten;
use shared::registry::{Change, Pointer};
use shared::time::{SignedDuration, plus};
use shared::workflow::file::name_of;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use stepwarden_aws::registry::{Brought, Origin, Replaced, Undo};

/// Attempts at an activation that other changes of the same name keep preceding.
const ATTEMPTS: usize = 5;
/// Requests are repeated for at most this long: twice the time that CloudFormation waits for an answer. Until then, an
/// older layer than the last one means a repeat; later, that the layer's numbers began anew.
const REPEATS: SignedDuration = SignedDuration::from_mins(10);
/// AWS CloudFormation, "Custom resource request and response reference": longest response, in bytes.
const MAX_ANSWER: usize = 4096;
/// AWS CloudFormation, "Understand CloudFormation quotas": longest value of an output, in bytes.
const MAX_OUTPUT: usize = 1024;

/// CloudFormation's request; other fields are ignored.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Request {
    /// `Create`, `Update` or `Delete`.
    pub request_type: String,
    /// Where the answer goes: a presigned URL of S3.
    #[serde(rename = "ResponseURL")]
    pub response_url: String,
    /// ARN of the stack.
    pub stack_id: String,
    /// Unique among the stack's requests.
    pub request_id: String,
    /// The resource's name in the template.
    pub logical_resource_id: String,
    /// As answered to `Create`.
    #[serde(default)]
    pub physical_resource_id: Option<String>,
    /// What the template says.
    pub resource_properties: Properties,
    /// With `Update`: what it said before.
    #[serde(default)]
    pub old_resource_properties: Option<Properties>,
}

/// The resource's properties.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Properties {
    /// ARN of the version of the layer with the files.
    #[serde(default)]
    pub layer: String,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Answer {
    /// `SUCCESS` or `FAILED`.
    pub status: String,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// The same for every request of one resource. If it changed, CloudFormation would ask to delete the old one.
    pub physical_resource_id: String,
    /// As in the request.
    pub stack_id: String,
    /// As in the request.
    pub request_id: String,
    /// As in the request.
    pub logical_resource_id: String,
    /// What the template reads with `!GetAtt`.
    pub data: Data,
}

/// What the template reads with `!GetAtt`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Data {
    /// A sentence per file: what became of it, and what it replaced.
    pub changes: String,
}

impl Request {
    /// Name of the stack.
    #[must_use]
    pub fn stack(&self) -> &str {
        let mut parts = self.stack_id.split('/');
        parts.nth(1).unwrap_or(&self.stack_id)
    }

    /// If CloudFormation rolls a deployment back: the version of the layer that it goes back from.
    #[must_use]
    pub fn taken_back(&self) -> Option<&str> {
        let old = self.old_resource_properties.as_ref()?.layer.as_str();
        is_newer(old, &self.resource_properties.layer).then_some(old)
    }

    /// The answer, cut to the limit.
    #[must_use]
    pub fn answer(&self, result: Result<Vec<String>, String>) -> Answer {
        let own = || format!("{}/{}", self.stack(), self.logical_resource_id);
        let (status, reason, changes) = match result {
            Ok(changes) => ("SUCCESS", String::new(), changes.join("; ")),
            Err(reason) => ("FAILED", reason, String::new()),
        };
        let mut answer = Answer {
            status: status.into(),
            reason: shorten(&reason, MAX_ANSWER / 2),
            physical_resource_id: self.physical_resource_id.clone().unwrap_or_else(own),
            stack_id: self.stack_id.clone(),
            request_id: self.request_id.clone(),
            logical_resource_id: self.logical_resource_id.clone(),
            data: Data { changes: shorten(&changes, MAX_OUTPUT) },
        };
        // Quotation marks and line ends take more room in JSON.
        while serde_json::to_string(&answer).is_ok_and(|json| json.len() > MAX_ANSWER) && answer.reason.len() > 3 {
            answer.reason = shorten(&answer.reason, answer.reason.len() / 2);
        }
        answer
    }
}

/// A workflow file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its name, for errors.
    pub name: String,
    /// Its text.
    pub toml: String,
}

/// A deployment of a folder.
#[derive(Clone, Copy, Debug)]
pub struct Deployment<'a> {
    /// Name of the folder's stack.
    pub stack: &'a str,
    /// Whether it makes the stack.
    pub creates: bool,
    /// ARN of the layer version with its files; for a rollback, the version that it goes back from.
    pub layer: &'a str,
    /// Whether it is a rollback.
    pub is_back: bool,
}

/// Whether `one` is a later version of the same layer than `other`.
fn is_newer(one: &str, other: &str) -> bool {
    let parts = |arn: &str| {
        arn.rsplit_once(':').and_then(|(name, number)| Some((name.to_owned(), number.parse::<u64>().ok()?)))
    };
    matches!((parts(one), parts(other)), (Some(one), Some(other)) if one.0 == other.0 && one.1 > other.1)
}

impl Operator {
    /// Stores and activates each file whose definition the last deployment did not bring; what became of each.
    ///
    /// # Errors
    /// Faults of the files, each with its line; then nothing was done. Or the store's; then some may be active, and the
    /// next deployment continues.
    pub async fn deploy(&self, files: &[File], deployment: Deployment<'_>) -> Result<Vec<String>, String> {
        let workflows = match self.all(files) {
            Ok(workflows) => workflows,
            // The files were good once, and a rollback must not fail.
            Err(why) if deployment.is_back => return Ok(vec![why]),
            Err(why) => return Err(why),
        };
        let mut changes = Vec::with_capacity(files.len());
        for (file, workflow) in files.iter().zip(&workflows) {
            let done = self.bring(file, workflow, deployment).await;
            let told = done.map_err(|problem| format!("{}: {}", file.name, problem.detail))?;
            // `take_back` has reported a rollback, unless it leads to files that were not there before.
            if !deployment.is_back || !told.starts_with(&format!("{}: unchanged", workflow.name)) {
                changes.push(told);
            }
        }
        Ok(changes)
    }

    /// Restores each name's meaning before a failed deployment of `files`; returns what became of each. Later changes
    /// stay.
    ///
    /// # Errors
    /// The store's; some names may be restored. A repeat continues.
    pub async fn take_back(&self, files: &[File], deployment: Deployment<'_>) -> Result<Vec<String>, String> {
        let mut changes = Vec::new();
        // A file without a name was not deployed.
        for (file, name) in files.iter().filter_map(|file| Some((file, name_of(&file.toml)?))) {
            let done = self.restore(&name, deployment).await;
            changes.extend(done.map_err(|problem| format!("{}: {}", file.name, problem.detail))?);
        }
        Ok(changes)
    }

    /// The workflows in the files, if all of them can run here.
    fn all(&self, files: &[File]) -> Result<Vec<Workflow>, String> {
        let (mut workflows, mut wrong) = (Vec::new(), Vec::new());
        let mut names: BTreeMap<String, &str> = BTreeMap::new();
        for file in files {
            match self.read(&file.name, &file.toml) {
                Ok(workflow) => {
                    if let Some(other) = names.insert(workflow.name.clone(), &file.name) {
                        wrong.push(format!("{}: {other} also defines workflow `{}`", file.name, workflow.name));
                    }
                    workflows.push(workflow);
                }
                Err(problem) if problem.detail.starts_with(&file.name) => wrong.push(problem.detail),
                Err(problem) => wrong.push(format!("{}: {}", file.name, problem.detail)),
            }
        }
        match wrong.is_empty() {
            true if files.is_empty() => Err("the folder has no workflow file (a file whose name ends in .toml)".into()),
            true => Ok(workflows),
            false => Err(wrong.join("; ")),
        }
    }

    async fn bring(&self, file: &File, workflow: &Workflow, deployment: Deployment<'_>) -> Result<String, Problem> {
        let (store, name, hash) = (&self.engine.store, &workflow.name, workflow.hash());
        let before = store.brought(name).await.map_err(|e| unavailable(&e))?;
        let is_late = before.as_ref().is_some_and(|before| {
            let newest = before.layer.as_deref().unwrap_or_default();
            self.engine.now() < plus(before.since, REPEATS)
                && (is_newer(newest, deployment.layer) || newest == deployment.layer && !deployment.is_back)
        });
        let before = before.and_then(|before| before.hash);
        if is_late || before.as_ref() == Some(&hash) {
            return Ok(unchanged(name, &hash, self.found(name).await?.as_ref()));
        }
        let (by, since) = (by_stack(deployment.stack), self.engine.now());
        let reason = shorten(&format!("deployed {}", file.name), MAX_REASON);
        let origin = Origin { by: by.clone(), reason: reason.clone(), since };
        store.keep_definition(workflow, &file.toml, &origin).await.map_err(|e| unavailable(&e))?;
        let brought = Brought {
            hash: Some(hash.clone()),
            stack: deployment.stack.to_owned(),
            layer: Some(deployment.layer.to_owned()),
            undo: Some(Undo { brought: before, created: deployment.creates, change: None }),
            since,
        };
        let change = Change::Activate(hash.clone());
        let mut attempt = 1;
        let row = loop {
            let row = self.found(name).await?;
            match self.changed(name, &change, None, (by.clone(), reason.clone()), Some(brought.clone())).await {
                Ok(_) => break row,
                // The deployment prevails, whoever was faster.
                Err(problem) if problem.code == "workflow_moved" && attempt < ATTEMPTS => attempt += 1,
                Err(problem) => return Err(problem),
            }
        };
        let mut told = activated(name, &hash, row.as_ref());
        if row.is_some_and(|row| row.source == Source::Operator && row.hash.as_ref() != Some(&hash)) {
            tracing::warn!(
                workflow = name,
                stack = deployment.stack,
                "a deployment replaced the definition that an operator had activated: {told}"
            );
        }
        for warning in self.warnings(workflow).await {
            told.push_str(&format!("; warning: {warning}"));
        }
        Ok(told)
    }

    /// Restores `name` as before this deployment; `None` if the deployment did not change it.
    async fn restore(&self, name: &str, deployment: Deployment<'_>) -> Result<Option<String>, Problem> {
        let store = &self.engine.store;
        let Some(Brought { hash: Some(hash), stack, layer, undo: Some(undo), since: _ }) =
            store.brought(name).await.map_err(|e| unavailable(&e))?
        else {
            return Ok(None);
        };
        let is_its = stack == deployment.stack && layer.as_deref() == Some(deployment.layer);
        if !is_its || deployment.creates && !undo.created {
            return Ok(None);
        }
        let since = self.engine.now();
        let after = Brought { hash: undo.brought, stack, layer, undo: None, since };
        let keep = async || store.keep_brought(name, &after).await.map_err(|e| unavailable(&e));
        let Some(Replaced { version, active, last, previous }) = undo.change else {
            return keep().await.map(|()| Some(format!("{name}: unchanged")));
        };
        let seen = self.seen().await?;
        let is_still = |row: &Row| row.source == Source::Operator && row.version == version;
        if seen.row(name).as_ref().is_some_and(is_still) {
            let told = taken_back(name, active, last.as_ref());
            let next = Pointer {
                hash: last.unwrap_or(hash),
                previous,
                retired: !active,
                over: seen.deployed(name),
                version: version + 1,
                by: by_stack(deployment.stack),
                since,
            };
            let reason = "the deployment failed, so its changes were reverted";
            let set = store.set_pointer(name, &next, seen.stored.get(name), reason, Some(&after)).await;
            if set.map_err(|e| unavailable(&e))? {
                let _ = self.engine.pointers_now().await;
                return Ok(Some(told));
            }
        }
        // Whoever changed it later knew its meaning.
        keep().await?;
        let row = self.found(name).await?;
        Ok(Some(format!("{name}: not restored, because {} has changed it since", row.as_ref().map_or("somebody", by))))
    }
}

fn by_stack(stack: &str) -> String {
    format!("stack {stack}")
}

fn taken_back(name: &str, was_active: bool, last: Option<&Hash>) -> String {
    match (was_active, last) {
        (true, Some(last)) => format!("{name}: {} is active again, as before this deployment", short(last)),
        (_, Some(_)) => format!("{name}: is retired again, as before this deployment"),
        (_, None) => format!("{name}: is retired, because this deployment introduced it"),
    }
}

fn short(hash: &Hash) -> String {
    hash.0.chars().take(12).collect()
}

/// Who set the name's meaning.
fn by(row: &Row) -> &str {
    match (&row.source, &row.last_change) {
        (Source::Operator, Some(change)) => &change.by,
        (Source::Operator | Source::Deployment, _) => "the system's own deployment",
    }
}

fn unchanged(name: &str, hash: &Hash, row: Option<&Row>) -> String {
    match row {
        Some(row) if row.state == State::Retired => format!("{name}: unchanged, and retired by {}", by(row)),
        Some(Row { hash: Some(active), .. }) if active != hash => {
            let who = row.map_or("", by);
            format!("{name}: unchanged, so {} stays active, activated by {who}", short(active))
        }
        _ => format!("{name}: unchanged"),
    }
}

fn activated(name: &str, hash: &Hash, before: Option<&Row>) -> String {
    let new = short(hash);
    match before {
        None => format!("{name}: {new} is active"),
        Some(row) => match (&row.state, &row.hash) {
            (State::Active, Some(old)) if old == hash => format!("{name}: {new} was active already"),
            (State::Active, old) => {
                let old = old.as_ref().map(short).unwrap_or_default();
                format!("{name}: {new} is active and replaces {old}, activated by {}", by(row))
            }
            (State::Retired, _) => format!("{name}: {new} is active; {} had retired it", by(row)),
            (State::Unreadable, _) => format!("{name}: {new} is active; its record could not be read"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_fits_into_what_cloudformation_reads() {
        let request = Request {
            request_type: "Create".into(),
            response_url: String::new(),
            stack_id: "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop-agents/1f".into(),
            request_id: "r".repeat(36),
            logical_resource_id: "Workflows".into(),
            physical_resource_id: None,
            resource_properties: Properties { layer: String::new() },
            old_resource_properties: None,
        };
        assert_eq!(request.stack(), "shop-agents");
        for result in [Ok(vec!["\"é\n".repeat(2000)]), Err("\u{1}\"".repeat(5000)), Err("x".repeat(5000))] {
            let answer = request.answer(result);
            assert!(serde_json::to_string(&answer).unwrap().len() <= MAX_ANSWER);
            assert!(answer.data.changes.len() <= MAX_OUTPUT);
            assert_eq!(answer.physical_resource_id, "shop-agents/Workflows");
        }
    }
}
