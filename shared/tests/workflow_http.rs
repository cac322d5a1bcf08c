//! The `http` of a workflow file: what is accepted, what it becomes, and that every refusal names its line and says what to
//! write instead.

use serde_json::json;
use shared::workflow::file::{Known, Settings, parse, parse_for};
use shared::workflow::http::{Http, MAX_BYTES, Meaning};
use shared::workflow::{Step, Workflow};

const KNOWN: Known<'_> = Known { agents: &["http", "inventory"], inputs: &[] };

const FULL: &str = r#"name = "full"
[[step]]
name = "notify"
timeout = "10s"
[step.http]
url = "https://crm.example/orders/{order_id}?step={step}"
method = "PUT"
headers = { Authorization = "Bearer {secret:crm-token}", accept = "application/json" }
output = "/id"
done = [409]
transient = [408, 425, 429, "5xx"]
permanent = ["4xx"]
[step.undo.http]
url = "https://crm.example/orders/{order_id}"
method = "DELETE"
"#;

fn read(text: &str) -> Result<Workflow, String> {
    parse("w.toml", text, KNOWN).map_err(|e| e.to_string())
}

/// `FULL` with one thing replaced.
fn with(old: &str, new: &str) -> String {
    assert!(FULL.contains(old), "{old}");
    FULL.replacen(old, new, 1)
}

/// The only step of a workflow with this line in it.
fn step(line: &str) -> Result<Step, String> {
    read(&format!("name = \"w\"\n[[step]]\nname = \"s\"\ntimeout = \"1s\"\n{line}\n")).map(|mut w| w.steps.remove(0))
}

