//! The SDK clients, with explicit timeouts and attempts.

use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_smithy_http_client::tls;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use futures::future::BoxFuture;
use std::time::Duration;

/// Attempts per call, the first included: a throttled or lost call is retried within the invocation.
const ATTEMPTS: u32 = 3;
/// Longest wait before the second attempt on this machine, which has no other callers to spare; the SDK waits a second.
const LOCAL_BACKOFF: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// One attempt. DynamoDB and SQS answer within milliseconds; a longer silence is a lost packet.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// The whole call, retries included: two silent attempts with the pause between them. Less than a quarter of a
/// function's time, so that a function whose load, save and send are all silent can still report what failed.
const CALL_TIMEOUT: Duration = Duration::from_secs(7);
/// The same two for a receive that waits up to 20 s for messages.
const POLL_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(25);
const POLL_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients of the three services, over one pool of connections.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Tables.
    pub dynamodb: aws_sdk_dynamodb::Client,
    /// Queues.
    pub sqs: aws_sdk_sqs::Client,
    /// The event bus.
    pub eventbridge: aws_sdk_eventbridge::Client,
    /// The configuration they share, for a client that only one function needs.
    pub sdk: SdkConfig,
}

impl Clients {
    /// Clients as the environment configures them: credentials, region, and `AWS_ENDPOINT_URL` for an emulator.
    #[must_use]
    pub fn from_env() -> BoxFuture<'static, Self> {
        Box::pin(async {
            let config = aws_config::defaults(BehaviorVersion::latest())
                .http_client(http_client())
                .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
                .timeout_config(timeouts())
                .load()
                .await;
            Self::new(&config)
        })
    }

    /// Clients of the endpoints embedded in another process of this machine, at `url`, which check no signatures.
    #[must_use]
    pub fn unsigned(url: &str) -> Self {
        Self::without_signatures(http_client(), url)
    }

    /// Clients of endpoints embedded in this process: `http` answers the calls. Signatures are not checked there, so
    /// none are made: they would take a tenth of the time of a call.
    #[must_use]
    pub fn embedded(http: SharedHttpClient) -> Self {
        Self::without_signatures(http, "http://127.0.0.1")
    }

    fn without_signatures(http: SharedHttpClient, url: &str) -> Self {
        let config = SdkConfig::builder()
            .behavior_version(BehaviorVersion::latest())
            .region(Region::from_static("local"))
            .endpoint_url(url)
            .http_client(http)
            .sleep_impl(aws_smithy_async::rt::sleep::SharedAsyncSleep::new(
                aws_smithy_async::rt::sleep::TokioSleep::new(),
            ))
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS).with_initial_backoff(LOCAL_BACKOFF))
            .timeout_config(timeouts())
            .build();
        Self {
            dynamodb: aws_sdk_dynamodb::Client::from_conf(
                aws_sdk_dynamodb::config::Builder::from(&config).allow_no_auth().build(),
            ),
            sqs: aws_sdk_sqs::Client::from_conf(aws_sdk_sqs::config::Builder::from(&config).allow_no_auth().build()),
            eventbridge: aws_sdk_eventbridge::Client::from_conf(
                aws_sdk_eventbridge::config::Builder::from(&config).allow_no_auth().build(),
            ),
            sdk: config,
        }
    }

    fn new(config: &SdkConfig) -> Self {
        Self {
            dynamodb: aws_sdk_dynamodb::Client::new(config),
            sqs: aws_sdk_sqs::Client::new(config),
            eventbridge: aws_sdk_eventbridge::Client::new(config),
            sdk: config.clone(),
        }
    }
}

/// One for all three services: each further HTTP client would read the machine's root certificates again, which is a
/// large part of a cold start.
pub(crate) fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
        .build_https()
}

/// Settings of a receive that waits for messages, for `config_override`: its answer comes after SQS's longest poll of
/// 20 s, and it is not a stalled stream meanwhile. For this call only: a send or a delete must not wait as long.
#[must_use]
pub fn long_poll() -> aws_sdk_sqs::config::Builder {
    let patient =
        timeouts().to_builder().operation_attempt_timeout(POLL_ATTEMPT_TIMEOUT).operation_timeout(POLL_TIMEOUT);
    aws_sdk_sqs::Config::builder()
        .timeout_config(patient.build())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(CALL_TIMEOUT)
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
    use aws_smithy_runtime_api::client::http::{
        HttpConnector, HttpConnectorFuture, SharedHttpConnector, http_client_fn,
    };
    use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
    use aws_smithy_types::body::SdkBody;
    use tokio::time::Instant;

    /// A service that accepts calls and answers after a while, if at all.
    #[derive(Clone, Copy, Debug)]
    struct Slow(Option<Duration>);

    impl HttpConnector for Slow {
        fn call(&self, _request: HttpRequest) -> HttpConnectorFuture {
            let after = self.0;
            HttpConnectorFuture::new(async move {
                match after {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
                Ok(HttpResponse::new(http::StatusCode::OK.into(), SdkBody::from("{}")))
            })
        }
    }

    fn clients(slow: Slow) -> Clients {
        Clients::embedded(http_client_fn(move |_, _| SharedHttpConnector::new(slow)))
    }

    /// Shortest time of a function, in template.yaml. A scheduler loads, saves and sends within it.
    const FUNCTION: Duration = Duration::from_secs(30);

    // A send that is given up late is one whose function is killed after its save.
    #[tokio::test(start_paused = true)]
    async fn no_call_to_a_silent_service_takes_a_quarter_of_a_function() {
        let Clients { dynamodb, sqs, eventbridge, .. } = clients(Slow(None));
        let entry = SendMessageBatchRequestEntry::builder().id("0").message_body("x").build().unwrap();
        let begun = Instant::now();
        let took = |what: &str, is_err: bool, begun: Instant| {
            assert!(is_err, "{what}");
            assert!(begun.elapsed() < FUNCTION / 4, "{what}: {:?}", begun.elapsed());
            Instant::now()
        };
        let sent = sqs.send_message_batch().queue_url("http://q/a").entries(entry).send().await;
        let begun = took("SendMessageBatch", sent.is_err(), begun);
        let deleted = sqs.delete_message().queue_url("http://q/a").receipt_handle("x").send().await;
        let begun = took("DeleteMessage", deleted.is_err(), begun);
        let received = sqs.receive_message().queue_url("http://q/a").wait_time_seconds(0).send().await;
        let begun = took("ReceiveMessage without a wait", received.is_err(), begun);
        let put = eventbridge.put_events().set_entries(Some(vec![])).send().await;
        let begun = took("PutEvents", put.is_err(), begun);
        let read = dynamodb.list_tables().send().await;
        took("ListTables", read.is_err(), begun);
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_poll_outlives_the_longest_wait_of_sqs() {
        let receive = |seconds| {
            let sqs = clients(Slow(Some(Duration::from_secs(seconds)))).sqs;
            let receive = sqs.receive_message().queue_url("http://q/a").wait_time_seconds(20);
            receive.customize().config_override(long_poll()).send()
        };
        assert!(receive(20).await.is_ok());
        let begun = Instant::now();
        assert!(receive(1000).await.is_err());
        assert!(begun.elapsed() <= Duration::from_secs(35), "{:?}", begun.elapsed());
    }
}
