//! Registered workflows: definitions beside the deployment's, and which one a name means.

use crate::Operator;
use crate::act::{self, MAX_BY, MAX_REASON, unavailable};
use edge::problem::{self, Problem};
use edge::whole_number;
use edge::workflows::{INPUT_CHECKS, Workflows};
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::history::shorten;
use shared::ports::{Error, StateStore};
use shared::registry::{self, Change, Meaning, Pointer, Pointers, Refused, differences};
use shared::time::Timestamp;
use shared::workflow::file::{Known, MAX_NAME, parse_for};
use shared::workflow::{Hash, Workflow};
use std::collections::{BTreeMap, BTreeSet};
use stepwarden_aws::registry as stored;

/// Longest text of a definition, in bytes.
pub const MAX_TOML: usize = 32 * 1024;
/// Changes in one answer.
pub const PAGE: u64 = 20;
/// Longest hash and longest name of a file.
pub(crate) const MAX_HASH: usize = 64;
const MAX_FILE: usize = 200;
/// Largest whole number that every parser of JSON keeps exactly.
const MAX_VERSION: u64 = (1 << 53) - 1;
/// What may be done to a name, as in the routes.
pub const VERBS: [&str; 3] = ["activate", "retire", "rollback"];

/// A name and what it stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WorkflowRow")]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Whether it takes orders.
    pub state: State,
    /// Hash of the definition that new orders get. Absent if the name takes no orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub hash: Option<Hash>,
    /// Hash of the definition that a rollback would activate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub previous: Option<Hash>,
    /// Who made the name stand for it.
    pub source: Source,
    /// Hash of the definition in the deployment, if it has one of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub deployed: Option<Hash>,
    /// Number of the last change by a person, for `if_version`; 0 if there was none, or if it cannot be read.
    pub version: u64,
    /// The last change by a person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<ChangeRow>,
}

/// Whether a workflow takes orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "WorkflowState")]
pub enum State {
    /// It does.
    Active,
    /// A person retired it.
    Retired,
    /// What the name stands for cannot be read; activating a definition mends it.
    Unreadable,
}

/// Who made a name stand for a definition, or for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "WorkflowSource")]
pub enum Source {
    /// The file came with a deployment.
    Deployment,
    /// A person activated the definition, or retired the name.
    Operator,
}

/// One change of what a name stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WorkflowChange")]
pub struct ChangeRow {
    /// Its number, from 1.
    pub version: u64,
    /// Hash of the definition that was activated. Absent if the name was retired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub hash: Option<Hash>,
    /// Name of the person.
    pub by: String,
    /// Why; only in the history of one workflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// When (UTC, milliseconds).
    pub since: Timestamp,
}

impl ChangeRow {
    fn new(pointer: &Pointer, reason: Option<String>) -> Self {
        let Pointer { hash, retired, version, by, since, previous: _, over: _ } = pointer;
        let hash = (!retired).then(|| hash.clone());
        Self { version: *version, hash, by: by.clone(), reason, since: *since }
    }
}

/// All workflows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Workflows")]
pub struct All {
    /// By name.
    pub workflows: Vec<Row>,
    /// The agents that a definition may name.
    pub agents: Vec<String>,
}

/// A workflow with its history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WorkflowHistory")]
pub struct Details {
    /// What its name stands for.
    #[serde(flatten)]
    pub row: Row,
    /// Its changes, newest first.
    pub history: Vec<ChangeRow>,
    /// Where the history continues, for the parameter `before`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<u64>,
}

/// A definition.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Definition {
    /// Name of its workflow.
    pub name: String,
    /// Its hash.
    #[schemars(with = "String")]
    pub hash: Hash,
    /// The text that was put; absent for a definition that came only with a deployment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toml: Option<String>,
    /// Who put it last; absent in the same case.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// The definition as orders run it.
    pub definition: Value,
}

/// Who put a definition, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WorkflowOrigin")]
pub struct Origin {
    /// Name of the person.
    pub by: String,
    /// Why.
    pub reason: String,
    /// When (UTC, milliseconds).
    pub since: Timestamp,
}

