//! Goal: a name stands for the definition that a person activated, exactly one of several people at once decides, what is damaged can
//! be mended, and nothing is kept of what is refused. Method: the routes over the embedded endpoints.

use crate::common::{START, World, token, with, with_timeout};
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use shared::ports::StateStore;
use shared::workflow::Workflow;
use stepwarden_embedded::Fault;

async fn put(world: &World, toml: &str) -> (i64, Value) {
    world.post("/workflows", json!({"by": "ada", "reason": "faster", "toml": toml, "file": "sample.toml"})).await
}

async fn change(world: &World, verb: &str, version: u64, more: Value) -> (i64, Value) {
    change_of(world, "sample", verb, json!({"if_version": version}), more).await
}

async fn change_of(world: &World, name: &str, verb: &str, version: Value, more: Value) -> (i64, Value) {
    let body = with(with(json!({"by": "ada", "reason": "ticket 7"}), version), more);
    world.post(&format!("/workflows/{name}/{verb}"), body).await
}

/// A world whose deployment has the sample workflow.
async fn world() -> (World, Workflow) {
    let mut world = World::new().await;
    let deployed = world.workflow.clone();
    world.operator.deployed = Ok([("sample".to_owned(), deployed.clone())].into());
    (world, deployed)
}

fn hash(body: &Value) -> String {
    body["hash"].as_str().unwrap_or_else(|| panic!("{body}")).to_owned()
}

fn state(body: &Value) -> Value {
    json!([body["state"], body["hash"], body["previous"], body["version"]])
}

/// Item and attribute of the sample workflow's pointer.
const POINTER: (&str, &str) = ("control#workflows", "workflow#sample");

async fn set_pointer(world: &World, text: &str) {
    world.write(POINTER.0, POINTER.1, Some(AttributeValue::S(text.into()))).await;
}

async fn damage(world: &World, hash: &str) {
    world.write(format!("workflow#{hash}"), "workflow", Some(AttributeValue::S("{".into()))).await;
}

#[tokio::test]
async fn a_definition_is_put_activated_rolled_back_and_retired() {
    let (world, deployed) = world().await;
    let a = deployed.hash().0;
    let listed = world.get("/workflows").await;
    assert_eq!(
        listed["workflows"][0],
        json!({"name": "sample", "state": "active", "hash": a, "source": "deployment", "deployed": a, "version": 0})
    );
    assert_eq!(listed["agents"], json!(["x", "y"]));

    let (status, done) = put(&world, &with_timeout(20)).await;
    assert_eq!((status, &done["active"], &done["version"]), (200, &json!(a), &json!(0)), "{done}");
    assert_eq!(done["differences"], json!(["step `b`: timeout changes from 10s to 20s"]));
    assert_eq!(done["warnings"], json!([]));
    let b = hash(&done);
    assert_eq!(hash(&world.get("/workflows/sample").await), a, "putting activates nothing");

    let (status, active) = change(&world, "activate", 0, json!({"hash": b})).await;
    assert_eq!((status, state(&active)), (200, json!(["active", b, a, 1])));
    assert_eq!(active["source"], "operator");
    let (status, active) = change(&world, "activate", 0, json!({"hash": b})).await;
    assert_eq!((status, state(&active)), (200, json!(["active", b, a, 1])), "repeated, it changes nothing");
    let (_, back) = change(&world, "rollback", 1, json!({})).await;
    assert_eq!(state(&back), json!(["active", a, b, 2]));
    let (_, retired) = change(&world, "retire", 2, json!({"if_version": 2.0})).await;
    assert_eq!(state(&retired), json!(["retired", null, a, 3]));
    let (_, back) = change(&world, "rollback", 3, json!({})).await;
    assert_eq!(state(&back), json!(["active", a, b, 4]));

    let history = world.get("/workflows/sample").await;
    let of = |name: &str| history["history"].as_array().unwrap().iter().map(|e| e[name].clone()).collect::<Vec<_>>();
    assert_eq!(of("version"), [4, 3, 2, 1].map(|n| json!(n)));
    assert_eq!(of("hash"), [json!(a), Value::Null, json!(a), json!(b)]);
    assert!(of("by").iter().all(|by| by == "ada") && of("reason").iter().all(|reason| reason == "ticket 7"));
    let older = world.get("/workflows/sample?before=3").await;
    assert_eq!(older["history"].as_array().unwrap().len(), 2);

    let definition = world.get(&format!("/workflows/sample/{b}")).await;
    assert_eq!((&definition["toml"], &definition["definition"]["name"]), (&json!(with_timeout(20)), &json!("sample")));
    assert_eq!((&definition["origin"]["by"], &definition["origin"]["reason"]), (&json!("ada"), &json!("faster")));
    let own = world.get(&format!("/workflows/sample/{a}")).await;
    assert_eq!((own.get("toml"), own.get("origin"), &own["definition"]["name"]), (None, None, &json!("sample")));

    // A name of its own, beside the deployment's.
    let c = world.put(&with_timeout(20).replace("name = \"sample\"", "name = \"other\"")).await;
    let (status, body) = change_of(&world, "other", "activate", json!({"if_version": 0}), json!({"hash": c})).await;
    assert_eq!((status, state(&body)), (200, json!(["active", c, null, 1])), "{body}");
    let (status, body) = change_of(&world, "other", "rollback", json!({"if_version": 1}), json!({})).await;
    assert_eq!((status, &body["code"]), (409, &json!("not_possible")), "{body}");
}

