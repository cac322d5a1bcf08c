//! A step that collects three pages: every order of its messages, with each one lost, late or delivered again, attempts that expire, a page that
//! fails and is resubmitted, and a crash after any save. Old replies are delivered again at any time.
//!
//! The service remembers keys and answers a known one as before.

use crate::common::*;
use serde_json::{Value, json};
use shared::decision::{Act, Decision, Event, Turn, What};
use shared::message::{Effect, Outcome, Reply};
use shared::outputs::Outputs;
use shared::scheduler::schedule;
use shared::step::State;
use shared::supervisor::{Verdict, supervise};
use shared::task::{Phase, Task};
use shared::workflow::Workflow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// Number of the last page. Page `n` has the item `n`, and the cursor `n + 1` leads to the next one.
const LAST: u64 = 3;
/// Seconds that pass at once: longer than an attempt and its skew.
const TICK: i64 = 20;

/// The harm that collecting can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Harm {
    /// The list is not that of the service.
    WrongList,
    /// The service was asked for one page under two keys, or for two under one.
    WrongKey,
    /// The order did not get to its end.
    Stuck,
}

/// The core as it is, or with one rule replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wording {
    Right,
    /// The items of an answer are added before its attempt is compared.
    AppendBeforeFence,
    /// All pages have the key of the step.
    NoPageInKey,
    /// The key has the attempt in place of the page.
    AttemptInKey,
    /// An answer counts whatever page it is of.
    EarlierPageCounts,
    /// A resubmission asks for the first page, and keeps what was collected.
    RestartKeepsItems,
    /// The items are added in one save, and the cursor moves on in another one.
    TwoSaves,
    /// The page counts once it is asked for: after an attempt without an answer the next one follows.
    CountedWhenAsked,
}

const WRONG: [Wording; 7] = [
    Wording::AppendBeforeFence,
    Wording::NoPageInKey,
    Wording::AttemptInKey,
    Wording::EarlierPageCounts,
    Wording::RestartKeepsItems,
    Wording::TwoSaves,
    Wording::CountedWhenAsked,
];

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Call {
    attempt: u32,
    key: String,
    /// The page that its cursor is of.
    page: u64,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    task: Task,
    now: i64,
    /// Requests that were sent and not answered.
    open: BTreeSet<Call>,
    /// All replies that were ever sent: attempt, and the page.
    replies: BTreeSet<(u32, u64)>,
    /// By key: the page with which it was answered.
    service: BTreeMap<String, u64>,
    /// What may still happen.
    fails: u8,
    resubmits: u8,
    crashes: u8,
    ticks: u8,
    harm: Option<Harm>,
}

struct Model {
    workflow: Workflow,
    wording: Wording,
}

impl Model {
    fn new(wording: Wording) -> Self {
        let text = "name = \"pages\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n\
                    retry = { max = 9, backoff = [\"0s\"], then = \"error\" }\non_failure = \"error\"\n\
                    with = { cursor = \"${page.?cursor}\" }\n\
                    pages = { items = \"${answer.rows}\", next = \"${answer.?next}\" }\n";
        Self { workflow: read(text), wording }
    }

    fn first(&self) -> World {
        World {
            task: submitted(&self.workflow),
            now: 1,
            open: BTreeSet::new(),
            replies: BTreeSet::new(),
            service: BTreeMap::new(),
            fails: 1,
            resubmits: 1,
            crashes: 1,
            ticks: 1,
            harm: None,
        }
    }

    fn turn<'a>(&'a self, world: &World, outputs: &'a Outputs) -> Turn<'a> {
        turn(&self.workflow, at(world.now), &Value::Null, outputs)
    }

    fn sent(&self, world: &mut World, effects: Vec<Effect>) {
        for effect in effects {
            let Effect::Request(request) = effect else { continue };
            let page = request.input["cursor"].as_u64().unwrap_or(1);
            let base = request.idempotency_key.split(":page-").next().unwrap_or_default();
            let key = match self.wording {
                Wording::NoPageInKey => base.to_owned(),
                Wording::AttemptInKey => format!("{base}:{}", request.attempt),
                _ => request.idempotency_key.clone(),
            };
            world.open.insert(Call { attempt: request.attempt, key, page });
        }
    }

