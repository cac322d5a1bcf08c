//! Goal: the contract of docs/agents.md holds for an agent that uses only SQS and JSON. Method: the whole system in one
//! process; this test is the agent, and receives requests and sends replies as plain text.

use crate::support::{EXTERNAL, Whole, count, until};
use aws_sdk_sqs::types::Message;
use serde_json::{Value, json};
use shared::history::Kind;
use shared::order::Id;
use shared::task::ProcessState;
use std::time::Duration;

/// The external agent's queue.
const REQUESTS: &str = "agent-gift-wrap";
/// Position of the step that the test does.
const WRAP: usize = 1;

fn gift(timeout: &str, more: &str) -> String {
    format!(
        "name = \"gift\"\n[[step]]\nname = \"pick\"\nagent = \"noop\"\ntimeout = \"5s\"\n[[step]]\nname = \"wrap\"\n\
         agent = \"{EXTERNAL}\"\nafter = [\"pick\"]\ntimeout = \"{timeout}\"\nundo = {{ agent = \"{EXTERNAL}\" }}\n\
         retry = {{ max = 3, backoff = [\"20ms\"] }}\n{more}\n"
    )
}

async fn start(timeout: &str) -> (Whole, Id) {
    let whole = Whole::start(&[gift(timeout, "")]).await;
    let body = json!({"workflow": "gift", "input": {"paper": "red"}, "priority": "high"});
    let id = whole.submit("gift-1", &body).await;
    (whole, id)
}

/// The next request, and the message that it came in.
async fn request(whole: &Whole) -> (Value, Message) {
    until("a request", async || {
        let message = whole.receive(REQUESTS).await.pop()?;
        Some((serde_json::from_str(message.body().unwrap()).unwrap(), message))
    })
    .await
}

/// A reply with the fields that it must repeat, and `more`.
fn reply(request: &Value, more: Value) -> Value {
    let mut reply = json!({
        "type": "reply", "task_id": request["task_id"], "step": request["step"], "attempt": request["attempt"],
    });
    reply.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    reply
}

async fn answer(whole: &Whole, more: Value) -> Value {
    let (request, message) = request(whole).await;
    whole.send("replies", &reply(&request, more).to_string()).await;
    whole.delete(REQUESTS, message).await;
    request
}

async fn replies_are_read(whole: &Whole) {
    until("the replies are read", async || (whole.queued("replies") == 0).then_some(())).await;
}

// A1, A5: what a request contains, and what a reply must contain.
#[tokio::test(flavor = "multi_thread")]
async fn a_reply_of_plain_json_moves_the_order_on() {
    let (whole, id) = start("30s").await;
    let asked = answer(&whole, json!({"outcome": "done", "output": {"paper": "red"}, "of_a_later_version": [1]})).await;
    let wanted = json!({
        "task_id": id, "step": "wrap", "agent": EXTERNAL, "direction": "do", "attempt": 1, "tenant": asked["tenant"],
        "idempotency_key": format!("{id}:wrap:do"), "complete_by": asked["complete_by"], "priority": "high",
        "calls": {"attempts": 5, "base": "PT0.1S", "cap": "PT5S"}, "input": {"paper": "red"},
    });
    assert_eq!(asked, wanted);
    let task = whole.ends(&id, ProcessState::Processed).await;
    assert_eq!(task.steps[WRAP].output, Some(json!({"paper": "red"})));
    assert_eq!(whole.set_aside(), 0);
}

// K6: an output that is too long for the record, from the reply to the reader.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_output_is_kept_and_shown_to_those_who_ask() {
    let (whole, id) = start("30s").await;
    let output = json!({"paper": "x".repeat(200_000)});
    answer(&whole, json!({"outcome": "done", "output": output})).await;
    whole.ends(&id, ProcessState::Processed).await;
    let step = async |query: &str| whole.get(&format!("/orders/{id}{query}")).await["steps"][WRAP].clone();
    let (short, full) = (step("").await, step("?output=wrap").await);
    assert_eq!((&short["output"], &short["output_bytes"]), (&json!(null), &json!(output.to_string().len())));
    assert_eq!(full["output"], output);
    assert_eq!(whole.get(&format!("/orders/{id}?output=some")).await["code"], "invalid_field");
}

