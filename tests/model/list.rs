//! A parent and the orders for the items of its list, perhaps with another step beside it: every order of messages, with each one lost, late
//! or delivered twice. The parent is the real core. An order of an item is what its parent can see of one: `family` proves that real ones
//! behave so.

use crate::common::*;
use serde_json::json;
use shared::decision::{Act, Decision, Event, What};
use shared::items::{Item, Items};
use shared::message::{Effect, Outcome, Reply};
use shared::order::Id;
use shared::outputs::Outputs;
use shared::scheduler::schedule;
use shared::step::State as Of;
use shared::supervisor::{Verdict, supervise};
use shared::task::{Parent, Phase, Task};
use shared::workflow::Workflow;
use shared::workflow::child::{self, ToChild, Wish};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

/// Seconds that pass at once: longer than the time to the next look.
const TICK: i64 = 61;
/// More of them than a list needs once nothing fails any more.
const MOST_TICKS: usize = 60;
/// How often a person has to resubmit it then, at most.
const MOST_RESUBMITS: usize = 2;

/// The step beside the list.
const BESIDE: &str =
    "[[step]]\nname = \"b\"\nafter = []\nagent = \"x\"\ntimeout = \"10s\"\nretry = { max = 1, backoff = [] }\n";

/// The order of an item, and the round in which it was made.
pub type Place = (usize, u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Is {
    Running,
    Done,
    Stopped,
    Undoing,
    Undone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Kid {
    is: Is,
    round: u32,
    /// With its parent.
    paused: bool,
    /// Something was done and is not undone.
    did: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Msg {
    Wake {
        seen: u64,
    },
    Hint {
        seen: u64,
        part: u32,
    },
    Ask {
        place: Place,
        round: u32,
        wish: Asked,
    },
    /// Of the step beside the list.
    Request {
        attempt: u32,
        by: i64,
    },
    Reply {
        attempt: u32,
        good: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Deliver(Msg),
    /// The agent of the step beside the list refuses.
    Refuse(Msg),
    Ends(Place, bool),
    Supervise,
    Cancel,
    Resubmit,
    Pause,
    Resume,
    Tick,
    /// Only with the defect that asks before it saves: the save is lost.
    AskWithoutSave(Msg),
}

/// Wordings that look right and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// One more is done with each hint.
    EndsAreCounted,
    /// The orders are made, and then the record says so.
    CreateThenSave,
    /// An undo reaches the orders that exist.
    AbsentIsUndone,
    /// An end counts whatever round it is of.
    OldRoundCounts,
    /// What failed is to do again, as if it had never begun.
    FailedIsToDo,
    /// Only the instance that recorded the orders makes them.
    AbsentIsNotMade,
    /// Without a hint, the parent never looks.
    LookIsNotDue,
    /// What undid itself is not made anew.
    UndoneIsKept,
    /// An order is undone as soon as it is asked.
    AskedIsUndone,
    /// A late instance makes the order whatever is there.
    BeginReplaces,
    /// All that failed is open at once when it is tried again.
    AgainIsOpen,
    /// The step is done once nothing is open.
    NothingOpenIsDone,
    /// A pause ends where the message of its end arrives, and no look makes up for it.
    LookLeavesThePause,
    /// A list goes on in a pause of its order: what has ended makes room.
    OpensInAPause,
    /// A pause leaves the orders as they are, so they run on.
    PauseStaysAbove,
    /// An order is done once its list is.
    ListIsAll,
    /// A list that is open when another step fails is left as it is.
    FailureLeavesTheList,
    /// A list goes on while its order is in Error for another step.
    OpensInError,
    /// A person who resubmits another step begins the list anew.
    ResubmitBeginsTheList,
    /// After a pause the next look is as far away as ever.
    ResumeIsNotDue,
    /// The attempt of a step beside the list ends the wait for the list.
    ReplyEndsTheList,
}

/// What may happen, and the policies.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub items: usize,
    pub at_once: usize,
    pub tolerate: &'static str,
    pub then: &'static str,
    /// An order that fails stops. Otherwise it undoes itself.
    pub stops: bool,
    /// Another step runs at the same time. It may fail instead of an order of an item.
    pub beside: bool,
    pub fails: u8,
    pub cancels: u8,
    pub resubmits: u8,
    pub pauses: u8,
    pub ticks: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub own: Arc<Task>,
    pub kids: BTreeMap<Place, Kid>,
    pub net: BTreeSet<Msg>,
    pub now: i64,
    pub fails: u8,
    pub cancels: u8,
    pub resubmits: u8,
    pub pauses: u8,
    pub ticks: u8,
    pub broken: Option<&'static str>,
}

pub struct List {
    plan: Plan,
    defect: Option<Defect>,
    parent: Workflow,
    child: Workflow,
    ends_well: Mutex<HashSet<u64>>,
}

fn own_id() -> Id {
    Id("p".into())
}

fn id_of((item, made): Place) -> Id {
    Id::derive("t", &child::key_of_item(&own_id(), "k", item, made))
}

fn items(task: &Task) -> Option<&Items> {
    task.steps[0].kids.as_ref()?.items.as_ref()
}

impl List {
    pub fn new(plan: Plan, defect: Option<Defect>) -> Self {
        let parent = format!(
            "name = \"p\"\non_failure = \"{}\"\n[[step]]\nname = \"k\"\neach = {:?}\nworkflow = \"c\"\nwith = {{}}\n\
             at_once = {}\ntolerate = \"{}\"\n{}",
            plan.then,
            vec![1; plan.items],
            plan.at_once,
            plan.tolerate,
            if plan.beside { BESIDE } else { "" }
        );
        let child = "name = \"c\"\n[[step]]\nname = \"a\"\nagent = \"x\"\ntimeout = \"10s\"\n";
        Self { plan, defect, parent: read(&parent), child: read(child), ends_well: Mutex::default() }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn places(&self) -> impl Iterator<Item = Place> + use<> {
        let most = u32::from(self.plan.resubmits) + 3;
        (0..self.plan.items).flat_map(move |item| (0..=most).map(move |made| (item, made)))
    }

    fn new_task(&self, id: Id, workflow: &Workflow) -> Task {
        let pins = [("c".to_owned(), self.child.hash())].into();
        Task { pins, ..Task::new(submission(id), workflow, at(0)) }
    }

    /// The record of an order, as its parent reads it.
    fn task_of(&self, place: Place, kid: Kid) -> Task {
        let item = u32::try_from(place.0).ok();
        let phase = match kid.is {
            Is::Running => Phase::Forward,
            Is::Done => Phase::Processed,
            Is::Stopped => Phase::Error,
            Is::Undoing => Phase::Undoing,
            Is::Undone => Phase::Undone,
        };
        let (round, paused) = (kid.round, kid.paused);
        let parent = Parent { id: own_id(), step: "k".into(), item, round, paused, released: false };
        let paused_at = paused.then(|| at(0));
        Task { phase, paused_at, parent: Some(parent), ..self.new_task(id_of(place), &self.child) }
    }

    /// What is known of other orders: the truth, unless a defect reads something else.
    fn read(&self, state: &State) -> Outputs {
        let outputs = Outputs::default();
        outputs.know_definition(self.child.hash(), Arc::new(self.child.clone()));
        let round = state.own.steps[0].kids.as_ref().map_or(0, |kids| kids.round);
        for place in self.places() {
            let mut kid = state.kids.get(&place).copied();
            if self.has(Defect::AbsentIsUndone) && kid.is_none() && state.own.phase == Phase::Undoing {
                kid = Some(Kid { is: Is::Undone, round, paused: false, did: false });
            }
            if let Some(kid) = kid.as_mut().filter(|_| self.has(Defect::OldRoundCounts)) {
                kid.round = round;
            }
            if let Some(kid) = kid.as_mut().filter(|kid| self.has(Defect::UndoneIsKept) && kid.is == Is::Undone) {
                kid.round = kid.round.max(round);
            }
            outputs.know_order(id_of(place), kid.map(|kid| Arc::new(self.task_of(place, kid))));
        }
        outputs
    }

    fn decide(&self, state: &State, event: &Event) -> Decision {
        let (input, outputs) = (json!({}), self.read(state));
        let mut own = Task::clone(&state.own);
        if self.has(Defect::OpensInAPause) && matches!(event, Event::Hint { .. }) {
            own.paused_at = None;
        }
        if self.has(Defect::OpensInError) && matches!(event, Event::Hint { .. }) && own.phase == Phase::Error {
            own.phase = Phase::Forward;
        }
        let mut decision = schedule(&own, event, &turn(&self.parent, at(state.now), &input, &outputs));
        if let (true, Decision::Save { task, .. }) =
            (own.paused_at.is_none() && !matches!(event, Event::Act(_)), &mut decision)
        {
            task.paused_at = state.own.paused_at;
        }
        decision
    }

    fn on(&self, state: &mut State, event: &Event) {
        let (task, mut effects) = match self.decide(state, event) {
            Decision::Save { task, effects } => (Some(*task), effects),
            Decision::Keep { effects, .. } => (None, effects),
        };
        if self.has(Defect::AbsentIsNotMade) {
            let was_open = |ask: &ToChild| match self.asked(ask) {
                Msg::Ask { place, wish: Asked::Begin, .. } => {
                    items(&state.own).is_some_and(|items| items.get(place.0).is_begun())
                }
                _ => false,
            };
            effects.retain(|effect| !matches!(effect, Effect::Child(ask) if was_open(ask)));
        }
        let is_of_a_look = |ask: &ToChild| ask.wish == Wish::Resume && !matches!(event, Event::Act(_));
        if self.has(Defect::LookLeavesThePause) {
            effects.retain(|effect| !matches!(effect, Effect::Child(ask) if is_of_a_look(ask)));
        }
        if self.has(Defect::PauseStaysAbove) {
            effects.retain(|effect| !matches!(effect, Effect::Child(ask) if ask.wish == Wish::Pause));
        }
        if let Some(task) = task {
            self.save(state, task);
        }
        self.send(state, effects);
    }

    fn save(&self, state: &mut State, mut task: Task) {
        task.log.clear();
        task.books = None;
        let open = |task: &Task| items(task).map_or(0, |items| items.count(|item| item == Item::Open));
        let is_held = task.paused_at.is_some() && state.own.paused_at.is_some() || state.own.phase == Phase::Error;
        if is_held && open(&task) > open(&state.own) {
            state.broken = Some("an item begins although nothing may go forward");
        }
        let rounds = |task: &Task| task.steps[0].kids.as_ref().map_or(0, |kids| kids.round);
        let is_again = rounds(&task) > rounds(&state.own);
        let each = |task: &mut Task, change: &dyn Fn(Item) -> Item| {
            if let Some(items) = task.steps[0].kids.as_mut().and_then(|kids| kids.items.as_mut()) {
                (0..items.total()).for_each(|item| items.set(item, change(items.get(item))));
            }
        };
        if self.has(Defect::FailedIsToDo) && is_again {
            each(&mut task, &|item| if item == Item::Again { Item::ToDo } else { item });
        }
        if self.has(Defect::AgainIsOpen) && is_again {
            each(&mut task, &|item| if item == Item::Again { Item::Open } else { item });
        }
        if self.has(Defect::AskedIsUndone) && task.phase == Phase::Undoing {
            each(&mut task, &|item| if item.is_begun() { Item::Undone } else { item });
        }
        if self.has(Defect::LookIsNotDue) && task.phase == Phase::Forward && items(&task).is_some() {
            task.due = None;
        }
        if self.has(Defect::NothingOpenIsDone)
            && items(&task).is_some_and(|items| items.count(|item| item == Item::Failed) > 0)
            && task.phase == Phase::Forward
        {
            task.phase = Phase::Processed;
        }
        let waits = |task: &Task| matches!(task.steps[0].state, Of::Waiting { .. });
        let is_settled = |task: &Task| task.steps.get(1).is_none_or(|step| step.claim().is_none());
        if self.has(Defect::ListIsAll) && task.phase == Phase::Forward && task.steps[0].is_settled() {
            task.phase = Phase::Processed;
        }
        if self.has(Defect::FailureLeavesTheList) && task.phase == Phase::Undoing && waits(&state.own) {
            (task.steps[0].state, task.steps[0].kids, task.steps[0].attempt) =
                (Of::Pending { not_before: None }, None, 0);
        }
        if self.has(Defect::ResubmitBeginsTheList) && state.own.phase == Phase::Error && task.phase == Phase::Forward {
            task.steps[0] = shared::step::Step::default();
            task.due = Some(at(state.now));
        }
        let is_resumed = state.own.paused_at.is_some() && task.paused_at.is_none();
        if let (true, Of::Waiting { until, .. }) =
            (self.has(Defect::ResumeIsNotDue) && is_resumed, &mut task.steps[0].state)
        {
            *until = at(state.now + 2 * TICK * MOST_TICKS as i64);
            task.due = Some(*until);
        }
        if self.has(Defect::ReplyEndsTheList) && waits(&task) && is_settled(&task) && !is_settled(&state.own) {
            task.steps[0].state = Of::Processed;
        }
        state.own = Arc::new(task);
    }

    fn send(&self, state: &mut State, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Wake(wake, _) if wake.hint => {
                    state.net.insert(Msg::Hint { seen: wake.seen, part: wake.hops });
                }
                Effect::Wake(wake, _) => drop(state.net.insert(Msg::Wake { seen: wake.seen })),
                Effect::Child(ask) => drop(state.net.insert(self.asked(&ask))),
                // Sent at once.
                Effect::Alert(alert) => self.on(state, &Event::AlertSent { version: alert.version }),
                Effect::Request(request) => {
                    let by = request.complete_by.as_second() - at(0).as_second();
                    state.net.insert(Msg::Request { attempt: request.attempt, by });
                }
                Effect::Notice(_) | Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) => {}
            }
        }
    }

    fn asked(&self, ask: &ToChild) -> Msg {
        let place = self.places().find(|place| id_of(*place) == ask.id).expect("an order of the list");
        Msg::Ask { place, round: ask.parent.round, wish: Asked::from(&ask.wish) }
    }

    fn deliver(&self, state: &mut State, msg: Msg) {
        match msg {
            Msg::Wake { seen } => self.on(state, &Event::Wake { seen, hops: 0 }),
            Msg::Hint { seen, part } => {
                if self.has(Defect::EndsAreCounted) && part == 0 && state.own.phase == Phase::Forward {
                    self.count(state);
                }
                self.on(state, &Event::Hint { seen, part, step: Some("k".into()) });
            }
            Msg::Ask { place, round, wish } => self.do_ask(state, place, round, wish),
            Msg::Request { attempt, by } => self.answer(state, attempt, by, true),
            Msg::Reply { attempt, good } => {
                let outcome = match good {
                    true => Outcome::Done { output: json!(null) },
                    false => Outcome::Failed { error: "e".into() },
                };
                self.on(state, &Event::Reply(Reply::new(own_id(), "b", attempt, outcome)));
            }
        }
    }

    fn answer(&self, state: &mut State, attempt: u32, by: i64, good: bool) {
        if state.now < by {
            state.net.insert(Msg::Reply { attempt, good });
        }
    }

    /// What a counter would do: one more of those that are open is done.
    fn count(&self, state: &mut State) {
        let mut task = Task::clone(&state.own);
        let Some(items) = task.steps[0].kids.as_mut().and_then(|kids| kids.items.as_mut()) else { return };
        let Some(open) = items.all(|item| item == Item::Open).next() else { return };
        items.set(open, Item::Done);
        task.version += 1;
        state.own = Arc::new(task);
    }

    /// What the engine does in the store.
    fn do_ask(&self, state: &mut State, place: Place, round: u32, wish: Asked) {
        let new = Kid { is: Is::Running, round, paused: false, did: false };
        let hint = Msg::Hint { seen: place.0 as u64, part: 0 };
        match (wish, state.kids.get_mut(&place)) {
            (Asked::Begin, Some(_)) if !self.has(Defect::BeginReplaces) => {}
            (Asked::Begin, _) => {
                if !items(&state.own).is_some_and(|items| items.get(place.0).is_begun()) {
                    state.broken = Some("an order is made that its parent does not know of");
                }
                state.kids.insert(place, new);
            }
            (Asked::Undo, None) => {
                if !self.has(Defect::AbsentIsUndone) {
                    state.kids.insert(place, Kid { is: Is::Undone, ..new });
                }
            }
            (Asked::Undo, Some(kid)) => {
                if !matches!(kid.is, Is::Undoing | Is::Undone) {
                    // It has to be done whatever was paused.
                    (kid.is, kid.paused) = (Is::Undoing, false);
                }
            }
            (Asked::Resubmit, Some(kid)) if kid.round < round && kid.is != Is::Undone => {
                kid.round = round;
                match kid.is {
                    Is::Stopped => kid.is = Is::Running,
                    Is::Done => drop(state.net.insert(hint)),
                    Is::Running | Is::Undoing | Is::Undone => {}
                }
            }
            (Asked::Resubmit, _) => {}
            (Asked::Pause, Some(kid)) if matches!(kid.is, Is::Running | Is::Undoing) => {
                kid.paused = true;
            }
            (Asked::Resume, Some(kid)) => kid.paused = false,
            (Asked::Pause | Asked::Resume, _) => {}
        }
    }

    fn ends_so(&self, state: &mut State, place: Place, good: bool) {
        let Some(kid) = state.kids.get_mut(&place).filter(|kid| !kid.paused) else { return };
        (kid.is, kid.did) = match (kid.is, good) {
            (Is::Running, true) => (Is::Done, true),
            (Is::Running, false) if self.plan.stops => (Is::Stopped, true),
            (Is::Running, false) | (Is::Undoing, _) => (Is::Undone, false),
            ended => (ended.0, kid.did),
        };
        state.net.insert(Msg::Hint { seen: place.0 as u64, part: 0 });
    }

    fn supervise(&self, state: &mut State) {
        let (input, outputs) = (json!({}), Outputs::default());
        let task = Arc::clone(&state.own);
        match supervise(&task, 1, &turn(&self.parent, at(state.now), &input, &outputs)) {
            Verdict::Recover { task, effects, .. } => {
                self.save(state, *task);
                self.send(state, effects);
            }
            Verdict::Rearm { due, effects } => {
                state.own = Arc::new(Task { due, ..Task::clone(&task) });
                self.send(state, effects);
            }
            Verdict::Leave(_) => {}
        }
    }

    fn is_due(state: &State) -> bool {
        state.own.due.is_some_and(|due| due <= at(state.now))
    }

    fn person(&self, state: &mut State, what: What) {
        let act = Act { what, by: "b".into(), reason: "r".into(), seen: None };
        self.on(state, &Event::Act(act));
    }

    fn is_over(state: &State) -> bool {
        matches!(state.own.phase, Phase::Processed | Phase::Undone)
            && state.kids.values().all(|kid| !matches!(kid.is, Is::Running | Is::Undoing))
    }

    /// Whether it ends if every message on its way and every hint is lost, nothing fails from then on, and a person resubmits.
    fn ends(&self, state: &State) -> bool {
        let mut hasher = DefaultHasher::new();
        (&state.own, &state.kids, state.now).hash(&mut hasher);
        let key = hasher.finish();
        if self.ends_well.lock().unwrap_or_else(PoisonError::into_inner).contains(&key) {
            return true;
        }
        let (mut state, mut resubmits) = (State { net: BTreeSet::new(), ..state.clone() }, 0);
        if state.own.paused_at.is_some() {
            self.person(&mut state, What::Resume);
            state.net.clear();
        }
        for _ in 0..MOST_TICKS {
            if Self::is_due(&state) {
                self.supervise(&mut state);
            }
            let mut done = HashSet::new();
            while let Some(msg) = state.net.pop_first() {
                if !matches!(msg, Msg::Hint { .. }) && done.insert(msg) {
                    self.deliver(&mut state, msg);
                }
            }
            for place in state.kids.keys().copied().collect::<Vec<_>>() {
                self.ends_so(&mut state, place, true);
            }
            state.net.clear();
            if Self::is_over(&state) {
                self.ends_well.lock().unwrap_or_else(PoisonError::into_inner).insert(key);
                return true;
            }
            if state.own.phase == Phase::Error && resubmits < MOST_RESUBMITS {
                resubmits += 1;
                self.person(&mut state, What::Resubmit { step: None, input: None });
                state.net.clear();
            }
            state.now += TICK;
        }
        false
    }
}

