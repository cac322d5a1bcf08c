//! Routes a request to its service by `x-amz-target`, for the connector and the listener.

use std::sync::PoisonError;

use crate::answer::Answer;
use crate::fault::{self, Call, Fault, Lost};
use crate::service::Service;
use crate::{Inner, dynamodb, sqs};
use futures::future::BoxFuture;
use serde_json::json;

/// What is known about the sender of a request besides its body.
#[derive(Clone, Copy)]
pub(crate) struct Caller<'a> {
    /// The URL that it used, as in `http://localhost:8000`.
    pub endpoint: &'a str,
    /// The consumer that it says it is; see `sqs::consumers`.
    pub consumer: Option<&'a str>,
}

impl Inner {
    /// Handles one request.
    ///
    /// Boxed here: the body of an `async fn` is compiled again in every crate that awaits it, and this one is half of the crate.
    pub(crate) fn dispatch<'a>(&'a self, call: Call<'a>, caller: Caller<'a>) -> BoxFuture<'a, Result<Answer, Lost>> {
        Box::pin(async move {
            let target = format!("{}.{}", call.service.target_prefix(), call.operation);
            let counted = if is_known(call) { &target } else { "unknown" };
            self.counters.request(counted);
            let outcome = self.faulty(call, caller).await;
            if outcome.as_ref().is_ok_and(|answer| !answer.is_error()) {
                return outcome;
            }
            self.counters.error(counted);
            outcome
        })
    }

    async fn faulty(&self, call: Call<'_>, caller: Caller<'_>) -> Result<Answer, Lost> {
        let hook = self.fault_hook.read().unwrap_or_else(PoisonError::into_inner).clone();
        match hook.and_then(|hook| hook(&call)) {
            None => Ok(self.perform(call, caller).await),
            Some(Fault::LostAfter) => {
                self.perform(call, caller).await;
                Err(Lost)
            }
            Some(Fault::Behind) => match fault::behind(call) {
                Some(answer) => Ok(answer),
                None => Ok(self.perform(call, caller).await),
            },
            Some(fault @ Fault::Partly(most)) => match fault::part(call, most) {
                Some((None, left)) => Ok(fault::with_left(Answer::ok(&json!({"Responses": {}})), left)),
                Some((Some(body), left)) => {
                    Ok(fault::with_left(self.perform(Call { body: &body, ..call }, caller).await, left))
                }
                None => fault::instead(fault, call),
            },
            Some(fault) => fault::instead(fault, call),
        }
    }

    async fn perform(&self, call: Call<'_>, caller: Caller<'_>) -> Answer {
        let Call { service, operation, body } = call;
        if body.len() > service.body_max_bytes() {
            return Answer::error(413, "RequestEntityTooLarge", "The request is too large.");
        }
        match service {
            Service::Sqs => self.sqs.call(operation, caller, body).await,
            Service::DynamoDb => self.dynamodb.call(operation, body).await,
            Service::EventBridge => self.events.call(operation, body).await,
        }
    }
}

/// Checked so that clients cannot make the table of counts grow.
fn is_known(call: Call<'_>) -> bool {
    match call.service {
        Service::Sqs => sqs::OPERATIONS.contains(&call.operation),
        Service::DynamoDb => dynamodb::OPERATIONS.contains(&call.operation),
        Service::EventBridge => crate::events::OPERATIONS.contains(&call.operation),
    }
}
