//! Shared by the tests of the whole system: short workflows, the system in memory, and bounded waits.

pub mod page;
pub mod world;

use aws_sdk_sqs::types::Message;
use serde_json::{Value, json};
use shared::engine::Observer;
use shared::history::Kind;
use shared::order::Id;
use shared::ports::StateStore;
use shared::task::{ProcessState, Task};
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use stepwarden_aws::{Clients, Config};
use stepwarden_embedded::{Durability, Event};
use stepwarden_local::system::{Options, System};
use stepwarden_remotes::{Expected, Fault, Remotes, Service, ServiceFaults};
use tokio::net::TcpListener;

/// A condition becomes true within this time on any machine; a failing test waits this long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks of a condition.
const LOOK: Duration = Duration::from_millis(10);

/// The external agent, whose requests the test receives from the queue.
pub const EXTERNAL: &str = "gift-wrap";

/// 830 real orders, one JSON object a line.
const NORTHWIND: &str = include_str!("../data/northwind-orders.jsonl");

/// The `n`-th real order.
pub fn northwind(n: usize) -> Value {
    serde_json::from_str(NORTHWIND.lines().nth(n).unwrap()).unwrap()
}

/// The workflow in `text`, as the programs read it.
pub fn workflow(text: &str) -> Workflow {
    let agents: Vec<&str> = agent::agents::NAMES.into_iter().chain([EXTERNAL]).collect();
    let known = Known { agents: &agents, inputs: &edge::workflows::INPUT_CHECKS };
    parse("test.toml", text, known).unwrap()
}

/// The shape of the reference workflow with short times. `charge` is what its third step adds or replaces.
pub fn trip(name: &str, timeout: &str, charge_max: u32, more: &str) -> String {
    let retry = |max: u32| format!("retry = {{ max = {max}, backoff = [\"20ms\"] }}");
    let patient = retry(200);
    let calls = r#"calls = { attempts = 3, base = "5ms", cap = "20ms" }"#;
    let undo = |agent: &str| {
        format!("undo = {{ agent = \"{agent}\", timeout = \"{timeout}\", {patient}, {calls} }}\n{patient}\n{calls}")
    };
    let charge = undo("payment").replace(&format!("\n{patient}"), &format!("\n{}", retry(charge_max)));
    format!(
        r#"
name = "{name}"
{more}
[[step]]
name = "reserve"
agent = "inventory"
timeout = "{timeout}"
{inventory}
[[step]]
name = "check-fraud"
agent = "fraud"
timeout = "{timeout}"
{patient}
{calls}
[[step]]
name = "charge"
agent = "payment"
after = ["reserve", "check-fraud"]
timeout = "{timeout}"
{charge}
[[step]]
name = "ship"
agent = "shipping"
after = ["charge"]
timeout = "{timeout}"
{shipping}
"#,
        inventory = undo("inventory"),
        shipping = undo("shipping"),
    )
}

/// Three steps of `noop` agents, one after another.
pub fn three_noops(timeout: &str) -> String {
    let step = |name: &str, after: &str| {
        format!(
            "[[step]]\nname = \"{name}\"\nagent = \"noop\"\n{after}\ntimeout = \"{timeout}\"\n\
             retry = {{ max = 200, backoff = [\"20ms\"] }}\n"
        )
    };
    let (second, third) = (step("second", "after = [\"first\"]"), step("third", "after = [\"second\"]"));
    format!("name = \"noops\"\n{}{second}{third}", step("first", ""))
}

/// A client that sends `token` with every request.
pub fn http(token: &str) -> reqwest::Client {
    let bearer = reqwest::header::HeaderValue::from_str(&format!("Bearer {token}")).unwrap();
    let headers = [(reqwest::header::AUTHORIZATION, bearer)].into_iter().collect();
    reqwest::Client::builder().default_headers(headers).build().unwrap()
}

/// Waits until `look` returns something.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(seen) = look().await {
            return seen;
        }
        assert!(begin.elapsed() < PATIENCE, "still waiting after {PATIENCE:?}: {what}");
        tokio::time::sleep(LOOK).await;
    }
}

/// An observer of an engine, and the tasks as it saw them saved.
pub fn recorder() -> (Arc<Mutex<Vec<Task>>>, Observer) {
    let saved = Arc::<Mutex<Vec<Task>>>::default();
    let observed = Arc::clone(&saved);
    (saved, Arc::new(move |save| observed.lock().unwrap().push(save.task.clone())))
}

