//! The queues in SQS, and the process that receives from them.

use super::held::{Held, VISIBLE_AFTER};
use super::presence::Presence;
use super::{Place, ServeError};
use crate::Agent;
use crate::agent::Begun;
use crate::message::Reply;
use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_sqs::error::DisplayErrorContext;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::task::JoinSet;

/// Time for work in progress when the program is told to end. Unfinished work is then handed back.
const GRACE: Duration = Duration::from_secs(4);
/// Time to hand it back. Both together are less than `stepwarden up` and others that stop programs allow.
const LAST: Duration = Duration::from_secs(1);
/// Wait after a failed call of SQS.
const PAUSE: Duration = Duration::from_secs(1);
/// Wait after the first failed receive; it doubles with each further one up to [`PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest wait for messages, in seconds; SQS allows no more.
const POLL_S: i32 = 20;
/// Timeouts of one try and of a whole call.
const CALL: [Duration; 2] = [Duration::from_secs(25), Duration::from_secs(30)];
/// Most messages of one call; SQS allows no more.
const MOST: usize = 10;

/// The client of SQS, with the queue URLs known so far.
pub(super) struct Queues {
    place: Place,
    sqs: aws_sdk_sqs::Client,
    urls: Mutex<HashMap<String, String>>,
    held: Held,
    presence: Presence,
}

async fn client() -> aws_sdk_sqs::Client {
    let [attempt, all] = CALL;
    let timeouts = TimeoutConfig::builder().operation_attempt_timeout(attempt).operation_timeout(all).build();
    let config = aws_config::defaults(BehaviorVersion::latest()).timeout_config(timeouts).load().await;
    aws_sdk_sqs::Client::new(&config)
}

impl Queues {
    pub(super) async fn from_env(place: Place) -> Self {
        let (held, presence) = (Held::default(), Presence::from_env());
        Self { place, sqs: client().await, urls: Mutex::default(), held, presence }
    }

    /// The URL of a queue.
    async fn url(&self, name: String) -> Result<String, String> {
        let mut urls = self.urls.lock().await;
        if let Some(url) = urls.get(&name) {
            return Ok(url.clone());
        }
        let found = self.sqs.get_queue_url().queue_name(&name).send().await;
        let found = found.map_err(|e| format!("the queue {name} cannot be found: {}", DisplayErrorContext(e)))?;
        let url = found.queue_url.unwrap_or_default();
        urls.insert(name, url.clone());
        Ok(url)
    }

    /// Sends a reply to the system.
    pub(super) async fn reply(&self, tenant: &str, reply: &Reply) -> Result<(), String> {
        let url = self.url(self.place.replies()).await?;
        let body = serde_json::to_string(reply).map_err(|e| e.to_string())?;
        let sent =
            self.sqs.send_message().queue_url(url).message_group_id(group(tenant)).message_body(body).send().await;
        sent.map(drop).map_err(|e| format!("the reply was not sent: {}", DisplayErrorContext(e)))
    }

