//! One job at a time on tokio's blocking pool, in order of arrival.
//!
//! SQLite has one writer, so handing each call to a blocking thread of its own would only make
//! threads queue on a mutex. Here the first caller starts a runner and the runner works until
//! nothing is left: under load one thread runs job after job without a context switch between.
//! The blocking pool, and not a thread of our own, because tokio's paused clock stands still while
//! a blocking task runs; it would run on while a plain thread works.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: bool,
}

#[derive(Clone, Default)]
pub(crate) struct Lane {
    state: Arc<Mutex<State>>,
}

/// The job panicked or the runtime is shutting down.
#[derive(Debug, thiserror::Error)]
#[error("the call was not finished")]
pub(crate) struct Unfinished;

impl Lane {
    /// Runs `work` after everything handed in before it and waits for its result. The work is done
    /// even if the caller stops waiting.
    pub async fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Unfinished> {
        let (answer, answered) = oneshot::channel();
        let job: Job = Box::new(move || {
            let _ = answer.send(work());
        });
        let start = {
            let mut state = lock(&self.state);
            state.waiting.push_back(job);
            !std::mem::replace(&mut state.running, true)
        };
        if start {
            let mut runner = Runner { state: Arc::clone(&self.state), finished: false };
            tokio::task::spawn_blocking(move || runner.run());
        }
        answered.await.map_err(|_| Unfinished)
    }
}

struct Runner {
    state: Arc<Mutex<State>>,
    finished: bool,
}

impl Runner {
    fn run(&mut self) {
        loop {
            let job = {
                let mut state = lock(&self.state);
                match state.waiting.pop_front() {
                    Some(job) => job,
                    None => {
                        state.running = false;
                        self.finished = true;
                        return;
                    }
                }
            };
            // A job that panics drops its answer, which its caller sees; the next one runs.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }
}

/// A runner the runtime dropped before it ran must not leave the lane marked as running.
impl Drop for Runner {
    fn drop(&mut self) {
        if !self.finished {
            let mut state = lock(&self.state);
            state.running = false;
            state.waiting.clear();
        }
    }
}

fn lock(state: &Mutex<State>) -> std::sync::MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
