//! Prints what the embedded endpoints do per second through the AWS SDKs in process: in memory,
//! on disk without fsync, and on disk with. Run it with `--release`.
//!
//! Arguments: messages and items per measurement (default 5000), concurrent callers (default 16).

use std::time::{Duration, Instant};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType,
};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, SendMessageBatchRequestEntry};
use stepwarden_embedded::{Durability, Endpoints, Options};

macro_rules! client {
    ($sdk:ident, $endpoints:expr) => {
        $sdk::Client::from_conf(
            $sdk::Config::builder()
                .behavior_version_latest()
                .region($sdk::config::Region::new("us-east-1"))
                .credentials_provider($sdk::config::Credentials::new("any", "any", None, None, "example"))
                .endpoint_url("http://localhost")
                .http_client($endpoints.http_client())
                .build(),
        )
    };
}

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse().expect("a number"));
    let count: usize = arguments.next().unwrap_or(5000);
    let callers: usize = arguments.next().unwrap_or(16);
    let dir = std::env::temp_dir().join(format!("stepwarden-throughput-{}", std::process::id()));
    for (name, data_dir, durability) in [
        ("memory", None, Durability::Process),
        ("process", Some(dir.join("process")), Durability::Process),
        ("full", Some(dir.join("full")), Durability::Full),
    ] {
        let endpoints = Endpoints::open(&Options { data_dir, durability }).expect("opens");
        println!("{name}:");
        queues(&endpoints, count, callers).await;
        tables(&endpoints, count, callers).await;
    }
    let _ = std::fs::remove_dir_all(&dir);
}

async fn queues(endpoints: &Endpoints, count: usize, callers: usize) {
    let sqs = client!(aws_sdk_sqs, endpoints);
    let created = sqs.create_queue().queue_name("work").send().await.expect("created");
    let url = created.queue_url.expect("has a URL");
    let body = "x".repeat(300);

    for callers in [1, callers] {
        let send = |_| {
            let request = sqs.send_message().queue_url(&url).message_body(&body);
            async move { drop(request.send().await.expect("sent")) }
        };
        measure(&format!("sends, {callers} at a time"), count, callers, send).await;
    }
    let send_batch = |_| {
        let entry = |n: usize| {
            let entry = SendMessageBatchRequestEntry::builder().id(n.to_string());
            entry.message_body(&body).build().expect("complete")
        };
        let request = sqs.send_message_batch().queue_url(&url);
        let request = request.set_entries(Some((0..10).map(entry).collect()));
        async move { drop(request.send().await.expect("sent")) }
    };
    let taken = measure("batches of 10 sent", count / 10, callers, send_batch).await;
    println!("    {:>9.0} messages sent in batches/s", rate(count, taken));

    let backlog = endpoints.queue_stats()[0].visible;
    let receive = |_| {
        let (sqs, url) = (sqs.clone(), url.clone());
        async move {
            let request = sqs.receive_message().queue_url(&url).max_number_of_messages(10);
            let got = request.send().await.expect("received").messages.unwrap_or_default();
            let entry = |(n, message): (usize, &aws_sdk_sqs::types::Message)| {
                let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
                let handle = message.receipt_handle().expect("has a handle");
                entry.receipt_handle(handle).build().expect("complete")
            };
            let entries = got.iter().enumerate().map(entry).collect();
            let delete = sqs.delete_message_batch().queue_url(&url).set_entries(Some(entries));
            drop(delete.send().await.expect("deleted"));
        }
    };
    let taken = measure("receives of 10 and deletes", backlog / 10, callers, receive).await;
    println!("    {:>9.0} messages received and deleted/s", rate(backlog, taken));
}

async fn tables(endpoints: &Endpoints, count: usize, callers: usize) {
    let dynamodb = client!(aws_sdk_dynamodb, endpoints);
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash);
    let attribute = AttributeDefinition::builder().attribute_name("id");
    dynamodb
        .create_table()
        .table_name("tasks")
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(key.build().expect("complete"))
        .attribute_definitions(attribute.attribute_type(ScalarAttributeType::S).build().expect("complete"))
        .send()
        .await
        .expect("created");
    for callers in [1, callers] {
        let put = |n: usize| {
            let put = dynamodb.put_item().table_name("tasks");
            let put = put
                .item("id", AttributeValue::S(format!("{callers}-{n}")))
                .item("body", AttributeValue::S("x".repeat(300)))
                .condition_expression("attribute_not_exists(id)");
            async move { drop(put.send().await.expect("put")) }
        };
        measure(&format!("conditional puts, {callers} at a time"), count, callers, put).await;
    }
    let get = |n: usize| {
        let get = dynamodb.get_item().table_name("tasks");
        let get = get.key("id", AttributeValue::S(format!("1-{n}"))).consistent_read(true);
        async move { drop(get.send().await.expect("got")) }
    };
    measure("gets", count, callers, get).await;
}

/// Runs `work` for 0..count, `callers` at a time, and prints how often per second.
async fn measure<W, F>(name: &str, count: usize, callers: usize, work: W) -> Duration
where
    W: Fn(usize) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let started = Instant::now();
    let mut running = tokio::task::JoinSet::new();
    for n in 0..count {
        if running.len() >= callers {
            running.join_next().await.expect("some run").expect("no panic");
        }
        running.spawn(work(n));
    }
    while let Some(done) = running.join_next().await {
        done.expect("no panic");
    }
    let taken = started.elapsed();
    println!("    {:>9.0} {name}/s", rate(count, taken));
    taken
}

fn rate(count: usize, taken: Duration) -> f64 {
    count as f64 / taken.as_secs_f64()
}
