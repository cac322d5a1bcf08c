//! The remote services: each key is applied once, an undo that comes first leaves a tombstone, a refusal stays one. What
//! they did is told to the [`crate::history`].

use crate::Defect;
use crate::history::Effects;
use serde_json::{Value, json};
use shared::message::Request;
use shared::step::Direction;
use std::collections::{BTreeMap, BTreeSet};

/// What a service answers.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done, now or before.
    Done(Value),
    /// Never.
    Refused(String),
}

/// All services of a run.
#[derive(Debug, Default)]
pub struct Services {
    applied: BTreeMap<String, Value>,
    refused: BTreeSet<String>,
    undone: BTreeSet<String>,
    next: u64,
}

impl Services {
    /// Does what is asked. `refuses`: a key not known yet is refused, for good where it is forward work.
    pub fn act(&mut self, request: &Request, refuses: bool, defect: Option<Defect>, effects: &mut Effects) -> Answer {
        let key = match defect {
            Some(Defect::FreshKeys) => format!("{}/{}", request.idempotency_key, request.attempt),
            _ => request.idempotency_key.clone(),
        };
        match request.direction {
            Direction::Do => {
                if self.undone.contains(&key) && defect != Some(Defect::NoTombstones) {
                    return Answer::Refused("the key was undone".into());
                }
                if let Some(output) = self.applied.get(&key) {
                    return Answer::Done(output.clone());
                }
                if refuses || self.refused.contains(&key) {
                    self.refused.insert(key);
                    return Answer::Refused("declined".into());
                }
                self.next += 1;
                let output = json!({ "reference": format!("{}-{}", request.agent, self.next) });
                effects.applied(&request.task_id, &request.step, &key);
                self.applied.insert(key, output.clone());
                Answer::Done(output)
            }
            Direction::Undo => {
                if refuses {
                    return Answer::Refused("the undo was refused".into());
                }
                let forward = request.undoes.clone().unwrap_or_default();
                if self.applied.remove(&forward).is_some() {
                    effects.undone(&request.task_id, &request.step, &forward);
                }
                if defect != Some(Defect::NoTombstones) {
                    self.undone.insert(forward);
                }
                Answer::Done(json!({ "undone": true }))
            }
        }
    }
}
