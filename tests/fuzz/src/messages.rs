//! Messages of the queues.

use jiff::{SignedDuration, Timestamp};
use shared::control::ALL_RUN;
use shared::decision::{Decision, Event, Turn};
use shared::json;
use shared::message::{Request, ToScheduler};
use shared::order::Id;
use shared::pools::ONE_EACH;
use shared::scheduler::schedule;
use shared::step::State;
use shared::task::{Priority, Submission, Task};
use shared::workflow::Workflow;
use shared::workflow::file::{Known, parse};
use std::sync::LazyLock;

const START: i64 = 1_795_251_600_000;
const WORKFLOW: &str = r#"
name = "sample"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
undo = { agent = "x" }
[[step]]
name = "b"
agent = "x"
timeout = "10s"
[[step]]
name = "c"
agent = "x"
after = ["a", "b"]
timeout = "10s"
"#;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(START + ms).expect("within the calendar")
}

fn turn(workflow: &Workflow) -> Turn<'_> {
    let skew = SignedDuration::from_secs(1);
    Turn {
        workflow,
        input: &serde_json::Value::Null,
        now: at(1000),
        instance: "fuzz",
        skew,
        agents: &ALL_RUN,
        pools: &ONE_EACH,
        outputs: &shared::outputs::NONE,
        public_url: "https://orders.example",
    }
}

/// A workflow, and a task of it whose first two steps are claimed.
static CLAIMED: LazyLock<(Workflow, Task)> = LazyLock::new(|| {
    let workflow = parse("sample.toml", WORKFLOW, Known { agents: &["x"], inputs: &[] }).expect("a valid file");
    let submission = Submission {
        id: Id("ord_1".into()),
        tenant: "acme".into(),
        reference: None,
        reply_queue: Some("shop".into()),
        priority: Priority::Normal,
        shard: 0,
    };
    let task = Task::new(submission, &workflow, at(0));
    let decision = schedule(&task, &Event::Wake { seen: 0, hops: 0 }, &turn(&workflow));
    let Decision::Save { task, .. } = decision else { panic!("a first Wake claims") };
    (workflow, *task)
});

/// `message` as it is sent: SQS accepts only the characters of XML 1.0.
fn sent(message: &impl serde::Serialize) -> String {
    let text = json::write(message);
    let is_taken =
        |c: char| matches!(c, '\t' | '\n' | '\r' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
    assert!(text.chars().all(is_taken), "{text:?}");
    text
}

/// A message that a scheduler can read is written as it was read, and advances a task by at most one version, never out
/// of a final state. A reply counts only for the current attempt of its step.
pub fn to_scheduler(bytes: &[u8]) -> bool {
    let Ok(message) = serde_json::from_slice::<ToScheduler>(bytes) else { return false };
    let json = sent(&message);
    let again: ToScheduler = serde_json::from_str(&json).expect("as it was sent");
    assert_eq!(json, sent(&again));
    let (workflow, task) = &*CLAIMED;
    let (event, current) = match message {
        ToScheduler::Wake(wake) => (Event::from(&wake), None),
        ToScheduler::Reply(reply) => {
            let index = workflow.position(&reply.step);
            let is_current = index.is_some_and(|n| {
                task.steps[n].attempt == reply.attempt && matches!(task.steps[n].state, State::Processing { .. })
            });
            (Event::Reply(reply), Some(is_current))
        }
        ToScheduler::Cancel(cancel) => (Event::Cancel { by: cancel.by, reason: cancel.reason }, None),
    };
    let Decision::Save { task: next, .. } = schedule(task, &event, &turn(workflow)) else { return false };
    assert_ne!(current, Some(false), "a reply of another attempt changed the task: {event:?}");
    assert_eq!(next.version, task.version + 1);
    let record = serde_json::to_string(&next).expect("as it is saved");
    let read: Task = serde_json::from_str(&record).expect("what is saved can be read, by any parser");
    assert_eq!(read.steps, next.steps);
    assert_eq!(next.steps.len(), task.steps.len());
    assert!(next.steps.iter().zip(&task.steps).all(|(after, before)| after.attempt >= before.attempt));
    // The same event again is outdated, or changes nothing.
    if let Decision::Save { task: third, .. } = schedule(&next, &event, &turn(workflow)) {
        assert!(current.is_none(), "a reply counted twice: {event:?}");
        assert_eq!(third.version, next.version + 1);
    }
    true
}

/// A request that an agent can read is written as it was read.
pub fn request(bytes: &[u8]) -> bool {
    let Ok(request) = serde_json::from_slice::<Request>(bytes) else { return false };
    let json = sent(&request);
    let again: Request = serde_json::from_str(&json).expect("as it was sent");
    assert_eq!(again, request);
    true
}

/// An order by message: what is accepted has a key that can be used.
pub fn order(bytes: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok((key, submission)) = submit::queue::parse(text) else { return false };
    assert!(!key.trim().is_empty() && key.len() <= 200);
    assert!(!json::is_deep(&submission.input) && json::check(bytes).is_ok());
    true
}
