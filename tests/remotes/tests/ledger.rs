//! Goal: the ledger shows all that was done, and the check finds every way it can be wrong.

use crate::common::{Served, send, serve};
use reqwest::Method;
use stepwarden_remotes::{Expected, Kind, Service};

#[tokio::test]
async fn the_ledger_is_paged_without_gaps() {
    let served = serve(None).await;
    for n in 0..25 {
        let service = ["inventory", "shipping"][n % 2];
        served.apply(service, &format!("k{n}"), &format!("o-{}", n / 2)).await;
    }
    let walk = async |filter: &str| {
        let mut keys = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = served.get(&format!("/ledger?limit=4&cursor={cursor}{filter}")).await.body;
            let entries = page["entries"].as_array().unwrap().clone();
            assert!(entries.len() <= 4);
            keys.extend(entries.iter().map(|e| e["key"].as_str().unwrap().to_owned()));
            match page["next_cursor"].as_str() {
                Some(next) => next.clone_into(&mut cursor),
                None => return keys,
            }
        }
    };
    let all: Vec<_> = (0..25).map(|n| format!("k{n}")).collect();
    assert_eq!(walk("").await, all);
    let even: Vec<_> = all.iter().step_by(2).cloned().collect();
    assert_eq!(walk("&service=inventory").await, even);

    let order = served.get("/ledger/orders/o-3").await.body;
    assert_eq!(order["entries"].as_array().unwrap().len(), 2);
    let entry = &order["entries"][0];
    assert_eq!((&entry["service"], &entry["calls"]), (&"inventory".into(), &1.into()));
    assert!(entry["applied_at"].as_str().unwrap().ends_with('Z'));
    assert!(entry["undone_at"].is_null());
    let unknown = served.get("/ledger/orders/nobody").await.body;
    assert_eq!(unknown["entries"].as_array().unwrap().len(), 0);
    for bad in ["service=bank", "limit=0", "limit=1001", "limit=x", "cursor=x", "page=2"] {
        let answer = served.get(&format!("/ledger?{bad}")).await;
        assert_eq!((answer.status.as_u16(), answer.code()), (400, "bad_request"), "{bad}");
    }
}

#[tokio::test]
async fn the_check_is_there_over_http() {
    let served = serve(None).await;
    served.apply("inventory", "k-1", "o-1").await;
    served.apply("payment", "k-2", "o-2").await;
    let check = async |body: &str| {
        let post = served.request(Method::POST, "/check").header("content-type", "application/json");
        send(post.body(body.to_owned())).await
    };
    let clean = check(r#"{"o-1": {"applied": ["inventory"]}, "o-2": "any", "o-3": "undone"}"#).await.body;
    assert_eq!((&clean["orders"], &clean["effects"], &clean["violation_count"]), (&3.into(), &2.into(), &0.into()));
    let report = check(r#"{"o-1": {"applied": ["shipping"]}, "o-2": "undone"}"#).await.body;
    let kinds: Vec<_> = report["violations"].as_array().unwrap().iter().map(|v| v["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["unexpected", "missing", "left_after_undo"]);
    let answer = check(r#"{"o-1": "perhaps"}"#).await;
    assert_eq!((answer.status.as_u16(), answer.code()), (400, "bad_request"));
    assert!(answer.detail().contains("undone"), "{}", answer.detail());
}

fn kinds(served: &Served, expected: &[(&str, Expected)]) -> Vec<(String, Kind)> {
    let expected = expected.iter().map(|(id, e)| ((*id).to_owned(), e.clone()));
    let report = served.remotes.check(expected).unwrap();
    assert_eq!(report.violation_count as usize, report.violations.len());
    for violation in &report.violations {
        assert!(violation.words.contains(&violation.order_id), "{violation:?}");
        assert!(report.to_string().contains(&violation.words));
    }
    report.violations.into_iter().map(|v| (v.order_id, v.kind)).collect()
}

#[tokio::test]
async fn the_check_finds_a_double_effect_with_different_keys() {
    let served = serve(None).await;
    served.apply("payment", "k-attempt-1", "o-1").await;
    served.apply("payment", "k-attempt-2", "o-1").await;
    served.apply("payment", "k", "o-2").await;
    let doubled = vec![("o-1".to_owned(), Kind::Doubled)];
    let paid = || Expected::Applied(vec![Service::Payment]);
    assert_eq!(kinds(&served, &[("o-1", paid()), ("o-2", paid())]), doubled);
    assert_eq!(kinds(&served, &[("o-1", Expected::Any), ("o-2", Expected::Any)]), doubled);
    // Undone since, it was still charged twice.
    served.undo("payment", "u", "o-1", "k-attempt-1").await;
    assert_eq!(kinds(&served, &[("o-1", Expected::Any), ("o-2", Expected::Any)]), doubled);
}

#[tokio::test]
async fn the_check_finds_what_is_missing_left_unexpected_or_unknown() {
    let served = serve(None).await;
    // The same key at another service is another key.
    served.apply("inventory", "k", "o-1").await;
    served.apply("fraud", "k", "o-1").await;
    served.undo("payment", "u", "o-2", "k2").await;
    let two = || Expected::Applied(vec![Service::Inventory, Service::Payment]);
    let none = || Expected::Applied(vec![]);
    let fraud_only = || Expected::Applied(vec![Service::Fraud]);
    let inventory = || Expected::Applied(vec![Service::Inventory]);
    let named = |order: &str, kind| (order.to_owned(), kind);
    for (expected, found) in [
        (vec![("o-1", inventory()), ("o-2", Expected::Undone)], vec![]),
        (vec![("o-1", two()), ("o-2", none())], vec![named("o-1", Kind::Missing)]),
        (vec![("o-1", fraud_only()), ("o-2", none())], vec![named("o-1", Kind::Unexpected)]),
        (vec![("o-1", Expected::Undone), ("o-2", Expected::Undone)], vec![named("o-1", Kind::LeftAfterUndo)]),
        (vec![("o-1", Expected::Any)], vec![named("o-2", Kind::UnknownOrder)]),
        (vec![("o-3", inventory()), ("o-1", Expected::Any), ("o-2", Expected::Any)], vec![named("o-3", Kind::Missing)]),
    ] {
        assert_eq!(kinds(&served, &expected), found, "{expected:?}");
    }
    served.undo("inventory", "u", "o-1", "k").await;
    let after = [("o-1", inventory()), ("o-2", Expected::Any)];
    assert_eq!(kinds(&served, &after), [named("o-1", Kind::Missing)]);
}
