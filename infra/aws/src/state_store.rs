//! The StateStore on DynamoDB: one conditional write per transition.

use crate::batch_get::Source;
use crate::config::Config;
use crate::item::{self, Item, corrupt, n, s};
use crate::lease_store::DynamoLeases;
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::put_item::PutItemError;
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use aws_sdk_dynamodb::types::{
    AttributeValue, Put, ReturnValue, ReturnValuesOnConditionCheckFailure, TransactWriteItem,
};
use shared::control::Agents;
use shared::order::{Id, Order};
use shared::overload::Waits;
use shared::ports::{AttentionIndex, Created, DuePage, Error, Saved, StateStore};
use shared::strain::Strain;
use shared::task::{Task, moved};
use shared::time::{SignedDuration, Timestamp};
use shared::workflow::{Hash, Workflow};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OnceCell;

/// Name of the due index.
pub const DUE_INDEX: &str = "due";
/// Name of the index of tasks that wait for a person.
pub const ATTENTION_INDEX: &str = "attention";
/// Attempts at a write that meets a transaction on the same item; the SDK does not repeat those.
const CONFLICT_ATTEMPTS: u32 = 4;
/// Longest wait of a writer among many, in milliseconds: as long as a few writes take, so that a hundred rounds stay within seconds.
const LONGEST_YIELD_MS: u64 = 60;

/// Orders, tasks and workflows in two tables.
#[derive(Clone, Debug)]
pub struct DynamoStore {
    pub(crate) client: Client,
    pub(crate) orders_table: String,
    pub(crate) state_table: String,
    pub(crate) order_buckets: u16,
    pub(crate) retention: SignedDuration,
    pub(crate) leases: DynamoLeases,
    /// Whether ids are kept apart, once it is known.
    keeps_ids: Arc<OnceCell<bool>>,
}

impl DynamoStore {
    /// The store in the tables that `config` names.
    #[must_use]
    pub fn new(client: Client, config: &Config) -> Self {
        Self {
            leases: DynamoLeases::new(client.clone(), &config.state_table),
            client,
            orders_table: config.orders_table.clone(),
            state_table: config.state_table.clone(),
            order_buckets: config.order_buckets,
            retention: config.retention,
            keeps_ids: Arc::default(),
        }
    }

    pub(crate) async fn get(&self, from: Source<'_>, key: Item, what: &str) -> Result<Option<Item>, Error> {
        let request = self.client.get_item().table_name(from.table).set_key(Some(key));
        let answer = request.consistent_read(from.is_consistent).send().await;
        Ok(answer.map_err(|e| unavailable(what, e))?.item)
    }

    fn order_key(&self, task: &Task, buckets: u16) -> Item {
        let (bucket, sort) = item::order_key(&task.id, task.created_at, buckets);
        Item::from([("bucket".into(), s(bucket)), ("sort".into(), s(sort))])
    }

    /// Where records were removed once, their ids are asked for ever, whatever the retention is now: with no retention again, an
    /// id without a record would look like one that was never used.
    async fn learn_keeps_ids(&self) -> Result<bool, Error> {
        let (what, key) = ("whether ids are kept apart", Item::from([("pk".into(), s(item::KEEPS_IDS))]));
        if self.retention.is_zero() {
            return Ok(self.get(Source::consistent(&self.state_table), key, what).await?.is_some());
        }
        let put = self.client.put_item().table_name(&self.state_table).set_item(Some(key));
        put.send().await.map_err(|e| unavailable(what, e))?;
        Ok(true)
    }

    /// The order of a task that was made while there were fewer partitions.
    async fn order_of_fewer_buckets(&self, task: &Task) -> Result<Option<Item>, Error> {
        let mut keys: Vec<Item> = Vec::new();
        for key in (1..self.order_buckets).map(|buckets| self.order_key(task, buckets)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let items = self.get_written_once(&self.orders_table, &keys, |_| format!("order {}", task.id)).await;
        let items: Result<Vec<_>, Error> = items.into_iter().collect();
        Ok(items?.into_iter().flatten().next())
    }
}

impl StateStore for DynamoStore {
    async fn expires(&self) -> Result<bool, Error> {
        self.keeps_ids.get_or_try_init(|| self.learn_keeps_ids()).await.copied()
    }

