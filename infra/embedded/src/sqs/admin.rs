//! Creating, describing, changing and deleting queues.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use serde::Deserialize;
use serde_json::json;
use tokio::sync::OwnedMutexGuard;

use super::attributes::QueueAttributes;
use super::backlog::Backlog;
use super::error::Error;
use super::queue::Queue;
use super::wire::OfQueue;
use super::{ACCOUNT, Sqs, parse};
use crate::answer::Answer;
use crate::store::Write;

/// AWS, "ListQueues": the default and the largest size of a page.
const PAGE_MAX: usize = 1000;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct List {
    #[serde(default)]
    queue_name_prefix: String,
    next_token: Option<String>,
    max_results: Option<usize>,
}

impl Sqs {
    pub(super) async fn create_queue(&self, at: &str, body: &[u8]) -> Result<Answer, Error> {
        let OfQueue { queue_name: name, attributes, .. } = parse(body)?;
        check_name(&name)?;
        let attributes = QueueAttributes::parse(attributes)?;
        let change = Arc::clone(&self.changes).lock_owned().await;
        self.check_dead_letters(&attributes, &name)?;
        if let Some(queue) = self.named(&name) {
            if queue.lock().attributes_lost {
                self.set_attributes(change, queue, attributes).await?;
            } else if let Some(attribute) = queue.lock().attributes.first_difference(&attributes) {
                return Err(Error::queue_exists(&attribute));
            }
            return Ok(url_answer(at, &name));
        }
        let id = self.next_queue.fetch_add(1, Ordering::Relaxed);
        let created_ms = self.clock.now_ms();
        let json = attributes.to_json();
        let queue = Arc::new(Queue::new(id, name.clone(), attributes, created_ms));
        let write = Write::Queue { id, name: name.clone(), attributes: json, created_ms };
        let queues = Arc::clone(&self.queues);
        self.store
            .write(write, move || {
                let mut queues = queues.write().unwrap_or_else(PoisonError::into_inner);
                queues.insert(queue.name.clone(), queue);
                drop(change);
            })
            .await?;
        Ok(url_answer(at, &name))
    }

    /// Dead letters need a queue that exists and is not the same queue.
    fn check_dead_letters(&self, attributes: &QueueAttributes, name: &str) -> Result<(), Error> {
        let Some(redrive) = &attributes.redrive else {
            return Ok(());
        };
        match self.by_arn(&redrive.target) {
            Some(target) if target.name != name => Ok(()),
            _ => Err(Error::attribute_value(
                "RedrivePolicy",
                &format!("the dead-letter queue {} does not exist.", redrive.target),
            )),
        }
    }

    pub(super) async fn delete_queue(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: OfQueue = parse(body)?;
        let change = Arc::clone(&self.changes).lock_owned().await;
        let queue = self.queue(&request.queue_url)?;
        let queues = Arc::clone(&self.queues);
        let gone = Arc::clone(&queue);
        self.store
            .write(Write::DeleteQueue { id: queue.id }, move || {
                queues.write().unwrap_or_else(PoisonError::into_inner).remove(&gone.name);
                let mut state = gone.lock();
                state.deleted = true;
                state.backlog = Backlog::default();
                drop(state);
                drop(change);
                gone.changed.notify_waiters();
            })
            .await?;
        Ok(Answer::empty())
    }

    pub(super) async fn purge_queue(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: OfQueue = parse(body)?;
        let queue = self.queue(&request.queue_url)?;
        let purged = Arc::clone(&queue);
        let rows: Arc<[i64]> = queue.lock().backlog.rows().into();
        self.store
            .write(Write::Purge { queue: queue.id, rows: Arc::clone(&rows) }, move || {
                purged.lock().backlog.forget(&rows);
            })
            .await?;
        Ok(Answer::empty())
    }

    pub(super) fn queue_url(&self, at: &str, body: &[u8]) -> Result<Answer, Error> {
        let request: OfQueue = parse(body)?;
        let queue = self.named(&request.queue_name).ok_or_else(Error::no_queue)?;
        Ok(url_answer(at, &queue.name))
    }

    /// One page of URLs, and the token of the next: the last name of this one.
    pub(super) fn list_queues(&self, at: &str, body: &[u8]) -> Result<Answer, Error> {
        let List { queue_name_prefix: prefix, next_token, max_results } = parse(body)?;
        let max = max_results.unwrap_or(PAGE_MAX);
        if !(1..=PAGE_MAX).contains(&max) {
            return Err(Error::parameter("MaxResults", format!("{max} is not within 1 and {PAGE_MAX}")));
        }
        let is_wanted =
            |name: &String| name.starts_with(&prefix) && next_token.as_ref().is_none_or(|after| name > after);
        let all = self.all().into_iter().map(|queue| queue.name.clone());
        let mut names: Vec<String> = all.filter(is_wanted).take(max + 1).collect();
        let more = names.len() > max;
        names.truncate(max);
        let urls: Vec<_> = names.iter().map(|name| url(at, name)).collect();
        let mut answer = json!({ "QueueUrls": urls });
        if more {
            answer["NextToken"] = names.pop().into();
        }
        Ok(Answer::ok(&answer))
    }

