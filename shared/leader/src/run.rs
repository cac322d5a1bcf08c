//! A tenure, from waiting for the lease to giving it back.

use crate::lease::LeaseStore;
use crate::settings::{Note, Settings, signed};
use crate::wait::{Held, Outage, for_lease, pause, silent};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

/// How a tenure ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended<T> {
    /// The work returned while the lease lived.
    Completed(T),
    /// The lease was lost, or could not be renewed in time. Another contender may lead.
    Lost,
    /// The caller cancelled, while waiting or while leading.
    Cancelled,
    /// The work reported no progress for too long.
    Stalled,
    /// The longest tenure is over. Wait a little before contending again, so that others get a turn.
    TenureOver,
}

/// Why the work is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The lease was lost, or could not be renewed in time.
    Lost,
    /// The caller of [`run_while_leader`] cancelled.
    Cancelled,
    /// The work reported no progress for too long.
    Stalled,
    /// The longest tenure is over.
    TenureOver,
}

impl<T> From<Cause> for Ended<T> {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Lost => Self::Lost,
            Cause::Cancelled => Self::Cancelled,
            Cause::Stalled => Self::Stalled,
            Cause::TenureOver => Self::TenureOver,
        }
    }
}

/// The work's view of its tenure. Clones share one tenure.
#[derive(Clone, Debug)]
pub struct Leadership(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    token: u64,
    life: Duration,
    cancel: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    held: Held,
    progress: Instant,
    cause: Option<Cause>,
}

