//! Export of spans: ended spans are kept in memory, and a flush sends them to the collector in batches.
//!
//! The SDK's batch processor exports from a separate thread. Lambda stops all threads between two invocations, even in
//! the middle of an export. So here the caller of a flush waits for it: a function before it answers, the local system
//! in [`run`].

use super::settings;
use super::transport::{Transport, Trouble};
use opentelemetry::trace::TracerProvider;
use opentelemetry::{Context, KeyValue};
use opentelemetry_otlp::{ExporterBuildError, Protocol, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider, Span, SpanData, SpanExporter as _, SpanProcessor};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

/// Maximum number of waiting spans; further spans are dropped, and counted in the log.
const MAX_WAITING: usize = 2048;
/// Above this number spans are exported even to a slow collector; the rest is room for spans that end meanwhile.
const CROWDED: usize = MAX_WAITING / 2;
/// Maximum number of links of a span. A span that acts on one order several times has one link to it.
const MAX_LINKS: usize = 128;
/// Maximum number of links including repetitions, which a span holds until it ends.
const MAX_REPEATED_LINKS: u32 = 1024;
/// Maximum number of spans in one request.
const BATCH: usize = 512;
/// How often the local system exports.
const EVERY: Duration = Duration::from_secs(5);
/// Longest wait for the collector: of an invocation for its whole export, of the local system for each request.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// With less time than this nothing is sent, because an export that is cut off is lost.
const LEAST: Duration = Duration::from_millis(100);
/// Pause after a failed export; without it every invocation would wait for [`PATIENCE`]. It doubles with each
/// consecutive failure, up to `MAX_HOLD_OFF`.
pub const HOLD_OFF: Duration = Duration::from_secs(30);
/// Longest of these pauses.
pub const MAX_HOLD_OFF: Duration = Duration::from_secs(600);
/// An export that takes no longer than this may be followed by another one at once.
const QUICK: Duration = Duration::from_millis(10);
/// A slower export is followed by a pause of this many times its duration, so that a slow collector costs invocations
/// only a twentieth of their time.
const SPACING: u32 = 20;
/// Longest of these pauses.
const MAX_SPACING: Duration = Duration::from_secs(30);

static PIPELINE: OnceLock<Option<Pipeline>> = OnceLock::new();

struct Pipeline {
    tracer: SdkTracer,
    outlet: Outlet<SpanExporter>,
}

/// Sends spans to the collector.
struct Outlet<E> {
    exporter: E,
    waiting: Arc<Waiting>,
    /// Why the last request failed; the exporter itself says only "network".
    trouble: Trouble,
    /// Locked during an export, so there is one export at a time.
    pace: tokio::sync::Mutex<Pace>,
}

/// When to send, depending on how the collector behaved before.
#[derive(Debug, Default)]
struct Pace {
    /// Nothing is sent before this time.
    next: Option<Instant>,
    /// Number of consecutive failures.
    failures: u32,
}

impl Pace {
    fn took(&mut self, took: Duration) {
        let pause = if took <= QUICK { Duration::ZERO } else { (took * SPACING).min(MAX_SPACING) };
        *self = Self { next: Some(Instant::now() + pause), failures: 0 };
    }

    /// Counts a failure, and returns the length of the pause.
    fn failed(&mut self) -> Duration {
        let pause = HOLD_OFF.saturating_mul(1 << self.failures.min(16)).min(MAX_HOLD_OFF);
        self.failures += 1;
        self.next = Some(Instant::now() + pause);
        pause
    }

    /// Whether to send now: never during the pause after a failure, and during the pause after a slow export only if it
    /// is urgent.
    fn allows(&self, is_urgent: bool) -> bool {
        let is_time = self.next.is_none_or(|next| next <= Instant::now());
        is_time || (is_urgent && self.failures == 0)
    }
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
        if spans.len() == BATCH || spans.len() > CROWDED {
            self.is_full.notify_one();
        }
    }

    fn count(&self) -> usize {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner).0.len()
    }

    /// Takes the oldest spans, at most `most`.
    fn take(&self, most: usize) -> Vec<SpanData> {
        let (spans, _) = &mut *self.spans.lock().unwrap_or_else(PoisonError::into_inner);
        spans.drain(..spans.len().min(BATCH).min(most)).collect()
    }

    fn take_dropped(&self) -> usize {
        std::mem::take(&mut self.spans.lock().unwrap_or_else(PoisonError::into_inner).1)
    }
}

#[derive(Debug)]
struct Collect(Arc<Waiting>);

