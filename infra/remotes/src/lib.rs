//! The sample remote services of the reference order workflow: `inventory`, `fraud`, `payment`, `shipping`.
//!
//! They stand for third parties. Over HTTP they apply and undo effects, remember idempotency keys and undo
//! tombstones, and show the faults they are told to. In the process they can be asked whether the effects
//! they hold are the ones a run should have left. They decide nothing about orders: who calls what, when and
//! how often is the caller's.
//!
//! | Route | Does |
//! |---|---|
//! | `POST /NAME/apply` | applies an effect once per `Idempotency-Key` |
//! | `POST /NAME/undo` | takes it back, or bars the key from ever being applied |
//! | `GET /ledger?service=&cursor=&limit=`, `GET /ledger/orders/{order_id}` | what was done, see [`Entry`] |
//! | `POST /check` | compares the effects with what orders should have left, see [`Expected`] and [`Report`] |
//! | `GET /faults`, `PUT /faults`, `PUT /faults/NAME` | the faults, see [`Faults`] |
//! | `GET /counts`, `GET /health` | see [`Counts`]; `{"status": "ok"}` |
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use stepwarden_remotes::{Expected, Remotes, Service};
//!
//! let remotes = Remotes::open(Some("data".as_ref()))?;
//! let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
//! remotes.serve(listener, async { let _ = tokio::signal::ctrl_c().await; }).await?;
//! let left = Expected::Applied(vec![Service::Inventory, Service::Payment]);
//! println!("{}", remotes.check([("order-1".to_owned(), left)])?);
//! # Ok(()) }
//! ```
//!
//! Refusals are `application/problem+json` with a `code` to choose by and a `detail` that says what to write.

mod answer;
mod apply;
mod call;
mod check;
mod counts;
mod db;
mod draw;
mod faults;
mod hash;
mod http;
mod ledger;
mod service;
mod undo;

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use jiff::Timestamp;
use tokio::net::TcpListener;

pub use check::{Expected, Kind, LISTED_MAX, Report, Violation};
pub use counts::{Counts, Fault, ServiceCounts};
pub use db::{Durability, Error, FILE_NAME, OpenError};
pub use faults::{BadFaults, DELAY_MAX_MS, Faults, ServiceFaults};
pub use http::{BODY_MAX, KEY_MAX, ORDER_ID_MAX};
pub use ledger::{Entry, PAGE_DEFAULT, PAGE_MAX, Page};
pub use service::{Service, UnknownService};

/// Tells the time: UTC, used to milliseconds.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Goes on with what is left of a damaged file in `dir`; see [`stepwarden_guard::marks::accept_loss`]. What was done, if
/// anything. Errors when the file cannot be copied or changed.
pub fn accept_loss(dir: &Path) -> io::Result<Option<String>> {
    let now_s = u64::try_from(Timestamp::now().as_second()).unwrap_or_default();
    stepwarden_guard::marks::accept_loss(&dir.join(FILE_NAME), now_s)
}

/// How to open the services.
#[derive(Clone)]
pub struct Options {
    /// The directory of `remotes.db`, made when missing; none: in memory.
    pub path: Option<PathBuf>,
    /// What a commit outlives.
    pub durability: Durability,
    /// The clock of `applied_at`, `undone_at` and of `after_deadline`. Delays pass in real time.
    pub clock: Clock,
}

impl Default for Options {
    /// In memory, by the wall clock.
    fn default() -> Self {
        Self { path: None, durability: Durability::default(), clock: Arc::new(Timestamp::now) }
    }
}

/// The four services behind one listener. A clone is the same services.
#[derive(Clone)]
pub struct Remotes(Arc<Inner>);

struct Inner {
    db: db::Db,
    clock: Clock,
    faults: RwLock<Arc<Faults>>,
    counters: Arc<counts::Counters>,
}

impl Remotes {
    /// Opens the services by the wall clock, in `dir/remotes.db` or in memory. What was answered before the
    /// process was killed is still known. Errors when the directory or the file cannot be used.
    pub fn open(dir: Option<&Path>) -> Result<Self, OpenError> {
        Self::open_with(Options { path: dir.map(Path::to_owned), ..Options::default() })
    }

    /// As [`Remotes::open`], with a clock and a durability of one's own.
    pub fn open_with(options: Options) -> Result<Self, OpenError> {
        Ok(Self(Arc::new(Inner {
            db: db::Db::open(options.path.as_deref(), options.durability)?,
            clock: options.clock,
            faults: RwLock::default(),
            counters: Arc::default(),
        })))
    }

    /// Serves HTTP until `shutdown` completes; then answers what is under way, cuts the calls that hang, and
    /// returns within about a second. Errors when the listener fails.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        http::serve(self.clone(), listener, shutdown).await
    }

    /// Replaces all settings, from the next call on. Errors as [`Faults::validate`], changing nothing.
    pub fn set_faults(&self, faults: Faults) -> Result<(), BadFaults> {
        self.change_faults(|current| *current = faults)
    }

    /// Replaces the settings of one service. Errors as [`ServiceFaults::validate`], changing nothing.
    pub fn set_service_faults(&self, service: Service, faults: ServiceFaults) -> Result<(), BadFaults> {
        self.change_faults(|current| {
            current.services.insert(service, faults);
        })
    }

    /// The settings in force, every service listed.
    pub fn faults(&self) -> Faults {
        self.current_faults().complete()
    }

    /// What was asked of each service and which faults it showed, since it was opened.
    pub fn counts(&self) -> Counts {
        self.0.counters.read()
    }

    /// The entries of an order, none when it is unknown. Blocks for a moment, like every method that reads.
    pub fn order_ledger(&self, order_id: &str) -> Result<Vec<Entry>, Error> {
        let order_id = order_id.to_owned();
        self.0.db.run_blocking(move |conn| ledger::of_order(conn, &order_id))
    }

    /// Compares the effects with what the orders should have left. Orders in the ledger that `expected` does
    /// not name are violations. Means something only while no call is under way. Blocks until all is read.
    pub fn check(&self, expected: impl IntoIterator<Item = (String, Expected)>) -> Result<Report, Error> {
        let mut tallies = check::Tallies::default();
        let mut after = 0;
        loop {
            let effects = (self.0.db).run_blocking(move |conn| check::effects_after(conn, after))?;
            let Some(last) = effects.last() else { break };
            after = last.seq;
            effects.iter().for_each(|effect| tallies.add_effect(effect));
        }
        let mut after = 0;
        loop {
            let orders = (self.0.db).run_blocking(move |conn| check::orders_after(conn, after))?;
            let Some((last, _)) = orders.last() else {
                break;
            };
            after = *last;
            orders.into_iter().for_each(|(_, id)| tallies.add_order(id));
        }
        Ok(tallies.compare(expected.into_iter()))
    }

    fn current_faults(&self) -> Arc<Faults> {
        let faults = self.0.faults.read();
        Arc::clone(&faults.unwrap_or_else(PoisonError::into_inner))
    }

    fn change_faults(&self, change: impl FnOnce(&mut Faults)) -> Result<(), BadFaults> {
        let mut current = (self.0.faults.write()).unwrap_or_else(PoisonError::into_inner);
        let mut changed = (**current).clone();
        change(&mut changed);
        changed.validate()?;
        *current = Arc::new(changed);
        Ok(())
    }
}

impl fmt::Debug for Remotes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remotes").finish_non_exhaustive()
    }
}
