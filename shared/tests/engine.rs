//! The shell around the core: crashes, lost answers, races and stale memory, over a store and queues in memory.
//!
//! Method: the fakes do what DynamoDB and SQS may do (a write that went through and whose answer is lost, a send that
//! fails), and yield at each call, so that instances interleave. Nothing sleeps; the clock is a number.

use crate::language::file;
use crate::support::*;
use contract::memory::{Behind, Between, MemoryStore};
use serde_json::json;
use shared::decision::{Event, Kept};
use shared::engine::{Engine, Handled};
use shared::message::{Effect, Outcome, Reply};
use shared::order::Id;
use shared::pools::Layout;
use shared::ports::{Error, Saved};
use shared::task::{ProcessState, Task};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// What the next save does beside its work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    /// It is applied, its answer is lost, and the client's own second try fails on the condition.
    AnswerLost,
    /// It is applied, and the client gives up.
    AppliedThenUnavailable,
    /// The store refuses before it writes.
    Unavailable,
}

#[derive(Default)]
struct Network {
    /// Faults of the next saves of one task.
    faults: Mutex<Vec<(Id, Fault)>>,
    /// Version and LockedBy of every applied save.
    saves: Mutex<Vec<(Id, u64, Option<String>)>>,
    loads: AtomicUsize,
    /// How the agents stand cannot be read.
    knows_no_agents: AtomicBool,
}

impl Network {
    fn fail(&self, id: &str, fault: Fault) {
        self.faults.lock().unwrap().push((Id(id.into()), fault));
    }

    fn loads(&self) -> usize {
        self.loads.load(Ordering::Relaxed)
    }
}

impl Between for Network {
    async fn call(&self, method: &'static str, orders: &[&Id]) -> Result<(), Error> {
        tokio::task::yield_now().await;
        let is_refused = match method {
            "load" | "load_all" => {
                self.loads.fetch_add(orders.len(), Ordering::Relaxed);
                false
            }
            "save" => {
                let mut faults = self.faults.lock().unwrap();
                let first = faults.iter().position(|(id, _)| id == orders[0]);
                first.filter(|n| faults[*n].1 == Fault::Unavailable).map(|n| faults.remove(n)).is_some()
            }
            "agents" => self.knows_no_agents.load(Ordering::Relaxed),
            _ => false,
        };
        if is_refused { Err(away("the store")) } else { Ok(()) }
    }

    fn saved(&self, task: &Task, saved: Saved) -> Result<Saved, Error> {
        let mut faults = self.faults.lock().unwrap();
        let fault = faults.iter().position(|(id, _)| *id == task.id).map(|n| faults.remove(n).1);
        if saved != Saved::Applied {
            return Ok(saved);
        }
        self.saves.lock().unwrap().push((task.id.clone(), task.version, task.locked_by().map(str::to_owned)));
        match fault {
            None => Ok(Saved::Applied),
            Some(Fault::AnswerLost) => Ok(Saved::Conflict(Some(Box::new(task.clone())))),
            Some(Fault::AppliedThenUnavailable | Fault::Unavailable) => Err(away("the store")),
        }
    }
}

#[tokio::test]
async fn the_store_of_these_tests_keeps_the_contract() {
    contract::store::suite(&Behind::<Network>::default()).await;
    contract::store::attention(&MemoryStore::default()).await;
    contract::lease::suite(&MemoryStore::default()).await;
    let memory = MemoryStore::default();
    contract::store::agents(&memory, async |name, pause| {
        memory.set_agent(name, pause);
        Ok(())
    })
    .await;
}

type World = crate::support::World<Network>;

fn id(text: &str) -> Id {
    Id(text.into())
}

fn wake(task: &str) -> (Id, Event) {
    (id(task), Event::Wake { seen: 0, hops: 0 })
}

fn reply(task: &str, step: &str, attempt: u32) -> (Id, Event) {
    told(task, step, attempt, done(json!({"of": step})))
}

fn told(task: &str, step: &str, attempt: u32, outcome: Outcome) -> (Id, Event) {
    (id(task), Event::Reply(Reply::new(id(task), step, attempt, outcome)))
}

async fn one(engine: &Engine, event: (Id, Event)) -> Result<Handled, Error> {
    engine.handle(vec![event]).await.pop().unwrap()
}

