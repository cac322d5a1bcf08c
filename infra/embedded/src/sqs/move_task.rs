//! StartMessageMoveTask: dead letters go back to where they came from, or to another queue.
//!
//! AWS, "Configure a dead-letter queue redrive": a redriven message is a new one, with a new id, a
//! new sending time and a receive count of 0.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::backlog::Entry;
use super::error::Error;
use super::message::Content;
use super::queue::Queue;
use super::{Sqs, parse};
use crate::answer::Answer;
use crate::store::{Lazy, NewMessage, Write};

/// Messages moved at a time when no rate is asked for.
const CHUNK: usize = 100;

/// AWS: the largest MaxNumberOfMessagesPerSecond.
const RATE_MAX: i64 = 500;

/// AWS, "ListMessageMoveTasks": why a task failed whose target is gone.
const NO_TARGET: &str = "AWS.SimpleQueueService.NonExistentQueue";

/// Finished tasks that are remembered.
const TASKS_KEPT: usize = 100;

pub(crate) struct MoveTask {
    handle: String,
    source: Arc<Queue>,
    /// `None`: where each message came from.
    destination: Option<Arc<Queue>>,
    rate: Option<i64>,
    to_move: usize,
    started_ms: i64,
    moved: AtomicUsize,
    cancelled: AtomicBool,
    status: Mutex<Status>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Status {
    Running,
    Completed,
    Cancelled,
    Failed(&'static str),
}

impl Status {
    fn name(self) -> &'static str {
        match self {
            Self::Running => "RUNNING",
            Self::Completed => "COMPLETED",
            Self::Cancelled => "CANCELLED",
            Self::Failed(_) => "FAILED",
        }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Start {
    #[serde(default)]
    source_arn: String,
    destination_arn: Option<String>,
    max_number_of_messages_per_second: Option<i64>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ListTasks {
    #[serde(default)]
    source_arn: String,
    max_results: Option<usize>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Cancel {
    #[serde(default)]
    task_handle: String,
}

impl Sqs {
    pub(super) fn start_move_task(self: &Arc<Self>, body: &[u8]) -> Result<Answer, Error> {
        let request: Start = parse(body)?;
        let no_queue = || Error::no_resource("The resource that you specified does not exist.");
        let source = self.by_arn(&request.source_arn).ok_or_else(no_queue)?;
        if !self.all().iter().any(|queue| self.sends_dead_letters(queue, &source)) {
            return Err(Error::parameter("SourceArn", "Source queue must be configured as a Dead Letter Queue."));
        }
        let destination = match &request.destination_arn {
            Some(arn) => Some(self.by_arn(arn).ok_or_else(no_queue)?),
            None => None,
        };
        let rate = request.max_number_of_messages_per_second;
        if let Some(rate) = rate {
            super::wire::bounded("MaxNumberOfMessagesPerSecond", rate, 1, RATE_MAX)?;
        }
        let to_move = {
            let mut state = source.lock();
            self.advance(&source, &mut state, self.clock.now_ms());
            state.backlog.sizes().visible
        };
        let task = Arc::new(MoveTask {
            handle: Uuid::new_v4().to_string(),
            to_move,
            source,
            destination,
            rate,
            started_ms: self.clock.now_ms(),
            moved: AtomicUsize::new(0),
            cancelled: AtomicBool::new(false),
            status: Mutex::new(Status::Running),
        });
        {
            let mut tasks = self.move_tasks.lock().unwrap_or_else(PoisonError::into_inner);
            if tasks.iter().any(|other| other.is_running_on(&task.source)) {
                return Err(Error::unsupported(
                    "There is already a task running. Only one active task is allowed for a \
                     source queue arn at a given time.",
                ));
            }
            if tasks.len() >= TASKS_KEPT {
                tasks.retain(|task| task.status() == Status::Running);
            }
            tasks.push(Arc::clone(&task));
        }
        tokio::spawn(Arc::clone(self).run_move_task(Arc::clone(&task)));
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Started<'a> {
            task_handle: &'a str,
        }
        Ok(Answer::ok(&Started { task_handle: &task.handle }))
    }

    pub(super) fn cancel_move_task(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: Cancel = parse(body)?;
        let tasks = self.move_tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let running = |task: &&Arc<MoveTask>| task.handle == request.task_handle && task.status() == Status::Running;
        let Some(task) = tasks.iter().find(running) else {
            return Err(Error::no_resource("No task with that handle is running."));
        };
        task.cancelled.store(true, Ordering::Relaxed);
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Cancelled {
            approximate_number_of_messages_moved: usize,
        }
        let moved = task.moved.load(Ordering::Relaxed);
        Ok(Answer::ok(&Cancelled { approximate_number_of_messages_moved: moved }))
    }

    pub(super) fn list_move_tasks(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: ListTasks = parse(body)?;
        let source = self
            .by_arn(&request.source_arn)
            .ok_or_else(|| Error::no_resource("The resource that you specified does not exist."))?;
        let max = request.max_results.unwrap_or(1).clamp(1, super::BATCH_MAX);
        let tasks = self.move_tasks.lock().unwrap_or_else(PoisonError::into_inner);
        let of_source = tasks.iter().rev().filter(|task| Arc::ptr_eq(&task.source, &source));
        #[derive(Serialize)]
        #[serde(rename_all = "PascalCase")]
        struct Results {
            results: Vec<TaskView>,
        }
        Ok(Answer::ok(&Results { results: of_source.take(max).map(|t| t.view()).collect() }))
    }

    async fn run_move_task(self: Arc<Self>, task: Arc<MoveTask>) {
        let status = self.move_all(&task).await;
        *task.status.lock().unwrap_or_else(PoisonError::into_inner) = status;
    }

    /// Looks at each message that was there at the start once.
    async fn move_all(&self, task: &MoveTask) -> Status {
        let (mut seen, mut without_source) = (0, false);
        while seen < task.to_move {
            if task.cancelled.load(Ordering::Relaxed) {
                return Status::Cancelled;
            }
            let chunk = if task.rate.is_some() { 1 } else { CHUNK.min(task.to_move - seen) };
            let has_place = |entry: &Entry| task.destination.is_some() || entry.source.is_some();
            let (entries, kept) = {
                let mut state = task.source.lock();
                self.advance(&task.source, &mut state, self.clock.now_ms());
                state.backlog.take_out(chunk, has_place)
            };
            without_source |= kept > 0;
            if entries.is_empty() && kept == 0 {
                break;
            }
            seen += entries.len() + kept;
            let mut failure = None;
            for entry in entries {
                failure = self.move_one(task, entry).await.err().or(failure);
            }
            if let Some(reason) = failure {
                return Status::Failed(reason);
            }
            match task.rate {
                Some(rate) => {
                    let pause = Duration::from_secs_f64(1.0 / rate as f64);
                    tokio::time::sleep(pause).await;
                }
                None => tokio::task::yield_now().await,
            }
        }
        if without_source { Status::Failed("CouldNotDetermineMessageSource") } else { Status::Completed }
    }

    /// A message that cannot be moved is back in the dead-letter queue afterwards.
    async fn move_one(&self, task: &MoveTask, entry: Entry) -> Result<(), &'static str> {
        let back = entry.source.as_deref().and_then(|arn| self.by_arn(arn));
        let to = task.destination.clone().or(back);
        let now_ms = self.clock.now_ms();
        // A task holds its target, which may have been deleted since.
        let Some(to) = to.filter(|to| !to.lock().deleted) else {
            task.source.push([(entry, now_ms)], now_ms);
            return Err(NO_TARGET);
        };
        let old = &entry.content;
        let content = Arc::new(Content::stored(
            self.new_row(),
            Uuid::new_v4(),
            old.body.clone(),
            old.attributes.clone(),
            old.group.clone(),
            old.trace.clone(),
            now_ms,
        ));
        let (row, new) = (content.row, NewMessage { content: Arc::clone(&content), visible_ms: now_ms });
        let (target, arrived) = (Arc::clone(&to), Arc::new(AtomicBool::new(false)));
        let is_there = Arc::clone(&arrived);
        let stored = self
            .store
            .write(Write::Messages { queue: to.id, messages: vec![new] }, move || {
                let has_arrived = target.push_unless_deleted(Entry::new(content), now_ms);
                is_there.store(has_arrived, Ordering::Release);
            })
            .await;
        match stored {
            // Deleted while the message was on its way: nobody would find it there.
            Ok(()) if !arrived.load(Ordering::Acquire) => {
                self.store.write_later([(row, Lazy::Delete)]);
                task.source.push([(entry, now_ms)], now_ms);
                Err(NO_TARGET)
            }
            Ok(()) => {
                self.store.write_later([(entry.content.row, Lazy::Delete)]);
                task.moved.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => {
                task.source.push([(entry, now_ms)], now_ms);
                Err("InternalError")
            }
        }
    }
}

impl MoveTask {
    fn status(&self) -> Status {
        *self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_running_on(&self, source: &Arc<Queue>) -> bool {
        self.status() == Status::Running && Arc::ptr_eq(&self.source, source)
    }

    fn view(&self) -> TaskView {
        let status = self.status();
        TaskView {
            task_handle: (status == Status::Running).then(|| self.handle.clone()),
            status: status.name(),
            source_arn: self.source.arn.to_string(),
            destination_arn: self.destination.as_ref().map(|queue| queue.arn.to_string()),
            max_number_of_messages_per_second: self.rate,
            approximate_number_of_messages_moved: self.moved.load(Ordering::Relaxed),
            approximate_number_of_messages_to_move: self.to_move,
            failure_reason: match status {
                Status::Failed(reason) => Some(reason),
                Status::Running | Status::Completed | Status::Cancelled => None,
            },
            started_timestamp: self.started_ms,
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct TaskView {
    /// Of a running task only, as in AWS.
    #[serde(skip_serializing_if = "Option::is_none")]
    task_handle: Option<String>,
    status: &'static str,
    source_arn: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_number_of_messages_per_second: Option<i64>,
    approximate_number_of_messages_moved: usize,
    approximate_number_of_messages_to_move: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    failure_reason: Option<&'static str>,
    /// UTC, milliseconds.
    started_timestamp: i64,
}
