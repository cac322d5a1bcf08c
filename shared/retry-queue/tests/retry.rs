//! Goal: work stored with one call is run by exactly one worker at a time, retried by its ladder, and ends done or in
//! history. Method: real workers over a store in memory in virtual time; the same over DynamoDB at the embedded endpoints.

use contract::memory::{Behind, Between};
use jiff::{SignedDuration, Timestamp};
use retry_queue::{
    Answer, CancellationToken, Enqueued, Entry, Error, Handlers, Id, Policy, RetryQueue, RetryWorker, Settings, Shards,
    Strategies, Thrown, ThrownThen, When,
};
use serde_json::{Value, json};
use shared::engine::Clock;
use shared::step::State;
use shared::task::{ProcessState, Task};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// A network between the queue and its store: others get their turn. And how much was asked of the due index at once.
#[derive(Default)]
struct Network(Mutex<Vec<u32>>);

impl Between for Network {
    fn page(&self, limit: u32) {
        self.0.lock().unwrap().push(limit);
    }

    async fn call(&self, _: &'static str, _: &[&Id]) -> Result<(), Error> {
        tokio::task::yield_now().await;
        Ok(())
    }
}

type Memory = Arc<Behind<Network>>;

fn tasks(store: &Memory) -> Vec<Task> {
    store.tables().tasks.values().cloned().collect()
}

fn live(store: &Memory) -> usize {
    tasks(store).iter().filter(|t| t.due.is_some()).count()
}

#[tokio::test]
async fn the_store_of_these_tests_keeps_the_contract() {
    contract::store::suite(&*Memory::default()).await;
    contract::store::attention(&*Memory::default()).await;
}

fn virtual_clock() -> Clock {
    let start = Instant::now();
    Arc::new(move || {
        let ms = i64::try_from(start.elapsed().as_millis()).unwrap();
        Timestamp::from_second(1_800_000_000).unwrap() + SignedDuration::from_millis(ms)
    })
}

fn world() -> (Memory, RetryQueue) {
    let store = Memory::default();
    let queue = RetryQueue::new(store.clone(), Settings { clock: virtual_clock(), ..Settings::default() });
    (store, queue)
}

/// Runs `worker` for `time`.
async fn run_for(worker: &RetryWorker, time: Duration) {
    let cancel = CancellationToken::new();
    let stop = cancel.clone();
    tokio::join!(worker.run(&cancel), async move {
        sleep(time).await;
        stop.cancel();
    });
}

const DAY: Duration = Duration::from_secs(24 * 3600);
const MINUTE: u64 = 60;

// H2, H4: a day of the ladder: after 1, 5, 10, 30, 60 minutes, then to history; waits beyond SQS's 15 minutes work.
#[tokio::test(start_paused = true)]
async fn a_day_of_the_ladder_ends_in_history_and_again_starts_it_anew() {
    let (store, queue) = world();
    let begun = Instant::now();
    let id = queue.enqueue("mail", json!({ "to": "ann" })).await.unwrap();
    let (runs, told) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
    let (kept, heard) = (Arc::clone(&runs), Arc::clone(&told));
    let worker = RetryWorker::new(&queue, Strategies::default())
        .on("mail", move |job| {
            assert_eq!(job.params, json!({ "to": "ann" }));
            kept.lock().unwrap().push((begun.elapsed().as_secs(), job.attempt, job.idempotency_key));
            async { Ok(Answer::Failure("busy".into())) }
        })
        .on_history(move |alert| heard.lock().unwrap().push(alert.order_id.clone()));
    run_for(&worker, DAY).await;
    let runs_of_a_day: Vec<_> = runs.lock().unwrap().drain(..).collect();
    let mut at = 0;
    for ((second, attempt, key), wait) in runs_of_a_day.iter().zip([0, 1, 5, 10, 30, 60]) {
        at += wait * MINUTE;
        assert!((at..=at + 7).contains(second), "attempt {attempt} at {second} s instead of {at} s");
        assert_eq!(*key, runs_of_a_day[0].2, "all attempts carry one key");
    }
    assert_eq!(runs_of_a_day.len(), 6);
    assert_eq!(live(&store), 0, "it has left the live set");
    assert_eq!(*told.lock().unwrap(), std::slice::from_ref(&id));

    let (history, _) = queue.history(10, None).await.unwrap();
    let [given_up] = &history[..] else { panic!("{history:?}") };
    assert_eq!((&given_up.id, given_up.failure_count()), (&id, 6));
    assert!(given_up.reason.as_ref().unwrap().contains("busy"));

    assert!(queue.resubmit(given_up, "ann", "the server is back").await.unwrap());
    assert!(!queue.resubmit(given_up, "bob", "me too").await.unwrap(), "once only");
    assert!(queue.history(10, None).await.unwrap().0.is_empty());
    run_for(&worker, DAY).await;
    assert_eq!(runs.lock().unwrap().len(), 6, "all its retries are ahead of it again");
    assert_eq!(runs.lock().unwrap()[0].1, 7, "attempts go on, so that an old answer never counts");
}

