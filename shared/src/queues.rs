//! Names of the queues, after the prefix that a stack or a system gives them.

use crate::pools::Layout;
use crate::task::Priority;
use crate::workflow::Workflow;

/// Wakes and cancellations, for the scheduler.
pub const SCHEDULER: &str = "scheduler";
/// Agents' replies, for the scheduler: a queue of their own, so that orders under way never wait behind new ones, and
/// because all that an agent may send is a reply.
pub const REPLIES: &str = "replies";
/// Orders submitted by message.
pub const SUBMISSIONS: &str = "submissions";
/// Messages that cannot be handled, with the reason.
pub const SET_ASIDE: &str = "set-aside";

/// Requests for one pool of an agent; `name` is the pool's, which is the agent's where it has only one.
#[must_use]
pub fn agent(name: &str) -> String {
    format!("agent-{name}")
}

/// What has this priority, of what goes to `queue`. The ordinary class has no name of its own, so that a system without
/// classes uses the same queue.
#[must_use]
pub fn of_class(queue: &str, priority: Priority) -> String {
    match priority {
        Priority::High => format!("{queue}-high"),
        Priority::Normal => queue.to_owned(),
        Priority::Low => format!("{queue}-low"),
    }
}

/// Whether an agent or a pool may be called so: its queues must not be taken for those of another one.
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

/// Where the platform puts messages of `queue` that were received too often.
#[must_use]
pub fn dead(queue: &str) -> String {
    format!("{queue}-dead")
}

/// The class that an order has of its own in the scheduler's queue: only urgent Wakes have one, the rest waits its turn.
#[must_use]
pub fn of_wakes(priority: Priority, classes: bool) -> String {
    if classes && priority == Priority::High { of_class(SCHEDULER, priority) } else { SCHEDULER.to_owned() }
}

/// The queue of requests for one pool of an agent; `classes` says whether each priority has one of its own.
#[must_use]
pub fn of_requests(pool: &str, priority: Priority, classes: bool) -> String {
    let queue = agent(pool);
    if classes { of_class(&queue, priority) } else { queue }
}

/// The queues an order of `workflow` passes through; where one has several names, any of them will do: those are the pools
/// of an agent.
#[must_use]
pub fn passages(workflow: &Workflow, priority: Priority, pools: &Layout, classes: bool) -> Vec<Vec<String>> {
    let of_agent = |agent: &str| match pools.get(agent) {
        Some(names) => names.iter().map(|pool| of_requests(pool, priority, classes)).collect(),
        None => vec![of_requests(agent, priority, classes)],
    };
    let own = [of_wakes(priority, classes), REPLIES.to_owned()].map(|name| vec![name]);
    own.into_iter().chain(workflow.agents().into_iter().map(of_agent)).collect()
}
