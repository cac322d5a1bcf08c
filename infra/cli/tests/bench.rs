//! Goal: `stepwarden bench` measures what it claims. Method: the real binary in small runs; its output is compared with
//! what can be counted, never with times, which depend on the machine.

mod common;

use common::{failed, run};
use serde_json::Value;
use std::path::Path;

fn bench(dir: &Path, args: &[&str]) -> Value {
    let output = run(dir, &[&["bench", "--json"], args].concat());
    let (text, error) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(output.status.success(), "{args:?}: {text}{error}");
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{args:?}: {e} in {text}"))
}

fn number(of: &Value, name: &str) -> f64 {
    of[name].as_f64().unwrap_or_else(|| panic!("no {name} in {of}"))
}

fn assert_latency(of: &Value) {
    let all = ["p50_ms", "p90_ms", "p99_ms", "max_ms"].map(|name| number(of, name));
    assert!(all[0] > 0.0 && all.is_sorted(), "{of}");
}

// Issue 7, point 1: every figure of a run is there, and what can be counted is right.
#[test]
fn a_run_counts_its_orders_and_its_kills() {
    let dir = tempfile::tempdir().unwrap();
    let report = bench(
        dir.path(),
        &[
            "--orders=50",
            "--single=5",
            "--items=20",
            "--in-flight=10",
            "--rates=40,20,20",
            "--rate-for=1s",
            "--open=120",
            "--kills=1",
            "--durability=process",
        ],
    );
    assert_eq!(number(&report, "orders"), 50.0, "{report}");
    // Nothing is lost or late here, so nothing is sent twice.
    assert_eq!(number(&report, "sends_per_order"), 6.0, "{report}");
    assert!(number(&report, "dynamodb_calls_per_order") >= 4.0, "{report}");
    assert!(number(&report, "orders_per_second") > 0.0, "{report}");
    assert!(number(&report, "peak_memory_bytes") >= number(&report, "idle_memory_bytes"), "{report}");
    assert_latency(&report);
    let rates = report["rates"].as_array().unwrap();
    for (rate, offered) in rates.iter().zip([40.0, 20.0, 20.0]) {
        assert_eq!(number(rate, "offered_per_second"), offered, "{rate}");
        assert_eq!(number(rate, "orders") + number(rate, "refused"), offered, "{rate}");
        assert!(number(rate, "orders_per_second") <= offered, "{rate}");
        assert_latency(rate);
    }
    assert_eq!(rates.len(), 3);
    // An order alone is a request and a reply; an item adds at least its hint.
    let lists = &report["lists"];
    let sends = |way: &str| number(&lists[way], "sends_per_item");
    assert_eq!((number(lists, "items"), sends("one_by_one")), (20.0, 2.0), "{lists}");
    assert!(sends("list") >= 4.0 && number(lists, "ratio") > 0.0, "{lists}");
    let open = &report["open"];
    let stages = open["stages"].as_array().unwrap();
    assert_eq!(stages.iter().map(|stage| number(stage, "orders")).collect::<Vec<_>>(), [12.0, 119.0], "{open}");
    for stage in stages {
        for figure in ["submitted_per_second", "file_bytes_per_order", "memory_bytes"] {
            assert!(number(stage, figure) > 0.0, "{stage}");
        }
        assert!(stage["idle_cpu_ms_per_second"].is_null(), "{stage}");
    }
    for (stage, part) in stages.iter().flat_map(|s| ["overview", "list", "waiting", "event"].map(|part| (s, part))) {
        assert_latency(&stage[part]);
    }
    assert!(number(open, "up_ms") > 0.0 && number(open, "memory_after_restart_bytes") > 0.0, "{open}");
    let recovery = &report["recovery"];
    for victim in ["agent", "scheduler", "everything"] {
        let killed = &recovery[victim];
        assert_eq!((number(killed, "kills"), number(killed, "orders")), (1.0, 40.0), "{killed}");
        // Orders end only after the restart, and not before a step has run.
        assert!(number(killed, "final_p50_ms") > number(recovery, "step_ms"), "{killed}");
        assert!(number(killed, "alone_p50_ms") > 0.0, "{killed}");
    }
    // What the dead agent held comes back at once, so its steps need not expire. One that expires runs again later.
    let agent = &recovery["agent"];
    assert!(number(agent, "continues_max_ms") >= number(agent, "continues_p50_ms"), "{agent}");
    assert_eq!(number(agent, "expired") > 0.0, agent["again_p50_ms"].is_number(), "{agent}");
    let over_time = report["ended_over_time"].as_array().unwrap();
    let (width, rates): (f64, Vec<f64>) =
        (2.0 * over_time[0][0].as_f64().unwrap(), over_time.iter().map(|point| point[1].as_f64().unwrap()).collect());
    let counted = rates.iter().sum::<f64>() * width;
    assert!((counted - 50.0).abs() < 1e-6, "each order once, not {counted}");
}

