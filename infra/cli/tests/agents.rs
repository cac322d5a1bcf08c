//! Goal: workflows with URLs, and with agents that other programs serve, work as in the documents, and mistakes in them
//! are reported before anything starts. Method: the real binary, with the files of `examples/`.

mod common;
#[path = "../../../shared/agent/examples/stock.rs"]
mod stock;

use common::record::call;
use common::{Up, block, failed, folder, program, start_remotes};
use serde_json::{Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const URLS: &str = include_str!("../../../examples/workflows/urls.toml");
const GIFT: &str = include_str!("../../../tests/agents/workflows/gift.toml");
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a command to its end, with `input` on its standard input.
fn output(mut command: Command, input: &str) -> Output {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// Runs a verb of a system at `url`.
fn verb(dir: &Path, url: &str, args: &[&str], input: &str) -> Output {
    let mut command = program(dir, args);
    command.env("STEPWARDEN_URL", url);
    output(command, input)
}

/// The JSON that a verb prints.
fn json_of(output: Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {output:?}"))
}

fn refused(dir: &Path, args: &[&str], words: &[&str]) {
    failed(&output(program(dir, args), ""), 2, words);
}

// The example of docs/workflows.md, with this test's services and ports.
#[test]
fn the_example_of_urls_runs_an_order_and_asks_for_its_secret() {
    let empty = tempfile::tempdir().unwrap();
    let (_remotes, url) = start_remotes(empty.path(), &["--port", "0"]);
    let text = URLS.replace("http://localhost:8082", &url);
    assert_eq!(text.matches(&url).count(), 6, "{text}");
    let dir = folder("flows", &[("urls", &text)]);
    let up = ["--port", "0", "--memory", "--workflows", "flows"];
    let all: Vec<&str> = ["up"].iter().chain(&up).copied().collect();
    refused(dir.path(), &all, &["step `charge`", "secret `shop-token`", "set STEPWARDEN_SECRET_SHOP_TOKEN"]);

    let mut command = program(dir.path(), &all);
    command.env("STEPWARDEN_SECRET_SHOP_TOKEN", "s3cret-7");
    let system = Up::of(command);
    let verb = |args: &[&str], input: &str| {
        let output = verb(dir.path(), &system.url, args, input);
        assert!(output.status.success(), "{args:?}: {output:?}");
        json_of(output)
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
}

// B7: a user's own workflow with URLs and with an external agent, under faults in virtual time.
#[test]
fn workflows_of_urls_and_of_external_agents_can_be_simulated() {
    let dir = folder("flows", &[("urls", URLS), ("gift", GIFT)]);
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
    let dir = folder("flows", &[("urls", URLS)]);
    let simulate = |more: &[&str]| output(program(dir.path(), &[&["simulate", "flows/urls.toml"], more].concat()), "");
    let first = |more: &[&str]| {
        let report = json_of(simulate(&[more, &["--seeds", "2", "--json"]].concat()));
        assert_eq!(report["runs"], 2);
        report["first"].as_u64()
    };
    assert_eq!(first(&[]), Some(0));
    assert_eq!(first(&["--first", "30000"]), Some(30_000));
    let last = (u64::MAX - 1_000_000).to_string();
    assert_eq!(first(&["--first", &last]), last.parse().ok());
    for wrong in [&["--first", "18446744073709551615"][..], &["--first", "1", "--seed", "1"], &["--seeds", "1000001"]] {
        failed(&simulate(wrong), 2, &wrong[..1]);
    }
}

#[test]
fn an_external_agent_has_to_be_named_and_named_well() {
    let dir = folder("flows", &[("gift", GIFT)]);
    let up = |agents: &[&'static str]| -> Vec<&str> {
        let named = agents.iter().flat_map(|agent| ["--external-agent", agent]);
        ["up", "--port", "0", "--memory", "--workflows", "flows"].into_iter().chain(named).collect()
    };
    refused(dir.path(), &up(&[]), &["gift.toml:11:", "unknown agent `gift-wrap`", "docs/agents.md"]);
    refused(dir.path(), &["simulate", "flows/gift.toml"], &["unknown agent `gift-wrap`", "docs/agents.md"]);
    refused(dir.path(), &up(&["gift-wrap", "Wrap"]), &["`Wrap`", "lower-case letters"]);
    refused(dir.path(), &up(&["gift-wrap", "gift-wrap"]), &["`gift-wrap` already"]);
    refused(dir.path(), &up(&["gift-wrap", "http"]), &["`http` already"]);
}

/// A folder that `stepwarden new` made, and the system in it.
struct Shop {
    system: Up,
    folder: PathBuf,
    _dir: tempfile::TempDir,
}

impl Shop {
    /// Its agent's command tells its process in `agent.pid`.
    fn open() -> Self {
        Self::open_with(&[], |file| file.replace("python3", "echo $$ > agent.pid; exec python3"))
    }

    /// Made with these options, and with another `stepwarden.toml`.
    fn open_with(options: &[&str], change: impl FnOnce(String) -> String) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = output(program(dir.path(), &[&["new", "shop"], options].concat()), "");
        assert!(made.status.success(), "{made:?}");
        let folder = dir.path().join("shop");
        let file = std::fs::read_to_string(folder.join("stepwarden.toml")).unwrap();
        std::fs::write(folder.join("stepwarden.toml"), change(file)).unwrap();
        let mut command = program(&folder, &["up", "--port", "0", "--memory"]);
        command.stderr(std::fs::File::create(folder.join("log")).unwrap());
        Self { system: Up::of(command), folder, _dir: dir }
    }

    fn verb(&self, args: &[&str], input: &str) -> Output {
        verb(&self.folder, &self.system.url, args, input)
    }

    /// The order of the folder is processed, and one that cannot be packed is undone.
    fn works_off_its_orders(&self) {
        let processed = self.verb(&["submit", "order.json", "--wait"], "");
        assert!(processed.status.success(), "{processed:?}");
        let undone = self.verb(&["submit", "-", "--wait"], r#"{"item": "piano", "quantity": 1}"#);
        assert_eq!(undone.status.code(), Some(3), "{undone:?}");
    }

    fn json(&self, args: &[&str]) -> Value {
        json_of(self.verb(&[args, &["--json"]].concat(), ""))
    }

    fn edit(&self, file: &str, change: impl FnOnce(String) -> String) {
        let path = self.folder.join(file);
        std::fs::write(&path, change(std::fs::read_to_string(&path).unwrap())).unwrap();
    }

    /// Waits until the log has this text as often.
    fn logged(&self, words: &str, times: usize) {
        let log = || std::fs::read_to_string(self.folder.join("log")).unwrap();
        until(|| log().matches(words).count() >= times, || format!("{times} x `{words}` in {}", log()));
    }

    fn hash(&self) -> Value {
        self.json(&["workflows", "show", "shop"])["hash"].take()
    }

    fn agent(&self) -> rustix::process::Pid {
        let read = || std::fs::read_to_string(self.folder.join("agent.pid")).unwrap_or_default();
        until(|| read().ends_with('\n'), || "the agent runs".into());
        rustix::process::Pid::from_raw(read().trim().parse().unwrap()).unwrap()
    }
}

fn until(is_so: impl Fn() -> bool, what: impl Fn() -> String) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{}", what());
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn has_ended(id: rustix::process::Pid) -> bool {
    rustix::process::test_kill_process(id).is_err()
}

// N4: what `new` makes passes its tests, and runs an order with its agent. Needs python3.
#[test]
fn a_new_folder_is_tested_and_runs_an_order() {
    let shop = Shop::open();
    let played = shop.verb(&["test", "--faults", "3"], "");
    let text = String::from_utf8_lossy(&played.stdout);
    assert!(played.status.success() && text.contains("3 scenarios, 0 failed"), "{played:?}");
    for args in
        [&["workflows", "check", "workflows/shop.toml"][..], &["simulate", "workflows/shop.toml", "--seeds", "5"]]
    {
        let output = shop.verb(args, "");
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    failed(&shop.verb(&["submit", "-", "--wait"], r#"{"item": "lamp"}"#), 2, &["input.quantity: is required"]);
    shop.works_off_its_orders();
    shop.logged("stock: released ord_", 1);
}

/// Set for the agent in Rust.
const SERVES: &str = "STEPWARDEN_TEST_SERVES";

// Not a test of its own: the program that the next test starts.
#[test]
fn serves_the_agent_in_rust() {
    if std::env::var_os(SERVES).is_some() {
        stock::main().unwrap();
    }
}

// N4: the same with an agent in Rust. Compiling the folder would take minutes, so this program has its source too.
#[test]
fn a_new_folder_in_rust_runs_an_order() {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let own = std::env::current_exe().unwrap();
    let command = format!("{SERVES}=1 exec '{}' --exact serves_the_agent_in_rust --nocapture", own.display());
    let shop = Shop::open_with(&["--lang", "rust", "--stepwarden", source], |file| {
        assert!(file.contains("cargo run --quiet --manifest-path agents/stock/Cargo.toml"), "{file}");
        file.replace("cargo run --quiet --manifest-path agents/stock/Cargo.toml", &command)
    });
    let text = std::fs::read_to_string(shop.folder.join("agents/stock/src/main.rs")).unwrap();
    assert_eq!(text, include_str!("../../../shared/agent/examples/stock.rs"));
    let played = shop.verb(&["test", "--faults", "1"], "");
    assert!(played.status.success(), "{played:?}");
    shop.works_off_its_orders();
    shop.logged("released ord_", 1);
}

// N4: files that change take effect in the running system, and a mistake changes nothing.
#[test]
fn changed_files_take_effect_and_a_mistake_changes_nothing() {
    let shop = Shop::open();
    let (first, agent) = (shop.hash(), shop.agent());
    // An agent that cannot start is started again and again, and its orders wait.
    shop.edit("agents/stock.py", |text| format!("import nothing_like_this\n{text}"));
    shop.logged("agent stock: ended (exit status: 1)", 2);
    assert!(has_ended(agent));
    let open = shop.json(&["submit", "order.json"])["order_id"].as_str().unwrap().to_owned();
    shop.edit("workflows/shop.toml", |text| {
        text + "\n[[step]]\nname = \"count\"\nafter = [\"pack\"]\nagent = \"clerk\"\ntimeout = \"9s\"\n"
    });
    shop.logged("workflows/shop.toml:28: unknown agent `clerk`", 1);
    shop.logged("nothing was changed", 1);
    assert_eq!(shop.hash(), first);
    // Two files with one name, a file that has no end, and a folder that is gone for a moment.
    std::fs::copy(shop.folder.join("workflows/shop.toml"), shop.folder.join("workflows/twin.toml")).unwrap();
    shop.edit("workflows/shop.toml", |text| text.split("\n[[step]]\nname = \"count\"").next().unwrap().to_owned());
    shop.edit("workflows/twin.toml", |text| text.replace("clerk", "stock"));
    shop.logged("another file also defines workflow `shop`", 1);
    std::fs::remove_file(shop.folder.join("workflows/twin.toml")).unwrap();
    std::fs::rename(shop.folder.join("workflows"), shop.folder.join("away")).unwrap();
    shop.logged("the folder workflows is gone", 1);
    std::fs::rename(shop.folder.join("away"), shop.folder.join("workflows")).unwrap();
    assert_eq!(shop.hash(), first);
    // The lock of an editor: a link to nothing, beside the file that is being edited.
    std::os::unix::fs::symlink("ada@laptop.17", shop.folder.join("workflows/.#shop.toml")).unwrap();
    shop.edit("workflows/shop.toml", |text| {
        text + "\n[[step]]\nname = \"count\"\nafter = [\"pack\"]\nvalue = { all = \"${input.quantity}\" }\n"
    });
    until(|| shop.hash() != first, || "the new definition is active".into());
    shop.edit("agents/stock.py", |text| text.replace("import nothing_like_this\n", ""));
    let steps = |id: &str| {
        let watched = shop.verb(&["watch", id], "");
        assert!(watched.status.success(), "{watched:?}");
        shop.json(&["get", id])["steps"].as_array().unwrap().len()
    };
    let new = shop.json(&["submit", "order.json"])["order_id"].as_str().unwrap().to_owned();
    assert_eq!((steps(&open), steps(&new)), (2, 3));
}

// No agent outlives its system, even one that was killed.
#[test]
fn agents_end_with_their_system() {
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::KILL] {
        let mut shop = Shop::open();
        let agent = shop.agent();
        assert!(!has_ended(agent));
        shop.system.process.end(signal);
        until(|| has_ended(agent), || format!("the agent ends after {signal:?}"));
    }
}

// Issue 19: an agent whose queue is gone stops its orders with an error, and an operator continues them once it is back.
#[test]
fn an_order_for_an_agent_without_a_queue_stops_and_an_operator_continues_it() {
    let text = "name = \"w\"\non_failure = \"error\"\n[[step]]\nname = \"a\"\nagent = \"payment\"\ntimeout = \"500ms\"\n\
                retry = { max = 2, backoff = [\"100ms\"], then = \"error\" }\n";
    let dir = folder("flows", &[("w", text)]);
    let mut command = program(dir.path(), &["up", "--port", "0", "--memory", "--workflows", "flows"]);
    command.env("RUST_LOG", "off");
    let system = Up::of(command);
    let call = |target: &str, body: Value| {
        block(call(&common::http(), &system.aws_url, target, &body)).unwrap();
    };
    let verb = |args: &[&str], input: &str| verb(dir.path(), &system.url, args, input);
    let queue = "stepwarden-agent-payment";
    call("AmazonSQS.DeleteQueue", json!({"QueueUrl": format!("{}/000000000000/{queue}", system.aws_url)}));
    let stopped = verb(&["submit", "-", "--wait", "--timeout", "60s"], "{\"total_cents\": 5}");
    assert_eq!(stopped.status.code(), Some(4), "{stopped:?}");
    let id = String::from_utf8_lossy(&stopped.stdout).lines().next().unwrap().to_owned();
    let told = verb(&["queues"], "");
    assert!(String::from_utf8_lossy(&told.stdout).contains("agent-payment"), "{told:?}");
    call("AmazonSQS.CreateQueue", json!({"QueueName": queue}));
    let done = verb(&["resubmit", &id, "--reason", "the queue is back", "--wait", "--timeout", "60s"], "");
    assert!(done.status.success(), "{done:?}");
}

// What a user's folder calls its agents takes nothing from it: samples have common names.
#[test]
fn an_agent_may_have_the_name_of_a_sample() {
    let dir =
        folder("flows", &[("w", "name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"payment\"\ntimeout = \"9s\"\n")]);
    std::fs::write(dir.path().join("stepwarden.toml"), "[agents]\npayment = \"sleep 60\"\n").unwrap();
    let system = Up::start(dir.path(), &["--port", "0", "--memory", "--workflows", "flows"]);
    // The sample would have done it at once.
    let waits = verb(dir.path(), &system.url, &["submit", "-", "--wait", "--timeout", "2s"], "{}");
    assert_eq!(waits.status.code(), Some(5), "{waits:?}");
    std::fs::write(dir.path().join("stepwarden.toml"), "[agents]\nhttp = \"sleep 60\"\n").unwrap();
    refused(
        dir.path(),
        &["up", "--port", "0", "--memory"],
        &["stepwarden.toml:2: the system itself has an agent called `http`"],
    );
}

// B3: a step that no agent on AWS would ever start is found before deployment: an agent starts nothing within the clock
// skew before CompleteBy.
#[test]
fn a_timeout_too_short_for_the_clocks_is_refused() {
    let short = |timeout| format!("name = \"w\"\n[[step]]\nname = \"a\"\nagent = \"noop\"\ntimeout = \"{timeout}\"\n");
    let (here, aws) = (folder("flows", &[("w", &short("100ms"))]), folder("flows", &[("w", &short("2s"))]));
    let up = ["up", "--port", "0", "--memory", "--workflows", "flows"];
    refused(here.path(), &up, &["workflow `w`: step `a` has a timeout of 100 ms", "more than 100 ms"]);
    // A deployment sets how far its clocks may differ.
    let mut deployed = program(aws.path(), &["up", "--aws", "--port", "0", "--workflows", "flows"]);
    let names = ["ORDERS_TABLE", "STATE_TABLE", "QUEUE_PREFIX", "EVENT_BUS"].map(|name| (name, "any"));
    deployed.envs(names).env("AWS_REGION", "eu-west-1").env("AWS_EC2_METADATA_DISABLED", "true");
    deployed.env("CLOCK_SKEW_MS", "1500");
    failed(&output(deployed, ""), 2, &["more than 3000 ms", "ClockSkewMs of the stack"]);
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
