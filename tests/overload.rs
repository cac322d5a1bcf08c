//! Goal: under more load than the agents can handle, orders are refused with a time to retry after, accepted orders end
//! well, and no order is refused without overload. Method: the real handlers over the embedded endpoints, every message
//! delivered by the test, in virtual time: tokio's clock is paused, and the endpoints' clock follows it.

use crate::support::world::{World, whole_event};
use crate::support::{queued, three_noops, trip};
use serde_json::{Value, json};
use shared::order::{DEFAULT_TENANT, Id};
use shared::overload::{FRESH, Wait, Waits};
use shared::ports::StateStore;
use shared::task::ProcessState;
use shared::time::SignedDuration;
use std::time::Duration;
use stepwarden_aws::Engine;
use submit::submission::PATIENCE;
use supervisor::{Settings, Supervisor};
use tokio::time::{Instant, advance};

const SECOND: Duration = Duration::from_secs(1);
/// The limit of [`three_noops`] with this timeout is three seconds.
const TIMEOUT: &str = "6s";

async fn try_submit(world: &World, workflow: &str, key: &str) -> Result<Id, submit::problem::Problem> {
    world.try_accept(DEFAULT_TENANT, key, &json!({"workflow": workflow, "input": {"total_cents": 1}})).await
}

/// The queue that the refusal names as too long; `None` if the order is accepted.
async fn refused(world: &World, workflow: &str, key: &str) -> Option<String> {
    let problem = try_submit(world, workflow, key).await.err()?;
    assert_eq!((problem.status, problem.code), (429, "overloaded"), "{problem:?}");
    assert!(problem.retry_after_s.is_some_and(|s| s > 0), "{problem:?}");
    let id = Id::derive(DEFAULT_TENANT, key);
    assert!(world.submitting.store.load(&id).await.unwrap().is_none(), "nothing is written");
    Some(problem.detail.split('`').nth(1).unwrap().to_owned())
}

fn notes(world: &World) -> u64 {
    world.endpoints.counts().requests("DynamoDB_20120810.UpdateItem")
}

/// A wait of a minute for the tenant of these tests.
fn a_minute(world: &World) -> Waits {
    Waits::from([(DEFAULT_TENANT.to_owned(), Wait { ms: 60_000, at: world.now() })])
}

async fn world() -> (World, Engine) {
    let world = World::start(&[three_noops(TIMEOUT), trip("trip", TIMEOUT, 3, "")], None).await;
    let scheduler = world.engine("scheduler", 1000, None);
    (world, scheduler)
}

// J1, A4: a long wait is recorded by another function, and orders are refused until the record is old. A repeated
// submission of an accepted order gets its answer all the same.
#[tokio::test(start_paused = true)]
async fn orders_are_refused_while_first_wakes_wait_too_long() {
    let (world, scheduler) = world().await;
    let first = try_submit(&world, "noops", "first").await.unwrap();
    advance(SECOND * 3).await;
    world.deliver("scheduler", &scheduler).await;
    assert_eq!((notes(&world), refused(&world, "noops", "at the limit").await), (0, None));
    advance(SECOND * 3 + Duration::from_millis(1)).await;
    // Two batches within a second: the second record would say nothing new.
    for n in 0..15 {
        try_submit(&world, "noops", &format!("more-{n}")).await.unwrap();
    }
    advance(SECOND * 4).await;
    world.deliver("scheduler", &scheduler).await;
    world.deliver("scheduler", &scheduler).await;
    assert_eq!(notes(&world), 1);
    assert_eq!(refused(&world, "noops", "late").await.as_deref(), Some("scheduler"));
    assert_eq!(refused(&world, "trip", "late").await.as_deref(), Some("scheduler"), "every order passes there");
    // In the queue another tenant does not wait behind this one, and is not refused because of it.
    world.try_accept("another", "late", &json!({"workflow": "noops", "input": {}})).await.unwrap();
    assert_eq!(try_submit(&world, "noops", "first").await.unwrap(), first);
    advance(Duration::try_from(FRESH).unwrap()).await;
    assert_eq!(refused(&world, "noops", "late").await, None);
}

