//! Lists orders, newest first, from the order table's partitions, each a month and a bucket, without a separate index.
//! Lists what waits, for a person or a time, from the sparse index. Every page is bounded. If no order that was read
//! matched, a page may be empty and still have a next one.

use crate::item::{
    self, ATTENTION_ERROR, ATTENTION_PAUSED, ATTENTION_UNREADABLE, Item, corrupt, from_cursor, n, s, to_cursor,
};
use crate::sdk_error::unavailable;
use crate::sent::Sent;
use crate::state_store::{ATTENTION_INDEX, DynamoStore};
use aws_sdk_dynamodb::operation::query::QueryInput;
use futures::future::try_join_all;
use futures::{StreamExt, TryStreamExt, stream};
pub use shared::filter::Filter;
use shared::order::Id;
use shared::ports::{DuePage, Error, StateStore};
use shared::task::{MAX_SHARDS, ProcessState, Task};
use shared::time::{SignedDuration, Timestamp, plus};

/// Maximum number of orders read for one page.
pub const MAX_LOOKED_AT: usize = 500;
/// Maximum number of orders on one page.
pub const MAX_PAGE: usize = 100;
/// Longest cursor, in bytes: a sort key (time and id), or an index key (three such values, in JSON).
pub const MAX_CURSOR: usize = 500;
/// Partitions read concurrently.
const AT_ONCE: usize = 8;
/// Maximum number of months read for one page.
const MAX_MONTHS: usize = 13;
/// No order is older: 2026, the year of the first version. Otherwise an empty list would page through empty months.
const FIRST: Timestamp = Timestamp::constant(1_767_225_600, 0);

/// An order with an unreadable record, which a list names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable {
    /// The order.
    pub id: Id,
    /// What is wrong with its record.
    pub why: String,
}

impl Unreadable {
    /// `error` as the fault of one order.
    ///
    /// # Errors
    /// The same error, if it is an outage.
    pub fn of(id: &Id, error: Error) -> Result<Self, Error> {
        match error {
            Error::Corrupt { what, why } => Ok(Self { id: id.clone(), why: format!("{what}: {why}") }),
            error @ (Error::Unavailable { .. } | Error::TooLarge { .. }) => Err(error),
        }
    }
}

/// A page of tasks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Newest first: by acceptance or, if they wait for a person, by last change. If a step waits: oldest change first.
    pub tasks: Vec<Task>,
    /// Orders that cannot be read, whether or not they would match.
    pub unreadable: Vec<Unreadable>,
    /// Cursor of the next page, if there is one.
    pub next: Option<String>,
}

impl DynamoStore {
    /// Up to `limit` matching orders, from `cursor` on. Without `from` it goes back as far as tasks are kept.
    ///
    /// # Errors
    /// The tables failed; [`Error::Corrupt`] for a cursor that is not one of ours.
    pub async fn list(
        &self,
        filter: &Filter,
        now: Timestamp,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        let limit = limit.clamp(1, MAX_PAGE);
        match attention_of(filter) {
            _ if filter.is_of_waits() => self.list_indexed(filter, None, limit, cursor).await,
            Some(value) => self.list_indexed(filter, Some(value), limit, cursor).await,
            None => self.list_by_time(filter, now, limit, cursor).await,
        }
    }

    /// The first page of records that a sweep set aside, not yet listed as waiting for a person: unreadable ones, and
    /// tasks that are readable again.
    ///
    /// # Errors
    /// The tables failed.
    pub async fn list_aside(&self) -> Result<Page, Error> {
        self.list_indexed(&Filter::default(), Some(ATTENTION_UNREADABLE), MAX_PAGE, None).await
    }

    /// Whether a page of this filter could have ended with `cursor`.
    #[must_use]
    pub fn is_cursor(filter: &Filter, cursor: &str) -> bool {
        if cursor.len() > MAX_CURSOR {
            return false;
        }
        if filter.is_of_waits() {
            return Waiting::at(cursor).is_ok();
        }
        let Some(value) = attention_of(filter) else { return time_of(cursor).is_ok() };
        let Ok(key) = from_cursor(cursor, "cursor") else { return false };
        key.len() == 3
            && key.get("attention") == Some(&s(value))
            && item::number::<i64>(&key, "updated_at", "cursor").is_ok()
            && item::text(&key, "pk", "cursor").is_ok_and(|id| !id.is_empty())
    }

