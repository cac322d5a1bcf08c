//! Goal: a URL step calls its URL as the workflow file says, and interprets the answers correctly. Method: the real
//! agent and runtime against a server on loopback that answers as the path asks, and keeps the requests.

use crate::server::{Heard, Server, failures, not_called, perform, runtime};
use agent::agents::Means;
use agent::agents::http::Http;
use agent::secrets::Secrets;
use agent::{AgentError, Runtime, breaker};
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use shared::message::{Effect, Outcome, Request};
use shared::ports::{Messenger, async_trait};
use shared::time::{SignedDuration, Timestamp};
use std::sync::{Arc, Mutex};

async fn answer(asked: Heard) -> Response {
    let said = asked.header("authorization").to_owned();
    let what = asked.path[1..].split('?').next().unwrap();
    let json = [("content-type", "application/json; charset=utf-8")];
    match what.split_once('/').unwrap_or((what, "")) {
        ("status", code) => StatusCode::from_u16(code.parse().unwrap()).unwrap().into_response(),
        ("later", seconds) => (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", seconds)]).into_response(),
        ("moved", _) => (StatusCode::FOUND, [("location", "/json")]).into_response(),
        ("long", bytes) => (json, format!("\"{}\"", "x".repeat(bytes.parse().unwrap()))).into_response(),
        ("page", bytes) => "x".repeat(bytes.parse().unwrap()).into_response(),
        ("json", _) => (json, r#"{"data":{"id":7}}"#).into_response(),
        ("broken", _) => (json, "{").into_response(),
        ("echo", _) => {
            (StatusCode::BAD_REQUEST, json, json!({"detail": format!("no {said}")}).to_string()).into_response()
        }
        ("far", bytes) => {
            let detail = "x".repeat(bytes.parse().unwrap()) + &said;
            (StatusCode::BAD_REQUEST, json, json!({"detail": detail}).to_string()).into_response()
        }
        ("repeat", _) => {
            let name = said.as_str();
            (json, json!({"id": 7, "sent": [name], name: "name"}).to_string()).into_response()
        }
        ("beside", _) => {
            (json, r#"{"hash":340282366920938463463374607431768211455,"x":{"a":1,"a":2},"id":7}"#).into_response()
        }
        ("twice", _) => (json, format!("{{\"{said}\": {{\"a\": 1, \"a\": 2}}}}")).into_response(),
        ("hang", _) => std::future::pending().await,
        other => panic!("{other:?}"),
    }
}

async fn start() -> Server {
    Server::start(answer).await
}

impl Server {
    /// A request whose call goes to `path` here, with the further settings `more`.
    fn request(&self, path: &str, more: Value) -> Request {
        let mut http = json!({"url": format!("{}{path}", self.url), "method": "POST"});
        http.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        request(&http)
    }
}

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn request(http: &Value) -> Request {
    crate::server::request(json!({"http": http, "traceparent": TRACE}))
}

/// An agent whose secret `crm-token` is `s3cret`, which its secret `longer` begins with.
fn agent() -> (Http, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("crm-token"), "s3cret\n").unwrap();
    std::fs::write(folder.path().join("longer"), "s3cret-more\n").unwrap();
    std::fs::write(folder.path().join("bad"), "two\nlines").unwrap();
    let secrets = Arc::new(Secrets::Here { folder: Some(folder.path().to_owned()) });
    let hosts = "hooks.example, *.shop.example".parse().unwrap();
    (Http::new(&Means { secrets, hosts, ..Means::default() }), folder)
}

fn running(breaker: breaker::Settings) -> (Runtime, tempfile::TempDir) {
    let (agent, folder) = agent();
    (runtime(agent, breaker), folder)
}

async fn act(request: &Request) -> Result<Value, AgentError> {
    let (agent, _folder) = agent();
    crate::server::act(&agent, request).await
}

/// The error of a call that no attempt makes good.
fn permanent(result: Result<Value, AgentError>) -> String {
    match result {
        Err(AgentError::Refused { error, .. } | AgentError::Unusable { error }) => error,
        other => panic!("{other:?}"),
    }
}

fn is_transient(result: &Result<Value, AgentError>) -> bool {
    matches!(result, Err(AgentError::Transient { .. }))
}

// A2, A3: key, deadline and secrets are sent; the body names the order and the step.
#[tokio::test]
async fn a_call_is_what_the_file_says() {
    let server = start().await;
    let headers = json!({"authorization": "Bearer {secret:crm-token}", "x-order": "{order_id}/{step}"});
    let mut request = server.request("/json/{order_id}?step={step}", json!({"headers": headers, "output": "/data/id"}));
    assert_eq!(act(&request).await, Ok(json!(7)));
    request.direction = shared::step::Direction::Undo;
    request.output = Some(json!({"id": 7}));
    request.undoes = Some("ord_1:notify:do".into());
    request.http.as_mut().unwrap().method = "DELETE".into();
    request.http.as_mut().unwrap().output = None;
    assert_eq!(act(&request).await, Ok(Value::Null), "the answer to an undo is not kept");
    request.http.as_mut().unwrap().method = "PUT".into();
    act(&request).await.unwrap();

    let [done, deleted, undone] = server.heard().try_into().unwrap();
    assert_eq!((done.method.as_str(), done.path.as_str()), ("POST", "/json/ord_1?step=notify"));
    for (name, value) in [
        ("authorization", "Bearer s3cret"),
        ("x-order", "ord_1/notify"),
        ("idempotency-key", "ord_1:notify:do"),
        ("complete-by", &request.complete_by.to_string()),
        ("content-type", "application/json"),
        ("traceparent", TRACE),
    ] {
        assert_eq!(done.headers[name], value, "{name}");
    }
    let wanted = json!({
        "order_id": "ord_1", "step": "notify", "tenant": "acme", "input": {"total_cents": 5}, "outputs": {"reserve": {"id": 1}},
    });
    assert_eq!(serde_json::from_str::<Value>(&done.body).unwrap(), wanted);
    assert_eq!((deleted.method.as_str(), deleted.body.as_str()), ("DELETE", ""));
    let wanted = json!({
        "order_id": "ord_1", "step": "notify", "tenant": "acme", "input": {"total_cents": 5},
        "undoes": "ord_1:notify:do", "output": {"id": 7},
    });
    assert_eq!(serde_json::from_str::<Value>(&undone.body).unwrap(), wanted);
}

// A2: what answers mean. The rules for statuses are a table in shared/tests/http_calls.rs.
#[tokio::test]
async fn answers_are_distinguished() {
    let server = start().await;
    let ask = async |path: &str, more: Value| act(&server.request(path, more)).await;
    assert_eq!(ask("/status/204", json!({})).await, Ok(Value::Null));
    assert_eq!(ask("/page/100000", json!({})).await, Ok(Value::Null), "what is not JSON is no output");
    assert_eq!(ask("/status/409", json!({"done": [409]})).await, Ok(Value::Null));
    assert_eq!(ask("/json/1", json!({"output": "/nothing"})).await, Ok(Value::Null));
    for (path, more, word) in [
        ("/status/400", json!({}), "400"),
        ("/status/501", json!({}), "501"),
        ("/status/503", json!({"permanent": ["5xx"]}), "503"),
        ("/broken/1", json!({}), "is not"),
        ("/long/1100000", json!({}), "longer than 1048576"),
        ("/page/100", json!({"permanent": [200]}), "200 OK: x"),
    ] {
        let result = ask(path, more).await;
        // Where the service did its work, it refused nothing.
        let is_done = path.starts_with("/broken") || path.starts_with("/long");
        assert_eq!(matches!(result, Err(AgentError::Unusable { .. })), is_done, "{path}: {result:?}");
        let error = permanent(result);
        assert!(error.contains(word), "{path}: {error}");
    }
    for (path, more) in [
        ("/status/503", json!({})),
        ("/status/429", json!({})),
        ("/status/404", json!({"transient": [404]})),
        // A refusal means what its status says, however long its page is.
        ("/long/1100000", json!({"transient": [200]})),
    ] {
        assert!(is_transient(&ask(path, more).await), "{path}");
    }
    let later = ask("/later/7", json!({})).await;
    assert!(
        matches!(&later, Err(AgentError::Transient { retry_after: Some(wait), .. }) if wait.as_secs() == 7),
        "{later:?}"
    );
}

// K1: the body is what the file maps: a form as payment providers read it, JSON, or a text.
#[tokio::test]
async fn a_mapped_body_is_sent_as_it_is() {
    let server = start().await;
    let input = json!({"amount": 5, "card": {"number": "4 2&", "tags": ["a", true]}, "note": null});
    let ask = async |more: Value, input: Value| {
        let mut request = server.request("/json/1", more);
        request.input = input;
        act(&request).await.unwrap();
        let heard = server.heard().pop().unwrap();
        (heard.header("content-type").to_owned(), heard.body)
    };
    let (kind, body) = ask(json!({"body": "form"}), input.clone()).await;
    assert_eq!(kind, "application/x-www-form-urlencoded");
    assert_eq!(body, "amount=5&card%5Bnumber%5D=4+2%26&card%5Btags%5D%5B0%5D=a&card%5Btags%5D%5B1%5D=true");
    let (kind, body) = ask(json!({"body": "json"}), input.clone()).await;
    assert_eq!((kind.as_str(), serde_json::from_str::<Value>(&body).unwrap()), ("application/json", input));
    let (kind, body) = ask(json!({"body": "json"}), json!("a\nb")).await;
    assert_eq!((kind.as_str(), body.as_str()), ("text/plain; charset=utf-8", "a\nb"));
    let (kind, _) = ask(json!({"body": "json", "headers": {"content-type": "text/csv"}}), json!("a,b")).await;
    assert_eq!(kind, "text/csv");
}

#[tokio::test]
async fn an_output_is_mapped_from_answer_status_and_headers() {
    let server = start().await;
    let ask = async |path: &str, keep: Value| act(&server.request(path, json!({"keep": keep}))).await;
    let keep = json!({"id": "${answer.data.id}", "status": "${status}", "kind": "${header['content-type']}"});
    let kept = json!({"id": 7, "status": 200, "kind": "application/json; charset=utf-8"});
    assert_eq!(ask("/json/1", keep).await, Ok(kept));
    assert_eq!(ask("/status/204", json!({"status": "${status}"})).await, Ok(json!({"status": 204})));
    let missing = ask("/json/1", json!({"id": "${answer.id}"})).await;
    assert!(matches!(&missing, Err(AgentError::Unusable { error }) if error.contains("answer.id")), "{missing:?}");
}

#[tokio::test]
async fn a_refusal_says_its_status_and_its_body() {
    let server = start().await;
    let ask = async |path: &str, more: Value| act(&server.request(path, more)).await;
    let said = ask("/echo/1", json!({"headers": {"authorization": "{secret:crm-token}"}})).await;
    let Err(AgentError::Refused { status: 400, answer: Some(answer), .. }) = said else { panic!("{said:?}") };
    assert_eq!(answer, json!({"detail": "no ***"}));
    let long = ask("/far/2000", json!({})).await;
    assert!(matches!(long, Err(AgentError::Refused { status: 400, answer: None, .. })), "{long:?}");
    let none = ask("/status/404", json!({})).await;
    assert!(matches!(none, Err(AgentError::Refused { status: 404, answer: None, .. })), "{none:?}");
    let away = ask("/status/503", json!({})).await;
    assert!(matches!(away, Err(AgentError::Transient { status: Some(503), .. })), "{away:?}");
}

// A redirect could take a call with its secrets anywhere.
#[tokio::test]
async fn redirects_are_not_followed() {
    let server = start().await;
    let result = act(&server.request("/moved/1", json!({}))).await;
    assert!(permanent(result).contains("302"));
    assert_eq!(server.heard().len(), 1);
}

// Security: a secret is sent only in its header.
#[tokio::test]
async fn a_secret_is_looked_up_and_never_repeated() {
    let server = start().await;
    let with =
        |secret: &str| server.request("/echo/1", json!({"headers": {"authorization": format!("{{secret:{secret}}}")}}));
    let error = permanent(act(&with("crm-token")).await);
    assert!(error.contains("no ***") && !error.contains("s3cret"), "{error}");
    assert_eq!(server.heard().len(), 1);
    let (error, is_permanent) = not_called(act(&with("nobody-set-it")).await);
    assert!(error.contains("`nobody-set-it`") && error.contains("STEPWARDEN_SECRET_NOBODY_SET_IT"), "{error}");
    assert!(!is_permanent, "it may be set");
    let (error, is_permanent) = not_called(act(&with("bad")).await);
    assert!(error.contains("`authorization`") && !error.contains("lines"), "{error}");
    assert!(!is_permanent, "it may be mended");
    assert_eq!(server.heard().len(), 1, "nothing is called without its secret");
}

// The parts of an answer that a step does not store may be anything.
#[tokio::test]
async fn an_output_is_held_to_what_is_kept_of_it() {
    let server = start().await;
    let ask = async |pointer: &str| act(&server.request("/beside/1", json!({"output": pointer}))).await;
    assert_eq!(ask("/id").await, Ok(json!(7)));
    assert_eq!(ask("/no").await, Ok(Value::Null));
    for (pointer, named) in [("/hash", "beyond 64 bits"), ("/x", "`a` occurs twice"), ("/x/a", "`a` occurs twice")] {
        let error = permanent(ask(pointer).await);
        assert!(error.contains(named), "{error}");
    }
}

// Security: if a remote service repeats what it was sent, in any part of its answer, no secret is stored.
#[tokio::test]
async fn a_secret_that_an_answer_repeats_is_masked() {
    let server = start().await;
    let ask =
        async |path: &str, value: &str| act(&server.request(path, json!({"headers": {"authorization": value}}))).await;
    assert_eq!(
        ask("/repeat/1", "{secret:crm-token}").await,
        Ok(json!({"id": 7, "sent": ["***"], "***": "name"})),
        "in the output"
    );
    // The stored part of the answer ends within the secret.
    let error = permanent(ask("/far/194", "{secret:crm-token}").await);
    assert!(error.ends_with("x***"), "{error}");
    let error = permanent(ask("/echo/1", "{secret:crm-token} {secret:longer}").await);
    assert!(error.ends_with("no *** ***"), "{error}");
    let error = permanent(ask("/twice/1", "{secret:crm-token}").await);
    assert!(error.contains("`***.a` occurs twice"), "{error}");
}

// Security: a name resolves to what the network says. On AWS that must never be the machine itself.
#[tokio::test]
async fn in_the_cloud_nothing_on_this_machine_is_called() {
    let server = start().await;
    let sdk = stepwarden_aws::Clients::from_env().await.sdk;
    let secrets = Arc::new(Secrets::manager(aws_sdk_secretsmanager::Client::new(&sdk), String::new()));
    let agent = Http::new(&Means { secrets, ..Means::default() });
    let ask = async |url: &str| crate::server::act(&agent, &request(&json!({"url": url, "method": "POST"}))).await;
    let (error, is_permanent) = not_called(ask(&format!("{}/json/1", server.url)).await);
    assert!(error.contains("not https") && is_permanent, "{error}");
    let port = server.url.rsplit(':').next().unwrap();
    // No name is resolved here.
    for host in ["127.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "169.254.169.254", "[fd00:ec2::23]"] {
        let (error, is_permanent) = not_called(ask(&format!("https://{host}:{port}/json/1")).await);
        assert!(error.contains("agents may not call") && is_permanent, "{host}: {error}");
    }
    let result = ask(&format!("https://localhost:{port}/json/1")).await;
    let words = "no address that agents may call";
    assert!(matches!(&result, Err(AgentError::Transient { error, .. }) if error.contains(words)), "{result:?}");
    assert_eq!(server.heard().len(), 0);
    let missing =
        json!({"url": "https://crm.example/", "method": "POST", "headers": {"authorization": "{secret:crm}"}});
    let (error, _) = not_called(crate::server::act(&agent, &request(&missing)).await);
    assert!(error.contains("HttpSecretArn"), "{error}");
}

// Security: on a laptop, loopback may be called, but link-local addresses may not.
#[tokio::test]
async fn an_address_on_the_link_is_called_nowhere() {
    for host in ["169.254.169.254", "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "0.0.0.0"] {
        let (error, _) = not_called(act(&request(&json!({"url": format!("http://{host}/"), "method": "GET"}))).await);
        assert!(error.contains("agents may not call"), "{host}: {error}");
    }
}

// Security: a proxy would resolve names itself, bypassing the check of addresses. Runs a test from above again with an
// environment that names a proxy that does not exist.
#[test]
fn no_proxy_is_asked() {
    let mut again = std::process::Command::new(std::env::current_exe().unwrap());
    again.args(["--exact", "http::a_call_is_what_the_file_says"]);
    again.env("HTTP_PROXY", "http://127.0.0.1:9").env_remove("NO_PROXY").env_remove("no_proxy");
    let said = String::from_utf8(again.output().unwrap().stdout).unwrap();
    assert!(said.contains("1 passed"), "{said}");
}

// Upgrade: an older scheduler sends no URL, because it reads none in the definition.
#[tokio::test]
async fn a_request_without_its_url_is_tried_again() {
    let server = start().await;
    let mut request = server.request("/json/1", json!({}));
    request.http = None;
    let (_, is_permanent) = not_called(act(&request).await);
    assert!(!is_permanent);
}

// A4, E4: a call that could not be made says nothing about the host: its breaker neither opens nor closes.
#[tokio::test]
async fn what_was_not_called_is_not_held_against_the_host() {
    let server = start().await;
    let (runtime, _folder) = running(failures(3));
    let outcome_of = async |request: &Request| perform(&runtime, request).await.map(|reply| reply.outcome);
    let unset = server.request("/json/1", json!({"headers": {"authorization": "{secret:nobody-set-it}"}}));
    for _ in 0..5 {
        let outcome = outcome_of(&unset).await;
        assert!(matches!(outcome, Some(Outcome::Unavailable { retry_after_ms: None, .. })), "{outcome:?}");
    }
    assert_eq!((runtime.open_breakers(), server.heard().len()), (Vec::new(), 0));
    let failing = server.request("/status/500", json!({}));
    let wrong = server.request("/json/1", json!({"method": "NO METHOD"}));
    let refusing = server.request("/status/409", json!({}));
    for (request, told) in [(&wrong, Some(&json!(true))), (&refusing, None)] {
        let reply = perform(&runtime, request).await.expect("a reply");
        let reply = serde_json::to_value(&reply).unwrap();
        assert_eq!((&reply["outcome"], reply.get("uncalled")), (&json!("failed"), told), "no `catch` sees it");
    }
    for request in [&failing, &failing, &wrong, &failing] {
        let outcome = outcome_of(request).await;
        assert!(matches!(outcome, Some(Outcome::Unavailable { .. } | Outcome::Failed { .. })), "{outcome:?}");
    }
    assert_eq!(runtime.open_breakers().len(), 1, "three failures in a row, and no answer between them");
}

// E4: an answer that concerns one order says nothing about the host, and does not close it for the others.
#[tokio::test]
async fn only_what_says_that_the_host_is_unwell_opens_its_breaker() {
    let server = start().await;
    for (path, more, is_open) in [
        ("/status/404", json!({"transient": [404]}), false),
        ("/status/202", json!({"transient": [202]}), false),
        ("/status/425", json!({}), false),
        ("/status/408", json!({}), true),
        ("/status/429", json!({}), true),
        ("/status/501", json!({"transient": ["5xx"]}), true),
        ("/status/503", json!({}), true),
    ] {
        let (runtime, _folder) = running(failures(2));
        let request = server.request(path, more);
        for _ in 0..2 {
            let reply = perform(&runtime, &request).await.expect("a reply");
            assert!(matches!(reply.outcome, Outcome::Unavailable { .. }), "{path}: {reply:?}");
        }
        assert_eq!(!runtime.open_breakers().is_empty(), is_open, "{path}");
    }
}

// A4, E4: one host that is down does not hold up the others, and a hanging call ends with CompleteBy.
#[tokio::test]
async fn each_host_has_a_breaker_of_its_own() {
    let (down, well) = (start().await, start().await);
    let (runtime, _folder) = running(failures(3));
    let outcome_of = async |request: &Request| perform(&runtime, request).await.map(|reply| reply.outcome);
    for path in ["/status/500", "/status/502", "/status/503"] {
        assert!(
            matches!(outcome_of(&down.request(path, json!({}))).await, Some(Outcome::Unavailable { .. })),
            "{path}"
        );
    }
    let Some(Outcome::Deferred { error, .. }) = outcome_of(&down.request("/json/1", json!({}))).await else {
        panic!("the breaker is closed")
    };
    assert!(error.contains(&down.url), "{error}");
    assert_eq!(runtime.open_breakers().iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [down.url.as_str()]);
    assert_eq!(
        outcome_of(&well.request("/json/1", json!({}))).await,
        Some(Outcome::Done { output: json!({"data": {"id": 7}}) })
    );
    let mut hanging = well.request("/hang/1", json!({}));
    hanging.complete_by = Timestamp::now() + SignedDuration::from_millis(100);
    // The timer and CompleteBy use two clocks: the call may end just before CompleteBy by the other clock.
    let outcome = outcome_of(&hanging).await;
    assert!(matches!(outcome, None | Some(Outcome::Unavailable { .. })), "{outcome:?}");
}

// K1: a key that the file sets takes the place of the usual one.
#[tokio::test]
async fn a_key_of_the_file_is_the_only_one() {
    let server = start().await;
    for (headers, wanted) in [(json!({}), "ord_1:notify:do"), (json!({"idempotency-key": "my-{order_id}"}), "my-ord_1")]
    {
        act(&server.request("/json/1", json!({"headers": headers}))).await.unwrap();
        let headers = server.heard().pop().unwrap().headers;
        let keys: Vec<_> = headers.get_all("idempotency-key").iter().collect();
        assert_eq!(keys, [wanted]);
    }
}

// A4: an attempt that called has failed, even if the breaker ends it: its call may have acted, and it counts.
#[tokio::test]
async fn an_attempt_that_called_is_not_deferred() {
    let server = start().await;
    let (runtime, _folder) = running(failures(1));
    let mut request = server.request("/status/503", json!({}));
    request.calls.attempts = 3;
    let reply = perform(&runtime, &request).await.expect("a reply");
    let Outcome::Unavailable { error, retry_after_ms } = reply.outcome else { panic!("{reply:?}") };
    assert!(error.contains("circuit breaker") && error.contains("503"), "{error}");
    assert!(retry_after_ms.is_some_and(|wait| wait > 1_000), "{retry_after_ms:?}");
    assert_eq!((reply.status, server.heard().len()), (Some(503), 1), "`catch` reads the status");
    // A wait that is no longer than one between calls is such a wait.
    let breaker = breaker::Settings { open_for: SignedDuration::from_millis(5), ..failures(1) };
    let (runtime, _folder) = running(breaker);
    request.calls.cap = SignedDuration::from_millis(200);
    let reply = perform(&runtime, &request).await.expect("a reply");
    let Outcome::Unavailable { error, .. } = reply.outcome else { panic!("{reply:?}") };
    assert!(error.contains("(3 calls)"), "{error}");
    assert_eq!(server.heard().len(), 4);
}

/// Keeps what is sent.
#[derive(Default)]
struct Sent(Mutex<Vec<Effect>>);

#[async_trait]
impl Messenger for Sent {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), shared::ports::Error>> {
        let answers = effects.iter().map(|_| Ok(())).collect();
        self.0.lock().unwrap().extend(effects);
        answers
    }
}

// K4, found by the model: a service may refuse what an earlier delivery of the request did there.
#[tokio::test]
async fn a_refusal_of_a_redelivered_request_is_unsure() {
    let server = start().await;
    let (runtime, _folder) = running(failures(1));
    // The third opens the breaker, which holds back the others.
    let receives =
        [("409", "1", false), ("409", "2", true), ("503", "1", false), ("503", "1", false), ("503", "2", true)];
    for (n, (status, receives, is_unsure)) in receives.into_iter().enumerate() {
        let mut record = SqsMessage::default();
        record.message_id = Some("one".into());
        let request = server.request(&format!("/status/{status}"), json!({}));
        record.body = Some(serde_json::to_string(&request).unwrap());
        record.attributes = [("ApproximateReceiveCount".to_owned(), receives.to_owned())].into();
        let mut event = SqsEvent::default();
        event.records = vec![record];
        let sent = Sent::default();
        let response = agent::handler(&runtime, &sent, event).await;
        assert!(response.batch_item_failures.is_empty());
        let Some(Effect::Reply(reply)) = sent.0.lock().unwrap().pop() else { panic!("no reply") };
        assert_eq!(reply.unsure, is_unsure, "{n}: {reply:?}");
        assert_eq!(matches!(reply.outcome, Outcome::Deferred { .. }), n > 2, "{n}: {reply:?}");
    }
}

// Security: a host that came with an order is called only if the deployment allows it, whatever its spelling.
#[tokio::test]
async fn a_host_out_of_the_data_is_held_against_the_list() {
    let held = |url: &str| {
        let mut request = request(&json!({"url": url, "method": "GET"}));
        request.held = request.http.take();
        request
    };
    for url in [
        "https://evil.example/x",
        "https://hooks.example.evil.example/x",
        "https://hooks.example@evil.example/x",
        "https://evilshop.example/x",
        "https://shop.example/x",
        "https://a.shop.example./x",
        "https://hooks\u{ff0e}example.evil.example/x",
        "https://h\u{43e}oks.example/x",
        "https://127.0.0.1/x",
        "https://2130706433/x",
        "https://10.0.0.1/x",
        "https://localhost/x",
    ] {
        let (error, is_permanent) = not_called(act(&held(url)).await);
        assert!(is_permanent && error.contains("HttpHosts"), "{url}: {error}");
    }
    // Allowed, and then not found: no name ends in `example`.
    for url in ["https://hooks.example/x", "https://HOOKS.example/x", "https://a.shop.example:8443/x"] {
        let result = act(&held(url)).await;
        assert!(is_transient(&result), "{url}: {result:?}");
    }
}
