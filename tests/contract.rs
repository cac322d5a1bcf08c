//! Goal: StateStore, leases and Messenger get the same answers from every endpoint. Method: one suite. In `cargo test` it
//! runs against the embedded endpoints; `tests/contract/run NAME` starts another one and names it in
//! `STEPWARDEN_CONTRACT`: `dynamodb-local`, `ministack`, `localstack`, or `aws` for an account of one's own, where the
//! tables and queues stay behind.
//!
//! Where an endpoint differs from AWS, [`Endpoint`] says so, with what is right and why.

use aws_sdk_dynamodb::types::AttributeValue;
use aws_sdk_sqs::types::{MessageSystemAttributeName, QueueAttributeName};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use shared::agents::{Agents, Pause};
use shared::lease::{Lease, LeaseStore};
use shared::message::{AlertEvent, Effect, Notice, NoticeKind, Outcome, Reply, Request, SetAside, Wake};
use shared::order::{Id, Order};
use shared::overload::{Wait, Waits};
use shared::ports::{AttentionIndex, Created, Error, Messenger, Saved, StateStore};
use shared::retry::Calls;
use shared::step::Direction;
use shared::strain::Strain;
use shared::task::{Phase, Priority, ProcessState, Submission, Task, URGENT, moved};
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use stepwarden_aws::config::{instance, queue};
use stepwarden_aws::{Clients, Config, DynamoStore, SqsMessenger, schema};
use stepwarden_embedded::Endpoints;

/// An index lags, and a queue hands out what it has when it likes: nothing takes longer than this.
const PATIENCE: Duration = Duration::from_secs(20);

/// What answers, and where it differs from AWS.
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

    /// AWS is right: a standard queue takes `MessageGroupId` and hands it back ("Amazon SQS fair queues"). An emulator
    /// older than fair queues takes it and forgets it; nothing but fairness depends on it.
    fn keeps_groups_of_standard_queues(self) -> bool {
        !matches!(self, Self::LocalStack)
    }
}

struct Place {
    endpoint: Endpoint,
    clients: Clients,
    config: Config,
    store: DynamoStore,
    /// Dropped last.
    _embedded: Option<Endpoints>,
}

impl Place {
    /// Fresh tables, and queues where there are any.
    async fn new() -> Self {
        let endpoint = Endpoint::chosen();
        let embedded = (endpoint == Endpoint::Embedded).then(|| Endpoints::open(&Default::default()).unwrap());
        let clients = match &embedded {
            Some(endpoints) => Clients::embedded(endpoints.http_client()),
            None => Clients::from_env().await,
        };
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
        Self { endpoint, clients, config, store, _embedded: embedded }
    }

    /// The same, unless there are no queues.
    async fn with_queues() -> Option<(Self, SqsMessenger)> {
        if !Endpoint::chosen().has_queues() {
            println!("skipped: {:?} has no queues", Endpoint::chosen());
            return None;
        }
        let place = Self::new().await;
        let messenger = SqsMessenger::new(&place.clients, &place.config);
        Some((place, messenger))
    }

