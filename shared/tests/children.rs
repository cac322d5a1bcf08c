//! Steps that are orders of their own: what a parent and its child do together.
//!
//! Method: the engine over a store and queues in memory. A test plays all messages that are due, loses some, and sweeps.

use crate::support::*;
use contract::memory::{Behind, Between};
use serde_json::{Value, json};
use shared::decision::{Act, Event, Refusal, What};
use shared::engine::{Engine, Handled};
use shared::message::{Effect, Outcome, Reply, Wake};
use shared::operator;
use shared::order::{Id, Order};
use shared::pools::Layout;
use shared::ports::{Created, Error, Messenger, StateStore, async_trait};
use shared::step::{Direction, State};
use shared::task::{Phase, Task};
use shared::time::SignedDuration;
use shared::workflow::child;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

const PARENT: &str = r#"
name = "parent"
output = "${outputs.line}"
[[step]]
name = "pay"
agent = "x"
timeout = "10s"
undo = { agent = "x" }
[[step]]
name = "line"
after = ["pay"]
workflow = "child"
with = { sku = "${input.sku}", paid = "${outputs.pay.of}" }
output = "${answer.sku}"
[[step]]
name = "mail"
after = ["line"]
agent = "x"
timeout = "10s"
with = { line = "${outputs.line}" }
"#;

const CHILD: &str = r#"
name = "child"
output = { sku = "${input.sku}", box = "${outputs.pick.of}" }
[input]
type = "object"
required = ["sku"]
properties = { sku = { type = "string" }, paid = {} }
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
    /// The record of this order makes no sense.
    damaged: Mutex<Option<Id>>,
}

impl Between for Faults {
    async fn call(&self, method: &'static str, _: &[&Id]) -> Result<(), Error> {
        match method == "create" && self.creates_none.load(Ordering::Relaxed) {
            true => Err(Error::Unavailable { what: "the store".into(), source: "503".into() }),
            false => Ok(()),
        }
    }

    fn each(&self, order: &Id) -> Result<(), Error> {
        match self.damaged.lock().unwrap().as_ref() == Some(order) {
            true => Err(Error::Corrupt { what: format!("order {order}"), why: "not JSON".into() }),
            false => Ok(()),
        }
    }
}

#[derive(Default)]
struct Queues(Mutex<Vec<Effect>>);

#[async_trait]
impl Messenger for Queues {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        let answers = effects.iter().map(|_| Ok(())).collect();
        self.0.lock().unwrap().extend(effects);
        answers
    }
}

/// An order that starts another one.
struct Family {
    engine: Engine,
    store: Arc<Behind<Faults>>,
    queues: Arc<Queues>,
    now: Arc<AtomicI64>,
    /// What agents answer to a step, forward.
    answers: fn(&str) -> Outcome,
    /// Messages that were sent and are not delivered yet.
    open: Vec<Effect>,
    loses_hints: bool,
    /// Every request, as `do pick`.
    asked: Vec<String>,
}

fn parent() -> Id {
    Id("ord_1".into())
}

fn sku() -> Value {
    json!({"sku": "a"})
}

impl Family {
    async fn new(parent_text: &str, child_text: &str) -> Self {
        Self::of(parent_text, &[("child", child_text)]).await
    }

    /// A parent, and the workflows of the orders below it.
    async fn of(parent_text: &str, below: &[(&str, &str)]) -> Self {
        let (store, queues, now) = (Arc::<Behind<Faults>>::default(), Arc::<Queues>::default(), Arc::default());
        let engine = instance("s1", &store, &queues, &now, Layout::new());
        let own = workflow(parent_text);
        engine.use_workflow(&own).await.unwrap();
        let mut pins = std::collections::BTreeMap::new();
        for (name, text) in below {
            let definition = workflow(text);
            engine.use_workflow(&definition).await.unwrap();
            pins.insert((*name).to_owned(), definition.hash());
        }
        let task = Task { pins, ..Task::new(submission(&parent().0, false), &own, at(0)) };
        let order = Order { input: sku(), ..order(&parent(), 1) };
        assert_eq!(engine.create(&order, &task).await.unwrap(), Created::New);
        let open = vec![Effect::Wake(Wake::new(&task, 0, 0), SignedDuration::ZERO)];
        let answers = |step: &str| done(json!({ "of": step }));
        Self { engine, store, queues, now, answers, open, loses_hints: false, asked: Vec::new() }
    }