fn kept(handled: &Result<Handled, Error>) -> Option<Kept> {
    match handled {
        Ok(Handled::Kept(why, _)) => Some(*why),
        Ok(Handled::Applied(_) | Handled::NoSuchTask) | Err(_) => None,
    }
}

// D1, B2, E1: the request carries the order's input, read once from the order store.
#[tokio::test]
async fn a_wake_claims_and_its_requests_carry_the_orders_input() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    let engine = world.instance("s1");
    assert!(matches!(one(&engine, wake("ord_1")).await, Ok(Handled::Applied(_))));
    let effects = world.queues.take();
    assert_eq!(effects.len(), 2);
    for effect in effects {
        let Effect::Request(request) = effect else { panic!("{effect:?}") };
        assert_eq!(request.input, json!({"n": 1}));
    }
    assert!(matches!(one(&engine, wake("ord_9")).await, Ok(Handled::NoSuchTask)));
}

// J3: what one reply reveals counts for all orders of this instance; of concurrent claims one goes to probe the pool.
#[tokio::test]
async fn a_pool_is_left_after_one_reply_and_probed_by_one_of_many_claims() {
    let world = World::new(ONE, 30).await;
    let engine = world.instance_with("s1", Layout::from([("x".into(), vec!["x".into(), "x-b".into()])]));
    let batch = |orders: std::ops::RangeInclusive<usize>| orders.map(|n| wake(&format!("ord_{n}"))).collect::<Vec<_>>();
    let pools = || {
        let pool = |effect: &Effect| match effect {
            Effect::Request(request) => Some(request.pool.clone().unwrap_or("x".into())),
            _ => None,
        };
        let all: Vec<_> = world.queues.take().iter().filter_map(pool).collect();
        ["x", "x-b"].map(|name| all.iter().filter(|pool| *pool == name).count())
    };
    one(&engine, wake("ord_1")).await.unwrap();
    assert_eq!(pools(), [1, 0]);
    one(&engine, told("ord_1", "a", 1, deferred(5_000))).await.unwrap();
    assert_eq!(pools(), [0, 0]);
    engine.handle(batch(2..=11)).await;
    assert_eq!(pools(), [0, 10]);
    world.at(5_000);
    engine.handle(batch(12..=21)).await;
    assert_eq!(pools(), [1, 9]);
    let probe = (12..=21).find(|n| world.store.get(&format!("ord_{n}")).steps[0].pool.is_none()).unwrap();
    one(&engine, reply(&format!("ord_{probe}"), "a", 1)).await.unwrap();
    engine.handle(batch(22..=30)).await;
    assert_eq!(pools(), [9, 0]);
}

// A4, D9: the process dies after its save, before any of its sends; the queue delivers the message again.
#[tokio::test]
async fn after_a_crash_between_save_and_send_the_redelivery_sends() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    let events = [wake("ord_1"), reply("ord_1", "a", 1), reply("ord_1", "b", 1), reply("ord_1", "c", 1)];
    let expected: [&[&str]; 4] =
        [&["do a#1", "do b#1"], &["notice StepCompleted"], &["do c#1", "notice StepCompleted"], &["notice Completed"]];
    for (event, expected) in events.into_iter().zip(expected) {
        world.queues.fail(|_| true);
        assert!(one(&world.instance("dies"), event.clone()).await.is_err(), "the message is not acknowledged");
        world.queues.recover();
        assert_eq!(world.sent(), Vec::<String>::new());
        let version = world.store.get("ord_1").version;
        assert!(one(&world.instance("next"), event).await.is_ok());
        assert_eq!(world.sent(), expected);
        assert_eq!(world.store.get("ord_1").version, version, "nothing is decided anew");
    }
    assert_eq!(world.store.get("ord_1").process_state(), ProcessState::Processed);
}

// A4: only some of the sends went out.
#[tokio::test]
async fn a_batch_of_which_one_send_failed_is_not_acknowledged() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    let engine = world.instance("s1");
    world.queues.fail(|e| matches!(e, Effect::Request(r) if r.step == "b"));
    assert!(one(&engine, wake("ord_1")).await.is_err());
    assert_eq!(world.sent(), ["do a#1"]);
    world.queues.recover();
    assert_eq!(kept(&one(&engine, wake("ord_1")).await), Some(Kept::NothingReady));
    assert_eq!(world.sent(), ["do a#1", "do b#1"]);
}

