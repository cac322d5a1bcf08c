//! Goal: a sweep over millions of open orders finds what is overdue, at a known cost and in a known time. Method: the
//! real supervisor in virtual time over a due index that is computed, not stored: an order is generated when it is
//! read, and one bit says whether it was recovered. The index answers, throttles and counts units as DynamoDB does. The
//! tables of docs/scaling.md come from
//!
//!     ORDERS=10000000 cargo test --release -p stepwarden-tests --test whole scale:: -- --nocapture

mod at_once;

use crate::support::page::{Prices, hold};
use leader::{Lease, LeaseStore};
use shared::decision::{Decision, Event, Turn};
use shared::engine::{self, Engine};
use shared::message::{Effect, Wake};
use shared::order::{Id, Order};
use shared::ports::{Created, DuePage, Error, Messenger, Saved, StateStore, async_trait};
use shared::scheduler::schedule;
use shared::task::{LOOK_AHEAD, MAX_SHARDS, Task, moved};
use shared::time::{SignedDuration, Timestamp, plus};
use shared::workflow::file::{Known, parse};
use shared::workflow::{Hash, Workflow};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use supervisor::{Settings, Supervisor};
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Usual answers of DynamoDB and SQS within a Region.
const GET: Duration = Duration::from_millis(4);
const PUT: Duration = Duration::from_millis(6);
const QUERY: Duration = Duration::from_millis(10);
const SEND: Duration = Duration::from_millis(12);
/// Units per second of one partition of a table or of an index.
const PARTITION_WRITES: f64 = 1000.0;
const PARTITION_READS: f64 = 3000.0;
/// Partitions of a new on-demand table: 4,000 write units.
const TABLE_PARTITIONS: usize = 4;
/// Attempts of the SDK, and its usual wait before the second attempt, doubled for the third.
const ATTEMPTS: u32 = 3;
const BACKOFF: Duration = Duration::from_millis(500);
/// A page of a query.
const PAGE_BYTES: usize = 1024 * 1024;
/// Keys of an index entry, with DynamoDB's own 100 bytes.
const ENTRY_BYTES: usize = 150;
/// The supervisor's processor time for an overdue order, of a whole processor (`make measure`); Lambda gives a whole one at 1,769 MB.
const CPU: Duration = Duration::from_micros(400);
const WHOLE_MB: f64 = 1769.0;
/// The same as in template.yaml.
const FUNCTION_TIMEOUT: Duration = Duration::from_secs(50);
const LAST_PAGE: Duration = Duration::from_secs(10);
const MINUTE: Duration = Duration::from_secs(60);
/// Due time of the orders that are not overdue: after the end of the simulation.
const LATER: SignedDuration = SignedDuration::from_hours(1000);

const WORKFLOW: &str = r#"
name = "one"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
retry = { max = 3, backoff = ["1s"] }
"#;

/// The same step after a wait.
const WAITS: &str = r#"
name = "two"
[[step]]
name = "wait"
after = []
wait = "1h"
[[step]]
name = "a"
after = ["wait"]
agent = "x"
timeout = "2h"
"#;

/// What is simulated.
#[derive(Clone, Copy)]
struct Plan {
    open: usize,
    overdue: usize,
    /// When the waits of all these orders end; else an attempt of each has expired.
    ends: Option<SignedDuration>,
    shards: u16,
    memory_mb: f64,
    /// Capacity of a partition, in write units per second.
    writes: f64,
}

/// The requests to AWS so far.
#[derive(Clone, Debug, Default, PartialEq)]
struct Bill {
    queries: u64,
    read_units: f64,
    write_units: f64,
    sqs_requests: u64,
    throttled: u64,
    wakes: u64,
}

/// The remaining capacity of a partition: the time at which all its work is done, at its rate.
#[derive(Clone, Copy, Default)]
struct Partition(f64);

