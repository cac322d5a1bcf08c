//! Group commit: one job at a time on tokio's blocking pool, in order of arrival, and one fsync for all jobs that waited.
//!
//! The waiting jobs run one after another, then one call of `sync` makes what they wrote durable, and only then are they
//! answered. Jobs that only read wait too, because what they read may have been written a moment before.
//!
//! SQLite has one writer, so a blocking thread for each call would only queue on a mutex. Here the first caller starts
//! a runner, which works until no job is left: under load one thread runs job after job without a context switch. It
//! uses the blocking pool because tokio's paused clock does not advance while a blocking task runs, but advances while
//! another thread works.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

/// Maximum number of jobs that are answered together, so that no answer waits for too many others. The first write of these also
/// does those that wait behind them (`together`).
const TOGETHER: usize = 64;

/// Makes what was written durable.
pub(crate) type Sync = Box<dyn Fn() -> std::io::Result<()> + Send + std::marker::Sync>;

/// Whether a job may change something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Reads,
    Writes,
}

/// A job, whose answer is given later.
type Job = Box<dyn FnOnce() -> Answer + Send>;
type Answer = Box<dyn FnOnce(Result<(), Unfinished>) + Send>;

#[derive(Default)]
struct State {
    waiting: Vec<(Kind, Job)>,
    running: bool,
    /// Set when a write could not be made durable. From then on the state of the disk is unknown, so no job is answered
    /// any more.
    broken: Option<String>,
}

#[derive(Clone)]
pub(crate) struct Lane {
    state: Arc<Mutex<State>>,
    sync: Arc<Sync>,
}

/// The job panicked, the runtime is shutting down, or the disk refuses writes.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Unfinished {
    #[error("the call was not finished")]
    Dropped,
    #[error("the tables file could not be written ({0}); fix the disk and restart")]
    NotDurable(String),
}

impl Lane {
    pub fn new(sync: Sync) -> Self {
        Self { state: Arc::default(), sync: Arc::new(sync) }
    }

    /// Runs `work` after all earlier jobs and waits for its result, which is then durable. The work is done even if the
    /// caller stops waiting.
    pub async fn run<T: Send + 'static>(
        &self,
        kind: Kind,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unfinished> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            let result = work();
            Box::new(move |durable| {
                let _ = answer.send(durable.map(|()| result));
            })
        });
        let start = {
            let mut state = lock(&self.state);
            if let Some(reason) = &state.broken {
                return Err(Unfinished::NotDurable(reason.clone()));
            }
            state.waiting.push((kind, job));
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            let mut runner = Runner { lane: self.clone(), finished: false };
            tokio::task::spawn_blocking(move || runner.run());
        }
        answered.await.unwrap_or(Err(Unfinished::Dropped))
    }
}

struct Runner {
    lane: Lane,
    finished: bool,
}

impl Runner {
    fn run(&mut self) {
        loop {
            let jobs: Vec<_> = {
                let mut state = lock(&self.lane.state);
                if state.waiting.is_empty() {
                    state.running = false;
                    self.finished = true;
                    return;
                }
                let many = state.waiting.len().min(TOGETHER);
                state.waiting.drain(..many).collect()
            };
            let writes = jobs.iter().any(|(kind, _)| *kind == Kind::Writes);
            // A job that panics drops its answer, which its caller sees; the next job runs.
            let answers: Vec<Answer> = jobs
                .into_iter()
                .filter_map(|(_, job)| std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).ok())
                .collect();
            let durable = if writes { (self.lane.sync)() } else { Ok(()) };
            let durable = durable.map_err(|error| {
                tracing::error!("dynamodb: the tables file could not be written: {error}{}", crate::what_to_do(&error));
                let reason = error.to_string();
                lock(&self.lane.state).broken = Some(reason.clone());
                Unfinished::NotDurable(reason)
            });
            for answer in answers {
                answer(durable.clone());
            }
            if durable.is_err() {
                // `Drop` drops the waiting jobs, which their callers see.
                return;
            }
        }
    }
}

