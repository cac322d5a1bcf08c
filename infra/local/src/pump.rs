//! A pump: what an SQS event source mapping is to Lambda. It receives batches, passes them to a handler as `SqsEvent`s,
//! and deletes all messages except those that the handler names as failed; these are redelivered after their visibility
//! timeout. Lambda ends a function before that time; nothing ends a handler here, so a pump renews what it still has.

use crate::queue::{BATCH, Kept, Queue};
use crate::queue_turns::Gate;
use aws_lambda_events::event::sqs::{SqsEvent, SqsMessage};
use futures::future::BoxFuture;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stepwarden_aws::batch::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// A function that takes a batch.
pub type Handler = Arc<dyn Fn(SqsEvent) -> BoxFuture<'static, Response> + Send + Sync>;

/// Wait after a batch that was not full while more than [`FEW`] are in progress, so that the next one is fuller: calls cost
/// time, not messages. A message that comes alone finds the pump waiting for it.
const LINGER: Duration = Duration::from_millis(3);
/// A batch is in progress until what it sent is stored; by then the messages that came of it are here. So an order that is
/// alone has up to this many batches of a queue in progress.
const FEW: usize = 4;
/// Wait after a receive that failed. It is short, because messages of a restarted system lose time meanwhile: with a
/// second here, an expired step ran again only 1.4 s after the restart.
const RECOVERY: Duration = Duration::from_millis(200);
/// Interval of renewals of the messages in progress, of which four may fail. Shorter work costs no renewal.
const RENEW_EVERY: Duration = Duration::from_secs(30);
/// How long batches in progress may still take when the pump is told to stop.
const LAST_BATCHES: Duration = Duration::from_secs(5);

/// A receive that takes longer than this found an empty queue.
const SOON: Duration = Duration::from_millis(20);
/// A queue is behind if a receive returns a full batch that has waited for so long. At a high rate many batches are full.
const BEHIND: Duration = Duration::from_millis(25);
/// Longest wait of new work for work in progress, per batch: new work is slowed down, never starved.
const YIELD: Duration = Duration::from_millis(50);

/// How many pumps are behind with work in progress. New orders wait for these pumps: an order that
/// has begun has deadlines, and one that has not begun has none. On AWS the concurrency of each event source does this.
#[derive(Clone)]
pub struct UnderWay(Arc<watch::Sender<usize>>);

impl Default for UnderWay {
    fn default() -> Self {
        Self(Arc::new(watch::channel(0).0))
    }
}

impl UnderWay {
    fn set(&self, was_behind: &mut bool, is_behind: bool) {
        if *was_behind != is_behind {
            self.0.send_modify(|behind| if is_behind { *behind += 1 } else { *behind -= 1 });
            *was_behind = is_behind;
        }
    }

    /// Waits for a receive, and notes whether the queue is behind. A receive that is not answered soon found nothing.
    async fn watch(
        &self,
        was_behind: &mut bool,
        receive: impl Future<Output = anyhow::Result<Vec<SqsMessage>>>,
    ) -> anyhow::Result<Vec<SqsMessage>> {
        tokio::pin!(receive);
        let soon = tokio::time::timeout(SOON, &mut receive).await;
        let received = match soon {
            Ok(received) => received,
            Err(_) => {
                self.set(was_behind, false);
                receive.await
            }
        };
        self.set(was_behind, received.as_ref().is_ok_and(|messages| are_behind(messages)));
        received
    }

    async fn wait(&self) {
        let mut behind = self.0.subscribe();
        let _ = tokio::time::timeout(YIELD, behind.wait_for(|behind| *behind == 0)).await;
    }
}

fn are_behind(messages: &[SqsMessage]) -> bool {
    let sent_at = |message: &SqsMessage| {
        let sent = message.attributes.get("SentTimestamp")?;
        Some(UNIX_EPOCH + Duration::from_millis(sent.parse().ok()?))
    };
    let oldest = messages.iter().filter_map(sent_at).min();
    let waited = oldest.and_then(|sent| SystemTime::now().duration_since(sent).ok());
    messages.len() == BATCH && waited.is_some_and(|waited| waited >= BEHIND)
}

/// What a queue's messages mean for their orders.
#[derive(Clone)]
pub enum Work {
    /// They advance orders that have begun.
    Begun(UnderWay),
    /// They begin orders, so they give way.
    New(UnderWay),
}

/// Where a pump takes its messages from, and where they wait for their turn.
#[derive(Clone)]
pub struct Source {
    /// The queue.
    pub queue: Queue,
    /// Where its batches wait for their turn. Its number of places is what MaximumConcurrency is on Lambda.
    pub gate: Arc<Gate>,
    /// The class of these batches at the gate; 0 is the most urgent one.
    pub class: usize,
    /// Whether these messages give way to others.
    pub work: Work,
}