impl Partition {
    /// Whether the partition accepts `units` at `now`, in seconds; a burst of one second's capacity is accepted.
    fn has_room(self, units: f64, rate: f64, now: f64) -> bool {
        self.0.max(now - 1.0) + units / rate <= now
    }

    fn take(&mut self, units: f64, rate: f64, now: f64) {
        self.0 = self.0.max(now - 1.0) + units / rate;
    }
}

struct State {
    bill: Bill,
    /// The recovered orders, one bit each, and their number for each tenant.
    recovered: Vec<u64>,
    tenants: [u64; 2],
    /// The first order of each shard that may still be overdue.
    first: Vec<usize>,
    table: [Partition; TABLE_PARTITIONS],
    /// For each shard, the entries of orders at their first place, and those of moved orders.
    index: Vec<[Partition; 2]>,
    index_reads: Vec<Partition>,
    leases: BTreeMap<String, Lease>,
    /// The orders whose waits have ended, and when the last of them did.
    ended: BTreeMap<usize, Task>,
    last: Timestamp,
    /// Due times that a sweep has put off.
    put_off: BTreeMap<usize, Option<Timestamp>>,
    /// Wakes on their way, in the sequence in which they arrive, if somebody takes them.
    mail: Option<BTreeMap<(Instant, u64), Wake>>,
}

/// The generated index and tables.
struct Synthetic {
    plan: Plan,
    workflow: Workflow,
    /// An order whose attempt has expired, or whose wait is about to end: all others have the same record under their own ids.
    overdue: Task,
    begun: Instant,
    state: Arc<Mutex<State>>,
    /// Until when the processor of this instance is busy.
    busy: Mutex<Instant>,
}

fn epoch() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn number_of(id: &Id) -> usize {
    id.0.trim_start_matches("ord_").parse().expect("an id of this test")
}

impl Plan {
    /// The due time of order `k`, which never falls with `k`.
    fn due(&self, k: usize) -> Timestamp {
        if let Some(ends) = self.ends {
            return plus(epoch(), ends - LOOK_AHEAD);
        }
        let ms = i64::try_from(k).unwrap() - i64::try_from(self.overdue).unwrap();
        plus(epoch(), if k < self.overdue { SignedDuration::from_millis(ms) } else { LATER })
    }
}

/// One order in a hundred is the small tenant's.
fn tenant_of(k: usize) -> usize {
    usize::from(k % 100 == 7)
}

impl Synthetic {
    fn new(plan: Plan) -> Self {
        let text = if plan.ends.is_some() { WAITS } else { WORKFLOW };
        let workflow = parse("one.toml", text, Known { agents: &["x"], inputs: &[] }).unwrap();
        let submitted = plus(epoch(), plan.ends.unwrap_or_default() - SignedDuration::from_hours(1));
        let new = Task::new(contract::submission(Id("ord_0".into())), &workflow, submitted);
        let turn = Turn {
            workflow: &workflow,
            input: &serde_json::Value::Null,
            now: submitted,
            instance: "s",
            skew: SignedDuration::from_secs(1),
            agents: &shared::control::Agents::default(),
            pools: &shared::pools::ONE_EACH,
            outputs: &shared::outputs::NONE,
            public_url: "https://orders.example",
        };
        let Decision::Save { task, .. } = schedule(&new, &Event::Wake { seen: 0, hops: 0 }, &turn) else { panic!() };
        let begun = Instant::now();
        let shards = usize::from(plan.shards);
        let state = State {
            bill: Bill::default(),
            recovered: vec![0; plan.overdue.div_ceil(64)],
            tenants: [0; 2],
            first: (0..shards).collect(),
            table: [Partition::default(); TABLE_PARTITIONS],
            index: vec![[Partition::default(); 2]; shards],
            index_reads: vec![Partition::default(); shards],
            leases: BTreeMap::new(),
            ended: BTreeMap::new(),
            last: epoch(),
            put_off: BTreeMap::new(),
            mail: plan.ends.map(|_| BTreeMap::new()),
        };
        Self { plan, workflow, overdue: *task, begun, state: Arc::new(Mutex::new(state)), busy: Mutex::new(begun) }
    }