    fn child_made(&self, made: u32) -> Option<Task> {
        let id = child::id("acme", &parent(), "line", made);
        self.store.tables().tasks.get(&id).cloned()
    }

    fn child(&self) -> Task {
        self.child_made(0).expect("the child is there")
    }

    fn parent(&self) -> Task {
        self.store.get("ord_1")
    }

    fn line(&self) -> State {
        self.parent().steps[1].state.clone()
    }

    async fn handle(&mut self, id: &Id, event: Event) -> Result<Handled, Error> {
        let answer = self.engine.handle(vec![(id.clone(), event)]).await.remove(0);
        self.open.append(&mut self.queues.0.lock().unwrap());
        answer
    }

    /// Delivers what is due until nothing is. A message whose handling fails is not repeated here.
    async fn play(&mut self) -> &mut Self {
        for _ in 0..1000 {
            let Some(place) = self.open.iter().position(|effect| !matches!(effect, Effect::Wake(_, d) if !d.is_zero()))
            else {
                return self;
            };
            match self.open.remove(place) {
                Effect::Wake(wake, _) if wake.hint && self.loses_hints => {}
                Effect::Wake(wake, _) => drop(self.handle(&wake.task_id.clone(), Event::from(&wake)).await),
                Effect::Request(request) => {
                    let forward = request.direction == Direction::Do;
                    self.asked.push(format!("{} {}", if forward { "do" } else { "undo" }, request.step));
                    let outcome = if forward { (self.answers)(&request.step) } else { done(json!(null)) };
                    if !matches!(outcome, Outcome::NotYet { .. }) {
                        let reply = Event::Reply(Reply::to(&request, outcome));
                        drop(self.handle(&request.task_id.clone(), reply).await);
                    }
                }
                _ => {}
            }
        }
        panic!("it does not end");
    }

    /// Lets time pass, delivers what is due by then, and sweeps.
    async fn after(&mut self, seconds: i64) -> &mut Self {
        self.now.fetch_add(seconds * 1000, Ordering::Relaxed);
        for effect in &mut self.open {
            if let Effect::Wake(_, delay) = effect {
                *delay = (*delay - secs(seconds)).max(SignedDuration::ZERO);
            }
        }
        self.play().await.sweep().await
    }

    async fn sweep(&mut self) -> &mut Self {
        let due: Vec<Id> = {
            let (tables, now) = (self.store.tables(), self.engine.now());
            let damaged = self.store.damaged.lock().unwrap();
            let is_due = |task: &&Task| task.due.is_some_and(|due| due <= now) && damaged.as_ref() != Some(&task.id);
            tables.tasks.values().filter(is_due).map(|t| t.id.clone()).collect()
        };
        self.engine.recover(&due, 1).await.into_iter().for_each(|found| drop(found.unwrap()));
        self.open.append(&mut self.queues.0.lock().unwrap());
        self.play().await
    }

    /// All messages on their way are lost.
    fn lose_all(&mut self) -> &mut Self {
        self.open.clear();
        self
    }

    async fn act(&mut self, id: &Id, what: What) -> operator::Outcome {
        let outcome = self.engine.act(vec![(id.clone(), by_ann(what))]).await.remove(0).unwrap();
        self.open.append(&mut self.queues.0.lock().unwrap());
        outcome
    }
}

fn on_error(text: &str) -> String {
    format!("on_failure = \"error\"\n{text}")
}

fn silent(step: &str) -> Outcome {
    if step == "pick" { Outcome::NotYet { why: "w".into() } } else { done(json!({ "of": step })) }
}

fn refusing(step: &str) -> Outcome {
    if step == "pick" { failed() } else { done(json!({ "of": step })) }
}

// L8
#[tokio::test]
async fn a_child_gets_its_input_and_its_output_goes_back() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.play().await;
    let (own, child) = (family.parent(), family.child());
    assert_eq!((own.phase, child.phase), (Phase::Processed, Phase::Processed));
    assert_eq!(child.output, Some(json!({"sku": "a", "box": "pick"})));
    assert_eq!(own.output, Some(json!("a")));
    let input = family.store.order(&child).await.unwrap().unwrap().input;
    assert_eq!(input, json!({"sku": "a", "paid": "pay"}));
    assert_eq!(family.asked, ["do pay", "do pick", "do mail"]);
    assert!(own.due.is_none() && child.due.is_none());
    // pay, the child's begin, its end with mail, and the end.
    assert_eq!(own.version, 4, "{:?}", own.log);
}

