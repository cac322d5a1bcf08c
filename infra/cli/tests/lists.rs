//! Goal: a list is worked off once, item by item, although the process is killed with `kill -9` at random moments.
//! Method: the real binary on real files; one order starts an order for each item, while the process is killed and restarted on the same
//! data. Then the orders that it started are listed over HTTP and compared with the list.
//!
//! `ITEMS=n` sets the length of the list, `KILLS=n` the number of kills, and `SEED=n` repeats their moments. A long run takes the binary of
//! `cargo build --release -p stepwarden` by `STEPWARDEN=target/release/stepwarden`.

mod common;

use common::client::{ended, insist, submit};
use common::{Up, folder, free_ports, number};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// Items in `cargo test`; at most 10,000.
const ITEMS: u64 = 400;
/// Kills in `cargo test`.
const KILLS: u64 = 5;
/// The order ends within this time on any machine.
const PATIENCE: Duration = Duration::from_secs(300);

const PARENT: &str = r#"
name = "list"
[[step]]
name = "items"
each = "${input.items}"
workflow = "item"
with = { n = "${item}" }
at_once = 50
"#;

const CHILD: &str = r#"
name = "item"
output = { n = "${input.n}" }
[[step]]
name = "work"
agent = "noop"
timeout = "2s"
retry = { max = 50, backoff = ["200ms"] }
"#;

/// What the system answers. It may just have been started, on a busy machine.
async fn read(http: &reqwest::Client, url: &str) -> Value {
    insist(200, PATIENCE, || http.get(url)).await.0
}

/// The inputs of the orders that order `id` started, and how many orders these are.
async fn started(http: &reqwest::Client, url: &str, id: &str) -> (BTreeSet<u64>, u64) {
    let (mut found, mut count, mut cursor) = (BTreeSet::new(), 0, String::new());
    loop {
        let page = format!("{url}/orders?parent={id}&limit=100&cursor={cursor}");
        let page = read(http, &page).await;
        for row in page["orders"].as_array().unwrap() {
            let order = format!("{url}/orders/{}", row["order_id"].as_str().unwrap());
            let order = read(http, &order).await;
            assert_eq!(order["state"], "Processed", "{order}");
            found.insert(order["output"]["n"].as_u64().unwrap());
            count += 1;
        }
        match page["next"].as_str() {
            // It has a `#`, which would end the query.
            Some(next) => cursor = next.replace('#', "%23"),
            None => return (found, count),
        }
    }
}

// M1: each item is done, by one order, whatever moment the process is killed at.
#[tokio::test(flavor = "multi_thread")]
async fn a_list_survives_kills_and_each_item_has_one_order() {
    let seed = number("SEED", u64::from(std::process::id()));
    let (items, kills) = (number("ITEMS", ITEMS), number("KILLS", KILLS));
    println!("SEED={seed} ITEMS={items} KILLS={kills}");
    let dir = folder("lists", &[("list", PARENT), ("item", CHILD)]);
    let port = free_ports(1);
    let start = || Up::start_killable(dir.path(), port, "lists", &[]);
    let mut up = start();
    let (http, url) = (common::http(), up.url.clone());
    let (begin, mut random) = (Instant::now(), fastrand::Rng::with_seed(seed));
    let body = json!({"workflow": "list", "input": {"items": (0..items).collect::<Vec<_>>()}});
    let id = submit(&http, &url, "k", &body).await;

    let order = format!("{url}/orders/{id}");
    for kill in 0..kills {
        // Somewhere in the next part of the list.
        let at = (kill * items + random.u64(0..items)) / kills;
        let done = |order: &Value| {
            let counts = &order["steps"][0]["items"];
            order["state"] == "Processed" || counts["done"].as_u64().is_some_and(|done| done >= at)
        };
        while !done(&read(&http, &order).await) {
            assert!(begin.elapsed() < PATIENCE, "SEED={seed}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        up.kill();
        up = start();
    }
    let order = ended(&http, &url, &id, PATIENCE).await;
    let took = begin.elapsed();
    let counts = &order["steps"][0]["items"];
    assert_eq!((&order["state"], counts["done"].as_u64()), (&json!("Processed"), Some(items)), "SEED={seed}: {order}");
    let (found, count) = started(&http, &url, &id).await;
    assert!(found.iter().copied().eq(0..items), "SEED={seed}: {} of {items} items", found.len());
    assert_eq!(count, items, "SEED={seed}: an item has two orders");
    let saves = order["version"].as_u64().unwrap();
    let most = 2 * items / 50 + took.as_secs() + 10;
    assert!(saves <= most, "SEED={seed}: {saves} saves of the parent, at most {most}");
    println!("{items} items, {kills} kills, {saves} saves of the parent, {took:.1?}: each done by one order");
}
