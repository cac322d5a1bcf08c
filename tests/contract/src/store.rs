//! What every state store must answer.

use crate::{at, next, pair, until, workflow};
use futures::future::join_all;
use serde_json::json;
use shared::control::{Agents, Pause};
use shared::order::Order;
use shared::overload::{Wait, Waits};
use shared::ports::{Created, Error, Saved, StateStore};
use shared::strain::Strain;
use shared::task::{Phase, ProcessState, Task, URGENT, moved};
use shared::time::Timestamp;
use shared::workflow::Hash;
use std::collections::BTreeMap;

/// All that every [`StateStore`] promises; for what only some promise see [`agents`], [`sizes`] and [`attention`].
pub async fn suite(store: &dyn StateStore) {
    submission(store).await;
    many_submissions(store).await;
    saves(store).await;
    many_saves(store).await;
    many_reads(store).await;
    older_tokens(store).await;
    rearming(store).await;
    due_index(store).await;
    definitions(store).await;
    outputs(store).await;
}

/// An output is found under its order and its hash, however often it was written.
async fn outputs(store: &dyn StateStore) {
    let text = json!({"rows": ["x".repeat(200 * 1024)], "id": 7}).to_string();
    let (hash, other) = (Hash::of(text.as_bytes()), Hash::of(b"other"));
    let [(_, one), (_, two)] = [pair("outputs-1", 0), pair("outputs-2", 0)];
    for _ in 0..2 {
        store.put_output(&one.id, &hash, &text).await.unwrap();
    }
    let read = store.outputs(&one.id, &[other.clone(), hash.clone()]).await;
    assert_eq!(read.into_iter().map(Result::unwrap).collect::<Vec<_>>(), [None, Some(text)]);
    assert!(matches!(store.outputs(&two.id, &[hash]).await[..], [Ok(None)]), "it belongs to another order");
}

/// Both records are written or none, and only once.
async fn submission(store: &dyn StateStore) {
    let (order, task) = pair("submission", 0);
    assert_eq!(store.load(&task.id).await.unwrap(), None);
    assert_eq!(store.order(&task).await.unwrap(), None);
    assert_eq!(store.create(&order, &task).await.unwrap(), Created::New);
    assert_eq!(store.load(&task.id).await.unwrap().as_ref(), Some(&task));
    assert_eq!(store.order(&task).await.unwrap().as_ref(), Some(&order));
    // The transaction's other half must not be written either.
    let other = Order { input: json!({"other": true}), ..order.clone() };
    let changed = Task { reference: Some("other".into()), ..task.clone() };
    assert_eq!(store.create(&other, &changed).await.unwrap(), Created::Exists);
    assert_eq!(store.order(&task).await.unwrap(), Some(order));
    assert_eq!(store.load(&task.id).await.unwrap(), Some(task));
}

/// I7 of the protocol: of many submissions under one id one is new.
async fn many_submissions(store: &dyn StateStore) {
    let (order, task) = pair("many-submissions", 0);
    let all = join_all((0..8).map(|_| store.create(&order, &task))).await;
    let (new, other): (Vec<_>, Vec<_>) = all.into_iter().partition(|a| matches!(a, Ok(Created::New)));
    assert_eq!(new.len(), 1, "{other:?}");
    // A TransactionConflict that outlasts the store's retries is an outage for its caller, which tries again.
    assert!(other.iter().all(|a| matches!(a, Ok(Created::Exists) | Err(Error::Unavailable { .. }))), "{other:?}");
}

/// A save is applied only to the version that it read, and otherwise returns the stored task.
async fn saves(store: &dyn StateStore) {
    let (order, task) = pair("saves", 0);
    assert_eq!(store.save(&next(&task, "early"), 0).await.unwrap(), Saved::Conflict(None));
    store.create(&order, &task).await.unwrap();
    let first = next(&task, "first");
    assert_eq!(store.save(&first, 0).await.unwrap(), Saved::Applied);
    let late = next(&task, "late");
    assert_eq!(store.save(&late, 0).await.unwrap(), Saved::Conflict(Some(Box::new(first.clone()))));
    let ahead = Task { version: 9, ..next(&first, "ahead") };
    assert_eq!(store.save(&ahead, 8).await.unwrap(), Saved::Conflict(Some(Box::new(first.clone()))));
    assert_eq!(store.load(&task.id).await.unwrap(), Some(first));
}

