//! Two tasks at once, under one clock and the same supervisors: whatever happens to one, the other keeps every rule.

use crate::world::{Action, Bounds, State, World};
use stateright::{Expectation, Model, Property};

/// Two tasks of one world.
pub struct Pair {
    pub world: World,
    /// A defect: what is sent for one task also counts for the other.
    pub mixes: bool,
    /// The properties that must hold for each task.
    rules: Vec<Property<World>>,
}

/// An event, and the task it happens to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    First(Action),
    Second(Action),
    /// One second passes for both tasks.
    Tick,
}

impl Pair {
    pub fn new(bounds: Bounds, mixes: bool) -> Self {
        let world = World::new(bounds, None);
        let mut rules = world.properties();
        rules.retain(|rule| rule.expectation == Expectation::Always);
        Self { world, mixes, rules }
    }
}

impl Model for Pair {
    type State = [State; 2];
    type Action = Step;

    fn init_states(&self) -> Vec<Self::State> {
        vec![["o", "p"].map(|id| self.world.begin(id))]
    }

    fn actions(&self, state: &Self::State, actions: &mut Vec<Step>) {
        if state.iter().any(|task| task.broken.is_some()) {
            return;
        }
        for (task, of) in state.iter().zip([Step::First as fn(Action) -> Step, Step::Second]) {
            let mut own = Vec::new();
            self.world.actions(task, &mut own);
            actions.extend(own.into_iter().filter(|action| *action != Action::Tick).map(of));
        }
        actions.push(Step::Tick);
    }

    fn next_state(&self, state: &Self::State, step: Step) -> Option<Self::State> {
        let mut next = state.clone();
        match step {
            Step::First(action) => next[0] = self.world.next_state(&state[0], action)?,
            Step::Second(action) => next[1] = self.world.next_state(&state[1], action)?,
            Step::Tick => {
                for (task, before) in next.iter_mut().zip(state) {
                    *task = self.world.next_state(before, Action::Tick).unwrap_or_else(|| before.clone());
                }
            }
        }
        if self.mixes {
            let both: Vec<_> = next.iter().flat_map(|task| task.net.clone()).collect();
            next.iter_mut().for_each(|task| task.net.extend(both.iter().copied()));
        }
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("each of two tasks keeps every rule", |pair: &Pair, state: &[State; 2]| {
                pair.rules.iter().all(|rule| state.iter().all(|task| (rule.condition)(&pair.world, task)))
            }),
            Property::sometimes("one is processed and the other undone", |_: &Pair, state: &[State; 2]| {
                use shared::task::Phase::{Processed, Undone};
                (state[0].task.phase, state[1].task.phase) == (Processed, Undone)
            }),
        ]
    }
}
