//! The real binary with short workflows.
#![allow(dead_code)]

pub mod client;
pub mod record;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
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
    folder("quick", &[("order", QUICK)])
}

/// A directory with these workflows in `folder`: the name of each file, without its ending, and its text.
pub fn folder(folder: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join(folder)).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(format!("{folder}/{name}.toml")), text).unwrap();
    }
    dir
}

/// The first of `count` ports in a row that are free, below the range that the system assigns.
pub fn free_ports(count: u16) -> u16 {
    let is_free = |port| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let port = fastrand::u16(20_000..32_000);
        if (port..port + count).all(is_free) {
            return port;
        }
    }
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

/// The first of them.
pub fn first_order() -> Value {
    serde_json::from_str(NORTHWIND.lines().next().unwrap()).unwrap()
}

/// Runs a future where there is no runtime.
pub fn block<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

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

/// Checks that a command failed with this exit code and says each of these words on standard error, and returns what it
/// says there.
#[track_caller]
pub fn failed(output: &Output, code: i32, words: &[&str]) -> String {
    let error = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    for word in words {
        assert!(error.contains(word), "`{word}` is missing: {error}");
    }
    error
}

/// A program under test, killed when dropped.
pub struct Running(pub Child);

impl Running {
    /// Starts a command, and reads the first lines of its output, up to one that contains `until`, unless that takes longer
    /// than `patience`.
    pub fn start(mut command: Command, until: &str, patience: Duration) -> (Self, Vec<String>) {
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

    /// Sends another signal, and returns how the program ended.
    pub fn end(&mut self, signal: Signal) -> ExitStatus {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
        let begin = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begin.elapsed() < PATIENCE, "it goes on after {signal:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
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

    /// Starts a system on the files in `data`, with the weakest durability that survives a kill.
    pub fn start_killable(dir: &Path, port: u16, workflows: &str, args: &[&str]) -> Self {
        let port = port.to_string();
        let own = ["--port", &port, "--data", "data", "--durability", "process", "--workflows", workflows];
        Self::start(dir, &[&own[..], &["--rate-limit", "0"], args].concat())
    }

    /// Starts a command that runs `up`.
    pub fn of(command: Command) -> Self {
        let (process, lines) = Running::start(command, "AWS endpoints", PATIENCE);
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
        let (process, lines) = Running::start(command, "remote services", PATIENCE);
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
    let (process, lines) = Running::start(program(dir, &all), "http://", PATIENCE);
    (process, lines[0].clone())
}
