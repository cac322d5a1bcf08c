//! What all models need: orders, definitions, and what an instance knows when it decides.

use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use shared::decision::Turn;
use shared::order::Id;
use shared::outputs::Outputs;
use shared::task::{Priority, Submission, Task};
use shared::workflow::Workflow;
use shared::workflow::child::Wish;
use shared::workflow::file::{Known, parse};

pub const SKEW: SignedDuration = SignedDuration::from_secs(1);

pub fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_000_000 + seconds).expect("a time of the model")
}

pub fn read(text: &str) -> Workflow {
    let known = Known { agents: &["x", "y", "http"], inputs: &[] };
    parse("model", text, known).unwrap_or_else(|e| panic!("the model's own workflow: {e}\n{text}"))
}

pub fn submission(id: Id) -> Submission {
    Submission { id, tenant: "t".into(), reference: None, reply_queue: None, priority: Priority::Normal, shard: 0 }
}

/// An order of this workflow, as submitted.
pub fn submitted(workflow: &Workflow) -> Task {
    Task::new(submission(Id("ord_1".into())), workflow, at(0))
}

pub fn turn<'a>(workflow: &'a Workflow, now: Timestamp, input: &'a Value, outputs: &'a Outputs) -> Turn<'a> {
    Turn {
        workflow,
        input,
        now,
        instance: "s",
        skew: SKEW,
        agents: &shared::control::ALL_RUN,
        pools: &shared::pools::ONE_EACH,
        outputs,
        public_url: "",
    }
}

/// What a parent asks of a child, without an input, so that messages have an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Asked {
    Begin,
    Undo,
    Resubmit,
    Pause,
    Resume,
}

impl From<&Wish> for Asked {
    fn from(wish: &Wish) -> Self {
        match wish {
            Wish::Begin(_) => Self::Begin,
            Wish::Undo => Self::Undo,
            Wish::Resubmit => Self::Resubmit,
            Wish::Pause => Self::Pause,
            Wish::Resume => Self::Resume,
            Wish::Release | Wish::Keep => unreachable!("nothing expires here"),
        }
    }
}
