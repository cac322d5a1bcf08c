//! What a person looks at first: orders that wait for them or are stuck, and why. Reads are bounded.

use crate::agents::{Paused, Strained};
use crate::list::{Row, Unreadable, each, row};
use crate::queues::AT_ONCE;
use crate::{Operator, act};
use edge::problem::Problem;
use futures::{StreamExt, TryStreamExt, stream};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::control::Agents;
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::task::{MOVED, ProcessState, Task, URGENT};
use shared::time::Timestamp;
use shared::trouble::{Wait, failures, kind, waits};
use shared::workflow::Workflow;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use stepwarden_aws::list::{self as store, Filter, MAX_PAGE};

/// Most open orders counted in one part of the due index.
const MAX_COUNTED: u32 = 500;
/// Open orders read, of all parts together.
const LOOKED_AT: usize = 100;
const MAX_REASONS: usize = 20;
/// Most orders counted in which a step waits.
const MAX_WAITING: usize = 500;

/// The state of the system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Overview {
    /// Orders in Error.
    pub waiting: Group,
    /// Paused orders.
    pub paused: Group,
    /// Open orders, of those read, with a failed step that waits for another attempt or has begun one.
    pub retrying: Group,
    /// Orders in which a step waits, for a minute or longer.
    #[serde(default)]
    pub waits: Waits,
    /// Open orders, approximately: those in the due index.
    pub open: Count,
    /// The open order that was accepted first, of those read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Oldest>,
    /// Orders, of those read, whose records cannot be read. No group counts them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<Unreadable>,
    /// Paused agents.
    pub paused_agents: BTreeMap<String, Paused>,
    /// Agents that hold up a large part of the work.
    pub strained_agents: BTreeMap<String, Strained>,
    /// Open circuit breakers that hold orders back, by agent, from the orders read. Breakers are in the memory of the agents'
    /// processes, so this is what the orders report.
    pub breakers: BTreeMap<String, Breaker>,
}

/// A circuit breaker that holds orders back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Breaker {
    /// Number of orders held back.
    pub count: usize,
    /// Error that opened it, from the order that changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The order that changed last.
    pub order_id: Id,
    /// When the first of them last changed (UTC, milliseconds).
    pub since: Timestamp,
}

/// Orders in which a step waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Waits {
    /// How many, of at most 500 that changed longest ago.
    #[serde(flatten)]
    pub count: Count,
    /// Where they wait, of the hundred that changed longest ago: the longest wait first, at most 20.
    pub steps: Vec<WaitsAt>,
}

/// Orders that wait at one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WaitsAt {
    /// The workflow.
    pub workflow: String,
    /// The step.
    pub step: String,
    /// What it waits for, in the words of its workflow.
    pub wait: String,
    /// Number of orders, of those read.
    pub count: usize,
    /// When the first of their waits began (UTC, milliseconds).
    pub since: Timestamp,
    /// That order.
    pub order_id: Id,
    /// When the first of these waits ends (UTC, milliseconds).
    pub until: Timestamp,
}

/// A number of orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// The number.
    pub count: usize,
    /// There are more, which were not counted.
    pub more: bool,
}

/// A group of orders, and why they are in it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Group {
    /// How many.
    #[serde(flatten)]
    pub count: Count,
    /// The reasons, most frequent first, at most 20.
    pub why: Vec<Why>,
}

/// What some orders have in common.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Cause")]
pub struct Why {
    /// The workflow.
    pub workflow: String,
    /// The failing step, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The agent that failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    /// Whether it is the step's undo.
    pub undo: bool,
    /// Number of orders.
    pub count: usize,
    /// Error of the order that changed last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The order that changed last.
    pub order_id: Id,
    /// When the first of them last changed (UTC, milliseconds).
    pub since: Timestamp,
}

/// The oldest open order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Oldest {
    /// The order.
    pub order_id: Id,
    /// When it was accepted (UTC, milliseconds).
    pub created_at: Timestamp,
    /// Whether every open order that could be older was read.
    pub is_exact: bool,
}

/// How many orders are open, the oldest, those that are being retried, open breakers, and unreadable ones.
type Open = (Count, Option<Oldest>, Group, BTreeMap<String, Breaker>, Vec<Unreadable>);

impl Operator {
    /// The state of the system.
    pub async fn overview(&self) -> Result<Overview, Problem> {
        self.look().await.map_err(|e| act::unavailable(&e))
    }

