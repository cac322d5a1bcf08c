//! Goal: a job acts on each of its orders once, at its rate, and tells what became of each, whatever becomes of the processes that
//! work on it. Method: the routes over the embedded endpoints, with workers that are dropped at random moments, in virtual
//! time. `ORDERS=15000` drains as many; `SEED=n` repeats a run.

use crate::common::{World, request, with};
use aws_sdk_dynamodb::types::AttributeValue;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use serde_json::{Value, json};
use shared::history::Kind;
use shared::job::{Chunk, JobId};
use shared::message::Outcome;
use shared::order::Id;
use shared::task::{Phase, ProcessState};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use stepwarden_embedded::{Call, Fault};
use supervisor::jobs::Worker;
use tokio::time::{Instant, timeout};

const LIFE: Duration = Duration::from_secs(10);
/// How long a worker may take, in virtual time.
const PATIENCE: Duration = Duration::from_secs(3600);
/// What the service takes: this many requests a second, and at most as many at once.
const SERVICE: f64 = 40.0;

pub(crate) async fn ask(world: &World, key: &str, body: Value) -> (i64, Value) {
    let mut event = request("POST", "/jobs", body);
    event["headers"]["idempotency-key"] = json!(key);
    world.answered(event).await
}

/// Starts a job with these fields beside name and reason, and returns its id.
pub(crate) async fn start(world: &World, key: &str, more: Value) -> String {
    let body = json!({"action": "resubmit", "by": "ann", "reason": "the bank is back", "limit": 100_000});
    let (status, job) = ask(world, key, with(body, more)).await;
    assert_eq!(status, 202, "{job}");
    job["job_id"].as_str().unwrap().to_owned()
}

pub(crate) async fn work(world: &World) {
    let worker = Worker::new(&world.operator.engine, LIFE);
    timeout(PATIENCE, worker.work(None)).await.expect("a job without an end").unwrap();
    worker.release().await;
}

pub(crate) async fn job(world: &World, id: &str) -> Value {
    world.get(&format!("/jobs/{id}")).await
}

/// The outcomes of a job, by order.
async fn outcomes(world: &World, id: &str) -> BTreeMap<String, String> {
    let (mut all, mut page) = (BTreeMap::new(), Some(0));
    while let Some(number) = page {
        let answer = world.get(&format!("/jobs/{id}/results?page={number}")).await;
        for one in answer["results"].as_array().unwrap() {
            let outcome = one["outcome"].as_str().unwrap_or("to come").to_owned();
            let before = all.insert(one["order_id"].as_str().unwrap().to_owned(), outcome);
            assert_eq!(before, None, "{one}");
        }
        page = answer["next"].as_u64();
    }
    all
}

async fn acts(world: &World, id: &Id, kind: Kind) -> usize {
    world.task(id).await.log.iter().filter(|entry| entry.1 == kind).count()
}

async fn in_error(world: &World, count: usize) -> Vec<Id> {
    let mut all = Vec::new();
    for n in 0..count {
        all.push(world.in_error(&format!("k{n}"), "acme").await);
    }
    all
}

/// When each order was acted on: the writes of its record, without those that fail because of `fault`.
fn watch(world: &World, fault: impl Fn(&str) -> Option<Fault> + Send + Sync + 'static) -> Arc<Mutex<Vec<Instant>>> {
    let times: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let noted = Arc::clone(&times);
    world.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
        if call.operation == "PutItem" {
            let body: Value = serde_json::from_slice(call.body).unwrap();
            if let Some(id) = body["Item"]["pk"]["S"].as_str().filter(|pk| pk.starts_with("ord_")) {
                let fault = fault(id);
                if fault.is_none() {
                    noted.lock().unwrap().push(Instant::now());
                }
                return fault;
            }
        }
        None
    })));
    times
}

