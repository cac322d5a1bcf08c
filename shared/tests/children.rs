//! Steps that are orders of their own: what a parent and its child do together.
//!
//! Method: the engine over a store and queues in memory. A test plays all messages that are due, loses some, and sweeps.

use crate::support::*;
use serde_json::json;
use shared::decision::{Act, Event, Refusal, What};
use shared::engine::Handled;
use shared::message::{Outcome, Reply, Request};
use shared::operator;
use shared::order::Id;
use shared::ports::StateStore;
use shared::step::State;
use shared::task::{Phase, Task};
use shared::workflow::child;
use std::sync::atomic::Ordering;

const PARENT: &str = r#"
name = "parent"
output = "${outputs.line}"
[[step]]
name = "pay"
agent = "x"
timeout = "10s"
undo = { agent = "x" }
[[step]]
name = "line"
after = ["pay"]
workflow = "child"
with = { sku = "${input.sku}", paid = "${outputs.pay.of}" }
output = "${answer.sku}"
[[step]]
name = "mail"
after = ["line"]
agent = "x"
timeout = "10s"
with = { line = "${outputs.line}" }
"#;

const CHILD: &str = r#"
name = "child"
output = { sku = "${input.sku}", box = "${outputs.pick.of}" }
[input]
type = "object"
required = ["sku"]
properties = { sku = { type = "string" }, paid = {} }
[[step]]
name = "pick"
agent = "x"
timeout = "10s"
retry = { max = 1, backoff = [] }
undo = { agent = "x" }
"#;

impl Family {
    fn child_made(&self, made: u32) -> Option<Task> {
        self.task(&child::id("acme", &parent(), "line", made))
    }

    fn child(&self) -> Task {
        self.child_made(0).expect("the child is there")
    }

    fn line(&self) -> State {
        self.parent().steps[1].state.clone()
    }
}

async fn family_of(parent: &str, child: &str) -> Family {
    Family::new(parent, &[("child", child)], json!({"sku": "a"})).await
}

type Answers = Box<dyn Fn(&Request) -> Outcome + Send>;

fn good() -> Answers {
    holding(&[])
}

/// The agents of these steps stay silent.
fn holding(steps: &'static [&str]) -> Answers {
    Box::new(|request| match steps.contains(&request.step.as_str()) {
        true => later(),
        false => done(json!({ "of": request.step })),
    })
}

fn silent() -> Answers {
    holding(&["pick"])
}

fn refusing() -> Answers {
    Box::new(|request| if request.step == "pick" { failed() } else { done(json!({ "of": request.step })) })
}

// L8
#[tokio::test]
async fn a_child_gets_its_input_and_its_output_goes_back() {
    let mut family = family_of(PARENT, CHILD).await;
    family.play().await;
    let (own, child) = (family.parent(), family.child());
    assert_eq!((own.phase, child.phase), (Phase::Processed, Phase::Processed));
    assert_eq!(child.output, Some(json!({"sku": "a", "box": "pick"})));
    assert_eq!(own.output, Some(json!("a")));
    let input = family.store.order(&child).await.unwrap().unwrap().input;
    assert_eq!(input, json!({"sku": "a", "paid": "pay"}));
    assert_eq!(family.asked, ["do pay", "do pick", "do mail"]);
    assert!(own.due.is_none() && child.due.is_none());
    // pay, the child's begin, its end with mail, and the end.
    assert_eq!(own.version, 4, "{:?}", own.log);
}

// Messages are only hints: due brings every one of them back.
#[tokio::test]
async fn every_lost_message_is_made_up_for() {
    let mut family = family_of(PARENT, CHILD).await;
    family.loses_hints = true;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Forward, Phase::Processed));
    family.open.clear();
    family.leap(30).await;
    assert!(matches!(family.line(), State::Waiting { .. }), "the next look is later");
    family.leap(60).await.leap(60).await;
    assert_eq!(family.parent().phase, Phase::Processed);
}

