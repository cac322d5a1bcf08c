//! Consumers whose end is seen at once: what they hold becomes visible again without waiting for a visibility timeout.
//!
//! SQS cannot know that a consumer has died; here its connection breaks. A consumer takes part by opening
//! `GET /consumers/NAME`, which is answered for as long as both live, and by naming itself in the header
//! [`HEADER`] of each receive. Any other receive is SQS's: a program that ends between receiving and deleting, such as
//! the aws CLI, keeps its messages for their visibility timeout.
//!
//! A slow consumer keeps its connection, so it loses nothing before the visibility timeout, which it may renew as on
//! AWS. After that a message is redelivered even so, because a connected consumer may have left it in the queue, as it
//! does with one that it cannot read. Receives count as always: a message that kills its consumers becomes a dead letter.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Sqs;
use super::error::Error;
use super::queue::Queue;

/// Names the consumer that a receive is for.
pub(crate) const HEADER: &str = "x-stepwarden-consumer";
/// Maximum length of a name.
pub(crate) const NAME_MAX_BYTES: usize = 64;

#[derive(Default)]
pub(crate) struct Consumers(Mutex<State>);

#[derive(Default)]
pub(crate) struct State {
    last: u64,
    connected: HashMap<Box<str>, Connected>,
}

struct Connected {
    number: u64,
    /// Those that it received from.
    queues: Vec<Arc<Queue>>,
}

/// Why a consumer was not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("a consumer's name is 1 to {NAME_MAX_BYTES} letters, digits, hyphens and underscores")]
    Name,
    #[error("a consumer of this name is connected; choose a random name")]
    Taken,
}

impl Consumers {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Notes that a connected consumer receives from `queue`, and returns its number.
    pub fn receives(&mut self, name: &str, queue: &Arc<Queue>) -> Result<u64, Error> {
        let Some(consumer) = self.connected.get_mut(name) else { return Err(Error::no_consumer()) };
        if !consumer.queues.iter().any(|known| known.id == queue.id) {
            consumer.queues.push(Arc::clone(queue));
        }
        Ok(consumer.number)
    }
}

/// A connected consumer, until this is dropped.
pub(crate) struct Connection {
    sqs: Arc<Sqs>,
    name: Box<str>,
}

impl Sqs {
    pub fn connect(self: &Arc<Self>, name: &str) -> Result<Connection, Refused> {
        let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        if !(1..=NAME_MAX_BYTES).contains(&name.len()) || !name.bytes().all(allowed) {
            return Err(Refused::Name);
        }
        let mut consumers = self.consumers.lock();
        if consumers.connected.contains_key(name) {
            return Err(Refused::Taken);
        }
        consumers.last += 1;
        let connected = Connected { number: consumers.last, queues: Vec::new() };
        consumers.connected.insert(name.into(), connected);
        Ok(Connection { sqs: Arc::clone(self), name: name.into() })
    }

    /// Makes what the consumer holds visible, and lets waiting receivers know.
    fn give_back(&self, queue: &Arc<Queue>, consumer: u64) {
        let now_ms = self.clock.now_ms();
        let mut state = queue.lock();
        self.advance(queue, &mut state, now_ms);
        let given_back = state.backlog.give_back(consumer, now_ms);
        self.store_standing(queue, &state, &given_back);
        drop(state);
        for _ in &given_back {
            queue.changed.notify_one();
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // From here on no receive takes anything for it.
        let Some(gone) = self.sqs.consumers.lock().connected.remove(&self.name) else { return };
        for queue in &gone.queues {
            self.sqs.give_back(queue, gone.number);
        }
    }
}