// Rule 2 of the protocol: the client's second try of a save that went through is no conflict.
#[tokio::test]
async fn an_instances_own_save_is_recognised_after_a_lost_answer() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    let engine = world.instance("s1");
    world.store.fail("ord_1", Fault::AnswerLost);
    let handled = one(&engine, wake("ord_1")).await.unwrap();
    let Handled::Applied(task) = handled else { panic!("{handled:?}") };
    assert_eq!(*task, world.store.get("ord_1"));
    assert_eq!(world.sent(), ["do a#1", "do b#1"]);
    assert_eq!(world.store.get("ord_1").version, 1);
}

// Wording 9: "my own stamp means mine". Two deliveries on one instance race; the loser's deadline never goes out.
#[tokio::test]
async fn of_two_deliveries_on_one_instance_the_loser_sends_the_stored_deadline() {
    let world = World::new(ONE, 1).await;
    let engine = world.instance("s1");
    let (first, (), second) = tokio::join!(
        one(&engine, wake("ord_1")),
        async {
            tokio::task::yield_now().await;
            world.at(500);
        },
        one(&engine, wake("ord_1")),
    );
    assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
    let stored = world.store.get("ord_1").complete_by().unwrap();
    let effects = world.queues.take();
    assert!(!effects.is_empty());
    for effect in effects {
        let Effect::Request(request) = effect else { panic!("{effect:?}") };
        assert_eq!((request.attempt, request.complete_by), (1, stored));
    }
    assert_eq!(world.store.get("ord_1").version, 1);
}

// A write whose answer says nothing may have gone through: the redelivery finds out.
#[tokio::test]
async fn a_save_of_unknown_fate_is_settled_by_the_redelivery() {
    for (fault, version) in [(Fault::AppliedThenUnavailable, 1), (Fault::Unavailable, 0)] {
        let world = World::new(SIDE_BY_SIDE, 1).await;
        let engine = world.instance("s1");
        world.store.fail("ord_1", fault);
        assert!(one(&engine, wake("ord_1")).await.is_err());
        assert_eq!(world.store.get("ord_1").version, version);
        assert_eq!(world.sent(), Vec::<String>::new(), "nothing goes out before it is certain");
        assert!(one(&engine, wake("ord_1")).await.is_ok());
        assert_eq!(world.sent(), ["do a#1", "do b#1"]);
        assert_eq!(world.store.get("ord_1").version, 1);
    }
}

// Idea 1 of the protocol: a lost race means "decide again", and memory never decides to do nothing.
#[tokio::test]
async fn a_stale_cache_never_decides_to_do_nothing() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    let (old, new) = (world.instance("old"), world.instance("new"));
    one(&old, wake("ord_1")).await.unwrap();
    // `old` remembers version 1. Meanwhile `new` records a, a expires nowhere, b fails over and is claimed again.
    one(&new, reply("ord_1", "a", 1)).await.unwrap();
    world.at(11_000);
    let counts = new.recover(&[id("ord_1")], 1).await;
    assert_eq!(counts.iter().map(|c| c.as_ref().unwrap().expired).collect::<Vec<_>>(), [1]);
    world.at(12_000);
    one(&new, wake("ord_1")).await.unwrap();
    world.queues.take();
    // By what `old` remembers attempt 2 never was, and the time of attempt 1 is over.
    assert!(matches!(one(&old, reply("ord_1", "b", 2)).await, Ok(Handled::Applied(_))));
    assert_eq!(world.sent(), ["do c#1", "notice StepCompleted"]);
}

// A cached task saves the read, and only that.
#[tokio::test]
async fn a_happy_order_on_one_instance_reads_its_task_once_at_most() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    let engine = world.instance("s1");
    for event in [wake("ord_1"), reply("ord_1", "a", 1), reply("ord_1", "b", 1), reply("ord_1", "c", 1)] {
        one(&engine, event).await.unwrap();
    }
    assert_eq!(world.store.get("ord_1").process_state(), ProcessState::Processed);
    assert_eq!((world.store.loads(), world.store.saves.lock().unwrap().len()), (1, 4));
}