// Messages are only hints: due brings every one of them back.
#[tokio::test]
async fn every_lost_message_is_made_up_for() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.loses_hints = true;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Forward, Phase::Processed));
    family.lose_all().after(30).await;
    assert!(matches!(family.line(), State::Waiting { .. }), "the next look is later");
    family.after(60).await.after(60).await;
    assert_eq!(family.parent().phase, Phase::Processed);
}

// The parent's record is saved, and whoever was to make the child dies.
#[tokio::test]
async fn a_child_that_was_not_made_is_made_later() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    assert!(matches!(family.line(), State::Waiting { .. }) && family.child_made(0).is_none());
    family.store.creates_none.store(false, Ordering::Relaxed);
    // The message comes again.
    let seen = family.parent().version - 1;
    drop(family.handle(&parent(), Event::Wake { seen, hops: 0 }).await.unwrap());
    assert!(family.child_made(0).is_some());
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);

    let mut family = Family::new(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.lose_all().after(90).await.after(90).await;
    assert_eq!(family.parent().phase, Phase::Processed);
}

#[tokio::test]
async fn looks_become_rarer_and_cost_one_write_each() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.answers = silent;
    family.play().await;
    let before = family.parent().version;
    // The child's own step would expire otherwise.
    family.act(&family.child().id, What::Pause).await;
    for _ in 0..24 * 60 {
        family.after(60).await;
    }
    let looks = family.parent().version - before;
    assert!((80..=110).contains(&looks), "{looks} looks in a day");
    assert!(matches!(family.line(), State::Waiting { .. }));
}

#[tokio::test]
async fn a_failed_child_fails_its_step_by_the_policy() {
    // The child undoes itself, and so does its parent.
    let mut family = Family::new(PARENT, CHILD).await;
    family.answers = refusing;
    for _ in 0..4 {
        family.after(15).await;
    }
    let own = family.parent();
    assert_eq!((own.phase, family.child().phase), (Phase::Undone, Phase::Undone), "{:?}", own.reason);
    assert!(own.reason.unwrap().contains("was undone: `pick` failed"));
    assert_eq!(family.asked, ["do pay", "do pick", "undo pick", "undo pay"]);

    let catches = PARENT.replace("output = \"${answer.sku}\"", "catch = \"error.kind == 'children'\"");
    let catches = catches.replace("output = \"${outputs.line}\"\n", "").replace("[\"line\"]", "[\"line?\"]");
    let catches =
        catches.replace("with = { line = \"${outputs.line}\" }", "with = { why = \"${errors.line.message}\" }");
    let mut family = Family::new(&catches, CHILD).await;
    family.answers = refusing;
    for _ in 0..4 {
        family.after(15).await;
    }
    assert_eq!((family.parent().phase, family.line()), (Phase::Processed, State::Caught));

    // It stops, and with it its parent.
    let mut family = Family::new(&on_error(PARENT), &on_error(CHILD)).await;
    family.answers = refusing;
    family.play().await;
    let own = family.parent();
    assert_eq!((own.phase, family.child().phase), (Phase::Error, Phase::Error));
    assert!(own.reason.unwrap().contains("stopped: `pick` failed"));
}

#[tokio::test]
async fn what_failed_is_tried_again_and_what_undid_itself_is_made_anew() {
    let mut family = Family::new(&on_error(PARENT), &on_error(CHILD)).await;
    family.answers = refusing;
    family.play().await;
    family.answers = |step| done(json!({ "of": step }));
    let resubmit = What::Resubmit { step: None, input: None };
    // Its parent has counted how it ended.
    let refused = family.act(&family.child().id, resubmit.clone()).await;
    assert_eq!(refused, operator::Outcome::NotAllowed { why: Refusal::Child });
    let input = What::Resubmit { step: None, input: Some(json!({})) };
    assert_eq!(family.act(&parent(), input).await, operator::Outcome::NotAllowed { why: Refusal::ChildInput });
    family.act(&parent(), resubmit.clone()).await;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Processed, Phase::Processed));
    assert_eq!(family.child().parent.unwrap().round, 1);

    let mut family = Family::new(&on_error(PARENT), CHILD).await;
    family.answers = refusing;
    for _ in 0..3 {
        family.after(15).await;
    }
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Error, Phase::Undone));
    family.answers = |step| done(json!({ "of": step }));
    family.act(&parent(), resubmit).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert_eq!((family.child().phase, family.child_made(1).unwrap().phase), (Phase::Undone, Phase::Processed));
}