// What goes to history while a worker stops is reported too: its handler ends after the worker was told to stop.
#[tokio::test(start_paused = true)]
async fn an_entry_that_goes_to_history_while_the_worker_stops_is_reported() {
    let (store, queue) = world();
    let id = queue.enqueue("mail", json!(1)).await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let worker = RetryWorker::new(&queue, Strategies::default())
        .on("mail", |_| async {
            sleep(Duration::from_secs(4)).await;
            Err("boom".into())
        })
        .on_history(move |alert| heard.lock().unwrap().push(alert.order_id.clone()));
    run_for(&worker, Duration::from_secs(2)).await;
    let task = tasks(&store).remove(0);
    assert_eq!((task.process_state(), task.alert), (ProcessState::Error, None));
    assert_eq!(*told.lock().unwrap(), [id]);
}

// It is acknowledged only after the callback has returned: until then another worker would tell it again.
#[tokio::test(start_paused = true)]
async fn what_goes_to_history_stays_owed_until_the_callback_has_returned() {
    let (store, queue) = world();
    queue.enqueue("mail", json!(1)).await.unwrap();
    let owed = Arc::new(Mutex::new(Vec::new()));
    let (seen, inner) = (Arc::clone(&owed), store.clone());
    let worker = RetryWorker::new(&queue, Strategies::default())
        .on("mail", |_| async { Err("boom".into()) })
        .on_history(move |_| {
            let mut owed = seen.lock().unwrap();
            owed.push(tasks(&inner)[0].alert.is_some());
            let times = owed.len();
            drop(owed);
            assert!(times > 2, "the pager is away");
        });
    run_for(&worker, Duration::from_secs(10 * MINUTE)).await;
    assert_eq!(*owed.lock().unwrap(), [true, true, true], "told until it was heard, owed each time, and not once more");
    assert_eq!((tasks(&store)[0].alert.clone(), live(&store)), (None, 0));
}

// With two workers on one queue the one that stops takes nothing away from the other.
#[tokio::test(start_paused = true)]
async fn a_worker_that_stops_leaves_the_other_its_work() {
    let (store, queue) = world();
    let one = RetryWorker::new(&queue, Strategies::default()).on("mail", |_| async { Ok(Answer::Success) });
    let other = RetryWorker::new(&queue, Strategies::default()).on("mail", |_| async { Ok(Answer::Success) });
    let later = async {
        sleep(Duration::from_secs(10)).await;
        queue.enqueue("mail", json!(1)).await.unwrap();
    };
    let minute = Duration::from_secs(MINUTE);
    tokio::join!(run_for(&one, minute), run_for(&other, Duration::from_secs(5)), later);
    let task = tasks(&store).remove(0);
    assert_eq!((task.process_state(), task.steps[0].attempt, task.failure_count()), (ProcessState::Processed, 1, 0));
}

// H2, H5: success leaves the live set and is in no history.
#[tokio::test(start_paused = true)]
async fn success_leaves_the_live_set() {
    let (store, queue) = world();
    queue.enqueue("mail", json!(1)).await.unwrap();
    let worker = RetryWorker::new(&queue, Strategies::default()).on("mail", |job| async move {
        Ok(if job.attempt < 3 { Answer::Failure("busy".into()) } else { Answer::Success })
    });
    run_for(&worker, Duration::from_secs(10 * MINUTE)).await;
    let task = tasks(&store).remove(0);
    assert_eq!((task.process_state(), task.due, task.steps[0].attempt), (ProcessState::Processed, None, 3));
    assert!(queue.history(10, None).await.unwrap().0.is_empty());
}