/// Of many saves at one version one is applied.
async fn many_saves(store: &dyn StateStore) {
    let (order, task) = pair("many-saves", 0);
    store.create(&order, &task).await.unwrap();
    let tries: Vec<_> = (0..16).map(|n| next(&task, &format!("s{n}"))).collect();
    let all = join_all(tries.iter().map(|t| store.save(t, 0))).await;
    let winners: Vec<_> = all.iter().zip(&tries).filter(|(a, _)| matches!(a, Ok(Saved::Applied))).collect();
    assert_eq!(winners.len(), 1, "{all:?}");
    assert_eq!(store.load(&task.id).await.unwrap().as_ref(), Some(winners[0].1));
}

/// Records that are requested together are answered one by one, in order: more than fit into one request, repeated
/// ones, and missing ones.
async fn many_reads(store: &dyn StateStore) {
    let pairs: Vec<_> = (0..130).map(|n| pair(&format!("read-{n}"), 6)).collect();
    for (order, task) in pairs.iter().step_by(2) {
        store.create(order, task).await.unwrap();
    }
    let (order, task) = &pairs[4];
    let moved = next(task, "moved");
    assert_eq!(store.save(&moved, 0).await.unwrap(), Saved::Applied);
    let asked: Vec<_> = pairs.iter().map(|(_, task)| task).chain([task, task]).collect();
    let ids: Vec<_> = asked.iter().map(|task| task.id.clone()).collect();
    let is_there = |n: usize| n.is_multiple_of(2) || n >= pairs.len();
    let last = |n: usize| if asked[n].id == task.id { &moved } else { asked[n] };
    let loaded = store.load_all(&ids).await;
    assert_eq!(loaded.len(), ids.len());
    for (n, loaded) in loaded.into_iter().enumerate() {
        assert_eq!(loaded.unwrap().as_ref(), is_there(n).then(|| last(n)), "task {n}, as the last save left it");
    }
    let orders = store.orders(&asked).await;
    assert_eq!(orders.len(), asked.len());
    for (n, found) in orders.into_iter().enumerate() {
        let wanted = pairs.get(n).map_or(order, |(order, _)| order);
        assert_eq!(found.unwrap().as_ref(), is_there(n).then_some(wanted), "order {n}");
    }
    assert!(store.load_all(&[]).await.is_empty() && store.orders(&[]).await.is_empty());
}

/// I8 of the protocol: an older leader's write never applies after a newer leader's.
async fn older_tokens(store: &dyn StateStore) {
    let (order, task) = pair("older-tokens", 4);
    store.create(&order, &task).await.unwrap();
    let newer = Task { lease_token: 7, ..next(&task, "newer") };
    assert_eq!(store.save(&newer, 0).await.unwrap(), Saved::Applied);
    let older = Task { lease_token: 6, ..next(&newer, "older") };
    assert_eq!(store.save(&older, 1).await.unwrap(), Saved::Conflict(Some(Box::new(newer.clone()))));
    store.rearm(&newer, Some(at(60_000)), 6).await.unwrap();
    assert_eq!(store.load(&task.id).await.unwrap().as_ref(), Some(&newer), "nor does an older one's due time");
    let same = Task { lease_token: 7, ..next(&newer, "same") };
    assert_eq!(store.save(&same, 1).await.unwrap(), Saved::Applied);
}

/// Rearming changes only the due time, and only at its version.
async fn rearming(store: &dyn StateStore) {
    let (order, task) = pair("rearming", 5);
    store.rearm(&task, Some(at(1)), 1).await.unwrap();
    assert_eq!(store.load(&task.id).await.unwrap(), None, "what is not there is not made by it");
    store.create(&order, &task).await.unwrap();
    store.rearm(&task, Some(at(9_000)), 2).await.unwrap();
    let armed = Task { due: Some(at(9_000)), lease_token: 2, shard: moved(task.shard), ..task.clone() };
    assert_eq!(store.load(&task.id).await.unwrap(), Some(armed.clone()));
    let saved = Task { lease_token: 2, ..next(&armed, "saved") };
    assert_eq!(store.save(&saved, 0).await.unwrap(), Saved::Applied);
    store.rearm(&armed, Some(at(1)), 3).await.unwrap();
    assert_eq!(store.load(&task.id).await.unwrap().as_ref(), Some(&saved));
    store.rearm(&saved, None, 3).await.unwrap();
    let gone = store.load(&task.id).await.unwrap().unwrap();
    // The former shard of a task that has left the index does not matter.
    assert_eq!(gone, Task { due: None, lease_token: 3, shard: gone.shard, ..saved });
}

