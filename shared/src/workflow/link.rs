//! Links: whoever has one can send a step's event without signing in. A link does not tell who uses it, so it never
//! counts as a person.

use super::accept::token;
use super::{Step, Workflow};
use crate::expression::{Names, Template};
use crate::names::{of_step, order};
use crate::order::Id;
use crate::task::Task;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// What a step's link shows to whoever opens it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Link {
    /// The question. It reads `input`, `config` and `order`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ask: Option<Template>,
    /// The answers to choose from; the event's data has the chosen one as `answer`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub answers: Vec<String>,
}

/// No callback's scope: steps' names have no colon.
fn of(step: &str) -> String {
    format!("link:{step}")
}

/// The link of `step`, below `base`. It contains a token made from the order's `secret`.
#[must_use]
pub fn address(base: &str, id: &Id, step: &str, secret: &str) -> String {
    format!("{}/links/{id}/{step}/{}", base.trim_end_matches('/'), token(secret, &of(step)))
}

/// Whether `given` is the token in this step's link. Takes constant time.
#[must_use]
pub fn is_token(given: &str, secret: &str, step: &str) -> bool {
    super::accept::is_token(given, secret, &of(step))
}

impl Step {
    /// What its link shows, if it has one, and the event that the link sends.
    #[must_use]
    pub fn link(&self) -> Option<(&Link, &str)> {
        let event = self.event()?;
        Some((event.link.as_ref()?, &event.name))
    }
}

impl Workflow {
    /// The links of `task` as expressions see them, by the names of their steps.
    pub(crate) fn links(&self, task: &Task, base: &str) -> Option<Value> {
        let secret = task.secret.as_deref().filter(|_| !base.is_empty())?;
        let all = self.steps.iter().filter(|step| step.link().is_some());
        let link = |step: &Step| (of_step(&step.name), address(base, &task.id, &step.name, secret).into());
        Some(all.map(link).collect::<Map<_, _>>().into())
    }

    /// The question behind the link of step `index` of an order with this input.
    #[must_use]
    pub fn question(&self, task: &Task, index: usize, input: &Value) -> Option<String> {
        let (link, event) = self.steps.get(index)?.link()?;
        let names = Names::new()
            .with("input", Cow::Borrowed(input))
            .with("config", Cow::Owned(Value::Object(self.config.clone())))
            .with("order", Cow::Owned(order(task)));
        let name = task.reference.as_deref().unwrap_or(&task.id.0);
        // A question without a value must not prevent an answer.
        let asked = link.ask.as_ref().and_then(|ask| ask.text_of(&names).ok());
        Some(asked.unwrap_or_else(|| format!("Order {name} waits for the event {event}.")))
    }
}
