//! The world around one task: messages, agents with their remote service, supervisors, a person, and time.
//!
//! The core under test is the real one. The network is a set that only grows: whatever was sent can arrive at any later
//! time, in any order, any number of times, or never. A crash, or queues that refuse, lose any of the sends of one
//! save, within the engine's rules: a Wake never overtakes the notice beside it, and an owed message counts as sent
//! only if nothing before it failed. The trigger stays. Time is relative: a tick moves every recorded time one second
//! into the past, and what is long past stays at [`PAST`].

mod ends;
mod rules;

use crate::common::*;
use crate::defects::Defect;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use shared::control::{Agents, Pause};
use shared::decision::{Act, Decision, Declined, Event, Kept, Progress, Turn, What};
use shared::message::{Effect, MAX_DELAY, NoticeKind, Outcome, Reply};
use shared::order::Id;
use shared::step::{self, Direction};
use shared::supervisor::Verdict;
use shared::task::{Arrival, LOOK_AHEAD, Phase, Submission, Task};
use shared::workflow::Workflow;
use shared::workflow::edge::{After, Edge};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;
use std::sync::{Arc, Mutex};

/// Times further back than this many seconds are equal.
const PAST: i64 = 4;
/// Maximum number of rounds of a supervisor in which a task must reach its end.
const MAX_DRAIN: usize = 60;

/// Now, always.
fn now() -> Timestamp {
    Timestamp::from_second(1000).unwrap()
}

/// A message in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Msg {
    Wake {
        seen: u64,
    },
    /// `left` seconds until `complete_by`.
    Request {
        step: usize,
        undo: bool,
        attempt: u32,
        left: i64,
    },
    Reply {
        step: usize,
        attempt: u32,
        answer: Answer,
    },
    Cancel,
    AlertSent {
        version: u64,
    },
    NoticeSent {
        version: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Answer {
    Done,
    Failed,
    /// The request was delivered before, so the refusal may be of what that delivery did.
    FailedAgain,
    Unavailable,
    Deferred,
    /// Of a step that polls.
    NotYet,
    /// The service accepted the work, and reports its end later.
    Accepted,
}

/// A send that was lost in a crash and must be repeated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owed {
    Request { step: usize, attempt: u32 },
    Wake,
    Notice { seq: u64 },
    Alert { version: u64 },
    Reminder { step: usize, number: u32 },
}

/// What can happen next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// A scheduler handles a message; the sends whose bit is set in `lost` die with the process.
    Schedule { msg: Msg, lost: u8 },
    /// A scheduler handles two messages as one save; the lost sends of both die with the process.
    ScheduleBoth { first: Msg, second: Msg, lost: u8 },
    /// A scheduler that lost the race for the save acts as if it had won (only with the defect that does this).
    LoseTheRace { msg: Msg },
    /// An agent handles a request and sends this reply.
    Agent { msg: Msg, answer: Answer },
    /// An agent that works on a request says so, and gets an answer or none.
    Beat { msg: Msg, is_answered: bool },
    /// A supervisor with this token checks the task.
    Supervise { token: u64, lost: u8 },
    /// An operator resubmits.
    Resubmit { lost: u8 },
    /// A person acts.
    Person { hand: Hand, lost: u8 },
    /// Somebody sends the event with this key, for the first time or again. Nothing else redelivers it.
    Arrive { key: u8, lost: u8 },
    /// The service that accepted the work of b reports its end, for the first time or again.
    CallBack { lost: u8 },
    /// A person pauses the agents, or resumes them.
    Withhold,
    /// A second passes, or more while nothing can happen.
    Tick,
}

/// What a person does. A step is given by its position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Hand {
    Pause,
    Resume,
    /// Skips a step that failed or waits, or its undo.
    Skip(usize),
    /// Marks such a step, or its undo, as done by hand.
    MarkDone(usize),
    /// Undoes the order, whether Processed or not.
    Undo,
}

/// The edges and conditions of the workflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// None.
    Plain,
    /// A failure of a is caught, b runs only then, and c in any case.
    Branch,
    /// A failure of a is caught. If a ran, the order fails at b, which only computes; if not, c runs.
    Gate,
    /// b waits two seconds after a.
    Timer,
    /// b waits for 16 minutes after a. Time passes in leaps then: to the sweep that looks ahead, and to a second before the end.
    Long,
    /// b polls after a for two seconds, every second, with a call that changes nothing.
    Look,
    /// The same with a call that may change something, and that b undoes.
    Ask,
    /// b's service may accept its work for two seconds, after a or beside it, and report its end at any time.
    Accept,
    /// The agent of a, or of its undo, sends heartbeats each second, for at most four.
    Beat,
    /// b waits for an event for two seconds, in a chain after a or else beside it, and c after b for another of its name.
    Event,
    /// The same without c, and b needs the event of two people. See [`KEYS`].
    People,
}

/// The keys of a flow of people, and who chooses them: one person two keys, and two people the same. The last says no.
const KEYS: [(&str, &str); 4] = [("k", "ann"), ("l", "ann"), ("k", "bob"), ("n", "bob")];
const NO: u8 = 3;

impl Flow {
    fn catches(self) -> bool {
        matches!(self, Self::Branch | Self::Gate)
    }

    fn has_event(self) -> bool {
        matches!(self, Self::Event | Self::People)
    }
}

/// How often each event may happen, and the policy.
#[derive(Clone, Debug)]
pub struct Bounds {
    pub crashes: u8,
    pub failed: u8,
    pub unavailable: u8,
    pub deferred: u8,
    pub cancels: u8,
    pub resubmits: u8,
    /// Attempts before the threshold, forward and undo.
    pub max: u32,
    pub undo_max: u32,
    /// `undo` or `error`.
    pub then: &'static str,
    pub strict: bool,
    /// Timeouts of a and b, and of c, in seconds.
    pub timeouts: (u32, u32),
    pub leaders: u64,
    /// Whether step b can be undone.
    pub b_has_undo: bool,
    pub with_c: bool,
    /// Only step a.
    pub alone: bool,
    /// The workflow declares tombstones, and the remote service keeps them.
    pub tombstones: bool,
    /// Steps in a chain, instead of a and b concurrently.
    pub chain: bool,
    pub flow: Flow,
    /// A late attempt gets two seconds more, once.
    pub late: bool,
    /// How many seconds an order may take.
    pub deadline: Option<u32>,
    pub pauses: u8,
    /// Steps that a person skips or marks done, and undos that a person asks for.
    pub acts: u8,
    /// Whether a batch may contain two messages about the task.
    pub folds: bool,
    /// Whether undos need data, so that a step that was refused leaves nothing to undo.
    pub mapped: bool,
    /// Keys under which events are sent.
    pub events: u8,
    /// Whether people are reminded of an event, of accepted work or of a poll, each second and at most twice.
    pub reminds: bool,
    /// Whether operators are alerted once half of the time for it has passed.
    pub alerts: bool,
    /// Looks that find nothing.
    pub looks: u8,
    /// Answers that only accept.
    pub accepts: u8,
    /// How often a person pauses the agents.
    pub withholds: u8,
    /// The submission makes the first claims, and sends their requests.
    pub begins: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    pub task: Arc<Task>,
    /// The record before the last save; kept only for the defect that needs it.
    pub before: Option<Arc<Task>>,
    pub net: BTreeSet<Msg>,
    /// What the remote service has applied and not undone, by step.
    pub applied: Vec<bool>,
    /// What the remote service has undone and remembers, by step; empty if it keeps no tombstones.
    pub undone: Vec<bool>,
    /// What it has refused, and refuses from then on, by step; empty if no undo needs data.
    pub refused: Vec<bool>,
    /// Sends lost in a crash, with their trigger (`None`: a supervisor).
    pub owed: BTreeSet<(Option<Msg>, Owed)>,
    pub alerts_out: BTreeSet<u64>,
    /// Every notice that was sent, whether or not it was lost on its way, by number.
    pub notices: BTreeMap<u64, NoticeKind>,
    /// Highest token of a supervisor that wrote the task.
    pub token: u64,
    pub crashes: u8,
    pub failed: u8,
    pub unavailable: u8,
    pub deferred: u8,
    pub looks: u8,
    pub accepts: u8,
    pub withholds: u8,
    /// Whether the agents are paused.
    pub is_withheld: bool,
    /// Whether a callback was answered with success.
    pub called: bool,
    pub cancels: u8,
    pub resubmits: u8,
    pub pauses: u8,
    pub acts: u8,
    /// Whether the notice of the task's last turn was sent.
    pub told: bool,
    /// Steps whose undo a person skipped, or whose event turned out to be unused, as bits.
    pub left: u8,
    /// Keys of the events that were saved, as bits.
    pub sent: u8,
    /// The first rule a transition broke.
    pub broken: Option<&'static str>,
}

