//! Goal: whatever happens to an order, its record can still be written, and whatever part of a send fails is made up
//! for. Method: random events from a seed, over a store with DynamoDB's limit and a messenger that fails any part of a
//! send. `SEED=n` plays one seed.

use crate::support::*;
use contract::memory::{Open, bytes};
use serde_json::{Value, json};
use shared::decision::{Act, Event, Refusal, What};
use shared::engine::{Engine, Handled};
use shared::history::{self, Entry, Kind};
use shared::message::{Effect, MAX_OUTPUT, NoticeKind, Outcome, Reply};
use shared::operator::{MAX_INPUT, Outcome as Answer};
use shared::order::Id;
use shared::ports::{Error, StateStore};
use shared::step::State;
use shared::task::{MAX_RECORD, Phase, ProcessState};

type World = crate::support::World<Open>;

fn id() -> Id {
    Id("ord_1".into())
}

async fn sweep(engine: &Engine) -> Result<(), Error> {
    engine.recover(&[id()], 1).await.pop().expect("one answer").map(drop)
}

fn long(bytes: usize) -> Value {
    json!({ "x": "x".repeat(bytes - 8) })
}

/// Fifty concurrent steps, each with an undo.
fn fifty(on_failure: &str) -> String {
    let step = |n: usize| {
        format!(
            "[[step]]\nname = \"s{n}\"\nagent = \"x\"\ntimeout = \"10s\"\nretry = {{ max = 90, backoff = [\"1s\"] }}\n\
             undo = {{ agent = \"x\", retry = {{ max = 2, backoff = [\"1s\"] }} }}\n"
        )
    };
    format!("name = \"wide\"\non_failure = \"{on_failure}\"\n{}", (0..50).map(step).collect::<String>())
}

/// An event drawn at random, mostly one that lengthens the record.
fn draw(world: &World, dice: &mut Dice) -> Event {
    // The first steps are done; most events concern the last ones.
    let step = if dice.below(4) == 0 { dice.below(50) } else { 48 + dice.below(2) };
    let name = || Some(format!("s{step}"));
    let reply = |outcome| world.reply(&format!("s{step}"), outcome);
    // A control character takes six bytes in JSON.
    let error = || "\u{1}".repeat(400);
    let act = |what| Event::Act(Act { what, by: "ann".repeat(20), reason: "\u{2}".repeat(180), seen: None });
    match dice.below(40) {
        0..5 => reply(Outcome::Done { output: long(MAX_OUTPUT) }),
        5..9 => reply(Outcome::Failed { error: error() }),
        9..24 => reply(Outcome::Unavailable { error: error(), retry_after_ms: None }),
        24 => reply(Outcome::Deferred { error: error(), retry_after_ms: 0 }),
        25..30 => Event::Wake { seen: 0, hops: 0 },
        30..34 => act(What::Resubmit { step: name(), input: Some(long(MAX_INPUT)) }),
        34 => act(What::Resubmit { step: None, input: None }),
        35 => act(What::MarkDone { step: name(), output: long(MAX_OUTPUT) }),
        36 => act(What::RetryNow { step: None }),
        37 => act(What::Pause),
        38 => act(What::Resume),
        _ if dice.below(40) == 0 => Event::Cancel { by: "ann".into(), reason: "\u{3}".repeat(300) },
        _ => act(What::Skip { step: name() }),
    }
}

// The record of an order stays writable, whatever is done to it, and no message about it fails for its length.
#[tokio::test]
async fn no_sequence_of_acts_and_replies_makes_a_record_that_cannot_be_written() {
    let mut longest = 0;
    for seed in seeds(12) {
        let mut dice = Dice(seed);
        let policy = if seed % 3 == 0 { "undo" } else { "error" };
        let world = World::new(&fifty(policy), 1).await;
        let engine = world.instance("s1");
        engine.handle(vec![(id(), Event::Wake { seen: 0, hops: 0 })]).await.remove(0).unwrap();
        let done = |step| (id(), world.reply(&format!("s{step}"), Outcome::Done { output: long(MAX_OUTPUT) }));
        engine.handle((0..48).map(done).collect()).await.into_iter().for_each(|answer| drop(answer.unwrap()));
        // As four resubmissions and many failed attempts left it: a few events from its limit.
        {
            let mut tables = world.store.tables();
            let task = tables.tasks.get_mut(&id()).unwrap();
            (44..48).for_each(|step| task.steps[step].input = Some(long(MAX_INPUT)));
            for n in 0..66 {
                let text = Some("\u{1}".repeat(300));
                history::push(&mut task.log, Entry(n, Kind::Unavailable, Some(0), 1, text));
            }
            assert!(bytes(task) < MAX_RECORD, "{}", bytes(task));
        }
        let engine = world.instance("s2");
        for round in 0..250 {
            let events: Vec<_> = (0..=dice.below(10)).map(|_| (id(), draw(&world, &mut dice))).collect();
            let answers = engine.handle(events.clone()).await;
            for ((_, event), answer) in events.iter().zip(&answers) {
                assert!(answer.is_ok(), "SEED={seed}, round {round}: {event:?}: {answer:?}");
            }
            world.pass(1500);
            if dice.below(8) == 0 {
                world.pass(i64::try_from(dice.below(12_000)).unwrap());
                sweep(&engine).await.unwrap_or_else(|error| panic!("SEED={seed}, round {round}: {error}"));
            }
            let task = world.task();
            let bytes = bytes(&task);
            longest = longest.max(bytes);
            assert!(bytes <= task.most_bytes(), "SEED={seed}, round {round}");
            world.queues.take();
        }
    }
    assert!(longest > MAX_RECORD - 4096, "the limit was reached: {longest}");
}