/// A listener on a free port, and its URL.
pub async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    (listener, url)
}

/// The sample remote services, and their URL.
pub async fn remotes() -> (Remotes, String) {
    let (remotes, (listener, url)) = (Remotes::open(None).unwrap(), listen().await);
    let served = remotes.clone();
    tokio::spawn(async move { served.serve(listener, std::future::pending()).await });
    (remotes, url)
}

/// The whole system in memory, and every version of every task it saved.
pub struct Whole {
    pub system: System,
    pub clients: Clients,
    pub http: reqwest::Client,
    versions: Arc<Mutex<Vec<Task>>>,
}

impl Whole {
    /// Starts it with these workflows, on free ports.
    pub async fn start(workflows: &[String]) -> Self {
        Self::start_with(workflows, |_| {}).await
    }

    /// Starts it with other options than usual.
    pub async fn start_with(workflows: &[String], change: impl FnOnce(&mut Options)) -> Self {
        let (versions, observer) = recorder();
        let workflows = workflows.iter().map(|text| workflow(text)).map(|w| (w.name.clone(), w)).collect();
        let mut options = Options {
            reply_queues: "shop=*".parse().unwrap(),
            observer: Some(observer),
            external_agents: vec![EXTERNAL.into()],
            ..Options::embedded(None, Durability::Process, workflows)
        };
        change(&mut options);
        let system = System::start(options).await.unwrap();
        let clients = Clients::embedded(system.endpoints.as_ref().unwrap().http_client());
        let http = http(&system.token);
        Self { system, clients, http, versions }
    }

    /// Submits over HTTP and returns the order's id.
    pub async fn submit(&self, key: &str, body: &Value) -> Id {
        let request = self.http.post(format!("{}/orders", self.system.url)).header("idempotency-key", key);
        let answer = request.json(body).send().await.unwrap();
        let status = answer.status().as_u16();
        let body: Value = answer.json().await.unwrap();
        assert_eq!(status, 202, "{body}");
        Id(body["order_id"].as_str().unwrap().to_owned())
    }

    /// Submits `n` orders of the workflow.
    pub async fn submit_many(&self, workflow: &str, n: usize) -> Vec<Id> {
        let mut ids = Vec::new();
        for k in 0..n {
            let body = json!({"workflow": workflow, "input": {"total_cents": 100 + k}});
            ids.push(self.submit(&format!("key-{k}"), &body).await);
        }
        ids
    }

    /// What `GET` of `path` answers.
    pub async fn get(&self, path: &str) -> Value {
        self.http.get(format!("{}{path}", self.system.url)).send().await.unwrap().json().await.unwrap()
    }