    async fn create(&self, order: &Order, task: &Task) -> Result<Created, Error> {
        let what = format!("creating order {}", order.id);
        let order = item::from_order(order, self.order_buckets)?;
        let used = task.expires.then(|| item::used_id(task));
        let task = item::from_task(task, self.retention)?;
        let put = |table: &str, item: Item| Put::builder().table_name(table).set_item(Some(item));
        let first = |item: Item| put(&self.state_table, item).condition_expression("attribute_not_exists(pk)");
        let puts = [put(&self.orders_table, order), first(task)].into_iter().chain(used.map(first));
        let items: Result<Vec<_>, _> =
            puts.map(|put| put.build().map(|put| TransactWriteItem::builder().put(put).build())).collect();
        let items = items.map_err(|e| Error::Unavailable { what: what.clone(), source: Box::new(e) })?;
        for attempt in 1.. {
            let request = self.client.transact_write_items().set_transact_items(Some(items.clone()));
            let Err(error) = request.send().await else { return Ok(Created::New) };
            match error.as_service_error() {
                Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                    let codes: Vec<_> = cancelled.cancellation_reasons().iter().filter_map(|r| r.code()).collect();
                    if codes.contains(&"ConditionalCheckFailed") {
                        return Ok(Created::Exists);
                    }
                    if attempt == CONFLICT_ATTEMPTS || !codes.contains(&"TransactionConflict") {
                        return Err(unavailable(&what, error));
                    }
                }
                _ => return Err(unavailable(&what, error)),
            }
            pause(attempt).await;
        }
        unreachable!("the loop returns at its last attempt")
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        let key = Item::from([("pk".into(), s(&id.0))]);
        let item = self.get(Source::consistent(&self.state_table), key, &format!("task {id}")).await?;
        item.as_ref().map(item::to_task).transpose()
    }

    async fn load_all(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        let keys: Vec<_> = ids.iter().map(|id| Item::from([("pk".into(), s(&id.0))])).collect();
        let items = self.get_all(Source::consistent(&self.state_table), &keys, |n| format!("task {}", ids[n])).await;
        items.into_iter().map(|item| item?.as_ref().map(item::to_task).transpose()).collect()
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let what = format!("saving task {}", task.id);
        let item = item::from_task(task, self.retention)?;
        for attempt in 1.. {
            let answer = self
                .client
                .put_item()
                .table_name(&self.state_table)
                .set_item(Some(item.clone()))
                .condition_expression(
                    "version = :seen AND (attribute_not_exists(lease_token) OR lease_token <= :token)",
                )
                .expression_attribute_values(":seen", n(seen))
                .expression_attribute_values(":token", n(task.lease_token))
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
                .send()
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
        // The first lost race is one of two writers as a rule: the other one is done.
        if lost > 1 {
            let bound = (5u64 << lost.min(4)).min(LONGEST_YIELD_MS);
            tokio::time::sleep(Duration::from_millis(fastrand::u64(0..=bound))).await;
        }
    }

    async fn rearm(&self, task: &Task, due: Option<Timestamp>, token: u64) -> Result<(), Error> {
        let update = self
            .client
            .update_item()
            .table_name(&self.state_table)
            .key("pk", s(&task.id.0))
            .condition_expression("version = :seen AND (attribute_not_exists(lease_token) OR lease_token <= :token)")
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
        match update.send().await {
            Ok(_) => Ok(()),
            Err(error)
                if error.as_service_error().is_some_and(|e| {
                    e.is_conditional_check_failed_exception() || e.is_transaction_conflict_exception()
                }) =>
            {
                Ok(())
            }
            Err(error) => Err(unavailable(&format!("due time of task {}", task.id), error)),
        }
    }

    async fn set_aside(&self, id: &Id, why: &str, due: Timestamp, is_told: bool) -> Result<bool, Error> {
        let told = if is_told { ":told" } else { "if_not_exists(#told, :told)" };
        let answer = self
            .client
            .update_item()
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
            .send()
            .await;
        match answer {
            Ok(answer) => {
                let told = answer.attributes().and_then(|new| new.get(item::ASIDE_TOLD));
                Ok(told == Some(&AttributeValue::Bool(true)))
            }
            Err(error) if error.as_service_error().is_some_and(|e| e.is_conditional_check_failed_exception()) => {
                Ok(true)
            }
            Err(error) => Err(unavailable(&format!("setting aside task {id}"), error)),
        }
    }

    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let what = format!("due index, shard {shard}");
        let answer = self
            .client
            .query()
            .table_name(&self.state_table)
            .index_name(DUE_INDEX)
            .key_condition_expression("#shard = :shard AND due <= :now")
            .expression_attribute_names("#shard", "shard")
            .expression_attribute_values(":shard", s(item::shard(shard)))
            .expression_attribute_values(":now", n(now.as_millisecond()))
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .set_exclusive_start_key(cursor.map(|c| from_cursor(c, &what)).transpose()?)
            .send()
            .await
            .map_err(|e| unavailable(&what, e))?;
        let ids: Result<_, Error> =
            answer.items().iter().map(|item| Ok(Id(item::text(item, "pk", &what)?.to_owned()))).collect();
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty());
        Ok(DuePage { ids: ids?, next: next.map(|key| to_cursor(&key)) })
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        self.orders(&[task]).await.pop().expect("one answer for each task")
    }

    async fn orders(&self, tasks: &[&Task]) -> Vec<Result<Option<Order>, Error>> {
        let keys: Vec<_> = tasks.iter().map(|task| self.order_key(task, self.order_buckets)).collect();
        let mut items = self.get_written_once(&self.orders_table, &keys, |n| format!("order {}", tasks[n].id)).await;
        for (task, item) in tasks.iter().zip(&mut items) {
            if matches!(item, Ok(None)) {
                *item = self.order_of_fewer_buckets(task).await;
            }
        }
        items.into_iter().map(|item| item?.as_ref().map(item::to_order).transpose()).collect()
    }

    async fn put_workflow(&self, workflow: &Workflow) -> Result<(), Error> {
        let hash = workflow.hash();
        let json = serde_json::to_string(workflow).expect("a workflow has only string keys");
        let answer = self
            .client
            .put_item()
            .table_name(&self.state_table)
            .item("pk", s(format!("workflow#{hash}")))
            .item("name", s(&workflow.name))
            .item("workflow", s(json))
            .condition_expression("attribute_not_exists(pk)")
            .send()
            .await;
        match answer {
            Ok(_) => Ok(()),
            Err(error) if error.as_service_error().is_some_and(PutItemError::is_conditional_check_failed_exception) => {
                Ok(())
            }
            Err(error) => Err(unavailable(&format!("workflow {hash}"), error)),
        }
    }

    async fn workflow(&self, hash: &Hash) -> Result<Option<Workflow>, Error> {
        let what = format!("workflow {hash}");
        let key = Item::from([("pk".into(), s(format!("workflow#{hash}")))]);
        let Some(item) = self.get(Source::consistent(&self.state_table), key, &what).await? else { return Ok(None) };
        let json = item::text(&item, "workflow", &what)?;
        Workflow::recorded(json, hash).map(Some).map_err(|why| corrupt(&what, why))
    }

    async fn agents(&self) -> Result<Agents, Error> {
        self.read_agents().await
    }

    async fn note_wait(&self, queue: &str, waits: &Waits) -> Result<(), Error> {
        self.set_wait(queue, waits).await
    }

    async fn save_strain(&self, agent: &str, strain: &Strain, seen: Option<&Strain>) -> Result<bool, Error> {
        self.replace_strain(agent, strain, seen).await
    }
}

