//! Goal: the OpenAPI document and the API agree, and no caller uses a route without the right to. Method: the document
//! is made from the types and compared with the file that is served. Its routes are compared with the source of the two
//! routers and with infra/api.yaml, and each is called on the whole system.
//!
//! `UPDATE=1 cargo test -p stepwarden-tests --test whole openapi::the_document` writes `docs/openapi.json` again.

mod document;
mod routes;
mod shapes;

use crate::support::page::{read, root};
use crate::support::{Whole, http, three_noops};
use edge::auth::Scopes;
use edge::problem::CODES;
use reqwest::{Method, StatusCode};
use routes::{Route, routes};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

#[test]
fn the_document_is_the_one_that_is_served() {
    let made = format!("{}\n", serde_json::to_string_pretty(&document::document()).unwrap());
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(root().join("docs/openapi.json"), &made).unwrap();
    }
    let how = "docs/openapi.json is not what the types say; `make openapi` writes it anew";
    assert!(read("docs/openapi.json") == made, "{how}");
}

/// What is wrong with a document: violations of the rules of `spectral:oas` that it once broke, and texts without a
/// maximum length in what is read.
fn complaints(document: &Value) -> Vec<String> {
    fn walk(value: &Value, at: &str, is_read: bool, found: &mut Vec<String>) {
        let Some(all) = value.as_object() else {
            for one in value.as_array().into_iter().flatten() {
                walk(one, at, is_read, found);
            }
            return;
        };
        let is = |kind: &str| {
            all.get("type").is_some_and(|t| t == kind || t.as_array().is_some_and(|all| all.contains(&json!(kind))))
        };
        if let Some(values) = all.get("enum").and_then(Value::as_array) {
            let is_among = |value: &Value| values.contains(value);
            let default = all.get("default").is_none_or(is_among);
            if !default || is("null") != is_among(&Value::Null) {
                found.push(format!("{at}: its default, or null, is not among its values"));
            }
        } else if all.get("default") == Some(&Value::Null) && !is("null") {
            found.push(format!("{at}: its default is null, which it cannot be"));
        }
        let bounds = ["maxLength", "enum", "const", "format", "pattern"];
        if is_read && is("string") && !bounds.iter().any(|bound| all.contains_key(*bound)) {
            found.push(format!("{at}: a text of any length"));
        }
        for (name, one) in all.iter().filter(|(name, _)| !["example", "examples"].contains(&name.as_str())) {
            walk(one, &format!("{at}/{name}"), is_read, found);
        }
    }
    let mut found = Vec::new();
    if !document["info"]["contact"].is_object() {
        found.push("info: no contact".to_owned());
    }
    for (path, operations) in document["paths"].as_object().unwrap() {
        for (method, operation) in operations.as_object().unwrap() {
            let at = format!("{method} {path}");
            if operation["description"].as_str().is_none_or(str::is_empty) {
                found.push(format!("{at}: no description"));
            }
            let scopes = operation["security"]
                .as_array()
                .into_iter()
                .flatten()
                .flat_map(|one| one["token"].as_array())
                .flatten();
            found.extend(scopes.map(|scope| format!("{at}: the scheme has no scope {scope}")));
            // Headers need no maximum length: a malformed header is ignored, and the request is accepted.
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            for parameter in parameters.filter(|parameter| parameter["in"] != "header") {
                walk(parameter, &format!("{at} parameters"), true, &mut found);
            }
            walk(&operation["requestBody"], &format!("{at} body"), true, &mut found);
        }
    }
    let text = document.to_string();
    for (kind, all) in document["components"].as_object().unwrap() {
        for (name, one) in all.as_object().unwrap() {
            let is_used = text.contains(&format!("\"#/components/{kind}/{name}\""));
            if !is_used && kind != "securitySchemes" {
                found.push(format!("{kind}/{name}: nothing refers to it"));
            }
            let is_read =
                ["Filter", "OrderInput", "Customer", "Address", "Line", "Redrive", "WhoAndWhy", "Mend", "Migrate"]
                    .contains(&name.as_str());
            walk(one, &format!("{kind}/{name}"), is_read, &mut found);
        }
    }
    found
}

/// Breaks a document.
type Break = fn(&mut Value);

#[test]
fn the_document_keeps_the_rules_of_documents() {
    let good = document::document();
    assert_eq!(complaints(&good), Vec::<String>::new());
    // Each rule finds the defect that it is for.
    let broken: [(&str, Break); 7] = [
        ("no contact", |d| drop(d["info"].as_object_mut().unwrap().remove("contact"))),
        ("no description", |d| d["paths"]["/queues"]["get"]["description"] = json!("")),
        ("no scope", |d| d["paths"]["/queues"]["get"]["security"][0]["token"] = json!(["x"])),
        ("default", |d| d["components"]["schemas"]["Filter"]["properties"]["state"]["default"] = json!("Lost")),
        ("null", |d| {
            drop(d["components"]["schemas"]["Filter"]["properties"]["state"]["enum"].as_array_mut().unwrap().pop())
        }),
        ("refers", |d| d["components"]["headers"]["Allow"] = json!({"schema": {"type": "string"}})),
        ("any length", |d| d["components"]["schemas"]["Filter"]["properties"]["step"] = json!({"type": "string"})),
    ];
    for (rule, break_it) in broken {
        let mut bad = good.clone();
        break_it(&mut bad);
        let found = complaints(&bad);
        assert!(found.len() == 1 && found[0].contains(rule), "{rule}: {found:?}");
    }
}

