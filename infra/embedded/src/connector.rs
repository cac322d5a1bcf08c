//! The connector that is used instead of one with sockets, by the AWS SDKs or without them.

use std::sync::Arc;

use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_runtime_api::http::StatusCode;
use aws_smithy_types::body::SdkBody;

use crate::answer::Answer;
use crate::dispatch::Caller;
use crate::fault::Call;
use crate::service::target;
use crate::{Endpoints, Inner};

/// Answers requests in the caller's own task. Connection settings have no effect, because there is no connection; a
/// caller limits the time of a call itself, as the SDK does.
impl HttpConnector for Endpoints {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let inner = Arc::clone(&self.0);
        HttpConnectorFuture::new(async move { answer(&inner, &request).await })
    }
}

async fn answer(inner: &Inner, request: &HttpRequest) -> Result<HttpResponse, ConnectorError> {
    let header = request.headers().get("x-amz-target");
    let Some((service, operation)) = target(header) else {
        return Err(ConnectorError::user(format!("not a request to SQS, DynamoDB or EventBridge: {header:?}").into()));
    };
    let Some(body) = request.body().bytes() else {
        return Err(ConnectorError::user("the request's body is a stream".into()));
    };
    let call = Call { service, operation, body };
    let caller = Caller { endpoint: endpoint(request.uri()), consumer: None };
    let Answer { status, body, query_error } =
        inner.dispatch(call, caller).await.map_err(|lost| ConnectorError::io(lost.into()))?;
    let status = StatusCode::try_from(status).map_err(|error| ConnectorError::other(error.into(), None))?;
    let mut response = HttpResponse::new(status, SdkBody::from(body));
    response.headers_mut().insert("content-type", service.content_type());
    if let Some(code) = query_error {
        response.headers_mut().insert("x-amzn-query-error", code);
    }
    Ok(response)
}

/// Scheme and authority of a URI.
fn endpoint(uri: &str) -> &str {
    let after_scheme = uri.find("://").map_or(0, |at| at + 3);
    match uri[after_scheme..].find('/') {
        Some(path) => &uri[..after_scheme + path],
        None => uri,
    }
}
