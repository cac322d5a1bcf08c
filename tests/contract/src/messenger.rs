//! What every messenger must answer, and what must arrive in its queues.

use crate::{PATIENCE, at, pair};
use serde_json::{Value, from_value, json};
use shared::message::{AlertEvent, Effect, Notice, NoticeKind, Outcome, Reply, Request, SetAside, Wake};
use shared::order::Id;
use shared::ports::{Error, Messenger};
use shared::queues;
use shared::retry::Calls;
use shared::step::Direction;
use shared::strain::Strain;
use shared::task::{Priority, ProcessState};
use shared::time::SignedDuration;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// The longest message that a queue must accept, in bytes: below SQS's 1 MiB, with room for its attributes.
pub const LARGE: usize = 900 * 1024;

/// A messenger, and the queues it sends to: of the agents `inventory` and `payment`, of which the latter has the pools
/// `payment` and `payment-b`, with a queue for each priority, and of one submitter.
pub trait Place {
    /// Name of the submitter's queue.
    const REPLY_QUEUE: &'static str;
    /// The type of the messenger.
    type Messenger: Messenger;
    /// The messenger.
    fn messenger(&self) -> &Self::Messenger;
    /// Receives and deletes messages of a queue: their bodies, in any order. Waits a little if there are none.
    fn receive(&self, queue: &str) -> impl Future<Output = Vec<Value>> + Send;
}

/// All that a [`Messenger`] promises.
pub async fn suite<P: Place>(place: &P) {
    every_effect(place).await;
    every_character(place).await;
    classes_and_pools(place).await;
    more_than_a_batch(place).await;
    delays(place).await;
    what_cannot_be_sent(place).await;
    near_the_limit(place).await;
}

/// `count` messages of a queue, received and deleted.
///
/// # Panics
/// If they do not come, or others do.
pub async fn take<P: Place>(place: &P, queue: &str, count: usize) -> Vec<Value> {
    let (begin, mut taken) = (Instant::now(), Vec::new());
    while taken.len() < count {
        assert!(begin.elapsed() < PATIENCE, "{} of {count} messages came to {queue}", taken.len());
        taken.extend(place.receive(queue).await);
    }
    assert_eq!(taken.len(), count, "{queue}");
    taken
}

/// The one message in a queue.
async fn one<P: Place>(place: &P, queue: &str) -> Value {
    take(place, queue, 1).await.remove(0)
}

/// A request for the step `pay`.
pub fn request(n: usize, agent: &str, tenant: &str) -> Request {
    Request {
        task_id: Id(format!("ord_{n}")),
        step: "pay".into(),
        agent: agent.into(),
        pool: None,
        http: None,
        call: None,
        held: None,
        aws: None,
        look: None,
        callback: None,
        heartbeat: None,
        accept: None,
        delay_ms: 0,
        direction: Direction::Do,
        attempt: 1,
        reminder: None,
        idempotency_key: format!("ord_{n}:pay:do"),
        complete_by: at(0),
        calls: Calls { attempts: 4, base: SignedDuration::from_millis(100), cap: SignedDuration::from_secs(1) },
        tenant: tenant.into(),
        priority: Priority::Normal,
        input: pair("x", 0).0.input,
        outputs: BTreeMap::new(),
        output: None,
        undoes: None,
        traceparent: None,
    }
}

fn sent(request: Request) -> Effect {
    Effect::Request(Box::new(request))
}

/// A Wake.
pub fn wake(n: usize, delay_ms: i64) -> Effect {
    let wake = Wake {
        hint: false,
        step: Some("lines".into()),
        task_id: Id(format!("ord_{n}")),
        seen: 1,
        hops: 0,
        traceparent: None,
        tenant: "tenant".into(),
        priority: Priority::Normal,
    };
    Effect::Wake(wake, SignedDuration::from_millis(delay_ms))
}

/// A message that is set aside.
pub fn aside(message_id: &str, reason: &str, body: &str) -> SetAside {
    let (queue, message_id) = ("scheduler".into(), message_id.into());
    SetAside { queue, message_id, reason: reason.into(), body: body.into(), is_cut: false }
}

