//! Goal: accepted orders survive `kill -9`, and are done once. Method: the real binary on real files under load over
//! HTTP; its processes are killed at random moments and restarted on the same data. Then the record of the run is
//! checked against the rules of every history, and interrupted orders must have ended soon.
//!
//! There are three processes: one with the data, the API and an instance of all functions, one with another instance of
//! them, and one with the remote services. Messages that the second process holds when it dies stay invisible for
//! minutes: only the supervisor of the first process can continue their orders.
//!
//! `SEED=n` repeats the moments and the faults. `KILLS=n` sets the number of kills, and requires faster recovery.

mod common;

use common::client::{insist, is_final, rest, state};
use common::record::{Checked, Record, Span, keep_saves};
use common::{NORTHWIND, QUICK, Running, Up, directory, failed, free_ports, number, run, start_remotes};
use serde_json::{Value, json};
use shared::time::{SignedDuration, Timestamp};
use std::collections::BTreeSet;
use std::net::TcpListener;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use stepwarden_local::system::SWEEP_EVERY;

/// All orders have ended within this, on any machine.
const PATIENCE: Duration = Duration::from_secs(90);
/// Kills in `cargo test`.
const KILLS: u64 = 20;
/// Number of submitters, each with one order at a time, so that the load adapts to the machine.
const CLIENTS: usize = 10;
/// Number of orders that begin between two kills, within a bounded time, so that a slow machine gets as far as a fast
/// one.
const ORDERS: usize = 12;
const WHILE: Duration = Duration::from_secs(5);
/// Time between two polls of an order.
const LOOK: Duration = Duration::from_millis(100);
/// The timeout of each step of [`QUICK`].
const TIMEOUT: Duration = Duration::from_secs(1);
/// Factor by which a bound is relaxed on a busy machine.
const GENEROUS: u32 = 5;
/// The same factor on an otherwise idle machine, which setting `KILLS` implies.
const STRICT: u32 = 2;

/// A process that can be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Victim {
    /// The process with the data.
    System,
    /// The other instance of all functions.
    Instance,
    /// The remote services.
    Remotes,
    /// Everything at once.
    All,
}

/// One kill: its time, and the time when everything ran again.
struct Kill {
    victim: Victim,
    at: Timestamp,
    restarted: Timestamp,
}

/// The processes of a run.
struct World<'a> {
    dir: &'a Path,
    port: u16,
    seed: u64,
    http: reqwest::Client,
    system: Up,
    instance: Up,
    remotes: Running,
    remotes_url: String,
}

impl<'a> World<'a> {
    async fn start(dir: &'a Path, seed: u64) -> Self {
        let http = common::http();
        // Three for the system, and one for the remote services.
        let port = free_ports(4);
        let (remotes, remotes_url) = start_remotes(dir, &["--port", &(port + 3).to_string(), "--data", "ledger"]);
        let system = Self::start_system(dir, port, &remotes_url);
        keep_saves(&dir.join("data"));
        let instance = Self::start_instance(dir, &system.aws_url, &remotes_url);
        let world = Self { dir, port, seed, http, system, instance, remotes, remotes_url };
        world.set_faults(true).await;
        world
    }

    fn args(remotes_url: &str) -> [String; 4] {
        ["inventory", "fraud", "payment", "shipping"].map(|agent| format!("--remote={agent}={remotes_url}/{agent}"))
    }

    fn start_system(dir: &Path, port: u16, remotes_url: &str) -> Up {
        Up::start_killable(dir, port, "quick", &Self::args(remotes_url).each_ref().map(String::as_str))
    }

    fn start_instance(dir: &Path, aws_url: &str, remotes_url: &str) -> Up {
        let remotes = Self::args(remotes_url);
        let [one, two, three, four] = remotes.each_ref().map(String::as_str);
        Up::start_on(aws_url, dir, &["--port", "0", "--workflows", "quick", one, two, three, four])
    }