#[tokio::test]
async fn an_undo_goes_down_and_waits_for_the_child() {
    // While it runs, and after it is done.
    for (answers, ends) in
        [(silent as fn(&str) -> Outcome, Phase::Forward), (|step| done(json!({ "of": step })), Phase::Processed)]
    {
        let mut family = Family::new(PARENT, CHILD).await;
        family.answers = answers;
        family.play().await;
        assert_eq!((family.parent().phase, family.child().phase), (ends, ends));
        family.act(&parent(), What::Undo).await;
        for _ in 0..6 {
            family.after(15).await;
        }
        assert_eq!((family.parent().phase, family.child().phase), (Phase::Undone, Phase::Undone));
        assert!(family.asked.ends_with(&["undo pick".into(), "undo pay".into()]), "{:?}", family.asked);
    }
}

// Whoever was to make the child wakes up when its parent is undone.
#[tokio::test]
async fn a_child_that_comes_too_late_is_there_already_and_undone() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    let late = family.parent();
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.act(&parent(), What::Cancel).await;
    for _ in 0..6 {
        family.after(15).await;
    }
    assert_eq!(family.parent().phase, Phase::Undone);
    let child = family.child();
    assert_eq!((child.phase, child.due), (Phase::Undone, None));
    // The message that began it is delivered to an instance that still has the old record.
    let stored = family.store.tables().tasks.insert(parent(), late.clone()).unwrap();
    let again = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    let seen = late.version - 1;
    drop(again.handle(vec![(parent(), Event::Wake { seen, hops: 0 })]).await);
    family.store.tables().tasks.insert(parent(), stored);
    assert_eq!(family.child(), child, "nothing makes it run");
    assert!(!family.asked.contains(&"do pick".to_owned()), "{:?}", family.asked);
}

#[tokio::test]
async fn a_pause_goes_down_and_ends_with_the_parents() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.answers = silent;
    family.play().await;
    family.act(&parent(), What::Pause).await;
    assert!(family.child().paused_at.is_some());
    family.act(&parent(), What::Resume).await;
    assert!(family.child().paused_at.is_none());
    // A person's pause stays.
    let child = family.child().id;
    family.act(&child, What::Pause).await;
    family.act(&parent(), What::Pause).await;
    family.act(&parent(), What::Resume).await;
    assert!(family.child().paused_at.is_some());
    family.act(&child, What::Resume).await;
    // The parent's pause ends, and that does not reach the child.
    family.act(&parent(), What::Pause).await;
    let mut resumed = family.parent();
    resumed.paused_at = None;
    resumed.due = Some(at(0));
    resumed.version += 1;
    family.store.tables().tasks.insert(parent(), resumed);
    family.after(90).await.after(90).await;
    assert!(family.child().paused_at.is_none(), "the look finds it");
}

#[tokio::test]
async fn an_input_that_the_child_refuses_fails_the_step() {
    let wrong = PARENT.replace("sku = \"${input.sku}\"", "sku = 5");
    let mut family = Family::new(&wrong, CHILD).await;
    for _ in 0..3 {
        family.after(15).await;
    }
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.parent().reason.unwrap().contains("the input of `child` is refused: `/sku` "));
    assert!(family.child_made(0).is_none());
}

