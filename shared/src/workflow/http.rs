//! A step that calls a URL: the call as the workflow file describes it, and what its answer means.
//!
//! The request carries this description, from the definition that the task is pinned to. It names secrets but never
//! contains them; the agent that makes the call looks them up.

use super::hosts::is_part;
use crate::expression::{Expression, Mapping, Mistake, Names, Part, Template};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

/// Name of the agent that makes these calls.
pub const AGENT: &str = "http";
/// Longest description of a call, in bytes of JSON. A definition has one or, with an undo, two per step, and must stay
/// below DynamoDB's 400 KB.
pub const MAX_BYTES: usize = 2048;
/// Longest URL, and longest value of a header, in bytes, once expressions are replaced.
pub const MAX_URL: usize = 2048;
/// Names that a URL and a header may contain in braces, besides `secret:NAME`.
pub const PLACEHOLDERS: [&str; 2] = ["order_id", "step"];

/// The header with a call's key. A file may replace the usual value, which names order, step and direction.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A call over HTTP.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Http {
    /// Absolute; may contain `{order_id}` and `{step}` after the host, and expressions. In a request the expressions are
    /// replaced.
    pub url: Template,
    /// In upper case.
    pub method: String,
    /// Appended to the URL; in a request it is part of the URL.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, Template>,
    /// By lower-case name. Values may have `{order_id}`, `{step}`, `{secret:NAME}` and, except in requests,
    /// expressions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, Template>,
    /// How the step's `with` is sent; `None` sends the usual envelope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Body>,
    /// JSON Pointer (RFC 6901) to the part of the answer that is the step's output; `None` takes all of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// What is kept of the answer, from `answer`, `status` and `header`, instead of `output`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep: Option<Mapping>,
    /// Statuses that mean that the call is done.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub done: Vec<Status>,
    /// Statuses after which the same call may succeed later.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub transient: Vec<Status>,
    /// Statuses after which it cannot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub permanent: Vec<Status>,
}

/// The form of a body that a workflow file maps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Body {
    /// As JSON; a mapping that is one text is sent as that text.
    Json,
    /// As a form: `application/x-www-form-urlencoded`.
    Form,
}

/// What an answer means to the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// Done.
    Done,
    /// The same call may succeed later.
    Transient,
    /// It cannot.
    Permanent,
}

impl Http {
    /// What a status means: by the file's entry for that status, else for its class, else as [`usual`].
    #[must_use]
    pub fn meaning(&self, status: u16) -> Meaning {
        let lists =
            [(&self.done, Meaning::Done), (&self.transient, Meaning::Transient), (&self.permanent, Meaning::Permanent)];
        let said = |of: Status| lists.iter().find(|(list, _)| list.contains(&of)).map(|(_, meaning)| *meaning);
        said(Status::Code(status))
            .or_else(|| said(Status::Class(status / 100)))
            .unwrap_or_else(|| usual(&self.method, status))
    }

    /// The URL for one order, each value percent-encoded.
    #[must_use]
    pub fn url_for(&self, order_id: &str, step: &str) -> String {
        fill(&self.url.literal_text(), |name| match name {
            "order_id" => encoded(order_id),
            "step" => encoded(step),
            other => format!("{{{other}}}"),
        })
    }

    /// The parts of the URL up to the end of its host.
    #[must_use]
    pub fn site(&self) -> Vec<Part> {
        let mut site = Vec::new();
        let mut is_scheme = true;
        for part in self.url.parts() {
            let Part::Literal(text) = part else {
                site.push(part.clone());
                continue;
            };
            let start = match text.find("://").filter(|_| is_scheme) {
                Some(at) => at + "://".len(),
                None => 0,
            };
            is_scheme = is_scheme && start == 0;
            if let Some(end) = text[start..].find(['/', '?', '#', '\\']).filter(|_| !is_scheme) {
                site.push(Part::Literal(text[..start + end].to_owned()));
                break;
            }
            site.push(part.clone());
        }
        site
    }

    /// Whether the host comes with the order.
    #[must_use]
    pub fn maps_host(&self) -> bool {
        self.site().iter().any(|part| matches!(part, Part::Expression(_)))
    }

