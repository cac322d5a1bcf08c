//! Signed calls to AWS that workflow files name. How an action is called is in the table of [`shared::workflow::aws`].

use crate::agents::http::{envelope, header, is_json, judge, kept};
use crate::mask::Mask;
use crate::remote::{builder, bytes, output, refused, retry_after, too_long, traced, unanswered, unready};
use crate::{AgentError, Call};
use aws_config::SdkConfig;
use aws_credential_types::Credentials;
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use aws_sigv4::http_request::{
    PayloadChecksumKind, PercentEncodingMode, SignableBody, SignableRequest, SigningSettings, UriPathNormalizationMode,
    sign,
};
use aws_sigv4::sign::v4;
use futures::future::BoxFuture;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde_json::{Map, Value, json};
use shared::history::shorten;
use shared::message::{MAX_ANSWER, Request};
use shared::workflow::aws::{Aws as Action, Protocol, S3_HEADERS, Service};
use shared::workflow::http::{Meaning, encoded};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};
use tokio::sync::Mutex;
use url::form_urlencoded::Serializer;

/// Longest wait for credentials. In a function they are in the environment.
const CREDENTIALS_WITHIN: Duration = Duration::from_secs(3);
/// Credentials are replaced this long before they expire.
const FRESH_FOR: Duration = Duration::from_secs(60);
/// Longest message of an error that is kept, in bytes.
const MAX_MESSAGE: usize = 400;
/// Errors of signatures. Some services quote in them the request as they would sign it, with the session token.
const SIGNATURE_ERRORS: [&str; 6] = [
    "IncompleteSignature",
    "IncompleteSignatureException",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "MissingAuthenticationTokenException",
    "SignatureDoesNotMatch",
];

/// A call of a function on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Invocation<'a> {
    /// The function's own name.
    pub function: &'a str,
    /// Its event, as JSON.
    pub payload: &'a str,
    /// The request that it comes from.
    pub request: &'a Request,
    /// Time until an answer would be too late.
    pub time_left: Duration,
}

/// What a function on this machine answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invoked {
    /// Its result or its error, as JSON.
    pub payload: Vec<u8>,
    /// Whether it failed.
    pub failed: bool,
}

/// Programs that replace Lambda functions on this machine.
pub trait Functions: Send + Sync {
    /// Calls a function; `None` if none replaces it.
    fn invoke<'a>(&'a self, call: Invocation<'a>) -> Option<BoxFuture<'a, Result<Invoked, AgentError>>>;
}

/// Makes signed calls.
#[derive(Default)]
pub struct Aws {
    cloud: Option<Cloud>,
    here: Option<Arc<dyn Functions>>,
    /// The system's own queues, by the beginning of their names, and its own bus.
    own: Option<(String, String)>,
    /// Not the client of URL steps: an endpoint, named only by the deployment, may be this machine's emulator.
    client: OnceLock<Client>,
}

/// AWS, or an emulator.
struct Cloud {
    provider: SharedCredentialsProvider,
    region: String,
    endpoint: Option<String>,
    known: Mutex<Option<Credentials>>,
}

/// A call that is not signed yet.
#[derive(Debug, PartialEq, Eq)]
struct Unsigned {
    method: &'static str,
    /// With the query.
    path: String,
    headers: Vec<(&'static str, String)>,
    body: String,
}

impl Aws {
    /// Calls of AWS with the credentials, the Region and the endpoint of `sdk`. Without credentials there are none.
    #[must_use]
    pub fn new(sdk: &SdkConfig) -> Self {
        let cloud = sdk.credentials_provider().map(|provider| Cloud {
            provider,
            region: sdk.region().map_or("us-east-1", |region| region.as_ref()).to_owned(),
            endpoint: sdk.endpoint_url().map(|url| url.trim_end_matches('/').to_owned()),
            known: Mutex::default(),
        });
        Self { cloud, ..Self::default() }
    }

    /// Replaces functions by programs of this machine.
    #[must_use]
    pub fn with_functions(self, here: Arc<dyn Functions>) -> Self {
        Self { here: Some(here), ..self }
    }

    /// Refuses calls of queues whose URLs begin with `queues`, and of the bus `bus`. The agent's role may use these for
    /// its own work, but a step must not forge replies or alerts.
    #[must_use]
    pub fn apart_from(self, queues: &str, bus: &str) -> Self {
        let queues = queues.rsplit('/').next().unwrap_or_default().to_owned();
        Self { own: Some((queues, bus.to_owned())), ..self }
    }

