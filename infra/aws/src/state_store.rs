//! The StateStore on DynamoDB: one conditional write per transition.

use crate::batch_get::Source;
use crate::config::Config;
use crate::item::{self, Item, from_cursor, n, s, to_cursor};
use crate::lease_store::DynamoLeases;
use crate::sdk_error::{CONDITION, CONFLICT, is_done, unavailable};
use crate::sent::{Caller, Sent};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::operation::put_item::{PutItemError, PutItemInput};
use aws_sdk_dynamodb::operation::query::QueryInput;
use aws_sdk_dynamodb::operation::query::builders::QueryInputBuilder;
use aws_sdk_dynamodb::operation::transact_write_items::{TransactWriteItemsError, TransactWriteItemsInput};
use aws_sdk_dynamodb::operation::update_item::UpdateItemInput;
use aws_sdk_dynamodb::types::builders::{DeleteBuilder, PutBuilder, UpdateBuilder};
use aws_sdk_dynamodb::types::{
    AttributeValue, Put, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update,
};
use leader::{Lease, LeaseStore};
use shared::control::Agents;
use shared::order::{Id, Order};
use shared::outputs;
use shared::overload::Waits;
use shared::ports::{Created, DuePage, Error, Saved, StateStore, async_trait};
use shared::registry::Pointers;
use shared::strain::Strain;
use shared::task::{Phase, Task, moved};
use shared::time::{SignedDuration, Timestamp, plus};
use shared::workflow::{Hash, Workflow};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Name of the due index.
pub const DUE_INDEX: &str = "due";
/// Name of the index of tasks that wait for a person.
pub const ATTENTION_INDEX: &str = "attention";
/// Attempts at a write that collides with a transaction on the same item; the SDK does not retry those.
const CONFLICT_ATTEMPTS: u32 = 4;
/// The condition of every change of a task: the version is as read, and no newer supervisor wrote it.
pub(crate) const AS_SEEN: &str = "version = :seen AND (attribute_not_exists(lease_token) OR lease_token <= :token)";
/// How long to rely on ids not being kept separately. Another instance may accept the first order of a workflow with a
/// retention, but its record stays for at least a day after its end.
const KEEPS_IDS_KNOWN_FOR: SignedDuration = SignedDuration::from_hours(1);
/// Longest wait of a writer among many, in milliseconds: a few writes, so a hundred rounds take seconds.
const LONGEST_YIELD_MS: u64 = 60;

/// Orders, tasks and workflows in two tables.
#[derive(Clone, Debug)]
pub struct DynamoStore {
    pub(crate) client: Caller<Client>,
    pub(crate) orders_table: String,
    pub(crate) state_table: String,
    pub(crate) order_buckets: u16,
    pub(crate) shards: u16,
    pub(crate) retention: SignedDuration,
    leases: DynamoLeases,
    /// Whether ids are kept separately, and as of when.
    keeps_ids: Arc<Mutex<Option<(bool, Timestamp)>>>,
}

impl DynamoStore {
    /// The store in the tables that `config` names.
    #[must_use]
    pub fn new(client: Caller<Client>, config: &Config) -> Self {
        Self {
            leases: DynamoLeases::new(client.clone(), &config.state_table),
            client,
            orders_table: config.orders_table.clone(),
            state_table: config.state_table.clone(),
            order_buckets: config.order_buckets,
            shards: config.shards,
            retention: config.retention,
            keeps_ids: Arc::default(),
        }
    }

    /// The item under `pk` in the state table, read consistently; `what` names it in errors.
    pub(crate) async fn record(&self, pk: &str, what: &str) -> Result<Option<Item>, Error> {
        self.get(Source::consistent(&self.state_table), Item::from([("pk".into(), s(pk))]), what).await
    }

    pub(crate) fn query(&self, index: &str) -> QueryInputBuilder {
        QueryInput::builder().table_name(&self.state_table).index_name(index)
    }

