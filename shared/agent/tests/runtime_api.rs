//! The runtime API of Lambda, which brings a function one event at a time:
//! <https://docs.aws.amazon.com/lambda/latest/dg/runtimes-api.html>.

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc};

const PATIENCE: Duration = Duration::from_secs(90);

pub struct RuntimeApi {
    address: String,
    events: mpsc::Sender<Value>,
    answers: mpsc::Receiver<Value>,
}

type Channels = (Arc<Mutex<mpsc::Receiver<Value>>>, mpsc::Sender<Value>);

async fn next(State((events, _)): State<Channels>) -> impl IntoResponse {
    let event = events.lock().await.recv().await;
    let Some(event) = event else { std::future::pending().await };
    let headers = [
        ("lambda-runtime-aws-request-id", "one"),
        ("lambda-runtime-deadline-ms", "4102444800000"),
        ("lambda-runtime-invoked-function-arn", "arn:aws:lambda:local:000000000000:function:shop"),
    ];
    (headers, event.to_string())
}

async fn answered(State((_, answers)): State<Channels>, body: String) {
    answers.send(serde_json::from_str(&body).unwrap()).await.unwrap();
}

impl RuntimeApi {
    pub async fn start() -> Self {
        let (events, brought) = mpsc::channel(1);
        let (given, answers) = mpsc::channel(1);
        let routes = Router::new()
            .route("/2018-06-01/runtime/invocation/next", get(next))
            .route("/2018-06-01/runtime/invocation/one/response", post(answered))
            .with_state((Arc::new(Mutex::new(brought)), given));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        tokio::spawn(axum::serve(listener, routes).into_future());
        Self { address, events, answers }
    }

    /// The environment of the function called `name`.
    pub fn environment<'a>(&'a self, name: &'a str) -> [(&'a str, &'a str); 6] {
        [
            ("AWS_LAMBDA_RUNTIME_API", &self.address),
            ("AWS_LAMBDA_FUNCTION_NAME", name),
            ("AWS_LAMBDA_FUNCTION_VERSION", "1"),
            ("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "256"),
            ("AWS_LAMBDA_LOG_GROUP_NAME", "group"),
            ("AWS_LAMBDA_LOG_STREAM_NAME", "stream"),
        ]
    }

    /// The function's answer to `event`.
    pub async fn invoke(&mut self, event: Value) -> Value {
        self.events.send(event).await.unwrap();
        tokio::time::timeout(PATIENCE, self.answers.recv()).await.expect("an answer").unwrap()
    }
}