/// A runner that the runtime dropped before it ran must not leave the lane marked as running.
impl Drop for Runner {
    fn drop(&mut self) {
        if !self.finished {
            let mut state = lock(&self.lane.state);
            state.running = false;
            state.waiting.clear();
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lane whose jobs and syncs are noted in the order in which they happen.
    fn noted(fails_after: usize) -> (Lane, Arc<Mutex<Vec<String>>>) {
        let notes: Arc<Mutex<Vec<String>>> = Arc::default();
        let sync: Sync = {
            let notes = Arc::clone(&notes);
            Box::new(move || {
                let mut notes = notes.lock().unwrap();
                notes.push("sync".into());
                let syncs = notes.iter().filter(|note| *note == "sync").count();
                if syncs > fails_after { Err(std::io::Error::other("disk full")) } else { Ok(()) }
            })
        };
        (Lane::new(sync), notes)
    }

    fn note(notes: &Arc<Mutex<Vec<String>>>, what: &str) -> impl FnOnce() + Send + use<> {
        let (notes, what) = (Arc::clone(notes), what.to_owned());
        move || notes.lock().unwrap().push(what)
    }

    #[tokio::test]
    async fn all_that_waits_is_made_durable_once_and_answered_afterwards() {
        let (lane, notes) = noted(usize::MAX);
        // No job runs before this task waits, so all three jobs wait together.
        let answered = |name: &str| {
            let answered = note(&notes, &format!("{name} answered"));
            let (lane, work) = (lane.clone(), note(&notes, name));
            async move { lane.run(Kind::Writes, work).await.map(|()| answered()) }
        };
        let [a, b, c] = ["a", "b", "c"].map(answered);
        // Holds the lane until all jobs wait.
        let (release, held) = std::sync::mpsc::channel::<()>();
        let holder = lane.clone();
        let hold = async move { holder.run(Kind::Reads, move || held.recv().unwrap()).await };
        let all = async {
            tokio::join!(hold, a, b, c, async {
                tokio::task::yield_now().await;
                release.send(()).unwrap();
            })
        };
        let (held, a, b, c, ()) = all.await;
        assert!(held.is_ok() && a.is_ok() && b.is_ok() && c.is_ok());
        let notes = notes.lock().unwrap();
        assert_eq!(notes[..4], ["a", "b", "c", "sync"], "{notes:?}");
        assert_eq!(notes.len(), 7, "{notes:?}");
    }

    #[tokio::test]
    async fn a_read_alone_makes_the_disk_do_nothing() {
        let (lane, notes) = noted(usize::MAX);
        lane.run(Kind::Reads, note(&notes, "read")).await.unwrap();
        assert_eq!(*notes.lock().unwrap(), ["read"]);
    }

    // What is on the disk after a failed sync is unknown, so nothing may be answered from memory any more.
    #[tokio::test]
    async fn after_a_sync_that_failed_nothing_is_answered() {
        let (lane, notes) = noted(1);
        lane.run(Kind::Writes, note(&notes, "kept")).await.unwrap();
        let refused = lane.run(Kind::Writes, note(&notes, "lost")).await.unwrap_err();
        assert!(refused.to_string().contains("disk full"), "{refused}");
        let refused = lane.run(Kind::Reads, note(&notes, "read")).await.unwrap_err();
        assert!(refused.to_string().contains("fix the disk and restart"), "{refused}");
        assert_eq!(*notes.lock().unwrap(), ["kept", "sync", "lost", "sync"]);
    }

    #[tokio::test]
    async fn a_job_that_panics_takes_no_other_with_it() {
        let (lane, notes) = noted(usize::MAX);
        let broken = lane.run(Kind::Writes, || panic!("on purpose")).await;
        assert!(matches!(broken, Err(Unfinished::Dropped)));
        lane.run(Kind::Writes, note(&notes, "next")).await.unwrap();
        assert_eq!(*notes.lock().unwrap(), ["sync", "next", "sync"]);
    }
}
