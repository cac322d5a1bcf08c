//! Goal: the console gets the last hour, on a laptop from this process and in a deployment from CloudWatch by one signed request.
//! Method: the route over the embedded endpoints; CloudWatch is a listener on loopback that answers as documented.

use crate::common::World;
use crate::common::aws::{aws, clients};
use operator::charts::Source;
use serde_json::{Value, json};
use shared::time::Timestamp;
use std::sync::{Arc, Mutex};

/// 21 November 2026, 09:00:30 UTC.
fn now() -> Timestamp {
    Timestamp::from_millisecond(crate::common::START + 30_000).unwrap()
}

fn line<'a>(charts: &'a Value, metric: &str, agent: Value) -> &'a Value {
    let lines = charts["lines"].as_array().unwrap();
    &lines
        .iter()
        .find(|line| line["metric"] == metric && line["agent"] == agent)
        .unwrap_or_else(|| panic!("{metric} in {lines:?}"))["points"]
}

#[tokio::test]
async fn a_laptop_charts_what_this_process_counted() {
    let world = World::new().await;
    let charts = world.get("/charts").await;
    assert_eq!(charts["step_s"], 60);
    assert_eq!(line(&charts, "orders_processed", Value::Null).as_array().unwrap().len(), 60);
    assert_eq!(world.call("POST", "/charts", Value::Null).await.0, 405);
}

#[tokio::test]
async fn a_deployment_charts_what_cloudwatch_tells() {
    let mut world = World::new().await;
    let minute = |n: i64| (crate::common::START / 1000 + n * 60) as f64;
    let found = json!({"MetricDataResults": [
        // Each value is that of the minute that begins then, the latest first; the last hour begins 59 minutes before this one.
        {"Id": "m1", "Label": "orders_processed", "Timestamps": [minute(0), minute(-59), minute(-70)], "Values": [3.0, 2.0, 7.0], "StatusCode": "Complete"},
        {"Id": "m4", "Label": "payment", "Timestamps": [minute(-1)], "Values": [4.0], "StatusCode": "Complete"},
        {"Id": "m4", "Label": "fraud", "Timestamps": [], "Values": [], "StatusCode": "Complete"},
        {"Id": "m6", "Label": "oldest_pending_age", "Timestamps": [minute(-100)], "Values": [90.5], "StatusCode": "Complete"},
        {"Id": "surprise", "Label": "x", "Timestamps": [minute(0)], "Values": [1.0], "StatusCode": "Complete"},
    ], "Messages": []});
    let answer = Arc::new(Mutex::new(Some(found)));
    let answered = Arc::clone(&answer);
    let (url, seen) =
        aws(move |_| answered.lock().unwrap().as_ref().map(|found| serde_json::to_vec(found).unwrap())).await;
    world.operator.charts = Source::CloudWatch(Box::new(clients(&world, &url)));

    let charts = serde_json::to_value(world.operator.last_hour(now()).await.unwrap()).unwrap();
    let processed = line(&charts, "orders_processed", Value::Null);
    assert_eq!((&processed[0], &processed[1], &processed[59]), (&json!(2.0), &json!(0.0), &json!(3.0)));
    assert_eq!(line(&charts, "step_failures", json!("payment"))[58], 4.0);
    assert_eq!(line(&charts, "oldest_pending_age", Value::Null)[0], 90.5, "an age stays until another one is told");
    assert_eq!(line(&charts, "oldest_wait_age", Value::Null)[59], Value::Null);
    assert_eq!(charts["from"], "2026-11-21T08:01:00Z");

    let (head, body) = seen.lock().unwrap().pop().unwrap();
    for part in [
        "post / ",
        "x-amz-target: graniteserviceversion20100801.getmetricdata",
        "content-type: application/x-amz-json-1.0",
        "/local/monitoring/aws4_request",
        "signedheaders=content-type;host;x-amz-date;x-amz-security-token;x-amz-target",
    ] {
        assert!(head.contains(part), "{part}: {head}");
    }
    let asked: Value = serde_json::from_slice(&body).unwrap();
    let queries = asked["MetricDataQueries"].as_array().unwrap();
    let stack = world.config.stack();
    assert_eq!(
        queries[1]["Expression"],
        format!(
            r#"SUM(SEARCH('{{Stepwarden,stack,workflow}} stack="{stack}" MetricName="orders_processed"', 'Sum', 60))"#
        )
    );
    assert_eq!(queries[4]["Label"], "${PROP('Dim.agent')}");
    assert_eq!(
        queries[6]["MetricStat"],
        json!({"Metric": {"Namespace": "Stepwarden", "MetricName": "oldest_pending_age",
        "Dimensions": [{"Name": "stack", "Value": stack}]}, "Period": 60, "Stat": "Maximum"})
    );
    assert_eq!((asked["StartTime"].as_i64().unwrap() % 60, asked["EndTime"].as_i64().unwrap() % 60), (0, 0));

    // A refusal is a sentence that says what to do, and the rest of the page is not touched.
    *answer.lock().unwrap() = None;
    let problem = world.operator.last_hour(now()).await.unwrap_err();
    assert_eq!(problem.status, 503);
    assert!(
        problem.detail.ends_with("status 403 Forbidden: the function's role needs cloudwatch:GetMetricData"),
        "{}",
        problem.detail
    );
}
