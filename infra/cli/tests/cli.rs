//! Goal: every verb does what docs/cli.md says, with its exit codes, for people and for programs. Method: the real binary
//! against `up --memory`.

mod common;

use clap::CommandFactory;
use common::record::call;
use common::{NORTHWIND, QUICK, Up, block, failed, first_order, folder, http, program, run};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::Task;
use shared::view;
use shared::workflow::{Hash, Workflow};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use stepwarden::args::Cli;

const PAGE: &str = include_str!("../../../docs/cli.md");

/// The workflow under another name. Its orders stop for a person.
fn strict(text: &str) -> String {
    text.replacen("name = \"order\"", "name = \"strict\"\non_failure = \"error\"", 1)
}

/// A system, and a folder with one order and short workflows.
struct Case {
    up: Up,
    dir: tempfile::TempDir,
}

impl Case {
    fn new() -> Self {
        let dir = folder("workflows", &[("order", QUICK), ("strict", &strict(QUICK))]);
        std::fs::write(dir.path().join("order.json"), NORTHWIND.lines().next().unwrap()).unwrap();
        let mut up = program(dir.path(), &["up", "--memory", "--port", "0"]);
        // Its log is off, because its queues are deleted during the test.
        up.env("RUST_LOG", "off");
        Self { up: Up::of(up), dir }
    }

    fn run(&self, args: &[&str]) -> Output {
        // A simulation needs no system.
        let url = ["--url", &self.up.url];
        run(self.dir.path(), &[args, if args[0] == "simulate" { &[] } else { &url[..] }].concat())
    }

    /// The output of a command that must exit with this code.
    fn says(&self, code: i32, args: &[&str]) -> String {
        let output = self.run(args);
        let (text, error) = texts(&output);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}{error}");
        assert!(!text.contains('\u{1b}') && !error.contains('\u{1b}'), "colours: {text}{error}");
        text
    }

    /// The JSON output of a command.
    fn json(&self, code: i32, args: &[&str]) -> Value {
        let text = self.says(code, &[args, &["--json"]].concat());
        serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"))
    }

    /// A command must exit with this code, and has these words in its line on standard error.
    #[track_caller]
    fn fails(&self, code: i32, args: &[&str], words: &[&str]) {
        let output = self.run(args);
        let error = failed(&output, code, words);
        assert!(output.stdout.is_empty() && error.lines().count() == 1, "{args:?}: {output:?}");
    }

    /// The output of a command that must exit with this code, and has these words in it.
    #[track_caller]
    fn shows(&self, code: i32, args: &[&str], words: &[&str]) -> String {
        let text = self.says(code, args);
        for words in words {
            assert!(text.contains(words), "no `{words}` in {text}");
        }
        text
    }

    fn submit(&self, workflow: &str) -> String {
        self.says(0, &["submit", "order.json", "--workflow", workflow]).trim().to_owned()
    }

    /// An order that stopped for a person, because the payment service declines from now on.
    fn declined(&self) -> String {
        self.faults("payment", json!({"permanent": 1.0}));
        let id = self.submit("strict");
        self.says(4, &["watch", &id]);
        id
    }

    fn faults(&self, service: &str, faults: Value) {
        let url = format!("{}/faults/{service}", self.up.remotes_url);
        block(async { http().put(url).json(&faults).send().await.unwrap().error_for_status().unwrap() });
    }

    /// Runs the doctor with the system's actual endpoints.
    fn doctor(&self, args: &[&str]) -> (i32, Value) {
        let all = [&["doctor", "--json", "--url", &self.up.url], args].concat();
        doctor(self.dir.path(), &self.up.aws_url, &all)
    }
}

fn doctor(dir: &Path, aws_url: &str, args: &[&str]) -> (i32, Value) {
    let mut command = program(dir, args);
    command.env("AWS_ENDPOINT_URL", aws_url).env("AWS_REGION", "local");
    command.env("AWS_ACCESS_KEY_ID", "any").env("AWS_SECRET_ACCESS_KEY", "any");
    let output = command.output().unwrap();
    let (text, error) = texts(&output);
    let report = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}{error}"));
    (output.status.code().unwrap(), report)
}

/// The checks of a report with this status, each with what to do.
fn of_status(report: &Value, status: &str) -> Vec<String> {
    let checks = report["checks"].as_array().unwrap().iter().filter(|check| check["status"] == status);
    checks.map(|check| format!("{} {} {}", check["check"], check["detail"], check["hint"])).collect()
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    (text(&output.stdout), text(&output.stderr))
}

