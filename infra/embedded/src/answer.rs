//! What an operation answers, before it is put into an HTTP response.

use serde::Serialize;
use serde_json::json;

/// One answer in the AWS JSON protocol.
#[derive(Debug)]
pub(crate) struct Answer {
    /// HTTP status: 200, or the error's.
    pub status: u16,
    /// JSON.
    pub body: Vec<u8>,
    /// Value of the header `x-amzn-query-error`: `code;Sender` or `code;Receiver`. SQS only; the
    /// SDKs map SQS errors to their types by this code and not by `__type`.
    pub query_error: Option<String>,
}

impl Answer {
    /// 200 with `value` as JSON.
    pub fn ok(value: &impl Serialize) -> Self {
        Self::ok_bytes(serde_json::to_vec(value).expect("answers have string keys only"))
    }

    /// 200 with `{}`.
    pub fn empty() -> Self {
        Self::ok_bytes(b"{}".to_vec())
    }

    /// 200 with JSON already written.
    pub fn ok_bytes(body: Vec<u8>) -> Self {
        Self { status: 200, body, query_error: None }
    }

    /// An error: `{"__type": kind, "message": message}`.
    pub fn error(status: u16, kind: &str, message: &str) -> Self {
        Self { status, ..Self::ok(&json!({ "__type": kind, "message": message })) }
    }

    pub fn is_error(&self) -> bool {
        self.status >= 400
    }
}