    /// Bodies, and groups, of `count` messages of a queue, taken off it.
    async fn take(&self, name: &str, count: usize) -> Vec<(Value, Option<String>)> {
        let url = self.config.queue_url(name);
        let (begin, mut taken) = (Instant::now(), Vec::new());
        while taken.len() < count {
            assert!(begin.elapsed() < PATIENCE, "{} of {count} messages came to {name}", taken.len());
            let receive = self.clients.sqs.receive_message().queue_url(&url).max_number_of_messages(10);
            let receive = receive.message_system_attribute_names(MessageSystemAttributeName::MessageGroupId);
            for message in receive.wait_time_seconds(1).send().await.unwrap().messages.unwrap_or_default() {
                let group = message.attributes().and_then(|a| a.get(&MessageSystemAttributeName::MessageGroupId));
                taken.push((serde_json::from_str(message.body().unwrap()).unwrap(), group.cloned()));
                let handle = message.receipt_handle.unwrap();
                self.clients.sqs.delete_message().queue_url(&url).receipt_handle(handle).send().await.unwrap();
            }
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

async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begin.elapsed() < PATIENCE, "still waiting after {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_800_000_000_000 + ms).unwrap()
}

fn workflow() -> Workflow {
    let text = "name = \"contract\"\n[[step]]\nname = \"pay\"\nagent = \"payment\"\ntimeout = \"5s\"\n";
    parse("contract.toml", text, Known { agents: &["payment"], inputs: &[] }).unwrap()
}

/// An order and its task. What SQS, DynamoDB and JSON might each spoil is in the input.
fn pair(name: &str) -> (Order, Task) {
    let id = Id(format!("ord_{name}"));
    let input = json!({
        "text": "Grüße, 日本, \u{1F69A}, \"quoted\", back\\slash, tab\t, null \u{0}, line\n",
        "empty": {"text": "", "list": [], "object": {}},
        "numbers": [0, -1, 9_007_199_254_740_993_i64, 0.1, 1e300],
        "nothing": null,
    });
    let order = Order {
        id: id.clone(),
        tenant: "tenant".into(),
        idempotency_key: "key".into(),
        hash: "hash".into(),
        created_at: at(0),
        input,
    };
    let submission = Submission {
        id,
        tenant: "tenant".into(),
        reference: Some("reference".into()),
        reply_queue: None,
        priority: Priority::Normal,
        shard: 3,
    };
    (order, Task::new(submission, &workflow(), at(0)))
}

/// The task as a later save leaves it.
fn next(task: &Task, stamp: &str) -> Task {
    Task { version: task.version + 1, stamp: stamp.into(), updated_at: at(5), ..task.clone() }
}

// ------------------------------------------------------------------ StateStore

#[tokio::test]
async fn a_submission_writes_both_records_or_none_and_only_once() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    assert_eq!(place.store.load(&task.id).await.unwrap(), None);
    assert_eq!(place.store.create(&order, &task).await.unwrap(), Created::New);
    assert_eq!(place.store.load(&task.id).await.unwrap().as_ref(), Some(&task));
    assert_eq!(place.store.order(&task).await.unwrap().as_ref(), Some(&order));

    // The transaction's other half must not be written either.
    let other = Order { input: json!({"other": true}), ..order.clone() };
    let changed = Task { reference: Some("other".into()), ..task.clone() };
    assert_eq!(place.store.create(&other, &changed).await.unwrap(), Created::Exists);
    assert_eq!(place.store.order(&task).await.unwrap(), Some(order));
    assert_eq!(place.store.load(&task.id).await.unwrap(), Some(task));
}

#[tokio::test]
async fn of_many_submissions_under_one_id_one_is_new() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    let all = futures::future::join_all((0..8).map(|_| place.store.create(&order, &task))).await;
    let (new, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| matches!(a, Ok(Created::New)));
    assert_eq!(new.len(), 1, "{other:?}");
    // TransactionConflict for longer than the store tries is an outage to its caller, who tries again.
    assert!(other.iter().all(|a| matches!(a, Ok(Created::Exists) | Err(Error::Unavailable { .. }))), "{other:?}");
}

#[tokio::test]
async fn a_save_counts_for_the_version_it_read_and_else_tells_what_is_there() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    assert_eq!(place.store.save(&next(&task, "early"), 0).await.unwrap(), Saved::Conflict(None));
    place.store.create(&order, &task).await.unwrap();
    let first = next(&task, "first");
    assert_eq!(place.store.save(&first, 0).await.unwrap(), Saved::Applied);
    let late = next(&task, "late");
    assert_eq!(place.store.save(&late, 0).await.unwrap(), Saved::Conflict(Some(Box::new(first.clone()))));
    assert_eq!(place.store.load(&task.id).await.unwrap(), Some(first));
}

#[tokio::test]
async fn of_many_saves_at_one_version_one_is_applied() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    place.store.create(&order, &task).await.unwrap();
    let tries: Vec<_> = (0..16).map(|n| next(&task, &format!("s{n}"))).collect();
    let all = futures::future::join_all(tries.iter().map(|t| place.store.save(t, 0))).await;
    let winners: Vec<_> = all.iter().zip(&tries).filter(|(a, _)| matches!(a, Ok(Saved::Applied))).collect();
    assert_eq!(winners.len(), 1, "{all:?}");
    assert_eq!(place.store.load(&task.id).await.unwrap().as_ref(), Some(winners[0].1));
}

// I8: an older leader's write never applies after a newer leader's.
#[tokio::test]
async fn a_save_with_an_older_token_is_refused() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    place.store.create(&order, &task).await.unwrap();
    let newer = Task { lease_token: 7, ..next(&task, "newer") };
    assert_eq!(place.store.save(&newer, 0).await.unwrap(), Saved::Applied);
    let older = Task { lease_token: 6, ..next(&newer, "older") };
    assert_eq!(place.store.save(&older, 1).await.unwrap(), Saved::Conflict(Some(Box::new(newer.clone()))));
    let same = Task { lease_token: 7, ..next(&newer, "same") };
    assert_eq!(place.store.save(&same, 1).await.unwrap(), Saved::Applied);
}