    /// A page from the sparse index: of the part with this value of `attention`, or of all parts in which a step waits.
    async fn list_indexed(
        &self,
        filter: &Filter,
        value: Option<&str>,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        let mut page = Page { next: cursor.map(str::to_owned), ..Page::default() };
        let mut looked_at = 0;
        loop {
            // At most what the page has room for, so that the index's own cursor serves as ours.
            let (room, from) = (limit - page.tasks.len(), page.next.as_deref());
            let found = match value {
                Some(value) => self.attention_part(value, room, from, "orders that need attention").await?,
                None => {
                    let (found, more) = self.waiting(room, from).await?;
                    let next = found.last().filter(|_| more).map(Waiting::cursor);
                    DuePage { ids: found.into_iter().map(|one| one.id).collect(), next }
                }
            };
            looked_at += found.ids.len();
            for read in self.tasks(&found.ids).await? {
                match read {
                    Ok(task) if filter.fits(&task) => page.tasks.push(task),
                    Ok(_) => {}
                    Err(unreadable) => page.unreadable.push(unreadable),
                }
            }
            page.next = found.next;
            if page.next.is_none() || page.tasks.len() >= limit || looked_at >= MAX_LOOKED_AT {
                return Ok(page);
            }
        }
    }

    /// Ids under this value of `attention`, the latest change first.
    pub(crate) async fn attention_part(
        &self,
        value: &str,
        limit: usize,
        cursor: Option<&str>,
        what: &str,
    ) -> Result<DuePage, Error> {
        let query = self.query(ATTENTION_INDEX).key_condition_expression("attention = :value");
        let query = query.expression_attribute_values(":value", s(value)).scan_index_forward(false);
        self.ids(query, limit, cursor, what).await
    }

    /// Up to `limit` orders in which a step waits, oldest change first, from `cursor` on, and whether there are more.
    /// One query per shard of the due index, of at most `limit` keys.
    ///
    /// # Errors
    /// The table failed, or the cursor is not one of ours.
    pub async fn waiting(&self, limit: usize, cursor: Option<&str>) -> Result<(Vec<Waiting>, bool), Error> {
        let what = "orders that wait";
        let from = &cursor.map(Waiting::at).transpose()?;
        let one = |shard: u16| async move {
            let query = self.query(ATTENTION_INDEX).expression_attribute_values(":value", s(item::waiting(shard)));
            let query = match from {
                // Ties are in the sequence of shards, then of the index.
                Some(last) => {
                    let is_after = shard < last.shard;
                    let since = last.changed.as_millisecond() + i64::from(is_after);
                    let query = query.key_condition_expression("attention = :value AND updated_at >= :since");
                    query
                        .expression_attribute_values(":since", n(since))
                        .set_exclusive_start_key((shard == last.shard).then(|| last.key()))
                }
                None => query.key_condition_expression("attention = :value"),
            };
            let answer = query.limit(i32::try_from(limit).unwrap_or(i32::MAX)).sent(&self.client).await;
            let answer = answer.map_err(|e| unavailable(what, e))?;
            let found: Result<Vec<_>, Error> = answer.items().iter().map(|item| Waiting::read(item, what)).collect();
            Ok::<_, Error>((found?, answer.last_evaluated_key().is_some_and(|key| !key.is_empty())))
        };
        let pages: Vec<_> = stream::iter(0..self.shards).map(one).buffered(AT_ONCE).try_collect().await?;
        let mut more = pages.iter().any(|(_, more)| *more);
        let mut all: Vec<Waiting> = pages.into_iter().flat_map(|(found, _)| found).collect();
        // Stable: within a shard the index's order stays.
        all.sort_by_key(|one| (one.changed, one.shard));
        more |= all.len() > limit;
        all.truncate(limit);
        Ok((all, more))
    }