    async fn receive(&self, agent: &str, most: usize) -> Result<Vec<Message>, String> {
        let url = self.url(self.place.requests(agent)).await?;
        let named = self.presence.header().await;
        let receive = self.sqs.receive_message().queue_url(url).wait_time_seconds(POLL_S);
        let receive = receive.visibility_timeout(i32::try_from(VISIBLE_AFTER.as_secs()).unwrap_or(i32::MAX));
        let receive = receive.message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount);
        let receive = receive.max_number_of_messages(i32::try_from(most.clamp(1, MOST)).unwrap_or(1)).customize();
        // The caller retries, sooner than the client would if the endpoint was restarted.
        let once = aws_sdk_sqs::Config::builder().retry_config(RetryConfig::disabled());
        let receive = receive.config_override(once);
        let received = match named {
            Some((name, value)) => {
                let named =
                    receive.mutate_request(move |request| drop(request.headers_mut().insert(name, value.clone())));
                named.send().await
            }
            None => receive.send().await,
        };
        let received = received.map_err(|e| format!("no requests can be received: {}", DisplayErrorContext(e)))?;
        Ok(received.messages.unwrap_or_default())
    }

    /// Answers one message, and then deletes it, so that it is redelivered if the program dies before. With heartbeats
    /// it is deleted first, because SQS can hide a message for at most 12 hours; then CompleteBy reveals a program that
    /// died.
    async fn answer(&self, agent: &Agent, message: Message, ends: watch::Receiver<bool>) -> Result<(), String> {
        let attributes = message.attributes.unwrap_or_default();
        let deliveries = attributes.get(&MessageSystemAttributeName::ApproximateReceiveCount);
        let deliveries = deliveries.and_then(|count| count.parse().ok()).unwrap_or(1);
        let request = serde_json::from_str(message.body.as_deref().unwrap_or_default());
        let request: crate::message::Request =
            request.map_err(|e| format!("left a message in the queue, not a request: {e}"))?;
        let receipt = message.receipt_handle.unwrap_or_default();
        let Some(begun) = agent.begin(&request).await else { return self.delete(agent, receipt).await };
        let queue = self.url(self.place.requests(agent.name())).await?;
        let mut holding = Some(self.held.hold(queue, receipt.clone(), begun.complete_by()));
        let mut is_gone = false;
        let reply = {
            let mut replying = std::pin::pin!(reply_or_hand_back(agent, &begun, deliveries, ends));
            loop {
                tokio::select! {
                    reply = &mut replying => break reply,
                    () = begun.known(), if !is_gone => {
                        is_gone = self.delete(agent, receipt.clone()).await.is_ok();
                        holding = holding.filter(|_| !is_gone);
                    }
                }
            }
        };
        if let Some(reply) = reply {
            let mut sent = self.reply(&request.tenant, &reply).await;
            // Nothing redelivers the deleted request.
            while let Err(error) = &sent
                && is_gone
                && begun.stays().await
            {
                tracing::warn!(agent = agent.name(), error, "tries again in a second");
                tokio::time::sleep(PAUSE).await;
                sent = self.reply(&request.tenant, &reply).await;
            }
            sent?;
        }
        // Only now, because a renewal may run at the same time as the deletion.
        let deleted = if is_gone { Ok(()) } else { self.delete(agent, receipt).await };
        drop(holding);
        deleted
    }

    async fn delete(&self, agent: &Agent, receipt: String) -> Result<(), String> {
        let url = self.url(self.place.requests(agent.name())).await?;
        let deleted = self.sqs.delete_message().queue_url(url).receipt_handle(receipt).send().await;
        deleted.map(drop).map_err(|e| format!("an answered request was not deleted: {}", DisplayErrorContext(e)))
    }
}

/// The agent's reply. Once the program `ends`, drops the function and hands the work back.
async fn reply_or_hand_back(
    agent: &Agent,
    begun: &Begun<'_>,
    deliveries: u32,
    mut ends: watch::Receiver<bool>,
) -> Option<Reply> {
    tokio::select! {
        biased;
        reply = agent.reply(begun, deliveries) => reply,
        Ok(_) = ends.wait_for(|ends| *ends) => Some(begun.handed_back()),
    }
}

/// The tenant as a message group, so that no tenant's backlog holds up another's.
fn group(tenant: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    let group: String = tenant.chars().map(plain).take(128).collect();
    if group.is_empty() { "_".into() } else { group }
}

/// Serves the agents until the program is told to end.
pub(super) async fn run(agents: Vec<Agent>, queues: Queues) -> Result<(), ServeError> {
    use tokio::signal::unix::{SignalKind, signal};
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let (stop, stopped) = watch::channel(false);
    queues.held.renewed_by(client())?;
    let (end, ends) = watch::channel(false);
    let queues = Arc::new(queues);
    let mut all = JoinSet::new();
    for agent in agents {
        tracing::info!(agent = agent.name(), stack = queues.place.stack, "serves requests");
        all.spawn(one(Arc::new(agent), Arc::clone(&queues), [stopped.clone(), ends.clone()]));
    }
    tokio::select! { _ = terminate.recv() => {}, _ = interrupt.recv() => {} }
    stop.send_replace(true);
    if tokio::time::timeout(GRACE, all_end(&mut all)).await.is_err() {
        end.send_replace(true);
        let _ = tokio::time::timeout(LAST, all_end(&mut all)).await;
    }
    Ok(())
}

