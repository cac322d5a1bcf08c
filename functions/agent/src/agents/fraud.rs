//! Asks whether an order looks like fraud. It changes nothing, so there is nothing to undo.

use crate::remote::Remote;
use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::Value;

pub struct Fraud(pub Remote);

impl Agent for Fraud {
    fn name(&self) -> &str {
        "fraud"
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(async move {
            let answer = self.0.call(call).await?;
            if answer["approved"] == Value::Bool(false) {
                return Err(AgentError::Permanent { error: "the order looks like fraud".into() });
            }
            Ok(answer)
        })
    }
}
