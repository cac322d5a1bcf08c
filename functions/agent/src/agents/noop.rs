//! Does nothing, at once: for trying out workflows and for measuring the system itself.

use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use serde_json::Value;

pub struct Noop;

impl Agent for Noop {
    fn name(&self) -> &str {
        "noop"
    }

    fn act<'a>(&'a self, _: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(std::future::ready(Ok(Value::Null)))
    }
}
