//! Spans for OpenTelemetry, where the environment names an endpoint ([`init`]). Otherwise nothing here does anything.
//!
//! Everything that is done for an order is a child of one span, its submission: the `traceparent` that is kept with the order
//! names it, so that an order is one trace, however long it takes. A message has a second context, of the span that sent it,
//! as the attribute [`ATTRIBUTE`]; the span that handles the message is linked to it. What acts on many orders, a sweep or an
//! operator, has a trace of its own, with a link to each of them.
//!
//! `docs/telemetry.md` lists spans and attributes. They hold names and numbers, and nothing that was submitted or returned.

mod export;
mod settings;
mod transport;

pub use export::{HOLD_OFF, PATIENCE, finish, flush_before, init, run};
pub use opentelemetry::trace::SpanKind;

use crate::batch::Record;
use crate::telemetry::brief;
use opentelemetry::context::FutureExt;
use opentelemetry::trace::{SpanContext, Status, TraceContextExt, TraceFlags, TraceState, Tracer};
use opentelemetry::{Context, KeyValue, SpanId, TraceId, Value};
use shared::message::{Effect, Outcome, Reply, Request};
use shared::order::Id;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

/// The attribute of a message that holds the `traceparent` of its sender.
pub const ATTRIBUTE: &str = "traceparent";

/// A span under way, if any are made. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "it ends when it is dropped"]
pub struct Span(Option<Context>);

/// What is said about a span under way, kept beside it: the SDK appends an attribute that is set twice, and a link that is
/// made twice.
#[derive(Debug, Default)]
struct Notes(Mutex<(Attributes, Links)>);

type Attributes = BTreeMap<&'static str, Value>;
type Links = HashSet<(TraceId, SpanId)>;

impl Notes {
    fn set(&self, name: &'static str, value: Value) {
        let value = match value {
            // It may come from a message, and be as long as that.
            Value::String(text) => brief(text.as_str()).into_owned().into(),
            other => other,
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0.insert(name, value);
    }

    /// Whether there is no link to `other` yet.
    fn links(&self, other: &SpanContext) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).1.insert((other.trace_id(), other.span_id()))
    }
}

/// Notes of the span of `context`.
fn notes(context: &Context) -> Option<&Arc<Notes>> {
    context.get::<Arc<Notes>>()
}

/// The senders of messages that leave together: which order, which step of it if one alone, and the span's `traceparent`.
pub type Senders = Vec<(Id, Option<String>, String)>;

impl Span {
    /// A span below the one that `parent` names, or below the current one.
    fn begin(kind: SpanKind, parent: Option<&str>, name: impl FnOnce() -> Cow<'static, str>) -> Self {
        let Some(tracer) = export::tracer() else { return Self(None) };
        let above = match parent.and_then(span_context) {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::current(),
        };
        let span = tracer.span_builder(name()).with_kind(kind).start_with_context(tracer, &above);
        Self(Some(above.with_span(span).with_value(Arc::<Notes>::default())))
    }

    /// The handling of a request to the API, by its method and the template of its path.
    pub fn request(method: &'static str, route: &'static str, parent: Option<&str>) -> Self {
        let span = Self::begin(SpanKind::Server, parent, || format!("{method} {route}").into());
        span.set("http.request.method", method);
        span.set("http.route", route);
        span
    }

    /// The handling of a message of the order whose context is `order`.
    pub fn message(record: &Record, order: Option<&str>) -> Self {
        let span = Self::taken(record, order);
        span.link(record.sender.as_deref());
        span
    }

    /// The handling of a message that submits an order, below the span that it `names`, or else below its sender.
    pub fn submission(record: &Record, names: Option<&str>) -> Self {
        let (above, sender) = (names.and_then(span_context), record.sender.as_deref());
        let span = Self::taken(record, if above.is_some() { names } else { sender });
        if above.is_some() && above != sender.and_then(span_context) {
            span.link(sender);
        }
        span
    }

