//! Moves messages back to the queues they came from: messages set aside, and dead letters.
//!
//! A message is sent to its queue before it is deleted here, so it is never lost. At worst it exists twice, and
//! receivers ignore the duplicate.

use crate::clients::Clients;
use crate::config::{Config, queue};
use crate::schema::consumed;
use crate::sdk_error::unavailable;
use crate::sent::Caller;
use aws_sdk_sqs::types::{Message, MessageSystemAttributeName, QueueAttributeName};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use shared::message::SetAside;
use shared::ports::Error;

/// Maximum number of messages that one call moves by hand.
pub const MAX_MOVED: usize = 1000;
/// Maximum number of messages per second of a move task: AWS's limit.
pub const MAX_RATE: i32 = 500;
/// How long a message is invisible while it is moved.
const OUT_OF_SIGHT_S: i32 = 60;
/// Maximum number of messages in one receive of SQS.
const BATCH: i32 = 10;

/// What to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// At most this many, read one by one. `None` moves all dead letters by a move task, which outlasts the call.
    pub limit: Option<usize>,
    /// Messages per second of a move task.
    pub rate_per_s: i32,
    /// Move nothing; show the first messages.
    pub dry_run: bool,
}

/// Messages in a queue, about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Counts {
    /// Messages that can be received.
    pub waiting: u64,
    /// Messages that were received and are neither deleted nor visible again.
    pub in_flight: u64,
    /// Messages whose delay has not passed.
    pub delayed: u64,
}

/// What was moved.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// Messages that were waiting before the call.
    pub waiting: u64,
    /// Messages moved by this call.
    pub moved: usize,
    /// An SQS move task was started, which moves all of them.
    pub task_started: bool,
    /// Messages that were not moved, and why; in a dry run the first few messages and why they were set aside.
    pub left: Vec<Left>,
}

/// A message that was not moved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    /// Its id.
    pub message_id: String,
    /// Why.
    pub why: String,
}

/// Moves messages between the queues that a configuration names.
#[derive(Clone, Debug)]
pub struct Redriver {
    sqs: Caller<aws_sdk_sqs::Client>,
    config: Config,
}

impl Redriver {
    /// A redriver for the queues that `config` names.
    #[must_use]
    pub fn new(clients: &Clients, config: &Config) -> Self {
        Self { sqs: clients.sqs.clone(), config: config.clone() }
    }

    /// The queues whose messages can be moved back: the queue of messages set aside, and those with dead letters.
    #[must_use]
    pub fn queues(&self) -> Vec<String> {
        // The classes of a queue share its dead letters.
        let consumed = consumed(&self.config).into_iter().filter(|queue| queue.name == queue.of);
        std::iter::once(queue::SET_ASIDE.to_owned()).chain(consumed.map(|queue| queue.name)).collect()
    }

    /// Messages in the queue called `name`, about.
    ///
    /// # Errors
    /// SQS failed.
    pub async fn waiting(&self, name: &str) -> Result<u64, Error> {
        Ok(self.counts(name).await?.waiting)
    }

    /// The approximate message counts of the queue called `name`.
    ///
    /// # Errors
    /// SQS failed.
    pub async fn counts(&self, name: &str) -> Result<Counts, Error> {
        let wanted = [
            QueueAttributeName::ApproximateNumberOfMessages,
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible,
            QueueAttributeName::ApproximateNumberOfMessagesDelayed,
        ];
        let number = |text: String| text.parse().unwrap_or_default();
        let [waiting, in_flight, delayed] = self.attributes(name, wanted).await?.map(number);
        Ok(Counts { waiting, in_flight, delayed })
    }

    /// These attributes of a queue; zero for a missing one.
    async fn attributes<const N: usize>(
        &self,
        name: &str,
        wanted: [QueueAttributeName; N],
    ) -> Result<[String; N], Error> {
        let url = self.config.queue_url(name);
        let request = self.sqs.get_queue_attributes().queue_url(&url).set_attribute_names(Some(wanted.to_vec()));
        let mut all = request.send().await.map_err(|e| unavailable(&url, e))?.attributes.unwrap_or_default();
        Ok(wanted.map(|name| all.remove(&name).unwrap_or_default()))
    }