    async fn look(&self) -> Result<Overview, Error> {
        let in_error = Filter { state: Some(ProcessState::Error), ..Filter::default() };
        let paused = Filter { paused: true, ..Filter::default() };
        let agents = self.engine.store.read_agents();
        let (waiting, paused, aside, agents, found) = futures::try_join!(
            self.group(&in_error),
            self.group(&paused),
            self.aside(),
            agents,
            self.engine.store.waiting(MAX_WAITING, None)
        )?;
        let ids: Vec<Id> = found.0.into_iter().map(|one| one.id).collect();
        let known = ids.iter().collect();
        let (open, waits) = futures::try_join!(self.open(&known), self.waits(&ids, found.1))?;
        let Agents { paused: paused_agents, mut strained, .. } = agents;
        let paused_agents = paused_agents.into_iter().map(|(name, pause)| (name, pause.into())).collect();
        strained.retain(|_, strain| strain.is_on(self.engine.now()));
        let strained_agents = strained.into_iter().map(|(name, strain)| (name, strain.into())).collect();
        let ((waiting, one), (paused, two), (open, oldest, retrying, breakers, three)) = (waiting, paused, open);
        let (waits, four) = waits;
        let mut unreadable: Vec<Unreadable> = [one, two, three, four, aside].into_iter().flatten().collect();
        // An order that waits for a person and owes an alert is in both indexes.
        unreadable.sort_by(|a, b| a.order_id.cmp(&b.order_id));
        unreadable.dedup_by(|a, b| a.order_id == b.order_id);
        Ok(Overview {
            waiting,
            paused,
            retrying,
            waits,
            open,
            oldest,
            unreadable,
            paused_agents,
            strained_agents,
            breakers,
        })
    }

    /// Where the first orders of `ids` wait; `more`: there are others.
    async fn waits(&self, ids: &[Id], more: bool) -> Result<(Waits, Vec<Unreadable>), Error> {
        let read = self.engine.store.tasks(&ids[..ids.len().min(LOOKED_AT)]).await?;
        let (known, unreadable) = self.with_workflows(read).await?;
        Ok((Waits { count: Count { count: ids.len(), more }, steps: waits_at(&known) }, unreadable))
    }

    async fn group(&self, filter: &Filter) -> Result<(Group, Vec<Unreadable>), Error> {
        let page = self.engine.store.list(filter, self.engine.now(), MAX_PAGE, None).await?;
        let more = page.next.is_some();
        let (rows, unreadable) = self.rows(each(page), false).await?;
        Ok((Group { count: Count { count: rows.len(), more }, why: why(&rows) }, unreadable))
    }

    /// The orders that sweeps set aside and so deferred beyond the first open orders.
    async fn aside(&self) -> Result<Vec<Unreadable>, Error> {
        let page = self.engine.store.list_aside().await?;
        self.with_workflows(each(page)).await.map(|(_, unreadable)| unreadable)
    }

    async fn rows(
        &self,
        read: impl IntoIterator<Item = Result<Task, store::Unreadable>>,
        under_way: bool,
    ) -> Result<(Vec<Row>, Vec<Unreadable>), Error> {
        let (known, unreadable) = self.with_workflows(read).await?;
        let row = |(task, workflow): &(Task, Arc<Workflow>)| Row {
            trouble: failures(task, workflow, under_way),
            ..row(task, workflow)
        };
        Ok((known.iter().map(row).collect(), unreadable))
    }

    /// Open orders: how many, the oldest, and those that are being retried. A failure moves an order to the last parts
    /// of the due index, so these are read first. In other parts the first order is the oldest. A wait also moves its
    /// order to the last parts, so orders known as `waiting` are read last.
    async fn open(&self, waiting: &HashSet<&Id>) -> Result<Open, Error> {
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
            if part == MOVED { moved.push(page.ids) } else { first.extend(page.ids.into_iter().take(2)) }
        }
        let (ids, are_all) = looked_at(in_turn(moved), first, |id| waiting.contains(id));
        let is_exact = are_all && !open.more;
        // An order in Error or at its end is in the index, too, while it owes an alert or notice.
        let (mut rows, unreadable) = self.rows(self.engine.store.tasks(&ids).await?, true).await?;
        rows.retain(|row| !row.state.is_final());
        let oldest = rows.iter().min_by_key(|row| row.created_at);
        let oldest = oldest.map(|row| Oldest { order_id: row.order_id.clone(), created_at: row.created_at, is_exact });
        rows.retain(|row| !row.trouble.is_empty());
        let count = Count { count: rows.len(), more: !is_exact };
        Ok((open, oldest, Group { count, why: why(&rows) }, breakers(&rows), unreadable))
    }
}

