//! Tables and queues as template.yaml creates them, for endpoints without a deployed template: the local system, an
//! emulator, the contract tests. Whatever already exists is left unchanged.

use crate::clients::Clients;
use crate::config::{Config, queue};
use crate::sdk_error::unavailable;
use crate::state_store::{ATTENTION_INDEX, DUE_INDEX};
use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, Projection, ProjectionType,
    ScalarAttributeType, TimeToLiveSpecification,
};
use aws_sdk_sqs::types::QueueAttributeName as Attribute;
use shared::ports::Error;
use std::collections::HashMap;

/// Receives of a message before it goes to the dead-letter queue.
pub const MAX_RECEIVES: u32 = 5;

/// A queue that a function consumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumed {
    /// Its name.
    pub name: String,
    /// The queue whose dead-letter queue it shares: itself, or the queue of the normal class.
    pub of: String,
}

/// Every queue that a function consumes.
#[must_use]
pub fn consumed(config: &Config) -> Vec<Consumed> {
    let own = |name: &str| Consumed { name: name.to_owned(), of: name.to_owned() };
    let mut all = vec![own(queue::REPLIES), own(queue::SUBMISSIONS)];
    let mut add = |of: &str, names: Vec<String>| {
        all.extend(names.into_iter().map(|name| Consumed { name, of: of.to_owned() }));
    };
    add(queue::SCHEDULER, config.scheduler_queues());
    for pool in config.agents.iter().flat_map(|agent| config.pools_of(agent)) {
        add(&queue::agent(pool), config.pool_queues(pool));
    }
    all
}

/// Creates what is missing. Queues are named `name_prefix` and their own name; returns the URL of every queue up to its
/// own name, for [`Config::queue_prefix`].
///
/// # Errors
/// The endpoint failed.
pub async fn create(
    clients: &Clients,
    config: &Config,
    name_prefix: &str,
    visibility_timeout_s: u32,
) -> Result<String, Error> {
    create_tables(clients, config).await?;
    let full = |name: &str| format!("{name_prefix}{name}");
    let mut arns = HashMap::new();
    for Consumed { name, of } in consumed(config) {
        let dead = full(&queue::dead(&of));
        if !arns.contains_key(&dead) {
            let url = create_queue(clients, &dead, &[]).await?;
            let request = clients.sqs.get_queue_attributes().queue_url(&url).attribute_names(Attribute::QueueArn);
            let attributes = request.send().await.map_err(|e| unavailable(&dead, e))?.attributes.unwrap_or_default();
            arns.insert(dead.clone(), attributes.get(&Attribute::QueueArn).cloned().unwrap_or_default());
        }
        let arn = &arns[&dead];
        let redrive = format!(r#"{{"deadLetterTargetArn":"{arn}","maxReceiveCount":{MAX_RECEIVES}}}"#);
        let wanted =
            [(Attribute::VisibilityTimeout, visibility_timeout_s.to_string()), (Attribute::RedrivePolicy, redrive)];
        create_queue(clients, &full(&name), &wanted).await?;
    }
    for name in config.reply_queues.names().map(queue::notices) {
        create_queue(clients, &full(&name), &[]).await?;
    }
    let url = create_queue(clients, &full(queue::SET_ASIDE), &[]).await?;
    Ok(url.strip_suffix(queue::SET_ASIDE).unwrap_or(&url).to_owned())
}

async fn create_queue(clients: &Clients, name: &str, attributes: &[(Attribute, String)]) -> Result<String, Error> {
    /// SQS's maximum, 14 days, leaves people the most time.
    const RETENTION_S: &str = "1209600";
    let mut all = HashMap::from([(Attribute::MessageRetentionPeriod, RETENTION_S.to_owned())]);
    all.extend(attributes.iter().cloned());
    let answer = clients.sqs.create_queue().queue_name(name).set_attributes(Some(all)).send().await;
    Ok(answer.map_err(|e| unavailable(&format!("queue {name}"), e))?.queue_url.unwrap_or_default())
}

/// Only the tables, for an endpoint without queues.
///
/// # Errors
/// The endpoint failed.
pub async fn create_tables(clients: &Clients, config: &Config) -> Result<(), Error> {
    let string = ScalarAttributeType::S;
    let number = ScalarAttributeType::N;
    let existing = clients.dynamodb.list_tables().send().await.map_err(|e| unavailable("tables", e))?;
    if !existing.table_names().contains(&config.orders_table) {
        clients
            .dynamodb
            .create_table()
            .table_name(&config.orders_table)
            .billing_mode(BillingMode::PayPerRequest)
            .set_attribute_definitions(Some(vec![attribute("bucket", &string), attribute("sort", &string)]))
            .set_key_schema(Some(vec![key("bucket", KeyType::Hash), key("sort", KeyType::Range)]))
            .send()
            .await
            .map_err(|e| unavailable(&config.orders_table, e))?;
    }
    if existing.table_names().contains(&config.state_table) {
        return Ok(());
    }
    let index = |name: &str, hash: &str, range: &str| {
        GlobalSecondaryIndex::builder()
            .index_name(name)
            .key_schema(key(hash, KeyType::Hash))
            .key_schema(key(range, KeyType::Range))
            .projection(Projection::builder().projection_type(ProjectionType::KeysOnly).build())
            .build()
            .expect("name and keys are set")
    };
    let attributes = vec![
        attribute("pk", &string),
        attribute("shard", &string),
        attribute("due", &number),
        attribute("attention", &string),
        attribute("updated_at", &number),
    ];
    clients
        .dynamodb
        .create_table()
        .table_name(&config.state_table)
        .billing_mode(BillingMode::PayPerRequest)
        .set_attribute_definitions(Some(attributes))
        .key_schema(key("pk", KeyType::Hash))
        .global_secondary_indexes(index(DUE_INDEX, "shard", "due"))
        .global_secondary_indexes(index(ATTENTION_INDEX, "attention", "updated_at"))
        .send()
        .await
        .map_err(|e| unavailable(&config.state_table, e))?;
    let ttl = TimeToLiveSpecification::builder().attribute_name("ttl").enabled(true).build();
    clients
        .dynamodb
        .update_time_to_live()
        .table_name(&config.state_table)
        .set_time_to_live_specification(ttl.ok())
        .send()
        .await
        .map_err(|e| unavailable(&config.state_table, e))?;
    Ok(())
}

fn attribute(name: &str, kind: &ScalarAttributeType) -> AttributeDefinition {
    AttributeDefinition::builder()
        .attribute_name(name)
        .attribute_type(kind.clone())
        .build()
        .expect("name and type are set")
}

fn key(name: &str, kind: KeyType) -> KeySchemaElement {
    KeySchemaElement::builder().attribute_name(name).key_type(kind).build().expect("name and type are set")
}
