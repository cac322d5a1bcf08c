//! The SDK clients, with explicit timeouts and attempts.

use crate::sent::Caller;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_smithy_http_client::tls;
use aws_smithy_runtime_api::client::http::{SharedHttpClient, SharedHttpConnector, http_client_fn};
use futures::future::BoxFuture;
use std::time::Duration;

/// Attempts per call, the first included. A throttled or lost call is retried within the invocation; calls in this
/// process are made once ([`crate::sent`]).
const ATTEMPTS: u32 = 3;
/// Longest wait before the second attempt on this machine, where no other callers need sparing; the SDK waits a second.
const LOCAL_BACKOFF: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// One attempt. DynamoDB and SQS answer within milliseconds; a longer silence is a lost packet.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// The whole call, retries included: two silent attempts and the pause between. Less than a quarter of a function's
/// time, so that a function without answers to its load, save and send can still report a failure.
const CALL_TIMEOUT: Duration = Duration::from_secs(7);
/// Both for a receive that waits up to 20 s for messages.
const POLL_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(25);
const POLL_TIMEOUT: Duration = Duration::from_secs(30);

/// Clients of the three services, over one pool of connections.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Tables.
    pub dynamodb: Caller<aws_sdk_dynamodb::Client>,
    /// Queues.
    pub sqs: Caller<aws_sdk_sqs::Client>,
    /// The event bus.
    pub eventbridge: Caller<aws_sdk_eventbridge::Client>,
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
            Self {
                dynamodb: aws_sdk_dynamodb::Client::new(&config).into(),
                sqs: aws_sdk_sqs::Client::new(&config).into(),
                eventbridge: aws_sdk_eventbridge::Client::new(&config).into(),
                sdk: config,
            }
        })
    }

    /// Clients of the endpoints embedded in another process of this machine, at `url`, which check no signatures.
    #[must_use]
    pub fn unsigned(url: &str) -> Self {
        Self::without_signatures(http_client(), url)
    }

    /// Clients of endpoints embedded in this process: `http` answers the calls. They check no signatures, so none are
    /// made, which would take a tenth of a call's time.
    #[must_use]
    pub fn embedded(http: SharedHttpClient) -> Self {
        Self::without_signatures(http, "http://127.0.0.1")
    }

    /// [`Self::embedded`], but an order's calls leave out most of the SDK ([`crate::sent`]). Answers of `connector`
    /// must be in memory.
    #[must_use]
    pub fn in_process(connector: SharedHttpConnector) -> Self {
        let http = {
            let connector = connector.clone();
            http_client_fn(move |_, _| connector.clone())
        };
        let clients = Self::embedded(http);
        Self {
            dynamodb: clients.dynamodb.here(connector.clone(), CALL_TIMEOUT),
            sqs: clients.sqs.here(connector.clone(), CALL_TIMEOUT),
            eventbridge: clients.eventbridge.here(connector, CALL_TIMEOUT),
            sdk: clients.sdk,
        }
    }

    /// Only for receives that wait for messages: SQS's longest poll takes 20 s, and is no stalled stream. A send or a
    /// delete must not wait as long.
    #[must_use]
    pub fn long_polls(&self) -> Caller<aws_sdk_sqs::Client> {
        let patient =
            timeouts().to_builder().operation_attempt_timeout(POLL_ATTEMPT_TIMEOUT).operation_timeout(POLL_TIMEOUT);
        let config = self
            .sqs
            .config()
            .to_builder()
            .timeout_config(patient.build())
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled());
        self.sqs.with_client(aws_sdk_sqs::Client::from_conf(config.build()), POLL_TIMEOUT)
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
            )
            .into(),
            sqs: aws_sdk_sqs::Client::from_conf(aws_sdk_sqs::config::Builder::from(&config).allow_no_auth().build())
                .into(),
            eventbridge: aws_sdk_eventbridge::Client::from_conf(
                aws_sdk_eventbridge::config::Builder::from(&config).allow_no_auth().build(),
            )
            .into(),
            sdk: config,
        }
    }
}

