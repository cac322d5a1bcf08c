//! Reports dead letters and messages set aside: a log line per queue with some, which the alarm counts.

use futures::future::join_all;
use shared::queues;
use stepwarden_aws::redrive::Redriver;
use stepwarden_aws::telemetry::Chain;

/// The queues of unhandled messages: those set aside, and the dead letters of the system and of every agent.
#[must_use]
pub fn queues(redriver: &Redriver) -> Vec<String> {
    let of = |name: String| if name == queues::SET_ASIDE { name } else { queues::dead(&name) };
    redriver.queues().into_iter().map(of).collect()
}

/// Counts the messages of each queue, and reports those that are not empty. An unreadable queue, for example of an
/// agent without a stack, hides no other.
pub async fn tell(redriver: &Redriver) -> Vec<(String, u64)> {
    let look = |queue: String| async move {
        match redriver.waiting(&queue).await {
            Ok(0) => None,
            Ok(waiting) => {
                tracing::error!(
                    queue,
                    waiting,
                    alarm = "dead_letters",
                    "messages were received five times without being handled, or were set aside"
                );
                Some((queue, waiting))
            }
            Err(error) => {
                tracing::info!(queue, error = %Chain(&error), "a queue of dead letters could not be read");
                None
            }
        }
    };
    join_all(queues(redriver).into_iter().map(look)).await.into_iter().flatten().collect()
}
