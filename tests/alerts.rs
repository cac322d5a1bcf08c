//! Goal: an operator is alerted once about what they must know, and no alert is lost while the bus is unavailable or a
//! supervisor dies. Method: the real supervisor, store and messenger over the embedded endpoints in virtual time;
//! requests to agents stay unanswered.

use crate::support::three_noops;
use crate::support::world::World;
use serde_json::{Value, json};
use shared::order::Id;
use shared::ports::StateStore;
use shared::step::State;
use shared::strain::{QUIET, Strain, WINDOW};
use shared::task::{MAX_OWED_WAIT, ProcessState};
use shared::time::SignedDuration;
use std::time::Duration;
use stepwarden_aws::messenger::{AGENT_ALERT, ORDER_ALERT};
use stepwarden_embedded::Fault;
use supervisor::{Settings, Supervisor, Sweep};
use tokio::time::advance;

const LIFE: Duration = Duration::from_secs(60);

/// One sweep by a new supervisor, as if the previous one had died.
async fn sweep(world: &World, name: &str) -> Sweep {
    let engine = world.engine(name, 1, None);
    let mut supervisor = Supervisor::new(&engine, &*engine.store, Settings::new(1, LIFE));
    let swept = supervisor.sweep().await.unwrap();
    supervisor.release().await;
    swept
}

async fn pass(by: SignedDuration) {
    advance(Duration::try_from(by).unwrap()).await;
}

/// Steps of `max` attempts, after 10 s each; at their end the order stops in Error.
async fn world(max: u32) -> World {
    let ladder = format!("retry = {{ max = {max}, backoff = [\"10s\"], then = \"error\" }}");
    let workflow = three_noops("60s").replace("retry = { max = 200, backoff = [\"20ms\"] }", &ladder);
    World::start(&[workflow], None).await
}

/// `n` orders, each with its first request at an agent that never answers.
async fn claimed(world: &World, prefix: &str, n: usize) -> Vec<Id> {
    let mut ids = Vec::new();
    for n in 0..n {
        ids.push(world.accept("noops", &format!("{prefix}-{n}"), json!({})).await);
    }
    while world.deliver("scheduler", &world.submitting).await {}
    ids
}

/// The details of the events of this kind, in order.
fn events(world: &World, detail_type: &str) -> Vec<Value> {
    let events = world.endpoints.events().page(0, 1000);
    let own = events.iter().filter(|e| e.detail_type == detail_type);
    own.map(|e| serde_json::from_str(&e.detail).unwrap()).collect()
}

async fn strain(world: &World) -> Option<Strain> {
    world.submitting.store.read_agents().await.unwrap().strained.remove("noop")
}

// F2, F3: alerts that are owed while the bus is unavailable are all sent once it is back, by independent supervisors.
#[tokio::test(start_paused = true)]
async fn alerts_that_are_owed_while_the_bus_is_away_go_out_once_it_is_back() {
    let world = world(2).await;
    let ids = claimed(&world, "a", 15).await;
    world.faults("PutEvents", |_, _| Some(Fault::InternalError));
    pass(SignedDuration::from_secs(61)).await;
    assert_eq!(sweep(&world, "v0").await.expired, 15);
    pass(SignedDuration::from_secs(11)).await;
    while world.deliver("scheduler", &world.submitting).await {}
    pass(SignedDuration::from_secs(61)).await;
    sweep(&world, "v1").await;
    // An owed alert is retried after as long as it has been owed already.
    for (name, wait) in [("v2", 60), ("v3", 120)] {
        pass(SignedDuration::from_secs(wait)).await;
        let swept = sweep(&world, name).await;
        assert_eq!((swept.looked_at, swept.failed), (15, 15), "they stay due");
    }
    for id in &ids {
        let task = world.task(id).await;
        assert_eq!(task.process_state(), ProcessState::Error);
        assert!(task.alert.is_some() && task.due.is_some());
    }
    assert!(strain(&world).await.unwrap().alert_owed);
    assert!(world.endpoints.events().page(0, 1000).is_empty());
    world.no_faults();
    for name in ["v4", "v5", "v6"] {
        pass(MAX_OWED_WAIT).await;
        sweep(&world, name).await;
    }
    let alerted = events(&world, ORDER_ALERT);
    assert_eq!(alerted.len(), ids.len(), "each once");
    for id in &ids {
        assert!(alerted.iter().any(|detail| detail["order_id"] == json!(id)), "{id}");
        let task = world.task(id).await;
        assert_eq!((task.alert, task.due), (None, None));
    }
    assert_eq!(events(&world, AGENT_ALERT).len(), 1, "and the agent's");
    assert!(!strain(&world).await.unwrap().alert_owed);
}

