//! A lease for work that comes in ticks: held between them, renewed at half its life.

use crate::lease::{Error, Lease, LeaseStore};
use crate::settings::{Note, Settings, signed};
use crate::wait::{Held, Outage, Watch, silent};
use tokio::time::{Instant, timeout};

/// A lease to ask for before every piece of work. It is not renewed by itself, so a holder that hangs or is frozen, and
/// stops asking, loses the lease after its life.
pub struct Hold {
    settings: Settings,
    holder: String,
    held: Option<Held>,
    outage: Outage,
    watch: Watch,
}

impl Hold {
    /// A lease that is not held yet. Renewal is due at half the life, not by [`Settings::renew_every`].
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let holder = settings.new_holder();
        Self { settings, holder, held: None, outage: Outage::default(), watch: Watch::default() }
    }

    /// The lease, if this process holds, gets or renews it; `None` if another contender leads. Free in the first half
    /// of its life.
    ///
    /// # Errors
    /// The store failed and this process has no live lease. A live lease survives the fault.
    pub async fn lead<S: LeaseStore>(&mut self, store: &S) -> Result<Option<Lease>, Error> {
        if let Some(held) = self.held.take() {
            let begun = Instant::now();
            let age = begun.saturating_duration_since(held.begun);
            if age < self.settings.life / 2 {
                return Ok(Some(self.held.insert(held).lease.clone()));
            }
            let stop_after = self.settings.life.saturating_sub(self.settings.wind_down);
            if age < stop_after {
                let renewal = store.renew(&held.lease, self.settings.now(), signed(self.settings.life));
                match timeout(stop_after - age, renewal).await.unwrap_or_else(|_| Err(silent(&self.settings))) {
                    Ok(Some(lease)) => {
                        self.outage.over(&self.settings);
                        self.settings.note(Note::Renewed);
                        return Ok(Some(self.held.insert(Held { lease, begun }).lease.clone()));
                    }
                    Ok(None) => self.end("taken"),
                    Err(error) if held.begun.elapsed() < stop_after => {
                        self.outage.met(&self.settings, &error);
                        return Ok(Some(self.held.insert(held).lease.clone()));
                    }
                    Err(error) => {
                        self.end("not renewed in time");
                        self.outage.no_leader(&self.settings, &error);
                        return Err(error);
                    }
                }
            } else {
                self.end("not renewed in time");
            }
        }
        let look = self.watch.look(store, &self.settings, &self.holder);
        let taken = timeout(self.settings.life / 2, look).await;
        match taken.unwrap_or_else(|_| Err(silent(&self.settings))) {
            Ok(None) => {
                self.outage.over(&self.settings);
                Ok(None)
            }
            Ok(Some(held)) => {
                self.outage.over(&self.settings);
                self.settings.note(Note::Elected { token: held.lease.token });
                Ok(Some(self.held.insert(held).lease.clone()))
            }
            Err(error) => {
                self.outage.met(&self.settings, &error);
                Err(error)
            }
        }
    }

    /// Whether the lease is held and alive, by this process's own clock.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.held.as_ref().is_some_and(|held| held.begun.elapsed() < self.settings.life)
    }

    /// Gives the lease back, if it is held.
    ///
    /// # Errors
    /// The store failed; the lease then expires by itself.
    pub async fn release<S: LeaseStore>(&mut self, store: &S) -> Result<(), Error> {
        let Some(held) = self.held.take() else { return Ok(()) };
        self.end("released");
        store.release(&held.lease).await
    }

    /// The next tenure has a new holder's name, so an ended lease's token is never reused.
    fn end(&mut self, why: &str) {
        tracing::debug!(lease = self.settings.name, "no longer leads: {why}");
        self.holder = self.settings.new_holder();
        self.settings.note(Note::Ended);
    }
}
