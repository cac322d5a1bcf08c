//! A parent and the orders that its step starts, one after the other: every order of messages, with each one lost, late or delivered
//! twice. A message stays on its way for ever once it was sent, so it may come at any later time, often, or never.

use crate::common::*;
use serde_json::json;
use shared::again;
use shared::decision::{Act, Decision, Event, What};
use shared::erase::{Part, check, erase};
use shared::history::Kind;
use shared::message::{Effect, Outcome, Reply};
use shared::order::Id;
use shared::outputs::Outputs;
use shared::scheduler::schedule;
use shared::step::{Direction, State as Of};
use shared::supervisor::{Verdict, supervise};
use shared::task::{Phase, Submission, Task};
use shared::workflow::Workflow;
use shared::workflow::child::{self, ToChild, Wish};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex};

/// Seconds that pass at once: longer than an attempt, and than the time to the next look.
const TICK: i64 = 61;
/// More of them than a family needs once nothing fails any more.
const MOST_TICKS: usize = 60;
/// How often a person has to resubmit it then, at most.
const MOST_RESUBMITS: usize = 2;
/// What an order says about a person.
const PRIVATE: &str = "jane";

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Who {
    Parent,
    /// The child that was made in this round.
    Child(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Msg {
    Wake {
        to: Who,
        seen: u64,
    },
    Hint,
    Request {
        to: Who,
        step: usize,
        undo: bool,
        attempt: u32,
        by: i64,
    },
    Reply {
        to: Who,
        step: usize,
        attempt: u32,
        good: bool,
    },
    /// No message: what an instance is about to do in the store, however long that takes it.
    Ask {
        made: u32,
        round: u32,
        wish: Asked,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    Deliver(Msg),
    /// The agent refuses.
    Refuse(Msg),
    Supervise(Who),
    Cancel,
    Resubmit,
    /// A person undoes a child that stopped.
    UndoChild(Who),
    /// A person undoes an order that is processed.
    Undo,
    /// A person runs the parent again from its child on.
    RunAgain,
    /// A person has the family erased: an instance lists it. One that did so before may have died.
    Erase,
    /// It erases the next order on its list.
    EraseNext,
    Tick,
    /// Only with the defect that asks before it saves: the save is lost.
    AskWithoutSave(Msg),
}

/// Wordings that look right and are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// The child is made, and then the parent's record says so.
    CreateThenSave,
    /// An undo reaches the children that exist.
    AbsentIsUndone,
    /// An end counts whatever round it is of.
    OldRoundCounts,
    /// What failed is tried as if it had never begun.
    FailedIsToDo,
    /// A hint says that the child is done.
    HintIsTheTruth,
    /// Only the instance that recorded the child makes it.
    AbsentIsNotMade,
    /// Nobody looks unless a hint comes.
    LookIsNotDue,
    /// What undid itself is asked to go on.
    UndoneIsKept,
    /// The step is undone as soon as its child is asked.
    AskedIsUndone,
    /// A late instance makes the child whatever is there.
    BeginReplaces,
    /// A stopped child is not tried again.
    ResubmitStaysAbove,
    /// A child without its parent's round goes on as it did.
    RoundIsForgotten,
    /// Children are erased while their parent can still be undone.
    ErasedFromBelow,
    /// Whatever has become of the family since it was listed, that list is erased.
    ErasedByAnOldList,
    /// What is erased can be undone, as far as the record says.
    ErasedIsUndone,
    /// Only the parent is erased.
    ErasedAbove,
}

impl Defect {
    pub const ALL: [Self; 16] = [
        Self::CreateThenSave,
        Self::AbsentIsUndone,
        Self::OldRoundCounts,
        Self::FailedIsToDo,
        Self::HintIsTheTruth,
        Self::AbsentIsNotMade,
        Self::LookIsNotDue,
        Self::UndoneIsKept,
        Self::AskedIsUndone,
        Self::BeginReplaces,
        Self::ResubmitStaysAbove,
        Self::RoundIsForgotten,
        Self::ErasedFromBelow,
        Self::ErasedByAnOldList,
        Self::ErasedIsUndone,
        Self::ErasedAbove,
    ];
}

/// What may happen, and the policies.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub parent_then: &'static str,
    pub child_then: &'static str,
    pub refusals: u8,
    pub cancels: u8,
    pub resubmits: u8,
    pub ticks: u8,
    /// How often a person may have the family erased, and as often run again and undo what is processed.
    pub erases: u8,
}

/// What an instance has listed to erase, and how far it is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Erasing {
    seen: u64,
    to_come: Vec<(Who, Part)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub tasks: BTreeMap<Who, Arc<Task>>,
    pub net: BTreeSet<Msg>,
    /// What services have applied and not undone.
    pub applied: BTreeSet<(Who, usize)>,
    pub now: i64,
    pub refusals: u8,
    pub cancels: u8,
    pub resubmits: u8,
    pub ticks: u8,
    pub undos: u8,
    pub agains: u8,
    pub erases: u8,
    pub erasing: Option<Erasing>,
    pub broken: Option<&'static str>,
}

