//! What a process is told at its start, read once and checked. The names of the variables match template.yaml.

use shared::time::SignedDuration;
use std::str::FromStr;

/// Why the configuration was refused: the variable and what to set it to.
#[derive(Debug, thiserror::Error)]
#[error("{name}: {problem}")]
pub struct Error {
    name: &'static str,
    problem: String,
}

/// Where everything is and how this process reckons.
#[derive(Clone, Debug)]
pub struct Config {
    /// `ORDERS_TABLE`: what was submitted.
    pub orders_table: String,
    /// `STATE_TABLE`: tasks, workflows, leases.
    pub state_table: String,
    /// `QUEUE_PREFIX`: URL of every queue up to its own name, for instance `https://sqs.eu-west-1.amazonaws.com/1234/shop-`.
    pub queue_prefix: String,
    /// `EVENT_BUS`: name of the bus alerts go to.
    pub event_bus: String,
    /// `REPLY_QUEUES`: registered names that a submission may ask notices to be sent to, separated by commas.
    pub reply_queues: Vec<String>,
    /// `AGENTS`: names of all agents, separated by commas.
    pub agents: Vec<String>,
    /// `SHARDS`: parts of the due index, 1 to 256. It may rise, and never falls while orders are open.
    pub shards: u16,
    /// `ORDER_BUCKETS`: partitions per month of the order table, 1 to 256. It may rise and never falls.
    pub order_buckets: u16,
    /// `CLOCK_SKEW_MS`: how far apart two clocks may be.
    pub clock_skew: SignedDuration,
    /// `RETENTION_DAYS`: how long a task is kept after its end.
    pub retention: SignedDuration,
    /// `TASK_CACHE`: most tasks and most inputs kept in memory between messages.
    pub cache: usize,
    /// `OVERLOAD_AGE_MS`: no order is taken while messages it would wait behind are older than this, or than half of its
    /// workflow's shortest timeout. Zero takes every order.
    pub overload_age: SignedDuration,
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
                .ok_or_else(|| Error { name, problem: "is not set; template.yaml sets it, so set it likewise".into() })
        };
        let list = |name: &'static str| -> Vec<String> {
            let all = lookup(name).unwrap_or_default();
            all.split(',').map(str::trim).filter(|v| !v.is_empty()).map(str::to_owned).collect()
        };
        Ok(Self {
            orders_table: text("ORDERS_TABLE")?,
            state_table: text("STATE_TABLE")?,
            queue_prefix: text("QUEUE_PREFIX")?,
            event_bus: text("EVENT_BUS")?,
            reply_queues: list("REPLY_QUEUES"),
            agents: list("AGENTS"),
            shards: number(&lookup, "SHARDS", 4, 1, 256)?,
            order_buckets: number(&lookup, "ORDER_BUCKETS", 4, 1, 256)?,
            clock_skew: SignedDuration::from_millis(number(&lookup, "CLOCK_SKEW_MS", 1000, 0, 60_000)?),
            retention: SignedDuration::from_hours(24 * number(&lookup, "RETENTION_DAYS", 90, 1, 3650)?),
            cache: number(&lookup, "TASK_CACHE", 1000, 1, 1_000_000)?,
            overload_age: SignedDuration::from_millis(number(&lookup, "OVERLOAD_AGE_MS", 30_000, 0, 3_600_000)?),
            instance: instance(),
        })
    }

    /// URL of the queue with this name.
    #[must_use]
    pub fn queue_url(&self, name: &str) -> String {
        format!("{}{name}", self.queue_prefix)
    }
}

/// The whole number in variable `name`, or `default` if it is not set.
///
/// # Errors
/// It is no whole number from `least` to `most`.
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
            problem: format!("`{text}` is out of bounds; write a whole number from {least} to {most}"),
        }),
    }
}

/// A name for this process that no other one has: 40 random bits.
#[must_use]
pub fn instance() -> String {
    format!("{:010x}", fastrand::u64(..) >> 24)
}

/// Name of the lease under which a supervisor leads a group of shards.
#[must_use]
pub fn lease_name(group: u16) -> String {
    format!("supervisor-{group}")
}

/// Names of the queues, after the prefix.
pub mod queue {
    /// Wakes and cancellations, for the scheduler.
    pub const SCHEDULER: &str = "scheduler";
    /// Agents' replies, for the scheduler: a queue of their own, so that orders under way never wait behind new ones, and
    /// because all that an agent may send is a reply.
    pub const REPLIES: &str = "replies";
    /// Orders submitted by message.
    pub const SUBMISSIONS: &str = "submissions";
    /// Messages that cannot be handled, with the reason.
    pub const SET_ASIDE: &str = "set-aside";

    /// Requests for one agent.
    #[must_use]
    pub fn agent(name: &str) -> String {
        format!("agent-{name}")
    }

    /// Notices for one submitter.
    #[must_use]
    pub fn notices(name: &str) -> String {
        format!("notices-{name}")
    }

    /// Where the platform puts messages of `queue` that were received too often.
    #[must_use]
    pub fn dead(queue: &str) -> String {
        format!("{queue}-dead")
    }
}

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
        for (name, value) in [("STATE_TABLE", ""), ("SHARDS", "0"), ("SHARDS", "many"), ("CLOCK_SKEW_MS", "-1")] {
            let error = lookup(&[(name, value)]).unwrap_err().to_string();
            assert!(error.starts_with(name), "{error}");
        }
    }
}
