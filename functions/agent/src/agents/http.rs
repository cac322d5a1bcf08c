//! Makes the call that a step's workflow file describes: to a URL, or to AWS.

use crate::agents::Means;
use crate::aws::Aws;
use crate::mask::Mask;
use crate::remote::{builder, output, read, refused, traced, unanswered, unready, with_headers};
use crate::secrets::Secrets;
use crate::{Agent, AgentError, Call};
use futures::future::BoxFuture;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Method, RequestBuilder, Response, Url};
use serde_json::{Value, json};
use shared::expression::{Mapping, Mistake, Names};
use shared::message::Request;
use shared::step::Direction;
use shared::workflow::hosts::Hosts;
use shared::workflow::http::{self, Body, fill, may_call, secret};
use shared::workflow::poll::Found;
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use url::form_urlencoded;

/// The agent of steps that call a URL, with secrets filled in, or AWS, signed.
pub struct Http {
    /// Created for the first call: reading root certificates takes a large part of a cold start.
    client: OnceLock<Client>,
    secrets: Arc<Secrets>,
    aws: Arc<Aws>,
    hosts: Hosts,
}

impl Http {
    /// An agent that looks up secrets, calls AWS and allows hosts from orders as `means` say. If the secrets are in the
    /// cloud, it calls no URL of its own machine.
    #[must_use]
    pub fn new(means: &Means) -> Self {
        let Means { secrets, aws, hosts } = means.clone();
        Self { client: OnceLock::new(), secrets, aws, hosts }
    }

    fn client(&self) -> &Client {
        self.client.get_or_init(|| {
            let resolver = Resolver { loopback: self.secrets.is_local() };
            let client = builder().dns_resolver(Arc::new(resolver)).build();
            client.expect("the built-in TLS configuration is valid")
        })
    }

    async fn call(&self, call: Call<'_>) -> Result<Value, AgentError> {
        if let Some(action) = &call.request.aws {
            return self.aws.call(action, call).await;
        }
        let Call { request, time_left } = call;
        let call = over_http(request)?;
        // At most half of the time: all of it would count against the host.
        let secrets = tokio::time::timeout(time_left / 2, self.look_up(call)).await;
        let secrets =
            secrets.unwrap_or_else(|_| Err(unready("the secrets of the step could not be read in time".into())))?;
        // Some services repeat the address that they were handed, and whoever knows its token may report.
        let token = request.callback.as_ref().and_then(|callback| callback.rsplit('/').next());
        let mask = Mask::new(secrets.values().cloned().chain(token.map(str::to_owned)));
        let answer = self.asked(request, call, &secrets)?.timeout(time_left).send().await.map_err(unanswered)?;
        traced(&answer);
        understood(call, request, answer, &mask).await
    }

    /// What is sent for `request`, with the name of each secret in place of its value.
    ///
    /// # Errors
    /// The order's data cannot be sent, as for a call.
    pub fn written(&self, request: &Request) -> Result<reqwest::Request, AgentError> {
        let call = over_http(request)?;
        let names = call.secrets().map(|name| (name, format!("{{secret:{name}}}"))).collect();
        self.asked(request, call, &names)?.build().map_err(unanswered)
    }

    fn asked(
        &self,
        request: &Request,
        call: &http::Http,
        secrets: &BTreeMap<&str, String>,
    ) -> Result<RequestBuilder, AgentError> {
        let url = call.url_for(&request.task_id.0, &request.step);
        let url = Url::parse(&url).map_err(|e| refused(format!("`{}` is not a URL: {e}", call.url.text())))?;
        let is_local = self.secrets.is_local();
        let is_callable = match url.scheme() {
            "https" => true,
            "http" => is_local,
            _ => false,
        };
        if !is_callable {
            return Err(refused(format!(
                "`{}` is not https; only the local system allows plain http",
                call.url.text()
            )));
        }
        if address(&url).is_some_and(|ip| !may_call(ip, is_local)) {
            return Err(refused(format!("agents may not call the address `{}`", call.url.text())));
        }
        if request.held.is_some() && !url.host_str().is_some_and(|host| self.hosts.allows(host)) {
            let host = url.host_str().unwrap_or_default();
            return Err(refused(format!(
                "the host `{host}` comes from the order, and this deployment does not allow it; add it to HttpHosts"
            )));
        }
        let method = Method::from_bytes(call.method.as_bytes());
        let method = method.map_err(|_| refused(format!("`{}` is not an HTTP method", call.method)))?;
        let has_body = [Method::POST, Method::PUT, Method::PATCH].contains(&method);
        let asked = with_headers(self.client().request(method, url), request);
        // These replace: a file may set its own idempotency key.
        let asked = asked.headers(headers(call, request, secrets)?);
        Ok(if has_body { asked.body(body(call, request)?) } else { asked })
    }

