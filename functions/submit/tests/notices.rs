//! The first notice, «received», over the embedded endpoints: it is not lost, whatever fails between store and queue. // F1, F3
//!
//! Method: tables and queues in memory; a hook at the endpoint lets chosen sends fail.

use serde_json::{Value, json};
use shared::decision::Event;
use shared::engine::Clock;
use shared::time::Timestamp;
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use stepwarden_aws::config::queue;
use stepwarden_aws::{Clients, Config, engine, schema};
use stepwarden_embedded::{Call, Endpoints, Fault, FaultHook, Options};
use submit::{Submit, submission};

struct World {
    submit: Submit,
    clients: Clients,
    config: Config,
    endpoints: Endpoints,
    now: Arc<AtomicI64>,
}

impl World {
    async fn new() -> Self {
        let endpoints = Endpoints::open(&Options::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let settings = [
            ("ORDERS_TABLE", "orders"),
            ("STATE_TABLE", "state"),
            ("QUEUE_PREFIX", "to be made"),
            ("EVENT_BUS", "default"),
            ("REPLY_QUEUES", "shop=acme"),
            ("AGENTS", "x"),
            ("SHARDS", "1"),
        ];
        let lookup = |name: &str| settings.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let mut config = Config::from_lookup(lookup).unwrap();
        config.queue_prefix = schema::create(&clients, &config, "test-", 30).await.unwrap();
        let now = Arc::new(AtomicI64::new(1_795_251_600_000));
        let clock: Clock = {
            let now = Arc::clone(&now);
            Arc::new(move || Timestamp::from_millisecond(now.load(Ordering::Relaxed)).unwrap())
        };
        let text = "name = \"one\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";
        let workflow = parse("one.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap();
        let submit = Submit {
            engine: engine(&config, &clients, clock).engine,
            workflows: [("one".to_owned(), workflow)].into(),
            reply_queues: config.reply_queues.clone(),
            shards: 1,
            scopes: Default::default(),
            queue_tenant: "acme".into(),
            begins: Some(Default::default()),
        };
        Self { submit, clients, config, endpoints, now }
    }

    async fn accept(&self) -> shared::order::Id {
        let body = json!({"workflow": "one", "input": {"n": 1}, "reply_queue": "shop", "reference": "r-1"});
        let submission = submission::parse(body.to_string().as_bytes()).unwrap();
        self.submit.accept("acme", "key-1", submission).await.unwrap()
    }

    /// Every send fails.
    fn cut(&self, is_cut: bool) {
        let hook: FaultHook =
            Arc::new(|call: &Call<'_>| call.operation.starts_with("SendMessage").then_some(Fault::InternalError));
        self.endpoints.set_fault_hook(is_cut.then_some(hook));
    }

    async fn drain(&self, name: &str) -> Vec<Value> {
        let url = self.config.queue_url(name);
        let request = self.clients.sqs.receive_message().queue_url(&url).max_number_of_messages(10);
        let messages = request.wait_time_seconds(0).send().await.unwrap().messages.unwrap_or_default();
        messages.iter().map(|message| serde_json::from_str(message.body().unwrap()).unwrap()).collect()
    }

    async fn sweep(&self) {
        let engine = &self.submit.engine;
        let due = engine.store.due(0, engine.now(), 10, None).await.unwrap();
        for answer in engine.recover(&due.ids, 1).await {
            answer.unwrap();
        }
    }
}

// F1, C3: id, reference, number and history.
#[tokio::test]
async fn an_accepted_order_is_announced_to_its_submitter_and_to_a_scheduler() {
    let world = World::new().await;
    let id = world.accept().await;
    let notices = world.drain(&queue::notices("shop")).await;
    assert_eq!(notices.len(), 1);
    let notice = &notices[0];
    assert_eq!((&notice["kind"], &notice["order_id"], &notice["seq"]), (&json!("received"), &json!(id), &json!(0)));
    assert_eq!((&notice["reference"], &notice["history"][0]["event"]), (&json!("r-1"), &json!("received")));
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
}

// F3: if the notice cannot be sent, the order waits, and the sweep sends the notice and the Wake.
#[tokio::test]
async fn a_first_notice_that_cannot_be_sent_is_sent_by_a_sweep_before_the_order_begins() {
    let world = World::new().await;
    world.cut(true);
    world.accept().await;
    world.cut(false);
    assert!(world.drain(queue::SCHEDULER).await.is_empty(), "no Wake ahead of its notice");
    world.now.fetch_add(10_000, Ordering::Relaxed);
    world.sweep().await;
    let notices = world.drain(&queue::notices("shop")).await;
    assert_eq!((notices.len(), &notices[0]["kind"], &notices[0]["seq"]), (1, &json!("received"), &json!(0)));
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
}

// F3, B1: a submitter that got no answer repeats the submission, and gets the notice again.
#[tokio::test]
async fn a_repeated_submission_sends_the_first_notice_again() {
    let world = World::new().await;
    world.cut(true);
    let first = world.accept().await;
    world.cut(false);
    assert_eq!(world.accept().await, first);
    assert_eq!(world.drain(&queue::notices("shop")).await.len(), 1);
    assert_eq!(world.drain(queue::SCHEDULER).await.len(), 1);
}

// D10: a scheduler began it, and sees to its requests.
#[tokio::test]
async fn a_repeated_submission_repeats_no_request_of_an_order_with_a_notice() {
    let world = World::new().await;
    let id = world.accept().await;
    world.drain(queue::SCHEDULER).await;
    world.submit.engine.handle(vec![(id.clone(), Event::Wake { seen: 0, hops: 0 })]).await.remove(0).unwrap();
    assert_eq!(world.drain("agent-x").await.len(), 1);
    assert_eq!(world.accept().await, id);
    assert!(world.drain(queue::SCHEDULER).await.is_empty());
}
