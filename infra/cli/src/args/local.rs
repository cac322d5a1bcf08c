//! Arguments of the verbs that run something here.

use super::At;
use clap::ValueEnum;
use jiff::SignedDuration;
use serde_json::Value;
use shared::items::MAX_ITEMS;
use shared::pools::Layout;
use shared::workflow::file::Settings;
use shared::workflow::hosts::Hosts;
use std::path::PathBuf;
use std::time::Duration;
use stepwarden_aws::ReplyQueues;
use stepwarden_embedded::Durability;
use stepwarden_local::data_folder::DATA;
use stepwarden_local::functions::{Target, target};
use stepwarden_local::start_error::StartError;
use stepwarden_simulation::ADAPTER_EVERY;

/// Maximum number of seeds of one report: each run is kept until its end.
const MOST_SEEDS: u64 = 1_000_000;
/// The highest seed to begin with: the last of the seeds after it is still a number of 64 bits.
const LAST_FIRST: u64 = u64::MAX - MOST_SEEDS;

/// How a system starts.
#[derive(clap::Args)]
pub struct Up {
    /// Port of the API on 127.0.0.1, followed by two ports for other services; 0 picks free ports
    ///
    /// The next two ports serve the AWS endpoints and the sample remote services.
    #[arg(long, default_value_t = 8080, value_parser = first_of_three)]
    pub port: u16,
    /// Directory for the data
    #[arg(long, default_value = DATA, value_name = "DIR")]
    pub data: PathBuf,
    /// Keep the data in memory
    ///
    /// The token and the URL are still written to .stepwarden, where the other commands find them.
    #[arg(long, conflicts_with = "data")]
    pub memory: bool,
    /// If data files are damaged or missing, start with what can still be read; damaged files are copied first
    #[arg(long, conflicts_with = "memory")]
    pub accept_loss: bool,
    /// Which failures stored data survives
    #[arg(long, value_enum, default_value_t = Kept::Power)]
    pub durability: Kept,
    /// Use the tables and queues of a deployment, named in environment variables, instead of local ones
    #[arg(long)]
    pub aws: bool,
    /// URL that the agent or pool NAME calls instead of a sample remote service; repeatable
    #[arg(long = "remote", value_name = "NAME=URL", value_parser = remote)]
    pub remotes: Vec<(String, String)>,
    /// URL or command that is called instead of the Lambda function NAME; repeatable
    ///
    /// The function's event is posted to the URL. A command reads the event from standard input and writes the result
    /// to standard output.
    #[arg(long = "lambda", value_name = "NAME=URL|COMMAND", value_parser = target)]
    pub functions: Vec<(String, Target)>,
    /// New value for NAME in the `config` of a workflow's file, as JSON or as plain text; repeatable
    #[arg(long, value_name = "WORKFLOW.NAME=VALUE", value_parser = setting)]
    pub config: Vec<(String, String, Value)>,
    /// Hosts that steps may call if the host in a step's URL comes from an order's data; separated by commas
    ///
    /// `*.example.com` allows every host below example.com.
    #[arg(long, value_name = "HOSTS", default_value = "")]
    pub allow_hosts: Hosts,
    /// TOML file with more tokens, each with its tenant and scopes; docs/security.md has an example
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,
    /// Orders per second that each tenant may submit over HTTP, with bursts of twice as many; 0 means no limit
    #[arg(long, default_value_t = 500, value_name = "N")]
    pub rate_limit: u32,
    #[command(flatten)]
    pub setup: Setup,
}

impl Up {
    /// What workflow files are read with.
    ///
    /// # Errors
    /// A value is given twice.
    pub fn settings(&self) -> Result<Settings, StartError> {
        let mut settings = Settings { hosts: self.allow_hosts.clone(), ..Settings::default() };
        for (workflow, name, value) in &self.config {
            let all = settings.config.entry(workflow.clone()).or_default();
            if all.insert(name.clone(), value.clone()).is_some() {
                return Err(StartError::Data(format!(
                    "--config: `{workflow}.{name}` is given twice; keep one of the two"
                )));
            }
        }
        Ok(settings)
    }
}

