//! Secrets that workflow files refer to by name. None of them is in a file of the project, a message, a record or a log.

use aws_sdk_secretsmanager::Client;
use shared::workflow::Workflow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// A secret that was changed is used after this at the latest.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// A name that is missing is looked for again after this at the earliest.
const MISSED_FOR: Duration = Duration::from_secs(10);

/// Where secrets are.
pub enum Secrets {
    /// On this machine: in the environment variable [`variable`], or in a file of this folder that is called as the secret.
    Here {
        /// One file for each secret; a line end at its end does not count.
        folder: Option<PathBuf>,
    },
    /// In AWS Secrets Manager: one secret that holds a JSON object, of names and values.
    Manager(Box<Manager>),
}

/// The secret in AWS Secrets Manager, as it was read last.
pub struct Manager {
    client: Client,
    id: String,
    read: Mutex<Option<(Instant, BTreeMap<String, String>)>>,
}

impl Default for Secrets {
    fn default() -> Self {
        Self::Here { folder: None }
    }
}

/// The environment variable that holds a secret on this machine.
#[must_use]
pub fn variable(name: &str) -> String {
    format!("STEPWARDEN_SECRET_{}", name.to_uppercase().replace('-', "_"))
}

impl Secrets {
    /// In the secret whose name or ARN is `id`. It is read when it is needed first.
    #[must_use]
    pub fn manager(client: Client, id: String) -> Self {
        Self::Manager(Box::new(Manager { client, id, read: Mutex::new(None) }))
    }

    /// They are on this machine, so this is the local system.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Here { .. })
    }

    /// The secret called `name`.
    ///
    /// # Errors
    /// Why there is none, and where to put it.
    pub async fn get(&self, name: &str) -> Result<String, String> {
        match self {
            Self::Here { folder } => here(folder.as_ref(), name),
            Self::Manager(manager) => manager.get(name).await,
        }
    }

    /// The first secret that a call of a workflow needs and that is not there, in words.
    pub async fn missing(&self, workflows: impl Iterator<Item = &Workflow>) -> Option<String> {
        for workflow in workflows {
            for (step, http) in workflow.calls_over_http() {
                for name in http.secrets() {
                    if let Err(why) = self.get(name).await {
                        return Some(format!(
                            "step `{step}` of workflow `{}` needs secret `{name}`: {why}",
                            workflow.name
                        ));
                    }
                }
            }
        }
        None
    }
}

fn here(folder: Option<&PathBuf>, name: &str) -> Result<String, String> {
    let variable = variable(name);
    if let Ok(value) = std::env::var(&variable) {
        return Ok(value);
    }
    let Some(folder) = folder else {
        return Err(format!("set {variable}, or set STEPWARDEN_SECRETS to a folder with a file `{name}`"));
    };
    let path = folder.join(name);
    let text = std::fs::read_to_string(&path)
        .map_err(|e| format!("{} cannot be read ({e}), and {variable} is not set", path.display()))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

impl Manager {
    async fn get(&self, name: &str) -> Result<String, String> {
        let mut read = self.read.lock().await;
        if let Some((at, all)) = &*read {
            let value = all.get(name);
            if at.elapsed() < if value.is_some() { KEPT_FOR } else { MISSED_FOR } {
                return value.cloned().ok_or_else(|| self.no_such(name));
            }
        }
        if self.id.is_empty() {
            return Err("this deployment has no secrets; set its parameter HttpSecretArn".into());
        }
        match self.fetch().await {
            Ok(all) => {
                let value = all.get(name).cloned().ok_or_else(|| self.no_such(name));
                *read = Some((Instant::now(), all));
                value
            }
            // What was good a while ago is better than nothing.
            Err(why) => read.as_ref().and_then(|(_, all)| all.get(name).cloned()).ok_or(why),
        }
    }

    async fn fetch(&self) -> Result<BTreeMap<String, String>, String> {
        let answer = self.client.get_secret_value().secret_id(&self.id).send().await.map_err(|e| {
            let e = aws_sdk_secretsmanager::error::DisplayErrorContext(e);
            format!("reading {} from Secrets Manager: {e}", self.id)
        })?;
        // Not the parser's words: they may quote the secret.
        serde_json::from_str(answer.secret_string().unwrap_or_default())
            .map_err(|_| format!("{} is no JSON object of names and texts", self.id))
    }

    fn no_such(&self, name: &str) -> String {
        format!("add `{name}` to the JSON object in {}", self.id)
    }
}