    pub(super) fn sends_dead_letters(&self, from: &Queue, to: &Arc<Queue>) -> bool {
        let target = from.lock().attributes.redrive.as_ref().map(|redrive| redrive.target.clone());
        target.and_then(|arn| self.by_arn(&arn)).is_some_and(|queue| Arc::ptr_eq(&queue, to))
    }

    pub(super) fn queue_attributes(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: OfQueue = parse(body)?;
        let queue = self.queue(&request.queue_url)?;
        let values = {
            let mut state = queue.lock();
            self.advance(&queue, &mut state, self.clock.now_ms());
            let sizes = state.backlog.sizes();
            let mut values = state.attributes.in_effect();
            let mut more = |name: &str, value: String| values.insert(name.into(), value);
            more("QueueArn", queue.arn.to_string());
            more("CreatedTimestamp", (queue.created_ms / 1000).to_string());
            more("LastModifiedTimestamp", (state.modified_ms / 1000).to_string());
            more("ApproximateNumberOfMessages", sizes.visible.to_string());
            more("ApproximateNumberOfMessagesNotVisible", sizes.in_flight.to_string());
            more("ApproximateNumberOfMessagesDelayed", sizes.delayed.to_string());
            values
        };
        let names = &request.attribute_names;
        let all = names.iter().any(|name| name == "All");
        // AWS accepts more names than any queue has values for.
        let is_one = |name: &str| name == "All" || values.contains_key(name) || super::attributes::is_known(name);
        if let Some(name) = names.iter().find(|name| !is_one(name)) {
            return Err(Error::attribute_name(name));
        }
        let asked = |name: &String| all || names.contains(name);
        let attributes: BTreeMap<_, _> = values.into_iter().filter(|(name, _)| asked(name)).collect();
        let is_any = !attributes.is_empty();
        Ok(if is_any { Answer::ok(&json!({ "Attributes": attributes })) } else { Answer::empty() })
    }

    pub(super) async fn set_queue_attributes(&self, body: &[u8]) -> Result<Answer, Error> {
        let request: OfQueue = parse(body)?;
        let change = Arc::clone(&self.changes).lock_owned().await;
        let queue = self.queue(&request.queue_url)?;
        let attributes = queue.lock().attributes.changed(request.attributes)?;
        self.check_dead_letters(&attributes, &queue.name)?;
        self.set_attributes(change, queue, attributes).await?;
        Ok(Answer::empty())
    }

    async fn set_attributes(
        &self,
        change: OwnedMutexGuard<()>,
        queue: Arc<Queue>,
        attributes: QueueAttributes,
    ) -> Result<(), Error> {
        let modified_ms = self.clock.now_ms();
        let json = attributes.to_json();
        let write = Write::QueueAttributes { id: queue.id, attributes: json, modified_ms };
        self.store
            .write(write, move || {
                let mut state = queue.lock();
                state.attributes = attributes;
                state.attributes_lost = false;
                state.modified_ms = modified_ms;
                drop(change);
            })
            .await?;
        Ok(())
    }
}

/// Up to 80 letters, digits, hyphens and underscores.
fn check_name(name: &str) -> Result<(), Error> {
    if name.ends_with(".fifo") {
        return Err(Error::unsupported("FIFO queues are not offered by this endpoint."));
    }
    let allowed = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if (1..=80).contains(&name.len()) && name.bytes().all(allowed) {
        return Ok(());
    }
    Err(Error::parameter(
        "QueueName",
        "can only include alphanumeric characters, hyphens, or underscores, 1 to 80 in length",
    ))
}

fn url_answer(at: &str, name: &str) -> Answer {
    Answer::ok(&json!({"QueueUrl": url(at, name)}))
}

fn url(at: &str, name: &str) -> String {
    format!("{at}/{ACCOUNT}/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqs::backlog::Entry;
    use crate::store::{Content, NewMessage};
    use crate::{Endpoints, Options};

    // It takes its place in the order of writes before it is in the queue, so a purge that does not know it may follow.
    #[tokio::test]
    async fn a_message_that_is_just_being_sent_during_a_purge_stays_in_file_and_queue() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Endpoints::open(&Options { data_dir: Some(dir.path().into()), ..Options::default() }).unwrap();
        {
            let endpoints = open();
            let sqs = &endpoints.0.sqs;
            sqs.create_queue("", br#"{"QueueName":"work"}"#).await.unwrap();
            let queue = sqs.named("work").unwrap();
            let now_ms = sqs.clock.now_ms();
            let (row, id) = (sqs.new_row(), uuid::Uuid::new_v4());
            let content = Content::stored(row, id, "x".into(), BTreeMap::new(), None, None, now_ms);
            let (content, visible_ms) = (Arc::new(content), now_ms);
            let messages = vec![NewMessage { content: Arc::clone(&content), visible_ms }];
            let stored = sqs.store.write(Write::Messages { queue: queue.id, messages }, || {});
            sqs.purge_queue(br#"{"QueueUrl":"work"}"#).await.unwrap();
            queue.push([(Entry::new(content), visible_ms)], now_ms);
            stored.await.unwrap();
            assert_eq!(endpoints.queue_stats()[0].visible, 1);
        }
        assert_eq!(open().queue_stats()[0].visible, 1);
    }
}
