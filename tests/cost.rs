//! Goal: the cost sheet, docs/cost.md, is what orders cost. Method: orders go through the handlers, message by message and ten at
//! a time, over the embedded endpoints; every request is weighed as AWS bills it and multiplied by docs/prices.toml. `UPDATE=1`
//! writes the tables again.

use crate::support::page::{Prices, hold};
use crate::support::world::{QUEUES, World, whole_event};
use crate::support::{northwind, three_noops};
use aws_sdk_sqs::types::{DeleteMessageBatchRequestEntry, MessageSystemAttributeName, SendMessageBatchRequestEntry};
use serde_json::{Value, json};
use shared::decision::{Event, Progress};
use shared::ports::StateStore as _;
use shared::task::ProcessState;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use stepwarden_aws::Engine;
use stepwarden_embedded::{Call, FaultHook};

const ORDERS: usize = 10;
/// SQS bills each 64 KB of a request or part of it, DynamoDB each 1 KB of a write and each 4 KB of a read.
const SQS_CHUNK: usize = 64 * 1024;
const WRITE_UNIT: usize = 1024;
const READ_UNIT: usize = 4096;

/// Requests to AWS, in the units that it bills.
#[derive(Clone, Debug, Default)]
struct Meter {
    api_requests: usize,
    /// Requests that write to a table.
    writes: usize,
    record_units: usize,
    index_units: usize,
    /// Of the index of what waits for a person or for an event.
    attention_units: usize,
    half_read_units: usize,
    messages: usize,
    sqs_requests: usize,
    invocations: [usize; 2],
    /// What the current invocation sent to each queue.
    sent: BTreeMap<String, Sent>,
    /// What is stored: bytes, and the places in the due index and in that of what waits.
    stored: BTreeMap<String, (usize, [Value; 2])>,
}

#[derive(Clone, Debug, Default)]
struct Sent {
    /// The number that AWS would bill.
    requests: usize,
    messages: usize,
    bytes: usize,
}

/// No place in an index.
fn nowhere() -> Value {
    json!([null, null])
}

/// Write units of an index whose entry moves from one place to another.
fn moved(from: &Value, to: &Value) -> usize {
    if from == to { 0 } else { usize::from(*from != nowhere()) + usize::from(*to != nowhere()) }
}

/// AWS, "DynamoDB item sizes and formats": names and strings in UTF-8 bytes; a number one byte for each two significant digits
/// and one more.
fn weight(item: &Value) -> usize {
    let of = |value: &Value| match (value["S"].as_str(), value["N"].as_str()) {
        (Some(text), _) => text.len(),
        (_, Some(digits)) => digits.trim_matches('0').len().div_ceil(2) + 1,
        _ => panic!("strings and numbers only: {value}"),
    };
    item.as_object().unwrap().iter().map(|(name, value)| name.len() + of(value)).sum()
}

fn key(item: &Value) -> String {
    [&item["pk"], &item["bucket"], &item["sort"]].map(|part| part["S"].as_str().unwrap_or_default()).concat()
}

impl Meter {
    /// A written record counts by the larger of its old and its new size, twice in a transaction.
    fn put(&mut self, item: &Value, times: usize) {
        let due = json!([item["shard"]["S"], item["due"]["N"]]);
        let is_listed = !item["attention"].is_null();
        let waits = if is_listed { json!([item["attention"]["S"], item["updated_at"]["N"]]) } else { nowhere() };
        let (before, was) = self.stored.get(&key(item)).cloned().unwrap_or((0, [nowhere(), nowhere()]));
        self.record_units += times * weight(item).max(before).div_ceil(WRITE_UNIT);
        self.index_units += moved(&was[0], &due);
        self.attention_units += moved(&was[1], &waits);
        self.stored.insert(key(item), (weight(item), [due, waits]));
    }

    /// A sweep writes the due time of an order that it leaves as it is.
    fn rearm(&mut self, request: &Value) {
        let values = &request["ExpressionAttributeValues"];
        let (bytes, places) = self.stored.get_mut(&key(&request["Key"])).expect("what is changed was written");
        let due = json!([values[":shard"]["S"], values[":due"]["N"]]);
        self.writes += 1;
        self.record_units += bytes.div_ceil(WRITE_UNIT);
        self.index_units += moved(&places[0], &due);
        places[0] = due;
    }

    /// Each record that is read counts separately, in a batch too, and half for an eventually consistent read.
    fn get(&mut self, place: &Value, request: &Value) {
        let (bytes, _) = self.stored.get(&key(place)).unwrap_or_else(|| panic!("read before it was written: {place}"));
        let halves = if request["ConsistentRead"].as_bool() == Some(true) { 2 } else { 1 };
        self.half_read_units += halves * bytes.div_ceil(READ_UNIT);
    }

