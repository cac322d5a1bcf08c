//! Goal: a tenure ends in time, for the right reason, and never overlaps the next one. Method: real contenders over a
//! faulty store in virtual time.

use crate::support::{LIFE, Mood, POLL, SKEW, Store, clock, noted, secs, settings};
use jiff::SignedDuration;
use leader::{
    CancellationToken, Cause, Ended, Hold, Leadership, LeaseStore, Note, Settings, TakeOver, run_while_leader,
};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

fn never() -> CancellationToken {
    CancellationToken::new()
}

/// A contender whose work never ends by itself.
fn leads_for_ever(store: &Arc<Store>, settings: Settings) -> JoinHandle<Ended<()>> {
    let store = Arc::clone(store);
    tokio::spawn(async move { run_while_leader(&store, &settings, &never(), |_| std::future::pending()).await })
}

/// A contender that tells its token and when it was elected.
fn next_leader(store: &Arc<Store>, settings: Settings) -> JoinHandle<Ended<(u64, Instant)>> {
    let store = Arc::clone(store);
    let work = |leadership: Leadership| async move { (leadership.token(), Instant::now()) };
    tokio::spawn(async move { run_while_leader(&store, &settings, &never(), work).await })
}

// I1, I3: the renewal stops when the work ends, and the lease is free at once.
#[tokio::test(start_paused = true)]
async fn work_that_returns_gives_the_lease_back() {
    let store = Store::default();
    let ended = run_while_leader(&store, &settings("a"), &never(), |leadership| async move {
        sleep(secs(25)).await;
        leadership.token()
    })
    .await;
    assert_eq!(ended, Ended::Completed(1));
    assert!(store.stored().await.is_free());
    let writes = store.writes.load(Ordering::Relaxed);
    // Taken once, renewed every third of its life for 25 s, given back.
    assert_eq!(writes, 1 + 7 + 1);
    sleep(secs(60)).await;
    assert_eq!(store.writes.load(Ordering::Relaxed), writes, "nobody renews after the end");
}

// I1: the others stand by; one at a time gets it, tokens rise, and each waits at most one poll.
#[tokio::test(start_paused = true)]
async fn many_contenders_lead_one_after_the_other() {
    let store = Arc::new(Store::default());
    let acts = Arc::new(Mutex::new(Vec::new()));
    let mut all = tokio::task::JoinSet::new();
    for n in 0..10 {
        let (store, acts) = (Arc::clone(&store), Arc::clone(&acts));
        all.spawn(async move {
            let settings = settings(&format!("c{n}"));
            run_while_leader(&store, &settings, &never(), |leadership| async move {
                let begun = Instant::now();
                sleep(secs(3)).await;
                acts.lock().unwrap().push((leadership.token(), begun, Instant::now()));
            })
            .await
        });
    }
    assert!(all.join_all().await.iter().all(|ended| *ended == Ended::Completed(())));
    let acts = acts.lock().unwrap();
    assert_eq!(acts.iter().map(|a| a.0).collect::<Vec<_>>(), (1..=10).collect::<Vec<_>>());
    for pair in acts.windows(2) {
        assert!(pair[0].2 <= pair[1].1, "two led at once");
        assert!(pair[1].1 - pair[0].2 <= POLL, "a free lease waited for more than a poll");
    }
}

// I2: a dead leader is followed within a life, the skew and one poll, and not before the life is over.
#[tokio::test(start_paused = true)]
async fn a_dead_leader_is_followed_after_the_lease_life() {
    for take_over in [TakeOver::ByWallClock, TakeOver::ByWatching] {
        let store = Arc::new(Store::default());
        let (first, second) = (settings("a"), settings("b"));
        let dies = leads_for_ever(&store, first);
        sleep(secs(5)).await;
        let next = next_leader(&store, Settings { take_over, ..second });
        sleep(secs(30)).await;
        assert!(!next.is_finished(), "{take_over:?}: a live leader is left alone");
        dies.abort();
        let died = Instant::now();
        let Ended::Completed((token, at)) = next.await.unwrap() else { panic!("{take_over:?}") };
        assert_eq!(token, 2);
        let gap = at - died;
        assert!(gap >= LIFE * 2 / 3 && gap <= LIFE + SKEW + 2 * POLL, "{take_over:?}: {gap:?}");
    }
}

