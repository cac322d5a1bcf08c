//! Calls of a deployment whose callers IAM checks: credentials, signatures (SigV4), and the URL of a stack.
//!
//! Credentials come from where the AWS SDK finds them. What takes more than that, such as a sign-in with SSO or a process, is
//! left to the AWS CLI, which such a person has: its clients in this program would lengthen the build of the first command.

use crate::call::{Error, cause, http};
use aws_config::profile::ProfileFileCredentialsProvider;
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, Region};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{SignableBody, SignableRequest, SigningSettings, sign};
use aws_sigv4::sign::v4;
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimeParser;
use reqwest::header::{DATE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Method, Request, Url};
use serde::Deserialize;
use serde_json::Value;
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;

/// Longest wait for CloudFormation.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Credentials are read again this long before they expire, or after this time if they do not say when.
const FRESH: Duration = Duration::from_secs(300);
const NONE: &str = "there are none in environment variables, in the default profile or from a role of this machine";
/// AWS refuses a signature whose time is this far off.
const MOST_APART_S: i64 = 300;

/// Signs calls for one Region.
pub struct Signer {
    region: String,
    profile: Option<String>,
    provider: Option<SharedCredentialsProvider>,
    kept: Mutex<Option<(Credentials, SystemTime)>>,
}

/// What `aws configure export-credentials` prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Exported {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<Timestamp>,
}

impl Signer {
    /// A signer with the credentials of a profile, or those that the environment has, for `region` or the configured one.
    ///
    /// # Errors
    /// No Region is configured.
    pub async fn new(profile: Option<String>, region: Option<String>) -> Result<Self, Error> {
        let loader = aws_config::defaults(BehaviorVersion::latest());
        let loader = profile.iter().fold(loader, |loader, name| loader.profile_name(name));
        let sdk = loader.load().await;
        let region = region.or_else(|| sdk.region().map(|region| region.as_ref().to_owned()));
        let region =
            region.ok_or_else(|| wrong("there is no AWS Region: set AWS_REGION, or `region` in the profile".into()))?;
        let provider = match &profile {
            None => sdk.credentials_provider(),
            // A profile that somebody names counts before variables, as for the AWS CLI.
            Some(name) => {
                let config = ProviderConfig::without_region().with_region(Some(Region::new(region.clone())));
                let provider = ProfileFileCredentialsProvider::builder().configure(&config).profile_name(name).build();
                Some(SharedCredentialsProvider::new(provider))
            }
        };
        Ok(Self { region, profile, provider, kept: Mutex::default() })
    }

    /// Signs a request to `service`.
    ///
    /// # Errors
    /// There are no credentials.
    pub async fn sign(&self, request: &mut Request, service: &str) -> Result<(), Error> {
        let identity = self.credentials().await?.into();
        // A space may be written in two ways, and not everybody reads the shorter one as a space.
        if let Some(query) =
            request.url().query().filter(|query| query.contains('+')).map(|query| query.replace('+', "%20"))
        {
            request.url_mut().set_query(Some(&query));
        }
        let params = v4::SigningParams::builder()
            .identity(&identity)
            .region(&self.region)
            .name(service)
            .time(SystemTime::now())
            .settings(SigningSettings::default())
            .build()
            .expect("everything that a signature needs is set")
            .into();
        let headers = request.headers().iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
        let body = SignableBody::Bytes(request.body().and_then(reqwest::Body::as_bytes).unwrap_or_default());
        let signed = SignableRequest::new(request.method().as_str(), request.url().as_str(), headers, body);
        let signed = signed.and_then(|request| sign(request, &params));
        let (instructions, _) = signed.map_err(|e| wrong(format!("the call cannot be signed: {e}")))?.into_parts();
        for (name, value) in instructions.headers() {
            let name = HeaderName::from_bytes(name.as_bytes()).expect("a header's name");
            let mut value = HeaderValue::from_str(value)
                .map_err(|_| wrong("the AWS credentials contain characters that no header may have".into()))?;
            value.set_sensitive(true);
            request.headers_mut().insert(name, value);
        }
        Ok(())
    }

