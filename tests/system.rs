//! Goal: orders end correctly in the whole system, whatever the remote services do and whichever part is down. Method:
//! the system in one process and in memory, with the real handlers, adapters, queues and remote services, and workflows
//! with short times. Faults are switched on until they have occurred, then off; nothing waits for a fixed time.

use crate::support::{Whole, count, northwind, trip, until, workflow};
use serde_json::{Value, json};
use shared::history::Kind;
use shared::order::Id;
use shared::ports::StateStore;
use shared::step::State;
use shared::task::{ProcessState, Task};
use std::collections::BTreeSet;
use std::io::Write;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;
use stepwarden_embedded::Durability;
use stepwarden_local::system::{Options, System};
use stepwarden_remotes::{Fault, Service, ServiceFaults};

/// Positions of the steps.
const RESERVE: usize = 0;
const CHECK: usize = 1;
const CHARGE: usize = 2;
const SHIP: usize = 3;

/// Long enough for a call on a busy machine, short enough to be waited for.
const TIMEOUT: &str = "500ms";
/// More attempts than any test needs.
const PATIENT: u32 = 200;

fn none() -> ServiceFaults {
    ServiceFaults::default()
}

async fn start() -> Whole {
    Whole::start(&[trip("trip", TIMEOUT, PATIENT, "")]).await
}

/// New orders wait for a scheduler, as on AWS.
async fn start_waking() -> Whole {
    Whole::start_with(&[trip("trip", TIMEOUT, PATIENT, "")], |options| options.begins = false).await
}

/// The payment service answers every call with a fault until it has done so often enough; then it recovers, and all
/// orders end.
async fn healed(faults: ServiceFaults, seen: &[Fault]) -> (Whole, Vec<Task>) {
    let whole = start().await;
    whole.fault(Service::Payment, faults);
    let ids = whole.submit_many("trip", 4).await;
    for fault in seen {
        whole.shown(Service::Payment, *fault, 1).await;
    }
    whole.fault(Service::Payment, none());
    let tasks = whole.all_end(&ids, ProcessState::Processed).await;
    (whole, tasks)
}

/// The payment service answers with a fault until two attempts have turned each of two orders to undo; then it recovers.
async fn undone(faults: ServiceFaults) -> (Whole, Vec<Task>) {
    let whole = Whole::start(&[trip("trip", TIMEOUT, 2, "")]).await;
    whole.fault(Service::Payment, faults);
    let ids = whole.submit_many("trip", 2).await;
    for id in &ids {
        whole.task_once(id, "turned to undo", |t| t.process_state() == ProcessState::Undoing).await;
    }
    whole.fault(Service::Payment, none());
    let tasks = whole.all_end(&ids, ProcessState::Undone).await;
    (whole, tasks)
}

// A1, A3, B1, B2, B10, C3, D2: real orders over HTTP through the reference workflow, and what the API says of them.
#[tokio::test(flavor = "multi_thread")]
async fn orders_submitted_over_http_are_processed() {
    let order = include_str!("../workflows/order.toml").to_owned();
    let whole = Whole::start(&[order]).await;
    let mut ids = Vec::new();
    for n in 0..20 {
        let body = json!({"reference": format!("r{n}"), "reply_queue": "shop", "input": northwind(n)});
        ids.push(whole.submit(&format!("order-{n}"), &body).await);
    }
    let tasks = whole.all_end(&ids, ProcessState::Processed).await;
    let status = whole.get(&format!("/orders/{}", ids[0])).await;
    assert_eq!(status["state"], "Processed");
    assert_eq!(status["reference"], "r0");
    assert_eq!(status["locked_by"], Value::Null);
    assert!(status["steps"][CHARGE]["output"]["reference"].as_str().unwrap().starts_with("chg-"), "{status}");
    let history = whole.get(&format!("/orders/{}/history", ids[0])).await;
    assert_eq!(history["history"][0]["event"], "received");
    assert_eq!(history["history"].as_array().unwrap().last().unwrap()["event"], "processed");
    for task in &tasks {
        assert!(task.steps.iter().all(|s| s.state == State::Processed), "{task:#?}");
        let versions: Vec<_> = whole.versions(&task.id).iter().map(|t| t.version).collect();
        // A save can hold several changes, each with its own version.
        let is_chain = versions.windows(2).all(|pair| pair[0] < pair[1]);
        let ends = (versions.first().copied(), versions.last().copied());
        assert!(
            is_chain && ends == (Some(0), Some(task.version)),
            "one chain of versions, each saved once: {versions:?}"
        );
    }
}