// A2: the four outcomes.
#[tokio::test(flavor = "multi_thread")]
async fn each_outcome_means_what_the_page_says() {
    // The undo begins when the last deadline has passed.
    let (whole, id) = start("10s").await;
    answer(&whole, json!({"outcome": "deferred", "error": "closed for lunch", "retry_after_ms": 0})).await;
    let second = answer(&whole, json!({"outcome": "unavailable", "error": "no paper"})).await;
    let third = answer(&whole, json!({"outcome": "failed", "error": "too large to wrap"})).await;
    assert_eq!((&second["attempt"], &third["attempt"]), (&json!(2), &json!(3)));
    assert_eq!(second["idempotency_key"], third["idempotency_key"], "the same for all attempts");
    let undo = answer(&whole, json!({"outcome": "done"})).await;
    assert_eq!(
        (&undo["direction"], &undo["undoes"], &undo["attempt"]),
        (&json!("undo"), &third["idempotency_key"], &json!(4))
    );
    assert_ne!(undo["idempotency_key"], undo["undoes"]);
    let task = whole.ends(&id, ProcessState::Undone).await;
    assert_eq!(task.steps[WRAP].failures, 1, "a deferral is no failure");
    assert_eq!(task.reason.as_deref(), Some("`wrap` failed: too large to wrap"));
}

// A3, D3: what follows when an agent stays silent.
#[tokio::test(flavor = "multi_thread")]
async fn late_and_duplicate_replies_change_nothing() {
    let (whole, id) = start("1s").await;
    // Silent: the supervisor gives the step back, and the next attempt has the same key.
    let (late, _) = request(&whole).await;
    let (current, _) = request(&whole).await;
    assert_eq!((&current["attempt"], &current["idempotency_key"]), (&json!(2), &late["idempotency_key"]));
    whole.send("replies", &reply(&late, json!({"outcome": "failed", "error": "late"})).to_string()).await;
    replies_are_read(&whole).await;
    let done = reply(&current, json!({"outcome": "done"})).to_string();
    whole.send("replies", &done).await;
    let task = whole.ends(&id, ProcessState::Processed).await;
    for again in [done, reply(&current, json!({"outcome": "failed", "error": "no"})).to_string()] {
        whole.send("replies", &again).await;
    }
    replies_are_read(&whole).await;
    assert_eq!(whole.task(&id).await.version, task.version);
    assert_eq!((count(&task, Kind::Expired, WRAP), whole.set_aside()), (1, 0));
}

// C5: a message that is no reply is kept for a person and holds up nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_that_is_not_a_reply_is_set_aside() {
    let (whole, id) = start("30s").await;
    let (asked, _) = request(&whole).await;
    let bad = [
        "wrapped!".to_owned(),
        reply(&asked, json!({"outcome": "wrapped"})).to_string(),
        reply(&asked, json!({})).to_string(),
        reply(&asked, json!({"outcome": "done"})).to_string().replace("\"reply\"", "\"answer\""),
    ];
    for body in &bad {
        whole.send("replies", body).await;
    }
    until("all are set aside", async || (whole.set_aside() == bad.len()).then_some(())).await;
    // An output that is too long is a permanent failure that says so.
    whole
        .send("replies", &reply(&asked, json!({"outcome": "done", "output": "x".repeat(256 * 1024)})).to_string())
        .await;
    let task = whole.task_once(&id, "failed", |task| task.reason.is_some()).await;
    assert!(task.reason.as_deref().unwrap().contains("the limit is 262144"), "{:?}", task.reason);
}

// If an agent does not run, no other program receives from its queue.
#[tokio::test(flavor = "multi_thread")]
async fn no_built_in_agent_takes_an_external_agents_requests() {
    let (whole, id) = start("30s").await;
    let seen = whole.task_once(&id, "asked", |task| count(task, Kind::Claimed, WRAP) == 1).await;
    until("the request is there", async || (whole.queued(REQUESTS) == 1).then_some(())).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(whole.task(&id).await.version, seen.version);
    let agents = whole.get("/agents").await;
    let own = agents["agents"].as_array().unwrap().iter().find(|a| a["agent"] == EXTERNAL || a["name"] == EXTERNAL);
    assert!(own.is_some(), "an operator sees it like any other: {agents}");
}

