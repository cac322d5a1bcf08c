//! Goal: a deployment of a folder activates exactly what changed in it, takes nothing back that an operator did since, and does nothing at
//! all if a file is wrong. Method: the operator over the embedded endpoints; Lambda and S3 are a listener on loopback.

use crate::common::aws::{aws, clients};
use crate::common::{World, parsed, with, with_timeout};
use operator::deployment::layer::handle;
use operator::deployment::{Answer, Deployment, File, Request};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use stepwarden_embedded::Fault;

const STACK: &str = "shop-agents";
/// The layer that each deployment publishes anew.
const LAYER: &str = "arn:aws:lambda:eu-west-1:123456789012:layer:shop-workflows:";

/// A file with the sample workflow under another name and with a timeout of its last step.
fn file(name: &str, seconds: u32) -> File {
    let toml = with_timeout(seconds).replace("name = \"sample\"", &format!("name = \"{name}\""));
    File { name: format!("{name}.toml"), toml }
}

async fn deploy(world: &World, files: &[File]) -> Vec<String> {
    static VERSION: AtomicU64 = AtomicU64::new(1);
    as_version(world, VERSION.fetch_add(1, Ordering::Relaxed), files).await
}

async fn as_version(world: &World, version: u64, files: &[File]) -> Vec<String> {
    let layer = format!("{LAYER}{version}");
    world.operator.deploy(files, Deployment { layer: &layer, ..FIRST }).await.unwrap()
}

const FIRST: Deployment<'_> = Deployment { stack: STACK, creates: false, layer: "", is_back: false };

/// What CloudFormation's rollback of `version` does: the files of it, and those before.
async fn back(world: &World, version: u64, failed: &[File], before: &[File]) -> Vec<String> {
    let layer = format!("{LAYER}{version}");
    let deployment = Deployment { layer: &layer, is_back: true, ..FIRST };
    let mut told = world.operator.take_back(failed, deployment).await.unwrap();
    told.extend(world.operator.deploy(before, deployment).await.unwrap());
    told
}

/// State, hash and number of the last change of the workflow `w`.
async fn now(world: &World) -> (Value, Value, u64) {
    let row = world.get("/workflows/w").await;
    (row["state"].clone(), row["hash"].clone(), row["version"].as_u64().unwrap())
}

fn hash(file: &File) -> String {
    parsed(&file.toml).hash().0
}

async fn act(world: &World, verb: &str, more: Value) -> Value {
    let version = world.get("/workflows/w").await["version"].clone();
    let body = with(json!({"by": "ada", "reason": "ticket 7", "if_version": version}), more);
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
    act(&world, "activate", json!({"hash": world.put(&file("w", 40).toml).await})).await;
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
        let why = world.operator.deploy(&files, FIRST).await.unwrap_err();
        assert!(words.iter().all(|word| why.contains(word)), "{why}");
        assert_eq!(world.get("/workflows").await["workflows"], json!([]));
        let hash = shared::workflow::Hash(hash(&good));
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
    world.fail("TransactWriteItems", Fault::TransactionConflict, usize::MAX);
    let other = |layer| Deployment { stack: "other", layer, ..FIRST };
    assert!(world.operator.deploy(&[file("w", 20)], other("l:1")).await.unwrap_err().starts_with("w.toml: "));
    world.endpoints.set_fault_hook(None);
    let told = deploy(&world, &[file("w", 20)]).await;
    assert!(told[0].contains("is active and replaces"), "{told:?}");
    // Two deployments and a person at once: all of them end, and no change is lost.
    let (one, two) = ([file("w", 30)], [file("w", 40)]);
    let (one, two) = (world.operator.deploy(&one, other("l:2")), world.operator.deploy(&two, other("m:1")));
    let (one, two, _) = tokio::join!(one, two, act(&world, "retire", json!({})));
    assert!(one.is_ok() && two.is_ok(), "{one:?} {two:?}");
    assert_eq!(world.get("/workflows/w").await["version"], 5);
}