// One order, shown by every verb.
#[test]
fn an_order_is_submitted_followed_and_shown() {
    let case = Case::new();
    let text = case.shows(0, &["submit", "order.json", "--wait", "--timeout", "60s"], &["Processed"]);
    let id = text.lines().next().unwrap().to_owned();
    assert!(id.starts_with("ord_"), "{text}");

    let lines = case.says(0, &["watch", &id, "--json"]);
    let order: Value = serde_json::from_str(lines.lines().last().unwrap()).unwrap();
    assert_eq!((&order["order_id"], &order["state"]), (&json!(id), &json!("Processed")));
    case.shows(0, &["get", &id], &[" ago)"]);
    assert_eq!(case.json(0, &["get", &id])["state"], "Processed");
    let words = ["charge", "possible actions", "undo       yes", "resubmit   no", "+0.0 s"];
    case.shows(0, &["show", &id, "--full"], &words);
    assert!(case.json(0, &["get", &id, "--full"])["plan"].is_array());
    case.shows(0, &["history", &id], &["charge"]);
    assert!(case.json(0, &["history", &id])["history"].is_array());
    case.shows(0, &["list", "--state", "processed", "--limit", "1"], &[&id]);
    assert_eq!(case.json(0, &["list", "--workflow", "strict"])["orders"], json!([]));

    for (verb, words) in [
        ("overview", "in Error, waiting for a person: 0"),
        ("agents", "payment"),
        ("breaker", "payment"),
        ("queues", "replies"),
        ("leader", "supervisor-0"),
        ("dlq", "no dead letters"),
    ] {
        case.shows(0, &[verb], &[words]);
        assert!(case.json(0, &[verb]).is_object());
    }
    case.shows(0, &["dlq", "redrive", "scheduler", "--dry-run", "--by", "ann", "--reason", "checking"], &["0"]);
    let moved = case.json(0, &["dlq", "redrive", "set-aside", "--limit", "5", "--by", "ann", "--reason", "mended"]);
    assert_eq!(moved["moved"], 0);
    let why = ["--by", "ann", "--reason", "the bank is down"];
    case.shows(0, &[&["pause-agent", "payment"], &why[..]].concat(), &["done"]);
    case.shows(0, &["agents"], &["paused by ann"]);
    assert_eq!(case.json(0, &[&["resume-agent", "payment"], &why[..]].concat())["paused"], false);
}

// A newcomer's second terminal, as in the README: no URL, no token, no USER; and the only workflow needs no name.
#[test]
fn the_verbs_find_the_system_of_their_folder_also_if_it_is_in_memory() {
    let dir = folder("flows", &[("parcel", &QUICK.replacen("name = \"order\"", "name = \"parcel\"", 1))]);
    std::fs::write(dir.path().join("order.json"), NORTHWIND.lines().next().unwrap()).unwrap();
    let plain = |args: &[&str]| {
        let mut command = program(dir.path(), args);
        for name in ["STEPWARDEN_TOKEN", "STEPWARDEN_URL", "USER", "LOGNAME"] {
            command.env_remove(name);
        }
        command
    };
    let says = |args: &[&str]| {
        let output = plain(args).output().unwrap();
        let (text, error) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{args:?}: {text}{error}");
        text
    };
    let up = ["up", "--memory", "--port", "0", "--workflows", "flows", "--pools", "payment=payment,payment-b"];
    let mut system = Up::of(plain(&up));
    let kept = |name: &str| std::fs::read_to_string(dir.path().join(".stepwarden").join(name)).unwrap_or_default();
    assert_eq!(kept("url").trim(), system.url);
    let link = format!("{}/console#token={}", system.url, kept("token").trim());
    assert!(system.lines.iter().any(|line| line.contains(&link)), "{:?}", system.lines);

    assert!(says(&["agents"]).contains("payment-b"));
    let id = says(&["submit", "order.json", "--reference", "R-4711"]).trim().to_owned();
    assert!(says(&["watch", &id]).contains("Processed"));
    assert!(says(&["list", "--reference", "R-47"]).contains("R-4711"));
    assert!(says(&["undo", &id, "--reason", "a test"]).contains("accepted"));
    let who = Command::new("id").arg("-un").output().unwrap().stdout;
    let who = String::from_utf8(who).unwrap();
    assert!(says(&["history", &id]).contains(&format!("{}: a test", who.trim())));

    // A later system on another port: the stored URL is not used after its system has ended.
    assert!(system.process.end(rustix::process::Signal::TERM).success());
    assert_eq!(kept("url"), "");
    assert!(!dir.path().join(".stepwarden/tables.db").exists(), "no data is kept");
}