// J1: an agent's replies report how long its requests waited, which concerns only orders with a step of that agent.
#[tokio::test(start_paused = true)]
async fn orders_are_refused_while_requests_wait_too_long_for_one_of_their_agents() {
    let (world, scheduler) = world().await;
    try_submit(&world, "noops", "a").await.unwrap();
    world.deliver("scheduler", &scheduler).await;
    advance(SECOND * 4).await;
    world.deliver("agent-noop", &scheduler).await;
    let messages = world.receive_whole("replies").await;
    let reply: Value = serde_json::from_str(messages[0].body().unwrap()).unwrap();
    assert_eq!(reply["queued_ms"], 4000, "{reply}");
    // Twice: the second delivery is outdated.
    for _ in 0..2 {
        world.handle("replies", &scheduler, whole_event("replies", &messages)).await;
    }
    assert_eq!(notes(&world), 1);
    assert_eq!(refused(&world, "noops", "b").await.as_deref(), Some("agent-noop"));
    assert_eq!(refused(&world, "trip", "b").await, None);
}

// J1: a faulty agent, or its clock, cannot cause refusals for longer than a step lasts; a cancellation reports on the
// queue that it came by, whatever the order's class.
#[tokio::test(start_paused = true)]
async fn what_a_message_tells_is_bounded_and_of_its_own_queue() {
    let (world, scheduler) = world().await;
    let id = try_submit(&world, "noops", "a").await.unwrap();
    world.deliver("scheduler", &scheduler).await;
    let request: Value = serde_json::from_str(&world.receive("agent-noop").await[0].2).unwrap();
    let reply = json!({"type": "reply", "task_id": id, "step": request["step"], "attempt": 1, "queued_ms": u64::MAX / 2,
        "outcome": "done", "output": null});
    world.send("replies", &reply.to_string()).await;
    world.deliver("replies", &scheduler).await;
    let waits = world.submitting.store.agents().await.unwrap().waits;
    assert_eq!(waits["agent-noop"][DEFAULT_TENANT].ms, 6000, "{waits:?}");

    let urgent = json!({"workflow": "noops", "input": {}, "priority": "high"});
    let id = world.try_accept("another", "urgent", &urgent).await.unwrap();
    let cancel = json!({"type": "cancel", "task_id": id, "by": "ann", "reason": "r"}).to_string();
    world.send("scheduler", &cancel).await;
    advance(SECOND * 9).await;
    world.deliver("scheduler", &scheduler).await;
    let waits = world.submitting.store.agents().await.unwrap().waits;
    assert!(waits.contains_key("scheduler") && !waits.contains_key("scheduler-high"), "{waits:?}");
}

// J1: waiting replies count as well.
#[tokio::test(start_paused = true)]
async fn orders_are_refused_while_replies_wait_too_long() {
    let (world, scheduler) = world().await;
    try_submit(&world, "noops", "a").await.unwrap();
    world.deliver("scheduler", &scheduler).await;
    world.deliver("agent-noop", &scheduler).await;
    advance(SECOND * 4).await;
    world.deliver("replies", &scheduler).await;
    assert_eq!(refused(&world, "trip", "b").await.as_deref(), Some("replies"));
}

// J1: a delayed Wake is as old as its delay, and a redelivered message as old as its first delivery: neither says
// anything about the queue.
#[tokio::test(start_paused = true)]
async fn delays_and_redeliveries_do_not_count_as_load() {
    let (world, scheduler) = world().await;
    let id = try_submit(&world, "noops", "a").await.unwrap();
    // Received by a consumer that died.
    world.receive("scheduler").await;
    let late = json!({"type": "wake", "task_id": id, "seen": 1, "hops": 0}).to_string();
    let send = world.clients.sqs.send_message().queue_url(world.url("scheduler")).message_body(late);
    send.delay_seconds(30).send().await.unwrap();
    advance(SECOND * 90).await;
    assert_eq!(queued(&world.endpoints, "scheduler"), 2);
    world.deliver("scheduler", &scheduler).await;
    assert_eq!(queued(&world.endpoints, "scheduler"), 0);
    assert_eq!(notes(&world), 0);
}

