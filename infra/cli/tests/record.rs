//! Goal: the check of what a run of the real binary left behind finds every kind of mistake. Method: a short run with
//! orders that end in each way, whose record is clean; then the same record with one change at a time.

mod common;

use common::client::{ended, rest, submit};
use common::record::{Record, keep_saves};
use common::{QUICK, Up, first_order};
use serde_json::json;
use std::path::Path;
use std::time::Duration;
use stepwarden_simulation::history::Rule;

const PATIENCE: Duration = Duration::from_secs(90);

/// Submits one order, and returns how it ends.
async fn order(http: &reqwest::Client, up: &Up, record: &Record, workflow: &str, key: &str) -> String {
    let order = json!({"workflow": workflow, "input": first_order(), "reply_queue": "default"});
    let id = submit(http, &up.url, key, &order).await;
    record.accepted(&id);
    let order = ended(http, &up.url, &id, PATIENCE).await;
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
    assert_eq!(order(&http, &up, &record, "order", "processed").await, "Processed");
    let faults = json!({"services": {"payment": {"permanent": 1.0}}});
    http.put(format!("{}/faults", up.remotes_url)).json(&faults).send().await.unwrap().error_for_status().unwrap();
    assert_eq!(order(&http, &up, &record, "order", "undone").await, "Undone");
    assert_eq!(order(&http, &up, &record, "stop", "error").await, "Error");
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

    // The order that ended in each way, and the numbers of two saves of the one that went well.
    let of = "AS SELECT order_id FROM tasks WHERE json_extract(item, '$.process_state.S') =";
    let saves = "FROM saves WHERE order_id IN processed";
    let views = format!(
        "CREATE TEMP VIEW processed {of} 'Processed'; CREATE TEMP VIEW undone {of} 'Undone';
         CREATE TEMP VIEW error {of} 'Error'; CREATE TEMP VIEW last AS SELECT max(number) AS number {saves};
         CREATE TEMP VIEW second AS SELECT min(number) + 1 AS number {saves} AND number > 0;"
    );
    let twins = "INSERT INTO saves (order_id, item) SELECT order_id, json_set(item, '$.stamp.S', 'another')
                     FROM saves WHERE number IN last";
    let rolled_back = "DELETE FROM saves WHERE number IN last;
                       UPDATE tasks SET item = (SELECT item FROM saves WHERE number IN last) WHERE order_id IN processed";
    let older = "UPDATE saves SET item = json_set(item, '$.lease_token.N', '9') WHERE number IN second";
    let twice = "INSERT INTO effects SELECT order_id, service, key || '2', 1 FROM effects WHERE order_id IN processed";
    let unshipped = "DELETE FROM effects WHERE service = 'shipping' AND order_id IN processed";
    let silent = "DELETE FROM notices WHERE body ->> '$.kind' = 'completed' AND order_id IN processed";
    let no_turn = "DELETE FROM notices WHERE body ->> '$.kind' = 'failed' AND order_id IN undone";
    let unsaved = "UPDATE notices SET body = json_set(body, '$.seq', 1000)";
    let wrong = [
        ("a save is missing", "DELETE FROM saves WHERE number IN second", Rule::OneChain),
        ("two writers saved one version", twins, Rule::OneChain),
        ("the last save is gone from the table", "DELETE FROM tasks WHERE order_id IN processed", Rule::OneChain),
        ("the order was rolled back", rolled_back, Rule::Ends),
        ("an older leader wrote after a newer one", older, Rule::OnlyRises),
        ("an effect came twice", twice, Rule::AppliedOnce),
        ("an effect is missing", unshipped, Rule::Processed),
        ("an undo is missing", "UPDATE effects SET stands = 1 WHERE order_id IN undone", Rule::Undone),
        ("the final notice is missing", silent, Rule::Notice),
        ("the notice of a turn is missing", no_turn, Rule::Notice),
        ("the first notice is missing", "DELETE FROM notices WHERE body ->> '$.kind' = 'received'", Rule::Notice),
        ("a notice tells of what was never saved", unsaved, Rule::Observed),
        ("the alert is missing", "DELETE FROM alerts WHERE order_id IN error", Rule::Alert),
        ("an accepted order is not stored", "INSERT INTO accepted VALUES ('ord_0')", Rule::Accepted),
    ];
    for (n, (what, sql, rule)) in wrong.into_iter().enumerate() {
        let checked = record.doctored(dir.path().join(format!("{n}.db")), &format!("{views}{sql}")).check();
        let is_found = checked.violations.iter().any(|violation| violation.rule == rule);
        assert!(is_found, "{what}: {:?}", checked.violations);
    }
}
