//! Steps that start an order for each item of a list: what a parent and its children do together.
//!
//! Method: the engine over a store and queues in memory. A test plays all messages that are due, loses some, and sweeps.

use crate::support::*;
use contract::memory::{Behind, Between};
use serde_json::{Value, json};
use shared::decision::{Act, Event, What};
use shared::engine::Engine;
use shared::items::{Item, Items, MAX_ITEMS};
use shared::message::{Effect, NoticeKind, Outcome, Reply, Request, Wake};
use shared::operator;
use shared::order::{Id, Order};
use shared::pools::Layout;
use shared::ports::{Created, Error, Messenger, StateStore};
use shared::step::{Direction, State};
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
    engine: Engine<Arc<Behind<Faults>>, Arc<Queues>>,
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
        child::id_of_item("acme", &parent(), "lines", item, made)
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
        let act = Act { what, by: "ann".into(), reason: "r".into(), seen: None };
        let outcome = self.engine.act(vec![(parent(), act)]).await.remove(0).unwrap();
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

// M1
#[tokio::test]
async fn each_item_has_an_order_and_its_output_comes_back_in_its_place() {
    let mut family = Family::new(PARENT, CHILD, lines(7)).await;
    family.after(3).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
    assert_eq!(own.output, Some(json!({"done": 7, "failed": 0})));
    let items: Value = (0..7).map(|n| json!({"box": n})).collect();
    assert_eq!(family.report(), json!({"total": 7, "done": 7, "failed": 0, "errors": [], "items": items}));
    assert_eq!(family.most_open, 3);
    assert_eq!((family.count("do pick"), family.count("do mail")), (7, 1));
    let child = family.child(4, 0).unwrap();
    let link = child.parent.clone().unwrap();
    assert_eq!((link.item, link.step.as_str()), (Some(4), "lines"));
    assert_eq!(family.store.order(&child).await.unwrap().unwrap().input, json!({"sku": "s4", "n": 4}));
    assert!(own.due.is_none());
}

// M2
#[tokio::test]
async fn an_empty_list_is_done_at_once() {
    let mut family = Family::new(PARENT, CHILD, json!([])).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert_eq!(family.report(), json!({"total": 0, "done": 0, "failed": 0, "errors": [], "items": []}));
    // pay, then the list with mail, and the end.
    assert_eq!(family.parent().version, 3);
    family.act(What::Undo).await;
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

#[tokio::test]
async fn one_failure_undoes_what_began_and_makes_nothing_more() {
    let mut family = Family::new(PARENT, &on_error(CHILD), lines(20)).await;
    family.answers = without(&[4]);
    family.after(60).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Undone);
    assert!(own.reason.as_ref().unwrap().contains("1 of 20 orders failed: order ord_"), "{:?}", own.reason);
    let phases = family.phases();
    assert!((5..=9).contains(&phases.len()), "{phases:?}");
    assert!(phases.values().all(|phase| *phase == Phase::Undone), "{phases:?}");
    for item in 0..phases.len() {
        let (did, undid) = (family.count(&format!("do pick {item}")), family.count(&format!("undo pick {item}")));
        assert!(did == undid || item == 4, "{item}: {did} {undid}");
    }
    assert_eq!(family.asked.last().unwrap(), "undo pay");
    assert_eq!(family.items().count(|item| item == Item::Undone), phases.len());
}

// They would have more to undo, and might do what cannot be undone.
#[tokio::test]
async fn a_list_that_fails_stops_what_is_open_at_once() {
    let long = PARENT.replacen("timeout = \"10s\"", "timeout = \"600s\"", 1);
    let mut family = Family::new(&long, &on_error(CHILD), lines(3)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(0) => failed(),
        Some(_) => silent(request),
        None => good(request),
    });
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Undoing);
    let phases = family.phases();
    assert!(phases.len() == 3 && phases.values().all(|phase| *phase != Phase::Forward), "{phases:?}");
}

#[tokio::test]
async fn what_is_left_of_an_order_that_cannot_be_undone_is_paused() {
    let bill = "[[step]]\nname = \"bill\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\n";
    let child = CHILD.replace("undo = { agent = \"x\" }", "irreversible = true") + bill;
    let mut family = Family::new(PARENT, &child, lines(3)).await;
    family.answers = Box::new(|request| match request.step.as_str() {
        "bill" => Outcome::NotYet { why: "w".into() },
        _ => good(request),
    });
    family.after(3).await;
    family.act(What::Cancel).await;
    family.after(60).await;
    assert_eq!(family.items().count(|item| item == Item::Stuck), 3);
    assert!((0..3).all(|item| family.child(item, 0).unwrap().paused_at.is_some()), "{:?}", family.phases());
    assert_eq!(family.parent().process_state().name(), "Error");
}

#[tokio::test]
async fn many_unfit_items_do_not_wait_for_a_look() {
    let mut family = Family::new(&tolerating("100%"), CHILD, json!(vec![json!({}); 1200])).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.items().count(Item::has_failed));
    assert_eq!(family.items().count(Item::has_failed), 1200);
}

// With many open orders most ends are looked at a second later.
#[tokio::test]
async fn another_step_does_not_hold_up_the_look_at_a_list() {
    let side = "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"600s\"\n";
    let text = PARENT.replace("at_once = 3", "at_once = 20") + side;
    let mut family = Family::new(&text, &CHILD.replace("10s", "600s"), lines(25)).await;
    family.answers = Box::new(|request| match (request.step.as_str(), request.input["n"].as_u64()) {
        ("side", _) | ("pick", Some(1)) => Outcome::NotYet { why: "w".into() },
        _ => good(request),
    });
    family.after(5).await;
    assert_eq!(family.items().count(|item| item == Item::Open), 1);
    for (id, step) in [(Family::id(1, 0), "pick"), (parent(), "side")] {
        let reply = Reply::new(id.clone(), step, 1, done(json!({"box": 1})));
        let tenant = family.parent().tenant;
        family.handle(&id, Event::Reply(Reply { tenant, ..reply })).await;
        family.play().await;
    }
    family.after(3).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent());
}

// The end of one of many is left to the look of a second later, which a save of another step must not end.
#[tokio::test]
async fn the_look_at_many_open_orders_comes_whatever_another_step_saves() {
    let side = "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"600s\"\n";
    let text = PARENT.replace("at_once = 3", "at_once = 40") + side;
    let mut family = Family::new(&text, &CHILD.replace("10s", "600s"), lines(40)).await;
    family.answers = Box::new(|request| match request.step.as_str() {
        "side" => Outcome::NotYet { why: "w".into() },
        _ => silent(request),
    });
    family.play().await;
    let reply = family.held(1);
    family.handle(&Family::id(1, 0), Event::Reply(reply)).await;
    let reply = Reply::new(parent(), "side", 1, done(json!(null)));
    family.handle(&parent(), Event::Reply(reply)).await;
    family.after(2).await;
    assert_eq!(family.items().get(1), Item::Done);
}

