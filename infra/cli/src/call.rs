//! What every call of this program begins and ends with: an HTTP client, and why the call failed.

use reqwest::{Client, ClientBuilder, StatusCode};
use serde_json::Value;

/// Every HTTP client of this program begins here.
pub fn http() -> ClientBuilder {
    Client::builder()
}

/// Why a call failed. Each message is one line that says what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no answer.
    #[error(
        "no answer from {url} ({cause}): is `stepwarden up` running? If it is elsewhere, set --url or STEPWARDEN_URL"
    )]
    NoAnswer {
        /// The API.
        url: String,
        /// The operating system's message.
        cause: String,
    },
    /// The token is missing or unknown.
    #[error(
        "401 {url} {why}: pass its token with --token or in STEPWARDEN_TOKEN, or run this in the folder where \
         `stepwarden up` keeps .stepwarden/token"
    )]
    Token {
        /// The API.
        url: String,
        /// What is wrong with the token that was sent, if one was.
        why: &'static str,
    },
    /// AWS, or the API's check of a signature, refuses.
    #[error("{why}")]
    Aws {
        /// What is wrong, and what to do.
        why: String,
        /// Whether the same call may succeed later.
        is_passing: bool,
    },
    /// The API refuses.
    #[error("{}", .0)]
    Refused(Refusal),
    /// The text cannot be an id or a name.
    #[error("`{0}` is neither an order id (ord_ and 26 letters and digits) nor a name")]
    Name(String),
    /// The order's file cannot be used.
    #[error("{0}")]
    File(String),
}

/// A refusal: a problem (RFC 9457), or another program's answer.
#[derive(Debug)]
pub struct Refusal {
    /// HTTP status.
    pub status: StatusCode,
    /// The body.
    pub body: Value,
    /// The API.
    pub url: String,
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { status, body, url } = self;
        write!(f, "{} ", status.as_u16())?;
        match body["field"].as_str() {
            // The only field whose default comes from the environment.
            Some("by") => f.write_str("--by: ")?,
            Some(field) => write!(f, "{field}: ")?,
            None => {}
        }
        match (body["detail"].as_str(), body.as_str()) {
            (Some(text), _) => f.write_str(text)?,
            // The answer is not from this API, but from a proxy or another program.
            (None, Some(text)) => f.write_str(text.lines().next().unwrap_or_default())?,
            (None, None) => write!(f, "{body}")?,
        }
        if let Some(seconds) = body["retry_after_s"].as_u64() {
            write!(f, "; try again in {seconds} s")?;
        }
        match (body["code"].as_str(), body["type"].as_str()) {
            (Some(code), Some(kind)) => write!(f, " ({code}; what to do: {url}{kind})"),
            _ => Ok(()),
        }
    }
}

impl Error {
    /// Repeating the same call cannot succeed: the caller must correct it.
    pub fn is_wrong_use(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => false,
            Self::Token { .. } | Self::Name(_) | Self::File(_) => true,
            Self::Aws { is_passing, .. } => !is_passing,
            Self::Refused(Refusal { status, .. }) => {
                status.is_client_error()
                    && ![StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS, StatusCode::REQUEST_TIMEOUT]
                        .contains(status)
            }
        }
    }

    /// The same call may succeed later.
    pub fn is_passing(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::Token { .. } | Self::Name(_) | Self::File(_) => false,
            Self::Aws { is_passing, .. } => *is_passing,
            Self::Refused(Refusal { status, .. }) => {
                status.is_server_error() || *status == StatusCode::TOO_MANY_REQUESTS
            }
        }
    }
}

/// The innermost cause, which is the clearest: «Connection refused».
pub fn cause(error: &dyn std::error::Error) -> String {
    let mut last = error;
    while let Some(source) = last.source() {
        last = source;
    }
    last.to_string()
}