    async fn list_by_time(
        &self,
        filter: &Filter,
        now: Timestamp,
        limit: usize,
        cursor: Option<&str>,
    ) -> Result<Page, Error> {
        // With a retention, tasks stay that long after their last change. One more month is for long-running ones.
        let oldest = match self.retention {
            SignedDuration::ZERO => FIRST,
            retention => plus(now, SignedDuration::ZERO - retention - SignedDuration::from_hours(24 * 31)),
        };
        // These partitions have no months, so one query covers each to its beginning.
        let has_months = filter.parent.is_none() && filter.label.is_none();
        // Children stay as long as their parent.
        let oldest = if filter.parent.is_some() { FIRST } else { oldest };
        // Workflows may keep some for longer; a person finds them by a `from`.
        let low = sort_from(filter.from.unwrap_or(oldest));
        // Above orders of the same millisecond as `now`.
        let newest = plus(now, SignedDuration::from_secs(1));
        let mut high = cursor.map_or_else(|| sort_from(filter.to.unwrap_or(newest).min(newest)), str::to_owned);
        let mut page = Page::default();
        let (mut looked_at, mut months) = (0, 0);
        while high > low {
            let last = time_of(&high)?;
            // `high` is excluded, so a month's first millisecond belongs to the month before it.
            let month = month_start(plus(last, SignedDuration::from_millis(-1)).max(time_of(&low)?));
            let floor = if has_months { low.clone().max(sort_from(month)) } else { low.clone() };
            let keys = self.orders_between(filter, month, &floor, &high, limit).await?;
            if keys.is_empty() {
                high = floor;
                months += 1;
                if months >= MAX_MONTHS {
                    page.next = Some(high).filter(|high| *high > low);
                    return Ok(page);
                }
                continue;
            }
            looked_at += keys.len();
            let is_wanted = |key: &&OrderKey| match (&filter.tenant, &key.tenant) {
                (Some(wanted), Some(tenant)) => wanted == tenant,
                (None, _) | (_, None) => true,
            };
            let wanted = keys.iter().filter(is_wanted);
            let ids: Vec<Id> = wanted.map(|k| k.id.clone()).collect();
            let found = self.tasks(&ids).await?;
            high.clone_from(&keys[keys.len() - 1].sort);
            for read in found {
                match read {
                    Ok(task) if filter.fits(&task) => page.tasks.push(task),
                    Ok(_) => continue,
                    Err(unreadable) => {
                        page.unreadable.push(unreadable);
                        continue;
                    }
                }
                if page.tasks.len() == limit {
                    let last = &page.tasks[limit - 1];
                    page.next = Some(item::order_key(&last.id, last.created_at, self.order_buckets).1);
                    return Ok(page);
                }
            }
            if looked_at >= MAX_LOOKED_AT {
                page.next = Some(high);
                return Ok(page);
            }
        }
        Ok(page)
    }

    /// The newest orders of a month with `low <= sort < high`, over all its buckets, or of the filter's parent or
    /// label.
    async fn orders_between(
        &self,
        filter: &Filter,
        month: Timestamp,
        low: &str,
        high: &str,
        limit: usize,
    ) -> Result<Vec<OrderKey>, Error> {
        let all = (0..self.order_buckets).map(u32::from);
        let buckets = match (&filter.parent, &filter.label) {
            (Some(parent), _) => vec![item::children_of(parent)],
            (None, Some(label)) => all.map(|bucket| item::labelled(bucket, label)).collect(),
            (None, None) => all.map(|bucket| item::bucket_name(month, bucket)).collect::<Vec<_>>(),
        };
        let one = |bucket: String| async move {
            let what = format!("orders of {bucket}");
            let answer = QueryInput::builder()
                .table_name(&self.orders_table)
                .key_condition_expression("#bucket = :bucket AND #sort BETWEEN :low AND :high")
                .projection_expression("#sort, #tenant")
                .expression_attribute_names("#bucket", "bucket")
                .expression_attribute_names("#sort", "sort")
                .expression_attribute_names("#tenant", "tenant")
                .expression_attribute_values(":bucket", s(&bucket))
                .expression_attribute_values(":low", s(low))
                .expression_attribute_values(":high", s(high))
                .scan_index_forward(false)
                // One more, because `high` itself is excluded.
                .limit(i32::try_from(limit + 1).unwrap_or(i32::MAX))
                .sent(&self.client)
                .await
                .map_err(|e| unavailable(&what, e))?;
            let keys: Result<Vec<_>, Error> = answer.items().iter().map(|item| OrderKey::read(item, &what)).collect();
            let is_cut = answer.last_evaluated_key().is_some_and(|key| !key.is_empty());
            Ok::<_, Error>((keys?, is_cut))
        };
        let found = try_join_all(buckets.into_iter().map(one)).await?;
        // If large orders cut a bucket's answer short, its older keys are unknown.
        let known_from = found.iter().filter(|(_, is_cut)| *is_cut).filter_map(|(keys, _)| keys.last());
        let known_from = known_from.map(|key| key.sort.clone()).max().unwrap_or_default();
        let mut keys: Vec<_> = found.into_iter().flat_map(|(keys, _)| keys).collect();
        keys.retain(|key| key.sort.as_str() < high && key.sort >= known_from);
        keys.sort_by(|a, b| b.sort.cmp(&a.sort));
        keys.truncate(limit);
        Ok(keys)
    }