/// The items of all pages, the first of each before the second of any, so each shard's first due first.
fn in_turn<T>(pages: Vec<Vec<T>>) -> Vec<T> {
    let mut ranked: Vec<(usize, T)> = pages.into_iter().flat_map(|page| page.into_iter().enumerate()).collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, item)| item).collect()
}

/// What to read, and whether that is all: first orders moved because of a failure, then the oldest, and last orders
/// moved because they wait.
fn looked_at<T>(moved: Vec<T>, first: Vec<T>, waits: impl Fn(&T) -> bool) -> (Vec<T>, bool) {
    let are_all = moved.len() + first.len() <= LOOKED_AT;
    let (waiting, moved): (Vec<T>, Vec<T>) = moved.into_iter().partition(waits);
    (moved.into_iter().chain(first).chain(waiting).take(LOOKED_AT).collect(), are_all)
}

/// Where orders wait, the longest wait first.
fn waits_at(known: &[(Task, Arc<Workflow>)]) -> Vec<WaitsAt> {
    let mut all: BTreeMap<(String, String, String), WaitsAt> = BTreeMap::new();
    for (task, workflow) in known.iter().filter(|(task, _)| task.is_waiting()) {
        for Wait { step, wait, since, until } in waits(task, workflow) {
            let (workflow, order_id) = (task.workflow.clone(), task.id.clone());
            let key = (workflow.clone(), step.clone(), wait.clone());
            let at = all.entry(key).or_insert(WaitsAt { workflow, step, wait, count: 0, since, order_id, until });
            at.count += 1;
            at.until = at.until.min(until);
            if since < at.since {
                (at.since, at.order_id) = (since, task.id.clone());
            }
        }
    }
    let mut all: Vec<_> = all.into_values().collect();
    all.sort_by(|a, b| (a.since, &a.order_id).cmp(&(b.since, &b.order_id)));
    all.truncate(MAX_REASONS);
    all
}

/// The rows grouped by where they failed, and the error.
fn why(rows: &[Row]) -> Vec<Why> {
    let mut all: Vec<(Why, String, Timestamp)> = Vec::new();
    for row in rows {
        let trouble = row.trouble.first();
        let (step, agent) = (trouble.map(|t| t.step.clone()), trouble.map(|t| t.agent.clone()));
        let agent = agent.filter(|agent| !agent.is_empty());
        let undo = trouble.is_some_and(|t| t.undo);
        let error = trouble.and_then(|t| t.error.clone()).or_else(|| row.reason.clone());
        let kind = error.as_deref().map(kind).unwrap_or_default();
        let is_same = |(why, known, _): &&mut (Why, String, Timestamp)| {
            why.workflow == row.workflow && why.step == step && why.undo == undo && *known == kind
        };
        let Some((why, _, newest)) = all.iter_mut().find(is_same) else {
            let (workflow, order_id, since) = (row.workflow.clone(), row.order_id.clone(), row.updated_at);
            all.push((Why { workflow, step, agent, undo, count: 1, error, order_id, since }, kind, row.updated_at));
            continue;
        };
        why.count += 1;
        why.since = why.since.min(row.updated_at);
        if row.updated_at > *newest {
            *newest = row.updated_at;
            why.error = error;
            why.order_id = row.order_id.clone();
        }
    }
    all.sort_by_key(|(why, ..)| std::cmp::Reverse(why.count));
    all.into_iter().map(|(why, ..)| why).take(MAX_REASONS).collect()
}