/// A definition to keep.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkflowFile")]
pub struct Put {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// The text of the workflow file.
    #[schemars(length(min = 1, max = MAX_TOML))]
    pub toml: String,
    /// Name of the file, for errors.
    #[serde(default)]
    #[schemars(length(max = MAX_FILE))]
    pub file: Option<String>,
}

/// What a definition is and would change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "WorkflowPut")]
pub struct Done {
    /// Name of the workflow.
    pub name: String,
    /// Hash of the definition.
    #[schemars(with = "String")]
    pub hash: Hash,
    /// Hash of the definition that new orders get. Absent if the name takes no orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub active: Option<Hash>,
    /// Number of the last change of the name, for `if_version` of an activation; 0 if there was none, or if it cannot be read.
    pub version: u64,
    /// What differs from the active definition, one sentence each.
    pub differences: Vec<String>,
    /// What may keep its orders from running, one sentence each.
    pub warnings: Vec<String>,
}

/// Required in the schema, although serde's default, for a clear refusal, makes it optional.
fn needs_version(schema: &mut Schema) {
    if let Some(Value::Array(required)) = schema.ensure_object().get_mut("required") {
        required.push("if_version".into());
    }
}

/// A change of what a name stands for.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkflowAct", transform = needs_version)]
pub struct Wish {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// `version` of the workflow as it was read, 0 for a new name: if somebody has changed it since, nothing is done.
    #[schemars(with = "u64", range(max = MAX_VERSION))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub if_version: Option<u64>,
}

/// A definition to activate.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "WorkflowActivation", transform = needs_version)]
pub struct Activation {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// Hash of the definition.
    #[schemars(required, length(max = MAX_HASH))]
    pub hash: Option<String>,
    /// `version` of the workflow as it was read, 0 for a new name: if somebody has changed it since, nothing is done.
    #[schemars(with = "u64", range(max = MAX_VERSION))]
    #[serde(default, deserialize_with = "whole_number::optional")]
    pub if_version: Option<u64>,
}

impl Activation {
    /// What it asks for.
    ///
    /// # Errors
    /// It names no definition.
    pub fn parts(self) -> Result<(Change, Wish), Problem> {
        let Self { by, reason, hash, if_version } = self;
        let none =
            || problem::invalid_field("hash", "is required; GET /workflows/{name} lists the hashes that were active");
        Ok((Change::Activate(Hash(hash.ok_or_else(none)?)), Wish { by, reason, if_version }))
    }
}

/// What one read found.
pub(crate) struct Seen<'a> {
    deployed: &'a Workflows,
    pub(crate) stored: BTreeMap<String, stored::Stored>,
    pointers: Pointers,
}

impl Seen<'_> {
    fn names(&self) -> BTreeSet<&String> {
        self.pointers.keys().chain(self.deployed.keys()).collect()
    }

    pub(crate) fn deployed(&self, name: &str) -> Option<Hash> {
        self.deployed.get(name).map(Workflow::hash)
    }

    /// `None`: there never was such a name.
    pub(crate) fn row(&self, name: &str) -> Option<Row> {
        let (entry, deployed) = (self.pointers.get(name), self.deployed(name));
        let (state, hash) = match registry::meaning(entry, deployed.as_ref()) {
            Meaning::Active(hash) => (State::Active, Some(hash.clone())),
            Meaning::Retired(_) => (State::Retired, None),
            Meaning::Unreadable => (State::Unreadable, None),
            Meaning::Unknown => return None,
        };
        let pointer = entry.and_then(Option::as_ref);
        let is_deployed = pointer.map_or(entry.is_none(), |pointer| registry::is_overtaken(pointer, deployed.as_ref()));
        Some(Row {
            name: name.to_owned(),
            state,
            hash,
            previous: registry::back(entry, deployed.as_ref()).cloned(),
            source: if is_deployed { Source::Deployment } else { Source::Operator },
            deployed,
            version: pointer.map_or(0, |pointer| pointer.version),
            last_change: pointer.map(|pointer| ChangeRow::new(pointer, None)),
        })
    }

    /// The row of a name that exists.
    fn known(&self, name: &str) -> Result<Row, Problem> {
        self.row(name).ok_or_else(|| no_such_workflow(name))
    }

    fn version(&self, name: &str) -> u64 {
        self.row(name).map_or(0, |row| row.version)
    }

    /// What the change with this number replaces.
    fn replaced(&self, name: &str, version: u64) -> stored::Replaced {
        let (entry, deployed) = (self.pointers.get(name), self.deployed(name));
        let (last, previous) = registry::last_two(entry, deployed.as_ref());
        let active = matches!(registry::meaning(entry, deployed.as_ref()), Meaning::Active(_));
        stored::Replaced { version, active, last: last.cloned(), previous: previous.cloned() }
    }
}

