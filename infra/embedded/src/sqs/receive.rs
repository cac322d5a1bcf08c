//! ReceiveMessage: delivers visible messages, or waits for some.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;
use uuid::Uuid;

use super::backlog::{CUT_SHORT_MAX, Entry, Taken};
use super::error::Error;
use super::message;
use super::queue::Queue;
use super::receipt::Receipt;
use super::wire::{Receive, bounded};
use super::{ACCOUNT, BATCH_MAX, Sqs, VISIBILITY_MAX_S, WAIT_MAX_S, parse};
use crate::answer::Answer;
use crate::store::{Attribute, Lazy, Write};

impl Sqs {
    pub(super) async fn receive(&self, consumer: Option<&str>, body: &[u8]) -> Result<Answer, Error> {
        let request: Receive = parse(body)?;
        let queue = self.queue(&request.queue_url)?;
        let max = request.max_number_of_messages.unwrap_or(1);
        let max = bounded("MaxNumberOfMessages", max, 1, BATCH_MAX as i64)?;
        let wait_s = match request.wait_time_seconds {
            Some(wait_s) => wait_s,
            None => queue.lock().attributes.receive_wait_s,
        };
        let wait_s = bounded("WaitTimeSeconds", wait_s, 0, WAIT_MAX_S)?;
        if let Some(timeout_s) = request.visibility_timeout {
            bounded("VisibilityTimeout", timeout_s, 0, VISIBILITY_MAX_S)?;
        }
        let deadline = Instant::now() + Duration::from_secs(wait_s.unsigned_abs());
        let max = usize::try_from(max).expect("checked to be positive");
        let take = Take { max, timeout_s: request.visibility_timeout, consumer };
        let received = self.wait(&queue, take, deadline).await?;
        if self.clock.now_ms() < self.careful_until_ms && !received.is_empty() {
            let begun = received.iter().map(|entry| (entry.content.row, entry.cut_short + 1)).collect();
            let abandoned = Abandoned { sqs: self, queue: &queue, received: &received };
            // If it cannot be stored, the messages are delivered all the same; the store has logged the reason.
            let _ = self.store.write(Write::Begun(begun), || {}).await;
            std::mem::forget(abandoned);
        }
        let messages = received.iter().map(|entry| Message::new(entry, entry.receipt(self.run, queue.id), &request));
        Ok(Answer::ok(&Messages { messages: messages.collect() }))
    }

    /// Takes messages as soon as there are any, or none at `deadline`.
    ///
    /// Nothing is awaited between taking and returning, so a receiver that stops waiting has not taken anything.
    async fn wait(&self, queue: &Arc<Queue>, take: Take<'_>, deadline: Instant) -> Result<Vec<Entry>, Error> {
        let mut waited = None;
        loop {
            let changed = queue.changed.notified();
            let (taken, next_due_ms) = self.take(queue, take)?;
            if !taken.received.is_empty() {
                return Ok(taken.received);
            }
            let now = Instant::now();
            if now >= deadline {
                // AWS: the limit is an error to a short poll, and silence to a long one.
                let short_poll = waited.is_none();
                return if taken.over_limit && short_poll { Err(Error::over_limit()) } else { Ok(Vec::new()) };
            }
            waited.get_or_insert_with(|| WakesNext(queue));
            let until = match next_due_ms {
                Some(due_ms) => deadline.min(self.clock.instant(due_ms)),
                None => deadline,
            };
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// Takes visible messages. Also returns when more become visible.
    fn take(&self, queue: &Arc<Queue>, take: Take<'_>) -> Result<(Taken, Option<i64>), Error> {
        let now_ms = self.clock.now_ms();
        // Locked until the messages are taken, so that a consumer whose end was seen takes nothing.
        let mut consumers = take.consumer.map(|name| (self.consumers.lock(), name));
        let holder = consumers.as_mut().map(|(consumers, name)| consumers.receives(name, queue)).transpose()?;
        let mut state = queue.lock();
        if state.deleted {
            return Err(Error::no_queue());
        }
        self.advance(queue, &mut state, now_ms);
        // The queue that dead letters go to, unless it is gone: then they are received again.
        let redrive = state.attributes.redrive.as_ref();
        let dead_letters = redrive.and_then(|redrive| Some((redrive.receives_max, self.by_arn(&redrive.target)?)));
        let receives_max = dead_letters.as_ref().map(|(most, _)| *most);
        let timeout_s = take.timeout_s.unwrap_or(state.attributes.visibility_timeout_s);
        let due_before_ms = state.backlog.next_due_ms();
        let taken = state.backlog.take(take.max, now_ms + timeout_s * 1000, now_ms, receives_max, holder);
        let next_due_ms = state.backlog.next_due_ms();
        drop((state, consumers));

        let nearer = next_due_ms.is_some_and(|due| due_before_ms.is_none_or(|before| due < before));
        if nearer {
            queue.changed.notify_one();
        }
        if let Some((_, target)) = dead_letters
            && !taken.dead.is_empty()
        {
            self.bury(queue, &target, taken.dead.clone(), now_ms);
        }
        Ok((taken, next_due_ms))
    }

    /// Moves messages to the dead-letter queue. They keep their id, receive count and age.
    fn bury(&self, from: &Queue, to: &Queue, mut dead: Vec<Entry>, now_ms: i64) {
        for entry in &mut dead {
            if entry.cut_short >= CUT_SHORT_MAX {
                let (id, queue, times) = (entry.content.id, &from.name, entry.cut_short);
                tracing::error!(
                    "message {id} of {queue} was being handled each of the last {times} times that this program was \
                     killed or crashed; it is now a dead letter"
                );
            }
            entry.source.get_or_insert_with(|| Arc::clone(&from.arn));
        }
        self.store.write_later(dead.iter().map(|entry| (entry.content.row, Lazy::Update(entry.standing(to.id)))));
        to.push(dead.into_iter().map(|entry| (entry, now_ms)), now_ms);
    }
}

#[derive(Clone, Copy)]
struct Take<'a> {
    max: usize,
    /// `None`: the queue's visibility timeout.
    timeout_s: Option<i64>,
    /// For which it takes; see `consumers`.
    consumer: Option<&'a str>,
}

/// See `Queue::changed`.
struct WakesNext<'a>(&'a Queue);

