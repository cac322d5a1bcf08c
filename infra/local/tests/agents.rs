//! Goal: workflows with URLs, and with agents that other programs serve, work as in the documents, and mistakes in them
//! are reported before anything starts. Method: the real binary, with the files of `examples/`.

mod common;

use common::{Up, program};
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const URLS: &str = include_str!("../../../examples/workflows/urls.toml");
const GIFT: &str = include_str!("../../../tests/agents/workflows/gift.toml");
const PATIENCE: Duration = Duration::from_secs(60);

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("flows")).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join("flows").join(name), text).unwrap();
    }
    dir
}

/// Runs a command to its end, with `input` on its standard input.
fn output(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn refused(dir: &Path, args: &[&str], words: &[&str]) {
    let output = output(program(dir, args), "");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    for word in words {
        assert!(text.contains(word), "{args:?}: `{word}` is missing: {text}");
    }
}

// The example of docs/workflows.md, with this test's services and ports.
#[test]
fn the_example_of_urls_runs_an_order_and_asks_for_its_secret() {
    let empty = tempfile::tempdir().unwrap();
    let mut remotes = program(empty.path(), &["remotes", "--port", "0"]).stdout(Stdio::piped()).spawn().unwrap();
    let url = BufReader::new(remotes.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    let text = URLS.replace("http://localhost:8082", &url);
    assert_eq!(text.matches(&url).count(), 6, "{text}");
    let dir = folder(&[("urls.toml", &text)]);
    let up = ["--port", "0", "--memory", "--workflows", "flows"];
    let all: Vec<&str> = ["up"].iter().chain(&up).copied().collect();
    refused(dir.path(), &all, &["step `charge`", "secret `shop-token`", "set STEPWARDEN_SECRET_SHOP_TOKEN"]);

    let mut command = program(dir.path(), &all);
    command.env("STEPWARDEN_SECRET_SHOP_TOKEN", "s3cret-7");
    let system = Up::of(command);
    let verb = |args: &[&str], input: &str| {
        let mut command = program(dir.path(), args);
        command.env("STEPWARDEN_URL", &system.url);
        let output = output(command, input);
        assert!(output.status.success(), "{args:?}: {output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap_or_else(|e| panic!("{args:?}: {e}: {output:?}"))
    };
    let accepted = verb(&["submit", "-", "--workflow", "urls", "--json"], r#"{"total_cents": 1250}"#);
    let id = accepted["order_id"].as_str().unwrap();
    let begin = Instant::now();
    let order = loop {
        let order = verb(&["get", id, "--json"], "");
        if order["state"] == "Processed" {
            break order;
        }
        assert!(begin.elapsed() < PATIENCE && order["state"] != "Error", "{order:#}");
        std::thread::sleep(Duration::from_millis(20));
    };
    let charged = order["steps"].as_array().unwrap().iter().find(|step| step["name"] == "charge").unwrap();
    assert!(charged["output"].as_str().unwrap().starts_with("chg-"), "the part that `output` points at: {charged}");
    let history = verb(&["history", id, "--json"], "");
    assert!(!format!("{order}{history}").contains("s3cret-7"));
    drop(system);
    remotes.kill().unwrap();
    remotes.wait().unwrap();
}

// B7: a user's own workflow with URLs and with an external agent, under faults in virtual time.
#[test]
fn workflows_of_urls_and_of_external_agents_can_be_simulated() {
    let dir = folder(&[("urls.toml", URLS), ("gift.toml", GIFT)]);
    for args in [
        &["simulate", "flows/urls.toml", "--seeds", "40", "--json"][..],
        &["simulate", "flows/gift.toml", "--external-agent", "gift-wrap", "--seeds", "40", "--json"],
    ] {
        let output = output(program(dir.path(), args), "");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{args:?}: {text} {}", String::from_utf8_lossy(&output.stderr));
    }
}

// Other seeds are another test: the first seed can be set, as long as the seeds after it are still numbers of 64 bits.
#[test]
fn a_simulation_begins_at_any_seed() {
    let dir = folder(&[("urls.toml", URLS)]);
    let simulate = |more: &[&str]| output(program(dir.path(), &[&["simulate", "flows/urls.toml"], more].concat()), "");
    let first = |more: &[&str]| {
        let output = simulate(&[more, &["--seeds", "2", "--json"]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        assert_eq!(report["runs"], 2);
        report["first"].as_u64()
    };
    assert_eq!(first(&[]), Some(0));
    assert_eq!(first(&["--first", "30000"]), Some(30_000));
    let last = (u64::MAX - 1_000_000).to_string();
    assert_eq!(first(&["--first", &last]), last.parse().ok());
    for wrong in [&["--first", "18446744073709551615"][..], &["--first", "1", "--seed", "1"], &["--seeds", "1000001"]] {
        let output = simulate(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(wrong[0]), "{wrong:?}");
    }
}

#[test]
fn an_external_agent_has_to_be_named_and_named_well() {
    let dir = folder(&[("gift.toml", GIFT)]);
    let up = |agents: &[&'static str]| -> Vec<&str> {
        let named = agents.iter().flat_map(|agent| ["--external-agent", agent]);
        ["up", "--port", "0", "--memory", "--workflows", "flows"].into_iter().chain(named).collect()
    };
    refused(dir.path(), &up(&[]), &["gift.toml:11:", "unknown agent `gift-wrap`", "docs/agents.md"]);
    refused(dir.path(), &["simulate", "flows/gift.toml"], &["unknown agent `gift-wrap`", "docs/agents.md"]);
    refused(dir.path(), &up(&["gift-wrap", "Wrap"]), &["`Wrap`", "lower-case letters"]);
    refused(dir.path(), &up(&["gift-wrap", "gift-wrap"]), &["`gift-wrap` already"]);
    refused(dir.path(), &up(&["gift-wrap", "payment"]), &["`payment` already"]);
}

// B3: a step that no agent on AWS would ever start is found before deployment: an agent starts nothing within the clock
// skew before CompleteBy.
#[test]
fn a_timeout_too_short_for_the_clocks_is_refused() {
    let short = |timeout| format!("name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"noop\"\ntimeout = \"{timeout}\"\n");
    let (here, aws) = (folder(&[("w.toml", &short("100ms"))]), folder(&[("w.toml", &short("2s"))]));
    let up = ["up", "--port", "0", "--memory", "--workflows", "flows"];
    refused(here.path(), &up, &["workflow `w`: step `a` has a timeout of 100 ms", "more than 100 ms"]);
    // A deployment sets how far its clocks may differ.
    let mut deployed = program(aws.path(), &["up", "--aws", "--port", "0", "--workflows", "flows"]);
    let names = ["ORDERS_TABLE", "STATE_TABLE", "QUEUE_PREFIX", "EVENT_BUS"].map(|name| (name, "any"));
    deployed.envs(names).env("AWS_REGION", "eu-west-1").env("AWS_EC2_METADATA_DISABLED", "true");
    deployed.env("CLOCK_SKEW_MS", "1500");
    let ended = output(deployed, "");
    let text = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(2), "{text}");
    assert!(text.contains("more than 3000 ms") && text.contains("ClockSkewMs of the stack"), "{text}");
    refused(
        aws.path(),
        &["simulate", "flows/w.toml"],
        &["a timeout of 2000 ms", "more than 2000 ms", "as much as on AWS"],
    );
}

#[test]
fn the_files_in_the_documents_are_taken() {
    let pages = [include_str!("../../../docs/agents.md"), include_str!("../../../docs/workflows.md")];
    let blocks: Vec<&str> = pages
        .iter()
        .flat_map(|page| page.split("```toml\n").skip(1))
        .map(|rest| rest.split("```").next().unwrap())
        // Steps with expressions are read by shared/tests/mistakes.rs, scenarios by `stepwarden test`.
        .filter(|block| !block.contains("after =") && !block.contains("[[scenario]]"))
        .collect();
    assert_eq!(blocks.len(), 2);
    for block in blocks {
        let step = "name = \"w\"\n[[step]]\nname = \"s\"\ntimeout = \"1s\"\n";
        let text = if block.contains("[[step]]") { block.to_owned() } else { format!("{step}{block}") };
        let known = shared::workflow::file::Known { agents: &["http", "gift-wrap"], inputs: &[] };
        shared::workflow::file::parse("document", &text, known).unwrap_or_else(|e| panic!("{e}\n{text}"));
    }
}
