//! An order that starts others, for a step or for each item of a list. A test plays all messages that are due, loses some, and sweeps.

use super::*;
use contract::memory::{Behind, Between};
use shared::engine::Handled;
use shared::message::{Request, Wake};
use shared::operator;
use shared::ports::{Created, Error};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};

#[derive(Default)]
pub struct Faults {
    /// No order is created.
    pub creates_none: AtomicBool,
    /// The record of this order cannot be written.
    pub unwritable: Mutex<Option<Id>>,
    /// This record cannot be read.
    pub unreadable: Mutex<Option<Id>>,
    /// How many records were read with others, and how many alone.
    pub read: [AtomicUsize; 2],
    /// What happens while the next order is made.
    pub stall: Mutex<Option<Box<dyn FnOnce() + Send>>>,
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
        let is_refused = match method {
            "create" => self.creates_none.load(Ordering::Relaxed),
            "save" => self.unwritable.lock().unwrap().as_ref() == Some(orders[0]),
            _ => false,
        };
        if is_refused { Err(away("the store")) } else { Ok(()) }
    }

    fn each(&self, order: &Id) -> Result<(), Error> {
        match self.unreadable.lock().unwrap().as_ref() == Some(order) {
            true => Err(Error::Corrupt { what: format!("task {order}"), why: "damaged".into() }),
            false => Ok(()),
        }
    }
}

pub struct Family {
    pub engine: Engine,
    pub store: Arc<Behind<Faults>>,
    pub queues: Arc<Queues>,
    pub now: Arc<AtomicI64>,
    /// What agents answer, forward.
    pub answers: Box<dyn Fn(&Request) -> Outcome + Send>,
    /// Messages that were sent and are not delivered yet, and when they are due.
    pub open: VecDeque<(i64, Effect)>,
    pub loses_hints: bool,
    /// Hints and looks name no step, as in messages of an earlier version.
    pub names_no_step: bool,
    /// The items whose orders cannot be undone.
    pub stuck: Vec<u64>,
    /// No undo is answered.
    pub undoes_nothing: bool,
    /// The notices that the submitter got.
    pub told: Vec<NoticeKind>,
    /// Every request, as `do pick 3`, or `do pay`.
    pub asked: Vec<String>,
    pub most_open: usize,
    /// Looks at lists that no end brings.
    pub looks: usize,
}

pub fn parent() -> Id {
    Id("ord_1".into())
}