// D1, B7: of n schedulers at once exactly one wins, for each claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_schedulers_on_one_store_claim_each_step_exactly_once() {
    for round in 0..50 {
        let world = World::new(SIDE_BY_SIDE, 1).await;
        let engines: Vec<_> = (0..16).map(|n| Arc::new(world.instance(&format!("s{n}")))).collect();
        for event in [wake("ord_1"), reply("ord_1", "a", 1), reply("ord_1", "b", 1), reply("ord_1", "c", 1)] {
            let runs: Vec<_> = engines
                .iter()
                .map(|engine| {
                    let (engine, event) = (Arc::clone(engine), event.clone());
                    tokio::spawn(async move { one(&engine, event).await })
                })
                .collect();
            let mut applied = 0;
            for run in runs {
                let handled = run.await.unwrap().unwrap();
                applied += usize::from(matches!(handled, Handled::Applied(_)));
            }
            assert_eq!(applied, 1, "round {round}");
        }
        let task = world.store.get("ord_1");
        assert!(task.steps.iter().all(|s| s.attempt == 1), "{task:?}");
        let versions: Vec<_> = world.store.saves.lock().unwrap().iter().map(|s| s.1).collect();
        assert_eq!(versions, [1, 2, 3, 4], "successful saves form one chain");
        let stored = at(10_000);
        for effect in world.queues.take() {
            if let Effect::Request(request) = effect {
                assert_eq!((request.attempt, request.complete_by), (1, stored));
            }
        }
    }
}

// F1: a notice of a turn, or of the beginning, is re-sent only while its task stays where it is. So no Wake goes out
// before it, and what failed is retried with both. Found by the simulation, seeds 16 and 1995.
#[tokio::test]
async fn a_wake_never_overtakes_the_notice_of_its_task() {
    let world = World::new(ONE, 1).await;
    let (scheduler, supervisor) = (world.instance("s1"), world.instance("v"));
    world.queues.fail(|effect| matches!(effect, Effect::Notice(_)));
    world.at(60_000);
    assert!(supervisor.recover(&[id("ord_1")], 1).await[0].is_err());
    assert_eq!(world.sent(), Vec::<String>::new(), "the order must not begin before its first notice");
    world.at(301_000);
    assert!(supervisor.recover(&[id("ord_1")], 1).await[0].is_err());
    assert_eq!(world.sent(), ["wake"], "a queue that is away for long must not hold up the order");
    world.queues.recover();
    supervisor.recover(&[id("ord_1")], 1).await[0].as_ref().unwrap();
    assert_eq!(world.sent(), ["notice Received", "wake"]);

    one(&scheduler, wake("ord_1")).await.unwrap();
    world.sent();
    let refused = told("ord_1", "a", 1, failed());
    world.queues.fail(|effect| matches!(effect, Effect::Notice(_)));
    assert!(one(&scheduler, refused.clone()).await.is_err());
    assert_eq!(world.sent(), Vec::<String>::new(), "the undo must not begin before the notice of it");
    world.queues.recover();
    one(&scheduler, refused).await.unwrap();
    assert_eq!(world.sent().len(), 2);
}

// The same if two messages are one save: the Wake of one waits for the notice of the other, and both are redelivered.
#[tokio::test]
async fn a_wake_never_overtakes_the_notice_of_another_message_in_its_save() {
    let world = World::new(&format!("tombstones = true\n{SIDE_BY_SIDE}"), 1).await;
    one(&world.instance("s1"), wake("ord_1")).await.unwrap();
    world.queues.take();
    let batch = || vec![told("ord_1", "a", 1, failed()), told("ord_1", "b", 1, unavailable(None))];
    world.queues.fail(|effect| matches!(effect, Effect::Notice(_)));
    let answers = world.instance("s2").handle(batch()).await;
    assert_eq!(world.store.get("ord_1").process_state(), ProcessState::Undoing);
    assert_eq!(world.sent(), Vec::<String>::new(), "the undo must not begin before the notice of it");
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    world.queues.recover();
    world.instance("s3").handle(batch()).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    let sent = world.sent();
    let is_there = |what: &str| sent.iter().any(|sent| sent.starts_with(what));
    assert!(is_there("notice Failed") && is_there("wake"), "{sent:?}");
}