    fn now(&self) -> Timestamp {
        plus(epoch(), SignedDuration::try_from(self.begun.elapsed()).unwrap())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Waits for a turn at the function's share of a processor.
    async fn compute(&self, whole: Duration) {
        let done = {
            let mut busy = self.busy.lock().unwrap();
            let share = (self.plan.memory_mb / WHOLE_MB).min(1.0);
            *busy = (*busy).max(Instant::now()) + whole.div_f64(share);
            *busy
        };
        sleep_until(done).await;
    }

    fn made_up(&self, id: &Id) -> Task {
        let k = number_of(id);
        let shard = u16::try_from(k % usize::from(self.plan.shards)).unwrap();
        let state = self.state();
        let (shard, due) = state.put_off.get(&k).map_or((shard, self.overdue.due), |due| (moved(shard), *due));
        let ended = state.ended.get(&k).cloned();
        ended.unwrap_or_else(|| Task { id: id.clone(), shard, due, ..self.overdue.clone() })
    }

    async fn read(&self, units: f64) {
        self.state().bill.read_units += units;
        sleep(GET).await;
    }

    /// Writes an order's record, and its entries in the index if its place there changes; else the one in the list of what waits.
    /// Retries while a partition is at its limit. An index at its limit holds up the writes of its table.
    async fn write(&self, k: usize, moves: bool, what: &str) -> Result<(), Error> {
        let shard = k % usize::from(self.plan.shards);
        for attempt in 1..=ATTEMPTS {
            sleep(PUT).await;
            let now = self.seconds();
            {
                let mut state = self.state();
                let of_table = k / usize::from(self.plan.shards) % TABLE_PARTITIONS;
                let room = |p: Partition| p.has_room(1.0, self.plan.writes, now);
                let entries = if moves { 2 } else { 1 };
                if room(state.table[of_table]) && state.index[shard][..entries].iter().all(|p| room(*p)) {
                    state.table[of_table].take(1.0, self.plan.writes, now);
                    state.index[shard][..entries].iter_mut().for_each(|p| p.take(1.0, self.plan.writes, now));
                    state.bill.write_units += 1.0 + entries as f64;
                    return Ok(());
                }
                state.bill.throttled += 1;
            }
            if attempt < ATTEMPTS {
                sleep(BACKOFF * attempt).await;
            }
        }
        Err(Error::Unavailable { what: what.to_owned(), source: "throttled".into() })
    }
}

#[async_trait]
impl StateStore for Synthetic {
    async fn create(&self, _: &Order, _: &Task) -> Result<Created, Error> {
        unreachable!("a supervisor takes no orders")
    }

    async fn load(&self, id: &Id) -> Result<Option<Task>, Error> {
        self.compute(CPU / 2).await;
        self.read(1.0).await;
        Ok(Some(self.made_up(id)))
    }

    /// One request for a page: each record costs its units, and all are in one answer.
    async fn load_all(&self, ids: &[Id]) -> Vec<Result<Option<Task>, Error>> {
        assert!(ids.len() <= 100, "BatchGetItem takes no more keys");
        let many = u32::try_from(ids.len()).unwrap();
        self.compute(CPU / 2 * many).await;
        self.read(f64::from(many)).await;
        ids.iter().map(|id| Ok(Some(self.made_up(id)))).collect()
    }