// The exit codes 3, 4 and 5 of `watch`, and the actions that put an order right.
#[test]
fn watch_ends_with_a_code_for_each_end() {
    let case = Case::new();
    case.faults("payment", json!({"permanent": 1.0}));
    let undone = case.submit("order");
    case.shows(3, &["watch", &undone], &["Undone"]);
    let declined = [(); 4].map(|()| case.submit("strict"));
    for id in &declined {
        case.shows(4, &["watch", id], &["Error"]);
    }
    case.shows(0, &["overview"], &["in Error, waiting for a person: 4"]);
    case.faults("payment", json!({}));

    // An order that a person pauses, because shipping is unavailable.
    case.faults("shipping", json!({"outage": true}));
    let open = case.submit("order");
    let act = |verb: &str| case.json(0, &[verb, &open, "--by", "ann", "--reason", "a test"]);
    assert_eq!(act("pause")["outcome"], "applied");
    assert_eq!(act("pause")["outcome"], "repeated");
    let begin = Instant::now();
    failed(&case.run(&["watch", &open, "--timeout", "1s"]), 5, &["still open"]);
    assert!(begin.elapsed() < Duration::from_secs(20));
    case.faults("shipping", json!({}));
    assert_eq!(act("resume")["outcome"], "applied");

    // The declined ones are paid by hand.
    let filter = ["--state", "Error", "--step", "charge", "--by", "ann", "--reason", "paid in cash"];
    let bulk = |args: &[&'static str]| [&["bulk", "mark-done"], &filter[..], args].concat();
    let dry = case.json(0, &bulk(&["--dry-run"]));
    assert_eq!((&dry["counts"]["good"], &dry["dry_run"]), (&json!(4), &json!(true)));
    assert_eq!(dry["results"][0]["outcome"], "would_apply");
    case.shows(0, &bulk(&["--limit", "1", "--rate", "1"]), &["applied", "1 accepted, 0 failed\n"]);
    let id = case.says(0, &bulk(&["--rate", "1", "--detach"]));
    let rest = case.json(0, &["jobs", "follow", id.trim()]);
    assert_eq!((&rest["counts"]["good"], rest["results"].as_array().unwrap().len()), (&json!(3), 3), "{rest:#}");
    case.shows(0, &["jobs", "show", id.trim()], &["mark-done  done", "state Error, step charge"]);
    case.shows(0, &["jobs"], &[id.trim()]);
    assert_eq!(case.says(0, &["jobs", "results", id.trim(), "--failed"]), "");
    let abort = ["jobs", "abort", id.trim(), "--by", "ann", "--reason", "too late"];
    case.fails(1, &abort, &["the job has ended"]);
    case.fails(2, &["jobs", "show", "job_1"], &["no_such_job"]);
    for id in declined.iter().chain([&open]) {
        case.says(0, &["watch", id]);
    }
    assert_eq!(act("undo")["outcome"], "applied");
    case.says(3, &["watch", &open]);
    // Accepted is not done: with --wait the verb shows how the order ends.
    let stopped = case.declined();
    let why = ["--by", "ann", "--reason", "a test"];
    let text = case.shows(4, &[&["resubmit", &stopped, "--wait", "--timeout", "60s"], &why[..]].concat(), &["Error"]);
    assert!(text.starts_with("resubmit: accepted, version"), "{text}");
    case.faults("payment", json!({}));
    let watch = format!("stepwarden watch {stopped}");
    case.shows(0, &[&["resubmit", &stopped], &why[..]].concat(), &["accepted", &watch]);
    let line = case.says(3, &[&["undo", &stopped, "--wait", "--json"], &why[..]].concat());
    assert_eq!(serde_json::from_str::<Value>(line.lines().last().unwrap()).unwrap()["state"], "Undone");
    // The action is refused, because the order has ended.
    let late = ["resubmit", &open, "--by", "ann", "--reason", "too late"];
    case.fails(1, &late, &["409", "not_allowed", "/problems/not_allowed"]);
    case.fails(2, &["bulk", "cancel", "--by", "ann", "--reason", "all of them"], &["filter", "add a condition"]);
}

// An unreadable record is mended and its order ends, by the commands that each answer names.
#[test]
fn a_damaged_record_is_shown_and_mended() {
    let case = Case::new();
    let id = case.declined();
    let good = case.says(0, &["get", &id, "--raw"]);
    let cut = &good[..good.len() / 2];
    let item = json!({"TableName": "stepwarden-state", "Key": {"pk": {"S": id}}, "UpdateExpression": "SET #t = :t",
        "ExpressionAttributeNames": {"#t": "task"}, "ExpressionAttributeValues": {":t": {"S": cut}}});
    let update = "DynamoDB_20120810.UpdateItem";
    block(call(&http(), &case.up.aws_url, update, &item)).unwrap();

    let (_, report) = case.doctor(&[]);
    let failed = of_status(&report, "fail").join("\n");
    assert!(failed.contains(&id) && failed.contains("stepwarden get ORDER_ID --raw"), "{failed}");
    let output = case.run(&["get", &id, "--raw"]);
    let (text, beside) = texts(&output);
    assert_eq!((output.status.code(), text.trim_end_matches('\n')), (Some(0), cut), "{beside}");
    assert!(beside.contains("cannot be read: ") && beside.contains("damaged"), "{beside}");
    let command = beside.lines().last().unwrap().split_once(": stepwarden ").unwrap().1;
    let seen = command.split_once("--seen ").unwrap().1.split(' ').next().unwrap();
    assert!(command.starts_with(&format!("mend {id} FILE --seen ")), "{command}");
    assert_eq!(case.json(0, &["get", &id, "--raw"])["record"], cut);

    let mend = |file: &str, reason: &str| {
        std::fs::write(case.dir.path().join("record.json"), file).unwrap();
        ["mend", &id, "record.json", "--seen", seen, "--by", "ann", "--reason", reason].map(str::to_owned)
    };
    for (file, words) in
        [(cut, "record.json: "), ("{}", "record: "), (&good.replace("\"tn\":\"", "\"tn\":\"x"), "record.tn: ")]
    {
        case.fails(2, &mend(file, "r").each_ref().map(String::as_str), &[words]);
    }
    let args = mend(&good, "a bad disk");
    for said in ["mend: accepted, version ", "mend: accepted before, version "] {
        let text = case.says(0, &args.each_ref().map(String::as_str));
        assert!(text.starts_with(said), "{text}");
    }
    let args = mend(&good, "another reason");
    case.fails(1, &args.each_ref().map(String::as_str), &["409", "can be read"]);
    case.shows(0, &["history", &id], &["ann: the record was mended: a bad disk"]);
    case.faults("payment", json!({}));
    case.says(3, &["undo", &id, "--by", "ann", "--reason", "r", "--wait"]);
}

// `watch` waits for a system that has stopped, but no longer than its timeout.
#[test]
fn watch_bears_with_a_system_that_is_away_for_a_while() {
    let mut case = Case::new();
    case.faults("payment", json!({"outage": true}));
    let id = case.submit("order");
    let mut command = program(case.dir.path(), &["watch", &id, "--url", &case.up.url, "--timeout", "4s"]);
    let mut watch = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begin = Instant::now();
    let mut first = String::new();
    let mut reader = BufReader::new(watch.stdout.take().unwrap());
    reader.read_line(&mut first).unwrap();
    let address = case.up.url.strip_prefix("http://").unwrap().parse().unwrap();
    case.up.kill();
    // A bound port without a listener refuses connections, and no other test's system can take it meanwhile.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.set_reuseaddr(true).unwrap();
    held.bind(address).unwrap();
    std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
    failed(&watch.wait_with_output().unwrap(), 1, &["is `stepwarden up` running?"]);
    assert!(begin.elapsed() >= Duration::from_secs(3), "it gave up after {:?}", begin.elapsed());
}

// Each error is one line that says what to do; exit code 2 if the caller can correct it, 1 if it may pass.
#[test]
fn errors_say_what_to_do() {
    let case = Case::new();
    let id = "ord_00000000000000000000000000";
    let table: [(i32, &[&str], &str); 7] = [
        (2, &["get", id], "no_such_order"),
        (2, &["watch", id], "no_such_order"),
        (2, &["get", "../agents"], "neither an order id"),
        (2, &["list", "--state", "Lost"], "400 state: must be one of"),
        (2, &["pause-agent", "nobody", "--by", "ann", "--reason", "x"], "no_such_agent"),
        (2, &["dlq", "redrive", "nothing", "--by", "ann", "--reason", "x"], "no_such_queue"),
        (2, &["submit", "missing.json"], "missing.json: No such file"),
    ];
    for (code, args, words) in table {
        case.fails(code, args, &[words]);
    }
    case.fails(2, &["agents", "--token", "0123456789abcdeX"], &["401", "does not know the token", "--token"]);
    let nobody = run(case.dir.path(), &["agents", "--url", "http://127.0.0.1:1"]);
    let error = failed(&nobody, 1, &["is `stepwarden up` running?", "refused"]);
    assert_eq!(error.lines().count(), 1, "{error}");
    for args in [
        &["agents", "--colour"][..],
        &["watch"],
        &["bulk", "explode", "--reason", "x"],
        &["watch", id, "--timeout", "soon"],
    ] {
        assert_eq!(run(case.dir.path(), args).status.code(), Some(2), "{args:?}");
    }
}

// A workflow is changed while the system runs, and each change says from what to what.
#[test]
fn a_workflow_is_put_compared_activated_and_taken_back() {
    let case = Case::new();
    let file = |seconds: &str| {
        let text = QUICK.replacen("timeout = \"1s\"", &format!("timeout = \"{seconds}s\""), 1);
        std::fs::write(case.dir.path().join("new.toml"), text).unwrap();
    };
    let old = case.json(0, &["workflows", "show", "order"])["hash"].as_str().unwrap().to_owned();
    file("2");
    let compared = case.json(0, &["workflows", "diff", "new.toml"]);
    assert_eq!(compared["differences"], json!(["step `reserve`: timeout changes from 1s to 2s"]));
    let new = compared["hash"].as_str().unwrap();
    let good = concat!(env!("CARGO_MANIFEST_DIR"), "/../../workflows/order.toml");
    let checked = run(case.dir.path(), &["workflows", "check", good, "new.toml"]);
    let (text, _) = texts(&checked);
    assert!(checked.status.code() == Some(2) && text.contains("workflow order, 4 steps, "), "{text}");
    assert!(text.contains("clocks may be 1000 ms apart"), "as strict as on AWS: {text}");
    // Comparing keeps nothing.
    case.fails(2, &["workflows", "show", "order", new], &["no_such_workflow"]);

    let by = ["--by", "ann", "--reason", "slow"];
    let change = |args: &[&str]| case.says(0, &[args, &by].concat());
    let said = change(&["workflows", "put", "new.toml", "--activate"]);
    let moved = |from: &str, to: &str| format!("order: from {from} to {to}; takes effect for new orders within 5 s\n");
    assert!(said.contains("timeout changes from 1s to 2s") && said.ends_with(&moved(&old, new)), "{said}");
    assert!(change(&["workflows", "put", "new.toml"]).contains("new orders already get this definition"));
    case.shows(0, &["workflows", "diff", "new.toml"], &["the same definition is active"]);
    case.shows(0, &["workflows", "show", "order", new], &["[[step]]"]);
    let explained = case.shows(0, &["workflows", "explain", "order"], &["An order ends as"]);
    assert!(explained.starts_with(&format!("workflow order, {new}\n")), "{explained}");
    assert_eq!(case.says(0, &["workflows", "explain", "new.toml"]), explained);
    assert!(case.says(0, &["workflows", "explain", "order", "--mermaid"]).starts_with("flowchart TD\n"));
    case.fails(2, &["workflows", "explain", "gone.toml"], &[]);
    case.fails(2, &["workflows", "explain", "gone"], &[]);

    assert_eq!(change(&["workflows", "rollback", "order"]), moved(new, &old));
    let stale = [&["workflows", "rollback", "order", "--if-version", "1"], &by[..]].concat();
    case.fails(1, &stale, &[&format!("ann activated {old} (change 2)")]);
    assert_eq!(change(&["workflows", "retire", "order"]), moved(&old, "retired"));
    let listed = case.says(0, &["workflows", "list"]);
    assert!(listed.lines().any(|line| line.starts_with("order") && line.contains("retired")), "{listed}");
    case.fails(2, &["submit", "order.json", "--workflow", "order"], &["`order` was retired by ann"]);
    assert_eq!(change(&["workflows", "activate", "order", new]), moved("retired", new));
    assert_eq!(case.json(0, &["workflows", "show", "order"])["history"].as_array().unwrap().len(), 4);
    case.submit("order");

    std::fs::write(case.dir.path().join("new.toml"), QUICK.replace("name = \"order\"", "name = \"shop\"")).unwrap();
    assert!(case.says(0, &["workflows", "diff", "new.toml"]).ends_with("a new workflow\n"));
    let put = case.json(0, &[&["workflows", "put", "new.toml", "--activate"], &by[..]].concat());
    assert_eq!(put["workflow"]["hash"], put["hash"]);
    std::fs::write(case.dir.path().join("new.toml"), QUICK.replace("inventory", "nobody")).unwrap();
    for args in [&["workflows", "diff", "new.toml"][..], &[&["workflows", "put", "new.toml"], &by[..]].concat()] {
        case.fails(2, args, &["new.toml:6:", "nobody"]);
    }
}

// An order in Error goes on under a corrected workflow, after a look at what that means. M3
#[test]
fn an_order_is_moved_to_a_corrected_workflow() {
    let case = Case::new();
    let id = case.declined();
    let by = ["--by", "ann", "--reason", "a new file"];
    let put = |text: &str| {
        std::fs::write(case.dir.path().join("new.toml"), strict(text)).unwrap();
        case.json(0, &[&["workflows", "put", "new.toml", "--activate"], &by[..]].concat())["hash"].clone()
    };
    put(&QUICK.replace("undo = { agent = \"inventory\"", "# undo = { agent = \"inventory\""));
    let migrate = |more: &[&'static str]| [&["migrate", &id, "--to", "latest"], &by[..], more].concat();
    let refused = "step `reserve`: it may have run, but the new definition has no undo for it; keep the undo";
    case.shows(1, &migrate(&["--dry-run"]), &[refused]);
    case.fails(1, &migrate(&[]), &["409", refused]);

    let new = put(&QUICK.replace("name = \"ship\"", "name = \"send\""));
    let words = ["possible ", "tried again: charge", "added: send", "left out: ship"];
    case.shows(0, &migrate(&["--dry-run"]), &words);
    assert_eq!(case.json(0, &migrate(&["--dry-run"]))["to"], new);
    case.faults("payment", json!({}));
    // A request of the failed attempt may still start, so the order stays in Error for a while. The service remembers that
    // it declined this key.
    let text = case.shows(4, &[&["resubmit", &id, "--to", "latest", "--wait"], &by[..]].concat(), &["attempts 2"]);
    assert!(text.starts_with("resubmit: accepted, "), "{text}");
    case.shows(0, &[&["mark-done", &id, "--output", "{}", "--wait"], &by[..]].concat(), &["send", "Processed"]);
    assert_eq!(case.json(0, &["get", &id])["workflow_hash"], new);
    case.shows(0, &["history", &id], &["migration_asked", "ann: a new file (resubmit and migrate to"]);
    case.fails(1, &migrate(&[]), &["the order has ended"]);
    case.fails(1, &[&["skip", &id, "--to", "latest"], &by[..]].concat(), &["`skip` takes no `--to`"]);
}

// What is exported can be read back and says the same, and what is erased is in no answer. M5
#[test]
fn an_order_is_exported_and_erased() {
    let case = Case::new();
    let id = case.submit("order");
    case.says(0, &["watch", &id]);
    let export = case.json(0, &["export", &id]);
    let input = first_order();
    assert_eq!((&export["format"], &export["input"]), (&json!(1), &input));
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let column = |name: &str| text(&export["columns"][name]);
    let time = |name: &str| Timestamp::from_millisecond(column(name).parse().unwrap()).unwrap();
    let record: Task = serde_json::from_value(export["record"].clone()).unwrap();
    let task = Task {
        id: Id(column("pk")),
        version: column("version").parse().unwrap(),
        created_at: time("created_at"),
        updated_at: time("updated_at"),
        ..record
    };
    let hash = Hash(text(&export["order"]["workflow_hash"]));
    let workflow: Workflow = serde_json::from_value(export["definition"].clone()).unwrap();
    assert_eq!(workflow.hash(), hash, "it is the definition that the order runs");
    let status = serde_json::to_value(view::status(&task, &workflow, SignedDuration::ZERO)).unwrap();
    assert_eq!(status, export["order"]);
    assert_eq!(serde_json::to_value(view::history(&task, &workflow)).unwrap(), export["history"]);

    let by = ["--by", "ann", "--reason", "request 17"];
    let erase = [&["erase", &id], &by[..]].concat();
    let answer = case.json(0, &erase);
    assert_eq!((&answer["order_id"], &answer["detail"]), (&json!(id), &json!("ann: request 17")));
    assert_eq!(case.json(0, &erase), answer, "again");
    assert!(case.says(0, &erase).starts_with("erased "));
    case.shows(0, &["get", &id], &["erased"]);
    let erased = case.json(0, &["export", &id]);
    assert_eq!((&erased["input"], &erased["order"]["state"]), (&Value::Null, &json!("Processed")));
    let customer = input["customer"].to_string();
    assert!(customer.len() > 10 && export.to_string().contains(&customer));
    let outputs = erased["order"]["steps"].as_array().unwrap().iter().map(|step| &step["output"]);
    assert!(outputs.into_iter().all(Value::is_null), "{erased:#}");
    case.fails(1, &[&["undo", &id], &by[..]].concat(), &["409", "data was erased"]);

    let id = case.declined();
    case.fails(1, &[&["erase", &id], &by[..]].concat(), &["409", "waits for a person"]);
}

// What production did is done again on a laptop, from the route's own answer. M6
#[test]
fn an_exported_order_is_replayed() {
    let case = Case::new();
    let export = |id: &str| {
        let export = case.json(0, &["export", id]);
        std::fs::write(case.dir.path().join("export.json"), export.to_string()).unwrap();
        export
    };
    let replay = ["simulate", "--replay", "export.json"];
    let id = case.submit("order");
    case.says(0, &["watch", &id]);
    export(&id);
    case.shows(0, &replay, &["the replay reaches the same state as the order: Processed"]);

    case.faults("payment", json!({"permanent": 1.0}));
    let undone = case.submit("order");
    case.says(3, &["watch", &undone]);
    let mut exported = export(&undone);
    let replayed = case.json(0, &replay);
    assert_eq!((&replayed["replay"]["same"], &replayed["replay"]["state"]), (&json!(true), &json!("Undone")));
    // The service answers something else.
    let log = exported["record"]["log"].as_array_mut().unwrap();
    let refused = log.iter_mut().find(|entry| entry[1] == "f").unwrap();
    *refused = json!([refused[0], "p", refused[2], refused[3], null]);
    std::fs::write(case.dir.path().join("export.json"), exported.to_string()).unwrap();
    case.shows(1, &replay, &["the histories first differ at", "export: undoing"]);

    let stopped = case.declined();
    export(&stopped);
    case.shows(0, &replay, &["the replay reaches the same state as the order: Error"]);
    // A file that undoes what failed.
    let file = std::fs::read_to_string(case.dir.path().join("workflows/strict.toml")).unwrap();
    let new = file.replace("on_failure = \"error\"", "").replace("timeout = \"1s\"", "timeout = \"3s\"");
    std::fs::write(case.dir.path().join("new.toml"), new).unwrap();
    let words = ["with this file the order reaches Undone", "another one"];
    case.shows(0, &[&["simulate", "new.toml"], &replay[1..]].concat(), &words);
    // A person's action is part of the history.
    let by = ["--output", "{}", "--wait", "--by", "ann", "--reason", "paid in cash"];
    case.says(0, &[&["mark-done", &stopped], &by[..]].concat());
    export(&stopped);
    let text = case.shows(0, &replay, &["the replay reaches the same state as the order: Processed"]);
    assert!(!text.contains("note:"), "{text}");
    case.fails(2, &["simulate", "--replay", "order.json"], &["this is no exported order"]);
}

// `stepwarden queues | head -1` ends cleanly.
#[test]
fn a_reader_that_is_gone_ends_a_verb() {
    let case = Case::new();
    for args in [&["queues"][..], &["completions", "bash"]] {
        let mut command = program(case.dir.path(), args);
        command.env("STEPWARDEN_URL", &case.up.url);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // Closed before the first byte.
        drop(child.stdout.take());
        let output = child.wait_with_output().unwrap();
        assert!(output.status.code() == Some(141) && output.stderr.is_empty(), "{args:?}: {output:?}");
    }
}

#[test]
fn completions_know_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        // The output is longer than a pipe holds.
        let output = program(dir.path(), &["completions", shell]).output().unwrap();
        let (text, error) = texts(&output);
        assert_eq!(output.status.code(), Some(0), "{error}");
        for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
            assert!(text.contains(verb.get_name()), "{shell} lacks {}", verb.get_name());
        }
    }
}

