//! The configuration of a process, read once at start and checked. The names of the variables match template.yaml.

use crate::reply_queues::ReplyQueues;
use shared::message::Request;
use shared::pools::Layout;
use shared::task::Priority;
use shared::time::SignedDuration;
use shared::workflow::file::Settings;
use std::collections::{BTreeMap, BTreeSet};
use std::str::FromStr;

/// Why the configuration was refused: the variable and what to set it to.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct Error {
    name: &'static str,
    problem: String,
}

/// Where everything is, and the settings of this process.
#[derive(Clone, Debug)]
pub struct Config {
    /// `ORDERS_TABLE`: submitted orders.
    pub orders_table: String,
    /// `STATE_TABLE`: tasks, workflows, leases.
    pub state_table: String,
    /// `QUEUE_PREFIX`: URL of every queue up to its own name, for instance
    /// `https://sqs.eu-west-1.amazonaws.com/1234/shop-`.
    pub queue_prefix: String,
    /// `EVENT_BUS`: name of the bus alerts go to.
    pub event_bus: String,
    /// `REPLY_QUEUES`: queues that submissions may name for their notices, and the tenants that may name them, for
    /// example `default;acme=acme;all=*`.
    pub reply_queues: ReplyQueues,
    /// `AGENTS` and `EXTERNAL_AGENTS`: names of all agents, separated by commas.
    pub agents: Vec<String>,
    /// `EXTERNAL_AGENTS`: agents that an external program serves; it receives from their queues.
    pub external_agents: Vec<String>,
    /// `AGENT_POOLS`: pools of the agents that have several, the most preferred first, for example
    /// `payment=payment,payment-b;fraud=fraud,fraud-b`.
    pub pools: Layout,
    /// `PRIORITY_CLASSES`: whether urgent Wakes, and requests of each priority, have their own queues.
    pub priority_classes: bool,
    /// `SHARDS`: shards of the due index, 1 to 256. May be raised at any time, but not lowered while orders are open.
    pub shards: u16,
    /// `ORDER_BUCKETS`: partitions per month of the order table, 1 to 256. May be raised, never lowered.
    pub order_buckets: u16,
    /// `CLOCK_SKEW_MS`: largest clock skew between two instances.
    pub clock_skew: SignedDuration,
    /// `RETENTION_DAYS`: how long a task is kept after it ended well; zero keeps it forever. Orders stay.
    pub retention: SignedDuration,
    /// `TASK_CACHE`: most tasks and most inputs kept in memory between messages.
    pub cache: usize,
    /// `OVERLOAD_AGE_MS`: a new order is refused while messages ahead of it are older than this, or than half of its
    /// workflow's shortest timeout. Zero accepts every order.
    pub overload_age: SignedDuration,
    /// `WORKFLOW_CONFIG` and `HTTP_HOSTS`: values that replace those in the `config` of workflow files, for example
    /// `{"order": {"limit_cents": 1000}}`; and hosts that may come with an order, separated by commas.
    pub files: Settings,
    /// `PUBLIC_URL`: where services reach the API, for callbacks; empty if they cannot.
    pub public_url: String,
    /// Name of this process, unique among all that run.
    pub instance: String,
}

impl Config {
    /// The configuration in the environment.
    ///
    /// # Errors
    /// The first variable that is missing or does not parse.
    pub fn from_env() -> Result<Self, Error> {
        Self::from_lookup(|name| std::env::var(name).ok())
    }

