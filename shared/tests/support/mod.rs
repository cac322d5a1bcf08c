//! One task on a bench: events go in, and record and effects come out as short lines that a table can hold.

mod dice;
mod family;
mod world;

pub use dice::*;
pub use family::*;
pub use world::*;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use shared::control::{Agents, Pause};
use shared::decision::{Act, Decision, Event, Kept, Turn, What};
use shared::engine::{self, Engine};
use shared::mend;
use shared::message::{Effect, NoticeKind, Outcome, Reply};
use shared::order::{Id, Order};
use shared::outputs::Outputs;
use shared::pools::{Layout, Pools};
use shared::ports::{Messenger, StateStore};
use shared::scheduler::schedule;
use shared::step::{Direction, State};
use shared::supervisor::{Verdict, supervise};
use shared::task::{Phase, Submission, Task};
use shared::workflow::Workflow;
use shared::workflow::child::Wish;
use shared::workflow::file::{Known, parse};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// How far apart clocks may be, here.
pub const SKEW: SignedDuration = SignedDuration::from_secs(1);

/// `a` and `b` concurrently, then `c`; `a` and `c` can be undone. Three attempts, after 1 s and 5 s.
pub const SIDE_BY_SIDE: &str = r#"
name = "sample"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
retry = { max = 3, backoff = ["1s", "5s"] }
undo = { agent = "x", retry = { max = 2, backoff = ["2s"] } }
[[step]]
name = "b"
agent = "x"
timeout = "10s"
retry = { max = 3, backoff = ["1s", "5s"] }
[[step]]
name = "c"
agent = "x"
after = ["a", "b"]
timeout = "10s"
retry = { max = 3, backoff = ["1s", "5s"] }
undo = { agent = "x", retry = { max = 2, backoff = ["2s"] } }
"#;

/// One step and nothing else.
pub const ONE: &str = r#"
name = "one"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
retry = { max = 2, backoff = ["1s"] }
undo = { agent = "x" }
"#;

/// Four steps in a row; `a` and `c` can be undone.
pub const CHAIN: &str = r#"
name = "chain"
[[step]]
name = "a"
agent = "x"
timeout = "10s"
undo = { agent = "x" }
[[step]]
name = "b"
agent = "x"
after = ["a"]
timeout = "10s"
[[step]]
name = "c"
agent = "x"
after = ["b"]
timeout = "10s"
undo = { agent = "x" }
[[step]]
name = "d"
agent = "x"
after = ["c"]
timeout = "10s"
"#;

/// The same workflow, which stops for a person where it would be undone.
pub fn on_failure_error(text: &str) -> String {
    format!("on_failure = \"error\"\n{text}")
}

pub fn workflow(text: &str) -> Workflow {
    parse("sample.toml", text, Known { agents: &["x", "y", "http"], inputs: &[] }).unwrap()
}

pub fn secs(s: i64) -> SignedDuration {
    SignedDuration::from_secs(s)
}

pub fn at(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(1_000_000_000 + ms).unwrap()
}

/// Milliseconds since the task was created.
pub fn ms(time: Timestamp) -> i64 {
    time.as_millisecond() - at(0).as_millisecond()
}

pub fn submission(id: &str, reply_queue: bool) -> Submission {
    let reply_queue = reply_queue.then(|| "acme".into());
    Submission { reference: Some("r-1".into()), reply_queue, ..contract::submission(Id(id.into())) }
}

/// An instance over a store and a messenger, by a clock that counts milliseconds since the task was created.
pub fn instance(
    name: &str,
    store: &Arc<impl StateStore + 'static>,
    messenger: &Arc<impl Messenger + 'static>,
    now: &Arc<AtomicI64>,
    pools: Layout,
) -> Engine {
    let now = Arc::clone(now);
    let clock = Arc::new(move || at(now.load(Ordering::Relaxed)));
    let config = engine::Config { overload_age: secs(30), pools, ..contract::settings(name, clock) };
    Engine::new(Arc::clone(store) as _, Arc::clone(messenger) as _, config)
}