#[tokio::test]
async fn what_cannot_be_undone_in_a_child_stops_the_undo_of_its_parent() {
    let child = CHILD.replace("undo = { agent = \"x\" }", "irreversible = true");
    let mut family = Family::new(PARENT, &child).await;
    family.play().await;
    family.act(&parent(), What::Undo).await;
    for _ in 0..3 {
        family.after(15).await;
    }
    let own = family.parent();
    assert_eq!((own.phase, &own.steps[1].state), (Phase::UndoError, &State::UndoFailed));
    assert!(own.reason.unwrap().contains("has done what cannot be undone"));
    family.act(&parent(), What::Skip { step: None }).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

#[tokio::test]
async fn what_is_left_of_a_child_that_cannot_be_undone_is_paused() {
    let bill = "[[step]]\nname = \"bill\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\n";
    let child = CHILD.replace("undo = { agent = \"x\" }", "irreversible = true") + bill;
    let mut family = Family::new(PARENT, &child).await;
    family.answers =
        |step| if step == "bill" { Outcome::NotYet { why: "w".into() } } else { done(json!({ "of": step })) };
    family.play().await;
    family.act(&parent(), What::Cancel).await;
    for _ in 0..6 {
        family.after(15).await;
    }
    let (own, child) = (family.parent(), family.child());
    assert_eq!((own.phase, child.phase), (Phase::UndoError, Phase::Forward));
    assert!(own.reason.as_ref().unwrap().contains("has done what cannot be undone; the rest of it is paused"));
    assert!(child.paused_at.is_some() && child.parent.is_some_and(|parent| parent.paused));
    family.act(&parent(), What::Skip { step: None }).await;
    family.after(60).await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Undone, Phase::Forward));
    assert!(family.child().paused_at.is_some(), "a person decides about the rest");
}

// A record stays as long as that of its parent.
#[tokio::test]
async fn a_child_expires_after_its_parent() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    // The first one remembers the record.
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert!(family.child().parent.unwrap().released);
    // Whoever ended the parent died before it could say so.
    family.store.tables().tasks.values_mut().filter_map(|task| task.parent.as_mut()).for_each(|p| p.released = false);
    drop(family.handle(&parent(), Event::Hint { seen: 0, part: 0, step: None }).await.unwrap());
    assert!(family.child().parent.unwrap().released);
}

// An order that took the place of another does not end the care for that one.
#[tokio::test]
async fn children_of_earlier_rounds_expire_with_their_parent_too() {
    let mut family = Family::new(&on_error(PARENT), CHILD).await;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    for answers in [refusing as fn(&str) -> Outcome, refusing, |step| done(json!({ "of": step }))] {
        family.answers = answers;
        family.act(&parent(), resubmit()).await;
        for _ in 0..3 {
            family.after(15).await;
        }
    }
    assert_eq!(family.parent().phase, Phase::Processed);
    let all: Vec<(Phase, bool)> = (0..3)
        .filter_map(|made| family.child_made(made))
        .map(|task| (task.phase, task.parent.unwrap().released))
        .collect();
    assert_eq!(all, [(Phase::Undone, true), (Phase::Undone, true), (Phase::Processed, true)]);
}

/// A child that starts an order itself.
const MIDDLE: &str = r#"
name = "child"
[[step]]
name = "line"
workflow = "grandchild"
"#;

fn resubmit() -> What {
    What::Resubmit { step: None, input: None }
}

// An undo of the order at the top would not find what an order in the middle let go when it ended.
#[tokio::test]
async fn a_grandchild_expires_after_the_order_at_the_top() {
    let parent_text = PARENT.replace("output = \"${answer.sku}\"\n", "").replace("output = \"${outputs.line}\"\n", "");
    let parent_text = parent_text.replace("with = { line = \"${outputs.line}\" }", "");
    let grandchild = CHILD.replace("name = \"child\"", "name = \"grandchild\"");
    let mut family = Family::of(&parent_text, &[("child", MIDDLE), ("grandchild", &grandchild)]).await;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    family.answers =
        |step| if step == "mail" { Outcome::NotYet { why: "w".into() } } else { done(json!({ "of": step })) };
    family.play().await;
    let below = child::id("acme", &family.child().id, "line", 0);
    let released = |family: &Family, id: &Id| family.store.tables().tasks[id].parent.as_ref().unwrap().released;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Forward, Phase::Processed));
    assert_eq!(family.store.tables().tasks[&below].phase, Phase::Processed);
    let middle = family.child().id;
    family.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
    family.engine = instance("s3", &family.store, &family.queues, &family.now, Layout::new());
    drop(family.handle(&middle, Event::Wake { seen: 0, hops: 0 }).await.unwrap());
    assert!(!released(&family, &middle) && !released(&family, &below), "the order at the top still runs");
    family.act(&parent(), What::MarkDone { step: Some("mail".into()), output: json!({}) }).await;
    family.after(15).await.after(15).await;
    family.act(&parent(), What::MarkDone { step: Some("mail".into()), output: json!({}) }).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert!(released(&family, &middle) && released(&family, &below));
    // It is opened again: nothing below it may go meanwhile.
    family.act(&parent(), What::Undo).await;
    assert!(!released(&family, &middle) && !released(&family, &below));
    for _ in 0..8 {
        family.after(15).await;
    }
    assert_eq!(family.parent().phase, Phase::Undone, "{:?}", family.parent().log);
    assert!(released(&family, &middle) && released(&family, &below));
}

