//! Goal: docs/failure-modes.md is right. Method: every row names a test that exists and is not ignored, and every test
//! of the files below, which inject faults into the whole system, is named by a row.

use crate::support::page::read;
use std::collections::{BTreeMap, BTreeSet};

/// Files whose tests must all be in the table.
const FAULTS: [&str; 4] = ["tests/system.rs", "tests/poison.rs", "tests/race.rs", "tests/pools.rs"];
/// Tests of those files that inject no fault.
const NO_FAULT: [&str; 4] = [
    "orders_submitted_over_http_are_processed",
    "the_submitter_gets_a_notice_of_every_step_on_its_own_queue",
    "independent_steps_run_side_by_side_and_dependent_ones_wait",
    "the_workflow_of_these_tests_has_the_shape_of_the_reference",
];
/// Who recovers: everyone in or around the system.
const WHO: [&str; 14] = [
    "agent",
    "author",
    "client",
    "leader",
    "not needed",
    "operator",
    "other contender",
    "other supervisor",
    "platform",
    "queue",
    "restart",
    "scheduler",
    "submitter",
    "supervisor",
];

struct Row<'a> {
    section: &'a str,
    fault: &'a str,
    who: &'a str,
    file: &'a str,
    test: &'a str,
}

fn rows(page: &str) -> Vec<Row<'_>> {
    let (mut section, mut rows) = ("", Vec::new());
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = title;
        }
        let Some(inner) = line.strip_prefix("| ").and_then(|l| l.strip_suffix(" |")) else { continue };
        let cells: Vec<&str> = inner.split(" | ").map(str::trim).collect();
        let [fault, what, who, when, test] = cells[..] else { panic!("five cells: {line}") };
        if fault == "fault" {
            continue;
        }
        assert!([fault, what, who, when, test].iter().all(|cell| !cell.is_empty()), "{line}");
        let test = test.trim_matches('`').split_once(": ");
        let (file, test) = test.unwrap_or_else(|| panic!("the last cell is `FILE: TEST`: {line}"));
        rows.push(Row { section, fault, who, file, test });
    }
    rows
}

/// The tests of a file that run: name by name, in their order.
fn tests(source: &str) -> Vec<String> {
    let mut names = Vec::new();
    let (mut is_test, mut is_ignored) = (false, false);
    for line in source.lines().map(str::trim_start) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            (is_test, is_ignored) = (true, false);
        } else if line.starts_with("#[ignore") {
            is_ignored = true;
        } else if let Some(rest) = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn ")) {
            if is_test && !is_ignored {
                names.extend(rest.split('(').next().map(str::to_owned));
            }
            is_test = false;
        }
    }
    names
}

// A6: every failure mode has a row and a test.
#[test]
fn every_failure_mode_names_a_test_that_runs() {
    let page = read("docs/failure-modes.md");
    let rows = rows(&page);
    assert!(rows.len() >= 70, "{} rows", rows.len());
    let mut sources: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for Row { section, fault, who, file, test } in rows {
        let known = sources.entry(file).or_insert_with(|| tests(&read(file)));
        assert!(known.iter().any(|name| name == test), "{section}, {fault}: {file} has no test `{test}` that runs");
        assert!(who.split(", ").all(|one| WHO.contains(&one)), "{section}, {fault}: who is `{who}`?");
        assert!(seen.insert((section, fault)), "{section}, {fault}: twice");
    }
}

// A6: every tested fault is in the table.
#[test]
fn every_test_that_injects_a_fault_has_a_row() {
    let page = read("docs/failure-modes.md");
    let rows = rows(&page);
    let named: BTreeSet<_> = rows.iter().map(|row| (row.file, row.test)).collect();
    for file in FAULTS {
        for test in tests(&read(file)) {
            let is_named = named.contains(&(file, test.as_str())) || NO_FAULT.contains(&test.as_str());
            assert!(is_named, "{file}: `{test}` has no row in docs/failure-modes.md");
        }
    }
}