pub struct Family {
    plan: Plan,
    defect: Option<Defect>,
    parent: Workflow,
    child: Workflow,
    ends_well: Mutex<HashSet<u64>>,
}

fn id(who: Who) -> Id {
    match who {
        Who::Parent => Id("p".into()),
        Who::Child(made) => child::id("t", &Id("p".into()), "k", made),
    }
}

impl Family {
    pub fn new(plan: Plan, defect: Option<Defect>) -> Self {
        let step = "agent = \"x\"\ntimeout = \"10s\"\nretry = { max = 1, backoff = [] }\nundo = { agent = \"x\", retry = { max = 50, backoff = [\"0s\"] } }\n";
        let parent = format!(
            "name = \"p\"\non_failure = \"{}\"\n[[step]]\nname = \"k\"\nworkflow = \"c\"\nwith = {{}}\n\
             [[step]]\nname = \"b\"\nafter = [\"k\"]\n{step}",
            plan.parent_then
        );
        let child = format!("name = \"c\"\non_failure = \"{}\"\n[[step]]\nname = \"a\"\n{step}", plan.child_then);
        Self { plan, defect, parent: read(&parent), child: read(&child), ends_well: Mutex::default() }
    }

    fn workflow(&self, who: Who) -> &Workflow {
        if who == Who::Parent { &self.parent } else { &self.child }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    fn new_task(&self, who: Who, now: i64) -> Task {
        let reference = (self.plan.erases > 0).then(|| PRIVATE.to_owned());
        let new = Submission { reference, ..submission(id(who)) };
        let pins = [("c".to_owned(), self.child.hash())].into();
        Task { pins, ..Task::new(new, self.workflow(who), at(now)) }
    }

    /// What is known of other orders, for a decision of the parent: the truth, unless a defect reads something else.
    fn read(&self, state: &State, event: &Event) -> Outputs {
        let outputs = Outputs::default();
        outputs.know_definition(self.child.hash(), Arc::new(self.child.clone()));
        let own = &state.tasks[&Who::Parent];
        let round = own.steps[0].kids.as_ref().map_or(0, |kids| kids.round);
        for made in 0..=u32::from(self.plan.resubmits) + 3 {
            let mut found = state.tasks.get(&Who::Child(made)).map(|task| Task::clone(task));
            if self.has(Defect::AbsentIsUndone) && found.is_none() && own.phase == Phase::Undoing {
                found = Some(Task { phase: Phase::Undone, ..self.new_task(Who::Child(made), 0) });
            }
            if self.has(Defect::OldRoundCounts)
                && let Some(parent) = found.as_mut().and_then(|task| task.parent.as_mut())
            {
                parent.round = round;
            }
            if self.has(Defect::HintIsTheTruth)
                && matches!(event, Event::Hint { .. })
                && let Some(task) = found.as_mut().filter(|_| own.phase == Phase::Forward)
            {
                task.phase = Phase::Processed;
                task.parent.iter_mut().for_each(|parent| parent.round = round);
            }
            outputs.know_order(id(Who::Child(made)), found.map(Arc::new));
        }
        outputs
    }

    fn decide(&self, state: &State, who: Who, event: &Event) -> Decision {
        let (input, outputs) = (json!({}), self.read(state, event));
        let mut task = Arc::clone(&state.tasks[&who]);
        let erased = if self.has(Defect::ErasedIsUndone) {
            std::mem::take(&mut Arc::make_mut(&mut task).log)
        } else {
            Vec::new()
        };
        let mut decision = schedule(&task, event, &turn(self.workflow(who), at(state.now), &input, &outputs));
        if let Decision::Save { task, .. } = &mut decision {
            task.log.splice(0..0, erased);
        }
        decision
    }

    /// Decides, saves and sends.
    fn on(&self, state: &mut State, who: Who, event: &Event) {
        let is_begun = state.tasks[&who].steps[0].kids.is_some();
        let (task, mut effects) = match self.decide(state, who, event) {
            Decision::Save { task, effects } => (Some(task), effects),
            Decision::Keep { effects, .. } => (None, effects),
        };
        if let Some(task) = task {
            self.save(state, who, *task);
        }
        if self.has(Defect::AbsentIsNotMade) && is_begun {
            effects.retain(|effect| !matches!(effect, Effect::Child(ask) if matches!(ask.wish, Wish::Begin(_))));
        }
        self.send(state, effects);
    }

    fn save(&self, state: &mut State, who: Who, mut task: Task) {
        if task.is_erased() && serde_json::to_string(&task).expect("a record").contains(PRIVATE) {
            state.broken = Some("an order that is erased says something about a person");
        }
        task.log.retain(|entry| matches!(entry.1, Kind::Erasing | Kind::Erased));
        let before = state.tasks.get(&who).cloned();
        if who == Who::Parent
            && let Some(before) = before
        {
            let kids = |task: &Task| task.steps[0].kids.clone();
            let is_again = kids(&before).is_some_and(|old| kids(&task).is_some_and(|new| old.round < new.round));
            if self.has(Defect::FailedIsToDo) && is_again {
                task.steps[0] = shared::step::Step::default();
                task.due = Some(at(state.now));
            }
            if self.has(Defect::LookIsNotDue) && matches!(task.steps[0].state, Of::Waiting { .. }) {
                task.due = None;
            }
            if self.has(Defect::UndoneIsKept)
                && let Some(kids) = &mut task.steps[0].kids
            {
                kids.made = 0;
            }
            if self.has(Defect::AskedIsUndone) && matches!(task.steps[0].state, Of::UndoPending { not_before: Some(_) })
            {
                task.steps[0].state = Of::Undone;
                task.due = Some(at(state.now));
            }
        }
        if self.has(Defect::RoundIsForgotten)
            && let Some(parent) = &mut task.parent
        {
            parent.round = 0;
        }
        state.tasks.insert(who, Arc::new(task));
    }

    fn send(&self, state: &mut State, effects: Vec<Effect>) {
        for effect in effects {
            let who = |id: &Id| self.who(id);
            match effect {
                Effect::Wake(wake, _) if wake.hint => drop(state.net.insert(Msg::Hint)),
                Effect::Wake(wake, _) => {
                    state.net.insert(Msg::Wake { to: who(&wake.task_id), seen: wake.seen });
                }
                Effect::Request(request) => {
                    let to = who(&request.task_id);
                    let step = self.workflow(to).position(&request.step).expect("its own step");
                    let undo = request.direction == Direction::Undo;
                    let by = request.complete_by.as_second() - at(0).as_second();
                    state.net.insert(Msg::Request { to, step, undo, attempt: request.attempt, by });
                }
                Effect::Child(ask) => drop(state.net.insert(self.asked(&ask))),
                // Sent at once.
                Effect::Alert(alert) => {
                    self.on(state, who(&alert.order_id), &Event::AlertSent { version: alert.version })
                }
                Effect::Notice(_) | Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) => {}
            }
        }
    }