pub struct World {
    pub workflow: Workflow,
    pub bounds: Bounds,
    pub defect: Option<Defect>,
    /// Hashes of the records from which a drain is known to succeed.
    drained: Mutex<HashSet<u64>>,
    agents: Agents,
    /// The same world while its agents are paused, if they ever are.
    withheld: Option<Box<World>>,
}

impl World {
    pub fn new(bounds: Bounds, defect: Option<Defect>) -> Self {
        let (ab, c) = bounds.timeouts;
        let (max, undo_max, then) = (bounds.max, bounds.undo_max, bounds.then);
        let step = |name: &str, timeout: u32, after: &str, undo: bool| {
            let with = if bounds.mapped { ", with = { of = \"${order.id}\" }" } else { "" };
            let undo = if undo {
                format!(
                    "undo = {{ agent = \"x\"{with}, timeout = \"1s\", retry = {{ max = {undo_max}, backoff = [\"1s\"] }} }}\n"
                )
            } else {
                String::new()
            };
            format!(
                "[[step]]\nname = \"{name}\"\nagent = \"x\"\n{after}timeout = \"{timeout}s\"\nretry = {{ max = {max}, backoff = [\"1s\"] }}\n{undo}"
            )
        };
        let alert = if bounds.alerts { "alert = true\n" } else { "" };
        let remind = match bounds.reminds {
            true => "remind = { every = \"1s\", times = 2, agent = \"x\" }\n",
            false => "",
        };
        // Half of it is longer than an attempt, so that a supervisor looks before.
        let asks_for = if bounds.alerts { 4 } else { 2 };
        let event = |name: &str, after: &str, undo: bool| {
            let undo = if undo {
                "undo = { agent = \"x\", timeout = \"1s\", retry = { max = 1, backoff = [\"1s\"] } }\n"
            } else {
                ""
            };
            let people = match bounds.flow {
                Flow::People => "people = 2\nfailed = \"has(event.no)\"\n",
                _ => "",
            };
            format!(
                "[[step]]\nname = \"{name}\"\nafter = [{after}]\nevent = \"e\"\ntimeout = \"{asks_for}s\"\n{people}{remind}{alert}{undo}"
            )
        };
        let mut text = format!("name = \"w\"\non_failure = \"{then}\"\nstrict_notices = {}\n", bounds.strict);
        if bounds.tombstones {
            text += "tombstones = true\n";
        }
        if let Some(seconds) = bounds.deadline {
            text += &format!("deadline = \"{seconds}s\"\n");
        }
        if bounds.late {
            text += "late = { extend = \"2s\", times = 1 }\n";
        }
        let caught = "after = []\ncatch = \"error.kind != ''\"\n";
        let has_new_step = !matches!(bounds.flow, Flow::Plain | Flow::Branch | Flow::Gate | Flow::Beat);
        let is_new = bounds.deadline.is_some() || bounds.mapped || has_new_step;
        let at_once = if is_new { "after = []\n" } else { "" };
        let a = step("a", ab, if bounds.flow.catches() { caught } else { at_once }, true);
        text += &match bounds.flow {
            Flow::Beat => {
                let undo = "timeout = \"3s\", heartbeat = \"1s\", retry";
                a.replace("timeout = \"1s\", retry", undo) + "heartbeat = \"1s\"\n"
            }
            _ => a,
        };
        if bounds.flow == Flow::Gate {
            text += "[[step]]\nname = \"b\"\nafter = [\"a?\"]\nwhen = \"ran.a\"\nfail = \"a ran\"\n";
        } else if bounds.flow == Flow::Timer {
            text += "[[step]]\nname = \"b\"\nafter = [\"a\"]\nwait = \"2s\"\n";
        } else if bounds.flow == Flow::Long {
            text += "[[step]]\nname = \"b\"\nafter = [\"a\"]\nwait = \"16m\"\n";
        } else if matches!(bounds.flow, Flow::Look | Flow::Ask) {
            let poll = format!(
                "after = [\"a\"]\npoll = {{ every = \"1s\", for = \"{asks_for}s\", done = \"answer.ok\" }}\n{remind}{alert}"
            );
            let looked = step("b", 1, &poll, bounds.flow == Flow::Ask)
                .replace(&format!("retry = {{ max = {max}, backoff = [\"1s\"] }}\n"), "");
            text += &match bounds.flow {
                Flow::Look => {
                    looked.replacen("\nagent = \"x\"", "\nhttp = { url = \"https://x.example/\", method = \"GET\" }", 1)
                }
                _ => looked,
            };
        } else if bounds.flow == Flow::Accept {
            let after = if bounds.chain { "after = [\"a\"]\n" } else { at_once };
            let accept = format!("accept = {{ within = \"{asks_for}s\" }}\n{remind}{alert}");
            text += &(step("b", 1, after, true) + &accept);
        } else if bounds.flow.has_event() {
            text += &event("b", if bounds.chain { "\"a\"" } else { "" }, true);
        } else if bounds.flow == Flow::Branch && !bounds.alone {
            text += &step("b", ab, "after = [\"a?\"]\nwhen = \"!ran.a\"\n", bounds.b_has_undo);
        } else if !bounds.alone {
            let seconds = if bounds.flow == Flow::Beat { c } else { ab };
            text += &step("b", seconds, if bounds.chain { "after = [\"a\"]\n" } else { at_once }, bounds.b_has_undo);
        }
        if bounds.with_c && bounds.flow.has_event() {
            text += &event("c", "\"b\"", false);
        } else if bounds.with_c {
            let after = match bounds.flow {
                Flow::Branch => "after = [\"a?\", \"b?\"]\n",
                Flow::Gate
                | Flow::Timer
                | Flow::Long
                | Flow::Event
                | Flow::People
                | Flow::Look
                | Flow::Ask
                | Flow::Accept => "after = [\"b\"]\n",
                Flow::Plain | Flow::Beat if bounds.chain => "after = [\"b\"]\n",
                Flow::Plain | Flow::Beat => "after = [\"a\", \"b\"]\n",
            };
            text += &step("c", c, after, true);
        }
        let workflow = read(&text);
        let pause = Pause { by: "p".into(), reason: "r".into(), since: now() };
        let paused = ["x", "http"].map(|agent| (agent.to_owned(), pause.clone())).into();
        let world = |agents| Self {
            workflow: workflow.clone(),
            bounds: bounds.clone(),
            defect,
            drained: Mutex::default(),
            agents,
            withheld: None,
        };
        let withheld = (bounds.withholds > 0).then(|| Box::new(world(Agents { paused, ..Agents::default() })));
        Self { withheld, ..world(Agents::default()) }
    }