impl Operator {
    /// All workflows, by name.
    ///
    /// # Errors
    /// The store's.
    pub async fn workflows(&self) -> Result<All, Problem> {
        let seen = self.seen().await?;
        let workflows = seen.names().into_iter().filter_map(|name| seen.row(name)).collect();
        Ok(All { workflows, agents: self.config.agents.clone() })
    }

    /// The workflow called `name` and its changes with a number below `before`, or the latest.
    ///
    /// # Errors
    /// The name was never registered, or the store failed.
    pub async fn workflow_history(&self, name: &str, before: Option<u64>) -> Result<Details, Problem> {
        let row = self.seen().await?.known(name)?;
        let from = before.map_or(row.version, |before| row.version.min(before.saturating_sub(1)));
        let entries = self.engine.store.pointer_history(name, from, PAGE).await.map_err(|e| unavailable(&e))?;
        let history = entries.into_iter().map(|entry| ChangeRow::new(&entry.pointer, Some(entry.reason))).collect();
        Ok(Details { row, history, next: (from > PAGE).then(|| from - PAGE + 1) })
    }

    /// The definition of `name` with this hash.
    ///
    /// # Errors
    /// The definition is missing or cannot be read, or the store failed.
    pub async fn definition(&self, name: &str, hash: &str) -> Result<Definition, Problem> {
        let hash = Hash(hash.to_owned());
        let stored::Definition { workflow, toml, origin } = self.kept_or_deployed(name, &hash).await?;
        let origin = origin.map(|stored::Origin { by, reason, since }| Origin { by, reason, since });
        let definition = serde_json::to_value(workflow).expect("a workflow has only string keys");
        Ok(Definition { name: name.to_owned(), hash, toml, origin, definition })
    }

    /// Checks a definition and keeps it. New orders get it once it is activated.
    ///
    /// # Errors
    /// The text is no workflow, with the line; or the store's.
    pub async fn put_workflow(&self, put: &Put, subject: Option<&str>) -> Result<Done, Problem> {
        let (by, reason) = act::who_and_why(subject, put.by.as_deref(), put.reason.as_deref())?;
        let workflow = self.checked(put)?;
        let (name, hash) = (workflow.name.clone(), workflow.hash());
        let seen = self.seen().await?;
        let active = seen.row(&name).and_then(|row| row.hash);
        let mut warnings = self.warnings(&workflow).await;
        let differences = match &active {
            None => Vec::new(),
            Some(active) => match self.kept_or_deployed(&name, active).await {
                Ok(before) => differences(&before.workflow, &workflow),
                Err(problem) => {
                    warnings
                        .push(format!("the differences from the active definition are unknown: {}", problem.detail));
                    Vec::new()
                }
            },
        };
        tracing::info!(workflow = name, hash = %hash, operator = %by, "putting a workflow: {reason}");
        let origin = stored::Origin { by, reason, since: self.engine.now() };
        self.engine.store.keep_definition(&workflow, &put.toml, &origin).await.map_err(|e| unavailable(&e))?;
        Ok(Done { version: seen.version(&name), active, differences, warnings, name, hash })
    }

    /// Changes what `name` stands for.
    ///
    /// # Errors
    /// There is no such workflow or definition, it cannot run here, nothing to go back to, someone else was faster, or the store's.
    pub async fn change_workflow(
        &self,
        name: &str,
        change: Change,
        wish: &Wish,
        subject: Option<&str>,
    ) -> Result<Row, Problem> {
        let who = act::who_and_why(subject, wish.by.as_deref(), wish.reason.as_deref())?;
        let Some(if_version) = wish.if_version.filter(|version| *version <= MAX_VERSION) else {
            let detail = "is required: `version` as GET /workflows/{name} shows it, 0 for a new name";
            return Err(problem::invalid_field("if_version", detail));
        };
        self.changed(name, &change, Some(if_version), who, None).await
    }