    /// Kills a victim, and restarts it on the same data and the same ports.
    async fn kill(&mut self, victim: Victim, has_faults: bool) -> Kill {
        let at = Timestamp::now();
        let is = |one: Victim| victim == one || victim == Victim::All;
        // Kill all first: no process may do anything between two kills.
        for (is_killed, process) in [
            (is(Victim::System), &mut self.system.process),
            (is(Victim::Instance), &mut self.instance.process),
            (is(Victim::Remotes), &mut self.remotes),
        ] {
            if is_killed {
                process.kill();
            }
        }
        if is(Victim::Remotes) {
            let port = (self.port + 3).to_string();
            (self.remotes, _) = start_remotes(self.dir, &["--port", &port, "--data", "ledger"]);
            self.set_faults(has_faults).await;
        }
        if is(Victim::System) {
            self.system = Self::start_system(self.dir, self.port, &self.remotes_url);
        }
        if is(Victim::Instance) {
            self.instance = Self::start_instance(self.dir, &self.system.aws_url, &self.remotes_url);
        }
        Kill { victim, at, restarted: Timestamp::now() }
    }

    async fn set_faults(&self, are_on: bool) {
        // Most calls last 100 ms, so that a kill finds orders with a call in progress even if the system is fast.
        let one = json!({
            "transient": 0.08, "lost_answer": 0.05, "permanent": 0.03, "after_deadline": 0.02,
            "slow": 0.8, "slow_ms": 100,
        });
        let services = if are_on { json!({"inventory": one, "payment": one, "shipping": one}) } else { json!({}) };
        let faults = json!({"seed": self.seed, "services": services});
        let put = self.http.put(format!("{}/faults", self.remotes_url)).json(&faults);
        assert!(put.send().await.unwrap().status().is_success());
    }
}

/// Submits orders until it is stopped: each is repeated under its key until it is accepted, and the next one is
/// submitted when it has ended.
async fn submit(
    http: reqwest::Client,
    url: String,
    record: Arc<Record>,
    next: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
) {
    let goes_on = || !stop.load(Ordering::SeqCst);
    while goes_on() {
        let n = next.fetch_add(1, Ordering::SeqCst);
        let input: Value = serde_json::from_str(NORTHWIND.lines().nth(n % 830).unwrap()).unwrap();
        let workflow = if n.is_multiple_of(4) { "stop" } else { "order" };
        let body = json!({"workflow": workflow, "input": input, "reply_queue": "default"});
        let mut ids = BTreeSet::new();
        // The same key and the same order get the same answer.
        for _ in 0..1 + usize::from(n.is_multiple_of(10)) {
            let post = || http.post(&url).header("idempotency-key", format!("kill-{n}")).json(&body);
            let (answer, _) = insist(202, PATIENCE, post).await;
            let id = answer["order_id"].as_str().unwrap();
            record.accepted(id);
            ids.insert(id.to_owned());
        }
        assert_eq!(ids.len(), 1, "one key is one order");
        let id = ids.pop_first().expect("there is one");
        while goes_on() && !state(&http, &url, &id).await.is_some_and(|state| is_final(&state)) {
            tokio::time::sleep(LOOK).await;
        }
    }
}

