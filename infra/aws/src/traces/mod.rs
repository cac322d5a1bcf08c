//! Spans: for the log and, if the environment names an endpoint ([`init`]), for OpenTelemetry.
//!
//! Every span of an order is a child of one span, that of the submission. The `traceparent` that is kept with the order
//! names this span, so that an order is one trace, however long it takes. A message also carries the context of the
//! span that sent it, as the attribute [`ATTRIBUTE`](crate::batch::ATTRIBUTE); the span that handles the message links
//! to its sender. A sweep or an operator's action, which may change many orders, has a separate trace with a link to each
//! of them.
//!
//! `docs/telemetry.md` lists spans and attributes. They contain names and numbers, but nothing submitted or returned.

mod export;
mod settings;
mod transport;

pub use export::{HOLD_OFF, PATIENCE, finish, flush_before, init, run};

use crate::batch::Record;
use crate::telemetry::{brief, trace_id};
use opentelemetry::context::FutureExt;
use opentelemetry::trace::{SpanContext, SpanKind, Status, TraceContextExt, TraceFlags, TraceState, Tracer};
use opentelemetry::{Context, KeyValue, SpanId, TraceId, Value};
use shared::message::{Effect, Outcome, Reply, Request};
use shared::order::Id;
use std::borrow::Cow;
use tracing::Instrument;
use tracing::field::Empty;
use tracing::span::Entered;

/// A span in progress: of the log, of a trace, of both or of neither. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Span {
    /// Lines logged within it name its order.
    log: tracing::Span,
    /// Present if spans are exported.
    context: Option<Context>,
}

/// The senders of messages that are sent together: the order, its step if there is only one, and the span's
/// `traceparent`.
pub type Senders = Vec<(Id, Option<String>, String)>;

impl Span {
    /// A span below the one that `parent` names, or below the current one. The log does not know it.
    fn begin(kind: SpanKind, parent: Option<&str>, name: impl FnOnce() -> Cow<'static, str>) -> Self {
        let context = export::tracer().map(|tracer| {
            let above = match parent.and_then(span_context) {
                Some(parent) => Context::new().with_remote_span_context(parent),
                None => Context::current(),
            };
            let span = tracer.span_builder(name()).with_kind(kind).start_with_context(tracer, &above);
            above.with_span(span)
        });
        Self { log: tracing::Span::none(), context }
    }

    /// This span with a log span called `what`, enabled at every level, so that an error has the span's fields even if
    /// only errors are logged.
    pub fn logged(self, what: &'static str) -> Self {
        let (id, trace_id, name) = (Empty, Empty, Empty);
        let log = tracing::error_span!("message", what, task.id = id, trace_id, step.name = name, step.attempt = Empty);
        Self { log, ..self }
    }

    /// The handling of a request to the API, by method and path template.
    pub fn request(method: &'static str, route: &'static str, parent: Option<&str>) -> Self {
        let span = Self::begin(SpanKind::Server, parent, || format!("{method} {route}").into());
        span.set("http.request.method", method);
        span.set("http.route", route);
        span
    }

    /// The handling of a message that is about order `id`, whose context is `order`.
    pub fn message(what: &'static str, record: &Record, id: &Id, order: Option<&str>) -> Self {
        let span = Self::taken(record, order).logged(what);
        span.link(record.sender.as_deref());
        span.order(id, order);
        span
    }

    /// The handling of an unreadable message, of which only the sender and the failure are known.
    pub fn unreadable(record: &Record) {
        let span = Self::taken(record, None);
        span.link(record.sender.as_deref());
        span.fail("unreadable");
    }

    /// The handling of a message that submits an order, below the span that it `names`, or else below its sender.
    pub fn submission(record: &Record, names: Option<&str>) -> Self {
        let (above, sender) = (names.and_then(span_context), record.sender.as_deref());
        let span = Self::taken(record, if above.is_some() { names } else { sender }).logged("submit");
        if above.is_some() && above != sender.and_then(span_context) {
            span.link(sender);
        }
        span
    }

    fn taken(record: &Record, order: Option<&str>) -> Self {
        let span = Self::begin(SpanKind::Consumer, order, || format!("process {}", record.queue).into());
        span.set("messaging.system", "aws_sqs");
        span.set("messaging.operation.type", "process");
        span.set("messaging.operation.name", "process");
        span.set_text("messaging.destination.name", &record.queue);
        span.set_text("messaging.message.id", &record.message_id);
        span
    }

    /// A call of a remote service.
    pub fn call(request: &Request) -> Self {
        let span = Self::begin(SpanKind::Client, None, || format!("call {}", request.agent).into());
        span.order(&request.task_id, None);
        span.step(&request.step, request.attempt);
        span.set_text("agent", &request.agent);
        span
    }

    /// Work without a causing request.
    pub fn own(name: &'static str) -> Self {
        Self::begin(SpanKind::Internal, None, || name.into())
    }

    /// No span.
    pub fn none() -> Self {
        Self { log: tracing::Span::none(), context: None }
    }

