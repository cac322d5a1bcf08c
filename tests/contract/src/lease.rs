//! What every lease store must answer.

use crate::at;
use futures::future::join_all;
use leader::{Lease, LeaseStore};
use shared::time::SignedDuration;

const LIFE: SignedDuration = SignedDuration::from_secs(10);
const SKEW: SignedDuration = SignedDuration::from_secs(1);

async fn acquire<S: LeaseStore>(store: &S, holder: &str, now_s: i64) -> Option<Lease> {
    store.acquire("sweep", holder, at(now_s * 1000), LIFE, SKEW).await.unwrap()
}

/// All that a [`LeaseStore`] promises, in the order of a lease's life.
pub async fn suite<S: LeaseStore>(store: &S) {
    let secs = |s: i64| at(s * 1000);
    // I2: there is no record at first, and reading creates none.
    assert_eq!(store.read("sweep").await.unwrap(), None);

    // I1: one holder at a time; the other contender stands by until the life and the skew are over.
    let a = acquire(store, "a", 0).await.unwrap();
    assert_eq!((a.token, a.holder.as_str(), a.expires), (1, "a", secs(10)));
    assert_eq!(store.read("sweep").await.unwrap(), Some(a.clone()));
    assert_eq!(acquire(store, "b", 10).await, None);

    // I2: renewed, it keeps its token; a renewal is known by the record, not by the time.
    let a = store.renew(&a, secs(8), LIFE).await.unwrap().unwrap();
    assert_eq!((a.token, a.expires), (1, secs(18)));
    assert_eq!(acquire(store, "b", 18).await, None);

    // A renewal whose answer never came: the holder still knows the record before it.
    let older = a.clone();
    let a = store.renew(&a, secs(9), LIFE).await.unwrap().unwrap();
    let again = store.renew(&older, secs(10), LIFE).await.unwrap().unwrap();
    assert!(again.is_same_tenure(&a));
    assert_eq!(store.read("sweep").await.unwrap(), Some(again.clone()));

    // I1: expired, it changes hands and the token rises. Of two who saw the same record one wins.
    let seen = store.read("sweep").await.unwrap();
    let b = acquire(store, "b", 21).await.unwrap();
    assert_eq!((b.token, b.holder.as_str()), (2, "b"));
    let late = Lease::take(seen.as_ref(), "sweep", "c", secs(21), LIFE, SKEW).unwrap();
    assert_eq!(store.put(late, seen.as_ref()).await.unwrap(), None);

    // I3: a lost lease cannot be renewed, and releasing it changes nothing.
    assert_eq!(store.renew(&again, secs(22), LIFE).await.unwrap(), None);
    store.release(&again).await.unwrap();
    assert_eq!(store.read("sweep").await.unwrap(), Some(b.clone()));

    // I2: once released, even by a holder that missed the last renewal, the lease is free at once; the token keeps
    // rising.
    store.renew(&b, secs(22), LIFE).await.unwrap().unwrap();
    store.release(&b).await.unwrap();
    let free = store.read("sweep").await.unwrap().unwrap();
    assert!(free.is_free() && free.token == 2, "{free:?}");
    let c = acquire(store, "c", 22).await.unwrap();
    assert_eq!((c.token, c.holder.as_str()), (3, "c"));

    // Leases with other names are independent.
    assert_eq!(store.acquire("other", "d", secs(0), LIFE, SKEW).await.unwrap().unwrap().token, 1);
    replacing(store).await;
    finer_clocks(store).await;

    // I1: of many at once exactly one wins.
    let names: Vec<_> = (0..16).map(|n| format!("h{n}")).collect();
    let all = join_all(names.iter().map(|holder| store.acquire("many", holder, secs(0), LIFE, SKEW))).await;
    let winners: Vec<Lease> = all.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(winners.len(), 1, "{winners:?}");
    assert_eq!(store.read("many").await.unwrap().as_ref(), winners.first());
}

/// A record is replaced only as it was seen, in every part of it.
async fn replacing<S: LeaseStore>(store: &S) {
    let lease = |holder: &str, token: u64, ms: i64| Lease {
        name: "replaced".into(),
        holder: holder.into(),
        token,
        expires: at(ms),
    };
    let first = lease("a", 1, 10);
    assert!(!store.replace(&first, Some(&lease("b", 1, 10))).await.unwrap(), "there was none");
    assert!(store.replace(&first, None).await.unwrap());
    assert!(!store.replace(&lease("b", 1, 10), None).await.unwrap());
    assert_eq!(store.read("replaced").await.unwrap().as_ref(), Some(&first));
    for other in [lease("b", 1, 10), lease("a", 2, 10), lease("a", 1, 11)] {
        assert!(!store.replace(&lease("c", 3, 20), Some(&other)).await.unwrap(), "{other:?}");
    }
    // A released lease has the empty text as its holder, which DynamoDB accepts in an attribute that is no key.
    let free = first.released();
    assert!(store.replace(&free, Some(&first)).await.unwrap());
    assert_eq!(store.read("replaced").await.unwrap(), Some(free));
}

/// A clock may be finer than the record: a holder still recognises its own lease.
async fn finer_clocks<S: LeaseStore>(store: &S) {
    let now = at(0) + SignedDuration::from_nanos(123_456);
    let taken = store.acquire("finer", "a", now, LIFE, SKEW).await.unwrap().unwrap();
    assert_eq!(store.read("finer").await.unwrap().as_ref(), Some(&taken));
    let renewed = store.renew(&taken, now + SignedDuration::from_micros(300), LIFE).await.unwrap().unwrap();
    assert_ne!(store.read("finer").await.unwrap().as_ref(), Some(&taken), "those who watch it see that it was renewed");
    store.release(&renewed).await.unwrap();
    assert!(store.read("finer").await.unwrap().unwrap().is_free());
}