#[tokio::test]
async fn rearming_changes_only_when_to_look_and_only_at_its_version() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    place.store.create(&order, &task).await.unwrap();
    place.store.rearm(&task, Some(at(9_000)), 2).await.unwrap();
    let armed = Task { due: Some(at(9_000)), lease_token: 2, shard: moved(task.shard), ..task.clone() };
    assert_eq!(place.store.load(&task.id).await.unwrap(), Some(armed.clone()));
    let saved = Task { lease_token: 2, ..next(&armed, "saved") };
    assert_eq!(place.store.save(&saved, 0).await.unwrap(), Saved::Applied);
    place.store.rearm(&armed, Some(at(1)), 3).await.unwrap();
    assert_eq!(place.store.load(&task.id).await.unwrap(), Some(saved));
}

#[tokio::test]
async fn the_due_index_pages_through_what_is_due_most_overdue_first() {
    let place = Place::new().await;
    let mut all = Vec::new();
    for n in [4, 1, 3, 0, 2, 9] {
        let (order, task) = pair(&format!("t{n}"));
        let task = Task { due: Some(at(n * 1000)), ..task };
        place.store.create(&order, &task).await.unwrap();
        all.push(task);
    }
    let walk = async |shard: u16, now: Timestamp| {
        let (mut ids, mut cursor) = (Vec::new(), None);
        loop {
            let page = place.store.due(shard, now, 2, cursor.as_deref()).await.unwrap();
            assert!(page.ids.len() <= 2);
            ids.extend(page.ids.into_iter().map(|id| id.0));
            cursor = page.next;
            if cursor.is_none() {
                return ids;
            }
        }
    };
    let due = ["ord_t0", "ord_t1", "ord_t2", "ord_t3", "ord_t4"];
    until("five are due", async || (walk(3, at(4000)).await == due).then_some(())).await;
    assert!(walk(2, at(9000)).await.is_empty(), "another shard");
    // Urgent tasks have shards of their own, above all others.
    let (order, task) = pair("urgent");
    let task = Task { shard: URGENT + 3, due: Some(at(0)), ..task };
    place.store.create(&order, &task).await.unwrap();
    until("it is due", async || (walk(URGENT + 3, at(4000)).await == ["ord_urgent"]).then_some(())).await;
    assert_eq!(walk(3, at(4000)).await, due);
    let armed = place.store.load(&all[2].id).await.unwrap().unwrap();
    place.store.rearm(&armed, Some(at(3500)), 0).await.unwrap();
    let moved = async || (walk(moved(3), at(4000)).await == ["ord_t3"]).then_some(());
    until("the one looked after is in another part", moved).await;
    // What owes nothing any more leaves the index with the save that ends it.
    let ended = Task { due: None, phase: Phase::Processed, ..next(&all[3], "end") };
    assert_eq!(ended.process_state(), ProcessState::Processed);
    place.store.save(&ended, 0).await.unwrap();
    let left = ["ord_t1", "ord_t2", "ord_t4"];
    until("three are due", async || (walk(3, at(4000)).await == left).then_some(())).await;
    let ended = place.store.load(&ended.id).await.unwrap().unwrap();
    assert_eq!((ended.due, ended.shard), (None, 3), "it comes back to its own shard, should it go on");
}

#[tokio::test]
async fn what_waits_for_a_person_is_found_until_it_does_not() {
    let place = Place::new().await;
    let (order, task) = pair("a");
    place.store.create(&order, &task).await.unwrap();
    let found = async || place.store.attention(10, None).await.unwrap().ids;
    assert!(found().await.is_empty());
    let stopped = Task { phase: Phase::Error, due: None, ..next(&task, "stopped") };
    place.store.save(&stopped, 0).await.unwrap();
    until("it is found", async || (found().await == [task.id.clone()]).then_some(())).await;
    let resumed = Task { phase: Phase::Forward, due: Some(at(0)), ..next(&stopped, "resumed") };
    place.store.save(&resumed, 1).await.unwrap();
    until("it is found no more", async || found().await.is_empty().then_some(())).await;
}