    fn taken(record: &Record, order: Option<&str>) -> Self {
        let span = Self::begin(SpanKind::Consumer, order, || format!("process {}", record.queue).into());
        if span.0.is_some() {
            span.set("messaging.system", "aws_sqs");
            span.set("messaging.operation.type", "process");
            span.set("messaging.operation.name", "process");
            span.set("messaging.destination.name", record.queue.clone());
            span.set("messaging.message.id", record.message_id.clone());
        }
        span
    }

    /// A call of a remote service.
    pub fn call(request: &Request) -> Self {
        let span = Self::begin(SpanKind::Client, None, || format!("call {}", request.agent).into());
        span.step(&request.task_id, &request.step, request.attempt);
        span.set_text("agent", &request.agent);
        span
    }

    /// Work that nobody asked for.
    pub fn own(name: &'static str) -> Self {
        Self::begin(SpanKind::Internal, None, || name.into())
    }

    /// No span.
    pub fn none() -> Self {
        Self(None)
    }

    /// Says more about it, in place of what was said before under that name.
    pub fn set(&self, name: &'static str, value: impl Into<Value>) {
        if let Some(notes) = self.0.as_ref().and_then(notes) {
            notes.set(name, value.into());
        }
    }

    /// The same, with a text that is copied only if the span is made.
    pub fn set_text(&self, name: &'static str, value: &str) {
        if self.0.is_some() {
            self.set(name, brief(value).into_owned());
        }
    }

    /// The order it is about, as in the log.
    pub fn order(&self, id: &Id) {
        self.set_text("task.id", &id.0);
    }

    /// The attempt it is about, as in the log.
    pub fn step(&self, id: &Id, step: &str, attempt: u32) {
        self.order(id);
        self.set_text("step.name", step);
        self.set("step.attempt", i64::from(attempt));
    }

    /// How an attempt went: the kinds of outcome of a reply, or `silent`.
    pub fn replied(&self, reply: Option<&Reply>) {
        match reply.map(|reply| &reply.outcome) {
            Some(Outcome::Done { .. }) => {}
            Some(Outcome::Garbled { .. } | Outcome::Failed { .. }) => self.fail("failed"),
            Some(Outcome::Unavailable { .. }) => self.fail("unavailable"),
            Some(Outcome::Deferred { .. }) => self.fail("deferred"),
            None => self.fail("silent"),
        }
    }

    /// What a request to the API was answered: an error from 500 on, as a refusal is the caller's.
    pub fn answered(&self, status: u16, code: Option<&'static str>) {
        self.set("http.response.status_code", i64::from(status));
        match code {
            Some(code) if status >= 500 => self.fail(code),
            Some(code) => self.set("error.type", code),
            None => {}
        }
    }

    /// It failed: `kind` is one of few words.
    pub fn fail(&self, kind: &'static str) {
        if let Some(context) = &self.0 {
            self.set("error.type", kind);
            context.span().set_status(Status::error(kind));
        }
    }

    /// A link to the span that `traceparent` names.
    pub fn link(&self, traceparent: Option<&str>) {
        if let (Some(context), Some(other)) = (&self.0, traceparent.and_then(span_context)) {
            link(context, other);
        }
    }

    /// A link to the order that it turned out to be about, if it is not of the order's trace.
    pub fn belongs_to(&self, order: Option<&str>) {
        if let Some(context) = &self.0 {
            link_to_other(context, order);
        }
    }

    /// Its own `traceparent`.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        traceparent(self.0.as_ref()?)
    }

    /// Does `work` as a part of it: what is sent and called meanwhile names it.
    pub async fn around<F: Future>(&self, work: F) -> F::Output {
        match &self.0 {
            None => work.await,
            Some(context) => work.with_context(context.clone()).await,
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let Some(context) = &self.0 else { return };
        let Some(notes) = notes(context) else { return };
        let (attributes, _) = std::mem::take(&mut *notes.0.lock().unwrap_or_else(PoisonError::into_inner));
        for (name, value) in attributes {
            context.span().set_attribute(KeyValue::new(name, value));
        }
    }
}