#[tokio::test]
async fn a_list_that_cannot_be_read_keeps_the_one_beside_it_from_beginning() {
    let other = "[[step]]\nname = \"wrong\"\nafter = [\"pay\"]\neach = \"${input.lines[0]}\"\nworkflow = \"child\"\n";
    let (head, tail) = PARENT.split_at(PARENT.find("[[step]]\nname = \"lines\"").unwrap());
    let mut family = Family::new(&format!("{head}{other}{tail}"), CHILD, lines(5)).await;
    family.after(3).await;
    assert_eq!(family.parent().phase, Phase::Undoing, "{:?}", family.parent().reason);
    assert_eq!(family.store.tables().tasks.len(), 1);
}

// M2
#[tokio::test]
async fn what_is_tolerated_is_reported() {
    let mut family = Family::new(&tolerating("20%"), CHILD, lines(10)).await;
    family.answers = without(&[2, 7]);
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    let report = family.report();
    assert_eq!((&report["done"], &report["failed"]), (&json!(8), &json!(2)));
    let errors = report["errors"].as_array().unwrap();
    assert_eq!((&errors[0]["index"], &errors[1]["index"]), (&json!(2), &json!(7)));
    assert_eq!(errors[0]["order_id"], json!(Family::id(2, 0)));
    assert!(errors[0]["message"].as_str().unwrap().contains("`pick` failed"));
    assert_eq!((&report["items"][1], &report["items"][2]), (&json!({"box": 1}), &Value::Null));

    let mut family = Family::new(&tolerating("19.99%"), CHILD, lines(10)).await;
    family.answers = without(&[2, 7]);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.parent().reason.unwrap().contains("2 of 10 orders failed, and 1 are tolerated"));
}

#[tokio::test]
async fn an_item_whose_input_is_unfit_fails_alone() {
    let mut bad = lines(10);
    bad[3] = json!({"colour": "red"});
    bad[5] = json!({"sku": 5});
    let mut family = Family::new(&tolerating("20%"), CHILD, bad.clone()).await;
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    let errors = &family.report()["errors"];
    assert!(errors[0]["message"].as_str().unwrap().contains("sku"), "{errors}");
    assert!(errors[1]["message"].as_str().unwrap().contains("the input of `child` is refused: `/sku`"), "{errors}");
    assert_eq!((errors[0].get("order_id"), family.phases().len()), (None, 8));

    let mut family = Family::new(PARENT, CHILD, bad).await;
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.phases().values().all(|phase| *phase == Phase::Undone));
}

#[tokio::test]
async fn a_caught_failure_waits_for_those_that_are_open() {
    let catches = PARENT.replace("at_once = 3", "at_once = 3\ncatch = \"error.kind == 'children'\"");
    let catches =
        catches.replace("output = { done = \"${outputs.lines.done}\", failed = \"${outputs.lines.failed}\" }\n", "");
    let catches = catches.replace("[\"lines\"]", "[\"lines?\"]").replace("${outputs.lines}", "${errors.lines.message}");
    let mut family = Family::new(&catches, CHILD, lines(9)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(0) => failed(),
        Some(_) => silent(request),
        None => good(request),
    });
    family.after(5).await;
    let open = |family: &Family| {
        let is_open = |phase: &&Phase| matches!(phase, Phase::Forward | Phase::Undoing);
        family.phases().values().filter(is_open).count()
    };
    assert!(open(&family) > 0);
    for second in 0..120 {
        family.after(1).await;
        match &family.parent().steps[1].state {
            State::Waiting { .. } => assert!(second < 119, "it waits for ever"),
            _ => break,
        }
    }
    assert_eq!(open(&family), 0, "{:?}", family.phases());
    family.after(5).await;
    assert_eq!((family.parent().phase, &family.parent().steps[1].state), (Phase::Processed, &State::Caught));
    assert!(family.phases().values().all(|phase| *phase != Phase::Forward), "{:?}", family.phases());
}

#[tokio::test]
async fn a_resubmission_takes_the_failed_items_only() {
    // Those that stopped go on, and those that undid themselves have another order.
    for (child_text, made) in [(on_error(CHILD), 0), (CHILD.to_owned(), 1)] {
        let mut family = Family::new(&on_error(&tolerating("50%")), &child_text, lines(4)).await;
        family.answers = without(&[0, 1, 2]);
        family.after(60).await;
        assert_eq!(family.parent().phase, Phase::Error);
        let before = family.count("do pick 3");
        family.answers = Box::new(good);
        assert!(matches!(family.resubmit().await, operator::Outcome::Applied(_)));
        family.after(60).await;
        assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
        for item in 0..3 {
            let child = family.child(item, made).unwrap_or_else(|| panic!("{item} {made}: {:?}", family.phases()));
            assert_eq!((child.phase, child.parent.unwrap().round), (Phase::Processed, 1));
        }
        assert_eq!(family.count("do pick 3"), 1.max(before), "what was done is not done again");
        assert_eq!(family.report()["done"], json!(4));
        // All that ever began is covered by an undo.
        family.act(What::Undo).await;
        family.after(120).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert!(family.phases().values().all(|phase| *phase == Phase::Undone), "{:?}", family.phases());
    }
}

// A late instance asks again for a round that has come and failed.
#[tokio::test]
async fn an_order_is_asked_once_for_each_round() {
    let mut family = Family::new(&on_error(PARENT), &on_error(CHILD), lines(1)).await;
    family.answers = without(&[0]);
    family.after(30).await;
    family.resubmit().await;
    family.after(30).await;
    let child = family.child(0, 0).unwrap();
    assert_eq!((child.phase, child.parent.as_ref().unwrap().round), (Phase::Error, 1));
    let asked = Event::Asked { round: 1, wish: child::Wish::Resubmit };
    family.handle(&child.id, asked).await;
    assert_eq!(family.child(0, 0).unwrap().version, child.version);
}

// M2
#[tokio::test]
async fn a_cancel_goes_down_and_a_late_creator_makes_nothing() {
    let mut family = Family::new(PARENT, CHILD, lines(9)).await;
    family.answers = Box::new(silent);
    family.play().await;
    assert_eq!(family.phases().len(), 3);
    family.act(What::Cancel).await;
    family.after(120).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.phases().values().all(|phase| *phase == Phase::Undone));
    assert_eq!(family.phases().len(), 3);

    let mut family = Family::new(PARENT, CHILD, lines(9)).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    let late = family.parent();
    assert_eq!(late.steps[1].kids.as_ref().unwrap().items.as_ref().unwrap().count(|item| item == Item::Open), 3);
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.act(What::Cancel).await;
    family.after(120).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    let stored = family.store.tables().tasks.insert(parent(), late.clone()).unwrap();
    let again = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    drop(again.handle(vec![(parent(), Event::Wake { seen: late.version - 1, hops: 0 })]).await);
    family.store.tables().tasks.insert(parent(), stored);
    assert_eq!(family.phases().values().filter(|phase| **phase == Phase::Undone).count(), 3);
    assert_eq!(family.count("do pick"), 0);
}

