//! Goal: one program is a Lambda function and a process beside queues. Method: this test's own program serves the example
//! in a child process, over HTTP: SQS that the laptop has, and a runtime API of Lambda that brings one batch.

use crate::runtime_api::RuntimeApi;
use crate::stock;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use stepwarden_agent::{Agent, AgentError, Call, serve};
use stepwarden_embedded::{Endpoints, Options};
use tokio::net::TcpListener;

/// Set for the child.
const SERVES: &str = "STEPWARDEN_AGENT_TEST_SERVES";
const PATIENCE: Duration = Duration::from_secs(60);

// Not a test of its own: the program that the tests below start.
#[test]
fn serves_the_example() {
    match std::env::var(SERVES).as_deref() {
        Ok("slow") => serve([Agent::new("stock").at_once(1).step("reserve", slow)]).unwrap(),
        Ok(_) => stock::main().unwrap(),
        Err(_) => {}
    }
}

/// Says that it has begun, and goes on for longer than any test.
async fn slow(_: Call<Value>) -> Result<(), AgentError> {
    println!("begun");
    tokio::time::sleep(PATIENCE * 10).await;
    Ok(())
}

struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(queues: SocketAddr, more: &[(&str, &str)]) -> Running {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "program::serves_the_example", "--nocapture"]).env(SERVES, "1").env("STACK", "shop");
    for (name, value) in [("AWS_REGION", "local"), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "x")] {
        command.env(name, value);
    }
    command.env("AWS_ENDPOINT_URL", format!("http://{queues}")).envs(more.iter().copied());
    Running(command.stdout(Stdio::piped()).spawn().unwrap())
}

/// SQS with the queues of a stack called `shop`, and its client.
async fn queues() -> (SocketAddr, aws_sdk_sqs::Client, [String; 2]) {
    let endpoints = Endpoints::open(&Options::default()).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let sqs = aws_sdk_sqs::Client::from_conf(
        aws_sdk_sqs::Config::builder()
            .behavior_version_latest()
            .region(aws_sdk_sqs::config::Region::new("local"))
            .endpoint_url("http://localhost")
            .allow_no_auth()
            .http_client(endpoints.http_client())
            .build(),
    );
    tokio::spawn(async move { endpoints.serve(listener, std::future::pending()).await });
    let mut urls = Vec::new();
    for name in ["shop-agent-stock", "shop-replies"] {
        urls.push(sqs.create_queue().queue_name(name).send().await.unwrap().queue_url.unwrap());
    }
    (address, sqs, urls.try_into().unwrap())
}

fn request(id: u32, agent: &str) -> String {
    let end = Timestamp::now() + SignedDuration::from_secs(60);
    let request = json!({
        "task_id": format!("ord_{id}"), "step": "reserve", "agent": agent, "attempt": 1, "direction": "do",
        "idempotency_key": format!("ord_{id}:reserve:do"), "complete_by": end.to_string(), "tenant": "a b",
        "priority": "normal", "input": {"item": "lamp", "quantity": 2},
        "calls": {"attempts": 1, "base": "PT0.1S", "cap": "PT1S"},
    });
    request.to_string()
}

/// Replies, by order, each with its message group.
async fn replies(sqs: &aws_sdk_sqs::Client, url: &str, count: usize) -> Vec<(Value, String)> {
    let begin = Instant::now();
    let mut all = Vec::new();
    while all.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{all:?}");
        let receive = sqs.receive_message().queue_url(url).wait_time_seconds(2).max_number_of_messages(10);
        let received = receive.message_system_attribute_names("All".into()).send().await.unwrap();
        for message in received.messages.unwrap_or_default() {
            let group =
                message.attributes.unwrap().remove(&aws_sdk_sqs::types::MessageSystemAttributeName::MessageGroupId);
            all.push((serde_json::from_str(&message.body.unwrap()).unwrap(), group.unwrap_or_default()));
        }
    }
    all.sort_by_key(|(reply, _): &(Value, String)| reply["task_id"].to_string());
    all
}