#[tokio::test]
async fn of_many_people_at_once_one_decides_and_the_others_learn_who() {
    let (world, _) = world().await;
    let mut hashes = Vec::new();
    for seconds in 20..28 {
        hashes.push(world.put(&with_timeout(seconds)).await);
    }
    let answers =
        futures::future::join_all(hashes.iter().map(|hash| change(&world, "activate", 0, json!({"hash": hash})))).await;
    let applied: Vec<_> = answers.iter().filter(|(status, _)| *status == 200).collect();
    assert_eq!(applied.len(), 1, "{answers:?}");
    for (status, body) in answers.iter().filter(|(status, _)| *status != 200) {
        assert_eq!((*status, &body["code"], &body["field"]), (409, &json!("workflow_moved"), &json!("if_version")));
        assert!(body["detail"].as_str().unwrap().contains("ada activated"), "{body}");
    }
    let details = world.get("/workflows/sample").await;
    assert_eq!((details["version"].clone(), details["hash"].clone()), (json!(1), applied[0].1["hash"].clone()));
    // A rollback is of what its caller saw, and no toggle.
    let both =
        futures::future::join(change(&world, "rollback", 1, json!({})), change(&world, "rollback", 1, json!({})));
    let mut both: Vec<i64> = <[_; 2]>::from(both.await).map(|(status, _)| status).to_vec();
    both.sort_unstable();
    assert_eq!(both, [200, 409]);
    let (status, body) = change_of(&world, "sample", "rollback", json!({}), json!({})).await;
    assert_eq!((status, &body["field"]), (400, &json!("if_version")), "{body}");
}

// The item met changes of other names each time, which is no conflict. Nor is a write whose answer was lost.
#[tokio::test]
async fn a_change_that_collides_is_tried_again_and_is_nobodys_if_it_never_succeeds() {
    let (world, _) = world().await;
    let b = world.put(&with_timeout(20)).await;
    world.fail("TransactWriteItems", Fault::TransactionConflict, usize::MAX);
    let (status, body) = change(&world, "activate", 0, json!({"hash": b})).await;
    assert_eq!((status, &body["code"]), (503, &json!("unavailable")), "{body}");
    world.fail("TransactWriteItems", Fault::TransactionConflict, 2);
    let (status, body) = change(&world, "activate", 0, json!({"hash": b})).await;
    assert_eq!((status, &body["version"]), (200, &json!(1)), "{body}");
    world.fail("TransactWriteItems", Fault::LostAfter, 1);
    let (status, body) = change(&world, "rollback", 1, json!({})).await;
    assert_eq!((status, &body["version"]), (200, &json!(2)), "{body}");
    world.endpoints.set_fault_hook(None);
    assert_eq!(world.get("/workflows/sample").await["version"], 2);
}

