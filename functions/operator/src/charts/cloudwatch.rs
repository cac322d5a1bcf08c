//! Metrics of the last hour from CloudWatch, by one `GetMetricData` in its JSON protocol.
//! <https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_GetMetricData.html>

use crate::aws::{call, endpoint, signed};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use stepwarden_aws::Clients;
use stepwarden_aws::metrics::{CHARTED, Kind, Line, MINUTES, Metric, NAMESPACE, STACK};

/// Most pages read. A page holds 100,800 values, so a second one is not expected.
const MAX_PAGES: usize = 3;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Page {
    #[serde(default)]
    metric_data_results: Vec<Found>,
    next_token: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Found {
    id: String,
    label: Option<String>,
    #[serde(default)]
    timestamps: Vec<f64>,
    #[serde(default)]
    values: Vec<f64>,
}

/// The query: a metric of the stack, the sum of all workflows, or each agent.
fn query(n: usize, metric: &Metric, stack: &str) -> Value {
    let id = format!("m{n}");
    let Some(label) = metric.label else {
        let named = json!({"Namespace": NAMESPACE, "MetricName": metric.name,
            "Dimensions": [{"Name": STACK, "Value": stack}]});
        return json!({"Id": id, "MetricStat": {"Metric": named, "Period": 60, "Stat": "Maximum"}});
    };
    let name = metric.name;
    let search =
        format!(r#"SEARCH('{{{NAMESPACE},{STACK},{label}}} {STACK}="{stack}" MetricName="{name}"', 'Sum', 60)"#);
    if metric.is_charted_by_agent() {
        return json!({"Id": id, "Expression": search, "Label": format!("${{PROP('Dim.{label}')}}")});
    }
    json!({"Id": id, "Expression": format!("SUM({search})")})
}

/// The lines of the hour until the minute `until`, those of agents only if they have any.
///
/// # Errors
/// CloudWatch did not answer, or not as documented.
pub async fn last_hour(clients: &Clients, stack: &str, until: i64) -> Result<Vec<Line>, String> {
    let region = clients.sdk.region().ok_or("no Region is configured")?.as_ref();
    let queries: Vec<_> = CHARTED.iter().enumerate().map(|(n, metric)| query(n, metric, stack)).collect();
    // An age is reported only when it changes, so this asks for an hour more.
    let (start, end) = ((until + 1 - 2 * MINUTES as i64) * 60, (until + 1) * 60);
    let mut found: BTreeMap<(usize, Option<String>), BTreeMap<i64, f64>> = BTreeMap::new();
    let mut next: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let body = json!({"MetricDataQueries": queries, "StartTime": start, "EndTime": end, "NextToken": next});
        let body = serde_json::to_vec(&body).expect("keys are strings");
        let request = http::Request::post(format!("{}/", endpoint(clients, "monitoring", region)))
            .header("content-type", "application/x-amz-json-1.0")
            .header("x-amz-target", "GraniteServiceVersion20100801.GetMetricData")
            .body(body)
            .map_err(|e| e.to_string())?;
        let answer = call(clients, signed(clients, "monitoring", region, request).await?).await.map_err(denied)?;
        let page: Page = serde_json::from_slice(&answer).map_err(|e| format!("its answer cannot be read: {e}"))?;
        for one in page.metric_data_results {
            let Some((n, metric)) = one.id.strip_prefix('m').and_then(|n| n.parse().ok()).and_then(of) else {
                continue;
            };
            let agent = metric.is_charted_by_agent().then_some(one.label).flatten();
            let values = found.entry((n, agent)).or_default();
            for (at, value) in one.timestamps.into_iter().zip(one.values) {
                values.insert((at as i64).div_euclid(60), value);
            }
        }
        next = page.next_token;
        if next.is_none() {
            break;
        }
    }
    for (n, metric) in CHARTED.iter().enumerate().filter(|(_, metric)| !metric.is_charted_by_agent()) {
        debug_assert!(metric.kind != Kind::Histogram, "{}", metric.name);
        found.entry((n, None)).or_default();
    }
    Ok(found.into_iter().map(|((n, agent), values)| CHARTED[n].line(agent, until, &values)).collect())
}

fn of(n: usize) -> Option<(usize, &'static Metric)> {
    CHARTED.get(n).map(|metric| (n, *metric))
}

/// Says what to do if denied.
fn denied(why: String) -> String {
    let hint = if why.contains("status 4") { ": the function's role needs cloudwatch:GetMetricData" } else { "" };
    format!("{why}{hint}")
}