    /// The configuration that `lookup` knows.
    ///
    /// # Errors
    /// The first variable that is missing or does not parse.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let text = |name: &'static str| {
            lookup(name)
                .filter(|v| !v.is_empty())
                .ok_or_else(|| Error { name, problem: "is not set; set it as template.yaml does".into() })
        };
        let list = |name: &'static str| -> Vec<String> {
            let all = lookup(name).unwrap_or_default();
            all.split(',').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect()
        };
        let mut agents = list("AGENTS");
        let external_agents = list("EXTERNAL_AGENTS");
        if let Some(name) = external_agents.iter().find(|name| agents.contains(name)) {
            let problem = format!(
                "`{name}` is also in AGENTS; keep it in only one of the two: in EXTERNAL_AGENTS if your own program \
                 serves it, else in AGENTS"
            );
            return Err(Error { name: "EXTERNAL_AGENTS", problem });
        }
        agents.extend(external_agents.iter().cloned());
        if let Some(name) = agents.iter().find(|name| !queue::is_pool(name)) {
            let variable = if external_agents.contains(name) { "EXTERNAL_AGENTS" } else { "AGENTS" };
            return Err(Error { name: variable, problem: format!("`{name}` {NO_POOL}") });
        }
        let pools = pools(&lookup("AGENT_POOLS").unwrap_or_default())
            .and_then(|pools| apart(pools, &agents))
            .map_err(|problem| Error { name: "AGENT_POOLS", problem })?;
        let reply_queues = lookup("REPLY_QUEUES")
            .unwrap_or_default()
            .parse()
            .map_err(|problem| Error { name: "REPLY_QUEUES", problem })?;
        Ok(Self {
            orders_table: text("ORDERS_TABLE")?,
            state_table: text("STATE_TABLE")?,
            queue_prefix: text("QUEUE_PREFIX")?,
            event_bus: text("EVENT_BUS")?,
            reply_queues,
            agents,
            external_agents,
            pools,
            priority_classes: flag(&lookup, "PRIORITY_CLASSES", false)?,
            shards: number(&lookup, "SHARDS", 4, 1, 256)?,
            order_buckets: number(&lookup, "ORDER_BUCKETS", 4, 1, 256)?,
            clock_skew: SignedDuration::from_millis(number(&lookup, "CLOCK_SKEW_MS", 1000, 0, 60_000)?),
            retention: SignedDuration::from_hours(24 * number(&lookup, "RETENTION_DAYS", 0, 0, 3650)?),
            cache: number(&lookup, "TASK_CACHE", 1000, 1, 1_000_000)?,
            overload_age: SignedDuration::from_millis(number(&lookup, "OVERLOAD_AGE_MS", 30_000, 0, 3_600_000)?),
            files: files(&lookup)?,
            public_url: public_url(lookup("PUBLIC_URL").unwrap_or_default())?,
            instance: instance(),
        })
    }

    /// URL of the queue with this name.
    #[must_use]
    pub fn queue_url(&self, name: &str) -> String {
        format!("{}{name}", self.queue_prefix)
    }

    /// Name of the stack, with which all queues' names begin.
    #[must_use]
    pub fn stack(&self) -> &str {
        self.queue_prefix.rsplit('/').next().unwrap_or_default().trim_end_matches('-')
    }

    /// The pools of an agent, the most preferred first.
    #[must_use]
    pub fn pools_of<'a>(&'a self, agent: &'a str) -> Vec<&'a str> {
        self.pools.get(agent).map_or_else(|| vec![agent], |pools| pools.iter().map(String::as_str).collect())
    }

    /// Whether an external program serves this pool.
    fn is_external(&self, pool: &str) -> bool {
        self.external_agents.iter().any(|agent| self.pools_of(agent).contains(&pool))
    }

    /// The queues of one pool of an agent, the most urgent first. An external program has a single queue.
    #[must_use]
    pub fn pool_queues(&self, pool: &str) -> Vec<String> {
        let queue = queue::agent(pool);
        let classes = [Priority::High, Priority::Normal, Priority::Low];
        if self.priority_classes && !self.is_external(pool) {
            classes.map(|p| queue::of_class(&queue, p)).to_vec()
        } else {
            vec![queue]
        }
    }

    /// The scheduler's queues of Wakes, the most urgent first.
    #[must_use]
    pub fn scheduler_queues(&self) -> Vec<String> {
        let own = queue::SCHEDULER.to_owned();
        if self.priority_classes { vec![queue::of_class(&own, Priority::High), own] } else { vec![own] }
    }

    /// The queue a request goes to.
    #[must_use]
    pub fn queue_of(&self, request: &Request) -> String {
        let pools = self.pools_of(&request.agent);
        let wanted = request.pool.as_deref().unwrap_or(&request.agent);
        // The pool was removed from the configuration since it was chosen.
        let pool = if pools.contains(&wanted) { wanted } else { pools[0] };
        queue::of_requests(pool, request.priority, self.priority_classes && !self.is_external(pool))
    }

    /// The queue that a Wake goes to. Only urgent Wakes have their own; all others share one.
    #[must_use]
    pub fn queue_of_wake(&self, priority: Priority) -> String {
        queue::of_wakes(priority, self.priority_classes)
    }
}