    fn call(&mut self, call: &Call<'_>) {
        let body: Value = serde_json::from_slice(call.body).unwrap();
        let is_of_all =
            |place: &Value| ["control#", "lease#", "workflow#"].iter().any(|start| key(place).starts_with(start));
        match call.operation {
            // Reads and writes of the sweeps, and of the state of the agents, however many orders there are.
            "Query" => {}
            "PutItem" if is_of_all(&body["Item"]) => {}
            "GetItem" | "UpdateItem" | "DeleteItem" if is_of_all(&body["Key"]) => {}
            "UpdateItem" if key(&body["Key"]).starts_with("output#") => {
                self.writes += 1;
                let text = &body["ExpressionAttributeValues"][":text"];
                self.put(&json!({ "pk": body["Key"]["pk"], "output": text }), 1);
            }
            "UpdateItem" => self.rearm(&body),
            "PutItem" => {
                self.writes += 1;
                self.put(&body["Item"], 1);
            }
            "TransactWriteItems" => {
                self.writes += 1;
                body["TransactItems"].as_array().unwrap().iter().for_each(|item| self.put(&item["Put"]["Item"], 2));
            }
            "GetItem" => self.get(&body["Key"], &body),
            "BatchGetItem" => {
                for table in body["RequestItems"].as_object().unwrap().values() {
                    table["Keys"].as_array().unwrap().iter().for_each(|key| self.get(key, table));
                }
            }
            "SendMessageBatch" => {
                let entries = body["Entries"].as_array().unwrap();
                let bytes: usize = entries.iter().map(|entry| entry["MessageBody"].as_str().unwrap().len()).sum();
                let sent = self.sent.entry(body["QueueUrl"].as_str().unwrap().to_owned()).or_default();
                sent.requests += bytes.div_ceil(SQS_CHUNK);
                sent.messages += entries.len();
                sent.bytes += bytes;
            }
            "ReceiveMessage" | "DeleteMessageBatch" => {}
            other => panic!("{other} is not in the sheet"),
        }
    }

    /// A request to the API invoked a function, and it has ended.
    fn invoked(&mut self) {
        self.end();
        self.api_requests += 1;
        self.invocations[0] += 1;
    }

    /// The end of an invocation. Requests are counted as they were sent, except for replies: those of one invocation
    /// share requests if services answer within 3 ms of each other (`functions/agent/src/lib.rs: LINGER`), which a busy
    /// machine cannot show.
    fn end(&mut self) {
        for (queue, sent) in std::mem::take(&mut self.sent) {
            self.messages += sent.messages;
            let together = sent.messages.div_ceil(10).max(sent.bytes.div_ceil(SQS_CHUNK));
            self.sqs_requests += if queue.ends_with("replies") { together } else { sent.requests };
        }
    }
}

/// How orders come and go.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// By HTTP, one after the other.
    Alone,
    /// By HTTP, with batches of ten.
    Tens,
    /// By HTTP, with batches of ten, and with another scheduler for each message of an order, which must read what the
    /// previous one saved.
    Turns,
    /// By messages, ten in a request, with batches of ten.
    Messages,
}

const WAYS: [Way; 4] = [Way::Alone, Way::Tens, Way::Turns, Way::Messages];
/// An order of four steps has this many messages to its scheduler.
const SCHEDULERS: usize = 5;

struct Bench {
    world: World,
    schedulers: Vec<Engine>,
    meter: Arc<Mutex<Meter>>,
}

impl Bench {
    async fn start() -> Self {
        let order = include_str!("../workflows/order.toml").to_owned();
        let world = World::start(&[three_noops("60s"), order], None).await;
        let schedulers = (0..SCHEDULERS).map(|n| world.engine(&format!("scheduler-{n}"), 1000, None)).collect();
        let bench = Self { world, schedulers, meter: Arc::default() };
        // Reads that each function makes once in its life.
        for scheduler in &bench.schedulers {
            for workflow in ["noops", "order"] {
                bench.world.accept(workflow, &format!("first-{workflow}-{}", scheduler.instance()), northwind(0)).await;
            }
            bench.world.settle(scheduler).await;
        }
        bench
    }

