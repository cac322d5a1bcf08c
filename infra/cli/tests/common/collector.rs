//! A collector in this process: it keeps what it receives by OTLP over HTTP, and reads the spans in it.
#![allow(dead_code)]

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

#[derive(Default)]
struct Received {
    exports: Vec<(HeaderMap, Bytes)>,
    calls: Vec<HeaderMap>,
}

/// It listens until the test ends.
#[derive(Clone)]
pub struct Collector {
    pub url: String,
    received: Arc<Mutex<Received>>,
}

/// A span, with ids as in a `traceparent`.
#[derive(Clone, Debug)]
pub struct Span {
    pub service: String,
    pub name: String,
    pub kind: SpanKind,
    pub trace: String,
    pub id: String,
    pub parent: String,
    /// Trace and span.
    pub links: Vec<(String, String)>,
    pub attributes: BTreeMap<String, String>,
    pub is_error: bool,
}

impl Span {
    pub fn get(&self, name: &str) -> &str {
        self.attributes.get(name).map_or("", String::as_str)
    }
}

impl Collector {
    pub async fn start() -> Self {
        let received = Arc::<Mutex<Received>>::default();
        let export = async |State(received): State<Arc<Mutex<Received>>>, headers: HeaderMap, body: Bytes| {
            received.lock().unwrap().exports.push((headers, body));
        };
        let call = async |State(received): State<Arc<Mutex<Received>>>, headers: HeaderMap| {
            received.lock().unwrap().calls.push(headers);
        };
        let router = Router::new().route("/v1/traces", post(export)).route("/calls", post(call));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router.with_state(Arc::clone(&received))).into_future());
        Self { url, received }
    }

    /// Headers and bytes of every export.
    pub fn exports(&self) -> Vec<(HeaderMap, Bytes)> {
        self.received.lock().unwrap().exports.clone()
    }

    /// Headers of all other calls.
    pub fn calls(&self) -> Vec<HeaderMap> {
        self.received.lock().unwrap().calls.clone()
    }

    /// All spans so far.
    pub fn spans(&self) -> Vec<Span> {
        self.exports().into_iter().flat_map(|(_, body)| spans(&body)).collect()
    }
}

fn spans(body: &[u8]) -> Vec<Span> {
    let mut all = Vec::new();
    for resource in ExportTraceServiceRequest::decode(body).unwrap().resource_spans {
        let service = attributes(resource.resource.unwrap().attributes).remove("service.name").unwrap();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            let links: Vec<_> = span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect();
            assert_eq!(links.iter().collect::<BTreeSet<_>>().len(), links.len(), "each link once: {links:?}");
            all.push(Span {
                service: service.clone(),
                kind: span.kind(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                links,
                attributes: attributes(span.attributes),
                is_error: span.status.is_some_and(|status| status.code() == StatusCode::Error),
            });
        }
    }
    all
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: Option<AnyValue>| match value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    };
    let count = all.len();
    let all: BTreeMap<_, _> = all.into_iter().map(|pair| (pair.key, text(pair.value))).collect();
    assert_eq!(all.len(), count, "each name once: {all:?}");
    all
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
