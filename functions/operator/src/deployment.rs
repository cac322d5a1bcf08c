//! Workflow files that a stack brings: the answer to CloudFormation's custom resource.
//!
//! A file is put and activated if its definition differs from the one that the last deployment brought under its name. So a rollback
//! by an operator lasts until the file changes, and a repeated request changes nothing. Nothing is ever removed.
//!
//! The files come as the version of a Lambda layer: `sam deploy` packages a folder for it, and its ARN changes with its content, so
//! CloudFormation asks for an update when a file has changed.

#[cfg(feature = "deployment")]
pub mod layer;

use crate::Operator;
use crate::act::{MAX_REASON, unavailable};
use crate::workflows::{Row, Source, State};
use edge::problem::Problem;
use serde::{Deserialize, Serialize};
use shared::history::shorten;
use shared::registry::Change;
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use stepwarden_aws::registry::{Brought, Origin};

/// Attempts at an activation that somebody else's change of the same name precedes.
const ATTEMPTS: usize = 5;
/// AWS CloudFormation, "Custom resource request and response reference": longest response, in bytes.
const MAX_ANSWER: usize = 4096;
/// AWS CloudFormation, "Understand CloudFormation quotas": longest value of an output, in bytes.
const MAX_OUTPUT: usize = 1024;

/// CloudFormation's request. What else it has is of no use here.
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
    /// What was answered to `Create`.
    #[serde(default)]
    pub physical_resource_id: Option<String>,
    /// What the template says.
    pub resource_properties: Properties,
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
    /// The same for every request of one resource: with another one, CloudFormation would ask to delete the old one.
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
    /// What became of each file, and what it replaced, a sentence each.
    pub changes: String,
}

impl Request {
    /// Name of the stack.
    #[must_use]
    pub fn stack(&self) -> &str {
        let mut parts = self.stack_id.split('/');
        parts.nth(1).unwrap_or(&self.stack_id)
    }

    /// The answer to it, which is short enough.
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

impl Operator {
    /// Puts and activates each file that is another definition than the last deployment brought; what became of each.
    ///
    /// # Errors
    /// What is wrong with the files, each with its line; then nothing was done. Or the store's: then some may be active, and the
    /// next deployment continues.
    pub async fn deploy(&self, files: &[File], stack: &str) -> Result<Vec<String>, String> {
        let workflows = self.all(files)?;
        let mut changes = Vec::with_capacity(files.len());
        for (file, workflow) in files.iter().zip(&workflows) {
            let done = self.bring(file, workflow, stack).await;
            changes.push(done.map_err(|problem| format!("{}: {}", file.name, problem.detail))?);
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
            true if files.is_empty() => Err("the folder has no workflow file; a file ends in .toml".into()),
            true => Ok(workflows),
            false => Err(wrong.join("; ")),
        }
    }

    async fn bring(&self, file: &File, workflow: &Workflow, stack: &str) -> Result<String, Problem> {
        let (store, name, hash) = (&self.engine.store, &workflow.name, workflow.hash());
        let before = store.brought(name).await.map_err(|e| unavailable(&e))?;
        if before.is_some_and(|before| before.hash == hash) {
            return Ok(unchanged(name, &hash, self.found(name).await?.as_ref()));
        }
        let (by, since) = (format!("stack {stack}"), self.engine.now());
        let reason = shorten(&format!("deployed {}", file.name), MAX_REASON);
        let origin = Origin { by: by.clone(), reason: reason.clone(), since };
        store.keep_definition(workflow, &file.toml, &origin).await.map_err(|e| unavailable(&e))?;
        let brought = Brought { hash: hash.clone(), stack: stack.to_owned(), since };
        let change = Change::Activate(hash.clone());
        let mut attempt = 1;
        let row = loop {
            let row = self.found(name).await?;
            match self.changed(name, &change, None, (by.clone(), reason.clone()), Some(&brought)).await {
                Ok(_) => break row,
                // The deployment is the newest wish, whoever was faster.
                Err(problem) if problem.code == "workflow_moved" && attempt < ATTEMPTS => attempt += 1,
                Err(problem) => return Err(problem),
            }
        };
        let mut told = activated(name, &hash, row.as_ref());
        if row.is_some_and(|row| row.source == Source::Operator && row.hash.as_ref() != Some(&hash)) {
            tracing::warn!(workflow = name, stack, "a deployment replaced what was activated: {told}");
        }
        for warning in self.warnings(workflow).await {
            told.push_str(&format!("; warning: {warning}"));
        }
        Ok(told)
    }
}

fn short(hash: &Hash) -> String {
    hash.0.chars().take(12).collect()
}

/// Who made the name what it is.
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