    /// Whether a call is of the system's own queues or bus.
    fn is_own(&self, service: &Service, input: &Value) -> bool {
        let Some((queues, bus)) = &self.own else { return false };
        let last = |value: &Value, separator: char| {
            let text = value.as_str().unwrap_or_default().trim_end_matches(separator);
            text.rsplit(separator).next().unwrap_or_default().to_owned()
        };
        match service.name {
            "sqs" => {
                let name = last(&input["QueueUrl"], '/');
                name.starts_with(queues.as_str()) || name.contains(['%', '?', '#'])
            }
            "events" => input["Entries"].as_array().into_iter().flatten().any(|entry| {
                let name = last(&entry["EventBusName"], '/');
                name == *bus || name.is_empty() && bus == "default"
            }),
            _ => false,
        }
    }

    /// Whether there is an AWS, or an emulator, to call.
    #[must_use]
    pub fn is_reachable(&self) -> bool {
        self.cloud.is_some()
    }

    pub(crate) async fn call(
        &self,
        action: &Action,
        Call { request, time_left }: Call<'_>,
    ) -> Result<Value, AgentError> {
        let Some((service, name)) = action.service() else {
            return Err(unready(format!("this version of the agent does not know `{}`; update it", action.action)));
        };
        let event = (action.envelope).then(|| {
            let mut event = envelope(request);
            event["idempotency_key"] = json!(request.idempotency_key);
            event["complete_by"] = json!(request.complete_by);
            event
        });
        let input = event.as_ref().unwrap_or(&request.input);
        if let (Some(function), Some(here)) = (action.function_name(), &self.here) {
            let payload = input.to_string();
            if let Some(answer) = here.invoke(Invocation { function, payload: &payload, request, time_left }) {
                let Invoked { payload, failed } = answer.await?;
                return match failed {
                    true => function_error(action, request, json!({}), &payload),
                    false => result(action, request, 200, json!({}), &payload),
                };
            }
        }
        let Some(cloud) = &self.cloud else { return Err(unready(absent(action))) };
        if self.is_own(service, input) {
            let error = format!("`{}` would use a queue or the bus of the system itself; use your own", action.action);
            return Err(refused(error));
        }
        let unsigned = match &action.function {
            Some(function) => invocation(service, name, function, input, request),
            None => unsigned(service, name, input),
        };
        let unsigned = unsigned.map_err(|why| refused(format!("`{}`: {why}", action.action)))?;
        let region = action.region().unwrap_or(&cloud.region);
        let url = match &cloud.endpoint {
            Some(endpoint) => format!("{endpoint}{}", unsigned.path),
            None => format!("https://{}.{region}.{}{}", service.host, suffix(region), unsigned.path),
        };
        let credentials = cloud.credentials().await?;
        let mut headers = HeaderMap::new();
        for (header, value) in signature(service, &unsigned, &url, region, credentials)?
            .into_iter()
            .chain(unsigned.headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())))
        {
            let good = (HeaderName::from_bytes(header.as_bytes()), HeaderValue::from_str(&value));
            let (Ok(header), Ok(mut value)) = good else {
                let why = format!(
                    "`{}`: the value of header `{header}` has characters that a header cannot hold",
                    action.action
                );
                return Err(refused(why));
            };
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let url = Url::parse(&url).map_err(|e| unready(format!("the endpoint of AWS is not a URL: {e}")))?;
        let method = Method::from_bytes(unsigned.method.as_bytes()).expect("the table has methods of HTTP");
        let client = self.client.get_or_init(|| builder().build().expect("the built-in TLS configuration is valid"));
        let asked = client.request(method, url).headers(headers).body(unsigned.body).timeout(time_left);
        let answer = asked.send().await.map_err(unanswered)?;
        traced(&answer);
        let (status, headers) = (answer.status(), answer.headers().clone());
        let body = bytes(answer).await?;
        let is_expired = |body: &Vec<u8>| Said::of(&headers, body, &Mask::default()).code.starts_with("ExpiredToken");
        if !status.is_success() && body.as_ref().is_some_and(is_expired) {
            *cloud.known.lock().await = None;
        }
        understood(action, request, status, &headers, body)
    }
}

