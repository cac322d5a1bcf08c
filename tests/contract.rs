//! Goal: StateStore, leases and Messenger get the same answers from every endpoint, and from every other
//! implementation. Method: the suite of `tests/contract`, over the adapters. In `cargo test` it runs against the
//! embedded endpoints; `tests/contract/run NAME` starts another one and names it in `STEPWARDEN_CONTRACT`:
//! `dynamodb-local`, `ministack`, `localstack`, or `aws` for your own account, where the tables and queues stay behind.
//!
//! Where an endpoint differs from AWS, [`Endpoint`] says so, and says why AWS is right.

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use contract::{PATIENCE, at, messenger, until};
use serde_json::Value;
use shared::control::Pause;
use shared::message::Effect;
use shared::order::Id;
use shared::ports::{Error, Messenger, StateStore};
use shared::task::Task;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stepwarden_aws::config::{instance, queue};
use stepwarden_aws::{Clients, Config, DynamoStore, SqsMessenger, schema};
use stepwarden_embedded::{Call, Endpoints, Fault, FaultHook};

/// The endpoint under test, and where it differs from AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Endpoint {
    Embedded,
    DynamoDbLocal,
    MiniStack,
    LocalStack,
    Aws,
}

impl Endpoint {
    fn chosen() -> Self {
        match std::env::var("STEPWARDEN_CONTRACT").as_deref() {
            Err(_) | Ok("") => Self::Embedded,
            Ok("dynamodb-local") => Self::DynamoDbLocal,
            Ok("ministack") => Self::MiniStack,
            Ok("localstack") => Self::LocalStack,
            Ok("aws") => Self::Aws,
            Ok(other) => panic!("STEPWARDEN_CONTRACT={other}: no such endpoint"),
        }
    }

    /// DynamoDB Local has tables only.
    fn has_queues(self) -> bool {
        self != Self::DynamoDbLocal
    }

    /// AWS is right: a standard queue accepts `MessageGroupId` and returns it ("Amazon SQS fair queues"). An emulator
    /// older than fair queues accepts it and forgets it; only fairness depends on it.
    fn keeps_groups_of_standard_queues(self) -> bool {
        !matches!(self, Self::LocalStack)
    }
}

struct Place {
    endpoint: Endpoint,
    clients: Clients,
    config: Config,
    store: DynamoStore,
    messenger: SqsMessenger,
    /// Dropped last.
    embedded: Option<Endpoints>,
}

impl Place {
    /// Fresh tables, and queues where there are any.
    async fn new() -> Self {
        let embedded =
            (Endpoint::chosen() == Endpoint::Embedded).then(|| Endpoints::open(&Default::default()).unwrap());
        let clients = match &embedded {
            Some(endpoints) => Clients::embedded(endpoints.http_client()),
            None => Clients::from_env().await,
        };
        Self::with(clients, embedded).await
    }

    /// Each way to call the chosen endpoints: the embedded ones also without the SDK, as a laptop does.
    async fn each() -> Vec<Self> {
        let mut places = vec![Self::new().await];
        if places[0].embedded.is_some() {
            let endpoints = Endpoints::open(&Default::default()).unwrap();
            places.push(Self::with(Clients::in_process(endpoints.connector()), Some(endpoints)).await);
        }
        places
    }

