//! OTLP over the HTTP client that the AWS SDK brings, so that no function carries a second one.

use crate::telemetry::Chain;
use async_trait::async_trait;
use aws_smithy_async::rt::sleep::TokioSleep;
use aws_smithy_runtime::client::orchestrator::operation::Operation;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse, OrchestratorError};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::timeout::TimeoutConfig;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use std::convert::Infallible;

/// Sends a request once. Whoever waits for it bounds the wait.
#[derive(Debug)]
pub(super) struct Transport(SharedHttpClient);

impl Transport {
    pub(super) fn new() -> Self {
        Self(crate::clients::http_client())
    }
}

#[async_trait]
impl HttpClient for Transport {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let (mut parts, body) = request.into_parts();
        let (Some(scheme), Some(authority)) = (parts.uri.scheme_str(), parts.uri.authority()) else {
            return Err(format!("`{}` is no URL; write http://HOST:PORT", parts.uri).into());
        };
        let endpoint = format!("{scheme}://{authority}");
        parts.uri = parts.uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
        let request = Request::from_parts(parts, SdkBody::from(body));
        let operation = Operation::builder()
            .service_name("otlp")
            .operation_name("export")
            .http_client(self.0.clone())
            .endpoint_url(&endpoint)
            .no_auth()
            .no_retry()
            .sleep_impl(TokioSleep::new())
            .timeout_config(TimeoutConfig::disabled())
            .serializer(|request: Request<SdkBody>| Ok(HttpRequest::try_from(request)?))
            .deserializer(|answer: &HttpResponse| {
                let body = answer.body().bytes().map(Bytes::copy_from_slice).unwrap_or_default();
                Ok::<_, OrchestratorError<Infallible>>((answer.status().as_u16(), body))
            })
            .build();
        let (status, body) = operation.invoke(request).await.inspect_err(|error| {
            // The exporter says only that it was the network.
            tracing::debug!(error = %Chain(error), "the endpoint for spans was not reached");
        })?;
        Ok(Response::builder().status(status).body(body)?)
    }
}
