//! Who waits for what, and since when. Method: the operator's routes over embedded tables, with orders in all shards of
//! the due index, whose waits the engine's own events begin.

use crate::common::{START, World, ids, parsed};
use crate::jobs;
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use shared::message::Outcome;
use shared::order::Id;
use shared::ports::StateStore;
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::Workflow;
use stepwarden_aws::item;

const TRIAL: &str = r#"
name = "trial"
[[step]]
name = "month"
wait = "30d"
[[step]]
name = "remind"
after = ["month"]
agent = "x"
timeout = "10s"
"#;

async fn workflow(world: &World, text: &str) -> Workflow {
    let workflow = parsed(text);
    world.operator.engine.use_workflow(&workflow).await.unwrap();
    workflow
}

async fn waits(world: &World, workflow: &Workflow, key: &str) -> Id {
    let id = world.submit_to(workflow, key, "acme").await;
    world.wake(&id).await;
    id
}

/// The orders of all pages of a list.
async fn list(world: &World, query: &str) -> Value {
    let pages = world.pages(query).await;
    pages.iter().flat_map(|page| page["orders"].as_array().unwrap().clone()).collect()
}

// L7: oldest first over all shards, page by page, each once, also those that began in the same millisecond.
#[tokio::test]
async fn what_waits_is_listed_oldest_first() {
    let world = World::new().await;
    let trial = workflow(&world, TRIAL).await;
    let cooling = workflow(&world, &TRIAL.replace("trial", "cooling").replace("30d", "2h")).await;
    let mut at = Vec::new();
    for n in 0..18 {
        at.push(waits(&world, if n % 3 == 2 { &cooling } else { &trial }, &format!("w{n}")).await.0);
        if n % 5 > 1 {
            world.later(1000);
        }
    }
    // Neither is over before a person looks, nor does anything wait in it.
    let short = workflow(&world, &TRIAL.replace("trial", "short").replace("30d", "59s")).await;
    let brief = waits(&world, &short, "short").await;
    world.submit("new", "acme").await;

    let listed = list(&world, "state=waiting&limit=4").await;
    let since: Vec<&str> =
        listed.as_array().unwrap().iter().map(|one| one["waits"][0]["since"].as_str().unwrap()).collect();
    assert!(since.is_sorted(), "{since:?}");
    let mut wanted = at.clone();
    wanted.sort();
    assert_eq!(ids(&listed), wanted, "each once");
    let first = Timestamp::from_millisecond(START).unwrap();
    let until = first + SignedDuration::from_hours(30 * 24);
    assert_eq!(
        listed.as_array().unwrap().iter().find(|one| one["order_id"] == json!(at[0])).unwrap()["waits"],
        json!([{"step": "month", "wait": "waits 30d", "since": first, "until": until}])
    );
    assert_eq!(list(&world, "state=Waiting&workflow=cooling&step=month&limit=5").await.as_array().unwrap().len(), 6);
    assert_eq!(list(&world, "state=Waiting&step=remind").await, json!([]));
    // Lists in other states show waits too, however short.
    assert_eq!(world.get("/orders?workflow=short").await["orders"][0]["waits"][0]["step"], "month");

    let overview = world.get("/overview").await;
    assert_eq!(overview["waits"]["count"], 18, "{overview}");
    let [one, two] = overview["waits"]["steps"].as_array().unwrap().as_slice() else { panic!("{overview}") };
    assert_eq!((&one["workflow"], &one["count"], &one["since"]), (&json!("trial"), &json!(12), &json!(first)));
    assert_eq!((&two["workflow"], &two["count"], &two["step"]), (&json!("cooling"), &json!(6), &json!("month")));
    assert_eq!((&two["order_id"], &two["wait"]), (&json!(at[2]), &json!("waits 2h")));

    // A pause is another list.
    let paused = Id(at[7].clone());
    assert_eq!(world.act(&paused, "pause", json!({})).await.0, 200);
    assert!(!ids(&list(&world, "state=Waiting").await).contains(&paused.0));
    assert_eq!(world.act(&paused, "resume", json!({})).await.0, 200);
    assert!(ids(&list(&world, "state=Waiting").await).contains(&paused.0));
    // An order that does not wait is never written to that index.
    assert!(!world.stored(&brief).await.contains_key("attention"));

    for cursor in ["x", "%7B%7D", "%7B%22attention%22:[%22S%22,%22Error%22]%7D"] {
        let (status, body) = world.call("GET", &format!("/orders?state=Waiting&cursor={cursor}"), Value::Null).await;
        assert_eq!((status, &body["code"]), (400, &json!("invalid_field")), "{cursor}: {body}");
    }
}

