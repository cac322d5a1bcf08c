//! The SDK clients, with their timeouts and attempts said explicitly.

use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_smithy_http_client::tls;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use std::time::Duration;

/// Attempts per call, the first included: a throttled or lost call is tried again within the invocation.
const ATTEMPTS: u32 = 3;
/// Longest wait before the second attempt on this machine, where no other caller has to be spared; the SDK's own is a second.
const LOCAL_BACKOFF: Duration = Duration::from_millis(20);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// One attempt. DynamoDB and SQS answer within milliseconds; a longer silence is a lost packet.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
/// The whole call, retries included.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// Clients of the three services, over one pool of connections.
#[derive(Clone, Debug)]
pub struct Clients {
    /// Tables.
    pub dynamodb: aws_sdk_dynamodb::Client,
    /// Queues.
    pub sqs: aws_sdk_sqs::Client,
    /// The event bus.
    pub eventbridge: aws_sdk_eventbridge::Client,
    /// What they have in common, for a client that one function alone needs.
    pub sdk: SdkConfig,
}

impl Clients {
    /// Clients as the environment says: credentials, region, and `AWS_ENDPOINT_URL` for an emulator.
    pub async fn from_env() -> Self {
        let config = aws_config::defaults(BehaviorVersion::latest())
            .http_client(http_client())
            .retry_config(RetryConfig::standard().with_max_attempts(ATTEMPTS))
            .timeout_config(timeouts())
            .load()
            .await;
        Self::new(&config)
    }

    /// Clients of the endpoints embedded in another process of this machine, at `url`; nobody looks at signatures there.
    #[must_use]
    pub fn unsigned(url: &str) -> Self {
        Self::without_signatures(http_client(), url)
    }

    /// Clients of endpoints embedded in this process: `http` answers the calls. Nobody looks at signatures there, so none
    /// are made, which would be a tenth of the time of a call.
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
            sqs: aws_sdk_sqs::Client::from_conf(queues(&config).allow_no_auth().build()),
            eventbridge: aws_sdk_eventbridge::Client::from_conf(
                aws_sdk_eventbridge::config::Builder::from(&config).allow_no_auth().build(),
            ),
            sdk: config,
        }
    }

    fn new(config: &SdkConfig) -> Self {
        Self {
            dynamodb: aws_sdk_dynamodb::Client::new(config),
            sqs: aws_sdk_sqs::Client::from_conf(queues(config).build()),
            eventbridge: aws_sdk_eventbridge::Client::new(config),
            sdk: config.clone(),
        }
    }
}

/// One for all three services: each HTTP client of its own would read the machine's root certificates once more, which is a
/// good part of a cold start.
pub(crate) fn http_client() -> SharedHttpClient {
    aws_smithy_http_client::Builder::new()
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::AwsLc))
        .build_https()
}

fn queues(config: &SdkConfig) -> aws_sdk_sqs::config::Builder {
    // A long poll of 20 s must outlive its answer.
    let patient = timeouts()
        .to_builder()
        .operation_attempt_timeout(Duration::from_secs(25))
        .operation_timeout(Duration::from_secs(30))
        .build();
    aws_sdk_sqs::config::Builder::from(config)
        .timeout_config(patient)
        // A long poll is silent for as long as nothing arrives: that is no stalled stream.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
}

fn timeouts() -> TimeoutConfig {
    TimeoutConfig::builder()
        .connect_timeout(CONNECT_TIMEOUT)
        .operation_attempt_timeout(ATTEMPT_TIMEOUT)
        .operation_timeout(CALL_TIMEOUT)
        .build()
}