/// Requests that a service refuses which takes [`SERVICE`] of them a second.
fn refused(times: &[Instant]) -> usize {
    let (mut room, mut last, mut refused) = (SERVICE, times[0], 0);
    for at in times {
        room = (room + at.duration_since(last).as_secs_f64() * SERVICE).min(SERVICE);
        last = *at;
        if room < 1.0 { refused += 1 } else { room -= 1.0 }
    }
    refused
}

// M4: one command, and the client is gone; the process dies again and again. The orders are drained at the rate of the service plus 5 %,
// none is acted on twice, and the service refuses nothing, so that no breaker opens.
#[tokio::test(start_paused = true)]
async fn a_job_drains_its_orders_at_its_rate_whatever_dies() {
    let count = std::env::var("ORDERS").map_or(400, |text| text.parse().unwrap());
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let world = World::new().await;
    let orders = in_error(&world, count).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 40})).await;
    let times = watch(&world, |_| None);
    let (mut spent, mut deaths) = (Duration::ZERO, 0_u32);
    loop {
        assert!(spent < PATIENCE, "a job without an end");
        let life = Duration::from_millis(random.u64(20..(count as u64 / 40 * 1000 / 4).max(1000)));
        let begun = Instant::now();
        // Dropped wherever it is: in the middle of a request, of a chunk, between an action and its result.
        let returned = timeout(life, work(&world)).await.is_ok();
        spent += begun.elapsed();
        if matches!(state(&world, &id).await.as_deref(), Some("done" | "aborted")) {
            break;
        }
        // One that does not get the lease of the dead one yet returns too.
        deaths += u32::from(!returned);
        world.later(i64::try_from(LIFE.as_millis()).unwrap() + 1000);
    }
    world.endpoints.set_fault_hook(None);
    let job = job(&world, &id).await;
    assert_eq!(
        (&job["state"], &job["counts"]),
        (&json!("done"), &json!({"good": count, "failed": 0, "left_alone": 0}))
    );
    for order in &orders {
        assert_eq!(acts(&world, order, Kind::Resubmitted).await, 1, "{order}");
        assert_ne!(world.task(order).await.phase, Phase::Error);
    }
    let times = times.lock().unwrap().clone();
    assert_eq!(times.len(), count, "one write for each order");
    assert_eq!(refused(&times), 0);
    let least = count as f64 / 40.0;
    println!("{count} orders, {deaths} deaths, {spent:?} of at least {least} s");
    assert!(deaths > 0 || count < 400);
    assert!(spent.as_secs_f64() >= least * 0.97, "{spent:?}: faster than the rate");
    // A chunk that was cut off is gone through again, at its rate; and a worker looks for other jobs before it ends.
    let again = f64::from(deaths) * 1.0;
    assert!(spent.as_secs_f64() <= least * 1.05 + again + 2.0, "{spent:?} with {deaths} deaths");
}

// M4: on AWS a run of the supervisor begins each minute, and Lambda ends each after 15 minutes. A job pauses only in between. Here
// both times are a quarter.
#[tokio::test(start_paused = true)]
async fn runs_that_lambda_ends_keep_the_rate_of_a_job() {
    let world = World::new().await;
    let count = 250;
    in_error(&world, count).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 1})).await;
    let run = async || {
        let worker = Worker::new(&world.operator.engine, Duration::from_secs(15));
        worker.work(Some(Instant::now() + Duration::from_secs(225 - 3))).await.unwrap();
        worker.release().await;
    };
    let begun = Instant::now();
    let mut quarter = tokio::time::interval(Duration::from_secs(15));
    let (mut runs, mut most) = (FuturesUnordered::new(), 0);
    while state(&world, &id).await.as_deref() != Some("done") {
        tokio::select! {
            _ = quarter.tick() => runs.push(run()),
            Some(()) = runs.next(), if !runs.is_empty() => {}
        }
        most = most.max(runs.len());
    }
    let (spent, least) = (begun.elapsed().as_secs_f64(), count as f64);
    println!("{count} orders at 1 a second: {spent:.1} s, at most {most} runs at once");
    assert!((least * 0.97..=least * 1.05).contains(&spent), "{spent}");
    assert!(most <= 2, "{most} runs: those that do not lead end at once");
}

