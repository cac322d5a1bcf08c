//! Goal: what an instance does not have in memory it reads together, and one order's trouble stays its own. Method: a
//! store in memory that records its calls, answers as configured, and yields at each call.

use crate::support::*;
use contract::memory::Between;
use serde_json::json;
use shared::decision::{Event, Kept};
use shared::engine::Handled;
use shared::message::{Effect, Reply};
use shared::order::Id;
use shared::ports::{Error, Saved};
use shared::task::Task;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
struct Network {
    /// Reads, as `load_all ord_1 ord_2`.
    asked: Mutex<Vec<String>>,
    /// The order whose task or input cannot be read.
    broken: Mutex<Option<Id>>,
    /// Saves that met another version.
    late: AtomicUsize,
}

impl Network {
    fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Between for Network {
    async fn call(&self, method: &'static str, orders: &[&Id]) -> Result<(), Error> {
        tokio::task::yield_now().await;
        if !["create", "save", "rearm", "due"].contains(&method) {
            let ids: Vec<_> = orders.iter().map(|id| id.0.as_str()).collect();
            self.asked.lock().unwrap().push(format!("{method} {}", ids.join(" ")).trim_end().to_owned());
        }
        Ok(())
    }

    fn each(&self, order: &Id) -> Result<(), Error> {
        let is_broken = self.broken.lock().unwrap().as_ref() == Some(order);
        if is_broken { Err(away(&order.0)) } else { Ok(()) }
    }

    fn saved(&self, _: &Task, saved: Saved) -> Result<Saved, Error> {
        self.late.fetch_add(usize::from(saved != Saved::Applied), Ordering::Relaxed);
        Ok(saved)
    }
}

type World = crate::support::World<Network>;

/// Orders `ord_1` to `ord_N` of a workflow with one step.
async fn orders(n: i64) -> World {
    let world = World::new(ONE, n).await;
    world.store.asked();
    world
}

/// Orders whose requests were sent, with the inputs these carry.
fn requests(world: &World) -> Vec<(String, i64)> {
    let request = |effect: Effect| match effect {
        Effect::Request(request) => Some((request.task_id.0, request.input["n"].as_i64().unwrap())),
        _ => None,
    };
    world.queues.take().into_iter().filter_map(request).collect()
}

fn id(n: i64) -> Id {
    Id(format!("ord_{n}"))
}

fn wakes(orders: impl IntoIterator<Item = i64>) -> Vec<(Id, Event)> {
    orders.into_iter().map(|n| (id(n), Event::Wake { seen: 0, hops: 0 })).collect()
}

/// As `applied`, `kept`, `no such task`, or the kind of error.
fn words(answers: &[Result<Handled, Error>]) -> Vec<&'static str> {
    let word = |answer: &Result<Handled, Error>| match answer {
        Ok(Handled::Applied(_)) => "applied",
        Ok(Handled::Kept(..)) => "kept",
        Ok(Handled::NoSuchTask) => "no such task",
        Err(Error::Unavailable { .. }) => "unavailable",
        Err(Error::Corrupt { .. }) => "corrupt",
        Err(Error::TooLarge { .. }) => "too large",
    };
    answers.iter().map(word).collect()
}

#[tokio::test]
async fn a_batch_reads_what_it_does_not_know_at_once() {
    let world = orders(3).await;
    let engine = world.instance("s");
    assert_eq!(words(&engine.handle(wakes(1..=3)).await), ["applied"; 3]);
    let asked = ["load_all ord_1 ord_2 ord_3", "workflow", "agents", "orders ord_1 ord_2 ord_3"];
    assert_eq!(world.store.asked(), asked);
    assert_eq!(requests(&world), [("ord_1".into(), 1), ("ord_2".into(), 2), ("ord_3".into(), 3)]);

    // What it has just read is as good as the store's word: deciding to do nothing needs no second look.
    let other = world.instance("t");
    let answers = other.handle(wakes([1])).await;
    assert!(matches!(&answers[..], [Ok(Handled::Kept(Kept::NothingReady, _))]), "{answers:?}");
    assert_eq!(world.store.asked(), ["load_all ord_1", "workflow", "agents", "orders ord_1"]);
}

