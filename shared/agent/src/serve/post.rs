//! Heartbeats over HTTP.

use crate::heart::{Answered, Post};
use jiff::Timestamp;
use reqwest::{Client, StatusCode};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for the answer to a heartbeat.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Deserialize)]
struct Alive {
    complete_by: Timestamp,
}

/// A refusal. Only the API's own have a `code`.
#[derive(Default, Deserialize)]
struct Problem {
    #[serde(default)]
    code: String,
    #[serde(default)]
    detail: String,
}

/// Sends heartbeats with one client.
pub(super) fn client() -> Post {
    let client = Client::builder().timeout(TIMEOUT).redirect(reqwest::redirect::Policy::none());
    // The system is on this machine, so use no proxy.
    let is_here = std::env::var_os("AWS_ENDPOINT_URL").is_some();
    let built = if is_here { client.no_proxy() } else { client }.build();
    // Without root certificates nothing can be sent, and each heartbeat says so.
    let client = built.map_err(|e| e.to_string());
    Arc::new(move |url, body| {
        let client = client.clone();
        Box::pin(async move {
            let answered = async { send(&client?, &url, body).await };
            answered.await.unwrap_or_else(Answered::Silent)
        })
    })
}

async fn send(client: &Client, url: &str, body: String) -> Result<Answered, String> {
    // The address is a secret, so no error names it.
    let words = |e: reqwest::Error| e.without_url().to_string();
    let sent = client.post(url).header("content-type", "application/json").body(body).send().await.map_err(words)?;
    match sent.status() {
        StatusCode::OK => Ok(Answered::Alive(sent.json::<Alive>().await.map_err(words)?.complete_by)),
        status => {
            let Problem { code, detail } = sent.json().await.unwrap_or_default();
            match code.as_str() {
                "attempt_over" | "no_such_heartbeat" => Ok(Answered::Over(detail)),
                _ => Err(format!("the answer was {status} {code} {detail}")),
            }
        }
    }
}
