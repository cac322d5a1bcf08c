//! Arguments of the verbs that call a system's API.

use crate::client::Api;
use crate::signed::{Signer, region_of};
use anyhow::Result;
use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;
use stepwarden_local::data_folder::{self, DATA};

/// URL of the API of a local system, unless another one is given.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The system to speak to.
#[derive(clap::Args, Clone)]
pub struct At {
    /// URL of the API [default: the one in .stepwarden/url while `up` runs in this folder, else http://127.0.0.1:8080]
    #[arg(long, env = "STEPWARDEN_URL")]
    pub url: Option<String>,
    /// Token for the API [default: the token in .stepwarden/token, if the API is on this machine]
    #[arg(long, env = "STEPWARDEN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Name of a deployment's CloudFormation stack; the API's URL is read from its outputs, and --url is ignored
    #[arg(long, env = "STEPWARDEN_STACK", value_name = "NAME")]
    pub stack: Option<String>,
    /// AWS profile whose credentials read the stack and, without a token, sign calls [default: as for the AWS CLI]
    #[arg(long, value_name = "NAME")]
    pub profile: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

impl At {
    /// URL of the API: as given, else as kept in the data directory, else the default.
    #[must_use]
    pub fn url(&self, data: &Path) -> String {
        let given = self.url.clone().filter(|url| !url.is_empty());
        given.or_else(|| data_folder::kept_url(data)).unwrap_or_else(|| DEFAULT_URL.to_owned())
    }

    /// The API there.
    ///
    /// # Errors
    /// The stack is not found, or the HTTP client cannot be made.
    pub async fn api(&self) -> Result<Api> {
        self.api_beside(Path::new(DATA)).await
    }

    /// The same, beside this data directory.
    ///
    /// # Errors
    /// The stack is not found, or the HTTP client cannot be made.
    pub async fn api_beside(&self, data: &Path) -> Result<Api> {
        if let Some(stack) = self.stack.as_ref().filter(|stack| !stack.is_empty()) {
            let signer = Signer::new(self.profile.clone(), None).await?;
            let url = signer.url_of(stack).await?;
            return Ok(Api::new(&url, self.token.clone(), data)?.signed_by(signer));
        }
        let api = Api::new(&self.url(data), self.token.clone(), data)?;
        match region_of(&api.url) {
            Some(region) if api.token.is_none() => {
                let signer = Signer::new(self.profile.clone(), Some(region)).await?;
                Ok(api.signed_by(signer))
            }
            _ => Ok(api),
        }
    }
}

/// An order to submit.
#[derive(clap::Args)]
pub struct Submit {
    /// File with the workflow's input, one JSON object; `-` reads standard input
    pub file: PathBuf,
    /// Name of the workflow [default: the system's only workflow, or `order` if there are several]
    #[arg(long)]
    pub workflow: Option<String>,
    /// Your own reference for the order; lists show it and can filter by it
    #[arg(long, value_name = "TEXT")]
    pub reference: Option<String>,
    /// Label for the order, at most 64 bytes; lists can filter by it. Repeat the option for more labels, at most 8
    #[arg(long, value_name = "TEXT")]
    pub label: Vec<String>,
    /// Idempotency key: submitting the same order again under the same key creates no second order [default: a new key]
    #[arg(long)]
    pub key: Option<String>,
    /// Name of a registered reply queue, to which the system sends messages about the order's progress
    #[arg(long, value_name = "NAME")]
    pub reply_queue: Option<String>,
    /// Priority of the order
    #[arg(long, value_parser = ["high", "normal", "low"], default_value = "normal")]
    pub priority: String,
    /// Follow the order until it ends, as `watch` does
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub until: Wait,
    #[command(flatten)]
    pub at: At,
}

/// An event for an order.
#[derive(clap::Args)]
pub struct Event {
    /// The order's id
    pub id: String,
    /// The event's name
    pub name: String,
    /// The event's data, a JSON object of at most 4,096 bytes [default: {}]
    #[arg(long, value_name = "JSON", value_parser = json)]
    pub data: Option<Value>,
    /// Idempotency key: sending the same event again under the same key changes nothing [default: a new key]
    #[arg(long)]
    pub key: Option<String>,
    /// Sender of the event, on a local system only; on AWS, the sender is the caller's identity
    #[arg(long, value_name = "NAME")]
    pub by: Option<String>,
    #[command(flatten)]
    pub at: At,
}

/// The operator's name and reason.
#[derive(clap::Args, Clone)]
pub struct By {
    /// Your name; ignored if your token or AWS identity contains one [default: your user name on this machine]
    #[arg(long)]
    pub by: Option<String>,
    /// Why you do this; recorded together with your name
    #[arg(long)]
    pub reason: String,
}

impl By {
    /// The operator's name: as given, else the user of this machine. USER is missing in containers and under cron.
    #[must_use]
    pub fn name(&self) -> Option<String> {
        let is_name = |text: &String| !text.trim().is_empty();
        let named = |name: &str| std::env::var(name).ok().filter(is_name);
        let asked = || {
            let said =
                std::process::Command::new("id").arg("-un").output().ok().filter(|said| said.status.success())?;
            Some(String::from_utf8(said.stdout).ok()?.trim().to_owned())
        };
        self.by.clone().or_else(|| named("USER")).or_else(|| named("LOGNAME")).or_else(asked)
    }

