//! A pump: what an SQS event source mapping is to Lambda. It receives batches, passes them to a handler as `SqsEvent`s,
//! and deletes all messages except those that the handler names as failed; these are redelivered after their visibility
//! timeout.

use crate::queue_turns::Gate;
use anyhow::Context;
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage, SqsMessageAttribute};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName};
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stepwarden_aws::batch::{self, Response};
use stepwarden_aws::clients::long_poll;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// A function that takes a batch.
pub type Handler = Arc<dyn Fn(SqsEvent) -> BoxFuture<'static, Response> + Send + Sync>;

/// How long one receive waits for messages, in seconds: SQS's longest.
const LONG_POLL_S: i32 = 20;
/// Messages in a batch: the maximum of SQS.
const BATCH: i32 = 10;
/// Attributes that Lambda passes with every message and that a handler reads.
const ATTRIBUTES: [MessageSystemAttributeName; 3] = [
    MessageSystemAttributeName::ApproximateReceiveCount,
    MessageSystemAttributeName::ApproximateFirstReceiveTimestamp,
    MessageSystemAttributeName::SentTimestamp,
];
/// Wait after a batch that was not full while others are in progress, so that the next one is fuller: calls cost time,
/// not messages. A message that comes alone finds the pump waiting for it.
const LINGER: Duration = Duration::from_millis(3);
/// Wait after a receive that failed. It is short, because messages of a restarted system lose time meanwhile: with a
/// second here, an expired step ran again only 1.4 s after the restart.
const RECOVERY: Duration = Duration::from_millis(200);
/// How long batches in progress may still take when the pump is told to stop.
const LAST_BATCHES: Duration = Duration::from_secs(5);

/// A receive that takes longer than this found an empty queue.
const SOON: Duration = Duration::from_millis(20);
/// A queue is behind if a receive returns a full batch that has waited for so long. At a high rate many batches are full.
const BEHIND: Duration = Duration::from_millis(25);
/// Longest wait of new work for work in progress, per batch: new work is slowed down, never starved.
const YIELD: Duration = Duration::from_millis(50);

/// How many pumps are behind with work in progress. New orders wait for these pumps: an order that
/// has begun has deadlines, and one that has not begun has none. On AWS the concurrency of each event source does this.
#[derive(Clone)]
pub struct UnderWay(Arc<watch::Sender<usize>>);

impl Default for UnderWay {
    fn default() -> Self {
        Self(Arc::new(watch::channel(0).0))
    }
}

impl UnderWay {
    fn set(&self, was_behind: &mut bool, is_behind: bool) {
        if *was_behind != is_behind {
            self.0.send_modify(|behind| if is_behind { *behind += 1 } else { *behind -= 1 });
            *was_behind = is_behind;
        }
    }

    /// Waits for a receive, and notes whether the queue is behind. A receive that is not answered soon found nothing.
    async fn watch(
        &self,
        was_behind: &mut bool,
        receive: impl Future<Output = anyhow::Result<Vec<Message>>>,
    ) -> anyhow::Result<Vec<Message>> {
        tokio::pin!(receive);
        let soon = tokio::time::timeout(SOON, &mut receive).await;
        let received = match soon {
            Ok(received) => received,
            Err(_) => {
                self.set(was_behind, false);
                receive.await
            }
        };
        self.set(was_behind, received.as_ref().is_ok_and(|messages| are_behind(messages)));
        received
    }

    async fn wait(&self) {
        let mut behind = self.0.subscribe();
        let _ = tokio::time::timeout(YIELD, behind.wait_for(|behind| *behind == 0)).await;
    }
}

fn are_behind(messages: &[Message]) -> bool {
    let sent_at = |message: &Message| {
        let sent = message.attributes()?.get(&MessageSystemAttributeName::SentTimestamp)?;
        Some(UNIX_EPOCH + Duration::from_millis(sent.parse().ok()?))
    };
    let oldest = messages.iter().filter_map(sent_at).min();
    let waited = oldest.and_then(|sent| SystemTime::now().duration_since(sent).ok());
    messages.len() == BATCH as usize && waited.is_some_and(|waited| waited >= BEHIND)
}

