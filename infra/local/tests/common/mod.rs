//! The real binary with short workflows.
#![allow(dead_code)]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Whatever ends by itself has ended by then, on any machine.
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

/// The token of every system under test.
pub const TOKEN: &str = "0123456789abcdef";

/// A client that sends it.
pub fn http() -> reqwest::Client {
    let bearer = reqwest::header::HeaderValue::from_str(&format!("Bearer {TOKEN}")).unwrap();
    let headers = [(reqwest::header::AUTHORIZATION, bearer)].into_iter().collect();
    reqwest::Client::builder().timeout(Duration::from_secs(5)).default_headers(headers).build().unwrap()
}

/// 830 real orders, one JSON object a line.
pub const NORTHWIND: &str = include_str!("../../../../tests/data/northwind-orders.jsonl");

/// The program, away from this repository's own workflows.
pub fn program(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stepwarden"));
    command
        .current_dir(dir)
        .args(args)
        .env_remove("AWS_ENDPOINT_URL")
        .env("RUST_LOG", "error")
        .env("STEPWARDEN_TOKEN", TOKEN);
    command
}

/// Runs it to its end, which has to come.
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

/// `stepwarden up`, killed when dropped.
pub struct Up {
    pub child: Child,
    pub url: String,
    pub remotes_url: String,
}

impl Up {
    pub fn start(dir: &Path, args: &[&str]) -> Self {
        let all: Vec<&str> = ["up"].iter().chain(args).copied().collect();
        Self::from(&mut program(dir, &all))
    }

    /// The same, of a command that says `up`.
    pub fn from(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let url = lines.next().expect("its first line is the URL");
        let line = lines.find(|line| line.contains("remote services")).expect("it says where they listen");
        let remotes_url = line.split_whitespace().find(|word| word.starts_with("http://")).unwrap().to_owned();
        // The pipe is closed here.
        Self { child, url, remotes_url }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Up {
    fn drop(&mut self) {
        self.kill();
    }
}
