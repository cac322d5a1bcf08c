//! Goal: an agent keeps the rules of docs/agents.md, as the one in Python does (tests/agents/contract.py has the same
//! cases). Method: requests as text, functions that answer as told, and docs/schemas/reply.json.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use stepwarden_agent::{Agent, AgentError, Call, Undo, breaker};

fn request(change: Value) -> Value {
    within(Duration::from_secs(30), change)
}

fn within(time: Duration, change: Value) -> Value {
    let end = Timestamp::now() + SignedDuration::try_from(time).unwrap();
    let mut request = json!({
        "task_id": "ord_1", "step": "a", "agent": "x", "attempt": 1, "direction": "do", "idempotency_key": "ord_1:a:do",
        "complete_by": end.to_string(), "tenant": "a b", "priority": "normal", "input": {}, "later": "a field to come",
        "calls": {"attempts": 3, "base": "PT0.01S", "cap": "PT0.02S"},
    });
    request.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    request
}

/// The reply as JSON, which the schema admits; `None` is silence.
async fn reply(agent: &Agent, request: Value, deliveries: u32) -> Option<Value> {
    let reply = agent.answer(&request.to_string(), deliveries).await.unwrap()?;
    let reply = serde_json::to_value(&reply).unwrap();
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    let schema: Value = serde_json::from_str(include_str!("../../../docs/schemas/reply.json")).unwrap();
    compiler.add_resource("https://schema.example/reply", schema).unwrap();
    let index = compiler.compile("https://schema.example/reply", &mut schemas).unwrap();
    schemas.validate(&reply, index).unwrap_or_else(|e| panic!("{reply}: {e}"));
    Some(reply)
}

/// An agent whose step `a` gives these answers, and the number of its calls.
fn scripted(answers: Vec<Result<Value, AgentError>>) -> (Agent, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&calls);
    let agent = Agent::new("x").step("a", move |_: Call<Value>| {
        let nth = count.fetch_add(1, Ordering::Relaxed) as usize;
        let answer = answers.get(nth).or(answers.last()).unwrap().clone();
        async move { answer }
    });
    (agent, calls)
}

async fn answered(answers: Vec<Result<Value, AgentError>>, deliveries: u32) -> (Value, u32) {
    let (agent, calls) = scripted(answers);
    let reply = reply(&agent, request(json!({})), deliveries).await.unwrap();
    (reply, calls.load(Ordering::Relaxed))
}

#[tokio::test]
async fn an_output_is_replied_and_the_request_is_echoed() {
    let agent = Agent::new("x")
        .step("a", async |call: Call<Value>| -> Result<Value, AgentError> { Ok(json!({"key": call.idempotency_key})) });
    let trace = "00-00000000000000000000000000000001-0000000000000001-01";
    let reply = reply(&agent, request(json!({"traceparent": trace})), 1).await.unwrap();
    let expected = json!({
        "type": "reply", "task_id": "ord_1", "step": "a", "attempt": 1, "traceparent": trace, "outcome": "done",
        "output": {"key": "ord_1:a:do"},
    });
    assert_eq!(reply, expected);
}

