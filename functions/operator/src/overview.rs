//! What a person looks at first: what waits for them, what is stuck, and why. A bounded number of reads, whatever there is.

use crate::agents::{Paused, Strained};
use crate::list::{Row, Unreadable, failures, row};
use crate::queues::AT_ONCE;
use crate::{Operator, act};
use futures::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::Serialize;
use shared::agents::Agents;
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::{MOVED, ProcessState, Task, URGENT};
use shared::time::Timestamp;
use shared::workflow::Workflow;
use std::collections::BTreeMap;
use std::sync::Arc;
use stepwarden_aws::list::{Filter, MAX_PAGE};
use stepwarden_aws::problem::Problem;

/// Most open orders counted in one part of the due index.
const MAX_COUNTED: u32 = 500;
/// Open orders looked at, of all parts together.
const LOOKED_AT: usize = 100;

/// How the system stands.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Overview {
    /// Orders in Error.
    pub waiting: Group,
    /// Orders that an operator paused.
    pub paused: Group,
    /// Open orders with a step that failed and waits for, or has, another attempt; among those looked at.
    pub retrying: Group,
    /// Open orders, about: those in the due index.
    pub open: Count,
    /// The open order that was accepted first, among those looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Oldest>,
    /// Orders among those looked at whose records cannot be read. No group counts them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Agents that are paused.
    pub paused_agents: BTreeMap<String, Paused>,
    /// Agents that hold up a large part of the work.
    pub strained_agents: BTreeMap<String, Strained>,
}

/// A number of orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Count {
    /// So many.
    pub count: usize,
    /// There are more, and they were not counted.
    pub more: bool,
}

/// Some orders, and why they are where they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct Group {
    /// How many.
    #[serde(flatten)]
    pub count: Count,
    /// The reasons, the most frequent first.
    pub why: Vec<Why>,
}

/// What some orders have in common.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "Cause")]
pub struct Why {
    /// The workflow.
    pub workflow: String,
    /// The step in trouble; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The agent that could not do it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Whether it is the step's undo.
    pub undo: bool,
    /// How many orders.
    pub count: usize,
    /// What the order that changed last says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The order that changed last.
    pub order_id: Id,
    /// When the first of them last changed (UTC, milliseconds).
    pub since: Timestamp,
}

/// The oldest open order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Oldest {
    /// The order.
    pub order_id: Id,
    /// When it was accepted (UTC, milliseconds).
    pub created_at: Timestamp,
    /// Whether all open orders were looked at that could be older.
    pub is_exact: bool,
}

impl Operator {
    /// How the system stands.
    ///
    /// # Errors
    /// The store's.
    pub async fn overview(&self) -> Result<Overview, Problem> {
        self.look().await.map_err(|e| act::unavailable(&e))
    }

    async fn look(&self) -> Result<Overview, Error> {
        let in_error = Filter { state: Some(ProcessState::Error), ..Filter::default() };
        let paused = Filter { paused: true, ..Filter::default() };
        let agents = self.engine.store.read_agents();
        let (waiting, paused, open, agents) =
            futures::try_join!(self.group(&in_error), self.group(&paused), self.open(), agents)?;
        let Agents { paused: paused_agents, mut strained, .. } = agents;
        let paused_agents = paused_agents.into_iter().map(|(name, pause)| (name, pause.into())).collect();
        strained.retain(|_, strain| strain.is_on(self.engine.now()));
        let strained_agents = strained.into_iter().map(|(name, strain)| (name, strain.into())).collect();
        let ((waiting, one), (paused, two), (open, oldest, retrying, three)) = (waiting, paused, open);
        let mut unreadable: Vec<Unreadable> = [one, two, three].into_iter().flatten().collect();
        // One that waits for a person may owe an alert, and then it is in both indexes.
        unreadable.sort_by(|a, b| a.order_id.cmp(&b.order_id));
        unreadable.dedup_by(|a, b| a.order_id == b.order_id);
        Ok(Overview { waiting, paused, retrying, open, oldest, unreadable, paused_agents, strained_agents })
    }

    async fn group(&self, filter: &Filter) -> Result<(Group, Vec<Unreadable>), Error> {
        let page = self.engine.store.list(filter, self.engine.now(), MAX_PAGE, None).await?;
        let (rows, damaged) = self.rows(page.tasks, false).await?;
        let unreadable = page.unreadable.into_iter().map(Unreadable::from).chain(damaged).collect();
        Ok((Group { count: Count { count: rows.len(), more: page.next.is_some() }, why: why(&rows) }, unreadable))
    }

    async fn rows(&self, tasks: Vec<Task>, under_way: bool) -> Result<(Vec<Row>, Vec<Unreadable>), Error> {
        let (known, damaged) = self.with_workflows(tasks).await?;
        let row = |(task, workflow): &(Task, Arc<Workflow>)| Row {
            trouble: failures(task, workflow, under_way),
            ..row(task, workflow)
        };
        Ok((known.iter().map(row).collect(), damaged))
    }

