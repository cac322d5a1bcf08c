//! SendMessage and SendMessageBatch: a message is checked, made visible, stored, and then answered.

use std::sync::Arc;

use serde::Serialize;
use uuid::Uuid;

use super::backlog::Entry;
use super::error::Error;
use super::message::{self, MESSAGE_MAX_BYTES, size_bytes};
use super::queue::Queue;
use super::wire::{Batch, BatchOutcome, FailedEntry, SendBody, bounded};
use super::{DELAY_MAX_S, Sqs, parse};
use crate::answer::Answer;
use crate::store::{Attributes, Content, NewMessage, Write};

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Sent {
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    message_id: Uuid,
    #[serde(rename = "MD5OfMessageBody")]
    body_md5: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    attributes_md5: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    system_attributes_md5: Option<String>,
}

impl Sqs {
    pub(super) async fn send(&self, body: &[u8]) -> Result<Answer, Error> {
        let message: SendBody = parse(body)?;
        let queue = self.queue(&message.queue_url)?;
        let (new, sent) = self.accept(&queue, message, None)?;
        self.keep(&queue, vec![new]).await?;
        Ok(Answer::ok(&sent))
    }

    pub(super) async fn send_batch(&self, body: &[u8]) -> Result<Answer, Error> {
        let batch: Batch<SendBody> = parse(body)?;
        let queue = self.queue(&batch.queue_url)?;
        batch.check(|entry| &entry.id)?;
        let bytes = batch.entries.iter().map(|entry| entry.size_bytes()).sum();
        if bytes > MESSAGE_MAX_BYTES {
            return Err(Error::batch_too_long(bytes));
        }
        let mut outcome = BatchOutcome { successful: Vec::new(), failed: Vec::new() };
        let mut new = Vec::new();
        for mut entry in batch.entries {
            let id = std::mem::take(&mut entry.id);
            match self.accept(&queue, entry, Some(id.clone())) {
                Ok((message, sent)) => {
                    new.push(message);
                    outcome.successful.push(sent);
                }
                Err(error) => outcome.failed.push(FailedEntry::new(id, error)),
            }
        }
        self.keep(&queue, new).await?;
        Ok(Answer::ok(&outcome))
    }

    /// Checks and creates a message. It is not stored yet.
    fn accept(&self, queue: &Queue, message: SendBody, id: Option<String>) -> Result<(NewMessage, Sent), Error> {
        let (delay_s, max_bytes) = {
            let state = queue.lock();
            (state.attributes.delay_s, state.attributes.message_max_bytes)
        };
        let bytes = message.size_bytes();
        if bytes > max_bytes {
            return Err(Error::parameter(
                "MessageBody",
                format!("the message must be at most {max_bytes} bytes, it has {bytes}"),
            ));
        }
        message::check_body(&message.message_body)?;
        if message.message_deduplication_id.is_some() {
            return Err(Error::parameter(
                "MessageDeduplicationId",
                "The request includes a parameter that is not valid for this queue type",
            ));
        }
        let group = message.message_group_id;
        if let Some(group) = &group {
            message::check_group(group)?;
        }
        let attributes = message.message_attributes.unwrap_or_default();
        message::check_attributes(&attributes)?;
        let delay_s = bounded("DelaySeconds", message.delay_seconds.unwrap_or(delay_s), 0, DELAY_MAX_S)?;
        let system = message.message_system_attributes.unwrap_or_default();
        message::check_system_attributes(&system)?;
        let system_attributes_md5 = message::attributes_md5(system.iter());
        let trace = system.into_values().next().and_then(|attribute| attribute.string_value);

        let now_ms = self.clock.now_ms();
        let content = Content::stored(
            self.new_row(),
            Uuid::new_v4(),
            message.message_body,
            attributes,
            group.map(Arc::from),
            trace,
            now_ms,
        );
        let sent = Sent {
            id,
            message_id: content.id,
            body_md5: content.body_md5.clone(),
            attributes_md5: message::attributes_md5(content.attributes.iter()),
            system_attributes_md5,
        };
        let content = Arc::new(content);
        Ok((NewMessage { content, visible_ms: now_ms + delay_s * 1000 }, sent))
    }

    /// Makes messages visible and stores them. Receivers need not wait for the file: the sender does, so a message that a
    /// crash loses was never answered, and what came of it is what comes of a send whose answer is lost.
    async fn keep(&self, queue: &Queue, messages: Vec<NewMessage>) -> Result<(), Error> {
        if messages.is_empty() {
            return Ok(());
        }
        let entries: Vec<_> =
            messages.iter().map(|new| (Entry::new(Arc::clone(&new.content)), new.visible_ms)).collect();
        let rows: Vec<_> = messages.iter().map(|new| new.content.row).collect();
        // In this order: a delete must find the message in the store's queue of writes, or behind it.
        let stored = self.store.write(Write::Messages { queue: queue.id, messages }, || {});
        self.counters.count(|counts| counts.messages_sent += rows.len() as u64);
        queue.push(entries, self.clock.now_ms());
        if let Err(error) = stored.await {
            queue.lock().backlog.forget(&rows);
            return Err(error.into());
        }
        Ok(())
    }
}

impl SendBody {
    fn size_bytes(&self) -> usize {
        let none = Attributes::new();
        size_bytes(&self.message_body, self.message_attributes.as_ref().unwrap_or(&none))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use serde_json::{Value, json};

    use crate::dispatch::Caller;
    use crate::sqs::backlog::Backlog;
    use crate::{Endpoints, Options};

    async fn call(endpoints: &Endpoints, operation: &str, request: Value) -> Result<Value, String> {
        let caller = Caller { endpoint: "", consumer: None };
        let answer = endpoints.0.sqs.call(operation, caller, request.to_string().as_bytes()).await;
        let json: Value = serde_json::from_slice(&answer.body).unwrap();
        if answer.is_error() { Err(json.to_string()) } else { Ok(json) }
    }

    // Its sender hears of an error and sends it again, so it must not stay as a second message.
    #[tokio::test]
    async fn a_message_that_cannot_be_stored_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let endpoints = Endpoints::open(&Options { data_dir: Some(dir.path().into()), ..Options::default() }).unwrap();
        call(&endpoints, "CreateQueue", json!({"QueueName": "work"})).await.unwrap();
        let message = json!({"QueueUrl": "work", "MessageBody": "x"});
        call(&endpoints, "SendMessage", message.clone()).await.unwrap();
        // The next message gets the same row, which the file has already.
        let sqs = &endpoints.0.sqs;
        sqs.named("work").unwrap().lock().backlog = Backlog::default();
        sqs.next_row.fetch_sub(1, Ordering::Relaxed);
        let refused = call(&endpoints, "SendMessage", message.clone()).await.unwrap_err();
        assert!(refused.contains("could not be written"), "{refused}");
        assert_eq!(endpoints.queue_stats()[0].visible, 0);
        call(&endpoints, "SendMessage", message).await.unwrap();
        assert_eq!(endpoints.queue_stats()[0].visible, 1);
    }
}
