//! Goal: every lease store gives the same answers. Method: one suite, run over the store in memory and over DynamoDB at the
//! embedded endpoints.

use jiff::{SignedDuration, Timestamp};
use leader::memory::MemoryLeases;
use leader::{Lease, LeaseStore};
use stepwarden_aws::{Clients, Config, DynamoLeases, schema};
use stepwarden_embedded::{Endpoints, Fault};

const LIFE: SignedDuration = SignedDuration::from_secs(10);
const SKEW: SignedDuration = SignedDuration::from_secs(1);

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + s).unwrap()
}

async fn acquire<S: LeaseStore>(store: &S, holder: &str, now: i64) -> Option<Lease> {
    store.acquire("sweep", holder, at(now), LIFE, SKEW).await.unwrap()
}

/// What every store must do, in the order of a lease's life.
async fn contract<S: LeaseStore + 'static>(store: S) {
    // I2: no record at first, and none is made by reading.
    assert_eq!(store.read("sweep").await.unwrap(), None);

    // I1: one holder at a time; the other contender stands by until the life and the skew are over.
    let a = acquire(&store, "a", 0).await.unwrap();
    assert_eq!((a.token, a.holder.as_str(), a.expires), (1, "a", at(10)));
    assert_eq!(store.read("sweep").await.unwrap(), Some(a.clone()));
    assert_eq!(acquire(&store, "b", 10).await, None);

    // I2: renewed, it keeps its token; a renewal is known by the record, not by the time.
    let a = store.renew(&a, at(8), LIFE).await.unwrap().unwrap();
    assert_eq!((a.token, a.expires), (1, at(18)));
    assert_eq!(acquire(&store, "b", 18).await, None);

    // A renewal whose answer never came: the holder still knows the record before it.
    let older = a.clone();
    let a = store.renew(&a, at(9), LIFE).await.unwrap().unwrap();
    let again = store.renew(&older, at(10), LIFE).await.unwrap().unwrap();
    assert!(again.is_same_tenure(&a));
    assert_eq!(store.read("sweep").await.unwrap(), Some(again.clone()));

    // I1: expired, it changes hands and the token rises. Of two who saw the same record one wins.
    let seen = store.read("sweep").await.unwrap();
    let b = acquire(&store, "b", 21).await.unwrap();
    assert_eq!((b.token, b.holder.as_str()), (2, "b"));
    let late = Lease::take(seen.as_ref(), "sweep", "c", at(21), LIFE, SKEW).unwrap();
    assert_eq!(store.put(late, seen.as_ref()).await.unwrap(), None);

    // I3: what is lost cannot be renewed, and giving it back changes nothing.
    assert_eq!(store.renew(&again, at(22), LIFE).await.unwrap(), None);
    store.release(&again).await.unwrap();
    assert_eq!(store.read("sweep").await.unwrap(), Some(b.clone()));

    // I2: given back, even by who knows only the record before the last renewal, it is free at once; the token goes on.
    store.renew(&b, at(22), LIFE).await.unwrap().unwrap();
    store.release(&b).await.unwrap();
    let c = acquire(&store, "c", 22).await.unwrap();
    assert_eq!((c.token, c.holder.as_str()), (3, "c"));

    // Leases of other names are others.
    assert_eq!(store.acquire("other", "d", at(0), LIFE, SKEW).await.unwrap().unwrap().token, 1);

    // I1: of many at once exactly one wins.
    let store = std::sync::Arc::new(store);
    let mut all = tokio::task::JoinSet::new();
    for n in 0..16 {
        let store = std::sync::Arc::clone(&store);
        all.spawn(async move { store.acquire("many", &format!("h{n}"), at(0), LIFE, SKEW).await.unwrap() });
    }
    let winners: Vec<_> = all.join_all().await.into_iter().flatten().collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(store.read("many").await.unwrap().as_ref(), winners.first());
}

async fn dynamodb() -> (Endpoints, DynamoLeases) {
    let endpoints = Endpoints::open(&Default::default()).unwrap();
    let clients = Clients::embedded(endpoints.http_client());
    let names =
        [("ORDERS_TABLE", "orders"), ("STATE_TABLE", "state"), ("QUEUE_PREFIX", "q-"), ("EVENT_BUS", "default")];
    let lookup = |name: &str| names.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
    let config = Config::from_lookup(lookup).unwrap();
    schema::create(&clients, &config, "q-", 30).await.unwrap();
    (endpoints, DynamoLeases::new(clients.dynamodb, "state"))
}

// I1, I2, I3.
#[tokio::test]
async fn the_store_in_memory_keeps_the_contract() {
    contract(MemoryLeases::default()).await;
}

// I1, I2, I3.
#[tokio::test]
async fn the_store_on_dynamodb_keeps_the_contract() {
    let (_endpoints, store) = dynamodb().await;
    contract(store).await;
}

// I5: the answer to the write is lost and the SDK tries again: the lease is this contender's all the same.
#[tokio::test]
async fn a_write_whose_answer_is_lost_is_known_again() {
    let (endpoints, store) = dynamodb().await;
    let lose_every_other_put = |endpoints: &Endpoints| {
        let calls = std::sync::atomic::AtomicUsize::new(0);
        endpoints.set_fault_hook(Some(std::sync::Arc::new(move |call| {
            let is_put = call.operation == "PutItem";
            let is_lost = is_put && calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed).is_multiple_of(2);
            is_lost.then_some(Fault::LostAfter)
        })));
    };
    lose_every_other_put(&endpoints);
    let a = acquire(&store, "a", 0).await.expect("its own write");
    assert_eq!(a.token, 1);
    lose_every_other_put(&endpoints);
    let a = store.renew(&a, at(5), LIFE).await.unwrap().expect("its own renewal");
    assert_eq!((a.token, a.expires), (1, at(15)));
    lose_every_other_put(&endpoints);
    store.release(&a).await.unwrap();
    endpoints.set_fault_hook(None);
    assert!(store.read("sweep").await.unwrap().unwrap().is_free());
}