    async fn save(&self, task: &Task, seen: u64) -> Result<Saved, Error> {
        let k = number_of(&task.id);
        let moves = task.due != self.made_up(&task.id).due;
        assert!(!moves || task.shard == moved(task.shard), "a moved task goes to the other part");
        self.compute(CPU / 2).await;
        self.write(k, moves, &task.id.0).await?;
        let stored = self.made_up(&task.id);
        if stored.version != seen {
            return Ok(Saved::Conflict(Some(Box::new(stored))));
        }
        let mut state = self.state();
        if self.plan.ends.is_some() {
            state.ended.insert(k, task.clone());
            state.last = self.now();
        }
        let (word, bit) = (k / 64, 1 << (k % 64));
        assert_eq!(state.recovered[word] & bit, 0, "order {k} is recovered once");
        state.recovered[word] |= bit;
        state.tenants[tenant_of(k)] += 1;
        Ok(Saved::Applied)
    }

    async fn rearm(&self, task: &Task, due: Option<Timestamp>, _: u64) -> Result<(), Error> {
        assert!(self.plan.ends.is_some(), "{task:?} is overdue");
        let k = number_of(&task.id);
        self.write(k, true, &task.id.0).await?;
        self.state().put_off.insert(k, due);
        Ok(())
    }

    async fn attention(&self, _: u32, _: Option<&str>) -> Result<DuePage, Error> {
        unreachable!("only the supervisor runs")
    }

    async fn due(&self, shard: u16, now: Timestamp, limit: u32, cursor: Option<&str>) -> Result<DuePage, Error> {
        let shards = usize::from(self.plan.shards);
        let most = (limit as usize).min(PAGE_BYTES / ENTRY_BYTES);
        assert!(most <= 100, "a page is small enough for one BatchGetItem");
        let (mut ids, mut next) = (Vec::new(), None);
        // The partitions of moved and of urgent orders are empty, because schedulers continue the moved orders.
        if shard < MAX_SHARDS {
            let mut state = self.state();
            let is_open = |state: &State, k: usize| state.recovered[k / 64] & (1 << (k % 64)) == 0;
            let mut k = state.first[usize::from(shard)];
            while k < self.plan.overdue && !is_open(&state, k) {
                k += shards;
            }
            state.first[usize::from(shard)] = k;
            k = cursor.map_or(k, |cursor| cursor.parse::<usize>().unwrap() + shards);
            while k < self.plan.open && self.plan.due(k) <= now && ids.len() < most {
                if is_open(&state, k) && state.put_off.get(&k).is_none_or(|due| due.is_some_and(|due| due <= now)) {
                    ids.push(Id(format!("ord_{k}")));
                    next = Some(k.to_string());
                }
                k += shards;
            }
        }
        // A full page says that there may be more.
        let next = next.filter(|_| ids.len() == most);
        // Half a unit for 4 KB, because an index is read with eventual consistency.
        let units = (ids.len() * ENTRY_BYTES).div_ceil(4096).max(1) as f64 / 2.0;
        let is_slow = {
            let now = self.seconds();
            let mut state = self.state();
            state.bill.queries += 1;
            state.bill.read_units += units;
            let partition = &mut state.index_reads[usize::from(shard % MAX_SHARDS)];
            let is_slow = !partition.has_room(units, PARTITION_READS, now);
            partition.take(units, PARTITION_READS, now);
            is_slow
        };
        sleep(if is_slow { QUERY + BACKOFF } else { QUERY }).await;
        Ok(DuePage { ids, next })
    }

    async fn order(&self, task: &Task) -> Result<Option<Order>, Error> {
        self.read(0.5).await;
        let (id, input, created_at) = (task.id.clone(), serde_json::json!({}), task.created_at);
        Ok(Some(Order {
            id,
            tenant: String::new(),
            idempotency_key: String::new(),
            hash: String::new(),
            created_at,
            input,
        }))
    }

    async fn put_output(&self, _: &Id, _: &Hash, _: &str) -> Result<(), Error> {
        unreachable!("no output is long")
    }

    async fn outputs(&self, _: &Id, _: &[Hash]) -> Vec<Result<Option<String>, Error>> {
        unreachable!("no output is long")
    }

    async fn put_workflow(&self, _: &Workflow) -> Result<(), Error> {
        unreachable!("a supervisor has no workflows")
    }