// One item, changed by operators, supervisors and schedulers at once: none takes another one's entry along.
#[tokio::test]
async fn how_agents_and_queues_stand_is_kept_entry_by_entry() {
    let store = Place::new().await.store;
    assert_eq!(store.read_agents().await.unwrap(), Agents::default());
    let pause = |by: &str| Pause { by: by.into(), reason: "reason".into(), since: at(1) };
    let wait = |ms: i64| Waits::from([("tenant".to_owned(), Wait { ms, at: at(2) })]);
    let strain = |held: u32| Strain { since: at(3), last: at(3), stretch: 2, held, looked_at: 30, alert_owed: true };
    let (operator, urgent, ordinary) = (pause("a"), wait(1500), wait(9000));
    let (a, b, c) = tokio::join!(
        store.set_agent("inventory", Some(&operator)),
        store.note_wait("agent-payment-b-high", &urgent),
        store.note_wait("scheduler", &ordinary),
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok(), "{a:?} {b:?} {c:?}");
    store.set_agent("payment", Some(&pause("b"))).await.unwrap();
    store.note_wait("scheduler", &wait(100)).await.unwrap();
    store.set_agent("inventory", None).await.unwrap();
    store.set_agent("inventory", None).await.unwrap();
    let stands = store.agents().await.unwrap();
    assert_eq!(stands.paused, BTreeMap::from([("payment".to_owned(), pause("b"))]));
    let waits = [("agent-payment-b-high".to_owned(), wait(1500)), ("scheduler".to_owned(), wait(100))];
    assert_eq!(stands.waits, BTreeMap::from(waits));

    // Of supervisors that see the same one counts.
    let all = futures::future::join_all((10..18).map(|held| {
        let (store, strain) = (store.clone(), strain(held));
        async move { store.save_strain("payment", &strain, None).await }
    }))
    .await;
    let won: Vec<_> = (10..18).zip(&all).filter(|(_, answer)| matches!(answer, Ok(true))).collect();
    assert_eq!(won.len(), 1, "{all:?}");
    let first = strain(won[0].0);
    assert!(!store.save_strain("payment", &strain(20), Some(&strain(19))).await.unwrap(), "nobody saw that one");
    assert!(store.save_strain("payment", &strain(20), Some(&first)).await.unwrap());
    let stands = store.agents().await.unwrap();
    assert_eq!(stands.strained, BTreeMap::from([("payment".to_owned(), strain(20))]));
    assert_eq!((stands.paused.len(), stands.waits.len()), (1, 2));
}

// An entry that a foreign hand has spoiled takes no other one along; and whom somebody paused stays paused.
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

#[tokio::test]
async fn a_definition_is_kept_under_its_hash() {
    let place = Place::new().await;
    let workflow = workflow();
    assert_eq!(place.store.workflow(&workflow.hash()).await.unwrap(), None);
    for _ in 0..2 {
        place.store.put_workflow(&workflow).await.unwrap();
        assert_eq!(place.store.workflow(&workflow.hash()).await.unwrap().as_ref(), Some(&workflow));
    }
}

#[tokio::test]
async fn an_order_near_the_limit_of_an_item_is_kept_and_one_beyond_it_is_refused() {
    let place = Place::new().await;
    let (order, task) = pair("large");
    let large = |bytes: usize| Order { input: json!("x".repeat(bytes)), ..order.clone() };
    let refused = place.store.create(&large(400 * 1024), &task).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!(place.store.load(&task.id).await.unwrap(), None);
    let kept = large(380 * 1024);
    assert_eq!(place.store.create(&kept, &task).await.unwrap(), Created::New);
    assert_eq!(place.store.order(&task).await.unwrap(), Some(kept));
}

// ------------------------------------------------------------------ leases

#[tokio::test]
async fn a_lease_is_replaced_only_as_it_was_seen() {
    let place = Place::new().await;
    let lease = |holder: &str, token: u64, ms: i64| Lease {
        name: "sweep".into(),
        holder: holder.into(),
        token,
        expires: at(ms),
    };
    assert_eq!(place.store.read("sweep").await.unwrap(), None);
    let first = lease("a", 1, 10);
    assert!(place.store.replace(&first, None).await.unwrap());
    assert!(!place.store.replace(&lease("b", 1, 10), None).await.unwrap());
    assert_eq!(place.store.read("sweep").await.unwrap().as_ref(), Some(&first));
    for other in [lease("b", 1, 10), lease("a", 2, 10), lease("a", 1, 11)] {
        assert!(!place.store.replace(&lease("c", 3, 20), Some(&other)).await.unwrap(), "{other:?}");
    }
    // A holder that gave it back is the empty text, which DynamoDB takes in what is no key.
    let free = first.released();
    assert!(place.store.replace(&free, Some(&first)).await.unwrap());
    assert_eq!(place.store.read("sweep").await.unwrap(), Some(free));
}