impl Drop for WakesNext<'_> {
    fn drop(&mut self) {
        self.0.changed.notify_one();
    }
}

/// Messages that were taken for a caller. Dropped if the caller stops waiting for them: then nobody has them, and they
/// are visible again.
struct Abandoned<'a> {
    sqs: &'a Sqs,
    queue: &'a Queue,
    received: &'a [Entry],
}

impl Drop for Abandoned<'_> {
    fn drop(&mut self) {
        let Self { sqs, queue, received } = self;
        let now_ms = sqs.clock.now_ms();
        // Each becomes the next one, so the last of them goes first.
        for entry in received.iter().rev() {
            let _ = queue.change_visibility(entry.receipt(sqs.run, queue.id), 0, now_ms);
        }
        let rows: Vec<_> = received.iter().map(|entry| entry.content.row).collect();
        sqs.store_standing(queue, &queue.lock(), &rows);
    }
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Messages<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<Message<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Message<'a> {
    message_id: Uuid,
    receipt_handle: String,
    #[serde(rename = "MD5OfBody")]
    body_md5: &'a str,
    body: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, String>,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    attributes_md5: Option<String>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    message_attributes: BTreeMap<&'a String, &'a Attribute>,
}

impl<'a> Message<'a> {
    fn new(entry: &'a Entry, receipt: Receipt, request: &Receive) -> Self {
        let content = &*entry.content;
        let asked = &request.message_attribute_names;
        let chosen = content.attributes.iter().filter(|(name, _)| is_asked(asked, name));
        Self {
            message_id: content.id,
            receipt_handle: receipt.to_string(),
            body_md5: &content.body_md5,
            body: &content.body,
            attributes: system_attributes(entry, request),
            attributes_md5: message::attributes_md5(chosen.clone()),
            message_attributes: chosen.collect(),
        }
    }
}

/// AWS, "MessageAttributeNames": names, `All`, `.*`, or a prefix as in `bar.*`.
fn is_asked(asked: &[String], name: &str) -> bool {
    asked.iter().any(|asked| match asked.strip_suffix(".*") {
        Some(prefix) => name.starts_with(prefix),
        None => asked == name || asked == "All",
    })
}

fn system_attributes(entry: &Entry, request: &Receive) -> BTreeMap<&'static str, String> {
    let asked = || request.attribute_names.iter().chain(&request.message_system_attribute_names);
    let content = &*entry.content;
    let text = |text: &Option<Arc<str>>| text.as_deref().map(str::to_owned);
    let values: [(&str, &dyn Fn() -> Option<String>); 7] = [
        ("ApproximateReceiveCount", &|| Some(entry.receives.to_string())),
        ("SentTimestamp", &|| Some(content.sent_ms.to_string())),
        ("ApproximateFirstReceiveTimestamp", &|| entry.first_received_ms.map(|ms| ms.to_string())),
        ("SenderId", &|| Some(ACCOUNT.into())),
        ("MessageGroupId", &|| text(&content.group)),
        ("AWSTraceHeader", &|| content.trace.clone()),
        ("DeadLetterQueueSourceArn", &|| text(&entry.source)),
    ];
    values
        .into_iter()
        .filter(|(name, _)| asked().any(|asked| asked == name || asked == "All"))
        .filter_map(|(name, value)| value().map(|value| (name, value)))
        .collect()
}
