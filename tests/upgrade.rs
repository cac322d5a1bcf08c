//! Goal: what an earlier version wrote is understood after an upgrade, with orders in flight. Method: items and messages that
//! were recorded from that version's own binaries (`tests/lambda/record.py`) are put into tables and queues as they are, and
//! the present functions go on from there, at the time of the recording.
//!
//! `tests/data/recorded/first` is of 2026-11-21, before replies had a queue of their own: its agents replied to `scheduler`.
//! `second` is of the same day, with that queue, and of an urgent order.
//! Recorded files are never changed; a later version adds a folder and a line in [`VERSIONS`].

use agent::{Agent, AgentError, Call, Runtime};
use aws_lambda_events::event::sqs::SqsEvent;
use aws_sdk_dynamodb::types::AttributeValue;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use shared::message::{Notice, Reply, Request, ToScheduler};
use shared::ports::StateStore;
use shared::task::{ProcessState, Task};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use stepwarden_aws::config::queue;
use stepwarden_aws::{Clients, Config, Engine, SqsMessenger, engine, item, schema};
use stepwarden_embedded::Endpoints;
use supervisor::Settings;

/// Folders of recordings, and the queue that version's agents reply to.
const VERSIONS: [(&str, &str); 2] = [("first", queue::SCHEDULER), ("second", queue::REPLIES)];

