//! Data of events, callbacks and heartbeats: a JSON object of bounded length.

use crate::problem::{self, Problem};
use edge::http::read;
use edge::whole_number;
use serde_json::{Map, Value};
use shared::json::{self, Fault};

/// The object in `body`, of at most `limit` bytes, also once its numbers are written out. An empty body is an empty
/// object. `what` and `advice` are words for a refusal.
pub(crate) fn object(body: &[u8], limit: usize, what: &str, advice: &str) -> Result<Value, Problem> {
    check(body.len(), limit, what, advice)?;
    let data: Map<String, Value> = if body.is_empty() { Map::new() } else { read(body)? };
    checked(data, limit, what, advice).map(Value::Object)
}

/// The same for data that was read already, with whole numbers written out.
pub(crate) fn checked(
    data: Map<String, Value>,
    limit: usize,
    what: &str,
    advice: &str,
) -> Result<Map<String, Value>, Problem> {
    let mut data = Value::Object(data);
    if json::is_deep(&data) {
        return Err(problem::invalid_field("body", Fault::Deep.to_string()));
    }
    whole_number::write(&mut data);
    // A number such as 1e15 is longer once it is written out.
    check(data.to_string().len(), limit, what, advice)?;
    let Value::Object(data) = data else { unreachable!("it was an object") };
    Ok(data)
}

fn check(bytes: usize, limit: usize, what: &str, advice: &str) -> Result<(), Problem> {
    match bytes > limit {
        true => Err(problem::too_large(None, format!("{what} has {bytes} bytes; the limit is {limit}: {advice}"))),
        false => Ok(()),
    }
}