    async fn credentials(&self) -> Result<Credentials, Error> {
        let mut kept = self.kept.lock().await;
        if let Some((credentials, until)) = &*kept
            && SystemTime::now() < *until
        {
            return Ok(credentials.clone());
        }
        let found = match &self.provider {
            Some(provider) => provider.provide_credentials().await.map_err(|e| match (&e, &self.profile) {
                // It lists where it looked, over several lines.
                (CredentialsError::CredentialsNotLoaded(_), None) => NONE.to_owned(),
                (CredentialsError::CredentialsNotLoaded(_), Some(name)) => format!("profile `{name}` has none"),
                _ => cause(&e).replace('\n', "; "),
            }),
            None => Err(NONE.to_owned()),
        };
        let credentials = match found {
            Ok(credentials) => credentials,
            Err(why) => self.exported().await.map_err(|more| {
                wrong(format!(
                    "no AWS credentials: {why}{more}; sign in, for example with `aws sso login`, name a profile with --profile, or \
                     set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
                ))
            })?,
        };
        let now = SystemTime::now();
        if credentials.expiry().is_some_and(|end| end <= now) {
            return Err(expired());
        }
        let until = credentials.expiry().map_or(now + FRESH, |end| end - FRESH);
        *kept = Some((credentials.clone(), until));
        Ok(credentials)
    }

    /// The credentials that the AWS CLI finds, which also knows SSO and processes.
    async fn exported(&self) -> Result<Credentials, String> {
        let mut command = std::process::Command::new("aws");
        command.args(["configure", "export-credentials", "--format", "process"]);
        command.args(self.profile.iter().flat_map(|name| ["--profile", name]));
        let output = match tokio::task::spawn_blocking(move || command.output()).await {
            Ok(Ok(output)) => output,
            Ok(Err(_)) | Err(_) => return Err(String::new()),
        };
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let line = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("it failed").trim();
            return Err(format!("; the AWS CLI says: {line}"));
        }
        let Exported { access_key_id, secret_access_key, session_token, expiration } =
            serde_json::from_slice(&output.stdout).map_err(|_| "; the AWS CLI's answer cannot be read".to_owned())?;
        let expiry = expiration.map(SystemTime::from);
        Ok(Credentials::new(access_key_id, secret_access_key, session_token, expiry, "AWS CLI"))
    }

    /// The API of a stack.
    ///
    /// # Errors
    /// CloudFormation does not answer or refuses, or the stack has no API.
    pub async fn url_of(&self, stack: &str) -> Result<String, Error> {
        let endpoint = endpoint(&self.region);
        let away = |error: reqwest::Error| Error::Aws {
            why: format!(
                "no answer from CloudFormation at {endpoint} ({}); check the Region and the network",
                cause(&error)
            ),
            is_passing: true,
        };
        let http = http().timeout(TIMEOUT).build().map_err(away)?;
        let fields = [("Action", "DescribeStacks"), ("Version", "2010-05-15"), ("StackName", stack)];
        let body = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let url: Url =
            endpoint.parse().map_err(|e| wrong(format!("{endpoint} is not a URL: {e}; correct AWS_ENDPOINT_URL")))?;
        let request = http.request(Method::POST, url).header("content-type", "application/x-www-form-urlencoded");
        let mut request = request.body(body).build().map_err(away)?;
        self.sign(&mut request, "cloudformation").await?;
        let answer = http.execute(request).await.map_err(away)?;
        let (status, headers) = (answer.status(), answer.headers().clone());
        let text = answer.text().await.map_err(away)?;
        if !status.is_success() {
            let said = element(&text, "Message").unwrap_or_else(|| status.to_string());
            return Err(match element(&text, "Code").unwrap_or_default().as_str() {
                "ValidationError" => wrong(format!(
                    "there is no stack `{stack}` in {}: check its name, AWS_REGION and the profile (CloudFormation says: {said})",
                    self.region
                )),
                "AccessDenied" | "AccessDeniedException" => {
                    wrong(format!("{said}; allow it, or name the URL (the stack's output ApiUrl) with --url"))
                }
                code => refused(code, &said, &headers, status.is_server_error()),
            });
        }
        let outputs = text.split("<member>").filter(|part| element(part, "OutputKey").as_deref() == Some("ApiUrl"));
        let mut urls = outputs.filter_map(|part| element(part, "OutputValue"));
        urls.next().ok_or_else(|| {
            wrong(format!("stack `{stack}` has no output ApiUrl: name the stack that template.yaml made, and wait until it is complete"))
        })
    }
}

fn wrong(why: String) -> Error {
    Error::Aws { why, is_passing: false }
}

fn expired() -> Error {
    wrong("the AWS credentials have expired: sign in again, for example with `aws sso login`".into())
}