    fn who(&self, of: &Id) -> Who {
        let all = (0..=u32::from(self.plan.resubmits) + 3).map(Who::Child);
        all.into_iter().find(|who| id(*who) == *of).unwrap_or(Who::Parent)
    }

    fn asked(&self, ask: &ToChild) -> Msg {
        let Who::Child(made) = self.who(&ask.id) else { unreachable!("a child") };
        Msg::Ask { made, round: ask.parent.round, wish: Asked::from(&ask.wish) }
    }

    fn deliver(&self, state: &mut State, msg: Msg, good: bool) {
        match msg {
            Msg::Wake { to, seen } => self.on(state, to, &Event::Wake { seen, hops: 0 }),
            Msg::Hint => self.on(state, Who::Parent, &Event::Hint { seen: 0, part: 0, step: None }),
            Msg::Request { by, .. } if state.now >= by => {}
            Msg::Request { to, step, undo, attempt, .. } => {
                if undo {
                    state.applied.remove(&(to, step));
                } else if good {
                    state.applied.insert((to, step));
                }
                state.net.insert(Msg::Reply { to, step, attempt, good });
            }
            Msg::Reply { to, step, attempt, good } => {
                let outcome = match good {
                    true if self.plan.erases > 0 => Outcome::Done { output: json!(PRIVATE) },
                    true => Outcome::Done { output: json!(null) },
                    false => Outcome::Failed { error: "e".into() },
                };
                let reply = Reply::new(id(to), &self.workflow(to).steps[step].name, attempt, outcome);
                self.on(state, to, &Event::Reply(reply));
            }
            Msg::Ask { made, round, wish } => self.do_ask(state, made, round, wish),
        }
    }

