//! Orders that are run again: every graph up to three steps, every choice of undos, from every step, in every state that an order
//! reaches, with every order in which its messages arrive. Old replies and events are delivered again at any time.
//!
//! The service remembers keys, answers a known one as before, and refuses the key of what it has undone.

use crate::common::*;
use crate::migration::{Graph, members};
use serde_json::{Value, json};
use shared::again::Wish;
use shared::decision::{Act, Decision, Declined, Event, Kept, Turn, What};
use shared::history::Kind;
use shared::message::{Effect, Outcome, Reply};
use shared::outputs::Outputs;
use shared::scheduler::schedule;
use shared::step::Direction;
use shared::task::{Phase, Task};
use shared::workflow::Workflow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// The harm that running again can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Harm {
    /// A step that was done again has what the round before returned.
    OldResult,
    /// What a step does is there more than once.
    Twice,
    /// It is not there, and the order says that it is done.
    Missing,
    /// A step was undone before one that came after it.
    UndoneTooEarly,
    /// The order did not get to its end.
    Stuck,
    /// An event of the new round was refused for good.
    Refused,
}

/// The core as it is, or with one rule replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wording {
    Right,
    /// Attempts count from 1 again, so an old reply fits.
    AttemptsRestart,
    /// What is replaced is not undone.
    UndoForgotten,
    /// What was undone keeps its key.
    OldKeys,
    /// Also what was not undone gets a new key.
    NewKeys,
    /// Only the named step is done again, and not what comes after it.
    OnlyNamed,
    /// The keys of events are forgotten with their round.
    EventsForgotten,
    /// What comes while the order is undone comes too late.
    EventsLate,
}

const WRONG: [Wording; 7] = [
    Wording::AttemptsRestart,
    Wording::UndoForgotten,
    Wording::OldKeys,
    Wording::NewKeys,
    Wording::OnlyNamed,
    Wording::EventsForgotten,
    Wording::EventsLate,
];

#[derive(Clone, PartialEq, Eq, Hash)]
struct Call {
    step: usize,
    attempt: u32,
    direction: Direction,
    key: String,
    undoes: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    task: Task,
    open: Vec<Call>,
    /// All replies that were ever sent: step, attempt, and whether the service did it.
    replies: BTreeSet<(usize, u32, bool)>,
    /// By key: whether it is done, and not undone.
    service: BTreeMap<(usize, String), bool>,
    /// Long after all that was sent before.
    late: bool,
    asked: bool,
    /// Attempts of each step that was put back.
    before: BTreeMap<usize, u32>,
    harm: Option<Harm>,
}

struct Model {
    workflow: Workflow,
    graph: Graph,
    undo: usize,
    /// Whether the first step waits for an event.
    waits: bool,
    wording: Wording,
}

impl Model {
    fn new(graph: &Graph, undo: usize, waits: bool, wording: Wording) -> Self {
        let mut steps: Vec<usize> = members(graph.steps).collect();
        steps.sort_by_key(|&step| graph.before[step].count_ones());
        let mut text = "name = \"again\"\n".to_owned();
        for step in steps {
            let after: Vec<&str> = members(graph.before[step]).map(|i| NAMES[i]).collect();
            let work = if waits && step == 0 {
                "event = \"go\"\ntimeout = \"1h\""
            } else {
                "agent = \"x\"\ntimeout = \"10s\""
            };
            text += &format!("[[step]]\nname = \"{}\"\n{work}\nafter = {after:?}\n", NAMES[step]);
            if undo & (1 << step) != 0 {
                text += "undo = { agent = \"x\" }\n";
            }
        }
        Self { workflow: read(&text), graph: graph.clone(), undo, waits, wording }
    }

    fn first(&self) -> World {
        World {
            task: submitted(&self.workflow),
            open: Vec::new(),
            replies: BTreeSet::new(),
            service: BTreeMap::new(),
            late: false,
            asked: false,
            before: BTreeMap::new(),
            harm: None,
        }
    }

    fn index(&self, step: usize) -> usize {
        self.workflow.position(NAMES[step]).expect("it is there")
    }

    fn step(&self, name: &str) -> usize {
        NAMES.iter().position(|known| *known == name).expect("one of them")
    }

    fn turn<'a>(&'a self, world: &World, outputs: &'a Outputs) -> Turn<'a> {
        turn(&self.workflow, at(if world.late { 1000 } else { 1 }), &Value::Null, outputs)
    }

