//! Child processes that run this program and can be killed.

use super::agent::NAME;
use crate::client::{Answer, Api, Error};
use anyhow::{Context, Result};
use reqwest::RequestBuilder;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stepwarden_embedded::Durability;
use tokio::sync::oneshot;

/// A process reports within this time that it is up.
const START: Duration = Duration::from_secs(60);
/// What has not happened by then never will.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
/// Time until a refused request is sent again.
const AGAIN: Duration = Duration::from_millis(20);

/// A process, killed when dropped.
pub(super) struct Running(Child);

impl Running {
    /// Ends it with kill -9.
    pub(super) fn kill(&mut self) -> Result<()> {
        self.0.kill().context("killing a process")
    }

    /// Returns once it is gone.
    pub(super) fn wait(&mut self) -> Result<()> {
        self.0.wait().map(drop).context("waiting for a killed process")
    }

    /// Its id.
    pub(super) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where one system runs, before and after each kill.
pub(super) struct Place<'a> {
    pub(super) folder: &'a Path,
    durability: &'static str,
    /// The first of its three ports.
    pub(super) port: u16,
    token: String,
}

impl<'a> Place<'a> {
    /// For a system that runs the workflow `name`.
    pub(super) fn new(folder: &'a Path, durability: Durability, name: &str, workflow: &str) -> Result<Self> {
        std::fs::create_dir(folder.join("workflows")).context("creating a folder for the workflow")?;
        std::fs::write(folder.join(format!("workflows/{name}.toml")), workflow).context("writing the workflow")?;
        let durability = match durability {
            Durability::Full => "power",
            Durability::Process => "process",
        };
        Ok(Self { folder, durability, port: free_ports()?, token: format!("{:016x}", fastrand::u64(..)) })
    }

    /// A client of the system's API.
    pub(super) fn api(&self) -> Result<Api> {
        Api::new(&format!("http://127.0.0.1:{}", self.port), Some(self.token.clone()), self.folder)
    }

    /// Where its files are.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Starts the system, and returns once it is up.
    pub(super) async fn start(&self) -> Result<Running> {
        let mut command = program()?;
        command.current_dir(self.folder).env("STEPWARDEN_TOKEN", &self.token);
        command.args(["up", "--data", "data", "--workflows", "workflows", "--rate-limit", "0"]);
        command.args(["--external-agent", NAME, "--durability", self.durability, "--port", &self.port.to_string()]);
        let (says_so, is_up) = oneshot::channel();
        let mut says_so = Some(says_so);
        let process = spawn(command, move |line| {
            if line.contains("AWS endpoints")
                && let Some(says_so) = says_so.take()
            {
                let _ = says_so.send(());
            }
        })?;
        let is_up = tokio::time::timeout(START, is_up).await.context("`stepwarden up` did not report that it is up")?;
        is_up.context("`stepwarden up` ended immediately")?;
        Ok(process)
    }
}

/// Sends a request until it is taken. The overload guard refuses orders while others wait too long for their first step,
/// and a system that has just started may not answer yet.
pub(super) async fn again(api: &Api, request: impl Fn() -> RequestBuilder) -> Result<Answer, Error> {
    let begin = Instant::now();
    loop {
        match api.ask(request()).await {
            Err(error) if error.is_passing() && begin.elapsed() < PATIENCE => tokio::time::sleep(AGAIN).await,
            answer => return answer,
        }
    }
}

/// This program, without environment variables that name other systems.
pub(super) fn program() -> Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("looking for this program")?);
    for name in ["AWS_ENDPOINT_URL", "AGENT_POOLS", "STEPWARDEN_URL", "STEPWARDEN_TOKEN"] {
        command.env_remove(name);
    }
    command.env("RUST_LOG", "off").stdin(Stdio::null()).stdout(Stdio::piped());
    Ok(command)
}

/// Starts `command` and gives each line of its output to `hear`, which is dropped at the end of the output.
pub(super) fn spawn(mut command: Command, mut hear: impl FnMut(&str) + Send + 'static) -> Result<Running> {
    let mut process = Running(command.spawn().context("starting another instance of this program")?);
    let output = process.0.stdout.take().context("a process without an output")?;
    std::thread::spawn(move || BufReader::new(output).lines().map_while(Result::ok).for_each(|line| hear(&line)));
    Ok(process)
}

/// A port that is free together with the next two, below the range that the system assigns.
fn free_ports() -> Result<u16> {
    let is_free = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    let tries = std::iter::repeat_with(|| fastrand::u16(20_000..32_000)).take(1000);
    let found = { tries }.find(|port| (*port..port + 3).all(is_free));
    found.context("no three consecutive free ports between 20000 and 32000")
}