/// What a queue's messages mean for their orders.
#[derive(Clone)]
pub enum Work {
    /// They advance orders that have begun.
    Begun(UnderWay),
    /// They begin orders, so they give way.
    New(UnderWay),
}

/// Where a pump takes its messages from, and where they wait for their turn.
#[derive(Clone)]
pub struct Source {
    /// The client of the endpoint.
    pub sqs: Client,
    /// URL of the queue.
    pub url: String,
    /// Where its batches wait for their turn. Its number of places is what MaximumConcurrency is on Lambda.
    pub gate: Arc<Gate>,
    /// The class of these batches at the gate; 0 is the most urgent one.
    pub class: usize,
    /// Whether these messages give way to others.
    pub work: Work,
}

/// Pumps until `stop` becomes true. While `pause` is true nothing is received: the consumer is down.
pub async fn run(source: Source, handler: Handler, mut pause: watch::Receiver<bool>, mut stop: watch::Receiver<bool>) {
    // At most one batch is received ahead of its turn: more would only age here instead of in the queue.
    let ahead = Arc::new(Semaphore::new(1));
    let mut batches = JoinSet::new();
    let mut was_behind = false;
    let name: Arc<str> = source.url.rsplit('/').next().unwrap_or_default().into();
    loop {
        let mut paused = pause.clone();
        let ready = async {
            loop {
                // A paused queue is not behind: new orders do not give way to it.
                if *pause.borrow()
                    && let Work::Begun(under_way) = &source.work
                {
                    under_way.set(&mut was_behind, false);
                }
                // A pause whose switch is gone can never end, and never begins.
                if pause.wait_for(|paused| !paused).await.is_err() {
                    std::future::pending::<()>().await;
                }
                if let Work::New(under_way) = &source.work {
                    under_way.wait().await;
                }
                let turn = Arc::clone(&ahead).acquire_owned().await.expect("nobody closes it");
                let receive = async {
                    match &source.work {
                        Work::Begun(under_way) => under_way.watch(&mut was_behind, receive(&source)).await,
                        Work::New(_) => receive(&source).await,
                    }
                };
                tokio::select! {
                    biased;
                    // A long poll in progress ends with its consumer.
                    Ok(_) = paused.wait_for(|paused| *paused) => {}
                    received = receive => return (turn, received),
                }
            }
        };
        let (turn, received) = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            ready = ready => ready,
        };
        match received {
            Ok(messages) if messages.is_empty() => {}
            Ok(messages) => {
                let is_full = messages.len() == BATCH as usize;
                let (source, handler, name) = (source.clone(), Arc::clone(&handler), Arc::clone(&name));
                batches.spawn(async move {
                    let place = source.gate.enter(source.class).await;
                    drop(turn);
                    one_batch(&source, &handler, &name, messages).await;
                    drop(place);
                });
                while batches.try_join_next().is_some() {}
                if !is_full && batches.len() > 1 {
                    tokio::time::sleep(LINGER).await;
                }
            }
            Err(error) => {
                tracing::warn!(queue = %name, "receiving failed, retrying: {error:#}");
                tokio::time::sleep(RECOVERY).await;
            }
        }
    }
    let ended = async { while batches.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_BATCHES, ended).await.is_err() {
        tracing::warn!(queue = %name, "stopped with batches in progress; their messages will be redelivered");
    }
}

async fn receive(source: &Source) -> anyhow::Result<Vec<Message>> {
    let answer = source
        .sqs
        .receive_message()
        .queue_url(&source.url)
        .max_number_of_messages(BATCH)
        .wait_time_seconds(LONG_POLL_S)
        .set_message_system_attribute_names(Some(ATTRIBUTES.to_vec()))
        .message_attribute_names(batch::ATTRIBUTE)
        .customize()
        .config_override(long_poll())
        .send()
        .await
        .with_context(|| format!("receiving from {}", source.url))?;
    Ok(answer.messages.unwrap_or_default())
}