impl SpanProcessor for Collect {
    fn on_start(&self, _: &mut Span, _: &Context) {}

    fn on_end(&self, mut span: SpanData) {
        if span.span_context.is_sampled() {
            tidy(&mut span);
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

/// The SDK appends repeated attributes and links. Of repeated attributes the last one is kept, of repeated links one.
fn tidy(span: &mut SpanData) {
    let attributes = std::mem::take(&mut span.attributes).into_iter().map(|pair| (pair.key, pair.value));
    let attributes: BTreeMap<_, _> = attributes.collect();
    span.attributes = attributes.into_iter().map(|(key, value)| KeyValue::new(key, value)).collect();
    let (mut seen, links) = (HashSet::new(), &mut span.links);
    links.links.retain(|link| seen.insert((link.span_context.trace_id(), link.span_context.span_id())));
    links.dropped_count += links.links.len().saturating_sub(MAX_LINKS) as u32;
    links.links.truncate(MAX_LINKS);
}

/// Begins to create spans, if the environment names an endpoint: `OTEL_EXPORTER_OTLP_ENDPOINT` or
/// `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`. `instance` is the name of this process. A second call changes nothing.
pub fn init(instance: &str) {
    PIPELINE.get_or_init(|| {
        // Values may contain a key or a password, so only names are logged.
        match settings::endpoint(settings::environment) {
            Ok(false) => return None,
            Ok(true) => {}
            Err(variable) => {
                tracing::error!(variable, "spans are not exported: its value is not a URL; write http://HOST:PORT");
                return None;
            }
        }
        if let Some(variable) = settings::wrong_sampler(settings::environment) {
            tracing::warn!(variable, "its value is invalid, so it does not set the sampling");
        }
        let log = |error: &ExporterBuildError| {
            let error = error.to_string();
            let variable = settings::named_by(&error);
            tracing::error!(variable, "spans are not exported: the environment is invalid");
        };
        build(instance).inspect_err(log).ok()
    });
}

fn build(instance: &str) -> Result<Pipeline, ExporterBuildError> {
    let (transport, trouble) = Transport::new();
    let mut exporter = SpanExporter::builder()
        .with_http()
        .with_http_client(transport)
        .with_protocol(Protocol::HttpBinary)
        // Retries would block the thread while they sleep.
        .with_retry_policy(RetryPolicy::disabled())
        .build()?;
    let resource = resource(instance);
    exporter.set_resource(&resource);
    let waiting = Arc::<Waiting>::default();
    let provider = SdkTracerProvider::builder()
        .with_resource(resource)
        .with_max_links_per_span(MAX_REPEATED_LINKS)
        .with_span_processor(Collect(Arc::clone(&waiting)))
        .build();
    let tracer = provider.tracer("stepwarden");
    let outlet = Outlet { exporter, waiting, trouble, pace: tokio::sync::Mutex::default() };
    Ok(Pipeline { tracer, outlet })
}

/// The resource of the spans: what `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` set, and defaults for the rest.
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

/// The tracer that creates spans; `None` if no endpoint is set.
pub(super) fn tracer() -> Option<&'static SdkTracer> {
    PIPELINE.get()?.as_ref().map(|pipeline| &pipeline.tracer)
}

/// Exports ended spans for an invocation that is stopped at `deadline`: within [`PATIENCE`] and half of the remaining
/// time, so that the invocation ends in time. Spans without time left stay; spans that the collector does not accept in
/// time are lost.
pub async fn flush_before(deadline: SystemTime) {
    let Some(Some(pipeline)) = PIPELINE.get() else { return };
    let left = deadline.duration_since(SystemTime::now()).unwrap_or_default();
    pipeline.outlet.flush(Some(Instant::now() + PATIENCE.min(left / 2)), false).await;
}

/// Exports every few seconds, or sooner if many spans wait, until `ended`. [`finish`] exports the last spans.
pub async fn run(ended: impl Future<Output = ()>) {
    let Some(Some(Pipeline { outlet, .. })) = PIPELINE.get() else { return };
    tokio::pin!(ended);
    loop {
        tokio::select! {
            () = &mut ended => return,
            () = outlet.waiting.is_full.notified() => {}
            () = tokio::time::sleep(EVERY) => {}
        }
        outlet.flush(None, false).await;
    }
}

/// Exports the remaining spans at the end, unless the collector is failing.
pub async fn finish() {
    let Some(Some(Pipeline { outlet, .. })) = PIPELINE.get() else { return };
    outlet.flush(None, true).await;
    match outlet.waiting.count() {
        0 => {}
        spans => tracing::warn!(spans, "spans are discarded: the collector did not accept them before shutdown"),
    }
}

impl<E: opentelemetry_sdk::trace::SpanExporter> Outlet<E> {
    /// Exports the spans that wait now. Without an `end` the collector has [`PATIENCE`] for each request. With
    /// `is_last` pauses are ignored.
    async fn flush(&self, end: Option<Instant>, is_last: bool) {
        let locked = match end {
            Some(end) => timeout_at(end, self.pace.lock()).await.ok(),
            None => Some(self.pace.lock().await),
        };
        let Some(mut pace) = locked else { return };
        // Leave spans that end meanwhile, because they might never stop coming.
        let mut left = self.waiting.count();
        let mut least = LEAST;
        while left > 0 && pace.allows(is_last || self.waiting.count() > CROWDED) {
            let begin = Instant::now();
            let patience = end.map_or(PATIENCE, |end| end.saturating_duration_since(begin));
            if end.is_some() && patience < least {
                break;
            }
            let batch = self.waiting.take(left);
            let spans = batch.len();
            left -= spans;
            let answer = timeout(patience, self.exporter.export(batch)).await;
            let took = begin.elapsed();
            let error = match answer {
                Ok(Ok(())) => {
                    pace.took(took);
                    // The next request takes about as long, or somewhat longer.
                    least = LEAST.max(took * 2);
                    continue;
                }
                Err(_) => "no answer".to_owned(),
                Ok(Err(error)) => match self.trouble.take() {
                    Some(kind) => format!("{error}: {kind}"),
                    None => error.to_string(),
                },
            };
            let pause = pace.failed();
            tracing::warn!(
                spans,
                error,
                "the collector did not accept spans, which are lost; next export in {pause:?}"
            );
            break;
        }
        match self.waiting.take_dropped() {
            0 => {}
            spans => tracing::warn!(spans, "spans were dropped: more than {MAX_WAITING} waited"),
        }
    }
}

/// A tracer for tests that exports nothing: the test takes the spans that have ended.
#[cfg(test)]
pub(super) fn kept() -> Vec<SpanData> {
    let pipeline = PIPELINE.get_or_init(|| Some(build("test").expect("no variable is set")));
    pipeline.as_ref().expect("it was made here").outlet.waiting.take(MAX_WAITING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry::trace::{Span as _, Tracer as _};
    use opentelemetry_sdk::error::OTelSdkError;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::time::sleep;

    /// A collector that answers after a time, never (`None`), or with a refusal.
    #[derive(Debug, Default)]
    struct Fake {
        takes: Mutex<Option<Duration>>,
        refuses: Mutex<bool>,
        requests: AtomicUsize,
        spans: AtomicUsize,
    }

    impl Fake {
        fn set(&self, takes: Option<Duration>, refuses: bool) {
            *self.takes.lock().unwrap() = takes;
            *self.refuses.lock().unwrap() = refuses;
        }

        fn seen(&self) -> (usize, usize) {
            (self.requests.load(Ordering::Relaxed), self.spans.load(Ordering::Relaxed))
        }
    }

    #[derive(Clone, Debug)]
    struct To(Arc<Fake>);

    impl opentelemetry_sdk::trace::SpanExporter for To {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.requests.fetch_add(1, Ordering::Relaxed);
            let (takes, refuses) = (*self.0.takes.lock().unwrap(), *self.0.refuses.lock().unwrap());
            match takes {
                Some(takes) => sleep(takes).await,
                None => std::future::pending().await,
            }
            if refuses {
                return Err(OTelSdkError::InternalFailure("refused".into()));
            }
            self.0.spans.fetch_add(batch.len(), Ordering::Relaxed);
            Ok(())
        }
    }

    struct World {
        collector: Arc<Fake>,
        outlet: Outlet<To>,
        tracer: SdkTracer,
    }

    fn world(takes: Option<Duration>) -> World {
        let (collector, waiting) = (Arc::<Fake>::default(), Arc::<Waiting>::default());
        collector.set(takes, false);
        let provider = SdkTracerProvider::builder().with_span_processor(Collect(Arc::clone(&waiting))).build();
        let (exporter, pace) = (To(Arc::clone(&collector)), tokio::sync::Mutex::default());
        let outlet = Outlet { exporter, waiting, trouble: Trouble::default(), pace };
        World { collector, outlet, tracer: provider.tracer("test") }
    }

    impl World {
        fn end(&self, spans: usize) {
            (0..spans).for_each(|_| self.tracer.start("one").end());
        }

        /// An invocation that creates `spans`, with `patience` for their export. Returns how long the export took.
        async fn invoke(&self, spans: usize, patience: Duration) -> Duration {
            self.end(spans);
            let begin = Instant::now();
            self.outlet.flush(Some(begin + patience), false).await;
            begin.elapsed()
        }

        async fn failures(&self) -> u32 {
            self.outlet.pace.lock().await.failures
        }
    }

    const MS: Duration = Duration::from_millis(1);
    const S: Duration = Duration::from_secs(1);

    // Telemetry: with a healthy collector no span is lost, however many there are, and exports do not pause.
    #[tokio::test(start_paused = true)]
    async fn a_collector_that_is_well_loses_nothing() {
        let world = world(Some(50 * MS));
        let mut made = 0;
        for patience in [2 * S, 120 * MS, 99 * MS, 2 * S, 149 * MS, 260 * MS].into_iter().cycle().take(60) {
            made += 250;
            assert!(world.invoke(250, patience).await <= patience);
            sleep(40 * MS).await;
            assert_eq!(world.failures().await, 0);
        }
        world.outlet.flush(None, true).await;
        assert_eq!(world.collector.seen().1 + world.outlet.waiting.count(), made, "none is lost");
        assert_eq!(world.outlet.waiting.count(), 0);
    }

    // Telemetry: in the local system every request has the full patience.
    #[tokio::test(start_paused = true)]
    async fn without_an_end_every_request_has_its_own_patience() {
        let world = world(Some(1900 * MS));
        world.end(MAX_WAITING);
        world.outlet.flush(None, true).await;
        assert_eq!(world.collector.seen(), (4, MAX_WAITING));
        assert_eq!(world.failures().await, 0);
    }

    // Telemetry: a slow collector costs invocations a twentieth of their time.
    #[tokio::test(start_paused = true)]
    async fn a_slow_collector_is_used_seldom() {
        let world = world(Some(600 * MS));
        let (begin, mut waited) = (Instant::now(), Duration::ZERO);
        while begin.elapsed() < 300 * S {
            waited += world.invoke(1, 2 * S).await;
            sleep(500 * MS).await;
        }
        assert!(waited < begin.elapsed() / 19, "{waited:?} of {:?}", begin.elapsed());
        assert!(waited > begin.elapsed() / 25, "{waited:?} of {:?}", begin.elapsed());
        world.end(CROWDED);
        let before = world.collector.seen().0;
        world.invoke(1, 2 * S).await;
        assert_eq!(world.collector.seen().0, before + 1, "what would be dropped is not held back");
    }

    // Telemetry: a quick collector gets every invocation's spans before the invocation answers.
    #[tokio::test(start_paused = true)]
    async fn a_quick_collector_is_used_each_time() {
        let world = world(Some(5 * MS));
        for n in 1..=20 {
            world.invoke(1, 2 * S).await;
            assert_eq!(world.collector.seen(), (n, n));
        }
    }

    // Telemetry: the pause after a failure doubles with each consecutive one, and is short again after a success.
    #[tokio::test(start_paused = true)]
    async fn a_dead_collector_is_left_alone_for_longer_and_longer() {
        let world = world(None);
        for pause in [30, 60, 120, 240, 480, 600, 600].map(Duration::from_secs) {
            assert_eq!(world.invoke(1, PATIENCE).await, PATIENCE);
            let requests = world.collector.seen().0;
            sleep(pause - S).await;
            assert_eq!(world.invoke(MAX_WAITING, PATIENCE).await, Duration::ZERO, "not even when it is full");
            assert_eq!(world.collector.seen().0, requests);
            while !world.outlet.waiting.take(MAX_WAITING).is_empty() {}
            sleep(S).await;
        }
        world.collector.set(Some(MS), true);
        world.invoke(1, PATIENCE).await;
        assert_eq!(world.failures().await, 8, "a refusal counts as silence does");
        sleep(MAX_HOLD_OFF).await;
        world.collector.set(Some(MS), false);
        world.invoke(1, PATIENCE).await;
        world.collector.set(None, false);
        world.invoke(1, 500 * MS).await;
        assert_eq!(world.failures().await, 1, "silence counts in a short invocation, too");
        sleep(HOLD_OFF).await;
        assert_eq!(world.invoke(1, PATIENCE).await, PATIENCE, "after a success it is the first pause again");
    }
}