    /// Counts from here on.
    fn begin(&self) {
        *self.meter.lock().unwrap() = Meter::default();
        let meter = Arc::clone(&self.meter);
        let hook: FaultHook = Arc::new(move |call: &Call<'_>| {
            meter.lock().unwrap().call(call);
            None
        });
        self.world.endpoints.set_fault_hook(Some(hook));
    }

    /// What has been counted.
    fn counted(&self) -> Meter {
        self.meter.lock().unwrap().clone()
    }

    /// What [`ORDERS`] orders with these inputs cost.
    async fn meter(&self, workflow: &str, way: Way, inputs: impl Fn(usize) -> Value) -> Meter {
        self.begin();
        let stored = inputs(0).to_string().len();
        let name = format!("{workflow}-{stored:04}-{}", way as u8);
        let mut ids = Vec::new();
        for n in 0..ORDERS {
            ids.push(shared::order::Id::derive(shared::order::DEFAULT_TENANT, &format!("{name}-{n}")));
            if way != Way::Messages {
                self.world.accept(workflow, &format!("{name}-{n}"), inputs(n)).await;
                self.meter.lock().unwrap().invoked();
            }
            if way == Way::Alone {
                self.settle(1, way).await;
            }
        }
        if way == Way::Messages {
            let entry = |n: usize| {
                let body = json!({"workflow": workflow, "input": inputs(n), "idempotency_key": format!("{name}-{n}")});
                let entry = SendMessageBatchRequestEntry::builder().id(n.to_string());
                entry.message_body(body.to_string()).build().unwrap()
            };
            let send = self.world.clients.sqs.send_message_batch().queue_url(self.world.url("submissions"));
            send.set_entries(Some((0..ORDERS).map(entry).collect())).send().await.unwrap();
            self.meter.lock().unwrap().end();
        }
        self.settle(10, way).await;
        self.world.no_faults();
        for id in &ids {
            assert_eq!(self.world.task(id).await.process_state(), ProcessState::Processed);
        }
        self.counted()
    }

    /// Delivers until nothing is left, as Lambda does: receives, invokes, deletes.
    async fn settle(&self, most: i32, way: Way) {
        let mut schedulers = self.schedulers.iter().cycle();
        let mut scheduler = &self.schedulers[0];
        let mut is_moving = true;
        while is_moving {
            is_moving = false;
            // Replies are delivered in between, so that of two parallel steps the same one always answers last.
            for queue in QUEUES.into_iter().flat_map(|queue| [queue, "replies"]) {
                let receive = self.world.clients.sqs.receive_message().queue_url(self.world.url(queue));
                let receive = receive.message_system_attribute_names(MessageSystemAttributeName::All);
                let received = receive.max_number_of_messages(most).wait_time_seconds(0).send().await.unwrap();
                let Some(messages) = received.messages else { continue };
                is_moving = true;
                if way == Way::Turns && ["scheduler", "replies"].contains(&queue) {
                    scheduler = schedulers.next().unwrap();
                }
                let response = self.world.handle(queue, scheduler, whole_event(queue, &messages)).await;
                assert!(response.batch_item_failures.is_empty());
                let entry = |(n, receipt): (usize, &str)| {
                    let entry = DeleteMessageBatchRequestEntry::builder().id(n.to_string());
                    entry.receipt_handle(receipt).build().unwrap()
                };
                let receipts = messages.iter().filter_map(|m| m.receipt_handle()).enumerate().map(entry).collect();
                let delete = self.world.clients.sqs.delete_message_batch().queue_url(self.world.url(queue));
                delete.set_entries(Some(receipts)).send().await.unwrap();
                let bytes: usize = messages.iter().filter_map(|m| m.body()).map(str::len).sum();
                let mut meter = self.meter.lock().unwrap();
                meter.end();
                // The request that received them, and the one that deleted them.
                meter.sqs_requests += bytes.div_ceil(SQS_CHUNK) + 1;
                meter.invocations[usize::from(messages.len() > 1)] += 1;
            }
        }
    }
}

/// An input with which the stored order has this many bytes.
fn sized(stored: usize) -> Value {
    // Keys, times, tenant, hash and names take the rest.
    const REST: usize = 270;
    json!({ "text": "x".repeat(stored - REST) })
}

/// The rows of a sheet: what is needed, its price, and how much of it an order needs.
fn rows(meter: &Meter, way: Way, prices: &Prices) -> Vec<(&'static str, f64, f64)> {
    let each = |n: usize| n as f64 / ORDERS as f64;
    let order = |name: &str| prices.of("order", name);
    let ms = each(meter.invocations[0]) * order("alone_ms") + each(meter.invocations[1]) * order("ten_ms");
    let metrics = if way == Way::Alone { "metrics_alone_kb" } else { "metrics_ten_kb" };
    let logs = order("log_kb") + order(metrics) + each(meter.api_requests) * order("access_log_kb");
    let row = |name: &'static str, price: &str, units: f64| (name, prices.of("million", price), units);
    vec![
        row("API requests: the submission", "api_requests", each(meter.api_requests)),
        row("DynamoDB write units, records", "write_units", each(meter.record_units)),
        row("DynamoDB write units, due index", "write_units", each(meter.index_units)),
        row("DynamoDB read units", "read_units", each(meter.half_read_units) / 2.0),
        row("SQS requests", "sqs_requests", each(meter.sqs_requests)),
        row("Lambda invocations", "invocations", each(meter.invocations.iter().sum())),
        row("Lambda time, GB-s", "gb_seconds", ms / 1000.0 * order("memory_gb")),
        row("logs and metrics, KB", "log_kilobytes", logs),
    ]
}