/// The open breakers, as reported by the orders that they hold back.
fn breakers(rows: &[Row]) -> BTreeMap<String, Breaker> {
    let mut all: BTreeMap<String, (Breaker, Timestamp)> = BTreeMap::new();
    for row in rows {
        for trouble in row.trouble.iter().filter(|trouble| trouble.held_back) {
            let new = || Breaker { count: 0, error: None, order_id: row.order_id.clone(), since: row.updated_at };
            let (breaker, newest) = all.entry(trouble.agent.clone()).or_insert_with(|| (new(), Timestamp::MIN));
            breaker.count += 1;
            breaker.since = breaker.since.min(row.updated_at);
            if row.updated_at > *newest {
                *newest = row.updated_at;
                (breaker.error, breaker.order_id) = (trouble.error.clone(), row.order_id.clone());
            }
        }
    }
    all.into_iter().map(|(agent, (breaker, _))| (agent, breaker)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list::Trouble;

    fn row(n: i64, error: &str, held_back: bool) -> Row {
        let at = Timestamp::from_second(n).unwrap();
        let (step, agent) = ("charge".to_owned(), "payment".to_owned());
        Row {
            order_id: Id(format!("ord_{n}")),
            workflow: "order".into(),
            state: ProcessState::Error,
            paused_at: None,
            reason: None,
            tenant: "acme".into(),
            reference: None,
            labels: Vec::new(),
            version: 1,
            failure_count: 0,
            created_at: at,
            updated_at: at,
            trouble: vec![Trouble { step, agent, undo: false, error: Some(error.to_owned()), held_back }],
            waits: Vec::new(),
        }
    }

    // Errors that differ only in a number or an id are one cause.
    #[test]
    fn causes_are_grouped_by_their_error() {
        let table = [
            ("402 card 4242-4242 of order NW-10250 refused", "402 card 9999-1111 of order NW-10251 refused", true),
            ("402 the card has expired", "402 the card is stolen", false),
            ("503 out of order", "500 out of order", false),
            ("503 out of order (4 calls)", "503 out of order (1 call)", true),
            ("", "", true),
            ("é1234", "é5678", true),
        ];
        for (one, other, is_same) in table {
            let all = why(&[row(1, one, false), row(3, other, false), row(2, one, false)]);
            assert_eq!(all.len(), if is_same { 1 } else { 2 }, "{one} | {other}: {all:?}");
            assert_eq!(all.iter().map(|why| why.count).sum::<usize>(), 3);
            let newest = all.iter().find(|why| why.order_id.0 == "ord_3").expect("the order that changed last");
            assert_eq!(newest.error.as_deref(), Some(other));
        }
        let many: Vec<Row> = (0..90).map(|n| row(n, &"x".repeat(n as usize), false)).collect();
        assert_eq!(why(&many).len(), MAX_REASONS);
    }

    #[test]
    fn a_breaker_is_told_by_the_orders_that_it_holds_back() {
        let open = |why: &str| format!("the circuit breaker of `payment` is open: {why}");
        let rows = [row(2, &open("old"), true), row(5, &open("new"), true), row(3, "503 out of order", false)];
        let all = breakers(&rows);
        let breaker = &all["payment"];
        assert_eq!((all.len(), breaker.count, breaker.order_id.0.as_str()), (1, 2, "ord_5"));
        assert_eq!((breaker.error.clone(), breaker.since), (Some(open("new")), Timestamp::from_second(2).unwrap()));
        assert!(breakers(&rows[2..]).is_empty());
    }

    // With any number of shards, orders in trouble come before orders that only wait their turn.
    #[test]
    fn what_was_moved_is_looked_at_first() {
        let first = vec!['f'; 2 * LOOKED_AT];
        let (ids, are_all) = looked_at(vec!['m'; 3], first.clone(), |_| false);
        assert_eq!((ids.len(), &ids[..4], are_all), (LOOKED_AT, &['m', 'm', 'm', 'f'][..], false));
        let (ids, are_all) = looked_at(vec!['m'; LOOKED_AT], first.clone(), |_| false);
        assert!(ids.iter().all(|one| *one == 'm') && !are_all, "the others were left out");
        let (ids, are_all) = looked_at(vec!['m'; LOOKED_AT - 1], vec!['f'], |_| false);
        assert_eq!((ids.len(), are_all), (LOOKED_AT, true));
        let (ids, are_all) = looked_at(vec!['m'; LOOKED_AT - 1], vec!['f'; 2], |_| false);
        assert_eq!((ids.len(), are_all), (LOOKED_AT, false));
        // Of several shards, what is due first in each; last, what waits.
        let moved = in_turn(vec![vec!['a', 'w', 'w'], vec!['b', 'c'], vec![]]);
        assert_eq!(moved, ['a', 'b', 'w', 'c', 'w']);
        let (ids, _) = looked_at(moved, first, |one| *one == 'w');
        assert_eq!(ids[..4], ['a', 'b', 'c', 'f']);
    }
}
