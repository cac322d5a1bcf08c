//! The client request tokens of transactions: a transaction that is repeated under its token within ten minutes is
//! answered and not done again. dynoxide does this as well, but checks every remembered token on each call, which
//! slowed a thousand orders per second down to two hundred.

use std::collections::{HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dynoxide::DynoxideError;
use dynoxide::actions::transact_write_items::TransactWriteItemsRequest;

use crate::together::Outcome;

/// How long a token is remembered. AWS, "TransactWriteItems": ten minutes. Milliseconds.
const REMEMBERED_MS: i64 = 600_000;

/// A token and what it came with.
pub(crate) struct Token {
    pub name: String,
    /// See [`fingerprint`].
    pub request: u64,
    pub now_ms: i64,
}

/// The answers of the last ten minutes, by token.
#[derive(Default)]
pub(crate) struct Tokens(Mutex<Known>);

#[derive(Default)]
struct Known {
    answers: HashMap<String, (u64, Vec<u8>)>,
    /// Oldest first.
    ages: VecDeque<(i64, String)>,
}

impl Tokens {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The remembered answer to `token`, or that of `execute`. A failure is not remembered, so the next call tries
    /// again. Of two calls at the same time the second waits for the first.
    ///
    /// # Errors
    /// Those of `execute`, and another transaction under the same token.
    pub fn once(&self, token: Token, execute: impl FnOnce() -> Outcome) -> Outcome {
        let Token { name, request, now_ms } = token;
        let mut known = self.lock();
        while known.ages.front().is_some_and(|(at, _)| now_ms - at >= REMEMBERED_MS) {
            if let Some((_, old)) = known.ages.pop_front() {
                known.answers.remove(&old);
            }
        }
        match known.answers.get(&name) {
            Some((same, answer)) if *same == request => return Ok(answer.clone()),
            Some(_) => {
                let text = "An error occurred (IdempotentParameterMismatchException)".into();
                return Err(DynoxideError::IdempotentParameterMismatchException(text));
            }
            None => {}
        }
        let answer = execute()?;
        known.ages.push_back((now_ms, name.clone()));
        known.answers.insert(name, (request, answer.clone()));
        Ok(answer)
    }

    /// Whether a transaction was done under this token, perhaps long ago.
    pub fn knows(&self, name: &str) -> bool {
        self.lock().answers.contains_key(name)
    }
}

/// A hash of what a transaction writes, independent of the order of keys in its objects.
pub(crate) fn fingerprint(request: &TransactWriteItemsRequest) -> u64 {
    // Through a Value, whose keys are sorted: those of a HashMap are not.
    let items = serde_json::to_value(&request.transact_items).unwrap_or_default();
    let mut hasher = DefaultHasher::new();
    items.to_string().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_does_its_work_once_for_ten_minutes() {
        let tokens = Tokens::default();
        let mut done = 0;
        let mut call = |token: &str, request: u64, now_ms: i64| {
            tokens.once(Token { name: token.into(), request, now_ms }, || {
                done += 1;
                if request == 13 { Err(DynoxideError::InternalServerError("away".into())) } else { Ok(vec![done]) }
            })
        };
        assert_eq!(call("a", 1, 0).unwrap(), [1]);
        assert_eq!(call("b", 2, 300_000).unwrap(), [2]);
        assert_eq!(call("a", 1, 599_999).unwrap(), [1], "remembered");
        assert!(matches!(call("a", 7, 599_999), Err(DynoxideError::IdempotentParameterMismatchException(_))));
        assert_eq!(call("a", 7, 600_000).unwrap(), [3], "forgotten");
        assert_eq!(call("b", 2, 600_000).unwrap(), [2], "not forgotten with it");
        assert!(call("c", 13, 600_000).is_err());
        assert_eq!(call("c", 1, 600_000).unwrap(), [5], "a failure is tried again");
    }
}
