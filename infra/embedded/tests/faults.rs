//! Goal: each fault reaches a client as the error that AWS's SDK has for it, and whether the call was done is as the
//! fault says. Method: a hook that names one operation, and the SDKs' clients.

mod common;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, GlobalSecondaryIndex, KeySchemaElement, KeyType, KeysAndAttributes, Projection,
    ProjectionType, Put, ScalarAttributeType, TransactWriteItem,
};
use aws_sdk_sqs::error::ProvideErrorMetadata;
use common::{bodies, dynamodb, eventbridge, memory, opened, reasons, receive, tasks, text};
use stepwarden_embedded::{Call, Endpoints, Fault, FaultHook};

/// The first `times` calls of `operation` fail with `fault`.
fn inject(endpoints: &Endpoints, operation: &'static str, fault: Fault, times: usize) {
    let left = AtomicUsize::new(times);
    let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
        let hit = call.operation == operation
            && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1)).is_ok();
        hit.then_some(fault)
    });
    endpoints.set_fault_hook(Some(hook));
}

fn put(id: &str) -> TransactWriteItem {
    let put = Put::builder().table_name("tasks").item("id", text(id));
    TransactWriteItem::builder().put(put.build().unwrap()).build()
}

#[tokio::test]
async fn a_batch_is_answered_in_part() {
    let endpoints = memory();
    let client = tasks(&endpoints).await;
    client.transact_write_items().transact_items(put("a")).transact_items(put("b")).send().await.unwrap();
    let keys = ["a", "b", "c"].map(|id| HashMap::from([("id".to_owned(), text(id))]));
    let wanted = KeysAndAttributes::builder().set_keys(Some(keys.to_vec())).consistent_read(true).build().unwrap();
    let ask = || client.batch_get_item().request_items("tasks", wanted.clone()).send();

    inject(&endpoints, "BatchGetItem", Fault::Partly(1), 1);
    let part = ask().await.unwrap();
    assert_eq!(part.responses().unwrap()["tasks"], keys[..1]);
    let left = &part.unprocessed_keys().unwrap()["tasks"];
    assert_eq!((left.keys(), left.consistent_read()), (&keys[1..], Some(true)));
    inject(&endpoints, "BatchGetItem", Fault::Partly(0), 1);
    let none = ask().await.unwrap();
    assert!(none.responses().is_none_or(HashMap::is_empty));
    assert_eq!(none.unprocessed_keys().unwrap()["tasks"].keys(), keys);
    let all = ask().await.unwrap();
    assert_eq!(all.responses().unwrap()["tasks"].len(), 2);
    assert!(all.unprocessed_keys().is_none_or(HashMap::is_empty));
}

#[tokio::test]
async fn tables_throttle_conflict_fail_and_lose_answers() {
    let endpoints = memory();
    let client = tasks(&endpoints).await;
    let failed = async |fault| {
        inject(&endpoints, "PutItem", fault, 1);
        client.put_item().table_name("tasks").item("id", text("a")).send().await.unwrap_err()
    };
    let told = async |fault| failed(fault).await.into_service_error();
    assert!(told(Fault::Throttle).await.is_provisioned_throughput_exceeded_exception());
    assert!(told(Fault::TransactionConflict).await.is_transaction_conflict_exception());
    assert!(told(Fault::InternalError).await.is_internal_server_error());
    assert!(failed(Fault::LostBefore).await.as_service_error().is_none());

    inject(&endpoints, "TransactWriteItems", Fault::TransactionConflict, 1);
    let both = client.transact_write_items().transact_items(put("a")).transact_items(put("b"));
    let error = both.send().await.unwrap_err().into_service_error();
    let reasons = reasons(error);
    let codes: Vec<_> = reasons.iter().map(|reason| reason.code().unwrap()).collect();
    assert_eq!(codes, ["TransactionConflict", "None"]);

    let count = async || client.scan().table_name("tasks").send().await.unwrap().count();
    assert_eq!(count().await, 0, "nothing was done");
    assert!(failed(Fault::LostAfter).await.as_service_error().is_none());
    assert_eq!(count().await, 1, "it was done");
}

