//! A record that cannot be read: how it is stored, and the action that replaces it with a mended one.
//!
//! Like all operator routes, these serve every tenant's orders, because a damaged record may not tell its owner.

use crate::act::{self, Done, MAX_BY, MAX_REASON};
use crate::{Operator, act::unavailable};
use edge::http::read_field;
use edge::problem::{self, Problem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use shared::mend::{Unfit, is_mended};
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::{Task, shard_of};
use std::collections::BTreeMap;
use stepwarden_aws::raw::Raw;
use stepwarden_aws::telemetry::Chain;

/// The action's name, as in its route. Not in [`act::NAMES`], which are for readable orders.
pub const NAME: &str = "mend";
/// Largest body, in bytes: the longest record, indented.
pub const MAX_BODY: usize = 512 * 1024;
/// Length of a mark, in characters.
pub const MARK: usize = 16;

/// The record of an order as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Record {
    /// The order.
    pub order_id: Id,
    /// Why it cannot be read; absent if it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its text exactly as stored: JSON, if nothing damaged it.
    pub record: String,
    /// The record's other attributes.
    pub columns: BTreeMap<String, String>,
    /// Mark of this save of the record, for `mend`.
    pub seen: String,
}

/// A corrected record that replaces an unreadable one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Mend {
    /// Operator's name; ignored if the token or the signature names one.
    #[schemars(length(min = 1, max = MAX_BY), regex(pattern = r"[^\s\x85]"))]
    pub by: Option<String>,
    /// Why.
    #[schemars(required, length(min = 1, max = MAX_REASON), regex(pattern = r"[^\s\x85]"))]
    pub reason: Option<String>,
    /// `seen` of the record that you read: the action is refused if the record has changed since.
    #[schemars(length(max = MARK))]
    pub seen: String,
    /// The complete corrected record.
    #[schemars(with = "BTreeMap<String, Value>")]
    pub record: Value,
}

impl Operator {
    /// The record of the order called `id`, whether it can be read or not.
    ///
    /// # Errors
    /// The order does not exist, or the store failed.
    pub async fn record(&self, id: &str) -> Result<Record, Problem> {
        let (order_id, raw) = self.raw(id).await?;
        let why = self.readable(&raw).await?.err();
        Ok(Record { order_id, why, record: raw.text().to_owned(), columns: raw.columns(), seen: raw.mark() })
    }

    /// Replaces a record that cannot be read with a mended one, and lets the order continue.
    ///
    /// # Errors
    /// The record can be read or is not the one seen; or the mended one cannot be read or does not fit the order.
    pub async fn mend(&self, id: &str, mend: &Mend, subject: Option<&str>) -> Result<Done, Problem> {
        let (by, reason) = act::who_and_why(subject, mend.by.as_deref(), mend.reason.as_deref())?;
        let (order_id, raw) = self.raw(id).await?;
        tracing::info!(task.id = %order_id, operator = %by, "asked to mend the record");
        if let Ok(task) = self.readable(&raw).await? {
            return nothing_to_mend(&task, &by, &reason);
        }
        if raw.mark() != mend.seen {
            let detail = "the record has changed since you read it; read it again and decide anew";
            return Err(problem::order_moved("seen", detail));
        }
        let task = self.proposed(&raw, &mend.record)?;
        let tenant = match self.engine.store.order(&task).await {
            Ok(Some(order)) => order.tenant,
            Ok(None) => {
                let detail = "the order table has no such order, so its tenant is unknown; restore it there first";
                return Err(problem::not_allowed(None, detail));
            }
            Err(error) => return Err(unavailable(&error)),
        };
        if task.reply_queue.as_ref().is_some_and(|queue| !self.config.reply_queues.allow(queue, &tenant)) {
            let why = "is not a reply queue that this tenant's orders may name; leave it out";
            return Err(problem::invalid_field(None, why).at("record.rq".into()));
        }
        let (next, effects) = match self.engine.mended(&task, &tenant, &by, &reason).await {
            Ok(mended) => {
                mended.map_err(|Unfit { at, why }| problem::invalid_field(None, why).at(format!("record.{at}")))?
            }
            Err(error @ Error::Corrupt { .. }) => {
                return Err(problem::invalid_field(None, error.to_string()).at("record.wh".into()));
            }
            Err(error) => return Err(unavailable(&error)),
        };
        if !self.engine.store.replace_raw(&next, &raw).await.map_err(|e| unavailable(&e))? {
            let (_, raw) = self.raw(id).await?;
            return match self.readable(&raw).await? {
                Ok(task) => nothing_to_mend(&task, &by, &reason),
                Err(_) => Err(problem::order_moved(
                    "seen",
                    "somebody else has just written the record; look at it again and decide anew",
                )),
            };
        }
        // A failed send is owed, or the sweep repeats it: the record is in the due index if anything is left to do.
        for error in self.engine.messenger.send(effects).await.into_iter().filter_map(Result::err) {
            tracing::warn!(task.id = %order_id, error = %Chain(&error), "a mended order continues with the next sweep");
        }
        Ok(Done { order_id, outcome: "applied".into(), version: next.version })
    }

    /// The task of a record from which the system can continue, or the fault of its text or definition.
    async fn readable(&self, raw: &Raw) -> Result<Result<Task, String>, Problem> {
        let read = match raw.task() {
            Ok(task) => self.engine.workflow(&task.workflow_hash).await.map(|_| task),
            Err(error) => Err(error),
        };
        match read {
            Ok(task) => Ok(Ok(task)),
            Err(Error::Corrupt { what, why }) => Ok(Err(format!("{what}: {why}"))),
            Err(error @ (Error::Unavailable { .. } | Error::TooLarge { .. })) => Err(unavailable(&error)),
        }
    }

    async fn raw(&self, id: &str) -> Result<(Id, Raw), Problem> {
        let none = || problem::no_such_order("order_id", format!("`{id}` is not the id of an order that is kept here"));
        let order_id = Id::parse(id).ok_or_else(none)?;
        let raw = self.engine.store.raw(&order_id).await.map_err(|e| unavailable(&e))?;
        Ok((order_id, raw.ok_or_else(none)?))
    }

    fn proposed(&self, raw: &Raw, record: &Value) -> Result<Task, Problem> {
        // This read names the place of a fault in the text, without columns.
        read_field::<Task>("record", record)?;
        let mut task = raw.with_text(&record.to_string()).map_err(|error| {
            problem::not_allowed(
                None,
                format!("{error}; only the text of a record can be mended here, not its other attributes"),
            )
        })?;
        if !raw.is_due() {
            // Whatever the text says: supervisors look in no other shard.
            task.shard = shard_of(&task.id, self.config.shards, false);
        }
        Ok(task)
    }
}

/// The answer to mending a record that can be read.
fn nothing_to_mend(task: &Task, by: &str, reason: &str) -> Result<Done, Problem> {
    if is_mended(task, by, reason) {
        return Ok(Done { order_id: task.id.clone(), outcome: "repeated".into(), version: task.version });
    }
    let detail = "the record can be read, so there is nothing to mend; look at the order and use another action";
    Err(problem::not_allowed(None, detail))
}
