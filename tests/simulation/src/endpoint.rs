//! SQS and EventBridge as the real messenger sees them: they answer the HTTP requests of its SDK clients, in memory and
//! in the run's virtual time, so that the SDK's own retries and timeouts are part of the run.
//!
//! Messages taken here go to the queues of the run. The endpoint also knows what each call of the messenger was asked
//! to send, and checks the messenger against it ([`Rule::Sent`]).

use crate::Defect;
use crate::dice::Class;
use crate::history::Rule;
use crate::node::Node;
use crate::port::{BUS, Parcel, arrive, is_refused, refuse};
use crate::queues::wait_ms;
use crate::world::{World, lock};
use aws_sdk_sqs::config::retry::RetryPartition;
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;
use serde_json::{Value, json};
use shared::message::Effect;
use shared::ports::{Error, Messenger};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex};
use stepwarden_aws::messenger::EVENT_SOURCE;
use stepwarden_aws::{Clients, SqsMessenger};
use tokio::sync::oneshot;

/// Maximum number of entries of a request (AWS, "SendMessageBatch" and "PutEvents").
const ENTRIES: usize = 10;
/// Maximum number of bytes of all messages (AWS, "SendMessageBatch").
const MESSAGES_BYTES: usize = 1024 * 1024;
/// Maximum number of bytes of all entries (AWS, "PutEvents").
const EVENTS_BYTES: usize = 256 * 1024;

tokio::task_local! {
    /// What the messenger's current call was asked to send.
    static ASKED: Arc<Asked>;
}

/// What the messenger meets at SQS and EventBridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mishap {
    /// Some messages of a request to a queue are refused, and the others are taken.
    MessagesInPart,
    /// Some events of a request to the bus are refused, and the others are taken.
    EventsInPart,
    /// Not done: throttled.
    Throttled,
    /// Not done; an error of the service itself.
    Failed,
    /// Not done; the connection broke.
    CutOff,
    /// Done, and the connection breaks before the answer.
    AnswerLost,
    /// Done or not, without an answer.
    Silent,
}

impl Mishap {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::MessagesInPart,
        Self::EventsInPart,
        Self::Throttled,
        Self::Failed,
        Self::CutOff,
        Self::AnswerLost,
        Self::Silent,
    ];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::MessagesInPart => "messages taken in part",
            Self::EventsInPart => "events taken in part",
            Self::Throttled => "send throttled",
            Self::Failed => "send failed",
            Self::CutOff => "send cut off",
            Self::AnswerLost => "send answer lost",
            Self::Silent => "send never answered",
        }
    }
}

/// The messenger of one process.
#[derive(Clone)]
pub(crate) struct Sender {
    world: Arc<World>,
    messenger: SqsMessenger,
}

impl Sender {
    pub(crate) fn new(world: &Arc<World>, node: &Arc<Node>) -> Self {
        let endpoint = Endpoint { world: Arc::clone(world), node: Arc::clone(node) };
        let mut clients = Clients::embedded(http_client_fn(move |_, _| SharedHttpConnector::new(endpoint.clone())));
        // Each process counts its own retries: by default the SDK counts them for the whole program, with other runs.
        let own = || RetryPartition::custom("process").build();
        let sqs = clients.sqs.config().to_builder().retry_partition(own()).build();
        clients.sqs = aws_sdk_sqs::Client::from_conf(sqs).into();
        let eventbridge = clients.eventbridge.config().to_builder().retry_partition(own()).build();
        clients.eventbridge = aws_sdk_eventbridge::Client::from_conf(eventbridge).into();
        Self { world: Arc::clone(world), messenger: SqsMessenger::new(&clients, &world.config) }
    }

    /// Sends `effects`; `by_queue` holds the same effects as parcels.
    pub(crate) async fn send(
        &self,
        effects: Vec<Effect>,
        by_queue: BTreeMap<String, Vec<Parcel>>,
    ) -> Vec<Result<(), Error>> {
        let asked = Arc::new(Asked::new(by_queue));
        let results = ASKED.scope(Arc::clone(&asked), self.messenger.send(effects)).await;
        asked.check(&self.world, &results);
        results
    }
}

/// What one call of the messenger was asked to send, and what happened to it.
struct Asked {
    /// By queue and body.
    lots: Mutex<BTreeMap<(String, String), Lot>>,
    /// The requests so far, by their bodies, which are the same in all attempts: what goes wrong, and how many attempts
    /// there were.
    requests: Mutex<BTreeMap<Vec<u8>, (Fate, u32)>>,
}