    /// What the engine does in the store.
    fn do_ask(&self, state: &mut State, made: u32, round: u32, wish: Asked) {
        let who = Who::Child(made);
        let (is_there, now) = (state.tasks.contains_key(&who), state.now);
        let parent = shared::task::Parent {
            id: id(Who::Parent),
            step: "k".into(),
            item: None,
            round: if self.has(Defect::RoundIsForgotten) { 0 } else { round },
            paused: false,
            released: false,
        };
        let new = || Task { parent: Some(parent.clone()), ..self.new_task(who, now) };
        match wish {
            Asked::Begin if is_there && !self.has(Defect::BeginReplaces) => {}
            Asked::Begin => {
                if state.tasks[&Who::Parent].steps[0].kids.is_none() && !self.has(Defect::FailedIsToDo) {
                    state.broken = Some("a child is made that its parent does not know of");
                }
                state.tasks.insert(who, Arc::new(new()));
                state.net.insert(Msg::Wake { to: who, seen: 0 });
            }
            Asked::Undo if !is_there => {
                if !self.has(Defect::AbsentIsUndone) {
                    state.tasks.insert(who, Arc::new(Task { phase: Phase::Undone, due: None, ..new() }));
                }
            }
            Asked::Resubmit if self.has(Defect::ResubmitStaysAbove) => {}
            Asked::Undo | Asked::Resubmit if is_there => {
                let wish = if wish == Asked::Undo { Wish::Undo } else { Wish::Resubmit };
                self.on(state, who, &Event::Asked { round, wish });
            }
            Asked::Undo | Asked::Resubmit | Asked::Pause | Asked::Resume => {}
        }
    }

    fn supervise(&self, state: &mut State, who: Who) {
        let (input, outputs) = (json!({}), Outputs::default());
        let task = Arc::clone(&state.tasks[&who]);
        match supervise(&task, 1, &turn(self.workflow(who), at(state.now), &input, &outputs)) {
            Verdict::Recover { task, effects, .. } => {
                self.save(state, who, *task);
                self.send(state, effects);
            }
            Verdict::Rearm { due, effects } => {
                state.tasks.insert(who, Arc::new(Task { due, ..Task::clone(&task) }));
                self.send(state, effects);
            }
            Verdict::Leave(_) => {}
        }
    }

    fn is_due(&self, state: &State, who: Who) -> bool {
        state.tasks[&who].due.is_some_and(|due| due <= at(state.now))
    }

    fn person(&self, state: &mut State, what: What) {
        let act = Act { what, by: "b".into(), reason: "r".into(), seen: None };
        self.on(state, Who::Parent, &Event::Act(act));
    }

    /// What the operator's route does first: it lists what it is about to erase.
    fn list(&self, state: &State) -> Option<Erasing> {
        let (own, children) = (&state.tasks[&Who::Parent], state.tasks.keys().filter(|who| **who != Who::Parent));
        let below: Vec<Who> = children.filter(|_| !self.has(Defect::ErasedAbove)).copied().collect();
        check(own, Part::First).ok()?;
        if own.erased().is_some() || below.iter().any(|who| check(&state.tasks[who], Part::Below).is_err()) {
            return None;
        }
        let first = (Who::Parent, Part::First);
        let is_first = !below.is_empty() && !self.has(Defect::ErasedFromBelow);
        let mut to_come: Vec<_> = std::iter::once(first).filter(|_| is_first).collect();
        to_come.extend(below.into_iter().map(|who| (who, Part::Below)));
        to_come.push((Who::Parent, Part::Last));
        Some(Erasing { seen: own.version, to_come })
    }