#[tokio::test]
async fn failures_are_told_apart() {
    let (reply, calls) = answered(vec![Err(AgentError::refused("no", 402, Some(json!({"a": 1}))))], 1).await;
    assert_eq!(
        (&reply["outcome"], &reply["status"], &reply["answer"], calls),
        (&json!("failed"), &json!(402), &json!({"a": 1}), 1)
    );
    assert_eq!(reply.get("unsure"), None);
    let (reply, calls) = answered(vec![Err(AgentError::permanent("no"))], 2).await;
    assert_eq!((&reply["outcome"], &reply["unsure"], calls), (&json!("failed"), &json!(true), 1));
    let wait = SignedDuration::from_secs(60);
    let (reply, calls) = answered(vec![Err(AgentError::retry_after("down", wait))], 1).await;
    assert_eq!((&reply["outcome"], &reply["retry_after_ms"], calls), (&json!("unavailable"), &json!(60_000), 1));
    // Any other error, by `?`, and a panic.
    let (reply, calls) = answered(vec![Err("x".parse::<u8>().unwrap_err().into())], 1).await;
    assert_eq!((&reply["outcome"], calls), (&json!("unavailable"), 3));
    let agent =
        Agent::new("x").step("a", async |call: Call<u8>| -> Result<u8, AgentError> { panic!("at {}", call.input) });
    let panicked = self::reply(&agent, request(json!({"input": 7})), 1).await.unwrap();
    assert_eq!(panicked["outcome"], "unavailable");
    assert!(panicked["error"].as_str().unwrap().contains("the agent panicked: at 7 (3 calls)"), "{panicked}");
}

// What the function did is done, so it must be undone and never tried again.
#[tokio::test]
async fn an_output_that_cannot_be_sent_is_a_mistake() {
    let strange =
        Agent::new("x").step("a", async |_: Call<Value>| -> Result<_, AgentError> { Ok(BTreeMap::from([([1], 2)])) });
    let long = scripted(vec![Ok("x".repeat(300_000).into())]).0;
    let deep = scripted(vec![Ok((0..51).fold(json!(1), |inner, _| json!([inner])))]).0;
    for (agent, words) in [(strange, "cannot be written as JSON"), (long, "300002 bytes"), (deep, "50 levels deep")] {
        let reply = reply(&agent, request(json!({})), 1).await.unwrap();
        assert_eq!((&reply["outcome"], &reply["kind"]), (&json!("failed"), &json!("mistake")), "{reply}");
        assert!(reply["error"].as_str().unwrap().contains(words), "{reply}");
    }
    let (reply, _) = answered(vec![Ok((0..50).fold(json!(1), |inner, _| json!([inner])))], 1).await;
    assert_eq!(reply["outcome"], "done");
}

#[tokio::test]
async fn an_earlier_call_makes_a_refusal_unsure() {
    let (reply, calls) =
        answered(vec![Err(AgentError::unavailable("lost")), Err(AgentError::permanent("no"))], 1).await;
    assert_eq!((&reply["outcome"], &reply["unsure"], calls), (&json!("failed"), &json!(true), 2));
}

#[tokio::test]
async fn silence_after_complete_by() {
    let (agent, calls) = scripted(vec![Ok(json!(1))]);
    assert_eq!(reply(&agent, within(Duration::from_millis(900), json!({})), 1).await, None);
    assert_eq!(calls.load(Ordering::Relaxed), 0, "nothing starts within the skew");
    // A call is dropped when its time is over, however long it would take.
    let slow = async |call: Call<Value>| -> Result<Value, AgentError> {
        assert!(call.time_left <= Duration::from_millis(200));
        std::future::pending().await
    };
    let agent = Agent::new("x").skew(SignedDuration::ZERO).step("a", slow);
    let begin = Instant::now();
    assert_eq!(reply(&agent, within(Duration::from_millis(200), json!({})), 1).await, None);
    assert!(begin.elapsed() >= Duration::from_millis(190));
    // One that blocks its thread past the time is not told either.
    let blocked = async |_: Call<Value>| -> Result<Value, AgentError> {
        std::thread::sleep(Duration::from_millis(300));
        Ok(json!(1))
    };
    let agent = Agent::new("x").skew(SignedDuration::ZERO).step("a", blocked);
    assert_eq!(reply(&agent, within(Duration::from_millis(200), json!({})), 1).await, None);
}

#[tokio::test]
async fn a_step_without_a_function_waits_for_one() {
    let (agent, _) = scripted(vec![Ok(json!(1))]);
    for (change, words) in
        [(json!({"step": "b"}), "no function to do b"), (json!({"direction": "undo"}), "no function to undo a")]
    {
        let reply = reply(&agent, request(change), 1).await.unwrap();
        assert_eq!(reply["outcome"], "unavailable");
        assert!(reply["error"].as_str().unwrap().contains(words), "{reply}");
    }
}