/// Reads `WORKFLOW.NAME=VALUE`. A value that is not JSON is taken as text.
fn setting(text: &str) -> Result<(String, String, Value), String> {
    let parts = text.split_once('=').and_then(|(name, value)| Some((name.split_once('.')?, value)));
    let ((workflow, name), value) = parts.ok_or("write WORKFLOW.NAME=VALUE")?;
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok((workflow.to_owned(), name.to_owned(), value))
}

/// A folder to make.
#[derive(clap::Args)]
pub struct New {
    /// Folder to make; an existing folder must be empty
    #[arg(value_name = "NAME")]
    pub folder: PathBuf,
    /// Language of the agent
    #[arg(long, value_enum, default_value = "python")]
    pub lang: Lang,
    /// With `--lang rust`: the folder or the git URL of Stepwarden's source, which contains the crate for agents
    #[arg(long, value_name = "PATH|URL", required_if_eq("lang", "rust"))]
    pub stepwarden: Option<String>,
}

/// The language of the agent in a new folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Lang {
    /// An agent in Python, without dependencies.
    Python,
    /// An agent in Rust, with the crate `stepwarden-agent`.
    Rust,
    /// No agent: the workflow's steps call URLs.
    None,
}

/// Queues in addition to those of every system.
#[derive(clap::Args)]
pub struct Setup {
    /// Queue that receives messages about the progress of these tenants' orders; repeatable
    ///
    /// `*` means every tenant. NAME without tenants means tenant `default`.
    #[arg(long = "reply-queue", value_name = "NAME=TENANT,TENANT", default_value = "default")]
    pub reply_queues: Vec<ReplyQueues>,
    /// Give an agent several pools of workers, the preferred pool first, for example "payment=payment,payment-b"
    #[arg(long, env = "AGENT_POOLS", value_parser = stepwarden_aws::config::pools, default_value = "")]
    pub pools: Layout,
    /// Name of an agent that is your own program; repeatable
    ///
    /// Workflows can use the agent, which receives its requests from the queue agent-NAME. Agents in stepwarden.toml
    /// need not be named.
    #[arg(long = "external-agent", value_name = "NAME")]
    pub external_agents: Vec<String>,
}

impl Setup {
    /// All reply queues that were named.
    ///
    /// # Errors
    /// One is named twice.
    pub fn reply_queues(&self) -> Result<ReplyQueues, StartError> {
        let mut all = self.reply_queues.iter().cloned();
        let all = all.try_fold(ReplyQueues::default(), ReplyQueues::with);
        all.map_err(|why| StartError::Data(format!("--reply-queue: {why}")))
    }
}

/// The sample remote services alone.
#[derive(clap::Args)]
pub struct Remotes {
    /// Port on 127.0.0.1; 0 picks a free port. The first line of the output is the URL
    #[arg(long, default_value_t = 8082)]
    pub port: u16,
    /// Directory for the ledgers, which record what each call changed [default: in memory]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// If the ledger file is damaged or missing, start with what can still be read; a damaged file is copied first
    #[arg(long, requires = "data")]
    pub accept_loss: bool,
}