// I3, I5: the store stays down: the work learns it in time, and is over before the lease can end on any clock.
#[tokio::test(start_paused = true)]
async fn work_stops_before_a_lease_that_cannot_be_renewed_ends() {
    for mood in [Mood::Away, Mood::Silent, Mood::Mute] {
        let store = Store::default();
        let (settings, notes) = noted(settings("a"));
        let ended = run_while_leader(&store, &settings, &never(), |leadership| {
            let store = &store;
            async move {
                sleep(secs(5)).await;
                store.set(mood);
                // Hears that it is over, and does not care: it is dropped.
                assert_eq!(leadership.cancelled().await, Cause::Lost);
                std::future::pending::<()>().await;
            }
        })
        .await;
        assert_eq!(ended, Ended::Lost, "{mood:?}");
        store.set(Mood::Well);
        // The stored lease still lives by the wall clock when the work has ended, because nothing released it.
        let (lease, now) = (store.stored().await, (settings.clock)());
        assert!(!lease.is_free(), "{mood:?}: work that was dropped gives nothing back");
        assert!(now <= lease.expires, "{mood:?}: {now} is after {}", lease.expires);
        assert!(notes.lock().unwrap().contains(&Note::NoLeader), "{mood:?}");
    }
}

// I5: faults shorter than the life are ridden out.
#[tokio::test(start_paused = true)]
async fn a_short_fault_of_the_store_is_ridden_out() {
    for mood in [Mood::Away, Mood::Silent, Mood::Mute] {
        let store = Arc::new(Store::default());
        let (settings, notes) = noted(settings("a"));
        let faults = {
            let store = Arc::clone(&store);
            tokio::spawn(async move {
                for _ in 0..10 {
                    sleep(secs(7)).await;
                    store.set(mood);
                    sleep(Duration::from_millis(2500)).await;
                    store.set(Mood::Well);
                }
            })
        };
        let ended = run_while_leader(&store, &settings, &never(), |leadership| async move {
            sleep(secs(110)).await;
            leadership.token()
        })
        .await;
        assert_eq!(ended, Ended::Completed(1), "{mood:?}");
        faults.await.unwrap();
        let notes = notes.lock().unwrap();
        assert!(notes.contains(&Note::StoreFault), "{mood:?}: the faults were met");
        assert!(!notes.contains(&Note::NoLeader), "{mood:?}");
    }
}

// I5: while the store is down there is no leader, and one alarm says so; once it is back there is one.
#[tokio::test(start_paused = true)]
async fn with_the_store_away_there_is_no_leader_and_an_alarm() {
    let store = Arc::new(Store::default());
    store.set(Mood::Away);
    let (settings, notes) = noted(settings("a"));
    let begun = Instant::now();
    let back = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            sleep(secs(100)).await;
            store.set(Mood::Well);
        })
    };
    let ended = run_while_leader(&store, &settings, &never(), |_| async { Instant::now() }).await;
    let Ended::Completed(at) = ended else { panic!() };
    assert!(at - begun >= secs(100) && at - begun <= secs(102));
    back.await.unwrap();
    let told: Vec<_> = notes.lock().unwrap().iter().filter(|n| **n != Note::StoreFault).copied().collect();
    assert_eq!(told, [Note::NoLeader, Note::StoreBack, Note::Elected { token: 1 }, Note::Ended]);
}

