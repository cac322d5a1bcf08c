//! Goal: a deployment of a folder activates exactly what changed in it, takes nothing back that an operator did since, and does nothing at
//! all if a file is wrong. Method: the operator over the embedded endpoints; Lambda and S3 are a listener on loopback.

use crate::common::{WORKFLOW, World};
use aws_sdk_dynamodb::config::Credentials;
use operator::deployment::layer::handle;
use operator::deployment::{Answer, File, Request};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use stepwarden_aws::Clients;
use stepwarden_embedded::{Call, Fault, FaultHook};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const STACK: &str = "shop-agents";

/// A file with the sample workflow under another name and with a timeout of its last step.
fn file(name: &str, seconds: u32) -> File {
    let toml =
        WORKFLOW.replace("after = [\"a\"]\ntimeout = \"10s\"", &format!("after = [\"a\"]\ntimeout = \"{seconds}s\""));
    File { name: format!("{name}.toml"), toml: toml.replace("name = \"sample\"", &format!("name = \"{name}\"")) }
}

async fn deploy(world: &World, files: &[File]) -> Vec<String> {
    world.operator.deploy(files, STACK).await.unwrap()
}

async fn act(world: &World, verb: &str, more: Value) -> Value {
    let version = world.get("/workflows/w").await["version"].clone();
    let mut body = json!({"by": "ada", "reason": "ticket 7", "if_version": version});
    body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    let (status, body) = world.post(&format!("/workflows/w/{verb}"), body).await;
    assert_eq!(status, 200, "{body}");
    body
}

#[tokio::test]
async fn a_file_is_activated_if_it_is_another_one_than_the_last_deployment_brought() {
    let world = World::new().await;
    let told = deploy(&world, &[file("v", 10), file("w", 10)]).await;
    let first = world.get("/workflows/w").await;
    let (hash, state) = (first["hash"].as_str().unwrap(), &first["state"]);
    assert_eq!((state, &first["last_change"]["by"]), (&json!("active"), &json!("stack shop-agents")));
    assert_eq!(told[1], format!("w: {} is active", &hash[..12]));
    let history = world.get("/workflows/w").await["history"].clone();
    assert_eq!(history[0]["reason"], "deployed w.toml");
    let kept = world.get(&format!("/workflows/w/{hash}")).await;
    assert_eq!((&kept["toml"], &kept["origin"]["by"]), (&json!(file("w", 10).toml), &json!("stack shop-agents")));

    // The same files, and a comment that means nothing.
    let mut same = file("w", 10);
    same.toml.push_str("# more\n");
    assert_eq!(deploy(&world, &[file("v", 10), same]).await, ["v: unchanged", "w: unchanged"]);
    assert_eq!(world.get("/workflows/w").await["version"], 1);

    // An operator's wish lasts until the file changes.
    deploy(&world, &[file("w", 20)]).await;
    let back = act(&world, "rollback", json!({})).await;
    assert_eq!(back["hash"], *hash);
    let told = deploy(&world, &[file("w", 20)]).await;
    assert_eq!(told, [format!("w: unchanged, so {} stays active, activated by ada", &hash[..12])]);
    assert_eq!(world.get("/workflows/w").await["hash"], *hash);
    let told = deploy(&world, &[file("w", 30)]).await;
    assert!(told[0].ends_with(&format!("is active and replaces {}, activated by ada", &hash[..12])), "{told:?}");

    act(&world, "retire", json!({})).await;
    assert_eq!(deploy(&world, &[file("w", 30)]).await, ["w: unchanged, and retired by ada"]);
    let told = deploy(&world, &[file("w", 10)]).await;
    assert_eq!(told, [format!("w: {} is active; ada had retired it", &hash[..12])]);
    // What is active already is not activated again, and counts as brought.
    let put = json!({"by": "ada", "reason": "x", "toml": file("w", 40).toml});
    let (_, put) = world.post("/workflows", put).await;
    act(&world, "activate", json!({"hash": put["hash"]})).await;
    let version = world.get("/workflows/w").await["version"].clone();
    let told = deploy(&world, &[file("w", 40)]).await;
    assert!(told[0].ends_with("was active already"), "{told:?}");
    assert_eq!(world.get("/workflows/w").await["version"], version);
    act(&world, "rollback", json!({})).await;
    assert!(deploy(&world, &[file("w", 40)]).await[0].contains("stays active"));
}