// F1: the submitter's queue gets received, each step and completed, with its own reference and a rising number.
#[tokio::test(flavor = "multi_thread")]
async fn the_submitter_gets_a_notice_of_every_step_on_its_own_queue() {
    let whole = start().await;
    let body = json!({"workflow": "trip", "reference": "mine", "reply_queue": "shop", "input": {"total_cents": 1}});
    let id = whole.submit("told", &body).await;
    whole.all_end(std::slice::from_ref(&id), ProcessState::Processed).await;
    let mut notices = whole.take("notices-shop", 5).await;
    notices.sort_by_key(|notice| notice["seq"].as_u64());
    assert!(notices.iter().all(|n| n["order_id"] == id.0 && n["reference"] == "mine"), "{notices:?}");
    assert_eq!(notices[0]["kind"], "received");
    assert_eq!(notices[4]["kind"], "completed");
    assert_eq!(notices[4]["state"], "Processed");
    let steps: BTreeSet<_> = notices.iter().filter_map(|n| n["step"].as_str()).collect();
    // The step that ends the order has no separate notice: the notice says that the order is completed.
    assert_eq!(steps, BTreeSet::from(["check-fraud", "charge", "reserve"]), "{notices:?}");
}

// A3: steps that do not depend on one another run at the same time; a step starts only after all steps on which it
// depends.
#[tokio::test(flavor = "multi_thread")]
async fn independent_steps_run_side_by_side_and_dependent_ones_wait() {
    let whole = start().await;
    for service in [Service::Inventory, Service::Fraud] {
        whole.fault(service, ServiceFaults { slow: 1.0, slow_ms: 100, ..none() });
    }
    let ids = whole.submit_many("trip", 5).await;
    for task in whole.all_end(&ids, ProcessState::Processed).await {
        let versions = whole.versions(&task.id);
        let running = |task: &Task, step: usize| task.steps[step].claim().is_some();
        assert!(running(&versions[1], RESERVE) && running(&versions[1], CHECK), "claimed in one write: {:?}", task.log);
        for version in &versions {
            let is_open = version.steps[RESERVE].is_settled() && version.steps[CHECK].is_settled();
            assert!(is_open || version.steps[CHARGE].attempt == 0, "charged too early: {:?}", version.log);
            assert!(version.steps[CHARGE].is_settled() || version.steps[SHIP].attempt == 0, "{:?}", version.log);
        }
    }
}

// A2, A4, B4, E3: the agent retries transient failures.
#[tokio::test(flavor = "multi_thread")]
async fn transient_failures_are_retried() {
    let (whole, tasks) = healed(ServiceFaults { transient: 1.0, ..none() }, &[Fault::Unavailable]).await;
    assert!(whole.system.remotes.counts()[&Service::Payment].calls > tasks.len() as u64);
}

// A4, E3: a throttled call is not repeated before the time that the remote service names.
#[tokio::test(flavor = "multi_thread")]
async fn retry_after_of_a_throttling_service_is_honoured() {
    let (whole, tasks) = healed(ServiceFaults { transient: 1.0, ..none() }, &[Fault::Throttled]).await;
    let mut throttled = 0;
    for version in tasks.iter().flat_map(|task| whole.versions(&task.id)) {
        let step = &version.steps[CHARGE];
        let was_throttled = step.error.as_ref().is_some_and(|e| e.starts_with("429"));
        if let (State::Pending { not_before: Some(from) }, true) = (&step.state, was_throttled) {
            throttled += 1;
            assert!(version.updated_at.duration_until(*from).as_millis() >= 1000, "{version:#?}");
        }
    }
    assert!(throttled > 0, "nobody was throttled");
}

