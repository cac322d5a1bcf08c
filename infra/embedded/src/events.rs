//! EventBridge: event buses that keep the newest events.
//!
//! There are no rules and no targets: a reader pages through the kept events.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::answer::Answer;
use crate::clock::Clock;
use crate::counts::Counters;
use crate::store::{Event, Loaded, Store, Write};

pub(crate) const OPERATIONS: [&str; 2] = ["PutEvents", "CreateEventBus"];

/// Maximum number of events that are kept, over all buses.
pub const EVENTS_KEPT: usize = 10_000;

/// Maximum number of bytes of all kept events: fewer events are kept if they are large.
const BYTES_MAX: usize = 64 * 1024 * 1024;

/// AWS, "PutEvents": entries of a request, and bytes of all of them.
const ENTRIES_MAX: usize = 10;
const REQUEST_MAX_BYTES: usize = 1024 * 1024;

const ARN_PREFIX: &str = "arn:aws:events:us-east-1:000000000000:event-bus/";

/// The stored events.
pub struct Events {
    kept: Mutex<Kept>,
    /// Number of the newest event. Locked while an event takes its place in the order of commits, so that a reader that
    /// has seen number 6 has also seen 5.
    last_number: Mutex<u64>,
    store: Store,
    clock: Arc<Clock>,
    counters: Arc<Counters>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// Events numbered below it are forgotten, and the next write deletes them.
    from: u64,
    /// Names, without that of the default bus.
    buses: BTreeSet<String>,
}

impl Kept {
    fn add(&mut self, event: Arc<Event>) {
        self.bytes += event.bytes();
        self.events.push_back(event);
        while self.events.len() > EVENTS_KEPT || self.bytes > BYTES_MAX {
            let Some(oldest) = self.events.pop_front() else {
                break;
            };
            self.bytes -= oldest.bytes();
            self.from = oldest.number + 1;
        }
    }
}