// B9: of the orders that wait, a bulk action takes those whose step it names; without a name it ends no wait.
#[tokio::test(start_paused = true)]
async fn a_bulk_act_on_waits_names_the_step() {
    let world = World::new().await;
    let trial = workflow(&world, TRIAL).await;
    for n in 0..6 {
        waits(&world, &trial, &format!("w{n}")).await;
        world.later(1000);
    }
    let job = async |step: Value| {
        let filter = json!({"state": "Waiting", "workflow": "trial", "step": step});
        let more = json!({"action": "skip", "filter": filter, "limit": 4, "rate_per_s": 100});
        let id = jobs::start(&world, &step.to_string(), more).await;
        jobs::work(&world).await;
        let results = world.get(&format!("/jobs/{id}/results")).await["results"].take();
        (jobs::job(&world, &id).await["counts"].take(), results)
    };
    let (counts, results) = job(Value::Null).await;
    assert_eq!(counts, json!({"good": 0, "failed": 4, "left_alone": 0}), "{results}");
    assert!(results[0]["why"].as_str().unwrap().contains("name the step"), "{results}");
    assert_eq!(job(json!("month")).await.0, json!({"good": 4, "failed": 0, "left_alone": 0}));
    assert_eq!(list(&world, "state=Waiting").await.as_array().unwrap().len(), 2);
}

// However many orders wait, and however soon, the overview shows those in trouble.
#[tokio::test]
async fn orders_that_wait_hide_none_in_trouble() {
    let world = World::new().await;
    let soon = workflow(&world, &TRIAL.replace("30d", "2m")).await;
    for n in 0..130 {
        waits(&world, &soon, &format!("w{n}")).await;
    }
    let troubled = world.submit("troubled", "acme").await;
    world.wake(&troubled).await;
    world.reply(&troubled, "a", Outcome::Unavailable { error: "503".into(), retry_after_ms: None }).await;
    // A sweep moves it to where its next attempt is.
    world.later(11_000);
    world.operator.engine.recover(std::slice::from_ref(&troubled), 1).await.remove(0).unwrap();
    let due = |task: shared::task::Task| task.due.unwrap();
    let one =
        due(world.task(&Id(list(&world, "state=Waiting&limit=1").await[0]["order_id"].as_str().unwrap().into())).await);
    assert!(one < due(world.task(&troubled).await), "all waits are due before its next attempt");
    let overview = world.get("/overview").await;
    assert_eq!(overview["retrying"]["count"], 1, "{overview}");
    assert_eq!(overview["retrying"]["why"][0]["order_id"], json!(troubled), "{overview}");
    assert_eq!((&overview["waits"]["count"], &overview["waits"]["more"]), (&json!(130), &json!(false)));
}

// A wait whose record a sweep set aside is named, behind any number of other waits.
#[tokio::test]
async fn a_wait_that_was_set_aside_is_named() {
    let world = World::new().await;
    let trial = workflow(&world, TRIAL).await;
    for n in 0..110 {
        waits(&world, &trial, &format!("w{n}")).await;
    }
    world.later(1000);
    let damaged = waits(&world, &trial, "damaged").await;
    world.damage(&damaged).await;
    let store = &world.operator.engine.store;
    let far = Timestamp::now() + SignedDuration::from_hours(24);
    assert!(!store.set_aside(&damaged, "why", far, false).await.unwrap(), "nobody was told");
    assert_eq!(
        world.stored(&damaged).await["attention"],
        AttributeValue::S(item::ATTENTION_UNREADABLE.into()),
        "no longer among the waits"
    );
    let overview = world.get("/overview").await;
    assert_eq!(ids(&overview["unreadable"]), std::slice::from_ref(&damaged.0), "{overview}");
    assert!(store.set_aside(&damaged, "why", far, true).await.unwrap(), "noted");
}
