//! Goal: what was answered outlives a kill. Method: this test program starts itself as a server, kills that
//! process under load, opens its file again and asks for every answer once more.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::common::{send, serve};
use serde_json::json;
use stepwarden_remotes::{Expected, FILE_NAME, OpenError, Remotes, Service, accept_loss, examine};
use tokio::net::TcpListener;

const CHILD_DIR: &str = "REMOTES_CRASH_TEST_DIR";

/// Not a separate test, but the process that is killed.
#[tokio::test]
#[ignore = "started by answered_calls_outlive_a_kill"]
async fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else {
        return;
    };
    let remotes = Remotes::open(Some(dir.as_ref())).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    println!("\nserving http://{}", listener.local_addr().unwrap());
    remotes.serve(listener, std::future::pending()).await.unwrap();
}

#[tokio::test]
async fn answered_calls_outlive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "crash::child", "--ignored", "--nocapture"])
        .env(CHILD_DIR, dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let base = lines.map(Result::unwrap).find_map(|line| Some(line.strip_prefix("serving ")?.to_owned())).unwrap();

    let client = reqwest::Client::new();
    let (answered, mut answers) = tokio::sync::mpsc::unbounded_channel();
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let (client, base, answered) = (client.clone(), base.clone(), answered.clone());
            tokio::spawn(async move {
                for n in 0.. {
                    let order = format!("o-{worker}-{n}");
                    let call = client
                        .post(format!("{base}/inventory/apply"))
                        .header("Idempotency-Key", format!("{order}:k"))
                        .json(&json!({"order_id": order, "input": crate::common::input()}));
                    let Ok(response) = call.send().await else {
                        return;
                    };
                    let Ok(body) = response.json::<serde_json::Value>().await else {
                        return;
                    };
                    let _ = answered.send((order, body));
                }
            })
        })
        .collect();
    drop(answered);
    let mut known = HashMap::new();
    while let Some((order, body)) = answers.recv().await {
        known.insert(order, body);
        if known.len() == 400 {
            child.kill().unwrap();
        }
    }
    child.wait().unwrap();
    for worker in workers {
        worker.await.unwrap();
    }
    assert!(known.len() >= 400);

    let served = serve(Some(dir.path())).await;
    for (order, body) in &known {
        let again = served.apply("inventory", &format!("{order}:k"), order).await;
        assert!(again.replayed, "{order} was answered, then forgotten");
        assert_eq!(again.body, *body);
    }
    // The calls cut by the kill may have been applied or not; nothing was applied twice.
    let mut expected: HashMap<_, _> =
        (0..8).flat_map(|worker| (0..1_000).map(move |n| (format!("o-{worker}-{n}"), Expected::Any))).collect();
    for order in known.keys() {
        expected.insert(order.clone(), Expected::Applied(vec![Service::Inventory]));
    }
    let report = served.remotes.check(expected).unwrap();
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn tombstones_declines_and_undos_outlive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(Some(dir.path())).await;
    served.apply("payment", "k", "o-1").await;
    served.undo("payment", "u", "o-1", "k").await;
    served.undo("payment", "u2", "o-2", "k2").await;
    served.put("/faults/payment", json!({"permanent": 1})).await;
    assert_eq!(served.apply("payment", "k3", "o-3").await.code(), "declined");
    served.stop().await;

    let served = serve(Some(dir.path())).await;
    assert_eq!(served.apply("payment", "k", "o-1").await.code(), "undone");
    assert_eq!(served.apply("payment", "k2", "o-2").await.code(), "undone");
    assert_eq!(served.apply("payment", "k3", "o-3").await.code(), "declined");
    let undone = send(served.undo_request("payment", "u", "o-1", "k")).await;
    assert_eq!((undone.replayed, undone.body), (true, json!({"undone": true})));
    // References continue; they do not start over.
    let next = served.apply("payment", "k4", "o-4").await;
    assert_eq!(next.body["reference"], "chg-000002");
}

#[tokio::test]
async fn a_file_that_has_lost_something_is_refused_until_the_loss_is_accepted() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(FILE_NAME);
    for n in 0..3 {
        let served = serve(Some(dir.path())).await;
        served.apply("payment", &format!("k{n}"), "o-1").await;
        let err = Remotes::open(Some(dir.path())).unwrap_err();
        assert!(matches!(err, OpenError::Prepare { .. }), "two at once: {err}");
        served.stop().await;
    }
    let whole = std::fs::read(&path).unwrap();
    let mut flipped = whole.clone();
    flipped[whole.len() - 100] ^= 1;
    let cut = whole[..whole.len() - 1].to_vec();
    let damages = [
        (Some(flipped), "cannot be read", 2),
        (Some(cut), "are left", 2),
        (Some(vec![]), "empty", 0),
        (None, "missing", 0),
    ];
    for (left, says, kept) in damages {
        match left {
            Some(left) => std::fs::write(&path, left).unwrap(),
            None => std::fs::remove_file(&path).unwrap(),
        }
        let err = Remotes::open(Some(dir.path())).unwrap_err().to_string();
        assert!(err.contains("damaged") && err.contains(says), "{err}");
        assert!(examine(dir.path()).is_err());
        let done = accept_loss(dir.path()).unwrap().unwrap();
        assert!(done.contains(says), "{done}");
        assert_eq!(accept_loss(dir.path()).unwrap(), None);
        assert_eq!(Remotes::open(Some(dir.path())).unwrap().order_ledger("o-1").unwrap().len(), kept, "{done}");
        std::fs::write(&path, &whole).unwrap();
        drop(Remotes::open(Some(dir.path())).unwrap());
    }
    // Begun by a process that was killed over it, and never answered.
    std::fs::write(&path, [&whole, &b"0123 [{"[..]].concat()).unwrap();
    drop(Remotes::open(Some(dir.path())).unwrap());
    assert_eq!(std::fs::read(&path).unwrap(), whole);
}
