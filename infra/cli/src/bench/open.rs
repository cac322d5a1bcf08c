//! Many open orders, each waiting for an event: what they cost the others. The system is a process of its own, which is killed at the end.

use super::child::{PATIENCE, Place, again};
use super::latency::Latency;
use super::steady;
use crate::client::Api;
use crate::process;
use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::json;
use shared::order::{DEFAULT_TENANT, Id};
use shared::task::ProcessState;
use shared::view::Status;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};
use stepwarden_embedded::Durability;

const NAME: &str = "bench-open";
const WORKFLOW: &str = r#"
name = "bench-open"
[[step]]
name = "go"
event = "go"
timeout = "30d"
[[step]]
name = "work"
after = ["go"]
agent = "noop"
timeout = "60s"
"#;
/// Clients that submit at the same time.
const CLIENTS: usize = 16;
/// Most requests of each kind in each stage.
const REQUESTS: u64 = 200;
/// Pages that are read one after another before the list is begun again.
const PAGES: u64 = 20;
/// How long the system is left alone while its processor time is measured, and before that, so that it has done what it was asked to.
const IDLE: Duration = Duration::from_secs(5);
const SETTLES: Duration = Duration::from_millis(500);
/// With fewer orders nothing grows, and no time is spent on it.
const MANY: u64 = 1000;
/// Time between two polls.
const LOOK: Duration = Duration::from_millis(1);

/// What many open orders cost.
#[derive(Debug, Serialize)]
pub struct Open {
    /// With a tenth of the orders, and with all.
    pub stages: Vec<Stage>,
    /// From the restart after a kill -9 until the API answers with the overview, in milliseconds.
    pub up_ms: f64,
    /// From the restart until an order has ended whose event was sent then, in milliseconds.
    pub first_end_ms: f64,
    /// Resident memory then, in bytes.
    pub memory_after_restart_bytes: Option<u64>,
}

/// Some open orders.
#[derive(Debug, Serialize)]
pub struct Stage {
    /// How many are open.
    pub orders: u64,
    /// Orders per second, from the first submission of this stage until its last ones wait.
    pub submitted_per_second: f64,
    /// Answers with the overview.
    pub overview: Latency,
    /// Answers with a page of the list of all orders.
    pub list: Latency,
    /// Answers with a page of the list of the orders that wait.
    pub waiting: Latency,
    /// From the event of an order, one at a time, to the order's end.
    pub event: Latency,
    /// Resident memory of the system, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processor time of the system while nothing is asked of it, in milliseconds a second.
    pub idle_cpu_ms_per_second: Option<f64>,
    /// What an order adds to the databases and their logs, in bytes.
    pub file_bytes_per_order: f64,
}

/// Submits `orders` that wait, measures, kills the system and starts it again. The files are in a new folder in `data`.
///
/// # Errors
/// A process does not start, an order is refused, or one does not end.
pub async fn run(orders: u64, durability: Durability, data: &Path) -> Result<Open> {
    std::fs::create_dir_all(data).context("creating the directory for the data")?;
    let folder = tempfile::Builder::new().prefix("stepwarden-bench-").tempdir_in(data);
    let folder = folder.context("creating a temporary directory")?;
    let place = Place::new(folder.path(), durability, NAME, WORKFLOW)?;
    let (api, mut system) = (place.api()?, place.start().await?);
    let mut world = World { api: &api, data: &place.data(), empty: 0, ended: 0 };
    world.empty = world.bytes();
    let (mut stages, few) = (Vec::new(), orders.div_ceil(10));
    for new in [0..few, few..orders] {
        stages.push(world.stage(system.id(), new).await?);
    }
    system.kill()?;
    system.wait()?;
    let restart = Instant::now();
    let system = place.start().await?;
    again(&api, || api.request(Method::GET, "/overview")).await?;
    let up_ms = ms(restart);
    end(&api, world.ended).await?;
    let first_end_ms = ms(restart);
    let memory_after_restart_bytes = process::memory_of(system.id()).map(|(now, _)| now);
    Ok(Open { stages, up_ms, first_end_ms, memory_after_restart_bytes })
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

struct World<'a> {
    api: &'a Api,
    data: &'a Path,
    /// Bytes of the files before the first order.
    empty: u64,
    /// Number of orders that have ended; they are the first ones.
    ended: u64,
}