// A1, A4, D9, D10, B1, E5: nothing accepted is lost and nothing is done twice, whatever is killed; and what the last kill
// interrupted has ended within two sweeps.
#[tokio::test(flavor = "multi_thread")]
async fn accepted_orders_survive_kills_and_are_done_once() {
    let seed = number("SEED", u64::from(std::process::id()));
    let count = number("KILLS", KILLS).max(1);
    println!("SEED={seed} KILLS={count}");
    let dir = directory();
    let stop_toml = QUICK.replacen("name = \"order\"", "name = \"stop\"\non_failure = \"error\"", 1);
    std::fs::write(dir.path().join("quick/stop.toml"), stop_toml).unwrap();
    let record = Arc::new(Record::create(dir.path().join("record.db")));
    let mut world = World::start(dir.path(), seed).await;
    let (next, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let client = |_| {
        let (http, url) = (world.http.clone(), format!("{}/orders", world.system.url));
        tokio::spawn(submit(http, url, Arc::clone(&record), Arc::clone(&next), Arc::clone(&stop)))
    };
    let clients: Vec<_> = (0..CLIENTS).map(client).collect();
    let mut random = fastrand::Rng::with_seed(seed);
    let mut kills = Vec::new();
    for left in (0..count).rev() {
        let (begin, until) = (Instant::now(), next.load(Ordering::SeqCst) + random.usize(0..ORDERS));
        while next.load(Ordering::SeqCst) < until && begin.elapsed() < WHILE {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        tokio::time::sleep(Duration::from_millis(random.u64(0..100))).await;
        // After the last kill there are no faults, and no message stays invisible for minutes.
        let victim = match random.u8(0..10) {
            _ if left == 0 => Victim::All,
            0..4 => Victim::System,
            4..7 => Victim::Instance,
            7..9 => Victim::Remotes,
            _ => Victim::All,
        };
        kills.push(world.kill(victim, left > 0).await);
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.unwrap();
    }
    let dead = rest(&world.http, &world.system, &record, PATIENCE).await;
    record.take_ledger(&world.http, &world.remotes_url).await;
    world.system.kill();
    record.take_files(&dir.path().join("data"));
    let checked = record.check();
    checked.assert_clean(&format!("SEED={seed}"));
    assert_eq!(dead, 0, "messages were given up; SEED={seed}");
    println!("{} kills, {}: 0 lost, 0 double", kills.len(), checked.words());
    assert!(checked.spans.len() > CLIENTS, "only {} orders; SEED={seed}", checked.spans.len());
    report_recovery(&kills, &checked, seed);
}

/// Time from the restart after kill number `n` until the last order that was open at the kill had ended. `None` if
/// there was no such order, or if the next kill came before that end and so lengthened the time.
fn recovery(kills: &[Kill], n: usize, spans: &[Span]) -> Option<Duration> {
    let kill = &kills[n];
    let open = spans.iter().filter(|span| span.created < kill.at);
    let ended = open.filter_map(|span| span.ended).filter(|ended| *ended > kill.at).max()?;
    let is_whole = kills.get(n + 1).is_none_or(|next| ended <= next.at);
    is_whole.then(|| kill.restarted.duration_until(ended).max(SignedDuration::ZERO).unsigned_abs())
}

fn report_recovery(kills: &[Kill], checked: &Checked, seed: u64) {
    for victim in [Victim::System, Victim::Instance, Victim::Remotes, Victim::All] {
        let own: Vec<usize> = (0..kills.len()).filter(|n| kills[*n].victim == victim).collect();
        let mut all: Vec<_> = own.iter().filter_map(|n| recovery(kills, *n, &checked.spans)).collect();
        all.sort_unstable();
        if let (Some(p50), Some(most)) = (all.get(all.len() / 2), all.last()) {
            let (measured, kills) = (all.len(), own.len());
            println!(
                "  {victim:?}: {kills} kills, of {measured} the orders ended before the next one, recovery p50 {p50:.1?}, \
                 max {most:.1?}"
            );
        }
    }
    // Steps in progress wait for their CompleteBy, but not for a lease: the next instance releases that of the dead
    // one. Two sweeps, because an undo waits for the CompleteBy of all steps in progress.
    let bound = TIMEOUT + SWEEP_EVERY * 2;
    let factor = if std::env::var_os("KILLS").is_some() { STRICT } else { GENEROUS };
    let last = recovery(kills, kills.len() - 1, &checked.spans);
    let last = last.unwrap_or_else(|| panic!("the last kill interrupted no order; SEED={seed}"));
    println!("  after the last kill {last:.1?}; two sweeps of it are {bound:?}, {factor} times that is borne");
    assert!(last < bound * factor, "{last:?} after the last kill, more than {factor} times {bound:?}; SEED={seed}");
}

// A recovery that the next kill interrupted says nothing about the previous kill.
#[test]
fn a_recovery_counts_unless_the_next_kill_interrupts_it() {
    let at = |ms| Timestamp::from_millisecond(ms).unwrap();
    let kill = |ms| Kill { victim: Victim::System, at: at(ms), restarted: at(ms + 100) };
    let span = |created, ended| Span { created: at(created), ended: Some(at(ended)) };
    let kills = [kill(1000), kill(2000), kill(3000)];
    let spans = [span(0, 900), span(900, 1500), span(1900, 3200), span(2900, 3300), span(3100, 9000)];
    let all: Vec<_> = (0..3).map(|n| recovery(&kills, n, &spans)).collect();
    assert_eq!(all, [Some(Duration::from_millis(400)), None, Some(Duration::from_millis(200))]);
    assert_eq!(recovery(&kills, 2, &spans[..2]), None, "it interrupted nothing");
}

// A start that hangs must fail the test instead of hanging it.
#[test]
#[should_panic(expected = "no `ready` within")]
fn a_start_that_says_nothing_is_given_up() {
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "echo hello; exec sleep 600"]);
    let _ = Running::start(command, "ready", Duration::from_millis(300));
}

