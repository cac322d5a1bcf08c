//! Goal: a job goes on after `kill -9`, without its client, and acts on each order once. Method: the real binary on real files; orders
//! that stopped in Error, a job over HTTP, and the process killed at random moments and restarted on the same data. `ORDERS=n` and `KILLS=n`
//! set their numbers, `SEED=n` repeats the moments.

mod common;

use common::client::insist;
use common::{Up, folder, free_ports, number};
use futures::{StreamExt, stream};
use serde_json::json;
use std::time::{Duration, Instant};

/// Something happens within this time on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

const WORKFLOW: &str = "name = \"stops\"\non_failure = \"error\"\n[[step]]\nname = \"a\"\nfail = \"no such card\"\n";

// M4, A4: no order is acted on twice, and none is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_kills_without_its_client() {
    let seed = number("SEED", u64::from(std::process::id()));
    let (orders, kills) = (number("ORDERS", 120), number("KILLS", 3));
    println!("SEED={seed} ORDERS={orders} KILLS={kills}");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = folder("stops", &[("stops", WORKFLOW)]);
    let port = free_ports(1);
    let start = || Up::start_killable(dir.path(), port, "stops", &[]);
    let mut up = start();
    let (http, url) = (common::http(), up.url.clone());
    let get = async |path: String| insist(200, PATIENCE, || http.get(format!("{url}{path}"))).await.0;
    let submit = |n: u64| {
        let (http, url) = (http.clone(), url.clone());
        async move {
            let post = || http.post(format!("{url}/orders")).header("idempotency-key", format!("k{n}"));
            let order = json!({"workflow": "stops", "input": {}, "labels": ["stopped"]});
            let (answer, _) = insist(202, PATIENCE, || post().json(&order)).await;
            answer["order_id"].as_str().expect("an id").to_owned()
        }
    };
    let ids: Vec<String> = stream::iter(0..orders).map(submit).buffer_unordered(16).collect().await;
    let begin = Instant::now();
    for id in &ids {
        while get(format!("/orders/{id}")).await["state"] != "Error" {
            assert!(begin.elapsed() < PATIENCE);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    let body = json!({"action": "resubmit", "filter": {"state": "Error", "label": "stopped"}, "by": "ann",
        "reason": "the bank is back", "rate_per_s": 20, "limit": 100_000});
    let post = || http.post(format!("{url}/jobs")).header("idempotency-key", "job").json(&body);
    let (job, _) = insist(202, PATIENCE, post).await;
    let job = job["job_id"].as_str().expect("an id").to_owned();
    let begin = Instant::now();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(random.u64(100..orders * 50 / kills.max(1)))).await;
        up.kill();
        up = start();
    }
    let ended = loop {
        let now = get(format!("/jobs/{job}")).await;
        if now["state"] == "done" {
            break now;
        }
        assert!(begin.elapsed() < PATIENCE, "{now}; SEED={seed}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    println!("{orders} orders, {kills} kills: {:.1?}", begin.elapsed());
    assert_eq!(ended["counts"], json!({"good": orders, "failed": 0, "left_alone": 0}), "SEED={seed}");
    for id in &ids {
        let history = get(format!("/orders/{id}/history")).await;
        let acts = history["history"].as_array().expect("entries").iter();
        let acts = acts.filter(|entry| entry["event"] == "resubmitted").count();
        assert_eq!(acts, 1, "{id}: {history}; SEED={seed}");
    }
    drop(up);
}