// M4: answers are lost, requests are throttled, and still each order is acted on once.
#[tokio::test(start_paused = true)]
async fn a_store_that_fails_costs_no_order_its_act() {
    let seed = std::env::var("SEED").map_or_else(|_| fastrand::u64(..), |text| text.parse().unwrap());
    println!("SEED={seed}");
    let world = World::new().await;
    let orders = in_error(&world, 60).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 100})).await;
    let random = Mutex::new(fastrand::Rng::with_seed(seed));
    world.endpoints.set_fault_hook(Some(Arc::new(move |call: &Call<'_>| {
        let mut random = random.lock().unwrap();
        let faults = [Fault::LostAfter, Fault::LostBefore, Fault::InternalError, Fault::Throttle];
        let is_hit = call.operation != "Query" && random.f64() < 0.2;
        is_hit.then(|| faults[random.usize(..faults.len())])
    })));
    for _ in 0..200 {
        let _ = timeout(Duration::from_secs(20), work_once(&world)).await;
        if matches!(state(&world, &id).await.as_deref(), Some("done")) {
            break;
        }
        world.later(i64::try_from(LIFE.as_millis()).unwrap() + 1000);
    }
    world.endpoints.set_fault_hook(None);
    let all = outcomes(&world, &id).await;
    for order in &orders {
        let done = acts(&world, order, Kind::Resubmitted).await;
        let outcome = all[&order.0].as_str();
        assert!(done <= 1, "{order} twice");
        assert!(done == 1 || outcome == "unavailable", "{order}: {outcome}");
    }
    assert_eq!(job(&world, &id).await["state"], "done");
}

// M4: the job waits for an order whose record cannot be written for seconds. It does not make up for them with a burst at the service.
#[tokio::test(start_paused = true)]
async fn what_holds_a_job_up_causes_no_burst() {
    let world = World::new().await;
    let orders = in_error(&world, 200).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 40})).await;
    // The first one that is acted on.
    let (slow, until) = (OnceLock::new(), Instant::now() + Duration::from_secs(8));
    let times = watch(&world, move |id| {
        let is_slow = slow.get_or_init(|| id.to_owned()) == id;
        (is_slow && Instant::now() < until).then_some(Fault::InternalError)
    });
    let begun = Instant::now();
    for _ in 0..2 {
        work_once(&world).await;
    }
    world.endpoints.set_fault_hook(None);
    assert_eq!(state(&world, &id).await.as_deref(), Some("done"));
    let times = times.lock().unwrap().clone();
    assert!(begun.elapsed() > Duration::from_secs(6), "{:?}: nothing held it up", begun.elapsed());
    let later = times.iter().filter(|at| **at > begun + Duration::from_secs(3)).count();
    assert!(later > 100, "{later} of {}: it held none of the others up", orders.len());
    assert_eq!(refused(&times), 0);
}

/// A job over these orders, five a second, whose worker dies after half a second.
async fn cut_off(world: &World, action: &str, orders: &[Id]) -> String {
    let id = start(world, "k", json!({"action": action, "order_ids": orders, "rate_per_s": 5})).await;
    let worker = Worker::new(&world.operator.engine, LIFE);
    assert!(timeout(Duration::from_millis(500), worker.work(None)).await.is_err());
    world.later(i64::try_from(LIFE.as_millis()).unwrap() + 1000);
    id
}

