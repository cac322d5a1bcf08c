//! Goal: DynamoDB as its official SDK sees it, above all conditions and transactions. Method: the
//! SDK's client against endpoints in memory and on disk.

mod common;

use std::collections::HashMap;
use std::time::Duration;

use aws_sdk_dynamodb::error::ProvideErrorMetadata;
use aws_sdk_dynamodb::types::{
    AttributeValue, ConditionCheck, Put, ReturnValuesOnConditionCheckFailure, TimeToLiveSpecification,
    TransactWriteItem,
};
use common::{memory, on_disk, reasons, tasks, text};
use stepwarden_embedded::{Durability, Endpoints, Options};

fn put_new(id: &str, by: &str) -> Put {
    Put::builder()
        .table_name("tasks")
        .item("id", text(id))
        .item("locked_by", text(by))
        .condition_expression("attribute_not_exists(id)")
        .build()
        .unwrap()
}

fn in_transaction(put: Put) -> TransactWriteItem {
    TransactWriteItem::builder().put(put).build()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_one_of_sixteen_conditional_writes_wins() {
    let dir = tempfile::tempdir().unwrap();
    for endpoints in [memory(), on_disk(dir.path())] {
        let client = tasks(&endpoints).await;
        let before = endpoints.counts();
        let races: Vec<_> = (0..16)
            .map(|n| {
                let client = client.clone();
                tokio::spawn(async move {
                    let put = client.put_item().table_name("tasks").item("id", text("one"));
                    put.item("locked_by", text(&n.to_string()))
                        .condition_expression("attribute_not_exists(id)")
                        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
                        .send()
                        .await
                        .map(|_| n.to_string())
                })
            })
            .collect();
        let (mut winners, mut seen) = (Vec::new(), Vec::new());
        for race in races {
            match race.await.unwrap() {
                Ok(winner) => winners.push(winner),
                Err(error) => match error.into_service_error() {
                    aws_sdk_dynamodb::operation::put_item::PutItemError::ConditionalCheckFailedException(failed) => {
                        seen.push(failed.item.unwrap()["locked_by"].as_s().unwrap().clone());
                    }
                    other => panic!("{other:?}"),
                },
            }
        }
        assert_eq!(winners.len(), 1);
        assert_eq!(seen, vec![winners[0].clone(); 15], "each loser is shown who won");
        let counts = endpoints.counts().since(&before);
        let puts = counts.operations["DynamoDB_20120810.PutItem"];
        assert_eq!((puts.requests, puts.errors, counts.items_written), (16, 15, 1));
    }
}

// Writes that wait at the same time are one transaction of the engine, but no caller can tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_of_many_writes_at_once_gets_its_own_answer() {
    let dir = tempfile::tempdir().unwrap();
    let client = tasks(&on_disk(dir.path())).await;
    for n in (0..200).step_by(20) {
        let put = in_transaction(put_new(&n.to_string(), "earlier"));
        client.transact_write_items().transact_items(put).send().await.unwrap();
    }
    let writes: Vec<_> = (0..200)
        .map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let id = n.to_string();
                if n % 3 == 0 {
                    let put = in_transaction(put_new(&id, "now"));
                    let done = client.transact_write_items().transact_items(put).send().await;
                    return done.map(drop).map_err(|error| error.code().unwrap().to_owned());
                }
                let put = client.put_item().table_name("tasks").item("id", text(&id)).item("locked_by", text("now"));
                let done = put.condition_expression("attribute_not_exists(id)").send().await;
                done.map(drop).map_err(|error| error.code().unwrap().to_owned())
            })
        })
        .collect();
    for (n, write) in writes.into_iter().enumerate() {
        let refused = if n % 3 == 0 { "TransactionCanceledException" } else { "ConditionalCheckFailedException" };
        let expected = if n % 20 == 0 { Err(refused.to_owned()) } else { Ok(()) };
        assert_eq!(write.await.unwrap(), expected, "{n}");
        let found = client.get_item().table_name("tasks").key("id", text(&n.to_string())).send().await.unwrap();
        let by = if n % 20 == 0 { "earlier" } else { "now" };
        assert_eq!(found.item.unwrap()["locked_by"], text(by), "{n}");
    }
}

#[tokio::test]
async fn canceled_transaction_gives_a_reason_per_item_and_changes_nothing() {
    let client = tasks(&memory()).await;
    let put = in_transaction(put_new("a", "x"));
    client.transact_write_items().transact_items(put).send().await.unwrap();

    let check = ConditionCheck::builder()
        .table_name("tasks")
        .key("id", text("a"))
        .condition_expression("locked_by = :me")
        .expression_attribute_values(":me", text("y"))
        .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
        .build()
        .unwrap();
    let failed = client
        .transact_write_items()
        .transact_items(in_transaction(put_new("b", "y")))
        .transact_items(TransactWriteItem::builder().condition_check(check).build())
        .send()
        .await
        .unwrap_err()
        .into_service_error();
    let reasons = reasons(failed);
    let codes: Vec<_> = reasons.iter().map(|reason| reason.code().unwrap()).collect();
    assert_eq!(codes, ["None", "ConditionalCheckFailed"]);
    assert_eq!(reasons[1].item().unwrap()["locked_by"], text("x"));
    let b = client.get_item().table_name("tasks").key("id", text("b")).send().await.unwrap();
    assert!(b.item.is_none());
}

