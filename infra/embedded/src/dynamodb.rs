//! DynamoDB: dynoxide's engine, called in process.
//!
//! JSON is read and written in the caller's task, so that both cores of a laptop can work. Only the engine's work goes
//! through the lane: one call at a time, because SQLite has one writer, and one fsync for all calls that waited. In
//! memory a call takes some 40 us, less than passing it to another thread would cost, so it runs in the caller's task.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dynoxide::actions::create_table::CreateTableRequest;
use dynoxide::actions::transact_write_items::{TransactWriteItemsRequest, TransactWriteItemsResponse};
use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwarden_guard::marks::Marked;

use crate::Durability;
use crate::ahead::Ahead;
use crate::answer::Answer;
use crate::clock::Clock;
use crate::counts::Counters;
use crate::expressions;
use crate::lane::{self, Kind, Lane};
use crate::rows;
use crate::tokens::{self, Tokens};

/// What `call` knows.
pub(crate) const OPERATIONS: [&str; 17] = [
    "PutItem",
    "UpdateItem",
    "GetItem",
    "DeleteItem",
    "Query",
    "Scan",
    "BatchGetItem",
    "BatchWriteItem",
    "TransactWriteItems",
    "TransactGetItems",
    "CreateTable",
    "UpdateTable",
    "DescribeTable",
    "DeleteTable",
    "ListTables",
    "UpdateTimeToLive",
    "DescribeTimeToLive",
];

/// Longest client request token.
const MAX_TOKEN: usize = 36;
/// Milliseconds between two sweeps for items whose time to live has ended. DynamoDB takes days.
const SWEEP_MS: i64 = 60_000;

pub(crate) struct DynamoDb {
    /// `None`: calls run in the caller's task. Dropped before the engine, which holds the lock of the directory.
    lane: Option<Lane>,
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    counters: Arc<Counters>,
    swept_ms: AtomicI64,
}

struct Engine {
    database: Arc<Marked<Database>>,
    file: Option<PathBuf>,
    /// Tokens of completed transactions.
    tokens: Tokens<TransactWriteItemsResponse>,
    /// Held for as long as a call may be in progress.
    _lock: Option<Arc<File>>,
}

type Outcome<T> = Result<T, DynoxideError>;

impl DynamoDb {
    pub fn memory(clock: Arc<Clock>, counters: Arc<Counters>) -> Outcome<Self> {
        let database = Arc::new(Marked::memory(Database::memory_with_clock(clock.clone())?));
        Ok(Self::new(Engine { database, file: None, tokens: Tokens::default(), _lock: None }, None, clock, counters))
    }

    pub fn file(
        path: &Path,
        durability: Durability,
        lock: Arc<File>,
        clock: Arc<Clock>,
        counters: Arc<Counters>,
    ) -> Outcome<Self> {
        let database = Database::new(&path.to_string_lossy())?;
        // Sets synchronous=NORMAL: SQLite then syncs around checkpoints only, and a commit survives the end of the process.
        database.disable_bulk_loading()?;
        if !log_of(path).exists() {
            let reason = "its file system cannot keep SQLite's write-ahead log; put the data on a local disk";
            return Err(DynoxideError::InternalServerError(reason.into()));
        }
        let unusable = |error: io::Error| {
            DynoxideError::InternalServerError(format!("its checksum file cannot be written: {error}"))
        };
        let database = Arc::new(Marked::open(database, path, durability.survives()).map_err(unusable)?);
        let sync: lane::Sync = match durability {
            Durability::Full => sync_log(path, Arc::clone(&counters)),
            Durability::Process => Box::new(|| Ok(())),
        };
        let (marked, ahead) = (Arc::clone(&database), Mutex::new(Ahead::of(durability, &log_of(path))));
        let sync: lane::Sync = Box::new(move || {
            // What was written before the sync is on the disk after it.
            let head = marked.head();
            if let Some(ahead) = &mut *ahead.lock().unwrap_or_else(PoisonError::into_inner) {
                ahead.reserve(head);
            }
            sync()?;
            marked.note(head);
            Ok(())
        });
        let file = Some(path.to_owned());
        let engine = Engine { database, file, tokens: Tokens::default(), _lock: Some(lock) };
        Ok(Self::new(engine, Some(Lane::new(sync)), clock, counters))
    }

