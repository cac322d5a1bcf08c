//! Goal: other programs can call the same endpoints over HTTP, and nothing that they send does harm. Method: requests
//! written by hand to a listener on a free port.

mod common;

use std::net::SocketAddr;

use common::{bodies, memory, opened, queue, receive, sqs};
use stepwarden_embedded::Endpoints;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;

struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    done: tokio::task::JoinHandle<std::io::Result<()>>,
}

async fn serve(endpoints: &Endpoints) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (stop, stopped) = oneshot::channel();
    let endpoints = endpoints.clone();
    let done = tokio::spawn(async move { endpoints.serve(listener, async { drop(stopped.await) }).await });
    Server { address, stop, done }
}

/// The whole answer, as text, to a request with these header lines.
async fn ask(address: SocketAddr, headers: &str, body: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let length = body.len();
    let head = format!("POST / HTTP/1.1\r\nConnection: close\r\nContent-Length: {length}\r\n{headers}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    // If a body is refused unread, the connection may end during this write.
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn post(address: SocketAddr, target: &str, body: &[u8]) -> String {
    let headers = format!("Host: localhost:4711\r\nX-Amz-Target: {target}\r\nContent-Type: application/x-amz-json-1.0");
    ask(address, &headers, body).await
}

fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer}"))
}