// M4: a job of named orders asks nothing of their state. So only their history says what it did before a death.
#[tokio::test(start_paused = true)]
async fn a_job_of_named_orders_knows_its_own_acts() {
    let world = World::new().await;
    let orders = in_error(&world, 10).await;
    let id = cut_off(&world, "resubmit", &orders).await;
    let mut done = Vec::new();
    for order in &orders {
        if acts(&world, order, Kind::Resubmitted).await > 0 {
            done.push(order);
        }
    }
    assert!((1..5).contains(&done.len()), "{done:?}");
    // It fails again, and the job has had its turn.
    world.wake(done[0]).await;
    world.reply(done[0], "a", Outcome::Failed { error: "no such card".into() }).await;
    work(&world).await;
    let done = done.len();
    let all = outcomes(&world, &id).await;
    assert_eq!(all.values().filter(|outcome| *outcome == "repeated").count(), done, "{all:?}");
    assert_eq!(all.values().filter(|outcome| *outcome == "applied").count(), 10 - done, "{all:?}");
    for order in &orders {
        assert_eq!(acts(&world, order, Kind::Resubmitted).await, 1, "{order}");
    }
}

// M4: an order that changes while the list is read may come twice. The second time it is one that the job has acted on, not one that
// somebody else took out of the filter.
#[tokio::test(start_paused = true)]
async fn an_order_that_is_listed_twice_is_acted_on_once() {
    let world = World::new().await;
    let order = in_error(&world, 1).await.remove(0);
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 1})).await;
    let store = &world.operator.engine.store;
    let job = store.job(&JobId(id.clone())).await.unwrap().unwrap();
    let (listed, page) = job.gather(vec![order.clone(), order.clone()], None);
    assert!(store.save_job(&listed, job.version, page.as_ref().map(|page| (0, page))).await.unwrap());
    work(&world).await;
    let answer = world.get(&format!("/jobs/{id}/results")).await;
    let outcomes: Vec<&Value> = answer["results"].as_array().unwrap().iter().map(|one| &one["outcome"]).collect();
    assert_eq!(outcomes, ["applied", "repeated"]);
    assert_eq!(acts(&world, &order, Kind::Resubmitted).await, 1);
}

// M4: an order that others changed so often since then that its history may have lost the action is left to a person.
#[tokio::test(start_paused = true)]
async fn what_no_history_tells_is_left_to_a_person() {
    let world = World::new().await;
    let mut orders = Vec::new();
    for n in 0..5 {
        orders.push(world.submit(&format!("k{n}"), "acme").await);
    }
    let id = cut_off(&world, "pause", &orders).await;
    let mut open = Vec::new();
    for order in &orders {
        if world.task(order).await.paused_at.is_none() {
            open.push(order);
        }
    }
    let [often, once, ..] = open[..] else { panic!("{open:?}") };
    for (order, times) in [(often, 6), (once, 1)] {
        for act in ["pause", "resume"].repeat(times) {
            assert_eq!(world.act(order, act, Value::Null).await.0, 200);
        }
    }
    work(&world).await;
    let all = outcomes(&world, &id).await;
    assert_eq!((&*all[&often.0], &*all[&once.0]), ("moved", "applied"), "{all:?}");
    assert_eq!(world.task(often).await.paused_at, None);
    assert_ne!(world.task(once).await.paused_at, None);
}

async fn work_once(world: &World) {
    let worker = Worker::new(&world.operator.engine, LIFE);
    let _ = worker.work(None).await;
    worker.release().await;
}

async fn state(world: &World, id: &str) -> Option<String> {
    let (_, job) = world.call("GET", &format!("/jobs/{id}"), Value::Null).await;
    job["state"].as_str().map(str::to_owned)
}

