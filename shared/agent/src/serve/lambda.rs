//! The agents as a Lambda function behind an event source mapping of SQS.

use super::ServeError;
use super::queues::Queues;
use crate::Agent;
use crate::message::Request;
use lambda_runtime::{LambdaEvent, service_fn};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::Arc;
use tokio::task::JoinSet;

/// A batch of messages.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Batch {
    records: Vec<Record>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    message_id: String,
    body: String,
    #[serde(default)]
    attributes: HashMap<String, String>,
}

/// Answers batches until the runtime ends.
pub(super) async fn run(agents: Vec<Agent>, queues: Queues) -> Result<(), ServeError> {
    let (agents, queues) = (Arc::new(agents), Arc::new(queues));
    let answer = |event: LambdaEvent<Batch>| {
        let (agents, queues) = (Arc::clone(&agents), Arc::clone(&queues));
        async move { Ok::<_, lambda_runtime::Error>(batch(&agents, &queues, event.payload).await) }
    };
    lambda_runtime::run(service_fn(answer)).await.map_err(|e| ServeError::Lambda(e.to_string()))
}

/// Answers the messages of a batch, all at once. Says which to deliver again.
async fn batch(agents: &Arc<Vec<Agent>>, queues: &Arc<Queues>, batch: Batch) -> Value {
    let mut work = JoinSet::new();
    for record in batch.records {
        let (agents, queues) = (Arc::clone(agents), Arc::clone(queues));
        work.spawn(async move {
            let Record { message_id, body, attributes } = record;
            let deliveries =
                attributes.get("ApproximateReceiveCount").and_then(|count| count.parse().ok()).unwrap_or(1);
            let error = answer(&agents, &queues, &body, deliveries).await.err()?;
            tracing::warn!(message.id = message_id, error, "a message will be delivered again");
            Some(json!({"itemIdentifier": message_id}))
        });
    }
    json!({"batchItemFailures": work.join_all().await.into_iter().flatten().collect::<Vec<_>>()})
}

async fn answer(agents: &[Agent], queues: &Queues, body: &str, deliveries: u32) -> Result<(), String> {
    let request: Request = serde_json::from_str(body).map_err(|e| format!("not a request: {e}"))?;
    let agent = agents.iter().find(|agent| agent.name() == request.agent);
    let agent = agent.ok_or_else(|| format!("there is no agent `{}` here", request.agent))?;
    let Some(begun) = agent.begin(&request).await else { return Ok(()) };
    match agent.reply(&begun, deliveries).await {
        Some(reply) => queues.reply(&request.tenant, &reply).await,
        None => Ok(()),
    }
}
