//! Goal: what was accepted survives `kill -9`, and is done once. Method: the real binary on real files under load over HTTP,
//! killed at random moments and started again on the same data; then every order and every effect is looked at.
//!
//! `SEED=n` repeats the moments and the faults, `KILLS=n` kills more often.

mod common;

use common::{NORTHWIND, QUICK, Up, run};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::process::Output;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// All orders have ended within this, on any machine.
const PATIENCE: Duration = Duration::from_secs(90);

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// A fresh directory with a workflow of short times.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("quick")).unwrap();
    std::fs::write(dir.path().join("quick/order.toml"), QUICK).unwrap();
    dir
}

fn body(n: usize) -> Value {
    let input: Value = serde_json::from_str(NORTHWIND.lines().nth(n % 830).unwrap()).unwrap();
    json!({"workflow": "order", "input": input})
}

async fn set_faults(http: &reqwest::Client, remotes_url: &str, seed: u64, are_on: bool) {
    let one = json!({"transient": 0.08, "lost_answer": 0.05, "permanent": 0.03, "after_deadline": 0.02});
    let services = if are_on { json!({"inventory": one, "payment": one, "shipping": one}) } else { json!({}) };
    let put = http.put(format!("{remotes_url}/faults")).json(&json!({"seed": seed, "services": services}));
    assert!(put.send().await.unwrap().status().is_success());
}

// A1, A4, D9, D10, B1, E5: nothing accepted is lost and nothing is applied twice.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_orders_survive_kills_and_are_done_once() {
    let seed = number("SEED", u64::from(std::process::id()));
    let kills = number("KILLS", 5);
    println!("SEED={seed} KILLS={kills}");
    let dir = directory();
    let args = ["--port", "0", "--data", "data", "--workflows", "quick"];
    let http = reqwest::Client::builder().timeout(Duration::from_secs(5)).build().unwrap();
    let accepted: Arc<Mutex<BTreeMap<String, String>>> = Arc::default();
    let next = Arc::new(AtomicUsize::new(0));
    let mut random = seed;
    for _ in 0..kills {
        let mut up = Up::start(dir.path(), &args);
        set_faults(&http, &up.remotes_url, seed, true).await;
        let stop = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..4)
            .map(|_| {
                let (http, url) = (http.clone(), format!("{}/orders", up.url));
                let (accepted, next, stop) = (Arc::clone(&accepted), Arc::clone(&next), Arc::clone(&stop));
                tokio::spawn(async move {
                    while !stop.load(Ordering::SeqCst) {
                        let n = next.fetch_add(1, Ordering::SeqCst);
                        let key = format!("kill-{n}");
                        let post = http.post(&url).header("idempotency-key", &key).json(&body(n));
                        let Ok(answer) = post.send().await else { continue };
                        if answer.status() == 202
                            && let Ok(answer) = answer.json::<Value>().await
                        {
                            let id = answer["order_id"].as_str().unwrap().to_owned();
                            accepted.lock().unwrap().insert(key, id);
                        }
                        tokio::time::sleep(Duration::from_millis(10)).await;
                    }
                })
            })
            .collect();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        tokio::time::sleep(Duration::from_millis(200 + (random >> 33) % 1000)).await;
        up.kill();
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.await.unwrap();
        }
    }

    let mut up = Up::start(dir.path(), &args);
    set_faults(&http, &up.remotes_url, seed, true).await;
    let accepted = accepted.lock().unwrap().clone();
    assert!(accepted.len() > 10, "only {} orders were accepted", accepted.len());
    let begin = Instant::now();
    let mut states: BTreeMap<&str, String> = BTreeMap::new();
    while states.len() < accepted.len() {
        assert!(begin.elapsed() < PATIENCE, "{} of {} ended; SEED={seed}", states.len(), accepted.len());
        for id in accepted.values() {
            if states.contains_key(id.as_str()) {
                continue;
            }
            let answer = http.get(format!("{}/orders/{id}", up.url)).send().await.unwrap();
            assert_eq!(answer.status(), 200, "accepted order {id} is gone; SEED={seed}");
            let status: Value = answer.json().await.unwrap();
            let state = status["state"].as_str().unwrap();
            if ["Processed", "Undone"].contains(&state) {
                states.insert(id, state.to_owned());
            }
            assert_ne!(state, "Error", "{status}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    // The same key and the same order are still the same answer, and no second order.
    let (key, id) = accepted.iter().next().unwrap();
    let n: usize = key.strip_prefix("kill-").unwrap().parse().unwrap();
    let post = http.post(format!("{}/orders", up.url)).header("idempotency-key", key).json(&body(n));
    let answer: Value = post.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["order_id"], **id);

    check_ledger(&http, &up.remotes_url, &states, seed).await;
    up.kill();
}

/// Each effect applied once, or applied once and undone, as the orders ended.
async fn check_ledger(http: &reqwest::Client, remotes_url: &str, states: &BTreeMap<&str, String>, seed: u64) {
    let mut applied: BTreeMap<(String, String), (u32, u32)> = BTreeMap::new();
    let mut cursor = String::new();
    loop {
        let page = http.get(format!("{remotes_url}/ledger?limit=1000&cursor={cursor}")).send().await.unwrap();
        let page: Value = page.json().await.unwrap();
        for entry in page["entries"].as_array().unwrap() {
            let text = |name: &str| entry[name].as_str().unwrap().to_owned();
            let counts = applied.entry((text("order_id"), text("service"))).or_default();
            counts.0 += u32::from(!entry["applied_at"].is_null());
            counts.1 += u32::from(!entry["applied_at"].is_null() && entry["undone_at"].is_null());
        }
        match page["next_cursor"].as_str() {
            Some(next) => next.clone_into(&mut cursor),
            None => break,
        }
    }
    let doubled: Vec<_> = applied.iter().filter(|(_, counts)| counts.0 > 1).collect();
    assert!(doubled.is_empty(), "applied twice: {doubled:?}; SEED={seed}");
    for (id, state) in states {
        for service in ["inventory", "fraud", "payment", "shipping"] {
            let standing = applied.get(&((*id).to_owned(), service.to_owned())).map_or(0, |counts| counts.1);
            match state.as_str() {
                "Processed" => assert_eq!(standing, 1, "{id} is processed without {service}; SEED={seed}"),
                _ if service == "fraud" => {}
                _ => assert_eq!(standing, 0, "{id} is undone, {service} is not; SEED={seed}"),
            }
        }
    }
}

/// Exit code 2 and one line on standard error that says all of `words`.
fn is_refused(what: &str, output: &Output, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{what}: {text}");
    assert_eq!(text.trim_end().lines().count(), 1, "{what}: {text}");
    for word in words {
        assert!(text.contains(word), "{what} does not say `{word}`: {text}");
    }
}

// What the user can mend at once: one clear line and exit code 2.
#[test]
fn a_port_in_use_is_said_in_one_line() {
    let dir = directory();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(dir.path(), &["up", "--memory", "--port", &port]);
    is_refused("port", &output, &[&port, "in use", "--port"]);
}

#[test]
fn a_data_directory_in_use_is_said_in_one_line() {
    let dir = directory();
    let up = Up::start(dir.path(), &["--port", "0", "--data", "data"]);
    assert!(up.url.starts_with("http://127.0.0.1:"), "{}", up.url);
    let output = run(dir.path(), &["up", "--port", "0", "--data", "data"]);
    is_refused("in use", &output, &["data", "in use", &up.process.0.id().to_string()]);
}

#[test]
fn a_damaged_database_file_is_said_in_one_line() {
    for file in ["tables.db", "queues.db", "remotes.db"] {
        let dir = directory();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join(file), "x".repeat(20_000)).unwrap();
        let output = run(dir.path(), &["up", "--port", "0", "--data", "data"]);
        is_refused(file, &output, &[file, "damaged", "restore"]);
    }
}

