//! SQS, DynamoDB and EventBridge in the program's own process.
//!
//! The local program speaks to AWS's services through the official SDKs, as the Lambda functions do; only the other end
//! is here. An SDK reaches it through an in-process connector ([`Endpoints::http_client`]), the aws CLI and programs in
//! other languages through a loopback listener ([`Endpoints::serve`]). Frequent calls of the same process leave out the SDK's
//! orchestration ([`Endpoints::connector`]). All speak the AWS JSON protocol to one dispatch by `x-amz-target`. Signatures are
//! not checked: any credentials are accepted.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let endpoints = stepwarden_embedded::Endpoints::open(&Default::default())?;
//! let config = aws_sdk_sqs::Config::builder()
//!     .behavior_version_latest()
//!     .region(aws_sdk_sqs::config::Region::new("us-east-1"))
//!     .credentials_provider(aws_sdk_sqs::config::Credentials::new("any", "any", None, None, "any"))
//!     .endpoint_url("http://localhost")
//!     .http_client(endpoints.http_client())
//!     .build();
//! let sqs = aws_sdk_sqs::Client::from_conf(config);
//! # Ok(()) }
//! ```
//!
//! # What is offered
//!
//! - SQS: SendMessage, SendMessageBatch, ReceiveMessage, DeleteMessage, DeleteMessageBatch, ChangeMessageVisibility,
//!   ChangeMessageVisibilityBatch, CreateQueue, DeleteQueue, PurgeQueue, GetQueueUrl, ListQueues, GetQueueAttributes, SetQueueAttributes, StartMessageMoveTask. The list is
//!   frozen: it is what somebody in this repository calls, and any other operation gets UnsupportedOperation.
//!   Over HTTP a consumer may stay connected, so that what it holds comes back at once when it ends (`sqs::consumers`).
//! - DynamoDB: what dynoxide offers of items, queries, batches, transactions, tables and times to live.
//! - EventBridge: PutEvents, CreateEventBus.
//!
//! # What is kept
//!
//! Every write that was answered with success is kept as [`Durability`] says, except deletes, receive counts and moves
//! to a dead-letter queue. These are stored within 50 ms; if they are lost in a crash, the message is redelivered. A
//! receive that the end of the process cuts short does not count. After opening, all messages that were not deleted are
//! visible once their delay is over. A queue's messages are in memory too.
//!
//! As on AWS, a message may be received before its send is answered. Its receiver does not wait for the disk.
//!
//! # Time
//!
//! Delays, visibility timeouts and timestamps follow tokio's clock, so they pass under a paused
//! clock in tests. A laptop that slept catches up with the wall clock.

mod ahead;
mod answer;
mod clock;
mod connector;
mod counts;
mod dispatch;
mod dynamodb;
mod events;
mod expressions;
mod fault;
mod lane;
mod listener;
mod open;
mod service;
mod sqs;
mod store;
mod together;
mod tokens;

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use aws_smithy_runtime_api::client::http::{SharedHttpClient, SharedHttpConnector, http_client_fn};
use stepwarden_guard::marks;
use tokio::net::TcpListener;

pub use counts::{Counts, OperationCounts};
pub use events::{EVENTS_KEPT, Events};
pub use fault::{Call, Fault};
pub use open::OpenError;
pub use service::Service;
pub use sqs::QueueStat;
pub use stepwarden_guard::marks::Durability;
pub use store::Event;

use clock::Clock;
use counts::Counters;
use dynamodb::DynamoDb;
use sqs::Sqs;
use store::{Loaded, Store};

/// How to open the endpoints. The default keeps everything in memory.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Holds `queues.db`, `tables.db` and `lock`; created if missing. `None`: memory.
    pub data_dir: Option<PathBuf>,
    /// Has no effect in memory.
    pub durability: Durability,
}