// A person is told of a child whose record is gone, and can go on without it.
#[tokio::test]
async fn an_undo_does_not_wait_for_ever_for_a_child_that_is_gone() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.play().await;
    let child = family.child().id;
    family.store.tables().tasks.remove(&child);
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.act(&parent(), What::Undo).await;
    for _ in 0..10 {
        family.after(15 * 60).await;
    }
    let own = family.parent();
    assert_eq!(own.phase, Phase::UndoError);
    assert!(own.reason.unwrap().contains("is gone, so what it did is not undone"));
    family.act(&parent(), What::Skip { step: None }).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

// One bad record must not take its neighbours along.
#[tokio::test]
async fn a_child_that_cannot_be_read_holds_up_its_own_step_alone() {
    let side = PARENT.replace(
        "[[step]]\nname = \"mail\"",
        "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"10m\"\n\n[[step]]\nname = \"mail\"",
    );
    let mut family = Family::new(&side, CHILD).await;
    family.answers = |step| {
        if step == "pick" || step == "side" { Outcome::NotYet { why: "w".into() } } else { done(json!({ "of": step })) }
    };
    family.play().await;
    *family.store.damaged.lock().unwrap() = Some(family.child().id);
    family.after(90).await.after(90).await;
    let own = family.parent();
    assert!(matches!(own.steps[1].state, State::Waiting { .. }), "{:?}", own.steps[1]);
    assert!(own.steps[1].error.as_ref().unwrap().contains("cannot be read"));
    let reply = Reply::new(parent(), "side", 1, done(json!({})));
    assert!(matches!(family.handle(&parent(), Event::Reply(reply)).await, Ok(Handled::Applied(_))));
    assert_eq!(family.parent().steps[2].state, State::Processed);
    family.act(&parent(), What::Cancel).await;
    for _ in 0..3 {
        family.after(60).await;
    }
    let own = family.parent();
    assert_eq!(own.phase, Phase::Undoing);
    assert!(own.steps[1].error.as_ref().unwrap().contains("cannot be read"));
    *family.store.damaged.lock().unwrap() = None;
    for _ in 0..4 {
        family.after(15 * 60).await;
    }
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Undone, Phase::Undone));
}

// The Wake of the turn waits for attempts that are under way; the child hears of the turn at once.
#[tokio::test]
async fn a_cancel_reaches_a_running_child_at_once() {
    let slow = PARENT.replacen("timeout = \"10s\"", "timeout = \"10m\"", 1);
    let mut family = Family::new(&slow, CHILD).await;
    family.answers = silent;
    family.play().await;
    family.act(&parent(), What::Cancel).await;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Undoing, Phase::Undoing));
}

// The child is made in the moment of the pause.
#[tokio::test]
async fn a_pause_holds_a_child_that_is_made_a_moment_later() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    family.act(&parent(), What::Pause).await;
    family.store.creates_none.store(false, Ordering::Relaxed);
    // The message that was to make it is delivered again.
    let seen = family.parent().version - 2;
    drop(family.handle(&parent(), Event::Wake { seen, hops: 0 }).await.unwrap());
    family.play().await;
    assert!(family.child_made(0).is_none(), "nothing begins in a pause");
    family.act(&parent(), What::Resume).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);

    // The writes to the child fail, and the person repeats the act.
    let mut family = Family::new(PARENT, CHILD).await;
    family.answers = silent;
    family.play().await;
    let seen = Some(family.parent().version);
    let pause = Act { seen, ..by_ann(What::Pause) };
    drop(family.engine.act(vec![(parent(), pause.clone())]).await);
    let mut child = family.child();
    child.paused_at = None;
    child.parent.as_mut().unwrap().paused = false;
    child.version += 1;
    family.store.tables().tasks.insert(child.id.clone(), child);
    family.engine = instance("s2", &family.store, &family.queues, &family.now, Layout::new());
    let again = family.engine.act(vec![(parent(), pause)]).await.remove(0).unwrap();
    assert!(matches!(again, operator::Outcome::Repeated(_)), "{again:?}");
    assert!(family.child().paused_at.is_some());
}