#[tokio::test]
async fn a_wrong_file_is_told_with_its_line_and_nothing_is_done() {
    let world = World::new().await;
    let line = |toml: &str| toml.lines().position(|line| line.contains("agent = \"y\"")).unwrap() + 1;
    let good = file("w", 10);
    let none = File { toml: good.toml.replace("agent = \"y\"", "agent = \"z\""), name: "z.toml".into() };
    let at = format!("z.toml:{}: ", line(&good.toml));
    let long = File { name: "long.toml".into(), toml: "#".repeat(40_000) };
    let twin = File { name: "twin.toml".into(), ..good.clone() };
    for (files, words) in [
        (vec![good.clone(), none.clone()], vec![at.as_str()]),
        (vec![good.clone(), none, long], vec![at.as_str(), "long.toml: has 40000 bytes"]),
        (vec![good.clone(), twin], vec!["twin.toml: w.toml also defines workflow `w`"]),
        (vec![], vec!["no workflow file"]),
    ] {
        let why = world.operator.deploy(&files, STACK).await.unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        assert_eq!(world.get("/workflows").await["workflows"], json!([]));
        let hash = shared::workflow::file::parse(
            "w",
            &good.toml,
            shared::workflow::file::Known { agents: &["x", "y"], inputs: &[] },
        );
        let hash = shared::workflow::Hash(hash.unwrap().hash().0);
        assert!(
            world.operator.engine.store.definition(&hash).await.unwrap().is_none(),
            "put although another file is wrong"
        );
    }
}

// The pointer and what was brought are one write: an operator's rollback after it lasts, whatever became of the answer. A change that
// comes between is replaced, because the deployment is the newer wish.
#[tokio::test]
async fn an_activation_and_its_record_are_one_write() {
    let world = World::new().await;
    deploy(&world, &[file("w", 10)]).await;
    let set = |fault: Fault, times: usize| {
        let left = AtomicUsize::new(times);
        let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
            let hits = call.operation == "TransactWriteItems"
                && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok();
            hits.then_some(fault)
        });
        world.endpoints.set_fault_hook(Some(hook));
    };
    set(Fault::TransactionConflict, usize::MAX);
    assert!(world.operator.deploy(&[file("w", 20)], STACK).await.unwrap_err().starts_with("w.toml: "));
    world.endpoints.set_fault_hook(None);
    let told = deploy(&world, &[file("w", 20)]).await;
    assert!(told[0].contains("is active and replaces"), "{told:?}");
    // Two deployments and a person at once: all of them end, and no change is lost.
    let other = [file("w", 40)];
    let (one, two, three) = ([file("w", 30)], world.operator.deploy(&other, "other"), act(&world, "retire", json!({})));
    let (one, two, _) = tokio::join!(world.operator.deploy(&one, STACK), two, three);
    assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    assert_eq!(world.get("/workflows/w").await["version"], 5);
}

/// Lambda and S3: each answers what `found` says of the path, and keeps what was put.
async fn aws(found: impl Fn(&str) -> Option<Vec<u8>> + Send + 'static) -> (String, Arc<Mutex<Vec<(String, Vec<u8>)>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let Some((head, body)) = read(&mut connection).await else { continue };
            let path = head.split(' ').nth(1).unwrap_or_default();
            let answer = found(path);
            let status = if answer.is_some() { "200 OK" } else { "403 Forbidden" };
            kept.lock().unwrap().push((head.clone(), body));
            let answer = answer.unwrap_or_default();
            let head = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", answer.len());
            let _ = connection.write_all(&[head.as_bytes(), &answer].concat()).await;
        }
    });
    (url, seen)
}

async fn read(connection: &mut TcpStream) -> Option<(String, Vec<u8>)> {
    let mut all = Vec::new();
    loop {
        let mut part = [0; 4096];
        let count = connection.read(&mut part).await.ok().filter(|count| *count > 0)?;
        all.extend_from_slice(&part[..count]);
        let Some(end) = all.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8_lossy(&all[..end]).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        if all.len() >= end + 4 + length.map_or(0, |length| length.trim().parse().unwrap()) {
            return Some((head, all[end + 4..].to_vec()));
        }
    }
}

fn clients(world: &World, url: &str) -> Clients {
    let mut clients = Clients::unsigned(url);
    let credentials = Credentials::new("AKID", "secret", Some("token".into()), None, "test");
    let provider = aws_sdk_dynamodb::config::SharedCredentialsProvider::new(credentials);
    clients.sdk = clients.sdk.to_builder().credentials_provider(provider).build();
    clients.dynamodb = world.clients.dynamodb.clone();
    clients
}

fn request(kind: &str, url: &str, layer: &str) -> Request {
    serde_json::from_value(json!({
        "RequestType": kind,
        "ResponseURL": format!("{url}/answer?X-Amz-Signature=a%2Fb"),
        "StackId": "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop-agents/1f",
        "RequestId": "request-1",
        "ResourceType": "Custom::Workflows",
        "LogicalResourceId": "Activate",
        "ResourceProperties": {"ServiceToken": "arn", "Layer": layer},
    }))
    .unwrap()
}

/// `name` stored in an archive, without compression.
fn archive(name: &str, text: &[u8]) -> Vec<u8> {
    let (length, named) =
        (u32::try_from(text.len()).unwrap().to_le_bytes(), u16::try_from(name.len()).unwrap().to_le_bytes());
    let head = [&[0; 4], &length[..], &length, &named, &[0; 2]].concat();
    let mut all = [b"PK\x03\x04".as_slice(), &[0; 10], &head, name.as_bytes(), text].concat();
    let at = u32::try_from(all.len()).unwrap().to_le_bytes();
    let entry = [b"PK\x01\x02".as_slice(), &[0; 12], &head, &[0; 14], name.as_bytes()].concat();
    let size = u32::try_from(entry.len()).unwrap().to_le_bytes();
    all.extend([&entry[..], b"PK\x05\x06", &[0; 4], &[1, 0, 1, 0], &size, &at, &[0; 2]].concat());
    all
}