    fn new(engine: Engine, lane: Option<Lane>, clock: Arc<Clock>, counters: Arc<Counters>) -> Self {
        let swept_ms = AtomicI64::new(clock.now_ms());
        Self { engine: Arc::new(engine), lane, clock, counters, swept_ms }
    }

    pub async fn call(&self, operation: &str, body: &[u8]) -> Answer {
        self.sweep_now_and_then();
        let outcome = match operation {
            "PutItem" => self.run(Kind::Writes, body, Database::put_item).await,
            "UpdateItem" => self.run(Kind::Writes, body, Database::update_item).await,
            "DeleteItem" => self.run(Kind::Writes, body, Database::delete_item).await,
            "GetItem" => self.run(Kind::Reads, body, Database::get_item).await,
            "Query" => self.search(body, Database::query, |answer| answer.scanned_count).await,
            "Scan" => self.search(body, Database::scan, |answer| answer.scanned_count).await,
            "BatchGetItem" => self.run(Kind::Reads, body, Database::batch_get_item).await,
            "BatchWriteItem" => self.run(Kind::Writes, body, Database::batch_write_item).await,
            "TransactWriteItems" => self.transact_write(body).await,
            "TransactGetItems" => self.run(Kind::Reads, body, Database::transact_get_items).await,
            "CreateTable" => self.create_table(body).await,
            "UpdateTable" => self.run(Kind::Writes, body, Database::update_table).await,
            "DescribeTable" => self.run(Kind::Reads, body, Database::describe_table).await,
            "DeleteTable" => self.run(Kind::Writes, body, Database::delete_table).await,
            "ListTables" => self.run(Kind::Reads, body, Database::list_tables).await,
            "UpdateTimeToLive" => self.run(Kind::Writes, body, Database::update_time_to_live).await,
            "DescribeTimeToLive" => self.run(Kind::Reads, body, Database::describe_time_to_live).await,
            _ => {
                let kind = "com.amazon.coral.service#UnknownOperationException";
                return Answer::error(400, kind, "");
            }
        };
        match outcome {
            Ok(body) => Answer::ok_bytes(body),
            Err(error) => {
                if error.status_code() >= 500 {
                    tracing::error!("dynamodb: {operation} failed: {error}");
                }
                Answer { status: error.status_code(), body: error.to_json().into_bytes(), query_error: None }
            }
        }
    }

    async fn create_table(&self, body: &[u8]) -> Outcome<Vec<u8>> {
        let request: CreateTableRequest = read(body)?;
        let created = self.work_on(Kind::Writes, |engine| {
            let created = engine.database.create_table(request)?;
            // It works without, but writes more.
            if let Some(file) = &engine.file
                && let Err(error) = rows::pack(file)
            {
                tracing::warn!("dynamodb: the rows of a new table are not in the order of their key: {error}");
            }
            Ok(created)
        });
        to_json(&created.await?)
    }

    /// From JSON to JSON through one of the engine's methods.
    async fn run<Request, Response>(
        &self,
        kind: Kind,
        body: &[u8],
        method: fn(&Database, Request) -> Outcome<Response>,
    ) -> Outcome<Vec<u8>>
    where
        Request: DeserializeOwned + expressions::Request + Send + 'static,
        Response: Serialize + Send + 'static,
    {
        let request: Request = read(body)?;
        let items = request.items();
        if kind == Kind::Reads {
            self.counters.count(|counts| counts.items_read += items as u64);
        }
        let response = self.work(kind, request, method).await?;
        if kind == Kind::Writes {
            self.counters.count(|counts| counts.items_written += items as u64);
        }
        to_json(&response)
    }

    async fn work<Request: Send + 'static, Response: Send + 'static>(
        &self,
        kind: Kind,
        request: Request,
        method: fn(&Database, Request) -> Outcome<Response>,
    ) -> Outcome<Response> {
        self.work_on(kind, move |engine| method(&engine.database, request)).await
    }

