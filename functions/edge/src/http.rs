//! Shared by all functions behind the HTTP API: reads and answers API Gateway events (payload format 2.0).

use crate::mismatch::in_words;
use crate::problem::{self, Problem};
use aws_lambda_events::encodings::Body;
use aws_lambda_events::event::apigw::{ApiGatewayV2httpRequest, ApiGatewayV2httpResponse};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use shared::json::{self, Fault, Refused};

/// The body's bytes.
///
/// # Errors
/// Declared as base64, but not base64.
pub fn body(event: &ApiGatewayV2httpRequest) -> Result<Vec<u8>, Problem> {
    let text = event.body.as_deref().unwrap_or_default();
    if !event.is_base64_encoded {
        return Ok(text.as_bytes().to_vec());
    }
    // The event's own type decodes, so that the program has one decoder.
    serde_json::from_value::<aws_lambda_events::encodings::Base64Data>(Value::String(text.to_owned()))
        .map(|data| data.0)
        .map_err(|_| problem::invalid_json(None, "the body is declared as base64 but is not"))
}

/// The object in a body, read strictly; see [`json`].
///
/// # Errors
/// Not one JSON object, or the first invalid field.
pub fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Problem> {
    let not_json = |why: &dyn std::fmt::Display| problem::invalid_json(None, format!("{why}; send one JSON object"));
    if body.trim_ascii().is_empty() {
        return Err(not_json(&"the body is empty"));
    }
    let place = |at: String| if matches!(at.as_str(), "" | ".") { "body".to_owned() } else { at };
    json::check(body).map_err(|Refused { fault, at }| match fault {
        Fault::Syntax(why) => not_json(&why),
        Fault::Deep | Fault::Twice | Fault::Number(_) | Fault::Range | Fault::Reserved => {
            problem::invalid_field(None, fault.to_string()).at(place(at))
        }
    })?;
    // A derived reader would also accept the fields as an array.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(problem::invalid_field("body", "must be one JSON object, not an array"));
    }
    serde_path_to_error::deserialize(&mut serde_json::Deserializer::from_slice(body)).map_err(|e| {
        let at = e.path().to_string();
        problem::invalid_field(None, in_words(&e.into_inner().to_string())).at(place(at))
    })
}

/// The value of the field called `field`, as a `T`.
///
/// # Errors
/// The first invalid place in it.
pub fn read_field<T: DeserializeOwned>(field: &str, value: &Value) -> Result<T, Problem> {
    serde_path_to_error::deserialize(value).map_err(|e| {
        let at = e.path().to_string();
        let at = if at == "." { field.to_owned() } else { format!("{field}.{at}") };
        problem::invalid_field(None, in_words(&e.into_inner().to_string())).at(at)
    })
}

/// Refuses a body that is not declared as JSON.
///
/// # Errors
/// Another media type.
pub fn check_media_type(event: &ApiGatewayV2httpRequest) -> Result<(), Problem> {
    let media_type = header(event, "content-type").unwrap_or("application/json");
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media_type == "application/json" || media_type.ends_with("+json") {
        return Ok(());
    }
    let detail = format!("`{media_type}` is not supported; send Content-Type: application/json");
    Err(problem::unsupported_media_type("Content-Type", detail))
}

/// A claim of the token that the authoriser checked.
#[must_use]
pub fn claim<'a>(event: &'a ApiGatewayV2httpRequest, name: &str) -> Option<&'a str> {
    let claims = event.request_context.authorizer.as_ref().and_then(|a| a.jwt.as_ref()).map(|jwt| &jwt.claims);
    claims.and_then(|c| c.get(name)).map(String::as_str)
}

/// Who calls: the subject of the token, or the ARN of the identity that signed the call. `None`: neither is known.
#[must_use]
pub fn caller(event: &ApiGatewayV2httpRequest) -> Option<&str> {
    let iam = event.request_context.authorizer.as_ref().and_then(|authorizer| authorizer.iam.as_ref());
    let arn = || iam.and_then(|iam| iam.user_arn.as_deref()).filter(|arn| !arn.is_empty());
    claim(event, "sub").or_else(arn)
}

/// Longest name of a person, in bytes.
const MAX_PERSON: usize = 300;