#[tokio::test]
async fn what_an_instance_remembers_it_does_not_ask_for() {
    let world = orders(2).await;
    let engine = world.instance("s");
    world.create(&engine, 3).await;
    assert_eq!(words(&engine.handle(wakes([3])).await), ["applied"]);
    assert_eq!(world.store.asked(), ["agents", "workflow"]);
    engine.handle(wakes([1])).await;
    world.store.asked();
    // The first and the third are in memory, which is enough to try a write on them.
    let cancel = |n| (id(n), Event::Cancel { by: "shop".into(), reason: String::new() });
    assert_eq!(words(&engine.handle(vec![cancel(1), wakes([2]).remove(0), cancel(3)]).await), ["applied"; 3]);
    assert_eq!(world.store.asked(), ["load_all ord_2", "orders ord_2"]);
}

#[tokio::test]
async fn one_orders_trouble_stays_its_own() {
    let world = orders(3).await;
    *world.store.broken.lock().unwrap() = Some(id(2));
    let answers = world.instance("s").handle(wakes([1, 2, 9, 3])).await;
    assert_eq!(words(&answers), ["applied", "unavailable", "no such task", "applied"]);
    assert_eq!(requests(&world), [("ord_1".into(), 1), ("ord_3".into(), 3)]);
}

// The same order twice in a batch, and inputs that cannot be read.
#[tokio::test]
async fn an_input_that_cannot_be_read_holds_up_its_own_requests_only() {
    let world = orders(3).await;
    let engine = world.instance("s");
    // Claimed by another instance, whose requests are re-sent by the instance that gets the redelivery.
    engine.handle(wakes(1..=3)).await;
    requests(&world);
    world.store.tables().orders.remove(&id(2));
    let answers = world.instance("t").handle(wakes([1, 2, 2, 3])).await;
    assert_eq!(words(&answers), ["kept", "corrupt", "corrupt", "kept"]);
    assert_eq!(requests(&world), [("ord_1".into(), 1), ("ord_3".into(), 3)]);
}

#[tokio::test]
async fn a_sweep_reads_a_page_at_once() {
    let world = orders(3).await;
    world.instance("s").handle(wakes(1..=3)).await;
    world.store.asked();
    world.at(600_000);
    *world.store.broken.lock().unwrap() = Some(id(2));
    let found = world.instance("v").recover(&[id(1), id(2), id(9), id(3)], 1).await;
    let expired: Vec<_> = found.iter().map(|found| found.as_ref().ok().map(|found| found.expired)).collect();
    assert_eq!(expired, [Some(1), None, Some(0), Some(1)], "{found:?}");
    assert_eq!(world.store.asked(), ["agents", "load_all ord_1 ord_2 ord_9 ord_3", "workflow"]);
}

// A task read before another batch of the same instance saved it must not replace the saved one.
#[tokio::test]
async fn an_older_read_does_not_hide_a_newer_save() {
    let world = World::new(SIDE_BY_SIDE, 1).await;
    world.instance("s").handle(wakes([1])).await;
    let engine = world.instance("t");
    let mut repeated = Box::pin(engine.handle(wakes([1])));
    world.store.asked();
    // Until it has read the task, and is on the way to its workflow.
    while world.store.asked.lock().unwrap().is_empty() {
        assert!(futures::poll!(&mut repeated).is_pending());
    }
    let reply = Reply::new(id(1), "a", 1, done(json!({})));
    assert_eq!(words(&engine.handle(vec![(id(1), Event::Reply(reply))]).await), ["applied"]);
    assert_eq!(words(&repeated.await), ["kept"]);
    let cancel = Event::Cancel { by: "shop".into(), reason: String::new() };
    assert_eq!(words(&engine.handle(vec![(id(1), cancel)]).await), ["applied"]);
    assert_eq!(world.store.late.load(Ordering::Relaxed), 0, "it was decided on what is stored");
}
