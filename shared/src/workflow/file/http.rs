//! The `http` of a step: a URL alone, or a table.

use super::{Around, Problem, aws, list};
use crate::expression::{Part, Template};
use crate::workflow::http::{Http, IDEMPOTENCY_KEY, MAX_BYTES, PLACEHOLDERS, Status, may_call, placeholders, secret};
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::fmt;
use toml::Spanned;
use url::{Host, Url};

const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];
/// Headers that the call itself sets.
const OURS: [&str; 6] = ["complete-by", "traceparent", "host", "content-length", "transfer-encoding", "connection"];
/// Headers that contain only secrets.
const SECRET: [&str; 4] = ["authorization", "proxy-authorization", "cookie", "x-api-key"];
const MAX_SECRET: usize = 40;

pub(super) enum RawHttp {
    Url(String),
    Table(Box<Table>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    url: Spanned<String>,
    method: Option<Spanned<String>>,
    query: Option<Spanned<BTreeMap<String, String>>>,
    headers: Option<Spanned<BTreeMap<String, String>>>,
    output: Option<Spanned<String>>,
    done: Option<Spanned<Vec<Status>>>,
    transient: Option<Spanned<Vec<Status>>>,
    permanent: Option<Spanned<Vec<Status>>>,
}

impl<'de> Deserialize<'de> for RawHttp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = RawHttp;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a URL, or a table such as { url = \"https://...\", method = \"PUT\" }")
            }

            fn visit_str<E>(self, url: &str) -> Result<RawHttp, E> {
                Ok(RawHttp::Url(url.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawHttp, A::Error> {
                Table::deserialize(MapAccessDeserializer::new(map)).map(|table| RawHttp::Table(Box::new(table)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// The call that `raw` describes. An undo inherits the statuses of `of`, the step's call, and its headers if both have
/// the same origin.
pub(super) fn build(raw: &Spanned<RawHttp>, of: Option<&Http>, around: Around<'_>) -> Result<Http, Problem> {
    let table = match raw.get_ref() {
        RawHttp::Url(url) => {
            let url = check_url(url, around).map_err(|words| (raw.span(), words))?;
            return bounded(raw, inherit(empty(url, "POST".into()), of, true, true));
        }
        RawHttp::Table(table) => table,
    };
    let url = check_url(table.url.get_ref(), around).map_err(|words| (table.url.span(), words))?;
    let method = table.method.as_ref().map_or("POST", |method| method.get_ref());
    if let Some(given) = &table.method
        && !METHODS.contains(&method)
    {
        return Err((given.span(), format!("unknown method `{method}`; write one of {}", list(&METHODS))));
    }
    let mut http = empty(url, method.to_owned());
    for (name, value) in table.query.iter().flat_map(|query| query.get_ref()) {
        let text = Template::parse(value).map_err(|fault| fault.to_string());
        let text = text.map_err(|words| (table.url.span(), format!("`{name}` of the query: {words}")))?;
        if name.contains(['{', '}'])
            || stand_in(&text).replace("{step}", "").contains(['{', '}'])
            || value.contains("{step}")
        {
            let words = format!(
                "`{name}` of the query has a brace; write ${{order.id}} for the order's id, and a secret in a header"
            );
            return Err((table.url.span(), words));
        }
        http.query.insert(name.clone(), text);
    }
    if let Some(headers) = &table.headers {
        for (name, value) in headers.get_ref() {
            let value = check_header(name, value).map_err(|words| (headers.span(), words))?;
            http.headers.insert(name.to_lowercase(), value);
        }
        if http.headers.len() < headers.get_ref().len() {
            return Err((headers.span(), "a header occurs twice; upper and lower case count as the same".into()));
        }
    }
    if let Some(output) = &table.output {
        if !output.get_ref().starts_with('/') {
            let words = format!("`{}` points at nothing; write a JSON Pointer such as \"/id\"", output.get_ref());
            return Err((output.span(), words));
        }
        http.output = Some(output.get_ref().clone());
    }
    let mut seen = Vec::new();
    let lists = [
        (&table.done, &mut http.done),
        (&table.transient, &mut http.transient),
        (&table.permanent, &mut http.permanent),
    ];
    for (given, list) in lists {
        for status in given.iter().flat_map(|given| given.get_ref()) {
            if seen.contains(status) {
                let span = given.as_ref().expect("it has a status").span();
                return Err((span, format!("{status} is named twice; a status is done, transient or permanent")));
            }
            seen.push(*status);
            list.push(*status);
        }
        list.sort_by_key(ToString::to_string);
    }
    bounded(raw, inherit(http, of, table.headers.is_none(), seen.is_empty()))
}

fn empty(url: Template, method: String) -> Http {
    let (query, headers, done, transient, permanent) = Default::default();
    Http { url, method, query, headers, body: None, output: None, keep: None, done, transient, permanent }
}

fn inherit(mut http: Http, of: Option<&Http>, headers: bool, statuses: bool) -> Http {
    let Some(of) = of else { return http };
    // A secret goes only to the origin that the file names for it.
    let is_same = match http.maps_host() || of.maps_host() {
        true => http.site() == of.site(),
        false => origin(&stand_in(&http.url)) == origin(&stand_in(&of.url)),
    };
    if headers && is_same {
        http.headers.clone_from(&of.headers);
        // With the same key the service would repeat its answer.
        http.headers.remove(IDEMPOTENCY_KEY);
    }
    if statuses {
        (http.done, http.transient, http.permanent) = (of.done.clone(), of.transient.clone(), of.permanent.clone());
    }
    http
}

fn bounded(raw: &Spanned<RawHttp>, http: Http) -> Result<Http, Problem> {
    let bytes = crate::json::length(&http);
    if bytes <= MAX_BYTES {
        return Ok(http);
    }
    Err((
        raw.span(),
        format!("this `http` has {bytes} bytes; the limit is {MAX_BYTES}, so write a shorter URL or fewer headers"),
    ))
}

/// The origin of a URL whose placeholders are filled.
fn origin(url: &str) -> Option<url::Origin> {
    Url::parse(&super::super::http::fill(url, |_| "x".into())).ok().map(|url| url.origin())
}

/// The text with a placeholder for each expression.
fn stand_in(text: &Template) -> String {
    let part = |part: &Part| match part {
        Part::Literal(text) => text.clone(),
        Part::Expression(_) => "{step}".into(),
    };
    text.parts().iter().map(part).collect()
}

/// The URL with `config` replaced in its host, as for every order.
fn with_host(shown: &str, around: Around<'_>) -> Result<Template, String> {
    let parse = |text: &str| Template::parse(text).map_err(|fault| fault.to_string());
    let url = empty(parse(shown)?, String::new());
    if !url.maps_host() {
        return Ok(url.url);
    }
    let site = url.site().len();
    let mut whole = String::new();
    for (n, part) in url.url.parts().iter().enumerate() {
        match part {
            Part::Literal(text) => whole += &text.replace("${", "$${"),
            Part::Expression(one) if n < site && one.references().iter().all(|r| r.path[0] == "config") => {
                whole += &aws::fixed(&format!("${{{}}}", one.text()), around.config)?.replace("${", "$${");
            }
            Part::Expression(one) => whole += &format!("${{{}}}", one.text()),
        }
    }
    let url = empty(parse(&whole)?, String::new());
    if url.maps_host() && around.hosts.is_empty() {
        return Err(format!(
            "the host of `{shown}` comes from the order, and this deployment allows no such host; write the host, read it \
             from `config`, or allow it (docs/workflows.md#hosts)"
        ));
    }
    Ok(url.url)
}

fn check_url(shown: &str, around: Around<'_>) -> Result<Template, String> {
    const EXAMPLE: &str = "\"https://crm.example/orders/{order_id}\"";
    let template = with_host(shown, around)?;
    let maps_host = empty(template.clone(), String::new()).maps_host();
    let text = &*stand_in(&template);
    let names = placeholders(text)
        .ok_or_else(|| format!("`{shown}` has an unmatched brace; write %7B for {{ and %7D for }}"))?;
    if let Some(name) = names.iter().find(|name| !PLACEHOLDERS.contains(name)) {
        let advice = if secret(name).is_some() {
            "; a secret belongs in a header, because URLs are logged along the way"
        } else {
            ""
        };
        return Err(format!("a URL cannot contain `{{{name}}}`; write {{order_id}} or {{step}}{advice}"));
    }
    let host = text.split_once("://").map_or("", |(_, rest)| rest);
    let path = host.find(['/', '?']).unwrap_or(host.len());
    // In a URL with more than two slashes, the host follows them all.
    let is_filled = text.find('{').is_some_and(|brace| brace < text.len() - host.len() + path);
    let literal = template.parts().iter().map(|part| match part {
        Part::Literal(text) => text.as_str(),
        Part::Expression(_) => "",
    });
    // An expression must be the name alone, after `https://` and before a port.
    let is_placed = maps_host && text.starts_with("https://") && !host[..path].contains('@') && {
        let whole: String = literal.collect();
        let host = whole.split_once("://").map_or("", |(_, rest)| rest);
        let path = host.find(['/', '?']).unwrap_or(host.len());
        !host[..path].contains(['{', '}'])
    };
    if path == 0 || is_filled && !is_placed {
        return Err(format!("the host of `{shown}` must be literal; write, for example, {EXAMPLE}"));
    }
    if text.contains(|c: char| c.is_whitespace() || c.is_control() || c == '\\') {
        return Err(format!(
            "`{}` contains characters that a URL cannot contain; write, for example, {EXAMPLE}",
            shown.escape_debug()
        ));
    }
    let url = Url::parse(&super::super::http::fill(text, |_| "x".into()))
        .map_err(|e| format!("`{shown}` is not a URL ({e}); write, for example, {EXAMPLE}"))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            "the URL contains a password; write a header such as authorization = \"Basic {secret:NAME}\"".into()
        );
    }
    let address = match url.host() {
        Some(Host::Ipv4(ip)) => Some(ip.into()),
        Some(Host::Ipv6(ip)) => Some(ip.into()),
        Some(Host::Domain(_)) | None => None,
    };
    if address.is_some_and(|ip| !may_call(ip, true)) {
        return Err(format!("`{shown}` is a link-local address, which agents may not call; write another host"));
    }
    let is_loopback =
        url.host() == Some(Host::Domain("localhost")) || address.is_some_and(|ip: std::net::IpAddr| ip.is_loopback());
    match url.scheme() {
        "https" => Ok(template),
        "http" if is_loopback => Ok(template),
        _ => Err(format!("`{shown}` is neither https nor http to this machine; write, for example, {EXAMPLE}")),
    }
}

fn check_header(name: &str, value: &str) -> Result<Template, String> {
    const MARKS: &str = "!#$%&'*+-.^_`|~";
    let lower = name.to_lowercase();
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || MARKS.contains(c)) {
        return Err(format!("`{}` cannot name a header; write letters, digits and `-`", name.escape_debug()));
    }
    if OURS.contains(&lower.as_str()) {
        return Err(format!("the call sets header `{name}` itself; leave it out"));
    }
    let template = Template::parse(value).map_err(|fault| format!("the value of header `{name}`: {fault}"))?;
    if lower == IDEMPOTENCY_KEY {
        let is_own = !template.is_constant() || value.contains("{order_id}");
        if !is_own || template.references().any(|reference| reference.path[0] == "now") {
            return Err(format!(
                "header `{name}` must differ between orders and be the same for every attempt; write for example \
                 \"${{uuid('pay')}}\" or \"{{order_id}}-{{step}}\", or leave the header out for a key that does both"
            ));
        }
    }
    let value = &*stand_in(&template);
    if !value.chars().all(|c| c == ' ' || c.is_ascii_graphic()) {
        return Err(format!("the value of header `{name}` is not printable ASCII"));
    }
    let names = placeholders(value).ok_or_else(|| format!("the value of header `{name}` has an unmatched brace"))?;
    for placeholder in &names {
        match secret(placeholder) {
            Some(secret) if is_secret(secret) => {}
            Some(_) => {
                return Err(format!(
                    "`{{{placeholder}}}` does not name a secret; write {{secret:NAME}} with a lower-case letter, then letters, digits or `-`, at most {MAX_SECRET} in all"
                ));
            }
            None if PLACEHOLDERS.contains(placeholder) => {}
            None => {
                return Err(format!(
                    "a header cannot contain `{{{placeholder}}}`; write {{order_id}}, {{step}} or {{secret:NAME}}"
                ));
            }
        }
    }
    if SECRET.contains(&lower.as_str()) && !names.iter().any(|name| secret(name).is_some()) {
        return Err(format!(
            "header `{name}` would put a secret into the file; write the secret's name instead, for example {name} = \
             \"Bearer {{secret:crm-token}}\""
        ));
    }
    Ok(template)
}

fn is_secret(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.len() <= MAX_SECRET
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