// K7: a workflow's own check of the input, before anything is stored; by message as well.
#[tokio::test(flavor = "multi_thread")]
async fn an_input_that_the_schema_refuses_is_not_stored() {
    let text = "name = \"refund\"\n[input]\nrequired = [\"cents\"]\nadditionalProperties = false\n\
                properties.cents = { type = \"integer\", minimum = 1 }\nproperties.lines = { items = { required = [\"sku\"] } }\n\
                [[step]]\nname = \"pay\"\nafter = []\nagent = \"noop\"\ntimeout = \"5s\"\nwith = { cents = \"${input.cents}\" }\n";
    let whole = Whole::start(&[text.to_owned()]).await;
    let ask = async |key: &str, input: Value| {
        let asked = whole.http.post(format!("{}/orders", whole.system.url)).header("idempotency-key", key);
        let answer = asked.json(&json!({"workflow": "refund", "input": input})).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    for (input, field, words) in [
        (json!({"cents": 0}), "input.cents", &["must be at least 1"][..]),
        (json!({}), "input.cents", &["is required"]),
        (json!({"cents": 5, "note": "x"}), "input.note", &["is not known; the fields are cents, lines"]),
        (json!({"cents": 5, "lines": [{"sku": 1}, {}]}), "input.lines[1].sku", &["is required"]),
        (json!({"cents": "5", "note": 1}), "input.cents", &["must be a whole number", "; `input.note` is not known"]),
    ] {
        let (status, problem) = ask("k", input).await;
        assert_eq!(
            (status, &problem["code"], &problem["field"]),
            (422, &json!("invalid_input"), &json!(field)),
            "{problem}"
        );
        words.iter().for_each(|word| assert!(problem["detail"].as_str().unwrap().contains(word), "{word}: {problem}"));
    }
    let (status, accepted) = ask("k", json!({"cents": 5})).await;
    assert_eq!(status, 202, "the key is still free: {accepted}");
    let id = shared::order::Id(accepted["order_id"].as_str().unwrap().into());
    whole.ends(&id, ProcessState::Processed).await;
}

// L6: heartbeats of any program that can send a POST: they keep the attempt, carry progress, and end it after a cancel.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_a_long_step_says_that_it_works_and_is_told_to_stop() {
    let whole = Whole::start(&[gift("12h", "heartbeat = \"1s\"")]).await;
    let id = whole.submit("gift-1", &json!({"workflow": "gift", "input": {}})).await;
    let (request, message) = request(&whole).await;
    whole.delete(REQUESTS, message).await;
    let told = &request["heartbeat"];
    assert_eq!(told["every_ms"], 1000);
    let address = told["url"].as_str().unwrap();
    // No token of the API: the address is enough.
    let beat = async |percent: u32| {
        let body = json!({"percent": percent, "note": "cuts the paper"});
        let answer = reqwest::Client::new().post(address).json(&body).send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap())
    };
    let seen = until("a heartbeat that is recorded", async || {
        let (status, answer) = beat(40).await;
        assert_eq!(status, 200, "{answer}");
        let step = whole.get(&format!("/orders/{id}")).await["steps"][WRAP].clone();
        (step["progress"]["percent"] == 40).then_some((step, answer))
    })
    .await;
    assert_eq!(seen.0["progress"]["note"], "cuts the paper");
    assert!(seen.0["complete_by"].as_str() > request["complete_by"].as_str(), "{seen:?}");
    assert_eq!(seen.0["complete_by"], seen.1["complete_by"]);

    let cancel = json!({"type": "cancel", "task_id": id, "by": "ann", "reason": "no paper"}).to_string();
    whole.send("scheduler", &cancel).await;
    let answer = until("the worker is told to stop", async || {
        let (status, answer) = beat(50).await;
        (status != 200).then_some((status, answer))
    })
    .await;
    assert_eq!((answer.0, &answer.1["code"]), (409, &json!("attempt_over")), "{answer:?}");
    let undo = self::answer(&whole, json!({"outcome": "done"})).await;
    assert_eq!((&undo["direction"], undo.get("heartbeat")), (&json!("undo"), None));
    whole.ends(&id, ProcessState::Undone).await;
}
