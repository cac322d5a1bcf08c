//! Goal: what comes from outside a running system (a reader of its log, a caller, another tenant, a signal) does no
//! harm to the orders of others. Method: the real binary, and requests written by hand if no client would send them.

mod common;

use common::client::{ended, submit};
use common::{Running, Up, directory, failed, first_order, http, program};
use rustix::process::Signal;
use serde_json::json;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

/// A command that ends by itself has ended after this time, on any machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Submits `count` orders one after another, and waits until all have ended well.
async fn orders_end_well(up: &Up, count: usize) {
    let http = http();
    for n in 0..count {
        let order = json!({"workflow": "order", "input": first_order()});
        let id = submit(&http, &up.url, &format!("door-{n}"), &order).await;
        let order = ended(&http, &up.url, &id, PATIENCE).await;
        assert_eq!(order["state"], "Processed", "{order}");
    }
}

/// A system on files.
const UP: [&str; 7] = ["up", "--port", "0", "--data", "data", "--workflows", "quick"];

fn start_on_files(dir: &Path, more: &[&str]) -> Up {
    let mut command = program(dir, &[&UP[..], more].concat());
    command.stderr(Stdio::null());
    Up::of(command)
}

fn start(dir: &Path, log: &str) -> Up {
    let mut command = program(dir, &["up", "--port", "0", "--memory", "--workflows", "quick"]);
    command.env("RUST_LOG", log).stderr(Stdio::piped());
    Up::of(command)
}

// `up 2>&1 | cat`, and cat is killed: the log has no reader any more.
#[tokio::test]
async fn a_log_that_nobody_reads_any_more_changes_nothing() {
    let dir = directory();
    let mut up = start(dir.path(), "info");
    drop(up.process.0.stderr.take());
    orders_end_well(&up, 10).await;
}

// `up 2>&1 | less`: the pipe is full, and writing to it blocks.
#[tokio::test]
async fn a_log_whose_reader_sleeps_changes_nothing() {
    let dir = directory();
    let up = start(dir.path(), "trace");
    orders_end_well(&up, 10).await;
    drop::<Running>(up.process);
}

fn get(url: &str, host: &str) -> u16 {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(url.trim_start_matches("http://")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write!(stream, "GET / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

// All three ports of `up` have the same rules, and 1,100 incomplete requests at each of them keep no client out.
#[tokio::test]
async fn the_ports_have_the_same_rules_and_room_for_everybody() {
    let dir = directory();
    let up = start(dir.path(), "error");
    let ports = [up.url.clone(), up.aws_url.clone(), up.remotes_url.clone()];
    for url in &ports {
        assert_eq!((get(url, "evil.example"), get(url, "[::1].evil.example")), (421, 400), "{url}");
        assert!([200, 401, 404].contains(&get(url, "localhost")), "{url}");
    }
    let http = http();
    let faults = |kind: Option<&str>| {
        let put = http.put(format!("{}/faults/payment", up.remotes_url)).body("{}");
        kind.map_or(put.try_clone().unwrap(), |kind| put.header("content-type", kind)).send()
    };
    for (kind, wanted) in [(None, 415), (Some("text/plain"), 415), (Some("application/json"), 200)] {
        assert_eq!(faults(kind).await.unwrap().status(), wanted, "{kind:?}");
    }
    let mut half = Vec::new();
    for url in &ports {
        for _ in 0..1100 {
            // The number of this test's open files is limited too: a connection that fails on this side does not count.
            let Ok(mut stream) = std::net::TcpStream::connect(url.trim_start_matches("http://")) else { break };
            let _ = std::io::Write::write_all(&mut stream, b"POST /orders HTTP/1.1\r\nhost: localhost\r\n");
            half.push(stream);
        }
        half.truncate(half.len().saturating_sub(20));
        assert!([200, 401, 404].contains(&get(url, "localhost")), "{url}");
    }
    drop(half);
    orders_end_well(&up, 3).await;
}

#[tokio::test]
async fn a_closed_terminal_ends_it_cleanly() {
    let dir = directory();
    let mut up = start_on_files(dir.path(), &[]);
    assert_eq!(up.process.end(Signal::HUP).code(), Some(0));
}

#[test]
fn a_port_without_room_for_the_next_two_is_wrong_use() {
    let dir = directory();
    for port in ["65534", "65535", "65536", "x"] {
        failed(&common::run(dir.path(), &["up", "--memory", "--port", port]), 2, &["65533"]);
    }
}

// No other user of this machine can read the data, whatever the umask is.
#[tokio::test]
async fn the_data_is_its_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let dir = directory();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let up = start_on_files(dir.path(), &[]);
    orders_end_well(&up, 1).await;
    drop(up);
    let data = dir.path().join("data");
    assert_eq!(mode(&data), 0o700);
    let files = || std::fs::read_dir(&data).unwrap().map(|entry| entry.unwrap().path());
    assert!(files().count() >= 8);
    for file in files() {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    // Files of an older version are restricted at the next start.
    for file in files() {
        std::fs::set_permissions(file, PermissionsExt::from_mode(0o644)).unwrap();
    }
    drop(start_on_files(dir.path(), &[]));
    for file in files() {
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
}

// Damage is reported at the start, with what to do; the doctor detects it as well.
#[tokio::test]
async fn damaged_data_is_said_and_there_is_a_way_on() {
    let dir = directory();
    let mut up = start_on_files(dir.path(), &[]);
    orders_end_well(&up, 5).await;
    up.kill();
    let doctor = || {
        let ended = common::run(
            dir.path(),
            &["doctor", "--data", "data", "--workflows", "quick", "--url", "http://127.0.0.1:9"],
        );
        String::from_utf8(ended.stdout).unwrap()
    };
    assert!(!doctor().contains("damaged"), "{}", doctor());
    let log = dir.path().join("data/tables.db-wal");
    let mut flipped = std::fs::read(&log).unwrap();
    // Behind what was written there are zeros, in which a bit says nothing.
    let written = flipped.iter().rposition(|byte| *byte != 0).expect("the log has frames");
    flipped[written / 2] ^= 1;
    std::fs::write(&log, flipped).unwrap();
    std::fs::write(dir.path().join("data/remotes.log"), "").unwrap();
    let told = doctor();
    assert!(told.contains("tables.db is damaged"), "{told}");
    assert!(told.contains("remotes.log is damaged"), "{told}");
    failed(&common::run(dir.path(), &UP), 2, &["tables.db", "--accept-loss"]);
    let mut up = start_on_files(dir.path(), &["--accept-loss"]);
    orders_end_well(&up, 1).await;
    up.kill();
    drop(start_on_files(dir.path(), &[]));
}
