//! Where spans go: into memory as they end, and from there to the collector in batches, when [`flush`] is called.
//!
//! The SDK's own batch processor exports from a thread of its own. Lambda stops all threads between two invocations, in the
//! middle of an export too, so here whoever calls [`flush`] waits for it: a function before it answers, the local system from
//! [`run`].

use super::transport::Transport;
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

/// Most spans that wait; what ends beyond them is dropped, and counted in the log.
const MAX_WAITING: usize = 2048;
/// Spans of one request.
const BATCH: usize = 512;
/// How often the local system exports.
const EVERY: Duration = Duration::from_secs(5);
/// Longest wait for the collector: of an invocation for its answer, of the local system for its end.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// Nothing is sent for so long after a collector that did not take spans, or it would cost every invocation [`PATIENCE`].
pub const HOLD_OFF: Duration = Duration::from_secs(30);

static PIPELINE: OnceLock<Option<Pipeline>> = OnceLock::new();

struct Pipeline {
    tracer: SdkTracer,
    exporter: SpanExporter,
    waiting: Arc<Waiting>,
    /// Nothing is sent before this time. Locked during an export: there is one at a time.
    resume: tokio::sync::Mutex<Option<Instant>>,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Spans that have ended, and how many were dropped.
    spans: Mutex<(Vec<SpanData>, usize)>,
    is_full: Notify,
}

impl Waiting {
    fn push(&self, span: SpanData) {
        let (spans, dropped) = &mut *self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        if spans.len() == MAX_WAITING {
            *dropped += 1;
            return;
        }
        spans.push(span);
        if spans.len() == BATCH {
            self.is_full.notify_one();
        }
    }

    /// The oldest of them.
    fn take(&self) -> Vec<SpanData> {
        let (spans, _) = &mut *self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.drain(..spans.len().min(BATCH)).collect()
    }

    fn take_dropped(&self) -> usize {
        std::mem::take(&mut self.spans.lock().unwrap_or_else(PoisonError::into_inner).1)
    }
}

#[derive(Debug)]
struct Collect(Arc<Waiting>);

impl SpanProcessor for Collect {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, span: SpanData) {
        if span.span_context.is_sampled() {
            self.0.push(span);
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        Ok(())
    }

    fn shutdown_with_timeout(&self, _: Duration) -> OTelSdkResult {
        Ok(())
    }
}

/// Begins to make spans, if the environment names an endpoint: `OTEL_EXPORTER_OTLP_ENDPOINT` or
/// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. `instance` is the name of this process. A second call changes nothing.
pub fn init(instance: &str) {
    PIPELINE.get_or_init(|| {
        let is_set = |name| std::env::var(name).is_ok_and(|value| !value.trim().is_empty());
        if ![opentelemetry_otlp::OTEL_EXPORTER_OTLP_TRACES_ENDPOINT, opentelemetry_otlp::OTEL_EXPORTER_OTLP_ENDPOINT]
            .into_iter()
            .any(is_set)
        {
            return None;
        }
        build(instance)
            .inspect_err(|error| tracing::error!("spans are not exported, as the environment is wrong: {error}"))
            .ok()
    });
}

fn build(instance: &str) -> Result<Pipeline, opentelemetry_otlp::ExporterBuildError> {
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(Transport::new())
        .with_protocol(Protocol::HttpBinary)
        // It would sleep between tries without letting others on.
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    let resource = resource(instance);
    exporter.set_resource(&resource);
    let waiting = Arc::<Waiting>::default();
    let provider =
        SdkTracerProvider::builder().with_resource(resource).with_span_processor(Collect(Arc::clone(&waiting))).build();
    let tracer = provider.tracer("stepwarden");
    Ok(Pipeline { tracer, exporter, waiting, resume: tokio::sync::Mutex::new(None) })
}

/// Who makes the spans: what `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say, and what they leave open.
fn resource(instance: &str) -> Resource {
    let told = Resource::builder().build();
    let has_name = told.get(&"service.name".into()).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
    let function = std::env::var("AWS_LAMBDA_FUNCTION_NAME").ok();
    let mut resource = Resource::builder()
        .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
        .with_attribute(KeyValue::new("service.instance.id", instance.to_owned()));
    if !has_name {
        resource = resource.with_service_name(function.unwrap_or_else(|| "stepwarden".to_owned()));
    }
    resource.build()
}

/// What makes spans; `None` where no endpoint is set.
pub(super) fn tracer() -> Option<&'static SdkTracer> {
    PIPELINE.get()?.as_ref().map(|pipeline| &pipeline.tracer)
}

/// Exports what has ended, within [`PATIENCE`]. A collector that does not take it in that time is left alone for [`HOLD_OFF`],
/// and what was sent to it is lost.
pub async fn flush() {
    flush_within(PATIENCE).await;
}

/// The same for an invocation that is stopped at `deadline`: within half of the time that is left, so that it ends well.
pub async fn flush_before(deadline: SystemTime) {
    let left = deadline.duration_since(SystemTime::now()).unwrap_or_default();
    flush_within(PATIENCE.min(left / 2)).await;
}

async fn flush_within(patience: Duration) {
    let Some(Some(Pipeline { exporter, waiting, resume, .. })) = PIPELINE.get() else { return };
    let end = Instant::now() + patience;
    let Ok(mut resume) = timeout_at(end, resume.lock()).await else { return };
    if resume.is_some_and(|resume| Instant::now() < resume) {
        return;
    }
    loop {
        let batch = waiting.take();
        if batch.is_empty() {
            break;
        }
        let spans = batch.len();
        let why = match timeout_at(end, exporter.export(batch)).await {
            Ok(Ok(())) => continue,
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {patience:?}"),
        };
        *resume = Some(Instant::now() + HOLD_OFF);
        tracing::warn!(spans, error = why, "spans were not taken and are lost; the next ones are sent in {HOLD_OFF:?}");
        break;
    }
    match waiting.take_dropped() {
        0 => {}
        spans => tracing::warn!(spans, "spans were dropped: more than {MAX_WAITING} waited"),
    }
}

/// Exports every few seconds, and sooner what is many, until `ended`. The last spans are left to [`flush`].
pub async fn run(ended: impl Future<Output = ()>) {
    let Some(Some(pipeline)) = PIPELINE.get() else { return };
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => return,
            () = pipeline.waiting.is_full.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
        flush().await;
    }
}