/// The `traceparent` of the span that work is a part of now.
#[must_use]
pub fn current() -> Option<String> {
    export::tracer().and_then(|_| traceparent(&Context::current()))
}

/// Says more about the span that work is a part of now.
pub fn set(name: &'static str, value: impl Into<Value>) {
    if export::tracer().is_some()
        && let Some(notes) = notes(&Context::current())
    {
        notes.set(name, value.into());
    }
}

/// Does `send` so that each message names the span of its order, or of a step of it, as its sender.
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
        Effect::Alert(_) | Effect::Strained(_) | Effect::SetAside(_) => return current(),
    };
    let context = Context::current();
    let fits = |(order, of, _): &&(Id, Option<String>, String)| order == id && (of.is_none() || of.as_ref() == step);
    let sender = context.get::<Senders>().and_then(|all| all.iter().find(fits));
    sender.map(|(_, _, span)| span.clone()).or_else(|| traceparent(&context))
}

/// Links the current span to an order that it acts on, if that is not of the same trace.
pub fn acted_on(order: Option<&str>) {
    if export::tracer().is_some() {
        link_to_other(&Context::current(), order);
    }
}

fn link_to_other(context: &Context, order: Option<&str>) {
    let Some(order) = order.and_then(span_context) else { return };
    let span = context.span();
    if span.span_context().is_valid() && span.span_context().trace_id() != order.trace_id() {
        link(context, order);
    }
}

fn link(context: &Context, other: SpanContext) {
    if notes(context).is_none_or(|notes| notes.links(&other)) {
        context.span().add_link(other, Vec::new());
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
    use std::sync::MutexGuard;

    /// The spans of a process are one test's at a time.
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
        Record { message_id: "one".into(), queue, body: String::new(), waited: None, sender }
    }

    // Telemetry: a message may hold anything, and a span only so much of it.
    #[test]
    fn texts_are_bounded() {
        let _turn = alone();
        let span = Span::own("sweep");
        span.step(&Id("i".repeat(2000)), &"ä".repeat(100_000), 1);
        span.set("agent", "a".repeat(100_000));
        drop(span);
        let span = one();
        for pair in &span.attributes {
            assert!(pair.value.as_str().len() <= 128, "{pair:?}");
        }
        assert!(of(&span, "step.name")[0].starts_with("ää"));
    }

    // Telemetry: what is said twice is there once, as it was said last.
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

    // Telemetry: a submission by message is below its sender, and not linked to it once more.
    #[test]
    fn a_sender_is_above_or_linked() {
        let _turn = alone();
        let record = record(Some(trace(7)));
        for (names, above, links) in [(None, 7, 0), (Some(trace(7)), 7, 0), (Some(trace(8)), 8, 1)] {
            drop(Span::submission(&record, names.as_deref()));
            let span = one();
            assert_eq!((span.span_context.trace_id(), span.links.len()), (TraceId::from(above), links), "{names:?}");
        }
        drop(Span::message(&record, Some(&trace(7))));
        assert_eq!(one().links.len(), 1, "an order's message is linked to its sender, whichever span that is");
    }

    // Telemetry: a reply without the order's trace is linked to it.
    #[test]
    fn what_lost_its_trace_is_linked_to_its_order() {
        let _turn = alone();
        for (told, links) in [(Some(trace(7)), 0), (Some(trace(8)), 1), (None, 1)] {
            let span = Span::message(&record(None), told.as_deref());
            span.belongs_to(Some(&trace(7)));
            drop(span);
            let span = one();
            assert_eq!(span.links.len(), links, "{told:?}");
            assert!(span.links.iter().all(|link| link.span_context.trace_id() == TraceId::from(7)));
        }
    }
}
