//! Goal: one action of a person restores an order whose record cannot be read; nothing is done twice, and no readable
//! record is overwritten. Method: records are damaged under the real handlers, store and engine; queues and bus show
//! what was sent. // B9

use crate::common::{World, token};
use aws_sdk_dynamodb::types::AttributeValue;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::order::Id;
use shared::ports::Error;
use shared::task::{MOVED, ProcessState};
use stepwarden_aws::config::queue;
use stepwarden_aws::messenger::ORDER_ALERT;

impl World {
    async fn text(&self, id: &Id) -> String {
        self.stored(id).await["task"].as_s().unwrap().clone()
    }

    /// Cuts the record of an order in half, and returns the old text.
    async fn cut(&self, id: &Id) -> String {
        let whole = self.text(id).await;
        self.write(id, "task", Some(AttributeValue::S(whole[..whole.len() / 2].to_owned()))).await;
        whole
    }

    /// The result of a sweep of this order.
    async fn look(&self, id: &Id) -> Result<(), Error> {
        self.operator.engine.recover(std::slice::from_ref(id), 1).await.pop().unwrap().map(drop)
    }

    async fn record(&self, id: &Id) -> Value {
        self.get(&format!("/details/{id}/record")).await
    }

    async fn mend(&self, id: &Id, seen: &Value, record: &Value, reason: &str) -> (i64, Value) {
        let body = json!({"by": "ann", "reason": reason, "seen": seen, "record": record});
        self.post(&format!("/orders/{id}/actions/mend"), body).await
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

// From the alert to the end of the order, by the command that the alert names and the action.
#[tokio::test]
async fn a_damaged_record_is_shown_and_mended_and_its_order_ends_with_nothing_done_twice() {
    let world = World::new().await;
    let id = world.submit("k1", "acme").await;
    world.wake(&id).await;
    world.done(&id, "a", json!({"paid": 5})).await;
    let version = world.task(&id).await.version;
    let good = world.cut(&id).await;
    world.later(1000);
    assert!(matches!(world.look(&id).await, Err(Error::Corrupt { .. })));
    let events = world.endpoints.events().page(0, 100);
    let alerts: Vec<Value> =
        events.iter().filter(|e| e.detail_type == ORDER_ALERT).map(|e| parsed(&e.detail)).collect();
    assert_eq!(alerts.len(), 1, "{alerts:?}");
    assert_eq!(
        (&alerts[0]["order_id"], &alerts[0]["resubmit"]),
        (&json!(id), &json!(format!("stepwarden get {id} --raw")))
    );

    let record = world.record(&id).await;
    assert_eq!(record["record"], json!(good[..good.len() / 2]), "exactly as stored");
    assert!(record["why"].as_str().unwrap().contains("damaged"), "{record}");
    assert_eq!((&record["columns"]["version"], record["columns"].get("aside")), (&json!(version.to_string()), None));
    // Meanwhile a supervisor reads the record again, and notes that beside it.
    world.look(&id).await.unwrap_err();
    world.drain(queue::SCHEDULER).await;
    let (status, body) = world.mend(&id, &record["seen"], &parsed(&good), "a disk went bad").await;
    assert_eq!((status, &body["outcome"], &body["version"]), (200, &json!("applied"), &json!(version + 1)), "{body}");

    let item = world.stored(&id).await;
    assert!(!["aside", "aside_told", "attention"].iter().any(|name| item.contains_key(*name)), "{item:?}");
    assert_eq!(world.get("/overview").await.get("unreadable"), None);
    let history = shared::view::history(&world.task(&id).await, &world.workflow);
    let last = history.last().unwrap();
    assert_eq!(
        (last.event.as_str(), last.detail.as_deref()),
        ("resumed", Some("ann: the record was mended: a disk went bad"))
    );
    assert_eq!(world.record(&id).await.get("why"), None);
    // The answer was lost, and the person repeats the action.
    let (status, body) = world.mend(&id, &record["seen"], &parsed(&good), "a disk went bad").await;
    assert_eq!((status, &body["outcome"], &body["version"]), (200, &json!("repeated"), &json!(version + 1)), "{body}");

    world.done(&id, "b", json!(null)).await;
    let task = world.task(&id).await;
    assert_eq!(
        (task.process_state(), task.steps[0].output.clone()),
        (ProcessState::Processed, Some(json!({"paid": 5})))
    );
    for agent in ["x", "y"] {
        assert_eq!(world.drain(&queue::agent(agent)).await.len(), 1, "{agent} was asked once");
    }
}

// An order that had not begun begins by a Wake; an order whose attempt has expired meanwhile is found by the sweep.
#[tokio::test]
async fn a_mended_order_continues_by_its_wake_and_by_the_sweep() {
    let world = World::new().await;
    let (new, begun) = (world.submit("new", "acme").await, world.submit("begun", "acme").await);
    world.wake(&begun).await;
    world.drain(&queue::agent("x")).await;
    for id in [&new, &begun] {
        let good = world.cut(id).await;
        world.look(id).await.unwrap_err();
        let seen = world.record(id).await["seen"].clone();
        assert_eq!(world.mend(id, &seen, &parsed(&good), "r").await.0, 200);
    }
    // It continues now, not after the five minutes for which it was set aside. The first notice precedes the Wake, so the sweep sends both.
    world.later(61_000);
    world.look(&new).await.unwrap();
    let wakes = world.drain(queue::SCHEDULER).await;
    assert!(wakes.iter().any(|wake| wake["task_id"] == json!(new)), "{wakes:?}");
    world.event(&new, Event::Wake { seen: 1, hops: 0 }).await;
    assert_eq!(world.drain(&queue::agent("x")).await.len(), 1);
    assert!(world.task(&begun).await.due.unwrap() <= world.now());
    world.look(&begun).await.unwrap();
    assert_eq!(world.task(&begun).await.failure_count(), 1);
}

// B9: a mistake is reported with its place, and the record stays as it is.
#[tokio::test]
async fn a_text_that_does_not_fit_the_order_is_refused_in_words_and_changes_nothing() {
    let world = World::new().await;
    let id = world.submit("k1", "acme").await;
    world.wake(&id).await;
    let good = parsed(&world.cut(&id).await);
    let before = world.stored(&id).await;
    let seen = world.record(&id).await["seen"].clone();
    let with = |pointer: &str, value: Value| {
        let mut record = good.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        record.pointer_mut(parent).unwrap()[name] = value;
        record
    };
    let mut without = good.clone();
    without.as_object_mut().unwrap().remove("log");
    let (mut deep, mut long) = (json!(0), String::new());
    for _ in 0..60 {
        deep = json!([deep]);
    }
    long.extend(std::iter::repeat_n('x', 5000));
    let other = world.submit("k2", "beta").await;
    let cases = [
        (without, 400, "invalid_field", "record"),
        (json!("{"), 400, "invalid_field", "record"),
        (with("/children", json!(3)), 400, "invalid_field", "record"),
        (with("/ph", json!("Waiting")), 400, "invalid_field", "record.ph"),
        (parsed(&world.text(&other).await), 400, "invalid_field", "record.tn"),
        (with("/wh", json!("0".repeat(64))), 400, "invalid_field", "record.wh"),
        (with("/wf", json!("another")), 400, "invalid_field", "record.wf"),
        (with("/st", json!([good["st"][0]])), 400, "invalid_field", "record.st"),
        (with("/st/0/o", json!(long)), 400, "invalid_field", "record.st[0].o"),
        (with("/st/0/o", deep), 400, "invalid_field", "record.st[0].o"),
        (with("/ref", json!("x".repeat(400 * 1024))), 413, "too_large", ""),
        (with("/ref", json!("x".repeat(600 * 1024))), 413, "too_large", ""),
    ];
    for (n, (record, status, code, field)) in cases.into_iter().enumerate() {
        let (got, problem) = world.mend(&id, &seen, &record, "r").await;
        assert_eq!((got, &problem["code"]), (status, &json!(code)), "{n}: {problem}");
        let at = problem["field"].as_str().unwrap_or_default();
        assert!(at == field || n < 3 && at.starts_with(field), "{n}: {problem}");
        assert!(problem["detail"].as_str().unwrap().len() > 10, "{n}: {problem}");
    }
    let path = format!("/orders/{id}/actions/mend");
    for (body, field) in [
        (json!({"by": "ann", "seen": seen, "record": good}), "reason"),
        (json!({"reason": "r", "seen": seen, "record": good}), "by"),
        (json!({"by": "ann", "reason": "r", "record": good}), "seen"),
        (json!({"by": "ann", "reason": "r", "seen": seen}), "record"),
    ] {
        let (status, problem) = world.post(&path, body).await;
        assert_eq!(status, 400, "{problem}");
        assert!(problem.to_string().contains(field), "{problem}");
    }
    assert_eq!(world.stored(&id).await, before);
    let none = Id::derive("acme", "nobody");
    assert_eq!(world.mend(&none, &seen, &good, "r").await.1["code"], json!("no_such_order"));
    let (status, body) = world.call("GET", &format!("/details/{none}/record"), Value::Null).await;
    assert_eq!((status, &body["code"]), (404, &json!("no_such_order")), "{body}");
    assert_eq!(world.mend(&id, &seen, &good, "r").await.0, 200, "the good one is taken");
}

// A readable record is never overwritten, nor a record other than the one that the person saw.
#[tokio::test]
async fn only_the_record_that_was_seen_is_mended_and_only_while_it_cannot_be_read() {
    let world = World::new().await;
    let id = world.in_error("k1", "acme").await;
    let before = world.stored(&id).await;
    let record = world.record(&id).await;
    assert_eq!((record.get("why"), &record["record"]), (None, &json!(before["task"].as_s().unwrap())));
    let good = parsed(record["record"].as_str().unwrap());
    let (status, problem) = world.mend(&id, &record["seen"], &good, "r").await;
    assert_eq!((status, &problem["code"]), (409, &json!("not_allowed")), "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains("can be read"), "{problem}");
    assert_eq!(world.stored(&id).await, before);

    world.cut(&id).await;
    let seen = world.record(&id).await["seen"].clone();
    // Another writer stores a different record, which cannot be read either.
    world.write(&id, "task", Some(AttributeValue::S("{}".into()))).await;
    let (status, problem) = world.mend(&id, &seen, &good, "r").await;
    assert_eq!(
        (status, &problem["code"], &problem["field"]),
        (409, &json!("order_moved"), &json!("seen")),
        "{problem}"
    );
    assert_eq!(world.text(&id).await, "{}");
    // The same between the read and the write of the action itself.
    let store = &world.operator.engine.store;
    let raw = store.raw(&id).await.unwrap().unwrap();
    let mut task = raw.with_text(&good.to_string()).unwrap();
    task.version += 1;
    for (name, value) in [
        ("task", AttributeValue::S("[]".into())),
        ("version", AttributeValue::N("99".into())),
        ("stamp", AttributeValue::S("another".into())),
    ] {
        let kept = world.stored(&id).await[name].clone();
        world.write(&id, name, Some(value.clone())).await;
        assert!(!store.replace_raw(&task, &raw).await.unwrap(), "{name}");
        assert_eq!(world.stored(&id).await[name], value);
        world.write(&id, name, Some(kept)).await;
    }
    assert!(store.replace_raw(&task, &raw).await.unwrap());
}

#[tokio::test]
async fn of_many_operators_at_once_one_mends() {
    let world = World::new().await;
    let id = world.in_error("k1", "acme").await;
    let good = parsed(&world.cut(&id).await);
    let seen = world.record(&id).await["seen"].clone();
    let (world, id, seen, good) = (&world, &id, &seen, &good);
    let one = |n: usize| async move { world.mend(id, seen, good, &format!("reason {n}")).await };
    let answers = futures::future::join_all((0..8).map(one)).await;
    assert_eq!(answers.iter().filter(|(_, body)| body["outcome"] == "applied").count(), 1, "{answers:?}");
    assert_eq!(
        answers.iter().filter(|(status, body)| *status == 409 && body["code"] == "not_allowed").count(),
        7,
        "{answers:?}"
    );
    let acts = world.task(id).await.log.iter().filter(|entry| entry.1.is_act()).count();
    assert_eq!(acts, 1);
}

// Security: the text contains an order's data of any tenant, so only an operator may read it; the order keeps its
// tenant.
#[tokio::test]
async fn the_record_is_for_operators_only() {
    let world = World::new().await;
    let id = world.submit("k1", "acme").await;
    let good = parsed(&world.cut(&id).await);
    let seen = world.record(&id).await["seen"].clone();
    let body = json!({"by": "somebody else", "reason": "r", "seen": seen, "record": good});
    let (read, mend) = (format!("/details/{id}/record"), format!("/orders/{id}/actions/mend"));
    for (method, path) in [("GET", &read), ("POST", &mend)] {
        let (status, _) = world.call_as(token("ann", "stepwarden/orders"), method, path, body.clone()).await;
        assert_eq!(status, 403, "{method} {path}");
    }
    assert_eq!(world.record(&id).await["seen"], seen);
    assert_eq!(world.call_as(token("ann", "stepwarden/operator"), "POST", &mend, body).await.0, 200);
    let task = world.task(&id).await;
    assert_eq!(task.tenant, "acme");
    assert!(
        task.log.iter().any(|entry| entry.4.as_ref().is_some_and(|text| text.starts_with("ann: "))),
        "{:?}",
        task.log
    );
}

// A text cannot replace a damaged attribute, and the refusal says so; no record is written that a save would refuse.
#[tokio::test]
async fn damage_beside_the_text_is_named_and_not_mended() {
    let world = World::new().await;
    let id = world.submit("k1", "acme").await;
    let good = parsed(&world.cut(&id).await);
    for (name, value, why) in [
        ("version", None, "`version` is missing"),
        ("version", Some(AttributeValue::S("1".into())), "`version` is not a number"),
        ("children", Some(AttributeValue::N("3".into())), "unknown attribute `children`"),
    ] {
        let kept = world.stored(&id).await.get(name).cloned();
        world.write(&id, name, value).await;
        let before = world.stored(&id).await;
        let record = world.record(&id).await;
        let (status, problem) = world.mend(&id, &record["seen"], &good, "r").await;
        assert_eq!((status, &problem["code"]), (409, &json!("not_allowed")), "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains(why), "{problem}");
        assert_eq!(world.stored(&id).await, before);
        world.write(&id, name, kept).await;
    }
    // An order that has ended is in no index, and its text is mended all the same.
    let id = world.submit("k2", "acme").await;
    world.act(&id, "cancel", json!({})).await;
    let good = parsed(&world.cut(&id).await);
    world.write(&id, "due", None).await;
    world.write(&id, "shard", None).await;
    let seen = world.record(&id).await["seen"].clone();
    assert_eq!(world.mend(&id, &seen, &good, "r").await.0, 200);
    assert_eq!(world.task(&id).await.process_state(), ProcessState::Undone);
    // Whatever shard a text names, an open order returns to one that is swept.
    let open = world.submit("k3", "acme").await;
    let mut text = parsed(&world.cut(&open).await);
    text["sh"] = json!(700);
    for name in ["due", "shard"] {
        world.write(&open, name, None).await;
    }
    let seen = world.record(&open).await["seen"].clone();
    assert_eq!(world.mend(&open, &seen, &text, "r").await.0, 200);
    let task = world.task(&open).await;
    assert!(task.due.is_some() && (MOVED..MOVED + world.config.shards).contains(&task.shard), "{task:?}");
}

/// The record of the runbook for an order of which no text is left.
fn from_the_runbook(world: &World, columns: &Value) -> Value {
    let page = include_str!("../../../docs/runbook.md").split("## Record unreadable").nth(1).unwrap();
    let json = page.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
    let json = json.replace("WORKFLOW", "sample").replace("HASH", &world.workflow.hash().0).replace("TENANT", "acme");
    let mut record = parsed(&json.replace("ATTEMPTS", columns["version"].as_str().unwrap()));
    let step = record["st"][0].clone();
    record["st"] = json!(vec![step; world.workflow.steps.len()]);
    record
}

// No text is left: the order is restored in Error, and from there every step is done again under its key, or undone.
#[tokio::test]
async fn an_order_of_which_no_text_is_left_is_stopped_and_led_on_by_other_acts() {
    for act in ["resubmit", "cancel"] {
        let world = World::new().await;
        let id = world.submit("k1", "acme").await;
        world.wake(&id).await;
        world.done(&id, "a", json!({"paid": 5})).await;
        let before = world.drain(&queue::agent("x")).await;
        world.write(&id, "task", Some(AttributeValue::S("\u{fffd}".into()))).await;
        let record = world.record(&id).await;
        let (status, body) =
            world.mend(&id, &record["seen"], &from_the_runbook(&world, &record["columns"]), "lost").await;
        assert_eq!(status, 200, "{body}");
        assert_eq!(world.task(&id).await.process_state(), ProcessState::Error);
        assert_eq!(world.act(&id, act, json!({})).await.0, 200);
        // The undo does not begin before the CompleteBy of the latest request that may have been sent.
        world.later(61_000);
        world.event(&id, Event::Wake { seen: 0, hops: 0 }).await;
        let requests = world.drain(&queue::agent("x")).await;
        assert_eq!(requests.len(), 1, "{act}: {requests:?}");
        assert!(requests[0]["attempt"].as_u64() > before[0]["attempt"].as_u64(), "{act}: no older reply counts for it");
        let key = |direction: &str| json!(format!("{id}:a:{direction}"));
        if act == "cancel" {
            assert_eq!(requests[0]["idempotency_key"], key("undo"));
            world.done(&id, "a", json!(null)).await;
            assert_eq!(world.task(&id).await.process_state(), ProcessState::Undone);
            continue;
        }
        assert_eq!(requests[0]["idempotency_key"], key("do"));
        for step in ["a", "b"] {
            world.done(&id, step, json!({"paid": 5})).await;
        }
        assert_eq!(world.task(&id).await.process_state(), ProcessState::Processed);
    }
}