    /// Sets an attribute of the span in its trace, and replaces an earlier value.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        if let Some(context) = &self.context {
            say(context, name, value.into());
        }
    }

    /// Sets an attribute to a text, which is copied only if the span is exported.
    pub fn set_text(&self, name: &'static str, value: &str) {
        if self.context.is_some() {
            self.set(name, brief(value).into_owned());
        }
    }

    /// The order it is about, and that order's context.
    pub fn order(&self, id: &Id, order: Option<&str>) {
        self.set_text("task.id", &id.0);
        tracing::record_all!(self.log, task.id = %brief(&id.0), trace_id = trace_id(order));
    }

    /// The attempt it is about.
    pub fn step(&self, step: &str, attempt: u32) {
        self.set_text("step.name", step);
        self.set("step.attempt", i64::from(attempt));
        tracing::record_all!(self.log, step.name = &*brief(step), step.attempt = attempt);
    }

    /// How an attempt went: the kinds of outcome of a reply, or `silent`.
    pub fn replied(&self, reply: Option<&Reply>) {
        match reply.map(|reply| &reply.outcome) {
            Some(Outcome::Done { .. } | Outcome::Accepted { .. } | Outcome::NotYet { .. }) => {}
            Some(Outcome::Garbled { .. } | Outcome::Failed { .. }) => self.fail("failed"),
            Some(Outcome::Unavailable { .. }) => self.fail("unavailable"),
            Some(Outcome::Deferred { .. }) => self.fail("deferred"),
            None => self.fail("silent"),
        }
    }

    /// The answer to a request to the API: an error only from 500 on, because other refusals are the caller's mistake.
    pub fn answered(&self, status: u16, code: Option<&'static str>) {
        self.set("http.response.status_code", i64::from(status));
        match code {
            Some(code) if status >= 500 => self.fail(code),
            Some(code) => self.set("error.type", code),
            None => {}
        }
    }

    /// Marks the span as failed; `kind` is one of a few words.
    pub fn fail(&self, kind: &'static str) {
        self.set("error.type", kind);
        if let Some(context) = &self.context {
            context.span().set_status(Status::error(kind));
        }
    }

    /// A link to the span that `traceparent` names.
    fn link(&self, traceparent: Option<&str>) {
        if let (Some(context), Some(other)) = (&self.context, traceparent.and_then(span_context)) {
            context.span().add_link(other, Vec::new());
        }
    }

    /// Links to the order of a message that does not carry the order's trace, so that this span is not in it.
    pub fn belongs_to(&self, order: Option<&str>) {
        self.log.record("trace_id", trace_id(order));
        if let Some(context) = &self.context {
            link_to_other(context, order);
        }
    }

    /// Its own `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        traceparent(self.context.as_ref()?)
    }

    /// Does `work` within the span. Lines, messages and calls meanwhile name the span.
    pub async fn around<F: Future>(&self, work: F) -> F::Output {
        let work = work.instrument(self.log.clone());
        match &self.context {
            None => work.await,
            Some(context) => work.with_context(context.clone()).await,
        }
    }

    /// Lines that are logged until the result is dropped belong to the span.
    pub fn enter(&self) -> Entered<'_> {
        self.log.enter()
    }
}

/// The `traceparent` of the current span.
#[must_use]
pub fn current() -> Option<String> {
    export::tracer().and_then(|_| traceparent(&Context::current()))
}

/// Sets an attribute of the current span.
pub fn set(name: &'static str, value: impl Into<Value>) {
    if export::tracer().is_some() {
        say(&Context::current(), name, value.into());
    }
}

fn say(context: &Context, name: &'static str, value: Value) {
    let value = match value {
        // The text may come from a message, and be as long as the message.
        Value::String(text) => brief(text.as_str()).into_owned().into(),
        other => other,
    };
    context.span().set_attribute(KeyValue::new(name, value));
}

/// Does `send`, with each message naming the span of its order, or of its step, as sender.
pub async fn sending<F: Future>(senders: Senders, send: F) -> F::Output {
    if senders.is_empty() {
        return send.await;
    }
    send.with_context(Context::current_with_value(senders)).await
}

/// The `traceparent` of the span that sends `effect` now.
#[must_use]
pub fn sender(effect: &Effect) -> Option<String> {
    export::tracer()?;
    let (id, step) = match effect {
        Effect::Request(request) => (&request.task_id, Some(&request.step)),
        Effect::Wake(wake, _) => (&wake.task_id, None),
        Effect::Reply(reply) => (&reply.task_id, Some(&reply.step)),
        Effect::Notice(notice) => (&notice.order_id, notice.step.as_ref()),
        Effect::Alert(_) | Effect::Strained(_) | Effect::SetAside(_) | Effect::Child(_) => return current(),
    };
    let context = Context::current();
    let fits = |(order, of, _): &&(Id, Option<String>, String)| order == id && (of.is_none() || of.as_ref() == step);
    let sender = context.get::<Senders>().and_then(|all| all.iter().find(fits));
    sender.map(|(_, _, span)| span.clone()).or_else(|| traceparent(&context))
}