#[tokio::test]
async fn a_persons_pause_of_a_child_is_not_the_parents_to_end() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.answers = silent;
    family.play().await;
    let child = family.child().id;
    // Resumed alone, and paused again by a person.
    family.act(&parent(), What::Pause).await;
    family.act(&child, What::Resume).await;
    family.act(&child, What::Pause).await;
    family.act(&parent(), What::Resume).await;
    family.after(90).await;
    assert!(family.child().paused_at.is_some());
    // Paused by a person while its parent's pause held it.
    family.act(&child, What::Resume).await;
    family.act(&parent(), What::Pause).await;
    family.act(&child, What::Pause).await;
    family.act(&parent(), What::Resume).await;
    family.after(90).await;
    assert!(family.child().paused_at.is_some());
}

// The order was already in Error, for another step, when its child failed.
#[tokio::test]
async fn a_failure_that_came_while_the_parent_was_in_error_is_tried_again_with_it() {
    let side = PARENT.replace(
        "[[step]]\nname = \"mail\"",
        "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"10s\"\n\n[[step]]\nname = \"mail\"",
    );
    let mut family = Family::new(&on_error(&side), &on_error(CHILD)).await;
    family.answers = |step| match step {
        "side" => failed(),
        "pick" => Outcome::NotYet { why: "w".into() },
        _ => done(json!({ "of": step })),
    };
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Error, Phase::Forward));
    for _ in 0..4 {
        family.after(15).await;
    }
    assert_eq!(family.child().phase, Phase::Error);
    family.answers = |step| done(json!({ "of": step }));
    family.act(&parent(), resubmit()).await;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Processed, Phase::Processed));
}

// A queue refused the request that the save of a hint claimed: the hint comes again.
#[tokio::test]
async fn a_hint_that_comes_again_sends_what_it_had_claimed() {
    let mut family = Family::new(PARENT, CHILD).await;
    family.answers =
        |step| if step == "mail" { Outcome::NotYet { why: "w".into() } } else { done(json!({ "of": step })) };
    family.play().await;
    assert_eq!(family.asked, ["do pay", "do pick", "do mail"]);
    family.lose_all();
    drop(family.handle(&parent(), Event::Hint { seen: 0, part: 0, step: None }).await.unwrap());
    family.play().await;
    assert_eq!(family.asked, ["do pay", "do pick", "do mail", "do mail"]);
}

// It has no agent, and a person looks for it by its name all the same.
#[test]
fn a_failed_step_that_starts_an_order_is_found_by_its_name() {
    let mut bench = Bench::new(PARENT);
    bench.task.phase = shared::task::Phase::Error;
    bench.task.steps[1].state = State::Failed;
    bench.task.steps[1].error = Some("order ord_2 stopped: no such card".into());
    let found = shared::trouble::trouble(&bench.task, &bench.workflow);
    let found: Vec<_> = found.iter().map(|one| (one.step.as_str(), one.agent.as_str(), one.undo)).collect();
    assert_eq!(found, [(bench.workflow.steps[1].name.as_str(), "", false)]);
    let filter = |step: &str, error: Option<&str>| shared::filter::Filter {
        step: Some(step.into()),
        error: error.map(str::to_owned),
        ..shared::filter::Filter::default()
    };
    let fits = |filter: shared::filter::Filter| filter.fits_steps(&bench.task, &bench.workflow);
    let name = &bench.workflow.steps[1].name;
    assert!(fits(filter(name, None)) && fits(filter(name, Some("order ord_3 stopped: no such card"))));
    assert!(!fits(filter(name, Some("another"))) && !fits(filter(&bench.workflow.steps[0].name, None)));
}
