//! Writes that wait for the engine at the same time are done as one transaction.
//!
//! SQLite writes whole pages, and each of its transactions writes every page that it changed. Writes that wait together change
//! many of the same pages, so one transaction writes fewer of them and takes less time. None of them is answered before all are
//! done, so no caller can tell in which order that was.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

use dynoxide::actions::transact_write_items::{TransactWriteItem, TransactWriteItemsRequest};
use dynoxide::{Database, DynoxideError};
use tokio::sync::oneshot;

use crate::tokens::{Token, Tokens};

/// AWS, "TransactWriteItems": actions in one transaction.
const ACTIONS_MAX: usize = 100;
/// Bytes of requests in one transaction: less than SQLite's cache, so that it does not write pages twice, and than the 4 MB
/// of a transaction.
const BYTES_MAX: usize = 1 << 20;
/// The answer to a write that was done.
const DONE: &[u8] = b"{}";

/// An answer in JSON.
pub(crate) type Outcome = Result<Vec<u8>, DynoxideError>;

pub(crate) struct Write {
    /// How many items it writes.
    pub items: usize,
    /// Length of the request.
    pub bytes: usize,
    /// What it means as a part of a transaction. `None`: it can only be done alone.
    pub actions: Option<Vec<TransactWriteItem>>,
    /// Does it alone.
    pub alone: Box<dyn FnOnce(&Database) -> Outcome + Send>,
    /// Under which it is done once.
    pub token: Option<Token>,
}

/// The writes that wait, and the tokens of those that were done.
#[derive(Default)]
pub(crate) struct Together {
    waiting: Mutex<Vec<Waiting>>,
    /// Held while writes are done.
    turn: Mutex<()>,
    tokens: Tokens,
}

struct Waiting {
    write: Write,
    outcome: oneshot::Sender<Outcome>,
}

impl Waiting {
    /// The place of a caller that only stopped waiting is kept by its job.
    fn has_a_caller(&self) -> bool {
        !self.outcome.is_closed()
    }
}

/// A write's place among those that wait.
pub(crate) struct Place(oneshot::Receiver<Outcome>);

impl Together {
    /// Waits for the next call of [`Together::outcome`], of any write.
    pub fn wait(&self, write: Write) -> Place {
        let (outcome, place) = oneshot::channel();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(Waiting { write, outcome });
        Place(place)
    }

    /// What became of this write. Unless an earlier call has done it, it is done now, with all that wait.
    pub fn outcome(&self, database: &Database, Place(mut outcome): Place) -> Outcome {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that came since then wait for a call that has something to do, so that there are more of them.
        if let Ok(done) = outcome.try_recv() {
            return done;
        }
        let mut waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.retain(Waiting::has_a_caller);
        for part in self.parts(waiting) {
            self.perform(database, part);
        }
        let lost = || DynoxideError::InternalServerError("the call was not finished".into());
        outcome.try_recv().unwrap_or_else(|_| Err(lost()))
    }

