//! The services on a separate loopback port, and a client of them.

use std::path::Path;
use std::time::{Duration, Instant};

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use stepwarden_remotes::{Faults, Remotes, Service, ServiceFaults};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A call that is not answered is given up after this: far more than an answer takes on loopback.
pub const PATIENCE: Duration = Duration::from_millis(400);

pub struct Served {
    pub remotes: Remotes,
    pub base: String,
    pub client: reqwest::Client,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

#[derive(Debug, PartialEq)]
pub struct Answer {
    pub status: StatusCode,
    pub replayed: bool,
    pub retry_after: Option<String>,
    pub content_type: String,
    pub body: Value,
}

impl Answer {
    pub fn code(&self) -> &str {
        assert_eq!(self.content_type, "application/problem+json", "{self:?}");
        assert_eq!(self.body["status"], self.status.as_u16());
        self.body["code"].as_str().unwrap()
    }

    pub fn detail(&self) -> &str {
        self.code();
        self.body["detail"].as_str().unwrap()
    }
}

pub async fn serve(dir: Option<&Path>) -> Served {
    let remotes = Remotes::open(dir).unwrap();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel();
    let serving = remotes.clone();
    let server = tokio::spawn(async move {
        serving
            .serve(listener, async {
                let _ = stopped.await;
            })
            .await
    });
    Served { remotes, base, client: reqwest::Client::new(), stop: Some(stop), server }
}

impl Served {
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    pub fn keyed(&self, path: &str, key: &str) -> RequestBuilder {
        self.request(Method::POST, path).header("Idempotency-Key", key)
    }

    pub fn apply_request(&self, service: &str, key: &str, order: &str) -> RequestBuilder {
        self.keyed(&format!("/{service}/apply"), key).json(&json!({"order_id": order, "input": input()}))
    }

    pub fn undo_request(&self, service: &str, key: &str, order: &str, undoes: &str) -> RequestBuilder {
        let body = json!({"order_id": order, "undoes": undoes, "output": null});
        self.keyed(&format!("/{service}/undo"), key).json(&body)
    }

    pub async fn apply(&self, service: &str, key: &str, order: &str) -> Answer {
        send(self.apply_request(service, key, order)).await
    }

    pub async fn undo(&self, service: &str, key: &str, order: &str, undoes: &str) -> Answer {
        send(self.undo_request(service, key, order, undoes)).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        send(self.request(Method::GET, path)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        send(self.request(Method::PUT, path).json(&body)).await
    }

    /// The faults of one service; the others and earlier settings have none.
    pub fn faults(&self, service: Service, faults: ServiceFaults) {
        self.faults_seeded(1, service, faults);
    }

    pub fn faults_seeded(&self, seed: u64, service: Service, faults: ServiceFaults) {
        self.remotes.set_faults(Faults { seed, services: [(service, faults)].into() }).unwrap();
    }

    pub async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.server.await.unwrap().unwrap();
    }
}

pub async fn send(request: RequestBuilder) -> Answer {
    let response = request.timeout(Duration::from_secs(10)).send().await.unwrap();
    let header = |name: &str| {
        let value = response.headers().get(name)?;
        Some(value.to_str().unwrap().to_owned())
    };
    Answer {
        status: response.status(),
        replayed: header("idempotency-replayed").as_deref() == Some("true"),
        retry_after: header("retry-after"),
        content_type: header("content-type").unwrap_or_default(),
        body: response.json().await.unwrap(),
    }
}

/// Waits until it is so.
pub async fn once(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(10), "it never became so");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// The error of a call that has no answer.
pub async fn send_in_vain(request: RequestBuilder) -> reqwest::Error {
    match request.timeout(PATIENCE).send().await {
        Ok(response) => panic!("answered {}", response.status()),
        Err(err) => err,
    }
}

pub fn input() -> Value {
    json!({"lines": [{"sku": "a", "quantity": 1}, {"sku": "b", "quantity": 2}], "total_cents": 4250})
}
