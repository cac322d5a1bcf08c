//! Goal: every lease store gives the same answers. Method: the contract's suite over the store in memory; over DynamoDB,
//! for which `tests/contract.rs` runs the suite, writes whose answers are lost.

use crate::support::leases;
use jiff::{SignedDuration, Timestamp};
use leader::memory::MemoryLeases;
use leader::{Lease, LeaseStore};
use stepwarden_aws::{Clients, DynamoLeases};
use stepwarden_embedded::{Endpoints, Fault};

const LIFE: SignedDuration = SignedDuration::from_secs(10);
const SKEW: SignedDuration = SignedDuration::from_secs(1);

fn at(s: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + s).unwrap()
}

async fn acquire<S: LeaseStore>(store: &S, holder: &str, now: i64) -> Option<Lease> {
    store.acquire("sweep", holder, at(now), LIFE, SKEW).await.unwrap()
}

async fn dynamodb() -> (Endpoints, DynamoLeases) {
    let endpoints = Endpoints::open(&Default::default()).unwrap();
    let store = leases(&Clients::embedded(endpoints.http_client())).await;
    (endpoints, store)
}

// I1, I2, I3.
#[tokio::test]
async fn the_store_in_memory_keeps_the_contract() {
    contract::lease::suite(&MemoryLeases::default()).await;
}

// I1, I4, I5: the answer to the write is lost and the SDK retries: the lease is this contender's nevertheless.
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
    assert_eq!(store.read("sweep").await.unwrap(), Some(a.clone()));
    lose_every_other_put(&endpoints);
    let a = store.renew(&a, at(5), LIFE).await.unwrap().expect("its own renewal");
    assert_eq!((a.token, a.expires), (1, at(15)));
    assert_eq!(store.read("sweep").await.unwrap(), Some(a.clone()));
    lose_every_other_put(&endpoints);
    store.release(&a).await.unwrap();
    endpoints.set_fault_hook(None);
    assert!(store.read("sweep").await.unwrap().unwrap().is_free());
    assert_eq!(acquire(&store, "b", 6).await.unwrap().token, 2);
}