// A4, E5: a slow service is waited for; its answer counts as long as it is in time.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_service_is_waited_for() {
    let (_, tasks) = healed(ServiceFaults { slow: 1.0, slow_ms: 100, ..none() }, &[Fault::Slow]).await;
    assert!(tasks.iter().all(|task| task.steps[CHARGE].is_settled()));
}

// A4, B4, D3, D4: only the supervisor notices silence; it counts one failure and makes the step Pending again.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_service_costs_one_failure_and_the_order_continues() {
    let (whole, tasks) = healed(ServiceFaults { hang: 1.0, ..none() }, &[Fault::Hang]).await;
    let expired: usize = tasks.iter().map(|task| count(task, Kind::Expired, CHARGE)).sum();
    assert!(expired > 0);
    for task in &tasks {
        let step = &task.steps[CHARGE];
        let failures = count(task, Kind::Expired, CHARGE) + count(task, Kind::Unavailable, CHARGE);
        assert_eq!(step.failures as usize, failures, "each counted once: {:?}", task.log);
        assert_eq!(step.attempt as usize, count(task, Kind::Claimed, CHARGE), "{:?}", task.log);
        for version in whole.versions(&task.id) {
            let State::Pending { .. } = version.steps[CHARGE].state else { continue };
            assert_eq!(version.steps[CHARGE].locked_by(), None);
        }
    }
}

// A4, B5, E5: an effect whose answer was lost is not applied again by the next attempt.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_leads_to_no_second_effect() {
    let (whole, _) = healed(ServiceFaults { lost_answer: 1.0, ..none() }, &[Fault::LostAnswer]).await;
    let counts = whole.system.remotes.counts();
    assert_eq!(counts[&Service::Payment].applied, 4);
    assert!(counts[&Service::Payment].replays > 0);
}

// E2, E5: an answer after the deadline changes nothing; the next attempt gets the same effect confirmed.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_the_deadline_changes_nothing() {
    let (whole, tasks) = healed(ServiceFaults { after_deadline: 1.0, ..none() }, &[Fault::AfterDeadline]).await;
    assert!(tasks.iter().any(|task| count(task, Kind::Expired, CHARGE) > 0));
    assert_eq!(whole.system.remotes.counts()[&Service::Payment].applied, 4);
}

// A2, A4, E4: while a service is out of order its breaker opens, work waits, and waiting counts no failure.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_opens_the_breaker_and_waiting_counts_no_failure() {
    let whole = start().await;
    whole.fault(Service::Payment, ServiceFaults { outage: true, ..none() });
    let ids = whole.submit_many("trip", 6).await;
    let is_held_back = async || {
        let tasks = whole.tasks(&ids).await;
        tasks.iter().any(|task| count(task, Kind::Deferred, CHARGE) > 0).then_some(tasks)
    };
    let tasks = until("an open breaker", is_held_back).await;
    // A step that is held back shows what opened the breaker, in the history as in the step, but not what the service
    // said to other orders.
    let of_charge = |entry: &&shared::history::Entry| entry.1 == Kind::Deferred && entry.2 == Some(CHARGE as u16);
    let deferral = tasks.iter().flat_map(|task| &task.log).find(of_charge).expect("it was counted");
    let why = deferral.4.as_deref().expect("a deferral says why");
    // On a busy machine the last call may have run out of time instead.
    let is_known = ["503", "error sending request"].iter().any(|last| why.contains(&format!("the last one: {last}")));
    assert!(why.contains("calls in a row failed") && is_known && !why.contains("out of order"), "{why}");
    whole.fault(Service::Payment, none());
    for task in whole.all_end(&ids, ProcessState::Processed).await {
        let failures = count(&task, Kind::Expired, CHARGE) + count(&task, Kind::Unavailable, CHARGE);
        assert_eq!(task.steps[CHARGE].failures as usize, failures, "{:?}", task.log);
        assert!(task.log.iter().any(|e| e.1 == Kind::Deferred) || failures > 0, "{:?}", task.log);
    }
}

