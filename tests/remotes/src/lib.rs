//! The sample remote services of the reference order workflow: `inventory`, `fraud`, `payment`, `shipping`.
//!
//! They stand for third parties. Over HTTP they apply and undo effects, remember idempotency keys and undo tombstones,
//! and show the faults they are configured for. Within the process they can check whether their effects are the ones
//! that a run should have left. They decide nothing about orders: that is up to the caller.
//!
//! | Route | Does |
//! |---|---|
//! | `POST /NAME/apply` | applies an effect once per `Idempotency-Key` |
//! | `POST /NAME/undo` | takes it back, or bars the key from ever being applied |
//! | `GET /ledger?service=&cursor=&limit=`, `GET /ledger/orders/{order_id}` | what was done, see [`Entry`] |
//! | `POST /check` | compares the effects with what orders should have left, see [`Expected`] and [`Report`] |
//! | `GET /faults`, `PUT /faults`, `PUT /faults/NAME` | the faults, see [`Faults`] |
//! | `GET /health` | `{"status": "ok"}` |
//!
//! Refusals are `application/problem+json` with a `code` to choose by and a `detail` that says what to write.

mod check;
mod counts;
mod draw;
mod faults;
mod file;
mod http;
mod rules;
mod service;

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use tokio::net::TcpListener;

pub use check::{Expected, Kind, Report, Violation};
pub use counts::{Counts, Fault, ServiceCounts};
pub use faults::{Faults, Mistake, ServiceFaults};
pub use file::{FILE_NAME, OpenError, accept_loss, examine};
pub use http::{BODY_MAX, KEY_MAX};
pub use rules::Entry;
pub use service::Service;

/// The four services behind one listener. Clones share them.
#[derive(Clone, Debug)]
pub struct Remotes(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    ledger: Mutex<file::Ledger>,
    faults: RwLock<Arc<Faults>>,
    counters: counts::Counters,
}

impl Remotes {
    /// Opens the services, in `dir/remotes.log` or in memory. They still know what was answered before the process was
    /// killed. Errors if the directory or the file cannot be used.
    pub fn open(dir: Option<&Path>) -> Result<Self, OpenError> {
        let ledger = Mutex::new(file::Ledger::open(dir)?);
        Ok(Self(Arc::new(Inner { ledger, faults: RwLock::default(), counters: counts::Counters::default() })))
    }

    /// Serves HTTP until `shutdown` completes; then answers running calls, cuts the calls that hang, and returns within
    /// about a second. Errors if the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        http::serve(self.clone(), listener, shutdown).await
    }

    /// Replaces all settings, from the next call on. Errors as [`Faults::validate`], changing nothing.
    pub fn set_faults(&self, faults: Faults) -> Result<(), Mistake> {
        self.change_faults(|current| *current = faults)
    }

    /// Replaces the settings of one service. Errors as [`Faults::validate`], changing nothing.
    pub fn set_service_faults(&self, service: Service, faults: ServiceFaults) -> Result<(), Mistake> {
        self.change_faults(|current| {
            current.services.insert(service, faults);
        })
    }

    /// The current settings, with every service listed.
    pub fn faults(&self) -> Faults {
        self.current_faults().complete()
    }

    /// What each service was asked and which faults it showed, since it was opened.
    pub fn counts(&self) -> Counts {
        self.0.counters.read()
    }

    /// The entries of an order, none if it is unknown. Reads the whole ledger.
    pub fn order_ledger(&self, order_id: &str) -> io::Result<Vec<Entry>> {
        let rows = self.ledger().rows(|row| row.is_forward() && row.order_id == order_id, 0, usize::MAX)?;
        Ok(rows.into_iter().flat_map(|(_, row)| row.entries()).collect())
    }

    /// Compares the effects with what the orders should have left. Orders in the ledger that `expected` does not name
    /// are violations. Meaningful only while no call is running. Blocks until everything is read.
    pub fn check(&self, expected: impl IntoIterator<Item = (String, Expected)>) -> io::Result<Report> {
        let mut tallies = check::Tallies::default();
        let mut after = 0;
        loop {
            let rows = self.ledger().rows(rules::Row::is_forward, after, check::READ_MAX)?;
            let Some((last, _)) = rows.last() else { return Ok(tallies.compare(expected.into_iter())) };
            after = *last;
            rows.iter().for_each(|(_, row)| tallies.add(row));
        }
    }

    fn ledger(&self) -> MutexGuard<'_, file::Ledger> {
        self.0.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current_faults(&self) -> Arc<Faults> {
        Arc::clone(&self.0.faults.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn change_faults(&self, change: impl FnOnce(&mut Faults)) -> Result<(), Mistake> {
        let mut current = self.0.faults.write().unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**current).clone();
        change(&mut changed);
        changed.validate()?;
        *current = Arc::new(changed);
        Ok(())
    }
}
