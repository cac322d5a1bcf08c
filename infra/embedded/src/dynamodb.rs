//! DynamoDB: dynoxide's engine, called in process.
//!
//! JSON is read and written in the caller's task, so that both cores of a laptop can work. Only the engine's work goes
//! through the lane: one call at a time, because SQLite has one writer, with one transaction for the writes that wait and
//! one fsync for all calls that do. In memory this helps too, because several threads would wait for the engine's lock. A
//! runtime with one thread calls the engine directly, so that a simulation runs the same way each time.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use dynoxide::actions::put_item::PutItemRequest;
use dynoxide::actions::transact_write_items::{TransactPut, TransactWriteItem, TransactWriteItemsRequest};
use dynoxide::types::AttributeValue;
use dynoxide::{Database, DynoxideError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use stepwarden_guard::marks::{Marked, beside};
use tokio::runtime::{Handle, RuntimeFlavor};

use crate::Durability;
use crate::ahead::{self, Ahead};
use crate::answer::Answer;
use crate::clock::Clock;
use crate::counts::Counters;
use crate::expressions;
use crate::lane::{self, Kind, Lane};
use crate::together::{Together, Write};
use crate::tokens::{self, Token};

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
    /// `None`: calls run in the caller's task, in memory and with one thread. Dropped before the engine, which holds the lock of the directory.
    lane: Option<Lane>,
    engine: Arc<Engine>,
    clock: Arc<Clock>,
    counters: Arc<Counters>,
    swept_ms: AtomicI64,
}

struct Engine {
    database: Arc<Marked<Database>>,
    together: Together,
    /// Held for as long as a call may be in progress.
    _lock: Option<Arc<File>>,
}

type Outcome<T> = Result<T, DynoxideError>;

impl DynamoDb {
    pub fn memory(clock: Arc<Clock>, counters: Arc<Counters>) -> Outcome<Self> {
        let database = Arc::new(Marked::memory(Database::memory_with_clock(clock.clone())?));
        let engine = Engine { database, together: Together::default(), _lock: None };
        let has_threads = Handle::try_current().is_ok_and(|on| on.runtime_flavor() == RuntimeFlavor::MultiThread);
        let lane = has_threads.then(|| Lane::new(Box::new(|| Ok(()))));
        Ok(Self::new(engine, lane, clock, counters))
    }

    pub fn file(
        path: &Path,
        durability: Durability,
        lock: Arc<File>,
        clock: Arc<Clock>,
        counters: Arc<Counters>,
    ) -> Outcome<Self> {
        let database = Database::new(&path.to_string_lossy())?;
        if !beside(path, "-wal").exists() {
            let reason = "its file system cannot keep SQLite's write-ahead log; put the data on a local disk";
            return Err(DynoxideError::InternalServerError(reason.into()));
        }
        let unusable = |error: io::Error| {
            DynoxideError::InternalServerError(format!("its log or its checksum file cannot be written: {error}"))
        };
        let sync: lane::Sync = match durability {
            Durability::Full => sync_log(path, Arc::clone(&counters)),
            Durability::Process => Box::new(|| Ok(())),
        };
        // What the engine wrote on opening: the mark must not record more than the log holds after a power failure.
        sync().map_err(unusable)?;
        let database = Arc::new(Marked::open(database, path, durability).map_err(unusable)?);
        let (marked, ahead) =
            (Arc::clone(&database), Mutex::new(Ahead::of(durability, &beside(path, "-wal"), ahead::FRAMES)));
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
        let engine = Engine { database, together: Together::default(), _lock: Some(lock) };
        Ok(Self::new(engine, Some(Lane::new(sync)), clock, counters))
    }

    fn new(engine: Engine, lane: Option<Lane>, clock: Arc<Clock>, counters: Arc<Counters>) -> Self {
        let swept_ms = AtomicI64::new(clock.now_ms());
        Self { engine: Arc::new(engine), lane, clock, counters, swept_ms }
    }

