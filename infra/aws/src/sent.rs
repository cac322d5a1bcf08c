//! The calls on an order's path, each compiled once, here. Every crate that awaits an `async fn` compiles its body
//! again, and the SDK's is large.
//!
//! Endpoints in this process are called without the SDK's orchestration, which would take most of such a call's time.
//! Only the SDK's code that writes an operation's request and reads its answer is used. Nothing is retried, because a
//! failure there, such as a full disk, seldom passes in a moment, and messages are redelivered.

use aws_sdk_dynamodb::operation as dynamodb;
use aws_sdk_eventbridge::operation as eventbridge;
use aws_sdk_sqs::operation as sqs;
use aws_smithy_runtime_api::client::http::{HttpConnector, SharedHttpConnector};
use aws_smithy_runtime_api::client::interceptors::context::{Error, Input, Output};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_runtime_api::client::runtime_plugin::RuntimePlugin;
use aws_smithy_runtime_api::client::ser_de::{
    DeserializeResponse, SerializeRequest, SharedRequestSerializer, SharedResponseDeserializer,
};
use aws_smithy_types::config_bag::{ConfigBag, FrozenLayer};
use futures::future::BoxFuture;
use std::ops::Deref;
use std::sync::LazyLock;
use std::time::Duration;

/// A client, and the endpoints that answer it if they are in this process.
#[derive(Clone, Debug)]
pub struct Caller<C> {
    client: C,
    here: Option<Here>,
}

#[derive(Clone, Debug)]
struct Here {
    connector: SharedHttpConnector,
    timeout: Duration,
}

impl<C> Caller<C> {
    /// This client for endpoints in this process: `connector` answers each call within `timeout`.
    pub(crate) fn here(self, connector: SharedHttpConnector, timeout: Duration) -> Self {
        Self { here: Some(Here { connector, timeout }), ..self }
    }

    /// These endpoints with another client and another timeout.
    pub(crate) fn with_client(&self, client: C, timeout: Duration) -> Self {
        Self { client, here: self.here.clone().map(|here| Here { timeout, ..here }) }
    }
}

impl<C> From<C> for Caller<C> {
    fn from(client: C) -> Self {
        Self { client, here: None }
    }
}

/// For calls that are not on an order's path.
impl<C> Deref for Caller<C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.client
    }
}

/// The input of an operation.
pub trait Sent {
    /// The client of the operation's service.
    type Client;
    /// What the SDK answers.
    type Answer;

    /// Makes the call.
    fn sent(self, caller: &Caller<Self::Client>) -> BoxFuture<'static, Self::Answer>;
}

impl Here {
    /// Makes one call, with the operation's configuration `operation`.
    async fn call(self, operation: &FrozenLayer, input: Input) -> Result<Output, SdkError<Error, HttpResponse>> {
        let mut none = ConfigBag::base();
        let write = operation.load::<SharedRequestSerializer>().expect("every operation has one");
        let read = operation.load::<SharedResponseDeserializer>().expect("every operation has one");
        let request = write.serialize_input(input, &mut none).map_err(SdkError::construction_failure)?;
        let answer = tokio::time::timeout(self.timeout, self.connector.call(request));
        let late = |_| SdkError::timeout_error(format!("no answer within {:?}", self.timeout));
        let response = answer.await.map_err(late)?.map_err(SdkError::dispatch_failure)?;
        read.deserialize_nonstreaming_with_config(&response, &none).map_err(|error| {
            // The service's error can only be taken out by giving another instead.
            let mut refused = None;
            let unread = error.map_operation_error(|error| {
                refused = Some(error);
                std::fmt::Error
            });
            match refused {
                Some(error) => SdkError::service_error(error, response),
                None => SdkError::response_error(unread, response),
            }
        })
    }
}

macro_rules! sent {
    ($($service:ident::$module:ident::$operation:ident($input:ident) -> $output:ident, $error:ident;)*) => {$(
        impl Sent for $service::$module::builders::$input {
            type Client = sent!(@$service);
            type Answer = Result<$service::$module::$output, SdkError<$service::$module::$error, HttpResponse>>;

            fn sent(self, caller: &Caller<Self::Client>) -> BoxFuture<'static, Self::Answer> {
                static OPERATION: LazyLock<FrozenLayer> =
                    LazyLock::new(|| $service::$module::$operation::new().config().expect("every operation has one"));
                let Some(here) = caller.here.clone() else {
                    let client = caller.client.clone();
                    return Box::pin(async move { self.send_with(&client).await });
                };
                Box::pin(async move {
                    let input = Input::erase(self.build().map_err(SdkError::construction_failure)?);
                    let answer = here.call(&OPERATION, input).await;
                    let output = answer.map_err(|e| e.map_service_error(|e| e.downcast().expect("the operation's error")));
                    Ok(output?.downcast().expect("the operation's output"))
                })
            }
        }
    )*};
    (@dynamodb) => { aws_sdk_dynamodb::Client };
    (@eventbridge) => { aws_sdk_eventbridge::Client };
    (@sqs) => { aws_sdk_sqs::Client };
}

sent! {
    dynamodb::batch_get_item::BatchGetItem(BatchGetItemInputBuilder) -> BatchGetItemOutput, BatchGetItemError;
    dynamodb::get_item::GetItem(GetItemInputBuilder) -> GetItemOutput, GetItemError;
    dynamodb::put_item::PutItem(PutItemInputBuilder) -> PutItemOutput, PutItemError;
    dynamodb::query::Query(QueryInputBuilder) -> QueryOutput, QueryError;
    dynamodb::transact_write_items::TransactWriteItems(TransactWriteItemsInputBuilder)
        -> TransactWriteItemsOutput, TransactWriteItemsError;
    dynamodb::update_item::UpdateItem(UpdateItemInputBuilder) -> UpdateItemOutput, UpdateItemError;
    eventbridge::put_events::PutEvents(PutEventsInputBuilder) -> PutEventsOutput, PutEventsError;
    sqs::delete_message_batch::DeleteMessageBatch(DeleteMessageBatchInputBuilder)
        -> DeleteMessageBatchOutput, DeleteMessageBatchError;
    sqs::receive_message::ReceiveMessage(ReceiveMessageInputBuilder) -> ReceiveMessageOutput, ReceiveMessageError;
    sqs::send_message_batch::SendMessageBatch(SendMessageBatchInputBuilder)
        -> SendMessageBatchOutput, SendMessageBatchError;
}
