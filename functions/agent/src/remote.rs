//! Calls to a remote service over HTTP, and the meaning of its answers.

use crate::agents::http;
use crate::mask::Mask;
use crate::{AgentError, Call, aws, part};
use reqwest::header::HeaderMap;
use reqwest::{Client, ClientBuilder, RequestBuilder, Response};
use serde_json::{Value, json};
use shared::json::{self, Fault};
use shared::message::Request;
use shared::step::Direction;
use shared::time::{SignedDuration, Timestamp};
use shared::trace::traceparent;
use shared::workflow::http::{Meaning, is_unwell, usual};
use std::time::Duration;
use stepwarden_aws::telemetry::Chain;
use stepwarden_aws::traces;

/// Longest answer read, in bytes.
pub const MAX_ANSWER: usize = 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest idle time of a connection that is reused: less than the shortest usual keep-alive of a server, Node's 5 s. A
/// function is frozen between invocations and does not notice closed connections, over which calls fail.
const POOL_IDLE: Duration = Duration::from_secs(4);

/// One remote service.
#[derive(Clone, Debug)]
pub struct Remote {
    http: Client,
    url: String,
}

/// The HTTP client for all remote services of a process.
///
/// # Panics
/// If TLS cannot be set up, which only a broken build does.
#[must_use]
pub fn client() -> Client {
    builder().build().expect("the built-in TLS configuration is valid")
}

/// Shared by all clients. Redirects are not followed, because a call with an idempotency key and secrets must go only
/// where it was meant to go. Proxies from the environment are not used, because they would bypass the check of
/// addresses.
pub(crate) fn builder() -> ClientBuilder {
    Client::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .user_agent(concat!("stepwarden/", env!("CARGO_PKG_VERSION")))
}

/// Adds every call's headers: idempotency key, deadline and trace.
pub(crate) fn with_headers(asked: RequestBuilder, request: &Request) -> RequestBuilder {
    let asked = asked
        .header("idempotency-key", &request.idempotency_key)
        .header("complete-by", request.complete_by.to_string());
    match traces::current().or_else(|| request.traceparent.as_deref().and_then(traceparent)) {
        Some(trace) => asked.header("traceparent", trace),
        None => asked,
    }
}

impl Remote {
    /// The service below `url`; a slash at its end is ignored.
    #[must_use]
    pub fn new(http: Client, url: &str) -> Self {
        Self { http, url: url.trim_end_matches('/').to_owned() }
    }

    /// `POST URL/apply`, or `POST URL/undo` with the key to undo: the convention of the sample services.
    ///
    /// # Errors
    /// Transient for silence, cut connections, 408, 425, 429 and 5xx; permanent for every other refusal.
    pub async fn call(&self, call: Call<'_>) -> Result<Value, AgentError> {
        let request = call.request;
        let (path, body) = match request.direction {
            Direction::Do => ("apply", json!({"order_id": request.task_id, "input": request.input})),
            Direction::Undo => {
                ("undo", json!({"order_id": request.task_id, "undoes": request.undoes, "output": request.output}))
            }
        };
        let asked = with_headers(self.http.post(format!("{}/{path}", self.url)), request).timeout(call.time_left);
        let answer = asked.json(&body).send().await.map_err(unanswered)?;
        traced(&answer);
        understood(request.direction, answer).await
    }
}

/// What an answer means to a step: the output, or how the call failed.
async fn understood(direction: Direction, answer: Response) -> Result<Value, AgentError> {
    let meaning = usual("POST", answer.status().as_u16());
    let body = read(answer, meaning, &Mask::default()).await?;
    output(&body, "", direction, &Mask::default())
}

/// What an answer to `request` means to its step, by the rules of its URL or of AWS, or else by those of the sample services.
///
/// # Errors
/// As for a call.
pub async fn understand(request: &Request, answer: Response) -> Result<Value, AgentError> {
    match (&request.aws, request.over_http()) {
        (Some(action), _) => aws::understand(action, request, answer).await,
        (None, Some(call)) => http::understood(call, request, answer, &Mask::default()).await,
        (None, None) => understood(request.direction, answer).await,
    }
}