// J1: a sweep that was cut short says nothing about an agent, because only a part of the orders was seen.
#[tokio::test(start_paused = true)]
async fn a_sweep_cut_short_marks_no_agent_as_strained() {
    let world = world(50).await;
    claimed(&world, "a", 12).await;
    // The orders are swept once before they expire, so now they are in the part that is swept first.
    pass(SignedDuration::from_secs(60)).await;
    sweep(&world, "v0").await;
    pass(SignedDuration::from_secs(1)).await;
    world.faults("Query", |number, _| (number > 0).then_some(Fault::InternalError));
    let engine = world.engine("v1", 1, None);
    let mut supervisor = Supervisor::new(&engine, &*engine.store, Settings::new(1, LIFE));
    supervisor.sweep().await.unwrap_err();
    supervisor.release().await;
    assert_eq!(strain(&world).await, None);
}

// J1, F2: an operator gets one alert about an agent in trouble, with what to do, however long the trouble lasts; the
// agent's back-off grows; new trouble after a quiet time causes a new alert.
#[tokio::test(start_paused = true)]
async fn one_agents_trouble_is_told_once_and_stretches_its_back_off() {
    let world = world(50).await;
    let ids = claimed(&world, "a", 12).await;
    let mut waits = Vec::new();
    for round in 0..5 {
        // Until the attempt has expired.
        pass(SignedDuration::from_secs(61)).await;
        let swept = sweep(&world, &format!("v{round}")).await;
        assert_eq!((swept.looked_at, swept.expired), (12, 12));
        assert_eq!(sweep(&world, &format!("w{round}")).await.expired, 0);
        let task = world.task(&ids[0]).await;
        let State::Pending { not_before: Some(from) } = task.steps[0].state else { panic!("{task:?}") };
        let wait = world.now().duration_until(from);
        waits.push((wait.as_secs_f64().round() as i64, strain(&world).await.unwrap().stretch));
        pass(wait.max(WINDOW) + SignedDuration::from_secs(1)).await;
        while world.deliver("scheduler", &world.submitting).await {}
    }
    assert_eq!(waits, [(10, 2), (20, 4), (40, 8), (80, 8), (80, 8)]);
    let told = events(&world, AGENT_ALERT);
    assert_eq!(told.len(), 1, "{told:#?}");
    let detail = &told[0];
    assert_eq!((&detail["agent"], &detail["held"], &detail["looked_at"]), (&json!("noop"), &json!(12), &json!(12)));
    assert_eq!(detail["pause"], "stepwarden pause-agent noop --by NAME --reason TEXT");
    assert_eq!(detail["resume"], "stepwarden resume-agent noop --by NAME --reason TEXT");
    assert_eq!(detail["runbook"], "docs/runbook.md#agent-strained");
    // The agent has recovered for long enough.
    while world.deliver("agent-noop", &world.submitting).await | world.deliver("replies", &world.submitting).await {}
    pass(QUIET + SignedDuration::from_secs(60)).await;
    claimed(&world, "b", 12).await;
    pass(SignedDuration::from_secs(61)).await;
    sweep(&world, "v").await;
    assert_eq!(events(&world, AGENT_ALERT).len(), 2);
    assert_eq!(strain(&world).await.unwrap().stretch, 2);
}