// N3: beside queues.
#[tokio::test]
async fn a_process_answers_requests_and_deletes_them_then() {
    let (address, sqs, [requests, url]) = queues().await;
    for body in [&request(1, "stock"), "no JSON", &request(2, "stock")] {
        sqs.send_message().queue_url(&requests).message_body(body).send().await.unwrap();
    }
    let mut agent = start(address, &[]);
    let replies = replies(&sqs, &url, 2).await;
    for ((reply, group), id) in replies.iter().zip(1..) {
        assert_eq!(
            (&reply["task_id"], &reply["outcome"], group.as_str()),
            (&json!(format!("ord_{id}")), &json!("done"), "a_b")
        );
        assert_eq!(reply["output"]["reservation"], format!("R-ord_{id}:reserve:do"));
    }
    // What cannot be read stays, and becomes a dead letter.
    let begin = Instant::now();
    loop {
        let left = sqs.get_queue_attributes().queue_url(&requests).attribute_names("All".into()).send().await.unwrap();
        let number = |name: &str| left.attributes().unwrap()[&name.into()].parse::<u32>().unwrap();
        if number("ApproximateNumberOfMessages") + number("ApproximateNumberOfMessagesNotVisible") == 1 {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // It ends by itself when it is told to.
    let id = agent.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    let begin = Instant::now();
    while agent.0.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < PATIENCE, "it does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

// Neither the visibility timeout nor CompleteBy passes. What a slow program works on goes to no other.
#[tokio::test]
async fn what_a_killed_program_held_is_done_by_the_next_one_at_once() {
    let (address, sqs, [requests, url]) = queues().await;
    sqs.send_message().queue_url(&requests).message_body(request(1, "stock")).send().await.unwrap();
    let mut slow = start(address, &[(SERVES, "slow")]);
    let output = BufReader::new(slow.0.stdout.take().unwrap());
    let begun = move || output.lines().map_while(Result::ok).any(|line| line.ends_with("begun"));
    assert!(tokio::task::spawn_blocking(begun).await.unwrap());
    let _next = start(address, &[]);
    // The next program is at work, and the request of the slow one stays with it.
    sqs.send_message().queue_url(&requests).message_body(request(2, "stock")).send().await.unwrap();
    let done = &replies(&sqs, &url, 1).await[0].0;
    assert_eq!((&done["task_id"], &done["outcome"]), (&json!("ord_2"), &json!("done")));
    let killed = Instant::now();
    slow.0.kill().unwrap();
    let replies = replies(&sqs, &url, 1).await;
    assert_eq!((&replies[0].0["task_id"], &replies[0].0["attempt"]), (&json!("ord_1"), &json!(1)));
    // Less than half of the shortest other way, on the slowest machine.
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
}

// N3: in Lambda.
#[tokio::test]
async fn a_lambda_function_answers_a_batch_and_names_what_to_deliver_again() {
    let (address, sqs, [_, url]) = queues().await;
    let mut lambda = RuntimeApi::start().await;
    let _agent = start(address, &lambda.environment("shop-stock"));
    let record = |id: &str, body: String, receives: &str| json!({"messageId": id, "body": body, "attributes": {"ApproximateReceiveCount": receives}, "eventSource": "aws:sqs"});
    let piano =
        request(3, "stock").replace("reserve\"", "pack\"").replace("\"lamp\"", "\"piano\",\"reservation\":\"R\"");
    let records = [
        record("a", request(1, "stock"), "1"),
        record("b", "no JSON".into(), "1"),
        record("c", piano, "2"),
        record("d", request(4, "clerk"), "1"),
    ];
    let answer = lambda.invoke(json!({"Records": records})).await;
    let failures = answer["batchItemFailures"].as_array().unwrap();
    let mut failed: Vec<&str> = failures.iter().map(|one| one["itemIdentifier"].as_str().unwrap()).collect();
    failed.sort_unstable();
    assert_eq!(failed, ["b", "d"]);
    let replies = replies(&sqs, &url, 2).await;
    assert_eq!((&replies[0].0["outcome"], &replies[1].0["outcome"]), (&json!("done"), &json!("failed")));
    assert_eq!(replies[1].0["unsure"], true, "it was delivered before: {}", replies[1].0);
}