async fn one_batch(source: &Source, handler: &Handler, name: &str, messages: Vec<Message>) {
    let handles: Vec<_> =
        messages.iter().map(|message| (message.message_id.clone(), message.receipt_handle.clone())).collect();
    let response = handler(as_event(name, messages)).await;
    let failed = |id: &str| response.batch_item_failures.iter().any(|f| f.item_identifier == id);
    let entries: Vec<_> = handles
        .into_iter()
        .enumerate()
        .filter(|(_, (id, _))| !id.as_deref().is_some_and(failed))
        .filter_map(|(n, (_, handle))| {
            let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
            entry.receipt_handle(handle.unwrap_or_default()).build().ok()
        })
        .collect();
    if entries.is_empty() {
        return;
    }
    let deleted = source.sqs.delete_message_batch().queue_url(&source.url).set_entries(Some(entries)).send().await;
    match deleted {
        Ok(answer) => {
            if let Some(first) = answer.failed().first() {
                let (count, code) = (answer.failed().len(), first.code());
                tracing::warn!(
                    queue = name,
                    "{count} handled messages could not be deleted and will be redelivered: {code}"
                );
            }
        }
        Err(error) => {
            let error = aws_sdk_sqs::error::DisplayErrorContext(error);
            tracing::warn!(queue = name, "deleting failed, so handled messages will be redelivered: {error}");
        }
    }
}

/// The batch as Lambda would pass it to a function.
fn as_event(name: &str, messages: Vec<Message>) -> SqsEvent {
    let record = |message: Message| {
        let mut record = SqsMessage::default();
        record.message_id = message.message_id;
        record.receipt_handle = message.receipt_handle;
        record.body = message.body;
        record.md5_of_body = message.md5_of_body;
        record.md5_of_message_attributes = message.md5_of_message_attributes;
        let attributes = message.attributes.into_iter().flatten();
        record.attributes = attributes.map(|(name, value)| (name.as_str().to_owned(), value)).collect();
        record.message_attributes = message.message_attributes.into_iter().flatten().map(attribute).collect();
        record.event_source = Some("aws:sqs".into());
        record.event_source_arn = Some(format!("arn:aws:sqs:local:000000000000:{name}"));
        record.aws_region = Some("local".into());
        record
    };
    let mut event = SqsEvent::default();
    event.records = messages.into_iter().map(record).collect();
    event
}

/// A message attribute with a text; binary ones are not asked for.
fn attribute((name, value): (String, MessageAttributeValue)) -> (String, SqsMessageAttribute) {
    let mut attribute = SqsMessageAttribute::default();
    attribute.data_type = Some(value.data_type);
    attribute.string_value = value.string_value;
    (name, attribute)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_behind_if_a_full_batch_has_waited() {
        let batch = |count: usize, waited: Duration| -> Vec<Message> {
            let sent = (SystemTime::now() - waited).duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
            let message = Message::builder().attributes(MessageSystemAttributeName::SentTimestamp, sent).build();
            vec![message; count]
        };
        let long = BEHIND * 40;
        assert!(are_behind(&batch(10, long)));
        assert!(!are_behind(&batch(9, long)), "that is all there is");
        assert!(!are_behind(&vec![Message::builder().build(); 10]), "without a time of sending, its age is unknown");
        // The clock may go back.
        let ahead = SystemTime::now() + Duration::from_secs(9);
        let sent = ahead.duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
        let message = Message::builder().attributes(MessageSystemAttributeName::SentTimestamp, sent).build();
        assert!(!are_behind(&vec![message; 10]));
        let mut mixed = vec![batch(1, Duration::ZERO).remove(0); 9];
        mixed.extend(batch(1, long));
        assert!(are_behind(&mixed), "the oldest counts");
    }
}
