//! Goal: a job goes on after `kill -9`, without its client, and acts on each order once. Method: the real binary on real files; orders
//! that stopped in Error, a job over HTTP, and the process killed at random moments and restarted on the same data. `ORDERS=n` and `KILLS=n`
//! set their numbers, `SEED=n` repeats the moments.

mod common;

use common::{Up, number};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// Something happens within this time on any machine.
const PATIENCE: Duration = Duration::from_secs(120);

const WORKFLOW: &str = "name = \"stops\"\non_failure = \"error\"\n[[step]]\nname = \"a\"\nfail = \"no such card\"\n";

fn start(dir: &Path, port: u16) -> Up {
    let more = ["--data", "data", "--durability", "process", "--workflows", "stops", "--rate-limit", "0"];
    Up::start(dir, &[&["--port", &port.to_string()], &more[..]].concat())
}

/// The answer to a request, once there is one.
async fn ask(request: impl Fn() -> reqwest::RequestBuilder) -> Value {
    let begin = Instant::now();
    loop {
        match request().send().await {
            Ok(answer) if answer.status().is_success() => match answer.json().await {
                Ok(answer) => return answer,
                Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
            },
            Ok(answer) => {
                assert!(
                    answer.status() == 429 || answer.status().is_server_error(),
                    "{}",
                    answer.text().await.unwrap()
                );
            }
            Err(error) => assert!(begin.elapsed() < PATIENCE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

// M4, A4: no order is acted on twice, and none is forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_job_survives_kills_without_its_client() {
    let seed = number("SEED", u64::from(std::process::id()));
    let (orders, kills) = (number("ORDERS", 120), number("KILLS", 3));
    println!("SEED={seed} ORDERS={orders} KILLS={kills}");
    let mut random = fastrand::Rng::with_seed(seed);
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::create_dir(dir.path().join("stops")).expect("a folder");
    std::fs::write(dir.path().join("stops/stops.toml"), WORKFLOW).expect("a file");
    let port = loop {
        let port = random.u16(20_000..32_000);
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            break port;
        }
    };
    let mut up = start(dir.path(), port);
    let (http, url) = (common::http(), up.url.clone());
    let get = async |path: String| ask(|| http.get(format!("{url}{path}"))).await;
    let submit = |n: u64| {
        let (http, url) = (http.clone(), url.clone());
        async move {
            let post = || http.post(format!("{url}/orders")).header("idempotency-key", format!("k{n}"));
            let answer = ask(|| post().json(&json!({"workflow": "stops", "input": {}, "labels": ["stopped"]}))).await;
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
    let job = ask(|| http.post(format!("{url}/jobs")).header("idempotency-key", "job").json(&body)).await;
    let job = job["job_id"].as_str().expect("an id").to_owned();
    let begin = Instant::now();
    for _ in 0..kills {
        tokio::time::sleep(Duration::from_millis(random.u64(100..orders * 50 / kills.max(1)))).await;
        up.kill();
        up = start(dir.path(), port);
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