/// What an answer means to its step: the output, or how the call failed.
pub(crate) async fn understand(action: &Action, request: &Request, answer: Response) -> Result<Value, AgentError> {
    let (status, headers) = (answer.status(), answer.headers().clone());
    understood(action, request, status, &headers, bytes(answer).await?)
}

fn understood(
    action: &Action,
    request: &Request,
    status: StatusCode,
    headers: &HeaderMap,
    body: Option<Vec<u8>>,
) -> Result<Value, AgentError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_readable = is_json(kind) || kind.starts_with("application/x-amz-json");
    let readable = |body: Vec<u8>| if is_readable { body } else { Vec::new() };
    let mask = mask(request);
    if !status.is_success() {
        let body = body.unwrap_or_default();
        let said = Said::of(headers, &body, &mask);
        return match action.meaning(status.as_u16(), &said.code) {
            Meaning::Done => done(action, request, status.as_u16(), header(headers), &readable(body)),
            Meaning::Transient | Meaning::Permanent => Err(said.meaning(action, status, headers)),
        };
    }
    let body = body.ok_or_else(too_long)?;
    if headers.contains_key("x-amz-function-error") {
        return function_error(action, request, header(headers), &body);
    }
    let body = readable(body);
    if let Some(error) = failed_parts(action, &body, &mask) {
        let (said, status, retry_after) = (None, Some(status.as_u16()), None);
        return Err(AgentError::Transient { error, said, status, retry_after, is_unwell: false });
    }
    result(action, request, status.as_u16(), header(headers), &body)
}

impl Cloud {
    async fn credentials(&self) -> Result<Credentials, AgentError> {
        let mut known = self.known.lock().await;
        let is_fresh = |all: &Credentials| all.expiry().is_none_or(|end| end > SystemTime::now() + FRESH_FOR);
        if let Some(fresh) = known.as_ref().filter(|all| is_fresh(all)) {
            return Ok(fresh.clone());
        }
        let read = tokio::time::timeout(CREDENTIALS_WITHIN, self.provider.provide_credentials()).await;
        match read {
            Ok(Ok(new)) => Ok(known.insert(new).clone()),
            Ok(Err(e)) => Err(unready(format!("no credentials for AWS: {}", stepwarden_aws::telemetry::Chain(&e)))),
            Err(_) => Err(unready(format!("no credentials for AWS within {} s", CREDENTIALS_WITHIN.as_secs()))),
        }
    }
}

/// Why nothing can be called on this machine, and what to do about it.
#[must_use]
pub fn absent(action: &Action) -> String {
    match action.function_name() {
        Some(name) => format!(
            "Lambda function `{name}` is not on this machine; add --lambda {name}=URL or --lambda '{name}=COMMAND', or set \
             AWS_ENDPOINT_URL to an emulator"
        ),
        None => {
            format!("`{}` needs AWS, and this machine has none; set AWS_ENDPOINT_URL to an emulator", action.action)
        }
    }
}

/// The domain of the endpoints of a Region.
fn suffix(region: &str) -> &'static str {
    match region.split('-').next() {
        Some("cn") => "amazonaws.com.cn",
        Some("eusc") => "amazonaws.eu",
        Some(_) | None => "amazonaws.com",
    }
}

/// The call of a function. Its context has what a call over HTTP has in headers.
fn invocation(
    service: &Service,
    action: &str,
    function: &str,
    event: &Value,
    request: &Request,
) -> Result<Unsigned, String> {
    let (method, path) = service.route(action).ok_or("it has no route")?;
    let custom = json!({"idempotency_key": request.idempotency_key, "complete_by": request.complete_by});
    let context = aws_smithy_types::base64::encode(json!({"custom": custom}).to_string());
    Ok(Unsigned {
        method,
        path: path.replace("{FunctionName}", &encoded(function)),
        headers: vec![("content-type", "application/json".into()), ("x-amz-client-context", context)],
        body: event.to_string(),
    })
}

