//! The command line.

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};
use shared::pools::Layout;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use stepwarden::client::{Api, DATA};
use stepwarden::say::{READER_GONE, is_reader_gone};
use stepwarden::system::{self, Backend, Options, StartError, System};
use stepwarden::{access, bench, demo, say, simulate};
use stepwarden_embedded::Durability;
use submit::workflows::{self, Workflows};

/// A tenth less time for an order than with the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit code for what the user can mend: a wrong argument, a damaged data directory, a port in use.
const USAGE: u8 = 2;

/// Runs multi-step business work reliably: a scheduler, agents and a supervisor over SQS and DynamoDB.
///
/// Without a command it runs the demo.
#[derive(Parser)]
#[command(
    version,
    about,
    after_help = "Examples:\n  stepwarden                 run the demo\n  stepwarden up              start the system and stay up\n  stepwarden up --port 0     on any free port; the first line of the output is the URL\n  stepwarden demo my.jsonl   run your own orders, one JSON object a line"
)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    /// Folder of workflow files [default: workflows/ here, if there is one, else the built-in ones]
    #[arg(long, global = true, value_name = "DIR")]
    workflows: Option<PathBuf>,
}

#[derive(Subcommand)]
enum Command {
    /// Start the whole system in this process and stay up
    ///
    /// Callers need the token that it prints; STEPWARDEN_TOKEN sets another one.
    Up(Up),
    /// Run many orders with faults through a fresh system, then check every effect
    Demo(Demo),
    /// Measure throughput and latency on this machine
    Bench(Bench),
    /// Run a workflow under faults in virtual time, and check that every order ends well
    Simulate(Simulate),
    /// Serve the sample remote services alone, for a system that runs elsewhere
    Remotes(Remotes),
    /// Submit an order from a file, or from standard input for `-`
    Submit(Submit),
    /// Show how an order stands
    Get(One),
    /// Show what happened to an order
    History(One),
    /// List orders, newest first
    List(List),
    /// List agents: whether they are paused, and what waits in their pools
    Agents(At),
    /// Continue an order in Error from its failed steps
    Resubmit(Act),
    /// Leave a failed step, or a failed undo, out
    Skip(Act),
    /// Record that a failed step, or a failed undo, was done by hand
    MarkDone(Act),
    /// End the wait for the next attempt
    RetryNow(Act),
    /// Stop an order that has not ended, and undo what was done
    Cancel(Act),
    /// Undo an order, also one that is Processed
    Undo(Act),
    /// Claim nothing more of an order until it is resumed
    Pause(Act),
    /// End the pause of an order
    Resume(Act),
    /// Hand an agent no more work until it is resumed
    PauseAgent(AgentAct),
    /// End the pause of an agent
    ResumeAgent(AgentAct),
}