impl AttentionIndex for DynamoStore {
    async fn attention(&self, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let what = "the index of tasks that wait for a person".to_owned();
        let answer = self
            .client
            .query()
            .table_name(&self.state_table)
            .index_name(ATTENTION_INDEX)
            .key_condition_expression("attention = :error")
            .expression_attribute_values(":error", s("Error"))
            .limit(i32::try_from(limit).unwrap_or(i32::MAX))
            .set_exclusive_start_key(cursor.map(|c| from_cursor(c, &what)).transpose()?)
            .send()
            .await
            .map_err(|e| unavailable(&what, e))?;
        let ids: Result<_, Error> =
            answer.items().iter().map(|item| Ok(Id(item::text(item, "pk", &what)?.to_owned()))).collect();
        let next = answer.last_evaluated_key.filter(|key| !key.is_empty());
        Ok(DuePage { ids: ids?, next: next.map(|key| to_cursor(&key)) })
    }
}

/// Waits before another attempt at a write that met a transaction: 10, 20, 40 ms at most, at random.
async fn pause(attempt: u32) {
    let bound = 10u64 << attempt.min(6);
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=bound))).await;
}

pub(crate) fn unavailable<E, R>(what: &str, error: SdkError<E, R>) -> Error
where
    E: std::error::Error + ProvideErrorMetadata + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    Error::Unavailable {
        what: what.to_owned(),
        source: Box::new(aws_sdk_dynamodb::error::DisplayErrorContext(error)).into_source(),
    }
}

/// The whole chain of an SDK error as one message: the SDK's own `Display` says only «service error».
trait IntoSource {
    fn into_source(self) -> shared::ports::Source;
}

impl<E: std::error::Error> IntoSource for Box<aws_sdk_dynamodb::error::DisplayErrorContext<E>> {
    fn into_source(self) -> shared::ports::Source {
        self.to_string().into()
    }
}

pub(crate) fn to_cursor(key: &Item) -> String {
    let plain: std::collections::BTreeMap<&str, (&str, &str)> = key
        .iter()
        .filter_map(|(name, value)| match value {
            AttributeValue::S(text) => Some((name.as_str(), ("S", text.as_str()))),
            AttributeValue::N(text) => Some((name.as_str(), ("N", text.as_str()))),
            _ => None,
        })
        .collect();
    serde_json::to_string(&plain).expect("strings only")
}

pub(crate) fn from_cursor(cursor: &str, what: &str) -> Result<Item, Error> {
    let plain: std::collections::BTreeMap<String, (String, String)> =
        serde_json::from_str(cursor).map_err(|e| corrupt(what, format!("cursor: {e}")))?;
    Ok(plain.into_iter().map(|(name, (kind, text))| (name, if kind == "N" { n(text) } else { s(text) })).collect())
}