// CloudFormation takes a deployment back with an update to the layer's version before.
#[tokio::test]
async fn a_deployment_that_is_taken_back_leaves_what_was_before_it() {
    let world = World::new().await;
    let [one, two, three] = [10, 20, 30].map(|seconds| [file("w", seconds)]);
    let hashes = [&one, &two, &three].map(|file| json!(hash(&file[0])));
    as_version(&world, 1, &one).await;
    as_version(&world, 2, &two).await;
    // An operator went back to the first version. The deployment that fails replaces it, and is taken back.
    act(&world, "rollback", json!({})).await;
    let told = as_version(&world, 3, &three).await;
    assert!(told[0].contains("replaces") && told[0].ends_with("by ada"), "{told:?}");
    let told = back(&world, 3, &three, &two).await;
    assert_eq!(told, [format!("w: {} is active again, as before this deployment", &hash(&one[0])[..12])]);
    assert_eq!(now(&world).await, (json!("active"), hashes[0].clone(), 5));
    let shown = world.get("/workflows/w").await;
    let why = &shown["history"][0];
    assert_eq!(
        (&why["by"], &why["reason"]),
        (&json!("stack shop-agents"), &json!("the deployment failed, so its changes were reverted"))
    );
    assert_eq!(shown["previous"], hashes[1], "what a rollback goes back to is as before, too");
    // Repeated, or late, or to files whose agent is gone meanwhile, it changes nothing.
    let gone = [File { toml: two[0].toml.replace("agent = \"y\"", "agent = \"z\""), ..two[0].clone() }];
    assert!(back(&world, 3, &three, &gone).await[0].starts_with("w.toml:"));
    assert_eq!(back(&world, 3, &three, &two).await, [""; 0]);
    assert!(as_version(&world, 3, &three).await[0].contains("unchanged"));
    assert_eq!(now(&world).await.2, 5);
    // The same file in the next deployment is a wish, and so is an old one.
    as_version(&world, 4, &three).await;
    assert_eq!(now(&world).await, (json!("active"), hashes[2].clone(), 6));
    as_version(&world, 5, &two).await;
    assert_eq!(now(&world).await, (json!("active"), hashes[1].clone(), 7));
    // A request that Lambda repeats after those of later deployments.
    assert!(as_version(&world, 4, &three).await[0].starts_with("w: unchanged"));
    assert_eq!(back(&world, 4, &three, &two).await, [""; 0]);
    assert_eq!(now(&world).await.2, 7);
    // Long after, it is a layer that began anew.
    world.later(600_000);
    as_version(&world, 1, &three).await;
    assert_eq!(now(&world).await, (json!("active"), hashes[2].clone(), 8));
    as_version(&world, 5, &two).await;

    // A retired name is retired again, and what was active before comes back with a rollback.
    act(&world, "retire", json!({})).await;
    as_version(&world, 6, &one).await;
    assert_eq!(back(&world, 6, &one, &two).await, ["w: is retired again, as before this deployment"]);
    assert_eq!(now(&world).await, (json!("retired"), Value::Null, 12));
    assert_eq!(act(&world, "rollback", json!({})).await["hash"], hashes[1]);

    // What a person did after the deployment is the newer wish.
    as_version(&world, 7, &one).await;
    act(&world, "activate", json!({"hash": hashes[2]})).await;
    assert_eq!(back(&world, 7, &one, &two).await, ["w: not restored, because ada has changed it since"]);
    assert_eq!(now(&world).await, (json!("active"), hashes[2].clone(), 15));
    assert!(as_version(&world, 8, &two).await[0].contains("unchanged, so"), "the file is that of before");
    // One that was active already: nothing to restore.
    as_version(&world, 9, &three).await;
    assert_eq!(back(&world, 9, &three, &two).await, ["w: unchanged"]);
    assert_eq!(now(&world).await.2, 15);
    assert!(as_version(&world, 10, &two).await[0].contains("unchanged, so"));
}

