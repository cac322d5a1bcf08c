//! Goal: a message that is being handled stays with its pump, however long that takes. Method: a real pump on a real
//! queue, and a virtual clock.

use futures::FutureExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use stepwarden_aws::Clients;
use stepwarden_aws::batch::Response;
use stepwarden_embedded::{Endpoints, Options};
use stepwarden_local::pump::{self, Handler, Source, UnderWay, Work};
use stepwarden_local::queue::Queues;
use stepwarden_local::queue_turns::Gate;
use stepwarden_local::system::VISIBILITY_TIMEOUT_S;
use tokio::sync::watch;

const VISIBLE_AFTER: Duration = Duration::from_secs(VISIBILITY_TIMEOUT_S as u64);

// While one batch is handled, the next one waits at the gate, which has one place.
#[tokio::test(start_paused = true)]
async fn messages_that_are_handled_or_wait_at_the_gate_longer_than_their_visibility_timeout_are_received_once() {
    let endpoints = Endpoints::open(&Options::default()).unwrap();
    let clients = Clients::in_process(endpoints.connector());
    let created = clients.sqs.create_queue().queue_name("slow");
    let timeout = aws_sdk_sqs::types::QueueAttributeName::VisibilityTimeout;
    let created = created.attributes(timeout, VISIBILITY_TIMEOUT_S.to_string()).send().await.unwrap();
    let url = created.queue_url.unwrap();
    let handled = Arc::new(AtomicUsize::new(0));
    let handler: Handler = {
        let handled = Arc::clone(&handled);
        Arc::new(move |event| {
            let handled = Arc::clone(&handled);
            async move {
                handled.fetch_add(event.records.len(), Ordering::Relaxed);
                tokio::time::sleep(VISIBLE_AFTER * 3).await;
                Response::default()
            }
            .boxed()
        })
    };
    let source = Source {
        queue: Queues::new(&clients).at(url.clone()),
        gate: Gate::new(1, 1),
        class: 0,
        work: Work::Begun(UnderWay::default()),
    };
    let (_pause, paused) = watch::channel(false);
    let (stop, stopped) = watch::channel(false);
    let pump = tokio::spawn(pump::run(source, handler, paused, stopped));
    let send = async |body: &str| clients.sqs.send_message().queue_url(&url).message_body(body).send().await.unwrap();
    send("first").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    send("second").await;
    tokio::time::sleep(VISIBLE_AFTER * 5).await;
    assert_eq!(handled.load(Ordering::Relaxed), 2);
    assert_eq!(endpoints.queue_stats()[0].in_flight, 1, "the first is deleted, and the second in work");
    tokio::time::sleep(VISIBLE_AFTER * 2).await;
    assert_eq!(handled.load(Ordering::Relaxed), 2);
    let left = &endpoints.queue_stats()[0];
    assert_eq!((left.visible, left.in_flight), (0, 0));
    stop.send_replace(true);
    pump.await.unwrap();
}
