//! Steps that start an order for each item of a list: what a parent and its children do together.
//!
//! Method: the engine over a store and queues in memory. A test plays all messages that are due, loses some, and sweeps.

mod calls;
mod expiry;
mod forward;
mod inputs;
mod looks;
mod pauses;
mod undo;

use crate::support::*;
use contract::memory::{Behind, Between};
use serde_json::{Value, json};
use shared::decision::{Event, What};
use shared::engine::Engine;
use shared::items::Items;
use shared::message::{Effect, NoticeKind, Outcome, Reply, Request, Wake};
use shared::operator;
use shared::order::{Id, Order};
use shared::pools::Layout;
use shared::ports::{Created, Error, Messenger, async_trait};
use shared::step::Direction;
use shared::task::{Phase, Task};
use shared::time::SignedDuration;
use shared::workflow::child;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const PARENT: &str = r#"
name = "parent"
output = { done = "${outputs.lines.done}", failed = "${outputs.lines.failed}" }
[[step]]
name = "pay"
agent = "x"
timeout = "10s"
undo = { agent = "x" }
[[step]]
name = "lines"
after = ["pay"]
each = "${input.lines}"
workflow = "child"
with = { sku = "${item.sku}", n = "${index}" }
at_once = 3
[[step]]
name = "mail"
after = ["lines"]
agent = "x"
timeout = "10s"
with = { report = "${outputs.lines}" }
"#;

const CHILD: &str = r#"
name = "child"
output = { box = "${outputs.pick.box}" }
[input]
type = "object"
required = ["sku"]
properties = { sku = { type = "string" }, n = {} }
[[step]]
name = "pick"
agent = "x"
timeout = "10s"
retry = { max = 1, backoff = [] }
undo = { agent = "x" }
"#;