#[tokio::test]
async fn a_workflow_that_a_failed_deployment_brought_first_takes_no_orders() {
    let world = World::new().await;
    let (old, both) = ([file("v", 10)], [file("v", 10), file("w", 10)]);
    as_version(&world, 1, &old).await;
    as_version(&world, 2, &both).await;
    assert_eq!(back(&world, 2, &both, &old).await, ["w: is retired, because this deployment introduced it"]);
    assert_eq!(now(&world).await.0, "retired");
    assert_eq!(world.get("/workflows/v").await["version"], 1, "not of that deployment");
    as_version(&world, 3, &both).await;
    assert_eq!(now(&world).await.0, "active");
    // Another stack with the same name has another layer, and takes back only what it brought.
    let other = Deployment { stack: "other", layer: "o:7", ..FIRST };
    world.operator.deploy(&[file("w", 20)], other).await.unwrap();
    assert_eq!(back(&world, 3, &both, &old).await, [""; 0]);
    assert_eq!(now(&world).await.1, json!(hash(&file("w", 20))));
    let other = Deployment { is_back: true, ..other };
    world.operator.take_back(&[file("w", 20)], other).await.unwrap();
    assert_eq!(now(&world).await.1, json!(hash(&file("w", 10))));
}

// CloudFormation deletes what it made of a stack that could not be made.
#[tokio::test]
async fn a_stack_that_cannot_be_made_leaves_what_was_before_it() {
    let world = World::new().await;
    let [one, two] = [10, 20].map(|seconds| [file("w", seconds)]);
    let put = world.put(&one[0].toml).await;
    let (status, _) =
        world.post("/workflows/w/activate", json!({"by": "ada", "reason": "x", "hash": put, "if_version": 0})).await;
    assert_eq!(status, 200);
    let layer = format!("{LAYER}1");
    let made = Deployment { layer: &layer, creates: true, ..FIRST };
    world.operator.deploy(&two, made).await.unwrap();
    let deleted = Deployment { is_back: true, ..made };
    // The store fails: the same again continues.
    world.fail("TransactWriteItems", Fault::TransactionConflict, usize::MAX);
    assert!(world.operator.take_back(&two, deleted).await.unwrap_err().starts_with("w.toml: "));
    world.endpoints.set_fault_hook(None);
    world.operator.take_back(&two, deleted).await.unwrap();
    assert_eq!(now(&world).await, (json!("active"), json!(put), 3));
    // A stack that was made, and lived: a deletion leaves its workflows, whatever the template says.
    as_version(&world, 2, &two).await;
    let layer = format!("{LAYER}2");
    let told = world.operator.take_back(&two, Deployment { layer: &layer, ..deleted }).await.unwrap();
    assert_eq!((told, now(&world).await.2), (vec![], 4));
}

fn request(kind: &str, url: &str, layer: &str) -> Request {
    from(kind, url, layer, "")
}

