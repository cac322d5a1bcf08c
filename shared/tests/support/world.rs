//! Instances over a store and queues in memory, by a clock that is a number.

use super::*;
use contract::memory::{Behind, Between};
use shared::engine::Handled;
use shared::message::Request;
use shared::ports::{Created, Error, async_trait};
use std::sync::Mutex;

/// Picks the sends that fail.
type Fails = Box<dyn FnMut(&Effect) -> bool + Send>;

/// Keeps what is sent.
#[derive(Default)]
pub struct Queues {
    pub sent: Mutex<Vec<Effect>>,
    fails: Mutex<Option<Fails>>,
}

impl Queues {
    /// From now on, the sends that match fail.
    pub fn fail(&self, which: impl FnMut(&Effect) -> bool + Send + 'static) {
        *self.fails.lock().unwrap() = Some(Box::new(which));
    }

    pub fn recover(&self) {
        *self.fails.lock().unwrap() = None;
    }

    pub fn take(&self) -> Vec<Effect> {
        std::mem::take(&mut self.sent.lock().unwrap())
    }
}

#[async_trait]
impl Messenger for Queues {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        tokio::task::yield_now().await;
        let (mut fails, mut sent) = (self.fails.lock().unwrap(), self.sent.lock().unwrap());
        let send = |effect: Effect| {
            if fails.as_mut().is_some_and(|fails| fails(&effect)) {
                return Err(away("a queue"));
            }
            sent.push(effect);
            Ok(())
        };
        effects.into_iter().map(send).collect()
    }
}

pub fn away(what: &str) -> Error {
    Error::Unavailable { what: what.into(), source: "503".into() }
}

/// Orders of one workflow, and what is between their store and its users.
pub struct World<B> {
    pub store: Arc<Behind<B>>,
    pub queues: Arc<Queues>,
    pub now: Arc<AtomicI64>,
    pub workflow: Workflow,
    /// The instance that handles what a test does not give to another one.
    pub engine: Engine,
}

impl<B: Between + Default + 'static> World<B> {
    /// Orders `ord_1` to `ord_N`, made by an instance that no longer exists.
    pub async fn new(text: &str, orders: i64) -> Self {
        let (store, queues, now) = (Arc::default(), Arc::default(), Arc::default());
        let engine = instance("s1", &store, &queues, &now, Layout::new());
        let world = Self { store, queues, now, workflow: workflow(text), engine };
        let door = world.instance("door");
        door.use_workflow(&world.workflow).await.unwrap();
        for n in 1..=orders {
            world.create(&door, n).await;
        }
        world
    }

    pub async fn create(&self, door: &Engine, n: i64) {
        let task = Task::new(submission(&format!("ord_{n}"), true), &self.workflow, at(0));
        let order = order(&task.id, n);
        assert_eq!(door.create(&order, &task).await.unwrap(), Created::New);
        assert_eq!(door.create(&order, &task).await.unwrap(), Created::Exists);
    }

    /// An instance that remembers nothing.
    pub fn instance(&self, name: &str) -> Engine {
        self.instance_with(name, Layout::new())
    }

    pub fn instance_with(&self, name: &str, pools: Layout) -> Engine {
        instance(name, &self.store, &self.queues, &self.now, pools)
    }

    /// From now on an instance without anything in memory does the work.
    pub fn restart(&mut self) {
        self.engine = self.instance("s2");
    }

    pub fn at(&self, ms: i64) {
        self.now.store(ms, Ordering::Relaxed);
    }

    pub fn pass(&self, ms: i64) {
        self.now.fetch_add(ms, Ordering::Relaxed);
    }

    /// The first order's record.
    pub fn task(&self) -> Task {
        self.store.get("ord_1")
    }

    pub async fn on(&self, event: Event) -> Result<Handled, Error> {
        self.engine.handle(vec![(self.task().id, event)]).await.remove(0)
    }

    /// The answer of the attempt of the first order that is current now.
    pub fn reply(&self, step: &str, outcome: Outcome) -> Event {
        let task = self.task();
        let attempt = task.steps[self.workflow.position(step).unwrap()].attempt;
        Event::Reply(Reply::new(task.id, step, attempt, outcome))
    }

    /// The last request for `step` that was sent.
    pub fn request(&self, step: &str) -> Request {
        let sent = self.queues.sent.lock().unwrap();
        let of = |effect: &Effect| match effect {
            Effect::Request(request) if request.step == step => Some((**request).clone()),
            _ => None,
        };
        sent.iter().rev().find_map(of).unwrap_or_else(|| panic!("no request for {step}: {sent:?}"))
    }

    /// What was sent since the last call, as `do a#1`.
    pub fn sent(&self) -> Vec<String> {
        effects(&self.queues.take())
    }
}