    async fn with(clients: Clients, embedded: Option<Endpoints>) -> Self {
        let endpoint = Endpoint::chosen();
        let prefix = format!("contract-{}-", instance());
        let names = [
            ("ORDERS_TABLE", format!("{prefix}orders")),
            ("STATE_TABLE", format!("{prefix}state")),
            ("QUEUE_PREFIX", "not-yet".to_owned()),
            ("EVENT_BUS", "default".to_owned()),
            ("REPLY_QUEUES", "default".to_owned()),
            ("AGENTS", "inventory,payment".to_owned()),
            ("AGENT_POOLS", "payment=payment,payment-b".to_owned()),
            ("PRIORITY_CLASSES", "true".to_owned()),
        ];
        let lookup = |name: &str| names.iter().find(|(n, _)| *n == name).map(|(_, value)| value.clone());
        let mut config = Config::from_lookup(lookup).unwrap();
        if endpoint.has_queues() {
            config.queue_prefix = schema::create(&clients, &config, &prefix, 30).await.unwrap();
        } else {
            schema::create_tables(&clients, &config).await.unwrap();
        }
        for table in [&config.orders_table, &config.state_table] {
            until("the table is there", async || {
                let answer = clients.dynamodb.describe_table().table_name(table).send().await.unwrap();
                let status = answer.table.unwrap().table_status.unwrap();
                (status.as_str() == "ACTIVE").then_some(())
            })
            .await;
        }
        let store = DynamoStore::new(clients.dynamodb.clone(), &config);
        let messenger = SqsMessenger::new(&clients, &config);
        Self { endpoint, clients, config, store, messenger, embedded }
    }

    /// The same, unless there are no queues.
    async fn with_queues() -> Option<Self> {
        if !Endpoint::chosen().has_queues() {
            println!("skipped: {:?} has no queues", Endpoint::chosen());
            return None;
        }
        Some(Self::new().await)
    }

    /// Bodies and groups of messages that are received from a queue and deleted.
    async fn take(&self, name: &str) -> Vec<(Value, Option<String>)> {
        let url = self.config.queue_url(name);
        let receive = self.clients.sqs.receive_message().queue_url(&url).max_number_of_messages(10);
        let receive = receive.message_system_attribute_names(MessageSystemAttributeName::MessageGroupId);
        let mut taken = Vec::new();
        for message in receive.wait_time_seconds(1).send().await.unwrap().messages.unwrap_or_default() {
            let group = message.attributes().and_then(|a| a.get(&MessageSystemAttributeName::MessageGroupId));
            taken.push((serde_json::from_str(message.body().unwrap()).unwrap(), group.cloned()));
            let handle = message.receipt_handle.unwrap();
            self.clients.sqs.delete_message().queue_url(&url).receipt_handle(handle).send().await.unwrap();
        }
        taken
    }

    /// Messages in a queue: visible, and delayed.
    async fn counts(&self, name: &str) -> (u32, u32) {
        let names =
            [QueueAttributeName::ApproximateNumberOfMessages, QueueAttributeName::ApproximateNumberOfMessagesDelayed];
        let request = self.clients.sqs.get_queue_attributes().queue_url(self.config.queue_url(name));
        let answer = request.set_attribute_names(Some(names.to_vec())).send().await.unwrap().attributes.unwrap();
        let count = |name: &QueueAttributeName| answer[name].parse().unwrap();
        (count(&names[0]), count(&names[1]))
    }
}

impl messenger::Place for Place {
    const REPLY_QUEUE: &'static str = "default";
    type Messenger = SqsMessenger;

    fn messenger(&self) -> &SqsMessenger {
        &self.messenger
    }

    async fn receive(&self, queue: &str) -> Vec<Value> {
        self.take(queue).await.into_iter().map(|(body, _)| body).collect()
    }
}

#[tokio::test]
async fn the_state_store_keeps_the_contract() {
    for place in Place::each().await {
        contract::store::suite(&place.store).await;
    }
    for place in Place::each().await {
        contract::store::sizes(&place.store).await;
    }
    for place in Place::each().await {
        contract::store::attention(&place.store).await;
    }
    for Place { store, .. } in Place::each().await {
        contract::store::agents(&store, async |name, pause| store.set_agent(name, pause).await).await;
    }
    for place in Place::each().await {
        contract::lease::suite(&place.store).await;
    }
}

