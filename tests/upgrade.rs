//! Goal: after an upgrade with orders in flight, what an earlier version wrote is understood. Method: items and
//! messages that were recorded from that version's binaries (`tests/lambda/record.py`) are put into tables and queues
//! unchanged, and the current functions continue from there, at the time of the recording.
//!
//! `tests/data/recorded/first` is of 2026-11-21, before replies had a separate queue: its agents replied to
//! `scheduler`. `second` is of the same day, with that queue and with an urgent order. Recorded files are never
//! changed; a later version adds a folder and a line in [`VERSIONS`].

use agent::{Agent, AgentError, Call, Runtime};
use aws_lambda_events::event::sqs::SqsEvent;
use aws_sdk_dynamodb::types::AttributeValue;
use futures::FutureExt;
use futures::future::BoxFuture;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use shared::again::Again;
use shared::items::Items;
use shared::message::{Notice, Reply, Request, ToScheduler};
use shared::migrate::Migration;
use shared::outputs::Beside;
use shared::ports::StateStore;
use shared::step::{Failure, FailureKind, Heart, Kids, Pages, Reminded, Rounds, State, Step};
use shared::task::{Alert, Arrival, Parent, Phase, Priority, ProcessState, Task};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use stepwarden_aws::config::queue;
use stepwarden_aws::{Clients, Config, Engine, SqsMessenger, engine, item, schema};
use stepwarden_embedded::Endpoints;
use supervisor::{Settings, Sweep};

/// Folders of recordings, and the queue to which that version's agents reply.
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

async fn put(clients: &Clients, table: &str, item: item::Item) {
    clients.dynamodb.put_item().table_name(table).set_item(Some(item)).send().await.unwrap();
}

/// The current functions over the recorded items, at a time of the recording.
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
    /// The state after the upgrade, with `task` as the stored record.
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
            put(&clients, table, to_item(&recorded(version, name))).await;
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

    async fn try_schedule(&self, queue: &str, message: &Value) -> stepwarden_aws::batch::Response {
        scheduler::handler(&self.engine, batch(queue, message)).await
    }

    /// Delivers one message to the scheduler, which must not fail.
    async fn schedule(&self, queue: &str, message: &Value) {
        let response = self.try_schedule(queue, message).await;
        assert_eq!(response, stepwarden_aws::batch::Response::default());
        assert_eq!(self.take(queue::SET_ASIDE).await, Vec::<Value>::new());
    }

    async fn sweep(&self) -> Sweep {
        let settings = Settings::new(self.config.shards, std::time::Duration::from_secs(60));
        supervisor::handler(&self.engine, &*self.engine.store, settings).await.unwrap()
    }

    /// Ten minutes pass.
    fn pass(&self) {
        *self.now.lock().unwrap() += SignedDuration::from_mins(10);
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

/// Every field that was written is still read and means the same: it is there when the record is written again.
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
            // The agents of that version may still be running: every field of a request that they knew is there.
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
        // A scheduler of that version reads the reply too: no field that it needs is missing.
        let known = upgraded.recorded("reply-reserve");
        assert!(known.as_object().unwrap().keys().all(|field| replies[0].get(field).is_some()), "{replies:?}");
        assert_eq!(serde_json::from_value::<Reply>(replies[0].clone()).unwrap().attempt, 1);
        upgraded.schedule(queue::REPLIES, &replies[0]).await;
        assert_eq!(upgraded.task().await.steps[0].output, Some(json!({"reserved": request["input"]["order_ref"]})));
    }
}

// No agent replies after the upgrade: the supervisor finds the recorded task in the due index and takes its steps back.
#[tokio::test]
async fn a_recorded_order_whose_messages_are_lost_is_recovered() {
    for version in VERSIONS {
        let upgraded = Upgraded::with(version, "task-claimed").await;
        upgraded.pass();
        let sweep = upgraded.sweep().await;
        assert_eq!((sweep.expired, sweep.failed, sweep.stood_by), (2, 0, false));
        let task = upgraded.task().await;
        assert_eq!(task.steps.iter().map(|s| s.failures).collect::<Vec<_>>(), [1, 1, 0, 0]);
        // The lease's token is the one after the recorded one, so that no write of the old version's supervisor counts.
        let before: HashMap<_, _> = to_item(&upgraded.recorded("lease"));
        assert!(task.lease_token > before["token"].as_n().unwrap().parse().unwrap());
    }
}