// A1, A2, D7, G1: a refusal undoes what was done, in reverse, and uses no retry.
#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_error_undoes_everything_in_reverse() {
    let whole = start().await;
    whole.fault(Service::Shipping, ServiceFaults { permanent: 1.0, ..none() });
    let ids = whole.submit_many("trip", 3).await;
    for task in whole.all_end(&ids, ProcessState::Undone).await {
        assert_eq!(count(&task, Kind::Failed, SHIP), 1, "{:?}", task.log);
        assert!(task.steps.iter().all(|s| s.state == State::Undone), "{task:#?}");
        let undone: Vec<_> = task.log.iter().filter(|e| e.1 == Kind::UndoClaimed).filter_map(|e| e.2).collect();
        let first = |step: usize| undone.iter().position(|&s| usize::from(s) == step);
        assert!(first(SHIP) < first(CHARGE) && first(CHARGE) < first(RESERVE), "{undone:?}");
        assert_eq!(first(CHECK), None, "a step without an undo");
    }
    assert_eq!(whole.events().len(), 0, "nobody has to be told");
}

// A1, D7, F2: by policy a refusal stops the order, and an operator is alerted, with the command that resubmits.
#[tokio::test(flavor = "multi_thread")]
async fn a_permanent_error_stops_the_order_and_alerts_where_that_is_the_policy() {
    let whole = Whole::start(&[trip("trip", TIMEOUT, PATIENT, "on_failure = \"error\"")]).await;
    whole.fault(Service::Payment, ServiceFaults { permanent: 1.0, ..none() });
    let ids = whole.submit_many("trip", 2).await;
    let tasks = whole.all_end(&ids, ProcessState::Error).await;
    assert!(tasks.iter().all(|t| t.alert.is_none() && t.steps[RESERVE].is_settled() && t.steps[SHIP].attempt == 0));
    // The alert is sent at least once: a sweep between the scheduler's save and its send sends it too.
    let events = whole.events();
    for id in &ids {
        let event = events.iter().find(|e| e.detail.contains(&id.0)).unwrap();
        assert_eq!(event.detail_type, "Order needs attention");
        let detail: Value = serde_json::from_str(&event.detail).unwrap();
        assert_eq!(detail["step"], "charge");
        assert!(detail["last_error"].as_str().unwrap().starts_with("422"), "{detail}");
        assert!(detail["resubmit"].as_str().unwrap().contains(&id.0), "{detail}");
    }
}

// A1, D6, G1: at the threshold of failures the order is undone, not before and not after.
#[tokio::test(flavor = "multi_thread")]
async fn the_threshold_of_failures_undoes_the_order() {
    // The undo of the charge would hang as well.
    let (_, tasks) = undone(ServiceFaults { hang: 1.0, ..none() }).await;
    for task in tasks {
        assert_eq!(count(&task, Kind::Claimed, CHARGE), 2, "{:?}", task.log);
        assert_eq!(task.steps[CHARGE].failures, 2);
        assert_eq!(task.steps[SHIP].attempt, 0);
    }
}

// G3: what was applied but never answered is undone too.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_unknown_outcome_is_undone_too() {
    let (whole, tasks) = undone(ServiceFaults { after_deadline: 1.0, ..none() }).await;
    assert!(tasks.iter().all(|t| t.steps[CHARGE].output.is_none()), "nobody knew that it was done");
    let counts = &whole.system.remotes.counts()[&Service::Payment];
    assert_eq!((counts.applied, counts.undone), (2, 2));
}

// G2, F2: an undo that fails permanently stops the order and causes an alert; it is never silent.
#[tokio::test(flavor = "multi_thread")]
async fn an_undo_that_fails_alerts_an_operator() {
    let whole = start().await;
    whole.fault(Service::Shipping, ServiceFaults { permanent: 1.0, ..none() });
    whole.fault(Service::Payment, ServiceFaults { undo_fails: 1.0, ..none() });
    let ids = whole.submit_many("trip", 2).await;
    for task in whole.all_end(&ids, ProcessState::Error).await {
        assert_eq!(task.steps[CHARGE].state, State::UndoFailed);
        assert_eq!(task.steps[RESERVE].state, State::UndoPending { not_before: None }, "it waits for the operator");
    }
    let events = whole.events();
    assert!(ids.iter().all(|id| events.iter().any(|e| e.detail.contains(&id.0))), "{events:?}");
    assert!(events.iter().all(|e| e.detail.contains("the undo of `charge` failed")), "{events:?}");
}