// M4: two jobs over the same orders, each with two workers: each order is acted on by one of them, once.
#[tokio::test(start_paused = true)]
async fn two_jobs_and_two_workers_do_nothing_twice() {
    let world = World::new().await;
    let orders = in_error(&world, 50).await;
    let mut ids = Vec::new();
    for key in ["one", "two"] {
        ids.push(start(&world, key, json!({"filter": {"state": "Error"}, "rate_per_s": 30})).await);
    }
    // The second worker believes that it leads, too: its lease has another name.
    let (one, two) = (Worker::new(&world.operator.engine, LIFE), Worker::without_lease(&world.operator.engine));
    let both = async { tokio::join!(one.work(None), two.work(None)) };
    let (first, second) = timeout(PATIENCE, both).await.expect("a job without an end");
    first.unwrap();
    second.unwrap();
    let mut good = 0;
    for id in &ids {
        let job = job(&world, id).await;
        assert_eq!((&job["state"], &job["counts"]["failed"]), (&json!("done"), &json!(0)), "{job}");
        good += outcomes(&world, id).await.values().filter(|outcome| *outcome != "left_alone").count();
    }
    for order in &orders {
        assert_eq!(acts(&world, order, Kind::Resubmitted).await, 1, "{order}");
    }
    assert_eq!(good, orders.len(), "each order in the results of one job");
}

// M4: a damaged record is named and left alone; what comes after the start is not meant; what no longer matches is left alone.
#[tokio::test(start_paused = true)]
async fn what_cannot_be_read_and_what_has_changed_is_left_alone() {
    let world = World::new().await;
    let orders = in_error(&world, 4).await;
    world.damage(&orders[0]).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 1})).await;
    world.later(10);
    let late = world.in_error("late", "acme").await;
    let worker = Worker::new(&world.operator.engine, LIFE);
    // The first action takes place at once, the others wait for their second.
    assert!(timeout(Duration::from_millis(500), worker.work(None)).await.is_err());
    let results = outcomes(&world, &id).await;
    assert_eq!(results.len(), 4, "not the late one: {results:?}");
    for order in &orders[1..] {
        if acts(&world, order, Kind::Resubmitted).await == 0 {
            assert_eq!(world.act(order, "undo", Value::Null).await.0, 200);
            break;
        }
    }
    worker.work(None).await.unwrap();
    let mut found: Vec<String> = outcomes(&world, &id).await.into_values().collect();
    found.sort();
    assert_eq!(found, ["applied", "applied", "left_alone", "unreadable"]);
    assert_eq!(world.task(&late).await.process_state(), ProcessState::Error);
    let failed = world.get(&format!("/jobs/{id}/results?only=failed")).await;
    assert_eq!(failed["results"].as_array().unwrap().len(), 2, "{failed}");
}

// M4: acts other than a resubmission, orders by their ids, the reason in the overview, labels, and a dry run.
#[tokio::test(start_paused = true)]
async fn a_job_selects_by_id_and_by_error_and_may_only_look() {
    let world = World::new().await;
    let one = world.in_error("1", "acme").await;
    let two = world.submit("2", "acme").await;
    let other = world.submit("3", "acme").await;
    world.wake(&other).await;
    world.reply(&other, "a", Outcome::Failed { error: "503 from bank4711".into() }).await;

    let dry = start(&world, "dry", json!({"filter": {"state": "Error"}, "dry_run": true})).await;
    work(&world).await;
    let all = outcomes(&world, &dry).await;
    assert!(all.len() == 2 && all.values().all(|outcome| outcome == "would_apply"), "{all:?}");
    assert_eq!(acts(&world, &one, Kind::Resubmitted).await, 0);

    let by_error = start(&world, "error", json!({"filter": {"state": "Error", "error": "503 from bank0815"}})).await;
    work(&world).await;
    assert_eq!(outcomes(&world, &by_error).await, BTreeMap::from([(other.0.clone(), "applied".to_owned())]));

    let unknown = Id::derive("acme", "never");
    let ids = json!([one, two, two, unknown]);
    let named = start(&world, "ids", json!({"action": "pause", "order_ids": ids})).await;
    work(&world).await;
    let all = outcomes(&world, &named).await;
    let expected = [(one.0, "not_allowed"), (two.0.clone(), "applied"), (unknown.0, "not_found")];
    assert_eq!(all, expected.map(|(id, outcome)| (id, outcome.to_owned())).into());
    let again = start(&world, "again", json!({"action": "pause", "order_ids": [two]})).await;
    work(&world).await;
    assert_eq!(outcomes(&world, &again).await[&two.0], "repeated");
    // The history of an order names the job.
    let history = world.get(&format!("/details/{two}")).await["history"].clone();
    assert!(history.to_string().contains(&format!("ann, {named}: the bank is back")), "{history}");
    assert_eq!(world.get("/jobs").await["jobs"].as_array().unwrap().len(), 4);
}

