//! Agents: their list, how much waits for them, and pausing them.

use crate::queues::known;
use crate::{Operator, act};
use edge::problem::{self, Problem};
use futures::future::join_all;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::control::{Agents, Pause};
use shared::strain::Strain;
use shared::time::Timestamp;
use stepwarden_aws::config::queue;

/// An agent as an operator sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Agent {
    /// Its name.
    pub name: String,
    /// Who paused it, why, and since when.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
    /// Present while it holds up a large part of the work: since when, and the factor for its back-off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strained: Option<Strained>,
    /// Requests waiting in all its queues, approximately. Absent if SQS did not report every queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// Requests that were received too often, approximately. Absent if SQS did not report them for every pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<u64>,
    /// Why SQS did not report: a queue is missing, may not be read, or SQS is unavailable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// Its pools, preferred pool first.
    pub pools: Vec<Pool>,
}

/// Who paused an agent, when and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Paused {
    /// Name of the person.
    pub by: String,
    /// Why.
    pub reason: String,
    /// Since when (UTC, milliseconds).
    pub since: Timestamp,
}

/// A strained agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Strained {
    /// Since when (UTC, milliseconds).
    pub since: Timestamp,
    /// The last sweep that found it strained (UTC, milliseconds).
    pub last: Timestamp,
    /// Factor for back-off.
    pub stretch: u32,
    /// Orders of that sweep that this agent held up.
    pub held: u32,
    /// All orders of that sweep.
    pub looked_at: u32,
}

impl From<Pause> for Paused {
    fn from(Pause { by, reason, since }: Pause) -> Self {
        Self { by, reason, since }
    }
}

impl From<Strain> for Strained {
    fn from(strain: Strain) -> Self {
        let Strain { since, last, stretch, held, looked_at, alert_owed: _ } = strain;
        Self { since, last, stretch, held, looked_at }
    }
}

/// All agents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Agents")]
pub struct All {
    /// In the order in which they are configured.
    pub agents: Vec<Agent>,
}

/// The new setting of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AgentSet")]
pub struct Set {
    /// The agent.
    pub agent: String,
    /// Whether it gets no more work.
    pub paused: bool,
    /// Seconds until all schedulers apply the setting.
    pub within_s: i64,
}

/// A pool of an agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AgentPool")]
pub struct Pool {
    /// Its name; the agent's name if there is only one pool.
    pub name: String,
    /// Its queues, most urgent first.
    pub queues: Vec<Queue>,
    /// Its requests that were received too often, approximately. Absent if SQS did not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead: Option<u64>,
}

/// A queue of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AgentQueue")]
pub struct Queue {
    /// Its name.
    pub name: String,
    /// Requests waiting in it, approximately. Absent if SQS did not report them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
}

impl Operator {
    /// All agents. If SQS does not report a queue, the others are still shown.
    pub async fn agents(&self) -> Result<Vec<Agent>, Problem> {
        let Agents { mut paused, mut strained, .. } =
            self.engine.store.read_agents().await.map_err(|e| act::unavailable(&e))?;
        strained.retain(|_, strain| strain.is_on(self.engine.now()));
        let one = |name: &String| {
            let (paused, strained) = (paused.remove(name).map(Paused::from), strained.remove(name).map(Strained::from));
            let name = name.clone();
            async move {
                let pools = self.config.pools_of(&name);
                let pools = join_all(pools.into_iter().map(|pool| self.pool(pool))).await;
                let (pools, reasons): (Vec<Pool>, Vec<Option<String>>) = pools.into_iter().unzip();
                let waiting = pools.iter().flat_map(|pool| &pool.queues).map(|queue| queue.waiting).sum();
                let dead = pools.iter().map(|pool| pool.dead).sum();
                let why = reasons.into_iter().flatten().next();
                Agent { name, paused, strained, waiting, dead, why, pools }
            }
        };
        Ok(join_all(self.config.agents.iter().map(one)).await)
    }

    /// A pool, and why not all of its counts are known.
    pub(crate) async fn pool(&self, name: &str) -> (Pool, Option<String>) {
        let waits = |name: String| async move {
            let (waiting, why) = known(self.redriver.waiting(&name).await);
            (Queue { name, waiting }, why)
        };
        let queues = join_all(self.config.pool_queues(name).into_iter().map(waits)).await;
        let (queues, reasons): (Vec<Queue>, Vec<Option<String>>) = queues.into_iter().unzip();
        let (dead, why_dead) = known(self.redriver.waiting(&queue::dead(&queue::agent(name))).await);
        let why = reasons.into_iter().flatten().next().or(why_dead);
        (Pool { name: name.to_owned(), queues, dead }, why)
    }

    /// Pauses the agent called `name`, or resumes it. Schedulers follow within [`shared::engine::AGENTS_FOR`].
    ///
    /// # Errors
    /// There is no such agent, or the store failed.
    pub async fn set_agent(&self, name: &str, paused: bool, by: String, reason: String) -> Result<(), Problem> {
        if !self.config.agents.iter().any(|known| known == name) {
            let detail = format!("`{name}` is not one of {}", self.config.agents.join(", "));
            return Err(problem::no_such_agent(None, detail));
        }
        tracing::info!(agent = name, operator = %by, paused, "paused or resumed an agent: {reason}");
        let pause = paused.then(|| Pause { by, reason, since: self.engine.now() });
        self.engine.store.set_agent(name, pause.as_ref()).await.map_err(|e| act::unavailable(&e))
    }
}