/// Links the current span to an order that it acts on, if the order is not in the same trace.
pub fn acted_on(order: Option<&str>) {
    if export::tracer().is_some() {
        link_to_other(&Context::current(), order);
    }
}

fn link_to_other(context: &Context, order: Option<&str>) {
    let Some(order) = order.and_then(span_context) else { return };
    let span = context.span();
    if span.span_context().is_valid() && span.span_context().trace_id() != order.trace_id() {
        span.add_link(order, Vec::new());
    }
}

fn traceparent(context: &Context) -> Option<String> {
    let span = context.span();
    let own = span.span_context();
    own.is_valid().then(|| format!("00-{}-{}-{:02x}", own.trace_id(), own.span_id(), own.trace_flags()))
}

fn span_context(traceparent: &str) -> Option<SpanContext> {
    let good = shared::trace::traceparent(traceparent)?;
    let mut parts = good.split('-').skip(1);
    let trace_id = TraceId::from_hex(parts.next()?).ok()?;
    let span_id = SpanId::from_hex(parts.next()?).ok()?;
    let flags = TraceFlags::new(u8::from_str_radix(parts.next()?, 16).ok()?);
    Some(SpanContext::new(trace_id, span_id, flags, true, TraceState::NONE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use opentelemetry_sdk::trace::SpanData;
    use std::sync::{Mutex, MutexGuard, PoisonError};

    /// Locks the process's spans for one test at a time.
    fn alone() -> MutexGuard<'static, ()> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        export::kept();
        turn
    }

    fn one() -> SpanData {
        let [span] = export::kept().try_into().expect("one span");
        span
    }

    fn of(span: &SpanData, name: &str) -> Vec<String> {
        span.attributes.iter().filter(|pair| pair.key.as_str() == name).map(|pair| pair.value.to_string()).collect()
    }

    fn trace(n: u32) -> String {
        format!("00-{n:032x}-b7ad6b7169203331-01")
    }

    fn record(sender: Option<String>) -> Record {
        let queue = "shop-submissions".into();
        Record { message_id: "one".into(), queue, body: String::new(), waited: None, is_redelivered: false, sender }
    }

    // Telemetry: a message may contain any text, but a span holds only a limited part of it.
    #[test]
    fn texts_are_bounded() {
        let _turn = alone();
        let span = Span::own("sweep");
        span.order(&Id("i".repeat(2000)), None);
        span.step(&"ä".repeat(100_000), 1);
        span.set("agent", "a".repeat(100_000));
        drop(span);
        let span = one();
        for pair in &span.attributes {
            assert!(pair.value.as_str().len() <= 128, "{pair:?}");
        }
        assert!(of(&span, "step.name")[0].starts_with("ää"));
    }

    // Telemetry: an attribute that is set twice has the last value.
    #[test]
    fn attributes_and_links_are_there_once() {
        let _turn = alone();
        let span = Span::own("sweep");
        span.fail("failed");
        let work = async {
            for n in [1, 2, 3] {
                set("looked_at", n);
                acted_on(Some(&trace(7)));
                acted_on(Some(&trace(8)));
            }
            span.fail("unavailable");
        };
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(span.around(work));
        drop(span);
        let span = one();
        assert_eq!((of(&span, "looked_at"), of(&span, "error.type")), (vec!["3".into()], vec!["unavailable".into()]));
        assert_eq!(span.links.len(), 2, "{:?}", span.links);
    }

    // Telemetry: the span of a submission by message is a child of its sender's span, and has no additional link to it.
    #[test]
    fn a_sender_is_above_or_linked() {
        let _turn = alone();
        let record = record(Some(trace(7)));
        for (names, above, links) in [(None, 7, 0), (Some(trace(7)), 7, 0), (Some(trace(8)), 8, 1)] {
            drop(Span::submission(&record, names.as_deref()));
            let span = one();
            assert_eq!((span.span_context.trace_id(), span.links.len()), (TraceId::from(above), links), "{names:?}");
        }
        drop(Span::message("wake", &record, &Id("one".into()), Some(&trace(7))));
        assert_eq!(one().links.len(), 1, "an order's message is linked to its sender, whichever span that is");
    }

    // Telemetry: a reply without the order's trace is linked to it.
    #[test]
    fn what_lost_its_trace_is_linked_to_its_order() {
        let _turn = alone();
        for (told, links) in [(Some(trace(7)), 0), (Some(trace(8)), 1), (None, 1)] {
            let span = Span::message("reply", &record(None), &Id("one".into()), told.as_deref());
            span.belongs_to(Some(&trace(7)));
            drop(span);
            let span = one();
            assert_eq!(span.links.len(), links, "{told:?}");
            assert!(span.links.iter().all(|link| link.span_context.trace_id() == TraceId::from(7)));
        }
    }
}
