//! Goal: the commands in the documents work. Method: the program knows every verb and option of `stepwarden` that a
//! page names; every local command of a block is run unchanged against a running system.
//!
//! Commands that call AWS, build, or need Python are tested elsewhere: names by `tests/documents.rs`, the template's
//! commands by `tests/template`, and the agent in Python by `make python-agent`.

mod common;

use clap::CommandFactory;
use common::client::{once, submit};
use common::{Running, Up};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use stepwarden::args::Cli;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Pages whose examples name files of the reader's own; `cli.rs` runs each verb.
const ELSEWHERE: [&str; 1] = ["docs/cli.md"];

/// A program is up, and an order has come to its state, within this time on any machine.
const PATIENCE: Duration = Duration::from_secs(80);

fn pages() -> Vec<(String, String)> {
    let docs = std::fs::read_dir(format!("{ROOT}/docs")).unwrap().map(|file| file.unwrap().path());
    let mut all: Vec<PathBuf> = docs.filter(|path| path.extension().is_some_and(|e| e == "md")).collect();
    all.extend(["README.md", "CONTRIBUTING.md"].map(|name| Path::new(ROOT).join(name)));
    all.sort();
    let name = |path: &Path| path.strip_prefix(ROOT).unwrap().display().to_string();
    all.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of commands of a page, without comments and with continued lines joined.
fn blocks(text: &str) -> Vec<Vec<String>> {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let mut fence: Option<String> = None;
    let (mut block, mut line) = (Vec::new(), String::new());
    for raw in text.lines().chain([""]) {
        let is_fence = raw.trim_start().starts_with("```");
        if is_fence {
            let language = raw.trim_start().trim_start_matches('`').to_owned();
            fence = fence.is_none().then_some(language);
        }
        let is_code = !is_fence && fence.as_deref().map_or(raw.starts_with("    "), |f| ["", "sh"].contains(&f));
        if is_code {
            // A comment begins after blanks; `#` within a word is not one.
            let code = raw.split("  #").next().unwrap().trim();
            line += code.trim_end_matches('\\');
            if !code.ends_with(['\\', '|']) && !code.is_empty() {
                block.push(std::mem::take(&mut line));
            }
        } else if !block.is_empty() {
            blocks.push(std::mem::take(&mut block));
        }
    }
    blocks
}

fn as_typed(command: &str) -> String {
    command.replace("cargo run --release -- ", "stepwarden ").replace("cargo run -- ", "stepwarden ")
}

/// The arguments of `stepwarden` in a command, up to a pipe or its end.
fn arguments(command: &str) -> Option<Vec<&str>> {
    let mut words = command.split_whitespace().skip_while(|word| *word != "stepwarden").skip(1);
    let rest: Vec<&str> = words.by_ref().take_while(|word| !["|", ">", "&&", ";"].contains(word)).collect();
    (!rest.is_empty()).then_some(rest)
}

// Point 6: no page names a verb or an option that the program does not know.
#[test]
fn every_verb_and_option_that_a_page_names_is_known() {
    let mut cli = Cli::command();
    cli.build();
    let (mut named, mut wrong) = (BTreeSet::new(), Vec::new());
    for (page, text) in pages() {
        let inline =
            text.split('`').skip(1).step_by(2).filter(|code| code.starts_with("stepwarden ")).map(str::to_owned);
        for command in blocks(&text).concat().into_iter().chain(inline) {
            let command = as_typed(&command);
            let Some(words) = arguments(&command) else { continue };
            // In a sentence or a table a name may be a placeholder.
            let verb = words[0];
            if verb == "help" || !verb.bytes().all(|b| b.is_ascii_lowercase() || b == b'-') || verb.starts_with('-') {
                continue;
            }
            let Some(found) = cli.find_subcommand(verb) else {
                wrong.push(format!("{page}: `{command}`: there is no verb `{verb}`"));
                continue;
            };
            // A verb with verbs of its own, such as `workflows put`.
            let found = words.get(1).and_then(|second| found.find_subcommand(second)).unwrap_or(found);
            named.insert(found.get_name());
            for option in words.iter().filter_map(|word| word.strip_prefix("--")) {
                let name = option.split('=').next().unwrap().trim_end_matches([',', ']', ')']);
                if !found.get_arguments().any(|arg| arg.get_long() == Some(name)) {
                    wrong.push(format!("{page}: `{command}`: `{verb}` knows no --{name}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(named.len() > 10, "only {named:?} were named");
}

/// A system with what the pages mention, and a folder like the repository's root.
struct Scene {
    dir: tempfile::TempDir,
    up: Up,
    /// An order that ended well, one in Error, one that waits, and one of the last two each that is moved.
    orders: [String; 6],
    /// Has ended.
    job: String,
}

/// The order stops while the service is unavailable, so that a resubmission completes it: a declined call would stay
/// declined.
const STOP: &str = r#"
name = "stop"
on_failure = "error"
[[step]]
name = "charge"
agent = "payment"
timeout = "2s"
retry = { max = 1 }
calls = { attempts = 1 }
"#;

/// Waits for longer than any test.
const TRIAL: &str = r#"
name = "trial"
[[step]]
name = "trial-over"
wait = "14d"
"#;

/// Has a list, without items.
const LIST: &str = r#"
name = "list"
[[step]]
name = "trials"
each = []
workflow = "trial"
with = {}
"#;

impl Scene {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["tests/data", "workflows", "my-workflows", "all", ".stepwarden", "bin", "examples/stop"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        let copy = |name: &str| std::fs::copy(format!("{ROOT}/{name}"), dir.path().join(name)).unwrap();
        copy("tests/data/northwind-orders.jsonl");
        copy("workflows/order.toml");
        copy("examples/stop/order.toml");
        let agents = std::fs::read_to_string(format!("{ROOT}/docs/agents.md")).unwrap();
        let gift = agents.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
        std::fs::copy(dir.path().join("workflows/order.toml"), dir.path().join("all/order.toml")).unwrap();
        std::fs::write(dir.path().join("all/stop.toml"), STOP).unwrap();
        std::fs::write(dir.path().join("all/trial.toml"), TRIAL).unwrap();
        std::fs::write(dir.path().join("all/list.toml"), LIST).unwrap();
        for folder in ["all", "my-workflows"] {
            std::fs::write(dir.path().join(folder).join("gift.toml"), gift).unwrap();
        }
        std::fs::write(dir.path().join(".stepwarden/token"), common::TOKEN).unwrap();
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_stepwarden"), dir.path().join("bin/stepwarden")).unwrap();
        let up =
            Up::start(dir.path(), &["--port", "0", "--memory", "--workflows", "all", "--external-agent", "gift-wrap"]);
        let mut scene = Self { dir, up, orders: Default::default(), job: String::new() };
        scene.orders[0] = scene.order("order", "1", "Processed", json!({})).await;
        scene.orders[1] = scene.order("stop", "2", "Error", json!({"outage": true})).await;
        scene.orders[2] = scene.order("trial", "3", "Pending", json!({})).await;
        scene.orders[3] = scene.order("trial", "4", "Pending", json!({})).await;
        scene.orders[4] = scene.order("stop", "5", "Error", json!({"outage": true})).await;
        scene.orders[5] = scene.order("list", "6", "Processed", json!({})).await;
        let body =
            json!({"action": "resubmit", "order_ids": [scene.orders[0]], "by": "ann", "reason": "r", "dry_run": true});
        let post = common::http().post(format!("{}/jobs", scene.up.url)).header("idempotency-key", "1");
        let answer: Value = post.bearer_auth(common::TOKEN).json(&body).send().await.unwrap().json().await.unwrap();
        scene.job = answer["job_id"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned();
        scene
    }

    /// An order that has reached `state` while the payment service has `faults`.
    async fn order(&self, workflow: &str, key: &str, state: &str, faults: Value) -> String {
        let http = common::http();
        let service = format!("{}/faults/payment", self.up.remotes_url);
        http.put(&service).json(&faults).send().await.unwrap().error_for_status().unwrap();
        let order = json!({"workflow": workflow, "input": common::first_order()});
        let id = submit(&http, &self.up.url, key, &order).await;
        once(&http, &self.up.url, &id, PATIENCE, |order| order["state"] == state).await;
        http.put(&service).json(&json!({})).send().await.unwrap().error_for_status().unwrap();
        id
    }

    /// The command with this system's addresses and orders.
    fn fitted(&self, command: &str) -> String {
        let place = |url: &str| url.trim_start_matches("http://").to_owned();
        let is_act = ["resubmit", "skip", "mark-done", "retry-now"].iter().any(|act| command.contains(act));
        let order = &self.orders[match () {
            () if command.contains("stepwarden migrate") => 3,
            () if command.contains("resubmit ORDER_ID --to") => 4,
            () if command.contains("trial-over") => 2,
            () if command.contains("--items") => 5,
            () => usize::from(is_act),
        }];
        // Later commands need orders in Error.
        let only_looks =
            if command.contains("bulk resubmit") && command.contains("--detach") { " --dry-run" } else { "" };
        (command.to_owned() + only_looks)
            .replace("localhost:8080", &place(&self.up.url))
            .replace("localhost:8081", &place(&self.up.aws_url))
            .replace("localhost:8082", &place(&self.up.remotes_url))
            .replace("ORDER_ID", order)
            .replace("JOB_ID", &self.job)
    }

    fn shell(&self, command: &str, folder: &str) -> Command {
        let mut shell = Command::new("bash");
        let path = format!("{}:{}", self.dir.path().join("bin").display(), std::env::var("PATH").unwrap());
        shell.args(["-euo", "pipefail", "-c", command]).current_dir(self.dir.path().join(folder)).env("PATH", path);
        shell
            .env("STEPWARDEN_URL", &self.up.url)
            .env("USER", "ann")
            .env_remove("AWS_ENDPOINT_URL")
            .stdin(Stdio::null());
        shell
    }

    /// Starts a program that keeps running, with free ports: it must print where it listens.
    fn starts(&self, command: &str, folder: &str) {
        let command =
            format!("exec {command} --port 0{}", if command.contains("--memory") { "" } else { " --data own" });
        let (_running, lines) = Running::start(self.shell(&command, folder), "http://127.0.0.1:", PATIENCE);
        assert!(lines[0].starts_with("http://127.0.0.1:"), "`{command}`: {lines:?}");
    }

    fn works(&self, command: &str, folder: &str) {
        let output =
            self.shell(&format!("exec timeout 60 bash -euo pipefail -c '{}'", command.replace('\'', "'\\''")), folder);
        let output = { output }.output().unwrap();
        assert_ne!(output.status.code(), Some(124), "`{command}` did not end");
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "`{command}`: {:?}\n{out}{err}", output.status.code());
        // curl does not fail on a refusal.
        assert!(!out.contains("\"code\":"), "`{command}`: {out}");
    }
}

/// The command with a short simulation, because its length does not matter here.
fn shortened(command: &str) -> String {
    let mut words: Vec<&str> = command.split_whitespace().collect();
    match words.iter().position(|word| *word == "--seeds") {
        Some(at) => words[at + 1] = "20",
        None => words.extend(["--seeds", "20"]),
    }
    words.join(" ")
}

// Point 6: every command of a page is run.
#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_documents_work() {
    if Command::new("curl").arg("--version").output().is_err() {
        println!("no curl here: its commands are not run");
        return;
    }
    let scene = Scene::new().await;
    let mut ran = 0;
    for (page, text) in pages().into_iter().filter(|(page, _)| !ELSEWHERE.contains(&page.as_str())) {
        for block in blocks(&text) {
            let mut folder = ".".to_owned();
            for command in block {
                let command = scene.fitted(&as_typed(&command));
                let words: Vec<&str> = command.split_whitespace().collect();
                match words.as_slice() {
                    ["stepwarden", "up" | "remotes", ..] => scene.starts(&command, &folder),
                    ["stepwarden", "simulate", ..] => scene.works(&shortened(&command), &folder),
                    // They take minutes, and have separate tests.
                    ["stepwarden", "demo" | "bench", ..] => continue,
                    // They need a list of which an item has failed, and a step of another workflow.
                    words if words.contains(&"--item") || words.contains(&"run-again") => continue,
                    // A stack is at AWS.
                    words if words.contains(&"--stack") => continue,
                    ["stepwarden", ..] => scene.works(&command, &folder),
                    ["head" | "echo" | "curl", ..] if !command.contains("$AWS") && !command.contains("--queue") => {
                        scene.works(&command, &folder);
                    }
                    _ => continue,
                }
                println!("{page}: {command}");
                ran += 1;
                // What follows is typed there.
                if let Some((_, to)) = command.split_once("&& cd ") {
                    to.clone_into(&mut folder);
                }
            }
        }
    }
    assert!(ran >= 12, "only {ran} commands were found");
}