    /// The secrets that the call needs. A missing one may still be added, so the order retries on its ladder.
    async fn look_up<'a>(&self, call: &'a http::Http) -> Result<BTreeMap<&'a str, String>, AgentError> {
        let mut found = BTreeMap::new();
        for name in call.secrets() {
            match self.secrets.get(name).await {
                Ok(value) => found.insert(name, value),
                Err(why) => {
                    tracing::error!(alarm = "no_secret", "a step needs secret `{name}`: {why}");
                    return Err(unready(format!("secret `{name}`: {why}")));
                }
            };
        }
        Ok(found)
    }
}

impl Agent for Http {
    fn name(&self) -> &str {
        http::AGENT
    }

    /// Host and port, because a machine fails or is slow, not one of its paths. For AWS, a function or a service.
    fn remote(&self, request: &Request) -> Option<String> {
        if let Some(aws) = &request.aws {
            let service = aws.action.split(':').next().unwrap_or_default();
            return Some(
                aws.function.as_deref().map_or_else(|| format!("aws:{service}"), |name| format!("lambda:{name}")),
            );
        }
        let url = Url::parse(&request.over_http()?.url_for("x", "x")).ok()?;
        Some(url.origin().ascii_serialization())
    }

    fn act<'a>(&'a self, call: Call<'a>) -> BoxFuture<'a, Result<Value, AgentError>> {
        Box::pin(self.call(call))
    }
}

/// The call that `request` contains. This version knows URL steps, but the sending scheduler may not.
fn over_http(request: &Request) -> Result<&http::Http, AgentError> {
    let missing = || unready("the request contains no URL, because an earlier version of the scheduler sent it".into());
    request.over_http().ok_or_else(missing)
}

pub(crate) async fn understood(
    call: &http::Http,
    request: &Request,
    answer: Response,
    mask: &Mask,
) -> Result<Value, AgentError> {
    let direction = request.direction;
    let is_judged = request.look.is_some() || request.accept.is_some();
    let status = answer.status().as_u16();
    let meaning = call.meaning(status);
    let is_json = answer.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).is_some_and(is_json);
    let is_read = is_json || call.keep.is_some() || is_judged;
    if meaning == http::Meaning::Done && !is_read {
        return Ok(Value::Null);
    }
    let headers = header(answer.headers());
    let body = read(answer, meaning, mask).await?;
    let body = if is_json { body.as_slice() } else { b"" };
    judge(request, status, &headers, body, mask)?;
    if let Some(keep) = &call.keep {
        return kept(keep, status, headers, body, direction, mask);
    }
    let pointer = call.output.as_deref().unwrap_or_default();
    let output = if body.is_empty() { Value::Null } else { output(body, pointer, direction, mask)? };
    Ok(mask.value(output))
}

/// Whether an answer with a good status says that the work is done, if the step has more conditions.
///
/// # Errors
/// The work is only accepted, not done yet or failed, or a condition has no value.
pub(crate) fn judge(
    request: &Request,
    status: u16,
    header: &Value,
    body: &[u8],
    mask: &Mask,
) -> Result<(), AgentError> {
    if request.look.is_none() && request.accept.is_none() {
        return Ok(());
    }
    let answer = if body.is_empty() { Value::Null } else { output(body, "", Direction::Do, mask)? };
    let (answer, header) = (mask.value(answer), mask.value(header.clone()));
    let names = Names::new()
        .with("answer", Cow::Borrowed(&answer))
        .with("status", Cow::Owned(json!(status)))
        .with("header", Cow::Owned(header));
    let unusable = |mistake: Mistake| AgentError::Unusable { error: mistake.to_string() };
    if let Some(accept) = &request.accept {
        let test = accept.test_of_what_is_there(&names);
        let test = test.map_err(|mistake| unusable(Mistake(format!("`when` of `accept`: {mistake}"))))?;
        return if test.holds { Err(AgentError::Accepted { output: answer.clone() }) } else { Ok(()) };
    }
    let Some(look) = &request.look else { return Ok(()) };
    match look.judge(&names).map_err(unusable)? {
        Found::Done => Ok(()),
        Found::NotYet(why) => Err(AgentError::NotYet { why }),
        Found::Failed(error) => Err(AgentError::Refused { error, status, answer: Some(answer.clone()) }),
    }
}

/// The host if it is an address, for which the resolver is not asked.
fn address(url: &Url) -> Option<IpAddr> {
    url.host_str()?.trim_matches(['[', ']']).parse().ok()
}

pub(crate) fn is_json(content_type: &str) -> bool {
    let kind = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    kind == "application/json" || kind.ends_with("+json")
}

