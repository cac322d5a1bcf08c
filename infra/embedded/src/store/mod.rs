//! The SQLite file of queues and events: what survives a crash, and when a write may be answered.
//!
//! Two kinds of writes. An *awaited* write (a sent message, a new queue, an event) is answered after its commit. All
//! waiting writes are one transaction, so that one fsync serves all of them (group commit). A *lazy* write (a delete, a
//! receive count) is answered at once and stored with the next commit, or in a separate one after [`LAZY_MS`]. If it is
//! lost in a crash, the message is redelivered, which SQS allows at any time. A message that is received and deleted
//! within that time costs one statement.
//!
//! A writer that finds no commit running starts one on tokio's blocking pool; see `lane` for why there is no separate
//! thread.

mod load;
mod records;
mod schema;
mod writes;

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::Connection;
use stepwarden_guard::marks::{Marked, beside};
use tokio::sync::oneshot;

pub use records::Event;

pub(crate) use load::{Loaded, LoadedQueue};
pub(crate) use records::{Attribute, Attributes, Content};
pub(crate) use schema::Error;
pub(crate) use writes::{Lazy, NewMessage, Standing, Write};

use crate::Durability;
use crate::ahead::Ahead;
use crate::counts::Counters;

/// Longest time that a lazy write waits for another commit. Milliseconds.
const LAZY_MS: u64 = 50;

/// Time that the commit of messages waits for more of them. Receivers have the messages already, so only senders wait, and a
/// commit less leaves the disk to the tables. Milliseconds.
const GATHER_MS: u64 = 1;

/// Number of lazy writes that are enough for a separate commit.
const LAZY_MANY: usize = 1000;

/// A commit that failed, such as on a full disk. The text is SQLite's.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the queues file could not be written: {0}")]
pub(crate) struct WriteError(String);

/// Cheap to clone. `Memory` keeps nothing and answers at once.
#[derive(Clone)]
pub(crate) enum Store {
    Memory,
    File(Arc<Writer>),
}

impl Store {
    /// Opens or creates the file, and reads everything in it. `after_kill`: the last process that used it did not end cleanly.
    ///
    /// `lock` is kept for as long as a commit may be in progress.
    pub fn open(
        path: &Path,
        durability: Durability,
        after_kill: bool,
        lock: Arc<File>,
        counters: Arc<Counters>,
    ) -> Result<(Self, Loaded), Error> {
        let connection = schema::open(path, durability, after_kill)?;
        let loaded = load::everything(&connection, after_kill)?;
        let connection = Marked::open(connection, path, durability)?;
        let ahead = Ahead::of(durability, &beside(path, "-wal"), schema::LOG_FRAMES);
        let synced = (durability == Durability::Full).then_some(counters);
        let writer =
            Writer { pending: Mutex::default(), connection: Mutex::new((connection, ahead)), synced, _lock: lock };
        Ok((Self::File(Arc::new(writer)), loaded))
    }

    /// Ready once `write` is committed and `then` has run. Both happen even if the caller stops waiting, so that the
    /// file and the memory stay the same.
    ///
    /// The call itself takes the place in the order of commits, not the waiting for it.
    pub fn write(
        &self,
        write: Write,
        then: impl FnOnce() + Send + 'static,
    ) -> impl Future<Output = Result<(), WriteError>> + Send {
        let answered = match self {
            Self::Memory => {
                then();
                None
            }
            Self::File(writer) => Some(Writer::enqueue(writer, write, Box::new(then))),
        };
        async move {
            let Some(answered) = answered else {
                return Ok(());
            };
            answered.await.unwrap_or_else(|_| Err(WriteError("the program is stopping".into())))
        }
    }

    /// Writes later; a later lazy write to the same message replaces this one. Nothing replaces a delete, because the
    /// write of the receive that it ends may arrive after it.
    pub fn write_later(&self, writes: impl IntoIterator<Item = (i64, Lazy)>) {
        let Self::File(writer) = self else { return };
        let mut pending = writer.pending();
        for (row, write) in writes {
            if !matches!(pending.lazy.get(&row), Some(Lazy::Delete)) {
                pending.lazy.insert(row, write);
            }
        }
        if pending.lazy.is_empty() || pending.running {
            // A commit in progress looks for lazy writes before it ends.
            return;
        }
        if pending.lazy.len() >= LAZY_MANY {
            pending.running = true;
            drop(pending);
            Writer::start(writer, false);
        } else if !std::mem::replace(&mut pending.waiting, true) {
            drop(pending);
            Writer::start_after_a_while(writer);
        }
    }
}

struct Awaited {
    write: Write,
    /// Runs after the commit, in the order of writes.
    then: Box<dyn FnOnce() + Send>,
    answer: oneshot::Sender<Result<(), WriteError>>,
}

#[derive(Default)]
struct Pending {
    awaited: Vec<Awaited>,
    /// By row of the message.
    lazy: HashMap<i64, Lazy>,
    /// A commit is running or about to run.
    running: bool,
    /// A timer for the lazy writes is set.
    waiting: bool,
}

pub(crate) struct Writer {
    pending: Mutex<Pending>,
    connection: Mutex<(Marked<Connection>, Option<Ahead>)>,
    /// Counts the commits, each of which is one sync.
    synced: Option<Arc<Counters>>,
    _lock: Arc<File>,
}

impl Writer {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(
        writer: &Arc<Self>,
        write: Write,
        then: Box<dyn FnOnce() + Send>,
    ) -> oneshot::Receiver<Result<(), WriteError>> {
        let (answer, answered) = oneshot::channel();
        let gathers = matches!(write, Write::Messages { .. });
        let start = {
            let mut pending = writer.pending();
            pending.awaited.push(Awaited { write, then, answer });
            !std::mem::replace(&mut pending.running, true)
        };
        if start {
            Self::start(writer, gathers);
        }
        answered
    }