// M4: it pauses, goes on where it was, and ends when a person or its failures say so.
#[tokio::test(start_paused = true)]
async fn a_job_is_paused_resumed_and_aborted() {
    let world = World::new().await;
    let orders = in_error(&world, 30).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 5})).await;
    let why = json!({"by": "bob", "reason": "the bank asks"});
    let control = async |verb: &str| world.post(&format!("/jobs/{id}/{verb}"), why.clone()).await;
    let worker = Worker::new(&world.operator.engine, LIFE);
    assert!(timeout(Duration::from_secs(2), worker.work(None)).await.is_err());
    assert_eq!(control("pause").await.1["state"], "paused");
    assert_eq!(control("pause").await.0, 200, "repeated");
    // The chunk in progress was cut off; nothing is looked for while it is paused.
    worker.work(None).await.unwrap();
    let paused = job(&world, &id).await;
    let done = async || {
        let mut done = 0;
        for order in &orders {
            done += acts(&world, order, Kind::Resubmitted).await;
        }
        done
    };
    let before = done().await;
    assert!((5..=20).contains(&before) && paused["state"] == "paused", "{before}: {paused}");
    assert_eq!(control("resume").await.1["state"], "running");
    let (status, answer) = control("resume").await;
    assert!(status == 409 && answer["detail"] == "the job is not paused", "{answer}");
    assert!(timeout(Duration::from_secs(2), worker.work(None)).await.is_err());
    assert!(matches!(control("abort").await.1["state"].as_str(), Some("aborting")));
    worker.work(None).await.unwrap();
    let ended = job(&world, &id).await;
    assert_eq!((&ended["state"], &ended["why"]), (&json!("aborted"), &json!("bob: the bank asks")));
    assert_eq!(ended["counts"]["good"].as_u64().unwrap() as usize, done().await, "each action has its result: {ended}");
    assert_eq!(control("resume").await.0, 409);
    let notes: Vec<&str> =
        ended["notes"].as_array().unwrap().iter().map(|note| note["what"].as_str().unwrap()).collect();
    assert_eq!(notes, ["pause", "resume", "abort"]);

    worker.release().await;
    // Actions that fail: nothing of these can be resubmitted.
    let mut open = Vec::new();
    for n in 0..20 {
        open.push(world.submit(&format!("open{n}"), "acme").await);
    }
    let failing = json!({"order_ids": open, "rate_per_s": 10, "abort_after_failures": 3});
    let id = start(&world, "failing", failing).await;
    work(&world).await;
    let ended = job(&world, &id).await;
    assert_eq!((&ended["state"], &ended["why"]), (&json!("aborted"), &json!("3 actions failed")), "{ended}");
    assert_eq!(ended["counts"], json!({"good": 0, "failed": 3, "left_alone": 0}));
}