#[derive(Default)]
struct Faults {
    /// No order is created.
    creates_none: AtomicBool,
    /// The record of this order cannot be written.
    unwritable: Mutex<Option<Id>>,
    /// This record cannot be read.
    unreadable: Mutex<Option<Id>>,
    /// How many records were read with others, and how many alone.
    read: [AtomicUsize; 2],
    /// What happens while the next order is made.
    stall: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Between for Faults {
    async fn call(&self, method: &'static str, orders: &[&Id]) -> Result<(), Error> {
        match method {
            "load_all" => {
                self.read[0].fetch_add(orders.len(), Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
            "load" => drop(self.read[1].fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        if let Some(stall) = self.stall.lock().unwrap().take_if(|_| method == "create") {
            stall();
        }
        if method == "create" && self.creates_none.load(Ordering::Relaxed) {
            return Err(Error::Unavailable { what: "the store".into(), source: "503".into() });
        }
        if method == "save" && self.unwritable.lock().unwrap().as_ref() == Some(orders[0]) {
            return Err(Error::Unavailable { what: "the store".into(), source: "503".into() });
        }
        Ok(())
    }

    fn each(&self, order: &Id) -> Result<(), Error> {
        match self.unreadable.lock().unwrap().as_ref() == Some(order) {
            true => Err(Error::Corrupt { what: format!("task {order}"), why: "damaged".into() }),
            false => Ok(()),
        }
    }
}

#[derive(Default)]
struct Queues {
    sent: Mutex<Vec<Effect>>,
    /// The queue of the submitter takes nothing.
    refuses_notices: AtomicBool,
}

#[async_trait]
impl Messenger for Queues {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        let send = |effect| {
            if matches!(effect, Effect::Notice(_)) && self.refuses_notices.load(Ordering::Relaxed) {
                return Err(Error::Unavailable { what: "a queue".into(), source: "503".into() });
            }
            self.sent.lock().unwrap().push(effect);
            Ok(())
        };
        effects.into_iter().map(send).collect()
    }
}

/// An order that starts one for each item of a list.
struct Family {
    engine: Engine,
    store: Arc<Behind<Faults>>,
    queues: Arc<Queues>,
    now: Arc<AtomicI64>,
    /// What agents answer, forward.
    answers: Box<dyn Fn(&Request) -> Outcome + Send>,
    /// Messages that were sent and are not delivered yet, and when they are due.
    open: VecDeque<(i64, Effect)>,
    loses_hints: bool,
    /// Hints and looks name no step, as in messages of an earlier version.
    names_no_step: bool,
    /// The items whose orders cannot be undone.
    stuck: Vec<u64>,
    /// No undo is answered.
    undoes_nothing: bool,
    /// The notices that the submitter got.
    told: Vec<NoticeKind>,
    /// Every request, as `do pick 3`, or `do pay`.
    asked: Vec<String>,
    most_open: usize,
    /// Looks at lists that no end brings.
    looks: usize,
}

fn parent() -> Id {
    Id("ord_1".into())
}

fn lines(count: usize) -> Value {
    (0..count).map(|n| json!({"sku": format!("s{n}")})).collect()
}

fn good(request: &Request) -> Outcome {
    done(json!({"box": request.input["n"]}))
}

/// Only the child of this item is refused.
fn without(items: &'static [u64]) -> Box<dyn Fn(&Request) -> Outcome + Send> {
    Box::new(move |request| match request.input["n"].as_u64() {
        Some(n) if request.step == "pick" && items.contains(&n) => failed(),
        _ => good(request),
    })
}

impl Family {
    async fn new(parent_text: &str, child_text: &str, lines: Value) -> Self {
        let (store, queues, now) = (Arc::<Behind<Faults>>::default(), Arc::<Queues>::default(), Arc::default());
        let engine = instance("s1", &store, &queues, &now, Layout::new());
        let (own, below) = (workflow(parent_text), workflow(child_text));
        for definition in [&own, &below] {
            engine.use_workflow(definition).await.unwrap();
        }
        let pins = [("child".to_owned(), below.hash())].into();
        let task = Task { pins, ..Task::new(submission(&parent().0, false), &own, at(0)) };
        let order = Order { input: json!({"lines": lines}), ..order(&parent(), 1) };
        assert_eq!(engine.create(&order, &task).await.unwrap(), Created::New);
        let open = [(0, Effect::Wake(Wake::new(&task, 0, 0), SignedDuration::ZERO))].into();
        let answers = Box::new(good);
        let (asked, most_open, looks) = (Vec::new(), 0, 0);
        Self {
            engine,
            store,
            queues,
            now,
            answers,
            open,
            loses_hints: false,
            names_no_step: false,
            stuck: Vec::new(),
            undoes_nothing: false,
            told: Vec::new(),
            asked,
            most_open,
            looks,
        }
    }

    fn id(item: usize, made: u32) -> Id {
        Id::derive("acme", &child::key_of_item(&parent(), "lines", item, made))
    }

    fn child(&self, item: usize, made: u32) -> Option<Task> {
        self.store.tables().tasks.get(&Self::id(item, made)).cloned()
    }

    /// The phases of all children.
    fn phases(&self) -> BTreeMap<(usize, u32), Phase> {
        let tables = self.store.tables();
        let all = (0..50).flat_map(|item| (0..3).map(move |made| (item, made)));
        all.filter_map(|(item, made)| Some(((item, made), tables.tasks.get(&Self::id(item, made))?.phase))).collect()
    }

    fn parent(&self) -> Task {
        self.store.get("ord_1")
    }

    fn items(&self) -> Items {
        self.parent().steps[1].kids.clone().unwrap().items.unwrap()
    }

    fn take(&mut self) {
        let now = self.now.load(Ordering::Relaxed);
        let sent = std::mem::take(&mut *self.queues.sent.lock().unwrap());
        let due = |effect: &Effect| match effect {
            Effect::Wake(_, delay) => now + i64::try_from(delay.as_millis()).unwrap(),
            _ => now,
        };
        let is_look = |effect: &&Effect| matches!(effect, Effect::Wake(wake, _) if wake.hint && wake.hops > 0);
        self.looks += sent.iter().filter(is_look).count();
        self.open.extend(sent.into_iter().map(|effect| (due(&effect), effect)));
    }

    async fn handle(&mut self, id: &Id, event: Event) {
        drop(self.engine.handle(vec![(id.clone(), event)]).await);
        self.take();
        if self.store.tables().tasks.len() < 100 {
            let open = self.phases().values().filter(|phase| **phase == Phase::Forward).count();
            self.most_open = self.most_open.max(open);
        }
    }

    /// Delivers what is due now. A message whose handling fails is not repeated here.
    async fn play(&mut self) -> &mut Self {
        for _ in 0..200_000 {
            let now = self.now.load(Ordering::Relaxed);
            let Some(place) = self.open.iter().position(|(due, _)| *due <= now) else { return self };
            let (_, effect) = self.open.remove(place).unwrap();
            match effect {
                Effect::Wake(wake, _) if wake.hint && self.loses_hints => {}
                Effect::Wake(wake, _) if self.names_no_step => {
                    let wake = Wake { step: None, ..wake };
                    self.handle(&wake.task_id.clone(), Event::from(&wake)).await;
                }
                Effect::Wake(wake, _) => self.handle(&wake.task_id.clone(), Event::from(&wake)).await,
                Effect::Request(request) => {
                    let forward = request.direction == Direction::Do;
                    let n = request.input["n"].as_u64().map(|n| format!(" {n}")).unwrap_or_default();
                    let direction = if forward { "do" } else { "undo" };
                    self.asked.push(format!("{direction} {}{n}", request.step));
                    let is_stuck = request.input["n"].as_u64().is_some_and(|n| self.stuck.contains(&n));
                    let outcome = match forward {
                        true => (self.answers)(&request),
                        false if self.undoes_nothing => Outcome::NotYet { why: "w".into() },
                        false if is_stuck => failed(),
                        false => done(json!(null)),
                    };
                    if !matches!(outcome, Outcome::NotYet { .. }) {
                        let reply = Event::Reply(Reply::to(&request, outcome));
                        self.handle(&request.task_id.clone(), reply).await;
                    }
                }
                Effect::Notice(notice) => self.told.push(notice.kind),
                _ => {}
            }
        }
        panic!("it does not end");
    }

    /// Lets time pass, second by second, and sweeps.
    async fn after(&mut self, seconds: i64) -> &mut Self {
        self.play().await;
        for _ in 0..seconds {
            self.now.fetch_add(1000, Ordering::Relaxed);
            self.play().await.sweep().await;
        }
        self
    }

    async fn sweep(&mut self) -> &mut Self {
        let due: Vec<Id> = {
            let (tables, now) = (self.store.tables(), self.engine.now());
            tables.tasks.values().filter(|task| task.due.is_some_and(|due| due <= now)).map(|t| t.id.clone()).collect()
        };
        self.engine.recover(&due, 1).await.into_iter().for_each(|found| drop(found.unwrap()));
        self.take();
        self.play().await
    }

    async fn act(&mut self, what: What) -> operator::Outcome {
        let outcome = self.engine.act(vec![(parent(), by_ann(what))]).await.remove(0).unwrap();
        self.take();
        outcome
    }

    /// The instance dies, with all that it knows, and the record is another one.
    fn change(&mut self, id: &Id, change: impl FnOnce(&mut Task)) {
        change(self.store.tables().tasks.get_mut(id).unwrap());
        self.engine = instance("s2", &self.store, &self.queues, &self.now, Layout::new());
    }

    async fn resubmit(&mut self) -> operator::Outcome {
        self.act(What::Resubmit { step: None, input: None }).await
    }

    /// The answer of an agent that was silent so far.
    fn held(&self, item: usize) -> Reply {
        Reply::new(Self::id(item, 0), "pick", 1, done(json!({"box": item})))
    }

    fn count(&self, asked: &str) -> usize {
        self.asked.iter().filter(|one| one.starts_with(asked)).count()
    }

    fn report(&self) -> Value {
        self.parent().steps[1].output.clone().unwrap()
    }
}

fn on_error(text: &str) -> String {
    format!("on_failure = \"error\"\n{text}")
}

fn tolerating(part: &str) -> String {
    PARENT.replace("at_once = 3", &format!("at_once = 3\ntolerate = \"{part}\""))
}

fn silent(request: &Request) -> Outcome {
    if request.step == "pick" { Outcome::NotYet { why: "w".into() } } else { good(request) }
}

fn give(inputs: &[(usize, Value)]) -> What {
    What::ResubmitItems { step: None, inputs: inputs.iter().cloned().collect() }
}

fn stopping() -> String {
    tolerating("0%").replace("name = \"lines\"", "name = \"lines\"\non_failure = \"error\"")
}
