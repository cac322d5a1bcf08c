//! One request over the AWS SDK's HTTP client, so that no function has a second one.

use crate::telemetry::Chain;
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_runtime::client::orchestrator::operation::Operation;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::interceptors::context::{Error as AnyError, Output};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse, OrchestratorError};
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_runtime_api::client::ser_de::DeserializeResponse;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::byte_stream::ByteStream;
use aws_smithy_types::config_bag::ConfigBag;
use aws_smithy_types::timeout::TimeoutConfig;
use http::{Request, Response};
use std::convert::Infallible;
use std::error::Error;

/// Sends a request once and reads an answer of at most `most` bytes. The caller bounds the wait.
///
/// # Errors
/// Why there is no answer, in words that contain nothing from the other side.
pub async fn send(
    http: &SharedHttpClient,
    request: Request<Vec<u8>>,
    most: usize,
) -> Result<Response<Vec<u8>>, String> {
    let (mut parts, body) = request.into_parts();
    let (Some(scheme), Some(authority)) = (parts.uri.scheme_str(), parts.uri.authority()) else {
        return Err("no URL".into());
    };
    let endpoint = format!("{scheme}://{authority}");
    let path = parts.uri.path_and_query().map_or("/", |path| path.as_str());
    parts.uri = path.parse().map_err(|_| "no URL".to_owned())?;
    let request = Request::from_parts(parts, SdkBody::from(body));
    let operation = Operation::builder()
        .service_name("web")
        .operation_name("send")
        .http_client(http.clone())
        .endpoint_url(&endpoint)
        .no_auth()
        .no_retry()
        .sleep_impl(TokioSleep::new())
        .timeout_config(TimeoutConfig::disabled())
        .serializer(|request: Request<SdkBody>| Ok(HttpRequest::try_from(request)?))
        .deserializer_impl::<Answer, Infallible>(Unread)
        .build();
    let Answer(status, body) = operation.invoke(request).await.map_err(|error| {
        tracing::debug!(error = %Chain(&error), "an endpoint could not be reached");
        kind(&error)
    })?;
    let body = read(body, most).await?;
    Response::builder().status(status).body(body).map_err(|e| e.to_string())
}

/// The status of an answer and its body, still to be read.
#[derive(Debug)]
struct Answer(u16, SdkBody);

/// Leaves the body to [`read`], or all of it would be in memory before its length is known.
#[derive(Debug)]
struct Unread;

impl DeserializeResponse for Unread {
    fn deserialize_streaming_with_config(
        &self,
        answer: &mut HttpResponse,
        _: &ConfigBag,
    ) -> Option<Result<Output, OrchestratorError<AnyError>>> {
        Some(Ok(Output::erase(Answer(answer.status().as_u16(), answer.take_body()))))
    }

    fn deserialize_nonstreaming_with_config(
        &self,
        answer: &HttpResponse,
        _: &ConfigBag,
    ) -> Result<Output, OrchestratorError<AnyError>> {
        let body = answer.body().bytes().unwrap_or_default().to_vec();
        Ok(Output::erase(Answer(answer.status().as_u16(), SdkBody::from(body))))
    }
}

async fn read(body: SdkBody, most: usize) -> Result<Vec<u8>, String> {
    let mut body = ByteStream::new(body);
    let mut all = Vec::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|error| {
            tracing::debug!(error = %Chain(&error), "an answer was cut off");
            "its answer was cut off".to_owned()
        })?;
        if all.len() + chunk.len() > most {
            return Err(format!("its answer is longer than {most} bytes"));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all)
}

/// The kind of a connector's error, and of the I/O error below it: `io error: connection refused`.
fn kind<R>(error: &SdkError<Infallible, R>) -> String {
    let SdkError::DispatchFailure(failure) = error else { return "not sent".into() };
    let Some(error) = failure.as_connector_error() else { return "other".into() };
    let io = std::iter::successors(error.source(), |&error| error.source())
        .find_map(|error| error.downcast_ref::<std::io::Error>());
    match io {
        Some(io) => format!("{error}: {}", io.kind()),
        None => error.to_string(),
    }
}