// J1: a limit of zero accepts every order; waits are recorded all the same, for the sweeps.
#[tokio::test(start_paused = true)]
async fn the_guard_can_be_switched_off() {
    let world = World::start_with(&[three_noops(TIMEOUT)], None, SignedDuration::ZERO).await;
    let engine = &world.submitting;
    engine.store.note_wait("scheduler", &a_minute(&world)).await.unwrap();
    assert_eq!(refused(&world, "noops", "a").await, None);
    advance(SECOND * 60).await;
    world.deliver("scheduler", engine).await;
    assert_eq!((notes(&world), refused(&world, "noops", "b").await), (2, None));
}

// J1, J2, D3: orders that wait in a long queue are not lost. The sweep leaves them to the queue, which costs nothing
// and adds no Wakes, and recovers orders of other queues. Once the queue has no consumer, the sweep recovers all
// orders.
#[tokio::test(start_paused = true)]
async fn a_sweep_leaves_what_waits_in_a_long_queue_to_it() {
    let (world, scheduler) = world().await;
    let watcher = world.engine("supervisor", 1, None);
    let mut supervisor = Supervisor::new(&watcher, &*watcher.store, Settings::new(1, Duration::from_secs(60)));
    let urgent = json!({"workflow": "noops", "input": {}, "priority": "high"});
    world.try_accept(DEFAULT_TENANT, "urgent", &urgent).await.unwrap();
    for n in 0..12 {
        if n == 10 {
            advance(SECOND).await;
        }
        try_submit(&world, "noops", &format!("{n}")).await.unwrap();
    }
    advance(SECOND * 9).await;
    world.deliver("scheduler", &scheduler).await;
    assert_eq!(notes(&world), 1);
    assert_eq!(supervisor.sweep().await.unwrap().looked_at, 1, "the urgent one, whose Wake seems lost");
    assert_eq!(world.receive("scheduler-high").await.len(), 2, "its first Wake and another one");
    // Orders that have begun are not part of the queue: their attempts expire in time.
    try_submit(&world, "noops", "last").await.unwrap_err();
    advance(Duration::from_millis(6100)).await;
    world.deliver("scheduler", &scheduler).await;
    let swept = supervisor.sweep().await.unwrap();
    assert_eq!((swept.looked_at, swept.expired), (10, 10), "not the two that were claimed just now");
}

// E6, J1: an order by message has no client that could retry. It waits for the load to ease; no message fails, and none
// is received so often that it becomes a dead letter.
#[tokio::test(start_paused = true)]
async fn an_order_by_message_waits_and_is_never_given_up() {
    let (world, scheduler) = world().await;
    let engine = &world.submitting;
    for (key, noted) in [("patient", 1000), ("eased", 1)] {
        for n in 0..3 {
            let body = json!({"idempotency_key": format!("{key}-{n}"), "workflow": "noops", "input": {}}).to_string();
            world.send("submissions", &body).await;
        }
        let begin = Instant::now();
        let (messages, store) = (world.receive_whole("submissions").await, &engine.store);
        assert_eq!(messages.len(), 3);
        let note = async {
            for _ in 0..noted {
                store.note_wait("scheduler", &a_minute(&world)).await.unwrap();
                tokio::time::sleep(SECOND).await;
            }
            std::future::pending::<()>().await
        };
        engine.forget_agents();
        store.note_wait("scheduler", &a_minute(&world)).await.unwrap();
        let response = tokio::select! {
            response = world.handle("submissions", &scheduler, whole_event("submissions", &messages)) => response,
            () = note => unreachable!("it never ends"),
        };
        assert_eq!(response.batch_item_failures, []);
        let waited = begin.elapsed();
        if noted == 1 {
            assert!(waited >= SECOND * 4 && waited < PATIENCE, "{waited:?}");
        } else {
            assert!(waited >= PATIENCE, "{waited:?}");
        }
        for n in 0..3 {
            let id = Id::derive(DEFAULT_TENANT, &format!("{key}-{n}"));
            let task = world.task(&id).await;
            assert!(task.due.is_some_and(|due| due > world.now()), "its times begin when it is stored");
        }
    }
}