    async fn workflow(&self, _: &Hash) -> Result<Option<Workflow>, Error> {
        self.read(1.0).await;
        Ok(Some(self.workflow.clone()))
    }

    async fn agents(&self) -> Result<shared::control::Agents, Error> {
        self.read(1.0).await;
        Ok(shared::control::Agents::default())
    }
}

impl LeaseStore for Synthetic {
    async fn read(&self, name: &str) -> Result<Option<Lease>, leader::Error> {
        Synthetic::read(self, 1.0).await;
        Ok(self.state().leases.get(name).cloned())
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, leader::Error> {
        sleep(PUT).await;
        let mut state = self.state();
        state.bill.write_units += 1.0;
        let is_seen = state.leases.get(&lease.name) == seen;
        if is_seen {
            state.leases.insert(lease.name.clone(), lease.clone());
        }
        Ok(is_seen)
    }
}

/// The queue of Wakes: counts messages, which arrive after whole seconds, or are dropped.
struct Queue(Arc<Mutex<State>>);

#[async_trait]
impl Messenger for Queue {
    async fn send(&self, effects: Vec<Effect>) -> Vec<Result<(), Error>> {
        {
            let mut state = self.0.lock().unwrap();
            let wakes = effects.iter().filter_map(|effect| match effect {
                Effect::Wake(wake, delay) => Some((wake, Duration::try_from(*delay).unwrap().as_secs_f64().ceil())),
                _ => None,
            });
            let numbers = state.bill.wakes..;
            for ((wake, seconds), number) in wakes.zip(numbers) {
                if let Some(mail) = &mut state.mail {
                    mail.insert((Instant::now() + SEND + Duration::from_secs_f64(seconds), number), wake.clone());
                }
            }
            state.bill.wakes += effects.iter().filter(|e| matches!(e, Effect::Wake(..))).count() as u64;
            state.bill.sqs_requests += effects.len().div_ceil(10) as u64;
        }
        if !effects.is_empty() {
            sleep(SEND).await;
        }
        effects.iter().map(|_| Ok(())).collect()
    }
}

/// The result of a plan.
struct Report {
    bill: Bill,
    /// For each invocation: seconds it ran, orders it recovered, and how many of them the small tenant's were.
    sweeps: Vec<(f64, usize, u64)>,
    /// Largest number of orders by which one shard was ahead of another after a sweep.
    ahead: usize,
    failed: usize,
    /// Virtual time until everything was recovered.
    took: Duration,
}

impl Report {
    fn dollars(&self, memory_mb: f64) -> f64 {
        let prices = Prices::read();
        let price = |name: &str| prices.of("million", name) / 1e6;
        let seconds: f64 = self.sweeps.iter().map(|s| s.0).sum();
        self.bill.read_units * price("read_units")
            + self.bill.write_units * price("write_units")
            + self.bill.sqs_requests as f64 * price("sqs_requests")
            + self.sweeps.len() as f64 * price("invocations")
            + seconds * memory_mb / 1024.0 * price("gb_seconds")
    }
}

/// Starts the supervisor once a minute, as the schedule does, until nothing is overdue.
async fn run(plan: Plan) -> Report {
    let store = Arc::new(Synthetic::new(plan));
    let (state, begun) = (Arc::clone(&store.state), store.begun);
    let clock = Arc::new(move || plus(epoch(), SignedDuration::try_from(begun.elapsed()).unwrap()));
    let config = engine::Config { cache: 1, ..contract::settings("v", clock) };
    let engine = Engine::new(Arc::clone(&store) as _, Arc::new(Queue(Arc::clone(&state))), config);
    let settings = Settings::new(plan.shards, MINUTE);
    let mut report = Report { bill: Bill::default(), sweeps: Vec::new(), ahead: 0, failed: 0, took: Duration::ZERO };
    let mut left = plan.overdue;
    loop {
        let start = Instant::now();
        let small = state.lock().unwrap().tenants[1];
        let mut supervisor = Supervisor::new(&engine, &*store, settings);
        supervisor.stop_at = Some(start + FUNCTION_TIMEOUT - LAST_PAGE);
        let patrol = Box::pin(supervisor.patrol(Duration::ZERO, start));
        let swept = timeout(FUNCTION_TIMEOUT, patrol).await.expect("Lambda killed the function").unwrap();
        assert!(!swept.stood_by, "the lease of the sweep before was not given back");
        left -= swept.expired;
        report.failed += swept.failed;
        report.took = begun.elapsed();
        {
            let state = state.lock().unwrap();
            report.sweeps.push((start.elapsed().as_secs_f64(), swept.expired, state.tenants[1] - small));
            let done = state.first.iter().map(|k| k / usize::from(plan.shards));
            report.ahead = report.ahead.max(done.clone().max().unwrap() - done.min().unwrap());
            report.bill = state.bill.clone();
        }
        if left == 0 {
            return report;
        }
        sleep_until(start + MINUTE).await;
    }
}

/// Rounded up, in groups of three digits.
fn whole(n: f64) -> String {
    let digits = format!("{:.0}", (n - 1e-9).ceil() + 0.0);
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap()).collect();
    groups.join(",")
}

/// Runs a plan and prints a row of docs/scaling.md.
fn simulate(plan: Plan) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let report = runtime.block_on(run(plan));
    let longest = report.sweeps.iter().map(|s| s.0).fold(0.0, f64::max);
    let minutes = report.took.as_secs_f64() / 60.0;
    let took = if minutes < 1.0 { format!("{:.1} s", 60.0 * minutes) } else { format!("{minutes:.0} min") };
    let bill = &report.bill;
    let counts = [plan.overdue as f64, f64::from(plan.shards), plan.memory_mb, report.sweeps.len() as f64].map(whole);
    let units = [bill.queries as f64, bill.read_units, bill.write_units, bill.sqs_requests as f64].map(whole);
    println!(
        "| {} | {longest:.1} s | {took} | {} | {} | {:.4} |",
        counts.join(" | "),
        units.join(" | "),
        whole(bill.throttled as f64),
        report.dollars(plan.memory_mb),
    );
    report
}