#[tokio::test]
async fn a_pause_goes_down_and_ends_with_the_parents() {
    let mut family = Family::new(PARENT, CHILD, lines(9)).await;
    family.answers = Box::new(silent);
    family.play().await;
    family.act(What::Pause).await;
    let paused = |family: &Family| (0..3).filter(|item| family.child(*item, 0).unwrap().paused_at.is_some()).count();
    assert_eq!(paused(&family), 3);
    family.after(120).await;
    assert_eq!((paused(&family), family.phases().len()), (3, 3));
    family.answers = Box::new(good);
    family.act(What::Resume).await;
    assert_eq!(paused(&family), 0);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent());
}

#[tokio::test]
async fn every_lost_message_is_made_up_for() {
    let mut family = Family::new(PARENT, CHILD, lines(9)).await;
    family.loses_hints = true;
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Forward);
    for _ in 0..12 {
        family.open.clear();
        family.after(60).await;
    }
    assert_eq!(family.parent().phase, Phase::Processed);
    assert_eq!(family.count("do pick"), 9);
}

// The parent's record is saved, and the instance that was to make the children dies.
#[tokio::test]
async fn children_that_were_not_made_are_made_later() {
    let mut family = Family::new(PARENT, CHILD, lines(9)).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    assert!(family.phases().is_empty());
    family.store.creates_none.store(false, Ordering::Relaxed);
    let seen = family.parent().version - 1;
    family.handle(&parent(), Event::Wake { seen, hops: 0 }).await;
    assert_eq!(family.phases().len(), 3);
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed);

    let mut family = Family::new(PARENT, CHILD, lines(9)).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed, "its own hint finds that they are not there");
}