#[tokio::test]
async fn listener_and_connector_share_the_queues() {
    let endpoints = memory();
    let server = serve(&endpoints).await;
    let created = post(server.address, "AmazonSQS.CreateQueue", br#"{"QueueName":"work"}"#).await;
    assert!(created.contains("http://localhost:4711/000000000000/work"), "{created}");
    let body = br#"{"QueueUrl":"work","MessageBody":"over HTTP"}"#;
    assert_eq!(status(&post(server.address, "AmazonSQS.SendMessage", body).await), 200);
    let client = sqs(&endpoints);
    let url = queue(&client, "work", &[]).await;
    assert_eq!(bodies(&receive(&client, &url).await), ["over HTTP"]);

    let missing = post(server.address, "AmazonSQS.GetQueueUrl", br#"{"QueueName":"no"}"#).await.to_lowercase();
    let code = "x-amzn-query-error: aws.simplequeueservice.nonexistentqueue;sender";
    assert!(missing.contains(code), "{missing}");
}

#[tokio::test]
async fn stopping_ends_long_polls() {
    let endpoints = memory();
    let server = serve(&endpoints).await;
    queue(&sqs(&endpoints), "work", &[]).await;
    let body = br#"{"QueueUrl":"work","WaitTimeSeconds":20}"#;
    let poll = tokio::spawn(post(server.address, "AmazonSQS.ReceiveMessage", body));
    while endpoints.counts().requests("AmazonSQS.ReceiveMessage") == 0 {
        tokio::task::yield_now().await;
    }
    server.stop.send(()).unwrap();
    let started = std::time::Instant::now();
    assert_eq!(status(&poll.await.unwrap()), 503);
    server.done.await.unwrap().unwrap();
    assert!(started.elapsed().as_secs() < 10);
}

#[tokio::test]
async fn malformed_requests_are_refused_and_harm_nothing() {
    let endpoints = memory();
    let server = serve(&endpoints).await;
    queue(&sqs(&endpoints), "work", &[]).await;
    let deep = "[".repeat(100_000);
    let deep_item = format!(r#"{{"TableName":"t","Item":{{"a":{}1{}}}}}"#, r#"{"L":["#.repeat(5000), "]}".repeat(5000));
    let bodies: Vec<&[u8]> = vec![
        b"",
        b"{",
        b"null",
        b"[]",
        b"5",
        b"\xff\xfe",
        br#"{"QueueUrl":5}"#,
        br#"{"QueueUrl":"work","Entries":null}"#,
        br#"{"QueueUrl":"work","Entries":[{}]}"#,
        br#"{"QueueUrl":"work","Entries":[{"Id":"a","ReceiptHandle":"0-7fffffffffffffff-0"}]}"#,
        br#"{"QueueUrl":"work","MessageBody":"x","DelaySeconds":99999999999999999999}"#,
        br#"{"QueueUrl":"work","MessageBody":"x","DelaySeconds":-1}"#,
        br#"{"QueueUrl":"work","MaxNumberOfMessages":-1}"#,
        br#"{"QueueUrl":"work","VisibilityTimeout":9223372036854775807}"#,
        br#"{"QueueUrl":"work","ReceiptHandle":"--","VisibilityTimeout":1}"#,
        br#"{"QueueName":"../../etc","Attributes":{"VisibilityTimeout":"1e9"}}"#,
        br#"{"QueueUrl":"work","Attributes":{"RedrivePolicy":"{\"deadLetterTargetArn\":\"x\"}"}}"#,
        br#"{"SourceArn":"arn:aws:sqs:","MaxResults":18446744073709551615}"#,
        br#"{"Entries":[{"Time":1e308,"Source":"s","DetailType":"t","Detail":"{}"}]}"#,
        br#"{"TableName":"t","Item":{"a":{"S":5}}}"#,
        br#"{"TransactItems":[{}]}"#,
        deep.as_bytes(),
        deep_item.as_bytes(),
    ];
    let operations = [
        "AmazonSQS.SendMessage",
        "AmazonSQS.SendMessageBatch",
        "AmazonSQS.ReceiveMessage",
        "AmazonSQS.DeleteMessage",
        "AmazonSQS.DeleteMessageBatch",
        "AmazonSQS.ChangeMessageVisibility",
        "AmazonSQS.CreateQueue",
        "AmazonSQS.SetQueueAttributes",
        "AmazonSQS.GetQueueAttributes",
        "AmazonSQS.ListQueues",
        "AmazonSQS.StartMessageMoveTask",
        "AmazonSQS.NoSuchThing",
        "AWSEvents.PutEvents",
        "AWSEvents.CreateEventBus",
        "DynamoDB_20120810.PutItem",
        "DynamoDB_20120810.UpdateItem",
        "DynamoDB_20120810.Query",
        "DynamoDB_20120810.BatchWriteItem",
        "DynamoDB_20120810.TransactWriteItems",
        "DynamoDB_20120810.CreateTable",
        "DynamoDB_20120810.NoSuchThing",
        "Nonsense",
    ];
    for operation in operations {
        for body in &bodies {
            let answer = post(server.address, operation, body).await;
            let status = status(&answer);
            let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
            assert!((200..500).contains(&status), "{operation} {shown}: {answer}");
        }
    }
    let huge = vec![b' '; 17 * 1024 * 1024];
    let answer = post(server.address, "DynamoDB_20120810.PutItem", &huge).await;
    assert!(answer.is_empty() || status(&answer) == 413, "{answer}");
    let counts = endpoints.counts();
    assert!(!counts.operations.contains_key("AmazonSQS.NoSuchThing"));
    assert!(counts.requests("unknown") > 0);
}

/// A consumer's connection; it is there when this returns.
async fn consumer(address: SocketAddr, name: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET /consumers/{name} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = vec![0; 1024];
    let read = stream.read(&mut answer).await.unwrap();
    (stream, String::from_utf8_lossy(&answer[..read]).into_owned())
}

/// The answer to a receive for a consumer.
async fn receive_as(address: SocketAddr, name: &str, wait_s: u32) -> String {
    let body = format!(
        r#"{{"QueueUrl":"work","MaxNumberOfMessages":10,"WaitTimeSeconds":{wait_s},"AttributeNames":["All"]}}"#
    );
    let target = "X-Amz-Target: AmazonSQS.ReceiveMessage";
    ask(address, &format!("Host: localhost\r\n{target}\r\nX-Stepwarden-Consumer: {name}"), body.as_bytes()).await
}

// What a dead consumer held is delivered at once, as a receive that counts. What a living one holds, or one that says
// nothing, stays invisible.
#[tokio::test]
async fn what_a_consumer_holds_is_given_back_when_its_connection_ends() {
    let (endpoints, client, url) = opened(memory(), &[]).await;
    let server = serve(&endpoints).await;
    let (first, answer) = consumer(server.address, "first").await;
    assert_eq!(status(&answer), 200);
    assert!(answer.contains("x-stepwarden-consumer: connected"), "{answer}");
    let (_second, _) = consumer(server.address, "second").await;
    for (body, who) in [("a", Some("first")), ("b", Some("second")), ("c", None), ("d", Some("first"))] {
        common::send(&client, &url, body).await;
        match who {
            Some(who) => assert!(receive_as(server.address, who, 0).await.contains(&format!(r#""Body":"{body}""#))),
            None => assert_eq!(bodies(&receive(&client, &url).await), [body]),
        }
    }
    assert!(receive(&client, &url).await.is_empty());
    // A receive in progress of the dead one takes none of them.
    let dead = tokio::spawn(receive_as(server.address, "first", 20));
    while endpoints.counts().requests("AmazonSQS.ReceiveMessage") < 6 {
        tokio::task::yield_now().await;
    }
    drop(first);
    let mut again = receive_as(server.address, "second", 20).await;
    assert!(again.contains(r#""ApproximateReceiveCount":"2""#), "{again}");
    let got = |again: &str| {
        let all = ["a", "b", "c", "d"].into_iter();
        all.filter(|body| again.contains(&format!(r#""Body":"{body}""#))).collect::<Vec<_>>()
    };
    if got(&again).len() < 2 {
        again += &receive_as(server.address, "second", 20).await;
    }
    assert_eq!(got(&again), ["a", "d"]);
    assert_eq!(status(&dead.await.unwrap()), 503);
}

#[tokio::test]
async fn a_consumer_that_is_not_connected_or_has_no_name_is_refused() {
    let (endpoints, client, url) = opened(memory(), &[]).await;
    let server = serve(&endpoints).await;
    common::send(&client, &url, "a").await;
    let refused = receive_as(server.address, "absent", 0).await;
    assert_eq!(status(&refused), 503);
    assert!(refused.contains("open GET /consumers/NAME first"), "{refused}");
    assert_eq!(bodies(&receive(&client, &url).await), ["a"]);
    let (_first, answer) = consumer(server.address, "first").await;
    assert_eq!(status(&answer), 200);
    assert_eq!(status(&consumer(server.address, "first").await.1), 409);
    for name in ["", "a%20b", &"x".repeat(65)] {
        let (_stream, answer) = consumer(server.address, name).await;
        assert_eq!(status(&answer), 400, "{answer}");
    }
    // The listener's end is the end of the connection.
    server.stop.send(()).unwrap();
    server.done.await.unwrap().unwrap();
}