// I3: two causes of cancellation are distinguished: the lease's and the caller's.
#[tokio::test(start_paused = true)]
async fn cancellation_is_distinguished_from_a_lost_lease() {
    for (outer, expected) in [(true, Cause::Cancelled), (false, Cause::Lost)] {
        let store = Store::default();
        let cancel = never();
        let ended = run_while_leader(&store, &settings("a"), &cancel, |leadership| {
            let (store, cancel) = (&store, cancel.clone());
            async move {
                sleep(secs(4)).await;
                if outer {
                    cancel.cancel();
                } else {
                    // Somebody with a wrong clock takes it.
                    let stored = store.stored().await;
                    let thief = leader::Lease { holder: "thief".into(), token: stored.token + 1, ..stored.clone() };
                    assert!(store.replace(&thief, Some(&stored)).await.unwrap());
                }
                assert_eq!(leadership.cancelled().await, expected);
                assert_eq!(leadership.cause(), Some(expected));
                assert!(leadership.cancellation().is_cancelled());
            }
        })
        .await;
        assert_eq!(ended, expected.into());
        let stored = store.stored().await;
        if outer {
            assert!(stored.is_free(), "a clean end gives the lease back");
        } else {
            assert_eq!((stored.holder.as_str(), stored.token), ("thief", 2), "another one's lease is left alone");
        }
    }
}

// I3: cancelled while it waits, it never leads.
#[tokio::test(start_paused = true)]
async fn a_contender_can_be_cancelled_while_it_waits() {
    let store = Store::default();
    let [life, skew] = [1000, 1].map(SignedDuration::from_secs);
    store.leases.acquire("sweep", "b", clock(0)(), life, skew).await.unwrap().unwrap();
    let cancel = never();
    let stop = cancel.clone();
    tokio::spawn(async move {
        sleep(secs(30)).await;
        stop.cancel();
    });
    let ended = run_while_leader(&store, &settings("a"), &cancel, |_| async { unreachable!("never elected") }).await;
    assert_eq!(ended, Ended::<()>::Cancelled);
}

// I4: a leader that hangs while its renewals continue is found by its lack of progress.
#[tokio::test(start_paused = true)]
async fn a_leader_without_progress_loses_the_lease() {
    let store = Store::default();
    let settings = Settings { progress_within: Some(secs(8)), ..settings("a") };
    let begun = Instant::now();
    let ended = run_while_leader(&store, &settings, &never(), |leadership| async move {
        for _ in 0..20 {
            sleep(secs(5)).await;
            leadership.progress();
        }
        std::future::pending::<()>().await;
    })
    .await;
    assert_eq!(ended, Ended::Stalled);
    let after = begun.elapsed();
    assert!(after >= secs(108) && after <= secs(108) + settings.wind_down, "{after:?}");
    let stored = store.stored().await;
    assert!(!stored.is_free(), "work that had to be dropped leaves the lease to expire");
    assert!(stored.expires >= (settings.clock)());
}

// I4: a hard maximum; others have their turn.
#[tokio::test(start_paused = true)]
async fn nobody_leads_longer_than_the_longest_tenure() {
    let store = Arc::new(Store::default());
    let turns = Arc::new(Mutex::new(Vec::new()));
    let mut all = tokio::task::JoinSet::new();
    for name in ["a", "b", "c"] {
        let (store, turns) = (Arc::clone(&store), Arc::clone(&turns));
        let settings = Settings { tenure: Some(secs(60)), ..settings(name) };
        all.spawn(async move {
            let end = Instant::now() + secs(3600);
            while Instant::now() < end {
                let begun = Mutex::new(None);
                let ended = run_while_leader(&store, &settings, &never(), |leadership| {
                    *begun.lock().unwrap() = Some(Instant::now());
                    async move { leadership.cancelled().await }
                })
                .await;
                assert_eq!(ended, Ended::TenureOver);
                let led = begun.lock().unwrap().unwrap().elapsed();
                assert!(led <= secs(60), "{led:?}");
                turns.lock().unwrap().push(name);
                sleep(2 * settings.poll_every).await;
            }
        });
    }
    all.join_all().await;
    let turns = turns.lock().unwrap();
    for pair in turns.windows(2) {
        assert_ne!(pair[0], pair[1], "who stepped down waits, and another one has its turn");
    }
}

