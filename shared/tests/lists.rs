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
use serde_json::{Value, json};
use shared::decision::What;
use shared::items::Items;
use shared::message::{Outcome, Reply, Request};
use shared::order::Id;
use shared::task::{Phase, Task};
use shared::workflow::child;
use std::collections::BTreeMap;

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
    fn id(item: usize, made: u32) -> Id {
        Id::derive("acme", &child::key_of_item(&parent(), "lines", item, made))
    }

    fn child_of(&self, item: usize, made: u32) -> Option<Task> {
        self.task(&Self::id(item, made))
    }

    /// The phases of all children.
    fn phases(&self) -> BTreeMap<(usize, u32), Phase> {
        let tables = self.store.tables();
        let all = (0..50).flat_map(|item| (0..3).map(move |made| (item, made)));
        all.filter_map(|(item, made)| Some(((item, made), tables.tasks.get(&Self::id(item, made))?.phase))).collect()
    }

    fn items(&self) -> Items {
        self.parent().steps[1].kids.clone().unwrap().items.unwrap()
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

async fn family_of(parent: &str, child: &str, lines: Value) -> Family {
    let mut family = Family::new(parent, &[("child", child)], json!({"lines": lines})).await;
    family.answers = Box::new(good);
    family
}

fn tolerating(part: &str) -> String {
    PARENT.replace("at_once = 3", &format!("at_once = 3\ntolerate = \"{part}\""))
}

fn silent(request: &Request) -> Outcome {
    if request.step == "pick" { later() } else { good(request) }
}

fn give(inputs: &[(usize, Value)]) -> What {
    What::ResubmitItems { step: None, inputs: inputs.iter().cloned().collect() }
}

fn stopping() -> String {
    tolerating("0%").replace("name = \"lines\"", "name = \"lines\"\non_failure = \"error\"")
}
