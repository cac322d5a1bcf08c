//! The workflow of dbos_worker.py, and the same commands: lines of JSON, each answered with one line.

use dbos::{Config, DBOS, EngineOnly, WorkflowRef, step};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use stepwarden_bench_peers::{Order, STEPS, act};
use tokio::io::{AsyncBufReadExt, BufReader};

type Run = WorkflowRef<Order, (), EngineOnly>;

async fn run(order: Order) -> dbos::Result<()> {
    for name in STEPS {
        let body = || {
            let order = order.clone();
            async move {
                act(name, &order).await;
                dbos::Result::Ok(())
            }
        };
        step(name, body).await?;
    }
    Ok(())
}

/// Milliseconds from the submission of order `number` to its end.
async fn timed(run: &Run, number: u64) -> f64 {
    let begin = Instant::now();
    let service = std::env::args().nth(2);
    run.run(Order { number, text: "x".repeat(200), hold: None, service }).await.expect("it ends");
    begin.elapsed().as_secs_f64() * 1000.0
}

/// Orders with `in_flight` at once, until all are done or the time is up: how many ended, and in what time.
async fn many(run: &Run, orders: u64, in_flight: usize, most: Duration) -> Value {
    let begin = Instant::now();
    let ended = stream::iter(0..orders)
        .map(|number| async move { begin.elapsed() < most && timed(run, number).await > 0.0 })
        .buffer_unordered(in_flight)
        .filter(|has_ended| std::future::ready(*has_ended))
        .count()
        .await;
    json!({"orders": ended, "seconds": begin.elapsed().as_secs_f64()})
}

#[tokio::main]
async fn main() {
    let url = std::env::args().nth(1).expect("the URL of the database");
    // The version is told, so that a worker started again takes up the orders of the one before.
    let config = Config { app_version: Some("1".into()), ..Config::new("bench", url) };
    let dbos = DBOS::new(config);
    let workflow = dbos.register_workflow("run", run).expect("it is the only one");
    dbos.launch().await.expect("the database answers");
    println!("{}", json!({"ready": true}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Some(line) = lines.next_line().await.expect("standard input") {
        let asked: Value = serde_json::from_str(&line).expect("JSON");
        let number = |name: &str| asked[name].as_u64();
        if let Some(orders) = number("single") {
            let mut ms = Vec::new();
            for number in 0..orders {
                ms.push(timed(&workflow, number).await);
            }
            println!("{}", json!({"ms": ms}));
        } else if let (Some(orders), Some(in_flight)) = (number("orders"), number("in_flight")) {
            let most = Duration::from_secs_f64(asked["seconds"].as_f64().expect("seconds"));
            let in_flight = usize::try_from(in_flight).expect("a few");
            println!("{}", many(&workflow, orders, in_flight, most).await);
        } else {
            let order: Order = serde_json::from_value(asked).expect("an order");
            let workflow = workflow.clone();
            tokio::spawn(async move { workflow.run(order).await });
        }
    }
    dbos.shutdown().await;
}
