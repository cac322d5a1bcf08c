//! Outputs that are too long for a task's record: where they are kept, who reads them, and what is refused.
//!
//! Method: instances over a store in memory that counts and refuses calls.

use crate::support::*;
use contract::memory::Between;
use serde_json::{Value, json};
use shared::decision::Event;
use shared::message::{MAX_OUTPUT, Outcome};
use shared::order::Id;
use shared::outputs::MAX_BESIDE;
use shared::ports::Error;
use shared::step::Direction;
use shared::task::ProcessState;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
pub struct Counting {
    puts: AtomicUsize,
    reads: AtomicUsize,
    /// How many of the next writes of an output fail.
    pub refuses: AtomicUsize,
}

impl Between for Counting {
    async fn call(&self, method: &'static str, _: &[&Id]) -> Result<(), Error> {
        match method {
            "put_output" if self.refuses.load(Ordering::Relaxed) > 0 => {
                self.refuses.fetch_sub(1, Ordering::Relaxed);
                return Err(away("the store"));
            }
            "put_output" => drop(self.puts.fetch_add(1, Ordering::Relaxed)),
            "outputs" => drop(self.reads.fetch_add(1, Ordering::Relaxed)),
            _ => {}
        }
        Ok(())
    }
}

pub type World = crate::support::World<Counting>;

impl World {
    /// An order of the workflow in `text`, whose first claims are made.
    pub async fn begun(text: &str) -> Self {
        let world = Self::new(text, 1).await;
        world.on(Event::Wake { seen: 0, hops: 0 }).await.unwrap();
        world
    }

    pub async fn wake(&self) {
        self.on(Event::Wake { seen: self.task().version, hops: 0 }).await.unwrap();
    }

    pub async fn done(&self, step: &str, output: Value) {
        self.on(self.reply(step, Outcome::Done { output })).await.unwrap();
    }

    fn error(&self, step: &str) -> String {
        self.task().steps[self.workflow.position(step).unwrap()].error.clone().unwrap_or_default()
    }

    /// Writes and reads of outputs beside records.
    pub fn counts(&self) -> (usize, usize) {
        (self.store.puts.load(Ordering::Relaxed), self.store.reads.load(Ordering::Relaxed))
    }
}

/// Steps of agent x, each after the one before it: name and the lines that it has beside.
fn chain(steps: &[(&str, &str)]) -> String {
    let mut text = "name = \"long\"\n".to_owned();
    for (n, (name, more)) in steps.iter().enumerate() {
        let after = if n == 0 { String::new() } else { format!("\"{}\"", steps[n - 1].0) };
        let work = if more.contains("value =") { "" } else { "agent = \"x\"\ntimeout = \"10s\"\n" };
        text += &format!("[[step]]\nname = \"{name}\"\nafter = [{after}]\n{work}{more}\n");
    }
    text
}

/// An output of `bytes` bytes of JSON, with an id.
fn long(bytes: usize) -> Value {
    let rest = bytes - json!({"id": 7, "rows": ""}).to_string().len();
    json!({"id": 7, "rows": "x".repeat(rest)})
}

// K6. Only what a step names is handed over, and read only for it; the record keeps where it is.
#[tokio::test]
async fn a_long_output_is_read_by_the_step_that_names_it_and_by_no_other() {
    let text = chain(&[
        ("a", "undo = { agent = \"x\", with = { id = \"${output.id}\" } }"),
        ("b", "with = { n = \"${input.n}\" }"),
        ("c", "with = { id = \"${outputs.a.id}\" }"),
        ("other", "with = { small = \"${outputs.c.small}\" }"),
        ("d", ""),
    ]);
    let mut world = World::begun(&text).await;
    world.done("a", long(MAX_BESIDE)).await;
    assert_eq!(world.counts(), (1, 0));
    assert!(serde_json::to_string(&world.task()).unwrap().len() < 2000, "the record stays small");
    assert_eq!(world.task().steps[0].beside.as_ref().map(|beside| beside.bytes), Some(MAX_BESIDE));
    assert!(world.request("b").outputs.is_empty(), "it maps what it gets");
    // What this instance wrote, it need not read.
    world.done("b", json!(null)).await;
    assert_eq!((world.request("c").input, world.counts()), (json!({"id": 7}), (1, 0)));
    // Another instance reads it once, and not for a step that names another. A step without `with` gets it whole.
    world.restart();
    world.done("c", json!({"small": true})).await;
    assert_eq!((world.request("other").input, world.counts()), (json!({"small": true}), (1, 0)));
    world.done("other", json!(null)).await;
    assert_eq!(world.counts(), (1, 1));
    assert_eq!(world.request("d").outputs["a"], long(MAX_BESIDE));
    // A redelivered request is the same.
    world.queues.take();
    world.on(Event::Wake { seen: 0, hops: 0 }).await.unwrap();
    assert_eq!((world.request("d").outputs["a"].clone(), world.counts()), (long(MAX_BESIDE), (1, 1)));
    // And so does the undo that needs it.
    world.restart();
    world.on(world.reply("d", failed())).await.unwrap();
    world.at(60_000);
    world.wake().await;
    let undo = world.request("a");
    assert_eq!((undo.direction, undo.input, undo.output), (Direction::Undo, json!({"id": 7}), None));
    assert_eq!(world.counts(), (1, 2));
}