/// The system to speak to.
#[derive(clap::Args)]
struct At {
    /// Where its API is
    #[arg(long, env = "STEPWARDEN_URL", default_value = "http://127.0.0.1:8080")]
    url: String,
    /// Its token [default: the one that `stepwarden up` keeps in .stepwarden/token here, if the API is on this machine]
    #[arg(long, env = "STEPWARDEN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Submit {
    /// The workflow's input, one JSON object
    file: PathBuf,
    /// Name of the workflow
    #[arg(long, default_value = "order")]
    workflow: String,
    /// Idempotency key: the same key and the same order give the same answer [default: a new one]
    #[arg(long)]
    key: Option<String>,
    /// Registered name of the queue that gets the notices
    #[arg(long, value_name = "NAME")]
    reply_queue: Option<String>,
    /// How urgent it is
    #[arg(long, value_parser = ["high", "normal", "low"], default_value = "normal")]
    priority: String,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct One {
    /// The order's id
    id: String,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct List {
    /// Only orders in this state: Pending, Processing, Processed, Undoing, Undone, Error
    #[arg(long)]
    state: Option<String>,
    /// Only orders of this workflow
    #[arg(long)]
    workflow: Option<String>,
    /// Only this tenant's orders
    #[arg(long)]
    tenant: Option<String>,
    /// Only orders submitted at or after this time
    #[arg(long)]
    from: Option<String>,
    /// Most orders in the page
    #[arg(long)]
    limit: Option<u32>,
    /// Where the page begins, from the page before
    #[arg(long)]
    cursor: Option<String>,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct Act {
    /// The order's id
    id: String,
    /// Who does it
    #[arg(long, env = "USER")]
    by: String,
    /// Why; it stays in the order's history
    #[arg(long)]
    reason: String,
    /// Name of the step, where more than one comes into question
    #[arg(long)]
    step: Option<String>,
    /// For resubmit: input in place of the order's for that step, JSON
    #[arg(long, value_parser = json)]
    input: Option<serde_json::Value>,
    /// For mark-done: what the agent would have returned, JSON
    #[arg(long, value_parser = json)]
    output: Option<serde_json::Value>,
    /// Act only if the order is still at this version
    #[arg(long, value_name = "VERSION")]
    if_version: Option<u64>,
    #[command(flatten)]
    at: At,
}

#[derive(clap::Args)]
struct AgentAct {
    /// The agent's name
    agent: String,
    /// Who does it
    #[arg(long, env = "USER")]
    by: String,
    /// Why
    #[arg(long)]
    reason: String,
    #[command(flatten)]
    at: At,
}

fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))
}

#[derive(clap::Args)]
struct Up {
    /// Port of the API on 127.0.0.1; the next two serve the AWS endpoints and the sample remote services. 0 takes free ones
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Where the data is kept
    #[arg(long, default_value = DATA, value_name = "DIR")]
    data: PathBuf,
    /// Keep everything in memory
    #[arg(long, conflicts_with = "data")]
    memory: bool,
    /// What an answered write survives
    #[arg(long, value_enum, default_value_t = Kept::Power)]
    durability: Kept,
    /// Use the deployed tables and queues that the environment names, instead of embedded ones
    #[arg(long)]
    aws: bool,
    /// Register a reply queue that submissions may name; may be repeated
    #[arg(long = "reply-queue", value_name = "NAME", default_value = "default")]
    reply_queues: Vec<String>,
    /// Agents with several pools, the most preferred first, for instance "payment=payment,payment-b"
    #[arg(long, env = "AGENT_POOLS", value_parser = stepwarden_aws::config::pools, default_value = "")]
    pools: Layout,
    /// Where the remote service of an agent or a pool is, in place of the sample one; may be repeated
    #[arg(long = "remote", value_name = "NAME=URL", value_parser = remote)]
    remotes: Vec<(String, String)>,
    /// A TOML file with more tokens, each with its tenant and scopes; docs/security.md has one
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// Orders a second taken over HTTP from each tenant, and twice as many at once; 0: all
    #[arg(long, default_value_t = 500, value_name = "N")]
    rate_limit: u32,
    /// An agent that a program of your own serves: workflows may name it, and its requests wait in queue agent-NAME; may be
    /// repeated
    #[arg(long = "external-agent", value_name = "NAME")]
    external_agents: Vec<String>,
}

#[derive(clap::Args)]
struct Remotes {
    /// Port on 127.0.0.1; 0 takes a free one, and the first line of the output is the URL
    #[arg(long, default_value_t = 8082)]
    port: u16,
    /// Where the ledgers are kept [default: in memory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
}