/// An order with a record that is nearly full, as versions before the bound on inputs could make it.
async fn nearly_full(on_failure: &str, free: usize) -> World {
    let world = World::new(&fifty(on_failure), 1).await;
    world.instance("s1").handle(vec![(id(), Event::Wake { seen: 0, hops: 0 })]).await.remove(0).unwrap();
    let mut tables = world.store.tables();
    let task = tables.tasks.get_mut(&id()).unwrap();
    task.log.clear();
    for step in 0.. {
        let left = MAX_RECORD - bytes(task) - free;
        if left < 100 {
            break;
        }
        task.steps[step].input = Some(long(left.min(MAX_INPUT + 5) - 5));
    }
    drop(tables);
    world.queues.take();
    world
}

/// What happens to an order, as an event.
type Cause<'a> = &'a dyn Fn(&World) -> Event;

// TooLarge becomes Error with an alert: before, no write succeeded any more, and the order stayed Processing forever.
#[tokio::test]
async fn an_order_whose_record_is_full_stops_with_an_alert() {
    let done = |world: &World| world.reply("s0", Outcome::Done { output: long(MAX_OUTPUT) });
    let wake = |world: &World| {
        world.pass(60_000);
        let mut tables = world.store.tables();
        for step in &mut tables.tasks.get_mut(&id()).unwrap().steps {
            step.state = State::Pending { not_before: None };
        }
        Event::Wake { seen: 0, hops: 0 }
    };
    let cancel = |_: &World| Event::Cancel { by: "ann".into(), reason: "r".repeat(300) };
    let cases: [(&str, Cause<'_>); 3] = [("reply", &done), ("wake", &wake), ("cancel", &cancel)];
    for (name, event) in cases {
        let world = nearly_full("undo", 150).await;
        let event = event(&world);
        let engine = world.instance("s2");
        let answer = engine.handle(vec![(id(), event)]).await.remove(0);
        assert!(matches!(answer, Ok(Handled::Applied(_))), "{name}: {answer:?}");
        let task = world.task();
        assert_eq!(task.phase, Phase::Error, "{name}");
        assert!(task.reason.as_deref().is_some_and(|why| why.contains("full") && why.contains("bytes")), "{task:?}");
        let alerts = world.queues.take().iter().filter(|effect| matches!(effect, Effect::Alert(_))).count();
        assert_eq!((alerts, task.alert), (1, None), "{name}: it went out, and that is recorded");
        assert!(world.store.load(&id()).await.unwrap().is_some_and(|task| bytes(&task) <= task.most_bytes()));
    }
}

// The supervisor's side: an expired attempt in a full record is not checked forever.
#[tokio::test]
async fn an_expiry_for_which_the_record_has_no_room_stops_the_order_with_an_alert() {
    let world = nearly_full("undo", 150).await;
    let engine = world.instance("v");
    world.pass(11_000);
    sweep(&engine).await.unwrap();
    let task = world.task();
    assert_eq!((task.phase, task.complete_by(), &task.alert), (Phase::Error, None, &None));
    assert_eq!(world.queues.take().iter().filter(|effect| matches!(effect, Effect::Alert(_))).count(), 1);
}

// The refusal says that the action does not fit, and nothing changes.
#[tokio::test]
async fn an_act_that_does_not_fit_is_refused_and_changes_nothing() {
    let world = nearly_full("error", 150).await;
    let engine = world.instance("s2");
    engine.handle(vec![(id(), world.reply("s0", failed()))]).await.remove(0).unwrap();
    let before = world.task();
    assert_eq!(before.phase, Phase::Error);
    let mut act = by_ann(What::MarkDone { step: Some("s0".into()), output: long(MAX_OUTPUT) });
    let mut refused = 0;
    // The first may still find room in what the alert has left.
    for _ in 0..3 {
        refused += usize::from(matches!(engine.act(vec![(id(), act.clone())]).await[0], Err(Error::TooLarge { .. })));
        act.what = What::Resubmit { step: None, input: None };
    }
    assert!(refused > 0, "{:?}", world.task());
}

// A full record can stop an order between two steps. Then no step has failed, and what can be shortened is an input
// that a person gave a step.
#[tokio::test]
async fn an_order_that_a_full_record_stopped_between_steps_continues_with_a_shorter_input() {
    let world = nearly_full("error", 150).await;
    for step in &mut world.store.tables().tasks.get_mut(&id()).unwrap().steps {
        step.state = State::Pending { not_before: None };
    }
    world.pass(60_000);
    let engine = world.instance("s2");
    let wake = || vec![(id(), Event::Wake { seen: 0, hops: 0 })];
    engine.handle(wake()).await.remove(0).unwrap();
    let task = world.task();
    assert_eq!(task.phase, Phase::Error);
    assert!(task.steps.iter().all(|step| matches!(step.state, State::Pending { .. })), "no step has failed");
    let resubmit = async |step: Option<&str>, input: Option<Value>| {
        let what = What::Resubmit { step: step.map(str::to_owned), input };
        engine.act(vec![(id(), by_ann(what))]).await.remove(0)
    };
    let why = |refusal| Answer::NotAllowed { why: refusal };
    assert_eq!(resubmit(None, Some(json!({}))).await.unwrap(), why(Refusal::Ambiguous));
    assert_eq!(
        resubmit(Some("s49"), Some(json!({}))).await.unwrap(),
        why(Refusal::NotFailed),
        "it has no input of its own"
    );
    // The others together are still longer than allowed: a version without that bound accepted them.
    let shorter = resubmit(Some("s0"), Some(json!({ "ref": 1 }))).await;
    assert!(matches!(shorter, Ok(Answer::Applied(_))), "{shorter:?}");
    engine.handle(wake()).await.remove(0).unwrap();
    let task = world.task();
    assert!(task.steps.iter().all(|step| step.claim().is_some()), "{:?}", task.reason);
}

/// Plays an order over a network in which any part of a send may fail, until nothing is in flight: what failed is
/// redelivered with its message.
async fn played(text: &str, seed: u64, outcome: fn(&str) -> Outcome) -> (World, Vec<Effect>) {
    let mut dice = Dice(seed ^ 0xffff);
    let world = World::new(text, 1).await;
    let mut faults = Dice(seed);
    world.queues.fail(move |_| faults.below(100) < 35);
    let instances = [world.instance("s1"), world.instance("s2")];
    let mut open = vec![Event::Wake { seen: 0, hops: 0 }];
    let mut all = Vec::new();
    for _ in 0..2000 {
        if open.is_empty() {
            return (world, all);
        }
        let n = 1 + dice.below(open.len().min(10));
        let batch: Vec<_> = (0..n).map(|_| (id(), open.swap_remove(dice.below(open.len())))).collect();
        let answers = instances[dice.below(2)].handle(batch.clone()).await;
        open.extend(batch.into_iter().zip(&answers).filter(|(_, answer)| answer.is_err()).map(|((_, event), _)| event));
        for effect in world.queues.take() {
            match &effect {
                Effect::Wake(wake, _) => open.push(Event::from(wake)),
                Effect::Request(request) => open.push(Event::Reply(Reply::to(request, outcome(&request.step)))),
                Effect::Notice(_) | Effect::Alert(_) => {}
                Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) | Effect::Child(_) => {
                    unreachable!("no messenger gets these")
                }
            }
            all.push(effect);
        }
    }
    panic!("SEED={seed}: it does not end");
}

// Part of a batch of sends fails, messages and events, as SQS and EventBridge may do it.
#[tokio::test]
async fn any_part_of_a_send_that_fails_is_resent_by_the_message_that_caused_it() {
    let notice = |all: &[Effect], kind| all.iter().any(|e| matches!(e, Effect::Notice(n) if n.kind == kind));
    for seed in seeds(150) {
        let strict = "strict_notices = true\n";
        for text in [SIDE_BY_SIDE.to_owned(), format!("{strict}{CHAIN}"), fifty("undo")] {
            let (world, all) = played(&text, seed, |step| done(json!({ "of": step }))).await;
            let task = world.task();
            assert_eq!(task.process_state(), ProcessState::Processed, "SEED={seed}");
            assert!(task.steps.iter().all(|step| step.attempt == 1), "SEED={seed}: no attempt was lost: {task:?}");
            assert!(notice(&all, NoticeKind::Completed), "SEED={seed}");
            // The last effects that could not be sent are owed.
            assert_eq!(task.due.is_some(), task.notice_owed, "SEED={seed}");
        }
        let refuses = |step: &str| if step == "b" { failed() } else { done(json!(null)) };
        let (world, all) = played(&on_failure_error(SIDE_BY_SIDE), seed, refuses).await;
        let is_told = |all: &[Effect]| all.iter().any(|effect| matches!(effect, Effect::Alert(_)));
        assert_eq!(world.task().process_state(), ProcessState::Error, "SEED={seed}");
        assert!(is_told(&all) && notice(&all, NoticeKind::AttentionNeeded), "SEED={seed}");
    }
}