    /// And then, one write after the other. It begins anew if the parent has changed since, until nothing can change it any more.
    fn erase_next(&self, state: &mut State) {
        let Some(mut erasing) = state.erasing.take() else { return };
        let (who, part) = erasing.to_come.remove(0);
        let task = Arc::clone(&state.tasks[&who]);
        let has_changed = who == Who::Parent && task.version != erasing.seen && !task.is_erased();
        if has_changed && !self.has(Defect::ErasedByAnOldList) {
            return;
        }
        let Ok(next) = erase(&task, part, "b", "r", at(state.now)) else { return };
        if let Some(next) = next {
            self.save(state, who, next);
        }
        state.erasing = Some(erasing).filter(|erasing| !erasing.to_come.is_empty());
    }

    fn is_over(state: &State) -> bool {
        let own = &state.tasks[&Who::Parent];
        matches!(own.phase, Phase::Processed | Phase::Undone)
            && state.tasks.values().all(|task| task.process_state().is_final())
    }

    /// Whether the family ends by itself if every message on its way is lost, nothing fails from then on, and a person resubmits.
    fn ends(&self, state: &State) -> bool {
        let mut hasher = DefaultHasher::new();
        (&state.tasks, &state.applied, state.now).hash(&mut hasher);
        let key = hasher.finish();
        if self.ends_well.lock().unwrap_or_else(std::sync::PoisonError::into_inner).contains(&key) {
            return true;
        }
        let (mut state, mut resubmits) = (State { net: BTreeSet::new(), ..state.clone() }, 0);
        for _ in 0..MOST_TICKS {
            for who in state.tasks.keys().copied().collect::<Vec<_>>() {
                if self.is_due(&state, who) {
                    self.supervise(&mut state, who);
                }
            }
            while let Some(msg) = state.net.pop_first() {
                // A Wake that nothing is to be done about sends itself again.
                let before = state.clone();
                self.deliver(&mut state, msg, true);
                let is_idle = before.tasks == state.tasks && before.applied == state.applied;
                if is_idle {
                    state.net.retain(|sent| before.net.contains(sent) || !matches!(sent, Msg::Wake { .. }));
                }
            }
            if Self::is_over(&state) {
                self.ends_well.lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(key);
                return true;
            }
            if state.tasks[&Who::Parent].phase == Phase::Error && resubmits < MOST_RESUBMITS {
                resubmits += 1;
                self.person(&mut state, What::Resubmit { step: None, input: None });
                state.net.clear();
            }
            state.now += TICK;
        }
        false
    }
}

