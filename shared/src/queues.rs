//! Names of the queues, without the prefix that a stack or a system adds.

use crate::pools::Layout;
use crate::task::Priority;
use crate::workflow::Workflow;

/// Wakes and cancellations, for the scheduler.
pub const SCHEDULER: &str = "scheduler";
/// Agents' replies, for the scheduler. Their queue is separate so that orders in progress never wait behind new ones,
/// and agents can send nothing but replies.
pub const REPLIES: &str = "replies";
/// Orders submitted by message.
pub const SUBMISSIONS: &str = "submissions";
/// Messages that cannot be handled, with the reason.
pub const SET_ASIDE: &str = "set-aside";

/// Requests for one pool of an agent; `name` is the pool's, which is the agent's if it has only one.
#[must_use]
pub fn agent(name: &str) -> String {
    format!("agent-{name}")
}

/// The queue beside `queue` for this priority. The normal class has no suffix, so systems without classes share it.
#[must_use]
pub fn of_class(queue: &str, priority: Priority) -> String {
    match priority {
        Priority::High => format!("{queue}-high"),
        Priority::Normal => queue.to_owned(),
        Priority::Low => format!("{queue}-low"),
    }
}

/// Whether this may name an agent or a pool. Its queues must not clash with others.
#[must_use]
pub fn is_pool(name: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let taken = ["-high", "-low", "-dead"].iter().any(|end| name.ends_with(end));
    (1..=40).contains(&name.len()) && name.chars().all(good) && !taken
}

/// Notices for one submitter.
#[must_use]
pub fn notices(name: &str) -> String {
    format!("notices-{name}")
}

/// The dead-letter queue of `queue`.
#[must_use]
pub fn dead(queue: &str) -> String {
    format!("{queue}-dead")
}

/// The queue of an order's Wakes: with classes, urgent orders have their own, and all others share one.
#[must_use]
pub fn of_wakes(priority: Priority, classes: bool) -> String {
    if classes && priority == Priority::High { of_class(SCHEDULER, priority) } else { SCHEDULER.to_owned() }
}

/// The queue of requests for one pool of an agent; `classes` says whether each priority has its own.
#[must_use]
pub fn of_requests(pool: &str, priority: Priority, classes: bool) -> String {
    let queue = agent(pool);
    if classes { of_class(&queue, priority) } else { queue }
}

/// The queues that an order of `workflow` passes through. An entry with several names is an agent with several pools;
/// any one will do.
#[must_use]
pub fn passages(workflow: &Workflow, priority: Priority, pools: &Layout, classes: bool) -> Vec<Vec<String>> {
    let of_agent = |agent: &str| match pools.get(agent) {
        Some(names) => names.iter().map(|pool| of_requests(pool, priority, classes)).collect(),
        None => vec![of_requests(agent, priority, classes)],
    };
    let own = [of_wakes(priority, classes), REPLIES.to_owned()].map(|name| vec![name]);
    own.into_iter().chain(workflow.agents().into_iter().map(of_agent)).collect()
}