#[tokio::test]
async fn repeated_transaction_token_does_its_work_once() {
    let client = tasks(&memory()).await;
    let transact = |by: &str| {
        client
            .transact_write_items()
            .client_request_token("token")
            .transact_items(in_transaction(put_new("a", by)))
            .send()
    };
    transact("x").await.unwrap();
    transact("x").await.unwrap();
    let other = transact("y").await.unwrap_err().into_service_error();
    assert!(other.is_idempotent_parameter_mismatch_exception());
}

#[tokio::test(start_paused = true)]
async fn item_whose_time_has_come_is_swept() {
    let client = tasks(&memory()).await;
    let spec = TimeToLiveSpecification::builder().enabled(true).attribute_name("forget").build();
    let ttl = client.update_time_to_live().table_name("tasks");
    ttl.time_to_live_specification(spec.unwrap()).send().await.unwrap();
    let put = client.put_item().table_name("tasks").item("id", text("old"));
    put.item("forget", AttributeValue::N("1700000000".into())).send().await.unwrap();
    let count = async || client.scan().table_name("tasks").send().await.unwrap().count();
    assert_eq!(count().await, 1);
    let swept = async {
        while count().await > 0 {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(70), swept).await.expect("a sweep each minute, during other calls");
}

#[tokio::test]
async fn nonsense_is_refused_politely() {
    let client = tasks(&memory()).await;
    let missing = client.get_item().table_name("none").key("id", text("a")).send().await;
    assert!(missing.unwrap_err().into_service_error().is_resource_not_found_exception());
    let bad = client.put_item().table_name("tasks").item("id", AttributeValue::N("1".into()));
    assert_eq!(bad.send().await.unwrap_err().code(), Some("ValidationException"));
    let empty = client.put_item().table_name("tasks").set_item(Some(HashMap::new())).send().await;
    assert_eq!(empty.unwrap_err().code(), Some("ValidationException"));
}

// A write that survives a power failure is synced before it is answered; a read causes no sync.
#[tokio::test]
async fn each_write_alone_is_synced_before_its_answer_where_it_must_survive_a_power_failure() {
    for (durability, syncs) in [(Durability::Full, 1), (Durability::Process, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: Some(dir.path().into()), durability };
        let endpoints = Endpoints::open(&options).unwrap();
        let client = tasks(&endpoints).await;
        for n in 0..10 {
            let before = endpoints.counts();
            let put = client.put_item().table_name("tasks").item("id", text(&n.to_string()));
            put.send().await.unwrap();
            let written = endpoints.counts();
            assert_eq!(written.since(&before).syncs, syncs, "{durability:?}");
            client.get_item().table_name("tasks").key("id", text("0")).send().await.unwrap();
            assert_eq!(endpoints.counts().since(&written).syncs, 0, "{durability:?}");
        }
    }
}

// The engine reads expressions by recursion: 2,048 parentheses overflowed the stack, and the process was aborted.
#[tokio::test]
async fn no_expression_brings_the_engine_down() {
    let dir = tempfile::tempdir().unwrap();
    let paths = |n: usize| format!("a{}", ".b".repeat(n));
    for endpoints in [memory(), on_disk(dir.path())] {
        let client = tasks(&endpoints).await;
        for deep in [
            "(".repeat(2048) + "attribute_exists(id)" + &")".repeat(2048),
            "(".repeat(4000) + "a",
            "NOT ".repeat(1000) + "attribute_exists(id)",
            "NOT(".repeat(800) + "attribute_exists(id)" + &")".repeat(800),
            vec!["attribute_exists(id)"; 180].join(" AND ") + &" OR attribute_exists(id)".repeat(10),
            vec!["a=b"; 500].join(" or "),
            format!("attribute_exists({})", paths(2000)),
            format!("attribute_exists(a{})", "[0]".repeat(1300)),
        ] {
            let key = || ("id", text("a"));
            let put = client.put_item().table_name("tasks").item("id", text("a")).condition_expression(&deep);
            let delete = client.delete_item().table_name("tasks").key("id", text("a")).condition_expression(&deep);
            let update = client.update_item().table_name("tasks").key(key().0, key().1);
            let set = update.clone().update_expression("SET x = id").condition_expression(&deep);
            let update = update.update_expression(format!("SET x = {deep}"));
            let get = client.get_item().table_name("tasks").key(key().0, key().1).projection_expression(&deep);
            let scan = client.scan().table_name("tasks").filter_expression(&deep);
            let query = client.query().table_name("tasks").key_condition_expression(&deep);
            let filter =
                client.query().table_name("tasks").key_condition_expression("id = :a").filter_expression(&deep);
            let filter = filter.expression_attribute_values(":a", text("a"));
            let check = ConditionCheck::builder().table_name("tasks").key("id", text("a")).condition_expression(&deep);
            let check = TransactWriteItem::builder().condition_check(check.build().unwrap()).build();
            let transact = client.transact_write_items().transact_items(check);
            let answers: [Option<u16>; 9] = [
                put.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                delete.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                set.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                update.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                get.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                scan.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                query.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                filter.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
                transact.send().await.err().and_then(|e| e.raw_response().map(|r| r.status().as_u16())),
            ];
            assert!(answers.iter().flatten().all(|status| *status == 400), "{answers:?} for {:.40}", deep);
        }
        // Expressions that people write are accepted.
        let good = vec!["(attribute_not_exists(id) OR NOT (id = id))"; 20].join(" AND ");
        let put = client.put_item().table_name("tasks").item("id", text("b")).condition_expression(good);
        put.send().await.unwrap();
    }
}