/// What is wrong with a name that [`queue::is_pool`] refuses.
pub const NO_POOL: &str = "cannot be part of a queue's name; write 1 to 40 lower-case letters, digits and `-`, not ending in -high, -low or -dead";

/// A deployment's additions to workflow files.
fn files(lookup: impl Fn(&str) -> Option<String>) -> Result<Settings, Error> {
    let given = |name: &str| lookup(name).filter(|text| !text.trim().is_empty());
    let config = match given("WORKFLOW_CONFIG") {
        None => BTreeMap::new(),
        Some(text) => serde_json::from_str(&text).map_err(|e| Error {
            name: "WORKFLOW_CONFIG",
            problem: format!("must be a JSON object of workflows and their values, such as {{\"order\": {{\"limit_cents\": 1000}}}}: {e}"),
        })?,
    };
    let hosts = given("HTTP_HOSTS").unwrap_or_default().parse();
    let hosts = hosts.map_err(|problem| Error { name: "HTTP_HOSTS", problem })?;
    Ok(Settings { config, hosts })
}

/// The pools in `agent=pool,pool;agent=pool`.
///
/// # Errors
/// What is wrong with the text, in words.
pub fn pools(text: &str) -> Result<Layout, String> {
    let mut all = Layout::new();
    let mut seen = BTreeSet::new();
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let Some((agent, names)) = part.split_once('=') else {
            return Err(format!("`{part}` names no pools; write agent=pool,pool"));
        };
        let names: Vec<String> = names.split(',').map(|name| name.trim().to_owned()).collect();
        if let Some(name) = names.iter().find(|name| !queue::is_pool(name)) {
            return Err(format!("`{name}` {NO_POOL}"));
        }
        if let Some(name) = names.iter().find(|name| !seen.insert((*name).clone())) {
            return Err(format!("pool `{name}` is named twice; each pool has its own queues"));
        }
        if all.insert(agent.trim().to_owned(), names).is_some() {
            return Err(format!("agent `{}` is named twice", agent.trim()));
        }
    }
    Ok(all)
}

/// The same pools, if each belongs to a known agent and none is named like another agent.
///
/// # Errors
/// The first pool that breaks this rule, in words.
pub fn apart(pools: Layout, agents: &[String]) -> Result<Layout, String> {
    for (agent, names) in &pools {
        if let Some(name) = names.iter().find(|name| *name != agent && agents.contains(name)) {
            return Err(format!("pool `{name}` of `{agent}` has the name of another agent"));
        }
    }
    if let Some(agent) = pools.keys().find(|agent| !agents.is_empty() && !agents.contains(agent)) {
        return Err(format!("there is no agent `{agent}`; the agents are {}", agents.join(", ")));
    }
    Ok(pools)
}

/// Whether variable `name` is `true`, or `default` if it is not set.
fn flag(lookup: impl Fn(&str) -> Option<String>, name: &'static str, default: bool) -> Result<bool, Error> {
    match lookup(name).as_deref().map(str::trim) {
        None => Ok(default),
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(text) => Err(Error { name, problem: format!("`{text}` is neither `true` nor `false`") }),
    }
}