impl Family {
    /// A parent, and the workflows of the orders below it.
    pub async fn new(parent_text: &str, below: &[(&str, &str)], input: Value) -> Self {
        let (store, queues, now) = (Arc::<Behind<Faults>>::default(), Arc::<Queues>::default(), Arc::default());
        let engine = instance("s1", &store, &queues, &now, Layout::new());
        let own = workflow(parent_text);
        engine.use_workflow(&own).await.unwrap();
        let mut pins = BTreeMap::new();
        for (name, text) in below {
            let definition = workflow(text);
            engine.use_workflow(&definition).await.unwrap();
            pins.insert((*name).to_owned(), definition.hash());
        }
        let task = Task { pins, ..Task::new(submission(&parent().0, false), &own, at(0)) };
        let order = Order { input, ..order(&parent(), 1) };
        assert_eq!(engine.create(&order, &task).await.unwrap(), Created::New);
        let open = [(0, Effect::Wake(Wake::new(&task, 0, 0), SignedDuration::ZERO))].into();
        let answers = Box::new(|request: &Request| done(json!({ "of": request.step })));
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
            asked: Vec::new(),
            most_open: 0,
            looks: 0,
        }
    }

    /// The records of the whole family expire.
    pub fn expires(&mut self) {
        self.store.tables().tasks.values_mut().for_each(|task| task.expires = true);
        // The instance so far remembers records that do not.
        self.restart();
    }

    /// One that remembers nothing.
    pub fn instance(&self) -> Engine {
        instance("s2", &self.store, &self.queues, &self.now, Layout::new())
    }

    /// The instance dies, with all that it knows.
    pub fn restart(&mut self) {
        self.engine = self.instance();
    }

    /// The same, and the record is another one.
    pub fn change(&mut self, id: &Id, change: impl FnOnce(&mut Task)) {
        change(self.store.tables().tasks.get_mut(id).unwrap());
        self.restart();
    }

    pub fn task(&self, id: &Id) -> Option<Task> {
        self.store.tables().tasks.get(id).cloned()
    }

    pub fn parent(&self) -> Task {
        self.store.get("ord_1")
    }

    pub fn take(&mut self) {
        let now = self.now.load(Ordering::Relaxed);
        let sent = self.queues.take();
        let due = |effect: &Effect| match effect {
            Effect::Wake(_, delay) => now + i64::try_from(delay.as_millis()).unwrap(),
            _ => now,
        };
        let is_look = |effect: &&Effect| matches!(effect, Effect::Wake(wake, _) if wake.hint && wake.hops > 0);
        self.looks += sent.iter().filter(is_look).count();
        self.open.extend(sent.into_iter().map(|effect| (due(&effect), effect)));
    }

    pub async fn on(&mut self, id: &Id, event: Event) -> Result<Handled, Error> {
        let answer = self.engine.handle(vec![(id.clone(), event)]).await.remove(0);
        self.take();
        let tables = self.store.tables();
        if tables.tasks.len() < 100 {
            let is_open = |task: &&Task| task.parent.is_some() && task.phase == Phase::Forward;
            self.most_open = self.most_open.max(tables.tasks.values().filter(is_open).count());
        }
        answer
    }

    pub async fn handle(&mut self, id: &Id, event: Event) {
        drop(self.on(id, event).await);
    }

    /// Delivers what is due now. A message whose handling fails is not repeated here.
    pub async fn play(&mut self) -> &mut Self {
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
                        false if self.undoes_nothing => later(),
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

    /// Lets time pass at once, delivers what is due by then, and sweeps.
    pub async fn leap(&mut self, seconds: i64) -> &mut Self {
        self.now.fetch_add(seconds * 1000, Ordering::Relaxed);
        self.play().await.sweep().await
    }

    pub async fn leaps(&mut self, count: i64, seconds: i64) -> &mut Self {
        for _ in 0..count {
            self.leap(seconds).await;
        }
        self
    }

    /// Lets time pass, second by second, and sweeps.
    pub async fn after(&mut self, seconds: i64) -> &mut Self {
        self.play().await.leaps(seconds, 1).await
    }

    async fn sweep(&mut self) -> &mut Self {
        let due: Vec<Id> = {
            let (tables, now) = (self.store.tables(), self.engine.now());
            let unreadable = self.store.unreadable.lock().unwrap();
            let is_due = |task: &&Task| task.due.is_some_and(|due| due <= now) && unreadable.as_ref() != Some(&task.id);
            tables.tasks.values().filter(is_due).map(|t| t.id.clone()).collect()
        };
        self.engine.recover(&due, 1).await.into_iter().for_each(|found| drop(found.unwrap()));
        self.take();
        self.play().await
    }

    pub async fn act(&mut self, what: What) -> operator::Outcome {
        self.act_on(&parent(), what).await
    }

    pub async fn act_on(&mut self, id: &Id, what: What) -> operator::Outcome {
        let outcome = self.engine.act(vec![(id.clone(), by_ann(what))]).await.remove(0).unwrap();
        self.take();
        outcome
    }

    pub async fn resubmit(&mut self) -> operator::Outcome {
        self.act(What::Resubmit { step: None, input: None }).await
    }
}

/// The agent stays silent: [`Family`] sends no such answer.
pub fn later() -> Outcome {
    Outcome::NotYet { why: "w".into() }
}
