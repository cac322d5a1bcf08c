//! Reserves an order's goods, and releases them.

use crate::remote::Remote;
use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::Value;

pub struct Inventory(pub Remote);

impl Agent for Inventory {
    fn name(&self) -> &str {
        "inventory"
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.0.call(call))
    }
}
