//! A refusal, as RFC 9457 problem details.

use axum::extract::rejection::BytesRejection;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// JSON: `{"type": "about:blank", "title": "Conflict", "status": 409, "code": "undone", "detail": "…"}`.
#[derive(Debug)]
pub(super) struct Problem {
    status: StatusCode,
    /// What a program chooses by.
    code: &'static str,
    /// What a person reads: what is wrong and what to write instead.
    detail: String,
    header: Option<(HeaderName, &'static str)>,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, detail: impl Into<String>) -> Self {
        Self { status, code, detail: detail.into(), header: None }
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_request", detail)
    }

    pub(super) fn with_header(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = json!({
            "type": "about:blank",
            "title": self.status.canonical_reason(),
            "status": self.status.as_u16(),
            "code": self.code,
            "detail": self.detail,
        });
        let content_type = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status, content_type, body.to_string()).into_response();
        if let Some((name, value)) = self.header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl From<BytesRejection> for Problem {
    fn from(rejection: BytesRejection) -> Self {
        // The listener, which knows why, answers in its place.
        Self::new(rejection.status(), "unreadable_body", rejection.body_text())
    }
}

impl From<crate::Error> for Problem {
    fn from(err: crate::Error) -> Self {
        // Busy is load, the others are the operator's to see; both are transient to the caller.
        if !matches!(err, crate::Error::Busy) {
            let cause = std::error::Error::source(&err).map(ToString::to_string);
            tracing::error!("{err}: {}", cause.unwrap_or_default());
        }
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", format!("{err}; try again"))
    }
}