fn recorded(version: &str, name: &str) -> Value {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("data/recorded/{version}/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_str(&text).unwrap()
}

/// An item as DynamoDB's JSON has it.
fn to_item(json: &Value) -> item::Item {
    let attribute = |value: &Value| match value.as_object().unwrap().iter().next().unwrap() {
        (kind, Value::String(text)) if kind == "S" => AttributeValue::S(text.clone()),
        (kind, Value::String(text)) if kind == "N" => AttributeValue::N(text.clone()),
        other => panic!("an attribute that was never written: {other:?}"),
    };
    json.as_object().unwrap().iter().map(|(name, value)| (name.clone(), attribute(value))).collect()
}

/// A batch of one message.
fn batch(queue: &str, body: &Value) -> SqsEvent {
    let arn = format!("arn:aws:sqs:eu-west-1:111122223333:shop-{queue}");
    serde_json::from_value(json!({"Records": [
        {"messageId": "m", "receiptHandle": "r", "body": body.to_string(), "eventSourceARN": arn, "attributes": {}, "messageAttributes": {}}
    ]}))
    .unwrap()
}

/// The present functions over the recorded items, at a time of the recording.
struct Upgraded {
    version: &'static str,
    replies: &'static str,
    clients: Clients,
    config: Config,
    engine: Engine,
    now: Arc<Mutex<Timestamp>>,
    _endpoints: Endpoints,
}

impl Upgraded {
    /// After the upgrade with `task` as its record stood.
    async fn with((version, replies): (&'static str, &'static str), task: &str) -> Self {
        let endpoints = Endpoints::open(&Default::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let names = [
            ("ORDERS_TABLE", "orders"),
            ("STATE_TABLE", "state"),
            ("QUEUE_PREFIX", "not-yet"),
            ("EVENT_BUS", "default"),
            ("REPLY_QUEUES", "default"),
            ("AGENTS", "inventory,fraud,payment,shipping"),
        ];
        let lookup = |name: &str| names.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut config = Config::from_lookup(lookup).unwrap();
        config.queue_prefix = schema::create(&clients, &config, "shop-", 180).await.unwrap();
        for (table, name) in [("orders", "order"), ("state", "workflow"), ("state", "lease"), ("state", task)] {
            let item = to_item(&recorded(version, name));
            clients.dynamodb.put_item().table_name(table).set_item(Some(item)).send().await.unwrap();
        }
        let saved = item::to_task(&to_item(&recorded(version, task))).unwrap().updated_at;
        let now = Arc::new(Mutex::new(saved + SignedDuration::from_millis(100)));
        let clock = {
            let now = Arc::clone(&now);
            Arc::new(move || *now.lock().unwrap())
        };
        let engine = engine(&config, &clients, clock);
        Self { version, replies, clients, config, engine, now, _endpoints: endpoints }
    }

    fn recorded(&self, name: &str) -> Value {
        recorded(self.version, name)
    }

    async fn task(&self) -> Task {
        let id = self.recorded("wake")["task_id"].as_str().unwrap().to_owned();
        self.engine.store.load(&shared::order::Id(id)).await.unwrap().unwrap()
    }

    /// Gives the scheduler one message; nothing may be left over.
    async fn schedule(&self, queue: &str, message: &Value) {
        let response = scheduler::handler(&self.engine, batch(queue, message)).await;
        assert_eq!(response, stepwarden_aws::batch::Response::default());
        assert_eq!(self.take(queue::SET_ASIDE).await, Vec::<Value>::new());
    }

    async fn take(&self, name: &str) -> Vec<Value> {
        let url = self.config.queue_url(name);
        let receive = self.clients.sqs.receive_message().queue_url(&url).max_number_of_messages(10);
        let mut taken = Vec::new();
        for message in receive.send().await.unwrap().messages.unwrap_or_default() {
            taken.push(serde_json::from_str(message.body().unwrap()).unwrap());
            let handle = message.receipt_handle.unwrap();
            self.clients.sqs.delete_message().queue_url(&url).receipt_handle(handle).send().await.unwrap();
        }
        taken
    }
}

/// Every field that was written is still read and means the same: it is there again when it is written once more.
#[test]
fn recorded_messages_are_read_and_written_as_they_were() {
    fn again<T: serde::de::DeserializeOwned + serde::Serialize>(version: &str, name: &str) {
        let before = recorded(version, name);
        let message: T = serde_json::from_value(before.clone()).unwrap_or_else(|e| panic!("{version}/{name}: {e}"));
        let after = serde_json::to_value(&message).unwrap();
        for (field, value) in before.as_object().unwrap() {
            assert_eq!(after.get(field), Some(value), "{version}/{name}: `{field}`");
        }
    }
    for (version, _) in VERSIONS {
        again::<ToScheduler>(version, "wake");
        for step in ["reserve", "check-fraud"] {
            again::<ToScheduler>(version, &format!("reply-{step}"));
            again::<Request>(version, &format!("request-{step}"));
        }
        again::<Request>(version, "request-charge");
        again::<Notice>(version, "notice-received");
    }
}

#[test]
fn recorded_items_are_read_and_written_as_they_were() {
    for (version, _) in VERSIONS {
        for name in ["task-submitted", "task-claimed", "task-charging"] {
            let before = to_item(&recorded(version, name));
            let task = item::to_task(&before).unwrap();
            let after = item::from_task(&task, SignedDuration::ZERO).unwrap();
            for (column, value) in before.iter().filter(|(column, _)| *column != "task") {
                assert_eq!(after.get(column), Some(value), "{version}/{name}: `{column}`");
            }
            // Fields are only ever added.
            let [Value::Object(before), Value::Object(after)] =
                [before, after].map(|item| serde_json::from_str(item["task"].as_s().unwrap()).unwrap())
            else {
                panic!("{version}/{name}: `task` holds an object")
            };
            for (field, value) in &before {
                assert_eq!(after.get(field), Some(value), "{version}/{name}: `task.{field}`");
            }
        }
        let order = to_item(&recorded(version, "order"));
        assert_eq!(item::from_order(&item::to_order(&order).unwrap(), 4).unwrap(), order, "{version}/order");
    }
}

#[tokio::test]
async fn a_recorded_wake_starts_a_recorded_order() {
    for version in VERSIONS {
        let upgraded = Upgraded::with(version, "task-submitted").await;
        upgraded.schedule(queue::SCHEDULER, &upgraded.recorded("wake")).await;
        assert_eq!(upgraded.task().await.process_state(), ProcessState::Processing);
        for (agent, step) in [("inventory", "reserve"), ("fraud", "check-fraud")] {
            let sent = upgraded.take(&queue::agent(agent)).await;
            // The agents of that version may still be running: all they knew in a request is there.
            let (sent, known) = (sent[0].as_object().unwrap(), upgraded.recorded(&format!("request-{step}")));
            for (field, value) in known.as_object().unwrap() {
                assert!(field == "complete_by" || sent.get(field) == Some(value), "{step}: `{field}`");
            }
        }
    }
}

#[tokio::test]
async fn recorded_replies_bring_a_recorded_order_on() {
    for version in VERSIONS {
        let upgraded = Upgraded::with(version, "task-claimed").await;
        for step in ["reserve", "check-fraud"] {
            upgraded.schedule(upgraded.replies, &upgraded.recorded(&format!("reply-{step}"))).await;
        }
        let recorded = item::to_task(&to_item(&upgraded.recorded("task-charging"))).unwrap();
        let task = upgraded.task().await;
        assert_eq!((task.version, task.process_state()), (recorded.version, ProcessState::Processing));
        let outputs = |task: &Task| task.steps.iter().map(|s| s.output.clone()).collect::<Vec<_>>();
        assert_eq!(outputs(&task), outputs(&recorded));
        let sent: Request = serde_json::from_value(upgraded.take(&queue::agent("payment")).await[0].clone()).unwrap();
        assert_eq!((sent.step.as_str(), sent.attempt, sent.outputs.len()), ("charge", 1, 2));
    }
}

struct Inventory;

impl Agent for Inventory {
    fn name(&self) -> &'static str {
        "inventory"
    }
    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        let reference = call.request.input["order_ref"].clone();
        async move { Ok(json!({"reserved": reference})) }.boxed()
    }
}

