//! One call stores a unit of work; a worker retries it. In memory, with nothing to install.

use retry_queue::{Answer, CancellationToken, Policy, RetryQueue, RetryWorker, Settings, Strategies, When};
use serde_json::json;
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, DynamoStore, schema};
use stepwarden_embedded::Endpoints;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let endpoints = Endpoints::open(&Default::default())?;
    let clients = Clients::embedded(endpoints.http_client());
    let names =
        [("ORDERS_TABLE", "params"), ("STATE_TABLE", "tasks"), ("QUEUE_PREFIX", "q-"), ("EVENT_BUS", "default")];
    let config = Config::from_lookup(|name| names.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into()))?;
    schema::create(&clients, &config, "q-", 30).await?;

    let when = When::Intervals(vec![jiff::SignedDuration::from_millis(300); 5]);
    let settings = Settings { policy: Policy { when, ..Policy::default() }, ..Settings::default() };
    let queue = RetryQueue::new(Arc::new(DynamoStore::new(clients.dynamodb, &config)), settings);
    queue.enqueue("send-mail", json!({ "to": "ann@example.com" })).await?;

    let done = CancellationToken::new();
    let stop = done.clone();
    let worker = RetryWorker::new(&queue, Strategies::default()).on("send-mail", move |job| {
        let stop = stop.clone();
        async move {
            println!("attempt {} to write to {}", job.attempt, job.params["to"]);
            if job.attempt < 3 {
                return Ok(Answer::Failure("the mail server is busy".into()));
            }
            stop.cancel();
            Ok(Answer::Success)
        }
    });
    worker.run(&done).await;
    Ok(())
}