/// The call of another action, by its service's protocol.
fn unsigned(service: &Service, action: &str, input: &Value) -> Result<Unsigned, String> {
    let table = input.as_object().ok_or("its input must be a table; resubmit the step with a table")?;
    let post = |headers, body| Unsigned { method: "POST", path: "/".into(), headers, body };
    match service.protocol {
        Protocol::Json(version, target) => {
            let kind = ("content-type", format!("application/x-amz-json-{version}"));
            Ok(post(vec![kind, ("x-amz-target", format!("{target}.{action}"))], input.to_string()))
        }
        Protocol::Query(version) => {
            let kind = ("content-type", "application/x-www-form-urlencoded; charset=utf-8".into());
            let mut pairs = Serializer::new(String::new());
            pairs.append_pair("Action", action).append_pair("Version", version);
            table.iter().for_each(|(name, value)| add(name, value, &mut pairs));
            Ok(post(vec![kind], pairs.finish()))
        }
        Protocol::Rest => {
            let (method, path, rest) = route(service, action, table)?;
            if matches!(method, "GET" | "DELETE") {
                return Ok(Unsigned { method, path: path + &query(&rest)?, headers: Vec::new(), body: String::new() });
            }
            let headers = vec![("content-type", "application/json".into())];
            Ok(Unsigned { method, path, headers, body: Value::Object(rest).to_string() })
        }
        Protocol::S3 => {
            let (method, path, mut rest) = route(service, action, table)?;
            let content = if method == "PUT" { rest.remove("Body") } else { None };
            let mut headers = Vec::new();
            let (kind, body) = match content {
                None => (None, String::new()),
                Some(Value::String(text)) => (Some("text/plain; charset=utf-8"), text),
                Some(other) => (Some("application/json"), other.to_string()),
            };
            if let Some(kind) = kind.filter(|_| !rest.contains_key("ContentType")) {
                headers.push(("content-type", kind.to_owned()));
            }
            for (name, value) in &rest {
                let known = S3_HEADERS.iter().find(|(known, _)| known == name);
                let (_, header) =
                    known.ok_or_else(|| format!("it has no parameter `{name}`; remove it from `with`"))?;
                headers.push((header, text(name, value)?));
            }
            Ok(Unsigned { method, path, headers, body })
        }
    }
}

/// Method and path of a REST action, and the fields that are not in the path.
fn route(
    service: &Service,
    action: &str,
    table: &Map<String, Value>,
) -> Result<(&'static str, String, Map<String, Value>), String> {
    let (method, pattern) = service.route(action).ok_or("it has no route")?;
    let mut rest = table.clone();
    let mut path = String::new();
    for (n, part) in pattern.split(['{', '}']).enumerate() {
        if n % 2 == 0 {
            path.push_str(part);
            continue;
        }
        let value = rest.remove(part).ok_or_else(|| format!("`{part}` is missing in `with`"))?;
        let value = text(part, &value)?;
        let is_key = part == "Key" && service.protocol == Protocol::S3;
        let mut segments = if is_key { value.split('/').collect() } else { vec![value.as_str()] };
        // It would call another path.
        if value.is_empty() || segments.iter().any(|segment| matches!(*segment, "." | "..")) {
            return Err(format!(
                "`{part}` is empty, or has a segment `.` or `..`, so another path would be called; correct it in `with`"
            ));
        }
        if part == "Bucket"
            && !value.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.".contains(&b))
        {
            return Err(format!("`{part}` is not the name of a bucket"));
        }
        let encoded: Vec<String> = segments.drain(..).map(encoded).collect();
        path.push_str(&encoded.join("/"));
    }
    Ok((method, path, rest))
}

/// Fields as the query of a URL.
fn query(fields: &Map<String, Value>) -> Result<String, String> {
    let mut query = String::new();
    for (name, value) in fields {
        query.push(if query.is_empty() { '?' } else { '&' });
        // These APIs spell a parameter `groupName` if their reference lists `GroupName`.
        let spelled: String = name.chars().take(1).flat_map(char::to_lowercase).chain(name.chars().skip(1)).collect();
        query.push_str(&format!("{}={}", encoded(&spelled), encoded(&text(name, value)?)));
    }
    Ok(query)
}

/// A value that is part of a URL or a header.
fn text(name: &str, value: &Value) -> Result<String, String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null | Value::Array(_) | Value::Object(_) => {
            return Err(format!("`{name}` must be a string, a number, true or false"));
        }
    };
    if text.contains(char::is_control) {
        return Err(format!("`{name}` has control characters"));
    }
    Ok(text)
}

/// A field of the query protocol: `A.B` for a table, `A.member.1` for a list.
fn add(name: &str, value: &Value, pairs: &mut Serializer<'_, String>) {
    match value {
        Value::Null => {}
        Value::Bool(_) | Value::Number(_) => drop(pairs.append_pair(name, &value.to_string())),
        Value::String(text) => drop(pairs.append_pair(name, text)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(n, item)| add(&format!("{name}.member.{}", n + 1), item, pairs));
        }
        Value::Object(table) => table.iter().for_each(|(key, item)| add(&format!("{name}.{key}"), item, pairs)),
    }
}