/// The order of a task made by [`submission`], whose input says its number.
pub fn order(id: &Id, n: i64) -> Order {
    Order {
        id: id.clone(),
        tenant: "acme".into(),
        idempotency_key: n.to_string(),
        hash: String::new(),
        created_at: at(0),
        input: json!({ "n": n }),
    }
}

pub fn wish(wish: &Wish) -> &'static str {
    match wish {
        Wish::Begin(_) => "begin",
        Wish::Undo => "undo order of",
        Wish::Resubmit => "resubmit order of",
        Wish::Pause => "pause order of",
        Wish::Resume => "resume order of",
        Wish::Release => "release order of",
        Wish::Keep => "keep order of",
    }
}

pub struct Bench {
    pub workflow: Workflow,
    pub input: Value,
    pub task: Task,
    /// Milliseconds since the task was created.
    pub now: i64,
    pub instance: &'static str,
    pub kept: Option<Kept>,
    pub effects: Vec<Effect>,
    pub expired: usize,
    /// Every value `due` has had, in milliseconds since the task was created.
    pub dues: Vec<Option<i64>>,
    pub agents: Agents,
    pub pools: Pools,
    pub outputs: Outputs,
    pub public_url: &'static str,
}

impl Bench {
    pub fn new(text: &str) -> Self {
        let workflow = workflow(text);
        let task = Task::new(submission("ord_1", true), &workflow, at(0));
        let mut bench = Self {
            workflow,
            input: Value::Null,
            task,
            now: 0,
            instance: "s1",
            kept: None,
            effects: Vec::new(),
            expired: 0,
            dues: Vec::new(),
            agents: Agents::default(),
            pools: Pools::default(),
            outputs: Outputs::default(),
            public_url: "https://orders.example",
        };
        bench.note_due();
        bench
    }

    /// A task whose first claim is saved.
    pub fn claimed(text: &str) -> Self {
        let mut bench = Self::new(text);
        bench.wake(0);
        bench
    }

    pub fn due(&self) -> i64 {
        ms(self.task.due.unwrap())
    }

    fn note_due(&mut self) {
        let due = self.task.due.map(ms);
        if self.dues.last() != Some(&due) {
            self.dues.push(due);
        }
    }

    /// What `instance` knows now.
    pub fn turn<'a>(&'a self, instance: &'a str) -> Turn<'a> {
        Turn {
            workflow: &self.workflow,
            input: &self.input,
            now: at(self.now),
            instance,
            skew: SKEW,
            agents: &self.agents,
            pools: &self.pools,
            outputs: &self.outputs,
            public_url: self.public_url,
        }
    }

    pub fn decide(&self, event: &Event) -> Decision {
        schedule(&self.task, event, &self.turn(self.instance))
    }

    /// Decides, saves, and keeps the effects.
    pub fn on(&mut self, event: &Event) -> &mut Self {
        match self.decide(event) {
            Decision::Save { task, effects } => {
                assert_eq!(task.version, self.task.version + 1, "a save is exactly one version");
                let before = std::mem::replace(&mut self.task, *task);
                self.pools.sent(&before, &self.task, &self.workflow, at(self.now));
                let reply = if let Event::Reply(reply) = event { Some(reply) } else { None };
                self.pools.learn(reply, &before, &self.task, &self.workflow, at(self.now));
                (self.kept, self.effects) = (None, effects);
            }
            Decision::Keep { why, effects } => (self.kept, self.effects) = (Some(why), effects),
        }
        self.check();
        self
    }

    pub fn wake(&mut self, seen: u64) -> &mut Self {
        self.on(&Event::Wake { seen, hops: 0 })
    }

    /// The Wake of the last save.
    pub fn woken(&mut self) -> &mut Self {
        self.wake(self.task.version)
    }

    pub fn attempt(&self, step: &str) -> u32 {
        self.task.steps[self.workflow.position(step).unwrap()].attempt
    }

    pub fn reply(&self, step: &str, attempt: u32, outcome: Outcome) -> Event {
        let tenant = self.task.tenant.clone();
        Event::Reply(Reply { tenant, ..Reply::new(self.task.id.clone(), step, attempt, outcome) })
    }