/// Everything of a shard that is due, over pages of two.
async fn walk(store: &dyn StateStore, shard: u16, now: Timestamp) -> Vec<String> {
    let (mut ids, mut cursor) = (Vec::new(), None);
    loop {
        let page = store.due(shard, now, 2, cursor.as_deref()).await.unwrap();
        assert!(page.ids.len() <= 2, "no more than wanted");
        ids.extend(page.ids.into_iter().map(|id| id.0));
        cursor = page.next;
        if cursor.is_none() {
            return ids;
        }
    }
}

/// The due index pages through what is due, most overdue first.
async fn due_index(store: &dyn StateStore) {
    const SHARD: u16 = 9;
    let mut all = Vec::new();
    for n in [4, 1, 3, 0, 2, 9] {
        let (order, task) = pair(&format!("t{n}"), SHARD);
        let task = Task { due: Some(at(n * 1000)), ..task };
        store.create(&order, &task).await.unwrap();
        all.push(task);
    }
    let shows = async |shard: u16, ids: &[&str]| {
        until(&format!("shard {shard} shows {ids:?}"), async || {
            (walk(store, shard, at(4000)).await == ids).then_some(())
        })
        .await;
    };
    let due = ["ord_t0", "ord_t1", "ord_t2", "ord_t3", "ord_t4"];
    shows(SHARD, &due).await;
    assert!(walk(store, SHARD - 1, at(9000)).await.is_empty(), "another shard");
    // Urgent tasks have their own shards, above all others.
    let (order, task) = pair("urgent", URGENT + SHARD);
    store.create(&order, &Task { due: Some(at(0)), ..task }).await.unwrap();
    shows(URGENT + SHARD, &["ord_urgent"]).await;
    shows(SHARD, &due).await;
    let armed = store.load(&all[2].id).await.unwrap().unwrap();
    store.rearm(&armed, Some(at(3500)), 0).await.unwrap();
    // The task that was moved is in another part.
    shows(moved(SHARD), &["ord_t3"]).await;
    // A task that owes nothing leaves the index with the save that ends it.
    let ended = Task { due: None, phase: Phase::Processed, ..next(&all[3], "end") };
    assert_eq!(ended.process_state(), ProcessState::Processed);
    store.save(&ended, 0).await.unwrap();
    shows(SHARD, &["ord_t1", "ord_t2", "ord_t4"]).await;
    let ended = store.load(&ended.id).await.unwrap().unwrap();
    assert_eq!((ended.due, ended.shard), (None, SHARD), "it comes back to its own shard, should it go on");
}

/// A definition is kept under its hash.
async fn definitions(store: &dyn StateStore) {
    let workflow = workflow();
    assert_eq!(store.workflow(&workflow.hash()).await.unwrap(), None);
    for _ in 0..2 {
        store.put_workflow(&workflow).await.unwrap();
        assert_eq!(store.workflow(&workflow.hash()).await.unwrap().as_ref(), Some(&workflow));
    }
}

/// A task that waits for a person is found until it no longer waits.
pub async fn attention(store: &dyn StateStore) {
    let (order, task) = pair("attention", 0);
    store.create(&order, &task).await.unwrap();
    let found = async || store.attention(10, None).await.unwrap().ids;
    assert!(found().await.is_empty());
    let stopped = Task { phase: Phase::Error, due: None, ..next(&task, "stopped") };
    store.save(&stopped, 0).await.unwrap();
    until("it is found", async || (found().await == [task.id.clone()]).then_some(())).await;
    // A second task that stopped later follows, on a separate page.
    let (order, second) = pair("attention-2", 0);
    store.create(&order, &second).await.unwrap();
    let later = Task { phase: Phase::UndoError, due: None, updated_at: at(9), ..next(&second, "stopped") };
    store.save(&later, 0).await.unwrap();
    until("both are found", async || (found().await == [task.id.clone(), second.id.clone()]).then_some(())).await;
    let page = store.attention(1, None).await.unwrap();
    assert_eq!(page.ids, std::slice::from_ref(&task.id));
    let page = store.attention(1, page.next.as_deref()).await.unwrap();
    assert_eq!(page.ids, std::slice::from_ref(&second.id));
    let resumed = Task { phase: Phase::Forward, due: Some(at(0)), ..next(&stopped, "resumed") };
    store.save(&resumed, 1).await.unwrap();
    until("only the second is left", async || (found().await == [second.id.clone()]).then_some(())).await;
}