/// The error of an operation or of an entry: name and message. Status 400.
struct Refused(&'static str, String);

impl Events {
    pub(crate) fn new(store: Store, loaded: &mut Loaded, clock: Arc<Clock>, counters: Arc<Counters>) -> Self {
        let mut kept = Kept { buses: loaded.buses.drain(..).collect(), ..Kept::default() };
        for event in loaded.events.drain(..) {
            kept.add(Arc::new(event));
        }
        Self { kept: Mutex::new(kept), last_number: Mutex::new(loaded.last_event), store, clock, counters }
    }

    /// Up to `limit` kept events numbered above `after`, oldest first. Start with 0.
    pub fn page(&self, after: u64, limit: usize) -> Vec<Arc<Event>> {
        let kept = self.lock();
        let start = kept.events.partition_point(|event| event.number <= after);
        kept.events.iter().skip(start).take(limit).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) async fn call(self: &Arc<Self>, operation: &str, body: &[u8]) -> Answer {
        let outcome = match operation {
            "PutEvents" => self.put_events(body).await,
            "CreateEventBus" => self.create_bus(body).await,
            _ => Err(Refused("UnknownOperationException", String::new())),
        };
        outcome.unwrap_or_else(|Refused(kind, message)| {
            let status = if kind == "InternalException" { 500 } else { 400 };
            Answer::error(status, kind, &message)
        })
    }

    async fn put_events(self: &Arc<Self>, body: &[u8]) -> Result<Answer, Refused> {
        let request: PutEvents = parse(body)?;
        let count = request.entries.len();
        if !(1..=ENTRIES_MAX).contains(&count) {
            return Err(Refused(
                "ValidationException",
                format!("Value at 'entries' must have 1 to {ENTRIES_MAX} members, it has {count}"),
            ));
        }
        if request.entries.iter().map(PutEvent::size_bytes).sum::<usize>() > REQUEST_MAX_BYTES {
            return Err(Refused(
                "ValidationException",
                "Total size of the entries in the request is over the limit.".into(),
            ));
        }
        let (mut entries, mut events) = (Vec::with_capacity(count), Vec::new());
        for entry in request.entries {
            match self.accept(entry) {
                Ok(event) => {
                    entries.push(json!({ "EventId": event.id }));
                    events.push(event);
                }
                Err(Refused(code, message)) => entries.push(json!({ "ErrorCode": code, "ErrorMessage": message })),
            }
        }
        let failed = count - events.len();
        self.keep(events).await?;
        Ok(Answer::ok(&json!({ "FailedEntryCount": failed, "Entries": entries })))
    }

    /// Checks an entry; it has no number yet.
    fn accept(&self, entry: PutEvent) -> Result<Event, Refused> {
        let required = |name: &str, value: Option<String>| match value {
            Some(value) if !value.is_empty() => Ok(value),
            _ => Err(Refused(
                "InvalidArgument",
                format!("Parameter {name} is not valid. Reason: {name} is a required argument."),
            )),
        };
        let source = required("Source", entry.source)?;
        let detail_type = required("DetailType", entry.detail_type)?;
        let detail = required("Detail", entry.detail)?;
        if source.starts_with("aws.") {
            return Err(Refused("NotAuthorizedForSourceException", "Not authorized for the source.".into()));
        }
        let is_object = detail.trim_start().starts_with('{') && serde_json::from_str::<&RawValue>(&detail).is_ok();
        if !is_object {
            return Err(Refused("MalformedDetail", "Detail is malformed.".into()));
        }
        let bus = bus_name(entry.event_bus_name.as_deref());
        if bus != "default" && !self.lock().buses.contains(bus) {
            return Err(Refused("ResourceNotFoundException", format!("Event bus {bus} does not exist.")));
        }
        Ok(Event {
            number: 0,
            id: Uuid::new_v4().to_string(),
            bus: bus.into(),
            time_ms: match entry.time {
                Some(seconds) if seconds.is_finite() => (seconds * 1000.0) as i64,
                _ => self.clock.now_ms(),
            },
            source,
            detail_type,
            detail,
            resources: entry.resources,
            trace_header: entry.trace_header,
        })
    }

    /// Numbers events and stores them.
    async fn keep(self: &Arc<Self>, mut events: Vec<Event>) -> Result<(), Refused> {
        if events.is_empty() {
            return Ok(());
        }
        let stored = {
            let mut last = self.last_number.lock().unwrap_or_else(PoisonError::into_inner);
            for event in &mut events {
                *last += 1;
                event.number = *last;
            }
            let keep_from = self.lock().from;
            let events: Vec<_> = events.into_iter().map(Arc::new).collect();
            let (this, added) = (Arc::clone(self), events.clone());
            self.store.write(Write::Events { events, keep_from }, move || this.add(added))
        };
        stored.await.map_err(|error| Refused("InternalException", error.to_string()))
    }

    fn add(&self, events: Vec<Arc<Event>>) {
        self.counters.count(|counts| counts.events_put += events.len() as u64);
        let mut kept = self.lock();
        events.into_iter().for_each(|event| kept.add(event));
    }

    async fn create_bus(self: &Arc<Self>, body: &[u8]) -> Result<Answer, Refused> {
        let request: Bus = parse(body)?;
        let name = request.name.unwrap_or_default();
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b"/_.-".contains(&b);
        if !(1..=256).contains(&name.len()) || !name.bytes().all(allowed) {
            return Err(Refused("ValidationException", format!("{name:?} is not a name for a bus")));
        }
        if name == "default" || self.lock().buses.contains(&name) {
            return Err(Refused("ResourceAlreadyExistsException", format!("Event bus {name} already exists.")));
        }
        let created_ms = self.clock.now_ms();
        let (this, created) = (Arc::clone(self), name.clone());
        self.store
            .write(Write::Bus { name: name.clone(), created_ms }, move || {
                this.lock().buses.insert(created);
            })
            .await
            .map_err(|error| Refused("InternalException", error.to_string()))?;
        Ok(Answer::ok(&json!({ "EventBusArn": format!("{ARN_PREFIX}{name}") })))
    }
}

/// A bus is given by name or by ARN, whose last part is the name.
fn bus_name(given: Option<&str>) -> &str {
    match given {
        None | Some("") => "default",
        Some(given) => given.split_once(":event-bus/").map_or(given, |(_, name)| name),
    }
}

fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| Refused("SerializationException", error.to_string()))
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PutEvents {
    #[serde(default)]
    entries: Vec<PutEvent>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PutEvent {
    /// UTC, seconds.
    time: Option<f64>,
    source: Option<String>,
    #[serde(default)]
    resources: Vec<String>,
    detail_type: Option<String>,
    detail: Option<String>,
    event_bus_name: Option<String>,
    trace_header: Option<String>,
}

impl PutEvent {
    /// AWS, "Calculating PutEvents event entry size".
    fn size_bytes(&self) -> usize {
        let text = |text: &Option<String>| text.as_deref().map_or(0, str::len);
        let resources: usize = self.resources.iter().map(String::len).sum();
        let time = if self.time.is_some() { 14 } else { 0 };
        time + resources + text(&self.source) + text(&self.detail_type) + text(&self.detail)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Bus {
    name: Option<String>,
}
