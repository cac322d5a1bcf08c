//! Faults on demand, for tests and simulation: what AWS does now and then and a laptop never.

use crate::answer::Answer;
use crate::dispatch::Service;
use crate::sqs;
use serde_json::Value;

/// One call, as a fault hook sees it before anything has happened.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub service: Service,
    /// Without the service, as in `PutItem`.
    pub operation: &'a str,
    /// The request: JSON, unless the client sent something else.
    pub body: &'a [u8],
}

/// What goes wrong with a call. The SDK's own retries apply to all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Not done. DynamoDB: `ProvisionedThroughputExceededException`; SQS: `RequestThrottled`;
    /// EventBridge: `ThrottlingException`.
    Throttle,
    /// Not done, because another transaction was under way on an item. `TransactWriteItems` and
    /// `TransactGetItems`: `TransactionCanceledException` with the reason `TransactionConflict` for
    /// the first item; other DynamoDB calls: `TransactionConflictException`; other services:
    /// as `InternalError`.
    TransactionConflict,
    /// `BatchGetItem`: one key of each table is answered, the others come back as `UnprocessedKeys`. Else as `Throttle`.
    Partly,
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
        (Fault::Throttle | Fault::Partly, Service::DynamoDb) => dynamodb(
            "ProvisionedThroughputExceededException",
            "The level of configured provisioned throughput for the table was exceeded.",
        ),
        (Fault::Throttle | Fault::Partly, Service::Sqs) => sqs::Error::throttled().into_answer(),
        (Fault::Throttle | Fault::Partly, Service::EventBridge) => {
            Answer::error(400, "ThrottlingException", "Rate exceeded")
        }
        (Fault::TransactionConflict, Service::DynamoDb) => match call.operation {
            "TransactWriteItems" | "TransactGetItems" => canceled(call.body),
            _ => dynamodb("TransactionConflictException", "Transaction is ongoing for the item"),
        },
        (Fault::InternalError, Service::DynamoDb) => {
            let mut answer = dynamodb("InternalServerError", "Internal server error");
            answer.status = 500;
            answer
        }
        (Fault::InternalError | Fault::TransactionConflict, Service::Sqs) => {
            sqs::Error::internal("We encountered an internal error. Please try again.").into_answer()
        }
        (Fault::InternalError | Fault::TransactionConflict, Service::EventBridge) => {
            Answer::error(500, "InternalException", "This exception occurs due to unexpected causes.")
        }
    })
}

/// A `BatchGetItem` cut down to one key of each table, and the keys cut off as the answer has them; `None` if it is none.
pub(crate) fn part(call: Call<'_>) -> Option<(Vec<u8>, Value)> {
    let mut request: Value = (call.operation == "BatchGetItem").then(|| serde_json::from_slice(call.body).ok())??;
    let mut left = request["RequestItems"].clone();
    for table in request["RequestItems"].as_object_mut()?.values_mut() {
        table["Keys"].as_array_mut()?.truncate(1);
    }
    for table in left.as_object_mut()?.values_mut() {
        table["Keys"].as_array_mut()?.remove(0);
    }
    left.as_object_mut()?.retain(|_, table| table["Keys"].as_array().is_some_and(|keys| !keys.is_empty()));
    Some((request.to_string().into_bytes(), left))
}

/// The answer to the part, with what was cut off.
pub(crate) fn with_rest(mut answer: Answer, left: Value) -> Answer {
    if let Ok(Value::Object(mut body)) = serde_json::from_slice(&answer.body) {
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
    codes[0] = "TransactionConflict";
    let reasons: Vec<_> = codes
        .iter()
        .map(|code| match *code {
            "None" => serde_json::json!({ "Code": "None" }),
            code => serde_json::json!({
                "Code": code,
                "Message": "Transaction is ongoing for the item",
            }),
        })
        .collect();
    let mut answer = Answer::ok(&serde_json::json!({
        "__type": "com.amazonaws.dynamodb.v20120810#TransactionCanceledException",
        "Message": format!(
            "Transaction cancelled, please refer cancellation reasons for specific reasons [{}]",
            codes.join(", ")
        ),
        "CancellationReasons": reasons,
    }));
    answer.status = 400;
    answer
}