// D4, D10: an agent that is down loses no order: the supervisor takes back attempts that passed their CompleteBy.
#[tokio::test(flavor = "multi_thread")]
async fn the_supervisor_brings_back_the_orders_of_an_agent_that_is_down() {
    let whole = start().await;
    whole.system.pause_agent("payment", true);
    let ids = whole.submit_many("trip", 3).await;
    for id in &ids {
        let task = whole.task_once(id, "expired", |t| count(t, Kind::Expired, CHARGE) > 0).await;
        assert!(task.steps[CHARGE].failures > 0);
    }
    assert_eq!(whole.system.remotes.counts()[&Service::Payment].calls, 0, "the agent is down");
    whole.system.pause_agent("payment", false);
    for task in whole.all_end(&ids, ProcessState::Processed).await {
        assert!(task.lease_token > 0, "a supervisor wrote it");
    }
}

// D9, D10: a scheduler that is down loses no order, and waiting counts no failure.
#[tokio::test(flavor = "multi_thread")]
async fn orders_wait_for_a_scheduler_that_is_down_without_a_failure() {
    let whole = start_waking().await;
    whole.system.pause_agent("scheduler", true);
    let ids = whole.submit_many("trip", 5).await;
    // Two sweeps find them and change nothing.
    for id in &ids {
        let first = whole.task(id).await.due;
        whole.task_once(id, "swept", |t| t.due > first).await;
    }
    for id in &ids {
        let task = whole.task(id).await;
        assert_eq!((task.process_state(), task.version, task.failure_count()), (ProcessState::Pending, 0, 0));
    }
    whole.system.pause_agent("scheduler", false);
    whole.all_end(&ids, ProcessState::Processed).await;
}

// A4, D10: a caller that goes away while its order is being stored does not keep the order's requests from their agents.
#[tokio::test(flavor = "multi_thread")]
async fn an_order_whose_caller_goes_away_loses_no_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let one = workflow(&trip("trip", TIMEOUT, PATIENT, ""));
    // On disk, because only then does the handler wait for the write.
    let options = Options::embedded(Some(dir.path().into()), Durability::Full, [("trip".to_owned(), one)].into());
    let system = System::start(options).await.unwrap();
    let (stored, is_stored) = mpsc::channel();
    let (gone, is_gone) = mpsc::channel();
    let is_gone = Mutex::new(is_gone);
    system.endpoints.as_ref().unwrap().set_fault_hook(Some(Arc::new(move |call| {
        if call.operation == "TransactWriteItems" {
            stored.send(()).unwrap();
            is_gone.lock().unwrap().recv().unwrap();
        }
        None
    })));
    let address = system.url.strip_prefix("http://").unwrap().to_owned();
    let body = r#"{"workflow":"trip","input":{"total_cents":1}}"#;
    let request = format!(
        "POST /orders HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {}\r\nidempotency-key: gone\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        system.token,
        body.len()
    );
    tokio::task::spawn_blocking(move || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        is_stored.recv_timeout(Duration::from_secs(30)).unwrap();
        drop(connection);
        gone.send(()).unwrap();
    })
    .await
    .unwrap();
    let id = Id::derive("default", "gone");
    let ended = until("an end", async || {
        let task = system.engine.store.load(&id).await.unwrap();
        task.filter(|task| task.process_state() == ProcessState::Processed)
    });
    assert_eq!(ended.await.failure_count(), 0);
    system.stop().await;
}