/// `item` with its JSON changed.
fn changed(item: &item::Item, change: impl FnOnce(&mut Value)) -> item::Item {
    let mut task: Value = serde_json::from_str(item["task"].as_s().unwrap()).unwrap();
    change(&mut task);
    let mut item = item.clone();
    item.insert("task".into(), AttributeValue::S(task.to_string()));
    item
}

/// The recorded task as a later version might have written it, and what this version does not know of it.
fn from_later_versions(recorded: &item::Item) -> Vec<(&'static str, item::Item)> {
    let mut beside = recorded.clone();
    beside.insert("children".into(), AttributeValue::N("3".into()));
    vec![
        ("`zz`", changed(recorded, |task| task["zz"] = json!([["vip", 1]]))),
        ("`later`", changed(recorded, |task| task["st"][0]["later"] = json!(60_000))),
        ("`to`", changed(recorded, |task| task["al"] = json!({"v": 1, "r": "why", "to": "ann"}))),
        ("`Accepted`", changed(recorded, |task| task["st"][1] = json!({"state": "Accepted", "a": 1}))),
        ("`Migrating`", changed(recorded, |task| task["ph"] = json!("Migrating"))),
        ("`q`", changed(recorded, |task| task["log"] = json!([[120, "q", 0, 1, null]]))),
        ("`children`", beside),
    ]
}

// After a rollback this version finds records of the next one. A save would drop the fields that it does not know, so
// it reports them and leaves the record alone. Nothing else waits for that record.
#[tokio::test]
async fn a_record_of_a_later_version_is_refused_in_words_and_left_as_it_is() {
    let (version, replies) = VERSIONS[1];
    let recorded_task = to_item(&recorded(version, "task-claimed"));
    for (unknown, later) in from_later_versions(&recorded_task) {
        let upgraded = Upgraded::with((version, replies), "task-claimed").await;
        put(&upgraded.clients, "state", later.clone()).await;
        let id = item::to_task(&recorded_task).unwrap().id;
        let error = upgraded.engine.store.load(&id).await.unwrap_err().to_string();
        assert!(error.contains(unknown) && error.contains("newer version"), "{unknown}: {error}");

        // Its messages are set aside, with the reason, for the version that knows the fields.
        let reply = upgraded.recorded("reply-reserve");
        upgraded.try_schedule(queue::REPLIES, &reply).await;
        let aside = upgraded.take(queue::SET_ASIDE).await;
        assert_eq!(aside.len(), 1, "{unknown}");
        assert_eq!(serde_json::from_str::<Value>(aside[0]["body"].as_str().unwrap()).unwrap(), reply, "{unknown}");
        // The sweep continues with the next order.
        let mut neighbour = recorded_task.clone();
        neighbour.insert("pk".into(), AttributeValue::S("ord_00000000000000000000000000".into()));
        put(&upgraded.clients, "state", neighbour).await;
        upgraded.pass();
        let sweep = upgraded.sweep().await;
        assert_eq!((sweep.expired, sweep.failed), (2, 1), "{unknown}");
        let key = AttributeValue::S(id.0.clone());
        let now = upgraded.clients.dynamodb.get_item().table_name("state").key("pk", key).send().await.unwrap();
        let (now, then) = (now.item.unwrap(), later);
        for column in ["task", "version", "stamp", "children"] {
            assert_eq!(now.get(column), then.get(column), "{unknown}: `{column}`");
        }
        // The record is no longer at the head of the index, and the reason is shown where an operator looks.
        assert_eq!(upgraded.sweep().await.failed, 0, "{unknown}");
        let why = now["aside"].as_s().unwrap();
        assert!(why.contains(unknown) && why.contains("newer version"), "{unknown}: {why}");
        // The newer version is back: the note beside the record does not keep it from reading the record.
        let mut known = now;
        known.insert("task".into(), recorded_task["task"].clone());
        known.remove("children");
        put(&upgraded.clients, "state", known).await;
        assert_eq!(upgraded.engine.store.load(&id).await.unwrap().unwrap().id, id, "{unknown}");
    }
}