/// An update has the layer that it comes from.
fn from(kind: &str, url: &str, layer: &str, old: &str) -> Request {
    serde_json::from_value(json!({
        "RequestType": kind,
        "ResponseURL": format!("{url}/answer?X-Amz-Signature=a%2Fb"),
        "StackId": "arn:aws:cloudformation:eu-west-1:123456789012:stack/shop-agents/1f",
        "RequestId": "request-1",
        "ResourceType": "Custom::Workflows",
        "LogicalResourceId": "Activate",
        "ResourceProperties": {"ServiceToken": "arn", "Layer": layer},
        "OldResourceProperties": (kind == "Update").then(|| json!({"ServiceToken": "arn", "Layer": old})),
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
    let world = World::new().await;
    let layer = |version: u64| format!("{LAYER}{version}");
    let versions = Arc::new(Mutex::new(BTreeMap::new()));
    let (kept, base) = (Arc::clone(&versions), Arc::new(Mutex::new(String::new())));
    let own = Arc::clone(&base);
    let (url, seen) = aws(move |path| {
        if path == "/answer?x-amz-signature=a%2fb" {
            return Some(Vec::new());
        }
        if let Some(version) = path.strip_prefix("/2018-10-31/layers/shop-workflows/versions/") {
            let at = format!("{}/content?x={version}", own.lock().unwrap());
            return Some(json!({"Content": {"Location": at}}).to_string().into());
        }
        let text = kept.lock().unwrap().get(path.strip_prefix("/content?x=")?).cloned();
        text.map(|text: String| archive("w.toml", text.as_bytes()))
    })
    .await;
    let publish = |version: u64, text: &str| versions.lock().unwrap().insert(version.to_string(), text.to_owned());
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
    publish(1, "name = \"w\"\nsteps = 1");
    let create = request("Create", &url, &layer(1));
    let failed = answered(&create, true).await;
    assert_eq!((failed.status.as_str(), failed.physical_resource_id.as_str()), ("FAILED", "shop-agents/Activate"));
    assert!(failed.reason.starts_with("w.toml:2: "), "{}", failed.reason);
    assert!(seen.lock().unwrap()[0].0.contains("authorization: aws4-hmac-sha256 credential=akid/"));
    let mut delete = request("Delete", &url, &layer(1));
    delete.physical_resource_id = Some(failed.physical_resource_id);
    assert_eq!(answered(&delete, true).await.status, "SUCCESS");

    // So it does if another resource fails, and asks for no more if the function has not seen the files.
    publish(2, &file("w", 10).toml);
    let create = request("Create", &url, &layer(2));
    let standby = answered(&create, false).await;
    assert_eq!((standby.status.as_str(), standby.data.changes.contains("standby")), ("SUCCESS", true));
    assert_eq!(world.get("/workflows").await["workflows"], json!([]));
    let (status, said) = told(&answered(&create, true).await);
    assert!(status == "SUCCESS" && said.ends_with(" is active"), "{said}");
    assert_eq!(told(&answered(&create, true).await), ("SUCCESS".into(), "w: unchanged".into()), "the same again");
    assert_eq!(answered(&request("Delete", &url, &layer(2)), true).await.status, "SUCCESS");
    assert_eq!(now(&world).await.0, "retired");
    let (status, said) = told(&answered(&request("Delete", &url, &layer(9)), true).await);
    assert!(status == "SUCCESS" && said.starts_with("nothing was reverted: "), "{said}");

    // An update keeps the id that it is asked with, so that nothing is replaced.
    publish(3, &file("w", 10).toml);
    publish(4, &file("w", 20).toml);
    answered(&request("Create", &url, &layer(3)), true).await;
    let mut update = from("Update", &url, &layer(4), &layer(3));
    update.physical_resource_id = Some("as before".into());
    let updated = answered(&update, true).await;
    assert_eq!((updated.status.as_str(), updated.physical_resource_id.as_str()), ("SUCCESS", "as before"));
    // It is taken back, and the next one is not. Old files that come as a new version are a wish.
    let (hashes, back) = ([10, 20].map(|s| json!(hash(&file("w", s)))), from("Update", &url, &layer(3), &layer(4)));
    let (status, said) = told(&answered(&back, true).await);
    assert!(status == "SUCCESS" && said.ends_with("is active again, as before this deployment"), "{said}");
    assert_eq!(now(&world).await.1, hashes[0]);
    assert!(told(&answered(&back, true).await).1.starts_with("there was nothing to revert"));
    for (version, old, expected) in [(5, 3, 1), (6, 5, 0)] {
        publish(version, &file("w", [10, 20][expected]).toml);
        assert_eq!(answered(&from("Update", &url, &layer(version), &layer(old)), true).await.status, "SUCCESS");
        assert_eq!(now(&world).await.1, hashes[expected]);
    }

    for (layer, words) in [
        ("", "write !Ref"),
        ("arn:aws:lambda:eu-west-1:123456789012:layer:a/../b:3", "is not the ARN"),
        ("arn:aws:lambda:eu-west-1:123456789012:layer:other:1", "status 403"),
        ("arn:aws:lambda:eu-west-1:999999999999:layer:shop-workflows:3", "the stack's account and Region"),
        ("arn:aws:lambda:eu-west-2:123456789012:layer:shop-workflows:3", "the stack's account and Region"),
    ] {
        let answer = answered(&from("Update", &url, layer, ""), true).await;
        assert!(answer.status == "FAILED" && answer.reason.contains(words), "{}", answer.reason);
    }
    // An answer that cannot be delivered is an error, so that Lambda asks again.
    let mut lost = request("Create", &url, &layer(3));
    lost.response_url = format!("{url}/nowhere");
    assert!(handle(&world.operator, &clients, true, &lost).await.unwrap_err().contains("status 403"));
    lost.response_url = "https://example.com/".into();
    let (why, before) = (handle(&world.operator, &clients, true, &lost).await.unwrap_err(), now(&world).await);
    assert!(why.contains("ResponseURL is not"), "{why}");
    assert_eq!(before.1, hashes[0], "nothing is done");
}