    pub async fn call(&self, operation: &str, body: &[u8]) -> Answer {
        self.sweep_now_and_then();
        let outcome = match operation {
            "PutItem" => self.put(body).await,
            "UpdateItem" => self.run(Kind::Writes, body, Database::update_item).await,
            "DeleteItem" => self.run(Kind::Writes, body, Database::delete_item).await,
            "GetItem" => self.run(Kind::Reads, body, Database::get_item).await,
            "Query" => self.search(body, Database::query, |answer| answer.scanned_count).await,
            "Scan" => self.search(body, Database::scan, |answer| answer.scanned_count).await,
            "BatchGetItem" => self.run(Kind::Reads, body, Database::batch_get_item).await,
            "BatchWriteItem" => self.run(Kind::Writes, body, Database::batch_write_item).await,
            "TransactWriteItems" => match transaction(body, self.clock.now_ms()) {
                Ok(write) => self.write(write).await,
                Err(error) => Err(error),
            },
            "TransactGetItems" => self.run(Kind::Reads, body, Database::transact_get_items).await,
            "CreateTable" => self.run(Kind::Writes, body, Database::create_table).await,
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
                    tracing::error!("dynamodb: {operation} failed: {error}{}", crate::what_to_do(&error));
                }
                Answer { status: error.status_code(), body: error.to_json().into_bytes(), query_error: None }
            }
        }
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

    async fn put(&self, body: &[u8]) -> Outcome<Vec<u8>> {
        let request: PutItemRequest = read(body)?;
        if self.lane.is_none() || !means_the_same_in_a_transaction(&request) {
            let response = self.work(Kind::Writes, request, Database::put_item).await?;
            self.counters.count(|counts| counts.items_written += 1);
            return to_json(&response);
        }
        let action = TransactWriteItem { put: Some(as_action(request)), ..Default::default() };
        let bytes = body.len();
        let body = body.to_vec();
        let alone = move |database: &Database| to_json(&database.put_item(parse(&body)?)?);
        self.write(Write { items: 1, bytes, actions: Some(vec![action]), alone: Box::new(alone), token: None }).await
    }

    /// A write that is done together with those that wait for the engine at the same time.
    async fn write(&self, write: Write) -> Outcome<Vec<u8>> {
        let items = write.items;
        let place = self.engine.together.wait(write);
        let done = self.work_on(Kind::Writes, |engine| engine.together.outcome(&engine.database, place));
        let answer = done.await.inspect_err(|_| self.engine.together.forget_lost())?;
        self.counters.count(|counts| counts.items_written += items as u64);
        Ok(answer)
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
}

