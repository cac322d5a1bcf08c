//! Arguments of the verbs that speak to a system.

use crate::access;
use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the API of a local system is.
pub const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// The system to speak to.
#[derive(clap::Args, Clone)]
pub struct At {
    /// Where its API is [default: what `stepwarden up` keeps in .stepwarden/url here while it runs, else http://127.0.0.1:8080]
    #[arg(long, env = "STEPWARDEN_URL")]
    pub url: Option<String>,
    /// Its token [default: the one that `stepwarden up` keeps in .stepwarden/token here, if the API is on this machine]
    #[arg(long, env = "STEPWARDEN_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    pub json: bool,
}

impl At {
    /// Where the API is: as given, or as the system that keeps its data in `data` noted, or the usual place.
    #[must_use]
    pub fn url(&self, data: &Path) -> String {
        let given = self.url.clone().filter(|url| !url.is_empty());
        given.or_else(|| access::kept_url(data)).unwrap_or_else(|| DEFAULT_URL.to_owned())
    }
}

/// An order to submit.
#[derive(clap::Args)]
pub struct Submit {
    /// The workflow's input, one JSON object
    pub file: PathBuf,
    /// Name of the workflow [default: the only one, or `order` if there are several]
    #[arg(long)]
    pub workflow: Option<String>,
    /// Your own reference, which lists show and searches find
    #[arg(long, value_name = "TEXT")]
    pub reference: Option<String>,
    /// Idempotency key: the same key and the same order give the same answer [default: a new one]
    #[arg(long)]
    pub key: Option<String>,
    /// Registered name of the queue that gets the notices
    #[arg(long, value_name = "NAME")]
    pub reply_queue: Option<String>,
    /// How urgent it is
    #[arg(long, value_parser = ["high", "normal", "low"], default_value = "normal")]
    pub priority: String,
    /// Follow it until it ends, as `watch` does
    #[arg(long)]
    pub wait: bool,
    #[command(flatten)]
    pub until: Wait,
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
    /// Also its input, its history and what can be done now; for operators
    #[arg(long)]
    pub full: bool,
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
    /// Follow it no longer than this, for instance 30s, 10m or 2h
    #[arg(long, default_value = "10m", value_name = "TIME", value_parser = time)]
    pub timeout: Duration,
}

/// Which orders.
#[derive(clap::Args, Serialize)]
pub struct Filter {
    /// Only orders in this state: Pending, Processing, Processed, Undoing, Undone, Error or Paused
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only orders of this workflow
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workflow: Option<String>,
    /// Only this tenant's orders
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Only orders whose reference begins so
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reference: Option<String>,
    /// Only orders with this step in trouble
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Only orders accepted at or after this time, for instance 2026-11-21T09:30:00Z
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Only orders accepted before this time
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
}

/// One act on many orders.
#[derive(clap::Args)]
pub struct Bulk {
    /// What to do
    #[arg(value_parser = operator::act::NAMES)]
    pub action: String,
    #[command(flatten)]
    pub filter: Filter,
    /// Only orders with a step of this agent in trouble
    #[arg(long)]
    pub agent: Option<String>,
    /// Your name; a token that names somebody counts instead [default: the user that you are on this machine]
    #[arg(long)]
    pub by: Option<String>,
    /// Why; it stays in the history of each order
    #[arg(long)]
    pub reason: String,
    /// Only say what would be done
    #[arg(long)]
    pub dry_run: bool,
    /// Most orders acted on
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: u64,
    /// Acts a second, 1 to 100
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub rate: u64,
    /// So many orders that are not as wanted end it
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub abort_after: u64,
    /// For resubmit with --step: input in place of the order's, JSON
    #[arg(long, value_parser = json)]
    pub input: Option<Value>,
    /// For mark-done: what the agent would have returned, JSON
    #[arg(long, value_parser = json)]
    pub output: Option<Value>,
    /// Where to go on, from an earlier call
    #[arg(long)]
    pub cursor: Option<String>,
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
    /// Move dead letters back to their queue; for `set-aside`, each message to where it came from
    #[command(
        after_help = "Examples:\n  stepwarden dlq redrive set-aside --dry-run --reason \"a look\"    shows the first messages, and why\n  stepwarden dlq redrive scheduler --all --rate 100 --reason \"the function is mended\""
    )]
    Redrive(Redrive),
}

/// What to move.
#[derive(clap::Args)]
pub struct Redrive {
    /// The queue they died in, as `dlq` lists it, or set-aside
    pub queue: String,
    /// Your name; a token that names somebody counts instead [default: the user that you are on this machine]
    #[arg(long)]
    pub by: Option<String>,
    /// Why
    #[arg(long)]
    pub reason: String,
    /// Most messages moved, 1 to 1000
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub limit: u64,
    /// All of them, by a task of SQS that goes on by itself; not for set-aside
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Messages a second of that task, 1 to 500
    #[arg(long, requires = "all", value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500))]
    pub rate: Option<u64>,
    /// Only look: the first messages, and why they are there
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
    /// Most orders in the page
    #[arg(long)]
    pub limit: Option<u32>,
    /// Where the page begins, from the page before
    #[arg(long)]
    pub cursor: Option<String>,
    #[command(flatten)]
    pub at: At,
}

/// An act on one order.
#[derive(clap::Args)]
pub struct Act {
    /// The order's id
    pub id: String,
    /// Your name; a token that names somebody counts instead [default: the user that you are on this machine]
    #[arg(long)]
    pub by: Option<String>,
    /// Why; it stays in the order's history
    #[arg(long)]
    pub reason: String,
    /// Name of the step, where more than one comes into question
    #[arg(long)]
    pub step: Option<String>,
    /// For resubmit: input in place of the order's for that step, JSON
    #[arg(long, value_parser = json)]
    pub input: Option<Value>,
    /// For mark-done: what the agent would have returned, JSON
    #[arg(long, value_parser = json)]
    pub output: Option<Value>,
    /// Act only if the order is still at this version
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

/// An act on an agent.
#[derive(clap::Args)]
pub struct AgentAct {
    /// The agent's name
    pub agent: String,
    /// Your name; a token that names somebody counts instead [default: the user that you are on this machine]
    #[arg(long)]
    pub by: Option<String>,
    /// Why
    #[arg(long)]
    pub reason: String,
    #[command(flatten)]
    pub at: At,
}

fn json(text: &str) -> Result<Value, String> {
    shared::json::check(text.as_bytes()).map_err(|refused| refused.to_string())?;
    serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))
}

fn time(text: &str) -> Result<Duration, String> {
    let span: SignedDuration = text.parse().map_err(|_| "write a time such as 30s, 10m or 2h".to_owned())?;
    Duration::try_from(span).map_err(|_| "write a time that is not negative".to_owned())
}