/// The reason why writers recognise their own writes: with the SDK's retries, a conditional write whose answer was lost
/// looks like a failed condition.
#[tokio::test]
async fn retry_of_a_lost_write_meets_its_own_condition() {
    let endpoints = memory();
    let client = tasks(&endpoints).await;
    let retrying = aws_sdk_dynamodb::Client::from_conf(
        client.config().to_builder().retry_config(aws_sdk_dynamodb::config::retry::RetryConfig::standard()).build(),
    );
    inject(&endpoints, "PutItem", Fault::LostAfter, 1);
    let put = retrying.put_item().table_name("tasks").item("id", text("a"));
    let error = put.condition_expression("attribute_not_exists(id)").send().await.unwrap_err();
    assert!(error.into_service_error().is_conditional_check_failed_exception());
    let counts = endpoints.counts().operations["DynamoDB_20120810.PutItem"];
    assert_eq!((counts.requests, counts.errors), (2, 2));
}

#[tokio::test]
async fn queues_and_events_have_faults_too() {
    let (endpoints, queues, url) = opened(memory(), &[]).await;
    let events = eventbridge(&endpoints);
    let send = |body: &str| queues.send_message().queue_url(&url).message_body(body).send();

    inject(&endpoints, "SendMessage", Fault::Throttle, 1);
    let error = send("throttled").await.unwrap_err().into_service_error();
    assert!(error.is_request_throttled());
    inject(&endpoints, "SendMessage", Fault::InternalError, 1);
    assert_eq!(send("failed").await.unwrap_err().code(), Some("InternalFailure"));
    inject(&endpoints, "SendMessage", Fault::LostBefore, 1);
    assert!(send("lost before").await.is_err());
    inject(&endpoints, "SendMessage", Fault::LostAfter, 1);
    assert!(send("lost after").await.is_err());
    assert_eq!(bodies(&receive(&queues, &url).await), ["lost after"]);

    inject(&endpoints, "PutEvents", Fault::InternalError, 1);
    let entry = aws_sdk_eventbridge::types::PutEventsRequestEntry::builder();
    let entry = entry.source("s").detail_type("t").detail("{}").build();
    let error = events.put_events().entries(entry.clone()).send().await.unwrap_err();
    assert!(error.into_service_error().is_internal_exception());
    endpoints.set_fault_hook(None);
    events.put_events().entries(entry).send().await.unwrap();
    assert_eq!(endpoints.counts().events_put, 1);
}

#[tokio::test]
async fn an_index_is_behind_and_its_table_is_not() {
    let endpoints = memory();
    let client = dynamodb(&endpoints);
    let attribute = |name: &str| {
        let definition = AttributeDefinition::builder().attribute_name(name);
        definition.attribute_type(ScalarAttributeType::S).build().unwrap()
    };
    let key = |name: &str| KeySchemaElement::builder().attribute_name(name).key_type(KeyType::Hash).build().unwrap();
    let index = GlobalSecondaryIndex::builder().index_name("due").key_schema(key("part_of"));
    let index = index.projection(Projection::builder().projection_type(ProjectionType::All).build()).build().unwrap();
    let table = client.create_table().table_name("tasks").billing_mode(BillingMode::PayPerRequest);
    let table = table.key_schema(key("id")).attribute_definitions(attribute("id"));
    table.attribute_definitions(attribute("part_of")).global_secondary_indexes(index).send().await.unwrap();
    client.put_item().table_name("tasks").item("id", text("a")).item("part_of", text("0")).send().await.unwrap();
    let query = |name: &str| {
        let query = client.query().table_name("tasks").key_condition_expression(format!("{name} = :x"));
        query.set_index_name((name == "part_of").then(|| "due".into()))
    };
    inject(&endpoints, "Query", Fault::Behind, 2);
    let found = query("part_of").expression_attribute_values(":x", text("0")).send().await.unwrap();
    assert_eq!((found.count(), found.items().len()), (0, 0));
    let found = query("id").expression_attribute_values(":x", text("a")).send().await.unwrap();
    assert_eq!(found.count(), 1, "the table itself");
    let found = query("part_of").expression_attribute_values(":x", text("0")).send().await.unwrap();
    assert_eq!(found.count(), 1, "the index a moment later");
}