// M4: what is wrong with a request is said in words, and nothing is begun.
#[tokio::test]
async fn a_job_that_cannot_be_meant_is_refused() {
    let world = World::new().await;
    let good = json!({"action": "resubmit", "filter": {"state": "Error"}, "by": "ann", "reason": "r"});
    let with = |more: Value| with(good.clone(), more);
    let many: Vec<String> = (0..5001).map(|n| Id::derive("t", &n.to_string()).0).collect();
    for (key, body, words) in [
        ("k", with(json!({"filter": {}})), "matches every order; add a condition"),
        ("k", with(json!({"order_ids": []})), "has 0 ids"),
        ("k", with(json!({"order_ids": many})), "has 5001 ids; a job takes 1 to 5000"),
        ("k", with(json!({"order_ids": ["ord_x"]})), "id 1 is `ord_x`"),
        ("k", with(json!({"action": "explode"})), "must be one of"),
        ("k", with(json!({"action": "migrate"})), "is required: the hash of a definition, or `latest`"),
        ("k", with(json!({"action": "migrate", "to": "latest"})), "must name the workflow"),
        ("k", with(json!({"action": "cancel", "to": "latest"})), "does not take `to`"),
        ("k", with(json!({"action": "cancel", "input": {}})), "does not take `input`"),
        ("k", with(json!({"rate_per_s": 101})), "rate_per_s"),
        ("k", with(json!({"limit": 100_001})), "limit"),
        ("k", with(json!({"filter": {"label": "x".repeat(65)}})), "has 65 bytes"),
        ("k", with(json!({"order_ids": many[..3], "limit": 2})), "has 3 ids, and `limit` is 2"),
        ("k", with(json!({"input": {"x": "x".repeat(16 * 1024)}})), "has 16392 bytes as JSON; the limit is 16384"),
        (
            "k",
            with(json!({"action": "mark-done", "output": "x".repeat(4095)})),
            "has 4097 bytes as JSON; the limit is 4096",
        ),
        ("k", with(json!({"reason": " "})), "is required"),
        ("", good.clone(), "Idempotency-Key"),
    ] {
        let (status, answer) = ask(&world, key, body).await;
        assert!(status == 400 && answer.to_string().contains(words), "{words}: {answer}");
    }
    assert_eq!(world.get("/jobs").await, json!({"jobs": []}));
    assert_eq!(world.call("GET", "/jobs/job_x", Value::Null).await.1["code"], "no_such_job");
    let mut all = Vec::new();
    for n in 0..20 {
        all.push(start(&world, &n.to_string(), json!({"filter": {"state": "Error"}})).await);
    }
    let (status, answer) = ask(&world, "too many", good.clone()).await;
    assert!(status == 409 && answer.to_string().contains("20 jobs have not ended"), "{answer}");
    // One that is paused takes no room, so it needs some when it is resumed.
    let why = json!({"by": "ann", "reason": "r"});
    let control = async |verb: &str| {
        let (status, answer) = world.post(&format!("/jobs/{}/{verb}", all[0]), why.clone()).await;
        (status, answer["code"].as_str().map(str::to_owned))
    };
    assert_eq!(control("pause").await.0, 200);
    assert_eq!(ask(&world, "one more", good).await.0, 202);
    assert_eq!(control("resume").await, (409, Some("not_possible".to_owned())));
}

// M4, M5: how long the key of a job protects, and that it stands for one request.
#[tokio::test]
async fn the_key_of_a_job_finds_it_and_no_other() {
    let world = World::new().await;
    let body = json!({"action": "resubmit", "filter": {"state": "Error"}, "by": "ann", "reason": "r"});
    let with = |field: &str, value: Value| with(body.clone(), json!({field: value}));
    let first = ask(&world, "same", body.clone()).await;
    assert_eq!(first.0, 202, "{}", first.1);
    // What is left out has its default.
    for same in [body.clone(), with("rate_per_s", json!(10)), with("dry_run", json!(false))] {
        let again = ask(&world, "same", same).await;
        assert_eq!((again.0, &again.1["job_id"]), (202, &first.1["job_id"]), "{}", again.1);
    }
    let ids = json!([Id::derive("t", "1").0]);
    for (field, value) in [
        ("action", json!("cancel")),
        ("filter", json!({"state": "Paused"})),
        ("order_ids", ids),
        ("by", json!("bob")),
        ("reason", json!("another")),
        ("input", json!({"a": 1})),
        ("rate_per_s", json!(11)),
        ("limit", json!(99)),
        ("dry_run", json!(true)),
    ] {
        let (status, answer) = ask(&world, "same", with(field, value)).await;
        assert_eq!((status, answer["code"].as_str()), (422, Some("idempotency_key_reused")), "{field}: {answer}");
    }
    assert_eq!(world.get("/jobs").await["jobs"].as_array().unwrap().len(), 1);
}