fn dollars(meter: &Meter, way: Way, prices: &Prices) -> f64 {
    rows(meter, way, prices).iter().map(|(_, price, units)| price * units).sum()
}

fn units(units: f64) -> String {
    // Without trailing zeros: 2.4, 0.012, 10.
    format!("{}", (units * 1e4).round() / 1e4)
}

fn sheet(meters: &[Meter], prices: &Prices) -> String {
    let all: Vec<_> = meters.iter().zip(WAYS).map(|(meter, way)| rows(meter, way, prices)).collect();
    let mut text = String::from(
        "| an order needs | a million cost | one at a time | USD | in tens | USD | in tens, in turn | USD | in tens, by message | USD |\n\
         |---|---|---|---|---|---|---|---|---|---|\n",
    );
    for n in 0..all[0].len() {
        let (name, price, _) = all[0][n];
        write!(text, "| {name} | {price} |").unwrap();
        for rows in &all {
            write!(text, " {} | {:.2} |", units(rows[n].2), rows[n].2 * price).unwrap();
        }
        text.push('\n');
    }
    write!(text, "| **a million orders** | |").unwrap();
    for rows in &all {
        write!(text, " | **{:.2}** |", rows.iter().map(|(_, price, units)| price * units).sum::<f64>()).unwrap();
    }
    text + "\n"
}

/// Minutes of a month of thirty days.
const MINUTES: usize = 30 * 24 * 60;

/// What the resources of a template cost in a month while nothing happens, without the queues of priorities.
fn idle(template: &str, prices: &Prices) -> f64 {
    let of = |name: &str| prices.of("month", name);
    let is_optional = |rest: &&str| rest.lines().next().is_some_and(|line| line.ends_with("HasClasses"));
    let count = |kind: &str| template.split(&format!("    Type: {kind}\n")).skip(1).filter(|r| !is_optional(r)).count();
    // Lambda polls each queue with five connections, each of which waits 20 s for messages. Our metrics have no data
    // while the system is idle, and cost nothing.
    let polls = count("AWS::Lambda::EventSourceMapping") * 5 * 3 * MINUTES;
    count("AWS::CloudWatch::Alarm") as f64 * of("alarm") + polls as f64 / 1e6 * prices.of("million", "sqs_requests")
}

/// What a system costs in a month: while nothing happens, and with orders that come one at a time; and what an agent adds.
fn month(an_order: f64, prices: &Prices) -> String {
    // With each sweep the supervisor counts dead letters: of the system's three queues, of `set-aside`, and of each
    // agent.
    let look = MINUTES as f64 / 1e6 * prices.of("million", "sqs_requests");
    let agent = idle(include_str!("../infra/agent.yaml"), prices) + look;
    // The agent `http` is always there.
    let stacks =
        [include_str!("../template.yaml"), include_str!("../infra/api.yaml"), include_str!("../infra/alarms.yaml")];
    let system =
        stacks.iter().map(|stack| idle(stack, prices)).sum::<f64>() + 4.0 * look + agent + prices.of("month", "sweeps");
    assert!(system <= 2.50, "an idle system costs {system:.2} USD a month");
    assert!(agent <= 0.40, "an idle agent costs {agent:.2} USD a month");
    let mut text = String::from("| orders a month | the system | its orders | together |\n|---|---|---|---|\n");
    for (words, orders) in [("none", 0.0), ("1,000", 1e3), ("10,000", 1e4), ("100,000", 1e5), ("1,000,000", 1e6)] {
        let sum = orders / 1e6 * an_order;
        writeln!(text, "| {words} | {system:.2} | {sum:.2} | **{:.2}** |", system + sum).unwrap();
    }
    text + &format!("\nThe agent `http` is included. Each further agent adds {agent:.2}.\n")
}

fn others(prices: &Prices) -> String {
    let mut text = String::from("| engine | billed | USD for a million orders of three steps |\n|---|---|---|\n");
    for (name, other) in prices.0["others"].as_table().unwrap() {
        let number = |key: &str| other.get(key).and_then(toml::Value::as_float);
        let price = number("price").unwrap();
        let least = price * number("least").unwrap() + number("more").unwrap_or_default();
        let more = number("most_more").or(number("more")).unwrap_or_default();
        let most = number("dearest").unwrap_or(price) * number("most").unwrap() + more;
        let sum = if (most - least).abs() < 0.5 { format!("{least:.0}") } else { format!("{least:.0} to {most:.0}") };
        writeln!(text, "| {name} | {} | {sum} |", other["unit"].as_str().unwrap()).unwrap();
    }
    text
}