// The parent's record is saved, and whoever was to make the child dies.
#[tokio::test]
async fn a_child_that_was_not_made_is_made_later() {
    let mut family = family_of(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    assert!(matches!(family.line(), State::Waiting { .. }) && family.child_made(0).is_none());
    family.store.creates_none.store(false, Ordering::Relaxed);
    // The message comes again.
    let seen = family.parent().version - 1;
    family.on(&parent(), Event::Wake { seen, hops: 0 }).await.unwrap();
    assert!(family.child_made(0).is_some());
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);

    let mut family = family_of(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.open.clear();
    family.leaps(2, 90).await;
    assert_eq!(family.parent().phase, Phase::Processed);
}

#[tokio::test]
async fn looks_become_rarer_and_cost_one_write_each() {
    let mut family = family_of(PARENT, CHILD).await;
    family.answers = silent();
    family.play().await;
    let before = family.parent().version;
    // The child's own step would expire otherwise.
    family.act_on(&family.child().id, What::Pause).await;
    family.leaps(24 * 60, 60).await;
    let looks = family.parent().version - before;
    assert!((80..=110).contains(&looks), "{looks} looks in a day");
    assert!(matches!(family.line(), State::Waiting { .. }));
}

#[tokio::test]
async fn a_failed_child_fails_its_step_by_the_policy() {
    // The child undoes itself, and so does its parent.
    let mut family = family_of(PARENT, CHILD).await;
    family.answers = refusing();
    family.leaps(4, 15).await;
    let own = family.parent();
    assert_eq!((own.phase, family.child().phase), (Phase::Undone, Phase::Undone), "{:?}", own.reason);
    assert!(own.reason.unwrap().contains("was undone: `pick` failed"));
    assert_eq!(family.asked, ["do pay", "do pick", "undo pick", "undo pay"]);

    let catches = PARENT.replace("output = \"${answer.sku}\"", "catch = \"error.kind == 'children'\"");
    let catches = catches.replace("output = \"${outputs.line}\"\n", "").replace("[\"line\"]", "[\"line?\"]");
    let catches =
        catches.replace("with = { line = \"${outputs.line}\" }", "with = { why = \"${errors.line.message}\" }");
    let mut family = family_of(&catches, CHILD).await;
    family.answers = refusing();
    family.leaps(4, 15).await;
    assert_eq!((family.parent().phase, family.line()), (Phase::Processed, State::Caught));

    // It stops, and with it its parent.
    let mut family = family_of(&on_failure_error(PARENT), &on_failure_error(CHILD)).await;
    family.answers = refusing();
    family.play().await;
    let own = family.parent();
    assert_eq!((own.phase, family.child().phase), (Phase::Error, Phase::Error));
    assert!(own.reason.unwrap().contains("stopped: `pick` failed"));
}

#[tokio::test]
async fn what_failed_is_tried_again_and_what_undid_itself_is_made_anew() {
    let mut family = family_of(&on_failure_error(PARENT), &on_failure_error(CHILD)).await;
    family.answers = refusing();
    family.play().await;
    family.answers = good();
    let resubmit = What::Resubmit { step: None, input: None };
    // Its parent has counted how it ended.
    let refused = family.act_on(&family.child().id, resubmit.clone()).await;
    assert_eq!(refused, operator::Outcome::NotAllowed { why: Refusal::Child });
    let input = What::Resubmit { step: None, input: Some(json!({})) };
    assert_eq!(family.act(input).await, operator::Outcome::NotAllowed { why: Refusal::ChildInput });
    family.act(resubmit.clone()).await;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Processed, Phase::Processed));
    assert_eq!(family.child().parent.unwrap().round, 1);

    let mut family = family_of(&on_failure_error(PARENT), CHILD).await;
    family.answers = refusing();
    family.leaps(3, 15).await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Error, Phase::Undone));
    family.answers = good();
    family.act(resubmit).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert_eq!((family.child().phase, family.child_made(1).unwrap().phase), (Phase::Undone, Phase::Processed));
}