#[tokio::test]
async fn a_recorded_request_is_done_and_its_reply_counts() {
    for version in VERSIONS {
        let upgraded = Upgraded::with(version, "task-claimed").await;
        let settings = agent::Settings { skew: SignedDuration::ZERO, breaker: agent::breaker::Settings::default() };
        let clock = upgraded.engine.clock();
        let runtime = Runtime::new(vec![Arc::new(Inventory)], settings, clock);
        let messenger = SqsMessenger::new(&upgraded.clients, &upgraded.config);
        let request = upgraded.recorded("request-reserve");
        let response = agent::handler(&runtime, &messenger, batch("agent-inventory", &request)).await;
        assert_eq!(response, stepwarden_aws::batch::Response::default());
        let replies = upgraded.take(queue::REPLIES).await;
        // A scheduler of that version reads it too: nothing it needs is missing.
        let known = upgraded.recorded("reply-reserve");
        assert!(known.as_object().unwrap().keys().all(|field| replies[0].get(field).is_some()), "{replies:?}");
        assert_eq!(serde_json::from_value::<Reply>(replies[0].clone()).unwrap().attempt, 1);
        upgraded.schedule(queue::REPLIES, &replies[0]).await;
        assert_eq!(upgraded.task().await.steps[0].output, Some(json!({"reserved": request["input"]["order_ref"]})));
    }
}

// Nobody replies after the upgrade: the supervisor finds the recorded task in the due index and gives its steps back.
#[tokio::test]
async fn a_recorded_order_whose_messages_are_lost_is_recovered() {
    for version in VERSIONS {
        let upgraded = Upgraded::with(version, "task-claimed").await;
        *upgraded.now.lock().unwrap() += SignedDuration::from_mins(10);
        let settings = Settings::new(upgraded.config.shards, std::time::Duration::from_secs(60));
        let sweep = supervisor::handler(&upgraded.engine, settings).await.unwrap();
        assert_eq!((sweep.expired, sweep.failed, sweep.stood_by), (2, 0, false));
        let task = upgraded.task().await;
        assert_eq!(task.steps.iter().map(|s| s.failures).collect::<Vec<_>>(), [1, 1, 0, 0]);
        // The lease's token is the one after the recorded one, so that no write of the old version's supervisor counts.
        let before: HashMap<_, _> = to_item(&upgraded.recorded("lease"));
        assert!(task.lease_token > before["token"].as_n().unwrap().parse().unwrap());
    }
}