/// Pumps until `stop` becomes true. While `pause` is true nothing is received: the consumer is down.
pub async fn run(source: Source, handler: Handler, mut pause: watch::Receiver<bool>, mut stop: watch::Receiver<bool>) {
    // At most one batch is received ahead of its turn: more would only age here instead of in the queue.
    let ahead = Arc::new(Semaphore::new(1));
    let mut batches = JoinSet::new();
    let mut was_behind = false;
    loop {
        let mut paused = pause.clone();
        let ready = async {
            loop {
                // A paused queue is not behind: new orders do not give way to it.
                if *pause.borrow()
                    && let Work::Begun(under_way) = &source.work
                {
                    under_way.set(&mut was_behind, false);
                }
                // A pause whose switch is gone can never end, and never begins.
                if pause.wait_for(|paused| !paused).await.is_err() {
                    std::future::pending::<()>().await;
                }
                if let Work::New(under_way) = &source.work {
                    under_way.wait().await;
                }
                let turn = Arc::clone(&ahead).acquire_owned().await.expect("nobody closes it");
                let receive = async {
                    match &source.work {
                        Work::Begun(under_way) => under_way.watch(&mut was_behind, source.queue.receive()).await,
                        Work::New(_) => source.queue.receive().await,
                    }
                };
                tokio::select! {
                    biased;
                    // A long poll in progress ends with its consumer.
                    Ok(_) = paused.wait_for(|paused| *paused) => {}
                    received = receive => return (turn, received),
                }
            }
        };
        let (turn, received) = tokio::select! {
            biased;
            _ = stop.wait_for(|stop| *stop) => break,
            ready = ready => ready,
        };
        match received {
            Ok(messages) if messages.is_empty() => {}
            Ok(messages) => {
                let is_full = messages.len() == BATCH;
                let (source, handler) = (source.clone(), Arc::clone(&handler));
                batches.spawn(async move { one_batch(&source, &handler, messages, turn).await });
                while batches.try_join_next().is_some() {}
                if !is_full && batches.len() > FEW {
                    tokio::time::sleep(LINGER).await;
                }
            }
            Err(error) => {
                tracing::warn!(queue = source.queue.name(), "receiving failed, retrying: {error:#}");
                tokio::time::sleep(RECOVERY).await;
            }
        }
    }
    let ended = async { while batches.join_next().await.is_some() {} };
    if tokio::time::timeout(LAST_BATCHES, ended).await.is_err() {
        tracing::warn!(
            queue = source.queue.name(),
            "stopped with batches in progress; their messages will be redelivered"
        );
    }
}

async fn one_batch(source: &Source, handler: &Handler, messages: Vec<SqsMessage>, turn: OwnedSemaphorePermit) {
    let queue = &source.queue;
    let handles: Vec<_> =
        messages.iter().map(|message| (message.message_id.clone(), message.receipt_handle.clone())).collect();
    let mut event = SqsEvent::default();
    event.records = messages;
    let handled = async {
        let place = source.gate.enter(source.class).await;
        drop(turn);
        (handler(event).await, place)
    };
    let held: Vec<String> = handles.iter().filter_map(|(_, handle)| handle.clone()).collect();
    let (response, _place) = tokio::select! {
        biased;
        handled = handled => handled,
        never = renew(queue, &held) => match never {},
    };
    let failed = |id: &str| response.batch_item_failures.iter().any(|f| f.item_identifier == id);
    let done: Vec<String> = handles
        .into_iter()
        .filter(|(id, _)| !id.as_deref().is_some_and(failed))
        .filter_map(|(_, handle)| handle)
        .collect();
    if done.is_empty() {
        return;
    }
    match queue.delete(&done).await {
        Ok(None) => {}
        Ok(Some(Kept { count, code })) => tracing::warn!(
            queue = queue.name(),
            "{count} handled messages could not be deleted and will be redelivered: {code}"
        ),
        Err(error) => {
            tracing::warn!(queue = queue.name(), "deleting failed, so handled messages will be redelivered: {error:#}");
        }
    }
}

/// Renews messages until they are handled. Otherwise one whose handling, or whose wait at the gate, takes longer than
/// its visibility timeout would be handled a second time meanwhile, and in the end become a dead letter.
async fn renew(queue: &Queue, handles: &[String]) -> Infallible {
    loop {
        tokio::time::sleep(RENEW_EVERY).await;
        let why = match queue.renew(handles).await {
            Ok(None) => continue,
            Ok(Some(Kept { count, code })) => format!("{count} renewals were refused: {code}"),
            Err(error) => format!("{error:#}"),
        };
        tracing::warn!(queue = queue.name(), "messages may be delivered again while they are being handled: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sent: &str) -> SqsMessage {
        let mut message = SqsMessage::default();
        message.attributes.insert("SentTimestamp".into(), sent.into());
        message
    }

    #[test]
    fn a_queue_is_behind_if_a_full_batch_has_waited() {
        let batch = |count: usize, waited: Duration| -> Vec<SqsMessage> {
            let sent = (SystemTime::now() - waited).duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
            vec![message(&sent); count]
        };
        let long = BEHIND * 40;
        assert!(are_behind(&batch(10, long)));
        assert!(!are_behind(&batch(9, long)), "that is all there is");
        assert!(!are_behind(&vec![SqsMessage::default(); 10]), "without a time of sending, its age is unknown");
        // The clock may go back.
        let ahead = SystemTime::now() + Duration::from_secs(9);
        let sent = ahead.duration_since(UNIX_EPOCH).unwrap().as_millis().to_string();
        assert!(!are_behind(&vec![message(&sent); 10]));
        let mut mixed = vec![batch(1, Duration::ZERO).remove(0); 9];
        mixed.extend(batch(1, long));
        assert!(are_behind(&mixed), "the oldest counts");
    }
}