#[tokio::test]
async fn one_that_cannot_be_undone_does_not_hold_up_the_others() {
    let child = CHILD.replace("undo = { agent = \"x\" }", "");
    let child = format!(
        "{child}\n[[step]]\nname = \"final\"\nafter = [\"pick\"]\nwhen = \"input.n == 1\"\nagent = \"x\"\ntimeout = \"10s\"\nirreversible = true\n"
    );
    let mut family = Family::new(PARENT, &child, lines(5)).await;
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    family.act(What::Undo).await;
    family.after(120).await;
    let own = family.parent();
    assert_eq!((own.phase, &own.steps[1].state), (Phase::UndoError, &State::UndoFailed), "{:?}", own.log);
    assert!(own.reason.as_ref().unwrap().contains("1 orders of the list have done what cannot be undone"));
    let phases = family.phases();
    assert_eq!(phases.iter().filter(|(_, phase)| **phase == Phase::Undone).count(), 4, "{phases:?}");
    family.act(What::Skip { step: None }).await;
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

// They wait for people, which costs their parent no write a second.
#[tokio::test]
async fn undos_that_stopped_are_not_written_down_again_and_again() {
    let mut family = Family::new(PARENT, CHILD, lines(5)).await;
    family.stuck = vec![1, 3];
    family.after(5).await;
    family.act(What::Undo).await;
    family.after(60).await;
    let (own, items) = (family.parent(), family.items());
    assert_eq!((own.phase, items.count(|item| item == Item::Stuck)), (Phase::Undoing, 2), "{:?}", family.phases());
    assert_eq!(items.count(|item| item == Item::Undone), 3);
    family.after(60).await;
    assert!(family.parent().version <= own.version + 2, "{} {}", own.version, family.parent().version);
}

#[tokio::test]
async fn an_unreadable_child_holds_up_no_other() {
    let mut family = Family::new(PARENT, CHILD, lines(6)).await;
    *family.store.unreadable.lock().unwrap() = Some(Family::id(1, 0));
    family.after(5).await;
    let done = family.items().count(|item| item == Item::Done);
    assert_eq!((family.parent().phase, done), (Phase::Forward, 5));
    *family.store.unreadable.lock().unwrap() = None;
    family.after(200).await;
    assert_eq!(family.parent().phase, Phase::Processed);
}

#[tokio::test]
async fn an_unreadable_child_holds_up_no_other_undo() {
    let mut family = Family::new(PARENT, CHILD, lines(6)).await;
    family.after(5).await;
    *family.store.unreadable.lock().unwrap() = Some(Family::id(4, 0));
    family.act(What::Undo).await;
    family.after(30).await;
    let items = family.items();
    assert_eq!((items.count(|item| item == Item::Undone), items.get(4)), (5, Item::Stuck));
    *family.store.unreadable.lock().unwrap() = None;
    family.after(1000).await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

// Its record has expired, so nothing can be put in its place.
#[tokio::test]
async fn the_undo_of_an_order_that_is_gone_stops_for_a_person() {
    let mut family = Family::new(PARENT, CHILD, lines(4)).await;
    family.after(5).await;
    family.store.tables().tasks.remove(&Family::id(2, 0));
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.act(What::Undo).await;
    family.after(3600 + 900).await;
    let own = family.parent();
    assert_eq!((own.phase, family.items().get(2)), (Phase::UndoError, Item::Stuck), "{:?}", own.log);
    assert_eq!(family.items().count(|item| item == Item::Undone), 3);
}

#[tokio::test]
async fn an_order_of_somebody_else_is_not_taken_for_an_items() {
    let mut family = Family::new(PARENT, CHILD, lines(2)).await;
    let other =
        Task { phase: Phase::Processed, ..Task::new(submission(&Family::id(1, 0).0, false), &workflow(CHILD), at(0)) };
    family.store.tables().tasks.insert(other.id.clone(), other);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert_eq!(family.items().get(1), Item::Refused);
    assert!(family.parent().reason.unwrap().contains("this order did not start it"));
}

#[tokio::test]
async fn what_is_no_list_or_too_long_fails_the_step() {
    for (list, why) in [
        (json!("a"), "`each` is a text, and has to be a list".to_owned()),
        ((0..=MAX_ITEMS).collect(), format!("`each` has {} items, and the limit is {MAX_ITEMS}", MAX_ITEMS + 1)),
    ] {
        let mut family = Family::new(PARENT, CHILD, list).await;
        family.after(30).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert!(family.parent().reason.unwrap().contains(&why), "{why}");
        assert!(family.phases().is_empty());
    }
}

#[tokio::test]
async fn a_batch_is_one_order() {
    let batches = PARENT.replace("${item.sku}", "${item.map(x, x.sku).join(',')}");
    let batches = batches.replace("at_once = 3", "at_once = 3\nbatch = 4");
    let mut family = Family::new(&batches, CHILD, lines(10)).await;
    family.after(3).await;
    assert_eq!((family.parent().phase, family.phases().len()), (Phase::Processed, 3), "{:?}", family.parent().reason);
    let child = family.child(2, 0).unwrap();
    assert_eq!(family.store.order(&child).await.unwrap().unwrap().input["sku"], json!("s8,s9"));
}

// At most 2N/at_once saves, and a record of less than 16 KB.
#[tokio::test]
async fn a_long_list_costs_its_order_few_writes_and_little_room() {
    for (total, at_once) in [(10, 10), (1000, 10), (10_000, 100)] {
        let text = tolerating("100%").replace("at_once = 3", &format!("at_once = {at_once}"));
        // Without what would be kept beside the record.
        let text = text.replace(
            "workflow = \"child\"",
            "workflow = \"child\"\noutput = { done = \"${answer.done}\", failed = \"${answer.failed}\" }",
        );
        let numbers: Value = (0..total).collect();
        let text = text.replace("${item.sku}", "s");
        let mut family = Family::new(&text, CHILD, numbers).await;
        family.answers = Box::new(|request| match request.input["n"].as_u64() {
            Some(n) if n % 33 == 5 => failed(),
            _ => good(request),
        });
        let mut most = 0;
        for _ in 0..600 {
            family.after(1).await;
            most = most.max(serde_json::to_string(&family.parent()).unwrap().len());
            if family.parent().phase != Phase::Forward {
                break;
            }
        }
        let own = family.parent();
        assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
        let seconds = family.now.load(Ordering::Relaxed) / 1000;
        println!("{total} items, {at_once} at once: {} saves in {seconds} s, at most {most} bytes", own.version);
        assert!(own.version <= 2 * total / at_once + u64::try_from(seconds).unwrap() + 5, "{}", own.version);
        assert!(most < 16 * 1024, "{most} bytes");
    }
}

// A record stays as long as that of its parent.
#[tokio::test]
async fn children_expire_after_their_parent() {
    let mut family = Family::new(PARENT, CHILD, lines(230)).await;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed);
    let released = |item: &usize| family.child(*item, 0).unwrap().parent.unwrap().released;
    assert_eq!((0..230).filter(released).count(), 230);
}

/// A list of many open orders, without what would be kept beside the record.
fn wide(at_once: usize) -> String {
    let output = "workflow = \"child\"\noutput = { done = \"${answer.done}\", failed = \"${answer.failed}\" }";
    PARENT.replace("at_once = 3", &format!("at_once = {at_once}")).replace("workflow = \"child\"", output)
}

// Not each end is a reason to read all the orders that are open, nor to read the parent's record.
#[tokio::test]
async fn an_item_costs_a_few_reads_and_one_hint() {
    let mut family = Family::new(&wide(50), CHILD, lines(1000)).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    let [together, alone] = family.store.read.each_ref().map(|count| count.load(Ordering::Relaxed));
    let (saves, looks) = (family.parent().version, family.looks);
    println!("{together} reads together, {alone} alone, {saves} saves, {looks} looks");
    assert!(together <= 2500, "{together}");
    assert!(alone <= 100, "{alone}");
    assert!(saves <= 2 * 1000 / 50 + 5, "{saves}");
    assert!(looks as u64 <= saves + 5, "{looks}");
}

// Of two hints at once both would read all that is open, and only one of them could write what it finds. If that one finds too little, it
// looks again, because the other's order may have ended meanwhile.
#[tokio::test]
async fn of_two_hints_at_once_one_reads_what_is_open() {
    for (ended, looks) in [(0, 2), (60, 1)] {
        let mut family = Family::new(&wide(100), &CHILD.replace("10s", "600s"), lines(100)).await;
        family.answers = Box::new(silent);
        family.play().await;
        for item in 0..ended {
            let ends = vec![(Family::id(item, 0), Event::Reply(family.held(item)))];
            assert!(family.engine.handle(ends).await[0].is_ok());
        }
        let before = family.store.read[0].load(Ordering::Relaxed);
        let hint = |seen| family.engine.handle(vec![(parent(), Event::Hint { seen, part: 0, step: None })]);
        let (one, other) = tokio::join!(hint(56), hint(66));
        assert!(one[0].is_ok() && other[0].is_ok());
        // The parent's record is read, too.
        let read = family.store.read[0].load(Ordering::Relaxed) - before;
        assert_eq!(read / 100, looks, "{ended} have ended: {read}");
    }
}

// Neither is the first of those that are open, nor the last, and nothing else ends.
#[tokio::test]
async fn an_end_that_is_no_reason_to_read_is_written_within_two_seconds() {
    let mut family = Family::new(&wide(50), CHILD, lines(100)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(3) | None => good(request),
        Some(_) => silent(request),
    });
    // The look that the beginning arranged has come and gone.
    family.play().await;
    let reply = family.held(4);
    family.after(5).await;
    assert_eq!(family.items().get(3), Item::Done);
    assert_eq!(family.items().get(4), Item::Open);
    family.handle(&Family::id(4, 0), Event::Reply(reply)).await;
    family.after(2).await;
    assert_eq!(family.items().get(4), Item::Done);
}

// Whichever ends last, it is not left to the look of a second later.
#[tokio::test]
async fn the_last_order_of_a_long_list_ends_it_at_once() {
    for last in [0, 17, 40, 49] {
        let mut family = Family::new(&wide(50), CHILD, lines(50)).await;
        family.answers = Box::new(move |request| match request.input["n"].as_u64() {
            Some(n) if n == last || n > 30 => silent(request),
            _ => good(request),
        });
        family.play().await;
        assert_eq!(family.items().count(|item| item == Item::Open), if last > 30 { 19 } else { 20 });
        for item in (31..50).filter(|item| *item != last as usize).chain([last as usize]) {
            assert_eq!(family.parent().phase, Phase::Forward);
            let reply = family.held(item);
            family.handle(&Family::id(item, 0), Event::Reply(reply)).await;
            family.play().await;
        }
        assert_eq!(family.parent().phase, Phase::Processed, "{last}");
    }
}

