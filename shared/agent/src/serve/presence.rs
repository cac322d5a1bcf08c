//! On a laptop the queues see at once that this program has ended. It keeps a connection to them, and when that breaks,
//! its messages are redelivered. SQS and its emulators have no such connection.

use reqwest::{Client, Response, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The header that names the program in a receive, and in the answer of queues that know it.
const HEADER: &str = "x-stepwarden-consumer";
/// Wait between tries to connect.
const AGAIN: Duration = Duration::from_millis(100);
/// Longest wait for a connection before a receive. If there is no endpoint, the receive says so.
const PATIENCE: Duration = Duration::from_secs(1);
/// Longest wait for the head of the answer.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    Connecting,
    Connected(Arc<str>),
    /// These queues know no connection.
    Unknown,
}

/// The connection.
#[derive(Clone)]
pub(super) struct Presence(watch::Receiver<State>);

impl Presence {
    /// Connects to the endpoint that the environment names, if any, and stays connected while the process lives.
    pub(super) fn from_env() -> Self {
        let named = |name: &str| std::env::var(name).ok().filter(|url| url.starts_with("http://"));
        match named("AWS_ENDPOINT_URL_SQS").or_else(|| named("AWS_ENDPOINT_URL")) {
            Some(url) => Self::at(url),
            None => Self(watch::channel(State::Unknown).1),
        }
    }

    fn at(url: String) -> Self {
        let (state, watched) = watch::channel(State::Connecting);
        tokio::spawn(async move {
            // The endpoint is on this machine, so use no proxy.
            let client = Client::builder().no_proxy().redirect(reqwest::redirect::Policy::none()).build();
            match client {
                Ok(client) => keep(&client, &url, &state).await,
                Err(_) => drop(state.send_replace(State::Unknown)),
            }
        });
        Self(watched)
    }

    /// The next receive's header and its value, if it has one.
    pub(super) async fn header(&self) -> Option<(&'static str, String)> {
        let mut state = self.0.clone();
        let known = tokio::time::timeout(PATIENCE, state.wait_for(|state| *state != State::Connecting)).await;
        match &*known.ok()?.ok()? {
            State::Connected(name) => Some((HEADER, name.to_string())),
            State::Connecting | State::Unknown => None,
        }
    }
}

/// Returns once it is known that these queues have no such connection.
async fn keep(client: &Client, url: &str, state: &watch::Sender<State>) {
    loop {
        let name = format!("{:032x}", fastrand::u128(..));
        let ask = client.get(format!("{}/consumers/{name}", url.trim_end_matches('/'))).send();
        match tokio::time::timeout(ANSWER, ask).await {
            Ok(Ok(answer)) if is_known(&answer) => {
                state.send_replace(State::Connected(name.into()));
                until_it_breaks(answer).await;
                state.send_replace(State::Connecting);
            }
            // Another program answers, or an older version.
            Ok(Ok(answer)) if answer.status() < StatusCode::INTERNAL_SERVER_ERROR => {
                state.send_replace(State::Unknown);
                return;
            }
            Ok(Ok(_) | Err(_)) | Err(_) => {}
        }
        tokio::time::sleep(AGAIN).await;
    }
}

fn is_known(answer: &Response) -> bool {
    answer.status() == StatusCode::OK && answer.headers().contains_key(HEADER)
}

async fn until_it_breaks(mut answer: Response) {
    while let Ok(Some(_)) = answer.chunk().await {}
}