    /// The body of an action: name, reason, and the fields of `more` that are not `null`.
    #[must_use]
    pub fn body(&self, more: Value) -> Value {
        let mut body = serde_json::json!({"by": self.name(), "reason": self.reason});
        if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
            body.extend(more);
            body.retain(|_, value| !value.is_null());
        }
        body
    }
}

/// The console of a deployment.
#[derive(clap::Args)]
pub struct Console {
    /// Port on 127.0.0.1; 0 picks a free port. The first line of the output is the link to open
    #[arg(long, default_value_t = 8090)]
    pub port: u16,
    #[command(flatten)]
    pub at: At,
}

/// One order.
#[derive(clap::Args)]
pub struct One {
    /// The order's id
    pub id: String,
    #[command(flatten)]
    pub at: At,
}

/// One order, and how much of it.
#[derive(clap::Args)]
pub struct Get {
    /// The order's id
    pub id: String,
    /// Also show the input, the history and the actions that are possible now; needs the rights of an operator
    #[arg(long)]
    pub full: bool,
    /// Print only the stored record, even one that the system cannot read; needs the rights of an operator
    #[arg(long, conflicts_with = "full")]
    pub raw: bool,
    /// Print only what this step returned, as JSON
    #[arg(long, value_name = "STEP", conflicts_with_all = ["full", "raw"])]
    pub output: Option<String>,
    /// Print the items of a step's list that are in this state, 100 at a time; needs the rights of an operator
    #[arg(long, value_name = "STATE", conflicts_with_all = ["full", "raw", "output"])]
    #[arg(value_parser = ["all", "to_do", "open", "done", "failed", "undone", "stuck"])]
    pub items: Option<String>,
    /// With --items: the step that has the list; needed only if several steps have lists
    #[arg(long, requires = "items")]
    pub step: Option<String>,
    /// Show the page of --items that begins at this cursor; the previous page ends with it
    #[arg(long, value_name = "N", requires = "items")]
    pub cursor: Option<usize>,
    #[command(flatten)]
    pub at: At,
}

/// A corrected record that replaces an unreadable one.
#[derive(clap::Args)]
pub struct Mend {
    /// The order's id
    pub id: String,
    /// File with the complete corrected record, as JSON; `-` reads standard input
    pub file: PathBuf,
    /// Mark that `get --raw` printed; it shows which stored record you corrected
    #[arg(long, value_name = "MARK")]
    pub seen: String,
    #[command(flatten)]
    pub by: By,
    #[command(flatten)]
    pub at: At,
}

/// Another definition for an order.
#[derive(clap::Args)]
pub struct Migrate {
    /// The order's id
    pub id: String,
    /// Hash of the new definition, or `latest` for the definition that new orders get
    ///
    /// To withdraw a migration that is still waiting, give the hash of the definition that the order has now.
    #[arg(long, value_name = "HASH")]
    pub to: String,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub by: By,
    /// Migrate only if the order still has this version number, which `get --json` shows
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<u64>,
    #[command(flatten)]
    pub at: At,
}

/// Steps of an order that are done again.
#[derive(clap::Args)]
pub struct RunAgain {
    /// The order's id
    pub id: String,
    /// Step to begin with; all steps that come after it run again, too; repeatable
    #[arg(long, value_name = "STEP", required = true)]
    pub from: Vec<String>,
    /// Use new idempotency keys even for steps that were not undone, so that their services do the work a second time
    #[arg(long)]
    pub new_keys: bool,
    /// Run steps again even if some have no undo; the earlier effects of those steps stay
    #[arg(long)]
    pub without_undo: bool,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub by: By,
    /// Run again only if the order still has this version number, which `get --json` shows
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<u64>,
    #[command(flatten)]
    pub at: At,
}

