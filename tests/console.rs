//! Goal: the console's files are served, and the routes that it calls answer as it expects. Method: the whole system in
//! memory, called over HTTP. `tests/console/run` tests the page in a browser.

use crate::support::{Whole, three_noops, until};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use shared::order::Id;
use shared::task::ProcessState;
use stepwarden_remotes::{Service, ServiceFaults};

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// Stops and waits for a person at the first failure of `charge`; `ship` comes after it.
const PARCEL: &str = r#"
name = "parcel"
on_failure = "error"
[[step]]
name = "charge"
agent = "payment"
timeout = "9s"
retry = { max = 1, backoff = ["1s"], then = "error" }
calls = { attempts = 1 }
undo = { agent = "payment", timeout = "8s" }
[[step]]
name = "ship"
agent = "shipping"
after = ["charge"]
timeout = "10s"
irreversible = true
"#;

/// Is retried for an hour.
const PATIENT: &str = r#"
name = "patient"
[[step]]
name = "charge"
agent = "payment"
timeout = "9s"
retry = { max = 2, backoff = ["1h"] }
calls = { attempts = 1 }
"#;

async fn answer(whole: &Whole, method: Method, path: &str, etag: Option<&str>) -> reqwest::Response {
    let request = whole.http.request(method, format!("{}{path}", whole.system.url));
    let request = match etag {
        Some(etag) => request.header("if-none-match", etag),
        None => request,
    };
    request.send().await.unwrap()
}

fn header<'a>(answer: &'a reqwest::Response, name: &str) -> &'a str {
    answer.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

async fn submit(whole: &Whole, workflow: &str, key: &str) -> Id {
    whole
        .submit(key, &json!({"workflow": workflow, "reference": format!("ref-{key}"), "input": {"total_cents": 1}}))
        .await
}

async fn in_error(whole: &Whole, key: &str) -> Id {
    whole.fault(Service::Payment, ServiceFaults { outage: true, ..ServiceFaults::default() });
    let id = submit(whole, "parcel", key).await;
    whole.ends(&id, ProcessState::Error).await;
    id
}

/// Every name of a file that `text` refers to.
fn files_in(text: &str) -> Vec<String> {
    let quoted = text.split('"').skip(1).step_by(2);
    let files = quoted.filter_map(|name| name.strip_prefix("console/").or_else(|| name.strip_prefix("./")));
    files.map(str::to_owned).collect()
}

// Every file that the page loads exists, and the policy lets it only run its own code and call this API.
#[tokio::test(flavor = "multi_thread")]
async fn the_page_and_its_files_are_served_with_a_strict_policy() {
    let whole = Whole::start(&[PARCEL.into()]).await;
    let page = answer(&whole, Method::GET, "/console", None).await;
    assert_eq!(header(&page, "content-type"), "text/html; charset=utf-8");
    let page = page.text().await.unwrap();
    assert!(!page.contains("<script>") && !page.contains("style=") && !page.contains("onclick"), "inline code: {page}");
    let mut names = files_in(&page);
    let mut looked_at = 0;
    while looked_at < names.len() {
        let path = format!("/console/{}", names[looked_at]);
        let file = answer(&whole, Method::GET, &path, None).await;
        assert_eq!(file.status(), StatusCode::OK, "{path}");
        for (name, wanted) in [
            ("content-security-policy", POLICY),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-cache"),
        ] {
            assert_eq!(header(&file, name), wanted, "{path}");
        }
        let etag = header(&file, "etag").to_owned();
        let again = answer(&whole, Method::GET, &path, Some(&etag)).await;
        assert_eq!((again.status(), header(&again, "etag")), (StatusCode::NOT_MODIFIED, etag.as_str()), "{path}");
        assert!(again.text().await.unwrap().is_empty());
        let media_type = header(&file, "content-type").to_owned();
        let text = file.text().await.unwrap();
        if path.ends_with(".js") {
            assert_eq!(media_type, "text/javascript; charset=utf-8");
            for code in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!text.contains(code), "{path} has {code}: what an order says could become code");
            }
            let more: Vec<String> = files_in(&text).into_iter().filter(|name| !names.contains(name)).collect();
            names.extend(more);
        }
        looked_at += 1;
    }
    assert!(names.len() >= 10, "the modules were followed: {names:?}");

    let moved = answer(&whole, Method::GET, "/console/", None).await;
    assert_eq!(moved.url().path(), "/console", "without a slash, which its addresses are relative to");
    for (method, path, status) in [
        (Method::GET, "/console/none.js", 404),
        (Method::GET, "/console/../Cargo.toml", 404),
        (Method::GET, "/console/a/b", 404),
        (Method::POST, "/console", 405),
        (Method::POST, "/console/app.js", 405),
        (Method::POST, "/overview", 405),
        (Method::DELETE, "/queues", 405),
    ] {
        let answer = answer(&whole, method.clone(), path, None).await;
        assert_eq!(answer.status(), status, "{method} {path}");
        assert_eq!(header(&answer, "content-type"), "application/problem+json", "{method} {path}");
    }
}