    /// The world as it is in `state`, if that is another.
    fn other(&self, state: &State) -> Option<&Self> {
        self.withheld.as_deref().filter(|_| state.is_withheld)
    }

    /// How many seconds pass at once.
    fn seconds(&self, task: &Task) -> i64 {
        let ends = task.steps.iter().find_map(|step| match step.state {
            step::State::Waiting { until, .. } if self.bounds.flow == Flow::Long => Some(until.duration_since(now())),
            _ => None,
        });
        match ends.map(|left| (left, left - LOOK_AHEAD)) {
            Some((_, before)) if before.is_positive() => before.as_secs(),
            Some((left, _)) => (left.as_secs() - 1).max(1),
            None => 1,
        }
    }

    fn turn(&self, now: Timestamp) -> Turn<'_> {
        let (agents, public_url) = (&self.agents, "https://orders.example");
        Turn { agents, public_url, ..turn(&self.workflow, now, &serde_json::Value::Null, &shared::outputs::NONE) }
    }

    fn event(&self, task: &Task, msg: Msg) -> Option<Event> {
        Some(match msg {
            Msg::Wake { seen } => Event::Wake { seen, hops: 0 },
            Msg::Cancel => Event::Cancel { by: "p".into(), reason: "r".into() },
            Msg::AlertSent { version } => Event::AlertSent { version },
            Msg::NoticeSent { version } => Event::NoticeSent { version },
            Msg::Reply { step, attempt, answer } => {
                let outcome = match answer {
                    Answer::Done => Outcome::Done { output: json!({"ok": true}) },
                    Answer::NotYet => Outcome::NotYet { why: "w".into() },
                    Answer::Accepted => Outcome::Accepted { output: json!(null) },
                    Answer::Failed | Answer::FailedAgain => Outcome::Failed { error: "e".into() },
                    Answer::Unavailable => Outcome::Unavailable { error: "e".into(), retry_after_ms: None },
                    Answer::Deferred => Outcome::Deferred { error: "e".into(), retry_after_ms: 0 },
                };
                let reply = Reply::new(task.id.clone(), &self.workflow.steps[step].name, attempt, outcome);
                let looked = self.workflow.steps[step].looks_safely();
                Event::Reply(Reply { unsure: answer == Answer::FailedAgain, looked, ..reply })
            }
            Msg::Request { .. } => return None,
        })
    }

    fn schedule(&self, task: &Task, event: &Event, now: Timestamp) -> Decision {
        crate::defects::schedule(self.defect, task, event, &self.turn(now))
    }

    fn supervise(&self, task: &Task, token: u64, now: Timestamp) -> Verdict {
        crate::defects::supervise(self.defect, task, token, &self.turn(now))
    }

    fn decide(&self, task: &Task, msg: Msg) -> Option<Decision> {
        let msg = match msg {
            // Only a repeated submission sends it.
            Msg::Wake { seen: 0 } if self.bounds.begins => match self.defect {
                Some(Defect::RepeatedSubmissionIsTooLate) => Msg::Wake { seen: task.version },
                _ => Msg::Wake { seen: task.first_wake()? },
            },
            other => other,
        };
        Some(self.schedule(task, &self.event(task, msg)?, now()))
    }

    /// Sends `effects` except for the lost ones, which stay owed.
    fn send(&self, state: &mut State, trigger: Option<Msg>, effects: &[Effect], lost: u8) {
        let is_wake = |effect: &Effect| matches!(effect, Effect::Wake(..));
        let is_turn = |effect: &Effect| matches!(effect, Effect::Notice(n) if n.kind != NoticeKind::StepCompleted);
        let is_lost = |bit: usize| lost & (1 << bit) != 0;
        // The engine's rule: a Wake goes out once everything that belongs before it has.
        let waits = self.defect != Some(Defect::WakeOvertakesNotice) && effects.iter().any(is_turn);
        let holds_back = waits && effects.iter().enumerate().any(|(bit, effect)| !is_wake(effect) && is_lost(bit));
        // Its other rule: an owed message is followed up only while nothing before it failed.
        let mut has_failed = false;
        for (bit, effect) in effects.iter().enumerate() {
            if !is_for(effect, &state.task.id) {
                state.broken = Some("what is sent for a task names it, and so does the key of its calls");
            }
            if let Effect::Notice(notice) = effect {
                rules::check_number(state, notice);
            }
            let owed = self.owed(effect);
            if is_lost(bit) || holds_back && is_wake(effect) {
                has_failed |= !is_wake(effect);
                // Only a step's own notice may be lost permanently. What was sent before is no longer owed.
                let owed = owed.filter(|owed| !state.told || *owed != Owed::Notice { seq: state.task.turned_at });
                state.owed.extend(owed.map(|owed| (trigger, owed)));
                continue;
            }
            state.told |= owed == Some(Owed::Notice { seq: state.task.turned_at });
            if let Some(owed) = owed {
                state.owed.retain(|(_, o)| *o != owed);
            }
            let clears = self.defect == Some(Defect::ClearsAfterAFailure) || !has_failed;
            match effect {
                Effect::Wake(wake, _) => {
                    // The first and the latest are enough: one in between re-sends a part of what the first does.
                    state.net.retain(|m| !matches!(m, Msg::Wake { seen } if *seen > 0));
                    state.net.insert(Msg::Wake { seen: wake.seen });
                }
                Effect::Request(r) if r.reminder.is_some() => {
                    let step = self.workflow.position(&r.step).expect("a step of this workflow");
                    state.broken = state.broken.or(self.reminder_broken_by(&state.task, step, r));
                    // An agent of somebody else may reply.
                    state.net.insert(Msg::Reply { step, attempt: 0, answer: Answer::Done });
                }
                Effect::Request(r) => {
                    let step = self.workflow.position(&r.step).expect("a step of this workflow");
                    let left = now().duration_until(r.complete_by).as_secs();
                    let recorded = state.task.holds(step, r.attempt);
                    if recorded.is_some_and(|(_, by)| by != r.complete_by) {
                        state.broken = Some("a request carries the recorded deadline");
                    }
                    if recorded.is_none() {
                        state.broken = Some("a request is for an attempt that holds its step");
                    }
                    let undo = r.direction == Direction::Undo;
                    state.net.insert(Msg::Request { step, undo, attempt: r.attempt, left });
                }
                Effect::Notice(n) if n.kind == NoticeKind::Received => {}
                Effect::Notice(n) => {
                    if clears && state.task.notice_owed && n.seq >= state.task.turned_at {
                        state.net.insert(Msg::NoticeSent { version: state.task.turned_at });
                    }
                }
                Effect::Alert(a) => {
                    state.alerts_out.insert(a.version);
                    if clears {
                        state.net.insert(Msg::AlertSent { version: a.version });
                    }
                }
                Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) | Effect::Child(_) => {
                    unreachable!("the core sends none of these")
                }
            }
        }
    }

    fn owed(&self, effect: &Effect) -> Option<Owed> {
        match effect {
            Effect::Request(r) if r.reminder.is_some() => {
                Some(Owed::Reminder { step: self.workflow.position(&r.step)?, number: r.reminder? })
            }
            Effect::Request(r) => Some(Owed::Request { step: self.workflow.position(&r.step)?, attempt: r.attempt }),
            Effect::Wake(..) => Some(Owed::Wake),
            Effect::Notice(n) if matches!(n.kind, NoticeKind::StepCompleted | NoticeKind::Received) => None,
            Effect::Notice(n) => Some(Owed::Notice { seq: n.seq }),
            Effect::Alert(a) => Some(Owed::Alert { version: a.version }),
            Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) | Effect::Child(_) => {
                unreachable!("the core sends none of these")
            }
        }
    }

    fn save(&self, state: &mut State, next: Box<Task>) {
        if next.version != state.task.version + 1 {
            state.broken = Some("every change is one version");
        }
        let is_resubmitted = state.task.phase == Phase::Error && next.phase == Phase::Forward;
        if is_resubmitted && next.deadline.is_some_and(|by| by <= now()) {
            state.broken = Some("a resubmitted order is given time");
        }
        if let Some(rule) = self.broken_by(&state.task, &next) {
            state.broken = Some(rule);
        }
        if self.defect == Some(Defect::OwnStampMeansMine) {
            state.before = Some(Arc::clone(&state.task));
        }
        let mut next = *next;
        // A person who skips its step decides what becomes of its event.
        let is_unused = |(was, is): (&Arrival, &Arrival)| was.data.is_some() && is.data.is_none() && is.step.is_none();
        if state.task.events.iter().zip(&next.events).any(is_unused) {
            let is_left = |n: &usize| next.steps[*n].state == step::State::Skipped;
            (0..next.steps.len()).filter(is_left).for_each(|n| state.left |= 1 << n);
        }
        normalise(&mut next, SignedDuration::ZERO);
        state.told &= state.task.turned_at == next.turned_at;
        state.task = Arc::new(next);
    }

    /// Somebody sends an event.
    fn receive(&self, state: &State, key: u8, lost: u8) -> Option<State> {
        let mut next = state.clone();
        next.crashes -= u8::from(lost != 0);
        match self.schedule(&state.task, &self.arrival(key), now()) {
            Decision::Save { task, effects } => {
                if next.sent & (1 << key) != 0 {
                    next.broken = Some("a known key changes nothing");
                }
                if !matches!(state.task.phase, Phase::Forward | Phase::Error) {
                    next.broken = Some("an order that is being undone takes no event");
                }
                if effects.iter().any(|effect| matches!(effect, Effect::Request(_))) {
                    next.broken = Some("an event starts nothing");
                }
                let (_, person) = KEYS[usize::from(key)];
                let is_of_person = |other: usize| next.sent & (1 << other) != 0 && KEYS[other].1 == person;
                if self.bounds.flow == Flow::People && key != NO && (0..usize::from(NO)).any(is_of_person) {
                    next.broken = Some("one person counts once, under any key");
                }
                next.sent |= 1 << key;
                self.save(&mut next, task);
                let task = &next.task;
                if task.phase == Phase::Forward && task.steps.iter().all(step::Step::is_settled) {
                    next.broken = Some("an event leaves nothing to the Wake that no Wake would do");
                }
                let last = task.events.last();
                let places = |index| std::iter::repeat_n(index, task.places(index, &self.workflow));
                let to_come: Vec<usize> = task.to_come("e", &self.workflow).flat_map(places).collect();
                let kept = to_come.get(task.kept().count().saturating_sub(1)).copied();
                match last.and_then(|event| event.step.map(usize::from)).or(kept) {
                    Some(step) if self.bounds.flow == Flow::People && key == NO => {
                        let waits = |task: &Task| matches!(task.steps[step].state, step::State::Waiting { .. });
                        if waits(&state.task) && next.task.steps[step].state != step::State::Failed {
                            next.broken = Some("one person who says no ends the wait");
                        }
                    }
                    Some(step) => next.applied[step] = true,
                    None => next.broken = Some("an event that is accepted has a step"),
                }
                self.send(&mut next, None, &effects, lost);
            }
            Decision::Keep { why: Kept::Declined(why), .. } => {
                let waits = |step: &step::Step| matches!(step.state, step::State::Waiting { event: true, .. });
                if next.sent & (1 << key) != 0 {
                    next.broken = Some("a known key keeps its answer");
                }
                let counts = matches!(state.task.phase, Phase::Forward | Phase::Error);
                if counts && matches!(why, Declined::Late | Declined::Early) && state.task.steps.iter().any(waits) {
                    next.broken = Some("an event counts while its step waits, whatever the clock says");
                }
            }
            Decision::Keep { effects, .. } => {
                let (_, person) = KEYS[usize::from(key)];
                let is_stored = |event: &Arrival| event.by.is_none() || self.sender(event) == person;
                if self.bounds.flow == Flow::People && !state.task.events.iter().any(is_stored) {
                    next.broken = Some("an event that is answered with success is stored");
                }
                self.send(&mut next, None, &effects, lost);
            }
        }
        self.prune(&mut next);
        Some(next)
    }

    /// An agent that works on a request says so. It relies on the CompleteBy that it is told.
    fn beat(&self, state: &State, msg: Msg, is_answered: bool) -> Option<State> {
        let Msg::Request { step, undo, attempt, left } = msg else { return None };
        let (mut next, was) = (state.clone(), Arc::clone(&state.task));
        let own = was.holds(step, attempt);
        let counts =
            own.is_some_and(|(_, by)| now() < by) && (undo || matches!(was.phase, Phase::Forward | Phase::Error));
        match self.schedule(&was, &beat(&self.workflow.steps[step].name, attempt), now()) {
            Decision::Save { task, effects } => {
                if !counts {
                    next.broken =
                        Some("only an attempt that holds its step is kept alive, and none that an undo waits for");
                }
                if !effects.is_empty() {
                    next.broken = Some("a heartbeat starts nothing");
                }
                if task.updated_at != was.updated_at {
                    next.broken = Some("a heartbeat makes no order young");
                }
                if !task.is_as_seen(was.version) {
                    next.broken = Some("a heartbeat is no change to who looked before");
                }
                self.save(&mut next, task);
            }
            Decision::Keep { why: Kept::Alive, .. } => {}
            Decision::Keep { .. } => {
                if counts {
                    next.broken = Some("the heartbeat of an attempt that holds its step is answered");
                }
                return Some(next);
            }
        }
        if is_answered {
            let told = match self.defect {
                Some(Defect::BeatIsToldMore) => Some(now() + SignedDuration::from_secs(2)),
                Some(Defect::BeatOfAnyAttempt) => next.task.steps[step].claim().map(|(_, by)| by),
                _ => next.task.holds(step, attempt).map(|(_, by)| by),
            };
            let told = told.map_or(left, |by| now().duration_until(by).as_secs());
            next.net.remove(&msg);
            next.net.insert(Msg::Request { step, undo, attempt, left: told.max(left) });
        }
        self.prune(&mut next);
        Some(next)
    }

    /// The service of b reports the end of its work.
    fn call_back(&self, state: &State, lost: u8) -> Option<State> {
        let mut next = state.clone();
        next.crashes -= u8::from(lost != 0);
        let was = &state.task.steps[1];
        match self.schedule(&state.task, &callback(), now()) {
            Decision::Save { task, effects } => {
                if next.called {
                    next.broken = Some("a known callback changes nothing");
                }
                if effects.iter().any(|effect| matches!(effect, Effect::Request(_))) {
                    next.broken = Some("a callback starts nothing");
                }
                next.called = true;
                self.save(&mut next, task);
                if next.task.phase == Phase::Forward && next.task.steps.iter().all(step::Step::is_settled) {
                    next.broken = Some("a callback leaves nothing to the Wake that no Wake would do");
                }
                if next.task.forward_by != state.task.forward_by {
                    next.broken = Some("a callback leaves the time until which the call may act");
                }
                self.send(&mut next, None, &effects, lost);
            }
            Decision::Keep { why: Kept::Declined(_), .. } => {
                let is_open = matches!(
                    was.state,
                    step::State::Pending { .. } | step::State::Processing { .. } | step::State::Waiting { .. }
                );
                let is_kept = state.task.phase == Phase::Error && was.state == step::State::Failed;
                let counts = matches!(state.task.phase, Phase::Forward | Phase::Error);
                if counts && was.attempt > 0 && (is_open || is_kept) {
                    next.broken = Some("a callback counts from the first claim on");
                }
                if next.called {
                    next.broken = Some("a known callback keeps its answer");
                }
            }
            Decision::Keep { effects, .. } => self.send(&mut next, None, &effects, lost),
        }
        self.prune(&mut next);
        Some(next)
    }

    fn arrival(&self, key: u8) -> Event {
        if self.bounds.flow != Flow::People {
            return Event::Arrived { name: "e".into(), key: key.to_string(), data: json!({}), by: None };
        }
        let (text, person) = KEYS[usize::from(key)];
        let data = if key == NO { json!({"no": 1}) } else { json!({}) };
        Event::Arrived { name: "e".into(), key: text.into(), data, by: Some(person.into()) }
    }

    /// Once the undo begins, nothing sends the notice of the turn to it.
    fn check_turn(&self, next: &mut State, before: &Task, effects: &[Effect]) {
        let turn = Owed::Notice { seq: before.turned_at };
        let begins = before.phase == Phase::Undoing && !before.is_undo_begun() && next.task.is_undo_begun();
        let is_owed = next.owed.iter().any(|(_, owed)| *owed == turn);
        if begins && is_owed && !effects.iter().any(|effect| self.owed(effect) == Some(turn)) {
            next.broken = Some("the undo begins once the notice of the turn went out, or goes out with it");
        }
    }

    /// The steps that need step `index`, directly or indirectly.
    fn dependents(&self, index: usize) -> Vec<usize> {
        let mut found = vec![index];
        for (n, step) in self.workflow.steps.iter().enumerate() {
            if step.after.iter().any(|after| found.contains(&after.step)) {
                found.push(n);
            }
        }
        found.split_off(1)
    }

    fn hands(&self, state: &State) -> Vec<Hand> {
        let mut hands = Vec::new();
        hands.extend((state.pauses > 0).then_some(Hand::Pause));
        hands.extend(state.task.paused_at.map(|_| Hand::Resume));
        if state.acts > 0 {
            hands.extend((0..self.workflow.steps.len()).flat_map(|step| [Hand::Skip(step), Hand::MarkDone(step)]));
            hands.push(Hand::Undo);
        }
        hands
    }

    /// The result of a person's act on `task`; `None` if it is refused or was already so.
    fn act(&self, task: &Task, hand: Hand, time: Timestamp) -> Option<(Box<Task>, Vec<Effect>)> {
        let name = |step: usize| Some(self.workflow.steps[step].name.clone());
        let what = match hand {
            Hand::Pause => What::Pause,
            Hand::Resume => What::Resume,
            Hand::Skip(step) => What::Skip { step: name(step) },
            Hand::MarkDone(step) => What::MarkDone { step: name(step), output: json!(null) },
            Hand::Undo => What::Undo,
        };
        let event = Event::Act(Act { what, by: "p".into(), reason: "r".into(), seen: None });
        match self.schedule(task, &event, time) {
            Decision::Save { task, effects } => Some((task, effects)),
            Decision::Keep { .. } => None,
        }
    }

    fn person(&self, state: &State, hand: Hand, lost: u8) -> Option<State> {
        let (task, effects) = self.act(&state.task, hand, now())?;
        let mut next = state.clone();
        next.crashes -= u8::from(lost != 0);
        match hand {
            Hand::Pause => next.pauses -= 1,
            Hand::Resume => {}
            Hand::Skip(_) | Hand::MarkDone(_) | Hand::Undo => next.acts -= 1,
        }
        match hand {
            Hand::MarkDone(step) => self.apply(&mut next, step, task.steps[step].is_undo_begun()),
            Hand::Skip(step) if task.steps[step].is_undo_begun() => next.left |= 1 << step,
            Hand::Skip(_) | Hand::Pause | Hand::Resume | Hand::Undo => {}
        }
        self.save(&mut next, task);
        self.check_turn(&mut next, &state.task, &effects);
        self.send(&mut next, None, &effects, lost);
        self.prune(&mut next);
        Some(next)
    }

    fn handle(&self, state: &State, msg: Msg, lost: u8) -> Option<State> {
        let mut next = state.clone();
        next.crashes -= u8::from(lost != 0);
        match self.decide(&state.task, msg)? {
            Decision::Save { task, effects } => {
                self.check_reply(&mut next, msg);
                if let (Msg::AlertSent { .. }, Some(alert)) = (msg, &state.task.alert)
                    && task.alert.is_none()
                    && !state.alerts_out.contains(&alert.version)
                {
                    next.broken = Some("an alert is cleared only after it went out");
                }
                if matches!(msg, Msg::AlertSent { .. } | Msg::NoticeSent { .. }) && !task.is_as_seen(state.task.version)
                {
                    next.broken = Some("the system's own bookkeeping is no change to who looked before");
                }
                self.save(&mut next, task);
                self.check_turn(&mut next, &state.task, &effects);
                self.send(&mut next, Some(msg), &effects, lost);
            }
            Decision::Keep { effects, .. } => self.send(&mut next, Some(msg), &effects, lost),
        }
        if let Msg::Wake { .. } = msg
            && let Some(Decision::Save { .. }) = self.decide_truly(&next.task, msg)
        {
            next.broken = Some("a Wake leaves nothing that can be claimed at once");
        }
        self.prune(&mut next);
        Some(next)
    }

    /// Two decisions, the second based on the result of the first, as one save that equals two saves without other
    /// writers. The sends follow both.
    fn handle_both(&self, state: &State, first: Msg, second: Msg, lost: u8) -> Option<State> {
        let mut next = state.clone();
        next.crashes -= u8::from(lost != 0);
        let mut all = Vec::new();
        for msg in [first, second] {
            let effects = match self.decide(&next.task, msg)? {
                Decision::Save { task, effects } => {
                    self.check_reply(&mut next, msg);
                    self.save(&mut next, task);
                    effects
                }
                Decision::Keep { effects, .. } => effects,
            };
            all.push((msg, effects));
        }
        let mut lost = lost;
        for (msg, effects) in all {
            self.send(&mut next, Some(msg), &effects, lost);
            lost = lost.checked_shr(u32::try_from(effects.len()).expect("a few")).unwrap_or(0);
        }
        self.prune(&mut next);
        Some(next)
    }

    fn decide_truly(&self, task: &Task, msg: Msg) -> Option<Decision> {
        Some(shared::scheduler::schedule(task, &self.event(task, msg)?, &self.turn(now())))
    }

    /// I3, I4: a reply counts only while its attempt holds the step, and in time.
    fn check_reply(&self, next: &mut State, msg: Msg) {
        let is_accepted = |step: usize, attempt: u32| {
            let step = &next.task.steps[step];
            step.attempt == attempt && matches!(step.state, step::State::Waiting { .. })
        };
        if let Msg::Reply { step, attempt, .. } = msg
            && !is_accepted(step, attempt)
            && next.task.holds(step, attempt).is_none_or(|(_, by)| now() >= by)
        {
            next.broken = Some("I4: a late or stale reply changes nothing");
        }
    }

    fn watch(&self, state: &State, token: u64, lost: u8) -> State {
        let mut next = state.clone();
        next.crashes -= u8::from(lost != 0);
        let verdict = self.supervise(&state.task, token, now());
        if token < state.token && !matches!(verdict, Verdict::Leave(_)) {
            let only_tells = matches!(&verdict, Verdict::Rearm { due, .. } if *due == state.task.due);
            if !only_tells {
                next.broken = Some("I8: an older leader writes nothing after a newer one");
            }
        }
        let is_forward = state.task.phase == Phase::Forward;
        let is_over = is_forward
            && state.task.paused_at.is_none()
            && state.task.deadline.is_some_and(|by| now().duration_since(by) >= SKEW);
        let goes_on = !matches!(&verdict, Verdict::Recover { task, .. } if task.phase != Phase::Forward);
        if is_over && goes_on && token >= state.token {
            next.broken = Some("a supervisor ends what is past its deadline");
        }
        let spent = |step: &step::Step| step.state == step::State::Failed;
        if let Verdict::Recover { task, .. } = &verdict
            && is_forward
            && !is_over
            && matches!(task.phase, Phase::Undoing | Phase::Error)
            && !task.steps.iter().any(spent)
        {
            next.broken = Some("a supervisor ends nothing before its deadline");
        }
        match verdict {
            Verdict::Recover { task, effects, expired } => {
                let failures = |t: &Task| t.failure_count();
                let gone = |s: &step::Step| s.claim().is_some_and(|(_, by)| now().duration_since(by) >= SKEW);
                let is_look = |i: usize| self.workflow.steps[i].poll.is_some() && !state.task.steps[i].owes_undo();
                let looks = state.task.steps.iter().enumerate().filter(|(i, s)| gone(s) && is_look(*i)).count();
                if failures(&task) != failures(&state.task) + u32::try_from(expired - looks).unwrap() {
                    next.broken = Some("I3: an expired attempt counts exactly once");
                }
                let is_missed = |(i, step): (usize, &step::Step)| {
                    let was = &state.task.steps[i].state;
                    self.workflow.steps[i].accept.is_some()
                        && matches!(was, step::State::Waiting { .. })
                        && *was != step.state
                };
                let missed = task.steps.iter().enumerate().filter(|one| is_missed((one.0, one.1))).count();
                let extended = |(was, is): &(&step::Step, &step::Step)| is.extended > was.extended;
                let extended = state.task.steps.iter().zip(&task.steps).filter(extended).count();
                if expired + extended - missed != state.task.steps.iter().filter(|s| gone(s)).count() {
                    next.broken = Some("what expired, and only that, is taken back");
                }
                next.token = next.token.max(token);
                self.save(&mut next, task);
                self.send(&mut next, None, &effects, lost);
            }
            Verdict::Rearm { due, effects } => {
                if due != state.task.due {
                    let mut task = (*state.task).clone();
                    (task.due, task.lease_token) = (due, token);
                    next.token = next.token.max(token);
                    let exact = task.next_deadline(SKEW);
                    let waits = task.next_claim(&self.workflow, now(), SKEW);
                    if waits.is_none() && task.alert.is_none() && !task.notice_owed && due != exact {
                        next.broken = Some("a task found early is due at its earliest deadline");
                    }
                    normalise(&mut task, SignedDuration::ZERO);
                    next.task = Arc::new(task);
                }
                self.send(&mut next, None, &effects, lost);
            }
            Verdict::Leave(_) => {}
        }
        self.prune(&mut next);
        next
    }

    /// The remote service does what an agent asks, and the agent answers.
    fn perform(&self, state: &State, msg: Msg, answer: Answer) -> Option<State> {
        let Msg::Request { step, undo, attempt, .. } = msg else { return None };
        let mut next = state.clone();
        let is_again = self.bounds.mapped && answer == Answer::Failed && !undo && state.applied[step];
        if answer == Answer::Done && !undo && state.refused.get(step) == Some(&true) {
            return None;
        }
        match answer {
            Answer::Done => self.apply(&mut next, step, undo),
            Answer::Failed | Answer::FailedAgain => {
                next.failed -= 1;
                if let Some(refused) = next.refused.get_mut(step) {
                    *refused |= !undo && !is_again;
                }
            }
            Answer::Unavailable => next.unavailable -= 1,
            Answer::Deferred => next.deferred -= 1,
            Answer::NotYet => next.looks -= 1,
            Answer::Accepted => {
                next.accepts -= 1;
                self.apply(&mut next, step, undo);
            }
        }
        let answer = if is_again { Answer::FailedAgain } else { answer };
        next.net.insert(Msg::Reply { step, attempt, answer });
        self.prune(&mut next);
        Some(next)
    }

    fn apply(&self, next: &mut State, step: usize, undo: bool) {
        if let Some(undone) = next.undone.get_mut(step) {
            *undone |= undo;
        }
        if undo {
            next.applied[step] = false;
            // In reverse: nothing that was built on it may still stand.
            let stands =
                |&j: &usize| next.applied[j] && self.workflow.steps[j].undo.is_some() && next.left & (1 << j) == 0;
            if self.dependents(step).iter().any(stands) {
                next.broken = Some("I5: undo in reverse");
            }
        } else if next.undone.get(step) != Some(&true) {
            next.applied[step] = true;
            let is_skipped = |j: usize| next.task.steps[j].state == step::State::Skipped;
            let is_look = self.workflow.steps[step].looks_safely();
            let needs = |a: &&After| a.edge != Edge::Always && !self.workflow.steps[a.step].agent.is_empty();
            let mut needed = self.workflow.steps[step].after.iter().filter(needs);
            if !is_look && needed.any(|a| !next.applied[a.step] && !is_skipped(a.step)) {
                next.broken = Some("a step is done only on top of what it depends on");
            }
        }
    }

    /// Drops what can no longer have any effect.
    fn prune(&self, state: &mut State) {
        let task = Arc::clone(&state.task);
        state.net.retain(|m| match *m {
            Msg::Reply { step, attempt, .. } => attempt + 1 >= task.steps[step].attempt,
            Msg::Wake { .. } | Msg::Request { .. } | Msg::Cancel => true,
            Msg::AlertSent { version } => version <= task.version,
            Msg::NoticeSent { version } => version == task.turned_at,
        });
        // An alert older than the last turn and the last save can no longer be sent.
        state.alerts_out.retain(|v| *v == task.turned_at || task.alert.as_ref().is_some_and(|a| a.version == *v));
        if task.process_state().is_final() {
            state.net.retain(|m| !matches!(m, Msg::Wake { seen } if *seen > 0));
        }
        state.owed.retain(|(trigger, owed)| self.is_still_owed(&task, *trigger, *owed));
    }
}