// B9: an instance that could never read who is paused claims nothing; one that could relies on what it knows.
#[tokio::test]
async fn an_instance_that_cannot_read_the_pauses_claims_nothing() {
    let world = World::new(ONE, 2).await;
    let knows = world.instance("knows");
    knows.handle(vec![wake("ord_1")]).await.remove(0).unwrap();
    world.store.knows_no_agents.store(true, Ordering::Relaxed);
    let cold = world.instance("cold");
    let answer = cold.handle(vec![wake("ord_2")]).await.remove(0);
    assert!(matches!(answer, Err(Error::Unavailable { .. })), "{answer:?}");
    assert_eq!(world.store.get("ord_2").version, 0);
    world.pass(60_000);
    knows.handle(vec![wake("ord_2")]).await.remove(0).unwrap();
    assert_eq!(world.store.get("ord_2").version, 1);
}

// A handler fails the message, not the batch.
#[tokio::test]
async fn a_failing_neighbour_fails_alone() {
    let world = World::new(ONE, 4).await;
    let engine = world.instance("s1");
    world.store.fail("ord_2", Fault::Unavailable);
    world.store.tables().orders.remove(&id("ord_3"));
    world.queues.fail(|e| matches!(e, Effect::Request(r) if r.task_id.0 == "ord_4"));
    let answers = engine.handle((1..=5).map(|n| wake(&format!("ord_{n}"))).collect()).await;
    let good: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(good, [true, false, false, false, true]);
    assert!(matches!(answers[4], Ok(Handled::NoSuchTask)));
    assert_eq!(world.sent(), ["do a#1"]);
    assert!(matches!(&answers[2], Err(Error::Corrupt { what, .. }) if what.contains("ord_3")));
}

// Two messages about one task in one batch: both are handled.
#[tokio::test]
async fn two_replies_for_one_task_in_one_batch_are_both_recorded() {
    let world = World::new(SIDE_BY_SIDE, 2).await;
    let (engine, other) = (world.instance("s1"), world.instance("s2"));
    one(&engine, wake("ord_1")).await.unwrap();
    one(&engine, wake("ord_2")).await.unwrap();
    world.queues.take();
    // By the instance that remembers the task, and by one that reads it for both.
    for (order, engine) in [("ord_1", &engine), ("ord_2", &other)] {
        let answers = engine.handle(vec![reply(order, "a", 1), reply(order, "b", 1)]).await;
        assert!(answers.iter().all(|a| matches!(a, Ok(Handled::Applied(_)))), "{answers:?}");
        assert_eq!(world.store.get(order).steps[2].attempt, 1);
        assert_eq!(world.sent().iter().filter(|s| *s == "do c#1").count(), 1);
    }
}

/// `steps` concurrent steps, one attempt each: any lost reply turns the order to undo.
fn side_by_side(steps: usize) -> String {
    let step = |n| {
        format!("[[step]]\nname = \"s{n}\"\nagent = \"x\"\ntimeout = \"10s\"\nretry = {{ max = 1, backoff = [] }}\n")
    };
    format!("name = \"wide\"\n{}", (0..steps).map(step).collect::<String>())
}

/// What `writers` instances make of the replies of a wide order, dealt out among them in batches, all at once: the answers,
/// and how many saves there were.
async fn replies_at_once(steps: usize, writers: usize) -> (World, Vec<Result<Handled, Error>>, usize) {
    let world = World::new(&side_by_side(steps), 1).await;
    one(&world.instance("s0"), wake("ord_1")).await.unwrap();
    let instances: Vec<_> = (0..writers).map(|n| world.instance(&format!("s{n}"))).collect();
    let batches = (0..writers).map(|w| {
        let own = (w..steps).step_by(writers);
        instances[w].handle(own.map(|n| reply("ord_1", &format!("s{n}"), 1)).collect())
    });
    let answers = futures::future::join_all(batches).await.into_iter().flatten().collect();
    let saves = world.store.saves.lock().unwrap().len() - 1;
    (world, answers, saves)
}

// B7: of 30 replies at three instances 10 were given back after 20 lost races each, and their steps expired.
#[tokio::test]
async fn many_replies_of_one_order_at_once_are_all_recorded() {
    for (steps, writers) in [(30, 3), (50, 5), (50, 50), (50, 1)] {
        let (world, answers, saves) = replies_at_once(steps, writers).await;
        let given_back = answers.iter().filter(|answer| answer.is_err()).count();
        assert_eq!(given_back, 0, "of {steps} replies at {writers} instances");
        assert_eq!(world.store.get("ord_1").process_state(), ProcessState::Processed);
        assert!(saves <= writers, "{saves} saves by {writers} instances: the replies of a batch are one save");
    }
}