// Damage is distinguished from a newer version, because deploying another version would not help.
#[tokio::test]
async fn a_damaged_record_is_not_taken_for_one_of_a_later_version() {
    let recorded_task = to_item(&recorded(VERSIONS[1].0, "task-claimed"));
    let without = |column: &str| {
        let mut item = recorded_task.clone();
        item.remove(column);
        item
    };
    let with = |column: &str, value: AttributeValue| {
        let mut item = recorded_task.clone();
        item.insert(column.into(), value);
        item
    };
    let whole = recorded_task["task"].as_s().unwrap();
    let cut = whole[..whole.len() / 2].to_owned();
    let long = "x".repeat(300 * 1024);
    for (what, damaged) in [
        ("cut short", with("task", AttributeValue::S(cut))),
        ("no JSON", with("task", AttributeValue::S("ord".into()))),
        ("a field is missing", changed(&recorded_task, |task| drop(task.as_object_mut().unwrap().remove("st")))),
        ("another type", changed(&recorded_task, |task| task["wf"] = json!(1))),
        // The parser quotes it.
        ("a long text for a number", changed(&recorded_task, |task| task["st"][0]["a"] = json!(long))),
        ("a state without its claim", changed(&recorded_task, |task| task["st"][0] = json!({"state": "Processing"}))),
        ("no version", without("version")),
        ("another kind of attribute", with("version", AttributeValue::S("1".into()))),
    ] {
        let upgraded = Upgraded::with(VERSIONS[1], "task-claimed").await;
        put(&upgraded.clients, "state", damaged).await;
        let id = item::to_task(&recorded_task).unwrap().id;
        let error = upgraded.engine.store.load(&id).await.unwrap_err().to_string();
        assert!(error.contains("damaged") && !error.contains("newer version"), "{what}: {error:.200}");
        upgraded.pass();
        for failed in [1, 0] {
            assert_eq!(upgraded.sweep().await.failed, failed, "{what}");
        }
    }
}

// The same for a definition: with a rule left out, the order would run under another workflow than the submitted one.
#[tokio::test]
async fn a_definition_of_a_later_version_is_refused_in_words() {
    let upgraded = Upgraded::with(VERSIONS[1], "task-claimed").await;
    let hash = upgraded.task().await.workflow_hash;
    assert_eq!(upgraded.engine.store.workflow(&hash).await.unwrap().unwrap().hash(), hash);
    let mut item = to_item(&upgraded.recorded("workflow"));
    let recorded: Value = serde_json::from_str(item["workflow"].as_s().unwrap()).unwrap();
    let with = |change: fn(&mut Value)| {
        let mut changed = recorded.clone();
        change(&mut changed);
        changed.to_string()
    };
    for (unknown, text) in [
        ("`labels`", with(|workflow| workflow["labels"] = json!(["vip"]))),
        ("`steps.1.each`", with(|workflow| workflow["steps"][1]["each"] = json!("PT1H"))),
        ("damaged", with(|workflow| workflow["steps"][1]["when"] = json!("later(input) > 5"))),
        ("`steps.0.undo.early`", with(|workflow| workflow["steps"][0]["undo"]["early"] = json!("keep"))),
        ("hash", with(|workflow| workflow["steps"][0]["timeout"] = json!("PT99S"))),
    ] {
        item.insert("workflow".into(), AttributeValue::S(text));
        put(&upgraded.clients, "state", item.clone()).await;
        let error = upgraded.engine.store.workflow(&hash).await.unwrap_err().to_string();
        assert!(error.contains(unknown), "{unknown}: {error}");
    }
    // A later version wrote it, and an expression in it has a function that this one does not know.
    let text = with(|workflow| workflow["steps"][1]["when"] = json!("later(input) > 5"));
    let hash = shared::workflow::Hash::of(text.as_bytes());
    let error = shared::workflow::Workflow::recorded(&text, &hash).unwrap_err();
    assert!(error.contains("newer version") && error.contains("later"), "{error}");
}