    /// The world after this event; `None` if nothing is saved.
    fn on(&self, world: &World, event: &Event) -> Option<World> {
        let outputs = Outputs::default();
        let decision = schedule(&world.task, event, &self.turn(world, &outputs));
        let Decision::Save { task, effects } = decision else { return None };
        let mut next = World { task: *task, ..world.clone() };
        let put_back = |task: &Task| task.log.iter().filter(|entry| entry.1 == Kind::PutBack).count();
        if self.wording == Wording::OnlyNamed
            && world.task.again.is_none()
            && let Some(again) = &mut next.task.again
        {
            again.steps.truncate(1);
        }
        if put_back(&next.task) > put_back(&world.task) {
            self.was_put_back(&mut next, world);
        }
        for effect in effects {
            let Effect::Request(request) = effect else { continue };
            let call = Call {
                step: self.step(&request.step),
                attempt: request.attempt,
                direction: request.direction,
                key: request.idempotency_key.clone(),
                undoes: request.undoes.clone(),
            };
            if call.direction == Direction::Undo {
                let is_there = |later: &usize| {
                    let is_live = next.service.iter().any(|((step, _), live)| step == later && *live);
                    self.undo & (1 << later) != 0 && self.graph.before[*later] & (1 << call.step) != 0 && is_live
                };
                if self.wording != Wording::UndoForgotten && (0..NAMES.len()).any(|later| is_there(&later)) {
                    next.harm = Some(Harm::UndoneTooEarly);
                }
            }
            if !next.open.contains(&call) {
                next.open.push(call);
            }
        }
        Some(next)
    }

    /// Whether the event of the new round is refused as one that nothing will ever wait for.
    fn is_refused(&self, world: &World, event: &Event) -> bool {
        if self.wording == Wording::EventsLate && world.task.again.is_some() {
            return true;
        }
        let outputs = Outputs::default();
        let decision = schedule(&world.task, event, &self.turn(world, &outputs));
        matches!(decision, Decision::Keep { why: Kept::Declined(Declined::Late), .. })
    }

    fn was_put_back(&self, next: &mut World, world: &World) {
        for step in members(self.graph.steps) {
            let index = self.index(step);
            let (was, now) = (&world.task.steps[index], &mut next.task.steps[index]);
            let is_named = next.before.contains_key(&step);
            let Some(rounds) = &mut now.rounds else { continue };
            if is_named {
                next.before.insert(step, was.attempt);
            }
            match self.wording {
                Wording::AttemptsRestart => (now.attempt, rounds.before) = (0, 0),
                Wording::OldKeys => rounds.key = 0,
                Wording::NewKeys => rounds.key = rounds.round,
                _ => {}
            }
        }
        if self.wording == Wording::EventsForgotten {
            next.task.events.clear();
        }
    }

    /// The service does what it is asked for, and answers.
    fn answered(&self, world: &World, n: usize) -> World {
        let mut next = world.clone();
        let call = next.open.remove(n);
        let done = match call.direction {
            Direction::Do => {
                let live = next.service.entry((call.step, call.key.clone())).or_insert(true);
                *live
            }
            Direction::Undo => {
                if self.wording != Wording::UndoForgotten {
                    next.service.insert((call.step, call.undoes.clone().expect("of an undo")), false);
                }
                true
            }
        };
        next.replies.insert((call.step, call.attempt, done));
        self.replied(&next, &(call.step, call.attempt, done)).unwrap_or(next)
    }

    fn replied(&self, world: &World, (step, attempt, done): &(usize, u32, bool)) -> Option<World> {
        let outcome = match done {
            true => Outcome::Done { output: json!({ "attempt": attempt }) },
            false => Outcome::Failed { error: "undone".into() },
        };
        let reply = Reply::new(world.task.id.clone(), NAMES[*step], *attempt, outcome);
        self.on(world, &Event::Reply(Reply { tenant: "t".into(), ..reply }))
    }

