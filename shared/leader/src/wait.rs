//! Waiting for a lease: jittered polling, by the record's own time, or by watching for a record that no longer changes.

use crate::lease::{Error, Lease, LeaseStore};
use crate::settings::{Note, Settings, TakeOver, signed};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// A lease as its holder knows it. It lives until `begun` plus its life on this process's monotonic clock, because
/// `begun` was read before the wall clock for the record.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) lease: Lease,
    pub(crate) begun: Instant,
}

/// Polls until this contender has the lease.
pub(crate) async fn for_lease<S: LeaseStore>(store: &S, settings: &Settings, holder: &str) -> Held {
    let mut watch = Watch::default();
    let mut outage = Outage::default();
    loop {
        // A silent store must not delay the next try by more than a renewal interval.
        match timeout(settings.renew_every, watch.look(store, settings, holder))
            .await
            .unwrap_or_else(|_| Err(silent(settings)))
        {
            Ok(found) => {
                outage.over(settings);
                if let Some(held) = found {
                    return held;
                }
            }
            Err(error) => outage.met(settings, &error),
        }
        sleep(Settings::jittered(settings.poll_every)).await;
    }
}

pub(crate) fn silent(settings: &Settings) -> Error {
    format!("lease {}: no answer in time", settings.name).into()
}

/// What a contender remembers between two tries: another's record last seen, and since when it has not changed.
#[derive(Default)]
pub(crate) struct Watch(Option<(Lease, Instant)>);

impl Watch {
    /// Takes the lease if it may be taken.
    pub(crate) async fn look<S: LeaseStore>(
        &mut self,
        store: &S,
        settings: &Settings,
        holder: &str,
    ) -> Result<Option<Held>, Error> {
        let begun = Instant::now();
        let (name, now) = (settings.name.as_str(), settings.now());
        let (life, skew) = (signed(settings.life), signed(settings.skew));
        let taken = match settings.take_over {
            TakeOver::ByWallClock => store.acquire(name, holder, now, life, skew).await?,
            TakeOver::ByWatching => {
                let current = store.read(name).await?;
                match &current {
                    // Our own: its write's answer was lost.
                    Some(lease) if lease.holder == holder => store.renew(lease, now, life).await?,
                    Some(lease) if !lease.is_free() && !self.stood_still(lease, settings) => None,
                    Some(_) | None => {
                        let next = Lease::succeed(current.as_ref(), name, holder, now, life);
                        store.put(next, current.as_ref()).await?
                    }
                }
            }
        };
        Ok(taken.map(|lease| Held { lease, begun }))
    }

    /// Whether the record has not changed for a full life, plus the skew, on this process's clock. Its holder had to
    /// stop within a life of its last write, which was before our first look.
    fn stood_still(&mut self, lease: &Lease, settings: &Settings) -> bool {
        match &self.0 {
            Some((seen, since)) if seen == lease => since.elapsed() >= settings.life + settings.skew,
            Some(_) | None => {
                self.0 = Some((lease.clone(), Instant::now()));
                false
            }
        }
    }
}

/// A period in which the store does not answer.
#[derive(Default)]
pub(crate) struct Outage {
    since: Option<Instant>,
    is_told: bool,
}

impl Outage {
    /// Once the store has been unavailable for a full life, no lease can be alive.
    pub(crate) fn met(&mut self, settings: &Settings, error: &Error) {
        settings.note(Note::StoreFault);
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() < settings.life {
            tracing::warn!(lease = settings.name, "the lease store did not answer, retrying: {}", chain(error));
        } else {
            self.no_leader(settings, error);
        }
    }

    pub(crate) fn no_leader(&mut self, settings: &Settings, error: &Error) {
        self.since.get_or_insert_with(Instant::now);
        if !std::mem::replace(&mut self.is_told, true) {
            tracing::error!(
                lease = settings.name,
                alarm = "no_leader",
                "`{}` has no leader: the lease store is unavailable: {}",
                settings.name,
                chain(error)
            );
            settings.note(Note::NoLeader);
        }
    }

    pub(crate) fn over(&mut self, settings: &Settings) {
        if std::mem::take(self).is_told {
            tracing::info!(lease = settings.name, "the lease store is back");
            settings.note(Note::StoreBack);
        }
    }
}

pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// The wait after a failed renewal: at most a quarter of the time between renewals.
pub(crate) fn pause(settings: &Settings, failures: u32) -> Duration {
    let bound = (settings.renew_every / 16).saturating_mul(1 << failures.min(2));
    Settings::jittered(bound.max(Duration::from_millis(1)))
}