    /// Names of the secrets it needs, once per use.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.headers.values().flat_map(|value| placeholders(value.text()).unwrap_or_default()).filter_map(secret)
    }

    /// All texts that an order's data can be part of.
    pub fn templates(&self) -> impl Iterator<Item = &Template> {
        std::iter::once(&self.url).chain(self.query.values()).chain(self.headers.values())
    }

    /// This call with every expression replaced by its value, as a request contains it.
    ///
    /// # Errors
    /// An expression has no value here, or one that is unfit for its place.
    pub fn resolved(&self, names: &Names<'_>) -> Result<Self, Mistake> {
        let mut url = String::new();
        let site = self.site().len();
        for (n, part) in self.url.parts().iter().enumerate() {
            match part {
                Part::Literal(text) => url.push_str(text),
                // Parts before `site` are the host's.
                Part::Expression(expression) if n < site => {
                    let value = plain(expression, &expression.evaluate(names)?, "a URL")?;
                    if !is_part(&value) {
                        return Err(unfit(expression, "is not the name of a host, so nothing is called"));
                    }
                    url.push_str(&value);
                }
                Part::Expression(expression) => {
                    let value = plain(expression, &expression.evaluate(names)?, "a URL")?;
                    if value.is_empty() {
                        return Err(unfit(expression, "is empty, so the URL would be a different one"));
                    }
                    url.push_str(&encoded(&value));
                }
            }
        }
        // A client would remove these segments and call another path.
        let path = url.split(['?', '#']).next().unwrap_or_default();
        if !self.url.is_constant() && path.split('/').any(|segment| matches!(segment, "." | "..")) {
            return Err(Mistake(format!("the URL `{}` would contain a segment `.` or `..`", self.url.text())));
        }
        for (name, value) in &self.query {
            let Some(found) = value.evaluate(names)? else { continue };
            let found = match value.parts() {
                [Part::Expression(expression)] => plain(expression, &found, "a query")?,
                _ => value.text_of(names)?,
            };
            let mark = if url.contains('?') { '&' } else { '?' };
            url.push_str(&format!("{mark}{}={}", encoded(name), encoded(&found)));
        }
        if url.len() > MAX_URL {
            return Err(Mistake(format!("the URL would have {} bytes; the limit is {MAX_URL}", url.len())));
        }
        let mut headers = BTreeMap::new();
        for (name, value) in &self.headers {
            for part in value.parts() {
                if let Part::Expression(expression) = part {
                    let text = plain(expression, &expression.evaluate(names)?, "a header")?;
                    // A brace could name a secret.
                    if !text.chars().all(|c| c == ' ' || c.is_ascii_graphic() && c != '{' && c != '}') {
                        return Err(unfit(expression, "has characters that a header cannot hold"));
                    }
                }
            }
            let text = value.text_of(names)?;
            if text.len() > MAX_URL {
                let bytes = text.len();
                return Err(Mistake(format!("header `{name}` would have {bytes} bytes; the limit is {MAX_URL}")));
            }
            headers.insert(name.clone(), Template::literal(&text));
        }
        Ok(Self { url: Template::literal(&url), query: BTreeMap::new(), headers, ..self.clone() })
    }
}

/// The value as a text without control characters.
fn plain(expression: &Expression, value: &Value, place: &str) -> Result<String, Mistake> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Null => return Err(unfit(expression, &format!("is null, which cannot be part of {place}"))),
        Value::Array(_) | Value::Object(_) => {
            return Err(unfit(expression, &format!("is a list or a table, which cannot be part of {place}")));
        }
    };
    if text.contains(char::is_control) {
        return Err(unfit(expression, &format!("has control characters, which cannot be part of {place}")));
    }
    Ok(text)
}

fn unfit(expression: &Expression, why: &str) -> Mistake {
    Mistake(format!("`{}` {why}", expression.text()))
}

/// The name in `secret:NAME`.
#[must_use]
pub fn secret(placeholder: &str) -> Option<&str> {
    placeholder.strip_prefix("secret:")
}