/// Open orders: `ORDERS`, or few enough for `cargo test`.
fn open() -> usize {
    std::env::var("ORDERS").map_or(40_000, |n| n.parse().expect("ORDERS is a number"))
}

/// As the template has it by default.
fn usual(overdue: usize) -> Plan {
    Plan { open: open(), overdue, ends: None, shards: 4, memory_mb: 256.0, writes: PARTITION_WRITES }
}

// J1: orders that are open and not overdue cost nothing, however many there are.
#[test]
fn a_sweep_with_nothing_overdue_costs_three_queries_for_each_shard() {
    let report = simulate(usual(0));
    assert_eq!((report.sweeps.len(), report.bill.queries), (1, 12));
    // Half a unit for each query; the lease is read, acquired and released; the state of the agents is read once.
    assert!(report.bill.read_units <= 9.0 && report.bill.write_units == 2.0, "{:?}", report.bill);
    assert_eq!(report.bill.sqs_requests, 0);
}

// B7, J1: a sweep finds all overdue orders if they are few; an order costs its share of a page, one read, three writes
// and a tenth of a request.
#[test]
fn a_sweep_finds_one_order_in_a_thousand() {
    let plan = usual(open() / 1000);
    let report = simulate(plan);
    let (overdue, shards) = (plan.overdue as f64, f64::from(plan.shards));
    // The number of orders for which one run has time, at least.
    assert!(report.sweeps.len() <= 1 + plan.overdue / 8000, "{} sweeps", report.sweeps.len());
    assert_eq!(report.bill.wakes as usize, plan.overdue);
    let pages = 4.0 * shards * report.sweeps.len() as f64 + overdue / 100.0;
    assert!(report.bill.queries as f64 <= pages, "{:?}, at most {pages} pages", report.bill);
    assert!(report.bill.write_units <= 3.0 * overdue + 4.0 * report.sweeps.len() as f64, "{:?}", report.bill);
    // A page of a hundred weighs 15 KB: two units.
    assert!(report.bill.read_units <= 1.02 * overdue + pages / 2.0 + 60.0, "{:?}", report.bill);
    assert!(report.bill.sqs_requests as f64 <= overdue / 10.0 + pages, "{:?}", report.bill);
}

