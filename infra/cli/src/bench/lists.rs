//! A list beside the same orders submitted one by one over HTTP: what does an item cost?

use super::load::{Board, STUCK};
use super::{WORKFLOW_OF_ITEM, WORKFLOW_OF_LIST};
use crate::client::Api;
use crate::process;
use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use stepwarden_local::system::System;

/// Clients that submit at the same time.
const CLIENTS: usize = 8;
/// Times that each way is measured, by turns.
const ROUNDS: usize = 3;

/// A list of orders, and the same orders one by one.
#[derive(Debug, Serialize)]
pub struct Lists {
    /// Items of the list.
    pub items: u64,
    /// Medians of the runs of a list.
    pub list: Way,
    /// Medians of the runs of orders that are submitted one by one.
    pub one_by_one: Way,
    /// Seconds of a list for each second of orders one by one.
    pub ratio: f64,
}

/// What one way of working off the items takes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Way {
    /// From the first submission to the last end.
    pub seconds: f64,
    /// User and system time of the whole process, clients included, for each item.
    pub cpu_ms_per_item: Option<f64>,
    /// Messages sent for each item.
    pub sends_per_item: f64,
    /// DynamoDB items read for each item.
    pub reads_per_item: f64,
    /// DynamoDB items written for each item.
    pub writes_per_item: f64,
    /// Number of fsyncs for each item.
    pub fsyncs_per_item: f64,
    /// Requests for each item by operation, as in `DynamoDB_20120810.UpdateItem`.
    pub requests_per_item: BTreeMap<String, f64>,
}

/// Measures both ways by turns, so that whatever else runs on this machine slows down both.
///
/// # Errors
/// An order is refused or does not end.
pub async fn run(system: &System, board: &Board, items: u64) -> Result<Lists> {
    let api = Api::new(&system.url, Some(system.token.clone()), Path::new("."))?;
    let (mut one_by_one, mut list) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        one_by_one.push(
            measure(system, board, items, items, async {
                let submit = |n| submit(&api, format!("one-{round}-{n}"), WORKFLOW_OF_ITEM.0, json!({"n": n}));
                stream::iter((0..items).map(submit)).buffer_unordered(CLIENTS).try_collect().await
            })
            .await?,
        );
        let all: Vec<u64> = (0..items).collect();
        let input = json!({"items": all});
        let submit = submit(&api, format!("list-{round}"), WORKFLOW_OF_LIST.0, input);
        list.push(measure(system, board, items, items + 1, submit).await?);
    }
    let (list, one_by_one) = (median(list), median(one_by_one));
    let ratio = list.seconds / one_by_one.seconds.max(f64::MIN_POSITIVE);
    Ok(Lists { items, list, one_by_one, ratio })
}

async fn submit(api: &Api, key: String, workflow: &str, input: Value) -> Result<()> {
    let body = json!({"workflow": workflow, "input": input});
    let request = api.request(reqwest::Method::POST, "/orders").header("idempotency-key", key).json(&body);
    api.ask(request).await.map(drop).context("an order was refused")
}

async fn measure(
    system: &System,
    board: &Board,
    items: u64,
    ends: u64,
    submit: impl Future<Output = Result<()>>,
) -> Result<Way> {
    let endpoints = system.endpoints.as_ref().context("the benchmark runs on the embedded endpoints")?;
    let (counts, cpu, before) = (endpoints.counts(), process::cpu_time(), board.ended.load(Ordering::Relaxed));
    let begin = Instant::now();
    submit.await?;
    let (mut last, mut moved) = (before, Instant::now());
    loop {
        let ended = board.ended.load(Ordering::Relaxed);
        if ended >= before + ends {
            break;
        }
        if ended > last {
            (last, moved) = (ended, Instant::now());
        }
        let stuck_s = STUCK.as_secs();
        anyhow::ensure!(moved.elapsed() < STUCK, "{ended} of {ends} orders ended, then none for {stuck_s} s");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let seconds = begin.elapsed().as_secs_f64();
    let counts = endpoints.counts().since(&counts);
    let cpu = cpu.zip(process::cpu_time()).map(|(before, after)| after.saturating_sub(before));
    let each = |count: u64| count as f64 / items as f64;
    Ok(Way {
        seconds,
        cpu_ms_per_item: cpu.map(|cpu| cpu.as_secs_f64() * 1000.0 / items as f64),
        sends_per_item: each(counts.messages_sent),
        reads_per_item: each(counts.items_read),
        writes_per_item: each(counts.items_written),
        fsyncs_per_item: each(counts.syncs),
        requests_per_item: counts.operations.iter().map(|(name, count)| (name.clone(), each(count.requests))).collect(),
    })
}

/// The run whose time is in the middle.
fn median(mut runs: Vec<Way>) -> Way {
    runs.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    runs.swap_remove(runs.len() / 2)
}

impl Lists {
    /// Writes the result to standard output, for people.
    pub fn say(&self) -> Result<()> {
        let Self { items, list, one_by_one, ratio } = self;
        crate::say!(
            "list                {items} items in {:.2} s, the same orders one by one in {:.2} s: ratio {ratio:.2}",
            list.seconds,
            one_by_one.seconds
        );
        for (name, way) in [("of a list", list), ("one by one", one_by_one)] {
            let Way { sends_per_item, reads_per_item, writes_per_item, fsyncs_per_item, .. } = way;
            let cpu = way.cpu_ms_per_item.map(|cpu| format!(", {cpu:.2} ms CPU")).unwrap_or_default();
            crate::say!(
                "  an item {name:<10} {reads_per_item:.1} reads, {writes_per_item:.1} writes, {sends_per_item:.1} \
                 messages, {fsyncs_per_item:.1} fsyncs{cpu}"
            );
        }
        Ok(())
    }
}