impl Model for List {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            own: Arc::new(self.new_task(own_id(), &self.parent)),
            kids: BTreeMap::new(),
            net: [Msg::Wake { seen: 0 }].into(),
            now: 0,
            fails: 0,
            cancels: 0,
            resubmits: 0,
            pauses: 0,
            ticks: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        actions.extend(state.net.iter().copied().map(Action::Deliver));
        if self.has(Defect::CreateThenSave) {
            actions.extend(state.net.iter().copied().map(Action::AskWithoutSave));
        }
        if state.fails < self.plan.fails {
            let requests = state.net.iter().filter(|msg| matches!(msg, Msg::Request { .. }));
            actions.extend(requests.copied().map(Action::Refuse));
        }
        for (place, kid) in state.kids.iter().filter(|(_, kid)| !kid.paused) {
            if matches!(kid.is, Is::Running | Is::Undoing) {
                actions.push(Action::Ends(*place, true));
            }
            if kid.is == Is::Running && state.fails < self.plan.fails {
                actions.push(Action::Ends(*place, false));
            }
        }
        if Self::is_due(state) {
            actions.push(Action::Supervise);
        }
        if state.cancels < self.plan.cancels {
            actions.push(Action::Cancel);
        }
        if state.resubmits < self.plan.resubmits && state.own.phase == Phase::Error {
            actions.push(Action::Resubmit);
        }
        let is_paused = state.own.paused_at.is_some();
        if state.pauses < self.plan.pauses && !is_paused {
            actions.push(Action::Pause);
        }
        if is_paused {
            actions.push(Action::Resume);
        }
        if state.ticks < self.plan.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(msg) => self.deliver(&mut state, msg),
            Action::Refuse(msg) => {
                let Msg::Request { attempt, by } = msg else { return None };
                self.answer(&mut state, attempt, by, false);
                state.fails += 1;
            }
            Action::Ends(place, good) => {
                self.ends_so(&mut state, place, good);
                state.fails += u8::from(!good);
            }
            Action::Supervise => self.supervise(&mut state),
            Action::Cancel => {
                self.person(&mut state, What::Cancel);
                state.cancels += 1;
            }
            Action::Resubmit => {
                self.person(&mut state, What::Resubmit { step: None, input: None });
                state.resubmits += 1;
            }
            Action::Pause => {
                self.person(&mut state, What::Pause);
                state.pauses += 1;
            }
            Action::Resume => self.person(&mut state, What::Resume),
            Action::Tick => {
                state.now += TICK;
                state.ticks += 1;
            }
            Action::AskWithoutSave(msg) => {
                let Msg::Wake { seen } = msg else { return None };
                let Decision::Save { effects, .. } = self.decide(&state, &Event::Wake { seen, hops: 0 }) else {
                    return None;
                };
                let asks = effects.into_iter().filter(|effect| matches!(effect, Effect::Child(_)));
                self.send(&mut state, asks.collect());
            }
        }
        (state != *last).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing is done that the protocol forbids", |_: &Self, state: &State| {
                state.broken.is_none()
            }),
            Property::always("nothing is left of what is undone", |_: &Self, state: &State| {
                state.own.phase != Phase::Undone || state.kids.values().all(|kid| kid.is == Is::Undone && !kid.did)
            }),
            Property::always("no order is made once its parent is undone", |_: &Self, state: &State| {
                let begins = |msg: &Msg| match msg {
                    Msg::Ask { place, wish: Asked::Begin, .. } => !state.kids.contains_key(place),
                    _ => false,
                };
                state.own.phase != Phase::Undone || !state.net.iter().any(begins)
            }),
            Property::always("what the record says of an item is so", |_: &Self, state: &State| {
                let Some(items) = items(&state.own) else { return true };
                (0..items.total()).all(|item| {
                    let is = state.kids.get(&(item, items.made(item))).map(|kid| kid.is);
                    match items.get(item) {
                        Item::Done => matches!(is, Some(Is::Done)) || state.own.phase == Phase::Undoing,
                        Item::Undone => matches!(is, Some(Is::Undone)),
                        Item::ToDo => state.kids.keys().all(|place| place.0 != item),
                        Item::Open | Item::Failed | Item::Again | Item::Stuck | Item::Refused => true,
                    }
                })
            }),
            Property::always("a parent is done with its whole list", |list: &Self, state: &State| {
                let own = &state.own;
                let Some(items) = items(own).filter(|_| own.phase == Phase::Processed) else { return true };
                let failed = items.count(|item| item == Item::Failed);
                let tolerated = list.parent.steps[0].each().map_or(0, |each| each.tolerated(items.total()));
                let is_whole = items.count(|item| item == Item::Done) + failed == items.total() && failed <= tolerated;
                is_whole && own.steps.iter().all(shared::step::Step::is_settled)
            }),
            Property::always("an order takes the place of one that is undone", |list: &Self, state: &State| {
                let of = |item: usize| state.kids.iter().filter(move |(place, _)| place.0 == item);
                (0..list.plan.items).all(|item| of(item).filter(|(_, kid)| kid.is != Is::Undone).count() <= 1)
            }),
            Property::always("only so many run at once", |list: &Self, state: &State| {
                let open = items(&state.own).map_or(0, |items| items.count(|item| item == Item::Open));
                open <= list.plan.at_once
                    && state.kids.values().filter(|kid| kid.is == Is::Running).count() <= list.plan.at_once
            }),
            Property::always("a pause reaches what it finds", |_: &Self, state: &State| {
                // Its messages are delivered, and no other.
                let pauses = |msg: &&Msg| matches!(msg, Msg::Ask { wish: Asked::Pause, .. });
                let has_pause = |place: &Place| {
                    state.net.iter().filter(pauses).any(|msg| matches!(msg, Msg::Ask { place: of, .. } if of == place))
                };
                let is_open = |kid: &Kid| matches!(kid.is, Is::Running | Is::Undoing);
                state.own.paused_at.is_none()
                    || state.kids.iter().all(|(place, kid)| !is_open(kid) || kid.paused || has_pause(place))
            }),
            Property::always("it ends, whatever is lost", |list: &Self, state: &State| list.ends(state)),
            Property::sometimes("it is processed", |_: &Self, state: &State| state.own.phase == Phase::Processed),
            Property::sometimes("it is undone", |list: &Self, state: &State| {
                list.plan.cancels == 0 || state.own.phase == Phase::Undone
            }),
        ]
    }
}