const CALL: &str = r#"
name = "parent"
config = { shop = "s1" }
[[step]]
name = "pay"
agent = "x"
timeout = "10s"
after = []
undo = { agent = "x" }
[[step]]
name = "lines"
after = ["pay"]
each = "${input.lines}"
at_once = 3
agent = "x"
timeout = "10s"
retry = { max = 1, backoff = [] }
with = { n = "${index}", sku = "${item.sku}", paid = "${outputs.pay.receipt.id}", shop = "${config.shop}" }
output = { box = "${answer.box}" }
undo = { agent = "x", with = { n = "${index}", box = "${output.box}" } }
"#;

/// Answers of a call: `pay` gets a receipt, and the call of this item is refused.
fn call_without(item: Option<u64>) -> Box<dyn Fn(&Request) -> Outcome + Send> {
    Box::new(move |request| match request.input["n"].as_u64() {
        n if n.is_some() && n == item => failed(),
        Some(n) => done(json!({"box": n * 10, "more": "x"})),
        None => done(json!({"receipt": {"id": "r7", "more": "x"}, "more": "x"})),
    })
}

#[tokio::test]
async fn a_single_call_is_made_for_each_item() {
    let mut family = Family::new(CALL, CHILD, lines(7)).await;
    family.answers = call_without(None);
    family.after(5).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
    let items: Value = (0..7).map(|n| json!({"box": n * 10})).collect();
    assert_eq!(family.report(), json!({"total": 7, "done": 7, "failed": 0, "errors": [], "items": items}));
    assert_eq!((family.count("do lines"), family.most_open), (7, 3));
    let child = family.child(4, 0).unwrap();
    assert_eq!((child.workflow.as_str(), child.parent.clone().unwrap().item), ("parent.lines", Some(4)));
    // No more of its parent than the call names.
    let input = json!({"item": {"sku": "s4"}, "index": 4, "outputs": {"pay": {"receipt": {"id": "r7"}}}});
    assert_eq!(family.store.order(&child).await.unwrap().unwrap().input, input);
    // An instance that knows nothing yet finds the definition.
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    assert!(family.engine.workflow(&child.workflow_hash).await.unwrap().of_item);
}

#[tokio::test]
async fn a_call_that_fails_undoes_those_that_were_made() {
    let mut family = Family::new(CALL, CHILD, lines(20)).await;
    family.answers = call_without(Some(1));
    family.after(60).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Undone);
    assert!(own.reason.as_ref().unwrap().contains("1 of 20 orders failed"), "{:?}", own.reason);
    let made = family.phases().len();
    assert!((3..=20).contains(&made) && family.phases().values().all(|phase| *phase == Phase::Undone));
    // What was refused left nothing that its undo could name.
    for n in (0..made).filter(|n| *n != 1) {
        assert_eq!(family.count(&format!("do lines {n}")), family.count(&format!("undo lines {n}")), "{n}");
    }
    assert!(family.asked.iter().all(|asked| asked != "undo lines 1"), "{:?}", family.asked);
    assert_eq!(family.asked.last().unwrap(), "undo pay");
}

// An order of a call does not stop for a person, whatever the workflow says.
#[tokio::test]
async fn a_call_without_with_gets_the_item_and_a_long_answer_fails_nothing() {
    let text = on_error(&CALL.replace("with = { n", "#").replace("at_once = 3", "at_once = 3\ntolerate = \"40%\""));
    let text = text.replace("undo = { agent = \"x\", #", "#").replace("output =", "#");
    let text = text.replace("undo = { agent = \"x\", with = { n = \"${index}\", box = \"${output.box}\" } }", "");
    let items: Value = (0..5).map(|n| json!({"n": n, "long": "x".repeat(20)})).collect();
    let mut family = Family::new(&text, CHILD, items).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(n) if request.input["long"].as_str().is_none_or(|long| long.len() != 20) || n == 3 => failed(),
        Some(2) => done(json!("y".repeat(5000))),
        Some(n) => done(json!(n)),
        None => done(json!(null)),
    });
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    assert_eq!(family.report()["items"], json!([0, 1, null, null, 4]));
    assert_eq!((family.report()["failed"].as_u64(), family.child(3, 0).unwrap().phase), (Some(1), Phase::Undone));
}

fn give(inputs: &[(usize, Value)]) -> What {
    What::ResubmitItems { step: None, inputs: inputs.iter().cloned().collect() }
}

fn stopping() -> String {
    tolerating("0%").replace("name = \"lines\"", "name = \"lines\"\non_failure = \"error\"")
}

// An order that undid itself is made anew, one that stopped is undone first, and an item that never had one gets its first.
#[tokio::test]
async fn a_failed_item_gets_another_input() {
    for (child, item, made) in [(CHILD.to_owned(), 1, 1), (on_error(CHILD), 1, 1), (CHILD.to_owned(), 0, 0)] {
        let (mut unfit, bad) = (lines(3), item == 1);
        if !bad {
            unfit[0]["sku"] = json!(5);
        }
        let mut family = Family::new(&stopping(), &child, unfit).await;
        family.answers =
            Box::new(move |request| if bad && request.input["sku"] == "s1" { failed() } else { good(request) });
        family.after(30).await;
        assert_eq!(family.parent().phase, Phase::Error, "{:?}", family.parent().reason);
        let input = json!({"sku": "other", "n": 70});
        for (wrong, why) in [
            (give(&[(2, input.clone())]), "no such item that has failed"),
            (give(&[(99, input.clone())]), "no such item that has failed"),
            (give(&[(item, json!({"sku": 5}))]), "is refused by the `[input]`"),
            (give(&[(item, json!(["a"]))]), "is refused by the `[input]`"),
            (give(&[(item, json!({"sku": "x".repeat(17_000)}))]), "is refused by the `[input]`"),
        ] {
            match family.act(wrong).await {
                operator::Outcome::NotAllowed { why: found } => assert!(found.to_string().contains(why), "{found}"),
                other => panic!("{other:?}"),
            }
        }
        let seen = family.parent().version;
        let act = |seen| Act { what: give(&[(item, input.clone())]), by: "ann".into(), reason: "typo".into(), seen };
        let done = family.engine.act(vec![(parent(), act(Some(seen)))]).await.remove(0).unwrap();
        assert!(matches!(done, operator::Outcome::Applied(_)), "{done:?}");
        let again = family.engine.act(vec![(parent(), act(Some(seen)))]).await.remove(0).unwrap();
        assert!(matches!(again, operator::Outcome::Repeated(_)), "{again:?}");
        family.take();
        family.answers =
            Box::new(move |request| if bad && request.input["sku"] == "s1" { failed() } else { good(request) });
        // The instance that knows it dies.
        family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
        family.after(90).await;
        let own = family.parent();
        assert_eq!(own.phase, Phase::Processed, "{:?}", own.reason);
        let child = family.child(item, made).unwrap();
        assert_eq!(family.store.order(&child).await.unwrap().unwrap().input, input);
        assert_eq!(family.report()["items"][item], json!({"box": 70}));
        if made == 1 {
            assert_eq!(family.child(item, 0).unwrap().phase, Phase::Undone);
        }
        let said = own.log.iter().find_map(|entry| entry.4.as_ref().filter(|text| text.contains("another input")));
        assert!(
            said.unwrap().contains(&format!("ann: typo (with another input for item {item} of `lines`)")),
            "{said:?}"
        );
        // An undo of the parent reaches the new order.
        family.act(What::Undo).await;
        family.after(60).await;
        assert_eq!((family.parent().phase, family.child(item, made).unwrap().phase), (Phase::Undone, Phase::Undone));
    }
}