// B7, I6: with everything overdue an invocation does a bounded part and ends in time, the next one continues, and no
// shard and no tenant waits behind another.
#[test]
fn with_everything_overdue_each_sweep_does_its_piece_in_time() {
    let plan = usual(open());
    let report = simulate(plan);
    let sweeps = &report.sweeps;
    let longest = sweeps.iter().map(|s| s.0).fold(0.0, f64::max);
    assert!(longest < (FUNCTION_TIMEOUT - LAST_PAGE).as_secs_f64() + 5.0, "{longest} s");
    assert!(sweeps.len() > 1, "more than one sweep can do");
    assert_eq!(report.bill.wakes as usize, plan.overdue);
    // All but the last one do as much as the processor allows, less the waits at each page.
    let most = 40.0 / CPU.as_secs_f64() * plan.memory_mb / WHOLE_MB;
    for (_, recovered, small) in &sweeps[..sweeps.len() - 1] {
        let done = *recovered as f64 / most;
        assert!((0.8..=1.0).contains(&done), "{recovered} in a sweep, of {most:.0} that there is time for");
        let share = *small as f64 / *recovered as f64;
        assert!((share - 0.01).abs() < 0.002, "the small tenant has {share} of a sweep");
    }
    // A read for each order, two units for a page of a hundred, and a read of the agents' state every two seconds.
    assert!(report.bill.read_units <= 1.02 * plan.overdue as f64 + 40.0 * sweeps.len() as f64, "{:?}", report.bill);
    // A few pages, however many sweeps there were.
    assert!(report.ahead <= 1000, "a shard is {} orders ahead", report.ahead);
}

// With a whole processor the function is no longer the bottleneck: the shards are. Each is a partition of the index
// with a thousand writes per second, and orders whose writes it refuses are found again.
#[test]
fn shards_are_what_a_larger_function_needs() {
    let few = simulate(Plan { shards: 1, memory_mb: WHOLE_MB, ..usual(open()) });
    let many = simulate(Plan { shards: 16, memory_mb: WHOLE_MB, ..usual(open()) });
    assert!(few.sweeps.len() > many.sweeps.len());
    for report in [few, many] {
        assert_eq!(report.bill.wakes as usize, open());
    }
}

// B7: an order whose write a partition refuses is found by a later sweep, and no order is found twice: a slow partition
// costs time, but no Wake.
#[test]
fn what_a_partition_refuses_is_found_by_a_later_sweep() {
    let plan = Plan { shards: 1, memory_mb: WHOLE_MB, writes: 20.0, ..usual(open() / 20) };
    let report = simulate(plan);
    assert!(report.bill.throttled > 0 && report.failed > 0, "{:?}, {} failed", report.bill, report.failed);
    assert_eq!(report.bill.wakes as usize, plan.overdue);
}

/// A limit that a rate of orders may reach.
struct Limit {
    what: String,
    /// What one order per second needs of it.
    each: f64,
    /// What the template and a new account provide.
    now: f64,
    /// The setting's maximum, beyond which a quota must be raised or the design changed.
    most: f64,
    setting: &'static str,
}