// J1: what an order costs is counted at the endpoints, and the cost sheet contains nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn the_cost_sheet_is_what_orders_cost() {
    let (bench, prices) = (Bench::start().await, Prices::read());
    let mut three = Vec::new();
    let mut sums = String::from(
        "| order | one at a time | in tens | in tens, in turn | in tens, by message |\n|---|---|---|---|---|\n",
    );
    for (kb, writes) in [(1, 2), (4, 8)] {
        let mut line = format!("| three steps, {kb} KB stored |");
        for way in WAYS {
            let meter = bench.meter("noops", way, |_| sized(kb * 1024)).await;
            let heaviest = meter.stored.values().map(|(bytes, _)| *bytes).max().unwrap();
            assert!((kb * 1024 - 60..=kb * 1024).contains(&heaviest), "{heaviest} bytes are stored of an order");
            // The budget: five requests that write. The submission's request counts twice for the order and twice for
            // the task.
            assert_eq!(meter.writes, 5 * ORDERS, "{meter:?}");
            assert_eq!(meter.record_units, (writes + 2 + 4) * ORDERS, "{meter:?}");
            assert_eq!((meter.index_units, meter.attention_units), (2 * ORDERS, 0), "{meter:?}");
            let submitted = if way == Way::Messages { ORDERS } else { 0 };
            assert_eq!(meter.messages, 7 * ORDERS + submitted, "{meter:?}");
            if way != Way::Alone {
                assert!(meter.sqs_requests <= 3 * ORDERS, "{meter:?}");
                let dollars = dollars(&meter, way, &prices);
                // The goal of 10 is for small orders that their scheduler has in memory. Each bound leaves hardly any
                // room.
                let most = match (kb, way) {
                    (1, Way::Turns) => 10.5,
                    (1, _) => 10.0,
                    (_, Way::Turns) => 14.25,
                    _ => 13.75,
                };
                assert!(dollars <= most, "{dollars} USD for a million orders of {kb} KB");
            }
            write!(line, " {:.2} |", dollars(&meter, way, &prices)).unwrap();
            if kb == 1 {
                three.push(meter);
            }
        }
        writeln!(sums, "{line}").unwrap();
    }
    let mut line = String::from("| the reference workflow, four steps, real orders |");
    let mut four = Vec::new();
    for way in WAYS {
        let meter = bench.meter("order", way, northwind).await;
        assert_eq!((meter.index_units, meter.attention_units), (2 * ORDERS, 0), "{meter:?}");
        write!(line, " {:.2} |", dollars(&meter, way, &prices)).unwrap();
        four.push(meter);
    }
    writeln!(sums, "{line}").unwrap();
    for (mark, table) in [
        ("month", month(dollars(&three[0], Way::Alone, &prices), &prices)),
        ("sums", sums),
        ("three steps", sheet(&three, &prices)),
        ("four steps", sheet(&four, &prices)),
        ("others", others(&prices)),
    ] {
        hold("cost.md", mark, &table);
    }
}

/// What one thing costs that an order waits for: by what it is more than the same order without it.
#[derive(Clone, Copy, Debug)]
struct More {
    write_units: f64,
    read_units: f64,
    sqs_requests: f64,
    /// With one message, and with more.
    invocations: [f64; 2],
    api_requests: f64,
}

impl More {
    fn of(meter: &Meter, without: &Meter, times: usize) -> Self {
        let each = |n: usize, without: usize| (n as f64 - without as f64) / (ORDERS * times) as f64;
        let writes = |m: &Meter| m.record_units + m.index_units + m.attention_units;
        let calls = |n: usize| each(meter.invocations[n], without.invocations[n]);
        Self {
            write_units: each(writes(meter), writes(without)),
            read_units: each(meter.half_read_units, without.half_read_units) / 2.0,
            sqs_requests: each(meter.sqs_requests, without.sqs_requests),
            invocations: [calls(0), calls(1)],
            api_requests: each(meter.api_requests, without.api_requests),
        }
    }

    fn dollars(self, prices: &Prices) -> f64 {
        let (million, order) = (|name: &str| prices.of("million", name), |name: &str| prices.of("order", name));
        let [alone, ten] = self.invocations;
        let seconds = (alone * order("alone_ms") + ten * order("ten_ms")) / 1000.0 * order("memory_gb");
        self.write_units * million("write_units")
            + self.read_units * million("read_units")
            + self.sqs_requests * million("sqs_requests")
            + (alone + ten) * million("invocations")
            + seconds * million("gb_seconds")
            + self.api_requests * (million("api_requests") + order("access_log_kb") * million("log_kilobytes"))
    }
}