/// Parcels with the same queue and body.
struct Lot {
    parcel: Parcel,
    /// The numbers of their effects.
    owners: Vec<usize>,
    /// How many of them were taken, retries included.
    taken: usize,
    /// How many of them an answer acknowledged.
    told: usize,
}

impl Asked {
    fn new(by_queue: BTreeMap<String, Vec<Parcel>>) -> Self {
        let mut lots = BTreeMap::<_, Lot>::new();
        for (queue, parcel) in
            by_queue.into_iter().flat_map(|(queue, all)| all.into_iter().map(move |p| (queue.clone(), p)))
        {
            let owner = parcel.owner;
            let new = || Lot { parcel: parcel.clone(), owners: Vec::new(), taken: 0, told: 0 };
            lots.entry((queue, parcel.body.clone())).or_insert_with(new).owners.push(owner);
        }
        Self { lots: Mutex::new(lots), requests: Mutex::default() }
    }

    /// The parcel of an entry of a request; `None` if no parcel was sent in this form.
    fn parcel(&self, queue: &str, entry: &Entry) -> Option<Parcel> {
        let lots = lock(&self.lots);
        let parcel = &lots.get(&(queue.to_owned(), entry.body.clone()))?.parcel;
        let is_as_asked = parcel.delay.as_secs() == entry.delay_s && parcel.group == entry.group;
        is_as_asked.then(|| parcel.clone())
    }

    fn count(&self, queue: &str, parcels: &[Parcel], count: impl Fn(&mut Lot)) {
        let mut lots = lock(&self.lots);
        for parcel in parcels {
            count(lots.get_mut(&(queue.to_owned(), parcel.body.clone())).expect("it was asked for"));
        }
    }

    /// What is reported as sent was taken; what is reported as failed was not all acknowledged.
    fn check(&self, world: &World, results: &[Result<(), Error>]) {
        let lots = lock(&self.lots);
        for ((queue, _), lot) in lots.iter() {
            let sent = lot.owners.iter().filter(|owner| results[**owner].is_ok()).count();
            if sent > lot.taken {
                let (label, taken) = (&lot.parcel.label, lot.taken);
                let words = format!("{label} to {queue} was reported as sent {sent} times but taken {taken} times");
                world.wrong(Rule::Sent, None, words);
            }
        }
        for (owner, _) in results.iter().enumerate().filter(|(_, result)| result.is_err()) {
            let own: Vec<&Lot> = lots.values().filter(|lot| lot.owners.contains(&owner)).collect();
            // An effect that is too large is in no lot.
            if !own.is_empty() && own.iter().all(|lot| lot.told >= lot.owners.len()) {
                let labels: Vec<_> = own.iter().map(|lot| lot.parcel.label.as_str()).collect();
                let words = format!("{} was reported as failed, but was taken and acknowledged", labels.join(" and "));
                world.wrong(Rule::Sent, None, words);
            }
        }
    }
}

/// What goes wrong with a request as a whole.
#[derive(Clone, Copy)]
enum Fate {
    Good,
    /// The first attempt fails, or every attempt if it `lasts`.
    Fails {
        how: Mishap,
        lasts: bool,
    },
    /// The request is done but its answer is lost; if that `lasts`, the attempts that follow fail.
    Lost {
        how: Mishap,
        lasts: bool,
    },
}

struct Sending {
    is_event: bool,
    queue: String,
    entries: Vec<Entry>,
}

struct Entry {
    id: String,
    body: String,
    delay_s: u64,
    group: Option<String>,
}

impl Sending {
    /// The contents of a request; `None` if no messenger makes such a request.
    fn read(target: &str, body: &[u8], world: &World) -> Option<Self> {
        let request: Value = serde_json::from_slice(body).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let entries = request["Entries"].as_array()?;
        match target {
            "AmazonSQS.SendMessageBatch" => {
                let message = |entry: &Value| {
                    Some(Entry {
                        id: text(&entry["Id"])?,
                        body: text(&entry["MessageBody"])?,
                        delay_s: entry["DelaySeconds"].as_u64().unwrap_or_default(),
                        group: text(&entry["MessageGroupId"]),
                    })
                };
                let url = request["QueueUrl"].as_str()?;
                let queue = url.strip_prefix(&world.config.queue_prefix)?.to_owned();
                Some(Self { is_event: false, queue, entries: entries.iter().map(message).collect::<Option<_>>()? })
            }
            "AWSEvents.PutEvents" => {
                let event = |(n, entry): (usize, &Value)| {
                    let event = json!({ "detail-type": entry["DetailType"], "detail": entry["Detail"] });
                    let is_ours = entry["EventBusName"] == world.config.event_bus && entry["Source"] == EVENT_SOURCE;
                    is_ours.then(|| Entry { id: n.to_string(), body: event.to_string(), delay_s: 0, group: None })
                };
                let entries = entries.iter().enumerate().map(event).collect::<Option<_>>()?;
                Some(Self { is_event: true, queue: BUS.into(), entries })
            }
            _ => None,
        }
    }

