//! Goal: the demo ends by itself with exit code 0 and its summary. Method: the real binary with a few orders from a
//! file, a seed, faults, and a workflow with short times.

mod common;

use common::{NORTHWIND, directory, run};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

// A1, A2, A4: every order of the demo ends, and the ledgers hold.
#[test]
fn a_demo_of_ones_own_orders_ends_with_its_summary() {
    let dir = directory();
    let orders: String = NORTHWIND.lines().take(20).map(|line| format!("{line}\n")).collect();
    std::fs::write(dir.path().join("mine.jsonl"), orders).unwrap();
    let output = run(dir.path(), &["demo", "mine.jsonl", "--seed", "7", "--permanent", "0.1", "--workflows", "quick"]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    for words in ["20 orders", "seed 7", "Processed", "p50", "alerts", "every order ended: 0 are still open"] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
    assert!(!text.contains("FAIL"), "{text}");
}

// The same for programs: one object, and nothing else.
#[test]
fn a_demo_for_programs_prints_one_object() {
    let dir = directory();
    std::fs::write(dir.path().join("mine.jsonl"), NORTHWIND.lines().next().unwrap()).unwrap();
    let output = run(dir.path(), &["demo", "mine.jsonl", "--json", "--permanent", "0", "--workflows", "quick"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &report["ok"]), (Some(0), &serde_json::json!(true)), "{report:#}");
    assert_eq!((&report["orders"], &report["states"]["Processed"]), (&1.into(), &1.into()), "{report:#}");
}

// A reader that has seen enough, such as `head -1`, ends the demo: there is no panic, and the demo does not run on
// without a reader.
#[test]
fn a_demo_ends_when_its_reader_is_gone() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_stepwarden"));
    let mut demo = demo.arg("demo").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = String::new();
    BufReader::new(demo.stdout.take().unwrap()).read_line(&mut first).unwrap();
    assert!(first.starts_with("http://127.0.0.1:"), "{first}");
    let output = demo.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(141) && !error.contains("panicked"), "{:?} {error}", output.status);
}

#[test]
fn a_demo_of_no_orders_says_what_to_write() {
    let dir = tempfile::tempdir().unwrap();
    for (text, words) in [("", "holds no orders"), ("{}\nnot json\n", "mine.jsonl:2")] {
        std::fs::write(dir.path().join("mine.jsonl"), text).unwrap();
        let output = run(dir.path(), &["demo", "mine.jsonl"]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && error.contains(words), "{error}");
    }
}