/// Checks for exit code 2 and one line on standard error that contains all of `words`.
fn is_refused(output: &Output, words: &[&str]) {
    let text = failed(output, 2, words);
    assert_eq!(text.trim_end().lines().count(), 1, "{text}");
}

// Errors that the user can correct: one clear line and exit code 2.
#[test]
fn a_port_in_use_is_said_in_one_line() {
    let dir = directory();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = run(dir.path(), &["up", "--memory", "--port", &port]);
    is_refused(&output, &[&port, "in use", "--port"]);
}

#[test]
fn a_data_directory_in_use_is_said_in_one_line() {
    let dir = directory();
    let up = Up::start(dir.path(), &["--port", "0", "--data", "data"]);
    assert!(up.url.starts_with("http://127.0.0.1:"), "{}", up.url);
    let output = run(dir.path(), &["up", "--port", "0", "--data", "data"]);
    is_refused(&output, &["data", "in use", &up.process.0.id().to_string()]);
}

#[test]
fn a_damaged_database_file_is_said_in_one_line() {
    for file in ["tables.db", "queues.db", "remotes.log"] {
        let dir = directory();
        let data = dir.path().join("data");
        std::fs::create_dir(&data).unwrap();
        std::fs::write(data.join(file), "x".repeat(20_000)).unwrap();
        let output = run(dir.path(), &["up", "--port", "0", "--data", "data"]);
        is_refused(&output, &[file, "damaged", "restore"]);
    }
}

#[test]
fn a_bad_workflow_file_is_named_with_its_line() {
    let dir = directory();
    let file = dir.path().join("quick/order.toml");
    let table = [
        (QUICK.replacen("agent = \"fraud\"", "agent = \"nobody\"", 1), 12, "nobody"),
        (QUICK.replacen("timeout = \"1s\"", "timeout = \"soon\"", 1), 7, "30s"),
        (QUICK.replacen("[[step]]", "[[step]]\nsurprise = 1", 1), 5, "surprise"),
        (format!("{QUICK}["), QUICK.lines().count() + 1, ""),
    ];
    for (text, line, word) in table {
        std::fs::write(&file, text).unwrap();
        let output = run(dir.path(), &["up", "--memory", "--port", "0", "--workflows", "quick"]);
        is_refused(&output, &[&format!("order.toml:{line}:"), word]);
    }
    let output = run(dir.path(), &["up", "--memory", "--workflows", "missing"]);
    is_refused(&output, &["missing"]);
}

// B9: a list says that there are more orders, and how to see them.
#[test]
fn a_list_says_how_it_goes_on() {
    let dir = directory();
    let up = Up::start(dir.path(), &["--port", "0", "--memory"]);
    let text = |args: &[&str]| {
        let output = run(dir.path(), &[args, &["--url", &up.url]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    for order in common::NORTHWIND.lines().take(3) {
        std::fs::write(dir.path().join("order.json"), order).unwrap();
        text(&["submit", "order.json"]);
    }
    let first = text(&["list", "--limit", "2"]);
    let (rows, hint) = first.trim_end().rsplit_once('\n').unwrap();
    let cursor = hint.strip_prefix("more: --cursor ").unwrap_or_else(|| panic!("{first}"));
    let second = text(&["list", "--limit", "2", "--cursor", cursor]);
    let ids = |text: &str| text.split_whitespace().filter(|word| word.starts_with("ord_")).map(str::to_owned).collect();
    let (mut all, rest): (Vec<String>, Vec<String>) = (ids(rows), ids(&second));
    all.extend(rest);
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 3, "{first}{second}");
}