    /// Open orders: how many, the oldest, and those that are being retried. Whatever failed has been moved to the last parts
    /// of the due index, so these are looked at first; in the others the first order is the oldest one.
    async fn open(&self) -> Result<(Count, Option<Oldest>, Group, Vec<Unreadable>), Error> {
        let parts = [MOVED, URGENT, 0].into_iter().flat_map(|part| (0..self.config.shards).map(move |n| (part, n)));
        let parts: Vec<_> = parts.collect();
        let count = |(part, shard): (u16, u16)| async move {
            let page = self.engine.store.due(part + shard, Timestamp::MAX, MAX_COUNTED, None).await?;
            Ok::<_, Error>((part, page))
        };
        let pages: Vec<_> = stream::iter(parts).map(count).buffered(AT_ONCE).try_collect().await?;
        let mut open = Count::default();
        let (mut moved, mut first) = (Vec::new(), Vec::new());
        for (part, page) in pages {
            open.count += page.ids.len();
            open.more |= page.next.is_some();
            if part == MOVED { moved.extend(page.ids) } else { first.extend(page.ids.into_iter().take(2)) }
        }
        let (ids, are_all) = looked_at(moved, first);
        let is_exact = are_all && !open.more;
        // An order in Error or at its end is in the index too while it owes an alert or a notice.
        let (mut tasks, mut unreadable) = (Vec::new(), Vec::new());
        for read in self.engine.store.tasks(&ids).await? {
            match read {
                Ok(task) => tasks.push(task),
                Err(damaged) => unreadable.push(Unreadable::from(damaged)),
            }
        }
        let (mut rows, damaged) = self.rows(tasks, true).await?;
        unreadable.extend(damaged);
        rows.retain(|row| !row.state.is_final());
        let oldest = rows.iter().min_by_key(|row| row.created_at);
        let oldest = oldest.map(|row| Oldest { order_id: row.order_id.clone(), created_at: row.created_at, is_exact });
        rows.retain(|row| !row.trouble.is_empty());
        let count = Count { count: rows.len(), more: !is_exact };
        Ok((open, oldest, Group { count, why: why(&rows) }, unreadable))
    }
}

/// What is looked at, what was moved first, and whether that is all of it.
fn looked_at<T>(moved: Vec<T>, first: Vec<T>) -> (Vec<T>, bool) {
    let are_all = moved.len() + first.len() <= LOOKED_AT;
    (moved.into_iter().chain(first).take(LOOKED_AT).collect(), are_all)
}

/// The rows by what is wrong with them.
fn why(rows: &[Row]) -> Vec<Why> {
    let mut all: Vec<Why> = Vec::new();
    let mut newest: Vec<Timestamp> = Vec::new();
    for row in rows {
        let trouble = row.trouble.first();
        let (step, agent) = (trouble.map(|t| t.step.clone()), trouble.map(|t| t.agent.clone()));
        let undo = trouble.is_some_and(|t| t.undo);
        let error = trouble.and_then(|t| t.error.clone()).or_else(|| row.reason.clone());
        let found = all.iter().position(|w| w.workflow == row.workflow && w.step == step && w.undo == undo);
        let Some(n) = found else {
            let (workflow, order_id, since) = (row.workflow.clone(), row.order_id.clone(), row.updated_at);
            all.push(Why { workflow, step, agent, undo, count: 1, error, order_id, since });
            newest.push(row.updated_at);
            continue;
        };
        all[n].count += 1;
        all[n].since = all[n].since.min(row.updated_at);
        if row.updated_at > newest[n] {
            newest[n] = row.updated_at;
            all[n].error = error;
            all[n].order_id = row.order_id.clone();
        }
    }
    all.sort_by_key(|why| std::cmp::Reverse(why.count));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    // However many shards there are, orders in trouble are not pushed out by those that only wait their turn.
    #[test]
    fn what_was_moved_is_looked_at_first() {
        let first = vec!['f'; 2 * LOOKED_AT];
        let (ids, are_all) = looked_at(vec!['m'; 3], first.clone());
        assert_eq!((ids.len(), &ids[..4], are_all), (LOOKED_AT, &['m', 'm', 'm', 'f'][..], false));
        let (ids, are_all) = looked_at(vec!['m'; LOOKED_AT], first);
        assert!(ids.iter().all(|one| *one == 'm') && !are_all, "the others were left out");
        let (ids, are_all) = looked_at(vec!['m'; LOOKED_AT - 1], vec!['f']);
        assert_eq!((ids.len(), are_all), (LOOKED_AT, true));
        let (ids, are_all) = looked_at(vec!['m'; LOOKED_AT - 1], vec!['f'; 2]);
        assert_eq!((ids.len(), are_all), (LOOKED_AT, false));
    }
}
