//! Goal: know how many calls the services bear. Method: 64 clients call as fast as they are answered, the
//! file on disk; run in release, with `--ignored --nocapture`. It prints the rate and bounds nothing.

mod common;

use std::time::{Duration, Instant};

use common::serve;
use stepwarden_remotes::{Expected, Service};

const CLIENTS: usize = 64;
const TIME: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn applies_per_second() {
    let dir = tempfile::tempdir().unwrap();
    let served = serve(Some(dir.path())).await;
    let start = Instant::now();
    let clients = (0..CLIENTS).map(|client| {
        let http = served.client.clone();
        let base = served.base.clone();
        tokio::spawn(async move {
            let mut calls = 0;
            while start.elapsed() < TIME {
                let order = format!("o-{client}-{calls}");
                let call = http
                    .post(format!("{base}/payment/apply"))
                    .header("Idempotency-Key", format!("{order}:payment:forward"))
                    .json(&serde_json::json!({"order_id": order, "input": common::input()}));
                let response = call.send().await.unwrap();
                assert!(response.status().is_success());
                response.bytes().await.unwrap();
                calls += 1;
            }
            calls
        })
    });
    let mut expected = Vec::new();
    for (client, task) in clients.collect::<Vec<_>>().into_iter().enumerate() {
        let paid = || Expected::Applied(vec![Service::Payment]);
        let calls: u32 = task.await.unwrap();
        expected.extend((0..calls).map(|n| (format!("o-{client}-{n}"), paid())));
    }
    let rate = expected.len() as f64 / start.elapsed().as_secs_f64();
    println!("{rate:.0} applies/s");
    let start = Instant::now();
    let report = served.remotes.check(expected).unwrap();
    println!("{report}, in {:.1} s", start.elapsed().as_secs_f64());
    assert!(report.is_clean());
}