/// Decides what goes wrong with a call; see [`Endpoints::set_fault_hook`].
pub type FaultHook = Arc<dyn Fn(&Call<'_>) -> Option<Fault> + Send + Sync>;

/// The three services. Cheap to clone; closed when the last clone, and the last client or connector made with it, is
/// dropped.
#[derive(Clone)]
pub struct Endpoints(Arc<Inner>);

pub(crate) struct Inner {
    pub sqs: Arc<Sqs>,
    pub dynamodb: DynamoDb,
    pub events: Arc<Events>,
    pub counters: Arc<Counters>,
    pub fault_hook: RwLock<Option<FaultHook>>,
}

impl Endpoints {
    /// Opens the endpoints and reads the stored data. Blocks until the data is read.
    ///
    /// Errors are one line and name the file or directory.
    pub fn open(options: &Options) -> Result<Self, OpenError> {
        let clock = Arc::new(Clock::start());
        let counters = Arc::new(Counters::default());
        let (store, mut loaded, dynamodb) = match &options.data_dir {
            None => {
                let dynamodb = DynamoDb::memory(Arc::clone(&clock), Arc::clone(&counters))
                    .map_err(|error| of_dynoxide(Path::new(":memory:"), &error))?;
                (Store::Memory, Loaded::default(), dynamodb)
            }
            Some(dir) => open_files(dir, options.durability, &clock, &counters)?,
        };
        let sqs = Sqs::new(store.clone(), &mut loaded, Arc::clone(&clock), Arc::clone(&counters));
        let events = Events::new(store, &mut loaded, clock, Arc::clone(&counters));
        Ok(Self(Arc::new(Inner {
            sqs: Arc::new(sqs),
            dynamodb,
            events: Arc::new(events),
            counters,
            fault_hook: RwLock::new(None),
        })))
    }

    /// An HTTP client for the AWS SDKs of SQS, DynamoDB and EventBridge that calls the endpoints without HTTP. Works
    /// with any endpoint URL and any credentials.
    pub fn http_client(&self) -> SharedHttpClient {
        let connector = self.connector();
        http_client_fn(move |_, _| connector.clone())
    }

    /// What answers an SDK's requests, for a caller that needs no more of the SDK. Of the headers only `x-amz-target` counts.
    pub fn connector(&self) -> SharedHttpConnector {
        SharedHttpConnector::new(self.clone())
    }

    /// Serves the same endpoints over HTTP/1.1 until `shutdown` is ready and requests in progress are answered.
    ///
    /// On a loopback address only requests to names of this machine are answered. There is no
    /// authentication: do not listen on other addresses.
    pub async fn serve(
        &self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        listener::serve(Arc::clone(&self.0), listener, Box::pin(shutdown)).await
    }

    /// Calls since opening.
    pub fn counts(&self) -> Counts {
        self.0.counters.snapshot()
    }

    /// The stored EventBridge events.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// All queues, in the order of names.
    pub fn queue_stats(&self) -> Vec<QueueStat> {
        self.0.sqs.stats()
    }

    /// Sets a hook that decides before each call whether it fails, and how. `None`: no faults.
    pub fn set_fault_hook(&self, hook: Option<FaultHook>) {
        *self.0.fault_hook.write().unwrap_or_else(PoisonError::into_inner) = hook;
    }
}

/// Continues with what is left of the damaged files in `dir`; see [`stepwarden_guard::marks::accept_loss`]. Returns a
/// line for each thing that was done.
pub fn accept_loss(dir: &Path) -> Result<Vec<String>, OpenError> {
    if !dir.exists() {
        return Ok(Vec::new());
    }
    let lock = open::lock_directory(dir)?;
    let now_s = u64::try_from(Clock::start().now_ms() / 1000).unwrap_or_default();
    let accept = |name: &str| {
        let file = dir.join(name);
        let done = marks::accept_loss(&file, now_s);
        done.map_err(|error| OpenError::File { file, reason: error.to_string() })
    };
    let done = [accept(QUEUES)?, accept(TABLES)?];
    drop(lock);
    Ok(done.into_iter().flatten().collect())
}

impl std::fmt::Debug for Endpoints {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoints").finish_non_exhaustive()
    }
}

const QUEUES: &str = "queues.db";
const TABLES: &str = "tables.db";

fn open_files(
    dir: &Path,
    durability: Durability,
    clock: &Arc<Clock>,
    counters: &Arc<Counters>,
) -> Result<(Store, Loaded, DynamoDb), OpenError> {
    let lock = open::lock_directory(dir)?;
    let (queues, tables) = (dir.join(QUEUES), dir.join(TABLES));
    let after_kill = marks::was_killed(&queues);
    let is_as_left = marks::was_closed(&tables);
    for file in [&queues, &tables] {
        open::check(file)?;
        open::create(file)?;
    }
    if !is_as_left {
        open::mend_indexes(&tables)?;
    }
    let (store, loaded) = Store::open(&queues, durability, after_kill, Arc::clone(&lock), Arc::clone(counters))
        .map_err(|error| of_store(&queues, error))?;
    let dynamodb = DynamoDb::file(&tables, durability, lock, Arc::clone(clock), Arc::clone(counters))
        .map_err(|error| of_dynoxide(&tables, &error))?;
    Ok((store, loaded, dynamodb))
}

fn of_store(file: &Path, error: store::Error) -> OpenError {
    match error {
        store::Error::Newer(_) => OpenError::Newer { file: file.into(), reason: error.to_string() },
        store::Error::Sqlite(error) => open::of_sqlite(file, &error),
        store::Error::Mark(_) => OpenError::File { file: file.into(), reason: error.to_string() },
    }
}

fn of_dynoxide(file: &Path, error: &dynoxide::DynoxideError) -> OpenError {
    match error {
        dynoxide::DynoxideError::SqliteError(error) => open::of_sqlite(file, error),
        other => {
            let (file, reason) = (file.into(), marks::one_line(&other.to_string()));
            if reason.contains("newer") { OpenError::Newer { file, reason } } else { OpenError::File { file, reason } }
        }
    }
}

/// What a person can do about `error`, as the end of its message in the log.
fn what_to_do(error: &impl std::fmt::Display) -> &'static str {
    let text = error.to_string();
    let is_full = ["disk is full", "No space left"].iter().any(|words| text.contains(words));
    if is_full { "; free disk space: until then nothing new is accepted, and nothing accepted is lost" } else { "" }
}
