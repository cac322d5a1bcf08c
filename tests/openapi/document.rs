//! The OpenAPI document: its operations come from the routes, its schemas from the types, and its refusals from the list of
//! codes.

use super::routes::{Route, routes};
use super::shapes::{reference, schemas};
use edge::problem::CODES;
use operator::act;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

fn headers(names: &[&str]) -> Value {
    names.iter().map(|name| ((*name).to_owned(), json!({"$ref": format!("#/components/headers/{name}")}))).collect()
}

/// The answer with this status, for one of these codes.
fn refusal(status: u16, codes: &[&str]) -> Value {
    let names: &[&str] = match status {
        401 => &["WWW-Authenticate"],
        429 | 503 => &["Retry-After"],
        _ => &[],
    };
    let examples: Value = codes
        .iter()
        .map(|code| ((*code).to_owned(), json!({"$ref": format!("#/components/examples/{code}")})))
        .collect();
    let words: Vec<_> = codes.iter().map(|code| format!("`{code}`")).collect();
    json!({"description": words.join(", "), "headers": headers(names),
        "content": {"application/problem+json": {"schema": reference("Problem"), "examples": examples}}})
}

/// An example of each of these codes.
fn refusals(is_used: impl Fn(&str) -> bool) -> Value {
    let one = |&(code, status, title): &(&str, u16, &str)| {
        let value = json!({"type": format!("/problems/{code}"), "title": title, "status": status, "code": code,
            "detail": "What is wrong, and what to do."});
        (code.to_owned(), json!({"value": value}))
    };
    Value::Object(CODES.iter().filter(|(code, ..)| is_used(code)).map(one).collect())
}

/// The document as it is checked in.
pub fn document() -> Value {
    let mut paths = Map::new();
    for route in routes() {
        let path = paths.entry(route.path.clone()).or_insert_with(|| json!({}));
        path[route.method] = operation(&route);
    }
    // Schemas without a reference are left out.
    let text = Value::Object(paths.clone()).to_string();
    let is_used = |text: &str, kind: &str, code: &str| text.contains(&format!("\"#/components/{kind}/{code}\""));
    let responses = CODES.iter().filter(|(code, ..)| is_used(&text, "responses", code));
    let responses: Value = responses.map(|(code, status, _)| ((*code).to_owned(), refusal(*status, &[code]))).collect();
    let text = format!("{text}{responses}");
    let examples = refusals(|code| is_used(&text, "examples", code));
    let header = |words: &str, schema: Value| json!({"description": words, "schema": schema});
    let text = || json!({"type": "string"});
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stepwarden",
            "version": env!("CARGO_PKG_VERSION"),
            "contact": {"name": "The operators of this system"},
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": "Submit and follow orders, and operate them. Every refusal is a problem \
                (RFC 9457) with a stable `code`, whose `type` is a path of this API that explains it. On AWS, API \
                Gateway itself answers a missing or invalid token or signature (401, 403) and an exceeded rate \
                (429), with `{\"message\": \"...\"}`. Without `JwtIssuer`, calls are signed with SigV4 and carry no \
                token.",
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "orders", "description": "For applications."},
            {"name": "callbacks", "description": "For services and people that were handed an address."},
            {"name": "heartbeats", "description": "For agents with long work."},
            {"name": "operator", "description": "For operators and their tools."},
            {"name": "workflows", "description": "For those who publish workflows."},
            {"name": "documents", "description": "About this API."},
        ],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer",
                "description": "The token that `stepwarden up` prints, or a JWT of the issuer in `JwtIssuer`. The \
                    description of an operation names the scope that the token needs."}},
            "schemas": schemas(),
            "examples": examples,
            "responses": responses,
            "headers": {
                "ETag": header("The version, for `If-None-Match`.", text()),
                "Location": header("Path of the order.", text()),
                "Retry-After": header("Seconds to wait before the same request is sent again.", json!({"type": "integer", "minimum": 1})),
                "WWW-Authenticate": header("How to authenticate.", json!({"const": "Bearer"})),
                "traceparent": header("The W3C trace context of the request, if it had one.", text()),
            },
        },
    })
}

fn operation(route: &Route) -> Value {
    let mut responses = Map::new();
    for (status, words, content, names) in &route.answers {
        let mut answer = json!({"description": words, "headers": headers(names)});
        if let Some((media_type, schema, example)) = content {
            answer["content"][media_type] = json!({"schema": schema});
            if !example.is_null() {
                answer["content"][media_type]["example"] = example.clone();
            }
        }
        if route.id == "listOrders" {
            let next = json!({"operationId": "listOrders", "parameters": {"cursor": "$response.body#/next"}});
            answer["links"] = json!({ "nextPage": next });
        }
        if *status == 202 {
            let link = |operation: &str| json!({"operationId": operation, "parameters": {"order_id": "$response.body#/order_id"}});
            let acts = act::NAMES.iter().chain(&["getOrder", "getHistory"]);
            answer["links"] = acts.map(|name| ((*name).to_owned(), link(name))).collect();
        }
        responses.insert(status.to_string(), answer);
    }
    let mut refusals: BTreeMap<u16, Vec<&str>> = BTreeMap::new();
    for (code, status, _) in CODES.iter().filter(|(code, ..)| route.codes.contains(code)) {
        refusals.entry(*status).or_default().push(code);
    }
    for (status, codes) in refusals {
        let answer = match codes.as_slice() {
            [code] => json!({"$ref": format!("#/components/responses/{code}")}),
            codes => refusal(status, codes),
        };
        responses.insert(status.to_string(), answer);
    }
    let mut operation =
        json!({"operationId": route.id, "tags": [route.tag], "summary": route.summary, "responses": responses});
    // Only schemes of OAuth 2.0 and OpenID Connect have a field for scopes.
    let needs = match &route.scope {
        Some(scope) => format!("The token needs the scope `{scope}`."),
        None => "It needs no token.".to_owned(),
    };
    operation["description"] = json!(format!("{} {needs}", route.description).trim_start());
    operation["security"] = if route.scope.is_some() { json!([{"token": []}]) } else { json!([]) };
    if !route.parameters.is_empty() {
        operation["parameters"] = json!(route.parameters);
    }
    if let Some((schema, example)) = &route.body {
        let content = json!({"application/json": {"schema": schema, "example": example}});
        operation["requestBody"] = json!({"required": true, "content": content});
    }
    operation
}
