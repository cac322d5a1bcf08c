//! Faults on demand, for tests and simulation: faults that AWS has now and then, and a laptop never.

use crate::answer::Answer;
use crate::service::Service;
use crate::sqs;
use serde_json::{Map, Value, json};

/// One call, as a fault hook sees it before anything has happened.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// The service called.
    pub service: Service,
    /// Without the service, as in `PutItem`.
    pub operation: &'a str,
    /// The request's body: JSON, unless the client sent something else.
    pub body: &'a [u8],
}

/// What goes wrong with a call. An SDK's client tries again after all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not done. DynamoDB: `ProvisionedThroughputExceededException`; SQS: `RequestThrottled`;
    /// EventBridge: `ThrottlingException`.
    Throttle,
    /// Not done, because another transaction was in progress on an item. `TransactWriteItems` and `TransactGetItems`:
    /// `TransactionCanceledException` with the reason `TransactionConflict` for the first item; other DynamoDB calls:
    /// `TransactionConflictException`; other services: as `InternalError`.
    TransactionConflict,
    /// `BatchGetItem`: this number of keys of each table is answered, the others are returned as `UnprocessedKeys`.
    /// Other calls: as `Throttle`.
    Partly(usize),
    /// `GetItem` and `BatchGetItem` without `ConsistentRead`, and `Query` of an index: they find nothing, as if
    /// everything had been written just now. Every other call is done.
    Behind,
    /// Not done; an error of the service itself, status 500.
    InternalError,
    /// Not done; the connection broke.
    LostBefore,
    /// Done; the connection broke before the answer arrived.
    LostAfter,
}

/// The connection broke.
#[derive(Debug, thiserror::Error)]
#[error("the connection was closed before an answer (injected fault)")]
pub(crate) struct Lost;

/// The answer instead of doing `call`.
pub(crate) fn instead(fault: Fault, call: Call<'_>) -> Result<Answer, Lost> {
    let dynamodb =
        |name: &str, message: &str| Answer::error(400, &format!("com.amazonaws.dynamodb.v20120810#{name}"), message);
    Ok(match (fault, call.service) {
        (Fault::LostBefore | Fault::LostAfter, _) => return Err(Lost),
        (Fault::Behind, _) => unreachable!("such a call is done, or answered by `behind`"),
        (Fault::Throttle | Fault::Partly(_), Service::DynamoDb) => dynamodb(
            "ProvisionedThroughputExceededException",
            "The level of configured provisioned throughput for the table was exceeded.",
        ),
        (Fault::Throttle | Fault::Partly(_), Service::Sqs) => sqs::Error::throttled().into_answer(),
        (Fault::Throttle | Fault::Partly(_), Service::EventBridge) => {
            Answer::error(400, "ThrottlingException", "Rate exceeded")
        }
        (Fault::TransactionConflict, Service::DynamoDb) => match call.operation {
            "TransactWriteItems" | "TransactGetItems" => canceled(call.body),
            _ => dynamodb("TransactionConflictException", "Transaction is ongoing for the item"),
        },
        (Fault::InternalError, Service::DynamoDb) => {
            Answer { status: 500, ..dynamodb("InternalServerError", "Internal server error") }
        }
        (Fault::InternalError | Fault::TransactionConflict, Service::Sqs) => {
            sqs::Error::internal("We encountered an internal error. Please try again.").into_answer()
        }
        (Fault::InternalError | Fault::TransactionConflict, Service::EventBridge) => {
            Answer::error(500, "InternalException", "This exception occurs due to unexpected causes.")
        }
    })
}

/// The answer to a read that is behind; `None` for a call that cannot be behind.
pub(crate) fn behind(call: Call<'_>) -> Option<Answer> {
    let request: Value = serde_json::from_slice(call.body).ok()?;
    let may_be_behind = |read: &Value| read["ConsistentRead"].as_bool() != Some(true);
    match call.operation {
        "GetItem" if may_be_behind(&request) => Some(Answer::ok(&json!({}))),
        "BatchGetItem" if request["RequestItems"].as_object()?.values().all(may_be_behind) => {
            Some(Answer::ok(&json!({ "Responses": {}, "UnprocessedKeys": {} })))
        }
        "Query" if request["IndexName"].is_string() && may_be_behind(&request) => {
            Some(Answer::ok(&json!({ "Items": [], "Count": 0, "ScannedCount": 0 })))
        }
        _ => None,
    }
}

/// The request for the part of a batch that is answered, unless that is no key at all, and the keys that are not; `None`
/// for a call that cannot be done in part.
pub(crate) fn part(call: Call<'_>, most: usize) -> Option<(Option<Vec<u8>>, Value)> {
    if call.operation != "BatchGetItem" {
        return None;
    }
    let mut request: Value = serde_json::from_slice(call.body).ok()?;
    let mut left = request["RequestItems"].clone();
    for (name, table) in request["RequestItems"].as_object_mut()? {
        let keys = table["Keys"].as_array_mut()?;
        left[name]["Keys"] = keys.split_off(most.min(keys.len())).into();
    }
    let has_keys = |table: &Value| table["Keys"].as_array().is_some_and(|keys| !keys.is_empty());
    let tables = request["RequestItems"].as_object_mut()?;
    tables.retain(|_, table| has_keys(table));
    let is_any = !tables.is_empty();
    left.as_object_mut()?.retain(|_, table| has_keys(table));
    Some((is_any.then(|| request.to_string().into_bytes()), left))
}

/// The answer to the part, with the keys that are left.
pub(crate) fn with_left(mut answer: Answer, left: Value) -> Answer {
    if !answer.is_error()
        && let Ok(mut body) = serde_json::from_slice::<Map<_, _>>(&answer.body)
    {
        body.insert("UnprocessedKeys".into(), left);
        answer.body = Value::Object(body).to_string().into_bytes();
    }
    answer
}

/// The first item of the transaction is in conflict, the others are not.
fn canceled(body: &[u8]) -> Answer {
    let request: Value = serde_json::from_slice(body).unwrap_or_default();
    let items = request["TransactItems"].as_array().map_or(1, |items| items.len().max(1));
    let mut codes = vec!["None"; items];
    let mut reasons = vec![json!({ "Code": "None" }); items];
    codes[0] = "TransactionConflict";
    reasons[0] = json!({ "Code": codes[0], "Message": "Transaction is ongoing for the item" });
    let answer = Answer::ok(&json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": format!(
            "Transaction cancelled, please refer cancellation reasons for specific reasons [{}]",
            codes.join(", ")
        ),
        "CancellationReasons": reasons,
    }));
    Answer { status: 400, ..answer }
}