#[tokio::test]
async fn of_many_that_take_a_lease_one_has_it() {
    let place = Place::new().await;
    let (life, skew) = (SignedDuration::from_secs(10), SignedDuration::from_secs(1));
    let names: Vec<_> = (0..16).map(|n| format!("h{n}")).collect();
    let all =
        futures::future::join_all(names.iter().map(|holder| place.store.acquire("many", holder, at(0), life, skew)))
            .await;
    let winners: Vec<Lease> = all.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(place.store.read("many").await.unwrap().as_ref(), winners.first());
}

// ------------------------------------------------------------------ Messenger

fn request(n: usize, agent: &str, tenant: &str) -> Effect {
    Effect::Request(Box::new(Request {
        task_id: Id(format!("ord_{n}")),
        step: "pay".into(),
        agent: agent.into(),
        pool: None,
        http: None,
        direction: Direction::Do,
        attempt: 1,
        idempotency_key: format!("ord_{n}:pay:do"),
        complete_by: at(0),
        calls: Calls { attempts: 4, base: SignedDuration::from_millis(100), cap: SignedDuration::from_secs(1) },
        tenant: tenant.into(),
        priority: Priority::Normal,
        input: pair("x").0.input,
        outputs: BTreeMap::new(),
        output: None,
        undoes: None,
    }))
}

fn wake(n: usize, delay_ms: i64) -> Effect {
    let wake =
        Wake { task_id: Id(format!("ord_{n}")), seen: 1, hops: 0, tenant: "tenant".into(), priority: Priority::Normal };
    Effect::Wake(wake, SignedDuration::from_millis(delay_ms))
}

fn all_good(results: &[Result<(), Error>]) {
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

#[tokio::test]
async fn every_effect_reaches_the_queue_it_is_for() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    let reply = Reply {
        task_id: Id("ord_r".into()),
        step: "pay".into(),
        attempt: 1,
        tenant: "tenant".into(),
        queued_ms: None,
        outcome: Outcome::Done { output: pair("x").0.input },
    };
    let notice = Notice {
        queue: "default".into(),
        tenant: "tenant".into(),
        kind: NoticeKind::Completed,
        order_id: Id("ord_n".into()),
        reference: None,
        seq: 4,
        at: at(0),
        state: ProcessState::Processed,
        step: None,
        reason: None,
        history: Vec::new(),
    };
    let aside = SetAside {
        queue: "scheduler".into(),
        message_id: "m".into(),
        reason: "no message".into(),
        body: "{".into(),
        is_cut: false,
    };
    let alert = AlertEvent {
        order_id: Id("ord_a".into()),
        workflow: "contract".into(),
        tenant: "tenant".into(),
        step: None,
        attempts: 1,
        reason: "reason".into(),
        last_error: None,
        version: 1,
        resubmit: "resubmit".into(),
        runbook: "docs/runbook.md".into(),
    };
    let strain = Strain { since: at(0), last: at(0), stretch: 2, held: 10, looked_at: 30, alert_owed: true };
    let effects = vec![
        Effect::Strained(Box::new(strain.event("payment"))),
        request(1, "payment", "tenant"),
        wake(1, 0),
        Effect::Reply(Box::new(reply.clone())),
        Effect::Notice(Box::new(notice)),
        Effect::SetAside(Box::new(aside)),
        Effect::Alert(Box::new(alert)),
    ];
    all_good(&messenger.send(effects).await);
    let Effect::Request(sent) = request(1, "payment", "tenant") else { unreachable!() };
    let taken = place.take(&queue::agent("payment"), 1).await;
    assert_eq!(serde_json::from_value::<Request>(taken[0].0.clone()).unwrap(), *sent);
    if place.endpoint.keeps_groups_of_standard_queues() {
        assert_eq!(taken[0].1.as_deref(), Some("tenant"));
    }
    assert_eq!(place.take(queue::SCHEDULER, 1).await[0].0["type"], "wake");
    let taken = place.take(queue::REPLIES, 1).await;
    let sent = Reply { tenant: String::new(), ..reply };
    assert_eq!(serde_json::from_value::<Reply>(taken[0].0.clone()).unwrap(), sent, "the tenant is for the queue");
    assert_eq!(place.take(&queue::notices("default"), 1).await[0].0["seq"], 4);
    assert_eq!(place.take(queue::SET_ASIDE, 1).await[0].0["body"], "{");
}