    /// The answer of the attempt that is current now.
    pub fn answer(&self, step: &str, outcome: Outcome) -> Event {
        self.reply(step, self.attempt(step), outcome)
    }

    pub fn told(&self, step: &str, outcome: Outcome) -> Reply {
        let Event::Reply(reply) = self.answer(step, outcome) else { unreachable!("it is a reply") };
        reply
    }

    pub fn answered(&mut self, step: &str, outcome: Outcome) -> &mut Self {
        self.on(&self.answer(step, outcome))
    }

    pub fn done(&mut self, step: &str) -> &mut Self {
        self.answered(step, done(json!({ "of": step })))
    }

    pub fn failed(&mut self, step: &str) -> &mut Self {
        self.answered(step, failed())
    }

    pub fn cancel(&mut self) -> &mut Self {
        self.on(&Event::Cancel { by: "ann".into(), reason: "too late".into() })
    }

    pub fn resubmit(&mut self) -> &mut Self {
        self.on(&resubmitted("bob", "fixed", None))
    }

    /// A person pauses this agent.
    pub fn withhold(&mut self, agent: &str) -> &mut Self {
        let pause = Pause { by: "ann".into(), reason: "move".into(), since: at(0) };
        self.agents.paused.insert(agent.into(), pause);
        self
    }

    pub fn supervise_as(&mut self, token: u64) -> &mut Self {
        self.expired = 0;
        match supervise(&self.task, token, &self.turn("v1")) {
            Verdict::Recover { task, effects, expired } => {
                assert_eq!(task.version, self.task.version + 1, "a save is exactly one version");
                self.task = *task;
                (self.kept, self.effects, self.expired) = (None, effects, expired);
            }
            Verdict::Rearm { due, effects } => {
                self.task.due = due;
                (self.kept, self.effects) = (Some(Kept::NothingReady), effects);
            }
            Verdict::Leave(why) => (self.kept, self.effects) = (Some(why), Vec::new()),
        }
        self.check();
        self
    }

    pub fn supervise(&mut self) -> &mut Self {
        self.supervise_as(1)
    }

    /// Moves the clock to `ms` after creation.
    pub fn at(&mut self, ms: i64) -> &mut Self {
        assert!(ms >= self.now, "time goes on");
        self.now = ms;
        self
    }

    /// What has to hold after every event, whatever the test is about.
    fn check(&mut self) {
        self.note_due();
        let task = &self.task;
        assert_eq!(task.locked_by().is_none(), task.complete_by().is_none());
        assert!(
            task.paused_at.is_none() || matches!(task.phase, Phase::Forward | Phase::Undoing),
            "only what is open is paused"
        );
        if !task.process_state().is_final() && task.paused_at.is_none() {
            assert!(task.due.is_some(), "an open task is in the due index: {task:?}");
        }
        if task.alert.is_some() || task.notice_owed {
            assert!(task.due.is_some(), "a task that owes something is in the due index: {task:?}");
        }
        let json = serde_json::to_string(task).unwrap();
        let back: Task = serde_json::from_str(&json).unwrap();
        assert_eq!(serde_json::to_string(&back).unwrap(), json, "a record survives being written and read");
        assert_eq!((&back.steps, back.phase), (&task.steps, task.phase));
        // A person may put it in the place of a damaged one.
        assert_eq!(mend::check(task, &task.tenant, &self.workflow), Ok(()), "{task:?}");
    }