/// Records in the trace who answered, and the status.
pub(crate) fn traced(answer: &Response) {
    let url = answer.url();
    traces::set("server.address", url.host_str().unwrap_or_default().to_owned());
    traces::set("server.port", url.port_or_known_default().map_or(0, i64::from));
    traces::set("http.response.status_code", i64::from(answer.status().as_u16()));
}

/// Longest text that is kept from an answer that refuses, in bytes.
const MAX_SAID: usize = 200;

/// The body of an answer that means done. Any other answer's text is stored with the order, so it is masked.
pub(crate) async fn read(answer: Response, meaning: Meaning, mask: &Mask) -> Result<Vec<u8>, AgentError> {
    let status = answer.status();
    let retry_after = retry_after(answer.headers());
    let body = match bytes(answer).await? {
        Some(body) => body,
        None if meaning == Meaning::Done => return Err(too_long()),
        // The status says enough, and a cut body might end within a secret.
        None => Vec::new(),
    };
    let error = status.to_string();
    match meaning {
        Meaning::Done => Ok(body),
        Meaning::Transient => {
            let (status, is_unwell) = (Some(status.as_u16()), is_unwell(status.as_u16()));
            Err(AgentError::Transient { error, said: said(&body, mask), status, retry_after, is_unwell })
        }
        Meaning::Permanent => {
            let error = said(&body, mask).map_or_else(|| error.clone(), |said| format!("{error}: {said}"));
            let answer = Some(&body).filter(|body| body.len() <= shared::message::MAX_ANSWER);
            let answer = answer.and_then(|body| json::read_value(body).ok()).map(|answer| mask.value(answer));
            Err(AgentError::Refused { error, status: status.as_u16(), answer })
        }
    }
}

/// The body of an answer; `None` if it is too long.
///
/// # Errors
/// The connection broke.
pub async fn bytes(mut answer: Response) -> Result<Option<Vec<u8>>, AgentError> {
    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|e| AgentError::unavailable(e.without_url().to_string()))? {
        if body.len() + chunk.len() > MAX_ANSWER {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body))
}

/// An answer is too long to be read.
#[must_use]
pub fn too_long() -> AgentError {
    AgentError::Unusable { error: format!("the answer is longer than {MAX_ANSWER} bytes") }
}

/// The part to keep of the body of an answer that means done: what `pointer` names, or null if absent. Of an undo
/// nothing is kept, so its body may be anything.
pub(crate) fn output(body: &[u8], pointer: &str, direction: Direction, mask: &Mask) -> Result<Value, AgentError> {
    if direction == Direction::Undo {
        return Ok(Value::Null);
    }
    let part = match pointer {
        "" => Some(body),
        _ => part::at(body, pointer).map_err(|fault| AgentError::Unusable { error: mask.text(&fault.to_string()) })?,
    };
    match part {
        None => Ok(Value::Null),
        Some(part) => json::read_value(part).map_err(|refused| {
            let error = match &refused.fault {
                Fault::Syntax(why) => format!("the answer is not JSON: {why}"),
                Fault::Deep | Fault::Twice | Fault::Number(_) | Fault::Range | Fault::Reserved => {
                    // It quotes what the service sent.
                    mask.text(&format!("the answer cannot be stored: {refused}"))
                }
            };
            AgentError::Unusable { error }
        }),
    }
}

/// What a body says about a refusal, on one line: its `detail` or `code` (RFC 9457), else its beginning. Masked before
/// it is cut or, as JSON, written, because a partial or escaped secret would not be found.
fn said(body: &[u8], mask: &Mask) -> Option<String> {
    let text = match serde_json::from_slice::<Value>(body) {
        Ok(json) => match json.get("detail").or(json.get("code")).and_then(Value::as_str) {
            Some(text) => mask.text(text),
            None => match mask.value(json) {
                Value::String(text) => text,
                other => other.to_string(),
            },
        },
        Err(_) => mask.text(&String::from_utf8_lossy(body)),
    };
    let text = text.replace(char::is_control, " ");
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(shared::history::shorten(&text, MAX_SAID)).filter(|text| !text.is_empty())
}

/// Not called, nor will later attempts be.
pub(crate) fn refused(error: String) -> AgentError {
    AgentError::NotCalled { error, is_permanent: true }
}

/// Not called until something on this side is fixed.
pub(crate) fn unready(error: String) -> AgentError {
    AgentError::NotCalled { error, is_permanent: false }
}

