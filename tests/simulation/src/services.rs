//! The remote services: each key is applied once, an undo that comes first leaves a tombstone, and a refusal is final.
//! They report what they did to the [`crate::history`].

use crate::Defect;
use crate::history::Effects;
use crate::script::name_of;
use agent::AgentError;
use serde_json::{Value, json};
use shared::message::MAX_OUTPUT;
use shared::message::Request;
use shared::order::Id;
use shared::step::Direction;
use std::collections::{BTreeMap, BTreeSet};

/// Length of an item of a page: three pages have more than an order's record keeps of a list.
const ITEM: usize = 1500;

/// The number of the page that is asked for under `key`, if it is a page.
pub fn page_of(key: &str) -> Option<usize> {
    key.rsplit_once(":page-")?.1.parse().ok()
}

/// How many pages a service has for an order.
fn pages(id: &Id) -> usize {
    1 + id.0.bytes().map(usize::from).sum::<usize>() % 5
}

fn page(id: &Id, number: usize) -> Value {
    // One page has no items, and others follow it.
    let count = if number == 2 { 0 } else { 2 };
    (0..count).map(|n| json!([id.0, number, n, "x".repeat(ITEM)])).collect()
}

fn cursor(id: &Id, number: usize) -> Value {
    json!({ "after": [id.0, number] })
}

/// What page `number` has to be asked for with.
pub fn asked(id: &Id, number: usize) -> Value {
    if number > 1 { json!({ "after": cursor(id, number - 1) }) } else { json!({}) }
}

/// The items of all pages of an order.
pub fn collected(id: &Id) -> Value {
    (1..=pages(id)).flat_map(|number| page(id, number).as_array().cloned().unwrap_or_default()).collect()
}

#[derive(Debug, Default)]
pub struct Services {
    applied: BTreeMap<String, Value>,
    refused: BTreeSet<String>,
    undone: BTreeSet<String>,
    /// What scripted services answered under a key once they did or refused its work.
    settled: BTreeMap<String, Result<Value, AgentError>>,
    next: u64,
}

impl Services {
    /// A person does or undoes a step at the service's own console, under its agent's key. Returns the output, or
    /// `None` if it has been undone already and must not be done any more.
    pub fn by_hand(
        &mut self,
        id: &Id,
        step: &str,
        (direction, round): (Direction, u32),
        effects: &mut Effects,
    ) -> Option<Value> {
        let key = if round == 0 { format!("{id}:{step}:do") } else { format!("{id}:{step}:do:{round}") };
        match direction {
            Direction::Do if self.undone.contains(&key) => None,
            Direction::Do => Some(self.apply(id, step, key, effects)),
            Direction::Undo => {
                self.take_back(id, step, key, effects);
                Some(Value::Null)
            }
        }
    }

    fn apply(&mut self, id: &Id, step: &str, key: String, effects: &mut Effects) -> Value {
        if let Some(output) = self.applied.get(&key) {
            return output.clone();
        }
        self.next += 1;
        let mut output = json!({ "reference": format!("{step}-{}", self.next) });
        // Some are too long for the record.
        if self.next.is_multiple_of(5) {
            output["rows"] = json!("x".repeat(MAX_OUTPUT));
        }
        if let Some(number) = page_of(&key) {
            output["items"] = page(id, number);
            if number < pages(id) {
                output["next"] = cursor(id, number);
            }
        }
        effects.applied(id, step, &key);
        self.refused.remove(&key);
        self.applied.insert(key, output.clone());
        output
    }

    fn take_back(&mut self, id: &Id, step: &str, forward: String, effects: &mut Effects) {
        if self.applied.remove(&forward).is_some() {
            effects.undone(id, step, &forward);
        }
        self.undone.insert(forward);
    }

    /// What a scripted service answers without its script: work under a key is done once, and `refuses` refuses it.
    pub fn known(&mut self, request: &Request, refuses: bool) -> Option<Result<Value, AgentError>> {
        self.known_under(&request.idempotency_key, request.direction, refuses)
    }

    fn known_under(&mut self, key: &str, direction: Direction, refuses: bool) -> Option<Result<Value, AgentError>> {
        let no = |error: &str| Some(Err(AgentError::Refused { error: error.into(), status: 409, answer: None }));
        match direction {
            Direction::Undo => refuses.then(|| no("the undo was refused")).flatten(),
            Direction::Do if self.undone.contains(key) => no("the key was undone"),
            Direction::Do => {
                if let Some(known) = self.settled.get(key) {
                    return Some(known.clone());
                }
                if let Some(output) = self.applied.get(key) {
                    return Some(Ok(output.clone()));
                }
                if refuses {
                    self.refused.insert(key.to_owned());
                }
                self.refused.contains(key).then(|| no("declined")).flatten()
            }
        }
    }

    /// What a scripted service did when it answered this.
    pub fn settle(&mut self, request: &Request, answer: &Result<Value, AgentError>, effects: &mut Effects) {
        let is_done = matches!(answer, Ok(_) | Err(AgentError::Unusable { .. }));
        match request.direction {
            Direction::Undo if is_done => {
                self.take_back(&request.task_id, &request.step, request.undoes.clone().unwrap_or_default(), effects);
            }
            Direction::Undo => {}
            Direction::Do => {
                let key = request.idempotency_key.clone();
                if is_done {
                    effects.applied(&request.task_id, &name_of(request), &key);
                    self.applied.insert(key.clone(), answer.clone().unwrap_or_default());
                }
                if !matches!(answer, Err(AgentError::Transient { .. } | AgentError::NotCalled { .. })) {
                    self.settled.insert(key, answer.clone());
                }
            }
        }
    }

    /// Does what is requested. `refuses`: refuses an unknown key, permanently if it is forward work.
    pub fn act(
        &mut self,
        request: &Request,
        refuses: bool,
        defect: Option<Defect>,
        effects: &mut Effects,
    ) -> Result<Value, AgentError> {
        let key = match defect {
            Some(Defect::FreshKeys) => format!("{}/{}", request.idempotency_key, request.attempt),
            _ => request.idempotency_key.clone(),
        };
        if let Some(known) = self.known_under(&key, request.direction, refuses) {
            return known;
        }
        match request.direction {
            Direction::Do => Ok(self.apply(&request.task_id, &name_of(request), key, effects)),
            Direction::Undo => {
                let forward = request.undoes.clone().unwrap_or_default();
                self.take_back(&request.task_id, &request.step, forward.clone(), effects);
                if defect == Some(Defect::NoTombstones) {
                    self.undone.remove(&forward);
                }
                Ok(json!({ "undone": true }))
            }
        }
    }
}