/// Many orders with faults.
#[derive(clap::Args)]
pub struct Demo {
    /// File with orders, one JSON object per line [default: the 830 built-in orders]
    pub file: Option<PathBuf>,
    /// Share of calls to remote services that fail but can be retried, from 0 to 1
    #[arg(long, default_value_t = 0.10, value_parser = rate)]
    pub transient: f64,
    /// Share of calls to remote services that never get an answer, from 0 to 1
    #[arg(long, default_value_t = 0.03, value_parser = rate)]
    pub hang: f64,
    /// Share of steps that a remote service refuses permanently, from 0 to 1
    #[arg(long, default_value_t = 0.01, value_parser = rate)]
    pub permanent: f64,
    /// Seed of the faults; the same seed repeats the same faults
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Print only the summary, as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A measurement.
#[derive(clap::Args)]
pub struct Bench {
    /// Parts to measure, separated by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PARTS", default_values_t = Part::value_variants().iter().copied())]
    pub only: Vec<Part>,
    /// Number of orders in part `throughput`
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u64).range(1..))]
    pub orders: u64,
    /// Number of items of the list in part `lists`, 1 to 10,000
    #[arg(long, default_value_t = 2000, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MAX_ITEMS as u64))]
    pub items: u64,
    /// Number of orders in part `single`, which runs them one at a time
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..))]
    pub single: u64,
    /// Maximum number of orders that are open at once in part `throughput`
    #[arg(long, default_value_t = 128, value_parser = at_least_one)]
    pub in_flight: usize,
    /// In part `throughput`, submit N orders before the first one starts; without N, submit all orders first
    ///
    /// When these N orders have ended, the next N are submitted. The measured rate leaves out the time that submitting
    /// takes.
    #[arg(long, value_name = "N", num_args = 0..=1, conflicts_with = "in_flight", value_parser = clap::value_parser!(u64).range(1..))]
    pub backlog: Option<Option<u64>>,
    /// Rates to measure in part `rates`, in orders per second, separated by commas; each rate has a separate run
    ///
    /// Orders are submitted on schedule, and latency counts from the scheduled time.
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [50, 100, 200, 400], value_parser = per_second())]
    pub rates: Vec<u32>,
    /// Duration of the run for each rate
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = lasting)]
    pub rate_for: Duration,
    /// Number of waiting orders in part `open`
    #[arg(long, default_value_t = 5000, value_name = "N", value_parser = clap::value_parser!(u64).range(10..=100_000_000))]
    pub open: u64,
    /// How many times part `recovery` kills each of these: an agent, the scheduler, everything
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub kills: u32,
    /// Instead of the parts, measure one run of this length (such as 1h) at --rate: latency, memory and file sizes
    #[arg(long, value_name = "TIME", value_parser = lasting, conflicts_with_all = ["only", "backlog"])]
    pub duration: Option<Duration>,
    /// Orders to submit per second, with --duration
    #[arg(long, default_value_t = 100, value_name = "N", requires = "duration", value_parser = per_second())]
    pub rate: u32,
    /// Which failures stored data survives
    #[arg(long, value_enum, default_value_t = Kept::Power)]
    pub durability: Kept,
    /// Keep all data in memory, and skip parts `open` and `recovery`, which need data that survives a kill
    #[arg(long)]
    pub memory: bool,
    /// Directory for the data [default: a new temporary directory]
    #[arg(long, value_name = "DIR", conflicts_with = "memory")]
    pub data: Option<PathBuf>,
    /// URL that each step calls with POST, except in parts lists, open and recovery; by default a step calls nothing
    #[arg(long, value_name = "URL")]
    pub service: Option<String>,
    /// Print the results as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Part {
    /// Latency of one order at a time
    Single,
    /// Orders per second, with many orders open at once
    Throughput,
    /// Cost of starting orders from a list, compared with submitting the same orders one by one
    Lists,
    /// Latency while orders are submitted at fixed rates
    Rates,
    /// Effect of many waiting orders on the rest of the system, and the time of a restart after kill -9
    Open,
    /// Time to recover from kill -9 of an agent, of the scheduler, and of everything
    Recovery,
}

impl Part {
    /// Whether it starts and kills another system.
    #[must_use]
    pub fn kills(self) -> bool {
        matches!(self, Self::Open | Self::Recovery)
    }
}

impl Bench {
    /// Orders to submit before the first of them is scheduled; `None` without --backlog.
    #[must_use]
    pub fn backlog(&self) -> Option<u64> {
        self.backlog.map(|n| n.unwrap_or(self.orders).min(self.orders))
    }

    /// What an answered write survives; `None` keeps everything in memory.
    #[must_use]
    pub fn durability(&self) -> Option<Durability> {
        (!self.memory).then_some(self.durability.into())
    }

    /// Whether these make sense together.
    ///
    /// # Errors
    /// The options that do not fit together, in words.
    pub fn check(&self) -> Result<(), &'static str> {
        if self.memory && self.only.iter().all(|part| part.kills()) && self.duration.is_none() {
            return Err("with --memory nothing survives a kill, so there is nothing to measure");
        }
        if self.backlog.is_some() && !self.only.contains(&Part::Throughput) {
            return Err("--backlog needs part `throughput`, which --only excludes");
        }
        if self.data.as_deref().is_some_and(|dir| dir.join("tables.db").exists()) {
            return Err(
                "the directory in --data already holds a system's data, and its orders would be counted; choose \
                        another directory, or leave --data out",
            );
        }
        Ok(())
    }
}