fn is_for(effect: &Effect, id: &Id) -> bool {
    match effect {
        Effect::Request(r) => r.task_id == *id && r.idempotency_key.starts_with(&format!("{id}:")),
        Effect::Wake(wake, _) => wake.task_id == *id,
        Effect::Notice(notice) => notice.order_id == *id,
        Effect::Alert(alert) => alert.order_id == *id,
        Effect::Reply(_) | Effect::SetAside(_) | Effect::Strained(_) | Effect::Child(_) => {
            unreachable!("the core sends none of these")
        }
    }
}

fn beat(step: &str, attempt: u32) -> Event {
    Event::Beat { step: step.into(), attempt, progress: Progress::default() }
}

fn callback() -> Event {
    Event::CalledBack { step: "b".into(), key: "k".into(), data: json!({}) }
}

fn resubmit() -> Event {
    let what = What::Resubmit { step: None, input: None };
    Event::Act(Act { what, by: "p".into(), reason: "r".into(), seen: None })
}

/// Moves all times of `task` into the past by `by`, and removes what no decision reads.
fn normalise(task: &mut Task, by: SignedDuration) {
    let earliest = now() - SignedDuration::from_secs(PAST);
    let shift = |t: &mut Timestamp| *t = (*t - by).max(earliest);
    task.log.clear();
    // Whether a wait was longer than a message may be delayed is decided by the last save.
    let is_long = |until: &Timestamp| until.duration_since(task.updated_at) > MAX_DELAY;
    let waits = task.steps.iter().filter_map(|step| match step.state {
        step::State::Waiting { until, .. } => Some(until),
        _ => None,
    });
    let long = waits.filter(is_long).map(|until| (until - by).max(earliest)).min();
    // Every save is checked for it when it is made.
    task.books = None;
    task.reason = None;
    task.created_at = earliest;
    shift(&mut task.updated_at);
    if let Some(until) = long {
        task.updated_at = task.updated_at.min(until - MAX_DELAY - SignedDuration::from_secs(1));
    }
    task.due.iter_mut().for_each(shift);
    // The place in the due index does not matter to the protocol.
    task.shard = 0;
    task.forward_by.iter_mut().for_each(shift);
    task.deadline.iter_mut().for_each(shift);
    // No decision reads since when it is paused, or when a person last acted.
    task.paused_at = task.paused_at.map(|_| earliest);
    task.acted_at = 0;
    if let Some(alert) = &mut task.alert {
        alert.reason.clear();
    }
    for step in &mut task.steps {
        step.error = None;
        step.output = None;
        step.poll_until.iter_mut().for_each(shift);
        // Only people read since when it waits.
        step.turn = None;
        step.alert_at.iter_mut().for_each(shift);
        if let Some(heart) = &mut step.heart {
            shift(&mut heart.until);
            // When the last one came does not matter, only whether one did.
            heart.at = heart.at.map(|_| earliest);
        }
        if let Some(reminded) = &mut step.reminded {
            reminded.next.iter_mut().chain(&mut reminded.complete_by).for_each(shift);
        }
        match &mut step.state {
            step::State::Waiting { until, .. } => shift(until),
            step::State::Pending { not_before } | step::State::UndoPending { not_before } => {
                not_before.iter_mut().for_each(shift);
            }
            step::State::Processing { complete_by, .. } | step::State::UndoProcessing { complete_by, .. } => {
                shift(complete_by);
            }
            step::State::Processed
            | step::State::Failed
            | step::State::Skipped
            | step::State::PassedOver
            | step::State::Caught
            | step::State::Undone
            | step::State::UndoFailed => {}
        }
    }
}