    /// The ids that `query` finds from `cursor` on, at most `limit`.
    pub(crate) async fn ids(
        &self,
        query: QueryInputBuilder,
        limit: impl TryInto<i32>,
        cursor: Option<&str>,
        what: &str,
    ) -> Result<DuePage, Error> {
        let start = cursor.map(|cursor| from_cursor(cursor, what)).transpose()?;
        let query = query.limit(limit.try_into().unwrap_or(i32::MAX)).set_exclusive_start_key(start);
        let answer = query.sent(&self.client).await.map_err(|e| unavailable(what, e))?;
        let ids: Result<_, Error> =
            answer.items().iter().map(|item| Ok(Id(item::text(item, "pk", what)?.to_owned()))).collect();
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty());
        Ok(DuePage { ids: ids?, next: next.map(|key| to_cursor(&key)) })
    }

    /// Whether ids are kept separately. Once records may have been removed, their ids are checked forever, because an
    /// id without a record would look unused.
    async fn learn_keeps_ids(&self, task: &Task) -> Result<bool, Error> {
        let what = "whether ids are kept apart";
        if item::kept_for(task, self.retention).is_zero() {
            return Ok(self.record(item::KEEPS_IDS, what).await?.is_some());
        }
        let put = PutItemInput::builder().table_name(&self.state_table).item("pk", s(item::KEEPS_IDS));
        put.sent(&self.client).await.map_err(|e| unavailable(what, e))?;
        Ok(true)
    }

    /// The writes that make the outputs beside the record expire with it (by the save that ends the task), or no longer
    /// expire (if an ended task is opened again). `None` if the save of `item` changes neither.
    fn expiries(&self, task: &Task, item: &Item) -> Option<Vec<TransactWriteItem>> {
        let expires = task.expires && !item::kept_for(task, self.retention).is_zero();
        let ttl = item.get("ttl");
        // Only a person opens an ended order again. Then its children are kept.
        let is_kept = task.parent.as_ref().is_some_and(|parent| !parent.released)
            && task.books.is_some_and(|(_, version)| version == task.version);
        let is_reopened =
            is_kept || task.phase == Phase::Undoing && !task.is_undo_begun() && task.acted_at == task.version;
        let is_reopened = is_reopened
            || task.phase == Phase::Forward
                && task.acted_at == task.version
                && task.steps.iter().any(|step| step.rounds.is_some());
        let beside = outputs::beside(task);
        if beside.is_empty() || !expires || ttl.is_none() && !is_reopened {
            return None;
        }
        Some(beside.into_iter().map(|hash| self.output_expires(&task.id, hash, ttl)).collect())
    }

    /// The write that makes an output beside a record expire, or no longer expire.
    pub(crate) fn output_expires(&self, id: &Id, hash: &Hash, ttl: Option<&AttributeValue>) -> TransactWriteItem {
        let change = Update::builder()
            .table_name(&self.state_table)
            .key("pk", s(item::output_key(id, hash)))
            .expression_attribute_names("#ttl", "ttl");
        update(match ttl {
            Some(ttl) => change.update_expression("SET #ttl = :ttl").expression_attribute_values(":ttl", ttl.clone()),
            None => change.update_expression("REMOVE #ttl"),
        })
    }

    /// The write of a whole task over the version `seen`, if no newer supervisor wrote that.
    pub(crate) fn put_as_seen(&self, item: Item, seen: u64, token: u64) -> TransactWriteItem {
        put(Put::builder()
            .table_name(&self.state_table)
            .set_item(Some(item))
            .condition_expression(AS_SEEN)
            .expression_attribute_values(":seen", n(seen))
            .expression_attribute_values(":token", n(token)))
    }

    /// Writes all `items` or none; false if a condition of one fails.
    pub(crate) async fn transact(&self, items: Vec<TransactWriteItem>, what: &str) -> Result<bool, Error> {
        for attempt in 1.. {
            let request = TransactWriteItemsInput::builder().set_transact_items(Some(items.clone()));
            let Err(error) = request.sent(&self.client).await else { return Ok(true) };
            match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    let codes: Vec<_> = cancelled.cancellation_reasons().iter().filter_map(|r| r.code()).collect();
                    if codes.contains(&"ConditionalCheckFailed") {
                        return Ok(false);
                    }
                    let again = ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"];
                    if attempt == CONFLICT_ATTEMPTS || !codes.iter().any(|code| again.contains(code)) {
                        return Err(unavailable(what, error));
                    }
                }
                _ => return Err(unavailable(what, error)),
            }
            pause(attempt).await;
        }
        unreachable!("the loop returns at its last attempt")
    }

    /// Lists a record that was set aside as unreadable, not among waiting orders, where many may precede it.
    async fn name_as_unreadable(&self, id: &Id) -> Result<(), Error> {
        let update = UpdateItemInput::builder().table_name(&self.state_table).key("pk", s(&id.0));
        let update = update
            .condition_expression("attribute_exists(#aside) AND begins_with(attention, :waiting)")
            .update_expression("SET attention = :unreadable")
            .expression_attribute_names("#aside", item::ASIDE)
            .expression_attribute_values(":waiting", s(item::ATTENTION_WAITING))
            .expression_attribute_values(":unreadable", s(item::ATTENTION_UNREADABLE));
        is_done(&format!("setting aside task {id}"), update.sent(&self.client).await, &[CONDITION, CONFLICT]).map(drop)
    }

    /// The order of a task that was created with fewer buckets.
    async fn order_of_fewer_buckets(&self, task: &Task) -> Result<Option<Item>, Error> {
        let keys = (1..self.order_buckets).map(|buckets| item::key_in_orders(item::order_key_of(task, buckets)));
        let keys = each_once(keys);
        let items = self.get_written_once(&self.orders_table, &keys, |_| format!("order {}", task.id)).await;
        let items: Result<Vec<_>, Error> = items.into_iter().collect();
        Ok(items?.into_iter().flatten().next())
    }
}