#[test]
fn the_doctor_is_content_with_a_fresh_system() {
    let case = Case::new();
    let (code, report) = case.doctor(&[]);
    assert_eq!((code, &report["ok"], of_status(&report, "fail")), (0, &json!(true), vec![]), "{report:#}");
    let good = of_status(&report, "ok").join("\n");
    for words in [
        "order, strict",
        "answers, version",
        "may submit and operate",
        "matches the API's",
        "stepwarden-state",
        "TTL",
        "queues",
    ] {
        assert!(good.contains(words), "no `{words}` in {good}");
    }
    // The files have timeouts of a second, which is enough here.
    let warned = of_status(&report, "warn").join("\n");
    assert!(warned.contains("on AWS: workflow `order`: step `reserve` has a timeout of 1000 ms"), "{warned}");
    case.shows(0, &["doctor"], &["ok    API", " 0 failures"]);
}

// Each check says what to do.
#[test]
fn the_doctor_finds_what_is_wrong() {
    let case = Case::new();
    let finds = |(code, report): (i32, Value), words: &[&str]| {
        let failed = of_status(&report, "fail");
        assert!(code == 1 && report["ok"] == false, "{report:#}");
        let line = failed.iter().find(|line| words.iter().all(|words| line.contains(words)));
        assert!(line.is_some(), "no {words:?} in {failed:#?}");
    };
    finds(case.doctor(&["--token", "0123456789abcdeX"]), &["token", "does not know", "--tokens"]);
    let nobody = ["doctor", "--json", "--url", "http://127.0.0.1:1"];
    finds(doctor(case.dir.path(), &case.up.aws_url, &nobody), &["API", "refused", "is `stepwarden up` running?"]);
    finds(
        doctor(case.dir.path(), "http://127.0.0.1:1", &["doctor", "--json", "--url", &case.up.url]),
        &["endpoint", "emulator"],
    );
    std::fs::write(case.dir.path().join("workflows/bad.toml"), "name = \"bad\"\nstpe = 1\n").unwrap();
    finds(case.doctor(&[]), &["workflows", "bad.toml:2", "docs/workflows.md"]);
    std::fs::remove_file(case.dir.path().join("workflows/bad.toml")).unwrap();

    // The endpoints accept calls from anybody on this machine.
    let call = |target: &str, body: Value| {
        block(call(&http(), &case.up.aws_url, target, &body)).unwrap();
    };
    let url = format!("{}/000000000000/stepwarden-agent-fraud-low", case.up.aws_url);
    call("AmazonSQS.DeleteQueue", json!({"QueueUrl": url}));
    finds(case.doctor(&[]), &["queue agent-fraud-low", "is missing", "restart `stepwarden up`"]);
    let url = format!("{}/000000000000/stepwarden-replies", case.up.aws_url);
    call("AmazonSQS.SetQueueAttributes", json!({"QueueUrl": url, "Attributes": {"RedrivePolicy": ""}}));
    finds(case.doctor(&[]), &["queue replies", "dead letters do not go to stepwarden-replies-dead"]);
    call("DynamoDB_20120810.DeleteTable", json!({"TableName": "stepwarden-orders"}));
    finds(case.doctor(&[]), &["table stepwarden-orders", "is missing", "restart `stepwarden up`"]);
}