// The first question at three in the morning: what waits for a person, what is stuck, and why.
#[tokio::test(flavor = "multi_thread")]
async fn the_overview_says_what_waits_and_why() {
    let whole = Whole::start(&[PARCEL.into(), PATIENT.into()]).await;
    let nothing = whole.get("/overview").await;
    assert_eq!(nothing["waiting"], json!({"count": 0, "more": false, "why": []}));
    assert_eq!((&nothing["open"], &nothing["oldest"]), (&json!({"count": 0, "more": false}), &Value::Null));
    let first = in_error(&whole, "1").await;
    let second = in_error(&whole, "2").await;
    let stuck = submit(&whole, "patient", "3").await;
    let all = until("the stuck order in the overview", async || {
        let all = whole.get("/overview").await;
        (all["retrying"]["count"] == 1).then_some(all)
    })
    .await;
    let why = &all["waiting"]["why"][0];
    assert_eq!((&all["waiting"]["count"], &why["count"]), (&json!(2), &json!(2)), "{all}");
    assert_eq!((&why["step"], &why["agent"], &why["undo"]), (&json!("charge"), &json!("payment"), &json!(false)));
    assert_eq!(why["order_id"], json!(second), "of the order that changed last");
    assert!(why["error"].as_str().unwrap().contains("503"), "{why}");
    let first_at = whole.task(&first).await.updated_at.to_string().parse::<shared::time::Timestamp>().unwrap();
    assert_eq!(why["since"].as_str().unwrap().parse::<shared::time::Timestamp>().unwrap(), first_at);
    assert_eq!(all["retrying"]["why"][0]["order_id"], json!(stuck));
    assert_eq!(
        (&all["open"], &all["oldest"]["order_id"]),
        (&json!({"count": 1, "more": false}), &json!(stuck)),
        "{all}"
    );
    assert_eq!(all["oldest"]["is_exact"], json!(true));

    let why = json!({"by": "ann", "reason": "ticket 7"});
    // Also while its next attempt is in progress.
    whole.system.pause_agent("payment", true);
    assert_eq!(whole.post(&format!("/orders/{stuck}/actions/retry-now"), &why).await.0, 200);
    whole.task_once(&stuck, "is processing", |task| task.process_state() == ProcessState::Processing).await;
    assert_eq!(whole.get("/overview").await["retrying"]["why"][0]["order_id"], json!(stuck));
    for path in [format!("/orders/{stuck}/actions/pause"), "/agents/payment/pause".into()] {
        assert_eq!(whole.post(&path, &why).await.0, 200);
    }
    let all = whole.get("/overview").await;
    assert_eq!((&all["paused"]["count"], &all["retrying"]["count"]), (&json!(1), &json!(0)), "{all}");
    assert_eq!(all["paused_agents"]["payment"]["reason"], json!("ticket 7"));
}

// A person sees every action, whether it is possible, for which steps, and if not, why.
#[tokio::test(flavor = "multi_thread")]
async fn the_details_of_an_order_say_which_acts_fit() {
    let whole = Whole::start(&[PARCEL.into()]).await;
    let id = in_error(&whole, "1").await;
    let details = whole.get(&format!("/details/{id}")).await;
    assert_eq!(details["order"], whole.get(&format!("/orders/{id}")).await, "as the submitter sees it");
    assert_eq!(details["history"], whole.get(&format!("/orders/{id}/history")).await["history"]);
    assert_eq!(details["input"], json!({"total_cents": 1}));
    let plan = json!([
        {"step": "charge", "timeout_ms": 9000, "max_failures": 1, "undo_timeout_ms": 8000, "irreversible": false},
        {"step": "ship", "timeout_ms": 10000, "max_failures": 6, "irreversible": true},
    ]);
    assert_eq!(details["plan"], plan, "{details}");
    let fits = |details: &Value| -> Vec<(String, usize)> {
        let all = details["acts"].as_array().unwrap();
        assert_eq!(all.len(), 8);
        assert!(all.iter().all(|one| one["fits"] == json!(true) || one["why"].is_string()), "{details}");
        let fit = all.iter().filter(|one| one["fits"] == json!(true));
        fit.map(|one| (one["act"].as_str().unwrap().to_owned(), one["steps"].as_array().unwrap().len())).collect()
    };
    let wanted = [("resubmit", 1), ("skip", 1), ("mark-done", 1), ("cancel", 0), ("undo", 0)];
    assert_eq!(fits(&details), wanted.map(|(act, steps)| (act.to_owned(), steps)));
    // The prediction for each action is what the action does.
    for act in details["acts"].as_array().unwrap().iter().filter(|one| one["fits"] == json!(false)) {
        let path = format!("/orders/{id}/actions/{}", act["act"].as_str().unwrap());
        let (status, problem) = whole.post(&path, &json!({"by": "ann", "reason": "r"})).await;
        assert_eq!((status, &problem["detail"]), (409, &act["why"]));
    }
    whole.fault(Service::Payment, ServiceFaults::default());
    let body =
        json!({"by": "ann", "reason": "r", "input": {"total_cents": 2}, "if_version": details["order"]["version"]});
    assert_eq!(whole.post(&format!("/orders/{id}/actions/resubmit"), &body).await.0, 200);
    whole.ends(&id, ProcessState::Processed).await;
    let details = whole.get(&format!("/details/{id}")).await;
    assert_eq!(details["plan"][0]["input"], json!({"total_cents": 2}));
    assert_eq!(fits(&details), [], "a step that cannot be undone was done: {details}");
    let none = answer(&whole, Method::GET, "/details/ord_none", None).await;
    assert_eq!(
        (none.status(), none.json::<Value>().await.unwrap()["code"].clone()),
        (StatusCode::NOT_FOUND, json!("no_such_order"))
    );
}

