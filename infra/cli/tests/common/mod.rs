//! The real binary with short workflows.
#![allow(dead_code)]

pub mod client;
pub mod record;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A command that ends by itself has ended after this time, on any machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// The reference workflow with short times.
pub const QUICK: &str = r#"
name = "order"
input = "order"
[[step]]
name = "reserve"
agent = "inventory"
timeout = "1s"
retry = { max = 500, backoff = ["20ms"] }
undo = { agent = "inventory", timeout = "1s", retry = { max = 500, backoff = ["20ms"] } }
[[step]]
name = "check-fraud"
agent = "fraud"
timeout = "1s"
retry = { max = 500, backoff = ["20ms"] }
[[step]]
name = "charge"
agent = "payment"
after = ["reserve", "check-fraud"]
timeout = "1s"
retry = { max = 500, backoff = ["20ms"] }
undo = { agent = "payment", timeout = "1s", retry = { max = 500, backoff = ["20ms"] } }
[[step]]
name = "ship"
agent = "shipping"
after = ["charge"]
timeout = "1s"
retry = { max = 500, backoff = ["20ms"] }
undo = { agent = "shipping", timeout = "1s", retry = { max = 500, backoff = ["20ms"] } }
"#;

/// A directory with the reference workflow in `quick`.
pub fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("quick")).unwrap();
    std::fs::write(dir.path().join("quick/order.toml"), QUICK).unwrap();
    dir
}

/// The whole number in the environment variable `name`, or `default` if it is not set.
///
/// # Panics
/// If the variable is set but not a number: a requested run that is not made would look like one that passed.
pub fn number(name: &str, default: u64) -> u64 {
    let Some(text) = std::env::var_os(name) else { return default };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.unwrap_or_else(|| panic!("{name}={}: write a whole number", text.display()))
}

/// The token of every system under test.
pub const TOKEN: &str = "0123456789abcdef";

/// A client that sends this token.
pub fn http() -> reqwest::Client {
    client().timeout(Duration::from_secs(5)).build().unwrap()
}

/// A builder of such a client.
pub fn client() -> reqwest::ClientBuilder {
    let bearer = reqwest::header::HeaderValue::from_str(&format!("Bearer {TOKEN}")).unwrap();
    let headers = [(reqwest::header::AUTHORIZATION, bearer)].into_iter().collect();
    reqwest::Client::builder().default_headers(headers)
}

/// 830 real orders, one JSON object a line.
pub const NORTHWIND: &str = include_str!("../../../../tests/data/northwind-orders.jsonl");

/// The program, away from this repository's own workflows. `STEPWARDEN` names another binary of it, for long runs.
pub fn program(dir: &Path, args: &[&str]) -> Command {
    let given = std::env::var_os("STEPWARDEN").map(|path| std::path::absolute(path).expect("a path"));
    let mut command = Command::new(given.unwrap_or_else(|| env!("CARGO_BIN_EXE_stepwarden").into()));
    command
        .current_dir(dir)
        .args(args)
        .env_remove("AWS_ENDPOINT_URL")
        .env("RUST_LOG", "error")
        .env("STEPWARDEN_TOKEN", TOKEN);
    command
}

/// Runs a command to its end, within a bounded time.
pub fn run(dir: &Path, args: &[&str]) -> Output {
    let mut child = program(dir, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begin.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("`stepwarden {}` did not end: {:?}", args.join(" "), child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap()
}

/// A program under test, killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts a command, and reads the first lines of its output, up to one that contains `until`.
    fn start(command: Command, until: &str) -> (Self, Vec<String>) {
        Self::start_within(command, until, PATIENCE)
    }

    /// Starts a command and reads its first lines, unless that takes longer than `patience`.
    pub fn start_within(mut command: Command, until: &str, patience: Duration) -> (Self, Vec<String>) {
        let mut child = Self(command.stdout(Stdio::piped()).spawn().unwrap());
        let (begin, output) = (Instant::now(), BufReader::new(child.0.stdout.take().unwrap()));
        let (line, lines_read) = mpsc::channel();
        // Only the end of the pipe ends a read. The pipe is closed once no line is awaited any more.
        std::thread::spawn(move || output.lines().try_for_each(|read| line.send(read.unwrap())));
        let mut lines: Vec<String> = Vec::new();
        loop {
            match lines_read.recv_timeout(patience.saturating_sub(begin.elapsed())) {
                Ok(line) => lines.push(line),
                Err(RecvTimeoutError::Timeout) => panic!("no `{until}` within {patience:?}: {lines:?}"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("it ended without `{until}`: {lines:?}, {:?}", child.0.wait())
                }
            }
            if lines.last().is_some_and(|line| line.contains(until)) {
                return (child, lines);
            }
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn url_in(line: &str) -> String {
    line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned()
}

/// `stepwarden up`.
pub struct Up {
    pub process: Running,
    pub url: String,
    pub remotes_url: String,
    /// URL of its own endpoints, or of those that it was configured to use.
    pub aws_url: String,
    /// Its output until it was up.
    pub lines: Vec<String>,
}

impl Up {
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        let all: Vec<&str> = ["up"].iter().chain(args).copied().collect();
        Self::of(program(dir, &all))
    }

    /// Starts a command that runs `up`.
    pub fn of(command: Command) -> Self {
        let (process, lines) = Running::start(command, "AWS endpoints");
        let url = |of: &str| url_in(lines.iter().find(|line| line.contains(of)).expect(of));
        let [remotes_url, aws_url] = ["remote services", "AWS endpoints"].map(url);
        Self { process, url: lines[0].clone(), remotes_url, aws_url, lines }
    }

    /// Starts one more instance of all functions, on the tables and queues of another system.
    pub fn start_on(aws_url: &str, dir: &Path, args: &[&str]) -> Self {
        let all: Vec<&str> = ["up"].iter().chain(args).copied().collect();
        let mut command = program(dir, &all);
        command.env("AWS_ENDPOINT_URL", aws_url).env("AWS_REGION", "local");
        command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any");
        // Its errors while the other system is dead are expected.
        command.stderr(Stdio::null());
        let (process, lines) = Running::start(command, "remote services");
        let (url, remotes_url) = (lines[0].clone(), url_in(lines.last().unwrap()));
        Self { process, url, remotes_url, aws_url: aws_url.to_owned(), lines }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.process.kill();
    }
}

/// `stepwarden remotes`, and where it listens.
pub fn start_remotes(dir: &Path, args: &[&str]) -> (Running, String) {
    let all: Vec<&str> = ["remotes"].iter().chain(args).copied().collect();
    let (process, lines) = Running::start(program(dir, &all), "http://");
    (process, lines[0].clone())
}