/// Orders of three steps with three different agents, stored in 1 KB, in batches of ten; the units are those of
/// `tests/cost.rs`.
fn limits() -> Vec<Limit> {
    /// The time that a remote service takes to answer, in seconds.
    const SERVICE: f64 = 0.1;
    let prices = Prices::read();
    let seconds = |name: &str| prices.of("order", name) / 1000.0;
    let (alone, ten) = (seconds("alone_ms"), seconds("ten_ms"));
    let limit = |what: &str, each, now, most, setting| Limit { what: what.to_owned(), each, now, most, setting };
    let units = |kind: &str, of: &str, each, now| {
        let setting = "warm throughput; the quota of a table";
        limit(&format!("{kind} units per second of {of}"), each, now, 40_000.0, setting)
    };
    vec![
        limit(
            "submissions per second, over HTTP",
            1.0,
            200.0,
            10_000.0,
            "`ApiRateLimit`; the account's quota of 10,000; orders by message",
        ),
        units("write", "table `state`", 6.0, 4000.0),
        units("write", "table `orders`", 2.0, 4000.0),
        limit(
            "write units per second of index `due`",
            2.0,
            4000.0,
            40_000.0,
            "warm throughput of the index; its quota",
        ),
        units("read", "table `state`, if schedulers take turns", 4.0, 12_000.0),
        units("read", "table `orders`, if schedulers take turns", 1.5, 12_000.0),
        limit("shards: 1,000 entries per second each", 2.0 / PARTITION_WRITES, 4.0, 256.0, "`Shards`"),
        limit("buckets: 1,000 write units per second each", 2.0 / PARTITION_WRITES, 4.0, 256.0, "`OrderBuckets`"),
        limit("concurrent batches of Wakes", 0.1 * ten, 20.0, 1000.0, "`SchedulerConcurrency`"),
        limit("concurrent batches of replies", 0.3 * ten, 50.0, 1000.0, "`RepliesConcurrency`"),
        limit("concurrent batches of each agent", 0.1 * (ten + SERVICE), 20.0, 1000.0, "`AgentConcurrency`"),
        limit("concurrent submissions", alone, 1000.0, 1000.0, "the quota of concurrent executions"),
        limit(
            "all concurrent executions of Lambda",
            alone + 0.4 * ten + 0.3 * (ten + SERVICE),
            1000.0,
            1000.0,
            "the quota of concurrent executions",
        ),
        limit("invocations per second", 1.7, 10_000.0, 10_000.0, "ten times the quota of concurrent executions"),
        limit("messages in flight in the reply queue", 3.0 * ten, 120_000.0, 120_000.0, "none needed"),
        limit(
            "events per second, if one order in a hundred raises an alert",
            0.01,
            400.0,
            10_000.0,
            "the Region's quota of PutEvents",
        ),
    ]
}

// J1: what saturates first, at three rates, is computed from what orders need.
#[test]
fn what_saturates_first_is_in_the_document() {
    let mut table = String::from(
        "| what | there is | the setting goes to | at 1,000/s | at 10,000/s | at 100,000/s | what moves it |\n",
    );
    table += "|---|---|---|---|---|---|---|\n";
    let mut over = Vec::new();
    for Limit { what, each, now, most, setting } in limits() {
        table += &format!("| {what} | {} | {} |", whole(now), whole(most));
        let needs = [1e3, 1e4, 1e5].map(|rate| each * rate);
        for need in needs {
            table += &match need {
                need if need > most => format!(" **{}**, over |", whole(need)),
                need if need > now => format!(" **{}** |", whole(need)),
                need => format!(" {} |", whole(need)),
            };
        }
        table += &format!(" {setting} |\n");
        over.push(needs.map(|need| (need > now, need > most)));
    }
    hold("scaling.md", "limits", &table);
    let count = |n: usize| (over.iter().filter(|o| o[n].0).count(), over.iter().filter(|o| o[n].1).count());
    // The document states this in words.
    assert_eq!([count(0), count(1), count(2)], [(2, 0), (12, 2), (15, 10)]);
}