/// The person who calls, if an authority vouches for it: the token's subject, or the identity that signed. A role's
/// session counts as the role, because whoever assumes it chooses the session's name; only IAM Identity Center writes
/// its user's name there. `None`: no authority.
///
/// # Errors
/// `forbidden` for a name that is too long to be kept whole.
pub fn person(event: &ApiGatewayV2httpRequest) -> Result<Option<String>, Problem> {
    let person = caller(event).filter(|caller| !caller.trim().is_empty()).and_then(|caller| {
        let Some((before, session)) = caller.split_once(":assumed-role/") else {
            return (!caller.contains(":federated-user/")).then(|| caller.to_owned());
        };
        let (role, _) = session.split_once('/')?;
        let is_user = role.starts_with("AWSReservedSSO_");
        let user = session.split_once('/').filter(|_| is_user).map(|(_, user)| user);
        // One such user may have several roles.
        Some(user.map_or_else(|| format!("{before}:assumed-role/{role}"), |user| format!("{before}:sso-user/{user}")))
    });
    match person {
        Some(person) if person.len() > MAX_PERSON => {
            let detail =
                format!("the caller's name has more than {MAX_PERSON} bytes; use an identity with a shorter name");
            Err(problem::forbidden(None, detail))
        }
        person => Ok(person),
    }
}

/// A header's text.
#[must_use]
pub fn header<'a>(event: &'a ApiGatewayV2httpRequest, name: &str) -> Option<&'a str> {
    event.headers.get(name).and_then(|value| value.to_str().ok())
}

/// Longest idempotency key, in characters.
const MAX_KEY: usize = 200;

/// Checks the form of the idempotency key of an order, an event or a job, as `each` says.
///
/// # Errors
/// Missing, too long, or with characters that a header cannot contain.
pub fn idempotency_key<'a>(key: Option<&'a str>, each: &str) -> Result<&'a str, Problem> {
    let how = format!("send a header Idempotency-Key with a new value for each {each}, for example a UUID");
    let key = key
        .map(str::trim)
        .filter(|k| !k.is_empty())
        .ok_or_else(|| problem::missing_idempotency_key("Idempotency-Key", how.as_str()))?;
    if key.len() > MAX_KEY || !key.bytes().all(|b| b.is_ascii_graphic() || b == b' ') {
        let detail = format!("it must have at most {MAX_KEY} printable ASCII characters; {how}");
        return Err(problem::invalid_idempotency_key("Idempotency-Key", detail));
    }
    Ok(key)
}

/// The `traceparent` of a request; `None` if it has none, or a malformed one.
#[must_use]
pub fn traceparent(event: &ApiGatewayV2httpRequest) -> Option<String> {
    header(event, "traceparent").and_then(shared::trace::traceparent)
}

/// Whether `If-None-Match` names `etag`.
#[must_use]
pub fn is_known(event: &ApiGatewayV2httpRequest, etag: &str) -> bool {
    let tags = header(event, "if-none-match").unwrap_or_default().split(',').map(str::trim);
    tags.map(|tag| tag.strip_prefix("W/").unwrap_or(tag)).any(|tag| tag == etag || tag == "*")
}

/// Returns the request's trace context with the answer.
#[must_use]
pub fn traced(mut answer: ApiGatewayV2httpResponse, trace: Option<String>) -> ApiGatewayV2httpResponse {
    if let Some(trace) = trace.and_then(|trace| trace.parse().ok()) {
        answer.headers.insert("traceparent", trace);
    }
    answer
}

/// An answer with a JSON body.
///
/// # Panics
/// If a map in `body` has keys that are not strings.
pub fn json_answer(status: i64, body: &impl Serialize, headers: &[(&'static str, &str)]) -> ApiGatewayV2httpResponse {
    let body = serde_json::to_string(body).expect("answers have only string keys");
    answer(status, "application/json", Some(body), headers)
}

/// A refusal as an answer.
///
/// # Panics
/// Never: a problem has only string keys.
#[must_use]
pub fn refuse(problem: &Problem) -> ApiGatewayV2httpResponse {
    let body = serde_json::to_string(problem).expect("a problem has only string keys");
    let mut answer = answer(i64::from(problem.status), "application/problem+json", Some(body), &[]);
    if let Some(seconds) = problem.retry_after_s {
        answer.headers.insert("retry-after", seconds.into());
    }
    if let Some(methods) = problem.allow {
        answer.headers.insert("allow", methods.parse().expect("names of methods"));
    }
    if problem.status == 401 {
        answer.headers.insert("www-authenticate", "Bearer".parse().expect("a scheme"));
    }
    answer
}

/// An answer.
///
/// # Panics
/// If `content_type` is not a header value.
#[must_use]
pub fn answer(
    status: i64,
    content_type: &'static str,
    body: Option<String>,
    headers: &[(&'static str, &str)],
) -> ApiGatewayV2httpResponse {
    let mut answer = ApiGatewayV2httpResponse::default();
    answer.status_code = status;
    if body.is_some() {
        answer.headers.insert("content-type", content_type.parse().expect("a constant"));
    }
    for (name, value) in headers {
        if let Ok(value) = value.parse() {
            answer.headers.insert(*name, value);
        }
    }
    answer.body = body.map(Body::Text);
    answer
}
