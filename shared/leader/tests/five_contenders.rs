//! Goal: one leader at a time among processes that are killed at random. Method: five contenders, each a separate
//! process, over one lease table that this process serves over loopback HTTP. They act as fast as they can. Every action
//! writes the leader's token into one shared item, on condition that it has no newer token, and into an item of the
//! contender. Any of them is killed by SIGKILL and replaced. `SEED` replays the victims, `CONTENDERS_FOR_S` runs
//! longer.

use crate::support::{TABLE, leases};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem, Update};
use leader::{CancellationToken, Error, Leadership, Lease, LeaseStore, Settings, run_while_leader};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use stepwarden_aws::{Clients, DynamoLeases};
use stepwarden_embedded::Endpoints;

const CONTENDERS: usize = 5;
const LIFE: Duration = Duration::from_millis(1500);
const SKEW: Duration = Duration::from_millis(100);
const TICK: Duration = Duration::from_millis(150);
/// Maximum number of checks of a dead leader's lease until it is taken: its life and the skew, at half a tick each at
/// least, and one. Twice that, because a check on a busy machine may fail.
const MOST_LOOKS: u32 = 2 * ((LIFE.as_millis() + SKEW.as_millis()) / (TICK.as_millis() / 2) + 1) as u32;

fn s(text: impl Into<String>) -> AttributeValue {
    AttributeValue::S(text.into())
}

fn n(number: u64) -> AttributeValue {
    AttributeValue::N(number.to_string())
}

/// Counts the checks of one unchanged record.
struct Looks {
    leases: DynamoLeases,
    same: Mutex<(Option<Lease>, u32)>,
}

impl LeaseStore for Looks {
    async fn read(&self, name: &str) -> Result<Option<Lease>, Error> {
        let found = self.leases.read(name).await?;
        let mut same = self.same.lock().unwrap();
        if same.0 == found {
            same.1 += 1;
        } else {
            *same = (found.clone(), 1);
        }
        Ok(found)
    }

    async fn replace(&self, lease: &Lease, seen: Option<&Lease>) -> Result<bool, Error> {
        self.leases.replace(lease, seen).await
    }
}

/// What one contender's process does until it is killed. Run by the test below, not by hand.
#[test]
#[ignore = "the process of one contender, started by five_contenders_killed_at_random_never_lead_at_once"]
fn contender() {
    let Ok(url) = std::env::var("CONTENDER_URL") else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Clients::unsigned(&url).dynamodb;
        let store = Looks { leases: DynamoLeases::new(client.clone(), TABLE), same: Mutex::default() };
        let name = format!("p{}", std::process::id());
        let settings = Settings { poll_every: TICK, skew: SKEW, ..Settings::new("acts", &name, LIFE) };
        let never = CancellationToken::new();
        loop {
            let ended = run_while_leader(&store, &settings, &never, |leadership| {
                let looks = store.same.lock().unwrap().1;
                println!("\nELECTED {} {looks}", leadership.token());
                act(&client, leadership, &name)
            });
            let ended = ended.await;
            println!("\nENDED {ended:?}");
        }
    });
}

/// Acts until it must stop; now and then it gives up voluntarily.
async fn act(client: &Client, leadership: Leadership, name: &str) {
    let token = leadership.token();
    for number in 1u64.. {
        if leadership.cause().is_some() || fastrand::u32(..200) == 0 {
            return;
        }
        let fence = Update::builder()
            .table_name(TABLE)
            .key("pk", s("fence"))
            .update_expression("SET newest = :token")
            .condition_expression("attribute_not_exists(newest) OR newest <= :token")
            .expression_attribute_values(":token", n(token))
            .build()
            .unwrap();
        let put = Put::builder()
            .table_name(TABLE)
            .item("pk", s(format!("act#{token:06}#{number:06}")))
            .item("by", s(name))
            .item("token", n(token))
            .condition_expression("attribute_not_exists(pk)")
            .build()
            .unwrap();
        let items = [TransactWriteItem::builder().update(fence).build(), TransactWriteItem::builder().put(put).build()];
        if let Err(error) = client.transact_write_items().set_transact_items(Some(items.to_vec())).send().await {
            println!("\nREFUSED {token} {number} {:?}", error.into_service_error());
            return;
        }
        leadership.progress();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct Running {
    child: Child,
    id: u32,
}

fn start(url: &str, lines: &Sender<(u32, String)>) -> Running {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["five_contenders::contender", "--exact", "--ignored", "--nocapture"])
        .env("CONTENDER_URL", url)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (out, id, lines) = (child.stdout.take().unwrap(), child.id(), lines.clone());
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok).filter(|line| !line.is_empty()) {
            let _ = lines.send((id, line));
        }
    });
    Running { child, id }
}

