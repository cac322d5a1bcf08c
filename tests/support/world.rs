//! The handlers, adapters and endpoints without pumps and without a supervisor's clock: a test delivers every message
//! itself, so that it can count what one order costs and say which instance gets which message.

use super::{trip, workflow};
use agent::{Runtime, Settings, agents, breaker};
use aws_lambda_events::event::sqs::SqsEvent;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName};
use serde_json::{Value, json};
use shared::engine::Observer;
use shared::order::{DEFAULT_TENANT, Id};
use shared::ports::StateStore;
use shared::task::Task;
use shared::time::{SignedDuration, Timestamp};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use stepwarden_aws::batch::Response;
use stepwarden_aws::{Clients, Config, Engine, SqsMessenger, observed_engine, schema};
use stepwarden_embedded::{Call, Endpoints, Fault, FaultHook};
use stepwarden_remotes::Remotes;
use submit::Submit;
use submit::problem::Problem;

/// Queues whose messages advance an order.
pub const QUEUES: [&str; 19] = [
    "submissions",
    "scheduler",
    "replies",
    "agent-inventory",
    "agent-fraud",
    "agent-payment",
    "agent-shipping",
    "agent-noop",
    "scheduler-high",
    "agent-inventory-high",
    "agent-fraud-high",
    "agent-payment-high",
    "agent-shipping-high",
    "agent-noop-high",
    "agent-inventory-low",
    "agent-fraud-low",
    "agent-payment-low",
    "agent-shipping-low",
    "agent-noop-low",
];

pub struct World {
    pub endpoints: Endpoints,
    pub clients: Clients,
    pub config: Config,
    pub submit: Arc<Submit>,
    /// Its engine.
    pub submitting: Engine,
    pub runtime: Runtime,
    pub messenger: SqsMessenger,
    pub remotes: Remotes,
    /// Added to the clock by all engines and agents of this world.
    offset_ms: Arc<AtomicI64>,
    /// From here the clock moves with tokio's clock, like that of the endpoints, and in virtual time if a test pauses
    /// it.
    started: (Timestamp, tokio::time::Instant),
}

impl World {
    /// A world with these workflows; `observer` sees every save of the submitting engine.
    pub async fn start(workflows: &[String], observer: Option<Observer>) -> Self {
        Self::start_with(workflows, observer, SignedDuration::from_secs(30)).await
    }

    /// A world with another `OVERLOAD_AGE_MS`.
    pub async fn start_with(workflows: &[String], observer: Option<Observer>, overload_age: SignedDuration) -> Self {
        let endpoints = Endpoints::open(&stepwarden_embedded::Options::default()).unwrap();
        let clients = Clients::embedded(endpoints.http_client());
        let mut config = Config {
            orders_table: "stepwarden-orders".into(),
            state_table: "stepwarden-state".into(),
            queue_prefix: String::new(),
            event_bus: "default".into(),
            reply_queues: "shop=*;acme=acme".parse().unwrap(),
            agents: agents::NAMES.map(str::to_owned).to_vec(),
            external_agents: Vec::new(),
            pools: shared::pools::Layout::new(),
            priority_classes: true,
            shards: 1,
            order_buckets: 1,
            clock_skew: SignedDuration::from_millis(50),
            retention: SignedDuration::ZERO,
            cache: 1000,
            overload_age,
            files: Default::default(),
            public_url: "https://orders.example".into(),
            instance: "submit".into(),
        };
        config.queue_prefix = schema::create(&clients, &config, "stepwarden-", 60).await.unwrap();
        let (remotes, url) = super::remotes().await;
        let offset_ms = Arc::new(AtomicI64::new(0));
        let started = (Timestamp::now(), tokio::time::Instant::now());
        let clock = clock(started, &offset_ms);
        let submitting = observed_engine(&config, &clients, Arc::clone(&clock), observer);
        let workflows = workflows.iter().map(|text| workflow(text)).map(|w| (w.name.clone(), w)).collect();
        let submit = Arc::new(Submit {
            engine: Arc::clone(&submitting.engine),
            workflows,
            reply_queues: config.reply_queues.clone(),
            shards: 1,
            scopes: Default::default(),
            queue_tenant: DEFAULT_TENANT.into(),
            begins: None,
        });
        let settings = Settings { skew: config.clock_skew, breaker: breaker::Settings::default() };
        let runtime =
            Runtime::new(agents::all(|name| format!("{url}/{name}"), &agents::Means::default()), settings, clock);
        let messenger = SqsMessenger::new(&clients, &config);
        Self { endpoints, clients, config, submit, submitting, runtime, messenger, remotes, offset_ms, started }
    }

    /// A world with a workflow in the shape of the reference whose deadlines are far away.
    pub async fn with_trip() -> Self {
        Self::start(&[trip("trip", "60s", 200, "")], None).await
    }

    /// Another instance: its own name, its own memory.
    pub fn engine(&self, instance: &str, cache: usize, observer: Option<Observer>) -> Engine {
        let config = Config { instance: instance.into(), cache, ..self.config.clone() };
        observed_engine(&config, &self.clients, clock(self.started, &self.offset_ms), observer)
    }