// Each change in a save has its own version: notices have different numbers, and a redelivered reply re-sends its own.
#[tokio::test]
async fn each_of_several_changes_in_one_save_is_sent_again_by_its_own_message() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    one(&world.instance("s1"), wake("ord_1")).await.unwrap();
    world.queues.take();
    let events = || vec![reply("ord_1", "a", 1), reply("ord_1", "b", 1)];
    world.queues.fail(|_| true);
    let answers = world.instance("dies").handle(events()).await;
    assert!(answers.iter().all(Result::is_err), "neither message is acknowledged: {answers:?}");
    world.queues.recover();
    let task = world.store.get("ord_1");
    assert_eq!((task.version, task.steps[0].settled_at, task.steps[1].settled_at), (3, 2, 3));
    assert_eq!(task.steps[2].claimed_at, 3);
    let [first, second] = events().try_into().unwrap();
    assert_eq!(kept(&one(&world.instance("next"), first).await), Some(Kept::Repeated));
    assert_eq!(world.sent(), Vec::<String>::new(), "the notice of a step is in every later one");
    assert_eq!(kept(&one(&world.instance("next"), second).await), Some(Kept::Repeated));
    let seqs = |effects: &[Effect]| -> Vec<u64> {
        effects.iter().filter_map(|e| if let Effect::Notice(n) = e { Some(n.seq) } else { None }).collect()
    };
    let again = world.queues.take();
    assert_eq!((again.len(), seqs(&again)), (2, vec![3]));

    let other = World::new(SIDE_BY_SIDE, 1).await;
    one(&other.instance("s1"), wake("ord_1")).await.unwrap();
    other.queues.take();
    other.instance("s2").handle(events()).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    assert_eq!(seqs(&other.queues.take()), [2, 3], "one number, one notice");
}

// A handler fails the message, not the batch: but the events of one task are one write.
#[tokio::test]
async fn a_save_that_fails_gives_back_all_messages_of_its_task_and_no_other() {
    let world = World::new(SIDE_BY_SIDE, 2).await;
    let engine = world.instance("s1");
    engine.handle(vec![wake("ord_1"), wake("ord_2")]).await.into_iter().for_each(|answer| drop(answer.unwrap()));
    world.store.fail("ord_1", Fault::Unavailable);
    let batch = ["ord_1", "ord_2"].into_iter().flat_map(|o| [reply(o, "a", 1), reply(o, "b", 1)]);
    let answers = engine.handle(batch.collect()).await;
    let good: Vec<_> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(good, [false, false, true, true]);
    let words: Vec<_> = answers.iter().flat_map(|a| a.as_ref().err().map(ToString::to_string)).collect();
    assert_eq!(words, ["the store is unavailable", "the store is unavailable"]);
}

// F2, F3: an alert is owed until it went out, then no longer.
#[tokio::test]
async fn an_alert_is_cleared_after_it_was_sent_and_only_then() {
    let world = World::new(&format!("strict_notices = true\non_failure = \"error\"\n{ONE}"), 1).await;
    let engine = world.instance("s1");
    one(&engine, wake("ord_1")).await.unwrap();
    world.queues.take();
    world.queues.fail(|e| matches!(e, Effect::Alert(_)));
    assert!(one(&engine, told("ord_1", "a", 1, failed())).await.is_err());
    assert!(world.store.get("ord_1").alert.is_some());
    world.queues.take();
    // So long after the save that no instance can still be sending it.
    world.at(2000);
    for round in 0..2 {
        assert!(engine.recover(&[id("ord_1")], 1).await[0].is_err(), "round {round}");
        world.queues.take();
    }
    world.queues.recover();
    assert!(engine.recover(&[id("ord_1")], 1).await[0].is_ok());
    assert_eq!(world.sent(), ["notice AttentionNeeded", "alert"]);
    let task = world.store.get("ord_1");
    assert_eq!((&task.alert, task.notice_owed, task.due), (&None, false, None));
}