/// A path with its parameters and names of actions replaced by placeholders.
fn open(path: &str) -> String {
    let parts: Vec<&str> = path.split('/').map(|part| if part.starts_with('{') { "{}" } else { part }).collect();
    match parts.as_slice() {
        ["", "orders", "{}", "actions", _] => "/orders/{}/actions/{}".into(),
        ["", "jobs", "{}", "pause" | "resume" | "abort"] => "/jobs/{}/{}".into(),
        ["", "agents", "{}", _] => "/agents/{}/{}".into(),
        ["", "workflows", "{}", _] => "/workflows/{}/{}".into(),
        parts => parts.join("/"),
    }
}

/// The routes in a router's source, such as `("GET", ["orders", id, "history"])`.
fn in_code(text: &str) -> BTreeSet<(String, String)> {
    let arms = text.match_indices("(\"").filter_map(|(at, _)| {
        let (method, rest) = text[at + 2..].split_once("\", [")?;
        let (parts, after) = rest.split_once(']')?;
        let is_arm = method.bytes().all(|b| b.is_ascii_uppercase()) && after.starts_with(") =>");
        let part = |part: &str| match part.trim().strip_prefix('"') {
            Some(name) => name.trim_end_matches('"').to_owned(),
            None => "{}".to_owned(),
        };
        let path = parts.split(", ").map(part).fold(String::new(), |path, part| path + "/" + &part);
        is_arm.then(|| (method.to_ascii_lowercase(), path))
    });
    arms.collect()
}

// The document and the template have exactly the routes that the code answers. The console is a page, not an operation.
#[test]
fn the_document_the_code_and_the_template_have_the_same_routes() {
    let documented: BTreeSet<_> = routes().iter().map(|r| (r.method.to_owned(), open(&r.path))).collect();
    let mut code = in_code(&read("functions/submit/src/http.rs"));
    code.append(&mut in_code(&read("functions/operator/src/http.rs")));
    let template = read("infra/api.yaml");
    let keys = template.lines().filter_map(|line| line.trim().strip_prefix("RouteKey: ")?.split_once(' '));
    let mut template: BTreeSet<_> = keys.map(|(method, path)| (method.to_ascii_lowercase(), open(path))).collect();
    code.retain(|(_, path)| !path.starts_with("/console"));
    template.retain(|(_, path)| !path.starts_with("/console"));
    assert_eq!(code, documented, "the code (left) and the document");
    assert_eq!(template, documented, "the template (left) and the document");
}

fn address(route: &Route, url: &str) -> String {
    let path = route.path.replace("{order_id}", "ord_0123456789abcdefghjkmnpqrs").replace("{code}", "overloaded");
    format!("{url}{}", path.replace("{name}", "payment"))
}