// Keys of a batch that DynamoDB leaves unprocessed are requested again; only those that stay unprocessed are an outage.
#[tokio::test(start_paused = true)]
async fn a_batch_that_is_answered_in_part_is_asked_for_again() {
    if Endpoint::chosen() != Endpoint::Embedded {
        println!("skipped: only the embedded endpoints answer in part when asked to");
        return;
    }
    for place in Place::each().await {
        asks_again_for_the_rest(&place).await;
    }
}

async fn asks_again_for_the_rest(place: &Place) {
    let ids: Vec<_> = (0..7).map(|n| contract::pair(&format!("part-{n}"), 0).1.id).collect();
    for n in 0..ids.len() {
        let (order, task) = contract::pair(&format!("part-{n}"), 0);
        place.store.create(&order, &task).await.unwrap();
    }
    // The faults of the first BatchGetItem calls, one after another, and of all later ones.
    let inject = |first: &[Fault], then: Option<Fault>| {
        let (first, count) = (first.to_vec(), AtomicUsize::new(0));
        let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
            let is_batch = call.operation == "BatchGetItem";
            is_batch.then(|| first.get(count.fetch_add(1, Ordering::SeqCst)).copied().or(then)).flatten()
        });
        place.embedded.as_ref().unwrap().set_fault_hook(Some(hook));
    };
    let load = async || {
        let loaded = place.store.load_all(&ids).await;
        assert_eq!(loaded.len(), ids.len());
        let is_there = |(n, task): (usize, Result<Option<Task>, Error>)| match task {
            Ok(task) => task.is_some_and(|task| task.id == ids[n]),
            Err(Error::Unavailable { what, .. }) => {
                assert_eq!(what, format!("task {}", ids[n]));
                false
            }
            Err(other) => panic!("{other}"),
        };
        loaded.into_iter().enumerate().map(is_there).collect::<Vec<_>>()
    };
    inject(&[Fault::Partly(2), Fault::Partly(0)], None);
    assert_eq!(load().await, [true; 7]);
    // As many calls as needed, if each leaves fewer keys.
    inject(&[], Some(Fault::Partly(1)));
    assert_eq!(load().await, [true; 7]);
    // A key that is always throttled is refused once it is requested alone; the other keys were read before.
    inject(&[Fault::Partly(6)], Some(Fault::Throttle));
    assert_eq!(load().await, [true, true, true, true, true, true, false]);
    inject(&[Fault::Partly(2)], Some(Fault::Partly(0)));
    assert_eq!(load().await, [true, true, false, false, false, false, false]);
    inject(&[], Some(Fault::InternalError));
    assert_eq!(load().await, [false; 7]);

    // A key for which DynamoDB refuses the whole request fails alone.
    inject(&[], None);
    let ids = [ids[0].clone(), Id(String::new()), Id("x".repeat(3000)), ids[1].clone()];
    let loaded = place.store.load_all(&ids).await;
    let answers: Vec<_> = loaded.iter().map(|task| task.as_ref().ok().map(Option::is_some)).collect();
    assert_eq!(answers, [Some(true), None, None, Some(true)], "{loaded:?}");
}

// J1: an order's input never changes, so it is read at half the price; if that read misses an input that was just
// written, it is repeated consistently.
#[tokio::test]
async fn an_input_that_a_cheap_read_misses_is_found() {
    for place in Place::each().await {
        finds_what_a_cheap_read_misses(&place).await;
    }
}

