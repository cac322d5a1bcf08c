//! Goal: each fault does to effect and answer what its name says, and the same seed shows the same faults.
//! Method: a rate of 1 for one fault at a time; a client that gives up after `PATIENCE`.

use std::time::{Duration, Instant};

use crate::common::{PATIENCE, once, send, send_in_vain, serve};
use jiff::Timestamp;
use reqwest::StatusCode;
use serde_json::json;
use stepwarden_remotes::{Fault, Faults, Service, ServiceFaults};

fn none() -> ServiceFaults {
    ServiceFaults::default()
}

#[tokio::test]
async fn transient_answers_503_or_429_and_applies_nothing() {
    let served = serve(None).await;
    served.faults(Service::Payment, ServiceFaults { transient: 1.0, ..none() });
    let (mut busy, mut throttled) = (0, 0);
    for n in 0..60 {
        let answer = served.apply("payment", &format!("k{n}"), "o-1").await;
        match answer.status {
            StatusCode::SERVICE_UNAVAILABLE => busy += 1,
            StatusCode::TOO_MANY_REQUESTS => {
                assert_eq!(answer.retry_after.as_deref(), Some("1"));
                throttled += 1;
            }
            _ => panic!("{answer:?}"),
        }
    }
    assert!(busy > throttled && throttled > 0, "{busy}, {throttled}");
    let counts = &served.remotes.counts()[&Service::Payment];
    assert_eq!((counts.calls, counts.applied), (60, 0));
    assert_eq!(counts.faults[&Fault::Unavailable], busy);
    assert_eq!(counts.faults[&Fault::Throttled], throttled);
    // Undo calls have a separate rate.
    assert_eq!(served.undo("payment", "u", "o-1", "k0").await.status, StatusCode::OK);
    served.faults(Service::Payment, ServiceFaults { undo_transient: 1.0, ..none() });
    assert!(!served.undo("payment", "u2", "o-1", "k1").await.status.is_success());
    assert_eq!(served.apply("payment", "k1", "o-1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_slow_call_lands_even_when_its_client_has_left() {
    let served = serve(None).await;
    served.faults(Service::Inventory, ServiceFaults { slow: 1.0, slow_ms: 120, ..none() });
    let start = Instant::now();
    assert_eq!(served.apply("inventory", "k", "o-1").await.status, StatusCode::OK);
    assert!(start.elapsed() >= Duration::from_millis(120));
    let left = served.apply_request("inventory", "k2", "o-2").timeout(Duration::from_millis(40));
    assert!(left.send().await.unwrap_err().is_timeout());
    assert_eq!(served.remotes.order_ledger("o-2").unwrap()[0].applied_at, None);
    once(|| served.remotes.order_ledger("o-2").unwrap()[0].applied_at.is_some()).await;
}

#[tokio::test]
async fn a_slow_call_that_lands_after_its_undo_is_not_applied() {
    let served = serve(None).await;
    served.faults(Service::Payment, ServiceFaults { slow: 1.0, slow_ms: 150, ..none() });
    let late = tokio::spawn(send(served.apply_request("payment", "k", "o-1")));
    once(|| !served.remotes.counts()[&Service::Payment].faults.is_empty()).await;
    served.faults(Service::Payment, none());
    assert_eq!(served.undo("payment", "u", "o-1", "k").await.body, json!({"undone": false}));
    assert_eq!(late.await.unwrap().code(), "undone");
}

#[tokio::test]
async fn a_hanging_call_is_never_answered_nor_applied() {
    let served = serve(None).await;
    served.faults(Service::Shipping, ServiceFaults { hang: 1.0, ..none() });
    assert!(send_in_vain(served.apply_request("shipping", "k", "o-1")).await.is_timeout());
    assert!(send_in_vain(served.undo_request("shipping", "u", "o-1", "k")).await.is_timeout());
    served.faults(Service::Shipping, none());
    let answer = served.apply("shipping", "k", "o-1").await;
    assert_eq!((answer.status, answer.replayed), (StatusCode::OK, false));
}

#[tokio::test]
async fn a_lost_answer_applied_its_effect_and_was_cut_or_hung() {
    let served = serve(None).await;
    served.faults(Service::Payment, ServiceFaults { lost_answer: 1.0, ..none() });
    let calls = (0..16).map(|n| tokio::spawn(send_in_vain(served.apply_request("payment", &format!("k{n}"), "o-1"))));
    let (mut cut, mut hung) = (0, 0);
    for call in calls.collect::<Vec<_>>() {
        let err = call.await.unwrap();
        *(if err.is_timeout() { &mut hung } else { &mut cut }) += 1;
    }
    assert!(cut > 0 && hung > 0, "{cut} cut, {hung} hung");
    served.faults(Service::Payment, none());
    for n in 0..16 {
        assert!(served.apply("payment", &format!("k{n}"), "o-1").await.replayed);
    }
    let counts = &served.remotes.counts()[&Service::Payment];
    assert_eq!((counts.applied, counts.faults[&Fault::LostAnswer]), (16, 16));
}

#[tokio::test]
async fn an_answer_after_the_deadline_comes_after_it_with_the_effect_applied() {
    let served = serve(None).await;
    served.faults(Service::Payment, ServiceFaults { after_deadline: 1.0, slow_ms: 1, ..none() });
    let complete_by = Timestamp::now() + Duration::from_millis(150);
    let call = served
        .apply_request("payment", "k", "o-1")
        .header("Complete-By", complete_by.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string());
    let call = tokio::spawn(send(call));
    once(|| !served.remotes.order_ledger("o-1").unwrap().is_empty()).await;
    let applied_at = served.remotes.order_ledger("o-1").unwrap()[0].applied_at.unwrap();
    assert!(applied_at < complete_by);
    assert_eq!(call.await.unwrap().status, StatusCode::OK);
    assert!(Timestamp::now() > complete_by);
    // Without a deadline it comes after `slow_ms`.
    assert_eq!(served.apply("payment", "k2", "o-1").await.status, StatusCode::OK);
}

#[tokio::test]
async fn a_declined_key_stays_declined_and_an_applied_key_applied() {
    let served = serve(None).await;
    served.apply("payment", "applied", "o-0").await;
    served.faults(Service::Payment, ServiceFaults { permanent: 0.5, ..none() });
    let mut declined = Vec::new();
    for n in 0..40 {
        let (key, order) = (format!("k{n}"), format!("o-{n}"));
        let first = served.apply("payment", &key, &order).await;
        let again = served.apply("payment", &key, &order).await;
        assert_eq!((first.status, &first.body), (again.status, &again.body));
        if first.status == StatusCode::UNPROCESSABLE_ENTITY {
            assert_eq!((first.code(), again.replayed), ("declined", true));
            declined.push((key, order));
        }
    }
    assert!((5..36).contains(&declined.len()), "{}", declined.len());
    served.faults_seeded(99, Service::Payment, none());
    for (key, order) in &declined {
        assert_eq!(served.apply("payment", key, order).await.code(), "declined");
        let entries = served.remotes.order_ledger(order).unwrap();
        assert!(entries.iter().any(|e| e.key == *key && e.declined && e.applied_at.is_none()));
    }
    served.faults(Service::Payment, ServiceFaults { permanent: 1.0, ..none() });
    assert!(served.apply("payment", "applied", "o-0").await.status.is_success());
    // An undo of a declined key has nothing to take back.
    let (key, order) = &declined[0];
    let undone = served.undo("payment", "u", order, key).await;
    assert_eq!(undone.body, json!({"undone": false}));
    assert_eq!(served.apply("payment", key, order).await.code(), "undone");
}

#[tokio::test]
async fn a_failing_undo_fails_until_the_setting_is_changed() {
    let served = serve(None).await;
    served.apply("payment", "k", "o-1").await;
    served.faults(Service::Payment, ServiceFaults { undo_fails: 1.0, ..none() });
    for _ in 0..2 {
        let answer = served.undo("payment", "u", "o-1", "k").await;
        assert_eq!((answer.status.as_u16(), answer.code()), (422, "undo_failed"));
    }
    assert_eq!(served.remotes.order_ledger("o-1").unwrap()[0].undone_at, None);
    served.faults(Service::Payment, none());
    assert_eq!(served.undo("payment", "u", "o-1", "k").await.body, json!({"undone": true}));
}

#[tokio::test]
async fn an_outage_refuses_every_call_and_leaves_no_trace() {
    let served = serve(None).await;
    served.put("/faults/fraud", json!({"outage": true})).await;
    assert_eq!(served.apply("fraud", "k", "o-1").await.status.as_u16(), 503);
    assert_eq!(served.undo("fraud", "u", "o-1", "k").await.status.as_u16(), 503);
    assert_eq!(served.apply("inventory", "k", "o-1").await.status.as_u16(), 200);
    let entries = served.remotes.order_ledger("o-1").unwrap();
    assert!(entries.iter().all(|entry| entry.service != Service::Fraud));
    assert_eq!(served.remotes.counts()[&Service::Fraud].faults[&Fault::Outage], 2);
}

#[tokio::test]
async fn the_same_seed_shows_the_same_faults_however_calls_interleave() {
    // The statuses of three calls with each key, in the order of keys.
    async fn run(seed: u64, backwards: bool) -> Vec<Vec<u16>> {
        let served = serve(None).await;
        let faults = ServiceFaults { transient: 0.4, permanent: 0.2, ..none() };
        served.faults_seeded(seed, Service::Inventory, faults);
        let mut statuses = vec![Vec::new(); 30];
        let mut order: Vec<usize> = (0..30).collect();
        if backwards {
            order.reverse();
        }
        for _ in 0..3 {
            for &n in &order {
                let answer = served.apply("inventory", &format!("k{n}"), "o-1").await;
                statuses[n].push(answer.status.as_u16());
            }
        }
        statuses
    }
    let first = run(5, false).await;
    assert_eq!(first, run(5, true).await);
    assert_ne!(first, run(6, false).await);
    // A key's calls fare differently: a transient fault can be retried.
    let retried = |calls: &Vec<u16>| calls[0] != 200 && calls.contains(&200);
    assert!(first.iter().any(retried), "{first:?}");
}

#[tokio::test]
async fn settings_are_read_back_and_bad_ones_change_nothing() {
    let served = serve(None).await;
    let whole = json!({"seed": 7, "services": {"payment": {"transient": 0.25, "slow_ms": 10}}});
    let put = served.put("/faults", whole).await;
    assert_eq!(put.status, StatusCode::OK);
    let read = served.get("/faults").await.body;
    assert_eq!(read, put.body);
    assert_eq!(read["seed"], 7);
    assert_eq!(read["services"]["payment"]["transient"], 0.25);
    assert_eq!(read["services"]["fraud"]["hang"], 0.0);
    let typed: Faults = serde_json::from_value(read.clone()).unwrap();
    assert_eq!(typed, served.remotes.faults());
    let table = [
        ("/faults", json!({"services": {"bank": {}}}), "expected one of `inventory`"),
        ("/faults", json!({"sed": 1}), "expected `seed` or `services`"),
        ("/faults", json!({"services": {"fraud": {"hangs": 1}}}), "unknown field `hangs`"),
        ("/faults", json!({"services": {"fraud": {"hang": 1.5}}}), "from 0 to 1"),
        ("/faults/fraud", json!({"hang": 0.6, "lost_answer": 0.6}), "at most 1"),
        ("/faults/fraud", json!({"hang": -0.1}), "from 0 to 1"),
        ("/faults/fraud", json!({"transient": 0.6, "permanent": 0.6}), "at most 1"),
        ("/faults/fraud", json!({"undo_fails": 0.6, "hang": 0.6}), "at most 1"),
        ("/faults/fraud", json!({"slow_ms": 120_001}), "at most 120000"),
        ("/faults/fraud", json!({"slow_ms": -1}), "expected u64"),
        ("/faults/fraud", json!({"outage": "yes"}), "boolean"),
        ("/faults/bank", json!({}), "`inventory`"),
    ];
    for (path, body, says) in table {
        let answer = served.put(path, body).await;
        assert_eq!(answer.status, StatusCode::BAD_REQUEST, "{answer:?}");
        assert!(answer.detail().contains(says), "{answer:?}");
    }
    assert_eq!(served.get("/faults").await.body, read);
    // Forward and undo rates never meet in one call, so they are added up apart; a rounding error is no mistake.
    for good in [json!({"permanent": 1, "undo_fails": 1}), json!({"transient": 0.7, "slow": 0.2, "hang": 0.1})] {
        assert_eq!(served.put("/faults/fraud", good).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn a_shutdown_neither_waits_for_calls_that_hang_nor_answers_before_the_deadline() {
    let late = ServiceFaults { after_deadline: 1.0, slow_ms: 60_000, ..none() };
    for faults in [late, ServiceFaults { hang: 1.0, ..none() }] {
        let served = serve(None).await;
        served.faults(Service::Payment, faults);
        let waiting = served.apply_request("payment", "k", "o-1").timeout(Duration::from_secs(20));
        let waiting = tokio::spawn(waiting.send());
        once(|| !served.remotes.counts()[&Service::Payment].faults.is_empty()).await;
        let start = Instant::now();
        served.stop().await;
        assert!(waiting.await.unwrap().is_err());
        assert!(start.elapsed() < PATIENCE * 5);
    }
}