/// Syncs the write-ahead log of the database at `path`, where every commit is until a checkpoint, which syncs by itself. The
/// log's file stays the same for as long as the database is open (SQLite, Write-Ahead Logging, section 2.2).
fn sync_log(path: &Path, counters: Arc<Counters>) -> lane::Sync {
    let log = beside(path, "-wal");
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

/// Whether a put that is a part of a transaction is refused for the same reasons as alone, and is answered with no more than
/// that it was done. As a part it lacks some checks: of operands, of empty maps, of deep values.
fn means_the_same_in_a_transaction(request: &PutItemRequest) -> bool {
    let PutItemRequest {
        table_name: _,
        item: _,
        condition_expression,
        expression_attribute_names: names,
        expression_attribute_values: values,
        return_values_on_condition_check_failure: _,
        return_values,
        return_consumed_capacity,
        return_item_collection_metrics,
        expected,
        conditional_operator,
    } = request;
    let asks_for_more =
        [return_values, return_consumed_capacity, return_item_collection_metrics].into_iter().any(Option::is_some);
    let is_flat = |value: &AttributeValue| !matches!(value, AttributeValue::L(_) | AttributeValue::M(_));
    let is_plain = |condition: &String| {
        let condition = condition.to_ascii_lowercase();
        !["between", "begins_with", "contains"].iter().any(|name| condition.contains(name))
    };
    condition_expression.as_ref().is_some_and(is_plain)
        && names.as_ref().is_none_or(|names| !names.is_empty())
        && values.as_ref().is_none_or(|values| !values.is_empty() && values.values().all(is_flat))
        && !asks_for_more
        && expected.is_none()
        && conditional_operator.is_none()
}

fn as_action(request: PutItemRequest) -> TransactPut {
    TransactPut {
        table_name: request.table_name,
        item: request.item,
        condition_expression: request.condition_expression,
        expression_attribute_names: request.expression_attribute_names,
        expression_attribute_values: request.expression_attribute_values,
        return_values_on_condition_check_failure: request.return_values_on_condition_check_failure,
    }
}

/// TransactWriteItems.
fn transaction(body: &[u8], now_ms: i64) -> Outcome<Write> {
    let mut request: TransactWriteItemsRequest = read(body)?;
    let (items, bytes) = (request.transact_items.len(), body.len());
    // The engine refuses a longer token in AWS's words.
    let name = request.client_request_token.take_if(|token| token.len() <= MAX_TOKEN);
    let token = name.map(|name| Token { name, request: tokens::fingerprint(&request), now_ms });
    let asks_for_more = request.client_request_token.is_some()
        || request.return_consumed_capacity.is_some()
        || request.return_item_collection_metrics.is_some();
    if asks_for_more || items == 0 {
        let alone = move |database: &Database| to_json(&database.transact_write_items(request)?);
        return Ok(Write { items, bytes, actions: None, alone: Box::new(alone), token });
    }
    let body = body.to_vec();
    let alone = move |database: &Database| {
        let request: TransactWriteItemsRequest = parse(&body)?;
        to_json(&database.transact_write_items(TransactWriteItemsRequest { client_request_token: None, ..request })?)
    };
    Ok(Write { items, bytes, actions: Some(request.transact_items), alone: Box::new(alone), token })
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
    use serde_json::{Value, json};

    // A write that the disk refused was not written, whatever the engine says.
    #[tokio::test]
    async fn a_write_that_the_disk_does_not_keep_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut dynamodb = tasks(dir.path()).await;
        assert_eq!(dynamodb.call("PutItem", &put_new("a")).await.status, 200);
        dynamodb.lane = Some(Lane::new(Box::new(|| Err(io::Error::other("no space left")))));
        let refused = dynamodb.call("PutItem", &put_new("b")).await;
        assert_eq!(refused.status, 500);
        assert!(String::from_utf8(refused.body).unwrap().contains("no space left"));
        assert_eq!(dynamodb.call("PutItem", &put_new("b")).await.status, 500);
        assert_eq!(dynamodb.engine.together.waiting(), 0, "a refused write takes no memory");
    }

    fn put_new(key: &str) -> Vec<u8> {
        let item = json!({"k": {"S": key}, "text": {"S": "x".repeat(700)}});
        let put = json!({"TableName": "tasks", "Item": item, "ConditionExpression": "attribute_not_exists(k)"});
        put.to_string().into_bytes()
    }

    async fn tasks(dir: &Path) -> DynamoDb {
        let lock = Arc::new(File::create(dir.join("lock")).unwrap());
        let (clock, counters) = (Arc::new(Clock::start()), Arc::new(Counters::default()));
        crate::open::create(&dir.join("tables.db")).unwrap();
        let dynamodb = DynamoDb::file(&dir.join("tables.db"), Durability::Full, lock, clock, counters).unwrap();
        let create = br#"{"TableName": "tasks", "KeySchema": [{"AttributeName": "k", "KeyType": "HASH"}],
            "AttributeDefinitions": [{"AttributeName": "k", "AttributeType": "S"}], "BillingMode": "PAY_PER_REQUEST"}"#;
        assert_eq!(dynamodb.call("CreateTable", create).await.status, 200);
        dynamodb
    }

    /// All of them wait before the first is done.
    async fn at_once(dynamodb: &DynamoDb, operation: &str, bodies: &[Vec<u8>]) -> Vec<Answer> {
        let (release, held) = std::sync::mpsc::channel::<()>();
        let lane = dynamodb.lane.clone().unwrap();
        let hold = async move { lane.run(Kind::Reads, move || held.recv().unwrap()).await.unwrap() };
        let calls = futures::future::join_all(bodies.iter().map(|body| dynamodb.call(operation, body)));
        let ((), answers, ()) = tokio::join!(hold, calls, async { release.send(()).unwrap() });
        answers
    }

    // What each of them would write alone, such as the root of the tree, is written once.
    #[tokio::test]
    async fn writes_that_wait_together_write_fewer_pages() {
        let dir = tempfile::tempdir().unwrap();
        let dynamodb = tasks(dir.path()).await;
        let frames = || stepwarden_guard::marks::frames(&dynamodb.engine.database.head().unwrap());
        let before = frames();
        for n in 0..32 {
            assert_eq!(dynamodb.call("PutItem", &put_new(&format!("a{n}"))).await.status, 200);
        }
        let (one_by_one, before) = (frames() - before, frames());
        let puts: Vec<_> = (0..32).map(|n| put_new(&format!("b{n}"))).collect();
        assert!(at_once(&dynamodb, "PutItem", &puts).await.iter().all(|answer| answer.status == 200));
        let at_once = frames() - before;
        assert!(at_once * 4 < one_by_one * 3, "{at_once} pages instead of {one_by_one}");
    }

    // The engine checks less of a put that is a part of a transaction.
    #[tokio::test]
    async fn a_put_is_refused_beside_others_for_what_it_is_refused_for_alone() {
        let dir = tempfile::tempdir().unwrap();
        let dynamodb = tasks(dir.path()).await;
        let deep = (0..32).fold(json!({"S": "x"}), |inner, _| json!({"L": [inner]}));
        let is_new_or = |condition: &str| format!("attribute_not_exists(k) OR {condition}");
        for (n, (condition, parts)) in [
            (is_new_or("k = k"), json!({"ExpressionAttributeNames": {}})),
            (is_new_or("k = k"), json!({"ExpressionAttributeValues": {}})),
            (is_new_or("begins_with(k, :n)"), json!({"ExpressionAttributeValues": {":n": {"N": "1"}}})),
            (is_new_or("Contains(a, a)"), json!({})),
            (
                is_new_or("a BETWEEN :high AND :low"),
                json!({"ExpressionAttributeValues": {":high": {"N": "2"}, ":low": {"N": "1"}}}),
            ),
            (is_new_or("a = :deep"), json!({"ExpressionAttributeValues": {":deep": deep}})),
            (is_new_or("a = :no"), json!({})),
            (is_new_or("k = k"), json!({"ReturnValues": "ALL_NEW"})),
        ]
        .into_iter()
        .enumerate()
        {
            let mut put = json!({"TableName": "tasks", "Item": {"k": {"S": "odd"}}, "ConditionExpression": condition});
            put.as_object_mut().unwrap().extend(parts.as_object().unwrap().clone());
            let put = put.to_string().into_bytes();
            assert_eq!(dynamodb.call("PutItem", &put).await.status, 400, "{n}");
            let puts = [put_new(&format!("a{n}")), put, put_new(&format!("b{n}"))];
            let statuses: Vec<_> =
                at_once(&dynamodb, "PutItem", &puts).await.iter().map(|answer| answer.status).collect();
            assert_eq!(statuses, [200, 400, 200], "{n}");
        }
    }

    #[tokio::test]
    async fn a_transaction_beside_others_is_answered_as_it_asks() {
        let dir = tempfile::tempdir().unwrap();
        let dynamodb = tasks(dir.path()).await;
        let transaction = |key: &str, more: Value| {
            let mut body = json!({"TransactItems": [{"Put": {"TableName": "tasks", "Item": {"k": {"S": key}}}}]});
            body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body.to_string().into_bytes()
        };
        let bodies = [
            transaction("a", json!({})),
            transaction("b", json!({"TransactItems": []})),
            transaction("c", json!({"ReturnConsumedCapacity": "TOTAL", "ClientRequestToken": "c"})),
            transaction("d", json!({"ClientRequestToken": "d".repeat(37)})),
            transaction("e", json!({})),
        ];
        let answers = at_once(&dynamodb, "TransactWriteItems", &bodies).await;
        let statuses: Vec<_> = answers.iter().map(|answer| answer.status).collect();
        assert_eq!(statuses, [200, 400, 200, 400, 200]);
        assert_eq!((&answers[0].body[..], &answers[4].body[..]), (&b"{}"[..], &b"{}"[..]));
        let told: Value = serde_json::from_slice(&answers[2].body).unwrap();
        assert_eq!(told["ConsumedCapacity"][0]["TableName"], "tasks");
    }

    // With threads the lane saves their waits for the engine's lock; without them it would make simulations differ.
    #[test]
    fn in_memory_only_a_runtime_with_threads_has_a_lane() {
        let has_lane = || DynamoDb::memory(Arc::new(Clock::start()), Arc::default()).unwrap().lane.is_some();
        let with_threads = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let without = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(with_threads.block_on(async { has_lane() }));
        assert!(!without.block_on(async { has_lane() }));
    }
}
