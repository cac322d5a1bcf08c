//! Exhaustive search of the core: every order of messages, losses, duplicates, crashes between sends, expiries, two
//! leaders, undo, cancel and resubmission, within bounds.
//!
//! `cargo test -p stepwarden-model` runs the quick bounds, `MODEL=full` the large ones, and `NAME=heartbeats` only those with this in their
//! names. // J5

mod again;
mod common;
mod defects;
mod family;
mod list;
mod migration;
mod pages;
mod pair;
mod world;

use defects::Defect;
use family::{Family, Plan};
use list::List;
use pair::Pair;
use stateright::{Checker, CheckerBuilder, Expectation, HasDiscoveries, Model, Path};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;
use world::{Bounds, Flow, World};

// A state is hundreds of small allocations: with the system's allocator they took a quarter of the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const QUICK: Bounds = Bounds {
    crashes: 1,
    failed: 1,
    unavailable: 0,
    deferred: 0,
    cancels: 0,
    resubmits: 0,
    max: 1,
    undo_max: 1,
    then: "undo",
    strict: false,
    timeouts: (1, 1),
    leaders: 1,
    b_has_undo: false,
    with_c: true,
    alone: false,
    tombstones: false,
    chain: false,
    flow: Flow::Plain,
    late: false,
    deadline: None,
    pauses: 0,
    acts: 0,
    folds: false,
    mapped: false,
    events: 0,
    reminds: false,
    alerts: false,
    looks: 0,
    accepts: 0,
    withholds: 0,
    begins: false,
};

