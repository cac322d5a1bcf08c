//! The verbs that run something on this machine.

use crate::args::{Bench, Cli, Command, Completions, Console, Remotes, Simulate, Up};
use crate::programs::Programs;
use crate::project::{self, with_own};
use crate::reload;
use crate::{bench, demo, doctor, proxy, say, scenario, simulate};
use anyhow::{Context, Result};
use clap::{CommandFactory, Parser};
use shared::workflow::file::Settings;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use stepwarden_local::access;
use stepwarden_local::data_folder::{TOKEN_FILE, keep_url};
use stepwarden_local::start_error::StartError;
use stepwarden_local::system::{self, Backend, CACHE, Options, System, read_workflows};

/// Runs a command to its end, or the demo if no command was given. `folder` is where the workflows are.
pub async fn run(command: Option<Command>, folder: Option<&Path>) -> Result<ExitCode> {
    match command {
        // The demo with its default arguments.
        None => Box::pin(run(Cli::parse_from(["stepwarden", "demo"]).command, folder)).await,
        Some(Command::Demo(demo)) => {
            Ok(code(demo::run(&demo, read_workflows(folder, &[], &Settings::default())?).await?))
        }
        Some(Command::New(new)) => {
            say!("{}", project::create(&new)?);
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Up(up)) => self::up(up, folder).await,
        Some(Command::Bench(bench)) => self::bench(bench).await,
        Some(Command::BenchAgent) => {
            bench::agent::serve().await?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Console(Console { port, at })) => {
            let api = at.api().await?;
            let listener = system::bind(port, 0).await?;
            proxy::serve(listener, api, tell, signals()?).await?;
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Remotes(remotes)) => self::remotes(remotes).await,
        Some(Command::Simulate(options)) => {
            // Each seed has a separate runtime, which cannot run inside this one.
            let options = Simulate { external_agents: with_own(&options.external_agents)?, ..options };
            Ok(code(tokio::task::spawn_blocking(move || simulate::main(&options)).await??))
        }
        Some(Command::Test(options)) => {
            let folder = folder.map(Path::to_owned);
            Ok(code(tokio::task::spawn_blocking(move || scenario::main(&options, folder.as_deref())).await??))
        }
        Some(Command::Doctor(mut options)) => {
            options.setup.external_agents = with_own(&options.setup.external_agents)?;
            doctor::run(options, folder).await
        }
        Some(Command::Completions(Completions { shell })) => {
            // Written to memory first: `generate` panics if the reader has gone.
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "stepwarden", &mut script);
            std::io::stdout().write_all(&script).context("writing to standard output")?;
            Ok(ExitCode::SUCCESS)
        }
        Some(other) => crate::api::run(other).await,
    }
}

