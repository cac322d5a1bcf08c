//! A server on loopback that keeps what it is asked, and the agent's calls of it.

use agent::agents::http::Http;
use agent::{Agent, AgentError, Call, Runtime, Settings, breaker};
use axum::Router;
use axum::body::to_bytes;
use axum::extract::Request as Asked;
use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};
use shared::message::{Reply, Request};
use shared::time::{SignedDuration, Timestamp};
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Heard {
    pub method: String,
    /// With the query.
    pub path: String,
    pub headers: HeaderMap,
    pub body: String,
}

impl Heard {
    /// The text of a header, empty without one.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

#[derive(Clone)]
pub struct Server {
    pub url: String,
    pub heard: Arc<Mutex<Vec<Heard>>>,
}

impl Server {
    /// A server that answers so.
    pub async fn start<F>(answer: impl Fn(Heard) -> F + Clone + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Response> + Send,
    {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let heard = Arc::<Mutex<Vec<Heard>>>::default();
        let server = Self { url: format!("http://{}", listener.local_addr().unwrap()), heard: Arc::clone(&heard) };
        let service = async move |asked: Asked| {
            let (head, body) = asked.into_parts();
            let asked = Heard {
                method: head.method.to_string(),
                path: head.uri.path_and_query().unwrap().to_string(),
                headers: head.headers,
                body: String::from_utf8(to_bytes(body, 1 << 20).await.unwrap().to_vec()).unwrap(),
            };
            heard.lock().unwrap().push(asked.clone());
            answer(asked).await
        };
        tokio::spawn(async move { axum::serve(listener, Router::new().fallback(service)).await });
        server
    }

    /// What was asked so far.
    pub fn heard(&self) -> Vec<Heard> {
        self.heard.lock().unwrap().clone()
    }
}

/// A request to the agent `http`, with these fields in addition.
pub fn request(more: Value) -> Request {
    let mut request = json!({
        "task_id": "ord_1", "step": "notify", "agent": "http", "direction": "do", "attempt": 1,
        "idempotency_key": "ord_1:notify:do", "complete_by": Timestamp::now() + SignedDuration::from_secs(5),
        "tenant": "acme", "calls": {"attempts": 1, "base": "PT0.01S", "cap": "PT0.01S"},
        "input": {"total_cents": 5}, "outputs": {"reserve": {"id": 1}},
    });
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    serde_json::from_value(request).unwrap()
}

/// One call.
pub async fn act(agent: &Http, request: &Request) -> Result<Value, AgentError> {
    agent.act(Call { request, time_left: Duration::from_secs(5) }).await
}

/// Breakers that open after so many failures in a row.
pub fn failures(failures: u32) -> breaker::Settings {
    breaker::Settings { failures, ..breaker::Settings::default() }
}

pub fn runtime(agent: Http, breaker: breaker::Settings) -> Runtime {
    let settings = Settings { skew: SignedDuration::ZERO, breaker };
    Runtime::new(vec![Arc::new(agent)], settings, Arc::new(Timestamp::now))
}

/// One attempt.
pub async fn perform(runtime: &Runtime, request: &Request) -> Option<Reply> {
    runtime.perform(runtime.agent_of(request).expect("the agent"), request).await
}

/// The error of a call that was not made, and whether it is permanent.
pub fn not_called(result: Result<Value, AgentError>) -> (String, bool) {
    match result {
        Err(AgentError::NotCalled { error, is_permanent }) => (error, is_permanent),
        other => panic!("{other:?}"),
    }
}