/// One for all three services, because each HTTP client reads the machine's root certificates, a large part of a cold
/// start.
pub(crate) fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
        .build_https()
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
    use crate::sent::Sent;
    use aws_sdk_dynamodb::error::ProvideErrorMetadata;
    use aws_sdk_dynamodb::operation::get_item::GetItemInput;
    use aws_sdk_dynamodb::operation::get_item::builders::GetItemInputBuilder;
    use aws_sdk_eventbridge::operation::put_events::PutEventsInput;
    use aws_sdk_eventbridge::operation::put_events::builders::PutEventsInputBuilder;
    use aws_sdk_sqs::operation::delete_message_batch::DeleteMessageBatchInput;
    use aws_sdk_sqs::operation::delete_message_batch::builders::DeleteMessageBatchInputBuilder;
    use aws_sdk_sqs::operation::receive_message::ReceiveMessageInput;
    use aws_sdk_sqs::operation::receive_message::builders::ReceiveMessageInputBuilder;
    use aws_sdk_sqs::operation::send_message_batch::SendMessageBatchInput;
    use aws_sdk_sqs::operation::send_message_batch::builders::SendMessageBatchInputBuilder;
    use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
    use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
    use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
    use aws_smithy_runtime_api::client::result::{ConnectorError, SdkError};
    use aws_smithy_types::body::SdkBody;
    use std::mem::discriminant;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
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

    /// A service that gives every call the same answer (a status, the header of an SQS error, a body), or loses it. It counts them.
    #[derive(Clone, Debug)]
    struct Answering {
        answer: Option<(u16, &'static str, &'static str)>,
        calls: Arc<AtomicU32>,
    }

    impl Answering {
        fn new(answer: Option<(u16, &'static str, &'static str)>) -> Self {
            Self { answer, calls: Arc::default() }
        }
    }

    impl HttpConnector for Answering {
        fn call(&self, _request: HttpRequest) -> HttpConnectorFuture {
            self.calls.fetch_add(1, Ordering::Relaxed);
            HttpConnectorFuture::ready(match self.answer {
                Some((status, code, body)) => {
                    let mut answer = HttpResponse::new(status.try_into().unwrap(), SdkBody::from(body));
                    if !code.is_empty() {
                        answer.headers_mut().insert("x-amzn-query-error", code);
                    }
                    Ok(answer)
                }
                None => Err(ConnectorError::io("lost".into())),
            })
        }
    }

    /// Clients that call it through the SDK, and without.
    fn clients(service: impl HttpConnector + Clone + 'static) -> [Clients; 2] {
        let connector = SharedHttpConnector::new(service.clone());
        let through = http_client_fn(move |_, _| SharedHttpConnector::new(service.clone()));
        [Clients::embedded(through), Clients::in_process(connector)]
    }

    fn send() -> SendMessageBatchInputBuilder {
        let entry = SendMessageBatchRequestEntry::builder().id("0").message_body("x").build().unwrap();
        SendMessageBatchInput::builder().queue_url("http://q/a").entries(entry)
    }

    fn receive() -> ReceiveMessageInputBuilder {
        ReceiveMessageInput::builder().queue_url("http://q/a")
    }

    fn delete() -> DeleteMessageBatchInputBuilder {
        DeleteMessageBatchInput::builder().queue_url("http://q/a").set_entries(Some(vec![]))
    }

    fn put_events() -> PutEventsInputBuilder {
        PutEventsInput::builder().set_entries(Some(vec![]))
    }

    fn get_item() -> GetItemInputBuilder {
        GetItemInput::builder().table_name("t")
    }

    // It also shows that the calls of a laptop take the short way.
    #[tokio::test(start_paused = true)]
    async fn a_call_in_this_process_is_made_once() {
        let failing = Answering::new(Some((500, "", r#"{"__type": "InternalServerError"}"#)));
        for (clients, attempts) in clients(failing.clone()).into_iter().zip([ATTEMPTS, 1]) {
            let made = |what: &str| assert_eq!(failing.calls.swap(0, Ordering::Relaxed), attempts, "{what}");
            get_item().sent(&clients.dynamodb).await.unwrap_err();
            made("GetItem");
            send().sent(&clients.sqs).await.unwrap_err();
            made("SendMessageBatch");
            receive().sent(&clients.long_polls()).await.unwrap_err();
            made("ReceiveMessage");
            put_events().sent(&clients.eventbridge).await.unwrap_err();
            made("PutEvents");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_the_same_through_the_sdk_and_without() {
        let no_queue = "AWS.SimpleQueueService.NonExistentQueue";
        let refused = r#"{"__type": "com.amazonaws.sqs#QueueDoesNotExist", "message": "why"}"#;
        let answers = [
            (Some((400, "AWS.SimpleQueueService.NonExistentQueue;Sender", refused)), Some(no_queue), Some("why")),
            (Some((500, "", r#"{"__type": "InternalError", "message": "why"}"#)), Some("InternalError"), Some("why")),
            (Some((400, "", "x")), None, None),
            (Some((200, "", "{")), None, None),
            (None, None, None),
        ];
        for (answer, code, message) in answers {
            let [through, without] = clients(Answering::new(answer));
            let errors = [send().sent(&through.sqs).await, send().sent(&without.sqs).await].map(Result::unwrap_err);
            assert_eq!(discriminant(&errors[0]), discriminant(&errors[1]), "{errors:?}");
            for error in errors {
                assert_eq!((error.code(), error.message()), (code, message), "{error:?}");
                let status = error.raw_response().map(|response| response.status().as_u16());
                assert_eq!(status, answer.map(|(status, ..)| status), "{error:?}");
            }
        }
    }

    /// Shortest time of a function, in template.yaml. A scheduler loads, saves and sends within it.
    const FUNCTION: Duration = Duration::from_secs(30);

    async fn is_late<T, E, R>(what: &str, call: impl Future<Output = Result<T, SdkError<E, R>>>) {
        let begun = Instant::now();
        assert!(matches!(call.await, Err(SdkError::TimeoutError(_))), "{what}");
        assert!((ATTEMPT_TIMEOUT..FUNCTION / 4).contains(&begun.elapsed()), "{what}: {:?}", begun.elapsed());
    }

    // If a send gives up late, its function is killed after its save.
    #[tokio::test(start_paused = true)]
    async fn no_call_to_a_silent_service_takes_a_quarter_of_a_function() {
        for Clients { dynamodb, sqs, eventbridge, .. } in clients(Slow(None)) {
            is_late("SendMessageBatch", send().sent(&sqs)).await;
            is_late("DeleteMessageBatch", delete().sent(&sqs)).await;
            is_late("ReceiveMessage without a wait", receive().sent(&sqs)).await;
            is_late("PutEvents", put_events().sent(&eventbridge)).await;
            is_late("GetItem", get_item().sent(&dynamodb)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_poll_outlives_the_longest_wait_of_sqs() {
        let long_poll = |clients: &Clients| receive().wait_time_seconds(20).sent(&clients.long_polls());
        for clients in clients(Slow(Some(Duration::from_secs(20)))) {
            assert!(long_poll(&clients).await.is_ok());
        }
        for clients in clients(Slow(Some(Duration::from_secs(1000)))) {
            let begun = Instant::now();
            assert!(long_poll(&clients).await.is_err());
            assert!(begun.elapsed() <= Duration::from_secs(35), "{:?}", begun.elapsed());
        }
    }
}
