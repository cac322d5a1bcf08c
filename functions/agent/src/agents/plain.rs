//! An agent that only calls its remote service: `inventory` reserves an order's goods and releases them, `payment`
//! charges the customer and refunds the charge, `shipping` hands the parcel to the carrier and calls it back.

use crate::remote::Remote;
use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::Value;

pub struct Plain {
    pub name: &'static str,
    pub remote: Remote,
}

impl Agent for Plain {
    fn name(&self) -> &str {
        self.name
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.remote.call(call))
    }
}