    async fn work_on<Response: Send + 'static>(
        &self,
        kind: Kind,
        job: impl FnOnce(&Engine) -> Outcome<Response> + Send + 'static,
    ) -> Outcome<Response> {
        let Some(lane) = &self.lane else {
            return job(&self.engine);
        };
        let engine = Arc::clone(&self.engine);
        lane.run(kind, move || job(&engine))
            .await
            .unwrap_or_else(|unfinished| Err(DynoxideError::InternalServerError(unfinished.to_string())))
    }

    /// A read that does not know beforehand how many items it will read.
    async fn search<Request, Response>(
        &self,
        body: &[u8],
        method: fn(&Database, Request) -> Outcome<Response>,
        items: fn(&Response) -> usize,
    ) -> Outcome<Vec<u8>>
    where
        Request: DeserializeOwned + expressions::Request + Send + 'static,
        Response: Serialize + Send + 'static,
    {
        let response = self.work(Kind::Reads, read(body)?, method).await?;
        self.counters.count(|counts| counts.items_read += items(&response) as u64);
        to_json(&response)
    }

    async fn transact_write(&self, body: &[u8]) -> Outcome<Vec<u8>> {
        let mut request: TransactWriteItemsRequest = read(body)?;
        let items = request.transact_items.len();
        let response = match request.client_request_token.take_if(|token| token.len() <= MAX_TOKEN) {
            // There is no token, or one that the engine refuses in AWS's words.
            None => self.work(Kind::Writes, request, Database::transact_write_items).await?,
            Some(token) => {
                let (fingerprint, now_ms) = (tokens::fingerprint(&request), self.clock.now_ms());
                self.work_on(Kind::Writes, move |engine| {
                    let write = || engine.database.transact_write_items(request);
                    engine.tokens.once(token, fingerprint, now_ms, write)
                })
                .await?
            }
        };
        self.counters.count(|counts| counts.items_written += items as u64);
        to_json(&response)
    }

    /// Deletes items whose time to live has ended, concurrently with calls, which the engine admits between pages.
    fn sweep_now_and_then(&self) {
        let now_ms = self.clock.now_ms();
        let swept_ms = self.swept_ms.load(Ordering::Relaxed);
        if now_ms - swept_ms < SWEEP_MS {
            return;
        }
        let mine = self.swept_ms.compare_exchange(swept_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine {
            let engine = Arc::clone(&self.engine);
            tokio::task::spawn_blocking(move || match engine.database.sweep_ttl() {
                Ok(items) => tracing::debug!("dynamodb: {items} items had outlived their time"),
                Err(error) => tracing::warn!("dynamodb: the sweep for old items failed: {error}"),
            });
        }
    }

    /// Sweeps now, and returns the number of deleted items.
    pub async fn sweep(&self) -> Outcome<usize> {
        self.work(Kind::Writes, (), |database, ()| database.sweep_ttl()).await
    }
}

pub(crate) fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

/// Syncs the write-ahead log of the database at `path`, where every commit is until a checkpoint, which syncs by itself. The
/// log's file stays the same for as long as the database is open (SQLite, Write-Ahead Logging, section 2.2).
fn sync_log(path: &Path, counters: Arc<Counters>) -> lane::Sync {
    let log = log_of(path);
    let file = OnceLock::new();
    Box::new(move || {
        let file = match file.get() {
            Some(file) => file,
            // Writable, because some systems sync nothing else.
            None => file.get_or_init(|| OpenOptions::new().write(true).open(&log)),
        };
        match file {
            Ok(file) => file.sync_data().inspect(|()| counters.count(|counts| counts.syncs += 1)),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", log.display()))),
        }
    })
}

fn to_json(response: &impl Serialize) -> Outcome<Vec<u8>> {
    serde_json::to_vec(response).map_err(|error| DynoxideError::InternalServerError(error.to_string()))
}

/// Reads a request, and refuses expressions that are too deep for the engine.
fn read<T: DeserializeOwned + expressions::Request>(body: &[u8]) -> Outcome<T> {
    let request: T = parse(body)?;
    request.check_expressions()?;
    Ok(request)
}

/// dynoxide's own server words these errors more like AWS, but its reader is private. The kinds are the same.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Outcome<T> {
    serde_json::from_slice(body).map_err(|error| {
        let text = error.to_string();
        // The engine's types put the kind of error before the text.
        for mark in ["VALIDATION_REQUEST:", "VALIDATION_AS_READ:", "VALIDATION:"] {
            if let Some(rest) = text.strip_prefix(mark) {
                return DynoxideError::ValidationException(without_position(rest).into());
            }
        }
        for mark in ["SERIALIZATION_AS_READ:", "SERIALIZATION:"] {
            if let Some(rest) = text.strip_prefix(mark) {
                return DynoxideError::SerializationException(without_position(rest).into());
            }
        }
        let incomplete = ["missing field", "unknown variant", "invalid type: null", "AttributeValue"];
        if error.is_data() && incomplete.iter().any(|part| text.contains(part)) {
            DynoxideError::ValidationException(without_position(&text).into())
        } else {
            DynoxideError::SerializationException(text)
        }
    })
}

