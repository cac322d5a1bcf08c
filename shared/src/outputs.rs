//! Outputs that are too long for a task's record. Each is a separate item, which the record names by its hash. It is
//! written before that record, and read only when a decision needs it.

use crate::expression::Mistake;
use crate::json;
use crate::message::MAX_OUTPUT;
use crate::order::Id;
use crate::step::Step;
use crate::task::Task;
use crate::workflow::{Hash, Workflow};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

/// Longest output of a step, in bytes of JSON. Beyond [`MAX_OUTPUT`] it is kept beside the record. The item must stay
/// below DynamoDB's 400 KB.
pub const MAX_BESIDE: usize = 256 * 1024;
/// The most values of an order beside its record, with those of earlier rounds. One transaction of at most 100 writes
/// lets them expire, or erases them, with the record.
pub(crate) const MAX_COUNT_BESIDE: usize = 90;
/// Longest sum of an order's outputs beside its record, in bytes of JSON. One transaction, which DynamoDB limits to 4
/// MB, sets their expiry.
pub const MAX_ALL_BESIDE: usize = 3 * 1024 * 1024;
/// Longest sum of such outputs in one request, in bytes of JSON. A request, with input, all short outputs and the call,
/// must stay below SQS's 1 MiB.
pub const MAX_IN_REQUEST: usize = 512 * 1024;

/// Where a long output is.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Beside {
    /// Identity of its text.
    #[serde(rename = "h")]
    pub hash: Hash,
    /// Length of its text, in bytes.
    #[serde(rename = "b")]
    pub bytes: usize,
}

/// Where an output is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Place {
    Record(Value),
    Beside(Beside),
}

/// The outputs beside records, and other orders, that one decision knows. It notes what it lacks, which the engine
/// reads before it decides again, and what it adds, which the engine writes before the record.
///
/// Outputs never change, because their key is their hash, and an order is read once per decision. So a decision stays a
/// function of its input.
#[derive(Debug, Default)]
pub struct Outputs(Mutex<Found>);

#[derive(Debug, Default)]
struct Found {
    known: BTreeMap<Hash, Arc<Value>>,
    new: BTreeMap<Hash, String>,
    missing: BTreeSet<Hash>,
    /// Outputs that the store lacks.
    lost: BTreeSet<Hash>,
    /// Whether the decision needed one of these.
    is_short_of_lost: bool,
    /// Other orders, as the store had them just before the decision.
    orders: BTreeMap<Id, Option<Arc<Task>>>,
    missing_orders: BTreeSet<Id>,
    /// Orders whose records are damaged, or of a newer version.
    unreadable: BTreeSet<Id>,
    /// Their definitions.
    definitions: BTreeMap<Hash, Arc<Workflow>>,
    missing_definitions: BTreeSet<Hash>,
    /// Whether the decision needs the order's input, which was not read.
    wants_input: bool,
    /// Lists of steps with `each`. Evaluating a long one takes milliseconds.
    lists: BTreeMap<Hash, Arc<Vec<Value>>>,
    /// Whether another decision of this process is reading the orders of the same list.
    is_looked_at: bool,
    /// Whether this decision leaves its hint to that one.
    is_left: bool,
}

/// For decisions about tasks that have all their outputs in the record.
pub static NONE: LazyLock<Outputs> = LazyLock::new(Outputs::default);

impl Outputs {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step's output, wherever it is. `None` if there is none or it has to be read first.
    pub(crate) fn of(&self, step: &Step) -> Option<Value> {
        step.beside.as_ref().map_or_else(|| step.output.clone(), |beside| self.at(beside))
    }

    /// A value beside the record. `None` if it has to be read first or is gone.
    pub(crate) fn at(&self, beside: &Beside) -> Option<Value> {
        let mut found = self.found();
        let known = found.known.get(&beside.hash).map(|value| (**value).clone());
        if known.is_none() && found.lost.contains(&beside.hash) {
            found.is_short_of_lost = true;
        } else if known.is_none() {
            found.missing.insert(beside.hash.clone());
        }
        known
    }

    /// Whether the decision lacks something to be read.
    pub(crate) fn is_short(&self) -> bool {
        let found = self.found();
        !found.missing.is_empty() || !found.missing_orders.is_empty() || !found.missing_definitions.is_empty()
    }

    /// The list with this hash, if it was evaluated before.
    pub(crate) fn list(&self, hash: &Hash) -> Option<Arc<Vec<Value>>> {
        self.found().lists.get(hash).cloned()
    }

    /// Adds this list.
    pub(crate) fn know_list(&self, hash: Hash, list: Arc<Vec<Value>>) {
        self.found().lists.insert(hash, list);
    }

    /// All lists that decisions evaluated or knew.
    pub(crate) fn lists(&self) -> Vec<(Hash, Arc<Vec<Value>>)> {
        self.found().lists.clone().into_iter().collect()
    }

    /// Asks to decide again with the order's input.
    pub(crate) fn want_input(&self) {
        self.found().wants_input = true;
    }

    pub(crate) fn wants_input(&self) -> bool {
        self.found().wants_input
    }

    /// Leaves a hint to the look of another decision, if there is one.
    pub(crate) fn leave_to_look(&self) -> bool {
        let mut found = self.found();
        found.is_left |= found.is_looked_at;
        found.is_looked_at
    }

    pub(crate) fn is_left(&self) -> bool {
        self.found().is_left
    }

    pub(crate) fn know_look(&self, is_looked_at: bool) {
        self.found().is_looked_at = is_looked_at;
    }

    /// Whether the decision needs other orders that were not read.
    pub(crate) fn wants_orders(&self) -> bool {
        !self.found().missing_orders.is_empty()
    }

