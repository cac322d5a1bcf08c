//! Hands the parcel to the carrier, and calls it back.

use crate::remote::Remote;
use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::Value;

pub struct Shipping(pub Remote);

impl Agent for Shipping {
    fn name(&self) -> &str {
        "shipping"
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.0.call(call))
    }
}