    /// Why the service refuses the whole request in any case: error and message.
    fn problem(&self, world: &World) -> Option<(&'static str, &'static str)> {
        let ids: BTreeSet<&str> = self.entries.iter().map(|entry| entry.id.as_str()).collect();
        let bytes: usize = self.entries.iter().map(|entry| entry.body.len()).sum();
        let most = if self.is_event { EVENTS_BYTES } else { MESSAGES_BYTES };
        if !world.queues.exists(&self.queue) {
            Some(("QueueDoesNotExist", "The specified queue does not exist."))
        } else if !(1..=ENTRIES).contains(&self.entries.len()) || bytes > most {
            Some(("ValidationException", "Too many entries, or too large."))
        } else if ids.len() < self.entries.len() {
            Some(("BatchEntryIdsNotDistinct", "An id is repeated."))
        } else {
            None
        }
    }

    /// The answer that refuses these entries and takes the others.
    fn answer(&self, refused: &BTreeSet<usize>) -> Value {
        let why = "We encountered an internal error. Please try again.";
        let entries = || self.entries.iter().enumerate();
        if self.is_event {
            let entries = entries().map(|(n, _)| match refused.contains(&n) {
                true => json!({ "ErrorCode": "InternalFailure", "ErrorMessage": why }),
                false => json!({ "EventId": n.to_string() }),
            });
            return json!({ "FailedEntryCount": refused.len(), "Entries": entries.collect::<Vec<_>>() });
        }
        let (failed, taken): (Vec<_>, Vec<_>) = entries().partition(|(n, _)| refused.contains(n));
        let taken = taken
            .iter()
            .map(|(n, entry)| json!({ "Id": entry.id, "MessageId": n.to_string(), "MD5OfMessageBody": "" }));
        let failed = failed
            .iter()
            .map(|(_, entry)| json!({ "Id": entry.id, "Code": "InternalError", "Message": why, "SenderFault": false }));
        json!({ "Successful": taken.collect::<Vec<_>>(), "Failed": failed.collect::<Vec<_>>() })
    }
}

/// The server that answers the SDK clients of one process.
#[derive(Clone)]
struct Endpoint {
    world: Arc<World>,
    node: Arc<Node>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Endpoint of {}", self.node.name)
    }
}

impl HttpConnector for Endpoint {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let endpoint = self.clone();
        HttpConnectorFuture::new(async move {
            let target = request.headers().get("x-amz-target").unwrap_or_default();
            let body = request.body().bytes().unwrap_or_default();
            let sending = Sending::read(target, body, &endpoint.world);
            let sending = sending.ok_or_else(|| ConnectorError::user(format!("not what is sent: {target}").into()))?;
            endpoint.take(sending, body).await
        })
    }
}

