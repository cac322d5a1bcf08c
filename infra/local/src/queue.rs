//! A queue as a pump uses it: messages in the form in which Lambda passes them to a function.
//!
//! A queue of this process is called without the SDK. That is most of the time of a call, and an order makes fourteen of
//! these calls when it is alone.

use anyhow::{Context, Result};
use aws_lambda_events::event::sqs::{SqsMessage, SqsMessageAttribute};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, Message, MessageAttributeValue, MessageSystemAttributeName};
use serde::Deserialize;
use serde_json::json;
use std::collections::HashMap;
use stepwarden_aws::batch;
use stepwarden_aws::clients::long_poll;
use stepwarden_embedded::{Endpoints, Service};

/// Messages in a batch: the maximum of SQS.
pub const BATCH: usize = 10;
/// How long one receive waits for messages, in seconds: SQS's longest.
const LONG_POLL_S: u32 = 20;
/// Attributes that Lambda passes with every message and that a handler reads.
const ATTRIBUTES: [&str; 3] = ["ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SentTimestamp"];

/// Who answers the calls.
#[derive(Clone)]
pub enum Place {
    /// This process.
    Here(Endpoints),
    /// Whatever the client is for.
    Elsewhere(Client),
}

/// A queue, by its URL.
#[derive(Clone)]
pub struct Queue {
    place: Place,
    url: String,
}

/// Messages that were not deleted.
pub struct Kept {
    /// How many.
    pub count: usize,
    /// Why the first of them was not.
    pub code: String,
}

impl Queue {
    /// The queue at this URL.
    #[must_use]
    pub fn new(place: Place, url: String) -> Self {
        Self { place, url }
    }

    /// The last part of the URL.
    pub(crate) fn name(&self) -> &str {
        self.url.rsplit('/').next().unwrap_or_default()
    }

    /// Waits for messages; none after [`LONG_POLL_S`].
    pub(crate) async fn receive(&self) -> Result<Vec<SqsMessage>> {
        let mut messages = match &self.place {
            Place::Here(endpoints) => receive_here(endpoints, &self.url).await,
            Place::Elsewhere(sqs) => receive_elsewhere(sqs, &self.url).await,
        }
        .with_context(|| format!("receiving from {}", self.url))?;
        let arn = format!("arn:aws:sqs:local:000000000000:{}", self.name());
        for message in &mut messages {
            message.event_source = Some("aws:sqs".into());
            message.event_source_arn = Some(arn.clone());
            message.aws_region = Some("local".into());
        }
        Ok(messages)
    }

    /// Deletes messages by their receipt handles, at most [`BATCH`].
    pub(crate) async fn delete(&self, handles: &[String]) -> Result<Option<Kept>> {
        match &self.place {
            Place::Here(endpoints) => delete_here(endpoints, &self.url, handles).await,
            Place::Elsewhere(sqs) => delete_elsewhere(sqs, &self.url, handles).await,
        }
    }
}

async fn receive_here(endpoints: &Endpoints, url: &str) -> Result<Vec<SqsMessage>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        #[serde(default)]
        messages: Vec<Received>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Received {
        message_id: String,
        receipt_handle: String,
        body: String,
        #[serde(default)]
        attributes: HashMap<String, String>,
        #[serde(default)]
        message_attributes: HashMap<String, Attribute>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Attribute {
        data_type: String,
        string_value: Option<String>,
    }
    let request = json!({
        "QueueUrl": url, "MaxNumberOfMessages": BATCH, "WaitTimeSeconds": LONG_POLL_S,
        "MessageSystemAttributeNames": ATTRIBUTES, "MessageAttributeNames": [batch::ATTRIBUTE],
    });
    let answer: Answer = call(endpoints, "ReceiveMessage", &request).await?;
    let message = |received: Received| {
        let mut message = SqsMessage::default();
        message.message_id = Some(received.message_id);
        message.receipt_handle = Some(received.receipt_handle);
        message.body = Some(received.body);
        message.attributes = received.attributes;
        let attributes = received.message_attributes.into_iter();
        message.message_attributes =
            attributes.map(|(name, value)| (name, attribute(value.data_type, value.string_value))).collect();
        message
    };
    Ok(answer.messages.into_iter().map(message).collect())
}

async fn delete_here(endpoints: &Endpoints, url: &str, handles: &[String]) -> Result<Option<Kept>> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Answer {
        #[serde(default)]
        failed: Vec<Failed>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct Failed {
        code: String,
    }
    let entry = |(n, handle): (usize, &String)| json!({"Id": n.to_string(), "ReceiptHandle": handle});
    let entries: Vec<_> = handles.iter().enumerate().map(entry).collect();
    let request = json!({"QueueUrl": url, "Entries": entries});
    let Answer { failed } = call(endpoints, "DeleteMessageBatch", &request).await?;
    let count = failed.len();
    Ok(failed.into_iter().next().map(|Failed { code }| Kept { count, code }))
}

async fn call<T: for<'a> Deserialize<'a>>(
    endpoints: &Endpoints,
    operation: &str,
    request: &serde_json::Value,
) -> Result<T> {
    let answer = endpoints.call(Service::Sqs, operation, request.to_string().as_bytes()).await?;
    Ok(serde_json::from_slice(&answer)?)
}

async fn receive_elsewhere(sqs: &Client, url: &str) -> Result<Vec<SqsMessage>> {
    let answer = sqs
        .receive_message()
        .queue_url(url)
        .max_number_of_messages(BATCH as i32)
        .wait_time_seconds(LONG_POLL_S as i32)
        .set_message_system_attribute_names(Some(ATTRIBUTES.map(MessageSystemAttributeName::from).to_vec()))
        .message_attribute_names(batch::ATTRIBUTE)
        .customize()
        .config_override(long_poll())
        .send()
        .await?;
    let named = |(name, value): (String, MessageAttributeValue)| (name, attribute(value.data_type, value.string_value));
    let message = |received: Message| {
        let mut message = SqsMessage::default();
        message.message_id = received.message_id;
        message.receipt_handle = received.receipt_handle;
        message.body = received.body;
        let attributes = received.attributes.into_iter().flatten();
        message.attributes = attributes.map(|(name, value)| (name.as_str().to_owned(), value)).collect();
        message.message_attributes = received.message_attributes.into_iter().flatten().map(named).collect();
        message
    };
    Ok(answer.messages.into_iter().flatten().map(message).collect())
}

async fn delete_elsewhere(sqs: &Client, url: &str, handles: &[String]) -> Result<Option<Kept>> {
    let entry = |(n, handle): (usize, &String)| {
        DeleteMessageBatchRequestEntry::builder().id(n.to_string()).receipt_handle(handle).build().ok()
    };
    let entries = handles.iter().enumerate().filter_map(entry).collect();
    let answer = sqs.delete_message_batch().queue_url(url).set_entries(Some(entries)).send().await?;
    let count = answer.failed().len();
    Ok(answer.failed.into_iter().next().map(|failed| Kept { count, code: failed.code }))
}

/// A message attribute with a text; binary ones are not asked for.
fn attribute(data_type: String, text: Option<String>) -> SqsMessageAttribute {
    let mut attribute = SqsMessageAttribute::default();
    attribute.data_type = Some(data_type);
    attribute.string_value = text;
    attribute
}
