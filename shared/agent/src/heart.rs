//! The heartbeats of one attempt.

use crate::AgentError;
use crate::attempt::Deadline;
use crate::message::Heartbeat;
use crate::time::{plus, until};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::Notify;

/// What came back for a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    /// The attempt goes on, until this time if there is no other heartbeat.
    Alive(Timestamp),
    /// It is over.
    Over(String),
    /// There was no answer, so nothing is known.
    Silent(String),
}

type Answering = Pin<Box<dyn Future<Output = Answered> + Send>>;
/// Sends a body to an address.
pub(crate) type Post = Arc<dyn Fn(String, String) -> Answering + Send + Sync>;

/// Keeps an attempt alive. Copies share their state.
#[derive(Clone)]
pub(crate) struct Heart {
    told: Heartbeat,
    deadline: Deadline,
    skew: SignedDuration,
    /// The earliest time of the next heartbeat.
    next: Arc<Mutex<Timestamp>>,
    /// Notified of each answer: the record shows that somebody works on it.
    known: Arc<Notify>,
    post: Post,
}

impl fmt::Debug for Heart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Heart").field("told", &self.told).finish_non_exhaustive()
    }
}

impl Heart {
    pub(crate) fn new(told: Heartbeat, deadline: Deadline, skew: SignedDuration, post: Post) -> Self {
        Self { told, deadline, skew, next: Arc::new(Mutex::new(Timestamp::MIN)), known: Arc::default(), post }
    }

    /// Sends one heartbeat at once.
    pub(crate) async fn now(&self, percent: Option<u8>, note: Option<&str>) -> Answered {
        let every = SignedDuration::from_millis(i64::try_from(self.told.every_ms).unwrap_or(i64::MAX));
        self.wait_for(every / 2);
        let body = json!({ "percent": percent, "note": note.map(short) }).to_string();
        let answered = (self.post)(self.told.url.clone(), body).await;
        match &answered {
            Answered::Alive(complete_by) => {
                self.deadline.set(*complete_by);
                self.known.notify_one();
            }
            // No later result of the function may count.
            Answered::Over(why) => {
                tracing::info!(step = self.told.url.split('/').rev().nth(2), why, "the attempt is over");
                self.deadline.set(Timestamp::MIN);
            }
            Answered::Silent(why) => {
                tracing::warn!(error = why, "a heartbeat was not answered");
                self.wait_for(every / 4);
            }
        }
        answered
    }

    /// Waits for one answered heartbeat per call.
    pub(crate) async fn known(&self) {
        self.known.notified().await;
    }

    /// Reports that the work goes on, unless it just did.
    pub(crate) async fn beat(&self, percent: Option<u8>, note: Option<&str>) -> Result<(), AgentError> {
        let (now, next) = (Timestamp::now(), *self.next.lock().unwrap_or_else(PoisonError::into_inner));
        if now >= next
            && let Answered::Over(why) = self.now(percent, note).await
        {
            return Err(AgentError::Stopped { why });
        }
        match until(Timestamp::now(), self.deadline.get()) > self.skew {
            true => Ok(()),
            false => Err(AgentError::Stopped { why: "no heartbeat was answered in time".into() }),
        }
    }

    fn wait_for(&self, time: SignedDuration) {
        *self.next.lock().unwrap_or_else(PoisonError::into_inner) = plus(Timestamp::now(), time);
    }
}

/// Longest sentence about the progress of a step, in bytes.
const MAX_NOTE: usize = 200;

fn short(note: &str) -> &str {
    &note[..note.floor_char_boundary(MAX_NOTE)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Agent, Call};
    use serde_json::Value;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// The reply of an agent whose step sends a heartbeat every 10 ms until `works` is over, and the number of
    /// heartbeats. The attempt has a second; `answer` answers heartbeats.
    async fn working(works: Duration, answer: fn(u32) -> Answered) -> (Option<Value>, u32) {
        let count = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&count);
        let post: Post = Arc::new(move |_, _| {
            let nth = counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move { answer(nth) })
        });
        let work = move |call: Call<Value>| async move {
            let begin = std::time::Instant::now();
            while begin.elapsed() < works {
                call.progress(50, "half").await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            Ok::<_, AgentError>(())
        };
        let agent = Agent::new("x").step("a", work).skew(SignedDuration::ZERO).posts(post);
        let request = json!({
            "task_id": "ord_1", "step": "a", "agent": "x", "attempt": 1, "direction": "do", "idempotency_key": "k",
            "complete_by": in_time(1), "tenant": "t", "calls": {"attempts": 1, "base": "PT1S", "cap": "PT1S"},
            "heartbeat": {"url": "http://localhost/", "every_ms": 100},
        });
        let reply = agent.answer(&request.to_string(), 1).await.unwrap();
        (reply.map(|reply| serde_json::to_value(reply).unwrap()), count.load(Ordering::Relaxed))
    }

    fn in_time(seconds: i64) -> Timestamp {
        Timestamp::now() + SignedDuration::from_secs(seconds)
    }

    // L6: answered heartbeats let the work go on past the first CompleteBy.
    #[tokio::test]
    async fn the_work_goes_on_as_long_as_heartbeats_are_answered() {
        let (reply, count) = working(Duration::from_millis(1300), |_| Answered::Alive(in_time(60))).await;
        assert_eq!(reply.unwrap()["outcome"], "done");
        assert!((2..60).contains(&count), "at most one in half of the time between two: {count}");
    }

    // L6: a cancelled worker stops, and nothing that it returns counts.
    #[tokio::test]
    async fn the_work_ends_when_a_heartbeat_says_so() {
        let (reply, count) = working(Duration::from_secs(600), |nth| match nth {
            0 => Answered::Alive(in_time(60)),
            _ => Answered::Over("the order is being undone".into()),
        })
        .await;
        assert_eq!((reply, count), (None, 2));
        // After such a first answer nothing begins.
        assert_eq!(working(Duration::from_secs(600), |_| Answered::Over("over".into())).await, (None, 1));
    }

    #[tokio::test]
    async fn without_answers_the_work_ends_at_the_time_that_is_known() {
        let (reply, count) = working(Duration::from_secs(600), |_| Answered::Silent("no connection".into())).await;
        assert!(reply.is_none() && count > 1, "{count}");
    }

    #[test]
    fn a_long_sentence_is_cut_between_characters() {
        assert_eq!(short(&"ä".repeat(150)).len(), 200);
        assert_eq!(short("4 of 10 files"), "4 of 10 files");
    }
}