impl Endpoint {
    /// One attempt at a request.
    async fn take(&self, sending: Sending, body: &[u8]) -> Result<HttpResponse, ConnectorError> {
        let (world, asked) = (&self.world, ASKED.with(Arc::clone));
        let parcels: Vec<_> = sending.entries.iter().filter_map(|entry| asked.parcel(&sending.queue, entry)).collect();
        if parcels.len() < sending.entries.len() {
            let words =
                format!("what went to {} is not what was asked for: {}", sending.queue, String::from_utf8_lossy(body));
            world.wrong(Rule::Sent, None, words);
            return Err(ConnectorError::user("not as asked".into()));
        }
        let site = format!("send {} to {}", parcels[0].label, sending.queue);
        self.node.touch(world, &site);
        let (out, back) = world.ways(&self.node.name, &site);
        let problem = sending.problem(world);
        let (is_done, mishap) = match problem {
            Some(_) => (false, None),
            None => self.attempt(&asked, body, &site, &parcels),
        };
        let refused: BTreeSet<usize> = match mishap {
            None if is_done => (0..parcels.len()).filter(|n| is_refused(world, &sending.queue, &parcels[*n])).collect(),
            _ => BTreeSet::new(),
        };
        if !refused.is_empty() && refused.len() < parcels.len() {
            world.count_met(if sending.is_event { Mishap::EventsInPart } else { Mishap::MessagesInPart });
        }
        if let Some(mishap) = mishap {
            world.count_met(mishap);
            world.trace(format_args!("{site}: {}", mishap.name()));
        }
        if let Some((kind, message)) = problem {
            parcels.iter().for_each(|parcel| refuse(world, parcel));
            wait_ms(out + back).await;
            return error(400, kind, message);
        }
        let response = match world.defect {
            Some(Defect::HidesRefusals) => sending.answer(&BTreeSet::new()),
            _ => sending.answer(&refused),
        };
        let taken: Vec<Parcel> = if is_done {
            parcels.into_iter().enumerate().filter(|(n, _)| !refused.contains(n)).map(|(_, parcel)| parcel).collect()
        } else {
            Vec::new()
        };
        let (answer, answered) = oneshot::channel();
        let (network, queue) = (Arc::clone(world), sending.queue.clone());
        tokio::spawn(async move {
            wait_ms(out).await;
            for parcel in &taken {
                arrive(&network, &queue, parcel);
            }
            asked.count(&queue, &taken, |lot| lot.taken += 1);
            wait_ms(back).await;
            if answer.send(()).is_ok() && mishap.is_none() {
                asked.count(&queue, &taken, |lot| lot.told += 1);
            }
        });
        if answered.await.is_err() {
            return Err(ConnectorError::io("the run is over".into()));
        }
        match mishap {
            None => Ok(json_response(200, &response)),
            Some(Mishap::Throttled) if sending.is_event => error(400, "ThrottlingException", "Rate exceeded"),
            Some(Mishap::Throttled) => {
                error(400, "RequestThrottled", "The request was denied due to request throttling.")
            }
            Some(Mishap::Failed) => {
                error(500, "InternalFailure", "We encountered an internal error. Please try again.")
            }
            Some(Mishap::Silent) => std::future::pending().await,
            Some(Mishap::CutOff | Mishap::AnswerLost) => Err(ConnectorError::io("the connection was closed".into())),
            Some(Mishap::MessagesInPart | Mishap::EventsInPart) => unreachable!("these are answers"),
        }
    }

    /// Whether the request is done at this attempt, and what goes wrong with the request as a whole.
    fn attempt(&self, asked: &Asked, body: &[u8], site: &str, parcels: &[Parcel]) -> (bool, Option<Mishap>) {
        let mut requests = lock(&asked.requests);
        let (fate, attempts) = requests.entry(body.to_owned()).or_insert_with(|| (self.fate(site, parcels), 0));
        *attempts += 1;
        match *fate {
            Fate::Fails { how, lasts } if lasts || *attempts == 1 => (false, Some(how)),
            Fate::Lost { how, .. } if *attempts == 1 => (true, Some(how)),
            Fate::Lost { how: _, lasts: true } => (false, Some(Mishap::CutOff)),
            Fate::Good | Fate::Fails { .. } | Fate::Lost { .. } => (true, None),
        }
    }

    /// Drawn once for all attempts at a request.
    fn fate(&self, site: &str, parcels: &[Parcel]) -> Fate {
        let world = &self.world;
        if let Some(mut draw) = world.fires(Class::SendError, site) {
            let how = *draw.pick(&[Mishap::Throttled, Mishap::Failed, Mishap::CutOff, Mishap::Silent]);
            let lasts = draw.chance(0.5);
            if lasts {
                parcels.iter().for_each(|parcel| refuse(world, parcel));
            }
            Fate::Fails { how, lasts }
        } else if let Some(mut draw) = world.fires(Class::SendLost, site) {
            let how = *draw.pick(&[Mishap::AnswerLost, Mishap::AnswerLost, Mishap::Silent]);
            Fate::Lost { how, lasts: draw.chance(0.4) }
        } else {
            Fate::Good
        }
    }
}

fn json_response(status: u16, body: &Value) -> HttpResponse {
    let status = StatusCode::try_from(status).expect("a status");
    let mut response = HttpResponse::new(status, SdkBody::from(body.to_string()));
    response.headers_mut().insert("content-type", "application/x-amz-json-1.0");
    response
}

fn error(status: u16, kind: &str, message: &str) -> Result<HttpResponse, ConnectorError> {
    let mut response = json_response(status, &json!({ "__type": kind, "message": message }));
    // SQS's SDK recognises its errors by this header.
    response.headers_mut().insert("x-amzn-query-error", format!("{kind};Sender"));
    Ok(response)
}