// J2, J3: what is urgent, what may wait, and what is for another pool has queues of its own.
#[tokio::test]
async fn classes_and_pools_have_queues_of_their_own() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    let requested = |n: usize, pool: Option<&str>, priority: Priority| match request(n, "payment", "tenant") {
        Effect::Request(request) => {
            Effect::Request(Box::new(Request { pool: pool.map(str::to_owned), priority, ..*request }))
        }
        _ => unreachable!(),
    };
    let woken = |n: usize, priority: Priority| match wake(n, 0) {
        Effect::Wake(wake, delay) => Effect::Wake(Wake { priority, ..wake }, delay),
        _ => unreachable!(),
    };
    let effects = vec![
        requested(1, None, Priority::High),
        requested(2, Some("payment-b"), Priority::Low),
        requested(3, Some("payment-b"), Priority::Normal),
        woken(4, Priority::High),
        woken(5, Priority::Low),
    ];
    all_good(&messenger.send(effects).await);
    let queues = ["agent-payment-high", "agent-payment-b-low", "agent-payment-b", "scheduler-high", "scheduler"];
    for (n, queue) in (1..).zip(queues) {
        assert_eq!(place.take(queue, 1).await[0].0["task_id"], format!("ord_{n}"), "{queue}");
    }
}

#[tokio::test]
async fn more_than_a_batch_arrives_once_each() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    all_good(&messenger.send((0..23).map(|n| request(n, "payment", "tenant")).collect()).await);
    let taken = place.take(&queue::agent("payment"), 23).await;
    let mut ids: Vec<_> = taken.iter().map(|(body, _)| body["task_id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    let mut wanted: Vec<_> = (0..23).map(|n| format!("ord_{n}")).collect();
    wanted.sort();
    assert_eq!(ids, wanted);
    assert_eq!(place.counts(&queue::agent("payment")).await.0, 0);
}

#[tokio::test]
async fn a_delayed_wake_comes_later_and_not_before() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    let begin = Instant::now();
    all_good(&messenger.send(vec![wake(1, 1_500)]).await);
    assert_eq!(place.counts(queue::SCHEDULER).await, (0, 1));
    place.take(queue::SCHEDULER, 1).await;
    // SQS takes whole seconds, and a wait is never shortened. Endpoints that count by the wall clock's seconds may be early
    // by a part of one.
    assert!(begin.elapsed() > Duration::from_millis(1_000), "after {:?}", begin.elapsed());
}

#[tokio::test]
async fn what_cannot_be_sent_takes_no_neighbour_along() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    let Effect::Request(large) = request(1, "payment", "tenant") else { unreachable!() };
    let large = Request { input: json!("x".repeat(1024 * 1024)), ..*large };
    let effects = vec![
        request(0, "payment", "tenant"),
        Effect::Request(Box::new(large)),
        request(2, "nobody", "tenant"),
        request(3, "payment", "Müller & Co"),
        request(4, "inventory", ""),
    ];
    let results = messenger.send(effects).await;
    assert!(results[0].is_ok() && results[3].is_ok() && results[4].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(Error::TooLarge { .. })), "{results:?}");
    assert!(matches!(results[2], Err(Error::Unavailable { .. })), "a queue that is not there: {results:?}");
    place.take(&queue::agent("payment"), 2).await;
    place.take(&queue::agent("inventory"), 1).await;
}

// SQS takes 1 MiB since August 2025 ("message quotas"); what is below it must not be refused on the way.
#[tokio::test]
async fn a_message_near_the_limit_arrives() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    let Effect::Request(large) = request(1, "payment", "tenant") else { unreachable!() };
    let large = Request { input: json!("x".repeat(900 * 1024)), ..*large };
    all_good(&messenger.send(vec![Effect::Request(Box::new(large.clone()))]).await);
    let taken = place.take(&queue::agent("payment"), 1).await;
    assert_eq!(serde_json::from_value::<Request>(taken[0].0.clone()).unwrap(), large);
}

// C4, A9: received too often, a message goes to the dead-letter queue; not settled, it comes again.
#[tokio::test]
async fn a_message_that_is_never_settled_goes_to_the_dead_letter_queue() {
    let Some((place, messenger)) = Place::with_queues().await else { return };
    all_good(&messenger.send(vec![wake(1, 0)]).await);
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