#[tokio::test]
async fn an_undo_goes_down_and_waits_for_the_child() {
    // While it runs, and after it is done.
    for (answers, ends) in [(silent(), Phase::Forward), (good(), Phase::Processed)] {
        let mut family = family_of(PARENT, CHILD).await;
        family.answers = answers;
        family.play().await;
        assert_eq!((family.parent().phase, family.child().phase), (ends, ends));
        family.act(What::Undo).await;
        family.leaps(6, 15).await;
        assert_eq!((family.parent().phase, family.child().phase), (Phase::Undone, Phase::Undone));
        assert!(family.asked.ends_with(&["undo pick".into(), "undo pay".into()]), "{:?}", family.asked);
    }
}

// Whoever was to make the child wakes up when its parent is undone.
#[tokio::test]
async fn a_child_that_comes_too_late_is_there_already_and_undone() {
    let mut family = family_of(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    let late = family.parent();
    family.store.creates_none.store(false, Ordering::Relaxed);
    family.act(What::Cancel).await;
    family.leaps(6, 15).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    let child = family.child();
    assert_eq!((child.phase, child.due), (Phase::Undone, None));
    // The message that began it is delivered to an instance that still has the old record.
    let stored = family.store.tables().tasks.insert(parent(), late.clone()).unwrap();
    let again = family.instance();
    let seen = late.version - 1;
    drop(again.handle(vec![(parent(), Event::Wake { seen, hops: 0 })]).await);
    family.store.tables().tasks.insert(parent(), stored);
    assert_eq!(family.child(), child, "nothing makes it run");
    assert!(!family.asked.contains(&"do pick".to_owned()), "{:?}", family.asked);
}

#[tokio::test]
async fn a_pause_goes_down_and_ends_with_the_parents() {
    let mut family = family_of(PARENT, CHILD).await;
    family.answers = silent();
    family.play().await;
    family.act(What::Pause).await;
    assert!(family.child().paused_at.is_some());
    family.act(What::Resume).await;
    assert!(family.child().paused_at.is_none());
    // A person's pause stays.
    let child = family.child().id;
    family.act_on(&child, What::Pause).await;
    family.act(What::Pause).await;
    family.act(What::Resume).await;
    assert!(family.child().paused_at.is_some());
    family.act_on(&child, What::Resume).await;
    // The parent's pause ends, and that does not reach the child.
    family.act(What::Pause).await;
    let mut resumed = family.parent();
    resumed.paused_at = None;
    resumed.due = Some(at(0));
    resumed.version += 1;
    family.store.tables().tasks.insert(parent(), resumed);
    family.leaps(2, 90).await;
    assert!(family.child().paused_at.is_none(), "the look finds it");
}

#[tokio::test]
async fn an_input_that_the_child_refuses_fails_the_step() {
    let wrong = PARENT.replace("sku = \"${input.sku}\"", "sku = 5");
    let mut family = family_of(&wrong, CHILD).await;
    family.leaps(3, 15).await;
    assert_eq!(family.parent().phase, Phase::Undone);
    assert!(family.parent().reason.unwrap().contains("the input of `child` is refused: `/sku` "));
    assert!(family.child_made(0).is_none());
}

#[tokio::test]
async fn what_cannot_be_undone_in_a_child_stops_the_undo_of_its_parent() {
    let child = CHILD.replace("undo = { agent = \"x\" }", "irreversible = true");
    let mut family = family_of(PARENT, &child).await;
    family.play().await;
    family.act(What::Undo).await;
    family.leaps(3, 15).await;
    let own = family.parent();
    assert_eq!((own.phase, &own.steps[1].state), (Phase::UndoError, &State::UndoFailed));
    assert!(own.reason.unwrap().contains("has done what cannot be undone"));
    family.act(What::Skip { step: None }).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

#[tokio::test]
async fn what_is_left_of_a_child_that_cannot_be_undone_is_paused() {
    let bill = "[[step]]\nname = \"bill\"\nafter = [\"pick\"]\nagent = \"x\"\ntimeout = \"10s\"\n";
    let child = CHILD.replace("undo = { agent = \"x\" }", "irreversible = true") + bill;
    let mut family = family_of(PARENT, &child).await;
    family.answers = holding(&["bill"]);
    family.play().await;
    family.act(What::Cancel).await;
    family.leaps(6, 15).await;
    let (own, child) = (family.parent(), family.child());
    assert_eq!((own.phase, child.phase), (Phase::UndoError, Phase::Forward));
    assert!(own.reason.as_ref().unwrap().contains("has done what cannot be undone; the rest of it is paused"));
    assert!(child.paused_at.is_some() && child.parent.is_some_and(|parent| parent.paused));
    family.act(What::Skip { step: None }).await;
    family.leap(60).await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Undone, Phase::Forward));
    assert!(family.child().paused_at.is_some(), "a person decides about the rest");
}