impl World<'_> {
    fn bytes(&self) -> u64 {
        let (databases, logs) = steady::sizes(self.data);
        databases + logs
    }

    async fn stage(&mut self, system: u32, new: Range<u64>) -> Result<Stage> {
        let (api, begin, count) = (self.api, Instant::now(), new.end - new.start);
        let last = new.clone().rev().take(CLIENTS);
        stream::iter(new.clone()).map(|n| submit(api, n)).buffer_unordered(CLIENTS).try_collect::<()>().await?;
        for n in last {
            until(api, n, |status| status.steps.first().is_some_and(|step| step.state == "Waiting")).await?;
        }
        let submitted_per_second = count as f64 / begin.elapsed().as_secs_f64();
        let orders = new.end - self.ended;
        let mut idle_cpu_ms_per_second = None;
        if new.end >= MANY {
            tokio::time::sleep(SETTLES).await;
            let before = process::cpu_time_of(system);
            tokio::time::sleep(IDLE).await;
            let spent = before.zip(process::cpu_time_of(system)).map(|(before, after)| after.saturating_sub(before));
            idle_cpu_ms_per_second = spent.map(|spent| spent.as_secs_f64() * 1000.0 / IDLE.as_secs_f64());
        }
        let file_bytes_per_order = self.bytes().saturating_sub(self.empty) as f64 / new.end as f64;
        let requests = REQUESTS.min(new.end);
        let (mut overview, mut event) = (Vec::new(), Vec::new());
        for _ in 0..requests {
            let begin = Instant::now();
            api.read("/overview").await?;
            overview.push(ms(begin));
        }
        let (list, waiting) = (pages(api, None, requests).await?, pages(api, Some("Waiting"), requests).await?);
        let memory_bytes = process::memory_of(system).map(|(now, _)| now);
        // Most of them stay open.
        for _ in 0..REQUESTS.min((count / 10).max(1)) {
            let begin = Instant::now();
            end(api, self.ended).await?;
            event.push(ms(begin));
            self.ended += 1;
        }
        Ok(Stage {
            orders,
            submitted_per_second,
            overview: Latency::of(overview),
            list: Latency::of(list),
            waiting: Latency::of(waiting),
            event: Latency::of(event),
            memory_bytes,
            idle_cpu_ms_per_second,
            file_bytes_per_order,
        })
    }
}

fn id(n: u64) -> Id {
    Id::derive(DEFAULT_TENANT, &key(n))
}

fn key(n: u64) -> String {
    format!("open-{n}")
}

async fn submit(api: &Api, n: u64) -> Result<()> {
    let order = json!({"workflow": NAME, "input": {"number": n}});
    let post = || api.request(Method::POST, "/orders").header("idempotency-key", key(n)).json(&order);
    again(api, post).await.map(drop).context("an order was refused")
}

/// Sends the event of an order, and returns once the order has ended.
async fn end(api: &Api, n: u64) -> Result<()> {
    let path = format!("/orders/{}/events/go", id(n));
    let post = || api.request(Method::POST, &path).header("idempotency-key", "go").json(&json!({}));
    again(api, post).await.context("an event was refused")?;
    until(api, n, |status| status.state == ProcessState::Processed).await
}

async fn until(api: &Api, n: u64, is_so: impl Fn(&Status) -> bool) -> Result<()> {
    let begin = Instant::now();
    loop {
        let status = match api.read(&format!("/orders/{}", id(n))).await {
            Ok(status) if is_so(&Status::deserialize(&status).context("reading an order")?) => return Ok(()),
            Ok(status) => status.to_string(),
            Err(error) if error.is_passing() => error.to_string(),
            Err(error) => return Err(error.into()),
        };
        ensure!(begin.elapsed() < PATIENCE, "after {} s this order is still: {status}", PATIENCE.as_secs());
        tokio::time::sleep(LOOK).await;
    }
}

/// How long the pages of a list took, in milliseconds.
async fn pages(api: &Api, state: Option<&str>, requests: u64) -> Result<Vec<f64>> {
    let (mut all, mut cursor) = (Vec::new(), None);
    for n in 0..requests {
        let begin = Instant::now();
        let of = cursor.take_if(|_| n % PAGES != 0);
        let request = api.request(Method::GET, "/orders").query(&[("limit", "50")]);
        let page = api.ask(request.query(&[("state", state), ("cursor", of.as_deref())])).await?.body;
        all.push(ms(begin));
        ensure!(page["orders"].is_array(), "no list: {page}");
        cursor = page["next"].as_str().map(str::to_owned);
    }
    Ok(all)
}

impl Open {
    /// Writes the result to standard output, for people.
    pub fn say(&self) -> Result<()> {
        let mb = |bytes: Option<u64>| bytes.map_or_else(|| "?".to_owned(), |bytes| (bytes >> 20).to_string());
        for stage in &self.stages {
            let Stage { orders, submitted_per_second, file_bytes_per_order, .. } = stage;
            crate::say!("open orders         {orders}, submitted at {submitted_per_second:.0} orders/s");
            let kinds = [
                ("overview", &stage.overview),
                ("list", &stage.list),
                ("waiting", &stage.waiting),
                ("event", &stage.event),
            ];
            for (name, latency) in kinds {
                crate::say!("  {name:<17} {latency}");
            }
            let idle = stage.idle_cpu_ms_per_second.map(|idle| format!(", idle {idle:.0} ms CPU a second"));
            crate::say!(
                "  memory            {} MB, files {file_bytes_per_order:.0} bytes per order{}",
                mb(stage.memory_bytes),
                idle.unwrap_or_default()
            );
        }
        crate::say!(
            "  after a kill      up in {:.0} ms, the first order ended after {:.0} ms, {} MB",
            self.up_ms,
            self.first_end_ms,
            mb(self.memory_after_restart_bytes)
        );
        Ok(())
    }
}