#[tokio::test]
async fn what_is_no_request_is_no_reply() {
    let (agent, calls) = scripted(vec![Ok(json!(1))]);
    for body in ["no JSON", "{}", "[]"] {
        assert!(agent.answer(body, 1).await.is_err(), "{body}");
    }
    assert_eq!(calls.load(Ordering::Relaxed), 0);
}

// The types of a function are a contract with the workflow: what does not fit them will not fit later.
#[tokio::test]
async fn an_input_that_is_another_type_is_refused_before_the_call() {
    let agent = Agent::new("x")
        .step("a", async |call: Call<Vec<u8>>| -> Result<usize, AgentError> { Ok(call.input.len()) })
        .step("b", async |call: Call<()>| -> Result<u8, AgentError> { call.output_of("a") })
        .undo("a", async |undo: Undo<Vec<u8>, u8>| -> Result<(), AgentError> {
            match (undo.output, undo.undoes.as_str(), undo.idempotency_key.as_str()) {
                (None | Some(7), "ord_1:a:do", "ord_1:a:undo") => Ok(()),
                other => Err(AgentError::permanent(format!("{other:?}"))),
            }
        });
    let undo = |output: Value| json!({"direction": "undo", "idempotency_key": "ord_1:a:undo", "undoes": "ord_1:a:do", "input": [], "output": output});
    let cases = [
        (json!({"input": [1, 2]}), "done", ""),
        (json!({"input": {"a": 1}}), "failed", "the input of step `a` is not what the agent reads: invalid type: map"),
        (json!({"step": "b", "input": null, "outputs": {"a": 9}}), "done", ""),
        (json!({"step": "b", "input": null, "outputs": {"a": "9"}}), "failed", "the output of step `a` is not what"),
        (json!({"step": "b", "input": null}), "failed", "no output of step `a`"),
        (undo(json!(7)), "done", ""),
        // Whether the step was done is unknown.
        (undo(Value::Null), "done", ""),
        (undo(json!("7")), "failed", "the output of the step to undo is not what the agent reads"),
    ];
    for (change, outcome, words) in cases {
        let reply = reply(&agent, request(change.clone()), 1).await.unwrap();
        assert_eq!(reply["outcome"], outcome, "{change}: {reply}");
        assert!(reply["error"].as_str().unwrap_or_default().contains(words), "{change}: {reply}");
        // No `catch` takes what was never called for a refusal by the service.
        let is_uncalled = words.contains("is not what the agent reads");
        assert_eq!(reply.get("uncalled"), is_uncalled.then_some(&json!(true)), "{change}: {reply}");
    }
}

// E4: a service that is down is left alone, and no failure is counted.
#[tokio::test]
async fn an_open_breaker_gives_requests_back() {
    let settings = breaker::Settings {
        failures: 3,
        open_for: SignedDuration::from_secs(5),
        longest: SignedDuration::from_secs(9),
    };
    let (agent, calls) = scripted(vec![Err(AgentError::unavailable("503"))]);
    let agent = agent.breaker(settings);
    assert_eq!(reply(&agent, request(json!({})), 1).await.unwrap()["outcome"], "unavailable");
    let deferred = reply(&agent, request(json!({})), 1).await.unwrap();
    assert_eq!((&deferred["outcome"], calls.load(Ordering::Relaxed)), (&json!("deferred"), 3));
    assert!(deferred["retry_after_ms"].as_u64().unwrap() > 4000, "{deferred}");
    assert!(deferred["error"].as_str().unwrap().contains("the circuit breaker of `x` is open: 3 calls in a row"));
    assert_eq!(deferred.get("unsure"), None);
    assert_eq!(reply(&agent, request(json!({})), 2).await.unwrap()["unsure"], true);
}