// I8 of the protocol, I5: the older leader's write does not apply after the newer one's, whatever it has in hand.
#[tokio::test]
async fn an_older_leader_changes_nothing_after_a_newer_one() {
    let world = World::new(ONE, 1).await;
    let engine = world.instance("s1");
    one(&engine, wake("ord_1")).await.unwrap();
    world.at(11_000);
    let v = world.instance("v");
    assert_eq!(v.recover(&[id("ord_1")], 5).await[0].as_ref().unwrap().expired, 1);
    world.at(12_000);
    one(&engine, wake("ord_1")).await.unwrap();
    world.at(40_000);
    world.queues.take();
    let before = world.store.get("ord_1");
    assert_eq!(world.instance("old").recover(&[id("ord_1")], 4).await[0].as_ref().unwrap().expired, 0);
    assert_eq!((world.store.get("ord_1"), world.sent()), (before, vec![]));
}

// I3 of the protocol: two leaders at once count an expiry once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_supervisors_at_once_count_an_expiry_once() {
    for _ in 0..50 {
        let world = World::new(ONE, 1).await;
        one(&world.instance("s1"), wake("ord_1")).await.unwrap();
        world.at(11_000);
        let (v1, v2) = (world.instance("v1"), world.instance("v2"));
        let ids = [id("ord_1")];
        let (a, b) = tokio::join!(v1.recover(&ids, 1), v2.recover(&ids, 2));
        assert_eq!(a[0].as_ref().unwrap().expired + b[0].as_ref().unwrap().expired, 1);
        assert_eq!(world.store.get("ord_1").failure_count(), 1);
    }
}

// A rearm of a supervisor leaves the version; a scheduler that remembers the task may still not undo its token.
#[tokio::test]
async fn a_rearm_does_not_stop_a_scheduler_that_remembers_the_task() {
    let world = World::new(&SIDE_BY_SIDE.replace("timeout = \"10s\"", "timeout = \"30s\""), 1).await;
    let engine = world.instance("s1");
    one(&engine, wake("ord_1")).await.unwrap();
    world.at(30_000 - 1);
    world.instance("v").recover(&[id("ord_1")], 9).await[0].as_ref().unwrap();
    assert_eq!((world.store.get("ord_1").due, world.store.get("ord_1").lease_token), (Some(at(31_000)), 9));
    assert!(matches!(one(&engine, reply("ord_1", "a", 1)).await, Ok(Handled::Applied(_))));
    assert_eq!(world.store.get("ord_1").lease_token, 9);
}

// A task is never dropped in silence.
#[tokio::test]
async fn a_task_without_its_workflow_is_reported_and_not_lost() {
    let world = World::new(ONE, 1).await;
    world.store.tables().workflows.clear();
    let error = one(&world.instance("s1"), wake("ord_1")).await.unwrap_err();
    assert!(error.to_string().contains("definition is missing"), "{error}");
    assert_eq!(world.store.get("ord_1").version, 0);
}

const TIMER: &str = r#"
a | wait = "1h"
b | after = ["a"]
"#;

// L1: the sweeps that look ahead send one Wake, write nothing, and read the order now and then.
#[tokio::test]
async fn the_sweeps_that_look_ahead_send_one_wake() {
    let world = World::new(&file(TIMER), 1).await;
    one(&world.instance("s"), wake("ord_1")).await.unwrap();
    world.queues.take();
    let (before, begun) = (world.store.get("ord_1"), world.store.loads());
    let supervisor = world.instance("v");
    let sweep = async |ms: i64| {
        world.at(ms);
        supervisor.recover(&[id("ord_1")], 1).await.remove(0)
    };
    // It is not sent, so the next sweep sends it.
    world.queues.fail(|_| true);
    assert!(sweep(3_481_000).await.is_err());
    world.queues.recover();
    assert!(sweep(3_481_250).await.is_ok());
    assert_eq!(world.sent(), ["wake+118750"]);
    for ms in (3_481_500..3_600_000).step_by(250) {
        assert!(sweep(ms).await.is_ok());
    }
    assert_eq!(world.sent(), Vec::<String>::new());
    assert_eq!(world.store.get("ord_1"), before, "nothing was written");
    let loads = world.store.loads() - begun;
    assert!((2..=12).contains(&loads), "475 sweeps read it {loads} times");
    // Another instance does not know of it.
    world.at(3_599_000);
    assert!(world.instance("w").recover(&[id("ord_1")], 2).await[0].is_ok());
    assert_eq!(world.sent(), ["wake+1000"]);
    // Without any of them a sweep ends the wait.
    assert!(sweep(3_610_000).await.is_ok());
    assert_eq!(world.sent(), ["wake"]);
}
