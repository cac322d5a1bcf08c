//! Turn-taking of queues of different urgency that share the places of one consumer.
//!
//! While places are free nothing waits. When one becomes free and several classes wait for it, the most urgent class
//! gets it, except that each lower class keeps one place in five: low priority slows work down but never starves it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Places that go to other classes before a waiting class gets one: with two lower classes waiting all the time, of
/// five places three go to the most urgent class and one to each of the others.
pub const PATIENCE: u32 = 4;

/// For each class, the most urgent first, the places that went to other classes while it waited.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Turns(Vec<u32>);

impl Turns {
    /// The class that gets the next place.
    fn next(&mut self, waits: impl Fn(usize) -> bool) -> Option<usize> {
        let classes = 0..self.0.len();
        for class in classes.clone().filter(|&class| !waits(class)) {
            self.0[class] = 0;
        }
        let patient = classes.clone().filter(|&class| self.0[class] >= PATIENCE);
        let chosen = patient.max_by_key(|&class| (self.0[class], std::cmp::Reverse(class)));
        let chosen = chosen.or_else(|| classes.clone().find(|&class| waits(class)))?;
        for class in classes.filter(|&class| waits(class)) {
            self.0[class] = if class == chosen { 0 } else { self.0[class] + 1 };
        }
        Some(chosen)
    }
}

struct State {
    free: usize,
    turns: Turns,
    waiting: Vec<VecDeque<oneshot::Sender<Place>>>,
}

/// The places of one consumer.
pub struct Gate(Mutex<State>);

/// A place at a gate, given back when dropped.
pub struct Place(Option<Arc<Gate>>);

impl Gate {
    /// A gate with a number of places for a number of classes.
    #[must_use]
    pub fn new(places: usize, classes: usize) -> Arc<Self> {
        let waiting = (0..classes).map(|_| VecDeque::new()).collect();
        Arc::new(Self(Mutex::new(State { free: places, turns: Turns(vec![0; classes]), waiting })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place until it is the turn of `class`; 0 is the most urgent one.
    pub async fn enter(self: &Arc<Self>, class: usize) -> Place {
        let turn = {
            let mut state = self.state();
            if state.free > 0 {
                state.free -= 1;
                return Place(Some(Arc::clone(self)));
            }
            let (sender, turn) = oneshot::channel();
            state.waiting[class].push_back(sender);
            turn
        };
        turn.await.expect("whoever holds a place hands it on")
    }

    /// Number of waiting batches.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.state().waiting.iter().map(VecDeque::len).sum()
    }

    fn hand_on(self: Arc<Self>) {
        let mut gate = self;
        loop {
            let next = {
                let mut state = gate.state();
                let State { free, turns, waiting } = &mut *state;
                let next = turns.next(|class| !waiting[class].is_empty());
                let Some(sender) = next.and_then(|class| waiting[class].pop_front()) else {
                    *free += 1;
                    return;
                };
                sender
            };
            match next.send(Place(Some(gate))) {
                Ok(()) => return,
                // The batch stopped waiting.
                Err(mut place) => gate = place.0.take().expect("it was just put in"),
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(gate) = self.0.take() {
            gate.hand_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns(n: usize, waits: impl Fn(usize, usize) -> bool) -> Vec<usize> {
        let mut turns = Turns(vec![0; 3]);
        (0..n).filter_map(|round| turns.next(|class| waits(round, class))).collect()
    }

    // J2: the most urgent first, and one place in five for each class that waits behind it.
    #[test]
    fn the_most_urgent_class_goes_first_and_no_class_starves() {
        assert_eq!(turns(15, |_, _| true), [0, 0, 0, 0, 1, 2, 0, 0, 0, 1, 2, 0, 0, 0, 1]);
        assert_eq!(turns(11, |_, class| class != 1), [0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 0]);
        assert_eq!(turns(6, |_, class| class > 0), [1, 1, 1, 1, 2, 1]);
        assert_eq!(turns(3, |_, class| class == 2), [2, 2, 2]);
        assert_eq!(turns(3, |_, _| false), [0; 0]);
        // A class that begins to wait has not been passed by yet.
        assert_eq!(turns(8, |round, class| class == 0 || round % 4 != 3), [0; 8]);
    }

    // J2
    #[tokio::test]
    async fn places_are_handed_on_and_those_who_left_are_skipped() {
        let gate = Gate::new(1, 2);
        let first = gate.enter(1).await;
        let wait = |class| {
            tokio::spawn({
                let gate = Arc::clone(&gate);
                async move { gate.enter(class).await }
            })
        };
        let (low, gone, high) = (wait(1), wait(0), wait(0));
        while gate.waiting() < 3 {
            tokio::task::yield_now().await;
        }
        gone.abort();
        assert!(gone.await.is_err());
        drop(first);
        let place = high.await.unwrap();
        assert!(!low.is_finished());
        drop(place);
        drop(low.await.unwrap());
        assert_eq!(gate.waiting(), 0);
        drop(gate.enter(0).await);
    }
}