/// The whole number in variable `name`, or `default` if it is not set.
///
/// # Errors
/// Not a whole number from `least` to `most`.
pub fn number<T: FromStr + PartialOrd + std::fmt::Display>(
    lookup: impl Fn(&str) -> Option<String>,
    name: &'static str,
    default: T,
    least: T,
    most: T,
) -> Result<T, Error> {
    let Some(text) = lookup(name) else { return Ok(default) };
    match text.trim().parse::<T>() {
        Ok(number) if number >= least && number <= most => Ok(number),
        Ok(_) | Err(_) => Err(Error {
            name,
            problem: format!("`{text}` is out of range; write a whole number from {least} to {most}"),
        }),
    }
}

/// Where services reach the API. Every address that a step hands out begins with it.
fn public_url(text: String) -> Result<String, Error> {
    let is_url = text.starts_with("https://") || text.starts_with("http://127.0.0.1");
    if text.is_empty() || is_url && text.len() <= MAX_PUBLIC_URL && text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Ok(text.trim_end_matches('/').to_owned());
    }
    let problem = format!(
        "`{text}` is not a URL of at most {MAX_PUBLIC_URL} characters; write for example https://orders.example"
    );
    Err(Error { name: "PUBLIC_URL", problem })
}

/// Longest [`Config::public_url`].
const MAX_PUBLIC_URL: usize = 200;

/// The secret behind one order's tokens: 128 bits of the system's entropy, in hexadecimal digits.
///
/// # Panics
/// If the operating system has none.
#[must_use]
pub fn secret() -> String {
    let bits = || getrandom::u64().expect("the operating system has entropy");
    format!("{:016x}{:016x}", bits(), bits())
}

/// A unique name for this process: 64 bits of the system's entropy. A clock's bits would not do, because two processes
/// with one name take each other's saves for their own.
#[must_use]
pub fn instance() -> String {
    let bits = getrandom::u64().expect("the operating system has entropy");
    format!("{bits:016x}")
}

/// Name of the lease under which jobs are worked on.
pub const JOB_LEASE: &str = "jobs";

/// Name of the lease under which a supervisor leads a group of shards.
#[must_use]
pub fn lease_name(group: u16) -> String {
    format!("supervisor-{group}")
}