    /// The same for any version if none is named; `brought` is from a deployment.
    pub(crate) async fn changed(
        &self,
        name: &str,
        change: &Change,
        if_version: Option<u64>,
        (by, reason): (String, String),
        mut brought: Option<stored::Brought>,
    ) -> Result<Row, Problem> {
        let (store, mut seen) = (&self.engine.store, self.seen().await?);
        let stored = seen.stored.get(name);
        let deployed = seen.deployed(name);
        let by = (by, self.engine.now());
        let mut next = match registry::change(&seen.pointers, name, deployed.as_ref(), change, by) {
            Ok(next) => next,
            // Repeated, perhaps because the first answer was lost.
            Err(Refused::Same) => {
                if let Some(brought) = &brought {
                    store.keep_brought(name, brought).await.map_err(|e| unavailable(&e))?;
                }
                return seen.known(name);
            }
            Err(Refused::Unknown) => return Err(no_such_workflow(name)),
            Err(why @ (Refused::NoPrevious | Refused::Full | Refused::Unreadable)) => {
                return Err(problem::not_possible(None, format!("workflow `{name}`: {why}")));
            }
        };
        if if_version.is_some_and(|version| version != seen.version(name)) {
            return Err(moved(name, seen.pointers.get(name)));
        }
        if !next.retired {
            let it = self.kept_or_deployed(name, &next.hash).await?;
            self.fits(&it.workflow).map_err(|why| {
                problem::not_possible(None, format!("definition {} cannot run here: {why}", next.hash))
            })?;
        }
        if let Some(own) = seen.deployed.get(name) {
            // A rollback needs it later, even if no order has used it.
            for definition in own.calls().chain([own]) {
                store.put_workflow(definition).await.map_err(|e| unavailable(&e))?;
            }
            if !next.retired && deployed.as_ref() == Some(&next.hash) {
                self.kept(name, &next.hash).await?;
            }
        }
        next.version = store.last_change(name, stored).await.map_err(|e| unavailable(&e))? + 1;
        if let Some(undo) = brought.as_mut().and_then(|brought| brought.undo.as_mut()) {
            undo.change = Some(seen.replaced(name, next.version));
        }
        tracing::info!(workflow = name, operator = %next.by, hash = %next.hash, retired = next.retired, "changing a workflow: {reason}");
        if !store.set_pointer(name, &next, stored, &reason, brought.as_ref()).await.map_err(|e| unavailable(&e))? {
            return Err(moved(name, self.seen().await?.pointers.get(name)));
        }
        // Orders submitted to this process follow at once.
        let _ = self.engine.pointers_now().await;
        seen.pointers.insert(name.to_owned(), Some(next));
        seen.known(name)
    }

    /// The present row of the workflow `name`, if it ever existed.
    pub(crate) async fn found(&self, name: &str) -> Result<Option<Row>, Problem> {
        Ok(self.seen().await?.row(name))
    }