    /// What `POST` of `body` to `path` answers: status and body.
    pub async fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.http.post(format!("{}{path}", self.system.url)).json(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    /// Sends a message to the queue with this name.
    pub async fn send(&self, queue: &str, body: &str) {
        let send = self.clients.sqs.send_message().queue_url(self.config().queue_url(queue));
        send.message_body(body).send().await.unwrap();
    }

    /// Up to ten messages of the queue with this name.
    pub async fn receive(&self, queue: &str) -> Vec<Message> {
        let receive = self.clients.sqs.receive_message().queue_url(self.config().queue_url(queue));
        receive.max_number_of_messages(10).send().await.unwrap().messages.unwrap_or_default()
    }

    /// All messages that wait in the queue with this name, once there were at least so many, read as plain JSON.
    pub async fn take(&self, queue: &str, at_least: usize) -> Vec<Value> {
        let mut all = Vec::new();
        until(&format!("{at_least} messages in {queue}"), async || {
            let messages = self.receive(queue).await;
            all.extend(messages.iter().map(|message| serde_json::from_str::<Value>(message.body().unwrap()).unwrap()));
            (all.len() >= at_least).then_some(())
        })
        .await;
        all
    }

    /// Deletes a message that was received from the queue with this name.
    pub async fn delete(&self, queue: &str, message: Message) {
        let delete = self.clients.sqs.delete_message().queue_url(self.config().queue_url(queue));
        delete.receipt_handle(message.receipt_handle.unwrap()).send().await.unwrap();
    }

    /// The task as it is stored.
    pub async fn task(&self, id: &Id) -> Task {
        self.system.engine.store.load(id).await.unwrap().unwrap()
    }

    /// The task once `wanted` holds.
    pub async fn task_once(&self, id: &Id, what: &str, wanted: impl Fn(&Task) -> bool) -> Task {
        until(&format!("{id}: {what}"), async || Some(self.task(id).await).filter(|task| wanted(task))).await
    }

    /// The tasks of these orders as they are stored.
    pub async fn tasks(&self, ids: &[Id]) -> Vec<Task> {
        let mut tasks = Vec::new();
        for id in ids {
            tasks.push(self.task(id).await);
        }
        tasks
    }

    /// The tasks of these orders, once they have ended and owe nothing.
    pub async fn ended(&self, ids: &[Id]) -> Vec<Task> {
        let mut tasks = Vec::new();
        for id in ids {
            let ended = |task: &Task| task.process_state().is_final() && task.due.is_none();
            tasks.push(self.task_once(id, "ended", ended).await);
        }
        tasks
    }

    /// The task of this order, once it has ended in `state` and owes nothing.
    pub async fn ends(&self, id: &Id, state: ProcessState) -> Task {
        let task = self.ended(std::slice::from_ref(id)).await.remove(0);
        assert_eq!(task.process_state(), state, "{id} {:?} {:#?}", task.reason, task.log);
        task
    }

    /// Waits until all orders have ended in `state`, and checks that the remote services hold the right effects and
    /// that no message was set aside.
    pub async fn all_end(&self, ids: &[Id], state: ProcessState) -> Vec<Task> {
        let mut tasks = Vec::new();
        for id in ids {
            tasks.push(self.ends(id, state).await);
        }
        self.ledger_is_clean(&tasks);
        assert_eq!(self.set_aside(), 0);
        tasks
    }

    /// Checks that every effect was applied once, or once and undone, or not at all, as the tasks say.
    pub fn ledger_is_clean(&self, tasks: &[Task]) {
        let report = self.system.remotes.check(tasks.iter().map(|t| (t.id.0.clone(), expected(t)))).unwrap();
        assert!(report.is_clean(), "{report}");
    }

    /// Every version of `id` this process saved, in order.
    pub fn versions(&self, id: &Id) -> Vec<Task> {
        let all = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut own: Vec<_> = all.iter().filter(|task| task.id == *id).cloned().collect();
        own.sort_by_key(|task| task.version);
        own
    }

    /// Sets the faults of one service.
    pub fn fault(&self, service: Service, faults: ServiceFaults) {
        self.system.remotes.set_service_faults(service, faults).unwrap();
    }

    /// Waits until a service has shown a fault at least `times`.
    pub async fn shown(&self, service: Service, fault: Fault, times: u64) {
        let seen = async || {
            let counts = self.system.remotes.counts();
            (counts[&service].faults.get(&fault).copied().unwrap_or_default() >= times).then_some(())
        };
        until(&format!("{service} shows {fault:?}"), seen).await;
    }

    /// Messages in the queue with this name, in whatever state.
    pub fn queued(&self, name: &str) -> usize {
        queued(self.system.endpoints.as_ref().unwrap(), name)
    }

    /// Messages set aside and dead letters.
    pub fn set_aside(&self) -> usize {
        let stats = self.system.endpoints.as_ref().unwrap().queue_stats();
        stats.iter().filter(|q| q.name.ends_with("-dead") || q.name.ends_with("set-aside")).map(|q| q.visible).sum()
    }

    /// All events on the bus.
    pub fn events(&self) -> Vec<Arc<Event>> {
        self.system.endpoints.as_ref().unwrap().events().page(0, 1000)
    }

    /// The configuration, for queue URLs.
    pub fn config(&self) -> &Config {
        &self.system.config
    }
}

/// Messages in the queue with this name, in whatever state.
pub fn queued(endpoints: &stepwarden_embedded::Endpoints, name: &str) -> usize {
    let full = format!("stepwarden-{name}");
    let stats = endpoints.queue_stats();
    let queue = stats.iter().find(|q| q.name == full).unwrap_or_else(|| panic!("no queue {full}"));
    queue.visible + queue.in_flight + queue.delayed
}

/// The effects that a task of the shape of [`trip`] leaves at the remote services.
pub fn expected(task: &Task) -> Expected {
    match task.process_state() {
        ProcessState::Processed => Expected::Applied(Service::ALL.to_vec()),
        ProcessState::Undone => Expected::Undone,
        ProcessState::Pending | ProcessState::Processing | ProcessState::Undoing | ProcessState::Error => Expected::Any,
    }
}

/// How often something happened to a step.
pub fn count(task: &Task, kind: Kind, step: usize) -> usize {
    task.log.iter().filter(|e| e.1 == kind && e.2.map(usize::from) == Some(step)).count()
}