    /// `STATE name=State#attempt...`; `+` is a wait in milliseconds from now, `f` failures, `uf` failures of the undo.
    pub fn state(&self) -> String {
        let mut text = self.task.process_state().name().to_owned();
        for (step, spec) in self.task.steps.iter().zip(&self.workflow.steps) {
            let wait = |t: &Option<Timestamp>| t.map(|t| format!("+{}", ms(t) - self.now)).unwrap_or_default();
            let state = match &step.state {
                State::Pending { not_before } => format!("Pending{}", wait(not_before)),
                State::Processing { .. } => "Processing".into(),
                State::Waiting { until, .. } => format!("Waiting{}", wait(&Some(*until))),
                State::Processed => "Processed".into(),
                State::Failed => "Failed".into(),
                State::Skipped => "Skipped".into(),
                State::PassedOver => "PassedOver".into(),
                State::Caught => "Caught".into(),
                State::UndoPending { not_before } => format!("UndoPending{}", wait(not_before)),
                State::UndoProcessing { .. } => "UndoProcessing".into(),
                State::Undone => "Undone".into(),
                State::UndoFailed => "UndoFailed".into(),
            };
            text += &format!(" {}={state}", spec.name);
            if step.attempt > 0 {
                text += &format!("#{}", step.attempt);
            }
            if step.failures > 0 {
                text += &format!("f{}", step.failures);
            }
            if step.undo_failures > 0 {
                text += &format!("uf{}", step.undo_failures);
            }
        }
        text
    }

    pub fn effects(&self) -> String {
        effects(&self.effects).join(", ")
    }

    #[track_caller]
    pub fn is(&mut self, state: &str, effects: &str) -> &mut Self {
        assert_eq!((self.state().as_str(), self.effects().as_str()), (state, effects), "kept: {:?}", self.kept);
        self
    }

    #[track_caller]
    pub fn keeps(&mut self, why: Kept, effects: &str) -> &mut Self {
        assert_eq!((self.kept, self.effects().as_str()), (Some(why), effects), "{}", self.state());
        self
    }

    pub fn notices(&self) -> Vec<(NoticeKind, u64)> {
        let notice = |e: &Effect| match e {
            Effect::Notice(n) => Some((n.kind, n.seq)),
            _ => None,
        };
        self.effects.iter().filter_map(notice).collect()
    }

    pub fn request(&self, step: &str) -> &shared::message::Request {
        let find = |e: &'_ Effect| matches!(e, Effect::Request(r) if r.step == step);
        match self.effects.iter().find(|e| find(e)) {
            Some(Effect::Request(request)) => request,
            _ => panic!("no request for {step} in {}", self.effects()),
        }
    }
}

/// `do a#1`, `undo c#2`, `wake+1000`, `notice Completed`, `alert`.
fn effects(effects: &[Effect]) -> Vec<String> {
    let one = |effect: &Effect| match effect {
        Effect::Request(r) if r.reminder.is_some() => {
            format!("remind {}#{}", r.step, r.reminder.unwrap_or_default())
        }
        Effect::Request(r) => {
            let direction = if r.direction == Direction::Do { "do" } else { "undo" };
            format!("{direction} {}#{}", r.step, r.attempt)
        }
        Effect::Wake(_, delay) if delay.is_zero() => "wake".into(),
        Effect::Wake(_, delay) => format!("wake+{}", delay.as_millis()),
        Effect::Notice(n) => format!("notice {:?}", n.kind),
        Effect::Alert(_) => "alert".into(),
        Effect::Child(ask) => format!("{} {}", wish(&ask.wish), ask.parent.step),
        Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) => {
            unreachable!("the core sends none of these")
        }
    };
    effects.iter().map(one).collect()
}

pub fn done(output: Value) -> Outcome {
    Outcome::Done { output }
}

pub fn failed() -> Outcome {
    Outcome::Failed { error: "no such card".into() }
}

pub fn unavailable(retry_after_ms: Option<u64>) -> Outcome {
    Outcome::Unavailable { error: "503".into(), retry_after_ms }
}

pub fn deferred(retry_after_ms: u64) -> Outcome {
    Outcome::Deferred { error: "the breaker is open".into(), retry_after_ms }
}

pub fn by_ann(what: What) -> Act {
    Act { what, by: "ann".into(), reason: "ticket 7".into(), seen: None }
}

pub fn act(what: What) -> Event {
    Event::Act(by_ann(what))
}

/// An operator's resubmission of all failed steps, as seen at `seen`.
pub fn resubmitted(by: &str, reason: &str, seen: Option<u64>) -> Event {
    let what = What::Resubmit { step: None, input: None };
    Event::Act(Act { what, by: by.into(), reason: reason.into(), seen })
}