// I1, I2, I5, I7: five processes, killed at random.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_contenders_killed_at_random_never_lead_at_once() {
    let env = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = env("SEED").unwrap_or_else(|| fastrand::u64(..));
    let run_for = Duration::from_secs(env("CONTENDERS_FOR_S").unwrap_or(15));
    println!("SEED={seed} CONTENDERS_FOR_S={}", run_for.as_secs());

    let endpoints = Endpoints::open(&Default::default()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = endpoints.clone();
    tokio::spawn(async move { serving.serve(listener, std::future::pending()).await });
    let clients = Clients::unsigned(&url);
    leases(&clients).await;

    let (sender, lines) = channel();
    let game = tokio::task::spawn_blocking({
        let url = url.clone();
        move || play(&url, seed, run_for, &sender, &lines)
    });
    let elected = game.await.unwrap();

    let mut acts = Vec::new();
    let mut pages = clients.dynamodb.scan().table_name(TABLE).consistent_read(true).into_paginator().items().send();
    while let Some(item) = pages.next().await {
        let item = item.unwrap();
        if let (Some(AttributeValue::S(by)), Some(AttributeValue::N(token))) = (item.get("by"), item.get("token")) {
            acts.push((token.parse::<u64>().unwrap(), by.clone()));
        }
    }
    let mut by_token = BTreeMap::new();
    for (token, by) in &acts {
        assert_eq!(
            by_token.entry(*token).or_insert_with(|| by.clone()),
            by,
            "two acted with token {token}, SEED={seed}"
        );
    }
    println!("{} acts under {} tokens, {} elections", acts.len(), by_token.len(), elected.len());
    assert!(acts.len() > 50 && by_token.len() > 3, "too little happened, SEED={seed}");
}

/// Kills and replaces; answers the tokens elected, in the order in which they were heard of.
fn play(
    url: &str,
    seed: u64,
    run_for: Duration,
    sender: &Sender<(u32, String)>,
    lines: &Receiver<(u32, String)>,
) -> Vec<u64> {
    let mut draw = fastrand::Rng::with_seed(seed);
    let mut running: Vec<Running> = (0..CONTENDERS).map(|_| start(url, sender)).collect();
    let (mut elected, mut leader) = (BTreeMap::new(), None);
    let begun = Instant::now();
    let mut next_kill = begun + 2 * LIFE;
    while begun.elapsed() < run_for {
        if let Ok((id, line)) = lines.recv_timeout(TICK) {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["ELECTED", token, looks] => {
                    let (token, looks): (u64, u32) = (token.parse().unwrap(), looks.parse().unwrap());
                    let before = elected.insert(token, id);
                    assert_eq!(before, None, "two were elected under token {token}, SEED={seed}");
                    assert!(looks <= MOST_LOOKS, "a lease stood still for {looks} looks, SEED={seed}");
                    leader = Some(id);
                }
                // A newer leader came before its end was known here: refused by the fence, as it must be.
                ["REFUSED", ..] => println!("{line}"),
                _ => {}
            }
        }
        if Instant::now() >= next_kill {
            // Every other time the leader, if one is known.
            let at_random = draw.usize(..CONTENDERS);
            let of_leader = running.iter().position(|r| Some(r.id) == leader).filter(|_| draw.bool());
            let victim = of_leader.unwrap_or(at_random);
            let mut dead = std::mem::replace(&mut running[victim], start(url, sender));
            dead.child.kill().unwrap();
            dead.child.wait().unwrap();
            next_kill = Instant::now() + LIFE.mul_f64(0.3 + draw.f64());
        }
    }
    for mut one in running {
        one.child.kill().unwrap();
        one.child.wait().unwrap();
    }
    elected.into_keys().collect()
}
