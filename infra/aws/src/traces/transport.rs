//! OTLP over the AWS SDK's HTTP client, so that no function has a second one.

use crate::web;
use async_trait::async_trait;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Longest answer that is read, in bytes: a collector's own is a few.
const MAX_ANSWER: usize = 64 * 1024;

/// Why the last request failed, in words that contain nothing from the collector.
#[derive(Clone, Debug, Default)]
pub(super) struct Trouble(Arc<Mutex<Option<String>>>);

impl Trouble {
    fn set(&self, kind: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(kind);
    }

    pub(super) fn take(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Sends a request once. The caller bounds the wait.
#[derive(Debug)]
pub(super) struct Transport {
    http: SharedHttpClient,
    trouble: Trouble,
    has_warned: AtomicBool,
}

impl Transport {
    /// The transport, and where it notes what went wrong, because the exporter says only "network".
    pub(super) fn new() -> (Self, Trouble) {
        let trouble = Trouble::default();
        let http = crate::clients::http_client();
        (Self { http, trouble: trouble.clone(), has_warned: AtomicBool::new(false) }, trouble)
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (parts, body) = request.into_parts();
        let answer = web::send(&self.http, Request::from_parts(parts, body.into()), MAX_ANSWER).await?;
        if answer.status() == 200 {
            self.warn_of_refused(answer.body());
        }
        Ok(answer.map(Bytes::from))
    }

    /// Warns once, because a collector that refuses some spans refuses them in every export. Logs only the number, not
    /// the collector's words.
    fn warn_of_refused(&self, body: &[u8]) {
        if let Some(spans) = refused(body)
            && !self.has_warned.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(spans, "the collector accepted an export, but rejected or warned about some of its spans");
        }
    }
}

#[async_trait]
impl HttpClient for Transport {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        self.trouble.take();
        self.send(request).await.inspect_err(|error| self.trouble.set(error.to_string()))
    }
}

/// The number of refused spans in the answer `body`; `None` if the answer only confirms that all were accepted.
fn refused(body: &[u8]) -> Option<i64> {
    let partial = ExportTraceServiceResponse::decode(body).ok()?.partial_success?;
    (partial.rejected_spans != 0 || !partial.error_message.is_empty()).then_some(partial.rejected_spans)
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTracePartialSuccess;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// The result of an export to a collector that answers `body`.
    async fn answered(body: Vec<u8>) -> (Result<Response<Bytes>, HttpError>, Option<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let (mut connection, _) = listener.accept().await.unwrap();
            let _ = connection.read(&mut [0; 4096]).await;
            // Sent in chunks, so that no header states the length.
            let _ = connection.write_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").await;
            for chunk in body.chunks(8000) {
                let _ = connection.write_all(format!("{:x}\r\n", chunk.len()).as_bytes()).await;
                let _ = connection.write_all(chunk).await;
                let _ = connection.write_all(b"\r\n").await;
            }
            let _ = connection.write_all(b"0\r\n\r\n").await;
        });
        let (transport, trouble) = Transport::new();
        let request = Request::post(url).body(Bytes::from_static(b"spans")).unwrap();
        let answer = transport.send_bytes(request).await;
        serving.abort();
        (answer, trouble.take())
    }

    #[tokio::test]
    async fn an_answer_is_read_up_to_its_limit() {
        let (answer, trouble) = answered(vec![7; MAX_ANSWER]).await;
        assert_eq!((answer.unwrap().body().len(), trouble), (MAX_ANSWER, None));
        let (answer, trouble) = answered(vec![7; MAX_ANSWER + 1]).await;
        assert!(answer.is_err());
        assert_eq!(trouble.unwrap(), "its answer is longer than 65536 bytes");
    }

    #[tokio::test]
    async fn the_kind_of_trouble_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        drop(listener);
        let (transport, trouble) = Transport::new();
        assert!(transport.send_bytes(Request::post(url).body(Bytes::new()).unwrap()).await.is_err());
        assert_eq!(trouble.take().unwrap(), "io error: connection refused");
    }

    #[test]
    fn only_what_was_refused_is_told() {
        let answer = |partial_success| ExportTraceServiceResponse { partial_success }.encode_to_vec();
        let partial = |rejected_spans, error: &str| {
            refused(&answer(Some(ExportTracePartialSuccess { rejected_spans, error_message: error.into() })))
        };
        assert_eq!(refused(b""), None);
        assert_eq!(refused(b"{}"), None, "not protobuf");
        assert_eq!(refused(&answer(None)), None);
        assert_eq!(partial(0, ""), None);
        assert_eq!(partial(3, "too old"), Some(3));
        assert_eq!(partial(0, "soon to be too old"), Some(0));
    }
}
