//! Hides the messages that the program works on, for as long as it lives.
//!
//! A request is received for [`VISIBLE_AFTER`], which is renewed while the program works on it. If the program dies,
//! SQS redelivers the request after that time, not the queue's visibility timeout. A program that is only slow keeps it
//! for as long as its attempt may take. Renewals have a separate thread and client, so that functions that block
//! threads cannot hold them up.

use crate::attempt::Deadline;
use aws_sdk_sqs::Client;
use aws_sdk_sqs::error::DisplayErrorContext;
use aws_sdk_sqs::types::ChangeMessageVisibilityBatchRequestEntry as Entry;
use jiff::Timestamp;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// How long a received request is hidden from others without a renewal.
pub(super) const VISIBLE_AFTER: Duration = Duration::from_secs(30);
/// Interval of renewals, of which two may fail. Shorter work costs no renewal.
const RENEW_EVERY: Duration = Duration::from_secs(9);
/// How often it looks for due renewals.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Most messages of one call; SQS allows no more.
const MOST: usize = 10;

struct Message {
    queue: String,
    receipt: String,
    /// After it nothing begins, so renewals end.
    complete_by: Deadline,
    renewed: Instant,
}

#[derive(Default)]
struct Messages {
    last: u64,
    held: BTreeMap<u64, Message>,
}

/// The messages that a program works on.
#[derive(Clone, Default)]
pub(super) struct Held(Arc<Mutex<Messages>>);

/// Renews a message until it is dropped.
pub(super) struct Holding {
    of: Held,
    number: u64,
}

impl Drop for Holding {
    fn drop(&mut self) {
        self.of.lock().held.remove(&self.number);
    }
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, Messages> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds a message that was just received.
    pub(super) fn hold(&self, queue: String, receipt: String, complete_by: Deadline) -> Holding {
        let mut all = self.lock();
        all.last += 1;
        let number = all.last;
        all.held.insert(number, Message { queue, receipt, complete_by, renewed: Instant::now() });
        Holding { of: self.clone(), number }
    }

    /// Renews on a separate thread, for as long as the process lives.
    pub(super) fn renewed_by(&self, client: impl Future<Output = Client> + Send + 'static) -> std::io::Result<()> {
        let held = self.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let renew = move || runtime.block_on(async { held.renew(client.await).await });
        std::thread::Builder::new().name("renewals".into()).spawn(renew).map(drop)
    }

    /// Renews what is due, for ever.
    async fn renew(self, client: Client) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            for (queue, due) in self.due() {
                for part in due.chunks(MOST) {
                    if let Err(error) = renew(&client, &queue, part).await {
                        tracing::warn!(error, "a request may be delivered again while it is being worked on");
                    }
                }
            }
        }
    }

    /// Number and receipt of the messages to renew now, by queue. Each counts as renewed, so a failure waits for the
    /// next renewal.
    fn due(&self) -> BTreeMap<String, Vec<(u64, String)>> {
        let (now, time) = (Instant::now(), Timestamp::now());
        let mut due: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for (number, message) in &mut self.lock().held {
            if now - message.renewed >= RENEW_EVERY && time < message.complete_by.get() {
                message.renewed = now;
                due.entry(message.queue.clone()).or_default().push((*number, message.receipt.clone()));
            }
        }
        due
    }
}