const MINUTE: std::time::Duration = std::time::Duration::from_secs(60);
const DAY: std::time::Duration = std::time::Duration::from_hours(24);

/// Orders that wait, of which a test says what happens to them.
struct Waits {
    bench: Bench,
    supervisor: Engine,
}

impl Waits {
    async fn start(workflows: &[&str]) -> Self {
        let texts: Vec<String> = workflows.iter().map(|text| (*text).to_owned()).collect();
        let world = World::start(&texts, None).await;
        let schedulers = vec![world.engine("scheduler-0", 1000, None)];
        let supervisor = world.engine("supervisor", 1000, None);
        Self { bench: Bench { world, schedulers, meter: Arc::default() }, supervisor }
    }

    /// What [`ORDERS`] orders of this workflow cost, with at most `most` messages in a batch, of which `then` brings about all that
    /// their beginning does not.
    async fn meter(&self, workflow: &str, most: i32, then: impl AsyncFn(&[shared::order::Id])) -> Meter {
        self.bench.begin();
        let mut ids = Vec::new();
        for n in 0..ORDERS {
            ids.push(self.bench.world.accept(workflow, &format!("{workflow}-{most}-{n}"), json!({})).await);
            self.invoked();
            if most == 1 {
                self.settle(most).await;
            }
        }
        self.settle(most).await;
        then(&ids).await;
        self.bench.world.no_faults();
        for id in &ids {
            let task = self.bench.world.task(id).await;
            assert_eq!(task.process_state(), ProcessState::Processed, "{task:#?}");
        }
        self.bench.counted()
    }

    /// What this many heartbeats of each of [`ORDERS`] orders cost, `every` apart, with the sweeps in between; and what was counted before
    /// them.
    async fn beats(&self, workflow: &str, times: usize, every: shared::time::SignedDuration) -> (Meter, Meter) {
        self.bench.begin();
        let world = &self.bench.world;
        let mut ids = Vec::new();
        for n in 0..ORDERS {
            let id = world.accept(workflow, &format!("{workflow}-{n}"), json!({})).await;
            // Its request stays in the queue: the agent works for a long time.
            self.bench.schedulers[0]
                .handle(vec![(id.clone(), Event::Wake { seen: 0, hops: 0 })])
                .await
                .remove(0)
                .unwrap();
            ids.push(id);
        }
        self.bench.meter.lock().unwrap().end();
        let before = self.bench.counted();
        for _ in 0..times {
            world.pass(every);
            for id in &ids {
                // As the route does, whose address only the record can prove.
                world.submitting.store.load(id).await.unwrap();
                world.submit.beat(id, "a", 1, Progress::default()).await.unwrap();
                self.invoked();
            }
            // A sweep that finds the old CompleteBy, which the skew of the clocks puts off.
            tokio::time::advance(std::time::Duration::from_millis(100)).await;
            self.supervise().await;
        }
        world.no_faults();
        (self.bench.counted(), before)
    }

    /// What the submissions of [`ORDERS`] orders with this many labels cost.
    async fn labels(&self, count: usize) -> Meter {
        self.bench.begin();
        let labels: Vec<String> = (0..count).map(|n| format!("label-{n}")).collect();
        for n in 0..ORDERS {
            let body = json!({"workflow": "plain", "input": {}, "labels": labels});
            let key = format!("labels-{count}-{n}");
            self.bench.world.try_accept(shared::order::DEFAULT_TENANT, &key, &body).await.unwrap();
            self.invoked();
        }
        let counted = self.bench.counted();
        self.settle(1).await;
        counted
    }

    /// A function was invoked by a request to the API.
    fn invoked(&self) {
        self.bench.meter.lock().unwrap().invoked();
    }

    async fn settle(&self, most: i32) {
        self.bench.settle(most, Way::Alone).await;
    }

    /// One sweep, whose own reads are those of every idle one, and then what it sent.
    async fn sweep(&self, most: i32) {
        self.supervise().await;
        self.settle(most).await;
    }

    async fn supervise(&self) {
        let settings = supervisor::Settings::new(1, std::time::Duration::from_secs(20));
        supervisor::handler(&self.supervisor, &*self.supervisor.store, settings).await.unwrap();
        self.bench.meter.lock().unwrap().end();
    }

    /// The events of these orders, each by a request.
    async fn events(&self, ids: &[shared::order::Id], most: i32) {
        for id in ids {
            self.bench.world.submit.deliver(id, "e", "k", json!({}), None).await.unwrap();
            self.invoked();
            if most == 1 {
                self.settle(most).await;
            }
        }
        self.settle(most).await;
    }