#[tokio::test]
async fn what_cannot_be_undone_keeps_its_input() {
    let child = format!(
        "{}\n[[step]]\nname = \"final\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\nirreversible = true\nwith = {{ n = \"${{input.n}}\" }}\nretry = {{ max = 1, backoff = [] }}\n",
        on_error(CHILD)
    );
    let mut family = Family::new(&stopping(), &child, lines(3)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(1) if request.step == "final" => failed(),
        _ => good(request),
    });
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Error);
    let outcome = family.act(give(&[(1, json!({"sku": "y", "n": 8}))])).await;
    let operator::Outcome::NotAllowed { why } = outcome else { panic!("{outcome:?}") };
    assert!(why.to_string().contains("has done what cannot be undone"), "{why}");
}

// Of a call, it is the item that is another; the rest is as the file says.
#[tokio::test]
async fn a_call_for_a_failed_item_is_made_with_another_item() {
    let text = CALL.replace("name = \"lines\"", "name = \"lines\"\non_failure = \"error\"");
    let mut family = Family::new(&text, CHILD, lines(3)).await;
    family.answers = Box::new(|request| match request.input["n"].as_u64() {
        Some(1) if request.input["sku"] == "s1" => failed(),
        Some(n) => done(json!({"box": [n, request.input["sku"], request.input["paid"]]})),
        None => done(json!({"receipt": {"id": "r7"}})),
    });
    family.after(30).await;
    assert_eq!(family.parent().phase, Phase::Error, "{:?}", family.parent().reason);
    family.act(give(&[(1, json!({"sku": "other"}))])).await;
    family.after(90).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    assert_eq!(family.report()["items"][1], json!({"box": [1, "other", "r7"]}));
    assert_eq!(family.report()["items"][2], json!({"box": [2, "s2", "r7"]}));
}

#[tokio::test]
async fn an_undo_says_which_order_it_waits_for() {
    let mut family = Family::new(PARENT, CHILD, lines(5)).await;
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Processed);
    family.store.tables().tasks.get_mut(&Family::id(3, 0)).unwrap().phase = Phase::UndoError;
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    family.act(What::Undo).await;
    family.after(90).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Undoing);
    let error = own.steps[1].error.clone().unwrap_or_default();
    assert!(error.contains(&Family::id(3, 0).to_string()) && error.contains("has stopped"), "{error}");
}

// Whatever is lost, an item whose input was edited ends with one order, of the new input, or with nothing.
#[tokio::test]
async fn whatever_is_lost_an_edited_item_has_the_effects_of_one_input() {
    let first = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in first.map_or(0..60, |seed: u64| seed..seed + 1) {
        let mut state = seed.wrapping_mul(2).wrapping_add(1);
        let mut draw = move |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let child = if seed % 2 == 0 { CHILD.to_owned() } else { on_error(CHILD) };
        // What was done before the failure has to be undone.
        let child = format!(
            "{child}\n[[step]]\nname = \"send\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\nretry = {{ max = 1, backoff = [] }}\nundo = {{ agent = \"x\" }}\n"
        );
        let mut family = Family::new(&stopping(), &child, lines(4)).await;
        let good = |request: &Request| done(json!({"box": request.input["sku"]}));
        family.answers = Box::new(move |request| match request.input["sku"].as_str() {
            Some("s1" | "s2") if request.step == "send" => failed(),
            _ => good(request),
        });
        for round in 0..80 {
            if family.parent().phase == Phase::Error {
                let wrong: Vec<usize> = family.items().all(Item::has_failed).collect();
                let inputs: Vec<_> = wrong.iter().map(|&n| (n, json!({"sku": format!("new{n}"), "n": n}))).collect();
                family.act(give(&inputs)).await;
            }
            if round == 60 && draw(3) == 0 {
                family.act(What::Undo).await;
            }
            family.take();
            // A message is lost, and the instance with what it knew.
            if draw(3) == 0 {
                let place = draw(8) as usize;
                if family.open.get(place).is_some_and(|(_, effect)| matches!(effect, Effect::Wake(..))) {
                    family.open.remove(place);
                }
                family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
            }
            family.store.creates_none.store(draw(4) == 0, Ordering::Relaxed);
            family.after(1 + draw(20) as i64).await;
        }
        family.store.creates_none.store(false, Ordering::Relaxed);
        family.after(1900).await;
        let own = family.parent();
        assert!(matches!(own.phase, Phase::Processed | Phase::Undone), "seed {seed}: {:?} {:?}", own.phase, own.reason);
        for item in 0..4 {
            let orders: Vec<Task> = (0..3).filter_map(|made| family.child(item, made)).collect();
            let standing: Vec<&Task> = orders.iter().filter(|task| task.phase != Phase::Undone).collect();
            assert_eq!(standing.len(), usize::from(own.phase == Phase::Processed), "seed {seed}, item {item}");
            for task in standing {
                let sku = family.store.order(task).await.unwrap().unwrap().input["sku"].clone();
                let wanted = if item == 1 || item == 2 { format!("new{item}") } else { format!("s{item}") };
                assert_eq!(sku, json!(wanted), "seed {seed}, item {item}");
            }
        }
    }
}

// The instance that makes an order stands still for an hour, and the parent is paused meanwhile.
#[tokio::test]
async fn an_order_that_is_made_late_is_paused_with_its_parent() {
    let mut family = Family::new(PARENT, CHILD, lines(1)).await;
    let (store, now) = (Arc::clone(&family.store), Arc::clone(&family.now));
    let stall = move || {
        now.fetch_add(3_600_000, Ordering::Relaxed);
        let mut tables = store.tables();
        let own = tables.tasks.get_mut(&parent()).unwrap();
        assert_eq!(own.steps[1].kids.as_ref().unwrap().items.as_ref().unwrap().get(0), Item::Open);
        (own.paused_at, own.version) = (Some(at(3_600)), own.version + 1);
    };
    *family.store.stall.lock().unwrap() = Some(Box::new(stall));
    family.play().await;
    let child = family.child(0, 0).unwrap();
    assert!(child.paused_at.is_some() && child.parent.unwrap().paused);
    assert_eq!(family.count("do pick"), 0);
}