    /// The worlds after this event: its messages are sent, or lost with the instance.
    fn on(&self, world: &World, event: &Event) -> Vec<World> {
        let outputs = Outputs::default();
        let (mut next, effects) = match schedule(&world.task, event, &self.turn(world, &outputs)) {
            Decision::Save { task, effects } => (World { task: *task, ..world.clone() }, effects),
            Decision::Keep { effects, .. } => (world.clone(), effects),
        };
        let mut all = Vec::new();
        if world.crashes > 0 && !effects.is_empty() {
            all.push(World { crashes: world.crashes - 1, ..next.clone() });
        }
        self.sent(&mut next, effects);
        all.push(next);
        all
    }

    /// The service answers.
    fn answered(&self, world: &World, call: &Call) -> Vec<World> {
        let mut next = world.clone();
        next.open.remove(call);
        let page = *next.service.entry(call.key.clone()).or_insert(call.page);
        let is_other = |(key, known): (&String, &u64)| (key == &call.key) != (*known == call.page);
        if next.service.iter().any(is_other) {
            next.harm = Some(Harm::WrongKey);
        }
        next.replies.insert((call.attempt, page));
        self.replied(&next, (call.attempt, page))
    }

    fn replied(&self, world: &World, (attempt, page): (u32, u64)) -> Vec<World> {
        let step = &world.task.steps[0];
        let attempt = if self.wording == Wording::EarlierPageCounts { step.attempt } else { attempt };
        let mut answer = json!({ "rows": [page] });
        if page < LAST {
            answer["next"] = json!(page + 1);
        }
        let reply = Reply::new(world.task.id.clone(), "a", attempt, Outcome::Done { output: answer });
        let event = Event::Reply(Reply { tenant: "t".into(), ..reply });
        let mut all = self.on(world, &event);
        let add = |task: &mut Task| {
            if let Some(pages) = &mut task.steps[0].pages {
                (pages.items, pages.bytes) = (pages.items + 1, pages.bytes + 2);
                pages.tail.push(json!(page));
            }
        };
        let holds = world.task.steps[0].claim().is_some() && attempt == step.attempt;
        match self.wording {
            Wording::AppendBeforeFence if !holds && attempt < step.attempt && world.crashes > 0 => {
                for next in &mut all {
                    add(&mut next.task);
                    // No further state for each time that it is repeated.
                    next.crashes = 0;
                }
            }
            Wording::TwoSaves if holds && world.crashes > 0 && step.pages.is_some() => {
                let mut half = World { crashes: 0, ..world.clone() };
                add(&mut half.task);
                all.push(half);
            }
            _ => {}
        }
        all
    }

    fn expired(&self, world: &World) -> Vec<World> {
        let outputs = Outputs::default();
        let Verdict::Recover { task, effects, .. } = supervise(&world.task, 1, &self.turn(world, &outputs)) else {
            return Vec::new();
        };
        let mut next = World { task: *task, ..world.clone() };
        if self.wording == Wording::CountedWhenAsked
            && let Some(pages) = &mut next.task.steps[0].pages
            && let Some(page) = pages.cursor.as_ref().and_then(Value::as_u64).filter(|page| *page < LAST)
        {
            (pages.taken, pages.cursor) = (pages.taken + 1, Some(json!(page + 1)));
        }
        self.sent(&mut next, effects);
        vec![next]
    }