/// An order to erase.
#[derive(clap::Args)]
pub struct Erase {
    /// The order's id
    pub id: String,
    #[command(flatten)]
    pub by: By,
    #[command(flatten)]
    pub at: At,
}

/// One order to follow.
#[derive(clap::Args)]
pub struct Watch {
    /// The order's id
    pub id: String,
    #[command(flatten)]
    pub until: Wait,
    #[command(flatten)]
    pub at: At,
}

/// How long to follow an order.
#[derive(clap::Args, Clone, Copy)]
pub struct Wait {
    /// Stop following the order after this time, for example 30s, 10m or 2h
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = time)]
    pub timeout: Duration,
}

/// Which orders.
#[derive(clap::Args, Serialize)]
pub struct Filter {
    /// Only orders in state Pending, Processing, Processed, Undoing, Undone, Error, Paused or Waiting (a step waits)
    #[arg(long)]
    pub state: Option<String>,
    /// Only orders of this workflow
    #[arg(long)]
    pub workflow: Option<String>,
    /// Only this tenant's orders
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only orders that this order started
    ///
    /// Without --parent, orders that another order started are left out, unless --state is Error, Paused or Waiting.
    #[arg(long, value_name = "ORDER_ID")]
    pub parent: Option<String>,
    /// Only orders that have this label
    #[arg(long)]
    pub label: Option<String>,
    /// Only orders whose reference begins with this text
    #[arg(long)]
    pub reference: Option<String>,
    /// Only orders in which this step is failing or has failed; with --state Waiting, orders in which it waits
    #[arg(long)]
    pub step: Option<String>,
    /// Only orders accepted at or after this time, for example 2026-11-21T09:30:00Z
    #[arg(long)]
    pub from: Option<String>,
    /// Only orders accepted before this time
    #[arg(long)]
    pub to: Option<String>,
}

/// One action on many orders.
#[derive(clap::Args)]
pub struct Bulk {
    /// Action to perform
    #[arg(value_parser = operator::jobs::ACTS)]
    pub action: String,
    #[command(flatten)]
    pub filter: Filter,
    /// Only orders in which a step of this agent is failing or has failed
    #[arg(long)]
    pub agent: Option<String>,
    /// Only orders whose failing or failed step has this error, as `overview` shows it; numbers and ids may differ
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
    /// File of at most 5000 order ids, one per line; `-` reads standard input. Filters, if given, narrow this list
    #[arg(long, value_name = "FILE")]
    pub ids: Option<PathBuf>,
    #[command(flatten)]
    pub by: By,
    /// Show what would be done, and change nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Act on at most this many orders, up to 100000 [default: 100, or all of --ids]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub limit: Option<u64>,
    /// Actions per second, 1 to 100
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rate: u64,
    /// Stop after this many failures
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub abort_after: u64,
    /// For resubmit with --step: JSON input that this step gets instead of the order's input
    #[arg(long, value_parser = json)]
    pub input: Option<Value>,
    /// For mark-done: the step's output, as JSON, that the agent would have returned
    #[arg(long, value_parser = json)]
    pub output: Option<Value>,
    /// For migrate: hash of the new definition, or `latest`. For resubmit: migrate to it first. Needs --workflow
    #[arg(long, value_name = "HASH")]
    pub to_definition: Option<String>,
    /// Start the job and print its id, but do not follow it
    #[arg(long)]
    pub detach: bool,
    /// Idempotency key: repeating the command under the same key starts no second job [default: a new key]
    #[arg(long)]
    pub key: Option<String>,
    #[command(flatten)]
    pub at: At,
}

/// Jobs.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Jobs {
    /// Without it they are listed.
    #[command(subcommand)]
    pub verb: Option<JobVerb>,
    /// Show the page that begins at this cursor; the previous page ends with it
    #[arg(long)]
    pub cursor: Option<String>,
    #[command(flatten)]
    pub at: At,
}