/// The Region of an API that has API Gateway's own name.
pub fn region_of(url: &str) -> Option<String> {
    let url = Url::parse(url).ok()?;
    let (_, rest) = url.host_str()?.split_once(".execute-api.")?;
    let (region, domain) = rest.split_once('.')?;
    domain.starts_with("amazonaws.").then(|| region.to_owned())
}

/// Where CloudFormation is.
fn endpoint(region: &str) -> String {
    let own = ["AWS_ENDPOINT_URL_CLOUDFORMATION", "AWS_ENDPOINT_URL"].map(std::env::var);
    let own = own.into_iter().flatten().find(|url| !url.is_empty());
    let domain = match region.split('-').next() {
        Some("cn") => "amazonaws.com.cn",
        Some("eusc") => "amazonaws.eu",
        _ => "amazonaws.com",
    };
    own.unwrap_or_else(|| format!("https://cloudformation.{region}.{domain}"))
}

/// The text of the first element with this name, in an answer that AWS wrote.
fn element(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("<{name}>"))?;
    let (value, _) = rest.split_once(&format!("</{name}>"))?;
    let entities = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&#39;", "'"), ("&amp;", "&")];
    Some(entities.iter().fold(value.trim().to_owned(), |text, (entity, c)| text.replace(entity, c)))
}

/// The refusal of credentials or of a signature.
fn refused(code: &str, said: &str, headers: &HeaderMap, is_passing: bool) -> Error {
    if code.starts_with("ExpiredToken") || said.contains("token included in the request is expired") {
        return expired();
    }
    let clock = clock(headers, Timestamp::now());
    let hint = match &clock {
        Some(clock) => clock.as_str(),
        None if code == "SignatureDoesNotMatch" => "check the secret key",
        None if is_passing => "try again",
        None => "check the credentials with `aws sts get-caller-identity`",
    };
    Error::Aws { why: format!("AWS refuses the call: {code}: {said}; {hint}"), is_passing }
}

/// The refusal of a signed call by API Gateway, which does not say why.
pub fn forbidden(url: &str, headers: &HeaderMap, text: &str) -> Error {
    let body: Value = serde_json::from_str(text).unwrap_or_default();
    let said = body["message"].as_str().unwrap_or("Forbidden");
    if said.contains("expired") && said.contains("token") {
        return expired();
    }
    let hint = clock(headers, Timestamp::now()).unwrap_or_else(|| {
        "the caller needs execute-api:Invoke on this route (docs/deploy.md, Who may call), and credentials that have not expired; \
         `aws sts get-caller-identity` shows who calls"
            .into()
    });
    wrong(format!("403 {url} refuses the signed call: {said}; {hint}"))
}

/// That this machine's clock is too far off for a signature.
fn clock(headers: &HeaderMap, now: Timestamp) -> Option<String> {
    let theirs = DateTimeParser::new().parse_timestamp(headers.get(DATE)?.to_str().ok()?).ok()?;
    let apart = now.duration_since(theirs).as_secs();
    let direction = if apart > 0 { "ahead" } else { "behind" };
    let apart = apart.abs();
    (apart > MOST_APART_S).then(|| format!("the clock of this machine is {apart} s {direction}: set it"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_api_of_the_gateway_tells_its_region() {
        for (url, region) in [
            ("https://abc.execute-api.eu-west-1.amazonaws.com", Some("eu-west-1")),
            ("https://abc.execute-api.cn-north-1.amazonaws.com.cn/", Some("cn-north-1")),
            ("https://abc.execute-api.eu-west-1.evil.example", None),
            ("https://shop.example", None),
            ("http://127.0.0.1:8080", None),
        ] {
            assert_eq!(region_of(url).as_deref(), region, "{url}");
        }
    }

    #[test]
    fn a_clock_that_is_off_is_named() {
        let headers: HeaderMap = [(DATE, "Sat, 21 Nov 2026 12:00:00 GMT".parse().unwrap())].into_iter().collect();
        let at = |time: &str| clock(&headers, time.parse().unwrap());
        assert_eq!(at("2026-11-21T12:04:00Z"), None);
        assert!(at("2026-11-21T12:10:00Z").unwrap().contains("600 s ahead"));
        assert!(at("2026-11-21T11:50:00Z").unwrap().contains("600 s behind"));
    }

    #[test]
    fn elements_are_read_as_text() {
        assert_eq!(element("<A><Key>a &amp;lt; b</Key></A>", "Key").as_deref(), Some("a &lt; b"));
        assert_eq!(element("<Key>a", "Key"), None);
    }
}