async fn send_all<P: Place>(place: &P, effects: Vec<Effect>) {
    let results = place.messenger().send(effects).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}

fn notice(queue: &str) -> Notice {
    Notice {
        queue: queue.into(),
        kind: NoticeKind::Completed,
        order_id: Id("ord_n".into()),
        tenant: "tenant".into(),
        workflow: "order".into(),
        reference: None,
        seq: 4,
        at: at(0),
        state: ProcessState::Processed,
        step: None,
        reason: None,
        undo_from: None,
        traceparent: None,
        history: Vec::new(),
    }
}

/// Every effect reaches its queue unchanged.
async fn every_effect<P: Place>(place: &P) {
    let outcome = Outcome::Done { output: pair("x", 0).0.input };
    let reply = Reply { tenant: "tenant".into(), ..Reply::new(Id("ord_r".into()), "pay", 1, outcome) };
    let aside = aside("m", "no message", "{");
    let alert = AlertEvent::unreadable(&Id("ord_a".into()), "reason");
    let strain = Strain { since: at(0), last: at(0), stretch: 2, held: 10, looked_at: 30, alert_owed: true };
    let pay = request(1, "payment", "tenant");
    let effects = vec![
        Effect::Strained(Box::new(strain.event("payment"))),
        sent(pay.clone()),
        wake(1, 0),
        Effect::Reply(Box::new(reply.clone())),
        Effect::Notice(Box::new(notice(P::REPLY_QUEUE))),
        Effect::SetAside(Box::new(aside.clone())),
        Effect::Alert(Box::new(alert)),
    ];
    send_all(place, effects).await;
    assert_eq!(place.messenger().send(Vec::new()).await.len(), 0);
    assert_eq!(from_value::<Request>(one(place, &queues::agent("payment")).await).unwrap(), pay);
    let got = one(place, queues::SCHEDULER).await;
    assert_eq!((&got["type"], &got["task_id"]), (&json!("wake"), &json!("ord_1")));
    let wanted = Reply { tenant: String::new(), ..reply };
    assert_eq!(from_value::<Reply>(one(place, queues::REPLIES).await).unwrap(), wanted, "the tenant is for the queue");
    assert_eq!(from_value::<Notice>(one(place, &queues::notices(P::REPLY_QUEUE)).await).unwrap(), notice(""));
    assert_eq!(from_value::<SetAside>(one(place, queues::SET_ASIDE).await).unwrap(), aside);
}

/// Any text of an order, an answer or a person reaches the queue unchanged, although SQS accepts only the characters of
/// XML 1.0 (AWS, "SendMessage").
async fn every_character<P: Place>(place: &P) {
    let all: String =
        (0..0x2f).chain(0x7f..0xa0).chain(0xfdd0..0xfdf0).chain(0xfff0..0x1_0000).filter_map(char::from_u32).collect();
    let all = format!("{all}\u{1fffe}\u{10ffff}");
    let asked = Request {
        input: json!({ all.clone(): all }),
        outputs: [("first".to_owned(), json!([all]))].into(),
        ..request(1, "payment", &all)
    };
    let told = Notice { reference: Some(all.clone()), reason: Some(all.clone()), ..notice(P::REPLY_QUEUE) };
    let replied = Reply::to(&asked, Outcome::Unavailable { error: all.clone(), retry_after_ms: None });
    let aside = aside("m", &all, &all);
    let effects = vec![
        sent(asked.clone()),
        Effect::Reply(Box::new(replied.clone())),
        Effect::Notice(Box::new(told.clone())),
        Effect::SetAside(Box::new(aside.clone())),
    ];
    send_all(place, effects).await;
    assert_eq!(from_value::<Request>(one(place, &queues::agent("payment")).await).unwrap(), asked);
    let wanted = Reply { tenant: String::new(), ..replied };
    assert_eq!(from_value::<Reply>(one(place, queues::REPLIES).await).unwrap(), wanted);
    let wanted = Notice { queue: String::new(), ..told };
    assert_eq!(from_value::<Notice>(one(place, &queues::notices(P::REPLY_QUEUE)).await).unwrap(), wanted);
    assert_eq!(from_value::<SetAside>(one(place, queues::SET_ASIDE).await).unwrap(), aside);
}