// D10: the supervisor makes up for a lost Wake, a lost request and a lost reply.
#[tokio::test(flavor = "multi_thread")]
async fn lost_messages_of_every_kind_are_recovered() {
    let whole = start_waking().await;
    let lose = async |queue: &str, n: usize| {
        until(&format!("{n} messages for {queue}"), async || (whole.queued(queue) >= n).then_some(())).await;
        whole.clients.sqs.purge_queue().queue_url(whole.config().queue_url(queue)).send().await.unwrap();
    };
    whole.system.pause_agent("scheduler", true);
    whole.system.pause_agent("payment", true);
    let ids = whole.submit_many("trip", 3).await;
    lose("scheduler", 3).await;
    whole.system.pause_agent("scheduler", false);
    lose("agent-payment", 3).await;
    // From here on the scheduler receives no replies, so that those of the agent are lost.
    for id in &ids {
        whole.task_once(id, "charged again", |t| count(t, Kind::Claimed, CHARGE) > 1).await;
    }
    whole.system.pause_agent("replies", true);
    whole.system.pause_agent("payment", false);
    until("replies", async || (whole.system.remotes.counts()[&Service::Payment].applied > 0).then_some(())).await;
    lose("replies", 1).await;
    whole.system.pause_agent("replies", false);
    whole.all_end(&ids, ProcessState::Processed).await;
}

// B10, E6, I7: an order by message is the same order as over HTTP; a message that can never be an order is set aside.
#[tokio::test(flavor = "multi_thread")]
async fn orders_by_message_end_as_over_http_and_malformed_ones_are_set_aside() {
    let whole = start().await;
    let body =
        |key: Value| json!({"idempotency_key": key, "workflow": "trip", "input": {"total_cents": 5}}).to_string();
    let bad = [
        "not json".to_owned(),
        "[]".to_owned(),
        body(Value::Null),
        body(json!("ok-1")).replace("trip", "no-such-workflow"),
        json!({"idempotency_key": "x", "input": {}, "surprise": 1}).to_string(),
    ];
    for text in bad.iter().cloned().chain([body(json!("ok-1")), body(json!("ok-2")), body(json!("ok-1"))]) {
        whole.send("submissions", &text).await;
    }
    let plain = json!({"workflow": "trip", "input": {"total_cents": 5}});
    // The same key over HTTP is the same order, whichever came first.
    let ids = [whole.submit("ok-1", &plain).await, whole.submit("ok-2", &plain).await];
    let tasks = whole.ended(&ids).await;
    assert!(tasks.iter().all(|t| t.process_state() == ProcessState::Processed));
    whole.ledger_is_clean(&tasks);
    until("the bad ones set aside", async || (whole.set_aside() == bad.len()).then_some(())).await;
    until("an empty queue", async || (whole.queued("submissions") == 0).then_some(())).await;
    let events = whole.events();
    assert_eq!(events.len(), bad.len());
    assert!(events.iter().all(|e| e.detail_type == "Message set aside"), "{events:?}");
}

// G4: a cancelled order is undone.
#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_order_is_undone() {
    let whole = start().await;
    whole.system.pause_agent("shipping", true);
    let ids = whole.submit_many("trip", 2).await;
    for id in &ids {
        whole.task_once(id, "charged", |t| t.steps[CHARGE].is_settled()).await;
        let cancel = json!({"type": "cancel", "task_id": id, "by": "ann", "reason": "changed her mind"}).to_string();
        whole.send("scheduler", &cancel).await;
    }
    for id in &ids {
        whole.task_once(id, "turned to undo", |t| t.process_state() != ProcessState::Processing).await;
    }
    whole.system.pause_agent("shipping", false);
    for task in whole.all_end(&ids, ProcessState::Undone).await {
        assert_eq!(task.reason.as_deref(), Some("cancelled by ann: changed her mind"));
    }
}

#[test]
fn the_workflow_of_these_tests_has_the_shape_of_the_reference() {
    let order = workflow(include_str!("../workflows/order.toml"));
    let trip = workflow(&trip("trip", TIMEOUT, 2, ""));
    let shape = |w: &shared::workflow::Workflow| -> Vec<_> {
        w.steps.iter().map(|s| (s.name.clone(), s.agent.clone(), s.after.clone(), s.undo.is_some())).collect()
    };
    assert_eq!(shape(&trip), shape(&order));
    assert_eq!(trip.steps[CHARGE].retry.max, 2);
}