// A record stays as long as that of its parent.
#[tokio::test]
async fn a_child_expires_after_its_parent() {
    let mut family = family_of(PARENT, CHILD).await;
    family.expires();
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert!(family.child().parent.unwrap().released);
    // Whoever ended the parent died before it could say so.
    family.store.tables().tasks.values_mut().filter_map(|task| task.parent.as_mut()).for_each(|p| p.released = false);
    family.on(&parent(), Event::Hint { seen: 0, part: 0, step: None }).await.unwrap();
    assert!(family.child().parent.unwrap().released);
}

// An order that took the place of another does not end the care for that one.
#[tokio::test]
async fn children_of_earlier_rounds_expire_with_their_parent_too() {
    let mut family = family_of(&on_failure_error(PARENT), CHILD).await;
    family.expires();
    for answers in [refusing(), refusing(), good()] {
        family.answers = answers;
        family.resubmit().await;
        family.leaps(3, 15).await;
    }
    assert_eq!(family.parent().phase, Phase::Processed);
    let all: Vec<(Phase, bool)> = (0..3)
        .filter_map(|made| family.child_made(made))
        .map(|task| (task.phase, task.parent.unwrap().released))
        .collect();
    assert_eq!(all, [(Phase::Undone, true), (Phase::Undone, true), (Phase::Processed, true)]);
}

/// A child that starts an order itself.
const MIDDLE: &str = r#"
name = "child"
[[step]]
name = "line"
workflow = "grandchild"
"#;

// An undo of the order at the top would not find what an order in the middle let go when it ended.
#[tokio::test]
async fn a_grandchild_expires_after_the_order_at_the_top() {
    let parent_text = PARENT.replace("output = \"${answer.sku}\"\n", "").replace("output = \"${outputs.line}\"\n", "");
    let parent_text = parent_text.replace("with = { line = \"${outputs.line}\" }", "");
    let grandchild = CHILD.replace("name = \"child\"", "name = \"grandchild\"");
    let mut family =
        Family::new(&parent_text, &[("child", MIDDLE), ("grandchild", &grandchild)], json!({"sku": "a"})).await;
    family.expires();
    family.answers = holding(&["mail"]);
    family.play().await;
    let below = child::id("acme", &family.child().id, "line", 0);
    let released = |family: &Family, id: &Id| family.store.tables().tasks[id].parent.as_ref().unwrap().released;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Forward, Phase::Processed));
    assert_eq!(family.store.tables().tasks[&below].phase, Phase::Processed);
    let middle = family.child().id;
    family.expires();
    family.on(&middle, Event::Wake { seen: 0, hops: 0 }).await.unwrap();
    assert!(!released(&family, &middle) && !released(&family, &below), "the order at the top still runs");
    family.act(What::MarkDone { step: Some("mail".into()), output: json!({}) }).await;
    family.leap(15).await.leap(15).await;
    family.act(What::MarkDone { step: Some("mail".into()), output: json!({}) }).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);
    assert!(released(&family, &middle) && released(&family, &below));
    // It is opened again: nothing below it may go meanwhile.
    family.act(What::Undo).await;
    assert!(!released(&family, &middle) && !released(&family, &below));
    family.leaps(8, 15).await;
    assert_eq!(family.parent().phase, Phase::Undone, "{:?}", family.parent().log);
    assert!(released(&family, &middle) && released(&family, &below));
}