    /// Forgets the writes whose calls ended before their turn, as they do when the disk refuses writes.
    pub fn forget_lost(&self) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).retain(Waiting::has_a_caller);
    }

    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }

    /// What is done together, in the order in which it came.
    fn parts(&self, waiting: Vec<Waiting>) -> Vec<Vec<Waiting>> {
        let mut parts: Vec<Vec<Waiting>> = Vec::new();
        let mut names = HashSet::new();
        let (mut actions_left, mut bytes_left) = (0, 0);
        for mut next in waiting {
            // Perhaps done before, or about to be: that is decided when its turn comes.
            let may_be_repeated = |token: &Token| self.tokens.knows(&token.name) || !names.insert(token.name.clone());
            if next.write.token.as_ref().is_some_and(may_be_repeated) {
                next.write.actions = None;
            }
            let bytes = next.write.bytes;
            match (next.write.actions.as_ref().map(Vec::len), parts.last_mut()) {
                (Some(actions), Some(part)) if actions <= actions_left && bytes <= bytes_left => {
                    (actions_left, bytes_left) = (actions_left - actions, bytes_left - bytes);
                    part.push(next);
                }
                (actions, _) => {
                    actions_left = actions.map_or(0, |actions| ACTIONS_MAX.saturating_sub(actions));
                    bytes_left = BYTES_MAX.saturating_sub(bytes);
                    parts.push(vec![next]);
                }
            }
        }
        parts
    }

    /// If one of the writes is refused, none is done, and then each is done alone.
    fn perform(&self, database: &Database, mut part: Vec<Waiting>) {
        let are_done = part.len() > 1 && {
            let actions = part.iter_mut().filter_map(|waiting| waiting.write.actions.take());
            let transact_items = actions.flatten().collect();
            let request = TransactWriteItemsRequest { transact_items, ..Default::default() };
            let refused = database.transact_write_items(request).err();
            if let Some(error) = &refused {
                tracing::debug!("dynamodb: {} writes are done one by one: {error}", part.len());
            }
            refused.is_none()
        };
        for Waiting { write: Write { alone, token, .. }, outcome } in part {
            let execute = || if are_done { Ok(DONE.to_vec()) } else { alone(database) };
            let answer = match token {
                Some(token) => self.tokens.once(token, execute),
                None => execute(),
            };
            // A caller that no longer waits does not need it.
            let _ = outcome.send(answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dynoxide::actions::put_item::PutItemRequest;
    use dynoxide::actions::scan::ScanRequest;
    use serde_json::{Value, json};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    fn database() -> Database {
        let database = Database::memory().unwrap();
        let table = json!({"TableName": "tasks", "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}], "BillingMode": "PAY_PER_REQUEST"});
        database.create_table(serde_json::from_value(table).unwrap()).unwrap();
        database
    }

    fn put(keys: &[&str]) -> Value {
        let put = |key: &&str| json!({"Put": {"TableName": "tasks", "Item": {"k": {"S": key}}, "ConditionExpression": "attribute_not_exists(k)"}});
        keys.iter().map(put).collect()
    }

    /// A write of new items, which counts how often it is done alone.
    fn write(keys: &[&str], token: Option<&str>, times_alone: &Arc<AtomicUsize>) -> Write {
        let (actions, times_alone) = (put(keys), Arc::clone(times_alone));
        let alone = {
            let actions = actions.clone();
            move |database: &Database| {
                times_alone.fetch_add(1, Ordering::Relaxed);
                match &actions.as_array().unwrap()[..] {
                    [one] => {
                        let request: PutItemRequest = serde_json::from_value(one["Put"].clone()).unwrap();
                        database.put_item(request)?;
                    }
                    _ => {
                        let request = serde_json::from_value(json!({"TransactItems": actions})).unwrap();
                        database.transact_write_items(request)?;
                    }
                }
                Ok(b"alone".to_vec())
            }
        };
        let token = token.map(|name| Token { name: name.into(), request: 1, now_ms: 0 });
        let actions = Some(serde_json::from_value(actions).unwrap());
        Write { items: keys.len(), bytes: 100, actions, alone: Box::new(alone), token }
    }

    fn keys(database: &Database) -> Vec<String> {
        let request: ScanRequest = serde_json::from_value(json!({"TableName": "tasks"})).unwrap();
        let found = serde_json::to_value(database.scan(request).unwrap()).unwrap();
        let mut keys: Vec<_> =
            found["Items"].as_array().unwrap().iter().map(|item| item["k"]["S"].as_str().unwrap().to_owned()).collect();
        keys.sort();
        keys
    }

    fn texts(outcomes: Vec<Outcome>) -> Vec<String> {
        outcomes.into_iter().map(|outcome| String::from_utf8(outcome.unwrap()).unwrap()).collect()
    }

    #[test]
    fn what_waits_is_done_at_once() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let places = [
            together.wait(write(&["a"], None, &alone)),
            together.wait(write(&["b", "c"], Some("x"), &alone)),
            together.wait(write(&["d"], None, &alone)),
        ];
        let outcomes = places.map(|place| together.outcome(&database, place));
        assert_eq!(texts(outcomes.into()), ["{}", "{}", "{}"]);
        assert_eq!(alone.load(Ordering::Relaxed), 0);
        assert_eq!(keys(&database), ["a", "b", "c", "d"]);
    }

    #[test]
    fn one_that_is_refused_takes_no_other_with_it() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let first = together.wait(write(&["b"], None, &alone));
        together.outcome(&database, first).unwrap();
        let places = [
            together.wait(write(&["a"], None, &alone)),
            together.wait(write(&["b"], None, &alone)),
            together.wait(write(&["c", "b"], Some("x"), &alone)),
            together.wait(write(&["d", "e"], Some("y"), &alone)),
        ];
        let [a, b, c, d] = places.map(|place| together.outcome(&database, place));
        assert!(a.is_ok() && d.is_ok());
        assert!(matches!(b, Err(DynoxideError::ConditionalCheckFailedException(..))), "{b:?}");
        assert!(matches!(c, Err(DynoxideError::TransactionCanceledException(..))), "{c:?}");
        assert_eq!(keys(&database), ["a", "b", "d", "e"]);
    }

    // A caller that heard nothing sends its transaction again, also while the first one waits.
    #[test]
    fn a_transaction_that_comes_again_is_done_once() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let places = [
            together.wait(write(&["a", "b"], Some("x"), &alone)),
            together.wait(write(&["c"], None, &alone)),
            together.wait(write(&["a", "b"], Some("x"), &alone)),
        ];
        assert!(places.map(|place| together.outcome(&database, place)).iter().all(Result::is_ok));
        let later = together.wait(write(&["a", "b"], Some("x"), &alone));
        assert_eq!(texts(vec![together.outcome(&database, later)]), ["{}"], "as before");
        assert_eq!(alone.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_means_something_else_alone_is_done_alone() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let mut asks_for_more = write(&["c"], None, &alone);
        asks_for_more.actions = None;
        let places = [
            together.wait(write(&["a"], None, &alone)),
            together.wait(write(&["b"], None, &alone)),
            together.wait(asks_for_more),
            together.wait(write(&["d"], None, &alone)),
            together.wait(write(&["e"], None, &alone)),
        ];
        let outcomes = places.map(|place| together.outcome(&database, place));
        assert_eq!(texts(outcomes.into()), ["{}", "{}", "alone", "{}", "{}"]);
    }

    // Its caller has been told that the call failed.
    #[test]
    fn a_write_whose_call_has_ended_is_not_done_later() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        drop(together.wait(write(&["a"], None, &alone)));
        let place = together.wait(write(&["b"], None, &alone));
        together.outcome(&database, place).unwrap();
        assert_eq!(keys(&database), ["b"]);
    }

    #[test]
    fn long_writes_are_not_done_together() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let long = |key: &str| Write { bytes: BYTES_MAX / 2, ..write(&[key], None, &alone) };
        let places = ["a", "b", "c"].map(|key| together.wait(long(key)));
        let outcomes = places.map(|place| together.outcome(&database, place));
        assert_eq!(texts(outcomes.into()), ["{}", "{}", "alone"]);
    }

    // It would find less that waits if each call took what has come since the one before.
    #[test]
    fn a_call_whose_write_is_done_does_nothing_else() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let [a, b] = ["a", "b"].map(|key| together.wait(write(&[key], None, &alone)));
        together.outcome(&database, a).unwrap();
        let later = together.wait(write(&["c"], None, &alone));
        together.outcome(&database, b).unwrap();
        assert_eq!(keys(&database), ["a", "b"]);
        together.outcome(&database, later).unwrap();
        assert_eq!(keys(&database), ["a", "b", "c"]);
    }

    #[test]
    fn a_transaction_has_at_most_a_hundred_actions() {
        let (together, database, alone) = (Together::default(), database(), Arc::default());
        let names: Vec<String> = (0..250).map(|n| format!("{n:03}")).collect();
        let of = |range: std::ops::Range<usize>| {
            let names: Vec<_> = names[range].iter().map(String::as_str).collect();
            together.wait(write(&names, None, &alone))
        };
        let places = [of(0..60), of(60..100), of(100..150), of(150..250)];
        let outcomes = places.map(|place| together.outcome(&database, place));
        assert_eq!(texts(outcomes.into()), ["{}", "{}", "alone", "alone"]);
        assert_eq!(keys(&database), names);
    }

    // In memory there is no lane, and callers come from several threads.
    #[test]
    fn a_call_waits_for_the_one_that_does_its_write() {
        let (together, database) = (Together::default(), database());
        let (release, held) = mpsc::channel::<()>();
        let slow = move |_: &Database| {
            held.recv().unwrap();
            Ok(b"slow".to_vec())
        };
        let write = |alone| Write { items: 1, bytes: 1, actions: None, alone, token: None };
        let first = together.wait(write(Box::new(slow)));
        let second = together.wait(write(Box::new(|_| Ok(b"second".to_vec()))));
        std::thread::scope(|scope| {
            let (started, starts) = mpsc::channel();
            let (together, database) = (&together, &database);
            scope.spawn(move || together.outcome(database, first).unwrap());
            while together.waiting() > 0 {
                std::thread::yield_now();
            }
            scope.spawn(move || started.send(together.outcome(database, second)).unwrap());
            let early = starts.recv_timeout(Duration::from_millis(100));
            release.send(()).unwrap();
            assert!(early.is_err(), "it was not done yet: {early:?}");
            assert_eq!(starts.recv().unwrap().unwrap(), b"second");
        });
    }
}
