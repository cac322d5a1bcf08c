//! A client of a running system's API, for the command line.

use crate::call::http;
pub use crate::call::{Error, Refusal, cause};
use crate::signed::{self, Signer};
use anyhow::{Context, Result};
use reqwest::header::{ETAG, HeaderMap, IF_NONE_MATCH};
use reqwest::{Client, Method, RequestBuilder, StatusCode};
use serde_json::Value;
use std::path::Path;
use std::time::Duration;
use stepwarden_local::data_folder::{is_here, kept_token};

/// Longest wait for one answer: a long poll takes 20 s, as a call of many actions does.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A client of one system.
pub struct Api {
    http: Client,
    /// URL of the API.
    pub url: String,
    /// Sent with every call.
    pub token: Option<String>,
    /// Signs every call if there is no token.
    signer: Option<Signer>,
}

/// An answer as it came.
pub struct Raw {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

/// A successful answer.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The body, as JSON or as text.
    pub body: Value,
}

impl Api {
    /// The API at `url`. Without a token, and if the API is on this machine, the client uses the token that `stepwarden
    /// up` keeps in `data`.
    pub fn new(url: &str, token: Option<String>, data: &Path) -> Result<Self> {
        let http = http().timeout(TIMEOUT);
        // A proxy on another machine would get this machine's token, and would call its own loopback address.
        let http = if is_here(url) { http.no_proxy() } else { http };
        let http = http.build().context("making the HTTP client")?;
        let token = token.filter(|token| !token.is_empty()).or_else(|| kept_token(url, data));
        Ok(Self { http, url: url.trim_end_matches('/').to_owned(), token, signer: None })
    }

    /// The same API, whose calls are signed if there is no token.
    #[must_use]
    pub fn signed_by(self, signer: Signer) -> Self {
        Self { signer: self.token.is_none().then_some(signer), ..self }
    }

    /// The answer of a route.
    pub async fn read(&self, path: &str) -> Result<Value, Error> {
        Ok(self.ask(self.request(Method::GET, path)).await?.body)
    }

    /// The answer of a route to a body.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Error> {
        Ok(self.ask(self.request(Method::POST, path).json(body)).await?.body)
    }

    /// An order's status and its ETag. With the ETag `known` this waits up to `wait_s` seconds for a change; `None` if
    /// there was none.
    pub async fn order(&self, id: &str, known: Option<&str>, wait_s: u64) -> Result<Option<(Value, String)>, Error> {
        let mut request = self.request(Method::GET, &format!("/orders/{}?wait={wait_s}", segment(id)?));
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        let answer = self.ask(request).await?;
        let etag = answer.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).unwrap_or_default().to_owned();
        Ok((answer.status != StatusCode::NOT_MODIFIED).then_some((answer.body, etag)))
    }

    /// A request with the token.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    /// Sends a request, and returns a successful answer.
    pub async fn ask(&self, request: RequestBuilder) -> Result<Answer, Error> {
        let Raw { status, headers, text } = self.send(request).await?;
        // A status nests an output deeper than the record does, so the usual limit would be too strict.
        let body = shared::json::read_own(&text).unwrap_or(Value::String(text));
        if status.is_success() || status == StatusCode::NOT_MODIFIED {
            return Ok(Answer { status, headers, body });
        }
        Err(Error::Refused(Refusal { status, body, url: self.url.clone() }))
    }

    /// Sends a request, and returns any answer of the API itself.
    pub async fn send(&self, request: RequestBuilder) -> Result<Raw, Error> {
        let lost = |error: reqwest::Error| Error::NoAnswer { url: self.url.clone(), cause: cause(&error) };
        let mut request = request.build().map_err(lost)?;
        if let Some(signer) = &self.signer {
            signer.sign(&mut request, "execute-api").await?;
        }
        let answer = self.http.execute(request).await.map_err(lost)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text = answer.text().await.map_err(lost)?;
        let url = self.url.clone();
        if status == StatusCode::UNAUTHORIZED {
            let why = if self.token.is_some() { "does not know the token" } else { "asks for a token" };
            return Err(Error::Token { url, why });
        }
        // The API's own refusals have a code; this one is of the gateway before it.
        let is_of_the_gateway = || serde_json::from_str::<Value>(&text).is_ok_and(|body| body["code"].is_null());
        if status == StatusCode::FORBIDDEN && self.signer.is_some() && is_of_the_gateway() {
            return Err(signed::forbidden(&url, &headers, &text));
        }
        Ok(Raw { status, headers, text })
    }
}

/// An id or a name as one part of a path: neither contains a character with a meaning in paths.
pub fn segment(id: &str) -> Result<&str, Error> {
    let good = !id.is_empty() && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if good { Ok(id) } else { Err(Error::Name(id.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_system_on_this_machine_is_asked() {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let router = axum::Router::new().route("/orders", axum::routing::get(|| async { "[]" }));
        tokio::spawn(async move { axum::serve(listener, router).await });
        let api = Api::new(&url, Some("token".into()), Path::new("nowhere")).unwrap();
        assert_eq!(api.read("/orders").await.unwrap(), serde_json::json!([]));
    }

    // Security: the test above again, with an environment that names a proxy that does not exist.
    #[test]
    fn the_system_on_this_machine_is_asked_without_a_proxy() {
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        again.args(["--exact", "client::tests::the_system_on_this_machine_is_asked"]);
        again.env("HTTP_PROXY", "http://127.0.0.1:9").env_remove("NO_PROXY").env_remove("no_proxy");
        let said = String::from_utf8(again.output().unwrap().stdout).unwrap();
        assert!(said.contains("1 passed"), "{said}");
    }
}