// Fields of a newer version make no difference to a change; what cannot be read at all gives way to an activation, and the history
// from before is kept.
#[tokio::test]
async fn a_pointer_of_a_newer_version_is_changed_and_an_unreadable_one_is_mended() {
    let (world, deployed) = world().await;
    let (a, b) = (deployed.hash().0, world.put(&with_timeout(20)).await);
    for (version, verb) in ["activate", "rollback", "rollback"].into_iter().enumerate() {
        let more = if verb == "activate" { json!({"hash": b}) } else { json!({}) };
        assert_eq!(change(&world, verb, version as u64, more).await.0, 200);
    }
    let mut newer: Value = serde_json::from_str(world.stored(POINTER.0).await[POINTER.1].as_s().unwrap()).unwrap();
    newer["share"] = json!(0.5);
    set_pointer(&world, &newer.to_string()).await;
    let (status, body) = change(&world, "rollback", 3, json!({})).await;
    assert_eq!((status, state(&body)), (200, json!(["active", a, b, 4])), "{body}");

    set_pointer(&world, "{\"hash\":").await;
    let listed = world.get("/workflows").await;
    assert_eq!(state(&listed["workflows"][0]), json!(["unreadable", null, null, 0]), "{listed}");
    for verb in ["rollback", "retire"] {
        let (status, body) = change(&world, verb, 0, json!({})).await;
        assert_eq!((status, &body["code"]), (409, &json!("not_possible")), "{body}");
        assert!(body["detail"].as_str().unwrap().contains("activate a definition by its hash"), "{body}");
    }
    assert_eq!(put(&world, &with_timeout(20)).await.0, 200);
    let answers =
        futures::future::join_all([&a, &b].map(|hash| change(&world, "activate", 0, json!({"hash": hash})))).await;
    let mut all: Vec<i64> = answers.iter().map(|(status, _)| *status).collect();
    all.sort_unstable();
    assert_eq!(all, [200, 409], "one of two people mends it: {answers:?}");
    let versions = async || {
        let details = world.get("/workflows/sample").await;
        assert_eq!(details["state"], "active", "{details}");
        details["history"].as_array().unwrap().iter().map(|e| e["version"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    assert_eq!(versions().await, [8, 4, 3, 2, 1]);
    // Somebody took the record away by hand.
    world.take_away(POINTER.0).await;
    assert_eq!(change(&world, "activate", 0, json!({"hash": b})).await.0, 200);
    assert_eq!(versions().await, [16, 8, 4, 3, 2, 1]);
}

#[tokio::test]
async fn a_damaged_definition_is_not_activated_and_is_mended_by_putting_it_again() {
    let (world, deployed) = world().await;
    let a = deployed.hash().0;
    let (b, c) = (world.put(&with_timeout(20)).await, world.put(&with_timeout(30)).await);
    change(&world, "activate", 0, json!({"hash": b})).await;
    damage(&world, &b).await;
    damage(&world, &c).await;
    let (status, body) = change(&world, "activate", 1, json!({"hash": c})).await;
    assert_eq!((status, &body["code"]), (409, &json!("not_possible")), "{body}");
    assert!(body["detail"].as_str().unwrap().ends_with("put its file again"), "{body}");
    let (status, body) = world.call("GET", &format!("/workflows/sample/{b}"), Value::Null).await;
    assert_eq!((status, &body["code"]), (409, &json!("not_possible")), "{body}");

    let (status, done) = put(&world, &with_timeout(30)).await;
    assert_eq!((status, hash(&done), &done["differences"]), (200, c.clone(), &json!([])), "{done}");
    assert!(
        done["warnings"][0].as_str().unwrap().contains("the differences from the active definition are unknown"),
        "{done}"
    );
    assert_eq!(change(&world, "activate", 1, json!({"hash": c})).await.0, 200);
    // What a rollback would go to has been damaged, or is gone: nothing changes.
    for is_gone in [true, false] {
        if is_gone {
            world.take_away(format!("workflow#{b}")).await
        } else {
            damage(&world, &b).await
        }
        let (status, body) = change(&world, "rollback", 2, json!({})).await;
        assert!(status == 404 || status == 409, "{status} {body}");
    }
    assert_eq!(state(&world.get("/workflows/sample").await), json!(["active", c, b, 2]));
    world.put(&with_timeout(20)).await;
    assert_eq!(change(&world, "rollback", 2, json!({})).await.0, 200);
    assert_eq!(hash(&world.get(&format!("/workflows/sample/{a}")).await), a);
}

// No order has used the deployment's definition, so nothing has stored it: the change that replaces it does.
#[tokio::test]
async fn a_rollback_to_a_file_that_no_order_used_finds_it_also_after_the_next_deployment() {
    let (mut world, deployed) = world().await;
    let (a, b) = (deployed.hash().0, world.put(&with_timeout(20)).await);
    world.take_away(format!("workflow#{a}")).await;
    assert_eq!(change(&world, "activate", 0, json!({"hash": "00"})).await.0, 404);
    let stored = world.operator.engine.store.workflow(&deployed.hash()).await.unwrap();
    assert!(stored.is_none(), "a refused change writes nothing");
    assert_eq!(change(&world, "activate", 0, json!({"hash": b})).await.0, 200);
    world.operator.deployed = Ok([].into());
    let (status, body) = change(&world, "rollback", 1, json!({})).await;
    assert_eq!((status, state(&body)), (200, json!(["active", a, b, 2])), "{body}");
}

// What ran here once need not run now.
#[tokio::test]
async fn a_definition_that_cannot_run_here_any_more_is_not_activated() {
    let (mut world, _) = world().await;
    let b = world.put(&with_timeout(20)).await;
    change(&world, "activate", 0, json!({"hash": b})).await;
    let c = world.put(&with_timeout(30)).await;
    change(&world, "activate", 1, json!({"hash": c})).await;
    let config = world.config.clone();
    world.operator.config.agents = vec!["x".into()];
    for (verb, more) in [("activate", json!({"hash": b})), ("rollback", json!({}))] {
        let (status, body) = change(&world, verb, 2, more.clone()).await;
        assert_eq!((status, &body["code"]), (409, &json!("not_possible")), "{body}");
        assert!(body["detail"].as_str().unwrap().contains("there is no agent `y`, only x; deploy it"), "{body}");
    }
    world.operator.config = config;
    world.operator.config.clock_skew = shared::time::SignedDuration::from_secs(10);
    let (status, body) = change(&world, "rollback", 2, json!({})).await;
    assert_eq!((status, &body["code"]), (409, &json!("not_possible")), "{body}");
    assert!(body["detail"].as_str().unwrap().contains("clocks may be 10000 ms apart"), "{body}");
    assert_eq!(change(&world, "retire", 2, json!({})).await.0, 200, "a name can always be taken out of use");
}

#[tokio::test]
async fn what_is_refused_says_what_to_do_and_keeps_nothing() {
    let (world, _) = world().await;
    let wrong = [
        ("name = \"sample\"\n[[step]]\nname = \"a\"\nagent = \"nobody\"", "sample.toml:4:"),
        ("name = ", "sample.toml:1:"),
        ("", "sample.toml:1:"),
        (&with_timeout(1), "workflow `sample`: step `b` has a timeout of 1000 ms"),
    ];
    let before = world.clients.dynamodb.scan().table_name(&world.config.state_table).send().await.unwrap().count;
    for (toml, place) in wrong {
        let (status, body) = put(&world, toml).await;
        assert_eq!((status, &body["code"]), (422, &json!("invalid_workflow")), "{body}");
        assert!(body["detail"].as_str().unwrap().starts_with(place), "{body}");
    }
    let (status, body) = put(&world, &"#".repeat(40_000)).await;
    assert_eq!((status, &body["field"]), (400, &json!("toml")), "{body}");
    let long = "0".repeat(5000);
    for (verb, version, more, status, code) in [
        ("activate", 0, json!({}), 400, "invalid_field"),
        ("activate", 0, json!({"hash": "../x"}), 404, "no_such_workflow"),
        ("activate", 0, json!({"hash": long}), 404, "no_such_workflow"),
        ("rollback", 0, json!({"hash": "00"}), 400, "invalid_field"),
        ("rollback", 0, json!({}), 409, "not_possible"),
        ("retire", 3, json!({}), 409, "workflow_moved"),
        ("retire", 1 << 53, json!({}), 400, "invalid_field"),
        ("explode", 0, json!({}), 405, "method_not_allowed"),
    ] {
        let (got, body) = change(&world, verb, version, more).await;
        assert_eq!((got, &body["code"]), (status, &json!(code)), "{verb}: {body}");
        assert!(body["detail"].as_str().unwrap().len() < 300, "{body}");
    }
    for name in ["nothing", &long] {
        let (status, body) = change_of(&world, name, "retire", json!({"if_version": 0}), json!({})).await;
        assert_eq!((status, &body["code"]), (404, &json!("no_such_workflow")), "{body}");
        assert!(body["detail"].as_str().unwrap().len() < 300, "{body}");
    }
    let after = world.clients.dynamodb.scan().table_name(&world.config.state_table).send().await.unwrap().count;
    assert_eq!(after, before, "nothing is kept");
}

// Two scopes read; changing takes the second.
#[tokio::test]
async fn changes_need_a_scope_of_their_own_and_reading_needs_either() {
    let (world, _) = world().await;
    let call = async |method: &str, scope: &str, body: Value| {
        world.call_as(token("bob", scope), method, "/workflows", body).await
    };
    for scope in ["stepwarden/operator", "stepwarden/workflows"] {
        assert_eq!(call("GET", scope, Value::Null).await.0, 200, "{scope}");
    }
    assert_eq!(call("GET", "stepwarden/orders", Value::Null).await.0, 403);
    let body = json!({"reason": "x", "toml": with_timeout(20)});
    let (status, refused) = call("POST", "stepwarden/operator stepwarden/orders", body.clone()).await;
    assert_eq!((status, &refused["code"]), (403, &json!("forbidden")));
    assert!(refused["detail"].as_str().unwrap().contains("stepwarden/workflows"), "{refused}");
    let (status, done) = call("POST", "stepwarden/workflows", body).await;
    assert_eq!(status, 200, "{done}");
    let kept = world.get(&format!("/workflows/sample/{}", hash(&done))).await;
    assert_eq!(kept["origin"], json!({"by": "bob", "reason": "x", "since": world.now()}), "the token says who");
    assert_eq!(world.now().as_millisecond(), START);
}

// A deployment with a bad file stops submit at its start. The operator, who must mend that, is not stopped.
#[tokio::test]
async fn a_bad_deployment_leaves_the_operator_its_other_routes() {
    let (mut world, _) = world().await;
    world.operator.deployed = Err("workflows/order.toml:3: no".into());
    let (status, body) = world.call("GET", "/workflows", Value::Null).await;
    assert_eq!((status, &body["code"]), (503, &json!("unavailable")), "{body}");
    assert!(body["detail"].as_str().unwrap().contains("workflows/order.toml:3: no; deploy"), "{body}");
    world.get("/agents").await;
    assert!(world.operator.engine.store.pointers().await.unwrap().is_empty());
}