/// J2, J3: high priority, low priority and each further pool have their own queues.
async fn classes_and_pools<P: Place>(place: &P) {
    let requested = |n: usize, pool: Option<&str>, priority: Priority| {
        sent(Request { pool: pool.map(str::to_owned), priority, ..request(n, "payment", "tenant") })
    };
    let woken = |n: usize, priority: Priority| match wake(n, 0) {
        Effect::Wake(wake, delay) => Effect::Wake(Wake { priority, ..wake }, delay),
        _ => unreachable!(),
    };
    let effects = vec![
        requested(1, None, Priority::High),
        requested(2, Some("payment-b"), Priority::Low),
        requested(3, Some("payment-b"), Priority::Normal),
        woken(4, Priority::High),
        woken(5, Priority::Low),
    ];
    send_all(place, effects).await;
    let queues = ["agent-payment-high", "agent-payment-b-low", "agent-payment-b", "scheduler-high", "scheduler"];
    for (n, queue) in (1..).zip(queues) {
        assert_eq!(one(place, queue).await["task_id"], format!("ord_{n}"), "{queue}");
    }
}

/// More than a batch arrives, once each.
async fn more_than_a_batch<P: Place>(place: &P) {
    send_all(place, (0..23).map(|n| sent(request(n, "payment", "tenant"))).collect()).await;
    let taken = take(place, &queues::agent("payment"), 23).await;
    let mut ids: Vec<_> = taken.iter().map(|body| body["task_id"].as_str().unwrap().to_owned()).collect();
    ids.sort();
    let mut wanted: Vec<_> = (0..23).map(|n| format!("ord_{n}")).collect();
    wanted.sort();
    assert_eq!(ids, wanted);
}

/// A delayed Wake arrives after its delay, and not before.
async fn delays<P: Place>(place: &P) {
    let begin = Instant::now();
    send_all(place, vec![wake(1, 1_500)]).await;
    take(place, queues::SCHEDULER, 1).await;
    // SQS accepts whole seconds, and a wait is never shortened. Endpoints that count in seconds of the wall clock may
    // be early by less than a second.
    let took = begin.elapsed();
    assert!(took > Duration::from_millis(1_000), "after {took:?}");
    assert!(took < PATIENCE, "after {took:?}");
}

/// One answer for each message, in order: a message that cannot be sent fails alone.
async fn what_cannot_be_sent<P: Place>(place: &P) {
    let effects = vec![
        sent(request(0, "payment", "tenant")),
        sent(Request { input: json!("x".repeat(1024 * 1024)), ..request(1, "payment", "tenant") }),
        sent(request(2, "nobody", "tenant")),
        sent(request(3, "payment", "Müller & Co")),
        sent(request(4, "inventory", "")),
    ];
    let results = place.messenger().send(effects).await;
    assert_eq!(results.len(), 5);
    assert!(results[0].is_ok() && results[3].is_ok() && results[4].is_ok(), "{results:?}");
    assert!(matches!(results[1], Err(Error::TooLarge { .. })), "{results:?}");
    assert!(matches!(results[2], Err(Error::Unavailable { .. })), "a queue that is not there: {results:?}");
    take(place, &queues::agent("payment"), 2).await;
    take(place, &queues::agent("inventory"), 1).await;
}

/// SQS accepts 1 MiB since August 2025 ("message quotas"), so a smaller message must not be refused.
async fn near_the_limit<P: Place>(place: &P) {
    let large = Request { input: json!("x".repeat(LARGE)), ..request(1, "payment", "tenant") };
    send_all(place, vec![sent(large.clone())]).await;
    assert_eq!(from_value::<Request>(one(place, &queues::agent("payment")).await).unwrap(), large);
}