#[test]
fn a_url_is_enough() {
    let step = step("http = \"https://crm.example/hook\"").unwrap();
    let http = step.http.unwrap();
    assert_eq!((step.agent.as_str(), http.method.as_str(), http.headers.len()), ("http", "POST", 0));
    assert_eq!(
        (http.meaning(204), http.meaning(503), http.meaning(400)),
        (Meaning::Done, Meaning::Transient, Meaning::Permanent)
    );
    assert_eq!(serde_json::to_string(&http).unwrap(), r#"{"url":"https://crm.example/hook","method":"POST"}"#);
}

#[test]
fn everything_can_be_said() {
    let workflow = read(FULL).unwrap();
    assert_eq!(workflow.agents(), ["http"]);
    let step = &workflow.steps[0];
    let (http, undo) = (step.http.as_ref().unwrap(), step.undo.as_ref().unwrap().http.as_ref().unwrap());
    assert_eq!(workflow.calls_over_http().collect::<Vec<_>>(), [("notify", http), ("notify", undo)]);
    assert_eq!(http.url_for("ord_1", "notify"), "https://crm.example/orders/ord_1?step=notify");
    assert_eq!(http.headers["authorization"].text(), "Bearer {secret:crm-token}");
    assert_eq!(http.secrets().collect::<Vec<_>>(), ["crm-token"]);
    assert_eq!(
        (http.meaning(409), http.meaning(429), http.meaning(404)),
        (Meaning::Done, Meaning::Transient, Meaning::Permanent)
    );
    // The undo is the same service: its headers and statuses count there too, the rest is its own.
    assert_eq!((undo.method.as_str(), &undo.headers, &undo.output), ("DELETE", &http.headers, &None));
    assert_eq!(undo.meaning(404), Meaning::Permanent, "the file says so");
    let json = serde_json::to_string(&workflow).unwrap();
    assert_eq!(serde_json::from_str::<Workflow>(&json).unwrap(), workflow, "a task finds its definition again");
}

// A secret goes to no other place than the one it was written for.
#[test]
fn the_headers_of_a_step_do_not_go_to_another_host() {
    for (url, wanted) in [
        ("https://crm.example/undo", 2),
        ("https://crm.example:443/undo", 2),
        ("https://crm.example:8443/undo", 0),
        ("https://other.example/undo", 0),
    ] {
        let text = with("https://crm.example/orders/{order_id}\"\nmethod = \"DELETE\"", &format!("{url}\""));
        let undo = read(&text).unwrap().steps.remove(0).undo.unwrap().http.unwrap();
        assert_eq!(undo.headers.len(), wanted, "{url}");
    }
    let own = with("method = \"DELETE\"", "headers = { accept = \"text/plain\" }");
    let undo = read(&own).unwrap().steps.remove(0).undo.unwrap().http.unwrap();
    assert_eq!(undo.headers.keys().collect::<Vec<_>>(), ["accept"]);
}

// B3: every setting is part of the definition that a task is pinned to.
#[test]
fn every_setting_changes_the_hash() {
    let changes = [
        ("step={step}", "s={step}"),
        ("\"PUT\"", "\"PATCH\""),
        ("crm-token", "crm-token-2"),
        ("/id", "/key"),
        ("[409]", "[410]"),
        ("425, ", ""),
        ("[\"4xx\"]", "[\"3xx\"]"),
        ("\"DELETE\"", "\"POST\""),
    ];
    let mut hashes = std::collections::BTreeSet::from([read(FULL).unwrap().hash()]);
    for (old, new) in changes {
        assert!(hashes.insert(read(&with(old, new)).unwrap().hash()), "{old} -> {new}");
    }
    let turned = with("[408, 425, 429, \"5xx\"]", "[\"5xx\", 429, 425, 408]");
    assert_eq!(read(&turned).unwrap().hash(), read(FULL).unwrap().hash(), "the order of a list does not matter");
}

#[test]
fn every_refusal_names_its_line_and_says_what_to_write_instead() {
    let long = with("application/json", &"x".repeat(MAX_BYTES));
    // (file, line, what the message has to hold)
    let cases: Vec<(String, usize, &[&str])> = vec![
        (with("timeout = \"10s\"", "timeout = \"10s\"\nagent = \"inventory\""), 5, &["`agent` and `http`", "keep one"]),
        (with("url = \"https://crm.example/orders/{order_id}?", "uri = \"?"), 6, &["`uri` is not a key here", "`url`"]),
        (with("\"PUT\"", "\"put\""), 7, &["unknown method `put`", "`PUT`"]),
        (with("?step={step}", "?step={stp}"), 6, &["cannot contain `{stp}`", "{order_id} or {step}"]),
        (with("?step={step}", "?key={secret:crm}"), 6, &["cannot contain `{secret:crm}`", "belongs in a header"]),
        (with("?step={step}", "?step={step"), 6, &["an unmatched brace", "%7B"]),
        (
            with("crm.example/orders", "{step}.example/orders"),
            6,
            &["the host", "must be literal", "https://crm.example"],
        ),
        (with("crm.example/orders/{order_id}", "crm.example:{order_id}/"), 6, &["the host", "must be literal"]),
        (with("crm.example/orders/{order_id}", "crm.example{order_id}"), 6, &["the host", "must be literal"]),
        (with("https://crm", "http://crm"), 6, &["neither https nor http to this machine"]),
        (with("https://crm", "ftp://crm"), 6, &["neither https nor http to this machine"]),
        (with("https://crm.example/orders/", "https:///"), 6, &["the host", "must be literal"]),
        (with("https://crm.example", "https:"), 6, &["the host", "must be literal"]),
        (with("https://crm.example", "https://crm.example:99999"), 6, &["is not a URL", "write, for example"]),
        (with("https://crm", "https://user:pass@crm"), 6, &["contains a password", "{secret:NAME}"]),
        (with("https://crm.example", "https://169.254.169.254"), 6, &["a link-local address"]),
        (with("https://crm.example", "https://2852039166"), 6, &["a link-local address"]),
        (with("https://crm.example", "https://[fe80::1]"), 6, &["a link-local address"]),
        (with("orders/", "or ders/"), 6, &["contains characters that a URL cannot"]),
        (
            with("Bearer {secret:crm-token}", "Bearer abc"),
            8,
            &["would put a secret into the file", "{secret:crm-token}"],
        ),
        (with("secret:crm-token", "secret:CRM"), 8, &["does not name a secret", "a lower-case letter"]),
        (with("secret:crm-token", "crm-token"), 8, &["cannot contain `{crm-token}`", "{secret:NAME}"]),
        (with("accept =", "\"complete-by\" ="), 8, &["the call sets header", "leave it out"]),
        (
            with("accept =", "\"idempotency-key\" ="),
            8,
            &["must differ between orders", "${uuid('pay')}", "leave the header out"],
        ),
        (with("accept =", "\"a b\" ="), 8, &["cannot name a header"]),
        (with("accept =", "authorization ="), 8, &["a secret"]),
        (with("accept = \"application/json\"", "Accept = \"a\", accept = \"b\""), 8, &["twice"]),
        (with("application/json", "a\\nb"), 8, &["not printable ASCII"]),
        (with("\"/id\"", "\"id\""), 9, &["points at nothing", "\"/id\""]),
        (with("[409]", "[409, 408]"), 11, &["408 is named twice"]),
        (with("[409]", "[42]"), 10, &["`42` is not a status", "\"5xx\""]),
        (with("[409]", "[\"6xx\"]"), 10, &["`6xx` is not a status", "\"5xx\""]),
        (with("[409]", "[true]"), 10, &["write a status such as 429"]),
        (long, 5, &["the limit is 2048", "fewer headers"]),
        (
            FULL.replace(
                "[step.undo.http]\nurl = \"https://crm.example/orders/{order_id}\"\nmethod = \"DELETE\"",
                "[step.undo]",
            ),
            13,
            &["the undo of step `notify` has no agent", "http = \"URL\""],
        ),
    ];
    for (text, line, words) in cases {
        let error = read(&text).unwrap_err();
        assert!(error.starts_with(&format!("w.toml:{line}: ")), "expected line {line}: {error}\n{text}");
        assert!(!error.contains('\n'), "{error}");
        for word in words {
            assert!(error.contains(word), "`{word}` is missing: {error}");
        }
    }
    for (line, word) in [
        ("http = 5", "a URL, or a table"),
        ("http = {}", "`url` is missing"),
        ("agent = \"http\"", "write `http = \"URL\"`"),
        ("agent = \"inventory\"\nundo = { agent = \"http\" }", "write `http = \"URL\"`"),
    ] {
        let error = step(line).unwrap_err();
        assert!(error.contains(word), "{line}: {error}");
    }
    let nobody = parse("w.toml", FULL, Known { agents: &["inventory"], inputs: &[] }).unwrap_err().to_string();
    assert!(nobody.contains("nothing here calls URLs"), "{nobody}");
}

#[test]
fn plain_http_is_for_this_machine_only() {
    for url in ["http://localhost:9/x", "http://127.0.0.1/x", "http://[::1]:9/{order_id}", "https://10.0.0.1/x"] {
        assert!(step(&format!("http = \"{url}\"")).is_ok(), "{url}");
    }
    for url in ["http://10.0.0.1/x", "http://localhost.example/x", "http://crm/x"] {
        assert!(step(&format!("http = \"{url}\"")).is_err(), "{url}");
    }
}

#[test]
fn no_cut_of_a_good_file_makes_the_parser_panic() {
    for end in 0..FULL.len() {
        let _ = read(&FULL[..end]);
        let _ = read(&FULL[end..]);
        let _ = read(&format!("{}\u{e9}{}", &FULL[..end], &FULL[end..]));
        let _ = read(&format!("{}{{{}", &FULL[..end], &FULL[end..]));
    }
}

/// A workflow whose `config` has a host, with this call as its only step.
fn of_deployment(step: &str, config: serde_json::Value, hosts: &str) -> Result<Workflow, String> {
    let text = format!(
        "name = \"w\"\nconfig = {{ host = \"crm.example\", limit = 5 }}\n[[step]]\nname = \"s\"\ntimeout = \"1s\"\n{step}\n"
    );
    let config = [("w".to_owned(), config.as_object().unwrap().clone())].into();
    parse_for("w.toml", &text, KNOWN, &Settings { config, hosts: hosts.parse().unwrap() }).map_err(|e| e.to_string())
}

// Security, K1: a host out of `config` is the file's own, or the deployment's, and is fixed when the file is read.
#[test]
fn a_host_out_of_config_is_written_into_the_definition() {
    let url = |step: &str, config: serde_json::Value| {
        of_deployment(step, config, "").map(|mut w| w.steps.remove(0).http.unwrap().url.text().to_owned())
    };
    let step = "http = \"https://${config.host}/orders/${input.id}\"";
    assert_eq!(url(step, json!({})).as_deref(), Ok("https://crm.example/orders/${input.id}"));
    let other = json!({"host": "crm.test.example:8443"});
    assert_eq!(url(step, other).as_deref(), Ok("https://crm.test.example:8443/orders/${input.id}"));
    let part = "http = \"https://api.${config.host}?x=${config.limit}\"";
    assert_eq!(url(part, json!({})).as_deref(), Ok("https://api.crm.example?x=${config.limit}"));
    let whole = "http = \"${config.host}/x\"";
    assert_eq!(url(whole, json!({"host": "https://a.example"})).as_deref(), Ok("https://a.example/x"));
    for (host, words) in [
        ("user:pass@a.example", "contains a password"),
        ("169.254.169.254", "a link-local address"),
        ("a b", "characters that a URL cannot"),
        ("{step}.example", "must be literal"),
        ("", "must be literal"),
    ] {
        let error = url(step, json!({"host": host})).unwrap_err();
        assert!(error.starts_with("w.toml:6: ") && error.contains(words), "{host}: {error}");
    }
    let hashes = [json!({}), json!({"host": "b.example"}), json!({"limit": 6})]
        .map(|c| of_deployment(step, c, "").unwrap().hash());
    assert!(hashes[0] != hashes[1] && hashes[0] != hashes[2], "what the deployment gives is part of the hash");
}

#[test]
fn what_a_deployment_sets_must_be_in_the_file() {
    let step = "agent = \"inventory\"";
    let good = of_deployment(step, json!({"limit": 7}), "").unwrap();
    assert_eq!((&good.config["limit"], &good.config["host"]), (&json!(7), &json!("crm.example")));
    for (config, words) in [
        (json!({"limt": 7}), "sets `limt`, which is not in the workflow's `config`: it has `host`, `limit`"),
        (json!({"limit": "7"}), "sets `config.limit` to a string, but in the file it is a number; set it to a number"),
        (json!({"host": null}), "sets `config.host` to null, but in the file it is a string"),
    ] {
        let error = of_deployment(step, config, "").unwrap_err();
        assert!(error.starts_with("w.toml:1: ") && error.contains(words), "{error}");
    }
}

// K1: services differ in what they take as a key; a second call with one key would get the answer of the first.
#[test]
fn a_file_may_set_idempotency_keys() {
    let with_key =
        |key: &str| format!("http = {{ url = \"https://a.example\", headers = {{ Idempotency-Key = \"{key}\" }} }}");
    let undo = "\nundo = { http = \"https://a.example/undo\" }";
    for key in ["${uuid('pay')}", "{order_id}-{step}", "${order.id}/pay"] {
        let step = step(&(with_key(key) + undo)).unwrap();
        let of = |http: Option<Http>| http.unwrap().headers.contains_key("idempotency-key");
        assert_eq!((of(step.http.clone()), of(step.undo.unwrap().http)), (true, false), "{key}: it is not inherited");
    }
    for key in ["constant", "{step}", "{secret:key}", "${order.id}-${now}"] {
        assert!(step(&with_key(key)).unwrap_err().contains("must differ between orders"), "{key}");
    }
    let two = |one: &str, other: &str| {
        let step = |name: &str, key: &str| {
            format!("[[step]]\nname = \"{name}\"\nafter = []\ntimeout = \"1s\"\n{}\n", with_key(key))
        };
        read(&format!("name = \"w\"\n{}{}", step("a", one), step("b", other)))
    };
    two("{order_id}-{step}", "{order_id}-{step}").unwrap();
    for (one, other) in [("${order.id}", "${order.id}"), ("{order_id}-b", "{order_id}-{step}")] {
        let error = two(one, other).unwrap_err();
        assert!(error.contains("w.toml:8") && error.contains("another call, whose answer"), "{error}");
    }
}

// Security: where a host comes with the order, the deployment has to allow it, and it can be nothing but a name.
#[test]
fn a_host_that_comes_with_the_order_needs_a_list() {
    let read = |step: &str, hosts: &str| of_deployment(step, json!({}), hosts);
    let step = "http = { url = \"https://${input.host}:8443/a\", headers = { authorization = \"Bearer {secret:t}\" } }\n\
                undo = { http = \"https://${input.host}:8443/b\" }";
    let error = read(step, "").unwrap_err();
    assert!(error.contains("comes from the order, and this deployment allows no such host"), "{error}");
    let workflow = read(step, "*.shop.example").unwrap();
    assert!(workflow.maps_host());
    // `test`, `simulate` and `workflows check` do not know the deployment's list.
    let text = format!("name = \"w\"\n[[step]]\nname = \"a\"\ntimeout = \"5s\"\n{step}\n");
    parse("w.toml", &text, Known { agents: &["http"], inputs: &[] }).unwrap();
    let undo = |workflow: &Workflow| workflow.steps[0].undo.clone().unwrap().http.unwrap();
    assert_eq!(undo(&workflow).headers.len(), 1, "the same host");
    let other = read(&step.replacen("${input.host}", "${input.other}", 1), "*.shop.example").unwrap();
    assert_eq!(undo(&other).headers.len(), 0, "a secret goes to no other host");
    for (url, words) in [
        ("http://${input.host}/a", "must be literal"),
        ("https://user@${input.host}/a", "must be literal"),
        ("https://{step}.${input.host}/a", "must be literal"),
        ("${input.url}", "must be literal"),
        ("${input.scheme}://a.example/", "must be literal"),
        ("https://${input.host}{order_id}/a", "must be literal"),
    ] {
        let error = read(&format!("http = \"{url}\""), "*.shop.example").unwrap_err();
        assert!(error.contains(words), "{url}: {error}");
    }
}