/// The pause of the parent has ended, and no message said so to its children.
fn unpaused_alone(family: &mut Family) {
    let due = family.engine.now();
    family.change(&parent(), |own| (own.paused_at, own.due, own.version) = (None, Some(due), own.version + 1));
}

// The message that ends a pause may be lost. What a person has paused stays so.
#[tokio::test]
async fn a_look_resumes_what_the_parents_pause_left() {
    for undo in [false, true] {
        let mut family = Family::new(PARENT, CHILD, lines(2)).await;
        family.answers = Box::new(silent);
        family.play().await;
        if undo {
            family.act(What::Cancel).await;
            family.play().await;
        }
        family.act(What::Pause).await;
        for what in [What::Resume, What::Pause] {
            let act = Act { what, by: "ann".into(), reason: "r".into(), seen: None };
            drop(family.engine.act(vec![(Family::id(1, 0), act)]).await);
        }
        let paused = |family: &Family| [0, 1].map(|item| family.child(item, 0).unwrap().paused_at.is_some());
        family.answers = Box::new(good);
        unpaused_alone(&mut family);
        assert_eq!(paused(&family), [true, true]);
        family.after(120).await;
        assert_eq!(paused(&family), [false, true], "{undo}");
        let own = family.parent();
        let (phase, item) = if undo { (Phase::Undoing, Item::Undone) } else { (Phase::Forward, Item::Done) };
        assert_eq!((own.phase, family.items().get(0)), (phase, item));
        let waits = format!("waits for order {}, which is paused", Family::id(1, 0));
        assert_eq!(own.steps[1].error, undo.then_some(waits));
    }
}

// An order whose item has another input is undone first, and a pause may come in between.
#[tokio::test]
async fn a_look_resumes_an_order_that_another_is_to_replace() {
    let mut family = Family::new(&stopping(), &on_error(CHILD), lines(1)).await;
    family.answers = without(&[0]);
    family.after(5).await;
    assert_eq!(family.parent().phase, Phase::Error);
    (family.answers, family.undoes_nothing) = (Box::new(good), true);
    family.act(give(&[(0, json!({"sku": "other", "n": 7}))])).await;
    family.after(10).await;
    assert_eq!(family.child(0, 0).unwrap().phase, Phase::Undoing);
    family.act(What::Pause).await;
    assert!(family.child(0, 0).unwrap().paused_at.is_some());
    family.undoes_nothing = false;
    unpaused_alone(&mut family);
    family.after(200).await;
    assert_eq!((family.parent().phase, family.phases()[&(0, 0)]), (Phase::Processed, Phase::Undone));
}

/// Two lists side by side, of many open orders.
fn two_lists() -> String {
    let wide = wide(40);
    let (lines, mail) =
        (wide.find("[[step]]\nname = \"lines\"").unwrap(), wide.find("[[step]]\nname = \"mail\"").unwrap());
    let more = wide[lines..mail].replace("\"lines\"", "\"more\"");
    format!("{}{more}{}", &wide[..mail], wide[mail..].replace("[\"lines\"]", "[\"lines\", \"more\"]"))
}

fn id_of_more(item: usize) -> Id {
    child::id_of_item("acme", &parent(), "more", item, 0)
}

// A hint of an earlier version names an item, and not its list.
#[tokio::test]
async fn an_end_in_one_list_is_not_taken_for_one_in_another() {
    for (first, names_no_step) in [("lines", false), ("more", false), ("lines", true), ("more", true)] {
        let mut family = Family::new(&two_lists(), &CHILD.replace("10s", "600s"), lines(40)).await;
        (family.answers, family.names_no_step) = (Box::new(silent), names_no_step);
        family.after(5).await;
        let states = |family: &Family| {
            let own = family.parent();
            [1, 2].map(|step| own.steps[step].kids.as_ref().unwrap().items.as_ref().unwrap().get(4))
        };
        assert_eq!(states(&family), [Item::Open; 2]);
        let mut ends = [("lines", Family::id(4, 0)), ("more", id_of_more(4))];
        ends.sort_by_key(|(list, _)| *list != first);
        for (n, (list, id)) in ends.into_iter().enumerate() {
            let reply = Reply::new(id.clone(), "pick", 1, done(json!({"box": 4})));
            family.handle(&id, Event::Reply(reply)).await;
            family.after(3).await;
            let is = |this: &str| if n == 1 || this == list { Item::Done } else { Item::Open };
            assert_eq!(states(&family), [is("lines"), is("more")], "{first}");
        }
    }
}

// A busy list arranges a look with each of its saves. If that made the looks at the other list late, none would ever find its ends.
#[tokio::test]
async fn a_busy_list_does_not_hide_the_ends_of_a_quiet_one() {
    for names_no_step in [false, true] {
        let mut family = Family::new(&two_lists(), &CHILD.replace("10s", "600s"), lines(1000)).await;
        (family.answers, family.names_no_step) = (Box::new(silent), names_no_step);
        family.play().await;
        let before = family.store.read[0].load(Ordering::Relaxed);
        for tick in 0..50_u64 {
            // The first end is left to the look that the beginning of the list arranged; for the second, a look is arranged.
            if let Some(item) = [(0, 4), (30, 7)].iter().find_map(|(at, item)| (*at == tick).then_some(*item)) {
                let id = id_of_more(item);
                family.handle(&id, Event::Reply(Reply::new(id.clone(), "pick", 1, done(json!({"box": item}))))).await;
            }
            for item in (tick as usize * 20..).take(20) {
                let reply = family.held(item);
                family.handle(&Family::id(item, 0), Event::Reply(reply)).await;
            }
            family.now.fetch_add(100, Ordering::Relaxed);
            family.play().await;
            let own = family.parent();
            let [busy, quiet] = [1, 2].map(|step| own.steps[step].kids.as_ref().unwrap().items.as_ref().unwrap());
            assert!(busy.count(|item| item == Item::Done) + 20 >= tick as usize * 20, "{tick}");
            // A look at all lists, as messages of an earlier version ask for it, may find it sooner.
            for (item, found) in [(4, 9), (7, 40)] {
                let is_done = quiet.get(item) == Item::Done;
                assert!(is_done == (tick >= found) || is_done && names_no_step, "{item} at {tick}, {names_no_step}");
            }
        }
        let (saves, looks) = (family.parent().version, family.looks);
        let read = family.store.read[0].load(Ordering::Relaxed) - before;
        println!("{saves} saves, {looks} looks, {read} reads");
        // A late look reads nothing.
        assert!(names_no_step || looks as u64 <= saves + 5, "{looks} looks, {saves} saves");
        assert!(names_no_step || read as u64 <= 40 * (saves + 5), "{read} reads, {saves} saves");
    }
}

