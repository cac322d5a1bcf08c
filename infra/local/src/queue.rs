//! A queue as a pump uses it: messages in the form in which Lambda passes them to a function.

use crate::system::VISIBILITY_TIMEOUT_S;
use anyhow::{Context, Result};
use aws_lambda_events::event::sqs::{SqsMessage, SqsMessageAttribute};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::operation::delete_message_batch::DeleteMessageBatchInput;
use aws_sdk_sqs::operation::receive_message::ReceiveMessageInput;
use aws_sdk_sqs::types::{
    ChangeMessageVisibilityBatchRequestEntry, DeleteMessageBatchRequestEntry, Message, MessageAttributeValue,
    MessageSystemAttributeName,
};
use stepwarden_aws::sent::{Caller, Sent};
use stepwarden_aws::{Clients, batch};

/// Messages in a batch: the maximum of SQS.
pub const BATCH: usize = 10;
/// How long one receive waits for messages, in seconds: SQS's longest.
const LONG_POLL_S: i32 = 20;
/// Attributes that Lambda passes with every message and that a handler reads.
const ATTRIBUTES: [&str; 3] = ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SentTimestamp"];

/// How queues are called.
#[derive(Clone)]
pub struct Queues {
    receive: Caller<Client>,
    delete: Caller<Client>,
}

impl Queues {
    /// The queues that these clients reach.
    #[must_use]
    pub fn new(clients: &Clients) -> Self {
        Self { receive: clients.long_polls(), delete: clients.sqs.clone() }
    }

    /// The queue at this URL.
    #[must_use]
    pub fn at(&self, url: String) -> Queue {
        Queue { queues: self.clone(), url }
    }
}

/// A queue, by its URL.
#[derive(Clone)]
pub struct Queue {
    queues: Queues,
    url: String,
}

/// Messages that were not deleted, or not renewed.
pub struct Kept {
    /// How many.
    pub count: usize,
    /// Why the first of them was not.
    pub code: String,
}

impl Queue {
    /// The last part of the URL.
    pub(crate) fn name(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }

    /// Waits for messages; none after [`LONG_POLL_S`].
    pub(crate) async fn receive(&self) -> Result<Vec<SqsMessage>> {
        let receive = ReceiveMessageInput::builder()
            .queue_url(&self.url)
            .max_number_of_messages(BATCH as i32)
            .wait_time_seconds(LONG_POLL_S)
            .set_message_system_attribute_names(Some(ATTRIBUTES.map(MessageSystemAttributeName::from).to_vec()))
            .message_attribute_names(batch::ATTRIBUTE);
        let answer = receive.sent(&self.queues.receive).await;
        let answer = answer.with_context(|| format!("receiving from {}", self.url))?;
        let arn = format!("arn:aws:sqs:local:000000000000:{}", self.name());
        Ok(answer.messages.into_iter().flatten().map(|received| message(received, &arn)).collect())
    }

    /// Deletes messages by their receipt handles, at most [`BATCH`].
    pub(crate) async fn delete(&self, handles: &[String]) -> Result<Option<Kept>> {
        let entry = |(n, handle): (usize, &String)| {
            DeleteMessageBatchRequestEntry::builder().id(n.to_string()).receipt_handle(handle).build().ok()
        };
        let entries = handles.iter().enumerate().filter_map(entry).collect();
        let delete = DeleteMessageBatchInput::builder().queue_url(&self.url).set_entries(Some(entries));
        let answer = delete.sent(&self.queues.delete).await?;
        let count = answer.failed().len();
        Ok(answer.failed.into_iter().next().map(|failed| Kept { count, code: failed.code }))
    }

    /// Hides messages for another [`VISIBILITY_TIMEOUT_S`] by their receipt handles, at most [`BATCH`].
    pub(crate) async fn renew(&self, handles: &[String]) -> Result<Option<Kept>> {
        let entry = |(n, handle): (usize, &String)| {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder().id(n.to_string()).receipt_handle(handle);
            entry.visibility_timeout(VISIBILITY_TIMEOUT_S as i32).build().ok()
        };
        let entries = handles.iter().enumerate().filter_map(entry).collect();
        let renew =
            self.queues.delete.change_message_visibility_batch().queue_url(&self.url).set_entries(Some(entries));
        let answer = renew.send().await.context("renewing messages")?;
        let count = answer.failed().len();
        Ok(answer.failed.into_iter().next().map(|failed| Kept { count, code: failed.code }))
    }
}

fn message(received: Message, arn: &str) -> SqsMessage {
    let mut message = SqsMessage::default();
    message.message_id = received.message_id;
    message.receipt_handle = received.receipt_handle;
    message.body = received.body;
    let attributes = received.attributes.into_iter().flatten();
    message.attributes = attributes.map(|(name, value)| (name.as_str().to_owned(), value)).collect();
    let attributes = received.message_attributes.into_iter().flatten();
    message.message_attributes = attributes.map(|(name, value)| (name, attribute(value))).collect();
    message.event_source = Some("aws:sqs".into());
    message.event_source_arn = Some(arn.to_owned());
    message.aws_region = Some("local".into());
    message
}

/// A message attribute with a text; binary ones are not asked for.
fn attribute(value: MessageAttributeValue) -> SqsMessageAttribute {
    let mut attribute = SqsMessageAttribute::default();
    attribute.data_type = Some(value.data_type);
    attribute.string_value = value.string_value;
    attribute
}