async fn renew(client: &Client, queue: &str, messages: &[(u64, String)]) -> Result<(), String> {
    let timeout = i32::try_from(VISIBLE_AFTER.as_secs()).unwrap_or(i32::MAX);
    let entry = |(number, receipt): &(u64, String)| {
        Entry::builder().id(number.to_string()).receipt_handle(receipt).visibility_timeout(timeout).build()
    };
    let entries: Result<Vec<_>, _> = messages.iter().map(entry).collect();
    let entries = entries.map_err(|e| e.to_string())?;
    let renewed = client.change_message_visibility_batch().queue_url(queue).set_entries(Some(entries)).send().await;
    let renewed = renewed.map_err(|e| format!("{} renewals failed: {}", messages.len(), DisplayErrorContext(e)))?;
    match renewed.failed() {
        // Answered and deleted in the meantime, or hidden for 12 hours, which is the most that SQS allows.
        [] => Ok(()),
        [first, ..] => Err(format!("{} renewals were refused: {}", renewed.failed().len(), first.code())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_sdk_sqs::config::{BehaviorVersion, Region};
    use jiff::SignedDuration;
    use stepwarden_embedded::{Counts, Endpoints, Options};

    async fn queue() -> (Endpoints, Client, String) {
        let endpoints = Endpoints::open(&Options::default()).unwrap();
        let config = aws_sdk_sqs::Config::builder().behavior_version(BehaviorVersion::latest());
        let config = config.region(Region::new("local")).endpoint_url("http://localhost").allow_no_auth();
        let sqs = Client::from_conf(config.http_client(endpoints.http_client()).build());
        let url = sqs.create_queue().queue_name("requests").send().await.unwrap().queue_url.unwrap();
        (endpoints, sqs, url)
    }

    async fn received(sqs: &Client, url: &str, wait_s: i32) -> Vec<String> {
        let seconds = i32::try_from(VISIBLE_AFTER.as_secs()).unwrap();
        let receive = sqs.receive_message().queue_url(url).max_number_of_messages(10).visibility_timeout(seconds);
        let received = receive.wait_time_seconds(wait_s).send().await.unwrap().messages.unwrap_or_default();
        received.into_iter().map(|message| message.receipt_handle.unwrap()).collect()
    }

    fn renewals(counts: &Counts) -> u64 {
        counts.requests("AmazonSQS.ChangeMessageVisibilityBatch")
    }

    // A slow program keeps its requests; a dead one soon loses them.
    #[tokio::test(start_paused = true)]
    async fn what_is_held_stays_invisible_and_what_is_let_go_is_delivered() {
        let (endpoints, sqs, url) = queue().await;
        for n in 0..12 {
            sqs.send_message().queue_url(&url).message_body(n.to_string()).send().await.unwrap();
        }
        let held = Held::default();
        let end = Deadline::from(Timestamp::now() + SignedDuration::from_hours(1));
        let mut receipts = received(&sqs, &url, 0).await;
        receipts.extend(received(&sqs, &url, 0).await);
        let hold = |receipt: &String| held.hold(url.clone(), receipt.clone(), end.clone());
        let holdings: Vec<_> = receipts.iter().map(hold).collect();
        assert_eq!(holdings.len(), 12);
        let renewing = tokio::spawn(held.clone().renew(sqs.clone()));
        tokio::time::sleep(Duration::from_secs(600)).await;
        assert_eq!(received(&sqs, &url, 0).await, [""; 0], "they are worked on");
        // Twelve messages are two calls, every ten seconds at most.
        let calls = renewals(&endpoints.counts());
        assert!((100..=134).contains(&calls), "{calls}");
        renewing.abort();
        tokio::time::sleep(VISIBLE_AFTER).await;
        assert_eq!(received(&sqs, &url, 0).await.len(), 10, "they were let go");
    }

    // Neither attempts that are over nor short ones are renewed.
    #[tokio::test(start_paused = true)]
    async fn short_work_costs_no_renewal_and_none_outlives_its_attempt() {
        let (endpoints, sqs, url) = queue().await;
        let held = Held::default();
        let past = Deadline::from(Timestamp::now() - SignedDuration::from_secs(1));
        let later = Deadline::from(Timestamp::now() + SignedDuration::from_hours(1));
        let over = held.hold(url.clone(), "1-1-1".into(), past);
        let short = held.hold(url.clone(), "1-2-1".into(), later);
        let renewing = tokio::spawn(held.clone().renew(sqs.clone()));
        tokio::time::sleep(RENEW_EVERY - LOOK_EVERY).await;
        drop(short);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(renewals(&endpoints.counts()), 0);
        renewing.abort();
        drop(over);
        assert!(held.lock().held.is_empty());
    }
}