/// A call without an answer. The error is stored with the order, so it omits the URL; the host is in the workflow file.
/// It has all causes: only the last says why a name was not resolved.
pub(crate) fn unanswered(error: reqwest::Error) -> AgentError {
    let is_unsent = error.is_builder();
    let error = Chain(&error.without_url()).to_string();
    if is_unsent { unready(error) } else { AgentError::unavailable(error) }
}

/// The wait that an answer asks for.
pub(crate) fn retry_after(headers: &HeaderMap) -> Option<SignedDuration> {
    wait(headers.get("retry-after").and_then(|value| value.to_str().ok()))
}

/// `Retry-After` in whole seconds or as a date (RFC 9110, section 10.2.3).
fn wait(value: Option<&str>) -> Option<SignedDuration> {
    let value = value?.trim();
    if let Ok(seconds) = value.parse::<u32>() {
        return Some(SignedDuration::from_secs(i64::from(seconds)));
    }
    let date = jiff::fmt::rfc2822::parse(value).ok()?;
    Some(Timestamp::now().duration_until(date.timestamp()).max(SignedDuration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::serve::ListenerExt;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    // A refusal's reason is kept in any form, for a person to read.
    #[test]
    fn what_a_service_says_of_a_refusal_is_kept() {
        let mask = Mask::new(["s3cr\"et".to_owned()]);
        let long = "x".repeat(500);
        let cut = format!("{}...", "x".repeat(MAX_SAID - 3));
        let table = [
            (r#"{"detail": "out of order", "code": "down"}"#, Some("out of order")),
            (r#"{"code": "down"}"#, Some("down")),
            (r#"{"error": {"message": "no such card"}}"#, Some(r#"{"error":{"message":"no such card"}}"#)),
            (
                r#"{"detail": [{"loc": ["body"], "msg": "field required"}]}"#,
                Some(r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#),
            ),
            (r#"["a", 7]"#, Some(r#"["a",7]"#)),
            (r#""maintenance until noon""#, Some("maintenance until noon")),
            ("<html>\n  <h1>502\tBad Gateway</h1>\n", Some("<html> <h1>502 Bad Gateway</h1>")),
            ("upstream \u{1b}[31mdied\u{7}", Some("upstream [31mdied")),
            (&long, Some(&cut)),
            (r#"{"error": "key s3cr\"et is revoked"}"#, Some(r#"{"error":"key *** is revoked"}"#)),
            (r#"key s3cr"et is revoked"#, Some("key *** is revoked")),
            ("", None),
            (" \r\n", None),
        ];
        for (body, kept) in table {
            assert_eq!(said(body.as_bytes(), &mask).as_deref(), kept, "{body}");
        }
        assert_eq!(said(&[0xff, b'a'], &mask).as_deref(), Some("\u{fffd}a"));
    }

    // E3, A4: Retry-After in both of its forms.
    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        assert_eq!(wait(Some("7")), Some(SignedDuration::from_secs(7)));
        assert_eq!(wait(Some("Sat, 01 Jan 2000 00:00:00 GMT")), Some(SignedDuration::ZERO));
        assert_eq!(wait(Some("soon")), None);
        assert_eq!(wait(None), None);
    }

    /// A server on loopback that answers every call with 200: its URL, and its number of connections.
    async fn server() -> (String, Arc<AtomicUsize>) {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let connections = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&connections);
        let listener = listener.tap_io(move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        tokio::spawn(axum::serve(listener, Router::new().fallback(async || {})).into_future());
        (url, connections)
    }

    // A connection that a server closed while the function was frozen is not reused; within a batch connections are.
    #[tokio::test]
    async fn a_connection_that_rested_is_not_used_again() {
        let (url, connections) = server().await;
        let client = client();
        let call = async || {
            let answer = client.get(&url).send().await.unwrap();
            assert_eq!(answer.bytes().await.unwrap().len(), 0);
            // The connection returns to the pool in a separate task.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
        };
        call().await;
        call().await;
        assert_eq!(connections.load(Ordering::SeqCst), 1);
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(5)).await;
        tokio::time::resume();
        call().await;
        assert_eq!(connections.load(Ordering::SeqCst), 2);
    }
}
