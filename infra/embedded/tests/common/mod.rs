//! Clients of the embedded endpoints, as the local program builds them.
#![allow(dead_code)]

use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeDefinition, AttributeValue, BillingMode, CancellationReason, KeySchemaElement, KeyType,
    ScalarAttributeType,
};
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use stepwarden_embedded::{Durability, Endpoints, Options};

pub fn memory() -> Endpoints {
    Endpoints::open(&Options::default()).unwrap()
}

pub fn on_disk(dir: &std::path::Path) -> Endpoints {
    let options = Options { data_dir: Some(dir.into()), durability: Durability::Process };
    Endpoints::open(&options).unwrap()
}

macro_rules! config {
    ($sdk:ident, $endpoints:expr) => {
        $sdk::Config::builder()
            .behavior_version_latest()
            .region($sdk::config::Region::new("us-east-1"))
            .credentials_provider($sdk::config::Credentials::new("any", "any", None, None, "test"))
            .endpoint_url("http://localhost:8000")
            .retry_config($sdk::config::retry::RetryConfig::disabled())
            .http_client($endpoints.http_client())
            .build()
    };
}

/// Without retries, so that a test sees each error.
pub fn sqs(endpoints: &Endpoints) -> aws_sdk_sqs::Client {
    aws_sdk_sqs::Client::from_conf(config!(aws_sdk_sqs, endpoints))
}

/// Without retries.
pub fn dynamodb(endpoints: &Endpoints) -> aws_sdk_dynamodb::Client {
    aws_sdk_dynamodb::Client::from_conf(config!(aws_sdk_dynamodb, endpoints))
}

/// Without retries.
pub fn eventbridge(endpoints: &Endpoints) -> aws_sdk_eventbridge::Client {
    aws_sdk_eventbridge::Client::from_conf(config!(aws_sdk_eventbridge, endpoints))
}

/// A client without retries, and the new table `tasks`, whose key is the text `id`.
pub async fn tasks(endpoints: &Endpoints) -> aws_sdk_dynamodb::Client {
    let client = dynamodb(endpoints);
    client
        .create_table()
        .table_name("tasks")
        .billing_mode(BillingMode::PayPerRequest)
        .key_schema(KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build().unwrap())
        .attribute_definitions(
            AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build().unwrap(),
        )
        .send()
        .await
        .unwrap();
    client
}

pub fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.into())
}

/// Why a transaction was canceled, by item.
pub fn reasons(error: TransactWriteItemsError) -> Vec<CancellationReason> {
    match error {
        TransactWriteItemsError::TransactionCanceledException(canceled) => canceled.cancellation_reasons().to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Creates a queue and returns its URL.
pub async fn queue(sqs: &aws_sdk_sqs::Client, name: &str, attributes: &[(QueueAttributeName, &str)]) -> String {
    let mut request = sqs.create_queue().queue_name(name);
    for (name, value) in attributes {
        request = request.attributes(name.clone(), *value);
    }
    request.send().await.unwrap().queue_url.unwrap()
}

/// These endpoints with a client and the URL of a new queue `work`.
pub async fn opened(
    endpoints: Endpoints,
    attributes: &[(QueueAttributeName, &str)],
) -> (Endpoints, aws_sdk_sqs::Client, String) {
    let sqs = sqs(&endpoints);
    let url = queue(&sqs, "work", attributes).await;
    (endpoints, sqs, url)
}

pub async fn send(sqs: &aws_sdk_sqs::Client, url: &str, body: &str) {
    sqs.send_message().queue_url(url).message_body(body).send().await.unwrap();
}

/// One short poll for up to ten messages.
pub async fn receive(sqs: &aws_sdk_sqs::Client, url: &str) -> Vec<aws_sdk_sqs::types::Message> {
    let request = sqs.receive_message().queue_url(url).max_number_of_messages(10);
    let request =
        request.wait_time_seconds(0).message_system_attribute_names("All".into()).message_attribute_names("All");
    request.send().await.unwrap().messages.unwrap_or_default()
}

/// How often it was received.
pub fn receives(message: &aws_sdk_sqs::types::Message) -> &str {
    &message.attributes().unwrap()[&MessageSystemAttributeName::ApproximateReceiveCount]
}

pub fn bodies(messages: &[aws_sdk_sqs::types::Message]) -> Vec<&str> {
    messages.iter().map(|message| message.body.as_deref().unwrap()).collect()
}