    /// Another order: `None` if it has to be read first, and `Some(None)` if there is none.
    pub(crate) fn order(&self, id: &Id) -> Option<Option<Arc<Task>>> {
        let mut found = self.found();
        let known = found.orders.get(id).cloned();
        if known.is_none() && !found.unreadable.contains(id) {
            found.missing_orders.insert(id.clone());
        }
        known
    }

    /// A definition, if it need not be read first.
    pub(crate) fn definition(&self, hash: &Hash) -> Option<Arc<Workflow>> {
        let mut found = self.found();
        let known = found.definitions.get(hash).cloned();
        if known.is_none() {
            found.missing_definitions.insert(hash.clone());
        }
        known
    }

    /// The orders and definitions that decisions have lacked since the last call.
    pub(crate) fn take_missing_orders(&self) -> (Vec<Id>, Vec<Hash>) {
        let mut found = self.found();
        let orders = std::mem::take(&mut found.missing_orders).into_iter().collect();
        (orders, std::mem::take(&mut found.missing_definitions).into_iter().collect())
    }

    /// Whether another order was read and found unreadable.
    pub(crate) fn is_unreadable(&self, id: &Id) -> bool {
        self.found().unreadable.contains(id)
    }

    /// Notes that the record under `id` is unreadable.
    pub(crate) fn know_unreadable(&self, id: Id) {
        self.found().unreadable.insert(id);
    }

    /// What the store has under `id`.
    pub fn know_order(&self, id: Id, task: Option<Arc<Task>>) {
        self.found().orders.insert(id, task);
    }

    /// The definition with this hash.
    pub fn know_definition(&self, hash: Hash, workflow: Arc<Workflow>) {
        self.found().definitions.insert(hash, workflow);
    }

    /// A mistake if an output that is gone was needed since the last call.
    pub(crate) fn loss(&self) -> Result<(), Mistake> {
        match std::mem::take(&mut self.found().is_short_of_lost) {
            false => Ok(()),
            true => Err(Mistake("a long output that it needs is missing from the state table, or damaged".into())),
        }
    }

    pub(crate) fn lose(&self, hash: Hash) {
        self.found().lost.insert(hash);
    }

    /// Keeps `value` beside the record, however short it is. `None` if it is too long.
    pub(crate) fn keep_beside(&self, value: Value) -> Option<Beside> {
        let text = serde_json::to_string(&value).ok().filter(|text| text.len() <= MAX_BESIDE)?;
        let (hash, bytes) = (Hash::of(text.as_bytes()), text.len());
        let mut found = self.found();
        found.known.insert(hash.clone(), Arc::new(value));
        found.new.insert(hash.clone(), text);
        Some(Beside { hash, bytes })
    }

    /// Where `value`, called `what` in errors, is kept.
    ///
    /// # Errors
    /// It is too long or too deep, in words.
    pub(crate) fn place(&self, value: Value, what: &str) -> Result<Place, String> {
        let text = serde_json::to_string(&value).map_err(|e| format!("{what} cannot be stored: {e}"))?;
        if json::is_deep(&value) {
            return Err(format!("{what} {}", json::Fault::Deep));
        }
        match text.len() {
            0..=MAX_OUTPUT => Ok(Place::Record(value)),
            bytes => self.keep_beside(value).map(Place::Beside).ok_or_else(|| too_long(what, bytes)),
        }
    }

    /// The hashes of outputs that decisions have lacked since the last call.
    pub(crate) fn take_missing(&self) -> BTreeSet<Hash> {
        std::mem::take(&mut self.found().missing)
    }

    pub(crate) fn know(&self, hash: Hash, value: Arc<Value>) {
        self.found().known.insert(hash, value);
    }

    /// The new outputs that `task` names, each with its text.
    pub(crate) fn new_of(&self, task: &Task) -> Vec<(Hash, String)> {
        let found = self.found();
        let new = |hash: &Hash| Some((hash.clone(), found.new.get(hash)?.clone()));
        beside(task).into_iter().filter_map(new).collect()
    }
}

/// The outputs of `task` beside its record, each once.
#[must_use]
pub fn beside(task: &Task) -> BTreeSet<&Hash> {
    all_beside(task).map(|beside| &beside.hash).collect()
}

/// How many values `task` can have beside its record once all its steps have an output there.
pub(crate) fn ever_beside(task: &Task) -> usize {
    beside(task).len() + task.steps.iter().filter(|step| step.beside.is_none()).count()
}

/// Whether `task` has, or can get, more beside its record than it may.
pub(crate) fn is_full(task: &Task) -> bool {
    ever_beside(task) > MAX_COUNT_BESIDE || bytes_beside(task) > MAX_ALL_BESIDE
}

/// The total bytes of these outputs.
pub(crate) fn bytes_beside(task: &Task) -> usize {
    all_beside(task).map(|beside| beside.bytes).sum()
}

/// The values of `task` beside its record: outputs, also of earlier rounds, pages, and items' inputs from people.
fn all_beside(task: &Task) -> impl Iterator<Item = &Beside> {
    task.steps.iter().flat_map(|step| {
        let replaced = step.rounds.iter().flat_map(|rounds| &rounds.replaced);
        let pages = step.pages.iter().flat_map(|pages| &pages.lists);
        step.beside
            .iter()
            .chain(replaced)
            .chain(pages)
            .chain(step.items().into_iter().flat_map(|items| items.inputs.values()))
    })
}

/// What is wrong with `what` of `bytes` bytes of JSON, in words.
#[must_use]
pub fn too_long(what: &str, bytes: usize) -> String {
    format!("{what} has {bytes} bytes; the limit is {MAX_BESIDE}: return a reference to it instead")
}
