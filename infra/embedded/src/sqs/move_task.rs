//! StartMessageMoveTask: dead letters go to a queue that the request names.
//!
//! AWS, "Configure a dead-letter queue redrive": a redriven message is a new one, with a new id, a
//! new sending time and a receive count of 0. A message that cannot be moved stays, and ends the task.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde::Deserialize;
use serde_json::json;
use uuid::Uuid;

use super::backlog::Entry;
use super::error::Error;
use super::queue::Queue;
use super::{Sqs, parse};
use crate::answer::Answer;
use crate::store::{Content, Lazy, NewMessage, Write};

/// Number of messages that are moved at a time if the request names no rate.
const CHUNK: usize = 100;

/// AWS: the largest MaxNumberOfMessagesPerSecond.
const RATE_MAX: i64 = 500;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Start {
    #[serde(default)]
    source_arn: String,
    destination_arn: Option<String>,
    max_number_of_messages_per_second: Option<i64>,
}

struct MoveTask {
    source: Arc<Queue>,
    destination: Arc<Queue>,
    rate: Option<i64>,
    to_move: usize,
}

impl Sqs {
    pub(super) fn start_move_task(self: &Arc<Self>, body: &[u8]) -> Result<Answer, Error> {
        let request: Start = parse(body)?;
        let no_queue = || Error::no_resource("The resource that you specified does not exist.");
        let source = self.by_arn(&request.source_arn).ok_or_else(no_queue)?;
        if !self.all().iter().any(|queue| self.sends_dead_letters(queue, &source)) {
            return Err(Error::parameter("SourceArn", "Source queue must be configured as a Dead Letter Queue."));
        }
        let Some(destination) = &request.destination_arn else {
            return Err(Error::unsupported("This endpoint only moves messages to a queue named in DestinationArn."));
        };
        let destination = self.by_arn(destination).ok_or_else(no_queue)?;
        let rate = request.max_number_of_messages_per_second;
        if let Some(rate) = rate {
            super::wire::bounded("MaxNumberOfMessagesPerSecond", rate, 1, RATE_MAX)?;
        }
        if !self.moving().insert(source.id) {
            return Err(Error::unsupported(
                "There is already a task running. Only one active task is allowed for a source queue arn at a given time.",
            ));
        }
        let to_move = {
            let mut state = source.lock();
            self.advance(&source, &mut state, self.clock.now_ms());
            state.backlog.sizes().visible
        };
        let (this, task) = (Arc::clone(self), MoveTask { source, destination, rate, to_move });
        tokio::spawn(async move {
            this.move_all(&task).await;
            this.moving().remove(&task.source.id);
        });
        Ok(Answer::ok(&json!({"TaskHandle": Uuid::new_v4()})))
    }

    fn moving(&self) -> std::sync::MutexGuard<'_, std::collections::BTreeSet<i64>> {
        self.move_tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tries once to move each message that was there at the start.
    async fn move_all(&self, task: &MoveTask) {
        let mut seen = 0;
        while seen < task.to_move {
            let chunk = if task.rate.is_some() { 1 } else { CHUNK.min(task.to_move - seen) };
            let entries = {
                let mut state = task.source.lock();
                self.advance(&task.source, &mut state, self.clock.now_ms());
                state.backlog.take_out(chunk)
            };
            if entries.is_empty() {
                return;
            }
            seen += entries.len();
            let mut is_moving = true;
            for entry in entries {
                is_moving &= self.move_one(task, entry).await;
            }
            if !is_moving {
                return;
            }
            match task.rate {
                Some(rate) => tokio::time::sleep(Duration::from_secs_f64(1.0 / rate as f64)).await,
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// False if the message could not be moved; it is then back in the dead-letter queue.
    async fn move_one(&self, task: &MoveTask, entry: Entry) -> bool {
        let now_ms = self.clock.now_ms();
        let (row, id) = (self.new_row(), Uuid::new_v4());
        let content = Arc::new(Content { row, id, sent_ms: now_ms, ..Content::clone(&entry.content) });
        let new = NewMessage { content: Arc::clone(&content), visible_ms: now_ms };
        let (target, arrived) = (Arc::clone(&task.destination), Arc::new(AtomicBool::new(false)));
        let is_there = Arc::clone(&arrived);
        // A task holds its target, which may have been deleted since.
        let is_deleted = task.destination.lock().deleted;
        let is_stored = !is_deleted
            && self
                .store
                .write(Write::Messages { queue: task.destination.id, messages: vec![new] }, move || {
                    let has_arrived = target.push([(Entry::new(content), now_ms)], now_ms);
                    is_there.store(has_arrived, Ordering::Release);
                })
                .await
                .is_ok();
        let has_arrived = arrived.load(Ordering::Acquire);
        if has_arrived {
            self.store.write_later([(entry.content.row, Lazy::Delete)]);
        } else {
            // The queue was deleted while the message was being moved, so the message would be lost there.
            if is_stored {
                self.store.write_later([(row, Lazy::Delete)]);
            }
            task.source.push([(entry, now_ms)], now_ms);
        }
        has_arrived
    }
}
