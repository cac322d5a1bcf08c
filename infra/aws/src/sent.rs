//! The calls that an order's path makes, each compiled once, here. The body of an `async fn` is compiled again in every crate that
//! awaits it, and the SDK's is large.

use aws_sdk_dynamodb::operation as dynamodb;
use aws_sdk_eventbridge::operation as eventbridge;
use aws_sdk_sqs::operation as sqs;
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use futures::future::BoxFuture;

/// A call of an SDK client.
pub(crate) trait Sent {
    type Answer;

    /// Its `send()`, compiled here.
    fn sent(self) -> BoxFuture<'static, Self::Answer>;
}

macro_rules! sent {
    ($($service:ident::$operation:ident($call:ident) -> $output:ident, $error:ident;)*) => {$(
        impl Sent for $service::$operation::builders::$call {
            type Answer = Result<$service::$operation::$output, SdkError<$service::$operation::$error, HttpResponse>>;

            fn sent(self) -> BoxFuture<'static, Self::Answer> {
                Box::pin(self.send())
            }
        }
    )*};
}

sent! {
    dynamodb::batch_get_item(BatchGetItemFluentBuilder) -> BatchGetItemOutput, BatchGetItemError;
    dynamodb::get_item(GetItemFluentBuilder) -> GetItemOutput, GetItemError;
    dynamodb::put_item(PutItemFluentBuilder) -> PutItemOutput, PutItemError;
    dynamodb::query(QueryFluentBuilder) -> QueryOutput, QueryError;
    dynamodb::transact_write_items(TransactWriteItemsFluentBuilder) -> TransactWriteItemsOutput, TransactWriteItemsError;
    dynamodb::update_item(UpdateItemFluentBuilder) -> UpdateItemOutput, UpdateItemError;
    eventbridge::put_events(PutEventsFluentBuilder) -> PutEventsOutput, PutEventsError;
    sqs::send_message_batch(SendMessageBatchFluentBuilder) -> SendMessageBatchOutput, SendMessageBatchError;
}