    /// Lets time pass for all engines and agents.
    pub fn pass(&self, by: SignedDuration) {
        self.offset_ms.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    pub fn now(&self) -> Timestamp {
        (clock(self.started, &self.offset_ms))()
    }

    /// Submits in this process.
    pub async fn accept(&self, workflow: &str, key: &str, input: Value) -> Id {
        let body = json!({"workflow": workflow, "input": input});
        self.try_accept(DEFAULT_TENANT, key, &body).await.unwrap()
    }

    /// Submits `body` for a tenant.
    pub async fn try_accept(&self, tenant: &str, key: &str, body: &Value) -> Result<Id, Problem> {
        let submission = submit::submission::parse(body.to_string().as_bytes()).unwrap();
        self.submit.accept(tenant, key, submission).await
    }

    pub async fn task(&self, id: &Id) -> Task {
        self.submitting.store.load(id).await.unwrap().unwrap()
    }

    pub fn url(&self, queue: &str) -> String {
        self.config.queue_url(queue)
    }

    pub async fn send(&self, queue: &str, body: &str) {
        self.clients.sqs.send_message().queue_url(self.url(queue)).message_body(body).send().await.unwrap();
    }

    /// Up to ten messages of a queue: id, receipt, body.
    pub async fn receive(&self, queue: &str) -> Vec<(String, String, String)> {
        let text = |text: Option<String>| text.unwrap_or_default();
        let messages = self.receive_whole(queue).await;
        messages.into_iter().map(|m| (text(m.message_id), text(m.receipt_handle), text(m.body))).collect()
    }

    /// Up to ten messages of a queue, with the attributes that Lambda passes.
    pub async fn receive_whole(&self, queue: &str) -> Vec<Message> {
        let receive = self.clients.sqs.receive_message().queue_url(self.url(queue)).max_number_of_messages(10);
        let receive = receive.message_system_attribute_names(MessageSystemAttributeName::All);
        receive.wait_time_seconds(0).send().await.unwrap().messages.unwrap_or_default()
    }

    /// Delivers one batch of a queue to its function; false if there was none.
    pub async fn deliver(&self, queue: &str, engine: &Engine) -> bool {
        let messages = self.receive_whole(queue).await;
        if !messages.is_empty() {
            self.deliver_all(queue, engine, &messages).await;
        }
        !messages.is_empty()
    }

    /// Delivers these messages of a queue to its function. Failed messages are visible again at once.
    pub async fn deliver_all(&self, queue: &str, engine: &Engine, messages: &[Message]) {
        let response = self.handle(queue, engine, whole_event(queue, messages)).await;
        for message in messages {
            let (id, receipt) = (message.message_id().unwrap(), message.receipt_handle().unwrap());
            let failed = response.batch_item_failures.iter().any(|f| f.item_identifier == id);
            let (sqs, url) = (&self.clients.sqs, self.url(queue));
            // A fault of the endpoint may affect these calls too: the message is then redelivered, as on AWS.
            if failed {
                let change = sqs.change_message_visibility().queue_url(url).receipt_handle(receipt);
                let _ = change.visibility_timeout(0).send().await;
            } else {
                let _ = sqs.delete_message().queue_url(url).receipt_handle(receipt).send().await;
            }
        }
    }

    /// The function of a queue on one batch.
    pub async fn handle(&self, queue: &str, engine: &Engine, event: SqsEvent) -> Response {
        match queue {
            "submissions" => submit::queue_handler(&self.submit, event).await,
            "scheduler" | "scheduler-high" | "replies" => scheduler::handler(engine, event).await,
            _ => agent::handler(&self.runtime, &self.messenger, event).await,
        }
    }

    /// Delivers until no message is visible in any queue.
    pub async fn settle(&self, engine: &Engine) {
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            for queue in QUEUES {
                is_moving |= self.deliver(queue, engine).await;
            }
        }
    }

    /// Injects faults. The hook gets the number of the call, from 0, among those of `operation`.
    pub fn faults(&self, operation: &'static str, fault: impl Fn(u64, &str) -> Option<Fault> + Send + Sync + 'static) {
        let calls = std::sync::atomic::AtomicU64::new(0);
        let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
            if call.operation != operation {
                return None;
            }
            let number = calls.fetch_add(1, Ordering::SeqCst);
            fault(number, std::str::from_utf8(call.body).unwrap_or_default())
        });
        self.endpoints.set_fault_hook(Some(hook));
    }

    pub fn no_faults(&self) {
        self.endpoints.set_fault_hook(None);
    }

    /// Items in a table.
    pub async fn items(&self, table: &str) -> usize {
        let answer = self.clients.dynamodb.scan().table_name(table).send().await.unwrap();
        answer.items().len()
    }
}

fn clock(started: (Timestamp, tokio::time::Instant), offset_ms: &Arc<AtomicI64>) -> shared::engine::Clock {
    let offset_ms = Arc::clone(offset_ms);
    Arc::new(move || {
        let offset = SignedDuration::from_millis(offset_ms.load(Ordering::SeqCst));
        let elapsed = SignedDuration::try_from(started.1.elapsed()).unwrap();
        shared::time::plus(started.0, elapsed + offset)
    })
}

/// A batch as Lambda passes it: message ids and bodies.
pub fn event(queue: &str, messages: &[(&str, &str)]) -> SqsEvent {
    let message =
        |(id, body): &(&str, &str)| Message::builder().message_id(*id).receipt_handle("r").body(*body).build();
    whole_event(queue, &messages.iter().map(message).collect::<Vec<_>>())
}

/// A batch with the attributes of each message.
pub fn whole_event(queue: &str, messages: &[Message]) -> SqsEvent {
    let records: Vec<_> = messages
        .iter()
        .map(|message| {
            let attributes = message.attributes().into_iter().flatten();
            let attributes: serde_json::Map<_, _> =
                attributes.map(|(name, value)| (name.as_str().to_owned(), json!(value))).collect();
            json!({
                "messageId": message.message_id(), "receiptHandle": message.receipt_handle(), "body": message.body(),
                "md5OfBody": "", "attributes": attributes,
                "messageAttributes": {}, "eventSource": "aws:sqs", "awsRegion": "local",
                "eventSourceARN": format!("arn:aws:sqs:local:000000000000:stepwarden-{queue}"),
            })
        })
        .collect();
    serde_json::from_value(json!({ "Records": records })).unwrap()
}