#[async_trait]
impl StateStore for DynamoStore {
    async fn expires(&self, task: &Task, now: Timestamp) -> Result<bool, Error> {
        let known = *self.keeps_ids.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = |at| now < plus(at, KEEPS_IDS_KNOWN_FOR);
        match known {
            Some((true, _)) => return Ok(true),
            Some((false, at)) if task.retention.is_none() && is_new(at) => return Ok(false),
            Some((false, _)) | None => {}
        }
        let keeps = self.learn_keeps_ids(task).await?;
        *self.keeps_ids.lock().unwrap_or_else(PoisonError::into_inner) = Some((keeps, now));
        Ok(keeps)
    }

    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let what = format!("creating order {}", order.id);
        let mut order = item::from_order(order, self.order_buckets)?;
        order.extend(item::key_in_orders(item::order_key_of(task, self.order_buckets)));
        let labels = item::labels_of(task, self.order_buckets);
        if !labels.is_empty() {
            order.insert(item::LABELS.into(), crate::control::json(&task.labels));
        }
        let used = task.expires.then(|| item::used_id(task));
        let task = item::from_task(task, self.retention)?;
        let whole = |table: &str, item: Item| Put::builder().table_name(table).set_item(Some(item));
        let first = |item: Item| whole(&self.state_table, item).condition_expression("attribute_not_exists(pk)");
        let puts = [whole(&self.orders_table, order), first(task)].into_iter().chain(used.map(first));
        let puts = puts.chain(labels.into_iter().map(|item| whole(&self.orders_table, item)));
        let items = puts.map(put).collect();
        Ok(if self.transact(items, &what).await? { Created::New } else { Created::Exists })
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        let item = self.record(&id.0, &format!("task {id}")).await?;
        item.as_ref().map(item::to_task).transpose()
    }

    async fn load_all(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        let keys: Vec<_> = ids.iter().map(|id| Item::from([("pk".into(), s(&id.0))])).collect();
        let from = Source::consistent(&self.state_table);
        let items = self.get_all(from, &keys, |n| format!("task {}", ids[n])).await;
        items.into_iter().map(|item| item?.as_ref().map(item::to_task).transpose()).collect()
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let what = format!("saving task {}", task.id);
        let item = item::from_task(task, self.retention)?;
        if let Some(updates) = self.expiries(task, &item) {
            let save = self.put_as_seen(item, seen, task.lease_token);
            return match self.transact(std::iter::once(save).chain(updates).collect(), &what).await? {
                true => Ok(Saved::Applied),
                false => Ok(Saved::Conflict(self.load(&task.id).await?.map(Box::new))),
            };
        }
        for attempt in 1.. {
            let answer = PutItemInput::builder()
                .table_name(&self.state_table)
                .set_item(Some(item.clone()))
                .condition_expression(AS_SEEN)
                .expression_attribute_values(":seen", n(seen))
                .expression_attribute_values(":token", n(task.lease_token))
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
                .sent(&self.client)
                .await;
            let Err(error) = answer else { return Ok(Saved::Applied) };
            match error.as_service_error() {
                Some(PutItemError::ConditionalCheckFailedException(failed)) => {
                    let current = failed.item().map(item::to_task).transpose()?;
                    return Ok(Saved::Conflict(current.map(Box::new)));
                }
                Some(PutItemError::TransactionConflictException(_)) if attempt < CONFLICT_ATTEMPTS => {}
                _ => return Err(unavailable(&what, error)),
            }
            pause(attempt).await;
        }
        unreachable!("the loop returns at its last attempt")
    }

    async fn yield_to_others(&self, lost: usize) {
        // The first lost race usually has two writers, and the other is done.
        if lost > 1 {
            let bound = (5u64 << lost.min(4)).min(LONGEST_YIELD_MS);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=bound))).await;
        }
    }

    async fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error> {
        let update = UpdateItemInput::builder()
            .table_name(&self.state_table)
            .key("pk", s(&task.id.0))
            .condition_expression(AS_SEEN)
            .expression_attribute_values(":seen", n(task.version))
            .expression_attribute_values(":token", n(token));
        let update = match due {
            Some(due) => update
                .update_expression("SET lease_token = :token, due = :due, #shard = :shard")
                .expression_attribute_names("#shard", "shard")
                .expression_attribute_values(":due", n(due.as_millisecond()))
                .expression_attribute_values(":shard", s(item::shard(moved(task.shard)))),
            None => update
                .update_expression("SET lease_token = :token REMOVE due, #shard")
                .expression_attribute_names("#shard", "shard"),
        };
        is_done(&format!("due time of task {}", task.id), update.sent(&self.client).await, &[CONDITION, CONFLICT])
            .map(drop)
    }

    async fn set_aside(&self, id: &Id, why: &str, due: Timestamp, is_told: bool) -> Result<bool, Error> {
        let told = if is_told { ":told" } else { "if_not_exists(#told, :told)" };
        let answer = UpdateItemInput::builder()
            .table_name(&self.state_table)
            .key("pk", s(&id.0))
            .condition_expression("attribute_exists(due)")
            .update_expression(format!(
                "SET due = :due, #aside = :why, attention = if_not_exists(attention, :unreadable), #told = {told}"
            ))
            .expression_attribute_names("#aside", item::ASIDE)
            .expression_attribute_names("#told", item::ASIDE_TOLD)
            .expression_attribute_values(":due", n(due.as_millisecond()))
            .expression_attribute_values(":why", s(why))
            .expression_attribute_values(":unreadable", s(item::ATTENTION_UNREADABLE))
            .expression_attribute_values(":told", AttributeValue::Bool(is_told))
            .return_values(ReturnValue::UpdatedNew)
            .sent(&self.client)
            .await;
        match answer {
            Ok(answer) => {
                let new = answer.attributes.unwrap_or_default();
                if item::text(&new, "attention", "").is_ok_and(|value| value.starts_with(item::ATTENTION_WAITING)) {
                    self.name_as_unreadable(id).await?;
                }
                Ok(new.get(item::ASIDE_TOLD) == Some(&AttributeValue::Bool(true)))
            }
            Err(error) if error.as_service_error().is_some_and(|e| e.is_conditional_check_failed_exception()) => {
                Ok(true)
            }
            Err(error) => Err(unavailable(&format!("setting aside task {id}"), error)),
        }
    }

    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let what = format!("due index, shard {shard}");
        let query = self
            .query(DUE_INDEX)
            .key_condition_expression("#shard = :shard AND due <= :now")
            .expression_attribute_names("#shard", "shard")
            .expression_attribute_values(":shard", s(item::shard(shard)))
            .expression_attribute_values(":now", n(now.as_millisecond()));
        self.ids(query, limit, cursor, &what).await
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        self.orders(&[task]).await.pop().expect("one answer for each task")
    }

    async fn orders(&self, tasks: &[&Task]) -> Vec<Result<Option<Order>, Error>> {
        let key = |task: &&Task| item::key_in_orders(item::order_key_of(task, self.order_buckets));
        let keys: Vec<_> = tasks.iter().map(key).collect();
        let what = |n: usize| format!("order {}", tasks[n].id);
        let mut items = self.get_written_once(&self.orders_table, &keys, what).await;
        for (task, item) in tasks.iter().zip(&mut items) {
            if matches!(item, Ok(None)) {
                *item = self.order_of_fewer_buckets(task).await;
            }
        }
        items.into_iter().map(|item| item?.as_ref().map(item::to_order).transpose()).collect()
    }

    async fn put_output(&self, id: &Id, hash: &Hash, text: &str) -> Result<(), Error> {
        // An update keeps the expiry of an order that has ended since.
        let update = UpdateItemInput::builder().table_name(&self.state_table).key("pk", s(item::output_key(id, hash)));
        let update = update.update_expression("SET #output = :text").expression_attribute_names("#output", "output");
        let update = update.expression_attribute_values(":text", s(text));
        update.sent(&self.client).await.map(drop).map_err(|e| unavailable(&format!("output {hash} of task {id}"), e))
    }

    async fn outputs(&self, id: &Id, hashes: &[Hash]) -> Vec<Result<Option<String>, Error>> {
        let keys: Vec<_> =
            hashes.iter().map(|hash| Item::from([("pk".into(), s(item::output_key(id, hash)))])).collect();
        let what = |n: usize| format!("output {} of task {id}", hashes[n]);
        let items = self.get_written_once(&self.state_table, &keys, what).await;
        let text = |(hash, item): (&Hash, Result<Option<Item>, Error>)| {
            let text = item?.and_then(|mut item| item.remove("output"));
            let text = text.and_then(|text| if let AttributeValue::S(text) = text { Some(text) } else { None });
            Ok(text.filter(|text| Hash::of(text.as_bytes()) == *hash))
        };
        hashes.iter().zip(items).map(text).collect()
    }

    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        let hash = workflow.hash();
        let json = serde_json::to_string(workflow).expect("a workflow has only string keys");
        let answer = PutItemInput::builder()
            .table_name(&self.state_table)
            .item("pk", s(format!("workflow#{hash}")))
            .item("name", s(&workflow.name))
            .item("workflow", s(json))
            .condition_expression("attribute_not_exists(pk)")
            .sent(&self.client)
            .await;
        is_done(&format!("workflow {hash}"), answer, &[CONDITION]).map(drop)
    }

    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        Ok(self.definition(hash).await?.map(|definition| definition.workflow))
    }

    async fn agents(&self) -> Result<Agents, Error> {
        self.read_agents().await
    }

    async fn pointers(&self) -> Result<Pointers, Error> {
        Ok(self.stored_pointers().await?.into_iter().map(|(name, stored)| (name, stored.pointer)).collect())
    }

    async fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        self.set_wait(queue, waits).await
    }

    async fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        self.replace_strain(agent, strain, seen).await
    }

    async fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let query = self.query(ATTENTION_INDEX).key_condition_expression("attention = :error");
        let query = query.expression_attribute_values(":error", s(item::ATTENTION_ERROR));
        self.ids(query, limit, cursor, "the index of tasks that wait for a person").await
    }
}