// M4: a page that cannot be read ends its job with the reason, and the job holds up no other.
#[tokio::test(start_paused = true)]
async fn a_job_whose_orders_cannot_be_read_ends() {
    let world = World::new().await;
    let orders = in_error(&world, 2).await;
    for has_begun in [false, true] {
        let named = json!({"order_ids": [orders[0]], "dry_run": true});
        let id = start(&world, if has_begun { "begun" } else { "new" }, named).await;
        if has_begun {
            // It dies with a chunk in progress.
            let begun = world.operator.engine.store.job(&JobId(id.clone())).await.unwrap().unwrap();
            let next = begun.begin(Chunk { len: 1, intents: Vec::new(), at: world.operator.engine.now() });
            assert!(world.operator.engine.store.save_job(&next, begun.version, None).await.unwrap());
        }
        world.write(format!("{id}#00000"), "page", Some(AttributeValue::S("no page".into()))).await;
        work(&world).await;
        let ended = job(&world, &id).await;
        assert_eq!(ended["state"], "aborted", "{ended}");
        assert!(ended["why"].as_str().unwrap().starts_with("page 0 of its orders cannot be read"), "{ended}");
    }
}

// M4: a worker whose time is over begins nothing more, and the next one goes on where it was.
#[tokio::test(start_paused = true)]
async fn a_worker_whose_time_is_over_leaves_the_rest_to_the_next() {
    let world = World::new().await;
    let orders = in_error(&world, 30).await;
    let id = start(&world, "k", json!({"filter": {"state": "Error"}, "rate_per_s": 100})).await;
    // The store fails from the third act on, for as long as the worker has time.
    let first_tried: Arc<Mutex<BTreeMap<String, Instant>>> = Arc::default();
    let tried = Arc::clone(&first_tried);
    watch(&world, move |id| {
        let mut tried = tried.lock().unwrap();
        tried.entry(id.to_owned()).or_insert_with(Instant::now);
        (tried.len() > 2).then_some(Fault::InternalError)
    });
    let until = Instant::now() + Duration::from_secs(3);
    let worker = Worker::new(&world.operator.engine, LIFE);
    worker.work(Some(until)).await.unwrap();
    worker.release().await;
    // One round of tries of the SDK may be in progress at the end.
    assert!(Instant::now() < until + Duration::from_secs(5), "{:?} late", Instant::now() - until);
    assert_eq!(job(&world, &id).await["counts"]["failed"], 0);
    world.endpoints.set_fault_hook(None);
    let late: Vec<Instant> = first_tried.lock().unwrap().values().copied().filter(|at| *at > until).collect();
    assert!(late.is_empty(), "{late:?}");
    work(&world).await;
    assert_eq!(job(&world, &id).await["counts"], json!({"good": 30, "failed": 0, "left_alone": 0}));
    for order in &orders {
        assert_eq!(acts(&world, order, Kind::Resubmitted).await, 1, "{order}");
    }
}

// A job whose record was damaged holds up no other.
#[tokio::test(start_paused = true)]
async fn a_damaged_job_is_named_and_holds_up_no_other() {
    let world = World::new().await;
    let orders = in_error(&world, 2).await;
    let bad = start(&world, "bad", json!({"filter": {"state": "Error"}})).await;
    world.write(&bad, "job", Some(AttributeValue::S("no record".into()))).await;
    let id = start(&world, "good", json!({"filter": {"state": "Error"}})).await;
    work(&world).await;
    assert_eq!(job(&world, &id).await["state"], "done");
    for order in &orders {
        assert_eq!(acts(&world, order, Kind::Resubmitted).await, 1);
    }
    assert_eq!(world.get("/jobs").await["unreadable"], json!([bad]));
    assert!(world.operator.engine.store.job(&JobId(bad)).await.is_err());
}