// J1: too few tasks may be chance, whatever part of the sweep they are; the guard's minimum can be set, and the guard
// can be switched off.
#[tokio::test(start_paused = true)]
async fn a_few_tasks_are_not_strain() {
    for (n, least, is_strained) in [(9, 10, false), (10, 10, true), (10, 11, false), (10, 0, false)] {
        let world = world(50).await;
        claimed(&world, "a", n).await;
        pass(SignedDuration::from_secs(61)).await;
        let engine = world.engine("v", 1, None);
        let settings = Settings { strain_least: least, ..Settings::new(1, LIFE) };
        assert_eq!(Supervisor::new(&engine, &*engine.store, settings).sweep().await.unwrap().expired, n);
        assert_eq!(strain(&world).await.is_some(), is_strained, "{n} of {n}, at least {least}");
        assert_eq!(events(&world, AGENT_ALERT).len(), usize::from(is_strained));
    }
}

// J1: a fifth of the sweep is not too much; one more is.
#[tokio::test(start_paused = true)]
async fn a_fifth_of_a_sweep_is_not_strain_but_more_is() {
    for (silent, is_strained) in [(10, false), (11, true)] {
        let world = world(50).await;
        let engine = world.engine("v", 1, None);
        let mut supervisor = Supervisor::new(&engine, &*engine.store, Settings::new(1, LIFE));
        let ids = claimed(&world, "a", 40 + silent).await;
        // Some orders are done in time and on their next step: the sweep reads them once, and no agent holds them up.
        let mut done = 0;
        while done < 40 {
            let messages = world.receive_whole("agent-noop").await;
            let messages = &messages[..messages.len().min(40 - done)];
            world.handle("agent-noop", &engine, crate::support::world::whole_event("agent-noop", messages)).await;
            done += messages.len();
        }
        pass(SignedDuration::from_secs(30)).await;
        while world.deliver("replies", &world.submitting).await {}
        pass(SignedDuration::from_secs(31)).await;
        let swept = supervisor.sweep().await.unwrap();
        assert_eq!(swept.looked_at, ids.len());
        let held = strain(&world).await;
        assert_eq!(held.is_some(), is_strained, "{swept:?} {held:?}");
    }
}

// F3: the supervisor that recorded the trouble died before it sent the alert; nothing is due any more.
#[tokio::test(start_paused = true)]
async fn the_alert_of_a_supervisor_that_died_is_sent_by_the_next_one() {
    let world = world(1).await;
    let now = world.submitting.now();
    let owed = Strain { since: now, last: now, stretch: 2, held: 10, looked_at: 12, alert_owed: true };
    assert!(world.submitting.store.save_strain("noop", &owed, None).await.unwrap());
    assert!(!world.submitting.store.save_strain("noop", &owed, None).await.unwrap(), "somebody was faster");
    sweep(&world, "v1").await;
    assert!(events(&world, AGENT_ALERT).is_empty(), "whoever recorded it may be sending it now");
    pass(SignedDuration::from_secs(60)).await;
    sweep(&world, "v2").await;
    sweep(&world, "v3").await;
    let told = events(&world, AGENT_ALERT);
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["since"], json!(now));
    assert_eq!(strain(&world).await, Some(Strain { alert_owed: false, ..owed }));
}

// J1: without trouble the guard writes nothing, and reads once a minute.
#[tokio::test(start_paused = true)]
async fn an_idle_supervisor_reads_how_the_agents_stand_once_a_minute() {
    let world = world(1).await;
    let engine = world.engine("v", 1, None);
    let mut supervisor = Supervisor::new(&engine, &*engine.store, Settings::new(1, LIFE));
    let calls = |name: &str| {
        let counts = world.endpoints.counts();
        counts.operations.iter().filter(|(n, _)| n.ends_with(name)).map(|(_, o)| o.requests).sum::<u64>()
    };
    supervisor.sweep().await.unwrap();
    let (reads, writes) = (calls("GetItem"), calls("UpdateItem"));
    for _ in 0..59 {
        pass(SignedDuration::from_secs(1)).await;
        supervisor.sweep().await.unwrap();
    }
    // The lease is read when it is renewed.
    let renewals = calls("GetItem") - reads;
    assert!(renewals <= 2, "{renewals}");
    assert_eq!(calls("UpdateItem"), writes);
}