impl Model for Family {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let (own, now) = (self.new_task(Who::Parent, 0), 0);
        let mut state = State {
            tasks: [(Who::Parent, Arc::new(own))].into(),
            net: [Msg::Wake { to: Who::Parent, seen: 0 }].into(),
            applied: BTreeSet::new(),
            now,
            refusals: 0,
            cancels: 0,
            resubmits: 0,
            ticks: 0,
            undos: 0,
            agains: 0,
            erases: 0,
            erasing: None,
            broken: None,
        };
        // What comes before its end is in the other plans.
        while self.plan.erases > 0 && state.tasks[&Who::Parent].phase == Phase::Forward {
            for msg in state.net.clone() {
                self.deliver(&mut state, msg, true);
            }
        }
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        actions.extend(state.net.iter().copied().map(Action::Deliver));
        if state.refusals < self.plan.refusals {
            let forward = |msg: &&Msg| matches!(msg, Msg::Request { to: Who::Child(_), undo: false, .. });
            actions.extend(state.net.iter().filter(forward).copied().map(Action::Refuse));
        }
        if self.has(Defect::CreateThenSave) {
            actions.extend(state.net.iter().copied().map(Action::AskWithoutSave));
        }
        actions.extend(state.tasks.keys().copied().filter(|who| self.is_due(state, *who)).map(Action::Supervise));
        let own = &state.tasks[&Who::Parent];
        if state.cancels < self.plan.cancels {
            actions.push(Action::Cancel);
        }
        if state.resubmits < self.plan.resubmits && own.phase == Phase::Error {
            actions.push(Action::Resubmit);
        }
        if self.plan.erases > 0 {
            let is_over = matches!(own.phase, Phase::Processed | Phase::Undone);
            if is_over && state.agains < self.plan.erases {
                actions.push(Action::RunAgain);
            }
            if own.phase == Phase::Processed && state.undos < self.plan.erases {
                actions.push(Action::Undo);
            }
            if is_over && state.erases < self.plan.erases {
                actions.push(Action::Erase);
            }
            if state.erasing.is_some() {
                actions.push(Action::EraseNext);
            }
        }
        if state.ticks < self.plan.ticks {
            actions.push(Action::Tick);
        }
        let stopped = state.tasks.iter().filter(|(who, task)| **who != Who::Parent && task.phase == Phase::Error);
        actions.extend(stopped.map(|(who, _)| Action::UndoChild(*who)));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(msg) => self.deliver(&mut state, msg, true),
            Action::Refuse(msg) => {
                self.deliver(&mut state, msg, false);
                state.refusals += 1;
            }
            Action::Supervise(who) => self.supervise(&mut state, who),
            Action::Cancel => {
                self.person(&mut state, What::Cancel);
                state.cancels += 1;
            }
            Action::Resubmit => {
                self.person(&mut state, What::Resubmit { step: None, input: None });
                state.resubmits += 1;
            }
            Action::UndoChild(who) => {
                let act = Act { what: What::Undo, by: "b".into(), reason: "r".into(), seen: None };
                self.on(&mut state, who, &Event::Act(act));
            }
            Action::Undo => {
                self.person(&mut state, What::Undo);
                state.undos += 1;
            }
            Action::RunAgain => {
                let wish = again::Wish { from: vec!["k".into()], new_keys: false, without_undo: true };
                self.person(&mut state, What::RunAgain(wish));
                state.agains += 1;
            }
            Action::Erase => {
                state.erasing = Some(self.list(&state)?);
                state.erases += 1;
            }
            Action::EraseNext => self.erase_next(&mut state),
            Action::Tick => {
                state.now += TICK;
                state.ticks += 1;
            }
            Action::AskWithoutSave(msg) => {
                let Msg::Wake { to: Who::Parent, seen } = msg else { return None };
                let Decision::Save { effects, .. } = self.decide(&state, Who::Parent, &Event::Wake { seen, hops: 0 })
                else {
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
                state.tasks[&Who::Parent].phase != Phase::Undone
                    || state.applied.is_empty()
                        && state.tasks.iter().all(|(who, task)| *who == Who::Parent || task.phase == Phase::Undone)
            }),
            Property::always("no child is made once its parent is undone", |_: &Self, state: &State| {
                let begins = |msg: &Msg| match msg {
                    Msg::Ask { made, wish: Asked::Begin, .. } => !state.tasks.contains_key(&Who::Child(*made)),
                    _ => false,
                };
                state.tasks[&Who::Parent].phase != Phase::Undone || !state.net.iter().any(begins)
            }),
            Property::always("a parent that is done has a child that is done", |_: &Self, state: &State| {
                let own = &state.tasks[&Who::Parent];
                let Some(kids) = own.steps[0].kids.as_ref().filter(|_| own.phase == Phase::Processed) else {
                    return own.phase != Phase::Processed;
                };
                let child = state.tasks.get(&Who::Child(kids.made));
                child.is_some_and(|task| task.phase == Phase::Processed)
                    && state.applied.contains(&(Who::Child(kids.made), 0))
            }),
            Property::always("a child takes the place of one that is undone", |_: &Self, state: &State| {
                let children = state.tasks.iter().filter(|(who, _)| **who != Who::Parent);
                children.filter(|(_, task)| task.phase != Phase::Undone).count() <= 1
            }),
            Property::always("nothing is done to an order that is erased", |_: &Self, state: &State| {
                state.tasks.values().all(|task| !task.is_erased() || task.process_state().is_final())
            }),
            Property::always("an order that says it is erased has nothing left below it", |_: &Self, state: &State| {
                state.tasks[&Who::Parent].erased().is_none() || state.tasks.values().all(|task| task.is_erased())
            }),
            Property::always("it ends, whatever is lost", |family: &Self, state: &State| family.ends(state)),
            Property::sometimes("it is processed", |_: &Self, state: &State| {
                state.tasks[&Who::Parent].phase == Phase::Processed
            }),
            Property::sometimes("it is undone", |family: &Self, state: &State| {
                family.plan.cancels == 0 || state.tasks[&Who::Parent].phase == Phase::Undone
            }),
            Property::sometimes("it is erased", |family: &Self, state: &State| {
                family.plan.erases == 0 || state.tasks[&Who::Parent].erased().is_some()
            }),
        ]
    }
}