/// The state of agents and queues is kept entry by entry, in a store that several programs share. `pause` pauses an
/// agent, or resumes it.
pub async fn agents(store: &dyn StateStore, pause: impl AsyncFn(&str, Option<&Pause>) -> Result<(), Error>) {
    assert_eq!(store.agents().await.unwrap(), Agents::default());
    let paused = |by: &str| Pause { by: by.into(), reason: "reason".into(), since: at(1) };
    let wait = |ms: i64| Waits::from([("tenant".to_owned(), Wait { ms, at: at(2) })]);
    let strain = |held: u32| Strain { since: at(3), last: at(3), stretch: 2, held, looked_at: 30, alert_owed: true };
    let (operator, urgent, ordinary) = (paused("a"), wait(1500), wait(9000));
    // Operators, supervisors and schedulers change entries at once: none overwrites another one's entry.
    let (a, b, c) = futures::join!(
        pause("inventory", Some(&operator)),
        store.note_wait("agent-payment-b-high", &urgent),
        store.note_wait("scheduler", &ordinary),
    );
    assert!(a.is_ok() && b.is_ok() && c.is_ok(), "{a:?} {b:?} {c:?}");
    pause("payment", Some(&paused("b"))).await.unwrap();
    store.note_wait("scheduler", &wait(100)).await.unwrap();
    pause("inventory", None).await.unwrap();
    pause("inventory", None).await.unwrap();
    let stands = store.agents().await.unwrap();
    assert_eq!(stands.paused, BTreeMap::from([("payment".to_owned(), paused("b"))]));
    let waits = [("agent-payment-b-high".to_owned(), wait(1500)), ("scheduler".to_owned(), wait(100))];
    assert_eq!(stands.waits, BTreeMap::from(waits));

    // Of several supervisors that see the same strain, one records it.
    let strains: Vec<_> = (10..18).map(strain).collect();
    let all = join_all(strains.iter().map(|strain| store.save_strain("payment", strain, None))).await;
    let won: Vec<_> = strains.iter().zip(&all).filter(|(_, answer)| matches!(answer, Ok(true))).collect();
    assert_eq!(won.len(), 1, "{all:?}");
    let first = won[0].0;
    assert!(!store.save_strain("payment", &strain(20), Some(&strain(19))).await.unwrap(), "nobody saw that one");
    assert!(store.save_strain("payment", &strain(20), Some(first)).await.unwrap());
    assert!(!store.save_strain("inventory", &strain(1), Some(&strain(1))).await.unwrap(), "there was none");
    let stands = store.agents().await.unwrap();
    assert_eq!(stands.strained, BTreeMap::from([("payment".to_owned(), strain(20))]));
    assert_eq!((stands.paused.len(), stands.waits.len()), (1, 2));
}

/// In a store with DynamoDB's limits, an order near the limit of an item is stored, and one beyond it is refused.
pub async fn sizes(store: &dyn StateStore) {
    let (order, task) = pair("large", 0);
    let large = |bytes: usize| Order { input: json!("x".repeat(bytes)), ..order.clone() };
    let refused = store.create(&large(400 * 1024), &task).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!(store.load(&task.id).await.unwrap(), None);
    let kept = large(380 * 1024);
    assert_eq!(store.create(&kept, &task).await.unwrap(), Created::New);
    assert_eq!(store.order(&task).await.unwrap(), Some(kept));
    let grown = Task { reference: Some("x".repeat(400 * 1024)), ..next(&task, "grown") };
    let refused = store.save(&grown, 0).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })), "{refused:?}");
    assert_eq!(store.load(&task.id).await.unwrap(), Some(task));
}