/// Fields of a record that the previous version knows, by their place: the task itself, a step, an alert.
const KNOWN_BEFORE: [(&str, &[&str]); 3] = [
    (
        "task",
        &["sh", "wf", "wh", "ph", "end", "st", "tn", "ref", "rq", "pr", "tp", "fb", "pz", "why", "al", "no", "log"],
    ),
    ("step", &["state", "nb", "by", "cb", "a", "p", "f", "uf", "x", "c", "s", "o", "e", "i"]),
    ("alert", &["v", "s", "r"]),
];
/// Fields that the previous version does not know and drops with its next save, and why that does no harm. A field for
/// which there is no reason must wait for the version after this one.
const DROPPED_BEFORE: [(&str, &str, &str); 27] = [
    ("task", "acon", "a repeated action is answered `moved` in place of `repeated`, as by that version"),
    ("task", "act", "a repeated action is answered `moved` in place of `repeated`, as by that version"),
    ("task", "ag", "only beside an entry `oa` of the history, which that version refuses to read"),
    ("task", "bk", "an action on what was seen before an alert was cleared is answered `moved`, as by that version"),
    ("task", "df", "only in orders of definitions with `workflow`, which that version refuses to read"),
    ("task", "dl", "only in orders of definitions with a deadline, which that version refuses to read"),
    ("task", "ev", "only in orders of definitions with `event`, which that version refuses to read"),
    ("task", "lb", "lists no longer find the order by it; deploy this version everywhere before orders have labels"),
    ("task", "mg", "only beside an entry `ow` of the history, which that version refuses to read"),
    ("task", "out", "only in orders of definitions with an `output`, which that version refuses to read"),
    (
        "task",
        "pa",
        "its child's end would bring no hint, and its record could expire first; deploy this version everywhere before \
         workflows start orders",
    ),
    (
        "task",
        "rt",
        "only in orders of definitions with `retention`, which that version refuses to read, and in their children",
    ),
    (
        "task",
        "sc",
        "only in orders of definitions with `accept`, `link` or `heartbeat`, which that version refuses to read",
    ),
    (
        "task",
        "xp",
        "the item that keeps the id stays, so the record may be removed or not: functions/submit/tests/keys.rs, \
         a_mark_that_an_older_version_dropped_costs_no_key",
    ),
    ("step", "aa", "only in orders of definitions with `alert`, which that version refuses to read"),
    ("step", "fl", "only in orders of definitions with `catch` or mapped data, which that version refuses to read"),
    ("step", "hb", "only in orders of definitions with `heartbeat`, which that version refuses to read"),
    ("step", "kd", "only in orders of definitions with `workflow`, which that version refuses to read"),
    (
        "step",
        "ob",
        "that version fails every step with such an output; deploy this one everywhere before agents return any",
    ),
    ("step", "pg", "only in orders of definitions with `pages`, which that version refuses to read"),
    ("step", "pu", "only in orders of definitions with `poll`, which that version refuses to read"),
    ("step", "rd", "only beside an entry `B` of the history, which that version refuses to read"),
    ("step", "rm", "only in orders of definitions with `remind`, which that version refuses to read"),
    ("step", "t", "only in orders of definitions with expressions, which that version refuses to read"),
    ("step", "un", "only in orders of definitions with mapped undos, which that version refuses to read"),
    ("step", "ev", "only in a state that is called Waiting, which that version refuses to read"),
    ("step", "u", "only in a state that is called Waiting, which that version refuses to read"),
];

