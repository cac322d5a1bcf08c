//! Secrets that workflow files name. They are never in a file of the project, a message, a record or a log.

use aws_sdk_secretsmanager::Client;
use shared::workflow::Workflow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tokio::sync::Mutex;

/// Longest time until a changed secret is used.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Shortest time until a missing name, or a failed read, is tried again.
const MISSED_FOR: Duration = Duration::from_secs(10);
/// Longest wait for Secrets Manager, which holds up the whole process's calls.
const READ_WITHIN: Duration = Duration::from_secs(3);

/// Where secrets are.
pub enum Secrets {
    /// On this machine: in the environment variable [`variable`], or in a file of this folder named like the secret.
    Here {
        /// One file per secret; a line end at its end is ignored.
        folder: Option<PathBuf>,
    },
    /// In AWS Secrets Manager: one secret whose value is a JSON object of names and values.
    Manager(Box<Manager>),
}

/// The secret in AWS Secrets Manager, as last read.
pub struct Manager {
    client: Client,
    id: String,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// The last good read, and when it began.
    read: Option<(Instant, BTreeMap<String, String>)>,
    /// The failed try since then, if any: when it began, and why it failed.
    failed: Option<(Instant, String)>,
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
    /// Secrets in the one whose name or ARN is `id`, first read when needed.
    #[must_use]
    pub fn manager(client: Client, id: String) -> Self {
        Self::Manager(Box::new(Manager { client, id, known: Mutex::default() }))
    }

    /// Whether they are on this machine, so that this is the local system.
    #[must_use]
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Here { .. })
    }

    /// The secret called `name`.
    ///
    /// # Errors
    /// Why it is missing, and where to put it.
    pub async fn get(&self, name: &str) -> Result<String, String> {
        match self {
            Self::Here { folder } => here(folder.as_ref(), name),
            Self::Manager(manager) => manager.get(name).await,
        }
    }

    /// The first missing secret that a workflow's call needs, in words.
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

impl Known {
    /// Whether `now` is too early to read the secret again for `name`.
    fn is_fresh(&self, name: &str, now: Instant) -> bool {
        let within = |began: Instant, span: Duration| now.saturating_duration_since(began) < span;
        let span = |all: &BTreeMap<String, String>| if all.contains_key(name) { KEPT_FOR } else { MISSED_FOR };
        self.read.as_ref().is_some_and(|(began, all)| within(*began, span(all)))
            || self.failed.as_ref().is_some_and(|(began, _)| within(*began, MISSED_FOR))
    }

    /// The value of `name`, or why it is unknown. An old good value is better than none.
    fn value(&self, name: &str) -> Result<Option<&str>, &str> {
        let value = self.read.as_ref().and_then(|(_, all)| all.get(name)).map(String::as_str);
        match &self.failed {
            Some((_, why)) if value.is_none() => Err(why.as_str()),
            _ => Ok(value),
        }
    }
}

impl Manager {
    async fn get(&self, name: &str) -> Result<String, String> {
        if self.id.is_empty() {
            return Err("this deployment has no secrets; set its parameter HttpSecretArn".into());
        }
        let mut known = self.known.lock().await;
        let now = Instant::now();
        if !known.is_fresh(name, now) {
            let why = format!("reading {} from Secrets Manager took longer than {} s", self.id, READ_WITHIN.as_secs());
            // Set before the wait: a caller that gives up has tried as well.
            known.failed = Some((now, why));
            match tokio::time::timeout(READ_WITHIN, self.fetch()).await {
                Ok(Ok(all)) => *known = Known { read: Some((now, all)), failed: None },
                Ok(Err(why)) => known.failed = Some((now, why)),
                Err(_) => {}
            }
        }
        match known.value(name) {
            Ok(Some(value)) => Ok(value.to_owned()),
            Ok(None) => Err(format!("add `{name}` to the JSON object in {}", self.id)),
            Err(why) => Err(why.to_owned()),
        }
    }

    async fn fetch(&self) -> Result<BTreeMap<String, String>, String> {
        let answer = self.client.get_secret_value().secret_id(&self.id).send().await.map_err(|e| {
            let e = aws_sdk_secretsmanager::error::DisplayErrorContext(e);
            format!("reading {} from Secrets Manager: {e}", self.id)
        })?;
        // Not the parser's words: they may quote the secret.
        serde_json::from_str(answer.secret_string().unwrap_or_default())
            .map_err(|_| format!("{} is not a JSON object of names and strings", self.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_secretsmanager::Config;
    use aws_sdk_secretsmanager::config::{BehaviorVersion, Region};

    // A failed try is not repeated at once, and earlier values remain valid.
    #[test]
    fn what_is_known_is_used_for_a_while() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut known = Known::default();
        assert!(!known.is_fresh("crm", start));
        known.read = Some((start, BTreeMap::from([("crm".into(), "s3cret".into())])));
        assert!(known.is_fresh("crm", after(299)) && !known.is_fresh("crm", after(300)));
        assert!(known.is_fresh("new", after(9)) && !known.is_fresh("new", after(10)));
        assert_eq!(known.value("new"), Ok(None));
        known.failed = Some((after(300), "down".into()));
        for name in ["crm", "new"] {
            assert!(known.is_fresh(name, after(309)) && !known.is_fresh(name, after(310)), "{name}");
        }
        assert_eq!(known.value("crm"), Ok(Some("s3cret")));
        assert_eq!(known.value("new"), Err("down"));
    }

    // While Secrets Manager is silent, one call waits for it, for a bounded time; later calls do not.
    #[tokio::test]
    async fn a_silent_secrets_manager_is_waited_for_once() {
        // Accepts connections, and never answers.
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let config = Config::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::new("local"))
            .endpoint_url(format!("http://{}", listener.local_addr().unwrap()))
            .allow_no_auth()
            .build();
        let secrets = Secrets::manager(Client::from_conf(config), "shop-http".into());
        let bound = Duration::from_secs(20);
        let first = tokio::time::timeout(bound, secrets.get("crm")).await.expect("the wait is bounded").unwrap_err();
        assert!(first.contains("shop-http") && first.contains("longer than 3 s"), "{first}");
        let next = tokio::time::timeout(Duration::from_secs(1), secrets.get("crm")).await;
        assert_eq!(next.expect("it is not asked again"), Err(first));
    }
}