// H4, H5: an error, a panic and silence are exceptions: straight to history, no retry; or as the strategy says.
#[tokio::test(start_paused = true)]
async fn an_exception_goes_straight_to_history_unless_the_strategy_says_otherwise() {
    for (then, attempts, state) in
        [(ThrownThen::History, 1, ProcessState::Error), (ThrownThen::Retry, 2, ProcessState::Processed)]
    {
        let (store, queue) = world();
        for name in ["err", "panic", "silent"] {
            queue.enqueue(name, Value::Null).await.unwrap();
        }
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        let thrown = move |thrown: &Thrown| {
            kept.lock().unwrap().push(thrown.clone());
            then
        };
        let worker = RetryWorker::new(&queue, Strategies { thrown: Arc::new(thrown), ..Strategies::default() })
            .on("err", |job| async move { if job.attempt == 1 { Err("boom".into()) } else { Ok(Answer::Success) } })
            .on("panic", |job| async move {
                assert!(job.attempt > 1, "first");
                Ok(Answer::Success)
            })
            .on("silent", |job| async move {
                if job.attempt == 1 {
                    std::future::pending::<()>().await;
                }
                Ok(Answer::Success)
            });
        run_for(&worker, DAY).await;
        for task in tasks(&store) {
            assert_eq!((task.steps[0].attempt, task.process_state()), (attempts, state), "{}", task.workflow);
            assert_eq!(task.due, None);
        }
        let mut seen = seen.lock().unwrap().clone();
        seen.sort_by_key(|t| format!("{t:?}"));
        assert_eq!(seen, [Thrown::Error("boom".into()), Thrown::Nothing, Thrown::Panic("first".into())]);
    }
}

// H3, H4: not before its time; only this instance's handlers and shards; at most `per_poll` per poll.
#[tokio::test(start_paused = true)]
async fn the_due_query_keeps_to_time_handler_shard_and_number() {
    let (store, queue) = world();
    let later = virtual_clock()() + SignedDuration::from_mins(20);
    let entry = |handler: &str, shard, not_before| Entry {
        handler: handler.into(),
        shard: Some(shard),
        not_before,
        ..Entry::default()
    };
    for shard in 0..4 {
        for _ in 0..5 {
            queue.enqueue_entry(entry("mine", shard, None)).await.unwrap();
            queue.enqueue_entry(entry("other", shard, None)).await.unwrap();
        }
    }
    let Enqueued::New(late) = queue.enqueue_entry(entry("mine", 0, Some(later))).await.unwrap() else { panic!() };
    let runs = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&runs);
    let strategies = Strategies {
        handlers: Handlers::Only(vec!["mine".into()]),
        shards: Shards::Even { host: 0, hosts: 2 },
        per_poll: 3,
        ..Strategies::default()
    };
    let worker = RetryWorker::new(&queue, strategies)
        .on("mine", move |job| {
            kept.lock().unwrap().push((Instant::now(), job.id));
            async { Ok(Answer::Success) }
        })
        .on("other", |_| async { unreachable!("not asked for") });
    let begun = Instant::now();
    run_for(&worker, Duration::from_secs(30 * MINUTE)).await;
    let runs = runs.lock().unwrap();
    assert_eq!(runs.len(), 11, "five in each of its two shards, and the late one");
    let (at, last) = runs.last().unwrap();
    assert_eq!(*last, late);
    assert!(*at - begun >= Duration::from_secs(20 * MINUTE) && *at - begun <= Duration::from_secs(20 * MINUTE + 2));
    assert!(store.0.lock().unwrap().iter().all(|limit| *limit == 3));
    assert_eq!(Strategies::default().per_poll, 1000);
    for (n, pair) in runs[..10].chunks(3).enumerate() {
        assert!(pair.iter().all(|(at, _)| at.duration_since(begun).as_secs() == n as u64), "three a poll");
    }
}

// H1: the same key stores one unit of work.
#[tokio::test(start_paused = true)]
async fn one_key_is_one_unit_of_work() {
    let (store, queue) = world();
    let entry = Entry { handler: "mail".into(), key: Some("k".into()), ..Entry::default() };
    let Enqueued::New(id) = queue.enqueue_entry(entry.clone()).await.unwrap() else { panic!() };
    assert_eq!(queue.enqueue_entry(entry).await.unwrap(), Enqueued::Known(id));
    assert_eq!(tasks(&store).len(), 1);
}