/// What to do with a job.
#[derive(clap::Subcommand)]
pub enum JobVerb {
    /// Show a job and its progress
    Show {
        /// The job's id
        id: String,
        #[command(flatten)]
        at: At,
    },
    /// Follow a job until it ends, then print a line for each order
    Follow {
        /// The job's id
        id: String,
        #[command(flatten)]
        at: At,
    },
    /// Print a job's outcome for each order
    Results {
        /// The job's id
        id: String,
        /// Print only the orders on which the action was not performed
        #[arg(long)]
        failed: bool,
        #[command(flatten)]
        at: At,
    },
    /// Pause a job; it begins no more actions after about a second
    Pause(JobWhy),
    /// Resume a paused job
    Resume(JobWhy),
    /// Abort a job; what it has already done is not reversed
    Abort(JobWhy),
}

/// A job to change, and why.
#[derive(clap::Args)]
pub struct JobWhy {
    /// The job's id
    pub id: String,
    #[command(flatten)]
    pub by: By,
    #[command(flatten)]
    pub at: At,
}

/// Dead letters.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Dlq {
    /// Without it they are listed.
    #[command(subcommand)]
    pub letters: Option<Letters>,
    #[command(flatten)]
    pub at: At,
}

/// What to do with dead letters.
#[derive(clap::Subcommand)]
pub enum Letters {
    /// Move dead letters back to their queue; from `set-aside`, move each message back to the queue from which it came
    #[command(
        after_help = "Examples:\n  stepwarden dlq redrive set-aside --dry-run --reason \"checking\"    shows the first messages and why they are there\n  stepwarden dlq redrive scheduler --all --rate 100 --reason \"the function is fixed\""
    )]
    Redrive(Redrive),
}

/// What to move.
#[derive(clap::Args)]
pub struct Redrive {
    /// Name of the queue, as listed by `dlq`, for example scheduler or set-aside
    pub queue: String,
    #[command(flatten)]
    pub by: By,
    /// Move at most this many messages, 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub limit: u64,
    /// Move all messages, with an SQS task that continues after this command ends; not for set-aside
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// With --all: messages to move per second, 1 to 500
    #[arg(long, requires = "all", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500))]
    pub rate: Option<u64>,
    /// Move nothing; show the first messages, and why each is in the queue
    #[arg(long)]
    pub dry_run: bool,
    #[command(flatten)]
    pub at: At,
}

/// A page of orders.
#[derive(clap::Args)]
pub struct List {
    #[command(flatten)]
    pub filter: Filter,
    /// Maximum number of orders on the page
    #[arg(long)]
    pub limit: Option<u32>,
    /// Show the page that begins at this cursor; the previous page ends with it
    #[arg(long)]
    pub cursor: Option<String>,
    #[command(flatten)]
    pub at: At,
}

/// An action on one order.
#[derive(clap::Args)]
pub struct Act {
    /// The order's id
    pub id: String,
    #[command(flatten)]
    pub by: By,
    /// Step to act on; needed only if the action could apply to several steps
    #[arg(long)]
    pub step: Option<String>,
    /// For resubmit: JSON input that the failed step gets instead of the order's input
    #[arg(long, value_parser = json)]
    pub input: Option<Value>,
    /// For resubmit: new JSON input for the failed item N of a list; repeatable
    #[arg(long = "item", value_name = "N=JSON", value_parser = item, conflicts_with = "input")]
    pub items: Vec<(String, Value)>,
    /// For mark-done: the step's output, as JSON, that the agent would have returned
    #[arg(long, value_parser = json)]
    pub output: Option<Value>,
    /// For resubmit: first migrate to this definition, a hash, or `latest` for the definition that new orders get
    #[arg(long, value_name = "HASH", conflicts_with_all = ["step", "input", "items", "output"])]
    pub to: Option<String>,
    /// Act only if the order still has this version number, which `get --json` shows
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<u64>,
    /// Follow the order until it ends, as `watch` does
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub until: Wait,
    #[command(flatten)]
    pub at: At,
}

/// An action on an agent.
#[derive(clap::Args)]
pub struct AgentAct {
    /// The agent's name
    pub agent: String,
    #[command(flatten)]
    pub by: By,
    #[command(flatten)]
    pub at: At,
}

fn json(text: &str) -> Result<Value, String> {
    shared::json::check(text.as_bytes()).map_err(|refused| refused.to_string())?;
    serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))
}

fn item(text: &str) -> Result<(String, Value), String> {
    let (number, input) =
        text.split_once('=').ok_or("write the number of the item, `=` and JSON, such as 17={\"sku\": \"s4\"}")?;
    Ok((number.to_owned(), json(input)?))
}

fn time(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text.parse().map_err(|_| "write a time such as 30s, 10m or 2h".to_owned())?;
    Duration::try_from(span).map_err(|_| "write a time that is not negative".to_owned())
}