impl World {
    /// A task called `id`, as submitted.
    pub fn begin(&self, id: &str) -> State {
        let submission =
            Submission { tenant: String::new(), reply_queue: Some("q".into()), ..submission(Id(id.into())) };
        let mut task = Task::new(submission, &self.workflow, now());
        normalise(&mut task, SignedDuration::ZERO);
        let b = &self.bounds;
        let has_tombstones = b.tombstones && self.defect != Some(Defect::ServicesForget);
        State {
            applied: vec![false; task.steps.len()],
            undone: vec![false; if has_tombstones { task.steps.len() } else { 0 }],
            refused: vec![false; if b.mapped { task.steps.len() } else { 0 }],
            task: Arc::new(task),
            before: None,
            net: BTreeSet::from([Msg::Wake { seen: 0 }]),
            owed: BTreeSet::new(),
            alerts_out: BTreeSet::new(),
            notices: BTreeMap::new(),
            token: 0,
            crashes: b.crashes,
            failed: b.failed,
            unavailable: b.unavailable,
            deferred: b.deferred,
            looks: b.looks,
            accepts: b.accepts,
            withholds: b.withholds,
            is_withheld: false,
            called: false,
            cancels: b.cancels,
            resubmits: b.resubmits,
            pauses: b.pauses,
            acts: b.acts,
            told: false,
            left: 0,
            sent: 0,
            broken: None,
        }
    }
}

