//! Goal: one idempotency key makes one order forever, even after DynamoDB has removed the order's record. Method: the
//! real store over embedded tables; time to live is imitated by deleting the items that have one.

use aws_sdk_dynamodb::types::AttributeValue;
use jiff::Timestamp;
use serde_json::json;
use shared::decision::{Act, Event, What};
use shared::erase::Part;
use shared::message::{Outcome, Reply};
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::ProcessState;
use shared::workflow::Hash;
use shared::workflow::file::{Known, parse};
use std::collections::HashMap;
use std::sync::Arc;
use stepwarden_aws::{Clients, Config, DynamoStore, engine, schema};
use stepwarden_embedded::{Endpoints, Options};
use submit::{Submit, submission};

type Item = HashMap<String, AttributeValue>;

pub struct World {
    pub submit: Submit,
    clients: Clients,
    _endpoints: Endpoints,
}

impl World {
    pub async fn new(retention_days: &str) -> Self {
        let endpoints = Endpoints::open(&Options::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let submit = Self::submit(&clients, retention_days, true).await;
        Self { submit, clients, _endpoints: endpoints }
    }

    async fn submit(clients: &Clients, retention_days: &str, is_new: bool) -> Submit {
        Self::submit_with(clients, retention_days, "1", is_new).await
    }

    fn config(retention_days: &str, buckets: &str) -> Config {
        let settings = [
            ("ORDERS_TABLE", "orders"),
            ("STATE_TABLE", "state"),
            ("QUEUE_PREFIX", "https://sqs.us-east-1.amazonaws.com/000000000000/test-"),
            ("EVENT_BUS", "default"),
            ("AGENTS", "x"),
            ("SHARDS", "1"),
            ("RETENTION_DAYS", retention_days),
            ("ORDER_BUCKETS", buckets),
        ];
        let lookup = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Config::from_lookup(lookup).unwrap()
    }

    /// The tables, as an operator of the deployment uses them.
    fn store(&self) -> DynamoStore {
        DynamoStore::new(self.clients.dynamodb.clone(), &Self::config("90", "1"))
    }

    async fn submit_with(clients: &Clients, retention_days: &str, buckets: &str, is_new: bool) -> Submit {
        let mut config = Self::config(retention_days, buckets);
        if is_new {
            config.queue_prefix = schema::create(clients, &config, "test-", 30).await.unwrap();
        }
        let text = "name = \"one\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";
        let workflow = parse("one.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap();
        Submit {
            engine: engine(&config, clients, Arc::new(Timestamp::now)).engine,
            workflows: [("one".to_owned(), workflow)].into(),
            reply_queues: Default::default(),
            shards: 1,
            scopes: Default::default(),
            queue_tenant: "acme".into(),
            begins: None,
        }
    }

    async fn accept(&self, n: u32) -> Result<Id, (u16, &'static str, String)> {
        let body = json!({"workflow": "one", "input": {"n": n}});
        let submission = submission::parse(body.to_string().as_bytes()).unwrap();
        let accepted = self.submit.accept("acme", "key-1", submission).await;
        accepted.map_err(|problem| (problem.status, problem.code, problem.detail))
    }

    /// Brings the order to Processed.
    async fn process(&self, id: &Id) {
        let reply = Reply::new(id.clone(), "a", 1, Outcome::Done { output: json!(null) });
        for event in [Event::Wake { seen: 0, hops: 0 }, Event::Reply(reply)] {
            // The queues of agents and notices do not matter here: what cannot be sent is owed.
            let _ = self.submit.engine.handle(vec![(id.clone(), event)]).await;
        }
        let task = self.submit.engine.store.load(id).await.unwrap().unwrap();
        assert_eq!(task.process_state(), ProcessState::Processed);
    }

    async fn items(&self, table: &str) -> Vec<Item> {
        self.clients.dynamodb.scan().table_name(table).send().await.unwrap().items.unwrap_or_default()
    }

    /// Removes items with a time to live, as DynamoDB does, and returns their number.
    async fn expire(&self) -> usize {
        let mut gone = 0;
        for item in self.items("state").await.into_iter().filter(|item| item.contains_key("ttl")) {
            let delete = self.clients.dynamodb.delete_item().table_name("state").key("pk", item["pk"].clone());
            delete.send().await.unwrap();
            gone += 1;
        }
        gone
    }
}

// The record is removed, but the key stays: there is no second order under the first one's id, whose keys the services
// already know.
#[tokio::test]
async fn a_key_outlives_the_record_of_its_order() {
    let world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    assert_eq!(world.accept(1).await.unwrap(), id, "while it is open");
    world.process(&id).await;
    assert_eq!(world.accept(1).await.unwrap(), id, "once it has ended");
    assert_eq!(world.expire().await, 1);
    assert_eq!(world.submit.engine.store.load(&id).await.unwrap(), None);
    for n in [1, 2] {
        let (status, code, detail) = world.accept(n).await.unwrap_err();
        assert_eq!((status, code), (409, "idempotency_key_spent"));
        assert!(detail.contains(&id.0) && detail.contains("new key"), "{detail}");
    }
    assert_eq!(world.items("orders").await.len(), 1, "one order");
}

// M5: docs/limits.md promises both numbers.
#[tokio::test]
async fn the_key_of_an_order_protects_forever_and_its_answer_for_the_retention() {
    const DAY_S: i64 = 86_400;
    let world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    world.process(&id).await;
    let ended = world.submit.engine.store.load(&id).await.unwrap().unwrap().updated_at;
    let items = world.items("state").await;
    let ttl = |item: &Item| item.get("ttl").map(|ttl| ttl.as_n().unwrap().parse::<i64>().unwrap());
    let record = items.iter().find(|item| item["pk"].as_s() == Ok(&id.0)).unwrap();
    assert_eq!(ttl(record), Some(ended.as_second() + 90 * DAY_S), "its answer is kept that long");
    assert_eq!(items.iter().filter(|item| ttl(item).is_some()).count(), 1, "nothing else expires");
    let used = items.iter().find(|item| item["pk"].as_s() == Ok(&format!("used#{id}"))).unwrap();
    assert_eq!(ttl(used), None);
    assert_eq!(world.accept(1).await.unwrap(), id);
    assert_eq!(world.expire().await, 1);
    assert_eq!(world.accept(1).await.unwrap_err().1, "idempotency_key_spent");
    assert_eq!(world.expire().await, 0, "what protects it now never expires");
    let day_after = World::submit(&world.clients, "1", false).await;
    assert_eq!(World { submit: day_after, ..world }.accept(1).await.unwrap_err().1, "idempotency_key_spent");
}

// M5: an erased order is not done a second time, and nothing is left that would tell whether it is the same submission.
#[tokio::test]
async fn the_key_of_an_erased_order_stays_used() {
    let world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    world.process(&id).await;
    let store = world.store();
    let task = store.load(&id).await.unwrap().unwrap();
    let kept = store.kept(&id, Some(&task)).await.unwrap();
    let next = world.submit.engine.erased(&task, Part::Last, "ann", "r").unwrap().unwrap();
    assert!(store.erase(&next, &task, kept.as_ref(), None).await.unwrap());
    for n in [1, 2] {
        let (status, code, detail) = world.accept(n).await.unwrap_err();
        assert_eq!((status, code), (409, "idempotency_key_spent"));
        assert!(detail.contains(&id.0) && detail.contains("erased"), "{detail}");
    }
    assert_eq!(world.expire().await, 1, "its record expires as before");
    assert_eq!(world.accept(1).await.unwrap_err().1, "idempotency_key_spent");
}

// Time to live may be days late: until then the order is found as before.
#[tokio::test]
async fn a_record_whose_time_is_over_and_that_is_still_there_is_found() {
    let mut world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    world.process(&id).await;
    let mut item = world.items("state").await.into_iter().find(|item| item["pk"].as_s() == Ok(&id.0)).unwrap();
    assert!(item.insert("ttl".into(), AttributeValue::N("1".into())).is_some());
    world.clients.dynamodb.put_item().table_name("state").set_item(Some(item)).send().await.unwrap();
    world.submit = World::submit(&world.clients, "90", false).await;
    assert_eq!(world.accept(1).await.unwrap(), id);
    assert_eq!(world.accept(2).await.unwrap_err().1, "idempotency_key_reused");
}

// After the retention is set back to 0, nothing more is removed; keys of removed orders stay used, also at new
// instances.
#[tokio::test]
async fn a_retention_that_is_taken_back_frees_no_key() {
    let mut world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    world.process(&id).await;
    assert_eq!(world.expire().await, 1);
    world.submit = World::submit(&world.clients, "0", false).await;
    for n in [1, 2] {
        assert_eq!(world.accept(n).await.unwrap_err().1, "idempotency_key_spent");
    }
    assert_eq!(world.items("orders").await.len(), 1, "one order");
    // Without a retention no new order expires.
    let body = json!({"workflow": "one", "input": {}}).to_string();
    let second = world.submit.accept("acme", "key-2", submission::parse(body.as_bytes()).unwrap()).await.unwrap();
    world.process(&second).await;
    assert_eq!(world.expire().await, 0);
}

// The order's item is missing, as after a restore of one table alone, so it is unknown whether the submission is the
// same.
#[tokio::test]
async fn a_record_without_its_order_is_no_other_order() {
    let world = World::new("0").await;
    let id = world.accept(1).await.unwrap();
    let item = world.items("orders").await.remove(0);
    let delete = world.clients.dynamodb.delete_item().table_name("orders");
    delete.key("bucket", item["bucket"].clone()).key("sort", item["sort"].clone()).send().await.unwrap();
    assert_eq!(world.accept(1).await.unwrap_err().1, "unreadable", "{id}");
    assert!(world.items("orders").await.is_empty());
}

// Without a retention nothing is removed, nothing more is written, and the key finds its order forever.
#[tokio::test]
async fn without_a_retention_the_record_itself_keeps_the_key() {
    let world = World::new("0").await;
    let id = world.accept(1).await.unwrap();
    world.process(&id).await;
    assert_eq!(world.expire().await, 0);
    assert_eq!(world.accept(1).await.unwrap(), id);
    assert_eq!(world.accept(2).await.unwrap_err().1, "idempotency_key_reused");
    assert!(world.items("state").await.iter().all(|item| !item["pk"].as_s().unwrap().starts_with("used#")));
}

// `ORDER_BUCKETS` may be raised while orders are open: orders and inputs are found in their old partitions.
#[tokio::test]
async fn more_partitions_of_the_order_table_lose_no_order() {
    let mut world = World::new("0").await;
    let id = world.accept(1).await.unwrap();
    world.submit = World::submit(&world.clients, "0", false).await;
    let task = world.submit.engine.store.load(&id).await.unwrap().unwrap();
    for buckets in [5, 64, 256] {
        world.submit = World::submit_with(&world.clients, "0", &buckets.to_string(), false).await;
        let order = world.submit.engine.store.order(&task).await.unwrap();
        assert_eq!(order.map(|order| order.input), Some(json!({"n": 1})), "{buckets}");
        assert_eq!(world.accept(1).await, Ok(id.clone()), "{buckets}");
    }
}

async fn with_retention(world: &World, retention_days: &str) -> Submit {
    let mut submit = World::submit(&world.clients, retention_days, false).await;
    let text = "name = \"short\"\nretention = \"30d\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";
    let workflow = parse("short.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap();
    submit.workflows.insert("short".into(), workflow);
    submit
}

async fn accept_short(world: &World, key: &str) -> Id {
    let body = json!({"workflow": "short", "input": {}}).to_string();
    world.submit.accept("acme", key, submission::parse(body.as_bytes()).unwrap()).await.unwrap()
}

// M5: the file wins over the deployment, in both directions, and only for its own orders. Their keys stay used.
#[tokio::test]
async fn a_workflow_says_how_long_its_orders_are_kept() {
    const DAY_S: i64 = 86_400;
    for deployment in ["0", "1", "90"] {
        let mut world = World::new("0").await;
        world.submit = with_retention(&world, deployment).await;
        let id = accept_short(&world, "key-0").await;
        world.process(&id).await;
        let other = world.accept(1).await.unwrap();
        world.process(&other).await;
        let ended = world.submit.engine.store.load(&id).await.unwrap().unwrap().updated_at;
        let items = world.items("state").await;
        let ttl = |id: &Id| {
            let item = items.iter().find(|item| item["pk"].as_s() == Ok(&id.0)).unwrap();
            item.get("ttl").map(|ttl| ttl.as_n().unwrap().parse::<i64>().unwrap())
        };
        assert_eq!(ttl(&id), Some(ended.as_second() + 30 * DAY_S), "{deployment}");
        assert_eq!(ttl(&other).is_some(), deployment != "0", "{deployment}");
        world.expire().await;
        // The key is used again, for an order of a workflow that says nothing.
        let body = json!({"workflow": "one", "input": {}}).to_string();
        let again = world.submit.accept("acme", "key-0", submission::parse(body.as_bytes()).unwrap()).await;
        assert_eq!(again.unwrap_err().code, "idempotency_key_spent", "{deployment}");
    }
}

#[tokio::test]
async fn an_instance_learns_of_the_first_retention_of_a_workflow() {
    let mut world = World::new("0").await;
    let store = Arc::clone(&world.submit.engine.store);
    let none = store.load(&world.accept(1).await.unwrap()).await.unwrap().unwrap();
    assert!(!none.expires, "nothing is ever removed");
    world.submit = with_retention(&world, "0").await;
    accept_short(&world, "key-0").await;
    let now = Timestamp::now();
    let later = |minutes: i64| now + shared::time::SignedDuration::from_mins(minutes);
    assert!(!store.expires(&none, later(30)).await.unwrap(), "as it learnt before");
    assert!(store.expires(&none, later(61)).await.unwrap());
}

// Only a record whose key is kept separately expires: the parameter may be set, and set back, while orders are open.
#[tokio::test]
async fn a_retention_that_is_set_later_spares_orders_from_before() {
    let mut world = World::new("0").await;
    let id = world.accept(1).await.unwrap();
    world.submit = World::submit(&world.clients, "1", false).await;
    world.process(&id).await;
    assert_eq!(world.expire().await, 0);
    assert_eq!(world.accept(1).await.unwrap(), id);
}

// After a rollback, an older version does not know the mark for this, and drops it with its next save.
#[tokio::test]
async fn a_mark_that_an_older_version_dropped_costs_no_key() {
    let world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    let mut item = world.items("state").await.into_iter().find(|item| item["pk"].as_s() == Ok(&id.0)).unwrap();
    let with = |ttl: bool, item: &mut Item| {
        item.insert("task".into(), AttributeValue::S(item["task"].as_s().unwrap().replace("\"xp\":true,", "")));
        if ttl {
            item.insert("ttl".into(), AttributeValue::N("1".into()));
        }
    };
    with(false, &mut item);
    world.clients.dynamodb.put_item().table_name("state").set_item(Some(item.clone())).send().await.unwrap();
    // This version again: without the mark the record stays.
    let submit = World::submit(&world.clients, "90", false).await;
    let world = World { submit, ..world };
    world.process(&id).await;
    assert_eq!(world.expire().await, 0);
    assert_eq!(world.accept(1).await.unwrap(), id);
    // The older version let the record expire: the key stays used all the same.
    with(true, &mut item);
    world.clients.dynamodb.put_item().table_name("state").set_item(Some(item)).send().await.unwrap();
    assert_eq!(world.expire().await, 1);
    assert_eq!(world.accept(1).await.unwrap_err().1, "idempotency_key_spent");
}

// K6: outputs beside the record go with it, and stay while an order is open, also one that is opened again.
#[tokio::test]
async fn long_outputs_are_removed_with_their_record() {
    let world = World::new("90").await;
    let id = world.accept(1).await.unwrap();
    let output = json!("x".repeat(5000));
    let wake = Event::Wake { seen: 0, hops: 0 };
    let reply = Reply::new(id.clone(), "a", 1, Outcome::Done { output: output.clone() });
    let ttl = async || {
        let mut items = world.items("state").await;
        items.retain(|item| item["pk"].as_s().is_ok_and(|pk| pk == &id.0 || pk.starts_with("output#")));
        assert_eq!(items.len(), 2);
        items.iter().map(|item| item.get("ttl").cloned()).collect::<Vec<_>>()
    };
    let _ = world.submit.engine.handle(vec![(id.clone(), wake)]).await;
    let _ = world.submit.engine.handle(vec![(id.clone(), Event::Reply(reply))]).await;
    let ended = ttl().await;
    assert!(ended[0].is_some() && ended[0] == ended[1], "{ended:?}");
    // An instance that remembers the order as it was decides the last reply once more: the expiry stays.
    let hash = Hash::of(output.to_string().as_bytes());
    world.submit.engine.store.put_output(&id, &hash, &output.to_string()).await.unwrap();
    assert_eq!(ttl().await, ended);
    let as_ended = world.items("state").await;
    let undo = Act { what: What::Undo, by: "ann".into(), reason: "r".into(), seen: None };
    world.submit.engine.act(vec![(id.clone(), undo)]).await.remove(0).unwrap();
    assert_eq!(ttl().await, [None, None], "the undo may need it");
    // The same for a record that a person mends: it stays, and so do its outputs.
    for item in as_ended {
        world.clients.dynamodb.put_item().table_name("state").set_item(Some(item)).send().await.unwrap();
    }
    assert_eq!(ttl().await, ended);
    let store = world.store();
    let raw = store.raw(&id).await.unwrap().unwrap();
    let mut mended = raw.task().unwrap();
    (mended.version, mended.expires) = (mended.version + 1, false);
    assert!(store.replace_raw(&mended, &raw).await.unwrap());
    assert_eq!(ttl().await, [None, None]);
    let task = world.submit.engine.store.load(&id).await.unwrap().unwrap();
    let hash = task.steps[0].beside.clone().unwrap().hash;
    let read = world.submit.engine.store.outputs(&id, std::slice::from_ref(&hash)).await.remove(0);
    assert_eq!(read.unwrap(), Some(output.to_string()));
    // A damaged one is refused.
    let put = world.clients.dynamodb.put_item().table_name("state");
    let put =
        put.item("pk", AttributeValue::S(format!("output#{id}#{hash}"))).item("output", AttributeValue::S("1".into()));
    put.send().await.unwrap();
    let read = world.submit.engine.store.outputs(&id, &[hash]).await.remove(0);
    assert_eq!(read.unwrap(), None);
}