impl LeaseStore for DynamoStore {
    async fn read(&self, name: &str) -> Result<Option<Lease>, leader::Error> {
        self.leases.read(name).await
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, leader::Error> {
        self.leases.replace(lease, seen).await
    }
}

/// These keys, each once.
pub(crate) fn each_once(all: impl Iterator<Item = Item>) -> Vec<Item> {
    let mut keys = Vec::new();
    for key in all {
        if !keys.contains(&key) {
            keys.push(key);
        }
    }
    keys
}

/// A part of a transaction; the caller has set its table, and its item or key.
pub(crate) fn put(put: PutBuilder) -> TransactWriteItem {
    TransactWriteItem::builder().put(put.build().expect("table and item are set")).build()
}

/// As [`put`].
pub(crate) fn update(update: UpdateBuilder) -> TransactWriteItem {
    TransactWriteItem::builder().update(update.build().expect("table, key and expression are set")).build()
}

/// As [`put`].
pub(crate) fn delete(delete: DeleteBuilder) -> TransactWriteItem {
    TransactWriteItem::builder().delete(delete.build().expect("table and key are set")).build()
}

/// Waits before another attempt at a write that collided with a transaction: at most 10, 20, 40 ms, at random.
async fn pause(attempt: u32) {
    let bound = 10u64 << attempt.min(6);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=bound))).await;
}