// A person is told of a child whose record is gone, and can go on without it.
#[tokio::test]
async fn an_undo_does_not_wait_for_ever_for_a_child_that_is_gone() {
    let mut family = family_of(PARENT, CHILD).await;
    family.play().await;
    let child = family.child().id;
    family.store.tables().tasks.remove(&child);
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.act(What::Undo).await;
    family.leaps(10, 15 * 60).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::UndoError);
    assert!(own.reason.unwrap().contains("is gone, so what it did is not undone"));
    family.act(What::Skip { step: None }).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Undone);
}

// One bad record must not take its neighbours along.
#[tokio::test]
async fn a_child_that_cannot_be_read_holds_up_its_own_step_alone() {
    let side = PARENT.replace(
        "[[step]]\nname = \"mail\"",
        "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"10m\"\n\n[[step]]\nname = \"mail\"",
    );
    let mut family = family_of(&side, CHILD).await;
    family.answers = holding(&["pick", "side"]);
    family.play().await;
    *family.store.unreadable.lock().unwrap() = Some(family.child().id);
    family.leaps(2, 90).await;
    let own = family.parent();
    assert!(matches!(own.steps[1].state, State::Waiting { .. }), "{:?}", own.steps[1]);
    assert!(own.steps[1].error.as_ref().unwrap().contains("cannot be read"));
    let reply = Reply::new(parent(), "side", 1, done(json!({})));
    assert!(matches!(family.on(&parent(), Event::Reply(reply)).await, Ok(Handled::Applied(_))));
    assert_eq!(family.parent().steps[2].state, State::Processed);
    family.act(What::Cancel).await;
    family.leaps(3, 60).await;
    let own = family.parent();
    assert_eq!(own.phase, Phase::Undoing);
    assert!(own.steps[1].error.as_ref().unwrap().contains("cannot be read"));
    *family.store.unreadable.lock().unwrap() = None;
    family.leaps(4, 15 * 60).await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Undone, Phase::Undone));
}

// The Wake of the turn waits for attempts that are under way; the child hears of the turn at once.
#[tokio::test]
async fn a_cancel_reaches_a_running_child_at_once() {
    let slow = PARENT.replacen("timeout = \"10s\"", "timeout = \"10m\"", 1);
    let mut family = family_of(&slow, CHILD).await;
    family.answers = silent();
    family.play().await;
    family.act(What::Cancel).await;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Undoing, Phase::Undoing));
}

// The child is made in the moment of the pause.
#[tokio::test]
async fn a_pause_holds_a_child_that_is_made_a_moment_later() {
    let mut family = family_of(PARENT, CHILD).await;
    family.store.creates_none.store(true, Ordering::Relaxed);
    family.play().await;
    family.act(What::Pause).await;
    family.store.creates_none.store(false, Ordering::Relaxed);
    // The message that was to make it is delivered again.
    let seen = family.parent().version - 2;
    family.on(&parent(), Event::Wake { seen, hops: 0 }).await.unwrap();
    family.play().await;
    assert!(family.child_made(0).is_none(), "nothing begins in a pause");
    family.act(What::Resume).await;
    family.play().await;
    assert_eq!(family.parent().phase, Phase::Processed);

    // The writes to the child fail, and the person repeats the action.
    let mut family = family_of(PARENT, CHILD).await;
    family.answers = silent();
    family.play().await;
    let seen = Some(family.parent().version);
    let pause = Act { seen, ..by_ann(What::Pause) };
    drop(family.engine.act(vec![(parent(), pause.clone())]).await);
    let mut child = family.child();
    child.paused_at = None;
    child.parent.as_mut().unwrap().paused = false;
    child.version += 1;
    family.store.tables().tasks.insert(child.id.clone(), child);
    family.restart();
    let again = family.engine.act(vec![(parent(), pause)]).await.remove(0).unwrap();
    assert!(matches!(again, operator::Outcome::Repeated(_)), "{again:?}");
    assert!(family.child().paused_at.is_some());
}