    /// Days with a sweep each, and no request.
    async fn quiet(&self, days: usize, most: i32) {
        let before = self.bench.counted();
        for _ in 0..days {
            tokio::time::advance(DAY).await;
            self.sweep(most).await;
        }
        let after = self.bench.counted();
        let counted = |m: &Meter| (m.writes, m.half_read_units, m.sqs_requests, m.invocations);
        assert_eq!(counted(&before), counted(&after), "a wait costs nothing while it lasts");
    }

    /// The last of these days: sweeps a minute apart, the last ones after its end.
    async fn last_day(&self, most: i32) {
        tokio::time::advance(DAY - MINUTE * 5 / 2).await;
        for _ in 0..5 {
            self.settle(most).await;
            self.sweep(most).await;
            tokio::time::advance(MINUTE).await;
        }
    }

    /// What a wait for a time, a shorter one, an event and a reminder cost.
    async fn costs(&self, most: i32) -> [More; 4] {
        let without = self.meter("plain", most, async |_| {}).await;
        let timer = async |_: &[shared::order::Id]| {
            self.quiet(29, most).await;
            self.last_day(most).await;
        };
        let timer = self.meter("timer", most, timer).await;
        let short = async |_: &[shared::order::Id]| {
            tokio::time::advance(MINUTE * 5).await;
            self.sweep(most).await;
            tokio::time::advance(MINUTE * 6).await;
            self.settle(most).await;
        };
        let short = self.meter("short", most, short).await;
        let event = async |ids: &[shared::order::Id]| {
            self.quiet(29, most).await;
            self.events(ids, most).await;
        };
        let event = self.meter("event", most, event).await;
        let remind = async |ids: &[shared::order::Id]| {
            for _ in 0..2 {
                self.quiet(9, most).await;
                self.last_day(most).await;
            }
            self.events(ids, most).await;
        };
        let remind = self.meter("remind", most, remind).await;
        [
            More::of(&timer, &without, 1),
            More::of(&short, &without, 1),
            More::of(&event, &without, 1),
            More::of(&remind, &event, 2),
        ]
    }
}

fn chain(name: &str, between: &str) -> String {
    let after = if between.is_empty() { "a" } else { "w" };
    let between = if between.is_empty() {
        String::new()
    } else {
        format!("[[step]]\nname = \"w\"\nafter = [\"a\"]\n{between}\n")
    };
    format!(
        "name = \"{name}\"\ndefault = {{ timeout = \"60s\" }}\n[[step]]\nname = \"a\"\nafter = []\nagent = \"noop\"\n{between}\
         [[step]]\nname = \"b\"\nafter = [\"{after}\"]\nagent = \"noop\"\n"
    )
}

// J1, M4: a label costs one write of the submission's transaction. Orders without labels are in the tests above.
#[tokio::test(flavor = "multi_thread")]
async fn the_cost_sheet_is_what_a_label_costs() {
    let (waits, prices) = (Waits::start(&[&chain("plain", "")]).await, Prices::read());
    let (one, eight) = (waits.labels(1).await, waits.labels(8).await);
    assert_eq!(one.writes, eight.writes, "one transaction");
    let More { write_units, read_units, sqs_requests, invocations, api_requests } = More::of(&eight, &one, 7);
    assert_eq!([write_units, read_units, sqs_requests, api_requests], [2.0, 0.0, 0.0, 0.0]);
    assert_eq!(invocations, [0.0, 0.0]);
    let dollars = write_units * prices.of("million", "write_units");
    let text = format!(
        "| | DynamoDB write units | USD a million |\n|---|---|---|\n| a label | {write_units} | {dollars:.2} |\n"
    );
    hold("cost.md", "labels", &text);
}