async fn all_end(all: &mut JoinSet<()>) {
    while all.join_next().await.is_some() {}
}

/// Serves one agent; ends when all that it began has ended.
async fn one(agent: Arc<Agent>, queues: Arc<Queues>, [mut stopped, ends]: [watch::Receiver<bool>; 2]) {
    let places = Arc::new(Semaphore::new(agent.at_once));
    let mut work = JoinSet::new();
    let mut pause = FIRST_PAUSE;
    loop {
        let received = tokio::select! {
            biased;
            _ = stopped.wait_for(|stop| *stop) => break,
            received = async {
                // Receives only what it can begin at once; other requests wait in the queue.
                let place = Arc::clone(&places).acquire_owned().await;
                let free = places.available_permits() + 1;
                drop(place);
                queues.receive(agent.name(), free).await
            } => received,
        };
        match received {
            Ok(messages) => {
                pause = FIRST_PAUSE;
                for message in messages {
                    let (agent, queues, ends) = (Arc::clone(&agent), Arc::clone(&queues), ends.clone());
                    let place = Arc::clone(&places).acquire_owned().await;
                    work.spawn(async move {
                        if let Err(error) = queues.answer(&agent, message, ends).await {
                            tracing::warn!(agent = agent.name(), error, "a request will be delivered again");
                        }
                        drop(place);
                    });
                }
            }
            Err(error) => {
                tracing::warn!(agent = agent.name(), error, "tries again in {pause:?}");
                tokio::select! { () = tokio::time::sleep(pause) => {}, _ = stopped.wait_for(|stop| *stop) => break }
                pause = (pause * 2).min(PAUSE);
            }
        }
        while work.try_join_next().is_some() {}
    }
    work.join_all().await;
}

#[cfg(test)]
mod tests {
    use super::{group, reply_or_hand_back};
    use crate::{Agent, AgentError, Call};
    use serde_json::{Value, json};
    use std::time::Duration;
    use tokio::sync::watch;

    #[test]
    fn a_tenant_is_a_message_group() {
        for (tenant, expected) in [("acme", "acme"), ("a b/ü", "a_b__"), ("", "_"), ("A-1_z", "A-1_z")] {
            assert_eq!(group(tenant), expected);
        }
        assert_eq!(group(&"x".repeat(200)).len(), 128);
    }

    /// The reply of an agent that needs `works`, in a program that ends after 50 ms.
    async fn stopped(works: Duration) -> Value {
        let work = move |_: Call<Value>| async move {
            tokio::time::sleep(works).await;
            Ok::<_, AgentError>(json!({"n": 1}))
        };
        let agent = Agent::new("x").step("a", work);
        let request = json!({
            "task_id": "ord_1", "step": "a", "agent": "x", "attempt": 3, "direction": "do", "idempotency_key": "k",
            "complete_by": jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1), "tenant": "t",
            "calls": {"attempts": 1, "base": "PT1S", "cap": "PT1S"},
        });
        let request = serde_json::from_value(request).unwrap();
        let (end, ends) = watch::channel(false);
        let begun = agent.begin(&request).await.unwrap();
        let (reply, ()) = tokio::join!(reply_or_hand_back(&agent, &begun, 1, ends), async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            end.send_replace(true);
        });
        serde_json::to_value(reply.unwrap()).unwrap()
    }

    // L6: who stops an agent takes no attempt from its steps, and what they may have done is not forgotten.
    #[tokio::test]
    async fn a_program_that_ends_hands_back_what_it_has_not_done() {
        let reply = stopped(Duration::from_secs(3000)).await;
        assert_eq!(
            (&reply["outcome"], &reply["attempt"], &reply["unsure"]),
            (&json!("deferred"), &json!(3), &json!(true))
        );
        assert_eq!(reply["retry_after_ms"], 2000);
        assert_eq!(stopped(Duration::ZERO).await["outcome"], "done");
    }
}