fn call(route: &Route, client: &reqwest::Client, url: &str) -> reqwest::RequestBuilder {
    let method = Method::from_bytes(route.method.to_ascii_uppercase().as_bytes()).unwrap();
    client.request(method, address(route, url))
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, Option<String>, Value) {
    let answer = request.send().await.unwrap();
    let allow = answer.headers().get("allow").map(|v| v.to_str().unwrap().to_owned());
    let status = answer.status().as_u16();
    let text = answer.text().await.unwrap();
    (status, allow, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}

// Every route of the document answers with a status and a code that it lists; for another method the answer lists the
// allowed ones.
#[tokio::test(flavor = "multi_thread")]
async fn every_route_of_the_document_answers() {
    let whole = Whole::start(&[three_noops("60s")]).await;
    let url = &whole.system.url;
    let mut methods: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for route in &routes() {
        methods.entry(route.path.clone()).or_default().insert(route.method.to_ascii_uppercase());
        let (status, _, body) = answer(call(route, &whole.http, url).json(&json!({}))).await;
        let code = body["code"].as_str().unwrap_or_default();
        let is_listed =
            status == 200 || route.has_page(status) || route.codes.contains(&code) && code != "no_such_route";
        assert!(is_listed, "{} {}: {status} {body}", route.method, route.path);
    }
    for route in &routes() {
        let (status, allow, body) = answer(whole.http.delete(address(route, url))).await;
        assert_eq!((status, &body["code"]), (405, &json!("method_not_allowed")), "{}", route.path);
        let allowed: BTreeSet<_> = allow.unwrap().split(", ").map(str::to_owned).collect();
        assert_eq!(allowed, methods[&route.path], "{}", route.path);
    }
}

// Point 7: without a token only the documents are served; with a token, its scopes decide, on every route.
#[tokio::test(flavor = "multi_thread")]
async fn a_token_opens_the_routes_of_its_scopes() {
    let folder = std::env::temp_dir().join(format!("stepwarden-openapi-{}", std::process::id()));
    let Scopes { orders, operator, .. } = Scopes::default();
    let entry = |n: usize, tenant: &str, scope: &str| {
        format!(
            "[[token]]\ntoken = \"token-number-{n}-0\"\nsub = \"s{n}\"\ntenant = \"{tenant}\"\nscopes = [{scope:?}]\n"
        )
    };
    std::fs::write(&folder, entry(1, "acme", &orders) + &entry(2, "acme", &operator) + &entry(3, "other", &orders))
        .unwrap();
    let whole = Whole::start_with(&[three_noops("60s")], |options| options.access.file = Some(folder.clone())).await;
    std::fs::remove_file(&folder).unwrap();
    let url = &whole.system.url;
    let [applicant, person, stranger] = [1, 2, 3].map(|n| http(&format!("token-number-{n}-0")));
    let nobody = reqwest::Client::new();
    for route in &routes() {
        let name = format!("{} {}", route.method, route.path);
        let refused = call(route, &nobody, url).json(&json!({})).send().await.unwrap();
        let Some(scope) = &route.scope else {
            let is_handed_out =
                ["/callbacks", "/links", "/heartbeats"].iter().any(|start| route.path.starts_with(start));
            let status = if is_handed_out { 404 } else { 200 };
            assert_eq!(refused.status(), status, "{name}");
            continue;
        };
        assert_eq!(refused.status(), 401, "{name}");
        assert_eq!(refused.headers()["www-authenticate"], "Bearer", "{name}");
        let body: Value = refused.json().await.unwrap();
        assert_eq!((&body["code"], &body["field"]), (&json!("unauthorized"), &json!("Authorization")), "{name}");
        for (client, has) in [(&applicant, &orders), (&person, &operator)] {
            let (status, _, body) = answer(call(route, client, url).json(&json!({}))).await;
            assert_eq!(body["code"] == "forbidden", scope != has, "{name} with {has}: {status} {body}");
            assert_eq!(status == 403, scope != has, "{name} with {has}");
        }
    }
    let rebound = whole.http.get(format!("{url}/orders")).header("host", "evil.example").send().await.unwrap();
    assert_eq!(rebound.status(), StatusCode::MISDIRECTED_REQUEST);

    // The tenant comes from the token, whatever the body says, and a tenant sees only its own orders.
    let body = json!({"workflow": "noops", "input": {"tenant": "other"}});
    let post =
        |client: &reqwest::Client| client.post(format!("{url}/orders")).header("idempotency-key", "same").json(&body);
    let id = answer(post(&applicant)).await.2["order_id"].as_str().unwrap().to_owned();
    let theirs = answer(post(&stranger)).await.2["order_id"].as_str().unwrap().to_owned();
    assert_ne!(id, theirs, "a key is a tenant's own");
    for end in ["", "/history"] {
        let get = |client: &reqwest::Client| answer(client.get(format!("{url}/orders/{id}{end}")));
        assert_eq!(get(&applicant).await.0, 200);
        assert_eq!(get(&stranger).await.2["code"], "no_such_order", "{end}");
        assert_eq!(get(&whole.http).await.0, 200, "an operator sees all");
    }
    assert_eq!(whole.get(&format!("/orders/{id}")).await["tenant"], "acme");
    // The person who acts is the token's subject.
    let paused = person.post(format!("{url}/agents/noop/pause")).json(&json!({"by": "somebody", "reason": "r"}));
    assert_eq!(answer(paused).await.0, 200);
    let agents = whole.get("/agents").await;
    let by = agents["agents"].as_array().unwrap().iter().find_map(|agent| agent["paused"]["by"].as_str());
    assert_eq!(by, Some("s2"), "{agents}");
}

// B10: the type of a problem is a path that explains it.
#[tokio::test(flavor = "multi_thread")]
async fn the_type_of_a_problem_leads_to_its_page() {
    let whole = Whole::start(&[three_noops("60s")]).await;
    let problem = whole.get("/orders/none").await;
    let kinds = CODES.iter().map(|(code, ..)| format!("/problems/{code}"));
    for kind in kinds.chain([problem["type"].as_str().unwrap().to_owned()]) {
        let page = reqwest::get(format!("{}{kind}", whole.system.url)).await.unwrap();
        assert_eq!(page.headers()["content-type"], "text/markdown; charset=utf-8");
        let text = page.text().await.unwrap();
        assert!(text.starts_with(&kind.replace("/problems/", "# ")), "{kind}: {text}");
    }
}