/// The result of a run under load.
#[derive(Debug, Default)]
struct Run {
    accepted: usize,
    refused: usize,
    processed: usize,
    error: usize,
}

/// Three times as many orders as the agent can handle, for twenty seconds; then until all have ended.
async fn under_load(overload_age: SignedDuration) -> Run {
    const TICK: Duration = Duration::from_millis(500);
    // The agent does ten requests in two ticks, which is ten orders in six; thirty come.
    const LOADED: usize = 40;
    const ARRIVE: usize = 5;
    const MOST: usize = 1000;
    let ladder = "retry = { max = 3, backoff = [\"1s\"], then = \"error\" }";
    let workflow = three_noops(TIMEOUT).replace("retry = { max = 200, backoff = [\"20ms\"] }", ladder);
    assert_eq!(workflow.matches(ladder).count(), 3);
    let world = World::start_with(&[workflow], None, overload_age).await;
    let (scheduler, watcher) = (world.engine("scheduler", 1000, None), world.engine("supervisor", 1, None));
    let mut supervisor = Supervisor::new(&watcher, &*watcher.store, Settings::new(1, Duration::from_secs(60)));
    let mut run = Run::default();
    let mut open: Vec<Id> = Vec::new();
    for tick in 0..MOST {
        if tick < LOADED {
            for n in 0..ARRIVE {
                let key = format!("{tick}-{n}");
                match try_submit(&world, "noops", &key).await {
                    Ok(id) => {
                        run.accepted += 1;
                        open.push(id);
                    }
                    Err(problem) => {
                        assert_eq!((problem.status, problem.code), (429, "overloaded"));
                        assert!(problem.retry_after_s.is_some_and(|s| s > 0));
                        run.refused += 1;
                    }
                }
            }
        }
        while world.deliver("scheduler", &scheduler).await {}
        while world.deliver("replies", &scheduler).await {}
        if tick % 2 == 1 {
            // A request past its CompleteBy costs the agent no time: it is dropped.
            while queued(&world.endpoints, "replies") < 10 && world.deliver("agent-noop", &scheduler).await {}
            supervisor.sweep().await.unwrap();
        }
        if tick % 10 == 9 {
            let mut still = Vec::new();
            for id in open {
                match world.task(&id).await.process_state() {
                    ProcessState::Processed => run.processed += 1,
                    ProcessState::Error => run.error += 1,
                    _ => still.push(id),
                }
            }
            open = still;
        }
        if tick > LOADED && open.is_empty() {
            for queue in ["set-aside", "scheduler-dead", "replies-dead", "agent-noop-dead"] {
                assert_eq!(queued(&world.endpoints, queue), 0, "{queue}");
            }
            println!(
                "{tick} ticks: {} accepted, {} refused, {} processed, {} in Error",
                run.accepted, run.refused, run.processed, run.error
            );
            return run;
        }
        advance(TICK).await;
    }
    panic!("{} orders are still open", open.len());
}

// A1, A4: with the guard, under three times the load that the agents can handle, orders are refused and accepted orders
// end well. Without the guard many orders spend their whole retry ladder in the queue.
#[tokio::test(start_paused = true)]
async fn under_overload_orders_are_refused_and_what_is_accepted_ends_well() {
    let guarded = under_load(SignedDuration::from_secs(30)).await;
    let open_door = under_load(SignedDuration::ZERO).await;
    assert!(guarded.refused > 0 && open_door.refused == 0);
    assert_eq!((guarded.error, guarded.processed), (0, guarded.accepted));
    assert!(open_door.error * 10 > open_door.accepted, "the load is one");
}