// Nothing tells the parent of it, whichever way an order failed.
#[tokio::test]
async fn a_lost_hint_of_a_failure_is_made_up_for() {
    for child in [CHILD.to_owned(), on_error(CHILD)] {
        let mut family = Family::new(&stopping(), &child, lines(2)).await;
        family.answers = without(&[1]);
        family.loses_hints = true;
        family.after(30).await;
        assert_eq!(family.parent().phase, Phase::Forward);
        assert_ne!(family.child(1, 0).unwrap().phase, Phase::Forward);
        family.after(60).await;
        let own = family.parent();
        assert_eq!((own.phase, family.items().get(1)), (Phase::Error, Item::Failed));
        assert!(own.reason.unwrap().contains("1 of 2 orders failed: order ord_"));
    }
}

// The queue of the submitter refuses the notice of a turn to undo that a child brought. The undo waits for it, also while another list is open.
#[tokio::test]
async fn the_notice_that_an_order_fails_with_its_list_is_not_lost() {
    for (text, by_sweep) in [(PARENT.to_owned(), false), (two_lists(), true)] {
        let mut family = Family::new(&text, &on_error(&CHILD.replace("10s", "600s")), lines(2)).await;
        family.change(&parent(), |own| own.reply_queue = Some("acme".into()));
        family.answers = Box::new(silent);
        family.after(3).await;
        family.told.clear();
        family.queues.refuses_notices.store(true, Ordering::Relaxed);
        let id = Family::id(1, 0);
        family.handle(&id, Event::Reply(Reply::new(id.clone(), "pick", 1, failed()))).await;
        family.play().await;
        assert_eq!((family.parent().phase, family.told.len()), (Phase::Undoing, 0));
        // The hint is delivered a second time.
        let hint = Event::Hint { seen: 1, part: 0, step: None };
        let again = family.engine.handle(vec![(parent(), hint.clone())]).await.remove(0);
        assert_eq!(again.is_ok(), by_sweep);
        family.queues.refuses_notices.store(false, Ordering::Relaxed);
        family.handle(&parent(), hint).await;
        family.play().await;
        assert_eq!(family.told.is_empty(), by_sweep);
        family.after(1300).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert_eq!(family.told.first(), Some(&NoticeKind::Failed));
        assert_eq!(family.told.last(), Some(&NoticeKind::Undone));
    }
}

// What is left of the list must not begin, and the sweep alone says that the order is too late.
#[tokio::test]
async fn a_hint_after_the_deadline_of_an_order_begins_and_ends_nothing() {
    for total in [1, 3] {
        let text = format!("deadline = \"60s\"\n{}", PARENT.replace("at_once = 3", "at_once = 1").trim_start());
        let mut family = Family::new(&text, &CHILD.replace("10s", "600s"), lines(total)).await;
        family.answers = Box::new(silent);
        family.play().await;
        let reply = family.held(0);
        family.now.store(100_000, Ordering::Relaxed);
        let before = family.parent();
        family.handle(&Family::id(0, 0), Event::Reply(reply)).await;
        family.play().await;
        family.handle(&parent(), Event::Hint { seen: before.version, part: 1, step: None }).await;
        family.play().await;
        let own = family.parent();
        assert_eq!((own.version, own.phase, family.phases().len()), (before.version, Phase::Forward, 1));
        family.after(700).await;
        assert_eq!(family.parent().phase, Phase::Undone);
        assert_eq!((family.phases().len(), family.count("do mail")), (1, 0));
        assert!(family.count("undo pick 0") > 0);
    }
}

// The records of the first hundred are released; one of the next cannot be written. That message is redelivered.
#[tokio::test]
async fn a_release_goes_on_with_the_part_that_failed() {
    let mut family = Family::new(PARENT, CHILD, lines(230)).await;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    family.answers = Box::new(|request| match request.step.as_str() {
        "mail" => Outcome::NotYet { why: "w".into() },
        _ => good(request),
    });
    family.after(3).await;
    assert_eq!(family.items().count(|item| item == Item::Done), 230);
    *family.store.unwritable.lock().unwrap() = Some(Family::id(150, 0));
    let reply = Reply::new(parent(), "mail", 1, done(json!(null)));
    family.handle(&parent(), Event::Reply(reply)).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    let released = |family: &Family| -> Vec<usize> {
        (0..230).filter(|item| family.child(*item, 0).unwrap().parent.unwrap().released).collect()
    };
    assert_eq!(released(&family), (0..200).filter(|item| *item != 150).collect::<Vec<_>>());
    *family.store.unwritable.lock().unwrap() = None;
    let again = Event::Hint { seen: family.parent().version, part: 2, step: None };
    family.handle(&parent(), again).await;
    family.play().await;
    assert_eq!(released(&family), (0..230).collect::<Vec<_>>());
}

// An order that took the place of another does not end the care for that one.
#[tokio::test]
async fn orders_of_earlier_rounds_expire_with_their_parent_too() {
    let mut family = Family::new(&stopping(), CHILD, lines(2)).await;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    family.answers = without(&[1]);
    family.after(30).await;
    for answers in [without(&[1]), Box::new(good)] {
        assert_eq!(family.parent().phase, Phase::Error);
        family.answers = answers;
        family.resubmit().await;
        family.after(60).await;
    }
    assert_eq!(family.parent().phase, Phase::Processed);
    let released = |place: &(usize, u32)| family.child(place.0, place.1).unwrap().parent.unwrap().released;
    let places: Vec<(usize, u32)> = family.phases().into_keys().collect();
    assert_eq!(places, [(0, 0), (1, 0), (1, 1), (1, 2)]);
    assert!(places.iter().all(released), "{places:?}");
}

// Whatever was wrong with it may be right by then.
#[tokio::test]
async fn a_refused_item_is_tried_again_by_a_resubmission_alone() {
    let mut family = Family::new(&stopping().replace("0%", "50%"), CHILD, lines(2)).await;
    let other =
        Task { phase: Phase::Processed, ..Task::new(submission(&Family::id(1, 0).0, false), &workflow(CHILD), at(0)) };
    family.store.tables().tasks.insert(other.id.clone(), other.clone());
    family.answers = without(&[0]);
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Error);
    assert_eq!([0, 1].map(|item| family.items().get(item)), [Item::Failed, Item::Refused]);
    family.store.tables().tasks.remove(&other.id);
    family.after(60).await;
    assert_eq!((family.items().get(1), family.child(1, 0)), (Item::Refused, None));
    family.answers = Box::new(good);
    family.resubmit().await;
    family.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed, "{:?}", family.parent().reason);
    assert_eq!((family.report()["done"].clone(), family.child(1, 0).unwrap().phase), (json!(2), Phase::Processed));
}