/// A run in virtual time.
#[derive(clap::Args)]
pub struct Simulate {
    /// Workflow file [default: built-in workflows, which together use every feature of workflow files]
    pub file: Option<PathBuf>,
    /// Name of an agent that is your own program; repeatable
    #[arg(long = "external-agent", value_name = "NAME")]
    pub external_agents: Vec<String>,
    /// Replay the order that `stepwarden export` wrote to this file; repeatable
    ///
    /// If you also name a workflow file, the order is replayed under the definition in that file. To include orders
    /// that this order started, repeat the option with the export of each.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["adapter_every", "external_agents", "seeds", "seed", "first"])]
    pub replay: Vec<PathBuf>,
    /// Number of runs, each with another seed [default: 1000]
    #[arg(long, value_parser = clap::value_parser!(u64).range(..=MOST_SEEDS))]
    pub seeds: Option<u64>,
    /// Seed of the first run: --first 30000 --seeds 1000 runs seeds 30000 to 30999
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u64).range(..=LAST_FIRST))]
    pub first: u64,
    /// Run only this seed, and print a trace of the run
    #[arg(long, conflicts_with_all = ["seeds", "first"])]
    pub seed: Option<u64>,
    /// Include the code that calls DynamoDB in every Nth run; 0 includes it in no run
    ///
    /// Five times as many runs include the code that calls SQS and EventBridge. The other runs use simple stores in
    /// memory instead of these services.
    #[arg(long, default_value_t = ADAPTER_EVERY, value_name = "N")]
    pub adapter_every: u64,
    /// Print the results as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// Scenarios to play.
#[derive(clap::Args)]
pub struct Test {
    /// Scenario files, or folders of them [default: tests]
    #[arg(value_name = "PATH")]
    pub paths: Vec<PathBuf>,
    /// Play only scenarios whose name contains this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Number of runs with injected faults for each scenario, each with another seed; 0 for none
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u64).range(..=MOST_SEEDS))]
    pub faults: u64,
    /// Play only the run that gets its injected faults from this seed, and print a trace of the run
    #[arg(long, value_name = "N", conflicts_with = "faults")]
    pub seed: Option<u64>,
    /// Print the results as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// What the doctor checks.
#[derive(clap::Args)]
pub struct Doctor {
    /// Check a deployment's tables and queues, named in the same environment variables as for `up --aws`
    #[arg(long)]
    pub aws: bool,
    /// Data directory of the local system
    #[arg(long, default_value = DATA, value_name = "DIR")]
    pub data: PathBuf,
    #[command(flatten)]
    pub setup: Setup,
    #[command(flatten)]
    pub at: At,
}

/// A shell to complete for.
#[derive(clap::Args)]
pub struct Completions {
    /// The shell
    pub shell: clap_complete::Shell,
}

/// What a write survives once it has been answered.
#[derive(Clone, Copy, ValueEnum)]
pub enum Kept {
    /// A power failure: fsync before every acknowledgement
    Power,
    /// The end of the process, for example by kill -9, but not a power failure
    Process,
}

impl From<Kept> for Durability {
    fn from(kept: Kept) -> Self {
        match kept {
            Kept::Power => Self::Full,
            Kept::Process => Self::Process,
        }
    }
}

fn first_of_three(text: &str) -> Result<u16, String> {
    let port = text.parse::<u16>().ok().filter(|port| port.checked_add(2).is_some());
    port.ok_or_else(|| "write a number from 0 to 65533: the next two ports are used as well".to_owned())
}

fn remote(text: &str) -> Result<(String, String), String> {
    let (name, url) = text.split_once('=').ok_or("write a name, `=` and a URL")?;
    Ok((name.to_owned(), url.to_owned()))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "write a number from 0 to 1, for example 0.1".to_owned())?;
    if (0.0..=1.0).contains(&rate) { Ok(rate) } else { Err("write a number from 0 to 1, for example 0.1".into()) }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| "write a number of at least 1".to_owned())
}

fn per_second() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..=10_000)
}

fn lasting(text: &str) -> Result<Duration, String> {
    let wrong = || "write a time from 1s to 24h, such as 5s or 1h".to_owned();
    let span = text.parse::<SignedDuration>().map_err(|_| wrong())?;
    let bounds = SignedDuration::from_secs(1)..=SignedDuration::from_hours(24);
    if bounds.contains(&span) { Ok(span.unsigned_abs()) } else { Err(wrong()) }
}