async fn finds_what_a_cheap_read_misses(place: &Place) {
    let Some(embedded) = &place.embedded else { return };
    let mut tasks = Vec::new();
    for n in 0..3 {
        let (order, task) = contract::pair(&format!("cheap-{n}"), 0);
        place.store.create(&order, &task).await.unwrap();
        tasks.push((order, task));
    }
    let orders = tasks.iter().map(|(order, _)| Some(order.clone())).collect::<Vec<_>>();
    let wanted: Vec<&Task> = tasks.iter().map(|(_, task)| task).collect();
    for (fault, requests) in [(None, 1), (Some(Fault::Behind), 2)] {
        embedded.set_fault_hook(fault.map(|fault| -> FaultHook { Arc::new(move |_: &Call<'_>| Some(fault)) }));
        let before = embedded.counts();
        let found = place.store.orders(&wanted).await.into_iter().collect::<Result<Vec<_>, _>>().unwrap();
        assert_eq!(found, orders);
        assert_eq!(place.store.order(wanted[0]).await.unwrap(), orders[0]);
        let counts = embedded.counts().since(&before);
        let asked = ["BatchGetItem", "GetItem"].map(|name| counts.requests(&format!("DynamoDB_20120810.{name}")));
        assert_eq!(asked, [requests; 2], "{fault:?}");
    }
    // An input that does not exist is not found.
    let (_, nowhere) = contract::pair("cheap-nowhere", 0);
    assert_eq!(place.store.order(&nowhere).await.unwrap(), None);
}

#[tokio::test]
async fn the_messenger_keeps_the_contract() {
    for place in Place::each().await.into_iter().filter(|place| place.endpoint.has_queues()) {
        messenger::suite(&place).await;
    }
}

// An entry that another program has damaged does not affect the others, and a paused agent stays paused.
#[tokio::test]
async fn an_entry_that_cannot_be_read_lifts_no_pause() {
    let place = Place::new().await;
    let pause = Pause { by: "a".into(), reason: "reason".into(), since: at(1) };
    place.store.set_agent("payment", Some(&pause)).await.unwrap();
    for (entry, text) in [("agent#inventory", "{"), ("wait#scheduler", "{\"ms\": 1}"), ("strain#payment", "[]")] {
        let update = place.clients.dynamodb.update_item().table_name(&place.config.state_table);
        let update = update.key("pk", AttributeValue::S("control#agents".into())).update_expression("SET #e = :e");
        let update = update.expression_attribute_names("#e", entry);
        update.expression_attribute_values(":e", AttributeValue::S(text.into())).send().await.unwrap();
    }
    let stands = place.store.agents().await.unwrap();
    assert!(stands.is_paused("inventory") && stands.paused["payment"] == pause, "{stands:?}");
    assert!(stands.waits.is_empty() && stands.strained.is_empty(), "{stands:?}");
    place.store.set_agent("inventory", None).await.unwrap();
    assert!(!place.store.agents().await.unwrap().is_paused("inventory"), "resuming it removes the entry");
}

// J2: each tenant's messages are a separate group, if the endpoint keeps groups.
#[tokio::test]
async fn a_message_carries_its_tenant_as_its_group() {
    let Some(place) = Place::with_queues().await else { return };
    let request = messenger::request(1, "payment", "tenant");
    let sent = place.messenger.send(vec![Effect::Request(Box::new(request)), messenger::wake(1, 1_500)]).await;
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    // A delayed message is counted, but not delivered.
    assert_eq!(place.counts(queue::SCHEDULER).await, (0, 1));
    let group = until("it came", async || place.take(&queue::agent("payment")).await.pop()).await.1;
    if place.endpoint.keeps_groups_of_standard_queues() {
        assert_eq!(group.as_deref(), Some("tenant"));
    }
}

// E6: a message that is not deleted is redelivered, and goes to the dead-letter queue after too many receives.
#[tokio::test]
async fn a_message_that_is_never_settled_goes_to_the_dead_letter_queue() {
    let Some(place) = Place::with_queues().await else { return };
    assert!(place.messenger.send(vec![messenger::wake(1, 0)]).await[0].is_ok());
    let url = place.config.queue_url(queue::SCHEDULER);
    let (begin, mut received) = (Instant::now(), 0);
    while place.counts(&queue::dead(queue::SCHEDULER)).await.0 == 0 {
        assert!(begin.elapsed() < PATIENCE, "received {received} times, and not dead");
        let receive = place.clients.sqs.receive_message().queue_url(&url).visibility_timeout(0);
        received += receive.send().await.unwrap().messages.unwrap_or_default().len();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(received, schema::MAX_RECEIVES as usize);
}