/// The body of a call: what the file maps, or the usual envelope.
fn body(call: &http::Http, request: &Request) -> Result<String, AgentError> {
    match (call.body, &request.input) {
        (Some(Body::Form), input) => form(input).map_err(refused),
        (Some(Body::Json), Value::String(text)) => Ok(text.clone()),
        (Some(Body::Json), input) => Ok(input.to_string()),
        (None, _) => Ok(envelope(request).to_string()),
    }
}

/// A table as `application/x-www-form-urlencoded`. Values inside tables and lists get names such as `card[number]` or
/// `items[0][price]`, as payment providers read it.
fn form(input: &Value) -> Result<String, String> {
    fn add(name: &str, value: &Value, pairs: &mut form_urlencoded::Serializer<'_, String>) {
        match value {
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) => drop(pairs.append_pair(name, &value.to_string())),
            Value::String(text) => drop(pairs.append_pair(name, text)),
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(n, item)| add(&format!("{name}[{n}]"), item, pairs));
            }
            Value::Object(table) => {
                table.iter().for_each(|(key, item)| add(&format!("{name}[{key}]"), item, pairs));
            }
        }
    }
    let table = input.as_object().ok_or("a form needs a table as the step's input; resubmit the step with a table")?;
    let mut pairs = form_urlencoded::Serializer::new(String::new());
    table.iter().for_each(|(name, value)| add(name, value, &mut pairs));
    Ok(pairs.finish())
}

/// The body of a call if its workflow file maps nothing.
pub(crate) fn envelope(request: &Request) -> Value {
    let mut body =
        json!({"order_id": request.task_id, "step": request.step, "tenant": request.tenant, "input": request.input});
    match request.direction {
        Direction::Do => {
            body["outputs"] = json!(request.outputs);
            if let Some(callback) = &request.callback {
                body["callback"] = json!(callback);
            }
        }
        Direction::Undo => {
            body["undoes"] = json!(request.undoes);
            body["output"] = json!(request.output);
        }
    }
    body
}

/// The headers of an answer by lower-case name, as `output` reads them. One that is no text is left out.
pub(crate) fn header(headers: &HeaderMap) -> Value {
    let texts = headers.iter().filter_map(|(name, value)| Some((name.to_string(), json!(value.to_str().ok()?))));
    Value::Object(texts.collect())
}

/// The step's `output` for an answer that means done.
pub(crate) fn kept(
    keep: &Mapping,
    status: u16,
    header: Value,
    body: &[u8],
    direction: Direction,
    mask: &Mask,
) -> Result<Value, AgentError> {
    if direction == Direction::Undo {
        return Ok(Value::Null);
    }
    let answer = if body.is_empty() { Value::Null } else { output(body, "", direction, mask)? };
    // Masked before it is read: a part of a secret would not be found.
    let names = Names::new()
        .with("answer", Cow::Owned(mask.value(answer)))
        .with("status", Cow::Owned(json!(status)))
        .with("header", Cow::Owned(mask.value(header)));
    // The service did its work: this is no refusal.
    keep.evaluate(&names).map_err(|e| AgentError::Unusable { error: format!("`output`: {e}") })
}

fn headers(call: &http::Http, request: &Request, secrets: &BTreeMap<&str, String>) -> Result<HeaderMap, AgentError> {
    let kind = match (call.body, &request.input) {
        (Some(Body::Form), _) => "application/x-www-form-urlencoded",
        (Some(Body::Json), Value::String(_)) => "text/plain; charset=utf-8",
        (Some(Body::Json) | None, _) => "application/json",
    };
    let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]);
    for (name, value) in &call.headers {
        let filled = fill(&value.literal_text(), |placeholder| match (placeholder, secret(placeholder)) {
            (_, Some(name)) => secrets.get(name).cloned().unwrap_or_default(),
            ("order_id", _) => request.task_id.0.clone(),
            ("step", _) => request.step.clone(),
            (other, _) => format!("{{{other}}}"),
        });
        let good = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&filled));
        let (Ok(header), Ok(mut value)) = good else {
            // The value may be a secret.
            return Err(unready(format!("the value of header `{name}` contains characters that a header cannot hold")));
        };
        value.set_sensitive(!secrets.is_empty());
        headers.insert(header, value);
    }
    Ok(headers)
}

/// Resolves names, but not to addresses that [`may_call`] forbids, because a file's host may lead anywhere.
struct Resolver {
    loopback: bool,
}

impl Resolve for Resolver {
    fn resolve(&self, name: Name) -> Resolving {
        let loopback = self.loopback;
        Box::pin(async move {
            let all: Vec<_> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            let good: Vec<_> = all.into_iter().filter(|address| may_call(address.ip(), loopback)).collect();
            if good.is_empty() {
                return Err(format!("`{}` resolves to no address that agents may call", name.as_str()).into());
            }
            Ok(Box::new(good.into_iter()) as Addrs)
        })
    }
}
