//! Which steps of an order are in trouble.

use crate::support::{Bench, ONE};
use shared::history::{Entry, Kind};
use shared::step::State;
use shared::trouble::*;

// E4: an open breaker counts no failure, but a person sees what it holds back among what is being retried.
#[test]
fn a_step_that_was_held_back_is_in_trouble() {
    let Bench { mut task, workflow, .. } = Bench::new(ONE);
    assert!(trouble(&task, &workflow).is_empty(), "no attempt was made");
    task.steps[0].error = Some("the circuit breaker of `x` is open".into());
    task.steps[0].state = State::UndoPending { not_before: None };
    assert!(trouble(&task, &workflow).is_empty(), "the error is that of the way forward");
    let not_before = Some(task.created_at);
    for (state, undo) in [(State::Pending { not_before }, false), (State::UndoPending { not_before }, true)] {
        task.steps[0].state = state;
        let found = trouble(&task, &workflow);
        assert_eq!(found.iter().map(|one| (one.step.as_str(), one.undo)).collect::<Vec<_>>(), [("a", undo)]);
        assert!(!found[0].held_back, "nothing says that it was put off");
        task.log.push(Entry(1, Kind::Deferred, Some(0), 1, None));
        assert!(trouble(&task, &workflow)[0].held_back);
        task.log.push(Entry(2, Kind::RetriedNow, Some(0), 1, None));
        assert!(!trouble(&task, &workflow)[0].held_back, "a person ended the wait");
    }
}