impl Model for World {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let submitted = self.begin("o");
        if !self.bounds.begins {
            return vec![submitted];
        }
        let lost = if self.bounds.crashes > 0 { 0..4 } else { 0..1 };
        lost.filter_map(|lost| self.handle(&submitted, Msg::Wake { seen: 0 }, lost)).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.broken.is_some() {
            return;
        }
        if let Some(other) = self.other(state) {
            return other.actions(state, actions);
        }
        if state.is_withheld || state.withholds > 0 {
            actions.push(Action::Withhold);
        }
        let masks = |effects: usize| if state.crashes > 0 { 1u8 << effects.min(3) } else { 1 };
        let count = |decision: &Decision| match decision {
            Decision::Save { effects, .. } | Decision::Keep { effects, .. } => effects.len(),
        };
        let cancel = (state.cancels > 0).then_some(Msg::Cancel);
        for &msg in state.net.iter().chain(&cancel) {
            if let Msg::Request { step, undo, .. } = msg {
                if self.bounds.flow == Flow::Beat && step == 0 {
                    actions.extend([true, false].map(|is_answered| Action::Beat { msg, is_answered }));
                }
                let accepts = self.workflow.steps[step].accept.is_some();
                let polls = !undo && self.workflow.steps[step].poll.is_some();
                let may = [
                    (Answer::Done, true),
                    (Answer::Failed, state.failed > 0),
                    (Answer::Unavailable, state.unavailable > 0),
                    (Answer::Deferred, state.deferred > 0),
                    (Answer::NotYet, polls && state.looks > 0),
                    (Answer::Accepted, !undo && accepts && state.accepts > 0),
                ];
                actions.extend(may.iter().filter(|m| m.1).map(|&(answer, _)| Action::Agent { msg, answer }));
                continue;
            }
            let Some(decision) = self.decide(&state.task, msg) else { continue };
            // Losing a re-send once more is another crash, and shows nothing new.
            let again = matches!(decision, Decision::Keep { .. });
            let masks = if again { 1 } else { masks(count(&decision)) };
            actions.extend((0..masks).map(|lost| Action::Schedule { msg, lost }));
            if state.before.is_some() {
                actions.push(Action::LoseTheRace { msg });
            }
            if self.bounds.folds && !again {
                let others = state.net.iter().filter(|other| matches!(other, Msg::Reply { .. } | Msg::Wake { .. }));
                // Lost: nothing, any combination of the first three sends, or all of them.
                let lost = (0..if state.crashes > 0 { 8 } else { 1 }).chain((state.crashes > 0).then_some(u8::MAX));
                actions.extend(others.filter(|other| **other != msg).flat_map(|&second| {
                    lost.clone().map(move |lost| Action::ScheduleBoth { first: msg, second, lost })
                }));
            }
        }
        if state.task.due.is_some_and(|due| due <= now()) {
            for token in 1..=self.bounds.leaders {
                let effects = match self.supervise(&state.task, token, now()) {
                    Verdict::Recover { effects, .. } => effects.len(),
                    Verdict::Rearm { .. } | Verdict::Leave(_) => 0,
                };
                actions.extend((0..masks(effects)).map(|lost| Action::Supervise { token, lost }));
            }
        }
        if state.resubmits > 0 && matches!(state.task.phase, Phase::Error | Phase::UndoError) {
            let decision = self.schedule(&state.task, &resubmit(), now());
            actions.extend((0..masks(count(&decision))).map(|lost| Action::Resubmit { lost }));
        }
        for key in 0..self.bounds.events {
            let decision = self.schedule(&state.task, &self.arrival(key), now());
            let masks = if matches!(decision, Decision::Save { .. }) { masks(count(&decision)) } else { 1 };
            actions.extend((0..masks).map(|lost| Action::Arrive { key, lost }));
        }
        // A service reports only work that it has taken.
        if self.bounds.flow == Flow::Accept && (state.applied[1] || state.called) {
            let decision = self.schedule(&state.task, &callback(), now());
            let masks = if matches!(decision, Decision::Save { .. }) { masks(count(&decision)) } else { 1 };
            actions.extend((0..masks).map(|lost| Action::CallBack { lost }));
        }
        for hand in self.hands(state) {
            if let Some((_, effects)) = self.act(&state.task, hand, now()) {
                actions.extend((0..masks(effects.len())).map(|lost| Action::Person { hand, lost }));
            }
        }
        actions.push(Action::Tick);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        if let Some(other) = self.other(state) {
            return other.next_state(state, action);
        }
        let next = match action {
            Action::Withhold => State {
                is_withheld: !state.is_withheld,
                withholds: state.withholds - u8::from(!state.is_withheld),
                ..state.clone()
            },
            Action::Schedule { msg, lost } => {
                let mut next = self.handle(state, msg, lost)?;
                if msg == Msg::Cancel && !state.net.contains(&msg) {
                    next.cancels -= 1;
                    next.net.insert(msg);
                }
                next
            }
            Action::ScheduleBoth { first, second, lost } => self.handle_both(state, first, second, lost)?,
            Action::LoseTheRace { msg } => {
                let mut next = state.clone();
                if let Some(Decision::Save { effects, .. }) = self.decide(state.before.as_ref()?, msg) {
                    self.send(&mut next, Some(msg), &effects, 0);
                }
                next
            }
            Action::Agent { msg, answer } => self.perform(state, msg, answer)?,
            Action::Beat { msg, is_answered } => self.beat(state, msg, is_answered)?,
            Action::Supervise { token, lost } => self.watch(state, token, lost),
            Action::Resubmit { lost } => {
                let mut next = state.clone();
                next.resubmits -= 1;
                next.crashes -= u8::from(lost != 0);
                match self.schedule(&state.task, &resubmit(), now()) {
                    Decision::Save { task, effects } => {
                        self.save(&mut next, task);
                        self.send(&mut next, None, &effects, lost);
                        self.prune(&mut next);
                    }
                    Decision::Keep { .. } => return None,
                }
                next
            }
            Action::Person { hand, lost } => self.person(state, hand, lost)?,
            Action::Arrive { key, lost } => self.receive(state, key, lost)?,
            Action::CallBack { lost } => self.call_back(state, lost)?,
            Action::Tick => {
                let mut next = state.clone();
                let mut task = (*state.task).clone();
                let seconds = self.seconds(&task);
                normalise(&mut task, SignedDuration::from_secs(seconds));
                next.task = Arc::new(task);
                if let Some(before) = &state.before {
                    let mut before = (**before).clone();
                    normalise(&mut before, SignedDuration::from_secs(seconds));
                    next.before = Some(Arc::new(before));
                }
                // Past its deadline an agent starts nothing.
                next.net = (state.net.iter())
                    .filter_map(|&m| match m {
                        Msg::Request { left, .. } if left <= seconds => None,
                        Msg::Request { step, undo, attempt, left } => {
                            Some(Msg::Request { step, undo, attempt, left: left - seconds })
                        }
                        Msg::Wake { .. }
                        | Msg::Reply { .. }
                        | Msg::Cancel
                        | Msg::AlertSent { .. }
                        | Msg::NoticeSent { .. } => Some(m),
                    })
                    .collect();
                self.prune(&mut next);
                next
            }
        };
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("no transition breaks a rule (I1, I3, I4, I5, I6, I8)", |_: &World, s: &State| {
                s.broken.is_none()
            }),
            Property::always(
                "I2: with all messages lost, the sweep alone brings the order to an end",
                |w: &World, s: &State| s.broken.is_some() || w.drains_both_ways(s),
            ),
            Property::always("what a crash lost is sent when its trigger comes again", |w: &World, s: &State| {
                s.broken.is_some() || w.is_made_good(s)
            }),
            Property::always(
                "I5: the remote holds all of a processed order, and nothing of an undone one",
                |w: &World, s: &State| w.is_consistent(&s.task, &s.applied, s.left, false),
            ),
            Property::always(
                "I2: an order in Error has an alert that went out or is owed and due",
                |_: &World, s: &State| match s.task.phase {
                    Phase::Error | Phase::UndoError => match &s.task.alert {
                        Some(alert) => alert.version == s.task.turned_at && s.task.due.is_some(),
                        None => s.alerts_out.contains(&s.task.turned_at),
                    },
                    Phase::Forward | Phase::Undoing | Phase::Processed | Phase::Undone => true,
                },
            ),
            Property::always(
                "due is never later than a deadline, and an ended task is out of the index",
                |_: &World, s: &State| {
                    let deadline = s.task.next_deadline(SKEW);
                    let owes = s.task.alert.is_some() || s.task.notice_owed;
                    match (s.task.due, deadline) {
                        (Some(due), Some(deadline)) => due <= deadline,
                        (None, Some(_)) => false,
                        (due, None) => {
                            let is_open = !s.task.process_state().is_final() && s.task.paused_at.is_none();
                            due.is_some() == (owes || is_open)
                        }
                    }
                },
            ),
            Property::always("LockedBy is there exactly while a step is with an agent", |_: &World, s: &State| {
                s.task.locked_by().is_some() == s.task.complete_by().is_some()
            }),
            Property::sometimes("an order is processed", |_: &World, s: &State| s.task.phase == Phase::Processed),
        ];
        if self.bounds.then == "undo" || self.bounds.cancels > 0 {
            properties.push(Property::sometimes("an order is undone after work was done", |_: &World, s: &State| {
                s.task.phase == Phase::Undone && s.task.steps[0].attempt > 1
            }));
        }
        properties
    }
}
