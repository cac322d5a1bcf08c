//! Charges the customer, and refunds the charge.

use crate::remote::Remote;
use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::Value;

pub struct Payment(pub Remote);

impl Agent for Payment {
    fn name(&self) -> &str {
        "payment"
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.0.call(call))
    }
}