    fn next(&self, world: &World) -> Vec<World> {
        let wake = Event::Wake { seen: world.task.version, hops: 0 };
        let mut all: Vec<World> = self.on(world, &wake).into_iter().collect();
        all.extend((0..world.open.len()).map(|n| self.answered(world, n)));
        all.extend(world.replies.iter().filter_map(|reply| self.replied(world, reply)));
        if self.waits {
            // The second one is sent once the order was asked to run again.
            for n in 1..=if world.asked { 2 } else { 1 } {
                let event =
                    Event::Arrived { name: "go".into(), key: format!("k{n}"), data: json!({ "n": n }), by: None };
                if n == 2 && world.before.contains_key(&0) && self.is_refused(world, &event) {
                    all.push(World { harm: Some(Harm::Refused), ..world.clone() });
                }
                all.extend(self.on(world, &event));
            }
        }
        if !world.late && world.open.is_empty() && (world.asked || world.task.phase == Phase::Processed) {
            all.push(World { late: true, ..world.clone() });
        }
        for step in members(self.graph.steps).filter(|_| !world.asked) {
            let wish = Wish { from: vec![NAMES[step].to_owned()], new_keys: false, without_undo: true };
            let act = Act { what: What::RunAgain(wish), by: "p".into(), reason: "r".into(), seen: None };
            if let Some(mut next) = self.on(world, &Event::Act(act)) {
                next.asked = true;
                // All that it means, whatever the core put into the record.
                let is_meant = |&other: &usize| other == step || self.graph.before[other] & (1 << step) != 0;
                let has_begun = |other: &usize| {
                    let was = &world.task.steps[self.index(*other)];
                    was.attempt > 0 || was.is_settled()
                };
                let meant = members(self.graph.steps).filter(is_meant);
                next.before =
                    meant.filter(has_begun).map(|other| (other, world.task.steps[self.index(other)].attempt)).collect();
                all.push(next);
            }
        }
        all
    }

    /// What is wrong with an order to which nothing more comes.
    fn end(&self, world: &World) -> Option<Harm> {
        if world.harm.is_some() || !world.asked {
            return world.harm;
        }
        if world.task.phase != Phase::Processed {
            return Some(Harm::Stuck);
        }
        for step in members(self.graph.steps) {
            let record = &world.task.steps[self.index(step)];
            let output = record.output.clone().unwrap_or_default();
            if self.waits && step == 0 {
                if world.before.contains_key(&step) && output["n"] != 2 {
                    return Some(Harm::OldResult);
                }
                continue;
            }
            match world.service.iter().filter(|((of, _), live)| *of == step && **live).count() {
                0 => return Some(Harm::Missing),
                1 => {}
                _ => return Some(Harm::Twice),
            }
            let before = world.before.get(&step).copied().unwrap_or_default();
            if output["attempt"].as_u64().unwrap_or_default() <= u64::from(before) {
                return Some(Harm::OldResult);
            }
        }
        None
    }

    /// All harm that an order can come to, and the number of states.
    fn search(&self) -> (BTreeSet<Harm>, usize) {
        let (mut harms, mut seen, mut ahead) = (BTreeSet::new(), HashSet::new(), vec![self.first()]);
        while let Some(world) = ahead.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            let next = self.next(&world);
            harms.extend(world.harm);
            if next.iter().all(|next| seen.contains(next)) {
                harms.extend(self.end(&world));
            }
            ahead.extend(next);
        }
        (harms, seen.len())
    }
}

fn all(most: usize, wording: Wording) -> impl Iterator<Item = Model> {
    Graph::forms(most).into_iter().flat_map(move |graph| {
        let undos = (0..=graph.steps).filter(|undo| undo & !graph.steps == 0).collect::<Vec<_>>();
        undos.into_iter().flat_map(move |undo| {
            let waits = [false, true].into_iter().filter(|waits| !waits || undo & 1 == 0);
            waits.map(|waits| Model::new(&graph, undo, waits, wording)).collect::<Vec<_>>()
        })
    })
}

// M7: no order that is run again does anything twice that could be undone, and nothing of an earlier round counts.
#[test]
fn no_order_that_is_run_again_comes_to_harm() {
    let (begin, mut states) = (std::time::Instant::now(), 0);
    for model in all(3, Wording::Right) {
        let (harms, count) = model.search();
        states += count;
        assert!(harms.is_empty(), "{:?} {:b} {}: {harms:?}", model.graph, model.undo, model.waits);
    }
    println!("run again: {states} states, {:.1} s", begin.elapsed().as_secs_f64());
}

// Each rule is needed.
#[test]
fn wrong_wordings_of_running_again_do_harm() {
    for wording in WRONG {
        let mut harms = BTreeSet::new();
        all(2, wording).for_each(|model| harms.extend(model.search().0));
        println!("{wording:?}: {harms:?}");
        assert!(!harms.is_empty(), "{wording:?} does no harm, so the rule is not needed");
    }
}