/// A task with every field that a task can have. A new field is added here, and so is checked below.
fn with_everything() -> Task {
    let claimed = item::to_task(&to_item(&recorded(VERSIONS[1].0, "task-claimed"))).unwrap();
    let time = Some(claimed.created_at);
    let hash = claimed.workflow_hash.clone();
    let step = |state: State| Step {
        state,
        attempt: 1,
        pool: Some("p".into()),
        failures: 1,
        undo_failures: 1,
        extended: 1,
        claimed_at: 1,
        settled_at: 1,
        output: Some(json!(1)),
        beside: Some(Beside { hash: hash.clone(), bytes: 5000 }),
        error: Some("e".into()),
        input: Some(json!(2)),
        failure: Some(Failure { kind: FailureKind::Refused, status: 409, answer: json!(3) }),
        unsure: true,
        poll_until: time,
        turn: time,
        reminded: Some(Reminded { sent: 1, last: 2, next: time, sent_at: 3, complete_by: time }),
        alert_at: time,
        heart: Some(Heart { until: claimed.created_at, at: time, percent: Some(40), note: Some("n".into()) }),
        kids: Some(Kids { round: 1, made: 1, items: Some(Items::new(3, hash.clone(), claimed.created_at)) }),
        rounds: Some(Rounds {
            round: 2,
            before: 1,
            key: 1,
            replaced: vec![Beside { hash: hash.clone(), bytes: 5000 }],
        }),
        pages: Some(Pages {
            taken: 2,
            items: 3,
            bytes: 5,
            cursor: Some(json!("c")),
            lists: vec![Beside { hash: hash.clone(), bytes: 5000 }],
            tail: vec![json!(1)],
        }),
    };
    let (parent, pinned) = (claimed.id.clone(), hash.clone());
    let running = State::Processing { locked_by: "i".into(), complete_by: claimed.created_at };
    Task {
        id: claimed.id,
        version: 3,
        stamp: "s".into(),
        shard: 1,
        due: time,
        lease_token: 1,
        created_at: claimed.created_at,
        updated_at: claimed.updated_at,
        workflow: claimed.workflow,
        workflow_hash: claimed.workflow_hash,
        phase: Phase::Undoing,
        turned_at: 2,
        steps: vec![
            step(State::Pending { not_before: time }),
            step(running),
            step(State::Waiting { until: claimed.created_at, event: true }),
        ],
        tenant: "acme".into(),
        reference: Some("r".into()),
        labels: vec!["l".into()],
        reply_queue: Some("q".into()),
        priority: Priority::High,
        traceparent: Some("t".into()),
        forward_by: time,
        deadline: time,
        paused_at: time,
        acted_at: 2,
        acted_on: 1,
        reason: Some("w".into()),
        alert: Some(Alert { version: 1, step: Some(0), reason: "r".into() }),
        notice_owed: true,
        expires: true,
        retention: Some(30),
        books: Some((2, 3)),
        events: vec![Arrival {
            name: "n".into(),
            key: "k".into(),
            hash: "h".into(),
            step: Some(0),
            data: Some(json!({})),
            by: Some("p".into()),
        }],
        secret: Some("s".into()),
        parent: Some(Parent { id: parent, step: "s".into(), item: Some(0), round: 1, paused: true, released: true }),
        pins: [("w".to_owned(), pinned.clone())].into(),
        migration: Some(Migration { to: pinned, resubmits: true, from: time }),
        again: Some(Again { steps: vec![0], new_keys: true }),
        output: Some(json!({})),
        log: claimed.log,
    }
}

// The opposite direction: after a rollback the previous version saves today's records. It drops the fields that it
// does not know, so each of them has a reason why that does no harm.
#[test]
fn fields_that_the_previous_version_drops_do_no_harm() {
    let task = serde_json::to_value(with_everything()).unwrap();
    let steps = task["st"].as_array().unwrap();
    let places = [("task", &task), ("alert", &task["al"])].into_iter().chain(steps.iter().map(|step| ("step", step)));
    let mut dropped = Vec::new();
    for (place, value) in places {
        let known = KNOWN_BEFORE.iter().find(|(name, _)| *name == place).unwrap().1;
        for key in value.as_object().unwrap().keys().filter(|key| !known.contains(&key.as_str())) {
            if !dropped.contains(&(place, key.as_str())) {
                dropped.push((place, key.as_str()));
            }
        }
    }
    let reasons: Vec<_> = DROPPED_BEFORE.iter().map(|(place, key, _)| (*place, *key)).collect();
    assert_eq!(dropped, reasons, "a field that the version before drops needs a reason here");
}