// B7, E5: many workers at once, some of which die: every task is done, each attempt is run by one worker.
#[tokio::test(start_paused = true)]
async fn of_many_workers_exactly_one_runs_each_attempt_and_the_dead_are_followed() {
    let (store, queue) = world();
    for n in 0..200 {
        queue.enqueue("work", json!(n)).await.unwrap();
    }
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let mut all = tokio::task::JoinSet::new();
    let clock = Arc::clone(&Settings { clock: virtual_clock(), ..Settings::default() }.clock);
    for n in 0..8 {
        let (runs, store, clock) = (Arc::clone(&runs), store.clone(), Arc::clone(&clock));
        let dies = n < 2;
        let work = async move {
            let queue = RetryQueue::new(store, Settings { clock, ..Settings::default() });
            let worker =
                RetryWorker::new(&queue, Strategies { at_once: 20, ..Strategies::default() }).on("work", move |job| {
                    *runs.lock().unwrap().entry((job.id, job.attempt)).or_insert(0) += 1;
                    async move {
                        sleep(Duration::from_secs(if dies { 100 } else { 3 })).await;
                        Ok(Answer::Success)
                    }
                });
            let life = Duration::from_secs(if dies { 5 } else { 15 * MINUTE });
            // A dead worker ends in the middle of whatever it does.
            let _ = tokio::time::timeout(life, worker.run(&CancellationToken::new())).await;
        };
        all.spawn(work);
    }
    all.join_all().await;
    assert!(tasks(&store).iter().all(|t| t.process_state() == ProcessState::Processed));
    let runs = runs.lock().unwrap();
    assert!(runs.values().all(|n| *n == 1), "an attempt was run twice");
    assert!(runs.len() > 200, "the dead workers' tasks were run again");
}

// H1-H5 on the real store: exactly one worker runs each, failures are retried, exceptions are listed and run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_queue_works_on_dynamodb() {
    use stepwarden_aws::{Clients, Config, DynamoStore, schema};
    let endpoints = stepwarden_embedded::Endpoints::open(&Default::default()).unwrap();
    let clients = Clients::embedded(endpoints.http_client());
    let names =
        [("ORDERS_TABLE", "params"), ("STATE_TABLE", "tasks"), ("QUEUE_PREFIX", "q-"), ("EVENT_BUS", "default")];
    let lookup = |name: &str| names.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let config = Config::from_lookup(lookup).unwrap();
    schema::create(&clients, &config, "q-", 30).await.unwrap();
    let store = Arc::new(DynamoStore::new(clients.dynamodb, &config));
    let when = When::Intervals(vec![SignedDuration::from_millis(200); 3]);
    let settings = Settings { policy: Policy { when, ..Policy::default() }, ..Settings::default() };
    let door = RetryQueue::new(store.clone(), settings.clone());
    let mut ids = Vec::new();
    for n in 0..30 {
        ids.push(door.enqueue("work", json!(n)).await.unwrap());
    }
    let runs = Arc::new(Mutex::new(HashMap::new()));
    let cancel = CancellationToken::new();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let (runs, cancel) = (Arc::clone(&runs), cancel.clone());
        let queue = RetryQueue::new(store.clone(), settings.clone());
        all.spawn(async move {
            let strategies = Strategies { poll_every: Duration::from_millis(100), ..Strategies::default() };
            let worker = RetryWorker::new(&queue, strategies).on("work", move |job| {
                *runs.lock().unwrap().entry((job.id, job.attempt)).or_insert(0) += 1;
                async move {
                    match (job.params.as_u64().unwrap() % 3, job.attempt) {
                        (0, 1) => Ok(Answer::Failure("busy".into())),
                        (1, 1) => Err("boom".into()),
                        _ => Ok(Answer::Success),
                    }
                }
            });
            worker.run(&cancel).await;
        });
    }
    let wait_for = |state: fn(&Task) -> bool| {
        let (door, ids) = (door.clone(), ids.clone());
        async move {
            for id in &ids {
                while !state(&door.get(id).await.unwrap().unwrap()) {
                    sleep(Duration::from_millis(50)).await;
                }
            }
        }
    };
    let ended = |t: &Task| t.process_state().is_final() && t.alert.is_none();
    tokio::time::timeout(Duration::from_secs(60), wait_for(ended)).await.expect("all end");
    let (mut thrown, mut cursor) = (Vec::new(), None);
    loop {
        let (page, next) = door.history(4, cursor.as_deref()).await.unwrap();
        thrown.extend(page);
        cursor = next;
        if cursor.is_none() {
            break;
        }
    }
    assert_eq!(thrown.len(), 10);
    assert!(thrown.iter().all(|t| t.due.is_none() && t.steps[0].state == State::Failed));
    for task in &thrown {
        assert!(door.resubmit(task, "ann", "mended").await.unwrap());
    }
    let done = |t: &Task| t.process_state() == ProcessState::Processed;
    tokio::time::timeout(Duration::from_secs(60), wait_for(done)).await.expect("all are done");
    assert!(door.history(10, None).await.unwrap().0.is_empty());
    cancel.cancel();
    all.join_all().await;
    let runs = runs.lock().unwrap();
    assert!(runs.values().all(|n| *n == 1), "{runs:?}");
    assert_eq!(runs.len(), 30 + 10 + 10);
}
