//! Goal: the check of what a run of the real binary left behind finds every kind of mistake. Method: a short run with
//! orders that end in each way, whose record is clean; then the same record with one change at a time.

mod common;

use common::client::{ended, rest};
use common::record::{Record, keep_saves};
use common::{NORTHWIND, QUICK, Up};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;
use stepwarden_simulation::history::Rule;

const PATIENCE: Duration = Duration::from_secs(90);

/// Submits one order, and returns how it ends.
async fn submit(http: &reqwest::Client, up: &Up, record: &Record, workflow: &str, key: &str) -> String {
    let input: Value = serde_json::from_str(NORTHWIND.lines().next().unwrap()).unwrap();
    let body = json!({"workflow": workflow, "input": input, "reply_queue": "default"});
    let post = http.post(format!("{}/orders", up.url)).header("idempotency-key", key).json(&body);
    let answer: Value = post.send().await.unwrap().error_for_status().unwrap().json().await.unwrap();
    let id = answer["order_id"].as_str().unwrap();
    record.accepted(id);
    let order = ended(http, &up.url, id, PATIENCE).await;
    order["state"].as_str().unwrap().to_owned()
}

/// A run in `dir` with an order for each end.
async fn run(dir: &Path) -> Record {
    for (name, on_failure) in [("order", "undo"), ("stop", "error")] {
        let name = format!("name = \"{name}\"\non_failure = \"{on_failure}\"");
        std::fs::create_dir_all(dir.join("quick")).unwrap();
        let text = QUICK.replacen("name = \"order\"", &name, 1);
        std::fs::write(dir.join(format!("quick/{on_failure}.toml")), text).unwrap();
    }
    let record = Record::create(dir.join("record.db"));
    let http = common::http();
    let mut up = Up::start(dir, &["--port", "0", "--data", "data", "--workflows", "quick"]);
    keep_saves(&dir.join("data"));
    assert_eq!(submit(&http, &up, &record, "order", "processed").await, "Processed");
    let faults = json!({"services": {"payment": {"permanent": 1.0}}});
    http.put(format!("{}/faults", up.remotes_url)).json(&faults).send().await.unwrap().error_for_status().unwrap();
    assert_eq!(submit(&http, &up, &record, "order", "undone").await, "Undone");
    assert_eq!(submit(&http, &up, &record, "stop", "error").await, "Error");
    assert_eq!(rest(&http, &up, &record, PATIENCE).await, 0);
    record.take_ledger(&http, &up.remotes_url).await;
    up.kill();
    record.take_files(&dir.join("data"));
    record
}

// A4, D9, D10: the check can fail.
#[tokio::test]
async fn whatever_is_wrong_with_a_record_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let record = run(dir.path()).await;
    let clean = record.check();
    clean.assert_clean("nothing is drawn");
    assert_eq!(clean.states.values().copied().collect::<Vec<_>>(), [1, 1, 1], "{:?}", clean.states);
    let counts = (clean.alerts, clean.notices > 10, clean.effects, clean.saves > 12);
    assert_eq!(counts, (1, true, 4 + 2 + 2, true), "{clean:?}");

    let of =
        |state: &str| format!("(SELECT order_id FROM tasks WHERE json_extract(item, '$.process_state.S') = '{state}')");
    let (processed, undone, error) = (of("Processed"), of("Undone"), of("Error"));
    let last = format!("SELECT max(number) FROM saves WHERE order_id = {processed}");
    let second = format!("SELECT min(number) + 1 FROM saves WHERE order_id = {processed} AND number > 0");
    let kind = "json_extract(body, '$.kind')";
    let wrong = [
        ("a save is missing", format!("DELETE FROM saves WHERE number IN ({second})"), Rule::OneChain),
        (
            "two writers saved one version",
            format!(
                "INSERT INTO saves (order_id, item) SELECT order_id, json_set(item, '$.stamp.S', 'another')
                     FROM saves WHERE number IN ({last})"
            ),
            Rule::OneChain,
        ),
        (
            "the last save is gone from the table",
            format!("DELETE FROM tasks WHERE order_id = {processed}"),
            Rule::OneChain,
        ),
        (
            "the order was rolled back",
            format!(
                "DELETE FROM saves WHERE number IN ({last});
                 UPDATE tasks SET item = (SELECT item FROM saves WHERE number IN ({last})) WHERE order_id = {processed}"
            ),
            Rule::Ends,
        ),
        (
            "an older leader wrote after a newer one",
            format!("UPDATE saves SET item = json_set(item, '$.lease_token.N', '9') WHERE number IN ({second})"),
            Rule::OnlyRises,
        ),
        (
            "an effect came twice",
            format!(
                "INSERT INTO effects SELECT order_id, service, key || '2', 1 FROM effects WHERE order_id = {processed}"
            ),
            Rule::AppliedOnce,
        ),
        (
            "an effect is missing",
            format!("DELETE FROM effects WHERE service = 'shipping' AND order_id = {processed}"),
            Rule::Processed,
        ),
        ("an undo is missing", format!("UPDATE effects SET stands = 1 WHERE order_id = {undone}"), Rule::Undone),
        (
            "the final notice is missing",
            format!("DELETE FROM notices WHERE {kind} = 'completed' AND order_id = {processed}"),
            Rule::Notice,
        ),
        (
            "the notice of a turn is missing",
            format!("DELETE FROM notices WHERE {kind} = 'failed' AND order_id = {undone}"),
            Rule::Notice,
        ),
        ("the first notice is missing", format!("DELETE FROM notices WHERE {kind} = 'received'"), Rule::Notice),
        (
            "a notice tells of what was never saved",
            "UPDATE notices SET body = json_set(body, '$.seq', 1000)".into(),
            Rule::Observed,
        ),
        ("the alert is missing", format!("DELETE FROM alerts WHERE order_id = {error}"), Rule::Alert),
        ("an accepted order is not stored", "INSERT INTO accepted VALUES ('ord_0')".into(), Rule::Accepted),
    ];
    for (n, (what, sql, rule)) in wrong.into_iter().enumerate() {
        let checked = record.doctored(dir.path().join(format!("{n}.db")), &sql).check();
        assert!(checked.rules().contains(&rule), "{what}: {:?}", checked.violations);
    }
}