#[derive(clap::Args)]
struct Demo {
    /// Orders, one JSON object a line [default: the 830 built-in ones]
    file: Option<PathBuf>,
    /// Share of calls to remote services that fail and may be tried again
    #[arg(long, default_value_t = 0.10, value_parser = rate)]
    transient: f64,
    /// Share of calls that are never answered
    #[arg(long, default_value_t = 0.03, value_parser = rate)]
    hang: f64,
    /// Share of steps that a remote service refuses for good
    #[arg(long, default_value_t = 0.01, value_parser = rate)]
    permanent: f64,
    /// Seed of the faults
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(clap::Args)]
struct Bench {
    /// Orders in the throughput run
    #[arg(long, default_value_t = 5000)]
    orders: u64,
    /// Orders one at a time, for the latency
    #[arg(long, default_value_t = 300)]
    single: u64,
    /// Orders submitted and not ended at most
    #[arg(long, default_value_t = 128)]
    in_flight: usize,
    /// Submit all orders before the first one is scheduled
    #[arg(long)]
    backlog: bool,
    /// What an answered write survives
    #[arg(long, value_enum, default_value_t = Kept::Power)]
    durability: Kept,
    /// Keep everything in memory
    #[arg(long)]
    memory: bool,
    /// Where the data goes [default: a fresh directory]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct Simulate {
    /// A workflow file [default: the project's own workflows, which use every rule between them]
    file: Option<PathBuf>,
    /// An agent that a program of your own serves; may be repeated
    #[arg(long = "external-agent", value_name = "NAME")]
    external_agents: Vec<String>,
    /// How many seeds, from 0
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// Replay this seed alone and print its trace
    #[arg(long, conflicts_with = "seeds")]
    seed: Option<u64>,
    /// One seed in so many goes over the DynamoDB adapter; 0: none
    #[arg(long, default_value_t = 20, value_name = "N")]
    adapter_every: u64,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kept {
    /// A power failure: fsync before every answer
    Power,
    /// The end of the process, such as kill -9
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

fn remote(text: &str) -> Result<(String, String), String> {
    let (name, url) = text.split_once('=').ok_or("write a name, `=` and a URL")?;
    Ok((name.to_owned(), url.to_owned()))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "write a number from 0 to 1, for instance 0.1".to_owned())?;
    if (0.0..=1.0).contains(&rate) { Ok(rate) } else { Err("write a number from 0 to 1, for instance 0.1".into()) }
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The demo shows faults on purpose: what the functions log about them would drown the summary.
    stepwarden_aws::telemetry::init_at(match cli.command {
        Some(Command::Up(_)) => "info",
        Some(Command::Simulate(_)) => "off",
        _ => "error",
    });
    let runtime = tokio::runtime::Runtime::new().expect("threads can be started");
    match runtime.block_on(run(cli)) {
        Ok(code) => code,
        Err(error) if is_reader_gone(&error) => ExitCode::from(READER_GONE),
        Err(error) => {
            eprintln!("stepwarden: {error:#}");
            let is_usage = error.downcast_ref::<StartError>().is_some()
                || error.downcast_ref::<shared::workflow::file::Error>().is_some();
            if is_usage { ExitCode::from(USAGE) } else { ExitCode::FAILURE }
        }
    }
}

async fn run(cli: Cli) -> Result<ExitCode> {
    let workflows = || read_workflows(cli.workflows.as_deref(), &[]);
    match cli.command {
        Some(Command::Up(up)) => {
            let workflows = read_workflows(cli.workflows.as_deref(), &up.external_agents)?;
            self::up(up, workflows).await
        }
        Some(Command::Bench(bench)) => self::bench(bench).await,
        Some(Command::Remotes(remotes)) => self::remotes(remotes).await,
        Some(Command::Demo(demo)) => self::demo(demo, workflows()?).await,
        Some(Command::Simulate(options)) => self::simulate(options).await,
        Some(other) => speak(other).await,
        None => {
            let demo = Demo { file: None, transient: 0.10, hang: 0.03, permanent: 0.01, seed: 1 };
            self::demo(demo, workflows()?).await
        }
    }
}

fn read_workflows(folder: Option<&Path>, external_agents: &[String]) -> Result<Workflows> {
    let agents: Vec<&str> =
        agent::agents::NAMES.into_iter().chain(external_agents.iter().map(String::as_str)).collect();
    let here = Path::new("workflows");
    let folder = folder.or_else(|| here.is_dir().then_some(here));
    let workflows = match folder {
        Some(folder) => workflows::in_folder(folder, &agents)?,
        None => workflows::built_in(&agents)?,
    };
    Ok(workflows)
}

/// The verbs that speak to a running system.
async fn speak(command: Command) -> Result<ExitCode> {
    let api = |at: &At| Api::new(&at.url, at.token.clone(), at.json);
    let (action, act) = match command {
        Command::Up(_) | Command::Demo(_) | Command::Bench(_) | Command::Remotes(_) | Command::Simulate(_) => {
            unreachable!("these speak to no running system")
        }
        Command::Submit(Submit { file, workflow, key, reply_queue, priority, at }) => {
            api(&at)?.submit(&file, &workflow, key.as_deref(), reply_queue.as_deref(), &priority).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Get(One { id, at }) => {
            api(&at)?.get(&id).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::History(One { id, at }) => {
            api(&at)?.history(&id).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::List(List { state, workflow, tenant, from, limit, cursor, at }) => {
            let limit = limit.map(|n| n.to_string());
            let all = [
                ("state", state),
                ("workflow", workflow),
                ("tenant", tenant),
                ("from", from),
                ("limit", limit),
                ("cursor", cursor),
            ];
            let filters: Vec<_> = all.into_iter().filter_map(|(name, value)| value.map(|v| (name, v))).collect();
            api(&at)?.list(&filters).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::PauseAgent(AgentAct { agent, by, reason, at }) => {
            api(&at)?.set_agent("pause", &agent, &by, &reason).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::ResumeAgent(AgentAct { agent, by, reason, at }) => {
            api(&at)?.set_agent("resume", &agent, &by, &reason).await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Agents(at) => {
            api(&at)?.agents().await?;
            return Ok(ExitCode::SUCCESS);
        }
        Command::Resubmit(act) => ("resubmit", act),
        Command::Skip(act) => ("skip", act),
        Command::MarkDone(act) => ("mark-done", act),
        Command::RetryNow(act) => ("retry-now", act),
        Command::Cancel(act) => ("cancel", act),
        Command::Undo(act) => ("undo", act),
        Command::Pause(act) => ("pause", act),
        Command::Resume(act) => ("resume", act),
    };
    let mut body = serde_json::json!({"by": act.by, "reason": act.reason});
    let optional = [
        ("step", act.step.map(serde_json::Value::from)),
        ("input", act.input),
        ("output", act.output),
        ("if_version", act.if_version.map(serde_json::Value::from)),
    ];
    for (name, value) in optional {
        if let Some(value) = value {
            body[name] = value;
        }
    }
    api(&act.at)?.act(action, &act.id, &body).await?;
    Ok(ExitCode::SUCCESS)
}

async fn up(up: Up, workflows: Workflows) -> Result<ExitCode> {
    let backend = if up.aws {
        Backend::Deployed
    } else if std::env::var_os("AWS_ENDPOINT_URL").is_some_and(|v| !v.is_empty()) {
        Backend::Emulator
    } else {
        Backend::Embedded { data: (!up.memory).then_some(up.data.clone()), durability: up.durability.into() }
    };
    let kept = match &backend {
        Backend::Embedded { data: Some(data), .. } => format!("in {}", data.display()),
        Backend::Embedded { data: None, .. } => "in memory".into(),
        Backend::Emulator => format!("at {}", std::env::var("AWS_ENDPOINT_URL").unwrap_or_default()),
        Backend::Deployed => "on AWS".into(),
    };
    let given = std::env::var("STEPWARDEN_TOKEN").ok().filter(|token| !token.is_empty());
    let folder = (!up.memory).then_some(up.data);
    let told = match (&given, &folder) {
        (Some(_), _) => "as in STEPWARDEN_TOKEN".to_owned(),
        (None, Some(folder)) => format!("in {}", folder.join(access::FILE).display()),
        (None, None) => "for STEPWARDEN_TOKEN or --token".to_owned(),
    };
    let options = Options {
        backend,
        port: up.port,
        workflows,
        reply_queues: up.reply_queues,
        observer: None,
        cache: 20_000,
        pools: up.pools,
        urls: up.remotes.into_iter().collect(),
        access: access::Options { token: given, folder: folder.clone(), file: up.tokens, rate: up.rate_limit },
        external_agents: up.external_agents,
    };
    let system = System::start(options).await?;
    tell(&system.url);
    tell(&format!("  token             {}  ({told})", system.token));
    tell(&format!("  console           {}/console", system.url));
    tell(&format!("  data              {kept}"));
    tell(&format!("  remote services   {}  (faults: PUT /faults/payment)", system.remotes_url));
    if let Some(url) = &system.aws_url {
        tell(&format!("  AWS endpoints     {url}  (AWS_ENDPOINT_URL for the aws command line)"));
    }
    tell("Stop with Ctrl-C.");
    wait_for_signal().await?;
    system.stop().await;
    Ok(ExitCode::SUCCESS)
}

async fn remotes(Remotes { port, data }: Remotes) -> Result<ExitCode> {
    let services = system::open_remotes(data.as_deref())?;
    let listener = system::bind(port, 0).await?;
    tell(&system::url_of(&listener)?);
    services.serve(listener, async { drop(wait_for_signal().await) }).await.context("serving the remote services")?;
    Ok(ExitCode::SUCCESS)
}

/// A line on standard output. Who reads only the first line, the URL, may be gone by the second: no reason to stop.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

async fn wait_for_signal() -> Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("listening for signals")?;
    tokio::select! {
        result = tokio::signal::ctrl_c() => result.context("listening for Ctrl-C"),
        _ = terminate.recv() => Ok(()),
    }
}

async fn demo(demo: Demo, workflows: Workflows) -> Result<ExitCode> {
    let Demo { file, transient, hang, permanent, seed } = demo;
    let is_clean = demo::run(demo::Settings { file, transient, hang, permanent, seed, workflows }).await?;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn simulate(Simulate { file, external_agents, seeds, seed, adapter_every, json }: Simulate) -> Result<ExitCode> {
    let options = simulate::Options { file, external_agents, seeds, seed, real_every: adapter_every, json };
    // Each seed has a runtime of its own, so it cannot be played inside of this one.
    let is_clean = tokio::task::spawn_blocking(move || simulate::main(&options)).await??;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn bench(bench: Bench) -> Result<ExitCode> {
    let settings = bench::Settings {
        orders: bench.orders.max(1),
        single: bench.single.max(1),
        in_flight: bench.in_flight.max(1),
        backlog: bench.backlog,
        durability: (!bench.memory).then_some(bench.durability.into()),
        data: bench.data,
    };
    let report = bench::run(settings).await?;
    if bench.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
        return Ok(ExitCode::SUCCESS);
    }
    say!("machine             {} x {}", report.cpus, report.cpu_model);
    say!("durability          {}", report.durability);
    say!(
        "throughput          {:.0} orders/s ({} orders, {} in flight)",
        report.orders_per_second,
        report.orders,
        if report.backlog { "all".to_owned() } else { report.in_flight.to_string() }
    );
    say!(
        "  first, last tenth {:.0}, {:.0} orders/s",
        report.orders_per_second_first_tenth,
        report.orders_per_second_last_tenth
    );
    say!("one at a time       p50 {:.1} ms, p99 {:.1} ms", report.p50_ms, report.p99_ms);
    say!(
        "per order           {:.1} DynamoDB calls, {:.1} messages, {:.1} SQS requests, {:.1} fsyncs",
        report.dynamodb_calls_per_order,
        report.sends_per_order,
        report.sqs_calls_per_order,
        report.fsyncs_per_order
    );
    if let Some(cpu) = report.cpu_ms_per_order {
        say!("CPU                 {cpu:.2} ms per order");
    }
    if let (Some(idle), Some(peak)) = (report.idle_memory_bytes, report.peak_memory_bytes) {
        say!("memory              {} MB idle, {} MB at most", idle >> 20, peak >> 20);
    }
    Ok(ExitCode::SUCCESS)
}
