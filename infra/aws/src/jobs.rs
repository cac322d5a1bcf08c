//! Jobs in the state table: an item per job, and one per page of its orders. A job with something to do is in a
//! separate part of the due index; all jobs are in the attention index, by the time of their start.

use crate::control::json;
use crate::item::{self, Item, corrupt, n, s};
use crate::state_store::{DUE_INDEX, DynamoStore, put};
use aws_sdk_dynamodb::types::{Put, TransactWriteItem};
use shared::job::{Job, JobId, KEPT, Page};
use shared::json::read_own;
use shared::ports::Error;
use shared::time::plus;

/// The part of the due index with the jobs. Shards are numbers.
const PART: &str = "jobs";
/// Value of `attention` for jobs.
pub const ATTENTION_JOB: &str = "Job";

fn page_key(id: &JobId, page: u32) -> String {
    format!("{id}#{page:05}")
}

fn from_job(job: &Job) -> Item {
    let created = job.created_at.as_millisecond();
    let mut item = Item::from([
        ("pk".into(), s(&job.id.0)),
        ("version".into(), n(job.version)),
        ("job".into(), json(job)),
        ("attention".into(), s(ATTENTION_JOB)),
        // When it started, so that progress writes no index.
        ("updated_at".into(), n(created)),
        ("ttl".into(), n(plus(job.created_at, KEPT).as_second())),
    ]);
    if job.is_due() {
        item.extend([("shard".into(), s(PART)), ("due".into(), n(created))]);
    }
    item
}

fn to_job(item: &Item) -> Result<Job, Error> {
    let id = JobId(item::text(item, "pk", "a job")?.to_owned());
    let what = format!("job {id}");
    let text = item::text(item, "job", &what)?;
    let job: Job = read_own(text).map_err(|e| corrupt(&what, shared::json::why_unread(&e, "attribute `job`")))?;
    Ok(Job { version: item::number(item, "version", &what)?, id, ..job })
}

impl DynamoStore {
    fn put_page(&self, job: &Job, number: u32, page: &Page) -> TransactWriteItem {
        put(Put::builder()
            .table_name(&self.state_table)
            .item("pk", s(page_key(&job.id, number)))
            .item("page", json(page))
            .item("ttl", n(plus(job.created_at, KEPT).as_second())))
    }

    /// Stores a new job with its pages; false if there is one with this id.
    ///
    /// # Errors
    /// The table failed.
    pub async fn create_job(&self, job: &Job, pages: &[Page]) -> Result<bool, Error> {
        let first = Put::builder().table_name(&self.state_table).set_item(Some(from_job(job)));
        let first = put(first.condition_expression("attribute_not_exists(pk)"));
        let pages = (0u32..).zip(pages).map(|(number, page)| self.put_page(job, number, page));
        self.transact(std::iter::once(first).chain(pages).collect(), &format!("creating job {}", job.id)).await
    }

    /// The ids of up to `limit` jobs, the newest first, from `cursor` on.
    ///
    /// # Errors
    /// The table failed, or the cursor is not one of ours.
    pub async fn jobs(&self, limit: usize, cursor: Option<&str>) -> Result<(Vec<JobId>, Option<String>), Error> {
        let found = self.attention_part(ATTENTION_JOB, limit, cursor, "the cursor").await?;
        Ok((found.ids.into_iter().map(|id| JobId(id.0)).collect(), found.next))
    }

    /// Up to `limit` jobs that have something to do. The index lags; the record is the truth.
    ///
    /// # Errors
    /// The table failed.
    pub async fn open_jobs(&self, limit: usize) -> Result<Vec<JobId>, Error> {
        let query = self
            .query(DUE_INDEX)
            .key_condition_expression("#shard = :shard")
            .expression_attribute_names("#shard", "shard")
            .expression_attribute_values(":shard", s(PART));
        let found = self.ids(query, limit, None, "jobs").await?;
        Ok(found.ids.into_iter().map(|id| JobId(id.0)).collect())
    }

    /// The job as the last write left it.
    ///
    /// # Errors
    /// The table failed, or the record cannot be read.
    pub async fn job(&self, id: &JobId) -> Result<Option<Job>, Error> {
        self.record(&id.0, &format!("job {id}")).await?.as_ref().map(to_job).transpose()
    }

    /// A page of its orders.
    ///
    /// # Errors
    /// The table failed, or the record cannot be read.
    pub async fn page(&self, id: &JobId, number: u32) -> Result<Option<Page>, Error> {
        let what = format!("page {number} of job {id}");
        let Some(item) = self.record(&page_key(id, number), &what).await? else { return Ok(None) };
        let text = item::text(&item, "page", &what)?;
        read_own(text).map(Some).map_err(|e| corrupt(&what, shared::json::why_unread(&e, "attribute `page`")))
    }

    /// Replaces version `seen` of the job, and the page of this number; neither if another version is stored.
    ///
    /// # Errors
    /// The table failed.
    pub async fn save_job(&self, job: &Job, seen: u64, page: Option<(u32, &Page)>) -> Result<bool, Error> {
        let next = put(Put::builder()
            .table_name(&self.state_table)
            .set_item(Some(from_job(job)))
            .condition_expression("version = :seen")
            .expression_attribute_values(":seen", n(seen)));
        let page = page.map(|(number, page)| self.put_page(job, number, page));
        self.transact(std::iter::once(next).chain(page).collect(), &format!("saving job {}", job.id)).await
    }
}