    /// The tasks with these ids, in this order, without those that are gone. An unreadable task fails alone.
    ///
    /// # Errors
    /// The table failed.
    pub async fn tasks(&self, ids: &[Id]) -> Result<Vec<Result<Task, Unreadable>>, Error> {
        let read = ids.iter().zip(self.load_all(ids).await);
        let one = |(id, read): (&Id, Result<Option<Task>, Error>)| match read {
            Ok(task) => task.map(|task| Ok(Ok(task))),
            Err(error) => Some(Unreadable::of(id, error).map(Err)),
        };
        read.filter_map(one).collect()
    }
}

/// The part of the sparse index with all possible matches.
fn attention_of(filter: &Filter) -> Option<&'static str> {
    match filter.state {
        _ if filter.parent.is_some() => None,
        _ if filter.paused => Some(ATTENTION_PAUSED),
        Some(ProcessState::Error) => Some(ATTENTION_ERROR),
        Some(_) | None => None,
    }
}

/// An index entry of an order in which a step waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The order.
    pub id: Id,
    /// When it last changed (UTC, milliseconds): when a wait began, or later.
    pub changed: Timestamp,
    shard: u16,
}

impl Waiting {
    fn read(item: &Item, what: &str) -> Result<Self, Error> {
        let shard = item::text(item, "attention", what)?.strip_prefix(item::ATTENTION_WAITING);
        let shard = shard.and_then(|shard| shard.parse().ok()).filter(|shard| *shard < MAX_SHARDS);
        Ok(Self {
            id: Id(item::text(item, "pk", what)?.to_owned()),
            changed: item::time(item, "updated_at", what)?,
            shard: shard.ok_or_else(|| corrupt(what, "attribute `attention` names no shard".into()))?,
        })
    }

    /// What a cursor names.
    fn at(cursor: &str) -> Result<Self, Error> {
        let wrong = |_| corrupt("the cursor", "it does not come from a list".into());
        let key = from_cursor(cursor, "the cursor").map_err(wrong)?;
        Self::read(&key, "the cursor").map_err(wrong)
    }

    fn key(&self) -> Item {
        Item::from([
            ("attention".into(), s(item::waiting(self.shard))),
            ("updated_at".into(), n(self.changed.as_millisecond())),
            ("pk".into(), s(&self.id.0)),
        ])
    }

    fn cursor(&self) -> String {
        to_cursor(&self.key())
    }
}

/// What a list needs of an order.
struct OrderKey {
    sort: String,
    id: Id,
    /// Unknown if somebody damaged the record.
    tenant: Option<String>,
}

impl OrderKey {
    fn read(item: &Item, what: &str) -> Result<Self, Error> {
        // Only this one of the three attributes surely exists: it is the key, and ends with the id.
        let sort = item::text(item, "sort", what)?.to_owned();
        let id = Id(sort.split_once('#').map_or(sort.as_str(), |(_, id)| id).to_owned());
        Ok(Self { id, tenant: item::text(item, "tenant", what).ok().map(str::to_owned), sort })
    }
}

/// The lowest sort key of an order accepted at `at`.
fn sort_from(at: Timestamp) -> String {
    format!("{:013}", at.as_millisecond().max(0))
}

fn time_of(sort: &str) -> Result<Timestamp, Error> {
    let wrong = || corrupt("the cursor", "it does not come from a list".into());
    let digits = sort.get(..13).ok_or_else(wrong)?;
    let ms = digits.parse().map_err(|_| wrong())?;
    Timestamp::from_millisecond(ms).map_err(|_| wrong())
}

fn month_start(at: Timestamp) -> Timestamp {
    let date = at.to_zoned(jiff::tz::TimeZone::UTC).date().first_of_month();
    date.to_zoned(jiff::tz::TimeZone::UTC).map_or(at, |zoned| zoned.timestamp())
}