/// Names of the queues, after the prefix.
pub use shared::queues as queue;

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(changes: &[(&str, &str)]) -> Result<Config, Error> {
        let base = [("ORDERS_TABLE", "o"), ("STATE_TABLE", "s"), ("QUEUE_PREFIX", "http://q/"), ("EVENT_BUS", "b")];
        let all: Vec<_> = base.iter().chain(changes).copied().collect();
        Config::from_lookup(|name| all.iter().rev().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn a_missing_or_wrong_variable_is_named() {
        assert_eq!(lookup(&[("AGENTS", "a, b,")]).unwrap().agents, ["a", "b"]);
        let wrong = [
            ("STATE_TABLE", ""),
            ("SHARDS", "0"),
            ("SHARDS", "many"),
            ("CLOCK_SKEW_MS", "-1"),
            ("PRIORITY_CLASSES", "yes"),
            ("AGENTS", "a,a-high"),
            ("EXTERNAL_AGENTS", "A"),
            ("REPLY_QUEUES", "a,b"),
            ("AGENT_POOLS", "payment"),
            ("AGENT_POOLS", "payment=payment,"),
            ("AGENT_POOLS", "payment=Payment"),
            ("AGENT_POOLS", "payment=payment,payment-low"),
            ("AGENT_POOLS", "payment=a,a"),
            ("AGENT_POOLS", "payment=a;fraud=a"),
            ("AGENT_POOLS", "payment=a;payment=b"),
        ];
        for (name, value) in wrong {
            let error = lookup(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
        let external = [("AGENTS", "fraud"), ("EXTERNAL_AGENTS", "wrap")];
        let config = lookup(&external).unwrap();
        assert_eq!((config.agents, config.external_agents), (vec!["fraud".into(), "wrap".into()], vec!["wrap".into()]));
        let error = lookup(&[("AGENTS", "a,b"), ("EXTERNAL_AGENTS", "b")]).unwrap_err().to_string();
        assert!(error.starts_with("EXTERNAL_AGENTS: `b`"), "{error}");
        for (pools, words) in [("payment=payment,fraud", "another agent"), ("paymnt=a,b", "no agent `paymnt`")] {
            let error = lookup(&[("AGENTS", "fraud,payment"), ("AGENT_POOLS", pools)]).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    fn request(agent: &str, pool: Option<&str>, priority: Priority) -> Request {
        serde_json::from_value(serde_json::json!({
            "task_id": "t", "step": "s", "agent": agent, "pool": pool, "direction": "do", "attempt": 1,
            "idempotency_key": "t:s:do", "complete_by": "2027-01-15T08:00:00Z", "tenant": "acme", "priority": priority,
            "calls": {"attempts": 1, "base": "PT0.1S", "cap": "PT1S"},
        }))
        .unwrap()
    }

    // J2, J3: the queue of each pool and class; one queue for all classes where they are off.
    #[test]
    fn requests_and_wakes_go_to_the_queue_of_their_pool_and_class() {
        let pools = ("AGENT_POOLS", " payment = payment, payment-b ;fraud=fraud-b");
        let external = ("EXTERNAL_AGENTS", "wrap");
        let on = lookup(&[pools, external, ("AGENTS", "payment,fraud"), ("PRIORITY_CLASSES", "true")]).unwrap();
        let off = lookup(&[pools, ("PRIORITY_CLASSES", "false")]).unwrap();
        let table = [
            ("payment", None, Priority::High, "agent-payment-high", "agent-payment"),
            ("payment", None, Priority::Normal, "agent-payment", "agent-payment"),
            ("payment", Some("payment-b"), Priority::Low, "agent-payment-b-low", "agent-payment-b"),
            ("shipping", None, Priority::Normal, "agent-shipping", "agent-shipping"),
            // Recorded under an older configuration.
            ("payment", Some("payment-c"), Priority::Normal, "agent-payment", "agent-payment"),
            ("fraud", None, Priority::Normal, "agent-fraud-b", "agent-fraud-b"),
        ];
        for (agent, pool, priority, with, without) in table {
            let request = request(agent, pool, priority);
            assert_eq!(on.queue_of(&request), with);
            assert_eq!(off.queue_of(&request), without);
        }
        assert_eq!(on.queue_of(&request("wrap", None, Priority::High)), "agent-wrap");
        assert_eq!(on.pool_queues("wrap"), ["agent-wrap"]);
        assert_eq!(on.pool_queues("payment-b"), ["agent-payment-b-high", "agent-payment-b", "agent-payment-b-low"]);
        assert_eq!(off.pool_queues("payment-b"), ["agent-payment-b"]);
        assert_eq!(on.scheduler_queues(), ["scheduler-high", "scheduler"]);
        assert_eq!(off.scheduler_queues(), ["scheduler"]);
        for (priority, queue) in
            [(Priority::High, "scheduler-high"), (Priority::Normal, "scheduler"), (Priority::Low, "scheduler")]
        {
            assert_eq!(on.queue_of_wake(priority), queue);
            assert_eq!(off.queue_of_wake(priority), "scheduler");
        }
    }

    #[test]
    fn what_workflow_files_are_read_with_is_checked() {
        let config = lookup(&[
            ("WORKFLOW_CONFIG", r#"{"order": {"limit_cents": 5}}"#),
            ("HTTP_HOSTS", "hooks.example, *.shop.example"),
        ]);
        let files = config.unwrap().files;
        assert_eq!(files.config["order"]["limit_cents"], 5);
        assert!(files.hosts.allows("a.shop.example") && !files.hosts.allows("shop.example"));
        assert!(lookup(&[]).unwrap().files.hosts.is_empty());
        for (name, wrong) in [("WORKFLOW_CONFIG", "[1]"), ("WORKFLOW_CONFIG", r#"{"order": 5}"#), ("HTTP_HOSTS", "*")] {
            let error = lookup(&[(name, wrong)]).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{name}: ")), "{error}");
        }
    }
}