// K6: the small path makes no further calls.
#[tokio::test]
async fn an_output_that_the_record_takes_costs_no_call() {
    let text = chain(&[("a", ""), ("b", ""), ("c", "with = { id = \"${outputs.a.id}\" }")]);
    let mut world = World::begun(&text).await;
    world.done("a", long(MAX_OUTPUT)).await;
    world.restart();
    world.done("b", json!(1)).await;
    world.done("c", json!(1)).await;
    assert_eq!((world.task().process_state(), world.counts()), (ProcessState::Processed, (0, 0)));
}

// K6: `output` and `value` may be long, too. The mapping sees the whole answer.
#[tokio::test]
async fn what_a_mapping_makes_is_kept_where_it_fits() {
    let text = chain(&[
        ("a", "output = { id = \"${answer.id}\" }"),
        ("b", "output = { all = \"${answer.rows}\" }"),
        ("c", "value = { twice = \"${outputs.b.all}${outputs.b.all}\" }"),
        ("d", "with = { size = \"${outputs.c.twice.size()}\" }"),
    ]);
    let world = World::begun(&text).await;
    world.done("a", long(MAX_BESIDE)).await;
    assert_eq!((world.task().steps[0].output.clone(), world.counts().0), (Some(json!({"id": 7})), 0));
    world.done("b", long(100_000)).await;
    let beside: Vec<_> = world.task().steps.iter().map(|step| step.beside.is_some()).collect();
    assert_eq!((beside, world.counts()), (vec![false, true, true, false], (2, 0)));
    let rows = 100_000 - json!({"id": 7, "rows": ""}).to_string().len();
    assert_eq!(world.request("d").input, json!({"size": 2 * rows}));
}

// K6: each size is checked, in words that say what to do, and nothing is called.
#[tokio::test]
async fn what_is_too_long_beside_the_record_fails_its_step() {
    let world = World::begun(&chain(&[("a", "")])).await;
    world.done("a", long(MAX_BESIDE + 1)).await;
    assert_eq!((world.counts(), world.task().process_state()), ((0, 0), ProcessState::Undoing));
    assert!(world.error("a").contains("262145 bytes; the limit is 262144: return a reference"), "{}", world.error("a"));
    // Three outputs are more than a request takes.
    let world = World::begun(&chain(&[("a", ""), ("b", "with = {}"), ("c", "with = {}"), ("d", "")])).await;
    for step in ["a", "b", "c"] {
        world.done(step, long(MAX_BESIDE)).await;
    }
    assert!(world.error("d").contains("786432 bytes together") && world.error("d").contains("write a `with`"));
    assert_eq!(world.task().steps[3].attempt, 0, "nothing was sent");
    // And thirteen more than an order keeps.
    let names: Vec<String> = (0..13).map(|n| format!("s{n}")).collect();
    let steps: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "with = {}")).collect();
    let world = World::begun(&chain(&steps)).await;
    for (n, name) in names.iter().enumerate() {
        let Value::Object(mut output) = long(MAX_BESIDE - 10) else { unreachable!() };
        output.insert("n".into(), json!(n));
        world.done(name, Value::Object(output)).await;
    }
    assert!(world.error("s12").contains("3145728 bytes together"), "{}", world.error("s12"));
    assert!(world.task().steps[12].beside.is_none());
}

// K6: an output is written before the record that names it. If the write fails, the message is redelivered.
#[tokio::test]
async fn nothing_names_an_output_that_was_not_written() {
    let world = World::begun(&chain(&[("a", ""), ("b", "")])).await;
    world.store.refuses.store(1, Ordering::Relaxed);
    let reply = world.reply("a", Outcome::Done { output: long(5000) });
    assert!(matches!(world.on(reply.clone()).await, Err(Error::Unavailable { .. })));
    assert_eq!(world.task().version, 1, "not saved");
    world.on(reply).await.unwrap();
    assert_eq!(world.request("b").outputs["a"], long(5000));
}

// K6: an output may be replicated after the record that names it. One that is gone for good fails what needs it, in
// words, so that a person can act; nothing runs without it.
#[tokio::test]
async fn a_missing_output_is_waited_for_and_then_fails_its_reader() {
    let text =
        chain(&[("a", ""), ("b", "with = {}"), ("c", "with = { id = \"${first(outputs.a.id, 0)}\" }"), ("d", "")]);
    let mut world = World::begun(&text).await;
    world.done("a", long(5000)).await;
    let stored = std::mem::take(&mut world.store.tables().outputs);
    world.restart();
    let reply = world.reply("b", done(json!(1)));
    assert!(matches!(world.on(reply.clone()).await, Err(Error::Unavailable { .. })));
    world.store.tables().outputs = stored;
    world.on(reply).await.unwrap();
    assert_eq!(world.request("c").input, json!({"id": 7}));
    // No fallback hides a loss.
    world.store.tables().outputs.clear();
    world.restart();
    world.at(400_000);
    world.wake().await;
    world.on(world.reply("c", done(json!(1)))).await.unwrap();
    assert!(world.engine.recover(&[Id("ord_1".into())], 1).await.remove(0).is_ok());
    world.at(800_000);
    world.wake().await;
    assert!(world.error("c").contains("missing from the state table"), "{:?}", world.task());
    assert_eq!(world.task().process_state(), ProcessState::Undoing);
}
