//! Goal: one consumer takes the most urgent queue first, and no other queue starves. Method: real pumps on full queues,
//! and a handler that holds its place until every pump has a batch waiting, so that each choice is one among all
//! classes.

use aws_sdk_sqs::types::SendMessageBatchRequestEntry;
use futures::FutureExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use stepwarden_aws::Clients;
use stepwarden_aws::batch::{Response, records};
use stepwarden_embedded::{Endpoints, Options};
use stepwarden_local::pump::{self, Handler, Source, UnderWay, Work};
use stepwarden_local::queue::Queues;
use stepwarden_local::queue_turns::Gate;
use tokio::sync::{Semaphore, watch};

const QUEUES: [&str; 3] = ["x-high", "x", "x-low"];

async fn send(clients: &Clients, url: &str, batches: usize) {
    for _ in 0..batches {
        let entry = |n: usize| {
            SendMessageBatchRequestEntry::builder().id(n.to_string()).message_body("x").build().expect("all is set")
        };
        let send = clients.sqs.send_message_batch().queue_url(url);
        send.set_entries(Some((0..10).map(entry).collect())).send().await.unwrap();
    }
}

async fn until(what: &str, is_true: impl Fn() -> bool) {
    let wait = async {
        while !is_true() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(60), wait).await.is_ok(), "still waiting: {what}");
}

// J2: while all classes wait, three of each five batches are of the most urgent class and one of each other class;
// urgent messages never wait behind a backlog.
#[tokio::test(flavor = "multi_thread")]
async fn one_consumer_takes_the_most_urgent_first_and_starves_nobody() {
    let clients = Clients::embedded(Endpoints::open(&Options::default()).unwrap().http_client());
    let gate = Gate::new(1, QUEUES.len());
    let (release, taken) = (Arc::new(Semaphore::new(0)), Arc::new(Mutex::new(Vec::new())));
    let handler: Handler = {
        let (release, taken) = (Arc::clone(&release), Arc::clone(&taken));
        Arc::new(move |event| {
            let (release, taken) = (Arc::clone(&release), Arc::clone(&taken));
            async move {
                let record = records(event).remove(0);
                assert!(record.waited.is_some(), "agents tell how long it waited");
                taken.lock().unwrap().push(record.queue);
                release.acquire().await.unwrap().forget();
                Response::default()
            }
            .boxed()
        })
    };
    // Through the SDK, as an emulator's queues are; the tests of the whole system use queues of the process.
    let queues = Queues::new(&clients);
    let (_pause, paused) = watch::channel(false);
    let (stop, stopped) = watch::channel(false);
    let mut urls = Vec::new();
    for name in QUEUES {
        let made = clients.sqs.create_queue().queue_name(name).send().await.unwrap();
        urls.push(made.queue_url.unwrap());
    }
    // A backlog of low priority comes first.
    send(&clients, &urls[2], 60).await;
    send(&clients, &urls[1], 60).await;
    let mut pumps = Vec::new();
    for (class, url) in urls.iter().enumerate() {
        let work = Work::Begun(UnderWay::default());
        let source = Source { queue: queues.at(url.clone()), gate: Arc::clone(&gate), class, work };
        pumps.push(tokio::spawn(pump::run(source, Arc::clone(&handler), paused.clone(), stopped.clone())));
    }
    let batches = || taken.lock().unwrap().len();
    until("a batch in hand and one of each class waiting", || batches() == 1 && gate.waiting() == 2).await;
    send(&clients, &urls[0], 60).await;
    for n in 2..=41 {
        until("all classes waiting", || gate.waiting() == 3).await;
        release.add_permits(1);
        until("the next batch", || batches() == n).await;
    }
    let order = taken.lock().unwrap()[1..].to_vec();
    assert_eq!(order[0], "x-high", "it came last, and waits behind nothing but what is in hand");
    let mut counts: BTreeMap<_, usize> = BTreeMap::new();
    for name in &order {
        *counts.entry(name.as_str()).or_default() += 1;
    }
    assert!((23..=25).contains(&counts["x-high"]), "three in five: {counts:?}");
    for class in ["x", "x-low"] {
        assert!((7..=9).contains(&counts[class]), "one in five: {counts:?}");
        let places: Vec<_> = order.iter().enumerate().filter(|(_, name)| *name == class).map(|(n, _)| n).collect();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] <= 6), "never long without one: {places:?}");
    }
    stop.send_replace(true);
    release.add_permits(1000);
    for pump in pumps {
        pump.await.unwrap();
    }
}