    /// At once, or after [`GATHER_MS`].
    fn start(writer: &Arc<Self>, gathers: bool) {
        let mut run = Run { writer: Arc::clone(writer), finished: false };
        let commit = move || run.until_nothing_waits();
        if !gathers {
            tokio::task::spawn_blocking(commit);
            return;
        }
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(GATHER_MS)).await;
            tokio::task::spawn_blocking(commit);
        });
    }

    fn start_after_a_while(writer: &Arc<Self>) {
        let writer = Arc::downgrade(writer);
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_millis(LAZY_MS)).await;
            let Some(writer) = writer.upgrade() else {
                return;
            };
            let start = {
                let mut pending = writer.pending();
                pending.waiting = false;
                !pending.lazy.is_empty() && !std::mem::replace(&mut pending.running, true)
            };
            if start {
                Self::start(&writer, false);
            }
        });
    }

    /// Commits `awaited` and `lazy` together.
    fn commit(&self, awaited: &[Awaited], lazy: &HashMap<i64, Lazy>) -> Result<(), WriteError> {
        let mut file = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        let (connection, ahead) = &mut *file;
        if let Some(counters) = &self.synced {
            counters.count(|counts| counts.syncs += 1);
        }
        writes::commit(connection, awaited.iter().map(|it| &it.write), lazy)
            .map_err(|error| WriteError(error.to_string()))?;
        let head = connection.head();
        connection.note(head);
        if let Some(ahead) = ahead {
            ahead.reserve(head);
        }
        Ok(())
    }
}

/// One turn of committing.
struct Run {
    writer: Arc<Writer>,
    finished: bool,
}

impl Run {
    fn until_nothing_waits(&mut self) {
        for is_first in std::iter::once(true).chain(std::iter::repeat(false)) {
            let (awaited, lazy) = {
                let mut pending = self.writer.pending();
                let is_enough = is_first || pending.lazy.len() >= LAZY_MANY;
                if pending.awaited.is_empty() && (pending.lazy.is_empty() || !is_enough) {
                    pending.running = false;
                    self.finished = true;
                    // What came during the commit waits for the next one, as if it had come now.
                    let waits = !pending.lazy.is_empty() && !std::mem::replace(&mut pending.waiting, true);
                    drop(pending);
                    if waits {
                        Writer::start_after_a_while(&self.writer);
                    }
                    return;
                }
                (std::mem::take(&mut pending.awaited), std::mem::take(&mut pending.lazy))
            };
            let outcome = self.writer.commit(&awaited, &lazy);
            if let Err(error) = &outcome {
                tracing::error!(
                    "queues: {} writes failed: {error}{}",
                    awaited.len() + lazy.len(),
                    crate::what_to_do(&error)
                );
                let mut pending = self.writer.pending();
                for (row, write) in lazy {
                    pending.lazy.entry(row).or_insert(write);
                }
                if pending.awaited.is_empty() {
                    // No commit at once: the lazy writes stay for the next commit.
                    pending.running = false;
                    self.finished = true;
                }
            }
            for Awaited { then, answer, .. } in awaited {
                if outcome.is_ok() {
                    then();
                }
                let _ = answer.send(outcome.clone());
            }
            if self.finished {
                return;
            }
        }
    }
}

/// After a run that panicked, or that the runtime dropped, the next write can start another.
impl Drop for Run {
    fn drop(&mut self) {
        if !self.finished {
            let mut pending = self.writer.pending();
            pending.running = false;
            pending.awaited.clear();
        }
    }
}

/// A clean end stores deletes and receive counts too.
impl Drop for Writer {
    fn drop(&mut self) {
        let lazy = std::mem::take(&mut self.pending().lazy);
        if let Err(error) = self.commit(&[], &lazy) {
            tracing::warn!("queues: the last deletes were lost, so messages will be redelivered: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn opened(dir: &Path) -> (Store, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        let lock = Arc::new(File::create(dir.join("lock")).unwrap());
        let path = dir.join("queues.db");
        let (store, _) = Store::open(&path, Durability::Full, false, lock, Arc::clone(&counters)).unwrap();
        (store, counters)
    }

    fn bus() -> Write {
        Write::Bus { name: "x".into(), created_ms: 0 }
    }

    // An order that is alone would wait for it with its next message.
    #[tokio::test(start_paused = true)]
    async fn a_delete_during_a_commit_causes_no_commit_of_its_own_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let (store, counters) = opened(dir.path());
        let deletes = store.clone();
        let during = move || deletes.write_later([(1, Lazy::Delete)]);
        store.write(bus(), during).await.unwrap();
        store.write(bus(), || {}).await.unwrap();
        assert_eq!(counters.snapshot().syncs, 2, "the second commit has it");
        let deletes = store.clone();
        store.write(bus(), move || deletes.write_later([(2, Lazy::Delete)])).await.unwrap();
        tokio::time::sleep(Duration::from_millis(LAZY_MS / 2)).await;
        assert_eq!(counters.snapshot().syncs, 3);
        // The clock stands still during a commit.
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(counters.snapshot().syncs, 4, "once");
    }

    #[tokio::test(start_paused = true)]
    async fn many_deletes_during_a_commit_are_stored_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let (store, counters) = opened(dir.path());
        let deletes = store.clone();
        let many = move || deletes.write_later((0..LAZY_MANY as i64).map(|row| (row, Lazy::Delete)));
        store.write(bus(), many).await.unwrap();
        tokio::time::sleep(Duration::from_millis(LAZY_MS / 2)).await;
        assert_eq!(counters.snapshot().syncs, 2);
    }
}