// Every queue is listed, with what waits in it, and with its dead letters once.
#[tokio::test(flavor = "multi_thread")]
async fn queues_are_listed_with_what_waits_and_dead_letters() {
    let whole = Whole::start(&[three_noops("60s")]).await;
    whole.system.pause_agent("noop", true);
    let id = submit(&whole, "noops", "1").await;
    until("the request", async || (whole.queued("agent-noop") == 1).then_some(())).await;
    whole.send("agent-noop-dead", "x").await;
    let delayed = whole.clients.sqs.send_message().queue_url(whole.config().queue_url("notices-shop"));
    delayed.message_body("x").delay_seconds(60).send().await.unwrap();
    let queues = whole.get("/queues").await;
    let row = |name: &str| queues["queues"].as_array().unwrap().iter().find(|q| q["name"] == name).cloned().unwrap();
    let counted =
        |name, waiting, delayed| json!({"name": name, "waiting": waiting, "in_flight": 0, "delayed": delayed});
    let mut noop = counted("agent-noop", 1, 0);
    noop["dead_letters"] = json!(1);
    assert_eq!(row("agent-noop"), noop, "{queues}");
    assert_eq!(row("agent-noop-high"), counted("agent-noop-high", 0, 0), "its dead letters are those of agent-noop");
    assert_eq!(row("notices-shop"), counted("notices-shop", 0, 1));
    assert_eq!(row("set-aside"), counted("set-aside", 0, 0));
    let names: Vec<_> = queues["queues"].as_array().unwrap().iter().map(|q| q["name"].as_str().unwrap()).collect();
    // Three for each of six agents, one for an external agent, two for Wakes, and replies, submissions, notices and
    // set-aside.
    assert_eq!(names.len(), 25, "{names:?}");
    whole.system.pause_agent("noop", false);
    whole.ends(&id, ProcessState::Processed).await;
}

// Orders are found by the beginning of the submitter's reference, and an unchanged answer is not sent again.
#[tokio::test(flavor = "multi_thread")]
async fn orders_are_found_by_reference_and_lists_have_an_etag() {
    let whole = Whole::start(&[three_noops("60s")]).await;
    let mut ids = Vec::new();
    for key in ["ab-1", "ab-2", "b-1"] {
        ids.push(submit(&whole, "noops", key).await);
    }
    for id in &ids {
        whole.ends(id, ProcessState::Processed).await;
    }
    let found = whole.get("/orders?reference=ref-ab").await;
    let found: Vec<_> = found["orders"].as_array().unwrap().iter().map(|row| row["order_id"].clone()).collect();
    assert_eq!(found, [json!(ids[1]), json!(ids[0])]);
    for path in ["/orders?reference=ref-ab", "/queues", "/agents", "/overview"] {
        let etag = header(&answer(&whole, Method::GET, path, None).await, "etag").to_owned();
        let many = format!("\"other\", {etag}");
        let again = answer(&whole, Method::GET, path, Some(&many)).await;
        assert_eq!(again.status(), StatusCode::NOT_MODIFIED, "{path}");
    }
    let etag = header(&answer(&whole, Method::GET, "/orders", None).await, "etag").to_owned();
    submit(&whole, "noops", "another").await;
    assert_eq!(answer(&whole, Method::GET, "/orders", Some(&etag)).await.status(), StatusCode::OK);
}