/// Without serde_json's ` at line 1 column 2`.
fn without_position(text: &str) -> &str {
    text.rfind(" at line ").map_or(text, |at| &text[..at])
}

#[cfg(test)]
mod tests {
    use super::*;

    // What is read is what was written, in the order of the keys, and replaced items leave nothing behind.
    #[tokio::test]
    async fn rows_are_stored_in_the_order_of_their_key() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Arc::new(File::create(dir.path().join("lock")).unwrap());
        let (clock, counters) = (Arc::new(Clock::start()), Arc::new(Counters::default()));
        let tables = dir.path().join("tables.db");
        let dynamodb = DynamoDb::file(&tables, Durability::Full, lock, clock, counters).unwrap();
        let create = br#"{"TableName": "Tasks-1.a", "BillingMode": "PAY_PER_REQUEST",
            "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}, {"AttributeName": "g", "AttributeType": "S"},
                {"AttributeName": "n", "AttributeType": "N"}],
            "GlobalSecondaryIndexes": [{"IndexName": "of_g", "Projection": {"ProjectionType": "KEYS_ONLY"},
                "KeySchema": [{"AttributeName": "g", "KeyType": "HASH"}, {"AttributeName": "n", "KeyType": "RANGE"}]}]}"#;
        assert_eq!(dynamodb.call("CreateTable", create).await.status, 200);
        for n in [3, 1, 2, 9, 1] {
            let key = n % 4;
            let put = format!(
                r#"{{"TableName": "Tasks-1.a", "Item": {{"k": {{"S": "{key}"}}, "g": {{"S": "x"}}, "n": {{"N": "{n}"}}}}}}"#
            );
            assert_eq!(dynamodb.call("PutItem", put.as_bytes()).await.status, 200);
        }
        let query = br#"{"TableName": "Tasks-1.a", "IndexName": "of_g", "KeyConditionExpression": "g = :g",
            "ExpressionAttributeValues": {":g": {"S": "x"}}}"#;
        let found: serde_json::Value = serde_json::from_slice(&dynamodb.call("Query", query).await.body).unwrap();
        let keys: Vec<_> =
            found["Items"].as_array().unwrap().iter().map(|item| item["k"]["S"].as_str().unwrap()).collect();
        assert_eq!(keys, ["1", "2", "3"]);
        let reader = rusqlite::Connection::open(&tables).unwrap();
        let kinds: Vec<(String, bool)> = reader
            .prepare("SELECT name, wr FROM pragma_table_list WHERE name LIKE 'Tasks%' ORDER BY name")
            .unwrap()
            .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
            .unwrap()
            .collect::<Result<_, _>>()
            .unwrap();
        assert_eq!(kinds, [("Tasks-1.a".into(), true), ("Tasks-1.a::gsi::of_g".into(), true)]);
        let indexes = "SELECT count(*) FROM sqlite_schema WHERE type = 'index' AND tbl_name = 'Tasks-1.a::gsi::of_g' AND sql IS NOT NULL";
        assert_eq!(reader.query_row(indexes, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    }

    // A write that the disk refused was not written, whatever the engine says.
    #[tokio::test]
    async fn a_write_that_the_disk_does_not_keep_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let lock = Arc::new(File::create(dir.path().join("lock")).unwrap());
        let (clock, counters) = (Arc::new(Clock::start()), Arc::new(Counters::default()));
        let tables = dir.path().join("tables.db");
        let mut dynamodb = DynamoDb::file(&tables, Durability::Full, lock, clock, counters).unwrap();
        let create = br#"{"TableName": "tasks", "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}], "BillingMode": "PAY_PER_REQUEST"}"#;
        assert_eq!(dynamodb.call("CreateTable", create).await.status, 200);
        let put = br#"{"TableName": "tasks", "Item": {"k": {"S": "a"}}}"#;
        assert_eq!(dynamodb.call("PutItem", put).await.status, 200);
        dynamodb.lane = Some(Lane::new(Box::new(|| Err(io::Error::other("no space left")))));
        let refused = dynamodb.call("PutItem", put).await;
        assert_eq!(refused.status, 500);
        assert!(String::from_utf8(refused.body).unwrap().contains("no space left"));
    }
}