/// What a status means unless the file says otherwise (RFC 9110, and RFC 8470 for 425). A DELETE that finds nothing is
/// done: a repeated call meets its first result.
#[must_use]
pub fn usual(method: &str, status: u16) -> Meaning {
    match status {
        200..=299 => Meaning::Done,
        404 | 410 if method == "DELETE" => Meaning::Done,
        501 => Meaning::Permanent,
        408 | 425 | 429 | 500..=599 => Meaning::Transient,
        _ => Meaning::Permanent,
    }
}

/// Whether a status says that the service itself is unwell, so that other calls of it would fail as well.
#[must_use]
pub fn is_unwell(status: u16) -> bool {
    matches!(status, 408 | 429 | 500..=599)
}

/// The names in braces in `text`, or `None` if a brace is unmatched.
#[must_use]
pub fn placeholders(text: &str) -> Option<Vec<&str>> {
    let mut rest = text;
    let mut names = Vec::new();
    while let Some(at) = rest.find(['{', '}']) {
        let name = rest[at..].strip_prefix('{')?;
        let end = name.find(['{', '}'])?;
        rest = name[end..].strip_prefix('}')?;
        names.push(&name[..end]);
    }
    Some(names)
}

/// `text` with `value` of each name in braces.
pub fn fill(text: &str, mut value: impl FnMut(&str) -> String) -> String {
    let mut filled = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        filled.push_str(before);
        let (name, after) = after.split_once('}').unwrap_or((after, ""));
        filled.push_str(&value(name));
        rest = after;
    }
    filled + rest
}

/// Percent-encodes all but the unreserved characters of RFC 3986.
#[must_use]
pub fn encoded(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            text.push(char::from(byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Whether an agent may call this address. Link-local addresses serve the machine itself; above all, one hands out its
/// role's credentials. `loopback` allows this machine itself.
#[must_use]
pub fn may_call(address: IpAddr, loopback: bool) -> bool {
    /// IPv6 prefix of a machine's own services: metadata, credentials, names, time (AWS, EC2 user guide).
    const OWN_SERVICES: [u16; 2] = [0xfd00, 0xec2];
    let v4 = |ip: Ipv4Addr| !ip.is_link_local() && !ip.is_unspecified() && !ip.is_broadcast() && !ip.is_multicast();
    let is_callable = match address.to_canonical() {
        IpAddr::V4(ip) => v4(ip),
        IpAddr::V6(ip) => {
            let is_own = ip.segments().starts_with(&OWN_SERVICES);
            !ip.is_unicast_link_local() && !ip.is_unspecified() && !ip.is_multicast() && !is_own
        }
    };
    is_callable && (loopback || !address.to_canonical().is_loopback())
}

/// A status of an answer, or a class of them such as `"5xx"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "Spelled", into = "Spelled")]
pub enum Status {
    /// One status.
    Code(u16),
    /// All statuses that begin with this digit.
    Class(u16),
}

/// A status as files and messages spell it.
#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "write a status such as 429, or a class such as \"5xx\"")]
enum Spelled {
    Code(u16),
    Class(String),
}

impl TryFrom<Spelled> for Status {
    type Error = String;

    fn try_from(spelled: Spelled) -> Result<Self, String> {
        let text = match &spelled {
            Spelled::Code(code) if (100..=599).contains(code) => return Ok(Self::Code(*code)),
            Spelled::Code(code) => code.to_string(),
            Spelled::Class(text) => text.clone(),
        };
        match text.as_bytes() {
            [digit @ b'1'..=b'5', b'x', b'x'] => Ok(Self::Class(u16::from(digit - b'0'))),
            _ => Err(format!("`{text}` is not a status; write one from 100 to 599, or a class such as \"5xx\"")),
        }
    }
}

impl From<Status> for Spelled {
    fn from(status: Status) -> Self {
        match status {
            Status::Code(code) => Self::Code(code),
            Status::Class(_) => Self::Class(status.to_string()),
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "{code}"),
            Self::Class(digit) => write!(f, "{digit}xx"),
        }
    }
}