#[test]
fn a_bad_workflow_file_is_named_with_its_line() {
    let dir = directory();
    let file = dir.path().join("quick/order.toml");
    let table = [
        (QUICK.replacen("agent = \"fraud\"", "agent = \"nobody\"", 1), 12, "nobody"),
        (QUICK.replacen("timeout = \"1s\"", "timeout = \"soon\"", 1), 7, "30s"),
        (QUICK.replacen("[[step]]", "[[step]]\nsurprise = 1", 1), 5, "surprise"),
        (format!("{QUICK}["), QUICK.lines().count() + 1, ""),
    ];
    for (text, line, word) in table {
        std::fs::write(&file, text).unwrap();
        let output = run(dir.path(), &["up", "--memory", "--port", "0", "--workflows", "quick"]);
        is_refused(word, &output, &[&format!("order.toml:{line}:"), word]);
    }
    let output = run(dir.path(), &["up", "--memory", "--workflows", "missing"]);
    is_refused("no such folder", &output, &["missing"]);
}

// B9: who lists orders learns that there are more, and how to see them.
#[test]
fn a_list_says_how_it_goes_on() {
    let dir = directory();
    let up = Up::start(dir.path(), &["--port", "0", "--memory"]);
    let text = |args: &[&str]| {
        let output = run(dir.path(), &[args, &["--url", &up.url]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for order in common::NORTHWIND.lines().take(3) {
        std::fs::write(dir.path().join("order.json"), order).unwrap();
        text(&["submit", "order.json"]);
    }
    let first = text(&["list", "--limit", "2"]);
    let (rows, hint) = first.trim_end().rsplit_once('\n').unwrap();
    let cursor = hint.strip_prefix("more: --cursor ").unwrap_or_else(|| panic!("{first}"));
    let second = text(&["list", "--limit", "2", "--cursor", cursor]);
    let ids = |text: &str| text.split_whitespace().filter(|word| word.starts_with("ord_")).map(str::to_owned).collect();
    let (mut all, rest): (Vec<String>, Vec<String>) = (ids(rows), ids(&second));
    all.extend(rest);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3, "{first}{second}");
}

// The reader of its output is gone after the line it wanted, as in `stepwarden up | head -1`.
#[test]
fn the_first_line_of_up_is_its_url_and_it_answers() {
    let dir = directory();
    let up = Up::start(dir.path(), &["--port", "0", "--memory"]);
    let port: BTreeSet<&str> = up.url.split("http://127.0.0.1:").collect();
    assert!(port.iter().any(|p| p.parse::<u16>().is_ok_and(|p| p > 0)), "{}", up.url);
    let answer = tokio::runtime::Runtime::new().unwrap().block_on(reqwest::get(format!("{}/orders", up.url))).unwrap();
    assert_eq!(answer.status(), 200);
}