    /// Moves dead letters of the queue called `name` back to it, or messages set aside back to theirs. `name` must be
    /// one of [`Redriver::queues`].
    ///
    /// # Errors
    /// SQS failed; some messages may have been moved.
    pub async fn redrive(&self, name: &str, wish: Wish) -> Result<Moved, Error> {
        let source = if name == queue::SET_ASIDE { name.to_owned() } else { queue::dead(name) };
        let mut moved = Moved { waiting: self.waiting(&source).await?, ..Moved::default() };
        if wish.dry_run {
            let peek = |m: &Message| Left { message_id: id_of(m), why: reason_of(m) };
            moved.left = self.receive(&source, 0, BATCH).await?.iter().map(peek).collect();
            return Ok(moved);
        }
        let limit = match wish.limit {
            None if name != queue::SET_ASIDE => {
                self.start_move_task(&source, name, wish.rate_per_s).await?;
                moved.task_started = true;
                return Ok(moved);
            }
            limit => limit.unwrap_or(MAX_MOVED).min(MAX_MOVED),
        };
        let mut looked_at = 0;
        while looked_at < limit {
            let wanted = i32::try_from(limit - looked_at).unwrap_or(BATCH).min(BATCH);
            let messages = self.receive(&source, OUT_OF_SIGHT_S, wanted).await?;
            if messages.is_empty() {
                break;
            }
            looked_at += messages.len();
            for message in messages {
                let target = if name == queue::SET_ASIDE {
                    self.unpack(&message)
                } else {
                    Ok((name.to_owned(), message.body().unwrap_or_default().to_owned()))
                };
                match target {
                    Ok((target, body)) => {
                        self.move_one(&source, &target, body, &message).await?;
                        moved.moved += 1;
                    }
                    Err(why) => moved.left.push(Left { message_id: id_of(&message), why }),
                }
            }
        }
        Ok(moved)
    }

    /// Where a message set aside came from, and its original body.
    fn unpack(&self, message: &Message) -> Result<(String, String), String> {
        let aside: SetAside = serde_json::from_str(message.body().unwrap_or_default())
            .map_err(|e| format!("it is not a message that was set aside: {e}"))?;
        if aside.is_cut {
            return Err("its body was cut when it was set aside".into());
        }
        let prefix = self.config.queue_prefix.rsplit('/').next().unwrap_or_default();
        let name = aside.queue.strip_prefix(prefix).unwrap_or(&aside.queue);
        if consumed(&self.config).iter().any(|known| known.name == name) {
            return Ok((name.to_owned(), aside.body));
        }
        Err(format!("queue `{}` no longer exists", aside.queue))
    }

    async fn receive(&self, name: &str, out_of_sight_s: i32, most: i32) -> Result<Vec<Message>, Error> {
        let url = self.config.queue_url(name);
        let answer = self
            .sqs
            .receive_message()
            .queue_url(&url)
            .max_number_of_messages(most)
            .visibility_timeout(out_of_sight_s)
            .wait_time_seconds(0)
            .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
            .send()
            .await
            .map_err(|e| unavailable(&url, e))?;
        Ok(answer.messages.unwrap_or_default())
    }

    async fn move_one(&self, source: &str, target: &str, body: String, message: &Message) -> Result<(), Error> {
        let (from, to) = (self.config.queue_url(source), self.config.queue_url(target));
        let group = message.attributes().and_then(|all| all.get(&MessageSystemAttributeName::MessageGroupId));
        let send = self.sqs.send_message().queue_url(&to).message_body(body).set_message_group_id(group.cloned());
        send.send().await.map_err(|e| unavailable(&to, e))?;
        let delete = self.sqs.delete_message().queue_url(&from).set_receipt_handle(message.receipt_handle.clone());
        delete.send().await.map(drop).map_err(|e| unavailable(&from, e))
    }

    async fn start_move_task(&self, source: &str, target: &str, rate_per_s: i32) -> Result<(), Error> {
        let [arn] = self.attributes(source, [QueueAttributeName::QueueArn]).await?;
        // Explicit, because a dead letter that somebody sent by hand has no source.
        let [target] = self.attributes(target, [QueueAttributeName::QueueArn]).await?;
        let task = self.sqs.start_message_move_task().source_arn(&arn).destination_arn(target);
        let task = task.max_number_of_messages_per_second(rate_per_s.clamp(1, MAX_RATE));
        task.send().await.map(drop).map_err(|e| unavailable(&arn, e))
    }
}

fn id_of(message: &Message) -> String {
    message.message_id().unwrap_or_default().to_owned()
}

fn reason_of(message: &Message) -> String {
    let aside: Result<SetAside, _> = serde_json::from_str(message.body().unwrap_or_default());
    aside.map_or_else(|_| "received too often".into(), |aside| format!("{}: {}", aside.queue, aside.reason))
}
