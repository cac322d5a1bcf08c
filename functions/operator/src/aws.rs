//! Signed calls of services without an SDK client here, over the others' HTTP client.

use aws_credential_types::provider::ProvideCredentials;
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use std::time::{Duration, SystemTime};
use stepwarden_aws::{Clients, web};
use tokio::time::timeout;

/// Longest answer, in bytes.
pub(crate) const MOST: usize = 4 * 1024 * 1024;
/// One call.
const WITHIN: Duration = Duration::from_secs(5);

/// The name that AWS's hosts in a Region end with.
pub(crate) fn domain(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("cn") => "amazonaws.com.cn",
        Some("eusc") => "amazonaws.eu",
        _ => "amazonaws.com",
    }
}

/// The address of `service` in `region`, or of the configured endpoint, if any.
pub(crate) fn endpoint(clients: &Clients, service: &str, region: &str) -> String {
    let configured = clients.sdk.endpoint_url().map(|url| url.trim_end_matches('/').to_owned());
    configured.unwrap_or_else(|| format!("https://{service}.{region}.{}", domain(region)))
}

/// The body of an answer with a good status.
pub(crate) async fn call(clients: &Clients, request: http::Request<Vec<u8>>) -> Result<Vec<u8>, String> {
    let http = clients.sdk.http_client().ok_or("there is no HTTP client")?;
    let answer = timeout(WITHIN, web::send(&http, request, MOST)).await;
    let answer = answer.map_err(|_| format!("no answer within {} s", WITHIN.as_secs()))??;
    match answer.status() {
        status if status.is_success() => Ok(answer.into_body()),
        status => Err(format!("status {status}")),
    }
}

/// The request with a signature for `service`.
pub(crate) async fn signed(
    clients: &Clients,
    service: &str,
    region: &str,
    mut request: http::Request<Vec<u8>>,
) -> Result<http::Request<Vec<u8>>, String> {
    let provider = clients.sdk.credentials_provider().ok_or("there are no credentials")?;
    let identity = timeout(WITHIN, provider.provide_credentials()).await.map_err(|_| "no credentials in time")?;
    let identity = identity.map_err(|e| format!("no credentials: {e}"))?.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service)
        .time(SystemTime::now())
        .settings(SigningSettings::default())
        .build()
        .expect("everything that a signature needs is set")
        .into();
    let headers = request.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let body = SignableBody::Bytes(request.body());
    let signed = SignableRequest::new(request.method().as_str(), request.uri().to_string(), headers, body)
        .and_then(|request| sign(request, &params))
        .map_err(|e| format!("cannot be signed: {e}"))?;
    signed.into_parts().0.apply_to_request_http1x(&mut request);
    Ok(request)
}