async fn up(mut up: Up, workflows_folder: Option<&Path>) -> Result<ExitCode> {
    let files = up.settings()?;
    let commands = project::agents(Path::new(""))?;
    up.setup.external_agents = with_own(&up.setup.external_agents)?;
    let source =
        reload::Source { folder: workflows_folder, agents: up.setup.external_agents.clone(), settings: files.clone() };
    let workflows = source.read()?;
    let backend = if up.aws {
        Backend::Deployed
    } else if std::env::var_os("AWS_ENDPOINT_URL").is_some_and(|v| !v.is_empty()) {
        Backend::Emulator
    } else {
        Backend::Embedded { data: (!up.memory).then_some(up.data.clone()), durability: up.durability.into() }
    };
    if let (true, Backend::Embedded { data: Some(data), .. }) = (up.accept_loss, &backend) {
        let done = stepwarden_embedded::accept_loss(data).map_err(|error| StartError::Data(error.to_string()))?;
        done.iter().for_each(|line| tracing::warn!("{line}"));
        accept_loss_of_ledgers(data)?;
    }
    let is_deployed = matches!(backend, Backend::Deployed);
    let kept = match &backend {
        Backend::Embedded { data: Some(data), .. } => format!("in {}", data.display()),
        Backend::Embedded { data: None, .. } => "in memory".into(),
        Backend::Emulator => format!("at {}", std::env::var("AWS_ENDPOINT_URL").unwrap_or_default()),
        Backend::Deployed => "on AWS".into(),
    };
    let given = std::env::var("STEPWARDEN_TOKEN").ok().filter(|token| !token.is_empty());
    // Kept even if the data is in memory, because the verbs look there. If the folder cannot be written, a system in
    // memory runs without it.
    let is_kept = !up.memory || stepwarden_guard::folder::create(&up.data).is_ok();
    let folder = is_kept.then_some(up.data);
    let told = match (&given, &folder) {
        (Some(_), _) => "from STEPWARDEN_TOKEN".to_owned(),
        (None, Some(folder)) => format!("in {}", folder.join(TOKEN_FILE).display()),
        (None, None) => "pass it in STEPWARDEN_TOKEN or --token".to_owned(),
    };
    let options = Options {
        begins: matches!(backend, Backend::Embedded { .. }),
        backend,
        port: up.port,
        workflows,
        reply_queues: up.setup.reply_queues()?,
        observer: None,
        cache: CACHE,
        pools: up.setup.pools,
        urls: up.remotes.into_iter().collect(),
        access: access::Options { token: given, folder: folder.clone(), file: up.tokens, rate: up.rate_limit },
        external_agents: up.setup.external_agents,
        functions: up.functions.into_iter().collect(),
        files,
    };
    let ended = signals()?;
    let system = System::start(options).await?;
    let _kept = folder.map(|folder| keep_url(&folder, &system.url));
    tell(&system.url);
    tell(&format!("  token             {}  ({told})", system.token));
    tell(&format!("  console           {}/console#token={}  (signs in)", system.url, system.token));
    tell(&format!("  data              {kept}"));
    tell(&format!("  remote services   {}  (to inject faults: PUT /faults/payment)", system.remotes_url));
    if let Some(url) = &system.aws_url {
        tell(&format!("  AWS endpoints     {url}  (AWS_ENDPOINT_URL for the aws CLI)"));
    }
    let programs = if is_deployed {
        (!commands.is_empty())
            .then(|| tell("  agents            not started, because --aws uses those of the deployment"));
        Programs::default()
    } else {
        commands.iter().for_each(|(name, command)| tell(&format!("  agent             {name}: {command}")));
        Programs::start(&commands, &variables(system.aws_url.as_deref()))
    };
    tell("Stop with Ctrl-C.");
    tokio::select! {
        () = ended => {}
        () = source.follow(&system, tell) => {}
    }
    programs.stop().await;
    system.stop().await;
    Ok(ExitCode::SUCCESS)
}

/// What a program needs to serve an agent of a system whose endpoints are at `aws_url`, or where the environment says.
fn variables(aws_url: Option<&str>) -> Vec<(&'static str, String)> {
    let common = [
        ("STACK", system::NAME_PREFIX.trim_end_matches('-').to_owned()),
        ("CLOCK_SKEW_MS", system::SKEW.as_millis().to_string()),
    ];
    let embedded = aws_url.into_iter().flat_map(|url| {
        let own = [("AWS_ENDPOINT_URL", url), ("AWS_REGION", "local"), ("AWS_DEFAULT_REGION", "local")];
        // A user who is signed in to AWS must not send credentials here, nor call AWS by mistake.
        let none = [("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x"), ("AWS_SESSION_TOKEN", "")];
        own.into_iter().chain(none).map(|(name, value)| (name, value.to_owned()))
    });
    common.into_iter().chain(embedded).collect()
}

fn accept_loss_of_ledgers(data: &Path) -> Result<()> {
    let done = stepwarden_remotes::accept_loss(data).map_err(|error| StartError::Data(error.to_string()))?;
    done.iter().for_each(|line| tracing::warn!("{line}"));
    Ok(())
}

async fn remotes(Remotes { port, data, accept_loss }: Remotes) -> Result<ExitCode> {
    if let (true, Some(data)) = (accept_loss, &data) {
        accept_loss_of_ledgers(data)?;
    }
    let services = system::open_remotes(data.as_deref())?;
    let listener = system::bind(port, 0).await?;
    let ended = signals()?;
    tell(&system::url_of(&listener)?);
    services.serve(listener, ended).await.context("serving the remote services")?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a line on standard output. A reader of only the first line, the URL, may be gone by the second, which is no
/// reason to stop.
fn tell(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

/// Ends once the program is told to end, from this call on. So it comes before the first line of output, whose reader may
/// end the program at once.
fn signals() -> Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let listen = |kind| signal(kind).context("listening for signals");
    // The last one: the terminal was closed.
    let (mut interrupt, mut terminate) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
    let mut hangup = listen(SignalKind::hangup())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    })
}

pub fn code(is_clean: bool) -> ExitCode {
    if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn bench(bench: Bench) -> Result<ExitCode> {
    bench.check().map_err(|wrong| StartError::Data(wrong.into()))?;
    let report = bench::run(&bench).await?;
    if bench.json {
        say!("{}", serde_json::to_string_pretty(&report)?);
    } else {
        report.say()?;
    }
    Ok(ExitCode::SUCCESS)
}