/// Searches all states of `model`, and checks all properties; returns the number of states.
fn check<M>(name: &str, model: M, told: fn(Path<M::State, M::Action>) -> String) -> usize
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + Debug + PartialEq,
{
    let begin = Instant::now();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let checker = model.checker().threads(threads).spawn_bfs().join();
    let count = checker.unique_state_count();
    println!("{name}: {count} states, depth {}, {:.1} s", checker.max_depth(), begin.elapsed().as_secs_f64());
    let mut wrong = String::new();
    for (property, path) in checker.discoveries() {
        let good = checker.model().property(property).expectation == Expectation::Sometimes;
        if !good {
            wrong += &format!("\n{name}: {property}\n{}", told(path));
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    checker.assert_properties();
    count
}

/// Each has a name, its number of states, and the one that is expected: if the number changes, the protocol has changed.
fn assert_unchanged(all: impl Iterator<Item = (&'static str, usize, usize)>) {
    let mut other = String::new();
    for (name, states, golden) in all {
        if states != golden {
            other += &format!("\n{name}: {states} states, expected {golden}");
        }
    }
    assert!(other.is_empty(), "the protocol has changed; if that is meant, write these numbers here:{other}");
}

/// A property that a model breaks, and what leads there.
type Broken<M> = (&'static str, Path<<M as Model>::State, <M as Model>::Action>);

fn broken<M>(checker: CheckerBuilder<M>) -> Option<Broken<M>>
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Hash + PartialEq + Send + Sync + 'static,
    M::Action: Clone + PartialEq,
{
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    let model = checker.model();
    found.into_iter().find(|(name, _)| model.property(name).expectation == Expectation::Always)
}

/// Each defect must break something.
fn assert_caught<D: Debug>(all: impl Iterator<Item = (D, Option<String>)>) {
    let mut uncaught = Vec::new();
    for (defect, found) in all {
        match found {
            Some(found) => println!("\n{defect:?} breaks {found}"),
            None => uncaught.push(defect),
        }
    }
    assert!(uncaught.is_empty(), "not caught: {uncaught:#?}");
}

/// A path as its actions.
fn actions<S, A: Debug>(path: Path<S, A>) -> String {
    format!("{:#?}", path.into_actions())
}

fn trace(path: Path<world::State, world::Action>) -> String {
    let mut text = String::new();
    for (state, action) in path.into_vec() {
        let steps: Vec<_> = state.task.steps.iter().map(|s| format!("{:?}#{}", s.state, s.attempt)).collect();
        text += &format!("    v{} {:?} {steps:?}", state.task.version, state.task.phase);
        if let Some(rule) = state.broken {
            text += &format!(" BROKEN: {rule}");
        }
        if let Some(action) = action {
            text += &format!("\n  {action:?}\n");
        }
    }
    text
}

/// Two concurrent steps and nothing after them.
const TWO: Bounds = Bounds { with_c: false, b_has_undo: true, ..QUICK };

/// Name, bounds, and the expected number of states: if the number changes, the protocol has changed.
fn quick() -> Vec<(&'static str, Bounds, usize)> {
    vec![
        ("failure, undo and crash", QUICK, 68_452),
        ("slow first steps", SLOW, 3_741),
        ("a submission that makes the first claims, and a crash", BEGUN, 56_503),
        ("the same, and a cancel", Bounds { cancels: 1, failed: 0, ..BEGUN }, 42_572),
        ("cancel", Bounds { cancels: 1, failed: 0, crashes: 0, ..QUICK }, 21_521),
        ("cancel and crash", CANCEL_AND_CRASH, 35_201),
        ("resubmit", RESUBMIT, 74_601),
        ("error and crash", Bounds { then: "error", failed: 2, ..TWO }, 40_396),
        ("unavailable", UNAVAILABLE, 112_144),
        ("deferred and crash", DEFERRED, 71_935),
        ("strict notices, two leaders", LEADERS, 17_738),
        ("slowest first steps and a failure", SLOWEST, 30_593),
        ("chain", CHAIN, 9_016),
        ("more time for late attempts", LATE, 24_075),
        ("pause and crash", PAUSE, 45_593),
        ("paused agents and a crash", WITHHELD, 61_664),
        ("paused agents and a cancel", Bounds { cancels: 1, crashes: 0, ..WITHHELD }, 190_860),
        ("skip, mark done, undo", BY_HAND, 93_287),
        ("two messages in one save", Bounds { folds: true, ..QUICK }, 98_172),
        ("undo without a wait", TOMBSTONES, 32_091),
        ("undo without a wait, cancel and crash", UNTOLD_TURN, 34_213),
        ("a branch", BRANCH, 128_375),
        ("a branch, cancel and crash", Bounds { failed: 1, cancels: 1, with_c: false, crashes: 1, ..BRANCH }, 156_595),
        ("a gate and a crash", GATE, 31_060),
        ("a gate, and a failed undo by hand or again", GATE_BY_HAND, 45_589),
        ("error and an action", ERROR_BY_HAND, 119_579),
        ("mapped undos", MAPPED, 23_350),
        ("mapped undos without a wait", Bounds { tombstones: true, ..MAPPED }, 23_545),
        ("a deadline and a crash", DEADLINE, 15_854),
        ("a deadline, pause and resubmit", LATE_ORDER, 27_258),
        ("a wait and a crash", TIMER, 18_666),
        ("a wait, pause and cancel", Bounds { pauses: 1, cancels: 1, failed: 0, crashes: 0, ..TIMER }, 77_490),
        ("a wait and a deadline", Bounds { deadline: Some(2), failed: 0, ..TIMER }, 10_167),
        ("a long wait and a crash", LONG, 21_940),
        ("a long wait, pause and cancel", Bounds { pauses: 1, cancels: 1, failed: 0, crashes: 0, ..LONG }, 90_244),
        ("a poll and a crash", LOOK, 47_746),
        (
            "a poll, pause and cancel",
            Bounds { pauses: 1, cancels: 1, failed: 0, crashes: 0, looks: 1, with_c: false, ..LOOK },
            244_650,
        ),
        ("a poll that may act, and a cancel", ASK, 55_364),
        ("a poll, error and resubmit", POLL_IN_ERROR, 8_679),
        ("accepted work and a crash", ACCEPT, 75_368),
        ("accepted work and a pause", Bounds { pauses: 1, crashes: 0, max: 1, ..ACCEPT }, 62_554),
        ("accepted work and a cancel", Bounds { cancels: 1, crashes: 0, max: 1, ..ACCEPT }, 30_219),
        ("accepted work, error and resubmit", ACCEPT_IN_ERROR, 61_947),
        ("heartbeats and a crash", Bounds { cancels: 1, ..BEAT }, 90_130),
        ("heartbeats and a failure", Bounds { unavailable: 1, crashes: 0, max: 2, ..BEAT }, 125_509),
        ("heartbeats and a pause", Bounds { pauses: 1, crashes: 0, ..BEAT }, 63_016),
        ("an event and a crash", EVENT, 40_624),
        ("two events and a cancel", TWO_EVENTS, 85_779),
        ("an event and a pause", Bounds { pauses: 1, crashes: 0, ..EVENT }, 142_698),
        ("an event, error and resubmit", EVENT_IN_ERROR, 45_323),
        ("reminders and a crash", REMIND, 144_396),
        ("reminders and a pause", Bounds { pauses: 1, failed: 0, crashes: 0, ..REMIND }, 128_313),
        ("reminders of a poll", REMIND_OF_LOOKS, 64_965),
        ("an alarm of a poll", ALARM_OF_LOOKS, 32_005),
        ("reminders of accepted work", REMIND_OF_WORK, 77_330),
        ("an alarm of accepted work", ALARM_OF_WORK, 7_464),
        ("an alarm of a wait and a crash", ALARM, 27_363),
        ("an alarm of a wait, a pause and an error", Bounds { pauses: 1, crashes: 0, then: "error", ..ALARM }, 23_021),
        ("two people", PEOPLE, 60_886),
        ("two people, of whom one may say no", Bounds { events: 4, failed: 0, ..PEOPLE }, 31_029),
        ("two people and a cancel", PEOPLE_CANCELLED, 66_490),
        ("two people and a pause", Bounds { pauses: 1, failed: 0, ..PEOPLE }, 135_834),
        ("two people, error and resubmit", PEOPLE_IN_ERROR, 70_158),
    ]
}

/// The order is stored with its first claims, and its Wake is a repetition of the submission.
const BEGUN: Bounds = Bounds { begins: true, ..QUICK };
const SLOW: Bounds = Bounds { timeouts: (2, 1), crashes: 0, failed: 0, ..QUICK };
const CANCEL_AND_CRASH: Bounds = Bounds { cancels: 1, failed: 0, b_has_undo: false, ..TWO };
const RESUBMIT: Bounds = Bounds { then: "error", failed: 1, resubmits: 1, crashes: 0, ..TWO };
const UNAVAILABLE: Bounds = Bounds { max: 2, unavailable: 1, failed: 0, crashes: 0, b_has_undo: false, ..TWO };
const DEFERRED: Bounds = Bounds { deferred: 1, failed: 0, b_has_undo: false, ..TWO };
const LEADERS: Bounds = Bounds { strict: true, leaders: 2, failed: 0, b_has_undo: false, ..TWO };
/// The undo begins while requests to services with tombstones may still be redelivered.
const TOMBSTONES: Bounds = Bounds { tombstones: true, crashes: 0, timeouts: (2, 1), ..QUICK };
/// What happens depends on whether a ran; its outcome may stay unknown.
const BRANCH: Bounds = Bounds { flow: Flow::Branch, failed: 2, crashes: 0, b_has_undo: true, ..QUICK };
/// A step that waits for a time between two others.
const TIMER: Bounds = Bounds { flow: Flow::Timer, ..QUICK };
/// A wait that is longer than a message may be delayed.
const LONG: Bounds = Bounds { flow: Flow::Long, ..QUICK };
/// A step that polls with a call that changes nothing, between two others.
const LOOK: Bounds = Bounds { flow: Flow::Look, looks: 2, failed: 0, ..QUICK };
/// One whose call may change something, last in its order.
const ASK: Bounds =
    Bounds { flow: Flow::Ask, with_c: false, b_has_undo: true, cancels: 1, failed: 0, crashes: 0, ..LOOK };
const POLL_IN_ERROR: Bounds = Bounds { then: "error", resubmits: 1, with_c: false, crashes: 0, looks: 1, ..LOOK };
/// A step whose service accepts its work, and reports its end early, late or never.
const ACCEPT: Bounds =
    Bounds { flow: Flow::Accept, chain: true, accepts: 1, failed: 0, with_c: false, b_has_undo: true, max: 2, ..QUICK };
/// It fails, and its callback comes then.
const ACCEPT_IN_ERROR: Bounds = Bounds { then: "error", failed: 1, resubmits: 1, crashes: 0, max: 1, ..ACCEPT };
/// A step whose agent sends heartbeats, as does that of its undo.
const BEAT: Bounds = Bounds { flow: Flow::Beat, timeouts: (4, 1), failed: 0, alone: true, ..TWO };
/// Another step fails beside it.
const BEAT_IN_ERROR: Bounds =
    Bounds { then: "error", failed: 1, alone: false, resubmits: 1, crashes: 0, b_has_undo: false, ..BEAT };
/// A step that waits for an event, early or late, and can be undone.
const EVENT: Bounds =
    Bounds { flow: Flow::Event, chain: true, events: 2, b_has_undo: true, with_c: false, deadline: None, ..QUICK };
/// Two steps that wait for events of one name, and three events.
const TWO_EVENTS: Bounds = Bounds { events: 3, with_c: true, failed: 0, crashes: 0, cancels: 1, ..EVENT };
/// A step that waits for an event, and reminds somebody of it.
const REMIND: Bounds = Bounds { reminds: true, events: 1, ..EVENT };
/// A step that waits for an event, and alerts operators once half of its time has passed.
const ALARM: Bounds = Bounds { alerts: true, events: 1, ..EVENT };
/// The same of a step that polls, and of one whose service reports later.
const REMIND_OF_LOOKS: Bounds = Bounds { reminds: true, with_c: false, crashes: 0, looks: 1, ..LOOK };
const ALARM_OF_LOOKS: Bounds = Bounds { alerts: true, with_c: false, crashes: 0, looks: 1, ..LOOK };
const REMIND_OF_WORK: Bounds = Bounds { reminds: true, max: 1, crashes: 0, ..ACCEPT };
const ALARM_OF_WORK: Bounds = Bounds { alerts: true, max: 1, crashes: 0, ..ACCEPT };
/// A step that needs the event of two people; [`world::Flow::People`] says who sends three of them.
const PEOPLE: Bounds = Bounds { flow: Flow::People, events: 3, crashes: 0, ..EVENT };
/// Somebody cancels the order before the first one, between both, or while the undo of what the first sent is due.
const PEOPLE_CANCELLED: Bounds = Bounds { cancels: 1, failed: 0, ..PEOPLE };
/// Both may send theirs while the order is in Error, and one may say no.
const PEOPLE_IN_ERROR: Bounds = Bounds { then: "error", chain: false, resubmits: 1, failed: 0, ..PEOPLE };
/// Its step waits while another fails.
const EVENT_IN_ERROR: Bounds = Bounds { then: "error", chain: false, resubmits: 1, crashes: 0, ..EVENT };
const GATE: Bounds = Bounds { flow: Flow::Gate, failed: 1, ..QUICK };
/// The undo of a fails as well, and a person skips it, marks it as done or resubmits the order: b failed before any call.
const GATE_BY_HAND: Bounds = Bounds { acts: 1, resubmits: 1, crashes: 0, with_c: false, ..GATE };
/// A refusal leaves nothing to undo, unless an earlier attempt may have done something.
const MAPPED: Bounds = Bounds { mapped: true, max: 2, failed: 1, crashes: 0, alone: true, cancels: 1, ..TWO };
/// An order that may take no longer than its steps.
const DEADLINE: Bounds = Bounds { deadline: Some(2), failed: 0, b_has_undo: false, ..TWO };
const LATE_ORDER: Bounds = Bounds {
    deadline: Some(1),
    then: "error",
    max: 2,
    failed: 0,
    crashes: 0,
    pauses: 1,
    resubmits: 1,
    alone: true,
    ..TWO
};
/// An attempt expires, or its reply arrives, between the cancel and its Wake.
const UNTOLD_TURN: Bounds = Bounds { tombstones: true, ..CANCEL_AND_CRASH };
/// The first claims outlive a later one.
const SLOWEST: Bounds = Bounds { timeouts: (3, 1), crashes: 0, ..QUICK };
/// A chain of steps, without an undo in the middle.
const CHAIN: Bounds = Bounds { chain: true, cancels: 1, failed: 0, crashes: 0, ..QUICK };
const LATE: Bounds = Bounds { late: true, crashes: 0, b_has_undo: false, ..TWO };
const PAUSE: Bounds = Bounds { pauses: 1, alone: true, ..TWO };
/// Somebody pauses the agents of both steps, and of their undos.
const WITHHELD: Bounds = Bounds { withholds: 1, failed: 0, ..TWO };
const BY_HAND: Bounds = Bounds { acts: 1, crashes: 0, b_has_undo: false, ..TWO };
/// A step that stops the order, and another whose last attempt ends after that.
const ERROR_BY_HAND: Bounds = Bounds { then: "error", ..BY_HAND };
const TWO_UNDOS: Bounds = Bounds { failed: 3, resubmits: 1, crashes: 0, ..TWO };
const UNDO_RETRY: Bounds = Bounds { failed: 0, crashes: 0, undo_max: 2, leaders: 2, b_has_undo: false, ..TWO };

fn full() -> Vec<(&'static str, Bounds, usize)> {
    vec![
        ("undo retried, two leaders", UNDO_RETRY, 5_764),
        ("slow first steps, retries", Bounds { timeouts: (2, 1), max: 2, ..QUICK }, 529_041),
        ("cancel with a failing undo", Bounds { cancels: 1, undo_max: 2, crashes: 0, ..TWO }, 916_951),
        ("resubmit and crash", Bounds { crashes: 1, ..RESUBMIT }, 285_054),
        ("resubmit or cancel", Bounds { cancels: 1, ..RESUBMIT }, 4_801_907),
        (
            "cancel after an error",
            Bounds { then: "error", failed: 1, cancels: 1, crashes: 0, b_has_undo: false, ..TWO },
            97_591,
        ),
        ("retries", Bounds { max: 2, unavailable: 1, deferred: 1, failed: 0, crashes: 0, ..TWO }, 4_238_299),
        ("resubmit of two undos", TWO_UNDOS, 9_636_109),
        ("slowest first steps, a failure and a crash", Bounds { crashes: 1, ..SLOWEST }, 85_220),
        ("chain, undone or failing", Bounds { acts: 1, failed: 1, ..CHAIN }, 260_038),
        ("more time and a crash", Bounds { crashes: 1, ..LATE }, 65_936),
        ("pause of two and crash", Bounds { alone: false, b_has_undo: false, ..PAUSE }, 530_541),
        ("two events, cancel and pause", Bounds { pauses: 1, ..TWO_EVENTS }, 911_167),
        ("an event, error, resubmit and an action", Bounds { acts: 1, ..EVENT_IN_ERROR }, 3_379_548),
        ("reminders, pause and cancel", Bounds { pauses: 1, cancels: 1, failed: 0, crashes: 0, ..REMIND }, 450_046),
        ("reminders, error and resubmit", Bounds { reminds: true, events: 1, ..EVENT_IN_ERROR }, 1_964_988),
        ("two people and a crash", Bounds { crashes: 1, cancels: 1, ..PEOPLE }, 808_713),
        ("two people, of whom one may say no, error and resubmit", Bounds { events: 4, ..PEOPLE_IN_ERROR }, 291_853),
        ("accepted work beside another step, error and resubmit", Bounds { chain: false, ..ACCEPT_IN_ERROR }, 664_395),
        (
            "heartbeats, a failure and a cancel",
            Bounds { unavailable: 1, cancels: 1, crashes: 0, max: 2, ..BEAT },
            719_569,
        ),
        ("heartbeats beside a failure", BEAT_IN_ERROR, 4_636_877),
        ("two actions after an error", Bounds { acts: 2, ..ERROR_BY_HAND }, 365_273),
    ]
}

fn is_full() -> bool {
    match std::env::var_os("MODEL") {
        None => false,
        Some(text) if text == "full" => true,
        Some(text) => panic!("MODEL={}: write full, or leave it out", text.display()),
    }
}

// J5, A6, and I1 to I6 and I8 of the protocol: in every order of events within the bounds. A task begins here as
// submitted. That one key makes one order, I7, is proved of every store by `many_submissions` in
// tests/contract/src/store.rs.
#[test]
fn no_order_of_events_breaks_the_protocol() {
    let all = if is_full() { full() } else { quick() };
    let only = std::env::var("NAME").unwrap_or_default();
    let wanted = all.into_iter().filter(|(name, ..)| name.contains(&only));
    assert_unchanged(wanted.map(|(name, bounds, golden)| (name, check(name, World::new(bounds, None), trace), golden)));
}

/// Both undo themselves, and people cancel.
const BOTH_UNDO: Plan =
    Plan { parent_then: "undo", child_then: "undo", refusals: 1, cancels: 1, resubmits: 0, ticks: 1, erases: 0 };
/// Both stop, and a person resubmits.
const BOTH_STOP: Plan = Plan { parent_then: "error", child_then: "error", resubmits: 1, ..BOTH_UNDO };
/// The child undoes itself, and another takes its place.
const CHILD_UNDOES: Plan = Plan { child_then: "undo", ..BOTH_STOP };
/// It is erased while people undo it and run it again.
const ERASED: Plan = Plan { refusals: 0, cancels: 0, ticks: 2, erases: 1, ..BOTH_UNDO };

// A parent and its children, of which each message may be lost, late or repeated.
#[test]
fn a_child_does_what_its_parent_says() {
    let plans = [
        ("a child and a cancel", BOTH_UNDO, 4_199),
        ("a child, error and resubmit", BOTH_STOP, 17_301),
        ("a child that undoes itself, and resubmit", CHILD_UNDOES, 5_571),
        ("a child, and both are erased", ERASED, 4_458),
    ];
    assert_unchanged(
        plans.into_iter().map(|(name, plan, golden)| (name, check(name, Family::new(plan, None), actions), golden)),
    );
}

#[test]
fn every_seeded_defect_of_children_is_caught() {
    assert_caught(family::Defect::ALL.into_iter().map(|defect| {
        let mut plans = [BOTH_UNDO, BOTH_STOP, CHILD_UNDOES, ERASED].into_iter();
        let found = plans.find_map(|plan| broken(Family::new(plan, Some(defect)).checker()));
        (defect, found.map(|(property, path)| format!("`{property}`: {:?}", path.into_actions())))
    }));
}

/// An order of an item that fails undoes itself, as its parent does then, and people cancel.
const LIST_UNDO: list::Plan = list::Plan {
    items: 2,
    at_once: 1,
    tolerate: "0%",
    then: "undo",
    stops: false,
    fails: 1,
    cancels: 1,
    resubmits: 0,
    beside: false,
    pauses: 0,
    ticks: 1,
};
/// It stops, and a person resubmits.
const LIST_STOP: list::Plan =
    list::Plan { then: "error", stops: true, resubmits: 1, cancels: 0, at_once: 2, ..LIST_UNDO };
/// It undoes itself, and another takes its place.
const LIST_ANEW: list::Plan = list::Plan { stops: false, fails: 2, at_once: 1, ..LIST_STOP };
/// One may fail, and both do.
const LIST_BOTH: list::Plan = list::Plan { tolerate: "50%", fails: 2, at_once: 1, ..LIST_STOP };
/// One may fail.
const LIST_TOLERANT: list::Plan = list::Plan { tolerate: "50%", at_once: 2, ..LIST_UNDO };
/// People pause it.
const LIST_PAUSE: list::Plan = list::Plan { items: 1, ..LIST_PAUSE_TWO };
const LIST_PAUSE_TWO: list::Plan = list::Plan { pauses: 1, fails: 0, ..LIST_UNDO };
/// A step beside it fails, or it does.
const LIST_BESIDE: list::Plan = list::Plan { beside: true, cancels: 0, ..LIST_UNDO };
/// They stop, and a person resubmits.
const LIST_BESIDE_STOP: list::Plan = list::Plan { items: 1, ..LIST_BESIDE_STOP_TWO };
const LIST_BESIDE_STOP_TWO: list::Plan = list::Plan { beside: true, at_once: 1, ..LIST_STOP };
/// A step beside it, and a pause.
const LIST_BESIDE_PAUSE: list::Plan = list::Plan { items: 1, pauses: 1, ..LIST_BESIDE };

// A parent and the orders for the items of its list, of which each message may be lost, late or repeated.
#[test]
fn a_list_is_done_item_by_item() {
    let mut plans = vec![
        ("a list and a cancel", LIST_UNDO, 1_494),
        ("a list, error and resubmit", LIST_STOP, 10_650),
        ("a list with items made anew", LIST_ANEW, 1_106),
        ("a list of which both fail and are tried again", LIST_BOTH, 1_076),
        ("a tolerant list and a cancel", LIST_TOLERANT, 10_207),
        ("a list, a pause and a cancel", LIST_PAUSE, 3_684),
        ("a list beside a step", LIST_BESIDE, 8_323),
        ("a list beside a step, error and resubmit", LIST_BESIDE_STOP, 11_834),
    ];
    if is_full() {
        plans.push(("a list of two, a pause and a cancel", LIST_PAUSE_TWO, 24_888));
        plans.push(("a list beside a step, and a pause", LIST_BESIDE_PAUSE, 27_333));
    }
    assert_unchanged(
        plans.into_iter().map(|(name, plan, golden)| (name, check(name, List::new(plan, None), actions), golden)),
    );
}

/// The defects of lists, by the bounds in which they are found.
fn defects_of_lists() -> [(Vec<list::Defect>, Vec<list::Plan>); 4] {
    use list::Defect as D;
    [
        (vec![D::LookLeavesThePause, D::OpensInAPause, D::PauseStaysAbove, D::ResumeIsNotDue], vec![LIST_PAUSE_TWO]),
        (vec![D::ListIsAll, D::FailureLeavesTheList, D::ReplyEndsTheList], vec![LIST_BESIDE]),
        (vec![D::OpensInError, D::ResubmitBeginsTheList], vec![LIST_BESIDE_STOP_TWO]),
        (
            vec![
                D::EndsAreCounted,
                D::CreateThenSave,
                D::AbsentIsUndone,
                D::OldRoundCounts,
                D::FailedIsToDo,
                D::AbsentIsNotMade,
                D::LookIsNotDue,
                D::UndoneIsKept,
                D::AskedIsUndone,
                D::BeginReplaces,
                D::AgainIsOpen,
                D::NothingOpenIsDone,
            ],
            vec![LIST_UNDO, LIST_STOP, LIST_ANEW, LIST_BOTH],
        ),
    ]
}

#[test]
fn every_seeded_defect_of_lists_is_caught() {
    for (defects, plans) in defects_of_lists() {
        assert_caught(defects.into_iter().map(|defect| {
            let found = plans.iter().find_map(|plan| broken(List::new(*plan, Some(defect)).checker()));
            (defect, found.map(|(property, path)| format!("`{property}`: {:?}", path.into_actions())))
        }));
    }
}

/// One step, which may stay unanswered. Two such tasks have the square of the number of states of one.
const ALONE: Bounds = Bounds { alone: true, failed: 0, crashes: 0, ..TWO };

// Two tasks under one clock: each keeps every rule whatever happens to the other, and what is sent for one names it.
#[test]
fn two_tasks_do_not_meet() {
    let (bounds, golden) = if is_full() { (Bounds { leaders: 2, ..ALONE }, 596_384) } else { (ALONE, 188_581) };
    let states = check("two tasks", Pair::new(bounds.clone(), false), actions);
    assert_unchanged([("two tasks", states, golden)].into_iter());
    // The check can fail: if messages do not name their task, one task takes the other's.
    let mixed = Pair::new(bounds, true).checker().finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    assert!(mixed.discovery("each of two tasks keeps every rule").is_some());
}

/// The defects, by the bounds in which each is found soonest.
fn seeded() -> Vec<(Bounds, Vec<Defect>)> {
    use Defect as D;
    vec![
        (UNDO_RETRY, vec![D::ExpireMakesPending, D::OlderLeaderWrites]),
        (CANCEL_AND_CRASH, vec![D::AdvanceLooksOnlyAtTheStep, D::CancelLosesItsWake]),
        (Bounds { failed: 2, ..RESUBMIT }, vec![D::ResubmitResetsOne]),
        (
            RESUBMIT,
            vec![D::ResubmitLeavesDueGone, D::ResubmitRestartsAttempts, D::EverySaveIsAsSeen, D::BookkeepingIsAChange],
        ),
        (
            Bounds { then: "error", failed: 2, resubmits: 1, ..TWO },
            vec![D::AlertDeliveredClearsAny, D::AlertIsNotDue, D::NoticeHasTodaysNumber],
        ),
        (SLOW, vec![D::RearmBySameFormula, D::DueIsFirstCompleteBy]),
        (TOMBSTONES, vec![D::ServicesForget]),
        (BRANCH, vec![D::ConditionsAreForgotten, D::CaughtIsNotUndone, D::CaughtIsTriedAgain]),
        (Bounds { with_c: false, alone: true, ..BRANCH }, vec![D::SupervisorLeavesTheEnd]),
        (GATE, vec![D::FailingEndsWithoutUndo]),
        (ERROR_BY_HAND, vec![D::SpentInErrorIsTriedAgain]),
        (GATE_BY_HAND, vec![D::FailureHoldsUpTheUndo, D::ResubmitDoesAndUndoes]),
        (DEADLINE, vec![D::DeadlineIsNotDue, D::DeadlineIsForgotten, D::StartsPastTheDeadline]),
        (LATE_ORDER, vec![D::ResubmitKeepsDeadline]),
        (MAPPED, vec![D::RefusalForgetsEarlierAttempts]),
        (TIMER, vec![D::WaitIsNotDue, D::WaitEndsEarly, D::WaitBeginsAgain, D::WaitLosesItsWake]),
        (LONG, vec![D::LookAheadIsTheLast]),
        (WITHHELD, vec![D::PausedAgentGetsWork, D::WaitForAnAgentIsNotDue]),
        (
            EVENT,
            vec![
                D::EventLeavesTheEnd,
                D::KeptIsNotTaken,
                D::KeptBeyondItsSteps,
                D::LateByTheClock,
                D::EventIsNotDue,
                D::KeyIsForgotten,
                D::KeptIsNotUndone,
                D::EventOwesNoNotice,
            ],
        ),
        (
            ACCEPT,
            vec![
                D::CallbackNeedsAccepted,
                D::AcceptedHoldsUpTheUndo,
                D::CallbackIsNotDue,
                D::CallbackLeavesTheEnd,
                D::CallbackIsForgotten,
            ],
        ),
        (Bounds { cancels: 1, crashes: 0, ..ACCEPT }, vec![D::AcceptedIsNotUndone]),
        (Bounds { pauses: 1, crashes: 0, ..ACCEPT }, vec![D::CallbackIsMissedInAPause]),
        (ACCEPT_IN_ERROR, vec![D::CallbackIsRefusedInError, D::ResubmitForgetsTheCallback]),
        (Bounds { unavailable: 1, cancels: 1, crashes: 0, max: 2, ..BEAT }, vec![D::BeatOfAnyAttempt]),
        (
            Bounds { cancels: 1, crashes: 0, ..BEAT },
            vec![
                D::BeatIsToldMore,
                D::BeatLeavesForwardBy,
                D::BeatIsRefusedInAnUndo,
                D::BeatHoldsUpTheUndo,
                D::BeatNeverEnds,
                D::BeatIsAChange,
                D::BeatMakesItYoung,
                D::BeatIsAClaim,
                D::SilentWorkerIsNotMissed,
            ],
        ),
        (
            LOOK,
            vec![
                D::LookHoldsUpTheUndo,
                D::SilentLooksNeverEnd,
                D::LookIsAChange,
                D::LookBeginsThePollAgain,
                D::LookIsAFailure,
                D::LookIsNotHeldBack,
                D::LookIsNotSentAgain,
            ],
        ),
        (Bounds { pauses: 1, crashes: 0, ..LOOK }, vec![D::LookIsClaimedInAPause]),
        (ASK, vec![D::AskLeavesForwardBy]),
        (POLL_IN_ERROR, vec![D::ResubmitKeepsThePoll]),
        (TWO_EVENTS, vec![D::TakenTwice, D::TakenIsNotUndone]),
        (
            PEOPLE,
            vec![
                D::PersonIsAKey,
                D::KeyIsEverybodys,
                D::OnePersonIsEnough,
                D::FirstIsNotUndone,
                D::FirstBeginsTheTimeAgain,
                D::TimeMakesOneEnough,
            ],
        ),
        (PEOPLE_CANCELLED, vec![D::SecondCountsAfterACancel]),
        (Bounds { pauses: 1, failed: 0, ..PEOPLE }, vec![D::SaveForgetsTheFirst]),
        (PEOPLE_IN_ERROR, vec![D::ResubmitForgetsTheFirst]),
        (
            REMIND,
            vec![
                D::ReminderIsAnAttempt,
                D::ReminderMovesForwardBy,
                D::ReminderIsNotCounted,
                D::ReminderIsNotDue,
                D::ReminderReplyCounts,
                D::ReminderIsNotSentAgain,
                D::ReminderIsAChange,
            ],
        ),
        (ALARM, vec![D::AlarmIsForgotten, D::AlarmTwice]),
        (REMIND_OF_LOOKS, vec![D::LookPutsTheReminderOff]),
        (ALARM_OF_LOOKS, vec![D::LookForgetsItsAlarm]),
        (Bounds { chain: false, ..ALARM }, vec![D::AlarmEarly]),
        (Bounds { pauses: 1, failed: 0, crashes: 0, ..ALARM }, vec![D::AlarmInAPause]),
        (Bounds { pauses: 1, failed: 0, crashes: 0, ..REMIND }, vec![D::RemindsInAPause, D::RemindsForEver]),
        (Bounds { events: 4, failed: 0, ..PEOPLE }, vec![D::NoCountsAsYes]),
        (Bounds { pauses: 1, ..EVENT }, vec![D::WaitRunsOutInAPause]),
        (EVENT_IN_ERROR, vec![D::WaitRunsOutEarly, D::WaitRunsOutInError, D::ResubmitKeepsTheWait]),
        (Bounds { pauses: 1, failed: 0, crashes: 0, ..TIMER }, vec![D::WaitEndsInAPause]),
        (BEGUN, vec![D::RepeatedSubmissionIsTooLate]),
        (Bounds { crashes: 0, ..QUICK }, vec![D::UndoInAnyOrder]),
        (
            UNAVAILABLE,
            vec![D::ClaimNeedsUnlockedTask, D::StaleReplyCounts, D::ExpiryIsNotCounted, D::ExpiryCountsTwice],
        ),
        (SLOWEST, vec![D::ForwardByIsTheLast]),
        (LATE, vec![D::ExtensionLeavesForwardBy]),
        (CHAIN, vec![D::UndoWaitsForDirectDependents]),
        (PAUSE, vec![D::ResumeSendsNoNotice]),
        (Bounds { crashes: 2, ..CANCEL_AND_CRASH }, vec![D::OlderWakeBeginsTheUndo]),
        (UNTOLD_TURN, vec![D::ExpirySendsNoNotice, D::ReplySendsNoNotice]),
        (UNTOLD, vec![D::ClearsAfterAFailure]),
        (
            QUICK,
            vec![
                D::PassedWakeDoesNothing,
                D::WakeOvertakesNotice,
                D::ResendMeansRequests,
                D::OwnStampMeansMine,
                D::UndoDoesNotWait,
                D::UnknownIsNotUndone,
                D::LateReplyCounts,
                D::LastNoticeHasAnOldNumber,
                D::ReplyResendsNothing,
                D::VersionStays,
                D::SiblingStartsAfterFailure,
            ],
        ),
    ]
}

/// A supervisor stops the task, and its notice is refused.
const UNTOLD: Bounds = Bounds { then: "error", failed: 0, ..TWO };

/// The model finds every seeded defect within this number of events.
const MAX_TRACE: usize = 20;

/// What `defect` breaks within these bounds, if anything. Increasing the depth step by step gives a shortest trace: the
/// checker itself keeps the last discovery of a block, not the first.
fn caught(defect: Defect, bounds: &Bounds) -> Option<String> {
    let begin = Instant::now();
    let (property, path) = (2..=MAX_TRACE)
        .find_map(|depth| broken(World::new(bounds.clone(), Some(defect)).checker().target_max_depth(depth)))?;
    Some(format!("`{property}` ({:.2} s):\n{}", begin.elapsed().as_secs_f64(), trace(path)))
}

// The checks are checked: each wording that looked right and was not, and each further defect, is caught.
#[test]
fn every_seeded_defect_is_caught() {
    let all = seeded()
        .into_iter()
        .flat_map(|(bounds, defects)| defects.into_iter().map(move |defect| (defect, caught(defect, &bounds))));
    assert_caught(all);
}