impl Leadership {
    fn new(held: Held, life: Duration) -> Self {
        let token = held.lease.token;
        let state = Mutex::new(State { held, progress: Instant::now(), cause: None });
        Self(Arc::new(Inner { token, life, cancel: CancellationToken::new(), state }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fencing token, which rises with every change of leader. Every write made as leader carries it, and the store
    /// must refuse a token older than the last one seen.
    #[must_use]
    pub fn token(&self) -> u64 {
        self.0.token
    }

    /// Reports progress. Without reports the work is cancelled after [`Settings::progress_within`].
    pub fn progress(&self) {
        self.state().progress = Instant::now();
    }

    /// Completes when the work must stop; it then has [`Settings::wind_down`] to return before it is dropped.
    pub async fn cancelled(&self) -> Cause {
        self.0.cancel.cancelled().await;
        self.cause().unwrap_or(Cause::Lost)
    }

    /// [`Self::cancelled`] as a cancellation token.
    #[must_use]
    pub fn cancellation(&self) -> CancellationToken {
        self.0.cancel.clone()
    }

    /// Why the work must stop; `None` while it may continue. Called before an action, it also detects, by the clock, a
    /// lease that ended while this process was frozen.
    #[must_use]
    pub fn cause(&self) -> Option<Cause> {
        let state = self.state();
        state.cause.or_else(|| (Instant::now() >= state.held.begun + self.0.life).then_some(Cause::Lost))
    }

    /// How much longer the lease lives unless it is renewed.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        (self.state().held.begun + self.0.life).saturating_duration_since(Instant::now())
    }

    fn cancel(&self, cause: Cause) {
        self.state().cause.get_or_insert(cause);
        self.0.cancel.cancel();
    }

    fn held(&self) -> Held {
        self.state().held.clone()
    }
}

/// Waits for the lease, runs `work` under it, and returns how the tenure ended.
///
/// The work is a future of this task. [`Leadership::cancelled`] tells it to stop; it then has [`Settings::wind_down`]
/// to return, and is dropped, all before the lease can end on the slowest clock. It must itself end what it spawned
/// elsewhere. The lease is given back if the work has returned and the lease was not lost. If the work was dropped or
/// panicked, the lease expires.
pub async fn run_while_leader<S, F, W>(
    store: &S,
    settings: &Settings,
    cancel: &CancellationToken,
    work: F,
) -> Ended<W::Output>
where
    S: LeaseStore,
    F: FnOnce(Leadership) -> W,
    W: Future,
{
    settings.check();
    let holder = settings.new_holder();
    let held = tokio::select! {
        biased;
        () = cancel.cancelled() => return Ended::Cancelled,
        held = for_lease(store, settings, &holder) => held,
    };
    let leadership = Leadership::new(held, settings.life);
    let token = leadership.token();
    tracing::info!(lease = settings.name, holder, token, "leads");
    settings.note(Note::Elected { token });

    let mut work = pin!(work(leadership.clone()));
    let (ended, is_clean) = {
        let mut duty = pin!(watch_over(store, settings, &leadership, cancel));
        tokio::select! {
            biased;
            output = &mut work => match leadership.cause() {
                None => (Ended::Completed(output), true),
                // The lease ended while the thread was frozen.
                Some(cause) => (cause.into(), false),
            },
            cause = &mut duty => {
                leadership.cancel(cause);
                let has_returned = timeout(settings.wind_down, &mut work).await.is_ok();
                (cause.into(), has_returned && cause != Cause::Lost)
            }
        }
    };
    if is_clean {
        let lease = leadership.held().lease;
        match timeout(leadership.time_left(), store.release(&lease)).await {
            Ok(Ok(())) => {}
            // The lease expires.
            Ok(Err(_)) | Err(_) => tracing::warn!(lease = settings.name, token, "the lease could not be released"),
        }
    }
    tracing::info!(lease = settings.name, token, cause = ?leadership.state().cause, "no longer leads");
    settings.note(Note::Ended);
    ended
}

/// Renews the lease until the work has to stop.
async fn watch_over<S: LeaseStore>(
    store: &S,
    settings: &Settings,
    leadership: &Leadership,
    cancel: &CancellationToken,
) -> Cause {
    let tenure_over = settings.tenure.map(|tenure| leadership.held().begun + tenure);
    tokio::select! {
        biased;
        () = cancel.cancelled() => Cause::Cancelled,
        () = until(tenure_over) => Cause::TenureOver,
        () = stalled(settings, leadership) => Cause::Stalled,
        () = renew_until_lost(store, settings, leadership) => Cause::Lost,
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Completes when the work has reported no progress for too long. Checked before every renewal, so that a hung leader's
/// lease is not renewed again.
async fn stalled(settings: &Settings, leadership: &Leadership) {
    let Some(within) = settings.progress_within else { return std::future::pending().await };
    loop {
        let at = leadership.state().progress + within;
        if Instant::now() >= at {
            tracing::warn!(lease = settings.name, token = leadership.token(), "the leader makes no progress");
            return;
        }
        sleep_until(at).await;
    }
}

async fn renew_until_lost<S: LeaseStore>(store: &S, settings: &Settings, leadership: &Leadership) {
    let mut outage = Outage::default();
    loop {
        let held = leadership.held();
        let stop_at = held.begun + settings.life - settings.wind_down;
        sleep_until(held.begun + settings.renew_every).await;
        let mut failures = 0;
        loop {
            let begun = Instant::now();
            if begun >= stop_at {
                outage.no_leader(settings, &silent(settings));
                return;
            }
            let renewal = store.renew(&held.lease, settings.now(), signed(settings.life));
            // A call without an answer must leave time for others.
            let attempt = timeout_at(stop_at.min(begun + settings.renew_every / 3), renewal).await;
            match attempt.unwrap_or_else(|_| Err(silent(settings))) {
                Ok(Some(lease)) => {
                    outage.over(settings);
                    settings.note(Note::Renewed);
                    leadership.state().held = Held { lease, begun };
                    break;
                }
                Ok(None) => {
                    tracing::warn!(lease = settings.name, token = held.lease.token, "the lease was taken");
                    return;
                }
                Err(error) => {
                    outage.met(settings, &error);
                    failures += 1;
                    let next = Instant::now() + pause(settings, failures);
                    sleep_until(next.min(stop_at)).await;
                    if Instant::now() >= stop_at {
                        outage.no_leader(settings, &error);
                        return;
                    }
                }
            }
        }
    }
}