#[tokio::test]
async fn a_persons_pause_of_a_child_is_not_the_parents_to_end() {
    let mut family = family_of(PARENT, CHILD).await;
    family.answers = silent();
    family.play().await;
    let child = family.child().id;
    // Resumed alone, and paused again by a person.
    family.act(What::Pause).await;
    family.act_on(&child, What::Resume).await;
    family.act_on(&child, What::Pause).await;
    family.act(What::Resume).await;
    family.leap(90).await;
    assert!(family.child().paused_at.is_some());
    // Paused by a person while its parent's pause held it.
    family.act_on(&child, What::Resume).await;
    family.act(What::Pause).await;
    family.act_on(&child, What::Pause).await;
    family.act(What::Resume).await;
    family.leap(90).await;
    assert!(family.child().paused_at.is_some());
}

// The order was already in Error, for another step, when its child failed.
#[tokio::test]
async fn a_failure_that_came_while_the_parent_was_in_error_is_tried_again_with_it() {
    let side = PARENT.replace(
        "[[step]]\nname = \"mail\"",
        "[[step]]\nname = \"side\"\nafter = [\"pay\"]\nagent = \"x\"\ntimeout = \"10s\"\n\n[[step]]\nname = \"mail\"",
    );
    let mut family = family_of(&on_failure_error(&side), &on_failure_error(CHILD)).await;
    family.answers = Box::new(|request| match request.step.as_str() {
        "side" => failed(),
        "pick" => later(),
        step => done(json!({ "of": step })),
    });
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Error, Phase::Forward));
    family.leaps(4, 15).await;
    assert_eq!(family.child().phase, Phase::Error);
    family.answers = good();
    family.resubmit().await;
    family.play().await;
    assert_eq!((family.parent().phase, family.child().phase), (Phase::Processed, Phase::Processed));
}

// A queue refused the request that the save of a hint claimed: the hint comes again.
#[tokio::test]
async fn a_hint_that_comes_again_sends_what_it_had_claimed() {
    let mut family = family_of(PARENT, CHILD).await;
    family.answers = holding(&["mail"]);
    family.play().await;
    assert_eq!(family.asked, ["do pay", "do pick", "do mail"]);
    family.open.clear();
    family.on(&parent(), Event::Hint { seen: 0, part: 0, step: None }).await.unwrap();
    family.play().await;
    assert_eq!(family.asked, ["do pay", "do pick", "do mail", "do mail"]);
}

// It has no agent, and a person looks for it by its name all the same.
#[test]
fn a_failed_step_that_starts_an_order_is_found_by_its_name() {
    let mut bench = Bench::new(PARENT);
    bench.task.phase = shared::task::Phase::Error;
    bench.task.steps[1].state = State::Failed;
    bench.task.steps[1].error = Some("order ord_2 stopped: no such card".into());
    let found = shared::trouble::trouble(&bench.task, &bench.workflow);
    let found: Vec<_> = found.iter().map(|one| (one.step.as_str(), one.agent.as_str(), one.undo)).collect();
    assert_eq!(found, [(bench.workflow.steps[1].name.as_str(), "", false)]);
    let filter = |step: &str, error: Option<&str>| shared::filter::Filter {
        step: Some(step.into()),
        error: error.map(str::to_owned),
        ..shared::filter::Filter::default()
    };
    let fits = |filter: shared::filter::Filter| filter.fits_steps(&bench.task, &bench.workflow);
    let name = &bench.workflow.steps[1].name;
    assert!(fits(filter(name, None)) && fits(filter(name, Some("order ord_3 stopped: no such card"))));
    assert!(!fits(filter(name, Some("another"))) && !fits(filter(&bench.workflow.steps[0].name, None)));
}