    fn next(&self, world: &World) -> Vec<World> {
        let mut all = Vec::new();
        // A Wake of any save may come at any time: the sweep sends what is lost.
        if world.task.phase == Phase::Forward {
            all.extend(self.on(world, &Event::Wake { seen: world.task.version.saturating_sub(1), hops: 0 }));
        }
        for call in &world.open {
            all.extend(self.answered(world, call));
            let mut lost = world.clone();
            lost.open.remove(call);
            all.push(lost);
            if world.fails > 0 && world.task.steps[0].attempt == call.attempt {
                let mut refused = World { fails: 0, ..world.clone() };
                refused.open.remove(call);
                let reply =
                    Reply::new(world.task.id.clone(), "a", call.attempt, Outcome::Failed { error: "no".into() });
                all.extend(self.on(&refused, &Event::Reply(Reply { tenant: "t".into(), ..reply })));
            }
        }
        all.extend(world.replies.iter().flat_map(|&reply| self.replied(world, reply)));
        if world.ticks > 0 && world.task.steps[0].claim().is_some() {
            let late = World { ticks: 0, now: world.now + TICK, ..world.clone() };
            all.extend(self.expired(&late));
            all.push(late);
        }
        if world.task.phase == Phase::Error && world.resubmits > 0 {
            let what = What::Resubmit { step: None, input: None };
            let act = Act { what, by: "p".into(), reason: "r".into(), seen: None };
            all.extend(self.on(world, &Event::Act(act)).into_iter().map(|mut next| {
                next.resubmits = 0;
                if let Some(pages) =
                    next.task.steps[0].pages.as_mut().filter(|_| self.wording == Wording::RestartKeepsItems)
                {
                    (pages.taken, pages.cursor) = (0, None);
                }
                next
            }));
        }
        all.iter_mut().for_each(|next| next.harm = next.harm.or(self.wrong(next)));
        all.retain(|next| next != world);
        all
    }

    /// What was collected is a beginning of the list; what is done is all of it.
    fn wrong(&self, world: &World) -> Option<Harm> {
        let step = &world.task.steps[0];
        let expected = |to: u32| (1..=u64::from(to)).map(|n| json!(n)).collect::<Vec<_>>();
        let is_right = match (&step.state, &step.pages) {
            (State::Processed, _) => step.output == Some(json!(expected(3))),
            (_, Some(pages)) => pages.tail == expected(pages.taken) && pages.items == pages.taken,
            (_, None) => true,
        };
        (!is_right).then_some(Harm::WrongList)
    }

    /// An order to which nothing more comes is done, unless its last attempt was lost and its time has not passed.
    fn end(&self, world: &World) -> Option<Harm> {
        let waits = world.ticks == 0 && world.task.steps[0].claim().is_some();
        let is_done = world.task.phase == Phase::Processed;
        if is_done || waits && !self.expired(&World { now: world.now + TICK, ..world.clone() }).is_empty() {
            return None;
        }
        Some(Harm::Stuck)
    }

    /// A harm that an order can come to, the number of states, and whether one is done.
    fn search(&self) -> (BTreeSet<Harm>, usize, bool) {
        let (mut harms, mut seen, mut ahead) = (BTreeSet::new(), HashSet::new(), vec![self.first()]);
        let mut is_done = false;
        while let Some(world) = ahead.pop() {
            if !seen.insert(world.clone()) {
                continue;
            }
            harms.extend(world.harm);
            is_done |= world.task.phase == Phase::Processed;
            // One harm is enough.
            if !harms.is_empty() {
                break;
            }
            let next = self.next(&world);
            if next.is_empty() {
                harms.extend(self.end(&world));
            }
            ahead.extend(next);
        }
        (harms, seen.len(), is_done)
    }
}

// M2: each page is in the list once and in its order, under one key.
#[test]
fn no_page_is_lost_or_there_twice() {
    let begin = std::time::Instant::now();
    let (harms, states, is_done) = Model::new(Wording::Right).search();
    println!("pages: {states} states, {:.1} s", begin.elapsed().as_secs_f64());
    assert!(harms.is_empty() && is_done, "{harms:?}");
}

// Each rule is needed.
#[test]
fn wrong_wordings_of_collecting_pages_do_harm() {
    for wording in WRONG {
        let (harms, states, _) = Model::new(wording).search();
        println!("{wording:?}: {harms:?} ({states} states)");
        assert!(!harms.is_empty(), "{wording:?} does no harm, so the rule is not needed");
    }
}