/// The headers that sign a call. In a path of S3 nothing is encoded twice.
fn signature(
    service: &Service,
    call: &Unsigned,
    url: &str,
    region: &str,
    credentials: Credentials,
) -> Result<Vec<(String, String)>, AgentError> {
    let mut settings = SigningSettings::default();
    if service.protocol == Protocol::S3 {
        settings.percent_encoding_mode = PercentEncodingMode::Single;
        settings.uri_path_normalization_mode = UriPathNormalizationMode::Disabled;
        settings.payload_checksum_kind = PayloadChecksumKind::XAmzSha256;
    }
    let identity = credentials.into();
    let params = v4::SigningParams::builder()
        .identity(&identity)
        .region(region)
        .name(service.signed_as)
        .time(SystemTime::now())
        .settings(settings)
        .build()
        .expect("everything that a signature needs is set")
        .into();
    let headers = call.headers.iter().map(|(name, value)| (*name, value.as_str()));
    let body = SignableBody::Bytes(call.body.as_bytes());
    let signed = SignableRequest::new(call.method, url, headers, body).and_then(|request| sign(request, &params));
    // The error may quote the request.
    let signed = signed.map_err(|_| refused("the call cannot be signed".into()))?;
    let (instructions, _) = signed.into_parts();
    Ok(instructions.headers().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
}

/// What is kept of an answer that means done. A body that is no JSON is empty here.
fn result(action: &Action, request: &Request, status: u16, header: Value, body: &[u8]) -> Result<Value, AgentError> {
    let (mask, direction) = (mask(request), request.direction);
    judge(request, status, &header, body, &mask)?;
    match &action.keep {
        Some(keep) => kept(keep, status, header, body, direction, &mask),
        None if body.is_empty() => Ok(Value::Null),
        None => Ok(mask.value(output(body, "", direction, &mask)?)),
    }
}

/// What is kept of an error that means done. A file that does not read the answer gets none of the error.
fn done(action: &Action, request: &Request, status: u16, header: Value, body: &[u8]) -> Result<Value, AgentError> {
    let all = result(action, request, status, header, body)?;
    Ok(if action.keep.is_some() { all } else { Value::Null })
}

/// A function may return or print the address that its event has, and whoever knows the token in it may report.
fn mask(request: &Request) -> Mask {
    let token = request.callback.as_ref().and_then(|callback| callback.rsplit('/').next());
    Mask::new(token.map(str::to_owned))
}

/// That some of several things failed, if the answer says so.
fn failed_parts(action: &Action, body: &[u8], mask: &Mask) -> Option<String> {
    let field = action.field_of_failures()?;
    let answer: Value = serde_json::from_slice(body).ok()?;
    let value = answer.get(field)?;
    let is_none = match value {
        Value::Null => true,
        Value::Number(number) => number.as_u64() == Some(0),
        Value::Array(list) => list.is_empty(),
        Value::Object(table) => table.is_empty(),
        Value::Bool(_) | Value::String(_) => false,
    };
    let said = shorten(&mask.text(&value.to_string()), MAX_MESSAGE);
    (!is_none).then(|| format!("a part of the call failed: `{field}` is {said}"))
}

/// What it means that a function failed, by its error's type. A runtime that died names no type, or one of its own.
fn function_error(action: &Action, request: &Request, header: Value, payload: &[u8]) -> Result<Value, AgentError> {
    let fields: Value = serde_json::from_slice(payload).unwrap_or_default();
    let mask = mask(request);
    let field = |name: &str| fields.get(name).and_then(Value::as_str).map(|text| mask.text(text));
    let kind = shorten(field("errorType").as_deref().unwrap_or("Unknown"), MAX_MESSAGE / 4);
    let message = shorten(&field("errorMessage").unwrap_or_default(), MAX_MESSAGE);
    let error = format!("the function failed: {kind}");
    match action.meaning_of_function_error(&kind) {
        Meaning::Done => done(action, request, StatusCode::OK.as_u16(), header, payload),
        Meaning::Permanent => Err(AgentError::Refused {
            error: with_words(&error, &message),
            status: StatusCode::OK.as_u16(),
            answer: Some(json!({"errorType": kind, "errorMessage": message})),
        }),
        Meaning::Transient => Err(AgentError::Transient {
            error,
            said: Some(message).filter(|said| !said.is_empty()),
            status: Some(StatusCode::OK.as_u16()),
            retry_after: None,
            is_unwell: false,
        }),
    }
}

fn with_words(error: &str, words: &str) -> String {
    if words.is_empty() { error.to_owned() } else { format!("{error}: {words}") }
}

/// What AWS says of an error.
struct Said {
    /// Its name, without a namespace; may be empty.
    code: String,
    message: String,
    /// The body, if it is JSON.
    body: Value,
}

impl Said {
    fn of(headers: &HeaderMap, body: &[u8], mask: &Mask) -> Self {
        let json: Value = mask.value(serde_json::from_slice(body).unwrap_or_default());
        let field = |names: [&str; 3]| names.iter().find_map(|name| json.get(name)?.as_str()).map(str::to_owned);
        let text = mask.text(&String::from_utf8_lossy(body));
        let header = headers.get("x-amzn-errortype").and_then(|value| value.to_str().ok()).map(str::to_owned);
        let code = field(["__type", "code", "Code"]).or(header).or_else(|| element(&text, "Code"));
        let code = code.unwrap_or_default();
        let code = code.rsplit('#').next().unwrap_or_default().split(':').next().unwrap_or_default().trim();
        if SIGNATURE_ERRORS.contains(&code) {
            let message = "the signature is not accepted; check credentials, Region and clock".to_owned();
            return Self { code: code.to_owned(), message, body: Value::Null };
        }
        let message = field(["message", "Message", "errorMessage"]).or_else(|| element(&text, "Message"));
        let message = message.unwrap_or_default().replace(char::is_control, " ");
        Self { code: shorten(code, MAX_MESSAGE / 4), message: shorten(&message, MAX_MESSAGE), body: json }
    }

    fn meaning(self, action: &Action, status: StatusCode, headers: &HeaderMap) -> AgentError {
        let error = match self.code.as_str() {
            "" => status.to_string(),
            code => format!("{} {code}", status.as_u16()),
        };
        let meaning = match action.meaning(status.as_u16(), &self.code) {
            // What the file says comes first.
            Meaning::Permanent if self.is_conflict() && !action.permanent.contains(&self.code) => Meaning::Transient,
            other => other,
        };
        if meaning == Meaning::Permanent {
            let error = with_words(&error, &self.message);
            return AgentError::Refused { error, status: status.as_u16(), answer: Some(self.answer()) };
        }
        let is_unwell = action.is_unwell(status.as_u16(), &self.code);
        let said = Some(self.message).filter(|said| !said.is_empty());
        AgentError::Transient {
            error,
            said,
            status: Some(status.as_u16()),
            retry_after: retry_after(headers),
            is_unwell,
        }
    }

    /// Whether a transaction was cancelled only for conflicts and throttling.
    fn is_conflict(&self) -> bool {
        const PASSING: [&str; 4] = ["None", "TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"];
        let reasons = self.body.get("CancellationReasons").and_then(Value::as_array);
        self.code == "TransactionCanceledException"
            && reasons.is_some_and(|all| {
                all.iter().all(|one| one["Code"].as_str().is_some_and(|code| PASSING.contains(&code)))
            })
    }

    /// What `catch` sees: the body with the error's bare name as `__type`, or name and message alone.
    fn answer(self) -> Value {
        if let Value::Object(mut all) = self.body {
            all.insert("__type".into(), json!(self.code));
            let whole = Value::Object(all);
            let is_kept = shared::json::read_value(whole.to_string().as_bytes()).is_ok();
            if is_kept && whole.to_string().len() <= MAX_ANSWER {
                return whole;
            }
        }
        json!({"__type": self.code, "message": self.message})
    }
}

/// The text of the first element called `name`.
fn element(xml: &str, name: &str) -> Option<String> {
    let (_, rest) = xml.split_once(&format!("<{name}>"))?;
    let (text, _) = rest.split_once(&format!("</{name}>"))?;
    let plain = [("&lt;", "<"), ("&gt;", ">"), ("&quot;", "\""), ("&apos;", "'"), ("&amp;", "&")];
    Some(plain.iter().fold(text.trim().to_owned(), |text, (entity, sign)| text.replace(entity, sign)))
}