// I3: if a thread is frozen past the life of the lease, its result is not that of a leader.
#[tokio::test]
async fn work_that_outlives_its_lease_unseen_is_lost() {
    let store = Store::default();
    let life = Duration::from_millis(200);
    let settings = Settings { skew: Duration::ZERO, ..Settings::new("sweep", "a", life) };
    let ended = run_while_leader(&store, &settings, &never(), |leadership| async move {
        std::thread::sleep(2 * life);
        assert_eq!(leadership.cause(), Some(Cause::Lost), "the clock alone tells");
        assert_eq!(leadership.time_left(), Duration::ZERO);
    })
    .await;
    assert_eq!(ended, Ended::Lost);
}

// I2, I5: a holder whose clock is an hour ahead blocks no contender that watches; one whose clock lags is not robbed.
#[tokio::test(start_paused = true)]
async fn a_contender_that_watches_a_full_life_needs_no_other_clock() {
    for ahead_ms in [-3_600_000, 0, 3_600_000] {
        let store = Arc::new(Store::default());
        let leader = leads_for_ever(&store, Settings { clock: clock(ahead_ms), ..settings("a") });
        sleep(secs(1)).await;
        let watcher = next_leader(&store, Settings { take_over: TakeOver::ByWatching, ..settings("b") });
        sleep(secs(120)).await;
        assert!(!watcher.is_finished(), "{ahead_ms}: a leader that renews is left alone");
        leader.abort();
        let died = Instant::now();
        let Ended::Completed((_, at)) = watcher.await.unwrap() else { panic!() };
        assert!(at - died >= LIFE / 3 && at - died <= LIFE + SKEW + 2 * POLL, "{ahead_ms}: {:?}", at - died);
    }
}

// I2: held between ticks at the cost of one renewal for each half of its life.
#[tokio::test(start_paused = true)]
async fn a_hold_costs_nothing_in_the_first_half_of_its_life() {
    let store = Store::default();
    let mut hold = Hold::new(settings("a"));
    for _ in 0..100 {
        assert_eq!(hold.lead(&store).await.unwrap().unwrap().token, 1);
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(store.reads.load(Ordering::Relaxed), 1);
    assert_eq!(store.writes.load(Ordering::Relaxed), 1 + 9);
    hold.release(&store).await.unwrap();
    assert!(store.stored().await.is_free());
    assert!(!hold.is_live());
    assert_eq!(hold.lead(&store).await.unwrap().unwrap().token, 2);
}

// I4, I5: a hold that is no longer asked for ends by itself, and its token is never used again.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_not_asked_for_is_another_tenure_afterwards() {
    let store = Store::default();
    let (mut a, mut b) = (Hold::new(settings("a")), Hold::new(settings("b")));
    assert_eq!(a.lead(&store).await.unwrap().unwrap().token, 1);
    assert_eq!(b.lead(&store).await.unwrap(), None);
    sleep(LIFE).await;
    assert!(!a.is_live());
    // Its own record is not trusted either: it may have been frozen in the middle of something.
    assert_eq!(a.lead(&store).await.unwrap(), None);
    sleep(SKEW).await;
    assert_eq!(b.lead(&store).await.unwrap().unwrap().token, 2);
    assert_eq!(a.lead(&store).await.unwrap(), None);
}

// I5: a hold rides out faults while it lives, and is gone in time.
#[tokio::test(start_paused = true)]
async fn a_hold_lives_through_faults_and_never_past_its_life() {
    let store = Store::default();
    let (settings, notes) = noted(settings("a"));
    let mut hold = Hold::new(settings.clone());
    assert_eq!(hold.lead(&store).await.unwrap().unwrap().token, 1);
    let begun = Instant::now();
    store.set(Mood::Away);
    let mut led_until = begun;
    for _ in 0..40 {
        if hold.lead(&store).await.is_ok() {
            led_until = Instant::now();
        }
        sleep(Duration::from_millis(500)).await;
    }
    let led = led_until - begun;
    assert!(led >= LIFE / 2 && led <= LIFE - settings.wind_down, "{led:?}");
    assert!(notes.lock().unwrap().contains(&Note::NoLeader));
    store.set(Mood::Well);
    assert_eq!(hold.lead(&store).await.unwrap().unwrap().token, 2);
    assert!(notes.lock().unwrap().contains(&Note::StoreBack));
}