#[test]
fn the_doctor_looks_at_the_data_too() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    std::fs::create_dir(&data).unwrap();
    std::fs::write(data.join("tables.db"), "no database at all").unwrap();
    let output = run(dir.path(), &["doctor", "--data", "data", "--url", "http://127.0.0.1:1", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = of_status(&report, "fail").join("\n");
    assert!(found.contains("tables.db is damaged") && found.contains("restore it"), "{found}");
}

#[test]
fn scenarios_say_by_their_exit_code_how_they_ended() {
    let dir = folder("workflows", &[("order", &QUICK.replace("\"1s\"", "\"5s\""))]);
    let test = |args: &[&str]| run(dir.path(), &[&["test"], args].concat());
    failed(&test(&[]), 2, &["[[scenario]]"]);
    std::fs::create_dir(dir.path().join("tests")).unwrap();
    let scenario = |state: &str| {
        let all =
            format!("[[scenario]]\nname = \"it ends\"\nworkflow = \"order\"\nexpect = {{ state = \"{state}\" }}\n");
        std::fs::write(dir.path().join("tests/order.toml"), all).unwrap();
    };
    scenario("Refused");
    let output = test(&[]);
    let (text, error) = texts(&output);
    assert_eq!(text, "tests/order.toml\n  ok    it ends\n1 scenario, 0 failed; 0 runs under faults\n", "{error}");
    assert_eq!(output.status.code(), Some(0));
    scenario("Processed");
    let output = test(&["tests/order.toml", "--workflows", "workflows"]);
    let (text, _) = texts(&output);
    assert!(text.contains("state: expected Processed, but it is Refused: "), "{text}");
    assert_eq!(output.status.code(), Some(1), "{text}");
    let output = test(&["--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["failed"], &answer["scenarios"][0]["name"]), (&json!(1), &json!("it ends")));
    assert_eq!(output.status.code(), Some(1));
    scenario("Gone");
    assert!(failed(&test(&[]), 2, &[]).starts_with("stepwarden: tests/order.toml:4: "));
    failed(&test(&["tests", "--only", "something else"]), 2, &[]);
}

// docs/cli.md has a section for every verb, with its options and no others.
#[test]
fn the_page_has_every_verb_and_option() {
    let page: Vec<(&str, &str)> =
        PAGE.split("\n## ").skip(1).map(|section| section.split_once('\n').unwrap()).collect();
    let mut cli = Cli::command();
    cli.build();
    let mut known = Vec::new();
    let verbs = cli.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut all: Vec<(String, &clap::Command)> = verbs.map(|verb| (verb.get_name().to_owned(), verb)).collect();
    let nested: Vec<_> = all
        .iter()
        .flat_map(|(name, verb)| verb.get_subcommands().map(move |sub| (format!("{name} {}", sub.get_name()), sub)))
        .collect();
    all.extend(nested);
    for (name, verb) in all.iter().filter(|(name, _)| !name.split(' ').any(|word| word == "help")) {
        let title = format!("`{name}`");
        let (_, section) = page
            .iter()
            .find(|(heading, _)| heading.split(", ").any(|one| one == title))
            .unwrap_or_else(|| panic!("docs/cli.md has no section {title}"));
        known.push(title);
        // Options that every verb has are described once.
        let common = ["help", "version", "workflows", "url", "token", "stack", "profile", "json"];
        for option in verb.get_arguments().filter_map(clap::Arg::get_long).filter(|long| !common.contains(long)) {
            assert!(section.contains(&format!("`--{option}")), "docs/cli.md, {name}: no `--{option}`");
        }
    }
    for (heading, section) in page {
        let titles: Vec<&str> = heading.split(", ").filter(|title| title.starts_with('`')).collect();
        for title in &titles {
            assert!(known.iter().any(|known| known == title), "docs/cli.md: there is no verb {title}");
        }
        for word in section.split(|c: char| !c.is_ascii_alphanumeric() && c != '-').filter(|w| w.starts_with("--")) {
            let option = &word[2..];
            let mut verbs =
                all.iter().filter(|(name, _)| titles.is_empty() || titles.iter().any(|t| t.trim_matches('`') == name));
            let has = |verb: &clap::Command| verb.get_arguments().any(|arg| arg.get_long() == Some(option));
            assert!(
                option.chars().all(|c| c == '-') || verbs.any(|(_, verb)| has(verb)),
                "docs/cli.md, {heading}: no option {word}"
            );
        }
    }
    let codes = Cli::command().get_after_help().unwrap().to_string();
    for code in ["0 ", "1 ", "2 ", "3", "141"] {
        assert!(codes.contains(code) && PAGE.contains(&format!("| {}", code.trim())), "exit code {code}");
    }
}