    pub(crate) async fn seen(&self) -> Result<Seen<'_>, Problem> {
        let deployed = self.deployed()?;
        let stored = self.engine.store.stored_pointers().await.map_err(|e| unavailable(&e))?;
        let pointers = stored.iter().map(|(name, one)| (name.clone(), one.pointer.clone())).collect();
        Ok(Seen { deployed, stored, pointers })
    }

    fn deployed(&self) -> Result<&Workflows, Problem> {
        self.deployed.as_ref().map_err(|why| {
            let detail = format!("the deployment's own workflows cannot be used: {why}; deploy a corrected file");
            problem::unavailable(None, detail)
        })
    }

    /// The definition of `name` that is stored under `hash`.
    async fn kept(&self, name: &str, hash: &Hash) -> Result<stored::Definition, Problem> {
        let none = || {
            let (name, hash) = (shorten(name, MAX_NAME), shorten(&hash.0, MAX_HASH));
            let detail = format!("workflow `{name}` has no definition `{hash}`; put it first, or look at its history");
            problem::no_such_workflow(None, detail)
        };
        if hash.0.len() > MAX_HASH || !hash.0.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(none());
        }
        match self.engine.store.definition(hash).await {
            Ok(Some(kept)) if kept.workflow.name == name => Ok(kept),
            Ok(_) => Err(none()),
            Err(Error::Corrupt { why, .. }) => {
                let detail = format!("definition {hash} cannot be read: {why}; put its file again");
                Err(problem::not_possible(None, detail))
            }
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// The same, or the deployment's own, stored or not.
    pub(crate) async fn kept_or_deployed(&self, name: &str, hash: &Hash) -> Result<stored::Definition, Problem> {
        let own = self.deployed()?.get(name).filter(|workflow| workflow.hash() == *hash);
        match (self.kept(name, hash).await, own) {
            (Err(_), Some(own)) => Ok(stored::Definition { workflow: own.clone(), toml: None, origin: None }),
            (kept, _) => kept,
        }
    }

    fn checked(&self, put: &Put) -> Result<Workflow, Problem> {
        let file = put.file.as_deref().filter(|file| !file.is_empty() && file.len() <= MAX_FILE).unwrap_or("workflow");
        self.read(file, &put.toml)
    }

    /// The workflow in a text.
    pub(crate) fn read(&self, file: &str, toml: &str) -> Result<Workflow, Problem> {
        if toml.len() > MAX_TOML {
            let detail = format!("has {} bytes; the limit is {MAX_TOML}", toml.len());
            return Err(problem::invalid_field("toml", detail));
        }
        let agents: Vec<&str> = self.config.agents.iter().map(String::as_str).collect();
        let known = Known { agents: &agents, inputs: &INPUT_CHECKS };
        let workflow = parse_for(file, toml, known, &self.config.files)
            .map_err(|e| problem::invalid_workflow("toml", e.to_string()))?;
        self.fits(&workflow).map_err(|why| problem::invalid_workflow("toml", why))?;
        Ok(workflow)
    }

    /// Whether this system can run a definition, because agents and settings may change.
    pub(crate) fn fits(&self, workflow: &Workflow) -> Result<(), String> {
        let agents = &self.config.agents;
        if let Some(agent) = workflow.agents().into_iter().find(|agent| !agents.iter().any(|known| known == agent)) {
            let all = agents.join(", ");
            return Err(format!("there is no agent `{agent}`, only {all}; deploy it, or put a definition without it"));
        }
        if let Some(input) = workflow.input.as_deref().filter(|input| !INPUT_CHECKS.contains(input)) {
            return Err(format!("there is no input check `{input}`; put a definition without it"));
        }
        if workflow.maps_host() && self.config.files.hosts.is_empty() {
            return Err(
                "a URL in the definition takes its host from the order, and this deployment allows no such host; set \
                 HttpHosts"
                    .into(),
            );
        }
        workflow.can_start(self.config.clock_skew).map_err(|e| e.to_string())
    }

    /// Warnings of SQS about its agents' queues.
    pub(crate) async fn warnings(&self, workflow: &Workflow) -> Vec<String> {
        let agents: BTreeSet<&str> = workflow.agents().into_iter().collect();
        let mut warnings = Vec::new();
        for agent in agents {
            for pool in self.config.pools_of(agent) {
                if let (_, Some(why)) = self.pool(pool).await {
                    warnings.push(format!("agent `{agent}`: its queues could not be read: {why}"));
                }
            }
        }
        warnings
    }
}

fn no_such_workflow(name: &str) -> Problem {
    let name = shorten(name, MAX_NAME);
    problem::no_such_workflow(None, format!("there is no workflow `{name}`; GET /workflows lists all"))
}

fn moved(name: &str, pointer: Option<&Option<Pointer>>) -> Problem {
    let what = match pointer {
        Some(Some(Pointer { hash, retired: false, by, version, .. })) => {
            format!("{by} activated {hash} (change {version})")
        }
        Some(Some(Pointer { retired: true, by, version, .. })) => format!("{by} retired it (change {version})"),
        Some(None) => "its record cannot be read, so its version is 0".into(),
        None => "it has not been changed yet, so its version is 0".into(),
    };
    let name = shorten(name, MAX_NAME);
    problem::workflow_moved("if_version", format!("workflow `{name}`: {what}; look at it again and decide anew"))
}
