//! What a client sees of orders.

use super::Up;
use super::record::{Record, waiting};
use futures::{StreamExt, stream};
use serde_json::Value;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Number of orders that are polled concurrently.
const LOOKS: usize = 16;

/// The status of an order; `None` while the API does not answer. `url` is that of all orders.
pub async fn state(http: &reqwest::Client, url: &str, id: &str) -> Option<String> {
    let answer = http.get(format!("{url}/{id}")).send().await.ok()?;
    assert_ne!(answer.status(), 404, "accepted order {id} is gone");
    let order = answer.error_for_status().ok()?.json::<Value>().await.ok()?;
    order["state"].as_str().map(str::to_owned)
}

/// Submits an order, and returns its id. `url` is the API's.
pub async fn submit(http: &reqwest::Client, url: &str, key: &str, order: &Value) -> String {
    let post = http.post(format!("{url}/orders")).header("idempotency-key", key).json(order);
    let answer: Value = post.send().await.unwrap().error_for_status().unwrap().json().await.unwrap();
    answer["order_id"].as_str().unwrap().to_owned()
}

/// The answer to a request that is sent again until it is answered with `status`, because the system may be down or
/// overloaded; and how often it was sent again.
pub async fn insist(status: u16, patience: Duration, request: impl Fn() -> reqwest::RequestBuilder) -> (Value, u64) {
    let (begin, mut again) = (Instant::now(), 0);
    loop {
        let last = match request().send().await {
            Ok(answer) if answer.status() == status => match answer.json().await {
                Ok(answer) => return (answer, again),
                Err(error) => format!("half an answer: {error}"),
            },
            Ok(answer) => {
                let (status, what) = (answer.status(), answer.url().to_string());
                let text = answer.text().await.unwrap_or_default();
                assert!(status == 429 || status.is_server_error(), "{what}: {status} {text}");
                text
            }
            Err(error) => error.to_string(),
        };
        assert!(begin.elapsed() < patience, "no {status} within {patience:?}; the last answer: {last}");
        again += 1;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub fn is_final(state: &str) -> bool {
    ["Processed", "Undone", "Error"].contains(&state)
}

/// The order when it has ended.
pub async fn ended(http: &reqwest::Client, url: &str, id: &str, patience: Duration) -> Value {
    once(http, url, id, patience, |order| order["state"].as_str().is_some_and(is_final)).await
}

/// The order once `seen` holds. `url` is the API's.
pub async fn once(
    http: &reqwest::Client,
    url: &str,
    id: &str,
    patience: Duration,
    seen: impl Fn(&Value) -> bool,
) -> Value {
    let begin = Instant::now();
    loop {
        let order: Value = http.get(format!("{url}/orders/{id}")).send().await.unwrap().json().await.unwrap();
        if seen(&order) {
            return order;
        }
        assert!(begin.elapsed() < patience, "{order}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Every text in `value` that is long enough not to match by chance.
pub fn texts(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if text.len() >= 8 => drop(found.insert(text.clone())),
        Value::Array(all) => all.iter().for_each(|value| texts(value, found)),
        Value::Object(all) => all.values().for_each(|value| texts(value, found)),
        Value::String(_) | Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Waits until every accepted order has ended and no message is left; receives the notices, and returns the number of
/// dead letters.
pub async fn rest(http: &reqwest::Client, up: &Up, record: &Record, patience: Duration) -> u64 {
    let (begin, url) = (Instant::now(), format!("{}/orders", up.url));
    let mut open = record.ids();
    loop {
        record.take_notices(http, &up.aws_url).await.unwrap();
        let (left, dead) = waiting(http, &up.aws_url).await.unwrap();
        if left == 0 {
            let url = &url;
            let look = |id: String| async move {
                let has_ended = state(http, url, &id).await.is_some_and(|state| is_final(&state));
                (!has_ended).then_some(id)
            };
            let still = stream::iter(open).map(look).buffer_unordered(LOOKS);
            open = still.filter_map(|id| async { id }).collect().await;
            if open.is_empty() {
                // Receives the notices that were sent since: a notice is sent before the message that caused it is
                // deleted.
                record.take_notices(http, &up.aws_url).await.unwrap();
                return dead;
            }
        }
        assert!(begin.elapsed() < patience, "{} orders and {left} messages are left", open.len());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