#[tokio::test]
async fn cloudformation_gets_an_answer_to_everything_it_asks() {
    const LAYER: &str = "arn:aws:lambda:eu-west-1:123456789012:layer:shop-workflows:3";
    let world = World::new().await;
    let content = Arc::new(Mutex::new(String::new()));
    let (kept, base) = (Arc::clone(&content), Arc::new(Mutex::new(String::new())));
    let own = Arc::clone(&base);
    let (url, seen) = aws(move |path| match path {
        "/2018-10-31/layers/shop-workflows/versions/3" => {
            Some(json!({"Content": {"Location": format!("{}/content?x=1", own.lock().unwrap())}}).to_string().into())
        }
        "/content?x=1" => Some(archive("w.toml", kept.lock().unwrap().as_bytes())),
        "/answer?x-amz-signature=a%2fb" => Some(Vec::new()),
        _ => None,
    })
    .await;
    base.lock().unwrap().clone_from(&url);
    let clients = clients(&world, &url);
    let answered = async |request: &Request, is_active: bool| -> Answer {
        seen.lock().unwrap().clear();
        handle(&world.operator, &clients, is_active, request).await.unwrap();
        let (head, body) = seen.lock().unwrap().last().cloned().unwrap();
        assert!(head.starts_with("put /answer?x-amz-signature=a%2fb "), "{head}");
        // S3 takes no body of unknown length, and the URL was signed for no media type.
        assert!(
            head.contains("content-length: ") && !head.contains("content-type: ") && !head.contains("authorization"),
            "{head}"
        );
        let answer: Answer = serde_json::from_slice(&body).unwrap();
        assert_eq!((answer.request_id.as_str(), answer.logical_resource_id.as_str()), ("request-1", "Activate"));
        answer
    };
    let told = |answer: &Answer| (answer.status.clone(), answer.reason.clone() + &answer.data.changes);

    // A file that is wrong fails the stack. CloudFormation then deletes what it had not made.
    *content.lock().unwrap() = "name = \"w\"\nsteps = 1".into();
    let create = request("Create", &url, LAYER);
    let failed = answered(&create, true).await;
    assert_eq!((failed.status.as_str(), failed.physical_resource_id.as_str()), ("FAILED", "shop-agents/Activate"));
    assert!(failed.reason.starts_with("w.toml:2: "), "{}", failed.reason);
    assert!(seen.lock().unwrap()[0].0.contains("authorization: aws4-hmac-sha256 credential=akid/"));
    let mut delete = request("Delete", &url, LAYER);
    delete.physical_resource_id = Some(failed.physical_resource_id);
    assert_eq!(answered(&delete, true).await.status, "SUCCESS");

    *content.lock().unwrap() = file("w", 10).toml;
    let standby = answered(&create, false).await;
    assert_eq!((standby.status.as_str(), standby.data.changes.contains("standby")), ("SUCCESS", true));
    assert_eq!(world.get("/workflows").await["workflows"], json!([]));
    let (status, said) = told(&answered(&create, true).await);
    assert!(status == "SUCCESS" && said.ends_with(" is active"), "{said}");
    assert_eq!(told(&answered(&create, true).await), ("SUCCESS".into(), "w: unchanged".into()), "the same again");

    // An update keeps the id that it is asked with, so that nothing is replaced; a deletion leaves the workflow.
    *content.lock().unwrap() = file("w", 20).toml;
    let mut update = request("Update", &url, LAYER);
    update.physical_resource_id = Some("as before".into());
    let updated = answered(&update, true).await;
    assert_eq!((updated.status.as_str(), updated.physical_resource_id.as_str()), ("SUCCESS", "as before"));
    delete.physical_resource_id = Some("as before".into());
    assert_eq!(answered(&delete, true).await.status, "SUCCESS");
    assert_eq!(world.get("/workflows/w").await["state"], "active");

    for (layer, words) in [
        ("", "write !Ref"),
        ("arn:aws:lambda:eu-west-1:1:layer:a/../b:3", "is not the ARN"),
        ("arn:aws:lambda:eu-west-1:1:layer:other:1", "status 403"),
    ] {
        let answer = answered(&request("Update", &url, layer), true).await;
        assert!(answer.status == "FAILED" && answer.reason.contains(words), "{}", answer.reason);
    }
    // An answer that cannot be delivered is an error, so that Lambda asks again.
    let mut lost = request("Create", &url, LAYER);
    lost.response_url = format!("{url}/nowhere");
    assert!(handle(&world.operator, &clients, true, &lost).await.unwrap_err().contains("status 403"));
}