// J1: what a wait costs is counted like an order, and while it lasts it costs no request.
#[tokio::test(start_paused = true)]
async fn the_cost_sheet_is_what_waits_cost() {
    let plain = chain("plain", "");
    let timer = chain("timer", "wait = \"30d\"");
    let event = chain("event", "event = \"e\"\ntimeout = \"30d\"");
    let remind = "event = \"e\"\ntimeout = \"30d\"\nremind = { every = \"10d\", times = 2, agent = \"noop\" }";
    let remind = chain("remind", remind);
    let beats = "name = \"beats\"\n[[step]]\nname = \"a\"\nagent = \"noop\"\ntimeout = \"12h\"\nheartbeat = \"10m\"\n";
    let short = chain("short", "wait = \"10m\"");
    let waits = Waits::start(&[&plain, &timer, &short, &event, &remind, beats]).await;
    let prices = Prices::read();
    let (alone, tens) = (waits.costs(1).await, waits.costs(10).await);
    let (beats, claimed) = waits.beats("beats", 12, shared::time::SignedDuration::from_mins(10)).await;
    let beat = More::of(&beats, &claimed, 12);
    // As for orders, the goal is for batches of ten.
    let a_wait = tens[0].dollars(&prices);
    assert!(a_wait <= 4.0, "{a_wait} USD for a million waits: {:?}", tens[0]);
    let names = [
        "a wait for a time, of any length over 15 minutes",
        "a wait for a time, of up to 15 minutes",
        "a wait for an event, and its event over HTTP",
        "a reminder",
    ];
    let rows = names.into_iter().zip(alone.into_iter().zip(tens)).chain([("a heartbeat", (beat, beat))]);
    let mut text = String::from(
        "| what an order waits for | DynamoDB write units | read units | SQS requests | invocations | API requests | USD a million | in tens |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (name, (one, ten)) in rows {
        let More { write_units, read_units, sqs_requests, invocations, api_requests } = one;
        let all = [write_units, read_units, sqs_requests, invocations.iter().sum(), api_requests].map(units);
        let (one, ten) = (one.dollars(&prices), ten.dollars(&prices));
        writeln!(text, "| {name} | {} | {one:.2} | {ten:.2} |", all.join(" | ")).unwrap();
    }
    hold("cost.md", "waits", &text);
}

/// Numbers of items of the lists in the sheet.
const LISTS: [usize; 2] = [10, 1000];

/// Of a message, by SQS.
const LONGEST_DELAY: std::time::Duration = std::time::Duration::from_secs(900);

/// What a list of so many items costs: an order that makes a call for each, 100 at a time.
async fn list(waits: &Waits, items: usize) -> Meter {
    waits.bench.begin();
    let world = &waits.bench.world;
    let input: Value = (0..items).collect();
    let id = world.accept("list", &format!("list-{items}"), json!({ "items": input })).await;
    waits.invoked();
    // The looks that no end of an order brings come a second later.
    for _ in 0..items {
        waits.settle(10).await;
        if world.task(&id).await.process_state() != ProcessState::Processing {
            break;
        }
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
    }
    world.no_faults();
    let task = world.task(&id).await;
    assert_eq!(task.process_state(), ProcessState::Processed, "{:?}", task.reason);
    assert_eq!(task.steps[1].output, Some(json!({ "done": items })));
    let counted = waits.bench.counted();
    // A look that is left must not be counted for the next list.
    tokio::time::advance(LONGEST_DELAY).await;
    waits.settle(10).await;
    counted
}

/// What Step Functions bills for a million items of a Distributed Map whose executions have one state: Standard, and Express.
fn distributed_map(items: usize, prices: &Prices) -> [f64; 2] {
    let of = |engine: &str, name: &str| prices.0["others"][engine][name].as_float().unwrap();
    let transition = of("Step Functions, Standard", "price");
    let (standard, express) = (prices.of("distributed_map", "standard"), prices.of("distributed_map", "express"));
    let (request, duration) = (of("Step Functions, Express", "price"), of("Step Functions, Express", "more"));
    // The state of the list itself is one more.
    let own = transition / items as f64;
    [own + standard * transition, own + express * transition + request + duration]
}

// J1: what a list costs is counted like an order, beside the same items in a Distributed Map.
#[tokio::test(start_paused = true)]
async fn the_cost_sheet_is_what_lists_cost() {
    let text = "name = \"list\"\n[[step]]\nname = \"items\"\nafter = []\neach = \"${input.items}\"\nat_once = 100\n\
        agent = \"noop\"\ntimeout = \"60s\"\nwith = { n = \"${item}\" }\n\
        [[step]]\nname = \"sum\"\nafter = [\"items\"]\nvalue = { done = \"${outputs.items.done}\" }\n";
    let (waits, prices) = (Waits::start(&[text]).await, Prices::read());
    let mut table = String::from(
        "| items | write units | read units | SQS requests | invocations | USD a million items | USD, the list | \
         Distributed Map, Standard | Distributed Map, Express |\n|---|---|---|---|---|---|---|---|---|\n",
    );
    for items in LISTS {
        let meter = list(&waits, items).await;
        // Counted for one order, and wanted for an item.
        let all = More::of(&meter, &Meter::default(), 1);
        let each = |n: f64| units(n * ORDERS as f64 / items as f64);
        let dollars = all.dollars(&prices) * ORDERS as f64 / items as f64;
        let [standard, express] = distributed_map(items, &prices);
        writeln!(
            table,
            "| {items} | {} | {} | {} | {} | {dollars:.2} | {:.4} | {standard:.2} | {express:.2} |",
            each(all.write_units),
            each(all.read_units),
            each(all.sqs_requests),
            each(all.invocations.iter().sum()),
            dollars * items as f64 / 1e6,
        )
        .unwrap();
    }
    hold("cost.md", "lists", &table);
}