// Issue 7, point 2: the report of a long run about memory and files.
#[test]
fn a_steady_run_looks_at_memory_and_files_on_the_way() {
    let dir = tempfile::tempdir().unwrap();
    let report = bench(dir.path(), &["--duration=2s", "--rate=30"]);
    let steady = &report["steady"];
    assert_eq!((number(steady, "orders"), number(steady, "refused")), (60.0, 0.0), "{report}");
    let samples = steady["samples"].as_array().unwrap();
    assert!(samples.len() >= 4, "{report}");
    let times: Vec<f64> = samples.iter().map(|sample| number(sample, "at_s")).collect();
    assert!(times.is_sorted() && times[times.len() - 1] >= 2.0, "{times:?}");
    let (least, most) = samples
        .iter()
        .map(|sample| number(sample, "memory_bytes"))
        .fold((f64::MAX, 0.0_f64), |m, bytes| (m.0.min(bytes), m.1.max(bytes)));
    let quarters = steady["memory_quarters_bytes"].as_array().unwrap();
    let is_between = |mean: &Value| mean.as_f64().is_some_and(|mean| mean + 1.0 >= least && mean <= most);
    assert!(least > 1e6 && quarters.len() == 4 && quarters.iter().all(is_between), "{report}");
    assert!(samples.iter().any(|sample| number(sample, "log_bytes") > 0.0), "{report}");
    assert!(["rates", "recovery", "open", "orders_per_second"].iter().all(|part| report[part].is_null()));
}

// A part that was not requested is not measured, and has no fields.
#[test]
fn a_part_alone_is_measured_alone() {
    let dir = tempfile::tempdir().unwrap();
    let report = bench(dir.path(), &["--only=throughput", "--orders=20", "--backlog", "--memory"]);
    assert_eq!((report["backlog"].as_u64(), number(&report, "fsyncs_per_order")), (Some(20), 0.0), "{report}");
    for absent in ["p50_ms", "lists", "rates", "open", "recovery", "steady"] {
        assert!(report[absent].is_null(), "{report}");
    }
    let report = bench(dir.path(), &["--only=throughput", "--orders=20", "--backlog", "7", "--memory"]);
    assert_eq!((report["backlog"].as_u64(), number(&report, "sends_per_order")), (Some(7), 7.0), "{report}");
}

#[test]
fn a_bench_that_makes_no_sense_is_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("used")).unwrap();
    std::fs::write(dir.path().join("used/tables.db"), "").unwrap();
    for (args, word) in [
        (&["--rates=0"] as &[&str], "1..=10000"),
        (&["--items=10001"], "1..=10000"),
        (&["--backlog=0"], "invalid value '0' for '--backlog"),
        (&["--backlog=5", "--in-flight=3"], "cannot be used with"),
        (&["--backlog=5", "--only=single"], "throughput"),
        (&["--data=used"], "a system's data"),
        (&["--rate-for=1ms"], "1s to 24h"),
        (&["--duration=1h", "--only=single"], "cannot be used with"),
        (&["--rate=5"], "--duration"),
        (&["--memory", "--only=recovery,open"], "nothing survives a kill"),
        (&["--open=9"], "10..=100000000"),
    ] {
        failed(&run(dir.path(), &[&["bench"], args].concat()), 2, &[word]);
    }
}
